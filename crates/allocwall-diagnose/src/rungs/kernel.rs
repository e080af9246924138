//! Rungs 4 to 6, and 9: costs in the kernel that the program's memory, or its sockets and files, cause.

use super::cases::{
    cpu_case, in_unnamed_kernel, lock_case, lock_times, may_count, perf_show_kernel, share_case,
};
use crate::bill::{LEAST_LATE, of_files};
use crate::context::{Context, count, percent, percent_interval};
use crate::counted::Calling;
use crate::judge::Judged;
use crate::{ShellLine, Status, Whole};
use allocwall_model::catalogue::advice;
use allocwall_model::catalogue::cost::{CostClass, WaitClass};
use allocwall_model::catalogue::owners::Owner;
use allocwall_model::catalogue::prices::{TOUCH_2M, TOUCH_2M_IDLE, TOUCH_4K, TOUCH_4K_IDLE, ZERO_4K};
use allocwall_model::catalogue::syscalls::MapCall;
use allocwall_model::catalogue::walls::Wall;
use allocwall_model::units::{Absence, Interval, Reason};

pub fn page_faults(ctx: &Context) -> Vec<Judged> {
    vec![first_touch(ctx), fork(ctx), file_fault(ctx)]
}

/// Other kinds of fault that take less than this part of the first touches are left out.
const NEGLIGIBLE: f64 = 0.05;

fn first_touch(ctx: &Context) -> Judged {
    let show = perf_show_kernel(ctx, "clear_page|fault");
    let faults = ctx.bill.rates.minor_faults.clone().ok();
    let mut judged =
        cpu_case(ctx, Wall::FirstTouch, "goes to faulting in and zeroing fresh pages", show.clone());
    if judged.is(Status::NotMeasured)
        && let Some(estimated) = by_price(ctx, faults, show)
    {
        judged = estimated;
    }
    // The counter counts every kind of fault.
    let others = ctx.cpu(&[CostClass::CopyOnWrite, CostClass::FileFault]).map_or(0.0, |sum| sum.named.point);
    let alone = judged.finding.share.is_some_and(|share| others < NEGLIGIBLE * share.point);
    let each = faults.filter(|f| *f > 1.0 && alone).and_then(|f| {
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

const BY_FORKS: &str = "goes to forks, and to copying the pages that they share";

fn fork(ctx: &Context) -> Judged {
    let judged = cpu_case(ctx, Wall::Fork, BY_FORKS, perf_show_kernel(ctx, "wp_page|do_exit"));
    let judged = if judged.is(Status::NotMeasured) || judged.is(Status::RuledOut) {
        judged
    } else {
        only_forks(ctx, judged)
    };
    let parts: Vec<String> = Wall::Fork
        .lines()
        .iter()
        .filter_map(|line| Some((line, ctx.cpu(&[*line]).ok()?.share)))
        .filter(|(_, share)| share.point > 0.0)
        .map(|(line, share)| format!("{}: {}", line.title(), percent_interval(share)))
        .collect();
    let steps = if starts_count(ctx) { ctx.starts().text() } else { None };
    judged.evidence_if(Some(parts.join("; ")).filter(|parts| !parts.is_empty())).evidence_if(steps)
}

/// Whether the line of starting and ending processes and threads is large enough for a contributor.
fn starts_count(ctx: &Context) -> bool {
    ctx.cpu(&[CostClass::ForkExit]).is_ok_and(|starts| may_count(ctx, Wall::Fork, starts))
}

/// Whether pages are copied, and most of them are of no file. Processes share such pages only since a fork, perhaps before
/// the window.
fn copies_memory(ctx: &Context) -> bool {
    const MOST: f64 = 0.5;
    let of_no_file = ctx.owned(Wall::Fork, |owner| !matches!(owner, Owner::File | Owner::Shared));
    ctx.starts().copies_pages() && of_no_file.is_some_and(|part| part.low > MOST)
}

/// Judges forks alone. Threads, vfork and posix_spawn are on the line of starting and ending processes too, and copy no
/// address space. Copied pages whose owner is unknown may be those of a file.
fn only_forks(ctx: &Context, judged: Judged) -> Judged {
    let (Ok(copies), Ok(starts)) = (ctx.cpu(&[CostClass::CopyOnWrite]), ctx.cpu(&[CostClass::ForkExit]))
    else {
        return judged;
    };
    let part = ctx.starts().of_forks();
    let judge = |copies: Interval| {
        let share = Interval::new(
            copies.low + starts.named.low * part.low,
            copies.point + starts.named.point * part.point,
            (copies.high + starts.named.high * part.high).min(1.0),
        );
        share_case(ctx, Wall::Fork, share, BY_FORKS, &judged.finding.show)
    };
    // Kernel time without symbols counts once.
    let alone = judge(copies.named).unless_hidden(judge(copies.share), || in_unnamed_kernel(ctx));
    if alone.is(Status::RuledOut) {
        not_by_forks(ctx, alone, starts.named.point)
    } else if ctx.forked() || copies_memory(ctx) {
        alone
    } else {
        alone.at_most_contributor("but no fork was seen")
    }
}

/// Says where the time goes that forks do not take. `starts`: the share of starting and ending processes and threads.
fn not_by_forks(ctx: &Context, alone: Judged, starts: f64) -> Judged {
    let Some(share) = alone.finding.share else {
        return alone;
    };
    let (what, ways) = if ctx.starts().only_threads() {
        ("threads", None)
    } else {
        ("processes and threads", Some("in other ways than by fork: exec, exit, posix_spawn, vfork, threads"))
    };
    let because = if ctx.forked() {
        format!("{} of CPU; {} starts or ends {what}", percent(share.point), percent(starts))
    } else {
        format!("no fork; {} of CPU starts or ends {what}", percent(starts))
    };
    let finding = alone.finding;
    Judged::ruled_out(Wall::Fork, finding.of, because, finding.show)
        .share(share)
        .evidence_if(ways.map(str::to_owned))
}

/// A program that starts maps its pages of files again, and so does the child of a fork.
fn file_fault(ctx: &Context) -> Judged {
    let show = perf_show_kernel(ctx, "filemap_map");
    let phrase = if ctx.faults_shared_memory() {
        "goes to faults that map pages of shared memory"
    } else {
        "goes to faults that map pages of files"
    };
    let judged = cpu_case(ctx, Wall::FileFault, phrase, show);
    if starts_count(ctx) && (ctx.starts().execute() || ctx.forked()) {
        judged.at_most_contributor("but processes start: each one maps its program and its libraries again")
    } else {
        judged
    }
}

/// Without kernel stacks: number of faults × this machine's price, without those on mapped files if their part is known.
/// Low end: a fault that maps page cache zeroes no page. High end: a fault on memory that the host has reclaimed costs
/// more. The system time is the upper bound.
fn by_price(ctx: &Context, faults: Option<f64>, show: ShellLine) -> Option<Judged> {
    let (faults, touch) = (faults?, ctx.price(TOUCH_4K)?);
    if ctx.bill.cpu_s <= 0.0 {
        return None;
    }
    let system = ctx.increase(|t| t.system_ns)? as f64 / 1e9 / ctx.bill.cpu_s;
    let zero = ctx.price(ZERO_4K).map_or(touch.low, |z| z.high);
    let most_expensive = ctx.price(TOUCH_4K_IDLE).map_or(touch.high, |p| p.high.max(touch.high));
    let share = |ns_per_s: f64| (ns_per_s.max(0.0) / 1e9 / ctx.cpu_rate).min(system).clamp(0.0, 1.0);
    let files = of_files(&ctx.recording.fault_slices, faults).unwrap_or(Interval::exact(0.0));
    let touches = |files: f64| faults * (1.0 - files);
    let case = |huge_ns_per_s: f64| {
        let share = Interval::new(
            share(touches(files.high) * (touch.low - zero)),
            share(touches(files.point) * touch.point),
            share(touches(files.low) * most_expensive + huge_ns_per_s),
        );
        let phrase = "goes to faulting in and zeroing fresh pages, estimated from prices";
        share_case(ctx, Wall::FirstTouch, share, phrase, &show)
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
    const TRACE: &str = "strace -f -c -e trace=%memory";
    // A process that is not strace's own child: Yama allows it to root alone, where it is active.
    let show = ctx.show(|pid| format!("sudo {TRACE} -p {pid}"), format!("{TRACE} CMD"));
    let show = show.remark("slows the target");
    let judged = cpu_case(ctx, Wall::MapChurn, "goes to mapping memory and returning it to the kernel", show);
    let fired = judged.finding.status.has_fired();
    let calls = ctx.bill.rates.map_calls.clone().ok();
    let hint = if fired { cause(ctx) } else { None };
    let blocks = ctx.counted().and_then(Calling::mapped_text);
    vec![
        judged
            .evidence_if(calls.map(|c| format!("{} map calls a second", count(c))))
            .evidence_if(blocks)
            .evidence_if(hint),
    ]
}

/// What the mix of calls suggests: the allocator's behaviour, if most of them are its own.
fn cause(ctx: &Context) -> Option<String> {
    let rate = |call| ctx.map_call_rate(call).unwrap_or(0.0);
    let (map, unmap, brk, advise) =
        (rate(MapCall::Mmap), rate(MapCall::Munmap), rate(MapCall::Brk), rate(MapCall::Madvise));
    let all: f64 = MapCall::ALL.into_iter().filter(|call| call.moves_memory()).map(rate).sum();
    if all < 1.0 {
        return None;
    }
    let by_malloc = ctx.map_calls_by_malloc().map(|part| part.point >= 0.5);
    let hint = if brk > 0.5 * all {
        "mostly brk: the allocator trims the top of the heap and grows it again (trim_threshold, top_pad)"
    } else if advise > 0.5 * all {
        match by_malloc {
            Ok(false) => "mostly madvise, most of it not by malloc",
            _ => "mostly madvise: the allocator returns pages and uses them again (arena shrink or decay)",
        }
    } else if map + unmap > 0.5 * all && map > 0.3 * (map + unmap) && unmap > 0.3 * (map + unmap) {
        match by_malloc {
            Ok(true) => {
                "mmap and munmap alternate: blocks above the mmap threshold are mapped and unmapped one by one"
            }
            Ok(false) => "mmap and munmap alternate, most of them not by malloc: see the call sites",
            Err(_) => "mmap and munmap alternate; their callers are unknown",
        }
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
    const CONTENTION: &str = "sudo perf lock contention -ab";
    let show = ctx.show(|pid| format!("{CONTENTION} -p {pid} -- sleep 5"), format!("{CONTENTION} CMD"));
    let show = show.remark("mmap_lock");
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

pub fn kernel_slab(ctx: &Context) -> Vec<Judged> {
    const WALL: Wall = Wall::KernelSlab;
    let show = perf_show_kernel(ctx, "kmem_cache|kfree");
    let phrase = "goes to the kernel's own allocator, for sockets, files and other objects of the kernel";
    let judged = cpu_case(ctx, WALL, phrase, show.clone());
    // They are on this line.
    let callbacks = ctx.cpu(&[CostClass::OtherKernel]).is_ok_and(|other| other.named.point >= LEAST_LATE);
    let late = if callbacks { ctx.slab().late_text() } else { None };
    if judged.is(Status::RuledOut)
        && let Some(text) = &late
        && let (Some(part), Ok(sum)) = (ctx.slab().late_part(), ctx.cpu(WALL.lines()))
    {
        // The target may have made what the callbacks free.
        let with_late = Interval { high: (sum.share.high + part).min(1.0), ..sum.share };
        if !share_case(ctx, WALL, with_late, phrase, &show).is(Status::RuledOut) {
            let absence = Absence::new(Reason::NotSupported, text.as_str())
                .mend("compare with a time in which the target is idle: sudo perf top, rcu_do_batch");
            return vec![Judged::not_measured(WALL, Whole::Cpu, absence, show)];
        }
    }
    let fired = judged.finding.status.has_fired();
    let objects = if fired { ctx.slab().text() } else { None };
    vec![judged.evidence_if(objects).evidence_if(late)]
}
