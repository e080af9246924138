//! Collapsed stacks in the format of Brendan Gregg's FlameGraph scripts: `root;…;leaf count`, one line per distinct
//! stack.
//!
//! They are made from the samples with a whole stack (`CpuSample::deep`), or from all samples if no sample has one.
//! The count is the number of samples. The order is: process, thread (if its name differs), user frames, kernel
//! frames with the suffix `_[k]`. A stack without its outermost callers is below `[truncated]`.

use super::escape::terminal;
use allocwall_model::recording::{CpuSample, Frame, Module, Recording};
use std::collections::{BTreeMap, HashMap};

/// Maximum number of frames that are kept, nearest to the leaf.
const DEEPEST: usize = 512;

pub fn stacks(rec: &Recording) -> String {
    let names = Names::of(rec);
    // A busy target has hundreds of samples of the same stack, so each stack is formatted once.
    let mut seen: BTreeMap<Place, u64> = BTreeMap::new();
    for (_, sample) in drawn(rec) {
        *seen.entry(place(sample)).or_default() += 1;
    }
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    for (place, count) in seen {
        *counts.entry(names.frames(place).join(";")).or_default() += count;
    }
    counts.iter().map(|(stack, count)| format!("{stack} {count}\n")).collect()
}

/// The fields that determine a sample's names: process, thread, kernel stack, user stack.
pub(super) type Place = (i32, i32, Option<u32>, Option<u32>);

pub(super) fn place(sample: &CpuSample) -> Place {
    (sample.pid, sample.tid, sample.kernel, sample.user)
}

/// The samples that flamegraphs and collapsed stacks use, with their index in the recording.
pub(super) fn drawn(rec: &Recording) -> impl Iterator<Item = (usize, &CpuSample)> {
    let any_deep = rec.samples.iter().any(|s| s.deep);
    rec.samples.iter().enumerate().filter(move |(_, s)| s.deep || !any_deep)
}

/// Index of the names of processes and threads.
pub(super) struct Names<'a> {
    rec: &'a Recording,
    processes: HashMap<i32, &'a str>,
    threads: HashMap<(i32, i32), &'a str>,
    /// The name of each frame, made safe.
    frames: Vec<String>,
}

impl<'a> Names<'a> {
    pub(super) fn of(rec: &'a Recording) -> Names<'a> {
        let processes = rec.processes.iter().map(|p| (p.pid, &*p.comm));
        let threads = rec.threads.iter().map(|t| ((t.pid, t.tid), &*t.comm));
        Names {
            rec,
            processes: processes.collect(),
            threads: threads.collect(),
            frames: rec.frames.iter().map(|frame| name(rec, frame)).collect(),
        }
    }

    /// Names of one sample's frames, root first, made safe for the format.
    pub(super) fn frames(&self, (pid, tid, kernel, user): Place) -> Vec<String> {
        let comm = *self.processes.get(&pid).unwrap_or(&"[unknown]");
        let mut names = vec![safe(&format!("{comm} (pid {pid})"))];
        let thread = self.threads.get(&(pid, tid));
        names.extend(thread.filter(|name| **name != comm).map(|name| safe(name)));
        names.extend(self.code(kernel, user));
        names
    }

    fn code(&self, kernel: Option<u32>, user: Option<u32>) -> Vec<String> {
        let stack = |index: Option<u32>| index.and_then(|i| self.rec.stacks.get(i as usize));
        let (user, kernel) = (stack(user), stack(kernel));
        let name = |frame: &u32| self.frames.get(*frame as usize).map_or("[unknown]", String::as_str);
        let mut code: Vec<String> = vec![];
        for frame in kernel.iter().flat_map(|s| &s.frames) {
            code.push(format!("{}_[k]", name(frame)));
        }
        for frame in user.iter().flat_map(|s| &s.frames) {
            code.push(name(frame).to_owned());
        }
        let whole = user.is_none_or(|s| s.complete) && code.len() <= DEEPEST;
        code.truncate(DEEPEST);
        if code.is_empty() {
            code.push("[no stack]".to_string());
        } else if !whole {
            code.push("[truncated]".to_string());
        }
        code.reverse();
        code
    }
}

fn name(rec: &Recording, frame: &Frame) -> String {
    match frame.symbol.as_deref().filter(|s| !s.trim().is_empty()) {
        Some(symbol) => safe(symbol),
        // One box for all code of a module without symbols; single addresses would make many small boxes.
        None => safe(&format!("[{}]", module(rec, frame).map_or("unknown", |m| basename(&m.path)))),
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
fn safe(name: &str) -> String {
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
    use allocwall_model::recording::ThreadTimes;
    use proptest::prelude::*;

    #[test]
    fn stacks_read_root_first_with_the_kernel_marked() {
        let case = sketches::first_touch();
        insta::assert_snapshot!(stacks(&case.rec));
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
