//! The runtimes' own accounts: what CPython, the JVM and Go count themselves about their memory, read from outside.
//!
//! All of it is read from the target's memory and files while the target runs on, so it is untrusted: each [`Reader`] checks
//! that what it reads fits together, and gives a reason if it does not. When it reads, and what it may cost, is decided here.
//! Each account is read in a thread of its own, so a target whose memory or files do not answer delays neither the window nor
//! the other accounts.

pub(crate) mod cpython;
pub(crate) mod go;
pub(crate) mod jvm;
mod memory;

use allocwall_host::clock;
use allocwall_host::proc::ProcFs;
use allocwall_host::topology;
use allocwall_host::worker::Worker;
use allocwall_model::recording::{Collecting, Figure, Process, Runtime, RuntimeAccount, gained};
use allocwall_model::units::{Absence, Interval, Measured, Reason};
use memory::{Live, Memory};
use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The most processes whose accounts are read at a time. One that ends makes room for another.
const AT_A_TIME: usize = 16;
/// The most accounts of a window.
const MOST: u64 = 1024;
/// All accounts together, their opening included, take at most this CPU time, and this part of the time of all CPUs.
const CPU_NS: u64 = 20_000_000;
const CPU_PART: u64 = 200;
/// Samples take at most this part of it.
const SAMPLES_PART: u64 = 2;
/// For the last reading of each account, its CPU time is kept free; of a costly account, a part of it.
const KEPT_NS: u64 = CPU_NS / AT_A_TIME as u64;
/// The time to the next sample, until the thread has published it; and if the thread is busy.
const SOON_NS: u64 = 3_000_000;
const LATER_NS: u64 = 40_000_000;
/// Accounts whose samples are due within this time are sampled together.
const TOGETHER_NS: u64 = 1_000_000;
/// Requests to a thread that is busy. Further ones are dropped; one of these is a sample at most.
const QUEUED: usize = 4;
/// Where an interpreter lock lies is believed for this time after it was read.
const LOCK_NS: u64 = 2_000_000_000;
/// How long the threads are waited for at the end.
const PATIENCE: Duration = Duration::from_secs(1);
/// The time of the next sample, if nothing is to be sampled.
const NEVER: u64 = u64::MAX;

/// The account of one process, and when a collector ran.
type Read = (RuntimeAccount, Vec<Collecting>);

/// Reads the account of one runtime. The target runs on meanwhile, or has ended. Times are nanoseconds since the start of the
/// window.
trait Reader {
    /// Reads the counters. Until their places are known, it looks for them, as often as it makes sense for the runtime.
    fn tick(&mut self, memory: &mut dyn Memory, now: &dyn Fn() -> u64);

    /// Whether the counters can never be read.
    fn has_failed(&self, memory: &dyn Memory) -> bool;

    /// What the runtime has counted from the first reading to the last one. An account that was not read keeps the reason.
    fn finish(self: Box<Self>) -> Read;

    /// Reads whether the collector runs now.
    fn sample(&mut self, _memory: &mut dyn Memory, _t_ns: u64) {}

    /// When the next sample is due. None if there is nothing to sample.
    fn next_sample_ns(&self, _memory: &dyn Memory) -> Option<u64> {
        None
    }

    /// Where the interpreter lock lies, if there is one and it is known.
    fn lock(&self) -> Option<Range<u64>> {
        None
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Job {
    /// Read the counters.
    Tick,
    /// Read whether a collector runs now.
    Sample,
}

/// What a thread publishes. Times are nanoseconds since the start of the window.
struct Published {
    /// When its next sample is due, or `NEVER`.
    sample_ns: AtomicU64,
    /// Whether it was asked for a sample, and has not taken it yet.
    is_asked: AtomicBool,
    /// CPU time of a reading of the counters: the smaller one of the last two, since one may have searched.
    cost_ns: AtomicU64,
    /// Where CPython's interpreter lock lies, and when that was read.
    lock: Mutex<Option<(Range<u64>, u64)>>,
    /// The program has ended. The process may execute another one, or its number may be another process's.
    is_gone: AtomicBool,
    /// The account can never be read.
    has_failed: AtomicBool,
}

/// Where CPython's interpreter locks lie, by process.
pub type PythonLocks = HashMap<i32, Range<u64>>;

/// CPU time of all accounts together.
struct Budget {
    /// Online CPUs.
    cpus: u64,
    spent_ns: AtomicU64,
    /// For samples alone.
    samples_ns: AtomicU64,
}

/// A thread that reads the account of a process. It ends when its jobs do.
struct Reading {
    pid: i32,
    /// In the order of their start.
    nth: u64,
    /// Whether it was read less often than it should have been, to limit the cost.
    is_rare: bool,
    thread: Worker<Read>,
}

/// The thread of a living process.
struct Open {
    runtime: Runtime,
    jobs: SyncSender<Job>,
    published: Arc<Published>,
    /// When a sample that was asked for is looked for again.
    retry_ns: u64,
    reading: Reading,
}

pub struct Accounts {
    /// CLOCK_MONOTONIC at the start of the window.
    start_ns: u64,
    open: Vec<Open>,
    /// Threads of programs that have ended, and of accounts that cannot be read, until they finish.
    ending: Vec<Reading>,
    ended: Vec<(u64, Read)>,
    /// Living processes whose accounts cannot be read.
    failed: HashMap<i32, Runtime>,
    /// Living processes whose accounts are still to be opened.
    unopened: HashSet<i32>,
    living: HashSet<i32>,
    opened: u64,
    /// Which account is read first at the next tick.
    turn: usize,
    budget: Arc<Budget>,
    kept: cpython::Kept,
}

impl Published {
    fn new() -> Published {
        Published {
            sample_ns: AtomicU64::new(NEVER),
            is_asked: AtomicBool::new(false),
            cost_ns: AtomicU64::new(0),
            lock: Mutex::default(),
            is_gone: AtomicBool::new(false),
            has_failed: AtomicBool::new(false),
        }
    }

    fn set_lock(&self, lock: Option<(Range<u64>, u64)>) {
        *self.lock.lock().unwrap_or_else(PoisonError::into_inner) = lock;
    }

    fn lock(&self, now_ns: u64) -> Option<Range<u64>> {
        let lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner).clone();
        lock.filter(|(_, read_ns)| now_ns.saturating_sub(*read_ns) <= LOCK_NS).map(|(lock, _)| lock)
    }
}

impl Budget {
    fn new() -> Budget {
        // If their number is unknown, there is at least one.
        let cpus = topology::online_cpus(Path::new("/sys")).map_or(1, |cpus| cpus.len() as u64);
        Budget { cpus, spent_ns: AtomicU64::new(0), samples_ns: AtomicU64::new(0) }
    }

    fn spend(&self, job: Job, ns: u64) {
        self.spent_ns.fetch_add(ns, Ordering::Relaxed);
        if job == Job::Sample {
            self.samples_ns.fetch_add(ns, Ordering::Relaxed);
        }
    }

    /// What may be spent now.
    fn left_ns(&self, now_ns: u64) -> u64 {
        let all = CPU_NS.saturating_add(now_ns.saturating_mul(self.cpus) / CPU_PART);
        all.saturating_sub(self.spent_ns.load(Ordering::Relaxed))
    }

    /// From when on samples may be taken, if this CPU time is kept for readings of counters.
    fn samples_from_ns(&self, kept_ns: u64) -> u64 {
        let all = self.spent_ns.load(Ordering::Relaxed).saturating_add(kept_ns);
        let samples = self.samples_ns.load(Ordering::Relaxed).saturating_mul(SAMPLES_PART);
        all.max(samples).saturating_sub(CPU_NS).saturating_mul(CPU_PART) / self.cpus
    }
}

impl Open {
    fn sample_ns(&self) -> u64 {
        match self.published.is_asked.load(Ordering::Relaxed) {
            true => self.retry_ns,
            false => self.published.sample_ns.load(Ordering::Relaxed),
        }
    }

    fn cost_ns(&self) -> u64 {
        self.published.cost_ns.load(Ordering::Relaxed)
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
            failed: HashMap::new(),
            unopened: HashSet::new(),
            living: HashSet::new(),
            opened: 0,
            turn: 0,
            budget: Arc::new(Budget::new()),
            kept: cpython::Kept::default(),
        }
    }

    /// Opens the account of a process that is new, or executes another program than before: one at each call, since its
    /// program's files are read.
    pub fn follow(&mut self, proc: &ProcFs, processes: &[Process], alive: &[i32]) {
        self.end(alive);
        self.unopened.clear();
        let mut new: Vec<(&Process, &Runtime)> = Vec::new();
        for process in processes.iter().filter(|process| self.living.contains(&process.pid)) {
            let Ok(runtime) = &process.runtime else { continue };
            if let Some(at) = self.open.iter().position(|open| open.reading.pid == process.pid) {
                if self.open[at].runtime == *runtime {
                    continue;
                }
                self.ending.push(self.open.swap_remove(at).reading);
            }
            let is_read =
                matches!(runtime, Runtime::Cpython { .. } | Runtime::Jvm { .. } | Runtime::Go { .. });
            if is_read && self.failed.get(&process.pid) != Some(runtime) {
                self.unopened.insert(process.pid);
                new.push((process, runtime));
            }
        }
        if !self.has_room() {
            return;
        }
        // One that is about to end has no memory any more.
        let has_memory =
            |process: &Process| proc.process_stat(process.pid).map_or(true, |stat| stat.virtual_bytes > 0);
        if let Some((process, runtime)) = new.into_iter().find(|(process, _)| has_memory(process)) {
            self.unopened.remove(&process.pid);
            self.start(proc, process, runtime);
        }
    }

    fn has_room(&self) -> bool {
        let may_open = self.budget.left_ns(self.now_ns()) > self.kept_ns();
        may_open && self.opened < MOST && self.open.len() + self.ending.len() < AT_A_TIME
    }

    fn start(&mut self, proc: &ProcFs, process: &Process, runtime: &Runtime) {
        let (jobs, asked) = sync_channel(QUEUED);
        let published = Arc::new(Published::new());
        let work = {
            let (proc, process, start_ns) = (proc.clone(), process.clone(), self.start_ns);
            let (published, budget) = (Arc::clone(&published), Arc::clone(&self.budget));
            let kept = self.kept.clone();
            move || {
                let memory = Live::of(&proc, process.pid);
                let reader = reader_of(&proc, &process, &memory, kept);
                let now = || clock::monotonic_ns().saturating_sub(start_ns);
                serve(reader, memory, &asked, &published, &budget, &now)
            }
        };
        let thread = Worker::start("reads a runtime's account", work);
        let reading = Reading { pid: process.pid, nth: self.opened, is_rare: false, thread };
        self.open.push(Open { runtime: runtime.clone(), jobs, published, retry_ns: 0, reading });
        self.opened += 1;
    }

    /// Stops reading processes that have ended, and programs. They keep what was read before.
    fn end(&mut self, alive: &[i32]) {
        self.living = alive.iter().copied().collect();
        self.failed.retain(|pid, _| self.living.contains(pid));
        for open in std::mem::take(&mut self.open) {
            let has_failed = open.published.has_failed.load(Ordering::Relaxed);
            if has_failed && self.living.contains(&open.reading.pid) {
                self.failed.insert(open.reading.pid, open.runtime.clone());
            }
            let is_gone = open.published.is_gone.load(Ordering::Relaxed);
            if has_failed || is_gone || !self.living.contains(&open.reading.pid) {
                self.ending.push(open.reading);
            } else {
                self.open.push(open);
            }
        }
        let (finished, ending): (Vec<Reading>, Vec<Reading>) =
            std::mem::take(&mut self.ending).into_iter().partition(|reading| reading.thread.is_finished());
        self.ending = ending;
        self.ended.extend(finished.into_iter().map(outcome));
    }

    /// Has the counters read, as far as CPU time is left. Called four times a second.
    pub fn tick(&mut self, alive: &[i32]) {
        self.end(alive);
        self.ask(self.now_ns());
    }

    /// Has all counters read, at the end of the window.
    pub fn last_tick(&mut self, alive: &[i32]) {
        self.end(alive);
        for open in &self.open {
            // A queue that is full has such a request.
            let _ = open.jobs.try_send(Job::Tick);
        }
    }

    fn ask(&mut self, now_ns: u64) {
        let mut left_ns = self.budget.left_ns(now_ns).saturating_sub(self.kept_ns());
        let mut left_out = None;
        let count = self.open.len();
        for nth in (0..count).map(|nth| (self.turn + nth) % count) {
            let open = &mut self.open[nth];
            let Some(rest) = left_ns.checked_sub(open.cost_ns()) else {
                open.reading.is_rare = true;
                left_out = left_out.or(Some(nth));
                continue;
            };
            left_ns = rest;
            let _ = open.jobs.try_send(Job::Tick);
        }
        // At the next tick it is the first.
        self.turn = left_out.unwrap_or(self.turn);
    }

    /// When the next sample is due (CLOCK_MONOTONIC). None if there is nothing to sample.
    pub fn next_sample_ns(&self) -> Option<u64> {
        let due = self.open.iter().map(Open::sample_ns).min().filter(|due| *due != NEVER)?;
        Some(self.start_ns.saturating_add(due.max(self.samples_from_ns())))
    }

    /// Has it read whether a collector runs now, where that is due. Called up to some hundred times a second.
    pub fn sample(&mut self) {
        let (now, from) = (self.now_ns(), self.samples_from_ns());
        for open in &mut self.open {
            let due = open.sample_ns();
            if due > now + TOGETHER_NS {
                continue;
            }
            // The first one is due at once.
            open.reading.is_rare |= due > 0 && from > due.saturating_add(LATER_NS);
            if open.published.is_asked.swap(true, Ordering::Relaxed) {
                open.retry_ns = now + LATER_NS;
                continue;
            }
            open.retry_ns = now + SOON_NS;
            if open.jobs.try_send(Job::Sample).is_err() {
                open.published.is_asked.store(false, Ordering::Relaxed);
                open.published.sample_ns.store(now + LATER_NS, Ordering::Relaxed);
            }
        }
    }

    /// Where the interpreter locks of the living processes lie, as far as it is known.
    pub fn python_locks(&self) -> PythonLocks {
        let now = self.now_ns();
        let locks = self.open.iter().filter_map(|open| Some((open.reading.pid, open.published.lock(now)?)));
        locks.collect()
    }

    fn now_ns(&self) -> u64 {
        clock::monotonic_ns().saturating_sub(self.start_ns)
    }

    /// CPU time for the last reading of each account.
    fn kept_ns(&self) -> u64 {
        self.open.iter().map(|open| open.cost_ns().min(KEPT_NS)).sum()
    }

    /// A reading of the counters comes before a sample, and the last one is kept as well.
    fn samples_from_ns(&self) -> u64 {
        self.budget.samples_from_ns(2 * self.kept_ns())
    }

    pub fn finish(mut self) -> (Vec<RuntimeAccount>, Vec<Collecting>) {
        // Without jobs the threads end.
        let mut readings: Vec<Reading> = self.open.drain(..).map(|open| open.reading).collect();
        readings.append(&mut self.ending);
        let until = Instant::now() + PATIENCE;
        while readings.iter().any(|reading| !reading.thread.is_finished()) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut all = self.ended;
        all.extend(readings.into_iter().map(outcome));
        // Of programs that ran one after the other in one process, or with its number, the last one.
        all.sort_by_key(|(nth, _)| Reverse(*nth));
        let mut seen = HashSet::new();
        all.retain(|(_, (account, _))| seen.insert(account.pid));
        // Short-lived children that were not read add nothing.
        let counts =
            |(_, (account, _)): &(u64, Read)| account.over_ns > 0 || self.living.contains(&account.pid);
        if all.iter().any(counts) {
            all.retain(counts);
        }
        let (mut accounts, spans): (Vec<RuntimeAccount>, Vec<Vec<Collecting>>) =
            all.into_iter().map(|(_, read)| read).unzip();
        let mut unopened: Vec<i32> = self.unopened.into_iter().filter(|pid| !seen.contains(pid)).collect();
        unopened.sort_unstable();
        accounts.extend(unopened.into_iter().map(|pid| absent(pid, METHOD, &not_opened())));
        (accounts, spans.concat())
    }
}

const METHOD: &str = "a runtime's account";

fn not_opened() -> Absence {
    let detail = format!(
        "not opened, to limit the cost: one account is opened at a time, and at most {AT_A_TIME} are read together"
    );
    Absence::new(Reason::TooCostly, detail)
}

/// What a thread has read. One that is still busy is left alone.
fn outcome(reading: Reading) -> (u64, Read) {
    let Reading { pid, nth, is_rare, thread } = reading;
    let read = if thread.is_finished() {
        thread.finish()
    } else {
        let detail = format!("a page or a file of process {pid} was not read in time");
        Err(Absence::new(Reason::TooCostly, detail))
    };
    let (mut account, spans) = read.unwrap_or_else(|absence| (absent(pid, METHOD, &absence), Vec::new()));
    if is_rare {
        limit(&mut account, &[Reason::TooLittle], "read less often, to limit the cost");
    }
    (nth, (account, spans))
}

/// What is missing for one of these reasons in an account that was limited is missing because of the limit.
fn limit(account: &mut RuntimeAccount, reasons: &[Reason], how: &str) {
    account.method.push_str(&format!("; {how}"));
    let absences = [
        account.stopped_ns.as_mut().err(),
        account.collections.as_mut().err(),
        account.collector_cpu_ns.as_mut().err(),
        account.allocated_bytes.as_mut().err(),
    ];
    for absence in absences.into_iter().flatten().filter(|absence| reasons.contains(&absence.reason)) {
        absence.reason = Reason::TooCostly;
        absence.detail.push_str(&format!("; {how}"));
    }
}

/// Reads an account until the window, or the program, ends. All CPU time of the thread counts.
fn serve(
    mut reader: Box<dyn Reader>,
    mut memory: Live,
    jobs: &Receiver<Job>,
    published: &Published,
    budget: &Budget,
    now: &dyn Fn() -> u64,
) -> Read {
    // Opening an account, and its first reading, may search in files.
    reader.tick(&mut memory, now);
    let mut spent = clock::thread_cpu_ns();
    budget.spend(Job::Tick, spent);
    let mut last_cost = NEVER;
    published.set_lock(reader.lock().map(|lock| (lock, now())));
    loop {
        published.sample_ns.store(reader.next_sample_ns(&memory).unwrap_or(NEVER), Ordering::Relaxed);
        if reader.has_failed(&memory) {
            published.has_failed.store(true, Ordering::Relaxed);
            break;
        }
        let Ok(job) = jobs.recv() else { break };
        match job {
            Job::Tick if !memory.still_runs() => {
                published.set_lock(None);
                published.is_gone.store(true, Ordering::Relaxed);
                break;
            }
            Job::Tick => reader.tick(&mut memory, now),
            Job::Sample => reader.sample(&mut memory, now()),
        }
        let before = std::mem::replace(&mut spent, clock::thread_cpu_ns());
        let cost = spent.saturating_sub(before);
        budget.spend(job, cost);
        match job {
            Job::Tick => {
                let last = std::mem::replace(&mut last_cost, cost);
                published.cost_ns.store(cost.min(last), Ordering::Relaxed);
                published.set_lock(reader.lock().map(|lock| (lock, now())));
            }
            Job::Sample => published.is_asked.store(false, Ordering::Relaxed),
        }
    }
    let (mut account, spans) = reader.finish();
    if memory.has_paused() {
        let how = "reading paused, as the process's memory did not answer in time";
        limit(&mut account, &[Reason::TooLittle, Reason::NotFound], how);
    }
    (account, spans)
}

/// Never fails: an account that cannot be read keeps the reason. The process's files may be read.
fn reader_of(proc: &ProcFs, process: &Process, memory: &Live, kept: cpython::Kept) -> Box<dyn Reader> {
    match &process.runtime {
        Ok(Runtime::Jvm { .. }) => Box::new(jvm::Account::new(proc, process.pid)),
        Ok(Runtime::Go { .. }) => Box::new(go::Account::new(proc, process)),
        _ => Box::new(cpython::Account::open(proc, process, memory, kept)),
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

    /// Its account is looked for again and again.
    fn jvm(pid: i32) -> Process {
        process(pid, Runtime::Jvm { version: None })
    }

    fn accounts() -> (tempfile::TempDir, ProcFs, Accounts) {
        let dir = tempfile::tempdir().unwrap();
        let proc = ProcFs::at(dir.path());
        (dir, proc, Accounts::new(clock::monotonic_ns()))
    }

    fn budget(cpus: u64) -> Budget {
        Budget { cpus, spent_ns: AtomicU64::new(0), samples_ns: AtomicU64::new(0) }
    }

    fn pids(accounts: &Accounts) -> Vec<i32> {
        accounts.open.iter().map(|open| open.reading.pid).collect()
    }

    /// What was read for so long, or could not be read.
    fn read(pid: i32, over_ns: u64) -> Read {
        (RuntimeAccount { over_ns, ..absent(pid, "", &read_once()) }, Vec::new())
    }

    fn reading(pid: i32) -> Reading {
        let thread = Worker::start("does nothing", move || read(pid, 0));
        Reading { pid, nth: 0, is_rare: false, thread }
    }

    /// An account whose readings take this CPU time, and what it is asked for.
    fn costly(pid: i32, cost_ns: u64) -> (Open, Receiver<Job>) {
        let (jobs, asked) = sync_channel(QUEUED);
        let published = Published { cost_ns: AtomicU64::new(cost_ns), ..Published::new() };
        published.sample_ns.store(0, Ordering::Relaxed);
        let (runtime, published) = (Runtime::Go { version: None }, Arc::new(published));
        (Open { runtime, jobs, published, retry_ns: 0, reading: reading(pid) }, asked)
    }

    #[test]
    fn a_process_that_ends_makes_room_for_another() {
        let (_dir, proc, mut accounts) = accounts();
        accounts.budget = Arc::new(budget(1 << 30));
        let processes: Vec<Process> = (1..=40).map(jvm).collect();
        let alive: Vec<i32> = (1..=40).collect();
        for nth in 1..20i32 {
            accounts.follow(&proc, &processes, &alive);
            assert_eq!(pids(&accounts), (1..=nth.min(16)).collect::<Vec<i32>>(), "one at a time");
        }
        accounts.tick(&alive);
        // Later, half of them have ended.
        let patience = Instant::now() + Duration::from_secs(10);
        while accounts.ended.len() < 8 && Instant::now() < patience {
            accounts.end(&alive[8..]);
        }
        for _ in 0..3 {
            accounts.follow(&proc, &processes, &alive[8..]);
        }
        assert_eq!(pids(&accounts), (9..=19).collect::<Vec<i32>>());
        let (accounts, spans) = accounts.finish();
        let mut of: Vec<i32> = accounts.iter().map(|account| account.pid).collect();
        of.sort_unstable();
        assert_eq!(of, (9..=40).collect::<Vec<i32>>(), "the ended ones were not read");
        assert!(accounts.iter().all(|account| account.collections.is_err()) && spans.is_empty());
        // There was no room for the last ones.
        let reason = |pid: i32| {
            let account = accounts.iter().find(|account| account.pid == pid).unwrap();
            account.collections.as_ref().unwrap_err().reason
        };
        assert_eq!((reason(20), reason(40)), (Reason::TooCostly, Reason::TooCostly));
        assert_ne!(reason(19), Reason::TooCostly);
    }

    #[test]
    fn another_program_has_another_account() {
        let (_dir, proc, mut accounts) = accounts();
        accounts.open.push(costly(7, 0).0);
        accounts.follow(&proc, &[go(7)], &[7]);
        assert_eq!((accounts.opened, pids(&accounts)), (0, vec![7]));
        accounts.follow(&proc, &[jvm(7)], &[7]);
        assert_eq!((accounts.opened, &accounts.open[0].runtime), (1, &Runtime::Jvm { version: None }));
        // The same runtime once more: the thread has noticed it.
        accounts.open[0].published.is_gone.store(true, Ordering::Relaxed);
        accounts.follow(&proc, &[jvm(7)], &[7]);
        assert_eq!((accounts.opened, pids(&accounts)), (2, vec![7]));
        accounts.follow(&proc, &[process(7, Runtime::Native)], &[7]);
        assert!(accounts.open.is_empty());
        assert_eq!(accounts.finish().0.len(), 1);
    }

    #[test]
    fn of_two_programs_that_have_ended_the_last_one_is_kept() {
        let (_dir, _proc, mut accounts) = accounts();
        accounts.ended = vec![(0, read(7, 5)), (2, read(7, 9)), (1, read(8, 3)), (3, read(9, 0))];
        let (mut accounts, _) = accounts.finish();
        accounts.sort_by_key(|account| account.pid);
        let kept: Vec<(i32, u64)> = accounts.iter().map(|account| (account.pid, account.over_ns)).collect();
        assert_eq!(kept, [(7, 9), (8, 3)]);
    }

    #[test]
    fn an_account_that_cannot_be_read_makes_room_and_keeps_its_reason() {
        let (_dir, proc, mut accounts) = accounts();
        accounts.follow(&proc, &[go(7)], &[7]);
        let patience = Instant::now() + Duration::from_secs(10);
        while accounts.failed.is_empty() && Instant::now() < patience {
            accounts.tick(&[7]);
        }
        accounts.follow(&proc, &[go(7)], &[7]);
        assert_eq!((accounts.opened, accounts.open.len(), accounts.unopened.len()), (1, 0, 0));
        accounts.ended.push((8, read(8, 5)));
        let (accounts, _) = accounts.finish();
        let failed = accounts.iter().find(|account| account.pid == 7).unwrap();
        assert_eq!(failed.collections.as_ref().unwrap_err().reason, Reason::NotApplicable);
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

    #[test]
    fn accounts_take_turns_when_cpu_time_is_short() {
        let (_dir, _proc, mut accounts) = accounts();
        accounts.budget = Arc::new(budget(1));
        let alive = [0, 1, 2, 3];
        let (open, asked): (Vec<Open>, Vec<Receiver<Job>>) =
            alive.iter().map(|pid| costly(*pid, CPU_NS / 5)).unzip();
        accounts.open = open;
        let jobs = || -> Vec<usize> { asked.iter().map(|asked| asked.try_iter().count()).collect() };
        for expected in [[1, 1, 1, 0], [1, 1, 0, 1], [1, 0, 1, 1]] {
            accounts.ask(0);
            assert_eq!(jobs(), expected);
        }
        let rare: Vec<bool> = accounts.open.iter().map(|open| open.reading.is_rare).collect();
        assert_eq!(rare, [false, true, true, true]);
        assert_eq!(accounts.next_sample_ns(), Some(accounts.start_ns));
        accounts.sample();
        assert_eq!(jobs(), [1; 4]);
        // Until the threads have answered.
        let next = accounts.next_sample_ns().unwrap();
        assert!(next >= accounts.start_ns + SOON_NS);
        accounts.budget.spend(Job::Tick, u64::MAX / 2);
        accounts.ask(0);
        assert_eq!((jobs(), accounts.next_sample_ns().map(|at| at > u64::MAX / 4)), (vec![0; 4], Some(true)));
        // The last reading is made in any case.
        accounts.last_tick(&alive);
        assert_eq!(jobs(), [1; 4]);
    }

    #[test]
    fn a_costly_account_does_not_hold_up_the_others() {
        let (_dir, _proc, mut accounts) = accounts();
        accounts.budget = Arc::new(budget(1));
        let costs = [CPU_NS * 10, CPU_NS / 100, CPU_NS / 100];
        let (open, asked): (Vec<Open>, Vec<Receiver<Job>>) =
            (0..).zip(costs).map(|(pid, cost)| costly(pid, cost)).unzip();
        accounts.open = open;
        for _ in 0..3 {
            accounts.ask(0);
            let jobs: Vec<usize> = asked.iter().map(|asked| asked.try_iter().count()).collect();
            assert_eq!(jobs, [0, 1, 1]);
        }
        let rare: Vec<bool> = accounts.open.iter().map(|open| open.reading.is_rare).collect();
        assert_eq!(rare, [true, false, false]);
    }

    #[test]
    fn all_readings_take_half_a_percent_of_the_cpus_and_samples_half_of_it() {
        const S: u64 = 1_000_000_000;
        let budget = budget(2);
        assert_eq!((budget.left_ns(0), budget.left_ns(S)), (20_000_000, 30_000_000));
        assert_eq!((budget.samples_from_ns(0), budget.samples_from_ns(30_000_000)), (0, S));
        budget.spend(Job::Sample, 15_000_000);
        assert_eq!((budget.left_ns(0), budget.samples_from_ns(0)), (5_000_000, S));
        budget.spend(Job::Tick, 25_000_000);
        assert_eq!(
            (budget.left_ns(S), budget.left_ns(3 * S), budget.samples_from_ns(0)),
            (0, 10_000_000, 2 * S)
        );
    }

    #[test]
    fn an_account_that_was_read_rarely_says_so() {
        let unparsable = Err(Absence::new(Reason::Unparsable, "malformed"));
        let thread = Worker::start("does nothing", move || {
            (RuntimeAccount { stopped_ns: unparsable, ..read(7, 0).0 }, Vec::new())
        });
        while !thread.is_finished() {
            std::thread::yield_now();
        }
        let (_, (account, _)) = outcome(Reading { pid: 7, nth: 0, is_rare: true, thread });
        assert!(account.method.ends_with("to limit the cost"), "{}", account.method);
        assert_eq!(account.collections.unwrap_err().reason, Reason::TooCostly);
        assert_eq!(account.stopped_ns.unwrap_err().reason, Reason::Unparsable);
    }

    #[test]
    fn a_lock_is_believed_for_some_time() {
        let published = Published::new();
        assert_eq!(published.lock(0), None);
        published.set_lock(Some((8..16, 5)));
        assert_eq!((published.lock(5 + LOCK_NS), published.lock(6 + LOCK_NS)), (Some(8..16), None));
    }

    /// Reads an account that is asked for its counters twice.
    fn served(reader: Box<dyn Reader>, memory: Live) -> (RuntimeAccount, Published) {
        let (jobs, asked) = sync_channel(QUEUED);
        for _ in 0..2 {
            jobs.try_send(Job::Tick).unwrap();
        }
        drop(jobs);
        let (published, budget) = (Published::new(), budget(1));
        let (account, _) = serve(reader, memory, &asked, &published, &budget, &|| 0);
        assert!(budget.spent_ns.load(Ordering::Relaxed) > 0);
        (account, published)
    }

    #[test]
    fn reading_ends_with_the_program() {
        let (dir, proc, _) = accounts();
        std::fs::create_dir_all(dir.path().join("7")).unwrap();
        let started = |ticks: u64| {
            let stat = format!(
                "7 (java) S 1 1 1 0 -1 0 1 2 3 4 5 6 7 8 20 0 1 0 {ticks} 4096 2 3 1 1 0 0 0 0 0 0 0 0 0 0 17 1 0"
            );
            std::fs::write(dir.path().join("7/stat"), stat).unwrap();
        };
        for (runs, ticks) in [(true, 9), (false, 10)] {
            started(9);
            let memory = Live::of(&proc, 7);
            let reader = reader_of(&proc, &jvm(7), &memory, cpython::Kept::default());
            started(ticks);
            let (account, published) = served(reader, memory);
            assert!(account.collections.is_err());
            assert_eq!(published.is_gone.load(Ordering::Relaxed), !runs);
            assert!(!published.has_failed.load(Ordering::Relaxed));
        }
    }

    /// Counts its readings, and fails after some of them.
    struct Counting {
        ticks: u64,
        most: u64,
    }

    impl Reader for Counting {
        fn tick(&mut self, memory: &mut dyn Memory, _: &dyn Fn() -> u64) {
            self.ticks += 1;
            memory.word(0);
        }

        fn has_failed(&self, _: &dyn Memory) -> bool {
            self.ticks >= self.most
        }

        fn finish(self: Box<Self>) -> Read {
            read(7, self.ticks)
        }
    }

    #[test]
    fn an_account_that_fails_is_not_read_again() {
        let (_dir, proc, _) = accounts();
        for (most, ticks, failed) in [(9, 3, false), (3, 3, true), (2, 2, true), (1, 1, true)] {
            let reader = Box::new(Counting { ticks: 0, most });
            let (account, published) = served(reader, Live::of(&proc, 7));
            assert_eq!((account.over_ns, published.has_failed.load(Ordering::Relaxed)), (ticks, failed));
        }
    }

    #[test]
    fn what_a_pause_has_hidden_is_not_called_absent() {
        for paused in [false, true] {
            let mut memory = Live::of(&ProcFs::live(), std::process::id() as i32);
            // A busy machine is no reason to pause here.
            memory.patience = Duration::from_secs(3600);
            if paused {
                memory.wait(Duration::from_secs(7200));
            }
            let (account, _) = served(Box::new(Counting { ticks: 0, most: 9 }), memory);
            let absence = account.collections.unwrap_err();
            let reason = if paused { Reason::TooCostly } else { Reason::TooLittle };
            assert_eq!((absence.reason, absence.detail.contains("reading paused")), (reason, paused));
            assert_eq!(account.method.contains("reading paused"), paused);
        }
    }

    #[test]
    fn a_thread_that_does_not_answer_is_an_absence() {
        let (_dir, _proc, mut accounts) = accounts();
        let (stop, stopped) = sync_channel::<()>(0);
        let thread = Worker::start("waits", move || {
            let _ = stopped.recv();
            read(7, 0)
        });
        accounts.ending.push(Reading { thread, ..reading(7) });
        accounts.tick(&[]);
        let (accounts, _) = accounts.finish();
        assert_eq!(accounts[0].collections.as_ref().unwrap_err().reason, Reason::TooCostly);
        drop(stop);
    }
}
