//! A recording with its verdict, in the formats that it is printed in, and the child processes that read for it.

use super::usage::usage;
use allocwall_diagnose::Verdict;
use allocwall_diagnose::bill::{self, Bill};
use allocwall_measure::reading::Readers;
use allocwall_model::recording::Recording;
use allocwall_model::units::Absence;
use allocwall_report::text::{Extent, Style};
use allocwall_report::{collapsed, flamegraph, html, json, text};
use std::path::{Path, PathBuf};

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// The text that `diagnose` or `trial` prints
    Text,
    /// One page with charts, for a browser: no network, no other file (docs/html.md)
    Html,
    /// The versioned JSON document (docs/json.md)
    Json,
    /// SVG with kernel frames, coloured by the lines of the bill
    Flamegraph,
    /// Collapsed stacks: `root;…;leaf count`
    Collapsed,
    /// Trials only: one row for each comparison
    Csv,
}

/// That of the option `--all`.
pub fn extent(all: bool) -> Extent {
    if all { Extent::All } else { Extent::Brief }
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

    /// `extent` is that of the text. The other formats are always complete.
    pub fn render(&self, format: Format, extent: Extent, style: Style) -> anyhow::Result<String> {
        let Diagnosis { recording, bill, verdict, file } = self;
        // A path that is not UTF-8 cannot be copied from a terminal, so it is left out.
        let file = file.as_deref().and_then(Path::to_str);
        Ok(match format {
            Format::Text => text::diagnosis(recording, bill, verdict, file, extent, style),
            Format::Html => html::diagnosis(recording, bill, verdict, file),
            Format::Json => json::document(recording, bill, verdict),
            Format::Collapsed => collapsed::stacks(recording),
            Format::Flamegraph => flamegraph::svg(recording, bill).map_err(absent)?,
            Format::Csv => {
                return Err(usage(
                    "a recording cannot be printed as CSV, which is for trials: use --format text or json",
                ));
            }
        })
    }
}

fn absent(absence: Absence) -> anyhow::Error {
    anyhow::anyhow!(absence.with_advice())
}

/// `allocwall read` of the running program, even if its file was replaced since it started.
pub fn readers() -> Readers {
    Readers::Program("/proc/self/exe".into())
}
