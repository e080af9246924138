//! A service that rewrites manifests: a request is a JSON record of 2 KB, to which an edge is appended. It is the test of convergence:
//! if the allocators no longer differ once requests reuse their memory, the difference was the allocator's.
//!
//! The published pool still parsed each document into new objects, and its harness was in CPython, where most of these objects have at
//! most 512 bytes and never reach malloc. Here the pool allocates nothing: a test in `record.rs` counts the calls.

pub(super) mod record;

use super::claims::{Bound, Claim, Quantity, Test};
use super::python::{self, Interpreter};
use super::task::{Counts, Outcome, Task, fine_clock, percentile};
use super::turns::{self, Tally, Turns};
use super::{
    Arm, Chart, Experiment, Figure, GLIBC, JEMALLOC, JEMALLOC_PERCPU, Lines, MIMALLOC, SNMALLOC, Settings,
    TCMALLOC, TCMALLOC_PERCPU,
};
use crate::histogram::Histogram;
use allocwall_host::cycles::Cycles;
use allocwall_model::stats::random::Random;
use allocwall_model::units::{Absence, Measured, Reason};
use allocwall_trial::Unit;
use record::Handler;
use serde::Deserialize;
use std::hint::black_box;

const PYTHON: &str = "python";

const fn pooled(name: &'static str, with: &'static str) -> Arm {
    Arm { name, with, variant: "pooled", quick: true }
}

const fn jemalloc(name: &'static str, variant: &'static str) -> Arm {
    Arm { name, with: "jemalloc", variant, quick: true }
}

/// Throughput and times: with 1 thread, and with 2 for each CPU.
const ALONE: [&str; 4] = ["rate_1", "p50_1_ns", "p99_1_ns", "p999_1_ns"];
const MANY: [&str; 4] = ["rate_2n", "p50_2n_ns", "p99_2n_ns", "p999_2n_ns"];
const RATE: &str = ALONE[0];
const P99: &str = ALONE[2];
const P999: &str = ALONE[3];

pub const EXPERIMENT: Experiment = Experiment {
    name: "json-requests",
    summary: "a JSON record of 2 KB is parsed, extended and written: each allocator, and without allocations",
    about: "A request parses a record, appends an edge and writes the record out. In the arms with an allocator's name it is parsed into \
            strings and lists; in value into a tree of values; in pooled into one of 64 slots that are reused, without a call of malloc; \
            in arena into the thread's request arena; in lazy only the edges are parsed. The arms of python use json.loads and don't \
            write. Closed loop: a thread begins a request when its last one has ended, so a time is that of the work. 1 thread and 2 for \
            each CPU take turns within a run.",
    arms: &[
        GLIBC,
        JEMALLOC,
        JEMALLOC_PERCPU,
        TCMALLOC.full(),
        TCMALLOC_PERCPU,
        MIMALLOC.full(),
        SNMALLOC.full(),
        pooled("pooled", "none"),
        pooled("pooled-jemalloc", "jemalloc"),
        pooled("pooled-tcmalloc", "tcmalloc").full(),
        pooled("pooled-mimalloc", "mimalloc").full(),
        pooled("pooled-snmalloc", "snmalloc").full(),
        Arm::variant("value", "value"),
        jemalloc("value-jemalloc", "value"),
        Arm::variant("arena", "arena").full(),
        Arm::variant("lazy", "lazy").full(),
        Arm::variant("python", PYTHON),
        jemalloc("python-jemalloc", PYTHON),
    ],
    figures: &[
        Figure::higher(ALONE[0], "requests, 1 thread", Unit::PerSecond),
        Figure::lower(ALONE[1], "time of a request, 1 thread, p50", Unit::Ns),
        Figure::lower(ALONE[2], "time of a request, 1 thread, p99", Unit::Ns),
        Figure::lower(ALONE[3], "time of a request, 1 thread, p99.9", Unit::Ns),
        Figure::higher(MANY[0], "requests, 2 threads a CPU", Unit::PerSecond),
        Figure::lower(MANY[1], "time of a request, 2 threads a CPU, p50", Unit::Ns).unprinted(),
        Figure::lower(MANY[2], "time of a request, 2 threads a CPU, p99", Unit::Ns),
        Figure::lower(MANY[3], "time of a request, 2 threads a CPU, p99.9", Unit::Ns).unprinted(),
    ],
    // A published gain counts as found if at least half of it is.
    claims: &[
        Claim {
            says: "jemalloc serves 1.4 times as many requests as glibc.",
            // Python's objects are a tree of values.
            tests: &[Test {
                what: Quantity::Ratio { figure: RATE, arm: "value-jemalloc", to: "value" },
                is: Bound::Above(1.2),
            }],
        },
        Claim {
            says: "Reused slots serve 1.8 times as many requests with glibc.",
            // Both parse with the same code.
            tests: &[Test {
                what: Quantity::Ratio { figure: RATE, arm: "pooled", to: "glibc" },
                is: Bound::Above(1.4),
            }],
        },
        Claim {
            says: "With reused slots and glibc, p99 falls from 34 to 14 µs, and p99.9 from 210 to 62 µs.",
            tests: &[
                Test {
                    what: Quantity::Ratio { figure: P99, arm: "pooled", to: "glibc" },
                    is: Bound::Below(0.7),
                },
                Test {
                    what: Quantity::Ratio { figure: P999, arm: "pooled", to: "glibc" },
                    is: Bound::Below(0.65),
                },
            ],
        },
        Claim {
            says: "jemalloc is faster than glibc only as long as requests allocate, so the difference is the allocator's.",
            tests: &[
                Test {
                    what: Quantity::Ratio { figure: RATE, arm: "jemalloc", to: "glibc" },
                    is: Bound::Above(1.05),
                },
                Test {
                    what: Quantity::Ratio { figure: RATE, arm: "pooled-jemalloc", to: "pooled" },
                    is: Bound::Within(0.95, 1.05),
                },
            ],
        },
        Claim {
            says: "mimalloc is faster than glibc only as long as requests allocate, so the difference is the allocator's.",
            tests: &[
                Test {
                    what: Quantity::Ratio { figure: RATE, arm: "mimalloc", to: "glibc" },
                    is: Bound::Above(1.05),
                },
                Test {
                    what: Quantity::Ratio { figure: RATE, arm: "pooled-mimalloc", to: "pooled" },
                    is: Bound::Within(0.95, 1.05),
                },
            ],
        },
        Claim {
            says: "In CPython, jemalloc serves 128,000 requests a second and glibc 91,000: 1.4 times as many.",
            tests: &[Test {
                what: Quantity::Ratio { figure: RATE, arm: "python-jemalloc", to: "python" },
                is: Bound::Above(1.2),
            }],
        },
    ],
    charts: &[Chart {
        file: "times",
        title: "Times of a request, 1 thread",
        x_title: "ns",
        y_title: "share of the requests, in tenths of a decade",
        lines: Lines::Distribution(&["alone"]),
    }],
    check: Some(check),
    run: measure,
};

/// Distinct records: each is parsed into a slot of its own.
const RECORDS: usize = 64;
/// Requests of each thread that are not timed.
const WARM_UP: usize = 2_000;

fn check(arm: &Arm, _: &Settings) -> Measured<()> {
    if arm.variant == PYTHON { python::check() } else { Ok(()) }
}

/// The texts of the requests.
pub(super) fn texts(seed: u64) -> Vec<Vec<u8>> {
    let mut random = Random::new(seed);
    (0..RECORDS).map(|_| record::text(&mut random)).collect()
}

/// What was done with one number of threads.
#[derive(Default)]
struct Done {
    times: Histogram,
    tally: Tally,
}

fn measure(task: &Task) -> anyhow::Result<Outcome> {
    let texts = texts(task.spec.seed);
    if task.spec.variant == PYTHON {
        return in_python(task, &texts);
    }
    let clock = fine_clock();
    let threads = [1, turns::twice_the_cpus()];
    let (meter, workers) =
        turns::run(task, clock, &threads, |turns| work(turns, clock, &task.spec.variant, &texts))?;
    let mut sums = <[Done; 2]>::default();
    for worker in workers {
        for (sum, done) in sums.iter_mut().zip(worker?) {
            sum.times.add(&done.times);
            sum.tally.add(done.tally);
        }
    }
    let counts = meter.finish(sums.iter().map(|sum| sum.tally.operations).sum());
    let mut figures = vec![];
    for ((sum, threads), keys) in sums.iter().zip(threads).zip([ALONE, MANY]) {
        figures.extend(keys.into_iter().zip(summary(sum.tally.rate(threads, clock), &sum.times)?));
    }
    let [alone, many] = sums.map(|sum| sum.times);
    let outcome = Outcome::of(counts, figures.into_iter().map(|(key, value)| (key, Ok(value))));
    Ok(outcome.timed([("alone", alone), ("many", many)]))
}

/// The figures of one number of threads, in the order of their keys.
fn summary(rate: f64, times: &Histogram) -> anyhow::Result<[f64; 4]> {
    Ok([rate, percentile(times, 0.5)?, percentile(times, 0.99)?, percentile(times, 0.999)?])
}

fn work(turns: Turns, clock: Cycles, variant: &str, texts: &[Vec<u8>]) -> anyhow::Result<[Done; 2]> {
    let mut handler = Handler::new(variant, texts)?;
    for _ in 0..WARM_UP {
        handler.answer()?;
    }
    let mut all = <[Done; 2]>::default();
    for turn in turns {
        let done = &mut all[turn.nth];
        let mut ended = turn.began;
        while ended < turn.ends {
            let began = clock.now();
            black_box(handler.answer()?);
            ended = clock.now();
            done.times.record(clock.ns(ended.saturating_sub(began)) as u64);
            done.tally.operations += 1;
        }
        done.tally.cycles += ended.saturating_sub(turn.began);
    }
    Ok(all)
}

/// What the interpreter prints.
#[derive(Deserialize)]
struct Answer {
    requests: u64,
    seconds: f64,
    cpu_s: f64,
    minor_faults: u64,
    times: Histogram,
}

fn in_python(task: &Task, texts: &[Vec<u8>]) -> anyhow::Result<Outcome> {
    let program = include_str!("json_requests/requests.py");
    let mut python = Interpreter::start(program, &[&task.spec.timed_s.to_string()])?;
    python.send(&texts.join(&b'\n'))?;
    python.end_input();
    python.ready()?;
    task.begin()?;
    outcome(python.result()?)
}

fn outcome(answer: Answer) -> anyhow::Result<Outcome> {
    let Answer { requests, seconds, cpu_s, minor_faults, times } = answer;
    let counts = Counts { operations: requests, seconds, cpu_s, minor_faults: Ok(minor_faults) };
    let alone = summary(requests as f64 / seconds.max(1e-9), &times)?.map(Ok);
    let many = || Err(Absence::new(Reason::NotApplicable, "the interpreter runs one thread at a time"));
    let figures = ALONE.into_iter().zip(alone).chain(MANY.into_iter().map(|key| (key, many())));
    Ok(Outcome::of(counts, figures).timed([("alone", times)]))
}

#[cfg(test)]
mod tests {
    use super::super::claims::{Judgement, judge};
    use super::super::testing::results;
    use super::*;

    /// The judgements of both tests of convergence and the one of CPython, if arms serve so many requests.
    fn judged(glibc: f64, jemalloc: f64, pooled: f64, pooled_jemalloc: f64, python: f64) -> [Judgement; 3] {
        let arms = [
            ("glibc", glibc),
            ("jemalloc", jemalloc),
            ("pooled", pooled),
            ("pooled-jemalloc", pooled_jemalloc),
            ("python", 91e3),
            ("python-jemalloc", python),
        ];
        let arms = arms.map(|(arm, rate)| (arm, vec![(RATE, rate)]));
        let judged = judge(&results(&EXPERIMENT, 6, &arms));
        [3, 4, 5].map(|nth| judged[nth].judgement.clone())
    }

    #[test]
    fn a_difference_that_pooling_removes_is_the_allocators() {
        use Judgement::{CannotTest, DoesNotHold, Holds};
        let [jemalloc, mimalloc, python] = judged(91e3, 128e3, 165e3, 171e3, 128e3);
        assert_eq!([jemalloc, python], [Holds, Holds]);
        assert!(matches!(&mimalloc, CannotTest(why) if why.contains("mimalloc")), "{mimalloc:?}");
        // The difference remains; and there is none.
        let [remains, _, python] = judged(91e3, 128e3, 165e3, 190e3, 92e3);
        assert_eq!([remains, python], [DoesNotHold, DoesNotHold]);
        assert_eq!(judged(91e3, 91e3, 165e3, 165e3, 128e3)[0], DoesNotHold);
    }

    #[test]
    fn the_result_of_the_interpreter_is_read_and_another_text_is_refused() {
        let text = r#"{"requests": 4, "seconds": 0.5, "cpu_s": 0.4, "minor_faults": 3, "times": [[7000, 3], [9000, 1]]}"#;
        let outcome = |text: &str| super::outcome(serde_json::from_str(text)?);
        let read = outcome(text).unwrap();
        assert_eq!((read.figures[RATE], read.counts.operations), (8.0, 4));
        assert!((read.figures[ALONE[1]] / 7_000.0 - 1.0).abs() < 1e-3);
        assert!(MANY.iter().all(|key| read.absent.contains_key(*key)));
        for wrong in ["", "{}", &text.replace("[[7000, 3], [9000, 1]]", "[]")] {
            assert!(outcome(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn only_the_arms_of_python_need_an_interpreter() {
        let settings = Settings::quick(7);
        for arm in EXPERIMENT.arms {
            if let Err(missing) = check(arm, &settings) {
                assert!(
                    arm.variant == PYTHON && missing.detail.contains("python3"),
                    "{}: {missing}",
                    arm.name
                );
            }
        }
    }
}
