//! A trial as a JSON document, version 1. docs/trial-json.md describes every field; a test compares the two.

use super::json::{absence, interval, list, measured, number, plain, printed};
use allocwall_model::units::Measured;
use allocwall_trial::{ArmProof, Comparison, Failure, Metric, TrialResult};
use serde_json::{Value, json};

/// Incremented when a field changes its meaning or is removed. New fields do not increment it.
pub const VERSION: u32 = 1;

/// The document, indented, newline-terminated, safe to print. `command` is the command of the trial.
pub fn document(outcome: &TrialResult, command: &[String]) -> String {
    printed(&value(outcome, command))
}

pub fn value(outcome: &TrialResult, command: &[String]) -> Value {
    let settings = &outcome.design.settings;
    json!({
        "version": VERSION,
        "tool": { "name": "allocwall", "version": env!("CARGO_PKG_VERSION") },
        "command": command,
        "comparisons": list(&outcome.comparisons, |c| comparison(outcome, c)),
        "baseline": list(&outcome.baseline, |c| comparison(outcome, c)),
        "warnings": outcome.warnings,
        "metrics": list(&outcome.design.metrics, metric),
        "left_out": list(&outcome.design.left_out, |arm| json!({ "name": arm.name, "why": arm.why })),
        "arms": Value::Array((0..outcome.design.arms.len()).map(|nth| arm(outcome, nth)).collect()),
        "blocks": outcome.blocks,
        "settings": {
            // A JSON number is exact only up to 53 bits.
            "seed": settings.seed.to_string(),
            "effect": number(settings.effect),
            "planned_blocks": settings.planned,
            "looks": settings.looks,
        },
    })
}

fn comparison(outcome: &TrialResult, c: &Comparison) -> Value {
    let arm_median = outcome.summaries[c.arm].medians.get(&c.metric);
    json!({
        "arm": outcome.design.arms[c.arm].name,
        "arm_index": c.arm,
        "metric": c.metric,
        "effect": measured(&c.effect, |i| number(i.point)),
        "interval": measured(&c.effect, interval),
        "confidence": number(1.0 - c.level),
        "outcome": c.outcome.key(),
        "margin": number(c.margin),
        "blocks": c.blocks,
        "p": number(c.p),
        "p_holm": number(c.p_holm),
        "level": number(c.level),
        "why": c.why.as_ref().map(absence),
        "warning": c.warning,
        "blocks_needed": c.blocks_needed,
        "predicted": c.predicted.as_ref().map(interval),
        "baseline_median": outcome.untreated_median(c).map(median),
        "arm_median": arm_median.map(median),
    })
}

fn median(value: &Measured<f64>) -> Value {
    measured(value, |v| number(*v))
}

fn metric(m: &Metric) -> Value {
    json!({
        "key": m.key,
        "title": m.title,
        "unit": m.unit.key(),
        "direction": plain(&m.direction),
        "primary": m.primary,
    })
}

fn arm(outcome: &TrialResult, nth: usize) -> Value {
    let (info, summary) = (&outcome.design.arms[nth], &outcome.summaries[nth]);
    let medians: Vec<Value> = summary
        .medians
        .iter()
        .map(|(metric, value)| json!({ "metric": metric, "median": median(value) }))
        .collect();
    json!({
        "name": info.name,
        "baseline": info.baseline,
        "runs": summary.runs,
        "failures": list(&summary.failures, failure),
        "medians": medians,
        "proof": list(&summary.proof, proof),
    })
}

fn failure(f: &Failure) -> Value {
    json!({ "block": f.block, "text": f.text })
}

fn proof(p: &ArmProof) -> Value {
    json!({
        "what": p.what,
        "state": plain(&p.state),
        "proven": p.proven,
        "runs": p.runs,
        "detail": p.detail,
        "needed": p.needed,
        "why": p.absent.as_ref().map(absence),
    })
}

#[cfg(test)]
mod tests {
    use super::super::escape;
    use super::super::trial_sketches as sketches;
    use super::*;
    use std::collections::BTreeSet;

    fn document_of(outcome: &TrialResult) -> Value {
        value(outcome, &["sort".to_string(), "big file".to_string()])
    }

    #[test]
    fn the_comparisons_stand_at_the_top() {
        let text = printed(&document_of(&sketches::one_better()));
        let own = format!("\"version\": \"{}\"", env!("CARGO_PKG_VERSION"));
        insta::assert_snapshot!(text.replacen(&own, "\"version\": \"[own]\"", 1));
    }

    #[test]
    fn each_comparison_has_one_of_four_words_or_says_why_not() {
        for outcome in sketches::all() {
            let document = document_of(&outcome);
            assert_eq!(document["version"], 1);
            for c in document["comparisons"].as_array().unwrap() {
                let word = c["outcome"].as_str().unwrap();
                assert!(["better", "worse", "equivalent", "unresolved"].contains(&word));
                assert_eq!(c["why"].is_null(), word != "unresolved", "{c}");
                if c["effect"].is_object() {
                    assert!(c["effect"]["absent"]["detail"].is_string(), "{c}")
                } else {
                    assert!(c["interval"]["low"].as_f64() <= c["effect"].as_f64(), "{c}")
                }
            }
        }
    }

    #[test]
    fn names_survive_the_way_but_reach_no_terminal() {
        let name = "a\u{1b}[2J\u{202e}\"\\\n";
        let mut outcome = sketches::mixed();
        outcome.design.arms[2].name = name.into();
        outcome.summaries[2].failures[0].text = name.into();
        let text = document(&outcome, &[name.to_string()]);
        assert!(text.chars().all(|c| c == '\n' || escape::is_harmless(c)));
        let back: Value = serde_json::from_str(&text).expect("valid JSON");
        assert_eq!(back["comparisons"][0]["arm"], name);
        assert_eq!(back["command"][0], name);
    }

    #[test]
    fn no_number_breaks_the_document() {
        let mut outcome = sketches::mixed();
        outcome.comparisons[0].effect =
            Ok(allocwall_model::units::Interval::new(f64::NEG_INFINITY, f64::NAN, 1.0));
        let text = document(&outcome, &[]);
        let back: Value = serde_json::from_str(&text).expect("valid JSON");
        assert!(back["comparisons"][0]["effect"].is_null());
    }

    /// Paths of all fields. An array of objects adds `[]`. A measured value or an interval is one field.
    fn paths(value: &Value, at: &str, into: &mut BTreeSet<String>) {
        match value {
            Value::Object(fields) if fields.contains_key("absent") || fields.contains_key("low") => {
                into.insert(at.to_string());
            }
            Value::Object(fields) if at.ends_with("why") => assert!(fields.contains_key("detail")),
            Value::Object(fields) => {
                for (name, value) in fields {
                    let dot = if at.is_empty() { "" } else { "." };
                    paths(value, &format!("{at}{dot}{name}"), into);
                }
            }
            Value::Array(items) if items.iter().any(Value::is_object) => {
                items.iter().for_each(|item| paths(item, &format!("{at}[]"), into));
            }
            // Empty in one case, objects in another.
            Value::Array(items) if items.is_empty() => {}
            _ => drop(into.insert(at.to_string())),
        }
    }

    #[test]
    fn the_page_and_the_document_name_the_same_fields() {
        let page = include_str!("../../../docs/trial-json.md");
        let documented: BTreeSet<String> =
            page.lines().filter_map(|l| l.strip_prefix("| `")?.split('`').next()).map(String::from).collect();
        let mut fields = BTreeSet::new();
        for outcome in sketches::all() {
            paths(&document_of(&outcome), "", &mut fields);
        }
        // The page says that these fields are the same as in `comparisons`.
        fields.retain(|f| !f.starts_with("baseline[]"));
        fields.extend(["baseline", "comparisons[].why", "warnings"].map(String::from));
        let missing: Vec<_> = fields.difference(&documented).collect();
        let stale: Vec<_> = documented.difference(&fields).collect();
        assert!(
            missing.is_empty() && stale.is_empty(),
            "not on the page: {missing:#?}\nonly there: {stale:#?}"
        );
    }
}
