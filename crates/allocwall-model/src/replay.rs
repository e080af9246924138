//! A replay of a program's calls of its allocator: what is made again, and what it costs with each allocator on this machine.
//!
//! What is played are calls in their order ([`crate::trace`]) or, where they were not kept, a mix of all calls. A mix says how often blocks of each size are requested, how long they live, and how they end. It has no order beyond that, so
//! these are assumptions: each block is written once in full when it is new (also one of calloc, so a program that leaves zeros
//! untouched costs less than its replay), all blocks of one size class have one size, and blocks end independently of one another,
//! unless the exact counters show that a thread frees many of them together.

use crate::allocations::{BANDS, Bucket, CLASSES, Calls, Counted, CountedProcess, End, Samples, ThreadCount};
use crate::allocations::{age_bounds, band_of, band_sizes, class_sizes};
use crate::units::{Absence, Interval, Measured, Reason};
use serde::{Deserialize, Serialize};

/// The most threads of a replay.
pub const MOST_LANES: usize = 8;
/// With fewer calls, or fewer sampled blocks that ended, a mix rests on chance.
pub const LEAST_CALLS: u64 = 100;
const LEAST_ENDS: u64 = 30;
/// A thread with a smaller share of allocations and of frees is left out.
const LEAST_SHARE: f64 = 0.01;
/// If this part of the requested bytes is in use at the end, or more, the heap grows: the first touches of memory that stays are then
/// a large part of the cost, as 4 KiB of fresh memory cost about as much as 50 calls that the thread cache serves.
pub const GROWS: f64 = 0.1;
/// For so long, a thread that allocates is taken to run without a pause; over longer times it allocates as often as on average.
const BURST_NS: f64 = 10e6;
/// Blocks that end independently of one another make the number in use vary, too: by some four roots of it, and a few.
const SWING_BY_CHANCE: f64 = 4.0;
const LEAST_SWING: f64 = 16.0;
/// Nothing is left of a batch if at the emptiest moment that was read less than this part of a batch is in use, beside what stays. Of
/// 16 random moments, the emptiest has a seventeenth of it. Our choice.
const NOTHING_LEFT: f64 = 0.15;
/// Up to this number of blocks in use on average, and this swing of their number, there is one at a time. Readings of 0 and 1 make a swing
/// of 17/15 (`Lives::swing`).
const ONE: f64 = 1.5;
/// So much longer a block seems to live because its sample leaves the thread's caches cold, at most. Seen where blocks live for 25 ns.
const COLD_NS: f64 = 150.0;
/// The oldest of the blocks that ended, by share: a thread that is interrupted for milliseconds keeps one that would live for nanoseconds.
/// Where all live for 25 ns, such blocks hid it in one of eight runs. More blocks that live long show in the swing, too.
const INTERRUPTED: f64 = 0.01;
/// From this share of pairs on, an order of frees is taken to be the order of all.
const MOSTLY: f64 = 0.75;
/// The most lists that a mix has for one band of sizes, and the most sizes: above what [`Mix::of`] makes.
const MOST_FATES: usize = 1024;

/// What a replay does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mix {
    /// The threads, those with most calls first.
    pub lanes: Vec<Lane>,
    /// Sizes of new blocks in bytes, with their shares.
    pub sizes: Vec<(u64, f64)>,
    /// What becomes of blocks, by band of sizes, in the order of the bands. A band that is not here is like the nearest one.
    pub fates: Vec<Fates>,
    /// Blocks that realloc changes, by band of their old sizes, with their shares; and those that it makes, by band of the new ones.
    pub resized_from: Vec<(u8, f64)>,
    pub resized_to: Vec<(u8, f64)>,
    /// Sizes and numbers of blocks that are in use all the time.
    pub kept: Vec<(u64, f64)>,
    /// Blocks that a thread frees together.
    pub batch: Option<Batch>,
    /// A block ends before the next one begins, apart from those that are in use all the time. So a block can grow in place.
    pub one_at_a_time: bool,
    /// Much of the memory stays in use. A replay begins with an empty heap then, and is played once.
    pub grows: bool,
    /// New blocks of the process with most calls: a heap that grows gets no more.
    pub blocks: u64,
}

/// One thread, or several threads one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lane {
    /// Its share of the new blocks, and of the frees.
    pub allocates: f64,
    pub frees: f64,
    /// It is the first thread of its process, whose heap grows by brk(2) with glibc.
    pub main: bool,
    /// New blocks of one thread until the next one takes its place.
    pub blocks_per_thread: Option<f64>,
}

/// What becomes of the blocks of one band of sizes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fates {
    pub band: u8,
    /// Share of new blocks that calloc makes.
    pub zeroed: f64,
    pub fates: Vec<Fate>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fate {
    pub share: f64,
    /// None: it is in use to the end.
    pub end: Option<End>,
    /// How many new blocks the same thread requests meanwhile, from and to. All are equally likely by their logarithm.
    pub age: (f64, f64),
}

/// Blocks that a thread frees together, as at the end of a request.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Batch {
    pub blocks: f64,
    pub order: FreeOrder,
    /// No block outlives its batch, but those that stay in use throughout.
    pub whole: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FreeOrder {
    OldestFirst,
    YoungestFirst,
    Any,
}

/// What the calls of a program cost with each allocator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Replay {
    /// With the allocator and the settings that the program has.
    pub present: ReplayCost,
    #[serde(deserialize_with = "crate::room::charged")]
    pub variants: Vec<Replayed>,
    /// The program's calls were played in their order, and not a mix of them.
    pub traced: bool,
    /// In all rounds, the processes that played took turns. Otherwise they ran one after the other in some, as their memory was too much.
    pub in_turns: bool,
    /// Allocations and reallocs in one measurement.
    pub calls: u64,
    /// Measurements of each allocator.
    pub rounds: u32,
}

/// Means per allocation or realloc, with the frees and all work in the kernel that belong to it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReplayCost {
    /// CPU nanoseconds.
    pub cost: Interval,
    /// Part of it: the replay's own work, and writing the blocks. Measured with memory that is ready, and no allocator.
    pub ready: Interval,
    /// Page faults.
    pub faults: Interval,
}

/// With another allocator, or other settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Replayed {
    /// The remedy as it was given.
    pub remedy: String,
    /// CPU nanoseconds per allocation or realloc, as in [`ReplayCost`]. Without a meaning if it failed.
    pub cost: Interval,
    /// How much less that is than with the present allocator, from measurements of the same round. Negative: it costs more. Without
    /// a meaning if it failed.
    pub saved: Interval,
    /// Why it could not be measured.
    pub failed: Option<Absence>,
}

/// What one measurement in a process of its own found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Played {
    /// Allocations and reallocs.
    pub calls: u64,
    /// Means per allocation or realloc, as in [`ReplayCost`].
    pub cost_ns: f64,
    pub faults: f64,
    /// The part of the reallocs that kept the address of their block. None if there was no realloc.
    pub in_place: Option<f64>,
    /// The file whose malloc was called, if the loader knows it.
    pub allocator: Option<String>,
}

impl Replay {
    /// What was measured for a remedy, by its key: [`Replayed::remedy`] may also have a value or a source.
    pub fn of(&self, key: &str) -> Option<&Replayed> {
        let is_of = |one: &&Replayed| one.remedy.split(['=', '@']).next() == Some(key);
        self.variants.iter().find(|one| is_of(one) && one.failed.is_none())
    }

    /// Of a recording that was read: each number is one.
    pub fn is_sound(&self) -> bool {
        let number = |value: &Interval| [value.low, value.point, value.high].into_iter().all(f64::is_finite);
        let ReplayCost { cost, ready, faults } = &self.present;
        [cost, ready, faults].into_iter().all(|value| number(value) && value.low >= 0.0)
            && self.variants.iter().all(|one| number(&one.cost) && number(&one.saved))
    }
}

impl Mix {
    /// What a program asks of its allocator, from its counts.
    ///
    /// # Errors
    /// Too few calls, or no sampled lifetimes.
    pub fn of(counted: &Counted) -> Measured<Mix> {
        let main = counted.processes.first().ok_or_else(|| too_little("no process was counted"))?;
        let calls = counted.calls();
        let made = calls.allocations().saturating_add(calls.reallocs());
        if made < LEAST_CALLS {
            return Err(too_little(&format!(
                "{made} calls of the allocator were counted: a replay needs at least {LEAST_CALLS}"
            )));
        }
        let sampled = sampled(counted)?;
        let sums = Sums::of(&sampled);
        let live: f64 = sampled.iter().map(|samples| samples.live_bytes.point).sum();
        let requested: f64 = sampled.iter().map(|samples| samples.bytes.point).sum();
        let grows = requested > 0.0 && live / requested >= GROWS;
        let sizes = sizes(&counted.classes(), calls.bytes);
        let lanes = lanes(main, sums.ends_elsewhere());
        let fates = sums.fates(&Clock::of(main, &lanes), grows);
        if sizes.is_empty() || fates.is_empty() {
            return Err(too_little("the sizes or lifetimes of the counted blocks are not known"));
        }
        let resized_to = shares(sums.0.iter().map(|band| band.resized_to));
        let resized_from = resized_from(&calls, &sizes, &fates, &resized_to);
        let batch = batch(main, &lanes, in_use(&sizes, &fates));
        let one_at_a_time = lanes.len() == 1 && one_at_a_time(main);
        let kept = if grows { Vec::new() } else { sums.kept(&sizes, sampled.len()) };
        let blocks = main.calls.allocations();
        Ok(Mix { lanes, sizes, fates, resized_from, resized_to, kept, batch, one_at_a_time, grows, blocks })
    }

    /// At most this number of threads; two are left if another thread than the first one frees blocks.
    pub fn on_cpus(mut self, cpus: usize) -> Mix {
        let elsewhere = self.fates.iter().flat_map(|one| &one.fates);
        let least = 1 + usize::from(elsewhere.into_iter().any(|fate| fate.end == Some(End::FreedElsewhere)));
        self.lanes.truncate(cpus.clamp(least, MOST_LANES));
        even_out(&mut self.lanes);
        self
    }

    /// Whether it can be played: it may come from anywhere.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&self) -> Result<(), &'static str> {
        let share = |value: f64| (0.0..=1e15).contains(&value);
        let shares = |list: &[(u8, f64)]| {
            list.iter().all(|(band, part)| usize::from(*band) < BANDS && share(*part))
                && list.windows(2).all(|pair| pair[0].0 < pair[1].0)
        };
        let sizes = |list: &[(u64, f64)]| list.len() <= CLASSES && list.iter().all(|(_, part)| share(*part));
        let fate = |fate: &Fate| {
            share(fate.share) && 0.0 < fate.age.0 && fate.age.0 <= fate.age.1 && share(fate.age.1)
        };
        let fates = |one: &Fates| {
            usize::from(one.band) < BANDS
                && share(one.zeroed)
                && one.fates.len() <= MOST_FATES
                && one.fates.iter().all(fate)
                && one.fates.iter().map(|fate| fate.share).sum::<f64>() > 0.0
        };
        let lane = |lane: &Lane| {
            share(lane.allocates)
                && share(lane.frees)
                && lane.blocks_per_thread.is_none_or(|n| (1.0..=1e15).contains(&n))
        };
        let rules = [
            (
                (1..=MOST_LANES).contains(&self.lanes.len()) && self.lanes.iter().all(lane),
                "its threads are not 1 to 8, or their shares are no numbers",
            ),
            (self.lanes.iter().any(|lane| lane.allocates > 0.0), "no thread allocates"),
            (
                sizes(&self.sizes) && self.sizes.iter().any(|(_, part)| *part > 0.0),
                "its sizes are missing or too many, or their shares are no numbers",
            ),
            (
                !self.fates.is_empty() && self.fates.len() <= BANDS && self.fates.iter().all(fates),
                "its lifetimes are missing or no numbers",
            ),
            (
                shares(&self.resized_from) && shares(&self.resized_to),
                "its reallocs are not in the order of sizes",
            ),
            (sizes(&self.kept), "its blocks that stay in use are too many, or no numbers"),
            (self.batch.is_none_or(|batch| share(batch.blocks)), "its batch is no number"),
        ];
        rules.into_iter().find(|(holds, _)| !holds).map_or(Ok(()), |(_, why)| Err(why))
    }
}

fn too_little(why: &str) -> Absence {
    Absence::new(Reason::TooLittle, why)
}

/// The samples of all processes that have some.
fn sampled(counted: &Counted) -> Measured<Vec<&Samples>> {
    let (known, absent): (Vec<_>, Vec<_>) =
        counted.processes.iter().map(|p| &p.samples).partition(|s| s.is_ok());
    let known: Vec<&Samples> = known.into_iter().flatten().collect();
    if let (true, Some(Err(why))) = (known.is_empty(), absent.first()) {
        return Err(why.clone());
    }
    let ends: u64 = known.iter().flat_map(|s| &s.lifetimes).map(|lived| lived.by_blocks.samples()).sum();
    if ends >= LEAST_ENDS {
        return Ok(known);
    }
    let no_clock = known.iter().find_map(|samples| samples.lifetimes.as_ref().err());
    Err(match no_clock.filter(|why| why.reason != Reason::TooLittle) {
        Some(why) => why.clone(),
        None => too_little(&format!(
            "{ends} sampled blocks were freed or changed by realloc: a replay needs at least {LEAST_ENDS} to know lifetimes"
        )),
    })
}

/// One band of sizes, of all processes.
#[derive(Clone, Debug, Default)]
struct Band {
    new: f64,
    zeroed: f64,
    resized_to: f64,
    kept: f64,
    /// Age band, end, blocks.
    ended: Vec<(u8, End, f64)>,
}

/// All processes together.
struct Sums(Vec<Band>);

impl Sums {
    fn of(sampled: &[&Samples]) -> Sums {
        let mut bands = vec![Band::default(); BANDS];
        for one in sampled.iter().flat_map(|samples| &samples.lives.bands) {
            let sum = &mut bands[usize::from(one.band).min(BANDS - 1)];
            sum.new += one.new;
            sum.zeroed += one.zeroed;
            sum.resized_to += one.resized;
            sum.kept += one.kept;
            for life in &one.ended {
                match sum.ended.iter_mut().find(|(age, end, _)| (*age, *end) == (life.age, life.end)) {
                    Some((.., blocks)) => *blocks += life.blocks,
                    None => sum.ended.push((life.age, life.end, life.blocks)),
                }
            }
        }
        Sums(bands)
    }

    fn numbered(&self) -> impl Iterator<Item = (u8, &Band)> {
        (0..).zip(&self.0)
    }

    fn ends_elsewhere(&self) -> bool {
        self.0.iter().flat_map(|band| &band.ended).any(|(_, end, _)| *end == End::FreedElsewhere)
    }

    /// Without those that stay in use, unless the heap grows.
    fn fates(&self, clock: &Clock, grows: bool) -> Vec<Fates> {
        let of_band = |(number, band): (u8, &Band)| {
            let kept = if grows { band.kept } else { 0.0 };
            let all = kept + band.ended.iter().map(|(.., blocks)| blocks).sum::<f64>();
            let lives = band.ended.iter().map(|(age, end, blocks)| {
                let (from, to) = age_bounds(usize::from(*age));
                Fate {
                    share: blocks / all,
                    end: Some(*end),
                    age: (clock.blocks_in(from), clock.blocks_in(to)),
                }
            });
            let mut fates: Vec<Fate> = lives.collect();
            fates.extend((kept > 0.0).then(|| Fate { share: kept / all, end: None, age: (1.0, 1.0) }));
            let zeroed = if band.new > 0.0 { band.zeroed / band.new } else { 0.0 };
            (all > 0.0).then_some(Fates { band: number, zeroed, fates })
        };
        self.numbered().filter_map(of_band).collect()
    }

    /// Those of one process.
    fn kept(&self, sizes: &[(u64, f64)], processes: usize) -> Vec<(u64, f64)> {
        let kept = self.numbered().filter(|(_, band)| band.kept > 0.0);
        kept.map(|(number, band)| (typical(sizes, number), band.kept / processes.max(1) as f64)).collect()
    }
}

/// A usual size of a band.
fn typical(sizes: &[(u64, f64)], band: u8) -> u64 {
    let here = || sizes.iter().filter(|(size, _)| band_of(*size) == usize::from(band));
    let all: f64 = here().map(|(_, share)| share).sum();
    let (low, high) = band_sizes(usize::from(band));
    match all > 0.0 {
        true => here().map(|(size, share)| *size as f64 * share / all).sum::<f64>().round() as u64,
        false => low / 2 + high / 2,
    }
}

/// One size for each class, at the same place between its smallest and its largest, so that all blocks together have the bytes that
/// were requested. Programs have few different sizes, and allocators serve equal sizes better than mixed ones.
fn sizes(classes: &[u64], bytes: u64) -> Vec<(u64, f64)> {
    let all: f64 = classes.iter().map(|count| *count as f64).sum();
    let used = || {
        let numbered = classes.iter().enumerate().filter(|(_, count)| **count > 0);
        numbered.map(|(class, count)| (class_sizes(class), *count as f64))
    };
    // The last class has no largest size.
    let width = |(low, high): (u64, u64)| if high == u64::MAX { 0.0 } else { (high - low) as f64 };
    let least: f64 = used().map(|((low, _), count)| low as f64 * count).sum();
    let room: f64 = used().map(|(ends, count)| width(ends) * count).sum();
    let place = if room > 0.0 { ((bytes as f64 - least) / room).clamp(0.0, 1.0) } else { 1.0 };
    used().map(|(ends, count)| (ends.0 + (width(ends) * place).round() as u64, count / all)).collect()
}

/// The blocks that realloc changes, by band of their old sizes: of those that began with this size and those that realloc gave it, the part
/// that ends so. Both numbers are exact. Counted by samples, small blocks that grow to large ones would be too few or none, as they are
/// seldom sampled; the steps between old and new sizes would have the wrong length.
fn resized_from(
    calls: &Calls,
    sizes: &[(u64, f64)],
    fates: &[Fates],
    resized_to: &[(u8, f64)],
) -> Vec<(u8, f64)> {
    let mut blocks = vec![0.0; BANDS];
    for (size, share) in sizes {
        blocks[band_of(*size)] += share * calls.allocations() as f64;
    }
    for (band, share) in resized_to {
        blocks[usize::from(*band)] += share * calls.reallocs() as f64;
    }
    let resized = |band: usize| -> f64 {
        let ends = nearest(fates, band).into_iter().flat_map(|at| &fates[at].fates);
        ends.filter(|fate| fate.end == Some(End::Resized)).map(|fate| fate.share).sum()
    };
    shares(blocks.iter().enumerate().map(|(band, blocks)| blocks * resized(band)))
}

/// Which of the fates are those of a band of sizes: its own, or those of the nearest band. None if there are none.
pub fn nearest(fates: &[Fates], band: usize) -> Option<usize> {
    let far = |(_, one): &(usize, &Fates)| usize::from(one.band).abs_diff(band);
    fates.iter().enumerate().min_by_key(far).map(|(at, _)| at)
}

/// The part of each band in the sum of all, for bands that have one.
fn shares(of_bands: impl Iterator<Item = f64> + Clone) -> Vec<(u8, f64)> {
    let all: f64 = of_bands.clone().sum();
    (0..).zip(of_bands).filter(|(_, part)| *part > 0.0).map(|(band, part)| (band, part / all)).collect()
}

/// The threads of a process with their shares. `elsewhere`: some blocks are freed by another thread.
fn lanes(process: &CountedProcess, elsewhere: bool) -> Vec<Lane> {
    let share = |part: u64, all: u64| part as f64 / all.max(1) as f64;
    let lane = |thread: &ThreadCount| {
        let allocates = thread.calls.allocations();
        let per_thread = allocates as f64 / thread.threads as f64;
        Lane {
            allocates: share(allocates, process.calls.allocations()),
            frees: share(thread.calls.frees, process.calls.frees),
            main: thread.tid == Some(process.pid),
            blocks_per_thread: (thread.threads > 1 && per_thread >= 1.0).then_some(per_thread),
        }
    };
    let own = process.threads.iter().filter(|thread| thread.tid.is_some()).map(lane);
    let mut lanes: Vec<Lane> =
        own.filter(|lane| lane.allocates.max(lane.frees) >= LEAST_SHARE).take(MOST_LANES).collect();
    let only = Lane { allocates: 1.0, frees: 1.0, main: true, blocks_per_thread: None };
    if lanes.iter().all(|lane| lane.allocates <= 0.0) {
        lanes.insert(0, only);
        lanes.truncate(MOST_LANES);
    }
    if elsewhere && lanes.len() == 1 {
        lanes.push(Lane { allocates: 0.0, main: false, ..only });
    }
    even_out(&mut lanes);
    lanes
}

/// Makes the shares sum to 1 again.
fn even_out(lanes: &mut [Lane]) {
    let shares: [fn(&mut Lane) -> &mut f64; 2] = [|lane| &mut lane.allocates, |lane| &mut lane.frees];
    for of in shares {
        let all: f64 = lanes.iter_mut().map(|lane| *of(lane)).sum();
        lanes.iter_mut().filter(|_| all > 0.0).for_each(|lane| *of(lane) /= all);
    }
}

/// With how many threads of equal shares new blocks would be spread as much as they are.
fn threads(lanes: &[Lane]) -> f64 {
    1.0 / lanes.iter().map(|lane| lane.allocates * lane.allocates).sum::<f64>().max(1e-9)
}

/// How many new blocks a thread requests in a time.
struct Clock {
    /// While it runs.
    per_ns: f64,
    /// On average.
    per_ns_of_all: f64,
}

impl Clock {
    fn of(process: &CountedProcess, lanes: &[Lane]) -> Clock {
        let per_ns_of_all =
            process.calls.allocations() as f64 / process.over_ns.max(1) as f64 / threads(lanes);
        let running = process.samples.as_ref().ok().and_then(|s| s.lives.per_cpu_ns.as_ref().ok());
        // If the CPU time is unknown, it is taken to run all the time.
        Clock { per_ns: running.copied().unwrap_or(per_ns_of_all), per_ns_of_all }
    }

    fn blocks_in(&self, ns: f64) -> f64 {
        let blocks = self.per_ns * ns.min(BURST_NS);
        blocks.max(self.per_ns_of_all * ns).max(1e-6)
    }
}

/// How many blocks of one thread are in use at a time, if none stays: the mean of what their ages are in new blocks (Little's law).
fn in_use(sizes: &[(u64, f64)], fates: &[Fates]) -> f64 {
    let mean_of = |fates: &Fates| {
        let ends = fates.fates.iter().filter(|fate| fate.end.is_some());
        ends.map(|fate| fate.share * (fate.age.0 * fate.age.1).sqrt()).sum::<f64>()
    };
    let of_size = |(size, share): &(u64, f64)| {
        let here = fates.iter().find(|one| usize::from(one.band) == band_of(*size));
        here.map_or(0.0, |one| share * mean_of(one))
    };
    sizes.iter().map(of_size).sum()
}

/// Whether blocks follow one another: by their ages, and by the exact number in use. A ring of blocks has the same swing, but more ages.
fn one_at_a_time(process: &CountedProcess) -> bool {
    let Ok(samples) = &process.samples else { return false };
    let Ok(lifetimes) = &samples.lifetimes else { return false };
    let mut left = lifetimes.by_blocks.weight() * (1.0 - INTERRUPTED);
    let age = |ages: &Bucket| {
        let weight = ages.weight.min(left);
        left -= weight;
        weight * (ages.middle() - COLD_NS).max(0.0)
    };
    let lived: f64 = lifetimes.by_blocks.buckets.iter().map(age).sum();
    let in_use = lived / process.over_ns.max(1) as f64;
    in_use <= ONE && samples.lives.swing.as_ref().is_ok_and(|swing| *swing <= ONE)
}

/// Blocks that threads free together, if the number in use goes up and down by more than it would by chance.
fn batch(process: &CountedProcess, lanes: &[Lane], in_use: f64) -> Option<Batch> {
    let lives = &process.samples.as_ref().ok()?.lives;
    // Threads are independent of one another, so their swings add up as squares.
    let blocks = lives.swing.as_ref().ok()? / threads(lanes).sqrt();
    let order = match lives.reversed {
        Ok(share) if share >= MOSTLY => FreeOrder::YoungestFirst,
        Ok(share) if share <= 1.0 - MOSTLY => FreeOrder::OldestFirst,
        _ => FreeOrder::Any,
    };
    let by_chance = SWING_BY_CHANCE * in_use.sqrt();
    let stay: f64 = lives.bands.iter().map(|band| band.kept).sum();
    let whole = lives.fewest.as_ref().is_ok_and(|fewest| fewest - stay <= NOTHING_LEFT * blocks);
    (blocks >= LEAST_SWING && blocks >= by_chance).then_some(Batch { blocks, order, whole })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocations::{BandLives, Calls, Histogram, Life, Lifetimes, Lives, Lost, class_of};

    const SECOND_NS: u64 = 1_000_000_000;

    fn band(size: u64, new: f64, ended: &[(u64, End, f64)]) -> BandLives {
        let age = |ns: u64| crate::allocations::age_band_of(ns) as u8;
        let ended = ended.iter().map(|(ns, end, blocks)| Life { age: age(*ns), end: *end, blocks: *blocks });
        let resized = 0.0;
        BandLives { band: band_of(size) as u8, new, zeroed: 0.0, resized, kept: 0.0, ended: ended.collect() }
    }

    /// One thread that requests a million blocks in a second, all freed; these are their sizes and lives.
    fn program(sizes: &[(u64, u64)], bands: Vec<BandLives>) -> Counted {
        let mut classes = vec![0; CLASSES];
        sizes.iter().for_each(|(size, count)| classes[class_of(*size)] += count);
        let blocks: u64 = sizes.iter().map(|(_, count)| count).sum();
        let bytes: u64 = sizes.iter().map(|(size, count)| size * count).sum();
        let calls = Calls { malloc: blocks, frees: blocks, bytes, ..Calls::default() };
        let mut times = Histogram::default();
        (0..100).for_each(|_| times.add(1000, 1.0, 0.01));
        let samples = Samples {
            distance: 512 << 10,
            sampled: 100,
            spent_ns: Ok(0),
            blocks: Interval::exact(blocks as f64),
            bytes: Interval::exact(bytes as f64),
            latency: Ok(vec![]),
            lifetimes: Ok(Lifetimes { by_blocks: times.clone(), by_bytes: times }),
            remote_share: Ok(Interval::exact(0.0)),
            remote_bytes_share: Ok(Interval::exact(0.0)),
            live_blocks: Interval::exact(0.0),
            live_bytes: Interval::exact(0.0),
            peak_bytes: Interval::exact(0.0),
            peak_at_ns: 0,
            lives: Lives { bands, per_cpu_ns: Ok(blocks as f64 / 1e9), ..Lives::default() },
            sites: vec![],
        };
        let process = CountedProcess {
            pid: 7,
            number: 0,
            command: Ok(vec![]),
            program: Ok("/usr/bin/service".into()),
            allocator: Ok("/lib/libc.so.6".into()),
            from_ns: 0,
            over_ns: SECOND_NS,
            ended: true,
            calls,
            classes,
            threads: vec![thread(7, 1, calls)],
            threads_left_out: 0,
            samples: Ok(samples),
            lost: Lost::default(),
            missing: vec![],
        };
        Counted {
            length_ns: SECOND_NS,
            processes: vec![process],
            further: None,
            series: vec![],
            modules: vec![],
            frames: vec![],
            stacks: vec![],
            missing: vec![],
        }
    }

    fn thread(tid: i32, threads: u64, calls: Calls) -> ThreadCount {
        ThreadCount { tid: Some(tid), threads, name: Ok("worker".into()), ended: true, calls }
    }

    /// Blocks of 64 bytes that live for about 100 µs, and a few larger ones that calloc makes.
    fn usual() -> Counted {
        let small = band(64, 990_000.0, &[(100_000, End::Freed, 990_000.0)]);
        let large = BandLives { zeroed: 10_000.0, ..band(5000, 10_000.0, &[(1000, End::Freed, 10_000.0)]) };
        program(&[(64, 990_000), (5000, 10_000)], vec![small, large])
    }

    fn samples(counted: &mut Counted) -> &mut Samples {
        counted.processes[0].samples.as_mut().expect("set")
    }

    #[test]
    fn a_mix_has_the_sizes_bytes_and_lifetimes_of_the_program() {
        let mix = Mix::of(&usual()).unwrap();
        assert_eq!(mix.check(), Ok(()));
        let bytes: f64 = mix.sizes.iter().map(|(size, share)| *size as f64 * share).sum();
        assert!((bytes - (64.0 * 0.99 + 5000.0 * 0.01)).abs() < 1.0, "{:?}", mix.sizes);
        let [small, large] = &mix.fates[..] else { panic!("{:?}", mix.fates) };
        assert_eq!((small.zeroed, large.zeroed), (0.0, 1.0));
        // One block a microsecond: the age band from 65 to 262 µs.
        let Fate { share, end, age } = small.fates[0];
        assert_eq!((share, end), (1.0, Some(End::Freed)));
        assert!((age.0 - 65.536).abs() < 0.01 && (age.1 - 262.144).abs() < 0.01, "{age:?}");
        assert_eq!(mix.lanes, [Lane { allocates: 1.0, frees: 1.0, main: true, blocks_per_thread: None }]);
        assert!(!mix.grows && mix.batch.is_none() && mix.kept.is_empty() && mix.resized_to.is_empty());
        assert_eq!(mix.blocks, 1_000_000);
    }

    #[test]
    fn reallocs_have_old_and_new_sizes() {
        let mut grown = band(8192, 0.0, &[(1000, End::Resized, 50.0), (1000, End::Freed, 50.0)]);
        grown.resized = 100.0;
        let start = band(4096, 1000.0, &[(1000, End::Resized, 150.0), (1000, End::Freed, 850.0)]);
        let mut larger = band(16_384, 0.0, &[(1000, End::Freed, 100.0)]);
        larger.resized = 100.0;
        let mut counted = program(&[(4096, 1000)], vec![start, grown, larger]);
        counted.processes[0].calls.in_place = 200;
        let mix = Mix::of(&counted).unwrap();
        assert_eq!(mix.resized_from, [(8, 0.75), (9, 0.25)]);
        assert_eq!(mix.resized_to, [(9, 0.5), (10, 0.5)]);
        let shares: Vec<f64> = mix.fates[0].fates.iter().map(|fate| fate.share).collect();
        assert_eq!(shares, [0.15, 0.85]);
    }

    /// 1,000 blocks of 4 KiB grow to 512 KiB and more in 15 steps. No sample is of the 4 KiB.
    #[test]
    fn the_sizes_before_realloc_rest_on_exact_counts() {
        let grown = |size: u64, blocks: f64, end: End| BandLives {
            resized: blocks,
            ..band(size, 0.0, &[(1000, end, blocks)])
        };
        let bands = vec![
            grown(64 << 10, 7000.0, End::Resized),
            grown(512 << 10, 7000.0, End::Resized),
            grown(1 << 20, 1000.0, End::Freed),
        ];
        let mut counted = program(&[(4096, 1000)], bands);
        counted.processes[0].calls.in_place = 15_000;
        let mix = Mix::of(&counted).unwrap();
        let [(start, share), ..] = mix.resized_from[..] else { panic!("{:?}", mix.resized_from) };
        assert!(start == 8 && (share - 1.0 / 15.0).abs() < 1e-9, "{:?}", mix.resized_from);
        // Few of them are resized: the twin of the same sizes whose small blocks are sampled, and end.
        let kept = band(4096, 1000.0, &[(1000, End::Freed, 1000.0)]);
        counted.processes[0].samples.as_mut().expect("set").lives.bands.insert(0, kept);
        let mix = Mix::of(&counted).unwrap();
        assert!(mix.resized_from.iter().all(|(band, _)| *band > 8), "{:?}", mix.resized_from);
    }

    #[test]
    fn a_heap_grows_if_much_of_it_stays() {
        let of = |live: f64| {
            let mut counted = usual();
            let samples = samples(&mut counted);
            samples.live_bytes = Interval::exact(live * samples.bytes.point);
            samples.lives.bands[0].kept = 10_000.0;
            Mix::of(&counted).unwrap()
        };
        let (grows, steady) = (of(0.5), of(0.01));
        assert!(grows.grows && grows.kept.is_empty());
        let kept = grows.fates[0].fates.iter().find(|fate| fate.end.is_none()).expect("some stay");
        assert!((kept.share - 0.01).abs() < 1e-9);
        let [(size, blocks)] = steady.kept[..] else { panic!("{:?}", steady.kept) };
        assert!(!steady.grows && band_of(size) == band_of(64) && blocks == 10_000.0, "{size} {blocks}");
        assert!(steady.fates[0].fates.iter().all(|fate| fate.end.is_some()));
    }

    #[test]
    fn blocks_are_freed_together_if_their_number_swings() {
        let with = |swing: f64, reversed: f64, fewest: f64| {
            let mut counted = usual();
            let lives = &mut samples(&mut counted).lives;
            (lives.swing, lives.reversed, lives.fewest) = (Ok(swing), Ok(reversed), Ok(fewest));
            lives.bands[0].kept = 1000.0;
            Mix::of(&counted).unwrap().batch
        };
        let of = |swing: f64, reversed: f64| with(swing, reversed, 1100.0);
        // About 130 blocks are in use at a time: by chance the number varies by some 46.
        for (reversed, order) in
            [(1.0, FreeOrder::YoungestFirst), (0.0, FreeOrder::OldestFirst), (0.5, FreeOrder::Any)]
        {
            assert_eq!(of(250.0, reversed), Some(Batch { blocks: 250.0, order, whole: false }));
            assert_eq!(of(40.0, reversed), None);
        }
        // All of them end together, but for the thousand that stay.
        assert!(with(250.0, 0.5, 1020.0).is_some_and(|batch| batch.whole));
    }

    #[test]
    fn blocks_follow_one_another_if_one_is_in_use_at_a_time() {
        // `old`: of 1,000 blocks, those that end after 10 ms.
        let with = |age_ns: u64, swing: f64, old: usize| {
            let bands = vec![band(64, 1e6, &[(age_ns, End::Freed, 1e6)])];
            let mut counted = program(&[(64, 1_000_000)], bands);
            let mut ages = Histogram::default();
            (0..1000 - old).for_each(|_| ages.add(age_ns, 1e3, 1.0));
            (0..old).for_each(|_| ages.add(10_000_000, 1e3, 1.0));
            samples(&mut counted).lifetimes = Ok(Lifetimes { by_blocks: ages.clone(), by_bytes: ages });
            samples(&mut counted).lives.swing = Ok(swing);
            Mix::of(&counted).unwrap().one_at_a_time
        };
        let of = |age_ns: u64, swing: f64| with(age_ns, swing, 0);
        // A new block each microsecond.
        assert!(of(900, 17.0 / 15.0) && of(1_600, 17.0 / 15.0));
        // Two at a time, and a ring of about 100 blocks.
        assert!(!of(900, 2.0 * 17.0 / 15.0) && !of(2_000, 17.0 / 15.0));
        // A few were interrupted; many are in use beside the others.
        assert!(with(900, 17.0 / 15.0, 8) && !with(900, 17.0 / 15.0, 20));
    }

    #[test]
    fn too_few_calls_or_samples_are_a_reason() {
        let reason = |spoil: fn(&mut Counted)| {
            let mut counted = usual();
            spoil(&mut counted);
            Mix::of(&counted).map(drop).map_err(|why| why.reason)
        };
        assert_eq!(reason(|_| ()), Ok(()));
        let few = |counted: &mut Counted| counted.processes[0].calls.malloc = LEAST_CALLS - 1;
        assert_eq!(reason(few), Err(Reason::TooLittle));
        let off = |counted: &mut Counted| {
            counted.processes[0].samples = Err(Absence::new(Reason::Disabled, "sampling is off"));
        };
        assert_eq!(reason(off), Err(Reason::Disabled));
        let no_clock = |counted: &mut Counted| {
            samples(counted).lifetimes = Err(Absence::new(Reason::NotSupported, "no constant rate"));
        };
        assert_eq!(reason(no_clock), Err(Reason::NotSupported));
        let no_free = |counted: &mut Counted| {
            samples(counted).lifetimes = Err(Absence::new(Reason::TooLittle, "none was freed"));
        };
        assert_eq!(reason(no_free), Err(Reason::TooLittle));
        assert_eq!(reason(|counted| samples(counted).lives = Lives::default()), Err(Reason::TooLittle));
        assert_eq!(reason(|counted| counted.processes.clear()), Err(Reason::TooLittle));
    }

    #[test]
    fn threads_have_their_shares_of_blocks_and_frees() {
        let mut counted = usual();
        let part = |malloc, frees| Calls { malloc, frees, ..Calls::default() };
        counted.processes[0].threads = vec![
            thread(8, 1, part(600_000, 0)),
            thread(9, 400, part(400_000, 400_000)),
            thread(10, 1, part(0, 600_000)),
            thread(11, 1, part(10, 10)),
        ];
        let mix = Mix::of(&counted).unwrap();
        let shares: Vec<_> = mix.lanes.iter().map(|lane| (lane.allocates, lane.frees, lane.main)).collect();
        assert_eq!(shares, [(0.6, 0.0, false), (0.4, 0.4, false), (0.0, 0.6, false)]);
        assert_eq!(mix.lanes[1].blocks_per_thread, Some(1000.0));
        let two = mix.clone().on_cpus(2);
        assert!((two.lanes[0].allocates - 0.6).abs() < 1e-9 && two.lanes.len() == 2);
        assert_eq!(mix.on_cpus(1).lanes.len(), 1);
    }

    #[test]
    fn blocks_that_another_thread_frees_need_one() {
        let mut counted = usual();
        samples(&mut counted).lives.bands[0].ended[0].end = End::FreedElsewhere;
        let mix = Mix::of(&counted).unwrap();
        assert_eq!(mix.lanes.len(), 2);
        assert_eq!((mix.lanes[1].allocates, mix.lanes[1].frees), (0.0, 0.5));
        assert_eq!(mix.on_cpus(1).lanes.len(), 2);
    }

    #[test]
    fn mixes_that_cannot_be_played_are_refused() {
        let spoilt: [fn(&mut Mix); 9] = [
            |mix| mix.lanes.clear(),
            |mix| mix.lanes[0].allocates = 0.0,
            |mix| mix.lanes[0].frees = f64::NAN,
            |mix| mix.sizes.clear(),
            |mix| mix.fates.clear(),
            |mix| mix.fates[0].fates[0].age = (5.0, 1.0),
            |mix| mix.fates[0].band = BANDS as u8,
            |mix| mix.resized_to = vec![(5, 0.5), (4, 0.5)],
            |mix| mix.batch = Some(Batch { blocks: f64::INFINITY, order: FreeOrder::Any, whole: false }),
        ];
        for (nth, spoil) in spoilt.into_iter().enumerate() {
            let mut mix = Mix::of(&usual()).unwrap();
            spoil(&mut mix);
            assert!(mix.check().is_err(), "{nth}");
        }
    }

    #[test]
    fn a_remedy_is_found_by_its_key_unless_it_failed() {
        let exact = Interval::exact(1.0);
        let one =
            |remedy: &str, failed| Replayed { remedy: remedy.into(), cost: exact, saved: exact, failed };
        let failed = Some(Absence::new(Reason::NotFound, "no such library"));
        let mut replay = Replay {
            present: ReplayCost { cost: exact, ready: exact, faults: exact },
            variants: vec![
                one("jemalloc@bundled", None),
                one("mimalloc", failed),
                one("glibc-tcache-count=127", None),
            ],
            traced: false,
            in_turns: true,
            calls: 1,
            rounds: 5,
        };
        for (key, found) in
            [("jemalloc", true), ("mimalloc", false), ("glibc-tcache-count", true), ("jemalloc-thp", false)]
        {
            assert_eq!(replay.of(key).is_some(), found, "{key}");
        }
        assert!(replay.is_sound());
        replay.variants[0].saved.low = f64::NAN;
        assert!(!replay.is_sound());
    }
}
