//! Predictions for an arm from a diagnosis of the baseline command: the expected change in CPU time, for the metrics that follow
//! CPU time.

use super::arm::{Arm, Setting};
use super::{Metric, Unit};
use allocwall_diagnose::bill::Bill;
use allocwall_diagnose::expected;
use allocwall_measure::calibrate::replay::Variant;
use allocwall_model::catalogue::remedies::Effect;
use allocwall_model::recording::Recording;
use allocwall_model::units::Interval;
use std::collections::BTreeMap;
use std::ffi::OsString;

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
        .filter(|metric| is_cpu_time(metric) || (metric.key == "wall_s" && one_thread))
        .map(|metric| (metric.key.clone(), change))
        .collect()
}

/// Whether a metric is the CPU time that predictions are about.
pub fn is_cpu_time(metric: &Metric) -> bool {
    let key = metric.key.as_str();
    key == "cpu_s" || (key.starts_with("cpu_per_request_s") && metric.unit == Unit::Seconds)
}

/// How the counted calls are replayed for an arm: one remedy that is another allocator, or a setting of malloc. `env`: what the
/// arm changes in the environment. None for all other arms, and for one that removes a variable, which a replay can't.
pub fn variant(arm: &Arm, env: &[(OsString, Option<OsString>)]) -> Option<Variant> {
    let [part] = &arm.parts[..] else {
        return None;
    };
    let by_malloc = match part.remedy.effect {
        Effect::Swap | Effect::DeeperCache | Effect::OwnArenas | Effect::ArenaInsteadOfMap => true,
        Effect::HugeTouch => {
            let of_malloc =
                |setting: &Setting| matches!(setting, Setting::Tunable { .. } | Setting::Pages(_));
            part.settings.iter().all(of_malloc)
        }
        _ => false,
    };
    let set = |(name, value): &(OsString, Option<OsString>)| Some((name.clone(), value.clone()?));
    let env: Option<Vec<_>> = env.iter().map(set).collect();
    let env = env.filter(|env| by_malloc && !env.is_empty())?;
    Some(Variant { remedy: part.text.clone(), env })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_allocators_and_tunables_are_replayed_and_nothing_else() {
        let env = [(OsString::from("A"), Some(OsString::from("1")))];
        let replayed = |name: &str| {
            let arm = Arm::parse(name).unwrap_or_else(|refusal| panic!("{name}: {refusal}"));
            variant(&arm, &env).map(|variant| variant.remedy)
        };
        for name in ["mimalloc", "jemalloc@system", "glibc-hugetlb"] {
            assert_eq!(replayed(name).as_deref(), Some(name));
        }
        for name in ["none", "cpus=0", "mimalloc+cpus=0", "prefault=16M"] {
            assert_eq!(replayed(name), None, "{name}");
        }
        let arm = Arm::parse("mimalloc").expect("a remedy");
        assert!(variant(&arm, &[("A".into(), None)]).is_none() && variant(&arm, &[]).is_none());
    }
}
