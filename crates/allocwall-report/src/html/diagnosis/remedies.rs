//! The remedies, in the order in which to try them, with predicted gains, and what a trial measured.

use super::{Case, Tried, short};
use crate::html::page::{Section, absent, class, command, facts, notes, outcome_of, percent, table};
use crate::text::remedies as text;
use crate::trial_text;
use allocwall_diagnose::remedies::trial;
use allocwall_diagnose::{Prescription, ShellLine};
use allocwall_model::catalogue::remedies::find;
use allocwall_model::shell::quoted;
use allocwall_model::units::Interval;
use allocwall_trial::{BASELINES, Comparison, TrialResult, predict};
use maud::{Markup, html};

pub(super) fn section(case: &Case) -> Section {
    let verdict = case.verdict;
    let body = html! {
        @match case.tried {
            Some(Ok(tried)) => (which(tried)),
            Some(Err(absence)) => (absent("Trial of the remedies", absence)),
            None => {}
        }
        @if !verdict.remedies.is_empty() {
            ol.remedies { @for remedy in &verdict.remedies { li { (one(case, remedy)) } } }
        }
        @if !verdict.next.is_empty() {
            h3 { "Next" }
            @for line in &verdict.next { (command(line)) }
        }
    };
    let aside = match case.tried {
        Some(Ok(_)) => "try them in this order; the gains in bold are predictions",
        _ => "try them in this order; gains are predictions, and a trial measures them",
    };
    Section { id: "remedies", title: "Remedies", aside: aside.into(), body }
}

/// Which trial it was.
fn which(Tried { outcome, failed, file }: &Tried) -> Markup {
    html! {
        p.facts { "Tried after this diagnosis: " (trial_text::facts(outcome).join(" · ")) }
        @if let Some((ended, ink)) = trial_text::ended(outcome) { p.facts.(class(ink)) { (ended) } }
        @if let Some(why) = failed { p.warning { "The trial stopped early: " (short(why, 2000)) } }
        @if let Some(file) = file {
            (command(&ShellLine::from(format!("allocwall report {}", quoted(file))).remark("the whole trial")))
        }
    }
}

fn one(case: &Case, remedy: &Prescription) -> Markup {
    let tried = case.tried.and_then(|tried| tried.as_ref().ok()).map(|tried| &tried.outcome);
    let compared = tried.map_or_else(Vec::new, |outcome| compared(outcome, &remedy.remedy));
    let cpu = tried.and_then(|outcome| compared.iter().find(|c| is_of_cpu(outcome, c)));
    let predicted = remedy.gain.or(cpu.and_then(|c| c.predicted).map(saved));
    let measured = cpu.and_then(|c| c.effect.as_ref().ok().copied()).map(saved);
    let entry = find(&remedy.remedy);
    let rows = [
        ("why", &remedy.basis),
        ("risk", &remedy.backfires),
        ("moves the cost to", &remedy.moves),
        ("undo", &remedy.undo),
    ];
    let rows = rows.into_iter().filter(|(_, text)| !text.is_empty());
    html! {
        h3 { (remedy.title) }
        p { strong { (text::gain(remedy, entry)) } " · " (text::restart(remedy.restart, entry)) }
        @if predicted.is_some() || measured.is_some() { (gains(predicted, measured)) }
        @if let Some(outcome) = tried { (measurements(outcome, &compared, remedy)) }
        @match remedy.is_command {
            true => { (command(&remedy.how)) }
            false => { p { (remedy.how.command) } }
        }
        @if let Some(line) = trial(case.rec, case.bill, remedy) { p.note { "Try it against the present state:" } (command(&line)) }
        details {
            summary { "Why, and what can go wrong" }
            (facts(rows.map(|(name, text)| (name, html! { (text) })).collect()))
        }
    }
}

/// The comparisons of a remedy that answer the prediction: the primary metrics, and those that it is about.
fn compared(outcome: &TrialResult, remedy: &str) -> Vec<Comparison> {
    let is_shown = |c: &&Comparison| {
        let of_remedy = c.arm >= BASELINES && outcome.design.arms[c.arm].name == remedy;
        of_remedy && (trial_text::is_primary(outcome, c) || is_of_cpu(outcome, c))
    };
    outcome.comparisons.iter().filter(is_shown).cloned().collect()
}

fn is_of_cpu(outcome: &TrialResult, c: &Comparison) -> bool {
    outcome.metric(&c.metric).is_some_and(predict::is_cpu_time)
}

/// A change of CPU time as a saving.
fn saved(change: Interval) -> Interval {
    Interval::new(-change.high, -change.point, -change.low)
}

fn measurements(outcome: &TrialResult, compared: &[Comparison], remedy: &Prescription) -> Markup {
    let interval = trial_text::interval_head(compared);
    let heads = ["metric", "measured", &interval, "outcome", "predicted"];
    let rows = compared.iter().map(|c| {
        let effect = c.effect.as_ref().ok();
        let cells = vec![
            html! { (effect.map_or("not measured".into(), |effect| trial_text::change(effect.point))) },
            html! { (effect.map_or(String::new(), |effect| trial_text::range(*effect))) },
            outcome_of(c),
            html! { (c.predicted.map_or("–".into(), trial_text::range)) },
        ];
        (html! { (trial_text::title(outcome, c)) }, cells)
    });
    let left_out = outcome.design.left_out.iter().find(|arm| arm.name == remedy.remedy);
    html! {
        @if let Some(first) = compared.first() {
            (table(&format!("Measured: {}", remedy.title), &heads, rows))
            (notes(|page| {
                trial_text::failures(page, outcome, first.arm, "failed");
                trial_text::notes(page, outcome, compared, |_, _| true);
            }))
        }
        @if let Some(arm) = left_out { p.note { "Not tried: " (arm.why) } }
    }
}

/// The predicted and the measured saving on a scale from −50 to 100 % of CPU.
fn gains(predicted: Option<Interval>, measured: Option<Interval>) -> Markup {
    const LEAST: f64 = -0.5;
    const ROW: usize = 20;
    let at = |share: f64| percent((share - LEAST) / (1.0 - LEAST));
    let rows: Vec<(&str, Interval)> = [("predicted", predicted), ("effect", measured)]
        .into_iter()
        .filter_map(|(kind, gain)| Some((kind, gain?)))
        .collect();
    let bottom = rows.len() * ROW;
    html! {
        svg.gain width="100%" height=(bottom + 14) aria-hidden="true" {
            @for (share, label) in [(-0.5, "−50 %"), (0.0, "0"), (0.5, "50 %"), (1.0, "100 % of CPU saved")] {
                line.grid x1=(at(share)) x2=(at(share)) y1="0" y2=(bottom) {}
                text x=(at(share)) y=(bottom + 12) text-anchor=(if share < 0.0 { "start" } else if share > 0.9 { "end" } else { "middle" }) { (label) }
            }
            @for (nth, (kind, gain)) in rows.iter().enumerate() {
                @let y = nth * ROW + ROW / 2;
                line.(kind) x1=(at(gain.low)) x2=(at(gain.high)) y1=(y) y2=(y) {}
                circle.(kind) cx=(at(gain.point)) cy=(y) r="5" {}
                @if measured.is_some() {
                    text x="0" y=(y + 4) { (if *kind == "effect" { "measured" } else { kind }) }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::html::verified;
    use crate::sketches;
    use allocwall_model::units::{Absence, Measured, Reason};
    use allocwall_trial::compare::compare;
    use allocwall_trial::testing::{design, metric, run};
    use allocwall_trial::{Block, Direction, LeftOut, Unit};

    /// A trial in which these remedies save this share of the CPU time.
    fn tried(remedies: &[(&str, f64)]) -> Tried {
        let names: Vec<&str> = remedies.iter().map(|(name, _)| *name).collect();
        let mut design = design(&names, 12);
        design.metrics.push(metric("cpu_s", "CPU time", Unit::Seconds, Direction::LowerIsBetter, false));
        design.arms[BASELINES].predicted.insert("cpu_s".into(), Interval::new(-0.58, -0.5, -0.41));
        design.left_out.push(LeftOut { name: "jemalloc".into(), why: "no such library".into() });
        let block = |number: usize| {
            let seconds = |arm: usize| match arm.checked_sub(BASELINES) {
                Some(nth) => 2.0 * (1.0 - remedies[nth].1),
                None => 2.0,
            };
            let noise = |arm: usize| 1.0 + 0.001 * ((number * 31 + arm * 17) % 23) as f64;
            let of_arm = |arm: usize| {
                let cpu = seconds(arm) * noise(arm);
                run(number, arm, arm, &[("wall", cpu * 1.1), ("cpu_s", cpu)])
            };
            Block { number, runs: (0..names.len() + BASELINES).map(of_arm).collect() }
        };
        let blocks: Vec<Block> = (0..12).map(block).collect();
        Tried { outcome: compare(&design, &blocks), failed: None, file: Some("/state/a b.trial".into()) }
    }

    fn remedies_of(trial: Option<&Measured<Tried>>) -> String {
        let case = sketches::first_touch();
        let page = verified(&case.rec, &case.bill, &case.verdict, None, trial);
        let from = page.find("<section id=\"remedies\"").expect("the section");
        page[from..from + page[from..].find("</section>").expect("its end")].to_owned()
    }

    #[test]
    fn what_a_trial_measured_is_beside_the_prediction() {
        let key = sketches::first_touch().verdict.remedies[0].remedy.clone();
        let page = remedies_of(Some(&Ok(tried(&[(&key, 0.35)]))));
        for part in [
            "allocwall report '/state/a b.trial'",
            "12 of 12 planned blocks",
            "class=\"predicted\"",
            "class=\"effect\"",
            "CPU time",
            "better",
            "-34.8 %",
            "-58.0 to -41.0 %",
            "Not tried: no such library",
        ] {
            assert!(page.contains(part), "{part}: {page}");
        }
        assert_eq!(page.matches("line class=\"effect\"").count(), 1, "one remedy was tried");
        // The twins: no trial, and one of another remedy.
        let without = remedies_of(None);
        let other = remedies_of(Some(&Ok(tried(&[("another", 0.35)]))));
        for page in [&without, &other] {
            assert!(page.contains("class=\"predicted\"") && !page.contains("class=\"effect\""), "{page}");
        }
        assert!(other.contains("Tried after") && !without.contains("Tried after"));
    }

    #[test]
    fn a_trial_that_failed_has_its_reason() {
        let why = "the command fails without any remedy: <exit status 3>";
        let page = remedies_of(Some(&Err(Absence::new(Reason::NotApplicable, why))));
        assert!(page.contains("Trial of the remedies: not measured: "), "{page}");
        assert!(page.contains("&lt;exit status 3&gt;") && !page.contains("class=\"effect\""), "{page}");
        let key = sketches::first_touch().verdict.remedies[0].remedy.clone();
        let early = Tried { failed: Some("every run fails".into()), ..tried(&[(&key, 0.35)]) };
        let page = remedies_of(Some(&Ok(early)));
        assert!(
            page.contains("stopped early: every run fails") && page.contains("class=\"effect\""),
            "{page}"
        );
    }
}
