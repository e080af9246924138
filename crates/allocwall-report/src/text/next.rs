//! The next commands.

use super::ladder::COLUMN;
use super::page::{Ink, Page};
use super::remedies::REMEDIES_SHOWN;
use allocwall_diagnose::bill::Bill;
use allocwall_diagnose::remedies::trial;
use allocwall_diagnose::{ShellLine, Status, Verdict};
use allocwall_model::recording::Recording;
use allocwall_model::shell::quoted;

const NEXT_SHOWN: usize = 3;
/// Commands of the verdict in the brief report: the whole report is the last one.
const NEXT_BRIEFLY: usize = 1;

/// The commands of the verdict that are not shown already, and the whole report.
pub(super) fn brief(page: &mut Page, rec: &Recording, bill: &Bill, verdict: &Verdict, file: Option<&str>) {
    let first = verdict.remedies.first();
    let tried = first.and_then(|remedy| trial(rec, bill, remedy)).map(|line| line.command);
    let applied = first.map(|remedy| remedy.how.command.clone());
    // What shows a wall with another tool can wait where a remedy can be tried.
    let walls = verdict.findings.iter().filter(|_| first.is_some()).map(|finding| &finding.show.command);
    let shown: Vec<&String> = tried.iter().chain(&applied).chain(walls).collect();
    let unseen = verdict.next.iter().filter(|step| !shown.contains(&&step.command));
    let mut steps: Vec<ShellLine> = unseen.take(NEXT_BRIEFLY).cloned().collect();
    if let Some(file) = file {
        let whole = ShellLine::from(format!("allocwall report {} --all", quoted(file)));
        steps.push(whole.remark("everything that was measured"));
    }
    for (nth, step) in steps.iter().enumerate() {
        page.command_after(if nth == 0 { "NEXT" } else { "" }, COLUMN, step);
    }
    if file.is_none() {
        page.wrapped(COLUMN, "everything that was measured: the same command with --all", Ink::Faint);
    }
}

/// Commands that were already shown with a remedy or a wall are not repeated.
pub(super) fn all(page: &mut Page, rec: &Recording, bill: &Bill, verdict: &Verdict, file: Option<&str>) {
    let applied = verdict.remedies.iter().take(REMEDIES_SHOWN).map(|r| &r.how.command);
    let tried = verdict.remedies.first().and_then(|remedy| trial(rec, bill, remedy)).map(|line| line.command);
    let walls = verdict.findings.iter().filter(|f| f.status == Status::Wall).map(|f| &f.show.command);
    let shown: Vec<&String> = applied.chain(&tried).chain(walls).collect();
    let mut steps: Vec<ShellLine> =
        verdict.next.iter().filter(|n| !shown.contains(&&n.command)).cloned().collect();
    if let Some(file) = file.filter(|_| !rec.samples.is_empty()) {
        // Without samples there is no flamegraph.
        let command = format!("allocwall report {} --format flamegraph -o wall.svg", quoted(file));
        steps.push(ShellLine::from(command));
    }
    if steps.is_empty() {
        return;
    }
    page.blank();
    for (nth, step) in steps.iter().take(NEXT_SHOWN).enumerate() {
        page.command_after(if nth == 0 { "NEXT" } else { "" }, 6, step);
    }
}
