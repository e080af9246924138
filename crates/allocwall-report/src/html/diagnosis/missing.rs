//! What was not measured, each with what would help, and what the measuring cost.

use super::{Case, notes};
use crate::html::page::Section;
use crate::text::missing as text;
use maud::html;

pub(super) fn section(case: &Case) -> Section {
    let body = html! {
        @if case.limits.all().next().is_none() { p { "Everything was measured." } }
        ol.limits {
            @for limit in case.limits.all() {
                li {
                    strong { (limit.hides) } ": " (limit.detail)
                    @if let Some(advice) = limit.advice { p.mend { "To measure it: " (advice) } }
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
