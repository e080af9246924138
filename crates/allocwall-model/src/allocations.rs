//! What programs asked of their allocators, as `allocwall count` counted it: exact numbers of calls by kind, size and thread,
//! and estimates from a sample of the calls.
//!
//! Times are nanoseconds, sizes are bytes. Numbers of a process begin with its start.
//!
//! A call is sampled with a chance that grows with its size ([`chance`]), so a sampled call stands for one divided by that
//! chance. All estimates are sums or shares with these weights (Horvitz and Thompson, JASA 47, 1952): they are unbiased,
//! because each call is sampled independently of the others. Their intervals cover the error of sampling alone.

use crate::recording::{Frame, Module, Stack};
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
    pub processes: Vec<CountedProcess>,
    /// The processes above that number, taken together.
    pub further: Option<Further>,
    /// All processes together, over time: one point a second, or fewer.
    pub series: Vec<Point>,
    /// What the stacks of the sites consist of, as in a recording.
    pub modules: Vec<Module>,
    pub frames: Vec<Frame>,
    pub stacks: Vec<Stack>,
    /// What was not read, and why.
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
    pub classes: Vec<u64>,
    /// Those with most calls first, at most [`MOST_THREADS`].
    pub threads: Vec<ThreadCount>,
    /// Entries that are not in the list; their calls are in the sums.
    pub threads_left_out: u64,
    /// Absent if sampling is off, or if no call was sampled.
    pub samples: Measured<Samples>,
    pub lost: Lost,
    /// Why the numbers are incomplete, for example because a program with an allocator of its own does not call the library.
    pub missing: Vec<Absence>,
}

/// Processes that are not listed one by one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Further {
    pub processes: u64,
    pub calls: Calls,
    pub classes: Vec<u64>,
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
    /// Where blocks are requested; those with most bytes first.
    pub sites: Vec<Site>,
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
}
