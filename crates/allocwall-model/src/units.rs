//! Types for quantities that all stages share.

use crate::catalogue::advice::{Advice, RUN_AS_MACHINES_ROOT, RUN_AS_ROOT};
use serde::{Deserialize, Serialize};

/// An estimate with its 95 % interval. All three values have one unit, which the owner documents.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    pub low: f64,
    pub point: f64,
    pub high: f64,
}

impl Interval {
    pub fn new(low: f64, point: f64, high: f64) -> Self {
        Interval { low, point, high }
    }

    /// A value without sampling error, such as a kernel counter.
    pub const fn exact(point: f64) -> Self {
        Interval { low: point, point, high: point }
    }

    /// The same interval in another unit; `factor` must not be negative.
    pub fn scaled(self, factor: f64) -> Self {
        debug_assert!(factor >= 0.0);
        Interval { low: self.low * factor, point: self.point * factor, high: self.high * factor }
    }

    pub fn half_width(self) -> f64 {
        (self.high - self.low) / 2.0
    }
}

/// The reason why a value was not measured. A missing value is always an `Absence`, never a zero.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Absence {
    pub reason: Reason,
    /// What allocwall tried and what the system answered, in one line.
    pub detail: String,
    /// What the user can change to get the value: alternatives. Empty if nothing on this machine helps.
    #[serde(deserialize_with = "crate::room::charged")]
    pub mend: Vec<Advice>,
}

impl Absence {
    pub fn new(reason: Reason, detail: impl Into<String>) -> Self {
        Absence { reason, detail: detail.into(), mend: Vec::new() }
    }

    /// Whether the object does not exist or no longer exists, rather than being unreadable.
    pub fn is_gone(&self) -> bool {
        matches!(self.reason, Reason::Vanished | Reason::NotFound)
    }

    /// One of the ways to get it is to run as root.
    pub fn root_helps(&self) -> bool {
        self.mend.iter().any(|way| [RUN_AS_ROOT, RUN_AS_MACHINES_ROOT].contains(way))
    }

    /// Adds an alternative.
    pub fn mend(mut self, mend: impl Into<Advice>) -> Self {
        self.mend.push(mend.into());
        self
    }

    /// Adds these alternatives if there are none yet.
    pub fn mend_if_none<A: Into<Advice>>(mut self, alternatives: impl IntoIterator<Item = A>) -> Self {
        if self.mend.is_empty() {
            self.mend.extend(alternatives.into_iter().map(Into::into));
        }
        self
    }

    /// The alternatives as one text, as part of a sentence.
    pub fn advice(&self) -> Option<String> {
        let ways: Vec<String> = self.mend.iter().map(ToString::to_string).collect();
        (!ways.is_empty()).then(|| ways.join(", or "))
    }

    /// What is missing, and what to do about it, as one line.
    pub fn with_advice(&self) -> String {
        match self.advice() {
            Some(advice) => format!("{}; {advice}", self.detail),
            None => self.detail.clone(),
        }
    }
}

impl std::fmt::Display for Absence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.detail)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    NotPermitted,
    NotSupported,
    NotFound,
    Disabled,
    /// The target or the file disappeared while allocwall read it.
    Vanished,
    /// Measured, but with too little data for a judgement.
    TooLittle,
    Unparsable,
    NotApplicable,
    /// Not measured, because the measurement would disturb the target.
    TooCostly,
    /// allocwall ran out of file descriptors or memory.
    Exhausted,
}

/// `1 block`, `2 blocks`.
pub fn count(n: usize, of: &str) -> String {
    format!("{n} {}", plural(n as u64, of))
}

/// The noun without the number: `block`, `blocks`.
pub fn plural(n: u64, word: &str) -> String {
    let end = if n == 1 { "" } else { "s" };
    format!("{word}{end}")
}

/// With separators, for text output: `48,211`.
pub fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

/// A measurement or the reason why there is none.
pub type Measured<T> = Result<T, Absence>;
