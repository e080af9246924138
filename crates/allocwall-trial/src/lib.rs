//! Interleaved A/B trials of remedies on the user's own command: Plan -> Blocks -> Comparisons. This file has the values that these
//! stages exchange. It reads no clock and no file.
//!
//! A block holds every arm once and the baseline twice, in random order. Arms 0 and 1 are the baseline, A and A′; the remedies
//! follow. A trial without a remedy (`--with none`) has only these two arms.

#![forbid(unsafe_code)]

pub mod account;
pub mod arm;
pub mod batch;
pub mod calls;
pub mod compare;
pub mod conduct;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod gate;
pub mod huge;
pub mod journal;
pub mod load;
pub mod plan;
pub mod predict;
pub mod prepare;
pub mod proof;
pub mod run;
pub mod server;
pub mod session;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;

use allocwall_model::units::{Absence, Interval, Measured};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Number of baseline arms: A and A′.
pub const BASELINES: usize = 2;

/// End of the key of a metric: the part of resident memory that the program freed with MADV_FREE, and the kernel has not taken yet.
pub const LAZY_FREE: &str = "_lazy_free_bytes";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    LowerIsBetter,
    HigherIsBetter,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    Seconds,
    Bytes,
    Count,
    PerSecond,
    Ns,
    /// A fraction of a whole.
    Ratio,
    /// A metric that the user defined.
    None,
}

impl Unit {
    pub fn key(self) -> &'static str {
        match self {
            Unit::Seconds => "seconds",
            Unit::Bytes => "bytes",
            Unit::Count => "count",
            Unit::PerSecond => "per_second",
            Unit::Ns => "ns",
            Unit::Ratio => "ratio",
            Unit::None => "none",
        }
    }
}

/// One number for each run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metric {
    /// Stable name, used in JSON and in the runs.
    pub key: String,
    pub title: String,
    pub unit: Unit,
    pub direction: Direction,
    /// The trial is about the primary metrics. The other metrics explain them and are a separate family of comparisons.
    pub primary: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ArmInfo {
    /// As the user typed it: "jemalloc+thp".
    pub name: String,
    pub baseline: bool,
    /// By metric key: the relative change that the diagnosis predicted.
    #[serde(default)]
    pub predicted: BTreeMap<String, Interval>,
}

/// An arm that this machine can't try, for example because its library is missing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    pub name: String,
    /// One line: what is missing, and what to install.
    pub why: String,
}

/// One fresh process of one arm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    pub block: usize,
    /// Position in the block's order, from 0.
    pub place: usize,
    /// Index into the trial's arms.
    pub arm: usize,
    pub started_unix_ms: u64,
    /// By metric key, in the metric's unit.
    pub metrics: BTreeMap<String, Measured<f64>>,
    /// Why the run is not used: it crashed, was never ready, or returned the wrong exit code.
    pub failure: Option<String>,
    pub proof: Vec<ProofItem>,
}

/// Whether one expected effect of a remedy was present in the running process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProofItem {
    pub what: String,
    pub state: ProofState,
    /// The observation.
    pub detail: String,
    /// True: a comparison needs this proof for an outcome. False: the item counts only when it is refuted.
    #[serde(default = "needed")]
    pub needed: bool,
    /// Why there was no observation, where the cause is the machine or the time of the run, not the arm.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub absent: Option<Absence>,
}

/// The default for files of earlier versions, which have no such field: there all items were needed.
fn needed() -> bool {
    true
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProofState {
    Proven,
    Unknown,
    Refuted,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Block {
    pub number: usize,
    pub runs: Vec<Run>,
}

/// The design of a trial. It is fixed before the first run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Design {
    pub arms: Vec<ArmInfo>,
    /// Arms that were asked for and could not be tried here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<LeftOut>,
    pub metrics: Vec<Metric>,
    pub settings: Settings,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Random seed for the order of arms.
    pub seed: u64,
    /// Smallest relative change that matters: 0.01 for 1 %.
    pub effect: f64,
    /// Total number of blocks.
    pub planned: usize,
    /// Block counts at which outcomes may be reported, ascending: the interim looks, then `planned`.
    pub looks: Vec<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Better,
    Worse,
    /// The whole interval is within the margin.
    Equivalent,
    Unresolved,
}

impl Outcome {
    pub fn key(self) -> &'static str {
        match self {
            Outcome::Better => "better",
            Outcome::Worse => "worse",
            Outcome::Equivalent => "equivalent",
            Outcome::Unresolved => "unresolved",
        }
    }
}

/// One arm against the baseline on one metric.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    pub arm: usize,
    /// Key of the metric.
    pub metric: String,
    /// Blocks that count: those in which the arm and a baseline run have the metric.
    pub blocks: usize,
    /// Relative change, 0.05 for +5 %, with its interval at confidence 1 − `level`.
    pub effect: Measured<Interval>,
    /// Two-sided p-value of the hypothesis "no effect"; 1 if nothing could be compared.
    pub p: f64,
    /// `p`, adjusted for the comparisons of its family (Holm).
    pub p_holm: f64,
    /// Largest `p_holm` that decides; below 0.05 if the trial has interim looks.
    pub level: f64,
    pub outcome: Outcome,
    /// Relative change below which two arms are called equivalent.
    pub margin: f64,
    /// Why the outcome is unresolved.
    pub why: Option<Absence>,
    /// Printed with the outcome: what the reader must know before trusting it.
    pub warning: Option<String>,
    /// For an unresolved outcome: total number of blocks that would probably resolve an effect as large as the margin, if known.
    pub blocks_needed: Option<usize>,
    pub predicted: Option<Interval>,
}

/// Summary of all runs of one arm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ArmSummary {
    pub runs: usize,
    pub failures: Vec<Failure>,
    /// Median over the runs that didn't fail, by metric key. A and A′ each have their own.
    pub medians: BTreeMap<String, Measured<f64>>,
    pub proof: Vec<ArmProof>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    pub block: usize,
    pub text: String,
}

/// One expected effect of a remedy, over all runs of its arm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArmProof {
    pub what: String,
    pub state: ProofState,
    /// Runs that prove it, out of `runs` that were checked.
    pub proven: usize,
    pub runs: usize,
    /// Detail of the deciding run: the first that refutes, else the first whose state is unknown, else the first.
    pub detail: String,
    /// See [`ProofItem`].
    #[serde(default = "needed")]
    pub needed: bool,
    /// From the deciding run.
    #[serde(default)]
    pub absent: Option<Absence>,
}

/// The complete result of a trial.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrialResult {
    pub design: Design,
    /// Number of finished blocks.
    pub blocks: usize,
    /// Each remedy against the baseline, in the order of arms, then of metrics; in a trial without remedies, A′ against A.
    pub comparisons: Vec<Comparison>,
    /// A′ against A, by metric.
    pub baseline: Vec<Comparison>,
    /// One for each arm.
    pub summaries: Vec<ArmSummary>,
    /// Median of the baseline's runs, A and A′ together, by metric key.
    pub baseline_medians: BTreeMap<String, Measured<f64>>,
    /// Warnings about the whole trial, one sentence each.
    pub warnings: Vec<String>,
}

impl TrialResult {
    pub fn metric(&self, key: &str) -> Option<&Metric> {
        self.design.metrics.iter().find(|m| m.key == key)
    }

    /// The relative change of A′ against A by their medians, where too few blocks give no interval.
    pub fn control_by_medians(&self, metric: &str) -> Option<f64> {
        let median = |arm: usize| self.summaries.get(arm)?.medians.get(metric)?.as_ref().ok().copied();
        let (first, second) = (median(0)?, median(1)?);
        (first > 0.0 && second > 0.0).then(|| second / first - 1.0)
    }

    /// The baseline median of a comparison: the median of both baseline arms; for A′, the median of A.
    pub fn untreated_median(&self, comparison: &Comparison) -> Option<&Measured<f64>> {
        let medians = if comparison.arm < BASELINES {
            &self.summaries.first()?.medians
        } else {
            &self.baseline_medians
        };
        medians.get(&comparison.metric)
    }
}
