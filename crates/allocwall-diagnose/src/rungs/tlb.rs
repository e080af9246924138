//! Rung 7: TLB misses.

use super::cases::share_case;
use crate::context::{Context, bytes, count, percent};
use crate::hardware::walk_event;
use crate::judge::Judged;
use crate::{ShellLine, Status, Whole};
use allocwall_model::catalogue::thresholds::{self, TLB_REACH_BYTES};
use allocwall_model::catalogue::walls::Wall;
use allocwall_model::recording::HardwareEvent;
use allocwall_model::units::{Absence, Interval, Reason};

const WALL: Wall = Wall::Tlb;

/// With a PMU: the cycles in page walks, where the processor counts them, else the number of misses at this machine's
/// price. Without: an upper bound.
pub fn tlb(ctx: &Context) -> Vec<Judged> {
    const COUNT: &str = "perf stat -e dTLB-loads,dTLB-load-misses";
    let sudo = if ctx.recording.host.euid == 0 { "sudo " } else { "" };
    let show = ctx.show(|pid| format!("{sudo}{COUNT} -p {pid} -- sleep 10"), format!("{COUNT} CMD"));
    let judged = by_walks(ctx, &show)
        .or_else(|| by_misses(ctx, &show).filter(|judged| !judged.is(Status::NotMeasured)))
        .unwrap_or_else(|| bound(ctx, show));
    vec![judged.evidence_if(misses(ctx))]
}

/// The processor counts the cycles in which a page walk for a load was active. If it leaves out some walks, the count is a
/// lower bound, which rules nothing out.
fn by_walks(ctx: &Context, show: &ShellLine) -> Option<Judged> {
    const AT_LEAST: &str =
        "lower bound: on this processor the count leaves out walks of the hypervisor's tables";
    let judged = share_case(ctx, WALL, ctx.page_walks()?, "goes to page walks after TLB misses", show);
    if !ctx.walks_are_partial() {
        return Some(judged);
    }
    let fired = judged.finding.status.has_fired();
    fired.then(|| judged.estimate(AT_LEAST))
}

fn by_misses(ctx: &Context, show: &ShellLine) -> Option<Judged> {
    const ESTIMATE: &str = "from counted misses and load prices; unknown how many page walks overlap";
    let share = ctx.page_walks_by_misses()?;
    Some(share_case(ctx, WALL, share, "may go to page walks after TLB misses", show).estimate(ESTIMATE))
}

/// The counted misses, as a line of evidence.
fn misses(ctx: &Context) -> Option<String> {
    let event = HardwareEvent::DtlbLoadMisses;
    let number = count(ctx.hardware(event)?.point);
    let counts = ctx.recording.hardware.as_ref().ok()?;
    let each = match ctx.hardware_ratio(event, HardwareEvent::Instructions) {
        Ok(ratio) => format!(", {:.2} per 1,000 instructions", ratio.point * 1e3),
        Err(_) => String::new(),
    };
    let mode = if counts.kernel { "" } else { " in user mode" };
    let shared = match counts.of(event).map_or(0.0, |slices| slices.unseen()) {
        unseen if unseen < 0.01 => String::new(),
        unseen => format!("; the counters were free for {} of the time", percent(1.0 - unseen)),
    };
    Some(format!("{number} dTLB load misses{mode}{each}{shared}"))
}

/// Why there is no figure from counters.
fn not_counted(ctx: &Context) -> Absence {
    let absence = match &ctx.recording.hardware {
        Err(absence) => absence.clone(),
        Ok(counts) => {
            let walks = counts.of(walk_event(counts));
            let reason = walks.and_then(|_| counts.of(HardwareEvent::DtlbLoadMisses)).err();
            reason.unwrap_or_else(|| {
                if ctx.walks_are_partial() {
                    let why = "on this processor the count of page walks leaves out those of the hypervisor's tables";
                    return Absence::new(Reason::NotSupported, why);
                }
                let why = "the hardware events do not show the cost of TLB misses closely enough";
                Absence::new(Reason::TooLittle, why).mend("use a longer window: -d 60")
            })
        }
    };
    absence.mend_if_none(["use a machine with a PMU", "try huge pages and compare"])
}

/// A bound can rule the wall out, but it cannot prove it.
fn bound(ctx: &Context, show: ShellLine) -> Judged {
    const ESTIMATE: &str =
        "upper bound from resident memory, huge-page coverage and load prices; no counter was read";
    let Some((resident, huge)) = ctx.resident_on_pages() else {
        return Judged::not_measured(WALL, Whole::Cpu, not_counted(ctx), show);
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
        return judged.evidence(memory).estimate(ESTIMATE);
    }
    let Some(bound) = ctx.page_walks_by_size() else {
        return Judged::not_measured(WALL, Whole::Cpu, not_counted(ctx), show).evidence(memory);
    };
    let share = Interval::new(0.0, bound / 2.0, bound);
    let judged = share_case(ctx, WALL, share, "is the upper bound for TLB misses", &show);
    if judged.is(Status::RuledOut) {
        let mut judged = judged;
        let threshold = thresholds::of(WALL).contributor;
        judged.finding.because = if bound < threshold {
            format!("at most {} of CPU; threshold {}", percent(bound), percent(threshold))
        } else {
            // The share is large, of very little CPU time.
            format!("at most {:.0} ms a second", bound * ctx.undisturbed_cpu_rate() * 1e3)
        };
        return judged.evidence(memory).estimate(ESTIMATE);
    }
    let mut judged = Judged::not_measured(WALL, Whole::Cpu, not_counted(ctx), show);
    judged.finding.because = format!("at most {} of CPU (an upper bound, not a measurement)", percent(bound));
    judged.evidence(memory).estimate(ESTIMATE)
}
