//! What a remedy saves by a replay of the target's own counted calls on this machine ([`allocwall_model::replay`]).
//!
//! The replay measures which part of a call's cost another allocator saves. The bill has what the target itself pays for its calls. The
//! two costs differ, because the target's caches are colder, or because it does not fill its blocks. The saving is that part of the
//! bill's cost. The number of calls in a second of CPU time makes both costs comparable: they must be of about the same calls.

use super::{
    MAPPING, both, contended, counts, has_own_heap, map_calls_of_malloc, percent, spinning, sum,
    touches_of_malloc,
};
use crate::context::Context;
use allocwall_model::catalogue::cost::CostClass::{self, AllocatorCode, AllocatorLocks, BlockFilling};
use allocwall_model::catalogue::remedies::{Change, Effect, Remedy};
use allocwall_model::catalogue::walls::Wall;
use allocwall_model::replay::Replay;
use allocwall_model::units::Interval;

/// The bill and the replay are taken to be about the same calls if one of them is at most this many times the other. Beyond that the
/// replay lacks what the target pays for, or has what it does not pay for. Our choice, like the next four.
const ALIKE: f64 = 10.0;
/// The same where threads contend: they may do it much more in the target, which also waits for locks of its own.
const ALIKE_WHERE_CONTENDED: f64 = 2.0;
/// From this part of malloc's cost on, the first touches of its memory decide how much a remedy saves …
const TOUCHED: f64 = 0.25;
/// … and the replay must have as many with a call as the target, up to this factor.
const FAULTS_ALIKE: f64 = 3.0;
/// Where both are below this share of CPU time, their ratio is noise.
const LITTLE: f64 = 0.01;

/// By how much a prediction from the replay of a trace was off in other programs, as a share of CPU time, but at most all of malloc's
/// cost: chosen so that 80 % of the measured points lay inside with this on both sides (docs/predictions.md). This one is for another
/// allocator …
const ERROR_OF_SWAPS: f64 = 0.054;
/// … and this one for a setting of the present one, from a trace or a mix.
const ERROR_OF_SETTINGS: f64 = 0.012;
/// The same of another allocator as parts of malloc's cost, from older figures: where threads contend in the allocator …
const ERROR_WHERE_CONTENDED: f64 = 0.15;
/// … and if a mix was replayed, or the processes did not take turns.
const ERROR_OF_MIXES: f64 = 0.3;

/// Which error the prediction from a replay has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorOf {
    Swaps,
    Settings,
    Mixes,
    Contention,
}

impl ErrorOf {
    pub fn key(self) -> &'static str {
        match self {
            ErrorOf::Swaps => "swaps",
            ErrorOf::Settings => "settings",
            ErrorOf::Mixes => "mixes",
            ErrorOf::Contention => "contention",
        }
    }

    /// As a share of CPU time, of which malloc takes `malloc`.
    fn share(self, malloc: f64) -> f64 {
        match self {
            ErrorOf::Swaps => ERROR_OF_SWAPS.min(malloc),
            ErrorOf::Settings => ERROR_OF_SETTINGS.min(malloc),
            ErrorOf::Mixes => ERROR_OF_MIXES * malloc,
            ErrorOf::Contention => ERROR_WHERE_CONTENDED * malloc,
        }
    }
}

/// The saving in the lines of the bill that belong to malloc, as a share of the target's CPU time; negative if the remedy costs more.
pub(super) struct Replayed {
    pub saved: Interval,
    /// What malloc costs, of which the first is saved.
    pub of_lines: Interval,
    /// `saved` before the error was added to both sides, as far as malloc's cost allows.
    pub without_error: Interval,
    pub error: f64,
    pub error_of: ErrorOf,
    /// From the calls themselves, and not from a mix of them.
    traced: bool,
}

impl Replayed {
    /// None if there is no replay of the remedy, or if it is not about what the bill shows.
    pub fn of(ctx: &Context, remedy: &Remedy) -> Option<Replayed> {
        let replay = ctx.recording.replayed.as_ref().ok().filter(|_| acts_by_calls(remedy))?;
        let variant = replay.of(remedy.key)?;
        let per_s = calls_per_s(ctx)?;
        let per_cpu_ns = per_s / ctx.cpu_rate / 1e9;
        let of_lines = lines_of_malloc(ctx, remedy)?;
        if !touches_alike(ctx, remedy, of_lines, replay.present.faults.point * per_s) {
            return None;
        }
        let own_ns = (replay.present.cost.point - work_beside(replay)).max(0.0);
        let scale = scale(of_lines, own_ns * per_cpu_ns, contended(ctx))?;
        let saved = scaled(variant.saved.scaled(per_cpu_ns), scale);
        let swapped = remedy.effect == Effect::Swap;
        let error_of = match (swapped, replay.traced && replay.in_turns, contended(ctx)) {
            (false, ..) => ErrorOf::Settings,
            (true, false, _) => ErrorOf::Mixes,
            (true, true, true) => ErrorOf::Contention,
            (true, true, false) => ErrorOf::Swaps,
        };
        let error = error_of.share(of_lines.point);
        let spinning = if contended(ctx) { spinning(ctx)? } else { Interval::exact(0.0) };
        let with = |error: f64| {
            // It saves no more than there is.
            let low = (saved.low - error).min(of_lines.low);
            let high = (saved.high + error).min(of_lines.high);
            sum(&[Interval::new(low, saved.point.min(of_lines.point), high), spinning])
        };
        Some(Replayed {
            saved: with(error),
            of_lines,
            without_error: with(0.0),
            error,
            error_of,
            traced: replay.traced,
        })
    }

    /// How the gain was predicted.
    pub fn basis(&self) -> String {
        let share = percent(self.of_lines.point);
        let calls =
            if self.traced { "the calls of this program" } else { "calls like those of this program" };
        format!("{share} of CPU for malloc: {calls}, replayed with each allocator on this machine")
    }
}

/// Whether the replay of another allocator took longer than that of the present one, whether or not it is about what the bill shows.
pub(super) fn is_dearer(ctx: &Context, remedy: &Remedy) -> bool {
    let replay = ctx.recording.replayed.as_ref().ok();
    replay.and_then(|replay| replay.of(remedy.key)).is_some_and(|variant| variant.saved.high < 0.0)
}

/// What a call costs besides malloc: the replay's own work, and writing the blocks. Ready memory can show too much of it, as blocks
/// that are used again at once are in closer caches: no allocator takes less than that work.
fn work_beside(replay: &Replay) -> f64 {
    let played = replay.variants.iter().filter(|variant| variant.failed.is_none());
    played.map(|variant| variant.cost.point).fold(replay.present.ready.point, f64::min)
}

/// Whether the remedy changes the cost of calls of malloc alone.
fn acts_by_calls(remedy: &Remedy) -> bool {
    match remedy.effect {
        Effect::Swap | Effect::DeeperCache | Effect::OwnArenas | Effect::ArenaInsteadOfMap => true,
        Effect::HugeTouch => {
            let of_malloc = |change: &Change| matches!(change, Change::Tunable(..) | Change::Pages(_));
            remedy.start.is_some_and(|start| start.applied.iter().all(of_malloc))
        }
        Effect::Populate
        | Effect::AtMost(..)
        | Effect::FewerCollections(_)
        | Effect::ForkCopy(_)
        | Effect::Unknown(_)
        | Effect::NotCpu(_) => false,
    }
}

/// Allocations and reallocs in a second of the window.
fn calls_per_s(ctx: &Context) -> Option<f64> {
    let counted = counts(ctx)?;
    let calls = counted.calls();
    let per_s = counted.rate_of(calls.allocations().saturating_add(calls.reallocs()) as f64)?;
    (per_s > 0.0 && ctx.cpu_rate > 0.0).then_some(per_s)
}

/// Whether the replay touches about as many new pages as the target does for its malloc, if these are a large part of the cost. `replay`:
/// page faults in a second. glibc gives the end of its heap back to the kernel in some programs, and not in their replays.
fn touches_alike(ctx: &Context, remedy: &Remedy, of_lines: Interval, replay: f64) -> bool {
    let of_malloc = touches_of_malloc(ctx, remedy).point;
    let share = ctx.cpu(Wall::FirstTouch.lines()).map_or(0.0, |sum| sum.share.point) * of_malloc;
    let Ok(faults) = ctx.bill.rates.minor_faults else { return true };
    let target = faults * of_malloc;
    share < TOUCHED * of_lines.point || (target / FAULTS_ALIKE <= replay && replay <= target * FAULTS_ALIKE)
}

/// The lines of malloc itself, with the blocks that calloc fills and realloc copies.
const OWN: &[CostClass] = &[AllocatorCode, AllocatorLocks, BlockFilling];

/// All that the target pays for its malloc, as a share of its CPU time.
fn lines_of_malloc(ctx: &Context, remedy: &Remedy) -> Option<Interval> {
    let share = |lines: &[CostClass]| ctx.cpu(lines).map(|sum| sum.share).ok();
    // A runtime fills blocks of its own, too.
    let own = if has_own_heap(ctx) { &[AllocatorCode, AllocatorLocks][..] } else { OWN };
    Some(sum(&[
        share(own)?,
        both(share(MAPPING)?, map_calls_of_malloc(ctx)),
        both(share(Wall::FirstTouch.lines())?, touches_of_malloc(ctx, remedy)),
    ]))
}

/// By how much the bill is larger than the replay. None if they are not about the same.
fn scale(bill: Interval, replay: f64, contended: bool) -> Option<Interval> {
    if bill.high < LITTLE && replay < LITTLE {
        return Some(Interval::exact(1.0));
    }
    if bill.point <= 0.0 || replay <= 0.0 {
        return None;
    }
    let scale = bill.scaled(1.0 / replay);
    let most = if contended { ALIKE_WHERE_CONTENDED } else { ALIKE };
    (1.0 / ALIKE..=most).contains(&scale.point).then_some(scale)
}

/// Both may be wrong at the same time.
fn scaled(saved: Interval, scale: Interval) -> Interval {
    let ends = [saved.low, saved.high].map(|end| [end * scale.low.max(0.0), end * scale.high]);
    let (ends, point) = (ends.as_flattened(), saved.point * scale.point);
    Interval::new(
        ends.iter().copied().fold(point, f64::min),
        point,
        ends.iter().copied().fold(point, f64::max),
    )
}

#[cfg(test)]
mod tests {
    use super::super::{change, from_replay, prediction};
    use super::*;
    use crate::testing::{Subject, WINDOW_S, absent, computing};
    use allocwall_model::catalogue::cost::CostClass::{FaultPath, MapCalls, Zeroing};
    use allocwall_model::catalogue::owners::Owner;
    use allocwall_model::catalogue::remedies::find;
    use allocwall_model::replay::ReplayCost;
    use allocwall_model::units::{Absence, Reason};

    /// Around a value of the replay: 5 % to both sides.
    fn around(value: f64) -> Interval {
        Interval::new(value - value.abs() * 0.05, value, value + value.abs() * 0.05)
    }

    /// A program with 100,000 blocks a second, one of which takes 1,000 ns in all, 200 of them to write it. So malloc takes 8 % of CPU
    /// time in the replay. Each variant saves these nanoseconds a block.
    fn replayed(subject: Subject, saved_ns: &[(&str, f64)]) -> Subject {
        replayed_with(subject, 100_000, saved_ns)
    }

    /// The same with more blocks a second, which take less time each.
    fn replayed_with(mut subject: Subject, per_s: u64, saved_ns: &[(&str, f64)]) -> Subject {
        let window_s = WINDOW_S as u64;
        subject.recording.counted =
            Ok(allocwall_sketches::recording::counted(window_s, &[(per_s * window_s, 64)], 1_000, 0.0));
        let cost = |ns: f64| around(ns * 100_000.0 / per_s as f64);
        let variant = |(remedy, saved): &(&str, f64)| allocwall_model::replay::Replayed {
            remedy: (*remedy).into(),
            cost: cost(1_000.0 - saved),
            saved: cost(*saved),
            failed: None,
        };
        subject.recording.replayed = Ok(Replay {
            traced: false,
            in_turns: true,
            present: ReplayCost { cost: cost(1_000.0), ready: cost(200.0), faults: Interval::exact(0.0) },
            variants: saved_ns.iter().map(variant).collect(),
            calls: 100_000,
            rounds: 5,
        });
        subject
    }

    impl Subject {
        /// Page faults in a second of the target, and with a call of the replay.
        fn touches(&mut self, per_s: f64, with_a_call: f64) {
            self.bill.rates.minor_faults = Ok(per_s);
            self.recording.replayed.as_mut().unwrap().present.faults = Interval::exact(with_a_call);
        }
    }

    /// Malloc has this share of CPU time.
    fn calling(share: f64) -> Subject {
        let mut subject = computing();
        subject.shares(&[(AllocatorCode, share)]).malloc_leaves(Some("_int_malloc"), 200);
        subject
    }

    fn change_of(subject: &Subject, key: &str) -> Option<Interval> {
        change(&subject.recording, &subject.bill, find(key).expect(key))
    }

    /// A buffer that realloc grows: glibc moves its pages, other allocators copy it.
    #[test]
    fn an_allocator_that_costs_more_in_the_replay_is_predicted_to_cost_more() {
        let subject = replayed(calling(0.08), &[("mimalloc", -1_900.0), ("tcmalloc", 600.0)]);
        let dearer = change_of(&subject, "mimalloc").unwrap();
        assert!((dearer.point - 0.19).abs() < 0.01 && dearer.low > 0.13, "{dearer:?}");
        let cheaper = change_of(&subject, "tcmalloc").unwrap();
        assert!((cheaper.point + 0.06).abs() < 0.01 && cheaper.high < -0.01, "{cheaper:?}");
        // Another allocator was not replayed: the ranges of other programs hold.
        let ranged = change_of(&subject, "jemalloc").unwrap();
        assert_eq!(Some(ranged), change_of(&calling(0.08), "jemalloc"));
    }

    #[test]
    fn the_basis_says_where_a_prediction_comes_from() {
        let basis = |subject: &Subject| {
            let ctx = Context::new(&subject.recording, &subject.bill);
            prediction(&ctx, find("tcmalloc").unwrap()).basis
        };
        let mut subject = replayed(calling(0.08), &[("tcmalloc", 600.0)]);
        let end = "replayed with each allocator on this machine";
        assert!(basis(&subject).ends_with(&format!(": calls like those of this program, {end}")));
        subject.recording.replayed.as_mut().unwrap().traced = true;
        assert!(basis(&subject).ends_with(&format!(": the calls of this program, {end}")));
        assert!(!basis(&calling(0.08)).contains("replayed"));
    }

    #[test]
    fn the_bill_scales_a_saving_and_limits_it() {
        let saved = |share: f64, saved_ns: f64| {
            let subject = replayed(calling(share), &[("tcmalloc", saved_ns)]);
            let ctx = Context::new(&subject.recording, &subject.bill);
            Replayed::of(&ctx, find("tcmalloc").unwrap()).map(|replayed| replayed.saved)
        };
        // The replay saves half of malloc's cost. The bill has 16, 8, 4 and 24 % for it.
        for share in [0.16, 0.08, 0.04, 0.24] {
            let half = saved(share, 400.0).unwrap();
            assert!((half.point - share / 2.0).abs() < 0.005, "{half:?}");
            // The replay's own interval, and the error of replays in other programs.
            let [low, high] = [0.42 - ERROR_OF_MIXES, 0.58 + ERROR_OF_MIXES].map(|part| share * part);
            assert!(half.low > low && half.high < high, "{half:?}");
        }
        // Never more than there is.
        let all = saved(0.04, 790.0).unwrap();
        assert!(all.high < 0.046 && all.point < 0.041, "{all:?}");
        // Another allocator takes less than the blocks in ready memory: malloc costs more than it seems, and half as much saves half.
        let subject = replayed(calling(0.08), &[("tcmalloc", 450.0), ("mimalloc", 900.0)]);
        let ctx = Context::new(&subject.recording, &subject.bill);
        let half = Replayed::of(&ctx, find("tcmalloc").unwrap()).unwrap().saved;
        assert!((half.point - 0.04).abs() < 0.002, "{half:?}");
    }

    #[test]
    fn settings_are_predicted_more_closely_than_allocators_and_traces_more_than_mixes() {
        let saved = |key: &str, traced: bool, share: f64| {
            let mut subject = replayed(calling(share), &[(key, 400.0)]);
            subject.recording.replayed.as_mut().unwrap().traced = traced;
            let ctx = Context::new(&subject.recording, &subject.bill);
            Replayed::of(&ctx, find(key).unwrap()).unwrap().saved
        };
        let width = |key: &str, traced: bool, share: f64| {
            let saved = saved(key, traced, share);
            saved.high - saved.low
        };
        let more = |key: &str, traced: bool, share: f64, error: f64| {
            let setting = width("glibc-tcache-count", traced, share);
            let more = 2.0 * (error - ERROR_OF_SETTINGS);
            assert!((width(key, traced, share) - setting - more).abs() < 0.005, "{key} {traced} {share}");
        };
        more("tcmalloc", true, 0.3, ERROR_OF_SWAPS);
        more("tcmalloc", false, 0.16, ERROR_OF_MIXES * 0.16);
        // All of malloc's cost is less than that error: the lower end has it, and the higher one is malloc's cost.
        let little = saved("tcmalloc", true, 0.02);
        assert!(little.low > -0.015 && little.low < -0.008 && little.high < 0.024, "{little:?}");
    }

    #[test]
    fn the_error_of_a_prediction_is_known() {
        let of = |subject: &Subject, key: &str| {
            let remedy = find(key).unwrap();
            let change = change(&subject.recording, &subject.bill, remedy).unwrap();
            from_replay(&subject.recording, &subject.bill, remedy).map(|from| (change, from))
        };
        let near = |a: f64, b: f64| (a - b).abs() < 0.003;
        let mut subject = replayed(
            calling(0.3),
            &[("tcmalloc", 400.0), ("jemalloc", 790.0), ("glibc-tcache-count", 400.0)],
        );
        let expected = |subject: &Subject, key: &str, error_of: ErrorOf, error: f64| {
            let (change, from) = of(subject, key).unwrap();
            assert!(from.error_of == error_of && near(from.error, error), "{key}: {:?}", from.error_of);
            assert!(near(from.malloc, 0.3), "{}", from.malloc);
            [from.without_error.low - change.low, change.high - from.without_error.high]
        };
        let of_mixes = ERROR_OF_MIXES * 0.3;
        let [low, high] = expected(&subject, "tcmalloc", ErrorOf::Mixes, of_mixes);
        assert!(near(low, of_mixes) && near(high, of_mixes), "{low} {high}");
        subject.recording.replayed.as_mut().unwrap().traced = true;
        let [low, high] = expected(&subject, "tcmalloc", ErrorOf::Swaps, ERROR_OF_SWAPS);
        assert!(near(low, ERROR_OF_SWAPS) && near(high, ERROR_OF_SWAPS), "{low} {high}");
        expected(&subject, "glibc-tcache-count", ErrorOf::Settings, ERROR_OF_SETTINGS);
        // It saves nearly all of malloc's cost: no more than that is added.
        let [low, high] = expected(&subject, "jemalloc", ErrorOf::Swaps, ERROR_OF_SWAPS);
        assert!(low < 0.02 && near(high, ERROR_OF_SWAPS), "{low} {high}");
        // Processes that ran one after the other ran under different conditions.
        subject.recording.replayed.as_mut().unwrap().in_turns = false;
        expected(&subject, "tcmalloc", ErrorOf::Mixes, of_mixes);
        // Not from a replay.
        assert!(of(&calling(0.3), "tcmalloc").is_none());
    }

    #[test]
    fn a_replay_that_is_not_about_what_the_bill_shows_is_not_used() {
        let used = |subject: &Subject| {
            let ctx = Context::new(&subject.recording, &subject.bill);
            Replayed::of(&ctx, find("tcmalloc").unwrap()).is_some()
        };
        let at = |share: f64| used(&replayed(calling(share), &[("tcmalloc", 400.0)]));
        assert!(at(0.03) && at(0.3));
        assert!(!at(0.007) && !at(0.9));
        let other = |spoil: fn(&mut Subject)| {
            let mut subject = replayed(calling(0.08), &[("tcmalloc", 400.0)]);
            spoil(&mut subject);
            used(&subject)
        };
        assert!(other(|_| ()));
        assert!(!other(|subject| subject.recording.replayed = Err(absent())));
        assert!(!other(|subject| subject.recording.counted = Err(absent())));
        assert!(!other(|subject| subject.process().exe = Ok("/bin/sh".into())));
        assert!(!other(|subject| {
            let replay = subject.recording.replayed.as_mut().unwrap();
            replay.variants[0].failed = Some(Absence::new(Reason::NotFound, "no such library"));
        }));
    }

    /// A buffer that grows at the end of the heap costs next to nothing there, and copies elsewhere.
    #[test]
    fn reallocs_in_place_are_unpredictable_without_a_replay() {
        let change = |in_place: u64, replayed: bool| {
            let mut subject = self::replayed(calling(0.08), &[("tcmalloc", 400.0)]);
            if !replayed {
                subject.recording.replayed = Err(absent());
            }
            let calls = &mut subject.recording.counted.as_mut().unwrap().processes[0].calls;
            calls.in_place = in_place;
            change_of(&subject, "tcmalloc")
        };
        let few = 10_000 * WINDOW_S as u64;
        assert!(change(few, false).is_some() && change(20 * few, true).is_some());
        assert_eq!(change(20 * few, false), None);
    }

    #[test]
    fn another_allocator_that_may_copy_is_tried_last() {
        let swaps_first = |in_place: u64| {
            let mut subject = replayed(calling(0.3), &[]);
            let calls = &mut subject.recording.counted.as_mut().unwrap().processes[0].calls;
            calls.in_place = in_place * WINDOW_S as u64;
            let remedies = subject.verdict().remedies;
            assert!(remedies.iter().any(|remedy| remedy.remedy == "tcmalloc"));
            find(&remedies[0].remedy).unwrap().effect == Effect::Swap
        };
        assert!(swaps_first(1_000) && !swaps_first(200_000));
    }

    /// Without a replay, nothing shows what other addresses are worth, if calls are many and cheap.
    #[test]
    fn many_cheap_calls_are_predictable_with_a_replay() {
        let cheap = || {
            let mut subject = computing();
            subject.shares(&[(AllocatorCode, 0.08)]).malloc_leaves(Some("malloc"), 200);
            subject
        };
        assert_eq!(change_of(&cheap(), "tcmalloc"), None);
        // 40 ns for each block, of which few are in use at a time.
        let subject = replayed_with(cheap(), 2_000_000, &[("tcmalloc", 400.0)]);
        let known = change_of(&subject, "tcmalloc").unwrap();
        assert!((known.point + 0.04).abs() < 0.01, "{known:?}");
    }

    /// The work of the kernel for malloc is part of what a call costs.
    #[test]
    fn kernel_work_for_malloc_counts_and_that_for_others_does_not() {
        let touching = |owner: Owner| {
            let mut subject = computing();
            subject.shares(&[(AllocatorCode, 0.005), (FaultPath, 0.05), (Zeroing, 0.02), (MapCalls, 0.001)]);
            subject.map_call("do_mmap", owner == Owner::MappedBlock, 300);
            subject.faulted(Wall::FirstTouch, &[(owner, 1.0)]);
            let mut subject = replayed(subject, &[("glibc-keep-memory", 700.0)]);
            subject.touches(100_000.0, 1.0);
            let ctx = Context::new(&subject.recording, &subject.bill);
            Replayed::of(&ctx, find("glibc-keep-memory").unwrap()).map(|replayed| replayed.saved)
        };
        let of_malloc = touching(Owner::MappedBlock).unwrap();
        assert!((of_malloc.point - 0.066).abs() < 0.005, "{of_malloc:?}");
        // Malloc takes 0.5 % here, and 8 % in the replay.
        assert!(touching(Owner::Private).is_none());
    }

    /// The end of the heap is given back and touched again in the target, but not in the replay, which has too few faults: it says
    /// nothing about what keeping memory saves.
    #[test]
    fn a_replay_with_other_first_touches_is_not_used_where_they_matter() {
        let used = |touch: f64, faults: f64| {
            let mut subject = computing();
            subject.shares(&[(AllocatorCode, 0.1), (FaultPath, touch)]);
            subject.faulted(Wall::FirstTouch, &[(Owner::Heap, 1.0)]);
            let mut subject = replayed(subject, &[("glibc-keep-memory", 400.0)]);
            // The target has 50,000 a second, one for two calls.
            subject.touches(50_000.0, faults);
            let ctx = Context::new(&subject.recording, &subject.bill);
            Replayed::of(&ctx, find("glibc-keep-memory").unwrap()).is_some()
        };
        for (faults, alike) in
            [(0.0, false), (0.1, false), (0.3, true), (0.5, true), (1.2, true), (2.0, false)]
        {
            assert_eq!(used(0.1, faults), alike, "{faults} faults with a call");
            assert!(used(0.02, faults), "they matter little");
        }
    }

    /// It says that the other allocator is dearer, but not by how much.
    #[test]
    fn no_gain_is_promised_against_a_replay_that_is_not_used() {
        let change = |saved_ns: f64, faults: f64| {
            let mut subject = computing();
            subject.shares(&[(AllocatorCode, 0.1), (FaultPath, 0.1)]);
            subject.faulted(Wall::FirstTouch, &[(Owner::Heap, 1.0)]);
            let mut subject = replayed(subject, &[("jemalloc", saved_ns)]);
            subject.touches(50_000.0, faults);
            change_of(&subject, "jemalloc").map(|change| change.point)
        };
        let unlike = 0.0;
        assert_eq!(change(-400.0, unlike), None);
        assert!(change(400.0, unlike).is_some_and(|point| point < 0.0));
        assert!(change(-400.0, 0.5).is_some_and(|point| point > 0.0));
    }

    #[test]
    fn only_remedies_of_malloc_itself_are_replayed() {
        for (key, expected) in [
            ("jemalloc", true),
            ("glibc-keep-memory", true),
            ("glibc-hugetlb", true),
            ("glibc-tcache-count", true),
            ("glibc-arenas-free", true),
            ("thp-always", false),
            ("mimalloc-thp", false),
            ("jvm-thp", false),
            ("pool", false),
        ] {
            assert_eq!(acts_by_calls(find(key).unwrap()), expected, "{key}");
        }
    }
}
