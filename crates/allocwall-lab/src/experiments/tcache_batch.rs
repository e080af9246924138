//! Batches of blocks of one size against glibc's thread cache, which keeps 7 free blocks of each size (16 since glibc 2.42). What does
//! not fit goes to the arena: it takes the arena's lock, merges neighbours and splits them again.

use super::claims::{Bound, Claim, Quantity, Test};
use super::task::{Outcome, Task, fine_clock, percentile};
use super::{Arm, Chart, Experiment, Figure, GLIBC, JEMALLOC, Lines, MIMALLOC, SNMALLOC, TCMALLOC};
use crate::histogram::Histogram;
use crate::workloads::calls;
use allocwall_trial::Unit;
use anyhow::anyhow;
use std::collections::BTreeMap;

/// As many as the largest batch.
const CACHE_1000: Arm = Arm::with("cache-1000", "glibc:tcache_count=1000");
const NO_CACHE: Arm = Arm::with("no-cache", "glibc:tcache_count=0");

/// Sizes of the batches, with the keys of their figures.
const BATCHES: [(usize, &str); 5] =
    [(1, "ns_1"), (7, "ns_7"), (16, "ns_16"), (100, "ns_100"), (1_000, "ns_1000")];
const FITS: &str = BATCHES[1].1;
const TWICE: &str = BATCHES[2].1;
const FALLS: &str = BATCHES[3].1;
const GROWTH: &str = "growth";

pub const EXPERIMENT: Experiment = Experiment {
    name: "tcache-batch",
    summary: "batches of 1 to 1,000 blocks against the thread cache, which keeps a few of each size",
    about: "A thread allocates a batch of blocks of 256 bytes, then frees them all in the same order. 256 bytes is above the fast bins, \
            so a block that does not fit the thread cache goes to the arena. The batch sizes take turns. A figure is the median over \
            all turns of a run.",
    arms: &[GLIBC, CACHE_1000, NO_CACHE, JEMALLOC, TCMALLOC, MIMALLOC.full(), SNMALLOC.full()],
    figures: &[
        Figure::lower(BATCHES[0].1, "a malloc and a free, one block at a time", Unit::Ns),
        Figure::lower(FITS, "a malloc and a free in batches of 7", Unit::Ns),
        Figure::lower(TWICE, "a malloc and a free in batches of 16", Unit::Ns),
        Figure::lower(FALLS, "a malloc and a free in batches of 100", Unit::Ns),
        Figure::lower(BATCHES[4].1, "a malloc and a free in batches of 1,000", Unit::Ns),
        Figure::lower(GROWTH, "batches of 100 as a multiple of batches of 7", Unit::None),
    ],
    claims: &[
        Claim {
            says: "glibc's thread cache keeps 7 blocks of a size: batches of 100 miss it in 93 % of the calls.",
            tests: &[
                // Batches of 7 fit: a larger cache does not change them.
                Test {
                    what: Quantity::Ratio { figure: FITS, arm: "cache-1000", to: "glibc" },
                    is: Bound::Within(0.9, 1.1),
                },
                // Of 16 blocks, 9 do not fit a cache of 7. A cache of 16, as since glibc 2.42, holds all.
                Test {
                    what: Quantity::Between {
                        figure: TWICE,
                        arm: "glibc",
                        from: "cache-1000",
                        to: "no-cache",
                    },
                    is: Bound::Above(0.2),
                },
                // Calls are not counted, since that would slow them down. If 93 % of them miss, batches of 100 have most of the
                // cost that they have without a cache.
                Test {
                    what: Quantity::Between {
                        figure: FALLS,
                        arm: "glibc",
                        from: "cache-1000",
                        to: "no-cache",
                    },
                    is: Bound::Above(0.8),
                },
            ],
        },
        Claim {
            says: "jemalloc's thread cache holds batches of 100.",
            // More blocks take more of the processor's cache too.
            tests: &[Test {
                what: Quantity::Value { figure: GROWTH, arm: "jemalloc" },
                is: Bound::Below(1.5),
            }],
        },
        Claim {
            says: "tcmalloc's thread cache holds batches of 100.",
            tests: &[Test {
                what: Quantity::Value { figure: GROWTH, arm: "tcmalloc" },
                is: Bound::Below(1.5),
            }],
        },
    ],
    charts: &[Chart {
        file: "batches",
        title: "Time of a malloc and a free, by size of the batch",
        x_title: "blocks in a batch",
        y_title: "ns",
        lines: Lines::Figures(&[
            (1.0, BATCHES[0].1),
            (7.0, FITS),
            (16.0, TWICE),
            (100.0, FALLS),
            (1_000.0, BATCHES[4].1),
        ]),
    }],
    check: None,
    run: measure,
};

const SIZE: usize = 256;
const LARGEST: usize = 1_000;
/// Blocks of a turn: long enough that reading the clock does not count.
const TURN: usize = 2_000;
/// Free memory in the heap at the start, so that no batch makes the heap grow or shrink.
const ROOM: usize = 4 << 20;
/// The histograms take whole numbers of picoseconds.
const PS: f64 = 1_000.0;

/// In a second thread, as in a service: a process with one thread takes no lock.
fn measure(task: &Task) -> anyhow::Result<Outcome> {
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| batches(task));
        worker.join().unwrap_or_else(|_| Err(anyhow!("the thread that allocates has failed")))
    })
}

fn batches(task: &Task) -> anyhow::Result<Outcome> {
    let clock = fine_clock();
    let calls = calls::real();
    calls::make_room(calls, ROOM);
    let mut blocks = [std::ptr::null_mut(); LARGEST];
    // The time of a malloc and a free, in ns.
    let mut turn = |batch: usize| {
        let began = clock.now();
        for _ in 0..TURN / batch {
            for block in &mut blocks[..batch] {
                // SAFETY: malloc has no precondition.
                *block = unsafe { (calls.allocate)(SIZE) };
            }
            for block in &blocks[..batch] {
                // SAFETY: allocated above, and freed once.
                unsafe { (calls.free)(*block) };
            }
        }
        clock.ns(clock.now().saturating_sub(began)) / (TURN / batch * batch) as f64
    };
    let mut times = BATCHES.map(|_| Histogram::default());
    for (batch, _) in BATCHES {
        turn(batch);
    }
    let meter = task.begin()?;
    let mut operations = 0;
    while !meter.over() || operations == 0 {
        for ((batch, _), times) in BATCHES.iter().zip(&mut times) {
            times.record((turn(*batch) * PS) as u64);
            operations += (TURN / batch * batch) as u64;
        }
    }
    let counts = meter.finish(operations);
    let mut figures = BTreeMap::new();
    for ((_, key), times) in BATCHES.iter().zip(&times) {
        figures.insert((*key).to_owned(), percentile(times, 0.5)? / PS);
    }
    figures.insert(GROWTH.to_owned(), figures[FALLS] / figures[FITS]);
    Ok(Outcome { counts, figures, absent: BTreeMap::new(), histograms: BTreeMap::new() })
}

#[cfg(test)]
mod tests {
    use super::super::claims::{Judgement, judge};
    use super::super::testing::results;
    use super::*;

    #[test]
    fn batches_that_miss_the_cache_and_batches_that_do_not_are_told_apart() {
        // Batches of 7, 16 and 100 with glibc; with a larger cache all take 10, and without a cache 30.
        let judged = |glibc: [f64; 3]| {
            let of = |[fits, twice, falls]: [f64; 3]| {
                vec![(FITS, fits), (TWICE, twice), (FALLS, falls), (GROWTH, falls / fits)]
            };
            let arms = [
                ("glibc", of(glibc)),
                ("cache-1000", of([10.0; 3])),
                ("no-cache", of([30.0; 3])),
                ("jemalloc", of([8.0, 8.0, 9.0])),
            ];
            let judged = judge(&results(&EXPERIMENT, 6, &arms));
            judged.into_iter().map(|judged| judged.judgement).collect::<Vec<_>>()
        };
        let misses = judged([10.0, 21.0, 29.0]);
        assert_eq!(misses[..2], [Judgement::Holds, Judgement::Holds]);
        assert!(matches!(&misses[2], Judgement::CannotTest(why) if why.contains("tcmalloc")), "{misses:?}");
        // A cache that holds half of the batch; one that is too small for 7 blocks; and one that holds 16.
        for other in [[10.0, 21.0, 20.0], [20.0, 21.0, 29.0], [10.0, 10.0, 27.0]] {
            assert_eq!(judged(other)[0], Judgement::DoesNotHold, "{other:?}");
        }
    }
}
