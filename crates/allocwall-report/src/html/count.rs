//! The report of counted calls: what stands out, sizes, rates over time, latency, and the sections of the text.

use super::chart::{Axis, Chart, Colour, Place, Series, bar, number, slowest};
use super::page::{Document, Section, absent, notes, printed, prose, table};
use crate::allocations::{Run, Sampled, Summary, basename, percent, text};
use crate::layout::{apportion, elide_middle};
use crate::text::bytes;
use crate::trial_text::quoted_words;
use allocwall_model::allocations::{Latency, Point};
use allocwall_model::units::{Absence, Reason, thousands};
use maud::{Markup, html};

/// Columns of the command.
const COMMAND: usize = 400;
/// The most slices of a chart.
const SLICES: usize = 120;
/// Colours of calls and of bytes.
const FILLS: [&str; 2] = ["#56b4e9", "#e69f00"];

/// Counted calls of a command as one HTML document, smaller than 2 MB.
pub fn count(run: &Run) -> String {
    let summary = Summary::of(run);
    let command = quoted_words(&run.command);
    let document = Document {
        title: format!("calls of {} · allocwall", elide_middle(&command, 80)),
        head: html! {
            header {
                h1 { "allocwall count " code { (elide_middle(&command, COMMAND)) } }
                p.facts { (text::facts(run).join(" · ")) }
                div.verdict.plain {
                    h2 { "Summary" }
                    p.sentence { (summary.sentence()) }
                }
            }
        },
        sections: vec![
            calls(&summary),
            sizes(&summary),
            over_time(run),
            times(&summary),
            blocks(&summary),
            limits(&summary),
        ],
    };
    document.print()
}

fn calls(summary: &Summary) -> Section {
    let totals = text::totals(summary).into_iter().map(|total| {
        let cells = [total.amount, total.each_second].map(|cell| html! { (cell) });
        (with_aside(html! { (total.title) }, &total.kinds), cells.to_vec())
    });
    let reallocs = summary.calls.reallocs();
    let kinds = text::realloc_kinds(summary).into_iter().map(|(kind, count, remark)| {
        let bar = bar(count as f64 / reallocs as f64, None, FILLS[0]);
        (with_aside(html! { (kind) }, &remark), vec![bar, html! { (thousands(count)) }])
    });
    let body = html! {
        (table("All calls", &["calls", "number", "a second"], totals))
        (notes(|page| text::about_calls(page, summary)))
        @if reallocs > 0 {
            h3 { "Reallocs" }
            p.aside { "what became of the block" }
            (table("Reallocs", &["block", "bar", "number"], kinds))
        }
        @if let Ok(work) = &summary.work { (prose("Per unit of work", |page| text::per_unit(page, work))) }
        (printed("Threads", |page| text::threads(page, summary)))
    };
    Section { id: "calls", title: "Calls", aside: "exact numbers".into(), body }
}

/// The heading of a row, with a text that is broken into lines below it: a cell is not.
fn with_aside(heading: Markup, aside: &str) -> Markup {
    html! { (heading) @if !aside.is_empty() { div.aside { (aside) } } }
}

fn sizes(summary: &Summary) -> Section {
    let rows = &summary.sizes;
    let tenths = |of: Vec<f64>| apportion(&of, 1000);
    let calls = tenths(rows.iter().map(|row| row.calls as f64).collect());
    let of_bytes = tenths(rows.iter().map(|row| row.bytes.point).collect());
    let cells = rows.iter().zip(calls).zip(of_bytes).map(|((row, calls), of_bytes)| {
        let share = |tenths: u64| tenths as f64 / 1000.0;
        let cells = vec![
            bar(share(calls), None, FILLS[0]),
            html! { (text::per_mille(calls)) },
            html! { (thousands(row.calls)) },
            bar(share(of_bytes), None, FILLS[1]),
            html! { (text::per_mille(of_bytes)) },
            html! { (bytes(row.bytes.point as u64)) },
        ];
        (html! { (row.title()) }, cells)
    });
    let heads = ["size", "calls", "share", "allocations", "bytes", "share", "bytes, about"];
    Section {
        id: "sizes",
        title: "Sizes",
        aside: "allocations by requested size: exact numbers; their bytes by the middles of the classes"
            .into(),
        body: html! { @if !rows.is_empty() { (table("Allocations by size", &heads, cells)) } },
    }
}

/// Rates between points, of which some are taken together if there are many.
fn over_time(run: &Run) -> Section {
    let series = &run.counted.series;
    let together = series.len().div_ceil(SLICES).max(1);
    let parts: Vec<&[Point]> = series.chunks(together).collect();
    let start = |point: &Point| point.t_ns.saturating_sub(point.over_ns) as f64 / 1e9;
    let mut xs: Vec<f64> = parts.iter().filter_map(|part| part.first()).map(start).collect();
    xs.extend(series.last().map(|point| point.t_ns as f64 / 1e9));
    let rate = |of: fn(&Point) -> u64| -> Vec<Option<f64>> {
        let rate = |part: &&[Point]| {
            let over_s = part.iter().map(|point| point.over_ns as f64 / 1e9).sum::<f64>();
            let amount = part.iter().map(|point| of(point) as f64).sum::<f64>();
            (over_s > 0.0).then(|| amount / over_s)
        };
        parts.iter().map(rate).collect()
    };
    let line = |nth: usize, name: &str, values| Series::new(name, Colour::Line(nth), values);
    let calls = vec![
        line(0, "allocations and reallocs", rate(|point| point.calls)),
        line(1, "frees", rate(|point| point.frees)),
    ];
    let requested = vec![line(0, "requested", rate(|point| point.bytes))];
    let body = html! {
        @if parts.len() > 1 {
            (chart(&xs, "Calls", calls, |most| Axis::from_zero(most, number), &number))
            (chart(&xs, "Bytes", requested, Axis::bytes, &|value| bytes(value as u64)))
        } @else {
            (absent("Rates over time", &too_short()))
        }
    };
    Section { id: "time", title: "Over time", aside: "all processes together".into(), body }
}

fn too_short() -> Absence {
    Absence::new(Reason::TooLittle, "the counters were read less than twice").mend("count for a longer time")
}

fn chart(
    xs: &[f64],
    title: &str,
    series: Vec<Series>,
    y: impl Fn(f64) -> Axis,
    shown: &dyn Fn(f64) -> String,
) -> Markup {
    let most = series.iter().flat_map(|series| series.values.iter().flatten()).copied().fold(0.0, f64::max);
    let seconds = |s: f64| format!("{s:.1} s");
    let chart = Chart {
        title,
        unit: "a second",
        place: Place::Steps,
        x: Axis::linear(0.0, xs.last().copied().unwrap_or(0.0), 5, seconds),
        xs: xs.to_vec(),
        x_title: "from",
        x_shown: &seconds,
        y: y(most),
        series,
        shown,
        linked: "time",
        longest_gap: 1.0,
        note: None,
    };
    chart.draw()
}

/// The slowest one of so many calls is shown if so many were sampled.
const ONES: [f64; 6] = [2.0, 10.0, 100.0, 1e3, 1e4, 1e5];

fn times(summary: &Summary) -> Section {
    let sampled = summary.sampled.as_ref();
    let list: &[Latency] = sampled.ok().and_then(|s| s.latency.as_ref().ok()).map_or(&[], |list| list);
    let longest = list.iter().map(|latency| latency.times.samples()).max().unwrap_or(0) as f64;
    let ones: Vec<f64> = ONES.into_iter().filter(|n| *n <= longest).collect();
    let series = list.iter().enumerate().map(|(nth, Latency { kind, large, times })| {
        let quantile = |n: &f64| times.quantile(1.0 - 1.0 / n).ok().filter(|_| times.samples() as f64 >= *n);
        let found: Vec<_> = ones.iter().map(quantile).collect();
        let name = format!("{} {} 128 KiB", kind.title(), if *large { "≥" } else { "<" });
        let points = found.iter().map(|one| one.map(|time| time.point / 1e9)).collect();
        Series {
            band: found.iter().map(|one| one.map(|time| (time.low / 1e9, time.high / 1e9))).collect(),
            ..Series::new(name, Colour::Line(nth), points)
        }
    });
    let body = slowest(
        "Time of calls",
        "the slowest call of so many, sampled, with its 95 % interval",
        ones.clone(),
        series.collect(),
    );
    Section { id: "latency", title: "Latency", aside: String::new(), body }
}

fn blocks(summary: &Summary) -> Section {
    let several = summary.run.counted.processes.len() > 1;
    let of = |sampled: &Sampled| {
        html! {
            (lifetimes(sampled))
            (prose("Live", |page| text::live(page, sampled, several)))
            (prose("Frees by another thread", |page| text::remote_frees(page, sampled)))
            (sites(sampled, summary.run))
        }
    };
    let body = summary.sampled.as_ref().map_or_else(|_| html! {}, of);
    Section { id: "blocks", title: "Blocks", aside: "estimated from sampled calls".into(), body }
}

fn lifetimes(sampled: &Sampled) -> Markup {
    let rows = text::lifetime_shares(sampled).into_iter().map(|(title, blocks, of_bytes)| {
        let cells = [(blocks, FILLS[0]), (of_bytes, FILLS[1])].map(|(tenths, fill)| {
            [bar(tenths as f64 / 1000.0, None, fill), html! { (text::per_mille(tenths)) }]
        });
        (html! { (title) }, cells.concat())
    });
    let mut rows = rows.peekable();
    let heads = ["lifetime", "blocks", "share", "bytes", "share"];
    html! {
        @if rows.peek().is_some() {
            h3 { "Lifetimes" }
            (table("Lifetimes", &heads, rows))
        }
    }
}

/// Columns of a call site, and of its file.
const FUNCTION: usize = 160;
const FILE: usize = 60;

fn sites(sampled: &Sampled, run: &Run) -> Markup {
    html! {
        @for (by, ranked) in text::rankings(sampled, run) {
            h3 { "Call sites " (by) }
            (table(&format!("Call sites {by}"), &["function", "bar", "share", "amount"],
                ranked.iter().map(|site| (
                    with_aside(
                        html! { code { (elide_middle(site.function, FUNCTION)) } },
                        &elide_middle(basename(site.module), FILE),
                    ),
                    vec![
                        bar(site.share, None, FILLS[0]),
                        html! { (percent(site.share)) },
                        html! { (site.amount) },
                    ],
                ))))
        }
    }
}

fn limits(summary: &Summary) -> Section {
    let body = prose("What was not measured", |page| text::limits(page, summary));
    Section { id: "missing", title: "Limits", aside: String::new(), body }
}
