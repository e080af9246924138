//! Blocks on both sides of glibc's mmap threshold. From 128 KiB on, a block gets its own mapping: its calls are system calls, and all
//! its pages are new. But the threshold is dynamic (mallopt(3)): the first free of a mapped block raises it, unless a tunable fixes it.

use super::claims::{Bound, Claim, Quantity, Test};
use super::task::{Outcome, Task, fine_clock, percentile};
use super::{Arm, Chart, Experiment, Figure, GLIBC, JEMALLOC, Lines, MIMALLOC, TCMALLOC};
use crate::histogram::Histogram;
use crate::workloads::calls::{self, Calls};
use allocwall_host::cycles::Cycles;
use allocwall_host::memory::PAGE;
use allocwall_model::stats::random::Random;
use allocwall_trial::Unit;
use libc::c_void;

/// One of these three tunables fixes all of them: the heap then trims at 128 KiB, its default.
const PINNED: Arm = Arm::with("pinned", "glibc:mmap_threshold=128K");
/// 32 MiB is the largest threshold that glibc before 2.36 accepts.
const RAISED: Arm = Arm::with("raised", "glibc:mmap_threshold=32M,trim_threshold=256M");

const BELOW: &str = "below_p50_ns";
const ABOVE: &str = "above_p50_ns";
const MODES: &str = "modes";
const FAULTS: &str = "faults_per_operation";

pub const EXPERIMENT: Experiment = Experiment {
    name: "mmap-threshold",
    summary: "blocks of 64 KiB to 1 MiB: which calls map and unmap memory, and what that costs",
    about: "One thread frees a block at random, allocates another, and writes to each of its pages. Half of the blocks have 64 to 120 \
            KiB, the others 136 KiB to 1 MiB: glibc's mmap threshold of 128 KiB is between them. The free and the malloc are timed \
            together, without the writes.",
    arms: &[GLIBC, PINNED, RAISED, JEMALLOC, TCMALLOC, MIMALLOC],
    figures: &[
        Figure::lower(BELOW, "a free and a malloc of 64 to 120 KiB, p50", Unit::Ns),
        Figure::lower(ABOVE, "a free and a malloc of 136 KiB to 1 MiB, p50", Unit::Ns),
        Figure::lower("above_p99_ns", "a free and a malloc of 136 KiB to 1 MiB, p99", Unit::Ns),
        Figure::lower(MODES, "p50 of the large blocks as a multiple of that of the small ones", Unit::None),
        Figure::lower(FAULTS, "page faults per block", Unit::Count),
        Figure::lower("ns_per_operation", "time per block with its writes", Unit::Ns),
    ],
    claims: &[
        Claim {
            says: "glibc gives each block of 128 KiB or more its own mapping.",
            tests: &[Test { what: Quantity::Value { figure: FAULTS, arm: "glibc" }, is: MAPPED }],
        },
        Claim {
            says: "The calls have two modes: about 150 ns below the threshold, 5 to 10 µs above it.",
            // That is 33 to 67 times as long. Where a system call is cheaper the modes are closer, but still apart.
            tests: &[Test { what: Quantity::Value { figure: MODES, arm: "pinned" }, is: Bound::Above(10.0) }],
        },
        Claim {
            says: "The first free of a mapped block raises the threshold, unless a tunable fixes it: then blocks of its size come from \
                   the heap.",
            tests: &[
                Test { what: Quantity::Value { figure: FAULTS, arm: "pinned" }, is: MAPPED },
                Test { what: Quantity::Value { figure: MODES, arm: "glibc" }, is: FROM_THE_HEAP },
                Test {
                    what: Quantity::Ratio { figure: ABOVE, arm: "pinned", to: "glibc" },
                    is: Bound::Above(3.0),
                },
            ],
        },
    ],
    charts: &[Chart {
        file: "calls",
        title: "Times of a free and a malloc, of small and large blocks together",
        x_title: "ns",
        y_title: "share of the calls, in tenths of a decade",
        lines: Lines::Distribution(&["below", "above"]),
    }],
    check: None,
    run: measure,
};

/// All pages of a new mapping are new. The large blocks have 110 pages on average and are half of all, so there are 55 page faults per
/// block if each is mapped. At least half of them are.
const MAPPED: Bound = Bound::Above(27.0);
/// A median call for a large block makes no system call. Page faults do not say so: the heap has new pages too where its top was
/// trimmed.
const FROM_THE_HEAP: Bound = Bound::Below(3.0);

/// Sizes in bytes. Sizes near the threshold are left out: malloc adds a header and rounds up.
const SMALL: (usize, usize) = (64 << 10, 120 << 10);
const LARGE: (usize, usize) = (136 << 10, 1 << 20);
/// Blocks of each kind that are live.
const LIVE: usize = 8;
/// After these, a dynamic threshold is above the largest block.
const WARM_UP: usize = 1_000;
/// Blocks between two looks at the clock for the end.
const TURNS: usize = 16;

/// The live blocks of one kind, and the times of their calls.
struct Kind {
    sizes: (usize, usize),
    blocks: [*mut c_void; LIVE],
    times: Histogram,
}

impl Kind {
    fn new(sizes: (usize, usize)) -> Kind {
        Kind { sizes, blocks: [std::ptr::null_mut(); LIVE], times: Histogram::default() }
    }

    /// Frees a block, allocates another, and writes to each of its pages.
    fn replace(&mut self, clock: Cycles, calls: Calls, random: &mut Random) {
        let (low, high) = (self.sizes.0 as f64, self.sizes.1 as f64);
        // Each doubling of the size is equally frequent.
        let size = (low * (high / low).powf(random.unit())) as usize;
        let place = &mut self.blocks[random.below(LIVE)];
        let began = clock.now();
        // SAFETY: the block is null or from malloc, and it is freed once: the next lines replace it.
        let block = unsafe {
            (calls.free)(*place);
            (calls.allocate)(size)
        };
        let took = clock.now().saturating_sub(began);
        *place = block;
        assert!(!block.is_null(), "out of memory");
        for offset in (0..size).step_by(PAGE) {
            // SAFETY: the offset is below the size of the block.
            unsafe { block.cast::<u8>().add(offset).write_volatile(1) };
        }
        self.times.record(clock.ns(took) as u64);
    }
}

fn measure(task: &Task) -> anyhow::Result<Outcome> {
    let clock = fine_clock();
    let calls = calls::real();
    // Without free memory in the heap at the start: malloc takes a block of any size from there before it maps one.
    let mut random = Random::new(task.spec.seed);
    let mut kinds = [Kind::new(SMALL), Kind::new(LARGE)];
    for turn in 0..WARM_UP {
        kinds[turn % 2].replace(clock, calls, &mut random);
    }
    for kind in &mut kinds {
        kind.times = Histogram::default();
    }
    let meter = task.begin()?;
    let mut operations = 0;
    while !meter.over() || operations == 0 {
        for turn in 0..TURNS {
            kinds[turn % 2].replace(clock, calls, &mut random);
        }
        operations += TURNS as u64;
    }
    let counts = meter.finish(operations);
    let [below, above] = kinds.map(|kind| kind.times);
    let (small, large) = (percentile(&below, 0.5)?, percentile(&above, 0.5)?);
    let figures = [
        (BELOW, small),
        (ABOVE, large),
        ("above_p99_ns", percentile(&above, 0.99)?),
        (MODES, large / small.max(1.0)),
    ];
    let outcome = Outcome::of(counts, figures.map(|(key, value)| (key, Ok(value))));
    Ok(outcome.timed([("below", below), ("above", above)]))
}

#[cfg(test)]
mod tests {
    use super::super::claims::{Judgement, judge};
    use super::super::testing::results;
    use super::*;

    /// The judgements of the claims, if the arms have these figures.
    fn judged(glibc: [f64; 3], pinned: [f64; 3]) -> Vec<Judgement> {
        let of = |[above, modes, faults]: [f64; 3]| vec![(ABOVE, above), (MODES, modes), (FAULTS, faults)];
        let results = results(&EXPERIMENT, 6, &[("glibc", of(glibc)), ("pinned", of(pinned))]);
        judge(&results).into_iter().map(|judged| judged.judgement).collect()
    }

    #[test]
    fn a_dynamic_threshold_and_a_fixed_one_are_told_apart() {
        use Judgement::{DoesNotHold, Holds};
        assert_eq!(judged([200.0, 1.1, 0.01], [6_000.0, 30.0, 60.0]), [DoesNotHold, Holds, Holds]);
        // A threshold that is fixed for all: the default maps too.
        assert_eq!(judged([6_000.0, 30.0, 60.0], [6_000.0, 30.0, 60.0]), [Holds, Holds, DoesNotHold]);
        // Calls of a mapping that cost little more than others.
        assert_eq!(judged([200.0, 1.1, 0.01], [800.0, 4.0, 60.0])[1], DoesNotHold);
    }
}
