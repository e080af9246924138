//! Whether the target has just started, and its heap is being touched for the first time. Then the first requests are slow, and the
//! start of the program could pay for the touches instead.

use super::context::Context;
use super::expected;
use allocwall_model::catalogue::modules::AllocatorKind;
use allocwall_model::catalogue::owners::Owner;
use allocwall_model::catalogue::walls::Wall;
use allocwall_model::recording::{Process, Recording, Tick, gained};
use allocwall_model::units::{Absence, Measured, Reason};

/// The first seconds of a process. A service that grows its heap under load does so within them.
const FIRST_NS: u64 = 10_000_000_000;
/// At least this part of the first touches must be in the heap, and of memory that the process did not have before.
const MOST: f64 = 0.5;
/// After a cold start, page faults are at most half as frequent. A process that goes on as before faults all the time.
const SLOWER: f64 = 2.0;
/// With less time than this after the first seconds, the page faults there say nothing.
const LEAST_LATER_NS: u64 = 1_000_000_000;
/// Forks of forks; a recording may contain a circle.
const MOST_ANCESTORS: usize = 64;

/// Of the process that used most CPU.
///
/// # Errors
/// The age of the process, or whose memory it touches, is unknown.
pub(super) fn is_under_way(ctx: &Context) -> Measured<bool> {
    let process =
        ctx.process().ok_or_else(|| Absence::new(Reason::NotFound, "the target was not identified"))?;
    let age_ns = age_ns(ctx.recording, process)?;
    let glibc = process.allocator.as_ref().is_ok_and(|allocator| allocator.kind == AllocatorKind::Glibc);
    // A command that ran to its end pays for its start too: to touch the heap before main saves it nothing.
    if age_ns >= FIRST_NS || ctx.is_over() || !glibc {
        return Ok(false);
    }
    // Large blocks are in the heap too, if it is touched before: then the mmap threshold is at its largest value.
    let heap = ctx.owned(Wall::FirstTouch, |owner| matches!(owner, Owner::Heap | Owner::MappedBlock));
    let heap = heap.ok_or_else(|| {
        Absence::new(Reason::TooLittle, "whose memory the first touches are about is unknown")
    })?;
    Ok(heap.low >= MOST && expected::recycled(ctx) <= 1.0 - MOST && fades(ctx, FIRST_NS - age_ns))
}

/// The age of the program that it runs. A worker that was forked touches the heap of its parent.
fn age_ns(recording: &Recording, process: &Process) -> Measured<u64> {
    let mut oldest = process.age_ns.clone()?;
    let mut child = process;
    for _ in 0..MOST_ANCESTORS {
        let is_parent =
            |other: &&Process| other.pid == child.ppid && other.exe.is_ok() && other.exe == child.exe;
        let Some(parent) = recording.processes.iter().find(is_parent) else { break };
        oldest = oldest.max(parent.age_ns.clone()?);
        child = parent;
    }
    Ok(oldest)
}

/// Whether page faults become rare after the first seconds, which end at this time of the window.
fn fades(ctx: &Context, first_until_ns: u64) -> bool {
    let ticks = &ctx.recording.ticks;
    let (Some(first), Some(last)) = (ticks.first(), ticks.last()) else {
        return false;
    };
    if last.t_ns.saturating_sub(first_until_ns) < LEAST_LATER_NS {
        return true;
    }
    let Some(between) = ticks.iter().rfind(|tick| tick.t_ns <= first_until_ns) else {
        return false;
    };
    let rate = |from: &Tick, to: &Tick| {
        let span_ns = to.t_ns.checked_sub(from.t_ns).filter(|span_ns| *span_ns > 0)?;
        Some(gained(from.minor_faults, to.minor_faults)? as f64 / span_ns as f64)
    };
    rate(first, between).zip(rate(between, last)).is_some_and(|(before, after)| before >= SLOWER * after)
}

#[cfg(test)]
mod tests {
    use super::super::remedies;
    use super::*;
    use crate::Prescription;
    use crate::testing::{Subject, absent, computing, resident_bill};
    use allocwall_model::catalogue::cost::CostClass;
    use allocwall_model::recording::{Ended, Linkage};
    use allocwall_model::resident::{ResidentOwner, TargetMemory};

    const S: u64 = 1_000_000_000;
    const PAGE: u64 = 4096;

    /// A service that has just started and grows its heap: the window is its first ten seconds.
    fn young() -> Subject {
        let mut subject = computing();
        subject.shares(&[(CostClass::FaultPath, 0.4)]);
        subject.faulted(Wall::FirstTouch, &[(Owner::Heap, 0.9), (Owner::File, 0.1)]);
        subject.process().age_ns = Ok(S / 20);
        faults(&mut subject, &[(0, 0), (10, 100_000)]);
        subject
    }

    /// Sets the page faults up to these seconds of the window; each one is of new memory.
    fn faults(subject: &mut Subject, counted: &[(u64, u64)]) {
        let ticks = &subject.recording.ticks;
        let tick = |&(s, minor_faults): &(u64, u64)| Tick {
            t_ns: s * S,
            minor_faults,
            anonymous: Some(minor_faults * PAGE),
            ..ticks[usize::from(s > 0)].clone()
        };
        subject.recording.ticks = counted.iter().map(tick).collect();
    }

    fn offer(subject: &Subject) -> Option<Prescription> {
        let offers = remedies::offers(&subject.recording, &subject.bill, &[Wall::FirstTouch]);
        let (_, offer) =
            offers.into_iter().find(|(remedy, _)| remedy.key == "prefault").expect("for this wall");
        offer.ok().map(|(prescription, _)| prescription)
    }

    fn offered(change: impl Fn(&mut Subject)) -> bool {
        let mut subject = young();
        change(&mut subject);
        offer(&subject).is_some()
    }

    #[test]
    fn a_heap_that_is_touched_first_by_requests_may_be_touched_before_main() {
        let mut subject = young();
        assert_eq!(subject.verdict().walls, [Wall::FirstTouch]);
        let prefault = offer(&subject).expect("offered");
        assert_eq!((prefault.gain, prefault.at_most), (None, None));
        assert!(
            prefault.basis.starts_with("unknown: ") && prefault.basis.contains("try it"),
            "{}",
            prefault.basis
        );
        assert!(prefault.backfires.contains("longer to start") && prefault.backfires.contains("at once"));
        // By the touches that are the heap's, or by what it has become.
        assert_eq!(prefault.how.command, "allocwall run --with prefault=352M -- service --port 80");
        let rows = [(ResidentOwner::Heap, 300, Some(0)), (ResidentOwner::Stack, 5, None)];
        subject.recording.resident =
            Ok(TargetMemory { bills: vec![resident_bill(&rows)], others: 0, unread: None });
        let prefault = offer(&subject).expect("offered");
        assert_eq!(prefault.how.command, "allocwall run --with prefault=300M -- service --port 80");
        let trial = "allocwall trial --with prefault=300M --first 1000 --load URL -- service --port 80";
        assert_eq!(prefault.how.remark.as_deref(), Some(trial));
        let line = remedies::trial_of_start(&Context::new(&subject.recording, &subject.bill));
        assert_eq!((line.command.as_str(), line.has_gap), (trial, true));
    }

    #[test]
    fn a_service_that_runs_for_long_is_not_cold_however_much_it_faults() {
        assert!(offered(|_| {}));
        assert!(!offered(|s| s.process().age_ns = Ok(3_600 * S)));
        assert!(!offered(|s| s.process().age_ns = Ok(FIRST_NS)));
        assert!(!offered(|s| s.process().age_ns = Err(absent())));
    }

    #[test]
    fn a_new_process_that_faults_steadily_is_not_cold() {
        let within = |age_s: u64, counted: &[(u64, u64)]| {
            offered(|s| {
                s.process().age_ns = Ok(age_s * S);
                faults(s, counted);
            })
        };
        assert!(within(5, &[(0, 0), (5, 90_000), (10, 100_000)]));
        assert!(!within(5, &[(0, 0), (5, 50_000), (10, 100_000)]));
        // Too little is known of the time before, or of the time after.
        assert!(!within(5, &[(0, 0), (10, 100_000)]));
        assert!(within(1, &[(0, 0), (5, 50_000), (9, 100_000)]));
    }

    #[test]
    fn memory_that_is_used_again_and_memory_of_others_are_not_cold() {
        assert!(!offered(|s| s.last().anonymous = Some(40_000 * PAGE)));
        let of = |owner: Owner| {
            offered(|s| {
                s.faulted(Wall::FirstTouch, &[(owner, 1.0)]);
            })
        };
        assert_eq!([Owner::Arena, Owner::Private, Owner::PythonArena].map(of), [false; 3]);
        assert!(of(Owner::MappedBlock));
        assert!(!offered(|s| s.bill.faulted.clear()));
        assert!(!offered(|s| {
            let allocator = s.process().allocator.as_mut().expect("known");
            (allocator.kind, allocator.how) = (AllocatorKind::Jemalloc, Linkage::Preloaded);
        }));
    }

    #[test]
    fn a_command_that_ran_to_its_end_pays_for_its_start_too() {
        assert!(!offered(|s| s.recording.meta.ended = Ended::TargetExited { status: Some("0".into()) }));
        assert!(offered(|s| s.recording.meta.ended = Ended::Interrupted));
    }

    #[test]
    fn a_forked_worker_is_as_old_as_the_program_that_it_runs() {
        let forked = |exe: &str| {
            offered(|s| {
                let mut parent = s.process().clone();
                (parent.pid, parent.exe, parent.age_ns) = (99, Ok(exe.into()), Ok(3_600 * S));
                (s.process().ppid, parent.ppid) = (99, 100);
                s.recording.threads = vec![];
                s.recording.processes.push(parent);
            })
        };
        assert!(!forked("/usr/bin/service"));
        assert!(forked("/bin/sh"));
    }
}
