//! `allocwall report`: judges a recording again from its file, or reports a saved trial. Starts no program.

use crate::commands::trial::options::how;
use crate::output;
use crate::printer::Printer;
use allocwall_diagnose::Verdict;
use allocwall_diagnose::bill::{self, Bill};
use allocwall_model::recording::Recording;
use allocwall_report::text::Style;
use allocwall_report::{collapsed, flamegraph, json, text, trial_csv, trial_json, trial_text};
use allocwall_trial::compare::compare;
use allocwall_trial::journal::{self, Journal};
use anyhow::{Context, bail};
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// The text that `diagnose` or `trial` prints
    Text,
    /// The versioned JSON document (docs/json.md)
    Json,
    /// SVG with kernel frames, coloured by the lines of the bill
    Flamegraph,
    /// Collapsed stacks: `root;…;leaf count`
    Collapsed,
    /// Trials only: one row for each comparison
    Csv,
}

/// A recording with its bill and its verdict.
pub struct Diagnosis {
    pub recording: Recording,
    pub bill: Bill,
    pub verdict: Verdict,
    /// Path of the recording; None if it was not kept.
    pub file: Option<PathBuf>,
}

impl Diagnosis {
    pub fn of(recording: Recording, file: Option<PathBuf>) -> Diagnosis {
        let bill = bill::of(&recording);
        let verdict = allocwall_diagnose::verdict(&recording, &bill);
        Diagnosis { recording, bill, verdict, file }
    }

    pub fn render(&self, format: Format, style: Style) -> anyhow::Result<String> {
        let Diagnosis { recording, bill, verdict, file } = self;
        // A path that is not UTF-8 cannot be copied from a terminal, so it is left out.
        let file = file.as_deref().and_then(Path::to_str);
        Ok(match format {
            Format::Text => text::diagnosis(recording, bill, verdict, file, style),
            Format::Json => json::document(recording, bill, verdict),
            Format::Collapsed => collapsed::stacks(recording),
            Format::Flamegraph => flamegraph::svg(recording, bill).map_err(absent)?,
            Format::Csv => {
                bail!("a recording cannot be printed as CSV, which is for trials: use --format text or json")
            }
        })
    }
}

pub fn run(args: Args, printer: &Printer) -> anyhow::Result<ExitCode> {
    let style = if args.output.is_some() { Style::FILE } else { printer.style() };
    let format = if args.json { Format::Json } else { args.format };
    let report = if journal::is_one(&args.file) {
        trial(&args.file, format, style)?
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
fn trial(file: &Path, format: Format, style: Style) -> anyhow::Result<String> {
    let Journal { head, blocks, .. } = journal::read(file)?;
    let outcome = compare(&head.design, &blocks);
    Ok(match format {
        Format::Text => {
            let how = how(&head.options).with_context(|| file.display().to_string())?;
            trial_text::trial(&outcome, &head.command, &how, style)
        }
        Format::Json => trial_json::document(&outcome, &head.command),
        Format::Csv => trial_csv::table(&outcome),
        Format::Flamegraph | Format::Collapsed => {
            bail!(
                "a trial has no stacks: use --format text, json or csv; to record stacks: allocwall diagnose -- CMD"
            )
        }
    })
}

fn absent(absence: allocwall_model::units::Absence) -> anyhow::Error {
    anyhow::anyhow!(absence.with_advice())
}
