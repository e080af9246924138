//! The lock of the address space, which all threads of a process share. To map or to unmap takes it for writing. A page fault takes it
//! for reading, or since Linux 6.4 only the lock of its mapping.

use super::child::Child;
use super::claims::{Bound, Claim, Quantity, Test};
use super::task::{Outcome, Task};
use super::{
    Arm, Chart, Experiment, Figure, GLIBC, JEMALLOC, JEMALLOC_PERCPU, Lines, MIMALLOC, TCMALLOC,
    TCMALLOC_PERCPU,
};
use crate::workloads::calls::{self, Calls};
use crate::workloads::clock::Watch;
use allocwall_host::clock::{monotonic_ns, sleep_until};
use allocwall_host::memory::{PAGE, thread_counts};
use allocwall_model::catalogue::cost::CostClass;
use allocwall_model::units::{Absence, Reason};
use allocwall_trial::Unit;
use anyhow::{Context, anyhow};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::num::NonZero;
use std::thread::{self, Builder, ScopedJoinHandle};

/// Without it, the first free of a mapped block raises glibc's threshold above these blocks.
const MAPPED: Arm = Arm::with("mapped", "glibc:mmap_threshold=128K");
const MAPPED_ARENAS: Arm = Arm::with("mapped-arenas-2", "glibc:mmap_threshold=128K,arena_max=2");
const ARENAS: Arm = Arm::with("arenas-2", "glibc:arena_max=2");

/// The figures of what the threads do: throughput with one thread, with one on each CPU, and with two on each CPU; that of as many
/// processes as CPUs, with one thread each; the second as a multiple of the fourth; and the share of the time asleep, with one thread
/// on each CPU.
struct Keys {
    rates: [&'static str; 3],
    apart: &'static str,
    keeps: &'static str,
    asleep: &'static str,
}

const MAP: Keys = Keys {
    rates: ["map_1", "map_n", "map_2n"],
    apart: "map_apart",
    keeps: "map_keeps",
    asleep: "map_asleep",
};
const FAULT: Keys = Keys {
    rates: ["fault_1", "fault_n", "fault_2n"],
    apart: "fault_apart",
    keeps: "fault_keeps",
    asleep: "fault_asleep",
};
const BOTH: Keys = Keys {
    rates: ["both_1", "both_n", "both_2n"],
    apart: "both_apart",
    keeps: "both_keeps",
    asleep: "both_asleep",
};
const SWITCHES: &str = "both_switches";

pub const EXPERIMENT: Experiment = Experiment {
    name: "mmap-lock",
    summary: "threads that map, touch and unmap memory in one address space",
    about: "Blocks of 256 KiB, in one thread, in one on each CPU, and in two on each CPU. map: a thread allocates a block and frees it. \
            fault: it returns the pages of a block that it keeps, and writes to each page; no allocator has a part in this. both: it \
            allocates a block, writes to each page, and frees it. The cases take turns in each run. Threads are compared with as \
            many processes of one thread: those share the CPUs and the memory too, but no address space. `mapped` fixes glibc's \
            threshold at 128 KiB, so that glibc maps each block. Time asleep is neither on a CPU nor waiting for one; the time in \
            which a thread spins for the lock is not in it.",
    arms: &[
        GLIBC,
        ARENAS.full(),
        MAPPED,
        MAPPED_ARENAS,
        JEMALLOC,
        JEMALLOC_PERCPU,
        TCMALLOC.full(),
        TCMALLOC_PERCPU,
        MIMALLOC.full(),
    ],
    figures: &[
        Figure::higher(MAP.rates[0], "map, 1 thread: blocks/s of a thread", Unit::PerSecond).unprinted(),
        Figure::higher(MAP.rates[1], "map, 1 thread per CPU: blocks/s of a thread", Unit::PerSecond),
        Figure::higher(MAP.rates[2], "map, 2 threads per CPU: blocks/s of a thread", Unit::PerSecond)
            .unprinted(),
        Figure::higher(MAP.apart, "map, 1 process per CPU: blocks/s of a process", Unit::PerSecond)
            .unprinted(),
        Figure::higher(MAP.keeps, "map, 1 thread per CPU as a multiple of 1 process per CPU", Unit::None),
        Figure::lower(MAP.asleep, "map, 1 thread per CPU: share of the time asleep", Unit::Ratio),
        Figure::higher(FAULT.rates[0], "fault, 1 thread: blocks/s of a thread", Unit::PerSecond).unprinted(),
        Figure::higher(FAULT.rates[1], "fault, 1 thread per CPU: blocks/s of a thread", Unit::PerSecond)
            .unprinted(),
        Figure::higher(FAULT.rates[2], "fault, 2 threads per CPU: blocks/s of a thread", Unit::PerSecond)
            .unprinted(),
        Figure::higher(FAULT.apart, "fault, 1 process per CPU: blocks/s of a process", Unit::PerSecond)
            .unprinted(),
        Figure::higher(FAULT.keeps, "fault, 1 thread per CPU as a multiple of 1 process per CPU", Unit::None),
        Figure::lower(FAULT.asleep, "fault, 1 thread per CPU: share of the time asleep", Unit::Ratio)
            .unprinted(),
        Figure::higher(BOTH.rates[0], "both, 1 thread: blocks/s of a thread", Unit::PerSecond).unprinted(),
        Figure::higher(BOTH.rates[1], "both, 1 thread per CPU: blocks/s of a thread", Unit::PerSecond),
        Figure::higher(BOTH.rates[2], "both, 2 threads per CPU: blocks/s of a thread", Unit::PerSecond)
            .unprinted(),
        Figure::higher(BOTH.apart, "both, 1 process per CPU: blocks/s of a process", Unit::PerSecond)
            .unprinted(),
        Figure::higher(BOTH.keeps, "both, 1 thread per CPU as a multiple of 1 process per CPU", Unit::None),
        Figure::lower(BOTH.asleep, "both, 1 thread per CPU: share of the time asleep", Unit::Ratio),
        Figure::lower(SWITCHES, "both, 1 thread per CPU: voluntary switches per block", Unit::Count),
    ],
    claims: &[
        Claim {
            says: "The lock takes 31 % of the time of threads that map and unmap (64 cores).",
            tests: &[
                // They keep 69 % of the throughput that they have without each other.
                Test { what: Quantity::Value { figure: MAP.keeps, arm: "mapped" }, is: Bound::Below(0.69) },
                // An unmap interrupts the other CPUs too, which is no lock. Half of the published share.
                Test {
                    what: Quantity::Bill { line: CostClass::AddressSpaceLock, arm: "mapped" },
                    is: Bound::Above(0.155),
                },
            ],
        },
        Claim {
            says: "jemalloc cures it: its threads don't slow each other down.",
            tests: &cured("jemalloc"),
        },
        Claim { says: "MALLOC_ARENA_MAX=2 cures it.", tests: &cured("mapped-arenas-2") },
    ],
    charts: &[Chart {
        file: "both",
        title: "Throughput of threads that allocate 256 KiB, write to each page, and free",
        x_title: "threads: one (1), one on each CPU (2), two on each CPU (4)",
        y_title: "blocks per second and thread",
        lines: Lines::Figures(&[(1.0, BOTH.rates[0]), (2.0, BOTH.rates[1]), (4.0, BOTH.rates[2])]),
    }],
    check: None,
    run: measure,
};

/// Threads that map lose throughput beside others. With this arm they keep it, and it is higher.
const fn cured(arm: &'static str) -> [Test; 3] {
    [
        Test {
            what: Quantity::Value { figure: BOTH.keeps, arm: "mapped" },
            is: Bound::Given(&Bound::Below(0.9)),
        },
        Test { what: Quantity::Value { figure: BOTH.keeps, arm }, is: Bound::Above(0.9) },
        Test {
            what: Quantity::Ratio { figure: BOTH.rates[1], arm, to: "mapped" },
            // Less would be no cure: the published p99 fell from 24 to 9 ms.
            is: Bound::Above(1.1),
        },
    ]
}

const SIZE: usize = 256 << 10;
/// Length of a case in a full run, and the least: some time slices of the scheduler.
const CASE_NS: f64 = 0.3e9;
const LEAST_CASE_NS: f64 = 0.05e9;
/// Time in which a thread starts, and a process with a thread.
const STARTING_NS: u64 = 1_000_000;
const FORKING_NS: u64 = 4_000_000;
/// On larger machines, not all CPUs are used.
const MOST_CPUS: usize = 128;
/// Blocks between two readings of the clock.
const TURNS: u64 = 8;

#[derive(Clone, Copy)]
enum Work {
    Map,
    Fault,
    Both,
}

const WORK: [(Work, Keys); 3] = [(Work::Map, MAP), (Work::Fault, FAULT), (Work::Both, BOTH)];

/// # Safety
/// `block` has SIZE bytes.
unsafe fn write_each_page(block: *mut u8) {
    for offset in (0..SIZE).step_by(PAGE) {
        // SAFETY: within the block, says the caller.
        unsafe { block.add(offset).write_volatile(1) };
    }
}

impl Work {
    /// `pages`: SIZE bytes of a thread's own, which begin and end with a page.
    fn turn(self, calls: Calls, pages: *mut u8) {
        match self {
            // SAFETY: free gets the block from malloc, once.
            Work::Map => unsafe { (calls.free)(calls.block(SIZE)) },
            // SAFETY: whole pages of a live block, of which no byte is read again.
            Work::Fault => unsafe {
                libc::madvise(pages.cast(), SIZE, libc::MADV_DONTNEED);
                write_each_page(pages);
            },
            // SAFETY: the block has SIZE bytes, and it is freed once.
            Work::Both => unsafe {
                let block = calls.block(SIZE);
                write_each_page(block.cast());
                (calls.free)(block);
            },
        }
    }
}

/// What a thread did in a case.
#[derive(Serialize, Deserialize)]
struct Worked {
    blocks: u64,
    wall_ns: u64,
    /// None without schedstat.
    asleep_ns: Option<u64>,
    switches: u64,
}

fn work(kind: Work, calls: Calls, begins_ns: u64, ends_ns: u64) -> Worked {
    let watch = Watch::new();
    // A page more, because malloc's blocks begin anywhere.
    let kept = calls.block(SIZE + PAGE).cast::<u8>();
    // SAFETY: the offset is less than a page.
    let pages = unsafe { kept.add(kept.align_offset(PAGE)) };
    sleep_until(begins_ns);
    let switches = thread_counts().voluntary_switches;
    let (before, began_ns) = (watch.as_ref().map(Watch::read), monotonic_ns());
    let (mut blocks, mut now_ns) = (0, began_ns);
    while now_ns < ends_ns || blocks == 0 {
        for _ in 0..TURNS {
            kind.turn(calls, pages);
        }
        blocks += TURNS;
        now_ns = monotonic_ns();
    }
    let after = watch.as_ref().map(Watch::read);
    let asleep_ns = before.zip(after).map(|(before, after)| before.until(after).blocked_ns.max(0) as u64);
    let switches = thread_counts().voluntary_switches - switches;
    // SAFETY: allocated above, and freed once.
    unsafe { (calls.free)(kept.cast()) };
    Worked { blocks, wall_ns: now_ns - began_ns, asleep_ns, switches }
}

/// All threads work at the same time.
fn together(kind: Work, calls: Calls, threads: usize, length_ns: u64) -> anyhow::Result<Vec<Worked>> {
    let begins_ns = monotonic_ns() + threads as u64 * STARTING_NS;
    case(kind, calls, threads, begins_ns, begins_ns + length_ns)
}

/// The same, but each in a process of its own. There too it is not the first thread, because that has another arena.
fn apart(kind: Work, calls: Calls, threads: usize, length_ns: u64) -> anyhow::Result<Vec<Worked>> {
    let begins_ns = monotonic_ns() + threads as u64 * FORKING_NS;
    let start = |_| Child::start(|| case(kind, calls, 1, begins_ns, begins_ns + length_ns));
    let children: Vec<Child<Vec<Worked>>> = (0..threads).map(start).collect::<anyhow::Result<_>>()?;
    let worked: Vec<Vec<Worked>> = children.into_iter().map(Child::join).collect::<anyhow::Result<_>>()?;
    Ok(worked.into_iter().flatten().collect())
}

fn case(
    kind: Work,
    calls: Calls,
    threads: usize,
    begins_ns: u64,
    ends_ns: u64,
) -> anyhow::Result<Vec<Worked>> {
    thread::scope(|scope| {
        let start = |_| {
            let task = move || work(kind, calls, begins_ns, ends_ns);
            Builder::new().spawn_scoped(scope, task).context("cannot start a thread")
        };
        let workers: Vec<_> = (0..threads).map(start).collect::<anyhow::Result<_>>()?;
        let joined = workers.into_iter().map(ScopedJoinHandle::join);
        joined.map(|worked| worked.map_err(|_| anyhow!("a thread has failed"))).collect()
    })
}

/// The figures of one case: means over its threads.
#[derive(Debug, PartialEq)]
struct Case {
    blocks_per_s: f64,
    asleep: Option<f64>,
    switches_per_block: f64,
}

impl Case {
    fn of(threads: &[Worked]) -> Case {
        let rate = |thread: &Worked| thread.blocks as f64 / (thread.wall_ns.max(1) as f64 / 1e9);
        let wall_ns: u64 = threads.iter().map(|thread| thread.wall_ns).sum();
        let asleep_ns: Option<u64> = threads.iter().map(|thread| thread.asleep_ns).sum();
        let blocks: u64 = threads.iter().map(|thread| thread.blocks).sum();
        let switches: u64 = threads.iter().map(|thread| thread.switches).sum();
        Case {
            blocks_per_s: threads.iter().map(rate).sum::<f64>() / threads.len() as f64,
            asleep: asleep_ns.map(|asleep_ns| asleep_ns as f64 / wall_ns.max(1) as f64),
            switches_per_block: switches as f64 / blocks.max(1) as f64,
        }
    }
}

fn measure(task: &Task) -> anyhow::Result<Outcome> {
    let cpus = thread::available_parallelism().map_or(1, NonZero::get).min(MOST_CPUS);
    let length_ns = (CASE_NS * task.spec.scale).max(LEAST_CASE_NS) as u64;
    let calls = calls::real();
    let meter = task.begin()?;
    let mut operations = 0;
    let (mut figures, mut absent) = (BTreeMap::new(), BTreeMap::new());
    // The run of a bill has the case of the first claim alone, and no figures.
    while task.spec.announce && !meter.over() {
        let worked = together(Work::Map, calls, cpus, length_ns)?;
        operations += worked.iter().map(|thread| thread.blocks).sum::<u64>();
    }
    while operations == 0 || !meter.over() {
        for (kind, keys) in WORK {
            let mut cases = vec![];
            for (threads, key) in [1, cpus, 2 * cpus].into_iter().zip(keys.rates) {
                let worked = together(kind, calls, threads, length_ns)?;
                operations += worked.iter().map(|thread| thread.blocks).sum::<u64>();
                let case = Case::of(&worked);
                figures.insert(key.to_owned(), case.blocks_per_s);
                cases.push(case);
            }
            let [_, all, _] = &cases[..] else { continue };
            if cpus > 1 {
                let apart = Case::of(&apart(kind, calls, cpus, length_ns)?);
                figures.insert(keys.apart.to_owned(), apart.blocks_per_s);
                figures.insert(keys.keeps.to_owned(), all.blocks_per_s / apart.blocks_per_s);
            } else {
                let why = "one CPU: its threads don't run at the same time";
                for key in [keys.apart, keys.keeps] {
                    absent.insert(key.to_owned(), Absence::new(Reason::NotApplicable, why));
                }
            }
            match all.asleep {
                Some(share) => {
                    figures.insert(keys.asleep.to_owned(), share);
                }
                None => {
                    let absence = Absence::new(Reason::NotSupported, "no /proc/thread-self/schedstat");
                    absent.insert(keys.asleep.to_owned(), absence);
                }
            }
            if matches!(kind, Work::Both) {
                figures.insert(SWITCHES.to_owned(), all.switches_per_block);
            }
        }
    }
    Ok(Outcome { counts: meter.finish(operations), figures, absent, histograms: BTreeMap::new() })
}

#[cfg(test)]
mod tests {
    use super::super::bill::{Bill, Line};
    use super::super::claims::{Judgement, judge};
    use super::super::testing::results;
    use super::*;
    use allocwall_model::units::Interval;

    #[test]
    fn a_cure_keeps_the_throughput_of_threads_and_is_faster() {
        use Judgement::{CannotTest, DoesNotHold, Holds};
        // What the threads keep: those that only map, and those that write too; and the share of the lock.
        let judged = |[map, both, lock]: [f64; 3], jemalloc: [f64; 2], arenas: [f64; 2]| {
            let of = |[keeps, rate]: [f64; 2]| vec![(BOTH.keeps, keeps), (BOTH.rates[1], rate)];
            let arms = [
                ("glibc", of([1.0, 50.0])),
                ("mapped", [vec![(MAP.keeps, map)], of([both, 10.0])].concat()),
                ("jemalloc", of(jemalloc)),
                ("mapped-arenas-2", of(arenas)),
            ];
            let mut results = results(&EXPERIMENT, 6, &arms);
            let line = Line {
                class: CostClass::AddressSpaceLock.key().into(),
                title: CostClass::AddressSpaceLock.title().into(),
                share: Ok(Interval::new(lock - 0.01, lock, lock + 0.01)),
            };
            results.bills.insert(2, Ok(Bill { verdict: String::new(), on_cpu: vec![line], off_cpu: vec![] }));
            judge(&results).into_iter().map(|judged| judged.judgement).collect::<Vec<_>>()
        };
        let slow = [0.5, 0.6, 0.3];
        assert_eq!(judged(slow, [0.98, 40.0], [0.95, 20.0]), [Holds, Holds, Holds]);
        // A setting that changes nothing; and an allocator that is faster, but whose threads slow each other down too.
        assert_eq!(judged(slow, [0.98, 40.0], [0.6, 10.0]), [Holds, Holds, DoesNotHold]);
        assert_eq!(judged(slow, [0.6, 40.0], [0.95, 10.0]), [Holds, DoesNotHold, DoesNotHold]);
        // Threads that slow each other down, but not by the lock; and threads that don't.
        assert_eq!(judged([0.5, 0.6, 0.02], [0.98, 40.0], [0.95, 20.0]), [DoesNotHold, Holds, Holds]);
        let alone = judged([0.95, 0.97, 0.02], [0.98, 40.0], [0.95, 20.0]);
        assert!(matches!(&alone[..], [DoesNotHold, CannotTest(_), CannotTest(_)]), "{alone:?}");
    }

    #[test]
    fn threads_in_processes_of_their_own_work_too() {
        let worked = apart(Work::Fault, calls::real(), 2, 1_000_000).unwrap();
        assert!(worked.len() == 2 && worked.iter().all(|worked| worked.blocks >= TURNS));
    }

    #[test]
    fn figures_of_a_case_are_means_over_its_threads() {
        let worked = |blocks, asleep_ns| Worked { blocks, wall_ns: 500_000_000, asleep_ns, switches: 3 };
        let case = Case::of(&[worked(10, Some(100_000_000)), worked(20, Some(0))]);
        assert_eq!((case.blocks_per_s, case.asleep, case.switches_per_block), (30.0, Some(0.1), 0.2));
        // Without the time of one thread there is none of all.
        assert_eq!(Case::of(&[worked(10, Some(0)), worked(20, None)]).asleep, None);
    }

    #[test]
    fn each_kind_of_work_touches_the_pages_that_it_should() {
        let faults = |kind| {
            thread::spawn(move || {
                let before = thread_counts().minor_faults;
                let worked = work(kind, calls::real(), 0, 0);
                (worked.blocks, (thread_counts().minor_faults - before) as usize)
            })
            .join()
            .unwrap()
        };
        let pages = TURNS as usize * SIZE / PAGE;
        let ((blocks, map), (_, fault)) = (faults(Work::Map), faults(Work::Fault));
        assert_eq!(blocks, TURNS);
        // A block that is only mapped has a page for its header at most, and the thread's own ones.
        assert!(map < pages / 2 && fault >= pages, "{map} and {fault} faults, {pages} pages");
    }
}
