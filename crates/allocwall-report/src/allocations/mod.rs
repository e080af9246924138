//! What a program asked of its allocator (`allocwall count`) as text, JSON, pprof profile and collapsed stacks.
//!
//! Numbers of calls are exact. What was sampled is estimated for each process, and put together here: sums of independent
//! estimates, and histograms. A process that runs already has a report of its own: `bursts`.

pub mod bursts;
pub mod collapsed;
pub mod json;
pub mod pprof;
pub mod section;
pub mod text;

use super::text::bytes;
use allocwall_diagnose::bill::{GENERATED_CODE, NO_CALLERS, NO_SYMBOL, NO_USER_STACK, user_role};
use allocwall_model::allocations::{
    CallKind, Calls, Counted, CountedProcess, Histogram, LARGE, Latency, Lifetimes, Lost, Samples, Site,
    class_sizes, independent_sum as sum, weighted_mean as weighted,
};
use allocwall_model::catalogue::modules::role_of_library;
use allocwall_model::catalogue::prices::{MALLOC_ARENA, MALLOC_CACHED};
use allocwall_model::catalogue::symbols::{self, UserRole};
use allocwall_model::recording::{Ended, Frame, Module, ModuleRole, PriceList, Stack};
use allocwall_model::units::{Absence, Interval, Measured, Reason, thousands};
use std::collections::BTreeMap;

/// A counted run, and what its report needs besides the counts.
#[derive(Clone, Debug)]
pub struct Run {
    pub command: Vec<String>,
    pub counted: Counted,
    pub ended: Ended,
    /// Of the command, and of the processes that it waited for.
    pub cpu_s: Measured<f64>,
    pub prices: Measured<PriceList>,
    /// What counting adds to an allocation and its free on this machine.
    pub counting_ns: Measured<Interval>,
    /// Units of work that the user says were done. None: the program's own marks are used.
    pub units: Option<u64>,
}

impl Run {
    pub fn length_s(&self) -> f64 {
        self.counted.length_ns as f64 / 1e9
    }

    fn per_second(&self, amount: f64) -> f64 {
        let length = self.length_s();
        if length > 0.0 { amount / length } else { 0.0 }
    }
}

/// The largest sizes of the rows that size classes are merged to. The last row has none.
const ROW_TOPS: [u64; 10] = [64, 128, 256, 512, 1 << 10, 4 << 10, 32 << 10, LARGE, 1 << 20, 32 << 20];

/// From which part on something stands out: half of the bytes in one row of sizes, or of realloc; or bytes that realloc
/// copies, compared with those requested. Our choice, as the next three.
const MOST_BYTES: f64 = 0.5;
const MANY_COPIED: f64 = 0.2;
/// The part of the blocks that another thread frees: so much at least, with the whole interval.
const MANY_REMOTE: f64 = 0.1;
/// The part of the blocks that live for less than a millisecond.
const MANY_SHORT: f64 = 0.8;
/// Large blocks a second. Each may be mapped and unmapped, which takes some microseconds.
const MANY_LARGE: f64 = 100.0;
/// If large blocks take so many times as long as others, they are another mode.
const OTHER_MODE: f64 = 5.0;
/// The smallest number of samples for a statement about a mode.
const LEAST_OF_A_MODE: u64 = 30;
const MILLISECOND_NS: u64 = 1_000_000;
/// The kernel's account has steps of 10 ms.
const LEAST_CPU_S: f64 = 0.2;

/// Allocations in a unit of work: below the first, the allocator is unlikely to be what the work waits for; above the second it
/// can be. From the published account that the experiment `knee` repeats.
pub const FEW_PER_UNIT: f64 = 10.0;
pub const MANY_PER_UNIT: f64 = 30.0;

/// What all processes did, taken together.
pub struct Summary<'a> {
    pub run: &'a Run,
    pub calls: Calls,
    /// Without empty ones, the smallest sizes first.
    pub sizes: Vec<SizeRow>,
    pub sampled: Measured<Sampled>,
    /// The part of the CPU time that the calls take by this machine's prices: from all served by the thread cache to all
    /// served by the arena.
    pub cpu_share: Measured<Interval>,
    pub work: Measured<Work>,
    /// CPU time that counting added, seconds.
    pub counting_s: Measured<Interval>,
}

/// Allocations of some size classes.
#[derive(Clone, Debug, PartialEq)]
pub struct SizeRow {
    /// Sizes above this one.
    pub above: u64,
    /// Up to this size; None in the last row.
    pub up_to: Option<u64>,
    pub calls: u64,
    /// From the bounds of the classes, and by their middles.
    pub bytes: Interval,
}

/// Units of work, and what one of them asks for on average.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work {
    pub units: u64,
    pub source: WorkSource,
    pub allocations: f64,
    pub reallocs: f64,
    pub frees: f64,
    pub bytes: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkSource {
    /// `--per-request`.
    Given,
    /// Calls of `allocwall_unit`.
    Marks,
}

impl WorkSource {
    pub fn key(self) -> &'static str {
        match self {
            WorkSource::Given => "given",
            WorkSource::Marks => "marks",
        }
    }
}

impl Work {
    /// Stable key, and the sentence.
    pub fn judgement(&self) -> (&'static str, &'static str) {
        match self.allocations {
            few if few < FEW_PER_UNIT => {
                ("unlikely", "under 10: the allocator is unlikely to be what the work waits for")
            }
            many if many > MANY_PER_UNIT => {
                ("possible", "over 30: the allocator can be what the work waits for")
            }
            _ => ("between", "between 10 and 30: the number alone does not decide"),
        }
    }
}

/// Estimates for all processes with samples.
#[derive(Clone, Debug)]
pub struct Sampled {
    pub samples: u64,
    /// By kind of call, small blocks first.
    pub latency: Measured<Vec<Latency>>,
    pub lifetimes: Measured<Lifetimes>,
    pub remote_share: Measured<Interval>,
    pub remote_bytes_share: Measured<Interval>,
    pub live_blocks: Interval,
    pub live_bytes: Interval,
    /// Of the process with the largest one.
    pub peak: Peak,
    /// By function; in no order.
    pub sites: Vec<CallSite>,
    pub lost: Lost,
    /// CPU time that samples took in the program's threads.
    pub spent_ns: Measured<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Peak {
    pub pid: i32,
    pub bytes: Interval,
    pub at_ns: u64,
}

/// One function, and what it requested.
#[derive(Clone, Debug, PartialEq)]
pub struct CallSite {
    /// Why there is none, in brackets, if no stack names it.
    pub function: String,
    /// Path of its file; may be empty.
    pub module: String,
    pub samples: u64,
    pub calls: Interval,
    pub bytes: Interval,
    pub live_bytes: Interval,
    /// Share of its freed blocks that another thread freed.
    pub remote_share: Measured<Interval>,
}

impl CallSite {
    /// Blocks that another thread freed, if all were freed.
    pub fn remote_calls(&self) -> f64 {
        self.remote_share.as_ref().map_or(0.0, |share| share.point * self.calls.point)
    }
}

impl<'a> Summary<'a> {
    pub fn of(run: &'a Run) -> Summary<'a> {
        let calls = run.counted.calls();
        Summary {
            sizes: size_rows(&run.counted.classes()),
            sampled: sampled(&run.counted),
            cpu_share: cpu_share(run, &calls),
            work: work(run, &calls),
            counting_s: run.counting_ns.clone().map(|ns| ns.scaled(pairs(&calls) / 1e9)),
            calls,
            run,
        }
    }

    /// Calls and bytes a second, what CPU time that means, and what stands out.
    pub fn sentence(&self) -> String {
        let mut text = format!(
            "{} calls a second request {} a second",
            rate(self.run.per_second(self.calls.all() as f64)),
            bytes(self.run.per_second(requested(&self.calls)) as u64)
        );
        if let Ok(share) = &self.cpu_share {
            text.push_str(&format!(
                " and take {} of the CPU time by this machine's prices",
                percents(share.low, share.high)
            ));
        }
        let standouts = self.standouts();
        match standouts.is_empty() {
            true => text.push_str("; nothing stands out."),
            false => text.push_str(&format!("; what stands out: {}.", standouts.join("; "))),
        }
        text
    }

    fn standouts(&self) -> Vec<String> {
        let sampled = self.sampled.as_ref().ok();
        let all_bytes: f64 = self.sizes.iter().map(|row| row.bytes.point).sum();
        let mut standouts = vec![];
        let largest = self.sizes.iter().max_by(|a, b| a.bytes.point.total_cmp(&b.bytes.point));
        if let Some(row) = largest
            && all_bytes > 0.0
            && row.bytes.point >= MOST_BYTES * all_bytes
            && self.sizes.len() > 1
        {
            let share = row.bytes.point / all_bytes;
            standouts.push(format!(
                "blocks of {} have {} of the bytes of new blocks",
                row.title(),
                percent(share)
            ));
        }
        if let Some(Ok(share)) = sampled.map(|sampled| &sampled.remote_share)
            && share.low >= MANY_REMOTE
        {
            standouts.push(format!("another thread frees {} of the blocks", percent(share.point)));
        }
        let resized = self.calls.realloc_bytes as f64;
        if resized > 0.0 && resized >= MOST_BYTES * requested(&self.calls) {
            let share = resized / requested(&self.calls);
            standouts.push(format!("realloc requests {} of all bytes", percent(share)));
        }
        let copied = self.calls.copied_bytes as f64;
        if copied > 0.0 && copied >= MANY_COPIED * requested(&self.calls) {
            let each_second = bytes(self.run.per_second(copied) as u64);
            standouts.push(format!("realloc copies {each_second} a second"));
        }
        if let Some(short) = sampled.and_then(Sampled::short_lived)
            && short >= MANY_SHORT
        {
            standouts.push(format!("{} of the blocks live for less than 1 ms", percent(short)));
        }
        let large = self.run.per_second(self.large_calls() as f64);
        if large >= MANY_LARGE && self.libc_serves() {
            standouts.push(format!(
                "{} blocks a second are above 128 KiB, from where on glibc may map and unmap each one",
                rate(large)
            ));
        }
        standouts
    }

    /// Allocations above [`LARGE`].
    pub fn large_calls(&self) -> u64 {
        let large = self.sizes.iter().filter(|row| row.above >= LARGE);
        large.fold(0, |sum, row| sum.saturating_add(row.calls))
    }

    fn libc_serves(&self) -> bool {
        other_allocator(&self.run.counted).is_ok_and(|other| other.is_none())
    }
}

impl SizeRow {
    /// `64 to 128 B`.
    pub fn title(&self) -> String {
        let of = |size: u64| match size {
            size if size >= 1 << 20 => (size >> 20, "MiB"),
            size if size >= 1 << 10 => (size >> 10, "KiB"),
            size => (size, "B"),
        };
        let (low, low_unit) = of(self.above);
        match self.up_to.map(of) {
            None => format!("above {low} {low_unit}"),
            Some((high, unit)) if self.above == 0 => format!("up to {high} {unit}"),
            Some((high, unit)) if unit == low_unit => format!("{low} to {high} {unit}"),
            Some((high, unit)) => format!("{low} {low_unit} to {high} {unit}"),
        }
    }
}

/// All rows, the smallest sizes first.
fn empty_rows() -> Vec<SizeRow> {
    let row = |nth: usize| SizeRow {
        above: nth.checked_sub(1).map_or(0, |before| ROW_TOPS[before]),
        up_to: ROW_TOPS.get(nth).copied(),
        calls: 0,
        bytes: Interval::exact(0.0),
    };
    (0..=ROW_TOPS.len()).map(row).collect()
}

/// The row of a size class.
fn row_of(class: usize) -> usize {
    let (_, high) = class_sizes(class);
    ROW_TOPS.partition_point(|top| *top < high)
}

fn size_rows(classes: &[u64]) -> Vec<SizeRow> {
    let mut rows = empty_rows();
    for (class, &count) in classes.iter().enumerate() {
        let (low, high) = class_sizes(class);
        let row = &mut rows[row_of(class)];
        // The last class has no largest size.
        let (low, high) = (low as f64, if high == u64::MAX { 2.0 * low as f64 } else { high as f64 });
        row.calls = row.calls.saturating_add(count);
        row.bytes.low += count as f64 * low;
        row.bytes.point += count as f64 * (low + high) / 2.0;
        row.bytes.high += count as f64 * high;
    }
    rows.retain(|row| row.calls > 0);
    rows
}

/// Bytes of new blocks, and of realloc with its new sizes.
fn requested(calls: &Calls) -> f64 {
    calls.bytes.saturating_add(calls.realloc_bytes) as f64
}

/// Allocations with their frees.
fn pairs(calls: &Calls) -> f64 {
    calls.all() as f64 / 2.0
}

/// The first allocator that is not the C library's own. None: all calls went to the C library.
///
/// # Errors
/// It is not known of a process with calls.
fn other_allocator(counted: &Counted) -> Measured<Option<&str>> {
    for process in counted.processes.iter().filter(|process| process.calls.all() > 0) {
        let path = process.allocator.as_ref().map_err(Clone::clone)?;
        if role_of_library(basename(path)) != Some(ModuleRole::Libc) {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

fn cpu_share(run: &Run, calls: &Calls) -> Measured<Interval> {
    let prices = run.prices.as_ref().map_err(Clone::clone)?;
    let price = |name: &str| {
        let unknown =
            || Absence::new(Reason::NotFound, "the price of malloc is not in this machine's prices");
        prices.get(name).ok_or_else(|| prices.why_absent(name).cloned().unwrap_or_else(unknown))
    };
    let (cached, arena) = (price(MALLOC_CACHED)?, price(MALLOC_ARENA)?);
    if let Some(other) = other_allocator(&run.counted)? {
        let why = format!(
            "the prices are those of the C library's malloc, and {} served the calls",
            basename(other)
        );
        return Err(Absence::new(Reason::NotApplicable, why));
    }
    let cpu_s = *run.cpu_s.as_ref().map_err(Clone::clone)?;
    if cpu_s < LEAST_CPU_S {
        let why = format!("the command used {cpu_s:.2} s of CPU time, which is too little for a share");
        return Err(Absence::new(Reason::TooLittle, why));
    }
    let share = |ns: f64| (pairs(calls) * ns / 1e9 / cpu_s).min(1.0);
    let (low, high) = (cached.low.min(arena.low), cached.high.max(arena.high));
    Ok(Interval::new(share(low), share((cached.point + arena.point) / 2.0), share(high)))
}

fn work(run: &Run, calls: &Calls) -> Measured<Work> {
    let (units, source) = match run.units {
        Some(units) => (units, WorkSource::Given),
        None => (calls.marks, WorkSource::Marks),
    };
    if units == 0 {
        let why = "the number of requests, or other units of work, is not known";
        return Err(Absence::new(Reason::NotApplicable, why)
            .mend("give it: --per-request N")
            .mend("mark them in the program (allocwall_mark.h: docs/count.md)"));
    }
    let each = |count: u64| count as f64 / units as f64;
    Ok(Work {
        units,
        source,
        allocations: each(calls.allocations()),
        reallocs: each(calls.reallocs()),
        frees: each(calls.frees),
        bytes: requested(calls) / units as f64,
    })
}

fn sampled(counted: &Counted) -> Measured<Sampled> {
    let known: Vec<(&CountedProcess, &Samples)> =
        counted.processes.iter().filter_map(|p| Some((p, p.samples.as_ref().ok()?))).collect();
    let largest = known.iter().max_by(|a, b| a.1.peak_bytes.point.total_cmp(&b.1.peak_bytes.point));
    let Some((process, largest)) = largest else {
        let why = counted.processes.iter().find_map(|process| process.samples.as_ref().err());
        return Err(why.cloned().unwrap_or_else(|| Absence::new(Reason::TooLittle, "no call was counted")));
    };
    let by_frees = |share: fn(&Samples) -> &Measured<Interval>| {
        weighted(known.iter().map(|(process, samples)| (process.calls.frees as f64, share(samples))))
    };
    let sum_of = |part: fn(&Samples) -> Interval| sum(known.iter().map(|(_, samples)| part(samples)));
    let mut lost = Lost::default();
    for process in &counted.processes {
        lost.events = lost.events.saturating_add(process.lost.events);
        lost.stacks = lost.stacks.saturating_add(process.lost.stacks);
        lost.unfollowed = lost.unfollowed.saturating_add(process.lost.unfollowed);
        lost.unsampled = lost.unsampled.saturating_add(process.lost.unsampled);
    }
    Ok(Sampled {
        samples: known.iter().fold(0, |sum, (_, samples)| sum.saturating_add(samples.sampled)),
        latency: latency(known.iter().map(|(_, samples)| &samples.latency)),
        lifetimes: lifetimes(known.iter().map(|(_, samples)| &samples.lifetimes)),
        remote_share: by_frees(|samples| &samples.remote_share),
        remote_bytes_share: by_frees(|samples| &samples.remote_bytes_share),
        live_blocks: sum_of(|samples| samples.live_blocks),
        live_bytes: sum_of(|samples| samples.live_bytes),
        peak: Peak { pid: process.pid, bytes: largest.peak_bytes, at_ns: largest.peak_at_ns },
        sites: Callers::of(Code::of(counted)).sites(known.iter().flat_map(|(_, samples)| &samples.sites)),
        lost,
        spent_ns: known.iter().try_fold(0_u64, |sum, (_, samples)| {
            samples.spent_ns.as_ref().map(|spent| sum.saturating_add(*spent)).map_err(Clone::clone)
        }),
    })
}

fn latency<'s>(parts: impl Iterator<Item = &'s Measured<Vec<Latency>>>) -> Measured<Vec<Latency>> {
    let mut absent = None;
    let mut merged: BTreeMap<(CallKind, bool), Histogram> = BTreeMap::new();
    for part in parts {
        match part {
            Ok(list) => {
                list.iter().for_each(|one| merged.entry((one.kind, one.large)).or_default().merge(&one.times))
            }
            Err(why) => absent = absent.or(Some(why)),
        }
    }
    match absent {
        Some(why) if merged.is_empty() => Err(why.clone()),
        _ => Ok(merged.into_iter().map(|((kind, large), times)| Latency { kind, large, times }).collect()),
    }
}

fn lifetimes<'s>(parts: impl Iterator<Item = &'s Measured<Lifetimes>>) -> Measured<Lifetimes> {
    let mut absent = None;
    let mut merged = Lifetimes { by_blocks: Histogram::default(), by_bytes: Histogram::default() };
    for part in parts {
        match part {
            Ok(part) => {
                merged.by_blocks.merge(&part.by_blocks);
                merged.by_bytes.merge(&part.by_bytes);
            }
            Err(why) => absent = absent.or(Some(why)),
        }
    }
    match absent {
        Some(why) if merged.by_blocks.samples() == 0 => Err(why.clone()),
        _ => Ok(merged),
    }
}

impl Sampled {
    /// The part of all blocks that live for less than a millisecond. None if it is unknown.
    fn short_lived(&self) -> Option<f64> {
        let freed = &self.lifetimes.as_ref().ok()?.by_blocks;
        let all = freed.weight() + self.live_blocks.point;
        (all > 0.0).then(|| freed.share_between(0, MILLISECOND_NS) * freed.weight() / all)
    }

    /// Medians of allocations of small and of large blocks, if the large ones are a mode of their own.
    fn two_modes(&self) -> Option<(f64, f64)> {
        let of = |large: bool| {
            let list = self.latency.as_ref().ok()?;
            let one = list.iter().find(|one| one.kind == CallKind::Allocate && one.large == large)?;
            let median = one.times.quantile(0.5).ok()?.point;
            (one.times.samples() >= LEAST_OF_A_MODE).then_some(median)
        };
        let (small, large) = (of(false)?, of(true)?);
        (large >= OTHER_MODE * small).then_some((small, large))
    }
}

/// What stacks consist of.
#[derive(Clone, Copy)]
struct Code<'a> {
    modules: &'a [Module],
    frames: &'a [Frame],
    stacks: &'a [Stack],
}

impl<'a> Code<'a> {
    fn of(counted: &'a Counted) -> Code<'a> {
        Code { modules: &counted.modules, frames: &counted.frames, stacks: &counted.stacks }
    }

    fn module(self, frame: &Frame) -> Option<&'a Module> {
        self.modules.get(frame.module? as usize)
    }
}

/// Who calls the allocator.
struct Callers<'a> {
    code: Code<'a>,
    /// Of each frame.
    roles: Vec<Option<UserRole>>,
}

impl<'a> Callers<'a> {
    fn of(code: Code<'a>) -> Callers<'a> {
        let roles = code.frames.iter().map(|frame| user_role(code.module(frame), frame));
        Callers { code, roles: roles.collect() }
    }

    fn sites<'s>(&self, sites: impl Iterator<Item = &'s Site>) -> Vec<CallSite> {
        let mut by_function: BTreeMap<(String, String), Vec<&Site>> = BTreeMap::new();
        for site in sites {
            by_function.entry(self.function(&site.stack)).or_default().push(site);
        }
        let merged = by_function.into_iter().map(|((function, module), sites)| CallSite {
            function,
            module,
            samples: sites.iter().fold(0, |sum, site| sum.saturating_add(site.samples)),
            calls: sum(sites.iter().map(|site| site.calls)),
            bytes: sum(sites.iter().map(|site| site.bytes)),
            live_bytes: sum(sites.iter().map(|site| site.live_bytes)),
            remote_share: weighted(sites.iter().map(|site| (site.calls.point, &site.remote_share))),
        });
        merged.collect()
    }

    /// The function that requested the block, and its file: the first one outside the C library, the allocator, and the
    /// libraries of languages. If there is none, the first one outside the C library and the allocator.
    fn function(&self, stack: &Measured<u32>) -> (String, String) {
        let nothing = |why: &str| (why.to_owned(), String::new());
        let Ok(stack) = stack else { return nothing(NO_USER_STACK) };
        let Some(stack) = self.code.stacks.get(*stack as usize) else { return nothing(NO_SYMBOL) };
        let frames = || stack.frames.iter().copied().filter(move |&frame| !self.is_root(frame));
        let own = |&frame: &u32| self.frame(frame).is_some() && self.role(frame).is_none();
        let site = frames()
            .find(own)
            .or_else(|| frames().find(|frame| self.is_outside_libc(*frame)))
            .or_else(|| frames().find(|frame| stack.complete && self.name(*frame).is_some()));
        match site.and_then(|frame| self.frame(frame)) {
            Some(frame) => {
                let module = self.code.module(frame).map_or("", |module| module.path.as_str());
                let function = match &frame.symbol {
                    Some(symbol) => symbol.clone(),
                    None if module.is_empty() => GENERATED_CODE.to_owned(),
                    None => format!("{NO_SYMBOL} {:#x}", frame.offset),
                };
                (function, module.to_owned())
            }
            None if !stack.complete => nothing(NO_CALLERS),
            None => nothing(NO_SYMBOL),
        }
    }

    fn frame(&self, frame: u32) -> Option<&'a Frame> {
        self.code.frames.get(frame as usize)
    }

    fn name(&self, frame: u32) -> Option<&'a str> {
        self.frame(frame)?.symbol.as_deref()
    }

    fn role(&self, frame: u32) -> Option<UserRole> {
        self.roles.get(frame as usize).copied().flatten()
    }

    fn is_root(&self, frame: u32) -> bool {
        self.name(frame).is_some_and(symbols::is_root)
    }

    fn is_outside_libc(&self, frame: u32) -> bool {
        let of_libc = matches!(
            self.frame(frame).and_then(|frame| self.code.module(frame)).map(|module| module.role),
            Some(
                ModuleRole::Libc
                    | ModuleRole::Loader
                    | ModuleRole::Allocator(_)
                    | ModuleRole::Counter
                    | ModuleRole::Vdso
            )
        );
        let plain = matches!(self.role(frame), None | Some(UserRole::Plumbing | UserRole::Interpreter));
        self.name(frame).is_some() && !of_libc && plain
    }
}

fn module_of<'a>(counted: &'a Counted, frame: &Frame) -> Option<&'a Module> {
    Code::of(counted).module(frame)
}

/// The function of a frame, else its file in brackets.
fn label(module: Option<&Module>, frame: &Frame) -> String {
    match &frame.symbol {
        Some(symbol) => symbol.clone(),
        None => format!("[{}]", module.map_or("unknown", |module| basename(&module.path))),
    }
}

pub(crate) fn basename(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// A number of calls a second.
fn rate(per_second: f64) -> String {
    if per_second < 10.0 { format!("{per_second:.1}") } else { thousands(per_second.round() as u64) }
}

pub(crate) fn percent(share: f64) -> String {
    format!("{} %", percent_number(share))
}

fn percents(low: f64, high: f64) -> String {
    format!("{} to {} %", percent_number(low), percent_number(high))
}

/// From 10 % on without decimals.
fn percent_number(share: f64) -> String {
    let percent = share * 100.0;
    if percent >= 9.95 { format!("{percent:.0}") } else { format!("{percent:.1}") }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use allocwall_model::allocations::{CLASSES, Point, ThreadCount, class_of};
    use allocwall_model::recording::Price;

    const SECOND_NS: u64 = 1_000_000_000;

    fn around(point: f64) -> Interval {
        Interval::new(point * 0.9, point, point * 1.1)
    }

    fn histogram(values: &[(u64, usize)]) -> Histogram {
        let mut histogram = Histogram::default();
        for (value, times) in values {
            (0..*times).for_each(|_| histogram.add(*value, 1.0, 0.01));
        }
        histogram
    }

    fn latency(kind: CallKind, large: bool, values: &[(u64, usize)]) -> Latency {
        Latency { kind, large, times: histogram(values) }
    }

    fn site(stack: Measured<u32>, calls: f64, bytes: f64, remote: f64) -> Site {
        Site {
            stack,
            samples: (calls / 1000.0) as u64,
            calls: around(calls),
            bytes: around(bytes),
            live_bytes: around(bytes / 100.0),
            remote_share: Ok(around(remote)),
        }
    }

    fn samples() -> Samples {
        let unread = Absence::new(Reason::TooCostly, "the stack was overwritten before it was read");
        Samples {
            distance: 512 << 10,
            sampled: 9000,
            spent_ns: Ok(30_000_000),
            blocks: around(7_512_000.0),
            bytes: around(4.3e9),
            latency: Ok(vec![
                latency(CallKind::Allocate, false, &[(12, 1900), (120, 90), (1_500, 10)]),
                latency(CallKind::Allocate, true, &[(5_200, 80), (9_000, 20)]),
                latency(CallKind::Free, false, &[(19, 1000)]),
            ]),
            lifetimes: Ok(Lifetimes {
                by_blocks: histogram(&[(20_000, 900), (30_000_000, 60), (2_000_000_000, 40)]),
                by_bytes: histogram(&[(20_000, 500), (30_000_000, 300), (2_000_000_000, 200)]),
            }),
            remote_share: Ok(Interval::new(0.31, 0.34, 0.37)),
            remote_bytes_share: Ok(Interval::new(0.10, 0.12, 0.14)),
            live_blocks: around(2_000.0),
            live_bytes: around(40e6),
            peak_bytes: around(90e6),
            peak_at_ns: 3 * SECOND_NS,
            lives: Default::default(),
            sites: vec![
                site(Ok(0), 4_000_000.0, 3.0e9, 0.5),
                site(Ok(1), 3_000_000.0, 1.0e9, 0.2),
                site(Ok(2), 400_000.0, 2.0e8, 0.0),
                site(Err(unread), 112_000.0, 1.0e8, 0.1),
            ],
        }
    }

    fn thread(tid: Option<i32>, threads: u64, name: &str, calls: Calls) -> ThreadCount {
        ThreadCount { tid, threads, name: Ok(name.into()), ended: false, calls }
    }

    fn process(pid: i32, calls: Calls, classes: &[(u64, u64)], samples: Measured<Samples>) -> CountedProcess {
        let mut counts = vec![0; CLASSES];
        classes.iter().for_each(|(size, count)| counts[class_of(*size)] += count);
        CountedProcess {
            pid,
            number: 0,
            command: Ok(vec!["/usr/bin/service".into(), "--port".into(), "80\u{1b}[2J".into()]),
            program: Ok("/usr/bin/service".into()),
            allocator: Ok("/usr/lib/x86_64-linux-gnu/libc.so.6".into()),
            from_ns: 0,
            over_ns: 12_300_000_000,
            ended: true,
            calls,
            classes: counts,
            threads: vec![],
            threads_left_out: 0,
            samples,
            lost: Lost::default(),
            missing: vec![],
        }
    }

    fn module(path: &str, role: ModuleRole) -> Module {
        Module { path: path.into(), build_id: None, role, malloc_ranges: vec![], has_symbols: true }
    }

    fn frame(module: u32, symbol: Option<&str>, offset: u64) -> Frame {
        Frame { module: Some(module), symbol: symbol.map(String::from), offset }
    }

    /// A service and a small child of it: most bytes are in large blocks, and another thread frees a third of the blocks.
    pub fn run() -> Run {
        let calls = Calls {
            malloc: 7_400_000,
            calloc: 100_000,
            aligned: 2_000,
            realloc_new: 10_000,
            in_place: 1_200,
            moved: 800,
            remapped: 3,
            frees: 7_510_000,
            free_null: 120,
            bytes: 4_300_000_000,
            realloc_bytes: 80_000_000,
            copied_bytes: 40_000_000,
            ..Calls::default()
        };
        let sizes = [(48, 6_000_000), (300, 1_200_000), (4096, 300_000), (200_000, 12_000)];
        let mut service = process(4242, calls, &sizes, Ok(samples()));
        let part = Calls { malloc: 2_000_000, frees: 4_000_000, bytes: 1_000_000_000, ..Calls::default() };
        let rest = Calls { malloc: 5_400_000, frees: 3_510_000, bytes: 3_300_000_000, ..calls };
        service.threads = vec![
            thread(Some(4243), 1, "worker\u{1b}[2J-with-a-long-name", rest),
            thread(Some(4244), 40, "short-lived", part),
            thread(None, 0, "", Calls { malloc: 5, ..Calls::default() }),
        ];
        let little = Calls { malloc: 12_000, frees: 11_000, bytes: 600_000, ..Calls::default() };
        let nothing = Absence::new(Reason::TooLittle, "no call was sampled");
        let child = process(4250, little, &[(48, 12_000)], Err(nothing));
        let price = |name: &str, ns: f64| Price {
            name: name.into(),
            ns: Interval::new(ns - 2.0, ns, ns + 2.0),
            repetitions: 9,
        };
        Run {
            command: vec!["service".into(), "--port".into(), "80\u{1b}[2J".into()],
            counted: Counted {
                length_ns: 12_300_000_000,
                processes: vec![service, child],
                further: None,
                series: vec![Point { t_ns: SECOND_NS, over_ns: SECOND_NS, calls: 9, frees: 8, bytes: 7 }],
                modules: vec![
                    module("/usr/bin/service", ModuleRole::Other),
                    module("/usr/lib/x86_64-linux-gnu/libc.so.6", ModuleRole::Libc),
                    module("/opt/plugins/libplugin.so", ModuleRole::Other),
                ],
                frames: vec![
                    frame(0, Some("parse_record"), 0x100),
                    frame(0, Some("main"), 0x200),
                    frame(1, Some("strdup"), 0x300),
                    frame(1, Some("__libc_start_main"), 0x400),
                    frame(2, None, 0x1a2b),
                ],
                stacks: vec![
                    Stack { frames: vec![0, 1, 3], complete: true },
                    Stack { frames: vec![2, 0, 1, 3], complete: true },
                    Stack { frames: vec![4], complete: false },
                ],
                missing: vec![],
            },
            ended: Ended::TargetExited { status: Some("exit status 0".into()) },
            cpu_s: Ok(10.0),
            prices: Ok(PriceList {
                measured_unix_s: 0,
                machine: "m".into(),
                prices: vec![price(MALLOC_CACHED, 20.0), price(MALLOC_ARENA, 65.0)],
                absent: vec![],
            }),
            counting_ns: Err(Absence::new(Reason::NotSupported, "not measured on this machine")),
            units: Some(100_000),
        }
    }

    #[test]
    fn what_stands_out_is_in_the_sentence() {
        let run = run();
        let sentence = Summary::of(&run).sentence();
        for part in [
            "1,223,334 calls a second request 339.6 MiB a second and take 1.4 to 5.0 % of the CPU time",
            "blocks of 128 KiB to 1 MiB have 59 % of the bytes of new blocks",
            "another thread frees 34 % of the blocks",
            "88 % of the blocks live for less than 1 ms",
            "976 blocks a second are above 128 KiB",
        ] {
            assert!(sentence.contains(part), "{part}: {sentence}");
        }
        assert!(!sentence.contains("realloc"), "{sentence}");
    }

    #[test]
    fn a_plain_program_has_nothing_that_stands_out() {
        let mut run = run();
        run.counted.processes.truncate(1);
        let process = &mut run.counted.processes[0];
        process.classes = vec![0; CLASSES];
        for size in [48, 100, 200, 300] {
            process.classes[class_of(size)] = 600_000_000 / size;
        }
        let samples = process.samples.as_mut().unwrap();
        samples.remote_share = Ok(Interval::new(0.01, 0.2, 0.4));
        samples.lifetimes.as_mut().unwrap().by_blocks = histogram(&[(20_000, 700), (2_000_000_000, 300)]);
        let sentence = Summary::of(&run).sentence();
        assert!(sentence.ends_with("; nothing stands out."), "{sentence}");
        // The near twin: realloc copies more than a fifth of the bytes.
        run.counted.processes[0].calls.copied_bytes = 900_000_000;
        let sentence = Summary::of(&run).sentence();
        assert!(sentence.ends_with("; what stands out: realloc copies 69.8 MiB a second."), "{sentence}");
        // Most bytes are those of resized blocks, most of them in place.
        let calls = &mut run.counted.processes[0].calls;
        calls.realloc_bytes = 3 * calls.bytes;
        let sentence = Summary::of(&run).sentence();
        assert!(sentence.contains("; what stands out: realloc requests 75 % of all bytes"), "{sentence}");
    }

    #[test]
    fn large_blocks_stand_out_only_where_glibc_serves_them() {
        let mut run = run();
        let stands_out = |run: &Run| Summary::of(run).sentence().contains("above 128 KiB");
        assert!(stands_out(&run));
        run.counted.processes[0].allocator = Ok("/usr/lib/libjemalloc.so.2".into());
        assert!(!stands_out(&run));
    }

    #[test]
    fn rows_hold_every_class_once() {
        let rows = size_rows(&[1; CLASSES]);
        assert_eq!(rows.iter().map(|row| row.calls).sum::<u64>(), CLASSES as u64);
        for (row, next) in rows.iter().zip(&rows[1..]) {
            assert_eq!(row.up_to, Some(next.above));
        }
        let titles: Vec<String> = rows.iter().map(SizeRow::title).collect();
        assert_eq!(
            titles,
            [
                "up to 64 B",
                "64 to 128 B",
                "128 to 256 B",
                "256 to 512 B",
                "512 B to 1 KiB",
                "1 to 4 KiB",
                "4 to 32 KiB",
                "32 to 128 KiB",
                "128 KiB to 1 MiB",
                "1 to 32 MiB",
                "above 32 MiB",
            ]
        );
        // A size at a bound belongs to the row that ends there.
        let mut classes = vec![0; CLASSES];
        classes[class_of(LARGE)] = 1;
        assert_eq!(size_rows(&classes)[0].up_to, Some(LARGE));
        classes[class_of(LARGE + 1)] = 2;
        assert_eq!(size_rows(&classes)[1].above, LARGE);
        assert!(size_rows(&[0; CLASSES]).is_empty());
    }

    #[test]
    fn bytes_of_a_row_lie_between_the_bounds_of_its_classes() {
        let mut classes = vec![0; CLASSES];
        classes[class_of(48)] = 10;
        assert_eq!(size_rows(&classes)[0].bytes, Interval::new(330.0, 405.0, 480.0));
        classes[CLASSES - 1] = u64::MAX;
        assert!(size_rows(&classes)[1].bytes.high.is_finite());
    }

    #[test]
    fn a_share_of_cpu_time_needs_prices_and_the_c_library() {
        let why = |run: &Run| Summary::of(run).cpu_share.unwrap_err().reason;
        let share = Summary::of(&run()).cpu_share.unwrap();
        assert!((share.low - 0.0135).abs() < 0.001 && (share.high - 0.0504).abs() < 0.001, "{share:?}");
        let mut other = run();
        other.counted.processes[1].allocator = Ok("/usr/lib/libmimalloc.so.3".into());
        assert_eq!(why(&other), Reason::NotApplicable);
        // It made no call.
        other.counted.processes[1].calls = Calls::default();
        assert!(Summary::of(&other).cpu_share.is_ok());
        let mut without = run();
        without.prices.as_mut().unwrap().prices.truncate(1);
        assert_eq!(why(&without), Reason::NotFound);
        let mut short = run();
        short.cpu_s = Ok(0.05);
        assert_eq!(why(&short), Reason::TooLittle);
        short.cpu_s = Ok(0.25);
        assert_eq!(Summary::of(&short).cpu_share.unwrap().high, 1.0);
    }

    #[test]
    fn units_of_work_are_judged_by_their_allocations() {
        let judged = |units: u64| {
            let run = Run { units: Some(units), ..run() };
            Summary::of(&run).work.unwrap().judgement().0
        };
        assert_eq!([100_000, 500_000, 1_000_000].map(judged), ["possible", "between", "unlikely"]);
        let marked = |marks: u64| {
            let mut run = Run { units: None, ..run() };
            run.counted.processes[0].calls.marks = marks;
            Summary::of(&run).work
        };
        assert_eq!(marked(1000).unwrap().source, WorkSource::Marks);
        assert_eq!(marked(0).unwrap_err().mend.len(), 2);
    }

    #[test]
    fn estimates_of_several_processes_are_one() {
        let one = sampled(&run().counted).unwrap();
        let mut counted = run().counted;
        let mut second = process(5000, Calls { frees: 7_510_000, ..Calls::default() }, &[], Ok(samples()));
        let of_second = second.samples.as_mut().unwrap();
        of_second.remote_share = Ok(Interval::exact(0.0));
        of_second.peak_bytes = around(95e6);
        counted.processes.push(second);
        let both = sampled(&counted).unwrap();
        assert_eq!((both.samples, both.peak.pid, one.peak.pid), (18_000, 5000, 4242));
        assert_eq!(both.live_bytes.point, 2.0 * one.live_bytes.point);
        // Errors that are independent.
        let wider = both.live_bytes.half_width() / one.live_bytes.half_width();
        assert!((wider - 2_f64.sqrt()).abs() < 1e-9, "{wider}");
        let share = both.remote_share.clone().unwrap();
        assert!((share.point - 0.17).abs() < 1e-9 && (share.high - 0.185).abs() < 1e-9, "{share:?}");
        let samples_of = |sampled: &Sampled| sampled.latency.as_ref().unwrap()[0].times.samples();
        assert_eq!(samples_of(&both), 2 * samples_of(&one));
        let lives = |sampled: &Sampled| sampled.lifetimes.as_ref().unwrap().by_blocks.samples();
        assert_eq!(lives(&both), 2 * lives(&one));
        assert_eq!(both.sites.len(), one.sites.len());
    }

    #[test]
    fn a_process_without_samples_takes_nothing_from_the_others() {
        let mut counted = run().counted;
        counted.processes.swap(0, 1);
        assert_eq!(sampled(&counted).unwrap().samples, 9000);
        counted.processes.truncate(1);
        assert_eq!(sampled(&counted).unwrap_err().reason, Reason::TooLittle);
        counted.processes.clear();
        assert!(sampled(&counted).unwrap_err().detail.contains("no call was counted"));
        let mut counted = run().counted;
        let samples = counted.processes[0].samples.as_mut().unwrap();
        samples.latency = Err(Absence::new(Reason::NotSupported, "the clock has no known rate"));
        assert_eq!(sampled(&counted).unwrap().latency.unwrap_err().reason, Reason::NotSupported);
    }

    #[test]
    fn a_call_site_is_a_function_of_the_program() {
        let run = run();
        let sites = sampled(&run.counted).unwrap().sites;
        let of = |function: &str| {
            sites.iter().find(|site| site.function == function).unwrap_or_else(|| panic!("{sites:?}"))
        };
        // Its own calls, and those of strdup in the C library.
        let parse = of("parse_record");
        assert_eq!((parse.calls.point, parse.module.as_str()), (7_000_000.0, "/usr/bin/service"));
        assert!((parse.remote_share.as_ref().unwrap().point - (4.0 * 0.5 + 3.0 * 0.2) / 7.0).abs() < 1e-9);
        assert_eq!(of("(no symbol) 0x1a2b").module, "/opt/plugins/libplugin.so");
        assert_eq!(of(NO_USER_STACK).calls.point, 112_000.0);
        assert_eq!(sites.len(), 3);
    }

    #[test]
    fn a_stack_that_ends_in_the_c_library_names_no_caller() {
        let mut counted = run().counted;
        let function = |counted: &Counted, stack: u32| Callers::of(Code::of(counted)).function(&Ok(stack)).0;
        counted.stacks[2] = Stack { frames: vec![2], complete: false };
        assert_eq!(function(&counted, 2), NO_CALLERS);
        counted.stacks[2].complete = true;
        assert_eq!(function(&counted, 2), "strdup");
        counted.stacks[2].frames = vec![9999];
        assert_eq!(function(&counted, 2), NO_SYMBOL);
        assert_eq!(function(&counted, 9999), NO_SYMBOL);
        counted.frames[0].module = None;
        counted.frames[0].symbol = None;
        assert_eq!(function(&counted, 0), GENERATED_CODE);
    }

    #[test]
    fn modes_need_samples_and_a_difference() {
        let mut sampled = sampled(&run().counted).unwrap();
        let (small, large) = sampled.two_modes().unwrap();
        assert!((11.0..13.0).contains(&small) && (4_800.0..5_700.0).contains(&large), "{small} {large}");
        let mut set = |values: &[(u64, usize)]| {
            sampled.latency.as_mut().unwrap()[1].times = histogram(values);
            sampled.two_modes()
        };
        assert_eq!((set(&[(40, 100)]), set(&[(5_200, 10)])), (None, None));
        assert!(set(&[(5_200, 100)]).is_some());
    }
}
