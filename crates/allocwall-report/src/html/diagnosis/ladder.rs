//! The ladder: every wall, in order.

use super::{Case, page, sign};
use crate::html::page::{Section, command};
use crate::text::ladder as text;
use allocwall_diagnose::{Finding, Status};
use allocwall_model::catalogue::walls::rung_title;
use maud::{Markup, html};

pub(super) fn section(case: &Case) -> Section {
    let rungs = case.verdict.findings.chunk_by(|a, b| a.rung == b.rung);
    let body = html! {
        ol.ladder {
            @for rung in rungs {
                li value=(rung[0].rung) {
                    h3 { (rung_title(rung[0].rung)) }
                    @for finding in rung { (wall(case, finding)) }
                }
            }
        }
    };
    let aside = "rungs in order: interference first, then the kernel, then the allocator";
    Section { id: "ladder", title: "Ladder", aside: aside.into(), body }
}

fn wall(case: &Case, finding: &Finding) -> Markup {
    let (class, sign) = sign(finding.status);
    let numbers = text::numbers(finding);
    let measured = finding.status != Status::NotMeasured;
    html! {
        div.finding.(class) {
            p {
                span.sign aria-hidden="true" { (sign) } " "
                strong { (finding.wall.title()) } " "
                span.status { (text::word(finding.status).0) }
                @if let Some(share) = finding.share.filter(|_| measured) { " " span.interval { (page::percents(share)) } }
            }
            p { (text::reading(finding, &case.limits)) }
            @if !numbers.is_empty() || !finding.show.command.is_empty() {
                details open[finding.status == Status::Wall] {
                    summary { "Evidence" }
                    @if !numbers.is_empty() { p.note { (numbers) } }
                    @if !finding.show.command.is_empty() {
                        p.note { "The same with other tools:" }
                        (command(&finding.show))
                    }
                }
            }
        }
    }
}
