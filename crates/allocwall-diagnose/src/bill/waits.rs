//! The lines of waiting time, in thread-seconds.

use super::classify::Classifier;
use super::sites::{SiteSample, sites};
use super::{Site, WaitLine, absence, block_of, blocks, first_and_last, increase};
use allocwall_model::catalogue::cost::WaitClass;
use allocwall_model::recording::{
    CgroupTick, HostTick, ProbeName, ProbeState, Process, Recording, Runtime, ThreadTimes, WaitSample,
};
use allocwall_model::stats;
use allocwall_model::units::{Absence, Interval, Measured, Reason};
use std::collections::{BTreeMap, BTreeSet};

pub fn lines(recording: &Recording, classifier: &Classifier, cpu_s: f64) -> Vec<WaitLine> {
    let classes: Vec<WaitClass> = recording.waits.iter().map(|w| classifier.wait(w)).collect();
    let blocked = BlockedTime::of(recording);
    let throttled = throttled(recording);
    let gil_waiters = gil_waiters(recording);
    WaitClass::ALL
        .into_iter()
        .map(|class| {
            let (thread_s, sites) = match class {
                WaitClass::RunQueue => (run_queue(recording, throttled.as_ref().ok().copied()), vec![]),
                WaitClass::Throttled => (throttled.clone(), vec![]),
                WaitClass::Stolen => (stolen(recording, cpu_s), vec![]),
                _ => (
                    sampled(recording, &blocked, &classes, class),
                    wait_sites(recording, classifier, &blocked, &classes, class),
                ),
            };
            let Unknown { purpose: unknown_purpose, unread, may_be_gil } =
                unknown_waits(recording, classifier, &blocked, &classes, class, &gil_waiters);
            let method = method(class, recording);
            WaitLine { class, thread_s, method, sites, unknown_purpose, unread, may_be_gil }
        })
        .collect()
}

/// The waiting time of each thread is exact: its observed time minus the scheduler's CPU time and run-queue time. The
/// samples of waiting threads only show the purpose of the waits. Samples alone would underestimate short waits: a
/// thread that is woken counts as runnable at once, but on a virtual machine its CPU may need longer to wake up than
/// the wait took.
struct BlockedTime {
    /// Exact waiting time divided by the weight of the samples that saw the thread wait. 1 if the exact time is
    /// unknown, or not known for the whole window.
    scale: BTreeMap<(i32, i32), f64>,
    /// Waiting time of threads that no sample saw waiting, in seconds.
    unseen_s: f64,
}

impl BlockedTime {
    fn of(recording: &Recording) -> BlockedTime {
        let mut sampled: BTreeMap<(i32, i32), u64> = BTreeMap::new();
        for wait in &recording.waits {
            let weight = sampled.entry((wait.pid, wait.tid)).or_default();
            *weight = weight.saturating_add(wait.weight_ns);
        }
        let mut blocked = BlockedTime { scale: BTreeMap::new(), unseen_s: 0.0 };
        if recording.probe_absence(ProbeName::RunDelay).is_some() {
            return blocked;
        }
        for thread in &recording.threads {
            let Some(delay) = thread.run_delay_ns else {
                continue;
            };
            let exact = thread.seen_ns.saturating_sub(thread.cpu_ns).saturating_sub(delay) as f64;
            match sampled.get(&(thread.pid, thread.tid)) {
                Some(&weight) if weight > 0 => {
                    blocked.scale.insert((thread.pid, thread.tid), exact / weight as f64);
                }
                _ => blocked.unseen_s += exact / 1e9,
            }
        }
        blocked
    }

    /// Seconds that one sample stands for.
    fn seconds(&self, wait: &WaitSample) -> f64 {
        self.scale.get(&(wait.pid, wait.tid)).unwrap_or(&1.0) * wait.weight_ns as f64 / 1e9
    }
}

fn sampled(
    recording: &Recording,
    blocked: &BlockedTime,
    classes: &[WaitClass],
    class: WaitClass,
) -> Measured<Interval> {
    // The purpose of waits that no sample saw is unknown: they belong to the line of other waits.
    let unseen = if class == WaitClass::Other { blocked.unseen_s } else { 0.0 };
    if recording.waits.is_empty() {
        return if recording.probe(ProbeName::Waits).is_some_and(|p| p.state == ProbeState::Measured) {
            // Sampled, and no thread slept: with 95 % confidence, less than three samples' worth was missed (rule of
            // three).
            Ok(Interval::new(unseen, unseen, unseen + 3.0 * recording.meta.wait_period_ns as f64 / 1e9))
        } else {
            Err(absence(recording, ProbeName::Waits, "waiting threads were not sampled"))
        };
    }
    let no_reasons = recording.waits.iter().all(|w| w.syscall.is_none() && w.kernel.is_none());
    let needs_a_reason = matches!(
        class,
        WaitClass::AddressSpaceLock | WaitClass::Allocator | WaitClass::ApplicationLock | WaitClass::Gil
    );
    if no_reasons && needs_a_reason {
        return Err(absence(recording, ProbeName::Waits, "what its threads wait for could not be read"));
    }
    let block_count = blocks(recording);
    let mut hits = vec![(0, 0); block_count];
    let (mut of_class, mut total) = (0.0, 0.0);
    for (wait, of) in recording.waits.iter().zip(classes) {
        let block = &mut hits[block_of(wait.t_ns, recording, block_count)];
        block.1 += 1;
        let seconds = blocked.seconds(wait);
        total += seconds;
        if *of == class {
            block.0 += 1;
            of_class += seconds;
        }
    }
    let share = stats::proportion_over_time(&hits);
    // Samples of one thread have equal weight, so the interval of their count is used around the weighted time.
    let low = of_class - (share.point - share.low) * total;
    let high = of_class + (share.high - share.point) * total;
    Ok(Interval::new(low.max(0.0) + unseen, of_class + unseen, high.min(total).max(of_class) + unseen))
}

/// A user stack needs this many frames to show the caller of the futex. The innermost frame is the call itself.
const FRAMES_WITH_CALLER: usize = 2;

/// Parts of a line: see the fields of [`WaitLine`].
#[derive(Default)]
struct Unknown {
    purpose: f64,
    unread: f64,
    may_be_gil: f64,
}

fn unknown_waits(
    recording: &Recording,
    classifier: &Classifier,
    blocked: &BlockedTime,
    classes: &[WaitClass],
    class: WaitClass,
    gil_waiters: &BTreeSet<(i32, i32)>,
) -> Unknown {
    let mut all = 0.0;
    let mut unknown = Unknown::default();
    for (wait, _) in recording.waits.iter().zip(classes).filter(|(_, c)| **c == class) {
        let seconds = blocked.seconds(wait);
        all += seconds;
        if classifier.has_unknown_purpose(wait) {
            unknown.purpose += seconds;
            if classifier.frames(wait.user).len() < FRAMES_WITH_CALLER {
                unknown.unread += seconds;
            }
            if gil_waiters.contains(&(wait.pid, wait.tid)) {
                unknown.may_be_gil += seconds;
            }
        }
    }
    let of_all = |seconds: f64| if all > 0.0 { seconds / all } else { 0.0 };
    Unknown {
        purpose: of_all(unknown.purpose),
        unread: of_all(unknown.unread),
        may_be_gil: of_all(unknown.may_be_gil),
    }
}

/// A thread that waits for Python's GIL also holds it from time to time. Each of 500 threads that share a CPU uses this share.
const GIL_CPU_SHARE: f64 = 0.002;

/// Threads whose futex waits of unknown purpose may be for Python's GIL. Where the address of a process's lock is known, the
/// waits for it are too.
fn gil_waiters(recording: &Recording) -> BTreeSet<(i32, i32)> {
    let located = recording.waits.iter().filter(|wait| wait.python_lock.is_some()).map(|wait| wait.pid);
    let located: BTreeSet<i32> = located.collect();
    let processes = recording.processes.iter().filter(|process| may_have_gil(process));
    let pids: BTreeSet<i32> = processes.map(|process| process.pid).filter(|p| !located.contains(p)).collect();
    let runs = |t: &&ThreadTimes| t.cpu_ns as f64 >= GIL_CPU_SHARE * t.seen_ns as f64;
    let threads = recording.threads.iter().filter(|thread| pids.contains(&thread.pid)).filter(runs);
    threads.map(|thread| (thread.pid, thread.tid)).collect()
}

/// Whether the process may run CPython with its GIL. The free-threaded build has none unless its user, or an extension module,
/// turns it on (docs.python.org/3/howto/free-threading-python.html); only the user's setting can be read.
pub fn may_have_gil(process: &Process) -> bool {
    match process.runtime {
        Ok(Runtime::Cpython { free_threaded: true, .. }) => {
            let words = process.cmdline.iter().map(String::as_str);
            let option = words.clone().zip(words.skip(1)).any(|pair| pair == ("-X", "gil=1"));
            option
                || process.cmdline.iter().any(|word| word == "-Xgil=1")
                || process.environment.iter().any(|(name, value)| name == "PYTHON_GIL" && value == "1")
        }
        Ok(Runtime::Cpython { free_threaded: false, .. }) | Err(_) => true,
        Ok(_) => false,
    }
}

fn wait_sites(
    recording: &Recording,
    classifier: &Classifier,
    blocked: &BlockedTime,
    classes: &[WaitClass],
    class: WaitClass,
) -> Vec<Site> {
    let sample = |w: &WaitSample| SiteSample {
        t_ns: w.t_ns,
        pid: w.pid,
        tid: w.tid,
        kernel: w.kernel,
        user: w.user,
        weight: (blocked.seconds(w) * 1e9) as u64,
        shallow: false,
        with_call: false,
    };
    let of_class = recording.waits.iter().zip(classes).filter(|(_, c)| **c == class);
    sites(recording, classifier, of_class.map(|(w, _)| sample(w)))
}

/// Run-queue time minus throttled time.
fn run_queue(recording: &Recording, throttled: Option<Interval>) -> Measured<Interval> {
    let delay = run_delay_s(recording)?;
    let throttled = throttled.map_or(0.0, |t| t.point);
    Ok(Interval::exact((delay - throttled).max(0.0)))
}

fn run_delay_s(recording: &Recording) -> Measured<f64> {
    // An incomplete sum would claim that the other threads did not wait for a CPU.
    if let Some(absence) = recording.probe_absence(ProbeName::RunDelay) {
        return Err(absence);
    }
    let delays: Vec<u64> = recording.threads.iter().filter_map(|t| t.run_delay_ns).collect();
    match delays.is_empty() {
        true if recording.threads.is_empty() => {
            let absence = absence(recording, ProbeName::RunDelay, "no thread was read while it ran");
            Err(absence.mend_if_none(["diagnose a target that runs longer"]))
        }
        true => {
            Err(absence(recording, ProbeName::RunDelay, "the kernel reports no run-queue times (schedstat)"))
        }
        false => Ok(delays.iter().map(|d| *d as f64).sum::<f64>() / 1e9),
    }
}

/// The cgroup counts throttled time per run queue and for all its members. The target's part is at most its run-queue
/// time.
fn throttled(recording: &Recording) -> Measured<Interval> {
    let (first, last) = first_and_last(recording)?;
    if first.cgroup.is_none() || last.cgroup.is_none() {
        return Err(absence(
            recording,
            ProbeName::Cgroup,
            "the CPU controller of the target's cgroup could not be read",
        ));
    }
    let throttled = |cgroup: CgroupTick| cgroup.throttled_ns;
    let counted = increase(recording, |t| t.cgroup.map(throttled))? as f64 / 1e9;
    let at_most = run_delay_s(recording).unwrap_or(f64::INFINITY);
    Ok(Interval::exact(counted.min(at_most)))
}

/// Steal may have hit the target this many times harder than other processes, or this many times less. Our judgement.
const HIT_HARDER: f64 = 4.0;

/// Steal is known only for the whole machine. The target's part is assumed to be its part of the machine's busy time.
fn stolen(recording: &Recording, cpu_s: f64) -> Measured<Interval> {
    let (first, last) = first_and_last(recording)?;
    if first.host.is_none() || last.host.is_none() {
        let hidden = || {
            Absence::new(Reason::NotFound, "/proc/stat, which has the machine's steal, could not be read")
                .mend("mount /proc without the option subset=pid")
        };
        // If the file does not exist, the reason is the mount option.
        let why = recording.probe_absence(ProbeName::Host).filter(|absence| !absence.is_gone());
        return Err(why.unwrap_or_else(hidden));
    }
    let machine = |read: fn(&HostTick) -> u64| -> Measured<f64> {
        Ok(increase(recording, |t| t.host.as_ref().map(read))? as f64 / 1e9)
    };
    let (steal, busy) = (machine(|h| h.steal_ns)?, machine(|h| h.busy_ns)?);
    if steal == 0.0 {
        return Ok(Interval::exact(0.0));
    }
    if busy <= 0.0 {
        return Err(Absence::new(
            Reason::TooLittle,
            "the machine's busy time did not change, so the target's part of steal is unknown",
        ));
    }
    let own = (cpu_s / busy).min(1.0);
    let part = |weight: f64| steal * own * weight / (own * weight + (1.0 - own));
    Ok(Interval::new(part(1.0 / HIT_HARDER), part(1.0), part(HIT_HARDER)))
}

fn method(class: WaitClass, recording: &Recording) -> String {
    let basis = match class {
        WaitClass::AddressSpaceLock => {
            "samples of sleeping threads: in a semaphore below a map call or a fault"
        }
        WaitClass::Allocator => "samples of sleeping threads: in a futex that an allocator function called",
        WaitClass::RunQueue => "the scheduler's run-queue times, minus throttled time",
        WaitClass::Throttled => "the cgroup's throttled time, at most the target's run-queue time",
        WaitClass::Stolen => {
            "estimate: the machine's steal × the target's share of busy time; the interval assumes that steal hit the target up to four times harder than other processes, or up to four times less"
        }
        WaitClass::Stopped => {
            "samples of threads that do not run: stopped by a signal or a tracer, or frozen"
        }
        WaitClass::Storage => "samples of sleeping threads: uninterruptible or in storage calls",
        WaitClass::ApplicationLock => {
            "samples of sleeping threads: in a futex below a lock function, or of unknown purpose in a thread that uses 5 % CPU or more"
        }
        WaitClass::Gil => {
            "samples of sleeping threads: in a futex whose address lies in the interpreter's lock, or below the function that takes it"
        }
        WaitClass::Idle => {
            "samples of sleeping threads: in poll, accept, read or sleep, for a child process, on a condition variable, or on a futex of unknown purpose in a thread that uses under 5 % CPU"
        }
        WaitClass::Other => "samples of sleeping threads: none of the above; and waits without a sample",
    };
    let kernel_stacks = recording.waits.iter().any(|w| w.kernel.is_some());
    let unread = !recording.waits.is_empty() && !kernel_stacks;
    match class {
        WaitClass::AddressSpaceLock if unread => {
            "samples of sleeping threads, by system call: kernel stacks could not be read".to_string()
        }
        _ => basis.to_string(),
    }
}
