//! What changed between two recordings. Pure: two recordings and their bills give the changes.
//!
//! The intervals of the bills account for sampling within a window. Those of the differences hold for all figures together with 95 %
//! confidence (Bonferroni), so that two recordings of the same load show no change. What another window would show is not part of them.

mod figures;
mod gate;
#[cfg(test)]
mod tests;

pub use figures::{Quantity, Side};
pub use gate::{Gate, Judged};

use crate::context::{bytes, main_process, percent};
use allocwall_model::catalogue::cost::CostClass;
use allocwall_model::recording::Recording;
use allocwall_model::stats::several::ALPHA;
use allocwall_model::stats::{difference, t_of, t95};
use allocwall_model::units::{Interval, Measured, count};
use figures::Figure;

pub struct Diff {
    /// The result in one sentence.
    pub sentence: String,
    /// In what the recordings differ, so that their figures may differ for that reason.
    pub unlike: Vec<String>,
    /// In the order of [`Quantity::all`], then the call sites.
    pub changes: Vec<Change>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    pub quantity: Quantity,
    pub unit: Unit,
    /// With 95 % intervals.
    pub before: Measured<Interval>,
    pub after: Measured<Interval>,
    /// With an interval that holds for all changes together. None if one of the values is absent.
    pub difference: Option<Interval>,
    /// By how much the intervals of the values are widened so that those of all changes hold together.
    pub wider: f64,
    pub outcome: Outcome,
    /// Of a call site: its share with the functions that it calls, before and after, with 95 % intervals. It has no outcome.
    pub with_callees: Option<[Interval; 2]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Share,
    /// CPU-seconds per second.
    Cpus,
    SecondsPerUnit,
    Threads,
    PerSecond,
    PerUnit,
    Bytes,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Outcome {
    Up,
    Down,
    /// The whole interval is within the margin.
    Same,
    /// A window of this length would decide, if the difference stays as it is, seconds. None if a longer window does not help.
    Undecided {
        window_s: Option<f64>,
    },
    NotMeasured,
}

impl Outcome {
    /// Stable key of the JSON format.
    pub fn key(self) -> &'static str {
        match self {
            Outcome::Up => "up",
            Outcome::Down => "down",
            Outcome::Same => "same",
            Outcome::Undecided { .. } => "undecided",
            Outcome::NotMeasured => "not_measured",
        }
    }

    pub fn moved(self) -> bool {
        matches!(self, Outcome::Up | Outcome::Down)
    }
}

impl Unit {
    /// Stable key of the JSON format.
    pub fn key(self) -> &'static str {
        match self {
            Unit::Share => "share",
            Unit::Cpus => "cpus",
            Unit::SecondsPerUnit => "seconds_per_unit",
            Unit::Threads => "threads",
            Unit::PerSecond => "per_second",
            Unit::PerUnit => "per_unit",
            Unit::Bytes => "bytes",
        }
    }

    pub fn shown(self, value: f64) -> String {
        match self {
            Unit::Share => format!("{} of CPU", percent(value)),
            Unit::Cpus => format!("{value:.2} CPUs"),
            Unit::SecondsPerUnit if value.abs() < 1e-3 => format!("{:.1} µs a unit", value * 1e6),
            Unit::SecondsPerUnit => format!("{:.2} ms a unit", value * 1e3),
            Unit::Threads => format!("{value:.2} threads"),
            Unit::PerSecond => format!("{value:.0}/s"),
            Unit::PerUnit => format!("{value:.1} a unit"),
            Unit::Bytes => bytes(value),
        }
    }

    /// A difference: `+34 points`.
    pub fn signed(self, value: f64) -> String {
        let sign = if value < 0.0 { "-" } else { "+" };
        match self {
            Unit::Share => format!("{sign}{:.1} points", value.abs() * 100.0),
            _ => format!("{sign}{}", self.shown(value.abs())),
        }
    }
}

impl Change {
    /// `+34.0 points (+28.1 to +40.2)`.
    pub fn shown(&self) -> Option<String> {
        let d = self.difference?;
        let short = |value: f64| match self.unit {
            Unit::Share => format!("{:+.1}", value * 100.0),
            unit => unit.signed(value),
        };
        Some(format!("{} ({} to {})", self.unit.signed(d.point), short(d.low), short(d.high)))
    }
}

/// A quantity before and after; for a call site, also with what it calls.
type Pair = (Quantity, [Measured<Figure>; 2], Option<[Interval; 2]>);

pub fn compare(before: &Side, after: &Side) -> Diff {
    let per_unit = before.units.is_some() && after.units.is_some();
    let figures = |quantity: Quantity| {
        let values = [quantity.of(before, after), quantity.of(after, before)];
        (quantity, values, None)
    };
    let sites = figures::sites(before, after)
        .into_iter()
        .map(|site| (Quantity::Site(site.function), site.own.map(Ok), Some(site.with_callees)));
    let pairs: Vec<Pair> = Quantity::all().map(figures).chain(sites).collect();
    // Those whose interval has an error rate.
    let is_judged = |pair: &[Measured<Figure>; 2]| {
        pair.iter().all(|figure| figure.as_ref().is_ok_and(|figure| figure.slices.is_some()))
    };
    let judged = pairs.iter().filter(|(_, pair, _)| is_judged(pair));
    let family = judged.count().max(1);
    let window_s = before.bill.window_s.max(after.bill.window_s);
    let changes: Vec<Change> = pairs
        .into_iter()
        .map(|(quantity, pair, with_callees)| Change {
            with_callees,
            ..Change::of(quantity, pair, family, per_unit, window_s)
        })
        .collect();
    Diff { sentence: sentence(&changes), unlike: unlike(before.recording, after.recording), changes }
}

impl Change {
    fn of(
        quantity: Quantity,
        [before, after]: [Measured<Figure>; 2],
        family: usize,
        per_unit: bool,
        window_s: f64,
    ) -> Change {
        let both = before.as_ref().ok().zip(after.as_ref().ok());
        // Without slices: the values are ranges, which are not wider for a family, and not narrower in a longer window.
        let slices = both.and_then(|(a, b)| a.slices.zip(b.slices));
        let wider = slices.map_or(1.0, |(a, b)| {
            let freedom = a.min(b).saturating_sub(1).max(1);
            t_of(ALPHA / family as f64, freedom) / t95(freedom)
        });
        let difference = both.map(|(a, b)| difference(a.value, b.value, wider));
        let (amount, part) = quantity.margin(per_unit);
        let margin = both.map_or(amount, |(a, b)| amount.max(part * a.value.point.max(b.value.point)));
        let window_s = slices.map(|_| window_s);
        let outcome = difference.map_or(Outcome::NotMeasured, |d| outcome(d, margin, window_s));
        let value = |figure: Measured<Figure>| figure.map(|figure| figure.value);
        Change {
            unit: quantity.unit(per_unit),
            quantity,
            before: value(before),
            after: value(after),
            difference,
            wider,
            outcome,
            with_callees: None,
        }
    }
}

fn outcome(d: Interval, margin: f64, window_s: Option<f64>) -> Outcome {
    if -margin < d.low && d.high < margin {
        return Outcome::Same;
    }
    if d.low > 0.0 {
        return Outcome::Up;
    }
    if d.high < 0.0 {
        return Outcome::Down;
    }
    // The interval must leave 0, or come within the margin. It shrinks with the root of the window.
    let needed = d.point.abs().max(margin - d.point.abs()).max(f64::MIN_POSITIVE);
    Outcome::Undecided { window_s: window_s.map(|s| s * (d.half_width() / needed).powi(2).max(1.0)) }
}

/// What moved most: a wall or a line of the bill, else another figure.
fn sentence(changes: &[Change]) -> String {
    let moved: Vec<&Change> = changes.iter().filter(|change| change.outcome.moved()).collect();
    let size = |change: &&&Change| change.difference.map_or(0.0, |d| d.point.abs());
    let application = Quantity::Line(CostClass::Application);
    let of = |wanted: fn(&Quantity) -> bool| {
        let of = moved.iter().filter(|change| wanted(&change.quantity) && change.quantity != application);
        of.max_by(|a, b| size(a).total_cmp(&size(b)))
    };
    let most = of(|quantity| matches!(quantity, Quantity::Wall(_)))
        .into_iter()
        .chain(of(|quantity| matches!(quantity, Quantity::Line(_))))
        // The first of equals is the wall, of which the line is a part.
        .reduce(|a, b| if size(&b) > 1.001 * size(&a) { b } else { a })
        .or_else(|| moved.first());
    if let Some(change) = most
        && let (Ok(before), Ok(after), Some(difference)) = (&change.before, &change.after, change.shown())
    {
        let from = match change.unit {
            Unit::Share => percent(before.point),
            unit => unit.shown(before.point),
        };
        let others = moved.len() - 1;
        let more = if others == 0 { String::new() } else { format!(" {others} more moved.") };
        return format!(
            "{} went from {from} to {}: {difference}.{more}",
            capital(&change.quantity.title()),
            change.unit.shown(after.point)
        );
    }
    let undecided =
        changes.iter().filter(|change| matches!(change.outcome, Outcome::Undecided { .. })).count();
    let same = changes.iter().filter(|change| change.outcome == Outcome::Same).count();
    match (same, undecided) {
        (0, 0) => "Nothing could be compared.".into(),
        (_, 0) => "No figure moved.".into(),
        _ => format!("No figure is shown to have moved; {} undecided.", count(undecided, "figure")),
    }
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or(String::new(), |first| first.to_uppercase().chain(chars).collect())
}

fn unlike(a: &Recording, b: &Recording) -> Vec<String> {
    /// Windows whose lengths differ by less are alike.
    const LENGTH: f64 = 1.2;
    let target = |recording: &Recording| main_process(recording).map_or(String::new(), |p| p.comm.clone());
    let window = |recording: &Recording| recording.meta.window_ns.max(1) as f64 / 1e9;
    let kernel_samples = |recording: &Recording| match recording.meta.kernel_samples {
        true => "sampled",
        false => "not sampled",
    };
    let pairs = [
        ("target", target(a), target(b)),
        ("CPU model", a.host.cpu_model.clone(), b.host.cpu_model.clone()),
        ("CPUs", a.host.online_cpus.to_string(), b.host.online_cpus.to_string()),
        ("kernel", a.host.kernel_release.clone(), b.host.kernel_release.clone()),
        ("kernel stacks", kernel_samples(a).into(), kernel_samples(b).into()),
    ];
    let mut unlike: Vec<String> = pairs
        .into_iter()
        .filter(|(_, a, b)| a != b)
        .map(|(what, a, b)| format!("{what} {a} and {b}"))
        .collect();
    let (x, y) = (window(a), window(b));
    if x.max(y) > LENGTH * x.min(y) {
        unlike.push(format!("window {x:.1} s and {y:.1} s"));
    }
    unlike
}
