//! The ladder: every wall, in order.

use super::{Case, page, sign};
use crate::html::page::{Section, command};
use crate::text::ladder as text;
use allocwall_diagnose::{Finding, Status};
use allocwall_model::catalogue::walls::rung_title;
use maud::{Markup, html};

pub(super) fn section(case: &Case) -> Section {
    let rungs = case.verdict.findings.chunk_by(|a, b| a.rung == b.rung);
    // A rung with one wall of its own name needs no heading.
    let is_named = |rung: &[Finding]| rung.len() > 1 || rung[0].wall.title() != rung_title(rung[0].rung);
    let body = html! {
        ol.ladder {
            @for rung in rungs {
                li value=(rung[0].rung) {
                    @if is_named(rung) { h3 { (rung_title(rung[0].rung)) } }
                    @for finding in rung { (wall(case, finding)) }
                }
            }
        }
    };
    let aside = "rungs in order: interference first, then the kernel, then the allocator";
    Section { id: "ladder", title: "Ladder", aside: aside.into(), body }
}

/// A wall that was found with its evidence. Of the others, one line that opens.
fn wall(case: &Case, finding: &Finding) -> Markup {
    let (class, sign) = sign(finding.status);
    let head = html! {
        span.sign aria-hidden="true" { (sign) } " "
        strong { (finding.wall.title()) } " "
        span.status { (text::word(finding.status).0) }
        @if finding.status != Status::NotMeasured && let Some(share) = finding.share.filter(|share| share.low < share.high) {
            " " span.interval { (page::percents(share)) }
        }
    };
    let reading = text::reading(finding, &case.limits);
    let numbers = text::numbers(finding);
    let has_evidence = !numbers.is_empty() || !finding.show.command.is_empty();
    let evidence = html! {
        @if !numbers.is_empty() { p.note { (numbers) } }
        @if !finding.show.command.is_empty() {
            p.note { "The same with other tools:" }
            (command(&finding.show))
        }
    };
    match finding.status {
        Status::Wall | Status::Contributor => html! {
            div.finding.(class) {
                p { (head) }
                p { (reading) }
                @if has_evidence {
                    details open[finding.status == Status::Wall] { summary { "Evidence" } (evidence) }
                }
            }
        },
        Status::RuledOut | Status::NotMeasured => html! {
            details.finding.(class) {
                summary { (head) " · " (reading) }
                @if let Some(missing) = &finding.missing {
                    p.note { a href={ "#limit-" (case.limits.number(missing)) } { (missing.detail) } }
                }
                (evidence)
            }
        },
    }
}
