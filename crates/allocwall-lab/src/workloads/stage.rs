//! The common part of all subjects: the dial, the record of the truth, and the protocol on stdout.
//!
//! Stdout has one JSON object per line: one with `"ready":true` when the shares are stable, then one per second, and a last
//! one with `"final":true`. All figures are cumulative, so the truth of a window is the difference of two lines.

use super::clock;
use super::computing::Computing;
use super::process::{self, Stdin};
use super::{Subject, line_key};
use anyhow::Result;
use serde_json::{Map, Value, json};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed};
use std::time::{Duration, Instant};

pub struct Options {
    pub twin: bool,
    /// Share of time that the wall takes, 0 to 1.
    pub dial: f64,
    pub seconds: u32,
    pub threads: usize,
    /// CPU quota of the cgroup, in CPUs; only for throttling.
    pub quota: Option<f64>,
}

/// The whole of which the dial is a share.
#[derive(Clone, Copy, PartialEq)]
pub enum Base {
    /// CPU time of the workers.
    Cpu,
    /// CPU time of the worker and of its children. Only for one worker, because the kernel counts all children of the process
    /// together.
    CpuWithChildren,
    /// Wall time of the workers.
    Wall,
}

/// A sum of nanoseconds or a count. A single batch can add a negative amount if it is computed as a difference.
#[derive(Default)]
pub struct Tally(AtomicI64);

// Relaxed everywhere: each tally is independent, and a reader may be one batch behind.
impl Tally {
    pub fn add(&self, amount: i64) {
        self.0.fetch_add(amount, Relaxed);
    }

    pub fn set(&self, amount: i64) {
        self.0.store(amount, Relaxed);
    }

    pub fn get(&self) -> i64 {
        self.0.load(Relaxed)
    }
}

/// Writes one line of a subject's output.
pub type Tell<'a> = dyn Fn(&str) -> Result<()> + Sync + 'a;

pub struct Stage<'a> {
    pub subject: &'static Subject,
    pub options: Options,
    tell: &'a Tell<'a>,
    /// In the order of the subject's `lines`.
    lines: Vec<Tally>,
    /// In the order of the subject's `waits`.
    waits: Vec<Tally>,
    pub operations: Tally,
    /// Bytes that the program still needs, for the retention subject.
    pub live_bytes: Tally,
    governed: Tally,
    elapsed: Tally,
    in_wall: AtomicBool,
    stop: AtomicBool,
}

/// How far the controlled time may differ from the dial before the workers switch. Long enough that several workers are in the
/// wall at the same time, but much shorter than a second.
const BAND_NS: i64 = 4_000_000;
const SETTLED: f64 = 0.02;
const WARM_UP: Duration = Duration::from_millis(700);
const WARM_UP_LIMIT: Duration = Duration::from_secs(3);

impl<'a> Stage<'a> {
    pub fn new(subject: &'static Subject, options: Options, tell: &'a Tell<'a>) -> Self {
        let tallies = |n: usize| (0..n).map(|_| Tally::default()).collect();
        Stage {
            subject,
            tell,
            lines: tallies(subject.lines.len()),
            waits: tallies(subject.waits.len()),
            operations: Tally::default(),
            live_bytes: Tally::default(),
            governed: Tally::default(),
            elapsed: Tally::default(),
            in_wall: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            options,
        }
    }

    pub fn line(&self, index: usize) -> &Tally {
        &self.lines[index]
    }

    pub fn wait(&self, index: usize) -> &Tally {
        &self.waits[index]
    }

    pub fn stopped(&self) -> bool {
        self.stop.load(Relaxed)
    }

    /// Alternates between the wall's work and plain computing until the subject ends. `wall` does one batch (0.1 to 5 ms, or
    /// the life of one child) and returns the nanoseconds of it that the dial controls.
    pub fn mix(&self, base: Base, mut wall: impl FnMut() -> i64) {
        let now = || match base {
            Base::Cpu => clock::thread_cpu_ns(),
            Base::CpuWithChildren => clock::thread_and_children_cpu_ns(),
            Base::Wall => clock::monotonic_ns(),
        };
        let mut computing = Computing::new();
        let mut last = now();
        while !self.stopped() {
            let governed = if self.wants_wall() {
                wall()
            } else {
                computing.batch();
                0
            };
            let present = now();
            self.governed.add(governed);
            self.elapsed.add((present - last) as i64);
            last = present;
        }
    }

    /// All workers use the same sums, so they enter and leave the wall together.
    fn wants_wall(&self) -> bool {
        let owed = (self.options.dial * self.elapsed.get() as f64) as i64 - self.governed.get();
        if owed > BAND_NS {
            self.in_wall.store(true, Relaxed);
        } else if owed < -BAND_NS {
            self.in_wall.store(false, Relaxed);
        }
        self.in_wall.load(Relaxed)
    }

    fn share(&self) -> f64 {
        self.governed.get() as f64 / self.elapsed.get().max(1) as f64
    }

    /// Runs `worker` on each thread and reports until the time is over, a signal comes or stdin closes. `before_report` can
    /// update values that are read instead of counted.
    pub fn perform(
        &self,
        worker: impl Fn(usize) + Sync,
        before_report: impl Fn(&Self) -> Result<()>,
    ) -> Result<()> {
        process::end_on_signals();
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..self.options.threads)
                .map(|index| {
                    let worker = &worker;
                    scope.spawn(move || worker(index))
                })
                .collect();
            let outcome = self.report(|| workers.iter().any(|w| w.is_finished()), before_report);
            self.stop.store(true, Relaxed);
            outcome
        })
    }

    fn report(
        &self,
        worker_lost: impl Fn() -> bool,
        before_report: impl Fn(&Self) -> Result<()>,
    ) -> Result<()> {
        let started = Instant::now();
        let run = Duration::from_secs(self.options.seconds.into());
        let end = started + run;
        let stdin = Stdin::new();
        let mut next = None;
        let over = || Instant::now() >= end || process::asked_to_end() || worker_lost();
        while !stdin.closed_within(20) && !over() {
            let due = match next {
                None => {
                    let settled =
                        (self.share() - self.options.dial).abs() < SETTLED || self.governed.get() == 0;
                    let warm = started.elapsed();
                    (warm > WARM_UP && settled) || warm > WARM_UP_LIMIT.min(run / 2)
                }
                Some(time) => Instant::now() >= time,
            };
            if due {
                before_report(self)?;
                self.say(if next.is_none() { "ready" } else { "running" })?;
                next = Some(next.unwrap_or_else(Instant::now) + Duration::from_secs(1));
            }
        }
        before_report(self)?;
        self.say("final")
    }

    fn say(&self, state: &str) -> Result<()> {
        let seconds = |tally: &Tally| json!(tally.get() as f64 / 1e9);
        // Also children that were waited for before the first line; readers use the difference of two lines.
        let cpu_ns = clock::process_cpu_ns() + clock::children_cpu_ns();
        let lines: Map<String, Value> =
            self.subject.lines.iter().zip(&self.lines).map(|(l, t)| (line_key(l), seconds(t))).collect();
        let waits: Map<String, Value> = self
            .subject
            .waits
            .iter()
            .zip(&self.waits)
            .map(|(w, t)| (w.key().to_owned(), seconds(t)))
            .collect();
        let mut line = json!({
            "subject": self.subject.name,
            "twin": self.options.twin,
            "dial": self.options.dial,
            "pid": std::process::id(),
            "threads": self.options.threads,
            "t_mono_ns": clock::monotonic_ns(),
            "t_real_ms": clock::realtime_ms(),
            "cpu_s": cpu_ns as f64 / 1e9,
            "lines": lines,
            "waits": waits,
            "operations": self.operations.get(),
        });
        if let Some(ns) = clock::queued_ns() {
            line["queued_s"] = json!(ns as f64 / 1e9);
        }
        if self.live_bytes.get() > 0 {
            line["live_bytes"] = json!(self.live_bytes.get());
        }
        if state != "running" {
            line[state] = json!(true);
        }
        (self.tell)(&format!("{line}\n"))
    }
}
