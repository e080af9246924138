//! Proofs that an arm's settings took effect in the running target: its mapped files, its environment, its CPU and memory binding,
//! and the library to which its `malloc` was bound.
//!
//! There are three sources.
//! 1. Each counted run is sampled in /proc a few times. Every arm is sampled equally often, so that all are disturbed alike.
//! 2. For each arm, one run that is not counted is started with the loader's log of its bindings (`LD_DEBUG`, ld.so(8)). For every
//!    process of the tree the log shows which library each module's `malloc` comes from, even if the process ends before it can be
//!    sampled.
//! 3. In the same run the calls are counted for a short time, if the kernel permits it. This count can refute the other sources. If
//!    it is not available, the other sources suffice.

use super::arm::Expectation;
use super::calls::Calls;
use super::{ProofItem, ProofState};
use allocwall_host::proc::{HugePages, ProcFs, is_arena_hook};
use allocwall_host::topology::parse_cpu_list;
use allocwall_model::catalogue::modules::{LibcKind, libc_by_name};
use allocwall_model::units::{Absence, Measured, Reason, thousands};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Samples per process. At the first sample the loader may not have mapped all libraries. On an idle machine an interpreter may
/// need longer than the first three samples (60 ms) to import its start files.
const SAMPLES: u32 = 4;
/// Limit for the number of sampled processes of one run.
const PROCESSES: usize = 256;

/// Observations of one run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Seen {
    pub processes: BTreeMap<i32, SeenProcess>,
    /// Peak memory on huge pages, transparent or reserved, bytes.
    pub peak_huge: Option<u64>,
    /// Peak resident memory, bytes.
    pub peak_resident: Option<u64>,
    /// Which library served its allocator calls, if the run counted them.
    pub calls: Option<Measured<Calls>>,
    /// Memory on huge pages, if the run sampled it.
    pub huge: Option<Measured<HugePages>>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct SeenProcess {
    pub comm: String,
    samples: u32,
    /// CPU time at the last sample, in clock ticks.
    pub cpu_ticks: u64,
    /// Files mapped with execute permission.
    pub mapped: BTreeSet<PathBuf>,
    pub environment: BTreeMap<String, String>,
    pub command_line: Vec<String>,
    /// As in /proc/PID/status: `0-1,4`.
    pub cpus: Option<String>,
    /// The nodes that its memory is bound to, from numa_maps(5).
    pub nodes: Option<String>,
}

impl Seen {
    /// Samples these processes once, except those that already have enough samples. `nodes`: also read their memory binding, which
    /// makes the kernel walk their page tables.
    pub fn sample(&mut self, proc: &ProcFs, pids: &[i32], nodes: bool) {
        for &pid in pids {
            if !self.processes.contains_key(&pid) && self.processes.len() >= PROCESSES {
                continue;
            }
            let seen = self.processes.entry(pid).or_default();
            if let Ok(stat) = proc.process_stat(pid) {
                seen.cpu_ticks = stat.user_ticks + stat.system_ticks;
            }
            if seen.samples >= SAMPLES {
                continue;
            }
            seen.sample(proc, pid, nodes);
        }
    }
}

impl SeenProcess {
    fn sample(&mut self, proc: &ProcFs, pid: i32, nodes: bool) {
        self.samples += 1;
        let Ok(comm) = proc.comm(pid) else { return };
        self.comm = comm;
        if let Ok(code) = proc.code(pid) {
            self.mapped.extend(
                code.mappings.iter().filter(|m| m.is_file()).map(|m| PathBuf::from(m.display_path())),
            );
        }
        if let Ok(environment) = proc.environ(pid) {
            self.environment = environment.into_iter().collect();
        }
        if let Ok(words) = proc.cmdline(pid) {
            self.command_line = words;
        }
        self.cpus = proc.status(pid).ok().and_then(|status| status.cpus_allowed);
        if nodes {
            self.nodes = proc.bound_nodes(pid).ok().flatten();
        }
    }
}

/// The library from which each module of each process got `malloc`, from the loader's log.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bindings(BTreeMap<u32, ProcessBindings>);

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProcessBindings {
    /// Calling module -> files that it is bound to, for its calls and for malloc's address if it takes the address.
    malloc: BTreeMap<PathBuf, BTreeSet<PathBuf>>,
}

impl Bindings {
    /// The variables that make the loader of every process write a log to `DIR/bindings.PID`.
    pub fn environment(dir: &Path) -> [(String, String); 3] {
        let file = dir.join("bindings").display().to_string();
        [
            ("LD_DEBUG".into(), "bindings".into()),
            ("LD_DEBUG_OUTPUT".into(), file),
            // Bind everything at the start, so that the log also has functions that this run does not call.
            ("LD_BIND_NOW".into(), "1".into()),
        ]
    }

    /// The file to which the library itself passes malloc calls on.
    fn next_of(&self, library: &Path) -> Option<&PathBuf> {
        let own = |(module, _): &(&PathBuf, _)| is_file_at(module, library);
        let calls = self.0.values().flat_map(|p| p.malloc.iter().filter(own));
        calls.flat_map(|(_, to)| to).find(|to| !is_file_at(to, library))
    }

    /// (processes that bind malloc to this library, processes that bind malloc, modules bound, modules that call).
    fn of(&self, library: &Path) -> Bound {
        let same = |path: &Path| is_file_at(path, library);
        let mut bound = Bound::default();
        for process in self.0.values().filter(|p| !p.malloc.is_empty()) {
            // The library itself may use the next malloc, as tcmalloc's tools do.
            let callers: Vec<&PathBuf> = process.malloc.keys().filter(|module| !same(module)).collect();
            let astray = callers.iter().find(|module| !process.ends_at(module, &same));
            let hits = callers.iter().filter(|module| process.ends_at(module, &same)).count();
            bound.processes += 1;
            bound.taken += usize::from(hits > 0 && hits == callers.len());
            bound.modules += callers.len();
            bound.hits += hits;
            if let (None, Some(&module)) = (&bound.astray, astray) {
                let to = process.malloc[module].iter().find(|to| !same(to));
                bound.astray = to.map(|to| (module.clone(), to.clone()));
            }
        }
        bound
    }
}

/// By process id.
impl FromIterator<(u32, ProcessBindings)> for Bindings {
    fn from_iter<I: IntoIterator<Item = (u32, ProcessBindings)>>(processes: I) -> Bindings {
        Bindings(processes.into_iter().collect())
    }
}

#[derive(Default)]
struct Bound {
    processes: usize,
    taken: usize,
    modules: usize,
    hits: usize,
    astray: Option<(PathBuf, PathBuf)>,
}

/// Whether two paths lead to the same file, as far as they can be resolved.
pub fn is_file_at(path: &Path, library: &Path) -> bool {
    path == library || matches!((path.canonicalize(), library.canonicalize()), (Ok(a), Ok(b)) if a == b)
}

impl ProcessBindings {
    /// Whether all bindings of a module end at this library. If a program takes malloc's address, other modules are bound to the
    /// program, and its entry jumps on to the target of its own calls (a canonical PLT entry, System V ABI for AMD64, "Function
    /// Addresses"). A library has no such entry: a library with two bindings was loaded before and after an exec of one process, so
    /// a module bound to it may use either binding.
    fn ends_at(&self, module: &Path, library: &dyn Fn(&Path) -> bool) -> bool {
        let onward = |through: &Path| {
            if file_name(through).contains(".so") {
                return None;
            }
            let calls = self.malloc.get(through)?;
            let mut others = calls.iter().filter(|to| *to != through).peekable();
            others.peek()?;
            Some(others.all(|to| library(to)))
        };
        self.malloc[module].iter().all(|to| library(to) || onward(to).unwrap_or(false))
    }

    /// Adds whole lines like `  7: binding file /usr/bin/x [0] to /lib/libc.so.6 [0]: normal symbol `malloc' [GLIBC_2.2.5]`.
    pub fn add(&mut self, text: &[u8]) {
        const SYMBOL: &[u8] = b"symbol `malloc'";
        for at in memchr::memmem::find_iter(text, SYMBOL) {
            // Few lines are about malloc; only those are parsed.
            let start = memchr::memrchr(b'\n', &text[..at]).map_or(0, |end| end + 1);
            let line = String::from_utf8_lossy(&text[start..at]);
            let Some((_, rest)) = line.split_once("binding file ") else {
                continue;
            };
            let Some((files, _)) = rest.rsplit_once("]: ") else {
                continue;
            };
            let Some((from, to)) = files.split_once("] to ") else {
                continue;
            };
            let name = |text: &str| text.rsplit_once(" [").map_or(text, |(name, _)| name).to_owned();
            let calls = self.malloc.entry(PathBuf::from(name(from))).or_default();
            calls.insert(PathBuf::from(name(to)));
        }
    }
}

/// Results of an arm's run that is not counted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FirstRun {
    pub bindings: Option<Measured<Bindings>>,
    pub calls: Option<Measured<Calls>>,
    pub huge: Option<Measured<HugePages>>,
}

/// Judges an arm's expectations for one run, from its observations and from the run that is not counted.
pub fn judge(expects: &[Expectation], seen: &Seen, first: &FirstRun) -> Vec<ProofItem> {
    expects.iter().map(|e| item(e, seen, first)).collect()
}

fn item(expectation: &Expectation, seen: &Seen, first: &FirstRun) -> ProofItem {
    let bindings = first.bindings();
    let (what, (state, mut detail)) = match expectation {
        Expectation::Mapped(path) => (format!("{} mapped", file_name(path)), mapped(path, seen, bindings)),
        Expectation::MallocFrom(path) => {
            (format!("malloc from {}", file_name(path)), malloc_from(path, seen, bindings))
        }
        Expectation::Serves(path) => return serves(path, first),
        Expectation::Environment(name, value) => (format!("{name} set"), environment(name, value, seen)),
        Expectation::CommandLine(word) => (format!("{word} on the command line"), command_line(word, seen)),
        Expectation::HugeResident => ("huge pages resident".to_owned(), huge(seen, first)),
        Expectation::ArenasHuge => ("arenas on huge pages".to_owned(), arenas(seen, first)),
        Expectation::Cpus(cpus) => {
            ("CPU affinity in force".to_owned(), place(cpus, seen, |process| process.cpus.as_deref()))
        }
        Expectation::Nodes(nodes) => {
            ("memory nodes in force".to_owned(), place(nodes, seen, |process| process.nodes.as_deref()))
        }
        Expectation::ResidentAtStart(bytes) => ("memory touched at start".to_owned(), resident(*bytes, seen)),
    };
    // Without bindings the item is unknown, for the same reason as the bindings.
    let absent = match (expectation, &first.bindings) {
        (Expectation::Mapped(_) | Expectation::MallocFrom(_), Some(Err(absence)))
            if state == ProofState::Unknown =>
        {
            Some(absence.clone())
        }
        _ => None,
    };
    if let Some(absence) = &absent {
        detail = absence.to_string();
    }
    ProofItem { what, state, detail, needed: true, absent }
}

impl FirstRun {
    fn bindings(&self) -> Option<&Bindings> {
        self.bindings.as_ref()?.as_ref().ok()
    }
}

type Judgement = (ProofState, String);

fn nothing_seen() -> Judgement {
    (ProofState::Unknown, "the processes ended before they were sampled".into())
}

fn file_name(path: &Path) -> String {
    path.file_name().map_or_else(|| path.display().to_string(), |n| n.to_string_lossy().into_owned())
}

/// The process that a remedy is for, if a command has several: the one that used most CPU. Among equals the youngest, because a
/// starter starts first.
fn busiest<'a>(processes: impl Iterator<Item = &'a SeenProcess>) -> Option<&'a SeenProcess> {
    processes.max_by_key(|p| p.cpu_ticks)
}

/// Judges by the busiest process, and counts the processes that have the property.
fn by_the_busiest<'a>(
    sampled: impl Iterator<Item = &'a SeenProcess> + Clone,
    has: impl Fn(&SeenProcess) -> bool,
    lacks: &str,
) -> Judgement {
    let Some(busiest) = busiest(sampled.clone()) else {
        return nothing_seen();
    };
    let (hits, all) = (sampled.clone().filter(|p| has(p)).count(), sampled.count());
    match has(busiest) {
        true => (ProofState::Proven, format!("in {hits} of {all} processes")),
        false if hits > 0 => (
            ProofState::Refuted,
            format!("in {hits} of {all} processes, but {}, which used most CPU, {lacks}", busiest.comm),
        ),
        false => (ProofState::Refuted, format!("{} {lacks}", busiest.comm)),
    }
}

fn mapped(path: &Path, seen: &Seen, bindings: Option<&Bindings>) -> Judgement {
    let has = |p: &SeenProcess| p.mapped.iter().any(|m| is_file_at(m, path));
    let sampled = seen.processes.values().filter(|p| !p.mapped.is_empty());
    // At the first sample the loader may not have mapped it yet.
    let settled = sampled.clone().filter(|p| p.samples > 1 || has(p));
    if settled.clone().next().is_some() {
        return by_the_busiest(settled, has, &format!("does not map {}", path.display()));
    }
    match bindings.map(|b| b.of(path)).filter(|bound| bound.hits > 0) {
        Some(bound) => (
            ProofState::Proven,
            format!(
                "from the loader's log: for {} of {} modules that call malloc",
                bound.hits, bound.modules
            ),
        ),
        None => nothing_seen(),
    }
}

fn malloc_from(path: &Path, seen: &Seen, bindings: Option<&Bindings>) -> Judgement {
    if let (ProofState::Refuted, why) = mapped(path, seen, None) {
        return (ProofState::Refuted, why);
    }
    let Some(bindings) = bindings else {
        return (ProofState::Unknown, "the loader's bindings were not recorded".into());
    };
    let bound = bindings.of(path);
    if bound.processes == 0 {
        // musl's loader writes no log, but the library that it maps first serves malloc.
        let loader =
            |p: &SeenProcess| p.mapped.iter().any(|m| libc_by_name(&file_name(m)) == Some(LibcKind::Musl));
        return match mapped(path, seen, None) {
            (ProofState::Proven, _) if seen.processes.values().any(loader) => {
                (ProofState::Proven, "preloaded before musl; musl's loader binds to the first library".into())
            }
            _ => (ProofState::Unknown, "the loader's log has no binding of malloc".into()),
        };
    }
    let count = format!(
        "{} of {} modules that call it, in {} of {} processes",
        bound.hits, bound.modules, bound.taken, bound.processes
    );
    match &bound.astray {
        None => (ProofState::Proven, count),
        Some((module, library)) => (
            ProofState::Refuted,
            format!("{count}; {} gets it from {}", file_name(module), library.display()),
        ),
    }
}

/// Smallest number of calls for which a share is reported.
const ENOUGH_CALLS: u64 = 100;
/// If the library serves less than this share of the calls, the proof is refuted. A few calls always go to other libraries: from
/// processes that started without the preload, and through private names of libc.
pub(super) const SERVED: f64 = 0.9;

/// The bindings prove that calls would go to the library; this item shows that they do.
fn serves(library: &Path, first: &FirstRun) -> ProofItem {
    let judged = match &first.calls {
        None => Err(Absence::new(Reason::NotFound, "the calls were not counted")),
        Some(Err(absence)) => Err(absence.clone()),
        Some(Ok(calls)) => served(library, calls, first.bindings()),
    };
    let (state, detail, absent) = match judged {
        Ok((state, detail)) => (state, detail, None),
        Err(absence) => (ProofState::Unknown, absence.to_string(), Some(absence)),
    };
    ProofItem {
        what: format!("calls that {} serves", file_name(library)),
        state,
        detail,
        needed: false,
        absent,
    }
}

fn served(library: &Path, calls: &Calls, bindings: Option<&Bindings>) -> Measured<Judgement> {
    let all = calls.all();
    let seconds = calls.counted_ns as f64 / 1e9;
    if all < ENOUGH_CALLS {
        let detail = format!("only {all} calls in {seconds:.1} s, too few for a share");
        return Err(Absence::new(Reason::TooLittle, detail));
    }
    let share = calls.share();
    let threads = match calls.threads - calls.counted_threads {
        0 => String::new(),
        _ => format!(", in the {} busiest of {} threads", calls.counted_threads, calls.threads),
    };
    let count = format!("{} of {} in {seconds:.1} s{threads}", percent(share), thousands(all));
    if share >= SERVED {
        return Ok((ProofState::Proven, count));
    }
    // The calls of a library that passes them on to another malloc are counted twice.
    if let Some(next) = bindings.and_then(|b| b.next_of(library)) {
        let detail =
            format!("unknown, because the library itself calls the malloc of {}: {count}", file_name(next));
        return Err(Absence::new(Reason::NotApplicable, detail));
    }
    let rest: Vec<String> = calls
        .elsewhere
        .iter()
        .filter(|(_, count)| **count > 0)
        .map(|(path, count)| format!("{} to {}", percent(*count as f64 / all as f64), path.display()))
        .collect();
    Ok((ProofState::Refuted, format!("{count}; {}", rest.join(", "))))
}

/// Rounded down, so that only a complete share is printed as 100 %.
fn percent(share: f64) -> String {
    format!("{:.1} %", (share * 1000.0).floor() / 10.0)
}

fn environment(name: &str, value: &str, seen: &Seen) -> Judgement {
    let sampled = seen.processes.values().filter(|p| !p.environment.is_empty());
    let has = |p: &SeenProcess| p.environment.get(name).is_some_and(|v| v == value);
    by_the_busiest(sampled, has, "does not have it")
}

fn command_line(word: &str, seen: &Seen) -> Judgement {
    let mut sampled = seen.processes.values().filter(|p| !p.command_line.is_empty());
    let has = |p: &SeenProcess| p.command_line.iter().any(|w| w == word);
    if sampled.clone().any(has) {
        (ProofState::Proven, "found there".into())
    } else {
        match sampled.next() {
            Some(process) => (ProofState::Refuted, format!("not on the command line of {}", process.comm)),
            None => nothing_seen(),
        }
    }
}

/// Judges by this run's own samples. If the run was too short for them, by those of the run that is not counted.
fn huge(seen: &Seen, first: &FirstRun) -> Judgement {
    let closely = first.huge.as_ref().and_then(|huge| huge.as_ref().ok());
    match (seen.peak_huge, closely) {
        (None, None) => (ProofState::Unknown, "huge pages could not be counted".into()),
        (Some(0), _) | (None, Some(HugePages { all: 0, .. })) => {
            (ProofState::Refuted, "no huge page was resident".into())
        }
        (Some(bytes), _) => (ProofState::Proven, format!("{} at the peak", mebibytes(bytes))),
        (None, Some(huge)) => (
            ProofState::Proven,
            format!("{} at the peak of the run that is not counted", mebibytes(huge.all)),
        ),
    }
}

/// Each run shows whether the hook is present. Only the run that is not counted shows the memory on huge pages: sampling it walks
/// the page tables, which is expensive for a program on small pages.
fn arenas(seen: &Seen, first: &FirstRun) -> Judgement {
    let closely = match &first.huge {
        None => return (ProofState::Unknown, "huge pages were not sampled".into()),
        Some(Err(absence)) => return (ProofState::Unknown, absence.to_string()),
        Some(Ok(huge)) if !huge.hook => {
            let why = "no process mapped the hook of the allocwall package (allocwall/_native)";
            return (ProofState::Refuted, why.into());
        }
        Some(Ok(huge)) if huge.arenas < ONE_SLAB => {
            let why = "the hook was mapped, but none of its slabs was on a huge page";
            return (ProofState::Refuted, why.into());
        }
        Some(Ok(huge)) => huge,
    };
    let sampled = seen.processes.values().filter(|p| !p.mapped.is_empty());
    let has = |p: &SeenProcess| p.mapped.iter().any(|m| is_arena_hook(&m.to_string_lossy()));
    match by_the_busiest(sampled, has, "did not map the hook in any sample") {
        (ProofState::Proven, _) => (
            ProofState::Proven,
            format!("{} on huge pages at the peak of the run that is not counted", mebibytes(closely.arenas)),
        ),
        // The samples may have been too early, or the process ended too soon.
        (_, why) => (ProofState::Unknown, why),
    }
}

const ONE_SLAB: u64 = 2 << 20;

fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

fn resident(bytes: u64, seen: &Seen) -> Judgement {
    match seen.peak_resident {
        None => nothing_seen(),
        Some(peak) if peak >= bytes => {
            (ProofState::Proven, format!("{:.1} MiB resident", peak as f64 / f64::from(1 << 20)))
        }
        Some(peak) => (
            ProofState::Refuted,
            format!(
                "{:.1} of {:.1} MiB resident",
                peak as f64 / f64::from(1 << 20),
                bytes as f64 / f64::from(1 << 20)
            ),
        ),
    }
}

fn place<'a>(wanted: &[u32], seen: &'a Seen, read: impl Fn(&'a SeenProcess) -> Option<&'a str>) -> Judgement {
    let wanted: BTreeSet<u32> = wanted.iter().copied().collect();
    let sampled: Vec<(&SeenProcess, &str)> =
        seen.processes.values().filter_map(|p| Some((p, read(p)?))).collect();
    let kept = |list: &str| {
        parse_cpu_list(list).is_some_and(|l| l.into_iter().collect::<BTreeSet<u32>>().is_subset(&wanted))
    };
    let hits = sampled.iter().filter(|(_, list)| kept(list)).count();
    match sampled.iter().find(|(_, list)| !kept(list)) {
        None if sampled.is_empty() => nothing_seen(),
        None => (ProofState::Proven, format!("in {hits} of {hits} processes")),
        Some((process, list)) => (ProofState::Refuted, format!("{} is allowed to use {list}", process.comm)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "     7:\tbinding file /usr/bin/x y [0] to /opt/lib/libjemalloc.so.2 [0]: normal symbol `malloc' [GLIBC_2.2.5]\n";
    const OTHER: &str = "     7:\tbinding file /lib/libz.so [0] to /lib/libc.so.6 [0]: normal symbol `malloc' [GLIBC_2.2.5]\n";
    const NOT_MALLOC: &str = "     7:\tbinding file /lib/libz.so [0] to /lib/libc.so.6 [0]: normal symbol `malloc_trim' [GLIBC_2.2.5]\n";
    const JEMALLOC: &str = "/opt/lib/libjemalloc.so.2";

    fn bindings(processes: &[&[&str]]) -> Bindings {
        let parsed = processes.iter().enumerate().map(|(pid, lines)| {
            let mut found = ProcessBindings::default();
            found.add(lines.concat().as_bytes());
            (pid as u32, found)
        });
        parsed.collect()
    }

    #[test]
    fn a_program_to_which_other_modules_are_bound_passes_the_call_on() {
        const THROUGH: &str = "     7:\tbinding file /lib/libz.so [0] to /usr/bin/x y [0]: normal symbol `malloc' [GLIBC_2.2.5]\n";
        let (state, detail) = malloc_state(&bindings(&[&[LINE, THROUGH]]));
        assert_eq!(state, ProofState::Proven, "{detail}");
        // The program takes the address and also calls malloc.
        const ITSELF: &str = "     7:\tbinding file /usr/bin/x y [0] to /usr/bin/x y [0]: normal symbol `malloc' [GLIBC_2.2.5]\n";
        assert_eq!(malloc_state(&bindings(&[&[LINE, ITSELF, THROUGH]])).0, ProofState::Proven);
        assert_eq!(malloc_state(&bindings(&[&[ITSELF, THROUGH]])).0, ProofState::Refuted);
        // One process before and after an exec that removed the preload.
        const LIBC: &str = "     7:\tbinding file /lib/libc.so.6 [0] to /opt/lib/libjemalloc.so.2 [0]: normal symbol `malloc' [GLIBC_2.2.5]\n";
        const LIBC_AFTER: &str = "     7:\tbinding file /lib/libc.so.6 [0] to /lib/libc.so.6 [0]: normal symbol `malloc' [GLIBC_2.2.5]\n";
        const AFTER: &str =
            "     7:\tbinding file sort [0] to /lib/libc.so.6 [0]: normal symbol `malloc' [GLIBC_2.2.5]\n";
        assert_eq!(malloc_state(&bindings(&[&[LINE, LIBC, LIBC_AFTER, AFTER]])).0, ProofState::Refuted);
        const ROUND: &str = "     7:\tbinding file /usr/bin/x y [0] to /lib/libz.so [0]: normal symbol `malloc' [GLIBC_2.2.5]\n";
        assert_eq!(malloc_state(&bindings(&[&[ROUND, THROUGH]])).0, ProofState::Refuted);
    }

    fn malloc_state(bindings: &Bindings) -> (ProofState, String) {
        malloc_from(Path::new(JEMALLOC), &Seen::default(), Some(bindings))
    }

    #[test]
    fn every_module_of_every_process_must_be_bound() {
        let (state, detail) = malloc_state(&bindings(&[&[LINE, NOT_MALLOC], &[LINE]]));
        assert_eq!(
            (state, &detail[..]),
            (ProofState::Proven, "2 of 2 modules that call it, in 2 of 2 processes")
        );
        let (state, detail) = malloc_state(&bindings(&[&[LINE], &[OTHER]]));
        assert_eq!(state, ProofState::Refuted);
        assert!(detail.contains("libz.so") && detail.contains("/lib/libc.so.6"), "{detail}");
        assert_eq!(malloc_state(&bindings(&[&[NOT_MALLOC]])).0, ProofState::Unknown);
    }

    /// Name, mapped files, environment.
    type Sketch<'a> = (&'a str, &'a [&'a str], &'a [(&'a str, &'a str)]);

    fn seen(processes: &[Sketch]) -> Seen {
        let process = |&(comm, mapped, environment): &Sketch| SeenProcess {
            comm: comm.into(),
            samples: 2,
            cpu_ticks: 0,
            mapped: mapped.iter().map(PathBuf::from).collect(),
            environment: environment.iter().map(|&(k, v)| (k.into(), v.into())).collect(),
            command_line: vec![],
            cpus: Some("0-1".into()),
            nodes: None,
        };
        Seen { processes: (1..).zip(processes.iter().map(process)).collect(), ..Seen::default() }
    }

    #[test]
    fn a_library_is_mapped_or_not_or_unknown() {
        let sampled = |samples, mut seen: Seen| {
            seen.processes.values_mut().for_each(|p| p.samples = samples);
            seen
        };
        let once = sampled(1, seen(&[("x", &["/lib/libc.so.6"], &[])]));
        assert_eq!(mapped(Path::new(JEMALLOC), &once, None).0, ProofState::Unknown);
        let state = |seen: &Seen| mapped(Path::new(JEMALLOC), seen, None).0;
        assert_eq!(state(&seen(&[("x", &[JEMALLOC], &[])])), ProofState::Proven);
        assert_eq!(state(&seen(&[("x", &["/lib/libc.so.6"], &[])])), ProofState::Refuted);
        assert_eq!(state(&Seen::default()), ProofState::Unknown);
        // Too short to be sampled, but the loader's log has it.
        let first = bindings(&[&[LINE]]);
        assert_eq!(mapped(Path::new(JEMALLOC), &Seen::default(), Some(&first)).0, ProofState::Proven);
    }

    #[test]
    fn the_environment_of_the_right_process() {
        let state = |seen: &Seen| environment("A", "1", seen).0;
        assert_eq!(state(&seen(&[("x", &[], &[("A", "1")])])), ProofState::Proven);
        assert_eq!(state(&seen(&[("x", &[], &[("A", "2")])])), ProofState::Refuted);
        assert_eq!(state(&seen(&[("x", &[], &[("B", "1")])])), ProofState::Refuted);
        // Among equals the youngest decides, otherwise the one that used most CPU.
        let mut two = seen(&[("x", &[], &[("A", "1")]), ("y", &[], &[("B", "1")])]);
        assert_eq!(state(&two), ProofState::Refuted);
        two.processes.get_mut(&1).unwrap().cpu_ticks = 5;
        let (state, detail) = environment("A", "1", &two);
        assert_eq!((state, &detail[..]), (ProofState::Proven, "in 1 of 2 processes"));
    }

    fn counted(served: u64, libc: u64) -> FirstRun {
        let calls = Calls {
            served,
            elsewhere: BTreeMap::from([("/lib/libc.so.6".into(), libc)]),
            counted_ns: 100_000_000,
            threads: 1,
            counted_threads: 1,
        };
        FirstRun { bindings: None, calls: Some(Ok(calls)), huge: None }
    }

    #[test]
    fn the_share_of_the_calls() {
        let item = |first: &FirstRun| serves(Path::new(JEMALLOC), first);
        let said = |first: &FirstRun| {
            let item = item(first);
            assert!(!item.needed);
            (item.state, item.detail, item.absent.map(|a| a.reason))
        };
        let proven = |text: &str| (ProofState::Proven, text.to_owned(), None);
        assert_eq!(said(&counted(48_211, 0)), proven("100.0 % of 48,211 in 0.1 s"));
        assert_eq!(said(&counted(48_210, 1)), proven("99.9 % of 48,211 in 0.1 s"));
        assert_eq!(said(&counted(90, 10)), proven("90.0 % of 100 in 0.1 s"));
        assert_eq!(
            said(&counted(1_000, 1_000)),
            (ProofState::Refuted, "50.0 % of 2,000 in 0.1 s; 50.0 % to /lib/libc.so.6".to_owned(), None)
        );
        let absent = |text: &str, reason| (ProofState::Unknown, text.to_owned(), Some(reason));
        assert_eq!(
            said(&counted(1, 98)),
            absent("only 99 calls in 0.1 s, too few for a share", Reason::TooLittle)
        );
        assert_eq!(said(&FirstRun::default()), absent("the calls were not counted", Reason::NotFound));
        let refused = Absence::new(Reason::NotPermitted, "not allowed").mend("run as root");
        let first = FirstRun { calls: Some(Err(refused.clone())), ..FirstRun::default() };
        assert_eq!(item(&first).absent, Some(refused));
        // Busy threads that were not counted are reported.
        let mut many = counted(1_000, 0);
        if let Some(Ok(calls)) = &mut many.calls {
            (calls.threads, calls.counted_threads) = (14, 2);
        }
        assert_eq!(said(&many), proven("100.0 % of 1,000 in 0.1 s, in the 2 busiest of 14 threads"));
    }

    #[test]
    fn a_library_that_passes_calls_on_is_not_refuted_by_their_second_count() {
        const ONWARD: &str = "     7:\tbinding file /opt/lib/libjemalloc.so.2 [0] to /lib/libc.so.6 [0]: normal symbol `malloc'\n";
        let state = |lines: &[&str]| {
            let first = FirstRun { bindings: Some(Ok(bindings(&[lines]))), ..counted(1_000, 1_000) };
            let item = serves(Path::new(JEMALLOC), &first);
            (item.state, item.absent.map(|a| a.reason))
        };
        assert_eq!(state(&[LINE, ONWARD]), (ProofState::Unknown, Some(Reason::NotApplicable)));
        assert_eq!(state(&[LINE, OTHER]), (ProofState::Refuted, None));
    }

    #[test]
    fn pages_and_places() {
        let with = |peak_huge| Seen { peak_huge, ..Seen::default() };
        let first = |all| FirstRun { huge: all, ..FirstRun::default() };
        let pages = |all| Some(Ok(HugePages { all, ..HugePages::default() }));
        let state = |peak, closely| huge(&with(peak), &first(closely)).0;
        assert_eq!(state(None, None), ProofState::Unknown);
        assert_eq!(state(Some(0), None), ProofState::Refuted);
        assert_eq!(state(Some(2 << 20), None), ProofState::Proven);
        // For a run too short to be sampled, the run that is not counted decides; otherwise the run's own samples.
        assert_eq!(state(None, pages(2 << 20)), ProofState::Proven);
        assert_eq!(state(None, pages(0)), ProofState::Refuted);
        assert_eq!(state(Some(0), pages(2 << 20)), ProofState::Refuted);
        let on_two = seen(&[("x", &[], &[])]);
        let state = |cpus: &[u32]| place(cpus, &on_two, |p| p.cpus.as_deref()).0;
        assert_eq!(state(&[0, 1]), ProofState::Proven);
        assert_eq!(state(&[0]), ProofState::Refuted);
    }

    #[test]
    fn arenas_are_proven_by_the_hook_and_by_pages_under_it() {
        const HOOK: &str = "/v/lib/python3.11/site-packages/allocwall/_native.abi3.so";
        let with = seen(&[("python", &["/lib/libc.so.6", HOOK], &[])]);
        let without = seen(&[("python", &["/lib/libc.so.6"], &[])]);
        let first = |huge| FirstRun { huge, ..FirstRun::default() };
        let pages = |hook, arenas| Some(Ok(HugePages { all: 64 << 20, arenas, hook }));
        let state = |seen: &Seen, huge| arenas(seen, &first(huge)).0;
        assert_eq!(state(&with, pages(true, 2 << 20)), ProofState::Proven);
        // Huge pages of other memory; less than a slab; another interpreter; not sampled.
        assert_eq!(state(&with, pages(false, 0)), ProofState::Refuted);
        assert_eq!(state(&with, pages(true, 0)), ProofState::Refuted);
        assert_eq!(state(&without, pages(true, 2 << 20)), ProofState::Unknown);
        assert_eq!(state(&Seen::default(), pages(true, 2 << 20)), ProofState::Unknown);
        assert_eq!(state(&with, None), ProofState::Unknown);
        let over = Some(Err(Absence::new(Reason::TooLittle, "over")));
        assert_eq!(state(&with, over), ProofState::Unknown);
    }

    #[test]
    fn a_log_that_was_too_long_leaves_its_items_unknown() {
        let too_long = Absence::new(Reason::TooCostly, "too long").mend("less");
        let first = FirstRun { bindings: Some(Err(too_long.clone())), ..FirstRun::default() };
        let of = |expectation: Expectation, seen: &Seen| {
            let item = item(&expectation, seen, &first);
            assert!(item.needed);
            (item.state, item.detail, item.absent)
        };
        let unknown = (ProofState::Unknown, "too long".to_owned(), Some(too_long));
        let none = Seen::default();
        assert_eq!(of(Expectation::MallocFrom(JEMALLOC.into()), &none), unknown);
        assert_eq!(of(Expectation::Mapped(JEMALLOC.into()), &none), unknown);
        // Observations remain valid: the mapped files prove `Mapped`, and refute `MallocFrom` for an unmapped library.
        let with = seen(&[("x", &[JEMALLOC], &[])]);
        assert_eq!(of(Expectation::Mapped(JEMALLOC.into()), &with).0, ProofState::Proven);
        assert_eq!(of(Expectation::MallocFrom(JEMALLOC.into()), &with), unknown);
        let without = seen(&[("x", &["/lib/libc.so.6"], &[])]);
        let (state, _, absent) = of(Expectation::MallocFrom(JEMALLOC.into()), &without);
        assert_eq!((state, absent), (ProofState::Refuted, None));
    }
}
