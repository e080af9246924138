//! The first requests after a start, or other first units of work. They pay for what later ones find ready: pages that are touched
//! for the first time, connections, code that is not compiled yet. So no warm-up is left out.
//!
//! The time counts from the start of the process, not from its first answer: a remedy may only move work from the requests to the
//! start. Clients are closed loops: each sends its next request when the last one is answered.

use super::client::Client;
use super::closed::Loops;
use super::request::Request;
use allocwall_host::clock::monotonic_ns;
use allocwall_model::error::{Error, Result};
use allocwall_model::units::{Absence, Measured, Reason};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The largest number of requests.
pub const MOST: u64 = 1_000_000;

/// The times of the first units of work. Later ones are ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct First {
    wanted: u64,
    done: u64,
    sum_ns: u64,
    slowest_ns: u64,
    /// CLOCK_MONOTONIC.
    last_end_ns: u64,
}

/// The times of all of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Times {
    /// From the start to the end of the last one.
    pub from_start_ns: u64,
    pub slowest_ns: u64,
    /// Of each one by itself, added up: without the start, and without pauses between them.
    pub sum_ns: u64,
    pub mean_ns: f64,
}

impl First {
    pub fn of(wanted: u64) -> First {
        First { wanted, done: 0, sum_ns: 0, slowest_ns: 0, last_end_ns: 0 }
    }

    /// One that began and ended at these times (CLOCK_MONOTONIC).
    pub fn take(&mut self, began_ns: u64, end_ns: u64) {
        if self.left() == 0 {
            return;
        }
        let took_ns = end_ns.saturating_sub(began_ns);
        self.done += 1;
        self.sum_ns = self.sum_ns.saturating_add(took_ns);
        self.slowest_ns = self.slowest_ns.max(took_ns);
        self.last_end_ns = self.last_end_ns.max(end_ns);
    }

    pub fn left(&self) -> u64 {
        self.wanted - self.done
    }

    /// `start_ns`: CLOCK_MONOTONIC.
    ///
    /// # Errors
    /// `TooLittle`: not all of them were done.
    pub fn times(&self, start_ns: u64) -> Measured<Times> {
        let First { wanted, done, sum_ns, slowest_ns, last_end_ns } = *self;
        if done < wanted || wanted == 0 {
            let detail = format!("{done} of the first {wanted} requests were done");
            return Err(Absence::new(Reason::TooLittle, detail));
        }
        let from_start_ns = last_end_ns.saturating_sub(start_ns);
        Ok(Times { from_start_ns, slowest_ns, sum_ns, mean_ns: sum_ns as f64 / done as f64 })
    }
}

/// The first requests to a server that has just started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    pub requests: u64,
    /// Clients, each with its own connection.
    pub connections: usize,
    /// Time for all requests.
    pub limit: Duration,
    /// More failed requests than this end the run.
    pub most_failures: u64,
}

/// Sends the requests, on the calling thread.
///
/// # Errors
/// `Refused`: too many requests failed, the time is over, `stop` was set, or the system refuses an event loop.
pub fn run(request: &Request, plan: &Plan, stop: &AtomicBool) -> Result<First> {
    let no_loop = |cause: std::io::Error| {
        Error::Refused(format!(
            "the load generator could not create an event loop: {cause}; check the limit of open files: ulimit -n"
        ))
    };
    let client = Client::new(request, plan.connections).map_err(no_loop)?;
    let mut loops = Loops::new(client, plan.limit);
    loops.add(plan.connections);
    let mut first = First::of(plan.requests);
    let until_ns = monotonic_ns().saturating_add(plan.limit.as_nanos() as u64);
    let failures = loops.run_first(&mut first, plan.most_failures, until_ns, stop).map_err(no_loop)?;
    let (done, wanted, failed) = (first.done, first.wanted, failures.total());
    if failed > plan.most_failures {
        return Err(Error::Refused(format!("{failed} of the first {wanted} requests failed: {failures}")));
    }
    if stop.load(Ordering::Relaxed) {
        return Err(Error::Refused(format!("interrupted after {done} of the first {wanted} requests")));
    }
    if first.left() > 0 {
        let limit_s = plan.limit.as_secs_f64();
        return Err(Error::Refused(format!(
            "{done} of the first {wanted} requests were answered in {limit_s:.1} s; use a longer --timeout, or fewer requests"
        )));
    }
    Ok(first)
}

#[cfg(test)]
mod tests {
    use super::super::request::Ask;
    use super::super::test_server::{Server, answer};
    use super::*;
    use std::thread::sleep;

    const MS: u64 = 1_000_000;

    #[test]
    fn the_first_ones_count_and_later_ones_do_not() {
        let mut first = First::of(3);
        assert_eq!(first.times(0).unwrap_err().reason, Reason::TooLittle);
        for (began, end) in [(100, 140), (200, 210), (300, 330), (400, 9_000)] {
            first.take(began * MS, end * MS);
        }
        let times = first.times(20 * MS).unwrap();
        assert_eq!((times.from_start_ns, times.slowest_ns, times.sum_ns), (310 * MS, 40 * MS, 80 * MS));
        assert!((times.mean_ns * 3.0 - 80.0 * MS as f64).abs() < 1.0);
        // Of no request there is no time.
        assert!(First::of(0).times(0).is_err());
    }

    fn plan(requests: u64, connections: usize) -> Plan {
        Plan { requests, connections, limit: Duration::from_secs(60), most_failures: 0 }
    }

    fn ask(server: &Server, plan: &Plan, stop: bool) -> Result<First> {
        run(&Request::new(&Ask::get(&server.url())).unwrap(), plan, &AtomicBool::new(stop))
    }

    fn sent(server: &Server) -> u64 {
        server.requests.load(Ordering::Relaxed)
    }

    /// A cold server: the first request takes far longer than the others.
    #[test]
    fn the_slowest_one_is_seen_and_no_request_more_is_sent() {
        let server = Server::start(|number, stream| {
            if number == 0 {
                sleep(Duration::from_millis(200));
            }
            answer(stream, 200)
        });
        let began_ns = monotonic_ns();
        let times = ask(&server, &plan(20, 1), false).unwrap().times(began_ns).unwrap();
        assert!(times.slowest_ns >= 199 * MS, "{times:?}");
        assert!(times.from_start_ns >= times.sum_ns && times.sum_ns >= times.slowest_ns, "{times:?}");
        assert!(times.mean_ns < times.slowest_ns as f64, "{times:?}");
        assert_eq!(sent(&server), 20);
        // Several clients send no more requests than one.
        let server = Server::start(|_, stream| {
            sleep(Duration::from_millis(5));
            answer(stream, 200)
        });
        let times = ask(&server, &plan(10, 4), false).unwrap().times(0).unwrap();
        assert!(times.slowest_ns >= 4 * MS, "{times:?}");
        assert_eq!(sent(&server), 10);
    }

    #[test]
    fn failed_requests_are_no_first_requests() {
        let failing = || Server::start(|number, stream| answer(stream, if number == 3 { 500 } else { 200 }));
        let error = ask(&failing(), &plan(10, 1), false).unwrap_err().to_string();
        assert!(error.starts_with("1 of the first 10 requests failed: 1 × status 5xx"), "{error}");
        // A few may fail, and then others take their places.
        let server = failing();
        ask(&server, &Plan { most_failures: 1, ..plan(10, 1) }, false).unwrap();
        assert_eq!(sent(&server), 11);
    }

    #[test]
    fn a_server_that_is_too_slow_and_a_stop_end_it() {
        let silent = Server::start(|_, _| {
            sleep(Duration::from_secs(5));
            Ok(())
        });
        let brief = Plan { limit: Duration::from_millis(100), most_failures: 9, ..plan(2, 1) };
        let error = ask(&silent, &brief, false).unwrap_err().to_string();
        assert!(error.contains("0 of the first 2 requests") && error.contains("--timeout"), "{error}");
        let error = ask(&silent, &plan(2, 1), true).unwrap_err().to_string();
        assert!(error.starts_with("interrupted"), "{error}");
    }
}
