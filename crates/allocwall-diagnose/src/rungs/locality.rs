//! Rungs 7 and 8: costs of the hardware that depend on where memory is: TLB misses and remote NUMA nodes.

use crate::context::{Context, bytes, percent};
use crate::judge::{Case, Judged};
use crate::{ShellLine, Status, Whole};
use allocwall_model::catalogue::advice::Advice;
use allocwall_model::catalogue::cost::CostClass;
use allocwall_model::catalogue::prices::{LOAD_2M, LOAD_4K};
use allocwall_model::catalogue::thresholds::{self, TLB_REACH_BYTES};
use allocwall_model::catalogue::walls::Wall;
use allocwall_model::recording::ProbeName;
use allocwall_model::units::{Absence, Interval, Reason};

/// An upper bound of the TLB's cost. It assumes that all of the application's time is dependent loads beyond the
/// TLB's reach, and multiplies it by what huge pages save on such a load, by this machine's prices. A bound can rule
/// the wall out, but it cannot prove it.
pub fn tlb(ctx: &Context) -> Vec<Judged> {
    const WALL: Wall = Wall::Tlb;
    const ESTIMATE: &str =
        "upper bound from resident memory, huge-page coverage and load prices; no counter was read";
    let show =
        ShellLine::from(format!("perf stat -e dTLB-loads,dTLB-load-misses -p {} -- sleep 10", ctx.pid()));
    let smaps = ctx.last_smaps();
    // Shared memory and mapped files use the same TLB. The resident set does not include hugetlb pages.
    let huge = smaps.map_or(0, |s| s.anon_huge.saturating_add(s.hugetlb));
    let resident = match smaps {
        Some(s) => Some(s.rss.saturating_add(s.hugetlb)),
        None => ctx.last_tick().map(|t| t.resident),
    };
    let pmu_missing = || match &ctx.recording.host.pmu {
        Ok(()) => Absence::new(Reason::TooCostly, "allocwall does not read TLB counters")
            .mend(Advice::command(show.command.clone())),
        Err(absence) => {
            absence.clone().mend_if_none(["use a machine with a PMU", "try huge pages and compare"])
        }
    };
    let Some(resident) = resident.filter(|r| *r > 0) else {
        return vec![Judged::not_measured(WALL, Whole::Cpu, pmu_missing(), show.clone())];
    };
    let small = resident.saturating_sub(huge);
    let memory = format!(
        "{} resident, {} of it on huge pages",
        bytes(resident as f64),
        bytes(huge.min(resident) as f64)
    );
    if small <= TLB_REACH_BYTES {
        let judged = Judged::ruled_out(
            WALL,
            Whole::Cpu,
            format!(
                "{} on 4 KiB pages fit into the TLB's reach of {}",
                bytes(small as f64),
                bytes(TLB_REACH_BYTES as f64)
            ),
            show.clone(),
        );
        return vec![judged.evidence(memory).estimate(ESTIMATE)];
    }
    let busy = ctx.cpu(&[
        CostClass::Application,
        CostClass::AllocatorCode,
        CostClass::RuntimeAllocator,
        CostClass::GarbageCollector,
    ]);
    let (Some(load_4k), Some(load_2m), Ok(busy)) = (ctx.price(LOAD_4K), ctx.price(LOAD_2M), busy) else {
        return vec![Judged::not_measured(WALL, Whole::Cpu, pmu_missing(), show.clone()).evidence(memory)];
    };
    let saved = (1.0 - load_2m.low / load_4k.high).clamp(0.0, 1.0);
    let bound = busy.share.high * saved * (small as f64 / resident as f64);
    let share = Interval::new(0.0, bound / 2.0, bound);
    let judged = Case {
        wall: WALL,
        share,
        of: Whole::Cpu,
        amount: share.scaled(ctx.cpu_rate),
        unit: "of CPU",
        phrase: "is the upper bound for TLB misses",
        show: show.clone(),
    }
    .judge();
    if judged.is(Status::RuledOut) {
        let mut judged = judged;
        let threshold = thresholds::of(WALL).contributor;
        judged.finding.because = if bound < threshold {
            format!("at most {} of CPU; threshold {}", percent(bound), percent(threshold))
        } else {
            // The share is large, of very little CPU time.
            format!("at most {:.0} ms a second", bound * ctx.cpu_rate * 1e3)
        };
        return vec![judged.evidence(memory).estimate(ESTIMATE)];
    }
    let mut judged = Judged::not_measured(WALL, Whole::Cpu, pmu_missing(), show.clone());
    judged.finding.because = format!("at most {} of CPU (an upper bound, not a measurement)", percent(bound));
    vec![judged.evidence(memory).estimate(ESTIMATE)]
}

pub fn numa(ctx: &Context) -> Vec<Judged> {
    const WALL: Wall = Wall::Numa;
    let show = ShellLine::from(format!("numastat -p {}", ctx.pid()));
    if ctx.recording.host.numa_nodes <= 1 {
        return vec![Judged::ruled_out(WALL, Whole::Resident, "one node", show)];
    }
    let nodes = ctx
        .last_tick()
        .and_then(|t| t.numa_resident.as_ref())
        .map(|n| n.iter().map(|b| bytes(*b as f64)).collect::<Vec<_>>().join(" + "));
    let placed = nodes.map(|n| format!("resident by node: {n}"));
    let (Some(remote), Some(local)) =
        (ctx.host_increase(|h| h.numa_remote), ctx.host_increase(|h| h.numa_local))
    else {
        let absence = ctx
            .recording
            .probe_absence(ProbeName::Numa)
            .unwrap_or_else(|| {
                Absence::new(Reason::NotFound, "the nodes' allocation counters could not be read")
            })
            .mend_if_none(["run perf stat -e node-loads,node-load-misses -p PID on a machine with a PMU"]);
        return vec![Judged::not_measured(WALL, Whole::Resident, absence, show).evidence_if(placed)];
    };
    if remote + local < 1000 {
        let absence = Absence::new(
            Reason::TooLittle,
            format!(
                "only {} pages were allocated in the window: too few for a share of remote pages",
                remote + local
            ),
        )
        .mend("run perf stat -e node-loads,node-load-misses -p PID on a machine with a PMU");
        return vec![Judged::not_measured(WALL, Whole::Resident, absence, show).evidence_if(placed)];
    }
    let share = Interval::exact(remote as f64 / (remote + local) as f64);
    let mut judged = Case {
        wall: WALL,
        share,
        of: Whole::Resident,
        amount: share,
        unit: "of new pages",
        phrase: "are on a different node than the CPU that requested them",
        show: show.clone(),
    }
    .judge();
    // The share is of pages, not of time. The cost in time was not measured.
    judged.cost = 0.0;
    if judged.is(Status::RuledOut) {
        let absence = Absence::new(
            Reason::NotSupported,
            format!(
                "{} of the machine's new pages are remote; the placement of the target's older pages is unknown",
                percent(share.point)
            ),
        )
        .mend("run perf stat -e node-loads,node-load-misses -p PID on a machine with a PMU");
        judged = Judged::not_measured(WALL, Whole::Resident, absence, show);
    }
    vec![
        judged
            .evidence_if(placed)
            .estimate("from the machine's counters of page placement, not from the target's accesses"),
    ]
}
