//! `allocwall report`: a recording, judged again from the file alone.

use crate::output;
use crate::printer::Printer;
use allocwall_core::bill::Bill;
use allocwall_core::diagnose::Verdict;
use allocwall_core::measure;
use allocwall_core::measure::recording::Recording;
use allocwall_core::report::text::Style;
use allocwall_core::report::{collapsed, flamegraph, json, text};
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(clap::Args)]
pub struct Args {
    /// Recording, as `diagnose` wrote it
    file: PathBuf,
    #[arg(short, long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// Write to OUT, readable by its owner alone, instead of to stdout
    #[arg(short, long, value_name = "OUT")]
    output: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// What `diagnose` prints
    Text,
    /// The documented, versioned document (docs/json.md)
    Json,
    /// SVG with kernel frames, coloured by the lines of the bill
    Flamegraph,
    /// Collapsed stacks: `root;…;leaf count`
    Collapsed,
}

pub fn run(args: Args, printer: &Printer) -> anyhow::Result<ExitCode> {
    let recording = measure::file::read(&args.file)?;
    let (bill, verdict) = judge(&recording)?;
    let style = if args.output.is_some() {
        Style::FILE
    } else {
        printer.style()
    };
    let report = render(args.format, &recording, &bill, &verdict, style)?;
    match &args.output {
        Some(path) => output::write(path, report.as_bytes(), Some(&args.file))?,
        None => printer.data(&report),
    }
    Ok(ExitCode::SUCCESS)
}

fn render(
    format: Format,
    recording: &Recording,
    bill: &Bill,
    verdict: &Verdict,
    style: Style,
) -> anyhow::Result<String> {
    Ok(match format {
        Format::Text => text::diagnosis(recording, bill, verdict, style),
        Format::Json => json::document(recording, bill, verdict),
        Format::Collapsed => collapsed::stacks(recording),
        Format::Flamegraph => flamegraph::svg(recording, bill, &class_of).map_err(absent)?,
    })
}

fn absent(absence: allocwall_core::units::Absence) -> anyhow::Error {
    match absence.mend {
        Some(mend) => anyhow::anyhow!("{}; {mend}", absence.detail),
        None => anyhow::anyhow!(absence.detail),
    }
}

// The seam to the stages before: the two functions below are all that this verb needs of them.

fn judge(_recording: &Recording) -> anyhow::Result<(Bill, Verdict)> {
    anyhow::bail!("this build has no bill")
}

fn class_of(
    _recording: &Recording,
    _sample: &measure::recording::CpuSample,
) -> allocwall_core::catalogue::cost::CostClass {
    allocwall_core::catalogue::cost::CostClass::Application
}
