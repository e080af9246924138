//! The one sentence that a tired person needs, and what to type next.

use super::context::{Context, count, percent, percent_interval};
use super::judge::Judged;
use super::rungs::named;
use super::{Finding, Prescription, Reach, Status};
use allocwall_model::catalogue::cost::CostClass;
use allocwall_model::catalogue::remedies::{UNKNOWN_COMMAND, find as find_remedy};
use allocwall_model::catalogue::thresholds;
use allocwall_model::catalogue::walls::Wall;

/// Site names longer than this are cut: C++ and Rust names run to hundreds of characters.
const LONGEST_NAME: usize = 40;

/// Longer ones are not read at three in the morning.
pub const LONGEST_SENTENCE: usize = 200;

pub fn write(ctx: &Context, judged: &[Judged], walls: &[Wall]) -> String {
    if let Some(stopped) = ctx.stopped() {
        return fitting([
            format!("No verdict, since the target did not run: {}.", stopped.detail),
            "No verdict, since the target did not run: it was stopped most of the time.".to_owned(),
        ]);
    }
    let Some(&worst) = walls.first() else {
        return no_wall(ctx, judged);
    };
    // The next one that is not merely the same time under another name.
    let next = walls[1..]
        .iter()
        .find(|w| !same_time(worst, **w) && **w != Wall::Waiting);
    let also = next.map_or_else(String::new, |wall| also(judged, *wall));
    fitting([
        wall_sentence(ctx, judged, worst, true) + &also,
        wall_sentence(ctx, judged, worst, false) + &also,
        wall_sentence(ctx, judged, worst, false),
    ])
}

/// The first that is short enough, else the last: the fullest comes first.
fn fitting<const N: usize>(texts: [String; N]) -> String {
    let fits = |text: &String| text.chars().count() <= LONGEST_SENTENCE;
    let at = texts.iter().position(fits).unwrap_or(N - 1);
    texts.into_iter().nth(at).unwrap_or_default()
}

fn also(judged: &[Judged], wall: Wall) -> String {
    let s = find(judged, wall)
        .and_then(|f| f.share)
        .map_or_else(|| "part".to_owned(), |s| percent(s.point));
    let text = match wall {
        Wall::CgroupThrottling => format!("the cgroup's quota stops it {s} of the time"),
        Wall::Steal => format!("the hypervisor runs others {s} of the time"),
        Wall::RunQueue => format!("its threads wait {s} of the time for a CPU"),
        Wall::ApplicationLock => format!("its own locks take {s} of working time"),
        Wall::AddressSpaceLock => format!("the address-space lock takes {s} of working time"),
        Wall::AllocatorContention => format!("waits in the allocator take {s} of working time"),
        Wall::Retention => format!("{s} of resident memory is kept for nobody"),
        Wall::CallRate => format!("allocating and freeing takes {s} of CPU"),
        Wall::AllocatorCode => format!("the allocator's slow paths take {s} of CPU"),
        Wall::GarbageCollector => format!("the garbage collector takes {s} of CPU"),
        Wall::Waiting | Wall::FirstTouch | Wall::MapChurn | Wall::Tlb | Wall::Numa => {
            format!("{} takes {s} of CPU", wall.title())
        }
    };
    format!(" Also: {text}.")
}

/// `map churn takes 9 % (8–10 %)`: a contributor with its interval.
fn part(judged: &[Judged], wall: Wall) -> String {
    let share = share(judged, wall);
    match wall {
        Wall::Numa => format!("{share} of new pages lie on a remote node"),
        // A stripped runtime's collector may be part of it.
        Wall::CallRate if find(judged, wall).is_some_and(|f| f.estimate.is_some()) => {
            format!("{share} of CPU goes to allocating, freeing or collecting, not told apart")
        }
        _ => format!("{} takes {share}", wall.title()),
    }
}

fn same_time(a: Wall, b: Wall) -> bool {
    let allocator = |w| {
        matches!(
            w,
            Wall::CallRate | Wall::AllocatorCode | Wall::AllocatorContention
        )
    };
    allocator(a) && allocator(b)
}

fn find(judged: &[Judged], wall: Wall) -> Option<&Finding> {
    judged.iter().map(|j| &j.finding).find(|f| f.wall == wall)
}

fn share(judged: &[Judged], wall: Wall) -> String {
    find(judged, wall)
        .and_then(|f| f.share)
        .map_or_else(|| "?".to_owned(), percent_interval)
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

/// `place`: with the call site behind it.
fn wall_sentence(ctx: &Context, judged: &[Judged], wall: Wall, place: bool) -> String {
    use CostClass::*;
    let s = share(judged, wall);
    let from = |ctx: &Context, classes: &[CostClass]| match place {
        true => from(ctx, classes),
        false => String::new(),
    };
    match wall {
        Wall::CgroupThrottling => format!(
            "The cgroup's CPU quota is the wall: it stopped the target for {s} of the time in which it could have run."
        ),
        Wall::Steal => format!(
            "The hypervisor is the wall: it ran others for {s} of the time in which the target could have run."
        ),
        Wall::RunQueue => format!(
            "The target waits for a CPU {s} of the time in which it could run{}.",
            competitor(ctx)
        ),
        Wall::Waiting => format!(
            "This is not a CPU problem: the target used {:.2} CPUs and waited {s} of the time{}.",
            ctx.cpu_rate,
            waits_for(ctx)
        ),
        Wall::ApplicationLock => format!(
            "The application's own locks are the wall, not the allocator: {s} of its threads' working time waits for them."
        ),
        Wall::GarbageCollector => format!(
            "The garbage collector is the wall: {s} of CPU{}.",
            from(ctx, &[GarbageCollector])
        ),
        Wall::FirstTouch => format!(
            "First touch is the wall: {s} of CPU goes to faulting in and zeroing fresh pages{}.",
            from(ctx, &[FaultPath, Zeroing])
        ),
        Wall::MapChurn => format!(
            "Map churn is the wall: {s} of CPU goes to mapping memory and giving it back{}.",
            from(ctx, &[MapCalls, PageRelease])
        ),
        Wall::AddressSpaceLock => format!(
            "The address-space lock is the wall: threads wait {s} of their working time for one another's maps and faults."
        ),
        // No share reaches their thresholds; should one ever, it is said plainly.
        Wall::Tlb | Wall::Numa => format!("{} is the wall: {s}.", wall.title()),
        Wall::CallRate => {
            let place = from(ctx, &[AllocatorCode, RuntimeAllocator]);
            let why = match find(judged, wall).is_some_and(|f| f.estimate.is_some()) {
                true => format!("{place}; whether too often or too slowly could not be told"),
                false => format!(", too often rather than too slowly{place}"),
            };
            format!("Call rate is the wall: {s} of CPU goes to allocating and freeing{why}.")
        }
        Wall::AllocatorCode => format!(
            "The allocator's code is the wall: {s} of CPU, with calls that miss its thread cache{}.",
            from(ctx, &[AllocatorCode])
        ),
        Wall::AllocatorContention => format!(
            "Allocator contention is the wall: threads wait {s} of their working time for one another in it{}.",
            from(ctx, &[AllocatorLocks, AllocatorCode])
        ),
        Wall::Retention => format!(
            "Retention is the wall, in memory rather than time: {s} of resident memory is kept for nobody."
        ),
    }
}

fn competitor(ctx: &Context) -> String {
    ctx.recording
        .neighbours
        .iter()
        .max_by_key(|n| n.cpu_ns)
        .filter(|n| n.cpu_ns as f64 / 1e9 / ctx.window_s > 0.01)
        .map_or_else(String::new, |n| format!(", mostly behind {}", named(n)))
}

fn waits_for(ctx: &Context) -> String {
    use allocwall_model::catalogue::cost::WaitClass;
    [
        WaitClass::Stopped,
        WaitClass::Storage,
        WaitClass::Idle,
        WaitClass::ApplicationLock,
        WaitClass::Other,
    ]
    .into_iter()
    .max_by(|a, b| ctx.wait_point(*a).total_cmp(&ctx.wait_point(*b)))
    .filter(|c| ctx.wait_point(*c) > 0.0)
    .map_or_else(String::new, |c| match c {
        WaitClass::Stopped => ", mostly stopped by a signal, a tracer or a freezer".to_owned(),
        WaitClass::Storage => ", mostly for storage".to_owned(),
        WaitClass::Idle => ", mostly for work, the network or a timer".to_owned(),
        WaitClass::ApplicationLock => ", mostly for other threads".to_owned(),
        _ => String::new(),
    })
}

/// The walls of which a target that names none is asked first.
const MEMORY: [Wall; 3] = [Wall::FirstTouch, Wall::MapChurn, Wall::CallRate];

/// How far findings without a wall carry.
pub fn reach<'a>(ctx: &Context, findings: impl Iterator<Item = &'a Finding>) -> Reach {
    let unknown = findings
        .filter(|f| MEMORY.contains(&f.wall) && f.status == Status::NotMeasured)
        .count();
    let all = unknown == MEMORY.len();
    if all && ctx.cpu(&[CostClass::Application]).is_err() {
        Reach::NotSampled
    } else if all || unknown > 0 && much_unnamed(ctx) {
        Reach::Undecided
    } else {
        Reach::Decided
    }
}

/// A wall may hide in the kernel time without names.
fn much_unnamed(ctx: &Context) -> bool {
    ctx.unnamed_kernel() >= thresholds::of(Wall::FirstTouch).wall_from
}

fn no_wall(ctx: &Context, judged: &[Judged]) -> String {
    let unknown: Vec<&str> = MEMORY
        .iter()
        .filter(|w| find(judged, **w).is_some_and(|f| f.status == Status::NotMeasured))
        .map(|w| w.title())
        .collect();
    let reach = reach(ctx, judged.iter().map(|j| &j.finding));
    if reach == Reach::NotSampled {
        let why = find(judged, Wall::CallRate).map_or("", |f| f.because.as_str());
        let why = match why.chars().count() {
            1..=120 => format!(": {why}"),
            _ => String::new(),
        };
        return format!("No verdict, since the target's CPU time could not be sampled{why}.");
    }
    if reach == Reach::Undecided && !much_unnamed(ctx) {
        return format!(
            "Undecided: {} were not measured; {}.",
            unknown.join(", "),
            own_computing(ctx, false)
        );
    }
    if reach == Reach::Undecided {
        let allocator = find(judged, Wall::CallRate)
            .and_then(|f| f.share)
            .map_or_else(String::new, |s| {
                format!("; the allocator itself takes {}", percent(s.point))
            });
        return format!(
            "Undecided: {} of CPU is kernel time that could not be told apart ({}){allocator}.",
            percent(ctx.unnamed_kernel()),
            unknown.join(" or ")
        );
    }
    let collector = find(judged, Wall::GarbageCollector).filter(|f| f.status == Status::NotMeasured);
    let unknown: Vec<&str> = unknown
        .into_iter()
        .chain(collector.map(|f| f.wall.title()))
        .collect();
    let not_told = if unknown.is_empty() {
        String::new()
    } else {
        format!(" Not measured: {}.", unknown.join(", "))
    };
    let contributor = leading_contributor(judged);
    let kept = find(judged, Wall::Retention)
        .filter(|f| f.status == Status::Contributor)
        .map_or_else(String::new, |_| also(judged, Wall::Retention));
    let told = |head: String| {
        fitting([
            format!(
                "{head}; {}.{kept}{}{not_told}",
                own_computing(ctx, true),
                crowded(ctx)
            ),
            format!(
                "{head}; {}.{kept}{}{not_told}",
                own_computing(ctx, false),
                crowded(ctx)
            ),
            format!("{head}; {}.{kept}{not_told}", own_computing(ctx, true)),
            format!("{head}; {}.{kept}{not_told}", own_computing(ctx, false)),
            format!("{head}.{kept}{not_told}"),
        ])
    };
    if let Some(pressure) = pressure(ctx) {
        return match contributor {
            Some(wall) => fitting([
                format!("{pressure}; {}.{not_told}", part(judged, wall)),
                format!("{pressure}."),
            ]),
            None => told(pressure),
        };
    }
    if let Some(wall) = contributor {
        return told(format!("No wall, but {}", part(judged, wall)));
    }
    let brief = |wall: Wall, label: &str| {
        find(judged, wall)
            .and_then(|f| f.share)
            .map(|s| format!("{label} {}", percent(s.point)))
    };
    let figures: Vec<String> = [
        brief(Wall::CallRate, "allocator"),
        brief(Wall::FirstTouch, "first touch"),
        brief(Wall::MapChurn, "map calls"),
    ]
    .into_iter()
    .flatten()
    .collect();
    if figures.is_empty() {
        return format!(
            "Memory is not your wall: the target used only {:.2} CPUs; {:.2} of it could be waits.{kept}{not_told}",
            ctx.cpu_rate,
            (1.0 - ctx.cpu_rate).max(0.0)
        );
    }
    let verdict = match unknown.is_empty() {
        true => "Memory is not your wall",
        false => "No wall in what was measured",
    };
    told(format!("{verdict}: {}", figures.join(", ")))
}

/// Memory is short: no wall of the allocator's, but not nothing either.
fn pressure(ctx: &Context) -> Option<String> {
    const LIMITS: thresholds::Pressure = thresholds::PRESSURE;
    let reclaim = ctx.cpu(&[CostClass::Reclaim]).ok().map(|sum| sum.named);
    if let Some(share) = reclaim.filter(|share| share.high >= LIMITS.reclaim) {
        let sure = match share.low >= LIMITS.reclaim {
            true => "Memory pressure",
            false => "Memory pressure is not ruled out",
        };
        return Some(format!(
            "{sure}: {} of CPU goes to reclaim and compaction",
            percent_interval(share)
        ));
    }
    let stalled = ctx
        .host_change(|h| h.psi_memory_us)
        .map(|us| us as f64 / 1e6 / ctx.window_s);
    if let Some(part) = stalled.filter(|part| *part >= LIMITS.stalled) {
        return Some(format!(
            "Memory pressure: tasks of this machine stall for memory {} of the time",
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

/// More threads with work than CPUs: said, because no rung calls it a wall.
fn crowded(ctx: &Context) -> String {
    let own = ctx.behind_itself();
    if own < thresholds::of(Wall::RunQueue).wall_from {
        return String::new();
    }
    format!(
        " The CPUs are full: its threads wait for one another {} of runnable time.",
        percent(own)
    )
}

/// Of what the allocator causes: the dearest.
pub fn leading_contributor(judged: &[Judged]) -> Option<Wall> {
    judged
        .iter()
        .filter(|j| j.is(Status::Contributor) && j.finding.rung >= 3 && j.finding.wall != Wall::Retention)
        .max_by(|a, b| a.cost.total_cmp(&b.cost))
        .map(|j| j.finding.wall)
}

/// `place`: with the call site behind it.
fn own_computing(ctx: &Context, place: bool) -> String {
    match ctx.cpu(&[CostClass::Application]) {
        Ok(sum) => {
            let kernel = ctx.cpu(&[CostClass::OtherKernel]).map_or(0.0, |s| s.share.point);
            if kernel > sum.share.point {
                return format!(
                    "{} is other work of the kernel, {} the application's own computing",
                    percent(kernel),
                    percent(sum.share.point)
                );
            }
            let site = match ctx.top_site(&[CostClass::Application]) {
                Some((site, part)) if place && part >= 0.5 => format!(", most in `{}`", name(&site)),
                _ => String::new(),
            };
            format!(
                "{} is the application's own computing{site}",
                percent(sum.share.point)
            )
        }
        Err(_) => format!("{:.2} CPUs in use", ctx.cpu_rate),
    }
}

/// Commands to run now, at most three: prices where a prediction waits for them, rights where a wall could not be
/// seen, the best remedy that is a command, and the tool that shows the wall by other means.
pub fn next_steps(
    ctx: &Context,
    findings: &[Finding],
    remedies: &[Prescription],
    wall: Option<Wall>,
) -> Vec<String> {
    let mut next = Vec::new();
    if let Some(mend) = ctx.stopped().and_then(|stopped| stopped.mend) {
        next.push(mend);
    }
    let unpriced = ctx.recording.prices.is_err();
    if unpriced && remedies.iter().any(|r| r.gain.is_none()) {
        next.push(CALIBRATE.to_owned());
    }
    if ctx.recording.host.euid != 0 && findings.iter().any(|f| f.status == Status::NotMeasured) {
        next.push(format!("sudo allocwall diagnose -p {}", ctx.pid()));
    }
    next.extend(remedies.iter().find(|r| is_command(r)).map(|r| r.how.clone()));
    next.extend(
        findings
            .iter()
            .find(|f| Some(f.wall) == wall)
            .map(|f| f.show.clone())
            .filter(|show| !has_a_gap(show)),
    );
    if unpriced && !next.iter().any(|n| n == CALIBRATE) {
        next.push(CALIBRATE.to_owned());
    }
    next.truncate(3);
    next
}

const CALIBRATE: &str = "allocwall calibrate";

/// It can be typed as it stands: no advice in prose, and the target's own command is known.
fn is_command(remedy: &Prescription) -> bool {
    let how = &remedy.how;
    find_remedy(&remedy.remedy).is_some_and(|r| r.is_command(how)) && !has_a_gap(how)
}

fn has_a_gap(command: &str) -> bool {
    command
        .split(' ')
        .any(|word| word == UNKNOWN_COMMAND || word == "…")
}
