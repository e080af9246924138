//! Rungs 4 to 6: costs in the kernel that the allocator causes.

use super::{cpu_case, perf_show, unless_hidden, without_samples};
use crate::context::{Context, MendIfNone, Sum, count, percent_interval};
use crate::judge::{Case, Judged};
use crate::{Status, Whole};
use allocwall_model::catalogue::cost::{CostClass, WaitClass};
use allocwall_model::catalogue::prices::{TOUCH_2M, TOUCH_2M_IDLE, TOUCH_4K, TOUCH_4K_IDLE, ZERO_4K};
use allocwall_model::catalogue::walls::Wall;
use allocwall_model::units::{Absence, Interval, Reason};

pub fn first_touch(ctx: &Context) -> Vec<Judged> {
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
    vec![
        judged
            .evidence_if(faults.map(|f| format!("{} minor faults a second", count(f))))
            .evidence_if(each)
            .evidence_if(reclaim),
    ]
}

/// Without kernel stacks: number of faults × this machine's price. Low end: a fault that maps page cache zeroes no
/// page. High end: a fault on memory that the host has reclaimed costs more. The system time is the upper bound.
fn by_price(ctx: &Context, faults: Option<f64>, show: String) -> Option<Judged> {
    let (faults, touch) = (faults?, ctx.price(TOUCH_4K)?);
    if ctx.bill.cpu_s <= 0.0 {
        return None;
    }
    let system = ctx.change(|t| t.system_ns)? as f64 / 1e9 / ctx.bill.cpu_s;
    let zero = ctx.price(ZERO_4K).map_or(touch.low, |z| z.high);
    let dearest = ctx.price(TOUCH_4K_IDLE).map_or(touch.high, |p| p.high.max(touch.high));
    let share = |ns_per_s: f64| (ns_per_s.max(0.0) / 1e9 / ctx.cpu_rate).min(system).clamp(0.0, 1.0);
    let case = |huge_ns_per_s: f64| {
        let share = Interval::new(
            share(faults * (touch.low - zero)),
            share(faults * touch.point),
            share(faults * dearest + huge_ns_per_s),
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
            format!("up to {} faults a second may each have zeroed a huge page", count(huge)),
        )
        .mend("run as root: kernel stacks show what faults cost")
    };
    Some(case(0.0).unless_hidden(case(huge * huge_ns_each), absence).estimate(
        "number of faults × this machine's price of a first touch; kernel stacks were not available",
    ))
}

/// Upper bound of the faults per second on transparent huge pages: the machine's count, if the kernel has it.
fn huge_faults(ctx: &Context, faults: f64) -> f64 {
    let never = |mode: &String| mode.contains("[never]") || mode == "never";
    let target_has_none = ctx.process().is_some_and(|p| p.thp_disabled == Ok(true));
    if ctx.recording.host.thp_enabled.as_ref().is_ok_and(never) || target_has_none {
        return 0.0;
    }
    match ctx.host_change(|h| h.thp_fault_alloc) {
        Some(counted) => (counted as f64 / ctx.window_s).min(faults),
        None => faults,
    }
}

pub fn map_churn(ctx: &Context) -> Vec<Judged> {
    let show = format!("strace -f -c -e trace=%memory -p {}  # slows the target", ctx.pid());
    let judged = cpu_case(ctx, Wall::MapChurn, "goes to mapping memory and returning it to the kernel", show);
    let fired = judged.is(Status::Wall) || judged.is(Status::Contributor);
    let calls = ctx.bill.rates.map_calls.clone().ok();
    let hint = if fired { cause(ctx) } else { None };
    vec![judged.evidence_if(calls.map(|c| format!("{} map calls a second", count(c)))).evidence_if(hint)]
}

/// The behaviour of the allocator that the mix of calls suggests.
fn cause(ctx: &Context) -> Option<String> {
    let rate = |name| ctx.count(name).unwrap_or(0.0);
    let (map, unmap, brk, advise) = (rate("mmap"), rate("munmap"), rate("brk"), rate("madvise"));
    let all = map + unmap + brk + advise + rate("mremap");
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
    let mix: Vec<String> = [("mmap", map), ("munmap", unmap), ("brk", brk), ("madvise", advise)]
        .into_iter()
        .filter(|(_, rate)| *rate >= 0.01 * all)
        .map(|(name, rate)| format!("{name} {}", count(rate)))
        .collect();
    Some(format!("{hint}; {}", mix.join(", ")))
}

pub fn address_space_lock(ctx: &Context) -> Vec<Judged> {
    const WALL: Wall = Wall::AddressSpaceLock;
    let show = format!("perf lock contention -ab -p {pid} -- sleep 5  # mmap_lock", pid = ctx.pid());
    if ctx.bill.rates.threads_peak == 1 {
        return vec![Judged::ruled_out(
            WALL,
            Whole::ThreadTime,
            "one thread: no other thread to wait for",
            show,
        )];
    }
    let spin = ctx.cpu(Wall::AddressSpaceLock.lines());
    let blocked = ctx.wait(WaitClass::AddressSpaceLock);
    let (spin, blocked) = match (spin, blocked) {
        (Ok(spin), Ok(blocked)) => (spin, blocked),
        // Without CPU samples, the blocked time alone can be a wall.
        (Err(_), Ok(blocked)) if blocked.low > 0.0 => (Sum::NONE, blocked),
        (Err(absence), _) => return vec![without_samples(ctx, WALL, absence, show)],
        (Ok(_), Err(absence)) => {
            let absence = absence.mend_if_none("run as the target's user or as root");
            return vec![Judged::not_measured(WALL, Whole::ThreadTime, absence, show)];
        }
    };
    let judge = |spin: Interval| {
        lock_case(
            ctx,
            WALL,
            spin.scaled(ctx.bill.cpu_s),
            blocked,
            "was spent waiting for the address-space lock",
            show.clone(),
        )
    };
    vec![unless_hidden(ctx, judge(spin.named), judge(spin.share)).evidence(format!(
        "{:.3} CPUs spinning, {:.3} threads blocked on average",
        spin.rate.point,
        blocked.point / ctx.window_s
    ))]
}

/// CPU time and blocked time at one lock, as a fraction of working time.
pub fn lock_case(
    ctx: &Context,
    wall: Wall,
    spin: Interval,
    blocked: Interval,
    phrase: &str,
    show: String,
) -> Judged {
    let thread_s = Interval::new(
        (spin.point + blocked.point - (spin.point - spin.low).hypot(blocked.point - blocked.low)).max(0.0),
        spin.point + blocked.point,
        spin.point + blocked.point + (spin.high - spin.point).hypot(blocked.high - blocked.point),
    );
    let others = (ctx.active_thread_s() - blocked.point - spin.point).max(0.0);
    let of = |t: f64| if t + others > 0.0 { t / (t + others) } else { 0.0 };
    Case {
        wall,
        share: Interval::new(of(thread_s.low), of(thread_s.point), of(thread_s.high)),
        of: Whole::ThreadTime,
        amount: thread_s.scaled(1.0 / ctx.window_s),
        unit: "of working time",
        phrase,
        show,
    }
    .judge()
}
