//! Which remedies fit a target, and what each would gain there: the bill's lines × what the price list says.

use super::context::{Context, main_process, percent};
use super::expected;
use super::{Finding, Prescription, Status};
use crate::bill::{Bill, Classifier};
use allocwall_model::catalogue::cost::CostClass;
use allocwall_model::catalogue::prices::*;
use allocwall_model::catalogue::remedies::{Effect, Kind, MAP_LINES, Need, Remedy, TABLE, UNKNOWN_COMMAND};
use allocwall_model::catalogue::thresholds;
use allocwall_model::catalogue::walls::Wall;
use allocwall_model::machine::chosen;
use allocwall_model::recording::{Allocator, AllocatorKind, Libc, Linkage, Process, Recording, Runtime};
use allocwall_model::stats::wilson;
use allocwall_model::units::{Absence, Interval, Measured, Reason};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// The remedies for the walls that were found, in the order to try; the first one is for the wall that the sentence
/// names. Contributors are treated only where there is no wall.
pub fn prescribe(
    recording: &Recording,
    bill: &Bill,
    findings: &[Finding],
    leading: Option<Wall>,
) -> Vec<Prescription> {
    let mut ranked: Vec<(Rank, Prescription)> = offers(recording, bill, &treated(findings))
        .into_iter()
        .filter_map(|(remedy, offer)| {
            let (prescription, promise) = offer.ok()?;
            let rank = rank(remedy, main_process(recording), leading, promise);
            Some((rank, prescription))
        })
        .collect();
    let best = ranked
        .iter()
        .filter(|(rank, _)| !rank.advice)
        .map(|(rank, _)| rank.saved)
        .fold(0.0, f64::max);
    ranked.sort_by(|a, b| {
        let (a, b) = (&a.0, &b.0);
        a.advice
            .cmp(&b.advice)
            .then(b.goes_first(best).cmp(&a.goes_first(best)))
            .then(b.saved.total_cmp(&a.saved))
            .then(b.leading.cmp(&a.leading))
            .then(b.sure.total_cmp(&a.sure))
            .then(b.for_its_runtime.cmp(&a.for_its_runtime))
            .then((a.kind, a.restart).cmp(&(b.kind, b.restart)))
            .then(b.bound.total_cmp(&a.bound))
    });
    if let Some(first) = ranked.iter().position(|(rank, _)| rank.leading) {
        ranked[..=first].rotate_right(1);
    }
    ranked.into_iter().map(|(_, p)| p).collect()
}

/// What the remedies act on: the walls, or what contributes where there is none.
pub fn treated(findings: &[Finding]) -> Vec<Wall> {
    let walls = with(findings, Status::Wall);
    if !walls.is_empty() {
        return walls;
    }
    // Interference and waiting below a wall's size are the ordinary life of a shared machine.
    let mut contributors = with(findings, Status::Contributor);
    contributors.retain(|w| w.rung() >= 3);
    contributors
}

fn with(findings: &[Finding], status: Status) -> Vec<Wall> {
    findings
        .iter()
        .filter(|f| f.status == status)
        .map(|f| f.wall)
        .collect()
}

struct Rank {
    advice: bool,
    /// It undoes a setting of the target's own.
    cause: bool,
    /// It acts on the wall that the sentence names.
    leading: bool,
    /// It is made for the target's runtime: of two that may save the same, and are as sure to, it reaches more of what that runtime
    /// allocates.
    for_its_runtime: bool,
    /// Of the CPU time, what a trial is expected to show; less than `WORTH` is nothing.
    saved: f64,
    /// The least of it.
    sure: f64,
    kind: Kind,
    restart: bool,
    bound: f64,
}

impl Rank {
    /// What undoes a setting is tried before what works round it, where it is expected to save nearly as much.
    fn goes_first(&self, best: f64) -> bool {
        const NEARLY: f64 = 0.85;
        self.cause && self.saved >= NEARLY * best
    }
}

/// An expected gain below this is no reason to try one remedy before another.
const WORTH: f64 = 0.01;

fn rank(remedy: &Remedy, process: Option<&Process>, leading: Option<Wall>, promise: Promise) -> Rank {
    Rank {
        advice: remedy.kind == Kind::Advice,
        cause: undoes_a_setting(process, remedy),
        leading: leading.is_some_and(|w| remedy.walls.contains(&w)),
        for_its_runtime: remedy.needs.iter().any(Need::names_a_runtime),
        saved: promise.saved.map_or(0.0, |s| s.point).max(WORTH) - WORTH,
        sure: promise.saved.map_or(0.0, |s| s.low),
        kind: remedy.kind,
        restart: remedy.restart,
        bound: promise.most,
    }
}

/// Fitted to the target; or the reason why it does not apply.
pub type Offer = Result<(Prescription, Promise), String>;

/// What a remedy is ranked by, in shares of the target's CPU time.
#[derive(Clone, Copy, Debug)]
pub struct Promise {
    /// What a trial is expected to show.
    saved: Option<Interval>,
    /// The sum of the lines that it acts on, as far as it can reach them.
    most: f64,
}

/// Every remedy for these walls.
pub fn offers(recording: &Recording, bill: &Bill, walls: &[Wall]) -> Vec<(&'static Remedy, Offer)> {
    let ctx = Context::new(recording, bill);
    TABLE
        .iter()
        .filter(|r| r.walls.iter().any(|w| walls.contains(w)))
        .map(|r| (r, fit(&ctx, r, walls)))
        .collect()
}

fn fit(ctx: &Context, remedy: &Remedy, walls: &[Wall]) -> Offer {
    needs_met(ctx, remedy, walls)?;
    if remedy.effect == Effect::ArenaInsteadOfMap
        && ctx
            .map_calls_by_malloc()
            .is_ok_and(|part| part.high < MALLOCS_PART)
    {
        return Err("next to none of its map calls are malloc's".into());
    }
    if remedy.effect == Effect::HugeTouch && ctx.past_huge_pages().point > MOSTLY_PAST {
        return Err("most of its first touches are of huge pages already, or of shared memory".into());
    }
    let mut prediction = predict(ctx, remedy);
    let told = match remedy.effect {
        Effect::Swap | Effect::DeeperCache | Effect::OwnArenas => true,
        Effect::HugeTouch | Effect::ArenaInsteadOfMap | Effect::Populate => prediction.gain.is_some(),
        Effect::AtMost(..) | Effect::NotCpu(_) => false,
    };
    let saved = expected::saved(ctx, remedy);
    prediction.gain = saved.filter(|_| told);
    let saves_cpu = !matches!(remedy.effect, Effect::NotCpu(_));
    let most = prediction
        .gain
        .map_or(prediction.most, |gain| gain.high.max(prediction.most));
    prediction.at_most = (saves_cpu && ctx.cpu(remedy.acts_on).is_ok()).then_some(most);
    let how = fill(ctx, remedy.how);
    let prescription = Prescription {
        remedy: remedy.key.to_owned(),
        title: remedy.title.to_owned(),
        gain: prediction.gain,
        at_most: prediction.at_most,
        basis: prediction.basis,
        restart: remedy.restart,
        how,
        backfires: remedy.backfires.to_owned(),
        undo: fill(ctx, remedy.undo),
        moves: remedy.moves.to_owned(),
    };
    let most = prediction.most;
    Ok((prescription, Promise { saved, most }))
}

// ---- applicability ----

/// Whether a remedy that was asked for, whatever the walls, can do anything to the target.
pub(super) fn all_met(ctx: &Context, remedy: &Remedy) -> Result<(), String> {
    needs_met(ctx, remedy, &Wall::ALL)
}

fn needs_met(ctx: &Context, remedy: &Remedy, walls: &[Wall]) -> Result<(), String> {
    remedy.needs.iter().try_for_each(|need| met(ctx, *need, walls))
}

/// Ok where the need is met; else the reason, for people. What is not known is not met.
fn met(ctx: &Context, need: Need, walls: &[Wall]) -> Result<(), String> {
    let process = ctx.process().ok_or("nothing is known about the target")?;
    let require = |holds: bool, reason: &str| if holds { Ok(()) } else { Err(reason.to_owned()) };
    let runtime = process.runtime.as_ref().ok();
    match need {
        Need::Preload => preload(process),
        Need::Glibc(major, minor) => glibc(process, (major, minor)),
        Need::GlibcBefore(major, minor) => match &process.libc {
            Ok(Libc::Glibc { version }) => require(
                version_of(version).is_some_and(|v| v < (major, minor)),
                "glibc is newer",
            ),
            _ => Err("the target's C library is not the dynamic glibc".into()),
        },
        Need::Musl => require(
            matches!(process.libc, Ok(Libc::Musl { .. })),
            "the target's C library is not musl",
        ),
        Need::GlibcMalloc => {
            glibc(process, (2, 0))?;
            require(
                kind(process) == Some(AllocatorKind::Glibc),
                "glibc's malloc does not serve this process",
            )
        }
        Need::Jemalloc => require(
            kind(process) == Some(AllocatorKind::Jemalloc),
            "the target does not use jemalloc",
        ),
        Need::Mimalloc => require(
            kind(process) == Some(AllocatorKind::Mimalloc),
            "the target does not use mimalloc",
        ),
        Need::Tcmalloc => require(
            kind(process) == Some(AllocatorKind::Tcmalloc),
            "the target does not use tcmalloc",
        ),
        Need::NotJemalloc => not_already(process, AllocatorKind::Jemalloc),
        Need::NotMimalloc => not_already(process, AllocatorKind::Mimalloc),
        Need::NotTcmalloc => not_already(process, AllocatorKind::Tcmalloc),
        Need::Cpython => require(
            matches!(runtime, Some(Runtime::Cpython { .. })),
            "the target is not CPython",
        ),
        Need::CpythonAtLeast(minor) => match runtime {
            Some(Runtime::Cpython {
                version,
                free_threaded: false,
            }) => require(
                version_of(version) >= Some((3, minor)),
                &format!("needs CPython 3.{minor} or later"),
            ),
            _ => Err("the target is not a default build of CPython".into()),
        },
        Need::CpythonFreeThreaded => require(
            matches!(
                runtime,
                Some(Runtime::Cpython {
                    free_threaded: true,
                    ..
                })
            ),
            "the target is not a free-threaded CPython",
        ),
        Need::Jvm => require(
            matches!(runtime, Some(Runtime::Jvm { .. })),
            "the target is not a JVM",
        ),
        Need::Go => require(
            matches!(runtime, Some(Runtime::Go { .. })),
            "the target is not a Go program",
        ),
        Need::Node => require(
            matches!(runtime, Some(Runtime::Node { .. })),
            "the target is not Node",
        ),
        Need::NotJvm => match runtime {
            Some(Runtime::Jvm { .. }) => Err("the Java heap does not lie in malloc".into()),
            Some(_) => Ok(()),
            None => Err("the target's runtime is not known".into()),
        },
        Need::MallocMatters => malloc_matters(ctx, runtime, walls),
        Need::ThpByAdvice => thp(ctx, process, &["madvise", "always"]),
        Need::ThpModeMadvise => thp(ctx, process, &["madvise"]),
        Need::MoreThanOneThread => require(ctx.bill.rates.threads_peak != 1, "the target has one thread"),
        Need::Unset(name) => require(
            !setting_mentions(process, name),
            &format!("{name} is set already"),
        ),
        Need::MmapThresholdBelow(bytes) => match tunable(process, "glibc.malloc.mmap_threshold") {
            None => Ok(()),
            Some(set) => require(
                set.is_some_and(|set| set < bytes),
                "the mapping threshold is set already",
            ),
        },
        Need::ArenasLimited => require(
            arena_limit(process).is_some_and(|limit| limit < arenas_by_default(ctx)),
            "nothing limits the arenas below what glibc does by itself",
        ),
        Need::MoreThanOneNode => require(ctx.recording.host.numa_nodes > 1, "the machine has one NUMA node"),
        Need::Quota => require(
            ctx.last_tick()
                .and_then(|t| t.cgroup)
                .is_some_and(|c| c.quota_cpus.is_some()),
            "no quota is known",
        ),
    }
}

fn kind(process: &Process) -> Option<AllocatorKind> {
    process.allocator.as_ref().ok().map(|a| a.kind)
}

fn preload(process: &Process) -> Result<(), String> {
    match &process.libc {
        Ok(Libc::Static) => return Err("statically linked: no loader reads LD_PRELOAD".into()),
        Ok(Libc::Glibc { .. } | Libc::Musl { .. }) => {}
        Ok(Libc::Other { name }) => return Err(format!("unknown C library {name}")),
        Err(absence) => return Err(format!("the target's C library is not known: {absence}")),
    }
    match &process.runtime {
        Ok(Runtime::Go { .. }) => return Err("Go's runtime allocates without malloc".into()),
        Ok(_) => {}
        Err(absence) => return Err(format!("the target's runtime is not known: {absence}")),
    }
    if process.secure_exec == Ok(true) {
        return Err("setuid or file capabilities: the loader ignores LD_PRELOAD".into());
    }
    // A malloc of its own, linked into the program, is found before a preloaded one is asked.
    if matches!(
        &process.allocator,
        Ok(Allocator {
            how: Linkage::Static,
            ..
        })
    ) {
        return Err("its allocator is linked into the program: a preload does not replace it".into());
    }
    Ok(())
}

fn glibc(process: &Process, at_least: (u32, u32)) -> Result<(), String> {
    match &process.libc {
        Ok(Libc::Glibc { version }) => match version_of(version) {
            Some(v) if v >= at_least && process.secure_exec != Ok(true) => Ok(()),
            Some(v) if v >= at_least => {
                Err("setuid or file capabilities: the loader ignores tunables".into())
            }
            Some(_) => Err(format!(
                "needs glibc {}.{}, the target has {version}",
                at_least.0, at_least.1
            )),
            None => Err(format!("glibc version {version:?} is not understood")),
        },
        Ok(_) => Err("the target's C library is not the dynamic glibc".into()),
        Err(absence) => Err(format!("the target's C library is not known: {absence}")),
    }
}

fn not_already(process: &Process, unwanted: AllocatorKind) -> Result<(), String> {
    match kind(process) {
        Some(k) if k == unwanted => Err("the target uses it already".into()),
        Some(_) => Ok(()),
        None => Err("the target's allocator is not known".into()),
    }
}

/// A swap of malloc does nothing for objects that a runtime serves itself (CPython: up to 512 bytes; the Java, Go and
/// V8 heaps). It is offered there only where malloc's own line is what fired.
fn malloc_matters(ctx: &Context, runtime: Option<&Runtime>, walls: &[Wall]) -> Result<(), String> {
    if matches!(runtime, Some(Runtime::Native)) {
        return Ok(());
    }
    if walls.contains(&Wall::AllocatorCode) || walls.contains(&Wall::AllocatorContention) {
        return Ok(());
    }
    let lines = ctx.cpu(&[CostClass::AllocatorCode, CostClass::AllocatorLocks]);
    match lines {
        Ok(sum) if sum.share.low >= thresholds::of(Wall::AllocatorCode).contributor => Ok(()),
        Ok(_) => Err("the runtime serves its own objects: little of the time is malloc's".into()),
        Err(_) => Err("the runtime serves its own objects, and malloc's part was not measured".into()),
    }
}

/// `always [madvise] never` as in sysfs, or the bare word.
fn thp(ctx: &Context, process: &Process, modes: &[&str]) -> Result<(), String> {
    let mode = match &ctx.recording.host.thp_enabled {
        Ok(text) => chosen(text).unwrap_or(text.trim()),
        Err(absence) => {
            return Err(format!(
                "the mode of transparent huge pages is not known: {absence}"
            ));
        }
    };
    if process.thp_disabled == Ok(true) {
        return Err("huge pages are disabled for this process (prctl)".into());
    }
    if modes.contains(&mode) {
        Ok(())
    } else {
        Err(format!("transparent huge pages are in mode {mode}"))
    }
}

fn setting_mentions(process: &Process, name: &str) -> bool {
    let environment = process
        .environment
        .iter()
        .any(|(k, v)| k.contains(name) || v.contains(name));
    environment || process.cmdline.iter().any(|word| word.contains(name))
}

/// A setting of the target's own that is itself the cause: what undoes it goes before what works round it.
fn undoes_a_setting(process: Option<&Process>, remedy: &Remedy) -> bool {
    remedy.needs.iter().any(|need| match need {
        Need::ArenasLimited => true,
        Need::MmapThresholdBelow(_) => {
            process.is_some_and(|p| tunable(p, "glibc.malloc.mmap_threshold").is_some())
        }
        _ => false,
    })
}

/// What the environment limits glibc's arenas to; 0 is no limit.
fn arena_limit(process: &Process) -> Option<u64> {
    let variable = || {
        let found = process
            .environment
            .iter()
            .find(|(k, _)| k == "MALLOC_ARENA_MAX")?;
        Some(number(&found.1))
    };
    tunable(process, "glibc.malloc.arena_max")
        .or_else(variable)?
        .filter(|limit| *limit > 0)
}

/// Value of an entry of GLIBC_TUNABLES in the target's environment; the inner None is one that is no number. As for the
/// loader, the last one counts.
fn tunable(process: &Process, name: &str) -> Option<Option<u64>> {
    let list = &process.environment.iter().find(|(k, _)| k == "GLIBC_TUNABLES")?.1;
    let (_, value) = list
        .split(':')
        .filter_map(|entry| entry.split_once('='))
        .rfind(|(key, _)| *key == name)?;
    Some(number(value))
}

/// As the loader reads one: decimal, or in `0x` or `0` notation.
fn number(value: &str) -> Option<u64> {
    match value.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None if value.len() > 1 && value.starts_with('0') => u64::from_str_radix(value, 8).ok(),
        None => value.parse().ok(),
    }
}

/// Major and minor of `2.36`, `3.13.1+`, `2.36-9+deb12u4`.
pub fn version_of(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.trim().split(['.', '-', '+']);
    let major = parts.next()?.parse().ok()?;
    let minor = parts.next()?;
    let digits = minor.find(|c: char| !c.is_ascii_digit()).unwrap_or(minor.len());
    Some((major, minor[..digits].parse().ok()?))
}

// ---- what to type ----

fn fill(ctx: &Context, template: &str) -> String {
    let process = ctx.process();
    let triple = match ctx.recording.host.architecture.as_str() {
        "aarch64" => "aarch64-linux-gnu",
        _ => "x86_64-linux-gnu",
    };
    let quota = ctx.last_tick().and_then(|t| t.cgroup).and_then(|c| c.quota_cpus);
    let text = template
        .replace("{triple}", triple)
        .replace(
            "{quota}",
            &quota.map_or_else(|| "CPUs".to_owned(), |q| format!("{q:.2} CPUs")),
        )
        .replace(
            "{whole_cpus}",
            &quota.map_or(1.0, |q| q.ceil().max(1.0)).to_string(),
        )
        .replace("{arenas}", &arenas_by_default(ctx).to_string())
        .replace("{java_heap}", &java_heap(process));
    let text = match text.contains("{threads}") {
        true => for_threads(ctx, &text),
        false => text,
    };
    let text = filled(&text, "{tunables:", |new| merged_tunables(process, new));
    let text = filled(&text, "{jemalloc:", |options| jemalloc_settings(ctx, options));
    let text = filled(&text, "{node:", |option| node_command(ctx, option));
    let text = text.replace("{cmd}", &command(ctx));
    // These are lists: setting one drops what it holds.
    let held = process
        .into_iter()
        .flat_map(|p| &p.environment)
        .find(|(k, _)| LISTS.contains(&k.as_str()) && text.starts_with(&format!("{k}=")));
    match held {
        Some((name, value)) => format!("{text}   # {name} holds {} already: keep it", quoted(value)),
        None => text,
    }
}

const LISTS: &[&str] = &[
    "LD_PRELOAD",
    "MALLOC_CONF",
    "JE_MALLOC_CONF",
    "_RJEM_MALLOC_CONF",
    "JAVA_TOOL_OPTIONS",
];

/// `{name:argument}` replaced, where the text has one.
fn filled(text: &str, opening: &str, with: impl Fn(&str) -> String) -> String {
    match text.split_once(opening) {
        Some((before, rest)) => {
            let (argument, after) = rest.split_once('}').unwrap_or((rest, ""));
            format!("{before}{}{after}", with(argument))
        }
        None => text.to_owned(),
    }
}

/// glibc's own limit on 64 bits: NARENAS_FROM_NCORES of malloc/arena.c.
fn arenas_by_default(ctx: &Context) -> u64 {
    8 * u64::from(ctx.recording.host.online_cpus.max(1))
}

/// Processes named in a command at most.
const NAMED_PROCESSES: usize = 8;

/// The threads of the processes that used CPU, busiest first, and a word where these are not all.
fn for_threads(ctx: &Context, template: &str) -> String {
    let mut cpu: BTreeMap<i32, u64> = BTreeMap::new();
    for thread in ctx.recording.threads.iter().filter(|t| t.cpu_ns > 0) {
        let spent = cpu.entry(thread.pid).or_default();
        *spent = spent.saturating_add(thread.cpu_ns);
    }
    let mut busy: Vec<i32> = cpu.keys().copied().collect();
    busy.sort_by_key(|pid| Reverse(cpu[pid]));
    let pids = match busy.is_empty() {
        true => ctx.pid(),
        false => {
            let named: Vec<String> = busy.iter().take(NAMED_PROCESSES).map(i32::to_string).collect();
            named.join(",")
        }
    };
    let text = template.replace("{threads}", &format!("$(ps -L -o tid= -p {pids})"));
    match busy.len() > NAMED_PROCESSES {
        true => {
            let mark = if text.contains(" # ") { ";" } else { "   #" };
            let all = busy.len();
            format!("{text}{mark} the busiest {NAMED_PROCESSES} of {all} processes")
        }
        false => text,
    }
}

/// Where the Java heap's limit stands: the command line goes before the environment, and of several options the last.
fn java_heap(process: Option<&Process>) -> String {
    let environment = process.into_iter().flat_map(|p| &p.environment);
    let set = environment.flat_map(|(_, value)| value.split_whitespace());
    let given = process.into_iter().flat_map(|p| &p.cmdline).map(String::as_str);
    let mut options = set
        .chain(given)
        .filter(|w| w.starts_with("-Xmx") && w.chars().all(plain));
    match options.next_back() {
        Some(option) => format!("now {option}"),
        None => "a quarter of the memory where no -Xmx is given".to_owned(),
    }
}

/// Names of jemalloc's entry points, after the prefix of a build.
const JEMALLOC_ENTRIES: &[&str] = &[
    "malloc", "free", "calloc", "realloc", "mallocx", "rallocx", "sdallocx",
];

/// The variable that this build of jemalloc reads: prefixed as its functions are (--with-jemalloc-prefix; tikv-jemallocator
/// has `_rjem_`, Redis `je_`). A build inside the program whose prefix no sampled function shows may read any of them.
fn jemalloc_settings(ctx: &Context, options: &str) -> String {
    const ALL: [&str; 3] = ["MALLOC_CONF", "_RJEM_MALLOC_CONF", "JE_MALLOC_CONF"];
    let allocator = ctx.process().and_then(|p| p.allocator.as_ref().ok());
    let variables = match allocator {
        Some(a) if a.how == Linkage::Static => match jemalloc_prefix(ctx.recording, &a.module) {
            Some("") => &ALL[..1],
            Some("_rjem_") => &ALL[1..2],
            Some(_) => &ALL[2..],
            None => &ALL[..],
        },
        _ => &ALL[..1],
    };
    let settings: Vec<String> = variables.iter().map(|v| format!("{v}={options}")).collect();
    settings.join(" ")
}

fn jemalloc_prefix(recording: &Recording, path: &str) -> Option<&'static str> {
    let names = || {
        let of_module = |module: u32| {
            recording
                .modules
                .get(module as usize)
                .is_some_and(|m| m.path == path)
        };
        let frames = recording
            .frames
            .iter()
            .filter(move |f| f.module.is_some_and(of_module));
        frames.filter_map(|f| f.symbol.as_deref())
    };
    // `je_` alone also begins the inner functions of a build without a prefix.
    let prefixes = ["_rjem_", "je_", ""];
    prefixes.into_iter().find(|prefix| {
        names().any(|name| {
            name.strip_prefix(prefix)
                .is_some_and(|rest| JEMALLOC_ENTRIES.contains(&rest))
        }) || (*prefix == "_rjem_" && names().any(|name| name.starts_with(prefix)))
    })
}

/// The target's command with an option for Node itself, or prose where Node does not stand at its head.
fn node_command(ctx: &Context, option: &str) -> String {
    let words = words(ctx);
    let is_node = |word: &String| matches!(word.rsplit('/').next(), Some("node" | "nodejs"));
    match words
        .split_first()
        .filter(|(first, _)| is_node(first))
        .and(line_of(words))
    {
        Some(line) => {
            let first = quoted(&words[0]);
            format!("{first} {option}{}", &line[first.len()..])
        }
        None => format!("start node with {option}"),
    }
}

/// GLIBC_TUNABLES is one list: what is set already stays, unless the remedy sets the same.
fn merged_tunables(process: Option<&Process>, new: &str) -> String {
    let present = process
        .and_then(|p| p.environment.iter().find(|(k, _)| k == "GLIBC_TUNABLES"))
        .map_or("", |(_, v)| v.as_str());
    let merged = merged(present, new, ':', '=');
    if merged.chars().all(plain) {
        merged
    } else {
        quoted(&merged)
    }
}

/// Two lists of settings as one: entries end at `separator`, their names at `mark`, and what the second sets goes before
/// what the first has.
pub fn merged(present: &str, new: &str, separator: char, mark: char) -> String {
    let name = |entry: &str| entry.split(mark).next().unwrap_or_default().to_owned();
    let replaced: Vec<String> = new.split(separator).map(name).collect();
    let kept = present
        .split(separator)
        .filter(|e| !e.is_empty() && !replaced.contains(&name(e)));
    let all: Vec<&str> = kept.chain(new.split(separator)).collect();
    all.join(&separator.to_string())
}

/// The command line as it was given or seen.
fn words<'a>(ctx: &Context<'a>) -> &'a [String] {
    let given = ctx.recording.meta.command.as_ref();
    given
        .or(ctx.process().map(|p| &p.cmdline))
        .map_or(&[], Vec::as_slice)
}

/// If it is short enough to be read in a line.
fn line_of(words: &[String]) -> Option<String> {
    const LONGEST: usize = 80;
    let line = words.iter().map(|w| quoted(w)).collect::<Vec<_>>().join(" ");
    let readable = !line.is_empty() && line.chars().count() <= LONGEST && !line.chars().any(char::is_control);
    readable.then_some(line)
}

fn command(ctx: &Context) -> String {
    line_of(words(ctx)).unwrap_or_else(|| UNKNOWN_COMMAND.to_owned())
}

fn plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || "_-./=:,+@%".contains(c)
}

/// As one word of a POSIX shell.
pub fn quoted(word: &str) -> String {
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

// ---- prediction ----

struct Prediction {
    gain: Option<Interval>,
    basis: String,
    /// The most that it could gain: the sum of its lines; 0 where they were not measured.
    most: f64,
    at_most: Option<f64>,
}

/// What the price list says that it saves, as a share of the target's CPU time.
pub(super) fn gain(ctx: &Context, remedy: &Remedy) -> Option<Interval> {
    predict(ctx, remedy).gain
}

fn predict(ctx: &Context, remedy: &Remedy) -> Prediction {
    let whole = ctx.cpu(remedy.acts_on).map_or(0.0, |s| s.share.high);
    let most = match remedy.effect {
        Effect::HugeTouch => whole * (1.0 - ctx.past_huge_pages().low),
        Effect::ArenaInsteadOfMap => whole * ctx.map_calls_by_malloc().map_or(1.0, |part| part.high),
        _ => whole,
    };
    let none = |basis: String| Prediction {
        gain: None,
        basis,
        most,
        at_most: None,
    };
    let lines = lines_of(remedy);
    let Ok(sum) = ctx.cpu(remedy.acts_on) else {
        return none(match remedy.effect {
            Effect::NotCpu(what) => format!("acts on {what}, not on CPU time"),
            _ => "the lines that it acts on were not measured".into(),
        });
    };
    match remedy.effect {
        Effect::NotCpu(what) => none(format!("acts on {what}, not on CPU time")),
        Effect::Swap => none(format!(
            "{} of CPU ({lines}) × what it saved of them in programs that were measured",
            percent(sum.share.point)
        )),
        Effect::OwnArenas => none(format!(
            "{} of CPU ({lines}), and the code that waiting threads slow; blocks freed by another thread still lock",
            percent(sum.share.point)
        )),
        Effect::DeeperCache => none(format!(
            "{} of CPU ({lines}) × the calls that miss the thread cache × what a cached call saves here",
            percent(sum.share.point)
        )),
        Effect::AtMost(fraction, why) => Prediction {
            most: most * fraction,
            ..none(format!("{lines}: {why}"))
        },
        Effect::HugeTouch => match huge_touch(ctx) {
            Some(removed) => priced(
                sum.share,
                removed,
                most,
                format!(
                    "{} of CPU ({lines}) × {} that huge pages save here, if all fresh memory gets them; blocks below 2 MiB that are mapped one by one do not",
                    percent(sum.share.point),
                    percent(removed.point)
                ),
            ),
            None => none(unpriced(ctx, "touch_2m or touch_4k")),
        },
        Effect::Populate => match (ctx.price(POPULATE_PAGE), ctx.price(TOUCH_4K)) {
            (Some(populate), Some(touch)) => {
                let removed = removed(populate, touch);
                priced(
                    sum.share,
                    removed,
                    most,
                    format!(
                        "{} of CPU ({lines}) × {} that populating saves a page here",
                        percent(sum.share.point),
                        percent(removed.point)
                    ),
                )
            }
            _ => none(unpriced(ctx, "populate_page or touch_4k")),
        },
        Effect::ArenaInsteadOfMap => arena_instead(ctx, most),
    }
}

fn priced(line: Interval, removed: Interval, most: f64, basis: String) -> Prediction {
    let gain = Interval::new(
        line.low * removed.low,
        line.point * removed.point,
        (line.high * removed.high).min(most),
    );
    Prediction {
        gain: Some(gain),
        basis,
        most,
        at_most: None,
    }
}

fn unpriced(ctx: &Context, name: &str) -> String {
    let why = match &ctx.recording.prices {
        Err(absence) => absence.detail.clone(),
        Ok(_) => format!("this machine's price list lacks {name}"),
    };
    format!("{why} (allocwall calibrate)")
}

/// 1 − after/before, both with their intervals, clamped to what can be removed at all.
fn removed(after: Interval, before: Interval) -> Interval {
    let fraction = |a: f64, b: f64| {
        if b > 0.0 {
            (1.0 - a / b).clamp(0.0, 1.0)
        } else {
            0.0
        }
    };
    Interval::new(
        fraction(after.high, before.low),
        fraction(after.point, before.point),
        fraction(after.low, before.high),
    )
}

/// Below this part of the map calls, what malloc does with them matters to nobody.
const MALLOCS_PART: f64 = 0.05;

/// From this part of the first touches on, there is little left to put on huge pages.
const MOSTLY_PAST: f64 = 0.5;

/// What a first touch of 2 MiB at once saves of 512 touches of 4 KiB.
pub(super) fn touch_price_saved(ctx: &Context) -> Option<Interval> {
    Some(removed(ctx.price(TOUCH_2M)?, ctx.price(TOUCH_4K)?.scaled(512.0)))
}

/// Whether the memory that is touched lies in ranges that can take huge pages is not seen: nothing at the low end. The high
/// end also holds for memory that lay idle, where a hypervisor has to find 512 pages one by one.
fn huge_touch(ctx: &Context) -> Option<Interval> {
    let warm = touch_price_saved(ctx)?;
    let idle = ctx
        .price(TOUCH_2M_IDLE)
        .zip(ctx.price(TOUCH_4K_IDLE))
        .map_or(0.0, |(huge, small)| removed(huge, small.scaled(512.0)).high);
    let past = ctx.past_huge_pages();
    Some(Interval::new(
        0.0,
        warm.point * (1.0 - past.point),
        warm.high.max(idle) * (1.0 - past.low),
    ))
}

/// Map calls whose caller is malloc go, less what the arena's own work costs; whether the first touches behind them go
/// too cannot be seen from outside, so those only raise the upper end, by as large a part of them as of the calls.
fn arena_instead(ctx: &Context, most: f64) -> Prediction {
    let none = |basis| Prediction {
        gain: None,
        basis,
        most,
        at_most: None,
    };
    let Ok(maps) = ctx.cpu(MAP_LINES) else {
        return none("the lines that it acts on were not measured".to_owned());
    };
    let (Some(arena), Some(mapped)) = (ctx.price(MALLOC_ARENA), ctx.price(MALLOC_MAPPED)) else {
        return none(unpriced(ctx, "malloc_arena or malloc_mapped"));
    };
    let Ok(by_malloc) = ctx.map_calls_by_malloc() else {
        return none("whose map calls they are was not seen".to_owned());
    };
    let removed = removed(arena, mapped);
    let point = maps.share.point * by_malloc.point * removed.point;
    let gain = Interval::new(
        maps.share.low * by_malloc.low * removed.low,
        point,
        (most * removed.high).max(point),
    );
    Prediction {
        gain: Some(gain),
        basis: format!(
            "{} of CPU (map calls, release) × {} by malloc × {} that its arena saves, and what it touches again",
            percent(maps.share.point),
            percent(by_malloc.point),
            percent(removed.point)
        ),
        most,
        at_most: None,
    }
}

/// Fraction of the samples on the bill's lines of map calls that came through the process-wide allocator, by the frames
/// nearest to the call.
pub(super) fn map_calls_by_malloc(recording: &Recording) -> Measured<Interval> {
    const FEWEST: u64 = 20;
    let classifier = Classifier::new(recording);
    let classes = classifier.cpu(&recording.samples);
    let (mut calls, mut by_malloc) = (0u64, 0u64);
    for (sample, class) in recording.samples.iter().zip(classes) {
        if MAP_LINES.contains(&class)
            && let Some(malloc) = classifier.called_by_allocator(sample)
        {
            calls += 1;
            by_malloc += u64::from(malloc);
        }
    }
    if calls < FEWEST {
        return Err(Absence::new(
            Reason::TooLittle,
            format!("{calls} samples in map calls"),
        ));
    }
    Ok(wilson(by_malloc, calls))
}

fn lines_of(remedy: &Remedy) -> String {
    remedy
        .acts_on
        .iter()
        .map(|c| c.key().replace('_', " "))
        .collect::<Vec<_>>()
        .join(", ")
}
