//! Quantities that every stage shares.

use serde::{Deserialize, Serialize};

/// An estimate with its 95 % interval, all three in one unit that the owner names.
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

    /// A value known without sampling error (a kernel counter).
    pub const fn exact(point: f64) -> Self {
        Interval {
            low: point,
            point,
            high: point,
        }
    }

    /// Same interval in another unit; `factor` must not be negative.
    pub fn scaled(self, factor: f64) -> Self {
        debug_assert!(factor >= 0.0);
        Interval {
            low: self.low * factor,
            point: self.point * factor,
            high: self.high * factor,
        }
    }

    pub fn half_width(self) -> f64 {
        (self.high - self.low) / 2.0
    }
}

/// Why a measurement is not there. Every absence in the product is one of these, never a zero.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Absence {
    pub reason: Reason,
    /// What was asked and what the system answered, in one line.
    pub detail: String,
    /// What the user can change to get it: a command or a setting. None where nothing on this machine helps.
    pub mend: Option<String>,
}

impl Absence {
    pub fn new(reason: Reason, detail: impl Into<String>) -> Self {
        Absence {
            reason,
            detail: detail.into(),
            mend: None,
        }
    }

    /// It is not there, or not any more: something else than that it could not be read.
    pub fn is_gone(&self) -> bool {
        matches!(self.reason, Reason::Vanished | Reason::NotFound)
    }

    pub fn mend(mut self, mend: impl Into<String>) -> Self {
        self.mend = Some(mend.into());
        self
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
    /// The target or the file went away while it was being read.
    Vanished,
    /// Measured, but too little of it to judge by.
    TooLittle,
    Unparsable,
    NotApplicable,
    /// Left out because measuring it would have disturbed the target.
    TooCostly,
    /// This program ran out of descriptors or memory.
    Exhausted,
}

/// `1 block`, `2 blocks`.
pub fn count(n: usize, of: &str) -> String {
    format!("{n} {}", plural(n as u64, of))
}

/// The word alone: `block`, `blocks`.
pub fn plural(n: u64, word: &str) -> String {
    let end = if n == 1 { "" } else { "s" };
    format!("{word}{end}")
}

/// For people: `48,211`.
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
