//! Makes the bill, the findings, the verdict and the remedies from a recording. Pure: no clock, no file, no system
//! call.

#![forbid(unsafe_code)]

pub mod bill;
mod cold_start;
mod context;
mod counted;
pub mod diff;
pub mod expected;
pub mod hardware;
mod judge;
pub mod needs;
pub mod remedies;
mod rungs;
mod sentence;
pub mod series;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub use context::main_process;

use crate::bill::Bill;
use allocwall_model::catalogue::advice::Advice;
use allocwall_model::catalogue::walls::Wall;
use allocwall_model::recording::Recording;
use allocwall_model::units::{Absence, Interval};
use context::Context;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::fmt;

/// Judges all rungs of the ladder. Returns one finding for each wall in the order of the ladder, the sentence, and the
/// remedies that apply to this target.
pub fn verdict(recording: &Recording, bill: &Bill) -> Verdict {
    let ctx = Context::new(recording, bill);
    let judged = rungs::walk(&ctx);
    let walls = rungs::walls_worst_first(&judged);
    let leading = walls.first().copied().or_else(|| sentence::leading_contributor(&judged));
    let findings: Vec<Finding> = judged.iter().map(|j| j.finding.clone()).collect();
    let remedies = remedies::prescribe(recording, bill, &findings, leading);
    let sentence = sentence::write(&ctx, &judged, &walls, &remedies);
    let next = sentence::next_steps(&ctx, &findings, &remedies, walls.first().copied());
    Verdict { sentence: sentence.text, site: sentence.site, walls, findings, remedies, next }
}

/// Whether a verdict without a wall is a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    Decided,
    /// A wall may hide in the kernel time without symbols, or no memory wall was measured.
    Undecided,
    /// The target's CPU time could not be sampled.
    NotSampled,
}

pub fn reach(recording: &Recording, bill: &Bill, verdict: &Verdict) -> Reach {
    if verdict.walls.is_empty() {
        sentence::reach(&Context::new(recording, bill), verdict.findings.iter())
    } else {
        Reach::Decided
    }
}

/// Whether a gate that forbids walls fails: because a wall was found, or because the verdict is undecided.
/// `Wall::Waiting` alone does not fail it, so that an idle service passes.
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

impl Status {
    /// It costs enough to be noticed.
    pub fn has_fired(self) -> bool {
        matches!(self, Status::Wall | Status::Contributor)
    }
}

/// The judgement of one wall.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    pub wall: Wall,
    pub rung: u8,
    pub status: Status,
    /// Fraction of the whole that `of` names. None if not measured.
    pub share: Option<Interval>,
    pub of: Whole,
    /// The reason for this status, in one sentence. For `RuledOut` only the figure, in at most 60 characters.
    pub because: String,
    /// The measured numbers, one per line.
    pub evidence: Vec<String>,
    /// Shows the same evidence with other tools.
    pub show: ShellLine,
    /// For `NotMeasured`: the reason, and what to change.
    pub missing: Option<Absence>,
    /// The kind of estimate, if the figure is not measured directly.
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
    /// TCP segments that were sent from the target's network namespace.
    Segments,
    /// Resident memory.
    Resident,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// The result in one sentence.
    pub sentence: String,
    /// The call site that the sentence of a verdict without walls names in full.
    pub site: Option<String>,
    /// Walls found, worst first. Empty if there is none.
    pub walls: Vec<Wall>,
    /// One per wall, in the order of the ladder.
    pub findings: Vec<Finding>,
    /// Sorted: try them in this order.
    pub remedies: Vec<Prescription>,
    /// Commands to run next.
    pub next: Vec<ShellLine>,
}

/// A line for a shell.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShellLine {
    pub command: String,
    /// Printed as the line's comment.
    pub remark: Option<String>,
    /// The command has a placeholder, so it can't be run unchanged.
    pub has_gap: bool,
}

impl ShellLine {
    /// None if the advice is not a command.
    pub fn of_advice(advice: Advice) -> Option<Self> {
        let Advice { how, is_command, note } = advice;
        let line = || ShellLine {
            command: how.into_owned(),
            remark: note.map(Cow::into_owned),
            ..ShellLine::default()
        };
        is_command.then(line)
    }

    pub fn remark(self, remark: impl Into<String>) -> Self {
        ShellLine { remark: Some(remark.into()), ..self }
    }

    pub fn with_gap(self) -> Self {
        ShellLine { has_gap: true, ..self }
    }
}

impl From<String> for ShellLine {
    fn from(command: String) -> Self {
        ShellLine { command, ..ShellLine::default() }
    }
}

impl From<&str> for ShellLine {
    fn from(command: &str) -> Self {
        ShellLine::from(command.to_owned())
    }
}

impl fmt::Display for ShellLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.remark {
            Some(remark) => write!(f, "{}  # {remark}", self.command),
            None => f.write_str(&self.command),
        }
    }
}

/// A remedy with the command for this target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prescription {
    /// Key in the catalogue of remedies.
    pub remedy: String,
    pub title: String,
    /// Predicted saving, as a fraction of the target's CPU time. None if nothing that was measured predicts it.
    pub gain: Option<Interval>,
    /// Upper bound of the saving. None if the remedy saves no CPU time, if its lines of the bill were not measured, if it
    /// can save more than its lines (another allocator, for many cheap calls), or if nothing shows whether it saves any.
    pub at_most: Option<f64>,
    /// The most resident memory that it returns. None if retention is not what it is for, or if that is unknown.
    pub returns_bytes: Option<u64>,
    /// How the prediction was made, or why there is no prediction.
    pub basis: String,
    pub restart: bool,
    /// The command, or what to do in words. The remark has the notes on it.
    pub how: ShellLine,
    /// `how` is a command.
    pub is_command: bool,
    pub backfires: String,
    pub undo: String,
    /// Where the remedy moves the cost to.
    pub moves: String,
}
