//! Threads that work in turns. In each turn some of them do the same for a slice of time, and the others sleep. So a run can compare
//! numbers of threads under the same conditions: the turns alternate, and each thread keeps its memory.

use super::task::{Meter, Task};
use allocwall_host::cycles::Cycles;
use anyhow::anyhow;
use std::num::NonZero;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Length of a turn. With more threads than CPUs, a thread waits some milliseconds for a CPU.
const SHORTEST_S: f64 = 0.01;
const LONGEST_S: f64 = 0.02;
/// Limit of threads, which bounds the memory of a run on a large machine.
const MOST_THREADS: usize = 128;
/// Instead of the number of a turn.
const OVER: usize = usize::MAX;

/// Twice as many threads as this process has CPUs, at most 128.
pub fn twice_the_cpus() -> usize {
    (2 * thread::available_parallelism().map_or(1, NonZero::get)).min(MOST_THREADS)
}

struct Shared<'a> {
    clock: Cycles,
    /// Of each turn: how many threads work.
    threads: &'a [usize],
    /// Length of a turn, in cycles.
    slice: u64,
    barrier: Barrier,
    turn: AtomicUsize,
}

/// The turns in which one thread works.
pub struct Turns<'a> {
    /// The number of the thread.
    pub thread: usize,
    shared: &'a Shared<'a>,
    over: bool,
}

/// A thread should work until the clock is at the end.
pub struct Turn {
    /// Which of the turns of a round.
    pub nth: usize,
    pub began: u64,
    pub ends: u64,
}

/// Runs `body` in as many threads as the largest turn needs. The first time that a thread asks for a turn, its set-up is over. When
/// all have asked, the timed part begins: rounds of all turns, as many as fit, at least one.
///
/// # Errors
/// A thread has panicked, or the timed part cannot be announced.
pub fn run<R: Send>(
    task: &Task,
    clock: Cycles,
    threads: &[usize],
    body: impl Fn(Turns) -> R + Sync,
) -> anyhow::Result<(Meter, Vec<R>)> {
    let all = threads.iter().copied().max().unwrap_or(0);
    let slice_s = (task.spec.timed_s / threads.len() as f64).clamp(SHORTEST_S, LONGEST_S);
    let shared = Shared {
        clock,
        threads,
        slice: clock.of_ns(slice_s * 1e9),
        barrier: Barrier::new(all + 1),
        turn: AtomicUsize::new(OVER),
    };
    thread::scope(|scope| {
        let (shared, body) = (&shared, &body);
        let workers: Vec<_> =
            (0..all).map(|thread| scope.spawn(move || body(Turns { thread, shared, over: false }))).collect();
        shared.barrier.wait();
        let meter = task.begin();
        for nth in (0..threads.len()).cycle() {
            // Relaxed, here and below: the barrier orders it.
            let whole_rounds = nth == 0 && shared.turn.load(Ordering::Relaxed) != OVER;
            let over = meter.as_ref().map_or(true, |meter| whole_rounds && meter.over());
            shared.turn.store(if over { OVER } else { nth }, Ordering::Relaxed);
            shared.barrier.wait();
            if over {
                break;
            }
            shared.barrier.wait();
        }
        // All are joined: the scope would pass on the panic of one that is not.
        let results: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        let failed = |_| anyhow!("a thread of the run has failed");
        Ok((meter?, results.into_iter().collect::<Result<_, _>>().map_err(failed)?))
    })
}

impl Iterator for Turns<'_> {
    type Item = Turn;

    fn next(&mut self) -> Option<Turn> {
        while !self.over {
            // All threads have ended their set-up or their turn; then the next turn begins.
            self.shared.barrier.wait();
            self.shared.barrier.wait();
            // Relaxed: the barrier orders it.
            let nth = self.shared.turn.load(Ordering::Relaxed);
            self.over = nth == OVER;
            if !self.over && self.thread < self.shared.threads[nth] {
                let began = self.shared.clock.now();
                return Some(Turn { nth, began, ends: began + self.shared.slice });
            }
        }
        None
    }
}

impl Drop for Turns<'_> {
    /// The others wait for a thread that has failed too.
    fn drop(&mut self) {
        while self.next().is_some() {}
    }
}

/// What threads did in the turns of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tally {
    pub operations: u64,
    /// Of all threads, added up.
    pub cycles: u64,
}

impl Tally {
    pub fn add(&mut self, other: Tally) {
        self.operations += other.operations;
        self.cycles += other.cycles;
    }

    /// Operations per second of all threads together.
    pub fn rate(self, threads: usize, clock: Cycles) -> f64 {
        self.operations as f64 * threads as f64 * 1e9 / clock.ns(self.cycles).max(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::task::Spec;
    use super::*;

    fn in_turns<R: Send>(threads: &[usize], body: impl Fn(Turns) -> R + Sync) -> anyhow::Result<Vec<R>> {
        let spec = Spec {
            experiment: String::new(),
            variant: "all".into(),
            seed: 1,
            scale: 0.01,
            timed_s: 0.05,
            announce: false,
        };
        let tell = |_: &str| -> anyhow::Result<()> { Ok(()) };
        let task = Task { spec: &spec, tell: &tell };
        Ok(run(&task, Cycles::start(1_000_000), threads, body)?.1)
    }

    #[test]
    fn all_turns_come_equally_often_and_only_their_threads_work() {
        let counted = in_turns(&[1, 3, 2], |turns| {
            let mut counts = [0; 3];
            turns.for_each(|turn| counts[turn.nth] += 1);
            counts
        });
        let counted = counted.unwrap();
        let rounds = counted[0][0];
        assert!(rounds >= 1);
        assert_eq!(counted, [[rounds; 3], [0, rounds, rounds], [0, rounds, 0]]);
    }

    #[test]
    fn a_thread_that_ends_early_holds_nobody_up() {
        let early = in_turns(&[2], |turns| if turns.thread == 1 { 0 } else { turns.count() });
        assert!(early.is_ok_and(|counts| counts[0] > 0 && counts[1] == 0));
        let failed = in_turns(&[2], |turns| match turns.thread {
            1 => panic!("on purpose"),
            _ => turns.count(),
        });
        assert!(failed.is_err());
    }

    #[test]
    fn a_rate_is_that_of_all_threads_together() {
        let clock = Cycles::start(1_000_000);
        let mut sum = Tally { operations: 300, cycles: clock.of_ns(1e9) };
        assert!((sum.rate(1, clock) - 300.0).abs() < 1e-3);
        // A second thread that did the same in the same second.
        sum.add(sum);
        assert!((sum.rate(2, clock) - 600.0).abs() < 1e-3);
    }
}
