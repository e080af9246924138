//! Collapsed stacks, as Brendan Gregg's FlameGraph scripts read them: `root;…;leaf count`, one line a distinct stack.
//!
//! Drawn from the samples that carried a whole stack (`CpuSample::deep`), or from all where none did; the count is a
//! number of such samples. Below the process, and the thread where its name differs, come the user frames, then the
//! kernel frames with the suffix `_[k]`. A stack whose outermost callers are missing hangs below `[truncated]`.

use super::escape::terminal;
use crate::measure::recording::{CpuSample, Frame, Module, Recording};
use std::collections::BTreeMap;

/// Frames nearest to the leaf that are kept: deeper recursion reads no better.
const DEEPEST: usize = 512;

pub fn stacks(rec: &Recording) -> String {
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    for (_, sample) in drawn(rec) {
        *counts.entry(frames(rec, sample).join(";")).or_default() += 1;
    }
    counts
        .iter()
        .map(|(stack, count)| format!("{stack} {count}\n"))
        .collect()
}

/// The samples that pictures are drawn from, with their places in the recording.
pub(super) fn drawn(rec: &Recording) -> impl Iterator<Item = (usize, &CpuSample)> {
    let any_deep = rec.samples.iter().any(|s| s.deep);
    rec.samples
        .iter()
        .enumerate()
        .filter(move |(_, s)| s.deep || !any_deep)
}

/// Names of one sample's frames, root first, made safe for the format.
pub(super) fn frames(rec: &Recording, sample: &CpuSample) -> Vec<String> {
    let process = rec.processes.iter().find(|p| p.pid == sample.pid);
    let comm = process.map_or("[unknown]", |p| &p.comm);
    let mut names = vec![safe(&format!("{comm} (pid {})", sample.pid))];
    let thread = rec
        .threads
        .iter()
        .find(|t| t.pid == sample.pid && t.tid == sample.tid);
    names.extend(thread.filter(|t| t.comm != comm).map(|t| safe(&t.comm)));
    let user = sample.user.and_then(|i| rec.stacks.get(i as usize));
    let kernel = sample.kernel.and_then(|i| rec.stacks.get(i as usize));
    let mut code: Vec<String> = vec![];
    for frame in kernel.iter().flat_map(|s| &s.frames) {
        code.push(format!("{}_[k]", name(rec, *frame)));
    }
    for frame in user.iter().flat_map(|s| &s.frames) {
        code.push(name(rec, *frame));
    }
    let whole = user.is_none_or(|s| s.complete) && code.len() <= DEEPEST;
    code.truncate(DEEPEST);
    if code.is_empty() {
        names.push("[no stack]".to_string());
    } else if !whole {
        names.push("[truncated]".to_string());
    }
    names.extend(code.into_iter().rev());
    names
}

fn name(rec: &Recording, frame: u32) -> String {
    let Some(frame) = rec.frames.get(frame as usize) else {
        return "[unknown]".to_string();
    };
    match frame.symbol.as_deref().filter(|s| !s.trim().is_empty()) {
        Some(symbol) => safe(symbol),
        // One box for a module's nameless code: an address each would scatter it.
        None => safe(&format!(
            "[{}]",
            module(rec, frame).map_or("unknown", |m| basename(&m.path))
        )),
    }
}

pub(super) fn module<'a>(rec: &'a Recording, frame: &Frame) -> Option<&'a Module> {
    rec.modules.get(frame.module? as usize)
}

fn basename(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path).trim_matches(['[', ']'])
}

/// Readers split at `;` and at the last blank, take a second trailing number for a second count, and skip lines that
/// begin with `# `.
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
    if safe.is_empty() {
        "[unknown]".to_string()
    } else {
        safe
    }
}

#[cfg(test)]
mod tests {
    use super::super::sketches;
    use super::*;
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
            stacks(rec)
                .lines()
                .map(|l| l.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
                .sum()
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
        assert!(
            text.contains("[unknown]_[k]") && text.contains("[no stack]"),
            "{text}"
        );
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
