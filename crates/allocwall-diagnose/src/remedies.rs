//! Selects the remedies that apply to a target, and predicts the gain of each: lines of the bill × prices of this
//! machine.

use super::context::{Context, main_process, percent};
use super::expected;
use super::{Finding, Prescription, Status};
use crate::bill::{Bill, Classifier};
use allocwall_model::catalogue::prices::*;
use allocwall_model::catalogue::remedies::{
    ALLOCATOR_LINES, Effect, Kind, Need, Remedy, TABLE, UNKNOWN_COMMAND, replaced,
};
use allocwall_model::catalogue::thresholds;
use allocwall_model::catalogue::walls::Wall;
use allocwall_model::machine::chosen;
use allocwall_model::recording::{Allocator, AllocatorKind, Libc, Linkage, Process, Recording, Runtime};
use allocwall_model::stats::wilson;
use allocwall_model::units::{Absence, Interval, Measured, Reason};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// The remedies for the walls that were found, sorted: try them in this order. The first one is for the wall that the
/// sentence names. Remedies for contributors are included only if there is no wall.
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
    let best = ranked.iter().filter(|(rank, _)| !rank.advice).map(|(rank, _)| rank.saved).fold(0.0, f64::max);
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

/// What the remedies act on: the walls, or the contributors if there is no wall.
pub fn treated(findings: &[Finding]) -> Vec<Wall> {
    let walls = with(findings, Status::Wall);
    if !walls.is_empty() {
        return walls;
    }
    // Some interference and waiting is normal on a shared machine.
    let mut contributors = with(findings, Status::Contributor);
    contributors.retain(|w| w.rung() >= 3);
    contributors
}

fn with(findings: &[Finding], status: Status) -> Vec<Wall> {
    findings.iter().filter(|f| f.status == status).map(|f| f.wall).collect()
}

struct Rank {
    advice: bool,
    /// It undoes a setting of the target.
    cause: bool,
    /// It acts on the wall that the sentence names.
    leading: bool,
    /// It is made for the target's runtime. It decides between two remedies with the same expected and least saving,
    /// because it affects more of the runtime's allocations.
    for_its_runtime: bool,
    /// Saving of CPU time that a trial is expected to show. Less than `WORTH` counts as zero.
    saved: f64,
    /// The low end of that saving.
    sure: f64,
    kind: Kind,
    restart: bool,
    bound: f64,
}

impl Rank {
    /// A remedy that undoes a setting goes before one that works around it, if it is expected to save nearly as much.
    fn goes_first(&self, best: f64) -> bool {
        const NEARLY: f64 = 0.85;
        self.cause && self.saved >= NEARLY * best
    }
}

/// Expected gains below this do not affect the order.
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

/// The remedy with its command for this target, or the reason why it does not apply.
pub type Offer = Result<(Prescription, Promise), String>;

/// The values that a remedy is ranked by, as shares of the target's CPU time.
#[derive(Clone, Copy, Debug)]
pub struct Promise {
    /// The saving that a trial is expected to show.
    saved: Option<Interval>,
    /// Upper bound of the saving: the part of its lines of the bill that it can act on.
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
        && ctx.map_calls_by_malloc().is_ok_and(|part| part.high < MALLOCS_PART)
    {
        return Err("almost none of the map calls come from malloc".into());
    }
    if remedy.effect == Effect::HugeTouch && ctx.past_huge_pages().point > MOSTLY_PAST {
        return Err("most of the first touches are already on huge pages, or on shared memory".into());
    }
    let mut prediction = predict(ctx, remedy);
    let priced = match remedy.effect {
        Effect::Swap | Effect::DeeperCache | Effect::OwnArenas => true,
        Effect::HugeTouch | Effect::ArenaInsteadOfMap | Effect::Populate => prediction.gain.is_some(),
        Effect::AtMost(..) | Effect::NotCpu(_) => false,
    };
    let saved = expected::saved(ctx, remedy);
    prediction.gain = saved.filter(|_| priced);
    let saves_cpu = !matches!(remedy.effect, Effect::NotCpu(_));
    let most = prediction.gain.map_or(prediction.most, |gain| gain.high.max(prediction.most));
    prediction.at_most = (saves_cpu && ctx.cpu(remedy.acts_on).is_ok()).then_some(most);
    let (how, note) = filled_in(ctx, remedy);
    let prescription = Prescription {
        remedy: remedy.key.to_owned(),
        title: remedy.title.to_owned(),
        gain: prediction.gain,
        at_most: prediction.at_most,
        basis: prediction.basis,
        restart: remedy.restart,
        is_command: remedy.is_command() && !how.words,
        how: how.text,
        note,
        backfires: remedy.backfires.to_owned(),
        undo: with_notes(fill(ctx, remedy.undo)),
        moves: remedy.moves.to_owned(),
    };
    let most = prediction.most;
    Ok((prescription, Promise { saved, most }))
}

// ---- applicability ----

/// Whether a remedy that the user chose can have an effect on the target, whatever the walls are.
pub(super) fn all_met(ctx: &Context, remedy: &Remedy) -> Result<(), String> {
    needs_met(ctx, remedy, &Wall::ALL)
}

fn needs_met(ctx: &Context, remedy: &Remedy, walls: &[Wall]) -> Result<(), String> {
    remedy.needs.iter().try_for_each(|need| met(ctx, *need, walls))
}

/// Ok if the need is met, else the reason as text. An unknown fact counts as not met.
fn met(ctx: &Context, need: Need, walls: &[Wall]) -> Result<(), String> {
    let process = ctx.process().ok_or("the target was not identified")?;
    let require = |holds: bool, reason: &str| if holds { Ok(()) } else { Err(reason.to_owned()) };
    let runtime = process.runtime.as_ref().ok();
    match need {
        Need::Preload => preload(process),
        Need::Glibc(major, minor) => glibc(process, (major, minor)),
        Need::GlibcBefore(major, minor) => match &process.libc {
            Ok(Libc::Glibc { version }) => require(
                version_of(version).is_some_and(|v| v < (major, minor)),
                &format!("needs a glibc before {major}.{minor}"),
            ),
            _ => Err("the target's C library is not the dynamic glibc".into()),
        },
        Need::Musl => {
            require(matches!(process.libc, Ok(Libc::Musl { .. })), "the target's C library is not musl")
        }
        Need::GlibcMalloc => {
            glibc(process, (2, 0))?;
            require(kind(process) == Some(AllocatorKind::Glibc), "the target does not use glibc's malloc")
        }
        Need::Jemalloc => {
            require(kind(process) == Some(AllocatorKind::Jemalloc), "the target does not use jemalloc")
        }
        Need::Mimalloc => {
            require(kind(process) == Some(AllocatorKind::Mimalloc), "the target does not use mimalloc")
        }
        Need::Tcmalloc => {
            require(kind(process) == Some(AllocatorKind::Tcmalloc), "the target does not use tcmalloc")
        }
        Need::NotJemalloc => not_already(process, AllocatorKind::Jemalloc),
        Need::NotMimalloc => not_already(process, AllocatorKind::Mimalloc),
        Need::NotTcmalloc => not_already(process, AllocatorKind::Tcmalloc),
        Need::Cpython => {
            require(matches!(runtime, Some(Runtime::Cpython { .. })), "the target is not CPython")
        }
        Need::CpythonAtLeast(minor) => match runtime {
            Some(Runtime::Cpython { version, free_threaded: false }) => {
                require(version_of(version) >= Some((3, minor)), &format!("needs CPython 3.{minor} or later"))
            }
            _ => Err("the target is not a default build of CPython".into()),
        },
        Need::CpythonFreeThreaded => require(
            matches!(runtime, Some(Runtime::Cpython { free_threaded: true, .. })),
            "the target is not a free-threaded CPython",
        ),
        Need::Jvm => require(matches!(runtime, Some(Runtime::Jvm { .. })), "the target is not a JVM"),
        Need::Go => require(matches!(runtime, Some(Runtime::Go { .. })), "the target is not a Go program"),
        Need::Node => require(matches!(runtime, Some(Runtime::Node { .. })), "the target is not Node"),
        Need::NotJvm => match runtime {
            Some(Runtime::Jvm { .. }) => Err("the Java heap is not allocated with malloc".into()),
            Some(_) => Ok(()),
            None => Err("the target's runtime is not known".into()),
        },
        Need::MallocMatters => malloc_matters(ctx, runtime, walls),
        Need::ThpByAdvice => thp(ctx, process, &["madvise", "always"]),
        Need::ThpModeMadvise => thp(ctx, process, &["madvise"]),
        Need::MoreThanOneThread => require(ctx.bill.rates.threads_peak != 1, "the target has one thread"),
        Need::Unset(name) => require(!setting_mentions(process, name), &format!("{name} is set already")),
        Need::MmapThresholdBelow(bytes) => match tunable(process, "glibc.malloc.mmap_threshold") {
            None => Ok(()),
            Some(set) => require(set.is_some_and(|set| set < bytes), "the mapping threshold is set already"),
        },
        Need::ArenasLimited => require(
            arena_limit(process).is_some_and(|limit| limit < arenas_by_default(ctx)),
            "the number of arenas is not limited below glibc's default",
        ),
        Need::MoreThanOneNode => require(ctx.recording.host.numa_nodes > 1, "the machine has one NUMA node"),
        Need::Quota => require(
            ctx.last_tick().and_then(|t| t.cgroup).is_some_and(|c| c.quota_cpus.is_some()),
            "the cgroup has no CPU quota, or it is unknown",
        ),
    }
}

fn kind(process: &Process) -> Option<AllocatorKind> {
    process.allocator.as_ref().ok().map(|a| a.kind)
}

fn preload(process: &Process) -> Result<(), String> {
    match &process.libc {
        Ok(Libc::Static) => return Err("the target is statically linked: no loader reads LD_PRELOAD".into()),
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
        return Err("the target has setuid or file capabilities: the loader ignores LD_PRELOAD".into());
    }
    // A malloc that is linked into the program takes precedence over a preloaded one.
    if matches!(&process.allocator, Ok(Allocator { how: Linkage::Static, .. })) {
        return Err("the allocator is linked into the program: a preload does not replace it".into());
    }
    Ok(())
}

fn glibc(process: &Process, at_least: (u32, u32)) -> Result<(), String> {
    match &process.libc {
        Ok(Libc::Glibc { version }) => match version_of(version) {
            Some(v) if v >= at_least && process.secure_exec != Ok(true) => Ok(()),
            Some(v) if v >= at_least => {
                Err("the target has setuid or file capabilities: the loader ignores tunables".into())
            }
            Some(_) => Err(format!("needs glibc {}.{}, the target has {version}", at_least.0, at_least.1)),
            None => Err(format!("unknown format of the glibc version: {version:?}")),
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

/// Another malloc has no effect on objects that a runtime allocates itself (CPython: up to 512 bytes; the Java, Go
/// and V8 heaps). For such a runtime it is offered only if malloc's own line of the bill is large.
fn malloc_matters(ctx: &Context, runtime: Option<&Runtime>, walls: &[Wall]) -> Result<(), String> {
    if matches!(runtime, Some(Runtime::Native)) {
        return Ok(());
    }
    if walls.contains(&Wall::AllocatorCode) || walls.contains(&Wall::AllocatorContention) {
        return Ok(());
    }
    let lines = ctx.cpu(ALLOCATOR_LINES);
    match lines {
        Ok(sum) if sum.share.low >= thresholds::of(Wall::AllocatorCode).contributor => Ok(()),
        Ok(_) => Err("the runtime allocates its own objects, and malloc takes little of the CPU time".into()),
        Err(_) => Err("the runtime allocates its own objects, and malloc's share was not measured".into()),
    }
}

/// The recorded mode has the form of sysfs, `always [madvise] never`, or is the mode alone.
fn thp(ctx: &Context, process: &Process, modes: &[&str]) -> Result<(), String> {
    let mode = match &ctx.recording.host.thp_enabled {
        Ok(text) => chosen(text).unwrap_or(text.trim()),
        Err(absence) => {
            return Err(format!("the mode of transparent huge pages is unknown: {absence}"));
        }
    };
    if process.thp_disabled == Ok(true) {
        return Err("transparent huge pages are disabled for this process (prctl)".into());
    }
    if modes.contains(&mode) { Ok(()) } else { Err(format!("transparent huge pages are in mode {mode}")) }
}

fn setting_mentions(process: &Process, name: &str) -> bool {
    let environment = process.environment.iter().any(|(k, v)| k.contains(name) || v.contains(name));
    environment || process.cmdline.iter().any(|word| word.contains(name))
}

/// Whether the remedy undoes a setting of the target that causes the wall.
fn undoes_a_setting(process: Option<&Process>, remedy: &Remedy) -> bool {
    remedy.needs.iter().any(|need| match need {
        Need::ArenasLimited => true,
        Need::MmapThresholdBelow(_) => {
            process.is_some_and(|p| tunable(p, "glibc.malloc.mmap_threshold").is_some())
        }
        _ => false,
    })
}

/// The limit on glibc's arenas from the environment. 0 means no limit.
fn arena_limit(process: &Process) -> Option<u64> {
    let variable = || {
        let found = process.environment.iter().find(|(k, _)| k == "MALLOC_ARENA_MAX")?;
        Some(number(&found.1))
    };
    tunable(process, "glibc.malloc.arena_max").or_else(variable)?.filter(|limit| *limit > 0)
}

/// Value of an entry of GLIBC_TUNABLES in the target's environment. The inner None is a value that is not a number.
/// The last entry counts, as it does for the loader.
fn tunable(process: &Process, name: &str) -> Option<Option<u64>> {
    let list = &process.environment.iter().find(|(k, _)| k == "GLIBC_TUNABLES")?.1;
    let (_, value) =
        list.split(':').filter_map(|entry| entry.split_once('=')).rfind(|(key, _)| *key == name)?;
    Some(number(value))
}

/// A number in the notation of the loader: decimal, hexadecimal with `0x`, or octal with `0`.
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

// ---- commands ----

/// A template whose placeholders are filled in.
struct Filled {
    text: String,
    /// The result is advice, although the template is a command.
    words: bool,
    notes: Vec<String>,
}

/// The command or advice, and the notes on it.
fn filled_in(ctx: &Context, remedy: &Remedy) -> (Filled, Option<String>) {
    let how = fill(ctx, &remedy.template());
    let mut notes = vec![];
    if !remedy.note.is_empty() {
        notes.push(fill(ctx, remedy.note).text);
    }
    notes.extend(how.notes.iter().cloned());
    // These variables are lists: setting one drops its present value.
    let held = ctx
        .process()
        .into_iter()
        .flat_map(|p| &p.environment)
        .find(|(k, _)| LISTS.contains(&k.as_str()) && how.text.starts_with(&format!("{k}=")));
    notes.extend(held.map(|(name, value)| format!("{name} already contains {}: keep it", quoted(value))));
    let note = notes.join("; ");
    (how, (!note.is_empty()).then_some(note))
}

/// One line for a shell, with the notes as its comment.
fn with_notes(filled: Filled) -> String {
    if filled.notes.is_empty() {
        filled.text
    } else {
        format!("{}   # {}", filled.text, filled.notes.join("; "))
    }
}

fn fill(ctx: &Context, template: &str) -> Filled {
    let process = ctx.process();
    let triple = match ctx.recording.host.architecture.as_str() {
        "aarch64" => "aarch64-linux-gnu",
        _ => "x86_64-linux-gnu",
    };
    let quota = ctx.last_tick().and_then(|t| t.cgroup).and_then(|c| c.quota_cpus);
    let text = template
        .replace("{triple}", triple)
        .replace("{quota}", &quota.map_or_else(|| "CPUs".to_owned(), |q| format!("{q:.2} CPUs")))
        .replace("{whole_cpus}", &quota.map_or(1.0, |q| q.ceil().max(1.0)).to_string())
        .replace("{arenas}", &arenas_by_default(ctx).to_string())
        .replace("{java_heap}", &java_heap(process));
    let mut filled = Filled { text, words: false, notes: vec![] };
    if filled.text.contains("{threads}") {
        let (threads, note) = busy_threads(ctx);
        filled.text = filled.text.replace("{threads}", &threads);
        filled.notes.extend(note);
    }
    filled.text = replaced(&filled.text, "{tunables:", |new| merged_tunables(process, new));
    filled.text = replaced(&filled.text, "{jemalloc:", |options| jemalloc_settings(ctx, options));
    filled.text = replaced(&filled.text, "{node:", |option| {
        node_command(ctx, option).unwrap_or_else(|| {
            filled.words = true;
            format!("start node with {option}")
        })
    });
    filled.text = filled.text.replace("{cmd}", &command(ctx));
    filled
}

const LISTS: &[&str] =
    &["LD_PRELOAD", "MALLOC_CONF", "JE_MALLOC_CONF", "_RJEM_MALLOC_CONF", "JAVA_TOOL_OPTIONS"];

/// glibc's own limit on 64 bits: NARENAS_FROM_NCORES of malloc/arena.c.
fn arenas_by_default(ctx: &Context) -> u64 {
    8 * u64::from(ctx.recording.host.online_cpus.max(1))
}

/// Maximum number of processes in a command.
const NAMED_PROCESSES: usize = 8;

/// A shell expression for the threads of the processes that used CPU, busiest first. The note says if some processes
/// are left out.
fn busy_threads(ctx: &Context) -> (String, Option<String>) {
    let mut cpu: BTreeMap<i32, u64> = BTreeMap::new();
    for thread in ctx.recording.threads.iter().filter(|t| t.cpu_ns > 0) {
        let spent = cpu.entry(thread.pid).or_default();
        *spent = spent.saturating_add(thread.cpu_ns);
    }
    let mut busy: Vec<i32> = cpu.keys().copied().collect();
    busy.sort_by_key(|pid| Reverse(cpu[pid]));
    let pids = if busy.is_empty() {
        ctx.pid().to_string()
    } else {
        let named: Vec<String> = busy.iter().take(NAMED_PROCESSES).map(i32::to_string).collect();
        named.join(",")
    };
    let all = busy.len();
    let note = (all > NAMED_PROCESSES).then(|| format!("the busiest {NAMED_PROCESSES} of {all} processes"));
    (format!("$(ps -L -o tid= -p {pids})"), note)
}

/// The present limit of the Java heap. The command line overrides the environment; of several options the last one
/// counts.
fn java_heap(process: Option<&Process>) -> String {
    let environment = process.into_iter().flat_map(|p| &p.environment);
    let set = environment.flat_map(|(_, value)| value.split_whitespace());
    let given = process.into_iter().flat_map(|p| &p.cmdline).map(String::as_str);
    let mut options = set.chain(given).filter(|w| w.starts_with("-Xmx") && w.chars().all(plain));
    match options.next_back() {
        Some(option) => format!("now {option}"),
        None => "a quarter of the memory if no -Xmx is given".to_owned(),
    }
}

/// Names of jemalloc's entry points, without the prefix of a build.
const JEMALLOC_ENTRIES: &[&str] = &["malloc", "free", "calloc", "realloc", "mallocx", "rallocx", "sdallocx"];

/// The variable that this build of jemalloc reads. It has the same prefix as the functions (--with-jemalloc-prefix;
/// tikv-jemallocator has `_rjem_`, Redis `je_`). If no sampled function shows the prefix, all variables are set.
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
        let of_module = |module: u32| recording.modules.get(module as usize).is_some_and(|m| m.path == path);
        let frames = recording.frames.iter().filter(move |f| f.module.is_some_and(of_module));
        frames.filter_map(|f| f.symbol.as_deref())
    };
    // In a build without a prefix the inner functions begin with `je_` too.
    let prefixes = ["_rjem_", "je_", ""];
    prefixes.into_iter().find(|prefix| {
        names().any(|name| name.strip_prefix(prefix).is_some_and(|rest| JEMALLOC_ENTRIES.contains(&rest)))
            || (*prefix == "_rjem_" && names().any(|name| name.starts_with(prefix)))
    })
}

/// The target's command with an option for Node itself. None if its program is not Node.
fn node_command(ctx: &Context, option: &str) -> Option<String> {
    let words = words(ctx);
    let (first, _) = words.split_first()?;
    if !matches!(first.rsplit('/').next(), Some("node" | "nodejs")) {
        return None;
    }
    let line = line_of(words)?;
    let first = quoted(first);
    Some(format!("{first} {option}{}", &line[first.len()..]))
}

/// GLIBC_TUNABLES is one list. Present entries stay, unless the remedy sets the same tunable.
fn merged_tunables(process: Option<&Process>, new: &str) -> String {
    let present = process
        .and_then(|p| p.environment.iter().find(|(k, _)| k == "GLIBC_TUNABLES"))
        .map_or("", |(_, v)| v.as_str());
    let merged = merged(present, new, ':', '=');
    if merged.chars().all(plain) { merged } else { quoted(&merged) }
}

/// Merges two lists of settings. Entries end at `separator`, their names at `mark`. `new` overrides `present`.
pub fn merged(present: &str, new: &str, separator: char, mark: char) -> String {
    let name = |entry: &str| entry.split(mark).next().unwrap_or_default().to_owned();
    let replaced: Vec<String> = new.split(separator).map(name).collect();
    let kept = present.split(separator).filter(|e| !e.is_empty() && !replaced.contains(&name(e)));
    let all: Vec<&str> = kept.chain(new.split(separator)).collect();
    all.join(&separator.to_string())
}

/// The command line that the user gave, else the one that the kernel reports.
fn words<'a>(ctx: &Context<'a>) -> &'a [String] {
    let given = ctx.recording.meta.command.as_ref();
    given.or(ctx.process().map(|p| &p.cmdline)).map_or(&[], Vec::as_slice)
}

/// The command as one line, if it is short enough.
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

/// Quoted as one word of a POSIX shell.
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
    /// Upper bound of the gain: the sum of its lines. 0 if they were not measured.
    most: f64,
    at_most: Option<f64>,
}

/// The gain by this machine's prices, as a share of the target's CPU time.
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
    let none = |basis: String| Prediction { gain: None, basis, most, at_most: None };
    let lines = lines_of(remedy);
    let Ok(sum) = ctx.cpu(remedy.acts_on) else {
        return none(match remedy.effect {
            Effect::NotCpu(what) => format!("acts on {what}, not on CPU time"),
            _ => "the lines of the bill that it acts on were not measured".into(),
        });
    };
    match remedy.effect {
        Effect::NotCpu(what) => none(format!("acts on {what}, not on CPU time")),
        Effect::Swap => none(format!(
            "{} of CPU ({lines}) × the part that it saved in other programs that were measured",
            percent(sum.share.point)
        )),
        Effect::OwnArenas => none(format!(
            "{} of CPU ({lines}), and the code that contention slows; freeing a block of another thread still needs a lock",
            percent(sum.share.point)
        )),
        Effect::DeeperCache => none(format!(
            "{} of CPU ({lines}) × the part of calls that miss the thread cache × what a cached call saves on this machine",
            percent(sum.share.point)
        )),
        Effect::AtMost(fraction, why) => {
            Prediction { most: most * fraction, ..none(format!("{lines}: {why}")) }
        }
        Effect::HugeTouch => match huge_touch(ctx) {
            Some(removed) => priced(
                sum.share,
                removed,
                most,
                format!(
                    "{} of CPU ({lines}) × {} that huge pages save on this machine, if all fresh memory gets them; blocks below 2 MiB that are mapped one by one do not get them",
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
                        "{} of CPU ({lines}) × {} that populating saves per page on this machine",
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
    Prediction { gain: Some(gain), basis, most, at_most: None }
}

fn unpriced(ctx: &Context, name: &str) -> String {
    let why = match &ctx.recording.prices {
        Err(absence) => absence.detail.clone(),
        Ok(_) => format!("this machine's price list has no {name}"),
    };
    format!("{why} (run allocwall calibrate)")
}

/// 1 − after/before, both with their intervals, clamped to 0 to 1.
fn removed(after: Interval, before: Interval) -> Interval {
    let fraction = |a: f64, b: f64| {
        if b > 0.0 { (1.0 - a / b).clamp(0.0, 1.0) } else { 0.0 }
    };
    Interval::new(
        fraction(after.high, before.low),
        fraction(after.point, before.point),
        fraction(after.low, before.high),
    )
}

/// Below this part of the map calls, malloc's own map calls are negligible.
const MALLOCS_PART: f64 = 0.05;

/// From this part of the first touches on, huge pages can save little.
const MOSTLY_PAST: f64 = 0.5;

/// The part that one first touch of 2 MiB saves of 512 touches of 4 KiB.
pub(super) fn touch_price_saved(ctx: &Context) -> Option<Interval> {
    Some(removed(ctx.price(TOUCH_2M)?, ctx.price(TOUCH_4K)?.scaled(512.0)))
}

/// The low end is 0, because it is unknown whether the touched memory is in ranges that can have huge pages. The high
/// end also holds for memory that was idle, for which the hypervisor has to find 512 pages one by one.
fn huge_touch(ctx: &Context) -> Option<Interval> {
    let warm = touch_price_saved(ctx)?;
    let idle = ctx
        .price(TOUCH_2M_IDLE)
        .zip(ctx.price(TOUCH_4K_IDLE))
        .map_or(0.0, |(huge, small)| removed(huge, small.scaled(512.0)).high);
    let past = ctx.past_huge_pages();
    Some(Interval::new(0.0, warm.point * (1.0 - past.point), warm.high.max(idle) * (1.0 - past.low)))
}

/// The map calls of malloc are saved, less the cost of the arena. Whether their first touches are saved too cannot be
/// measured from outside: they only raise the upper end, by the same part as for the calls.
fn arena_instead(ctx: &Context, most: f64) -> Prediction {
    let none = |basis| Prediction { gain: None, basis, most, at_most: None };
    let Ok(maps) = ctx.cpu(Wall::MapChurn.lines()) else {
        return none("the lines of the bill that it acts on were not measured".to_owned());
    };
    let (Some(arena), Some(mapped)) = (ctx.price(MALLOC_ARENA), ctx.price(MALLOC_MAPPED)) else {
        return none(unpriced(ctx, "malloc_arena or malloc_mapped"));
    };
    let Ok(by_malloc) = ctx.map_calls_by_malloc() else {
        return none("the callers of the map calls are unknown".to_owned());
    };
    let removed = removed(arena, mapped);
    let point = maps.share.point * by_malloc.point * removed.point;
    let gain =
        Interval::new(maps.share.low * by_malloc.low * removed.low, point, (most * removed.high).max(point));
    Prediction {
        gain: Some(gain),
        basis: format!(
            "{} of CPU (map calls, release) × {} by malloc × {} that an arena saves, and first touches of memory that is used again",
            percent(maps.share.point),
            percent(by_malloc.point),
            percent(removed.point)
        ),
        most,
        at_most: None,
    }
}

/// Fraction of the samples in map calls that the process-wide allocator made, by the frames nearest to the call.
pub(super) fn map_calls_by_malloc(recording: &Recording) -> Measured<Interval> {
    const FEWEST: u64 = 20;
    let classifier = Classifier::new(recording);
    let classes = classifier.cpu(&recording.samples);
    let (mut calls, mut by_malloc) = (0u64, 0u64);
    for (sample, class) in recording.samples.iter().zip(classes) {
        if Wall::MapChurn.lines().contains(&class)
            && let Some(malloc) = classifier.called_by_allocator(sample)
        {
            calls += 1;
            by_malloc += u64::from(malloc);
        }
    }
    if calls < FEWEST {
        return Err(Absence::new(Reason::TooLittle, format!("only {calls} samples in map calls")));
    }
    Ok(wilson(by_malloc, calls))
}

fn lines_of(remedy: &Remedy) -> String {
    remedy.acts_on.iter().map(|c| c.key().replace('_', " ")).collect::<Vec<_>>().join(", ")
}
