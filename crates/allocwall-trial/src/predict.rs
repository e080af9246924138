//! What a diagnosis of the untreated command predicts for an arm: the change in CPU time that its remedy is expected to bring, for
//! those metrics that follow CPU time.

use super::arm::Arm;
use super::{Metric, Unit};
use allocwall_diagnose::bill::Bill;
use allocwall_diagnose::expected;
use allocwall_model::recording::Recording;
use allocwall_model::units::Interval;
use std::collections::BTreeMap;

/// From this share of the wall-clock time on CPU on, what a program of one thread saves of one it saves of the other.
const BUSY: f64 = 0.95;

/// Relative change by metric key: negative where it saves. Empty where the arm is more than one remedy, or of one of which
/// [`expected::change`] knows nothing.
pub fn of(recording: &Recording, bill: &Bill, arm: &Arm, metrics: &[Metric]) -> BTreeMap<String, Interval> {
    let [part] = &arm.parts[..] else {
        return BTreeMap::new();
    };
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
