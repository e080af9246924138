//! Garbage collector or allocator: two programs in CPython that spend their time in memory work, one in each. Both look the same from
//! afar: high CPU use and a long tail.

use super::claims::{Bound, Claim, Quantity, Test};
use super::python::{self, Interpreter};
use super::task::{Counts, Outcome, Task, percentile};
use super::{Arm, Chart, Experiment, Figure, Lines, Settings};
use crate::histogram::Histogram;
use allocwall_model::catalogue::cost::CostClass;
use allocwall_model::units::{Absence, Measured, Reason};
use allocwall_trial::Unit;
use serde::Deserialize;

const P999: &str = "p999_ns";
const COLLECTION: &str = "collection_p50_ns";
const COLLECTING: &str = "collecting";
const TAIL: &str = "tail_in_collections";

pub const EXPERIMENT: Experiment = Experiment {
    name: "gc-or-allocator",
    summary: "two programs in CPython, one slow by its garbage collector, one by malloc: what tells them apart",
    about: "CPython serves requests, one after the other, in a heap of 200,000 lists. `neither` computes, with the collector off. A \
            request of `collector` makes 100 pairs of objects that refer to each other, and each 250th request collects. A request of \
            `allocator` makes and drops 300 objects of 1,100 to 1,499 bytes, which come from malloc, with the collector off. The \
            collector's own log is that of gc.callbacks. Needs python3.",
    arms: &[
        Arm::variant("neither", "neither"),
        Arm::variant("collector", "collector"),
        Arm::variant("allocator", "allocator"),
    ],
    figures: &[
        Figure::lower("p50_ns", "a request, p50", Unit::Ns),
        Figure::lower(P999, "a request, p99.9", Unit::Ns),
        Figure::lower(COLLECTION, "a full collection by the collector's log, p50", Unit::Ns),
        Figure::lower(COLLECTING, "share of the time in collections, by the collector's log", Unit::Ratio),
        Figure::lower(TAIL, "of the time of the slowest 0.1 % of the requests: in collections", Unit::Ratio),
    ],
    claims: &[
        Claim {
            says: "On-CPU frames tell a garbage collector from an allocator.",
            tests: &[
                Test {
                    what: Quantity::Bill { line: CostClass::GarbageCollector, arm: "collector" },
                    is: Bound::Above(0.2),
                },
                Test {
                    what: Quantity::Bill { line: CostClass::GarbageCollector, arm: "allocator" },
                    is: Bound::Below(0.03),
                },
                Test {
                    what: Quantity::Bill { line: CostClass::AllocatorCode, arm: "allocator" },
                    is: Bound::Above(0.2),
                },
                Test {
                    what: Quantity::Bill { line: CostClass::AllocatorCode, arm: "collector" },
                    is: Bound::Below(0.03),
                },
            ],
        },
        Claim {
            says: "Pauses of a garbage collector correlate with its log.",
            tests: &[
                Test { what: Quantity::Value { figure: TAIL, arm: "collector" }, is: Bound::Above(0.8) },
                Test { what: Quantity::Value { figure: TAIL, arm: "allocator" }, is: Bound::Below(0.03) },
            ],
        },
    ],
    charts: &[Chart {
        file: "requests",
        title: "Times of the requests",
        x_title: "ns",
        y_title: "share of the requests, in tenths of a decade",
        lines: Lines::Distribution(&["requests"]),
    }],
    check: Some(check),
    run: measure,
};

fn check(_: &Arm, _: &Settings) -> Measured<()> {
    python::check()
}

/// What the interpreter prints.
#[derive(Deserialize)]
struct Answer {
    seconds: f64,
    cpu_s: f64,
    minor_faults: u64,
    /// Of the requests, in their order.
    times_ns: Vec<u64>,
    log: Vec<Collection>,
}

/// The number of the request from 0, and the length of a collection in it.
#[derive(Clone, Copy, Debug, Deserialize)]
struct Collection(usize, u64);

fn measure(task: &Task) -> anyhow::Result<Outcome> {
    let (variant, length_s) = (&task.spec.variant, task.spec.long_s().to_string());
    let program = include_str!("gc_or_allocator/program.py");
    let mut python = Interpreter::start(program, &[variant, &length_s])?;
    python.ready()?;
    task.begin()?;
    python.send(b"\n")?;
    outcome(python.result()?)
}

fn outcome(answer: Answer) -> anyhow::Result<Outcome> {
    let Answer { seconds, cpu_s, minor_faults, times_ns, log } = answer;
    let (mut requests, mut collections) = (Histogram::default(), Histogram::default());
    times_ns.iter().for_each(|ns| requests.record(*ns));
    log.iter().for_each(|collection| collections.record(collection.1));
    let none = || Absence::new(Reason::NotApplicable, "the collector did not run");
    let collecting_ns: u64 = log.iter().map(|collection| collection.1).sum();
    let figures = [
        ("p50_ns", Ok(percentile(&requests, 0.5)?)),
        (P999, Ok(percentile(&requests, 0.999)?)),
        (COLLECTION, full_ns(&log).ok_or_else(none)),
        (COLLECTING, Ok(collecting_ns as f64 / 1e9 / seconds.max(1e-9))),
        (TAIL, Ok(tail_in_collections(&times_ns, &log))),
    ];
    let operations = times_ns.len() as u64;
    let counts = Counts { operations, seconds, cpu_s, minor_faults: Ok(minor_faults) };
    Ok(Outcome::of(counts, figures).timed([("requests", requests), ("collections", collections)]))
}

/// The median length of full collections: those of at least half the length of the longest one. The others are of young generations.
fn full_ns(log: &[Collection]) -> Option<f64> {
    let longest = log.iter().map(|collection| collection.1).max()?;
    let mut full = Histogram::default();
    log.iter().filter(|collection| collection.1 >= longest / 2).for_each(|c| full.record(c.1));
    full.quantile(0.5)
}

/// The part in collections of the time of the slowest 0.1 % of the requests, at least one of them.
fn tail_in_collections(times_ns: &[u64], log: &[Collection]) -> f64 {
    let mut in_collections = vec![0; times_ns.len()];
    for Collection(request, ns) in log {
        if let Some(sum) = in_collections.get_mut(*request) {
            *sum += ns;
        }
    }
    let mut all: Vec<(u64, u64)> = times_ns.iter().copied().zip(in_collections).collect();
    all.sort_unstable_by(|a, b| b.cmp(a));
    let tail = &all[..all.len().div_ceil(1_000)];
    let sum = |of: fn(&(u64, u64)) -> u64| tail.iter().map(of).sum::<u64>() as f64;
    sum(|request| request.1) / sum(|request| request.0).max(1.0)
}

#[cfg(test)]
mod tests {
    use super::super::bill::{Bill, Line};
    use super::super::claims::{Judgement, judge};
    use super::super::testing::results;
    use super::*;
    use allocwall_model::units::Interval;

    /// 2,000 requests of 1 µs, of which two are slower.
    fn times(slow: [u64; 2]) -> Vec<u64> {
        let mut times = vec![1_000; 2_000];
        (times[10], times[500]) = (slow[0], slow[1]);
        times
    }

    #[test]
    fn a_tail_by_the_collector_and_another_tail_are_told_apart() {
        let tail = times([10_000_000, 30_000_000]);
        let part = |log: &[Collection]| tail_in_collections(&tail, log);
        assert_eq!(
            part(&[Collection(10, 9_000_000), Collection(500, 20_000_000), Collection(500, 7_000_000)]),
            0.9
        );
        // The collections were in other requests, or there were none.
        assert_eq!((part(&[Collection(11, 900)]), part(&[])), (0.0, 0.0));
        // An entry for a request that does not exist, and no request at all.
        assert_eq!(part(&[Collection(2_000, 900)]), 0.0);
        assert_eq!(tail_in_collections(&[], &[Collection(0, 5)]), 0.0);
    }

    #[test]
    fn collections_of_the_young_do_not_hide_the_full_ones() {
        let log = [20, 9_000_000, 30, 10_000_000, 25, 11_000_000].map(|ns| Collection(0, ns));
        assert!(full_ns(&log).is_some_and(|ns| (ns / 1e7 - 1.0).abs() < 0.001));
        assert_eq!(full_ns(&[]), None);
    }

    #[test]
    fn an_answer_becomes_an_outcome_and_without_a_collection_it_says_so() {
        let answer = |log: Vec<Collection>| Answer {
            seconds: 0.1,
            cpu_s: 0.1,
            minor_faults: 7,
            times_ns: times([10_000_000, 30_000_000]),
            log,
        };
        let with = outcome(answer(vec![Collection(10, 9_000_000), Collection(500, 27_000_000)])).unwrap();
        assert_eq!((with.counts.operations, with.figures[TAIL]), (2_000, 0.9));
        assert!((with.figures[COLLECTING] - 0.36).abs() < 1e-9 && with.absent.is_empty());
        let without = outcome(answer(vec![])).unwrap();
        assert_eq!((without.figures[COLLECTING], without.absent.contains_key(COLLECTION)), (0.0, true));
        let nothing = Answer { seconds: 0.0, cpu_s: 0.0, minor_faults: 0, times_ns: vec![], log: vec![] };
        assert!(outcome(nothing).is_err());
    }

    #[test]
    fn two_programs_with_their_bills_are_told_apart_and_two_that_are_alike_are_not() {
        use Judgement::{DoesNotHold, Holds};
        // Shares in the bill of each arm: collector, allocator. And the part of the tail in collections.
        let judged = |collector: ([f64; 2], f64), allocator: ([f64; 2], f64)| {
            let of = |part: f64| vec![(TAIL, part)];
            let arms = [("neither", of(0.0)), ("collector", of(collector.1)), ("allocator", of(allocator.1))];
            let mut results = results(&EXPERIMENT, 6, &arms);
            for (arm, shares) in [(2, collector.0), (3, allocator.0)] {
                let classes = [CostClass::GarbageCollector, CostClass::AllocatorCode];
                let line = |(class, share): (CostClass, f64)| Line {
                    class: class.key().into(),
                    title: class.title().into(),
                    share: Ok(Interval::new(share - 0.01, share, share + 0.01)),
                };
                let on_cpu = classes.into_iter().zip(shares).map(line).collect();
                results.bills.insert(arm, Ok(Bill { verdict: String::new(), on_cpu, off_cpu: vec![] }));
            }
            judge(&results).into_iter().map(|judged| judged.judgement).collect::<Vec<_>>()
        };
        assert_eq!(judged(([0.4, 0.01], 0.95), ([0.01, 0.4], 0.0)), [Holds, Holds]);
        assert_eq!(judged(([0.4, 0.01], 0.2), ([0.4, 0.01], 0.2)), [DoesNotHold, DoesNotHold]);
    }
}
