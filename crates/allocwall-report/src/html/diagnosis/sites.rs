//! Call sites, owners of page faults, and what runtimes, the processor and the counting library counted.

use super::Case;
use crate::html::page::{Section, printed, table};
use crate::text::{runtimes, sites};
use crate::{allocations, counters};
use maud::html;

/// The anchor of the accounts of runtimes.
pub(super) const RUNTIMES: &str = "runtimes";

/// Columns of a call site.
const ROOM: usize = 160;

pub(super) fn section(case: &Case) -> Section {
    let Case { rec, bill, verdict, .. } = case;
    let body = html! {
        @for line in sites::shown(bill, verdict) {
            h3 { (line.title) }
            (table(&format!("Call sites: {}", line.title), &["function", "share of the line", "at least"],
                line.sites.iter().map(|site| (
                    html! { code { (sites::site_text(site, ROOM)) } },
                    vec![html! { (format!("{:.0} %", site.share * 100.0)) }, html! { (format!("{:.0} %", site.least * 100.0)) }],
                ))))
        }
        (printed("Page faults", |page| sites::faulted(page, bill)))
        (printed("Calls of the allocator", |page| allocations::section::section(page, rec)))
        div id=(RUNTIMES) { (printed("Runtimes", |page| runtimes::section(page, rec))) }
        (printed("Counters", |page| counters::section(page, rec, bill)))
    };
    let aside = "functions that caused each large line, and whose memory the page faults are about";
    Section { id: "sites", title: "Call sites", aside: aside.into(), body }
}
