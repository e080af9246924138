//! Runs a server: starts it, waits until it is ready, loads it at the same rates for all arms, samples its memory after the load,
//! and ends it.

use super::batch::{Close, CloseLooks, Fresh, Prepared, Watcher, failure, last_words, metric_of, output};
use super::conduct::Ran;
use super::load::adapters::Adapter;
use super::load::closed::{self, Capacity, Search};
use super::load::first;
use super::load::metric::Figure;
use super::load::open::{self, Plan};
use super::load::ready::{self, Ready};
use super::load::request::Request;
use super::load::{Better, Reading, Unit as ReadingUnit};
use super::prepare::{self, Prepare};
use super::proof::Seen;
use super::run::{self, Output, Running, Start};
use super::{Direction, LAZY_FREE, Metric, Unit};
use allocwall_host::clock;
use allocwall_host::proc::ProcFs;
use allocwall_model::error::{Error, Result};
use allocwall_model::units::{Absence, Measured, Reason};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// If more than this share of requests failed, the run failed.
pub const FAILED_REQUESTS: f64 = 0.01;
const GLANCE: Duration = Duration::from_millis(20);
/// Time for a server to end after SIGTERM: some servers write their data to disk.
const GRACE: Duration = Duration::from_secs(5);
/// Time for a load to begin.
const BEFORE_OBSERVING: Duration = Duration::from_millis(300);
/// Bytes of a server's output that are kept for messages.
const SAID: usize = 64 << 10;

/// The source of the load.
pub enum Load {
    /// The built-in generator, one window for each plan.
    Inside { request: Request, plans: Vec<(String, Plan)> },
    /// The first requests after the start.
    First { request: Request, plan: first::Plan },
    /// A command line for `/bin/sh`. Its output is read.
    Command { line: String, read: Read, limit: Duration },
}

pub enum Read {
    Adapter(&'static Adapter),
    Figures(Vec<Figure>),
}

pub struct Server<'a> {
    pub arms: Vec<Prepared>,
    pub keeper_exe: PathBuf,
    pub ready: Ready,
    pub patience: Duration,
    pub load: Load,
    /// Times after the load at which memory is sampled.
    pub rest: Vec<Duration>,
    /// Runs before each start of the server.
    pub prepare: Option<Prepare>,
    pub interrupted: &'a AtomicBool,
}

/// CPU time in clock ticks that is known to 1 %.
const TICKS_ENOUGH: f64 = 100.0;

/// CPU time of a run's processes so far, in seconds.
struct Spent {
    /// Precision of clock ticks. Includes ended processes, which are charged to the parent that waited for them or to the keeper.
    coarse_s: f64,
    /// Precision of nanoseconds. Does not include ended threads and processes.
    fine_s: f64,
    processes: Vec<i32>,
}

impl Spent {
    fn now(proc: &ProcFs, running: &Running) -> Spent {
        let mut processes = running.processes();
        processes.push(running.keeper_pid());
        let ticks = |&pid: &i32| {
            let s = proc.process_stat(pid).ok()?;
            Some(s.user_ticks + s.system_ticks + s.child_user_ticks + s.child_system_ticks)
        };
        let ns = |&pid: &i32| -> u64 {
            let threads = proc.threads(pid).unwrap_or_default();
            let of = |&tid: &i32| proc.thread_schedstat(pid, tid).map_or(0, |s| s.cpu_ns);
            threads.iter().map(of).sum()
        };
        processes.sort_unstable();
        Spent {
            coarse_s: (processes.iter().filter_map(ticks).sum::<u64>() * proc.ns_per_tick()) as f64 / 1e9,
            fine_s: processes.iter().map(ns).sum::<u64>() as f64 / 1e9,
            processes,
        }
    }

    /// CPU time since `before`; the fine value if no thread or process ended.
    fn since(&self, before: &Spent, tick_s: f64) -> Measured<f64> {
        let (coarse, fine) = (self.coarse_s - before.coarse_s, self.fine_s - before.fine_s);
        if self.processes == before.processes && (coarse - fine).abs() <= 0.01 * coarse + 4.0 * tick_s {
            return Ok(fine);
        }
        if coarse >= TICKS_ENOUGH * tick_s {
            Ok(coarse)
        } else {
            Err(Absence::new(
                Reason::TooLittle,
                "threads or processes ended, and the CPU time is below 100 clock ticks, which is too coarse",
            ))
        }
    }
}

impl Server<'_> {
    /// Requests per second that an arm can answer, found with closed loops on at most `most_connections` connections. The rates of
    /// all arms follow from it.
    pub fn capacity(&self, arm: usize, most_connections: usize) -> Result<Capacity> {
        let Load::Inside { request, .. } = &self.load else {
            return Err(Error::Refused(
                "a load command sets its own rate, so allocwall can't search for the capacity".into(),
            ));
        };
        let mut running = self.begin(&self.arms[arm].start)?;
        self.await_ready(&mut running, self.interrupted)?;
        let search = Search { most_connections, ..Search::default() };
        let found = closed::find(request, &search, self.interrupted);
        let _ = running.end();
        found.map_err(|absence| Error::Refused(format!("could not find the server's capacity: {absence}")))
    }

    /// Calls `observe` with an arm's server under load, then ends the server. The flag is set when the load is over.
    pub fn under_observation<T>(&self, arm: usize, observe: impl FnOnce(i32, &AtomicBool) -> T) -> Result<T> {
        let mut running = self.begin(&self.arms[arm].start)?;
        self.await_ready(&mut running, self.interrupted)?;
        let pid = running.pid();
        let (over, seen) = (AtomicBool::new(false), AtomicBool::new(false));
        let (observed, loaded) = std::thread::scope(|scope| {
            let loading = || match &self.load {
                Load::Inside { request, plans } => match plans.last() {
                    Some((_, plan)) => open::run(request, plan, self.interrupted).map(drop),
                    None => Err(Error::Refused("no rate is planned".into())),
                },
                Load::First { request, plan } => first::run(request, plan, self.interrupted).map(drop),
                Load::Command { line, read, limit } => {
                    let load = || self.load_by_command(line, read, *limit, self.interrupted).map(drop);
                    load()?;
                    // A short load is repeated. Some can't be, and then the load is over.
                    loop {
                        if seen.load(Ordering::Relaxed) || load().is_err() {
                            return Ok(());
                        }
                    }
                }
            };
            let done = &over;
            let load = scope.spawn(move || {
                let loaded = loading();
                done.store(true, Ordering::Relaxed);
                loaded
            });
            std::thread::sleep(BEFORE_OBSERVING);
            let observed = observe(pid, &over);
            seen.store(true, Ordering::Relaxed);
            let loaded = load.join().unwrap_or_else(|_| Err(Error::Refused("the load failed".into())));
            (observed, loaded)
        });
        let _ = running.end();
        loaded.map(|()| observed)
    }

    /// How long a run takes at least, if the load has a fixed time.
    pub fn load_time(&self) -> Option<Duration> {
        let Load::Inside { plans, .. } = &self.load else { return None };
        let load: Duration = plans.iter().map(|(_, plan)| plan.warm_up + plan.window).sum();
        Some(load + self.rest.iter().max().copied().unwrap_or_default())
    }

    /// Time limit for a whole run; a longer run hangs.
    fn limit(&self) -> Duration {
        let load = match &self.load {
            Load::Inside { plans, .. } => {
                plans.iter().map(|(_, plan)| plan.warm_up + plan.window + plan.timeout).sum()
            }
            Load::First { plan, .. } => plan.limit,
            Load::Command { limit, .. } => *limit,
        };
        let rest = self.rest.iter().max().copied().unwrap_or_default();
        // The extra time is for the search for the capacity and for a diagnosis.
        self.patience + load + rest + GRACE + Duration::from_secs(300)
    }

    fn begin(&self, start: &Start) -> Result<Running> {
        if let Some(prepare) = &self.prepare {
            prepare.run(self.interrupted)?;
        }
        ready::port_is_free(&self.ready.address())?;
        if let Load::Inside { request, .. } | Load::First { request, .. } = &self.load {
            ready::port_is_free(&request.address)?;
        }
        let mut start = start.clone();
        start.limit = self.limit();
        start.stdout = Output::Keep(SAID);
        start.stderr = Output::Keep(SAID);
        start.grace = GRACE;
        run::start(&start, &self.keeper_exe)
    }

    fn await_ready(&self, running: &mut Running, stop: &AtomicBool) -> Result<Duration> {
        let pause = if self.is_first() { ready::SHORT_PAUSE } else { ready::PAUSE };
        let ended = || running.exited().map(|exit| exit.to_string());
        ready::wait(&self.ready, self.patience, pause, ended, stop)
    }

    /// Whether the first requests are compared.
    fn is_first(&self) -> bool {
        matches!(self.load, Load::First { .. })
    }

    fn under_load(
        &self,
        running: &mut Running,
        watcher: &mut Watcher,
        took: Duration,
        ran: &mut Ran,
        stop: &AtomicBool,
    ) -> Result<()> {
        let proc = ProcFs::live();
        let tick_s = proc.ns_per_tick() as f64 / 1e9;
        ran.metrics.insert("ready_s".into(), Ok(took.as_secs_f64()));
        // The first requests must not wait for it.
        if !self.is_first() {
            watcher.sample_now(running);
        }
        match &self.load {
            Load::Inside { request, plans } => {
                for (suffix, plan) in plans {
                    let before = Spent::now(&proc, running);
                    let load = open::run(request, plan, stop)?;
                    let used = Spent::now(&proc, running).since(&before, tick_s);
                    for (name, reading) in load.readings() {
                        if KEPT.contains(&name.as_str()) {
                            let value = reading.as_ref().map(|r| r.value).map_err(Clone::clone);
                            ran.metrics.insert(format!("{name}{suffix}"), value);
                        }
                    }
                    let all = plan.rate_per_s * (plan.warm_up + plan.window).as_secs_f64();
                    ran.metrics
                        .insert(format!("cpu_per_request_s{suffix}"), used.and_then(|used| per(used, all)));
                    let failed = load.failures.total() as f64;
                    if failed > FAILED_REQUESTS * load.offered as f64 {
                        return Err(Error::Refused(format!(
                            "{failed} of {} requests failed: {}",
                            load.offered, load.failures
                        )));
                    }
                }
            }
            Load::First { request, plan } => {
                let first = first::run(request, plan, stop)?.times(running.start_ns());
                let of = |time: OfFirst| first.as_ref().map(time).map_err(Clone::clone);
                for (key, _, _, time) in FIRST {
                    ran.metrics.insert((*key).to_owned(), of(*time));
                }
            }
            Load::Command { line, read, limit } => {
                let before = Spent::now(&proc, running);
                let began = clock::monotonic_ns();
                let readings = self.load_by_command(line, read, *limit, stop)?;
                let seconds = (clock::monotonic_ns() - began) as f64 / 1e9;
                let used = Spent::now(&proc, running).since(&before, tick_s);
                // Per request: with a tool that loads for a fixed time, a faster server uses more CPU time in total.
                if let Some(throughput) = the_throughput(&readings) {
                    ran.metrics.insert(
                        "cpu_per_request_s".into(),
                        used.and_then(|used| per(used, throughput * seconds)),
                    );
                }
                for reading in &readings {
                    ran.metrics.insert(reading.name.clone(), Ok(reading.value));
                }
                ran.readings = readings;
            }
        }
        watcher.sample_now(running);
        self.rest_after(running, ran, stop);
        Ok(())
    }

    fn load_by_command(
        &self,
        line: &str,
        read: &Read,
        limit: Duration,
        stop: &AtomicBool,
    ) -> Result<Vec<Reading>> {
        let finished = prepare::shell(line, limit, &self.keeper_exe, stop)?;
        if let Some(failure) = failure(&finished, &[]) {
            return Err(Error::Refused(format!("the load command failed: {failure}")));
        }
        let output = output(&finished);
        let readings = match read {
            Read::Adapter(adapter) => adapter.read(&output),
            Read::Figures(figures) => figures.iter().map(|figure| figure.read(&output)).collect(),
        };
        readings.map_err(|absence| Error::Refused(absence.with_advice()))
    }

    /// Memory right after the load and after each rest.
    fn rest_after(&self, running: &mut Running, ran: &mut Ran, stop: &AtomicBool) {
        let end = clock::monotonic_ns();
        let mut at = vec![("loaded".to_owned(), Duration::ZERO)];
        at.extend(self.rest.iter().map(|rest| (format!("rest_{}s", rest.as_secs_f64()), *rest)));
        for (name, after) in at {
            let due = end + after.as_nanos() as u64;
            while clock::monotonic_ns() < due && !stop.load(Ordering::Relaxed) {
                std::thread::sleep(GLANCE);
            }
            let proc = ProcFs::live();
            let pids = running.processes();
            let sum = |of: &dyn Fn(i32) -> Measured<u64>| {
                let bytes: Measured<u64> = pids.iter().map(|&pid| of(pid)).sum();
                bytes.map(|bytes| bytes as f64)
            };
            let resident = sum(&|pid| Ok(proc.process_stat(pid)?.resident_pages * proc.page_bytes()));
            let lazily_freed = sum(&|pid| Ok(proc.smaps_rollup(pid)?.lazy_free));
            ran.metrics.insert(format!("{name}_rss_bytes"), resident);
            ran.metrics.insert(format!("{name}{LAZY_FREE}"), lazily_freed);
        }
    }
}

impl Fresh for Server<'_> {
    fn arms(&mut self) -> &mut [Prepared] {
        &mut self.arms
    }

    fn once(&self, start: &Start, close: &Close) -> Result<(Ran, Seen)> {
        let mut running = self.begin(start)?;
        let mut watcher = Watcher::of(&self.arms);
        let mut ran = Ran::default();
        let mut looks = None;
        let stop = close.stop(self.interrupted);
        let loaded = self.await_ready(&mut running, stop).and_then(|took| {
            looks = Some(close.start(running.family()));
            self.under_load(&mut running, &mut watcher, took, &mut ran, stop)
        });
        let closely = looks.map(CloseLooks::finish).unwrap_or_default();
        let early = running.exited();
        let finished = running.end()?;
        if let Err(error) = loaded {
            // Also set for an interruption; but then the block is not kept.
            ran.failure = Some(match last_words(&finished) {
                Some(line) => format!("{error}; its last output: {line}"),
                None => error.to_string(),
            });
        } else if early.is_some() {
            ran.failure =
                Some(failure(&finished, &[]).unwrap_or_else(|| "the server ended under load".into()));
        }
        for (key, value) in finished.metrics() {
            if matches!(key.as_str(), "peak_rss_bytes" | "peak_pss_bytes" | "minor_faults") {
                ran.metrics.insert(key, value);
            }
        }
        Ok((ran, watcher.seen(&finished, closely)))
    }
}

/// The generator's figures that are compared.
const KEPT: &[&str] = &[
    "throughput",
    "response_p50",
    "response_p90",
    "response_p99",
    "response_p999",
    "service_p50",
    "service_p99",
    "lag_p99",
];

/// A time of the first requests, in seconds.
type OfFirst = fn(&first::Times) -> f64;

/// The metrics of the first requests: key, title, whether it is primary, and the value. The start counts, because a remedy may move
/// work there.
const FIRST: &[(&str, &str, bool, OfFirst)] = &[
    ("first_s", "start and first requests", true, |times| times.from_start_ns as f64 / 1e9),
    ("first_slowest_s", "slowest first request", true, |times| times.slowest_ns as f64 / 1e9),
    ("first_mean_s", "mean of the first requests", false, |times| times.mean_ns / 1e9),
];

/// The throughput, if there is only one kind of request: CPU time can't be split between several kinds.
fn the_throughput(readings: &[Reading]) -> Option<f64> {
    let mut found = readings.iter().filter(|r| r.name.ends_with("throughput"));
    let one = found.next()?;
    found.next().is_none().then_some(one.value)
}

fn per(amount: f64, count: f64) -> Measured<f64> {
    if count > 0.0 {
        return Ok(amount / count);
    }
    Err(Absence::new(Reason::TooLittle, "no requests"))
}

/// The metrics of a server. Primary with the built-in generator: the p99 response time and the CPU time per request; or the time from
/// the start until the first requests are answered, and the slowest of them. Primary with a load command: its throughput and its 99th
/// percentile, or the user's figures.
pub fn metrics(server: &Server, first: &Ran) -> Vec<Metric> {
    let fixed = |key: &str, title: &str, unit, primary| Metric {
        key: key.to_owned(),
        title: title.to_owned(),
        unit,
        direction: Direction::LowerIsBetter,
        primary,
    };
    let mut metrics = Vec::new();
    match &server.load {
        Load::Inside { plans, .. } => {
            for (suffix, _) in plans {
                metrics.push(fixed(
                    &format!("cpu_per_request_s{suffix}"),
                    &format!("CPU per request{suffix}"),
                    Unit::Seconds,
                    true,
                ));
                for name in KEPT {
                    let (unit, better) = match *name {
                        "throughput" => (ReadingUnit::PerSecond, Better::Higher),
                        _ => (ReadingUnit::Nanoseconds, Better::Lower),
                    };
                    let reading = Reading::new(format!("{name}{suffix}"), 0.0, unit, better);
                    metrics.push(metric_of(&reading, *name == "response_p99"));
                }
            }
        }
        Load::First { .. } => metrics
            .extend(FIRST.iter().map(|(key, title, primary, _)| fixed(key, title, Unit::Seconds, *primary))),
        Load::Command { read, .. } => {
            let own = matches!(read, Read::Figures(_));
            let tail = |name: &str| name.ends_with("throughput") || name.ends_with("_p99");
            metrics.extend(first.readings.iter().map(|r| metric_of(r, own || tail(&r.name))));
            if the_throughput(&first.readings).is_some() {
                metrics.push(fixed("cpu_per_request_s", "CPU per request", Unit::Seconds, false));
            }
        }
    }
    metrics.push(fixed("ready_s", "time to be ready", Unit::Seconds, false));
    metrics.push(fixed("minor_faults", "minor faults", Unit::Count, false));
    metrics.push(fixed("peak_rss_bytes", "peak resident", Unit::Bytes, false));
    metrics.push(fixed("peak_pss_bytes", "peak PSS", Unit::Bytes, false));
    metrics.push(fixed("loaded_rss_bytes", "resident under load", Unit::Bytes, false));
    metrics.push(fixed("loaded_lazy_free_bytes", "LazyFree under load", Unit::Bytes, false));
    for rest in &server.rest {
        let seconds = rest.as_secs_f64();
        metrics.push(fixed(
            &format!("rest_{seconds}s_rss_bytes"),
            &format!("resident {seconds} s later"),
            Unit::Bytes,
            false,
        ));
        metrics.push(fixed(
            &format!("rest_{seconds}s{LAZY_FREE}"),
            &format!("LazyFree {seconds} s later"),
            Unit::Bytes,
            false,
        ));
    }
    metrics
}

/// One plan for each rate, with the suffix of its metrics. All arms use the same rates.
pub fn plans(rates: &[(String, f64)], like: &Plan) -> Vec<(String, Plan)> {
    let suffixed = rates.len() > 1;
    rates
        .iter()
        .map(|(name, rate)| {
            let suffix = if suffixed { format!("@{name}") } else { String::new() };
            let plan = Plan { rate_per_s: *rate, ..like.clone() };
            (suffix, plan)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::load::request::Ask;
    use super::*;

    #[test]
    fn the_first_requests_have_metrics_of_their_own_and_no_throughput() {
        let interrupted = AtomicBool::new(false);
        let request = Request::new(&Ask::get("http://127.0.0.1:1/")).unwrap();
        let metrics_of = |load: Load| {
            let server = Server {
                arms: vec![],
                keeper_exe: PathBuf::new(),
                ready: Ready::Tcp(request.address),
                patience: Duration::ZERO,
                load,
                rest: vec![],
                prepare: None,
                interrupted: &interrupted,
            };
            metrics(&server, &Ran::default())
        };
        let primary = |metrics: &[Metric]| -> Vec<String> {
            metrics.iter().filter(|m| m.primary).map(|m| m.key.clone()).collect()
        };
        let has = |metrics: &[Metric], key: &str| metrics.iter().any(|m| m.key == key);
        let limit = Duration::from_secs(1);
        let plan = first::Plan { requests: 9, connections: 1, limit, most_failures: 0 };
        let first = metrics_of(Load::First { request: request.clone(), plan });
        assert_eq!(primary(&first), ["first_s", "first_slowest_s"]);
        assert!(has(&first, "first_mean_s") && has(&first, "ready_s") && !has(&first, "throughput"));
        // The twin: a load whose start and warm-up do not count.
        let plans = vec![(String::new(), Plan::new(1.0, 0))];
        let load = metrics_of(Load::Inside { request: request.clone(), plans });
        assert_eq!(primary(&load), ["cpu_per_request_s", "response_p99"]);
        assert!(has(&load, "ready_s") && !load.iter().any(|m| m.key.starts_with("first_")));
    }
}
