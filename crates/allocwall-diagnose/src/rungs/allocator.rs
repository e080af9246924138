//! Rungs 9 and 10: call rate, allocator code and allocator contention. All three use the allocator's CPU time. Which
//! wall it is depends on whether the thread cache serves the calls, and on whether threads wait for one another.

use super::cases::{cpu_case, in_unknown_futexes, lock_case, lock_times, may_count, perf_show};
use crate::bill::stripped_runtime;
use crate::context::{Context, Served, count, percent};
use crate::judge::Judged;
use crate::{ShellLine, Status, Whole};
use allocwall_model::catalogue::cost::{CostClass, WaitClass};
use allocwall_model::catalogue::prices::{MALLOC_ARENA, MALLOC_CACHED};
use allocwall_model::catalogue::thresholds;
use allocwall_model::catalogue::walls::Wall;
use allocwall_model::units::{Absence, Interval, Reason};

pub fn call_rate(ctx: &Context) -> Vec<Judged> {
    let judged =
        cpu_case(ctx, Wall::CallRate, "goes to allocating and freeing", perf_show(ctx, "malloc|free"));
    let (served, how) = ctx.served();
    // The runtime's own allocator has only a fast path, so its CPU time comes from the number of calls.
    let runtime_led = matches!((ctx.cpu(&[CostClass::RuntimeAllocator]), ctx.cpu(Wall::AllocatorCode.lines())),
        (Ok(runtime), Ok(code)) if runtime.share.point >= code.share.point);
    let judged = if contention(ctx).is(Status::Wall) {
        judged.at_most_contributor("threads wait for one another in the allocator: see allocator contention")
    } else if served == Served::Missing && !runtime_led {
        judged.at_most_contributor("the calls miss the thread cache: see allocator code")
    } else {
        judged
    };
    let judged = match served {
        Served::Unknown if !runtime_led && judged.is(Status::Wall) => judged.estimate(
            "calls were not counted, and the samples do not show whether the fast path served them",
        ),
        _ => judged,
    };
    let judged = match stripped_runtime(ctx.recording) {
        Some(runtime) => stripped(ctx, judged, runtime.name, runtime.collector_read, runtime_led),
        None => judged,
    };
    let fired = judged.is(Status::Wall) || judged.is(Status::Contributor);
    if fired && let Some(part) = ctx.mostly_bytes() {
        let bytes =
            format!("{} of it zeroes or copies blocks: few large blocks can cause this", percent(part));
        return vec![judged.evidence(bytes)];
    }
    // Prices and path are those of malloc, not those of a runtime's own allocator.
    if runtime_led {
        return vec![judged];
    }
    vec![judged.evidence_if(implied_calls(ctx)).evidence(how)]
}

/// In a stripped runtime, functions of its allocator may be counted as application, and functions of its collector as
/// allocation, unless its own account shows when it collects.
fn stripped(ctx: &Context, judged: Judged, runtime: &str, collector_read: bool, runtime_led: bool) -> Judged {
    let elsewhere = ctx.cpu(&[CostClass::Application]).is_ok_and(|sum| may_count(Wall::CallRate, sum));
    let incomplete = format!("this {runtime} is stripped: part of its allocation is counted as application");
    if judged.is(Status::RuledOut) && elsewhere {
        let absence =
            Absence::new(Reason::NotFound, incomplete).mend("use a build of the runtime with symbols");
        return Judged::not_measured(Wall::CallRate, Whole::Cpu, absence, judged.finding.show);
    }
    let code_alone = ctx
        .cpu(Wall::AllocatorCode.lines())
        .is_ok_and(|code| code.share.low >= thresholds::of(Wall::CallRate).wall_from);
    if !judged.is(Status::RuledOut) && !judged.is(Status::NotMeasured) && runtime_led && !code_alone {
        if collector_read {
            return judged.estimate(incomplete);
        }
        return judged
            .at_most_contributor(&format!(
                "this {runtime} is stripped: its garbage collector may be part of this time"
            ))
            .estimate(incomplete);
    }
    judged
}

/// The number of calls that the line would pay for at this machine's prices. Calls cannot be counted from outside.
fn implied_calls(ctx: &Context) -> Option<String> {
    let rate = ctx.cpu(Wall::AllocatorCode.lines()).ok()?.rate;
    let (cached, arena) = (ctx.price(MALLOC_CACHED)?, ctx.price(MALLOC_ARENA)?);
    (rate.point > 0.0).then(|| {
        format!(
            "enough for {} malloc/free pairs a second from the thread cache ({:.0} ns each), or {} from the arena ({:.0} ns each)",
            count(rate.point * 1e9 / cached.point),
            cached.point,
            count(rate.point * 1e9 / arena.point),
            arena.point
        )
    })
}

pub fn code_and_contention(ctx: &Context) -> Vec<Judged> {
    let contention = contention(ctx);
    let judged =
        cpu_case(ctx, Wall::AllocatorCode, "goes to the allocator's own code", perf_show(ctx, "_int_|arena"));
    let (served, how) = ctx.served();
    let code = if contention.is(Status::Wall) {
        judged
            .at_most_contributor("threads contend for the allocator, and contended cache lines slow its code")
    } else {
        match served {
            Served::Cached => {
                judged.at_most_contributor("the thread cache serves the calls: many calls, each one fast")
            }
            Served::Unknown => judged.at_most_contributor("no evidence that single calls are slow"),
            Served::Mixed | Served::Missing => judged,
        }
    };
    vec![code.evidence(how), contention]
}

fn contention(ctx: &Context) -> Judged {
    const WALL: Wall = Wall::AllocatorContention;
    let show = ShellLine::from(format!("perf trace -s -e futex -p {} -- sleep 5", ctx.pid()));
    let (spin, blocked) = match lock_times(ctx, WALL, WaitClass::Allocator, &show) {
        Ok(times) => times,
        Err(judged) => return *judged,
    };
    // A futex wait whose caller was not read may be for a lock of the allocator.
    let unread = ctx.unread_futex_s(|_| true);
    let at_most = Interval { high: blocked.high + unread, ..blocked };
    let case = |blocked| {
        let phrase = "was spent waiting for locks of the allocator";
        lock_case(ctx, WALL, spin.share, blocked, phrase, show.clone())
    };
    case(blocked).unless_hidden(case(at_most), || in_unknown_futexes(ctx, unread)).evidence(format!(
        "{:.3} CPUs used at the allocator's locks, {:.3} threads blocked on average",
        spin.rate.point,
        blocked.point / ctx.window_s
    ))
}
