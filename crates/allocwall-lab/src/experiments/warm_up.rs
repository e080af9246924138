//! The first requests of a new worker. They grow its heap, so they pay for the first touch of each page. Later requests reuse memory
//! that earlier ones freed.

use super::claims::{Bound, Claim, Quantity, Test};
use super::task::{Outcome, Task, percentile};
use super::{Arm, Chart, Experiment, Figure, GLIBC, JEMALLOC, Lines, MIMALLOC};
use crate::histogram::Histogram;
use crate::workloads::calls::{self, Calls};
use allocwall_host::clock::{monotonic_ns, own_cpu_ns};
use allocwall_trial::Unit;
use allocwall_trial::load::first::First;
use libc::c_void;

/// The p99 of the first requests as a multiple of that of later ones. How many times as slow they are depends on what else a request
/// does: here little. Less than twice is no incident.
const SLOW: Bound = Bound::Above(2.0);

/// More than the heap becomes without it: see [`SIZES`].
const PREFAULT: Arm = Arm::with("prefault", "prefault=160M");
const JEMALLOC_PREFAULT: Arm = Arm::with("jemalloc-prefault", "jemalloc+prefault=160M");
const THP: Arm = Arm::with("thp", "thp");

const FIRST: &str = "first_p99_ns";
const LATER: &str = "later_p99_ns";
const GROWTH: &str = "growth";
const START: &str = "start_cpu_ns";
const WORK: &str = "first_work_ns";
const BOTH: &str = "start_and_first_ns";

pub const EXPERIMENT: Experiment = Experiment {
    name: "warm-up",
    summary: "a new worker's first 1,000 requests, with and without a touched heap",
    about: "A new worker, a single thread, gets 1,000 requests a second (4,000 with --quick). A request allocates 32 blocks of 1 to 7 \
            KiB, 128 KiB in all, and writes to them; they replace those of the request 1,000 before it. So the first 1,000 requests \
            grow the heap, and the next 1,000 reuse it. Latency counts from the intended start of a request, so a request that is \
            late makes the next ones late. prefault touches 160 MiB of the heap before main. The time before the first request is CPU \
            time of the whole process; that of the first 1,000 requests is without the waits between them.",
    arms: &[GLIBC, PREFAULT, THP.full(), JEMALLOC, JEMALLOC_PREFAULT.full(), MIMALLOC.full()],
    figures: &[
        Figure::lower("first_p50_ns", "latency of the first 1,000 requests, p50", Unit::Ns),
        Figure::lower(FIRST, "latency of the first 1,000 requests, p99", Unit::Ns),
        Figure::lower("later_p50_ns", "latency of the next 1,000 requests, p50", Unit::Ns),
        Figure::lower(LATER, "latency of the next 1,000 requests, p99", Unit::Ns),
        Figure::lower(GROWTH, "p99 of the first 1,000 requests as a multiple of the next 1,000", Unit::None),
        Figure::lower(START, "start: CPU time before the first request", Unit::Ns),
        Figure::lower(WORK, "time of the first 1,000 requests in all", Unit::Ns),
        Figure::lower(BOTH, "start and first 1,000 requests together", Unit::Ns),
    ],
    claims: &[
        Claim {
            says: "The first requests of a new worker are slow, because they touch new pages: a p99 of 240 ms against 18 ms later.",
            tests: &[Test { what: Quantity::Value { figure: GROWTH, arm: "glibc" }, is: SLOW }],
        },
        Claim {
            says: "If the heap is touched before, the first requests are about as fast as later ones: a p99 of 22 ms against 18 ms.",
            tests: &[
                Test { what: Quantity::Value { figure: GROWTH, arm: "glibc" }, is: Bound::Given(&SLOW) },
                // 22 ÷ 18.
                Test { what: Quantity::Value { figure: GROWTH, arm: "prefault" }, is: Bound::Below(1.22) },
            ],
        },
        Claim {
            says: "This moves the cost to the start of the worker; it does not remove it.",
            tests: &[
                Test {
                    what: Quantity::Ratio { figure: START, arm: "prefault", to: "glibc" },
                    is: Bound::Above(1.0),
                },
                Test {
                    what: Quantity::Ratio { figure: WORK, arm: "prefault", to: "glibc" },
                    is: Bound::Below(1.0),
                },
                // The heap is touched in larger steps than it would grow, and a little more of it: the sum may be a little
                // more or less.
                Test {
                    what: Quantity::Ratio { figure: BOTH, arm: "prefault", to: "glibc" },
                    is: Bound::Above(0.9),
                },
            ],
        },
    ],
    charts: &[Chart {
        file: "first",
        title: "Latency of the first 1,000 requests of a new worker",
        x_title: "ns",
        y_title: "share of the requests, in tenths of a decade",
        lines: Lines::Distribution(&["first"]),
    }],
    check: None,
    run: measure,
};

/// Requests that grow the heap; as many that follow are measured too.
const REQUESTS: usize = 1_000;
/// Sizes of blocks in bytes, 32 KiB in all, and how often a request allocates each. 1,000 requests keep 125 MiB. All are above what
/// glibc's thread cache takes by default, and below its mmap threshold.
const SIZES: [usize; 8] = [2 << 10, 3 << 10, 6 << 10, 1_100, 4 << 10, 5 << 10, 7 << 10, 4_020];
const TIMES: usize = 4;
const PER_REQUEST: usize = SIZES.len() * TIMES;
/// Time between two requests of a full run, and the least.
const INTERVAL_NS: f64 = 1e6;
const LEAST_INTERVAL_NS: f64 = 0.25e6;

/// The blocks that a request leaves.
type Kept = [*mut c_void; PER_REQUEST];

fn interval_ns(scale: f64) -> u64 {
    (INTERVAL_NS * scale).clamp(LEAST_INTERVAL_NS, INTERVAL_NS) as u64
}

/// Each block is replaced by one of the same size, so that the heap does not grow once all requests have left blocks.
fn request(calls: Calls, kept: &mut Kept, value: u8) {
    for (nth, block) in kept.iter_mut().enumerate() {
        let size = SIZES[nth % SIZES.len()];
        // SAFETY: the block is null or from malloc, and it is freed once: it is replaced at once.
        unsafe { (calls.free)(*block) };
        *block = calls.block(size);
        // SAFETY: the block has this size.
        unsafe { block.write_bytes(value, size) };
    }
}

/// In the main thread, whose heap prefault touches.
fn measure(task: &Task) -> anyhow::Result<Outcome> {
    let start_ns = own_cpu_ns();
    let calls = calls::real();
    let interval_ns = interval_ns(task.spec.scale);
    let mut kept: Vec<Kept> = vec![[std::ptr::null_mut(); PER_REQUEST]; REQUESTS];
    let (mut first, mut later) = (Histogram::default(), Histogram::default());
    let mut work = First::of(REQUESTS as u64);
    let meter = task.begin()?;
    let began_ns = monotonic_ns();
    let mut done = 0;
    // The run of a bill has more requests.
    while done < 2 * REQUESTS || !meter.over() {
        let due_ns = began_ns + done as u64 * interval_ns;
        while monotonic_ns() < due_ns {
            std::hint::spin_loop();
        }
        let taken_ns = monotonic_ns();
        request(calls, &mut kept[done % REQUESTS], done as u8);
        let ended_ns = monotonic_ns();
        work.take(taken_ns, ended_ns);
        if done < REQUESTS {
            first.record(ended_ns - due_ns);
        } else if done < 2 * REQUESTS {
            later.record(ended_ns - due_ns);
        }
        done += 1;
    }
    let counts = meter.finish(done as u64);
    let (first_p99, later_p99) = (percentile(&first, 0.99)?, percentile(&later, 0.99)?);
    let work_ns = work.times(began_ns).map(|times| times.sum_ns as f64);
    let figures = [
        ("first_p50_ns", Ok(percentile(&first, 0.5)?)),
        (FIRST, Ok(first_p99)),
        ("later_p50_ns", Ok(percentile(&later, 0.5)?)),
        (LATER, Ok(later_p99)),
        (GROWTH, Ok(first_p99 / later_p99.max(1.0))),
        (START, Ok(start_ns as f64)),
        (WORK, work_ns.clone()),
        (BOTH, work_ns.map(|work_ns| start_ns as f64 + work_ns)),
    ];
    let outcome = Outcome::of(counts, figures);
    Ok(outcome.timed([("first", first), ("later", later)]))
}

#[cfg(test)]
mod tests {
    use super::super::claims::{Judgement, judge};
    use super::super::testing::results;
    use super::*;

    #[test]
    fn a_cost_that_moves_to_the_start_and_one_that_stays_are_told_apart() {
        use Judgement::{CannotTest, DoesNotHold, Holds};
        let judged = |glibc: [f64; 3], prefault: [f64; 3]| {
            let of = |[growth, start, work]: [f64; 3]| {
                vec![(GROWTH, growth), (START, start), (WORK, work), (BOTH, start + work)]
            };
            let judged = judge(&results(&EXPERIMENT, 6, &[("glibc", of(glibc)), ("prefault", of(prefault))]));
            judged.into_iter().map(|judged| judged.judgement).collect::<Vec<_>>()
        };
        // In milliseconds: 80 of them move.
        assert_eq!(judged([13.0, 5.0, 100.0], [1.1, 85.0, 20.0]), [Holds, Holds, Holds]);
        // A cost that vanishes, and a heap that is touched but not used.
        assert_eq!(judged([13.0, 5.0, 100.0], [1.1, 10.0, 20.0]), [Holds, Holds, DoesNotHold]);
        assert_eq!(judged([13.0, 5.0, 20.0], [13.0, 85.0, 100.0]), [Holds, DoesNotHold, DoesNotHold]);
        // First requests that are not slow need no remedy.
        let fast = judged([1.5, 5.0, 20.0], [1.1, 85.0, 18.0]);
        assert!(matches!(&fast[..], [DoesNotHold, CannotTest(_), Holds]), "{fast:?}");
    }

    #[test]
    fn a_request_keeps_as_much_as_is_said_and_comes_as_often() {
        let kept = SIZES.iter().sum::<usize>() * TIMES;
        assert!((125 << 10..=128 << 10).contains(&kept), "{kept}");
        assert_eq!([1.0, 0.5, 0.15, 10.0].map(interval_ns), [1_000_000, 500_000, 250_000, 1_000_000]);
    }
}
