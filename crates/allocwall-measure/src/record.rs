//! Records a target: opens the probes, waits for the window, closes it, and writes the recording.

use super::collect::Collector;
use super::file::{Batch, Head, Part, Tail, Writer};
use super::groups::Groups;
use super::python::Pythons;
use super::reading::Readers;
use super::ticks::{SMAPS, SMAPS_LIMIT, ThreadClock, TickReader};
use super::unwind;
use super::{counts, heap};
use allocwall_host::cgroup::{CgroupFs, Frozen};
use allocwall_host::facts::Machine;
use allocwall_host::launch::{self, Launched, Talk};
use allocwall_host::perf::{self, Clocks, CpuSampler, Periods, Scope};
use allocwall_host::proc::{ProcFs, refuse_thread};
use allocwall_host::program::{self, Rights};
use allocwall_host::rights::run_as_root;
use allocwall_host::threads::{Look, Looker, MemoryReader};
use allocwall_host::{clock, limits, topology};
use allocwall_model::error::{Error, Result};
use allocwall_model::recording::*;
use allocwall_model::units::{Absence, Measured, Reason};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub const DEFAULT_WINDOW: Duration = Duration::from_secs(15);
/// Shorter windows have too few samples for a judgement; longer ones exceed the size of a recording.
pub const SHORTEST_WINDOW: Duration = Duration::from_millis(500);
pub const LONGEST_WINDOW: Duration = Duration::from_secs(3600);

const DRAIN_EVERY: Duration = Duration::from_millis(50);
const TICK_EVERY: Duration = Duration::from_millis(250);
const BATCH_EVERY: Duration = Duration::from_secs(1);
const PYTHON_EVERY: Duration = Duration::from_millis(100);
/// The most reads of Python's stacks in a window; one read gives a kilobyte per thread.
const PYTHON_LOOKS: u32 = 4000;

/// Samples of waiting threads per second, all threads together: about 15 µs each, so a fifth of a percent of
/// two CPUs.
const LOOKS_PER_SECOND: u32 = 250;
/// The least time between two rounds of samples: each round wakes allocwall on a CPU that the target may be
/// using.
const LOOKS_APART_NS: u64 = 20_000_000;
const LOOKS_AT_ONCE: usize = 64;
const WAIT_STACK: usize = 1024;
/// Up to this many threads, exact times are read every second; above it, only at both ends of the window.
const THREADS_FOLLOWED: usize = 512;

/// The target.
pub enum Ask {
    /// These processes and their descendants.
    Pids(Vec<i32>),
    /// Every process of a control group.
    Cgroup(String),
    /// A command to start, with `env` added to its environment; `keep` leaves it running afterwards.
    Launch { command: Vec<OsString>, env: Vec<(OsString, OsString)>, keep: bool, talk: Talk },
}

pub struct Request<'a> {
    pub ask: Ask,
    pub window: Duration,
    /// Samples per second and CPU; None chooses a rate for this kind of machine.
    pub rate_hz: Option<u32>,
    /// The target's own speed is not measured, so its map calls are counted all the time, and short runs are
    /// sampled often.
    pub closely: bool,
    /// The file of the recording; None keeps it in memory.
    pub output: Option<PathBuf>,
    pub prices: Measured<PriceList>,
    pub readers: Readers,
    /// Set by Ctrl-C: the window closes early, and the data so far is reported.
    pub interrupted: &'a AtomicBool,
    /// Called from time to time with the elapsed fraction of the window, 0 to 1.
    pub progress: &'a mut dyn FnMut(f64),
}

pub struct Recorded {
    pub recording: Recording,
    pub path: Option<PathBuf>,
    /// Why the file could not be written completely; the recording in memory is complete.
    pub file_failure: Option<Error>,
    /// The time from the end of the window to this value.
    pub after_window: Duration,
    /// The launched command. Dropping it ends the command, unless `keep` was set.
    pub launched: Option<Launched>,
}

/// Opens a sampler for the given CPUs; a copy of a machine has no perf events.
pub type OpenClocks<'a> = &'a mut dyn FnMut(&[u32], Periods) -> Measured<Box<dyn Clocks>>;

pub fn record(request: Request<'_>) -> Result<Recorded> {
    if request.window < SHORTEST_WINDOW || request.window > LONGEST_WINDOW {
        return Err(Error::Refused(format!(
            "a window of {:?} is not usable: choose between {:?} and {:?} with -d",
            request.window, SHORTEST_WINDOW, LONGEST_WINDOW
        )));
    }
    record_on(&Machine::live(), None, request)
}

/// Records from a copy of a machine's files, sampled by `clocks`. Data that is in no file is absent there:
/// memory, system calls, processes that start.
pub fn record_on(
    machine: &Machine,
    clocks: Option<OpenClocks<'_>>,
    request: Request<'_>,
) -> Result<Recorded> {
    // Before anything is started: an output that cannot be written must not cost a window.
    let writer = Writer::create(request.output.as_deref())?;
    Session::open(machine, clocks, &request, writer)?.run(request)
}

struct Session {
    proc: ProcFs,
    collector: Collector,
    sampler: Measured<Box<dyn Clocks>>,
    periods: Periods,
    kernel_samples: bool,
    system_wide: bool,
    cgroups: Measured<Groups>,
    /// Why the group's figures, or the tree of processes, could not be read at some time.
    cgroup_unread: Option<Absence>,
    tree_unread: Option<Absence>,
    launched: Option<Launched>,
    command: Option<Vec<String>>,
    pythons: Pythons,
    opened: Opened,
    writer: Writer,
    host: HostFacts,
    keep: bool,
}

/// The time at which the window opened.
#[derive(Clone, Copy)]
struct Opened {
    monotonic_ns: u64,
    unix_ms: u64,
    own_cpu_ns: u64,
}

impl Opened {
    fn now() -> Opened {
        Opened {
            monotonic_ns: clock::monotonic_ns(),
            unix_ms: clock::unix_ms(),
            own_cpu_ns: clock::own_cpu_ns(),
        }
    }
}

impl Session {
    fn open(
        machine: &Machine,
        clocks: Option<OpenClocks<'_>>,
        request: &Request<'_>,
        writer: Writer,
    ) -> Result<Session> {
        let proc = machine.proc.clone();
        refuse_foreign_proc(&proc)?;
        let host = machine.facts();
        let mut collector = Collector::new(proc.clone(), clock::monotonic_ns(), request.readers.clone());
        // Each event takes a descriptor, and the files of the target's modules stay open.
        limits::raise_open_files();
        let mut held = None;
        let mut command = None;
        let mut keep = false;
        let roots: Vec<i32> = match &request.ask {
            Ask::Pids(pids) => {
                for &pid in pids {
                    may_look_at(&proc, pid)?;
                }
                pids.clone()
            }
            Ask::Cgroup(path) => {
                let pids = CgroupFs::of(machine).map_err(|a| Error::Refused(a.detail))?.pids(path)?;
                if pids.is_empty() {
                    return Err(Error::Refused(format!("cgroup {path} has no processes")));
                }
                pids
            }
            Ask::Launch { command: line, env, keep: leave, talk } => {
                refuse_setuid(line)?;
                let shown: Vec<String> = line.iter().map(|w| w.to_string_lossy().into_owned()).collect();
                let child = launch::hold(line, env, *talk)
                    .map_err(|cause| Error::Launch { command: shown.join(" "), cause })?;
                let pid = child.pid;
                held = Some(child);
                command = Some(shown);
                keep = *leave;
                vec![pid]
            }
        };
        // A held child is still a copy of this program. It is adopted after its exec.
        let mut tree_unread = None;
        if held.is_none() {
            for &pid in &roots {
                collector.family.adopt(pid);
                match proc.descendants(pid) {
                    Ok(children) => children.into_iter().for_each(|child| collector.family.adopt(child)),
                    Err(absence) if absence.is_gone() => {}
                    Err(absence) => tree_unread = Some(absence),
                }
            }
        }

        let cpus = topology::online_cpus(&machine.path("/sys"));
        let periods = Periods::for_window(
            request.rate_hz.unwrap_or_else(|| match request.closely {
                true => perf::RATE_CLOSE_HZ,
                false => perf::rate_by_default(host.hypervisor.is_some(), request.window),
            }),
            cpus.as_ref().map_or(1, Vec::len),
            request.window,
        );
        let (mut sampler, kernel_samples, system_wide) = match (cpus, clocks) {
            (Ok(cpus), Some(clocks)) => (clocks(&cpus, periods), true, true),
            (Ok(cpus), None) => open_sampler(&proc, &collector, held.as_ref().map(|h| h.pid), &cpus, periods),
            (Err(absence), _) => (Err(absence), false, false),
        };
        if let Err(absence) = clock::comparable() {
            sampler = Err(absence);
        }
        let cgroups = Groups::of(machine, &roots);
        // A launched command is measured from its first instruction.
        let (launched, opened) = match held {
            None => (None, Opened::now()),
            Some(held) => {
                let pid = held.pid;
                if let Ok(sampler) = &mut sampler {
                    let _ = sampler.start();
                }
                let shown = command.clone().unwrap_or_default().join(" ");
                let opened = Opened::now();
                let child = held.release().map_err(|cause| Error::Launch { command: shown, cause })?;
                collector.family.adopt(pid);
                (Some(child), opened)
            }
        };
        collector.set_start(opened.monotonic_ns);
        Ok(Session {
            proc,
            collector,
            sampler,
            periods,
            kernel_samples,
            system_wide,
            cgroups,
            cgroup_unread: None,
            tree_unread,
            launched,
            command,
            pythons: Pythons::new(request.readers.clone(), opened.monotonic_ns),
            opened,
            writer,
            host,
            keep,
        })
    }

    fn run(mut self, request: Request<'_>) -> Result<Recorded> {
        let Opened { monotonic_ns: start, unix_ms: started_unix_ms, own_cpu_ns: own_cpu_before } =
            self.opened;
        let window_ns = request.window.as_nanos() as u64;
        let mut meta = Meta {
            tool_version: env!("CARGO_PKG_VERSION").into(),
            started_unix_ms,
            window_ns,
            requested_ns: window_ns,
            ended: Ended::Complete,
            sample_period_ns: self.periods.sample_ns(),
            kernel_samples: self.kernel_samples && self.sampler.is_ok(),
            system_wide: self.system_wide,
            wait_period_ns: 0,
            command: self.command.clone(),
            own_cpu_ns: 0,
            lost_records: 0,
        };
        let mut ticks = TickReader::new(self.host.numa_nodes);
        let mut threads = ThreadClock::default();
        let mut waits = WaitSampler::new(start);
        let mut batch_ticks = Vec::new();
        let mut batch_python = Vec::new();
        let mut pids = self.collector.family.alive();
        let mut at_ns = 0;
        if self.launched.is_some() {
            // Everything that it has used so far belongs to the window, so the base is a program that has not
            // started.
            let cgroup = self.cgroup_tick();
            batch_ticks.extend(ticks.read(&self.proc, &[], 0, cgroup, false));
            threads.read(&self.proc, &[], 0);
            at_ns = clock::monotonic_ns() - start;
        }
        let cgroup = self.cgroup_tick();
        batch_ticks.extend(ticks.read(&self.proc, &pids, at_ns, cgroup, true));
        threads.read(&self.proc, &pids, at_ns);
        self.follow_pythons(&pids);
        if self.launched.is_none()
            && let Ok(sampler) = &mut self.sampler
            && let Err(e) = sampler.start()
        {
            self.sampler = Err(perf::absence(&e));
        }
        // From here on the end of the target is reported. A target that ended before has no data.
        if self.launched.is_none() && self.collector.family.alive().is_empty() {
            return Err(Error::Refused("the target ended before the window opened".into()));
        }
        self.writer.write(&Part::Head(Box::new(Head {
            meta: meta.clone(),
            host: self.host.clone(),
            cgroup: self.cgroups.as_ref().ok().map(|groups| groups.path().to_owned()),
            processes: self.collector.family.listing.processes.clone(),
            modules: self.collector.family.modules.list().to_vec(),
            prices: request.prices,
        })));
        let counting = counts::start(&self.proc, &pids, request.window, request.closely);

        let every = |d: Duration| d.as_nanos() as u64;
        let python_every = every(PYTHON_EVERY.max(request.window / PYTHON_LOOKS));
        let mut due = Due::new(start);
        loop {
            let now = clock::monotonic_ns();
            let t_ns = now - start;
            if request.interrupted.load(Ordering::Relaxed) {
                meta.ended = Ended::Interrupted;
                break;
            }
            if t_ns >= window_ns {
                break;
            }
            if due.drain.passed(now, every(DRAIN_EVERY)) {
                self.drain(false);
            }
            if due.wait.passed(now, waits.next_in()) {
                waits.look(&self.proc, &pids, &mut self.collector, start);
            }
            if due.tick.passed(now, every(TICK_EVERY)) {
                pids = self.collector.family.alive();
                if pids.is_empty() {
                    break;
                }
                counting.follow(&pids);
                let cgroup = self.cgroup_tick();
                batch_ticks.extend(ticks.read(&self.proc, &pids, t_ns, cgroup, false));
                self.follow_pythons(&pids);
                (request.progress)(t_ns as f64 / window_ns as f64);
            }
            // Read on time in any case: a timer that is not set again would keep the loop from sleeping.
            if due.python.passed(now, python_every) {
                self.pythons.look(t_ns, &mut batch_python);
            }
            if due.batch.passed(now, every(BATCH_EVERY)) {
                if threads.alive() <= THREADS_FOLLOWED {
                    threads.read(&self.proc, &pids, t_ns);
                }
                self.collector.family.check_facts(false);
                self.ship(&mut batch_ticks, &mut batch_python);
            }
            let wake = due.next().min(start + window_ns);
            clock::sleep_until(wake);
        }

        // The window closes. The clocks stop first, so that later work of allocwall is not in the samples.
        if let Ok(sampler) = &mut self.sampler {
            let _ = sampler.stop();
        }
        let end = clock::monotonic_ns();
        meta.window_ns = end - start;
        let pids = self.collector.family.alive();
        if pids.is_empty() {
            let exited = self.launched.as_ref().and_then(Launched::exited);
            let status = exited.map(|status| status.to_string());
            meta.ended = Ended::TargetExited { status };
            // The end was noticed with a delay; in that time no thread of the target waited.
            self.drain(true);
            let exit = self.collector.family.last_exit_ns.unwrap_or(end);
            meta.window_ns = exit.clamp(start + 1, end) - start;
        }
        let mut resident = 0;
        if !pids.is_empty() {
            let cgroup = self.cgroup_tick();
            let tick = ticks.read(&self.proc, &pids, meta.window_ns, cgroup, true).ok();
            resident = tick.as_ref().map_or(0, |tick| tick.resident);
            batch_ticks.extend(tick);
            threads.close(&self.proc, &pids, meta.window_ns);
        }
        let held = self.held(&pids);
        meta.own_cpu_ns = clock::own_cpu_ns() - own_cpu_before
            + self.pythons.cpu_ns()
            + self.collector.family.modules.reader().cpu_ns();
        meta.wait_period_ns = waits.mean_period_ns();
        self.drain(true);
        self.collector.window_closed();
        self.collector.family.check_facts(true);
        let python_probe = self.pythons.finish(&mut batch_python);
        self.ship(&mut batch_ticks, &mut batch_python);

        let heap = self.walk_heap(&pids);
        let (counts, counts_probe) = self.without_narrow(counting.finish());
        self.collector.unwind_all();
        let mut probes = self.probes(&waits, counts_probe, &ticks, resident);
        probes.extend(threads.probe());
        probes.extend(held.map(|absence| {
            probe("stopped", "the target's work while it runs", ProbeState::Partial(absence))
        }));
        probes.extend(python_probe);
        let collected = self.collector.finish(meta.sample_period_ns);
        meta.lost_records = collected.lost;
        self.writer.write(&Part::Tail(Box::new(Tail {
            meta,
            processes: collected.processes,
            probes,
            threads: threads.finish(),
            modules: collected.modules,
            counts,
            neighbours: collected.neighbours,
            heap,
            frames: collected.frames,
            stacks: collected.stacks,
            sample_stacks: collected.sample_stacks,
            wait_stacks: collected.wait_stacks,
        })));
        let (recording, file_failure) = self.writer.finish();
        let mut launched = self.launched;
        if self.keep
            && let Some(child) = &mut launched
        {
            child.keep();
        }
        Ok(Recorded {
            recording: recording?,
            path: request.output.filter(|_| file_failure.is_none()),
            file_failure,
            after_window: Duration::from_nanos(clock::monotonic_ns() - end),
            launched,
        })
    }

    fn follow_pythons(&mut self, pids: &[i32]) {
        if self.proc.is_live() {
            self.pythons.follow(&self.collector.family.listing.processes, pids);
        }
    }

    /// A 32-bit heap has other chunk headers.
    fn walk_heap(&self, pids: &[i32]) -> Measured<HeapView> {
        let narrow = &self.collector.family.narrow;
        let wide: Vec<i32> = pids.iter().copied().filter(|pid| !narrow.contains(pid)).collect();
        if wide.is_empty() && !pids.is_empty() {
            return Err(Absence::new(Reason::NotSupported, "the heap of a 32-bit program cannot be read"));
        }
        heap::walk(&self.proc, &self.collector.family.listing.processes, &wide)
    }

    /// Tracepoints of system calls do not include those of 32-bit programs (arch_trace_is_compat_syscall,
    /// asm/ftrace.h).
    fn without_narrow(&self, (counts, probe): (Vec<EventCount>, Probe)) -> (Vec<EventCount>, Probe) {
        let narrow = &self.collector.family.narrow;
        if narrow.is_empty() || matches!(probe.state, ProbeState::Absent(_)) {
            return (counts, probe);
        }
        let all = self.collector.family.listing.processes.iter().all(|p| narrow.contains(&p.pid));
        let absence = |detail: &str| Absence::new(Reason::NotSupported, detail);
        let (counts, state) = match all {
            true => (
                Vec::new(),
                ProbeState::Absent(absence(
                    "the kernel's tracepoints do not include system calls of 32-bit programs",
                )),
            ),
            false => (
                counts,
                ProbeState::Partial(absence(
                    "system calls of 32-bit programs are not counted: the figures are lower bounds",
                )),
            ),
        };
        (counts, Probe { state, ..probe })
    }

    fn cgroup_tick(&mut self) -> Option<CgroupTick> {
        match self.cgroups.as_ref().ok()?.tick() {
            Ok(tick) => Some(tick),
            Err(absence) => {
                self.cgroup_unread.get_or_insert(absence);
                None
            }
        }
    }

    /// What keeps the target from running, and how to resume it; None if it can run.
    fn held(&self, pids: &[i32]) -> Option<Absence> {
        /// The most processes that are checked; whatever stops one process of a tree usually stops all.
        const ASKED: usize = 64;
        let cgroups = CgroupFs::live().ok();
        let freezer = |pid: i32| cgroups.as_ref()?.frozen(pid);
        pids.iter().take(ASKED).find_map(|&pid| held(&self.proc, pid, freezer(pid)))
    }

    fn drain(&mut self, last: bool) {
        if let Ok(sampler) = &mut self.sampler {
            let collector = &mut self.collector;
            sampler.drain(last, &mut |time, event| collector.take(time, event));
        }
    }

    fn ship(&mut self, ticks: &mut Vec<Tick>, python: &mut Vec<PythonSample>) {
        let batch =
            Batch { ticks: std::mem::take(ticks), python: std::mem::take(python), ..self.collector.batch() };
        self.writer.write(&Part::Batch(Box::new(batch)));
    }

    fn probes(
        &mut self,
        waits: &WaitSampler,
        counts: Probe,
        ticks: &TickReader,
        resident: u64,
    ) -> Vec<Probe> {
        let mut probes = Vec::new();
        let sampled = match &self.sampler {
            Err(absence) => ProbeState::Absent(absence.clone()),
            Ok(sampler) if sampler.left_out() > 0 => ProbeState::Partial(
                Absence::new(
                    Reason::TooCostly,
                    format!("{} threads were not sampled: too many open files", sampler.left_out()),
                )
                .mend(format!("ulimit -n 65536, or {}", run_as_root())),
            ),
            Ok(_) if self.collector.samples_left_out > 0 => ProbeState::Partial(Absence::new(
                Reason::TooCostly,
                format!(
                    "the recording was full: the last {} samples are missing",
                    self.collector.samples_left_out
                ),
            )),
            Ok(_) if self.collector.without_callers > 0 => ProbeState::Partial(Absence::new(
                Reason::TooCostly,
                format!(
                    "the recording was full: the callers of {} samples are missing",
                    self.collector.without_callers
                ),
            )),
            Ok(_) if self.collector.narrow_samples > 0 => ProbeState::Partial(Absence::new(
                Reason::NotSupported,
                format!(
                    "the callers of {} samples are missing: 32-bit programs are not unwound",
                    self.collector.narrow_samples
                ),
            )),
            Ok(_) => ProbeState::Measured,
        };
        probes.push(probe("cpu_samples", "where the CPU time goes", sampled));
        let kernel = match (&self.sampler, self.kernel_samples) {
            (Err(absence), _) => ProbeState::Absent(absence.clone()),
            (Ok(_), false) => ProbeState::Absent(
                Absence::new(
                    Reason::NotPermitted,
                    "kernel time is not sampled for this user (perf_event_paranoid 2 or more)",
                )
                .mend(format!("{}, or: sysctl kernel.perf_event_paranoid=1", run_as_root())),
            ),
            (Ok(_), true) if !self.collector.kernel_named() => ProbeState::Partial(
                Absence::new(Reason::NotPermitted, "kernel symbols are hidden (kptr_restrict)")
                    .mend(format!("sysctl kernel.kptr_restrict=0, or {}", run_as_root())),
            ),
            (Ok(_), true) => ProbeState::Measured,
        };
        probes.push(probe("kernel_stacks", "what the kernel does for the target", kernel));
        probes.push(probe("waits", "what waiting threads wait for", waits.state()));
        let (what, cgroup) = match &self.cgroups {
            Ok(groups) => groups.outcome(),
            Err(absence) => ("quota and throttling".into(), ProbeState::Absent(absence.clone())),
        };
        let cgroup = match (cgroup, &self.cgroup_unread) {
            (ProbeState::Measured, Some(absence)) => ProbeState::Partial(absence.clone()),
            (state, _) => state,
        };
        probes.push(probe("cgroup", &what, cgroup));
        let unread = ticks.probes();
        if !unread.iter().any(|p| p.name == "smaps") {
            let smaps = match resident > SMAPS_LIMIT {
                true => ProbeState::Absent(Absence::new(
                    Reason::TooCostly,
                    format!(
                        "resident memory is above {} GiB: walking its page tables would stall the target",
                        SMAPS_LIMIT >> 30
                    ),
                )),
                false => ProbeState::Measured,
            };
            probes.push(probe("smaps", SMAPS, smaps));
        }
        probes.extend(unread);
        probes.push(counts);
        if let Some(absence) = &self.tree_unread {
            let state = ProbeState::Partial(absence.clone());
            probes.push(probe("tree", "every process of the target", state));
        }
        if let Some(missing) = self.collector.family.missing() {
            let state = ProbeState::Partial(Absence::new(Reason::TooCostly, missing));
            probes.push(probe("processes", "every process of the target", state));
        }
        if let Some(unread) = self.collector.unread() {
            let state = ProbeState::Partial(Absence::new(Reason::TooCostly, unread));
            probes.push(probe("names", "function names and callers", state));
        }
        if let Some(cut) = &self.collector.family.code_cut {
            let state = ProbeState::Partial(cut.clone());
            probes.push(probe("code", "the addresses of code", state));
        }
        if let Err(absence) = &self.host.pmu {
            probes.push(probe("pmu", "hardware counters", ProbeState::Absent(absence.clone())));
        }
        probes
    }
}

/// Why no more data of one kind was kept.
pub(super) fn full(t_ns: u64) -> Absence {
    let seconds = t_ns as f64 / 1e9;
    Absence::new(
        Reason::TooCostly,
        format!("the recording was full after {seconds:.1} s: later data is missing"),
    )
}

pub(super) fn probe(name: &str, what: &str, state: ProbeState) -> Probe {
    Probe { name: name.into(), what: what.into(), state }
}

/// Root samples every CPU and selects the target, at a cost that doesn't grow with the number of threads.
/// Other users sample the target's threads, with kernel samples if permitted.
fn open_sampler(
    proc: &ProcFs,
    collector: &Collector,
    held: Option<i32>,
    cpus: &[u32],
    periods: Periods,
) -> (Measured<Box<dyn Clocks>>, bool, bool) {
    let open = |scope: &Scope, kernel| -> Measured<Box<dyn Clocks>> {
        Ok(Box::new(CpuSampler::open(scope, cpus, kernel, periods)?))
    };
    match open(&Scope::Machine, true) {
        Ok(sampler) => return (Ok(sampler), true, true),
        Err(absence) if absence.reason != Reason::NotPermitted => return (Err(absence), false, false),
        Err(_) => {}
    }
    let scope = match held {
        Some(pid) => Scope::UntilExec(pid),
        None => {
            let tids = collector.family.listing.processes.iter().flat_map(|p| living_threads(proc, p.pid));
            Scope::Threads(tids.collect())
        }
    };
    match open(&scope, true) {
        Ok(sampler) => (Ok(sampler), true, false),
        Err(_) => (open(&scope, false), false, false),
    }
}

/// A leader that ended before its threads can no longer have an event.
fn living_threads(proc: &ProcFs, pid: i32) -> Vec<i32> {
    let mut tids = proc.threads(pid).unwrap_or_default();
    if proc.living_thread(pid) != pid {
        tids.retain(|&tid| tid != pid);
    }
    tids
}

/// Process numbers in /proc are those of the PID namespace that it was mounted in. In another namespace than
/// allocwall's own, each number would mean one process in /proc and another one in system calls.
fn refuse_foreign_proc(proc: &ProcFs) -> Result<()> {
    let foreign = match proc.own_status() {
        // One number for each namespace, from /proc's own down to that of this program (NSpid,
        // proc_pid_status(5)).
        Ok(status) => status.ns_pids.len() > 1,
        Err(absence) => absence.is_gone(),
    };
    match foreign {
        false => Ok(()),
        true => Err(Error::Refused(
            "/proc belongs to another PID namespace than allocwall, so process numbers do not match; mount the /proc of \
             this namespace (unshare --mount-proc), or run allocwall in the namespace of that /proc"
                .into(),
        )),
    }
}

/// What keeps one process from running: a signal, a tracer, or its frozen cgroup.
fn held(proc: &ProcFs, pid: i32, frozen: Option<Frozen>) -> Option<Absence> {
    let stopped = |detail: String| Absence::new(Reason::TooLittle, detail);
    if let Some(Frozen { dir, thaw }) = frozen {
        let detail = format!("its cgroup {} is frozen", dir.display());
        return Some(stopped(detail).mend(thaw));
    }
    let stat = proc.process_stat(pid).ok()?;
    // The state of a leader that has ended does not hold for its other threads.
    let state = match stat.ended() {
        true => proc.thread_stat(pid, proc.living_thread(pid)).ok()?.state,
        false => stat.state,
    };
    match state {
        'T' => {
            let detail = format!("process {pid} ({}) is stopped by a signal (SIGSTOP or similar)", stat.comm);
            Some(stopped(detail).mend(format!("kill -CONT {pid}")))
        }
        't' => {
            // The kernel reports the number of the tracing thread.
            let tracer = proc.status(pid).ok()?.tracer;
            let tracer = proc.status(tracer).map_or(tracer, |status| status.tgid);
            let name = proc.comm(tracer).map_or(String::new(), |comm| format!(" ({comm})"));
            let detail =
                format!("process {pid} ({}) is stopped by its tracer, process {tracer}{name}", stat.comm);
            Some(stopped(detail))
        }
        _ => None,
    }
}

fn may_look_at(proc: &ProcFs, pid: i32) -> Result<()> {
    if pid <= 0 || !proc.exists(pid) {
        return Err(Error::NoSuchProcess(pid));
    }
    let stat = proc.process_stat(pid).map_err(|absence| match absence.is_gone() {
        true => Error::NoSuchProcess(pid),
        false => Error::Refused(absence.detail),
    })?;
    if let Ok(status) = proc.status(pid) {
        refuse_thread(pid, &status)?;
    }
    if stat.ended() && stat.threads <= 1 {
        return Err(Error::Refused(format!(
            "process {pid} ({}) has exited; its parent has not waited for it yet",
            stat.comm
        )));
    }
    // A kernel thread has no address space, so there is nothing to measure.
    if stat.virtual_bytes == 0 {
        return Err(Error::Refused(format!("process {pid} ({}) is a kernel thread", stat.comm)));
    }
    proc.maps_readable(proc.living_thread(pid)).map_err(|absence| Error::NotPermitted {
        pid,
        detail: absence.detail,
        mend: format!("{}, or as the owner of the process", run_as_root()),
    })
}

/// A set-user-ID program would run with rights that its caller doesn't have, and would ignore most settings.
fn refuse_setuid(command: &[OsString]) -> Result<()> {
    let Some(name) = command.first() else {
        return Err(Error::Refused("no command given after --".into()));
    };
    let (path, cwd) = (std::env::var_os("PATH"), Path::new(""));
    let gains = program::find(name, path.as_deref(), cwd)
        .ok()
        .and_then(|file| program::gains_rights(&file, cwd).ok().flatten());
    match gains {
        Some((file, rights)) if rights != Rights::Capabilities => Err(Error::Refused(format!(
            "{} {}, so allocwall does not start it; start it yourself and attach with -p as root",
            file.display(),
            rights.sentence()
        ))),
        _ => Ok(()),
    }
}

struct Timer(u64);

impl Timer {
    /// True when due; then due again after `period`. Missed turns are skipped.
    fn passed(&mut self, now: u64, period: u64) -> bool {
        if now < self.0 {
            return false;
        }
        self.0 = (self.0 + period).max(now + 1);
        true
    }
}

struct Due {
    drain: Timer,
    wait: Timer,
    tick: Timer,
    python: Timer,
    batch: Timer,
}

impl Due {
    fn new(start: u64) -> Due {
        let first = |period: Duration| Timer(start + period.as_nanos() as u64);
        Due {
            drain: first(DRAIN_EVERY),
            wait: Timer(start),
            tick: first(TICK_EVERY),
            python: first(PYTHON_EVERY),
            batch: first(BATCH_EVERY),
        }
    }

    fn next(&self) -> u64 {
        [&self.drain, &self.wait, &self.tick, &self.python, &self.batch]
            .iter()
            .map(|t| t.0)
            .min()
            .unwrap_or(0)
    }
}

/// Samples the target's threads at random times. The share of samples that find a thread waiting for
/// something is the share of time that it waits for it. The cost is bounded, however often the threads
/// switch.
struct WaitSampler {
    looker: Looker,
    started: u64,
    last: u64,
    looks: u64,
    rounds: u64,
    threads: Vec<(i32, i32)>,
    listed_at: u64,
    cursor: usize,
    random: u64,
    stack: Vec<u8>,
    memory: MemoryReader,
    /// Why threads could not be listed or read.
    unread: Option<Absence>,
}

impl WaitSampler {
    fn new(now: u64) -> WaitSampler {
        WaitSampler {
            looker: Looker::default(),
            started: now,
            last: now,
            looks: 0,
            rounds: 0,
            threads: Vec::new(),
            listed_at: 0,
            cursor: 0,
            // Any odd seed works; it only has to be independent of the target.
            random: now | 1,
            stack: vec![0; WAIT_STACK],
            memory: MemoryReader::default(),
            unread: None,
        }
    }

    /// The time to the next round: the samples of one round divided by the rate, with random variation by a
    /// third.
    fn next_in(&mut self) -> u64 {
        let per_round = self.threads.len().clamp(1, LOOKS_AT_ONCE) as u64;
        let period = (1_000_000_000 * per_round / u64::from(LOOKS_PER_SECOND)).max(LOOKS_APART_NS);
        // xorshift64 (Marsaglia 2003).
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        period * 2 / 3 + self.random % (period * 2 / 3)
    }

    fn look(&mut self, proc: &ProcFs, pids: &[i32], collector: &mut Collector, start: u64) {
        let now = clock::monotonic_ns();
        if now - self.listed_at > 250_000_000 {
            self.listed_at = now;
            self.threads.clear();
            for &pid in pids {
                match proc.threads(pid) {
                    Ok(tids) => self.threads.extend(tids.into_iter().map(|tid| (pid, tid))),
                    Err(absence) if absence.is_gone() => {}
                    Err(absence) => _ = self.unread.get_or_insert(absence),
                }
            }
        }
        if self.threads.is_empty() {
            self.last = now;
            return;
        }
        let count = self.threads.len().min(LOOKS_AT_ONCE);
        // Each sample stands for the time since the last round, and for the threads that were not sampled in
        // this round.
        let weight_ns = ((now - self.last) as u128 * self.threads.len() as u128 / count as u128) as u64;
        self.last = now;
        self.rounds += 1;
        for _ in 0..count {
            self.cursor = (self.cursor + 1) % self.threads.len();
            let (pid, tid) = self.threads[self.cursor];
            let look = self.looker.look(proc, pid, tid);
            if let Look::Unread(absence) = look {
                self.unread.get_or_insert(absence);
                continue;
            }
            self.looks += 1;
            let Look::Blocked(blocked) = look else {
                continue;
            };
            let wait = WaitSample {
                t_ns: now - start,
                pid,
                tid,
                weight_ns,
                state: blocked.state,
                syscall: blocked.syscall,
                kernel: None,
                user: None,
            };
            let user = blocked.ip_sp.map(|(ip, sp)| {
                // Read by the thread's own number: a leader that has ended has no memory left.
                let read = match proc.is_live() {
                    true => self.memory.read(tid, sp, &mut self.stack),
                    false => Ok(0),
                };
                let read = read.unwrap_or_else(|absence| {
                    self.unread.get_or_insert(absence);
                    0
                });
                (unwind::waiting_registers(ip, sp), &self.stack[..read])
            });
            collector.take_wait(wait, &blocked.kernel, user);
        }
    }

    fn mean_period_ns(&self) -> u64 {
        (self.last - self.started) / self.rounds.max(1)
    }

    fn state(&self) -> ProbeState {
        match (&self.unread, &self.looker.refusal) {
            (Some(absence), _) if self.looks == 0 => ProbeState::Absent(absence.clone()),
            (Some(absence), _) => ProbeState::Partial(absence.clone()),
            (None, Some(absence)) if absence.reason == Reason::NotPermitted => ProbeState::Partial(
                Absence::new(
                    Reason::NotPermitted,
                    "the system calls of waiting threads are not readable (/proc/PID/task/TID/syscall)",
                )
                .mend(format!("{}, or grant CAP_SYS_PTRACE", run_as_root())),
            ),
            (None, Some(absence)) if !absence.is_gone() => ProbeState::Partial(absence.clone()),
            _ => ProbeState::Measured,
        }
    }
}
