//! Collapsed stacks (see [`crate::collapsed`]): `process;root;…;caller count`. The count is the estimated number of
//! allocations and reallocs.

use super::{basename, module_of};
use crate::collapsed::{name, safe};
use allocwall_model::allocations::{Counted, CountedProcess};
use allocwall_model::recording::Stack;
use allocwall_model::units::Measured;
use std::collections::BTreeMap;

pub fn stacks(counted: &Counted) -> String {
    let names: Vec<String> =
        counted.frames.iter().map(|frame| name(module_of(counted, frame), frame)).collect();
    let mut calls: BTreeMap<String, f64> = BTreeMap::new();
    for process in &counted.processes {
        let root = process_name(process);
        for site in process.samples.iter().flat_map(|samples| &samples.sites) {
            let stack = [&[root.clone()][..], &code(&counted.stacks, &names, &site.stack)].concat().join(";");
            *calls.entry(stack).or_default() += site.calls.point;
        }
    }
    let lines = calls.iter().map(|(stack, calls)| (stack, calls.round() as u64));
    lines.filter(|(_, calls)| *calls > 0).map(|(stack, calls)| format!("{stack} {calls}\n")).collect()
}

fn process_name(process: &CountedProcess) -> String {
    let program = process.command.iter().flatten().next();
    root(program.map(String::as_str), process.pid)
}

/// The root of the stacks of a process.
pub(super) fn root(program: Option<&str>, pid: i32) -> String {
    safe(&format!("{} (pid {pid})", program.map_or("[unknown]", basename)))
}

/// Names from the root to the caller of the allocator. `names`: those of the frames.
pub(super) fn code(stacks: &[Stack], names: &[String], stack: &Measured<u32>) -> Vec<String> {
    let known = stack.as_ref().ok().and_then(|stack| stacks.get(*stack as usize));
    let Some(stack) = known else { return vec!["[no stack]".to_owned()] };
    let frames = stack.frames.iter().rev();
    let frames =
        frames.map(|frame| names.get(*frame as usize).map_or("[unknown]", String::as_str).to_owned());
    let cut = (!stack.complete).then(|| "[truncated]".to_owned());
    cut.into_iter().chain(frames).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::run;
    use super::*;
    use allocwall_model::units::{Absence, Reason};

    #[test]
    fn stacks_read_root_first_below_their_process() {
        insta::assert_snapshot!(stacks(&run().counted));
    }

    #[test]
    fn without_samples_there_is_no_line() {
        let mut counted = run().counted;
        for process in &mut counted.processes {
            process.samples = Err(Absence::new(Reason::Disabled, "sampling is off"));
        }
        assert_eq!(stacks(&counted), "");
    }

    #[test]
    fn names_that_would_break_the_format_stay_one_field() {
        let mut counted = run().counted;
        counted.frames.iter_mut().for_each(|frame| frame.symbol = Some("a;b 7\u{1b}".into()));
        counted.stacks.iter_mut().for_each(|stack| stack.frames.push(9999));
        for line in stacks(&counted).lines() {
            let (stack, count) = line.rsplit_once(' ').unwrap();
            assert!(
                count.parse::<u64>().is_ok() && !line.contains('\u{1b}') && !stack.contains("a;b"),
                "{line}"
            );
        }
        assert!(stacks(&counted).contains(";[unknown];"));
    }
}
