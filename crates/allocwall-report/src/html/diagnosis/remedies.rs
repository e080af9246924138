//! The remedies, in the order in which to try them, with predicted gains.

use super::Case;
use crate::html::page::{Section, command, facts, percent};
use crate::text::remedies as text;
use allocwall_diagnose::Prescription;
use allocwall_diagnose::remedies::trial;
use allocwall_model::catalogue::remedies::find;
use maud::{Markup, html};

pub(super) fn section(case: &Case) -> Section {
    let verdict = case.verdict;
    let body = html! {
        @if !verdict.remedies.is_empty() {
            ol.remedies { @for remedy in &verdict.remedies { li { (one(case, remedy)) } } }
        }
        @if !verdict.next.is_empty() {
            h3 { "Next" }
            @for line in &verdict.next { (command(line)) }
        }
    };
    let aside = "try them in this order; gains are predictions, and a trial measures them";
    Section { id: "remedies", title: "Remedies", aside: aside.into(), body }
}

fn one(case: &Case, remedy: &Prescription) -> Markup {
    let entry = find(&remedy.remedy);
    let rows = [
        ("why", &remedy.basis),
        ("risk", &remedy.backfires),
        ("moves the cost to", &remedy.moves),
        ("undo", &remedy.undo),
    ];
    let rows = rows.into_iter().filter(|(_, text)| !text.is_empty());
    html! {
        h3 { (remedy.title) }
        p { strong { (text::gain(remedy, entry)) } " · " (text::restart(remedy.restart, entry)) }
        @if let Some(gain) = remedy.gain { (interval(gain.low, gain.point, gain.high)) }
        @match remedy.is_command {
            true => { (command(&remedy.how)) }
            false => { p { (remedy.how.command) } }
        }
        @if let Some(line) = trial(case.rec, case.bill, remedy) { p.note { "Try it against the present state:" } (command(&line)) }
        details {
            summary { "Why, and what can go wrong" }
            (facts(rows.map(|(name, text)| (name, html! { (text) })).collect()))
        }
    }
}

/// The predicted saving on a scale from −50 to 100 % of CPU.
fn interval(low: f64, point: f64, high: f64) -> Markup {
    const LEAST: f64 = -0.5;
    let at = |share: f64| percent((share - LEAST) / (1.0 - LEAST));
    html! {
        svg.gain width="100%" height="34" aria-hidden="true" {
            @for (share, label) in [(-0.5, "−50 %"), (0.0, "0"), (0.5, "50 %"), (1.0, "100 % of CPU saved")] {
                line.grid x1=(at(share)) x2=(at(share)) y1="0" y2="20" {}
                text x=(at(share)) y="32" text-anchor=(if share < 0.0 { "start" } else if share > 0.9 { "end" } else { "middle" }) { (label) }
            }
            line.predicted x1=(at(low)) x2=(at(high)) y1="10" y2="10" {}
            circle.predicted cx=(at(point)) cy="10" r="5" {}
        }
    }
}
