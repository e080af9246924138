//! Finds the capacity of a server: the number of requests per second that it can answer. Closed loops, each of which sends its next
//! request when the last is answered, run on 1, 2, 4, … connections until more connections bring no more throughput or the limit of
//! connections is reached. An open load may later use all its connections, and some servers answer fewer requests on many: those with
//! a thread per connection, for example. So the last step uses as many as the load may have in use, and the lower throughput counts.
//! Closed loops would not show stalls in their latencies, so no latencies are measured.

use crate::load::client::Client;
use crate::load::failure::{Failure, Failures};
use crate::load::first::First;
use crate::load::open::Own;
use crate::load::request::Request;
use allocwall_host::clock::{monotonic_ns, thread_cpu_ns};
use allocwall_model::units::{Absence, Measured, Reason};
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The capacity is reached if two steps in a row are not at least this much above the best step before them.
const RISE: f64 = 0.03;
/// Answers per step. With fewer, one answer more or less at the edges of a step would be as large as `RISE`.
const ENOUGH: u64 = 50;
/// With more connections than are answered in this part of the timeout, requests would time out only because so many wait.
const WAITING_SHARE: f64 = 0.5;
/// Pause of a failed loop before it tries again, to avoid a flood of attempts on a closed port.
const REST_NS: u64 = 10_000_000;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Search {
    /// Time before each step that is not counted.
    pub settle: Duration,
    pub step: Duration,
    /// With a slow server a step continues until it has enough answers, at most this long.
    pub longest_step: Duration,
    pub timeout: Duration,
    /// The last step has exactly this many, if throughput still rises.
    pub most_connections: usize,
}

impl Default for Search {
    /// Steps of 1 s after 0.25 s to settle, up to 256 connections: at most 15 s for a server with at least 50 answers per second.
    /// Slower servers get steps of up to 6 s. This is longer than the timeout, so that requests to a silent server time out.
    fn default() -> Self {
        Search {
            settle: Duration::from_millis(250),
            step: Duration::from_secs(1),
            longest_step: Duration::from_secs(6),
            timeout: Duration::from_secs(5),
            most_connections: 256,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    pub connections: usize,
    /// Good answers per second.
    pub per_second: f64,
    pub failures: Failures,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Capacity {
    /// The step with the most good answers per second. As the highest of several noisy figures it is biased upwards.
    pub best: Step,
    /// The step with as many connections as the load may have in use; None if the best step had as many.
    pub crowded: Option<Step>,
    /// The steps of the search, without `crowded`.
    pub steps: Vec<Step>,
    /// Throughput still rose at the last step that the limit of connections allowed: the capacity may be higher.
    pub still_rising: bool,
    /// CPU time of the generator over all steps. If it shares a CPU with the target, the capacity without it would be higher.
    pub own: Own,
}

impl Capacity {
    /// Good answers per second that the server keeps up with any number of connections.
    pub fn per_second(&self) -> f64 {
        self.crowded.iter().fold(self.best.per_second, |least, step| least.min(step.per_second))
    }

    /// The step with many connections, if the server answered clearly fewer requests in it.
    pub fn slower_crowded(&self) -> Option<&Step> {
        self.crowded.as_ref().filter(|step| step.per_second * (1.0 + RISE) < self.best.per_second)
    }
}

/// Searches on the calling thread.
///
/// # Errors
/// `NotFound`: no request had a good answer; with the failures. `TooLittle`: `stop` was set. `NotSupported`: the system refuses an
/// event loop.
pub fn find(request: &Request, search: &Search, stop: &AtomicBool) -> Measured<Capacity> {
    let no_loop = |cause: std::io::Error| {
        Absence::new(
            Reason::NotSupported,
            format!("the load generator could not create an event loop: {cause}"),
        )
        .mend("check the limit of open files: ulimit -n")
    };
    let most = search.most_connections.max(1);
    let client = Client::new(request, most).map_err(no_loop)?;
    let mut loops = Loops::new(client, search.timeout);
    let started = (monotonic_ns(), thread_cpu_ns());
    let mut steps: Vec<Step> = Vec::new();
    let mut take = |connections: usize, settle: Duration| {
        loops.add(connections);
        loops.run_for(settle, settle, stop).map_err(no_loop)?;
        let step = loops.run_for(search.step, search.longest_step, stop).map_err(no_loop)?;
        if stop.load(Ordering::Relaxed) {
            return Err(Absence::new(
                Reason::TooLittle,
                "the search for the server's capacity was interrupted",
            ));
        }
        Ok(step)
    };
    while let Some(connections) = next_step(&steps, most) {
        steps.push(take(connections, search.settle)?);
    }
    let Some(best) = best(&steps).filter(|best| best.per_second > 0.0).cloned() else {
        return Err(nothing_answered(request, &steps));
    };
    let crowded = match crowd(&best, search.timeout, most) {
        Some(connections) => {
            // Time for each connection to be answered once.
            let once = Duration::from_secs_f64(connections as f64 / best.per_second);
            let step = take(connections, search.settle.max(once))?;
            if step.per_second == 0.0 {
                return Err(nothing_on_many(&step));
            }
            Some(step)
        }
        None => None,
    };
    let own = Own { cpu_ns: thread_cpu_ns() - started.1, wall_ns: monotonic_ns() - started.0, threads: 1 };
    Ok(Capacity { still_rising: still_rising(&steps), best, crowded, steps, own })
}

/// Connections of the step with many: up to `most`, but no more than are answered within a part of the timeout. None if that is no
/// more than the best step had.
fn crowd(best: &Step, timeout: Duration, most: usize) -> Option<usize> {
    let in_time = best.per_second * timeout.as_secs_f64() * WAITING_SHARE;
    let connections = most.min(in_time as usize);
    (connections > best.connections).then_some(connections)
}

/// Connections of the next step: twice as many, up to `most`. None after two flat steps, after a step without an answer, or after
/// `most`.
fn next_step(steps: &[Step], most: usize) -> Option<usize> {
    let Some(last) = steps.last() else { return Some(1) };
    let over = last.per_second == 0.0 || last.connections >= most || flat(steps) >= 2;
    (!over).then(|| most.min(last.connections * 2))
}

/// Number of steps at the end that brought no more throughput than the best step before them.
fn flat(steps: &[Step]) -> usize {
    let rose = |n: usize| {
        let before = best(&steps[..n]).map_or(0.0, |step| step.per_second);
        steps[n].per_second >= before * (1.0 + RISE)
    };
    (0..steps.len()).rev().take_while(|n| !rose(*n)).count()
}

/// False for a single step: there is nothing to compare it with.
fn still_rising(steps: &[Step]) -> bool {
    steps.len() > 1 && flat(steps) == 0 && steps.last().is_some_and(|last| last.per_second > 0.0)
}

fn best(steps: &[Step]) -> Option<&Step> {
    steps.iter().max_by(|a, b| a.per_second.total_cmp(&b.per_second))
}

fn nothing_answered(request: &Request, steps: &[Step]) -> Absence {
    let seen = steps.last().map_or(String::new(), |step| step.failures.to_string());
    let seen = if steps.iter().all(|step| step.failures.total() == 0) {
        "no answer at all".to_string()
    } else {
        seen
    };
    Absence::new(
        Reason::NotFound,
        format!("{} returned no successful response: {seen}", request.url.escape_debug()),
    )
    .mend("check the URL with curl while the server runs")
}

fn nothing_on_many(step: &Step) -> Absence {
    Absence::new(
        Reason::NotFound,
        format!(
            "none of the requests on {} connections at the same time was answered: {}",
            step.connections, step.failures
        ),
    )
    .mend("allow fewer: --connections N")
}

pub(super) struct Loops<'a> {
    client: Client<'a>,
    timeout_ns: u64,
    loops: Vec<Loop>,
    jobs: u64,
}

/// One closed loop, on one connection.
#[derive(Clone, Copy)]
enum Loop {
    Waits { job: u64, slot: usize, since_ns: u64 },
    Rests { until_ns: u64 },
}

impl<'a> Loops<'a> {
    pub fn new(client: Client<'a>, timeout: Duration) -> Self {
        Loops { client, timeout_ns: timeout.as_nanos() as u64, loops: Vec::new(), jobs: 0 }
    }

    pub fn add(&mut self, total: usize) {
        self.loops.resize(total, Loop::Rests { until_ns: 0 });
    }

    /// Good answers per second, and failures, in the next `time`; longer until there are enough answers, at most `longest`.
    fn run_for(&mut self, time: Duration, longest: Duration, stop: &AtomicBool) -> std::io::Result<Step> {
        let from = monotonic_ns();
        let to = from + time.as_nanos() as u64;
        let at_last = from + longest.as_nanos() as u64;
        let mut good = 0u64;
        let mut failures = Failures::default();
        let mut finished = Vec::new();
        loop {
            let now = monotonic_ns();
            let enough = now >= to && (good >= ENOUGH || now >= at_last);
            if enough || stop.load(Ordering::Relaxed) {
                return Ok(Step {
                    connections: self.loops.len(),
                    per_second: good as f64 * 1e9 / (now - from).max(1) as f64,
                    failures,
                });
            }
            let wake = self.turn(now, u64::MAX, &mut failures);
            let end = if now < to { to } else { at_last };
            self.client.wait(wake.min(end))?;
            self.client.take_finished(&mut finished);
            for end in finished.drain(..) {
                match end.failure {
                    None => good += 1,
                    Some(failure) => failures.add(failure),
                }
                self.next(end.job, end.failure.map(|_| end.end_ns + REST_NS));
            }
        }
    }

    /// Runs until these requests are answered, but not beyond `until_ns` or this number of failures. Returns the failures.
    pub fn run_first(
        &mut self,
        first: &mut First,
        most_failures: u64,
        until_ns: u64,
        stop: &AtomicBool,
    ) -> std::io::Result<Failures> {
        let mut failures = Failures::default();
        let mut finished = Vec::new();
        while first.left() > 0 && failures.total() <= most_failures && !stop.load(Ordering::Relaxed) {
            let now = monotonic_ns();
            if now >= until_ns {
                break;
            }
            let wake = self.turn(now, first.left(), &mut failures);
            self.client.wait(wake.min(until_ns))?;
            self.client.take_finished(&mut finished);
            for end in finished.drain(..) {
                let began_ns = self.next(end.job, end.failure.map(|_| end.end_ns + REST_NS));
                match (end.failure, began_ns) {
                    (Some(failure), _) => failures.add(failure),
                    (None, Some(began_ns)) => first.take(began_ns, end.end_ns),
                    // It was cancelled, and is counted as a timeout.
                    (None, None) => {}
                }
            }
        }
        Ok(failures)
    }

    /// Starts loops whose pause is over, as long as at most `most` wait for an answer, and cancels requests that timed out. Returns
    /// the time of the next such event.
    fn turn(&mut self, now: u64, most: u64, failures: &mut Failures) -> u64 {
        let mut wake = u64::MAX;
        let is_waiting = |one: &&Loop| matches!(one, Loop::Waits { .. });
        let mut waiting = self.loops.iter().filter(is_waiting).count() as u64;
        for one in &mut self.loops {
            if let Loop::Waits { job, slot, since_ns } = *one
                && since_ns + self.timeout_ns <= now
            {
                self.client.cancel(slot, job);
                failures.add(Failure::TimedOut);
                *one = Loop::Rests { until_ns: 0 };
                waiting -= 1;
            }
            if let Loop::Rests { until_ns } = *one
                && until_ns <= now
                && waiting < most
                && let Some(slot) = self.client.start(self.jobs)
            {
                *one = Loop::Waits { job: self.jobs, slot, since_ns: now };
                self.jobs += 1;
                waiting += 1;
            }
            wake = wake.min(match *one {
                Loop::Waits { since_ns, .. } => since_ns + self.timeout_ns,
                // The end of another request may let it start.
                Loop::Rests { .. } if waiting >= most => u64::MAX,
                Loop::Rests { until_ns } => until_ns,
            });
        }
        wake
    }

    /// The loop of `job` continues at once, or after a pause. Returns when the job began; None if no loop waits for it.
    fn next(&mut self, job: u64, rest_until: Option<u64>) -> Option<u64> {
        self.loops.iter_mut().find_map(|one| match *one {
            Loop::Waits { job: of, since_ns, .. } if of == job => {
                *one = Loop::Rests { until_ns: rest_until.unwrap_or(0) };
                Some(since_ns)
            }
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::request::Ask;
    use crate::load::test_server::{Server, answer};
    use std::sync::Mutex;
    use std::sync::atomic::AtomicUsize;
    use std::thread::sleep;

    fn search() -> Search {
        Search {
            settle: Duration::from_millis(30),
            step: Duration::from_millis(200),
            longest_step: Duration::from_millis(600),
            timeout: Duration::from_millis(500),
            most_connections: 16,
        }
    }

    fn find_at(url: &str) -> Measured<Capacity> {
        find(&Request::new(&Ask::get(url)).unwrap(), &search(), &AtomicBool::new(false))
    }

    /// A server that answers one request after another, each in a time that depends on how many wait, in milliseconds.
    fn one_at_a_time(takes_ms: impl Fn(usize) -> u64 + Send + Sync + 'static) -> Server {
        let (waiting, turn) = (AtomicUsize::new(0), Mutex::new(()));
        Server::start(move |_, stream| {
            waiting.fetch_add(1, Ordering::SeqCst);
            let held = turn.lock().unwrap();
            sleep(Duration::from_millis(takes_ms(waiting.load(Ordering::SeqCst))));
            drop(held);
            waiting.fetch_sub(1, Ordering::SeqCst);
            answer(stream, 200)
        })
    }

    /// This server answers each connection after 10 ms, so at most 100 requests per second and connection on any machine. The
    /// search must follow the rise to its end.
    #[test]
    fn throughput_that_rises_with_connections_is_followed() {
        let server = Server::start(|_, stream| {
            sleep(Duration::from_millis(10));
            answer(stream, 200)
        });
        let capacity = find_at(&server.url()).unwrap();
        for step in &capacity.steps {
            assert!(step.per_second <= 100.0 * step.connections as f64 * 1.2, "{step:?}");
        }
        assert!(capacity.steps.len() >= 3, "{capacity:?}");
        assert!(capacity.best.per_second > capacity.steps[0].per_second);
        assert!(capacity.own.cpu_ns > 0 && capacity.own.cpu_ns <= capacity.own.wall_ns);
    }

    /// The twin: one request at a time, for any number of connections; two flat steps end the search.
    #[test]
    fn throughput_that_does_not_rise_ends_the_search() {
        let server = one_at_a_time(|_| 5);
        let capacity = find_at(&server.url()).unwrap();
        assert!(capacity.per_second() <= 200.0 * 1.2, "{capacity:?}");
    }

    /// Each connection beyond the fourth makes every answer slower, as threads of a server do that wait for each other. The few
    /// connections of the search would not show it; the load may use all.
    #[test]
    fn a_server_that_is_slower_with_many_connections_is_loaded_by_what_it_answers_then() {
        let crowds = one_at_a_time(|waiting| waiting.max(4) as u64);
        let capacity = find_at(&crowds.url()).unwrap();
        let slower = capacity.slower_crowded().expect("fewer answers on 16 connections");
        assert!(slower.connections > capacity.best.connections, "{capacity:?}");
        assert!(capacity.per_second() < 0.7 * capacity.best.per_second, "{capacity:?}");
        // The twin answers one after another, and each as fast.
        let steady = one_at_a_time(|_| 5);
        let capacity = find_at(&steady.url()).unwrap();
        assert_eq!(capacity.crowded.as_ref().map(|step| step.connections), Some(16), "{capacity:?}");
        assert!(capacity.per_second() > 0.8 * capacity.best.per_second, "{capacity:?}");
    }

    #[test]
    fn no_more_connections_are_crowded_than_are_answered_in_time() {
        let best = |per_second, connections| Step { connections, per_second, failures: Failures::default() };
        let seconds = Duration::from_secs;
        assert_eq!(crowd(&best(500.0, 2), seconds(5), 256), Some(256));
        // 20 requests/s: 50 wait half the timeout.
        assert_eq!(crowd(&best(20.0, 2), seconds(5), 256), Some(50));
        assert_eq!(crowd(&best(0.5, 2), seconds(5), 256), None);
        assert_eq!(crowd(&best(500.0, 2), seconds(5), 2), None);
    }

    #[test]
    fn the_search_ends_at_the_top_or_at_the_most_connections() {
        let searched = |answers: &[f64], most: usize| {
            let mut steps: Vec<Step> = Vec::new();
            while let Some(connections) = next_step(&steps, most) {
                let failures = Failures::default();
                steps.push(Step { connections, per_second: answers[steps.len()], failures });
            }
            let connections: Vec<usize> = steps.iter().map(|step| step.connections).collect();
            (connections, still_rising(&steps))
        };
        let rises = [100.0, 200.0, 400.0, 800.0, 1600.0];
        assert_eq!(searched(&rises, 4), (vec![1, 2, 4], true));
        // The limit need not be a power of two, and is never exceeded.
        assert_eq!(searched(&rises, 6), (vec![1, 2, 4, 6], true));
        assert_eq!(searched(&rises, 1), (vec![1], false));
        // The twin reaches its capacity before the limit, or at it.
        let flattens = [100.0, 200.0, 202.0, 198.0, 1600.0];
        assert_eq!(searched(&flattens, 256), (vec![1, 2, 4, 8], false));
        assert_eq!(searched(&flattens, 4), (vec![1, 2, 4], false));
        // One flat step does not end the search.
        assert_eq!(searched(&[100.0, 101.0, 300.0, 600.0], 8), (vec![1, 2, 4, 8], true));
        assert_eq!(searched(&[100.0, 0.0], 8), (vec![1, 2], false));
    }

    #[test]
    fn a_server_without_a_good_answer_is_reported() {
        let closed = find_at(&format!("http://{}/", Server::closed_address())).unwrap_err();
        assert_eq!(closed.reason, Reason::NotFound);
        assert!(closed.detail.contains("connection refused"), "{closed}");
        let failing = Server::start(|_, stream| answer(stream, 503));
        let failing = find_at(&failing.url()).unwrap_err();
        assert!(failing.detail.contains("status 5xx"), "{failing}");
        let silent = Server::start(|_, _| {
            sleep(Duration::from_secs(2));
            Ok(())
        });
        let silent = find_at(&silent.url()).unwrap_err();
        assert_eq!(silent.reason, Reason::NotFound);
        assert!(silent.detail.contains("no answer"), "{silent}");
    }

    /// An answer takes longer than a step: the step waits for it, and the server is not reported as silent.
    #[test]
    fn a_slow_server_is_waited_for() {
        let server = Server::start(|_, stream| {
            sleep(Duration::from_millis(300));
            answer(stream, 200)
        });
        let patient = Search {
            timeout: Duration::from_secs(30),
            longest_step: Duration::from_secs(3),
            most_connections: 1,
            ..search()
        };
        let request = Request::new(&Ask::get(&server.url())).unwrap();
        let capacity = find(&request, &patient, &AtomicBool::new(false)).unwrap();
        assert!(capacity.per_second() <= 1.0 / 0.3 * 1.5, "{capacity:?}");
    }

    #[test]
    fn a_stop_ends_the_search() {
        let server = Server::start(|_, stream| answer(stream, 200));
        let request = Request::new(&Ask::get(&server.url())).unwrap();
        let stopped = find(&request, &search(), &AtomicBool::new(true)).unwrap_err();
        assert_eq!(stopped.reason, Reason::TooLittle);
    }
}
