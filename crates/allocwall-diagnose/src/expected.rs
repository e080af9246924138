//! The effect that a trial of a remedy is expected to show: the change in CPU time for the same work.
//!
//! Every remedy that acts on CPU time has bounds. They come from its lines of the bill, and from the known part of
//! these lines that it can change. A diagnosis prints the bounds as the gain if they come from more than the lines
//! alone.
//!
//! If the target's calls were counted and replayed, their measured cost takes the place of ranges from other programs
//! ([`replayed`]).

pub mod prices;
mod replayed;

use super::context::{Context, Served, percent};
use super::needs;
use super::remedies::MALLOCS_PART;
use crate::bill::Bill;
use allocwall_model::allocations::Counted;
use allocwall_model::catalogue::cost::CostClass::{
    self, AddressSpaceLock, AllocatorCode, AllocatorLocks, MapCalls, PageRelease,
};
use allocwall_model::catalogue::modules::AllocatorKind;
use allocwall_model::catalogue::owners::Owner;
use allocwall_model::catalogue::prices::*;
use allocwall_model::catalogue::remedies::{ALLOCATOR_LINES, Change, Effect, Need, Remedy};
use allocwall_model::catalogue::swaps::{self, Bounds, Swap};
use allocwall_model::catalogue::syscalls::MapCall;
use allocwall_model::catalogue::thresholds::TLB_REACH_BYTES;
use allocwall_model::catalogue::walls::Wall;
use allocwall_model::recording::{Recording, Runtime};
use allocwall_model::units::{Interval, Measured};
pub use replayed::ErrorOf;
use replayed::Replayed;

/// Whether the bill allows predictions.
pub fn possible(recording: &Recording, bill: &Bill) -> Measured<()> {
    Context::new(recording, bill).cpu(&[CostClass::Application]).map(drop)
}

/// Relative change; negative if the remedy saves CPU time. None if the remedy does not apply, if it does not act on
/// CPU time, if its lines of the bill were not measured, or if nothing that was measured predicts it.
pub fn change(recording: &Recording, bill: &Bill, remedy: &Remedy) -> Option<Interval> {
    let ctx = Context::new(recording, bill);
    if needs::first_unmet(&ctx, remedy, &Wall::ALL).is_some() {
        return None;
    }
    let saved = saved(&ctx, remedy)?.whole();
    Some(Interval::new(-saved.high, -saved.point, -saved.low))
}

/// What a prediction takes from a replay, as shares of the target's CPU time.
pub struct FromReplay {
    /// All that malloc costs. The replay shows which part of it is saved.
    pub malloc: f64,
    /// [`change`] before the error was added to both sides, as far as malloc's cost allows.
    pub without_error: Interval,
    pub error: f64,
    pub error_of: ErrorOf,
}

/// None if nothing is predicted, or the prediction does not come from a replay.
pub fn from_replay(recording: &Recording, bill: &Bill, remedy: &Remedy) -> Option<FromReplay> {
    let Interval { low, point, high } = change(recording, bill, remedy)?;
    let replayed = Replayed::of(&Context::new(recording, bill), remedy)?;
    let (saved, exact) = (replayed.saved, replayed.without_error);
    Some(FromReplay {
        malloc: replayed.of_lines.point,
        without_error: Interval::new(low + saved.high - exact.high, point, high + saved.low - exact.low),
        error: replayed.error,
        error_of: replayed.error_of,
    })
}

/// What a diagnosis says about a remedy that applies, as shares of the target's CPU time.
pub(super) struct Prediction {
    /// The saving that a trial is expected to show. None if the remedy saves no CPU time, or if nothing predicts it.
    pub saved: Option<Interval>,
    /// The same, if it comes from more than the lines alone.
    pub gain: Option<Interval>,
    /// Upper bound of the saving, with that of page walks. None if the remedy saves no CPU time, or if there is no bound: its
    /// lines were not measured, it can save more than they take, or nothing bounds the page walks.
    pub at_most: Option<f64>,
    /// How the prediction was made, or why there is none.
    pub basis: String,
    /// The part of its lines of the bill that it can act on; 0 if they were not measured.
    pub most: f64,
    /// Upper end of what it saves of its lines, without the effect of other addresses on the program's own time. None if it
    /// saves no CPU time, if its lines were not measured, or if it can save more than its lines.
    pub best: Option<f64>,
    /// It may have to copy blocks that realloc keeps in place now, or was dearer in a replay: its gain is unknown, and often a loss.
    pub may_lose: bool,
}

pub(super) fn prediction(ctx: &Context, remedy: &Remedy) -> Prediction {
    let ByPrice { gain: priced, basis, most } = by_price(ctx, remedy);
    let unknown = unpredictable(ctx, remedy);
    let replayed = Replayed::of(ctx, remedy).filter(|_| unknown.is_none());
    let known = match remedy.effect {
        Effect::Swap | Effect::DeeperCache | Effect::OwnArenas => true,
        Effect::HugeTouch | Effect::ArenaInsteadOfMap | Effect::Populate => {
            priced.is_some() || replayed.is_some()
        }
        Effect::AtMost(..)
        | Effect::FewerCollections(_)
        | Effect::ForkCopy(_)
        | Effect::Unknown(_)
        | Effect::NotCpu(_) => false,
    };
    let saved = saved(ctx, remedy);
    let of_lines = saved.filter(|_| known).map(|saved| saved.of_lines);
    let saved = saved.map(Saved::whole);
    let gain = saved.filter(|_| known);
    let saves_cpu = !matches!(remedy.effect, Effect::NotCpu(_));
    let bounded = saves_cpu && unknown.is_none() && ctx.cpu(remedy.acts_on).is_ok();
    let bound = gain.map_or(most, |gain| gain.high.max(most));
    let at_most = match remedy.effect {
        // It may also cost more than it saves.
        Effect::Unknown(_) => None,
        // Page walks are on other lines.
        Effect::HugeTouch => {
            let walks = walks_reached(ctx, remedy, ctx.page_walks_at_most());
            walks.map(|walks| (most + walks).min(1.0).max(bound))
        }
        _ => Some(bound),
    };
    let at_most = at_most.filter(|_| bounded);
    let best = bounded.then(|| of_lines.map_or(most, |saved| saved.high));
    let mut basis = replayed.map_or(basis, |replayed| replayed.basis());
    let waits = waits_for_blocks(ctx).filter(|_| remedy.effect == Effect::Swap && unknown.is_none());
    match waits {
        Some(Ok(waits)) if places_matter(ctx) => {
            let waits = percent(waits.point);
            basis.push_str(&format!(
                "; {waits} of CPU waits for loads, which another allocator may make faster"
            ));
        }
        Some(Err(_)) => basis.push_str("; how much it waits for loads was not measured"),
        _ => {}
    }
    let may_lose = matches!(unknown, Some(COPIES | DEARER));
    Prediction { saved, gain, at_most, basis, most, best, may_lose }
}

/// What a remedy saves, as shares of the target's CPU time.
#[derive(Clone, Copy)]
struct Saved {
    of_lines: Interval,
    /// Of the program's own time: blocks have other addresses.
    aside: Interval,
}

impl Saved {
    fn whole(self) -> Interval {
        let saved = sum(&[self.of_lines, self.aside]);
        // No remedy saves more than all of the CPU time.
        Interval::new(saved.low.min(1.0), saved.point.min(1.0), saved.high.min(1.0))
    }
}

/// For a remedy that applies.
fn saved(ctx: &Context, remedy: &Remedy) -> Option<Saved> {
    if unpredictable(ctx, remedy).is_some() {
        return None;
    }
    let library = remedy.start.iter().flat_map(|s| s.applied).find_map(|c| match c {
        Change::Preload(library) => Some(library.kind()),
        _ => None,
    });
    let own = ctx.cpu(&[CostClass::Application]).ok()?.share;
    let of_lines = match (library, Replayed::of(ctx, remedy).map(|replayed| replayed.saved)) {
        _ if matches!(remedy.effect, Effect::Unknown(_)) => return None,
        (Some(kind), Some(replayed)) => sum(&[replayed, start_cost(ctx, kind)]),
        (Some(kind), None) => swapped(ctx, remedy, kind)?,
        (None, Some(replayed)) => replayed,
        (None, None) => bounded(ctx, remedy)?,
    };
    let layout = times(own, swaps::LAYOUT);
    let aside = match (library, remedy.effect) {
        (None, Effect::HugeTouch) if remedy.applies(Change::ArenaHook) => loads_of_arenas(ctx, remedy, own),
        (None, Effect::HugeTouch) => loads_on_huge_pages(ctx, remedy, own),
        (None, _) => layout,
        (Some(_), _) => sum(&[layout, loads_of_blocks(ctx)]),
    };
    Some(Saved { of_lines, aside })
}

// ---- remedies that keep the allocator ----

fn bounded(ctx: &Context, remedy: &Remedy) -> Option<Interval> {
    let lines = ctx.cpu(remedy.acts_on).ok()?.share;
    let gain = by_price(ctx, remedy).gain;
    match remedy.effect {
        Effect::NotCpu(_) | Effect::Swap | Effect::Unknown(_) => None,
        // It saves nothing for calls that the cache already serves. For the others it saves the call of the arena.
        Effect::DeeperCache => {
            if contended(ctx) {
                return Some(times(lines, DEEPER_WHERE_CONTENDED));
            }
            let misses = match ctx.served().0 {
                Served::Cached => part(0.0, 0.1),
                Served::Mixed => part(0.0, 0.4),
                // A size class holds 127 blocks. Larger numbers of blocks miss the deeper cache too.
                Served::Missing | Served::Unknown => part(0.0, 0.5),
            };
            let cached = ctx.price(MALLOC_CACHED).zip(ctx.price(MALLOC_ARENA));
            let saved = cached.map_or(1.0, |(cached, arena)| (1.0 - cached.low / arena.high).clamp(0.0, 1.0));
            Some(times(lines, part(misses.least, misses.most * saved)))
        }
        Effect::OwnArenas if !contended(ctx) => Some(times(lines, part(0.0, 1.0))),
        Effect::OwnArenas => {
            let met = ctx.cpu(ALLOCATOR_LINES).ok()?.share;
            Some(sum(&[times(met, swaps::ARENAS), spinning(ctx)?]))
        }
        Effect::AtMost(fraction, _) => Some(times(both(lines, reached_of(ctx, remedy)), part(0.0, fraction))),
        Effect::FewerCollections(_) => Some(times(lines, part(0.0, fewer(ctx, remedy)))),
        Effect::ForkCopy(_) => Some(times(both(lines, ctx.starts().copies()), part(0.0, 1.0))),
        // Memory on huge pages is also released in fewer pieces.
        Effect::HugeTouch => {
            let gain = gain?;
            let release = ctx.cpu(&[PageRelease]).map_or(0.0, |s| s.share.high);
            let high = gain.high + release * touches_reached(ctx, remedy).high;
            // It is unknown which blocks belong to the memory of a runtime.
            let of_runtime = remedy.needs.iter().any(|need| need.runtime().is_some());
            // If the owners are unknown, the map calls show that the blocks are malloc's.
            let small = match touches_owned(ctx, remedy) {
                Some(_) => small_touches(ctx, remedy).low,
                None => 1.0 - ctx.past_huge_pages().high,
            };
            let sure = if of_runtime { 0.0 } else { large_blocks(ctx).min(small) };
            let low = touch_price_saved(ctx).map_or(0.0, |saved| lines.low * saved.low * sure);
            Some(Interval::new(low, gain.point.clamp(low, high), high))
        }
        Effect::Populate => gain,
        // Memory that is used for the first time is touched in an arena too.
        Effect::ArenaInsteadOfMap => {
            let touched = both(ctx.cpu(Wall::FirstTouch.lines()).ok()?.share, touches_of_malloc(ctx, remedy));
            let maps = ctx.cpu(MAPPING).ok()?.share;
            let again = recycled(ctx);
            let Some((gain, by_malloc)) = gain.zip(ctx.map_calls_by_malloc().ok()) else {
                let most = maps.high + touched.high * again;
                return Some(Interval::new(0.0, most / 2.0, most));
            };
            // One process gets back memory that it released itself. With several processes, it may be that of another
            // one.
            let sure = if ctx.recording.processes.len() == 1 { again } else { 0.0 };
            let low = gain.low + touched.low * sure * KEPT.least;
            let high = (maps.high * by_malloc.high + touched.high * again) * KEPT.most;
            Some(Interval::new(low, ((low + high) / 2.0).max(gain.point.min(high)), high.max(low)))
        }
    }
}

/// The part that keeping memory saves of the first touches that it avoids. It can be below 1, because a kept page is
/// not in the CPU cache as a page that was just zeroed is. It can be above 1, because the program's own loads are
/// faster on kept pages.
const KEPT: Bounds = Bounds { least: 0.75, most: 1.1 };
/// The part of contended allocation that a deeper cache saves. It can be negative, because each thread keeps blocks
/// that another one could use.
const DEEPER_WHERE_CONTENDED: Bounds = Bounds { least: -0.4, most: 0.5 };

/// What the application's loads save if small objects are on huge pages. Within the TLB's reach it is close to zero.
/// Beyond it, no price predicts the value.
fn loads_of_arenas(ctx: &Context, remedy: &Remedy, own: Interval) -> Interval {
    match ctx.last_tick() {
        Some(tick) if tick.resident <= TLB_REACH_BYTES => times(own, swaps::ON_HUGE_PAGES),
        _ => without_walks(ctx, remedy, times(own, swaps::ARENAS_ON_HUGE_PAGES)),
    }
}

/// What the program's loads save on huge pages: at most their page walks.
fn loads_on_huge_pages(ctx: &Context, remedy: &Remedy, own: Interval) -> Interval {
    let within = times(own, swaps::ON_HUGE_PAGES);
    let walks = walks_reached(ctx, remedy, ctx.page_walks_likely_at_most()).unwrap_or(own.high);
    without_walks(ctx, remedy, Interval { high: within.high.max(walks), ..within })
}

/// The point is that all memory which the remedy changes gets huge pages, so that its counted page walks disappear. Without a
/// count nothing predicts it, and it stays at zero.
fn without_walks(ctx: &Context, remedy: &Remedy, saved: Interval) -> Interval {
    let walks = counted_walks(ctx) * memory_reached(ctx, remedy).point;
    Interval { point: walks.min(saved.high), ..saved }
}

/// The part of CPU time in page walks, as the processor counted them or their misses. 0 without a count.
fn counted_walks(ctx: &Context) -> f64 {
    ctx.page_walks().or_else(|| ctx.page_walks_by_misses()).map_or(0.0, |walks| walks.point)
}

/// Upper bound of the share of CPU time in page walks for memory that the remedy changes, by that for all memory.
fn walks_reached(ctx: &Context, remedy: &Remedy, at_most: Option<f64>) -> Option<f64> {
    Some(at_most? * memory_reached(ctx, remedy).high)
}

/// The lines of the bill that map calls cause.
const MAPPING: &[CostClass] = &[MapCalls, PageRelease, AddressSpaceLock];

// ---- another allocator ----

/// Why nothing that was measured shows what another allocator saves; None if something does.
fn unpredictable(ctx: &Context, remedy: &Remedy) -> Option<&'static str> {
    if remedy.effect != Effect::Swap || contended(ctx) {
        return None;
    }
    let replayed = Replayed::of(ctx, remedy).is_some();
    if !replayed && grows_in_place(ctx) {
        return Some(COPIES);
    }
    if !replayed && replayed::is_dearer(ctx, remedy) {
        return Some(DEARER);
    }
    changes_places_most(ctx, remedy, replayed).then_some(PLACES_UNKNOWN)
}

const COPIES: &str = "unknown: realloc makes many blocks larger in place or by moving their pages, where another allocator may copy \
                      them. Only a trial shows it";
const DEARER: &str = "unknown: in a replay of the program's calls this allocator cost more than the present one, but the replay lacks \
                      what the program pays for, so it does not show how much. Only a trial shows it";
const PLACES_UNKNOWN: &str = "unknown: another allocator puts blocks at other addresses. This can save more CPU than malloc uses, or \
                              nothing. Only a trial shows it";
/// From this part of all calls for memory on, reallocs that copy nothing decide what another allocator costs. Our choice.
const MANY_IN_PLACE: f64 = 0.1;

/// The counted calls, if they are of the process that the rungs judge.
fn counts<'a>(ctx: &Context<'a>) -> Option<&'a Counted> {
    ctx.counted().and_then(|_| ctx.recording.counted.as_ref().ok())
}

/// Whether the counted calls have many reallocs that copied nothing. The bill hardly shows them, as they cost next to nothing.
fn grows_in_place(ctx: &Context) -> bool {
    let Some(counted) = counts(ctx) else { return false };
    let calls = counted.calls();
    let free_of_copies = calls.in_place.saturating_add(calls.remapped);
    free_of_copies as f64 >= MANY_IN_PLACE * calls.allocations().saturating_add(calls.reallocs()) as f64
        && free_of_copies > 0
}

/// Whether the allocator's own time is not what another allocator changes most. If its calls are many and cheap, or if loads
/// miss the TLB, the place of the blocks matters more, and nothing that was measured shows what that is worth. It is a detail
/// if slow calls, or the kernel's work for malloc, take more time.
fn changes_places_most(ctx: &Context, remedy: &Remedy, replayed: bool) -> bool {
    let code = ctx.cpu(&[AllocatorCode]).ok().filter(|code| code.share.low >= needs::WORTH_A_SWAP);
    let code = code.map_or(0.0, |code| code.share.point);
    let (slow, cheap) =
        if matches!(ctx.served().0, Served::Missing | Served::Mixed) { (code, 0.0) } else { (0.0, code) };
    // A replay of the calls shows what they cost elsewhere, but not what the program's own loads do.
    let cheap = if replayed { 0.0 } else { cheap };
    // Without a count, nothing shows that loads miss the TLB.
    let by_places = cheap.max(counted_walks(ctx) * memory_reached(ctx, remedy).high);
    by_places >= needs::WORTH_A_SWAP && by_places > slow + in_kernel(ctx, remedy)
}

/// The share of CPU time in map calls of malloc, and in touches of memory that it returned and mapped again.
fn in_kernel(ctx: &Context, remedy: &Remedy) -> f64 {
    let share = |lines: &[CostClass]| ctx.cpu(lines).map_or(0.0, |sum| sum.share.point);
    let maps = share(MAPPING) * map_calls_of_malloc(ctx).point;
    maps + share(Wall::FirstTouch.lines()) * recycled(ctx) * touches_of_malloc(ctx, remedy).point
}

/// From this number of blocks in use on, they don't fit into the closest cache: their lines are 256 KiB or more. Our choice.
const MANY_BLOCKS: f64 = 4096.0;
/// Where it was not measured how much a program waits: all that is possible, and about what other programs do.
const WAITS_UNKNOWN: Interval = Interval { low: 0.0, point: 0.5, high: 1.0 };

/// The share of CPU time in which the program waits for loads, if it has many blocks for another allocator to place. `Err`: the share
/// of its own time, of which that is an unknown part.
fn waits_for_blocks(ctx: &Context) -> Option<Result<Interval, Interval>> {
    let many = counts(ctx)?.processes.first()?.blocks_in_use()? >= MANY_BLOCKS;
    // The objects of a runtime stay where they are.
    let native = matches!(ctx.process()?.runtime, Ok(Runtime::Native));
    let own = ctx.cpu(&[CostClass::Application]).ok().filter(|_| many && native)?.share;
    Some(ctx.bill.waits_for_loads.as_ref().map(|waits| both(own, *waits)).map_err(|_| own))
}

/// What the program's loads of its blocks save if these are elsewhere.
fn loads_of_blocks(ctx: &Context) -> Interval {
    let waits = waits_for_blocks(ctx).map(|waits| waits.unwrap_or_else(|own| both(own, WAITS_UNKNOWN)));
    waits.map_or(Interval::exact(0.0), |waits| times(waits, swaps::LOADS_OF_BLOCKS))
}

/// Whether other places of blocks may save as much as makes another allocator worth a trial. No if that was not measured.
pub(super) fn places_matter(ctx: &Context) -> bool {
    let measured = waits_for_blocks(ctx).is_some_and(|waits| waits.is_ok());
    measured && loads_of_blocks(ctx).point >= needs::WORTH_A_SWAP
}

/// Of the allocator that the target has.
fn present_kind(ctx: &Context) -> Option<AllocatorKind> {
    Some(ctx.process()?.allocator.as_ref().ok()?.kind)
}

fn swapped(ctx: &Context, remedy: &Remedy, kind: AllocatorKind) -> Option<Interval> {
    let share = |classes: &[CostClass]| ctx.cpu(classes).map(|s| s.share).ok();
    let (code, locks) = (share(&[AllocatorCode])?, share(&[AllocatorLocks])?);
    let (maps, touches) = (share(MAPPING)?, share(Wall::FirstTouch.lines())?);
    let present = present_kind(ctx)?;
    let known = swaps::of(kind).filter(|_| present == AllocatorKind::Glibc);
    let by_malloc = map_calls_of_malloc(ctx);
    let touched_by_malloc = touches_of_malloc(ctx, remedy);
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
        (Some(swap), Served::Mixed) => {
            part(swap.cached.least.min(swap.missing.least), swap.cached.most.max(swap.missing.most))
        }
        _ => swaps::UNKNOWN_CODE,
    };
    let (mapped, touched) = known.map_or((part(-0.5, 1.0), part(-0.3, 1.0)), |swap| by_size(ctx, swap));
    Some(sum(&[
        times(code, code_part),
        times(locks, swaps::CONTENDED),
        times(maps, of_malloc(mapped, by_malloc)),
        times(touches.scaled(again), of_malloc(touched, touched_by_malloc)),
        times(both(touches.scaled(1.0 - again), touches_reached(ctx, remedy)), swaps::GROWTH),
        start_cost(ctx, kind),
    ]))
}

/// Another malloc can save only the mappings that malloc makes, and the touches of its memory.
fn of_malloc(saved: Bounds, by_malloc: Interval) -> Bounds {
    let by = |end: f64| if end > 0.0 { by_malloc.low } else { by_malloc.high };
    part(saved.least * by(saved.least), saved.most * by_malloc.high)
}

/// The owners of memory that a remedy changes.
#[derive(Clone, Copy)]
struct Reach {
    surely: fn(Owner) -> bool,
    /// All of them, also those of which it may change none.
    perhaps: fn(Owner) -> bool,
}

impl Reach {
    fn exactly(owners: fn(Owner) -> bool) -> Reach {
        Reach { surely: owners, perhaps: owners }
    }
}

/// Memory of an allocator.
fn serves(kind: AllocatorKind) -> fn(Owner) -> bool {
    match kind {
        AllocatorKind::Glibc => Owner::is_glibc,
        // Their memory looks like that of the program.
        _ => |owner| matches!(owner, Owner::Private | Owner::Heap),
    }
}

fn of_malloc_now(ctx: &Context) -> Option<Reach> {
    Some(Reach::exactly(serves(present_kind(ctx)?)))
}

/// None if it changes all memory.
fn reached(ctx: &Context, remedy: &Remedy) -> Option<Reach> {
    if remedy.applies(Change::ArenaHook) {
        return Some(Reach::exactly(|owner| owner == Owner::PythonArena));
    }
    if remedy.effect == Effect::Swap {
        return of_malloc_now(ctx);
    }
    let of_need = |need: &Need| -> Option<Reach> {
        match need {
            // Its mimalloc also serves larger objects instead of malloc, but not the blocks of libraries, as those of NumPy.
            Need::CpythonAtLeast(_) => Some(Reach {
                surely: |owner| owner == Owner::PythonArena,
                perhaps: |owner| owner == Owner::PythonArena || owner.is_glibc(),
            }),
            // ZGC's heap is a memfd.
            Need::Jvm => Some(Reach::exactly(|owner| matches!(owner, Owner::Private | Owner::Shared))),
            Need::Node | Need::Go | Need::CpythonFreeThreaded => {
                Some(Reach::exactly(|owner| owner == Owner::Private))
            }
            Need::Uses(kind) => Some(Reach::exactly(serves(*kind))),
            _ => None,
        }
    };
    remedy.needs.iter().find_map(of_need)
}

/// The part of the first touches that is about memory which the remedy changes. None if their owners are unknown, or if
/// it changes all memory.
fn touches_owned(ctx: &Context, remedy: &Remedy) -> Option<Interval> {
    touches_of(ctx, reached(ctx, remedy)?)
}

fn touches_of(ctx: &Context, reach: Reach) -> Option<Interval> {
    let (surely, perhaps) =
        (ctx.owned(Wall::FirstTouch, reach.surely)?, ctx.owned(Wall::FirstTouch, reach.perhaps)?);
    Some(Interval::new(surely.low, surely.point, perhaps.high))
}

/// The part of the resident memory that has these owners; that of processes without a bill may have any owner.
fn resident_of(ctx: &Context, reach: Reach) -> Option<Interval> {
    let memory = ctx.recording.resident.as_ref().ok()?;
    let read = memory.resident_bytes(|_| true);
    if read <= 0.0 {
        return None;
    }
    let all = match memory.others {
        0 => read,
        _ => ctx.last_tick()?.resident as f64,
    };
    let part = |owners: fn(Owner) -> bool| {
        memory.resident_bytes(|owner| owner.of_faults().is_some_and(owners)) / read
    };
    let (surely, perhaps, known) = (part(reach.surely), part(reach.perhaps), read / all.max(read));
    Some(Interval::new(surely * known, surely, (perhaps * known + 1.0 - known).max(surely)))
}

/// The part of the memory that has these owners, as if all memory were used equally often: by the bill of resident memory,
/// or else by the first touches. None if the owners are unknown.
fn memory_of(ctx: &Context, reach: Reach) -> Option<Interval> {
    resident_of(ctx, reach).or_else(|| touches_of(ctx, reach))
}

/// The part of the memory that the target's malloc serves. None if it is unknown.
pub(super) fn memory_of_malloc(ctx: &Context) -> Option<Interval> {
    memory_of(ctx, of_malloc_now(ctx)?)
}

/// The part of the memory that the remedy changes: 1 for all memory.
fn memory_reached(ctx: &Context, remedy: &Remedy) -> Interval {
    match reached(ctx, remedy) {
        Some(reach) => memory_of(ctx, reach).unwrap_or_else(|| unknown_part(ctx, remedy)),
        None => Interval::exact(1.0),
    }
}

/// Whether the remedy changes almost none of the memory.
pub(super) fn memory_of_others(ctx: &Context, remedy: &Remedy) -> bool {
    match reached(ctx, remedy).and_then(|reach| resident_of(ctx, reach)) {
        Some(part) => part.high < MALLOCS_PART,
        None => touches_others(ctx, remedy),
    }
}

/// The same. It is 1 for a remedy that changes all memory.
fn touches_reached(ctx: &Context, remedy: &Remedy) -> Interval {
    match reached(ctx, remedy) {
        Some(_) => touches_owned(ctx, remedy).unwrap_or_else(|| unknown_part(ctx, remedy)),
        None => Interval::exact(1.0),
    }
}

/// The same, of the lines of a remedy: other lines than first touches are not about memory of one owner.
fn reached_of(ctx: &Context, remedy: &Remedy) -> Interval {
    if remedy.acts_on == Wall::FirstTouch.lines() {
        touches_reached(ctx, remedy)
    } else {
        Interval::exact(1.0)
    }
}

/// The same, for malloc. If the owners are unknown, malloc's part of the map calls stands for it.
fn touches_of_malloc(ctx: &Context, remedy: &Remedy) -> Interval {
    touches_owned(ctx, remedy).unwrap_or_else(|| {
        let by_calls = map_calls_of_malloc(ctx);
        if has_own_heap(ctx) { Interval::new(0.0, 0.0, by_calls.high) } else { by_calls }
    })
}

/// The part of the map calls that malloc makes. If too few were sampled, it may be any part.
fn map_calls_of_malloc(ctx: &Context) -> Interval {
    ctx.map_calls_by_malloc().unwrap_or(ANY_PART)
}

const ANY_PART: Interval = Interval { low: 0.0, point: 0.5, high: 1.0 };

/// Any part, because the owners are unknown. Most memory of a runtime with its own heap is not malloc's.
fn unknown_part(ctx: &Context, remedy: &Remedy) -> Interval {
    let of_runtime = remedy.needs.iter().any(|need| need.runtime().is_some());
    if has_own_heap(ctx) && !of_runtime { Interval { point: 0.0, ..ANY_PART } } else { ANY_PART }
}

/// Whether the objects of the target's runtime are in a heap of its own, which it maps in large pieces.
fn has_own_heap(ctx: &Context) -> bool {
    let runtime = ctx.process().map(|process| &process.runtime);
    matches!(runtime, Some(Ok(Runtime::Node { .. } | Runtime::Go { .. } | Runtime::Jvm { .. })))
}

/// Whether almost none of the first touches are in memory that the remedy changes. If the owners of few are unknown, they are
/// taken to be like the others.
pub(super) fn touches_others(ctx: &Context, remedy: &Remedy) -> bool {
    /// At least this part of the first touches must have a known owner.
    const MOSTLY_KNOWN: f64 = 0.75;
    let part = || ctx.owned(Wall::FirstTouch, reached(ctx, remedy)?.perhaps);
    let known = ctx.bill.faulted.iter().find(|faulted| faulted.wall == Wall::FirstTouch);
    let mostly_known = known.is_some_and(|faulted| faulted.known >= MOSTLY_KNOWN);
    part().is_some_and(|part| part.high < MALLOCS_PART || mostly_known && part.point < MALLOCS_PART)
}

/// The part of the collector's time that it saves at most if it collects more rarely.
fn fewer(ctx: &Context, remedy: &Remedy) -> f64 {
    needs::raised(ctx.process(), remedy)
        .map_or(0.0, |(present, new)| (1.0 - present as f64 / new.max(1) as f64).clamp(0.0, 1.0))
}

/// The part of the first touches that huge pages would save: those in memory which the remedy changes, without those that
/// are on huge pages already, or on shared memory. Usually the latter are of other owners, so both parts are not
/// multiplied: the smaller one counts. At the low end they are of the same owners.
fn small_touches(ctx: &Context, remedy: &Remedy) -> Interval {
    let (reached, past) = (touches_reached(ctx, remedy), ctx.past_huge_pages());
    Interval::new(
        (reached.low - past.high).max(0.0),
        reached.point.min(1.0 - past.point),
        reached.high.min(1.0 - past.low),
    )
}

/// What loading another allocator adds to the start of each process, as a share of the target's CPU time. As a saving
/// it is negative.
fn start_cost(ctx: &Context, kind: AllocatorKind) -> Interval {
    // For a command of less than a second, the kernel's account is read too seldom to be complete. The samples are
    // complete.
    let cpu_s = ctx.bill.cpu_s.max(ctx.bill.sampled_cpu_s);
    let starts = ctx.recording.processes.len() as f64 / cpu_s.max(1e-9);
    let cost = swaps::of(kind).map_or(part(0.0, 0.0), |swap| swap.start_s);
    times(Interval::exact(starts), part(-cost.most, -cost.least))
}

/// The part of the application's own time that disappears with the contention.
fn spinning(ctx: &Context) -> Option<Interval> {
    let own = ctx.cpu(&[CostClass::Application]).ok()?.share;
    Some(times(own, swaps::SPINNING))
}

/// Contention also slows the allocator's code, because threads share the cache lines of its locks.
fn contended(ctx: &Context) -> bool {
    ctx.cpu(&[AllocatorLocks]).is_ok_and(|sum| sum.share.low >= CONTENDED)
}

/// The part of the first touches that is certainly in blocks of malloc with whole 2 MiB pages, estimated from the
/// pages touched per mapped block. The start and the end of a block share a huge page with other memory and stay on
/// small pages.
fn large_blocks(ctx: &Context) -> f64 {
    const ENDS: f64 = 2.0 * 512.0;
    /// glibc grows the heap by this much at a time: 132 KiB.
    const BREAK_PAGES: f64 = 33.0;
    let faults = ctx.bill.rates.minor_faults.as_ref().copied();
    let by_malloc = ctx.map_calls_by_malloc().map_or(0.0, |part| part.low);
    match (faults, ctx.map_call_rate(MapCall::Mmap), ctx.map_call_rate(MapCall::Brk)) {
        (Ok(faults), Some(maps), Some(breaks)) if maps > 0.0 && faults > 0.0 => {
            let mapped = (faults - breaks * BREAK_PAGES).max(0.0);
            mapped / faults * (1.0 - ENDS / (mapped / maps).max(ENDS)) * by_malloc
        }
        _ => 0.0,
    }
}

/// Allocation counts as contended from this share of CPU time in the allocator's locks.
const CONTENDED: f64 = 0.02;
/// From this size on, most allocators have no size class in an arena.
const LARGE_PAGES: f64 = 2048.0;
/// If the mean size is below this, most pages do not belong to a few large blocks.
const SMALL_PAGES: f64 = 256.0;

/// The saved parts of map calls and of first touches, by the number of pages touched per block. A block takes two map
/// calls, one to map it and one to unmap it.
fn by_size(ctx: &Context, swap: &Swap) -> (Bounds, Bounds) {
    let rates = &ctx.bill.rates;
    let either = |a: Bounds, b: Bounds| part(a.least.min(b.least), a.most.max(b.most));
    match (&rates.minor_faults, &rates.map_calls) {
        (Ok(faults), Ok(calls)) if *calls > 0.0 && faults / (calls / 2.0) > LARGE_PAGES => {
            (swap.mapped_large, swap.touched_large)
        }
        (Ok(faults), Ok(calls)) if *calls > 0.0 && faults / (calls / 2.0) < SMALL_PAGES => {
            (swap.mapped, swap.touched)
        }
        _ => (either(swap.mapped, swap.mapped_large), either(swap.touched, swap.touched_large)),
    }
}

/// Upper bound of the first touches on memory that the process had before: all, except those by which it grew to its
/// largest measured size.
pub(super) fn recycled(ctx: &Context) -> f64 {
    const PAGE: f64 = 4096.0;
    let ticks = &ctx.recording.ticks;
    let held = ticks.iter().filter_map(|t| t.anonymous);
    let (Some(first), Some(most)) = (ticks.first(), held.max()) else {
        return 1.0;
    };
    match ctx.increase(|t| t.minor_faults) {
        Some(faults) if faults > 0 => {
            let grown = most.saturating_sub(first.anonymous.unwrap_or(0)) as f64 / PAGE;
            (1.0 - grown / faults as f64).clamp(0.0, 1.0)
        }
        _ => 1.0,
    }
}

fn part(least: f64, most: f64) -> Bounds {
    Bounds { least, most }
}

/// A line times the saved part, with the wider end of each.
fn times(line: Interval, part: Bounds) -> Interval {
    let low = part.least * if part.least < 0.0 { line.high } else { line.low };
    let high = part.most * if part.most < 0.0 { line.low } else { line.high };
    Interval::new(low, line.point * (part.least + part.most) / 2.0, high)
}

fn added(a: Interval, b: Interval) -> Interval {
    Interval::new(a.low + b.low, a.point + b.point, a.high + b.high)
}

/// A part of a line; both are at least 0.
fn both(line: Interval, part: Interval) -> Interval {
    Interval::new(line.low * part.low, line.point * part.point, line.high * part.high)
}

/// The errors of the lines are independent, so the distances from the points are added as squares.
fn sum(all: &[Interval]) -> Interval {
    let point: f64 = all.iter().map(|i| i.point).sum();
    let off = |end: fn(&Interval) -> f64| all.iter().map(|i| (end(i) - i.point).powi(2)).sum::<f64>().sqrt();
    Interval::new(point - off(|i| i.low), point, point + off(|i| i.high))
}

// ---- lines of the bill × prices of this machine ----

/// The gain by this machine's prices alone. The fields are those of [`Prediction`].
struct ByPrice {
    gain: Option<Interval>,
    basis: String,
    most: f64,
}

/// The most that it can save, as a share of CPU time.
fn most_saved(ctx: &Context, remedy: &Remedy) -> f64 {
    let whole = ctx.cpu(remedy.acts_on).map_or(0.0, |s| s.share.high);
    match remedy.effect {
        Effect::HugeTouch => whole * small_touches(ctx, remedy).high,
        Effect::AtMost(fraction, _) => whole * fraction * reached_of(ctx, remedy).high,
        Effect::FewerCollections(_) => whole * fewer(ctx, remedy),
        Effect::ForkCopy(_) => whole * ctx.starts().copies().high,
        Effect::ArenaInsteadOfMap => {
            let high = |lines: &[CostClass]| ctx.cpu(lines).map_or(0.0, |sum| sum.share.high);
            let touches = high(Wall::FirstTouch.lines()) * touches_of_malloc(ctx, remedy).high;
            let calls = ctx.map_calls_by_malloc().map_or(1.0, |part| part.high);
            whole.min(high(Wall::MapChurn.lines()) * calls + touches)
        }
        _ => whole,
    }
}

fn by_price(ctx: &Context, remedy: &Remedy) -> ByPrice {
    let most = most_saved(ctx, remedy);
    let none = |basis: String| ByPrice { gain: None, basis, most };
    let lines = lines_of(remedy);
    let Ok(sum) = ctx.cpu(remedy.acts_on) else {
        return none(match remedy.effect {
            Effect::NotCpu(what) => format!("acts on {what}, not on CPU time"),
            _ => "the lines of the bill that it acts on were not measured".into(),
        });
    };
    let saves = |part: Interval, removed: Interval, what: &str| {
        let (share, saved) = (percent(sum.share.point), percent(removed.point));
        let of_its_memory = if reached(ctx, remedy).is_some() && touches_owned(ctx, remedy).is_none() {
            format!(" × an unknown part of memory that it changes, taken as {}", percent(part.point))
        } else if part.point < 1.0 {
            format!(" × {} in small pages of memory that it changes", percent(part.point))
        } else {
            String::new()
        };
        let basis = format!("{share} of CPU ({lines}){of_its_memory} × {saved} {what}");
        priced(both(sum.share, part), removed, most, basis)
    };
    match remedy.effect {
        Effect::NotCpu(what) => none(format!("acts on {what}, not on CPU time")),
        Effect::Swap => none(match unpredictable(ctx, remedy) {
            Some(why) => why.into(),
            None => format!(
                "{} of CPU ({lines}) × the part that it saved in other programs that were measured",
                percent(sum.share.point)
            ),
        }),
        Effect::OwnArenas => none(format!(
            "{} of CPU ({lines}), and the code that contention slows; freeing a block of another thread still needs a lock",
            percent(sum.share.point)
        )),
        Effect::DeeperCache => none(format!(
            "{} of CPU ({lines}) × the part of calls that miss the thread cache × what a cached call saves on this machine",
            percent(sum.share.point)
        )),
        Effect::AtMost(_, why) => none(format!("{lines}: {why}")),
        Effect::FewerCollections(why) => none(format!(
            "{} of CPU ({lines}) × at most {} of the collections: {why}",
            percent(sum.share.point),
            percent(fewer(ctx, remedy))
        )),
        Effect::ForkCopy(what) => none(format!(
            "{} of CPU ({lines}) × {} that copies memory maps for forks; {what}",
            percent(sum.share.point),
            percent(ctx.fork_copy_part())
        )),
        Effect::Unknown(why) => {
            none(format!("unknown: it acts on {} of CPU ({lines}); {why}", percent(sum.share.point)))
        }
        Effect::HugeTouch => match huge_touch(ctx) {
            Some(removed) => saves(
                small_touches(ctx, remedy),
                removed,
                "that huge pages save on this machine, if all fresh memory gets them; blocks below 2 MiB that are mapped one by one do not get them",
            ),
            None => none(unpriced(ctx, "touch_2m or touch_4k")),
        },
        Effect::Populate => match (ctx.price(POPULATE_PAGE), ctx.price(TOUCH_4K)) {
            (Some(populate), Some(touch)) => {
                let saved = removed(populate, touch);
                saves(Interval::exact(1.0), saved, "that populating saves per page on this machine")
            }
            _ => none(unpriced(ctx, "populate_page or touch_4k")),
        },
        Effect::ArenaInsteadOfMap => arena_instead(ctx, most),
    }
}

fn priced(line: Interval, removed: Interval, most: f64, basis: String) -> ByPrice {
    let gain = Interval::new(
        line.low * removed.low,
        line.point * removed.point,
        (line.high * removed.high).min(most),
    );
    ByPrice { gain: Some(gain), basis, most }
}

fn unpriced(ctx: &Context, name: &str) -> String {
    let why = match &ctx.recording.prices {
        Err(absence) => absence.detail.clone(),
        Ok(_) => format!("this machine's price list has no {name}"),
    };
    format!("{why} (run allocwall calibrate)")
}

/// 1 − after/before, both with their intervals, clamped to 0 to 1.
fn removed(after: Interval, before: Interval) -> Interval {
    let fraction = |a: f64, b: f64| {
        if b > 0.0 { (1.0 - a / b).clamp(0.0, 1.0) } else { 0.0 }
    };
    Interval::new(
        fraction(after.high, before.low),
        fraction(after.point, before.point),
        fraction(after.low, before.high),
    )
}

/// The part that one first touch of 2 MiB saves of 512 touches of 4 KiB.
fn touch_price_saved(ctx: &Context) -> Option<Interval> {
    Some(removed(ctx.price(TOUCH_2M)?, ctx.price(TOUCH_4K)?.scaled(512.0)))
}

/// The low end is 0, because it is unknown whether the touched memory is in ranges that can have huge pages. The high
/// end also holds for memory that was idle, for which the hypervisor has to find 512 pages one by one.
fn huge_touch(ctx: &Context) -> Option<Interval> {
    let warm = touch_price_saved(ctx)?;
    let idle = ctx
        .price(TOUCH_2M_IDLE)
        .zip(ctx.price(TOUCH_4K_IDLE))
        .map_or(0.0, |(huge, small)| removed(huge, small.scaled(512.0)).high);
    Some(Interval::new(0.0, warm.point, warm.high.max(idle)))
}

/// The map calls of malloc are saved, less the cost of the arena. Whether their first touches are saved too cannot be
/// measured from outside: they only raise the upper end, by the same part as for the calls.
fn arena_instead(ctx: &Context, most: f64) -> ByPrice {
    let none = |basis| ByPrice { gain: None, basis, most };
    let Ok(maps) = ctx.cpu(Wall::MapChurn.lines()) else {
        return none("the lines of the bill that it acts on were not measured".to_owned());
    };
    let (Some(arena), Some(mapped)) = (ctx.price(MALLOC_ARENA), ctx.price(MALLOC_MAPPED)) else {
        return none(unpriced(ctx, "malloc_arena or malloc_mapped"));
    };
    let Ok(by_malloc) = ctx.map_calls_by_malloc() else {
        return none("the callers of the map calls are unknown".to_owned());
    };
    let removed = removed(arena, mapped);
    let point = maps.share.point * by_malloc.point * removed.point;
    let gain =
        Interval::new(maps.share.low * by_malloc.low * removed.low, point, (most * removed.high).max(point));
    ByPrice {
        gain: Some(gain),
        basis: format!(
            "{} of CPU (map calls, release) × {} by malloc × {} that an arena saves, and first touches of memory that is used again",
            percent(maps.share.point),
            percent(by_malloc.point),
            percent(removed.point)
        ),
        most,
    }
}

fn lines_of(remedy: &Remedy) -> String {
    remedy.acts_on.iter().map(|c| c.title()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Verdict;
    use crate::testing::{Subject, WINDOW_S, computing, resident_bill};
    use allocwall_model::catalogue::cost::CostClass::{FaultPath, Zeroing};
    use allocwall_model::catalogue::remedies::find;
    use allocwall_model::recording::{
        EventCount, HardwareCount, HardwareCounts, HardwareEvent, HardwareSlice, HardwareSlices, Smaps,
    };
    use allocwall_model::resident::{ResidentOwner, TargetMemory};

    fn of(subject: &Subject, key: &str) -> Option<Interval> {
        change(&subject.recording, &subject.bill, find(key).expect(key))
    }

    /// A change as small as that of the application's own time.
    fn next_to_nothing(cost: f64) -> bool {
        cost.abs() <= swaps::LAYOUT.most
    }

    fn calls(symbol: &str) -> Subject {
        let mut subject = computing();
        subject.shares(&[(AllocatorCode, 0.4)]).malloc_leaves(Some(symbol), 200);
        subject
    }

    #[test]
    fn another_allocator_saves_calls_that_miss_the_cache() {
        let missing = of(&calls("_int_malloc"), "tcmalloc").unwrap();
        assert!(missing.high < -0.15 && missing.low > -0.41, "{missing:?}");
        let mut few = calls("malloc");
        few.shares(&[(AllocatorCode, 0.03)]);
        let few = of(&few, "tcmalloc").unwrap();
        assert!(few.low < 0.0 && few.high > 0.0, "{few:?}");
        assert!(few.high - few.low < missing.high - missing.low, "{few:?}");
    }

    /// A program with 100,000 blocks a second. It waits for loads in this part of its own time.
    fn following(lifetime_ns: u64, waits: f64) -> Subject {
        let mut subject = computing();
        subject.shares(&[(AllocatorCode, 0.02)]);
        let blocks = 100_000 * WINDOW_S as u64;
        subject.recording.counted =
            Ok(allocwall_sketches::recording::counted(WINDOW_S as u64, &[(blocks, 64)], lifetime_ns, 0.0));
        subject.bill.waits_for_loads = Ok(Interval::new(waits - 0.02, waits, waits + 0.02));
        subject
    }

    const LONG_NS: u64 = 100_000_000;

    #[test]
    fn other_places_may_save_a_part_of_what_a_program_with_many_blocks_waits_for_loads() {
        let of = |subject: &Subject| of(subject, "tcmalloc").unwrap();
        // 10,000 blocks in use, and ten.
        let counted = following(LONG_NS, 0.6).recording.counted.unwrap();
        let in_use = counted.processes[0].blocks_in_use().unwrap();
        assert!((9_000.0..11_000.0).contains(&in_use), "{in_use}");
        let (many, few) = (of(&following(LONG_NS, 0.6)), of(&following(LONG_NS / 1000, 0.6)));
        assert!((few.point - many.point - 0.98 * 0.6 * 0.2).abs() < 0.005, "{many:?} {few:?}");
        assert!(many.low < few.low - 0.19 && (many.high - few.high).abs() < 0.12, "{many:?} {few:?}");
        let short = of(&following(LONG_NS, 0.05));
        assert!(short.low > few.low - 0.03 && short.point > few.point - 0.02, "{short:?} {few:?}");
        // All of its own time counts if the code could not be read.
        let mut unread = following(LONG_NS, 0.6);
        unread.bill.waits_for_loads = Err(crate::testing::absent());
        assert!(of(&unread).low < many.low, "{:?}", of(&unread));
        // A setting leaves the blocks where they are.
        let tcache =
            super::change(&unread.recording, &unread.bill, find("glibc-tcache-count").unwrap()).unwrap();
        assert!(tcache.low > -0.05, "{tcache:?}");
    }

    #[test]
    fn another_allocator_is_offered_where_places_may_matter_though_calls_are_few() {
        let offered = |subject: &Subject| {
            let remedies = subject.verdict().remedies;
            remedies.into_iter().find(|remedy| remedy.remedy == "tcmalloc").map(|remedy| remedy.basis)
        };
        let many = following(LONG_NS, 0.6);
        let basis = offered(&many).unwrap();
        assert!(
            basis.contains("59 % of CPU waits for loads, which another allocator may make faster"),
            "{basis}"
        );
        let Verdict { sentence, remedies, .. } = many.verdict();
        assert!(
            sentence.contains("It often waits for loads from memory: another allocator may help."),
            "{sentence}"
        );
        // Fewer calls would not help.
        let swaps = remedies.iter().all(|remedy| find(&remedy.remedy).unwrap().effect == Effect::Swap);
        assert!(swaps, "{remedies:?}");
        let mut unread = following(LONG_NS, 0.6);
        unread.bill.waits_for_loads = Err(crate::testing::absent());
        let with_runtime = |runtime: Runtime| {
            let mut subject = following(LONG_NS, 0.6);
            subject.process().runtime = Ok(runtime);
            subject
        };
        let python = with_runtime(Runtime::Cpython { version: "3.11.2".into(), free_threaded: false });
        let java = with_runtime(Runtime::Jvm { version: None });
        let (few, computes) = (following(LONG_NS / 1000, 0.6), following(LONG_NS, 0.1));
        for (subject, why) in [
            (few, "few blocks"),
            (computes, "it computes"),
            (unread, "not measured"),
            (python, "objects in arenas of its own"),
            (java, "objects in a heap of its own"),
        ] {
            assert_eq!(offered(&subject), None, "{why}");
            let sentence = subject.verdict().sentence;
            assert!(!sentence.contains("waits for loads"), "{why}: {sentence}");
        }
    }

    /// If many calls are cheap, it matters more where the blocks are.
    #[test]
    fn another_allocator_is_unpredictable_for_many_cached_calls() {
        let predicted = |symbol: &str, code: f64, locks: f64| {
            let mut subject = calls(symbol);
            subject.shares(&[(AllocatorCode, code), (AllocatorLocks, locks)]);
            let ctx = Context::new(&subject.recording, &subject.bill);
            let prediction = prediction(&ctx, find("tcmalloc").unwrap());
            assert_eq!(prediction.gain, prediction.saved);
            assert_eq!(prediction.gain.is_some(), prediction.at_most.is_some());
            assert_eq!(prediction.gain.is_none(), prediction.basis.starts_with("unknown"));
            assert_eq!(prediction.gain.is_some(), of(&subject, "tcmalloc").is_some());
            prediction.gain.is_some()
        };
        assert!(!predicted("malloc", 0.4, 0.0));
        assert!(predicted("malloc", 0.03, 0.0));
        assert!(predicted("malloc", 0.4, 0.2));
        assert!(predicted("_int_malloc", 0.4, 0.0));
    }

    /// The saving of a target with these first touches, by the owner of the memory.
    fn saved_by_owner(key: &str, mut subject: Subject, owners: &[(Owner, f64)]) -> Interval {
        subject.faulted(Wall::FirstTouch, owners);
        let change = of(&subject, key).expect(key);
        Interval::new(-change.high, -change.point, -change.low)
    }

    #[test]
    fn a_remedy_saves_only_touches_of_memory_that_it_changes() {
        let touching = || {
            let mut subject = computing();
            subject.shares(&[(FaultPath, 0.4)]);
            subject
        };
        let huge = |owners: &[(Owner, f64)]| saved_by_owner("glibc-hugetlb", touching(), owners).point;
        let all = huge(&[(Owner::Heap, 1.0)]);
        let half = huge(&[(Owner::MappedBlock, 0.3), (Owner::Arena, 0.2), (Owner::Private, 0.5)]);
        assert!(all > 0.3 && (half / all - 0.5).abs() < 0.01, "{half} of {all}");
        assert!(huge(&[(Owner::Private, 1.0)]).abs() < 0.01);
        // Shared memory is past huge pages, and not malloc's: it counts once.
        let mut beside_shared = touching();
        beside_shared.map_call("shmem_fault", false, 200).map_call("do_anonymous_page", true, 300);
        let owners = [(Owner::Heap, 0.6), (Owner::Shared, 0.4)];
        let part = saved_by_owner("glibc-hugetlb", beside_shared, &owners).point;
        assert!((part / all - 0.6).abs() < 0.01, "{part} of {all}");
    }

    /// The part of the map calls stands for that of the touches only if the owners are unknown.
    #[test]
    fn touches_are_discounted_once() {
        for (key, most) in [("glibc-keep-memory", 0.3), ("jemalloc", 0.25)] {
            for by_malloc in [true, false] {
                let malloc = saved_by_owner(key, mapping(64, by_malloc), &[(Owner::MappedBlock, 1.0)]);
                let others = saved_by_owner(key, mapping(64, by_malloc), &[(Owner::Private, 1.0)]);
                assert!(malloc.high > most, "{key}, {by_malloc}: {malloc:?}");
                assert!(others.high < 0.1, "{key}, {by_malloc}: {others:?}");
            }
        }
    }

    #[test]
    fn blocks_of_malloc_say_nothing_about_a_runtimes_heap() {
        let mut java = mapping(10_000, true);
        java.process().runtime = Ok(Runtime::Jvm { version: None });
        let [heap, malloc] = ["jvm-thp", "glibc-hugetlb"].map(|key| of(&java, key).unwrap());
        assert!(next_to_nothing(heap.high) && malloc.high < -0.1, "{heap:?} {malloc:?}");
    }

    /// A target with 4 GiB on small pages, half of it malloc's, whose first touches are all malloc's.
    fn beyond_the_tlb() -> Subject {
        let mut subject = computing();
        subject.shares(&[(FaultPath, 0.1)]).faulted(Wall::FirstTouch, &[(Owner::Heap, 1.0)]);
        subject.last().smaps = Some(Smaps { rss: 4 << 30, anonymous: 4 << 30, ..Smaps::default() });
        let rows = [(ResidentOwner::Heap, 2 << 10, Some(0)), (ResidentOwner::Private, 2 << 10, None)];
        subject.recording.resident =
            Ok(TargetMemory { bills: vec![resident_bill(&rows)], others: 0, unread: None });
        subject
    }

    #[test]
    fn huge_pages_save_at_most_their_touches_and_the_page_walks_of_their_memory() {
        // What it saves at most beside its touches.
        let beside = |subject: &Subject, key: &str| {
            let ctx = Context::new(&subject.recording, &subject.bill);
            let prediction = prediction(&ctx, find(key).unwrap());
            let high = saved(&ctx, find(key).unwrap()).map(|saved| saved.aside.high);
            (prediction.at_most.map(|at_most| at_most - prediction.most), high)
        };
        let near = |found: Option<f64>, expected: f64| found.is_some_and(|f| (f - expected).abs() < 1e-9);
        let mut subject = beyond_the_tlb();
        subject.recording.host.hypervisor = None;
        let slice = |count| HardwareSlice { count, enabled_ns: 1_000, running_ns: 1_000 };
        let count = |event, number| HardwareCount {
            event,
            counted: Ok(HardwareSlices { slices: vec![slice(number)] }),
        };
        subject.recording.hardware = Ok(HardwareCounts {
            kernel: true,
            throughout: true,
            events: vec![count(HardwareEvent::Cycles, 1_000), count(HardwareEvent::DtlbWalkActive, 200)],
        });
        for (key, walks) in [("thp-always", 0.2), ("glibc-hugetlb", 0.1)] {
            let (at_most, high) = beside(&subject, key);
            assert!(near(at_most, walks) && near(high, walks), "{key}: {at_most:?} {high:?}");
        }
        // Nothing was counted: the size of the memory bounds the page walks.
        subject.recording.hardware = Err(crate::testing::absent());
        let (at_most, high) = beside(&subject, "thp-always");
        assert!(at_most.is_some_and(|walks| walks > 0.3 && walks < 0.5), "{at_most:?}");
        assert_eq!(at_most, high);
        // A program that computes walks for little of its time. That is an estimate, and no bound.
        subject.bill.waits_for_loads = Ok(Interval::exact(0.05));
        let (bound, estimate) = beside(&subject, "thp-always");
        let part = estimate.unwrap() / high.unwrap();
        assert!(bound == at_most && (0.14..0.2).contains(&part), "{bound:?} {estimate:?}");
        // Malloc's own time may be walks.
        let little = estimate;
        subject.shares(&[(AllocatorCode, 0.4)]);
        let (bound, estimate) = beside(&subject, "thp-always");
        assert!(bound > Some(0.3) && estimate > little.map(|walks| 2.5 * walks), "{bound:?} {estimate:?}");
        subject.bill.waits_for_loads = Err(crate::testing::absent());
        // Without prices there is no bound, unless all memory is within the TLB's reach.
        subject.recording.prices = Err(crate::testing::absent());
        assert_eq!(beside(&subject, "thp-always").0, None);
        subject.last().smaps = Some(Smaps { rss: 1 << 20, anonymous: 1 << 20, ..Smaps::default() });
        assert!(near(beside(&subject, "thp-always").0, 0.0));
    }

    #[test]
    fn memory_of_processes_without_a_bill_may_have_any_owner() {
        let part = |others: u64| {
            let mut subject = beyond_the_tlb();
            subject.recording.resident.as_mut().unwrap().others = others;
            subject.last().resident = 8 << 30;
            let ctx = Context::new(&subject.recording, &subject.bill);
            memory_of_malloc(&ctx).unwrap()
        };
        assert_eq!(part(0), Interval::exact(0.5));
        assert_eq!(part(1), Interval::new(0.25, 0.5, 0.75));
    }

    #[test]
    fn owners_count_only_if_most_are_known() {
        let reached = |known: f64, samples: u64| {
            let mut subject = computing();
            subject.faulted(Wall::FirstTouch, &[(Owner::Private, 1.0)]);
            let faulted = &mut subject.bill.faulted[0];
            (faulted.known, faulted.samples) = (known, samples);
            let ctx = Context::new(&subject.recording, &subject.bill);
            touches_reached(&ctx, find("glibc-hugetlb").unwrap())
        };
        assert_eq!(reached(1.0, 1_000), Interval::exact(0.0));
        // The unknown ones may be malloc's.
        let most = reached(0.8, 1_000);
        assert!(most.point == 0.0 && (most.high - 0.2).abs() < 1e-9, "{most:?}");
        for (known, samples) in [(0.4, 1_000), (1.0, 99)] {
            assert_eq!(reached(known, samples), ANY_PART, "{known} {samples}");
        }
    }

    #[test]
    fn unknown_memory_of_a_runtime_with_its_own_heap_is_not_mallocs() {
        let reached = |runtime: Runtime, key: &str| {
            let mut subject = computing();
            subject.process().runtime = Ok(runtime);
            let ctx = Context::new(&subject.recording, &subject.bill);
            touches_reached(&ctx, find(key).unwrap())
        };
        let java = || Runtime::Jvm { version: None };
        for runtime in [java(), Runtime::Go { version: None }, Runtime::Node { version: None }] {
            let part = reached(runtime, "glibc-hugetlb");
            assert_eq!((part.low, part.point, part.high), (0.0, 0.0, 1.0));
        }
        assert_eq!(reached(Runtime::Native, "glibc-hugetlb"), ANY_PART);
        assert_eq!(reached(java(), "jvm-thp"), ANY_PART);
        assert_eq!(reached(java(), "thp-always"), Interval::exact(1.0));
    }

    #[test]
    fn few_unknown_owners_are_like_the_others() {
        let others = |known: f64, malloc: f64, samples: u64| {
            let mut subject = computing();
            subject.faulted(Wall::FirstTouch, &[(Owner::Private, 1.0 - malloc), (Owner::Heap, malloc)]);
            let faulted = &mut subject.bill.faulted[0];
            (faulted.known, faulted.samples) = (known, samples);
            let ctx = Context::new(&subject.recording, &subject.bill);
            touches_others(&ctx, find("glibc-hugetlb").unwrap())
        };
        assert!(others(1.0, 0.03, 100) && others(0.8, 0.03, 100));
        assert!(!others(0.6, 0.03, 100) && !others(0.8, 0.1, 100));
        // Too few samples show nothing, even if all their owners are known.
        assert!(!others(1.0, 0.03, 99) && !others(0.8, 0.03, 99));
    }

    #[test]
    fn memory_of_a_runtime_is_reached_by_its_own_remedies() {
        for (key, owner, point) in [
            ("jvm-pretouch", Owner::Shared, 1.0),
            ("jvm-pretouch", Owner::Private, 1.0),
            ("jvm-pretouch", Owner::Heap, 0.0),
            ("cpython-mimalloc-huge", Owner::PythonArena, 1.0),
            ("cpython-mimalloc-huge", Owner::Heap, 0.0),
            ("cpython-mimalloc-huge", Owner::Private, 0.0),
            ("pymalloc-hugepages", Owner::PythonArena, 1.0),
            ("pymalloc-hugepages", Owner::Heap, 0.0),
            ("cpython-nogil-huge", Owner::Private, 1.0),
            ("cpython-nogil-huge", Owner::Heap, 0.0),
            ("jemalloc", Owner::Arena, 1.0),
            ("jemalloc", Owner::File, 0.0),
            ("populate", Owner::File, 1.0),
        ] {
            let mut subject = computing();
            subject.faulted(Wall::FirstTouch, &[(owner, 1.0)]);
            let ctx = Context::new(&subject.recording, &subject.bill);
            assert_eq!(touches_reached(&ctx, find(key).unwrap()).point, point, "{key} {owner:?}");
        }
        // Whether blocks of malloc are Python's objects, or those of a library, is unknown.
        let mut subject = computing();
        subject.faulted(Wall::FirstTouch, &[(Owner::PythonArena, 0.3), (Owner::Heap, 0.7)]);
        let ctx = Context::new(&subject.recording, &subject.bill);
        let mimalloc = find("cpython-mimalloc-huge").unwrap();
        let part = touches_reached(&ctx, mimalloc);
        assert!(part.point == 0.3 && part.high > 0.99, "{part:?}");
        assert!(!touches_others(&ctx, mimalloc));
    }

    #[test]
    fn touching_the_java_heap_early_saves_only_its_touches() {
        let saved = |owner| {
            let mut java = computing();
            java.shares(&[(FaultPath, 0.4)]);
            java.process().runtime = Ok(Runtime::Jvm { version: None });
            saved_by_owner("jvm-pretouch", java, &[(owner, 1.0)])
        };
        let (heap, malloc) = (saved(Owner::Private), saved(Owner::Arena));
        assert!(heap.high > 0.35 && next_to_nothing(malloc.high), "{heap:?} {malloc:?}");
    }

    #[test]
    fn a_setting_that_depends_on_what_survives_is_not_predicted() {
        let predicted = |key: &str, runtime: Runtime| {
            let mut subject = computing();
            subject.shares(&[(CostClass::GarbageCollector, 0.36)]);
            subject.process().runtime = Ok(runtime);
            let ctx = Context::new(&subject.recording, &subject.bill);
            let prediction = prediction(&ctx, find(key).unwrap());
            assert!(prediction.best.is_some_and(|best| best > 0.1), "{key}");
            assert_eq!(prediction.saved.is_some(), of(&subject, key).is_some(), "{key}");
            (
                prediction.saved.is_some(),
                prediction.at_most.is_some(),
                prediction.basis.starts_with("unknown"),
            )
        };
        let unknown = (false, false, true);
        assert_eq!(predicted("node-semi-space", Runtime::Node { version: None }), unknown);
        assert_eq!(predicted("jvm-heap", Runtime::Jvm { version: None }), unknown);
        // That of Go has a known relation to the number of collections.
        assert_eq!(predicted("gogc", Runtime::Go { version: None }), (true, true, false));
    }

    #[test]
    fn a_larger_gogc_saves_by_its_present_value() {
        let most = |present: Option<&str>| {
            let mut go = computing();
            go.shares(&[(CostClass::GarbageCollector, 0.4)]);
            go.process().runtime = Ok(Runtime::Go { version: None });
            go.process().environment = present.iter().map(|v| ("GOGC".into(), (*v).into())).collect();
            let ctx = Context::new(&go.recording, &go.bill);
            let share = ctx.cpu(&[CostClass::GarbageCollector]).unwrap().share.high;
            prediction(&ctx, find("gogc").unwrap()).at_most.unwrap() / share
        };
        for (present, part) in [(None, 0.5), (Some("100"), 0.5), (Some("20"), 0.9), (Some("150"), 0.25)] {
            assert!((most(present) - part).abs() < 1e-9, "{present:?}");
        }
    }

    #[test]
    fn another_allocator_is_predicted_if_the_kernel_takes_more_time_than_its_calls() {
        let predicted = |code: f64, maps: f64, by_malloc: bool| {
            let mut subject = calls("malloc");
            subject.shares(&[(AllocatorCode, code), (MapCalls, maps)]);
            subject.map_call("do_mmap", by_malloc, 300);
            of(&subject, "tcmalloc")
        };
        let churn = predicted(0.08, 0.35, true).expect("mostly map calls");
        assert!(churn.high < -0.2, "{churn:?}");
        assert_eq!(predicted(0.4, 0.1, true), None);
        // The map calls are not those of malloc.
        assert_eq!(predicted(0.08, 0.35, false), None);
    }

    #[test]
    fn a_deeper_cache_helps_calls_that_miss_it() {
        let missing = of(&calls("_int_malloc"), "glibc-tcache-count").unwrap();
        let cached = of(&calls("malloc"), "glibc-tcache-count").unwrap();
        assert!(missing.low < -0.1 && cached.low > -0.05, "{missing:?} {cached:?}");
        assert!(next_to_nothing(missing.high) && next_to_nothing(cached.high));
    }

    #[test]
    fn keeping_memory_saves_no_first_touches_of_a_growing_heap() {
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
        let count = |name: &str, count| EventCount { name: name.into(), count, over_ns: 10_000_000_000 };
        subject.recording.counts = vec![count("mmap", (calls * 10.0) as u64), count("brk", 0)];
        subject
    }

    #[test]
    fn keeping_memory_saves_the_first_touches_of_one_process() {
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
    fn huge_pages_certainly_help_large_blocks() {
        let large = of(&mapping(10_000, true), "glibc-hugetlb").unwrap();
        assert!(large.high < -0.1, "{large:?}");
        for (pages, by_malloc) in [(256, true), (10_000, false)] {
            let unsure = of(&mapping(pages, by_malloc), "glibc-hugetlb").unwrap();
            assert!(next_to_nothing(unsure.high), "{unsure:?}");
            assert!(unsure.low < -0.1, "{unsure:?}");
        }
    }

    #[test]
    fn arenas_on_huge_pages_may_save_first_touches_and_tlb_misses() {
        let python = |touched: f64, resident: u64| {
            let mut subject = mapping(10_000, true);
            subject.shares(&[(FaultPath, touched * 0.7), (Zeroing, touched * 0.3)]);
            subject.last().resident = resident;
            subject.process().runtime =
                Ok(Runtime::Cpython { version: "3.11.7".into(), free_threaded: false });
            subject
        };
        const BEYOND: u64 = 1 << 30;
        let touching = of(&python(0.4, BEYOND), "pymalloc-hugepages").unwrap();
        let computing = of(&python(0.0, BEYOND), "pymalloc-hugepages").unwrap();
        let within = of(&python(0.0, 1 << 20), "pymalloc-hugepages").unwrap();
        assert!(touching.low < -0.3, "{touching:?}");
        // Large blocks of malloc say nothing about the arenas.
        assert!(touching.high > 0.0 && computing.high > 0.0, "{touching:?} {computing:?}");
        assert!((-0.25..-0.05).contains(&computing.low), "{computing:?}");
        assert!(computing.point.abs() < 0.01 && within.low > -0.03, "{computing:?} {within:?}");
        let mut started = python(0.4, BEYOND);
        started.process().environment = vec![("ALLOCWALL_HUGEPAGES".into(), "1".into())];
        assert_eq!(of(&started, "pymalloc-hugepages"), None);
        let mut native = python(0.4, BEYOND);
        native.process().runtime = Ok(Runtime::Native);
        assert_eq!(of(&native, "pymalloc-hugepages"), None);
    }

    #[test]
    fn some_allocators_return_large_blocks_at_once() {
        let [small, large] = [64, 10_000].map(|pages| {
            let subject = mapping(pages, true);
            ["jemalloc", "tcmalloc"].map(|key| of(&subject, key).unwrap())
        });
        assert!(small[0].low < -0.25 && large[0].low > -0.1, "{small:?} {large:?}");
        assert!(small[1].low < -0.25 && large[1].low < -0.25, "{small:?} {large:?}");
    }

    #[test]
    fn any_other_allocator_helps_contending_threads() {
        let meeting = |locks: f64| {
            let mut subject = calls("_int_malloc");
            subject.shares(&[(AllocatorCode, 0.4), (AllocatorLocks, locks)]);
            ["jemalloc", "glibc-tcache-count"].map(|key| of(&subject, key).unwrap())
        };
        let [alone, deeper_alone] = meeting(0.001);
        let [contended, deeper] = meeting(0.2);
        assert!(alone.high > 0.0 && contended.high < -0.2, "{alone:?} {contended:?}");
        assert!(next_to_nothing(deeper_alone.high) && deeper.high > 0.1, "{deeper_alone:?} {deeper:?}");
    }

    #[test]
    fn the_sum_of_lines_has_a_narrower_interval_than_the_sum_of_their_ends() {
        let line = Interval::new(0.0, 0.1, 0.2);
        let both = sum(&[line, line]);
        assert!((both.point - 0.2).abs() < 1e-12);
        assert!((both.high - 0.2 - 0.1 * 2f64.sqrt()).abs() < 1e-12, "{both:?}");
        assert_eq!(sum(&[line]), line);
    }

    #[test]
    fn a_remedy_that_does_not_apply_or_saves_no_cpu_time_has_no_change() {
        let mut subject = calls("_int_malloc");
        assert_eq!(of(&subject, "none"), None);
        assert_eq!(of(&subject, "glibc-arenas-free"), None);
        assert!(of(&subject, "jemalloc").is_some());
        subject.process().allocator.as_mut().unwrap().kind = AllocatorKind::Jemalloc;
        assert_eq!(of(&subject, "jemalloc"), None);
        assert!(of(&subject, "mimalloc").is_some());
    }
}
