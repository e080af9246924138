//! The ladder: one function per rung, in order. Interference comes first, then costs in the kernel, then the
//! allocator's own code, because another allocator does not help while the kernel is the bottleneck.

mod allocator;
mod collector;
mod interference;
mod kernel;
mod locality;
mod retention;
mod waiting;

pub use interference::named;

use super::context::{Context, MendIfNone, Sum, percent};
use super::judge::{Case, Judged};
use super::{Finding, Status, Whole};
use allocwall_model::catalogue::thresholds::{self, Floor};
use allocwall_model::catalogue::walls::Wall;
use allocwall_model::units::{Absence, Interval, Reason};

/// A rung returns one finding for each wall that it judges.
type Rung = fn(&Context) -> Vec<Judged>;

const LADDER: [Rung; 11] = [
    interference::rung,
    waiting::rung,
    collector::rung,
    kernel::first_touch,
    kernel::map_churn,
    kernel::address_space_lock,
    locality::tlb,
    locality::numa,
    allocator::call_rate,
    allocator::code_and_contention,
    retention::rung,
];

pub fn walk(ctx: &Context) -> Vec<Judged> {
    let judged = LADDER.iter().flat_map(|rung| rung(ctx));
    match ctx.stopped() {
        None => judged.collect(),
        // A target that was stopped has no measurable walls of CPU or time. Its memory can be judged.
        Some(stopped) => judged
            .map(|judged| match judged.finding.of {
                Whole::Resident => judged,
                of => Judged::not_measured(judged.finding.wall, of, stopped.clone(), judged.finding.show),
            })
            .collect(),
    }
}

/// Worst first. Interference comes first, because it scales all other figures. (Waits of the target's threads for one
/// another are not interference; the run queue's share leaves them out.) Then come the walls that cost time, the most
/// expensive one first, then retention, which costs memory. Waiting comes last: it only says that CPU is not the
/// problem.
pub fn walls_worst_first(judged: &[Judged]) -> Vec<Wall> {
    let mut walls: Vec<&Judged> = judged.iter().filter(|j| j.is(Status::Wall)).collect();
    let group = |wall: Wall| match wall {
        Wall::CgroupThrottling => 0,
        Wall::Steal | Wall::RunQueue => 1,
        Wall::Retention => 3,
        Wall::Waiting => 4,
        _ => 2,
    };
    walls.sort_by(|a, b| group(a.finding.wall).cmp(&group(b.finding.wall)).then(b.cost.total_cmp(&a.cost)));
    walls.into_iter().map(|j| j.finding.wall).collect()
}

/// Judges a wall that is a sum of lines of CPU time.
fn cpu_case(ctx: &Context, wall: Wall, phrase: &str, show: String) -> Judged {
    let sum = match ctx.cpu(wall.lines()) {
        Ok(sum) => sum,
        Err(absence) => return without_samples(ctx, wall, absence, show),
    };
    let judge = |share: Interval| {
        Case {
            wall,
            share,
            of: Whole::Cpu,
            amount: share.scaled(ctx.cpu_rate),
            unit: "of CPU",
            phrase,
            show: show.clone(),
        }
        .judge()
    };
    unless_hidden(ctx, judge(sum.named), judge(sum.share))
}

/// A wall was not measured if the kernel time with symbols rules it out, but the kernel time without symbols could be
/// part of it.
fn unless_hidden(ctx: &Context, named: Judged, with_hidden: Judged) -> Judged {
    if !named.is(Status::RuledOut) || with_hidden.is(Status::RuledOut) {
        return with_hidden;
    }
    let Finding { wall, of, show, .. } = named.finding;
    let absence = Absence::new(
        Reason::NotPermitted,
        format!(
            "up to {} of the CPU time is kernel code without symbols, which may belong to this wall",
            percent(ctx.unnamed_kernel())
        ),
    )
    .mend("sysctl kernel.kptr_restrict=0");
    Judged::not_measured(wall, of, absence, show)
}

/// Whether the sum could be at least a contributor of this wall.
fn may_count(wall: Wall, sum: Sum) -> bool {
    sum.share.high >= thresholds::of(wall).contributor && sum.rate.high >= per_second_floor(wall)
}

/// Without samples, a wall can still be ruled out if the whole CPU time is below its floor.
fn without_samples(ctx: &Context, wall: Wall, absence: Absence, show: String) -> Judged {
    if ctx.cpu_is_known() && ctx.cpu_rate < per_second_floor(wall) {
        let mut judged = Judged::ruled_out(
            wall,
            Whole::Cpu,
            format!("the target's CPU time is only {:.0} ms a second", ctx.cpu_rate * 1e3),
            show,
        );
        judged.finding.share = None;
        return judged;
    }
    let absence = absence.mend_if_none("allocwall check");
    Judged::not_measured(wall, Whole::Cpu, absence, show)
}

fn per_second_floor(wall: Wall) -> f64 {
    match thresholds::of(wall).floor {
        Floor::PerSecond(floor) => floor,
        Floor::Bytes(_) | Floor::None => 0.0,
    }
}

fn perf_show(ctx: &Context, symbols: &str) -> String {
    format!("perf record -p {pid} sleep 9; perf report | grep -E '{symbols}'", pid = ctx.pid())
}
