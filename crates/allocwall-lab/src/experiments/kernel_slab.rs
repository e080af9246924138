//! The kernel's own allocator: a service that makes a socket pair, opens a file and looks up a name for each request, against one that
//! keeps them.

use super::claims::{Bound, Claim, Quantity, Test};
use super::task::{Outcome, Task, fine_clock, percentile};
use super::{Arm, Chart, Experiment, Figure, JEMALLOC, Lines};
use crate::histogram::Histogram;
use crate::workloads::sockets::{ask, look_up};
use allocwall_model::catalogue::cost::CostClass;
use allocwall_trial::Unit;
use anyhow::{Context, bail};
use std::env::current_exe;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

/// The variants of the program.
const CHURN: &str = "churn";
const KEPT_SOCKETS: &str = "kept-sockets";
const KEPT_FILES: &str = "kept-files";
const SAME_CALLS: &str = "same-calls";
const KEPT: &str = "kept";

const REQUEST: &str = "ns_per_operation";
const P99: &str = "request_p99_ns";

pub const EXPERIMENT: Experiment = Experiment {
    name: "kernel-slab",
    summary: "connections and files that are made for each request: what the kernel's own allocator costs",
    about: "One thread serves requests. For each one it makes a socket pair, sends 64 bytes through it and closes it, looks up a name \
            that does not exist, opens a file that is in the page cache, reads 64 bytes of it and closes it. `kept` sends through a \
            pair that it keeps, reads a file that it keeps open, and looks nothing up: 3 system calls instead of 9. `same-calls` does \
            the same, and makes 6 more calls that allocate nothing. `kept-sockets` and `kept-files` keep only the pair, or only the \
            file and the name. The program itself allocates nothing.",
    arms: &[
        Arm::variant("glibc", CHURN),
        Arm { variant: CHURN, ..JEMALLOC },
        Arm::variant("kept-sockets", KEPT_SOCKETS).full(),
        Arm::variant("kept-files", KEPT_FILES).full(),
        Arm::variant("same-calls", SAME_CALLS),
        Arm::variant("kept", KEPT),
    ],
    figures: &[
        Figure::lower(REQUEST, "a request: time", Unit::Ns),
        Figure::lower("cpu_ns_per_operation", "a request: CPU time", Unit::Ns).unprinted(),
        Figure::lower(P99, "a request: p99", Unit::Ns),
    ],
    claims: &[
        Claim {
            says: "Connections and files that are made for each request cost the kernel's own allocator enough to be the wall.",
            // The share from which `diagnose` calls it that.
            tests: &[Test {
                what: Quantity::Bill { line: CostClass::KernelSlab, arm: "glibc" },
                is: Bound::Above(0.15),
            }],
        },
        Claim {
            says: "Most of their cost is the kernel's own allocator.",
            tests: &[Test {
                what: Quantity::Bill { line: CostClass::KernelSlab, arm: "glibc" },
                is: Bound::Above(0.5),
            }],
        },
        Claim {
            says: "Kept connections and files take most of the cost away.",
            tests: &[Test {
                what: Quantity::Ratio { figure: REQUEST, arm: "kept", to: "glibc" },
                is: Bound::Below(0.5),
            }],
        },
        Claim {
            says: "The objects cost more than the calls that make them.",
            tests: &[Test {
                what: Quantity::Between { figure: REQUEST, arm: "same-calls", from: "kept", to: "glibc" },
                is: Bound::Below(0.5),
            }],
        },
        Claim {
            says: "While the kernel is the wall, another malloc changes nothing.",
            tests: &[Test {
                what: Quantity::Ratio { figure: REQUEST, arm: "jemalloc", to: "glibc" },
                is: Bound::Within(0.95, 1.05),
            }],
        },
    ],
    charts: &[Chart {
        file: "requests",
        title: "Times of requests that make their connection and open their file, or keep them",
        x_title: "ns",
        y_title: "share of the requests, in tenths of a decade",
        lines: Lines::Distribution(&["requests"]),
    }],
    check: None,
    run: measure,
};

/// Bytes of a message, and of what is read from the file.
const BYTES: usize = 64;
/// Calls of `churn` that `kept` leaves out: socketpair, two closes, access, open, close.
const LEFT_OUT: usize = 6;
/// The kernel's caches are filled, and objects that are freed late are freed.
const WARM_UP: usize = 1_000;
/// Requests between two readings of the clock for the end.
const TURNS: usize = 16;

/// What a service keeps, and what it makes for each request.
struct Service {
    pair: (UnixStream, UnixStream),
    file: File,
    path: PathBuf,
    new_sockets: bool,
    new_files: bool,
    /// Calls that allocate nothing.
    calls: usize,
}

impl Service {
    fn new(variant: &str) -> anyhow::Result<Service> {
        let (new_sockets, new_files, calls) = match variant {
            CHURN => (true, true, 0),
            KEPT_SOCKETS => (false, true, 0),
            KEPT_FILES => (true, false, 0),
            SAME_CALLS => (false, false, LEFT_OUT),
            KEPT => (false, false, 0),
            other => bail!("no variant {other}"),
        };
        // This program: its first page is surely in the page cache.
        let path = current_exe().context("the path of this program")?;
        let file = File::open(&path).with_context(|| path.display().to_string())?;
        Ok(Service { pair: UnixStream::pair()?, file, path, new_sockets, new_files, calls })
    }

    fn request(&mut self) -> io::Result<()> {
        if self.new_sockets {
            exchange(&mut UnixStream::pair()?)?;
        } else {
            exchange(&mut self.pair)?;
        }
        if self.new_files {
            look_up();
            read(&File::open(&self.path)?)?;
        } else {
            read(&self.file)?;
        }
        (0..self.calls).for_each(|_| ask(&self.pair.0));
        Ok(())
    }
}

fn exchange((near, far): &mut (UnixStream, UnixStream)) -> io::Result<()> {
    let mut message = [1; BYTES];
    near.write_all(&message)?;
    far.read_exact(&mut message)
}

fn read(file: &File) -> io::Result<()> {
    file.read_exact_at(&mut [0; BYTES], 0)
}

fn measure(task: &Task) -> anyhow::Result<Outcome> {
    let clock = fine_clock();
    let mut service = Service::new(&task.spec.variant)?;
    for _ in 0..WARM_UP {
        service.request()?;
    }
    let mut times = Histogram::default();
    let meter = task.begin()?;
    let mut operations = 0;
    while !meter.over() || operations == 0 {
        for _ in 0..TURNS {
            let began = clock.now();
            service.request()?;
            times.record(clock.ns(clock.now().saturating_sub(began)) as u64);
        }
        operations += TURNS as u64;
    }
    let counts = meter.finish(operations);
    let p99 = percentile(&times, 0.99)?;
    Ok(Outcome::of(counts, [(P99, Ok(p99))]).timed([("requests", times)]))
}

#[cfg(test)]
mod tests {
    use super::super::bill::{Bill, Line};
    use super::super::claims::{Judgement, judge};
    use super::super::task::{Spec, run};
    use super::super::testing::{allocations, results};
    use super::*;
    use allocwall_model::units::Interval;

    #[test]
    fn objects_that_cost_and_calls_that_cost_are_told_apart() {
        use Judgement::{DoesNotHold, Holds};
        // The share of the kernel's own allocator; the times of a request that keeps all, with as many calls, and with jemalloc.
        let judged = |slab: f64, [kept, calls, jemalloc]: [f64; 3]| {
            let of = |request: f64| vec![(REQUEST, request)];
            let arms = [
                ("glibc", of(10_000.0)),
                ("jemalloc", of(jemalloc)),
                ("same-calls", of(calls)),
                ("kept", of(kept)),
            ];
            let mut results = results(&EXPERIMENT, 6, &arms);
            let line = Line {
                class: CostClass::KernelSlab.key().into(),
                title: CostClass::KernelSlab.title().into(),
                share: Ok(Interval::new(slab - 0.02, slab, slab + 0.02)),
            };
            results.bills.insert(0, Ok(Bill { verdict: String::new(), on_cpu: vec![line], off_cpu: vec![] }));
            judge(&results).into_iter().map(|judged| judged.judgement).collect::<Vec<_>>()
        };
        assert_eq!(judged(0.6, [2_000.0, 3_000.0, 10_000.0]), [Holds, Holds, Holds, Holds, Holds]);
        // The allocator is a wall, but not most of the cost.
        assert_eq!(judged(0.3, [2_000.0, 3_000.0, 10_000.0])[..2], [Holds, DoesNotHold]);
        // Cheap objects: keeping them saves little, or only calls.
        let cheap = judged(0.05, [8_000.0, 8_200.0, 10_000.0]);
        assert_eq!(cheap[..3], [DoesNotHold, DoesNotHold, DoesNotHold]);
        assert_eq!(judged(0.3, [2_000.0, 9_000.0, 10_000.0])[3], DoesNotHold);
        // A malloc that changes the kernel's work.
        assert_eq!(judged(0.3, [2_000.0, 3_000.0, 8_000.0])[4], DoesNotHold);
    }

    #[test]
    fn every_variant_runs_and_its_requests_allocate_nothing_in_the_program() {
        let spec = |variant: &str| Spec {
            experiment: EXPERIMENT.name.into(),
            variant: variant.into(),
            seed: 1,
            scale: 0.01,
            timed_s: 0.0,
            announce: false,
        };
        let tell = |_: &str| -> anyhow::Result<()> { Ok(()) };
        for arm in EXPERIMENT.arms {
            let outcome = run(&spec(arm.variant), &tell).unwrap().outcome;
            assert!(outcome.counts.operations == TURNS as u64 && outcome.figures[P99] > 0.0, "{}", arm.name);
            let mut service = Service::new(arm.variant).unwrap();
            let made = allocations(|| (0..20).for_each(|_| service.request().unwrap()));
            assert_eq!(made, 0, "{}", arm.name);
        }
        assert!(run(&spec("snake-oil"), &tell).is_err());
    }
}
