//! Call sites: the functions of the target that caused a line.

use super::Site;
use super::classify::{Classifier, module};
use allocwall_model::catalogue::symbols::{self, UserRole};
use allocwall_model::recording::{ModuleRole, PythonSample, Recording};
use std::collections::BTreeMap;

/// [`Site::function`] if no function of the stack has a name.
pub const NO_SYMBOL: &str = "(no symbol)";
/// The same for generated code without a file.
pub const GENERATED_CODE: &str = "(generated code)";
/// The same if the user stack was not read.
pub const NO_USER_STACK: &str = "(no user stack)";

const SITES: usize = 5;
const PATH: usize = 8;
/// A Python stack is used for a sample of the same thread if it is at most this far away in time.
const PYTHON_NEAR_NS: u64 = 2_000_000;

/// If this many samples of a line have a Python stack, they represent the others: Python stacks are read less often,
/// at times that do not depend on what runs.
const REPRESENTATIVE: usize = 20;

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
}

#[derive(Default)]
struct Tally<'a> {
    weight: u64,
    /// Python functions with their lines, and paths as frames. The most common one of each is shown.
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
    let mut tallies: BTreeMap<(&str, &str, Option<&str>), Tally> = BTreeMap::new();
    let mut total = 0_u64;
    let samples: Vec<(Option<&str>, SiteSample)> = samples
        .map(|sample| (python.near(&sample), sample))
        .filter(|(line, sample)| !sample.shallow || line.is_some())
        .collect();
    let with_python = samples.iter().filter(|(line, _)| line.is_some()).count();
    for (line, sample) in samples {
        let frames = classifier.frames(sample.user);
        let site = site_frame(recording, classifier, frames);
        let (function, module) = match site {
            Some(depth) => name_of(recording, frames[depth]),
            None if sample.user.is_none() => (NO_USER_STACK, ""),
            None => (NO_SYMBOL, ""),
        };
        if line.is_none() && python.knows(&sample) && with_python >= REPRESENTATIVE {
            continue;
        }
        let key = (function, module, line.map(without_line));
        let entry = tallies.entry(key).or_default();
        entry.weight = entry.weight.saturating_add(sample.weight);
        if let Some(line) = line {
            add(&mut entry.python, line, sample.weight);
        }
        add(&mut entry.paths, path(recording, classifier, &sample, site), sample.weight);
        total = total.saturating_add(sample.weight);
    }
    let mut sites: Vec<Site> = tallies
        .into_iter()
        .map(|((function, module, _), tally)| Site {
            function: function.to_string(),
            module: module.to_string(),
            python: commonest(tally.python).map(str::to_string),
            share: tally.weight as f64 / total.max(1) as f64,
            path: commonest(tally.paths)
                .unwrap_or_default()
                .into_iter()
                .map(|f| label(recording, f))
                .collect(),
        })
        .collect();
    // Stable: equal shares stay in the order of their names.
    sites.sort_by(|a, b| b.share.total_cmp(&a.share));
    sites.truncate(SITES);
    sites
}

/// The first function outside libc, allocator and runtime. If there is none, the first function with a name outside
/// libc and allocator.
///
/// In a stripped program only exported functions have names, so the nearest caller with a name in the same file is
/// used. Generated code has no names, so the function of the runtime that it called is used.
fn site_frame(recording: &Recording, classifier: &Classifier, frames: &[u32]) -> Option<usize> {
    let name = |f: u32| recording.frames.get(f as usize)?.symbol.as_deref();
    let named = |f: u32| name(f).is_some();
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
    let own = frames.iter().position(|f| classifier.role(*f).is_none()).map(nearest_named);
    own.or_else(|| {
        frames.iter().position(|f| {
            named(*f)
                && !matches!(
                    role_of_module(*f),
                    Some(ModuleRole::Libc | ModuleRole::Loader | ModuleRole::Allocator(_) | ModuleRole::Vdso)
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
    .or_else(|| frames.iter().position(|f| named(*f)))
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

/// The kernel's leaf, then the user frames up to the site and a few more. The middle of long paths is left out.
fn path(
    recording: &Recording,
    classifier: &Classifier,
    sample: &SiteSample,
    site: Option<usize>,
) -> Vec<u32> {
    let kernel = classifier
        .frames(sample.kernel)
        .iter()
        .find(|f| recording.frames.get(**f as usize).is_some_and(|f| f.symbol.is_some()));
    let frames = classifier.frames(sample.user);
    let end = site.map_or(frames.len(), |s| (s + 3).min(frames.len()));
    let user = &frames[..end];
    let mut path: Vec<u32> = kernel.into_iter().copied().collect();
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
struct PythonStacks<'a>(BTreeMap<(i32, i32), Vec<&'a PythonSample>>);

impl<'a> PythonStacks<'a> {
    fn new(recording: &'a Recording) -> Self {
        let mut threads: BTreeMap<(i32, i32), Vec<&PythonSample>> = BTreeMap::new();
        for sample in &recording.python {
            threads.entry((sample.pid, sample.tid)).or_default().push(sample);
        }
        threads.values_mut().for_each(|samples| samples.sort_by_key(|s| s.t_ns));
        PythonStacks(threads)
    }

    fn knows(&self, sample: &SiteSample) -> bool {
        self.0.contains_key(&(sample.pid, sample.tid))
    }

    fn near(&self, sample: &SiteSample) -> Option<&'a str> {
        let samples = self.0.get(&(sample.pid, sample.tid))?;
        let next = samples.partition_point(|s| s.t_ns < sample.t_ns);
        let around = samples[next.saturating_sub(1)..(next + 1).min(samples.len())].iter();
        let nearest = around.min_by_key(|s| s.t_ns.abs_diff(sample.t_ns))?;
        if nearest.t_ns.abs_diff(sample.t_ns) <= PYTHON_NEAR_NS {
            nearest.frames.first().map(String::as_str)
        } else {
            None
        }
    }
}
