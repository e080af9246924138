//! Charts as SVG, each with its table. Lengths are relative and text is not scaled, so that a chart fits every screen.

use super::page::{percent, table};
use crate::text::bytes;
use allocwall_model::units::thousands;
use maud::{Markup, PreEscaped, html};
use std::fmt::Write;

/// A scale.
pub struct Axis {
    low: f64,
    high: f64,
    log: bool,
    /// Value and label of each line.
    ticks: Vec<(f64, String)>,
}

/// The most lines of an axis, whatever its ends are.
const MOST_TICKS: usize = 64;

impl Axis {
    /// From `low` to `high`, with lines at about `lines` round values.
    pub fn linear(low: f64, high: f64, lines: usize, shown: impl Fn(f64) -> String) -> Axis {
        let high = if high > low { high } else { low + 1.0 };
        let step = round_up((high - low) / lines.max(1) as f64);
        let first = (low / step).ceil() as i64;
        let ticks = (first..)
            .map(|nth| nth as f64 * step)
            .take_while(|value| *value <= high + step * 1e-6)
            .take(MOST_TICKS)
            .map(|value| (value, shown(value)))
            .collect();
        Axis { low, high, log: false, ticks }
    }

    /// From zero to the first line at or above `most`: three to five lines at round values.
    pub fn from_zero(most: f64, shown: impl Fn(f64) -> String) -> Axis {
        // Steps and sums of these are finite and not zero.
        let most = if most > 0.0 && most.is_finite() { most.clamp(1e-300, 1e300) } else { 1.0 };
        let step = round_up(most / 4.0);
        let above = (most / step - 1e-6).ceil();
        let ticks = (0..=above as u32).map(|nth| f64::from(nth) * step).map(|value| (value, shown(value)));
        Axis { low: 0.0, high: above * step, log: false, ticks: ticks.collect() }
    }

    /// The same for sizes in bytes, with lines at round numbers of KiB, MiB or GiB.
    pub fn bytes(most: f64) -> Axis {
        let unit = [30, 20, 10].map(|power| f64::from(1 << power)).into_iter().find(|unit| most >= *unit);
        let unit = unit.unwrap_or(1.0);
        let Axis { low, high, log, ticks } =
            Axis::from_zero(most / unit, |value| bytes((value * unit) as u64));
        let ticks = ticks.into_iter().map(|(value, shown)| (value * unit, shown)).collect();
        Axis { low: low * unit, high: high * unit, log, ticks }
    }

    /// The range from `low` to `high`, with lines at powers of ten, and in a short range also at 2 and 5 times these.
    pub fn log(low: f64, high: f64, shown: impl Fn(f64) -> String) -> Axis {
        /// Of the logarithm, so that points and lines at the ends are seen.
        const MARGIN: f64 = 1.05;
        let low = low.max(f64::MIN_POSITIVE);
        let (low, high) = if high > low * 1.5 { (low, high) } else { (low / 1.5, low * 1.5) };
        let factors: &[f64] = if high / low > 200.0 { &[1.0] } else { &[1.0, 2.0, 5.0] };
        let (low, high) = (low / MARGIN, high * MARGIN);
        let power = |value: f64| value.log10().clamp(f64::from(f64::MIN_10_EXP), f64::from(f64::MAX_10_EXP));
        let powers = power(low).floor() as i32..=power(high).ceil() as i32;
        let values = powers.flat_map(|power| factors.iter().map(move |factor| factor * 10f64.powi(power)));
        let within = values.filter(|value| (low..=high).contains(value)).take(MOST_TICKS);
        Axis { low, high, log: true, ticks: within.map(|value| (value, shown(value))).collect() }
    }

    #[cfg(test)]
    pub fn ends(&self) -> (f64, f64) {
        (self.low, self.high)
    }

    #[cfg(test)]
    pub fn lines(&self) -> usize {
        self.ticks.len()
    }

    /// Place of a value, as a fraction of the axis.
    fn at(&self, value: f64) -> f64 {
        let place = match self.log {
            true => (value.max(self.low) / self.low).ln() / (self.high / self.low).ln(),
            false => (value - self.low) / (self.high - self.low),
        };
        place.clamp(0.0, 1.0)
    }
}

/// 1, 2 or 5 times a power of ten, at least `value`.
pub(super) fn round_up(value: f64) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    let factor = [1.0, 2.0, 5.0, 10.0].into_iter().find(|factor| factor * power >= value * 0.999_999);
    factor.unwrap_or(10.0) * power
}

/// A colour of the style sheet, which differs in the dark, or a fixed one.
#[derive(Clone)]
pub enum Colour {
    Line(usize),
    Fixed(String),
}

pub struct Series {
    pub name: String,
    pub colour: Colour,
    /// One for each x. None where there is no value.
    pub values: Vec<Option<f64>>,
    /// Ends of the interval of each value; empty if it has none.
    pub band: Vec<Option<(f64, f64)>>,
    /// Its readings are far apart: each has a marker, and a thin line joins them over any gap.
    pub rare: bool,
}

impl Series {
    /// Without intervals.
    pub fn new(name: impl Into<String>, colour: Colour, values: Vec<Option<f64>>) -> Series {
        Series { name: name.into(), colour, values, band: vec![], rare: false }
    }
}

/// What the values of a chart are about.
pub enum Place {
    /// Slices from one x to the next one; the series are stacked, the first one at the bottom. One more x than values.
    Slices,
    /// The same, not stacked.
    Steps,
    /// Points, connected.
    Points,
}

pub struct Chart<'a> {
    pub title: &'a str,
    /// What the axis shows.
    pub unit: &'a str,
    pub place: Place,
    pub x: Axis,
    pub xs: Vec<f64>,
    /// Heading of the x column, and its cells.
    pub x_title: &'a str,
    pub x_shown: &'a dyn Fn(f64) -> String,
    pub y: Axis,
    pub series: Vec<Series>,
    pub shown: &'a dyn Fn(f64) -> String,
    /// Charts with the same key have the same x axis and one cursor.
    pub linked: &'a str,
    /// Points that are farther apart are not connected; as a fraction of the x axis.
    pub longest_gap: f64,
    pub note: Option<Markup>,
}

const WIDTH: f64 = 1000.0;
/// Pixels, too.
const HEIGHT: f64 = 160.0;

impl Chart<'_> {
    pub fn draw(&self) -> Markup {
        let drawing = self.paths();
        let label = format!(
            "{}, {}. Arrow keys move the cursor; the table below has all values.",
            self.title, self.unit
        );
        html! {
            figure.chart data-linked=(self.linked) data-points[matches!(self.place, Place::Points)] data-low=(self.x.low) data-high=(self.x.high) data-log[self.x.log] {
                figcaption { strong { (self.title) } " " span.aside { (self.unit) } output {} }
                div.plot tabindex="0" role="img" aria-label=(label) {
                    svg width="100%" height=(HEIGHT + 20.0) aria-hidden="true" {
                        svg viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } preserveAspectRatio="none" width="100%" height=(HEIGHT) {
                            (PreEscaped(drawing))
                        }
                        @for (value, shown) in &self.y.ticks {
                            @let y = format!("{:.1}", HEIGHT * (1.0 - self.y.at(*value)));
                            line.grid x1="0" x2="100%" y1=(y) y2=(y) {}
                            // In the gutter of the style sheet.
                            text x="-6" y=(y) dy="4" text-anchor="end" { (shown) }
                        }
                        @for (value, shown) in &self.x.ticks {
                            @let place = self.x.at(*value);
                            line.tick x1=(percent(place)) x2=(percent(place)) y1=(HEIGHT) y2=(HEIGHT + 4.0) {}
                            text x=(percent(place)) y=(HEIGHT + 16.0) text-anchor=(anchor(place)) { (shown) }
                        }
                        line.cursor x1="0" x2="0" y1="0" y2=(HEIGHT) {}
                    }
                }
                // Stacked series from top to bottom, as they are drawn.
                ul.legend {
                    @for (nth, series) in self.order() {
                        li data-series=(nth) { (swatch(series, nth, self.is_line())) (series.name) " " b {} }
                    }
                }
                @if let Some(note) = &self.note { (note) }
                details { summary { "Table: " (self.title) } (self.table()) }
            }
        }
    }

    fn is_line(&self) -> bool {
        !matches!(self.place, Place::Slices)
    }

    fn order(&self) -> Vec<(usize, &Series)> {
        let mut order: Vec<_> = self.series.iter().enumerate().collect();
        if !self.is_line() {
            order.reverse();
        }
        order
    }

    fn table(&self) -> Markup {
        let heads: Vec<&str> = std::iter::once(self.x_title)
            .chain(self.series.iter().map(|series| series.name.as_str()))
            .collect();
        let rows = (0..self.rows()).map(|row| {
            let cells = self.series.iter().map(|series| {
                let value = series.values.get(row).copied().flatten();
                let band = series.band.get(row).copied().flatten();
                html! {
                    @match value { Some(value) => { ((self.shown)(value)) } None => { "not read" } }
                    @if let Some((low, high)) = band { " (" ((self.shown)(low)) " to " ((self.shown)(high)) ")" }
                }
            });
            let x = self.xs[row];
            (html! { data value=(x) { ((self.x_shown)(x)) } }, cells.collect())
        });
        table(&format!("{}, {}", self.title, self.unit), &heads, rows)
    }

    fn rows(&self) -> usize {
        match self.place {
            Place::Points => self.xs.len(),
            Place::Slices | Place::Steps => self.xs.len().saturating_sub(1),
        }
    }

    fn paths(&self) -> String {
        match self.place {
            Place::Slices => self.stack(),
            Place::Steps | Place::Points => {
                self.series.iter().enumerate().map(|(nth, series)| self.line(nth, series)).collect()
            }
        }
    }

    fn place(&self, x: f64, y: f64) -> (f64, f64) {
        (self.x.at(x) * WIDTH, (1.0 - self.y.at(y)) * HEIGHT)
    }

    /// Each series from the sum of those below it.
    fn stack(&self) -> String {
        let mut drawing = String::new();
        let mut below = vec![0.0; self.rows()];
        for series in &self.series {
            let above: Vec<f64> =
                below.iter().zip(&series.values).map(|(sum, value)| sum + value.unwrap_or(0.0)).collect();
            if above != below {
                let mut path = String::new();
                let there = (0..self.rows()).flat_map(|row| [(row, row), (row + 1, row)]);
                let back = there.clone().rev();
                for (nth, (edge, y)) in
                    there.map(|(e, r)| (e, above[r])).chain(back.map(|(e, r)| (e, below[r]))).enumerate()
                {
                    point(&mut path, nth == 0, self.place(self.xs[edge], y));
                }
                path.push('Z');
                let (class, fill) = (class(&series.colour), fill(&series.colour));
                let _ = write!(drawing, "<path class=\"area{class}\"{fill} d=\"{path}\"/>");
            }
            below = above;
        }
        drawing
    }

    fn line(&self, nth: usize, series: &Series) -> String {
        let mut drawing = String::new();
        let class = class(&series.colour);
        let known = |row: usize| series.values.get(row).copied().flatten();
        let steps = matches!(self.place, Place::Steps);
        let rows: Vec<usize> = (0..self.rows()).filter(|row| known(*row).is_some()).collect();
        // Over a long gap, nothing is drawn.
        let near = |a: &usize, b: &usize| {
            series.rare || (self.x.at(self.xs[*b]) - self.x.at(self.xs[*a])).abs() <= self.longest_gap
        };
        for part in rows.chunk_by(near) {
            let band: Vec<(usize, (f64, f64))> = part
                .iter()
                .filter_map(|row| Some((*row, series.band.get(*row).copied().flatten()?)))
                .collect();
            if !band.is_empty() {
                let mut path = String::new();
                let low = band.iter().map(|(row, (low, _))| (*row, *low));
                let high = band.iter().rev().map(|(row, (_, high))| (*row, *high));
                for (nth, (row, y)) in low.chain(high).enumerate() {
                    point(&mut path, nth == 0, self.place(self.xs[row], y));
                }
                let _ = write!(drawing, "<path class=\"band{class}\" d=\"{path}Z\"/>");
            }
            let mut path = String::new();
            for (nth, row) in part.iter().enumerate() {
                let y = known(*row).unwrap_or_default();
                point(&mut path, nth == 0, self.place(self.xs[*row], y));
                if steps {
                    point(&mut path, false, self.place(self.xs[row + 1], y));
                }
            }
            let is_dot = !steps && part.len() == 1;
            if !is_dot {
                let (kind, dashes) = (if series.rare { "line thin" } else { "line" }, dashes(nth));
                let _ = write!(
                    drawing,
                    "<path class=\"{kind}{class}\" stroke-dasharray=\"{dashes}\" d=\"{path}\"/>"
                );
            }
            for row in part.iter().filter(|_| is_dot || series.rare) {
                let (x, y) = self.place(self.xs[*row], known(*row).unwrap_or_default());
                // A line of no length with round ends.
                let _ = write!(drawing, "<path class=\"line dot{class}\" d=\"M{x:.1} {y:.2}h0\"/>");
            }
        }
        drawing
    }
}

fn anchor(place: f64) -> &'static str {
    match place {
        p if p < 0.04 => "start",
        p if p > 0.96 => "end",
        _ => "middle",
    }
}

fn point(path: &mut String, first: bool, (x, y): (f64, f64)) {
    let _ = write!(path, "{}{x:.1} {y:.2}", if first { 'M' } else { 'L' });
}

fn class(colour: &Colour) -> String {
    match colour {
        Colour::Line(nth) => format!(" c{}", nth % COLOURS),
        Colour::Fixed(_) => String::new(),
    }
}

fn fill(colour: &Colour) -> String {
    match colour {
        Colour::Line(_) => String::new(),
        Colour::Fixed(colour) => format!(" fill=\"{colour}\""),
    }
}

/// Colours of lines in the style sheet.
const COLOURS: usize = 6;

/// Lines also differ without colour.
fn dashes(nth: usize) -> &'static str {
    ["none", "6 3", "2 3", "9 3 2 3", "12 4", "1 4"][nth % COLOURS]
}

/// The sample of a legend.
fn swatch(series: &Series, nth: usize, line: bool) -> Markup {
    let class = class(&series.colour);
    html! {
        svg.swatch width="18" height="12" aria-hidden="true" {
            @if line {
                @let thin = if series.rare { " thin" } else { "" };
                line class={ "line" (thin) (class) } x1="0" x2="18" y1="6" y2="6" stroke-dasharray=(dashes(nth)) {}
                @if series.rare { path class={ "line dot" (class) } d="M9 6h0" {} }
            } @else {
                @match &series.colour {
                    Colour::Fixed(fill) => { rect.edge x="0.5" y="0.5" width="17" height="11" fill=(fill) {} }
                    Colour::Line(_) => { rect class={ "area" (class) } x="0.5" y="0.5" width="17" height="11" {} }
                }
            }
        }
    }
}

/// A number in few digits.
pub(super) fn number(value: f64) -> String {
    // The sum of no value is −0.
    let value = value + 0.0;
    match value.abs() {
        v if v >= 1000.0 => thousands(value.round() as u64),
        v if v >= 100.0 || v.fract() == 0.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// A time in the unit that fits, with three digits.
pub fn time(seconds: f64) -> String {
    let (value, unit) = match seconds {
        s if s >= 1.0 => (s, "s"),
        s if s >= 1e-3 => (s * 1e3, "ms"),
        s if s >= 1e-6 => (s * 1e6, "µs"),
        s => (s * 1e9, "ns"),
    };
    match value {
        v if v >= 100.0 || unit == "ns" => format!("{v:.0} {unit}"),
        v if v >= 10.0 => format!("{v:.1} {unit}"),
        v => format!("{v:.2} {unit}"),
    }
}

/// How long the slowest one of so many takes: `ones` are these numbers, ascending, and the series have seconds. Nothing if there is
/// no time.
pub fn slowest(title: &str, unit: &str, ones: Vec<f64>, series: Vec<Series>) -> Markup {
    let all = || {
        series.iter().flat_map(|series| series.values.iter().flatten()).copied().filter(|value| *value > 0.0)
    };
    let (least, most) = (all().fold(f64::INFINITY, f64::min), all().fold(0.0, f64::max));
    if most <= 0.0 {
        return html! {};
    }
    let one_in = |n: f64| format!("1 in {}", thousands(n.round() as u64));
    let chart = Chart {
        title,
        unit,
        place: Place::Points,
        x: Axis::log(1.0, ones.last().copied().unwrap_or(1.0), one_in),
        xs: ones,
        x_title: "the slowest",
        x_shown: &one_in,
        y: Axis::log(least, most, time),
        series,
        shown: &time,
        linked: title,
        longest_gap: 1.0,
        note: None,
    };
    chart.draw()
}

/// A bar of a row, with its interval as a thin line.
pub fn bar(share: f64, interval: Option<(f64, f64)>, fill: &str) -> Markup {
    html! {
        svg.bar.whiskers[interval.is_some()] width="100%" height="14" aria-hidden="true" {
            rect.edge x="0" y="1" width=(percent(share)) height="12" fill=(fill) {}
            @if let Some((low, high)) = interval.filter(|(low, high)| high > low) {
                line.whisker x1=(percent(low)) x2=(percent(high)) y1="7" y2="7" {}
                line.whisker x1=(percent(low)) x2=(percent(low)) y1="3" y2="11" {}
                line.whisker x1=(percent(high)) x2=(percent(high)) y1="3" y2="11" {}
            }
        }
    }
}

/// Parts of a whole in one bar, in their order.
pub fn whole(parts: impl IntoIterator<Item = (f64, String)>) -> Markup {
    let mut at = 0.0;
    let parts: Vec<(f64, f64, String)> = parts
        .into_iter()
        .map(|(share, fill)| {
            let from = at;
            at += share;
            (from, share, fill)
        })
        .collect();
    html! {
        svg.whole width="100%" height="28" aria-hidden="true" {
            @for (from, share, fill) in parts {
                rect.edge x=(percent(from)) y="1" width=(percent(share)) height="26" fill=(fill) {}
            }
        }
    }
}
