//! A trial as CSV (RFC 4180): a header, then one row per comparison. The figures are those of the JSON document.
//! Absent values are empty, and `reason` says why. docs/trial-csv.md describes every column; a test compares the two.

use super::csv::{number, text};
use allocwall_model::units::{Interval, Measured};
use allocwall_trial::{Comparison, Direction, TrialResult};

const HEAD: &[&str] = &[
    "arm",
    "metric",
    "unit",
    "direction",
    "primary",
    "blocks",
    "baseline_median",
    "arm_median",
    "effect",
    "low",
    "high",
    "p",
    "p_holm",
    "level",
    "outcome",
    "margin",
    "predicted_low",
    "predicted_high",
    "runs",
    "failed",
    "warning",
    "reason",
];

/// Lines end with CR LF.
pub fn table(outcome: &TrialResult) -> String {
    let head = HEAD.iter().map(|title| title.to_string()).collect();
    let rows = outcome.comparisons.iter().map(|c| row(outcome, c));
    std::iter::once(head).chain(rows).map(|cells: Vec<String>| cells.join(",") + "\r\n").collect()
}

fn row(outcome: &TrialResult, c: &Comparison) -> Vec<String> {
    let summary = &outcome.summaries[c.arm];
    let metric = outcome.metric(&c.metric);
    let median = |of: Option<&Measured<f64>>| of.and_then(|m| m.as_ref().ok()).copied();
    let effect = |part: fn(&Interval) -> f64| c.effect.as_ref().ok().map(part);
    let predicted = |part: fn(&Interval) -> f64| c.predicted.as_ref().map(part);
    vec![
        text(&outcome.design.arms[c.arm].name),
        text(&c.metric),
        text(metric.map_or("", |m| m.unit.key())),
        text(match metric.map(|m| m.direction) {
            Some(Direction::LowerIsBetter) => "lower_is_better",
            Some(Direction::HigherIsBetter) => "higher_is_better",
            None => "",
        }),
        metric.is_some_and(|m| m.primary).to_string(),
        c.blocks.to_string(),
        number(median(outcome.untreated_median(c))),
        number(median(summary.medians.get(&c.metric))),
        number(effect(|i| i.point)),
        number(effect(|i| i.low)),
        number(effect(|i| i.high)),
        number(Some(c.p)),
        number(Some(c.p_holm)),
        number(Some(c.level)),
        c.outcome.key().to_string(),
        number(Some(c.margin)),
        number(predicted(|i| i.low)),
        number(predicted(|i| i.high)),
        summary.runs.to_string(),
        summary.failures.len().to_string(),
        text(c.warning.as_deref().unwrap_or_default()),
        text(c.why.as_ref().map_or("", |why| &why.detail)),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::csv::reading::cells;
    use super::super::trial_sketches as sketches;
    use super::*;

    #[test]
    fn one_row_a_comparison() {
        insta::assert_snapshot!(table(&sketches::mixed()).replace("\r\n", "\n"));
    }

    #[test]
    fn the_page_names_the_columns_in_their_order() {
        let page = include_str!("../../../docs/trial-csv.md");
        let named = page.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
        assert_eq!(named.collect::<Vec<_>>(), HEAD);
    }

    #[test]
    fn every_row_has_every_column() {
        for outcome in sketches::all() {
            let table = table(&outcome);
            assert!(table.ends_with("\r\n"));
            assert_eq!(table.matches("\r\n").count(), 1 + outcome.comparisons.len());
            for line in table.lines() {
                assert_eq!(cells(line).len(), HEAD.len(), "{line}");
            }
        }
    }

    #[test]
    fn names_run_no_formula_and_break_no_row() {
        let mut outcome = sketches::mixed();
        for (name, cell) in [
            ("=cmd|' /C calc'!A0", "'=cmd|' /C calc'!A0"),
            (" @SUM(1,2)", "' @SUM(1,2)"),
            ("-1", "'-1"),
            ("a\"b,c", "a\"b,c"),
            ("a\r\n=1", "a\\u{d}\\u{a}=1"),
            ("jemalloc+thp", "jemalloc+thp"),
        ] {
            outcome.design.arms[2].name = name.to_string();
            let table = table(&outcome);
            let line = table.split("\r\n").nth(1).unwrap();
            assert_eq!(cells(line)[0], cell);
        }
        // Figures are no text: a negative effect stays a number.
        let table = table(&outcome);
        let effect = cells(table.lines().nth(7).unwrap())[8].clone();
        assert!(effect.starts_with('-') && effect.parse::<f64>().is_ok(), "{effect}");
    }
}
