//! The charts of an experiment: distributions of times, and figures along an axis, one line for each arm.

use super::results::Results;
use super::{Chart, Lines};
use crate::chart::{self, Line};
use crate::pipeline::charts::{power_above, power_below};
use allocwall_model::units::count;

/// The smallest share that is drawn.
pub(super) const RAREST: f64 = 1e-5;

/// File names and their contents. A chart without a point is left out.
pub fn all(results: &Results) -> Vec<(String, String)> {
    let name = results.experiment.name;
    let charts = results.experiment.charts.iter();
    charts.filter_map(|plan| Some((format!("{name}-{}.svg", plan.file), svg(plan, results)?))).collect()
}

fn svg(plan: &Chart, results: &Results) -> Option<String> {
    let lines: Vec<Line> = results
        .shown()
        .enumerate()
        .map(|(style, arm)| Line {
            label: results.arms[arm].name.to_owned(),
            points: points(&plan.lines, results, arm),
            style,
            steps: matches!(plan.lines, Lines::Distribution(_)),
            marks: matches!(plan.lines, Lines::Figures(_)),
        })
        .collect();
    let of = |axis: fn(&(f64, f64)) -> f64| {
        let values = || lines.iter().flat_map(|line| &line.points).map(axis);
        (values().fold(f64::INFINITY, f64::min), values().fold(0.0, f64::max))
    };
    let (x, y) = (of(|point| point.0), of(|point| point.1));
    if x.1 == 0.0 {
        return None;
    }
    let blocks = count(results.blocks.len(), "block");
    let (x, y, note) = match plan.lines {
        Lines::Distribution(_) => {
            ((power_below(x.0), power_above(x.1)), (RAREST, 1.0), format!("all runs of {blocks} added up"))
        }
        // The values of x are chosen; their ends are the ends of the axis.
        Lines::Figures(_) => {
            let x = (x.0, x.1.max(x.0 * 2.0));
            (x, (power_below(y.0), power_above(y.1)), format!("medians over the runs of {blocks}"))
        }
    };
    Some(chart::svg(&chart::Chart {
        title: plan.title,
        notes: &[note],
        x_title: plan.x_title,
        y_title: plan.y_title,
        x_names: &[],
        x,
        y,
        lines: &lines,
    }))
}

fn points(lines: &Lines, results: &Results, arm: usize) -> Vec<(f64, f64)> {
    match lines {
        Lines::Distribution(keys) => {
            let bins = results.histogram(arm, keys).map(|times| times.tenths()).unwrap_or_default();
            bins.into_iter().map(|(from, share)| (from, share.max(RAREST))).collect()
        }
        Lines::Figures(points) => {
            let points = points.iter().filter_map(|(x, key)| Some((*x, results.point(key, arm)?)));
            points.filter(|(_, y)| *y > 0.0).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::EXPERIMENTS;
    use super::super::testing::{FIGURE, results};
    use super::*;

    fn labels(text: &str) -> Vec<String> {
        let document = roxmltree::Document::parse(text).unwrap();
        let labels =
            document.descendants().filter(|n| n.attribute("class").is_some_and(|c| c.starts_with("label")));
        labels.map(|n| n.text().unwrap().to_owned()).collect()
    }

    #[test]
    fn a_distribution_has_a_line_for_each_arm_that_is_shown() {
        let arms = [("glibc", vec![(FIGURE, 10.0)]), ("pinned", vec![(FIGURE, 30.0)])];
        let charts = all(&results(&EXPERIMENTS[0], 6, &arms));
        let (name, text) = &charts[0];
        assert_eq!(name, "mmap-threshold-calls.svg");
        let mut labels = labels(text);
        labels.sort();
        assert_eq!(labels, ["glibc", "pinned"]);
    }

    #[test]
    fn figures_are_points_and_without_any_there_is_no_chart() {
        let experiment = super::super::find("tcache-batch").unwrap();
        let Lines::Figures(points) = experiment.charts[0].lines else { panic!("a chart of figures") };
        let figures = points.iter().map(|(x, key)| (*key, 10.0 + x)).collect();
        let charts = all(&results(experiment, 6, &[("glibc", figures)]));
        assert_eq!((charts.len(), labels(&charts[0].1)), (1, vec!["glibc".to_owned()]));
        assert_eq!(charts[0].1.matches("<circle").count(), points.len());
        assert!(all(&results(experiment, 6, &[("glibc", vec![])])).is_empty());
    }
}
