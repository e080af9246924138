//! The resident memory by owner, at the end of the window.

use super::{Case, notes};
use crate::html::chart::{bar, whole};
use crate::html::page::{Section, absent, hex, table};
use crate::memory_text as text;
use crate::palette::of_owner;
use allocwall_model::catalogue::owners::Owner;
use allocwall_model::resident::{ResidentBill, TargetMemory};
use maud::{Markup, html};

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
    let fill = |row: &text::Shown| hex(of_owner(row.owner.of_faults().unwrap_or(Owner::Unknown)));
    let cells = rows.iter().map(|row| {
        let bar = bar(row.share, None, &fill(row));
        (
            html! { (row.owner.title()) },
            std::iter::once(bar).chain(row.cells.iter().map(|text| html! { (text) })).collect(),
        )
    });
    html! {
        (whole(rows.iter().map(|row| (row.share, fill(row)))))
        (table("Resident memory by owner", &["owner", "bar", "resident", "live", "free", "lazily freed", "live, 95 % interval"], cells))
        (notes(|page| text::about(page, memory, bill, known)))
    }
}
