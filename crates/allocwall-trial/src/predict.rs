//! Predictions for an arm from a diagnosis of the baseline command: the expected change in CPU time, for the metrics that follow
//! CPU time.

use super::arm::Arm;
use super::{Metric, Unit};
use allocwall_diagnose::bill::Bill;
use allocwall_diagnose::expected;
use allocwall_model::catalogue::remedies::Effect;
use allocwall_model::recording::Recording;
use allocwall_model::units::Interval;
use std::collections::BTreeMap;

/// A program of one thread that is on CPU for at least this share of the wall-clock time saves the same share of wall time as of
/// CPU time.
const BUSY: f64 = 0.95;

/// Relative change by metric key; negative is a saving. Empty if the arm has more than one remedy, or if [`expected::change`]
/// cannot predict its remedy, or not for its value.
pub fn of(recording: &Recording, bill: &Bill, arm: &Arm, metrics: &[Metric]) -> BTreeMap<String, Interval> {
    let [part] = &arm.parts[..] else {
        return BTreeMap::new();
    };
    // The prediction is for the value that the diagnosis offers.
    let offered = || Arm::parse(part.remedy.key).is_ok_and(|arm| arm.parts[0].settings == part.settings);
    if matches!(part.remedy.effect, Effect::FewerCollections(_)) && !offered() {
        return BTreeMap::new();
    }
    let Some(change) = expected::change(recording, bill, part.remedy) else {
        return BTreeMap::new();
    };
    let cpus = bill.cpu_s / bill.window_s.max(1e-9);
    let one_thread = bill.rates.threads_peak == 1 && cpus >= BUSY;
    metrics
        .iter()
        .filter(|metric| {
            let key = metric.key.as_str();
            let cpu =
                key == "cpu_s" || (key.starts_with("cpu_per_request_s") && metric.unit == Unit::Seconds);
            cpu || (key == "wall_s" && one_thread)
        })
        .map(|metric| (metric.key.clone(), change))
        .collect()
}
