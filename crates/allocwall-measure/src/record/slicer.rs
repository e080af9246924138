//! The slices of the window in which page faults are counted and looked up, one after the other, in a thread of their own: it waits
//! for samples, and the kernel may let it wait for the target's memory. The window does neither.
//!
//! Each sample wakes this thread, which looks up its fault at once. Memory that lives for a fraction of a millisecond is still
//! there then. A look-up that begins late shows too much of the memory that lives long. If most were in time, a late one does not
//! count, and the nearest sample of its thread stands for it. (Not all samples of its thread: a thread that touches much memory
//! at once has most of the late ones, all of the same owner.)
//!
//! The thread is urgent (`Urgent`) only while it waits for samples and looks them up, and that takes a limited CPU time. What may
//! take long is done before or after: lists of threads and mappings, and opening events.
//!
//! Each thread of the target has a period of its own, chosen from its own rate: else a thread with fewer faults than the period
//! would have no sample. Its faults are counted exactly, and each of its samples stands for an equal part of them, also one that
//! was not looked up: the owner of that part is unknown. Faults that the event does not count (in system calls, without root), and
//! those of threads that start within a slice, are in the counters of the processes alone: their owner is unknown too.
//!
//! After its event has ended, a thread is assumed to have gone on at the same rate, but its process has no more faults than
//! its counter shows. Where that was not read, only the faults that were counted are in the slice.

use crate::collect::{Fault, Faults, Soon, Source, Tally};
use allocwall_host::file::errno_text;
use allocwall_host::perf::REGISTERS;
use allocwall_host::perf_faults::{FaultEvent, STACK_POINTER};
use allocwall_host::proc::ProcFs;
use allocwall_host::rights::{can_read_memory, run_as_root};
use allocwall_host::worker::Urgent;
use allocwall_host::{clock, limits};
use allocwall_model::catalogue::advice;
use allocwall_model::recording::{FaultSlice, Owner, OwnerFaults, Runtime};
use allocwall_model::stats::random::Random;
use allocwall_model::units::{Absence, Measured, Reason};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::collections::HashMap;
use std::io;
use std::time::Duration;

/// The most threads that are followed at a time. Each takes a descriptor and two locked pages.
const THREADS: usize = 64;
/// The most processes whose threads are listed for a slice.
const PROCESSES: usize = 256;
/// The most samples of a slice for which the periods are chosen, and those of one thread.
const SAMPLES: u64 = 128;
const SAMPLES_EACH: std::ops::RangeInclusive<u64> = 2..=64;
/// After so many samples the kernel ends the event of a thread. The ring of an event has room for them.
const SAMPLES_MOST: u32 = 96;
const PERIOD_MOST: u64 = 1 << 20;
/// The most threads whose rates are kept.
const RATES_KEPT: usize = 4096;
/// The CPU time for the samples of a slice: one part in so many of its length. With a slice of 25 ms in each half second, that
/// is 1 % of one CPU.
const WORK: u64 = 5;
/// The CPU time of a sample before it was measured, and the fewest samples for which it is measured.
const COST_NS: u64 = 50_000;
const COST_SAMPLES: u64 = 8;

/// What is asked for a slice.
pub struct Question {
    pub processes: Vec<Process>,
    /// Faults a second of all of them, about.
    pub rate: f64,
}

/// A process of the target.
pub struct Process {
    pub pid: i32,
    /// The process whose image it runs.
    pub origin: i32,
    pub runtime: Option<Runtime>,
}

pub struct Answer {
    /// None if there was nothing to follow, or if only the rates of the threads were found out.
    pub slice: Option<FaultSlice>,
    /// How long events were open.
    pub open_ns: u64,
    /// Why there are no more slices.
    pub refused: Option<Absence>,
    /// Why some faults so far have no owner.
    pub missing: Option<Absence>,
}

pub struct Slicer {
    proc: ProcFs,
    /// Of the window (CLOCK_MONOTONIC).
    start_ns: u64,
    /// The length of a slice, and the CPU time for its samples.
    slice_ns: u64,
    work_ns: u64,
    random: Random,
    faults: Faults,
    tally: Tally,
    /// Faults a second, by thread, when it was last followed.
    rates: HashMap<i32, f64>,
    /// The CPU time of a sample in the last slice.
    cost_ns: u64,
    /// The threads that the limit of descriptors permits.
    affordable: Option<usize>,
    memory_checked: bool,
    /// Faults in kernel mode may be counted too.
    kernel: bool,
    /// A slice has ended, so the rates of threads are known.
    any: bool,
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
    samples: Vec<Sample>,
    /// The CPU time for samples is used up: no more are looked up.
    spent: bool,
}

/// A sampled fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sample {
    /// Index of the thread.
    thread: usize,
    time_ns: u64,
    /// It was looked up late.
    late: bool,
    /// None if it was not looked up.
    owner: Option<Owner>,
}

/// The minor faults of a process so far.
#[derive(Clone, Copy, Debug)]
struct Reading {
    pid: i32,
    t_ns: u64,
    faults: u64,
}

struct Followed {
    pid: i32,
    tid: i32,
    event: FaultEvent,
    /// Every so many faults are a sample.
    period: u64,
    start_ns: u64,
    /// The samples so far, and the time of the last one.
    seen: u64,
    last_ns: u64,
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

type Processes<'a> = HashMap<i32, &'a Process>;

impl Slicer {
    pub fn new(proc: ProcFs, start_ns: u64, slice_ns: u64) -> Slicer {
        Slicer {
            proc,
            start_ns,
            slice_ns,
            work_ns: slice_ns / WORK,
            // It only has to be independent of the target.
            random: Random::new(start_ns),
            faults: Faults::at_once(Duration::from_nanos(slice_ns / WORK)),
            tally: Tally::default(),
            rates: HashMap::new(),
            cost_ns: COST_NS,
            affordable: None,
            memory_checked: false,
            kernel: true,
            any: false,
            refused: None,
            missing: None,
        }
    }

    /// Takes as long as a slice.
    pub fn slice(&mut self, question: &Question) -> Answer {
        // A process may have ended since, or have executed another program.
        self.faults.forget();
        let processes: Processes = question.processes.iter().map(|process| (process.pid, process)).collect();
        let mut open_ns = 0;
        let slice = self.begin(question).and_then(|mut slice| {
            open_ns = self.watch(&mut slice, &processes);
            self.end(slice, open_ns, &processes)
        });
        let missing = self.unanswered().or_else(|| self.missing.clone());
        Answer { slice, open_ns, refused: self.refused.clone(), missing }
    }

    /// Why too many faults so far were not looked up. How many are sampled does not depend on any option.
    fn unanswered(&self) -> Option<Absence> {
        self.tally.missing().map(|why| match why.reason {
            Reason::TooCostly => Absence { mend: Vec::new(), ..why },
            _ => why,
        })
    }

    /// Opens the events. None if there is nothing to follow.
    fn begin(&mut self, question: &Question) -> Option<Slice> {
        if let Err(absence) = clock::comparable() {
            self.refused = Some(absence);
            return None;
        }
        let affordable = *self.affordable.get_or_insert_with(limits::descriptors_to_spare);
        if affordable == 0 {
            let absence = Absence::new(Reason::TooCostly, "page faults: too many open files");
            self.refused = Some(absence.mend(advice::OPEN_FILES));
            return None;
        }
        let pids = question.processes.iter().map(|process| process.pid).collect();
        let mut threads = self.choose(pids, affordable.min(THREADS));
        if threads.chosen.is_empty() {
            return None;
        }
        if !self.memory_checked {
            let proc = self.proc.clone();
            let pids = each_once(threads.chosen.iter().map(|(pid, _)| *pid));
            let answer = |pid| (pid, can_read_memory(proc.living_thread(pid)));
            if !self.may_read(pids.into_iter().map(answer)) {
                return None;
            }
        }
        let followed = self.open_events(&mut threads, question.rate);
        if followed.is_empty() {
            return None;
        }
        let mut pids = each_once(followed.iter().map(|one| one.pid));
        // There may be time for a part of them.
        self.random.shuffle(&mut pids);
        self.faults.prepare(&self.proc, &pids);
        let before = if threads.all { minor_faults(&self.proc, &pids) } else { Vec::new() };
        Some(Slice { start_ns: 0, threads: followed, before, samples: Vec::new(), spent: false })
    }

    /// The threads of one slice, at random if there are too many.
    fn choose(&mut self, mut pids: Vec<i32>, most: usize) -> Threads {
        self.random.shuffle(&mut pids);
        let most_pids = pids.len().min(PROCESSES);
        let (mut chosen, unlisted) = self.proc.threads_of(&pids[..most_pids]);
        let mut all = most_pids == pids.len() && unlisted.is_none();
        self.missing = self.missing.take().or(unlisted);
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

    /// Without the target's memory, only memory with a name has a known owner, and its share would be too large. `answers`: of the
    /// kernel, whether that of each process may be read. One is enough: the others may be of other users, or protect themselves.
    fn may_read(&mut self, answers: impl Iterator<Item = (i32, io::Result<()>)>) -> bool {
        let mut refusal = None;
        for (pid, answer) in answers {
            match answer {
                Ok(()) => {
                    self.memory_checked = true;
                    return true;
                }
                // The next slice tries other processes.
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                Err(error) => {
                    let detail = format!("memory of process {pid}: process_vm_readv: {}", errno_text(&error));
                    refusal = Some(
                        Absence::new(Reason::NotPermitted, detail)
                            .mend(run_as_root())
                            .mend("run as the owner of the process, with kernel.yama.ptrace_scope=0"),
                    );
                }
            }
        }
        self.refused = refusal;
        false
    }

    /// For how many samples a slice has time: fewer than its limit, because threads may have more faults than before.
    fn samples(&self) -> u64 {
        (self.work_ns / 4 * 3 / self.cost_ns).clamp(1, SAMPLES)
    }

    fn open_events(&mut self, threads: &mut Threads, rate: f64) -> Vec<Followed> {
        let count = threads.chosen.len().max(1) as u64;
        let samples = (self.samples() / count).clamp(*SAMPLES_EACH.start(), *SAMPLES_EACH.end());
        // A thread that was not followed before has an equal part of all faults.
        let equal = rate / threads.listed.max(1) as f64;
        let mut followed = Vec::new();
        let mut failure: Option<Absence> = None;
        for &(pid, tid) in &threads.chosen {
            let rate = self.rates.get(&tid).copied().unwrap_or(equal);
            let expected = rate * self.slice_ns as f64 / 1e9;
            let period = period(expected, samples);
            match self.open_event(tid, period) {
                Ok(event) => {
                    followed.push(Followed { pid, tid, event, period, start_ns: 0, seen: 0, last_ns: 0 });
                }
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
            let never = followed.is_empty() && !self.any;
            let place = if never { &mut self.refused } else { &mut self.missing };
            place.get_or_insert(absence);
        }
        followed
    }

    fn open_event(&mut self, tid: i32, period: u64) -> Measured<FaultEvent> {
        if self.kernel {
            match FaultEvent::open(tid, period, true) {
                Err(absence) if absence.reason == Reason::NotPermitted => {}
                opened => return opened,
            }
        }
        let opened = FaultEvent::open(tid, period, false);
        // A thread that may not be followed at all shows nothing about the others.
        self.kernel &= opened.is_err();
        opened
    }

    /// Starts the events, and looks up each sampled fault as soon as the kernel reports it, until the slice is over. If the CPU
    /// time for that is used up, faults are only counted from then on. Returns how long the events were open.
    fn watch(&mut self, slice: &mut Slice, processes: &Processes) -> u64 {
        let (mut urgent, begun_ns) = (Some(Urgent::begin()), clock::thread_cpu_ns());
        slice.start();
        let end_ns = slice.start_ns.saturating_add(self.slice_ns);
        let mut open: Vec<usize> = (0..slice.threads.len()).collect();
        while !open.is_empty() {
            let left_ns = end_ns.saturating_sub(clock::monotonic_ns());
            if left_ns == 0 {
                break;
            }
            if clock::thread_cpu_ns().saturating_sub(begun_ns) > self.work_ns {
                slice.spent = true;
                urgent = None;
                clock::sleep_until(end_ns);
                continue;
            }
            let ready = ready(&slice.threads, &mut open, left_ns);
            self.look_up(slice, &ready, processes);
        }
        let open_ns = slice.stop();
        drop(urgent);
        let samples = slice.samples.len() as u64;
        if samples >= COST_SAMPLES {
            self.cost_ns = (clock::thread_cpu_ns().saturating_sub(begun_ns) / samples).max(1);
        }
        open_ns
    }

    /// Takes the samples of these threads since, and looks up their faults if there is CPU time left for it.
    fn look_up(&mut self, slice: &mut Slice, threads: &[usize], processes: &Processes) {
        for &thread in threads {
            let one = &mut slice.threads[thread];
            for record in one.event.records() {
                (one.seen, one.last_ns) = (one.seen + 1, record.time_ns);
                let time_ns = record.time_ns;
                let mut sample = Sample { thread, time_ns, late: false, owner: None };
                match record.stack_pointer {
                    _ if slice.spent => {}
                    // 32-bit code has other headers.
                    None => sample.owner = Some(Owner::Unknown),
                    Some(pointer) => {
                        let mut registers = [0; REGISTERS];
                        registers[STACK_POINTER] = pointer;
                        self.faults.add(Fault {
                            sample: slice.samples.len() as u32,
                            pid: one.pid,
                            origin: processes.get(&one.pid).map_or(one.pid, |process| process.origin),
                            registers,
                            source: Source::Address(record.address),
                            soon: Some(Soon { tid: one.tid, time_ns }),
                        });
                    }
                }
                slice.samples.push(sample);
            }
        }
        let samples = &mut slice.samples;
        self.faults.look_up(
            &self.proc,
            |pid| processes.get(&pid)?.runtime.as_ref(),
            |fault, owner| {
                if let Some(sample) = samples.get_mut(fault.sample as usize) {
                    (sample.late, sample.owner) = (fault.soon.is_none(), Some(owner));
                }
            },
        );
    }

    /// `over_ns`: how long the events were open. None if there were none, or if the slice only shows the rates of the threads.
    fn end(&mut self, mut slice: Slice, over_ns: u64, processes: &Processes) -> Option<FaultSlice> {
        if slice.threads.is_empty() {
            return None;
        }
        let all: Vec<usize> = (0..slice.threads.len()).collect();
        self.look_up(&mut slice, &all, processes);
        let after = minor_faults(&self.proc, &each_once(slice.before.iter().map(|one| one.pid)));
        let mut faults: Vec<Counted> = slice.threads.iter_mut().map(|one| one.counted(over_ns)).collect();
        let (unseen, cut) = fit(&mut faults, &in_slice(&slice.before, &after, over_ns));
        if self.rates.len() >= RATES_KEPT {
            self.rates.clear();
        }
        for (one, counted) in slice.threads.iter().zip(&faults) {
            self.rates.insert(one.tid, counted.faults * 1e9 / over_ns as f64);
        }
        // The first periods are a guess. If they are too short, the samples show only the first moments of the slice.
        let guessed = !std::mem::replace(&mut self.any, true);
        if guessed && slice.threads.iter().any(|one| one.seen >= u64::from(SAMPLES_MOST)) {
            return None;
        }
        if cut {
            self.missing.get_or_insert_with(|| {
                let detail = format!(
                    "a thread was counted until its first {SAMPLES_MOST} samples of a slice: its page faults are a lower bound"
                );
                Absence::new(Reason::TooCostly, detail)
            });
        }
        let samples = in_time(slice.samples);
        let answered = samples.iter().filter(|(sample, _)| sample.owner.is_some()).count();
        let spent = || {
            let detail = "allocwall reached its time limit for looking up page faults";
            slice.spent.then(|| Absence::new(Reason::TooCostly, detail))
        };
        let why = self.faults.missing().cloned().or_else(spent);
        self.tally.add(samples.len() as u64, answered as u64, why);
        Some(FaultSlice {
            t_ns: slice.start_ns.saturating_sub(self.start_ns),
            over_ns,
            owners: by_owner(&faults, &samples, unseen),
        })
    }
}

impl Slice {
    /// Starts the events. Those that do not start are left out.
    fn start(&mut self) {
        self.start_ns = clock::monotonic_ns();
        self.threads.retain_mut(|one| {
            one.start_ns = clock::monotonic_ns();
            one.event.start(SAMPLES_MOST).is_ok()
        });
    }

    /// Stops the events. Returns how long they were open.
    fn stop(&mut self) -> u64 {
        for one in &mut self.threads {
            // An event that does not stop counts until it is closed.
            let _ = one.event.stop();
        }
        clock::monotonic_ns().saturating_sub(self.start_ns).max(1)
    }
}

impl Followed {
    /// Its faults in a slice of `over_ns`.
    fn counted(&mut self, over_ns: u64) -> Counted {
        // An event that has ended with its thread, or with an exec, may have no count.
        let count = self.event.count().unwrap_or(0).max(self.seen.saturating_mul(self.period));
        let samples = count / self.period;
        let ended_by_kernel = self.seen == samples && self.seen >= u64::from(SAMPLES_MOST);
        let counted_ns = match ended_by_kernel {
            true => self.last_ns.saturating_sub(self.start_ns).clamp(1, over_ns),
            false => over_ns,
        };
        let seen = count as f64;
        Counted { pid: self.pid, seen, faults: seen * over_ns as f64 / counted_ns as f64, samples }
    }
}

/// Waits until some of the open threads have samples, at most for this time, and returns these. Threads that have ended are not
/// open any more.
fn ready(threads: &[Followed], open: &mut Vec<usize>, most_ns: u64) -> Vec<usize> {
    let timeout =
        Timespec { tv_sec: (most_ns / 1_000_000_000) as i64, tv_nsec: (most_ns % 1_000_000_000) as _ };
    let mut events: Vec<PollFd> =
        open.iter().map(|thread| PollFd::new(&threads[*thread].event, PollFlags::IN)).collect();
    match poll(&mut events, Some(&timeout)) {
        Ok(_) => {}
        Err(Errno::INTR) => return Vec::new(),
        Err(_) => {
            // The samples are looked up at the end.
            open.clear();
            return Vec::new();
        }
    }
    let ready: Vec<(usize, PollFlags)> = open
        .iter()
        .zip(&events)
        .map(|(thread, event)| (*thread, event.revents()))
        .filter(|(_, flags)| !flags.is_empty())
        .collect();
    let ended = PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
    open.retain(|thread| !ready.iter().any(|(other, flags)| other == thread && flags.intersects(ended)));
    ready.into_iter().map(|(thread, _)| thread).collect()
}

/// The samples that count, and how many each one stands for. If most were looked up in time, the nearest of them, of the same
/// thread, stands for a late one; where there is none, the late one has no owner.
fn in_time(samples: Vec<Sample>) -> Vec<(Sample, u64)> {
    let late = samples.iter().filter(|sample| sample.late).count();
    let most_late = late * 2 > samples.len();
    let (late, in_time): (Vec<Sample>, Vec<Sample>) =
        samples.into_iter().partition(|sample| sample.late && !most_late);
    let mut counting: Vec<(Sample, u64)> = in_time.into_iter().map(|sample| (sample, 1)).collect();
    counting.sort_unstable_by_key(|(sample, _)| (sample.thread, sample.time_ns));
    for late in late {
        let at = counting
            .partition_point(|(sample, _)| (sample.thread, sample.time_ns) < (late.thread, late.time_ns));
        let apart = |at: &usize| {
            let (sample, _) = counting.get(*at).filter(|(sample, _)| sample.thread == late.thread)?;
            Some(sample.time_ns.abs_diff(late.time_ns))
        };
        let beside = [at.checked_sub(1), Some(at)].into_iter().flatten();
        let nearest = beside.filter_map(|at| Some((apart(&at)?, at))).min();
        if let Some((_, at)) = nearest {
            counting[at].1 += 1;
        }
    }
    counting
}

fn each_once(pids: impl Iterator<Item = i32>) -> Vec<i32> {
    let mut pids: Vec<i32> = pids.collect();
    pids.sort_unstable();
    pids.dedup();
    pids
}

/// The minor faults of processes so far. Those that have ended are left out.
fn minor_faults(proc: &ProcFs, pids: &[i32]) -> Vec<Reading> {
    let read = |pid: &i32| {
        let t_ns = clock::monotonic_ns();
        Some(Reading { pid: *pid, t_ns, faults: proc.process_stat(*pid).ok()?.minor_faults })
    };
    pids.iter().filter_map(read).collect()
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

/// Divides the faults of each thread by the owners of its samples, each with the number of samples that it stands for. The owner
/// of the `unseen` ones, of those of samples that were not looked up, and of those of a thread without samples, is unknown.
fn by_owner(faults: &[Counted], samples: &[(Sample, u64)], unseen: f64) -> Vec<OwnerFaults> {
    let mut sums = [(0u32, 0.0f64); Owner::ALL.len()];
    let mut without = vec![1.0f64; faults.len()];
    for (sample, number) in samples {
        let (Some(owner), thread) = (sample.owner, sample.thread) else { continue };
        let part = *number as f64 / faults[thread].samples.max(1) as f64;
        let (samples, sum) = &mut sums[owner as usize];
        *samples += 1;
        *sum += faults[thread].faults * part;
        without[thread] -= part;
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
    use allocwall_host::memory::{AnonymousMapping, Pages};
    use std::process::Command;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    fn counted(pid: i32, faults: f64, samples: u64) -> Counted {
        Counted { pid, seen: faults, faults, samples }
    }

    fn slicer() -> Slicer {
        Slicer::new(ProcFs::live(), clock::monotonic_ns(), 1_000_000)
    }

    #[test]
    fn refused_memory_ends_the_slices_and_an_ended_process_does_not() {
        let of = |codes: &[i32]| {
            let mut slicer = slicer();
            let answer = |code: &i32| match code {
                0 => Ok(()),
                code => Err(io::Error::from_raw_os_error(*code)),
            };
            let readable = slicer.may_read(codes.iter().map(|code| (7, answer(code))));
            (readable, slicer.refused.map(|absence| absence.reason))
        };
        assert_eq!(of(&[libc::EPERM]), (false, Some(Reason::NotPermitted)));
        assert_eq!(of(&[libc::ESRCH]), (false, None));
        assert_eq!(of(&[0]), (true, None));
        // One process that can be read is enough.
        assert_eq!(of(&[libc::EPERM, libc::ESRCH, 0]), (true, None));
        assert_eq!(of(&[libc::EPERM, libc::ESRCH]), (false, Some(Reason::NotPermitted)));
    }

    #[test]
    fn samples_are_fewer_where_each_takes_longer() {
        let mut slicer = Slicer::new(ProcFs::live(), 0, 25_000_000);
        let mut of = |cost_ns| {
            slicer.cost_ns = cost_ns;
            slicer.samples()
        };
        assert_eq!([1, 10_000, 50_000, 500_000, u64::MAX].map(&mut of), [SAMPLES, SAMPLES, 75, 7, 1]);
    }

    #[test]
    fn without_a_thread_there_is_no_slice_and_no_reason() {
        // No process, and a process that does not exist.
        for pids in [vec![], vec![i32::MAX]] {
            let process = |pid| Process { pid, origin: pid, runtime: None };
            let question = Question { processes: pids.into_iter().map(process).collect(), rate: 0.0 };
            let answer = slicer().slice(&question);
            assert!(answer.slice.is_none() && answer.refused.is_none() && answer.missing.is_none());
        }
    }

    /// What the first and the second slice show of a process, with so much CPU time for the samples of each; None if this user may
    /// not measure them.
    fn two_slices(pid: i32, work_ns: u64) -> Option<[Option<FaultSlice>; 2]> {
        let mut slicer = Slicer::new(ProcFs::live(), clock::monotonic_ns(), 50_000_000);
        slicer.work_ns = work_ns;
        let question = Question { processes: vec![Process { pid, origin: pid, runtime: None }], rate: 0.0 };
        let answers = [slicer.slice(&question), slicer.slice(&question)];
        if let Some(absence) = &answers[1].refused {
            println!("skipped: {absence}");
            return None;
        }
        assert!(answers.iter().all(|answer| answer.open_ns > 1_000_000));
        Some(answers.map(|answer| answer.slice))
    }

    /// The same of this process, while a thread of it touches memory.
    fn two_busy_slices(work_ns: u64) -> Option<[Option<FaultSlice>; 2]> {
        let done = Arc::new(AtomicBool::new(false));
        let is_done = Arc::clone(&done);
        let toucher = std::thread::spawn(move || {
            let mut memory = AnonymousMapping::new(2 << 20, Pages::Small).expect("memory");
            while !is_done.load(Ordering::Relaxed) {
                memory.bytes().chunks_mut(4096).for_each(|page| page[0] = 1);
                memory.release_pages().expect("memory");
            }
        });
        let busy = two_slices(std::process::id() as i32, work_ns);
        done.store(true, Ordering::Relaxed);
        toucher.join().expect("it touches");
        busy
    }

    #[test]
    fn faults_are_only_counted_when_the_cpu_time_is_used_up() {
        let Some([_, second]) = two_busy_slices(0) else { return };
        let owners = second.expect("the rates are known").owners;
        let unknown = |one: &OwnerFaults| one.owner == Owner::Unknown && one.samples == 0 && one.faults > 0;
        assert!(!owners.is_empty() && owners.iter().all(unknown), "{owners:?}");
    }

    #[test]
    fn the_first_slice_finds_out_the_rates_of_busy_threads() {
        let Some([first, second]) = two_busy_slices(u64::MAX) else { return };
        assert!(first.is_none(), "{first:?}");
        let owners = second.expect("the rates are known").owners;
        assert!(owners.iter().any(|one| one.owner == Owner::Private && one.samples > 10), "{owners:?}");
        // The near twin has few faults, or none.
        let mut sleeping = Command::new("sleep").arg("60").spawn().expect("it starts");
        std::thread::sleep(Duration::from_millis(100));
        let asleep = two_slices(sleeping.id() as i32, u64::MAX);
        sleeping.kill().and_then(|()| sleeping.wait()).expect("our own child");
        let Some(asleep) = asleep else { return };
        assert!(asleep.iter().all(|slice| slice.as_ref().is_some_and(|slice| slice.owners.is_empty())));
    }

    #[test]
    fn no_option_makes_fewer_samples_in_a_slice_but_a_right_may_help() {
        let advice = |reason| {
            let mut slicer = slicer();
            slicer.tally.add(9, 2, Some(Absence::new(reason, "why").mend("do it")));
            slicer.unanswered().expect("most were not looked up").advice()
        };
        assert_eq!(advice(Reason::TooCostly), None);
        assert_eq!(advice(Reason::NotPermitted).as_deref(), Some("do it"));
    }

    #[test]
    fn late_look_ups_are_left_out_if_most_were_in_time() {
        let of = |owner, samples, faults| OwnerFaults { owner, samples, faults };
        let sample = |late, owner| Sample { thread: 0, time_ns: 0, late, owner: Some(owner) };
        let (soon, late) = (sample(false, Owner::MappedBlock), sample(true, Owner::Heap));
        let divided =
            |faults: Vec<Counted>, samples: &[Sample]| by_owner(&faults, &in_time(samples.to_vec()), 0.0);
        let one = |samples: &[Sample]| divided(vec![counted(1, 1_000.0, samples.len() as u64)], samples);
        assert_eq!(one(&[soon, soon, late]), [of(Owner::MappedBlock, 2, 1_000)]);
        // The near twin: most were late.
        assert_eq!(one(&[soon, late, late, late]), [of(Owner::Heap, 3, 750), of(Owner::MappedBlock, 1, 250)]);
        // Nothing is in time for the faults of the second thread.
        let two =
            divided(vec![counted(1, 100.0, 1), counted(1, 50.0, 1)], &[soon, Sample { thread: 1, ..late }]);
        assert_eq!(two, [of(Owner::MappedBlock, 1, 100), of(Owner::Unknown, 0, 50)]);
    }

    #[test]
    fn a_late_look_up_counts_for_the_memory_that_its_thread_touched_then() {
        let at = |thread, time_ns, late, owner| Sample { thread, time_ns, late, owner: Some(owner) };
        let heap = |time_ns| at(0, time_ns, false, Owner::Heap);
        let late = |time_ns| at(0, time_ns, true, Owner::Unmapped);
        // Four faults far apart, and four at once, of which one was looked up in time. The other thread touches something else.
        let burst = at(0, 900, false, Owner::MappedBlock);
        let other = at(1, 902, false, Owner::Stack);
        let samples =
            [heap(100), heap(300), heap(500), heap(700), burst, late(901), late(902), other, late(903)];
        let stands_for = |samples: &[Sample]| -> Vec<(u64, Owner, u64)> {
            let of = |(sample, number): (Sample, u64)| Some((sample.time_ns, sample.owner?, number));
            in_time(samples.to_vec()).into_iter().filter_map(of).collect()
        };
        assert_eq!(
            stands_for(&samples),
            [
                (100, Owner::Heap, 1),
                (300, Owner::Heap, 1),
                (500, Owner::Heap, 1),
                (700, Owner::Heap, 1),
                (900, Owner::MappedBlock, 4),
                (902, Owner::Stack, 1)
            ]
        );
        // The near twin: a late one between two others.
        assert_eq!(
            stands_for(&[heap(100), late(550), heap(700)]),
            [(100, Owner::Heap, 1), (700, Owner::Heap, 2)]
        );
        assert!(stands_for(&[]).is_empty());
    }

    /// Samples by thread and owner, in time.
    fn samples(of: &[(usize, Owner)]) -> Vec<(Sample, u64)> {
        let sample = |&(thread, owner)| Sample { thread, time_ns: 0, late: false, owner: Some(owner) };
        of.iter().map(|one| (sample(one), 1)).collect()
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
        let several = samples(&[(0, Owner::Heap), (1, Owner::Stack), (0, Owner::Heap), (0, Owner::Unmapped)]);
        assert_eq!(
            by_owner(&faults, &several, 5.0),
            [
                of(Owner::Heap, 2, 2_000),
                of(Owner::Stack, 1, 10),
                of(Owner::Unmapped, 1, 1_000),
                of(Owner::Unknown, 0, 45)
            ]
        );
        assert!(by_owner(&[counted(1, 0.0, 0)], &[], 0.0).is_empty());
        let file = samples(&[(0, Owner::File)]);
        assert_eq!(by_owner(&[counted(1, 1e300, 1)], &file, 0.0), [of(Owner::File, 1, u32::MAX)]);
    }

    #[test]
    fn faults_whose_samples_have_no_answer_are_unknown() {
        let of = |owner, samples, faults| OwnerFaults { owner, samples, faults };
        // Of ten samples, four were looked up: the others do not count for their owners.
        let looked_up = samples(&[(0, Owner::Heap), (0, Owner::Heap), (0, Owner::Heap), (0, Owner::File)]);
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
}
