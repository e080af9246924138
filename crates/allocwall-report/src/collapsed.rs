//! Collapsed stacks in the format of Brendan Gregg's FlameGraph scripts: `root;…;leaf count`, one line per distinct
//! stack.
//!
//! They are made from the samples with a whole stack (`CpuSample::deep`), or from all samples if no sample has one.
//! The count is the number of samples. The order is: process, thread (if its name differs), user frames, kernel
//! frames with the suffix `_[k]`. A stack without its outermost callers is below `[truncated]`.
//!
//! Python functions are in place of the interpreter's frames that run them. Python stacks are read less often than
//! samples are taken, so the samples near one represent the other samples of their thread and line of the bill.

use super::escape::terminal;
use allocwall_diagnose::bill::{Classifier, PythonStacks, REPRESENTATIVE};
use allocwall_model::catalogue::cost::CostClass;
use allocwall_model::catalogue::symbols::{self, Scope, UserRole};
use allocwall_model::recording::{CpuSample, Frame, Module, PythonSample, Recording};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Maximum number of frames that are kept, nearest to the leaf.
const DEEPEST: usize = 512;
/// In place of the name of a process.
const UNKNOWN: &str = "[unknown]";
/// A Python stack with so many frames is cut ([`PythonSample::frames`]).
const PYTHON_DEEPEST: usize = 16;

pub fn stacks(rec: &Recording) -> String {
    let names = Names::of(rec);
    // The lines of the bill are needed only for Python.
    let classes = if rec.python.is_empty() { vec![] } else { Classifier::new(rec).cpu(&rec.samples) };
    // A busy target has hundreds of samples of the same stack, so each stack is formatted once.
    let mut seen: BTreeMap<Place, u64> = BTreeMap::new();
    for drawn in drawn(rec, &classes, Which::Whole) {
        *seen.entry(drawn.place()).or_default() += drawn.count;
    }
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    for (place, count) in seen {
        *counts.entry(names.frames(place).join(";")).or_default() += count;
    }
    counts.iter().map(|(stack, count)| format!("{stack} {count}\n")).collect()
}

/// The fields that determine a sample's names: process, thread, kernel stack, user stack, Python stack.
pub(super) type Place<'a> = (i32, i32, Option<u32>, Option<u32>, Option<&'a [String]>);

/// One level of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Level<'a> {
    /// Index of a frame.
    Kernel(u32),
    User(u32),
    Python(&'a str),
    /// In place of frames that are not known.
    Missing(&'static str),
}

/// The samples that are used.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Which {
    /// Those with a whole stack, or all if there is none.
    Whole,
    All,
}

/// A sample that flamegraphs, collapsed stacks and profiles use.
pub(super) struct Drawn<'a> {
    /// In the recording.
    pub index: usize,
    pub sample: &'a CpuSample,
    python: Option<&'a PythonSample>,
    /// The number of samples that it represents.
    pub count: u64,
}

impl<'a> Drawn<'a> {
    pub fn place(&self) -> Place<'a> {
        let CpuSample { pid, tid, kernel, user, .. } = *self.sample;
        (pid, tid, kernel, user, self.python.map(|python| &python.frames[..]))
    }
}

/// `classes` are the lines of the bill of all samples; they may be empty if the recording has no Python stack.
pub(super) fn drawn<'a>(rec: &'a Recording, classes: &[CostClass], which: Which) -> Vec<Drawn<'a>> {
    let all = which == Which::All || !rec.samples.iter().any(|s| s.deep);
    let python = PythonStacks::new(rec);
    let mut drawn = vec![];
    let mut groups: BTreeMap<(i32, i32, Option<CostClass>), Group> = BTreeMap::new();
    for (index, sample) in rec.samples.iter().enumerate() {
        let whole = sample.deep || all;
        if !python.knows(sample.pid, sample.tid) {
            if whole {
                drawn.push(Drawn { index, sample, python: None, count: 1 });
            }
            continue;
        }
        let key = (sample.pid, sample.tid, classes.get(index).copied());
        let group = groups.entry(key).or_default();
        if whole {
            group.whole.push((index, sample));
        }
        if let Some(stack) = python.near(sample.pid, sample.tid, sample.t_ns) {
            group.times.insert(stack.t_ns);
            group.near.push((index, sample, stack));
        }
    }
    for group in groups.values() {
        group.draw(&mut drawn);
    }
    drawn
}

/// The samples of one thread with Python code in one line of the bill.
#[derive(Default)]
struct Group<'a> {
    whole: Vec<(usize, &'a CpuSample)>,
    /// Those near a Python stack; they need no whole stack, because Python's frames are the outer ones.
    near: Vec<(usize, &'a CpuSample, &'a PythonSample)>,
    /// When these Python stacks were read.
    times: BTreeSet<u64>,
}

impl<'a> Group<'a> {
    fn draw(&self, drawn: &mut Vec<Drawn<'a>>) {
        if self.times.len() < REPRESENTATIVE {
            let alone =
                |&(index, sample): &(usize, &'a CpuSample)| Drawn { index, sample, python: None, count: 1 };
            return drawn.extend(self.whole.iter().map(alone));
        }
        // The counts sum to the number of whole stacks.
        let (all, parts) = (self.whole.len() as u64, self.near.len() as u64);
        for (nth, &(index, sample, stack)) in (0_u64..).zip(&self.near) {
            let count = (nth + 1) * all / parts - nth * all / parts;
            if count > 0 {
                drawn.push(Drawn { index, sample, python: Some(stack), count });
            }
        }
    }
}

/// Index of the names of processes and threads.
pub(super) struct Names<'a> {
    rec: &'a Recording,
    /// The number of sampled processes with each name.
    namesakes: HashMap<&'a str, usize>,
    processes: HashMap<i32, &'a str>,
    threads: HashMap<(i32, i32), &'a str>,
    /// The name of each frame, made safe.
    frames: Vec<String>,
    /// Whether each frame is the loop of an interpreter; empty if the recording has no Python stack.
    loops: Vec<bool>,
}

impl<'a> Names<'a> {
    pub(super) fn of(rec: &'a Recording) -> Names<'a> {
        let processes: HashMap<i32, &str> = rec.processes.iter().map(|p| (p.pid, &*p.comm)).collect();
        let sampled: BTreeSet<i32> = rec.samples.iter().map(|sample| sample.pid).collect();
        let mut namesakes = HashMap::new();
        for pid in sampled {
            // Those without a name may be different programs.
            if let Some(name) = processes.get(&pid) {
                *namesakes.entry(*name).or_default() += 1;
            }
        }
        let threads = rec.threads.iter().map(|t| ((t.pid, t.tid), &*t.comm));
        Names {
            rec,
            namesakes,
            processes,
            threads: threads.collect(),
            frames: rec.frames.iter().map(|frame| name(module(rec, frame), frame)).collect(),
            loops: if rec.python.is_empty() { vec![] } else { rec.frames.iter().map(is_loop).collect() },
        }
    }

    /// Names of one sample's frames, root first, made safe for the format.
    pub(super) fn frames(&self, place: Place<'a>) -> Vec<String> {
        let (pid, tid, ..) = place;
        let comm = *self.processes.get(&pid).unwrap_or(&UNKNOWN);
        // Workers of one program are one box: the same code in each of them is shown once.
        let which = match self.namesakes.get(comm) {
            Some(processes) if *processes > 1 => format!("{processes} processes"),
            _ => format!("pid {pid}"),
        };
        let mut names = vec![safe(&format!("{comm} ({which})"))];
        let thread = self.threads.get(&(pid, tid));
        names.extend(thread.filter(|name| **name != comm).map(|name| safe(name)));
        names.extend(self.levels(place).into_iter().rev().map(|level| match level {
            Level::Kernel(_) => format!("{}_[k]", self.name(level)),
            _ => self.name(level).into_owned(),
        }));
        names
    }

    /// The frames of one sample, leaf first.
    pub(super) fn levels(&self, (_, _, kernel, user, python): Place<'a>) -> Vec<Level<'a>> {
        let stack = |index: Option<u32>| index.and_then(|i| self.rec.stacks.get(i as usize));
        let (user, kernel) = (stack(user), stack(kernel));
        let mut levels: Vec<Level> =
            kernel.iter().flat_map(|s| &s.frames).map(|frame| Level::Kernel(*frame)).collect();
        let user_frames = user.map_or(&[][..], |s| &s.frames[..]);
        let own = match python {
            None => user_frames,
            // Python's functions replace the interpreter's frames from here on.
            Some(_) => {
                let is_loop = |frame: &u32| self.loops.get(*frame as usize) == Some(&true);
                // If the loop has no name, only the leaf is surely within the Python function.
                let otherwise = if user.is_none_or(|s| s.complete) { 1 } else { usize::MAX };
                let end = user_frames.iter().position(is_loop).unwrap_or(otherwise);
                &user_frames[..end.min(user_frames.len())]
            }
        };
        levels.extend(own.iter().map(|frame| Level::User(*frame)));
        levels.extend(python.unwrap_or_default().iter().map(|frame| Level::Python(frame)));
        let whole = match python {
            None => user.is_none_or(|s| s.complete),
            Some(frames) => frames.len() < PYTHON_DEEPEST,
        } && levels.len() <= DEEPEST;
        levels.truncate(DEEPEST);
        if levels.is_empty() {
            levels.push(Level::Missing("[no stack]"));
        } else if !whole {
            levels.push(Level::Missing("[truncated]"));
        }
        levels
    }

    /// The name of a level, made safe.
    pub(super) fn name(&self, level: Level) -> Cow<'_, str> {
        match level {
            Level::Kernel(frame) | Level::User(frame) => {
                Cow::Borrowed(self.frames.get(frame as usize).map_or("[unknown]", String::as_str))
            }
            Level::Python(frame) => Cow::Owned(python_name(frame)),
            Level::Missing(what) => Cow::Borrowed(what),
        }
    }

    /// The name of a process, made safe.
    pub(super) fn process(&self, pid: i32) -> String {
        safe(self.processes.get(&pid).unwrap_or(&UNKNOWN))
    }

    /// The name of a thread, made safe; that of its process if it has none.
    pub(super) fn thread(&self, pid: i32, tid: i32) -> String {
        self.threads.get(&(pid, tid)).map_or_else(|| self.process(pid), |name| safe(name))
    }
}

/// Whether the function is the loop of CPython's interpreter.
fn is_loop(frame: &Frame) -> bool {
    let role = frame.symbol.as_deref().and_then(|symbol| symbols::user_role(symbol, Scope::Cpython));
    role == Some(UserRole::Interpreter)
}

/// A frame of a Python stack, `function (file:line)`, without the line: all lines of a function are one box.
fn python_name(frame: &str) -> String {
    match frame.rsplit_once(':') {
        Some((head, _)) if head.contains('(') => safe(&format!("{head})")),
        _ => safe(frame),
    }
}

/// One frame, made safe for the format.
pub(crate) fn name(module: Option<&Module>, frame: &Frame) -> String {
    match frame.symbol.as_deref().filter(|s| !s.trim().is_empty()) {
        Some(symbol) => safe(symbol),
        // One box for all code of a module without symbols; single addresses would make many small boxes.
        None => safe(&format!("[{}]", module.map_or("unknown", |m| basename(&m.path)))),
    }
}

pub(super) fn module<'a>(rec: &'a Recording, frame: &Frame) -> Option<&'a Module> {
    rec.modules.get(frame.module? as usize)
}

fn basename(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path).trim_matches(['[', ']'])
}

/// Makes a name safe for readers of the format. They split at `;` and at the last blank, take a second number at the
/// end as a second count, and skip lines that begin with `# `.
pub(crate) fn safe(name: &str) -> String {
    let mut safe = terminal(name).replace("; ", ", ").replace(';', ",");
    safe = safe.trim().to_string();
    if let Some((front, last)) = safe.rsplit_once(char::is_whitespace)
        && last.chars().all(|c| c.is_ascii_digit() || c == '.')
    {
        safe = format!("{}_{last}", front.trim_end());
    }
    if safe.starts_with('#') {
        safe.insert(0, '_');
    }
    if safe.is_empty() { "[unknown]".to_string() } else { safe }
}

#[cfg(test)]
mod tests {
    use super::super::sketches;
    use super::*;
    use allocwall_model::recording::{Process, ThreadTimes};
    use proptest::prelude::*;

    #[test]
    fn stacks_read_root_first_with_the_kernel_marked() {
        let case = sketches::first_touch();
        insta::assert_snapshot!(stacks(&case.rec));
    }

    #[test]
    fn processes_with_one_name_are_one_box() {
        let mut rec = sketches::first_touch().rec;
        let roots = |rec: &Recording| {
            let text = stacks(rec);
            let roots = text.lines().filter_map(|line| line.split(';').next());
            roots.map(str::to_owned).collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>()
        };
        let one = roots(&rec);
        assert_eq!(one, ["python3 (pid 4242)"]);
        let worker = Process { pid: 4300, ..rec.processes[0].clone() };
        rec.processes.push(worker);
        assert_eq!(roots(&rec), one, "a process without samples");
        let all = stacks(&rec).lines().count();
        let twice: Vec<CpuSample> =
            rec.samples.iter().map(|sample| CpuSample { pid: 4300, ..*sample }).collect();
        rec.samples.extend(twice);
        assert_eq!(
            (roots(&rec), stacks(&rec).lines().count()),
            (vec!["python3 (2 processes)".to_owned()], all)
        );
        // The twin: another program.
        rec.processes[1].comm = "sh".into();
        assert_eq!(roots(&rec), ["python3 (pid 4242)", "sh (pid 4300)"]);
        // Without names, they may be different programs.
        rec.processes.clear();
        assert_eq!(roots(&rec), ["[unknown] (pid 4242)", "[unknown] (pid 4300)"]);
    }

    #[test]
    fn only_whole_stacks_are_drawn_unless_there_are_none() {
        let mut rec = sketches::first_touch().rec;
        let total = |rec: &Recording| -> u64 {
            stacks(rec).lines().map(|l| l.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
        };
        assert_eq!(total(&rec), 5);
        rec.samples.iter_mut().for_each(|s| s.deep = false);
        assert_eq!(total(&rec), 6);
        rec.samples.clear();
        assert_eq!(stacks(&rec), "");
    }

    /// A hundred samples below the interpreter's loop, one every 10 ms, and this number of Python stacks.
    fn with_python(stacks: u64) -> Recording {
        let mut rec = sketches::first_touch().rec;
        let sample = rec.samples[0];
        rec.samples = (0..100).map(|n| CpuSample { t_ns: n * 10_000_000, ..sample }).collect();
        let python = |n: u64| PythonSample {
            t_ns: n * 100_000_000,
            pid: sample.pid,
            tid: sample.tid,
            // The line in the function changes.
            frames: vec![format!("handle (a.py:{n})"), "<module> (a.py:90)".into()],
        };
        rec.python = (0..stacks).map(python).collect();
        rec
    }

    #[test]
    fn python_functions_replace_the_frames_of_their_interpreter() {
        let kernel = "memset;asm_exc_page_fault_[k];handle_mm_fault_[k];clear_page_erms_[k] 100\n";
        let python = "python3 (pid 4242);<module> (a.py);handle (a.py)";
        assert_eq!(stacks(&with_python(5)), format!("{python};{kernel}"));
        // Too few stacks represent nothing, and those of another thread are not used.
        let native = "python3 (pid 4242);main;_PyEval_EvalFrameDefault";
        assert_eq!(stacks(&with_python(4)), format!("{native};{kernel}"));
        let mut other = with_python(9);
        other.python.iter_mut().for_each(|python| python.tid += 1);
        assert_eq!(stacks(&other), format!("{native};{kernel}"));
    }

    #[test]
    fn what_python_represents_keeps_the_number_of_samples() {
        let mut rec = with_python(7);
        // A sample without a whole stack is drawn if a Python stack is near it, and is not counted.
        let shallow = CpuSample { deep: false, t_ns: 100_000_001, ..rec.samples[0] };
        rec.samples.push(shallow);
        let total: u64 =
            stacks(&rec).lines().map(|l| l.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum();
        assert_eq!(total, 100);
    }

    #[test]
    fn indices_beyond_the_tables_are_unknown_not_a_panic() {
        let mut rec = sketches::first_touch().rec;
        rec.stacks[0].frames = vec![9999];
        rec.frames[3].module = Some(9999);
        rec.frames[3].symbol = None;
        rec.samples[3].user = Some(9999);
        rec.samples[3].pid = -1;
        let text = stacks(&rec);
        assert!(text.contains("[unknown]_[k]") && text.contains("[no stack]"), "{text}");
    }

    #[test]
    fn each_of_many_threads_keeps_its_name() {
        let mut rec = sketches::first_touch().rec;
        let (sample, thread) = (rec.samples[0], rec.threads[0].clone());
        let numbers = 0..30_000;
        rec.threads = numbers
            .clone()
            .map(|tid| ThreadTimes { tid, comm: format!("worker-{tid}"), ..thread.clone() })
            .collect();
        rec.samples = numbers.clone().map(|tid| CpuSample { tid, ..sample }).collect();
        let text = stacks(&rec);
        assert_eq!(text.lines().count(), numbers.len());
        for tid in [0, 17, 29_999] {
            assert!(text.contains(&format!(";worker-{tid};")), "{tid}");
        }
    }

    proptest! {
        #[test]
        fn a_name_stays_one_field(name in "[ -~\\n\\t\\x1b;#]{0,20}|\\PC{0,10}|# [0-9]{1,3}|a [0-9]{1,3}") {
            let mut rec = sketches::first_touch().rec;
            for frame in &mut rec.frames {
                frame.symbol = Some(name.clone());
            }
            rec.processes[0].comm = name.clone();
            for (line, frames) in stacks(&rec).lines().zip([4, 4, 4, 4, 4]) {
                let (stack, count) = line.rsplit_once(' ').unwrap();
                prop_assert!(count.parse::<u64>().is_ok());
                prop_assert!(!line.starts_with('#') && !line.chars().any(char::is_control));
                let last = stack.rsplit(char::is_whitespace).next().unwrap();
                prop_assert!(stack == last || last.parse::<f64>().is_err() || last.contains(';'), "{line}");
                prop_assert!(stack.split(';').count() >= frames - 1);
            }
        }
    }
}
