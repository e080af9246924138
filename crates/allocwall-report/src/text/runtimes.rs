//! What the language runtimes count themselves.

use super::super::layout::left;
use super::page::{Ink, Page, bytes};
use super::verdict::runtime;
use allocwall_model::recording::{Figure, Recording, RuntimeAccount};
use allocwall_model::units::{Absence, Reason, plural, thousands};

/// Processes whose runtimes' own figures are shown: those that the collector stopped longest.
pub(super) const RUNTIMES_SHOWN: usize = 4;

/// What the language runtimes count themselves. It is not added to the bill: stopped threads are in the waits, too.
pub(crate) fn section(page: &mut Page, rec: &Recording) {
    let readable = |account: &&RuntimeAccount| figures(account).iter().any(|(_, figure)| figure.is_ok());
    let mut accounts: Vec<&RuntimeAccount> = rec.accounts.iter().filter(readable).collect();
    if accounts.is_empty() {
        return;
    }
    let stopped = |account: &RuntimeAccount| account.stopped_ns.as_ref().map_or(0.0, |f| f.value.point);
    accounts.sort_by(|a, b| stopped(b).total_cmp(&stopped(a)));
    page.section("RUNTIME", "what CPython, the JVM or Go count themselves");
    for account in accounts.iter().take(RUNTIMES_SHOWN) {
        let process = rec.processes.iter().find(|process| process.pid == account.pid);
        let mut facts = vec![format!("pid {}", account.pid)];
        facts.extend(process.and_then(runtime));
        facts.push(format!("read for {:.1} s", account.over_ns as f64 / 1e9));
        facts.push(account.method.clone());
        page.wrapped(2, &facts.join(" · "), Ink::Plain);
        let mut absent = vec![];
        for (title, figure) in figures(account) {
            match figure {
                Ok(figure) => {
                    page.hang(&left(&format!("    {title}"), 38), Ink::Plain, 38, &figure, Ink::Plain);
                }
                Err(_) => absent.push(title),
            }
        }
        if !absent.is_empty() {
            page.wrapped(4, &format!("not measured (see LIMITS): {}", absent.join(", ")), Ink::Warn);
        }
    }
    let rest = accounts.len().saturating_sub(RUNTIMES_SHOWN) as u64;
    if rest > 0 {
        let text = format!("{rest} more {}: see `runtimes` with --json", plural(rest, "account"));
        page.wrapped(2, &text, Ink::Faint);
    }
}

/// The figures of a runtime as text, each with its origin.
pub(super) fn figures(account: &RuntimeAccount) -> Vec<(&'static str, Result<String, &Absence>)> {
    let over_s = (account.over_ns as f64 / 1e9).max(1e-9);
    let share = |ns: f64| format!("{:.1}", ns / 1e9 / over_s * 100.0);
    let collections =
        |n: &u64| format!("{:.1} a second, {} in total (from counters)", *n as f64 / over_s, thousands(*n));
    let cpu = |ns: f64| format!("{:.2}", ns / 1e9);
    let rate = |n: f64| format!("{}/s", bytes((n / over_s) as u64));
    let stopped = account.stopped_ns.as_ref().map(|f| with_origin(f, share, " %", " of the time"));
    let collector = account.collector_cpu_ns.as_ref().map(|f| with_origin(f, cpu, " CPU-s", ""));
    let all = [
        ("threads stopped by the collector", stopped),
        ("collections", account.collections.as_ref().map(collections)),
        ("CPU time of the collector", collector),
        ("allocation", account.allocated_bytes.as_ref().map(|f| with_origin(f, rate, "", ""))),
    ];
    // What a runtime doesn't count is no limit of this run.
    let never = |a: &Absence| matches!(a.reason, Reason::NotApplicable | Reason::NotSupported);
    all.into_iter().filter(|(_, figure)| !figure.as_ref().is_err_and(|a| never(a))).collect()
}

/// `5.2 % of the time (from counters)`, `58.4 % of the time (sampled; 95 % interval 57.4 to 59.4 %)`.
fn with_origin(figure: &Figure, shown: impl Fn(f64) -> String, unit: &str, of: &str) -> String {
    let [low, point, high] = [figure.value.low, figure.value.point, figure.value.high].map(shown);
    match (figure.sampled, low == high) {
        (true, true) => format!("{point}{unit}{of} (sampled)"),
        (true, false) => format!("{point}{unit}{of} (sampled; 95 % interval {low} to {high}{unit})"),
        (false, true) => format!("{point}{unit}{of} (from counters)"),
        (false, false) => format!("between {low} and {high}{unit}{of} (from counters)"),
    }
}
