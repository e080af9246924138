//! The off-CPU lines, in thread-seconds.

use super::classify::Classifier;
use super::sites::{Place, sites};
use super::{Site, WaitLine, absence, block_of, blocks, first_and_last, gain, unmeasured};
use allocwall_model::catalogue::cost::WaitClass;
use allocwall_model::recording::{CgroupTick, HostTick, ProbeState, Recording, WaitSample};
use allocwall_model::stats;
use allocwall_model::units::{Absence, Interval, Measured, Reason};
use std::collections::BTreeMap;

pub fn lines(recording: &Recording, classifier: &Classifier, cpu_s: f64) -> Vec<WaitLine> {
    let classes: Vec<WaitClass> = recording.waits.iter().map(|w| classifier.wait(w)).collect();
    let blocked = Blocked::of(recording);
    let throttled = throttled(recording);
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
            let (untold, unread) = untold(recording, classifier, &blocked, &classes, class);
            WaitLine {
                class,
                thread_s,
                method: method(class, recording),
                sites,
                untold,
                unread,
            }
        })
        .collect()
}

/// How long each thread waited is known to the nanosecond: what is left of its time when the scheduler's CPU and
/// run-queue times are taken off. The looks only say for what. They alone would see too little of short waits: a thread
/// that is being woken counts as runnable at once, though on a virtual machine its CPU may take longer to wake up than
/// the wait itself took.
struct Blocked {
    /// Exact waiting time over the weight of the looks that saw the thread wait; 1 where the exact time isn't known,
    /// or not of the whole window.
    scale: BTreeMap<(i32, i32), f64>,
    /// Waiting time of threads that no look saw waiting, seconds.
    unseen_s: f64,
}

impl Blocked {
    fn of(recording: &Recording) -> Blocked {
        let mut looked: BTreeMap<(i32, i32), u64> = BTreeMap::new();
        for wait in &recording.waits {
            let weight = looked.entry((wait.pid, wait.tid)).or_default();
            *weight = weight.saturating_add(wait.weight_ns);
        }
        let mut blocked = Blocked {
            scale: BTreeMap::new(),
            unseen_s: 0.0,
        };
        if unmeasured(recording, "run_delay").is_some() {
            return blocked;
        }
        for thread in &recording.threads {
            let Some(delay) = thread.run_delay_ns else {
                continue;
            };
            let exact = thread.seen_ns.saturating_sub(thread.cpu_ns).saturating_sub(delay) as f64;
            match looked.get(&(thread.pid, thread.tid)) {
                Some(&weight) if weight > 0 => {
                    blocked
                        .scale
                        .insert((thread.pid, thread.tid), exact / weight as f64);
                }
                _ => blocked.unseen_s += exact / 1e9,
            }
        }
        blocked
    }

    /// Seconds that one look stands for.
    fn seconds(&self, wait: &WaitSample) -> f64 {
        self.scale.get(&(wait.pid, wait.tid)).unwrap_or(&1.0) * wait.weight_ns as f64 / 1e9
    }
}

fn sampled(
    recording: &Recording,
    blocked: &Blocked,
    classes: &[WaitClass],
    class: WaitClass,
) -> Measured<Interval> {
    // Nobody saw what these waited for: they belong to the line for that.
    let unseen = if class == WaitClass::Other {
        blocked.unseen_s
    } else {
        0.0
    };
    if recording.waits.is_empty() {
        return match recording
            .probes
            .iter()
            .any(|p| p.name == "waits" && p.state == ProbeState::Measured)
        {
            // Looked, and saw no thread sleep: at 95 %, fewer than three looks' worth was missed (the rule of three).
            true => Ok(Interval::new(
                unseen,
                unseen,
                unseen + 3.0 * recording.meta.wait_period_ns as f64 / 1e9,
            )),
            false => Err(absence(recording, "waits", "waiting threads were not looked at")),
        };
    }
    let blind = recording
        .waits
        .iter()
        .all(|w| w.syscall.is_none() && w.kernel.is_none());
    let needs_a_reason = matches!(
        class,
        WaitClass::AddressSpaceLock | WaitClass::Allocator | WaitClass::ApplicationLock
    );
    if blind && needs_a_reason {
        return Err(absence(
            recording,
            "waits",
            "what its threads wait for could not be read",
        ));
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
    // Looks of one thread weigh the same: the interval of their count, laid around the weight.
    let low = of_class - (share.point - share.low) * total;
    let high = of_class + (share.high - share.point) * total;
    Ok(Interval::new(
        low.max(0.0) + unseen,
        of_class + unseen,
        high.min(total).max(of_class) + unseen,
    ))
}

/// Frames of a user's stack from which on it tells who called the futex: the innermost is the call itself.
const TELLING_FRAMES: usize = 2;

fn untold(
    recording: &Recording,
    classifier: &Classifier,
    blocked: &Blocked,
    classes: &[WaitClass],
    class: WaitClass,
) -> (f64, f64) {
    let (mut all, mut untold, mut unread) = (0.0, 0.0, 0.0);
    for (wait, _) in recording.waits.iter().zip(classes).filter(|(_, c)| **c == class) {
        let seconds = blocked.seconds(wait);
        all += seconds;
        if classifier.is_untold(wait) {
            untold += seconds;
            if classifier.frames(wait.user).len() < TELLING_FRAMES {
                unread += seconds;
            }
        }
    }
    match all > 0.0 {
        true => (untold / all, unread / all),
        false => (0.0, 0.0),
    }
}

fn wait_sites(
    recording: &Recording,
    classifier: &Classifier,
    blocked: &Blocked,
    classes: &[WaitClass],
    class: WaitClass,
) -> Vec<Site> {
    let place = |w: &WaitSample| Place {
        t_ns: w.t_ns,
        pid: w.pid,
        tid: w.tid,
        kernel: w.kernel,
        user: w.user,
        weight: (blocked.seconds(w) * 1e9) as u64,
        shallow: false,
    };
    let of_class = recording.waits.iter().zip(classes).filter(|(_, c)| **c == class);
    sites(recording, classifier, of_class.map(|(w, _)| place(w)))
}

/// Time on a run queue, less what the cgroup's quota kept there.
fn run_queue(recording: &Recording, throttled: Option<Interval>) -> Measured<Interval> {
    let delay = run_delay_s(recording)?;
    let throttled = throttled.map_or(0.0, |t| t.point);
    Ok(Interval::exact((delay - throttled).max(0.0)))
}

fn run_delay_s(recording: &Recording) -> Measured<f64> {
    // Of a part of the time, or of some threads, it would say that the others did not want to run.
    if let Some(absence) = unmeasured(recording, "run_delay") {
        return Err(absence);
    }
    let delays: Vec<u64> = recording.threads.iter().filter_map(|t| t.run_delay_ns).collect();
    match delays.is_empty() {
        true => Err(absence(
            recording,
            "run_delay",
            "the kernel gave no run-queue times (schedstat)",
        )),
        false => Ok(delays.iter().map(|d| *d as f64).sum::<f64>() / 1e9),
    }
}

/// The cgroup counts per run queue and for all its members; the target can't have lost more than it stood on run queues.
fn throttled(recording: &Recording) -> Measured<Interval> {
    let (first, last) = first_and_last(recording)?;
    if first.cgroup.is_none() || last.cgroup.is_none() {
        return Err(absence(
            recording,
            "cgroup",
            "no CPU controller was readable for the target's cgroup",
        ));
    }
    let throttled = |cgroup: CgroupTick| cgroup.throttled_ns;
    let counted = gain(recording, |t| t.cgroup.map(throttled))? as f64 / 1e9;
    let at_most = run_delay_s(recording).unwrap_or(f64::INFINITY);
    Ok(Interval::exact(counted.min(at_most)))
}

/// The hypervisor may have taken from the target this many times more of what it asked for than from others, or less: our judgement.
const HIT_HARDER: f64 = 4.0;

/// Steal is known for the machine only. The target's part is taken to be its part of the machine's busy time.
fn stolen(recording: &Recording, cpu_s: f64) -> Measured<Interval> {
    let (first, last) = first_and_last(recording)?;
    if first.host.is_none() || last.host.is_none() {
        let hidden = || {
            Absence::new(
                Reason::NotFound,
                "/proc/stat could not be read, which has the machine's steal",
            )
            .mend("a /proc without the mount option subset=pid")
        };
        // Where the file is not there, what hides it is said.
        let why = unmeasured(recording, "host").filter(|absence| !absence.is_gone());
        return Err(why.unwrap_or_else(hidden));
    }
    let machine = |read: fn(&HostTick) -> u64| -> Measured<f64> {
        Ok(gain(recording, |t| t.host.as_ref().map(read))? as f64 / 1e9)
    };
    let (steal, busy) = (machine(|h| h.steal_ns)?, machine(|h| h.busy_ns)?);
    if steal == 0.0 {
        return Ok(Interval::exact(0.0));
    }
    if busy <= 0.0 {
        return Err(Absence::new(
            Reason::TooLittle,
            "the machine's busy time did not move, so steal can't be apportioned",
        ));
    }
    let own = (cpu_s / busy).min(1.0);
    let part = |weight: f64| steal * own * weight / (own * weight + (1.0 - own));
    Ok(Interval::new(part(1.0 / HIT_HARDER), part(1.0), part(HIT_HARDER)))
}

fn method(class: WaitClass, recording: &Recording) -> String {
    let basis = match class {
        WaitClass::AddressSpaceLock => {
            "looks at sleeping threads: in a semaphore below a map call or a fault"
        }
        WaitClass::Allocator => "looks at sleeping threads: in a futex that an allocator function called",
        WaitClass::RunQueue => "the scheduler's run-queue times, less throttled time",
        WaitClass::Throttled => "the cgroup's throttled time, at most the target's run-queue time",
        WaitClass::Stolen => {
            "estimate: the machine's steal by the target's share of busy time, which may have been hit four times as hard as others, or as little"
        }
        WaitClass::Stopped => "looks at threads that do not run: stopped by a signal or a tracer, or frozen",
        WaitClass::Storage => "looks at sleeping threads: uninterruptible or in storage calls",
        WaitClass::ApplicationLock => {
            "looks at sleeping threads: in a futex below a lock function, or of unknown purpose in a thread that uses 5 % CPU or more"
        }
        WaitClass::Idle => {
            "looks at sleeping threads: in poll, accept, read, sleep or on a condition variable, or on an unknown futex in a thread that uses under 5 % CPU"
        }
        WaitClass::Other => "looks at sleeping threads: none of the above, and waits that no look fell into",
    };
    let kernel_stacks = recording.waits.iter().any(|w| w.kernel.is_some());
    let unread = !recording.waits.is_empty() && !kernel_stacks;
    match class {
        WaitClass::AddressSpaceLock if unread => {
            "looks at sleeping threads by their system call: kernel stacks were not readable".to_string()
        }
        _ => basis.to_string(),
    }
}
