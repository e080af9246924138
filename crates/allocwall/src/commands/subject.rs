//! `allocwall subject`: run one of the built-in subjects.

use crate::commands::shared::usage::usage;
use crate::printer::Printer;
use allocwall_lab::workloads::{Options, SUBJECTS, Stage, Subject, find};
use allocwall_model::catalogue::nearest::hint;
use std::process::ExitCode;

#[derive(clap::Args)]
pub struct Args {
    /// Name of the subject; `--list` shows all subjects
    #[arg(required_unless_present = "list")]
    name: Option<String>,

    /// Run the twin: the same program without the wall
    #[arg(long)]
    twin: bool,

    /// Share of time that the wall takes, 0 to 1
    #[arg(long, value_parser = share)]
    dial: Option<f64>,

    /// How long to run
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,

    /// Working threads
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=64))]
    threads: Option<u8>,

    /// CPU quota of the cgroup, in CPUs, instead of the quota that the dial sets (throttling only)
    #[arg(long, value_parser = quota)]
    quota: Option<f64>,

    /// List the subjects, their walls and their twins
    #[arg(long)]
    list: bool,
}

fn within(text: &str, low: f64, high: f64) -> Result<f64, String> {
    match text.parse() {
        Ok(value) if (low..=high).contains(&value) => Ok(value),
        _ => Err(format!("expected a number from {low} to {high}")),
    }
}

fn share(text: &str) -> Result<f64, String> {
    within(text, 0.0, 1.0)
}

fn quota(text: &str) -> Result<f64, String> {
    within(text, 0.01, 64.0)
}

pub fn run(args: Args, printer: &Printer) -> anyhow::Result<ExitCode> {
    if args.list {
        printer.data(&list())?;
        return Ok(ExitCode::SUCCESS);
    }
    // clap asks for a name unless --list is given.
    let name = args.name.unwrap_or_default();
    let unknown = || {
        let near = hint(&name, SUBJECTS.iter().map(|subject| subject.name));
        usage(format!("no subject {name}{near}; `allocwall subject --list` shows all subjects"))
    };
    let subject = find(&name).ok_or_else(unknown)?;
    if args.twin && subject.twin.is_none() {
        return Err(usage(format!("{name} has no wall, so it has no twin: leave --twin out")));
    }
    let threads = args.threads.map_or(subject.threads, usize::from);
    if subject.threads_fixed && threads != subject.threads {
        return Err(usage(format!("{name} needs exactly {} threads: leave --threads out", subject.threads)));
    }
    let options = Options {
        twin: args.twin,
        dial: args.dial.unwrap_or(subject.default_dial),
        seconds: args.seconds,
        threads,
        quota: args.quota,
    };
    let tell = |line: &str| printer.data(line);
    Stage::new(subject, options, &tell).run()?;
    Ok(ExitCode::SUCCESS)
}

fn list() -> String {
    let describe = |subject: &Subject| {
        let wall = subject.wall.map_or("no wall", |wall| wall.title());
        let twin = subject.twin.unwrap_or("none");
        let dial = subject.dial.meaning();
        format!("{:<20} {wall:<22} {}\n{:43} dial: {dial}; twin: {twin}\n", subject.name, subject.summary, "")
    };
    SUBJECTS.iter().map(describe).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dials_outside_the_range_are_refused() {
        assert_eq!(share("0.3"), Ok(0.3));
        for bad in ["-0.1", "1.01", "NaN", "inf", "", "much"] {
            assert!(share(bad).is_err(), "{bad}");
        }
        assert!(quota("0").is_err());
        assert_eq!(quota("0.5"), Ok(0.5));
    }

    #[test]
    fn the_list_names_every_subject_and_its_wall() {
        let list = list();
        for subject in SUBJECTS {
            assert!(list.contains(subject.name) && list.contains(subject.summary));
        }
    }
}
