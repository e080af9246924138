//! The report of a series of windows, as text and as a JSON document, version 1 (docs/json.md).

use super::escape::terminal;
use super::json::{absence, interval, list, measured, number, plain, printed};
use super::layout::{columns, elide_middle};
use super::text::{Ink, Page, Style, bytes};
use allocwall_diagnose::series::{
    Brief, Change, Course, FEWEST, Judgement, Lasting, Quantity, Series, Unit, Window, time,
};
use allocwall_diagnose::{Reach, ShellLine};
use allocwall_model::shell::quoted;
use allocwall_model::units::{Interval, count, plural, thousands};
use serde_json::{Value, json};

/// Incremented when a field changes its meaning or is removed. New fields do not increment it.
pub const VERSION: u32 = 1;

/// Columns of the names at the left, with the indent.
const NAME: usize = 42;
/// Rows of the windows. A series that changes more often is in the JSON document.
const ROWS: usize = 20;

/// The report as text, newline-terminated. No line is wider than `style.width` (or 40, if that is less).
pub fn text(series: &Series, judged: &Judgement, style: Style) -> String {
    let mut page = Page::new(style);
    header(&mut page, series);
    page.blank();
    page.hang("VERDICT", Ink::Heading, 9, &judged.sentence, ink(judged));
    walls(&mut page, series, judged);
    windows(&mut page, series);
    courses(&mut page, series, judged);
    remedies(&mut page, series, judged);
    page.out
}

pub(crate) fn ink(judged: &Judgement) -> Ink {
    if judged.walls.is_empty() { Ink::Good } else { Ink::Bad }
}

fn header(page: &mut Page, series: &Series) {
    let target = elide_middle(&terminal(&series.target), page.width - columns("allocwall  "));
    let line = format!("{}  {}", page.paint(Ink::Heading, "allocwall"), page.paint(Ink::Heading, &target));
    page.line(&line);
    page.wrapped(2, &facts(series).join(" · "), Ink::Plain);
    if let Some(ended) = ended(series) {
        page.wrapped(2, &ended, Ink::Warn);
    }
}

pub(crate) fn facts(series: &Series) -> Vec<String> {
    let mut facts = vec![count(series.windows.len(), "window")];
    if let (Some(first), Some(last)) = (series.windows.first(), series.windows.last()) {
        facts.push(format!("{:.1} s each, one every {}", first.length_s, time(series.every_s)));
        facts.push(format!("{} in all", time(last.at_s + last.length_s)));
    }
    facts
}

/// That there are fewer windows than planned.
pub(crate) fn ended(series: &Series) -> Option<String> {
    let why = series.ended.as_ref()?;
    Some(format!("{} of {} planned windows: {why}.", series.windows.len(), series.planned))
}

/// What the sentence does not say of the walls.
pub(crate) fn walls(page: &mut Page, series: &Series, judged: &Judgement) {
    if judged.walls.len() < 2 && judged.brief.is_empty() {
        return;
    }
    page.section("WALLS", "those that last, and those of single windows");
    for lasting in &judged.walls {
        let share = |share: Interval| format!("{:.0} % {}", share.point * 100.0, lasting.whole());
        let here = lasting.share.map_or(String::new(), |here| format!(": {}", share(here)));
        let others = lasting
            .elsewhere
            .map_or(String::new(), |other| format!("; {:.0} % in the other windows", other.point * 100.0));
        let text = format!("{}{here}{others}", lasting.places(&series.windows));
        page.hang(&format!("  {}", lasting.wall.title()), Ink::Bad, NAME, &text, Ink::Plain);
    }
    for Brief { wall, windows } in &judged.brief {
        let numbers: Vec<String> = windows.iter().map(|nth| (nth + 1).to_string()).collect();
        let text = format!(
            "does not last: only in {} {}",
            plural(windows.len() as u64, "window"),
            numbers.join(", ")
        );
        page.hang(&format!("  {}", wall.title()), Ink::Warn, NAME, &text, Ink::Plain);
    }
}

/// Windows with the same walls are one row.
fn windows(page: &mut Page, series: &Series) {
    page.section("WINDOWS", "the verdict of each by itself; times since the start");
    let numbered: Vec<(usize, &Window)> = series.windows.iter().enumerate().collect();
    let same = |a: &Window, b: &Window| a.walls == b.walls && a.reach == b.reach;
    let rows: Vec<&[(usize, &Window)]> = numbered.chunk_by(|a, b| same(a.1, b.1)).collect();
    for row in rows.iter().take(ROWS) {
        let ((first, from), (last, to)) = (row[0], row[row.len() - 1]);
        let (numbers, times) = if first == last {
            ((first + 1).to_string(), time(from.at_s))
        } else {
            (format!("{} to {}", first + 1, last + 1), format!("{} to {}", time(from.at_s), time(to.at_s)))
        };
        let (text, ink) = verdict(from);
        page.hang(&format!("  {numbers}: {times}"), Ink::Plain, NAME, &text, ink);
    }
    if rows.len() > ROWS {
        page.wrapped(2, &format!("{}: see --json", count(rows.len() - ROWS, "more row")), Ink::Faint);
    }
}

/// The verdict of a window in a few words.
pub(crate) fn verdict(window: &Window) -> (String, Ink) {
    let walls: Vec<&str> = window.walls.iter().map(|wall| wall.title()).collect();
    match (&walls[..], window.reach) {
        ([], Reach::Decided) => ("no wall".to_owned(), Ink::Good),
        ([], Reach::Undecided) => ("no wall found, but undecided".to_owned(), Ink::Warn),
        ([], Reach::NotSampled) => ("not measured".to_owned(), Ink::Warn),
        (walls, _) => (walls.join(", "), Ink::Bad),
    }
}

fn courses(page: &mut Page, series: &Series, judged: &Judgement) {
    page.section("WHAT GREW", "first and last window; slope with its 95 % interval");
    let windows = series.windows.len();
    if windows < FEWEST {
        let text = format!("not judged: {}, and at least {FEWEST} are needed", count(windows, "window"));
        return page.wrapped(2, &text, Ink::Faint);
    }
    for (course, since) in judged.rises() {
        let unit = course.quantity.unit();
        let ends = [course.first, course.last].map(|value| value.map_or(String::new(), |v| amount(unit, v)));
        let slope = course.slope.map_or(String::new(), |slope| format!("; {}", rate(unit, slope, series)));
        let at = series.windows.get(since).map_or(0.0, |window| window.at_s);
        let text = format!("{} → {}, since window {} ({}){slope}", ends[0], ends[1], since + 1, time(at));
        page.hang(&format!("  {}", course.quantity.title()), Ink::Warn, NAME, &text, Ink::Plain);
    }
    let titles = |wanted: &dyn Fn(&Change) -> bool| {
        let titles = judged.courses.iter().filter(|course| wanted(&course.change));
        titles.map(|course| course.quantity.title()).collect::<Vec<_>>().join(", ")
    };
    let mut lines = vec![
        ("fell".to_owned(), titles(&|change| *change == Change::Fell)),
        ("steady".to_owned(), titles(&|change| *change == Change::Steady)),
    ];
    // Each reason once.
    for course in &judged.courses {
        let Change::Unjudged(why) = &course.change else { continue };
        let lead = format!("not judged: {why}");
        if lines.iter().all(|(known, _)| *known != lead) {
            let same =
                titles(&|change| matches!(change, Change::Unjudged(other) if other.detail == why.detail));
            lines.push((lead, same));
        }
    }
    for (lead, titles) in lines.into_iter().filter(|(_, titles)| !titles.is_empty()) {
        page.wrapped(2, &format!("{lead}: {titles}"), Ink::Faint);
    }
}

pub(crate) fn amount(unit: Unit, value: f64) -> String {
    let short = |value: f64| {
        let text = format!("{value:.2}");
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    };
    match unit {
        Unit::Cpus => format!("{} CPUs", short(value)),
        Unit::Threads => format!("{} threads", short(value)),
        Unit::Share => format!("{:.1} %", value * 100.0),
        Unit::PerSecond => format!("{}/s", thousands(value.max(0.0).round() as u64)),
        Unit::Bytes => bytes(value.max(0.0) as u64),
    }
}

/// A slope per second, as an amount per minute, or per hour if the series is long.
pub(crate) fn rate(unit: Unit, slope: Interval, series: &Series) -> String {
    let length_s = series.windows.last().map_or(0.0, |last| last.at_s);
    let (seconds, per) = if length_s < 7_200.0 { (60.0, "a minute") } else { (3_600.0, "an hour") };
    let signed = |value: f64| {
        let sign = if value < 0.0 { "-" } else { "+" };
        match unit {
            Unit::Share => format!("{sign}{:.1} points", (value * seconds * 100.0).abs()),
            _ => format!("{sign}{}", amount(unit, (value * seconds).abs())),
        }
    };
    format!("{} {per} ({} to {})", signed(slope.point), signed(slope.low), signed(slope.high))
}

/// Those of the window that shows the worst wall, and the command for its whole report.
fn remedies(page: &mut Page, series: &Series, judged: &Judgement) {
    let Some(example) = series.windows.get(judged.example) else { return };
    if !judged.walls.is_empty() && !example.remedies.is_empty() {
        page.section("REMEDIES", &format!("from window {}; try them in this order", judged.example + 1));
        for (nth, remedy) in example.remedies.iter().enumerate() {
            page.hang(&format!("  {}. ", nth + 1), Ink::Plain, 5, &remedy.title, Ink::Heading);
            match remedy.is_command {
                true => page.command(5, &remedy.how),
                false => page.wrapped(5, &remedy.how.command, Ink::Plain),
            }
        }
    }
    if let Some(line) = whole_report(series, judged) {
        page.blank();
        page.command_after("NEXT", 6, &line);
    }
}

/// The command for the report of the window that is the example.
pub(crate) fn whole_report(series: &Series, judged: &Judgement) -> Option<ShellLine> {
    let file = series.windows.get(judged.example)?.file.as_ref()?;
    let remark = format!("the whole report of window {}", judged.example + 1);
    Some(ShellLine::from(format!("allocwall diagnose {}", quoted(file))).remark(remark))
}

/// The document, indented, newline-terminated.
pub fn document(series: &Series, judged: &Judgement) -> String {
    printed(&value(series, judged))
}

fn value(series: &Series, judged: &Judgement) -> Value {
    let at_s = |nth: usize| series.windows.get(nth).map(|window| number(window.at_s));
    let example = series.windows.get(judged.example);
    let remedies = example.map_or(&[][..], |window| &window.remedies[..]);
    json!({
        "format": "allocwall-series",
        "version": VERSION,
        "tool": { "name": "allocwall", "version": env!("CARGO_PKG_VERSION") },
        "target": series.target,
        "planned": series.planned,
        "every_s": number(series.every_s),
        "ended": series.ended,
        "sentence": judged.sentence,
        "undecided": judged.undecided,
        "walls": list(&judged.walls, |lasting| lasting_value(lasting, &at_s)),
        "brief": list(&judged.brief, |brief| json!({
            "wall": brief.wall.key(),
            "windows": brief.windows.iter().map(|nth| nth + 1).collect::<Vec<_>>(),
        })),
        "quantities": list(&judged.courses, |course| course_value(course, series)),
        "windows": series.windows.iter().enumerate().map(|(nth, w)| window_value(nth, w)).collect::<Vec<_>>(),
        "example": judged.example + 1,
        "remedies": list(remedies, |remedy| json!({
            "remedy": remedy.remedy,
            "title": remedy.title,
            "how": remedy.how.command,
            "is_command": remedy.is_command,
        })),
    })
}

fn lasting_value(lasting: &Lasting, at_s: &dyn Fn(usize) -> Option<Value>) -> Value {
    json!({
        "wall": lasting.wall.key(),
        "title": lasting.wall.title(),
        "of": plain(&lasting.of),
        "share": lasting.share.as_ref().map(interval),
        "elsewhere": lasting.elsewhere.as_ref().map(interval),
        "windows": lasting.windows,
        "pooled": lasting.pooled,
        "spans": list(&lasting.spans, |(from, to)| json!({
            "from": from + 1,
            "to": to + 1,
            "from_s": at_s(*from),
            "to_s": at_s(*to),
        })),
    })
}

fn course_value(course: &Course, series: &Series) -> Value {
    let (change, since, missing) = match &course.change {
        Change::Rose { since } => ("rose", Some(*since), None),
        Change::Fell => ("fell", None, None),
        Change::Steady => ("steady", None, None),
        Change::Unjudged(why) => ("not_judged", None, Some(why)),
    };
    let place = Quantity::all().position(|quantity| quantity == course.quantity);
    let values: Vec<Value> = series
        .windows
        .iter()
        .filter_map(|window| window.figures.get(place?))
        .map(|figure| measured(figure, |value| number(*value)))
        .collect();
    json!({
        "quantity": course.quantity.key(),
        "title": course.quantity.title(),
        "unit": course.quantity.unit().key(),
        "first": course.first.map(number),
        "last": course.last.map(number),
        "slope_per_s": course.slope.as_ref().map(interval),
        "change": change,
        "since": since.map(|nth| nth + 1),
        "since_s": since.and_then(|nth| Some(number(series.windows.get(nth)?.at_s))),
        "missing": missing.map(absence),
        "values": values,
    })
}

fn window_value(nth: usize, window: &Window) -> Value {
    let reach = match window.reach {
        Reach::Decided => "decided",
        Reach::Undecided => "undecided",
        Reach::NotSampled => "not_sampled",
    };
    json!({
        "window": nth + 1,
        "at_s": number(window.at_s),
        "length_s": number(window.length_s),
        "cpu_s": number(window.cpu_s),
        "sentence": window.sentence,
        "walls": window.walls.iter().map(|wall| wall.key()).collect::<Vec<_>>(),
        "reach": reach,
        "findings": list(&window.found, |found| json!({
            "wall": found.wall.key(),
            "status": plain(&found.status),
            "share": found.share.as_ref().map(interval),
            "of": plain(&found.of),
        })),
        "recording": window.file,
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::sketches;
    use super::*;
    use crate::described::described;
    use allocwall_diagnose::series::{Found, judge};
    use allocwall_diagnose::{Status, Whole};
    use allocwall_model::catalogue::cost::CostClass;
    use allocwall_model::catalogue::walls::Wall;
    use allocwall_model::units::{Absence, Reason};
    use std::collections::BTreeSet;

    /// A window of a target that waits for locks of the allocator for this share of its time.
    fn window(nth: usize, share: f64) -> Window {
        let is_wall = share >= 0.2;
        let found = Found {
            wall: Wall::AllocatorContention,
            status: if is_wall { Status::Wall } else { Status::RuledOut },
            share: Some(Interval::new(share - 0.01, share, share + 0.01)),
            of: Whole::ThreadTime,
        };
        let figure = |quantity: Quantity| match quantity {
            Quantity::Line(CostClass::AllocatorLocks) => Ok(share),
            Quantity::Resident => Ok(f64::from(1 << 20) * (100.0 + 10.0 * nth as f64)),
            Quantity::Owner(_) => {
                Err(Absence::new(Reason::NotPermitted, "the memory of process 7 is not readable"))
            }
            _ => Ok(0.0),
        };
        Window {
            at_s: 60.0 * nth as f64,
            length_s: 5.0,
            cpu_s: 5.0,
            sentence: "Some sentence.".into(),
            walls: if is_wall { vec![Wall::AllocatorContention] } else { vec![] },
            reach: Reach::Decided,
            sampled: true,
            found: vec![found],
            figures: Quantity::all().map(figure).collect(),
            remedies: sketches::first_touch().verdict.remedies,
            file: Some(format!("/state/{nth} a.allocwall")),
        }
    }

    pub(crate) fn series(shares: &[f64]) -> Series {
        Series {
            target: "/usr/bin/service --port 80\u{1b}[2J".into(),
            planned: shares.len(),
            every_s: 60.0,
            windows: shares.iter().enumerate().map(|(nth, share)| window(nth, *share)).collect(),
            ended: None,
        }
    }

    fn printed_at(series: &Series, width: usize) -> String {
        text(series, &judge(&series.windows), Style { color: false, width })
    }

    fn on_one_line(text: &str) -> String {
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    pub(crate) const STORM: [f64; 8] = [0.01, 0.01, 0.01, 0.01, 0.5, 0.5, 0.5, 0.5];

    #[test]
    fn the_report_says_which_wall_lasts_and_what_grew() {
        let flat = on_one_line(&printed_at(&series(&STORM), 100));
        for part in [
            "allocwall /usr/bin/service --port 80\\u{1b}[2J 8 windows · 5.0 s each, one every 60 s · 7.1 min in all",
            "VERDICT The wall is allocator contention, since window 5 of 8 (4 min after the start): 50 %",
            "1 to 4: 0 s to 3 min no wall 5 to 8: 4 min to 7 min allocator contention",
            "allocator locks 1.0 % → 50.0 %, since window 5 (4 min); +",
            "resident memory 100.0 MiB → 170.0 MiB, since window 2 (60 s); +10.0 MiB a minute (+10.0 MiB to +10.0 MiB)",
            "steady: CPU time, threads, application, allocator code",
            "not judged: the memory of process 7 is not readable: resident: main heap (brk), ",
            "REMEDIES from window 8; try them in this order 1. ",
            "NEXT $ allocwall diagnose '/state/7 a.allocwall' # the whole report of window 8",
        ] {
            assert!(flat.contains(part), "{part}: {flat}");
        }
        assert!(!flat.contains("WALLS") && !flat.contains("planned windows"), "{flat}");
        // Too few windows: in one line, without the names of all figures.
        let few = on_one_line(&printed_at(&series(&STORM[..4]), 100));
        assert!(few.contains("not judged: 4 windows, and at least 5 are needed"), "{few}");
        assert!(few.matches("not judged").count() == 1 && !few.contains("main heap"), "{few}");
        // The near twin: a single window, in a series that ended early.
        let mut single = series(&[0.01, 0.01, 0.5, 0.01, 0.01, 0.01]);
        single.planned = 12;
        single.ended = Some("the target ended".into());
        let flat = on_one_line(&printed_at(&single, 100));
        for part in [
            "VERDICT No wall lasts; allocator contention is one in window 3.",
            "6 of 12 planned windows: the target ended.",
            "allocator contention does not last: only in window 3",
            "not judged: 6 windows can't show a step among 2 figures; at least 10 are needed: allocator locks",
        ] {
            assert!(flat.contains(part), "{part}: {flat}");
        }
        assert!(!flat.contains("REMEDIES"), "{flat}");
    }

    #[test]
    fn no_line_is_wider_than_asked_and_many_changes_are_cut() {
        let changing: Vec<f64> = (0..60).map(|nth| if nth % 2 == 0 { 0.01 } else { 0.5 }).collect();
        for series in [series(&STORM), series(&changing), series(&[0.5])] {
            for width in [40, 52, 80, 100] {
                let text = printed_at(&series, width);
                assert!(text.lines().all(|line| columns(line) <= width), "{width}: {text}");
            }
        }
        let text = printed_at(&series(&changing), 100);
        assert!(text.contains("40 more rows: see --json") && text.lines().count() < 70, "{text}");
    }

    #[test]
    fn slopes_have_signs_and_a_time_that_fits() {
        let of = |unit, length_s| {
            let mut windows = series(&[0.0]);
            windows.windows[0].at_s = length_s;
            rate(unit, Interval::new(-0.001, 0.01, 0.02), &windows)
        };
        assert_eq!(of(Unit::Share, 600.0), "+60.0 points a minute (-6.0 points to +120.0 points)");
        assert_eq!(of(Unit::Threads, 600.0), "+0.6 threads a minute (-0.06 threads to +1.2 threads)");
        assert_eq!(of(Unit::PerSecond, 9_000.0), "+36/s an hour (-4/s to +72/s)");
        assert_eq!([amount(Unit::Cpus, 2.0), amount(Unit::Cpus, 0.0)], ["2 CPUs", "0 CPUs"]);
    }

    /// The fields as in docs/json.md: `walls[].share`.
    fn paths(value: &Value, at: &str, into: &mut BTreeSet<String>) {
        let is_leaf = |fields: &serde_json::Map<String, Value>| fields.contains_key("low");
        match value {
            Value::Object(fields) if !is_leaf(fields) && !at.ends_with("missing") => {
                for (name, value) in fields {
                    let at = if at.is_empty() { name.clone() } else { format!("{at}.{name}") };
                    paths(value, &at, into);
                }
            }
            Value::Array(items) if items.iter().any(Value::is_object) && !at.ends_with("values") => {
                items.iter().for_each(|item| paths(item, &format!("{at}[]"), into));
            }
            _ => drop(into.insert(at.to_owned())),
        }
    }

    #[test]
    fn every_field_is_described() {
        let mut found = BTreeSet::new();
        for shares in [&STORM[..], &[0.01, 0.01, 0.5, 0.01, 0.01, 0.01]] {
            let series = series(shares);
            paths(&value(&series, &judge(&series.windows)), "", &mut found);
        }
        found.retain(|path| !path.starts_with("tool.") && path != "walls" && path != "brief");
        let mut described = described("A series of windows: ");
        described.remove("tool");
        assert_eq!(found, described);
    }

    #[test]
    fn the_document_has_the_series() {
        let series = series(&STORM);
        let text = document(&series, &judge(&series.windows));
        assert!(!text.contains('\u{1b}'));
        let document: Value = serde_json::from_str(&text).expect("valid JSON");
        assert_eq!(document["target"], "/usr/bin/service --port 80\u{1b}[2J");
        assert_eq!(document["walls"][0]["wall"], "allocator_contention");
        assert_eq!(
            document["walls"][0]["spans"][0],
            json!({ "from": 5, "to": 8, "from_s": 240.0, "to_s": 420.0 })
        );
        let quantity = |key: &str| {
            let all = document["quantities"].as_array().expect("a list");
            all.iter().find(|one| one["quantity"] == key).expect(key).clone()
        };
        let locks = quantity("on_cpu.allocator_locks");
        assert_eq!(
            (&locks["change"], &locks["since"], &locks["since_s"]),
            (&json!("rose"), &json!(5), &json!(240.0))
        );
        assert_eq!(locks["values"].as_array().map(Vec::len), Some(8));
        let heap = quantity("resident.heap");
        assert_eq!(
            (&heap["change"], &heap["missing"]["reason"]),
            (&json!("not_judged"), &json!("not_permitted"))
        );
        assert_eq!(heap["values"][0]["absent"]["reason"], "not_permitted");
        assert_eq!(
            (&document["windows"][4]["walls"][0], &document["example"]),
            (&json!("allocator_contention"), &json!(8))
        );
    }
}
