//! A small process between allocwall and a command. It ends everything that the command started, even if
//! allocwall is killed.
//!
//! The keeper is the subreaper of all processes that the command starts (prctl(2), PR_SET_CHILD_SUBREAPER): a
//! process whose parent died becomes a child of the keeper, daemons included. So all of them have ended when
//! wait(2) reports no child. The keeper signals only its own children: no other process can reap them, so
//! their pids can't be reused. Their children follow when they have ended.
//!
//! The keeper reads one order from a socket, its standard input, and writes reports, in lines of JSON. When
//! allocwall ends, the socket closes, and the keeper ends the command. While the command runs, the keeper
//! sleeps.

use crate::clock::monotonic_ns;
use crate::limits;
use crate::place;
use crate::proc::ProcFs;
use crate::topology;
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, set_child_subreaper, setrlimit};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, BufReader, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Arguments and environment may take a quarter of the stack, 2 MiB (execve(2)), and a byte takes up to four
/// characters.
const LARGEST_ORDER: u64 = 32 << 20;
/// How long the remaining processes may take to end by themselves before they are ended and reported. Helpers
/// that end with their parent need a moment, and some clean up (Python's resource tracker).
const LINGER_NS: u64 = 200_000_000;
/// The grace time if allocwall is gone.
const GRACE_WHEN_GONE_NS: u64 = 300_000_000;
/// A process that survives SIGKILL this long hangs in the kernel, or may not be killed by this user. It is
/// reported and left.
const GIVE_UP_NS: u64 = 5_000_000_000;
/// Poll interval for ends that no signal reports: those of a child's children.
const ROUND_MS: i32 = 5;
const MOST_NAMES: usize = 20;
const LONGEST_NAME: usize = 80;

/// What to start, and how to end it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Order {
    /// Empty: no command is started, and the folder is removed when allocwall is gone.
    pub command: Vec<OsString>,
    /// Changes to the keeper's environment; None removes the variable.
    pub env: Vec<(OsString, Option<OsString>)>,
    pub cwd: Option<PathBuf>,
    /// None: /dev/null.
    pub stdin: Option<PathBuf>,
    pub cpus: Option<Vec<u32>>,
    pub nodes: Option<Vec<u32>>,
    /// Soft and hard limit of open files.
    pub open_files: Option<(Option<u64>, Option<u64>)>,
    pub limit_ns: Option<u64>,
    /// The time from SIGTERM to SIGKILL; 0 sends no SIGTERM.
    pub grace_ns: u64,
    pub folder: Option<Folder>,
    /// A variable and its value. Every process that was started with it is killed at the end, also children
    /// of other processes.
    pub marked: Option<(String, String)>,
}

/// A folder to remove at the end, with its contents.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Folder {
    path: PathBuf,
    /// The folder with this name at the end must still be the same one.
    device: u64,
    inode: u64,
}

impl Folder {
    /// # Errors
    /// The folder does not exist, or is a link.
    pub fn of(path: &Path) -> io::Result<Folder> {
        let path = std::path::absolute(path)?;
        let facts = path.symlink_metadata()?;
        if !facts.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        Ok(Folder { path, device: facts.dev(), inode: facts.ino() })
    }

    /// A folder that is already gone is not an error.
    pub fn remove(&self) -> io::Result<()> {
        match Folder::of(&self.path) {
            Ok(found) if found == *self => std::fs::remove_dir_all(&self.path),
            Ok(_) => Err(io::Error::other("another folder has this name now")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Report {
    /// No command was ordered; the keeper holds the folder.
    Ready,
    Started {
        pid: i32,
        /// CLOCK_MONOTONIC, taken by the child next to its exec.
        start_ns: u64,
        /// Memory that the keeper's own image, before the exec, may add to the peak that wait4 reports.
        floor_bytes: u64,
    },
    /// The command did not run, and nothing of it is left.
    Failed { step: Step, detail: String, errno: Option<i32> },
    /// The command itself has ended. The processes that it left behind are ended next.
    Exited {
        /// As wait(2) encodes it.
        status: i32,
        /// CLOCK_MONOTONIC, taken directly after the wait.
        end_ns: u64,
        ended: Ended,
    },
    /// The last report.
    Over {
        usage: Usage,
        /// Processes that outlived the command and were ended, by command line.
        left_behind: Vec<String>,
        /// Processes that could not be ended.
        stuck: Vec<String>,
        /// Why the folder still exists, if it does.
        folder: Option<String>,
    },
}

/// The steps before the command runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Step {
    Subreaper,
    WorkingDirectory,
    Stdin,
    Affinity,
    MemoryPolicy,
    /// fork, or exec.
    Exec,
}

/// Who ended the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ended {
    Itself,
    Limit,
    /// allocwall asked.
    Asked,
    /// allocwall is gone.
    Gone,
    /// A signal to the keeper.
    Signal(i32),
}

/// Resource use of the command and all that it started, as wait4(2) reports it for each process that ended.
/// It is complete when no child is left, except for children whose parent ignored SIGCHLD: the kernel adds
/// those to no process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    pub user_ns: u64,
    pub system_ns: u64,
    pub minor_faults: u64,
    pub major_faults: u64,
    pub voluntary_switches: u64,
    pub involuntary_switches: u64,
    /// The peak of a single process: the kernel does not report the peak of several together.
    pub largest_process_peak_rss_bytes: u64,
}

impl Usage {
    fn add(&mut self, other: &libc::rusage) {
        let ns = |time: libc::timeval| time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1000;
        self.user_ns += ns(other.ru_utime);
        self.system_ns += ns(other.ru_stime);
        self.minor_faults += other.ru_minflt as u64;
        self.major_faults += other.ru_majflt as u64;
        self.voluntary_switches += other.ru_nvcsw as u64;
        self.involuntary_switches += other.ru_nivcsw as u64;
        // ru_maxrss is in KiB: getrusage(2).
        let peak = (other.ru_maxrss as u64) << 10;
        self.largest_process_peak_rss_bytes = self.largest_process_peak_rss_bytes.max(peak);
    }
}

/// Runs the keeper until its end. Its standard input is the socket; its standard output and error are those
/// of the command.
///
/// # Errors
/// It was not started by [`Link::start`].
pub fn keep() -> io::Result<()> {
    let control = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    control
        .peer_addr()
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "standard input is not a socket"))?;
    // A new session: allocwall handles signals of the terminal, and the keeper must not die of them.
    // setsid(2) fails for the leader of a process group, which is harmless.
    let _ = rustix::process::setsid();
    let signals = Signals::block()?;
    let mut line = Vec::new();
    BufReader::new((&control).take(LARGEST_ORDER)).read_until(b'\n', &mut line)?;
    let order: Order = serde_json::from_slice(&line)?;
    let mut keeper = Keeper {
        control,
        signals,
        order,
        main: None,
        gone: false,
        ended: None,
        usage: Usage::default(),
        left_behind: Vec::new(),
        asked: BTreeSet::new(),
        phase: Phase::Running { until: None },
        proc: ProcFs::live(),
    };
    keeper.live();
    Ok(())
}

struct Keeper {
    control: UnixStream,
    signals: Signals,
    order: Order,
    main: Option<Main>,
    /// The socket has closed; poll would report it again and again.
    gone: bool,
    ended: Option<Ended>,
    usage: Usage,
    left_behind: Vec<String>,
    /// Children that were sent SIGTERM. The pid stays theirs until this process reaps them.
    asked: BTreeSet<i32>,
    phase: Phase,
    proc: ProcFs,
}

#[derive(Clone, Copy)]
struct Main {
    pid: i32,
    ended_ns: Option<u64>,
}

/// Times are CLOCK_MONOTONIC.
#[derive(Clone, Copy)]
enum Phase {
    Running {
        until: Option<u64>,
    },
    /// The command has ended by itself, and other processes live on.
    Lingering {
        until: u64,
    },
    Asking {
        until: u64,
    },
    Killing {
        until: u64,
    },
}

struct Failure {
    step: Step,
    cause: io::Error,
}

impl Keeper {
    fn live(&mut self) {
        let begun = if self.order.command.is_empty() { self.begin_empty() } else { self.begin() };
        match begun {
            Ok(report) => self.report(&report),
            Err(Failure { step, cause }) => {
                self.remove_folder();
                return self.report(&Report::Failed {
                    step,
                    detail: cause.to_string(),
                    errno: cause.raw_os_error(),
                });
            }
        }
        let stuck = self.watch();
        if let Some((name, value)) = &self.order.marked {
            sweep(name, value);
        }
        let folder = self.remove_folder();
        self.report(&Report::Over {
            usage: self.usage,
            left_behind: self.left_behind.clone(),
            stuck,
            folder,
        });
    }

    /// The reader may be gone; the socket reports that too.
    fn report(&self, report: &Report) {
        if let Ok(mut line) = serde_json::to_vec(report) {
            line.push(b'\n');
            let _ = (&self.control).write_all(&line);
        }
    }

    fn remove_folder(&self) -> Option<String> {
        let folder = self.order.folder.as_ref()?;
        let error = folder.remove().err()?;
        Some(format!("{}: {error}", folder.path.display()))
    }

    fn begin_empty(&mut self) -> Result<Report, Failure> {
        let _ = std::env::set_current_dir("/");
        let _ = let_go_of_output();
        Ok(Report::Ready)
    }

    fn begin(&mut self) -> Result<Report, Failure> {
        let at = |step: Step| move |cause: io::Error| Failure { step, cause };
        set_child_subreaper(Some(rustix::process::getpid()))
            .map_err(|errno| at(Step::Subreaper)(errno.into()))?;
        if let Some(cwd) = &self.order.cwd {
            std::env::set_current_dir(cwd).map_err(at(Step::WorkingDirectory))?;
        }
        let stdin = match &self.order.stdin {
            Some(path) => Stdio::from(File::open(path).map_err(at(Step::Stdin))?),
            None => Stdio::null(),
        };
        // Set on the keeper itself and inherited, so that an error here can't be mistaken for one of exec.
        let own_place = place::allowed_cpus();
        if let Some(cpus) = &self.order.cpus {
            place::set_affinity(cpus).map_err(at(Step::Affinity))?;
        }
        if let Some(nodes) = &self.order.nodes {
            place::bind_memory(nodes).map_err(at(Step::MemoryPolicy))?;
        }
        let started = spawn(&self.order, &self.signals, stdin);
        if let (Some(_), Ok(own_place)) = (&self.order.cpus, own_place) {
            // Otherwise the keeper would use the command's CPU. If this fails, the keeper still sleeps most
            // of the time.
            let _ = place::set_affinity(&own_place);
        }
        let (pid, note) = started.map_err(at(Step::Exec))?;
        // Releases the working directory's mount and the ends of the command's pipes.
        let _ = std::env::set_current_dir("/");
        let _ = let_go_of_output();
        self.main = Some(Main { pid, ended_ns: None });
        self.phase =
            Phase::Running { until: self.order.limit_ns.map(|limit| note.start_ns.saturating_add(limit)) };
        Ok(Report::Started { pid, start_ns: note.start_ns, floor_bytes: note.floor_bytes })
    }

    /// Runs until no process is left; returns the names of the processes that could not be ended.
    fn watch(&mut self) -> Vec<String> {
        loop {
            let left = self.main.is_some() && self.reap();
            let idle = self.main.is_none() && self.ended.is_none();
            if !left && !idle {
                return Vec::new();
            }
            let now = monotonic_ns();
            if let Phase::Killing { until } = self.phase
                && now >= until
            {
                return self.names();
            }
            self.advance(now);
            self.sleep(now);
        }
    }

    /// Reaps the processes that have ended. False if there is no child left; then no process of the command
    /// is left either.
    fn reap(&mut self) -> bool {
        loop {
            let (pid, status, usage) = match wait_any() {
                Waited::Ended(pid, status, usage) => (pid, status, usage),
                Waited::NotYet => return true,
                Waited::Nobody => return false,
            };
            let now = monotonic_ns();
            self.usage.add(&usage);
            self.asked.remove(&pid);
            if let Some(main) = &mut self.main
                && main.pid == pid
                && main.ended_ns.is_none()
            {
                main.ended_ns = Some(now);
                if self.ended.is_none() {
                    self.phase = Phase::Lingering { until: now + LINGER_NS };
                }
                self.report(&Report::Exited {
                    status,
                    end_ns: now,
                    ended: self.ended.unwrap_or(Ended::Itself),
                });
            }
        }
    }

    fn advance(&mut self, now: u64) {
        let outlived = self.main.and_then(|main| main.ended_ns).is_some_and(|ended| now >= ended + LINGER_NS);
        if outlived && self.left_behind.is_empty() {
            self.left_behind = self.names();
        }
        match self.phase {
            Phase::Running { until: Some(until) } if now >= until => self.end(Ended::Limit, now),
            Phase::Lingering { until } if now >= until => self.end(Ended::Itself, now),
            Phase::Asking { until } if now >= until => self.phase = killing(now),
            _ => {}
        }
        match self.phase {
            Phase::Running { .. } | Phase::Lingering { .. } => {}
            Phase::Asking { .. } => self.ask(),
            Phase::Killing { .. } => self.signal_children(Signal::KILL),
        }
    }

    /// Ends everything from now on. The first cause is kept, and the deadline never moves back.
    fn end(&mut self, by: Ended, now: u64) {
        self.ended.get_or_insert(by);
        let grace = match by {
            Ended::Gone => self.order.grace_ns.min(GRACE_WHEN_GONE_NS),
            _ => self.order.grace_ns,
        };
        self.phase = match self.phase {
            Phase::Killing { until } => Phase::Killing { until },
            Phase::Asking { until } => Phase::Asking { until: until.min(now + grace) },
            _ if grace == 0 => killing(now),
            _ => Phase::Asking { until: now + grace },
        };
    }

    fn children(&self) -> Vec<i32> {
        let own = std::process::id() as i32;
        let found = self.proc.children(own).unwrap_or_default();
        // If /proc shows no children, the command itself is still known.
        match self.main {
            Some(main) if main.ended_ns.is_none() && !found.contains(&main.pid) => vec![main.pid],
            _ => found,
        }
    }

    /// Sends SIGTERM once to each child, and SIGCONT so that stopped ones receive it.
    fn ask(&mut self) {
        for child in self.children() {
            if self.asked.insert(child) {
                signal(child, Signal::TERM);
                signal(child, Signal::CONT);
            }
        }
    }

    fn signal_children(&self, what: Signal) {
        for child in self.children() {
            signal(child, what);
        }
    }

    /// The names of all living processes except the command itself.
    fn names(&self) -> Vec<String> {
        let own = std::process::id() as i32;
        let mut pids = self.proc.descendants(own).unwrap_or_default();
        let main = self.main.filter(|main| main.ended_ns.is_none());
        pids.retain(|&pid| {
            self.proc.process_stat(pid).is_ok_and(|stat| !stat.ended())
                && main.is_none_or(|main| main.pid != pid)
        });
        let more = pids.len().saturating_sub(MOST_NAMES);
        let mut names: Vec<String> = pids[..pids.len() - more].iter().map(|&pid| self.name(pid)).collect();
        if more > 0 {
            names.push(format!("and {more} more"));
        }
        names
    }

    fn name(&self, pid: i32) -> String {
        let line = self.proc.cmdline(pid).unwrap_or_default().join(" ");
        let line = if line.is_empty() { self.proc.comm(pid).unwrap_or_default() } else { line };
        let cut: String = line.chars().take(LONGEST_NAME).collect();
        let dots = if cut.len() < line.len() { "…" } else { "" };
        format!("{cut}{dots} (pid {pid})")
    }

    /// Sleeps until a child ends, the socket closes, a signal arrives or a deadline passes.
    fn sleep(&mut self, now: u64) {
        let until = match self.phase {
            Phase::Running { until } => until,
            Phase::Lingering { until } => Some(until),
            // See below.
            Phase::Asking { .. } | Phase::Killing { .. } => None,
        };
        let milliseconds = match self.phase {
            Phase::Asking { .. } | Phase::Killing { .. } => ROUND_MS,
            // Rounded up, so that the deadline has passed at the wakeup.
            _ => until.map_or(-1, |until| {
                i32::try_from(until.saturating_sub(now).div_ceil(1_000_000)).unwrap_or(i32::MAX)
            }),
        };
        let control = if self.gone { -1 } else { self.control.as_raw_fd() };
        let events = poll(self.signals.descriptor(), control, milliseconds);
        let now = monotonic_ns();
        while let Some(signal) = self.signals.next() {
            if signal != libc::SIGCHLD {
                self.end(Ended::Signal(signal), now);
            }
        }
        if events.closed {
            self.gone = true;
            self.end(if events.hung_up { Ended::Gone } else { Ended::Asked }, now);
        }
    }
}

fn killing(now: u64) -> Phase {
    Phase::Killing { until: now + GIVE_UP_NS }
}

/// Signals our own child, which is not reaped yet, so the pid can't be reused. A child that may not be
/// signalled is reported as stuck later.
fn signal(child: i32, what: Signal) {
    if let Some(pid) = Pid::from_raw(child) {
        let _ = kill_process(pid, what);
    }
}

/// What the child writes right before its exec.
struct Note {
    start_ns: u64,
    floor_bytes: u64,
}

fn spawn(order: &Order, signals: &Signals, stdin: Stdio) -> io::Result<(i32, Note)> {
    let (program, args) = order.command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let mut command = Command::new(program);
    command.args(args).stdin(stdin);
    for (name, value) in &order.env {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let (mut reader, writer) = io::pipe()?;
    let note = writer.as_raw_fd();
    // The first use of the clock initialises it; that must happen before the fork.
    let before_fork = monotonic_ns();
    let keeper = rustix::process::getpid();
    let mask = signals.before;
    let open_files = order.open_files.map(|(current, maximum)| Rlimit { current, maximum });
    // SAFETY: between fork and exec the closure makes only bare system calls (setsid, prctl, getppid,
    // setrlimit, pthread_sigmask, getrusage, clock_gettime, write). It uses its own values and a descriptor
    // that stays open until the child has passed this point.
    unsafe {
        command.pre_exec(move || {
            // A new session: the child leads its own process group, and no terminal can stop it.
            rustix::process::setsid()?;
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
            // The keeper may have died before the prctl.
            if rustix::process::getppid() != Some(keeper) {
                return Err(io::Error::from_raw_os_error(libc::ECANCELED));
            }
            if let Some(limit) = open_files {
                // If this fails, the command keeps the raised limit and runs all the same.
                let _ = setrlimit(Resource::Nofile, limit);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, &mask, std::ptr::null_mut());
            let mut usage: libc::rusage = std::mem::zeroed();
            libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
            let words = [usage.ru_maxrss as u64, monotonic_ns()];
            let bytes = size_of_val(&words);
            if libc::write(note, words.as_ptr().cast(), bytes) != bytes as isize {
                return Err(io::Error::last_os_error());
            }
            Ok(())
        });
    }
    let child = command.spawn()?;
    let mut words = [[0u8; 8]; 2];
    reader.read_exact(words.as_flattened_mut())?;
    let start_ns = u64::from_ne_bytes(words[1]);
    debug_assert!(start_ns >= before_fork);
    Ok((
        child.id() as i32,
        Note { floor_bytes: (u64::from_ne_bytes(words[0]) << 10) + uncounted_bytes(), start_ns },
    ))
}

/// The most that a peak of this kernel lacks. It counts resident pages per CPU, and a peak omits those that are not summed up yet: for
/// each CPU and type of page fewer than 32, or than twice the number of CPUs (percpu_counter_batch, since Linux 6.2). A process before its
/// exec has pages of files and of its own, and has seldom run on more than two CPUs. That leaves room for the code of the exec itself,
/// which is mapped after the note.
fn uncounted_bytes() -> u64 {
    let cpus = topology::online_cpus(Path::new("/sys")).map_or(1, |cpus| cpus.len() as u64);
    2 * 2 * (2 * cpus).max(32) * rustix::param::page_size() as u64
}

/// Redirects the keeper's standard output and error to /dev/null. They belong to the command: their readers
/// must see the end of file when the command ends.
fn let_go_of_output() -> io::Result<()> {
    let null = File::options().write(true).open("/dev/null")?;
    for descriptor in [1, 2] {
        // SAFETY: takes descriptor numbers and no memory. dup2 closes the old descriptor, as intended.
        if unsafe { libc::dup2(null.as_raw_fd(), descriptor) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

enum Waited {
    Ended(i32, i32, libc::rusage),
    NotYet,
    Nobody,
}

fn wait_any() -> Waited {
    loop {
        let mut status = 0;
        // SAFETY: an all-zero rusage is a valid value.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: both values are live during the call, which fills them.
        let pid = unsafe { libc::wait4(-1, &mut status, libc::WNOHANG | libc::__WALL, &mut usage) };
        match pid {
            0 => return Waited::NotYet,
            1.. => return Waited::Ended(pid, status, usage),
            _ if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
            _ => return Waited::Nobody,
        }
    }
}

/// Signals as a descriptor to poll; no signal interrupts a system call.
struct Signals {
    descriptor: OwnedFd,
    before: libc::sigset_t,
}

impl Signals {
    fn block() -> io::Result<Signals> {
        // SAFETY: all-zero sigset_t values are valid, and the calls fill them. SIGCHLD gets its default
        // action, which runs no handler: if a parent left it ignored, the kernel would reap the children. The
        // new descriptor is checked before it is owned.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            let mut before: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            for signal in [libc::SIGCHLD, libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT] {
                libc::sigaddset(&mut set, signal);
            }
            libc::signal(libc::SIGCHLD, libc::SIG_DFL);
            let error = libc::pthread_sigmask(libc::SIG_BLOCK, &set, &mut before);
            if error != 0 {
                return Err(io::Error::from_raw_os_error(error));
            }
            let descriptor = libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
            if descriptor < 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(Signals { descriptor: OwnedFd::from_raw_fd(descriptor), before })
        }
    }

    fn descriptor(&self) -> RawFd {
        self.descriptor.as_raw_fd()
    }

    fn next(&self) -> Option<i32> {
        let mut bytes = [0u8; size_of::<libc::signalfd_siginfo>()];
        match rustix::io::read(&self.descriptor, &mut bytes) {
            // ssi_signo is the first field: signalfd(2).
            Ok(length) if length == bytes.len() => {
                Some(i32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
            }
            _ => None,
        }
    }
}

struct Events {
    /// The other end will send nothing more.
    closed: bool,
    /// The other end will not read either: it is gone.
    hung_up: bool,
}

/// Waits for either descriptor, at most this many milliseconds; -1 waits forever. A descriptor of -1 is
/// ignored.
fn poll(signals: RawFd, control: RawFd, milliseconds: i32) -> Events {
    let mut polled = [
        libc::pollfd { fd: signals, events: libc::POLLIN, revents: 0 },
        libc::pollfd { fd: control, events: libc::POLLRDHUP, revents: 0 },
    ];
    // SAFETY: `polled` holds two live pollfds.
    unsafe { libc::poll(polled.as_mut_ptr(), 2, milliseconds) };
    let control = polled[1].revents;
    Events {
        closed: control & (libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR) != 0,
        hung_up: control & libc::POLLHUP != 0,
    }
}

/// allocwall's side of a keeper.
pub struct Link {
    process: std::process::Child,
    control: UnixStream,
}

impl Link {
    /// Starts `keeper_exe keep` and sends it the order.
    ///
    /// # Errors
    /// The keeper can't be started, or ended before it read its order.
    pub fn start(keeper_exe: &Path, order: &Order, stdout: Stdio, stderr: Stdio) -> io::Result<Link> {
        let (ours, theirs) = UnixStream::pair()?;
        let process = Command::new(keeper_exe)
            .arg("keep")
            .stdin(OwnedFd::from(theirs))
            .stdout(stdout)
            .stderr(stderr)
            .spawn()?;
        let mut link = Link { process, control: ours };
        let mut line = serde_json::to_vec(order)?;
        line.push(b'\n');
        match link.control.write_all(&line) {
            Ok(()) => Ok(link),
            Err(error) => {
                link.kill();
                Err(error)
            }
        }
    }

    /// For a keeper that has started no command yet. A keeper whose command failed to start gets time to
    /// clean up.
    pub fn kill(&mut self) {
        self.ask_to_end();
        for _ in 0..100 {
            if !matches!(self.process.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    pub fn pid(&self) -> i32 {
        self.process.id() as i32
    }

    /// Each `next` blocks until a report arrives; None when the keeper has ended.
    pub fn reports(&self) -> io::Result<impl Iterator<Item = Report> + Send + use<>> {
        let lines = BufReader::new(self.control.try_clone()?).lines();
        Ok(lines.map_while(|line| line.ok()).map_while(|line| serde_json::from_str(&line).ok()))
    }

    /// Asks the keeper to end everything. The keeper reports the result.
    pub fn ask_to_end(&self) {
        // An error means that the keeper has ended or is ending.
        let _ = self.control.shutdown(std::net::Shutdown::Write);
    }

    /// Waits for the keeper's own end. Returns a text if it ended abnormally.
    pub fn finish(&mut self) -> Option<String> {
        match self.process.wait() {
            Ok(status) if status.success() => None,
            Ok(status) => Some(status.to_string()),
            Err(error) => Some(error.to_string()),
        }
    }
}

/// The limit of open files that a command gets: the limit that allocwall itself was started with.
pub fn open_files_before() -> Option<(Option<u64>, Option<u64>)> {
    limits::before().map(|limit| (limit.current, limit.maximum))
}

/// A pipe of one megabyte, if the kernel permits it, so that a command does not wait until allocwall is
/// scheduled.
pub fn roomy_pipe() -> io::Result<(PipeReader, PipeWriter)> {
    let (reader, writer) = io::pipe()?;
    // SAFETY: passes a number for an open descriptor. If the kernel refuses, the pipe keeps its usual size.
    unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_SETPIPE_SZ, 1 << 20) };
    Ok((reader, writer))
}

/// Kills the marked processes repeatedly until none is found: a process may start others while it is being
/// killed.
pub fn sweep(name: &str, value: &str) {
    for _ in 0..200 {
        if kill_marked(name, value) == 0 {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Kills every process that was started with `name=value` in its environment, for the case that a keeper
/// itself was killed. It does not find processes that replaced their environment, nor processes that this
/// user may not read.
fn kill_marked(name: &str, value: &str) -> u32 {
    let proc = ProcFs::live();
    let own = std::process::id() as i32;
    let marked = |pid: i32| {
        let environ = proc.environ(pid).unwrap_or_default();
        environ.iter().any(|(n, v)| n == name && v == value)
    };
    let mut killed = 0;
    for pid in proc.pids().unwrap_or_default() {
        let Some(number) = Pid::from_raw(pid).filter(|_| pid != own && marked(pid)) else {
            continue;
        };
        // The process is held by its pidfd and checked again, because the pid may have been reused.
        let held = rustix::process::pidfd_open(number, rustix::process::PidfdFlags::empty());
        if let Ok(held) = held
            && marked(pid)
            && rustix::process::pidfd_send_signal(&held, Signal::KILL).is_ok()
        {
            killed += 1;
        }
    }
    killed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_folder_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        std::fs::create_dir_all(path.join("deep")).unwrap();
        let folder = Folder::of(&path).unwrap();
        std::fs::rename(&path, dir.path().join("b")).unwrap();
        assert!(folder.remove().is_ok(), "a folder that is gone is not an error");
        std::fs::create_dir(&path).unwrap();
        assert!(folder.remove().is_err());
        assert!(path.is_dir());
        std::fs::remove_dir(&path).unwrap();
        std::os::unix::fs::symlink(dir.path().join("b"), &path).unwrap();
        assert!(folder.remove().is_err() && Folder::of(&path).is_err());
        assert!(dir.path().join("b/deep").is_dir());
        std::fs::remove_file(&path).unwrap();
        std::fs::rename(dir.path().join("b"), &path).unwrap();
        folder.remove().unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn orders_and_reports_survive_encoding() {
        use std::os::unix::ffi::OsStringExt;
        let order = Order {
            command: vec![OsString::from_vec(b"a\n\xff".to_vec())],
            env: vec![("A".into(), Some("b\n".into())), ("B".into(), None)],
            open_files: Some((Some(1024), None)),
            limit_ns: Some(u64::MAX),
            ..Order::default()
        };
        let line = serde_json::to_vec(&order).unwrap();
        assert!(!line.contains(&b'\n'));
        assert_eq!(serde_json::from_slice::<Order>(&line).unwrap(), order);
        let report = Report::Failed { step: Step::Exec, detail: "line\nline".into(), errno: Some(2) };
        let line = serde_json::to_vec(&report).unwrap();
        assert!(!line.contains(&b'\n'));
        assert_eq!(serde_json::from_slice::<Report>(&line).unwrap(), report);
    }

    #[test]
    fn a_request_to_end_and_a_closed_socket_are_distinguished() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let events = || poll(-1, theirs.as_raw_fd(), 0);
        assert!(!events().closed);
        ours.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(events().closed && !events().hung_up);
        drop(ours);
        assert!(events().closed && events().hung_up);
    }
}
