//! The open window: the first readings, and the readings until it closes.

use super::Request;
use super::attach::Attached;
use super::bills::Bills;
use super::closed::{self, Closed};
use super::faults::FaultSlices;
use super::placement::Placing;
use super::random::Random;
use super::waits::WaitSampler;
use crate::accounts::Accounts;
use crate::allocations;
use crate::counts::{self, Counting};
use crate::devices::{DeviceReader, NAMESPACES_ASKED};
use crate::file::{Batch, Head, Part, Writer};
use crate::python::Pythons;
use crate::reading::Readers;
use crate::ticks::{ThreadClock, TickReader};
use allocwall_host::clock;
use allocwall_host::perf;
use allocwall_model::error::{Error, Result};
use allocwall_model::recording::{Ended, Meta, PythonSample, Tick};
use allocwall_model::units::Measured;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const DRAIN_EVERY: Duration = Duration::from_millis(50);
/// How much earlier than due something may be done.
const TOGETHER: Duration = Duration::from_millis(10);
const TICK_EVERY: Duration = Duration::from_millis(250);
const BATCH_EVERY: Duration = Duration::from_secs(1);
/// A sample of a collector is taken up to this time later than it is due, by chance: nothing that the target does regularly
/// may run in step with the samples.
const SAMPLE_LATE_NS: u64 = 2_000_000;
const PYTHON_EVERY: Duration = Duration::from_millis(100);
/// In a short window, so many reads are made, but not more often than this.
const PYTHON_LEAST_READS: u32 = 40;
const PYTHON_SOONEST: Duration = Duration::from_millis(50);
/// The most reads of Python's stacks in a window; one read gives a kilobyte per thread.
const PYTHON_READS: u32 = 4000;
/// Up to this many threads, exact times are read every second; above it, only at both ends of the window.
const THREADS_FOLLOWED: usize = 512;

pub struct Window {
    pub target: Attached,
    pub writer: Writer,
    pub meta: Meta,
    pub readings: Readings,
    pub counting: Counting,
    /// Reads the counted calls of the allocator.
    pub allocations: Measured<allocations::Counting>,
    /// Reads the resident memory by owner after the window.
    memory: bool,
    /// The processes that could still run when they were last listed.
    pub pids: Vec<i32>,
    python_every: Duration,
}

/// What is read at regular times, with the results since the last batch.
pub struct Readings {
    pub ticks: TickReader,
    pub threads: ThreadClock,
    pub waits: WaitSampler,
    pub faults: FaultSlices,
    pythons: Pythons,
    pub accounts: Accounts,
    pub devices: DeviceReader,
    new_ticks: Vec<Tick>,
    new_python: Vec<PythonSample>,
}

impl Window {
    /// Takes the first readings and starts the clocks.
    ///
    /// # Errors
    /// The target has ended.
    pub fn open(
        mut target: Attached,
        mut writer: Writer,
        allocations: Measured<allocations::Counting>,
        request: &Request<'_>,
    ) -> Result<Window> {
        let meta = meta(&target, request.window);
        let mut readings = Readings::new(&target, request.readers.clone(), request.window);
        let pids = target.collector.family.alive();
        readings.first(&mut target, &pids);
        // The clocks of a launched command are running since before its first instruction.
        if target.command.is_none() {
            if let Ok(clocks) = &mut target.sampling.clocks
                && let Err(error) = clocks.start()
            {
                target.sampling.clocks = Err(perf::absence(&error));
            }
            // From here on the end of the target is reported. A target that ended before has no data.
            if target.collector.family.alive().is_empty() {
                return Err(Error::Refused("the target ended before the window opened".into()));
            }
        }
        writer.write(&Part::Head(Box::new(Head {
            meta: meta.clone(),
            host: target.host.clone(),
            cgroup: target.cgroups.as_ref().ok().map(|groups| groups.path().to_owned()),
            processes: target.collector.family.listing.processes.clone(),
            modules: target.collector.new_modules(),
            prices: request.prices.clone(),
        })));
        let counting = counts::start(&target.proc, &target.host, &pids, request.window, request.closely);
        let python_every = python_every(request.window);
        let memory = request.memory;
        Ok(Window { target, writer, meta, readings, counting, allocations, memory, pids, python_every })
    }

    /// Reads until the time is over, the target has ended, or the user interrupts.
    pub fn watch(&mut self, interrupted: &AtomicBool, progress: &mut dyn FnMut(f64)) {
        let (start, length) = (self.target.start.monotonic_ns, self.meta.requested_ns);
        let mut due = Due::new(start);
        loop {
            let now = clock::monotonic_ns();
            let t_ns = now - start;
            if interrupted.load(Ordering::Relaxed) {
                self.meta.ended = Ended::Interrupted;
                return;
            }
            if t_ns >= length {
                return;
            }
            // Work that is nearly due is done in the same turn: each time that allocwall wakes up, it takes a CPU from
            // the target.
            let soon = now + TOGETHER.as_nanos() as u64;
            if due.drain.passed(soon, DRAIN_EVERY) {
                self.target.drain(false);
                if self.target.owners_unknown() {
                    self.readings.faults.begin(now);
                }
            }
            if due.wait.passed(now, Duration::from_nanos(self.readings.waits.next_in())) {
                let (proc, collector) = (&self.target.proc, &mut self.target.collector);
                let locks = self.readings.accounts.python_locks();
                self.readings.waits.sample(proc, &self.pids, &locks, collector, start, false);
            }
            if self.readings.faults.due_ns() <= now {
                self.readings.faults.turn(&self.target.proc, &self.pids, &self.target.collector);
            }
            if due.tick.passed(soon, TICK_EVERY) {
                if !self.tick(t_ns) {
                    return;
                }
                progress(t_ns as f64 / length as f64);
            }
            // Read on time in any case: a timer that is not set again would keep the loop from sleeping.
            if due.python.passed(soon, self.python_every) {
                self.readings.pythons.read(t_ns, &mut self.readings.new_python);
            }
            if due.sample_ns(self.readings.accounts.next_sample_ns()) <= now {
                self.readings.accounts.sample();
                due.vary();
            }
            if due.batch.passed(now, BATCH_EVERY) {
                self.end_batch(t_ns);
            }
            let sample = due.sample_ns(self.readings.accounts.next_sample_ns());
            let slice = self.readings.faults.due_ns();
            clock::sleep_until(due.next().min(sample).min(slice).min(start + length));
        }
    }

    /// Reads the counters. False if the target has ended.
    fn tick(&mut self, t_ns: u64) -> bool {
        self.pids = self.target.collector.family.alive();
        if self.pids.is_empty() {
            return false;
        }
        self.counting.follow(&self.pids);
        self.readings.tick(&mut self.target, &self.pids, t_ns, false);
        self.readings.follow_pythons(&self.target, &self.pids);
        self.readings.accounts.tick(&self.pids);
        true
    }

    fn end_batch(&mut self, t_ns: u64) {
        if self.readings.threads.alive() <= THREADS_FOLLOWED {
            self.readings.threads.read(&self.target.proc, &self.pids, t_ns);
        }
        self.readings.follow_network(&self.target, &self.pids, t_ns);
        self.target.collector.family.check_facts(false);
        self.ship();
    }

    /// Writes what was read since the last batch.
    fn ship(&mut self) {
        let batch = Batch {
            ticks: std::mem::take(&mut self.readings.new_ticks),
            python: std::mem::take(&mut self.readings.new_python),
            ..self.target.collector.batch()
        };
        // Making the batch may have found some. They come first, so that a file that is cut off between them is consistent.
        let modules = self.target.collector.new_modules();
        if !modules.is_empty() {
            self.writer.write(&Part::Modules(modules));
        }
        self.writer.write(&Part::Batch(Box::new(batch)));
    }

    /// Takes the last readings. The order of the steps decides what they contain of allocwall's own work.
    pub fn close(mut self) -> Closed {
        // The clocks stop first, so that later work of allocwall is not in the samples.
        if let Ok(clocks) = &mut self.target.sampling.clocks {
            let _ = clocks.stop();
        }
        if let Ok(counting) = &self.allocations {
            counting.stop();
        }
        let end_ns = clock::monotonic_ns();
        self.readings.faults.close();
        let start_ns = self.target.start.monotonic_ns;
        self.meta.window_ns = end_ns - start_ns;
        self.pids = self.target.collector.family.alive();
        let mut resident = None;
        if !self.pids.is_empty() {
            let t_ns = self.meta.window_ns;
            // First, because the threads that read them take their own time, and the steps below take longer.
            self.readings.accounts.last_tick(&self.pids);
            let (proc, collector) = (&self.target.proc, &mut self.target.collector);
            let locks = self.readings.accounts.python_locks();
            self.readings.waits.sample(proc, &self.pids, &locks, collector, start_ns, true);
            resident = self.readings.tick(&mut self.target, &self.pids, t_ns, true);
            // It may end during these readings. What they missed is then unknown, and not zero.
            self.pids = self.target.collector.family.alive();
        }
        if self.pids.is_empty() {
            self.meta.ended = Ended::TargetExited { status: self.exit_status() };
            // The end was noticed with a delay; in that time no thread of the target waited.
            self.target.drain(true);
            let exit_ns = self.target.collector.family.last_exit_ns.unwrap_or(end_ns);
            self.meta.window_ns = exit_ns.clamp(start_ns + 1, end_ns) - start_ns;
        } else {
            self.readings.threads.close(&self.target.proc, &self.pids, self.meta.window_ns);
        }
        let t_ns = clock::monotonic_ns() - start_ns;
        self.readings.devices.close(&self.target.proc, &self.target.sys, t_ns);
        self.readings.follow_network(&self.target, &self.pids, t_ns);
        let stopped = closed::stopped(&self.target.proc, &self.pids);
        self.meta.own_cpu_ns = clock::own_cpu_ns() - self.target.start.own_cpu_ns
            + self.readings.pythons.cpu_ns()
            + self.target.collector.family.modules.reader().cpu_ns();
        self.meta.wait_period_ns = self.readings.waits.mean_period_ns();
        self.target.drain(true);
        self.target.collector.window_closed();
        self.target.collector.family.check_facts(true);
        let placement = Placing::start(&self.target, &self.pids, &self.readings.threads);
        let bills = self.memory.then(|| Bills::start(&self.target, &self.pids, &self.readings.threads));
        let python = self.readings.pythons.finish(&mut self.readings.new_python);
        self.ship();
        Closed { window: self, end_ns, resident, placement, bills, stopped, python }
    }

    fn exit_status(&self) -> Option<String> {
        let exited = self.target.command.as_ref().and_then(|command| command.child.exited());
        exited.map(|status| status.to_string())
    }
}

/// The time between two reads of Python's stacks.
fn python_every(window: Duration) -> Duration {
    let often = (window / PYTHON_LEAST_READS).clamp(PYTHON_SOONEST, PYTHON_EVERY);
    often.max(window / PYTHON_READS)
}

/// As the window opens. The rest is known when it has closed.
fn meta(target: &Attached, window: Duration) -> Meta {
    let sampling = &target.sampling;
    let window_ns = window.as_nanos() as u64;
    Meta {
        tool_version: env!("CARGO_PKG_VERSION").into(),
        started_unix_ms: target.start.unix_ms,
        window_ns,
        requested_ns: window_ns,
        ended: Ended::Complete,
        sample_period_ns: sampling.periods.sample_ns(),
        kernel_samples: sampling.kernel_stacks && sampling.clocks.is_ok(),
        system_wide: sampling.system_wide,
        wait_period_ns: 0,
        command: target.command.as_ref().map(|command| command.words.clone()),
        own_cpu_ns: 0,
        lost_records: 0,
    }
}

impl Readings {
    fn new(target: &Attached, readers: Readers, window: Duration) -> Readings {
        let start = target.start.monotonic_ns;
        Readings {
            ticks: TickReader::default(),
            threads: ThreadClock::default(),
            waits: WaitSampler::new(start),
            faults: FaultSlices::new(start, window, target.proc.is_live() && !target.samples_have_owners()),
            pythons: Pythons::new(readers, start),
            accounts: Accounts::new(start),
            devices: DeviceReader::default(),
            new_ticks: Vec::new(),
            new_python: Vec::new(),
        }
    }

    fn first(&mut self, target: &mut Attached, pids: &[i32]) {
        let mut at_ns = 0;
        if target.command.is_some() {
            // Everything that it has used so far belongs to the window, so the base is a program that has not
            // started.
            self.tick(target, &[], 0, false);
            self.threads.read(&target.proc, &[], 0);
            at_ns = clock::monotonic_ns() - target.start.monotonic_ns;
        }
        self.tick(target, pids, at_ns, true);
        self.threads.read(&target.proc, pids, at_ns);
        self.follow_pythons(target, pids);
        // The readings above take their time.
        let at_ns = clock::monotonic_ns() - target.start.monotonic_ns;
        self.devices.open(&target.proc, &target.sys, at_ns);
        self.follow_network(target, pids, at_ns);
    }

    /// The network is read each second and not only at both ends, because it can hardly be read after the target has ended.
    fn follow_network(&mut self, target: &Attached, pids: &[i32], t_ns: u64) {
        let requested = target.collector.family.listing.processes.first().map(|process| process.pid);
        let pids: Vec<i32> =
            requested.into_iter().chain(pids.iter().copied()).take(NAMESPACES_ASKED).collect();
        self.devices.follow(&target.proc, &pids, t_ns);
    }

    /// Reads the counters once and returns the resident bytes. None if they could not be read.
    fn tick(&mut self, target: &mut Attached, pids: &[i32], t_ns: u64, deep: bool) -> Option<u64> {
        let cgroup = target.cgroup_tick();
        let tick = self.ticks.read(&target.proc, pids, t_ns, cgroup, deep).ok()?;
        let resident = tick.resident;
        self.faults.counted(tick.t_ns, tick.minor_faults);
        self.new_ticks.push(tick);
        Some(resident)
    }

    fn follow_pythons(&mut self, target: &Attached, pids: &[i32]) {
        if target.proc.is_live() {
            let processes = &target.collector.family.listing.processes;
            self.pythons.follow(processes, pids);
            self.accounts.follow(&target.proc, processes, pids);
        }
    }
}

/// When something is due next (CLOCK_MONOTONIC).
struct Timer(u64);

impl Timer {
    /// True when due; then due again after `period`. Missed turns are skipped.
    fn passed(&mut self, now: u64, period: Duration) -> bool {
        if now < self.0 {
            return false;
        }
        self.0 = (self.0 + period.as_nanos() as u64).max(now + 1);
        true
    }
}

struct Due {
    drain: Timer,
    wait: Timer,
    tick: Timer,
    python: Timer,
    batch: Timer,
    /// How late the next sample of a collector is taken.
    late_ns: u64,
    random: Random,
}

impl Due {
    fn new(start: u64) -> Due {
        let first = |period: Duration| Timer(start + period.as_nanos() as u64);
        Due {
            drain: first(DRAIN_EVERY),
            wait: Timer(start),
            tick: first(TICK_EVERY),
            python: first(PYTHON_EVERY),
            batch: first(BATCH_EVERY),
            late_ns: 0,
            random: Random::new(start),
        }
    }

    /// When a sample of a collector is taken that is due at `at`.
    fn sample_ns(&self, at: Option<u64>) -> u64 {
        at.map_or(u64::MAX, |at| at.saturating_add(self.late_ns))
    }

    /// Draws the delay of the next sample of a collector.
    fn vary(&mut self) {
        self.late_ns = self.random.below(SAMPLE_LATE_NS);
    }

    fn next(&self) -> u64 {
        [&self.drain, &self.wait, &self.tick, &self.python, &self.batch]
            .iter()
            .map(|t| t.0)
            .min()
            .unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pythons_stacks_are_read_more_often_in_a_short_window() {
        for (window_ms, every_ms) in
            [(500, 50), (2_000, 50), (3_000, 75), (4_000, 100), (60_000, 100), (800_000, 200)]
        {
            let window = Duration::from_millis(window_ms);
            assert_eq!(python_every(window), Duration::from_millis(every_ms), "{window_ms} ms");
        }
    }

    /// How many of 1,000 samples, each due 10 ms after the last one, are in each tenth of the period of a target that does
    /// something every 10 ms.
    fn samples_by_phase(varied: bool) -> [u32; 10] {
        const START: u64 = 12_345;
        const PERIOD: u64 = 10_000_000;
        let mut due = Due::new(START);
        let mut counts = [0; 10];
        let mut at = START + PERIOD;
        for _ in 0..1000 {
            let sampled = due.sample_ns(Some(at));
            assert!((at..at + SAMPLE_LATE_NS).contains(&sampled));
            counts[((sampled - START) % PERIOD * 10 / PERIOD) as usize] += 1;
            at = sampled + PERIOD;
            if varied {
                due.vary();
            }
        }
        counts
    }

    #[test]
    fn samples_of_a_collector_are_not_in_step_with_the_target() {
        let varied = samples_by_phase(true);
        assert!(varied.iter().all(|count| (60..150).contains(count)), "{varied:?}");
        assert_eq!(samples_by_phase(false), [1000, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(Due::new(7).sample_ns(None), u64::MAX);
    }
}
