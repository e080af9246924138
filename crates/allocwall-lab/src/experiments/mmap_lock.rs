//! The lock of the address space, which all threads of a process share. To map or to unmap takes it for writing. A page fault takes it
//! for reading, or since Linux 6.4 only the lock of its mapping.

use super::claims::{Bound, Claim, Quantity, Test};
use super::task::{Outcome, Task};
use super::{Arm, Chart, Experiment, Figure, GLIBC, JEMALLOC, Lines, MIMALLOC, TCMALLOC};
use crate::workloads::calls::{self, Calls};
use crate::workloads::clock::Watch;
use allocwall_host::clock::{monotonic_ns, sleep_until};
use allocwall_host::memory::{PAGE, thread_counts};
use allocwall_model::units::{Absence, Reason};
use allocwall_trial::Unit;
use anyhow::{Context, anyhow};
use std::collections::BTreeMap;
use std::num::NonZero;
use std::thread::{self, Builder, ScopedJoinHandle};

/// Without it, the first free of a mapped block raises glibc's threshold above these blocks.
const MAPPED: Arm = Arm::with("mapped", "glibc:mmap_threshold=128K");
const MAPPED_ARENAS: Arm = Arm::with("mapped-arenas-2", "glibc:mmap_threshold=128K,arena_max=2");
const ARENAS: Arm = Arm::with("arenas-2", "glibc:arena_max=2");

/// The figures of what the threads do: throughput with one thread, with one on each CPU, and with two on each CPU; the second as a
/// multiple of the first; and the share of the time asleep, with one thread on each CPU.
struct Keys {
    rates: [&'static str; 3],
    keeps: &'static str,
    asleep: &'static str,
}

const MAP: Keys = Keys { rates: ["map_1", "map_n", "map_2n"], keeps: "map_keeps", asleep: "map_asleep" };
const FAULT: Keys =
    Keys { rates: ["fault_1", "fault_n", "fault_2n"], keeps: "fault_keeps", asleep: "fault_asleep" };
const BOTH: Keys =
    Keys { rates: ["both_1", "both_n", "both_2n"], keeps: "both_keeps", asleep: "both_asleep" };
const SWITCHES: &str = "both_switches";

pub const EXPERIMENT: Experiment = Experiment {
    name: "mmap-lock",
    summary: "threads that map, touch and unmap memory in one address space",
    about: "Blocks of 256 KiB, in one thread, in one on each CPU, and in two on each CPU. map: a thread allocates a block and frees it. \
            fault: it returns the pages of a block that it keeps, and writes to each page; no allocator has a part in this. both: it \
            allocates a block, writes to each page, and frees it. The nine cases take turns in each run. `mapped` fixes glibc's \
            threshold at 128 KiB, so that glibc maps each block. Time asleep is neither on a CPU nor waiting for one; the time in \
            which a thread spins for the lock is not in it.",
    arms: &[GLIBC, ARENAS, MAPPED, MAPPED_ARENAS, JEMALLOC, TCMALLOC, MIMALLOC],
    figures: &[
        Figure::higher(MAP.rates[0], "map, 1 thread: blocks/s of a thread", Unit::PerSecond),
        Figure::higher(MAP.rates[1], "map, 1 thread per CPU: blocks/s of a thread", Unit::PerSecond),
        Figure::higher(MAP.rates[2], "map, 2 threads per CPU: blocks/s of a thread", Unit::PerSecond),
        Figure::higher(MAP.keeps, "map, 1 thread per CPU as a multiple of 1 thread", Unit::None),
        Figure::lower(MAP.asleep, "map, 1 thread per CPU: share of the time asleep", Unit::Ratio),
        Figure::higher(FAULT.rates[0], "fault, 1 thread: blocks/s of a thread", Unit::PerSecond),
        Figure::higher(FAULT.rates[1], "fault, 1 thread per CPU: blocks/s of a thread", Unit::PerSecond),
        Figure::higher(FAULT.rates[2], "fault, 2 threads per CPU: blocks/s of a thread", Unit::PerSecond),
        Figure::higher(FAULT.keeps, "fault, 1 thread per CPU as a multiple of 1 thread", Unit::None),
        Figure::lower(FAULT.asleep, "fault, 1 thread per CPU: share of the time asleep", Unit::Ratio),
        Figure::higher(BOTH.rates[0], "both, 1 thread: blocks/s of a thread", Unit::PerSecond),
        Figure::higher(BOTH.rates[1], "both, 1 thread per CPU: blocks/s of a thread", Unit::PerSecond),
        Figure::higher(BOTH.rates[2], "both, 2 threads per CPU: blocks/s of a thread", Unit::PerSecond),
        Figure::higher(BOTH.keeps, "both, 1 thread per CPU as a multiple of 1 thread", Unit::None),
        Figure::lower(BOTH.asleep, "both, 1 thread per CPU: share of the time asleep", Unit::Ratio),
        Figure::lower(SWITCHES, "both, 1 thread per CPU: voluntary switches per block", Unit::Count),
    ],
    claims: &[
        Claim {
            says: "The lock takes 31 % of the time of threads that map and unmap (64 cores).",
            // They keep 69 % of the throughput that one thread has alone.
            tests: &[Test {
                what: Quantity::Value { figure: MAP.keeps, arm: "mapped" },
                is: Bound::Below(0.69),
            }],
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

/// With this arm, threads keep their throughput beside others, and it is higher than that of threads that map.
const fn cured(arm: &'static str) -> [Test; 2] {
    [
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
/// Time in which a thread starts.
const STARTING_NS: u64 = 1_000_000;
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

fn allocated(calls: Calls, size: usize) -> *mut u8 {
    // SAFETY: malloc has no precondition.
    let block = unsafe { (calls.allocate)(size) };
    assert!(!block.is_null(), "out of memory");
    block.cast()
}

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
            Work::Map => unsafe { (calls.free)(allocated(calls, SIZE).cast()) },
            // SAFETY: whole pages of a live block, of which no byte is read again.
            Work::Fault => unsafe {
                libc::madvise(pages.cast(), SIZE, libc::MADV_DONTNEED);
                write_each_page(pages);
            },
            // SAFETY: the block has SIZE bytes, and it is freed once.
            Work::Both => unsafe {
                let block = allocated(calls, SIZE);
                write_each_page(block);
                (calls.free)(block.cast());
            },
        }
    }
}

/// What a thread did in a case.
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
    let kept = allocated(calls, SIZE + PAGE);
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
fn case(kind: Work, calls: Calls, threads: usize, length_ns: u64) -> anyhow::Result<Vec<Worked>> {
    let begins_ns = monotonic_ns() + threads as u64 * STARTING_NS;
    thread::scope(|scope| {
        let start = |_| {
            let task = move || work(kind, calls, begins_ns, begins_ns + length_ns);
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
    // The run of a bill repeats the cases; its figures are not used.
    while operations == 0 || !meter.over() {
        for (kind, keys) in WORK {
            let mut cases = vec![];
            for (threads, key) in [1, cpus, 2 * cpus].into_iter().zip(keys.rates) {
                let worked = case(kind, calls, threads, length_ns)?;
                operations += worked.iter().map(|thread| thread.blocks).sum::<u64>();
                let case = Case::of(&worked);
                figures.insert(key.to_owned(), case.blocks_per_s);
                cases.push(case);
            }
            let [alone, all, _] = &cases[..] else { continue };
            if cpus > 1 {
                figures.insert(keys.keeps.to_owned(), all.blocks_per_s / alone.blocks_per_s);
            } else {
                let why = "one CPU: its threads don't run at the same time";
                absent.insert(keys.keeps.to_owned(), Absence::new(Reason::NotApplicable, why));
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
    use super::super::claims::{Judgement, judge};
    use super::super::testing::results;
    use super::*;

    #[test]
    fn a_cure_keeps_the_throughput_of_threads_and_is_faster() {
        use Judgement::{DoesNotHold, Holds};
        let judged = |map: f64, jemalloc: [f64; 2], arenas: [f64; 2]| {
            let of = |[keeps, rate]: [f64; 2]| vec![(BOTH.keeps, keeps), (BOTH.rates[1], rate)];
            let arms = [
                ("glibc", of([1.0, 50.0])),
                ("mapped", [vec![(MAP.keeps, map)], of([0.6, 10.0])].concat()),
                ("jemalloc", of(jemalloc)),
                ("mapped-arenas-2", of(arenas)),
            ];
            let judged = judge(&results(&EXPERIMENT, 6, &arms));
            judged.into_iter().map(|judged| judged.judgement).collect::<Vec<_>>()
        };
        assert_eq!(judged(0.5, [0.98, 40.0], [0.95, 20.0]), [Holds, Holds, Holds]);
        // A setting that changes nothing; and an allocator that is faster, but whose threads slow each other down too.
        assert_eq!(judged(0.5, [0.98, 40.0], [0.6, 10.0]), [Holds, Holds, DoesNotHold]);
        assert_eq!(judged(0.95, [0.6, 40.0], [0.95, 10.0]), [DoesNotHold, DoesNotHold, DoesNotHold]);
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
