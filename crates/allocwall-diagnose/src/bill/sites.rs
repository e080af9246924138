//! Call sites: the functions of the target that caused a line.

use super::Site;
use super::classify::{Classifier, module};
use allocwall_model::catalogue::symbols::{self, UserRole};
use allocwall_model::recording::{CpuSample, ModuleRole, PythonSample, Recording};
use allocwall_model::stats::wilson;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

/// [`Site::function`] if no function of the stack has a name.
pub const NO_SYMBOL: &str = "(no symbol)";
/// The same for generated code without a file.
pub const GENERATED_CODE: &str = "(generated code)";
/// The same if the user stack was not read.
pub const NO_USER_STACK: &str = "(no user stack)";
/// The same if the unwinder did not get beyond the C library or the allocator.
pub const NO_CALLERS: &str = "(callers unknown)";

const SITES: usize = 5;
const PATH: usize = 8;
/// A Python stack is used for a sample of the same thread if it is at most this far away in time.
const PYTHON_NEAR_NS: u64 = 2_000_000;

/// If this many Python stacks are near samples of a line, these samples represent the others: Python stacks are read
/// less often, at times that do not depend on what runs. A few are enough to name a function that has most of the time;
/// [`Site::least`] has the uncertainty.
pub const REPRESENTATIVE: usize = 5;

/// One sample, of CPU time or of waiting.
pub struct SiteSample {
    pub t_ns: u64,
    pub pid: i32,
    pub tid: i32,
    pub kernel: Option<u32>,
    pub user: Option<u32>,
    pub weight: u64,
    /// Other samples of the line have deeper stacks, so this one counts only if a Python stack is near it.
    pub shallow: bool,
    /// The line does not say what the kernel did, so the path has the system call too.
    pub with_call: bool,
}

/// What is one call site: a Python function, else a function with its module.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Key<'a> {
    Native(&'a str, &'a str),
    Python(&'a str),
}

#[derive(Default)]
struct Tally<'a> {
    weight: u64,
    /// Functions with their modules, Python functions with their lines, and paths as frames. The most common one of
    /// each is shown.
    functions: BTreeMap<(&'a str, &'a str), u64>,
    python: BTreeMap<&'a str, u64>,
    paths: BTreeMap<Vec<u32>, u64>,
}

/// Marks frames that are left out of a path.
const GAP: u32 = u32::MAX;

pub fn sites(
    recording: &Recording,
    classifier: &Classifier,
    samples: impl Iterator<Item = SiteSample>,
) -> Vec<Site> {
    let python = PythonStacks::new(recording);
    let mut tallies: BTreeMap<Key, Tally> = BTreeMap::new();
    let (mut total, mut counted) = (0_u64, 0_u64);
    let samples: Vec<(Option<&PythonSample>, SiteSample)> = samples
        .map(|sample| (python.near(sample.pid, sample.tid, sample.t_ns), sample))
        .filter(|(stack, sample)| !sample.shallow || stack.is_some())
        .collect();
    let stacks: BTreeSet<(i32, i32, u64)> =
        samples.iter().filter_map(|(stack, _)| stack.map(|s| (s.pid, s.tid, s.t_ns))).collect();
    let represented = stacks.len() >= REPRESENTATIVE;
    let mut natives = Natives::new(recording, classifier);
    for (stack, sample) in samples {
        let Native { site, function } = natives.of(sample.user);
        let line = stack.and_then(|s| s.frames.first()).map(String::as_str);
        if line.is_none() && represented && python.knows(sample.pid, sample.tid) {
            continue;
        }
        let key = line.map_or(Key::Native(function.0, function.1), |line| Key::Python(without_line(line)));
        let entry = tallies.entry(key).or_default();
        entry.weight = entry.weight.saturating_add(sample.weight);
        add(&mut entry.functions, function, sample.weight);
        if let Some(line) = line {
            add(&mut entry.python, line, sample.weight);
        }
        add(&mut entry.paths, path(recording, classifier, &sample, site), sample.weight);
        total = total.saturating_add(sample.weight);
        counted += 1;
    }
    let mut sites: Vec<Site> = tallies
        .into_values()
        .map(|tally| {
            let share = tally.weight as f64 / total.max(1) as f64;
            // The samples near one Python stack are one observation.
            let by_stack = represented && !tally.python.is_empty();
            let observed = if by_stack { stacks.len() as u64 } else { counted };
            let (function, module) = commonest(tally.functions).unwrap_or((NO_SYMBOL, ""));
            Site {
                function: function.to_string(),
                module: module.to_string(),
                python: commonest(tally.python).map(str::to_string),
                share,
                least: wilson((share * observed as f64).round() as u64, observed).low,
                path: commonest(tally.paths)
                    .unwrap_or_default()
                    .into_iter()
                    .map(|f| label(recording, f))
                    .collect(),
            }
        })
        .collect();
    // Stable: equal shares stay in the order of their names.
    sites.sort_by(|a, b| b.share.total_cmp(&a.share));
    sites.truncate(SITES);
    sites
}

/// The functions of a sample of CPU time: those of its Python stack, else those of its user stack.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Caller<'a> {
    /// Nearest first; at least one.
    Python(&'a [String]),
    /// The call site, and the stack.
    Native(&'a str, Option<u32>),
}

impl<'a> Caller<'a> {
    pub fn site(self) -> Cow<'a, str> {
        match self {
            Caller::Python(frames) => python_function(&frames[0]),
            Caller::Native(function, _) => Cow::Borrowed(function),
        }
    }

    /// The site and all functions that called it, with the name of each as in [`Caller::site`].
    pub fn all(self, recording: &'a Recording, classifier: &Classifier) -> Vec<Cow<'a, str>> {
        match self {
            Caller::Python(frames) => frames.iter().map(|frame| python_function(frame)).collect(),
            Caller::Native(function, stack) => {
                let frames = classifier.frames(stack).iter();
                let names = frames.map(|frame| Cow::Borrowed(name_of(recording, *frame).0));
                names.chain([Cow::Borrowed(function)]).collect()
            }
        }
    }
}

/// `handle (service.py)`
fn python_function(line: &str) -> Cow<'_, str> {
    match without_line(line) {
        head if head != line && head.contains('(') => Cow::Owned(format!("{head})")),
        _ => Cow::Borrowed(line),
    }
}

/// The callers of samples of CPU time, by their order. None for a sample that does not count, because it has no deep stack, or because
/// Python stacks represent it.
pub fn callers<'a>(recording: &'a Recording, classifier: &Classifier) -> Vec<Option<Caller<'a>>> {
    let python = PythonStacks::new(recording);
    let any_deep = recording.samples.iter().any(|sample| sample.deep);
    let mut natives = Natives::new(recording, classifier);
    let caller = |sample: &CpuSample| match python.knows(sample.pid, sample.tid) {
        true => python.near(sample.pid, sample.tid, sample.t_ns).map(|stack| Caller::Python(&stack.frames)),
        false if any_deep && !sample.deep => None,
        false => Some(Caller::Native(natives.of(sample.user).function.0, sample.user)),
    };
    recording.samples.iter().map(caller).collect()
}

/// A function that caused a sample, with its module, and its place in the stack.
#[derive(Clone, Copy)]
struct Native<'a> {
    site: Option<usize>,
    function: (&'a str, &'a str),
}

/// Those of the stacks that were looked up: many samples have the same stack.
struct Natives<'a, 'c> {
    recording: &'a Recording,
    classifier: &'c Classifier<'c>,
    known: BTreeMap<Option<u32>, Native<'a>>,
}

impl<'a, 'c> Natives<'a, 'c> {
    fn new(recording: &'a Recording, classifier: &'c Classifier<'c>) -> Self {
        Natives { recording, classifier, known: BTreeMap::new() }
    }

    fn of(&mut self, stack: Option<u32>) -> Native<'a> {
        let Natives { recording, classifier, known } = self;
        *known.entry(stack).or_insert_with(|| {
            let frames = classifier.frames(stack);
            let complete = is_complete(recording, stack);
            let site = site_frame(recording, classifier, frames, complete);
            let function = match site {
                Some(depth) => name_of(recording, frames[depth]),
                None if stack.is_none() => (NO_USER_STACK, ""),
                None if !complete => (NO_CALLERS, ""),
                None => (NO_SYMBOL, ""),
            };
            Native { site, function }
        })
    }
}

fn is_complete(recording: &Recording, stack: Option<u32>) -> bool {
    stack.and_then(|s| recording.stacks.get(s as usize)).is_some_and(|s| s.complete)
}

/// The first function outside libc, allocator and runtime. If there is none, the first function with a name outside
/// libc and allocator.
///
/// In a stripped program only exported functions have names, so the nearest caller with a name in the same file is
/// used. Generated code has no names, so the function of the runtime that it called is used.
///
/// A function of the standard library counts if the stack has no other: the program's code may be inlined into it. If
/// the stack is incomplete, a function of the C library or of the allocator is not the caller, and none is named.
fn site_frame(
    recording: &Recording,
    classifier: &Classifier,
    frames: &[u32],
    complete: bool,
) -> Option<usize> {
    let name = |f: u32| recording.frames.get(f as usize)?.symbol.as_deref();
    let is_root = |f: u32| name(f).is_some_and(symbols::is_root);
    let named = |f: u32| name(f).is_some() && !is_root(f);
    let role_of_module =
        |f: u32| recording.frames.get(f as usize).and_then(|f| module(recording, f)).map(|m| m.role);
    let file = |f: u32| recording.frames.get(f as usize).and_then(|f| f.module);
    let of_runtime =
        |f: u32| matches!(role_of_module(f), Some(ModuleRole::Node | ModuleRole::Jvm | ModuleRole::Cpython));
    let nearest_named = |at: usize| {
        let own = frames[at];
        if named(own) {
            return at;
        }
        match role_of_module(own) {
            None | Some(ModuleRole::Jit) => frames[..at]
                .iter()
                .rposition(|f| of_runtime(*f) && name(*f).is_some_and(|n| !symbols::is_trampoline(n))),
            Some(_) => frames[at..]
                .iter()
                .take_while(|f| file(**f) == file(own) && classifier.role(**f).is_none())
                .position(|f| named(*f))
                .map(|callers| at + callers),
        }
        .unwrap_or(at)
    };
    let own = frames.iter().position(|f| classifier.role(*f).is_none() && !is_root(*f)).map(nearest_named);
    own.or_else(|| {
        frames.iter().position(|f| {
            named(*f)
                && !matches!(
                    role_of_module(*f),
                    Some(
                        ModuleRole::Libc
                            | ModuleRole::Loader
                            | ModuleRole::Allocator(_)
                            | ModuleRole::Counter
                            | ModuleRole::Vdso
                    )
                )
                && !matches!(
                    classifier.role(*f),
                    Some(
                        UserRole::Allocator
                            | UserRole::AllocatorLock
                            | UserRole::RuntimeAllocator
                            | UserRole::Lock
                            | UserRole::Memory
                    )
                )
        })
    })
    .or_else(|| frames.iter().position(|f| complete && named(*f)))
}

fn name_of(recording: &Recording, frame: u32) -> (&str, &str) {
    let Some(frame) = recording.frames.get(frame as usize) else {
        return (NO_SYMBOL, "");
    };
    let module = module(recording, frame).map_or("", |m| m.path.as_str());
    let unnamed = if module.is_empty() { GENERATED_CODE } else { NO_SYMBOL };
    (frame.symbol.as_deref().unwrap_or(unnamed), module)
}

fn label(recording: &Recording, frame: u32) -> String {
    match frame {
        GAP => "…".to_string(),
        _ => name_of(recording, frame).0.to_string(),
    }
}

/// The kernel's leaf, and its system call if the line does not say what the kernel did; then the user frames up to the
/// site and a few more. The middle of long paths is left out.
fn path(
    recording: &Recording,
    classifier: &Classifier,
    sample: &SiteSample,
    site: Option<usize>,
) -> Vec<u32> {
    let name = |f: u32| recording.frames.get(f as usize)?.symbol.as_deref();
    let kernel = classifier.frames(sample.kernel);
    let leaf = kernel.iter().find(|f| name(**f).is_some());
    let is_call = |f: &&u32| name(**f).is_some_and(symbols::is_system_call);
    let call = kernel.iter().rev().find(is_call).filter(|call| sample.with_call && Some(*call) != leaf);
    let frames = classifier.frames(sample.user);
    let end = site.map_or(frames.len(), |s| (s + 3).min(frames.len()));
    let user = &frames[..end];
    let mut path: Vec<u32> = leaf.into_iter().chain(call).copied().collect();
    let room = PATH - path.len();
    if user.len() <= room {
        path.extend(user)
    } else {
        let tail = room / 2;
        path.extend(&user[..room - tail - 1]);
        path.push(GAP);
        path.extend(&user[user.len() - tail..]);
    }
    path
}

fn add<K: Ord>(weights: &mut BTreeMap<K, u64>, key: K, weight: u64) {
    let sum = weights.entry(key).or_default();
    *sum = sum.saturating_add(weight);
}

/// The key with the largest weight; among equals the first in order.
fn commonest<K: Ord>(weights: BTreeMap<K, u64>) -> Option<K> {
    weights.into_iter().rev().max_by_key(|(_, weight)| *weight).map(|(key, _)| key)
}

/// All lines of one function are one site.
fn without_line(python: &str) -> &str {
    python.rsplit_once(':').map_or(python, |(head, _)| head)
}

/// Python stacks by thread, in time.
pub struct PythonStacks<'a>(BTreeMap<(i32, i32), Vec<&'a PythonSample>>);

impl<'a> PythonStacks<'a> {
    pub fn new(recording: &'a Recording) -> Self {
        let mut threads: BTreeMap<(i32, i32), Vec<&PythonSample>> = BTreeMap::new();
        for sample in recording.python.iter().filter(|sample| !sample.frames.is_empty()) {
            threads.entry((sample.pid, sample.tid)).or_default().push(sample);
        }
        threads.values_mut().for_each(|samples| samples.sort_by_key(|s| s.t_ns));
        PythonStacks(threads)
    }

    /// Whether a Python stack of this thread was read at any time.
    pub fn knows(&self, pid: i32, tid: i32) -> bool {
        self.0.contains_key(&(pid, tid))
    }

    /// The stack that was read nearest to this time, if it is near enough. It has at least one frame.
    pub fn near(&self, pid: i32, tid: i32, t_ns: u64) -> Option<&'a PythonSample> {
        let samples = self.0.get(&(pid, tid))?;
        let next = samples.partition_point(|s| s.t_ns < t_ns);
        let around = samples[next.saturating_sub(1)..(next + 1).min(samples.len())].iter();
        let nearest = around.min_by_key(|s| s.t_ns.abs_diff(t_ns))?;
        (nearest.t_ns.abs_diff(t_ns) <= PYTHON_NEAR_NS).then_some(*nearest)
    }
}
