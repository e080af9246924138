//! Writes the sentence of the verdict, and the next commands.

use super::context::{Context, count, percent, percent_interval};
use super::judge::Judged;
use super::rungs::named;
use super::{Finding, Prescription, Reach, ShellLine, Status};
use allocwall_model::catalogue::cost::CostClass;
use allocwall_model::catalogue::thresholds;
use allocwall_model::catalogue::walls::Wall;

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

pub fn write(ctx: &Context, judged: &[Judged], walls: &[Wall]) -> Sentence {
    if let Some(stopped) = ctx.stopped() {
        return fitting([
            format!("No verdict: {}.", stopped.detail).into(),
            "No verdict: the target was stopped most of the time.".to_owned().into(),
        ]);
    }
    let Some(&worst) = walls.first() else {
        return no_wall(ctx, judged);
    };
    // Leaves out walls that are the same CPU time as the worst one.
    let next = walls[1..].iter().find(|w| !same_time(worst, **w) && **w != Wall::Waiting);
    let also = next.map_or_else(String::new, |wall| also(judged, *wall));
    fitting([
        (wall_sentence(ctx, judged, worst, true) + &also).into(),
        (wall_sentence(ctx, judged, worst, false) + &also).into(),
        wall_sentence(ctx, judged, worst, false).into(),
    ])
}

/// Returns the first sentence that is short enough, else the last one. The caller sorts them, longest first.
fn fitting<const N: usize>(sentences: [Sentence; N]) -> Sentence {
    let fits = |sentence: &Sentence| sentence.text.chars().count() <= LONGEST_SENTENCE;
    let at = sentences.iter().position(fits).unwrap_or(N - 1);
    sentences.into_iter().nth(at).unwrap_or_default()
}

fn also(judged: &[Judged], wall: Wall) -> String {
    let s = find(judged, wall).and_then(|f| f.share).map_or_else(|| "part".to_owned(), |s| percent(s.point));
    let text = match wall {
        Wall::CgroupThrottling => format!("the cgroup's CPU quota takes {s} of runnable time"),
        Wall::Steal => format!("steal takes {s} of runnable time"),
        Wall::RunQueue => format!("waits for a CPU take {s} of runnable time"),
        Wall::ApplicationLock => format!("application locks take {s} of working time"),
        Wall::Gil => format!("Python's interpreter lock (GIL) takes {s} of working time"),
        Wall::AddressSpaceLock => format!("the address-space lock takes {s} of working time"),
        Wall::AllocatorContention => format!("waits in the allocator take {s} of working time"),
        Wall::Retention => format!("{s} of resident memory is free, but not returned to the system"),
        Wall::CallRate => format!("allocating and freeing takes {s} of CPU"),
        Wall::AllocatorCode => format!("the allocator's slow paths take {s} of CPU"),
        Wall::GarbageCollector => format!("the garbage collector takes {s} of CPU"),
        Wall::FileFault => format!("{} take {s} of CPU", wall.title()),
        Wall::Waiting | Wall::FirstTouch | Wall::Fork | Wall::MapChurn | Wall::Tlb | Wall::Numa => {
            format!("{} takes {s} of CPU", wall.title())
        }
    };
    format!(" Also: {text}.")
}

/// A contributor with its interval: `map churn takes 9 % (8–10 %)`.
fn contribution(judged: &[Judged], wall: Wall) -> String {
    let share = share(judged, wall);
    match wall {
        Wall::Numa => format!("{share} of new pages are on a remote node"),
        // The collector of a stripped runtime may be part of this time.
        Wall::CallRate if find(judged, wall).is_some_and(|f| f.estimate.is_some()) => {
            format!("{share} of CPU goes to allocation and garbage collection together")
        }
        _ => format!("{} takes {share}", wall.title()),
    }
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

fn from(ctx: &Context, classes: &[CostClass]) -> String {
    match ctx.top_site(classes) {
        Some((site, part)) if part >= 0.5 => format!(", most of it from `{}`", name(&site)),
        Some((site, part)) if part >= 0.2 => format!(", {} of it from `{}`", percent(part), name(&site)),
        _ => String::new(),
    }
}

fn name(site: &str) -> String {
    if site.chars().count() <= LONGEST_NAME {
        return site.to_owned();
    }
    let cut: String = site.chars().take(LONGEST_NAME - 1).collect();
    format!("{cut}…")
}

/// `place`: whether to name the call site.
fn wall_sentence(ctx: &Context, judged: &[Judged], wall: Wall, place: bool) -> String {
    use CostClass::*;
    let s = share(judged, wall);
    let from = |ctx: &Context, classes: &[CostClass]| if place { from(ctx, classes) } else { String::new() };
    match wall {
        Wall::CgroupThrottling => format!(
            "The cgroup's CPU quota is the wall: it stopped the target for {s} of the time in which it could have run."
        ),
        Wall::Steal => format!(
            "The hypervisor is the wall: it ran other machines for {s} of the time in which the target could have run."
        ),
        Wall::RunQueue => format!(
            "Run-queue wait is the wall: the target waited for a CPU for {s} of the time in which it could have run{}.",
            competitor(ctx)
        ),
        Wall::Waiting => format!(
            "This is not a CPU problem: the target used {:.2} CPUs and waited {s} of the time{}.",
            ctx.cpu_rate,
            waits_for(ctx)
        ),
        Wall::ApplicationLock => format!(
            "The application's own locks are the wall, not the allocator: threads spend {s} of their working time waiting for them."
        ),
        Wall::Gil => format!(
            "Python's interpreter lock (GIL) is the wall: threads spend {s} of their working time waiting for it."
        ),
        Wall::GarbageCollector => {
            format!("The garbage collector is the wall: it uses {s} of CPU{}.", from(ctx, wall.lines()))
        }
        Wall::FirstTouch => format!(
            "First touch is the wall: {s} of CPU goes to faulting in and zeroing fresh pages{}.",
            from(ctx, wall.lines())
        ),
        Wall::Fork => format!(
            "Fork is the wall: {s} of CPU goes to starting and ending processes and to copying shared pages{}.",
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
        // Their thresholds are out of reach today.
        Wall::Tlb | Wall::Numa => format!("{} is the wall: {s}.", wall.title()),
        Wall::CallRate => {
            let place = from(ctx, wall.lines());
            if ctx.mostly_bytes().is_some() {
                return format!(
                    "Allocation is the wall: {s} of CPU goes to allocating and freeing, mostly to zeroing and copying blocks{place}."
                );
            }
            let why = if find(judged, wall).is_some_and(|f| f.estimate.is_some()) {
                format!("{place}; it is unknown whether the calls are too many or too slow")
            } else {
                format!(": many cheap calls, each one fast{place}")
            };
            format!("Call rate is the wall: {s} of CPU goes to allocating and freeing{why}.")
        }
        Wall::AllocatorCode => format!(
            "The allocator's code is the wall: it uses {s} of CPU{}; calls miss its thread cache.",
            from(ctx, wall.lines())
        ),
        Wall::AllocatorContention => format!(
            "Allocator contention is the wall: threads spend {s} of their working time waiting for its locks{}.",
            from(ctx, &[AllocatorLocks, AllocatorCode])
        ),
        Wall::Retention => format!(
            "Retention is the wall: {s} of resident memory is free, but not returned to the system. It costs memory, not time."
        ),
    }
}

/// The process that used most of the CPU time of all others. None of them may have used most of it.
fn competitor(ctx: &Context) -> String {
    let others = &ctx.recording.neighbours;
    let all: f64 = others.iter().map(|n| n.cpu_ns as f64).sum();
    match others.iter().max_by_key(|n| n.cpu_ns) {
        Some(most) if most.cpu_ns as f64 > all / 2.0 && most.cpu_ns as f64 / 1e9 / ctx.window_s > 0.01 => {
            format!(", mostly because of {}", named(most))
        }
        _ => String::new(),
    }
}

fn waits_for(ctx: &Context) -> String {
    use allocwall_model::catalogue::cost::WaitClass;
    const NAMED: [WaitClass; 6] = [
        WaitClass::Stopped,
        WaitClass::Storage,
        WaitClass::Idle,
        WaitClass::ApplicationLock,
        WaitClass::Gil,
        WaitClass::Other,
    ];
    NAMED
        .into_iter()
        .max_by(|a, b| ctx.wait_point(*a).total_cmp(&ctx.wait_point(*b)))
        .filter(|c| ctx.wait_point(*c) > 0.0)
        .map_or_else(String::new, |c| match c {
            WaitClass::Stopped => ", mostly stopped by a signal, a tracer or a freezer".to_owned(),
            WaitClass::Storage => ", mostly for storage".to_owned(),
            WaitClass::Idle => ", mostly for work, the network or a timer".to_owned(),
            WaitClass::ApplicationLock | WaitClass::Gil => ", mostly for other threads".to_owned(),
            _ => String::new(),
        })
}

/// The memory walls that must be measured for a decision.
const MEMORY: [Wall; 5] = [Wall::FirstTouch, Wall::Fork, Wall::FileFault, Wall::MapChurn, Wall::CallRate];

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

fn no_wall(ctx: &Context, judged: &[Judged]) -> Sentence {
    let unknown: Vec<&str> = MEMORY
        .iter()
        .filter(|w| find(judged, **w).is_some_and(|f| f.status == Status::NotMeasured))
        .map(|w| w.title())
        .collect();
    let (own, site) = own_computing(ctx);
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
        .map_or_else(String::new, |_| also(judged, Wall::Retention));
    let most_in = site.as_ref().map_or_else(String::new, |site| format!(", most in `{}`", name(site)));
    let in_full = site.filter(|site| name(site) == *site);
    let with_site = |text| Sentence { text, site: in_full.clone() };
    let crowded = crowded(ctx);
    let with_details = |head: String| {
        fitting([
            with_site(format!("{head}; {own}{most_in}.{kept}{crowded}{not_measured}")),
            format!("{head}; {own}.{kept}{crowded}{not_measured}").into(),
            with_site(format!("{head}; {own}{most_in}.{kept}{not_measured}")),
            format!("{head}; {own}.{kept}{not_measured}").into(),
            format!("{head}.{kept}{not_measured}").into(),
        ])
    };
    if let Some(pressure) = pressure(ctx) {
        return match contributor {
            Some(wall) => fitting([
                format!("{pressure}; {}.{not_measured}", contribution(judged, wall)).into(),
                format!("{pressure}.").into(),
            ]),
            None => with_details(pressure),
        };
    }
    if let Some(wall) = contributor {
        return with_details(format!("No wall, but {}", contribution(judged, wall)));
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
    let verdict = match other_kernel(ctx) {
        _ if !unknown.is_empty() => "No wall found in the measured part".to_owned(),
        other if other >= MUCH_OTHER => {
            format!("No wall found, but {} of CPU is kernel work of an unknown kind", percent(other))
        }
        _ => "Memory is not your wall".to_owned(),
    };
    with_details(format!("{verdict}: {}", figures.join(", ")))
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
    let unnamed = percent(ctx.unnamed_kernel());
    format!("Undecided: {unnamed} of CPU is kernel time without symbols; not measured: {unknown}{allocator}.")
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

fn other_kernel(ctx: &Context) -> f64 {
    ctx.cpu(&[CostClass::OtherKernel]).map_or(0.0, |s| s.share.point)
}

/// The application's own share of CPU time, and the call site that has most of it, if one has.
fn own_computing(ctx: &Context) -> (String, Option<String>) {
    let Ok(sum) = ctx.cpu(&[CostClass::Application]) else {
        return (format!("{:.2} CPUs in use", ctx.cpu_rate), None);
    };
    let own = percent(sum.share.point);
    let kernel = ctx.cpu(&SERVICES).map_or(0.0, |s| s.share.point);
    if kernel > sum.share.point {
        let point = |line: CostClass| ctx.cpu(&[line]).map_or(0.0, |s| s.share.point);
        let most = SERVICES.into_iter().max_by(|a, b| point(*a).total_cmp(&point(*b)));
        let most = most.filter(|line| *line != CostClass::OtherKernel && point(*line) > 0.5 * kernel);
        let kernel = percent(kernel);
        let mostly = most.map_or_else(String::new, |line| format!(", mostly {}", line.title()));
        return (
            format!("{kernel} is other work of the kernel{mostly}; {own} the application's own computing"),
            None,
        );
    }
    let site = ctx.top_site(&[CostClass::Application]).filter(|(_, part)| *part >= 0.5);
    (format!("{own} is the application's own computing"), site.map(|(site, _)| site))
}

/// Commands to run next, at most three: `calibrate` if a prediction needs prices, `sudo` if a wall was not measured,
/// the first remedy that is a command, and a command that shows the wall with another tool.
pub fn next_steps(
    ctx: &Context,
    findings: &[Finding],
    remedies: &[Prescription],
    wall: Option<Wall>,
) -> Vec<ShellLine> {
    let mut next = Vec::new();
    next.extend(ctx.stopped().and_then(|stopped| stopped.mend.into_iter().find_map(ShellLine::of_advice)));
    let unpriced = ctx.recording.prices.is_err();
    if unpriced && remedies.iter().any(|r| r.gain.is_none()) {
        next.push(ShellLine::from(CALIBRATE));
    }
    if ctx.recording.host.euid != 0 && findings.iter().any(|f| f.status == Status::NotMeasured) {
        next.push(as_root(ctx));
    }
    let remedy = remedies.iter().find(|r| r.is_command && !r.how.has_gap);
    next.extend(remedy.map(|r| r.how.clone()));
    let show = findings.iter().find(|f| Some(f.wall) == wall).map(|f| &f.show);
    // After the target's end, these commands have a placeholder for its pid.
    next.extend(show.filter(|show| !show.has_gap && !ctx.is_over()).cloned());
    if unpriced && !next.iter().any(|n| n.command == CALIBRATE) {
        next.push(ShellLine::from(CALIBRATE));
    }
    next.truncate(3);
    next
}

/// The same diagnosis as root. A target that has ended must be started again, by whoever knows how.
fn as_root(ctx: &Context) -> ShellLine {
    if ctx.is_over() {
        return ShellLine::from("sudo allocwall diagnose -- COMMAND").with_gap();
    }
    ShellLine::from(format!("sudo allocwall diagnose -p {}", ctx.pid()))
}

const CALIBRATE: &str = "allocwall calibrate";
