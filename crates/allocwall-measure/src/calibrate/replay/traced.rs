//! From a trace of calls to lists of operations: the program's own calls, in their order.
//!
//! A trace begins and ends in the middle of the program. Blocks that are freed in it and were made before it, and blocks that are made in
//! it and not freed, are taken for one another: of the same size class, in their order. So a pass frees what the pass before it made. As a
//! block may be made before its counterpart is freed, a list has the trace twice, and each half frees blocks of the other one. Blocks
//! without a counterpart are left out: small ones that are freed where the program frees none would spoil what follows. If they are
//! many, the heap grows: the trace is played once then, with an empty heap.

use super::plan::{Draft, Plan, held, placed};
use allocwall_host::replay::Act;
use allocwall_model::allocations::{CLASSES, class_of};
use allocwall_model::replay::{GROWS, Mix};
use allocwall_model::stats::random::Random;
use allocwall_model::trace::{SLOTS, TracedCall, TracedKind, TracedThread};
use std::collections::{HashMap, VecDeque};

/// The most bytes that are written in one half.
const MOST_BYTES: u64 = 64 << 20;
/// The most threads that follow one another in one half of a lane.
const MOST_THREADS: usize = 250;

impl Plan {
    /// The calls of a trace, by up to as many threads as the mix has. `memory`: bytes that blocks may take at the same time. None: they
    /// need more, there are none, or the allocator does not say how large its blocks are.
    pub fn of_trace(calls: &[TracedCall], mix: &Mix, memory: u64) -> Option<Plan> {
        let largest = (memory / 8).min(u64::from(u32::MAX - 1)) as u32;
        let mut reader = Reader::new(calls, mix.lanes.len());
        let calls = last_that_fit(calls);
        for (at, call) in calls.iter().enumerate() {
            let ends = matches!(call.kind, TracedKind::Free | TracedKind::Resized);
            if ends && call.size == 0 || !ends && call.size > largest {
                return None;
            }
            if reader.threads_of_a_lane() > MOST_THREADS {
                break;
            }
            reader.take(at as u32, call);
        }
        reader.plan(mix, largest).filter(|(_, bytes)| *bytes <= memory).map(|(plan, _)| plan)
    }
}

/// The last calls that write or copy no more than is allowed.
fn last_that_fit(calls: &[TracedCall]) -> &[TracedCall] {
    let mut bytes = 0_u64;
    let fits = |call: &&TracedCall| {
        if !matches!(call.kind, TracedKind::Free | TracedKind::Resized) {
            bytes += u64::from(call.size);
        }
        bytes <= MOST_BYTES
    };
    &calls[calls.len() - calls.iter().rev().take_while(fits).count()..]
}

/// One block of the trace.
#[derive(Clone, Copy, Debug)]
struct Block {
    /// Whose list has its operations: the thread that made it, or, if that was before the trace, the first one that uses it.
    lane: u32,
    size: u32,
    /// Of a block that was there before: its size then. The other one stands for a block that the trace makes.
    before: Option<u32>,
    live: bool,
}

impl Block {
    /// The trace makes it, and does not free it.
    fn is_left(&self) -> bool {
        self.live && self.before.is_none()
    }
}

/// One step of a block.
#[derive(Clone, Copy, Debug)]
struct Step {
    at: u32,
    block: u32,
    act: Act,
    size: u32,
    old: u32,
    /// The lane that does it.
    by: u32,
}

struct Reader {
    /// Slots of the library, by lane.
    slots: Vec<u16>,
    main: Vec<bool>,
    /// By lane: the thread that has it now, and where the threads before it ended.
    now: Vec<Option<TracedThread>>,
    ends: Vec<Vec<u32>>,
    blocks: Vec<Block>,
    steps: Vec<Step>,
    by_address: HashMap<u64, u32>,
    /// By lane: the block that its realloc is about, until the next call.
    resized: Vec<Option<u32>>,
    bytes: u64,
    over: u32,
}

impl Reader {
    /// Lanes are the slots with most calls.
    fn new(calls: &[TracedCall], most: usize) -> Reader {
        let mut counts = vec![0_usize; SLOTS];
        calls.iter().for_each(|call| counts[usize::from(call.thread.slot())] += 1);
        let mut slots: Vec<u16> = (0..SLOTS as u16).filter(|slot| counts[usize::from(*slot)] > 0).collect();
        slots.sort_by_key(|slot| std::cmp::Reverse(counts[usize::from(*slot)]));
        slots.truncate(most);
        let lanes = slots.len();
        Reader {
            slots,
            main: vec![false; lanes],
            now: vec![None; lanes],
            ends: vec![Vec::new(); lanes],
            blocks: Vec::new(),
            steps: Vec::with_capacity(calls.len()),
            by_address: HashMap::with_capacity(calls.len()),
            resized: vec![None; lanes],
            bytes: 0,
            over: 0,
        }
    }

    fn threads_of_a_lane(&self) -> usize {
        self.ends.iter().map(Vec::len).max().unwrap_or(0)
    }

    fn take(&mut self, at: u32, call: &TracedCall) {
        self.over = at + 1;
        let Some(lane) = self.slots.iter().position(|slot| *slot == call.thread.slot()) else {
            // A thread that is left out: what it frees, the thread that made it frees.
            if matches!(call.kind, TracedKind::Free | TracedKind::Resized)
                && let Some(block) = self.by_address.remove(&call.address)
            {
                let by = self.blocks[block as usize].lane;
                self.end(at, block, by);
            }
            return;
        };
        let by = lane as u32;
        self.main[lane] |= call.thread.is_main();
        if self.now[lane].is_some_and(|thread| thread != call.thread) {
            self.ends[lane].push(at);
        }
        self.now[lane] = Some(call.thread);
        let resized = self.resized[lane].take();
        if let Some(block) = resized.filter(|_| call.kind != TracedKind::ResizedTo) {
            // realloc(3) with size 0.
            self.end(at, block, by);
        }
        match call.kind {
            TracedKind::New | TracedKind::Zeroed => {
                let act = if call.kind == TracedKind::Zeroed { Act::Zeroed } else { Act::New };
                self.make(at, act, call, by);
            }
            TracedKind::Free => {
                let block = self.block_at(call, by);
                self.end(at, block, by);
            }
            TracedKind::Resized => self.resized[lane] = Some(self.block_at(call, by)),
            TracedKind::ResizedTo => match resized {
                Some(block) if self.blocks[block as usize].lane == by => self.resize(at, block, call),
                Some(block) => {
                    self.end(at, block, by);
                    self.make(at, Act::New, call, by);
                }
                // The trace began between the two.
                None => self.make(at, Act::New, call, by),
            },
        }
    }

    /// The block with this address, which leaves it; one from before the trace if it is not known.
    fn block_at(&mut self, call: &TracedCall, by: u32) -> u32 {
        self.by_address.remove(&call.address).unwrap_or_else(|| {
            self.blocks.push(Block { lane: by, size: call.size, before: Some(call.size), live: true });
            self.blocks.len() as u32 - 1
        })
    }

    fn make(&mut self, at: u32, act: Act, call: &TracedCall, by: u32) {
        let block = self.blocks.len() as u32;
        self.blocks.push(Block { lane: by, size: call.size, before: None, live: true });
        self.settle(at, call, block);
        self.bytes += u64::from(call.size);
        self.steps.push(Step { at, block, act, size: call.size, old: 0, by });
    }

    fn resize(&mut self, at: u32, block: u32, call: &TracedCall) {
        self.settle(at, call, block);
        let one = &mut self.blocks[block as usize];
        let (old, by) = (one.size, one.lane);
        one.size = call.size;
        self.bytes += u64::from(call.size.saturating_sub(old));
        self.steps.push(Step { at, block, act: Act::Resize, size: call.size, old, by });
    }

    /// The block has its address. If another one still seems to have it, its free was missed.
    fn settle(&mut self, at: u32, call: &TracedCall, block: u32) {
        if let Some(missed) = self.by_address.insert(call.address, block) {
            let by = self.blocks[missed as usize].lane;
            self.end(at, missed, by);
        }
    }

    fn end(&mut self, at: u32, block: u32, by: u32) {
        let one = &mut self.blocks[block as usize];
        one.live = false;
        self.steps.push(Step { at, block, act: Act::Free, size: 0, old: one.size, by });
    }

    /// For each block from before the trace: the one that stands for it in the pass before. They have one size class.
    fn counterparts(&self) -> Vec<Option<u32>> {
        let mut left = vec![VecDeque::new(); CLASSES];
        for (number, block) in self.blocks.iter().enumerate().filter(|(_, block)| block.is_left()) {
            left[class_of(block.size.into())].push_back(number as u32);
        }
        let mut counterpart = |block: &Block| {
            // Usable sizes are above what was requested: with glibc by a few bytes, with others by a quarter at most.
            let usable = u64::from(block.before.filter(|_| !block.live)?);
            let classes = class_of(usable - usable / 4)..=class_of(usable);
            classes.rev().find_map(|class| left[class].pop_front())
        };
        self.blocks.iter().map(&mut counterpart).collect()
    }

    fn plan(self, mix: &Mix, largest: u32) -> Option<(Plan, u64)> {
        let stand_ins = self.counterparts();
        let mut used = vec![false; self.blocks.len()];
        stand_ins.iter().flatten().for_each(|block| used[*block as usize] = true);
        let over = |number: u32| self.blocks[number as usize].is_left() && !used[number as usize];
        let bytes = |number: u32| u64::from(self.blocks[number as usize].size);
        let left: u64 = (0..self.blocks.len() as u32).filter(|number| over(*number)).map(bytes).sum();
        let once = left as f64 >= GROWS * self.bytes.max(1) as f64;
        let half = f64::from(self.over) + 1.0;
        let copies: u32 = if once { 1 } else { 2 };
        let count = self.blocks.len() as u32;
        let lanes = self.slots.len();
        let mut drafts: Vec<Vec<Draft>> = vec![Vec::new(); lanes];
        let mut gives = vec![vec![0_usize; lanes]; lanes];
        for copy in 0..copies {
            for (order, step) in self.steps.iter().enumerate() {
                let own = &self.blocks[step.block as usize];
                let (block, lane) = match (own.before, stand_ins[step.block as usize]) {
                    (None, _) if once || !over(step.block) => (step.block + copy * count, own.lane),
                    // Of the other half.
                    (Some(_), Some(same)) if !once => {
                        (same + (1 - copy) * count, self.blocks[same as usize].lane)
                    }
                    _ => continue,
                };
                let is_given = step.act == Act::Free && step.by != lane;
                gives[lane as usize][step.by as usize] += usize::from(is_given);
                let act = if is_given { Act::Give } else { step.act };
                let at = f64::from(copy) * half + f64::from(step.at);
                let Step { size, old, .. } = *step;
                drafts[lane as usize].push(Draft { at, order: order as u32, block, act, size, old });
            }
        }
        let mut random = Random::new(1);
        let (mut planned, mut bytes, mut main) = (Vec::new(), 0, false);
        for (lane, mut drafts) in drafts.into_iter().enumerate() {
            compact(&mut drafts, 2 * count);
            let collects = (0..lanes).any(|other| gives[other][lane] > 0);
            let ends = (0..copies).flat_map(|copy| {
                let begins = f64::from(copy) * half;
                let own = self.ends[lane].iter().map(move |at| begins + f64::from(*at));
                own.chain((copy + 1 < copies && !self.ends[lane].is_empty()).then_some(begins + half - 0.5))
            });
            let (mut one, in_use) = placed(&drafts, collects, ends);
            let share = mix.lanes.get(lane).map_or(0.0, |lane| lane.allocates);
            one.held = if once { Vec::new() } else { held(mix, share, largest, &mut random) };
            let most = (0..lanes).filter(|other| *other != lane).max_by_key(|other| gives[lane][*other]);
            one.partner = most.unwrap_or(lane);
            one.main = self.main[lane] && !main;
            main |= one.main;
            bytes += in_use + one.held.iter().map(|size| u64::from(*size)).sum::<u64>();
            planned.push(one);
        }
        let plan = Plan::new(planned, once);
        (plan.calls > 0).then_some((plan, bytes))
    }
}

/// Numbers the blocks of one lane, which are below `count`, from 0.
fn compact(drafts: &mut [Draft], count: u32) {
    let (mut numbers, mut next) = (vec![u32::MAX; count as usize], 0);
    for draft in drafts {
        let number = &mut numbers[draft.block as usize];
        if *number == u32::MAX {
            (*number, next) = (next, next + 1);
        }
        draft.block = *number;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use TracedKind::{Free, New, Resized, ResizedTo, Zeroed};
    use allocwall_host::replay::{Lane, Op};
    use allocwall_model::replay::Lane as MixLane;
    use std::collections::BTreeMap;

    const GIB: u64 = 1 << 30;
    const MAIN: u16 = 0x8000;

    fn mix(threads: usize) -> Mix {
        let lane = MixLane { allocates: 1.0, frees: 1.0, main: true, blocks_per_thread: None };
        Mix {
            lanes: vec![lane; threads],
            sizes: vec![(64, 1.0)],
            fates: vec![],
            resized_from: vec![],
            resized_to: vec![],
            kept: vec![(100, 3.0)],
            batch: None,
            one_at_a_time: false,
            grows: false,
            blocks: 1_000_000,
        }
    }

    fn call(kind: TracedKind, address: u64, size: u32, thread: u16) -> TracedCall {
        TracedCall { kind, address, size, thread: TracedThread(thread) }
    }

    /// Each new block takes the place of the one that was made `ring` blocks before. Their sizes are 32, 64 and so on up to 320.
    fn ring(ring: u64, blocks: u64) -> Vec<TracedCall> {
        let size = |block: u64| 32 * (block % 10 + 1) as u32;
        let address = |block: u64| 4096 * (block % (2 * ring) + 1);
        let of_block = |block: u64| {
            let old = call(Free, address(block - ring), size(block - ring), MAIN);
            [
                old,
                call(if block.is_multiple_of(10) { Zeroed } else { New }, address(block), size(block), MAIN),
            ]
        };
        (ring * 10..ring * 10 + blocks).flat_map(of_block).collect()
    }

    /// Plays a list for three passes. From the second on, each operation must find what it needs.
    fn played(lane: &Lane) -> usize {
        let mut slots: Vec<Option<u32>> = vec![None; lane.places.len()];
        for pass in 0..3 {
            for op in &lane.ops {
                let Op { act, slot, size, .. } = *op;
                let block = &mut slots[slot as usize];
                match act {
                    Act::New | Act::Zeroed => assert!(block.replace(size).is_none(), "pass {pass}: {op:?}"),
                    Act::Resize => {
                        assert!(block.is_some() || pass == 0, "pass {pass}: {op:?}");
                        *block = block.map(|_| size);
                    }
                    Act::Free | Act::Give => {
                        assert!(block.take().is_some() || pass == 0, "pass {pass}: {op:?}")
                    }
                    Act::Collect => {}
                }
            }
        }
        slots.iter().flatten().count()
    }

    fn acts(lane: &Lane) -> BTreeMap<String, usize> {
        let mut acts = BTreeMap::new();
        lane.ops.iter().for_each(|op| *acts.entry(format!("{:?}", op.act)).or_default() += 1);
        acts
    }

    fn counts(list: &[(&str, usize)]) -> BTreeMap<String, usize> {
        list.iter().map(|(act, count)| ((*act).to_owned(), *count)).collect()
    }

    #[test]
    fn a_pass_frees_what_the_pass_before_it_made() {
        let trace = ring(100, 1000);
        let plan = Plan::of_trace(&trace, &mix(1), GIB).unwrap();
        let [lane] = &plan.lanes[..] else { panic!("{}", plan.lanes.len()) };
        // The trace twice, in its order.
        assert_eq!(
            (acts(lane), plan.calls),
            (counts(&[("Free", 2000), ("New", 1800), ("Zeroed", 200)]), 2000)
        );
        assert!(!plan.once && lane.main && lane.threads.is_empty() && lane.held.len() == 3);
        let made = |op: &&Op| matches!(op.act, Act::New | Act::Zeroed);
        let sizes: Vec<u32> = lane.ops.iter().filter(made).map(|op| op.size).collect();
        let program: Vec<u32> = trace.iter().filter(|call| call.kind != Free).map(|call| call.size).collect();
        assert_eq!(sizes, [&program[..], &program[..]].concat());
        assert_eq!(played(lane), 100);
        // Blocks that another one has outlived are those of the other half: at most one more than the ring at a time.
        assert!(lane.places.len() <= 300, "{}", lane.places.len());
    }

    #[test]
    fn a_heap_that_grows_is_played_once_and_few_blocks_that_stay_are_left_out() {
        let of = |every: u64| {
            let mut trace = ring(100, 1000);
            let stay = (0..1000 / every).map(|nth| call(New, 1 << 40 | nth << 12, 200, MAIN));
            trace.extend(stay);
            Plan::of_trace(&trace, &mix(1), GIB).unwrap()
        };
        let (grows, steady) = (of(4), of(100));
        assert!(grows.once && grows.calls == 1250 && grows.lanes[0].held.is_empty());
        assert!(!steady.once && steady.calls == 2000 && played(&steady.lanes[0]) == 100);
    }

    #[test]
    fn reallocs_have_their_old_and_new_sizes() {
        let mut trace = Vec::new();
        for nth in 0..50 {
            let at = 4096 * (nth + 1);
            trace.extend([
                call(New, at, 100, MAIN),
                call(Resized, at, 104, MAIN),
                call(ResizedTo, at + 16, 200, MAIN),
                call(Resized, at + 16, 216, MAIN),
            ]);
            // realloc with size 0 is a free: of two calls, only the first is there.
            if nth % 2 == 0 {
                trace.extend([call(ResizedTo, at, 400, MAIN), call(Free, at, 408, MAIN)]);
            }
        }
        let plan = Plan::of_trace(&trace, &mix(1), GIB).unwrap();
        let lane = &plan.lanes[0];
        assert_eq!(acts(lane), counts(&[("Free", 98), ("New", 98), ("Resize", 148)]));
        let steps = lane.ops.iter().filter(|op| op.act == Act::Resize).map(|op| (op.old, op.size));
        assert_eq!(steps.take(3).collect::<Vec<_>>(), [(100, 200), (200, 400), (100, 200)]);
        assert_eq!(played(lane), 0);
    }

    /// A buffer that was there before the trace grows in it: it stands for one that the trace makes, in the other half.
    #[test]
    fn a_block_from_before_may_be_resized_if_it_is_freed() {
        let of = |freed: bool| {
            let mut trace = ring(100, 1000);
            trace.push(call(New, 1 << 40, 5000, MAIN));
            trace.insert(0, call(Resized, 1 << 41, 5000, MAIN));
            trace.insert(1, call(ResizedTo, 1 << 42, 9000, MAIN));
            if freed {
                trace.insert(500, call(Free, 1 << 42, 9000, MAIN));
            }
            Plan::of_trace(&trace, &mix(1), GIB).unwrap()
        };
        let (freed, stays) = (of(true), of(false));
        assert_eq!(acts(&freed.lanes[0]).get("Resize"), Some(&2));
        assert_eq!(played(&freed.lanes[0]), 101);
        assert_eq!(acts(&stays.lanes[0]).get("Resize"), None);
        assert_eq!(played(&stays.lanes[0]), 100);
    }

    #[test]
    fn what_another_thread_frees_is_given_to_it() {
        let trace = |freed_by: u16| -> Vec<TracedCall> {
            let pair = |nth: u64| [call(New, nth << 12, 64, MAIN), call(Free, nth << 12, 72, freed_by)];
            (1..1001).flat_map(pair).chain([call(New, 1, 8, 2), call(Free, 1, 24, 2)]).collect()
        };
        let remote = Plan::of_trace(&trace(1), &mix(3), GIB).unwrap();
        let [makes, frees, _] = &remote.lanes[..] else { panic!("{}", remote.lanes.len()) };
        assert_eq!((acts(makes), makes.partner), (counts(&[("Give", 2000), ("New", 2000)]), 1));
        assert!(frees.ops.is_empty() && makes.main && !frees.main);
        let own = Plan::of_trace(&trace(MAIN), &mix(3), GIB).unwrap();
        assert_eq!(acts(&own.lanes[0]), counts(&[("Free", 2000), ("New", 2000)]));
        // With one lane, the thread that made them frees them.
        let alone = Plan::of_trace(&trace(1), &mix(1), GIB).unwrap();
        assert_eq!(acts(&alone.lanes[0]), counts(&[("Free", 2000), ("New", 2000)]));
    }

    #[test]
    fn threads_that_follow_one_another_begin_and_end() {
        let of = |per_thread: u64| {
            let thread = |nth: u64| 1 | ((nth / per_thread % 32) as u16) << 10;
            let pair =
                |nth: u64| [call(New, nth << 12, 64, thread(nth)), call(Free, nth << 12, 72, thread(nth))];
            let trace: Vec<TracedCall> = (0..100).flat_map(pair).collect();
            Plan::of_trace(&trace, &mix(1), GIB).unwrap()
        };
        let short = of(10);
        // Ten in each half; the last one has what is left.
        assert_eq!(short.lanes[0].threads, vec![20; 19]);
        assert_eq!(of(1000).lanes[0].threads, Vec::<usize>::new());
    }

    /// Of large blocks only the last ones are played.
    #[test]
    fn a_pass_has_no_more_bytes_than_allowed() {
        let pair = |nth: u64| [call(New, nth, 1 << 20, MAIN), call(Free, nth, 1 << 20, MAIN)];
        let trace: Vec<TracedCall> = (1..=100).flat_map(pair).collect();
        assert_eq!(Plan::of_trace(&trace, &mix(1), GIB).unwrap().calls, 2 * 64);
        let grown: Vec<TracedCall> = (1..=100)
            .flat_map(|nth| [call(Resized, 8, nth << 20, MAIN), call(ResizedTo, 8, (nth + 1) << 20, MAIN)])
            .collect();
        assert_eq!(last_that_fit(&grown).len(), 0);
        assert_eq!(last_that_fit(&grown[..20]).len(), 20 - 2);
    }

    /// An allocator with few sizes: its blocks are up to a quarter larger than requested.
    #[test]
    fn counterparts_are_found_by_usable_sizes_of_any_allocator() {
        let mut trace = ring(100, 1000);
        for call in trace.iter_mut().filter(|call| call.kind == Free) {
            call.size += call.size / 5;
        }
        let plan = Plan::of_trace(&trace, &mix(1), GIB).unwrap();
        assert!(!plan.once && played(&plan.lanes[0]) > 50);
    }

    #[test]
    fn a_free_that_was_missed_is_made_up_for() {
        let trace: Vec<TracedCall> = (0..10).map(|_| call(New, 4096, 64, MAIN)).collect();
        let plan = Plan::of_trace(&trace, &mix(1), GIB).unwrap();
        assert_eq!(acts(&plan.lanes[0]).get("Free"), Some(&9));
    }

    #[test]
    fn what_can_not_be_played_is_refused_and_anything_else_is_played() {
        assert!(Plan::of_trace(&[], &mix(1), GIB).is_none());
        assert!(Plan::of_trace(&[call(Free, 1, 64, MAIN)], &mix(1), GIB).is_none());
        assert!(Plan::of_trace(&[call(New, 1, u32::MAX, MAIN)], &mix(1), GIB).is_none());
        // What was there before may have any size, if it is known.
        let after = |size: u32| [&[call(Free, 1, size, MAIN)], &ring(100, 1000)[..]].concat();
        assert!(Plan::of_trace(&after(u32::MAX), &mix(1), GIB).is_some());
        assert!(Plan::of_trace(&after(0), &mix(1), GIB).is_none());
        let large: Vec<TracedCall> = (1..=8).map(|nth| call(New, nth, 1 << 20, MAIN)).collect();
        assert!(Plan::of_trace(&large, &mix(1), 8 << 20).is_some());
        assert!(Plan::of_trace(&large, &mix(1), 7 << 20).is_none());
        // A process may write anything.
        let kinds = [New, Zeroed, Free, Resized, ResizedTo];
        for seed in 0..200 {
            let mut random = Random::new(seed);
            let mut some = || {
                let [kind, address, size, thread] = [5, 40, 2000, 4].map(|most| random.below(most));
                call(kinds[kind], address as u64, size as u32, (thread as u16) << 14 | thread as u16)
            };
            let trace: Vec<TracedCall> = (0..300).map(|_| some()).collect();
            let Some(plan) = Plan::of_trace(&trace, &mix(3), GIB) else { continue };
            for lane in &plan.lanes {
                assert!(lane.partner < plan.lanes.len());
                assert!(lane.ops.iter().all(|op| (op.slot as usize) < lane.places.len().max(1)));
                if !plan.once {
                    played(lane);
                }
            }
        }
    }
}
