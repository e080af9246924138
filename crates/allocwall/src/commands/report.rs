//! `allocwall report`: judges a recording again from its file, or reports a saved trial. Starts no program.

use crate::commands::shared::diagnosis::{Diagnosis, Format};
use crate::commands::shared::trial_options::how;
use crate::commands::shared::usage::usage;
use crate::output;
use crate::printer::Printer;
use allocwall_report::text::Style;
use allocwall_report::{trial_csv, trial_json, trial_text};
use allocwall_trial::compare::compare;
use allocwall_trial::journal::{self, Journal};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(clap::Args)]
pub struct Args {
    /// A recording that `diagnose` wrote, or a saved trial
    file: PathBuf,
    #[arg(short, long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// Same as `--format json`
    #[arg(long, conflicts_with = "format")]
    json: bool,
    /// Write to OUT instead of stdout; only the owner can read the file
    #[arg(short, long, value_name = "OUT")]
    output: Option<PathBuf>,
}

pub fn run(args: Args, printer: &Printer) -> anyhow::Result<ExitCode> {
    let style = if args.output.is_some() { Style::FILE } else { printer.style() };
    let format = if args.json { Format::Json } else { args.format };
    let report = if journal::is_one(&args.file) {
        trial(&args.file, format, style, printer)?
    } else {
        Diagnosis::of(allocwall_measure::file::read(&args.file)?, Some(args.file.clone()))
            .render(format, style)?
    };
    match &args.output {
        Some(path) => output::write(path, report.as_bytes(), Some(&args.file))?,
        None => printer.data(&report)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Reports a saved trial.
fn trial(file: &Path, format: Format, style: Style, printer: &Printer) -> anyhow::Result<String> {
    let Journal { head, blocks, .. } = journal::read(file)?;
    let outcome = compare(&head.design, &blocks);
    Ok(match format {
        Format::Text => {
            let how = how(&head.options);
            if let Err(error) = &how {
                printer.warn(&format!("{}: no command for another trial: {error}", file.display()));
            }
            trial_text::trial(&outcome, &head.command, how.ok().as_deref(), style)
        }
        Format::Json => trial_json::document(&outcome, &head.command),
        Format::Csv => trial_csv::table(&outcome),
        Format::Flamegraph | Format::Collapsed => {
            return Err(usage(
                "a trial has no stacks: use --format text, json or csv; to record stacks: allocwall diagnose -- CMD",
            ));
        }
    })
}
