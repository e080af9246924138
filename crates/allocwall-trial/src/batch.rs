//! A command that runs to its end: its wall time, CPU time, memory, faults, switches, and the figures that it prints.

use super::account::{Reader, Room};
use super::arm::{Applied, Expectation};
use super::calls::CallCounter;
use super::conduct::{Ran, Subject};
use super::huge::PageSampler;
use super::load::metric::Figure;
use super::load::{Better, Reading, Unit as ReadingUnit};
use super::prepare::Prepare;
use super::proof::{self, Bindings, FirstRun, Seen};
use super::run::{self, Exit, Family, Finished, MemorySample, Running, Start, Tail};
use super::{Direction, Metric, ProofItem, Unit};
use allocwall_host::clock;
use allocwall_host::hardware::Encoding;
use allocwall_host::perf::EventCounter;
use allocwall_host::proc::ProcFs;
use allocwall_model::error::{Error, Result};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Times after the start at which the processes of a run are sampled. They are few, because each sample takes CPU time from the
/// run, equally for every arm.
const SAMPLES_MS: &[u64] = &[0, 15, 60, 250, 1_000, 4_000];
/// Pause between two checks whether a sample is due or the run has ended.
const GLANCE: Duration = Duration::from_millis(2);

/// One arm, ready to be started.
#[derive(Clone, Debug)]
pub struct Prepared {
    pub start: Start,
    pub expects: Vec<Expectation>,
    /// Results of the run that is not counted.
    pub first: FirstRun,
}

impl Prepared {
    /// The command with an arm's changes.
    pub fn of(base: &Start, applied: &Applied) -> Prepared {
        let mut start = base.clone();
        start.command = applied.command.clone();
        start.env.extend(applied.env.iter().cloned());
        start.cpus = applied.cpus.clone().or(start.cpus);
        start.nodes = applied.nodes.clone().or(start.nodes);
        Prepared { start, expects: applied.expects.clone(), first: FirstRun::default() }
    }

    pub fn judge(&self, seen: &Seen) -> Vec<ProofItem> {
        proof::judge(&self.expects, seen, &self.first)
    }

    /// The additional observations that the arm's proof needs.
    fn close(&self) -> Close {
        Close {
            serves: self.expects.iter().find_map(|e| match e {
                Expectation::Serves(library) => Some(library.clone()),
                _ => None,
            }),
            huge: self
                .expects
                .iter()
                .any(|e| matches!(e, Expectation::HugeResident | Expectation::ArenasHuge)),
            stop: None,
        }
    }

    /// Makes the loader log its bindings of `malloc` in a new folder. Returns false if no expectation of the arm needs the log.
    pub fn ask_for_bindings(&self, start: &mut Start, account: &Path) -> Result<bool> {
        let wanted = |e: &Expectation| matches!(e, Expectation::MallocFrom(_) | Expectation::Mapped(_));
        if !self.expects.iter().any(wanted) {
            return Ok(false);
        }
        std::fs::create_dir(account).map_err(|cause| Error::File { path: account.to_owned(), cause })?;
        open_to_all(account);
        start.env.extend(
            Bindings::environment(account)
                .into_iter()
                .map(|(name, value)| (OsString::from(name), Some(OsString::from(value)))),
        );
        Ok(true)
    }
}

/// Peak memory on huge pages. Zero only if at least one sample walked nearly all of the memory.
fn peak_huge(samples: &[MemorySample]) -> Option<u64> {
    let peak = samples.iter().map(|sample| sample.rss_bytes).max()?;
    let walked = |sample: &MemorySample| Some((sample.rss_bytes, sample.walked.as_ref().ok()?.huge_bytes));
    let most = samples.iter().filter_map(walked).max_by_key(|(_, huge)| *huge)?;
    let near_peak = samples.iter().filter_map(walked).any(|(resident, _)| resident >= peak / 10 * 8);
    (most.1 > 0 || near_peak).then_some(most.1)
}

/// Samples a run's processes at the planned times.
pub struct Watcher {
    proc: ProcFs,
    seen: Seen,
    next: usize,
    /// Whether some arm binds memory to nodes. Then the binding is read in the runs of all arms, so that all are disturbed alike.
    nodes: bool,
}

impl Watcher {
    pub fn of(arms: &[Prepared]) -> Watcher {
        let nodes = |e: &Expectation| matches!(e, Expectation::Nodes(_));
        Watcher {
            nodes: arms.iter().flat_map(|arm| &arm.expects).any(nodes),
            proc: ProcFs::live(),
            seen: Seen::default(),
            next: 0,
        }
    }

    /// Samples if a sample is due. Returns whether more samples are planned.
    pub fn sample_if_due(&mut self, running: &Running) -> bool {
        let Some(&due_ms) = SAMPLES_MS.get(self.next) else {
            return false;
        };
        if clock::monotonic_ns().saturating_sub(running.start_ns()) >= due_ms * 1_000_000 {
            self.next += 1;
            self.seen.sample(&self.proc, &running.processes(), self.nodes);
        }
        true
    }

    /// Samples now, whatever the planned time.
    pub fn sample_now(&mut self, running: &Running) {
        self.seen.sample(&self.proc, &running.processes(), self.nodes);
    }

    /// All observations: the samples, the run's memory series, and the additional observations.
    pub fn seen(self, finished: &Finished, closely: Seen) -> Seen {
        Seen {
            peak_huge: peak_huge(&finished.memory),
            peak_resident: finished.peak_rss_bytes.as_ref().ok().copied(),
            processes: self.seen.processes,
            ..closely
        }
    }
}

pub struct Batch<'a> {
    pub arms: Vec<Prepared>,
    pub keeper_exe: PathBuf,
    /// Figures that the command prints.
    pub figures: Vec<Figure>,
    /// Hardware events that are counted in user mode, if the processor can, by the keys of their metrics.
    pub events: &'static [(&'static str, Encoding)],
    /// Nonzero exit codes that are not failures.
    pub fine: Vec<i32>,
    /// Runs before each run.
    pub prepare: Option<Prepare>,
    pub interrupted: &'a AtomicBool,
}

/// Additional observations of a run. They disturb the run, so counted runs do without them.
#[derive(Clone, Debug, Default)]
pub struct Close {
    /// Count the share of the calls that this library serves.
    pub serves: Option<PathBuf>,
    /// Sample its huge pages repeatedly.
    pub huge: bool,
    /// When set, ends the run. It replaces the flag of the user's interruption, which also sets this flag.
    pub stop: Option<Arc<AtomicBool>>,
}

/// The additional observations of a run while it runs.
pub struct CloseLooks {
    calls: Option<CallCounter>,
    huge: Option<PageSampler>,
}

impl Close {
    /// The flag that ends the run: `stop`, or the flag of the user's interruption.
    pub fn stop<'a>(&'a self, interrupted: &'a AtomicBool) -> &'a AtomicBool {
        self.stop.as_deref().unwrap_or(interrupted)
    }

    pub fn start(&self, family: Family) -> CloseLooks {
        CloseLooks {
            calls: self.serves.as_deref().map(|library| CallCounter::start(family, library)),
            huge: self.huge.then(|| PageSampler::start(family)),
        }
    }
}

impl CloseLooks {
    /// The observations so far. Call it when the run is over or about to end. The other fields stay empty.
    pub fn finish(self) -> Seen {
        Seen {
            calls: self.calls.map(CallCounter::finish),
            huge: self.huge.map(PageSampler::finish),
            ..Seen::default()
        }
    }
}

/// One fresh run of an arm, for a command that ends (batch) or a server.
pub trait Fresh {
    fn arms(&mut self) -> &mut [Prepared];

    /// One fresh run with this start, and its observations. Its proof is not judged yet.
    fn once(&self, start: &Start, close: &Close) -> Result<(Ran, Seen)>;

    /// One run of each arm that is not counted: it warms caches, shows that the arm works, and records the bindings of `malloc` and
    /// the library that serves the calls.
    /// `room` is the folder for the loader's log only. `starts` is called before each run.
    fn prove(
        &mut self,
        room: &Room,
        interrupted: &AtomicBool,
        mut starts: impl FnMut(usize),
    ) -> Result<Vec<Ran>> {
        let mut runs = Vec::new();
        for arm in 0..self.arms().len() {
            if interrupted.load(Ordering::Relaxed) {
                break;
            }
            starts(arm);
            let account = room.account(&format!("arm-{arm}"));
            let mut start = self.arms()[arm].start.clone();
            let asked = self.arms()[arm].ask_for_bindings(&mut start, &account)?;
            let mut close = self.arms()[arm].close();
            let (outcome, ended, bindings) = std::thread::scope(|scope| {
                let reader = asked.then(|| room.read(&account, scope, interrupted));
                match &reader {
                    Some(Ok(reader)) => close.stop = Some(reader.stop()),
                    // Without a reader the loader must not write a log.
                    Some(Err(_)) => start = self.arms()[arm].start.clone(),
                    None => {}
                }
                let outcome = self.once(&start, &close);
                let ended = close.stop.as_ref().is_some_and(|stop| stop.load(Ordering::Relaxed));
                let bindings = reader.map(|reader| reader.and_then(Reader::finish));
                (outcome, ended, bindings)
            });
            let (mut ran, mut seen) = match outcome {
                Err(_) if interrupted.load(Ordering::Relaxed) => break,
                outcome => outcome?,
            };
            // A run that was ended early proves nothing, and is not a failure of the arm.
            if let (true, Some(Err(too_long))) = (ended, &bindings) {
                ran.failure = None;
                seen = Seen {
                    calls: seen.calls.map(|_| Err(too_long.clone())),
                    huge: seen.huge.map(|_| Err(too_long.clone())),
                    ..Seen::default()
                };
            }
            self.arms()[arm].first =
                FirstRun { bindings, calls: seen.calls.clone(), huge: seen.huge.clone() };
            ran.proof = self.arms()[arm].judge(&seen);
            runs.push(ran);
        }
        Ok(runs)
    }
}

impl<T: Fresh> Subject for T {
    fn run(&mut self, arm: usize) -> Result<Ran> {
        let start = self.arms()[arm].start.clone();
        let (mut ran, seen) = self.once(&start, &Close::default())?;
        ran.proof = self.arms()[arm].judge(&seen);
        Ok(ran)
    }
}

impl Fresh for Batch<'_> {
    fn arms(&mut self) -> &mut [Prepared] {
        &mut self.arms
    }

    fn once(&self, start: &Start, close: &Close) -> Result<(Ran, Seen)> {
        if let Some(prepare) = &self.prepare {
            prepare.run(close.stop(self.interrupted))?;
        }
        let mut running = run::start(start, &self.keeper_exe)?;
        let looks = close.start(running.family());
        let count = |(key, encoding): &(&'static str, Encoding)| {
            (*key, EventCounter::hardware(encoding, &[running.pid()], false))
        };
        let counters: Vec<_> = self.events.iter().map(count).collect();
        let mut watcher = Watcher::of(&self.arms);
        let stop = close.stop(self.interrupted);
        while running.exited().is_none() && watcher.sample_if_due(&running) && !stop.load(Ordering::Relaxed) {
            std::thread::sleep(GLANCE);
        }
        let finished = running.wait(stop)?;
        let seen = watcher.seen(&finished, looks.finish());
        let output = output(&finished);
        let mut metrics = finished.metrics();
        for (key, counter) in counters {
            let counted = counter.and_then(|mut counter| counter.total().0.whole());
            metrics.insert(key.to_owned(), counted);
        }
        let mut readings = Vec::new();
        for figure in &self.figures {
            let reading = figure.read(&output);
            metrics.insert(figure.name.clone(), reading.as_ref().map(|r| r.value).map_err(Clone::clone));
            readings.extend(reading.ok());
        }
        let ran = Ran { metrics, failure: failure(&finished, &self.fine), proof: vec![], readings };
        Ok((ran, seen))
    }
}

/// Makes the folder writable for a target that dropped its rights.
fn open_to_all(folder: &Path) {
    use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
    // Do not follow a symbolic link.
    let mode = |path: &Path, mode| {
        let folder = std::fs::OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW)
            .open(path)?;
        folder.set_permissions(std::fs::Permissions::from_mode(mode))
    };
    let _ = mode(folder, 0o1777);
    // Others may pass through the parent folder but not list it, so the name stays secret.
    if let Some(above) = folder.parent() {
        let _ = mode(above, 0o711);
    }
}

/// How a failure begins if the run was ended at its time limit.
pub const TOO_LONG: &str = "it exceeded the time limit";

/// Why the run failed, with the last line of its standard error if there is one. None if it did not fail.
pub fn failure(finished: &Finished, fine: &[i32]) -> Option<String> {
    let how = match finished.exit {
        _ if finished.timed_out() => TOO_LONG.to_owned(),
        Exit::Code(code) if code == 0 || fine.contains(&code) => return None,
        exit => exit.to_string(),
    };
    Some(match last_words(finished) {
        Some(line) => format!("{how}: {line}"),
        None => how,
    })
}

/// The last line of its standard error, at most 160 characters.
pub fn last_words(finished: &Finished) -> Option<String> {
    let said = text(&finished.stderr);
    let last = said.lines().rev().find(|line| !line.trim().is_empty())?;
    Some(last.trim().chars().take(160).collect())
}

/// All output. Standard output first, because figures on it are preferred to those on standard error.
pub fn output(finished: &Finished) -> String {
    [text(&finished.stdout), text(&finished.stderr)].join("\n")
}

/// Untrusted text: escape it before printing.
fn text(tail: &Tail) -> String {
    String::from_utf8_lossy(&tail.bytes).into_owned()
}

/// The metrics of every run. Wall time is the primary metric, unless the command prints its own figures.
pub fn metrics(figures: &[Reading]) -> Vec<Metric> {
    const TABLE: &[(&str, &str, Unit)] = &[
        ("wall_s", "wall time", Unit::Seconds),
        ("cpu_s", "CPU time", Unit::Seconds),
        ("user_s", "user time", Unit::Seconds),
        ("system_s", "system time", Unit::Seconds),
        ("peak_rss_bytes", "peak resident", Unit::Bytes),
        ("peak_pss_bytes", "peak PSS", Unit::Bytes),
        ("final_rss_bytes", "final resident", Unit::Bytes),
        ("final_pss_bytes", "final PSS", Unit::Bytes),
        ("final_lazy_free_bytes", "final LazyFree", Unit::Bytes),
        ("minor_faults", "minor faults", Unit::Count),
        ("major_faults", "major faults", Unit::Count),
        ("voluntary_switches", "voluntary switches", Unit::Count),
        ("involuntary_switches", "involuntary switches", Unit::Count),
    ];
    let mut metrics: Vec<Metric> = figures.iter().map(|figure| metric_of(figure, true)).collect();
    metrics.extend(TABLE.iter().map(|&(key, title, unit)| Metric {
        key: key.into(),
        title: title.into(),
        unit,
        direction: Direction::LowerIsBetter,
        primary: figures.is_empty() && key == "wall_s",
    }));
    metrics
}

/// The metric of a figure that a program printed.
pub fn metric_of(reading: &Reading, primary: bool) -> Metric {
    Metric {
        key: reading.name.clone(),
        title: reading.name.replace('_', " "),
        unit: match reading.unit {
            ReadingUnit::PerSecond => Unit::PerSecond,
            ReadingUnit::Nanoseconds => Unit::Ns,
            ReadingUnit::Bytes => Unit::Bytes,
            ReadingUnit::Count => Unit::Count,
            ReadingUnit::Plain => Unit::None,
        },
        direction: match reading.better {
            Better::Lower => Direction::LowerIsBetter,
            Better::Higher => Direction::HigherIsBetter,
        },
        primary,
    }
}
