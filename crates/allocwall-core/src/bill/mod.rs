//! Recording -> Bill. Pure: the same recording always gives the same bill.

mod classify;
mod cpu;
mod sites;
#[cfg(test)]
pub mod testing;
mod waits;

use crate::catalogue::cost::{CostClass, WaitClass};
use crate::measure::recording::{ProbeState, Recording, Tick};
use crate::units::{Absence, Interval, Measured, Reason};
use serde::{Deserialize, Serialize};

pub use classify::Classifier;

pub fn of(recording: &Recording) -> Bill {
    let classifier = Classifier::new(recording);
    let cpu_s = cpu::charged_s(recording);
    Bill {
        window_s: recording.meta.window_ns as f64 / 1e9,
        cpu_s,
        sampled_cpu_s: recording.samples.len() as f64 * recording.meta.sample_period_ns as f64 / 1e9,
        on_cpu: cpu::lines(recording, &classifier, cpu_s),
        off_cpu: waits::lines(recording, &classifier, cpu_s),
        rates: rates(recording),
    }
}

fn rates(recording: &Recording) -> Rates {
    let window_s = recording.meta.window_ns as f64 / 1e9;
    // Ticks need not begin and end with the window: rates are over the time between them.
    let over_ticks = |read: fn(&Tick) -> Option<u64>| -> Measured<f64> {
        let (first, last) = first_and_last(recording)?;
        let seconds = (last.t_ns - first.t_ns) as f64 / 1e9;
        match (read(first), read(last)) {
            (Some(from), Some(to)) => Ok(to.saturating_sub(from) as f64 / seconds),
            _ => Err(Absence::new(
                Reason::NotFound,
                "the kernel did not give this counter for every process",
            )),
        }
    };
    let charged = |read: fn(&Tick) -> u64| -> Measured<f64> {
        let (first, last) = first_and_last(recording)?;
        Ok(read(last).saturating_sub(read(first)) as f64 / 1e9)
    };
    let resident = |tick: Option<&Tick>| tick.map_or(0, |t| t.resident);
    let (start, end) = (recording.ticks.first(), recording.ticks.last());
    Rates {
        minor_faults: over_ticks(|t| Some(t.minor_faults)),
        major_faults: over_ticks(|t| Some(t.major_faults)),
        map_calls: map_calls(recording),
        voluntary_switches: over_ticks(|t| t.voluntary_switches),
        involuntary_switches: over_ticks(|t| t.involuntary_switches),
        user_cpu_s: charged(|t| t.user_ns),
        system_cpu_s: charged(|t| t.system_ns),
        threads_peak: recording.ticks.iter().map(|t| t.threads).max().unwrap_or(0),
        thread_s: match recording.threads.is_empty() {
            true => {
                recording.ticks.iter().map(|t| f64::from(t.threads)).sum::<f64>()
                    / recording.ticks.len().max(1) as f64
                    * window_s
            }
            false => recording.threads.iter().map(|t| t.seen_ns as f64).sum::<f64>() / 1e9,
        },
        resident_end: resident(end),
        resident_growth: resident(end) as i64 - resident(start) as i64,
    }
}

const MAP_CALLS: [&str; 5] = ["mmap", "munmap", "brk", "mremap", "madvise"];

fn map_calls(recording: &Recording) -> Measured<f64> {
    let mut rate = 0.0;
    let mut counted = false;
    for count in &recording.counts {
        if MAP_CALLS.contains(&count.name.as_str()) && count.over_ns > 0 {
            rate += count.count as f64 / (count.over_ns as f64 / 1e9);
            counted = true;
        }
    }
    match counted {
        true => Ok(rate),
        false => Err(absence(recording, "map_calls", "map calls were not counted")),
    }
}

/// The first and the last tick, with time between them.
fn first_and_last(recording: &Recording) -> Measured<(&Tick, &Tick)> {
    match (recording.ticks.first(), recording.ticks.last()) {
        (Some(first), Some(last)) if last.t_ns > first.t_ns => Ok((first, last)),
        _ => Err(Absence::new(
            Reason::TooLittle,
            "fewer than two readings of the process counters",
        )),
    }
}

/// Why a probe gave nothing: its own reason, or `otherwise`.
fn absence(recording: &Recording, probe: &str, otherwise: &str) -> Absence {
    recording
        .probes
        .iter()
        .find(|p| p.name == probe)
        .and_then(|p| match &p.state {
            ProbeState::Measured => None,
            ProbeState::Partial(why) | ProbeState::Absent(why) => Some(why.clone()),
        })
        .unwrap_or_else(|| Absence::new(Reason::TooLittle, otherwise))
}

/// Into how many slices of time a window is cut for its intervals: half a second each, at least 15 for the quantile to be tight.
fn blocks(recording: &Recording) -> usize {
    (recording.meta.window_ns as f64 / 0.5e9)
        .round()
        .clamp(15.0, 60.0) as usize
}

fn block_of(t_ns: u64, recording: &Recording, blocks: usize) -> usize {
    let at = t_ns as f64 / recording.meta.window_ns.max(1) as f64;
    ((at * blocks as f64) as usize).min(blocks - 1)
}

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
    /// CPU-seconds in user mode and in the kernel over the window, as the kernel splits them; known without any sample.
    pub user_cpu_s: Measured<f64>,
    pub system_cpu_s: Measured<f64>,
    pub threads_peak: u32,
    /// Sum over threads of the time they were seen, seconds.
    pub thread_s: f64,
    pub resident_end: u64,
    pub resident_growth: i64,
}
