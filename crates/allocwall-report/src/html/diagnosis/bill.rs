//! The bill: its bars sum to the whole, as its numbers do.

use super::{Case, notes, page};
use crate::html::chart::{bar, whole};
use crate::html::page::{Section, absent, absent_by_reason, hex, table};
use crate::palette::fill;
use crate::text::bill as text;
use allocwall_diagnose::bill::{Bill, CpuLine};
use maud::{Markup, html};

/// Waits have no colours of their own.
const WAIT: &str = "#8aa0b8";

pub(super) fn section(case: &Case) -> Section {
    let Case { rec, bill, .. } = case;
    let body = html! {
        @match &bill.on_cpu {
            Ok(lines) => {
                (cpu(bill, lines))
                @let covered = text::covered(bill);
                @if let Some(agreement) = text::agreement(covered) { p.note { (agreement) } }
                (notes(|page| {
                    text::zero_lines(page, lines, &text::printed(bill, lines).0);
                    text::caveats(page, lines.iter());
                    text::disagreement(page, rec, covered);
                }))
            }
            Err(absence) => { (absent("The bill", absence)) }
        }
        (waits(bill))
    };
    Section { id: "bill", title: "Bill", aside: "where the target's CPU time went".into(), body }
}

fn cpu(bill: &Bill, lines: &[CpuLine]) -> Markup {
    let (tenths, hundredths) = text::printed(bill, lines);
    let share = |units: u64| format!("{} %", page::decimal(units, 1));
    let shown = || lines.iter().zip(&tenths).zip(&hundredths).filter(|((_, tenths), _)| **tenths > 0);
    let rows = shown().map(|((line, tenths), hundredths)| {
        let interval = (line.share.low, line.share.high);
        let colour = hex(fill(line.class));
        let cells = vec![
            bar(line.share.point, Some(interval), &colour),
            html! { (share(*tenths)) },
            html! { (page::decimal(*hundredths, 2)) },
            html! { (page::percents(line.share)) },
        ];
        (html! { (line.class.title()) }, cells)
    });
    let sum = |units: &[u64]| units.iter().sum::<u64>();
    let total = (
        html! { "total" },
        vec![
            html! {},
            html! { (share(sum(&tenths))) },
            html! { (page::decimal(sum(&hundredths), 2)) },
            html! {},
        ],
    );
    html! {
        (whole(shown().map(|((line, tenths), _)| (*tenths as f64 / 1000.0, hex(fill(line.class))))))
        (table("CPU time by line of the bill", &["line", "bar", "share", "CPU-s", "95 % interval"], rows.chain([total])))
    }
}

fn waits(bill: &Bill) -> Markup {
    let all = bill.rates.thread_s;
    let known = bill.off_cpu.iter().filter_map(|line| Some((line, line.thread_s.as_ref().ok()?)));
    let (large, zero): (Vec<_>, Vec<_>) = known.partition(|(_, time)| time.point >= 0.005);
    let rows = large.iter().map(|(line, time)| {
        let of = |time: f64| if all > 0.0 { time / all } else { 0.0 };
        let cells = vec![
            bar(of(time.point), Some((of(time.low), of(time.high))), WAIT),
            html! { (format!("{:.1} %", of(time.point) * 100.0)) },
            html! { (format!("{:.2}", time.point)) },
            html! { (page::range(**time, 2)) },
        ];
        (html! { (line.class.title()) }, cells)
    });
    let zero: Vec<&str> = zero.iter().map(|(line, _)| line.class.title()).collect();
    let missing = bill
        .off_cpu
        .iter()
        .filter_map(|line| Some((line.class.title().into(), line.thread_s.as_ref().err()?)));
    html! {
        h3 { "Waits" }
        p.aside { (format!("of {all:.1} thread-seconds in total")) }
        @if !large.is_empty() {
            (table("Time of threads that wait", &["wait", "bar", "share", "thread-s", "95 % interval"], rows))
        }
        @if !zero.is_empty() { p.note { "0.00: " (zero.join(", ")) } }
        (absent_by_reason(missing))
    }
}
