//! Rungs 4 to 6: costs in the kernel that the allocator causes.

use super::cases::{cpu_case, in_unnamed_kernel, lock_case, lock_times, may_count, perf_show};
use crate::context::{Context, count, percent_interval};
use crate::judge::{Case, Judged};
use crate::{ShellLine, Status, Whole};
use allocwall_model::catalogue::advice;
use allocwall_model::catalogue::cost::{CostClass, WaitClass};
use allocwall_model::catalogue::owners::Owner;
use allocwall_model::catalogue::prices::{TOUCH_2M, TOUCH_2M_IDLE, TOUCH_4K, TOUCH_4K_IDLE, ZERO_4K};
use allocwall_model::catalogue::syscalls::MapCall;
use allocwall_model::catalogue::walls::Wall;
use allocwall_model::units::{Absence, Interval, Reason};
use std::collections::BTreeSet;

pub fn page_faults(ctx: &Context) -> Vec<Judged> {
    vec![first_touch(ctx), fork(ctx), file_fault(ctx)]
}

fn first_touch(ctx: &Context) -> Judged {
    let show = perf_show(ctx, "clear_page|fault");
    let faults = ctx.bill.rates.minor_faults.clone().ok();
    let mut judged =
        cpu_case(ctx, Wall::FirstTouch, "goes to faulting in and zeroing fresh pages", show.clone());
    if judged.is(Status::NotMeasured)
        && let Some(estimated) = by_price(ctx, faults, show)
    {
        judged = estimated;
    }
    let each = faults.filter(|f| *f > 1.0).and_then(|f| {
        let ns = ctx.cpu(Wall::FirstTouch.lines()).ok()?.rate.point * 1e9 / f;
        let listed = ctx
            .price(TOUCH_4K)
            .map_or_else(String::new, |p| format!(" (this machine's price: {:.0} ns)", p.point));
        Some(format!("{ns:.0} ns each{listed}"))
    });
    let reclaim = ctx
        .cpu(&[CostClass::Reclaim])
        .ok()
        .filter(|r| r.share.low > 0.01)
        .map(|r| format!("in addition, reclaim and compaction: {}", percent_interval(r.share)));
    judged
        .evidence_if(faults.map(|f| format!("{} minor faults a second", count(f))))
        .evidence_if(each)
        .evidence_if(reclaim)
}

fn fork(ctx: &Context) -> Judged {
    let show = perf_show(ctx, "wp_page|do_exit");
    let phrase = "goes to starting and ending processes and to copying shared pages";
    let judged = cpu_case(ctx, Wall::Fork, phrase, show);
    let judged = if forked(ctx) { judged } else { without_fork(ctx, judged) };
    let parts: Vec<String> = Wall::Fork
        .lines()
        .iter()
        .filter_map(|line| Some((line, ctx.cpu(&[*line]).ok()?.share)))
        .filter(|(_, share)| share.point > 0.0)
        .map(|(line, share)| format!("{}: {}", line.title(), percent_interval(share)))
        .collect();
    judged.evidence_if(Some(parts.join("; ")).filter(|parts| !parts.is_empty()))
}

/// Whether a process of the target has forked: its child was recorded too, or pages are copied that are of no file.
fn forked(ctx: &Context) -> bool {
    const MOST: f64 = 0.5;
    let processes = &ctx.recording.processes;
    let pids: BTreeSet<i32> = processes.iter().map(|process| process.pid).collect();
    let of_no_file = ctx.owned(Wall::Fork, |owner| !matches!(owner, Owner::File | Owner::Shared));
    processes.iter().any(|process| pids.contains(&process.ppid))
        || of_no_file.is_some_and(|part| part.low > MOST)
}

/// Threads start and end on the same line as processes. Copied pages whose owner is unknown may be those of a file.
fn without_fork(ctx: &Context, judged: Judged) -> Judged {
    if judged.is(Status::NotMeasured) || judged.is(Status::RuledOut) {
        return judged;
    }
    if ctx.cpu(&[CostClass::CopyOnWrite]).is_ok_and(|copies| may_count(Wall::Fork, copies)) {
        return judged.at_most_contributor("but no fork was seen");
    }
    let finding = judged.finding;
    let ruled_out =
        Judged::ruled_out(Wall::Fork, finding.of, "no process of the target forked", finding.show);
    match finding.share {
        Some(share) => ruled_out.share(share),
        None => ruled_out,
    }
}

fn file_fault(ctx: &Context) -> Judged {
    let show = perf_show(ctx, "filemap_map");
    cpu_case(ctx, Wall::FileFault, "goes to faults that map pages of files", show)
}

/// Without kernel stacks: number of faults × this machine's price. Low end: a fault that maps page cache zeroes no
/// page. High end: a fault on memory that the host has reclaimed costs more. The system time is the upper bound.
fn by_price(ctx: &Context, faults: Option<f64>, show: ShellLine) -> Option<Judged> {
    let (faults, touch) = (faults?, ctx.price(TOUCH_4K)?);
    if ctx.bill.cpu_s <= 0.0 {
        return None;
    }
    let system = ctx.increase(|t| t.system_ns)? as f64 / 1e9 / ctx.bill.cpu_s;
    let zero = ctx.price(ZERO_4K).map_or(touch.low, |z| z.high);
    let most_expensive = ctx.price(TOUCH_4K_IDLE).map_or(touch.high, |p| p.high.max(touch.high));
    let share = |ns_per_s: f64| (ns_per_s.max(0.0) / 1e9 / ctx.cpu_rate).min(system).clamp(0.0, 1.0);
    let case = |huge_ns_per_s: f64| {
        let share = Interval::new(
            share(faults * (touch.low - zero)),
            share(faults * touch.point),
            share(faults * most_expensive + huge_ns_per_s),
        );
        Case {
            wall: Wall::FirstTouch,
            share,
            of: Whole::Cpu,
            amount: share.scaled(ctx.cpu_rate),
            unit: "of CPU",
            phrase: "goes to faulting in and zeroing fresh pages, estimated from prices",
            show: show.clone(),
        }
        .judge()
    };
    let huge = huge_faults(ctx, faults);
    let huge_ns_each = [TOUCH_2M, TOUCH_2M_IDLE]
        .iter()
        .filter_map(|name| ctx.price(name))
        .map(|p| p.high)
        .fold(0.0, f64::max);
    let absence = || {
        Absence::new(
            Reason::NotPermitted,
            format!(
                "up to {} faults a second may each have zeroed a huge page; only kernel stacks show what they cost",
                count(huge)
            ),
        )
        .mend(advice::RUN_AS_ROOT)
    };
    Some(case(0.0).unless_hidden(case(huge * huge_ns_each), absence).estimate(
        "number of faults × this machine's price of a first touch; kernel stacks were not available",
    ))
}

/// Upper bound of the faults per second on transparent huge pages: the machine's count, if the kernel has it.
fn huge_faults(ctx: &Context, faults: f64) -> f64 {
    let target_has_none = ctx.process().is_some_and(|p| p.thp_disabled == Ok(true));
    if ctx.thp_mode().is_ok_and(|mode| mode == "never") || target_has_none {
        return 0.0;
    }
    match ctx.host_increase(|h| h.thp_fault_alloc) {
        Some(counted) => (counted as f64 / ctx.window_s).min(faults),
        None => faults,
    }
}

pub fn map_churn(ctx: &Context) -> Vec<Judged> {
    let show =
        ShellLine::from(format!("strace -f -c -e trace=%memory -p {}", ctx.pid())).remark("slows the target");
    let judged = cpu_case(ctx, Wall::MapChurn, "goes to mapping memory and returning it to the kernel", show);
    let fired = judged.is(Status::Wall) || judged.is(Status::Contributor);
    let calls = ctx.bill.rates.map_calls.clone().ok();
    let hint = if fired { cause(ctx) } else { None };
    vec![judged.evidence_if(calls.map(|c| format!("{} map calls a second", count(c)))).evidence_if(hint)]
}

/// The behaviour of the allocator that the mix of calls suggests.
fn cause(ctx: &Context) -> Option<String> {
    let rate = |call| ctx.map_call_rate(call).unwrap_or(0.0);
    let (map, unmap, brk, advise) =
        (rate(MapCall::Mmap), rate(MapCall::Munmap), rate(MapCall::Brk), rate(MapCall::Madvise));
    let all: f64 = MapCall::ALL.into_iter().filter(|call| call.moves_memory()).map(rate).sum();
    if all < 1.0 {
        return None;
    }
    let hint = if brk > 0.5 * all {
        "mostly brk: the allocator trims the top of the heap and grows it again (trim_threshold, top_pad)"
    } else if advise > 0.5 * all {
        "mostly madvise: the allocator returns pages and uses them again (arena shrink or decay)"
    } else if map + unmap > 0.5 * all && map > 0.3 * (map + unmap) && unmap > 0.3 * (map + unmap) {
        "mmap and munmap alternate: blocks above the mmap threshold are mapped and unmapped one by one"
    } else {
        return None;
    };
    let mix: Vec<String> = [MapCall::Mmap, MapCall::Munmap, MapCall::Brk, MapCall::Madvise]
        .into_iter()
        .filter(|call| rate(*call) >= 0.01 * all)
        .map(|call| format!("{} {}", call.name(), count(rate(call))))
        .collect();
    Some(format!("{hint}; {}", mix.join(", ")))
}

pub fn address_space_lock(ctx: &Context) -> Vec<Judged> {
    const WALL: Wall = Wall::AddressSpaceLock;
    let show =
        ShellLine::from(format!("perf lock contention -ab -p {} -- sleep 5", ctx.pid())).remark("mmap_lock");
    let (spin, blocked) = match lock_times(ctx, WALL, WaitClass::AddressSpaceLock, &show) {
        Ok(times) => times,
        Err(judged) => return vec![*judged],
    };
    let case = |spin| {
        let phrase = "was spent waiting for the address-space lock";
        lock_case(ctx, WALL, spin, blocked, phrase, show.clone())
    };
    let judged = case(spin.named).unless_hidden(case(spin.share), || in_unnamed_kernel(ctx));
    vec![judged.evidence(format!(
        "{:.3} CPUs spinning, {:.3} threads blocked on average",
        spin.rate.point,
        blocked.point / ctx.window_s
    ))]
}
