//! A surge of requests against a service whose clients try again. What the service answers too late is sent again, so its load grows
//! because it is slow.

mod clients;
mod service;

use super::claims::{Bound, Claim, Quantity, Test};
use super::open_loop::arrivals;
use super::task::{Outcome, Task, percentile};
use super::{Arm, Chart, Experiment, Figure, GLIBC, JEMALLOC, Lines, MIMALLOC, TCMALLOC};
use crate::workloads::calls;
use allocwall_host::clock::{monotonic_ns, own_cpu_ns, sleep_until};
use allocwall_model::catalogue::cost::WaitClass;
use allocwall_model::stats::random::Random;
use allocwall_trial::Unit;
use clients::{Clients, phases, surge};
use service::{Mail, Worker};
use std::time::Duration;

const BEFORE: &str = "in_time_before_per_s";
const SURGE: &str = "in_time_surge_per_s";
const GROWTH: &str = "in_time_growth";
const AFTER: &str = "in_time_after";
const P99: &str = "surge_p99_ns";
const P99_GROWTH: &str = "p99_growth";
const CPU: &str = "cpu_before";
const CPU_GROWTH: &str = "cpu_growth";
const TRIES: &str = "tries";

/// Of 1.5 times the load. An arm that serves less than 1.4 times as much loses more than noise.
const FOLLOWS: Bound = Bound::Above(1.4);
/// Without a collapse nothing can prevent it, or make it worse.
const COLLAPSE: Test =
    Test { what: Quantity::Value { figure: GROWTH, arm: "glibc" }, is: Bound::Given(&Bound::Below(1.4)) };

const fn prevents(arm: &'static str) -> [Test; 2] {
    [COLLAPSE, Test { what: Quantity::Value { figure: GROWTH, arm }, is: FOLLOWS }]
}

pub const EXPERIMENT: Experiment = Experiment {
    name: "retry-storm",
    summary: "50 % more requests for a while, and clients that try again after a timeout",
    about: "An open loop: requests have intended times, at random. In the second third of a run there are 50 % more of them. A client \
            tries again after a timeout, up to three times; an answer after the timeout of its try is of no use. A request \
            allocates and fills 200 blocks of 16 bytes to 2 KiB, computes, and frees half of them; the next worker frees the other \
            half. There is a worker for each CPU, at least 2 and at most 8; `double-workers` has twice as many. `tenth` has the same \
            bytes in 20 blocks. The load is the same for all arms: 70 % of what the first arm's service can answer, measured in \
            each run with glibc's malloc.",
    arms: &[
        GLIBC,
        Arm::variant("double-workers", DOUBLE),
        Arm::variant("tenth", TENTH),
        JEMALLOC,
        TCMALLOC.full(),
        MIMALLOC.full(),
    ],
    figures: &[
        Figure::higher(BEFORE, "answers in time before the surge", Unit::PerSecond),
        Figure::higher(SURGE, "answers in time in the surge", Unit::PerSecond),
        Figure::higher(GROWTH, "answers in time in the surge, as a multiple of before", Unit::None),
        Figure::higher(AFTER, "answers in time after the surge, as a multiple of before", Unit::None),
        Figure::lower("before_p99_ns", "p99 before the surge, from the intended time", Unit::Ns),
        Figure::lower(P99, "p99 in the surge, from the intended time", Unit::Ns),
        Figure::lower(P99_GROWTH, "p99 in the surge, as a multiple of before", Unit::None),
        Figure::lower(CPU, "CPU use before the surge, of the workers' CPUs", Unit::Ratio),
        Figure::lower(CPU_GROWTH, "CPU use in the surge, as a multiple of before", Unit::None),
        Figure::lower(TRIES, "tries per request", Unit::None),
    ],
    claims: &[
        Claim {
            says: "With 50 % more load, CPU use and p99 climb, and throughput does not.",
            tests: &[
                Test { what: Quantity::Value { figure: CPU_GROWTH, arm: "glibc" }, is: Bound::Above(1.1) },
                Test { what: Quantity::Value { figure: P99_GROWTH, arm: "glibc" }, is: Bound::Above(1.1) },
                Test { what: Quantity::Value { figure: GROWTH, arm: "glibc" }, is: Bound::Below(1.1) },
            ],
        },
        Claim {
            says: "Lock waits are at 30 %.",
            tests: &[Test {
                what: Quantity::Wait { line: WaitClass::Allocator, arm: "glibc" },
                is: Bound::Within(0.2, 0.4),
            }],
        },
        Claim {
            says: "More workers make it worse.",
            tests: &[
                COLLAPSE,
                Test {
                    what: Quantity::Ratio { figure: SURGE, arm: "double-workers", to: "glibc" },
                    is: Bound::Below(1.0),
                },
                Test {
                    what: Quantity::Ratio { figure: P99, arm: "double-workers", to: "glibc" },
                    is: Bound::Above(1.0),
                },
            ],
        },
        Claim { says: "Fewer allocations prevent the collapse.", tests: &prevents("tenth") },
        Claim { says: "Another allocator prevents the collapse: jemalloc.", tests: &prevents("jemalloc") },
        Claim { says: "Another allocator prevents the collapse: tcmalloc.", tests: &prevents("tcmalloc") },
        Claim { says: "Another allocator prevents the collapse: mimalloc.", tests: &prevents("mimalloc") },
    ],
    charts: &[Chart {
        file: "surge",
        title: "Times of the requests in the surge, from their intended time",
        x_title: "ns",
        y_title: "share of the requests, in tenths of a decade",
        lines: Lines::Distribution(&["surge"]),
    }],
    check: None,
    run: measure,
};

const DOUBLE: &str = "double";
const TENTH: &str = "tenth";

const WORKERS: (usize, usize) = (2, 8);
/// Part of the capacity that is offered before and after the surge.
const LOAD: f64 = 0.7;
const MORE: f64 = 1.5;
/// A fiftieth of the surge: at 5 % above the capacity, the queue is as long as that after less than half of it.
const TIMEOUT_S: f64 = 0.04;
const TIMEOUT_BOUNDS_S: (f64, f64) = (0.002, 0.026);
/// Part of a run's length in which the capacity is measured, four times, and its bounds.
const WINDOW: f64 = 0.05;
const WINDOW_BOUNDS_S: (f64, f64) = (0.01, 0.05);
/// Before the first request the workers serve others, which fill the allocator's caches.
const WARM_UP_NS: u64 = 20_000_000;

fn measure(task: &Task) -> anyhow::Result<Outcome> {
    let spec = task.spec;
    let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get());
    let usual = cpus.clamp(WORKERS.0, WORKERS.1);
    let (workers, pieces_per_block) = match spec.variant.as_str() {
        DOUBLE => (2 * usual, 1),
        TENTH => (usual, 10),
        _ => (usual, 1),
    };
    let mut random = Random::new(spec.seed);
    let sizes = service::sizes(&mut random);
    let length_s = spec.long_s();
    let window = Duration::from_secs_f64((WINDOW * length_s).clamp(WINDOW_BOUNDS_S.0, WINDOW_BOUNDS_S.1));
    let per_s = LOAD * service::capacity(service::glibc()?, usual, &sizes, window)?;
    let length_ns = (length_s * 1e9) as u64;
    let timeout_s = (TIMEOUT_S * spec.scale).clamp(TIMEOUT_BOUNDS_S.0, TIMEOUT_BOUNDS_S.1);
    // The bill is that of the surge.
    let load = surge(length_ns, MORE, spec.announce);
    let clients = Clients::new(arrivals(&mut random, per_s, length_ns, load), (timeout_s * 1e9) as u64);
    let calls = calls::real();
    let mail = Mail::new(workers);

    let meter = task.begin()?;
    let start_ns = monotonic_ns() + WARM_UP_NS;
    let [before, surge, after] = phases(length_ns);
    let cpu_ns = std::thread::scope(|scope| {
        for index in 0..workers {
            let mut worker = Worker::new(index, calls, pieces_per_block, &sizes, &mail);
            let clients = &clients;
            scope.spawn(move || {
                while monotonic_ns() < start_ns {
                    worker.answer();
                }
                clients.serve(start_ns, || worker.answer());
            });
        }
        [before.start, surge.start, after.start].map(|at| {
            while monotonic_ns() < start_ns + at {
                sleep_until(start_ns + at);
            }
            own_cpu_ns()
        })
    });
    let counts = meter.finish(clients.requests() as u64);
    mail.empty(calls);

    let third_s = length_s / 3.0;
    let used = |from: usize| (cpu_ns[from + 1] - cpu_ns[from]) as f64 / 1e9;
    let [before, surge, after] = [before, surge, after].map(|phase| clients.answers(phase));
    // Without an answer in time, as for one: a multiple of none is unknown.
    let of_before = |in_time: usize| in_time as f64 / before.in_time.max(1) as f64;
    let [p99_before, p99_surge] = [percentile(&before.times, 0.99)?, percentile(&surge.times, 0.99)?];
    let figures = [
        (BEFORE, before.in_time as f64 / third_s),
        (SURGE, surge.in_time as f64 / third_s),
        (GROWTH, of_before(surge.in_time)),
        (AFTER, of_before(after.in_time)),
        ("before_p99_ns", p99_before),
        (P99, p99_surge),
        (P99_GROWTH, p99_surge / p99_before.max(1.0)),
        (CPU, used(0) / third_s / usual.min(cpus) as f64),
        (CPU_GROWTH, used(1) / used(0).max(1e-9)),
        (TRIES, clients.tries()),
    ];
    let outcome = Outcome::of(counts, figures.map(|(key, value)| (key, Ok(value))));
    Ok(outcome.timed([("surge", surge.times)]))
}

#[cfg(test)]
mod tests {
    use super::super::claims::{Judgement, judge};
    use super::super::testing::results;
    use super::*;

    /// The judgements of the claims, without those on bills. An arm: answers in time and their growth, p99 and its growth.
    fn judged(glibc: [f64; 4], double: [f64; 4], other: [f64; 4]) -> Vec<Judgement> {
        let of = |[surge, growth, p99, p99_growth]: [f64; 4]| {
            vec![(SURGE, surge), (GROWTH, growth), (P99, p99), (P99_GROWTH, p99_growth), (CPU_GROWTH, 1.3)]
        };
        let arms = [
            ("glibc", of(glibc)),
            ("double-workers", of(double)),
            ("tenth", of(other)),
            ("jemalloc", of(other)),
            ("tcmalloc", of(other)),
            ("mimalloc", of(other)),
        ];
        let judged = judge(&results(&EXPERIMENT, 6, &arms));
        judged
            .into_iter()
            .map(|judged| judged.judgement)
            .filter(|j| !matches!(j, Judgement::CannotTest(_)))
            .collect()
    }

    #[test]
    fn a_collapse_and_a_service_that_follows_its_load_are_told_apart() {
        use Judgement::{DoesNotHold, Holds};
        let (collapse, follows) = ([600.0, 0.6, 9e7, 50.0], [1_500.0, 1.5, 3e6, 2.0]);
        let worse = [300.0, 0.3, 12e7, 70.0];
        assert_eq!(judged(collapse, worse, follows), vec![Holds; 6]);
        // Without a collapse, "it" cannot be worse, and nothing prevents it.
        assert_eq!(judged(follows, worse, follows), [DoesNotHold]);
        assert_eq!(
            judged(collapse, follows, collapse),
            [Holds, DoesNotHold, DoesNotHold, DoesNotHold, DoesNotHold, DoesNotHold]
        );
    }
}
