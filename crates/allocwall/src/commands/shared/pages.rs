//! Reports as pages, beside what is printed.

use super::formats::Format;
use super::trial_options::how;
use crate::output;
use crate::printer::Printer;
use allocwall_report::html;
use allocwall_trial::TrialResult;
use allocwall_trial::journal::Journal;
use std::path::{Path, PathBuf};

/// Whether the name of an output file asks for a page.
pub fn is_page(output: &Path) -> bool {
    Format::named(output) == Some(Format::Html)
}

/// Takes the output file from the options if its name asks for a report other than the text that is printed, so that the
/// recording is kept in the state directory.
///
/// # Errors
/// The report can't be written there.
pub fn take_report(output: &mut Option<PathBuf>) -> anyhow::Result<Option<(PathBuf, Format)>> {
    let named = output.as_deref().and_then(Format::named).filter(|format| *format != Format::Text);
    let Some(format) = named else { return Ok(None) };
    let Some(path) = output.take() else { return Ok(None) };
    output::check(&path)?;
    Ok(Some((path, format)))
}

/// Takes the output file from the options if it is a page, so that what was measured is kept in the state directory.
///
/// # Errors
/// The page can't be written there.
pub fn take(output: &mut Option<PathBuf>) -> anyhow::Result<Option<PathBuf>> {
    let page = output.take_if(|output| is_page(output));
    page.as_deref().map(output::check).transpose()?;
    Ok(page)
}

/// `source` is the file that the page was made from.
pub fn write(page: &Path, report: &[u8], source: Option<&Path>, printer: &Printer) -> anyhow::Result<()> {
    output::write(page, report, source)?;
    printer.note(&format!("report: {}", page.display()));
    Ok(())
}

pub fn of_trial(outcome: &TrialResult, Journal { head, blocks, .. }: &Journal) -> String {
    html::trial(outcome, head, blocks, how(&head.options).ok().as_deref())
}
