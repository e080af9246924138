//! Open-loop load: each request is sent at its intended start, whether or not the server has answered the earlier ones.
//!
//! Four times of a request, all from CLOCK_MONOTONIC:
//!
//! | time | from | to | meaning |
//! | --- | --- | --- | --- |
//! | response | intended start | end of the response | the time that a user waits |
//! | lag | intended start | taken up by the generator | the generator was late |
//! | queue | taken up | first byte written | all connections were busy, or a new one was opened; caused by the server |
//! | service | first byte written | end of the response | |
//!
//! Response = lag + queue + service. So a stall of the server shows in the response times of all requests with an intended start
//! during the stall (no coordinated omission: G. Tene, "How NOT to Measure Latency"). No histogram is corrected afterwards.
//!
//! A failed request has no response: it enters the distribution at the timeout, above all successful requests, and a percentile
//! that is among the failed requests is marked as a lower bound. So a server that fails fast never looks fast.

use crate::load::arrivals::{Arrivals, Schedule};
use crate::load::client::{Client, Finished};
use crate::load::failure::{Failure, Failures};
use crate::load::request::Request;
use crate::load::{Better, Reading, Unit, percentile_key};
use allocwall_host::clock::{monotonic_ns, thread_cpu_ns};
use allocwall_model::error::{Error, Result};
use allocwall_model::units::{Absence, Measured, Reason};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Percentiles that a run reports.
pub const PERCENTILES: &[f64] = &[50.0, 90.0, 99.0, 99.9];

/// The server is behind if fewer requests end in the window than this share of the offered requests …
const KEPT_UP: f64 = 0.97;
/// … and at least this many are missing. A few requests may always be in progress at the window's edges.
const MISSING_FLOOR: u64 = 10;
/// The backlog grows if it rises in every quarter of the window, at least to twice the first quarter, and by this share of all
/// requests. A rate 0.7 % above capacity meets this. A queue that varies around its mean rarely rises three times in a row.
const BACKLOG_SHARE: f64 = 0.005;
/// If the generator's own lag is more than this share of a percentile, the percentile says nothing about the server.
const LAG_SHARE: f64 = 0.5;
/// At most this many due requests are sent before responses are read again.
const BURST: usize = 64;
/// Limit for one machine: a higher rate is a typing error and would fill memory with waiting requests.
pub const HIGHEST_RATE: f64 = 1e6;
const MOST_CONNECTIONS: usize = 10_000;
const LONGEST: Duration = Duration::from_secs(24 * 3600);

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    pub arrivals: Arrivals,
    pub rate_per_s: f64,
    /// Load before the window, not counted: opens connections and fills caches.
    pub warm_up: Duration,
    pub window: Duration,
    /// From the intended start. After the window nothing is sent; requests in progress are waited for until their timeout.
    pub timeout: Duration,
    /// Largest number of connections. They are kept alive and opened as needed.
    pub connections: usize,
}

impl Plan {
    /// Poisson arrivals for 10 s after 2 s of warm-up, 10 s timeout, up to 256 connections.
    pub fn new(rate_per_s: f64, seed: u64) -> Self {
        Plan {
            arrivals: Arrivals::Poisson { seed },
            rate_per_s,
            warm_up: Duration::from_secs(2),
            window: Duration::from_secs(10),
            timeout: Duration::from_secs(10),
            connections: 256,
        }
    }

    /// # Errors
    /// `Refused`: a value is outside its range. [`run`] checks this too; an earlier check saves the start of a server.
    pub fn check(&self) -> Result<()> {
        let wrong = |text: &str| Err(Error::Refused(text.to_string()));
        if !(self.rate_per_s > 0.0 && self.rate_per_s <= HIGHEST_RATE) {
            return wrong(&format!(
                "the load rate is {} requests/s; it must be above 0 and at most {HIGHEST_RATE}",
                self.rate_per_s
            ));
        }
        if self.window.is_zero() || self.timeout.is_zero() {
            return wrong("the window and the timeout of a load must be longer than 0 s");
        }
        if self.warm_up > LONGEST || self.window > LONGEST || self.timeout > LONGEST {
            return wrong("a load must take at most one day; so must its warm-up and its timeout");
        }
        if !(1..=MOST_CONNECTIONS).contains(&self.connections) {
            return wrong(&format!("{} connections; use 1 to {MOST_CONNECTIONS}", self.connections));
        }
        Ok(())
    }
}

/// Why the percentiles of a run don't show the speed of the server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Saturation {
    /// The server ended fewer requests than were offered.
    Behind { achieved_per_s: f64, offered_per_s: f64 },
    /// Mean number of requests in progress in the first and the last quarter of the window.
    BacklogGrows { first: f64, last: f64 },
}

/// Cost of the generator itself: on a small machine it competes with its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Own {
    /// CPU time of the generator's threads within the window.
    pub cpu_ns: u64,
    pub wall_ns: u64,
    pub threads: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Percentile {
    pub ns: u64,
    /// This percentile is among the failed requests: it is at least the timeout.
    pub at_least: bool,
}

/// One run of a plan.
#[derive(Clone, Debug)]
pub struct Load {
    pub plan: Plan,
    /// Requests with an intended start in the window. Each is good, failed or unfinished.
    pub offered: u64,
    pub good: u64,
    pub failures: Failures,
    /// Still in progress when the run was interrupted.
    pub unfinished: u64,
    /// Failures before the window; these requests are in no distribution.
    pub warm_up_failures: Failures,
    /// Requests that ended within the window, without timeouts.
    pub ended_in_window: u64,
    /// The actual window; shorter than planned if interrupted.
    pub window_ns: u64,
    pub interrupted: bool,
    pub saturation: Option<Saturation>,
    pub own: Own,
    pub connections_opened: u64,
    response: Distribution,
    queue: Distribution,
    service: Distribution,
    lag: Distribution,
}

/// Times of good requests, and the number of failed requests, which count as slower than all good ones.
#[derive(Clone, Debug)]
struct Distribution {
    good: Histogram<u64>,
    failed: u64,
}

impl Distribution {
    fn new(timeout_ns: u64) -> Self {
        Distribution {
            // Three digits, up to the timeout: valid for any timeout of at least 2 ns.
            good: Histogram::new_with_bounds(1, timeout_ns.max(2), 3).expect("bounds of a histogram"),
            failed: 0,
        }
    }

    fn record(&mut self, ns: u64) {
        self.good.saturating_record(ns);
    }

    fn count(&self) -> u64 {
        self.good.len() + self.failed
    }

    fn at(&self, percent: f64, timeout_ns: u64) -> Measured<Percentile> {
        let count = self.count();
        let above = count as f64 * (1.0 - percent / 100.0);
        if count == 0 || above < 1.0 {
            return Err(Absence::new(
                Reason::TooLittle,
                format!("{count} requests are too few for the {percent}th percentile"),
            )
            .mend("use a longer load or a higher rate"));
        }
        let rank = (count as f64 * percent / 100.0).ceil() as u64;
        if rank > self.good.len() {
            return Ok(Percentile { ns: timeout_ns, at_least: true });
        }
        // The rank among the good requests only: the failed ones are above them.
        let share = 100.0 * (rank as f64 - 0.5) / self.good.len() as f64;
        Ok(Percentile { ns: self.good.value_at_percentile(share), at_least: false })
    }
}

impl Load {
    pub fn offered_per_s(&self) -> f64 {
        per_second(self.offered, self.window_ns)
    }

    /// Requests per second that ended within the window, without timeouts.
    pub fn achieved_per_s(&self) -> f64 {
        per_second(self.ended_in_window, self.window_ns)
    }

    /// From the intended start to the end of the response.
    ///
    /// # Errors
    /// `NotApplicable`: the server was saturated, or the generator itself was late. `TooLittle`: too few requests, no good request,
    /// or an interrupted run.
    pub fn response(&self, percent: f64) -> Measured<Percentile> {
        self.of_server(&self.response, percent)
    }

    /// From the first byte written to the end of the response; closed-loop tools call it latency. Errors as `response`.
    pub fn service(&self, percent: f64) -> Measured<Percentile> {
        self.of_server(&self.service, percent)
    }

    /// Waiting for a connection. Errors as `response`.
    pub fn queue(&self, percent: f64) -> Measured<Percentile> {
        self.of_server(&self.queue, percent)
    }

    /// The delay that the generator itself caused.
    ///
    /// # Errors
    /// `TooLittle`: too few requests.
    pub fn lag(&self, percent: f64) -> Measured<Percentile> {
        self.lag.at(percent, self.timeout_ns())
    }

    fn timeout_ns(&self) -> u64 {
        nanoseconds(self.plan.timeout)
    }

    fn of_server(&self, distribution: &Distribution, percent: f64) -> Measured<Percentile> {
        self.whole()?;
        if let Some(saturation) = &self.saturation {
            return Err(saturation.absence());
        }
        if self.good == 0 && self.offered > 0 {
            return Err(Absence::new(
                Reason::TooLittle,
                format!("none of {} requests succeeded: {}", self.offered, self.failures),
            ));
        }
        let found = distribution.at(percent, self.timeout_ns())?;
        let response = self.response.at(percent, self.timeout_ns())?;
        let lag = self.lag(percent)?;
        if lag.ns as f64 > LAG_SHARE * response.ns as f64 {
            return Err(Absence::new(
                Reason::NotApplicable,
                format!(
                    "the load generator itself was late: its lag is {:.2} ms of the {:.2} ms of the {percent}th percentile",
                    lag.ns as f64 / 1e6,
                    response.ns as f64 / 1e6
                ),
            )
            .mend("use a lower rate, or leave one CPU free for the load generator"));
        }
        Ok(found)
    }

    fn throughput(&self) -> Measured<Reading> {
        self.whole().map(|()| Reading::throughput(self.achieved_per_s()))
    }

    fn errors(&self) -> Measured<Reading> {
        self.whole().map(|()| Reading::errors(self.failures.total() as f64))
    }

    fn whole(&self) -> Measured<()> {
        if !self.interrupted {
            return Ok(());
        }
        let seconds = self.window_ns as f64 / 1e9;
        Err(Absence::new(
            Reason::TooLittle,
            format!("the load was interrupted {seconds:.1} s into its window"),
        ))
    }

    /// All figures of the run with their names: `throughput`, `errors`, and for each percentile `response_…`, `service_…`,
    /// `queue_…` and `lag_…`; or the reason why a figure is not available.
    pub fn readings(&self) -> Vec<(String, Measured<Reading>)> {
        let mut readings =
            vec![("throughput".to_string(), self.throughput()), ("errors".to_string(), self.errors())];
        type Figure = fn(&Load, f64) -> Measured<Percentile>;
        let figures: [(&str, Figure); 4] = [
            ("response", Load::response),
            ("service", Load::service),
            ("queue", Load::queue),
            ("lag", Load::lag),
        ];
        for (prefix, figure) in figures {
            for percent in PERCENTILES {
                let name = format!("{prefix}_{}", percentile_key(*percent));
                let reading = figure(self, *percent).map(|found| Reading {
                    at_least: found.at_least,
                    ..Reading::new(&name, found.ns as f64, Unit::Nanoseconds, Better::Lower)
                });
                readings.push((name, reading));
            }
        }
        readings
    }
}

impl Saturation {
    fn absence(&self) -> Absence {
        let detail = match self {
            Saturation::Behind { achieved_per_s, offered_per_s } => format!(
                "saturated: the server answered {achieved_per_s:.0} of {offered_per_s:.0} requests/s, so response times depend on the length of the load"
            ),
            Saturation::BacklogGrows { first, last } => format!(
                "saturated: requests in progress grew from {first:.0} to {last:.0} in the window, so response times depend on the length of the load"
            ),
        };
        Absence::new(Reason::NotApplicable, detail).mend("use a lower rate")
    }
}

/// Loads the server as planned, on the calling thread. Ends early, with `interrupted`, soon after `stop` is set.
///
/// # Errors
/// `Refused`: the plan is invalid, or the system refuses an event loop.
pub fn run(request: &Request, plan: &Plan, stop: &AtomicBool) -> Result<Load> {
    plan.check()?;
    Run::new(request, plan)
        .and_then(|run| run.drive(stop))
        .map_err(|cause| {
            Error::Refused(format!(
                "the load generator could not create an event loop: {cause}; check the limit of open files: ulimit -n"
            ))
        })
}

/// A request that is due. It is kept until it and all earlier requests have ended.
struct Pending {
    intended_ns: u64,
    taken_up_ns: u64,
    measured: bool,
    slot: Option<usize>,
    done: bool,
}

struct Run<'a> {
    client: Client<'a>,
    schedule: std::iter::Peekable<Schedule>,
    start_ns: u64,
    /// Start and end of the window.
    from_ns: u64,
    to_ns: u64,
    timeout_ns: u64,
    /// Requests in the order of their intended starts; the first has the number `first`.
    pending: VecDeque<Pending>,
    first: u64,
    /// Numbers of the requests that wait for a connection.
    queue: VecDeque<u64>,
    under_way: u64,
    /// Requests in progress at each arrival, by quarter of the window: sum and count.
    found: [(u64, u64); 4],
    load: Load,
}

impl<'a> Run<'a> {
    fn new(request: &'a Request, plan: &Plan) -> std::io::Result<Self> {
        let client = Client::new(request, plan.connections)?;
        let timeout_ns = nanoseconds(plan.timeout);
        // 1 ms in the future, so that the first request is not already late.
        let start_ns = monotonic_ns() + 1_000_000;
        let from_ns = start_ns + nanoseconds(plan.warm_up);
        let empty = || Distribution::new(timeout_ns);
        Ok(Run {
            client,
            schedule: Schedule::new(plan.arrivals, plan.rate_per_s).peekable(),
            start_ns,
            from_ns,
            to_ns: from_ns + nanoseconds(plan.window),
            timeout_ns,
            pending: VecDeque::new(),
            first: 0,
            queue: VecDeque::new(),
            under_way: 0,
            found: [(0, 0); 4],
            load: Load {
                plan: plan.clone(),
                offered: 0,
                good: 0,
                failures: Failures::default(),
                unfinished: 0,
                warm_up_failures: Failures::default(),
                ended_in_window: 0,
                window_ns: nanoseconds(plan.window),
                interrupted: false,
                saturation: None,
                own: Own { cpu_ns: 0, wall_ns: 0, threads: 1 },
                connections_opened: 0,
                response: empty(),
                queue: empty(),
                service: empty(),
                lag: empty(),
            },
        })
    }

    fn drive(mut self, stop: &AtomicBool) -> std::io::Result<Load> {
        let mut cpu_at_start = None;
        let mut cpu_at_end = None;
        let mut finished = Vec::new();
        loop {
            let now = monotonic_ns();
            if now >= self.from_ns {
                cpu_at_start.get_or_insert_with(|| (now, thread_cpu_ns()));
            }
            if now >= self.to_ns {
                cpu_at_end.get_or_insert_with(|| (now, thread_cpu_ns()));
            }
            if stop.load(Ordering::Relaxed) {
                self.interrupt(now);
                break;
            }
            self.admit_due();
            self.send_queued();
            self.time_out(now);
            self.client.take_finished(&mut finished);
            for end in finished.drain(..) {
                self.finish(end);
            }
            let next = self.next_intended();
            if next.is_none() && self.under_way == 0 && now >= self.to_ns {
                break;
            }
            self.client.wait(self.wake_at(next, now))?;
        }
        let end = cpu_at_end.unwrap_or_else(|| (monotonic_ns(), thread_cpu_ns()));
        if let Some(start) = cpu_at_start {
            self.load.own.cpu_ns = end.1 - start.1;
            self.load.own.wall_ns = end.0 - start.0;
        }
        self.load.connections_opened = self.client.opened();
        self.load.saturation = self.saturation();
        Ok(self.load)
    }

    /// The next intended start before the end of the window.
    fn next_intended(&mut self) -> Option<u64> {
        let intended = self.start_ns + self.schedule.peek()?;
        (intended < self.to_ns).then_some(intended)
    }

    fn wake_at(&self, next: Option<u64>, now: u64) -> u64 {
        let first_timeout = self.pending.front().map(|pending| pending.intended_ns + self.timeout_ns);
        // Also wake at the edges of the window, to read the CPU clock there.
        let edges = [self.from_ns, self.to_ns].into_iter().filter(|edge| *edge > now);
        edges.chain(next).chain(first_timeout).min().unwrap_or(now)
    }

    /// Takes up the requests that are due.
    fn admit_due(&mut self) {
        for _ in 0..BURST {
            let Some(intended_ns) = self.next_intended() else {
                return;
            };
            let taken_up_ns = monotonic_ns();
            if intended_ns > taken_up_ns {
                return;
            }
            self.schedule.next();
            let measured = intended_ns >= self.from_ns;
            if measured {
                let quarter = ((intended_ns - self.from_ns) * 4 / self.load.window_ns).min(3) as usize;
                self.load.offered += 1;
                self.load.lag.record(taken_up_ns - intended_ns);
                self.found[quarter].0 += self.under_way;
                self.found[quarter].1 += 1;
            }
            let number = self.first + self.pending.len() as u64;
            self.pending.push_back(Pending { intended_ns, taken_up_ns, measured, slot: None, done: false });
            self.under_way += 1;
            self.queue.push_back(number);
            self.send_queued();
        }
    }

    fn send_queued(&mut self) {
        while let Some(number) = self.queue.front().copied() {
            if self.get(number).is_some() {
                let Some(slot) = self.client.start(number) else {
                    return;
                };
                if let Some(pending) = self.get(number) {
                    pending.slot = Some(slot);
                }
            }
            self.queue.pop_front();
        }
    }

    /// A request that is still in progress.
    fn get(&mut self, number: u64) -> Option<&mut Pending> {
        let at = number.checked_sub(self.first)?;
        self.pending.get_mut(at as usize).filter(|pending| !pending.done)
    }

    fn time_out(&mut self, now: u64) {
        while let Some(front) = self.pending.front() {
            if !front.done {
                if front.intended_ns + self.timeout_ns > now {
                    return;
                }
                let number = self.first;
                let sent_ns = front.slot.and_then(|slot| self.client.cancel(slot, number));
                self.finish(Finished { job: number, failure: Some(Failure::TimedOut), sent_ns, end_ns: now });
            }
            self.pending.pop_front();
            self.first += 1;
        }
    }

    fn finish(&mut self, end: Finished) {
        let timeout_ns = self.timeout_ns;
        let Some(pending) = self.get(end.job) else { return };
        pending.done = true;
        let response_ns = end.end_ns.saturating_sub(pending.intended_ns);
        let taken_up_ns = pending.taken_up_ns;
        let measured = pending.measured;
        self.under_way -= 1;
        // A response after the timeout counts as a timeout, even if it was read before `time_out` ran.
        let failure = if response_ns >= timeout_ns { Some(Failure::TimedOut) } else { end.failure };
        let load = &mut self.load;
        if failure != Some(Failure::TimedOut) && (self.from_ns..self.to_ns).contains(&end.end_ns) {
            load.ended_in_window += 1;
        }
        match (measured, failure, end.sent_ns) {
            (false, Some(failure), _) => load.warm_up_failures.add(failure),
            (false, None, _) => {}
            (true, Some(failure), sent_ns) => {
                load.failures.add(failure);
                load.response.failed += 1;
                match sent_ns {
                    Some(sent_ns) => {
                        load.service.failed += 1;
                        load.queue.record(sent_ns.saturating_sub(taken_up_ns));
                    }
                    None => load.queue.failed += 1,
                }
            }
            (true, None, sent_ns) => {
                load.good += 1;
                load.response.record(response_ns);
                let sent_ns = sent_ns.unwrap_or(taken_up_ns);
                load.queue.record(sent_ns.saturating_sub(taken_up_ns));
                load.service.record(end.end_ns.saturating_sub(sent_ns));
            }
        }
    }

    fn interrupt(&mut self, now: u64) {
        self.load.interrupted = true;
        self.load.window_ns = now.min(self.to_ns).saturating_sub(self.from_ns);
        self.load.unfinished = self.pending.iter().filter(|p| p.measured && !p.done).count() as u64;
    }

    fn saturation(&self) -> Option<Saturation> {
        if self.load.interrupted {
            return None;
        }
        let (offered, ended) = (self.load.offered, self.load.ended_in_window);
        if (ended as f64) < KEPT_UP * offered as f64 && offered - ended >= MISSING_FLOOR {
            return Some(Saturation::Behind {
                achieved_per_s: self.load.achieved_per_s(),
                offered_per_s: self.load.offered_per_s(),
            });
        }
        backlog_grows(self.found.map(|(sum, count)| sum as f64 / count.max(1) as f64), offered)
    }
}

/// `found`: mean number of requests in progress in each quarter of the window.
fn backlog_grows(found: [f64; 4], offered: u64) -> Option<Saturation> {
    let [first, .., last] = found;
    let rises = found.windows(2).all(|pair| pair[1] > pair[0]);
    let enough = (BACKLOG_SHARE * offered as f64).max(MISSING_FLOOR as f64);
    (rises && last >= 2.0 * first && last - first >= enough)
        .then_some(Saturation::BacklogGrows { first, last })
}

fn per_second(count: u64, ns: u64) -> f64 {
    if ns == 0 { 0.0 } else { count as f64 * 1e9 / ns as f64 }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::request::Ask;
    use crate::load::test_server::{Handled, Server, answer};
    use std::net::TcpStream;
    use std::sync::Mutex;
    use std::thread::sleep;

    const MS: u64 = 1_000_000;

    /// Evenly spaced, so that the number of requests in the window is known exactly; a timeout that even a slow machine does not
    /// reach.
    fn plan(rate_per_s: f64) -> Plan {
        Plan {
            arrivals: Arrivals::Constant,
            rate_per_s,
            warm_up: Duration::from_millis(100),
            window: Duration::from_millis(500),
            timeout: Duration::from_secs(60),
            connections: 64,
        }
    }

    fn load(url: &str, plan: &Plan) -> Load {
        let load = run(&Request::new(&Ask::get(url)).unwrap(), plan, &AtomicBool::new(false)).unwrap();
        assert_eq!(
            load.offered,
            load.good + load.failures.total(),
            "each request is good or failed: {load:?}"
        );
        assert_eq!(load.response.count(), load.offered);
        assert_eq!(load.lag.count(), load.offered);
        load
    }

    fn after(delay: Duration) -> Server {
        Server::start(move |_, stream| {
            sleep(delay);
            answer(stream, 200)
        })
    }

    fn at(distribution: &Distribution, percent: f64) -> Percentile {
        distribution.at(percent, 60_000 * MS).unwrap()
    }

    fn above(distribution: &Distribution, ns: u64) -> u64 {
        distribution.good.count_between(ns, u64::MAX)
    }

    #[test]
    fn a_fixed_delay_is_in_every_answer() {
        let server = after(Duration::from_millis(20));
        let load = load(&server.url(), &plan(100.0));
        assert_eq!((load.offered, load.good), (50, 50));
        for distribution in [&load.response, &load.service] {
            assert!(distribution.good.min() >= 19 * MS, "{}", distribution.good.min());
        }
        assert!(load.connections_opened < 60, "not kept alive: {}", load.connections_opened);
        assert!(load.own.cpu_ns > 0 && load.own.cpu_ns < load.own.wall_ns, "{:?}", load.own);
    }

    /// Coordinated omission: one request of 100 stalls the only connection for 200 ms. Requests with an intended start during the
    /// stall have long response times, although each was answered at once after it was sent.
    #[test]
    fn a_stall_shows_in_response_times_and_not_in_service_times() {
        let server = Server::start(|number, stream| {
            if number == 40 {
                sleep(Duration::from_millis(200));
            }
            answer(stream, 200)
        });
        let one = Plan { connections: 1, window: Duration::from_secs(1), ..plan(100.0) };
        let load = load(&server.url(), &one);
        assert_eq!((load.offered, load.good, load.connections_opened), (100, 100, 1));
        assert!(at(&load.response, 99.0).ns >= 180 * MS);
        assert!(above(&load.response, 99 * MS) >= 10);
        assert!(above(&load.queue, 99 * MS) >= 1);
        // Only one service time is long. Checked for 90 % of them, to allow for a slow machine.
        assert!(at(&load.service, 90.0).ns < 99 * MS, "{:?}", at(&load.service, 90.0));
    }

    #[test]
    fn resets_are_counted_and_leave_no_percentile() {
        // If a socket is closed with unread bytes, the kernel sends a reset (RFC 2525, 2.17).
        let server = Server::raw(|stream: TcpStream| {
            let _ = stream.peek(&mut [0]);
        });
        let load = load(&server.url(), &plan(50.0));
        assert_eq!((load.good, load.failures.of(Failure::Reset)), (0, load.offered), "{}", load.failures);
        let absence = load.response(50.0).unwrap_err();
        assert!(absence.detail.contains("connection reset"), "{absence}");
    }

    #[test]
    fn other_failures_have_their_kinds() {
        let refused = format!("http://{}/", Server::closed_address());
        let failing = Server::start(|_, stream| answer(stream, 500));
        let missing = Server::start(|_, stream| answer(stream, 404));
        let closing = Server::start(|_, _| Err(std::io::ErrorKind::Other.into()));
        let foreign = Server::start(|_, stream| std::io::Write::write_all(stream, b"+PONG\r\n"));
        for (url, failure) in [
            (refused, Failure::Refused),
            (failing.url(), Failure::ServerError),
            (missing.url(), Failure::ClientError),
            (closing.url(), Failure::Closed),
            (foreign.url(), Failure::Malformed),
        ] {
            let load = load(&url, &plan(50.0));
            assert_eq!((load.good, load.failures.of(failure)), (0, 25), "{url}: {}", load.failures);
            assert_eq!(load.warm_up_failures.of(failure), 5);
        }
    }

    /// Fast failures must not look fast: 10 % of the requests fail at once, and the upper percentiles are bounds at the timeout.
    #[test]
    fn failed_requests_are_above_all_good_ones() {
        let server = Server::start(|number, stream| answer(stream, if number % 10 == 0 { 500 } else { 200 }));
        // One connection, so that the server's count is the order of the requests.
        let one = Plan { connections: 1, ..plan(200.0) };
        let load = load(&server.url(), &one);
        assert_eq!((load.good, load.failures.of(Failure::ServerError)), (90, 10));
        assert!(!at(&load.response, 90.0).at_least);
        let bound = Percentile { ns: 60_000 * MS, at_least: true };
        assert_eq!((at(&load.response, 91.0), at(&load.service, 99.0)), (bound, bound));
    }

    fn one_at_a_time() -> Server {
        let turn = Mutex::new(());
        Server::start(move |_, stream| {
            let held = turn.lock().unwrap();
            sleep(Duration::from_millis(5));
            drop(held);
            answer(stream, 200)
        })
    }

    /// 5 ms per request, one at a time: at most 200 requests per second on any machine.
    #[test]
    fn a_server_slower_than_the_load_is_marked_and_has_no_percentiles() {
        let server = one_at_a_time();
        let overload = Plan { timeout: Duration::from_millis(300), ..plan(1000.0) };
        let load = load(&server.url(), &overload);
        assert!(matches!(load.saturation, Some(Saturation::Behind { .. })), "{:?}", load.saturation);
        assert!(load.failures.of(Failure::TimedOut) > 0);
        assert!(load.achieved_per_s() <= 240.0 && load.offered_per_s() == 1000.0);
        for percent in PERCENTILES {
            let absence = load.response(*percent).unwrap_err();
            assert_eq!(absence.reason, Reason::NotApplicable);
            assert!(absence.detail.starts_with("saturated"), "{absence}");
        }
        let readings = load.readings();
        assert!(readings.iter().any(|(name, reading)| name == "throughput" && reading.is_ok()));
        assert!(readings.iter().any(|(name, reading)| name == "response_p99" && reading.is_err()));
    }

    /// The twin: the same server at a tenth of its capacity.
    #[test]
    fn the_same_server_under_less_load_is_not_marked() {
        let load = load(&one_at_a_time().url(), &plan(20.0));
        assert_eq!((load.saturation, load.offered, load.good), (None, 10, 10));
    }

    #[test]
    fn a_silent_server_makes_every_request_time_out() {
        let silent = Server::start(|_, _| {
            sleep(Duration::from_secs(5));
            Ok(())
        });
        let brief = |rate| Plan { timeout: Duration::from_millis(100), ..plan(rate) };
        let many = load(&silent.url(), &brief(100.0));
        assert_eq!((many.good, many.failures.of(Failure::TimedOut), many.offered), (0, 50, 50));
        assert!(matches!(many.saturation, Some(Saturation::Behind { .. })));
        // Too few requests to detect saturation; there is still no percentile.
        let few = load(&silent.url(), &brief(10.0));
        assert_eq!(few.failures.of(Failure::TimedOut), 5);
        let reason = few.response(50.0).unwrap_err().reason;
        assert!(few.saturation.is_none());
        assert_eq!((few.good, few.offered, reason), (0, 5, Reason::TooLittle));
    }

    #[test]
    fn few_timeouts_make_the_upper_percentiles_lower_bounds() {
        let server = Server::start(|number, stream| {
            if number % 20 == 19 {
                sleep(Duration::from_secs(20));
            }
            answer(stream, 200)
        });
        let patient = Plan { timeout: Duration::from_secs(2), ..plan(200.0) };
        let load = load(&server.url(), &patient);
        let late = load.failures.of(Failure::TimedOut);
        assert!((5..=20).contains(&late), "{}", load.failures);
        let highest = load.response.at(99.0, 2_000 * MS).unwrap();
        assert_eq!(highest, Percentile { ns: 2_000 * MS, at_least: true });
        assert!(!load.response.at(50.0, 2_000 * MS).unwrap().at_least);
    }

    #[test]
    fn the_warm_up_is_in_no_figure() {
        // One connection, so that the server's count is the order of the requests: 10 are before the window.
        let server = Server::start(|number, stream| answer(stream, if number < 10 { 500 } else { 200 }));
        let one = Plan { connections: 1, ..plan(100.0) };
        let load = load(&server.url(), &one);
        assert_eq!((load.offered, load.failures.total()), (50, 0));
        assert_eq!(load.warm_up_failures.of(Failure::ServerError), 10);
    }

    #[test]
    fn connections_that_the_server_closes_are_reopened() {
        fn last(_: u64, stream: &mut TcpStream) -> Handled {
            std::io::Write::write_all(
                stream,
                b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
            )?;
            Err(std::io::ErrorKind::Other.into())
        }
        let server = Server::start(last);
        let load = load(&server.url(), &plan(100.0));
        assert_eq!((load.good, load.connections_opened), (50, 60));
    }

    /// Larger than the socket buffers, so that it is written in several pieces.
    #[test]
    fn a_large_body_arrives_complete() {
        let server = after(Duration::ZERO);
        let body = vec![b'x'; 8 << 20];
        let ask = Ask { method: "POST", body: &body, ..Ask::get("") };
        let url = server.url();
        let request = Request::new(&Ask { url: &url, ..ask }).unwrap();
        let load = run(&request, &plan(10.0), &AtomicBool::new(false)).unwrap();
        // The server counts a request when it has read all of it. An extra byte would count as the next request.
        assert_eq!((load.good, server.requests.load(Ordering::Relaxed)), (5, 6), "{}", load.failures);
    }

    #[test]
    fn no_request_is_lost_if_the_server_closes_an_idle_connection() {
        let server = Server::start(|_, stream| {
            answer(stream, 200)?;
            // The response promised keep-alive, but the server closes before the next request, 100 ms later.
            Err(std::io::ErrorKind::Other.into())
        });
        let load = load(&server.url(), &plan(10.0));
        // If the client did not notice, every second request would fail on the closed connection.
        assert!(load.offered == 5 && load.good >= 4, "{}", load.failures);
    }

    #[test]
    fn an_interrupted_run_has_no_figures() {
        let server = after(Duration::ZERO);
        let request = Request::new(&Ask::get(&server.url())).unwrap();
        let load = run(&request, &plan(100.0), &AtomicBool::new(true)).unwrap();
        assert!(load.interrupted);
        for (name, reading) in load.readings() {
            assert!(reading.is_err(), "{name}");
        }
    }

    #[test]
    fn the_seed_determines_the_requests_of_a_poisson_run() {
        let server = after(Duration::ZERO);
        let poisson = Plan { arrivals: Arrivals::Poisson { seed: 3 }, ..plan(300.0) };
        let window = 100 * MS..600 * MS;
        let expected = Schedule::new(poisson.arrivals, 300.0)
            .take_while(|at| *at < window.end)
            .filter(|at| window.contains(at))
            .count();
        assert_eq!(load(&server.url(), &poisson).offered, expected as u64);
    }

    #[test]
    fn plans_that_cannot_be_run_are_refused() {
        let request = Request::new(&Ask::get("http://127.0.0.1:1/")).unwrap();
        let second = Duration::from_secs(1);
        for wrong in [
            plan(0.0),
            plan(-1.0),
            plan(f64::NAN),
            plan(1e9),
            Plan { window: Duration::ZERO, ..plan(1.0) },
            Plan { timeout: Duration::MAX, ..plan(1.0) },
            Plan { window: second * (48 * 3600), ..plan(1.0) },
            Plan { connections: 0, ..plan(1.0) },
            Plan { connections: 1_000_000, window: second, ..plan(1.0) },
        ] {
            assert!(run(&request, &wrong, &AtomicBool::new(false)).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_backlog_grows_only_if_it_rises_in_every_quarter() {
        assert!(backlog_grows([1.0, 10.0, 20.0, 30.0], 1000).is_some());
        for (found, offered) in [
            ([1.0, 20.0, 10.0, 30.0], 1000),
            ([30.0, 35.0, 40.0, 45.0], 1000),
            ([1.0, 2.0, 3.0, 4.0], 1000),
            ([1.0, 10.0, 20.0, 30.0], 100_000),
        ] {
            assert!(backlog_grows(found, offered).is_none(), "{found:?}");
        }
    }

    #[test]
    fn a_percentile_needs_a_request_above_it() {
        let mut few = Distribution::new(60_000 * MS);
        for ns in 1..=99 {
            few.record(ns);
        }
        assert_eq!(few.at(99.0, 1).unwrap_err().reason, Reason::TooLittle);
        few.record(100);
        assert_eq!(few.at(99.0, 1).unwrap(), Percentile { ns: 99, at_least: false });
        assert_eq!(few.at(50.0, 1).unwrap().ns, 50);
        few.failed = 100;
        assert_eq!(few.at(50.0, 7).unwrap(), Percentile { ns: 100, at_least: false });
        assert_eq!(few.at(51.0, 7).unwrap(), Percentile { ns: 7, at_least: true });
    }

    #[test]
    fn a_large_lag_of_the_generator_removes_a_percentile() {
        let server = after(Duration::ZERO);
        let mut load = load(&server.url(), &plan(100.0));
        load.saturation = None;
        for (own, absent) in [(2 * MS, true), (MS / 10, false)] {
            load.lag = Distribution::new(60_000 * MS);
            load.response = Distribution::new(60_000 * MS);
            for _ in 0..10 {
                load.lag.record(own);
                load.response.record(3 * MS);
            }
            assert_eq!(load.response(50.0).is_err(), absent);
        }
    }
}
