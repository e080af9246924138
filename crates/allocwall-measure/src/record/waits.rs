//! Samples the target's threads at random times. The share of samples that find a thread waiting for something
//! is the share of time that it waits for it. The cost is bounded, however often the threads switch.

use super::random::Random;
use crate::accounts::PythonLocks;
use crate::collect::Collector;
use crate::unwind;
use allocwall_host::clock;
use allocwall_host::proc::ProcFs;
use allocwall_host::rights::run_as_root;
use allocwall_host::threads::{Blocked, MemoryReader, ThreadReader, ThreadState};
use allocwall_model::recording::{ProbeState, WaitSample};
use allocwall_model::units::{Absence, Reason};
use std::collections::HashMap;
use std::ops::Range;

/// Samples of threads per second, all threads together: 15 to 60 µs each.
const SAMPLES_A_SECOND: u32 = 250;
/// The least time between two rounds of samples: each round wakes allocwall on a CPU that the target may be
/// using.
const ROUNDS_APART_NS: u64 = 20_000_000;
const SAMPLES_A_ROUND: usize = 64;
const THREADS_LISTED_EVERY_NS: u64 = 250_000_000;
const STACK_BYTES: usize = 1024;
/// The most threads of which the last sample is kept, with its stack.
const THREADS_KEPT: usize = 4096;
/// A thread that ran, or stayed in the same wait, in this many samples in a row is sampled less often: most threads do
/// one or the other for seconds.
const STEADY_AFTER: u32 = 8;
/// A thread that was not sampled for this long is taken for a new one. With many threads, a turn of all takes longer than
/// a round.
const ENDED_AFTER_NS: u64 = 2_000_000_000;
/// The least time between two samples of such a thread.
const STEADY_APART_NS: u64 = 70_000_000;

pub struct WaitSampler {
    states: ThreadReader,
    memory: MemoryReader,
    started: u64,
    last: u64,
    samples: u64,
    rounds: u64,
    threads: Vec<(i32, i32)>,
    listed_at: u64,
    cursor: usize,
    random: Random,
    stack: Vec<u8>,
    known: HashMap<i32, Known>,
    /// Why threads could not be listed or read.
    unread: Option<Absence>,
}

/// The last sample of a thread.
struct Known {
    at_ns: u64,
    /// If it was waiting: its wait, and the stack that was read then.
    wait: Option<(Blocked, Vec<u8>)>,
    /// Samples in a row with the same result.
    steady: u32,
}

impl WaitSampler {
    pub fn new(now: u64) -> WaitSampler {
        WaitSampler {
            states: ThreadReader::default(),
            memory: MemoryReader::default(),
            started: now,
            last: now,
            samples: 0,
            rounds: 0,
            threads: Vec::new(),
            listed_at: 0,
            cursor: 0,
            random: Random::new(now),
            stack: vec![0; STACK_BYTES],
            known: HashMap::new(),
            unread: None,
        }
    }

    /// The time to the next round: the samples of one round divided by the rate, with random variation by a
    /// third.
    pub fn next_in(&mut self) -> u64 {
        let per_round = self.threads.len().clamp(1, SAMPLES_A_ROUND) as u64;
        let period = (1_000_000_000 * per_round / u64::from(SAMPLES_A_SECOND)).max(ROUNDS_APART_NS);
        period * 2 / 3 + self.random.below(period * 2 / 3)
    }

    /// One round. `start`: when the window opened. `last_round`: every thread is due.
    pub fn sample(
        &mut self,
        proc: &ProcFs,
        pids: &[i32],
        python_locks: &PythonLocks,
        collector: &mut Collector,
        start: u64,
        last_round: bool,
    ) {
        let now = clock::monotonic_ns();
        if now - self.listed_at > THREADS_LISTED_EVERY_NS {
            self.listed_at = now;
            self.list_threads(proc, pids);
        }
        if self.threads.is_empty() {
            self.last = now;
            return;
        }
        let count = self.threads.len().min(SAMPLES_A_ROUND);
        // Threads beyond those of one round are sampled in the next ones.
        let since_last = ((now - self.last) as u128 * self.threads.len() as u128 / count as u128) as u64;
        self.last = now;
        self.rounds += 1;
        for _ in 0..count {
            self.cursor = (self.cursor + 1) % self.threads.len();
            let (pid, tid) = self.threads[self.cursor];
            let known = self.known.get(&tid);
            let early = |known: &Known| known.steady >= STEADY_AFTER && now - known.at_ns < STEADY_APART_NS;
            if !last_round && known.is_some_and(early) {
                continue;
            }
            // Each sample represents the time since the last one of its thread.
            let weight_ns = known.map_or(since_last, |known| now - known.at_ns);
            let python_lock = python_locks.get(&pid);
            self.sample_thread(proc, (pid, tid), python_lock, now, (now - start, weight_ns), collector);
        }
    }

    fn list_threads(&mut self, proc: &ProcFs, pids: &[i32]) {
        // A new thread may get the number of one that has ended.
        let gone_since = self.last.saturating_sub(ENDED_AFTER_NS);
        self.known.retain(|_, known| known.at_ns >= gone_since);
        let (threads, unlisted) = proc.threads_of(pids);
        self.threads = threads;
        self.unread = self.unread.take().or(unlisted);
    }

    fn sample_thread(
        &mut self,
        proc: &ProcFs,
        (pid, tid): (i32, i32),
        python_lock: Option<&Range<u64>>,
        now: u64,
        (t_ns, weight_ns): (u64, u64),
        collector: &mut Collector,
    ) {
        let before = self.known.remove(&tid);
        let was_running = before.as_ref().is_some_and(|known| known.wait.is_none());
        let (steady, last) = before.map_or((0, None), |known| (known.steady, known.wait));
        let (new, same) = match self.states.read(proc, pid, tid, last.as_ref().map(|(blocked, _)| blocked)) {
            ThreadState::Unread(absence) => {
                self.unread.get_or_insert(absence);
                return;
            }
            ThreadState::Gone => return,
            ThreadState::Runnable => (None, was_running),
            ThreadState::Blocked(blocked) => {
                let stack = self.stack_of(proc, tid, &blocked);
                (Some((blocked, stack)), false)
            }
            ThreadState::StillBlocked => (None, true),
        };
        self.samples += 1;
        // A thread that ran before and still runs has no last wait.
        let wait = if same { last } else { new };
        if let Some((blocked, stack)) = &wait {
            let wait = WaitSample {
                t_ns,
                pid,
                tid,
                weight_ns,
                state: blocked.state,
                syscall: blocked.syscall,
                python_lock: python_lock.zip(blocked.argument).map(|(lock, address)| lock.contains(&address)),
                kernel: None,
                user: None,
            };
            let user = blocked.ip_sp.map(|(ip, sp)| (unwind::waiting_registers(ip, sp), &stack[..]));
            collector.take_wait(wait, &blocked.kernel, user);
        }
        if self.known.len() < THREADS_KEPT {
            let steady = if same { steady + 1 } else { 0 };
            self.known.insert(tid, Known { at_ns: now, wait, steady });
        }
    }

    /// The top of a blocked thread's stack; empty if it is not readable.
    fn stack_of(&mut self, proc: &ProcFs, tid: i32, blocked: &Blocked) -> Vec<u8> {
        let Some((_, sp)) = blocked.ip_sp.filter(|_| proc.is_live()) else {
            return Vec::new();
        };
        // Read by the thread's own number: a leader that has ended has no memory left.
        let read = self.memory.read(tid, sp, &mut self.stack).unwrap_or_else(|absence| {
            self.unread.get_or_insert(absence);
            0
        });
        self.stack[..read].to_vec()
    }

    pub fn mean_period_ns(&self) -> u64 {
        (self.last - self.started) / self.rounds.max(1)
    }

    pub fn state(&self) -> ProbeState {
        match (&self.unread, &self.states.refusal) {
            (Some(absence), _) if self.samples == 0 => ProbeState::Absent(absence.clone()),
            (Some(absence), _) => ProbeState::Partial(absence.clone()),
            (None, Some(absence)) if absence.reason == Reason::NotPermitted => ProbeState::Partial(
                Absence::new(
                    Reason::NotPermitted,
                    "the system calls of waiting threads are not readable (/proc/PID/task/TID/syscall)",
                )
                .mend(run_as_root())
                .mend("grant CAP_SYS_PTRACE"),
            ),
            (None, Some(absence)) if !absence.is_gone() => ProbeState::Partial(absence.clone()),
            _ => ProbeState::Measured,
        }
    }
}
