//! The text report of the order pipeline: a table per arm, the disturbances by the machine, and notes.

use super::results::{ArmResult, Point, shown};
use super::variants::Sizes;
use super::{Arrivals, By, Measure, Orders, QUANTILES, metric_key};
use allocwall_model::units::{Absence, Interval, Reason, count, thousands};
use allocwall_report::layout::{columns, elide_end, left, right};
use allocwall_report::text::{Ink, Page, Style};
use allocwall_trial::Comparison;

/// The options and the results.
#[derive(Clone, Debug, PartialEq)]
pub struct Experiment {
    /// None: orders are sent as fast as possible.
    pub rate: Option<f64>,
    pub arrivals: Arrivals,
    pub sizes: Sizes,
    pub producers: usize,
    pub consumers: usize,
    pub pressure_by: By,
    pub check_ns: f64,
    pub orders: u64,
    pub warm_up: u64,
    pub seed: u64,
    pub locked: bool,
    pub points: Vec<Point>,
}

impl Experiment {
    /// Whether it has several heap pressures.
    pub fn is_sweep(&self) -> bool {
        self.points.iter().any(|point| point.pressure != self.points[0].pressure)
    }
}

const NAME: usize = 36;
/// Width of the column of an interval.
const FIGURE: usize = 22;
/// Width of the column of a comparison.
const COMPARED: usize = FIGURE + 12;
/// Blanks before a cell, at least.
const GAP: usize = 2;
/// Share of orders that must be undisturbed; with fewer, the report warns about the tail.
const ENOUGH: f64 = 0.9;

/// The whole report, newline-terminated.
pub fn report(experiment: &Experiment, style: Style) -> String {
    let mut page = Page::new(style);
    header(&mut page, experiment);
    for point in &experiment.points {
        of_point(&mut page, experiment, point);
    }
    page.out
}

pub(super) fn of_point(page: &mut Page, experiment: &Experiment, point: &Point) {
    place(page, experiment, point);
    if experiment.rate.is_none() {
        throughput(page, point);
    } else {
        latencies(page, point, Orders::Undisturbed);
        latencies(page, point, Orders::All);
        words(page, point);
        hidden(page, point);
    }
    machine(page, point);
}

fn header(page: &mut Page, e: &Experiment) {
    let line = page.paint(Ink::Heading, "allocwall bench pipeline");
    page.line(&line);
    page.wrapped(2, &facts(e).join(" · "), Ink::Plain);
}

/// What was asked for.
pub(super) fn facts(e: &Experiment) -> Vec<String> {
    let rate = match e.rate {
        Some(rate) => format!("{} orders/s, {}", thousands(rate as u64), e.arrivals.key()),
        None => "orders sent as fast as possible".to_owned(),
    };
    let mut facts = vec![
        rate,
        format!("{} each", e.sizes.title()),
        format!("{} x {} threads", e.producers, e.consumers),
        format!("check {:.0} ns", e.check_ns),
        format!("{} orders per run, after {} warm-up orders", thousands(e.orders), thousands(e.warm_up)),
        format!("seed {}", e.seed),
    ];
    if e.locked {
        facts.push("memory locked".into());
    }
    facts
}

/// In words: `heap pressure 1,000,000/s by a thread`.
pub(super) fn pressure(e: &Experiment, point: &Point) -> String {
    match (point.pressure, e.pressure_by) {
        (0.0, _) => "no heap pressure".to_owned(),
        (per_s, By::Thread) => format!("heap pressure {}/s by a thread", thousands(per_s as u64)),
        (per_s, By::Producer) => format!("heap pressure {}/s by the producer", thousands(per_s as u64)),
    }
}

fn place(page: &mut Page, e: &Experiment, point: &Point) {
    // The unit stays as it is.
    let pressure = pressure(e, point).to_uppercase().replace("/S", "/s");
    let cpus: Vec<String> = point.placement.cpus.iter().map(u32::to_string).collect();
    let near = point.placement.near.as_deref().unwrap_or("one CPU");
    let handoff = point.arms.first().and_then(|arm| arm.handoff_ns);
    let handoff = handoff.map_or(String::new(), |ns| format!(", transfer {:.0} ns", ns.point));
    page.section(
        &pressure,
        &format!("CPUs {} ({near}{handoff}), {}", cpus.join(", "), count(point.outcome.blocks, "block")),
    );
    if point.placement.crowded {
        page.wrapped(
            2,
            "Oversubscribed: threads share a CPU, so all figures below include the time that threads wait for the CPU.",
            Ink::Warn,
        );
    }
}

/// A row of a table. A row without cells is a title of the rows below it, unless it has a note.
#[derive(Default)]
struct Row {
    name: String,
    cells: Vec<String>,
    /// After the last cell.
    note: String,
}

impl Row {
    fn of(arm: &ArmResult, cells: Vec<String>) -> Row {
        Row { name: format!("    {}", arm.name), cells, note: String::new() }
    }
}

/// The heads of the columns come with their widths. A column is wider if a cell needs it, so that no two figures touch.
fn table(page: &mut Page, title: &str, heads: &[(&str, usize)], rows: &[Row]) {
    page.blank();
    let is_title = |row: &&Row| row.cells.is_empty() && row.note.is_empty();
    let names = rows.iter().filter(|row| !is_title(row)).map(|row| columns(&row.name));
    let first = names.chain([NAME, columns(title)]).max().unwrap_or(NAME);
    let widths: Vec<usize> = (0..heads.len())
        .map(|n| {
            let cells = rows.iter().filter_map(|row| row.cells.get(n)).map(|cell| columns(cell) + GAP);
            cells.fold(heads[n].1, usize::max)
        })
        .collect();
    let line = |name: &str, cells: &[&str], note: &str| {
        let cells: String = cells.iter().zip(&widths).map(|(cell, width)| right(cell, *width)).collect();
        format!("{}{cells}{note}", left(name, first))
    };
    let titles: Vec<&str> = heads.iter().map(|(title, _)| *title).collect();
    let head = page.paint(Ink::Faint, &line(title, &titles, ""));
    page.line(&head);
    for row in rows {
        let cells: Vec<&str> = row.cells.iter().map(String::as_str).collect();
        page.line(&line(&row.name, &cells, &row.note));
    }
}

fn latencies(page: &mut Page, point: &Point, orders: Orders) {
    let (title, last) = match orders {
        Orders::Undisturbed => ("  undisturbed orders, ns if no unit", "p50 ÷ transfer"),
        Orders::All => ("  all orders, ns if no unit", "slowest order"),
    };
    let quantiles = QUANTILES.iter().map(|(_, title, _)| (*title, FIGURE));
    let heads: Vec<(&str, usize)> = quantiles.chain([(last, 16)]).collect();
    let mut rows = vec![];
    for measure in [Measure::Dequeue, Measure::Done] {
        rows.push(Row { name: format!("  {}", measure.title()), ..Row::default() });
        rows.extend(shown(point).map(|arm| row(&point.arms[arm], measure, orders)));
    }
    table(page, title, &heads, &rows);
}

fn row(arm: &ArmResult, measure: Measure, orders: Orders) -> Row {
    if arm.saturated > 0 && arm.latencies.is_empty() {
        let achieved = arm.achieved.map_or(0.0, |a| a.point);
        let done = thousands(achieved as u64);
        let note = format!("  saturated: only {done} orders/s were done, so no percentiles");
        return Row { note, ..Row::of(arm, vec![]) };
    }
    let mut cells: Vec<String> = QUANTILES
        .iter()
        .map(|(key, ..)| arm.percentile(measure, key, orders).map_or("none".to_owned(), figure))
        .collect();
    let last = match orders {
        Orders::Undisturbed => {
            let p50 = arm.percentile(measure, "p50", orders).map(|i| i.point);
            let line = arm.handoff_ns.map(|i| i.point);
            p50.zip(line).map_or(String::new(), |(p50, line)| format!("{:.1}", p50 / line))
        }
        Orders::All => arm
            .histogram(measure, orders)
            .and_then(|h| h.max())
            .map_or(String::new(), |max| thousands(max as u64)),
    };
    cells.push(last);
    let note = match arm.saturated {
        0 => String::new(),
        n => format!("  {n} of {} runs were saturated and are left out", arm.runs),
    };
    Row { note, ..Row::of(arm, cells) }
}

/// The estimate and its interval, with three digits, in the unit of the largest value. Nanoseconds are printed without a unit.
fn figure(interval: Interval) -> String {
    let (of, unit) = match interval.high {
        ns if ns < 1e5 => (1.0, ""),
        ns if ns < 1e6 => (1e3, " µs"),
        _ => (1e6, " ms"),
    };
    let show = |ns: f64| match unit {
        "" => thousands(rounded(ns)),
        _ => three_digits(ns / of),
    };
    if of_one_block(interval) {
        format!("{}{unit}", show(interval.point))
    } else {
        format!("{} ({}–{}){unit}", show(interval.point), show(interval.low), show(interval.high))
    }
}

/// Whether there was only one block. Then there is no interval, and an interval without width would look certain.
fn of_one_block(interval: Interval) -> bool {
    interval.low == interval.high
}

pub(crate) fn three_digits(value: f64) -> String {
    match value {
        v if v >= 99.95 => thousands(rounded(v)),
        v if v >= 9.995 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

fn rounded(ns: f64) -> u64 {
    let digits = ns.max(1.0).log10() as u32;
    let unit = 10u64.pow(digits.saturating_sub(2)) as f64;
    ((ns / unit).round() * unit) as u64
}

fn throughput(page: &mut Page, point: &Point) {
    let rows = shown(point).map(|n| {
        let arm = &point.arms[n];
        let Some(achieved) = arm.achieved else {
            return Row { note: "  no run has a result".to_owned(), ..Row::of(arm, vec![]) };
        };
        let rate =
            format!("{:.2} ({:.2}–{:.2})", achieved.point / 1e6, achieved.low / 1e6, achieved.high / 1e6);
        let against = comparison(point, n, "achieved_per_s")
            .and_then(|c| c.effect.as_ref().ok())
            .map_or(String::new(), |e| {
                format!("{:.2} ({:.2}–{:.2})", 1.0 + e.point, 1.0 + e.low, 1.0 + e.high)
            });
        Row::of(arm, vec![rate, against])
    });
    let heads = [("M/s", FIGURE), ("relative to malloc", FIGURE)];
    table(page, "  orders per second", &heads, &rows.collect::<Vec<_>>());
}

pub(super) fn comparison<'a>(point: &'a Point, arm: usize, metric: &str) -> Option<&'a Comparison> {
    point.outcome.comparisons.iter().find(|c| c.arm == arm && c.metric == metric)
}

/// Against malloc, and against the by-value ring (the lower bound), with intervals.
fn words(page: &mut Page, point: &Point) {
    let heads = [("p99", COMPARED), ("p99.9", COMPARED)];
    let rows = shown(point).skip(1).map(|arm| {
        let cells = ["p99", "p999"]
            .iter()
            .map(|key| {
                let metric = metric_key(Measure::Dequeue, key, Orders::Undisturbed);
                match comparison(point, arm, &metric) {
                    Some(c) => match &c.effect {
                        Ok(effect) => format!("{} {}", change(*effect), c.outcome.key()),
                        Err(absence) => brief(absence),
                    },
                    None => String::new(),
                }
            })
            .collect();
        Row::of(&point.arms[arm], cells)
    });
    table(page, "  against malloc, undisturbed orders", &heads, &rows.collect::<Vec<_>>());
    let baseline = point
        .outcome
        .baseline
        .iter()
        .find(|c| c.metric == metric_key(Measure::Dequeue, "p999", Orders::Undisturbed));
    if let Some(Ok(effect)) = baseline.map(|c| &c.effect) {
        page.wrapped(4, &format!("malloc against itself (noise), p99.9: {}", change(*effect)), Ink::Faint);
    }
    if point.floor.is_empty() {
        return;
    }
    let rows = shown(point).filter(|arm| point.arms[*arm].name != "by-value").map(|arm| {
        let cells = ["p99", "p999"]
            .iter()
            .map(|key| {
                let metric = metric_key(Measure::Dequeue, key, Orders::Undisturbed);
                match point.floor.get(&metric).and_then(|arms| arms.get(arm)) {
                    Some(Ok(effect)) => change(*effect),
                    Some(Err(absence)) => brief(absence),
                    None => String::new(),
                }
            })
            .collect();
        Row::of(&point.arms[arm], cells)
    });
    table(page, "  against by-value, undisturbed", &heads, &rows.collect::<Vec<_>>());
}

/// Why there is no effect, in one cell.
fn brief(absence: &Absence) -> String {
    match absence.reason {
        Reason::TooLittle => "too few blocks".to_owned(),
        _ => elide_end(&absence.detail, COMPARED - GAP),
    }
}

fn change(effect: Interval) -> String {
    let percent = |share: f64| {
        let sign = if share < 0.0 { "−" } else { "+" };
        format!("{sign}{:.0}", share.abs() * 100.0)
    };
    if of_one_block(effect) {
        format!("{} %", percent(effect.point))
    } else {
        format!("{} % ({} to {})", percent(effect.point), percent(effect.low), percent(effect.high))
    }
}

/// Delays that the published measure does not include.
fn hidden(page: &mut Page, point: &Point) {
    let Some(malloc) = point.arms.first() else { return };
    let both = [Orders::Undisturbed, Orders::All].map(|orders| {
        let of = |measure| malloc.percentile(measure, "p999", orders).map(|i| i.point);
        of(Measure::Dequeue).zip(of(Measure::Queue))
    });
    let [Some((intended, created)), Some((all, all_created))] = both else {
        return;
    };
    page.blank();
    page.wrapped(
        2,
        &format!(
            "The published measure starts when an order is created. By that measure malloc's p99.9 is {} ns instead of {} (all orders: {} \
             instead of {}), because it leaves out delays of the allocation itself.",
            thousands(rounded(created)),
            thousands(rounded(intended)),
            thousands(rounded(all_created)),
            thousands(rounded(all)),
        ),
        Ink::Plain,
    );
}

/// Orders that waited for heap-pressure blocks in the same thread: the arm in which this took the most time.
fn held_up(point: &Point) -> Option<String> {
    let held = |arm: &ArmResult| -> (u64, f64) {
        let runs = arm.runs.max(1);
        let threads = || arm.threads.iter();
        let blocks: u64 = threads().map(|t| t.held).sum();
        let ns: f64 = threads().map(|t| t.held_ns).sum();
        (blocks / runs as u64, ns / runs as f64)
    };
    let arms = shown(point).map(|n| &point.arms[n]);
    let most = arms.max_by(|a, b| held(a).1.total_cmp(&held(b).1))?;
    let (blocks, ns) = held(most);
    (blocks > 0).then(|| {
        format!(
            "Orders that waited for a heap-pressure block of more than 5 µs also count as disturbed: with a separate pressure thread they \
             would not have waited. This took most time in {}: {} blocks per run, {:.1} ms.",
            most.name,
            thousands(blocks),
            ns / 1e6
        )
    })
}

/// The disturbances by the machine, and warnings if they are too large.
fn machine(page: &mut Page, point: &Point) {
    let heads =
        [("disturbed", 12), ("stalls/run", 14), ("longest, µs", 13), ("switches", 10), ("unseen stalls", 15)];
    let mut fewest: f64 = 1.0;
    let mut rows = vec![];
    for n in shown(point) {
        let arm = &point.arms[n];
        let runs = arm.runs.max(1) as u64;
        let stalls: u64 = arm.threads.iter().map(|t| t.stalls).sum();
        let longest = arm.threads.iter().map(|t| t.longest_ns).fold(0.0, f64::max);
        let switches: u64 = arm.threads.iter().map(|t| t.involuntary_switches).sum();
        let disturbed = arm.disturbed.map_or(String::new(), |share| {
            fewest = fewest.min(1.0 - share.point);
            format!("{:.1} %", share.point * 100.0)
        });
        let cells = vec![
            disturbed,
            thousands(stalls / runs),
            thousands((longest / 1e3) as u64),
            thousands(switches / runs),
            thousands((arm.unseen / runs as f64).round() as u64),
        ];
        rows.push(Row::of(arm, cells));
    }
    table(page, "  the machine", &heads, &rows);
    if let Some(text) = held_up(point) {
        page.wrapped(4, &text, Ink::Faint);
    }
    let stolen: Option<u64> = point.arms.iter().map(|arm| arm.stolen_ns).sum();
    let mut text = match stolen {
        Some(ns) => {
            format!("Steal: the hypervisor took {:.0} ms of CPU time in all runs together.", ns as f64 / 1e6)
        }
        None => "Steal is unknown: the kernel does not report it.".to_owned(),
    };
    if fewest < ENOUGH {
        text.push_str(&format!(
            " In one arm only {:.0} % of the orders were undisturbed: too few to judge its tail.",
            fewest * 100.0
        ));
    }
    page.wrapped(4, &text, Ink::Faint);
    let refused: Vec<String> = point
        .arms
        .iter()
        .filter(|arm| arm.refused > 0)
        .map(|arm| format!("{} {}", arm.name, thousands(arm.refused)))
        .collect();
    if !refused.is_empty() {
        page.wrapped(
            4,
            &format!("No free slot after a stall; retries until a slot was free: {}.", refused.join(", ")),
            Ink::Faint,
        );
    }
    let held = |arm: &ArmResult| arm.pressure.is_some_and(|p| p.point < point.pressure * 0.98);
    if let Some(arm) = point.arms.iter().find(|arm| held(arm)) {
        page.wrapped(
            4,
            &format!(
                "The heap pressure was not reached: {} of {} blocks per second ({}).",
                thousands(arm.pressure.map_or(0.0, |p| p.point) as u64),
                thousands(point.pressure as u64),
                arm.name
            ),
            Ink::Warn,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_in_the_unit_of_its_largest() {
        for (low, point, high, text) in [
            (172.0, 388.4, 416.0, "388 (172–416)"),
            (4_580.0, 4_984.0, 99_999.0, "4,980 (4,580–100,000)"),
            (800.0, 9_940.0, 121_000.0, "9.94 (0.80–121) µs"),
            (719.0, 271_000.0, 914_900.0, "271 (0.72–915) µs"),
            (719_000.0, 2_710_000.0, 13_100_000.0, "2.71 (0.72–13.1) ms"),
            (271_000.0, 271_000.0, 271_000.0, "271 µs"),
        ] {
            assert_eq!(figure(Interval { low, point, high }), text);
        }
    }

    /// The rows of a table, without its head, for cells of two columns of 12.
    fn rows(cells: &[[&str; 2]]) -> Vec<String> {
        let mut page = Page::new(Style::FILE);
        let row = |cells: &[&str; 2]| Row {
            name: "    malloc".to_owned(),
            cells: cells.map(str::to_owned).to_vec(),
            note: String::new(),
        };
        let rows: Vec<Row> = cells.iter().map(row).collect();
        table(&mut page, "  orders", &[("p50", 12), ("p99", 12)], &rows);
        page.out.lines().skip(2).map(str::to_owned).collect()
    }

    #[test]
    fn wide_figures_stay_apart_and_in_their_columns() {
        let wide = figure(Interval { low: 1.01e9, point: 1.24e9, high: 12.3e9 });
        assert_eq!(wide, "1,240 (1,010–12,300) ms");
        let of = |first: &str, second: &str| {
            let found = rows(&[[first, second], ["1", "2"]]);
            let ends: Vec<usize> = found.iter().map(|line| columns(line)).collect();
            assert_eq!(ends[0], ends[1], "{found:?}");
            let cells = found[0].split("  ").map(str::trim).filter(|cell| !cell.is_empty());
            assert_eq!(cells.collect::<Vec<_>>(), ["malloc", first, second], "{found:?}");
            ends[0]
        };
        // Columns that are wide enough keep their width, and others become wider.
        assert_eq!(of("388", "9.94 µs"), NAME + 24);
        assert_eq!(of(&wide, &wide), NAME + 2 * (columns(&wide) + GAP));
        let change = change(Interval { low: 12.34, point: 123.45, high: 1_234_567.0 });
        assert_eq!(of(&change, "none"), NAME + columns(&change) + GAP + 12);
    }

    #[test]
    fn a_long_name_and_a_note_move_no_cell_and_a_title_takes_no_room() {
        let mut page = Page::new(Style::FILE);
        let long = "    an arm with a name that is longer than its column";
        let rows = [
            Row { name: format!("  {}", "a title of the rows below ".repeat(4)), ..Row::default() },
            Row { name: long.to_owned(), cells: vec!["1".to_owned()], note: String::new() },
            Row {
                name: "    malloc".to_owned(),
                cells: vec!["22".to_owned()],
                note: "  and more".to_owned(),
            },
        ];
        table(&mut page, "  orders", &[("p50", 6)], &rows);
        let lines: Vec<&str> = page.out.lines().skip(3).collect();
        assert_eq!(
            lines,
            [format!("{long}     1"), format!("{}    22  and more", left("    malloc", columns(long)))]
        );
    }
}
