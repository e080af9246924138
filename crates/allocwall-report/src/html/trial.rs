//! The report of a trial: the outcome, each comparison with its interval beside the prediction, every run, latencies, settings.

use super::chart::{Colour, Series, round_up, slowest};
use super::page::{
    Document, Section, absent_by_reason, class, command, facts, headed_table, notes, outcome_of, percent,
    table,
};
use crate::layout::elide_middle;
use crate::recordings::utc;
use crate::trial_text as text;
use allocwall_model::stats::{median, median_interval};
use allocwall_model::units::{Interval, thousands};
use allocwall_trial::journal::Head;
use allocwall_trial::{BASELINES, Block, Comparison, Metric, TrialResult, Unit};
use maud::{Markup, html};
use serde_json::json;
use std::collections::BTreeMap;

/// Columns of the command, of the name of an arm, and of a setting.
const COMMAND: usize = 1000;
const NAME: usize = 60;
/// The most runs that are drawn, over all arms and metrics. More blocks are thinned out evenly.
const RUNS: usize = 8_000;

struct Case<'a> {
    outcome: &'a TrialResult,
    head: &'a Head,
    blocks: &'a [Block],
}

/// A trial as one HTML document, smaller than 2 MB. `options` as in [`text::trial`].
pub fn trial(outcome: &TrialResult, head: &Head, blocks: &[Block], options: Option<&[String]>) -> String {
    let case = Case { outcome, head, blocks };
    let steps = text::steps(outcome, &head.command, options);
    let next = html! { @for step in &steps { (command(step)) } };
    let document = Document {
        title: format!("trial of {} · allocwall", elide_middle(&text::quoted_words(&head.command), 80)),
        head: heading(&case),
        sections: vec![
            effects(&case),
            latencies(&case),
            runs(&case),
            Section { id: "next", title: "Next", aside: String::new(), body: next },
            settings(&case),
        ],
    };
    document.print()
}

fn heading(case: &Case) -> Markup {
    let Case { outcome, head, .. } = case;
    let (sentences, ink) = text::sentences(outcome);
    html! {
        header {
            h1 { "allocwall trial " code { (elide_middle(&text::quoted_words(&head.command), COMMAND)) } }
            p.facts { (text::facts(outcome).join(" · ")) }
            @if let Some((ended, _)) = text::ended(outcome) { p.warning { (ended) } }
            div.verdict.(class(ink)) {
                h2 { "Verdict" }
                @for sentence in sentences { p.sentence { (sentence) } }
                @if let Some(control) = text::control_text(outcome) { p.facts { strong { "Control: " } (control) } }
                @for warning in &outcome.warnings { p.warning { (warning) } }
            }
        }
    }
}

fn arm_name(case: &Case, arm: usize) -> String {
    match arm {
        0 => "A".into(),
        1 => "A′".into(),
        arm => elide_middle(&case.outcome.design.arms[arm].name, NAME),
    }
}

fn effects(case: &Case) -> Section {
    let outcome = case.outcome;
    let scale = Scale::of(outcome);
    let drawn: Vec<&Comparison> =
        outcome.comparisons.iter().chain(&outcome.baseline).filter(|c| has_row(outcome, c)).collect();
    let body = html! {
        ul.legend {
            li { (mark("effect")) "measured, with its interval" }
            @if drawn.iter().any(|c| c.predicted.is_some()) { li { (mark("predicted")) "predicted before the trial" } }
            li { (mark("margin")) "too small to matter, or noise of the baseline" }
            @if drawn.iter().any(|c| scale.is_beyond(c)) { li { "▶ beyond the scale" } }
        }
        @for arm in BASELINES..outcome.design.arms.len() {
            h3 { (arm_name(case, arm)) }
            @for (word, ink, proof) in text::proofs(&outcome.summaries[arm]) {
                p.proof.(class(ink)) { strong { (word) ": " } (proof) }
            }
            @let of_arm: Vec<Comparison> = outcome.comparisons.iter().filter(|c| c.arm == arm).cloned().collect();
            (compared(case, &scale, &of_arm, arm))
        }
        h3 { "Baseline" }
        p.aside { "run twice in each block, as A and A′: their difference is noise" }
        (compared(case, &scale, &outcome.baseline, 1))
        (notes(|page| text::left_out(page, outcome)))
    };
    Section { id: "effects", title: "Effects", aside: "relative change against the baseline".into(), body }
}

fn compared(case: &Case, scale: &Scale, comparisons: &[Comparison], arm: usize) -> Markup {
    let outcome = case.outcome;
    let interval = text::interval_head(comparisons);
    let plain = |head: &str| html! { (head) };
    // A phone shows what is left of the drawing.
    let mut heads = ["metric", "effect", "outcome"].map(plain).to_vec();
    heads.push(scale.head());
    heads.push(plain(&interval));
    let predicted = comparisons.iter().any(|c| c.predicted.is_some());
    heads.extend(predicted.then(|| plain("predicted")));
    heads.extend(["baseline", "this arm", "margin"].map(plain));
    let (shown, folded): (Vec<&Comparison>, Vec<&Comparison>) =
        comparisons.iter().partition(|c| has_row(outcome, c));
    let rows = shown.into_iter().map(|c| {
        let metric = outcome.metric(&c.metric);
        let treated = outcome.summaries[c.arm].medians.get(&c.metric);
        let effect = c.effect.as_ref().ok();
        let mut cells = vec![
            html! { (effect.map_or("–".into(), |effect| text::change(effect.point))) },
            outcome_of(c),
            scale.draw(c),
            html! { (effect.map_or(String::new(), |effect| text::range(*effect))) },
        ];
        cells.extend(predicted.then(|| html! { (c.predicted.map_or("–".into(), text::range)) }));
        cells.extend([
            html! { (text::value(metric, outcome.untreated_median(c))) },
            html! { (text::value(metric, treated)) },
            html! { "±" (text::percent(c.margin)) },
        ]);
        let title = text::title(outcome, c);
        (html! { @if text::is_primary(outcome, c) { strong { (title) } } @else { (title) } }, cells)
    });
    let unmeasured =
        folded.into_iter().filter_map(|c| Some((text::title(outcome, c), c.effect.as_ref().err()?)));
    html! {
        (headed_table(&format!("Effects: {}", arm_name(case, arm)), heads, rows))
        (absent_by_reason(unmeasured))
        (notes(|page| {
            text::failures(page, outcome, arm, "failed");
            text::notes(page, outcome, comparisons, has_row);
            text::lazily_freed(page, outcome, arm);
        }))
    }
}

/// The other metrics have nothing to show but the reason.
fn has_row(outcome: &TrialResult, c: &Comparison) -> bool {
    c.effect.is_ok() || c.predicted.is_some() || text::is_primary(outcome, c)
}

/// The scale of all comparisons: relative changes from `-most` to `most`.
struct Scale {
    most: f64,
}

impl Scale {
    /// Smaller changes are rarely of interest; larger ones are cut.
    const LIMITS: (f64, f64) = (0.02, 1.0);

    /// That of the primary metrics: one wild metric would make the others invisible.
    fn of(outcome: &TrialResult) -> Scale {
        let all = outcome.comparisons.iter().chain(&outcome.baseline);
        let ends = all.filter(|c| text::is_primary(outcome, c)).flat_map(|c| {
            let intervals = c.effect.iter().copied().chain(c.predicted);
            intervals.flat_map(|i| [i.low, i.high]).chain([c.margin]).collect::<Vec<_>>()
        });
        let (least, widest) = Self::LIMITS;
        let most = ends.map(f64::abs).filter(|end| end.is_finite()).fold(least, f64::max);
        Scale { most: round_up(most.min(widest)) }
    }

    fn at(&self, change: f64) -> String {
        // Some room for labels and dots at the ends.
        percent(0.5 + 0.42 * (change / self.most).clamp(-1.0, 1.0))
    }

    fn width(&self, low: f64, high: f64) -> String {
        percent(0.42 * ((high / self.most).clamp(-1.0, 1.0) - (low / self.most).clamp(-1.0, 1.0)))
    }

    fn is_beyond(&self, c: &Comparison) -> bool {
        c.effect.iter().chain(&c.predicted).any(|i| i.low < -self.most || i.high > self.most)
    }

    fn head(&self) -> Markup {
        html! {
            "change"
            svg.bar.forest width="100%" height="14" aria-hidden="true" {
                @for (change, label) in [(-self.most, text::change(-self.most)), (0.0, "0".into()), (self.most, text::change(self.most))] {
                    text x=(self.at(change)) y="10" text-anchor="middle" { (label) }
                }
            }
        }
    }

    fn draw(&self, c: &Comparison) -> Markup {
        html! {
            svg.bar.forest width="100%" height="26" aria-hidden="true" {
                rect.margin x=(self.at(-c.margin)) y="0" width=(self.width(-c.margin, c.margin)) height="26" {}
                @for end in [-self.most, self.most] { line.grid x1=(self.at(end)) x2=(self.at(end)) y1="0" y2="26" {} }
                line.zero x1=(self.at(0.0)) x2=(self.at(0.0)) y1="0" y2="26" {}
                @if let Some(predicted) = &c.predicted { (self.interval("predicted", predicted, 20, "3")) }
                @if let Ok(effect) = &c.effect { (self.interval("effect", effect, 9, "4.5")) }
            }
        }
    }

    /// A dot in its interval. Arrows point to what is beyond the scale.
    fn interval(&self, class: &str, interval: &Interval, y: u32, radius: &str) -> Markup {
        let Interval { low, point, high } = *interval;
        html! {
            line.(class) x1=(self.at(low)) x2=(self.at(high)) y1=(y) y2=(y) {}
            @if point.abs() <= self.most { circle.(class) cx=(self.at(point)) cy=(y) r=(radius) {} }
            @if low < -self.most { (self.arrow(class, -self.most, y, "M2 -5L-7 0L2 5z")) }
            @if high > self.most { (self.arrow(class, self.most, y, "M-2 -5L7 0L-2 5z")) }
        }
    }

    fn arrow(&self, class: &str, end: f64, y: u32, path: &str) -> Markup {
        html! { svg x=(self.at(end)) y=(y) { path.(class) d=(path) {} } }
    }
}

fn mark(kind: &str) -> Markup {
    html! {
        svg.swatch width="24" height="12" aria-hidden="true" {
            @if kind == "margin" { rect.margin x="0" y="0" width="24" height="12" {} } @else {
                line.(kind) x1="2" x2="22" y1="6" y2="6" {}
                circle.(kind) cx="12" cy="6" r="4" {}
            }
        }
    }
}

/// The runs of an arm that count, with their blocks.
fn values(blocks: &[Block], arm: usize, metric: &str) -> Vec<(usize, f64)> {
    let runs = blocks.iter().flat_map(|block| block.runs.iter().map(move |run| (block.number, run)));
    runs.filter(|(_, run)| run.arm == arm && run.failure.is_none())
        .filter_map(|(number, run)| Some((number, *run.metrics.get(metric)?.as_ref().ok()?)))
        .collect()
}

fn runs(case: &Case) -> Section {
    let design = &case.outcome.design;
    let primary: Vec<&Metric> = design.metrics.iter().filter(|metric| metric.primary).collect();
    let in_a_block = (design.arms.len() * primary.len()).max(1);
    let every = case.blocks.len().div_ceil((RUNS / in_a_block).max(1)).max(1);
    let blocks: Vec<Block> = case.blocks.iter().step_by(every).cloned().collect();
    let body = html! {
        @if every > 1 { p.note { "One block of " (every) " is drawn." } }
        @for metric in primary { (runs_of(case, &blocks, metric)) }
    };
    Section { id: "runs", title: "Runs", aside: "one dot for each run; the line is the median".into(), body }
}

fn runs_of(case: &Case, blocks: &[Block], metric: &Metric) -> Markup {
    let arms: Vec<Vec<(usize, f64)>> =
        (0..case.outcome.design.arms.len()).map(|arm| values(blocks, arm, &metric.key)).collect();
    let all = || arms.iter().flatten().map(|(_, value)| *value);
    let (least, most) = (all().fold(f64::INFINITY, f64::min), all().fold(f64::NEG_INFINITY, f64::max));
    let at = |value: f64| {
        percent(0.03 + if most > least { 0.94 * (value - least) / (most - least) } else { 0.47 })
    };
    let shown = |value: f64| text::value(Some(metric), Some(&Ok(value)));
    let rows = arms.iter().enumerate().filter(|(_, runs)| !runs.is_empty()).map(|(arm, runs)| {
        let middle = median(&runs.iter().map(|(_, value)| *value).collect::<Vec<_>>());
        let ends = |pick: fn(f64, f64) -> f64| {
            runs.iter().map(|(_, value)| *value).reduce(pick).map_or(String::new(), shown)
        };
        let dots = html! {
            svg.bar.dots width="100%" height="24" aria-hidden="true" {
                // Neighbours in time are not on one line, so that dots with the same value can be told apart.
                @for (block, value) in runs { circle.run cx=(at(*value)) cy=(6 + block % 5 * 3) r="2.5" {} }
                @if let Some(middle) = middle { line.zero x1=(at(middle)) x2=(at(middle)) y1="0" y2="24" {} }
            }
        };
        let cells = vec![
            dots,
            html! { (middle.map_or(String::new(), shown)) },
            html! { (ends(f64::min)) },
            html! { (ends(f64::max)) },
            html! { (thousands(runs.len() as u64)) },
        ];
        (html! { (arm_name(case, arm)) }, cells)
    });
    let names: Vec<String> = (0..arms.len()).map(|arm| arm_name(case, arm)).collect();
    let heads: Vec<&str> = std::iter::once("block").chain(names.iter().map(String::as_str)).collect();
    let of_block = |number: usize| {
        arms.iter().map(move |runs| {
            let value = runs.iter().find(|(block, _)| *block == number).map(|(_, value)| *value);
            html! { (value.map_or("–".into(), shown)) }
        })
    };
    let each = blocks.iter().map(|block| (html! { (block.number + 1) }, of_block(block.number).collect()));
    html! {
        h3 { (metric.title) }
        (table(&format!("Runs: {}", metric.title), &["arm", "runs, from the least to the most", "median", "least", "most", "number"], rows))
        details {
            summary { "Table: every run, " (metric.title) }
            (table(&format!("Every run: {}", metric.title), &heads, each))
        }
    }
}

/// The percentiles of the response time of a server, by arm.
fn latencies(case: &Case) -> Section {
    let mut loads: BTreeMap<String, Vec<(f64, &Metric)>> = BTreeMap::new();
    for metric in &case.outcome.design.metrics {
        if let Some((share, load)) = percentile(&metric.key) {
            loads.entry(load.to_owned()).or_default().push((share, metric));
        }
    }
    loads.retain(|_, metrics| metrics.len() > 1);
    let body = html! { @for (load, metrics) in &loads { (percentiles(case, load, metrics)) } };
    let aside = "response times from the intended start, so that waiting for a slow server counts";
    Section { id: "latency", title: "Latency", aside: aside.into(), body }
}

/// `response_p999_b`: 0.001 of the requests take longer; the load is `_b`.
fn percentile(key: &str) -> Option<(f64, &str)> {
    let rest = key.strip_prefix("response_p")?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let below: f64 = format!("0.{}", &rest[..digits]).parse().ok()?;
    (below > 0.0 && below < 1.0).then_some((1.0 - below, &rest[digits..]))
}

fn percentiles(case: &Case, load: &str, metrics: &[(f64, &Metric)]) -> Markup {
    let scale = if metrics.iter().all(|(_, metric)| metric.unit == Unit::Ns) { 1e-9 } else { 1.0 };
    let middle = |arm: usize, metric: &Metric| {
        let values: Vec<f64> =
            values(case.blocks, arm, &metric.key).iter().map(|(_, value)| value * scale).collect();
        (median(&values), median_interval(&values).map(|interval| (interval.low, interval.high)))
    };
    let series: Vec<Series> = (0..case.outcome.design.arms.len())
        .map(|arm| {
            let (values, band) = metrics.iter().map(|(_, metric)| middle(arm, metric)).unzip();
            Series { band, ..Series::new(arm_name(case, arm), Colour::Line(arm), values) }
        })
        .collect();
    let unit = "the slowest request of so many; median of the runs, with its 95 % interval";
    slowest(
        &format!("Response time{load}"),
        unit,
        metrics.iter().map(|(share, _)| 1.0 / share).collect(),
        series,
    )
}

fn settings(case: &Case) -> Section {
    let Case { outcome, head, .. } = case;
    let settings = &outcome.design.settings;
    let text = |text: &str| html! { (elide_middle(text, COMMAND)) };
    let looks: Vec<String> = settings.looks.iter().map(ToString::to_string).collect();
    let mut rows = vec![
        ("command", html! { code { (elide_middle(&text::quoted_words(&head.command), COMMAND)) } }),
        ("allocwall", text(&head.tool_version)),
        ("started", text(&utc(head.started_unix_ms / 1000))),
        (
            "arms",
            text(&outcome.design.arms.iter().map(|arm| arm.name.clone()).collect::<Vec<_>>().join(", ")),
        ),
        ("planned blocks", text(&settings.planned.to_string())),
        ("interim looks after blocks", text(&looks.join(", "))),
        ("smallest change that matters", text(&text::percent(settings.effect))),
        ("random seed", text(&settings.seed.to_string())),
    ];
    for (name, rate) in &head.rates {
        rows.push((
            "load",
            html! { (elide_middle(name, NAME)) " " (format!("{rate:.0} requests a second")) },
        ));
    }
    rows.push(("machine", text(&head.machine.join(" · "))));
    if let Some(origin) = &head.origin {
        rows.push(("folder", text(&origin.folder)));
        rows.push(("program", text(&origin.program)));
        rows.extend(
            origin.environment.iter().map(|(name, value)| ("environment", text(&format!("{name}={value}")))),
        );
    }
    if let Some(options) = head.options.as_object() {
        let given = options
            .iter()
            .filter(|(_, value)| !value.is_null() && **value != json!([]) && **value != json!(false));
        rows.extend(given.map(|(name, value)| {
            ("option", html! { code { (elide_middle(&format!("{name}: {value}"), COMMAND)) } })
        }));
    }
    Section {
        id: "settings",
        title: "Settings and host",
        aside: "as saved before the first run".into(),
        body: facts(rows),
    }
}
