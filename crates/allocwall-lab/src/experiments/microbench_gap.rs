//! The p99 of an allocator's calls in a microbenchmark, and that of the same calls in a service. An account has a rule that infers from
//! the gap between them what is slow: something hidden from the microbenchmark, or the allocator itself. Here that is known by
//! construction.

use super::claims::{Bound, Claim, Quantity, Test};
use super::task::{Outcome, Task, fine_clock, percentile};
use super::turns::{self, Turns};
use super::{Arm, Experiment, Figure, Settings};
use crate::histogram::Histogram;
use crate::workloads::calls::{self, Calls};
use crate::workloads::computing::Computing;
use allocwall_host::cycles::{Cycles, Source};
use allocwall_host::memory::thread_counts;
use allocwall_model::units::{Absence, Measured, Reason};
use allocwall_trial::Unit;
use anyhow::Context;
use libc::c_void;
use std::hint::black_box;
use std::num::NonZero;
use std::thread;

const CACHED: &str = "cached";
const EVICTED: &str = "evicted";
const MISSED: &str = "missed";
const SHARED: &str = "shared";
const FRESH: &str = "fresh";

const MICRO: &str = "micro_p99_ns";
const SERVICE: &str = "service_p99_ns";
const GAP: &str = "gap";
const FAULTS: &str = "service_faults_per_block";

/// What the rule of the account says of a gap. Between 4 and 10 it says nothing.
const RESIDUAL: Bound = Bound::Below(2.0);
const INTERNALS: Bound = Bound::Within(2.0, 4.0);
const HIDDEN: Bound = Bound::Above(10.0);

/// The rule says of this arm what is true of it, if its gap is within this bound.
const fn gap(arm: &'static str, is: Bound) -> Test {
    Test { what: Quantity::Value { figure: GAP, arm }, is }
}

pub const EXPERIMENT: Experiment = Experiment {
    name: "microbench-gap",
    summary: "an allocator's p99 in a microbenchmark and in services whose hidden cost is known: does the gap show it?",
    about: "malloc, a first write and free are timed for each block. The microbenchmark does this with one block at a time, in one \
            thread. A service makes the same calls for all blocks of a request, then works, and frees the last block first. Both take \
            turns within a run. The gap is p99 of the service as a multiple of that of the microbenchmark. The rule: 10 and more are \
            hidden costs, 2 to 4 the allocator's own, below 2 nothing. By construction, nothing is hidden in cached (8 blocks of the \
            thread cache) and own-arenas. The allocator's own cost is all of missed (100 blocks, more than the thread cache keeps) \
            and contended (threads share one arena). The cost is hidden in evicted (as cached, but the work reads 4 MiB) and fresh \
            (750 blocks of 4 KiB, whose pages free returns to the kernel). Needs a processor with a time-stamp counter.",
    arms: &[
        Arm::variant("cached", CACHED),
        Arm::variant("evicted", EVICTED),
        Arm::variant("missed", MISSED),
        Arm { variant: SHARED, ..Arm::with("contended", "glibc:arena_max=1") },
        Arm::variant("own-arenas", SHARED).full(),
        Arm { variant: FRESH, ..Arm::with("fresh", TRIMS) },
        Arm { variant: FRESH, ..Arm::with("fresh-mimalloc", "mimalloc") },
    ],
    figures: &[
        Figure::lower(MICRO, "malloc, first write and free, in the microbenchmark, p99", Unit::Ns),
        Figure::lower(SERVICE, "the same calls in the service, p99", Unit::Ns),
        Figure::lower(GAP, "gap: p99 in the service as a multiple of the microbenchmark's", Unit::None),
        Figure::lower(FAULTS, "page faults per block in the service", Unit::Count),
    ],
    claims: &[
        Claim {
            says: "cached: nothing is hidden, and the rule says so (a gap below 2).",
            tests: &[gap("cached", RESIDUAL)],
        },
        Claim {
            says: "own-arenas: nothing is hidden, and the rule says so (a gap below 2).",
            tests: &[gap("own-arenas", RESIDUAL)],
        },
        Claim {
            says: "missed: it is the allocator's own work, and the rule says so (a gap of 2 to 4).",
            tests: &[gap("missed", INTERNALS)],
        },
        Claim {
            says: "contended: it is the allocator's own lock, and the rule says so (a gap of 2 to 4).",
            tests: &[gap("contended", INTERNALS)],
        },
        Claim {
            says: "evicted: cache misses are hidden, and the rule says so (a gap of 10 and more).",
            tests: &[gap("evicted", HIDDEN)],
        },
        Claim {
            says: "fresh: first touches are hidden, and the rule says so (a gap of 10 and more).",
            tests: &[TOUCHES, gap("fresh", HIDDEN)],
        },
        Claim {
            says: "Where the gap is 10 and more, another allocator does not help.",
            tests: &[
                gap("fresh", Bound::Given(&HIDDEN)),
                // Less than a tenth is no help.
                Test {
                    what: Quantity::Ratio { figure: SERVICE, arm: "fresh-mimalloc", to: "fresh" },
                    is: Bound::Above(0.9),
                },
            ],
        },
    ],
    charts: &[],
    check: Some(check),
    run: measure,
};

/// The default, but fixed: otherwise the first free of a mapped block raises it, also that of a block which isn't the subject's.
const TRIMS: &str = "glibc:trim_threshold=128K";
/// Else the service has nothing to hide.
const TOUCHES: Test =
    Test { what: Quantity::Value { figure: FAULTS, arm: "fresh" }, is: Bound::Given(&Bound::Above(0.5)) };

/// What a service allocates and does.
struct Subject {
    variant: &'static str,
    /// In bytes, in turn.
    sizes: &'static [usize],
    /// Blocks of a request.
    blocks: usize,
    work: Work,
    /// Free memory in the heap of each thread at the start, so that it neither grows nor shrinks.
    room: usize,
}

#[derive(Clone, Copy, PartialEq)]
enum Work {
    Nothing,
    /// In 4 KiB of memory.
    Computing,
    /// Reads memory that takes the place of all else in the first two levels of most processors' caches.
    Reading,
}

/// All are in the thread cache: at most two have the same class.
const SMALL: &[usize] = &[24, 40, 64, 96, 32, 160, 56, 256];
/// Larger than the thread cache accepts (1,032 bytes by default), so each call takes the arena's lock.
const LARGE: &[usize] = &[1_100, 3_000, 1_500, 2_048, 4_096, 1_200, 2_500, 3_600];
const ROOM: usize = 256 << 10;

const SUBJECTS: &[Subject] = &[
    Subject { variant: CACHED, sizes: SMALL, blocks: 8, work: Work::Computing, room: ROOM },
    Subject { variant: EVICTED, sizes: SMALL, blocks: 8, work: Work::Reading, room: ROOM },
    Subject { variant: MISSED, sizes: &[256], blocks: 100, work: Work::Computing, room: ROOM },
    Subject { variant: SHARED, sizes: LARGE, blocks: 8, work: Work::Nothing, room: ROOM },
    // 3 MB. Each free at the top of the heap leaves more than the trim threshold there.
    Subject { variant: FRESH, sizes: &[4_096], blocks: 750, work: Work::Computing, room: 0 },
];

/// Bytes that `Reading` reads, and the length of a cache line.
const READ: usize = 4 << 20;
const LINE: usize = 64;
/// Threads of the service that shares an arena.
const THREADS: (usize, usize) = (2, 8);
/// The histograms take whole numbers of picoseconds.
const PS: f64 = 1_000.0;

fn cpus() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}

fn check(arm: &Arm, _: &Settings) -> Measured<()> {
    if arm.variant == SHARED && cpus() == 1 {
        let why = "one CPU: its threads don't run at the same time";
        return Err(Absence::new(Reason::NotApplicable, why));
    }
    Ok(())
}

/// Whether the clock can time a call of some ns. A reading of the other clock takes 20 to 50 ns, and it may have steps of that size.
fn fine_enough(clock: Source) -> Measured<()> {
    match clock {
        Source::Tsc => Ok(()),
        Source::Monotonic => {
            let why =
                format!("no usable time-stamp counter, and {} is too coarse for one call", clock.title());
            Err(Absence::new(Reason::NotSupported, why))
        }
    }
}

/// What was measured in the turns of one kind.
#[derive(Default)]
struct Done {
    /// Of each block, in ps.
    times: Histogram,
    faults: u64,
}

/// What makes the calls of one thread.
struct Caller<'a> {
    subject: &'a Subject,
    calls: Calls,
    clock: Cycles,
    /// Cycles between two readings of the clock, one after the other.
    reading: u64,
    /// The place of the next size.
    next: usize,
    /// Of a request: each block, with the cycles of its malloc and its first write.
    live: Vec<(*mut c_void, u64)>,
    computing: Computing,
    read: Vec<u64>,
}

impl<'a> Caller<'a> {
    fn new(subject: &'a Subject, calls: Calls, clock: Cycles) -> Caller<'a> {
        if subject.room > 0 {
            calls::make_room(calls, subject.room);
        }
        let reading = |_: u32| {
            let began = clock.now();
            clock.now().saturating_sub(began)
        };
        let words = if subject.work == Work::Reading { READ / size_of::<u64>() } else { 0 };
        Caller {
            subject,
            calls,
            clock,
            reading: (0..1_000).map(reading).min().unwrap_or(0),
            next: 0,
            live: Vec::with_capacity(subject.blocks),
            computing: Computing::new(),
            read: vec![1; words],
        }
    }

    /// The calls for some blocks. The service has its work between malloc and free.
    fn request(&mut self, blocks: usize, work: Work, times: &mut Histogram) {
        for _ in 0..blocks {
            let size = black_box(self.subject.sizes[self.next]);
            self.next = (self.next + 1) % self.subject.sizes.len();
            let began = self.clock.now();
            let block = self.calls.block(size);
            // SAFETY: each block has at least 24 bytes and the alignment of malloc.
            unsafe { block.cast::<u64>().write_volatile(1) };
            self.live.push((block, self.clock.now().saturating_sub(began)));
        }
        match work {
            Work::Nothing => {}
            Work::Computing => self.computing.repeat(1),
            Work::Reading => {
                let lines = self.read.iter().step_by(LINE / size_of::<u64>());
                black_box(lines.fold(0_u64, |sum, word| sum.wrapping_add(*word)));
            }
        }
        while let Some((block, spent)) = self.live.pop() {
            let began = self.clock.now();
            // SAFETY: allocated above, and freed once.
            unsafe { (self.calls.free)(block) };
            let spent = spent + self.clock.now().saturating_sub(began);
            times.record((self.clock.ns(spent.saturating_sub(2 * self.reading)) * PS) as u64);
        }
    }
}

/// The microbenchmark, and the service: in the turns with this number.
fn work(turns: Turns, clock: Cycles, subject: &Subject, service: usize) -> [Done; 2] {
    let mut caller = Caller::new(subject, calls::real(), clock);
    let mut all = <[Done; 2]>::default();
    for turn in turns {
        let serves = turn.nth == service;
        let done = &mut all[usize::from(serves)];
        let (blocks, work) = if serves { (subject.blocks, subject.work) } else { (1, Work::Nothing) };
        let faults = thread_counts().minor_faults;
        loop {
            caller.request(blocks, work, &mut done.times);
            if clock.now() >= turn.ends {
                break;
            }
        }
        done.faults += thread_counts().minor_faults - faults;
    }
    all
}

fn measure(task: &Task) -> anyhow::Result<Outcome> {
    let variant = &task.spec.variant;
    let subject = SUBJECTS.iter().find(|subject| subject.variant == variant);
    let subject = subject.with_context(|| format!("no variant {variant}"))?;
    let threads = if subject.variant == SHARED { cpus().clamp(THREADS.0, THREADS.1) } else { 1 };
    // The bill is that of the service alone.
    let in_turns = if task.spec.announce { vec![threads] } else { vec![1, threads] };
    let service = in_turns.len() - 1;
    let clock = fine_clock();
    let (meter, workers) = turns::run(task, clock, &in_turns, |turns| work(turns, clock, subject, service))?;
    let [mut alone, mut served] = <[Done; 2]>::default();
    for [micro, service] in workers {
        for (sum, done) in [(&mut alone, micro), (&mut served, service)] {
            sum.times.add(&done.times);
            sum.faults += done.faults;
        }
    }
    let counts = meter.finish(alone.times.count() + served.times.count());
    if task.spec.announce {
        return Ok(Outcome::of(counts, []));
    }
    let (micro, service) = (percentile(&alone.times, 0.99)? / PS, percentile(&served.times, 0.99)? / PS);
    let fine = fine_enough(clock.source());
    let timed = |value: f64| fine.clone().map(|()| value);
    let figures = [
        (MICRO, timed(micro)),
        (SERVICE, timed(service)),
        (GAP, timed(service / micro.max(1.0))),
        (FAULTS, Ok(served.faults as f64 / served.times.count().max(1) as f64)),
    ];
    Ok(Outcome::of(counts, figures))
}

#[cfg(test)]
mod tests {
    use super::super::claims::{Judgement, judge};
    use super::super::task::{Spec, run};
    use super::super::testing::results;
    use super::*;
    use libc::size_t;
    use std::cell::Cell;
    use std::collections::BTreeSet;

    #[test]
    fn a_rule_that_agrees_with_the_truth_and_one_that_does_not_are_told_apart() {
        use Judgement::{CannotTest, DoesNotHold, Holds};
        // In the order of the claims, without the last one.
        let judged = |gaps: [f64; 6], faults: f64, mimalloc: f64| {
            let names = ["cached", "own-arenas", "missed", "contended", "evicted", "fresh"];
            let mut arms: Vec<(&str, Vec<(&'static str, f64)>)> =
                names.into_iter().zip(gaps).map(|(name, gap)| (name, vec![(GAP, gap)])).collect();
            arms[5].1.extend([(FAULTS, faults), (SERVICE, 2_000.0)]);
            arms.push(("fresh-mimalloc", vec![(SERVICE, mimalloc)]));
            let judged = judge(&results(&EXPERIMENT, 6, &arms));
            judged.into_iter().map(|judged| judged.judgement).collect::<Vec<_>>()
        };
        assert_eq!(judged([1.2, 1.4, 3.0, 3.0, 15.0, 60.0], 0.95, 1_990.0), vec![Holds; 7]);
        // Each gap is that of another cause, or one of which the rule says nothing; and another allocator helps.
        let mut others = judged([3.0, 12.0, 1.2, 40.0, 6.0, 60.0], 0.95, 60.0);
        assert_eq!(others.remove(5), Holds);
        assert_eq!(others, vec![DoesNotHold; 6]);
        // A gap that is too small, and pages that are not fresh.
        let small = judged([1.2, 1.4, 3.0, 3.0, 15.0, 3.0], 0.95, 60.0);
        assert!(matches!(&small[5..], [DoesNotHold, CannotTest(_)]), "{small:?}");
        let kept = judged([1.2, 1.4, 3.0, 3.0, 15.0, 60.0], 0.01, 60.0);
        assert!(matches!(&kept[5], CannotTest(why) if why.contains("condition")), "{kept:?}");
    }

    #[test]
    fn a_coarse_clock_gives_no_gap_but_a_reason() {
        assert_eq!(fine_enough(Source::Tsc), Ok(()));
        let why = fine_enough(Source::Monotonic).unwrap_err();
        assert!(why.reason == Reason::NotSupported && why.detail.contains("CLOCK_MONOTONIC"), "{why}");
    }

    thread_local! {
        /// Blocks, bytes and blocks that were freed.
        static COUNTED: Cell<[usize; 3]> = const { Cell::new([0; 3]) };
    }

    unsafe extern "C" fn allocate(size: size_t) -> *mut c_void {
        let [blocks, bytes, freed] = COUNTED.get();
        COUNTED.set([blocks + 1, bytes + size, freed]);
        // SAFETY: malloc has no precondition.
        unsafe { libc::malloc(size) }
    }

    unsafe extern "C" fn release(block: *mut c_void) {
        let [blocks, bytes, freed] = COUNTED.get();
        COUNTED.set([blocks, bytes, freed + 1]);
        // SAFETY: from the function above.
        unsafe { libc::free(block) }
    }

    #[test]
    fn the_microbenchmark_makes_the_calls_of_the_service() {
        let calls = Calls { allocate, free: release };
        let clock = Cycles::start(1_000_000);
        for subject in SUBJECTS {
            let subject = Subject { room: 0, ..*subject };
            let mut caller = Caller::new(&subject, calls, clock);
            let mut counted = |requests: usize, blocks: usize, work: Work| {
                COUNTED.set([0; 3]);
                let mut times = Histogram::default();
                (0..requests).for_each(|_| caller.request(blocks, work, &mut times));
                assert_eq!(times.count() as usize, requests * blocks);
                COUNTED.get()
            };
            // As many of each size, because the sizes come in turn.
            let blocks = subject.blocks * subject.sizes.len();
            let micro = counted(blocks, 1, Work::Nothing);
            let service = counted(subject.sizes.len(), subject.blocks, subject.work);
            assert_eq!(micro, service, "{}", subject.variant);
            assert_eq!((micro[0], micro[2]), (blocks, blocks), "{}", subject.variant);
        }
    }

    #[test]
    fn every_arm_has_its_subject_which_runs() {
        let spec = |variant: &str| Spec {
            experiment: EXPERIMENT.name.into(),
            variant: variant.into(),
            seed: 1,
            scale: 0.01,
            timed_s: 0.0,
            announce: false,
        };
        let tell = |_: &str| -> anyhow::Result<()> { Ok(()) };
        let variants: BTreeSet<&str> = EXPERIMENT.arms.iter().map(|arm| arm.variant).collect();
        assert_eq!(variants, SUBJECTS.iter().map(|subject| subject.variant).collect::<BTreeSet<_>>());
        for variant in variants {
            let outcome = run(&spec(variant), &tell).unwrap().outcome;
            assert!(outcome.counts.operations > 1, "{variant}");
            match outcome.figures.get(GAP) {
                Some(gap) => assert!(gap.is_finite(), "{variant}"),
                None => assert!(outcome.absent.contains_key(GAP), "{variant}"),
            }
        }
        assert!(run(&spec("snake-oil"), &tell).is_err());
    }

    #[test]
    fn only_a_service_with_threads_needs_a_second_cpu() {
        for arm in EXPERIMENT.arms {
            let needs_more = check(arm, &Settings::quick(7)).is_err();
            assert_eq!(needs_more, arm.variant == SHARED && cpus() == 1, "{}", arm.name);
        }
    }
}
