//! A lock storm that begins late. The records of a service grow as it runs. As long as they are small, each thread's cache serves its
//! calls. When they are larger than the cache accepts, each call takes the lock of the one arena that all threads share. A single early
//! window can't see that; a series of windows can.

use super::claims::{AnyWall, Bound, Claim, Quantity, Test};
use super::run::SPARE;
use super::series::Fact;
use super::task::{Outcome, Task};
use super::{Arm, Experiment, Figure, Settings};
use crate::workloads::calls::{self, Calls};
use crate::workloads::computing::Computing;
use allocwall_host::clock::monotonic_ns;
use allocwall_model::catalogue::walls::Wall;
use allocwall_model::units::{Absence, Measured, Reason};
use allocwall_trial::Unit;
use anyhow::{anyhow, bail};
use libc::c_void;
use std::num::NonZero;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

const STEADY: &str = "steady";
const GROWING: &str = "growing";

const EARLY: &str = "early_ns";
const LATE: &str = "late_ns";
const SLOWER: &str = "late_as_multiple_of_early";

/// With few CPUs the lock is rarely waited for: then the time is in the code that takes it.
const STORM: AnyWall = &[Wall::AllocatorContention, Wall::AllocatorCode];

/// What the series of an arm must say.
const fn says(fact: Fact, arm: &'static str, is: Bound) -> Test {
    Test { what: Quantity::Series { fact, arm }, is }
}

pub const EXPERIMENT: Experiment = Experiment {
    name: "soak",
    summary: "a lock storm that begins late: one early window against a series of windows",
    about: "A thread for each CPU replaces 16 of its 64 records in each request, and computes for about 6 µs. All threads share one arena of \
            malloc. Records have 200 bytes. In the arm `growing` they grow by a constant rate, to 1,900 bytes at the end of a run; in \
            the middle they become larger than the thread cache accepts (1,032 bytes). Early is the first 40 % of a run, late the last \
            40 %. One more run of each arm is diagnosed by a series of windows: 12 windows of 3 s in two minutes, with --quick 6 \
            windows of 0.5 s in 7.5 s.",
    arms: &[Arm::variant(STEADY, STEADY), Arm::variant(GROWING, GROWING)],
    figures: &[
        Figure::lower(EARLY, "time of a request in its thread, early", Unit::Ns),
        Figure::lower(LATE, "time of a request in its thread, late", Unit::Ns),
        Figure::lower(SLOWER, "late as a multiple of early", Unit::None),
    ],
    claims: &[
        Claim {
            says: "Short runs lie: a lock storm shows up only late.",
            tests: &[
                says(Fact::First(STORM), GROWING, Bound::Below(0.5)),
                says(Fact::Lasts(STORM), GROWING, Bound::Above(0.5)),
                // By construction it begins in the middle of the run. The series begins later, by the time that the diagnosis takes to
                // start: some 2 s fit, about a quarter of a quick series.
                says(Fact::Since(STORM), GROWING, Bound::Within(0.25, 0.9)),
            ],
        },
        Claim {
            says: "It comes from the growth: the same service without it has no wall, however long it runs.",
            tests: &[
                says(Fact::Lasts(STORM), GROWING, Bound::Given(&Bound::Above(0.5))),
                says(Fact::Walls, STEADY, Bound::Below(0.5)),
            ],
        },
    ],
    charts: &[],
    check: Some(check),
    run: measure,
};

/// Bytes of a record at the start, and at the end of a run.
const START: usize = 200;
const END: usize = 1_900;
/// Records of a thread, and how many of them a request replaces.
const RECORDS: usize = 64;
const REPLACED: usize = 16;
const COMPUTING_US: u32 = 6;
/// Free memory in the arena for each thread at the start, so that the heap neither grows nor shrinks.
const ROOM: usize = 2 << 20;
/// On larger machines, not all CPUs are used.
const MOST_THREADS: usize = 8;
/// Parts of a run that count as early and as late.
const EARLY_UNTIL: f64 = 0.4;
const LATE_FROM: f64 = 0.6;

fn check(_: &Arm, _: &Settings) -> Measured<()> {
    match thread::available_parallelism().map_or(1, NonZero::get) {
        1 => Err(Absence::new(Reason::NotApplicable, "one CPU: its threads don't run at the same time")),
        _ => Ok(()),
    }
}

/// The size of a record at this part of a run.
fn size(age: f64) -> usize {
    START + ((END - START) as f64 * age.clamp(0.0, 1.0)) as usize
}

/// Sums over requests.
#[derive(Clone, Copy, Default)]
struct Times {
    requests: u64,
    ns: u64,
}

impl Times {
    fn add(&mut self, ns: u64) {
        self.requests += 1;
        self.ns += ns;
    }

    fn mean(self) -> Measured<f64> {
        match self.requests {
            0 => Err(Absence::new(Reason::TooLittle, "the run was too short: no request at this time")),
            requests => Ok(self.ns as f64 / requests as f64),
        }
    }
}

#[derive(Clone, Copy, Default)]
struct Worked {
    requests: u64,
    early: Times,
    late: Times,
}

/// One thread of the service.
struct Server {
    calls: Calls,
    computing: Computing,
    records: [*mut c_void; RECORDS],
    next: usize,
}

impl Server {
    fn new() -> Server {
        let calls = calls::real();
        calls::make_room(calls, ROOM);
        let records = std::array::from_fn(|_| calls.block(START));
        Server { calls, computing: Computing::new(), records, next: 0 }
    }

    fn request(&mut self, size: usize) {
        for _ in 0..REPLACED {
            let new = self.calls.block(size);
            // SAFETY: a block has room for a word, and the alignment of malloc.
            unsafe { new.cast::<u64>().write_volatile(1) };
            let old = std::mem::replace(&mut self.records[self.next], new);
            // SAFETY: from malloc. It is freed once: it is not in the list any more.
            unsafe { (self.calls.free)(old) };
            self.next = (self.next + 1) % RECORDS;
        }
        self.computing.spin(COMPUTING_US);
    }

    /// Serves until `ends_ns`. `life_ns`: the time after which records no longer grow; None: they never do.
    fn work(&mut self, began_ns: u64, ends_ns: u64, life_ns: f64, grows: bool) -> Worked {
        let mut worked = Worked::default();
        let mut now_ns = monotonic_ns();
        while now_ns < ends_ns {
            let age = now_ns.saturating_sub(began_ns) as f64 / life_ns;
            self.request(if grows { size(age) } else { START });
            let then_ns = monotonic_ns();
            worked.requests += 1;
            if age < EARLY_UNTIL {
                worked.early.add(then_ns - now_ns);
            } else if age >= LATE_FROM {
                worked.late.add(then_ns - now_ns);
            }
            now_ns = then_ns;
        }
        worked
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        for record in self.records {
            // SAFETY: a live block, freed once.
            unsafe { (self.calls.free)(record) };
        }
    }
}

/// All threads of this process wait for one lock of malloc.
#[cfg(target_env = "gnu")]
fn share_an_arena() -> anyhow::Result<()> {
    // SAFETY: it only changes a setting of this process's malloc.
    unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
    Ok(())
}

#[cfg(not(target_env = "gnu"))]
fn share_an_arena() -> anyhow::Result<()> {
    bail!("it needs glibc's malloc, and this program is linked with another C library")
}

fn measure(task: &Task) -> anyhow::Result<Outcome> {
    let spec = task.spec;
    let grows = match spec.variant.as_str() {
        GROWING => true,
        STEADY => false,
        other => bail!("no variant {other}"),
    };
    // A recorder watches a run for its whole life, and ends it before its time.
    let life_s = if spec.announce { (spec.timed_s - SPARE.as_secs_f64()).max(1.0) } else { spec.timed_s };
    share_an_arena()?;
    let threads = thread::available_parallelism().map_or(1, NonZero::get).clamp(2, MOST_THREADS);
    let barrier = Barrier::new(threads + 1);
    let (began_ns, ends_ns) = (AtomicU64::new(0), AtomicU64::new(0));
    let (meter, worked) = thread::scope(|scope| {
        let serve = || {
            let mut server = Server::new();
            // Once when all are set up, and once when the timed part has begun. The barrier orders the times.
            barrier.wait();
            barrier.wait();
            let [began_ns, ends_ns] = [&began_ns, &ends_ns].map(|time| time.load(Ordering::Relaxed));
            server.work(began_ns, ends_ns, life_s * 1e9, grows)
        };
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(serve)).collect();
        barrier.wait();
        let meter = task.begin();
        let now_ns = monotonic_ns();
        began_ns.store(now_ns, Ordering::Relaxed);
        if meter.is_ok() {
            ends_ns.store(now_ns + (spec.timed_s * 1e9) as u64, Ordering::Relaxed);
        }
        barrier.wait();
        let worked: Vec<_> = workers.into_iter().map(thread::ScopedJoinHandle::join).collect();
        (meter, worked)
    });
    let meter = meter?;
    let mut sum = Worked::default();
    for worked in worked {
        let worked = worked.map_err(|_| anyhow!("a thread of the service has failed"))?;
        sum.requests += worked.requests;
        for (sum, of) in [(&mut sum.early, worked.early), (&mut sum.late, worked.late)] {
            (sum.requests, sum.ns) = (sum.requests + of.requests, sum.ns + of.ns);
        }
    }
    let (early, late) = (sum.early.mean(), sum.late.mean());
    let slower = early.clone().and_then(|early| Ok(late.clone()? / early));
    Ok(Outcome::of(meter.finish(sum.requests), [(EARLY, early), (LATE, late), (SLOWER, slower)]))
}

#[cfg(test)]
mod tests {
    use super::super::claims::{Judgement, judge};
    use super::super::series::{Series, tests::document};
    use super::super::task::{Spec, run};
    use super::super::testing::results;
    use super::*;

    /// Of glibc: the largest block that a thread cache keeps by default (malloc/malloc.c, MAX_TCACHE_SIZE).
    const CACHED: usize = 1_032;

    #[test]
    fn records_are_too_large_for_the_thread_cache_from_the_middle_on() {
        assert_eq!([size(0.0), size(1.0), size(7.0)], [START, END, END]);
        assert!(size(EARLY_UNTIL) <= CACHED && size(LATE_FROM) > CACHED);
        assert!((0.45..0.55).contains(&((CACHED - START) as f64 / (END - START) as f64)));
    }

    #[test]
    fn records_are_replaced_one_after_the_other() {
        let mut server = Server::new();
        let before = server.records;
        server.request(START);
        let same = |range: std::ops::Range<usize>| server.records[range.clone()] == before[range];
        // A block that is freed can be the next one that malloc returns, but not before the first one is replaced.
        assert!(server.records[0] != before[0] && same(REPLACED..RECORDS));
        assert_eq!(server.next, REPLACED);
    }

    #[test]
    fn both_variants_run_and_another_is_refused() {
        let of = |variant: &str| {
            let spec = Spec {
                experiment: EXPERIMENT.name.into(),
                variant: variant.into(),
                seed: 1,
                scale: 0.05,
                timed_s: 0.05,
                announce: false,
            };
            let tell = |_: &str| -> anyhow::Result<()> { Ok(()) };
            run(&spec, &tell)
        };
        for arm in EXPERIMENT.arms {
            let outcome = of(arm.variant).unwrap().outcome;
            assert!(outcome.counts.operations > 0 && outcome.figures[EARLY] > 0.0, "{}", arm.name);
        }
        assert!(of("snake-oil").is_err());
    }

    #[test]
    fn a_late_storm_and_a_service_without_one_are_told_apart() {
        use Judgement::{CannotTest, DoesNotHold, Holds};
        let judged = |growing: Option<usize>, steady: Option<usize>| {
            let arms = [(STEADY, vec![(EARLY, 7e3)]), (GROWING, vec![(EARLY, 7e3)])];
            let mut results = results(&EXPERIMENT, 6, &arms);
            results.series.insert(0, Series::of(&document(STORM[0], steady)));
            results.series.insert(2, Series::of(&document(STORM[0], growing)));
            judge(&results).into_iter().map(|judged| judged.judgement).collect::<Vec<_>>()
        };
        assert_eq!(judged(Some(3), None), [Holds, Holds]);
        // A diagnosis that started slowly, in a later part of the run.
        assert_eq!(judged(Some(2), None), [Holds, Holds]);
        // A storm from the start on, or nearly, one in the other arm too, and none at all.
        assert_eq!(judged(Some(0), None), [DoesNotHold, Holds]);
        assert_eq!(judged(Some(1), None), [DoesNotHold, Holds]);
        assert_eq!(judged(Some(3), Some(2)), [Holds, DoesNotHold]);
        let calm = judged(None, None);
        assert!(matches!(&calm[..], [DoesNotHold, CannotTest(_)]), "{calm:?}");
        // Without a series nothing can be tested.
        let none = results(&EXPERIMENT, 6, &[(STEADY, vec![(EARLY, 7e3)]), (GROWING, vec![(EARLY, 7e3)])]);
        assert!(
            judge(&none)
                .iter()
                .all(|judged| matches!(&judged.judgement, CannotTest(why) if why.contains("no series")))
        );
    }
}
