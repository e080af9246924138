//! Incidents: five small services of examples/incidents, each broken and mended. A run starts the service, sends requests, and measures
//! what a dashboard shows. Bills and verdicts are those of the service and its clients together.

mod clients;
mod service;

use super::claims::{Bound, Claim, Quantity, Test};
use super::task::{Outcome, Spec, Task, percentile};
use super::throttle::throttled;
use super::{Arm, Chart, Experiment, Figure, JEMALLOC, Lines, MIMALLOC, Settings};
use crate::workloads::interference::Quota;
use crate::workloads::process;
use allocwall_host::clock::monotonic_ns;
use allocwall_host::facts::Machine;
use allocwall_host::{memory, topology};
use allocwall_model::catalogue::cost::CostClass;
use allocwall_model::catalogue::walls::Wall;
use allocwall_model::placement::NodeCpus;
use allocwall_model::units::{Absence, Measured, Reason};
use allocwall_trial::Unit;
use anyhow::anyhow;
use clients::Clients;
use service::{Service, Source};
use std::num::NonZero;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::thread;

// Names of experiments, of folders, and of services.
const MANIFEST: &str = "manifest-rewrite";
const MAPS: &str = "map-lock";
const COLD: &str = "cold-scale-out";
const NODES: &str = "numa-after-upgrade";
const QUOTA: &str = "throttled";

macro_rules! source {
    ($name:expr, $file:literal) => {
        Source { name: $name, text: include_str!(concat!("../../../../examples/incidents/", $file)) }
    };
}

static SOURCES: [Source; 5] = [
    source!(MANIFEST, "manifest-rewrite/manifest-rewrite.c"),
    source!(MAPS, "map-lock/map-lock.c"),
    source!(COLD, "cold-scale-out/cold-scale-out.c"),
    source!(NODES, "numa-after-upgrade/numa-after-upgrade.c"),
    source!(QUOTA, "throttled/throttled.c"),
];

const BROKEN: &str = "broken";
const MENDED: &str = "mended";
const ARMS: &[Arm] = &[Arm::variant(BROKEN, BROKEN), Arm::variant(MENDED, MENDED)];

const P50: &str = "p50_ns";
const P99: &str = "p99_ns";
const RATE: &str = "requests_per_s";
const START: &str = "start_s";
const PERIODS: &str = "throttled_periods_per_s";

const MEDIAN: Figure = Figure::lower(P50, "a request, p50", Unit::Ns);
const TAIL: Figure = Figure::lower(P99, "a request, p99", Unit::Ns);
const ANSWERS: Figure = Figure::higher(RATE, "requests answered", Unit::PerSecond);
const CPU: Figure = Figure::lower("cpu_ns_per_operation", "CPU time of the service, per request", Unit::Ns);
const FAULTS: Figure =
    Figure::lower("faults_per_operation", "page faults of the service, per request", Unit::Count);

const TIMES: &[Chart] = &[Chart {
    file: "requests",
    title: "Times of the requests",
    x_title: "ns",
    y_title: "share of the requests, in tenths of a decade",
    lines: Lines::Distribution(&["requests"]),
}];

/// The verdict on the broken service names one of these walls first.
const fn names(any: &'static [Wall]) -> Test {
    Test { what: Quantity::FirstWall { any, arm: BROKEN }, is: Bound::Above(0.5) }
}

/// The verdict on the mended service does not.
const fn names_no(any: &'static [Wall]) -> Test {
    Test { what: Quantity::FirstWall { any, arm: MENDED }, is: Bound::Below(0.5) }
}

const fn named(any: &'static [Wall]) -> [Test; 2] {
    [names(any), names_no(any)]
}

/// p99 of an arm as a multiple of that of the broken service.
const fn p99(arm: &'static str, is: Bound) -> Test {
    Test { what: Quantity::Ratio { figure: P99, arm, to: BROKEN }, is }
}

/// A step of the account halves p99. It counts as found if half of that gain is there.
const HALVES: Bound = Bound::Below(0.75);

pub const MANIFEST_REWRITE: Experiment = Experiment {
    name: MANIFEST,
    summary: "incident: the allocator behind the p99 of a service that rewrites manifests",
    about: "A service in C parses a manifest of 60 KB for each request, with some 3,400 blocks of malloc for its keys and values, adds \
            an edge to each segment and answers with the newest ones. What it parsed replaces the manifest of an earlier request, \
            which mostly another thread has parsed. `mended` has one block for a manifest and uses it again. A client for each CPU, \
            at least 2, sends its next request when the last one is answered. Needs a C compiler.",
    arms: &[
        ARMS[0],
        Arm { variant: BROKEN, ..JEMALLOC },
        Arm { variant: BROKEN, ..MIMALLOC.full() },
        ARMS[1],
    ],
    figures: &[MEDIAN, TAIL, ANSWERS, CPU],
    claims: &[
        Claim {
            says: "The allocator is the wall: 41 % of CPU is in glibc's malloc and free.",
            tests: &[
                names(&[Wall::CallRate, Wall::AllocatorCode, Wall::AllocatorContention]),
                // Half of the published share.
                Test {
                    what: Quantity::Bill { line: CostClass::AllocatorCode, arm: BROKEN },
                    is: Bound::Above(0.205),
                },
            ],
        },
        Claim { says: "Memory for each request halves p99.", tests: &[p99(MENDED, HALVES)] },
        Claim { says: "jemalloc, by preload, halves p99.", tests: &[p99("jemalloc", HALVES)] },
    ],
    charts: TIMES,
    check: Some(check_manifest),
    run: measure,
};

pub const MAP_LOCK: Experiment = Experiment {
    name: MAPS,
    summary: "incident: threads that map memory for each request and wait for the lock of the address space",
    about: "A service in C renders tiles. For each request it maps 1 MiB with all its pages (MAP_POPULATE), writes to it, and unmaps it. \
            In `mended` each thread keeps its memory. Two clients for each CPU, at least 4, send their next request when the last one \
            is answered. Needs a C compiler.",
    arms: ARMS,
    figures: &[MEDIAN, TAIL, ANSWERS, CPU, FAULTS],
    claims: &[
        Claim {
            says: "The lock of the address space is the wall. Threads that keep their memory don't have this wall.",
            tests: &named(&[Wall::AddressSpaceLock]),
        },
        Claim {
            says: "Without it, p99 falls from 24 to 9 ms.",
            // By 62 %. It counts as found if half of that is there.
            tests: &[p99(MENDED, Bound::Below(0.69))],
        },
    ],
    charts: TIMES,
    check: Some(check_maps),
    run: measure,
};

pub const COLD_SCALE_OUT: Experiment = Experiment {
    name: COLD,
    summary: "incident: the first 1,000 requests of new workers, which touch a cache for the first time",
    about: "A worker in C has a cache of 1,000 entries of 256 KiB. A run starts it and sends it 1,000 requests, each of which writes to \
            the 64 pages of the next entry. `mended` touches the cache before it listens. A client for each CPU, at least 2, sends \
            its next request when the last one is answered. In the run of a bill, the broken worker becomes cold again after each \
            1,000 requests. Needs a C compiler and 500 MiB of free memory.",
    arms: ARMS,
    figures: &[
        MEDIAN,
        TAIL,
        ANSWERS,
        FAULTS,
        Figure::lower(START, "from the start of the worker until it listens", Unit::Seconds),
    ],
    claims: &[
        Claim {
            says: "First touch is the wall of a new worker. One that has touched its memory doesn't have this wall.",
            tests: &named(&[Wall::FirstTouch]),
        },
        Claim {
            says: "If the worker touches its memory before it joins the balancer, p99 falls from 240 to 22 ms.",
            // By 91 %. It counts as found if half of that is there.
            tests: &[p99(MENDED, Bound::Below(0.55))],
        },
        Claim {
            says: "This moves the cost to the start of the worker.",
            tests: &[Test {
                what: Quantity::Ratio { figure: START, arm: MENDED, to: BROKEN },
                is: Bound::Above(1.0),
            }],
        },
    ],
    charts: TIMES,
    check: Some(check_cold),
    run: measure,
};

pub const NUMA_AFTER_UPGRADE: Experiment = Experiment {
    name: NODES,
    summary: "incident: a service whose memory is on another NUMA node than its threads",
    about: "A service in C follows 2,000 references for each request, each of which depends on the one before, in a table of 256 MiB on \
            one NUMA node. Its threads run on another node; in `mended` they run on the same one. A client for each CPU, at least 2, \
            sends its next request when the last one is answered. In the run of a bill the table has 1.25 GiB, since memory that may \
            be in caches is not judged by its node. Needs two NUMA nodes and a C compiler.",
    arms: ARMS,
    figures: &[MEDIAN, TAIL, ANSWERS, CPU],
    claims: &[
        Claim {
            says: "NUMA is the wall. With threads and memory on one node it is not.",
            tests: &named(&[Wall::Numa]),
        },
        Claim {
            says: "With threads and memory on one node, the tail falls from 3.2 to 0.8 ms.",
            // By 75 %, of p99.9, for which a run has too few requests. It counts as found if half of that is there.
            tests: &[p99(MENDED, Bound::Below(0.625))],
        },
    ],
    charts: TIMES,
    check: Some(check_nodes),
    run: measure,
};

pub const THROTTLED: Experiment = Experiment {
    name: QUOTA,
    summary: "incident: a service that needs less than its CPU quota on average, and more of it at once",
    about: "A service in C computes 5 ms for each request. Eight requests are due every 160 ms, for two connections: 25 % of a CPU. A run \
            has 200 requests, with --quick 32. Times are from when a request was due. `broken` is in a cgroup with a quota of 30 % of \
            a CPU, 30 ms in each period of 100 ms; `mended` is in none. Needs root, a CPU cgroup that can be written to, and a C \
            compiler.",
    // The mended one first: it can run where no quota can be set.
    arms: &[ARMS[1], ARMS[0]],
    figures: &[
        MEDIAN,
        Figure::lower(P99, "a request, p99 (with --quick the slowest of a run's 32)", Unit::Ns),
        CPU,
        Figure::lower(PERIODS, "throttled periods (nr_throttled)", Unit::PerSecond),
    ],
    claims: &[
        Claim {
            says: "The CPU quota of the cgroup is the wall. Without a quota it is not.",
            tests: &[FREE, names(&[Wall::CgroupThrottling]), names_no(&[Wall::CgroupThrottling])],
        },
        Claim {
            says: "It makes pauses of 10 to 80 ms, which nothing in the process explains: the tail grows, the CPU time does not.",
            tests: &[
                FREE,
                Test {
                    what: Quantity::Ratio { figure: P99, arm: BROKEN, to: MENDED },
                    is: Bound::Above(1.5),
                },
                Test {
                    what: Quantity::Ratio { figure: CPU.key, arm: BROKEN, to: MENDED },
                    is: Bound::Within(0.9, 1.1),
                },
            ],
        },
    ],
    charts: TIMES,
    check: Some(check_quota),
    run: measure,
};

/// No quota of another cgroup throttles the mended service: a container can have one.
const FREE: Test =
    Test { what: Quantity::Value { figure: PERIODS, arm: MENDED }, is: Bound::Given(&Bound::Below(0.5)) };

/// Requests that fill the cache of a new worker, and the size of this cache.
const COLD_REQUESTS: u64 = 1_000;
const CACHE_BYTES: u64 = 1_000 * (256 << 10);
/// The table on a NUMA node, and that of the run of a bill.
pub(super) const TABLE_BYTES: u64 = 256 << 20;
pub(super) const JUDGED_BYTES: u64 = 1_280 << 20;
/// Requests of a connection before the timed part.
const WARM_UP: u64 = 20;
/// Requests that are due at the same time, and the time between two such groups.
const GROUP: usize = 8;
const GAP_NS: u64 = 160_000_000;
/// In CPUs.
const CPUS: f64 = 0.3;
/// Time for the process to end, after which its cgroup is removed from outside.
const SPARE_S: u32 = 60;

/// Whether an experiment is an incident.
pub fn is_one(experiment: &str) -> bool {
    source(experiment).is_ok()
}

fn source(experiment: &str) -> Measured<&'static Source> {
    let found = SOURCES.iter().find(|source| source.name == experiment);
    found.ok_or_else(|| Absence::new(Reason::NotFound, format!("no service {experiment}")))
}

fn check_manifest(_: &Arm, _: &Settings) -> Measured<()> {
    source(MANIFEST)?.built().map(drop)
}

fn check_maps(_: &Arm, _: &Settings) -> Measured<()> {
    source(MAPS)?.built().map(drop)
}

fn check_cold(_: &Arm, _: &Settings) -> Measured<()> {
    source(COLD)?.built()?;
    // Where it is not known how much is free, a run that takes too much fails.
    let free = memory::headroom(&Machine::live()).unwrap_or(u64::MAX);
    fits("the cache", CACHE_BYTES, free)
}

fn check_nodes(_: &Arm, _: &Settings) -> Measured<()> {
    nodes_with_room()?;
    source(NODES)?.built().map(drop)
}

fn check_quota(arm: &Arm, _: &Settings) -> Measured<()> {
    if arm.variant == BROKEN {
        Quota::check()?;
    }
    source(QUOTA)?.built().map(drop)
}

/// Whether it leaves half of the available memory to others.
fn fits(what: &str, needed: u64, free: u64) -> Measured<()> {
    if needed <= free / 2 {
        return Ok(());
    }
    let [needed, free] = [needed, free].map(|bytes| bytes >> 20);
    let why = format!("{what} takes {needed} MiB, more than half of the {free} MiB that are available");
    Err(Absence::new(Reason::TooCostly, why))
}

pub(super) fn nodes() -> Measured<[u32; 2]> {
    let sys = Path::new("/sys");
    two_nodes(&topology::nodes(sys)?, &topology::memory_nodes(sys)?, &topology::allowed_cpus()?)
}

/// The same, if each has room for the table of the run of a bill.
pub(super) fn nodes_with_room() -> Measured<[u32; 2]> {
    let nodes = nodes()?;
    for node in nodes {
        let free = topology::available_bytes(Path::new("/sys"), node)?;
        fits(&format!("the table on node {node}"), JUDGED_BYTES, free)?;
    }
    Ok(nodes)
}

/// The first two nodes that have both memory and CPUs that may be used.
fn two_nodes(all: &[NodeCpus], with_memory: &[u32], allowed: &[u32]) -> Measured<[u32; 2]> {
    let may_run = |node: &&NodeCpus| node.cpus.iter().any(|cpu| allowed.contains(&u32::from(*cpu)));
    let usable = all.iter().filter(|node| with_memory.contains(&node.node)).filter(may_run);
    let usable: Vec<u32> = usable.map(|node| node.node).collect();
    match usable[..] {
        [one, other, ..] => Ok([one, other]),
        _ => Err(Absence::new(Reason::NotSupported, "one NUMA node with CPUs and memory")),
    }
}

/// The options of a service in this run.
fn options(spec: &Spec) -> Measured<Vec<String>> {
    let mended = spec.variant == MENDED;
    let options = match spec.experiment.as_str() {
        MANIFEST if mended => "--arena".to_owned(),
        MAPS if mended => "--keep".to_owned(),
        COLD if mended => "--warm".to_owned(),
        COLD if spec.announce => "--again".to_owned(),
        NODES => {
            let [far, near] = nodes()?;
            let memory = if mended { near } else { far };
            let mib = if spec.announce { JUDGED_BYTES >> 20 } else { TABLE_BYTES >> 20 };
            format!("--table {mib} --memory-node {memory} --cpu-node {near}")
        }
        _ => String::new(),
    };
    Ok(options.split_whitespace().map(str::to_owned).collect())
}

fn connections(experiment: &str, cpus: usize) -> usize {
    match experiment {
        QUOTA => 2,
        // More threads than can run, since most of them wait.
        MAPS => (2 * cpus).clamp(4, 32),
        _ => cpus.clamp(2, 16),
    }
}

/// The next requests are due at once, as many.
fn at_once(requests: u64) -> impl Fn() -> Option<u64> + Sync {
    let sent = AtomicU64::new(0);
    // Relaxed: only the number counts.
    move || (sent.fetch_add(1, Relaxed) < requests).then(monotonic_ns)
}

/// How long groups of requests are sent. A run of few groups would not show a tail. A recorder ends its run itself.
fn length_s(spec: &Spec) -> f64 {
    if spec.announce { spec.timed_s } else { (4.0 * spec.timed_s).clamp(0.5, 4.0) }
}

/// Times of requests in groups, in ns since the start.
fn groups(length_s: f64) -> Vec<u64> {
    let length_ns = (length_s * 1e9) as u64;
    let begins = (0..).map(|nth| nth * GAP_NS).take_while(|at| *at < length_ns);
    begins.flat_map(|at| [at; GROUP]).collect()
}

fn measure(task: &Task) -> anyhow::Result<Outcome> {
    let missing = |absence: Absence| anyhow!(absence.detail);
    let spec = task.spec;
    let experiment = spec.experiment.as_str();
    let program = source(experiment).and_then(Source::built).map_err(missing)?;
    let options = options(spec).map_err(missing)?;
    let length_s = length_s(spec);
    let quota = (experiment == QUOTA && spec.variant == BROKEN)
        .then(|| {
            // Its cgroup must be removed if a recorder ends it early.
            process::end_on_signals();
            Quota::enter(CPUS, length_s as u32 + SPARE_S)
        })
        .transpose()?;
    let service = Service::start(&program, &options)?;
    let start_s = service.start_s;
    let cpus = thread::available_parallelism().map_or(1, NonZero::get);
    let connections = connections(experiment, cpus);
    let mut clients = Clients::connect(service.port, connections)?;
    if [MANIFEST, MAPS, NODES].contains(&experiment) {
        clients.run(&at_once(WARM_UP * connections as u64))?;
    }

    // The service is in the cgroup of this process.
    let (before, throttled_before) = (service.spent()?, throttled());
    let meter = task.begin()?;
    let while_timed = || (!meter.over()).then(monotonic_ns);
    let times = match experiment {
        COLD => {
            let first = at_once(COLD_REQUESTS);
            clients.run(&|| first().or_else(|| while_timed().filter(|_| spec.announce)))?
        }
        QUOTA => {
            let (due, next, start_ns) = (groups(length_s), AtomicUsize::new(0), monotonic_ns());
            // Relaxed: each number is taken once.
            let due = || due.get(next.fetch_add(1, Relaxed)).map(|at| start_ns + at);
            clients.run(&|| due().filter(|_| !process::asked_to_end()))?
        }
        _ => clients.run(&while_timed)?,
    };
    let mut counts = meter.finish(times.count());
    let after = service.spent()?;
    let periods = throttled_before.and_then(|(before, _)| Ok(throttled()?.0.saturating_sub(before)));
    // The service ends before its cgroup.
    drop(service);
    drop(quota);
    counts.cpu_s = after.cpu_ns.saturating_sub(before.cpu_ns) as f64 / 1e9;
    counts.minor_faults = after.minor_faults.and_then(|now| Ok(now.saturating_sub(before.minor_faults?)));
    let figures = [
        (P50, Ok(percentile(&times, 0.5)?)),
        (P99, Ok(percentile(&times, 0.99)?)),
        (RATE, Ok(times.count() as f64 / counts.seconds.max(1e-9))),
        (START, Ok(start_s)),
        (PERIODS, periods.map(|periods| periods as f64 / counts.seconds.max(1e-9))),
    ];
    Ok(Outcome::of(counts, figures).timed([("requests", times)]))
}

#[cfg(test)]
mod tests {
    use super::super::bill::Walls;
    use super::super::claims::{Judgement, judge};
    use super::super::testing::results;
    use super::super::{EXPERIMENTS, QUICK_SCALE};
    use super::*;

    fn spec(experiment: &str, variant: &str, announce: bool) -> Spec {
        let (experiment, variant) = (experiment.into(), variant.into());
        Spec { experiment, variant, seed: 1, scale: 1.0, timed_s: 1.0, announce }
    }

    #[test]
    fn each_incident_has_a_service_with_its_options_and_is_described() {
        let incidents: Vec<&Experiment> = EXPERIMENTS.iter().filter(|one| is_one(one.name)).collect();
        assert_eq!(incidents.len(), SOURCES.len());
        let page = include_str!("../../../../docs/experiments.md");
        for source in &SOURCES {
            assert!(incidents.iter().any(|one| one.name == source.name), "{}", source.name);
            assert!(page.contains(&format!("`{}`", source.name)), "{}", source.name);
            assert!(source.text.contains("#include \"../http.h\""), "{}", source.name);
        }
        assert!(!is_one("throttle") && !is_one(""));
        // Only the options that a service has.
        for (experiment, option) in [(MANIFEST, "--arena"), (MAPS, "--keep"), (COLD, "--warm")] {
            assert_eq!(options(&spec(experiment, MENDED, true)).unwrap(), [option]);
            assert!(source(experiment).unwrap().text.contains(&format!("\"{option}\"")));
            assert!(options(&spec(experiment, BROKEN, false)).unwrap().is_empty());
        }
    }

    #[test]
    fn memory_of_another_node_needs_two_nodes_with_memory_and_cpus() {
        let node = |node: u32, cpus: &[u16]| NodeCpus { node, cpus: cpus.to_vec() };
        let all = [node(0, &[0, 1]), node(1, &[2, 3]), node(2, &[])];
        assert_eq!(two_nodes(&all, &[0, 1, 2], &[0, 1, 2, 3]), Ok([0, 1]));
        // A node without memory, one whose CPUs may not be used, and one without CPUs.
        let one: [(&[u32], &[u32]); 4] =
            [(&[0, 2], &[0, 1, 2, 3]), (&[0, 1, 2], &[0, 1]), (&[0, 2], &[0, 2]), (&[], &[])];
        for (with_memory, allowed) in one {
            let absence = two_nodes(&all, with_memory, allowed).unwrap_err();
            assert!(absence.detail.contains("one NUMA node"), "{absence}");
        }
        assert!(fits("it", 1 << 30, 2 << 30).is_ok());
        assert_eq!(fits("it", 1 << 30, (2 << 30) - 2).unwrap_err().reason, Reason::TooCostly);
    }

    #[test]
    fn requests_are_due_in_groups_or_at_once() {
        let due = groups(0.5);
        assert_eq!((due.len(), due[0], due[GROUP], due[4 * GROUP - 1]), (4 * GROUP, 0, GAP_NS, 3 * GAP_NS));
        let requests =
            |scale: f64| groups(length_s(&Spec { timed_s: scale, ..spec(QUOTA, BROKEN, false) })).len();
        // The title of the figure has the number of a quick run, whose p99 is its maximum; that of a full run is not.
        assert_eq!((requests(QUICK_SCALE), requests(1.0)), (32, 200));
        assert!(THROTTLED.figures[1].title.contains(" 32"));
        // Less CPU time than the quota on average, and more in one period of 100 ms.
        let work_ns = GROUP as f64 * 5e6;
        assert!(work_ns / (GAP_NS as f64) < CPUS && work_ns > CPUS * 1e8);
        let two = at_once(2);
        assert!(two().is_some() && two().is_some() && two().is_none() && two().is_none());
        assert_eq!([1, 2, 64].map(|cpus| connections(MAPS, cpus)), [4, 4, 32]);
        assert_eq!([1, 2, 64].map(|cpus| connections(MANIFEST, cpus)), [2, 2, 16]);
    }

    #[test]
    fn a_verdict_that_names_the_wall_and_a_mend_that_helps_are_told_from_others() {
        use Judgement::{CannotTest, DoesNotHold, Holds};
        // p99 and the walls of the broken service, and of the mended one.
        let judged = |broken: (f64, &[Wall]), mended: (f64, &[Wall])| {
            let arms = [(BROKEN, vec![(P99, broken.0)]), (MENDED, vec![(P99, mended.0)])];
            let mut results = results(&MAP_LOCK, 6, &arms);
            for (arm, walls) in [(0, broken.1), (2, mended.1)] {
                let found = walls.iter().map(|wall| wall.key().to_owned()).collect();
                results.walls.insert(arm, Walls { found, ..Walls::default() });
            }
            judge(&results).into_iter().map(|judged| judged.judgement).collect::<Vec<_>>()
        };
        let lock = Wall::AddressSpaceLock;
        let cured = judged((24e6, &[lock, Wall::FirstTouch]), (9e6, &[Wall::FirstTouch]));
        assert_eq!(cured, [Holds, Holds]);
        // Walls that other processes cause are not counted.
        assert_eq!(judged((24e6, &[Wall::Steal, lock]), (9e6, &[Wall::RunQueue])), [Holds, Holds]);
        // The wall is only the second one, or stays; and p99 falls by a tenth.
        assert_eq!(judged((24e6, &[Wall::FirstTouch, lock]), (9e6, &[])), [DoesNotHold, Holds]);
        assert_eq!(judged((24e6, &[lock]), (22e6, &[lock])), [DoesNotHold, DoesNotHold]);
        // Without a bill there is no verdict.
        let without =
            judge(&results(&MAP_LOCK, 6, &[(BROKEN, vec![(P99, 24e6)]), (MENDED, vec![(P99, 9e6)])]));
        assert!(matches!(&without[0].judgement, CannotTest(why) if why.contains("no bill")));
        assert_eq!(without[1].judgement, Holds);
    }

    #[test]
    fn a_quota_of_the_service_is_told_from_one_of_the_container_around_it() {
        use Judgement::{CannotTest, DoesNotHold, Holds};
        // Throttled periods of the mended service in a second, and the walls of both.
        let judged = |periods: f64, broken: &[Wall], mended: &[Wall]| {
            let of = |p99: f64, periods: f64| vec![(P99, p99), (CPU.key, 5e6), (PERIODS, periods)];
            let arms = [(MENDED, of(10e6, periods)), (BROKEN, of(80e6, 6.0))];
            let mut results = results(&THROTTLED, 6, &arms);
            for (arm, walls) in [(0, mended), (2, broken)] {
                let found = walls.iter().map(|wall| wall.key().to_owned()).collect();
                results.walls.insert(arm, Walls { found, ..Walls::default() });
            }
            judge(&results).into_iter().map(|judged| judged.judgement).collect::<Vec<_>>()
        };
        let quota = Wall::CgroupThrottling;
        assert_eq!(judged(0.0, &[quota, Wall::Waiting], &[Wall::Waiting]), [Holds, Holds]);
        assert_eq!(judged(0.0, &[Wall::Waiting], &[Wall::Waiting]), [DoesNotHold, Holds]);
        let around = judged(5.0, &[quota], &[quota]);
        assert!(
            around.iter().all(|judged| matches!(judged, CannotTest(why) if why.contains("nr_throttled"))),
            "{around:?}"
        );
    }
}
