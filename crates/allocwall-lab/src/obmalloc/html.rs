//! The programs on stock arenas and on huge pages as one HTML document: the outcomes first, then bars of the times, figures, and what was
//! counted.

use super::{
    BASELINES, COLUMNS, COUNTED, Counted, Program, STOCK, cell, changed, counted, notes, percent, range,
    total_of, total_of_stock,
};
use allocwall_model::units::{Interval, count, thousands};
use allocwall_report::html::chart::bar;
use allocwall_report::html::page::{Document, Section, hex, outcome_of, table};
use allocwall_trial::{Comparison, TrialResult};
use maud::{Markup, html};

const FILL: (u8, u8, u8) = (0x56, 0xb4, 0xe9);
const FILL_OF_STOCK: (u8, u8, u8) = (0x8a, 0xa0, 0xb8);

/// One HTML document, smaller than 2 MB. `facts`: the interpreter and the machine, one sentence each.
pub fn document(outcomes: &[(&Program, TrialResult)], facts: &[String]) -> String {
    let document = Document {
        title: "obmalloc · allocwall bench".into(),
        head: html! {
            header {
                h1 { "allocwall bench obmalloc" }
                p.facts { (facts.join(" · ")) }
                div.verdict.plain {
                    h2 { "Time of each program against stock" }
                    @for (program, outcome) in outcomes { p.facts { strong { (program.name) } ": " (sentence(outcome)) } }
                }
            }
        },
        sections: vec![
            section(
                "time",
                "Time",
                "build, use and teardown, relative to stock, with intervals",
                outcomes,
                times,
            ),
            section("figures", "Figures", "medians of the runs; times in ms", outcomes, figures),
            section(
                "counted",
                "Counted",
                "the median of stock, and the change of each arm",
                outcomes,
                counts,
            ),
        ],
    };
    document.print()
}

fn section(
    id: &'static str,
    title: &'static str,
    aside: &str,
    outcomes: &[(&Program, TrialResult)],
    of: fn(&Program, &TrialResult) -> Markup,
) -> Section {
    let body = html! { @for (program, outcome) in outcomes { (of(program, outcome)) } };
    Section { id, title, aside: aside.to_owned(), body }
}

fn arms(outcome: &TrialResult) -> impl Iterator<Item = (usize, &str)> {
    outcome.design.arms.iter().enumerate().skip(BASELINES).map(|(arm, info)| (arm, info.name.as_str()))
}

/// `thp better (−28.3 %), mimalloc unresolved`.
fn sentence(outcome: &TrialResult) -> String {
    let each = arms(outcome).map(|(arm, name)| match total_of(outcome, arm) {
        Some(Comparison { effect: Ok(effect), outcome, .. }) => {
            format!("{name} {} ({})", outcome.key(), percent(effect.point))
        }
        _ => format!("{name} not measured"),
    });
    each.collect::<Vec<_>>().join(", ")
}

/// A bar for each arm. That of stock has the interval of stock against itself.
fn times(program: &Program, outcome: &TrialResult) -> Markup {
    let of_stock = total_of_stock(outcome).and_then(|c| c.effect.as_ref().ok());
    let relative = |effect: Interval| Interval::new(1.0 + effect.low, 1.0 + effect.point, 1.0 + effect.high);
    let of_arms: Vec<(&str, Option<&Comparison>)> =
        arms(outcome).map(|(arm, name)| (name, total_of(outcome, arm))).collect();
    let effects = of_arms.iter().filter_map(|(_, c)| c.as_ref()?.effect.as_ref().ok());
    let most = effects.chain(of_stock).map(|effect| 1.0 + effect.high).fold(1.0, f64::max);
    let drawn = |point: f64, interval: Option<Interval>, fill| {
        let ends = interval.map(relative).map(|of| (of.low / most, of.high / most));
        bar(point / most, ends, &hex(fill))
    };
    let stock = vec![
        drawn(1.0, of_stock.copied(), FILL_OF_STOCK),
        html! {},
        html! { (of_stock.map_or("too few blocks".into(), |effect| range(*effect))) },
        html! { "itself" },
    ];
    let rows = of_arms.iter().map(|(name, compared)| {
        let cells = match compared {
            Some(compared @ Comparison { effect: Ok(effect), .. }) => vec![
                drawn(1.0 + effect.point, Some(*effect), FILL),
                html! { (percent(effect.point)) },
                html! { (range(*effect)) },
                outcome_of(compared),
            ],
            Some(compared @ Comparison { effect: Err(absence), .. }) => {
                vec![html! {}, html! { "-" }, html! { (absence.detail) }, outcome_of(compared)]
            }
            None => vec![html! {}, html! { "-" }, html! { "not compared" }, html! {}],
        };
        (html! { (name) }, cells)
    });
    let heads = ["arm", "time", "change", "interval", "outcome"];
    html! {
        h3 { (program.name) }
        p.aside { (program.about) "; " (count(outcome.blocks, "block")) }
        (table(&format!("Time: {}", program.name), &heads, [(html! { (STOCK) }, stock)].into_iter().chain(rows)))
        @for note in notes(outcome) { p.note { (note) } }
    }
}

fn figures(program: &Program, outcome: &TrialResult) -> Markup {
    let stock = [(STOCK, &outcome.baseline_medians)].into_iter();
    let all = stock.chain(arms(outcome).map(|(arm, name)| (name, &outcome.summaries[arm].medians)));
    let rows = all.map(|(name, medians)| {
        let cells = COLUMNS.iter().map(|(key, ..)| html! { (cell(medians, key)) });
        (html! { (name) }, cells.collect())
    });
    let heads: Vec<&str> = ["arm"].into_iter().chain(COLUMNS.iter().map(|(_, title, _)| *title)).collect();
    html! { h3 { (program.name) } (table(&format!("Figures: {}", program.name), &heads, rows)) }
}

fn counts(program: &Program, outcome: &TrialResult) -> Markup {
    let all = counted(outcome);
    if all.is_empty() {
        return html! {};
    }
    let rows = all.iter().map(|Counted { title, stock, changes }| {
        let changes = changes.iter().map(|change| html! { (changed(*change)) });
        let stock = html! { (thousands(stock.round() as u64)) };
        (html! { (title) }, [stock].into_iter().chain(changes).collect())
    });
    let heads: Vec<&str> = [COUNTED, STOCK].into_iter().chain(arms(outcome).map(|(_, name)| name)).collect();
    html! { h3 { (program.name) } (table(&format!("Counted: {}", program.name), &heads, rows)) }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{probe, trial};
    use super::*;

    #[test]
    fn a_page_has_a_bar_with_its_interval_for_each_arm() {
        let mut probe = probe();
        probe.programs[0].about = "<b>many</b>".into();
        let page = |counted: &[(&str, f64)]| {
            document(&[(&probe.programs[0], trial(counted))], &["CPython 3.11.7".to_owned()])
        };
        let found = page(&[("total_s", 0.7), ("faults", 0.1), ("cycles", 0.5)]);
        let verdict = found.find("thp better (−30.0 %)").unwrap_or_else(|| panic!("{found}"));
        assert!(verdict < found.find("<nav").unwrap());
        assert_eq!(found.matches("<svg class=\"bar whiskers\"").count(), 2);
        assert!(found.contains("class=\"whisker\"") && found.contains("<section id=\"counted\""));
        assert!(found.contains("&lt;b&gt;many") && !found.contains("<b>many"));
        // The near twin: nothing was timed or counted.
        let empty = page(&[("faults", 0.1)]);
        assert!(empty.contains("thp not measured") && empty.contains("no such event"), "{empty}");
        assert!(!empty.contains("<section id=\"counted\"") && !empty.contains("class=\"whisker\""));
    }
}
