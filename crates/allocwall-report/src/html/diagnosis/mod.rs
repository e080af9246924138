//! The report of a diagnosis: the same result, titles, sentences and numbers as in the text.

mod bill;
mod flame;
mod ladder;
mod memory;
mod missing;
mod remedies;
mod settings;
mod sites;
mod timeline;

use super::page::{Document, marked, notes};
use crate::text::missing::Limits;
use crate::text::remedies::gain;
use crate::text::{ladder::word, page, verdict as text};
use allocwall_diagnose::bill::{Bill, Classified};
use allocwall_diagnose::{Status, Verdict};
use allocwall_model::catalogue::remedies::find;
use allocwall_model::recording::Recording;
use allocwall_model::units::{Measured, Reason};
use allocwall_trial::TrialResult;
use maud::{Markup, html};

/// The trial of the remedies that a diagnosis offered.
pub struct Tried {
    pub outcome: TrialResult,
    /// Why it stopped early.
    pub failed: Option<String>,
    /// Path of the saved trial, for the commands.
    pub file: Option<String>,
}

/// What the sections are made from.
struct Case<'a> {
    rec: &'a Recording,
    bill: &'a Bill,
    verdict: &'a Verdict,
    /// Path of the recording, for the commands.
    file: Option<&'a str>,
    /// None if no trial was asked for.
    tried: Option<&'a Measured<Tried>>,
    classified: Classified<'a>,
    limits: Limits,
}

/// The report as one HTML document. It is smaller than 2 MB, whatever the recording has.
pub fn diagnosis(rec: &Recording, bill: &Bill, verdict: &Verdict, file: Option<&str>) -> String {
    verified(rec, bill, verdict, file, None)
}

/// The same with the trial of its remedies, or the reason why there is none.
pub fn verified(
    rec: &Recording,
    bill: &Bill,
    verdict: &Verdict,
    file: Option<&str>,
    tried: Option<&Measured<Tried>>,
) -> String {
    let mut limits = Limits::of(rec, bill, verdict);
    // Only this report has pauses over time.
    if let Some(absence) = timeline::pauses_absent(rec).filter(|why| why.reason != Reason::NotApplicable) {
        limits.add(&absence, format!("{} over time", timeline::PAUSES));
    }
    let case = Case { rec, bill, verdict, file, tried, classified: Classified::of(rec), limits };
    let document = Document {
        title: format!("{} · allocwall", short(&text::target(rec), 80)),
        head: head(&case),
        sections: vec![
            bill::section(&case),
            timeline::section(&case),
            ladder::section(&case),
            flame::section(&case),
            remedies::section(&case),
            memory::section(&case),
            sites::section(&case),
            settings::section(&case),
            missing::section(&case),
        ],
    };
    document.print()
}

/// What was diagnosed, and the verdict.
fn head(case: &Case) -> Markup {
    let Case { rec, bill, verdict, .. } = case;
    let has_wall = !verdict.walls.is_empty();
    let found = |status: Status| verdict.findings.iter().filter(move |finding| finding.status == status);
    html! {
        header {
            h1 { "allocwall " code { (short(&text::target(rec), 400)) } }
            p.facts { (short(&text::facts(rec).join(" · "), 2000)) }
            p.facts { (text::seen(rec, bill).join(" · ")) }
            @if let Some(warning) = text::ended(rec) { p.warning { (warning) } }
            div.verdict.(if has_wall { "bad" } else { "good" }) {
                h2 { "Verdict" }
                p.sentence { (marked(&short(&verdict.sentence, 2000))) }
                @if let Some(first) = verdict.remedies.first() {
                    p.facts { "First remedy: " a href="#remedies" { (first.title) } ", " (gain(first, find(&first.remedy))) }
                }
                ul.found {
                    @for wall in &verdict.walls { li.bad { (word(Status::Wall).0) ": " (wall.title()) } }
                    @for finding in found(Status::Contributor) {
                        li.warn { (word(Status::Contributor).0) ": " (finding.wall.title()) }
                    }
                    @let unmeasured = found(Status::NotMeasured).count();
                    @if unmeasured > 0 {
                        li { a href="#missing" { (unmeasured) " of " (verdict.findings.len()) " walls not measured" } }
                    }
                }
            }
        }
    }
}

/// Names may be very long. They are elided in the middle.
fn short(text: &str, columns: usize) -> String {
    crate::layout::elide_middle(text, columns)
}

/// The sign of a status, for readers who don't see colours.
fn sign(status: Status) -> (&'static str, &'static str) {
    match status {
        Status::Wall => ("bad", "■"),
        Status::Contributor => ("warn", "▲"),
        Status::RuledOut => ("good", "✓"),
        Status::NotMeasured => ("unknown", "?"),
    }
}
