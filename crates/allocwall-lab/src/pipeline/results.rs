//! The results of all arms: a trial's outcomes for the percentiles, and the merged histograms of each arm.

use super::{Measure, Orders, Pair, QUANTILES, RunResult, Spec, ThreadResult, metric_key};
use crate::histogram::Histogram;
use crate::runs::Printed;
use allocwall_host::topology::Relation;
use allocwall_model::stats::median_interval;
use allocwall_model::units::{Interval, Measured};
use allocwall_trial::compare::against;
use allocwall_trial::{BASELINES, Block, Direction, Metric, TrialResult, Unit};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One placement and one heap pressure. Each is a separate trial.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    pub placement: Placement,
    /// Requested blocks per second.
    pub pressure: f64,
    /// Arms 0 and 1 are both malloc.
    pub outcome: TrialResult,
    /// By arm.
    pub arms: Vec<ArmResult>,
    /// Effect against the by-value ring of the same block, for undisturbed orders, by percentile of [`Measure::Dequeue`] and by arm.
    /// Empty without the by-value arm.
    pub floor: BTreeMap<String, Vec<Measured<Interval>>>,
}

/// The CPUs on which threads run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Placement {
    /// The name, as in `--cpus`.
    pub name: String,
    pub cpus: Vec<u32>,
    /// Relation of the first producer's CPU and the first consumer's; None if they share a CPU.
    pub near: Option<String>,
    /// Whether threads share a CPU. Then all figures include the time that threads wait for the CPU.
    pub crowded: bool,
}

impl Placement {
    pub fn near(relation: Option<Relation>) -> Option<String> {
        let text = match relation? {
            Relation::Smt => "two hardware threads of a core",
            Relation::SameL3 => "one L3",
            Relation::OtherL3 => "two L3 domains",
            Relation::OtherNode => "two NUMA nodes",
        };
        Some(text.to_owned())
    }
}

/// The results of all runs of an arm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ArmResult {
    pub name: String,
    /// Runs with a result, and the number of them that were saturated. Percentiles do not include saturated runs.
    pub runs: usize,
    pub saturated: usize,
    /// Merged over the runs that were not saturated.
    pub latencies: BTreeMap<Measure, Pair>,
    /// ns, by [`metric_key`]: median of the runs' own percentiles, and the interval of that median.
    pub percentiles: BTreeMap<String, Interval>,
    /// Orders per second: median over runs and its interval.
    pub achieved: Option<Interval>,
    pub handoff_ns: Option<Interval>,
    /// Share of disturbed orders: median over runs and its interval.
    pub disturbed: Option<Interval>,
    pub pressure: Option<Interval>,
    /// Sum over all runs.
    pub refused: u64,
    pub unseen: f64,
    pub stolen_ns: Option<u64>,
    pub threads: Vec<ThreadResult>,
}

impl ArmResult {
    fn of(name: &str, runs: &[&RunResult], offered: Option<f64>) -> ArmResult {
        let over_runs = |figure: &dyn Fn(&RunResult) -> Option<f64>| {
            median_interval(&runs.iter().filter_map(|t| figure(t)).collect::<Vec<_>>())
        };
        let held: Vec<&&RunResult> = runs.iter().filter(|t| !t.saturated(offered)).collect();
        let mut latencies: BTreeMap<Measure, Pair> = BTreeMap::new();
        for (measure, pair) in held.iter().flat_map(|t| &t.latencies) {
            latencies.entry(*measure).or_default().add(pair);
        }
        let mut percentiles = BTreeMap::new();
        for measure in Measure::ALL {
            for orders in [Orders::Undisturbed, Orders::All] {
                for (key, _, share) in QUANTILES {
                    let of_run = |t: &&&RunResult| t.latencies.get(&measure)?.of(orders).quantile(share);
                    let values: Vec<f64> = held.iter().filter_map(of_run).collect();
                    if let Some(interval) = median_interval(&values) {
                        percentiles.insert(metric_key(measure, key, orders), interval);
                    }
                }
            }
        }
        let mut threads: Vec<ThreadResult> = vec![];
        for run in runs {
            for (n, thread) in run.threads.iter().enumerate() {
                match threads.get_mut(n) {
                    Some(sum) => sum.add(thread),
                    None => threads.push(thread.clone()),
                }
            }
        }
        ArmResult {
            name: name.to_owned(),
            runs: runs.len(),
            saturated: runs.len() - held.len(),
            latencies,
            percentiles,
            achieved: over_runs(&|t| Some(t.achieved)),
            handoff_ns: over_runs(&|t| t.handoff_ns),
            disturbed: over_runs(&|t| t.disturbed_share()),
            pressure: over_runs(&|t| Some(t.pressure_per_s)),
            refused: runs.iter().map(|t| t.refused).sum(),
            unseen: runs.iter().map(|t| t.unseen).sum(),
            stolen_ns: runs.iter().map(|t| t.stolen_ns).sum(),
            threads,
        }
    }

    pub fn percentile(&self, measure: Measure, quantile: &str, orders: Orders) -> Option<Interval> {
        self.percentiles.get(&metric_key(measure, quantile, orders)).copied()
    }

    pub fn histogram(&self, measure: Measure, orders: Orders) -> Option<&Histogram> {
        Some(self.latencies.get(&measure)?.of(orders)).filter(|h| h.count() > 0)
    }
}

/// The metrics that a trial compares. Primary are the percentiles from intended arrival to dequeue. If orders have no intended
/// arrival, the primary metric is orders per second.
pub fn metrics(offered: Option<f64>) -> Vec<Metric> {
    let achieved = Metric {
        key: "achieved_per_s".into(),
        title: "orders per second".into(),
        unit: Unit::PerSecond,
        direction: Direction::HigherIsBetter,
        primary: offered.is_none(),
    };
    if offered.is_none() {
        return vec![achieved];
    }
    let percentile = |measure: Measure, orders: Orders, (key, title, _): &(&str, &str, f64)| Metric {
        key: metric_key(measure, key, orders),
        title: format!("{title}, {}, {}", measure.title(), orders.key()),
        unit: Unit::Ns,
        direction: Direction::LowerIsBetter,
        primary: measure == Measure::Dequeue && orders == Orders::Undisturbed,
    };
    let mut metrics = vec![];
    for (measure, orders) in [
        (Measure::Dequeue, Orders::Undisturbed),
        (Measure::Dequeue, Orders::All),
        (Measure::Done, Orders::Undisturbed),
        (Measure::Done, Orders::All),
    ] {
        metrics.extend(QUANTILES.iter().map(|quantile| percentile(measure, orders, quantile)));
    }
    metrics.push(achieved);
    metrics
}

/// Each arm's figures, and its effect against the by-value ring.
pub fn point(
    placement: Placement,
    spec: &Spec,
    outcome: TrialResult,
    blocks: &[Block],
    runs: &[(usize, Option<RunResult>)],
) -> Point {
    let arms = &outcome.design.arms;
    let results = arms
        .iter()
        .enumerate()
        .map(|(n, arm)| {
            let own: Vec<&RunResult> =
                runs.iter().filter(|(of, _)| *of == n).filter_map(|(_, t)| t.as_ref()).collect();
            ArmResult::of(&arm.name, &own, spec.rate)
        })
        .collect();
    let floor = match arms.iter().position(|arm| arm.name == "by-value") {
        None => BTreeMap::new(),
        Some(floor) => QUANTILES
            .iter()
            .map(|(key, ..)| {
                let metric = metric_key(Measure::Dequeue, key, Orders::Undisturbed);
                let against = (0..arms.len()).map(|arm| against(blocks, arm, floor, &metric));
                let against = against.collect();
                (metric, against)
            })
            .collect(),
    };
    Point { placement, pressure: spec.pressure.per_s, arms: results, outcome, floor }
}

impl Printed for RunResult {
    fn variant(&self) -> &str {
        self.variant.key()
    }
}

/// The arms that are shown: malloc once, then the others.
pub fn shown(point: &Point) -> impl Iterator<Item = usize> {
    (0..point.arms.len()).filter(|arm| *arm == 0 || *arm >= BASELINES)
}
