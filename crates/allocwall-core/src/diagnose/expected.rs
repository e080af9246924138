//! What a trial of a remedy is expected to show: the change in CPU time of the same work.
//!
//! A diagnosis names a gain only where this machine's prices tell it. A trial is going to measure, so here every remedy that acts
//! on CPU time has bounds: from the lines that it acts on, and from what is known of how much of them it can reach.

use super::context::{Context, Served};
use super::remedies;
use crate::bill::Bill;
use crate::catalogue::cost::CostClass::{
    self, AddressSpaceLock, AllocatorCode, AllocatorLocks, FaultPath, MapCalls, PageRelease, Zeroing,
};
use crate::catalogue::modules::AllocatorKind;
use crate::catalogue::prices::{MALLOC_ARENA, MALLOC_CACHED};
use crate::catalogue::remedies::{Change, Effect, Remedy};
use crate::catalogue::swaps::{self, Part, Swap};
use crate::measure::recording::Recording;
use crate::units::Interval;

/// Relative change, negative where it saves. None where the remedy does not apply, saves something else than CPU time, or its lines
/// were not measured.
pub fn change(recording: &Recording, bill: &Bill, remedy: &Remedy) -> Option<Interval> {
    let ctx = Context::new(recording, bill);
    remedies::all_met(&ctx, remedy).ok()?;
    let library = remedy.start.iter().flat_map(|s| s.applied).find_map(|c| match c {
        Change::Preload(library) => Some(library.kind()),
        _ => None,
    });
    let saved = match library {
        Some(kind) => swapped(&ctx, kind)?,
        None => bounded(&ctx, remedy)?,
    };
    Some(Interval::new(-saved.high, -saved.point, -saved.low))
}

// ---- remedies that keep the allocator ----

fn bounded(ctx: &Context, remedy: &Remedy) -> Option<Interval> {
    let lines = ctx.cpu(remedy.acts_on).ok()?.share;
    let gain = remedies::gain(ctx, remedy);
    match remedy.effect {
        Effect::NotCpu(_) => None,
        // Calls that the cache serves already are beyond help; of the others it saves the way to the arena.
        Effect::AtMost(fraction, _) if remedy.acts_on == ALLOCATOR && remedy.key == "glibc-tcache-count" => {
            let misses = match ctx.served().0 {
                Served::Cached => part(0.0, 0.1),
                Served::Mixed => part(0.0, 0.4),
                // Its slots are 127 blocks: what comes and goes in larger numbers misses them too.
                Served::Missing | Served::Unknown => part(0.0, 0.5),
            };
            let cached = ctx.price(MALLOC_CACHED).zip(ctx.price(MALLOC_ARENA));
            let saved = cached.map_or(1.0, |(cached, arena)| {
                (1.0 - cached.low / arena.high).clamp(0.0, 1.0)
            });
            Some(times(lines, part(misses.least, misses.most * saved * fraction)))
        }
        Effect::AtMost(fraction, _) => Some(times(lines, part(0.0, fraction))),
        // Memory on huge pages is given back in fewer pieces as well.
        Effect::HugeTouch => {
            let gain = gain?;
            let release = ctx.cpu(&[PageRelease]).map_or(0.0, |s| s.share.high);
            Some(Interval::new(gain.low, gain.point, gain.high + release))
        }
        Effect::Populate => gain,
        // What has never been touched before is touched in the arena too.
        Effect::ArenaInsteadOfMap => {
            let touched = ctx.cpu(&[FaultPath, Zeroing]).ok()?.share;
            let maps = ctx.cpu(MAPPING).ok()?.share;
            let most = maps.high + touched.high * recycled(ctx);
            Some(match gain {
                Some(gain) => Interval::new(gain.low, gain.point, most.max(gain.point)),
                None => Interval::new(0.0, most / 2.0, most),
            })
        }
    }
}

/// What comes and goes with map calls.
const MAPPING: &[CostClass] = &[MapCalls, PageRelease, AddressSpaceLock];
const ALLOCATOR: &[CostClass] = &[AllocatorCode, AllocatorLocks];

// ---- another allocator ----

fn swapped(ctx: &Context, kind: AllocatorKind) -> Option<Interval> {
    let share = |classes: &[CostClass]| ctx.cpu(classes).map(|s| s.share).ok();
    let (code, locks) = (share(&[AllocatorCode])?, share(&[AllocatorLocks])?);
    let (maps, touches) = (share(MAPPING)?, share(&[FaultPath, Zeroing])?);
    let present = ctx.process()?.allocator.as_ref().ok()?.kind;
    let known = swaps::of(kind).filter(|_| present == AllocatorKind::Glibc);
    let by_malloc = remedies::map_calls_by_malloc(ctx.recording).unwrap_or(Interval::new(0.0, 0.5, 1.0));
    let again = recycled(ctx);
    let code_part = match (known, ctx.served().0) {
        (Some(swap), Served::Cached) => swap.cached,
        (Some(swap), Served::Missing) => swap.missing,
        (Some(swap), Served::Mixed) => part(
            swap.cached.least.min(swap.missing.least),
            swap.cached.most.max(swap.missing.most),
        ),
        _ => swaps::UNKNOWN_CODE,
    };
    // Threads that meet in an allocator pay in its code too: for the cache lines of its locks.
    let code_part = match locks.low >= CONTENDED {
        true => part(code_part.least, 1.0),
        false => code_part,
    };
    let mapped = known.map_or(part(-0.5, 1.0), |swap| swap.mapped);
    let touched = known.map_or(part(-0.3, 1.0), |swap| touched_part(ctx, swap));
    // Of a command of less than a second the kernel's account is read too seldom to hold all of it; the samples do.
    let cpu_s = ctx.bill.cpu_s.max(ctx.bill.sampled_cpu_s);
    let starts = ctx.recording.processes.len() as f64 / cpu_s.max(1e-9);
    let started = swaps::of(kind).map_or(part(0.0, 0.0), |swap| swap.start_s);
    Some(sum(&[
        times(code, code_part),
        times(locks, swaps::LOCKS),
        times(
            maps,
            part(
                mapped.least * if mapped.least > 0.0 { by_malloc.low } else { 1.0 },
                mapped.most * by_malloc.high,
            ),
        ),
        times(touches.scaled(again), touched),
        times(touches.scaled(1.0 - again), swaps::GROWTH),
        times(Interval::exact(starts), part(-started.most, -started.least)),
    ]))
}

/// From this share of the CPU time in the allocator's locks on.
const CONTENDED: f64 = 0.02;
/// Blocks from this size on are no size class of an arena in most allocators.
const LARGE_PAGES: f64 = 2048.0;

/// By how many pages are touched for each map call: a block takes two, one to map and one to unmap it.
fn touched_part(ctx: &Context, swap: &Swap) -> Part {
    let rates = &ctx.bill.rates;
    let either = part(
        swap.touched.least.min(swap.touched_large.least),
        swap.touched.most.max(swap.touched_large.most),
    );
    match (&rates.minor_faults, &rates.map_calls) {
        (Ok(faults), Ok(calls)) if *calls > 0.0 => match faults / (calls / 2.0) > LARGE_PAGES {
            true => swap.touched_large,
            false => swap.touched,
        },
        _ => either,
    }
}

/// The most of the first touches that can be of memory which the process had before: all but those that made it grow to the most
/// that was seen of it.
fn recycled(ctx: &Context) -> f64 {
    const PAGE: f64 = 4096.0;
    let ticks = &ctx.recording.ticks;
    let held = ticks.iter().filter_map(|t| t.anonymous);
    let (Some(first), Some(most)) = (ticks.first(), held.max()) else {
        return 1.0;
    };
    match ctx.change(|t| t.minor_faults) {
        Some(faults) if faults > 0 => {
            let grown = most.saturating_sub(first.anonymous.unwrap_or(0)) as f64 / PAGE;
            (1.0 - grown / faults as f64).clamp(0.0, 1.0)
        }
        _ => 1.0,
    }
}

fn part(least: f64, most: f64) -> Part {
    Part { least, most }
}

/// A line times the part of it that is saved; the wider end of each.
fn times(line: Interval, part: Part) -> Interval {
    let low = part.least * if part.least < 0.0 { line.high } else { line.low };
    let high = part.most * if part.most < 0.0 { line.low } else { line.high };
    Interval::new(low, line.point * (part.least + part.most) / 2.0, high)
}

fn sum(all: &[Interval]) -> Interval {
    let total = |end: fn(&Interval) -> f64| all.iter().map(end).sum();
    Interval::new(total(|i| i.low), total(|i| i.point), total(|i| i.high))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::remedies::find;
    use crate::diagnose::testing::{Subject, computing};

    fn of(subject: &Subject, key: &str) -> Option<Interval> {
        change(&subject.recording, &subject.bill, find(key).expect(key))
    }

    fn calls(symbol: &str) -> Subject {
        let mut subject = computing();
        subject
            .shares(&[(AllocatorCode, 0.4)])
            .malloc_leaves(Some(symbol), 200);
        subject
    }

    #[test]
    fn another_allocator_saves_what_misses_the_cache_and_nothing_that_is_sure_of_what_hits_it() {
        let missing = of(&calls("_int_malloc"), "tcmalloc").unwrap();
        assert!(missing.high < -0.15 && missing.low > -0.41, "{missing:?}");
        let cached = of(&calls("malloc"), "tcmalloc").unwrap();
        assert!(cached.low < 0.0 && cached.high > 0.0, "{cached:?}");
        assert!(
            cached.high - cached.low < missing.high - missing.low,
            "{cached:?}"
        );
    }

    #[test]
    fn a_deeper_cache_helps_calls_that_miss_it() {
        let missing = of(&calls("_int_malloc"), "glibc-tcache-count").unwrap();
        let cached = of(&calls("malloc"), "glibc-tcache-count").unwrap();
        assert!(missing.low < -0.1 && cached.low > -0.05, "{missing:?} {cached:?}");
        assert_eq!((missing.high, cached.high), (0.0, 0.0));
    }

    #[test]
    fn memory_that_grows_is_touched_whoever_keeps_it() {
        let touching = |grown: u64| {
            let mut subject = computing();
            subject.shares(&[(FaultPath, 0.3), (Zeroing, 0.1), (MapCalls, 0.02)]);
            subject.recording.ticks[0].anonymous = Some(0);
            subject.recording.ticks[0].minor_faults = 0;
            subject.last().minor_faults = 10_000;
            subject.last().anonymous = Some(grown * 4096);
            of(&subject, "glibc-keep-memory").unwrap()
        };
        let (again, growth) = (touching(100), touching(10_000));
        assert!(again.low < -0.35, "{again:?}");
        assert!(growth.low > -0.05, "{growth:?}");
    }

    #[test]
    fn what_saves_no_cpu_time_or_does_not_apply_has_no_change() {
        let mut subject = calls("_int_malloc");
        assert_eq!(of(&subject, "none"), None);
        assert_eq!(of(&subject, "glibc-arenas-free"), None);
        assert!(of(&subject, "jemalloc").is_some());
        subject.process().allocator.as_mut().unwrap().kind = AllocatorKind::Jemalloc;
        assert_eq!(of(&subject, "jemalloc"), None);
        assert!(of(&subject, "mimalloc").is_some());
    }
}
