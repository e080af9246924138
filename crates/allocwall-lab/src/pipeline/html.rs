//! The order pipeline as one HTML document: the outcomes against malloc first, then charts and tables of each placement and pressure.

use super::charts::{NONE_AT, counted};
use super::results::{ArmResult, Point, shown};
use super::text::{Experiment, comparison, facts, of_point, pressure};
use super::{Measure, Orders, metric_key};
use crate::chart::short;
use allocwall_report::html::chart::{Axis, Chart, Colour, Place, Series, bar, slowest, time};
use allocwall_report::html::page::{Document, Section, hex, printed, table};
use allocwall_trial::Outcome;
use maud::{Markup, html};

/// The slowest one of so many orders is drawn if so many were timed.
const ONES: [f64; 7] = [2.0, 10.0, 100.0, 1e3, 1e4, 1e5, 1e6];
const FILL: (u8, u8, u8) = (0x56, 0xb4, 0xe9);

/// One HTML document, smaller than 2 MB. `machine` holds facts about the machine, one sentence each.
pub fn document(e: &Experiment, machine: &[String]) -> String {
    let document = Document {
        title: "pipeline · allocwall bench".into(),
        head: html! {
            header {
                h1 { "allocwall bench pipeline" }
                p.facts { (facts(e).join(" · ")) }
                p.facts { (machine.join(" · ")) }
                div.verdict.plain {
                    h2 { "Against malloc: " (compared(e).1) }
                    @for point in &e.points {
                        @if e.points.len() > 1 { p.facts { strong { (title(e, point)) ": " } (sentence(e, point)) } }
                        @else { p.sentence { (sentence(e, point)) } }
                    }
                }
            }
        },
        sections: vec![sweep(e), points(e)],
    };
    document.print()
}

fn title(e: &Experiment, point: &Point) -> String {
    format!("{}, {}", point.placement.name, pressure(e, point))
}

/// The metric of the first sentence, and its name. Without intended arrivals there are no times.
fn compared(e: &Experiment) -> (String, &'static str) {
    match e.rate {
        Some(_) => (metric_key(Measure::Dequeue, "p999", Orders::Undisturbed), "p99.9, undisturbed orders"),
        None => ("achieved_per_s".to_owned(), "orders per second"),
    }
}

/// `better: pool, slab; worse: batch.`
fn sentence(e: &Experiment, point: &Point) -> String {
    let (metric, _) = compared(e);
    let named = |outcome: Outcome| {
        let arms = shown(point).skip(1);
        let arms = arms.filter(|arm| comparison(point, *arm, &metric).is_some_and(|c| c.outcome == outcome));
        arms.map(|arm| point.arms[arm].name.as_str()).collect::<Vec<_>>()
    };
    let all = [Outcome::Better, Outcome::Worse, Outcome::Equivalent, Outcome::Unresolved];
    let parts = all.into_iter().map(|outcome| (outcome.key(), named(outcome)));
    let parts: Vec<String> = parts
        .filter(|(_, arms)| !arms.is_empty())
        .map(|(outcome, arms)| format!("{outcome}: {}", arms.join(", ")))
        .collect();
    if parts.is_empty() { "nothing was compared.".to_owned() } else { format!("{}.", parts.join("; ")) }
}

fn sweep(e: &Experiment) -> Section {
    let of_placement = |points: &[Point]| {
        html! {
            h3 { (points[0].placement.name) }
            @for orders in [Orders::Undisturbed, Orders::All] { (by_pressure(points, orders)) }
        }
    };
    let groups = e.points.chunk_by(|a, b| a.placement.name == b.placement.name);
    let body =
        html! { @if e.is_sweep() && e.rate.is_some() { @for points in groups { (of_placement(points)) } } };
    let aside = "from intended arrival to dequeue; median of the runs, with its 95 % interval";
    Section { id: "sweep", title: "By heap pressure", aside: aside.into(), body }
}

/// The same lines in each chart, also where an arm has no value.
fn series(
    point: &Point,
    of: impl Fn(usize, &ArmResult) -> (Vec<Option<f64>>, Vec<Option<(f64, f64)>>),
) -> Vec<Series> {
    let arms = shown(point).enumerate().map(|(nth, arm)| {
        let (values, band) = of(arm, &point.arms[arm]);
        Series { band, ..Series::new(point.arms[arm].name.clone(), Colour::Line(nth), values) }
    });
    arms.collect()
}

fn by_pressure(points: &[Point], orders: Orders) -> Markup {
    let xs: Vec<f64> = points.iter().map(|point| point.pressure.max(NONE_AT)).collect();
    // Over a pressure without a value, nothing is drawn.
    let step = xs.windows(2).map(|pair| (pair[1] / pair[0]).ln()).fold(0.0, f64::max);
    let range = xs.last().map_or(1.0, |last| (last / xs[0]).ln());
    let series = series(&points[0], |arm, _| {
        let figures = points.iter().map(|point| point.arms[arm].percentile(Measure::Dequeue, "p999", orders));
        let figures = figures.map(|figure| figure.map(|ns| ns.scaled(1e-9)));
        figures.map(|ns| (ns.map(|ns| ns.point), ns.map(|ns| (ns.low, ns.high)))).unzip()
    });
    let ends = || series.iter().flat_map(|series| series.band.iter().flatten());
    let (least, most) = ends()
        .fold((f64::INFINITY, 0.0_f64), |(least, most), (low, high)| (least.min(*low), most.max(*high)));
    if most <= 0.0 {
        return html! {};
    }
    let x_shown = |per_s: f64| if per_s <= NONE_AT { "none".to_owned() } else { short(per_s) };
    let chart = Chart {
        title: &format!("p99.9, {} orders", orders.key()),
        unit: "by blocks freed and allocated per second",
        place: Place::Points,
        x: Axis::log(xs[0], xs.last().copied().unwrap_or(NONE_AT), x_shown),
        xs,
        x_title: "heap pressure",
        x_shown: &x_shown,
        y: Axis::log(least, most, time),
        series,
        shown: &time,
        linked: &points[0].placement.name,
        longest_gap: 1.2 * step / range,
        note: None,
    };
    chart.draw()
}

fn points(e: &Experiment) -> Section {
    let body = html! {
        @for point in &e.points {
            @if e.rate.is_some() {
                @for orders in [Orders::Undisturbed, Orders::All] { (distribution(e, point, orders)) }
            } @else { (throughput(point)) }
            (printed(&title(e, point), |page| of_point(page, e, point)))
        }
    };
    Section { id: "orders", title: "Orders", aside: String::new(), body }
}

fn distribution(e: &Experiment, point: &Point, orders: Orders) -> Markup {
    let histogram = |arm: &ArmResult| arm.histogram(Measure::Dequeue, orders).cloned();
    let timed = shown(point).filter_map(|arm| Some(histogram(&point.arms[arm])?.count() as f64));
    let timed = timed.fold(0.0, f64::max);
    let ones: Vec<f64> = ONES.into_iter().filter(|n| *n <= timed).collect();
    let series = series(point, |_, arm| {
        let times = histogram(arm);
        let slowest = |n: &f64| {
            let times = times.as_ref().filter(|times| times.count() as f64 >= *n)?;
            times.quantile(1.0 - 1.0 / n).map(|ns| ns / 1e9)
        };
        (ones.iter().map(slowest).collect(), vec![])
    });
    let place = if e.points.len() > 1 { format!(", {}", title(e, point)) } else { String::new() };
    let chart = slowest(
        &format!("Time from intended arrival to dequeue, {} orders{place}", orders.key()),
        "the slowest order of so many, all runs together",
        ones,
        series,
    );
    html! { @if !chart.0.is_empty() { (chart) p.note { (counted(point, orders)) } } }
}

fn throughput(point: &Point) -> Markup {
    let rates = || shown(point).filter_map(|arm| Some((&point.arms[arm].name, point.arms[arm].achieved?)));
    let most = rates().map(|(_, rate)| rate.high).fold(f64::MIN_POSITIVE, f64::max);
    let rows = rates().map(|(name, rate)| {
        let drawn = bar(rate.point / most, Some((rate.low / most, rate.high / most)), &hex(FILL));
        (
            html! { (name) },
            vec![
                drawn,
                html! { (short_rate(rate.point)) },
                html! { (short_rate(rate.low)) " to " (short_rate(rate.high)) },
            ],
        )
    });
    let heads = ["arm", "orders per second", "median", "95 % interval"];
    table("Orders per second", &heads, rows)
}

fn short_rate(per_s: f64) -> String {
    format!("{:.2} M/s", per_s / 1e6)
}

#[cfg(test)]
mod tests {
    use super::super::results::{Placement, metrics, point};
    use super::super::variants::{Sizes, Variant};
    use super::super::{Arrivals, By, Pair, Pressure, RunResult, Spec, figures};
    use super::*;
    use allocwall_trial::compare::compare;
    use allocwall_trial::{Block, Design, ProofItem, ProofState, Run, Settings, plan, session};

    /// A run whose slowest orders take 100 times as long as the others.
    fn run(variant: Variant, ns: u64, rate: Option<f64>) -> RunResult {
        let mut pair = Pair::default();
        for nth in 0..2_000_u64 {
            let ns = if nth % 500 == 0 { 100 * ns } else { ns + nth % 7 };
            pair.all.record(2 * ns);
            pair.undisturbed.record(ns);
        }
        RunResult {
            variant,
            orders: 2_000,
            achieved: rate.unwrap_or(1e9 / ns as f64),
            handoff_ns: Some(90.0),
            clock: "tsc".into(),
            threshold_ns: 1e3,
            latencies: rate.map(|_| (Measure::Dequeue, pair)).into_iter().collect(),
            threads: vec![],
            refused: 0,
            pressure_per_s: 0.0,
            stolen_ns: None,
            unseen: 0.0,
        }
    }

    fn at(per_s: f64, rate: Option<f64>, pool_ns: u64) -> Point {
        let all: Vec<(usize, usize, RunResult)> = (0..12)
            .flat_map(|block| [(block, 0, 400), (block, 1, 400), (block, 2, pool_ns)])
            .map(|(block, arm, ns)| {
                let variant = if arm < 2 { Variant::Malloc } else { Variant::Pool };
                // Blocks differ, and so do runs.
                (block, arm, run(variant, ns + (block * 7 + arm * 3) as u64 % 11, rate))
            })
            .collect();
        let design = Design {
            left_out: vec![],
            arms: session::arms(["malloc", "malloc′", "<pool>"], vec![]),
            metrics: metrics(rate),
            settings: Settings { seed: 1, effect: plan::DEFAULT_EFFECT, planned: 12, looks: vec![12] },
        };
        let of_block = |number| {
            let runs = all.iter().filter(|(block, ..)| *block == number).map(|(block, arm, run)| Run {
                block: *block,
                place: *arm,
                arm: *arm,
                started_unix_ms: 0,
                metrics: figures(run, rate),
                failure: None,
                proof: vec![ProofItem {
                    what: "variant".into(),
                    state: ProofState::Proven,
                    detail: String::new(),
                    needed: true,
                    absent: None,
                }],
            });
            Block { number, runs: runs.collect() }
        };
        let blocks: Vec<Block> = (0..12).map(of_block).collect();
        let placement = Placement {
            name: "same-l3".into(),
            cpus: vec![0, 1],
            near: Some("one L3".into()),
            crowded: false,
        };
        let spec = Spec {
            variant: Variant::Malloc,
            sizes: Sizes::Line,
            producers: 1,
            consumers: 1,
            cpus: vec![0, 1],
            rate,
            arrivals: Arrivals::Constant,
            pressure: Pressure { per_s, by: By::Thread },
            warm_up: 0,
            timed: 2_000,
            check_steps: 0,
            seed: 1,
            lock: false,
            planted: None,
        };
        let runs: Vec<(usize, Option<RunResult>)> =
            all.iter().map(|(_, arm, run)| (*arm, Some(run.clone()))).collect();
        point(placement, &spec, compare(&design, &blocks), &blocks, &runs)
    }

    fn page(rate: Option<f64>, points: Vec<Point>) -> String {
        let experiment = Experiment {
            rate,
            arrivals: Arrivals::Constant,
            sizes: Sizes::Line,
            producers: 1,
            consumers: 1,
            pressure_by: By::Thread,
            check_ns: 200.0,
            orders: 2_000,
            warm_up: 0,
            seed: 1,
            locked: false,
            points,
        };
        document(&experiment, &["2 CPUs".to_owned()])
    }

    const RATE: Option<f64> = Some(1e6);

    #[test]
    fn a_page_has_the_outcome_first_then_distributions_and_tables() {
        let found = page(RATE, vec![at(1e6, RATE, 100)]);
        let verdict = found.find("better: &lt;pool&gt;.").unwrap_or_else(|| panic!("{found}"));
        assert!(verdict < found.find("<nav").unwrap());
        assert_eq!(found.matches("<figure class=\"chart\"").count(), 2);
        assert!(found.contains("heap pressure 1,000,000/s by a thread"));
        assert!(found.contains("against malloc, undisturbed orders"));
        assert!(!found.contains("<section id=\"sweep\"") && !found.contains("<pool>"));
        // The near twin: an arm that is as slow.
        let same = page(RATE, vec![at(1e6, RATE, 400)]);
        assert!(!same.contains("better: "), "{same}");
    }

    #[test]
    fn a_sweep_has_charts_with_bands() {
        let found = page(RATE, vec![at(0.0, RATE, 100), at(1e6, RATE, 100), at(1e7, RATE, 100)]);
        let sweep = &found[found.find("<section id=\"sweep\"").expect("a sweep")..];
        let sweep = &sweep[..sweep.find("</section>").unwrap()];
        assert_eq!(sweep.matches("<figure class=\"chart\"").count(), 2);
        assert!(sweep.contains("class=\"band c1\"") && sweep.contains(">none<"), "{sweep}");
        assert!(found.contains("same-l3, no heap pressure"));
    }

    #[test]
    fn without_arrivals_orders_per_second_are_compared() {
        let found = page(None, vec![at(1e6, None, 100)]);
        assert!(found.contains("Against malloc: orders per second"));
        assert!(found.contains("better: &lt;pool&gt;.") && found.contains("9.48 M/s"), "{found}");
        assert!(!found.contains("<figure class=\"chart\""));
        assert_eq!(found.matches("class=\"whisker\"").count(), 6);
    }
}
