//! Experiments as a JSON document, version 1: settings, machine, figures, claims, bills and all runs. Described in docs/json.md.

use super::bill::{Bill, Line};
use super::claims::{Judged, Judgement, Tested, judge};
use super::results::Results;
use super::series::Series;
use crate::histogram::Histogram;
use allocwall_model::units::{Interval, Measured};
use allocwall_report::json::{interval, list, measured, number, printed};
use allocwall_trial::Run;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

/// Incremented when a field changes its meaning or is removed; not when a field is added.
pub const VERSION: u32 = 1;

/// The document: indented, newline-terminated, safe to print. `machine` holds facts about the machine, one sentence each.
pub fn document(all: &[Results], machine: &[String]) -> String {
    printed(&json!({
        "format": "allocwall-experiments",
        "version": VERSION,
        "tool": { "name": "allocwall", "version": env!("CARGO_PKG_VERSION") },
        "machine": machine,
        "experiments": list(all, experiment),
    }))
}

fn experiment(results: &Results) -> Value {
    let settings = &results.settings;
    json!({
        "experiment": results.experiment.name,
        "summary": results.experiment.summary,
        // A JSON number is exact only up to 53 bits.
        "seed": settings.seed.to_string(),
        "scale": number(settings.scale),
        "planned_blocks": settings.blocks,
        "blocks": results.blocks.len(),
        "figures": list(results.experiment.figures, |figure| json!({
            "figure": figure.key,
            "title": figure.title,
            "unit": figure.unit.key(),
            "printed": figure.printed,
        })),
        "arms": results.shown().map(|arm| self::arm(results, arm)).collect::<Vec<_>>(),
        "left_out": list(&results.left_out, |left_out| json!({ "arm": left_out.arm, "why": left_out.why })),
        "claims": list(&judge(results), claim),
        "warnings": results.outcome.warnings,
        "runs": results.blocks.iter().flat_map(|block| &block.runs).map(|r| run(results, r)).collect::<Vec<_>>(),
    })
}

fn arm(results: &Results, arm: usize) -> Value {
    let plan = results.arms[arm];
    let of_figures = |of: &dyn Fn(&str) -> Measured<Interval>| -> Map<String, Value> {
        let figures = results.experiment.figures.iter();
        figures.map(|figure| (figure.key.to_owned(), measured(&of(figure.key), interval))).collect()
    };
    let keys: BTreeSet<&str> = results
        .runs
        .iter()
        .filter_map(|(_, result)| result.as_ref())
        .flat_map(|result| result.outcome.histograms.keys().map(String::as_str))
        .collect();
    let histograms: Map<String, Value> = keys
        .into_iter()
        .filter_map(|key| Some((key.to_owned(), pairs(results.histogram(arm, &[key])?))))
        .collect();
    json!({
        "arm": plan.name,
        "with": plan.with,
        "values": of_figures(&|figure| results.value(figure, arm)),
        "ratios": of_figures(&|figure| results.ratio(figure, arm, 0)),
        "unproven": results.unproven(arm).map(|absence| absence.detail),
        "failures": list(&results.outcome.summaries[arm].failures, |failure| json!(failure.text)),
        "histograms_ns": histograms,
        "bill": results.bills.get(&arm).map(|taken| measured(taken, bill)),
        "walls": results.walls.get(&arm).map(|walls| &walls.found),
        "series": results.series.get(&arm).map(|taken| measured(taken, series)),
    })
}

/// One string, because otherwise each pair would take four lines.
fn pairs(times: Histogram) -> Value {
    let pairs: Vec<(u64, u64)> = times.into();
    let text: Vec<String> = pairs.iter().map(|(ns, count)| format!("{ns}:{count}")).collect();
    Value::String(text.join(" "))
}

fn bill(bill: &Bill) -> Value {
    let line = |line: &Line| json!({ "class": line.class, "title": line.title, "share": measured(&line.share, interval) });
    json!({
        "verdict": bill.verdict,
        "on_cpu": list(&bill.on_cpu, line),
        "off_cpu": list(&bill.off_cpu, line),
    })
}

fn series(series: &Series) -> Value {
    json!({
        "verdict": series.verdict,
        "first_verdict": series.first_verdict,
        "windows": series.windows.len(),
        "lasting": list(&series.lasting, |lasting| json!({
            "wall": lasting.wall,
            "since": number(lasting.since),
        })),
        "rose": series.rose,
    })
}

fn claim(judged: &Judged) -> Value {
    let why = match &judged.judgement {
        Judgement::CannotTest(why) => Some(why),
        _ => None,
    };
    json!({
        "claim": judged.claim.says,
        "judgement": judged.judgement.key(),
        "why": why,
        "tests": list(&judged.tests, test),
    })
}

fn test(test: &Tested) -> Value {
    json!({
        "rule": test.rule,
        "value": measured(&test.value, interval),
        "judgement": test.judgement.key(),
    })
}

/// All metrics, also those without a row in the table.
fn run(results: &Results, run: &Run) -> Value {
    let metrics: Map<String, Value> = run
        .metrics
        .iter()
        .map(|(key, value)| (key.clone(), measured(value, |value| number(*value))))
        .collect();
    json!({
        "block": run.block,
        "place": run.place,
        "arm": results.outcome.design.arms[run.arm].name,
        "started_unix_ms": run.started_unix_ms,
        "failure": run.failure,
        "metrics": metrics,
    })
}

#[cfg(test)]
mod tests {
    use super::super::EXPERIMENTS;
    use super::super::results::LeftOut;
    use super::super::series::tests::document as series_document;
    use super::super::testing::{FIGURE, results};
    use super::*;
    use allocwall_model::catalogue::walls::Wall;

    /// The fields of a document as in the tables of docs/json.md: `experiments[].arms[].arm`.
    fn paths(value: &Value, at: &str, into: &mut BTreeSet<String>) {
        // Names of figures, histograms and metrics; intervals, and what was not measured.
        let is_leaf = |at: &str, fields: &Map<String, Value>| {
            ["values", "ratios", "histograms_ns", "metrics"].iter().any(|open| at.ends_with(open))
                || ["low", "absent"].iter().any(|name| fields.contains_key(*name))
        };
        match value {
            Value::Object(fields) if !is_leaf(at, fields) => {
                for (name, value) in fields {
                    let at = if at.is_empty() { name.clone() } else { format!("{at}.{name}") };
                    paths(value, &at, into);
                }
            }
            Value::Array(items) if items.iter().any(Value::is_object) => {
                items.iter().for_each(|item| paths(item, &format!("{at}[]"), into));
            }
            _ => drop(into.insert(at.to_owned())),
        }
    }

    #[test]
    fn every_field_is_described() {
        let arms = [("glibc", vec![(FIGURE, 10.0)]), ("pinned", vec![(FIGURE, 30.0)])];
        let mut results = results(&EXPERIMENTS[0], 6, &arms);
        results.left_out.push(LeftOut { arm: "tcmalloc", why: "no such library".into() });
        let share = Ok(Interval::new(0.5, 0.55, 0.6));
        let line = Line { class: "zeroing".into(), title: "first touch: zeroing".into(), share };
        let bill = Bill { verdict: "It waits.".into(), on_cpu: vec![line.clone()], off_cpu: vec![line] };
        results.bills.insert(0, Ok(bill.clone()));
        results.bills.insert(2, Ok(bill));
        let taken = Series::of(&series_document(Wall::AllocatorContention, Some(3)));
        results.series.insert(0, taken.clone());
        results.series.insert(2, taken);
        let document: Value = serde_json::from_str(&document(&[results], &["Linux".into()])).unwrap();
        let mut found = BTreeSet::new();
        paths(&document, "", &mut found);
        let page = include_str!("../../../../docs/json.md");
        let section =
            page.split("\n## ").find(|section| section.starts_with("Experiments: ")).expect("a section");
        let rows = section.lines().filter_map(|row| row.strip_prefix("| ")?.split(" |").next());
        // `a`, `.b` in a row: the second has the path of the first, up to its last dot.
        let mut described = BTreeSet::new();
        for row in rows {
            let mut names = row.split('`').skip(1).step_by(2).map(str::to_owned);
            let Some(first) = names.next() else { continue };
            let above = first.rsplit_once('.').map_or("", |(above, _)| above).to_owned();
            described.extend(names.map(|name| match name.strip_prefix('.') {
                Some(name) => format!("{above}.{name}"),
                None => name.clone(),
            }));
            described.insert(first);
        }
        let leaves: BTreeSet<String> = found.into_iter().filter(|path| !path.starts_with("tool.")).collect();
        described.remove("tool");
        assert_eq!(leaves, described);
    }

    #[test]
    fn the_document_has_all_runs_and_says_what_is_missing() {
        let arms = [("glibc", vec![(FIGURE, 10.0)]), ("pinned", vec![(FIGURE, 40.0)])];
        let text = document(&[results(&EXPERIMENTS[0], 6, &arms)], &[]);
        let document: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&document["format"], &document["version"]), (&json!("allocwall-experiments"), &json!(1)));
        let experiment = &document["experiments"][0];
        assert_eq!(experiment["experiment"], "mmap-threshold");
        // Two runs of the first arm and one of the second, in each block.
        let runs = experiment["runs"].as_array().unwrap();
        assert_eq!(runs.len(), 18);
        assert!(runs.iter().all(|run| run["metrics"][FIGURE].is_number()));
        assert_eq!((&runs[0]["arm"], &runs[1]["arm"]), (&json!("glibc"), &json!("glibc′")));
        let pinned = &experiment["arms"][1];
        assert!((pinned["ratios"][FIGURE]["point"].as_f64().unwrap() - 4.0).abs() < 0.05);
        assert!(pinned["values"]["modes"]["absent"]["reason"].is_string());
        assert_eq!(pinned["bill"], Value::Null);
        assert!(pinned["histograms_ns"]["above"].as_str().unwrap().contains("200:"));
        for claim in experiment["claims"].as_array().unwrap() {
            assert_eq!(claim["judgement"], "cannot_be_tested");
            assert!(claim["why"].is_string());
        }
    }
}
