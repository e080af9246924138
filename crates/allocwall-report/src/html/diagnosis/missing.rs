//! What was not measured, each with what would help, and what the measuring cost.

use super::{Case, notes, short};
use crate::html::page::Section;
use crate::text::missing as text;
use maud::html;

/// Limits that are listed, and columns of a text. No usual diagnosis has more.
const LISTED: usize = 200;
const TEXT: usize = 1000;

pub(super) fn section(case: &Case) -> Section {
    let body = html! {
        @if case.limits.all().next().is_none() { p { "Everything was measured." } }
        ol.limits {
            @for (nth, limit) in (1..=LISTED).zip(case.limits.all()) {
                li id={ "limit-" (nth) } {
                    strong { (short(&limit.hides, TEXT)) } ": " (short(limit.detail, TEXT))
                    @if let Some(advice) = limit.advice { p.mend { "To measure it: " (short(&advice, TEXT)) } }
                }
            }
        }
        (notes(|page| text::own_cost(page, case.rec, case.bill)))
    };
    Section {
        id: "missing",
        title: "Not measured",
        aside: "what this run could not measure, and its own cost".into(),
        body,
    }
}
