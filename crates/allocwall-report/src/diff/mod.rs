//! What changed between two recordings, as text and as a JSON document, version 1 (docs/diff.md).

pub mod flamegraph;

use super::escape::terminal;
use super::json::{absence, interval, list, number, printed};
use super::layout::{elide_end, elide_middle};
use super::text::sites::without_arguments;
use super::text::{Extent, Ink, Page, Style};
use allocwall_diagnose::diff::{Change, Diff, Outcome, Quantity, Unit};
use allocwall_model::units::Interval;
use serde_json::{Value, json};

/// Incremented when a field changes its meaning or is removed. New fields do not increment it.
pub const VERSION: u32 = 1;

/// Columns of the names at the left, with the indent.
const NAME: usize = 42;
/// Columns of the sentence, which may have the name of a function.
const SENTENCE: usize = 400;

/// The report as text, newline-terminated. `names`: what the recordings are called.
pub fn text(diff: &Diff, names: [&str; 2], extent: Extent, style: Style) -> String {
    let mut page = Page::new(style);
    let moved = || diff.changes.iter().filter(|change| change.outcome.moved());
    let title = terminal(&format!("{} → {}", names[0], names[1]));
    let line = format!("{}  {title}", page.paint(Ink::Heading, "allocwall diff"));
    page.line(&line);
    if !diff.unlike.is_empty() {
        let unlike = format!("The recordings are not alike: {}.", diff.unlike.join("; "));
        page.wrapped(2, &unlike, Ink::Warn);
    }
    page.blank();
    let ink = match diff.changes.iter().all(|change| change.outcome == Outcome::Same) {
        true => Ink::Good,
        false if moved().count() > 0 => Ink::Plain,
        false => Ink::Warn,
    };
    page.hang("VERDICT", Ink::Heading, 9, &elide_end(&diff.sentence, SENTENCE), ink);
    if moved().count() > 0 {
        page.section(
            "WHAT MOVED",
            "the intervals hold together with 95 % confidence; memory: the range of readings",
        );
        for change in moved() {
            row(&mut page, change, &diff.changes, Ink::Warn);
        }
    }
    rest(&mut page, diff, extent);
    page.out
}

fn row(page: &mut Page, change: &Change, all: &[Change], ink: Ink) {
    let (Ok(before), Ok(after)) = (&change.before, &change.after) else { return };
    let from = match change.unit {
        Unit::Share => format!("{:.1} %", before.point * 100.0),
        unit => unit.shown(before.point),
    };
    let to = match change.unit {
        Unit::Share => format!("{:.1} % of CPU", after.point * 100.0),
        unit => unit.shown(after.point),
    };
    let cost = cost(change, all).map_or(String::new(), |(unit, [before, after])| {
        format!("; {} → {}", unit.shown(before), unit.shown(after))
    });
    let longer = match change.outcome {
        Outcome::Undecided { window_s: Some(window_s) } => {
            format!("; windows of {window_s:.0} s would decide")
        }
        _ => String::new(),
    };
    // Most call sites call no function with memory work of its own.
    let callees = change
        .with_callees
        .filter(|with| [before, after].map(|own| own.point) != with.map(|with| with.point));
    let callees = callees.map_or(String::new(), |[before, after]| {
        format!("; with what it calls {:.1} % → {:.1} %", before.point * 100.0, after.point * 100.0)
    });
    let text = format!("{from} → {to}: {}{cost}{callees}{longer}", change.shown().unwrap_or_default());
    page.hang(&format!("  {}", title(change)), ink, NAME, &text, Ink::Plain);
}

/// Names of functions may be very long.
fn title(change: &Change) -> String {
    let title = match &change.quantity {
        Quantity::Site(function) => Quantity::Site(without_arguments(function).to_owned()).title(),
        other => other.title(),
    };
    elide_middle(&terminal(&title), NAME - 4)
}

/// The CPU time of a share, before and after: a second, or for a unit of work.
fn cost(change: &Change, all: &[Change]) -> Option<(Unit, [f64; 2])> {
    let cpu = all.iter().find(|change| change.quantity == Quantity::Cpu)?;
    let of = |share: &Interval, cpu: &Interval| share.point * cpu.point;
    let costs = [
        of(change.before.as_ref().ok()?, cpu.before.as_ref().ok()?),
        of(change.after.as_ref().ok()?, cpu.after.as_ref().ok()?),
    ];
    (change.unit == Unit::Share).then_some((cpu.unit, costs))
}

/// What did not move: a line for each kind, or with all values.
fn rest(page: &mut Page, diff: &Diff, extent: Extent) {
    let undecided = |change: &&Change| matches!(change.outcome, Outcome::Undecided { .. });
    let kinds: [(&str, &str, Vec<&Change>); 2] = [
        ("SAME", "the whole interval is within the margin", {
            diff.changes.iter().filter(|change| change.outcome == Outcome::Same).collect()
        }),
        ("UNDECIDED", "the interval is too wide", diff.changes.iter().filter(undecided).collect()),
    ];
    for (heading, aside, changes) in kinds.into_iter().filter(|(.., changes)| !changes.is_empty()) {
        if extent == Extent::All {
            page.section(heading, aside);
            changes.iter().for_each(|change| row(page, change, &diff.changes, Ink::Plain));
            continue;
        }
        // Lines with nothing in either recording are many.
        let is_some = |change: &&&Change| {
            [&change.before, &change.after].iter().any(|v| v.as_ref().is_ok_and(|v| v.point != 0.0))
        };
        let mut titles: Vec<String> = changes.iter().filter(is_some).map(|c| title(c)).collect();
        match changes.len() - titles.len() {
            0 => {}
            none => titles.push(format!("and {none} with nothing in either recording")),
        }
        page.blank();
        page.hang(heading, Ink::Heading, 11, &titles.join(", "), Ink::Faint);
    }
    // Each reason once.
    let mut reasons: Vec<(&str, Vec<String>)> = vec![];
    for change in &diff.changes {
        let Some(why) = change.before.as_ref().err().or(change.after.as_ref().err()) else { continue };
        match reasons.iter_mut().find(|(known, _)| *known == why.detail) {
            Some((_, titles)) => titles.push(title(change)),
            None => reasons.push((&why.detail, vec![title(change)])),
        }
    }
    if !reasons.is_empty() {
        page.section("NOT MEASURED", "in one of the recordings");
    }
    for (why, titles) in reasons {
        page.wrapped(2, &format!("{why}: {}", titles.join(", ")), Ink::Faint);
    }
}

/// The document, indented, newline-terminated.
pub fn document(diff: &Diff, names: [&str; 2]) -> String {
    printed(&json!({
        "format": "allocwall-diff",
        "version": VERSION,
        "tool": { "name": "allocwall", "version": env!("CARGO_PKG_VERSION") },
        "before": names[0],
        "after": names[1],
        "sentence": diff.sentence,
        "unlike": diff.unlike,
        "changes": list(&diff.changes, |change| change_value(change, &diff.changes)),
    }))
}

fn change_value(change: &Change, all: &[Change]) -> Value {
    let window_s = match change.outcome {
        Outcome::Undecided { window_s } => window_s.map(number),
        _ => None,
    };
    let missing = change.before.as_ref().err().or(change.after.as_ref().err());
    json!({
        "key": change.quantity.key(),
        "title": change.quantity.title(),
        "unit": change.unit.key(),
        "before": change.before.as_ref().ok().map(interval),
        "after": change.after.as_ref().ok().map(interval),
        "difference": change.difference.as_ref().map(interval),
        "outcome": change.outcome.key(),
        "window_s": window_s,
        "cost": cost(change, all).map(|(unit, [before, after])| json!({
            "unit": unit.key(),
            "before": number(before),
            "after": number(after),
        })),
        "with_callees": change.with_callees.map(|[before, after]| json!({
            "before": interval(&before),
            "after": interval(&after),
        })),
        "missing": missing.map(absence),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocwall_model::catalogue::walls::Wall;
    use allocwall_model::units::{Absence, Reason};
    use std::collections::BTreeSet;

    fn change(quantity: Quantity, before: f64, after: f64, outcome: Outcome) -> Change {
        let around = |point: f64| Interval::new(0.9 * point, point, 1.1 * point);
        let half = 0.2 * (before + after);
        let point = after - before;
        Change {
            unit: quantity.unit(false),
            quantity,
            before: Ok(around(before)),
            after: Ok(around(after)),
            difference: Some(Interval::new(point - half, point, point + half)),
            wider: 1.0,
            outcome,
            with_callees: None,
        }
    }

    fn sketch() -> Diff {
        let mut absent = change(Quantity::MajorFaults, 0.0, 0.0, Outcome::NotMeasured);
        absent.before = Err(Absence::new(Reason::TooLittle, "too few readings"));
        absent.difference = None;
        Diff {
            sentence: "First touch went from 12 % to 46 % of CPU.".into(),
            unlike: vec!["kernel 6.1 and 6.12".into()],
            changes: vec![
                change(Quantity::Cpu, 1.0, 1.5, Outcome::Undecided { window_s: Some(90.0) }),
                change(Quantity::Wall(Wall::FirstTouch), 0.12, 0.46, Outcome::Up),
                change(Quantity::Resident, 1e8, 1e8, Outcome::Same),
                Change {
                    with_callees: Some([0.3, 0.02].map(Interval::exact)),
                    ..change(Quantity::Site("evil\u{1b}[31m".into()), 0.2, 0.01, Outcome::Down)
                },
                absent,
            ],
        }
    }

    #[test]
    fn what_moved_comes_first_and_the_rest_is_folded() {
        let wide = Style { color: false, width: 200 };
        let page = text(&sketch(), ["a", "b"], Extent::Brief, wide);
        let at = |words: &str| page.find(words).unwrap_or_else(|| panic!("{words}: {page}"));
        assert!(at("not alike: kernel 6.1 and 6.12") < at("VERDICT") && at("VERDICT") < at("WHAT MOVED"));
        at("12.0 % → 46.0 % of CPU: +34.0 points (+22.4 to +45.6); 0.12 CPUs → 0.69 CPUs");
        assert!(at("WHAT MOVED") < at("SAME       resident memory"));
        at("UNDECIDED  CPU time\n");
        at("; with what it calls 30.0 % → 2.0 %");
        assert_eq!(page.matches("with what it calls").count(), 1, "{page}");
        at("too few readings: major page faults");
        assert!(!page.contains('\u{1b}'), "{page}");
        let all = text(&sketch(), ["a", "b"], Extent::All, wide);
        assert!(all.contains("1.00 CPUs → 1.50 CPUs") && all.contains("90 s would decide"), "{all}");
    }

    #[test]
    fn a_call_site_keeps_its_name_without_arguments() {
        let title = |name: &str| title(&change(Quantity::Site(name.to_owned()), 0.1, 0.5, Outcome::Up));
        let long =
            "insert_words(std::unordered_map<std::string, std::vector<int, std::allocator<int> > >&, int)";
        assert_eq!(title(long), "memory work in insert_words");
        // The near twin: an owner's addition in brackets is no list of arguments.
        let owner = Quantity::Owner(allocwall_model::resident::ResidentOwner::Heap);
        assert!(super::title(&change(owner, 1.0, 2.0, Outcome::Up)).ends_with("(brk)"));
    }

    #[test]
    fn the_document_has_every_change() {
        let document: Value = serde_json::from_str(&document(&sketch(), ["a", "b"])).unwrap();
        let outcomes: Vec<&str> =
            document["changes"].as_array().unwrap().iter().map(|c| c["outcome"].as_str().unwrap()).collect();
        assert_eq!(outcomes, ["undecided", "up", "same", "down", "not_measured"]);
        assert!((document["changes"][1]["cost"]["after"].as_f64().unwrap() - 0.69).abs() < 1e-9);
        assert!(document["changes"][4]["difference"].is_null());
    }

    #[test]
    fn the_page_describes_every_field() {
        let page = include_str!("../../../../docs/diff.md").split("\n## The document\n").nth(1).unwrap();
        let rows = page.lines().filter_map(|line| line.strip_prefix("| `")?.split(" | ").next());
        let named: BTreeSet<&str> =
            rows.flat_map(|names| names.split(", ")).map(|name| name.trim_matches('`')).collect();
        let document: Value = serde_json::from_str(&document(&sketch(), ["a", "b"])).unwrap();
        let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        let of_change = keys(&document["changes"][0]).into_iter().map(|key| format!("changes[].{key}"));
        let top = keys(&document).into_iter().filter(|key| key != "changes");
        let fields: BTreeSet<String> = top.chain(of_change).collect();
        assert_eq!(named, fields.iter().map(String::as_str).collect());
    }
}
