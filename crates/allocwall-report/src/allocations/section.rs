//! The counted calls in the report of a diagnosis (`diagnose --count`): a short section of the text, and a part of the document.

use super::{SizeRow, percent, percents, rate, requested, size_rows};
use crate::json::{absence, interval, list, measured, number};
use crate::layout::{elide_end, left, right};
use crate::text::{Ink, Page, bytes};
use allocwall_diagnose::main_process;
use allocwall_model::allocations::{Counted, LARGE};
use allocwall_model::recording::Recording;
use serde_json::{Value, json};

const SIZES_SHOWN: usize = 3;
const MISSING_SHOWN: usize = 3;

/// Nothing if the calls were not counted.
pub fn section(page: &mut Page, rec: &Recording) {
    let Ok(counted) = &rec.counted else { return };
    let rates = counted.per_second();
    let over = rates.map_or_else(String::new, |rates| format!(" in {:.1} s", rates.over_s));
    page.section("CALLS", &format!("of the allocator, counted{over}"));
    if let Some(rates) = rates {
        let text =
            format!("{} calls a second request {} a second", rate(rates.calls), bytes(rates.bytes as u64));
        page.wrapped(2, &text, Ink::Plain);
    }
    sizes(page, counted);
    let mut facts = vec![];
    let calls = counted.calls();
    if calls.realloc_bytes > 0 {
        let share = calls.realloc_bytes as f64 / requested(&calls);
        facts.push(format!("realloc requests {} of all bytes", percent(share)));
    }
    let copied = calls.copied_bytes as f64;
    if let Some(each_second) = counted.rate_of(copied).filter(|_| copied > 0.0) {
        facts.push(format!("realloc copies {} a second", bytes(each_second as u64)));
    }
    if let Ok(share) = counted.remote_share() {
        let range = percents(share.low, share.high);
        facts.push(format!("another thread frees {} ({range}) of the blocks", percent(share.point)));
    }
    if !facts.is_empty() {
        page.wrapped(2, &facts.join(" · "), Ink::Plain);
    }
    if let Some(process) = main_process(rec).filter(|process| !counted.covers(process)) {
        let text = format!("not counted: the calls of pid {}, the busiest process", process.pid);
        page.wrapped(2, &text, Ink::Warn);
    }
    for why in counted.missing.iter().take(MISSING_SHOWN) {
        page.wrapped(2, &why.with_advice(), Ink::Warn);
    }
    page.wrapped(2, "all sizes, latency, lifetimes and call sites: allocwall count -- CMD", Ink::Faint);
}

/// The rows that have most of the calls, or most of the bytes.
fn sizes(page: &mut Page, counted: &Counted) {
    let rows = size_rows(&counted.classes());
    let sum = |of: fn(&SizeRow) -> f64| rows.iter().map(of).sum::<f64>().max(f64::MIN_POSITIVE);
    let (calls, all_bytes) = (sum(|row| row.calls as f64), sum(|row| row.bytes.point));
    let shares = |row: &SizeRow| (row.calls as f64 / calls, row.bytes.point / all_bytes);
    let largest = |row: &SizeRow| shares(row).0.max(shares(row).1);
    let mut shown: Vec<&SizeRow> = rows.iter().collect();
    shown.sort_by(|a, b| largest(b).total_cmp(&largest(a)));
    for row in shown.into_iter().take(SIZES_SHOWN) {
        let (of_calls, of_bytes) = shares(row);
        let title = left(&format!("  {}", row.title()), 22);
        let line = format!(
            "{title}{} of the new blocks{} of their bytes",
            right(&percent(of_calls), 7),
            right(&percent(of_bytes), 8)
        );
        page.line(&elide_end(&line, page.width));
    }
}

/// The part of the document, if the calls were counted, else why not.
pub fn value(rec: &Recording) -> Value {
    measured(&rec.counted, |counted| {
        let calls = counted.calls();
        let rates = counted.per_second();
        json!({
            "over_s": rates.map(|rates| number(rates.over_s)),
            "calls_per_s": rates.map(|rates| number(rates.calls)),
            "bytes_per_s": rates.map(|rates| number(rates.bytes)),
            "allocations": calls.allocations(),
            "reallocs": calls.reallocs(),
            "frees": calls.frees,
            "requested_bytes": number(requested(&calls)),
            "copied_bytes": calls.copied_bytes,
            "sizes": list(&size_rows(&counted.classes()), |row| json!({
                "above_bytes": row.above,
                "up_to_bytes": row.up_to,
                "calls": row.calls,
                "bytes": interval(&row.bytes),
            })),
            "large_from_bytes": LARGE,
            "remote_share": measured(&counted.remote_share(), interval),
            "covers_busiest": main_process(rec).is_some_and(|process| counted.covers(process)),
            "counting_cpu_s": number(rec.counting_s()),
            "missing": list(&counted.missing, absence),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::columns;
    use crate::text::Style;
    use allocwall_model::allocations::not_counted;
    use allocwall_model::units::{Absence, Reason};
    use allocwall_sketches::recording::{counted, empty};

    fn service() -> Recording {
        let mut rec = empty();
        let sizes = [(900_000, 64), (90_000, 300), (900, 5_000), (9, 200_000), (1, 2_000_000)];
        let mut counts = counted(15, &sizes, 500, 0.3);
        counts.processes[0].calls.copied_bytes = 16_000_000;
        rec.counted = Ok(counts);
        rec
    }

    fn printed(rec: &Recording, width: usize) -> String {
        let mut page = Page::new(Style { color: false, width });
        section(&mut page, rec);
        page.out
    }

    #[test]
    fn the_section_has_rates_the_largest_sizes_copies_and_remote_frees() {
        let text = printed(&service(), 100);
        for part in [
            "CALLS  of the allocator, counted in 15.0 s",
            "132,121 calls a second",
            "up to 64 B",
            "256 to 512 B",
            "realloc copies 1.0 MiB a second",
            "another thread frees 30 % (27 to 33 %) of the blocks",
            "allocwall count -- CMD",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        // Three rows.
        assert_eq!(text.matches("of the new blocks").count(), 3, "{text}");
        assert!(!text.contains("not counted"), "{text}");
        assert!(printed(&service(), 40).lines().all(|line| columns(line) <= 40));
    }

    #[test]
    fn a_recording_without_counts_has_no_section_and_a_reason() {
        let mut rec = service();
        rec.counted = Err(not_counted());
        assert_eq!(printed(&rec, 100), "");
        assert_eq!(value(&rec)["absent"]["reason"], "disabled");
    }

    #[test]
    fn what_was_not_counted_is_said() {
        let mut rec = service();
        rec.processes[0].exe = Ok("/usr/bin/static".into());
        if let Ok(counted) = &mut rec.counted {
            counted.missing.push(Absence::new(Reason::TooCostly, "stacks were lost"));
        }
        let text = printed(&rec, 100);
        assert!(text.contains("not counted: the calls of pid 100") && text.contains("stacks were lost"));
        let document = value(&rec);
        assert_eq!(document["covers_busiest"], false);
        assert_eq!(document["missing"][0]["reason"], "too_costly");
        assert_eq!(value(&service())["covers_busiest"], true);
        assert_eq!(
            (&value(&service())["allocations"], &value(&service())["frees"]),
            (&json!(990_910), &json!(990_910))
        );
    }
}
