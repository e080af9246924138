//! Page faults by the owner of their memory, without samples of the kernel: in slices of the window, the kernel counts the
//! faults of the target's threads and reports the addresses of a part of them. They show how many faults each owner has,
//! not how much CPU time.
//!
//! A fault costs the target about 220 ns more while the event counts (7 % of a storm of 250,000 faults a second), so all
//! slices together take at most 8 % of the window, and 10 % if some end late. In a slice, the kernel ends the event of a
//! thread by itself after `SAMPLES_MOST` samples.
//!
//! Each thread has a period of its own, chosen from its own rate: else a thread with fewer faults than the period would
//! have no sample. Its faults are counted exactly, and each of its samples stands for an equal part of them, also one that
//! was not looked up: the owner of that part is unknown. Faults in system calls, and those of threads that start within a
//! slice, are in the counters of the processes alone: their owner is unknown too.
//!
//! After its event has ended, a thread is assumed to have gone on at the same rate, but its process has no more faults than
//! its counter shows. Where that was not read, only the faults that were counted are in the slice.

use crate::collect::{Collector, Touched};
use allocwall_host::file::errno_text;
use allocwall_host::perf_faults::FaultEvent;
use allocwall_host::proc::ProcFs;
use allocwall_host::rights::{can_read_memory, run_as_root};
use allocwall_host::worker::Worker;
use allocwall_host::{clock, limits};
use allocwall_model::catalogue::advice;
use allocwall_model::recording::{FaultSlice, Owner, OwnerFaults, Probe, ProbeName, ProbeState, gained};
use allocwall_model::stats::random::Random;
use allocwall_model::units::{Absence, Reason};
use std::collections::HashMap;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// The window has one slice in each of so many equal parts, about half a second each.
const SLOT_NS: u64 = 500_000_000;
const SLOTS_LEAST: u64 = 15;
const SLOTS_MOST: u64 = 120;
/// The longest slice, and the largest part of the window for all slices. Memory may get another owner between a fault
/// and its look-up at the end of the slice.
const SLICE_NS: u64 = 25_000_000;
const SLICES_PART: f64 = 0.08;
/// The largest part of the window so far, if slices ended late. No slice begins above it.
const LATE_PART: f64 = 0.10;
/// The most threads that are followed at a time. Each takes a descriptor and two locked pages.
const THREADS: usize = 64;
/// The most processes whose threads are listed for a slice.
const PROCESSES: usize = 256;
/// The number of samples of a slice, and of one thread, for which the periods are chosen.
const SAMPLES: u64 = 128;
const SAMPLES_EACH: std::ops::RangeInclusive<u64> = 4..=32;
/// After so many samples the kernel ends the event of a thread.
const SAMPLES_MOST: u32 = 64;
const PERIOD_MOST: u64 = 1 << 20;
/// The most threads whose rates are kept.
const RATES_KEPT: usize = 4096;
/// How long a slice waits until it is known whether the target's memory can be read.
const PATIENCE: Duration = Duration::from_millis(5);

/// When the slices are.
struct Plan {
    start_ns: u64,
    slots: u64,
    slot_ns: u64,
    slice_ns: u64,
}

impl Plan {
    fn new(start_ns: u64, window: Duration) -> Plan {
        let window_ns = window.as_nanos() as u64;
        let slots = (window_ns / SLOT_NS).clamp(SLOTS_LEAST, SLOTS_MOST);
        let slot_ns = (window_ns / slots).max(1);
        let slice_ns = ((slot_ns as f64 * SLICES_PART) as u64).min(SLICE_NS);
        Plan { start_ns, slots, slot_ns, slice_ns }
    }

    /// When the slice of this slot begins: at random, so that it is in step with nothing. None after the last slot.
    fn begin_ns(&self, slot: u64, random: &mut Random) -> Option<u64> {
        if slot >= self.slots {
            return None;
        }
        let late = random.unit() * (self.slot_ns - self.slice_ns) as f64;
        Some(self.start_ns + slot * self.slot_ns + late as u64)
    }
}

pub struct FaultSlices {
    /// False if the samples have owners.
    in_use: bool,
    plan: Plan,
    /// The slot of the next slice.
    slot: u64,
    due_ns: u64,
    random: Random,
    open: Option<Slice>,
    /// How long all slices together were open.
    spent_ns: u64,
    /// Faults a second, by thread, when it was last followed.
    rates: HashMap<i32, f64>,
    /// Faults a second of the whole target, by the last two readings of its counters, and the last reading.
    rate: f64,
    read: Option<(u64, u64)>,
    slices: Vec<FaultSlice>,
    /// The threads that the limit of descriptors permits.
    affordable: Option<usize>,
    memory_checked: bool,
    /// The question whether the memory can be read, if its answer is late.
    asked: Option<Asked>,
    /// Why there are no more slices.
    refused: Option<Absence>,
    /// Why some threads are not followed.
    missing: Option<Absence>,
}

/// An open slice.
struct Slice {
    start_ns: u64,
    threads: Vec<Followed>,
    /// The counters of the processes before, if all threads are followed.
    before: Vec<Reading>,
}

/// The minor faults of a process so far.
#[derive(Clone, Copy, Debug)]
struct Reading {
    pid: i32,
    t_ns: u64,
    faults: u64,
}

/// A thread that finds out whether the memory of a process can be read. The kernel lets it wait for as long as the process
/// holds the lock of its address space; the window must not wait with it.
struct Asked {
    pid: i32,
    answer: Receiver<io::Result<()>>,
    worker: Worker<()>,
}

impl Asked {
    fn start(pid: i32, check: impl FnOnce() -> io::Result<()> + Send + 'static) -> Asked {
        let (sender, answer) = channel();
        // After the window, the answer has no reader.
        let work = move || drop(sender.send(check()));
        Asked { pid, answer, worker: Worker::start("checks access to memory", work) }
    }

    /// The reason if the answer has not come until the end.
    fn late(&self) -> Absence {
        let detail = format!("the kernel kept allocwall waiting for the memory of process {}", self.pid);
        Absence::new(Reason::TooCostly, detail)
    }
}

struct Followed {
    pid: i32,
    tid: i32,
    event: FaultEvent,
    /// Every so many faults are a sample.
    period: u64,
    start_ns: u64,
}

/// Faults of a thread in a slice.
#[derive(Clone, Copy, Debug)]
struct Counted {
    pid: i32,
    /// Until the event ended.
    seen: f64,
    /// In all of the slice.
    faults: f64,
    /// How many of them became samples, also if they were lost.
    samples: u64,
}

/// The threads of the target from which those of a slice are chosen.
struct Threads {
    chosen: Vec<(i32, i32)>,
    listed: usize,
    /// The target has no other threads.
    all: bool,
}

impl FaultSlices {
    /// `in_use`: without it, nothing is measured.
    pub fn new(start_ns: u64, window: Duration, in_use: bool) -> FaultSlices {
        // It only has to be independent of the target.
        let mut random = Random::new(start_ns);
        let plan = Plan::new(start_ns, window);
        let due_ns = plan.begin_ns(0, &mut random).filter(|_| in_use).unwrap_or(u64::MAX);
        FaultSlices {
            in_use,
            plan,
            slot: 0,
            due_ns,
            random,
            open: None,
            spent_ns: 0,
            rates: HashMap::new(),
            rate: 0.0,
            read: None,
            slices: Vec::new(),
            affordable: None,
            memory_checked: false,
            asked: None,
            refused: None,
            missing: None,
        }
    }

    /// When `turn` is due (CLOCK_MONOTONIC).
    pub fn due_ns(&self) -> u64 {
        self.due_ns
    }

    /// The target's faults so far, by the counters of its processes.
    pub fn counted(&mut self, t_ns: u64, faults: u64) {
        if let Some((before_ns, before)) = self.read.replace((t_ns, faults))
            && let (Some(passed), Some(gain)) = (t_ns.checked_sub(before_ns), gained(before, faults))
            && passed > 0
        {
            self.rate = gain as f64 * 1e9 / passed as f64;
        }
    }

    /// Begins a slice, or ends the open one.
    pub fn turn(&mut self, proc: &ProcFs, pids: &[i32], collector: &mut Collector) {
        match self.open.take() {
            Some(slice) => self.end(slice, proc, collector),
            None if self.has_time() => self.open = self.begin(proc, pids),
            None => {}
        }
        let now = clock::monotonic_ns();
        if self.open.is_some() {
            self.due_ns = now + self.plan.slice_ns;
            return;
        }
        // Slots that were missed are left out.
        let present = now.saturating_sub(self.plan.start_ns) / self.plan.slot_ns;
        self.slot = (self.slot + 1).max(present);
        let next = self.plan.begin_ns(self.slot, &mut self.random).filter(|_| self.refused.is_none());
        self.due_ns = next.unwrap_or(u64::MAX);
    }

    /// Whether all slices together stay within their part of the window.
    fn has_time(&self) -> bool {
        let passed = (self.slot + 1).saturating_mul(self.plan.slot_ns);
        (self.spent_ns + self.plan.slice_ns) as f64 <= passed as f64 * LATE_PART
    }

    /// The window has closed. A slice that is still open is dropped: its look-ups would delay the last readings.
    pub fn close(&mut self) {
        self.due_ns = u64::MAX;
        self.open = None;
    }

    /// The slices, and how the owners of faults were measured; None if the samples have all of them. `unanswered`: why
    /// owners are unknown, of slices or of samples.
    pub fn finish(self, unanswered: Option<Absence>) -> (Vec<FaultSlice>, Option<Probe>) {
        if !self.in_use {
            let partial = |absence| Probe::new(ProbeName::FaultOwners, ProbeState::Partial(absence));
            return (Vec::new(), unanswered.map(partial));
        }
        // How many faults are sampled in slices does not depend on any option.
        let unanswered = unanswered.map(|why| match why.reason {
            Reason::TooCostly => Absence { mend: Vec::new(), ..why },
            _ => why,
        });
        let late = self.asked.as_ref().map(Asked::late);
        let why = self.refused.or(unanswered).or(self.missing).or(late);
        let state = match (self.slices.is_empty(), why) {
            (false, None) => ProbeState::Measured,
            (false, Some(absence)) => ProbeState::Partial(absence),
            (true, Some(absence)) => ProbeState::Absent(absence),
            (true, None) => ProbeState::Absent(Absence::new(
                Reason::TooLittle,
                "no thread of the target could be followed before the window closed",
            )),
        };
        (self.slices, Some(Probe::new(ProbeName::FaultOwners, state)))
    }

    /// Opens the events and starts them. None if there is nothing to follow.
    fn begin(&mut self, proc: &ProcFs, pids: &[i32]) -> Option<Slice> {
        let affordable = *self.affordable.get_or_insert_with(limits::descriptors_to_spare);
        if affordable == 0 {
            let absence = Absence::new(Reason::TooCostly, "page faults: too many open files");
            self.refused = Some(absence.mend(advice::OPEN_FILES));
            return None;
        }
        let mut threads = self.choose(proc, pids, affordable.min(THREADS));
        let (pid, _) = threads.chosen.first()?;
        if !self.memory_checked && !self.memory_is_readable(proc, *pid) {
            return None;
        }
        let followed = self.open_events(&mut threads);
        let mut slice = Slice { start_ns: 0, threads: followed, before: Vec::new() };
        if threads.all {
            slice.before = minor_faults(proc, slice.threads.iter().map(|one| one.pid));
        }
        slice.start_ns = clock::monotonic_ns();
        slice.threads.retain_mut(|one| {
            one.start_ns = clock::monotonic_ns();
            one.event.start(SAMPLES_MOST).is_ok()
        });
        (!slice.threads.is_empty()).then_some(slice)
    }

    /// The threads of one slice, at random if there are too many.
    fn choose(&mut self, proc: &ProcFs, pids: &[i32], most: usize) -> Threads {
        let mut pids = pids.to_vec();
        self.random.shuffle(&mut pids);
        let mut all = pids.len() <= PROCESSES;
        let mut chosen = Vec::new();
        for pid in pids.into_iter().take(PROCESSES) {
            match proc.threads(pid) {
                Ok(tids) => chosen.extend(tids.into_iter().map(|tid| (pid, tid))),
                Err(absence) if absence.is_gone() => {}
                Err(absence) => {
                    all = false;
                    self.missing.get_or_insert(absence);
                }
            }
        }
        let listed = chosen.len();
        if listed > most {
            self.random.shuffle(&mut chosen);
            chosen.truncate(most);
            all = false;
            self.missing.get_or_insert_with(|| {
                Absence::new(
                    Reason::TooCostly,
                    format!("page faults of {most} of {listed} threads at a time"),
                )
            });
        }
        Threads { chosen, listed, all }
    }

    /// Without the target's memory, only memory with a name has a known owner, and its share would be too large.
    fn memory_is_readable(&mut self, proc: &ProcFs, pid: i32) -> bool {
        let asked = self.asked.take().unwrap_or_else(|| {
            let thread = proc.living_thread(pid);
            Asked::start(pid, move || can_read_memory(thread))
        });
        match asked.answer.recv_timeout(PATIENCE) {
            Ok(Ok(())) => self.memory_checked = true,
            // The next slice tries another process.
            Ok(Err(error)) if error.raw_os_error() == Some(libc::ESRCH) => {}
            Ok(Err(error)) => {
                let error = errno_text(&error);
                let detail = format!("memory of process {}: process_vm_readv: {error}", asked.pid);
                self.refused = Some(
                    Absence::new(Reason::NotPermitted, detail)
                        .mend(run_as_root())
                        .mend("run as the owner of the process, with kernel.yama.ptrace_scope=0"),
                );
            }
            // The next slice asks for the same answer.
            Err(RecvTimeoutError::Timeout) => self.asked = Some(asked),
            Err(RecvTimeoutError::Disconnected) => self.refused = asked.worker.finish().err(),
        }
        self.memory_checked
    }

    fn open_events(&mut self, threads: &mut Threads) -> Vec<Followed> {
        let count = threads.chosen.len().max(1) as u64;
        let samples = (SAMPLES / count).clamp(*SAMPLES_EACH.start(), *SAMPLES_EACH.end());
        // A thread that was not followed before has an equal part of all faults.
        let equal = self.rate / threads.listed.max(1) as f64;
        let mut followed = Vec::new();
        let mut failure: Option<Absence> = None;
        for &(pid, tid) in &threads.chosen {
            let rate = self.rates.get(&tid).copied().unwrap_or(equal);
            let expected = rate * self.plan.slice_ns as f64 / 1e9;
            let period = period(expected, samples);
            match FaultEvent::open(tid, period) {
                Ok(event) => followed.push(Followed { pid, tid, event, period, start_ns: 0 }),
                Err(absence) if absence.is_gone() => {}
                Err(absence) => {
                    // Descriptors and locked memory are used up for the next one too.
                    let full = matches!(absence.reason, Reason::TooCostly | Reason::Exhausted);
                    failure.get_or_insert(absence);
                    if full {
                        break;
                    }
                }
            }
        }
        if let Some(absence) = failure {
            threads.all = false;
            let never = followed.is_empty() && self.slices.is_empty();
            let place = if never { &mut self.refused } else { &mut self.missing };
            place.get_or_insert(absence);
        }
        followed
    }

    fn end(&mut self, mut slice: Slice, proc: &ProcFs, collector: &mut Collector) {
        for one in &mut slice.threads {
            // An event that does not stop counts until it is closed, at the end of this function.
            let _ = one.event.stop();
        }
        let over_ns = clock::monotonic_ns().saturating_sub(slice.start_ns).max(1);
        self.spent_ns += over_ns;
        let after = minor_faults(proc, slice.before.iter().map(|one| one.pid));
        if self.rates.len() >= RATES_KEPT {
            self.rates.clear();
        }
        let mut faults = Vec::new();
        let mut touched = Vec::new();
        for (index, one) in slice.threads.iter_mut().enumerate() {
            let records = one.event.records();
            let seen = records.len() as u64;
            // An event that has ended with its thread, or with an exec, may have no count.
            let count = one.event.count().unwrap_or(0).max(seen.saturating_mul(one.period));
            let samples = count / one.period;
            let counted_ns = match records.last() {
                // The kernel ended it.
                Some(last) if seen == samples && seen >= u64::from(SAMPLES_MOST) => {
                    last.time_ns.saturating_sub(one.start_ns).clamp(1, over_ns)
                }
                _ => over_ns,
            };
            let seen = count as f64;
            let faults_of_slice = seen * over_ns as f64 / counted_ns as f64;
            faults.push(Counted { pid: one.pid, seen, faults: faults_of_slice, samples });
            touched.extend(records.iter().map(|record| {
                let (time_ns, address) = (record.time_ns, record.address);
                (index, Touched { pid: one.pid, time_ns, address, stack_pointer: record.stack_pointer })
            }));
        }
        let (unseen, cut) = fit(&mut faults, &in_slice(&slice.before, &after, over_ns));
        if cut {
            self.missing.get_or_insert_with(|| {
                let detail = format!(
                    "a thread was counted until its first {SAMPLES_MOST} samples of a slice: its page faults are a lower bound"
                );
                Absence::new(Reason::TooCostly, detail)
            });
        }
        for (one, counted) in slice.threads.iter().zip(&faults) {
            self.rates.insert(one.tid, counted.faults * 1e9 / over_ns as f64);
        }
        touched.sort_by_key(|(_, fault)| fault.time_ns);
        let all: Vec<Touched> = touched.iter().map(|(_, fault)| *fault).collect();
        let owners = collector.owners_of(proc, &all);
        let samples: Vec<(usize, Owner)> =
            touched.iter().zip(owners).filter_map(|((thread, _), owner)| Some((*thread, owner?))).collect();
        self.slices.push(FaultSlice {
            t_ns: slice.start_ns.saturating_sub(self.plan.start_ns),
            over_ns,
            owners: by_owner(&faults, &samples, unseen),
        });
    }
}

/// The minor faults of processes so far, each once. Those that have ended are left out.
fn minor_faults(proc: &ProcFs, pids: impl Iterator<Item = i32>) -> Vec<Reading> {
    let mut pids: Vec<i32> = pids.collect();
    pids.sort_unstable();
    pids.dedup();
    let read = |pid| {
        let t_ns = clock::monotonic_ns();
        Some(Reading { pid, t_ns, faults: proc.process_stat(pid).ok()?.minor_faults })
    };
    pids.into_iter().filter_map(read).collect()
}

/// The faults of each process in a slice of `over_ns`, by its counter. The counters are read some time before the slice and
/// after it; the part of the faults that falls into these times is left out.
fn in_slice(before: &[Reading], after: &[Reading], over_ns: u64) -> Vec<(i32, f64)> {
    let of_process = |after: &Reading| {
        let before = before.iter().find(|one| one.pid == after.pid)?;
        let faults = after.faults.saturating_sub(before.faults) as f64;
        let passed_ns = after.t_ns.saturating_sub(before.t_ns).max(over_ns).max(1);
        Some((after.pid, faults * over_ns as f64 / passed_ns as f64))
    };
    after.iter().filter_map(of_process).collect()
}

/// Limits the faults of threads whose events have ended to those of their processes, or to those that were counted if the
/// process was not read. Returns the faults of processes that no event counted, and whether a process was not read.
fn fit(faults: &mut [Counted], processes: &[(i32, f64)]) -> (f64, bool) {
    let mut unseen = 0.0;
    for &(pid, all) in processes {
        let sum = |of: fn(&Counted) -> f64| -> f64 {
            faults.iter().filter(|thread| thread.pid == pid).map(of).sum()
        };
        let (seen, estimated) = (sum(|thread| thread.seen), sum(|thread| thread.faults));
        unseen += (all - estimated).max(0.0);
        // Faults that were counted have happened, whatever the share of the times between the readings is.
        let most = all.max(seen);
        if estimated > most {
            let part = (most - seen) / (estimated - seen);
            for thread in faults.iter_mut().filter(|thread| thread.pid == pid) {
                thread.faults = thread.seen + (thread.faults - thread.seen) * part;
            }
        }
    }
    let mut cut = false;
    let was_read = |pid: i32| processes.iter().any(|(other, _)| *other == pid);
    for thread in faults.iter_mut().filter(|thread| thread.faults > thread.seen && !was_read(thread.pid)) {
        thread.faults = thread.seen;
        cut = true;
    }
    (unseen, cut)
}

/// Divides the faults of each thread by the owners of its samples that were looked up (index of the thread and owner). The
/// owner of the `unseen` ones, of those that the other samples stand for, and of those of a thread without samples, is
/// unknown.
fn by_owner(faults: &[Counted], looked_up: &[(usize, Owner)], unseen: f64) -> Vec<OwnerFaults> {
    let mut sums = [(0u32, 0.0f64); Owner::ALL.len()];
    let mut without = vec![1.0f64; faults.len()];
    for (thread, owner) in looked_up {
        let part = 1.0 / faults[*thread].samples.max(1) as f64;
        let (samples, sum) = &mut sums[*owner as usize];
        *samples += 1;
        *sum += faults[*thread].faults * part;
        without[*thread] -= part;
    }
    let unanswered = faults.iter().zip(without).map(|(thread, part)| thread.faults * part.max(0.0));
    sums[Owner::Unknown as usize].1 += unseen + unanswered.sum::<f64>();
    let of = |(owner, (samples, sum)): (Owner, (u32, f64))| {
        // The conversion keeps to the range of the type.
        OwnerFaults { owner, samples, faults: sum.round() as u32 }
    };
    let owners = Owner::ALL.into_iter().zip(sums).map(of);
    owners.filter(|one| one.samples > 0 || one.faults > 0).collect()
}

/// Every how many faults a sample is due, if a thread has so many in a slice: a prime, because programs touch memory in
/// regular steps.
fn period(expected: f64, samples: u64) -> u64 {
    let least = ((expected / samples as f64) as u64).clamp(1, PERIOD_MOST);
    if least == 1 {
        return 1;
    }
    let is_prime = |n: &u64| (2u64..).take_while(|d| d * d <= *n).all(|d| !n.is_multiple_of(d));
    (least..).find(is_prime).unwrap_or(least)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reading::Readers;
    use allocwall_host::memory::{AnonymousMapping, Pages};
    use std::process::Command;
    use std::sync::atomic::{AtomicBool, Ordering};

    fn counted(pid: i32, faults: f64, samples: u64) -> Counted {
        Counted { pid, seen: faults, faults, samples }
    }

    #[test]
    fn slices_take_less_than_a_tenth_of_every_window() {
        for ms in [500, 2_000, 15_000, 60_000, 3_600_000] {
            let plan = Plan::new(7, Duration::from_millis(ms));
            let window_ns = ms * 1_000_000;
            assert!((SLOTS_LEAST..=SLOTS_MOST).contains(&plan.slots));
            assert!(plan.slots * plan.slice_ns * 10 < window_ns && plan.slice_ns > 1_000_000, "{ms}");
            let mut random = Random::new(1);
            let mut end = 7;
            let mut late = 0.0;
            for slot in 0..plan.slots {
                let begin = plan.begin_ns(slot, &mut random).expect("it is in the window");
                assert!(begin >= end && begin >= 7 + slot * plan.slot_ns, "{ms} {slot}");
                end = begin + plan.slice_ns;
                assert!(end <= 7 + (slot + 1) * plan.slot_ns && end <= 7 + window_ns, "{ms} {slot}");
                late += (begin - 7 - slot * plan.slot_ns) as f64 / plan.slot_ns as f64;
            }
            assert_eq!(plan.begin_ns(plan.slots, &mut random), None);
            // Spread over the slots: the mean of 15 uniform numbers is within 0.2 of theirs in 99 % of cases.
            assert!((0.25..0.7).contains(&(late / plan.slots as f64)), "{ms}: {late}");
        }
    }

    #[test]
    fn the_period_is_a_prime_near_the_rate() {
        assert_eq!([0.0, 10.0, 31.9, 63.9].map(|expected| period(expected, 32)), [1; 4]);
        assert_eq!([64.0, 96.0, 128.0, 3_200.0].map(|expected| period(expected, 32)), [2, 3, 5, 101]);
        assert_eq!(period(6_250.0, 4), 1_567);
        assert!((PERIOD_MOST..PERIOD_MOST + 100).contains(&period(f64::INFINITY, 32)));
        assert_eq!(period(f64::NAN, 32), 1);
    }

    #[test]
    fn each_sample_stands_for_an_equal_part_of_its_threads_faults() {
        let of = |owner, samples, faults| OwnerFaults { owner, samples, faults };
        // A busy thread with three samples, a quiet one with one, and one without a sample.
        let faults = [counted(1, 3_000.0, 3), counted(1, 10.0, 1), counted(2, 40.0, 0)];
        let samples = [(0, Owner::Heap), (1, Owner::Stack), (0, Owner::Heap), (0, Owner::Unmapped)];
        assert_eq!(
            by_owner(&faults, &samples, 5.0),
            [
                of(Owner::Heap, 2, 2_000),
                of(Owner::Stack, 1, 10),
                of(Owner::Unmapped, 1, 1_000),
                of(Owner::Unknown, 0, 45)
            ]
        );
        assert!(by_owner(&[counted(1, 0.0, 0)], &[], 0.0).is_empty());
        let many = by_owner(&[counted(1, 1e300, 1)], &[(0, Owner::File)], 0.0);
        assert_eq!(many, [of(Owner::File, 1, u32::MAX)]);
    }

    #[test]
    fn faults_whose_samples_have_no_answer_are_unknown() {
        let of = |owner, samples, faults| OwnerFaults { owner, samples, faults };
        // Of ten samples, four were looked up: the others do not count for their owners.
        let looked_up = [(0, Owner::Heap), (0, Owner::Heap), (0, Owner::Heap), (0, Owner::File)];
        assert_eq!(
            by_owner(&[counted(1, 1_000.0, 10)], &looked_up, 0.0),
            [of(Owner::Heap, 3, 300), of(Owner::File, 1, 100), of(Owner::Unknown, 0, 600)]
        );
        assert_eq!(by_owner(&[counted(1, 70.0, 7)], &[], 0.0), [of(Owner::Unknown, 0, 70)]);
        // The near twin: all were.
        assert_eq!(
            by_owner(&[counted(1, 1_000.0, 4)], &looked_up, 0.0),
            [of(Owner::Heap, 3, 750), of(Owner::File, 1, 250)]
        );
    }

    #[test]
    fn slices_that_end_late_leave_slots_out() {
        let taken = |over_ns: u64| {
            let mut slices = FaultSlices::new(0, Duration::from_secs(15), true);
            let mut number = 0;
            for slot in 0..slices.plan.slots {
                slices.slot = slot;
                if slices.has_time() {
                    number += 1;
                    slices.spent_ns += over_ns;
                }
            }
            (number, slices.plan.slots, slices.spent_ns)
        };
        let (number, slots, _) = taken(SLICE_NS);
        assert_eq!(number, slots);
        for over_ns in [3 * SLICE_NS, 10 * SLICE_NS, 1_000_000_000] {
            let (number, slots, spent_ns) = taken(over_ns);
            assert!((1..slots).contains(&number), "{over_ns}: {number}");
            assert!(spent_ns <= 1_500_000_000 + over_ns, "{over_ns}: {spent_ns}");
        }
    }

    #[test]
    fn unanswered_look_ups_are_in_the_probe() {
        let absence = || Absence::new(Reason::TooCostly, "7 of 9");
        let finish = |in_use, unanswered| {
            FaultSlices::new(0, Duration::from_secs(15), in_use).finish(unanswered).1.map(|probe| probe.state)
        };
        assert_eq!(finish(false, Some(absence())), Some(ProbeState::Partial(absence())));
        assert_eq!(finish(false, None), None);
        // Without a slice, nothing was measured.
        assert_eq!(finish(true, Some(absence())), Some(ProbeState::Absent(absence())));
        // A lower rate makes fewer samples of the CPU, but not fewer in slices. A right helps both.
        let mended = || absence().mend("use a lower rate");
        assert_eq!(finish(false, Some(mended())), Some(ProbeState::Partial(mended())));
        assert_eq!(finish(true, Some(mended())), Some(ProbeState::Absent(absence())));
        let denied = || Absence::new(Reason::NotPermitted, "no").mend("run as root");
        assert_eq!(finish(true, Some(denied())), Some(ProbeState::Absent(denied())));
    }

    #[test]
    fn faults_that_no_event_counted_are_those_of_the_processes() {
        let unseen = |processes: &[(i32, f64)]| {
            let mut faults = [counted(1, 60.0, 6), counted(1, 30.0, 3), counted(2, 10.0, 1)];
            let unseen = fit(&mut faults, processes);
            // What was counted stays.
            assert!(faults.iter().all(|thread| thread.faults == thread.seen), "{faults:?}");
            unseen
        };
        assert_eq!(unseen(&[(1, 100.0), (2, 10.0)]), (10.0, false));
        // A counter that was read late, or a process that has ended, has none.
        assert_eq!(unseen(&[(1, 50.0)]), (0.0, false));
        assert_eq!(unseen(&[]), (0.0, false));
    }

    #[test]
    fn a_stopped_event_gives_its_process_no_more_faults_than_its_counter() {
        // The event of the second thread ended after a tenth of the slice.
        let fitted = |processes: &[(i32, f64)]| {
            let stopped = Counted { pid: 1, seen: 64.0, faults: 640.0, samples: 64 };
            let mut faults = [counted(1, 36.0, 4), stopped, counted(2, 10.0, 1)];
            let result = fit(&mut faults, processes);
            (faults.map(|thread| thread.faults), result)
        };
        assert_eq!(fitted(&[(1, 244.0), (2, 10.0)]), ([36.0, 208.0, 10.0], (0.0, false)));
        // Its process had a burst and nothing else.
        assert_eq!(fitted(&[(1, 100.0), (2, 10.0)]), ([36.0, 64.0, 10.0], (0.0, false)));
        assert_eq!(fitted(&[(1, 90.0), (2, 10.0)]), ([36.0, 64.0, 10.0], (0.0, false)));
        // The near twin: the storm went on.
        assert_eq!(fitted(&[(1, 676.0), (2, 12.0)]), ([36.0, 640.0, 10.0], (2.0, false)));
        // Without the counter, only what was counted is known.
        assert_eq!(fitted(&[(2, 10.0)]), ([36.0, 64.0, 10.0], (0.0, true)));
        assert_eq!(fitted(&[]), ([36.0, 64.0, 10.0], (0.0, true)));
    }

    #[test]
    fn faults_outside_of_the_slice_are_left_out_in_proportion() {
        let reading = |pid, t_ns, faults| Reading { pid, t_ns, faults };
        let before = [reading(1, 100, 1_000), reading(2, 100, 0)];
        // The slice takes 400 of the 500 ns between the readings.
        assert_eq!(in_slice(&before, &[reading(1, 600, 1_500)], 400), [(1, 400.0)]);
        // The near twin: no time is outside.
        assert_eq!(in_slice(&before, &[reading(1, 500, 1_500)], 400), [(1, 500.0)]);
        // Neither a clock nor a counter that runs backwards gives faults.
        assert_eq!(in_slice(&before, &[reading(1, 50, 1_500)], 400), [(1, 500.0)]);
        assert_eq!(in_slice(&before, &[reading(1, 600, 900), reading(3, 600, 9)], 400), [(1, 0.0)]);
        assert_eq!(in_slice(&before, &[reading(2, 100, 5)], 0), [(2, 0.0)]);
    }

    #[test]
    fn a_slice_waits_a_short_time_for_the_target_s_memory() {
        let (proc, own) = (ProcFs::live(), std::process::id() as i32);
        let slices = || FaultSlices::new(0, Duration::from_secs(15), true);
        let (release, released) = channel::<()>();
        let mut late = slices();
        let wait = move || {
            // Also if the test has failed.
            let _ = released.recv();
            Ok(())
        };
        late.asked = Some(Asked::start(own, wait));
        assert!(!late.memory_is_readable(&proc, own));
        assert!(late.refused.is_none() && late.asked.is_some());
        let probe = late.finish(None).1.expect("it is in use");
        assert!(
            matches!(&probe.state, ProbeState::Absent(why) if why.reason == Reason::TooCostly),
            "{:?}",
            probe.state
        );
        drop(release);
        // The near twin: the answer comes late, but it comes.
        let (release, released) = channel();
        let mut slow = slices();
        slow.asked = Some(Asked::start(own, move || released.recv().map_err(io::Error::other)));
        assert!(!slow.memory_is_readable(&proc, own));
        release.send(()).expect("it waits");
        while slow.asked.is_some() && !slow.memory_is_readable(&proc, own) {}
        assert!(slow.memory_checked && slow.asked.is_none() && slow.refused.is_none());
    }

    #[test]
    fn refused_memory_ends_the_slices_and_an_ended_process_does_not() {
        let (proc, own) = (ProcFs::live(), std::process::id() as i32);
        let refused = |code| {
            let mut slices = FaultSlices::new(0, Duration::from_secs(15), true);
            loop {
                let check = move || Err(io::Error::from_raw_os_error(code));
                slices.asked.get_or_insert_with(|| Asked::start(own, check));
                assert!(!slices.memory_is_readable(&proc, own));
                if slices.asked.is_none() {
                    break;
                }
            }
            slices.refused.map(|absence| absence.reason)
        };
        assert_eq!(refused(libc::EPERM), Some(Reason::NotPermitted));
        assert_eq!(refused(libc::ESRCH), None);
    }

    #[test]
    fn the_rate_comes_from_two_readings() {
        let mut slices = FaultSlices::new(0, Duration::from_secs(1), true);
        let mut rate = |t_ns, faults| {
            slices.counted(t_ns, faults);
            slices.rate
        };
        assert_eq!(rate(0, 1_000), 0.0);
        assert_eq!(rate(500_000_000, 2_000), 2_000.0);
        // Neither a counter that ran backwards nor a reading at the same time changes it.
        assert_eq!(rate(750_000_000, 0), 2_000.0);
        assert_eq!(rate(750_000_000, 500), 2_000.0);
        assert_eq!(rate(1_000_000_000, 600), 400.0);
    }

    /// The slices of a short window; None if this user may not measure them.
    fn slices_of(pid: i32) -> Option<(Vec<FaultSlice>, ProbeState)> {
        const WINDOW_NS: u64 = 600_000_000;
        let (proc, start) = (ProcFs::live(), clock::monotonic_ns());
        let mut collector = Collector::new(proc.clone(), start, Readers::Here);
        collector.family.adopt(pid);
        let mut slices = FaultSlices::new(start, Duration::from_nanos(WINDOW_NS), true);
        while clock::monotonic_ns() < start + WINDOW_NS {
            if slices.due_ns() <= clock::monotonic_ns() {
                slices.turn(&proc, &[pid], &mut collector);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        slices.close();
        assert!(slices.open.is_none() && slices.due_ns() == u64::MAX);
        let (slices, probe) = slices.finish(collector.owners_missing());
        match probe.expect("it is in use").state {
            ProbeState::Absent(absence) => {
                println!("skipped: {absence}");
                None
            }
            state => Some((slices, state)),
        }
    }

    #[test]
    fn a_process_that_touches_memory_has_owners_and_a_sleeping_one_has_no_faults() {
        static DONE: AtomicBool = AtomicBool::new(false);
        let toucher = std::thread::spawn(|| {
            // Not so fast that it ends before the window.
            let mut memory = AnonymousMapping::new(64 << 20, Pages::Small).expect("memory");
            for page in memory.bytes().chunks_mut(4096) {
                page[0] = 1;
                std::thread::sleep(Duration::from_micros(50));
                if DONE.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let own = slices_of(std::process::id() as i32);
        DONE.store(true, Ordering::Relaxed);
        toucher.join().expect("it touches");
        let Some((slices, _)) = own else { return };
        assert!(slices.len() > 3 && slices.is_sorted_by_key(|slice| slice.t_ns), "{slices:?}");
        let private = slices.iter().flat_map(|slice| &slice.owners).filter(|one| one.owner == Owner::Private);
        let (samples, faults) =
            private.fold((0, 0), |(samples, faults), one| (samples + one.samples, faults + one.faults));
        assert!(samples > 10 && faults >= samples, "{samples} samples, {faults} faults: {slices:?}");
        let mut sleeping = Command::new("sleep").arg("60").spawn().expect("it starts");
        std::thread::sleep(Duration::from_millis(100));
        let asleep = slices_of(sleeping.id() as i32);
        sleeping.kill().and_then(|()| sleeping.wait()).expect("our own child");
        let Some((slices, state)) = asleep else { return };
        assert_eq!(state, ProbeState::Measured);
        assert!(slices.len() > 3 && slices.iter().all(|slice| slice.owners.is_empty()), "{slices:?}");
    }

    #[test]
    fn without_use_nothing_is_due() {
        let slices = FaultSlices::new(0, Duration::from_secs(15), false);
        assert_eq!(slices.due_ns(), u64::MAX);
        assert_eq!(slices.finish(None), (Vec::new(), None));
    }

    #[test]
    fn a_target_without_threads_is_an_absence() {
        let (proc, start) = (ProcFs::live(), clock::monotonic_ns());
        let mut collector = Collector::new(proc.clone(), start, Readers::Here);
        let mut slices = FaultSlices::new(start, Duration::from_millis(500), true);
        // No process, and a process that does not exist.
        for pids in [vec![], vec![i32::MAX]] {
            slices.turn(&proc, &pids, &mut collector);
            assert!(slices.open.is_none());
        }
        let (slices, probe) = slices.finish(None);
        let state = probe.expect("it is in use").state;
        assert!(matches!(&state, ProbeState::Absent(why) if why.reason == Reason::TooLittle), "{state:?}");
        assert!(slices.is_empty());
    }
}
