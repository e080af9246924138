//! Attaches to the target: checks that it may be measured, finds its processes, and opens the sampler.

use super::{OpenClocks, Request, Target};
use crate::collect::Collector;
use crate::groups::Groups;
use allocwall_host::cgroup::CgroupFs;
use allocwall_host::facts::Machine;
use allocwall_host::launch::{self, Held, Launched, Talk};
use allocwall_host::perf::{self, Clocks, CpuSampler, Periods, Scope};
use allocwall_host::proc::{ProcFs, refuse_thread};
use allocwall_host::program::{self, RaisedRights};
use allocwall_host::rights::run_as_root;
use allocwall_host::{clock, limits, topology};
use allocwall_model::error::{Error, Result};
use allocwall_model::placement::NodeCpus;
use allocwall_model::recording::{CgroupTick, HostFacts};
use allocwall_model::units::{Absence, Measured, Reason};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// A target whose processes are known, with an open sampler.
pub struct Attached {
    pub proc: ProcFs,
    pub host: HostFacts,
    pub collector: Collector,
    pub sampling: Sampling,
    pub cgroups: Measured<Groups>,
    /// The NUMA nodes of the machine with their CPUs.
    pub nodes: Measured<Vec<NodeCpus>>,
    /// `/sys`, or a copy of it.
    pub sys: PathBuf,
    /// Why not all of its processes were found.
    pub tree_unread: Option<Absence>,
    /// The command, if allocwall started it.
    pub command: Option<Command<Launched>>,
    pub start: WindowStart,
}

impl Attached {
    /// Whether its processes may still run after the window. A command ends with it, unless it is kept.
    pub fn stays(&self) -> bool {
        self.command.as_ref().is_none_or(|command| command.keep)
    }
}

/// The clocks that sample the target, and what their samples contain.
pub struct Sampling {
    pub clocks: Measured<Box<dyn Clocks>>,
    pub periods: Periods,
    pub kernel_stacks: bool,
    /// Every process of the machine is sampled.
    pub system_wide: bool,
}

/// A command that allocwall starts, before its exec (`Held`) or after it (`Launched`).
pub struct Command<Child> {
    pub words: Vec<String>,
    pub child: Child,
    /// Leave it running afterwards.
    pub keep: bool,
}

/// The time at which the window opened.
pub struct WindowStart {
    pub monotonic_ns: u64,
    pub unix_ms: u64,
    pub own_cpu_ns: u64,
}

/// The processes with which the target begins.
enum Roots {
    Running(Vec<i32>),
    /// Still a copy of this program: it is adopted after its exec.
    Held(Command<Held>),
}

impl Attached {
    /// # Errors
    /// The target does not exist, or may not be measured.
    pub fn open(
        machine: &Machine,
        clocks: Option<OpenClocks<'_>>,
        request: &Request<'_>,
    ) -> Result<Attached> {
        let proc = machine.proc.clone();
        refuse_foreign_proc(&proc)?;
        let host = machine.facts();
        let mut collector = Collector::new(proc.clone(), clock::monotonic_ns(), request.readers.clone());
        // Each event takes a descriptor, and the files of the target's modules stay open.
        limits::raise_open_files();
        let roots = Roots::of(machine, &request.target)?;
        let tree_unread = roots.adopt(&proc, &mut collector);
        let mut sampling = Sampling::open(machine, clocks, request, &host, &collector, &roots);
        let cgroups = Groups::of(machine, roots.pids());
        let sys = machine.path("/sys");
        let nodes = topology::nodes(&sys);
        let (command, start) = match roots {
            Roots::Running(_) => (None, WindowStart::now()),
            Roots::Held(held) => {
                let pid = held.child.pid;
                // A launched command is measured from its first instruction.
                if let Ok(clocks) = &mut sampling.clocks {
                    let _ = clocks.start();
                }
                let start = WindowStart::now();
                let command = held.release()?;
                collector.family.adopt(pid);
                (Some(command), start)
            }
        };
        collector.set_start(start.monotonic_ns);
        Ok(Attached { proc, host, collector, sampling, cgroups, nodes, sys, tree_unread, command, start })
    }

    pub fn cgroup_tick(&mut self) -> Option<CgroupTick> {
        self.cgroups.as_mut().ok()?.tick()
    }

    /// Whether the samples show page faults: with kernel stacks whose functions have names.
    pub fn samples_have_owners(&self) -> bool {
        let sampled = self.sampling.clocks.is_ok() && self.sampling.kernel_stacks;
        sampled && self.proc.kernel_symbols_visible() != Ok(false)
    }

    /// Whether the samples show too few owners of page faults, and slices would show more.
    pub fn owners_unknown(&self) -> bool {
        self.proc.is_live() && self.collector.owners_unknown()
    }

    /// Hands the records of the clocks to the collector. `last`: the clocks are stopped.
    pub fn drain(&mut self, last: bool) {
        if let Ok(clocks) = &mut self.sampling.clocks {
            let collector = &mut self.collector;
            clocks.drain(last, &mut |time, event| collector.take(time, event));
            collector.look_up_faults(&self.proc);
        }
    }
}

impl WindowStart {
    fn now() -> WindowStart {
        WindowStart {
            monotonic_ns: clock::monotonic_ns(),
            unix_ms: clock::unix_ms(),
            own_cpu_ns: clock::own_cpu_ns(),
        }
    }
}

impl Roots {
    /// Finds processes that run, or starts the command as far as its exec.
    fn of(machine: &Machine, target: &Target) -> Result<Roots> {
        match target {
            Target::Pids(pids) => {
                for &pid in pids {
                    may_measure(&machine.proc, pid)?;
                }
                Ok(Roots::Running(pids.clone()))
            }
            Target::Cgroup(path) => {
                let mut pids = CgroupFs::of(machine).map_err(|a| Error::Refused(a.detail))?.pids(path)?;
                let own = own_tree(&machine.proc, &pids);
                pids.retain(|pid| !own.contains(pid));
                if pids.is_empty() {
                    return Err(Error::Refused(format!("cgroup {path} has no processes")));
                }
                Ok(Roots::Running(pids))
            }
            Target::Launch { command, env, keep, talk } => {
                Command::hold(command, env, *keep, *talk).map(Roots::Held)
            }
        }
    }

    fn pids(&self) -> &[i32] {
        match self {
            Roots::Running(pids) => pids,
            Roots::Held(command) => std::slice::from_ref(&command.child.pid),
        }
    }

    /// Makes processes that run, and their descendants, part of the target. Returns why some were not found.
    fn adopt(&self, proc: &ProcFs, collector: &mut Collector) -> Option<Absence> {
        let mut unread = None;
        if let Roots::Running(pids) = self {
            for &pid in pids {
                collector.family.adopt(pid);
                match proc.descendants(pid) {
                    Ok(children) => {
                        let own = own_tree(proc, &children);
                        let others = children.into_iter().filter(|child| !own.contains(child));
                        others.for_each(|child| collector.family.adopt(child));
                    }
                    Err(absence) if absence.is_gone() => {}
                    Err(absence) => unread = Some(absence),
                }
            }
        }
        unread
    }
}

/// This process and its helpers, if it is one of these: the target may be the shell that started it.
fn own_tree(proc: &ProcFs, processes: &[i32]) -> Vec<i32> {
    let own = std::process::id() as i32;
    if !proc.is_live() || !processes.contains(&own) {
        return vec![];
    }
    let helpers = proc.descendants(own).unwrap_or_default();
    helpers.into_iter().chain([own]).collect()
}

impl Command<Held> {
    fn hold(words: &[OsString], env: &[(OsString, OsString)], keep: bool, talk: Talk) -> Result<Self> {
        refuse_setuid(words)?;
        let shown: Vec<String> = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        match launch::hold(words, env, talk) {
            Ok(child) => Ok(Command { words: shown, child, keep }),
            Err(cause) => Err(Error::Launch { command: shown.join(" "), cause }),
        }
    }

    /// Lets it call exec.
    fn release(self) -> Result<Command<Launched>> {
        let Command { words, child, keep } = self;
        match child.release() {
            Ok(child) => Ok(Command { words, child, keep }),
            Err(cause) => Err(Error::Launch { command: words.join(" "), cause }),
        }
    }
}

impl Command<Launched> {
    /// The command for whoever asked for the recording: it ends when this value is dropped, unless it is to be
    /// left running.
    pub fn hand_over(mut self) -> Launched {
        if self.keep {
            self.child.keep();
        }
        self.child
    }
}

impl Sampling {
    fn open(
        machine: &Machine,
        clocks: Option<OpenClocks<'_>>,
        request: &Request<'_>,
        host: &HostFacts,
        collector: &Collector,
        roots: &Roots,
    ) -> Sampling {
        let cpus = topology::online_cpus(&machine.path("/sys"));
        let periods = Periods::for_window(
            request.rate_hz.unwrap_or_else(|| match request.closely {
                true => perf::RATE_CLOSE_HZ,
                false => perf::rate_by_default(host.hypervisor.is_some(), request.window),
            }),
            cpus.as_ref().map_or(1, Vec::len),
            request.window,
        );
        let (mut clocks, kernel_stacks, system_wide) = match (cpus, clocks) {
            (Ok(cpus), Some(clocks)) => (clocks(&cpus, periods), true, true),
            (Ok(cpus), None) => perf_clocks(&machine.proc, collector, roots, &cpus, periods),
            (Err(absence), _) => (Err(absence), false, false),
        };
        if let Err(absence) = clock::comparable() {
            clocks = Err(absence);
        }
        Sampling { clocks, periods, kernel_stacks, system_wide }
    }
}

/// Root samples every CPU and selects the target, at a cost that doesn't grow with the number of threads.
/// Other users sample the target's threads, with kernel samples if permitted.
fn perf_clocks(
    proc: &ProcFs,
    collector: &Collector,
    roots: &Roots,
    cpus: &[u32],
    periods: Periods,
) -> (Measured<Box<dyn Clocks>>, bool, bool) {
    let open = |scope: &Scope, kernel| -> Measured<Box<dyn Clocks>> {
        Ok(Box::new(CpuSampler::open(scope, cpus, kernel, periods)?))
    };
    match open(&Scope::Machine, true) {
        Ok(clocks) => return (Ok(clocks), true, true),
        Err(absence) if absence.reason != Reason::NotPermitted => return (Err(absence), false, false),
        Err(_) => {}
    }
    let scope = match roots {
        Roots::Held(command) => Scope::UntilExec(command.child.pid),
        Roots::Running(_) => {
            let tids = collector.family.listing.processes.iter().flat_map(|p| living_threads(proc, p.pid));
            Scope::Threads(tids.collect())
        }
    };
    match open(&scope, true) {
        Ok(clocks) => (Ok(clocks), true, false),
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
pub(crate) fn refuse_foreign_proc(proc: &ProcFs) -> Result<()> {
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

/// Whether the process exists, has memory, and may be read.
pub(crate) fn may_measure(proc: &ProcFs, pid: i32) -> Result<()> {
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
        Some((file, rights)) if rights != RaisedRights::Capabilities => Err(Error::Refused(format!(
            "{} {}, so allocwall does not start it; start it yourself and attach with -p as root",
            file.display(),
            rights.sentence()
        ))),
        _ => Ok(()),
    }
}
