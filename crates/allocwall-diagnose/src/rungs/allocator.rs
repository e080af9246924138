//! Rungs 9 and 10: called too often, slow when called, or waited for. One line of CPU time, three walls: which one it
//! is depends on how the calls are served and on whether threads wait for one another.

use super::kernel::lock_case;
use super::waiting::futexes_untold;
use super::{cpu_case, may_count, perf_show, without_samples};
use crate::bill::stripped_runtime;
use crate::context::{Context, MendIfNone, Served, count};
use crate::judge::Judged;
use crate::{Status, Whole};
use allocwall_model::catalogue::cost::{CostClass, WaitClass};
use allocwall_model::catalogue::prices::{MALLOC_ARENA, MALLOC_CACHED};
use allocwall_model::catalogue::thresholds;
use allocwall_model::catalogue::walls::Wall;
use allocwall_model::units::{Absence, Interval, Reason};

const CALLS: &[CostClass] = &[CostClass::AllocatorCode, CostClass::RuntimeAllocator];
const CODE: &[CostClass] = &[CostClass::AllocatorCode];
const LOCKS: &[CostClass] = &[CostClass::AllocatorLocks];

pub fn call_rate(ctx: &Context) -> Vec<Judged> {
    let judged = cpu_case(
        ctx,
        Wall::CallRate,
        CALLS,
        "goes to allocating and freeing",
        perf_show(ctx, "malloc|free"),
    );
    let (served, how) = ctx.served();
    // The runtime's own allocator is all fast path: its part of the line is a matter of calls alone.
    let runtime_led = matches!((ctx.cpu(&[CostClass::RuntimeAllocator]), ctx.cpu(CODE)),
        (Ok(runtime), Ok(code)) if runtime.share.point >= code.share.point);
    let judged = if contention(ctx).is(Status::Wall) {
        judged.at_most_contributor("threads wait for one another in it: see contention")
    } else if served == Served::Missing && !runtime_led {
        judged.at_most_contributor("the calls miss the thread cache: see allocator code")
    } else {
        judged
    };
    let judged = match served {
        Served::Unknown if !runtime_led && judged.is(Status::Wall) => {
            judged.estimate("calls were not counted, and the fast path could not be told from the slow one")
        }
        _ => judged,
    };
    let judged = match stripped_runtime(ctx.recording) {
        Some(runtime) => stripped(ctx, judged, runtime, runtime_led),
        None => judged,
    };
    vec![
        judged
            .evidence_if(implied_calls(ctx))
            .evidence_if((!runtime_led).then_some(how)),
    ]
}

/// In a stripped runtime its allocator's functions may be counted as application, and its collector's as allocation.
fn stripped(ctx: &Context, judged: Judged, runtime: &str, runtime_led: bool) -> Judged {
    let elsewhere = ctx
        .cpu(&[CostClass::Application])
        .is_ok_and(|sum| may_count(Wall::CallRate, sum));
    let untold = format!("this {runtime} is stripped: not all of its allocation is told from its other work");
    if judged.is(Status::RuledOut) && elsewhere {
        let absence =
            Absence::new(Reason::NotFound, untold).mend("a runtime with symbols, not a stripped one");
        return Judged::not_measured(Wall::CallRate, Whole::Cpu, absence, judged.finding.show);
    }
    let code_alone = ctx
        .cpu(CODE)
        .is_ok_and(|code| code.share.low >= thresholds::of(Wall::CallRate).wall_from);
    if !judged.is(Status::RuledOut) && !judged.is(Status::NotMeasured) && runtime_led && !code_alone {
        return judged
            .at_most_contributor(&format!(
                "this {runtime} is stripped: its collector may be part of it"
            ))
            .estimate(untold);
    }
    judged
}

/// What the line would buy at this machine's prices: calls are not counted from outside.
fn implied_calls(ctx: &Context) -> Option<String> {
    let rate = ctx.cpu(CODE).ok()?.rate;
    let (cached, arena) = (ctx.price(MALLOC_CACHED)?, ctx.price(MALLOC_ARENA)?);
    (rate.point > 0.0).then(|| {
        format!(
            "time for {} malloc/free pairs a second from the thread cache ({:.0} ns) or {} from the arena ({:.0} ns)",
            count(rate.point * 1e9 / cached.point),
            cached.point,
            count(rate.point * 1e9 / arena.point),
            arena.point
        )
    })
}

pub fn code_and_contention(ctx: &Context) -> Vec<Judged> {
    let contention = contention(ctx);
    let judged = cpu_case(
        ctx,
        Wall::AllocatorCode,
        CODE,
        "goes to the allocator's own code",
        perf_show(ctx, "_int_|arena"),
    );
    let (served, how) = ctx.served();
    let code = if contention.is(Status::Wall) {
        judged.at_most_contributor("threads wait for one another in it, and contended lines slow its code")
    } else {
        match served {
            Served::Cached => {
                judged.at_most_contributor("the thread cache serves the calls: they are many, not slow")
            }
            Served::Unknown => judged.at_most_contributor("nothing shows that single calls are slow"),
            Served::Mixed | Served::Missing => judged,
        }
    };
    vec![code.evidence(how), contention]
}

fn contention(ctx: &Context) -> Judged {
    const WALL: Wall = Wall::AllocatorContention;
    let show = format!("perf trace -s -e futex -p {pid} -- sleep 5", pid = ctx.pid());
    if ctx.bill.rates.threads_peak == 1 {
        return Judged::ruled_out(WALL, Whole::ThreadTime, "one thread: nobody to wait for", show);
    }
    let (spin, blocked) = match (ctx.cpu(LOCKS), ctx.wait(WaitClass::Allocator)) {
        (Ok(spin), Ok(blocked)) => (spin.share.scaled(ctx.bill.cpu_s), blocked),
        (Err(_), Ok(blocked)) if blocked.low > 0.0 => (Interval::exact(0.0), blocked),
        (Err(absence), _) => return without_samples(ctx, WALL, absence, show),
        (Ok(_), Err(absence)) => {
            let absence = absence.mend_if_none("run as the target's user or as root");
            return Judged::not_measured(WALL, Whole::ThreadTime, absence, show);
        }
    };
    // A futex whose caller was not read may be the allocator's.
    let unread = ctx.unread_futex_s(|_| true);
    let at_most = Interval {
        high: blocked.high + unread,
        ..blocked
    };
    let case = |blocked| {
        lock_case(
            ctx,
            WALL,
            spin,
            blocked,
            "its threads waited for one another in the allocator",
            show.clone(),
        )
    };
    case(blocked)
        .unless_hidden(case(at_most), || futexes_untold(ctx, unread))
        .evidence(format!(
            "{:.3} CPUs at the allocator's locks, {:.3} threads blocked on average",
            spin.point / ctx.window_s,
            blocked.point / ctx.window_s
        ))
}
