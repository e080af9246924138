//! `allocwall check`: what can be measured on this machine, and what to change to measure the rest.

mod judge;
#[cfg(test)]
mod replayed;
mod surroundings;

use crate::commands::shared::plain;
use crate::printer::Printer;
use allocwall_host::facts::Machine;
use allocwall_report::escape::terminal;
use judge::{Check, Report, State};
use serde_json::json;
use std::fmt::Write;
use std::process::ExitCode;
use surroundings::Kernel;

/// Try each source of measurements, and report what blocks it and what to change
#[derive(clap::Args)]
pub struct Args {
    /// Check for this process instead of for processes in general
    #[arg(short, long, value_parser = clap::value_parser!(i32).range(1..))]
    pid: Option<i32>,
    /// One JSON object: version, target, summary, checks (name, group, what, state, detail, mend)
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args, printer: &Printer) -> anyhow::Result<ExitCode> {
    let surroundings = surroundings::gather(&Machine::live(), Kernel::RUNNING, args.pid)?;
    let report = judge::judge(&surroundings);
    printer.data(&if args.json { as_json(&report, args.pid) } else { as_text(&report, printer.color()) })?;
    Ok(ExitCode::SUCCESS)
}

/// Version 1. `state` is `available`, `partial` or `absent`. `mend` is null if nothing has to be changed, or nothing
/// can be. A version may gain new names and keys, but the meaning of existing ones does not change.
fn as_json(report: &Report, pid: Option<i32>) -> String {
    let checks: Vec<_> = report
        .checks
        .iter()
        .map(|check| {
            json!({
                "name": check.name,
                "group": check.group.key(),
                "what": check.what,
                "state": check.state.key(),
                "detail": check.detail,
                "mend": check.mend,
            })
        })
        .collect();
    let mut text =
        json!({ "version": 1, "target": pid, "summary": report.summary, "checks": checks }).to_string();
    text.push('\n');
    text
}

const WIDTH: usize = 100;
const WHAT: usize = 30;
const STATE: usize = 8;
const INDENT: usize = 2 + WHAT + STATE;

fn as_text(report: &Report, color: bool) -> String {
    let mut out = textwrap::fill(&terminal(&report.summary), plain(WIDTH));
    out.push('\n');
    let mut group = None;
    // A mend that several lines share is printed once.
    let mut told: Vec<(&str, &str)> = Vec::new();
    for check in &report.checks {
        if group != Some(check.group) {
            group = Some(check.group);
            let _ = write!(out, "\n{}\n", check.group.title());
        }
        row(&mut out, check, color);
        if let Some(mend) = check.mend.as_deref() {
            match told.iter().find(|(known, _)| *known == mend) {
                Some((_, what)) => mended(&mut out, &format!("same as for {what}")),
                None => {
                    mended(&mut out, mend);
                    told.push((mend, &check.what));
                }
            }
        }
    }
    out
}

fn row(out: &mut String, check: &Check, color: bool) {
    let state = format!("{:STATE$}", check.state.word());
    let style = check.state.style();
    let state = if color { format!("{style}{state}{style:#}") } else { state };
    let detail = terminal(&check.detail);
    let mut lines = textwrap::wrap(&detail, plain(WIDTH - INDENT)).into_iter();
    let first = lines.next().unwrap_or_default();
    let _ = writeln!(out, "  {:WHAT$}{state}{first}", check.what);
    for line in lines {
        let _ = writeln!(out, "{:INDENT$}{line}", "");
    }
}

/// Starts left of the details, one alternative per line, so that a command can be copied whole.
fn mended(out: &mut String, mend: &str) {
    const LEFT: usize = 6;
    for (n, alternative) in mend.split(judge::OR).enumerate() {
        let mark = if n == 0 { "-->" } else { " or" };
        for line in textwrap::wrap(
            &format!("{mark} {}", terminal(alternative)),
            plain(WIDTH - LEFT).subsequent_indent("    "),
        ) {
            let _ = writeln!(out, "{:LEFT$}{line}", "");
        }
    }
}

impl State {
    fn style(self) -> anstyle::Style {
        use anstyle::AnsiColor;
        let color = match self {
            State::Available => AnsiColor::Green,
            State::Partial => AnsiColor::Yellow,
            State::Absent => AnsiColor::Red,
        };
        color.on_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use judge::Group;

    fn check(what: &str, state: State, detail: &str, mend: Option<&str>) -> Check {
        Check {
            group: Group::Sampling,
            name: "x",
            what: what.to_owned(),
            state,
            detail: detail.to_owned(),
            mend: mend.map(str::to_owned),
            blocker: None,
            needed: true,
        }
    }

    fn report() -> Report {
        let long = "a cause that takes more than one line to explain, ".repeat(4);
        Report {
            summary: "All \u{1b}[31mgood.".to_owned(),
            checks: vec![
                check(
                    "kernel stacks",
                    State::Absent,
                    &long,
                    Some("sudo sysctl kernel.perf_event_paranoid=1"),
                ),
                check(
                    "other",
                    State::Partial,
                    "x\u{1b}]0;y",
                    Some("sudo sysctl kernel.perf_event_paranoid=1"),
                ),
            ],
        }
    }

    #[test]
    fn fits_the_width_and_prints_a_mend_once() {
        let text = as_text(&report(), false);
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        assert!(!text.contains('\u{1b}'));
        assert_eq!(text.matches("perf_event_paranoid=1").count(), 1);
        assert!(text.contains("--> same as for kernel stacks"), "{text}");
    }

    #[test]
    fn json_has_a_version_and_all_keys() {
        let value: serde_json::Value = serde_json::from_str(&as_json(&report(), Some(7))).unwrap();
        assert_eq!((&value["version"], &value["target"]), (&json!(1), &json!(7)));
        let first = &value["checks"][0];
        assert_eq!(
            (&first["state"], &first["name"], &first["group"]),
            (&json!("absent"), &json!("x"), &json!("sampling"))
        );
        assert!(first["mend"].is_string() && first["detail"].is_string());
    }
}
