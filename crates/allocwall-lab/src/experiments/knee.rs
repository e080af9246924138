//! Throughput against the number of allocations in a request. If each allocation costs the same, throughput bends where the
//! allocations take about as long as the rest of the request, and then falls as 1 / allocations. A cliff is steeper than that.

use super::claims::{Bound, Claim, Quantity, Test};
use super::task::{Outcome, Task, fine_clock};
use super::turns::{self, Tally, Turns};
use super::{
    Arm, Chart, Experiment, Figure, GLIBC, JEMALLOC, JEMALLOC_PERCPU, Lines, MIMALLOC, SNMALLOC, TCMALLOC,
    TCMALLOC_PERCPU,
};
use crate::workloads::calls::{self, Calls};
use allocwall_host::cycles::Cycles;
use allocwall_trial::Unit;
use libc::c_void;
use std::array::from_fn;
use std::collections::BTreeMap;
use std::hint::black_box;

const KEPT: &str = "kept";
const NO_ALLOCATION: Arm = Arm::variant("no-allocation", KEPT);
/// All threads share one arena and its mutex.
const ONE_ARENA: Arm = Arm::with("one-arena", "glibc:arena_max=1");

/// Allocations in a request.
const ALLOCATIONS: [usize; COUNTS] = [1, 3, 10, 30, 100, MOST];
const COUNTS: usize = 6;
const MOST: usize = 300;
/// Requests per second: with 1 thread, with 2, and with twice as many as CPUs.
const RATES: [[&str; COUNTS]; 3] = [
    ["rate_1_1", "rate_1_3", "rate_1_10", "rate_1_30", "rate_1_100", "rate_1_300"],
    ["rate_2_1", "rate_2_3", "rate_2_10", "rate_2_30", "rate_2_100", "rate_2_300"],
    ["rate_2n_1", "rate_2n_3", "rate_2n_10", "rate_2n_30", "rate_2n_100", "rate_2n_300"],
];
const ONE: [&str; COUNTS] = RATES[0];
const MANY: [&str; COUNTS] = RATES[2];
const KNEES: [&str; 3] = ["knee_1", "knee_2", "knee_2n"];
const FALL: &str = "fall_2n";
const SCALING: &str = "scaling_300";
/// Costs add up in times, not in rates: on each side of the published knee, the time of a request.
const LEFT: &str = "ns_1_10";
const RIGHT: &str = "ns_2n_300";

/// Allocations that cost the same everywhere have a bend, which depends on the computing in a request, but are never steeper than 1.
const CLIFF: Test = Test { what: Quantity::Value { figure: FALL, arm: "glibc" }, is: Bound::Above(1.0) };

/// Of the tool's wall for calls that are too frequent (`thresholds.rs` of the catalogue): 15 % of the time.
const NO_WALL: Bound = Bound::Above(0.85);
const WALL: Bound = Bound::Below(0.85);

pub const EXPERIMENT: Experiment = Experiment {
    name: "knee",
    summary: "requests with 1 to 300 allocations: where throughput bends, and whether it falls off a cliff",
    about: "A request allocates blocks of 24 to 2,048 bytes, writes to each, computes for about 2 µs, and frees them all. The numbers of \
            allocations (1, 3, 10, 30, 100, 300) and of threads (1, 2, and 2 for each CPU) take turns within a run. The arm \
            no-allocation does the same with blocks that it keeps. The knee is where two straight lines meet that fit the logarithms \
            of throughput and allocations best.",
    arms: &[
        GLIBC,
        NO_ALLOCATION,
        ONE_ARENA,
        JEMALLOC,
        JEMALLOC_PERCPU,
        TCMALLOC.full(),
        TCMALLOC_PERCPU,
        MIMALLOC,
        SNMALLOC.full(),
    ],
    figures: &[
        Figure::higher(ONE[2], "requests with 10 allocations, 1 thread", Unit::PerSecond),
        Figure::higher(ONE[3], "requests with 30 allocations, 1 thread", Unit::PerSecond),
        Figure::higher(MANY[0], "requests with 1 allocation, 2 threads a CPU", Unit::PerSecond).unprinted(),
        Figure::higher(MANY[1], "requests with 3 allocations, 2 threads a CPU", Unit::PerSecond).unprinted(),
        Figure::higher(MANY[2], "requests with 10 allocations, 2 threads a CPU", Unit::PerSecond),
        Figure::higher(MANY[3], "requests with 30 allocations, 2 threads a CPU", Unit::PerSecond),
        Figure::higher(MANY[4], "requests with 100 allocations, 2 threads a CPU", Unit::PerSecond)
            .unprinted(),
        Figure::higher(MANY[5], "requests with 300 allocations, 2 threads a CPU", Unit::PerSecond),
        Figure::lower(LEFT, "time between requests with 10 allocations, 1 thread", Unit::Ns).unprinted(),
        Figure::lower(RIGHT, "time between requests with 300 allocations, 2 threads a CPU", Unit::Ns)
            .unprinted(),
        Figure::higher(KNEES[0], "knee with 1 thread, in allocations; 300: none up to there", Unit::None),
        Figure::higher(KNEES[1], "knee with 2 threads, in allocations; 300: none up to there", Unit::None)
            .unprinted(),
        Figure::higher(
            KNEES[2],
            "knee with 2 threads a CPU, in allocations; 300: none up to there",
            Unit::None,
        ),
        Figure::lower(
            FALL,
            "steepness right of the knee, 2 threads a CPU; 1: as 1 / allocations",
            Unit::None,
        ),
        Figure::higher(
            SCALING,
            "what 2 threads a CPU serve more than 1 thread: with 300 allocations, as a multiple of with 1",
            Unit::None,
        ),
    ],
    claims: &[
        Claim {
            says: "The knee is at about 30 allocations in a request.",
            tests: &[
                // Within a factor of two. Without a knee the value is 300.
                Test {
                    what: Quantity::Value { figure: KNEES[2], arm: "glibc" },
                    is: Bound::Within(15.0, 60.0),
                },
                CLIFF,
            ],
        },
        Claim {
            says: "Right of the knee throughput falls off a cliff, because the mutexes of the arenas serialise the threads.",
            tests: &[
                CLIFF,
                // Blocks that no longer fit the processor's caches make a slope steeper too, for one thread as for many.
                Test { what: Quantity::Value { figure: SCALING, arm: "glibc" }, is: Bound::Below(0.9) },
            ],
        },
        Claim {
            says: "Left of the knee another allocator saves 30 to 50 % of the cost of a call.",
            tests: &[Test {
                what: Quantity::Between { figure: LEFT, arm: "jemalloc", from: "no-allocation", to: "glibc" },
                is: Bound::Within(0.5, 0.7),
            }],
        },
        Claim {
            says: "Right of the knee another allocator makes a call 5 to 10 times cheaper.",
            tests: &[Test {
                what: Quantity::Between {
                    figure: RIGHT,
                    arm: "jemalloc",
                    from: "no-allocation",
                    to: "glibc",
                },
                is: Bound::Within(0.1, 0.2),
            }],
        },
        Claim {
            says: "Up to 10 allocations in a request, the allocator is unlikely to be the wall.",
            tests: &[
                Test {
                    what: Quantity::Ratio { figure: ONE[2], arm: "glibc", to: "no-allocation" },
                    is: NO_WALL,
                },
                Test {
                    what: Quantity::Ratio { figure: MANY[2], arm: "glibc", to: "no-allocation" },
                    is: NO_WALL,
                },
            ],
        },
        Claim {
            says: "From 30 allocations in a request on, allocation takes enough time to be examined.",
            tests: &[
                Test {
                    what: Quantity::Ratio { figure: ONE[3], arm: "glibc", to: "no-allocation" },
                    is: WALL,
                },
                Test {
                    what: Quantity::Ratio { figure: MANY[3], arm: "glibc", to: "no-allocation" },
                    is: WALL,
                },
            ],
        },
    ],
    charts: &[Chart {
        file: "throughput",
        title: "Throughput by allocations in a request, 2 threads a CPU",
        x_title: "allocations in a request",
        y_title: "requests per second",
        lines: Lines::Figures(&[
            (1.0, MANY[0]),
            (3.0, MANY[1]),
            (10.0, MANY[2]),
            (30.0, MANY[3]),
            (100.0, MANY[4]),
            (300.0, MANY[5]),
        ]),
    }],
    check: None,
    run: measure,
};

/// In this order. One block in ten is larger than the thread cache accepts.
const SIZES: [usize; 10] = [24, 40, 64, 32, 96, 160, 48, 256, 512, 2_048];
/// Each takes about five cycles: 2 µs at 3 GHz. The same number in all arms.
const MULTIPLICATIONS: u32 = 1_200;
/// Free memory in the arena of each thread at the start: more than twice what 300 blocks take.
const ROOM: usize = 256 << 10;
const WARM_UP: usize = 100;

/// What serves the requests of one thread.
struct Server {
    calls: Calls,
    kept: bool,
    blocks: [*mut c_void; MOST],
    /// The place of the next size.
    next: usize,
}

impl Server {
    fn new(kept: bool) -> Server {
        let calls = calls::real();
        calls::make_room(calls, ROOM);
        let mut server = Server { calls, kept: false, blocks: [std::ptr::null_mut(); MOST], next: 0 };
        server.allocate(MOST);
        if !kept {
            server.free(MOST);
        }
        Server { kept, ..server }
    }

    fn allocate(&mut self, blocks: usize) {
        for block in &mut self.blocks[..blocks] {
            let size = black_box(SIZES[self.next]);
            self.next = if self.next + 1 == SIZES.len() { 0 } else { self.next + 1 };
            if !self.kept {
                *block = self.calls.block(size);
            }
            // SAFETY: each block has at least 24 bytes and the alignment of malloc.
            unsafe { block.cast::<u64>().write_volatile(1) };
        }
    }

    fn free(&mut self, blocks: usize) {
        for block in &self.blocks[..blocks] {
            if !self.kept {
                // SAFETY: `allocate` has made it, and it is freed once.
                unsafe { (self.calls.free)(*block) };
            }
        }
    }

    fn serve(&mut self, allocations: usize) {
        self.allocate(allocations);
        compute();
        self.free(allocations);
    }
}

/// Each step needs the result of the one before.
#[inline(never)]
fn compute() {
    let mut state = black_box(0x9e37_79b9_7f4a_7c15_u64);
    for step in 0..MULTIPLICATIONS {
        state = (state ^ u64::from(step)).wrapping_mul(0x2545_f491_4f6c_dd1d).rotate_left(29);
    }
    black_box(state);
}

type Tallies = [Tally; COUNTS * RATES.len()];

fn work(turns: Turns, clock: Cycles, kept: bool) -> Tallies {
    let mut server = Server::new(kept);
    for _ in 0..WARM_UP {
        ALLOCATIONS.iter().for_each(|allocations| server.serve(*allocations));
    }
    let mut tallies = Tallies::default();
    for turn in turns {
        let allocations = ALLOCATIONS[turn.nth % COUNTS];
        let mut spent = Tally::default();
        let mut now = turn.began;
        while now < turn.ends {
            server.serve(allocations);
            spent.operations += 1;
            now = clock.now();
        }
        spent.cycles = now.saturating_sub(turn.began);
        tallies[turn.nth].add(spent);
    }
    tallies
}

fn measure(task: &Task) -> anyhow::Result<Outcome> {
    let clock = fine_clock();
    let kept = task.spec.variant == KEPT;
    let threads = [1, 2, turns::twice_the_cpus()];
    let of_turns = threads.map(|threads| [threads; COUNTS]).concat();
    let (meter, workers) = turns::run(task, clock, &of_turns, |turns| work(turns, clock, kept))?;
    let mut sums = Tallies::default();
    for tallies in &workers {
        sums.iter_mut().zip(tallies).for_each(|(sum, tally)| sum.add(*tally));
    }
    let counts = meter.finish(sums.iter().map(|sum| sum.operations).sum());
    let mut figures: BTreeMap<&'static str, f64> = BTreeMap::new();
    for (row, threads) in threads.into_iter().enumerate() {
        let rates: [f64; COUNTS] = from_fn(|nth| sums[row * COUNTS + nth].rate(threads, clock));
        let bend = bend(rates);
        figures.extend(RATES[row].into_iter().zip(rates));
        figures.insert(KNEES[row], bend.knee());
        // The last row stays.
        figures.insert(FALL, bend.after.max(0.0));
    }
    figures.insert(SCALING, scaling(ONE.map(|key| figures[key]), MANY.map(|key| figures[key])));
    figures.insert(LEFT, 1e9 / figures[ONE[2]]);
    figures.insert(RIGHT, 1e9 / figures[MANY[5]]);
    Ok(Outcome::of(counts, figures.into_iter().map(|(key, value)| (key, Ok(value)))))
}

/// How much more many threads serve than one, with the most allocations: as a multiple of that with the fewest.
fn scaling(one: [f64; COUNTS], many: [f64; COUNTS]) -> f64 {
    let more = |nth: usize| many[nth] / one[nth];
    more(COUNTS - 1) / more(0)
}

/// Two straight lines that meet, through the logarithms of throughput and allocations.
#[derive(Clone, Copy, Debug)]
struct Bend {
    allocations: f64,
    /// How steeply throughput falls on each side; 1 is as 1 / allocations.
    before: f64,
    after: f64,
}

impl Bend {
    /// The largest number of allocations, if throughput doesn't fall faster after the bend than before. 0.1 is 7 % for each doubling of
    /// the allocations.
    fn knee(self) -> f64 {
        if self.after - self.before >= 0.1 { self.allocations } else { MOST as f64 }
    }
}

/// Places of the bend that are tried: the second to the last but one number of allocations.
const PLACES: usize = 200;

fn bend(rates: [f64; COUNTS]) -> Bend {
    let x = ALLOCATIONS.map(|allocations| (allocations as f64).ln());
    let (along, rest) = line(&x, &rates.map(f64::ln));
    let fit = |place: usize| {
        let at = x[1] + (x[COUNTS - 2] - x[1]) * place as f64 / PLACES as f64;
        // Least squares with one more variable, which is 0 before the bend (theorem of Frisch, Waugh and Lovell).
        let (beyond_along, beyond) = line(&x, &x.map(|x| (x - at).max(0.0)));
        let product = |a: &[f64; COUNTS], b: &[f64; COUNTS]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let turn = product(&rest, &beyond) / product(&beyond, &beyond);
        let left: [f64; COUNTS] = from_fn(|nth| rest[nth] - turn * beyond[nth]);
        let before = along - turn * beyond_along;
        (product(&left, &left), Bend { allocations: at.exp(), before: -before, after: -(before + turn) })
    };
    let best = (0..=PLACES).map(fit).min_by(|a, b| a.0.total_cmp(&b.0));
    best.expect("there are places").1
}

/// The slope of the straight line that fits best, and what it leaves.
fn line(x: &[f64; COUNTS], y: &[f64; COUNTS]) -> (f64, [f64; COUNTS]) {
    let mean = |values: &[f64; COUNTS]| values.iter().sum::<f64>() / COUNTS as f64;
    let (mean_x, mean_y) = (mean(x), mean(y));
    let both: f64 = x.iter().zip(y).map(|(x, y)| (x - mean_x) * (y - mean_y)).sum();
    let slope = both / x.iter().map(|x| (x - mean_x).powi(2)).sum::<f64>();
    (slope, from_fn(|nth| y[nth] - mean_y - slope * (x[nth] - mean_x)))
}

#[cfg(test)]
mod tests {
    use super::super::claims::{Judgement, judge};
    use super::super::testing::results;
    use super::*;

    /// Requests of 2 µs, with allocations that cost this many ns.
    fn rates(cost: fn(usize) -> f64) -> [f64; COUNTS] {
        ALLOCATIONS.map(|allocations| 1e9 / (2_000.0 + allocations as f64 * cost(allocations)))
    }

    #[test]
    fn two_lines_that_meet_are_found() {
        let x = ALLOCATIONS.map(|allocations| allocations as f64);
        let bend = bend(x.map(|x| 1e6 * x.powf(-0.1) * (x / 30.0).max(1.0).powf(-1.4)));
        assert!((bend.allocations / 30.0 - 1.0).abs() < 0.02, "{bend:?}");
        assert!((bend.before - 0.1).abs() < 0.01 && (bend.after - 1.5).abs() < 0.01, "{bend:?}");
    }

    #[test]
    fn a_constant_cost_has_a_knee_and_no_cliff() {
        let constant = bend(rates(|_| 40.0));
        assert!((10.0..60.0).contains(&constant.knee()) && constant.after < 1.0, "{constant:?}");
        // Calls that cost eight times as much once there are more than 30.
        let cliff = bend(rates(|allocations| if allocations > 30 { 320.0 } else { 40.0 }));
        assert!((10.0..60.0).contains(&cliff.knee()) && cliff.after > 1.0, "{cliff:?}");
    }

    #[test]
    fn without_a_bend_or_with_one_the_other_way_there_is_no_knee() {
        assert_eq!(bend(rates(|_| 0.01)).knee(), 300.0);
        // A straight line; and a fall that flattens.
        let x = ALLOCATIONS.map(|allocations| allocations as f64);
        assert_eq!(bend(x.map(|x| 1e6 / x)).knee(), 300.0);
        assert_eq!(bend(x.map(|x| 1e6 / x.min(30.0))).knee(), 300.0);
    }

    /// The judgements of the claims, if allocations cost this in glibc and in jemalloc, and in one thread of glibc.
    fn judged(glibc: fn(usize) -> f64, jemalloc: fn(usize) -> f64, one: fn(usize) -> f64) -> Vec<Judgement> {
        let of = |cost: fn(usize) -> f64| {
            let bend = bend(rates(cost));
            let alone = rates(one);
            let rates = rates(cost);
            let mut figures = vec![
                (KNEES[2], bend.knee()),
                (FALL, bend.after),
                (SCALING, scaling(alone, rates)),
                (LEFT, 1e9 / rates[2]),
                (RIGHT, 1e9 / rates[5]),
            ];
            figures.extend(ONE.into_iter().zip(rates).chain(MANY.into_iter().zip(rates)));
            figures
        };
        let arms = [("glibc", of(glibc)), ("no-allocation", of(|_| 1.0)), ("jemalloc", of(jemalloc))];
        judge(&results(&EXPERIMENT, 6, &arms)).into_iter().map(|judged| judged.judgement).collect()
    }

    #[test]
    fn a_cliff_and_a_constant_cost_are_told_apart() {
        use Judgement::{DoesNotHold, Holds};
        let steep = |allocations: usize| if allocations > 30 { 170.0 } else { 25.0 };
        let cliff = judged(steep, |_| 21.0, |_| 25.0);
        assert_eq!(cliff[1..], [Holds, DoesNotHold, Holds, Holds, Holds], "{cliff:?}");
        // The same with one thread: no mutex serialises it.
        assert_eq!(judged(steep, |_| 21.0, steep)[1], DoesNotHold);
        let constant = judged(|_| 25.0, |_| 21.0, |_| 25.0);
        assert_eq!(constant[..2], [DoesNotHold, DoesNotHold], "{constant:?}");
        assert_eq!(constant[2..], [DoesNotHold, DoesNotHold, Holds, Holds], "{constant:?}");
        // Calls that take much of a request from the first on; and calls that take little.
        assert_eq!(judged(|_| 90.0, |_| 60.0, |_| 90.0)[4..], [DoesNotHold, Holds]);
        assert_eq!(judged(|_| 2.0, |_| 2.0, |_| 2.0)[4..], [Holds, DoesNotHold]);
    }
}
