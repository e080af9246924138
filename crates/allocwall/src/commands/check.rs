//! `allocwall check`: what can be measured on this machine, and what to change to measure the rest.

mod blame;
mod judge;
#[cfg(test)]
mod replayed;
mod surroundings;

use crate::commands::shared::plain;
use crate::commands::shared::processes::{self, parse_pid};
use crate::printer::Printer;
use allocwall_host::facts::Machine;
use allocwall_model::catalogue::advice::Advice;
use allocwall_report::escape::terminal;
use allocwall_report::text::Style;
use judge::{Check, Report, State};
use serde_json::json;
use std::fmt::Write;
use std::process::ExitCode;
use surroundings::Kernel;

#[derive(clap::Args)]
pub struct Args {
    /// Check for this process instead of for processes in general
    #[arg(short, long, allow_negative_numbers = true, value_parser = parse_pid)]
    pid: Option<i32>,

    /// Instead of -p: the process of a container that has only one, by the name or id of the container
    #[arg(long, value_name = "NAME", conflicts_with = "pid")]
    container: Option<String>,

    /// One JSON object: version, target, summary, checks (name, group, what, state, detail, mend)
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args, printer: &Printer) -> anyhow::Result<ExitCode> {
    let pid = processes::one(args.pid, args.container.as_deref())?;
    let surroundings = surroundings::gather(&Machine::live(), Kernel::RUNNING, pid)?;
    let report = judge::judge(&surroundings);
    printer.data(&if args.json { as_json(&report, pid) } else { as_text(&report, printer.style()) })?;
    Ok(ExitCode::SUCCESS)
}

/// docs/json.md describes it.
fn as_json(report: &Report, pid: Option<i32>) -> String {
    let checks: Vec<_> = report
        .checks
        .iter()
        .map(|Check { probe, answer }| {
            json!({
                "name": probe.name,
                "group": probe.group,
                "what": probe.what,
                "state": answer.state,
                "detail": answer.detail,
                "mend": answer.mend,
            })
        })
        .collect();
    let mut text =
        json!({ "version": 1, "target": pid, "summary": report.summary, "checks": checks }).to_string();
    text.push('\n');
    text
}

const NARROWEST: usize = 40;
const WHAT: usize = 30;
const STATE: usize = 8;
const INDENT: usize = 2 + WHAT + STATE;
/// The least room for details beside the state. On a narrower page, they have lines of their own.
const DETAIL: usize = 30;

fn as_text(report: &Report, style: Style) -> String {
    let style = Style { width: style.width.max(NARROWEST), ..style };
    let mut out = textwrap::fill(&terminal(&report.summary), plain(style.width));
    out.push('\n');
    let mut group = None;
    // A mend that several lines share is printed once.
    let mut printed: Vec<(&[Advice], &str)> = Vec::new();
    for check in &report.checks {
        let (probe, mend) = (check.probe, check.answer.mend.as_slice());
        if group != Some(probe.group) {
            group = Some(probe.group);
            let _ = write!(out, "\n{}\n", probe.group.title());
        }
        row(&mut out, check, style);
        if let Some((_, what)) = printed.iter().find(|(known, _)| *known == mend) {
            alternative(&mut out, style.width, FIRST, &format!("same as for {what}"));
            continue;
        }
        for (n, way) in mend.iter().enumerate() {
            alternative(&mut out, style.width, if n == 0 { FIRST } else { " or" }, &way.line());
        }
        if !mend.is_empty() {
            printed.push((mend, probe.what));
        }
    }
    out
}

fn row(out: &mut String, Check { probe, answer }: &Check, style: Style) {
    let beside = style.width >= INDENT + DETAIL;
    let word = answer.state.word();
    let state = if beside { format!("{word:STATE$}") } else { word.to_owned() };
    let ink = answer.state.style();
    let state = if style.color { format!("{ink}{state}{ink:#}") } else { state };
    let detail = terminal(&answer.detail);
    let indent = if beside { INDENT } else { 4 };
    let mut lines = textwrap::wrap(&detail, plain(style.width - indent)).into_iter();
    let first = if beside { lines.next().unwrap_or_default() } else { "".into() };
    let _ = writeln!(out, "  {:WHAT$}{state}{first}", probe.what);
    for line in lines {
        let _ = writeln!(out, "{:indent$}{line}", "");
    }
}

/// The mark of the first alternative.
const FIRST: &str = "-->";

/// Starts left of the details, on a line of its own, so that a command can be copied whole.
fn alternative(out: &mut String, width: usize, mark: &str, text: &str) {
    const LEFT: usize = 6;
    let marked = format!("{mark} {}", terminal(text));
    for line in textwrap::wrap(&marked, plain(width - LEFT).subsequent_indent("    ")) {
        let _ = writeln!(out, "{:LEFT$}{line}", "");
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
    use judge::{Answer, PROBES};

    fn check(name: &str, state: State, detail: &str, mend: Vec<Advice>) -> Check {
        let probe = PROBES.iter().find(|probe| probe.name == name).unwrap();
        Check { probe, answer: Answer { state, detail: detail.to_owned(), cause: None, mend } }
    }

    fn report() -> Report {
        let long = "a cause that takes more than one line to explain, ".repeat(4);
        let mend = vec![
            Advice::command("sudo sysctl kernel.perf_event_paranoid=1").note("on the host"),
            Advice::text("run allocwall as root"),
        ];
        Report {
            summary: "All \u{1b}[31mgood.".to_owned(),
            checks: vec![
                check("kernel_stacks", State::Absent, &long, mend.clone()),
                check("every_cpu", State::Partial, "x\u{1b}]0;y", mend),
                check("psi", State::Available, "nothing to change", Vec::new()),
                check("cgroup", State::Available, "nothing to change", Vec::new()),
            ],
        }
    }

    #[test]
    fn fits_the_width_and_prints_a_mend_once() {
        // What no blank divides, such as the name of a setting, may be wider than a narrow page.
        for width in [100, 80, 60, 40, 1] {
            let text = as_text(&report(), Style { color: false, width });
            let wide = |line: &&str| line.chars().count() > width.max(NARROWEST) && line.trim().contains(' ');
            assert_eq!(text.lines().find(wide), None, "{width}");
        }
        let text = as_text(&report(), Style::FILE);
        assert!(!text.contains('\u{1b}'));
        let offers = |line: &&str| line.starts_with("-->") || line.starts_with("or ");
        let mends: Vec<_> = text.lines().map(str::trim_start).filter(offers).collect();
        assert_eq!(
            mends,
            [
                "--> $ sudo sysctl kernel.perf_event_paranoid=1  # on the host",
                "or run allocwall as root",
                "--> same as for kernel stacks",
            ]
        );
    }

    #[test]
    fn json_has_a_version_and_all_keys() {
        let value: serde_json::Value = serde_json::from_str(&as_json(&report(), Some(7))).unwrap();
        assert_eq!((&value["version"], &value["target"]), (&json!(1), &json!(7)));
        assert_eq!(
            value["checks"][1],
            json!({
                "name": "every_cpu",
                "group": "sampling",
                "what": "other processes on all CPUs",
                "state": "partial",
                "detail": "x\u{1b}]0;y",
                "mend": [
                    { "how": "sudo sysctl kernel.perf_event_paranoid=1", "is_command": true, "note": "on the host" },
                    { "how": "run allocwall as root", "is_command": false, "note": null },
                ],
            })
        );
        assert_eq!(value["checks"][2]["mend"], json!([]));
    }
}
