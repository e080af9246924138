//! Rungs 10 and 11: call rate, large allocations, allocator code and allocator contention. All of them use CPU time
//! within allocators. Which wall it is depends on whether the bytes of the blocks cost the time or the calls do, on
//! whether the thread cache serves the calls, and on whether threads wait for one another.

use super::cases::{cpu_case, futex_show, in_unknown_futexes, lock_case, lock_times, may_count, perf_show};
use crate::bill::stripped_runtime;
use crate::context::{Context, Served, bytes, count, percent};
use crate::counted::Calling;
use crate::judge::Judged;
use crate::{Status, Whole};
use allocwall_model::catalogue::cost::{CostClass, WaitClass};
use allocwall_model::catalogue::prices::{MALLOC_ARENA, MALLOC_CACHED};
use allocwall_model::catalogue::thresholds;
use allocwall_model::catalogue::walls::Wall;
use allocwall_model::units::{Absence, Interval, Reason};

/// Why it is unknown whether the calls are too many or too slow.
pub const UNCOUNTED: &str =
    "calls were not counted, and the samples do not show whether the fast path served them";

pub fn calls_or_bytes(ctx: &Context) -> Vec<Judged> {
    vec![call_rate(ctx), large_allocations(ctx)]
}

/// Whether the runtime's own allocator takes more CPU time than malloc. It has only a fast path, so its CPU time comes
/// from the number of calls.
fn runtime_led(ctx: &Context) -> bool {
    matches!((ctx.cpu(&[CostClass::RuntimeAllocator]), ctx.cpu(Wall::AllocatorCode.lines())),
        (Ok(runtime), Ok(code)) if runtime.share.point >= code.share.point)
}

fn call_rate(ctx: &Context) -> Judged {
    let judged =
        cpu_case(ctx, Wall::CallRate, "goes to allocating and freeing", perf_show(ctx, "malloc|free"));
    let (served, how) = ctx.served();
    let runtime_led = runtime_led(ctx);
    let judged = if contention(ctx).is(Status::Wall) {
        judged.at_most_contributor("threads wait for one another in the allocator: see allocator contention")
    } else if served == Served::Missing && !runtime_led {
        judged.at_most_contributor("the calls miss the thread cache: see allocator code")
    } else if !runtime_led && served != Served::Cached && too_few(ctx) {
        judged.at_most_contributor("the counted calls are too few for that: see allocator code")
    } else {
        judged
    };
    let uncounted = ctx.counted().is_none() && !runtime_led;
    let judged = match served {
        Served::Unknown if uncounted && judged.is(Status::Wall) => judged.estimate(UNCOUNTED),
        _ => judged,
    };
    let judged = match stripped_runtime(ctx.recording) {
        Some(runtime) => stripped(ctx, judged, runtime.name, runtime.collector_read, runtime_led),
        None => judged,
    };
    // Prices and path are those of malloc, not those of a runtime's own allocator.
    if runtime_led {
        return judged.evidence(match allocated(ctx) {
            Some(rate) => format!("the program allocates {rate}"),
            None => "the number of calls is not known: the runtime does not count them".to_owned(),
        });
    }
    judged.evidence_if(counted_calls(ctx).or_else(|| implied_calls(ctx))).evidence(how)
}

fn large_allocations(ctx: &Context) -> Judged {
    const WALL: Wall = Wall::LargeAllocations;
    let show = perf_show(ctx, "memset|memmove|memcpy|memclr");
    let judged = cpu_case(ctx, WALL, "goes to filling and copying blocks", show);
    let judged = match stripped_runtime(ctx.recording) {
        Some(runtime) if judged.is(Status::RuledOut) && may_be_in_application(ctx, WALL) => {
            unrecognized(judged, runtime.name)
        }
        _ => judged,
    };
    let judged = judged.evidence_if(ctx.counted().map(Calling::bytes_text));
    let (Ok(filling), Ok(calls)) = (ctx.cpu(WALL.lines()), ctx.cpu(Wall::CallRate.lines())) else {
        return judged;
    };
    // Filling a small block takes less time than the call.
    if calls.share.point > filling.share.point {
        return judged.at_most_contributor("the calls take more time than the bytes: see call rate");
    }
    judged
}

/// How often the program allocates, for a sentence: by the runtime's own account, counted, or estimated from malloc's CPU
/// time and this machine's prices. None if it is unknown.
pub fn rate_of_calls(ctx: &Context) -> Option<String> {
    if runtime_led(ctx) {
        return allocated(ctx);
    }
    if let Some(calling) = ctx.counted() {
        return Some(format!("{} calls a second (counted)", count(calling.per_s())));
    }
    let pairs = pairs_per_second(ctx)?;
    Some(format!("an estimated {} to {} malloc/free pairs a second", count(pairs.low), count(pairs.high)))
}

/// By the accounts of the target's runtimes. They count bytes, not calls.
fn allocated(ctx: &Context) -> Option<String> {
    let rates = ctx.recording.accounts.iter().filter_map(|account| {
        let figure = account.allocated_bytes.as_ref().ok()?;
        (account.over_ns > 0).then(|| figure.value.scaled(1e9 / account.over_ns as f64))
    });
    let (low, high) = rates.fold((0.0, 0.0), |(low, high), rate| (low + rate.low, high + rate.high));
    if high <= 0.0 {
        return None;
    }
    let (low, high) = (bytes(low), bytes(high));
    let amount = if low == high { high } else { format!("between {low} and {high}") };
    Some(format!("{amount} of objects a second (the runtime's account)"))
}

/// The numbers of malloc/free pairs that malloc's CPU time would pay for: if the arena serves all of them, if the
/// thread cache does, and halfway.
fn pairs_per_second(ctx: &Context) -> Option<Interval> {
    let rate = ctx.cpu(Wall::AllocatorCode.lines()).ok()?.rate;
    let (cached, arena) = (ctx.price(MALLOC_CACHED)?, ctx.price(MALLOC_ARENA)?);
    if rate.point <= 0.0 {
        return None;
    }
    let (dearest, cheapest) = (cached.high.max(arena.high), cached.low.min(arena.low));
    let (low, high) = (rate.low * 1e9 / dearest, rate.high * 1e9 / cheapest);
    Some(Interval::new(low, (low + high) / 2.0, high))
}

/// Whether the line of the application may contain a wall of this size.
fn may_be_in_application(ctx: &Context, wall: Wall) -> bool {
    ctx.cpu(&[CostClass::Application]).is_ok_and(|sum| may_count(ctx, wall, sum))
}

fn incomplete(runtime: &str) -> String {
    format!("this {runtime} is stripped: part of its allocation is counted as application")
}

/// In a stripped runtime, functions of its allocator may be counted as application.
fn unrecognized(judged: Judged, runtime: &str) -> Judged {
    let absence =
        Absence::new(Reason::NotFound, incomplete(runtime)).mend("use a build of the runtime with symbols");
    Judged::not_measured(judged.finding.wall, Whole::Cpu, absence, judged.finding.show)
}

/// In a stripped runtime, functions of its allocator may be counted as application, and functions of its collector as
/// allocation, unless its own account shows when it collects.
fn stripped(ctx: &Context, judged: Judged, runtime: &str, collector_read: bool, runtime_led: bool) -> Judged {
    if judged.is(Status::RuledOut) && may_be_in_application(ctx, Wall::CallRate) {
        return unrecognized(judged, runtime);
    }
    let incomplete = incomplete(runtime);
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

/// Whether so many calls as were counted cannot take the time of a contributor, even if the arena serves all of them.
fn too_few(ctx: &Context) -> bool {
    let prices = [MALLOC_CACHED, MALLOC_ARENA].map(|name| ctx.price(name));
    let dearest_ns = prices.iter().flatten().map(|price| price.high).fold(0.0, f64::max);
    let calling = ctx.counted().filter(|_| dearest_ns > 0.0 && ctx.cpu_rate > 0.0);
    calling.is_some_and(|calling| {
        let most = calling.pairs_per_s() * dearest_ns / 1e9 / ctx.cpu_rate;
        most < thresholds::of(Wall::CallRate).contributor
    })
}

/// The counted number of calls, and what a pair of them takes.
fn counted_calls(ctx: &Context) -> Option<String> {
    let rate = ctx.counted()?.rate_text(ctx.cpu_rate);
    let priced = ctx.price(MALLOC_CACHED).zip(ctx.price(MALLOC_ARENA)).map(|(cached, arena)| {
        format!(
            " (this machine: {:.0} ns from the thread cache, {:.0} ns from the arena)",
            cached.point, arena.point
        )
    });
    let each = ctx.pair_ns().map(|ns| {
        format!("; {:.0} ns of CPU for each malloc/free pair{}", ns.point, priced.unwrap_or_default())
    });
    Some(rate + &each.unwrap_or_default())
}

/// The number of calls that malloc's line would pay for at this machine's prices. Calls cannot be counted from outside.
fn implied_calls(ctx: &Context) -> Option<String> {
    let malloc = ctx.cpu(Wall::AllocatorCode.lines()).ok()?;
    let rate = malloc.rate;
    // The share of the finding contains the runtime's own allocator.
    let runtime = ctx.cpu(&[CostClass::RuntimeAllocator]).is_ok_and(|sum| sum.share.point > 0.0);
    let of = if runtime { format!("malloc's {} are ", percent(malloc.share.point)) } else { String::new() };
    let (cached, arena) = (ctx.price(MALLOC_CACHED)?, ctx.price(MALLOC_ARENA)?);
    (rate.point > 0.0).then(|| {
        format!(
            "{of}enough for {} malloc/free pairs a second from the thread cache ({:.0} ns each), or {} from the arena ({:.0} ns each)",
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
            Served::Unknown if !too_few(ctx) => {
                judged.at_most_contributor("no evidence that single calls are slow")
            }
            Served::Mixed | Served::Missing | Served::Unknown => judged,
        }
    };
    let fired = |judged: &Judged| judged.finding.status.has_fired();
    let code = if fired(&code) && fired(&call_rate(ctx)) {
        code.because_also(match ctx.cpu(&[CostClass::RuntimeAllocator]) {
            Ok(runtime) if runtime.share.point > 0.0 => "this is part of the time of call rate",
            _ => "this is the same time as that of call rate",
        })
    } else {
        code
    };
    vec![code.evidence(how), contention]
}

fn contention(ctx: &Context) -> Judged {
    const WALL: Wall = Wall::AllocatorContention;
    let show = futex_show(ctx);
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
    case(blocked)
        .unless_hidden(case(at_most), || in_unknown_futexes(ctx, unread))
        .evidence(format!(
            "{:.3} CPUs used at the allocator's locks, {:.3} threads blocked on average",
            spin.rate.point,
            blocked.point / ctx.window_s
        ))
        .evidence_if(ctx.counted().and_then(Calling::remote_text))
}
