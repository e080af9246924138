//! Writes the sentence of the verdict, and the next commands.

use super::bill::stripped_runtime;
use super::context::{Context, Served, TopSite, count, percent, percent_interval};
use super::expected;
use super::judge::Judged;
use super::remedies::{given_command, trial_of_command, trial_of_start};
use super::rungs::{UNCOUNTED, named, rate_of_calls, storage_place};
use super::{Finding, Prescription, Reach, ShellLine, Status, Whole};
use allocwall_model::catalogue::cost::{CostClass, WaitClass};
use allocwall_model::catalogue::remedies::{self, Effect, Kind, Need, Remedy};
use allocwall_model::catalogue::thresholds;
use allocwall_model::catalogue::walls::Wall;
use allocwall_model::units::{Absence, Reason, plural};

/// Longer names of call sites are cut. C++ and Rust names can have hundreds of characters.
const LONGEST_NAME: usize = 40;

/// A longer sentence is hard to read.
pub const LONGEST_SENTENCE: usize = 200;

#[derive(Default)]
pub struct Sentence {
    pub text: String,
    /// See [`Verdict::site`](super::Verdict::site).
    pub site: Option<String>,
}

impl From<String> for Sentence {
    fn from(text: String) -> Self {
        Sentence { text, site: None }
    }
}

pub fn write(ctx: &Context, judged: &[Judged], walls: &[Wall], remedies: &[Prescription]) -> Sentence {
    if let Some(why) = ctx.unjudged() {
        return fitting([
            format!("No verdict: {}.", why.detail).into(),
            "No verdict: the target was stopped most of the time.".to_owned().into(),
        ]);
    }
    let Some(&worst) = walls.first() else {
        return no_wall(ctx, judged, remedies);
    };
    let others = others(walls, worst);
    let (named, counted) = (also(ctx, judged, &others, others.len()), also(ctx, judged, &others, 1));
    let only_counted = also(ctx, judged, &others, 0);
    let hidden = hidden(ctx, judged);
    let [with_place, without] = [true, false].map(|place| wall_sentence(ctx, judged, worst, place));
    fitting([
        format!("{with_place}{hidden}{named}").into(),
        format!("{with_place}{hidden}{counted}").into(),
        format!("{without}{hidden}{named}").into(),
        format!("{without}{hidden}{counted}").into(),
        format!("{without}{hidden}{only_counted}").into(),
        format!("{without}{only_counted}").into(),
        without.into(),
    ])
}

/// The walls after the worst one, without those that are the same CPU time as one before them.
fn others(walls: &[Wall], worst: Wall) -> Vec<Wall> {
    let mut listed = vec![worst];
    for wall in walls.iter().skip(1).filter(|wall| **wall != Wall::Waiting) {
        if !listed.iter().any(|before| same_time(*before, *wall)) {
            listed.push(*wall);
        }
    }
    listed.split_off(1)
}

/// What the walls that were found leave open: memory walls that may hide in kernel time without symbols.
fn hidden(ctx: &Context, judged: &[Judged]) -> String {
    let not_measured = |wall: &Wall| find(judged, *wall).is_some_and(|f| f.status == Status::NotMeasured);
    if !much_unnamed(ctx) || !MEMORY.iter().any(not_measured) {
        return String::new();
    }
    let unnamed = unnamed(ctx);
    format!(" Undecided: {unnamed} of CPU, {}{}.", CostClass::UnnamedKernel.title(), as_root_too(ctx))
}

/// The kernel time without symbols, as the bill has it.
fn unnamed(ctx: &Context) -> String {
    let line = ctx.cpu(&[CostClass::UnnamedKernel]);
    percent(line.map_or_else(|_| ctx.unnamed_kernel(), |sum| sum.named.point))
}

/// What shows the kernel time without symbols.
fn as_root_too(ctx: &Context) -> &'static str {
    if ctx.recording.host.euid == 0 { "" } else { "; run as root" }
}

/// Returns the first sentence that is short enough, else the last one. The caller sorts them, longest first.
fn fitting<const N: usize>(sentences: [Sentence; N]) -> Sentence {
    let fits = |sentence: &Sentence| sentence.text.chars().count() <= LONGEST_SENTENCE;
    let at = sentences.iter().position(fits).unwrap_or(N - 1);
    sentences.into_iter().nth(at).unwrap_or_default()
}

/// The first `named` of these walls with what they take, and the number of the rest.
fn also(ctx: &Context, judged: &[Judged], walls: &[Wall], named: usize) -> String {
    if walls.is_empty() {
        return String::new();
    }
    let (named, rest) = walls.split_at(named.min(walls.len()));
    let took = |wall: &Wall| {
        let share = find(judged, *wall).and_then(|f| f.share);
        takes(ctx, judged, *wall, &share.map_or_else(|| "part".to_owned(), |s| percent(s.point)))
    };
    let more = match rest.len() {
        0 => None,
        n => Some(format!("{n} more {}", plural(n as u64, "wall"))),
    };
    let parts: Vec<String> = named.iter().map(took).chain(more).collect();
    format!(" Also: {}.", parts.join("; "))
}

/// A contributor with its interval: `map churn takes 9 % (8–10 %) of CPU`.
fn contribution(ctx: &Context, judged: &[Judged], wall: Wall) -> String {
    takes(ctx, judged, wall, &share(judged, wall))
}

/// What a wall takes, and of what. `s` is its share as text.
fn takes(ctx: &Context, judged: &[Judged], wall: Wall, s: &str) -> String {
    match wall {
        Wall::CgroupThrottling => format!("the cgroup's CPU quota takes {s} of runnable time"),
        Wall::Steal => format!("steal takes {s} of runnable time"),
        Wall::RunQueue => format!("waits for a CPU take {s} of runnable time"),
        Wall::Disk => format!("waits for storage take {s} of working time"),
        Wall::Network => format!("{s} of the TCP segments are sent again"),
        Wall::ApplicationLock => format!("application locks take {s} of working time"),
        Wall::Gil => format!("waits for Python's GIL take {s} of working time"),
        Wall::AddressSpaceLock => format!("the address-space lock takes {s} of working time"),
        Wall::AllocatorContention => format!("waits in the allocator take {s} of working time"),
        Wall::Retention => format!("{s} of resident memory is free, but not returned to the system"),
        Wall::Numa if find(judged, wall).is_some_and(|f| f.of == Whole::Resident) => {
            format!("{s} of the memory is on another NUMA node than the CPUs that use it")
        }
        Wall::Numa => format!("loads from other NUMA nodes take {s} of CPU"),
        Wall::KernelSlab => format!("the kernel's own allocator takes {s} of CPU"),
        Wall::CallRate if collector_is_part(ctx, judged) => {
            format!("{s} of CPU goes to allocation and garbage collection together")
        }
        Wall::CallRate => format!("allocating and freeing takes {s} of CPU"),
        Wall::LargeAllocations => format!("filling and copying blocks takes {s} of CPU"),
        Wall::AllocatorCode => format!("the allocator's slow paths take {s} of CPU"),
        Wall::GarbageCollector => format!("the garbage collector takes {s} of CPU"),
        Wall::FileFault if ctx.faults_shared_memory() => {
            format!("page faults on shared memory take {s} of CPU")
        }
        Wall::Fork | Wall::FileFault => format!("{} take {s} of CPU", wall.title()),
        Wall::Waiting | Wall::FirstTouch | Wall::MapChurn | Wall::Tlb => {
            format!("{} takes {s} of CPU", wall.title())
        }
    }
}

/// Whether the collector of a stripped runtime may be part of the time that counts as allocation.
fn collector_is_part(ctx: &Context, judged: &[Judged]) -> bool {
    // If the calls are not counted, malloc's own time leads, and that holds no collector.
    let stripped = |f: &Finding| f.estimate.as_deref().is_some_and(|estimate| estimate != UNCOUNTED);
    let estimated = find(judged, Wall::CallRate).is_some_and(stripped);
    estimated && stripped_runtime(ctx.recording).is_some_and(|runtime| !runtime.collector_read)
}

fn same_time(a: Wall, b: Wall) -> bool {
    let allocator = |w| matches!(w, Wall::CallRate | Wall::AllocatorCode | Wall::AllocatorContention);
    allocator(a) && allocator(b)
}

fn find(judged: &[Judged], wall: Wall) -> Option<&Finding> {
    judged.iter().map(|j| &j.finding).find(|f| f.wall == wall)
}

fn share(judged: &[Judged], wall: Wall) -> String {
    find(judged, wall).and_then(|f| f.share).map_or_else(|| "?".to_owned(), percent_interval)
}

/// A part is named with its figure from this share on, if its interval does not reach further below than `SHARP`.
const PART: f64 = 0.2;
const SHARP: f64 = 0.15;
const MOST: f64 = 0.5;

fn from(top: Option<TopSite>) -> String {
    match top {
        Some(site) if site.least >= MOST => format!(", most of it from `{}`", name(&site.name)),
        Some(site) if site.part >= PART && site.part - site.least <= SHARP => {
            format!(", {} of it from `{}`", percent(site.part), name(&site.name))
        }
        _ => String::new(),
    }
}

fn name(site: &str) -> String {
    if site.chars().count() <= LONGEST_NAME {
        return site.to_owned();
    }
    let brief = brief(site);
    if brief.chars().count() <= LONGEST_NAME {
        return brief;
    }
    if let Some(end) = end_of_path(&brief) {
        return format!("…{end}");
    }
    let cut: String = brief.chars().take(LONGEST_NAME - 1).collect();
    format!("{cut}…")
}

/// The last parts of a path of modules, as many as can be shown: the function is at its end.
fn end_of_path(brief: &str) -> Option<&str> {
    let is_path = !brief.starts_with('<') && !brief.contains(' ');
    let mut ends = brief.match_indices("::").map(|(at, _)| &brief[at..]);
    ends.find(|end| is_path && end.chars().count() < LONGEST_NAME)
}

/// A C++ or Rust function without its arguments and those of its templates: `std::_Rb_tree<…>::_M_insert_unique`. They
/// are most of a long name, and cutting the name would leave only them.
fn brief(site: &str) -> String {
    // A Rust method of a trait begins with `<`, and its type is in the brackets.
    if !site.contains("::") || site.contains("operator") || site.starts_with('<') {
        return site.to_owned();
    }
    let mut brief = String::new();
    let (mut depth, mut before) = (0_u32, ' ');
    for c in site.chars() {
        match c {
            '<' => {
                if depth == 0 {
                    brief.push_str("<…>");
                }
                depth += 1;
            }
            '>' if before != '-' => depth = depth.saturating_sub(1),
            _ if depth == 0 => brief.push(c),
            _ => {}
        }
        before = c;
    }
    let end = arguments_at(&brief).unwrap_or(brief.len());
    brief.truncate(end);
    brief
}

/// Where the list of arguments begins that is the end of this name.
fn arguments_at(name: &str) -> Option<usize> {
    if !name.ends_with(')') || name.ends_with("(anonymous namespace)") {
        return None;
    }
    let mut depth = 0_u32;
    for (at, c) in name.char_indices().rev() {
        match c {
            ')' => depth += 1,
            '(' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return (at > 0).then_some(at);
        }
    }
    None
}

/// `place`: whether to name the call site.
fn wall_sentence(ctx: &Context, judged: &[Judged], wall: Wall, place: bool) -> String {
    use CostClass::*;
    let s = share(judged, wall);
    let from_lock = || {
        let top = place.then(|| ctx.top_lock_site(&[AllocatorLocks], WaitClass::Allocator));
        from(top.flatten())
    };
    let from = |ctx: &Context, classes: &[CostClass]| from(place.then(|| ctx.top_site(classes)).flatten());
    match wall {
        Wall::CgroupThrottling => format!(
            "The cgroup's CPU quota is the wall: it stopped the target for {s} of the time in which it could have run."
        ),
        Wall::Steal => format!(
            "The hypervisor is the wall: it ran other machines for {s} of the time in which the target could have run."
        ),
        Wall::RunQueue => format!(
            "Run-queue wait is the wall: the target waited for a CPU for {s} of the time in which it could have run{}.",
            if place { competitor(ctx) } else { String::new() }
        ),
        Wall::Waiting => format!(
            "This is not a CPU problem: the target used {:.2} CPUs and waited {s} of the time{}.",
            ctx.cpu_rate,
            waits_for(ctx)
        ),
        Wall::Disk => {
            let (wall, place) = storage_place(ctx);
            format!(
                "{wall} is the wall: threads spend {s} of their working time waiting for storage; {place}."
            )
        }
        Wall::Network => {
            format!(
                "The network is the wall: {s} of the TCP segments of its network namespace are sent again."
            )
        }
        Wall::ApplicationLock => format!(
            "The application's own locks are the wall, not the allocator: threads spend {s} of their working time waiting for them."
        ),
        Wall::Gil => {
            format!("Python's GIL is the wall: threads spend {s} of their working time waiting for it.")
        }
        Wall::GarbageCollector => {
            format!("The garbage collector is the wall: it uses {s} of CPU{}.", from(ctx, wall.lines()))
        }
        Wall::FirstTouch => format!(
            "First touch is the wall: {s} of CPU goes to faulting in and zeroing fresh pages{}.",
            from(ctx, wall.lines())
        ),
        Wall::Fork => format!(
            "Fork is the wall: {s} of CPU goes to forks, and to copying the pages that they share{}.",
            from(ctx, wall.lines())
        ),
        Wall::FileFault if ctx.faults_shared_memory() => format!(
            "Page faults on shared memory are the wall: {s} of CPU goes to mapping its pages{}.",
            from(ctx, wall.lines())
        ),
        Wall::FileFault => format!(
            "File page faults are the wall: {s} of CPU goes to mapping pages of files{}.",
            from(ctx, wall.lines())
        ),
        Wall::MapChurn => format!(
            "Map churn is the wall: {s} of CPU goes to mapping memory and returning it to the kernel{}.",
            from(ctx, wall.lines())
        ),
        Wall::AddressSpaceLock => format!(
            "The address-space lock is the wall: threads spend {s} of their working time waiting for it."
        ),
        Wall::Tlb => format!("The TLB is the wall: {s} of CPU goes to page walks after TLB misses."),
        Wall::Numa => format!("NUMA is the wall: {}.", takes(ctx, judged, wall, &s)),
        Wall::KernelSlab => format!(
            "The kernel's own allocator is the wall: {s} of CPU goes to making and freeing its objects for {}{}.",
            objects(ctx),
            from(ctx, wall.lines())
        ),
        Wall::CallRate => {
            let place = from(ctx, wall.lines());
            let uncounted = |finding: &Finding| finding.estimate.as_deref() == Some(UNCOUNTED);
            let rate = rate_of_calls(ctx);
            let unknown = if find(judged, wall).is_some_and(uncounted) {
                "; it is unknown whether the calls are too many or too slow"
            } else if rate.is_none() {
                "; the number of calls is not known"
            } else {
                ""
            };
            let rate = rate.map_or_else(String::new, |rate| format!(", {rate}"));
            format!("Call rate is the wall: {s} of CPU goes to allocating and freeing{rate}{place}{unknown}.")
        }
        Wall::LargeAllocations => format!(
            "Large allocations are the wall: {s} of CPU goes to filling and copying blocks, not to the number of calls{}.",
            from(ctx, wall.lines())
        ),
        Wall::AllocatorCode => {
            let place = from(ctx, wall.lines());
            let why = match ctx.served().0 {
                Served::Unknown => "few calls were counted, so each one is slow",
                Served::Cached | Served::Mixed | Served::Missing => "calls miss its thread cache",
            };
            format!("The allocator's code is the wall: it uses {s} of CPU{place}; {why}.")
        }
        Wall::AllocatorContention => format!(
            "Allocator contention is the wall: threads spend {s} of their working time waiting for its locks{}.",
            from_lock()
        ),
        Wall::Retention => format!(
            "Retention is the wall: {s} of resident memory is free, but not returned to the system. It costs memory, not time."
        ),
    }
}

/// What the kernel's own allocator works for most, if its callers show it.
fn objects(ctx: &Context) -> &'static str {
    let slab = ctx.slab();
    let most = slab.all as f64 * MOST;
    let kinds = [
        (slab.messages, "messages on sockets"),
        (slab.connections, "sockets and pipes"),
        (slab.files, "files and names"),
    ];
    let kind = kinds.into_iter().find(|(samples, _)| *samples as f64 > most);
    kind.map_or("sockets, messages and files", |(_, kind)| kind)
}

/// The process that used most of the CPU time of all others. None of them may have used most of it.
fn competitor(ctx: &Context) -> String {
    let all = ctx.others_cpu_ns().unwrap_or(0.0);
    match ctx.recording.neighbours.iter().max_by_key(|n| n.cpu_ns) {
        Some(most) if most.cpu_ns as f64 > all * MOST && most.cpu_ns as f64 / 1e9 / ctx.window_s > 0.01 => {
            format!(", mostly because of {}", named(most))
        }
        _ => String::new(),
    }
}

/// What the target waited for most of its waiting time, if one thing surely has most of it.
pub fn waits_for(ctx: &Context) -> String {
    const REASONS: [(&[WaitClass], &str); 5] = [
        (&[WaitClass::Stopped], ", mostly stopped by a signal, a tracer or a freezer"),
        (&[WaitClass::Storage], ", mostly for storage"),
        (&[WaitClass::Idle], ", mostly for work, the network or a timer"),
        (&[WaitClass::ApplicationLock, WaitClass::Gil], ", mostly for other threads"),
        (&[WaitClass::Allocator, WaitClass::AddressSpaceLock, WaitClass::Other], ""),
    ];
    let all: f64 = REASONS.iter().flat_map(|(classes, _)| *classes).map(|class| ctx.wait_point(*class)).sum();
    // Futex waits of unknown purpose may be those of idle threads.
    let surely = |class: &WaitClass| {
        let known = match class {
            WaitClass::ApplicationLock => 1.0 - ctx.unknown_part_of_locks(),
            _ => 1.0,
        };
        ctx.wait(*class).map_or(0.0, |time| time.low * known)
    };
    let most = REASONS.iter().find(|(classes, _)| classes.iter().map(surely).sum::<f64>() > all * MOST);
    most.map_or_else(String::new, |(_, text)| (*text).to_owned())
}

/// The memory walls that must be measured for a decision.
const MEMORY: [Wall; 6] =
    [Wall::FirstTouch, Wall::Fork, Wall::FileFault, Wall::MapChurn, Wall::KernelSlab, Wall::CallRate];

/// Whether findings without a wall are a decision.
pub fn reach<'a>(ctx: &Context, findings: impl Iterator<Item = &'a Finding>) -> Reach {
    let unknown = findings.filter(|f| MEMORY.contains(&f.wall) && f.status == Status::NotMeasured).count();
    let all = unknown == MEMORY.len();
    if all && ctx.cpu(&[CostClass::Application]).is_err() {
        Reach::NotSampled
    } else if all || unknown > 0 && much_unnamed(ctx) {
        Reach::Undecided
    } else {
        Reach::Decided
    }
}

/// Whether a wall may hide in the kernel time without symbols.
fn much_unnamed(ctx: &Context) -> bool {
    ctx.unnamed_kernel() >= thresholds::of(Wall::FirstTouch).wall_from
}

fn no_wall(ctx: &Context, judged: &[Judged], remedies: &[Prescription]) -> Sentence {
    let unknown: Vec<&str> = MEMORY
        .iter()
        .filter(|w| find(judged, **w).is_some_and(|f| f.status == Status::NotMeasured))
        .map(|w| w.title())
        .collect();
    let Own { text: own, brief, site } = own_computing(ctx);
    match reach(ctx, judged.iter().map(|j| &j.finding)) {
        Reach::NotSampled => return not_sampled(judged).into(),
        Reach::Undecided => return undecided(ctx, judged, &unknown.join(", "), &own).into(),
        Reach::Decided => {}
    }
    let collector = find(judged, Wall::GarbageCollector).filter(|f| f.status == Status::NotMeasured);
    let unknown: Vec<&str> = unknown.into_iter().chain(collector.map(|f| f.wall.title())).collect();
    let not_measured =
        if unknown.is_empty() { String::new() } else { format!(" Not measured: {}.", unknown.join(", ")) };
    let contributor = leading_contributor(judged);
    let kept = find(judged, Wall::Retention)
        .filter(|f| f.status == Status::Contributor)
        .map_or_else(String::new, |_| also(ctx, judged, &[Wall::Retention], 1));
    let most_in = site.as_ref().map_or_else(String::new, |site| format!(", most in `{}`", name(site)));
    let in_full = site.filter(|site| name(site) == *site);
    let with_site = |text| Sentence { text, site: in_full.clone() };
    let crowded = crowded(ctx);
    let swaps =
        |one: &Prescription| remedies::find(&one.remedy).is_some_and(|one| one.effect == Effect::Swap);
    let places = match expected::places_matter(ctx) && remedies.iter().any(swaps) {
        true => " It often waits for loads from memory: another allocator may help.",
        false => "",
    };
    let with_details = |head: String| {
        fitting([
            with_site(format!("{head}; {own}{most_in}.{places}{kept}{crowded}{not_measured}")),
            format!("{head}; {own}.{places}{kept}{crowded}{not_measured}").into(),
            with_site(format!("{head}; {own}{most_in}.{kept}{crowded}{not_measured}")),
            format!("{head}; {own}.{kept}{crowded}{not_measured}").into(),
            with_site(format!("{head}; {own}{most_in}.{kept}{not_measured}")),
            format!("{head}; {own}.{kept}{not_measured}").into(),
            format!("{head}; {brief}.{kept}{not_measured}").into(),
            format!("{head}; {brief}.{not_measured}").into(),
            format!("{head}.{kept}{not_measured}").into(),
            format!("{head}.{not_measured}").into(),
            format!("{head}.").into(),
        ])
    };
    if let Some(pressure) = pressure(ctx) {
        return match contributor {
            Some(wall) => fitting([
                format!("{pressure}; {}.{not_measured}", contribution(ctx, judged, wall)).into(),
                format!("{pressure}.").into(),
            ]),
            None => with_details(pressure),
        };
    }
    if let Some(wall) = contributor {
        return with_details(format!("No wall, but {}", contribution(ctx, judged, wall)));
    }
    let figures = memory_shares(judged);
    if figures.is_empty() {
        return format!(
            "Memory is not your wall: the target used only {:.2} CPUs; up to {:.2} CPUs may be waits.{kept}{not_measured}",
            ctx.cpu_rate,
            (1.0 - ctx.cpu_rate).max(0.0)
        )
        .into();
    }
    let figures = figures.join(", ");
    with_details(match other_kernel(ctx) {
        _ if !unknown.is_empty() => format!("No wall found in the measured part: {figures}"),
        (other, lines) if other >= MUCH_OTHER => format!(
            "No wall found: {figures}. {} of CPU is in kernel code that allocwall does not classify ({lines})",
            percent(other)
        ),
        _ => format!("Memory is not your wall: {figures}"),
    })
}

fn not_sampled(judged: &[Judged]) -> String {
    let why = find(judged, Wall::CallRate).map_or("", |f| f.because.as_str());
    let why = match why.chars().count() {
        1..=120 => format!("; {why}"),
        _ => String::new(),
    };
    format!("No verdict: the target's CPU time could not be sampled{why}.")
}

fn undecided(ctx: &Context, judged: &[Judged], unknown: &str, own: &str) -> String {
    if !much_unnamed(ctx) {
        return format!("Undecided: {unknown} were not measured; {own}.");
    }
    let allocator = find(judged, Wall::CallRate)
        .and_then(|f| f.share)
        .map_or_else(String::new, |s| format!("; the allocator itself takes {}", percent(s.point)));
    let unnamed = unnamed(ctx);
    let root = as_root_too(ctx);
    format!(
        "Undecided: {unnamed} of CPU is kernel time without symbols{root}; not measured: {unknown}{allocator}."
    )
}

/// The shares of the memory walls that were measured.
fn memory_shares(judged: &[Judged]) -> Vec<String> {
    let brief = |(wall, label): (Wall, &str)| {
        find(judged, wall).and_then(|f| f.share).map(|s| format!("{label} {}", percent(s.point)))
    };
    let labels = [
        (Wall::CallRate, "allocator"),
        (Wall::FirstTouch, "first touch"),
        (Wall::MapChurn, Wall::MapChurn.title()),
    ];
    labels.into_iter().filter_map(brief).collect()
}

/// The machine is short of memory. That is no wall of the allocator, but the sentence reports it.
pub fn pressure(ctx: &Context) -> Option<String> {
    const LIMITS: thresholds::Pressure = thresholds::PRESSURE;
    let reclaim = ctx.cpu(&[CostClass::Reclaim]).ok().map(|sum| sum.named);
    if let Some(share) = reclaim.filter(|share| share.high >= LIMITS.reclaim) {
        let sure =
            if share.low >= LIMITS.reclaim { "Memory pressure" } else { "Memory pressure is not ruled out" };
        return Some(format!("{sure}: {} of CPU goes to reclaim and compaction", percent_interval(share)));
    }
    let stalled = ctx.host_increase(|h| h.psi_memory_us).map(|us| us as f64 / 1e6 / ctx.window_s);
    if let Some(part) = stalled.filter(|part| *part >= LIMITS.stalled) {
        return Some(format!(
            "Memory pressure: tasks on this machine stall for memory {} of the time",
            percent(part.min(1.0))
        ));
    }
    let major = ctx.bill.rates.major_faults.as_ref().ok();
    major.filter(|rate| **rate >= LIMITS.major_faults).map(|rate| {
        format!(
            "Memory pressure, or files read for the first time: {} major faults a second wait for storage",
            count(*rate)
        )
    })
}

/// More runnable threads than CPUs. No rung judges this, so the sentence reports it.
fn crowded(ctx: &Context) -> String {
    let own = ctx.behind_itself();
    if own < thresholds::of(Wall::RunQueue).wall_from {
        return String::new();
    }
    format!(" All CPUs are busy: its threads wait for one another for {} of runnable time.", percent(own))
}

/// The most expensive contributor that the allocator causes.
pub fn leading_contributor(judged: &[Judged]) -> Option<Wall> {
    judged
        .iter()
        .filter(|j| j.is(Status::Contributor) && j.finding.rung >= 3 && j.finding.wall != Wall::Retention)
        .max_by(|a, b| a.cost.total_cmp(&b.cost))
        .map(|j| j.finding.wall)
}

/// Kernel work for the program that is not about its memory.
const SERVICES: [CostClass; 5] = [
    CostClass::ForkExit,
    CostClass::FileSystem,
    CostClass::Sockets,
    CostClass::Scheduling,
    CostClass::OtherKernel,
];

/// Share of CPU time from which kernel work without a line of its own may hide a wall.
const MUCH_OTHER: f64 = 0.2;

/// Kernel work without a class of its own: its share of CPU time, and its lines of the bill.
fn other_kernel(ctx: &Context) -> (f64, String) {
    let lines = [CostClass::OtherKernel, CostClass::UnnamedKernel]
        .map(|line| (line.title(), ctx.cpu(&[line]).map_or(0.0, |sum| sum.share.point)));
    let titles = lines.iter().filter(|(_, share)| *share > 0.0).map(|(title, _)| *title);
    (lines.iter().map(|(_, share)| share).sum(), titles.collect::<Vec<_>>().join(", "))
}

/// What the rest of the CPU time is.
struct Own {
    text: String,
    /// The same in fewer words.
    brief: String,
    /// Call site of most of the application's own computing.
    site: Option<String>,
}

fn own_computing(ctx: &Context) -> Own {
    let Ok(sum) = ctx.cpu(&[CostClass::Application]) else {
        let text = format!("{:.2} CPUs in use", ctx.cpu_rate);
        return Own { brief: text.clone(), text, site: None };
    };
    let own = percent(sum.share.point);
    let point = |line: CostClass| ctx.cpu(&[line]).map_or(0.0, |s| s.share.point);
    let kernel = ctx.cpu(&SERVICES).map_or(0.0, |s| s.share.point);
    if kernel > sum.share.point {
        let most = SERVICES.into_iter().max_by(|a, b| point(*a).total_cmp(&point(*b)));
        let most = most.filter(|line| *line != CostClass::OtherKernel && point(*line) > 0.5 * kernel);
        let kernel = percent(kernel);
        let (mostly, brief) = match most {
            Some(line) => (format!(", most of it in {}", line.title()), line.title()),
            None => (String::new(), "other kernel work"),
        };
        let part = most.map_or(kernel.clone(), |line| percent(point(line)));
        return Own {
            text: format!(
                "{kernel} is kernel work outside the memory walls{mostly}; {own} the application's own computing"
            ),
            brief: format!("{part} is {brief}, {own} the application's own"),
            site: None,
        };
    }
    let site = ctx.top_site(&[CostClass::Application]).filter(|site| site.least >= MOST);
    let computing = format!("{own} is the application's own computing");
    let starts = point(CostClass::ForkExit);
    let text = match starts >= MUCH_OTHER {
        true => format!("{} is {}, {computing}", percent(starts), CostClass::ForkExit.title()),
        false => computing.clone(),
    };
    Own { text, brief: computing, site: site.map(|site| site.name) }
}

/// Commands to run next, at most three: `sudo` if a wall was not measured, `calibrate` if a prediction needs prices, an exact
/// reading of the memory if retention is the wall, the first remedy that is a command, or a trial of it if its gain is unknown,
/// and a command that shows the wall with another tool.
pub fn next_steps(
    ctx: &Context,
    findings: &[Finding],
    remedies: &[Prescription],
    wall: Option<Wall>,
) -> Vec<ShellLine> {
    let mut next = Vec::new();
    next.extend(ctx.unjudged().and_then(|why| why.mend.into_iter().find_map(ShellLine::of_advice)));
    // What is not supported is not measured for root either, and root gets no more samples.
    let of_rights = |missing: &Absence| !matches!(missing.reason, Reason::NotSupported | Reason::TooLittle);
    let may_help = |missing: &Absence| of_rights(missing) || missing.root_helps();
    if ctx.recording.host.euid != 0 && findings.iter().filter_map(|f| f.missing.as_ref()).any(may_help) {
        next.push(as_root(ctx));
    }
    if ctx.recording.prices.is_err() && remedies.iter().any(|r| r.gain.is_none()) {
        next.push(ShellLine::from(CALIBRATE));
    }
    if let Some(process) = ctx.billed().filter(|_| wall == Some(Wall::Retention)) {
        let line = ShellLine::from(format!("allocwall memory -p {} --exact", process.pid));
        next.push(line.remark("every block instead of samples"));
    }
    // What changes every process of the machine is for somebody to decide who has read its risk.
    let of_machine = |key: &str| remedies::find(key).is_some_and(|remedy| remedy.kind == Kind::Machine);
    let remedy = remedies.iter().find(|r| r.is_command && !r.how.has_gap && !of_machine(&r.remedy));
    next.extend(remedy.map(|r| trial_of(ctx, r).unwrap_or_else(|| r.how.clone())));
    let show = findings.iter().find(|f| Some(f.wall) == wall).map(|f| &f.show);
    next.extend(show.filter(|show| !show.has_gap).cloned());
    next.truncate(3);
    next
}

/// A trial of a remedy that saves an unknown part of CPU time: only that shows it. None if something predicts its gain, or if the
/// trial needs more than the recording has.
fn trial_of(ctx: &Context, offer: &Prescription) -> Option<ShellLine> {
    let acts_on_cpu = |remedy: &&Remedy| !matches!(remedy.effect, Effect::NotCpu(_));
    let remedy = remedies::find(&offer.remedy).filter(acts_on_cpu)?;
    if remedy.needs.contains(&Need::ColdStart) {
        return Some(trial_of_start(ctx));
    }
    let is_unknown = offer.gain.is_none() && offer.at_most.is_none();
    trial_of_command(ctx, remedy).filter(|line| is_unknown && !line.has_gap)
}

/// The same diagnosis as root. A target that has ended must be started again, as it was given or by whoever knows how.
fn as_root(ctx: &Context) -> ShellLine {
    if let Some(command) = given_command(ctx) {
        return ShellLine::from(format!("sudo allocwall diagnose -- {command}"));
    }
    match ctx.root() {
        Some(root) => ShellLine::from(format!("sudo allocwall diagnose -p {}", root.pid)),
        None => ShellLine::from("sudo allocwall diagnose -- COMMAND").with_gap(),
    }
}

const CALIBRATE: &str = "allocwall calibrate";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_name_keeps_its_function() {
        for (site, shown) in [
            (
                "std::_Rb_tree<std::__cxx11::basic_string<char>, int>::_M_insert(std::pair<int, int> const&)",
                "std::_Rb_tree<…>::_M_insert",
            ),
            (
                "app::apply<dyn core::ops::Fn(u64) -> u64>::run_all_of_them(int)",
                "app::apply<…>::run_all_of_them",
            ),
            ("short<int>::f(int)", "short<int>::f(int)"),
            ("a_crate::experiments::mmap_threshold::measure", "…::experiments::mmap_threshold::measure"),
            // Python functions have a place in brackets; a method of a trait has its type there.
            ("a_function_with_a_long_name (a/long/path.py:10)", "a_function_with_a_long_name (a/long/pat…"),
            ("<alloc::vec::Vec<T> as core::clone::Clone>::clone", "<alloc::vec::Vec<T> as core::clone::Clo…"),
        ] {
            assert_eq!(name(site), shown);
        }
        assert_eq!(arguments_at("f(void (*)(int))"), Some(1));
    }
}
