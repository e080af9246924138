//! Recording -> Bill. Pure: the same recording always gives the same bill.

use crate::catalogue::cost::{CostClass, WaitClass};
use crate::units::{Interval, Measured};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bill {
    pub window_s: f64,
    /// CPU-seconds that the kernel charged to the target within the window; the bill's whole.
    pub cpu_s: f64,
    /// CPU-seconds that the samples account for. The two agree on a quiet machine; the ratio is printed.
    pub sampled_cpu_s: f64,
    /// One line a class, in the order of `CostClass::ALL`; shares sum to 1. Absent when nothing was sampled.
    pub on_cpu: Measured<Vec<CpuLine>>,
    /// One line a class, in the order of `WaitClass::ALL`.
    pub off_cpu: Vec<WaitLine>,
    pub rates: Rates,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CpuLine {
    pub class: CostClass,
    /// Fraction of the target's CPU time.
    pub share: Interval,
    pub cpu_s: Interval,
    pub samples: u64,
    /// How it was measured, in a few words.
    pub method: String,
    /// Largest first.
    pub sites: Vec<Site>,
}

/// A place in the target's own code that a line is charged to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Site {
    /// The first function outside libc, allocator and runtime plumbing.
    pub function: String,
    pub module: String,
    /// `function (file:line)` in the interpreter, where it was seen.
    pub python: Option<String>,
    /// Fraction of the line.
    pub share: f64,
    /// From the leaf outwards, a few names.
    pub path: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WaitLine {
    pub class: WaitClass,
    pub thread_s: Measured<Interval>,
    pub method: String,
    pub sites: Vec<Site>,
}

/// Figures that the ladder reads beside the lines. Rates are per second of wall time over the window.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    pub minor_faults: Measured<f64>,
    pub major_faults: Measured<f64>,
    /// mmap + munmap + brk + mremap + madvise calls.
    pub map_calls: Measured<f64>,
    pub voluntary_switches: Measured<f64>,
    pub involuntary_switches: Measured<f64>,
    pub threads_peak: u32,
    /// Sum over threads of the time they were seen, seconds.
    pub thread_s: f64,
    pub resident_end: u64,
    pub resident_growth: i64,
}
