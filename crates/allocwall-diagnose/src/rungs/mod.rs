//! The ladder: one function a rung, walked in order. Interference first, invisible costs next, the allocator's own
//! code last, because an allocator swap looks useless while the kernel is still the bottleneck.

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
use allocwall_model::catalogue::cost::CostClass;
use allocwall_model::catalogue::thresholds::{self, Floor};
use allocwall_model::catalogue::walls::Wall;
use allocwall_model::units::{Absence, Interval, Reason};

/// A rung yields a finding for each wall that it can name.
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
        // What a target that may not run does not do is neither a wall nor ruled out. Its memory is still there.
        Some(stopped) => judged
            .map(|judged| match judged.finding.of {
                Whole::Resident => judged,
                of => Judged::not_measured(judged.finding.wall, of, stopped.clone(), judged.finding.show),
            })
            .collect(),
    }
}

/// Worst first. Interference comes before everything, since it scales all other figures (what the target's own threads
/// take from one another is no part of it: the run queue's share leaves it out); then what costs most time; then memory, which costs none; and that the target
/// waits comes last, since it only says where not to look.
pub fn walls_worst_first(judged: &[Judged]) -> Vec<Wall> {
    let mut walls: Vec<&Judged> = judged.iter().filter(|j| j.is(Status::Wall)).collect();
    let group = |wall: Wall| match wall {
        Wall::CgroupThrottling => 0,
        Wall::Steal | Wall::RunQueue => 1,
        Wall::Retention => 3,
        Wall::Waiting => 4,
        _ => 2,
    };
    walls.sort_by(|a, b| {
        group(a.finding.wall)
            .cmp(&group(b.finding.wall))
            .then(b.cost.total_cmp(&a.cost))
    });
    walls.into_iter().map(|j| j.finding.wall).collect()
}

/// A wall that is a sum of on-CPU lines, judged on the target's CPU time.
fn cpu_case(ctx: &Context, wall: Wall, classes: &[CostClass], phrase: &str, show: String) -> Judged {
    let sum = match ctx.cpu(classes) {
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

/// What is small among the kernel time that has names, and may be large with the rest, was not measured.
fn unless_hidden(ctx: &Context, named: Judged, with_hidden: Judged) -> Judged {
    if !named.is(Status::RuledOut) || with_hidden.is(Status::RuledOut) {
        return with_hidden;
    }
    let Finding { wall, of, show, .. } = named.finding;
    let absence = Absence::new(
        Reason::NotPermitted,
        format!(
            "up to {} of the CPU time is kernel code without names, which may be this",
            percent(ctx.unnamed_kernel())
        ),
    )
    .mend("sysctl kernel.kptr_restrict=0");
    Judged::not_measured(wall, of, absence, show)
}

/// Whether all of it together would count as this wall.
fn may_count(wall: Wall, sum: Sum) -> bool {
    sum.share.high >= thresholds::of(wall).contributor && sum.rate.high >= per_second_floor(wall)
}

/// Without shares a wall can still be ruled out where the whole of the CPU time is below its floor.
fn without_samples(ctx: &Context, wall: Wall, absence: Absence, show: String) -> Judged {
    if ctx.cpu_is_known() && ctx.cpu_rate < per_second_floor(wall) {
        let mut judged = Judged::ruled_out(
            wall,
            Whole::Cpu,
            format!("all of its CPU time is {:.0} ms a second", ctx.cpu_rate * 1e3),
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
    format!(
        "perf record -p {pid} sleep 9; perf report | grep -E '{symbols}'",
        pid = ctx.pid()
    )
}
