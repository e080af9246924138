//! Runs one command once: it is started the same way each time, measured from outside, and at the end it and all its child
//! processes are ended.

mod memory;
mod output;

pub use memory::{MemorySample, Walked};
pub use output::Tail;

use allocwall_host::clock::monotonic_ns;
use allocwall_host::keeper::{self, Ended, Folder, Link, Order, Report, Step, Usage};
use allocwall_host::proc::ProcFs;
use allocwall_host::program;
use allocwall_model::catalogue::modules::is_jemalloc_conf;
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

/// Environment variable of all processes that a run starts; each run has its own value. It finds the processes that remain if the
/// keeper was killed.
pub const MARK: &str = "ALLOCWALL_RUN";
/// Prefix of the padding variables.
const PAD: &str = "ALLOCWALL_PAD";
/// Timeout for the exec, which reads the program's first page, possibly from a network file system.
const START_PATIENCE: Duration = Duration::from_secs(60);
/// Pause between two checks for an interruption; the measured times do not depend on it.
const GLANCE: Duration = Duration::from_millis(50);
/// Timeout for the output. After the keeper's last report every pipe has ended, unless a process could not be ended.
const OUTPUT_PATIENCE: Duration = Duration::from_secs(1);

/// Prefixes of variables that a program with raised rights ignores (ld.so(8); secure_getenv in the allocators). For such a program
/// an arm that sets them would be the same as the baseline. Builds of jemalloc also ignore [`is_jemalloc_conf`].
const IGNORED_IF_SECURE: [&str; 6] =
    ["LD_", "GLIBC_TUNABLES", "MALLOC_", "MIMALLOC_", "TCMALLOC_", "ALLOCWALL_PREFAULT"];

/// How a command is started.
#[derive(Clone, Debug, PartialEq)]
pub struct Start {
    pub command: Vec<OsString>,
    /// Changes to our own environment; None removes a variable.
    pub env: Vec<(OsString, Option<OsString>)>,
    /// None: our working directory.
    pub cwd: Option<PathBuf>,
    /// CPUs that it may run on.
    pub cpus: Option<Vec<u32>>,
    /// NUMA nodes that its memory is bound to.
    pub nodes: Option<Vec<u32>>,
    /// See [`equalise`].
    pub pad: Pad,
    /// None: /dev/null.
    pub stdin: Option<PathBuf>,
    pub stdout: Output,
    pub stderr: Output,
    /// Time limit from the start; after it the command is ended.
    pub limit: Duration,
    /// Time from SIGTERM to SIGKILL if the command has to be ended. Zero: no SIGTERM.
    pub grace: Duration,
    /// A folder that is removed with its contents when the run is over or allocwall has ended.
    pub folder: Option<PathBuf>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Keep the last bytes of the output, at most this many.
    Keep(usize),
    /// Write to a new file, mode 0600; an existing file is refused.
    File(PathBuf),
    Nowhere,
}

/// Padding variables without meaning. With them the arguments and environment of all arms have the same size. The kernel puts both
/// above the stack, and their size changes the alignment of the stack and so the run time (Mytkowicz et al., ASPLOS 2009).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pad {
    pub variables: usize,
    /// Bytes in addition to the variables' names.
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

    /// The command, for messages. Untrusted text: escape it before printing.
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

    /// Number of argument and environment strings, and their bytes with terminators, without padding.
    fn room(&self) -> (usize, usize) {
        let mut env: BTreeMap<&OsStr, Option<&OsStr>> = BTreeMap::new();
        let inherited: Vec<_> = std::env::vars_os().filter(|(name, _)| !is_own(name)).collect();
        env.extend(inherited.iter().map(|(name, value)| (&name[..], Some(&value[..]))));
        env.extend(self.env.iter().map(|(name, value)| (&name[..], value.as_deref())));
        let variables = env.iter().filter_map(|(name, value)| Some(name.len() + 1 + (*value)?.len()));
        let lengths = self.command.iter().map(|word| word.len()).chain(variables);
        lengths.fold((0, 0), |(strings, bytes), length| (strings + 1, bytes + length + 1))
    }

    /// Refuses a program that gains rights when it is started, if the start sets preloads or tunables: the program would ignore
    /// them, and we may not be allowed to end it.
    ///
    /// # Errors
    /// `Refused`, with the reason.
    pub fn refuse_secure(&self) -> Result<()> {
        let is_ignored = |name: &OsStr| {
            IGNORED_IF_SECURE.iter().any(|start| name.as_bytes().starts_with(start.as_bytes()))
                || name.to_str().is_some_and(is_jemalloc_conf)
        };
        let ignored = self.env.iter().find(|(name, value)| value.is_some() && is_ignored(name));
        let (Some((name, _)), Some(command)) = (ignored, self.command.first()) else {
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
        // A program that can't be found or read fails to start, with the kernel's reason.
        let gains = program::find(command, path.as_deref(), &cwd)
            .ok()
            .and_then(|file| program::gains_rights(&file, &cwd).ok().flatten());
        match gains {
            Some((file, rights)) => Err(Error::Refused(format!(
                "{} {}, so it would ignore {}: apply the remedy to the program that it starts, as that program's user",
                file.display(),
                rights.sentence(),
                name.to_string_lossy()
            ))),
            None => Ok(()),
        }
    }

    fn order(&self, mark: &str) -> Result<Order> {
        if self.command.is_empty() {
            return Err(Error::Refused("no command given after --".into()));
        }
        let strings = self.env.iter().flat_map(|(name, value)| [Some(name), value.as_ref()]).flatten();
        if let Some(text) = self.command.iter().chain(strings).find(|text| text.as_bytes().contains(&0)) {
            return Err(Error::Refused(format!(
                "{:?} contains a NUL byte, which an argument or a variable can't have",
                text.to_string_lossy()
            )));
        }
        let odd = |name: &OsString| name.is_empty() || name.as_bytes().contains(&b'=');
        if let Some((name, _)) = self.env.iter().find(|(name, _)| odd(name)) {
            return Err(Error::Refused(format!(
                "{:?} is not a valid name of an environment variable",
                name.to_string_lossy()
            )));
        }
        self.refuse_secure()?;
        // A trial within a trial has its own mark and padding.
        let inherited = std::env::vars_os().map(|(name, _)| name).filter(|name| is_own(name));
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
            folder: folder
                .map_err(|cause| Error::File { path: self.folder.clone().unwrap_or_default(), cause })?,
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

/// Names of equal length, for up to 100 variables.
fn pad_name(n: usize) -> String {
    format!("{PAD}{n:02}")
}

/// Sets the padding so that arguments and environment have the same number of strings and bytes in all starts.
pub fn equalise<'a>(starts: impl IntoIterator<Item = &'a mut Start>) {
    let starts: Vec<&mut Start> = starts.into_iter().collect();
    // `NAME=` and the terminator.
    let own = pad_name(0).len() + 2;
    let rooms: Vec<(usize, usize)> = starts.iter().map(|start| start.room()).collect();
    let most = rooms.iter().map(|room| room.0).max().unwrap_or(0);
    let padded = |room: &(usize, usize)| {
        let variables = most - room.0 + 1;
        (variables, room.1 + variables * own)
    };
    let largest = rooms.iter().map(|room| padded(room).1).max().unwrap_or(0);
    for (start, room) in starts.into_iter().zip(&rooms) {
        let (variables, bytes) = padded(room);
        start.pad = Pad { variables, bytes: largest - bytes };
    }
}

/// A running command. Dropping it ends the command.
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
    /// The last report, if it came before `wait`.
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

/// Starts the command under a keeper process; `keeper_exe` is the allocwall program.
///
/// # Errors
/// `Launch`: the error of exec. `File`: an output file can't be created. `Refused`: a CPU or node binding, a limit or the
/// environment can't be set as requested. After an error nothing runs.
pub fn start(start: &Start, keeper_exe: &Path) -> Result<Running> {
    let mark = new_mark();
    let order = start.order(&mark)?;
    let launch = |cause: io::Error| Error::Launch { command: start.shown(), cause };
    let (stdout_to, stdout) = outlet(&start.stdout)?;
    let (stderr_to, stderr) = outlet(&start.stderr)?;
    let mut link = Link::start(keeper_exe, &order, stdout_to, stderr_to)
        .map_err(|cause| Error::Launch { command: format!("{} keep", keeper_exe.display()), cause })?;
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
    let refused = |detail: String| Err(Error::Refused(format!("cannot start {}: {detail}", start.shown())));
    let begun = match reports.recv_timeout(START_PATIENCE) {
        Ok(Report::Started { pid, start_ns, floor_bytes }) => Ok((pid, start_ns, floor_bytes)),
        Ok(Report::Failed { step, detail, errno }) => match (step, errno) {
            (Step::Exec, Some(errno)) => Err(launch(io::Error::from_raw_os_error(errno))),
            _ => refused(format!("{}: {detail}", asked(step, start))),
        },
        Ok(_) => refused("its keeper process sent an unexpected report".into()),
        Err(RecvTimeoutError::Timeout) => {
            refused(format!("exec takes longer than {} s", START_PATIENCE.as_secs()))
        }
        Err(RecvTimeoutError::Disconnected) => refused("its keeper process has ended".into()),
    };
    let (pid, start_ns, floor_bytes) = match begun {
        Ok(begun) => begun,
        Err(error) => {
            // This also ends the child in its exec: the kernel kills it when the keeper dies.
            link.kill();
            return Err(error);
        }
    };
    let tree = Tree { keeper: link.pid(), main: pid, start_ns };
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

/// The step that failed, for a message.
fn asked(step: Step, start: &Start) -> String {
    let path = |path: &Option<PathBuf>| path.as_deref().unwrap_or(Path::new("")).display().to_string();
    match step {
        Step::Subreaper => {
            "its keeper process can't adopt orphaned processes (PR_SET_CHILD_SUBREAPER)".into()
        }
        Step::WorkingDirectory => format!("working directory {}", path(&start.cwd)),
        Step::Stdin => format!("standard input {}", path(&start.stdin)),
        Step::Affinity => format!("on CPUs {:?}", start.cpus.as_deref().unwrap_or_default()),
        Step::MemoryPolicy => {
            format!("memory from NUMA nodes {:?}", start.nodes.as_deref().unwrap_or_default())
        }
        Step::Exec => "exec".into(),
    }
}

fn outlet(output: &Output) -> Result<(Stdio, Option<Drain>)> {
    match output {
        Output::Nowhere => Ok((Stdio::null(), None)),
        Output::File(path) => {
            // Do not follow a symbolic link and do not overwrite a file.
            let file = File::options().write(true).create_new(true).mode(0o600).open(path);
            let file = file.map_err(|cause| Error::File { path: path.clone(), cause })?;
            Ok((file.into(), None))
        }
        Output::Keep(cap) => {
            let failed = |cause| Error::File { path: "pipe".into(), cause };
            let (reader, writer) = keeper::roomy_pipe().map_err(failed)?;
            let drain = Drain::start(reader, *cap).map_err(failed)?;
            Ok((writer.into(), Some(drain)))
        }
    }
}

impl Running {
    /// The pid of the command itself.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// The pid of the keeper. It adopts the orphaned processes of the run, waits for them, and ends them when it ends.
    pub fn keeper_pid(&self) -> i32 {
        self.link.pid()
    }

    /// All live processes of the run: the command, its descendants, and detached daemons.
    pub fn processes(&self) -> Vec<i32> {
        self.family().now()
    }

    /// The same, for use in another thread.
    pub fn family(&self) -> Family {
        Family { keeper: self.link.pid() }
    }

    /// Memory samples so far, oldest first.
    pub fn memory(&self) -> Vec<MemorySample> {
        self.watch.so_far().samples
    }

    /// Standard output and standard error so far; empty if they are not kept.
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

    /// Waits until the command has ended by itself, has reached its limit, or `interrupted` is set, which ends it.
    ///
    /// # Errors
    /// `Refused`: the keeper was killed. Then there are no measurements, and the processes that remain are ended.
    pub fn wait(mut self, interrupted: &AtomicBool) -> Result<Finished> {
        let mut stopped = false;
        loop {
            // Relaxed: the flag protects no other data.
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

    /// Stores the command's exit. Returns the last report.
    fn heard(&mut self, report: Report) -> Option<Over> {
        match report {
            Report::Exited { status, end_ns, ended } => {
                self.exited = Some(Exited { status, end_ns, ended });
                self.watch.stop();
                None
            }
            Report::Over { usage, left_behind, stuck, folder } => {
                Some(Over { usage, left_behind, stuck, folder })
            }
            Report::Ready | Report::Started { .. } | Report::Failed { .. } => None,
        }
    }

    /// Ends the command, with SIGTERM and its grace time first, and waits for its end.
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
                "{} can't be ended; still running: {}, pid {}",
                self.shown,
                over.stuck.join(", "),
                self.pid
            )));
        };
        let series = self.watch.so_far();
        let usage = over.usage;
        let largest = usage.largest_process_peak_rss_bytes;
        // Below this limit the peak may be that of the keeper: the kernel keeps the peak over an exec.
        let largest_process = (largest > self.floor_bytes).then_some(largest).ok_or_else(|| {
            Absence::new(
                Reason::TooLittle,
                format!(
                    "the peak is not above the {} KiB that a process may have before its exec",
                    self.floor_bytes >> 10
                ),
            )
        });
        let summary = series.summary(largest_process.clone());
        let output = |drain: &mut Option<Drain>| {
            let drain = drain.take();
            drain.map(|drain| drain.finish(OUTPUT_PATIENCE)).unwrap_or_default()
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
            final_lazy_free_bytes: summary.final_lazy_free_bytes,
            memory: series.samples,
            stdout: output(&mut self.stdout),
            stderr: output(&mut self.stderr),
            left_behind: over.left_behind,
            still_there: over.stuck.into_iter().chain(over.folder).collect(),
        })
    }

    /// The keeper was killed, and the command with it (PR_SET_PDEATHSIG). The remaining processes are found by their mark.
    fn lost(&mut self) -> Error {
        self.finished = true;
        let how = self.link.finish().unwrap_or_else(|| "no last report".into());
        self.watch.stop();
        keeper::sweep(MARK, &self.mark);
        let folder = self.folder.as_ref().and_then(|folder| folder.remove().err());
        let still =
            folder.map_or_else(String::new, |error| format!("; its folder could not be removed: {error}"));
        Error::Refused(format!(
            "the keeper process of {} was killed ({how}), so the run has no result; its processes were ended{still}",
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
        // The keeper ends after the grace time and its own timeout.
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

/// A finished run. Times and counts include the command and all its descendants; `wall_ns` is from the exec to the end of the
/// command itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finished {
    pub wall_ns: u64,
    /// The sum with `system_s` is exact. The split is an estimate of the kernel if it counts in ticks.
    pub user_s: f64,
    pub system_s: f64,
    pub exit: Exit,
    pub ended: Ended,
    pub minor_faults: u64,
    pub major_faults: u64,
    pub voluntary_switches: u64,
    pub involuntary_switches: u64,
    /// The kernel's exact peak, without the pages that its counters had not summed up yet (some hundred KiB).
    pub largest_process_peak_rss_bytes: Measured<u64>,
    /// The largest sampled sum over all processes, and at least the peak of the largest process.
    pub peak_rss_bytes: Measured<u64>,
    /// The largest sample.
    pub peak_pss_bytes: Measured<u64>,
    /// The last sample before the end; `memory` has its time.
    pub final_rss_bytes: Measured<u64>,
    pub final_pss_bytes: Measured<u64>,
    /// Part of the final resident memory: freed by the program (MADV_FREE), but not taken by the kernel yet.
    pub final_lazy_free_bytes: Measured<u64>,
    pub memory: Vec<MemorySample>,
    pub stdout: Tail,
    pub stderr: Tail,
    /// Command lines of processes that outlived the command and were ended. Untrusted text: escape it before printing.
    pub left_behind: Vec<String>,
    /// Processes that could not be ended and folders that could not be removed.
    pub still_there: Vec<String>,
}

impl Finished {
    pub fn timed_out(&self) -> bool {
        self.ended == Ended::Limit
    }

    /// Metrics by key. Times in seconds, memory in bytes; the rest are counts.
    pub fn metrics(&self) -> BTreeMap<String, Measured<f64>> {
        let wall = match self.ended {
            Ended::Itself => Ok(self.wall_ns as f64 / 1e9),
            by => Err(Absence::new(
                Reason::NotApplicable,
                match by {
                    Ended::Limit => "the run reached its time limit and was ended",
                    _ => "the run was ended from outside, so its wall time is not comparable",
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
            ("final_lazy_free_bytes", bytes(&self.final_lazy_free_bytes)),
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

/// Ends all processes with the guard's mark when it is dropped, or when allocwall has ended for any reason: a keeper process
/// without a command does it. The keeper also removes a folder.
pub struct Guard {
    link: Link,
    mark: String,
}

/// # Errors
/// The folder does not exist, or the keeper can't be started.
pub fn guard(folder: Option<&Path>, keeper_exe: &Path) -> Result<Guard> {
    let at = |path: &Path| {
        let path = path.to_owned();
        move |cause| Error::File { path, cause }
    };
    let mark = new_mark();
    let order = Order {
        folder: folder.map(|folder| Folder::of(folder).map_err(at(folder))).transpose()?,
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
        "{} keep failed to start, so processes could be left behind ({how})",
        keeper_exe.display()
    )))
}

impl Guard {
    /// The mark, for the environment of processes that are started without their own keeper.
    pub fn mark(&self) -> (OsString, OsString) {
        (MARK.into(), (&self.mark).into())
    }

    /// Kills all processes with the mark.
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
