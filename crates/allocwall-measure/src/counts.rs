//! Counts how often the target maps, unmaps and advises memory: in short slices of the window, or during all
//! of it if the cost doesn't matter.
//!
//! While a system-call tracepoint is open, every system call of the machine takes the slow entry path
//! (SYSCALL_WORK_SYSCALL_TRACEPOINT, include/linux/thread_info.h). So by default it is open only for a small
//! part of the window.

use allocwall_host::perf::EventCounter;
use allocwall_host::proc::ProcFs;
use allocwall_host::tracefs;
use allocwall_host::worker::Worker;
use allocwall_model::catalogue::syscalls::MapCall;
use allocwall_model::recording::{EventCount, Probe, ProbeName, ProbeState};
use allocwall_model::units::{Absence, Measured, Reason};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Where the slices start, as fractions of the window.
const SLICES: [f64; 3] = [0.15, 0.5, 0.8];
/// All slices together take at most a tenth of the window, and one slice at most this.
const SLICE: Duration = Duration::from_millis(200);
/// There is one event per thread and call. Further threads are not counted, and their calls are not
/// estimated.
const THREADS_LIMIT: usize = 128;

type Outcome = Measured<(Vec<EventCount>, ProbeState)>;

/// A call, how often it was counted so far, and for how long.
struct Tally {
    name: &'static str,
    event_id: u64,
    count: u64,
    over: Duration,
}

pub struct Counting {
    /// Dropped to stop the counting: until then the thread sleeps without waking up in between.
    stop: Sender<()>,
    /// The current processes of the target. A slice counts those that run when it starts.
    pids: Arc<Mutex<Vec<i32>>>,
    thread: Worker<Outcome>,
}

/// Counts in a separate thread: closing a tracepoint waits for a grace period of the kernel.
pub fn start(proc: &ProcFs, pids: &[i32], window: Duration, throughout: bool) -> Counting {
    let (stop, stopped) = channel();
    let pids = Arc::new(Mutex::new(pids.to_vec()));
    let (proc, shared) = (proc.clone(), pids.clone());
    let thread =
        Worker::start("counts map calls", move || count(&proc, &shared, window, throughout, &stopped));
    Counting { stop, pids, thread }
}

impl Counting {
    /// Updates the list of processes during the window.
    pub fn follow(&self, pids: &[i32]) {
        let mut shared = self.pids.lock().unwrap_or_else(PoisonError::into_inner);
        shared.clear();
        shared.extend_from_slice(pids);
    }

    pub fn finish(self) -> (Vec<EventCount>, Probe) {
        drop(self.stop);
        let absent = |absence| (Vec::new(), ProbeState::Absent(absence));
        let (counts, state) = self.thread.finish().and_then(|outcome| outcome).unwrap_or_else(absent);
        (counts, Probe::new(ProbeName::MapCalls, state))
    }
}

fn count(
    proc: &ProcFs,
    pids: &Mutex<Vec<i32>>,
    window: Duration,
    throughout: bool,
    stop: &Receiver<()>,
) -> Outcome {
    if !proc.is_live() {
        return Err(Absence::new(Reason::NotApplicable, "a copy of /proc makes no system calls"));
    }
    let mut tallies = Vec::new();
    for name in MapCall::ALL.map(MapCall::name) {
        let event_id = tracefs::event_id("syscalls", &format!("sys_enter_{name}"))?;
        tallies.push(Tally { name, event_id, count: 0, over: Duration::ZERO });
    }
    let begun = Instant::now();
    let (begins, slice) = match throughout {
        true => (&[0.0][..], window),
        false => (&SLICES[..], SLICE.min(window.mul_f64(0.1 / SLICES.len() as f64))),
    };
    let mut partial = None;
    for part in begins {
        if !sleep(begun + window.mul_f64(*part), stop) {
            break;
        }
        let now = pids.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let tids = threads(proc, &now, &mut partial);
        // Without threads there is no count, not a count of zero: threads that could not be listed may have
        // called.
        if !tids.is_empty() {
            count_slice(&mut tallies, &tids, slice, stop, &mut partial)?;
        }
    }
    if tallies.iter().all(|tally| tally.over.is_zero()) {
        return Err(partial.unwrap_or_else(|| {
            Absence::new(Reason::TooLittle, "the window closed before map calls were counted")
        }));
    }
    let counts = tallies.into_iter().map(|tally| EventCount {
        name: tally.name.to_owned(),
        count: tally.count,
        over_ns: tally.over.as_nanos() as u64,
    });
    Ok((counts.collect(), partial.map_or(ProbeState::Measured, ProbeState::Partial)))
}

/// The threads to count. `partial` is why some are left out.
fn threads(proc: &ProcFs, pids: &[i32], partial: &mut Option<Absence>) -> Vec<i32> {
    let mut tids = Vec::new();
    for &pid in pids {
        match proc.threads(pid) {
            Ok(threads) => tids.extend(threads),
            Err(absence) if absence.is_gone() => {}
            Err(absence) => _ = partial.get_or_insert(lower_bounds(&absence)),
        }
    }
    if tids.len() > THREADS_LIMIT {
        *partial = Some(Absence::new(
            Reason::TooCostly,
            format!("counted on {THREADS_LIMIT} of {} threads: the figures are lower bounds", tids.len()),
        ));
        tids.truncate(THREADS_LIMIT);
    }
    tids
}

fn count_slice(
    tallies: &mut [Tally],
    tids: &[i32],
    slice: Duration,
    stop: &Receiver<()>,
    partial: &mut Option<Absence>,
) -> Measured<()> {
    let mut open = Vec::new();
    for tally in tallies {
        let counter = EventCounter::open(tally.event_id, tids)?;
        if let Some(missed) = &counter.missed {
            partial.get_or_insert(lower_bounds(missed));
        }
        open.push((tally, Instant::now(), counter));
    }
    sleep(Instant::now() + slice, stop);
    for (tally, since, mut counter) in open {
        let (sum, unread) = counter.total();
        if unread > 0 {
            partial.get_or_insert(Absence::new(
                Reason::Vanished,
                format!("the counters of {unread} threads were not readable: the figures are lower bounds"),
            ));
        }
        tally.count += sum;
        tally.over += since.elapsed();
    }
    Ok(())
}

/// Adds to the reason that the figures are lower bounds.
fn lower_bounds(missed: &Absence) -> Absence {
    let mut absence = missed.clone();
    absence.detail += "; some threads were not counted: the figures are lower bounds";
    absence
}

/// False if the counting must stop.
fn sleep(until: Instant, stop: &Receiver<()>) -> bool {
    let left = until.saturating_duration_since(Instant::now());
    stop.recv_timeout(left) == Err(RecvTimeoutError::Timeout)
}
