//! From a mix of calls to lists of operations: which blocks are made, changed and freed, in which order, by which thread.
//!
//! The time of a plan is counted in new blocks of the thread. A list is played again and again: what begins near its end may end near
//! its start, in the next pass. Only a list for a heap that grows is played once.
//!
//! A plan is made in the process that plays it, so its large lists are not freed, but forgotten: giving them back would raise glibc's
//! thresholds (mallopt(3), M_MMAP_THRESHOLD), which only the calls that are measured should do.

use allocwall_host::replay::{Act, Lane, Op};
use allocwall_model::allocations::{BANDS, End, band_of, band_sizes};
use allocwall_model::replay::{Batch, Fates, FreeOrder, Mix, nearest};
use allocwall_model::stats::random::Random;
use std::cmp::Ordering;

/// The most new blocks and reallocs of a pass, and the most bytes that are written or copied in it, of all threads together. A pass
/// takes some tens of milliseconds at most, unless the allocator is slow.
const MOST_CALLS: f64 = 60_000.0;
const MOST_BYTES: f64 = (64 << 20) as f64;
/// The same for a heap that grows, which is played once.
const MOST_CALLS_ONCE: f64 = 200_000.0;
const MOST_BYTES_ONCE: f64 = (128 << 20) as f64;
const LEAST_BLOCKS: f64 = 1.0;
/// Multiples of it, without their whole parts, are spread evenly from 0 to 1, however many there are: 1 / the golden ratio.
const SPREAD: f64 = 0.618_033_988_749_895;
/// Blocks that stay in use.
const MOST_HELD: f64 = 20_000.0;
const MOST_HELD_BYTES: f64 = (64 << 20) as f64;
/// The most reallocs of one block, and threads that follow one another in a pass.
const MOST_STEPS: usize = 4096;
const MOST_THREADS: usize = 500;
/// A thread that gets blocks from other threads frees them each time after this number of operations.
const COLLECTED: usize = 64;
/// Blocks with ages from this part of the time between two batches on, and up to this multiple, are those of a batch.
const BATCH_AGES: (f64, f64) = (0.125, 2.0);
/// The same for fewer than this part of all blocks, up to this multiple: a thread that is interrupted makes the blocks of its batch
/// older. One of them that stayed would keep the heap from being trimmed, which the target's never did.
const INTERRUPTED: (f64, f64) = (0.01, 8.0);
/// At least this part of the blocks is taken to belong to batches, so that the time between them stays finite.
const LEAST_BATCHED: f64 = 0.05;
/// How many blocks are drawn to know what is usual, and how many reallocs they may have together.
const TRIES: usize = 2000;
const MOST_TRIED: usize = 100_000;
/// How often a plan that needs too much memory is made again, smaller.
const SMALLER: usize = 8;

pub struct Plan {
    pub lanes: Vec<Lane>,
    /// New blocks and reallocs of one pass.
    pub calls: u64,
    /// The heap grows: it is played once.
    pub once: bool,
}

impl Plan {
    pub fn new(lanes: Vec<Lane>, once: bool) -> Plan {
        let is_call = |op: &&Op| matches!(op.act, Act::New | Act::Zeroed | Act::Resize);
        let calls = lanes.iter().flat_map(|lane| &lane.ops).filter(is_call).count() as u64;
        Plan { lanes, calls, once }
    }

    /// For a mix that can be played ([`Mix::check`]). The same seed makes the same plan. `memory`: bytes that blocks may take at the
    /// same time.
    pub fn of(mix: &Mix, seed: u64, memory: u64) -> Plan {
        let most = (memory / 8).clamp(1, u64::from(u32::MAX)) as u32;
        let draws = Draws::of(mix, most);
        let mut blocks = draws.blocks_of_a_pass(mix, seed);
        for _ in 0..SMALLER {
            let (plan, bytes) = draws.plan(mix, blocks, seed);
            if bytes <= memory {
                return plan;
            }
            blocks = (blocks * memory as f64 / bytes as f64 * 0.8).max(LEAST_BLOCKS);
        }
        draws.plan(mix, LEAST_BLOCKS, seed).0
    }
}

/// Items that are drawn in proportion to their weights.
struct Weighted<T>(Vec<(f64, T)>);

impl<T: Copy> Weighted<T> {
    fn new(items: impl Iterator<Item = (T, f64)>) -> Weighted<T> {
        let mut sum = 0.0;
        let add = |(item, weight): (T, f64)| {
            sum += weight;
            (sum, item)
        };
        Weighted(items.map(add).collect())
    }

    fn draw(&self, random: &mut Random) -> T {
        self.at(random.unit())
    }

    /// The item at a part of the sum of all weights, from 0 to 1.
    fn at(&self, part: f64) -> T {
        let all = self.0.last().map_or(0.0, |(sum, _)| *sum);
        let at = part * all;
        let found = self.0.partition_point(|(sum, _)| *sum <= at);
        self.0[found.min(self.0.len() - 1)].1
    }
}

/// The fates of one band of sizes: how a block ends, and the logarithms of the ages from and to.
struct BandDraws {
    zeroed: f64,
    fates: Weighted<(Option<End>, f64, f64)>,
}

/// What is drawn for each block.
struct Draws {
    sizes: Weighted<u32>,
    /// The largest block.
    most: u32,
    tables: Vec<BandDraws>,
    /// By band of sizes: which table.
    table_of: Vec<usize>,
    from: Steps,
    to: Steps,
}

/// One block: how it begins, changes and ends. Times are those since it began.
struct Life {
    zeroed: bool,
    size: u32,
    /// When, and the size before and after.
    resizes: Vec<(f64, u32, u32)>,
    age: f64,
    /// Never [`End::Resized`].
    end: Option<End>,
}

impl Draws {
    fn of(mix: &Mix, most: u32) -> Draws {
        let table = |one: &Fates| BandDraws {
            zeroed: one.zeroed,
            fates: Weighted::new(
                one.fates.iter().map(|fate| ((fate.end, fate.age.0.ln(), fate.age.1.ln()), fate.share)),
            ),
        };
        let sizes = mix.sizes.iter().map(|(size, share)| ((*size).min(u64::from(most)) as u32, *share));
        Draws {
            sizes: Weighted::new(sizes),
            most,
            tables: mix.fates.iter().map(table).collect(),
            table_of: (0..BANDS).map(|band| nearest(&mix.fates, band).unwrap_or(0)).collect(),
            from: Steps::new(&mix.resized_from),
            to: Steps::new(&mix.resized_to),
        }
    }

    /// The `nth` block. Sizes are spread evenly instead of by chance, so that a list has its part of the rare large ones.
    fn life(&self, nth: usize, random: &mut Random) -> Life {
        let size = self.sizes.at((nth as f64 * SPREAD).fract());
        let mut life = Life { zeroed: false, size, resizes: Vec::new(), age: 0.0, end: None };
        life.zeroed = random.unit() < self.table(size).zeroed;
        let mut now = size;
        loop {
            let (end, from, to) = self.table(now).fates.draw(random);
            life.age += (from + (to - from) * random.unit()).exp();
            let next = match end {
                Some(End::Resized) if life.resizes.len() < MOST_STEPS => self.resized(now),
                Some(End::Resized) => None,
                _ => {
                    life.end = end;
                    return life;
                }
            };
            let Some(next) = next else {
                // The largest ones that were seen are not changed again.
                life.end = Some(End::Freed);
                return life;
            };
            life.resizes.push((life.age, now, next));
            now = next;
        }
    }

    fn table(&self, size: u32) -> &BandDraws {
        &self.tables[self.table_of[band_of(size.into())]]
    }

    /// The size after realloc of a block with this size: the one that has the same rank among new sizes as this one among old ones.
    /// So a program whose buffers double, or grow by the same number of bytes each time, does the same here.
    fn resized(&self, size: u32) -> Option<u32> {
        let rank = self.from.rank(size.into())?;
        let next = self.to.size_at(rank)?.clamp(1, u64::from(self.most)) as u32;
        let ends = rank > 1.0 - 1e-9 && next <= size;
        (!ends).then_some(next)
    }

    /// Some blocks, to know what is usual.
    fn tried(&self, random: &mut Random) -> Vec<Life> {
        let (mut lives, mut steps) = (Vec::new(), 0);
        while lives.len() < TRIES && steps < MOST_TRIED {
            let life = self.life(lives.len(), random);
            steps += life.resizes.len();
            lives.push(life);
        }
        lives
    }

    /// As many as the limits allow.
    fn blocks_of_a_pass(&self, mix: &Mix, seed: u64) -> f64 {
        let lives = self.tried(&mut Random::new(seed));
        let bytes_to = |life: &Life| life.resizes.iter().map(|(.., to)| f64::from(*to)).sum::<f64>();
        let new: f64 = lives.iter().map(|life| f64::from(life.size)).sum();
        let grown: f64 = lives.iter().map(bytes_to).sum();
        let calls =
            1.0 + lives.iter().map(|life| life.resizes.len()).sum::<usize>() as f64 / lives.len() as f64;
        // Rare large blocks are better known by their shares.
        let sum: f64 = mix.sizes.iter().map(|(_, share)| share).sum();
        let capped = |size: u64| size.min(self.most.into()) as f64;
        let mean: f64 = mix.sizes.iter().map(|(size, share)| capped(*size) * share / sum).sum();
        let per_block = (mean * (1.0 + grown / new.max(1.0))).max(1.0);
        let (most_calls, most_bytes, most) = match mix.grows {
            true => (MOST_CALLS_ONCE, MOST_BYTES_ONCE, mix.blocks as f64),
            false => (MOST_CALLS, MOST_BYTES, f64::INFINITY),
        };
        (most_calls / calls).min(most_bytes / per_block).min(most).max(LEAST_BLOCKS)
    }

    /// A plan with this number of new blocks, and the bytes that its blocks take at most at the same time.
    fn plan(&self, mix: &Mix, blocks: f64, seed: u64) -> (Plan, u64) {
        let (mut lanes, mut bytes) = (Vec::new(), 0);
        for (number, lane) in mix.lanes.iter().enumerate() {
            let partner = partner(mix, number);
            let collects =
                (0..mix.lanes.len()).any(|other| other != number && self::partner(mix, other) == number);
            let mut random = Random::new(seed ^ ((number as u64 + 1) << 32));
            let count = (blocks * lane.allocates).ceil() as usize;
            let of_thread = lane.blocks_per_thread.map(|of_one| Span::of_thread(of_one, count));
            let count = of_thread.map_or(count, |span| span.whole(count));
            let drafts = self.drafts(mix, count, of_thread, &mut random);
            let ends = of_thread.into_iter().flat_map(Span::ends);
            let (mut planned, in_use) = placed(&drafts, collects && lane.allocates > 0.0, ends);
            planned.held = held(mix, lane.allocates, self.most, &mut random);
            planned.partner = partner;
            planned.main = lane.main && mix.lanes.iter().position(|one| one.main) == Some(number);
            bytes += in_use + planned.held.iter().map(|size| u64::from(*size)).sum::<u64>();
            lanes.push(planned);
        }
        (Plan::new(lanes, mix.grows), bytes)
    }

    /// The operations of one lane with this number of new blocks, in the order of time. `of_thread`: a thread makes so many of them, and
    /// then the next one takes its place.
    fn drafts(&self, mix: &Mix, count: usize, of_thread: Option<Span>, random: &mut Random) -> Vec<Draft> {
        let mut period = mix.batch.map(|batch| self.period(&batch, &mut random.clone()));
        let mut count = count;
        if let Some(period) = &mut period {
            // Whole batches.
            *period = period.min(count as f64).max(1.0);
            count = (count as f64 / *period) as usize * *period as usize;
        }
        let batches = period.zip(mix.batch).map(|(period, batch)| Batches {
            period,
            oldest: if batch.whole { f64::INFINITY } else { self.oldest(period, &mut random.clone()) },
            order: batch.order,
        });
        let span = if mix.one_at_a_time { Some(Span { blocks: 1.0 }) } else { of_thread };
        let limits = Limits { count: count as f64, grows: mix.grows, batches, span };
        let first = random.below(1 << 20);
        let mut drafts = Vec::with_capacity(count * 2);
        for block in 0..count {
            let life = self.life(first + block, random);
            draft(&mut drafts, block, &life, &limits, random);
        }
        drafts.sort_unstable_by(Draft::earlier);
        drafts
    }

    /// How many new blocks there are from one batch to the next, so that a batch frees as many as it should.
    fn period(&self, batch: &Batch, random: &mut Random) -> f64 {
        let lives = self.tried(random);
        let mut period = batch.blocks;
        for _ in 0..4 {
            let ages = BATCH_AGES.0 * period..BATCH_AGES.1 * period;
            let of_batch = lives.iter().filter(|life| ages.contains(&life.age)).count();
            period = batch.blocks / (of_batch as f64 / lives.len() as f64).max(LEAST_BATCHED);
        }
        period.round().max(1.0)
    }

    /// The largest age of the blocks of a batch, in new blocks.
    fn oldest(&self, period: f64, random: &mut Random) -> f64 {
        let lives = self.tried(random);
        let (usual, interrupted) = (BATCH_AGES.1 * period, INTERRUPTED.1 * period);
        let between = lives.iter().filter(|life| (usual..interrupted).contains(&life.age)).count();
        let few = (between as f64) < INTERRUPTED.0 * lives.len() as f64;
        if few { interrupted } else { usual }
    }
}

/// When blocks are freed together.
struct Batches {
    /// Of the ages of its blocks.
    oldest: f64,
    /// Whole new blocks from one batch to the next.
    period: f64,
    order: FreeOrder,
}

impl Batches {
    /// How long a block lives that is of a batch or shorter-lived, which does not outlive its batch either.
    fn age(&self, age: f64, born: f64, random: &mut Random) -> f64 {
        let rest = self.end(born, random) - born;
        if age < BATCH_AGES.0 * self.period { age.min(rest) } else { rest }
    }

    /// The end of the batch of a block that begins at this time: between the last new block of the batch and the next one.
    fn end(&self, born: f64, random: &mut Random) -> f64 {
        let part = match self.order {
            FreeOrder::OldestFirst => born % self.period / self.period,
            FreeOrder::YoungestFirst => 1.0 - (born % self.period + 1.0) / self.period,
            FreeOrder::Any => random.unit(),
        };
        ((born / self.period).floor() + 1.0) * self.period - 0.75 + part / 2.0
    }
}

/// So many new blocks, which end before the next ones begin: those of a thread that ends, unless another thread frees them.
#[derive(Clone, Copy, Debug)]
struct Span {
    blocks: f64,
}

impl Span {
    fn of_thread(blocks: f64, count: usize) -> Span {
        Span { blocks: blocks.round().max(count.div_ceil(MOST_THREADS) as f64).max(1.0) }
    }

    /// A number of blocks without a part of a span.
    fn whole(self, count: usize) -> usize {
        let spans = (count as f64 / self.blocks).floor();
        if spans > 0.0 { (spans * self.blocks) as usize } else { count }
    }

    /// Where one thread ends and the next one begins.
    fn ends(self) -> impl Iterator<Item = f64> {
        (1..).map(move |nth| f64::from(nth) * self.blocks)
    }

    /// The greatest age of a block that begins at this time.
    fn rest(self, born: f64) -> f64 {
        ((born / self.blocks).floor() + 1.0) * self.blocks - born - 0.1
    }
}

/// What ends a block before its time.
struct Limits {
    /// New blocks of the list.
    count: f64,
    grows: bool,
    batches: Option<Batches>,
    span: Option<Span>,
}

impl Limits {
    fn age(&self, life: &Life, born: f64, random: &mut Random) -> f64 {
        // A block of the next pass has the same slot, so it must have ended by then.
        let longest = if self.grows { f64::INFINITY } else { self.count - 0.5 };
        let age = match self.batches.as_ref().filter(|batches| life.age < batches.oldest) {
            Some(batches) => batches.age(life.age, born, random),
            None => life.age.min(longest),
        };
        // Another thread, or the end of a heap that grows, may come later.
        let own = life.end != Some(End::FreedElsewhere) && (life.end.is_some() || !self.grows);
        self.span.filter(|_| own).map_or(age, |span| age.min(span.rest(born)))
    }
}

/// One operation before its block has a slot.
#[derive(Clone, Copy, Debug)]
pub struct Draft {
    pub at: f64,
    /// Of two at the same time, the smaller one is first.
    pub order: u32,
    pub block: u32,
    pub act: Act,
    pub size: u32,
    pub old: u32,
}

impl Draft {
    fn earlier(&self, other: &Draft) -> Ordering {
        self.at.total_cmp(&other.at).then(self.order.cmp(&other.order))
    }
}

/// Adds the operations of a block, which begins at the time `block`.
fn draft(drafts: &mut Vec<Draft>, block: usize, life: &Life, limits: &Limits, random: &mut Random) {
    let (born, whole, grows) = (block as f64, limits.count, limits.grows);
    let mut add = |at: f64, act: Act, size: u32, old: u32| {
        // What comes after the end of the list belongs to the next pass, if there is one.
        let at = if at >= whole && !grows { at - whole } else { at };
        if at < whole {
            drafts.push(Draft { at, order: drafts.len() as u32, block: block as u32, act, size, old });
        }
    };
    add(born, if life.zeroed { Act::Zeroed } else { Act::New }, life.size, 0);
    let age = limits.age(life, born, random);
    let scale = if life.age > 0.0 { age / life.age } else { 1.0 };
    for (when, old, size) in &life.resizes {
        add(born + when * scale, Act::Resize, *size, *old);
    }
    match life.end {
        Some(End::FreedElsewhere) => add(born + age, Act::Give, 0, 0),
        // In a heap that does not grow, all blocks end.
        None if grows => {}
        _ => add(born + age, Act::Free, 0, 0),
    }
}

/// Which slot each block has.
struct Slots {
    /// By block.
    of: Vec<u32>,
    /// By block: its bytes now.
    size: Vec<u32>,
    /// By slot: the size of its largest block.
    largest: Vec<u32>,
    free: Vec<u32>,
    /// Slots below this one belong to one block each.
    early: u32,
}

const UNPLACED: u32 = u32::MAX;

impl Slots {
    /// A block that ends before it begins is there when the list begins, so it has a slot of its own.
    fn of(drafts: &[Draft]) -> Slots {
        let blocks = drafts.iter().map(|draft| draft.block as usize + 1).max().unwrap_or(0);
        let (of, size) = (vec![UNPLACED; blocks], vec![0; blocks]);
        let mut slots = Slots { of, size, largest: Vec::new(), free: Vec::new(), early: 0 };
        let mut begun = vec![false; blocks];
        for draft in drafts {
            let block = draft.block as usize;
            begun[block] |= matches!(draft.act, Act::New | Act::Zeroed);
            if !begun[block] && slots.of[block] == UNPLACED {
                slots.of[block] = slots.another();
            }
        }
        slots.early = slots.largest.len() as u32;
        // It has its last size of the list then.
        for draft in drafts.iter().filter(|draft| !matches!(draft.act, Act::Free | Act::Give)) {
            let block = draft.block as usize;
            if slots.of[block] != UNPLACED {
                slots.size[block] = draft.size;
            }
        }
        slots
    }

    fn another(&mut self) -> u32 {
        self.largest.push(0);
        self.largest.len() as u32 - 1
    }

    /// The slot of an operation. Operations are passed in their order.
    fn take(&mut self, draft: &Draft) -> u32 {
        let block = draft.block as usize;
        if self.of[block] == UNPLACED {
            self.of[block] = self.free.pop().unwrap_or_else(|| self.another());
        }
        let slot = self.of[block];
        self.size[block] = draft.size;
        let largest = &mut self.largest[slot as usize];
        *largest = (*largest).max(draft.size);
        if matches!(draft.act, Act::Free | Act::Give) && slot >= self.early {
            self.free.push(slot);
        }
        slot
    }
}

/// The list of a lane, and the bytes of all its blocks when they are most. `ends`: when one thread takes the place of another.
pub fn placed(drafts: &[Draft], collects: bool, mut ends: impl Iterator<Item = f64>) -> (Lane, u64) {
    let mut slots = Slots::of(drafts);
    let mut now: u64 = slots.size.iter().map(|size| u64::from(*size)).sum();
    let mut most = now;
    let mut ops = Vec::with_capacity(drafts.len() + if collects { drafts.len() / COLLECTED + 1 } else { 0 });
    // Where threads end.
    let (mut threads, mut begun, mut end) = (Vec::new(), 0, ends.next());
    for (nth, draft) in drafts.iter().enumerate() {
        while end.is_some_and(|over| draft.at >= over) {
            threads.push(ops.len() - begun);
            (begun, end) = (ops.len(), ends.next());
        }
        now = now + u64::from(draft.size) - u64::from(slots.size[draft.block as usize]);
        most = most.max(now);
        ops.push(Op { act: draft.act, slot: slots.take(draft), size: draft.size, old: draft.old });
        if collects && (nth + 1).is_multiple_of(COLLECTED) {
            ops.push(Op { act: Act::Collect, slot: 0, size: 0, old: 0 });
        }
    }
    let places = places(&slots.largest, most);
    (Lane { ops, places, threads, ..Lane::default() }, most)
}

/// Where the blocks of each slot lie, one after the other, in about as much memory as all blocks take at the same time.
fn places(largest: &[u32], most: u64) -> Vec<usize> {
    const ALIGNMENT: u64 = 16;
    let longest = largest.iter().max().copied().unwrap_or(0);
    let room = (2 * most).max(u64::from(longest)) + ALIGNMENT;
    let mut next = 0;
    let place = |size: &u32| {
        let place = if next + u64::from(*size) > room { 0 } else { next };
        next = (place + u64::from(*size)).next_multiple_of(ALIGNMENT);
        place as usize
    };
    largest.iter().map(place).collect()
}

/// Blocks that stay in use.
pub fn held(mix: &Mix, part: f64, most: u32, random: &mut Random) -> Vec<u32> {
    let capped = |size: u64| size.min(most.into()) as f64;
    let blocks: f64 = mix.kept.iter().map(|(_, count)| count).sum();
    let bytes: f64 = mix.kept.iter().map(|(size, count)| capped(*size) * count).sum();
    // Two of the largest blocks are a quarter of the memory.
    let most_bytes = MOST_HELD_BYTES.min(2.0 * f64::from(most));
    let limit = (MOST_HELD / blocks.max(1.0)).min(most_bytes / bytes.max(1.0)).min(1.0);
    let of_size = |(size, count): &(u64, f64)| {
        let count = (count * limit * part).round() as usize;
        std::iter::repeat_n(capped(*size) as u32, count)
    };
    let mut held: Vec<u32> = mix.kept.iter().flat_map(of_size).collect();
    random.shuffle(&mut held);
    held
}

/// The lane that frees what this one gives: the one that frees more than it allocates, or else the next one.
fn partner(mix: &Mix, number: usize) -> usize {
    let surplus = |lane: usize| mix.lanes[lane].frees - mix.lanes[lane].allocates;
    let rest = (0..mix.lanes.len()).filter(|lane| *lane != number);
    let best = rest.max_by(|a, b| surplus(*a).total_cmp(&surplus(*b))).filter(|lane| surplus(*lane) > 0.0);
    best.unwrap_or((number + 1) % mix.lanes.len())
}

/// Sizes by rank, from shares of bands. Within a band, all sizes are equally likely.
struct Steps(Vec<Step>);

struct Step {
    low: f64,
    high: f64,
    /// Ranks at its start and end, from 0 to 1.
    from: f64,
    to: f64,
}

impl Steps {
    fn new(shares: &[(u8, f64)]) -> Steps {
        let all: f64 = shares.iter().map(|(_, share)| share).sum();
        let mut sum = 0.0;
        let step = |(band, share): &(u8, f64)| {
            let (low, high) = band_sizes(usize::from(*band));
            let from = sum;
            sum += share / all;
            Step { low: low as f64, high: high as f64, from, to: sum }
        };
        Steps(shares.iter().filter(|(_, share)| *share > 0.0).map(step).collect())
    }

    /// None above the largest size.
    fn rank(&self, size: u64) -> Option<f64> {
        let size = size as f64;
        let step = self.0.iter().find(|step| size <= step.high)?;
        let part = ((size - step.low + 1.0) / (step.high - step.low + 1.0)).clamp(0.0, 1.0);
        Some(step.from + (step.to - step.from) * part)
    }

    fn size_at(&self, rank: f64) -> Option<u64> {
        let step = self.0.iter().find(|step| rank <= step.to).or(self.0.last())?;
        let part = ((rank - step.from) / (step.to - step.from)).clamp(0.0, 1.0);
        Some((step.low - 1.0 + (step.high - step.low + 1.0) * part).round().max(1.0) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocwall_model::replay::{Fate, Lane as MixLane};
    use std::collections::BTreeMap;

    const GIB: u64 = 1 << 30;

    fn fate(share: f64, end: End, age: (f64, f64)) -> Fate {
        Fate { share, end: Some(end), age }
    }

    fn fates(size: u64, fates: Vec<Fate>) -> Fates {
        Fates { band: band_of(size) as u8, zeroed: 0.0, fates }
    }

    fn lane(allocates: f64, frees: f64) -> MixLane {
        MixLane { allocates, frees, main: true, blocks_per_thread: None }
    }

    /// Nine of ten blocks have 64 bytes and live until about 20 more are made; the tenth has 4 KiB and lives ten times as long.
    fn mix() -> Mix {
        Mix {
            lanes: vec![lane(1.0, 1.0)],
            sizes: vec![(64, 0.9), (4096, 0.1)],
            fates: vec![
                fates(64, vec![fate(1.0, End::Freed, (10.0, 40.0))]),
                fates(4096, vec![fate(1.0, End::Freed, (100.0, 400.0))]),
            ],
            resized_from: vec![],
            resized_to: vec![],
            kept: vec![],
            batch: None,
            one_at_a_time: false,
            grows: false,
            blocks: 1_000_000,
        }
    }

    /// One that is grown by realloc: 4 KiB become 8, 16, and so on up to 1 MiB. All buffers end as the largest.
    fn growing_buffer() -> Mix {
        let sizes: Vec<u64> = (12..=20).map(|power| 1 << power).collect();
        let of_size = |size: &u64| {
            let end = if *size == 1 << 20 { End::Freed } else { End::Resized };
            fates(*size, vec![fate(1.0, end, (1.0, 2.0))])
        };
        let shares = |sizes: &[u64]| sizes.iter().map(|size| (band_of(*size) as u8, 0.125)).collect();
        Mix {
            sizes: vec![(4096, 1.0)],
            fates: sizes.iter().map(of_size).collect(),
            resized_from: shares(&sizes[..8]),
            resized_to: shares(&sizes[1..]),
            ..mix()
        }
    }

    /// Plays a list twice, and checks that each operation finds what it needs in the second pass. Returns the blocks that are in
    /// use after it.
    fn played(lane: &Lane) -> usize {
        let mut slots: Vec<Option<u32>> = vec![None; lane.places.len()];
        for pass in 0..2 {
            for op in &lane.ops {
                let slot = &mut slots[op.slot as usize];
                match op.act {
                    Act::New | Act::Zeroed => {
                        assert!(slot.is_none(), "{op:?} {pass}");
                        *slot = Some(op.size);
                    }
                    Act::Resize => {
                        assert!(pass == 0 && slot.is_none() || *slot == Some(op.old), "{op:?} {slot:?}");
                        *slot = slot.map(|_| op.size);
                    }
                    Act::Free | Act::Give => {
                        assert!(pass == 0 || slot.is_some(), "{op:?}");
                        *slot = None;
                    }
                    Act::Collect => {}
                }
            }
        }
        slots.into_iter().flatten().count()
    }

    /// Ages in new blocks, by the size that the block had first, of those that begin and end within one pass.
    fn ages(lane: &Lane) -> BTreeMap<u32, Vec<usize>> {
        let (mut born, mut ages, mut now) = (BTreeMap::new(), BTreeMap::<u32, Vec<usize>>::new(), 0);
        for op in &lane.ops {
            match op.act {
                Act::New | Act::Zeroed => {
                    born.insert(op.slot, (now, op.size));
                    now += 1;
                }
                Act::Free | Act::Give => {
                    if let Some((at, size)) = born.remove(&op.slot) {
                        ages.entry(size).or_default().push(now - at);
                    }
                }
                Act::Resize | Act::Collect => {}
            }
        }
        ages.values_mut().for_each(|ages| ages.sort_unstable());
        ages
    }

    #[test]
    fn sizes_and_lifetimes_have_their_shares() {
        let plan = Plan::of(&mix(), 7, GIB);
        let [lane] = &plan.lanes[..] else { panic!("{} lanes", plan.lanes.len()) };
        let ages = ages(lane);
        let (small, large) = (&ages[&64], &ages[&4096]);
        let share = large.len() as f64 / (small.len() + large.len()) as f64;
        assert!((share - 0.1).abs() < 0.01, "{share}");
        let middle = |ages: &Vec<usize>| ages[ages.len() / 2];
        assert!((18..=23).contains(&middle(small)) && (180..=220).contains(&middle(large)));
        assert!(small[0] >= 10 && *small.last().unwrap() <= 41, "{} to {:?}", small[0], small.last());
        assert_eq!(plan.calls as usize, lane.ops.len() / 2);
        assert!(lane.main && lane.held.is_empty());
    }

    #[test]
    fn the_same_seed_makes_the_same_plan_and_another_one_another() {
        let ops = |seed| Plan::of(&mix(), seed, GIB).lanes[0].ops.clone();
        assert!(ops(1) == ops(1) && ops(1) != ops(2));
    }

    #[test]
    fn each_block_is_freed_once() {
        let mut long = mix();
        // Longer than a pass: they end just before they begin again.
        long.fates[0].fates[0].age = (1e6, 1e7);
        let few = |mix: &Mix| Mix { sizes: vec![(1 << 20, 1.0)], ..mix.clone() };
        for (nth, mix) in [mix(), growing_buffer(), few(&mix()), long].iter().enumerate() {
            let plan = Plan::of(mix, 3, GIB);
            let in_use = played(&plan.lanes[0]);
            let count = |acts: &[Act]| plan.lanes[0].ops.iter().filter(|op| acts.contains(&op.act)).count();
            let (new, freed) = (count(&[Act::New, Act::Zeroed]), count(&[Act::Free, Act::Give]));
            assert!(new == freed && new >= 4 && in_use <= new, "{nth}: {new} {freed} {in_use}");
        }
    }

    #[test]
    fn buffers_grow_step_by_step() {
        let plan = Plan::of(&growing_buffer(), 3, GIB);
        let resizes: Vec<&Op> = plan.lanes[0].ops.iter().filter(|op| op.act == Act::Resize).collect();
        assert!(resizes.iter().all(|op| op.size == 2 * op.old), "{:?}", resizes.first());
        let new = plan.calls as usize - resizes.len();
        assert_eq!(resizes.len(), 8 * new);
        // Its twin has no old sizes: blocks end instead.
        let twin = Mix { resized_from: vec![], ..growing_buffer() };
        let plan = Plan::of(&twin, 3, GIB);
        assert!(plan.lanes[0].ops.iter().all(|op| op.act != Act::Resize));
    }

    #[test]
    fn buffers_that_grow_by_the_same_amount_do_so_here() {
        // 64 KiB more each time, from 64 KiB up to 4 MiB.
        let shares = |from: u64| {
            let mut bands = BTreeMap::new();
            (0..63).for_each(|at| *bands.entry(band_of((from + at) << 16) as u8).or_insert(0.0) += 1.0);
            bands.into_iter().collect::<Vec<_>>()
        };
        let (from, to) = (Steps::new(&shares(1)), Steps::new(&shares(2)));
        for kib in [200, 700, 2100, 3000] {
            let next = to.size_at(from.rank(kib << 10).unwrap()).unwrap() >> 10;
            assert!((next as i64 - kib as i64 - 64).abs() < 40, "{kib} to {next}");
        }
        assert_eq!(from.rank(5 << 20), None);
    }

    #[test]
    fn a_batch_is_freed_together_and_in_its_order() {
        let of = |order| {
            let mut mix = mix();
            mix.sizes = vec![(4096, 1.0)];
            mix.fates[1].fates[0].age = (60.0, 900.0);
            mix.batch = Some(Batch { blocks: 500.0, order, whole: false });
            let plan = Plan::of(&mix, 3, GIB);
            played(&plan.lanes[0]);
            plan.lanes[0].ops.clone()
        };
        // The longest row of frees, and how many of its slots follow one another upwards and downwards in time.
        let longest = |ops: &[Op]| {
            let (mut born, mut row, mut best) = (BTreeMap::new(), Vec::new(), Vec::new());
            for (at, op) in ops.iter().enumerate() {
                match op.act {
                    Act::New => {
                        born.insert(op.slot, at);
                        row.clear();
                    }
                    _ => row.extend(born.remove(&op.slot)),
                }
                if row.len() > best.len() {
                    best = row.clone();
                }
            }
            best
        };
        let (down, up) = (longest(&of(FreeOrder::YoungestFirst)), longest(&of(FreeOrder::OldestFirst)));
        for (row, rises) in [(&down, false), (&up, true)] {
            assert!((400..600).contains(&row.len()), "{}", row.len());
            let kept = row.windows(2).filter(|pair| (pair[0] < pair[1]) == rises).count();
            assert!(kept as f64 > 0.9 * row.len() as f64, "{kept} of {}", row.len());
        }
        let mixed = longest(&of(FreeOrder::Any));
        let rising = mixed.windows(2).filter(|pair| pair[0] < pair[1]).count() as f64 / mixed.len() as f64;
        assert!((0.35..0.65).contains(&rising), "{rising}");
        // Without a batch, blocks end one by one.
        let mut alone = mix();
        alone.sizes = vec![(4096, 1.0)];
        assert!(longest(&Plan::of(&alone, 3, GIB).lanes[0].ops).len() < 30);
    }

    #[test]
    fn few_older_blocks_of_a_batch_end_with_it_and_many_do_not() {
        // How often as few blocks as ever are in use after a row of frees.
        let left = |older: f64, whole: bool| {
            let mut mix = mix();
            mix.sizes = vec![(4096, 1.0)];
            mix.fates[1].fates = vec![
                fate(0.1, End::Freed, (10.0, 50.0)),
                fate(0.9 - older, End::Freed, (100.0, 600.0)),
                fate(older, End::Freed, (1200.0, 3000.0)),
            ];
            mix.batch = Some(Batch { blocks: 500.0, order: FreeOrder::OldestFirst, whole });
            let plan = Plan::of(&mix, 3, GIB);
            let (mut in_use, mut least) = (0_i64, vec![]);
            for pair in plan.lanes[0].ops.windows(2) {
                in_use += if pair[0].act == Act::New { 1 } else { -1 };
                if pair[0].act == Act::Free && pair[1].act == Act::New {
                    least.push(in_use);
                }
            }
            // Blocks of the previous pass make all numbers larger by the same.
            let lowest = least.iter().min().copied().unwrap_or(0);
            least.iter().filter(|in_use| **in_use == lowest).count()
        };
        let (few, many) = (left(0.002, false), left(0.05, false));
        assert!(few >= 20 && many <= 3, "{few} and {many}");
        // Unless the counts show that none is left.
        let none = left(0.05, true);
        assert!(none >= 20, "{none}");
    }

    #[test]
    fn a_heap_that_grows_keeps_its_blocks() {
        let mut mix = mix();
        let kept = Fate { share: 1.0, end: None, age: (1.0, 1.0) };
        mix.fates[1].fates.push(kept);
        (mix.grows, mix.blocks) = (true, 10_000);
        let plan = Plan::of(&mix, 3, GIB);
        let count = |act: Act| plan.lanes[0].ops.iter().filter(|op| op.act == act).count();
        assert_eq!(count(Act::New), 10_000, "no more than the program makes");
        // Half of the large blocks, and those that have not ended yet.
        assert!((450..700).contains(&(10_000 - count(Act::Free))), "{}", count(Act::Free));
        // Nothing is there when it begins.
        assert_eq!(plan.lanes[0].ops[0].act, Act::New);
    }

    #[test]
    fn blocks_that_another_thread_frees_are_given_to_it() {
        let mut mix = mix();
        mix.fates[0].fates[0].end = Some(End::FreedElsewhere);
        mix.lanes = vec![lane(0.9, 0.1), MixLane { main: false, ..lane(0.1, 0.9) }];
        mix.lanes[1].blocks_per_thread = Some(100.0);
        let plan = Plan::of(&mix, 3, GIB);
        let [first, second] = &plan.lanes[..] else { panic!("two lanes") };
        assert_eq!((first.partner, second.partner, first.main, second.main), (1, 0, true, false));
        let gives = |lane: &Lane| lane.ops.iter().filter(|op| op.act == Act::Give).count();
        assert!(gives(first) > 8 * gives(second) && gives(second) > 0);
        assert!([first, second].iter().all(|lane| lane.ops.iter().any(|op| op.act == Act::Collect)));
        assert!((50..=MOST_THREADS).contains(&second.threads.len()), "{}", second.threads.len());
        assert!(first.threads.is_empty());
        // Nothing is given in the twin, so nothing is collected.
        let twin = Plan::of(&self::mix(), 3, GIB);
        assert!(twin.lanes[0].ops.iter().all(|op| matches!(op.act, Act::New | Act::Free)));
    }

    /// The most blocks that are in use after any operation.
    fn most_in_use(lane: &Lane) -> usize {
        let mut there = vec![false; lane.places.len()];
        let after = lane.ops.iter().map(|op| {
            there[op.slot as usize] = !matches!(op.act, Act::Free | Act::Give);
            there.iter().filter(|there| **there).count()
        });
        after.max().unwrap_or(0)
    }

    #[test]
    fn a_block_ends_before_the_next_one_if_there_is_only_one_at_a_time() {
        let of = |one_at_a_time: bool| {
            let plan = Plan::of(&Mix { one_at_a_time, ..growing_buffer() }, 3, GIB);
            let resizes = plan.lanes[0].ops.iter().filter(|op| op.act == Act::Resize).count();
            assert!(resizes as u64 * 9 > plan.calls * 7, "{resizes} of {}", plan.calls);
            most_in_use(&plan.lanes[0])
        };
        assert_eq!(of(true), 1);
        assert!(of(false) > 2, "{}", of(false));
    }

    #[test]
    fn a_thread_frees_its_blocks_before_it_ends_unless_another_one_does() {
        let blocks_that_stay = |end: End| {
            let mut mix = mix();
            mix.fates.iter_mut().for_each(|one| one.fates[0].end = Some(end));
            mix.lanes = vec![lane(0.5, 0.5), lane(0.5, 0.5)];
            mix.lanes.iter_mut().for_each(|lane| lane.blocks_per_thread = Some(200.0));
            let plan = Plan::of(&mix, 3, GIB);
            let lane = &plan.lanes[1];
            let mut there = vec![false; lane.places.len()];
            let mut stay = Vec::new();
            let mut ops = lane.ops.iter();
            for count in &lane.threads {
                for op in ops.by_ref().take(*count).filter(|op| op.act != Act::Collect) {
                    there[op.slot as usize] = !matches!(op.act, Act::Free | Act::Give);
                }
                stay.push(there.iter().filter(|there| **there).count());
            }
            assert!(stay.len() > 20, "{}", stay.len());
            stay.into_iter().max().unwrap_or(0)
        };
        assert_eq!(blocks_that_stay(End::Freed), 0);
        assert!(blocks_that_stay(End::FreedElsewhere) > 10);
    }

    #[test]
    fn blocks_take_no_more_memory_than_is_allowed() {
        let mut mix = mix();
        mix.sizes = vec![(1 << 30, 1.0)];
        mix.fates[1].fates[0].age = (1000.0, 2000.0);
        mix.kept = vec![(1 << 30, 1e9)];
        let plan = Plan::of(&mix, 3, 64 << 20);
        let lane = &plan.lanes[0];
        let bytes = |sizes: &mut dyn Iterator<Item = u32>| sizes.map(u64::from).sum::<u64>();
        let new = bytes(&mut lane.ops.iter().map(|op| op.size));
        assert!(new + bytes(&mut lane.held.iter().copied()) <= 64 << 20, "{new}");
        assert!(plan.calls >= LEAST_BLOCKS as u64);
    }

    #[test]
    fn what_stays_is_held() {
        let mix = Mix { kept: vec![(100, 500.0), (5000, 10.0)], ..mix() };
        let held = &Plan::of(&mix, 3, GIB).lanes[0].held;
        let of = |size: u32| held.iter().filter(|one| **one == size).count();
        assert_eq!((of(100), of(5000), held.len()), (500, 10, 510));
    }
}
