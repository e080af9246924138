//! What the processor counted for the target, as text and as JSON.

use super::json::{interval, list, measured, number};
use super::text::{Ink, Page};
use allocwall_diagnose::bill::Bill;
use allocwall_diagnose::hardware::{Figure, figures};
use allocwall_model::hardware::{HardwareCount, HardwareCounts};
use allocwall_model::recording::Recording;
use allocwall_model::units::{Interval, Reason};
use serde_json::{Value, json};

/// The section, if there is a figure.
pub fn section(page: &mut Page, rec: &Recording, bill: &Bill) {
    let (Ok(counts), figures) = (&rec.hardware, figures(rec, bill)) else { return };
    let shown: Vec<String> = figures.iter().filter_map(figure).collect();
    if shown.is_empty() {
        return;
    }
    let mode = if counts.kernel { "" } else { ", in user mode" };
    page.section("COUNTERS", &format!("what the processor counted for the target{mode}"));
    page.wrapped(2, &shown.join(" · "), Ink::Plain);
    let absent: Vec<&str> =
        counts.events.iter().filter(|count| is_missing(count)).map(|c| c.event.name()).collect();
    if !absent.is_empty() {
        page.wrapped(2, &format!("not counted here: {}", absent.join(", ")), Ink::Faint);
    }
}

/// Whether the machine does not count the event. What does not apply is not missing.
fn is_missing(count: &HardwareCount) -> bool {
    count.counted.as_ref().is_err_and(|absence| absence.reason != Reason::NotApplicable)
}

/// `1.23 instructions per cycle (95 % interval 1.20 to 1.26)`.
fn figure(figure: &Figure) -> Option<String> {
    let Interval { low, point, high } = *figure.value.as_ref().ok()?;
    let printed = |value: f64| match figure.is_share {
        true => format!("{:.1} %", value * 100.0),
        false => format!("{value:.2}"),
    };
    let (low, point, high) = (printed(low), printed(point), printed(high));
    let range = if low == high { String::new() } else { format!(" (95 % interval {low} to {high})") };
    Some(format!("{point} {}{range}", figure.title))
}

pub fn value(counts: &HardwareCounts, rec: &Recording, bill: &Bill) -> Value {
    json!({
        "kernel": counts.kernel,
        "throughout": counts.throughout,
        "figures": list(&figures(rec, bill), |figure| json!({
            "name": figure.name,
            "value": measured(&figure.value, interval),
        })),
        "events": list(&counts.events, |count| json!({
            "name": count.event.name(),
            "counted": measured(&count.counted, |slices| {
                let total = slices.total();
                json!({
                    "count": total.count,
                    "enabled_ns": total.enabled_ns,
                    "running_ns": total.running_ns,
                    "unseen": number(slices.unseen()),
                })
            }),
        })),
    })
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::sketches;
    use crate::text::{Extent, Style, diagnosis};
    use allocwall_model::hardware::{HardwareEvent, HardwareSlice, HardwareSlices};
    use allocwall_model::units::Absence;

    pub fn counts() -> HardwareCounts {
        let counted = |event, count| {
            let slice = HardwareSlice { count, enabled_ns: 100_000_000, running_ns: 100_000_000 };
            HardwareCount { event, counted: Ok(HardwareSlices { slices: vec![slice; 6] }) }
        };
        let absent =
            |event, reason| HardwareCount { event, counted: Err(Absence::new(reason, "no such event")) };
        HardwareCounts {
            kernel: true,
            throughout: false,
            events: vec![
                counted(HardwareEvent::Cycles, 300_000_000),
                counted(HardwareEvent::Instructions, 150_000_000),
                counted(HardwareEvent::DtlbLoadMisses, 600_000),
                absent(HardwareEvent::DtlbWalkActive, Reason::NotSupported),
                absent(HardwareEvent::NodeLoads, Reason::NotApplicable),
            ],
        }
    }

    #[test]
    fn the_section_has_figures_and_what_is_missing_or_does_not_exist() {
        let mut case = sketches::first_touch();
        let page = |case: &sketches::Case| {
            diagnosis(
                &case.rec,
                &case.bill,
                &case.verdict,
                None,
                Extent::All,
                Style { color: false, width: 100 },
            )
        };
        assert!(!page(&case).contains("COUNTERS"));
        case.rec.hardware = Ok(counts());
        let printed = page(&case);
        let section = printed.split("\n\n").find(|part| part.starts_with("COUNTERS")).unwrap();
        assert!(section.contains("0.50 instructions per cycle ·"), "{section}");
        assert!(section.contains("4.00 dTLB load misses per 1,000 instructions"), "{section}");
        assert!(section.ends_with("not counted here: dtlb_load_misses.walk_active"), "{section}");
        assert!(!section.contains("in user mode"), "{section}");
        let case_counts = case.rec.hardware.as_mut().unwrap();
        case_counts.kernel = false;
        assert!(page(&case).contains("for the target, in user mode"));
        // Nothing was counted long enough.
        case.rec.hardware.as_mut().unwrap().events.clear();
        assert!(!page(&case).contains("COUNTERS"));
    }

    #[test]
    fn an_interval_is_printed_if_it_shows() {
        let of = |is_share, low, high| {
            let value = Ok(Interval::new(low, (low + high) / 2.0, high));
            figure(&Figure { name: "n", title: "of it", is_share, value }).unwrap()
        };
        assert_eq!(of(true, 0.1, 0.2), "15.0 % of it (95 % interval 10.0 % to 20.0 %)");
        assert_eq!(of(false, 1.001, 1.003), "1.00 of it");
    }
}
