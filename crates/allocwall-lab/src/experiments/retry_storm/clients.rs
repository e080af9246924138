//! The clients: when they send their requests, and what they send again.

use crate::histogram::Histogram;
use allocwall_host::clock::{monotonic_ns, sleep_until};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

/// The first try of a request, and three more.
pub const TRIES: usize = 4;

/// No client has an answer in time.
const NEVER: u64 = u64::MAX;

/// Requests in the order of their arrival. All times are in ns since the start.
pub struct Clients {
    arrivals: Vec<u64>,
    /// When a client got its answer. Answers after the timeout of their try do not count: the client waits for its next try.
    answered: Vec<AtomicU64>,
    timeout_ns: u64,
    end_ns: u64,
    /// By try: the next request of which it was not taken yet. The timeout is always the same, so each try has the order of the
    /// requests.
    next: Mutex<[usize; TRIES]>,
    taken: AtomicU64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Try {
    request: usize,
    nth: usize,
    sent_ns: u64,
}

/// What became of the requests of a span of time.
pub struct Answers {
    pub in_time: usize,
    /// From the intended arrival. A request without an answer counts with the time at which its client gave up.
    pub times: Histogram,
}

impl Clients {
    pub fn new(arrivals: Vec<u64>, timeout_ns: u64) -> Clients {
        let last = arrivals.last().copied().unwrap_or(0);
        Clients {
            answered: arrivals.iter().map(|_| AtomicU64::new(NEVER)).collect(),
            end_ns: last + TRIES as u64 * timeout_ns,
            timeout_ns,
            next: Mutex::new([0; TRIES]),
            taken: AtomicU64::new(0),
            arrivals,
        }
    }

    /// A worker of the service: takes what comes next, waits until it is sent, and answers it. It does not know what no client
    /// waits for any more.
    pub fn serve(&self, start_ns: u64, mut answer: impl FnMut()) {
        let now = || monotonic_ns().saturating_sub(start_ns);
        while let Some(one) = self.take() {
            sleep_until(start_ns + one.sent_ns);
            if now() > self.end_ns {
                break;
            }
            if !self.is_sent(one) {
                continue;
            }
            // Relaxed: a count.
            self.taken.fetch_add(1, Relaxed);
            answer();
            self.answer(one, now());
        }
    }

    /// What is sent next.
    fn take(&self) -> Option<Try> {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        for (nth, request) in next.iter_mut().enumerate().skip(1) {
            // Without this, idle workers would wake up for each try that is not sent.
            while self.one(*request, nth).is_some_and(|one| !self.is_sent(one)) {
                *request += 1;
            }
        }
        let first = (0..TRIES).filter_map(|nth| self.one(next[nth], nth)).min_by_key(|one| one.sent_ns)?;
        next[first.nth] += 1;
        Some(first)
    }

    fn one(&self, request: usize, nth: usize) -> Option<Try> {
        let sent_ns = self.arrivals.get(request)? + nth as u64 * self.timeout_ns;
        Some(Try { request, nth, sent_ns })
    }

    /// False if the client had its answer before. Known for certain only at that time.
    fn is_sent(&self, one: Try) -> bool {
        // Relaxed, as below: no other data depends on it.
        self.answered[one.request].load(Relaxed) > one.sent_ns
    }

    fn answer(&self, one: Try, now_ns: u64) {
        if now_ns <= one.sent_ns + self.timeout_ns {
            self.answered[one.request].fetch_min(now_ns, Relaxed);
        }
    }

    /// The requests that arrived in this span of time.
    pub fn answers(&self, span: Range<u64>) -> Answers {
        let at = |time: u64| self.arrivals.partition_point(|arrival| *arrival < time);
        let of = at(span.start)..at(span.end);
        let mut answers = Answers { in_time: 0, times: Histogram::default() };
        for request in of {
            let arrival = self.arrivals[request];
            match self.answered[request].load(Relaxed) {
                NEVER => answers.times.record(TRIES as u64 * self.timeout_ns),
                answered => {
                    answers.in_time += 1;
                    answers.times.record(answered - arrival);
                }
            }
        }
        answers
    }

    pub fn requests(&self) -> usize {
        self.arrivals.len()
    }

    /// Tries that a worker took, per request.
    pub fn tries(&self) -> f64 {
        self.taken.load(Relaxed) as f64 / self.requests().max(1) as f64
    }
}

/// The load of the phases: normal, a surge, and normal again. `always`: nothing but the surge.
pub fn surge(length_ns: u64, more: f64, always: bool) -> impl Fn(u64) -> f64 {
    let [_, surge, _] = phases(length_ns);
    move |at| if always || surge.contains(&at) { more } else { 1.0 }
}

/// Before, in and after the surge.
pub fn phases(length_ns: u64) -> [Range<u64>; 3] {
    [0, 1, 2].map(|nth| nth * length_ns / 3..(nth + 1) * length_ns / 3)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::open_loop;
    use allocwall_model::stats::random::Random;

    const TIMEOUT: u64 = 100;

    fn two() -> Clients {
        Clients::new(vec![10, 50], TIMEOUT)
    }

    fn sent(clients: &Clients) -> Vec<(usize, u64)> {
        std::iter::from_fn(|| clients.take()).map(|one| (one.request, one.sent_ns)).collect()
    }

    #[test]
    fn what_is_not_answered_is_sent_again_in_the_order_of_time() {
        let tries = [(0, 10), (1, 50), (0, 110), (1, 150), (0, 210), (1, 250), (0, 310), (1, 350)];
        assert_eq!(sent(&two()), tries);
        // Answers in time end the tries, those that are late do not.
        for (late, tries) in [(0, &[(0, 10), (1, 50), (1, 150), (1, 250), (1, 350)][..]), (1, &tries[..])] {
            let clients = two();
            let first = clients.one(0, 0).unwrap();
            clients.answer(first, first.sent_ns + TIMEOUT + late);
            assert_eq!(sent(&clients), tries);
        }
    }

    #[test]
    fn an_answer_counts_from_the_intended_arrival_and_none_until_the_client_gives_up() {
        let clients = two();
        let third = clients.one(1, 2).unwrap();
        clients.answer(third, third.sent_ns + 30);
        // The answer to an earlier try comes too late.
        clients.answer(clients.one(1, 0).unwrap(), third.sent_ns + 20);
        let [none, answered, both] = [0..50, 50..60, 0..60].map(|span| clients.answers(span));
        assert_eq!((none.times.count(), none.in_time, none.times.max()), (1, 0, Some(400.0)));
        assert_eq!((answered.times.count(), answered.in_time, answered.times.max()), (1, 1, Some(230.0)));
        assert_eq!((both.times.count(), both.in_time), (2, 1));
        assert_eq!(clients.answers(60..90).times.count(), 0);
    }

    #[test]
    fn a_service_that_is_fast_takes_each_request_once_and_one_that_is_slow_takes_tries_too() {
        let per_request = |slow: bool| {
            let arrivals = open_loop::arrivals(&mut Random::new(3), 2_000.0, 20_000_000, |_| 1.0);
            // A pause of the machine is shorter than the long timeout.
            let clients = Clients::new(arrivals, if slow { 1_000 } else { 10_000_000_000 });
            clients.serve(monotonic_ns(), || ());
            clients.tries()
        };
        assert_eq!(per_request(false), 1.0);
        // The worker wakes up some microseconds late, so it misses the short timeout.
        assert!(per_request(true) > 1.0);
    }

    #[test]
    fn the_second_third_is_the_surge() {
        let load = surge(300, 1.5, false);
        assert_eq!([0, 99, 100, 199, 200, 299].map(load), [1.0, 1.0, 1.5, 1.5, 1.0, 1.0]);
        assert_eq!([0, 299].map(surge(300, 1.5, true)), [1.5, 1.5]);
        assert_eq!(phases(300), [0..100, 100..200, 200..300]);
    }
}
