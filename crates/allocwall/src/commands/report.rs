//! `allocwall report`: judges a recording again from its file, or reports a saved trial. Starts no program.

use crate::commands::shared::diagnosis::{Diagnosis, extent};
use crate::commands::shared::formats::{Format, Source, Table};
use crate::commands::shared::pages;
use crate::commands::shared::state::kept_recordings;
use crate::commands::shared::trial_options::how;
use crate::output;
use crate::printer::Printer;
use allocwall_measure::file;
use allocwall_report::text::Style;
use allocwall_report::{recordings, trial_csv, trial_json, trial_text};
use allocwall_trial::compare::compare;
use allocwall_trial::journal::{self, Journal};
use anyhow::Context;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(clap::Args)]
pub struct Args {
    /// A recording that `diagnose` wrote, or a saved trial [default: the newest recording in the state directory]
    file: Option<PathBuf>,
    /// List the recordings in the state directory, newest first: time, target, verdict, and the command that reports it
    #[arg(long, conflicts_with_all = ["file", "format", "table", "json", "output", "all"])]
    list: bool,
    /// [default: what the name of OUT ends with (docs/formats.md); without an extension, text]
    #[arg(short, long, value_enum)]
    format: Option<Format>,
    /// The table of `--format csv` and `--format parquet` [default: bill]
    #[arg(long, value_enum)]
    table: Option<Table>,
    /// Same as `--format json`
    #[arg(long, conflicts_with = "format")]
    json: bool,
    /// Text: everything that was measured
    #[arg(long, conflicts_with = "json")]
    all: bool,
    /// Write to OUT instead of stdout; only the owner can read the file
    #[arg(short, long, value_name = "OUT")]
    output: Option<PathBuf>,
}

pub fn run(args: Args, printer: &Printer) -> anyhow::Result<ExitCode> {
    if args.list {
        return list(printer);
    }
    let file = match args.file {
        Some(file) => file,
        None => newest(printer)?,
    };
    let style = if args.output.is_some() { Style::FILE } else { printer.style() };
    let format = Format::chosen(args.format, args.json, args.output.as_deref())?;
    let source = if journal::is_one(&file) { Source::Trial } else { Source::Recording };
    format.check(source, args.table, args.output.is_none() && printer.stdout_is_terminal())?;
    let report = match source {
        Source::Trial => trial(&file, format, style, printer)?.into_bytes(),
        Source::Recording => {
            let diagnosis = Diagnosis::of(file::read(&file)?, Some(file.clone()));
            diagnosis.render(format, args.table, extent(args.all), style)?
        }
    };
    match &args.output {
        Some(path) => output::write(path, &report, Some(&file))?,
        None => printer.bytes(&report)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The recording that `diagnose` wrote last under a name of its own.
fn newest(printer: &Printer) -> anyhow::Result<PathBuf> {
    let (state, mut kept) = kept_recordings(printer)?;
    let newest = kept.pop().with_context(|| {
        format!("{} has no recording: make one with allocwall diagnose, or name a file", state.display())
    })?;
    printer.note(&format!("recording: {}", newest.display()));
    Ok(newest)
}

/// One entry after the other, because each recording is judged again.
fn list(printer: &Printer) -> anyhow::Result<ExitCode> {
    let (state, kept) = kept_recordings(printer)?;
    if kept.is_empty() {
        printer.note(&format!("{} has no recording: make one with allocwall diagnose", state.display()));
    }
    for path in kept.iter().rev() {
        let diagnosis = file::read(path).map(|recording| Diagnosis::of(recording, None));
        let judged = diagnosis.as_ref().map(|d| (&d.recording, &d.verdict)).map_err(ToString::to_string);
        printer.data(&recordings::entry(judged, &path.to_string_lossy(), printer.style()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Reports a saved trial.
fn trial(file: &Path, format: Format, style: Style, printer: &Printer) -> anyhow::Result<String> {
    let journal = journal::read(file)?;
    let Journal { head, blocks, .. } = &journal;
    let outcome = compare(&head.design, blocks);
    Ok(match format {
        Format::Json => trial_json::document(&outcome, &head.command),
        Format::Csv => trial_csv::table(&outcome),
        Format::Html => pages::of_trial(&outcome, &journal),
        // Text: the other formats were refused.
        _ => {
            let how = how(&head.options);
            if let Err(error) = &how {
                printer.warn(&format!("{}: no command for another trial: {error}", file.display()));
            }
            trial_text::trial(&outcome, &head.command, how.ok().as_deref(), style)
        }
    })
}
