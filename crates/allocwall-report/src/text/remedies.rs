//! The remedies: what to change, what it is predicted to save, and how to try it.

use super::super::escape::terminal;
use super::super::layout::{columns, elide_end};
use super::ladder::{COLUMN, label};
use super::page::{Ink, Page, bytes};
use allocwall_diagnose::bill::Bill;
use allocwall_diagnose::remedies::trial;
use allocwall_diagnose::{Prescription, Verdict};
use allocwall_model::catalogue::remedies::{self, Effect, Kind, Remedy};
use allocwall_model::catalogue::walls::Wall;
use allocwall_model::recording::Recording;

/// Remedies that the whole report shows with command and risk. The others are only named.
pub(super) const REMEDIES_SHOWN: usize = 2;
/// Remedies that the brief report names after the first one.
const NAMED: usize = 2;

/// The first remedy with the commands that try and apply it. The others in one line each, with their names.
pub(super) fn brief(page: &mut Page, rec: &Recording, bill: &Bill, verdict: &Verdict) {
    let Some((first, others)) = verdict.remedies.split_first() else { return };
    page.blank();
    let lead = format!("{:COLUMN$}", "REMEDY");
    let entry = remedies::find(&first.remedy);
    head(page, &lead, Ink::Heading, first, &in_short(&gain(first, entry)));
    if let Some(line) = trial(rec, bill, first) {
        page.command_after(&beside("try"), COLUMN + 6, &line);
    }
    match first.is_command {
        true => page.command_after(&beside("apply"), COLUMN + 6, &first.how),
        false => page.wrapped(COLUMN, &first.how.command, Ink::Plain),
    }
    let risk = [restart(first.restart, entry), first.backfires.as_str()];
    let risk: Vec<&str> = risk.into_iter().filter(|part| !part.is_empty()).collect();
    page.hang(&beside("risk"), Ink::Faint, COLUMN + 6, &risk.join("; "), Ink::Plain);
    // A single one takes as much room as the line that counts it.
    let named = if others.len() == NAMED + 1 { others.len() } else { NAMED };
    for (nth, remedy) in others.iter().take(named).enumerate() {
        let gain = gain(remedy, remedies::find(&remedy.remedy));
        let text = named_with_gain(remedy, &in_short(&gain), page.width.max(SHORT) - COLUMN);
        label(page, if nth == 0 { "OR" } else { "" }, Ink::Heading, &text);
    }
    let more = others.len().saturating_sub(named);
    if more > 0 {
        label(page, "", Ink::Plain, &format!("{more} more with --all"));
    }
}

/// In so many columns. The name is what `explain`, `trial` and `run` take. The title is shortened, but not the gain.
fn named_with_gain(remedy: &Prescription, gain: &str, room: usize) -> String {
    /// Columns of a title that still says something.
    const LEAST: usize = 12;
    let (name, title) = (&remedy.remedy, terminal(&remedy.title));
    let left = room.saturating_sub(columns(name) + columns(gain) + columns(":  · "));
    match left < columns(&title).min(LEAST) {
        true => format!("{name}: {gain}"),
        false => format!("{name}: {} · {gain}", elide_end(&title, left)),
    }
}

/// Without the reason why it is unknown, which the whole report has.
fn in_short(gain: &str) -> String {
    gain.split_once(": ").map_or(gain, |(gain, _)| gain).to_owned()
}

/// Columns of a line in the brief report that is not wrapped on a usual terminal.
pub(super) const SHORT: usize = 100;

/// A word below the label of the section.
fn beside(word: &str) -> String {
    format!("{}{word}", " ".repeat(COLUMN))
}

/// The title, and facts at the right end of the line if there is room.
fn head(page: &mut Page, lead: &str, ink: Ink, remedy: &Prescription, facts: &str) {
    let title = terminal(&remedy.title);
    let used = columns(lead) + columns(&title) + columns(facts);
    if used + 2 <= page.width {
        let (lead, title) = (page.paint(ink, lead), page.paint(Ink::Heading, &title));
        page.line(&format!("{lead}{title}{}{facts}", " ".repeat(page.width - used)));
    } else {
        page.hang(lead, ink, columns(lead), &remedy.title, Ink::Heading);
        page.wrapped(columns(lead), facts, Ink::Plain);
    }
}

/// The first ones with command and risk, the others by name.
pub(super) fn all(page: &mut Page, rec: &Recording, bill: &Bill, verdict: &Verdict) {
    if verdict.remedies.is_empty() {
        return;
    }
    page.section("REMEDIES", "try them in this order; gains are predictions");
    for (nth, remedy) in verdict.remedies.iter().take(REMEDIES_SHOWN).enumerate() {
        let entry = remedies::find(&remedy.remedy);
        let facts = format!("{} · {}", gain(remedy, entry), restart(remedy.restart, entry));
        head(page, &format!("  {}. ", nth + 1), Ink::Plain, remedy, &facts);
        if remedy.is_command {
            page.command(5, &remedy.how);
        } else {
            page.wrapped(5, &remedy.how.command, Ink::Plain);
        }
        if let (0, Some(line)) = (nth, trial(rec, bill, remedy)) {
            page.command(5, &line);
        }
        let rows = [
            ("why", &remedy.basis, nth == 0),
            ("risk", &remedy.backfires, true),
            ("undo", &remedy.undo, nth == 0),
        ];
        for (label, text, shown) in rows {
            if shown && !text.is_empty() {
                page.hang(&format!("     {label}"), Ink::Faint, 12, text, Ink::Plain);
            }
        }
    }
    let rest: Vec<String> = verdict
        .remedies
        .iter()
        .skip(REMEDIES_SHOWN)
        .map(|r| format!("{} ({})", r.title, gain(r, remedies::find(&r.remedy))))
        .collect();
    if !rest.is_empty() {
        page.wrapped(2, &format!("Then try: {}", rest.join("; ")), Ink::Faint);
    }
}

/// What the target needs so that the remedy takes effect.
pub fn restart(needed: bool, entry: Option<&Remedy>) -> &'static str {
    match entry.map(|remedy| remedy.kind) {
        _ if !needed => "no restart",
        Some(Kind::Advice) => "change and restart",
        _ => "restart",
    }
}

/// What it saves of CPU time, and what it returns of resident memory.
pub(crate) fn gain(remedy: &Prescription, entry: Option<&Remedy>) -> String {
    let Some(most) = remedy.returns_bytes else { return saved(remedy, entry) };
    let returns = format!("returns at most {}", bytes(most));
    match entry.map(|r| r.effect) {
        Some(Effect::NotCpu(_)) => returns,
        _ => format!("{returns}; {}", saved(remedy, entry)),
    }
}

pub(super) fn saved(remedy: &Prescription, entry: Option<&Remedy>) -> String {
    let is_for = |retention: bool| {
        entry.is_some_and(|r| r.walls.iter().any(|wall| (*wall == Wall::Retention) == retention))
    };
    match (remedy.gain, remedy.at_most, entry.map(|r| r.effect)) {
        (Some(gain), ..) => {
            // `+ 0.0` turns −0 into 0.
            let whole = |share: f64| (share * 100.0).round() + 0.0;
            let (least, most) = (whole(gain.low), whole(gain.high));
            match (least < 0.0, most > 0.0) {
                (false, false) => "saves almost no CPU".to_string(),
                (false, true) => format!("saves {least:.0} to {most:.0} % of CPU"),
                (true, true) => format!("saves up to {most:.0} % of CPU, or costs {:.0} %", -least),
                (true, false) => format!("costs {:.0} to {:.0} % of CPU", 0.0 - most, 0.0 - least),
            }
        }
        (None, Some(most), _) if most < 0.005 && is_for(true) && remedy.returns_bytes.is_none() => {
            "saves memory, almost no CPU".to_string()
        }
        (None, Some(most), _) if most < 0.005 => "saves almost no CPU".to_string(),
        (None, Some(most), _) => format!("saves at most {:.0} % of CPU", most * 100.0),
        (None, None, Some(Effect::NotCpu(_))) => match (is_for(true), is_for(false)) {
            (true, false) => "saves memory, not CPU".to_string(),
            (true, true) => "saves time or memory, not CPU".to_string(),
            (false, _) => "saves time, not CPU".to_string(),
        },
        (None, None, effect) => match (entry.filter(|remedy| remedy.can_be_tried()), effect) {
            (Some(entry), _) => {
                format!("gain unknown: test it with `allocwall trial --with {}`", entry.key)
            }
            (None, Some(Effect::Unknown(why))) => format!("gain unknown: {why}"),
            // Its lines of the bill, or the prices of this machine, were not measured.
            _ if !remedy.basis.is_empty() => format!("gain unknown: {}", remedy.basis),
            _ => "gain unknown".to_string(),
        },
    }
}
