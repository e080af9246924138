//! Selects the remedies that apply to a target, sorts them, and writes the command of each for this target.

use super::context::{Context, bytes, main_process, total};
use super::expected;
use super::needs::{self, NeedState};
use super::{Finding, Prescription, ShellLine, Status};
use crate::bill::Bill;
use allocwall_model::catalogue::cost::CostClass;
use allocwall_model::catalogue::modules::{JEMALLOC_BUILDS, JEMALLOC_CONF};
use allocwall_model::catalogue::options;
use allocwall_model::catalogue::remedies::{
    Change, Effect, How, Kind, Need, Remedy, TABLE, TRIAL_OF_START, UNKNOWN_COMMAND, find, replaced,
};
use allocwall_model::catalogue::tunables::arenas_by_default;
use allocwall_model::catalogue::walls::Wall;
use allocwall_model::recording::{Ended, Linkage, Owner, Process, Recording};
use allocwall_model::resident::{self, ResidentOwner, ReturnOrder, Returned, return_order};
use allocwall_model::shell::{is_plain, merged, quoted};
use allocwall_model::units::Interval;
use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BTreeSet};

/// The remedies for the walls that were found, sorted: try them in this order. The first one is for the wall that the
/// sentence names. Remedies for contributors are included only if no wall is about the target's own time.
pub fn prescribe(
    recording: &Recording,
    bill: &Bill,
    findings: &[Finding],
    leading: Option<Wall>,
) -> Vec<Prescription> {
    let walls = treated(findings);
    let mut also = walls.clone();
    if expected::places_matter(&Context::new(recording, bill)) {
        treat_calls(&mut also);
    }
    // Other places of blocks are a matter of the allocator alone: what reduces calls is not offered for them.
    let fits = |remedy: &Remedy| {
        remedy.effect == Effect::Swap || remedy.walls.iter().any(|wall| walls.contains(wall))
    };
    let mut ranked: Vec<(Rank, Prescription)> = offers(recording, bill, &also)
        .into_iter()
        .filter(|(remedy, _)| fits(remedy))
        .filter_map(|(remedy, offer)| {
            let (prescription, saving) = offer.ok()?;
            let rank = rank(remedy, main_process(recording), findings, leading, saving);
            Some((rank, prescription))
        })
        .collect();
    // Where memory is the wall, what a remedy returns of it counts before the CPU time that it saves.
    let by_memory = leading == Some(Wall::Retention);
    let most_returned = ranked.iter().map(|(rank, _)| rank.returned).max().unwrap_or(0);
    let best_of = |fits: fn(&Rank) -> bool| {
        let fitting = ranked.iter().map(|(rank, _)| rank).filter(|rank| !rank.advice && fits(rank));
        fitting.map(|rank| rank.saved).fold(0.0, f64::max)
    };
    let best = best_of(|_| true);
    let best_of_target = best_of(|rank| rank.kind != Kind::Machine);
    ranked.sort_by(|a, b| {
        let (a, b) = (&a.0, &b.0);
        let memory = a.memory(most_returned).cmp(&b.memory(most_returned));
        let first = if by_memory { memory } else { Ordering::Equal };
        first
            .then(b.answers.cmp(&a.answers))
            .then(a.may_lose.cmp(&b.may_lose))
            .then(a.advice.cmp(&b.advice))
            .then(b.goes_first(best).cmp(&a.goes_first(best)))
            .then(a.goes_last(best_of_target).cmp(&b.goes_last(best_of_target)))
            .then(b.saved.total_cmp(&a.saved))
            .then(b.leading.cmp(&a.leading))
            .then(memory)
            .then(a.unknown.cmp(&b.unknown))
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

/// What the remedies act on: the walls, with the contributors if no wall is about the target's own time; and the allocator's
/// calls if they are many.
pub fn treated(findings: &[Finding]) -> Vec<Wall> {
    let mut treated = with(findings, Status::Wall);
    // Interference and kept memory are other matters than the time that the program takes.
    if treated.iter().all(|wall| wall.rung() == Wall::RunQueue.rung() || *wall == Wall::Retention) {
        let mut contributors = with(findings, Status::Contributor);
        // Some interference and waiting is normal on a shared machine.
        contributors.retain(|w| w.rung() >= 3);
        treated.extend(contributors);
    }
    let many = |f: &Finding| {
        let share = f.share.map_or(0.0, |share| share.point);
        f.wall == Wall::AllocatorCode && f.status != Status::Wall && share >= needs::WORTH_A_SWAP
    };
    if findings.iter().any(many) {
        treat_calls(&mut treated);
    }
    treated
}

/// Less CPU time does not help a target that waits.
fn treat_calls(treated: &mut Vec<Wall>) {
    let waits = |wall: &Wall| matches!(wall, Wall::Waiting | Wall::Disk | Wall::Network);
    if !treated.contains(&Wall::CallRate) && !treated.iter().any(waits) {
        treated.push(Wall::CallRate);
    }
}

fn with(findings: &[Finding], status: Status) -> Vec<Wall> {
    findings.iter().filter(|f| f.status == status).map(|f| f.wall).collect()
}

struct Rank {
    remedy: &'static Remedy,
    /// It acts on a wall or contributor: the allocator's calls may be many and no wall.
    answers: bool,
    /// It may cost far more than it saves.
    may_lose: bool,
    /// Advice whose effect was not measured.
    advice: bool,
    /// It undoes a setting of the target.
    cause: bool,
    /// It acts on the wall that the sentence names.
    leading: bool,
    /// It is made for the target's runtime. It decides between two remedies with the same expected and least saving,
    /// because it affects more of the runtime's allocations.
    for_its_runtime: bool,
    /// Resident bytes that it is expected to return.
    returned: u64,
    /// It acts on CPU time, but nothing predicts its saving.
    unknown: bool,
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

    /// What returns memory goes before what does not.
    fn memory(&self, most: u64) -> (bool, Option<ReturnOrder>) {
        let order = (self.returned > 0).then(|| return_order(self.remedy, self.returned, most));
        (order.is_none(), order)
    }

    /// What changes the whole machine goes after what changes the target alone, unless it is expected to save far more.
    fn goes_last(&self, best_of_target: f64) -> bool {
        const FAR_MORE: f64 = 2.0;
        self.kind == Kind::Machine && best_of_target > 0.0 && self.saved < FAR_MORE * best_of_target
    }
}

/// Expected gains below this do not affect the order.
const WORTH: f64 = 0.01;

fn rank(
    remedy: &'static Remedy,
    process: Option<&Process>,
    findings: &[Finding],
    leading: Option<Wall>,
    saving: Saving,
) -> Rank {
    Rank {
        remedy,
        answers: findings.iter().any(|f| f.status.has_fired() && remedy.walls.contains(&f.wall)),
        may_lose: saving.may_lose,
        advice: remedy.kind == Kind::Advice && saving.returned == 0,
        cause: needs::undoes_a_setting(process, remedy),
        leading: leading.is_some_and(|w| remedy.walls.contains(&w)),
        for_its_runtime: remedy.needs.iter().any(|need| need.runtime().is_some()),
        returned: saving.returned,
        unknown: saving.saved.is_none() && !remedy.acts_on.is_empty(),
        saved: saving.saved.map_or(0.0, |s| s.point).max(WORTH) - WORTH,
        sure: saving.saved.map_or(0.0, |s| s.low),
        kind: remedy.kind,
        restart: remedy.restart,
        bound: saving.most,
    }
}

/// The remedy with its command for this target, or why it is not offered.
pub type Offer = Result<(Prescription, Saving), Unfit>;

#[derive(Clone, Debug, PartialEq)]
pub enum Unfit {
    /// The need is not met, or not known to be met.
    Need(Need, NeedState),
    /// Almost none of the map calls come from malloc.
    MapCallsOfOthers,
    /// Almost none of the wall's page faults, or almost none of the memory, are in memory that it changes.
    MemoryOfOthers,
    /// It can save almost nothing of this target's CPU time, or is not expected to save any.
    NothingToSave,
    /// Most of the first touches are already on huge pages, or on shared memory.
    TouchesPastHugePages,
    /// It can return almost nothing of the target's resident memory.
    NothingToReturn,
}

/// The values that a remedy is ranked by, as shares of the target's CPU time.
#[derive(Clone, Copy, Debug)]
pub struct Saving {
    /// The saving that a trial is expected to show. None if the remedy saves no CPU time, or if nothing predicts it.
    saved: Option<Interval>,
    /// Upper bound of the saving: the part of its lines of the bill that it can act on.
    most: f64,
    /// Resident bytes that it is expected to return; 0 if that is unknown.
    returned: u64,
    /// See [`expected::Prediction`].
    may_lose: bool,
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

/// Below this part of the map calls, of the first touches, or of the memory, those of malloc are negligible.
pub(super) const MALLOCS_PART: f64 = 0.05;

/// A smaller share of CPU time than this can't be shown in a trial.
const LEAST_SAVED: f64 = 0.005;

/// From this part of the first touches on, huge pages can save little.
const MOSTLY_PAST: f64 = 0.5;

fn fit(ctx: &Context, remedy: &Remedy, walls: &[Wall]) -> Offer {
    if let Some((need, state)) = needs::first_unmet(ctx, remedy, walls) {
        return Err(Unfit::Need(need, state));
    }
    let treats: Vec<Wall> = remedy.walls.iter().copied().filter(|wall| walls.contains(wall)).collect();
    let of_maps = treats.iter().all(|wall| matches!(wall, Wall::MapChurn | Wall::AddressSpaceLock));
    let of_malloc = remedy.needs.iter().any(|need| matches!(need, Need::Uses(_) | Need::MallocMatters));
    if (remedy.effect == Effect::ArenaInsteadOfMap || of_maps && of_malloc)
        && ctx.map_calls_by_malloc().is_ok_and(|part| part.high < MALLOCS_PART)
    {
        return Err(Unfit::MapCallsOfOthers);
    }
    let of_others = |wall: &Wall| match wall {
        Wall::FirstTouch => expected::touches_others(ctx, remedy),
        Wall::FileFault => ctx.faults_shared_memory(),
        Wall::Tlb => expected::memory_of_others(ctx, remedy),
        _ => false,
    };
    if treats.iter().all(of_others) {
        return Err(Unfit::MemoryOfOthers);
    }
    // It may have other effects too: fewer page walks, other calls.
    if treats == [Wall::FirstTouch]
        && remedy.effect == Effect::HugeTouch
        && ctx.past_huge_pages().low > MOSTLY_PAST
    {
        return Err(Unfit::TouchesPastHugePages);
    }
    let prediction = expected::prediction(ctx, remedy);
    // The point of a wall without lines of its own, as that of the TLB, may stay at zero because nothing predicts it.
    let has_lines = |wall: &Wall| !wall.lines().is_empty() && wall.waits().is_empty();
    let expects_nothing = prediction.gain.is_some_and(|gain| gain.point < LEAST_SAVED);
    if treats.iter().all(has_lines) && expects_nothing {
        return Err(Unfit::NothingToSave);
    }
    // Waiting time and memory can be saved without saving CPU time. The saving is one of its lines: it says nothing about
    // a wall of other lines, for which the remedy is offered for another reason.
    let acts_on = |line: &CostClass| remedy.acts_on.contains(line);
    let of_cpu = |wall: &Wall| wall.lines().iter().any(acts_on) && wall.waits().is_empty();
    let by_places = remedy.effect == Effect::Swap && expected::places_matter(ctx);
    if treats.iter().all(of_cpu) && !by_places && prediction.best.is_some_and(|best| best < LEAST_SAVED) {
        return Err(Unfit::NothingToSave);
    }
    let returned = match treats.contains(&Wall::Retention) {
        true => ctx.returned(remedy),
        false => Returned::Unknown,
    };
    if treats == [Wall::Retention] && returned == Returned::AlmostNothing {
        return Err(Unfit::NothingToReturn);
    }
    let (returns_bytes, returned, returning) = match returned {
        Returned::AtMost { least, bytes: most, of } => {
            let sure = match least {
                0 => String::new(),
                least => format!("at least {}, ", bytes(least as f64)),
            };
            let text = format!("; returns {sure}at most {} ({of})", bytes(most as f64));
            (Some(most), resident::expected(least, most), text)
        }
        Returned::AlmostNothing | Returned::Unknown => (None, 0, String::new()),
    };
    let saving =
        Saving { saved: prediction.saved, most: prediction.most, returned, may_lose: prediction.may_lose };
    let template = remedy.template();
    let start_again = ctx.root().is_none() && template.contains(THREADS);
    let (template, undo) =
        if start_again { (RENICED.to_owned(), "restart without renice") } else { (template, remedy.undo) };
    let how = fill(ctx, &template);
    let note = note(ctx, remedy, &how);
    let prescription = Prescription {
        remedy: remedy.key.to_owned(),
        title: remedy.title.to_owned(),
        gain: prediction.gain,
        at_most: prediction.at_most,
        returns_bytes,
        basis: prediction.basis + &returning,
        restart: remedy.restart || start_again,
        is_command: remedy.is_command() && !how.words,
        how: ShellLine { command: how.text, remark: note, has_gap: how.has_gap },
        backfires: remedy.backfires.replace("{heap_growth}", &heap_growth(ctx, remedy)),
        undo: with_notes(fill(ctx, undo)),
        moves: remedy.moves.to_owned(),
    };
    Ok((prescription, saving))
}

// ---- commands ----

/// A template whose placeholders are filled in.
struct Filled {
    text: String,
    /// The result is advice, although the template is a command.
    words: bool,
    /// The target's command is unknown or too long, so the line has a placeholder instead.
    has_gap: bool,
    notes: Vec<String>,
}

/// The notes on a remedy and on its command; None if there are none.
fn note(ctx: &Context, remedy: &Remedy, how: &Filled) -> Option<String> {
    let mut notes = vec![];
    notes.extend(present_settings(ctx, remedy));
    if !remedy.note.is_empty() {
        notes.push(fill(ctx, remedy.note).text);
    }
    notes.extend(remedy.package());
    notes.extend(how.notes.iter().cloned());
    let lists = lists_set(ctx, remedy);
    let environment = ctx.process().into_iter().flat_map(|p| &p.environment);
    let held = environment.filter(|(name, _)| lists.contains(&name.as_str()));
    notes.extend(held.map(|(name, value)| format!("{name} already contains {}: keep it", quoted(value))));
    (!notes.is_empty()).then(|| notes.join("; "))
}

/// The present values of the settings that the remedy raises: `GOGC is 20`.
fn present_settings(ctx: &Context, remedy: &Remedy) -> Vec<String> {
    let present = remedy.needs.iter().filter_map(|need| match need {
        Need::SettingBelow { name, .. } => {
            let value = needs::setting(ctx.process()?, name)?;
            Some(format!("{name} is {}", quoted(value)))
        }
        _ => None,
    });
    present.collect()
}

/// The variables that the command sets and that are lists: setting one drops its present value. (GLIBC_TUNABLES is
/// merged with it.)
fn lists_set(ctx: &Context, remedy: &Remedy) -> Vec<&'static str> {
    let start = remedy.start.filter(|_| matches!(remedy.how, How::Start(_)));
    let applied: &[Change] = start.map_or(&[], |start| start.applied);
    let lists = applied.iter().map(|change| match change {
        Change::Preload(_) | Change::Prefault(_) => vec!["LD_PRELOAD"],
        Change::EnvAppend { name: JEMALLOC_CONF, .. } => jemalloc_variables(ctx),
        Change::EnvAppend { name, .. } => vec![*name],
        _ => vec![],
    });
    lists.flatten().collect()
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
        .replace("{arenas}", &arenas_by_default(ctx.recording.host.online_cpus.into()).to_string())
        .replace("{java_heap}", &java_heap(process));
    let mut filled = Filled { text, words: false, has_gap: false, notes: vec![] };
    if filled.text.contains(HEAP) {
        let size = heap_size(ctx);
        filled.has_gap |= size.is_none();
        filled.text = filled.text.replace(HEAP, size.as_deref().unwrap_or("SIZE"));
    }
    if filled.text.contains(THREADS) {
        let (threads, note) = busy_threads(ctx);
        filled.text = filled.text.replace(THREADS, &threads);
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
    if filled.text.contains("{cmd}") {
        let command = command_line(ctx);
        filled.has_gap |= command.is_none();
        filled.text = filled.text.replace("{cmd}", command.as_deref().unwrap_or(UNKNOWN_COMMAND));
    }
    filled
}

/// Maximum number of processes in a command.
const NAMED_PROCESSES: usize = 8;
/// Stands for the size of malloc's heap in a template.
const HEAP: &str = "{heap}";
/// Stands for the threads of the target in a template.
const THREADS: &str = "{threads}";
/// The command for threads that have ended: it starts them again. New threads inherit the nice value.
const RENICED: &str = "{cmd} & sudo renice -n -5 -p $!";

/// The size of malloc's heap at the end of the window, with large blocks, as `SIZE` of a remedy. If the memory was not read: what
/// was touched of it for the first time in the window. None if that is unknown too.
fn heap_size(ctx: &Context) -> Option<String> {
    let pid = ctx.process()?.pid;
    let mut bills = ctx.recording.resident.iter().flat_map(|memory| &memory.bills);
    let read = bills.find(|bill| bill.pid == pid).map(|bill| {
        let rows = [ResidentOwner::Heap, ResidentOwner::MappedBlock].map(|owner| bill.row(owner));
        total(rows.into_iter().flatten().map(|row| row.amount.resident_bytes))
    });
    let touched = || {
        let part = ctx.owned(Wall::FirstTouch, |owner| matches!(owner, Owner::Heap | Owner::MappedBlock))?;
        let pages = ctx.increase(|tick| tick.minor_faults)? as f64 * part.point;
        Some((pages * ctx.recording.host.page_bytes as f64) as u64)
    };
    let bytes = read.or_else(touched).filter(|bytes| *bytes > 0)?;
    Some(format!("{}M", bytes.div_ceil(1 << 20)))
}

/// The command that tries a remedy. None if no trial can apply it. The remark says what a server needs, unless the target ended
/// by itself.
pub fn trial(recording: &Recording, bill: &Bill, offer: &Prescription) -> Option<ShellLine> {
    let ctx = Context::new(recording, bill);
    let remedy = find(&offer.remedy)?;
    if remedy.needs.contains(&Need::ColdStart) {
        return Some(trial_of_start(&ctx));
    }
    let line = trial_of_command(&ctx, remedy)?;
    match recording.meta.ended {
        Ended::TargetExited { .. } => Some(line),
        _ => Some(line.remark("for a server, add --load URL")),
    }
}

/// A trial of the target's command, or with a placeholder if that is unknown or too long.
pub(super) fn trial_of_command(ctx: &Context, remedy: &Remedy) -> Option<ShellLine> {
    if !remedy.can_be_tried() {
        return None;
    }
    let command = command_line(ctx);
    let words = command.as_deref().unwrap_or(UNKNOWN_COMMAND);
    let line = ShellLine::from(format!("allocwall trial --with {} -- {words}", remedy.key));
    Some(ShellLine { has_gap: command.is_none(), ..line })
}

/// A trial of a remedy that moves work to the start of the program.
pub(super) fn trial_of_start(ctx: &Context) -> ShellLine {
    ShellLine::from(fill(ctx, TRIAL_OF_START).text).with_gap()
}

/// A shell expression for the threads of the processes that used CPU, busiest first. The note says if some processes are
/// left out.
fn busy_threads(ctx: &Context) -> (String, Option<String>) {
    let processes = &ctx.recording.processes;
    let ended: BTreeSet<i32> = processes.iter().filter(|p| p.ended).map(|p| p.pid).collect();
    let mut cpu: BTreeMap<i32, u64> = BTreeMap::new();
    for thread in ctx.recording.threads.iter().filter(|t| t.cpu_ns > 0 && !ended.contains(&t.pid)) {
        let spent = cpu.entry(thread.pid).or_default();
        *spent = spent.saturating_add(thread.cpu_ns);
    }
    let mut busy: Vec<i32> = cpu.keys().copied().collect();
    busy.sort_by_key(|pid| Reverse(cpu[pid]));
    let pids = if busy.is_empty() {
        // A target that has ended has another command.
        ctx.root().map_or_else(|| "PID".to_owned(), |root| root.pid.to_string())
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
    let set = set.filter(|word| word.starts_with("-Xmx"));
    let given = process.into_iter().flat_map(|p| needs::options_given(p, "-Xmx"));
    match set.chain(given).rfind(|word| word.chars().all(is_plain)) {
        Some(option) => format!("now {option}"),
        None => "a quarter of the memory if no -Xmx is given".to_owned(),
    }
}

/// By how much the heap grows with the new value of GOGC, in per cent: it may grow to (100 + GOGC) % of the live memory.
fn heap_growth(ctx: &Context, remedy: &Remedy) -> String {
    let growth = needs::raised(ctx.process(), remedy)
        .map_or(0.0, |(present, new)| (100.0 + new as f64) / (100.0 + present as f64) - 1.0);
    format!("{:.0}", growth * 100.0)
}

/// Names of jemalloc's entry points, without the prefix of a build.
const JEMALLOC_ENTRIES: &[&str] = &["malloc", "free", "calloc", "realloc", "mallocx", "rallocx", "sdallocx"];

fn jemalloc_settings(ctx: &Context, options: &str) -> String {
    let settings = jemalloc_variables(ctx).into_iter().map(|variable| format!("{variable}={options}"));
    settings.collect::<Vec<_>>().join(" ")
}

/// The variable that this build of jemalloc reads. If no sampled function shows the prefix of a static build: all
/// variables.
fn jemalloc_variables(ctx: &Context) -> Vec<&'static str> {
    match ctx.process().and_then(|p| p.allocator.as_ref().ok()) {
        Some(a) if a.how == Linkage::Static => match jemalloc_variable(ctx.recording, &a.module) {
            Some(variable) => vec![variable],
            None => JEMALLOC_BUILDS.map(|(_, variable)| variable).to_vec(),
        },
        _ => vec![JEMALLOC_CONF],
    }
}

/// By the prefix of the sampled functions in this file.
fn jemalloc_variable(recording: &Recording, path: &str) -> Option<&'static str> {
    let names = || {
        let of_module = |module: u32| recording.modules.get(module as usize).is_some_and(|m| m.path == path);
        let frames = recording.frames.iter().filter(move |f| f.module.is_some_and(of_module));
        frames.filter_map(|f| f.symbol.as_deref())
    };
    let is_build = |prefix: &str| {
        // The inner functions of these two builds begin with `je_`.
        let inner_functions_count = !matches!(prefix, "" | "je_");
        names()
            .filter_map(|name| name.strip_prefix(prefix))
            .any(|rest| inner_functions_count || JEMALLOC_ENTRIES.contains(&rest))
    };
    // Without a prefix last: any name begins with an empty one.
    JEMALLOC_BUILDS.iter().rev().find(|(prefix, _)| is_build(prefix)).map(|(_, variable)| *variable)
}

/// The target's command with an option for Node itself, in place of its present value. None if its program is not Node.
fn node_command(ctx: &Context, option: &str) -> Option<String> {
    let (first, rest) = words(ctx).split_first()?;
    if !matches!(first.rsplit('/').next(), Some("node" | "nodejs")) {
        return None;
    }
    let same = options::same_setting(rest.iter().map(String::as_str), option);
    let mut words = vec![first.clone()];
    words.extend(rest.iter().enumerate().filter(|(at, _)| !same.contains(at)).map(|(_, word)| word.clone()));
    let line = line_of(&words)?;
    let first = quoted(first);
    Some(format!("{first} {option}{}", &line[first.len()..]))
}

/// GLIBC_TUNABLES is one list. Present entries stay, unless the remedy sets the same tunable.
fn merged_tunables(process: Option<&Process>, new: &str) -> String {
    let present = process
        .and_then(|p| p.environment.iter().find(|(k, _)| k == "GLIBC_TUNABLES"))
        .map_or("", |(_, v)| v.as_str());
    let merged = merged(present, new, ':', '=');
    if merged.chars().all(is_plain) { merged } else { quoted(&merged) }
}

/// The command that starts the target. None if it is unknown or too long.
fn command_line(ctx: &Context) -> Option<String> {
    line_of(words(ctx))
}

/// The command line that the user gave, if it is short enough.
pub(super) fn given_command(ctx: &Context) -> Option<String> {
    line_of(ctx.recording.meta.command.as_ref()?)
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
