//! The ladder: what is a wall, what contributes, and what is ruled out.

use super::super::layout::{columns, left, right};
use super::missing::Limits;
use super::page::{Ink, Page};
use super::sites;
use allocwall_diagnose::bill::Bill;
use allocwall_diagnose::{Finding, Status, Verdict};
use allocwall_model::catalogue::walls::{Wall, rung_title};

/// Where the text of the brief report starts, beside its labels.
pub(super) const COLUMN: usize = 13;
/// Walls that the brief report shows with their evidence, worst first.
const EXPLAINED: usize = 2;

/// Every wall in the order of the ladder.
pub(super) fn all(page: &mut Page, verdict: &Verdict, limits: &Limits) {
    page.section("LADDER", "rungs in order: interference first, then the kernel, then the allocator");
    let names = Wall::ALL.into_iter().map(|wall| columns(wall.title())).max().unwrap_or(0);
    let mut last_rung = 0;
    for finding in &verdict.findings {
        let number = if finding.rung == last_rung { String::new() } else { finding.rung.to_string() };
        last_rung = finding.rung;
        let (word, ink) = word(finding.status);
        let name = format!(" {} {} ", right(&number, 2), left(finding.wall.title(), names));
        let lead = format!("{name}{}", left(word, 13));
        page.hang(&lead, ink, columns(&lead), &reading(finding, limits), Ink::Plain);
        if finding.status == Status::Wall || finding.status == Status::Contributor {
            behind(page, finding, if page.width >= 80 { columns(&name) } else { 4 });
        }
    }
}

pub(crate) fn word(status: Status) -> (&'static str, Ink) {
    match status {
        Status::Wall => ("WALL", Ink::Bad),
        Status::Contributor => ("contributor", Ink::Warn),
        Status::RuledOut => ("ruled out", Ink::Good),
        Status::NotMeasured => ("not measured", Ink::Warn),
    }
}

/// What is a wall or contributes, with evidence, and the others in a few words. What was not measured has its own section.
pub(super) fn brief(page: &mut Page, bill: &Bill, verdict: &Verdict) {
    page.blank();
    for (nth, finding) in worst_first(verdict).into_iter().enumerate() {
        let numbers = Some(numbers(finding)).filter(|numbers| nth < EXPLAINED && !numbers.is_empty());
        match numbers {
            // The sentence has said the rest.
            Some(numbers) if says(&verdict.sentence, finding) => {
                label(page, "WALL", Ink::Bad, &format!("{}: {numbers}", finding.wall.title()));
            }
            numbers => {
                label(page, "WALL", Ink::Bad, &named(finding));
                numbers.into_iter().for_each(|numbers| page.wrapped(COLUMN, &numbers, Ink::Faint));
            }
        }
        if nth < EXPLAINED {
            sites::of_wall(page, bill, verdict, finding.wall);
        }
    }
    for finding in verdict.findings.iter().filter(|f| f.status == Status::Contributor) {
        label(page, "CONTRIBUTOR", Ink::Warn, &named(finding));
    }
    let ruled_out = ruled_out(verdict);
    if !ruled_out.is_empty() {
        label(page, "RULED OUT", Ink::Good, &ruled_out.join(", "));
    }
}

/// `label` in capitals, and a text beside it.
pub(super) fn label(page: &mut Page, label: &str, ink: Ink, text: &str) {
    page.hang(label, ink, COLUMN, text, Ink::Plain);
}

/// Whether the sentence of the verdict holds the reason of a finding, without its threshold.
fn says(sentence: &str, finding: &Finding) -> bool {
    let reason = finding.because.split(';').next().unwrap_or_default().trim();
    !reason.is_empty() && sentence.contains(reason)
}

fn worst_first(verdict: &Verdict) -> Vec<&Finding> {
    let mut walls: Vec<&Finding> = verdict.findings.iter().filter(|f| f.status == Status::Wall).collect();
    let place = |finding: &&Finding| verdict.walls.iter().position(|wall| *wall == finding.wall);
    walls.sort_by_key(|finding| place(finding).unwrap_or(usize::MAX));
    walls
}

/// Without the threshold, which the whole report has.
fn named(finding: &Finding) -> String {
    let because = because(finding);
    let reason = match because.rsplit_once("; ") {
        Some((reason, threshold)) if threshold.contains("threshold ") => reason,
        _ => &because,
    };
    format!("{}: {reason}", finding.wall.title())
}

/// The rungs of which every wall is ruled out, and single walls of the others.
fn ruled_out(verdict: &Verdict) -> Vec<&'static str> {
    let is_out = |finding: &Finding| finding.status == Status::RuledOut;
    let mut names = vec![];
    for rung in verdict.findings.chunk_by(|a, b| a.rung == b.rung) {
        match rung.iter().all(is_out) {
            true => names.push(rung_title(rung[0].rung)),
            false => names.extend(rung.iter().filter(|f| is_out(f)).map(|f| f.wall.title())),
        }
    }
    names
}

/// The measured numbers of a wall or contributor. For a wall also a command that shows the same with another tool.
fn behind(page: &mut Page, finding: &Finding, column: usize) {
    let numbers = numbers(finding);
    if !numbers.is_empty() {
        page.wrapped(column, &numbers, Ink::Faint);
    }
    if finding.status == Status::Wall && !finding.show.command.is_empty() {
        page.command(column, &finding.show);
    }
}

/// All of a wall, the first one of the others.
pub(crate) fn numbers(finding: &Finding) -> String {
    let wall = finding.status == Status::Wall;
    let estimate = finding.estimate.as_ref().map(|kind| format!("estimate: {kind}"));
    let numbers: Vec<&str> = finding
        .evidence
        .iter()
        .take(if wall { usize::MAX } else { 1 })
        .chain(estimate.iter().filter(|_| wall))
        .map(String::as_str)
        .collect();
    numbers.join(" · ")
}

/// The text next to the status. The reason why something was not measured is printed once, under LIMITS.
pub(crate) fn reading(finding: &Finding, limits: &Limits) -> String {
    if let Some(missing) = &finding.missing {
        let because = stopped(&finding.because);
        let known = if because == missing.detail.trim_end_matches('.') || because.is_empty() {
            String::new()
        } else {
            format!("{because}; ")
        };
        return format!("{known}see limit {}", limits.number(missing));
    }
    because(finding)
}

pub(crate) fn because(finding: &Finding) -> String {
    let because = stopped(&finding.because);
    match &finding.estimate {
        Some(_) if finding.status != Status::Wall => format!("{because} (estimate)"),
        _ => because.to_string(),
    }
}

/// A table has no full stops.
pub(crate) fn stopped(because: &str) -> &str {
    because.trim().trim_end_matches('.')
}
