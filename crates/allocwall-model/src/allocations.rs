//! What programs asked of their allocators, as `allocwall count` counted it: exact numbers of calls by kind, size and thread,
//! and estimates from a sample of the calls.
//!
//! Times are nanoseconds, sizes are bytes. Numbers of a process begin with its start.
//!
//! A call is sampled with a chance that grows with its size ([`chance`]), so a sampled call stands for one divided by that
//! chance. All estimates are sums or shares with these weights (Horvitz and Thompson, JASA 47, 1952): they are unbiased,
//! because each call is sampled independently of the others. Their intervals cover the error of sampling alone.

use crate::recording::{Frame, Module, Process, STACK_DEPTH, Stack};
use crate::stats::wilson_of;
use crate::units::{Absence, Interval, Measured, Reason};
use serde::{Deserialize, Serialize};

/// The number of size classes.
pub const CLASSES: usize = 185;
/// What the sampler adds to the size of each call, so that calls for small blocks are sampled too.
pub const PER_CALL: u64 = 1024;
/// Blocks of this size and above are large: glibc's first threshold for blocks with a mapping of their own (mallopt(3)).
pub const LARGE: u64 = 128 << 10;
/// The largest mean distance of samples, and the largest size that the sampler distinguishes.
pub const LARGEST_DISTANCE: u64 = 1 << 40;
/// The most processes that are listed one by one.
pub const MOST_PROCESSES: usize = 1024;
/// The most threads that are listed for one process.
pub const MOST_THREADS: usize = 4096;
/// The most call sites of all processes together.
pub const MOST_SITES: usize = 65_536;
/// The most points of a series, and above what a watch keeps.
const MOST_POINTS: usize = 8192;
/// Of one kind of sampled call: above what a run can take, and so few that sums of them cannot overflow.
const MOST_SAMPLES: u64 = 1 << 40;
const DAY_NS: u64 = 86_400_000_000_000;

/// Why there are no counts: they were not asked for.
pub fn not_counted() -> Absence {
    Absence::new(Reason::Disabled, "the calls of the allocator were not counted")
        .mend("diagnose the command with --count")
}

/// Why there are no costs of other allocators: the counted calls were not made again.
pub fn not_replayed() -> Absence {
    Absence::new(Reason::Disabled, "the counted calls were not replayed")
        .mend("diagnose the command with --count")
}

/// The class of a size: 0 for 0; then steps of 16 bytes up to 1,024; then four classes for each doubling up to 2^40.
pub fn class_of(size: u64) -> usize {
    match size {
        0 => 0,
        1..=1024 => size.div_ceil(16) as usize,
        _ => {
            let last = size - 1;
            let doubling = last.ilog2();
            let quarter = (last >> (doubling - 2)) & 3;
            (65 + 4 * (doubling as usize - 10) + quarter as usize).min(CLASSES - 1)
        }
    }
}

/// The smallest and the largest size of a class. The last class has no largest size.
pub fn class_sizes(class: usize) -> (u64, u64) {
    match class as u64 {
        0 => (0, 0),
        step @ 1..=64 => (16 * step - 15, 16 * step),
        _ => {
            let above = (class.min(CLASSES - 1) - 65) as u64;
            let base = 1024_u64 << (above / 4);
            let low = base + base / 4 * (above % 4);
            (low + 1, if class >= CLASSES - 1 { u64::MAX } else { low + base / 4 })
        }
    }
}

/// The number of size bands, each of which has some size classes.
pub const BANDS: usize = 37;
/// The number of age bands.
pub const AGES: usize = 26;

/// The band of a size: 0 up to 16 bytes, then one for each doubling up to 2^40. The last one also has all larger sizes.
pub fn band_of(size: u64) -> usize {
    match size {
        0..=16 => 0,
        _ => ((size - 1).ilog2() as usize - 3).min(BANDS - 1),
    }
}

/// The smallest and the largest size of a band, without those above 2^40.
pub fn band_sizes(band: usize) -> (u64, u64) {
    match band.min(BANDS - 1) {
        0 => (0, 16),
        band => ((16 << (band - 1)) + 1, 16 << band),
    }
}

/// The band of an age in nanoseconds: 0 below 16, then one for each factor of four. The last one is open.
pub fn age_band_of(age_ns: u64) -> usize {
    match age_ns {
        0..16 => 0,
        _ => ((age_ns.ilog2() as usize - 4) / 2 + 1).min(AGES - 1),
    }
}

/// Where an age band begins and ends, in nanoseconds. Ages that are shorter than any call of malloc are in the first one, too.
pub fn age_bounds(band: usize) -> (f64, f64) {
    let low = 4.0 * 4_f64.powi(band.min(AGES - 1) as i32);
    (low, 4.0 * low)
}

/// The chance that a call for `size` bytes is sampled, where the distances between samples are exponential with this mean.
pub fn chance(size: u64, distance: u64) -> f64 {
    match distance.min(LARGEST_DISTANCE) {
        0 => 1.0,
        distance => {
            let weight = size.min(LARGEST_DISTANCE) + PER_CALL;
            -(-(weight as f64) / distance as f64).exp_m1()
        }
    }
}

/// A whole run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Counted {
    /// From the start of the watch to its end.
    pub length_ns: u64,
    /// The processes, those with most calls first; at most [`MOST_PROCESSES`].
    #[serde(deserialize_with = "crate::room::charged")]
    pub processes: Vec<CountedProcess>,
    /// The processes above that number, taken together.
    pub further: Option<Further>,
    /// All processes together, over time: one point a second, or fewer.
    #[serde(deserialize_with = "crate::room::charged")]
    pub series: Vec<Point>,
    /// What the stacks of the sites consist of, as in a recording.
    #[serde(deserialize_with = "crate::room::charged")]
    pub modules: Vec<Module>,
    #[serde(deserialize_with = "crate::room::charged")]
    pub frames: Vec<Frame>,
    #[serde(deserialize_with = "crate::room::charged")]
    pub stacks: Vec<Stack>,
    /// What was not read, and why.
    #[serde(deserialize_with = "crate::room::charged")]
    pub missing: Vec<Absence>,
}

impl Counted {
    /// The calls of all processes.
    pub fn calls(&self) -> Calls {
        let mut all = Calls::default();
        self.processes.iter().for_each(|process| all.add(&process.calls));
        self.further.iter().for_each(|further| all.add(&further.calls));
        all
    }

    /// The allocations of all processes by size class.
    pub fn classes(&self) -> Vec<u64> {
        let mut all = vec![0; CLASSES];
        self.processes.iter().for_each(|process| add_classes(&mut all, &process.classes));
        self.further.iter().for_each(|further| add_classes(&mut all, &further.classes));
        all
    }

    /// Rates over the time in which processes counted, as far as the series shows it. None if it has no length.
    pub fn per_second(&self) -> Option<PerSecond> {
        let from = self.processes.iter().map(|process| process.from_ns).min()?;
        let to = self.processes.iter().map(|p| p.from_ns.saturating_add(p.over_ns)).max()?;
        let (mut over_ns, mut calls, mut bytes) = (0_u64, 0.0, 0.0);
        for point in &self.series {
            let begun = point.t_ns.saturating_sub(point.over_ns).max(from);
            let part = point.t_ns.min(to).saturating_sub(begun);
            if part > 0 {
                over_ns = over_ns.saturating_add(part);
                calls += point.calls.saturating_add(point.frees) as f64;
                bytes += point.bytes as f64;
            }
        }
        let over_s = over_ns as f64 / 1e9;
        (over_ns > 0).then(|| PerSecond { over_s, calls: calls / over_s, bytes: bytes / over_s })
    }

    /// So much a second of something that the counted calls had this amount of: in proportion to the calls. None without rates.
    pub fn rate_of(&self, amount: f64) -> Option<f64> {
        let all = self.calls().all();
        let per_second = self.per_second().filter(|_| all > 0)?;
        Some(amount / all as f64 * per_second.calls)
    }

    /// Leaves only the points of the series that lie within this time, so that the rates are those of this time. If there is no
    /// such point, all stay.
    pub fn keep_rates_between(&mut self, from_ns: u64, to_ns: u64) {
        let within =
            |point: &Point| point.t_ns <= to_ns && point.t_ns.saturating_sub(point.over_ns) >= from_ns;
        if self.series.iter().any(within) {
            self.series.retain(within);
        }
    }

    /// Whether a process that ran this program made some of the calls.
    pub fn covers(&self, process: &Process) -> bool {
        let inside = process.pid_inside.unwrap_or(process.pid);
        self.processes.iter().filter(|counted| counted.calls.all() > 0).any(|counted| {
            match (&counted.program, &process.exe) {
                (Ok(counted), Ok(exe)) => counted == exe,
                _ => counted.pid == inside,
            }
        })
    }

    /// Share of all freed blocks that another thread allocated.
    ///
    /// # Errors
    /// No sampled block was freed.
    pub fn remote_share(&self) -> Measured<Interval> {
        let sampled = self.processes.iter().filter_map(|p| Some((p, p.samples.as_ref().ok()?)));
        weighted_mean(sampled.map(|(process, samples)| (process.calls.frees as f64, &samples.remote_share)))
    }

    /// Time from allocation to free of all freed blocks, nanoseconds. Empty if nothing was sampled.
    pub fn lifetimes(&self) -> Histogram {
        let mut all = Histogram::default();
        let sampled = self.processes.iter().flat_map(|process| &process.samples);
        sampled.flat_map(|samples| &samples.lifetimes).for_each(|known| all.merge(&known.by_blocks));
        all
    }

    /// Of a recording that was read: no list is longer than its limit, each index is within bounds, and each number is one.
    pub fn is_sound(&self) -> bool {
        let fits = |index: u32, length: usize| (index as usize) < length;
        self.length_ns <= DAY_NS
            && self.processes.len() <= MOST_PROCESSES
            && self.processes.iter().all(|process| process.is_sound(self.stacks.len()))
            && self.further.iter().all(|further| further.classes.len() <= CLASSES)
            && self.series.len() <= MOST_POINTS
            && self.series.iter().all(|point| point.t_ns <= DAY_NS && point.over_ns <= DAY_NS)
            && self.stacks.iter().all(|stack| {
                stack.frames.len() <= STACK_DEPTH && stack.frames.iter().all(|f| fits(*f, self.frames.len()))
            })
            && self.frames.iter().all(|frame| frame.module.is_none_or(|m| fits(m, self.modules.len())))
    }
}

/// Rates of all processes together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PerSecond {
    /// The time that they are about.
    pub over_s: f64,
    /// Allocations, reallocations and frees a second.
    pub calls: f64,
    /// Requested bytes a second.
    pub bytes: f64,
}

/// The sum of independent estimates: their errors add up as squares.
pub fn independent_sum(parts: impl Iterator<Item = Interval>) -> Interval {
    let (mut point, mut below, mut above) = (0.0_f64, 0.0_f64, 0.0_f64);
    for part in parts {
        point += part.point;
        below += (part.point - part.low).powi(2);
        above += (part.high - part.point).powi(2);
    }
    Interval::new((point - below.sqrt()).max(0.0), point, point + above.sqrt())
}

/// The mean of shares with these weights. Those that are absent have no part in it.
///
/// # Errors
/// All are absent, or have no weight.
pub fn weighted_mean<'s>(parts: impl Iterator<Item = (f64, &'s Measured<Interval>)>) -> Measured<Interval> {
    let mut absent = None;
    let mut known: Vec<(f64, Interval)> = vec![];
    for (weight, share) in parts {
        match share {
            Ok(share) => known.push((weight, *share)),
            Err(why) => absent = absent.or(Some(why)),
        }
    }
    let total: f64 = known.iter().map(|(weight, _)| weight).sum();
    if total <= 0.0 {
        return Err(absent.cloned().unwrap_or_else(|| too_little("no sampled block was freed")));
    }
    let all = independent_sum(known.iter().map(|(weight, share)| share.scaled(weight / total)));
    Ok(Interval::new(all.low, all.point.min(1.0), all.high.min(1.0)))
}

/// Adds the counts of size classes.
pub fn add_classes(to: &mut [u64], from: &[u64]) {
    for (sum, count) in to.iter_mut().zip(from) {
        *sum = sum.saturating_add(*count);
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CountedProcess {
    /// As the process itself sees it.
    pub pid: i32,
    /// A process that executes another program is counted anew, with the next number.
    pub number: u32,
    #[serde(deserialize_with = "crate::room::charged_if_measured")]
    pub command: Measured<Vec<String>>,
    pub program: Measured<String>,
    /// Path of the file with the allocator.
    pub allocator: Measured<String>,
    /// From the start of the watch to that of the process.
    pub from_ns: u64,
    /// From then to its end, as it was noticed, or to the end of the watch.
    pub over_ns: u64,
    /// It ended, or executed another program, before the end of the watch.
    pub ended: bool,
    pub calls: Calls,
    /// Allocations of new blocks by size class (see [`class_sizes`]).
    #[serde(deserialize_with = "crate::room::charged")]
    pub classes: Vec<u64>,
    /// Those with most calls first, at most [`MOST_THREADS`].
    #[serde(deserialize_with = "crate::room::charged")]
    pub threads: Vec<ThreadCount>,
    /// Entries that are not in the list; their calls are in the sums.
    pub threads_left_out: u64,
    /// Absent if sampling is off, or if no call was sampled.
    pub samples: Measured<Samples>,
    pub lost: Lost,
    /// Why the numbers are incomplete, for example because a program with an allocator of its own does not call the library.
    #[serde(deserialize_with = "crate::room::charged")]
    pub missing: Vec<Absence>,
}

impl CountedProcess {
    /// How many blocks are in use on average, without those that stay. None if no lifetimes were sampled.
    pub fn blocks_in_use(&self) -> Option<f64> {
        let lifetimes = self.samples.as_ref().ok()?.lifetimes.as_ref().ok()?;
        let lived: f64 = lifetimes.by_blocks.buckets.iter().map(|ages| ages.weight * ages.middle()).sum();
        Some(lived / self.over_ns.max(1) as f64)
    }

    /// `stacks`: the number of stacks that sites can name.
    fn is_sound(&self, stacks: usize) -> bool {
        self.from_ns <= DAY_NS
            && self.over_ns <= DAY_NS
            && self.classes.len() <= CLASSES
            && self.threads.len() <= MOST_THREADS
            && self.samples.as_ref().map_or(true, |samples| samples.is_sound(stacks))
    }
}

/// Processes that are not listed one by one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Further {
    pub processes: u64,
    pub calls: Calls,
    #[serde(deserialize_with = "crate::room::charged")]
    pub classes: Vec<u64>,
}

impl Default for Further {
    fn default() -> Further {
        Further { processes: 0, calls: Calls::default(), classes: vec![0; CLASSES] }
    }
}

impl Further {
    /// Adds a process that is not listed.
    pub fn add(&mut self, process: &CountedProcess) {
        self.processes += 1;
        self.calls.add(&process.calls);
        add_classes(&mut self.classes, &process.classes);
    }
}

/// Exact numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Calls {
    pub malloc: u64,
    pub calloc: u64,
    /// memalign, aligned_alloc, posix_memalign, valloc and pvalloc.
    pub aligned: u64,
    /// `operator new`, where the allocator has its own. That of the C++ library calls malloc, and is counted there.
    pub operator_new: u64,
    /// realloc of a null pointer.
    pub realloc_new: u64,
    /// realloc that kept the address.
    pub in_place: u64,
    /// realloc that copied to another block.
    pub moved: u64,
    /// realloc of a block with a mapping of its own: the kernel may move its pages instead of copying them (mremap(2)).
    pub remapped: u64,
    /// realloc to size 0.
    pub realloc_freed: u64,
    pub realloc_failed: u64,
    /// Without free(NULL), which does nothing.
    pub frees: u64,
    /// Part of `frees`: `operator delete`, where the allocator has its own.
    pub operator_delete: u64,
    pub free_null: u64,
    /// Failed calls other than realloc, as far as they were seen: that of an unsampled malloc is not.
    pub failed: u64,
    /// Requested by all calls that allocate a new block.
    pub bytes: u64,
    /// Requested by realloc of a block: in place, moved and remapped.
    pub realloc_bytes: u64,
    /// Copied by realloc to another block.
    pub copied_bytes: u64,
    /// Calls of `allocwall_unit`: units of work of the program.
    pub marks: u64,
}

impl Calls {
    /// Calls that asked for a new block, without realloc of an old one.
    pub fn allocations(&self) -> u64 {
        sum(&[self.malloc, self.calloc, self.aligned, self.operator_new, self.realloc_new])
    }

    /// Calls of realloc with an old block.
    pub fn reallocs(&self) -> u64 {
        sum(&[self.in_place, self.moved, self.remapped, self.realloc_freed, self.realloc_failed])
    }

    /// All calls of the allocator, without free(NULL).
    pub fn all(&self) -> u64 {
        sum(&[self.allocations(), self.reallocs(), self.frees])
    }

    pub fn add(&mut self, other: &Calls) {
        let mut other = *other;
        for (sum, count) in self.fields().into_iter().zip(other.fields()) {
            *sum = sum.saturating_add(*count);
        }
    }

    /// All numbers, in the order of their declaration.
    fn fields(&mut self) -> [&mut u64; 18] {
        [
            &mut self.malloc,
            &mut self.calloc,
            &mut self.aligned,
            &mut self.operator_new,
            &mut self.realloc_new,
            &mut self.in_place,
            &mut self.moved,
            &mut self.remapped,
            &mut self.realloc_freed,
            &mut self.realloc_failed,
            &mut self.frees,
            &mut self.operator_delete,
            &mut self.free_null,
            &mut self.failed,
            &mut self.bytes,
            &mut self.realloc_bytes,
            &mut self.copied_bytes,
            &mut self.marks,
        ]
    }
}

/// A hostile counter may be as large as it likes.
fn sum(counts: &[u64]) -> u64 {
    counts.iter().fold(0, |sum, count| sum.saturating_add(*count))
}

/// What one thread asked for, or several threads one after the other in the same slot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ThreadCount {
    /// The last thread of the slot. None: the slot of all threads without one of their own.
    pub tid: Option<i32>,
    /// How many threads the slot served.
    pub threads: u64,
    /// Name of the last thread.
    pub name: Measured<String>,
    /// The last thread has ended.
    pub ended: bool,
    pub calls: Calls,
}

/// All processes since the previous point.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// From the start of the watch to the end of this part.
    pub t_ns: u64,
    pub over_ns: u64,
    /// Allocations and reallocations.
    pub calls: u64,
    pub frees: u64,
    pub bytes: u64,
}

/// What was sampled, but overwritten before it was read, or cut by a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lost {
    /// Sampled calls that were not read. The estimates are too small by their share of the sampled calls.
    pub events: u64,
    /// Sampled calls whose stack was not read. The others of the same moment stand for them.
    pub stacks: u64,
    /// Sampled blocks that were not followed to their free, because the table had no room.
    pub unfollowed: u64,
    /// Calls of the slot for threads without one of their own: they are counted, and never sampled.
    pub unsampled: u64,
}

/// Estimates for one process. A block that realloc changed counts as two: one ends with the call, one begins.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Samples {
    /// Mean distance of samples that was asked for, in weighted bytes.
    pub distance: u64,
    /// Calls that were sampled.
    pub sampled: u64,
    /// Time that the library spent for samples in the threads of the process, without the calls themselves.
    pub spent_ns: Measured<u64>,
    /// Blocks and bytes as the sample estimates them: to check it against the exact numbers of allocations and reallocations.
    pub blocks: Interval,
    pub bytes: Interval,
    /// Time in the allocator, by kind of call and size. Absent if the processor's clock has no known rate.
    #[serde(deserialize_with = "crate::room::charged_if_measured")]
    pub latency: Measured<Vec<Latency>>,
    /// Time from allocation to free, of blocks that were freed. Absent for the same reason, or if none was freed.
    pub lifetimes: Measured<Lifetimes>,
    /// Share of freed blocks that another thread allocated. Reallocations are not frees here.
    pub remote_share: Measured<Interval>,
    /// Share of the bytes of freed blocks that another thread allocated.
    pub remote_bytes_share: Measured<Interval>,
    /// Blocks in use at the end, and their bytes, as requested.
    pub live_blocks: Interval,
    pub live_bytes: Interval,
    /// The largest of some readings a second. The largest of several estimates tends to be too large.
    pub peak_bytes: Interval,
    /// From the start of the watch to that reading.
    pub peak_at_ns: u64,
    /// How blocks live, by size.
    pub lives: Lives,
    /// Where blocks are requested; those with most bytes first.
    #[serde(deserialize_with = "crate::room::charged")]
    pub sites: Vec<Site>,
}

/// How blocks live: what a replay of the calls needs to know. Numbers of blocks are estimates from the sample. A block that realloc
/// changes is one that ends and one that begins.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lives {
    /// Without empty ones, in the order of sizes.
    #[serde(deserialize_with = "crate::room::charged")]
    pub bands: Vec<BandLives>,
    /// By how many blocks the number in use goes up and down within about half a second, apart from its growth. From exact
    /// counters of all threads together.
    pub swing: Measured<f64>,
    /// The fewest blocks in use at a moment of such a time, and in the median of them; counted exactly, too.
    pub fewest: Measured<f64>,
    /// Of two blocks that lived at the same time, and that one thread freed one after the other: how often the younger one was
    /// first.
    pub reversed: Measured<f64>,
    /// New blocks per nanosecond of CPU time of the process, counted exactly.
    pub per_cpu_ns: Measured<f64>,
}

/// Blocks of one band of sizes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BandLives {
    /// See [`band_of`].
    pub band: u8,
    /// Blocks that were requested, without those that realloc made.
    pub new: f64,
    /// Part of `new`: by calloc.
    pub zeroed: f64,
    /// Blocks that realloc made of older ones.
    pub resized: f64,
    /// In use at the end.
    pub kept: f64,
    /// Blocks that ended, by age and kind of end. Empty if the processor's clock has no known rate.
    #[serde(deserialize_with = "crate::room::charged")]
    pub ended: Vec<Life>,
}

/// Blocks of about one age when they ended.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Life {
    /// See [`age_band_of`].
    pub age: u8,
    pub end: End,
    pub blocks: f64,
}

/// How a block ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// By the thread that allocated it.
    Freed,
    /// By another thread.
    FreedElsewhere,
    /// By realloc, of whichever thread.
    Resized,
}

/// Nothing was sampled.
impl Default for Lives {
    fn default() -> Lives {
        let none = || too_little("no block was sampled");
        Lives {
            bands: Vec::new(),
            swing: Err(none()),
            fewest: Err(none()),
            reversed: Err(none()),
            per_cpu_ns: Err(none()),
        }
    }
}

impl Lives {
    fn is_sound(&self) -> bool {
        let number = |value: &f64| value.is_finite() && *value >= 0.0;
        let life = |life: &Life| usize::from(life.age) < AGES && number(&life.blocks);
        self.bands.len() <= BANDS
            && self.bands.iter().all(|band| {
                usize::from(band.band) < BANDS
                    && [band.new, band.zeroed, band.resized, band.kept].iter().all(number)
                    && band.ended.iter().all(life)
            })
            && [&self.swing, &self.fewest, &self.reversed, &self.per_cpu_ns].into_iter().flatten().all(number)
    }
}

impl Samples {
    fn is_sound(&self, stacks: usize) -> bool {
        let histograms = self.latency.iter().flatten().map(|one| &one.times);
        let lived = self.lifetimes.iter().flat_map(|both| [&both.by_blocks, &both.by_bytes]);
        let shares = self.remote_share.iter().chain(&self.remote_bytes_share);
        let sums =
            [&self.blocks, &self.bytes, &self.live_blocks, &self.live_bytes, &self.peak_bytes].into_iter();
        histograms.chain(lived).all(Histogram::is_sound)
            && self.lives.is_sound()
            && sums.chain(shares).all(is_number)
            && self.sites.len() <= MOST_SITES
            && self.sites.iter().all(|site| {
                let known = site.stack.as_ref().map_or(true, |stack| (*stack as usize) < stacks);
                let numbers = [&site.calls, &site.bytes, &site.live_bytes].into_iter();
                known && numbers.chain(&site.remote_share).all(is_number)
            })
    }
}

/// A usable estimate of something that is not negative.
fn is_number(value: &Interval) -> bool {
    value.low.is_finite() && value.point.is_finite() && value.high.is_finite() && value.low >= 0.0
}

/// What a sampled call did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallKind {
    Allocate,
    Reallocate,
    Free,
}

impl CallKind {
    pub const ALL: [CallKind; 3] = [CallKind::Allocate, CallKind::Reallocate, CallKind::Free];

    /// Stable key of the JSON format.
    pub fn key(self) -> &'static str {
        match self {
            CallKind::Allocate => "allocate",
            CallKind::Reallocate => "reallocate",
            CallKind::Free => "free",
        }
    }

    pub fn title(self) -> &'static str {
        match self {
            CallKind::Allocate => "allocate",
            CallKind::Reallocate => "realloc",
            CallKind::Free => "free",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    pub kind: CallKind,
    /// Blocks from [`LARGE`] on; otherwise smaller ones.
    pub large: bool,
    /// Nanoseconds, weighted by calls.
    pub times: Histogram,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lifetimes {
    /// Nanoseconds, weighted by blocks.
    pub by_blocks: Histogram,
    /// Nanoseconds, weighted by bytes.
    pub by_bytes: Histogram,
}

/// One stack from which blocks were requested.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Site {
    /// Index into [`Counted::stacks`]: the caller of the allocator first. Absent for all calls whose stack could not be read.
    pub stack: Measured<u32>,
    /// Sampled calls.
    pub samples: u64,
    pub calls: Interval,
    pub bytes: Interval,
    /// Part of the bytes that is in use at the end.
    pub live_bytes: Interval,
    /// Share of freed blocks that another thread freed. Absent if no sampled block was freed.
    pub remote_share: Measured<Interval>,
}

/// A sum over all calls, estimated from the sampled ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tally {
    pub samples: u64,
    sum: f64,
    /// Of the sum: each call is sampled or not, independently.
    variance: f64,
    /// The largest part of the sum that one sampled call is responsible for, as far as that was by chance.
    largest: f64,
}

impl Tally {
    /// A call with this value was sampled, with this chance (above 0, at most 1).
    pub fn add(&mut self, value: f64, chance: f64) {
        let part = value / chance;
        self.samples += 1;
        self.sum += part;
        self.variance += part * part * (1.0 - chance);
        self.largest = self.largest.max(part * (1.0 - chance));
    }

    pub fn merge(&mut self, other: &Tally) {
        self.samples += other.samples;
        self.sum += other.sum;
        self.variance += other.variance;
        self.largest = self.largest.max(other.largest);
    }

    pub fn sum(&self) -> f64 {
        self.sum
    }

    /// The sum with its interval, by the gamma approximation for weighted sums of rare events (Fay and Feuer, Statistics in
    /// Medicine 16, 1997). It is at least as wide as it must be, also with few samples.
    pub fn interval(&self) -> Interval {
        self.interval_within(self, 1.0)
    }

    /// The same for a part of `whole`, of whose samples each one was followed with this chance: a call of that part that was not
    /// sampled may have had the largest weight of all.
    pub fn interval_within(&self, whole: &Tally, followed: f64) -> Interval {
        let largest = self.largest.max(whole.largest / followed);
        // Fay and Feuer's upper limit adds one more event with the largest weight.
        let (above, variance) = (self.sum + largest, self.variance + largest * largest);
        let low = if self.variance > 0.0 {
            self.sum * chi_square_part(2.0 * self.sum * self.sum / self.variance, -crate::stats::Z95)
        } else {
            self.sum
        };
        let high = if variance > 0.0 {
            above * chi_square_part(2.0 * above * above / variance, crate::stats::Z95)
        } else {
            self.sum
        };
        Interval::new(low.min(self.sum), self.sum, high.max(self.sum))
    }
}

/// A quantile of the chi-square distribution divided by its degrees of freedom (Wilson and Hilferty, PNAS 17, 1931).
fn chi_square_part(degrees_of_freedom: f64, z: f64) -> f64 {
    let ninth = 2.0 / (9.0 * degrees_of_freedom);
    (1.0 - ninth + z * ninth.sqrt()).max(0.0).powi(3)
}

/// A share of a sum over all calls, both estimated from the same sampled calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Share {
    pub samples: u64,
    all: f64,
    part: f64,
    squares: f64,
    part_squares: f64,
}

impl Share {
    /// A call with this value was sampled, with this chance (above 0, at most 1).
    pub fn add(&mut self, value: f64, chance: f64, belongs: bool) {
        let weight = value / chance;
        let square = weight * weight * (1.0 - chance);
        self.samples += 1;
        self.all += weight;
        self.squares += square;
        if belongs {
            self.part += weight;
            self.part_squares += square;
        }
    }

    pub fn merge(&mut self, other: &Share) {
        self.samples += other.samples;
        self.all += other.all;
        self.part += other.part;
        self.squares += other.squares;
        self.part_squares += other.part_squares;
    }

    /// Wilson's interval, with the number of equal samples that would have the same error.
    ///
    /// # Errors
    /// Nothing was sampled.
    pub fn interval(&self) -> Measured<Interval> {
        if self.all <= 0.0 {
            return Err(too_little("no sampled block was freed"));
        }
        let share = (self.part / self.all).clamp(0.0, 1.0);
        // Of the ratio, linearized.
        let variance = (self.part_squares * (1.0 - share).powi(2)
            + (self.squares - self.part_squares).max(0.0) * share * share)
            / (self.all * self.all);
        // Without a hit, or with hits alone, the variance is 0: then all weights count.
        let by_weights = self.all * self.all / self.squares;
        let by_variance = if variance > 0.0 { share * (1.0 - share) / variance } else { f64::INFINITY };
        Ok(wilson_of(share, by_weights.min(by_variance)))
    }
}

/// How many buckets a doubling has: the middle of a bucket is at most 6 % off.
const PER_DOUBLING: u64 = 8;

/// Weighted values by size, in buckets that are narrow in relation to the value.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Histogram {
    /// By value; without empty ones.
    #[serde(deserialize_with = "crate::room::charged")]
    pub buckets: Vec<Bucket>,
    squares: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bucket {
    number: u16,
    pub samples: u64,
    pub weight: f64,
}

impl Bucket {
    fn number_of(value: u64) -> u16 {
        let number = match value {
            0..PER_DOUBLING => value,
            _ => {
                let doubling = u64::from(value.ilog2());
                PER_DOUBLING * (doubling - 2) + ((value >> (doubling - 3)) & (PER_DOUBLING - 1))
            }
        };
        number as u16
    }

    /// The smallest and the largest value of the bucket.
    pub fn values(&self) -> (u64, u64) {
        let number = u64::from(self.number);
        if number < PER_DOUBLING {
            return (number, number);
        }
        let shift = (number / PER_DOUBLING - 1).min(60);
        let low = (PER_DOUBLING + number % PER_DOUBLING) << shift;
        (low, low + ((1 << shift) - 1))
    }

    pub fn middle(&self) -> f64 {
        let (low, high) = self.values();
        low as f64 / 2.0 + high as f64 / 2.0
    }
}

impl Histogram {
    /// A call with this value was sampled, with this chance; it counts `weight` times.
    pub fn add(&mut self, value: u64, weight: f64, chance: f64) {
        let weight = weight / chance;
        self.squares += weight * weight * (1.0 - chance);
        self.put(Bucket { number: Bucket::number_of(value), samples: 1, weight });
    }

    pub fn merge(&mut self, other: &Histogram) {
        self.squares += other.squares;
        other.buckets.iter().for_each(|bucket| self.put(*bucket));
    }

    fn is_sound(&self) -> bool {
        let bucket =
            |one: &Bucket| one.samples <= MOST_SAMPLES && one.weight.is_finite() && one.weight >= 0.0;
        self.squares.is_finite()
            && self.squares >= 0.0
            && self.buckets.windows(2).all(|pair| pair[0].number < pair[1].number)
            && self.buckets.iter().all(bucket)
    }

    fn put(&mut self, more: Bucket) {
        match self.buckets.binary_search_by_key(&more.number, |bucket| bucket.number) {
            Ok(at) => {
                self.buckets[at].samples += more.samples;
                self.buckets[at].weight += more.weight;
            }
            Err(at) => self.buckets.insert(at, more),
        }
    }

    pub fn samples(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.samples).sum()
    }

    pub fn weight(&self) -> f64 {
        self.buckets.iter().map(|bucket| bucket.weight).sum()
    }

    /// The value below which this part (0 to 1) of the weight lies.
    ///
    /// # Errors
    /// Nothing was sampled.
    pub fn quantile(&self, part: f64) -> Measured<Interval> {
        let total = self.weight();
        if total <= 0.0 {
            return Err(too_little("no call of this kind was sampled"));
        }
        let at = |part: f64| {
            let mut left = part * total;
            let bucket = self.buckets.iter().find(|bucket| {
                left -= bucket.weight;
                left <= 0.0
            });
            bucket.or(self.buckets.last()).map_or(0.0, Bucket::middle)
        };
        // A quantile lies between those whose parts are at the ends of the interval of its own part.
        let parts = wilson_of(part, total * total / self.squares);
        Ok(Interval::new(at(parts.low), at(part), at(parts.high)))
    }

    /// The share of the weight with values from `from` on and below `to`, by the middle of each bucket.
    pub fn share_between(&self, from: u64, to: u64) -> f64 {
        let inside = |bucket: &&Bucket| (from as f64..to as f64).contains(&bucket.middle());
        let part: f64 = self.buckets.iter().filter(inside).map(|bucket| bucket.weight).sum();
        let total = self.weight();
        if total > 0.0 { part / total } else { 0.0 }
    }
}

fn too_little(why: &str) -> Absence {
    Absence::new(Reason::TooLittle, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::random::Random;

    #[test]
    fn classes_follow_one_another_without_a_gap() {
        assert_eq!(class_sizes(0), (0, 0));
        for class in 1..CLASSES {
            let (low, high) = class_sizes(class);
            assert_eq!(low, class_sizes(class - 1).1 + 1, "{class}");
            assert_eq!((class_of(low), class_of(high)), (class, class), "{low} to {high}");
        }
        assert_eq!(class_sizes(65), (1025, 1280));
        assert_eq!((class_of(1 << 40), class_of((1 << 40) + 1)), (184, 184));
        assert_eq!(class_sizes(184), ((7 << 37) + 1, u64::MAX));
    }

    #[test]
    fn bands_follow_one_another_without_a_gap() {
        assert_eq!((band_of(0), band_of(16), band_of(17), band_of(u64::MAX)), (0, 0, 1, BANDS - 1));
        for band in 1..BANDS {
            let (low, high) = band_sizes(band);
            assert_eq!(low, band_sizes(band - 1).1 + 1, "{band}");
            assert_eq!((band_of(low), band_of(high)), (band, band), "{low} to {high}");
        }
        assert_eq!(band_sizes(BANDS - 1).1, 1 << 40);
        assert_eq!((age_band_of(0), age_band_of(15), age_band_of(u64::MAX)), (0, 0, AGES - 1));
        for band in 1..AGES {
            let (low, high) = age_bounds(band);
            assert_eq!(low, age_bounds(band - 1).1, "{band}");
            assert_eq!((age_band_of(low as u64), age_band_of(high as u64 / 2)), (band, band));
        }
    }

    #[test]
    fn large_calls_are_sampled_always_and_small_ones_in_proportion() {
        let distance = 512 << 10;
        assert!(chance(1 << 30, distance) > 0.999_999);
        let (small, double) = (chance(0, distance), chance(PER_CALL, distance));
        assert!((small - PER_CALL as f64 / distance as f64).abs() < small * 0.001);
        assert!((double / small - 2.0).abs() < 0.003);
        assert_eq!(chance(16, 0), 1.0);
        // A hostile distance.
        assert_eq!(chance(16, u64::MAX), chance(16, LARGEST_DISTANCE));
    }

    struct Block {
        size: u64,
        freed: bool,
        remote: bool,
    }

    /// Many small blocks, few large ones. Large blocks stay longer, and other threads free them more often.
    fn program() -> Vec<Block> {
        let mut random = Random::new(1);
        let blocks = (0..20_000).map(|at| {
            let size = match at % 1000 {
                0 => 1 << 20,
                1..20 => 4096 + random.below(60_000) as u64,
                _ => 16 + random.below(500) as u64,
            };
            let small = size < 1024;
            let freed = random.unit() < if small { 0.9 } else { 0.6 };
            Block { size, freed, remote: random.unit() < if small { 0.1 } else { 0.7 } }
        });
        blocks.collect()
    }

    #[derive(Default)]
    struct Estimates {
        calls: Tally,
        bytes: Tally,
        live: Tally,
        remote: Share,
    }

    /// As the preloaded library samples: the next sample is an exponential distance away, in bytes and 1,024 for each call.
    fn sampled(program: &[Block], seed: u64, weight: impl Fn(u64, u64) -> f64) -> Estimates {
        let mut random = Random::new(seed);
        let mut out = Estimates::default();
        let mut step = |distance: u64| -random.unit_above_zero().ln() * distance as f64;
        let mut distance = 64 << 10;
        let mut left = step(distance);
        for (at, block) in program.iter().enumerate() {
            left -= (block.size + PER_CALL) as f64;
            if left >= 0.0 {
                continue;
            }
            let chance = weight(block.size, distance);
            out.calls.add(1.0, chance);
            out.bytes.add(block.size as f64, chance);
            if block.freed {
                out.remote.add(1.0, chance, block.remote);
            } else {
                out.live.add(block.size as f64, chance);
            }
            // The library doubles its distance where calls are frequent.
            distance = if at < program.len() / 2 { 64 << 10 } else { 128 << 10 };
            left = step(distance);
        }
        out
    }

    fn holds(interval: Interval, truth: f64) -> bool {
        assert!(interval.low <= interval.point && interval.point <= interval.high, "{interval:?}");
        interval.low <= truth && truth <= interval.high
    }

    /// In how many of 100 runs of the sampler each interval holds the truth: calls, bytes, live bytes, remote share. Then the
    /// means of the estimates, divided by the truth.
    fn coverage(weight: impl Fn(u64, u64) -> f64 + Copy) -> ([u32; 4], [f64; 4]) {
        let program = program();
        let sum = |keep: &dyn Fn(&Block) -> bool, value: &dyn Fn(&Block) -> f64| {
            program.iter().filter(|block| keep(block)).map(value).sum::<f64>()
        };
        let one = |_: &Block| 1.0;
        let size = |block: &Block| block.size as f64;
        let remote = sum(&|b| b.freed && b.remote, &one) / sum(&|b| b.freed, &one);
        let truths = [program.len() as f64, sum(&|_| true, &size), sum(&|b| !b.freed, &size), remote];
        let mut held = [0; 4];
        let mut means = [0.0; 4];
        for seed in 0..100 {
            let found = sampled(&program, seed, weight);
            let intervals = [
                found.calls.interval(),
                found.bytes.interval(),
                found.live.interval_within(&found.bytes, 1.0),
                found.remote.interval().unwrap(),
            ];
            for (at, interval) in intervals.into_iter().enumerate() {
                held[at] += u32::from(holds(interval, truths[at]));
                means[at] += interval.point / truths[at] / 100.0;
            }
        }
        (held, means)
    }

    #[test]
    fn estimates_are_unbiased_and_their_intervals_hold() {
        let (held, means) = coverage(chance);
        assert!(held.iter().all(|held| *held >= 89), "{held:?}");
        // The mean of 100 runs. One run is off by 20 % for the share of remote frees, and by less for the others.
        assert!(means.iter().all(|mean| (mean - 1.0).abs() < 0.05), "{means:?}");
    }

    #[test]
    fn without_their_weights_the_same_samples_are_wrong() {
        let (held, means) = coverage(|_, _| 1.0);
        assert_eq!(held, [0; 4], "{means:?}");
        assert!(means[3] > 1.3, "large blocks are sampled more often, and their frees are remote: {means:?}");
    }

    #[test]
    fn few_samples_have_wide_intervals_and_certain_ones_none() {
        let mut certain = Tally::default();
        (0..3).for_each(|_| certain.add(100.0, 1.0));
        assert_eq!(certain.interval(), Interval::exact(300.0));
        assert_eq!(Tally::default().interval(), Interval::exact(0.0));

        // One sample that stands for 100 calls: from 2 to 557, as the exact limits of a Poisson count are 0.025 and 5.57.
        let mut one = Tally::default();
        one.add(1.0, 0.01);
        let Interval { low, point, high } = one.interval();
        assert!((0.0..5.0).contains(&low) && (point - 100.0).abs() < 1e-9, "{low} {point}");
        assert!((540.0..570.0).contains(&high), "{high}");
        // None of its bytes is live in the sample: up to 3.69 unseen samples.
        let none = Tally::default().interval_within(&one, 1.0);
        assert_eq!((none.low, none.point), (0.0, 0.0));
        assert!((340.0..380.0).contains(&none.high), "{none:?}");
    }

    #[test]
    fn shares_of_nothing_are_absent_and_certain_ones_exact() {
        assert_eq!(Share::default().interval().unwrap_err().reason, Reason::TooLittle);
        let mut share = Share::default();
        (0..4).for_each(|at| share.add(1.0, 1.0, at == 0));
        let exact = share.interval().unwrap();
        assert!((exact.low - 0.25).abs() < 1e-9 && (exact.high - 0.25).abs() < 1e-9, "{exact:?}");
        // No hit among 20 equal samples: Wilson's upper end for 0 of 20 is 16 %.
        let mut none = Share::default();
        (0..20).for_each(|_| none.add(1.0, 0.01, false));
        let none = none.interval().unwrap();
        assert_eq!((none.low, none.point), (0.0, 0.0));
        assert!((0.15..0.18).contains(&none.high), "{none:?}");
    }

    #[test]
    fn merged_parts_are_the_whole() {
        let (mut whole, mut parts) = (Estimates::default(), [Estimates::default(), Estimates::default()]);
        let (mut times, mut time_parts) =
            (Histogram::default(), [Histogram::default(), Histogram::default()]);
        for at in 0..100_u64 {
            let (value, chance) = ((at * 7) as f64, 0.5 / (at + 1) as f64);
            for estimates in [&mut whole, &mut parts[at as usize % 2]] {
                estimates.bytes.add(value, chance);
                estimates.remote.add(1.0, chance, at % 3 == 0);
            }
            times.add(at, 1.0, chance);
            time_parts[at as usize % 2].add(at, 1.0, chance);
        }
        let [mut first, second] = parts;
        first.bytes.merge(&second.bytes);
        first.remote.merge(&second.remote);
        let [mut first_times, second_times] = time_parts;
        first_times.merge(&second_times);
        let near = |a: Interval, b: Interval| {
            [(a.low, b.low), (a.point, b.point), (a.high, b.high)]
                .iter()
                .all(|(a, b)| (a - b).abs() <= a * 1e-9)
        };
        assert!(near(first.bytes.interval(), whole.bytes.interval()));
        assert!(near(first.remote.interval().unwrap(), whole.remote.interval().unwrap()));
        assert!(near(first_times.quantile(0.9).unwrap(), times.quantile(0.9).unwrap()));
        assert_eq!(first_times.samples(), 100);
    }

    #[test]
    fn buckets_follow_one_another_and_are_narrow() {
        let bucket = |number| Bucket { number, samples: 0, weight: 0.0 };
        let last = Bucket::number_of(u64::MAX);
        for number in 1..=last {
            let (low, high) = bucket(number).values();
            assert_eq!(low, bucket(number - 1).values().1 + 1, "{number}");
            assert_eq!((Bucket::number_of(low), Bucket::number_of(high)), (number, number));
            assert!((high - low) as f64 <= low as f64 / 8.0);
        }
        assert_eq!(bucket(last).values().1, u64::MAX);
    }

    #[test]
    fn quantiles_weigh_each_call() {
        let mut times = Histogram::default();
        assert_eq!(times.quantile(0.5).unwrap_err().reason, Reason::TooLittle);
        // 90 % of the calls take 20 ns; the slow ones are for large blocks, and all are sampled.
        (0..90).for_each(|_| times.add(20, 1.0, 0.1));
        (0..100).for_each(|_| times.add(5000, 1.0, 1.0));
        let (middle, slow) = (times.quantile(0.5).unwrap(), times.quantile(0.99).unwrap());
        assert!((19.0..22.0).contains(&middle.point) && (4700.0..5300.0).contains(&slow.point));
        assert!(middle.low <= middle.point && slow.high >= slow.point);
        assert!((times.share_between(0, 100) - 0.9).abs() < 1e-9);
        assert_eq!(times.share_between(100, 1000), 0.0);
    }

    #[test]
    fn sums_of_hostile_counters_do_not_overflow() {
        let most = Calls { malloc: u64::MAX, frees: u64::MAX, ..Calls::default() };
        let mut calls = most;
        calls.add(&most);
        assert_eq!((calls.malloc, calls.all(), calls.calloc), (u64::MAX, u64::MAX, 0));
        let mut classes = [1, u64::MAX];
        add_classes(&mut classes, &[2, 2]);
        assert_eq!(classes, [3, u64::MAX]);
    }

    fn process(pid: i32, program: &str, from_ns: u64, over_ns: u64) -> CountedProcess {
        CountedProcess {
            pid,
            number: 0,
            command: Ok(vec![]),
            program: Ok(program.into()),
            allocator: Ok("/lib/libc.so.6".into()),
            from_ns,
            over_ns,
            ended: true,
            calls: Calls { malloc: 5, ..Calls::default() },
            classes: vec![0; CLASSES],
            threads: vec![],
            threads_left_out: 0,
            samples: Err(too_little("none")),
            lost: Lost::default(),
            missing: vec![],
        }
    }

    fn point(t_s: u64, calls: u64) -> Point {
        const SECOND_NS: u64 = 1_000_000_000;
        Point { t_ns: t_s * SECOND_NS, over_ns: SECOND_NS, calls, frees: calls, bytes: 100 * calls }
    }

    /// The watch begins 1.5 s before its only process, which counts for 2 s.
    fn run() -> Counted {
        Counted {
            length_ns: 6_000_000_000,
            processes: vec![process(7, "/usr/bin/service", 1_500_000_000, 2_000_000_000)],
            further: None,
            series: vec![point(1, 0), point(2, 50), point(3, 100), point(4, 50), point(5, 0), point(6, 0)],
            modules: vec![],
            frames: vec![],
            stacks: vec![],
            missing: vec![],
        }
    }

    #[test]
    fn rates_are_those_of_the_time_in_which_processes_counted() {
        let mut counted = run();
        let rates = counted.per_second().expect("some");
        assert_eq!((rates.over_s, rates.calls, rates.bytes), (2.0, 200.0, 10_000.0));
        // Those of the second whole second alone; a shorter time than a point changes nothing.
        counted.keep_rates_between(2_000_000_000, 3_900_000_000);
        assert_eq!(counted.per_second().map(|rates| (rates.over_s, rates.calls)), Some((1.0, 200.0)));
        let kept = counted.clone();
        counted.keep_rates_between(2_100_000_000, 2_900_000_000);
        assert_eq!(counted, kept);
        counted.processes.clear();
        assert_eq!(counted.per_second(), None);
    }

    #[test]
    fn counts_are_those_of_the_program_and_not_of_the_shell_that_started_it() {
        let mut judged = crate::recording::Process {
            pid: 7,
            pid_inside: None,
            ppid: 1,
            comm: String::new(),
            exe: Ok("/usr/bin/service".into()),
            cmdline: vec![],
            libc: Err(not_counted()),
            runtime: Err(not_counted()),
            allocator: Err(not_counted()),
            environment: vec![],
            thp_disabled: Ok(false),
            secure_exec: Ok(false),
            ended: false,
            age_ns: Ok(0),
        };
        let mut counted = run();
        assert!(counted.covers(&judged));
        // The shell had the same number until it executed a static program.
        counted.processes[0].program = Ok("/bin/sh".into());
        assert!(!counted.covers(&judged));
        // Without names, the numbers decide.
        judged.exe = Err(not_counted());
        assert!(counted.covers(&judged));
        counted.processes[0].calls = Calls::default();
        assert!(!counted.covers(&judged));
    }

    #[test]
    fn counts_with_numbers_beyond_their_limits_are_not_sound() {
        type Spoil = fn(&mut Counted);
        fn samples(counted: &mut Counted) -> &mut Samples {
            counted.processes[0].samples.as_mut().expect("set")
        }
        let mut whole = run();
        let mut lived = Histogram::default();
        (0..9).for_each(|at| lived.add(at * 100, 1.0, 0.5));
        let one = Interval::exact(1.0);
        whole.processes[0].samples = Ok(Samples {
            distance: 1,
            sampled: 9,
            spent_ns: Ok(1),
            blocks: one,
            bytes: one,
            latency: Ok(vec![Latency { kind: CallKind::Free, large: false, times: lived.clone() }]),
            lifetimes: Ok(Lifetimes { by_blocks: lived.clone(), by_bytes: lived }),
            remote_share: Ok(one),
            remote_bytes_share: Err(too_little("none")),
            live_blocks: one,
            live_bytes: one,
            peak_bytes: one,
            peak_at_ns: 0,
            lives: Lives {
                bands: vec![BandLives {
                    band: 3,
                    new: 1.0,
                    zeroed: 0.0,
                    resized: 0.0,
                    kept: 0.0,
                    ended: vec![Life { age: 2, end: End::Freed, blocks: 1.0 }],
                }],
                ..Lives::default()
            },
            sites: vec![],
        });
        assert!(whole.is_sound());
        let spoilt: [Spoil; 13] = [
            |c| c.length_ns = u64::MAX,
            |c| c.series[0].over_ns = u64::MAX,
            |c| c.processes[0].classes.push(0),
            |c| c.stacks.push(Stack { frames: vec![0], complete: true }),
            |c| c.frames.push(Frame { module: Some(0), symbol: None, offset: 0 }),
            |c| samples(c).blocks.high = f64::NAN,
            |c| samples(c).remote_share = Ok(Interval::exact(-1.0)),
            |c| samples(c).lifetimes.as_mut().expect("set").by_blocks.buckets.reverse(),
            |c| samples(c).lifetimes.as_mut().expect("set").by_bytes.buckets[0].samples = u64::MAX,
            |c| samples(c).lives.bands[0].band = BANDS as u8,
            |c| samples(c).lives.bands[0].ended[0].blocks = f64::NAN,
            |c| samples(c).lives.swing = Ok(-1.0),
            |c| samples(c).lives.fewest = Ok(f64::NAN),
        ];
        for (nth, spoil) in spoilt.into_iter().enumerate() {
            let mut spoiled = whole.clone();
            spoil(&mut spoiled);
            assert!(!spoiled.is_sound(), "{nth}");
        }
    }
}
