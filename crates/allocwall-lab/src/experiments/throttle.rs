//! A service under CPU quotas, at the same load. When a cgroup has used its quota, all its threads stand still until the next period
//! of 100 ms. No clock of CPU time counts that.

use super::claims::{Bound, Claim, Quantity, Test};
use super::open_loop::arrivals;
use super::task::{Outcome, Task, percentile};
use super::{Arm, Chart, Experiment, Figure, Lines, Settings};
use crate::histogram::Histogram;
use crate::workloads::computing::Computing;
use crate::workloads::interference::Quota;
use crate::workloads::process;
use allocwall_host::cgroup::CgroupFs;
use allocwall_host::clock::{monotonic_ns, sleep_until, thread_cpu_ns};
use allocwall_model::catalogue::cost::WaitClass;
use allocwall_model::stats::random::Random;
use allocwall_model::units::{Absence, Measured, Reason};
use allocwall_trial::Unit;
use anyhow::anyhow;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

const P99: &str = "p99_ns";
const PAUSE: &str = "pause_s";
const CPU: &str = "cpu_ns_per_operation";
const LOST: &str = "lost_ns_per_request";
const THROTTLED: &str = "throttled_ns_per_request";
const EXPLAINED: &str = "throttled_of_lost";
const PERIODS: &str = "throttled_periods_per_s";

pub const EXPERIMENT: Experiment = Experiment {
    name: "throttle",
    summary: "a service under CPU quotas of 100 %, 60 % and 30 % of a CPU, at the same load",
    about: "Groups of four requests arrive at intended times, at random: on average 25 % of one CPU. A request computes for 5 ms; two \
            threads serve them. The process is in a cgroup with a quota for each period of 100 ms, or in none (`no-quota`). It looks \
            at its clock every 0.1 ms of computing; 5 ms or more between two looks are a pause. Lost time is the time of a request \
            in its thread minus that thread's CPU time.",
    arms: &[
        Arm::variant("no-quota", "all"),
        Arm::variant("quota-100", "100"),
        Arm::variant("quota-60", "60"),
        Arm::variant("quota-30", "30"),
    ],
    figures: &[
        Figure::lower("p50_ns", "p50 from the intended time", Unit::Ns),
        Figure::lower(P99, "p99 from the intended time", Unit::Ns),
        Figure::lower(PAUSE, "a pause by the process's clock, p50", Unit::Seconds),
        Figure::lower(CPU, "CPU time per request", Unit::Ns),
        Figure::lower(LOST, "lost time per request", Unit::Ns),
        Figure::lower(THROTTLED, "throttled time by the cgroup's counters, per request", Unit::Ns),
        Figure::lower(EXPLAINED, "throttled time as a multiple of lost time", Unit::None),
        Figure::lower(PERIODS, "throttled periods (nr_throttled)", Unit::PerSecond),
    ],
    claims: &[
        Claim {
            says: "Throttling makes pauses of 10 to 80 ms.",
            tests: &[Test {
                what: Quantity::Value { figure: PAUSE, arm: "quota-30" },
                is: Bound::Within(0.01, 0.08),
            }],
        },
        Claim {
            says: "No tool inside the process explains the pauses.",
            // The tail grows, and what the process can count of itself does not.
            tests: &[
                Test {
                    what: Quantity::Ratio { figure: P99, arm: "quota-30", to: "no-quota" },
                    is: Bound::Above(1.5),
                },
                Test {
                    what: Quantity::Ratio { figure: CPU, arm: "quota-30", to: "no-quota" },
                    is: Bound::Within(0.9, 1.1),
                },
            ],
        },
        Claim {
            says: "The counters of the cgroup explain them: nr_throttled climbs.",
            tests: &[
                Test { what: Quantity::Value { figure: PERIODS, arm: "quota-30" }, is: Bound::Above(0.0) },
                // More than what was lost where several threads of the group were stopped at a time.
                Test { what: Quantity::Value { figure: EXPLAINED, arm: "quota-30" }, is: Bound::Above(0.8) },
                // From this share on the diagnosis calls throttling a contributor.
                Test {
                    what: Quantity::Wait { line: WaitClass::Throttled, arm: "quota-30" },
                    is: Bound::Above(0.01),
                },
            ],
        },
        Claim {
            says: "The lower the quota, the longer the tail, at the same load.",
            tests: &[
                Test {
                    what: Quantity::Ratio { figure: P99, arm: "quota-60", to: "quota-100" },
                    is: Bound::Above(1.0),
                },
                Test {
                    what: Quantity::Ratio { figure: P99, arm: "quota-30", to: "quota-60" },
                    is: Bound::Above(1.0),
                },
            ],
        },
    ],
    charts: &[Chart {
        file: "requests",
        title: "Times of the requests, from their intended time",
        x_title: "ns",
        y_title: "share of the requests, in tenths of a decade",
        lines: Lines::Distribution(&["requests"]),
    }],
    check: Some(check),
    run: measure,
};

const THREADS: usize = 2;
/// Requests that arrive together.
const GROUP: usize = 4;
/// CPU time of a request: this many times 0.1 ms.
const SLICES: u32 = 50;
const SLICE_US: u32 = 100;
/// Of one CPU.
const LOAD: f64 = 0.25;
/// Other pauses, of the scheduler and the hypervisor, are mostly shorter.
const PAUSE_NS: u64 = 5_000_000;
/// Time for the process to end, after which its cgroup is removed from outside.
const SPARE_S: u32 = 60;

/// In CPUs; None without a quota.
fn quota(variant: &str) -> Option<f64> {
    variant.parse().ok().map(|percent: f64| percent / 100.0)
}

fn check(arm: &Arm, _: &Settings) -> Measured<()> {
    quota(arm.variant).map_or(Ok(()), |_| Quota::check())
}

/// What the threads that serve have measured of themselves.
#[derive(Default)]
struct Served {
    /// From the intended time.
    times: Histogram,
    pauses: Histogram,
    /// In requests, without CPU time.
    lost_ns: u64,
}

impl Served {
    fn add(&mut self, other: &Served) {
        self.times.add(&other.times);
        self.pauses.add(&other.pauses);
        self.lost_ns += other.lost_ns;
    }

    /// A request that was due at this time, in slices.
    fn request(&mut self, due_ns: u64, mut slice: impl FnMut()) {
        // A thread that wakes up too late loses that time too.
        let taken_ns = monotonic_ns().max(due_ns);
        sleep_until(due_ns);
        let cpu_ns = thread_cpu_ns();
        let mut last_ns = taken_ns;
        for _ in 0..SLICES {
            slice();
            let now_ns = monotonic_ns();
            // A signal can end the sleep before the request is due.
            let slice_ns = now_ns.saturating_sub(last_ns);
            if slice_ns >= PAUSE_NS {
                self.pauses.record(slice_ns);
            }
            last_ns = now_ns;
        }
        self.lost_ns += last_ns.saturating_sub(taken_ns).saturating_sub(thread_cpu_ns() - cpu_ns);
        self.times.record(last_ns.saturating_sub(due_ns));
    }
}

/// Periods in which the quota was used up, and throttled time in ns, so far.
pub(super) fn throttled() -> Measured<(u64, u64)> {
    let tick = CgroupFs::live()?.group_of(std::process::id() as i32)?.tick()?;
    Ok((tick.throttled_periods, tick.throttled_ns))
}

fn measure(task: &Task) -> anyhow::Result<Outcome> {
    let spec = task.spec;
    let length_s = spec.long_s();
    let request_s = f64::from(SLICES * SLICE_US) / 1e6;
    let groups_per_s = LOAD / (request_s * GROUP as f64);
    // With one at the start, since a short run could have none.
    let mut due: Vec<u64> = vec![0];
    due.extend(arrivals(&mut Random::new(spec.seed), groups_per_s, (length_s * 1e9) as u64, |_| 1.0));
    let due: Vec<u64> = due.into_iter().flat_map(|at| [at; GROUP]).collect();
    // Calibrated before the quota applies.
    let mut computing = [(); THREADS].map(|()| Computing::new());
    let quota = quota(&spec.variant)
        .map(|cpus| {
            // Its cgroup must be removed if a recorder ends it early.
            process::end_on_signals();
            Quota::enter(cpus, length_s as u32 + SPARE_S)
        })
        .transpose()?;

    let before = throttled();
    let next = AtomicUsize::new(0);
    let meter = task.begin()?;
    let start_ns = monotonic_ns();
    let mut served = Served::default();
    std::thread::scope(|scope| -> anyhow::Result<()> {
        let threads = computing.each_mut().map(|computing| {
            let (due, next) = (&due, &next);
            scope.spawn(move || {
                let mut served = Served::default();
                // Relaxed: each number is taken once.
                while let Some(at) = due.get(next.fetch_add(1, Relaxed)) {
                    if process::asked_to_end() {
                        break;
                    }
                    served.request(start_ns + at, || computing.spin(SLICE_US));
                }
                served
            })
        });
        for thread in threads {
            served.add(&thread.join().map_err(|_| anyhow!("a thread that serves requests has failed"))?);
        }
        Ok(())
    })?;
    let requests = served.times.count();
    let counts = meter.finish(requests);
    let counted = before.and_then(|before| {
        let after = throttled()?;
        Ok((after.0.saturating_sub(before.0), after.1.saturating_sub(before.1)))
    });
    drop(quota);
    let each = |ns: u64| ns as f64 / requests.max(1) as f64;
    let figures = [
        ("p50_ns", Ok(percentile(&served.times, 0.5)?)),
        (P99, Ok(percentile(&served.times, 0.99)?)),
        (PAUSE, pause_s(&served.pauses)),
        (LOST, Ok(each(served.lost_ns))),
        (THROTTLED, counted.clone().map(|(_, ns)| each(ns))),
        (EXPLAINED, counted.clone().and_then(|(_, ns)| explained(ns, served.lost_ns))),
        (PERIODS, counted.map(|(periods, _)| periods as f64 / counts.seconds)),
    ];
    let Served { times, pauses, .. } = served;
    Ok(Outcome::of(counts, figures).timed([("requests", times), ("pauses", pauses)]))
}

fn pause_s(pauses: &Histogram) -> Measured<f64> {
    let none = || Absence::new(Reason::TooLittle, format!("no pause of {} ms or more", PAUSE_NS / 1_000_000));
    Ok(pauses.quantile(0.5).ok_or_else(none)? / 1e9)
}

fn explained(throttled_ns: u64, lost_ns: u64) -> Measured<f64> {
    if lost_ns == 0 {
        return Err(Absence::new(Reason::TooLittle, "the requests lost no time"));
    }
    Ok(throttled_ns as f64 / lost_ns as f64)
}

#[cfg(test)]
mod tests {
    use super::super::claims::{Judgement, judge};
    use super::super::testing::results;
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_request_that_stands_still_has_a_pause_and_loses_time_and_one_that_computes_has_not() {
        let of = |sleeps: bool| {
            let mut served = Served::default();
            let mut nth = 0;
            served.request(monotonic_ns(), || {
                nth += 1;
                if sleeps && nth == 7 {
                    std::thread::sleep(Duration::from_millis(30));
                }
            });
            assert_eq!((nth, served.times.count()), (SLICES, 1));
            served
        };
        let paused = of(true);
        assert!(paused.pauses.max().is_some_and(|ns| ns >= 30e6) && paused.lost_ns >= 29_000_000);
        assert!(pause_s(&paused.pauses).is_ok_and(|s| s >= 0.005));
        // The machine itself may pause a run, but not each of twenty.
        assert!((0..20).any(|_| pause_s(&of(false).pauses).is_err()));
    }

    #[test]
    fn a_request_counts_from_the_time_at_which_it_was_due() {
        let mut served = Served::default();
        served.request(monotonic_ns() - 50_000_000, || ());
        assert!(served.times.max().is_some_and(|ns| ns >= 50e6));
        // It came too late, but it lost nothing here.
        let mut served: Vec<Served> = (0..20).map(|_| Served::default()).collect();
        served.iter_mut().for_each(|served| served.request(monotonic_ns() - 50_000_000, || ()));
        assert!(served.iter().any(|served| served.lost_ns < 10_000_000));
    }

    #[test]
    fn throttled_time_is_compared_with_lost_time() {
        assert_eq!(explained(90, 100), Ok(0.9));
        assert!(explained(90, 0).is_err());
        assert_eq!(["all", "100", "30"].map(quota), [None, Some(1.0), Some(0.3)]);
    }

    #[test]
    fn pauses_by_the_quota_and_other_pauses_are_told_apart() {
        use Judgement::{DoesNotHold, Holds};
        let judged = |p99: f64, pause: f64, cpu: f64, explained: f64| {
            let of = |p99: f64, cpu: f64| vec![(P99, p99), (CPU, cpu)];
            let hit = vec![(P99, p99), (PAUSE, pause), (CPU, cpu), (EXPLAINED, explained), (PERIODS, 4.0)];
            let arms = [
                ("no-quota", of(1e7, 5e6)),
                ("quota-100", of(1e7, 5e6)),
                ("quota-60", of(2e7, 5e6)),
                ("quota-30", hit),
            ];
            let judged = judge(&results(&EXPERIMENT, 6, &arms));
            judged.into_iter().map(|judged| judged.judgement).collect::<Vec<_>>()
        };
        let throttled = judged(9e7, 0.06, 5e6, 1.0);
        assert_eq!((&throttled[0], &throttled[1], &throttled[3]), (&Holds, &Holds, &Holds));
        // The line of the bill is missing.
        assert!(matches!(throttled[2], Judgement::CannotTest(_)));
        // The pauses are short, the CPU time grows too, and the cgroup was throttled for less time than was lost.
        assert_eq!(judged(1.5e7, 0.006, 8e6, 0.1), vec![DoesNotHold; 4]);
    }
}
