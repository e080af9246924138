//! What `check` read and tried. All I/O is here; `judge` does none.

use allocwall_host::cgroup::CgroupFs;
use allocwall_host::facts::Machine;
use allocwall_host::hardware::{self, Encoding, Processor};
use allocwall_host::installed::{self, InstalledAllocator, InstalledRuntime};
use allocwall_host::perf_trial::{self, Observed};
use allocwall_host::proc::{ProcFs, Status, refuse_thread};
use allocwall_host::rights::{self, Rights};
use allocwall_host::tracefs::TraceFs;
use allocwall_model::error::{Error, Result};
use allocwall_model::hardware::HardwareEvent;
use allocwall_model::machine::{CgroupTick, HostFacts};
use allocwall_model::units::{Measured, Reason};
use std::io;

/// Granted, or the kernel's error.
pub type Tried = io::Result<()>;

pub struct Surroundings {
    pub facts: HostFacts,
    pub rights: Measured<Rights>,
    /// perf_event_open(2) ignores capabilities that hold only inside a user namespace.
    pub first_user_namespace: bool,
    pub own_samples: Tried,
    pub kernel_samples: Tried,
    pub every_cpu: Tried,
    /// Another user's process and the result of a try on it; None if no such process is visible.
    pub stranger: Option<(i32, Tried)>,
    pub kernel_symbols: Measured<bool>,
    /// Opening the event of context switches; absent if its number cannot be read.
    pub tracepoint: Measured<Tried>,
    /// Opening each hardware event by itself.
    pub hardware: Vec<(HardwareEvent, Measured<()>)>,
    /// Reading the memory of another process of the same user; None if there is no such process.
    pub memory: Option<Tried>,
    pub kernel_stack: Measured<()>,
    pub smaps: Measured<()>,
    /// Whether the kernel accounts run time per thread.
    pub schedstat: Measured<bool>,
    pub psi: Measured<u64>,
    pub hidden: Measured<Option<String>>,
    pub cgroup: Measured<CgroupView>,
    pub balloon: bool,
    pub allocators: Vec<InstalledAllocator>,
    pub runtimes: Vec<InstalledRuntime>,
    pub target: Option<TargetView>,
}

pub struct CgroupView {
    pub version: u8,
    pub hybrid: bool,
    pub path: String,
    pub now: CgroupTick,
}

pub struct TargetView {
    pub pid: i32,
    pub comm: String,
    pub status: Status,
    pub state: char,
    pub threads: u32,
    /// None if the owner of /proc/PID cannot be read.
    pub dumpable: Option<bool>,
    /// Kinds of namespaces in which it differs from allocwall; Err if they cannot be read.
    pub namespaces: Measured<Vec<&'static str>>,
    pub samples: Tried,
    pub kernel_samples: Tried,
}

/// Namespaces that change the meaning of a name or a path.
const NAMESPACES: [&str; 4] = ["pid", "mnt", "user", "cgroup"];
/// The kernel's first user namespace: PROC_USER_INIT_INO in include/linux/proc_ns.h.
const FIRST_USER_NAMESPACE: &str = "user:[4026531837]";

/// Tries of system calls; files cannot answer these questions.
#[derive(Clone, Copy)]
pub struct Kernel {
    pub cpu_clock: fn(Observed, bool) -> Tried,
    pub tracepoint: fn(u64, Observed) -> Tried,
    pub hardware: fn(&Encoding) -> Tried,
    pub read_memory: fn(i32) -> Tried,
}

impl Kernel {
    pub const RUNNING: Kernel = Kernel {
        cpu_clock: perf_trial::cpu_clock,
        tracepoint: perf_trial::tracepoint,
        hardware: hardware::try_open,
        read_memory: rights::can_read_memory,
    };
}

pub fn gather(machine: &Machine, kernel: Kernel, target: Option<i32>) -> Result<Surroundings> {
    let proc = &machine.proc;
    let own = std::process::id() as i32;
    let rights = Rights::of_self(proc);
    let target = target.map(|pid| target_view(proc, kernel, pid)).transpose()?;
    let watched = target.as_ref().map_or(own, |target| target.pid);
    let observed = match &target {
        Some(target) => Observed::Process(target.pid),
        None => Observed::Myself,
    };
    let event = TraceFs::of(machine).and_then(|traces| traces.event_id("sched", "sched_switch"));
    let euid = rights.as_ref().map_or(0, |rights| rights.euid);
    Ok(Surroundings {
        facts: machine.facts(),
        first_user_namespace: proc.own_namespace("user").map_or(true, |name| name == FIRST_USER_NAMESPACE),
        own_samples: (kernel.cpu_clock)(Observed::Myself, false),
        kernel_samples: (kernel.cpu_clock)(Observed::Myself, true),
        every_cpu: (kernel.cpu_clock)(Observed::EveryProcess, true),
        stranger: processes_where(proc, own, |uid| uid != euid)
            .first()
            .map(|&pid| (pid, (kernel.cpu_clock)(Observed::Process(pid), false))),
        kernel_symbols: proc.kernel_symbols_visible(),
        tracepoint: event.map(|id| (kernel.tracepoint)(id, observed)),
        hardware: hardware_events(kernel),
        memory: match &target {
            Some(target) => Some((kernel.read_memory)(target.pid)),
            None => read_any_memory(kernel, &processes_where(proc, own, |uid| uid == euid)),
        },
        kernel_stack: proc.thread_kernel_stack(watched, watched).map(drop),
        smaps: proc.smaps_readable(watched),
        schedstat: proc.thread_schedstat(watched, watched).map(|stat| stat.timeslices > 0),
        psi: proc.pressure("cpu"),
        hidden: proc.hidden_processes(),
        cgroup: cgroup_view(machine, watched),
        balloon: machine.balloon(),
        allocators: installed::allocators(machine),
        runtimes: installed::runtimes(&std::env::var_os("PATH").unwrap_or_default()),
        rights,
        target,
    })
}

/// Without those in whose place this processor has another one.
fn hardware_events(kernel: Kernel) -> Vec<(HardwareEvent, Measured<()>)> {
    let processor = Processor::this();
    let tried = |event| -> Measured<()> {
        let encoding = hardware::encoding(event, processor.as_ref())?;
        (kernel.hardware)(&encoding).map_err(|error| hardware::refusal(&error))
    };
    let has_another =
        |tried: &Measured<()>| tried.as_ref().is_err_and(|why| why.reason == Reason::NotApplicable);
    HardwareEvent::ALL
        .map(|event| (event, tried(event)))
        .into_iter()
        .filter(|(_, tried)| !has_another(tried))
        .collect()
}

fn cgroup_view(machine: &Machine, pid: i32) -> Measured<CgroupView> {
    let cgroups = CgroupFs::of(machine)?;
    let group = cgroups.group_of(pid)?;
    Ok(CgroupView { version: group.version, hybrid: cgroups.hybrid(), now: group.tick()?, path: group.path })
}

/// Limits the time that the tries take.
const MOST_TRIED: usize = 8;

/// Processes other than allocwall whose effective user fits. Low pids first: they live long, and a process that ends
/// during the try would look like a refusal.
fn processes_where(proc: &ProcFs, own: i32, fits: impl Fn(u32) -> bool) -> Vec<i32> {
    // Kernel threads have no memory and follow other rules.
    let fitting =
        |&pid: &i32| proc.status(pid).is_ok_and(|status| fits(status.uid[1]) && status.vm_size.is_some());
    let pids = proc.pids().unwrap_or_default().into_iter();
    pids.filter(|&pid| pid != own).filter(fitting).take(MOST_TRIED).collect()
}

/// One success shows the right. Single processes, such as init, may be protected for other reasons.
fn read_any_memory(kernel: Kernel, pids: &[i32]) -> Option<Tried> {
    let mut last = None;
    for &pid in pids {
        match (kernel.read_memory)(pid) {
            Ok(()) => return Some(Ok(())),
            Err(error) => last = Some(Err(error)),
        }
    }
    last
}

fn target_view(proc: &ProcFs, kernel: Kernel, pid: i32) -> Result<TargetView> {
    let stat = proc.process_stat(pid);
    let (stat, status) = match (stat, proc.status(pid)) {
        (Ok(stat), Ok(status)) => (stat, status),
        (Err(absence), _) | (_, Err(absence)) => {
            return Err(match absence.reason {
                Reason::Vanished | Reason::NotFound => Error::NoSuchProcess(pid),
                _ => Error::Refused(format!("process {pid}: {absence}")),
            });
        }
    };
    refuse_thread(pid, &status)?;
    // The main thread may have ended before the others: then read another thread.
    let thread = proc.living_thread(pid);
    let (state, status) = match (proc.thread_stat(pid, thread), proc.status(thread)) {
        (Ok(stat), Ok(status)) if thread != pid => (stat.state, status),
        _ => (stat.state, status),
    };
    let namespaces = NAMESPACES
        .iter()
        .filter_map(|kind| match (proc.namespace(pid, kind), proc.own_namespace(kind)) {
            (Ok(theirs), Ok(ours)) => (theirs != ours).then_some(Ok(*kind)),
            (Err(absence), _) if absence.reason == Reason::NotPermitted => Some(Err(absence)),
            _ => None,
        })
        .collect();
    Ok(TargetView {
        pid,
        // /proc/PID of an undumpable process belongs to root, which shows only if the process itself is not root's.
        dumpable: proc.owner(pid).ok().filter(|_| status.uid[1] != 0).map(|owner| owner == status.uid[1]),
        comm: stat.comm,
        state,
        threads: stat.threads,
        namespaces,
        samples: (kernel.cpu_clock)(Observed::Process(thread), false),
        kernel_samples: (kernel.cpu_clock)(Observed::Process(thread), true),
        status,
    })
}
