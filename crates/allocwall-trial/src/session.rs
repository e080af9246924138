//! The steps that `trial` and the benches share: arms with equal room, the runs that are not counted, the head of the journal, and
//! the blocks.

use super::batch::Prepared;
use super::conduct::{Conduct, End, Event, Length, Ran, Subject};
use super::journal::{self, Head, Journal, Writer};
use super::run;
use super::{ArmInfo, BASELINES, Design, ProofState};
use allocwall_host::clock;
use allocwall_host::facts::Machine;
use allocwall_model::error::Result;
use allocwall_model::units::Interval;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::AtomicBool;

/// The arms with padding, so that arguments and environment take the same room in each.
pub fn equalised(mut arms: Vec<Prepared>) -> Vec<Prepared> {
    run::equalise(arms.iter_mut().map(|arm| &mut arm.start));
    arms
}

/// Why an arm's run that is not counted shows that the arm cannot be judged. None if it can.
pub fn problem(first: &Ran) -> Option<String> {
    let refuted = first.proof.iter().find(|item| item.state == ProofState::Refuted);
    match (&first.failure, refuted) {
        (Some(failure), _) => Some(format!("its first run failed: {failure}")),
        (None, Some(item)) => Some(format!("the remedy did not take effect: {}: {}", item.what, item.detail)),
        (None, None) => None,
    }
}

/// The arms of a design: the first [`BASELINES`] are the baseline. `predicted` may be shorter than `names`.
pub fn arms<'a>(
    names: impl IntoIterator<Item = &'a str>,
    predicted: Vec<BTreeMap<String, Interval>>,
) -> Vec<ArmInfo> {
    let mut predicted = predicted.into_iter();
    let info = |(n, name): (usize, &str)| ArmInfo {
        name: name.to_owned(),
        baseline: n < BASELINES,
        predicted: predicted.next().unwrap_or_default(),
    };
    names.into_iter().enumerate().map(info).collect()
}

/// The head of a new journal, begun now on this machine. `first`: the runs that are not counted, one per arm.
pub fn head(command: Vec<String>, design: Design, first: &[Ran]) -> Head {
    Head {
        version: journal::VERSION,
        tool_version: env!("CARGO_PKG_VERSION").into(),
        started_unix_ms: clock::unix_ms(),
        command,
        options: Value::Null,
        design,
        rates: vec![],
        proof: first.iter().map(|run| run.proof.clone()).enumerate().collect(),
        machine: machine(),
        origin: None,
    }
}

/// Describes this machine, for readers of a saved trial and to detect that a trial continues on another machine.
pub fn machine() -> Vec<String> {
    let facts = Machine::live().facts();
    let mut lines = vec![format!("Linux {} on {}", facts.kernel_release, facts.architecture)];
    lines.extend(facts.hypervisor.map(|name| format!("virtual machine: {name}")));
    lines.push(facts.cpu_model);
    lines.push(format!("{} CPUs, {} NUMA nodes", facts.online_cpus, facts.numa_nodes));
    lines
}

/// Runs all planned blocks of a new journal, saved at `path` block by block.
///
/// # Errors
/// The file cannot be written, or the first block cannot be run.
pub fn run_planned(
    head: Head,
    path: &Path,
    subject: &mut dyn Subject,
    interrupted: &AtomicBool,
    on_event: &mut dyn FnMut(Event<'_>),
) -> Result<(Journal, End)> {
    let mut writer = Writer::create(path, &head)?;
    let planned = head.design.settings.planned;
    let mut journal = Journal { head, blocks: vec![], planned: true };
    let mut conduct = Conduct { subject, writer: &mut writer, interrupted, on_event };
    let end = conduct.run(&mut journal, Length::Blocks(planned))?;
    Ok((journal, end))
}
