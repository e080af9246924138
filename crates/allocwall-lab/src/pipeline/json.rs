//! The order pipeline as a JSON document, version 1, with the raw histograms. Described in docs/json.md.

use super::ThreadResult;
use super::results::{ArmResult, Point};
use super::text::Experiment;
use super::{Measure, Orders};
use allocwall_model::units::Interval;
use allocwall_report::json::{interval, list, measured, number, printed};
use allocwall_report::trial_json;
use serde_json::{Map, Value, json};

/// Incremented when a field changes its meaning or is removed; not when a field is added.
pub const VERSION: u32 = 1;

/// The document: indented, newline-terminated, safe to print. `machine` holds facts about the machine, one sentence each.
pub fn document(e: &Experiment, machine: &[String]) -> String {
    printed(&json!({
        "format": "allocwall-pipeline",
        "version": VERSION,
        "tool": { "name": "allocwall", "version": env!("CARGO_PKG_VERSION") },
        "machine": machine,
        "rate_per_s": e.rate.map(number),
        "arrivals": e.arrivals.key(),
        "order_bytes": e.sizes.all(),
        "producers": e.producers,
        "consumers": e.consumers,
        "pressure_by": e.pressure_by.key(),
        "check_ns": number(e.check_ns),
        "orders_a_run": e.orders,
        "warm_up_orders": e.warm_up,
        "seed": e.seed.to_string(),
        "locked": e.locked,
        "points": list(&e.points, point),
    }))
}

fn point(point: &Point) -> Value {
    let floor: Map<String, Value> = point
        .floor
        .iter()
        .map(|(metric, arms)| {
            let arms = point.arms.iter().zip(arms);
            let by_arm: Map<String, Value> =
                arms.map(|(arm, effect)| (arm.name.clone(), measured(effect, interval))).collect();
            (metric.clone(), Value::Object(by_arm))
        })
        .collect();
    json!({
        "placement": point.placement.name,
        "cpus": point.placement.cpus,
        "near": point.placement.near,
        "oversubscribed": point.placement.crowded,
        "pressure_per_s": number(point.pressure),
        "arms": list(&point.arms, arm),
        "against_by_value": floor,
        "trial": trial_json::value(&point.outcome, &["allocwall bench pipeline".into()]),
    })
}

fn arm(arm: &ArmResult) -> Value {
    let percentiles: Map<String, Value> =
        arm.percentiles.iter().map(|(key, value)| (key.clone(), interval(value))).collect();
    let mut histograms = Map::new();
    for measure in Measure::ALL {
        let both = [Orders::Undisturbed, Orders::All].map(|orders| {
            let pairs: Vec<(u64, u64)> =
                arm.histogram(measure, orders).map(|h| h.clone().into()).unwrap_or_default();
            // One string, because otherwise each pair would take four lines.
            let text: Vec<String> = pairs.iter().map(|(ns, count)| format!("{ns}:{count}")).collect();
            (orders.key().to_owned(), Value::String(text.join(" ")))
        });
        histograms.insert(measure.key().to_owned(), Value::Object(both.into_iter().collect()));
    }
    json!({
        "arm": arm.name,
        "runs": arm.runs,
        "saturated_runs": arm.saturated,
        "achieved_per_s": optional(arm.achieved),
        "handoff_ns": optional(arm.handoff_ns),
        "disturbed_share": optional(arm.disturbed),
        "pressure_per_s": optional(arm.pressure),
        "refused_allocations": arm.refused,
        "unseen_stalls": number(arm.unseen),
        "stolen_ns": arm.stolen_ns,
        "threads": list(&arm.threads, thread),
        "percentiles_ns": percentiles,
        "histograms_ns": histograms,
    })
}

fn thread(thread: &ThreadResult) -> Value {
    json!({
        "role": thread.role.title(),
        "cpu": thread.cpu,
        "stalls": thread.stalls,
        "stalled_ns": number(thread.stalled_ns),
        "longest_stall_ns": number(thread.longest_ns),
        "held_up": thread.held,
        "held_up_ns": number(thread.held_ns),
        "involuntary_switches": thread.involuntary_switches,
        "minor_faults": thread.minor_faults,
    })
}

fn optional(value: Option<Interval>) -> Value {
    value.as_ref().map_or(Value::Null, interval)
}
