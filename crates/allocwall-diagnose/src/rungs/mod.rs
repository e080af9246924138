//! The ladder: one function per rung, in order. Interference comes first, then costs in the kernel, then the
//! allocator's own code, because another allocator does not help while the kernel is the bottleneck.

mod allocator;
mod cases;
mod collector;
mod devices;
mod interference;
mod kernel;
mod numa;
mod retention;
mod tlb;
mod waiting;

pub use allocator::{UNCOUNTED, rate_of_calls};
pub use devices::storage_place;
pub use interference::named;

use super::context::Context;
use super::judge::Judged;
use super::{Status, Whole};
use allocwall_model::catalogue::walls::Wall;

/// A rung returns one finding for each wall that it judges.
type Rung = fn(&Context) -> Vec<Judged>;

const LADDER: [Rung; 12] = [
    interference::rung,
    waiting::rung,
    collector::rung,
    kernel::page_faults,
    kernel::map_churn,
    kernel::address_space_lock,
    tlb::tlb,
    numa::numa,
    kernel::kernel_slab,
    allocator::calls_or_bytes,
    allocator::code_and_contention,
    retention::rung,
];

pub fn walk(ctx: &Context) -> Vec<Judged> {
    let judged = LADDER.iter().flat_map(|rung| rung(ctx));
    match ctx.unjudged() {
        None => judged.collect(),
        // A target that was stopped, or hardly seen, has no measurable walls of CPU or time. Its memory can be judged.
        Some(why) => judged
            .map(|judged| match judged.finding.of {
                Whole::Resident => judged,
                of => Judged::not_measured(judged.finding.wall, of, why.clone(), judged.finding.show),
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
