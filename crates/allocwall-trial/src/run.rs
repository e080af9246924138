//! One command, once: started the same way each time, measured from outside, and gone afterwards with all that it started.

mod memory;
mod output;

pub use memory::{Look, Walked};
pub use output::Tail;

use allocwall_host::clock::monotonic_ns;
use allocwall_host::keeper::{self, Ended, Folder, Link, Order, Report, Step, Usage};
use allocwall_host::proc::ProcFs;
use allocwall_host::secure;
use allocwall_model::error::{Error, Result};
use allocwall_model::units::{Absence, Measured, Reason};
use memory::{Tree, Watch};
use output::Drain;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// In the environment of everything that a run starts, with a value of its own: what a killed keeper left is found by it.
pub const MARK: &str = "ALLOCWALL_RUN";
/// Starts the names of the variables that pad.
const PAD: &str = "ALLOCWALL_PAD";
/// exec reads the program's first page, over whatever network it lies on.
const START_PATIENCE: Duration = Duration::from_secs(60);
/// How often a wait looks at the interruption; the measured times do not depend on it.
const GLANCE: Duration = Duration::from_millis(50);
/// The kernel counts resident pages by CPU, and a peak leaves out what is not summed up yet: up to 32 pages a CPU and kind
/// of page (percpu_counter_batch, since Linux 6.2).
const COUNTER_SLACK: u64 = 128 << 10;
/// After the keeper's last report every pipe has ended, unless somebody could not be ended.
const OUTPUT_PATIENCE: Duration = Duration::from_secs(1);

/// Variables that a program with rights of its own ignores (ld.so(8); secure_getenv in the allocators), by how the names
/// start: with such a program an arm that sets them would be the baseline under another name.
const IGNORED_IF_SECURE: [&str; 8] = [
    "LD_",
    "GLIBC_TUNABLES",
    "MALLOC_",
    "_RJEM_MALLOC_",
    "JE_MALLOC_",
    "MIMALLOC_",
    "TCMALLOC_",
    "ALLOCWALL_PREFAULT",
];

/// How a command is started.
#[derive(Clone, Debug, PartialEq)]
pub struct Start {
    pub command: Vec<OsString>,
    /// Changes to our own environment; None takes a variable away.
    pub env: Vec<(OsString, Option<OsString>)>,
    /// Ours where there is none.
    pub cwd: Option<PathBuf>,
    /// CPUs that it may run on.
    pub cpus: Option<Vec<u32>>,
    /// NUMA nodes that its memory comes from.
    pub nodes: Option<Vec<u32>>,
    /// See [`equalise`].
    pub pad: Pad,
    /// /dev/null where there is none.
    pub stdin: Option<PathBuf>,
    pub stdout: Output,
    pub stderr: Output,
    /// From the start on; then it is ended.
    pub limit: Duration,
    /// From SIGTERM to SIGKILL, whenever it has to be ended. Zero sends no SIGTERM.
    pub grace: Duration,
    /// Removed with everything in it when the run is over, or we are gone.
    pub folder: Option<PathBuf>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Kept up to so many bytes; beyond, their end.
    Keep(usize),
    /// Written there, mode 0600; a file that is there already is refused.
    File(PathBuf),
    Nowhere,
}

/// Variables of no meaning, so that all arms' arguments and environment take the same room: it lies above the stack, and
/// its size alone moves the stack's alignment and with it run times (Mytkowicz et al., ASPLOS 2009).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pad {
    pub variables: usize,
    /// Beyond what the variables' names take.
    pub bytes: usize,
}

impl Start {
    pub fn new(command: Vec<OsString>, limit: Duration) -> Start {
        Start {
            command,
            env: Vec::new(),
            cwd: None,
            cpus: None,
            nodes: None,
            pad: Pad::default(),
            stdin: None,
            stdout: Output::Keep(1 << 20),
            stderr: Output::Keep(64 << 10),
            limit,
            grace: Duration::ZERO,
            folder: None,
        }
    }

    /// For messages. From outside: to be escaped.
    pub fn shown(&self) -> String {
        let words: Vec<_> = self.command.iter().map(|word| word.to_string_lossy()).collect();
        words.join(" ")
    }

    fn pads(&self) -> impl Iterator<Item = (OsString, Option<OsString>)> {
        let bytes = self.pad.bytes;
        (0..self.pad.variables).map(move |n| {
            let value = if n == 0 { "x".repeat(bytes) } else { String::new() };
            (pad_name(n).into(), Some(value.into()))
        })
    }

    /// Strings of arguments and environment, and bytes with each one's end, as they will be without pads.
    fn room(&self) -> (usize, usize) {
        let mut env: BTreeMap<&OsStr, Option<&OsStr>> = BTreeMap::new();
        let inherited: Vec<_> = std::env::vars_os().filter(|(name, _)| !is_own(name)).collect();
        env.extend(
            inherited
                .iter()
                .map(|(name, value)| (&name[..], Some(&value[..]))),
        );
        env.extend(self.env.iter().map(|(name, value)| (&name[..], value.as_deref())));
        let variables = env
            .iter()
            .filter_map(|(name, value)| Some(name.len() + 1 + (*value)?.len()));
        let lengths = self.command.iter().map(|word| word.len()).chain(variables);
        lengths.fold((0, 0), |(strings, bytes), length| {
            (strings + 1, bytes + length + 1)
        })
    }

    /// A program that gains rights when it is started ignores what an arm asks by preload or tunables, and may not be
    /// ended by us: it is refused where the start asks so.
    ///
    /// # Errors
    /// `Refused`, with the reason.
    pub fn refuse_secure(&self) -> Result<()> {
        let ignored = self
            .env
            .iter()
            .filter(|(_, value)| value.is_some())
            .find(|(name, _)| {
                IGNORED_IF_SECURE
                    .iter()
                    .any(|start| name.as_bytes().starts_with(start.as_bytes()))
            });
        let (Some((name, _)), Some(program)) = (ignored, self.command.first()) else {
            return Ok(());
        };
        let cwd = match &self.cwd {
            Some(cwd) => cwd.clone(),
            None => std::env::current_dir().unwrap_or_default(),
        };
        let changed = self.env.iter().rev().find(|(name, _)| name == "PATH");
        let path = match changed {
            Some((_, value)) => value.clone(),
            None => std::env::var_os("PATH"),
        };
        // What can't be found or looked at fails to start, with the kernel's own reason.
        let said = secure::program(program, path.as_deref(), &cwd)
            .and_then(|file| secure::gains_rights(&file, &cwd));
        match said {
            Ok(Some(reason)) => Err(Error::Refused(format!(
                "{reason}, so it would ignore {}: try the remedy on the program that it starts, run as its user",
                name.to_string_lossy()
            ))),
            _ => Ok(()),
        }
    }

    fn order(&self, mark: &str) -> Result<Order> {
        if self.command.is_empty() {
            return Err(Error::Refused("no command given after --".into()));
        }
        let strings = self
            .env
            .iter()
            .flat_map(|(name, value)| [Some(name), value.as_ref()])
            .flatten();
        if let Some(text) = self
            .command
            .iter()
            .chain(strings)
            .find(|text| text.as_bytes().contains(&0))
        {
            return Err(Error::Refused(format!(
                "{:?} has a NUL byte in it, which no program can be given",
                text.to_string_lossy()
            )));
        }
        let odd = |name: &OsString| name.is_empty() || name.as_bytes().contains(&b'=');
        if let Some((name, _)) = self.env.iter().find(|(name, _)| odd(name)) {
            return Err(Error::Refused(format!(
                "{:?} is no name of an environment variable",
                name.to_string_lossy()
            )));
        }
        self.refuse_secure()?;
        // A trial within a trial has its own.
        let inherited = std::env::vars_os()
            .map(|(name, _)| name)
            .filter(|name| is_own(name));
        let mut env: Vec<_> = inherited.map(|name| (name, None)).collect();
        env.extend_from_slice(&self.env);
        env.push((MARK.into(), Some(mark.into())));
        env.extend(self.pads());
        let folder = self.folder.as_deref().map(Folder::of).transpose();
        Ok(Order {
            command: self.command.clone(),
            env,
            cwd: self.cwd.clone(),
            stdin: self.stdin.clone(),
            cpus: self.cpus.clone(),
            nodes: self.nodes.clone(),
            open_files: keeper::open_files_before(),
            limit_ns: Some(nanoseconds(self.limit)),
            grace_ns: nanoseconds(self.grace),
            folder: folder.map_err(|cause| Error::File {
                path: self.folder.clone().unwrap_or_default(),
                cause,
            })?,
            marked: None,
        })
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn is_own(name: &OsStr) -> bool {
    let name = name.as_bytes();
    name == MARK.as_bytes() || name.starts_with(PAD.as_bytes())
}

/// Names of one length, up to a hundred.
fn pad_name(n: usize) -> String {
    format!("{PAD}{n:02}")
}

/// Sets the pads so that arguments and environment have as many strings and as many bytes in all of these.
pub fn equalise(starts: &mut [Start]) {
    // `NAME=` and the end.
    let own = pad_name(0).len() + 2;
    let rooms: Vec<(usize, usize)> = starts.iter().map(Start::room).collect();
    let most = rooms.iter().map(|room| room.0).max().unwrap_or(0);
    let padded = |room: &(usize, usize)| {
        let variables = most - room.0 + 1;
        (variables, room.1 + variables * own)
    };
    let largest = rooms.iter().map(|room| padded(room).1).max().unwrap_or(0);
    for (start, room) in starts.iter_mut().zip(&rooms) {
        let (variables, bytes) = padded(room);
        start.pad = Pad {
            variables,
            bytes: largest - bytes,
        };
    }
}

/// A command that runs. Dropped, it is ended.
pub struct Running {
    shown: String,
    mark: String,
    folder: Option<Folder>,
    link: Link,
    reports: Receiver<Report>,
    pid: i32,
    start_ns: u64,
    floor_bytes: u64,
    exited: Option<Exited>,
    /// The last report, where it came before anybody waited.
    early: Option<Over>,
    watch: Watch,
    stdout: Option<Drain>,
    stderr: Option<Drain>,
    finished: bool,
}

/// A run's processes.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    keeper: i32,
}

impl Family {
    pub fn now(self) -> Vec<i32> {
        let proc = ProcFs::live();
        let mut pids = proc.descendants(self.keeper).unwrap_or_default();
        pids.retain(|&pid| proc.process_stat(pid).is_ok_and(|stat| !stat.ended()));
        pids
    }
}

#[derive(Clone, Copy)]
struct Exited {
    status: i32,
    end_ns: u64,
    ended: Ended,
}

fn new_mark() -> String {
    format!("{:08x}{:016x}", std::process::id(), monotonic_ns())
}

/// Starts the command under a keeper: `keeper_exe` is this program.
///
/// # Errors
/// `Launch` with exec's own error; `File` where a file to write to can't be made; `Refused` where a place, a limit or the
/// environment can't be as asked. Then nothing runs.
pub fn start(start: &Start, keeper_exe: &Path) -> Result<Running> {
    let mark = new_mark();
    let order = start.order(&mark)?;
    let launch = |cause: io::Error| Error::Launch {
        command: start.shown(),
        cause,
    };
    let (stdout_to, stdout) = outlet(&start.stdout)?;
    let (stderr_to, stderr) = outlet(&start.stderr)?;
    let mut link = Link::start(keeper_exe, &order, stdout_to, stderr_to).map_err(|cause| Error::Launch {
        command: format!("{} keep", keeper_exe.display()),
        cause,
    })?;
    let incoming = link.reports().map_err(launch)?;
    let (sender, reports) = channel();
    let listening = std::thread::Builder::new().spawn(move || {
        for report in incoming {
            if sender.send(report).is_err() {
                break;
            }
        }
    });
    if let Err(cause) = listening {
        link.kill();
        return Err(launch(cause));
    }
    let refused = |detail: String| {
        Err(Error::Refused(format!(
            "cannot start {}: {detail}",
            start.shown()
        )))
    };
    let begun = match reports.recv_timeout(START_PATIENCE) {
        Ok(Report::Started {
            pid,
            start_ns,
            floor_bytes,
        }) => Ok((pid, start_ns, floor_bytes)),
        Ok(Report::Failed { step, detail, errno }) => match (step, errno) {
            (Step::Exec, Some(errno)) => Err(launch(io::Error::from_raw_os_error(errno))),
            _ => refused(format!("{}: {detail}", asked(step, start))),
        },
        Ok(_) => refused("its keeper answers out of turn".into()),
        Err(RecvTimeoutError::Timeout) => {
            refused(format!("exec takes longer than {} s", START_PATIENCE.as_secs()))
        }
        Err(RecvTimeoutError::Disconnected) => refused("its keeper has ended".into()),
    };
    let (pid, start_ns, floor_bytes) = match begun {
        Ok(begun) => begun,
        Err(error) => {
            // The child in its exec, too: it dies of the keeper's death.
            link.kill();
            return Err(error);
        }
    };
    let tree = Tree {
        keeper: link.pid(),
        main: pid,
        start_ns,
    };
    let watch = match Watch::start(tree) {
        Ok(watch) => watch,
        Err(cause) => {
            link.kill();
            return Err(launch(cause));
        }
    };
    Ok(Running {
        shown: start.shown(),
        mark,
        folder: order.folder,
        link,
        reports,
        pid,
        start_ns,
        floor_bytes,
        exited: None,
        early: None,
        watch,
        stdout,
        stderr,
        finished: false,
    })
}

/// What a step was about, for a message.
fn asked(step: Step, start: &Start) -> String {
    let path = |path: &Option<PathBuf>| path.as_deref().unwrap_or(Path::new("")).display().to_string();
    match step {
        Step::Subreaper => "its keeper can't adopt what it leaves (PR_SET_CHILD_SUBREAPER)".into(),
        Step::WorkingDirectory => format!("working directory {}", path(&start.cwd)),
        Step::Stdin => format!("standard input {}", path(&start.stdin)),
        Step::Affinity => format!("on CPUs {:?}", start.cpus.as_deref().unwrap_or_default()),
        Step::MemoryPolicy => format!(
            "memory from NUMA nodes {:?}",
            start.nodes.as_deref().unwrap_or_default()
        ),
        Step::Exec => "exec".into(),
    }
}

fn outlet(output: &Output) -> Result<(Stdio, Option<Drain>)> {
    match output {
        Output::Nowhere => Ok((Stdio::null(), None)),
        Output::File(path) => {
            // Neither through a link nor over anything that is there.
            let file = File::options()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(path);
            let file = file.map_err(|cause| Error::File {
                path: path.clone(),
                cause,
            })?;
            Ok((file.into(), None))
        }
        Output::Keep(cap) => {
            let failed = |cause| Error::File {
                path: "pipe".into(),
                cause,
            };
            let (reader, writer) = keeper::roomy_pipe().map_err(failed)?;
            let drain = Drain::start(reader, *cap).map_err(failed)?;
            Ok((writer.into(), Some(drain)))
        }
    }
}

impl Running {
    /// Of the command itself.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Of the keeper: whatever of the run is left by its parent ends with it, and is waited for there.
    pub fn keeper_pid(&self) -> i32 {
        self.link.pid()
    }

    /// Everything of it that lives now: the command, what it started, and daemons that left it.
    pub fn processes(&self) -> Vec<i32> {
        self.family().now()
    }

    /// The same for whoever looks from another thread.
    pub fn family(&self) -> Family {
        Family {
            keeper: self.link.pid(),
        }
    }

    /// Memory so far, oldest first.
    pub fn memory(&self) -> Vec<Look> {
        self.watch.so_far().looks
    }

    /// Standard output and standard error so far; empty where they are not kept.
    pub fn output(&self) -> (Tail, Tail) {
        let so_far = |drain: &Option<Drain>| drain.as_ref().map(Drain::so_far).unwrap_or_default();
        (so_far(&self.stdout), so_far(&self.stderr))
    }

    /// CLOCK_MONOTONIC of the start.
    pub fn start_ns(&self) -> u64 {
        self.start_ns
    }

    /// How the command itself ended, if it has.
    pub fn exited(&mut self) -> Option<Exit> {
        if self.exited.is_none()
            && self.early.is_none()
            && let Ok(report) = self.reports.try_recv()
        {
            self.early = self.heard(report);
        }
        self.exited.map(|exited| Exit::of(exited.status))
    }

    /// Until it has ended by itself, reached its limit, or `interrupted` is set, which ends it.
    ///
    /// # Errors
    /// `Refused` where the keeper was killed: then there are no measurements, and what it kept is ended here.
    pub fn wait(mut self, interrupted: &AtomicBool) -> Result<Finished> {
        let mut stopped = false;
        loop {
            // Relaxed: the flag carries nothing but itself.
            if !stopped && interrupted.load(Ordering::Relaxed) {
                stopped = true;
                self.link.ask_to_end();
            }
            if let Some(over) = self.early.take() {
                return self.finish(over);
            }
            match self.reports.recv_timeout(GLANCE) {
                Ok(report) => self.early = self.heard(report),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(self.lost()),
            }
        }
    }

    /// Keeps the command's end; the last report is handed on.
    fn heard(&mut self, report: Report) -> Option<Over> {
        match report {
            Report::Exited {
                status,
                end_ns,
                ended,
            } => {
                self.exited = Some(Exited {
                    status,
                    end_ns,
                    ended,
                });
                self.watch.stop();
                None
            }
            Report::Over {
                usage,
                left_behind,
                stuck,
                folder,
            } => Some(Over {
                usage,
                left_behind,
                stuck,
                folder,
            }),
            Report::Ready | Report::Started { .. } | Report::Failed { .. } => None,
        }
    }

    /// Ends it, politely for as long as its grace, and waits for that.
    ///
    /// # Errors
    /// As `wait`.
    pub fn end(self) -> Result<Finished> {
        self.wait(&AtomicBool::new(true))
    }

    fn finish(&mut self, over: Over) -> Result<Finished> {
        self.finished = true;
        self.link.finish();
        self.watch.stop();
        let Some(exited) = self.exited else {
            return Err(Error::Refused(format!(
                "{} cannot be ended; still there: {}, pid {}",
                self.shown,
                over.stuck.join(", "),
                self.pid
            )));
        };
        let series = self.watch.so_far();
        let usage = over.usage;
        let largest = usage.largest_process_peak_rss_bytes;
        // Up to there it is the keeper's image that was measured: the kernel carries a peak over an exec.
        let largest_process = (largest > self.floor_bytes + COUNTER_SLACK)
            .then_some(largest)
            .ok_or_else(|| {
                Absence::new(
                    Reason::TooLittle,
                    format!(
                        "its peak is not above the {} KiB that a process has here before its exec",
                        self.floor_bytes >> 10
                    ),
                )
            });
        let summary = series.summary(largest_process.clone());
        let output = |drain: &mut Option<Drain>| {
            let drain = drain.take();
            drain
                .map(|drain| drain.finish(OUTPUT_PATIENCE))
                .unwrap_or_default()
        };
        Ok(Finished {
            wall_ns: exited.end_ns.saturating_sub(self.start_ns),
            user_s: usage.user_ns as f64 / 1e9,
            system_s: usage.system_ns as f64 / 1e9,
            exit: Exit::of(exited.status),
            ended: exited.ended,
            minor_faults: usage.minor_faults,
            major_faults: usage.major_faults,
            voluntary_switches: usage.voluntary_switches,
            involuntary_switches: usage.involuntary_switches,
            largest_process_peak_rss_bytes: largest_process,
            peak_rss_bytes: summary.peak_rss_bytes,
            peak_pss_bytes: summary.peak_pss_bytes,
            final_rss_bytes: summary.final_rss_bytes,
            final_pss_bytes: summary.final_pss_bytes,
            memory: series.looks,
            stdout: output(&mut self.stdout),
            stderr: output(&mut self.stderr),
            left_behind: over.left_behind,
            still_there: over.stuck.into_iter().chain(over.folder).collect(),
        })
    }

    /// The keeper was killed, and the command with it (PR_SET_PDEATHSIG); whatever else it kept is found by its mark.
    fn lost(&mut self) -> Error {
        self.finished = true;
        let how = self.link.finish().unwrap_or_else(|| "no last report".into());
        self.watch.stop();
        keeper::sweep(MARK, &self.mark);
        let folder = self.folder.as_ref().and_then(|folder| folder.remove().err());
        let still = folder.map_or_else(String::new, |error| {
            format!("; its folder could not be removed: {error}")
        });
        Error::Refused(format!(
            "the keeper of {} was killed ({how}), so the run counts for nothing; what it had started was ended{still}",
            self.shown
        ))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        self.link.ask_to_end();
        // It ends within its grace and the time in which it gives up.
        if self.link.finish().is_some() {
            keeper::sweep(MARK, &self.mark);
            if let Some(folder) = &self.folder {
                let _ = folder.remove();
            }
        }
    }
}

struct Over {
    usage: Usage,
    left_behind: Vec<String>,
    stuck: Vec<String>,
    folder: Option<String>,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Exit {
    Code(i32),
    Signal(i32),
}

impl Exit {
    fn of(status: i32) -> Exit {
        let status = ExitStatus::from_raw(status);
        match (status.code(), status.signal()) {
            (Some(code), _) => Exit::Code(code),
            (None, signal) => Exit::Signal(signal.unwrap_or(0)),
        }
    }

    pub fn success(self) -> bool {
        self == Exit::Code(0)
    }
}

impl std::fmt::Display for Exit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Exit::Code(code) => write!(f, "exit status {code}"),
            Exit::Signal(signal) => write!(f, "signal {signal}"),
        }
    }
}

/// A run that is over. Times and counts are of the command and everything that it started, `wall_ns` is from the exec to
/// the end of the command itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finished {
    pub wall_ns: u64,
    /// The sum with `system_s` is exact, the split is the kernel's estimate where it counts in ticks.
    pub user_s: f64,
    pub system_s: f64,
    pub exit: Exit,
    pub ended: Ended,
    pub minor_faults: u64,
    pub major_faults: u64,
    pub voluntary_switches: u64,
    pub involuntary_switches: u64,
    /// The kernel's own, of every moment; short by the pages that its counters had not summed up yet, some hundred KiB.
    pub largest_process_peak_rss_bytes: Measured<u64>,
    /// Of all processes together at one moment as far as that was looked at, and at least the largest process's own.
    pub peak_rss_bytes: Measured<u64>,
    /// Largest that was looked at.
    pub peak_pss_bytes: Measured<u64>,
    /// The last look before the end; `memory` says when that was.
    pub final_rss_bytes: Measured<u64>,
    pub final_pss_bytes: Measured<u64>,
    pub memory: Vec<Look>,
    pub stdout: Tail,
    pub stderr: Tail,
    /// What outlived the command and was ended, by command line. From outside: to be escaped.
    pub left_behind: Vec<String>,
    /// What could not be ended or removed.
    pub still_there: Vec<String>,
}

impl Finished {
    pub fn timed_out(&self) -> bool {
        self.ended == Ended::Limit
    }

    /// By key. Times in seconds, memory in bytes; the rest are counts.
    pub fn metrics(&self) -> BTreeMap<String, Measured<f64>> {
        let wall = match self.ended {
            Ended::Itself => Ok(self.wall_ns as f64 / 1e9),
            by => Err(Absence::new(
                Reason::NotApplicable,
                match by {
                    Ended::Limit => "it reached its time limit and was ended",
                    _ => "it was ended from outside, so its length says nothing",
                },
            )),
        };
        let bytes = |value: &Measured<u64>| value.clone().map(|bytes| bytes as f64);
        let count = |value: u64| Ok(value as f64);
        [
            ("wall_s", wall),
            ("cpu_s", Ok(self.user_s + self.system_s)),
            ("user_s", Ok(self.user_s)),
            ("system_s", Ok(self.system_s)),
            ("peak_rss_bytes", bytes(&self.peak_rss_bytes)),
            ("peak_pss_bytes", bytes(&self.peak_pss_bytes)),
            ("final_rss_bytes", bytes(&self.final_rss_bytes)),
            ("final_pss_bytes", bytes(&self.final_pss_bytes)),
            ("minor_faults", count(self.minor_faults)),
            ("major_faults", count(self.major_faults)),
            ("voluntary_switches", count(self.voluntary_switches)),
            ("involuntary_switches", count(self.involuntary_switches)),
        ]
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value))
        .collect()
    }
}

/// Whatever was started with the guard's mark is ended when this is dropped, or we are gone however that came: a keeper without a
/// command sees to it. So it does to a folder, which it removes.
pub struct Guard {
    link: Link,
    mark: String,
}

/// # Errors
/// There is no such folder, or the keeper can't be started.
pub fn guard(folder: Option<&Path>, keeper_exe: &Path) -> Result<Guard> {
    let at = |path: &Path| {
        let path = path.to_owned();
        move |cause| Error::File { path, cause }
    };
    let mark = new_mark();
    let order = Order {
        folder: folder
            .map(|folder| Folder::of(folder).map_err(at(folder)))
            .transpose()?,
        marked: Some((MARK.to_owned(), mark.clone())),
        ..Order::default()
    };
    let link = Link::start(keeper_exe, &order, Stdio::null(), Stdio::null()).map_err(at(keeper_exe))?;
    let ready = link.reports().map_err(at(keeper_exe))?.next();
    let mut guard = Guard { link, mark };
    if ready == Some(Report::Ready) {
        return Ok(guard);
    }
    let how = guard.link.finish().unwrap_or_default();
    Err(Error::Refused(format!(
        "{} keep does not keep what is started ({how})",
        keeper_exe.display()
    )))
}

impl Guard {
    /// For the environment of what is started without a keeper of its own.
    pub fn mark(&self) -> (OsString, OsString) {
        (MARK.into(), (&self.mark).into())
    }

    /// Kills what was started with the mark.
    pub fn sweep(&self) {
        keeper::sweep(MARK, &self.mark);
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.link.ask_to_end();
        self.link.finish();
    }
}
