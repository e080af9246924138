//! The printed page of an experiment: the figures of the arms, the claims with their judgement, and the bills.

use super::Figure;
use super::bill::{Bill, Line, largest};
use super::claims::{Judged, Judgement, judge};
use super::results::{LeftOut, Results};
use crate::pipeline::text::three_digits;
use allocwall_model::units::{Interval, Measured, count};
use allocwall_report::layout::{left, right};
use allocwall_report::text::{Ink, Page, Style};
use allocwall_trial::Unit;

/// With the indent, 79 columns in all.
const NAME: usize = 17;
const VALUE: usize = 33;
const RATIO: usize = 25;

/// The whole page, newline-terminated.
pub fn report(results: &Results, style: Style) -> String {
    let mut page = Page::new(style);
    header(&mut page, results);
    // Without a run, the notes and the claims say why.
    if !results.blocks.is_empty() {
        figures(&mut page, results);
    }
    notes(&mut page, results);
    claims(&mut page, results);
    bills(&mut page, results);
    series(&mut page, results);
    page.out
}

fn header(page: &mut Page, results: &Results) {
    let experiment = results.experiment;
    let line = page.paint(Ink::Heading, &format!("allocwall bench {}", experiment.name));
    page.line(&line);
    page.wrapped(2, experiment.about, Ink::Plain);
    page.wrapped(2, &facts(results).join(" · "), Ink::Faint);
}

pub(super) fn facts(results: &Results) -> Vec<String> {
    let mut facts = vec![
        count(results.blocks.len(), "block"),
        "each run is a new process, in random order".to_owned(),
        format!("seed {}", results.settings.seed),
    ];
    if results.settings.scale != 1.0 {
        facts.push(format!("runs are {} times as large as full ones", results.settings.scale));
    }
    // The names of other arms say which allocator they have.
    let arms = results.shown().map(|arm| results.arms[arm]).filter(|arm| arm.with.contains(':'));
    facts.extend(arms.map(|arm| format!("{}: --with {}", arm.name, arm.with)));
    facts
}

pub(super) fn figures(page: &mut Page, results: &Results) {
    let first = results.arms[0].name;
    page.section("FIGURES", &format!("medians over blocks, and multiples of {first}, with 95 % intervals"));
    for figure in results.experiment.figures.iter().filter(|figure| figure.printed) {
        let title = page.paint(Ink::Faint, &format!("  {}", figure.title));
        page.line(&title);
        rows(page, results, figure);
    }
}

/// A row for each arm: its value, or why it has none.
fn rows(page: &mut Page, results: &Results, figure: &Figure) {
    let point = |arm: usize| results.point(figure.key, arm);
    let why = |arm: usize| match results.value(figure.key, arm) {
        Err(absence) => format!("not measured: {}", absence.detail),
        Ok(_) => String::new(),
    };
    let points: Vec<f64> = results.shown().filter_map(point).collect();
    if points.is_empty() && results.shown().all(|arm| why(arm) == why(0)) {
        page.hang("    all arms", Ink::Plain, NAME + 4, &why(0), Ink::Plain);
        return;
    }
    let shown_in = unit(figure.unit, &points);
    for arm in results.shown() {
        let name = results.arms[arm].name;
        let Some(point) = point(arm) else {
            page.hang(&format!("    {name}"), Ink::Plain, NAME + 4, &why(arm), Ink::Plain);
            continue;
        };
        let value = amount(shown_in, point, results.value(figure.key, arm).ok());
        let ratio = results.ratio(figure.key, arm, 0).map_or(String::new(), |ratio| {
            let times = number(&ratio);
            if arm == 0 { format!("itself {times}") } else { times }
        });
        // The space is there for a value that is wider than its column.
        page.line(&format!("    {}{} {}", left(name, NAME), right(&value, VALUE), right(&ratio, RATIO - 1)));
    }
}

/// How values are shown: divided by this, and with this behind them.
type Shown = (f64, &'static str);

/// The same for all arms: the smallest unit of time in which the smallest value has at most four digits before the point, and the
/// largest at most six.
fn unit(of: Unit, points: &[f64]) -> Shown {
    let times = [(1.0, " ns"), (1e3, " µs"), (1e6, " ms")];
    match of {
        Unit::Ns => {
            let smallest =
                points.iter().copied().filter(|point| *point > 0.0).reduce(f64::min).unwrap_or(0.0);
            let largest = points.iter().copied().fold(0.0, f64::max);
            let fits = |(of, _): &&Shown| smallest < 1e4 * of && largest < 1e6 * of;
            *times.iter().find(fits).unwrap_or(&times[2])
        }
        Unit::Bytes => (f64::from(1 << 20), " MiB"),
        Unit::Seconds => (1.0, " s"),
        Unit::PerSecond => (1.0, "/s"),
        Unit::Count | Unit::Ratio | Unit::None => (1.0, ""),
    }
}

/// A value with its interval.
fn amount((of, suffix): Shown, point: f64, interval: Option<Interval>) -> String {
    let show = |value: f64| digits(value / of);
    match interval {
        Some(Interval { low, high, .. }) => format!("{} ({}–{}){suffix}", show(point), show(low), show(high)),
        None => format!("{}{suffix}", show(point)),
    }
}

/// Three significant digits, and two of a value below 0.1.
fn digits(value: f64) -> String {
    match value.abs() {
        size if size < 1e-6 => "0".to_owned(),
        size if size < 0.1 => {
            let places = (1 - size.log10().floor() as i32) as usize;
            format!("{value:.places$}")
        }
        _ => three_digits(value),
    }
}

/// What the reader must know about the arms.
pub(super) fn notes(page: &mut Page, results: &Results) {
    let mut notes: Vec<String> = vec![];
    let mut left_out: Vec<(&str, Vec<&str>)> = vec![];
    for LeftOut { arm, why } in &results.left_out {
        match left_out.iter_mut().find(|(same, _)| same == why) {
            Some((_, arms)) => arms.push(arm),
            None => left_out.push((why, vec![*arm])),
        }
    }
    notes.extend(left_out.iter().map(|(why, arms)| format!("left out: {}: {why}", arms.join(", "))));
    for arm in results.shown() {
        let summary = &results.outcome.summaries[arm];
        if let Some(failure) = summary.failures.first() {
            let failed = summary.failures.len();
            let name = results.arms[arm].name;
            notes.push(format!("{name}: {failed} of {} runs failed: {}", summary.runs, failure.text));
        }
        notes.extend(results.unproven(arm).map(|absence| absence.detail));
    }
    notes.extend(results.outcome.warnings.iter().cloned());
    for note in notes {
        page.wrapped(2, &note, Ink::Warn);
    }
}

pub(super) fn claims(page: &mut Page, results: &Results) {
    page.section("CLAIMS", "published; each judged here by itself, on its 95 % interval");
    for judged in judge(results) {
        claim(page, &judged);
    }
}

fn claim(page: &mut Page, judged: &Judged) {
    let ink = match judged.judgement {
        Judgement::Holds => Ink::Good,
        Judgement::DoesNotHold => Ink::Bad,
        Judgement::CannotTest(_) => Ink::Warn,
    };
    let title = match &judged.judgement {
        Judgement::CannotTest(why) => format!("{}: {why}", judged.judgement.title()),
        judgement => judgement.title().to_owned(),
    };
    page.wrapped(2, judged.claim.says, Ink::Plain);
    page.wrapped(4, &title, ink);
    for test in &judged.tests {
        let value = test.value.as_ref().map_or("not measured".to_owned(), number);
        let outcome = match test.judgement {
            // The outcome of the only test is that of the claim.
            _ if judged.tests.len() == 1 => "",
            Judgement::Holds => ": passed",
            Judgement::DoesNotHold => ": failed",
            Judgement::CannotTest(_) => ": open",
        };
        page.wrapped(6, &format!("{}; here {value}{outcome}", test.rule), Ink::Faint);
    }
}

/// In the unit of the rule.
fn number(value: &Interval) -> String {
    amount(unit(Unit::None, &[]), value.point, Some(*value))
}

pub(super) fn bills(page: &mut Page, results: &Results) {
    if results.bills.is_empty() {
        return;
    }
    page.section(
        "BILLS",
        "the largest lines, and the verdict, from one more run of each arm that is not timed",
    );
    for (arm, bill) in &results.bills {
        let lead = format!("  {}", results.arms[*arm].name);
        page.hang(&lead, Ink::Plain, NAME + 4, &bill_text(bill), Ink::Plain);
    }
    page.wrapped(2, "`allocwall explain \"NAME OF A LINE\"` explains a line.", Ink::Faint);
}

pub(super) fn series(page: &mut Page, results: &Results) {
    if results.series.is_empty() {
        return;
    }
    page.section("SERIES", "one more run of each arm, diagnosed in several windows, that is not timed");
    for (arm, series) in &results.series {
        let text = match series {
            Ok(series) => series.text(),
            Err(absence) => format!("not measured: {absence}"),
        };
        page.hang(&format!("  {}", results.arms[*arm].name), Ink::Plain, NAME + 4, &text, Ink::Plain);
    }
}

fn bill_text(bill: &Measured<Bill>) -> String {
    let percent = |share: f64| format!("{:.0}", share * 100.0);
    let line = |(title, share): (&str, Interval)| {
        format!("{title} {} % ({}–{})", percent(share.point), percent(share.low), percent(share.high))
    };
    let lines = |lines: &[Line]| largest(lines).into_iter().map(line).collect::<Vec<_>>().join(" · ");
    match bill {
        Ok(bill) if largest(&bill.off_cpu).is_empty() => format!("{}. {}", lines(&bill.on_cpu), bill.verdict),
        Ok(bill) => {
            format!(
                "{}; of the threads' time: {}. {}",
                lines(&bill.on_cpu),
                lines(&bill.off_cpu),
                bill.verdict
            )
        }
        Err(absence) => format!("not measured: {absence}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{FIGURE, results};
    use super::super::{EXPERIMENTS, Settings};
    use super::*;
    use allocwall_model::units::{Absence, Reason};

    #[test]
    fn all_values_of_a_figure_are_in_one_unit() {
        let of = |points: &[f64]| unit(Unit::Ns, points).1;
        assert_eq!([of(&[12.0, 150.0]), of(&[150.0, 6_000.0]), of(&[150.0, 950_000.0])], [" ns"; 3]);
        // Another unit if the smallest is large, or the largest would be too long.
        assert_eq!([of(&[12_000.0, 50_000.0]), of(&[150.0, 2e6])], [" µs"; 2]);
        assert_eq!([of(&[15e6]), of(&[150.0, 2e9]), of(&[2e13])], [" ms"; 3]);
        // A value of 0 says nothing about the unit.
        assert_eq!([of(&[0.0, 15e6]), of(&[0.0])], [" ms", " ns"]);
    }

    #[test]
    fn a_value_has_three_digits_and_a_small_one_two() {
        let interval = |low, point, high| Some(Interval::new(low, point, high));
        for (of, interval, text) in [
            (unit(Unit::Ns, &[12.0]), interval(12.0, 12.34, 13.0), "12.3 (12.0–13.0) ns"),
            (unit(Unit::Ns, &[5e4]), interval(900.0, 5_600.0, 12_000.0), "5.60 (0.90–12.0) µs"),
            (unit(Unit::None, &[]), interval(0.98, 1.0, 1.02), "1.00 (0.98–1.02)"),
            (unit(Unit::None, &[]), interval(0.0, 0.000_21, 0.049_7), "0.00021 (0–0.050)"),
            (unit(Unit::None, &[]), interval(-0.3, -0.02, 0.1), "-0.020 (-0.30–0.10)"),
            (unit(Unit::Bytes, &[]), interval(1e8, 1.1e8, 2e8), "105 (95.4–191) MiB"),
        ] {
            assert_eq!(amount(of, interval.unwrap().point, interval), text);
        }
        assert_eq!(amount(unit(Unit::Ns, &[15e6]), 15e6, None), "15.0 ms");
    }

    #[test]
    fn a_figure_that_is_absent_has_its_reason_beside_it() {
        let arms = [("glibc", vec![(FIGURE, 200.0)]), ("pinned", vec![(FIGURE, 6_000.0)])];
        let mut results = results(&EXPERIMENTS[0], 6, &arms);
        let absent = Absence::new(Reason::NotSupported, "no counter");
        for run in results.blocks.iter_mut().flat_map(|block| &mut block.runs) {
            run.metrics.insert("modes".into(), Err(absent.clone()));
            if run.arm == 2 {
                run.metrics.insert(FIGURE.into(), Err(absent.clone()));
            }
        }
        let text = report(&results, Style::FILE);
        let row =
            |name: &str| text.lines().any(|line| line == format!("    {name:<17}not measured: no counter"));
        // In all arms, and in one of two.
        assert!(row("all arms") && row("pinned") && !row("glibc"), "{text}");
        assert!(text.contains("here not measured: open"), "{text}");
        assert!(
            text.lines().any(|line| line.starts_with("    glibc ") && line.contains("200 (200–20")),
            "{text}"
        );
    }

    #[test]
    fn the_page_has_figures_claims_bills_and_what_is_missing() {
        let arms = [
            ("glibc", vec![(FIGURE, 200.0), ("faults_per_operation", 0.01)]),
            ("pinned", vec![(FIGURE, 6_000.0), ("faults_per_operation", 60.0), ("modes", 30.0)]),
        ];
        let mut results = results(&EXPERIMENTS[0], 6, &arms);
        for arm in ["tcmalloc", "mimalloc"] {
            results.left_out.push(LeftOut { arm, why: "no such library\u{1b}[31m".into() });
        }
        let line = |title: &str, low: f64| Line {
            class: "any".into(),
            title: title.into(),
            share: Ok(Interval::new(low, low + 0.05, low + 0.1)),
        };
        let bill = Bill {
            verdict: "First touch is the wall.".into(),
            on_cpu: vec![line("first touch: zeroing", 0.5)],
            off_cpu: vec![line("throttled by the cgroup", 0.2)],
        };
        results.bills.insert(2, Ok(bill));
        results.bills.insert(0, Err(Absence::new(Reason::NotPermitted, "perf_event_open: EPERM")));
        let text = report(&results, Style::FILE);
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
        for part in [
            "allocwall bench mmap-threshold",
            "glibc:mmap_threshold=128K",
            "itself 1.00",
            "left out: tcmalloc, mimalloc: no such library",
            "runs are 0.15 times as large",
            ": passed",
            "holds here",
            "does not hold here",
            "first touch: zeroing 55 % (50–60)",
            "cgroup 25 % (20–30)",
            "the wall.",
            "not measured: perf_event_open: EPERM",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains('\u{1b}'), "{text}");
    }

    #[test]
    fn without_a_run_there_are_no_figures_but_the_reason() {
        let experiment = &EXPERIMENTS[0];
        let left_out = vec![LeftOut { arm: "glibc", why: "no python3".into() }];
        let text = report(&Results::without_runs(experiment, &Settings::quick(7), left_out), Style::FILE);
        assert!(!text.contains("FIGURES") && text.contains("left out: glibc: no python3"), "{text}");
        assert!(text.contains("can't be tested here: without the arm glibc: no python3"), "{text}");
    }

    #[test]
    fn without_enough_blocks_there_are_values_but_no_intervals_and_no_judgement() {
        let arms = [("glibc", vec![(FIGURE, 200.0)]), ("pinned", vec![(FIGURE, 6_000.0)])];
        let text = report(&results(&EXPERIMENTS[0], 1, &arms), Style::FILE);
        assert!(text.contains("6,0") || text.contains("6.0"), "{text}");
        assert!(text.contains("can't be tested here") && !text.contains("BILLS"), "{text}");
        assert!(!text.contains("holds here") && !text.contains("does not hold"), "{text}");
    }
}
