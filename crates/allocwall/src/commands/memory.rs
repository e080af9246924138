//! `allocwall memory`: the resident memory of a process by owner, as a bill that sums.

use crate::commands::shared::diagnosis::readers;
use crate::commands::shared::options::parse_time;
use crate::commands::shared::processes::{self, parse_pid};
use crate::printer::Printer;
use allocwall_measure::resident::{self, EXACT, Request};
use allocwall_report::memory_text;
use std::process::ExitCode;
use std::time::Duration;

/// Every chunk of 100 GiB is read in less.
const LONGEST: Duration = Duration::from_secs(60);

#[derive(clap::Args)]
pub struct Args {
    /// The process to read. It is not stopped
    #[arg(short, long, value_name = "PID", allow_negative_numbers = true, value_parser = parse_pid, required_unless_present = "container")]
    pid: Option<i32>,

    /// Instead of -p: the process of a container that has only one, by the name or id of the container
    #[arg(long, value_name = "NAME", conflicts_with = "pid")]
    container: Option<String>,

    /// Read every block of malloc's heaps and every pool of Python, instead of samples
    #[arg(long)]
    exact: bool,

    /// Time limit of --exact [default: 2s]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, requires = "exact", value_parser = parse_budget)]
    budget: Option<Duration>,

    /// Print the versioned JSON document (docs/json.md) instead of text
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args, printer: &Printer) -> anyhow::Result<ExitCode> {
    let exact = args.exact.then(|| args.budget.unwrap_or(EXACT));
    let chosen = processes::one(args.pid, args.container.as_deref())?;
    // clap asks for one of the two.
    let pid = chosen.unwrap_or_default();
    let bill = resident::measure(&Request { pid, exact, readers: readers() })?;
    let report = match args.json {
        true => memory_text::document(&bill),
        false => memory_text::table(&bill, printer.style()),
    };
    printer.data(&report)?;
    Ok(ExitCode::SUCCESS)
}

fn parse_budget(text: &str) -> Result<Duration, String> {
    let budget = parse_time(text)?;
    if budget > LONGEST { Err(format!("choose a time up to {LONGEST:?}")) } else { Ok(budget) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets() {
        assert_eq!(parse_budget("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_budget("60"), Ok(LONGEST));
        for bad in ["", "0", "-1", "61s", "2m", "soon"] {
            assert!(parse_budget(bad).is_err(), "{bad}");
        }
    }
}
