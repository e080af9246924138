//! Charts of the order pipeline: the share of orders that take longer than a time, and the tail as a function of heap pressure.

use super::results::{Point, shown};
use super::text::{Experiment, pressure as title};
use super::{Measure, Orders};
use crate::chart::{Chart, Line, svg};
use allocwall_model::units::{count, thousands};

/// The smallest share that is drawn: a run has a million orders, and runs are merged.
const RAREST: f64 = 1e-6;
/// The x position, in blocks per second, at which the point without pressure is drawn.
pub(super) const NONE_AT: f64 = 50_000.0;

/// File names and their contents.
pub fn all(e: &Experiment) -> Vec<(String, String)> {
    let mut charts = vec![];
    if e.rate.is_none() {
        return charts;
    }
    if e.is_sweep() {
        for orders in [Orders::Undisturbed, Orders::All] {
            charts.push((format!("sweep-{}.svg", orders.key()), pressure(e, orders)));
        }
        return charts;
    }
    for point in &e.points {
        let place = match e.points.len() {
            1 => String::new(),
            _ => format!("-{}", point.placement.name),
        };
        for orders in [Orders::Undisturbed, Orders::All] {
            charts.push((format!("ccdf-{}{place}.svg", orders.key()), ccdf(e, point, orders)));
        }
    }
    charts
}

fn notes(e: &Experiment, point: &Point, orders: Orders) -> Vec<String> {
    let rate = e.rate.map_or(String::new(), |rate| format!("{} orders/s", thousands(rate as u64)));
    let cpus: Vec<String> = point.placement.cpus.iter().map(u32::to_string).collect();
    let mut notes = vec![format!(
        "{rate}, {}, {}, CPUs {}, {}",
        e.sizes.title(),
        title(e, point),
        cpus.join(" and "),
        count(point.outcome.blocks, "block")
    )];
    notes.push(counted(point, orders));
    if point.placement.crowded {
        notes.push("Oversubscribed: threads share a CPU.".into());
    }
    notes
}

/// Which orders are counted.
pub(super) fn counted(point: &Point, orders: Orders) -> String {
    let most = point.arms.iter().filter_map(|arm| arm.disturbed).map(|share| share.point).fold(0.0, f64::max);
    match orders {
        Orders::Undisturbed => format!(
            "Orders disturbed by a stall of the machine are left out: at most {:.1} % per arm.",
            most * 100.0
        ),
        Orders::All => "All orders: stalls of the machine cause most of the tail.".to_owned(),
    }
}

fn ccdf(e: &Experiment, point: &Point, orders: Orders) -> String {
    let lines: Vec<Line> = shown(point)
        .enumerate()
        .filter_map(|(style, arm)| {
            let arm = &point.arms[arm];
            let points: Vec<(f64, f64)> = arm
                .histogram(Measure::Dequeue, orders)?
                .above()
                .into_iter()
                .filter(|(ns, share)| *ns > 0.0 && *share >= RAREST)
                .collect();
            Some(Line { label: arm.name.clone(), points, style, steps: true, marks: false })
        })
        .collect();
    let longest = lines.iter().filter_map(|l| l.points.last()).map(|p| p.0).fold(100.0, f64::max);
    let shortest = lines.iter().filter_map(|l| l.points.first()).map(|p| p.0).fold(longest, f64::min);
    svg(&Chart {
        title: "Share of orders that take longer, from intended arrival to dequeue",
        notes: &notes(e, point, orders),
        x_title: "ns",
        y_title: "share of orders",
        x_names: &[],
        x: (power_below(shortest), power_above(longest)),
        y: (RAREST, 1.0),
        lines: &lines,
    })
}

fn pressure(e: &Experiment, orders: Orders) -> String {
    let first = &e.points[0];
    let at = |point: &Point| point.pressure.max(NONE_AT);
    let lines: Vec<Line> = shown(first)
        .enumerate()
        .map(|(style, arm)| {
            let points = e
                .points
                .iter()
                .filter(|point| point.placement.name == first.placement.name)
                .filter_map(|point| {
                    let p999 = point.arms[arm].percentile(Measure::Dequeue, "p999", orders)?;
                    Some((at(point), p999.point))
                })
                .collect();
            Line { label: first.arms[arm].name.clone(), points, style, steps: false, marks: true }
        })
        .collect();
    let values = || lines.iter().flat_map(|l| &l.points).map(|p| p.1);
    let (low, high) = (values().fold(f64::INFINITY, f64::min), values().fold(1.0, f64::max));
    let most = e.points.iter().map(at).fold(NONE_AT, f64::max);
    let mut notes = notes(e, first, orders);
    notes[0] = format!(
        "{} orders/s, {}, pressure by {}, {} per point",
        thousands(e.rate.unwrap_or(0.0) as u64),
        e.sizes.title(),
        e.pressure_by.key(),
        count(first.outcome.blocks, "block")
    );
    svg(&Chart {
        title: "p99.9 from intended arrival to dequeue, by heap pressure",
        notes: &notes,
        x_title: "blocks freed and allocated per second",
        y_title: "ns",
        x_names: &[(NONE_AT, "none")],
        x: (NONE_AT, most.max(NONE_AT * 2.0)),
        y: (power_below(low.min(high)), power_above(high)),
        lines: &lines,
    })
}

pub(crate) fn power_below(value: f64) -> f64 {
    10f64.powf(value.max(1.0).log10().floor())
}

pub(crate) fn power_above(value: f64) -> f64 {
    10f64.powf(value.max(10.0).log10().ceil())
}
