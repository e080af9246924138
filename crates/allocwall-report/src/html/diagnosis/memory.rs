//! The resident memory by owner, at the end of the window.

use super::{Case, notes};
use crate::html::chart::{bar, whole};
use crate::html::page::{Section, absent, table};
use crate::memory_text as text;
use allocwall_model::resident::{ResidentBill, TargetMemory};
use maud::{Markup, html};

/// Of rows, in their order: neighbours differ in lightness.
const FILLS: [&str; 6] = ["#56b4e9", "#e69f00", "#a8d7f2", "#d5895a", "#c8b4dc", "#bdbdbd"];

pub(super) fn section(case: &Case) -> Section {
    let (aside, body) = match &case.rec.resident {
        Ok(memory) => match memory.bills.first() {
            Some(bill) => (text::total(bill), rows(case, memory, bill)),
            None => (String::new(), html! {}),
        },
        Err(absence) => (String::new(), absent("Resident memory by owner", absence)),
    };
    Section { id: "memory", title: "Memory", aside, body }
}

fn rows(case: &Case, memory: &TargetMemory, bill: &ResidentBill) -> Markup {
    let known = text::Known::of(case.rec, case.bill.rates.resident_end, bill);
    let rows = text::shown(bill);
    let fill = |nth: usize| FILLS[nth % FILLS.len()];
    let cells = rows.iter().enumerate().map(|(nth, row)| {
        let bar = bar(row.share, None, fill(nth));
        (
            html! { (row.title) },
            std::iter::once(bar).chain(row.cells.iter().map(|text| html! { (text) })).collect(),
        )
    });
    html! {
        (whole(rows.iter().enumerate().map(|(nth, row)| (row.share, fill(nth).to_owned()))))
        (table("Resident memory by owner", &["owner", "bar", "resident", "live", "free", "lazily freed", "live, 95 % interval"], cells))
        (notes(|page| text::about(page, memory, bill, known)))
    }
}
