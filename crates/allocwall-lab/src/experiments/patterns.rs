//! The cures of a service that allocates too much, each alone and together: reused slots, an arena for each request, parsing only what
//! a request needs, and another allocator. What each removes of the time of a request, and what p99 becomes at the same load.

use super::claims::{Bound, Claim, Quantity, Test};
use super::json_requests;
use super::json_requests::record::Handler;
use super::open_loop::arrivals;
use super::task::{Outcome, Task, fine_clock, percentile};
use super::turns::Tally;
use super::{Arm, Chart, Experiment, Figure, GLIBC, Lines};
use crate::histogram::Histogram;
use allocwall_host::cycles::Cycles;
use allocwall_model::stats::random::Random;
use allocwall_model::units::{Absence, Measured, Reason};
use allocwall_trial::Unit;
use anyhow::anyhow;
use std::hint::black_box;

/// The variants of the handler with no cure and with all.
const WHOLE: &str = "all";
const TOGETHER: &str = "lazy";

const TIME: &str = "request_ns";
const SHARE: &str = "share_removed";
const ALLOCATIONS: &str = "allocations_per_request";
const OFFERED: &str = "offered_per_s";
const P50: &str = "p50_ns";
const P99: &str = "p99_ns";
const P999: &str = "p999_ns";

/// What a step of the account leaves, as a multiple of what the step before left. Two thirds and a third are not "about half".
const HALF: Bound = Bound::Within(0.34, 0.66);

const fn step(arm: &'static str, to: &'static str) -> Test {
    Test { what: Quantity::Ratio { figure: TIME, arm, to }, is: HALF }
}

pub const EXPERIMENT: Experiment = Experiment {
    name: "patterns",
    summary: "a service that allocates less, step by step: reused slots, an arena, parsing less, and all of them",
    about: "One thread serves the requests of json-requests: it parses a record of 2 KB, appends an edge and writes the record out. In \
            glibc each string and list of the record has a block of its own. pooled has them in one of 64 slots that are reused, and \
            arena in a request arena, which is emptied with one call. less parses only the edges, into blocks, and copies the rest of the text. \
            less-jemalloc does the same with jemalloc. combined parses only the edges too, and without a block: they are parts of the \
            text, and the answer's memory is reused. The time of a request is that of a closed loop. p99 is that of requests at random \
            times, from their intended start. Their load is the same in all arms: 80 % of what the parser of the arm glibc can answer, \
            measured at the start of each run.",
    arms: &[
        GLIBC,
        Arm::variant("pooled", "pooled").full(),
        Arm::variant("arena", "arena"),
        Arm::variant("less", "less"),
        Arm { variant: "less", ..Arm::with("less-jemalloc", "jemalloc") },
        Arm::variant("combined", TOGETHER),
    ],
    figures: &[
        Figure::lower(TIME, "time of a request, closed loop", Unit::Ns),
        Figure::higher(SHARE, "of the time that combined removes, what this step alone removes", Unit::Ratio),
        Figure::lower(ALLOCATIONS, "allocations of a request", Unit::Count),
        Figure::higher(OFFERED, "offered load", Unit::PerSecond),
        Figure::lower(P50, "p50 at this load, from the intended start", Unit::Ns).unprinted(),
        Figure::lower(P99, "p99 at this load, from the intended start", Unit::Ns),
        Figure::lower(P999, "p99.9 at this load, from the intended start", Unit::Ns).unprinted(),
    ],
    claims: &[
        Claim {
            says: "Of the steps, to parse less gains most; memory for each request gains less.",
            tests: &[
                // More than half of what both gain, when it is the first step.
                Test { what: Quantity::Value { figure: SHARE, arm: "less" }, is: Bound::Above(0.5) },
                // And each alone.
                Test {
                    what: Quantity::Ratio { figure: TIME, arm: "arena", to: "less" },
                    is: Bound::Above(1.0),
                },
            ],
        },
        Claim {
            // The account says so of p99, which depends on the load too, and it has jemalloc last. But memory for each request leaves
            // no call of malloc here. So jemalloc comes before it, where it still serves 11 blocks for each request.
            says: "Each of three steps halves what the one before left: to parse less, jemalloc, and memory for each request.",
            tests: &[step("less", "glibc"), step("less-jemalloc", "less"), step("combined", "less-jemalloc")],
        },
        Claim {
            says: "p99 falls from 380 to 28 ms.",
            // By 93 %: it counts as found if at least half of that is.
            tests: &[Test {
                what: Quantity::Ratio { figure: P99, arm: "combined", to: "glibc" },
                is: Bound::Below(0.54),
            }],
        },
    ],
    charts: &[Chart {
        file: "times",
        title: "Times of the requests at the same load, from their intended start",
        x_title: "ns",
        y_title: "share of the requests, in tenths of a decade",
        lines: Lines::Distribution(&["requests"]),
    }],
    check: None,
    run: measure,
};

/// Part of the capacity that is offered. The nearer to it, the longer the queue, and the more of p99 a cure removes.
const LOAD: f64 = 0.8;
/// Windows of the closed loop, each a part of a run's length. The best one counts, because pauses of the machine and cold caches can
/// only make it slower.
const WINDOWS: usize = 4;
const WINDOW: f64 = 0.05;
const WINDOW_BOUNDS_S: (f64, f64) = (0.002, 0.05);

/// Allocations of a request: a test counts them.
fn allocations(variant: &str) -> u32 {
    match variant {
        // 25 strings, 2 for the list of edges, 3 for that of the tags, and 5 for the answer, which grow.
        WHOLE => 35,
        // 7 strings, 2 for the list of edges, and 2 for the answer.
        "less" => 11,
        _ => 0,
    }
}

fn measure(task: &Task) -> anyhow::Result<Outcome> {
    let texts = json_requests::texts(task.spec.seed);
    // In a second thread, as in a service: a process with one thread takes no lock.
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| serve(task, &texts));
        worker.join().unwrap_or_else(|_| Err(anyhow!("the thread that serves requests has failed")))
    })
}

fn serve(task: &Task, texts: &[Vec<u8>]) -> anyhow::Result<Outcome> {
    let spec = task.spec;
    let clock = fine_clock();
    let [whole, own, together] =
        [WHOLE, spec.variant.as_str(), TOGETHER].map(|variant| Handler::new(variant, texts));
    let mut handlers = [whole?, own?, together?];
    let meter = task.begin()?;
    let mut requests = 0;
    if spec.announce {
        // The bill is that of the arm's own requests, without pauses between them.
        while !meter.over() {
            requests += closed_loop(&mut handlers[1], clock, WINDOW_BOUNDS_S.1)?.operations;
        }
        return Ok(Outcome::of(meter.finish(requests), []));
    }
    let window_s = (WINDOW * spec.timed_s).clamp(WINDOW_BOUNDS_S.0, WINDOW_BOUNDS_S.1);
    let mut rates = [0.0_f64; 3];
    for _ in 0..WINDOWS {
        for (handler, best) in handlers.iter_mut().zip(&mut rates) {
            let tally = closed_loop(handler, clock, window_s)?;
            requests += tally.operations;
            *best = best.max(tally.rate(1, clock));
        }
    }
    let offered = LOAD * rates[0];
    let length_ns = (spec.timed_s * 1e9) as u64;
    // With one at the start, since a short run could have none.
    let mut due = vec![0];
    due.extend(arrivals(&mut Random::new(spec.seed), offered, length_ns, |_| 1.0));
    let handler = &mut handlers[1];
    let times = open_loop(&due, clock, || {
        black_box(handler.answer()?);
        Ok(())
    })?;
    let counts = meter.finish(requests + times.count());

    // With a preloaded allocator, the arm's load is not that of the others.
    let same_load = if std::env::var_os("LD_PRELOAD").is_some() {
        let why =
            "the load is what the parser can answer with glibc's malloc, and another malloc is preloaded";
        Err(Absence::new(Reason::NotApplicable, why))
    } else {
        Ok(())
    };
    let at_load = |value: f64| same_load.clone().map(|()| value);
    let [whole_ns, own_ns, together_ns] = rates.map(|rate| 1e9 / rate);
    let share = match spec.variant.as_str() {
        WHOLE => Err(Absence::new(Reason::NotApplicable, "nothing: the others are compared with it")),
        _ => same_load.clone().and_then(|()| share_removed(whole_ns, own_ns, together_ns)),
    };
    let figures = [
        (TIME, Ok(own_ns)),
        (SHARE, share),
        (ALLOCATIONS, Ok(f64::from(allocations(&spec.variant)))),
        (OFFERED, at_load(offered)),
        (P50, at_load(percentile(&times, 0.5)?)),
        (P99, at_load(percentile(&times, 0.99)?)),
        (P999, at_load(percentile(&times, 0.999)?)),
    ];
    let outcome = Outcome::of(counts, figures);
    Ok(if same_load.is_ok() { outcome.timed([("requests", times)]) } else { outcome })
}

/// One request after the other.
fn closed_loop(handler: &mut Handler, clock: Cycles, length_s: f64) -> anyhow::Result<Tally> {
    let began = clock.now();
    let ends = began + clock.of_ns(length_s * 1e9);
    let (mut operations, mut now) = (0, began);
    while now < ends {
        black_box(handler.answer()?);
        operations += 1;
        now = clock.now();
    }
    Ok(Tally { operations, cycles: now.saturating_sub(began) })
}

/// Requests at these times since the start, whether or not earlier ones are answered; their times from there on. The thread spins
/// between them: a sleep would end some ten times as late as a request takes.
fn open_loop(
    due_ns: &[u64],
    clock: Cycles,
    mut answer: impl FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<Histogram> {
    let mut times = Histogram::default();
    let start = clock.now();
    for ns in due_ns {
        let due = start + clock.of_ns(*ns as f64);
        while clock.now() < due {
            std::hint::spin_loop();
        }
        answer()?;
        times.record(clock.ns(clock.now().saturating_sub(due)) as u64);
    }
    Ok(times)
}

/// The part of what all cures together remove that one of them removes.
fn share_removed(whole_ns: f64, own_ns: f64, together_ns: f64) -> Measured<f64> {
    if together_ns >= whole_ns {
        return Err(Absence::new(Reason::TooLittle, "all cures together remove nothing"));
    }
    Ok((whole_ns - own_ns) / (whole_ns - together_ns))
}

#[cfg(test)]
mod tests {
    use super::super::claims::{Judgement, judge};
    use super::super::testing::{allocations as counted, results};
    use super::*;

    #[test]
    fn cures_that_gain_as_published_and_others_are_told_apart() {
        use Judgement::{CannotTest, DoesNotHold, Holds};
        // The time of a request in glibc, arena, less, less-jemalloc and combined, and p99 in glibc and combined.
        let judged = |[glibc, arena, less, jemalloc, combined]: [f64; 5], p99: [f64; 2]| {
            let share = share_removed(glibc, less, combined).unwrap();
            let arms = [
                ("glibc", vec![(TIME, glibc), (P99, p99[0])]),
                ("arena", vec![(TIME, arena)]),
                ("less", vec![(TIME, less), (SHARE, share)]),
                ("less-jemalloc", vec![(TIME, jemalloc)]),
                ("combined", vec![(TIME, combined), (P99, p99[1])]),
            ];
            let judged = judge(&results(&EXPERIMENT, 6, &arms));
            judged.into_iter().map(|judged| judged.judgement).collect::<Vec<_>>()
        };
        let published = judged([400.0, 260.0, 200.0, 100.0, 50.0], [380e6, 28e6]);
        assert_eq!(published, [Holds, Holds, Holds]);
        // jemalloc removes a tenth of what parsing less leaves.
        assert_eq!(judged([400.0, 260.0, 200.0, 180.0, 90.0], [380e6, 28e6]), [Holds, DoesNotHold, Holds]);
        // The arena gains most, and p99 falls by a fifth.
        assert_eq!(judged([400.0, 150.0, 300.0, 150.0, 75.0], [380e6, 304e6]), vec![DoesNotHold; 3]);
        // On a machine without jemalloc.
        let without = [
            ("glibc", vec![(TIME, 400.0)]),
            ("less", vec![(TIME, 200.0)]),
            ("combined", vec![(TIME, 100.0)]),
        ];
        let without = judge(&results(&EXPERIMENT, 6, &without));
        let halves = &without[1].judgement;
        assert!(matches!(halves, CannotTest(why) if why.contains("less-jemalloc")), "{halves:?}");
    }

    #[test]
    fn a_share_is_that_of_what_all_remove() {
        assert_eq!(share_removed(400.0, 200.0, 100.0), Ok(2.0 / 3.0));
        // A step that costs more than it removes.
        assert!(share_removed(400.0, 430.0, 100.0).is_ok_and(|share| share < 0.0));
        assert_eq!(share_removed(400.0, 200.0, 400.0).unwrap_err().reason, Reason::TooLittle);
    }

    #[test]
    fn a_request_allocates_as_often_as_is_said() {
        for seed in [1, 7, 48] {
            let texts = json_requests::texts(seed);
            for arm in EXPERIMENT.arms {
                let mut handler = Handler::new(arm.variant, &texts).unwrap();
                let mut round = || {
                    for _ in &texts {
                        handler.answer().unwrap();
                    }
                };
                // Slots and the answer's memory are made in the first round.
                round();
                let calls = counted(round);
                let said = u64::from(allocations(arm.variant)) * texts.len() as u64;
                assert_eq!(calls, said, "{}", arm.name);
            }
        }
    }

    #[test]
    fn a_request_that_waits_for_earlier_ones_counts_from_its_intended_start() {
        let clock = Cycles::start(1_000_000);
        let answer = || {
            let ends = clock.now() + clock.of_ns(100_000.0);
            while clock.now() < ends {}
            Ok(())
        };
        // All at once: the last of three waits for the others.
        let queued = open_loop(&[0; 3], clock, answer).unwrap();
        assert!(queued.count() == 3 && queued.max().is_some_and(|ns| ns >= 299_000.0), "{queued:?}");
        // The machine may pause some requests, but not each of twenty that have a millisecond each.
        let due: Vec<u64> = (0..20).map(|nth| nth * 1_000_000).collect();
        let apart = open_loop(&due, clock, answer).unwrap();
        let best = apart.quantile(0.0).unwrap();
        assert!((99_000.0..290_000.0).contains(&best), "{best}");
    }
}
