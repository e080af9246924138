//! First touches, wherever they are paid: rounds of writes to 200,000 blocks of 4 KiB, from malloc and from pools whose pages are made
//! ready in different ways. A remedy that only moves this cost makes one time shorter and another one longer; their sum stays.

use super::claims::{Bound, Claim, Quantity, Test};
use super::task::{Outcome, Task};
use super::{Arm, Experiment, Figure, JEMALLOC, Settings};
use crate::workloads::calls::{self, Calls};
use allocwall_host::clock::{monotonic_ns, sleep_until};
use allocwall_host::facts::Machine;
use allocwall_host::memory::{AnonymousMapping, Pages};
use allocwall_host::perf::EventCounter;
use allocwall_host::{hardware, memory};
use allocwall_model::hardware::{HardwareEvent, HardwareSlice};
use allocwall_model::units::{Absence, Measured, Reason};
use allocwall_trial::Unit;
use anyhow::{anyhow, bail};
use libc::c_void;
use std::collections::BTreeMap;
use std::ptr::null_mut;

/// The variants of the program.
const MALLOC: &str = "malloc";
const IDLE: &str = "idle";
const UNTOUCHED: &str = "untouched";
const TOUCHED: &str = "touched";
const POPULATED: &str = "populated";
const HUGE: &str = "huge";

const REQUESTS: &str = "requests_ns";
const FAULTS: &str = "faults_per_operation";
const MISSES: &str = "dtlb_misses_per_block";
const START: &str = "start_ns";
const FIRST: &str = "first_round_ns";
const BOTH: &str = "start_and_first_round_ns";

pub const EXPERIMENT: Experiment = Experiment {
    name: "cold-warm",
    summary: "first touches of 200,000 blocks of 4 KiB: paid by requests, or at the start",
    about: "Five rounds of requests write to 200,000 blocks of 4 KiB. With malloc, a round allocates all blocks, writes to them and \
            frees them. With a pool, the blocks are made at the start, and a round only writes to them. The pool is a mapping that is \
            untouched, touched by writes, or touched by MAP_POPULATE, each at the start; `huge` is untouched, and asks for huge pages \
            by madvise. `idle` uses malloc after it touched and returned the same amount of memory and slept for 5 s, because some \
            hosts take idle memory back. All times are for one block: of a round, of the start, and of both together.",
    arms: &[
        Arm::variant("glibc", MALLOC),
        Arm { variant: MALLOC, ..Arm::with("kept", "glibc:trim_threshold=4G") },
        Arm { variant: MALLOC, ..JEMALLOC.full() },
        Arm::variant("untouched", UNTOUCHED),
        Arm::variant("touched", TOUCHED),
        Arm::variant("populated", POPULATED),
        Arm::variant("huge", HUGE),
        Arm::variant("idle", IDLE).full(),
    ],
    figures: &[
        Figure::lower(REQUESTS, "requests: time per block, mean of 5 rounds", Unit::Ns),
        Figure::lower(FAULTS, "requests: page faults per block", Unit::Count),
        Figure::lower(MISSES, "requests: loads that missed the data TLB, per block", Unit::Count),
        Figure::lower(START, "start: time per block", Unit::Ns),
        Figure::lower(FIRST, "first round of requests: time per block", Unit::Ns),
        Figure::lower(BOTH, "start and first round together: time per block", Unit::Ns),
    ],
    claims: &[
        Claim {
            says: "To allocate a block and write to it takes 7.9 times as long as to write to a pool that was touched before.",
            // Half and twice the published ratio.
            tests: &[Test {
                what: Quantity::Ratio { figure: REQUESTS, arm: "glibc", to: "touched" },
                is: Bound::Within(3.95, 15.8),
            }],
        },
        Claim {
            says: "Each block from malloc has a page fault, and those of the pool have none: 1,001,184 against 212 faults for a million \
                   blocks.",
            tests: &[
                Test { what: Quantity::Value { figure: FAULTS, arm: "glibc" }, is: Bound::Within(0.9, 1.1) },
                Test { what: Quantity::Value { figure: FAULTS, arm: "touched" }, is: Bound::Below(0.01) },
            ],
        },
        Claim {
            says: "New pages miss the data TLB 66 times as often: 18.5 against 0.28 million misses for a million blocks.",
            // Half and twice the published ratio.
            tests: &[Test {
                what: Quantity::Ratio { figure: MISSES, arm: "glibc", to: "touched" },
                is: Bound::Within(33.0, 132.0),
            }],
        },
        Claim {
            says: "MAP_POPULATE moves the first touches from the requests to the start, where most of their cost is still paid.",
            tests: &[
                Test {
                    what: Quantity::Between {
                        figure: FIRST,
                        arm: "populated",
                        from: "untouched",
                        to: "touched",
                    },
                    is: Bound::Above(0.9),
                },
                Test {
                    what: Quantity::Ratio { figure: BOTH, arm: "populated", to: "untouched" },
                    is: Bound::Above(0.5),
                },
            ],
        },
        Claim {
            says: "MAP_POPULATE does not remove any of this cost: the sum stays.",
            tests: &[Test {
                what: Quantity::Ratio { figure: BOTH, arm: "populated", to: "untouched" },
                is: Bound::Within(0.9, 1.1),
            }],
        },
    ],
    charts: &[],
    check: Some(check),
    run: measure,
};

/// Blocks of a full run, and the size of a block in bytes.
const BLOCKS: f64 = 200_000.0;
const SIZE: usize = 4096;
const ROUNDS: usize = 5;
/// A host that takes idle memory back does so within seconds.
const IDLE_NS: u64 = 5_000_000_000;

fn blocks(scale: f64) -> usize {
    ((BLOCKS * scale).round() as usize).max(1)
}

fn check(arm: &Arm, settings: &Settings) -> Measured<()> {
    let machine = Machine::live();
    // Where it is not known how much is free, a run that takes too much fails.
    fits((blocks(settings.scale) * SIZE) as u64, memory::headroom(&machine).unwrap_or(u64::MAX))?;
    if arm.variant == HUGE { memory::huge_pages_on_request(&machine) } else { Ok(()) }
}

/// Whether the blocks leave a fifth of the free memory to others.
fn fits(needed: u64, free: u64) -> Measured<()> {
    if needed <= free / 5 * 4 {
        return Ok(());
    }
    let [needed, free] = [needed, free].map(|bytes| bytes >> 20);
    let why = format!("the blocks take {needed} MiB, and {free} MiB are free; with --quick they take less");
    Err(Absence::new(Reason::TooCostly, why))
}

/// Where the blocks come from.
enum Source {
    /// From malloc in each round.
    Malloc {
        calls: Calls,
        blocks: Vec<*mut c_void>,
    },
    Pool {
        memory: AnonymousMapping,
        blocks: usize,
    },
}

impl Source {
    fn new(variant: &str, blocks: usize) -> anyhow::Result<Source> {
        let bytes = blocks * SIZE;
        let memory = match variant {
            MALLOC | IDLE => {
                return Ok(Source::Malloc { calls: calls::real(), blocks: vec![null_mut(); blocks] });
            }
            UNTOUCHED | TOUCHED => AnonymousMapping::plain(bytes),
            POPULATED => AnonymousMapping::populated(bytes),
            HUGE => AnonymousMapping::new(bytes.next_multiple_of(memory::HUGE), Pages::Huge),
            other => bail!("no variant {other}"),
        };
        let mut memory = memory.map_err(|absence| anyhow!(absence.detail))?;
        if variant == TOUCHED {
            memory.bytes().iter_mut().step_by(SIZE).for_each(|byte| *byte = 1);
        }
        Ok(Source::Pool { memory, blocks })
    }

    /// Writes `value` to each byte of all blocks.
    fn round(&mut self, value: u8) {
        match self {
            Source::Malloc { calls, blocks } => {
                for block in blocks.iter_mut() {
                    *block = calls.block(SIZE);
                    // SAFETY: the block has SIZE bytes.
                    unsafe { block.write_bytes(value, SIZE) };
                }
                for block in blocks {
                    // SAFETY: allocated above, and freed once.
                    unsafe { (calls.free)(*block) };
                }
            }
            Source::Pool { memory, blocks } => {
                memory.bytes().chunks_exact_mut(SIZE).take(*blocks).for_each(|block| block.fill(value));
            }
        }
    }
}

/// Counts the loads of this thread that miss the data TLB, in kernel mode too.
fn count_misses() -> Measured<EventCounter> {
    EventCounter::hardware(&hardware::encoding(HardwareEvent::DtlbLoadMisses, None)?, &[0], true)
}

/// The whole count. The counter may have been shared with other events: then it ran for a part of the time.
fn whole(counted: HardwareSlice) -> Measured<f64> {
    match counted.running_ns {
        0 => Err(Absence::new(Reason::TooLittle, "the counter of TLB misses did not run")),
        running_ns => Ok(counted.count as f64 * counted.enabled_ns as f64 / running_ns as f64),
    }
}

/// The times of one block: in the start, and in each round.
fn times(start_ns: u64, rounds_ns: [u64; ROUNDS], blocks: usize) -> BTreeMap<String, f64> {
    let of_block = |ns: u64| ns as f64 / blocks as f64;
    let (start, first) = (of_block(start_ns), of_block(rounds_ns[0]));
    let requests = of_block(rounds_ns.iter().sum()) / ROUNDS as f64;
    let times = [(REQUESTS, requests), (START, start), (FIRST, first), (BOTH, start + first)];
    times.map(|(key, value)| (key.to_owned(), value)).into()
}

fn measure(task: &Task) -> anyhow::Result<Outcome> {
    let blocks = blocks(task.spec.scale);
    if task.spec.variant == IDLE {
        drop(Source::new(POPULATED, blocks)?);
        sleep_until(monotonic_ns() + IDLE_NS);
    }
    let began_ns = monotonic_ns();
    let mut source = Source::new(&task.spec.variant, blocks)?;
    let start_ns = monotonic_ns() - began_ns;
    let counter = count_misses();
    let meter = task.begin()?;
    let mut rounds_ns = [0; ROUNDS];
    let mut done = 0;
    // The run of a bill has more rounds.
    while done < ROUNDS || !meter.over() {
        let began_ns = monotonic_ns();
        source.round(done as u8);
        if let Some(round_ns) = rounds_ns.get_mut(done) {
            *round_ns = monotonic_ns() - began_ns;
        }
        done += 1;
    }
    let misses = counter.and_then(|mut counter| whole(counter.total().0));
    let operations = done * blocks;
    let counts = meter.finish(operations as u64);
    let mut figures = times(start_ns, rounds_ns, blocks);
    let mut absent = BTreeMap::new();
    match misses {
        Ok(misses) => {
            figures.insert(MISSES.to_owned(), misses / operations as f64);
        }
        Err(absence) => {
            absent.insert(MISSES.to_owned(), absence);
        }
    }
    Ok(Outcome { counts, figures, absent, histograms: BTreeMap::new() })
}

#[cfg(test)]
mod tests {
    use super::super::claims::{Judgement, judge};
    use super::super::task::{Spec, run};
    use super::super::testing::results;
    use super::*;

    #[test]
    fn a_cost_that_moves_and_one_that_vanishes_are_told_apart() {
        use Judgement::{DoesNotHold, Holds};
        let judged = |malloc: [f64; 2], populated: [f64; 2]| {
            let of = |first: f64, both: f64| vec![(FIRST, first), (BOTH, both)];
            let arms = [
                ("glibc", vec![(REQUESTS, malloc[0]), (FAULTS, malloc[1])]),
                ("touched", [vec![(REQUESTS, 612.0), (FAULTS, 0.0002)], of(610.0, 2_500.0)].concat()),
                ("untouched", of(2_500.0, 2_510.0)),
                ("populated", of(populated[0], populated[1])),
            ];
            let judged = judge(&results(&EXPERIMENT, 6, &arms));
            judged.into_iter().map(|judged| judged.judgement).collect::<Vec<_>>()
        };
        let published = judged([4_812.0, 1.001], [620.0, 2_490.0]);
        assert_eq!(published[..2], [Holds, Holds]);
        assert!(matches!(published[2], Judgement::CannotTest(_)), "{published:?}");
        assert_eq!(published[3..], [Holds, Holds]);
        // malloc that reuses its pages, and a kernel that populates at less cost.
        let cheaper = judged([700.0, 0.2], [620.0, 1_500.0]);
        assert_eq!(cheaper[..2], [DoesNotHold, DoesNotHold]);
        assert_eq!(cheaper[3..], [Holds, DoesNotHold]);
        // A start that left the pages to the requests.
        assert_eq!(judged([700.0, 0.2], [2_400.0, 2_500.0])[3..], [DoesNotHold, Holds]);
    }

    #[test]
    fn times_are_of_one_block_and_the_sum_has_the_start_and_one_round() {
        let of = times(30_000, [20_000, 5_000, 5_000, 5_000, 5_000], 10);
        assert_eq!([REQUESTS, START, FIRST, BOTH].map(|key| of[key]), [800.0, 3_000.0, 2_000.0, 5_000.0]);
        let ready = times(0, [5_000; ROUNDS], 10);
        assert_eq!([REQUESTS, START, FIRST, BOTH].map(|key| ready[key]), [500.0, 0.0, 500.0, 500.0]);
    }

    #[test]
    fn a_counter_that_ran_for_half_of_the_time_saw_half_of_the_misses() {
        let of = |running_ns| HardwareSlice { count: 100, enabled_ns: 1_000, running_ns };
        assert_eq!((whole(of(1_000)), whole(of(500))), (Ok(100.0), Ok(200.0)));
        assert_eq!(whole(of(0)).unwrap_err().reason, Reason::TooLittle);
    }

    #[test]
    fn blocks_that_leave_memory_to_others_fit() {
        assert_eq!((fits(80, 100), fits(0, 0), fits(u64::MAX / 2, u64::MAX)), (Ok(()), Ok(()), Ok(())));
        let why = fits(820 << 20, 1_000 << 20).unwrap_err();
        assert!(why.detail.contains("820 MiB, and 1000 MiB are free"), "{why}");
    }

    #[test]
    fn every_variant_runs_and_only_full_runs_are_idle() {
        let spec = |variant: &str| Spec {
            experiment: EXPERIMENT.name.into(),
            variant: variant.into(),
            seed: 1,
            scale: 0.003,
            timed_s: 0.0,
            announce: false,
        };
        let tell = |_: &str| -> anyhow::Result<()> { Ok(()) };
        for arm in EXPERIMENT.arms.iter().filter(|arm| arm.variant != IDLE) {
            if let Err(absence) = check(arm, &Settings::quick(1)) {
                println!("skipped: {}: {absence}", arm.name);
                continue;
            }
            let outcome = run(&spec(arm.variant), &tell).unwrap().outcome;
            assert_eq!(outcome.counts.operations, (600 * ROUNDS) as u64, "{}", arm.name);
            assert!(outcome.figures[FIRST] > 0.0, "{}", arm.name);
        }
        assert!(run(&spec("snake-oil"), &tell).is_err());
        let idle = EXPERIMENT.arms.iter().find(|arm| arm.variant == IDLE).unwrap();
        assert!(!Settings::quick(1).include(idle) && Settings::full(1).include(idle));
    }
}
