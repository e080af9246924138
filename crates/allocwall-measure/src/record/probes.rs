//! Whether each source of measurements worked, and why not.

use super::attach::{Attached, Sampling};
use super::window::Readings;
use crate::collect::Collector;
use crate::groups::Groups;
use crate::ticks::SMAPS_LIMIT;
use allocwall_host::rights::run_as_root;
use allocwall_model::catalogue::advice;
use allocwall_model::recording::{Probe, ProbeName, ProbeState};
use allocwall_model::units::{Absence, Measured, Reason};

/// Why no more data of one kind was kept.
pub fn full(t_ns: u64) -> Absence {
    let seconds = t_ns as f64 / 1e9;
    too_costly(format!("the recording was full after {seconds:.1} s: later data is missing"))
}

fn too_costly(detail: String) -> Absence {
    Absence::new(Reason::TooCostly, detail)
}

/// `counts` is the probe of the map calls; `hardware` that of the hardware events; `resident` the target's memory at the
/// end.
pub fn of(
    target: &mut Attached,
    readings: &Readings,
    counts: Probe,
    hardware: Probe,
    resident: Option<u64>,
) -> Vec<Probe> {
    let (sampling, collector) = (&target.sampling, &target.collector);
    let mut probes = vec![
        Probe::new(ProbeName::CpuSamples, cpu_samples(sampling, collector)),
        Probe::new(ProbeName::KernelStacks, kernel_stacks(sampling, collector)),
        Probe::new(ProbeName::Waits, readings.waits.state()),
        cgroup(&target.cgroups),
    ];
    let unread = readings.ticks.probes();
    if !unread.iter().any(|p| p.name == ProbeName::Smaps) {
        probes.push(Probe::new(ProbeName::Smaps, smaps(resident)));
    }
    probes.extend(unread);
    probes.push(counts);
    let incomplete = [
        (ProbeName::Tree, target.tree_unread.clone()),
        (ProbeName::Processes, target.collector.family.missing().map(too_costly)),
        (ProbeName::Names, target.collector.unread()),
        (ProbeName::Code, target.collector.family.code_cut.clone()),
    ];
    probes.extend(
        incomplete
            .into_iter()
            .filter_map(|(name, absence)| Some(Probe::new(name, ProbeState::Partial(absence?)))),
    );
    probes.push(hardware);
    probes.extend(readings.threads.probe());
    probes
}

fn cpu_samples(sampling: &Sampling, collector: &Collector) -> ProbeState {
    let clocks = match &sampling.clocks {
        Ok(clocks) => clocks,
        Err(absence) => return ProbeState::Absent(absence.clone()),
    };
    let missing = if clocks.left_out() > 0 {
        too_costly(format!("{} threads were not sampled: too many open files", clocks.left_out()))
            .mend(advice::OPEN_FILES)
            .mend(run_as_root())
    } else if collector.samples_left_out > 0 {
        too_costly(format!(
            "the recording was full: the last {} samples are missing",
            collector.samples_left_out
        ))
    } else if collector.without_callers > 0 {
        too_costly(format!(
            "the recording was full: the callers of {} samples are missing",
            collector.without_callers
        ))
    } else if collector.narrow_samples > 0 {
        Absence::new(
            Reason::NotSupported,
            format!(
                "the callers of {} samples are missing: 32-bit programs are not unwound",
                collector.narrow_samples
            ),
        )
    } else {
        return ProbeState::Measured;
    };
    ProbeState::Partial(missing)
}

fn kernel_stacks(sampling: &Sampling, collector: &Collector) -> ProbeState {
    match (&sampling.clocks, sampling.kernel_stacks) {
        (Err(absence), _) => ProbeState::Absent(absence.clone()),
        (Ok(_), false) => ProbeState::Absent(
            Absence::new(
                Reason::NotPermitted,
                "kernel time is not sampled for this user (perf_event_paranoid 2 or more)",
            )
            .mend(run_as_root())
            .mend(advice::KERNEL_STACKS),
        ),
        (Ok(_), true) if !collector.kernel_named() => ProbeState::Partial(
            Absence::new(Reason::NotPermitted, "kernel symbols are hidden (kptr_restrict)")
                .mend(advice::KERNEL_NAMES)
                .mend(run_as_root()),
        ),
        (Ok(_), true) => ProbeState::Measured,
    }
}

fn cgroup(groups: &Measured<Groups>) -> Probe {
    match groups {
        Ok(groups) => groups.outcome(),
        Err(absence) => Probe::new(ProbeName::Cgroup, ProbeState::Absent(absence.clone())),
    }
}

fn smaps(resident: Option<u64>) -> ProbeState {
    match resident.is_some_and(|bytes| bytes > SMAPS_LIMIT) {
        true => ProbeState::Absent(too_costly(format!(
            "resident memory is above {} GiB: walking its page tables would stall the target",
            SMAPS_LIMIT >> 30
        ))),
        false => ProbeState::Measured,
    }
}
