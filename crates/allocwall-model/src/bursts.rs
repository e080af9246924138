//! What processes that run already ask of their allocators, as `allocwall count -p` saw it in short bursts, and the estimates from
//! them.
//!
//! A burst counts the calls of one function by one thread. The thread is drawn with a chance in proportion to its CPU time, so the
//! mean over bursts of its calls per CPU second is that of the process (Hájek's estimator: Särndal, Swensson, Wretman, Model
//! Assisted Survey Sampling, 5.7). Each call that is counted takes the thread longer: the measured cost is subtracted from the CPU
//! time of the burst. Rates of single functions are independent, and add up.
//!
//! Intervals cover 95 %: they are those of a jackknife that leaves out one burst at a time, within each function (Wolter,
//! Introduction to Variance Estimation, ch. 4). Calls of one burst resemble each other, so the burst is the unit, not the call.

use crate::recording::{Ended, Frame, Module, Stack};
use crate::stats::t95;
use crate::units::{Absence, Interval, Measured, Reason};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Part of the target's CPU time that counting may take.
pub const BUDGET: f64 = 0.01;
/// The most bursts of one count.
pub const MOST_BURSTS: usize = 5000;
/// With fewer bursts that met calls, the intervals are rough: the result says so.
pub const ENOUGH: usize = 5;
/// If less of a burst's CPU time remains without the cost of counting, it is not known how fast the calls would have been.
const LEAST_LEFT: f64 = 0.05;
/// A thread that was nearly idle before its burst, and busy in it, stands for no more than this many bursts.
const MOST_WEIGHT: f64 = 10.0;
/// The upper 97.5 % limit of the mean of a Poisson count of 0: −ln 0.025.
const NONE_SEEN: f64 = 3.688_879_454_113_936;

/// What was counted, and what is needed to judge it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bursts {
    /// From the start of the count to its end.
    pub length_ns: u64,
    pub ended: Ended,
    pub processes: Vec<BurstProcess>,
    /// The threads that were drawn at least once.
    pub threads: Vec<BurstThread>,
    pub functions: Vec<BurstFunction>,
    pub hit: HitCost,
    /// CPU time that counting took in all threads of the processes.
    pub incurred_ns: Interval,
    /// The stack of each call site ([`SeenCalls::site`]): index into `stacks`, the caller of the allocator first.
    pub sites: Vec<Measured<u32>>,
    /// What stacks consist of, as in a recording.
    pub modules: Vec<Module>,
    pub frames: Vec<Frame>,
    pub stacks: Vec<Stack>,
    /// Why the numbers are incomplete.
    pub missing: Vec<Absence>,
}

/// What one counted call takes the thread that makes it, in nanoseconds of CPU time: the lowest, the middle and the highest value
/// that was measured on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct HitCost {
    pub plain: Interval,
    /// With a record of registers and stack.
    pub recorded: Interval,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BurstProcess {
    pub pid: i32,
    pub command: Vec<String>,
    /// Path of the file whose calls were counted.
    pub allocator: String,
    /// CPU time while it was counted.
    pub cpu_ns: u64,
    pub ended: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BurstThread {
    /// Index into [`Bursts::processes`].
    pub process: u32,
    pub tid: i32,
    pub name: Measured<String>,
    /// CPU time while its process was counted.
    pub cpu_ns: u64,
}

/// A function of an allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EntryKind {
    Malloc,
    Calloc,
    /// aligned_alloc and memalign: the size is their second argument.
    Aligned,
    /// The size is its third argument.
    PosixMemalign,
    OperatorNew,
    Realloc,
    Free,
    OperatorDelete,
}

impl EntryKind {
    pub const ALL: [EntryKind; 8] = [
        EntryKind::Malloc,
        EntryKind::Calloc,
        EntryKind::Aligned,
        EntryKind::PosixMemalign,
        EntryKind::OperatorNew,
        EntryKind::Realloc,
        EntryKind::Free,
        EntryKind::OperatorDelete,
    ];

    /// Stable key of the JSON format. Both kinds of aligned blocks have one.
    pub fn key(self) -> &'static str {
        match self {
            EntryKind::Malloc => "malloc",
            EntryKind::Calloc => "calloc",
            EntryKind::Aligned | EntryKind::PosixMemalign => "aligned",
            EntryKind::OperatorNew => "operator_new",
            EntryKind::Realloc => "realloc",
            EntryKind::Free => "free",
            EntryKind::OperatorDelete => "operator_delete",
        }
    }

    pub fn allocates(self) -> bool {
        !matches!(self, EntryKind::Free | EntryKind::OperatorDelete)
    }
}

/// One function of one process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BurstFunction {
    /// Index into [`Bursts::processes`].
    pub process: u32,
    pub kind: EntryKind,
    pub name: String,
    /// In order of time.
    pub bursts: Vec<Burst>,
}

/// A short time in which the calls of one thread were counted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Burst {
    /// Index into [`Bursts::threads`].
    pub thread: u32,
    /// From the start of the count.
    pub t_ns: u64,
    pub over_ns: u64,
    /// CPU time of the thread meanwhile, with the cost of counting.
    pub cpu_ns: u64,
    /// CPU time that the thread's use before made expected. The chance of the thread was in proportion to that use.
    pub expected_ns: u64,
    /// Calls, counted.
    pub hits: u64,
    /// Each call of this number was recorded, as far as there was room.
    pub every: u64,
    /// The recorded calls.
    pub calls: Vec<SeenCalls>,
}

/// What a recorded call asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// A new block.
    New,
    /// Another size for a block.
    Resized,
    Freed,
    /// Nothing: free(NULL), or realloc(NULL) where that calls malloc, which counts it.
    Nothing,
}

/// Recorded calls of one burst that are alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeenCalls {
    pub what: What,
    /// Size class ([`crate::allocations::class_of`]); 0 if nothing is requested.
    pub class: u16,
    /// Index into [`Bursts::sites`]; None if the stack was not read.
    pub site: Option<u32>,
    pub calls: u32,
    /// Requested by all of them.
    pub bytes: u64,
}

/// A number a second.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rate {
    Between(Interval),
    /// Counting took most of the time of some bursts: it is not known how much larger the number is.
    AtLeast(f64),
}

/// Asks what a recorded call counts in a part, and in a whole. None: the call is no part of the sample for this question.
pub type Question<'q> = &'q dyn Fn(&BurstFunction, &Burst, &SeenCalls) -> Option<(f64, f64)>;
/// Selects calls.
pub type Keep<'k> = &'k dyn Fn(&BurstFunction, &Burst, &SeenCalls) -> bool;

/// Which of the measured costs of a call is subtracted.
#[derive(Clone, Copy)]
enum Cost {
    /// None: then a rate is that of the calls while each one was counted, which is a lower bound.
    Nothing,
    Low,
    Middle,
    High,
}

impl Cost {
    fn of(self, cost: Interval) -> f64 {
        match self {
            Cost::Nothing => 0.0,
            Cost::Low => cost.low,
            Cost::Middle => cost.point,
            Cost::High => cost.high,
        }
    }
}

impl Burst {
    /// CPU time that counting took in its thread: lowest, middle, highest.
    pub fn cost_ns(&self, hit: &HitCost) -> Interval {
        let of = |cost: Cost| self.cost_of(hit, cost);
        Interval::new(of(Cost::Low), of(Cost::Middle), of(Cost::High))
    }

    fn cost_of(&self, hit: &HitCost, cost: Cost) -> f64 {
        let recorded = self.due();
        (self.hits - recorded) as f64 * cost.of(hit.plain) + recorded as f64 * cost.of(hit.recorded)
    }

    /// CPU time without the cost of counting, of which a small part always remains.
    fn left_ns(&self, hit: &HitCost, cost: Cost) -> f64 {
        let cpu = self.cpu_ns as f64;
        (cpu - self.cost_of(hit, cost)).max(cpu * LEAST_LEFT)
    }

    /// CPU time without the cost of counting, as it was measured in the middle.
    pub fn undisturbed_ns(&self, hit: &HitCost) -> f64 {
        self.left_ns(hit, Cost::Middle)
    }

    fn is_saturated(&self, hit: &HitCost) -> bool {
        self.hits > 0 && self.cpu_ns as f64 - self.cost_of(hit, Cost::High) < self.cpu_ns as f64 * LEAST_LEFT
    }

    /// Its part in a mean over bursts.
    fn weight(&self) -> f64 {
        (self.cpu_ns as f64 / self.expected_ns.max(1) as f64).min(MOST_WEIGHT)
    }

    /// Calls that were due for a record.
    fn due(&self) -> u64 {
        self.hits / self.every.max(1)
    }

    pub fn recorded(&self) -> u64 {
        self.calls.iter().map(|calls| u64::from(calls.calls)).sum()
    }

    /// Calls whose record had no room.
    pub fn lost(&self) -> u64 {
        self.due().saturating_sub(self.recorded())
    }

    /// The thread used CPU time in it.
    pub fn is_active(&self) -> bool {
        self.cpu_ns > 0
    }
}

/// One burst of a sum: its weight, and what is summed of a part and of a whole, times that weight.
#[derive(Clone, Copy, Debug, Default)]
struct Block {
    weight: f64,
    part: f64,
    whole: f64,
}

/// The bursts of one function.
struct Stratum {
    /// CPU time of its process a second.
    scale: f64,
    blocks: Vec<Block>,
}

impl Stratum {
    fn sum(&self) -> Block {
        self.blocks.iter().fold(Block::default(), |sum, block| Block {
            weight: sum.weight + block.weight,
            part: sum.part + block.part,
            whole: sum.whole + block.whole,
        })
    }

    /// Means of part and whole, without one block of this sum. None if no weight is left.
    fn mean_without(&self, sum: Block, left_out: Block) -> Option<(f64, f64)> {
        let weight = sum.weight - left_out.weight;
        let each = self.scale / weight;
        (weight > 0.0).then_some(((sum.part - left_out.part) * each, (sum.whole - left_out.whole) * each))
    }

    fn mean(&self) -> (f64, f64) {
        self.mean_without(self.sum(), Block::default()).unwrap_or_default()
    }

    fn is_empty(&self) -> bool {
        self.blocks.iter().all(|block| block.part == 0.0 && block.whole == 0.0)
    }
}

/// Part and whole, summed over functions.
fn total(strata: &[Stratum]) -> (f64, f64) {
    strata.iter().map(Stratum::mean).fold((0.0, 0.0), |sum, mean| (sum.0 + mean.0, sum.1 + mean.1))
}

/// A function of part and whole with its interval.
///
/// # Errors
/// No burst has anything of it, or a function has a single burst.
fn jackknife(strata: &[Stratum], of: impl Fn(f64, f64) -> f64) -> Measured<Interval> {
    let (part, whole) = total(strata);
    let (mut variance, mut freedom) = (0.0, 0);
    for stratum in strata.iter().filter(|stratum| !stratum.is_empty()) {
        let n = stratum.blocks.len();
        if n < 2 {
            let why = "a function was counted in one burst only: count for a longer time (-d)";
            return Err(Absence::new(Reason::TooLittle, why));
        }
        let (mean, sum) = (stratum.mean(), stratum.sum());
        let without = stratum.blocks.iter().filter_map(|block| stratum.mean_without(sum, *block));
        let left_out: Vec<f64> =
            without.map(|other| of(part - mean.0 + other.0, whole - mean.1 + other.1)).collect();
        let middle = left_out.iter().sum::<f64>() / left_out.len().max(1) as f64;
        let squares: f64 = left_out.iter().map(|value| (value - middle).powi(2)).sum();
        variance += squares * (n - 1) as f64 / n as f64;
        freedom += n - 1;
    }
    if freedom == 0 {
        return Err(Absence::new(Reason::TooLittle, "no burst met such a call"));
    }
    let (point, half) = (of(part, whole), t95(freedom) * variance.sqrt());
    Ok(Interval::new((point - half).max(0.0), point, point + half))
}

impl Bursts {
    /// The bursts of each function, weighed and divided by their CPU time.
    fn strata(&self, cost: Cost, question: Question<'_>) -> Vec<Stratum> {
        self.functions.iter().map(|function| self.stratum(function, cost, question)).collect()
    }

    fn stratum(&self, function: &BurstFunction, cost: Cost, question: Question<'_>) -> Stratum {
        // Recorded calls, and what they count in the part and in the whole.
        let seen = |burst: &Burst| {
            let answers =
                burst.calls.iter().filter_map(|calls| Some((calls, question(function, burst, calls)?)));
            answers.fold((0.0, 0.0, 0.0), |sum, (calls, (part, whole))| {
                (sum.0 + f64::from(calls.calls), sum.1 + part, sum.2 + whole)
            })
        };
        let of_bursts: Vec<(f64, f64, f64)> = function.bursts.iter().map(&seen).collect();
        let all = of_bursts
            .iter()
            .fold((0.0, 0.0, 0.0), |sum: (f64, f64, f64), one| (sum.0 + one.0, sum.1 + one.1, sum.2 + one.2));
        let blocks = function.bursts.iter().zip(of_bursts).filter(|(burst, _)| burst.is_active());
        let blocks = blocks.map(|(burst, seen)| {
            // A burst with few calls may have no record: all bursts of its function stand for it.
            let (calls, part, whole) = if seen.0 > 0.0 { seen } else { all };
            let weight = burst.weight();
            let each = if calls > 0.0 { burst.hits as f64 / calls } else { 0.0 };
            let a_second = weight * each * 1e9 / burst.left_ns(&self.hit, cost);
            Block { weight, part: part * a_second, whole: whole * a_second }
        });
        let scale = self.cpus(function.process);
        Stratum { scale, blocks: blocks.collect() }
    }

    /// CPU seconds of a process a second.
    fn cpus(&self, process: u32) -> f64 {
        let cpu_ns = self.processes.get(process as usize).map_or(0, |process| process.cpu_ns);
        cpu_ns as f64 / self.length_ns.max(1) as f64
    }

    /// The part, a second.
    ///
    /// # Errors
    /// TooLittle: no burst met such a call, or there are too few bursts.
    pub fn rate(&self, question: Question<'_>) -> Measured<Rate> {
        let with = |cost: Cost| jackknife(&self.strata(cost, question), |part, _| part);
        if self.is_saturated(question) {
            return with(Cost::Nothing).map(|slowed| Rate::AtLeast(slowed.low));
        }
        let middle = with(Cost::Middle)?;
        let times = |cost: Cost| {
            let other = total(&self.strata(cost, question)).0;
            if middle.point > 0.0 { other / middle.point } else { 1.0 }
        };
        let (low, high) = (middle.low * times(Cost::Low), middle.high * times(Cost::High));
        Ok(Rate::Between(Interval::new(low, middle.point, high)))
    }

    /// The part divided by the whole, from 0 to 1.
    ///
    /// # Errors
    /// As those of `rate`.
    pub fn share(&self, question: Question<'_>) -> Measured<Interval> {
        let share = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
        let found = jackknife(&self.strata(Cost::Middle, question), share)?;
        Ok(Interval::new(found.low, found.point.min(1.0), found.high.min(1.0)))
    }

    /// Whether counting took nearly all the time of a burst with calls of the part.
    fn is_saturated(&self, question: Question<'_>) -> bool {
        self.functions.iter().any(|function| {
            let in_part = |burst: &Burst, calls: &SeenCalls| {
                question(function, burst, calls).is_some_and(|(part, _)| part > 0.0)
            };
            let mut saturated = function.bursts.iter().filter(|burst| burst.is_saturated(&self.hit));
            saturated.any(|burst| burst.calls.iter().any(|calls| in_part(burst, calls)))
        })
    }

    /// Calls a second.
    ///
    /// # Errors
    /// As those of `rate`.
    pub fn calls_per_s(&self, keep: Keep<'_>) -> Measured<Rate> {
        self.rate(&|function, burst, calls| Some((calls.counted_if(keep(function, burst, calls)), 0.0)))
    }

    /// Requested bytes a second.
    ///
    /// # Errors
    /// As those of `rate`.
    pub fn bytes_per_s(&self, keep: Keep<'_>) -> Measured<Rate> {
        self.rate(&|function, burst, calls| {
            Some((if keep(function, burst, calls) { calls.bytes as f64 } else { 0.0 }, 0.0))
        })
    }

    /// The part of the calls of `among` that `keep` selects.
    ///
    /// # Errors
    /// As those of `rate`.
    pub fn share_of_calls(&self, keep: Keep<'_>, among: Keep<'_>) -> Measured<Interval> {
        self.share(&|function, burst, calls| {
            let whole = calls.counted_if(among(function, burst, calls));
            Some((if keep(function, burst, calls) { whole } else { 0.0 }, whole))
        })
    }

    /// Calls and bytes a second of each call site, by process and site, without intervals. Only calls whose stack was read have a
    /// site, and they stand for all calls of their burst.
    pub fn sites_per_s(&self) -> BTreeMap<(u32, u32), (f64, f64)> {
        let mut sites: BTreeMap<(u32, u32), (f64, f64)> = BTreeMap::new();
        for function in &self.functions {
            let active = || function.bursts.iter().filter(|burst| burst.is_active());
            let weights: f64 = active().map(Burst::weight).sum();
            for burst in active() {
                let placed = || burst.calls.iter().filter_map(|calls| Some((calls.site?, calls)));
                let all: f64 = placed().map(|(_, calls)| f64::from(calls.calls)).sum();
                let calls_per_cpu_s = burst.hits as f64 * 1e9 / burst.left_ns(&self.hit, Cost::Middle);
                let each = self.cpus(function.process) * burst.weight() / weights * calls_per_cpu_s / all;
                for (site, calls) in placed() {
                    let sum = sites.entry((function.process, site)).or_default();
                    sum.0 += f64::from(calls.calls) * each;
                    sum.1 += calls.bytes as f64 * each;
                }
            }
        }
        sites
    }

    /// Of functions that no burst saw called: what they are called at most, a second. None if one was called, or if there was no
    /// burst for one of them.
    pub fn at_most_per_s(&self, keep: impl Fn(&BurstFunction) -> bool) -> Option<f64> {
        let mut most = 0.0;
        for function in self.functions.iter().filter(|function| keep(function)) {
            let cpu_ns: u64 = function.bursts.iter().map(|burst| burst.cpu_ns).sum();
            if cpu_ns == 0 || function.bursts.iter().any(|burst| burst.hits > 0) {
                return None;
            }
            most += NONE_SEEN * 1e9 / cpu_ns as f64 * self.cpus(function.process);
        }
        (most > 0.0).then_some(most)
    }

    pub fn all(&self) -> impl Iterator<Item = &Burst> {
        self.functions.iter().flat_map(|function| &function.bursts)
    }

    /// Calls that were counted.
    pub fn hits(&self) -> u64 {
        self.all().map(|burst| burst.hits).sum()
    }

    pub fn cpu_ns(&self) -> u64 {
        self.processes.iter().map(|process| process.cpu_ns).sum()
    }

    /// The part of the processes' CPU time that counting took.
    ///
    /// # Errors
    /// They used none.
    pub fn cost_share(&self) -> Measured<Interval> {
        match self.cpu_ns() {
            0 => Err(Absence::new(Reason::TooLittle, "the process used no CPU time")),
            cpu_ns => Ok(self.incurred_ns.scaled(1.0 / cpu_ns as f64)),
        }
    }

    /// The part of the CPU time that the threads had which were drawn at least once, from 0 to 1.
    ///
    /// # Errors
    /// The processes used none.
    pub fn coverage(&self) -> Measured<f64> {
        let drawn: u64 = self.threads.iter().map(|thread| thread.cpu_ns).sum();
        match self.cpu_ns() {
            0 => Err(Absence::new(Reason::TooLittle, "the process used no CPU time")),
            cpu_ns => Ok((drawn as f64 / cpu_ns as f64).min(1.0)),
        }
    }
}

impl SeenCalls {
    /// The number of calls, or 0 if they ask for nothing or are not selected.
    fn counted_if(&self, selected: bool) -> f64 {
        if selected && self.what != What::Nothing { f64::from(self.calls) } else { 0.0 }
    }
}

/// Why a burst does not show what becomes of a block: lifetimes, frees by another thread, live bytes, latency, and whether realloc
/// copied.
pub fn not_in_bursts() -> Absence {
    Absence::new(
        Reason::NotSupported,
        "a burst sees calls, but not their results, and not what becomes of a block",
    )
    .mend("start the command with allocwall count -- CMD")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::random::Random;

    const MS: u64 = 1_000_000;

    fn hit() -> HitCost {
        HitCost { plain: Interval::new(600.0, 700.0, 800.0), recorded: Interval::new(1200.0, 1400.0, 1600.0) }
    }

    fn seen(what: What, class: u16, calls: u32, bytes: u64) -> SeenCalls {
        SeenCalls { what, class, site: None, calls, bytes }
    }

    /// A burst of a thread that runs all the time and makes this number of calls in an undisturbed second. Each tenth is recorded.
    fn busy(per_second: f64, class: u16, size: u64) -> Burst {
        let cpu_ns = 2 * MS;
        let each_ns = 1e9 / per_second + 0.9 * hit().plain.point + 0.1 * hit().recorded.point;
        let hits = (cpu_ns as f64 / each_ns) as u64;
        let calls = (hits / 10) as u32;
        let calls = vec![seen(What::New, class, calls, u64::from(calls) * size)];
        Burst { thread: 0, t_ns: 0, over_ns: cpu_ns, cpu_ns, expected_ns: cpu_ns, hits, every: 10, calls }
    }

    fn function(kind: EntryKind, bursts: Vec<Burst>) -> BurstFunction {
        BurstFunction { process: 0, kind, name: kind.key().into(), bursts }
    }

    fn process(cpu_ns: u64) -> BurstProcess {
        BurstProcess { pid: 7, command: vec![], allocator: "libc.so.6".into(), cpu_ns, ended: false }
    }

    /// Of a second, in which the process used half a CPU.
    fn bursts(functions: Vec<BurstFunction>) -> Bursts {
        let thread = |tid| BurstThread { process: 0, tid, name: Ok("worker".into()), cpu_ns: 200 * MS };
        Bursts {
            length_ns: 1000 * MS,
            ended: Ended::Complete,
            processes: vec![process(500 * MS)],
            threads: vec![thread(7), thread(8)],
            functions,
            hit: hit(),
            incurred_ns: Interval::new(1e6, 2e6, 3e6),
            sites: vec![],
            modules: vec![],
            frames: vec![],
            stacks: vec![],
            missing: vec![],
        }
    }

    fn between(rate: Measured<Rate>) -> Interval {
        match rate {
            Ok(Rate::Between(interval)) => interval,
            other => panic!("{other:?}"),
        }
    }

    const ALL: Keep<'static> = &|_, _, _| true;

    #[test]
    fn the_cost_of_counting_is_subtracted() {
        let malloc = function(EntryKind::Malloc, (0..8).map(|_| busy(1e6, 7, 100)).collect());
        let free = function(EntryKind::Free, (0..8).map(|_| busy(5e5, 0, 0)).collect());
        let found = bursts(vec![malloc, free]);
        let calls = between(found.calls_per_s(ALL));
        // Half a CPU: half a million of malloc, a quarter of free.
        assert!((calls.point - 750e3).abs() < 5e3, "{calls:?}");
        // Bursts are alike, so only the range of the cost remains.
        assert!(
            calls.low < 720e3 && calls.low > 600e3 && calls.high > 780e3 && calls.high < 950e3,
            "{calls:?}"
        );
        let bytes = between(found.bytes_per_s(ALL));
        assert!((bytes.point - 50e6).abs() < 1e6, "{bytes:?}");
        // Without the cost, the same counts are far off.
        let free_of_cost = Interval::exact(0.0);
        let other = Bursts { hit: HitCost { plain: free_of_cost, recorded: free_of_cost }, ..found };
        assert!(between(other.calls_per_s(ALL)).point < 500e3);
    }

    #[test]
    fn where_counting_takes_all_the_time_there_is_only_a_lower_bound() {
        let mut fast: Vec<Burst> = (0..8).map(|_| busy(1e6, 7, 100)).collect();
        fast.push(busy(100e6, 7, 100));
        let free = function(EntryKind::Free, vec![busy(1e5, 0, 0); 4]);
        let found = bursts(vec![function(EntryKind::Malloc, fast), free]);
        let Ok(Rate::AtLeast(low)) = found.calls_per_s(ALL) else { panic!("{:?}", found.calls_per_s(ALL)) };
        assert!((200e3..400e3).contains(&low), "{low}");
        // The near twin: free is not so fast.
        let frees = found.calls_per_s(&|function, _, _| function.kind == EntryKind::Free);
        assert!(matches!(frees, Ok(Rate::Between(_))), "{frees:?}");
    }

    /// Threads with different rates and CPU times, drawn in proportion to these times.
    fn drawn(seed: u64) -> (Bursts, f64) {
        let mut random = Random::new(seed);
        // CPU time of a second, and calls in a CPU second.
        let threads = [(0.9, 200e3), (0.3, 600e3), (0.1, 20e3)];
        let all: f64 = threads.iter().map(|(cpus, _)| cpus).sum();
        let truth = threads.iter().map(|(cpus, rate)| cpus * rate).sum();
        let bursts_of = (0..60).map(|_| {
            let mut left = random.unit() * all;
            let drawn = threads.iter().position(|(cpus, _)| {
                left -= cpus;
                left <= 0.0
            });
            let (cpus, rate) = threads[drawn.unwrap_or(2)];
            // It runs in some of the moments only.
            let cpu_ns = (2.0 * MS as f64 * (cpus * (0.5 + random.unit())).min(1.0)) as u64;
            let mut burst = busy(rate * (0.5 + random.unit()), 7, 100);
            burst.hits = burst.hits * cpu_ns / burst.cpu_ns;
            burst.cpu_ns = cpu_ns;
            burst.expected_ns = (2.0 * MS as f64 * cpus) as u64;
            burst
        });
        let mut found = bursts(vec![function(EntryKind::Malloc, bursts_of.collect())]);
        found.processes[0].cpu_ns = (all * 1e9) as u64;
        (found, truth)
    }

    #[test]
    fn threads_count_by_their_cpu_time() {
        let (mut held, mut mean) = (0, 0.0);
        for seed in 0..100 {
            let (found, truth) = drawn(seed);
            let calls = between(found.calls_per_s(ALL));
            held += u32::from(calls.low <= truth && truth <= calls.high);
            mean += calls.point / truth / 100.0;
        }
        assert!(held >= 90, "{held}");
        assert!((mean - 1.0).abs() < 0.05, "{mean}");
    }

    #[test]
    fn shares_are_of_the_calls_and_vary_over_bursts() {
        let mixed = |small: u32, large: u32| {
            let mut burst = busy(1e5, 7, 100);
            burst.calls = vec![seen(What::New, 7, small, 0), seen(What::New, 80, large, 0)];
            burst
        };
        let share = |bursts_of: Vec<Burst>| {
            let found = bursts(vec![function(EntryKind::Malloc, bursts_of)]);
            found.share_of_calls(&|_, _, calls| calls.class == 7, ALL).unwrap()
        };
        let even = share((0..20).map(|_| mixed(15, 5)).collect());
        assert!((even.point - 0.75).abs() < 1e-9 && even.half_width() < 1e-9, "{even:?}");
        let phases = share((0..20).map(|at| if at % 4 == 0 { mixed(0, 20) } else { mixed(20, 0) }).collect());
        assert!((phases.point - 0.75).abs() < 1e-9 && phases.half_width() > 0.1, "{phases:?}");
        assert!(phases.low > 0.3 && phases.high <= 1.0);
    }

    #[test]
    fn what_no_burst_met_has_a_reason_and_an_upper_limit() {
        let silent = Burst { hits: 0, calls: vec![], ..busy(1e5, 7, 100) };
        let found = bursts(vec![function(EntryKind::Malloc, vec![silent; 10])]);
        assert_eq!(found.calls_per_s(ALL).unwrap_err().reason, Reason::TooLittle);
        // No call in 20 ms of CPU time, of half a CPU.
        let most = found.at_most_per_s(|_| true).unwrap();
        assert!((most - 3.689 / 0.02 * 0.5).abs() < 1.0, "{most}");
        let once = bursts(vec![function(EntryKind::Malloc, vec![busy(1e5, 7, 100)])]);
        assert_eq!(once.calls_per_s(ALL).unwrap_err().reason, Reason::TooLittle);
        assert_eq!(once.at_most_per_s(|_| true), None);
        assert_eq!(bursts(vec![function(EntryKind::Free, vec![])]).at_most_per_s(|_| true), None);
    }

    #[test]
    fn a_burst_without_a_record_is_like_the_others_and_nothing_is_no_call() {
        let mut few = busy(1e5, 7, 100);
        (few.every, few.calls) = (1000, vec![]);
        let mut half = busy(1e5, 7, 100);
        let recorded = half.calls[0].calls;
        half.calls.push(seen(What::Nothing, 0, recorded, 0));
        let found = bursts(vec![function(EntryKind::Malloc, vec![half.clone(), half, few])]);
        let calls = between(found.calls_per_s(ALL));
        assert!((calls.point - 25e3).abs() < 2e3, "{calls:?}");
        assert_eq!(found.functions[0].bursts[2].lost(), 0);
    }

    #[test]
    fn losses_cost_and_coverage_are_sums() {
        let mut burst = busy(1e5, 7, 100);
        let due = burst.hits / 10;
        burst.calls[0].calls -= 3;
        assert_eq!((burst.recorded(), burst.lost()), (due - 3, 3));
        let found = bursts(vec![function(EntryKind::Malloc, vec![burst])]);
        assert!((found.cost_share().unwrap().point - 0.004).abs() < 1e-9);
        assert!((found.coverage().unwrap() - 0.8).abs() < 1e-9);
        let idle = Bursts { processes: vec![process(0)], ..found };
        assert!(idle.cost_share().is_err() && idle.coverage().is_err());
    }

    #[test]
    fn sites_stand_for_the_calls_whose_stacks_were_not_read() {
        let mut burst = busy(1e5, 7, 100);
        burst.calls[0].site = Some(3);
        burst.calls.push(SeenCalls { site: Some(4), ..burst.calls[0] });
        burst.calls.push(SeenCalls { site: None, ..burst.calls[0] });
        let found = bursts(vec![function(EntryKind::Malloc, vec![burst.clone(), burst])]);
        let sites = found.sites_per_s();
        assert_eq!(sites.len(), 2);
        let (calls, bytes) = sites[&(0, 3)];
        assert!((calls - 25e3).abs() < 1e3 && (bytes / calls - 100.0).abs() < 1.0, "{calls} {bytes}");
    }
}
