//! A recording with its verdict, in the formats that it is printed in, and the child processes that read for it.

use super::formats::{Format, Table};
use allocwall_diagnose::Verdict;
use allocwall_diagnose::bill::{self, Bill};
use allocwall_measure::reading::Readers;
use allocwall_model::recording::Recording;
use allocwall_model::units::{Absence, Measured};
use allocwall_report::profiles::{firefox, pprof, speedscope};
use allocwall_report::text::{Extent, Style};
use allocwall_report::{collapsed, flamegraph, html, json, tables, text};
use anyhow::Context;
use std::path::{Path, PathBuf};

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
    /// The trial of its remedies, or why there is none; None if none was asked for.
    pub tried: Option<Measured<html::Tried>>,
}

impl Diagnosis {
    pub fn of(recording: Recording, file: Option<PathBuf>) -> Diagnosis {
        let bill = bill::of(&recording);
        let verdict = allocwall_diagnose::verdict(&recording, &bill);
        Diagnosis { recording, bill, verdict, file, tried: None }
    }

    /// `extent` is that of the text, `table` that of the formats of tables. The other formats are always complete.
    ///
    /// # Errors
    /// The recording does not have what the format shows.
    pub fn render(
        &self,
        format: Format,
        table: Option<Table>,
        extent: Extent,
        style: Style,
    ) -> anyhow::Result<Vec<u8>> {
        let Diagnosis { recording, bill, verdict, .. } = self;
        let text = match format {
            Format::Text => self.text(extent, style),
            Format::Html => html::verified(recording, bill, verdict, self.path(), self.tried.as_ref()),
            Format::Json => json::document(recording, bill, verdict),
            Format::Collapsed => collapsed::stacks(recording),
            Format::Flamegraph => flamegraph::svg(recording, bill).map_err(absent)?,
            Format::Firefox => firefox::document(recording).map_err(absent)?,
            Format::Speedscope => speedscope::document(recording).map_err(absent)?,
            Format::Csv => tables::csv::file(&self.table(table)?),
            Format::Pprof => return pprof::profile(recording).map_err(absent),
            Format::Parquet => {
                let created_by = format!("allocwall {}", env!("CARGO_PKG_VERSION"));
                return tables::parquet::file(&self.table(table)?, &created_by)
                    .context("cannot compress the table");
            }
        };
        Ok(text.into_bytes())
    }

    pub fn text(&self, extent: Extent, style: Style) -> String {
        text::diagnosis(&self.recording, &self.bill, &self.verdict, self.path(), extent, style)
    }

    /// A path that is not UTF-8 cannot be copied from a terminal, so it is left out.
    fn path(&self) -> Option<&str> {
        self.file.as_deref().and_then(Path::to_str)
    }

    fn table(&self, table: Option<Table>) -> anyhow::Result<tables::Table> {
        match table.unwrap_or(Table::Bill) {
            Table::Bill => Ok(tables::bill(&self.bill)),
            Table::Series => tables::series(&self.recording),
            Table::Faults => tables::faults(&self.recording),
            Table::Samples => tables::samples(&self.recording),
        }
        .map_err(absent)
    }
}

fn absent(absence: Absence) -> anyhow::Error {
    anyhow::anyhow!(absence.with_advice())
}

/// `allocwall read` of the running program, even if its file was replaced since it started.
pub fn readers() -> Readers {
    Readers::Program("/proc/self/exe".into())
}
