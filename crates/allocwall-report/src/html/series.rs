//! The report of a series of windows: the verdict over all of them, the share of each wall by window, and every figure over the windows.

use super::chart::{Axis, Chart, Colour, Place, Series as Line};
use super::page::{Document, Section, class, command, percent, printed, table};
use crate::layout::elide_middle;
use crate::series as text;
use allocwall_diagnose::series::{Change, Course, Judgement, Quantity, Series, Window, time, whole};
use allocwall_model::catalogue::walls::Wall;
use allocwall_model::stats::median_interval;
use allocwall_model::units::Interval;
use maud::{Markup, html};

/// Columns of the command line of the target, and of the sentence.
const TARGET: usize = 1000;
const SENTENCE: usize = 2000;
/// The most values that are drawn, over all figures. More windows are thinned out evenly.
const VALUES: usize = 6_000;

/// A series of windows as one HTML document, smaller than 2 MB.
pub fn series(series: &Series, judged: &Judgement) -> String {
    let document = Document {
        title: format!("{} · allocwall", elide_middle(&series.target, 80)),
        head: html! {
            header {
                h1 { "allocwall " code { (elide_middle(&series.target, TARGET)) } }
                p.facts { (text::facts(series).join(" · ")) }
                @if let Some(ended) = text::ended(series) { p.warning { (ended) } }
                div.verdict.(class(text::ink(judged))) {
                    h2 { "Verdict" }
                    p.sentence { (elide_middle(&judged.sentence, SENTENCE)) }
                }
            }
        },
        sections: vec![walls(series, judged), windows(series), figures(series, judged), next(series, judged)],
    };
    document.print()
}

/// Of those that last, and of those of single windows.
fn walls(series: &Series, judged: &Judgement) -> Section {
    let lasting = judged.walls.iter().map(|lasting| lasting.wall);
    let walls: Vec<Wall> = lasting.chain(judged.brief.iter().map(|brief| brief.wall)).collect();
    let body = html! {
        (shares(series, &walls))
        (printed("Which last", |page| text::walls(page, series, judged)))
    };
    Section { id: "walls", title: "Walls", aside: String::new(), body }
}

fn shares(series: &Series, walls: &[Wall]) -> Markup {
    let xs: Vec<f64> = series.windows.iter().map(|window| window.at_s).collect();
    let lines = walls.iter().enumerate().filter_map(|(nth, wall)| {
        let found: Vec<Option<_>> = series
            .windows
            .iter()
            .map(|window| window.found.iter().find(|found| found.wall == *wall && found.share.is_some()))
            .collect();
        let of = found.iter().flatten().last()?.of;
        let shares: Vec<Option<Interval>> =
            found.iter().map(|found| found.filter(|found| found.of == of)?.share).collect();
        let points = shares.iter().map(|share| share.map(|share| share.point)).collect();
        Some(Line {
            band: shares.iter().map(|share| share.map(|share| (share.low, share.high))).collect(),
            ..Line::new(format!("{}, {}", wall.title(), whole(*wall, of)), Colour::Line(nth), points)
        })
    });
    let lines: Vec<Line> = lines.collect();
    if lines.is_empty() {
        return html! {};
    }
    let ends = lines.iter().flat_map(|line| line.band.iter().flatten()).map(|(_, high)| *high);
    let shown = |share: f64| format!("{:.0} %", share * 100.0);
    let chart = Chart {
        title: "Share of each wall",
        unit: "by window, with its 95 % interval",
        place: Place::Points,
        x: Axis::linear(0.0, xs.last().copied().unwrap_or(0.0), 5, time),
        xs,
        x_title: "start",
        x_shown: &time,
        // Lines are at whole percents.
        y: Axis::from_zero(ends.fold(0.04, f64::max), shown),
        series: lines,
        shown: &shown,
        linked: "windows",
        longest_gap: 1.0,
        note: None,
    };
    chart.draw()
}

fn windows(series: &Series) -> Section {
    let rows = series.windows.iter().enumerate().map(|(nth, window)| {
        let (verdict, ink) = text::verdict(window);
        let cpus = window.cpu_s / window.length_s.max(1e-9);
        let cells = vec![
            html! { span.outcome.(class(ink)) { (verdict) } },
            html! { (time(window.at_s)) },
            html! { (time(window.length_s)) },
            html! { (text::amount(Quantity::Cpus.unit(), cpus)) },
        ];
        (html! { (nth + 1) }, cells)
    });
    let heads = ["window", "verdict", "start", "length", "CPU time"];
    let body = html! { (table("Windows", &heads, rows)) };
    Section { id: "windows", title: "Windows", aside: "the verdict of each by itself".into(), body }
}

/// A figure in the windows that have it, by time.
struct Taken<'a> {
    course: &'a Course,
    values: Vec<Option<f64>>,
}

impl Taken<'_> {
    fn known(&self) -> impl Iterator<Item = f64> {
        self.values.iter().flatten().copied()
    }
}

/// What rose, what fell, then the others; those with nothing in any window are left out.
fn figures(series: &Series, judged: &Judgement) -> Section {
    let place = |course: &Course| Quantity::all().position(|quantity| quantity == course.quantity);
    let value = |window: &Window, nth: usize| window.figures.get(nth)?.as_ref().ok().copied();
    let mut taken: Vec<Taken> = judged
        .courses
        .iter()
        .filter_map(|course| {
            let nth = place(course)?;
            let values = series.windows.iter().map(|window| value(window, nth)).collect();
            Some(Taken { course, values })
        })
        .filter(|taken| taken.known().any(|value| value != 0.0))
        .collect();
    taken.sort_by_key(|taken| match taken.course.change {
        Change::Rose { .. } => 0,
        Change::Fell => 1,
        Change::Steady | Change::Unjudged(_) => 2,
    });
    let every = (taken.len() * series.windows.len()).div_ceil(VALUES).max(1);
    let rows = taken.iter().map(|taken| row(series, taken, every));
    let heads = [
        "figure",
        "windows, in time",
        "first",
        "last",
        "median",
        "95 % interval",
        "slope",
        "over the windows",
    ];
    let each = series.windows.iter().enumerate().step_by(every).map(|(nth, _)| {
        let cell = |taken: &Taken| {
            let unit = taken.course.quantity.unit();
            html! { (taken.values[nth].map_or("–".into(), |value| text::amount(unit, value))) }
        };
        (html! { (nth + 1) }, taken.iter().map(cell).collect())
    });
    let titles: Vec<String> = taken.iter().map(|taken| taken.course.quantity.title()).collect();
    let columns: Vec<&str> = std::iter::once("window").chain(titles.iter().map(String::as_str)).collect();
    let body = html! {
        @if every > 1 { p.note { "One window of " (every) " is drawn." } }
        @if !taken.is_empty() {
            (table("Figures over the windows", &heads, rows))
            details {
                summary { "Table: every window" }
                (table("Every window", &columns, each))
            }
        }
        (unjudged(judged))
    };
    let aside = "one dot for each window, from zero; the line is the median of the windows, the bar behind it its interval (of fewer \
                 than 6 windows: their range)";
    Section { id: "figures", title: "Figures", aside: aside.into(), body }
}

/// Pixels of a row of dots.
const HEIGHT: f64 = 40.0;

fn row(series: &Series, taken: &Taken, every: usize) -> (Markup, Vec<Markup>) {
    let Course { quantity, first, last, slope, change } = taken.course;
    let unit = quantity.unit();
    let most = taken.known().fold(0.0, f64::max);
    let length_s = series.windows.last().map_or(0.0, |last| last.at_s);
    let x = |at_s: f64| percent(0.03 + if length_s > 0.0 { 0.94 * at_s / length_s } else { 0.47 });
    let y = |value: f64| HEIGHT - 4.0 - (HEIGHT - 8.0) * if most > 0.0 { value.max(0.0) / most } else { 0.0 };
    let middle = median_interval(&taken.known().collect::<Vec<_>>());
    let dots = html! {
        svg.bar.dots width="100%" height=(HEIGHT) aria-hidden="true" {
            @if let Some(middle) = middle {
                @let (top, bottom) = (y(middle.high), y(middle.low));
                rect.margin x="0" y=(format!("{top:.1}")) width="100%" height=(format!("{:.1}", bottom - top)) {}
                line.zero x1="0" x2="100%" y1=(format!("{:.1}", y(middle.point))) y2=(format!("{:.1}", y(middle.point))) {}
            }
            @for (window, value) in series.windows.iter().zip(&taken.values).step_by(every) {
                @if let Some(value) = value { circle.run cx=(x(window.at_s)) cy=(format!("{:.1}", y(*value))) r="3" {} }
            }
        }
    };
    let amount = |value: Option<f64>| html! { (value.map_or("–".into(), |value| text::amount(unit, value))) };
    let range = middle.map(|of| format!("{} to {}", text::amount(unit, of.low), text::amount(unit, of.high)));
    let moved = matches!(change, Change::Rose { .. } | Change::Fell);
    let (word, class) = match change {
        Change::Rose { since } => {
            let at = series.windows.get(*since).map_or(0.0, |window| window.at_s);
            (format!("▲ rose since window {} ({})", since + 1, time(at)), "warn")
        }
        Change::Fell => ("▼ fell".to_owned(), "plain"),
        Change::Steady => ("= steady".to_owned(), "plain"),
        Change::Unjudged(_) => ("? not judged".to_owned(), "plain"),
    };
    let cells = vec![
        dots,
        html! { span.outcome.(class) { (word) } },
        amount(*first),
        amount(*last),
        amount(middle.map(|of| of.point)),
        html! { (range.unwrap_or_default()) },
        html! { (slope.filter(|_| moved).map_or(String::new(), |slope| text::rate(unit, slope, series))) },
    ];
    (html! { @if class == "warn" { strong { (quantity.title()) } } @else { (quantity.title()) } }, cells)
}

/// Each reason once.
fn unjudged(judged: &Judgement) -> Markup {
    let mut reasons: Vec<(&str, Vec<String>)> = vec![];
    for course in &judged.courses {
        let Change::Unjudged(why) = &course.change else { continue };
        match reasons.iter_mut().find(|(known, _)| *known == why.detail) {
            Some((_, titles)) => titles.push(course.quantity.title()),
            None => reasons.push((&why.detail, vec![course.quantity.title()])),
        }
    }
    html! { @for (why, titles) in reasons { p.absent { strong { "Not judged: " (why) ": " } (titles.join(", ")) } } }
}

/// The remedies of the window that shows the worst wall, and the command for its whole report.
fn next(series: &Series, judged: &Judgement) -> Section {
    let remedies = series.windows.get(judged.example).filter(|_| !judged.walls.is_empty());
    let remedies = remedies.map_or(&[][..], |example| &example.remedies[..]);
    let body = html! {
        @if !remedies.is_empty() {
            h3 { "Remedies" }
            p.aside { "from window " (judged.example + 1) "; try them in this order" }
            ol.remedies {
                @for remedy in remedies {
                    li {
                        h3 { (remedy.title) }
                        @if remedy.is_command { (command(&remedy.how)) } @else { p { (remedy.how.command) } }
                    }
                }
            }
        }
        @if let Some(line) = text::whole_report(series, judged) { (command(&line)) }
    };
    Section { id: "next", title: "Next", aside: String::new(), body }
}
