//! The printed page of an experiment: the figures of the arms, the claims with their judgement, and the bills.

use super::bill::{Bill, Line, largest};
use super::claims::{Judged, Judgement, judge};
use super::results::{LeftOut, Results};
use crate::pipeline::text::three_digits;
use allocwall_model::units::{Interval, Measured, count};
use allocwall_report::layout::{left, right};
use allocwall_report::text::{Ink, Page, Style};
use allocwall_trial::Unit;

const NAME: usize = 22;
const VALUE: usize = 34;
const RATIO: usize = 30;

/// The whole page, newline-terminated.
pub fn report(results: &Results, style: Style) -> String {
    let mut page = Page::new(style);
    header(&mut page, results);
    figures(&mut page, results);
    notes(&mut page, results);
    page.section("CLAIMS", "published; judged here on 95 % intervals");
    for judged in judge(results) {
        claim(&mut page, &judged);
    }
    bills(&mut page, results);
    page.out
}

fn header(page: &mut Page, results: &Results) {
    let experiment = results.experiment;
    let line = page.paint(Ink::Heading, &format!("allocwall bench {}", experiment.name));
    page.line(&line);
    page.wrapped(2, experiment.about, Ink::Plain);
    let mut facts = vec![
        count(results.blocks.len(), "block"),
        "each run is a new process, in random order".to_owned(),
        format!("seed {}", results.settings.seed),
    ];
    // The names of other arms say which allocator they have.
    let arms = results.shown().map(|arm| results.arms[arm]).filter(|arm| arm.with.contains(':'));
    facts.extend(arms.map(|arm| format!("{}: --with {}", arm.name, arm.with)));
    page.wrapped(2, &facts.join(" · "), Ink::Faint);
}

fn figures(page: &mut Page, results: &Results) {
    let first = results.arms[0].name;
    page.section("FIGURES", &format!("medians over runs, and multiples of {first}, with 95 % intervals"));
    for figure in results.experiment.figures {
        let title = page.paint(Ink::Faint, &format!("  {}", figure.title));
        page.line(&title);
        for arm in results.shown() {
            let interval = results.value(figure.key, arm).ok().map(|value| (value.low, value.high));
            let value = results.point(figure.key, arm).map(|point| amount(figure.unit, point, interval));
            let ratio = results.ratio(figure.key, arm, 0).map_or(String::new(), |ratio| {
                let times = amount(Unit::None, ratio.point, Some((ratio.low, ratio.high)));
                if arm == 0 { format!("itself {times}") } else { times }
            });
            page.line(&format!(
                "    {}{}{}",
                left(results.arms[arm].name, NAME),
                right(value.as_deref().unwrap_or("none"), VALUE),
                right(&ratio, RATIO)
            ));
        }
    }
}

/// A value with its interval, in the unit of its largest number.
fn amount(unit: Unit, point: f64, interval: Option<(f64, f64)>) -> String {
    let largest = interval.map_or(point, |(_, high)| high);
    let (of, suffix) = match unit {
        Unit::Ns if largest < 1e4 => (1.0, " ns"),
        Unit::Ns if largest < 1e7 => (1e3, " µs"),
        Unit::Ns => (1e6, " ms"),
        Unit::Bytes => (f64::from(1 << 20), " MiB"),
        Unit::Seconds => (1.0, " s"),
        Unit::PerSecond => (1.0, "/s"),
        Unit::Count | Unit::Ratio | Unit::None => (1.0, ""),
    };
    let show = |value: f64| three_digits(value / of);
    match interval {
        Some((low, high)) => format!("{} ({}–{}){suffix}", show(point), show(low), show(high)),
        None => format!("{}{suffix}", show(point)),
    }
}

/// What the reader must know about the arms.
fn notes(page: &mut Page, results: &Results) {
    let mut notes: Vec<String> = vec![];
    for LeftOut { arm, why } in &results.left_out {
        notes.push(format!("left out: {arm}: {why}"));
    }
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
        page.wrapped(6, &format!("{}; here {value}", test.rule), Ink::Faint);
    }
}

/// In the unit of the rule.
fn number(value: &Interval) -> String {
    amount(Unit::None, value.point, Some((value.low, value.high)))
}

fn bills(page: &mut Page, results: &Results) {
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
    use super::super::EXPERIMENTS;
    use super::super::testing::{FIGURE, results};
    use super::*;
    use allocwall_model::units::{Absence, Reason};

    #[test]
    fn a_value_is_in_the_unit_of_its_largest_number() {
        for (unit, low, point, high, text) in [
            (Unit::Ns, 12.0, 12.34, 13.0, "12.3 (12.0–13.0) ns"),
            (Unit::Ns, 900.0, 5_600.0, 12_000.0, "5.60 (0.90–12.0) µs"),
            (Unit::None, 0.98, 1.0, 1.02, "1.00 (0.98–1.02)"),
            (Unit::Bytes, 1e8, 1.1e8, 2e8, "105 (95.4–191) MiB"),
        ] {
            assert_eq!(amount(unit, point, Some((low, high))), text);
        }
        assert_eq!(amount(Unit::Ns, 15_000_000.0, None), "15.0 ms");
    }

    #[test]
    fn the_page_has_figures_claims_bills_and_what_is_missing() {
        let arms = [
            ("glibc", vec![(FIGURE, 200.0), ("faults_per_operation", 0.01)]),
            ("pinned", vec![(FIGURE, 6_000.0), ("faults_per_operation", 60.0), ("modes", 30.0)]),
        ];
        let mut results = results(&EXPERIMENTS[0], 6, &arms);
        results.left_out.push(LeftOut { arm: "tcmalloc", why: "no such library\u{1b}[31m".into() });
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
            "left out: tcmalloc: no such library",
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
    fn without_enough_blocks_there_are_values_but_no_intervals_and_no_judgement() {
        let arms = [("glibc", vec![(FIGURE, 200.0)]), ("pinned", vec![(FIGURE, 6_000.0)])];
        let text = report(&results(&EXPERIMENTS[0], 1, &arms), Style::FILE);
        assert!(text.contains("6,0") || text.contains("6.0"), "{text}");
        assert!(text.contains("can't be tested here") && !text.contains("BILLS"), "{text}");
        assert!(!text.contains("holds here") && !text.contains("does not hold"), "{text}");
    }
}
