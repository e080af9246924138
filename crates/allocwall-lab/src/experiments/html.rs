//! Experiments as one HTML document: the judgement of the claims first, then charts, figures, claims, bills.

use super::charts::RAREST;
use super::claims::{Judgement, judge};
use super::results::Results;
use super::{Chart as Plan, Lines, text};
use crate::pipeline::text::three_digits;
use allocwall_model::units::count;
use allocwall_report::html::chart::{Axis, Chart, Colour, Place, Series, time};
use allocwall_report::html::page::{Document, Section, notes, printed};
use maud::{Markup, html};
use std::collections::BTreeMap;

/// One HTML document, smaller than 2 MB. `machine` has facts about the machine, one sentence each.
pub fn document(all: &[Results], machine: &[String]) -> String {
    let names: Vec<&str> = all.iter().map(|results| results.experiment.name).collect();
    let title = match &names[..] {
        [name] => (*name).to_owned(),
        names => count(names.len(), "experiment"),
    };
    let document = Document {
        title: format!("{title} · allocwall bench"),
        head: html! {
            header {
                h1 { "allocwall bench " (title) }
                p.facts { (machine.join(" · ")) }
                div.verdict.plain {
                    h2 { "Claims" }
                    @for results in all { p.sentence { (sentence(results)) } }
                }
            }
        },
        sections: all.iter().map(section).collect(),
    };
    document.print()
}

/// How many claims hold here.
fn sentence(results: &Results) -> String {
    let judged = judge(results);
    let number = |is: fn(&Judgement) -> bool| judged.iter().filter(|one| is(&one.judgement)).count();
    format!(
        "{}: of {}, {} here, {} not, {} can't be tested here.",
        results.experiment.name,
        count(judged.len(), "published claim"),
        match number(|one| matches!(one, Judgement::Holds)) {
            1 => "1 holds".to_owned(),
            n => format!("{n} hold"),
        },
        match number(|one| matches!(one, Judgement::DoesNotHold)) {
            1 => "1 does".to_owned(),
            n => format!("{n} do"),
        },
        number(|one| matches!(one, Judgement::CannotTest(_))),
    )
}

fn section(results: &Results) -> Section {
    let experiment = results.experiment;
    let body = html! {
        p { (experiment.about) }
        p.facts { (text::facts(results).join(" · ")) }
        @for plan in experiment.charts { (chart(plan, results)) }
        @if !results.blocks.is_empty() { (printed("Figures", |page| text::figures(page, results))) }
        (notes(|page| text::notes(page, results)))
        (printed("Claims", |page| text::claims(page, results)))
        (printed("Bills", |page| text::bills(page, results)))
        (printed("Series", |page| text::series(page, results)))
    };
    Section { id: experiment.name, title: experiment.name, aside: experiment.summary.into(), body }
}

/// Nothing without a point.
fn chart(plan: &Plan, results: &Results) -> Markup {
    match plan.lines {
        Lines::Distribution(keys) => distribution(plan, results, keys),
        Lines::Figures(points) => figures(plan, results, points),
    }
}

fn series(results: &Results, of: impl Fn(usize) -> Series) -> Vec<Series> {
    let all = results.shown().enumerate().map(|(nth, arm)| Series {
        name: results.arms[arm].name.to_owned(),
        colour: Colour::Line(nth),
        ..of(arm)
    });
    all.filter(|series| series.values.iter().any(Option::is_some)).collect()
}

fn line(values: Vec<Option<f64>>, band: Vec<Option<(f64, f64)>>) -> Series {
    Series { band, ..Series::new("", Colour::Line(0), values) }
}

fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::INFINITY, 0.0), |(least, most), value| (least.min(value), most.max(value)))
}

/// Medians of figures along an axis, with their intervals.
fn figures(plan: &Plan, results: &Results, points: &[(f64, &'static str)]) -> Markup {
    let xs: Vec<f64> = points.iter().map(|(x, _)| *x).collect();
    let series = series(results, |arm| {
        let value = |(_, key): &(f64, &'static str)| results.point(key, arm).filter(|value| *value > 0.0);
        let band = |(_, key): &(f64, &'static str)| {
            results.value(key, arm).ok().filter(|value| value.low > 0.0).map(|value| (value.low, value.high))
        };
        line(points.iter().map(value).collect(), points.iter().map(band).collect())
    });
    let (least, most) = range(series.iter().flat_map(|series| series.values.iter().flatten()).copied());
    let (low, high) = range(xs.iter().copied());
    drawn(plan, Place::Points, Axis::log(low, high, three_digits), xs, (least, most), series, &three_digits)
}

/// The share of the times in each tenth of a decade.
fn distribution(plan: &Plan, results: &Results, keys: &[&str]) -> Markup {
    // By the tenth of the decade, because every arm has its own range.
    let tenth = |from: f64| (from.log10() * 10.0).round() as i64;
    let bins: Vec<(usize, BTreeMap<i64, f64>)> = results
        .shown()
        .filter_map(|arm| Some((arm, results.histogram(arm, keys)?.tenths())))
        .map(|(arm, bins)| (arm, bins.into_iter().map(|(from, share)| (tenth(from), share)).collect()))
        .collect();
    let known = || bins.iter().flat_map(|(_, bins)| bins.keys()).copied();
    let (Some(first), Some(last)) = (known().min(), known().max()) else { return html! {} };
    let edges: Vec<f64> = (first..=last).map(|tenth| 10f64.powf(tenth as f64 / 10.0)).collect();
    let series = series(results, |arm| {
        let of_arm = bins.iter().find(|(one, _)| *one == arm).map(|(_, bins)| bins);
        let share = |tenth: i64| of_arm.map(|bins| bins.get(&tenth).copied().unwrap_or(0.0).max(RAREST));
        line((first..last).map(share).collect(), vec![])
    });
    let x = Axis::log(edges[0], *edges.last().unwrap_or(&1.0), |ns| time(ns / 1e9));
    drawn(plan, Place::Steps, x, edges, (RAREST, 1.0), series, &|share| {
        format!("{} %", three_digits(share * 100.0))
    })
}

fn drawn(
    plan: &Plan,
    place: Place,
    x: Axis,
    xs: Vec<f64>,
    (least, most): (f64, f64),
    series: Vec<Series>,
    shown: &dyn Fn(f64) -> String,
) -> Markup {
    if series.is_empty() {
        return html! {};
    }
    let of_time = matches!(plan.lines, Lines::Distribution(_));
    let x_shown = |x: f64| if of_time { time(x / 1e9) } else { three_digits(x) };
    let chart = Chart {
        title: plan.title,
        unit: &format!("{}, by {}", plan.y_title, plan.x_title),
        place,
        x,
        xs,
        x_title: plan.x_title,
        x_shown: &x_shown,
        y: Axis::log(least, most, shown),
        series,
        shown,
        linked: plan.file,
        longest_gap: 1.0,
        note: None,
    };
    chart.draw()
}

#[cfg(test)]
mod tests {
    use super::super::testing::{FIGURE, results};
    use super::super::{EXPERIMENTS, find};
    use super::*;

    #[test]
    fn a_page_has_the_claims_and_a_chart_with_its_table() {
        let arms = [("glibc", vec![(FIGURE, 10.0)]), ("pinned", vec![(FIGURE, 30.0)])];
        let page = document(&[results(&EXPERIMENTS[0], 6, &arms)], &["2 CPUs".to_owned()]);
        assert!(page.contains("mmap-threshold: of ") && page.contains("<figure class=\"chart\""), "{page}");
        let claims = EXPERIMENTS[0].claims.len();
        assert!(page.contains(&format!("of {}", count(claims, "published claim"))));
        // The near twin: no point, no chart.
        let experiment = find("tcache-batch").unwrap();
        let empty = document(&[results(experiment, 6, &[("glibc", vec![])])], &[]);
        assert!(!empty.contains("<figure class=\"chart\""));
    }

    #[test]
    fn figures_have_their_intervals() {
        let experiment = find("tcache-batch").unwrap();
        let Lines::Figures(points) = experiment.charts[0].lines else { panic!("a chart of figures") };
        let figures = points.iter().map(|(x, key)| (*key, 10.0 + x)).collect();
        let page = document(&[results(experiment, 6, &[("glibc", figures)])], &[]);
        assert!(page.contains("class=\"band c0\""), "{page}");
    }
}
