//! The text report of a diagnosis. [`Extent::Brief`]: verdict, bill, what is a wall or contributes, the first remedy, and what
//! was not measured, on one screen for a usual diagnosis. [`Extent::All`]: everything that was measured.

pub(crate) mod bill;
pub(crate) mod ladder;
pub(crate) mod missing;
mod next;
pub(crate) mod page;
pub(crate) mod remedies;
pub(crate) mod runtimes;
pub(crate) mod sites;
#[cfg(test)]
mod tests;
pub(crate) mod verdict;

pub use page::{Ink, Page, bar, bytes};
pub use remedies::restart;
pub use verdict::{command, why_not_first};

use super::allocations::section as counted;
use super::counters;
use super::memory_text;
use allocwall_diagnose::bill::Bill;
use allocwall_diagnose::{Status, Verdict};
use allocwall_model::catalogue::walls::Wall;
use allocwall_model::recording::Recording;
use missing::Limits;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    pub color: bool,
    /// Columns of the terminal. At least 40 are used.
    pub width: usize,
}

impl Style {
    /// For files and pipes.
    pub const FILE: Style = Style { color: false, width: 100 };
}

/// How much of a diagnosis is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// What decides what to do next.
    Brief,
    All,
}

/// The last line of the whole report.
const TERMS: &str =
    "Terms: docs/glossary.md in the source. Walls, their lines, remedies: `allocwall explain NAME`";

/// The report, newline-terminated. No line is wider than `style.width` (or 40, if that is less). `file` is the path of the
/// recording, if it was written; the next commands use it.
pub fn diagnosis(
    rec: &Recording,
    bill: &Bill,
    verdict: &Verdict,
    file: Option<&str>,
    extent: Extent,
    style: Style,
) -> String {
    let mut page = Page::new(style);
    match extent {
        Extent::Brief => brief(&mut page, rec, bill, verdict, file),
        Extent::All => all(&mut page, rec, bill, verdict, file),
    }
    page.out
}

fn brief(page: &mut Page, rec: &Recording, bill: &Bill, verdict: &Verdict, file: Option<&str>) {
    verdict::header(page, rec, bill, Extent::Brief);
    verdict::sentence(page, verdict);
    bill::brief(page, rec, bill, verdict);
    memory(page, rec, bill, verdict);
    ladder::brief(page, bill, verdict);
    counted::section(page, rec);
    remedies::brief(page, rec, bill, verdict);
    let limits = Limits::of(rec, bill, verdict);
    limits.brief(page);
    next::brief(page, rec, bill, verdict, file);
}

/// Its rows are shown where its amount is the wall, else only their sizes.
fn memory(page: &mut Page, rec: &Recording, bill: &Bill, verdict: &Verdict) {
    let Ok(memory) = &rec.resident else { return };
    let is_wall = |wall| verdict.findings.iter().any(|f| f.wall == wall && f.status == Status::Wall);
    match is_wall(Wall::Retention) {
        true => memory_section(page, rec, bill),
        false => memory_text::line(page, memory, bill.rates.resident_end),
    }
}

fn all(page: &mut Page, rec: &Recording, bill: &Bill, verdict: &Verdict, file: Option<&str>) {
    verdict::header(page, rec, bill, Extent::All);
    page.blank();
    verdict::sentence(page, verdict);
    bill::on_cpu(page, rec, bill);
    bill::off_cpu(page, bill);
    memory_section(page, rec, bill);
    let limits = Limits::of(rec, bill, verdict);
    ladder::all(page, verdict, &limits);
    sites::all(page, bill, verdict);
    counted::section(page, rec);
    runtimes::section(page, rec);
    sites::faulted(page, bill);
    counters::section(page, rec, bill);
    remedies::all(page, rec, bill, verdict);
    page.section("LIMITS", "what this run could not measure, and its own cost");
    limits.print(page);
    missing::own_cost(page, rec, bill);
    next::all(page, rec, bill, verdict, file);
    page.blank();
    page.wrapped(0, TERMS, Ink::Faint);
}

fn memory_section(page: &mut Page, rec: &Recording, bill: &Bill) {
    if let Ok(memory) = &rec.resident
        && let Some(first) = memory.bills.first()
    {
        memory_text::section(page, memory, memory_text::Known::of(rec, bill.rates.resident_end, first));
    }
}
