//! The closed window: what can wait until the target is no longer measured, and the recording.

use super::Recorded;
use super::attach::{Attached, Command};
use super::bills::{self, Bills};
use super::placement::{self, Placing};
use super::probes;
use super::window::Window;
use crate::allocations::{Counting, Watched};
use crate::counts::Counted;
use crate::file::{Part, Tail, Written};
use allocwall_host::cgroup::{CgroupFs, Frozen};
use allocwall_host::clock;
use allocwall_host::proc::ProcFs;
use allocwall_model::catalogue::advice::Advice;
use allocwall_model::error::Result;
use allocwall_model::recording::{EventCount, Probe, ProbeName, ProbeState};
use allocwall_model::units::{Absence, Reason};
use std::collections::HashSet;
use std::path::PathBuf;
use std::time::Duration;

/// A window after its last readings.
pub struct Closed {
    pub window: Window,
    /// CLOCK_MONOTONIC.
    pub end_ns: u64,
    /// Resident bytes at the end; None if the target had ended, or they could not be read.
    pub resident: Option<u64>,
    /// On which NUMA nodes the memory is, which is read meanwhile.
    pub placement: Placing,
    /// The resident memory by owner, which is read meanwhile.
    pub bills: Option<Bills>,
    /// What kept the target from running.
    pub stopped: Option<Absence>,
    /// The state of Python's stacks; None if the target has no Python.
    pub python: Option<Probe>,
}

impl Closed {
    /// Unwinds and names the stacks, and writes the rest of the recording.
    pub fn assemble(self, output: Option<PathBuf>) -> Result<Recorded> {
        let Closed { window, end_ns, resident, placement, bills, stopped, python } = self;
        let Window { mut target, mut writer, mut meta, readings, counting, allocations, pids, .. } = window;
        let Counted { calls, calls_probe, hardware, hardware_probe } = counting.finish();
        let (counts, counted) = without_narrow(&target, (calls, calls_probe));
        // Before the probes: what was lost to limits is known only then.
        target.collector.unwind_all();
        let mut probes = probes::of(&mut target, &readings, counted, hardware_probe, resident);
        probes.extend(stopped.map(|absence| Probe::new(ProbeName::Stopped, ProbeState::Partial(absence))));
        probes.extend(python);
        let (fault_slices, fault_owners) = readings.faults.finish(target.collector.owners_missing());
        probes.extend(fault_owners);
        let loads = target.collector.find_loads();
        let (accounts, collecting) = readings.accounts.finish();
        let stays = target.stays();
        let mut collected = target.collector.finish(meta.sample_period_ns, loads);
        let alive: HashSet<i32> = pids.into_iter().filter(|_| stays).collect();
        collected.processes.iter_mut().for_each(|process| process.ended = !alive.contains(&process.pid));
        let (resident, heap) = bills.map_or_else(bills::not_read, Bills::finish);
        probes.extend(bills::probe(&resident));
        let placement = placement.finish();
        probes.extend(placement::probe(&placement));
        meta.lost_records = collected.lost;
        writer.write(&Part::Devices(Box::new(readings.devices.finish())));
        writer.write(&Part::SmapsCost(readings.ticks.smaps_cost()));
        let (allocations, traces) = match allocations.and_then(Counting::finish) {
            Ok(Watched { counted, traces }) => (Ok(counted), traces),
            Err(why) => (Err(why), Vec::new()),
        };
        writer.write(&Part::Counted(Box::new(allocations)));
        writer.write(&Part::Tail(Box::new(Tail {
            meta,
            processes: collected.processes,
            probes,
            threads: readings.threads.finish(),
            modules: collected.modules,
            counts,
            neighbours: collected.neighbours,
            heap,
            resident,
            placement,
            loads: collected.loads,
            accounts,
            collecting,
            fault_slices,
            hardware,
            frames: collected.frames,
            stacks: collected.stacks,
            sample_stacks: collected.sample_stacks,
            wait_stacks: collected.wait_stacks,
        })));
        let Written { recording, failure: file_failure, bytes } = writer.finish_with_bytes();
        let launched = target.command.map(Command::hand_over);
        Ok(Recorded {
            recording: recording?,
            traces,
            bytes,
            path: output.filter(|_| file_failure.is_none()),
            file_failure,
            after_window: Duration::from_nanos(clock::monotonic_ns() - end_ns),
            launched,
        })
    }
}

/// Tracepoints of system calls do not include those of 32-bit programs (arch_trace_is_compat_syscall,
/// asm/ftrace.h).
fn without_narrow(target: &Attached, (counts, probe): (Vec<EventCount>, Probe)) -> (Vec<EventCount>, Probe) {
    let narrow = &target.collector.family.narrow;
    if narrow.is_empty() || matches!(probe.state, ProbeState::Absent(_)) {
        return (counts, probe);
    }
    let all = target.collector.family.listing.processes.iter().all(|p| narrow.contains(&p.pid));
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

/// What keeps the target from running, and how to resume it; None if it can run.
pub fn stopped(proc: &ProcFs, pids: &[i32]) -> Option<Absence> {
    /// The most processes that are checked; whatever stops one process of a tree usually stops all.
    const CHECKED: usize = 64;
    let cgroups = CgroupFs::live().ok();
    let freezer = |pid: i32| cgroups.as_ref()?.frozen(pid);
    pids.iter().take(CHECKED).find_map(|&pid| process_stopped(proc, pid, freezer(pid)))
}

/// What keeps one process from running: a signal, a tracer, or its frozen cgroup.
fn process_stopped(proc: &ProcFs, pid: i32, frozen: Option<Frozen>) -> Option<Absence> {
    let stopped = |detail: String| Absence::new(Reason::TooLittle, detail);
    if let Some(Frozen { dir, thaw }) = frozen {
        let detail = format!("its cgroup {} is frozen", dir.display());
        return Some(stopped(detail).mend(Advice::command(thaw)));
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
            Some(stopped(detail).mend(Advice::command(format!("kill -CONT {pid}"))))
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
