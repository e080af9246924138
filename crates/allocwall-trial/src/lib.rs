//! Interleaved A/B of remedies on the user's own command: Plan -> Blocks -> Comparisons. The values that travel between these, and
//! what is computed from them; nothing here reads a clock or a file.
//!
//! A block holds every arm once and the baseline twice, in random order. Arms 0 and 1 are the baseline, A and A′; the remedies
//! follow. A trial of no remedy (`--with none`) has these two alone.

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
pub mod proof;
pub mod run;
pub mod server;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;

use allocwall_model::units::{Absence, Interval, Measured};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The arms that are the baseline.
pub const BASELINES: usize = 2;

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
    /// A figure of the user's own.
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

/// One number a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metric {
    /// Stable: what JSON and the runs call it.
    pub key: String,
    pub title: String,
    pub unit: Unit,
    pub direction: Direction,
    /// What the trial is about. The others explain it, and are judged as a family of their own.
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
    /// Why the run counts for nothing: it crashed, never was ready, gave the wrong exit code.
    pub failure: Option<String>,
    pub proof: Vec<ProofItem>,
}

/// Whether one thing that a remedy promises was there in the running process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProofItem {
    pub what: String,
    pub state: ProofState,
    /// What was seen.
    pub detail: String,
    /// Without it there is no word. What isn't needed has a say where it refutes.
    #[serde(default = "needed")]
    pub needed: bool,
    /// Why nothing was seen, where the reason is the machine's or the moment's rather than the arm's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub absent: Option<Absence>,
}

/// As in files in which all items were.
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

/// What a trial was asked to be; fixed before its first run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Design {
    pub arms: Vec<ArmInfo>,
    pub metrics: Vec<Metric>,
    pub settings: Settings,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Of the order of arms.
    pub seed: u64,
    /// Relative change that is worth knowing: 0.01 for 1 %.
    pub effect: f64,
    /// Blocks in all.
    pub planned: usize,
    /// The blocks after which words may be given, ascending; the last is `planned`.
    pub looks: Vec<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Better,
    Worse,
    /// The whole interval lies within the margin.
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
    /// Two-sided, of no effect at all; 1 where nothing could be compared.
    pub p: f64,
    /// Adjusted for the comparisons of its family.
    pub p_holm: f64,
    /// What `p_holm` has to reach; less than 0.05 where the trial is looked at more than once.
    pub level: f64,
    pub outcome: Outcome,
    /// Relative change within which arms are called equivalent.
    pub margin: f64,
    /// Why there is no verdict, where the word is unresolved.
    pub why: Option<Absence>,
    /// Stands beside the word: what the reader must know before trusting it.
    pub warning: Option<String>,
    /// Blocks in all that would probably resolve an effect as large as the margin; for an unresolved word, where enough is known.
    pub blocks_needed: Option<usize>,
    pub predicted: Option<Interval>,
}

/// One arm's runs, taken together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ArmSummary {
    pub runs: usize,
    pub failures: Vec<Failure>,
    /// Median over the runs that didn't fail, by metric key. For the baseline arms each its own.
    pub medians: BTreeMap<String, Measured<f64>>,
    pub proof: Vec<ArmProof>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    pub block: usize,
    pub text: String,
}

/// One promise of a remedy over all runs of its arm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArmProof {
    pub what: String,
    pub state: ProofState,
    /// Runs that prove it, of `runs` that were looked at.
    pub proven: usize,
    pub runs: usize,
    /// Of the run that decides: the first that refutes, else the first that knows nothing, else the first.
    pub detail: String,
    /// See [`ProofItem`].
    #[serde(default = "needed")]
    pub needed: bool,
    /// Of the run that decides.
    #[serde(default)]
    pub absent: Option<Absence>,
}

/// All that a trial says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrialResult {
    pub design: Design,
    /// Blocks that were finished.
    pub blocks: usize,
    /// Remedies by metric, in the order of arms, then of metrics; of a trial without remedies, A′ against A.
    pub comparisons: Vec<Comparison>,
    /// A′ against A, by metric.
    pub baseline: Vec<Comparison>,
    /// One an arm.
    pub summaries: Vec<ArmSummary>,
    /// Median of the baseline's runs, A and A′ together, by metric key.
    pub baseline_medians: BTreeMap<String, Measured<f64>>,
    /// What touches the trial as a whole, one sentence each.
    pub warnings: Vec<String>,
}

impl TrialResult {
    pub fn metric(&self, key: &str) -> Option<&Metric> {
        self.design.metrics.iter().find(|m| m.key == key)
    }

    /// The median that a comparison's arm stands against: that of both baseline arms, for A′ that of A.
    pub fn untreated_median(&self, comparison: &Comparison) -> Option<&Measured<f64>> {
        let medians = match comparison.arm < BASELINES {
            true => &self.summaries.first()?.medians,
            false => &self.baseline_medians,
        };
        medians.get(&comparison.metric)
    }
}
