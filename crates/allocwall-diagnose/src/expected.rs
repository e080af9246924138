//! What a trial of a remedy is expected to show: the change in CPU time of the same work.
//!
//! Every remedy that acts on CPU time has bounds: from the lines that it acts on, and from what is known of how much of them it can
//! reach. A diagnosis prints them as the gain where more than the lines stands behind them.

use super::context::{Context, Served};
use super::remedies;
use crate::bill::Bill;
use allocwall_model::catalogue::cost::CostClass::{
    self, AddressSpaceLock, AllocatorCode, AllocatorLocks, FaultPath, MapCalls, PageRelease, Zeroing,
};
use allocwall_model::catalogue::modules::AllocatorKind;
use allocwall_model::catalogue::prices::{MALLOC_ARENA, MALLOC_CACHED};
use allocwall_model::catalogue::remedies::{Change, Effect, Remedy};
use allocwall_model::catalogue::swaps::{self, Part, Swap};
use allocwall_model::catalogue::thresholds::TLB_REACH_BYTES;
use allocwall_model::recording::Recording;
use allocwall_model::units::{Interval, Measured};

/// Whether there is a bill to expect anything from.
pub fn possible(recording: &Recording, bill: &Bill) -> Measured<()> {
    Context::new(recording, bill)
        .cpu(&[CostClass::Application])
        .map(drop)
}

/// Relative change, negative where it saves. None where the remedy does not apply, saves something else than CPU time, or its lines
/// were not measured.
pub fn change(recording: &Recording, bill: &Bill, remedy: &Remedy) -> Option<Interval> {
    let ctx = Context::new(recording, bill);
    remedies::all_met(&ctx, remedy).ok()?;
    let saved = saved(&ctx, remedy)?;
    Some(Interval::new(-saved.high, -saved.point, -saved.low))
}

/// The same as a share of the target's CPU time that is saved, for a remedy that applies.
pub(super) fn saved(ctx: &Context, remedy: &Remedy) -> Option<Interval> {
    let library = remedy.start.iter().flat_map(|s| s.applied).find_map(|c| match c {
        Change::Preload(library) => Some(library.kind()),
        _ => None,
    });
    let own = ctx.cpu(&[CostClass::Application]).ok()?.share;
    let (saved, aside) = match (library, remedy.effect) {
        (Some(kind), _) => (swapped(ctx, kind)?, times(own, swaps::LAYOUT)),
        (None, Effect::HugeTouch) if remedy.applies(Change::ArenaHook) => {
            (bounded(ctx, remedy)?, loads_of_arenas(ctx, own))
        }
        (None, Effect::HugeTouch) => (bounded(ctx, remedy)?, times(own, swaps::ON_HUGE_PAGES)),
        (None, _) => (bounded(ctx, remedy)?, times(own, swaps::PLACES)),
    };
    let saved = sum(&[saved, aside]);
    // Nothing saves more than all.
    Some(Interval::new(
        saved.low.min(1.0),
        saved.point.min(1.0),
        saved.high.min(1.0),
    ))
}

// ---- remedies that keep the allocator ----

fn bounded(ctx: &Context, remedy: &Remedy) -> Option<Interval> {
    let lines = ctx.cpu(remedy.acts_on).ok()?.share;
    let gain = remedies::gain(ctx, remedy);
    match remedy.effect {
        Effect::NotCpu(_) | Effect::Swap => None,
        // Calls that the cache serves already are beyond help; of the others it saves the way to the arena.
        Effect::DeeperCache => {
            if contended(ctx) {
                return Some(times(lines, DEEPER_WHERE_CONTENDED));
            }
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
            Some(times(lines, part(misses.least, misses.most * saved)))
        }
        Effect::OwnArenas if !contended(ctx) => Some(times(lines, part(0.0, 1.0))),
        Effect::OwnArenas => {
            let met = ctx.cpu(&[AllocatorCode, AllocatorLocks]).ok()?.share;
            Some(sum(&[times(met, swaps::ARENAS), spinning(ctx)?]))
        }
        Effect::AtMost(fraction, _) => Some(times(lines, part(0.0, fraction))),
        // Memory on huge pages is given back in fewer pieces as well.
        Effect::HugeTouch => {
            let gain = gain?;
            let release = ctx.cpu(&[PageRelease]).map_or(0.0, |s| s.share.high);
            let high = gain.high + release;
            // Which of them are of arenas is not seen: malloc's blocks are none.
            let sure = match remedy.applies(Change::ArenaHook) {
                true => 0.0,
                false => large_blocks(ctx),
            };
            let low = remedies::touch_price_saved(ctx).map_or(0.0, |saved| lines.low * saved.low * sure);
            Some(Interval::new(low, gain.point.clamp(low, high), high))
        }
        Effect::Populate => gain,
        // What has never been touched before is touched in the arena too.
        Effect::ArenaInsteadOfMap => {
            let touched = ctx.cpu(&[FaultPath, Zeroing]).ok()?.share;
            let maps = ctx.cpu(MAPPING).ok()?.share;
            let again = recycled(ctx);
            let Some((gain, by_malloc)) = gain.zip(ctx.map_calls_by_malloc().ok()) else {
                let most = maps.high + touched.high * again;
                return Some(Interval::new(0.0, most / 2.0, most));
            };
            // Of one process what comes back is what it gave; of several also what another one had before it ended.
            let sure = if ctx.recording.processes.len() == 1 {
                again
            } else {
                0.0
            };
            let low = gain.low + touched.low * sure * by_malloc.low * KEPT.least;
            let high = (maps.high + touched.high * again) * by_malloc.high * KEPT.most;
            Some(Interval::new(
                low,
                ((low + high) / 2.0).max(gain.point.min(high)),
                high.max(low),
            ))
        }
    }
}

/// Of the first touches that it spares, what keeping memory saves: a page that is kept is not in the cache as one is that was just
/// zeroed, and the program's own loads gain by pages that stay where they are.
const KEPT: Part = Part {
    least: 0.75,
    most: 1.1,
};
/// Of contended allocation, a deeper cache: each thread holds what another one could have had.
const DEEPER_WHERE_CONTENDED: Part = Part {
    least: -0.4,
    most: 0.5,
};

/// What the application's loads gain when its small objects lie on huge pages. Nothing within the TLB's reach; beyond it no price
/// tells, so that the middle stays at nothing.
fn loads_of_arenas(ctx: &Context, own: Interval) -> Interval {
    match ctx.last_tick() {
        Some(tick) if tick.resident <= TLB_REACH_BYTES => times(own, swaps::ON_HUGE_PAGES),
        _ => Interval {
            point: 0.0,
            ..times(own, swaps::ARENAS_ON_HUGE_PAGES)
        },
    }
}

/// What comes and goes with map calls.
const MAPPING: &[CostClass] = &[MapCalls, PageRelease, AddressSpaceLock];

// ---- another allocator ----

fn swapped(ctx: &Context, kind: AllocatorKind) -> Option<Interval> {
    let share = |classes: &[CostClass]| ctx.cpu(classes).map(|s| s.share).ok();
    let (code, locks) = (share(&[AllocatorCode])?, share(&[AllocatorLocks])?);
    let (maps, touches) = (share(MAPPING)?, share(&[FaultPath, Zeroing])?);
    let present = ctx.process()?.allocator.as_ref().ok()?.kind;
    let known = swaps::of(kind).filter(|_| present == AllocatorKind::Glibc);
    let by_malloc = ctx.map_calls_by_malloc().unwrap_or(Interval::new(0.0, 0.5, 1.0));
    let again = recycled(ctx);
    if contended(ctx) {
        return Some(sum(&[
            times(added(code, locks), swaps::CONTENDED),
            spinning(ctx)?,
            start_cost(ctx, kind),
        ]));
    }
    let code_part = match (known, ctx.served().0) {
        (Some(swap), Served::Cached) => swap.cached,
        (Some(swap), Served::Missing) => swap.missing,
        (Some(swap), Served::Mixed) => part(
            swap.cached.least.min(swap.missing.least),
            swap.cached.most.max(swap.missing.most),
        ),
        _ => swaps::UNKNOWN_CODE,
    };
    let (mapped, touched) = known.map_or((part(-0.5, 1.0), part(-0.3, 1.0)), |swap| by_size(ctx, swap));
    Some(sum(&[
        times(code, code_part),
        times(locks, swaps::CONTENDED),
        times(maps, of_malloc(mapped, by_malloc)),
        times(touches.scaled(again), of_malloc(touched, by_malloc)),
        times(touches.scaled(1.0 - again), swaps::GROWTH),
        start_cost(ctx, kind),
    ]))
}

/// Only what malloc maps is another malloc's to save.
fn of_malloc(saved: Part, by_malloc: Interval) -> Part {
    let by = |end: f64| match end > 0.0 {
        true => by_malloc.low,
        false => by_malloc.high,
    };
    part(saved.least * by(saved.least), saved.most * by_malloc.high)
}

/// What loading another allocator adds to each process's start, as a share of the target's CPU time; it saves less than nothing.
fn start_cost(ctx: &Context, kind: AllocatorKind) -> Interval {
    // Of a command of less than a second the kernel's account is read too seldom to hold all of it; the samples do.
    let cpu_s = ctx.bill.cpu_s.max(ctx.bill.sampled_cpu_s);
    let starts = ctx.recording.processes.len() as f64 / cpu_s.max(1e-9);
    let cost = swaps::of(kind).map_or(part(0.0, 0.0), |swap| swap.start_s);
    times(Interval::exact(starts), part(-cost.most, -cost.least))
}

/// What of the application's own time goes with the contention.
fn spinning(ctx: &Context) -> Option<Interval> {
    let own = ctx.cpu(&[CostClass::Application]).ok()?.share;
    Some(times(own, swaps::SPINNING))
}

/// Threads that meet in an allocator pay in its code too: for the cache lines of its locks.
fn contended(ctx: &Context) -> bool {
    ctx.cpu(&[AllocatorLocks])
        .is_ok_and(|sum| sum.share.low >= CONTENDED)
}

/// The part of the first touches that is sure to lie in blocks which hold whole 2 MiB pages: malloc's own, by the pages touched for
/// each block that is mapped. A block begins and ends within a huge page, which stays small.
fn large_blocks(ctx: &Context) -> f64 {
    const ENDS: f64 = 2.0 * 512.0;
    /// glibc takes this much of the heap's end at a time: 132 KiB.
    const BREAK_PAGES: f64 = 33.0;
    let faults = ctx.bill.rates.minor_faults.as_ref().copied();
    let by_malloc = ctx.map_calls_by_malloc().map_or(0.0, |part| part.low);
    match (faults, ctx.count("mmap"), ctx.count("brk")) {
        (Ok(faults), Some(maps), Some(breaks)) if maps > 0.0 && faults > 0.0 => {
            let mapped = (faults - breaks * BREAK_PAGES).max(0.0);
            mapped / faults * (1.0 - ENDS / (mapped / maps).max(ENDS)) * by_malloc
        }
        _ => 0.0,
    }
}

/// From this share of the CPU time in the allocator's locks on.
const CONTENDED: f64 = 0.02;
/// Blocks from this size on are no size class of an arena in most allocators.
const LARGE_PAGES: f64 = 2048.0;
/// Up to this size in the mean it is not a few large ones among many small ones that most pages belong to.
const SMALL_PAGES: f64 = 256.0;

/// Of map calls and of first touches, by how many pages are touched for each map call: a block takes two, one to map and one to
/// unmap it.
fn by_size(ctx: &Context, swap: &Swap) -> (Part, Part) {
    let rates = &ctx.bill.rates;
    let either = |a: Part, b: Part| part(a.least.min(b.least), a.most.max(b.most));
    match (&rates.minor_faults, &rates.map_calls) {
        (Ok(faults), Ok(calls)) if *calls > 0.0 && faults / (calls / 2.0) > LARGE_PAGES => {
            (swap.mapped_large, swap.touched_large)
        }
        (Ok(faults), Ok(calls)) if *calls > 0.0 && faults / (calls / 2.0) < SMALL_PAGES => {
            (swap.mapped, swap.touched)
        }
        _ => (
            either(swap.mapped, swap.mapped_large),
            either(swap.touched, swap.touched_large),
        ),
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

fn added(a: Interval, b: Interval) -> Interval {
    Interval::new(a.low + b.low, a.point + b.point, a.high + b.high)
}

/// What is known of one line says nothing of how far another one is off: distances from the points add as squares.
fn sum(all: &[Interval]) -> Interval {
    let point: f64 = all.iter().map(|i| i.point).sum();
    let off = |end: fn(&Interval) -> f64| all.iter().map(|i| (end(i) - i.point).powi(2)).sum::<f64>().sqrt();
    Interval::new(point - off(|i| i.low), point, point + off(|i| i.high))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Subject, computing};
    use allocwall_model::catalogue::remedies::find;
    use allocwall_model::recording::{EventCount, Runtime};

    fn of(subject: &Subject, key: &str) -> Option<Interval> {
        change(&subject.recording, &subject.bill, find(key).expect(key))
    }

    /// What moves in the application alone.
    fn next_to_nothing(cost: f64) -> bool {
        cost.abs() < 0.005
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
        assert!(next_to_nothing(missing.high) && next_to_nothing(cached.high));
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

    /// A process that maps and touches blocks of this many pages again and again.
    fn mapping(pages: u64, by_malloc: bool) -> Subject {
        let mut subject = computing();
        subject.shares(&[(FaultPath, 0.25), (Zeroing, 0.1), (MapCalls, 0.03)]);
        subject.map_call("do_mmap", by_malloc, 300);
        subject.recording.ticks[0].minor_faults = 0;
        subject.last().minor_faults = 100_000;
        subject.bill.rates.minor_faults = Ok(10_000.0);
        let calls = 10_000.0 / pages as f64;
        subject.bill.rates.map_calls = Ok(2.0 * calls);
        let count = |name: &str, count| EventCount {
            name: name.into(),
            count,
            over_ns: 10_000_000_000,
        };
        subject.recording.counts = vec![count("mmap", (calls * 10.0) as u64), count("brk", 0)];
        subject
    }

    #[test]
    fn what_one_process_gives_back_and_touches_again_is_sure_to_be_spared_by_keeping_it() {
        let one = of(&mapping(64, true), "glibc-keep-memory").unwrap();
        assert!(one.high < -0.25 && one.low > -0.45, "{one:?}");
        let mut forking = mapping(64, true);
        let child = forking.process().clone();
        forking.recording.processes.push(child);
        let several = of(&forking, "glibc-keep-memory").unwrap();
        assert!(several.high > -0.05 && several.low < -0.25, "{several:?}");
        let others = of(&mapping(64, false), "glibc-keep-memory").unwrap();
        assert!(next_to_nothing(others.high), "{others:?}");
    }

    #[test]
    fn huge_pages_are_sure_to_help_blocks_of_many_of_them() {
        let large = of(&mapping(10_000, true), "glibc-hugetlb").unwrap();
        assert!(large.high < -0.1, "{large:?}");
        for (pages, by_malloc) in [(256, true), (10_000, false)] {
            let unsure = of(&mapping(pages, by_malloc), "glibc-hugetlb").unwrap();
            assert!(next_to_nothing(unsure.high), "{unsure:?}");
            assert!(unsure.low < -0.1, "{unsure:?}");
        }
    }

    #[test]
    fn arenas_on_huge_pages_may_spare_first_touches_and_nobody_knows_what_the_tlb_does() {
        let python = |touched: f64, resident: u64| {
            let mut subject = mapping(10_000, true);
            subject.shares(&[(FaultPath, touched * 0.7), (Zeroing, touched * 0.3)]);
            subject.last().resident = resident;
            subject.process().runtime = Ok(Runtime::Cpython {
                version: "3.11.7".into(),
                free_threaded: false,
            });
            subject
        };
        const BEYOND: u64 = 1 << 30;
        let touching = of(&python(0.4, BEYOND), "pymalloc-hugepages").unwrap();
        let computing = of(&python(0.0, BEYOND), "pymalloc-hugepages").unwrap();
        let within = of(&python(0.0, 1 << 20), "pymalloc-hugepages").unwrap();
        assert!(touching.low < -0.3, "{touching:?}");
        // Large blocks of malloc's promise nothing of the arenas.
        assert!(
            touching.high > 0.0 && computing.high > 0.0,
            "{touching:?} {computing:?}"
        );
        assert!((-0.25..-0.05).contains(&computing.low), "{computing:?}");
        assert!(
            computing.point.abs() < 0.01 && within.low > -0.03,
            "{computing:?} {within:?}"
        );
        let mut started = python(0.4, BEYOND);
        started.process().environment = vec![("ALLOCWALL_HUGEPAGES".into(), "1".into())];
        assert_eq!(of(&started, "pymalloc-hugepages"), None);
        let mut native = python(0.4, BEYOND);
        native.process().runtime = Ok(Runtime::Native);
        assert_eq!(of(&native, "pymalloc-hugepages"), None);
    }

    #[test]
    fn large_blocks_are_given_back_at_once_by_some_allocators() {
        let [small, large] = [64, 10_000].map(|pages| {
            let subject = mapping(pages, true);
            ["jemalloc", "tcmalloc"].map(|key| of(&subject, key).unwrap())
        });
        assert!(small[0].low < -0.25 && large[0].low > -0.1, "{small:?} {large:?}");
        assert!(
            small[1].low < -0.25 && large[1].low < -0.25,
            "{small:?} {large:?}"
        );
    }

    #[test]
    fn threads_that_meet_in_the_allocator_gain_by_any_other_one() {
        let meeting = |locks: f64| {
            let mut subject = calls("_int_malloc");
            subject.shares(&[(AllocatorCode, 0.4), (AllocatorLocks, locks)]);
            ["jemalloc", "glibc-tcache-count"].map(|key| of(&subject, key).unwrap())
        };
        let [alone, deeper_alone] = meeting(0.001);
        let [contended, deeper] = meeting(0.2);
        assert!(
            alone.high > 0.0 && contended.high < -0.2,
            "{alone:?} {contended:?}"
        );
        assert!(
            next_to_nothing(deeper_alone.high) && deeper.high > 0.1,
            "{deeper_alone:?} {deeper:?}"
        );
    }

    #[test]
    fn what_several_lines_save_is_known_better_than_all_their_ends_at_once() {
        let line = Interval::new(0.0, 0.1, 0.2);
        let both = sum(&[line, line]);
        assert!((both.point - 0.2).abs() < 1e-12);
        assert!((both.high - 0.2 - 0.1 * 2f64.sqrt()).abs() < 1e-12, "{both:?}");
        assert_eq!(sum(&[line]), line);
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
