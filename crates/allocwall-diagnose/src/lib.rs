//! From a recording to the bill, the findings, the verdict and the remedies that fit. Pure: no clock, no file, no system call.

#![forbid(unsafe_code)]

pub mod bill;
mod context;
pub mod expected;
mod judge;
pub mod remedies;
mod rungs;
mod sentence;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

use crate::bill::Bill;
use allocwall_model::catalogue::walls::Wall;
use allocwall_model::recording::Recording;
use allocwall_model::units::{Absence, Interval};
use context::Context;
use serde::{Deserialize, Serialize};

/// Walks the ladder: fifteen findings in its order, the sentence, and the remedies that fit this target.
pub fn verdict(recording: &Recording, bill: &Bill) -> Verdict {
    let ctx = Context::new(recording, bill);
    let judged = rungs::walk(&ctx);
    let walls = rungs::walls_worst_first(&judged);
    let sentence = sentence::write(&ctx, &judged, &walls);
    let leading = walls
        .first()
        .copied()
        .or_else(|| sentence::leading_contributor(&judged));
    let findings: Vec<Finding> = judged.into_iter().map(|j| j.finding).collect();
    let remedies = remedies::prescribe(recording, bill, &findings, leading);
    let next = sentence::next_steps(&ctx, &findings, &remedies, walls.first().copied());
    Verdict {
        sentence,
        walls,
        findings,
        remedies,
        next,
    }
}

/// How far a verdict that names no wall carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    Decided,
    /// So much of the CPU is kernel time without names that a wall may hide in it, or no memory wall was measured.
    Undecided,
    /// The target's CPU time could not be sampled.
    NotSampled,
}

pub fn reach(recording: &Recording, bill: &Bill, verdict: &Verdict) -> Reach {
    match verdict.walls.is_empty() {
        true => sentence::reach(&Context::new(recording, bill), verdict.findings.iter()),
        false => Reach::Decided,
    }
}

/// Whether a gate that lets no wall pass has to stop this: at a wall, or where none was told but one may be there. That
/// the target waits is no wall of its CPU or memory, and an idle service passes.
pub fn stops_a_gate(recording: &Recording, bill: &Bill, verdict: &Verdict) -> bool {
    verdict.walls.iter().any(|w| *w != Wall::Waiting) || reach(recording, bill, verdict) != Reach::Decided
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    Wall,
    Contributor,
    RuledOut,
    NotMeasured,
}

/// What one rung says about one wall.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    pub wall: Wall,
    pub rung: u8,
    pub status: Status,
    /// Fraction of the whole named by `of`; None where not measured.
    pub share: Option<Interval>,
    pub of: Whole,
    /// Why this status, in one sentence; for `RuledOut` the figure alone, in at most 60 characters.
    pub because: String,
    /// The numbers behind it, one a line.
    pub evidence: Vec<String>,
    /// A command that shows the same evidence with public tools.
    pub show: String,
    /// For `NotMeasured`: why, and what would measure it.
    pub missing: Option<Absence>,
    /// The figure is an estimate, not a measurement; says of what kind.
    pub estimate: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Whole {
    /// The target's CPU time.
    Cpu,
    /// The target's thread time (CPU and waits).
    ThreadTime,
    /// Wall-clock time of the window.
    WallTime,
    /// Resident memory.
    Resident,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// The one sentence that a tired person needs.
    pub sentence: String,
    /// Walls found, worst first; empty when memory is not the wall.
    pub walls: Vec<Wall>,
    /// One a wall, in the order of the ladder.
    pub findings: Vec<Finding>,
    /// In the order to try.
    pub remedies: Vec<Prescription>,
    /// What to type next.
    pub next: Vec<String>,
}

/// A remedy fitted to this target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prescription {
    /// Key in the catalogue of remedies.
    pub remedy: String,
    pub title: String,
    /// Predicted fraction of the target's CPU time saved; None where nothing on this machine's price list tells.
    pub gain: Option<Interval>,
    /// It cannot save more than this fraction; None where it saves no CPU time, or its lines were not measured.
    pub at_most: Option<f64>,
    /// How the prediction was made, or why there is none.
    pub basis: String,
    pub restart: bool,
    /// What to type or to change.
    pub how: String,
    pub backfires: String,
    pub undo: String,
    /// Every remedy relocates a cost: to where.
    pub moves: String,
}
