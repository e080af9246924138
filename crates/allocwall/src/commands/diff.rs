//! `allocwall diff`: what changed between two recordings.

use crate::commands::shared::diagnosis::extent;
use crate::commands::shared::formats;
use crate::commands::shared::usage::usage;
use crate::output;
use crate::printer::Printer;
use allocwall_diagnose::bill;
use allocwall_diagnose::diff::{Gate, Judged, Side, compare};
use allocwall_measure::file;
use allocwall_report::diff::{document, flamegraph, text};
use allocwall_report::text::Style;
use allocwall_trial::journal;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    Text,
    /// The versioned JSON document (docs/diff.md)
    Json,
    /// SVG: widths are those of AFTER, red is more than before, blue is less
    Flamegraph,
}

#[derive(clap::Args)]
pub struct Args {
    /// A recording that `diagnose` wrote
    before: PathBuf,
    /// A later one, for example after a deploy
    after: PathBuf,
    /// Units of work, such as requests, in each window: N, or BEFORE,AFTER. CPU time and faults are then given per unit
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = parse_units)]
    per: Vec<f64>,
    /// Exit with status 1 if a change is above a limit with its whole interval: first-touch>+3% (points of CPU),
    /// resident>+10% (of the value before). Names: lines of the bill, walls, wait-NAME, cpu, minor-faults, resident. Repeatable
    #[arg(long, value_name = "LIMIT", value_parser = Gate::parse)]
    fail_on: Vec<Gate>,
    /// Refuse recordings of different machines, kernels, targets or window lengths
    #[arg(long)]
    strict: bool,
    /// [default: text; with `-o OUT.svg`: flamegraph; with `-o OUT.json`: json]
    #[arg(short, long, value_enum)]
    format: Option<Format>,
    /// Same as `--format json`
    #[arg(long, conflicts_with = "format")]
    json: bool,
    /// Text: also the values of what is the same or undecided
    #[arg(long, conflicts_with = "json")]
    all: bool,
    /// Write to OUT instead of stdout; only the owner can read the file
    #[arg(short, long, value_name = "OUT")]
    output: Option<PathBuf>,
}

impl Args {
    /// # Errors
    /// Of usage.
    fn format(&self) -> anyhow::Result<Format> {
        let named = self.output.as_deref().and_then(formats::Format::named);
        let format = match (self.format, named) {
            _ if self.json => Format::Json,
            (Some(format), _) => format,
            (None, Some(formats::Format::Flamegraph)) => Format::Flamegraph,
            (None, Some(formats::Format::Json)) => Format::Json,
            (None, None | Some(formats::Format::Text)) => Format::Text,
            (None, Some(_)) => {
                return Err(usage(
                    "a comparison has text, .json and .svg (the flamegraph): name such a file, or add --format",
                ));
            }
        };
        if self.all && format != Format::Text {
            return Err(usage("--all is for text: the other formats are always complete"));
        }
        Ok(format)
    }
}

pub fn run(args: Args, printer: &Printer) -> anyhow::Result<ExitCode> {
    let format = args.format()?;
    let units = match args.per[..] {
        [] => [None; 2],
        [both] => [Some(both); 2],
        [before, after] => [Some(before), Some(after)],
        _ => return Err(usage("--per needs one number, or two: BEFORE,AFTER")),
    };
    let paths = [&args.before, &args.after];
    if let Some(trial) = paths.into_iter().find(|path| journal::is_one(path)) {
        return Err(usage(format!(
            "{} is a trial, which has its own comparison: allocwall report {}",
            trial.display(),
            trial.display()
        )));
    }
    let [before, after] = [file::read(paths[0])?, file::read(paths[1])?];
    let bills = [bill::of(&before), bill::of(&after)];
    let diff = compare(
        &Side { recording: &before, bill: &bills[0], units: units[0] },
        &Side { recording: &after, bill: &bills[1], units: units[1] },
    );
    if args.strict && !diff.unlike.is_empty() {
        anyhow::bail!("the recordings are not alike: {}; leave out --strict", diff.unlike.join("; "));
    }
    let names = paths.map(|path| path.to_string_lossy());
    let names = [&*names[0], &*names[1]];
    let style = if args.output.is_some() { Style::FILE } else { printer.style() };
    let report = match format {
        Format::Json => document(&diff, names),
        Format::Text => text(&diff, names, extent(args.all), style),
        Format::Flamegraph => {
            flamegraph::svg(&before, &after).map_err(|absence| anyhow::anyhow!(absence.with_advice()))?
        }
    };
    match &args.output {
        Some(path) => {
            output::may_replace(path, Some(paths[0]))?;
            output::write(path, report.as_bytes(), Some(paths[1]))?;
        }
        None => printer.data(&report)?,
    }
    let mut status = ExitCode::SUCCESS;
    for gate in &args.fail_on {
        match gate.judge(&diff) {
            Judged::Met(what) => {
                printer.note(&format!("limit exceeded: {what}"));
                status = ExitCode::FAILURE;
            }
            Judged::NotMeasured(what) => {
                printer.note(&what);
                status = ExitCode::FAILURE;
            }
            Judged::Undecided(what) => printer.note(&what),
            Judged::NotMet => {}
        }
    }
    Ok(status)
}

fn parse_units(text: &str) -> Result<f64, String> {
    let units: f64 = text.trim().parse().map_err(|_| "a number of units of work: 12000".to_owned())?;
    if units.is_finite() && units > 0.0 { Ok(units) } else { Err("a number above 0".into()) }
}
