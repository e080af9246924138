//! Counts in short slices of the window, or during all of it if the cost doesn't matter: how often the target maps,
//! unmaps and advises memory, and the events of its processor.
//!
//! While a system-call tracepoint is open, every system call of the machine takes the slow entry path
//! (SYSCALL_WORK_SYSCALL_TRACEPOINT, include/linux/thread_info.h). While hardware events are open, every switch between
//! threads of the target saves and loads their counters: 1 µs or more, and several times as much in a virtual machine.
//! So by default both are open only for a small part of the window, and a slice of hardware events is shorter, or left
//! out, if the target's threads switch very often.

use allocwall_host::clock;
use allocwall_host::hardware::{self, Encoding, Processor};
use allocwall_host::limits;
use allocwall_host::perf::EventCounter;
use allocwall_host::proc::{ProcFs, SchedStat};
use allocwall_host::tracefs;
use allocwall_host::worker::Worker;
use allocwall_model::catalogue::syscalls::MapCall;
use allocwall_model::recording::{
    EventCount, HardwareCount, HardwareCounts, HardwareEvent, HardwareSlice, HardwareSlices, HostFacts,
    Probe, ProbeName, ProbeState,
};
use allocwall_model::stats::random::Random;
use allocwall_model::units::{Absence, Measured, Reason, thousands};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Where the slices start, as fractions of the window. No two of them overlap: the slow entry path of system calls
/// would be in the cycles.
const CALLS_AT: [f64; 3] = [0.15, 0.5, 0.8];
/// There are more of these, because the interval of a figure comes from the differences between slices.
const HARDWARE_AT: [f64; 6] = [0.05, 0.22, 0.38, 0.58, 0.70, 0.90];
/// All slices of one kind together take at most a tenth of the window, and one slice at most this.
const SLICE: Duration = Duration::from_millis(200);
/// There is one event per thread and call. If there are more threads, each slice counts others, chosen at random. The
/// calls of those that are left out are not estimated.
const THREADS_LIMIT: usize = 128;
/// The most processes whose CPU time is read for a slice. They stand for the others.
const PROCESSES: usize = 256;
/// How long the switches between threads are counted before a slice of hardware events, at most.
const PREVIEW: Duration = Duration::from_millis(20);
/// What one event adds to a switch between threads, on bare metal and in a virtual machine, where writing to a register of
/// the counters may leave the machine. Our estimates.
const SWITCH_NS: f64 = 250.0;
const SWITCH_NS_VIRTUAL: f64 = 1_500.0;
/// The part of the target's CPU time that a slice of full length may lose to such switches: 1 % of the window's. If it
/// would lose more, it is shorter, but it has at least this part of its length: otherwise it is left out.
const LOST_MOST: f64 = 0.1;
const LENGTH_LEAST: f64 = 0.2;

type Outcome<T> = Measured<(T, ProbeState)>;

/// A call, how often it was counted so far, and for how long.
struct Tally {
    name: &'static str,
    event_id: u64,
    count: u64,
    over: Duration,
}

/// A hardware event, and its readings so far.
struct Hardware {
    event: HardwareEvent,
    encoding: Measured<Encoding>,
    slices: Vec<HardwareSlice>,
}

struct HardwareEvents {
    /// They are counted in kernel mode too.
    kernel: bool,
    /// What one of them adds to a switch between threads.
    switch_ns: f64,
    events: Vec<Hardware>,
}

impl HardwareEvents {
    /// How many are counted.
    fn usable(&self) -> usize {
        self.events.iter().filter(|event| event.encoding.is_ok()).count()
    }
}

pub struct Counting {
    /// Dropped to stop the counting: until then the thread sleeps without waking up in between.
    stop: Sender<()>,
    /// The current processes of the target. A slice counts those that run when it starts.
    pids: Arc<Mutex<Vec<i32>>>,
    thread: Worker<(Outcome<Vec<EventCount>>, Outcome<HardwareCounts>)>,
}

/// What was counted, with the state of each source.
pub struct Counted {
    pub calls: Vec<EventCount>,
    pub calls_probe: Probe,
    pub hardware: Measured<HardwareCounts>,
    pub hardware_probe: Probe,
}

/// Counts in a separate thread: closing a tracepoint waits for a grace period of the kernel.
pub fn start(proc: &ProcFs, host: &HostFacts, pids: &[i32], window: Duration, throughout: bool) -> Counting {
    let (stop, stopped) = channel();
    let pids = Arc::new(Mutex::new(pids.to_vec()));
    let (proc, shared) = (proc.clone(), pids.clone());
    let (pmu, nodes) = (host.pmu.clone(), host.numa_nodes);
    let switch_ns = if host.hypervisor.is_some() { SWITCH_NS_VIRTUAL } else { SWITCH_NS };
    let thread = Worker::start("counts events", move || {
        let calls = Source::new(tallies(&proc));
        let hardware = Source::new(hardware_events(&proc, &pmu, nodes, switch_ns));
        count(&proc, &shared, calls, hardware, &slices(window, throughout), window, &stopped)
    });
    Counting { stop, pids, thread }
}

impl Counting {
    /// Updates the list of processes during the window.
    pub fn follow(&self, pids: &[i32]) {
        let mut shared = self.pids.lock().unwrap_or_else(PoisonError::into_inner);
        shared.clear();
        shared.extend_from_slice(pids);
    }

    pub fn finish(self) -> Counted {
        drop(self.stop);
        let failed = |absence: Absence| (Err(absence.clone()), Err(absence));
        let (calls, hardware) = self.thread.finish().unwrap_or_else(failed);
        let (calls, calls_state) = calls.unwrap_or_else(|absence| (Vec::new(), ProbeState::Absent(absence)));
        let (hardware, hardware_state) = match hardware {
            Ok((counts, state)) => (Ok(counts), state),
            Err(absence) => (Err(absence.clone()), ProbeState::Absent(absence)),
        };
        Counted {
            calls,
            calls_probe: Probe::new(ProbeName::MapCalls, calls_state),
            hardware,
            hardware_probe: Probe::new(ProbeName::Pmu, hardware_state),
        }
    }
}

/// A part of the window in which something is counted.
#[derive(Debug)]
struct Slice {
    /// Where it starts, as a fraction of the window.
    at: f64,
    long: Duration,
    calls: bool,
    hardware: bool,
}

fn slices(window: Duration, throughout: bool) -> Vec<Slice> {
    if throughout {
        return vec![Slice { at: 0.0, long: window, calls: true, hardware: true }];
    }
    let long = |slices: usize| SLICE.min(window.mul_f64(0.1 / slices as f64));
    let (calls_long, hardware_long) = (long(CALLS_AT.len()), long(HARDWARE_AT.len()));
    let calls = CALLS_AT.map(|at| Slice { at, long: calls_long, calls: true, hardware: false });
    let hardware = HARDWARE_AT.map(|at| Slice { at, long: hardware_long, calls: false, hardware: true });
    let mut slices: Vec<Slice> = calls.into_iter().chain(hardware).collect();
    slices.sort_by(|a, b| a.at.total_cmp(&b.at));
    slices
}

/// What is counted in some slices, and why a part of it was not.
struct Source<T> {
    of: Measured<T>,
    partial: Option<Absence>,
}

impl<T> Source<T> {
    fn new(of: Measured<T>) -> Source<T> {
        Source { of, partial: None }
    }

    fn miss(&mut self, missed: Option<Absence>) {
        self.partial = self.partial.take().or(missed);
    }
}

fn state(partial: Option<Absence>) -> ProbeState {
    partial.map_or(ProbeState::Measured, ProbeState::Partial)
}

fn tallies(proc: &ProcFs) -> Measured<Vec<Tally>> {
    if !proc.is_live() {
        return Err(Absence::new(Reason::NotApplicable, "a copy of /proc makes no system calls"));
    }
    let tally = |name: &'static str| -> Measured<Tally> {
        let event_id = tracefs::event_id("syscalls", &format!("sys_enter_{name}"))?;
        Ok(Tally { name, event_id, count: 0, over: Duration::ZERO })
    };
    MapCall::ALL.map(MapCall::name).into_iter().map(tally).collect()
}

/// Each event is tried by itself.
fn hardware_events(
    proc: &ProcFs,
    pmu: &Measured<()>,
    nodes: u32,
    switch_ns: f64,
) -> Measured<HardwareEvents> {
    if !proc.is_live() {
        return Err(Absence::new(Reason::NotApplicable, "a copy of /proc has no hardware counters"));
    }
    pmu.clone()?;
    let processor = Processor::this();
    let tried = |event| -> Measured<Encoding> {
        let encoding = hardware::encoding(event, processor.as_ref())?;
        hardware::try_open(&encoding).map_err(|error| hardware::refusal(&error))?;
        Ok(encoding)
    };
    let events = needed(nodes, HardwareEvent::ALL.map(|event| (event, tried(event))));
    let usable = events.iter().find_map(|event| event.encoding.as_ref().ok());
    // Once for all slices: their counts are added up.
    let kernel = usable.map_or(Ok(false), hardware::counts_kernel)?;
    Ok(HardwareEvents { kernel, switch_ns, events })
}

/// Leaves out events that nobody reads: a processor has few counters, and each event makes a switch between threads
/// more expensive.
fn needed(
    nodes: u32,
    tried: [(HardwareEvent, Measured<Encoding>); HardwareEvent::ALL.len()],
) -> Vec<Hardware> {
    let not_needed = |why: &str| Err(Absence::new(Reason::NotApplicable, why));
    let is_known =
        |wanted: HardwareEvent| tried.iter().any(|(event, encoding)| *event == wanted && encoding.is_ok());
    let llc_is_known = is_known(HardwareEvent::LlcLoadMisses);
    let needed = tried.into_iter().map(|(event, encoding)| Hardware {
        event,
        encoding: match event {
            HardwareEvent::NodeLoads | HardwareEvent::NodeLoadMisses if nodes <= 1 => {
                not_needed("one NUMA node")
            }
            HardwareEvent::CacheMisses if llc_is_known => not_needed("LLC-load-misses are counted"),
            _ => encoding,
        },
        slices: Vec::new(),
    });
    needed.collect()
}

fn count(
    proc: &ProcFs,
    pids: &Mutex<Vec<i32>>,
    mut calls: Source<Vec<Tally>>,
    mut hardware: Source<HardwareEvents>,
    slices: &[Slice],
    window: Duration,
    stop: &Receiver<()>,
) -> (Outcome<Vec<EventCount>>, Outcome<HardwareCounts>) {
    let begun = Instant::now();
    let throughout = slices.len() == 1;
    // It only has to be independent of the target.
    let mut random = Random::new(clock::monotonic_ns());
    for slice in slices {
        let mut counted = (slice.calls && calls.of.is_ok(), slice.hardware && hardware.of.is_ok());
        if counted == (false, false) {
            continue;
        }
        if !sleep(begun + window.mul_f64(slice.at), stop) {
            break;
        }
        let now = pids.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let threads = Threads::list(proc, now, &mut random);
        if counted.0 {
            calls.miss(threads.left_out.as_ref().map(lower_bounds));
        }
        if counted.1 {
            hardware.miss(threads.left_out.as_ref().map(other_threads));
        }
        // Without threads there is no count, not a count of zero: threads that could not be listed may have
        // called.
        if threads.chosen.is_empty() {
            continue;
        }
        let mut long = slice.long;
        if let Ok(events) = &hardware.of
            && counted.1
            && !throughout
        {
            match threads.load(long.min(PREVIEW), stop).and_then(|load| affordable(long, load, events)) {
                Ok(shorter) => long = shorter,
                Err(absence) => {
                    counted.1 = false;
                    hardware.miss(Some(absence));
                }
            }
        }
        if counted != (false, false) {
            count_slice(&mut calls, &mut hardware, counted, &threads, long, stop);
        }
    }
    (calls_counted(calls), hardware_counted(hardware, throughout))
}

fn calls_counted(Source { of, partial }: Source<Vec<Tally>>) -> Outcome<Vec<EventCount>> {
    let tallies = of?;
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
    Ok((counts.collect(), state(partial)))
}

fn hardware_counted(
    Source { of, partial }: Source<HardwareEvents>,
    throughout: bool,
) -> Outcome<HardwareCounts> {
    let HardwareEvents { kernel, events, .. } = of?;
    if events.iter().all(|event| event.slices.is_empty()) {
        return Err(partial.unwrap_or_else(|| {
            Absence::new(Reason::TooLittle, "the window closed before hardware events were counted")
        }));
    }
    let counted = |Hardware { event, encoding, slices }| HardwareCount {
        event,
        counted: encoding.map(|_| HardwareSlices { slices }),
    };
    let events = events.into_iter().map(counted).collect();
    Ok((HardwareCounts { kernel, throughout, events }, state(partial)))
}

/// The target when a slice starts.
struct Threads<'a> {
    proc: &'a ProcFs,
    /// In random order.
    pids: Vec<i32>,
    /// The threads to count, with their processes, in random order.
    chosen: Vec<(i32, i32)>,
    /// Why some are not among them.
    left_out: Option<Absence>,
}

/// What threads did in some time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Load {
    over_ns: u64,
    cpu_ns: u64,
    /// How often one of them got a CPU.
    switches: u64,
}

impl<'a> Threads<'a> {
    fn list(proc: &'a ProcFs, mut pids: Vec<i32>, random: &mut Random) -> Threads<'a> {
        let (mut chosen, mut left_out) = proc.threads_of(&pids);
        random.shuffle(&mut pids);
        random.shuffle(&mut chosen);
        if chosen.len() > THREADS_LIMIT {
            left_out = Some(too_many(THREADS_LIMIT, chosen.len()));
            chosen.truncate(THREADS_LIMIT);
        }
        Threads { proc, pids, chosen, left_out }
    }

    fn tids(&self) -> Vec<i32> {
        self.chosen.iter().map(|(_, tid)| *tid).collect()
    }

    /// What the chosen threads do now.
    fn load(&self, over: Duration, stop: &Receiver<()>) -> Measured<Load> {
        let read = || {
            let of_thread = |&(pid, tid): &(i32, i32)| self.proc.thread_schedstat(pid, tid);
            self.chosen.iter().map(of_thread).collect::<Vec<_>>()
        };
        let (before, begun) = (read(), Instant::now());
        sleep(begun + over, stop);
        let over_ns = begun.elapsed().as_nanos() as u64;
        load(over_ns, before.into_iter().zip(read()))
    }

    /// The CPU time of the target's processes so far.
    fn cpu_ns(&self) -> Vec<(i32, u64)> {
        let of_process = |&pid: &i32| {
            // The threads of an unreadable process are not listed either, which is reported.
            let stat = self.proc.process_stat(pid).ok()?;
            let ticks = stat.user_ticks.saturating_add(stat.system_ticks);
            Some((pid, ticks.saturating_mul(self.proc.ns_per_tick())))
        };
        self.pids.iter().take(PROCESSES).filter_map(of_process).collect()
    }
}

/// From readings of threads at the start and at the end.
fn load(
    over_ns: u64,
    readings: impl Iterator<Item = (Measured<SchedStat>, Measured<SchedStat>)>,
) -> Measured<Load> {
    let mut load = Load { over_ns, ..Load::default() };
    let (mut read, mut gone) = (false, None);
    for reading in readings {
        match reading {
            (Ok(before), Ok(after)) => {
                load.cpu_ns += after.cpu_ns.saturating_sub(before.cpu_ns);
                load.switches += after.timeslices.saturating_sub(before.timeslices);
                read = true;
            }
            (Err(absence), _) | (_, Err(absence)) if absence.is_gone() => gone = Some(absence),
            (Err(absence), _) | (_, Err(absence)) => return Err(absence),
        }
    }
    match gone {
        Some(absence) if !read => Err(absence),
        _ => Ok(load),
    }
}

/// How long a slice may be.
///
/// # Errors
/// It would be too short.
fn affordable(long: Duration, load: Load, events: &HardwareEvents) -> Measured<Duration> {
    let lost_ns = load.switches as f64 * events.usable() as f64 * events.switch_ns;
    // A target that hardly runs loses a large part of little.
    let lost = lost_ns / (load.cpu_ns as f64).max(load.over_ns as f64 / 10.0).max(1.0);
    let part = if lost > LOST_MOST { LOST_MOST / lost } else { 1.0 };
    if part < LENGTH_LEAST {
        let a_second = load.switches as f64 * 1e9 / load.over_ns.max(1) as f64;
        let detail = format!(
            "the threads get a CPU {} times a second, and hardware events would make each time more expensive",
            thousands(a_second as u64)
        );
        return Err(Absence::new(Reason::TooCostly, detail));
    }
    Ok(long.mul_f64(part))
}

/// The CPU time of `processes` between two readings of some of them.
fn cpu_between(before: &[(i32, u64)], after: &[(i32, u64)], processes: usize) -> u64 {
    let of_process = |(pid, after): &(i32, u64)| {
        let (_, before) = before.iter().find(|(other, _)| other == pid)?;
        Some(after.saturating_sub(*before))
    };
    let read: u64 = after.iter().filter_map(of_process).fold(0, u64::saturating_add);
    (read as f64 * processes as f64 / processes.clamp(1, PROCESSES) as f64) as u64
}

fn too_many(counted: usize, threads: usize) -> Absence {
    Absence::new(Reason::TooCostly, format!("counted on {counted} of {threads} threads"))
}

fn count_slice(
    calls: &mut Source<Vec<Tally>>,
    hardware: &mut Source<HardwareEvents>,
    counted: (bool, bool),
    threads: &Threads,
    long: Duration,
    stop: &Receiver<()>,
) {
    let tids = threads.tids();
    let mut open_calls: Vec<(Instant, EventCounter)> = Vec::new();
    if counted.0
        && let Ok(tallies) = &calls.of
    {
        let open = |tally: &Tally| -> Measured<(Instant, EventCounter)> {
            let counter = EventCounter::tracepoint(tally.event_id, &tids)?;
            Ok((Instant::now(), counter))
        };
        match tallies.iter().map(open).collect::<Measured<Vec<_>>>() {
            Ok(opened) => open_calls = opened,
            Err(absence) => calls.of = Err(absence),
        }
    }
    let mut open_hardware: Vec<Option<EventCounter>> = Vec::new();
    // Only needed if some threads have no counter.
    let mut cpu_before = None;
    if counted.1
        && let Ok(events) = &hardware.of
    {
        let (opened, missed) = open_events(events, &tids);
        open_hardware = opened;
        if missed.is_some() || threads.left_out.is_some() {
            cpu_before = Some(threads.cpu_ns());
        }
        hardware.miss(missed);
    }
    sleep(Instant::now() + long, stop);
    let cpu_ns = cpu_before.map_or(0, |before| cpu_between(&before, &threads.cpu_ns(), threads.pids.len()));
    // If the target's events can't be opened, there is no slice rather than a slice of zeros.
    if let Ok(events) = &mut hardware.of
        && open_hardware.iter().any(Option::is_some)
    {
        for (event, counter) in events.events.iter_mut().zip(&mut open_hardware) {
            // A counter that can't be read belongs to a thread that has ended.
            let read = counter.as_mut().map(|counter| with_others(counter.total().0, cpu_ns));
            let read = read.unwrap_or_default();
            event.slices.extend(event.encoding.is_ok().then_some(read));
        }
    }
    drop(open_hardware);
    let mut missed = None;
    if let Ok(tallies) = &mut calls.of {
        for (tally, (since, mut counter)) in tallies.iter_mut().zip(open_calls) {
            missed = missed.or(counter.missed.as_ref().map(lower_bounds));
            let (sum, unread) = counter.total();
            if unread > 0 {
                missed.get_or_insert(Absence::new(
                    Reason::Vanished,
                    format!(
                        "the counters of {unread} threads were not readable: the figures are lower bounds"
                    ),
                ));
            }
            tally.count += sum.count;
            tally.over += since.elapsed();
        }
    }
    calls.miss(missed);
}

/// Adds the time of threads that had no counter: `cpu_ns` is that of all of them, 0 if each had one.
fn with_others(read: HardwareSlice, cpu_ns: u64) -> HardwareSlice {
    HardwareSlice { enabled_ns: read.enabled_ns.max(cpu_ns), ..read }
}

/// Opens each event on these threads, as far as the descriptors suffice, and returns why some are not counted.
fn open_events(of: &HardwareEvents, tids: &[i32]) -> (Vec<Option<EventCounter>>, Option<Absence>) {
    let affordable = limits::descriptors_to_spare() / of.usable().max(1);
    let mut missed = (affordable < tids.len()).then(|| other_threads(&too_many(affordable, tids.len())));
    let tids = &tids[..affordable.min(tids.len())];
    let open = |event: &Hardware| {
        let counter = match EventCounter::hardware(event.encoding.as_ref().ok()?, tids, of.kernel) {
            Ok(counter) => counter,
            Err(absence) => {
                missed.get_or_insert(absence);
                return None;
            }
        };
        missed = missed.take().or(counter.missed.as_ref().map(other_threads));
        Some(counter)
    };
    let opened = of.events.iter().map(open).collect();
    (opened, missed)
}

/// Adds to the reason that the figures are lower bounds.
fn lower_bounds(missed: &Absence) -> Absence {
    let mut absence = missed.clone();
    absence.detail += "; some threads were not counted: the figures are lower bounds";
    absence
}

/// Adds to the reason that the figures are of a part of the threads.
fn other_threads(missed: &Absence) -> Absence {
    let mut absence = missed.clone();
    absence.detail += "; the hardware events of the other threads were not counted";
    absence
}

/// False if the counting must stop.
fn sleep(until: Instant, stop: &Receiver<()>) -> bool {
    let left = until.saturating_duration_since(Instant::now());
    stop.recv_timeout(left) == Err(RecvTimeoutError::Timeout)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hardware_of(events: Vec<Hardware>) -> HardwareEvents {
        HardwareEvents { kernel: true, switch_ns: SWITCH_NS, events }
    }

    #[test]
    fn each_slice_counts_other_threads_if_there_are_too_many() {
        let root = tempfile::tempdir().unwrap();
        let process = |pid: i32, threads: i32| {
            for tid in pid..pid + threads {
                std::fs::create_dir_all(root.path().join(format!("{pid}/task/{tid}"))).unwrap();
            }
        };
        process(1_000, 100);
        process(2_000, 500);
        let proc = ProcFs::at(root.path());
        let list = |pids: Vec<i32>, seed| Threads::list(&proc, pids, &mut Random::new(seed));
        let (one, two) = (list(vec![1_000, 2_000], 1), list(vec![1_000, 2_000], 2));
        for threads in [&one, &two] {
            assert_eq!(threads.chosen.len(), THREADS_LIMIT);
            let why = threads.left_out.as_ref().map(|absence| absence.detail.as_str());
            assert_eq!(why, Some("counted on 128 of 600 threads"));
            // The expected number is 21.
            let first = threads.chosen.iter().filter(|(pid, _)| *pid == 1_000).count();
            assert!((5..45).contains(&first), "{first}");
        }
        assert_ne!(one.tids(), two.tids());
        // The near twin: all of them are counted.
        let mut few = list(vec![1_000], 1);
        few.chosen.sort_unstable();
        assert_eq!(few.tids(), (1_000..1_100).collect::<Vec<_>>());
        assert_eq!(few.left_out, None);
    }

    #[test]
    fn slices_are_shorter_or_left_out_if_threads_switch_often() {
        let event = |event| Hardware { event, encoding: hardware::encoding(event, None), slices: vec![] };
        // Without an encoding, an event costs nothing.
        let events = [HardwareEvent::Cycles, HardwareEvent::Instructions, HardwareEvent::DtlbWalkActive];
        let events = hardware_of(events.map(event).into());
        assert_eq!(events.usable(), 2);
        let long = Duration::from_millis(200);
        // Of 20 ms of CPU time. A switch costs 500 ns.
        let slice = |switches| {
            let load = Load { over_ns: 20_000_000, cpu_ns: 20_000_000, switches };
            affordable(long, load, &events).map_err(|absence| absence.reason)
        };
        assert_eq!([0, 1_000, 4_000].map(slice), [Ok(long); 3]);
        assert_eq!(slice(8_000).map(|short| short.as_millis()), Ok(100));
        assert_eq!(slice(1_000_000), Err(Reason::TooCostly));
        // A target that hardly runs: the same switches, in 20 µs of CPU time.
        let idle =
            |switches| affordable(long, Load { cpu_ns: 20_000, over_ns: 20_000_000, switches }, &events);
        assert_eq!(idle(100), Ok(long));
        assert!(idle(4_000).is_err());
    }

    #[test]
    fn the_load_is_that_of_threads_that_are_still_there() {
        let at = |cpu_ns, timeslices| -> Measured<SchedStat> {
            Ok(SchedStat { cpu_ns, run_delay_ns: 0, timeslices })
        };
        let failed = |reason| -> Measured<SchedStat> { Err(Absence::new(reason, "no")) };
        let gone = || failed(Reason::Vanished);
        let of = |readings: Vec<(Measured<SchedStat>, Measured<SchedStat>)>| {
            load(9, readings.into_iter()).map_err(|absence| absence.reason)
        };
        let sum = Load { over_ns: 9, cpu_ns: 12, switches: 3 };
        let ran = || [(at(1, 1), at(11, 2)), (at(0, 0), at(2, 2))];
        assert_eq!(of(ran().to_vec()), Ok(sum));
        assert_eq!(of([vec![(at(5, 5), gone())], ran().to_vec()].concat()), Ok(sum));
        // Without any reading, the load is unknown rather than 0.
        assert_eq!(of(vec![(gone(), gone())]), Err(Reason::Vanished));
        assert_eq!(
            of([ran().to_vec(), vec![(at(0, 0), failed(Reason::Unparsable))]].concat()),
            Err(Reason::Unparsable)
        );
    }

    #[test]
    fn threads_without_a_counter_widen_the_interval() {
        let before: Vec<(i32, u64)> = (0..300).map(|pid| (pid, 5)).collect();
        let after: Vec<(i32, u64)> = (0..300).map(|pid| (pid, 7)).collect();
        // One of two has ended, and one is new.
        assert_eq!(cpu_between(&before[..2], &[after[0], (400, 9)], 2), 2);
        // The processes that were read stand for the others.
        assert_eq!(
            cpu_between(&before[..PROCESSES], &after[..PROCESSES], 2 * PROCESSES),
            4 * PROCESSES as u64
        );
        assert_eq!(cpu_between(&[], &[], 0), 0);
        let counted = |all_ns| {
            let slice = HardwareSlice { count: 50, enabled_ns: 100, running_ns: 100 };
            let slices = vec![with_others(slice, all_ns); 4];
            let cycles = hardware::encoding(HardwareEvent::Cycles, None);
            let cycles = Hardware { event: HardwareEvent::Cycles, encoding: cycles, slices };
            let (counts, _) = hardware_counted(Source::new(Ok(hardware_of(vec![cycles]))), false).unwrap();
            let interval = counts.per_cpu_ns(HardwareEvent::Cycles).unwrap();
            [interval.low, interval.point, interval.high]
        };
        assert_eq!(counted(200), [0.375, 0.5, 0.625]);
        // The near twins: each thread has a counter, or the clock of processes is coarse.
        assert_eq!([0, 90].map(counted), [[0.5; 3]; 2]);
    }

    #[test]
    fn slices_do_not_overlap_and_take_a_tenth_of_the_window_at_most() {
        for seconds in [0.5, 3.0, 15.0, 3600.0] {
            let window = Duration::from_secs_f64(seconds);
            let slices = slices(window, false);
            for pair in slices.windows(2) {
                // Before hardware events, the switches between threads are counted.
                let preview = if pair[0].hardware { pair[0].long.min(PREVIEW) } else { Duration::ZERO };
                let end = window.mul_f64(pair[0].at) + preview + pair[0].long;
                assert!(end <= window.mul_f64(pair[1].at), "{seconds} s: {pair:?}");
            }
            let kinds: [fn(&&Slice) -> bool; 2] = [|slice| slice.calls, |slice| slice.hardware];
            for kind in kinds {
                let sum: Duration = slices.iter().filter(kind).map(|slice| slice.long).sum();
                assert!(!sum.is_zero() && sum <= window.mul_f64(0.101), "{seconds} s: {sum:?}");
            }
        }
        let whole = slices(Duration::from_secs(1), true);
        assert!(matches!(whole[..], [Slice { calls: true, hardware: true, .. }]));
    }

    #[test]
    fn events_that_nobody_reads_take_no_counter() {
        let not_offered = || Err(Absence::new(Reason::NotSupported, "no such event"));
        let encoded = |event| hardware::encoding(event, None);
        let names = |nodes, tried| {
            let needed = needed(nodes, tried).into_iter().filter(|event| event.encoding.is_ok());
            needed.map(|event| event.event.name()).collect::<Vec<_>>()
        };
        let all = || HardwareEvent::ALL.map(|event| (event, encoded(event)));
        let usual = ["cycles", "instructions", "dTLB-load-misses"];
        assert_eq!(names(1, all()), [&usual[..], &["LLC-load-misses"]].concat());
        let remote = ["LLC-load-misses", "node-loads", "node-load-misses"];
        assert_eq!(names(2, all()), [&usual[..], &remote].concat());
        let without_llc = HardwareEvent::ALL.map(|event| match event {
            HardwareEvent::LlcLoadMisses => (event, not_offered()),
            _ => (event, encoded(event)),
        });
        assert_eq!(names(1, without_llc), [&usual[..], &["cache-misses"]].concat());
    }

    #[test]
    fn without_hardware_counters_the_reason_is_the_machine_s() {
        let refused = Absence::new(Reason::NotSupported, "no PMU");
        let events = hardware_events(&ProcFs::live(), &Err(refused.clone()), 1, SWITCH_NS);
        assert_eq!(events.err(), Some(refused.clone()));
        let counted = hardware_counted(Source::new(Err(refused.clone())), false);
        assert_eq!(counted.err(), Some(refused));
        let nothing = hardware_counted(Source::new(Ok(hardware_of(Vec::new()))), false);
        assert_eq!(nothing.err().map(|absence| absence.reason), Some(Reason::TooLittle));
    }

    #[test]
    fn an_event_without_an_encoding_keeps_its_reason() {
        let refused = Absence::new(Reason::NotSupported, "no such event");
        let slice = HardwareSlice { count: 5, enabled_ns: 2, running_ns: 2 };
        let event = |event, encoding, slices| Hardware { event, encoding, slices };
        let cycles = hardware::encoding(HardwareEvent::Cycles, None);
        let source = Source::new(Ok(hardware_of(vec![
            event(HardwareEvent::Cycles, cycles, vec![slice; 3]),
            event(HardwareEvent::NodeLoads, Err(refused.clone()), vec![]),
        ])));
        let (counts, state) = hardware_counted(source, false).unwrap();
        assert!(counts.kernel);
        assert_eq!(state, ProbeState::Measured);
        assert_eq!(counts.of(HardwareEvent::Cycles).unwrap().total().count, 15);
        assert_eq!(counts.of(HardwareEvent::NodeLoads), Err(refused));
    }
}
