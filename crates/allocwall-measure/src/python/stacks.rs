//! The code of the child process: reads Python's function names from outside, without stopping the
//! interpreter.

use super::{Answer, Ask};
use allocwall_host::clock::monotonic_ns;
use allocwall_host::confined::{Limits, Parent};
use allocwall_host::proc::ProcFs;
use allocwall_host::rights::run_as_root;
use allocwall_host::worker::Worker;
use allocwall_model::recording::{Probe, ProbeName, ProbeState, PythonSample};
use allocwall_model::units::{Absence, Measured, Reason};
use py_spy::config::LockingStrategy;
use py_spy::{Config, PythonSpy};
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const FRAME_LIMIT: usize = 16;
/// The most processes. Each read of a process reads its interpreter's thread list and every frame.
const PROCESSES: usize = 8;
/// After this many failed reads in a row it attaches again: it attached too early, or the process started
/// another interpreter.
const FAILED_READS: u32 = 20;
/// The longest pause between two attempts, in ticks: a process without an interpreter is not tried all the
/// time.
const LONGEST_REST: u32 = 16;
/// The most threads of a process whose numbers are translated. py-spy reads no more thread states.
const THREADS: usize = 4096;
/// How long the end waits for an attach in progress.
const LAST_ATTACH: Duration = Duration::from_millis(150);
/// An interpreter's file and its libraries are mapped while their symbols are read. The target determines how
/// long the copied names are.
const LIMITS: Limits = Limits { memory: 64 << 20, mapped: 512 << 20, cpu_seconds: 60, keeps_rights: true };
/// The child aborts if more of the target's files than this are in memory.
const RESIDENT_LIMIT: u64 = 100 << 20;

/// Runs the child: limits itself, and answers until its parent is gone.
///
/// # Errors
/// It was not started by this program, or a limit could not be set.
pub fn serve() -> io::Result<()> {
    let mut parent = Parent::confined(LIMITS)?;
    let mut interpreters = Interpreters::default();
    while let Some((message, _)) = parent.question()? {
        let answer = match postcard::from_bytes(&message).map_err(|_| io::ErrorKind::InvalidData)? {
            Ask::Follow(pids) => {
                interpreters.follow(pids);
                continue;
            }
            Ask::Read => Answer::Samples(interpreters.read()),
            Ask::Finish => Answer::Finished(Box::new(interpreters.finish())),
        };
        parent.answer(&postcard::to_stdvec(&answer).map_err(io::Error::other)?)?;
    }
    Ok(())
}

/// The target's Python processes. A separate thread attaches to one at a time: reading an interpreter's
/// symbols takes longer than the rings can buffer.
#[derive(Default)]
pub struct Interpreters {
    found: BTreeMap<i32, Followed>,
    attaching: Option<(i32, Worker<Measured<PythonSpy>>)>,
    beyond: HashSet<i32>,
    /// Some processes ended before they could be read, mostly children that then ran another program.
    passing: bool,
}

#[derive(Default)]
struct Followed {
    spy: Option<PythonSpy>,
    ended: bool,
    /// Ticks until the next attempt, and the pause after it.
    rest: u32,
    pause: u32,
    /// Failed reads in a row.
    failed: u32,
    threads: Threads,
    seen: Seen,
}

/// The threads of a process in a PID namespace of its own. Its interpreter knows only their numbers there
/// (`native_thread_id` of a thread state, since CPython 3.11).
#[derive(Default)]
struct Threads {
    /// Whether it has such a namespace; None if that was not read yet.
    nested: Option<bool>,
    /// The numbers there, by ours.
    inner: HashMap<i32, i32>,
}

impl Threads {
    /// Our numbers of the living threads, by their numbers there. None if both are the same.
    fn ours(&mut self, proc: &ProcFs, pid: i32) -> Option<HashMap<i32, i32>> {
        if self.nested.is_none() {
            self.nested = proc.status(pid).ok().map(|status| status.ns_pids.len() > 1);
        }
        if self.nested != Some(true) {
            return None;
        }
        let alive: HashSet<i32> = proc.threads(pid).unwrap_or_default().into_iter().take(THREADS).collect();
        self.inner.retain(|tid, _| alive.contains(tid));
        for tid in alive {
            if let Entry::Vacant(vacant) = self.inner.entry(tid)
                && let Ok(status) = proc.thread_status(pid, tid)
                && let Some(&inner) = status.ns_pids.last()
            {
                vacant.insert(inner);
            }
        }
        Some(self.inner.iter().map(|(&tid, &inner)| (inner, tid)).collect())
    }
}

/// The result for one process.
#[derive(Clone, Default)]
struct Seen {
    reads: u64,
    /// Reads without a result because the interpreter was changing its data. A few are normal, because it is
    /// not stopped.
    misses: u64,
    /// Reads with a stack of which the thread is unknown.
    unmatched: u64,
    /// Why the last attempt to attach failed, or why threads are unknown.
    refused: Option<Absence>,
}

impl Seen {
    /// It was read, or rights are missing that the next attempt would miss too.
    fn is_conclusive(&self) -> bool {
        let forbidden = |why: &Absence| why.reason == Reason::NotPermitted;
        self.reads > self.misses || self.refused.as_ref().is_some_and(forbidden)
    }
}

impl Interpreters {
    /// Adds new processes, and tries again where no interpreter was found yet. Once per tick.
    pub fn follow(&mut self, python: BTreeSet<i32>) {
        self.found.retain(|pid, followed| {
            followed.rest = followed.rest.saturating_sub(1);
            if python.contains(pid) {
                return true;
            }
            followed.ended = true;
            followed.spy = None;
            let kept = followed.seen.is_conclusive();
            self.passing |= !kept;
            kept
        });
        for &pid in &python {
            if let Some(followed) = self.found.get_mut(&pid) {
                // The pid was reused.
                followed.ended = false;
                continue;
            }
            // Processes that ended still count, because their results are reported.
            if self.found.len() < PROCESSES {
                self.found.insert(pid, Followed::default());
            } else {
                self.beyond.insert(pid);
            }
        }
        self.attach_next();
    }

    fn attach_next(&mut self) {
        self.take_attached();
        if self.attaching.is_some() {
            return;
        }
        let due = self.found.iter().find(|(_, f)| !f.ended && f.spy.is_none() && f.rest == 0);
        self.attaching =
            due.map(|(&pid, _)| (pid, Worker::start("reads Python's stacks", move || attach(pid))));
    }

    /// Takes the result of the attach in progress, if there is one.
    fn take_attached(&mut self) {
        let Some((pid, thread)) = self.attaching.take_if(|(_, thread)| thread.is_finished()) else {
            return;
        };
        let outcome = thread.finish().and_then(|attached| attached);
        let Some(followed) = self.found.get_mut(&pid) else {
            return;
        };
        match outcome {
            Ok(spy) => followed.spy = Some(spy),
            Err(absence) => followed.put_off(absence),
        }
    }

    /// Stacks of the threads that run Python code now; times are CLOCK_MONOTONIC.
    pub fn read(&mut self) -> Vec<PythonSample> {
        self.attach_next();
        let t_ns = monotonic_ns();
        let mut out = Vec::new();
        for (&pid, followed) in &mut self.found {
            followed.read(pid, t_ns, &mut out);
        }
        out
    }

    /// None if the target has no Python.
    pub fn finish(&mut self) -> Option<Probe> {
        let deadline = Instant::now() + LAST_ATTACH;
        while self.attaching.is_some() && Instant::now() < deadline {
            self.take_attached();
            std::thread::sleep(Duration::from_millis(1));
        }
        if let Some((pid, _)) = &self.attaching
            && let Some(followed) = self.found.get_mut(pid)
        {
            let detail = format!("reading the Python interpreter of process {pid} took too long");
            followed.seen.refused = Some(Absence::new(Reason::TooCostly, detail));
        }
        let seen: Vec<Seen> = std::mem::take(&mut self.found).into_values().map(|f| f.seen).collect();
        if seen.is_empty() && !self.passing {
            return None;
        }
        Some(Probe::new(ProbeName::PythonStacks, state(&seen, self.beyond.len())))
    }
}

/// No kernel limit counts the pages of mapped files, so they are checked while files are read. Aborts this
/// process if there are too many; the parent reports it.
fn watch_memory(until: &AtomicBool) {
    const EVERY: Duration = Duration::from_millis(5);
    while !until.load(Ordering::Relaxed) {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
        let pages = statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok());
        if pages.is_some_and(|pages| pages * rustix::param::page_size() as u64 > RESIDENT_LIMIT) {
            std::process::abort();
        }
        std::thread::sleep(EVERY);
    }
}

impl Followed {
    fn put_off(&mut self, why: Absence) {
        self.seen.refused = Some(why);
        self.pause = (self.pause * 2).clamp(1, LONGEST_REST);
        self.rest = self.pause;
    }

    fn read(&mut self, pid: i32, t_ns: u64, out: &mut Vec<PythonSample>) {
        let Some(spy) = &mut self.spy else { return };
        let version = (spy.version.major, spy.version.minor);
        self.seen.reads += 1;
        let traces = match spy.get_stack_traces() {
            Ok(traces) => traces,
            Err(e) => {
                self.seen.misses += 1;
                self.failed += 1;
                if self.failed == FAILED_READS {
                    self.failed = 0;
                    self.spy = None;
                    self.put_off(unreadable(pid, &format!("{e:#}")));
                }
                return;
            }
        };
        self.failed = 0;
        let proc = ProcFs::live();
        let ours = self.threads.ours(&proc, pid);
        let only = match &traces[..] {
            [trace] if trace.os_thread_id.is_none() => only_thread(&proc, pid),
            _ => None,
        };
        let (mut empty, mut unmatched) = (false, false);
        for trace in traces {
            let known = trace.os_thread_id.map(|tid| tid as i32);
            let tid = match (known, &ours) {
                (Some(tid), None) => Some(tid),
                // A thread that has ended meanwhile has no number.
                (Some(tid), Some(ours)) => ours.get(&tid).copied(),
                (None, _) => only,
            };
            unmatched |= known.is_none() && only.is_none();
            let Some(tid) = tid else { continue };
            // py-spy takes a thread for active if it does not find its state by our number.
            let is_running = || proc.thread_stat(pid, tid).is_ok_and(|stat| stat.state == 'R');
            let active = trace.active && (known == Some(tid) || is_running());
            if !active && !trace.owns_gil {
                continue;
            }
            // Read while the interpreter changed it: it has no names.
            if trace.frames.is_empty() {
                empty = true;
                continue;
            }
            let frames = trace
                .frames
                .iter()
                .take(FRAME_LIMIT)
                .map(|f| {
                    let file = f.short_filename.as_deref().unwrap_or(&f.filename);
                    format!("{} ({}:{})", cut(&f.name), cut(file), f.line)
                })
                .collect();
            out.push(PythonSample { t_ns, pid, tid, frames });
        }
        self.seen.misses += u64::from(empty);
        if unmatched {
            self.seen.unmatched += 1;
            self.seen.refused = Some(without_numbers(pid, version));
        }
    }
}

/// The thread of a process that has no other. CPython before 3.11 does not keep the kernel's numbers of its
/// threads, so there only this thread can be matched.
fn only_thread(proc: &ProcFs, pid: i32) -> Option<i32> {
    match proc.threads(pid).ok()?[..] {
        [tid] => Some(tid),
        _ => None,
    }
}

fn without_numbers(pid: i32, (major, minor): (u64, u64)) -> Absence {
    let detail = format!(
        "process {pid} has several threads, and CPython {major}.{minor} does not keep their kernel thread ids, so its Python stacks can't be matched with CPU samples"
    );
    Absence::new(Reason::NotSupported, detail).mend("run it with CPython 3.11 or later")
}

/// Truncates a name: the target determines its length.
fn cut(name: &str) -> &str {
    const LIMIT: usize = 200;
    name.char_indices().nth(LIMIT).map_or(name, |(end, _)| &name[..end])
}

fn attach(pid: i32) -> Measured<PythonSpy> {
    let config = Config { blocking: LockingStrategy::NonBlocking, native: false, ..Config::default() };
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| watch_memory(&done));
        // Stops the watch at the end of the read, also after a panic.
        let _done = SetOnDrop(&done);
        // A leader that has ended shows neither memory nor files.
        let thread = ProcFs::live().living_thread(pid);
        PythonSpy::new(thread, &config).map_err(|e| unreadable(pid, &format!("{e:#}")))
    })
}

struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The errors of the reader are text, so missing rights are recognised by the system's message.
fn unreadable(pid: i32, why: &str) -> Absence {
    let detail = format!("the Python stacks of process {pid} are not readable: {why}");
    let refused = ["Permission denied", "Operation not permitted"];
    if refused.iter().any(|words| why.contains(words)) {
        return Absence::new(Reason::NotPermitted, detail)
            .mend(run_as_root())
            .mend("grant CAP_SYS_PTRACE")
            .mend("start it with python -X perf (3.12+)");
    }
    Absence::new(Reason::NotFound, detail).mend("start it with python -X perf (3.12+)")
}

/// One state for all Python processes, with those `beyond` the limit.
fn state(seen: &[Seen], beyond: usize) -> ProbeState {
    let total = seen.len() + beyond;
    let is_read = |s: &&Seen| s.reads > s.misses + s.unmatched;
    let read = seen.iter().filter(is_read).count();
    let sum = |of: fn(&Seen) -> u64| seen.iter().map(of).sum::<u64>();
    let (reads, misses, unmatched) = (sum(|s| s.reads), sum(|s| s.misses), sum(|s| s.unmatched));
    let refused = seen.iter().filter(|s| !is_read(s)).find_map(|s| s.refused.clone());
    if read == 0 {
        return ProbeState::Absent(refused.unwrap_or_else(|| {
            Absence::new(
                Reason::TooLittle,
                "no Python process ran long enough for its interpreter to be found",
            )
        }));
    }
    if read < total {
        let (reason, why, mend) = match refused {
            Some(absence) => (absence.reason, absence.detail, absence.mend),
            None if beyond > 0 => {
                (Reason::TooCostly, format!("allocwall reads at most {PROCESSES} processes"), Vec::new())
            }
            None => (Reason::TooLittle, "the other processes ended too early".to_string(), Vec::new()),
        };
        let detail = format!("Python's stacks were read in {read} of {total} processes: {why}");
        return ProbeState::Partial(Absence { reason, detail, mend });
    }
    if misses * 2 > reads {
        let detail = format!(
            "{misses} of {reads} reads of Python's stacks failed because the interpreter was changing them"
        );
        return ProbeState::Partial(Absence::new(Reason::TooLittle, detail));
    }
    let partly = seen.iter().filter(|s| s.unmatched > 0).find_map(|s| s.refused.clone());
    if let Some(Absence { reason, detail, mend }) = partly {
        let detail = format!("{unmatched} of {reads} reads of Python's stacks are of no use: {detail}");
        return ProbeState::Partial(Absence { reason, detail, mend });
    }
    ProbeState::Measured
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(reads: u64, misses: u64) -> Seen {
        Seen { reads, misses, ..Seen::default() }
    }

    fn refused(why: &str) -> Seen {
        Seen { refused: Some(unreadable(7, why)), ..Seen::default() }
    }

    #[test]
    fn one_state_over_all_processes() {
        assert_eq!(state(&[seen(100, 3), seen(50, 0)], 0), ProbeState::Measured);
        let ProbeState::Partial(absence) = state(&[seen(100, 3), refused("Permission denied")], 0) else {
            panic!("one of two");
        };
        assert_eq!(absence.reason, Reason::NotPermitted);
        assert!(absence.detail.contains("1 of 2 "), "{absence}");
        let ProbeState::Partial(absence) = state(&[seen(100, 0)], 4) else {
            panic!("one of five");
        };
        assert_eq!(absence.reason, Reason::TooCostly);
        assert!(absence.detail.contains("1 of 5 "), "{absence}");
    }

    #[test]
    fn failed_reads_are_not_a_measurement() {
        let of = |misses| state(&[seen(100, misses)], 0);
        assert_eq!(of(50), ProbeState::Measured);
        assert!(matches!(of(51), ProbeState::Partial(a) if a.reason == Reason::TooLittle));
        assert!(matches!(of(100), ProbeState::Absent(_)));
        // A process that was refused first and read later counts as read.
        let late = Seen { refused: Some(unreadable(7, "no interpreter yet")), ..seen(10, 0) };
        assert_eq!(state(&[late], 0), ProbeState::Measured);
    }

    #[test]
    fn stacks_of_unknown_threads_are_not_a_measurement() {
        let of = |unmatched| {
            let refused = (unmatched > 0).then(|| without_numbers(7, (3, 9)));
            state(&[Seen { unmatched, refused, ..seen(100, 0) }], 0)
        };
        assert_eq!(of(0), ProbeState::Measured);
        // It had one thread for most of the time.
        let ProbeState::Partial(some) = of(20) else { panic!("some reads") };
        assert_eq!(some.reason, Reason::NotSupported);
        assert!(some.detail.contains("20 of 100 reads") && some.detail.contains("CPython 3.9"), "{some}");
        let ProbeState::Absent(all) = of(100) else { panic!("all reads") };
        assert_eq!(all, without_numbers(7, (3, 9)));
        // Failed reads and stacks of unknown threads leave nothing together.
        let none = Seen { unmatched: 40, refused: Some(without_numbers(7, (3, 9))), ..seen(100, 60) };
        assert!(matches!(state(&[none], 0), ProbeState::Absent(a) if a.reason == Reason::NotSupported));
    }

    #[test]
    fn only_errors_that_rights_would_fix_are_about_rights() {
        let reason = |why| unreadable(7, why).reason;
        assert_eq!(reason("Failed to open process: Permission denied (os error 13)"), Reason::NotPermitted);
        assert_eq!(reason("Failed to find a python interpreter"), Reason::NotFound);
    }

    #[test]
    fn a_process_that_soon_runs_another_program_is_ignored() {
        assert!(seen(2, 1).is_conclusive() && refused("Permission denied").is_conclusive());
        assert!(!refused("No such file").is_conclusive() && !Seen::default().is_conclusive());
        let mut interpreters = Interpreters::default();
        assert!(interpreters.finish().is_none());
        interpreters.found.insert(7, Followed::default());
        interpreters.follow(BTreeSet::new());
        assert!(interpreters.found.is_empty());
        let state = interpreters.finish().unwrap().state;
        assert!(matches!(state, ProbeState::Absent(a) if a.reason == Reason::TooLittle));
    }

    #[test]
    fn threads_of_another_pid_namespace_have_our_numbers() {
        let dir = tempfile::tempdir().unwrap();
        let proc = ProcFs::at(dir.path());
        let write = |name: &str, numbers: &str| {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            let text = format!(
                "Tgid:\t70\nPPid:\t1\nUid:\t0\t0\t0\t0\nNSpid:\t{numbers}\nThreads:\t2\nCapEff:\t0\n"
            );
            std::fs::write(path, text).unwrap();
        };
        for (name, numbers) in [("", "70\t1"), ("task/70/", "70\t1"), ("task/71/", "71\t9")] {
            write(&format!("70/{name}status"), numbers);
        }
        let mut threads = Threads::default();
        assert_eq!(threads.ours(&proc, 70), Some(HashMap::from([(1, 70), (9, 71)])));
        // One has ended, and a new one has its number there.
        std::fs::remove_dir_all(dir.path().join("70/task/71")).unwrap();
        write("70/task/72/status", "72\t9");
        assert_eq!(threads.ours(&proc, 70), Some(HashMap::from([(1, 70), (9, 72)])));
        // The twin: a process in our own namespace.
        write("80/status", "80");
        write("80/task/80/status", "80");
        assert_eq!(Threads::default().ours(&proc, 80), None);
        // It can't be read yet.
        let mut unread = Threads::default();
        assert_eq!((unread.ours(&proc, 90), unread.nested), (None, None));
    }

    #[test]
    fn without_thread_ids_only_a_single_thread_is_known() {
        let dir = tempfile::tempdir().unwrap();
        let proc = ProcFs::at(dir.path());
        std::fs::create_dir_all(dir.path().join("70/task/70")).unwrap();
        assert_eq!(only_thread(&proc, 70), Some(70));
        std::fs::create_dir(dir.path().join("70/task/71")).unwrap();
        assert_eq!(only_thread(&proc, 70), None);
        assert_eq!(only_thread(&proc, 80), None);
    }

    #[test]
    fn tries_become_rarer() {
        let mut followed = Followed::default();
        let rests: Vec<u32> = (0..6)
            .map(|_| {
                followed.put_off(unreadable(7, ""));
                followed.rest
            })
            .collect();
        assert_eq!(rests, [1, 2, 4, 8, 16, 16]);
    }
}
