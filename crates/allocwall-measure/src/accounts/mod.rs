//! The runtimes' own accounts: what CPython, the JVM and Go count themselves about their memory, read from outside.
//!
//! All of it is read from the target's memory and files while the target runs on, so it is untrusted: each reader checks that
//! what it reads fits together, and gives a reason if it does not. Each account is read in a thread of its own, so a target
//! whose memory or files do not answer delays neither the window nor the other accounts.

pub(crate) mod cpython;
pub(crate) mod go;
pub(crate) mod jvm;
mod memory;

use allocwall_host::clock;
use allocwall_host::proc::ProcFs;
use allocwall_host::worker::Worker;
use allocwall_model::recording::{Collecting, Figure, Process, Runtime, RuntimeAccount, gained};
use allocwall_model::units::{Absence, Interval, Measured, Reason};
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The most processes whose accounts are read at a time. One that ends makes room for another.
const AT_A_TIME: usize = 16;
/// To open an account, a program's files are read: beyond the first ones, one account in this time.
const OPENED_EVERY_NS: u64 = 1_000_000_000;
/// The most accounts of a window.
const MOST: u64 = 1024;
/// Readings of all accounts together take at most this CPU time, and this part of one CPU since the start.
const CPU_NS: u64 = 200_000_000;
const CPU_PART: u64 = 20;
/// The time to the next sample, until the thread has published it; and if the thread is busy.
const SOON_NS: u64 = 3_000_000;
const LATER_NS: u64 = 40_000_000;
/// Accounts whose samples are due within this time are sampled together.
const TOGETHER_NS: u64 = 1_000_000;
/// Requests to a thread that is busy. Further ones are dropped.
const QUEUED: usize = 4;
/// How long the threads are waited for at the end.
const PATIENCE: Duration = Duration::from_secs(1);
/// The time of the next sample, if nothing is to be sampled.
const NEVER: u64 = u64::MAX;

/// The account of one process, and when a collector ran.
type Read = (RuntimeAccount, Vec<Collecting>);

/// What a thread reads.
enum Account {
    Cpython(cpython::Account),
    Jvm(jvm::Account),
    Go(go::Account),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Job {
    /// Read the counters.
    Tick,
    /// Read whether a collector runs now.
    Sample,
}

/// What a thread publishes.
struct Published {
    /// When its next sample is due, in nanoseconds since the start of the window, or `NEVER`.
    sample_ns: AtomicU64,
    /// CPU time of the last reading of the counters.
    cost_ns: AtomicU64,
    /// Where CPython's interpreter lock lies.
    lock: Mutex<Option<Range<u64>>>,
}

/// Where CPython's interpreter locks lie, by process.
pub type PythonLocks = HashMap<i32, Range<u64>>;

/// A thread that reads the account of a living process. It ends when `jobs` is dropped.
struct Open {
    pid: i32,
    runtime: Runtime,
    jobs: SyncSender<Job>,
    published: Arc<Published>,
    thread: Worker<Read>,
}

pub struct Accounts {
    /// CLOCK_MONOTONIC at the start of the window.
    start_ns: u64,
    open: Vec<Open>,
    /// Threads of processes that have ended, or execute another program, until they finish.
    ending: Vec<(i32, Worker<Read>)>,
    ended: Vec<Read>,
    opened: u64,
    /// Which account is read first at the next tick.
    turn: usize,
    /// CPU time of all readings.
    spent_ns: Arc<AtomicU64>,
}

impl Published {
    fn set_lock(&self, lock: Option<Range<u64>>) {
        *self.lock.lock().unwrap_or_else(PoisonError::into_inner) = lock;
    }

    fn lock(&self) -> Option<Range<u64>> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Accounts {
    /// `start_ns`: CLOCK_MONOTONIC at the start of the window.
    pub fn new(start_ns: u64) -> Accounts {
        Accounts {
            start_ns,
            open: Vec::new(),
            ending: Vec::new(),
            ended: Vec::new(),
            opened: 0,
            turn: 0,
            spent_ns: Arc::default(),
        }
    }

    /// Opens the accounts of processes that are new, or execute another program than before.
    pub fn follow(&mut self, proc: &ProcFs, processes: &[Process], alive: &[i32]) {
        self.end(alive);
        let alive: HashSet<i32> = alive.iter().copied().collect();
        for process in processes.iter().filter(|process| alive.contains(&process.pid)) {
            let Ok(runtime) = &process.runtime else { continue };
            if let Some(at) = self.open.iter().position(|open| open.pid == process.pid) {
                if self.open[at].runtime == *runtime {
                    continue;
                }
                let open = self.open.swap_remove(at);
                self.ending.push((open.pid, open.thread));
            }
            let is_read =
                matches!(runtime, Runtime::Cpython { .. } | Runtime::Jvm { .. } | Runtime::Go { .. });
            if is_read && self.has_room() {
                self.start(proc, process, runtime);
            }
        }
    }

    fn has_room(&self) -> bool {
        let so_far = (AT_A_TIME as u64 + self.now_ns() / OPENED_EVERY_NS).min(MOST);
        self.opened < so_far && self.open.len() + self.ending.len() < AT_A_TIME
    }

    fn start(&mut self, proc: &ProcFs, process: &Process, runtime: &Runtime) {
        let (jobs, asked) = sync_channel(QUEUED);
        let published = Arc::new(Published {
            sample_ns: AtomicU64::new(NEVER),
            cost_ns: AtomicU64::new(0),
            lock: Mutex::default(),
        });
        let work = {
            let (proc, process, start_ns) = (proc.clone(), process.clone(), self.start_ns);
            let (published, spent_ns) = (Arc::clone(&published), Arc::clone(&self.spent_ns));
            move || {
                let now = || clock::monotonic_ns().saturating_sub(start_ns);
                serve(Account::open(&proc, &process), &asked, &published, &spent_ns, &now)
            }
        };
        let thread = Worker::start("reads a runtime's account", work);
        let (pid, runtime) = (process.pid, runtime.clone());
        self.open.push(Open { pid, runtime, jobs, published, thread });
        self.opened += 1;
    }

    /// Stops reading processes that have ended. They keep what was read before.
    fn end(&mut self, alive: &[i32]) {
        let (open, ended): (Vec<Open>, Vec<Open>) =
            std::mem::take(&mut self.open).into_iter().partition(|open| alive.contains(&open.pid));
        self.open = open;
        self.ending.extend(ended.into_iter().map(|open| (open.pid, open.thread)));
        let (finished, ending): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.ending).into_iter().partition(|(_, thread)| thread.is_finished());
        self.ending = ending;
        self.ended.extend(finished.into_iter().map(outcome));
    }

    /// Has the counters read. Called four times a second, and at the end of the window.
    pub fn tick(&mut self, alive: &[i32]) {
        self.end(alive);
        let mut left = self.left_ns();
        for _ in 0..self.open.len() {
            let open = &self.open[self.turn % self.open.len()];
            // At the next tick this one is the first.
            let Some(rest) = left.checked_sub(open.published.cost_ns.load(Ordering::Relaxed)) else { break };
            left = rest;
            self.turn = self.turn.wrapping_add(1);
            let _ = open.jobs.try_send(Job::Tick);
        }
    }

    /// When the next sample is due (CLOCK_MONOTONIC). None if there is nothing to sample.
    pub fn next_sample_ns(&self) -> Option<u64> {
        let due = self.open.iter().map(|open| open.published.sample_ns.load(Ordering::Relaxed)).min()?;
        (due != NEVER && self.left_ns() > 0).then(|| self.start_ns.saturating_add(due))
    }

    /// Has it read whether a collector runs now, where that is due. Called up to some hundred times a second.
    pub fn sample(&mut self) {
        let now = self.now_ns();
        for open in &self.open {
            let next = &open.published.sample_ns;
            if next.load(Ordering::Relaxed) <= now + TOGETHER_NS {
                next.store(now + SOON_NS, Ordering::Relaxed);
                if open.jobs.try_send(Job::Sample).is_err() {
                    next.store(now + LATER_NS, Ordering::Relaxed);
                }
            }
        }
    }

    /// Where the interpreter locks of the living processes lie, as far as it is known.
    pub fn python_locks(&self) -> PythonLocks {
        self.open.iter().filter_map(|open| Some((open.pid, open.published.lock()?))).collect()
    }

    fn now_ns(&self) -> u64 {
        clock::monotonic_ns().saturating_sub(self.start_ns)
    }

    /// The CPU time that readings may take now.
    fn left_ns(&self) -> u64 {
        (CPU_NS + self.now_ns() / CPU_PART).saturating_sub(self.spent_ns.load(Ordering::Relaxed))
    }

    pub fn finish(mut self) -> (Vec<RuntimeAccount>, Vec<Collecting>) {
        let living: Vec<(i32, Worker<Read>)> =
            self.open.drain(..).map(|open| (open.pid, open.thread)).collect();
        let until = Instant::now() + PATIENCE;
        let busy = || living.iter().chain(&self.ending).any(|(_, thread)| !thread.is_finished());
        while busy() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut all: Vec<Read> = living.into_iter().map(outcome).collect();
        let mut ended = self.ended;
        ended.extend(self.ending.into_iter().map(outcome));
        // Short-lived children that were not read add nothing.
        let was_read = |(account, _): &Read| account.over_ns > 0;
        if !all.is_empty() || ended.iter().any(was_read) {
            ended.retain(was_read);
        }
        all.extend(ended);
        // Of programs that ran one after the other in one process, or with its number, the living one.
        let mut seen = HashSet::new();
        all.retain(|(account, _)| seen.insert(account.pid));
        let (accounts, spans): (Vec<RuntimeAccount>, Vec<Vec<Collecting>>) = all.into_iter().unzip();
        (accounts, spans.concat())
    }
}

/// What a thread has read. One that is still busy is left alone.
fn outcome((pid, thread): (i32, Worker<Read>)) -> Read {
    let read = if thread.is_finished() {
        thread.finish()
    } else {
        let detail = format!("a page or a file of process {pid} was not read in time");
        Err(Absence::new(Reason::TooCostly, detail))
    };
    read.unwrap_or_else(|absence| (absent(pid, "a runtime's account", &absence), Vec::new()))
}

/// Reads an account until the window, or the process, ends.
fn serve(
    mut account: Account,
    jobs: &Receiver<Job>,
    published: &Published,
    spent_ns: &AtomicU64,
    now: &dyn Fn() -> u64,
) -> Read {
    // The first reading may search in files. It is bounded by itself, and not part of the CPU time of readings.
    account.tick(now);
    published.set_lock(account.lock());
    published.sample_ns.store(account.next_sample_ns(), Ordering::Relaxed);
    for job in jobs {
        let before = clock::thread_cpu_ns();
        match job {
            Job::Tick => account.tick(now),
            Job::Sample => account.sample(now()),
        }
        let cost = clock::thread_cpu_ns().saturating_sub(before);
        spent_ns.fetch_add(cost, Ordering::Relaxed);
        if job == Job::Tick {
            published.cost_ns.store(cost, Ordering::Relaxed);
            published.set_lock(account.lock());
        }
        published.sample_ns.store(account.next_sample_ns(), Ordering::Relaxed);
    }
    account.finish()
}

impl Account {
    fn open(proc: &ProcFs, process: &Process) -> Account {
        match &process.runtime {
            Ok(Runtime::Jvm { .. }) => Account::Jvm(jvm::Account::open(proc, process)),
            Ok(Runtime::Go { .. }) => Account::Go(go::Account::open(proc, process)),
            _ => Account::Cpython(cpython::Account::open(proc, process)),
        }
    }

    /// Reads the counters; the process may have ended since. `now`: nanoseconds since the start of the window.
    fn tick(&mut self, now: &dyn Fn() -> u64) {
        match self {
            Account::Cpython(account) => account.tick(now()),
            Account::Jvm(account) => account.tick(now),
            Account::Go(account) => account.tick(now),
        }
    }

    fn sample(&mut self, t_ns: u64) {
        if let Account::Cpython(account) = self {
            account.sample(t_ns);
        }
    }

    /// Where the interpreter lock lies, if there is one and it is known.
    fn lock(&self) -> Option<Range<u64>> {
        match self {
            Account::Cpython(account) => account.lock(),
            Account::Jvm(_) | Account::Go(_) => None,
        }
    }

    /// When the next sample is due, or `NEVER`.
    fn next_sample_ns(&self) -> u64 {
        match self {
            Account::Cpython(account) => account.next_sample_ns().unwrap_or(NEVER),
            Account::Jvm(_) | Account::Go(_) => NEVER,
        }
    }

    fn finish(self) -> Read {
        match self {
            Account::Cpython(account) => account.finish(),
            Account::Jvm(account) => (account.finish(), Vec::new()),
            Account::Go(account) => (account.finish(), Vec::new()),
        }
    }
}

fn absent(pid: i32, method: &str, absence: &Absence) -> RuntimeAccount {
    RuntimeAccount {
        pid,
        method: method.to_owned(),
        over_ns: 0,
        stopped_ns: Err(absence.clone()),
        collections: Err(absence.clone()),
        collector_cpu_ns: Err(absence.clone()),
        allocated_bytes: Err(absence.clone()),
    }
}

/// A counter of the runtime.
fn counter(value: Interval) -> Figure {
    Figure { value, sampled: false }
}

/// Time that a runtime counts when a pause or a cycle ends. It may have begun before the window.
fn within(ns: f64, most_ns: f64) -> Interval {
    if ns > most_ns { Interval::new(0.0, most_ns, most_ns) } else { Interval::exact(ns) }
}

/// The growth of a counter over the window.
fn growth(from: u64, to: u64, what: &str) -> Measured<u64> {
    gained(from, to).ok_or_else(|| Absence::new(Reason::Unparsable, format!("{what} went backwards")))
}

fn read_once() -> Absence {
    Absence::new(Reason::TooLittle, "the runtime's counters could be read only once")
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocwall_sketches::recording::empty;

    /// A process whose memory cannot be read: it is in a copy of /proc.
    fn process(pid: i32, runtime: Runtime) -> Process {
        Process { pid, runtime: Ok(runtime), ..empty().processes.remove(0) }
    }

    fn go(pid: i32) -> Process {
        process(pid, Runtime::Go { version: None })
    }

    fn accounts() -> (tempfile::TempDir, ProcFs, Accounts) {
        let dir = tempfile::tempdir().unwrap();
        let proc = ProcFs::at(dir.path());
        (dir, proc, Accounts::new(clock::monotonic_ns()))
    }

    fn pids(accounts: &Accounts) -> Vec<i32> {
        accounts.open.iter().map(|open| open.pid).collect()
    }

    #[test]
    fn a_process_that_ends_makes_room_for_another() {
        let (_dir, proc, mut accounts) = accounts();
        let processes: Vec<Process> = (1..=40).map(go).collect();
        let alive: Vec<i32> = (1..=40).collect();
        accounts.follow(&proc, &processes, &alive);
        accounts.follow(&proc, &processes, &alive);
        assert_eq!(pids(&accounts), (1..=16).collect::<Vec<i32>>());
        accounts.tick(&alive);
        // Later, half of them have ended.
        let patience = Instant::now() + Duration::from_secs(10);
        while accounts.ended.len() < 8 && Instant::now() < patience {
            accounts.tick(&alive[8..]);
        }
        accounts.start_ns = clock::monotonic_ns() - 3 * OPENED_EVERY_NS;
        accounts.follow(&proc, &processes, &alive[8..]);
        assert_eq!(pids(&accounts), (9..=19).collect::<Vec<i32>>(), "one more in each second");
        let (accounts, spans) = accounts.finish();
        let mut of: Vec<i32> = accounts.iter().map(|account| account.pid).collect();
        of.sort_unstable();
        assert_eq!(of, (9..=19).collect::<Vec<i32>>(), "the ended ones were not read");
        assert!(accounts.iter().all(|account| account.collections.is_err()) && spans.is_empty());
    }

    #[test]
    fn another_program_has_another_account() {
        let (_dir, proc, mut accounts) = accounts();
        accounts.follow(&proc, &[go(7)], &[7]);
        accounts.follow(&proc, &[go(7)], &[7]);
        assert_eq!(accounts.opened, 1);
        let jvm = Runtime::Jvm { version: None };
        accounts.follow(&proc, &[process(7, jvm.clone())], &[7]);
        assert_eq!((accounts.opened, &accounts.open[0].runtime), (2, &jvm));
        accounts.follow(&proc, &[process(7, Runtime::Native)], &[7]);
        assert!(accounts.open.is_empty());
        assert_eq!(accounts.finish().0.len(), 1);
    }

    #[test]
    fn the_only_account_of_a_process_that_ended_is_kept() {
        let (_dir, proc, mut accounts) = accounts();
        accounts.follow(&proc, &[go(7)], &[7]);
        accounts.tick(&[]);
        let (accounts, _) = accounts.finish();
        assert_eq!(accounts.len(), 1);
        assert_eq!(accounts[0].collections.as_ref().unwrap_err().reason, Reason::NotApplicable);
    }

    /// An account whose readings take this CPU time, and what it is asked for.
    fn costly(pid: i32, cost_ns: u64) -> (Open, Receiver<Job>) {
        let (jobs, asked) = sync_channel(QUEUED);
        let cost_ns = AtomicU64::new(cost_ns);
        let published = Arc::new(Published { sample_ns: AtomicU64::new(0), cost_ns, lock: Mutex::default() });
        let thread = Worker::start("does nothing", move || (absent(pid, "", &read_once()), Vec::new()));
        (Open { pid, runtime: Runtime::Go { version: None }, jobs, published, thread }, asked)
    }

    #[test]
    fn accounts_take_turns_when_cpu_time_is_short() {
        let (_dir, _proc, mut accounts) = accounts();
        let alive = [0, 1, 2, 3];
        let (open, asked): (Vec<Open>, Vec<Receiver<Job>>) =
            alive.iter().map(|pid| costly(*pid, CPU_NS * 3 / 10)).unzip();
        accounts.open = open;
        let jobs = || -> Vec<usize> { asked.iter().map(|asked| asked.try_iter().count()).collect() };
        for expected in [[1, 1, 1, 0], [1, 1, 0, 1], [1, 0, 1, 1]] {
            accounts.start_ns = clock::monotonic_ns();
            accounts.tick(&alive);
            assert_eq!(jobs(), expected);
        }
        assert_eq!(accounts.next_sample_ns(), Some(accounts.start_ns));
        accounts.sample();
        assert_eq!(jobs(), [1; 4]);
        // Until the threads have answered.
        let next = accounts.next_sample_ns().unwrap();
        assert!(next >= accounts.start_ns + SOON_NS);
        accounts.spent_ns.store(u64::MAX / 2, Ordering::Relaxed);
        accounts.tick(&alive);
        assert_eq!((jobs(), accounts.next_sample_ns()), (vec![0; 4], None));
    }

    #[test]
    fn a_thread_that_does_not_answer_is_an_absence() {
        let (_dir, _proc, mut accounts) = accounts();
        let (stop, stopped) = sync_channel::<()>(0);
        let thread = Worker::start("waits", move || {
            let _ = stopped.recv();
            (absent(7, "", &read_once()), Vec::new())
        });
        accounts.ending.push((7, thread));
        accounts.tick(&[]);
        let (accounts, _) = accounts.finish();
        assert_eq!(accounts[0].collections.as_ref().unwrap_err().reason, Reason::TooCostly);
        drop(stop);
    }
}
