//! The text report of a trial: the verdict, the baseline against itself, each remedy with its proof and figures, the
//! next commands.

use super::escape::terminal;
use super::layout::{columns, elide_end, left, right};
use super::text::{Ink, Page, Style, bytes};
use allocwall_diagnose::ShellLine;
use allocwall_model::shell::quoted;
use allocwall_model::units::{Interval, Measured, Reason};
use allocwall_trial::compare::decided;
use allocwall_trial::plan::MOST_BLOCKS;
use allocwall_trial::{
    ArmProof, ArmSummary, BASELINES, Comparison, LAZY_FREE, Metric, Outcome, ProofState, TrialResult, Unit,
};

/// Failures that are listed. The others are only counted.
const FAILURES_SHOWN: usize = 3;
/// Maximum columns of a reason in the verdict. The section of the remedy has the full text.
const WHY_SHOWN: usize = 70;

/// Why the effect is not the ratio of the two columns before it.
const MEDIANS: &str = "A and A′: the median of their runs; effect: of A′ against A within the same block";
/// The margin in the table of the baseline is the one by which the remedies are judged.
const MARGIN: &str = "remedies' margin";

/// The whole report, newline-terminated. No line is wider than `style.width` (or 40, if that is less), except for
/// long words of a command. `command` is the command of the trial; empty if it is unknown. `options` are the options
/// that say how to measure, which a command of another trial repeats. If they are unknown, no other trial is offered.
pub fn trial(outcome: &TrialResult, command: &[String], options: Option<&[String]>, style: Style) -> String {
    let mut page = Page::new(style);
    header(&mut page, outcome, command);
    verdict(&mut page, outcome);
    baseline(&mut page, outcome);
    for arm in BASELINES..outcome.design.arms.len() {
        remedy(&mut page, outcome, arm);
    }
    left_out(&mut page, outcome);
    next(&mut page, outcome, command, options);
    page.out
}

fn header(page: &mut Page, outcome: &TrialResult, command: &[String]) {
    let title = "allocwall trial";
    let shown = if command.is_empty() {
        "of an unknown command".to_string()
    } else {
        terminal(&quoted_words(command))
    };
    let room = page.width.saturating_sub(columns(title) + 2);
    let line = format!(
        "{}  {}",
        page.paint(Ink::Heading, title),
        page.paint(Ink::Heading, &elide_end(&shown, room))
    );
    page.line(&line);
    page.wrapped(2, &facts(outcome).join(" · "), Ink::Plain);
    if let Some((text, ink)) = ended(outcome) {
        page.wrapped(2, text, ink);
    }
}

/// What was tried, and how.
pub(crate) fn facts(outcome: &TrialResult) -> [String; 4] {
    let settings = &outcome.design.settings;
    let remedies = outcome.design.arms.len().saturating_sub(BASELINES);
    [
        match remedies {
            0 => "the baseline against itself".to_string(),
            1 => "1 remedy and the baseline twice".to_string(),
            n => format!("{n} remedies and the baseline twice"),
        },
        format!("{} of {} planned blocks", outcome.blocks, settings.planned),
        format!("changes of {} or more matter", percent(settings.effect)),
        format!("random seed {}", settings.seed),
    ]
}

/// Why the trial has fewer blocks than planned.
pub(crate) fn ended(outcome: &TrialResult) -> Option<(&'static str, Ink)> {
    let settings = &outcome.design.settings;
    let open = !settings.looks.contains(&outcome.blocks) || !decided(outcome);
    (outcome.blocks < settings.planned).then_some(match open {
        true => (
            "The trial ended before the last planned block. Outcomes are based on the completed blocks.",
            Ink::Warn,
        ),
        false => ("The trial ended early: all outcomes were decided at an interim look.", Ink::Plain),
    })
}

fn verdict(page: &mut Page, outcome: &TrialResult) {
    page.blank();
    let (sentences, ink) = sentences(outcome);
    page.hang("VERDICT", Ink::Heading, 9, &sentences.join(" "), ink);
    control(page, outcome);
    for warning in &outcome.warnings {
        page.wrapped(9, warning, Ink::Warn);
    }
}

/// The outcome of each arm on the primary metrics.
pub(crate) fn sentences(outcome: &TrialResult) -> (Vec<String>, Ink) {
    let outcomes = [
        (Outcome::Better, "Better"),
        (Outcome::Worse, "Worse"),
        (Outcome::Equivalent, "Equivalent"),
        (Outcome::Unresolved, "Unresolved"),
    ];
    let mut sentences = vec![];
    for (kind, heading) in outcomes {
        let arms: Vec<String> = outcome
            .comparisons
            .iter()
            .filter(|c| c.outcome == kind && is_primary(outcome, c))
            .map(|c| in_short(outcome, c))
            .collect();
        if !arms.is_empty() {
            sentences.push(format!("{heading}: {}.", arms.join("; ")));
        }
    }
    let costs: Vec<(usize, String)> =
        (BASELINES..outcome.design.arms.len()).filter_map(|arm| Some((arm, costs(outcome, arm)?))).collect();
    if !costs.is_empty() {
        let named = |(arm, text): &(usize, String)| format!("{}, {text}", outcome.design.arms[*arm].name);
        let all: Vec<String> = costs.iter().map(named).collect();
        sentences.push(format!("Worse in other metrics: {}.", all.join("; ")));
    }
    let of = |word| outcome.comparisons.iter().filter(move |c| c.outcome == word && is_primary(outcome, c));
    let is_free = |c: &Comparison| costs.iter().all(|(arm, _)| *arm != c.arm);
    let is_worse = of(Outcome::Worse).next().is_some() || !costs.is_empty();
    let ink = match (of(Outcome::Better).any(is_free), of(Outcome::Better).next().is_some(), is_worse) {
        (true, ..) => Ink::Good,
        (_, true, _) => Ink::Warn,
        (_, _, true) => Ink::Bad,
        _ => Ink::Plain,
    };
    if sentences.is_empty() {
        sentences.push("No comparison was made.".to_string());
    }
    let left_out: Vec<String> = outcome.design.left_out.iter().map(|arm| terminal(&arm.name)).collect();
    if !left_out.is_empty() {
        sentences.push(format!("Not tried: {}.", left_out.join(", ")));
    }
    (sentences, ink)
}

/// The other metrics of an arm that got worse: what the remedy costs. The first ones of each kind, because others of a kind are mostly
/// parts of them (user time, PSS). Counts of events cost nothing by themselves.
fn costs(outcome: &TrialResult, arm: usize) -> Option<String> {
    let kind = |unit| match unit {
        Unit::Seconds | Unit::Ns => Some((0, 2)),
        Unit::Bytes => Some((1, 1)),
        Unit::PerSecond | Unit::Ratio | Unit::None => Some((2, 1)),
        Unit::Count => None,
    };
    let mut named = [0; 3];
    let mut texts = vec![];
    let worse = |c: &&Comparison| c.arm == arm && c.outcome == Outcome::Worse && !is_primary(outcome, c);
    for c in outcome.comparisons.iter().filter(worse) {
        let of_kind = outcome.metric(&c.metric).and_then(|metric| kind(metric.unit));
        let (Some((kind, most)), Ok(effect)) = (of_kind, &c.effect) else { continue };
        if named[kind] < most {
            named[kind] += 1;
            texts.push(format!("{} {}", title(outcome, c), change(effect.point)));
        }
    }
    (!texts.is_empty()).then(|| texts.join(", "))
}

/// What the trial finds between two arms that are the same: how far its effects can be trusted. In a trial without remedies
/// this is the verdict.
pub(crate) fn control_text(outcome: &TrialResult) -> Option<String> {
    if outcome.design.arms.len() <= BASELINES {
        return None;
    }
    let primary = outcome.baseline.iter().filter(|c| is_primary(outcome, c));
    let shown: Vec<String> = primary.map(|c| control_of(outcome, c)).collect();
    (!shown.is_empty()).then(|| format!("A′ against A, the same command: {}.", shown.join("; ")))
}

fn control(page: &mut Page, outcome: &TrialResult) {
    if let Some(text) = control_text(outcome) {
        page.hang("CONTROL", Ink::Heading, 9, &text, Ink::Plain);
    }
}

fn control_of(outcome: &TrialResult, c: &Comparison) -> String {
    let title = title(outcome, c);
    match (&c.effect, outcome.control_by_medians(&c.metric)) {
        (Ok(effect), _) => {
            format!("{title} {} ({}, {})", change(effect.point), range(*effect), c.outcome.key())
        }
        (Err(_), Some(effect)) => format!("{title} {} by the medians, without an interval", change(effect)),
        (Err(absence), None) => format!("{title} not measured ({})", elide_end(&absence.detail, WHY_SHOWN)),
    }
}

pub(crate) fn left_out(page: &mut Page, outcome: &TrialResult) {
    if outcome.design.left_out.is_empty() {
        return;
    }
    page.section("NOT TRIED", "asked for; the trial went on without them");
    for arm in &outcome.design.left_out {
        page.wrapped(2, &terminal(&arm.why), Ink::Warn);
    }
}

fn in_short(outcome: &TrialResult, c: &Comparison) -> String {
    let name = if outcome.design.arms.len() > BASELINES {
        format!("{}, ", outcome.design.arms[c.arm].name)
    } else {
        "the baseline against itself, ".to_string()
    };
    // If a figure could not be judged, the reason is shown instead of it, except for too few blocks.
    let figure = match (&c.effect, &c.why) {
        (_, Some(why)) if why.reason != Reason::TooLittle => {
            format!(" ({})", elide_end(&why.detail, WHY_SHOWN))
        }
        (Ok(effect), _) if c.outcome == Outcome::Equivalent => {
            format!(" {} (within ±{})", change(effect.point), percent(c.margin))
        }
        (Ok(effect), _) => format!(" {}", change(effect.point)),
        (Err(_), _) => String::new(),
    };
    let warning = c.warning.as_ref().map_or(String::new(), |w| format!(" ({})", elide_end(w, WHY_SHOWN)));
    format!("{name}{}{figure}{warning}", title(outcome, c))
}

fn baseline(page: &mut Page, outcome: &TrialResult) {
    page.section("BASELINE", "run twice in each block, as A and A′: their difference is noise");
    page.wrapped(2, MEDIANS, Ink::Faint);
    for (arm, name) in [(0, "A"), (1, "A′")] {
        failures(page, outcome, arm, &format!("{name} failed"));
    }
    let margins: Vec<String> = outcome.baseline.iter().map(|c| margin(outcome, c)).collect();
    let name = if outcome.design.arms.len() > BASELINES { MARGIN } else { "margin" };
    let table = Table::fit(page.width, true);
    table.heads(page, ["A", "A′", "effect", "outcome", name], &outcome.baseline);
    for (c, margin) in outcome.baseline.iter().zip(&margins) {
        if has_own_row(outcome, c) {
            table.row(page, outcome, c, Some((name, margin)));
        }
    }
    rest(page, outcome, &outcome.baseline, has_own_row);
    notes(page, outcome, &outcome.baseline, has_own_row);
    lazily_freed(page, outcome, 0);
}

/// Whether a comparison has its own row: primary metrics, and metrics that changed. The others share a line.
fn has_own_row(outcome: &TrialResult, c: &Comparison) -> bool {
    is_primary(outcome, c) || matches!(c.outcome, Outcome::Better | Outcome::Worse)
}

/// The metrics without a row, by outcome. Metrics without an effect are left out.
pub(crate) fn rest(
    page: &mut Page,
    outcome: &TrialResult,
    comparisons: &[Comparison],
    has_row: impl Fn(&TrialResult, &Comparison) -> bool,
) {
    for (word, lead) in [(Outcome::Equivalent, "equivalent"), (Outcome::Unresolved, "unresolved")] {
        let titles: Vec<String> = comparisons
            .iter()
            .filter(|c| !has_row(outcome, c) && c.outcome == word && c.effect.is_ok())
            .map(|c| match &c.effect {
                Ok(effect) => format!("{} {}", title(outcome, c), change(effect.point)),
                Err(_) => title(outcome, c),
            })
            .collect();
        if !titles.is_empty() {
            page.hang(&format!("  {lead}"), Ink::Faint, 14, &titles.join(", "), Ink::Faint);
        }
    }
}

/// The margin that the remedies' comparisons used for the metric of this A/A comparison.
pub(crate) fn margin(outcome: &TrialResult, baseline: &Comparison) -> String {
    let of_remedies = outcome.comparisons.iter().filter(|c| c.metric == baseline.metric).map(|c| c.margin);
    format!("±{}", percent(of_remedies.fold(baseline.margin, f64::max)))
}

fn remedy(page: &mut Page, outcome: &TrialResult, arm: usize) {
    page.section("REMEDY", &terminal(&outcome.design.arms[arm].name));
    let summary = &outcome.summaries[arm];
    for (word, ink, text) in proofs(summary) {
        page.hang(&format!("  {word}"), ink, 12, &text, Ink::Plain);
    }
    failures(page, outcome, arm, "failed");
    let comparisons: Vec<Comparison> = outcome.comparisons.iter().filter(|c| c.arm == arm).cloned().collect();
    let predicted: Vec<Option<String>> = comparisons.iter().map(|c| c.predicted.map(range)).collect();
    let has_row = |outcome: &TrialResult, c: &Comparison| has_own_row(outcome, c) || c.predicted.is_some();
    let table = Table::fit(page.width, predicted.iter().any(Option::is_some));
    table.heads(page, ["baseline", "remedy", "effect", "outcome", "predicted"], &comparisons);
    for (c, predicted) in comparisons.iter().zip(&predicted) {
        if !has_row(outcome, c) {
            continue;
        }
        table.row(page, outcome, c, predicted.as_deref().map(|text| ("predicted", text)));
    }
    rest(page, outcome, &comparisons, has_row);
    notes(page, outcome, &comparisons, has_row);
    lazily_freed(page, outcome, arm);
}

/// Where there is any: memory that the figures of resident memory contain, but that the program does not hold any more.
pub(crate) fn lazily_freed(page: &mut Page, outcome: &TrialResult, arm: usize) {
    for metric in outcome.design.metrics.iter().filter(|metric| metric.key.ends_with(LAZY_FREE)) {
        let median = outcome.summaries[arm].medians.get(&metric.key);
        if matches!(median, Some(Ok(bytes)) if *bytes > 0.0) {
            let amount = value(Some(metric), median);
            let title = &metric.title;
            let text = format!("{title} {amount}: freed with MADV_FREE, resident until the kernel takes it");
            page.wrapped(4, &text, Ink::Faint);
        }
    }
}

/// What each proof of an arm came to.
pub(crate) fn proofs(summary: &ArmSummary) -> Vec<(&'static str, Ink, String)> {
    let word = |proof: &ArmProof| match (proof.state, proof.needed) {
        (ProofState::Proven, _) => ("proved", Ink::Good),
        (ProofState::Unknown, true) => ("unproved", Ink::Warn),
        (ProofState::Unknown, false) => ("not seen", Ink::Faint),
        (ProofState::Refuted, _) => ("refuted", Ink::Bad),
    };
    let proofs = summary.proof.iter().map(|proof| {
        let (word, ink) = word(proof);
        (word, ink, proof_text(proof))
    });
    match summary.proof.is_empty() {
        true => vec![("unproved", Ink::Warn, "no proof that the remedy took effect".to_owned())],
        false => proofs.collect(),
    }
}

fn proof_text(proof: &ArmProof) -> String {
    let detail = if proof.detail.is_empty() { String::new() } else { format!(": {}", proof.detail) };
    let seen_in = match (proof.needed, &proof.absent) {
        (true, _) => format!(" ({} of {} runs)", proof.proven, proof.runs),
        (false, None) => " (in the run that is not counted)".to_owned(),
        (false, Some(absence)) => absence.advice().map_or_else(String::new, |advice| format!("; {advice}")),
    };
    format!("{}{detail}{seen_in}", proof.what)
}

pub(crate) fn failures(page: &mut Page, outcome: &TrialResult, arm: usize, lead: &str) {
    let summary = &outcome.summaries[arm];
    if summary.failures.is_empty() {
        return;
    }
    let mut listed: Vec<String> = summary
        .failures
        .iter()
        .take(FAILURES_SHOWN)
        .map(|f| format!("{} (block {})", f.text, f.block))
        .collect();
    if summary.failures.len() > FAILURES_SHOWN {
        listed.push(format!("and {} more", summary.failures.len() - FAILURES_SHOWN));
    }
    let text = format!("{} of {} runs: {}", summary.failures.len(), summary.runs, listed.join("; "));
    page.hang(&format!("  {lead}"), Ink::Bad, 12, &text, Ink::Plain);
}

/// Warnings, and why an outcome is unresolved. Each reason is printed once, with its metrics.
pub(crate) fn notes(
    page: &mut Page,
    outcome: &TrialResult,
    comparisons: &[Comparison],
    has_row: impl Fn(&TrialResult, &Comparison) -> bool,
) {
    let mut notes: Vec<(String, Vec<String>)> = vec![];
    // The reasons of metrics without a row are in the JSON document.
    for c in comparisons.iter().filter(|c| has_row(outcome, c)) {
        let said = c.why.iter().map(|why| why.detail.clone()).chain(c.warning.clone());
        for text in said {
            match notes.iter_mut().find(|(known, _)| *known == text) {
                Some((_, titles)) => titles.push(title(outcome, c)),
                None => notes.push((text, vec![title(outcome, c)])),
            }
        }
    }
    for (text, titles) in notes {
        let rows = comparisons.iter().filter(|c| has_row(outcome, c)).count();
        let text = if titles.len() == rows { text } else { format!("{}: {text}", titles.join(", ")) };
        page.wrapped(4, &text, Ink::Warn);
    }
}

/// Columns of figures. If the page is too narrow, the last column moves below its row, then the medians are left out,
/// then the interval.
struct Table {
    title: usize,
    extra: bool,
    medians: bool,
    interval: bool,
}

impl Table {
    const TITLE: usize = 20;
    const MEDIAN: usize = 11;
    const EFFECT: usize = 9;
    const INTERVAL: usize = 18;
    const WORD: usize = 12;
    const EXTRA: usize = 17;

    fn fit(width: usize, extra: bool) -> Self {
        let least = 2 + Self::TITLE + Self::EFFECT + Self::WORD;
        let interval = width >= least + Self::INTERVAL;
        let medians = width >= least + Self::INTERVAL + 2 * Self::MEDIAN;
        let all = least + Self::INTERVAL + 2 * Self::MEDIAN + Self::EXTRA;
        Table {
            title: Self::TITLE.min(width.saturating_sub(2 + Self::EFFECT + Self::WORD)),
            extra: extra && width >= all,
            medians,
            interval,
        }
    }

    fn heads(&self, page: &mut Page, heads: [&str; 5], comparisons: &[Comparison]) {
        let [untreated, treated, effect, word, extra] = heads;
        let confidence = interval_head(comparisons);
        let mut line = self.figures("", untreated, treated, effect, &confidence);
        line.push_str(&format!("  {}", left(word, Self::WORD - 2)));
        if self.extra {
            line.push_str(&right(extra, Self::EXTRA));
        }
        let line = page.paint(Ink::Faint, line.trim_end());
        page.line(&line);
    }

    fn figures(&self, title: &str, untreated: &str, treated: &str, effect: &str, interval: &str) -> String {
        let mut line = format!("  {}", left(&elide_end(title, self.title), self.title));
        // A cell is never full, so that two don't touch.
        let mut cell = |text: &str, width: usize| line.push_str(&right(&elide_end(text, width - 1), width));
        if self.medians {
            cell(untreated, Self::MEDIAN);
            cell(treated, Self::MEDIAN);
        }
        cell(effect, Self::EFFECT);
        if self.interval {
            cell(interval, Self::INTERVAL);
        }
        line
    }

    fn row(&self, page: &mut Page, outcome: &TrialResult, c: &Comparison, extra: Option<(&str, &str)>) {
        let metric = outcome.metric(&c.metric);
        let treated = outcome.summaries[c.arm].medians.get(&c.metric);
        let (effect, interval) = match &c.effect {
            Ok(effect) => (change(effect.point), range(*effect)),
            Err(_) => (String::new(), String::new()),
        };
        let mut line = self.figures(
            &terminal(&title(outcome, c)),
            &value(metric, outcome.untreated_median(c)),
            &value(metric, treated),
            &effect,
            &interval,
        );
        let ink = match c.outcome {
            Outcome::Better => Ink::Good,
            Outcome::Worse => Ink::Bad,
            Outcome::Equivalent => Ink::Plain,
            Outcome::Unresolved => Ink::Warn,
        };
        let word = left(c.outcome.key(), Self::WORD - 2);
        line.push_str(&format!("  {}", page.paint(ink, &word)));
        match extra {
            Some((_, text)) if self.extra => line.push_str(&right(text, Self::EXTRA)),
            Some((name, text)) => {
                page.line(&line);
                return page.wrapped(4, &format!("{name} {text}"), Ink::Faint);
            }
            None => {}
        }
        page.line(&line);
    }
}

fn next(page: &mut Page, outcome: &TrialResult, command: &[String], options: Option<&[String]>) {
    let steps = steps(outcome, command, options);
    if steps.is_empty() {
        return;
    }
    page.blank();
    for (nth, step) in steps.iter().enumerate() {
        page.command_after(if nth == 0 { "NEXT" } else { "" }, 6, step);
    }
}

/// The next commands.
pub(crate) fn steps(outcome: &TrialResult, command: &[String], options: Option<&[String]>) -> Vec<ShellLine> {
    let tail = if command.is_empty() { "CMD".to_string() } else { quoted_words(command) };
    let mut steps = vec![];
    if let Some(arm) = winner(outcome) {
        let name = quoted(&outcome.design.arms[arm].name);
        let run = ShellLine::from(format!("allocwall run --with {name} -- {tail}"));
        steps.push(match passed_over(outcome, arm) {
            Some(why) => run.remark(why),
            None => run,
        });
    }
    let open = outcome.comparisons.iter().filter(|c| is_primary(outcome, c));
    let needed = open.filter_map(|c| Some((c.arm, c.blocks_needed.filter(|n| *n <= MOST_BLOCKS)?)));
    let needed: Vec<(usize, usize)> = needed.collect();
    if let (Some(options), Some(blocks)) = (options, needed.iter().map(|(_, blocks)| *blocks).max()) {
        let mut arms: Vec<usize> = needed.iter().map(|(arm, _)| *arm).collect();
        arms.dedup();
        let with: Vec<String> = arms
            .iter()
            .map(|&arm| {
                if arm < BASELINES {
                    "--with none".to_string()
                } else {
                    format!("--with {}", quoted(&outcome.design.arms[arm].name))
                }
            })
            .collect();
        let mut words = with;
        words.push(format!("--blocks {blocks}"));
        words.extend(options.iter().map(|word| quoted(word)));
        steps.push(ShellLine::from(format!("allocwall trial {} -- {tail}", words.join(" "))));
    }
    steps
}

fn primary(outcome: &TrialResult, arm: usize) -> impl Iterator<Item = &Comparison> {
    outcome.comparisons.iter().filter(move |c| c.arm == arm && is_primary(outcome, c))
}

/// The largest improvement of a primary metric; 0 if there is none.
fn gain(outcome: &TrialResult, arm: usize) -> f64 {
    let better = primary(outcome, arm).filter(|c| c.outcome == Outcome::Better);
    better.filter_map(|c| Some(c.effect.as_ref().ok()?.point.ln_1p().abs())).fold(0.0, f64::max)
}

fn gains_most(outcome: &TrialResult, is_meant: impl Fn(usize) -> bool) -> Option<usize> {
    (BASELINES..outcome.design.arms.len())
        .filter(|&arm| gain(outcome, arm) > 0.0 && is_meant(arm))
        .max_by(|&a, &b| gain(outcome, a).total_cmp(&gain(outcome, b)))
}

/// What speaks against an arm: a primary metric that is worse, or has a warning.
fn drawback(outcome: &TrialResult, arm: usize) -> Option<&Comparison> {
    primary(outcome, arm).find(|c| c.outcome == Outcome::Worse || c.warning.is_some())
}

/// The remedy that is better on a primary metric and has no drawback. Among several, the one that gains most.
fn winner(outcome: &TrialResult) -> Option<usize> {
    gains_most(outcome, |arm| drawback(outcome, arm).is_none())
}

/// Why not the arm that gains most, if that is another one.
fn passed_over(outcome: &TrialResult, winner: usize) -> Option<String> {
    let arm = gains_most(outcome, |arm| gain(outcome, arm) > gain(outcome, winner))?;
    let drawback = drawback(outcome, arm)?;
    let why = if drawback.outcome == Outcome::Worse { "is worse" } else { "has a warning" };
    Some(format!("{} gains more, but its {} {why}", outcome.design.arms[arm].name, title(outcome, drawback)))
}

pub(crate) fn quoted_words(command: &[String]) -> String {
    let words: Vec<String> = command.iter().map(|word| quoted(word)).collect();
    words.join(" ")
}

pub(crate) fn is_primary(outcome: &TrialResult, c: &Comparison) -> bool {
    outcome.metric(&c.metric).is_some_and(|m| m.primary)
}

pub(crate) fn title(outcome: &TrialResult, c: &Comparison) -> String {
    outcome.metric(&c.metric).map_or(&c.metric, |m| &m.title).clone()
}

/// "95" for a level of 5 %. Smaller levels have decimals.
pub(crate) fn confidence(level: f64) -> String {
    let percent = (1.0 - level) * 100.0;
    let decimals = match level {
        0.01.. => 0,
        0.001.. => 1,
        _ => 2,
    };
    // Rounded down: 95.6 % is shown as 95 %.
    let scale = 10f64.powi(decimals);
    format!("{:.*}", decimals as usize, (percent * scale + 1e-6).floor() / scale)
}

/// The head of the column of intervals. Outcomes of different interim looks have different levels; the largest level holds for all of
/// them. A comparison without an interval may have a level that no plan has.
pub(crate) fn interval_head(comparisons: &[Comparison]) -> String {
    let levels = comparisons.iter().filter(|c| c.effect.is_ok()).map(|c| c.level);
    match levels.reduce(f64::max) {
        Some(level) => format!("{} % interval", confidence(level)),
        None => "interval".to_owned(),
    }
}

pub(crate) fn percent(fraction: f64) -> String {
    format!("{:.1} %", fraction * 100.0)
}

/// A relative change with its sign. From tenfold on it is a factor.
pub(crate) fn change(effect: f64) -> String {
    match effect {
        e if e >= 9.0 => format!("×{}", factor(e)),
        _ => format!("{} %", signed_percentage(effect)),
    }
}

fn signed_percentage(effect: f64) -> String {
    let tenths = (effect * 1000.0).round() / 10.0;
    if tenths.abs() >= 100.0 {
        return format!("{tenths:+.0}");
    }
    if tenths == 0.0 { "0.0".to_string() } else { format!("{tenths:+.1}") }
}

fn factor(effect: f64) -> String {
    match effect + 1.0 {
        f if f < 1e5 => format!("{f:.0}"),
        f => format!("{f:.0e}"),
    }
}

pub(crate) fn range(effect: Interval) -> String {
    if effect.high >= 9.0 {
        return format!("{} to {}", change(effect.low), change(effect.high));
    }
    format!("{} to {}", signed_percentage(effect.low), change(effect.high))
}

pub(crate) fn value(metric: Option<&Metric>, value: Option<&Measured<f64>>) -> String {
    let Some(Ok(value)) = value else {
        return "absent".to_string();
    };
    let of_time = |seconds: f64| match seconds.abs() {
        s if s >= 1.0 => format!("{} s", digits(seconds)),
        s if s >= 1e-3 => format!("{} ms", digits(seconds * 1e3)),
        s if s >= 1e-6 => format!("{} µs", digits(seconds * 1e6)),
        _ => format!("{} ns", digits(seconds * 1e9)),
    };
    match metric.map_or(Unit::None, |m| m.unit) {
        Unit::Seconds => of_time(*value),
        Unit::Ns => of_time(*value * 1e-9),
        Unit::Bytes if *value >= 0.0 => bytes(*value as u64),
        Unit::Ratio => format!("{} %", digits(*value * 100.0)),
        Unit::PerSecond => format!("{}/s", large(*value)),
        Unit::Bytes | Unit::Count | Unit::None => large(*value),
    }
}

fn large(value: f64) -> String {
    const PREFIXES: [(f64, &str); 4] = [(1e12, " T"), (1e9, " G"), (1e6, " M"), (1e4, " k")];
    match PREFIXES.iter().find(|(least, _)| value.abs() >= *least) {
        // From 10,000 on, in thousands.
        Some((1e4, prefix)) => format!("{}{prefix}", digits(value / 1e3)),
        Some((scale, prefix)) if value.abs() < 1e16 => format!("{}{prefix}", digits(value / scale)),
        Some(_) => format!("{value:.2e}"),
        None if value.fract() == 0.0 => format!("{value:.0}"),
        None => digits(value),
    }
}

/// Four significant digits, or all digits before the point.
fn digits(value: f64) -> String {
    match value.abs() {
        v if v >= 1e7 => format!("{value:.2e}"),
        v if v >= 1000.0 => format!("{value:.0}"),
        v if v >= 100.0 => format!("{value:.1}"),
        v if v >= 10.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::trial_sketches as sketches;
    use super::*;
    use allocwall_model::units::Absence;
    use allocwall_trial::LeftOut;
    use proptest::prelude::*;

    fn command() -> Vec<String> {
        ["python3", "-m", "service", "a b"].map(String::from).to_vec()
    }

    fn printed(outcome: &TrialResult, width: usize) -> String {
        trial(outcome, &command(), Some(&[]), Style { color: false, width })
    }

    #[test]
    fn one_better() {
        insta::assert_snapshot!(printed(&sketches::one_better(), 100));
    }

    #[test]
    fn mixed() {
        insta::assert_snapshot!(printed(&sketches::mixed(), 100));
    }

    #[test]
    fn mixed_narrow() {
        insta::assert_snapshot!(printed(&sketches::mixed(), 60));
    }

    #[test]
    fn an_unknown_proof_is_listed_with_its_reason() {
        let mut outcome = sketches::interrupted();
        let proof = &mut outcome.summaries[2].proof;
        let share = |state, detail: &str, absent| ArmProof {
            what: "calls that it serves".to_string(),
            state,
            proven: 0,
            runs: 4,
            detail: detail.to_string(),
            needed: false,
            absent,
        };
        let why = Absence::new(Reason::NotPermitted, "no probes").mend("run as root");
        proof.push(share(ProofState::Unknown, "no probes", Some(why)));
        proof.push(share(ProofState::Proven, "99.9 % of 48,211 in 0.1 s", None));
        let page = printed(&outcome, 100);
        for line in [
            "  not seen  calls that it serves: no probes; run as root\n",
            "  proved    calls that it serves: 99.9 % of 48,211 in 0.1 s (in the run that is not counted)\n",
        ] {
            assert!(page.contains(line), "{page}");
        }
    }

    #[test]
    fn the_verdict_names_what_a_remedy_costs() {
        let verdict = |shift: f64| {
            let mut outcome = sketches::one_better();
            // The first remedy is equivalent on its primary metric.
            for c in outcome.comparisons.iter_mut().filter(|c| c.arm == 2) {
                match c.metric.as_str() {
                    "wall" => (c.effect, c.outcome) = (Ok(Interval::exact(0.0)), Outcome::Equivalent),
                    "rss" => {
                        c.effect = Ok(Interval::new(shift - 0.01, shift, shift + 0.01));
                        c.outcome = if shift > 0.0 { Outcome::Worse } else { Outcome::Better };
                    }
                    _ => {}
                }
            }
            let (sentences, ink) = sentences(&outcome);
            (sentences.join(" "), ink)
        };
        let (text, ink) = verdict(6.083);
        assert!(text.contains("Equivalent: jemalloc+thp, wall time 0.0 %"), "{text}");
        assert!(text.contains("Worse in other metrics: jemalloc+thp, peak resident +608 %."), "{text}");
        assert!(matches!(ink, Ink::Bad));
        // The twin saves memory.
        let (text, ink) = verdict(-0.3);
        assert!(!text.contains("Worse in other") && matches!(ink, Ink::Plain), "{text}");
    }

    #[test]
    fn cells_never_touch() {
        let mut outcome = sketches::one_better();
        for c in &mut outcome.comparisons {
            c.effect = Ok(Interval::new(5.848, 6.083, 6.321));
        }
        let page = printed(&outcome, 100);
        assert!(page.contains(" +608 %    +585 to +632 %  "), "{page}");
        // The widest that there are.
        outcome.comparisons.iter_mut().for_each(|c| c.effect = Ok(Interval::new(-0.999, 8.9, 99_998.0)));
        assert!(printed(&outcome, 100).contains(" +890 % -99.9 % to ×99999  "), "{}", printed(&outcome, 100));
    }

    #[test]
    fn an_interval_has_a_level_in_its_head_only_if_there_is_one() {
        let mut comparisons = sketches::one_better().comparisons;
        assert!(interval_head(&comparisons).ends_with(" % interval"));
        let why = Absence::new(Reason::TooLittle, "1 block is usable");
        for c in &mut comparisons {
            (c.effect, c.level) = (Err(why.clone()), 1e-12);
        }
        assert_eq!(interval_head(&comparisons), "interval");
    }

    #[test]
    fn the_control_is_always_shown() {
        let line = |outcome: &TrialResult| {
            let page = printed(outcome, 100);
            let at = page.find("\nCONTROL")?;
            Some(page[at..].trim_start().lines().next().unwrap_or_default().to_string())
        };
        let decided = line(&sketches::one_better()).unwrap_or_default();
        assert!(decided.starts_with("CONTROL  A′ against A, the same command: "), "{decided}");
        assert!(decided.contains(" % ("), "{decided}");
        // Too few blocks for an interval.
        let mut short = sketches::one_better();
        for c in &mut short.baseline {
            c.effect = Err(Absence::new(Reason::TooLittle, "1 block is usable"));
        }
        let few = line(&short).unwrap_or_default();
        assert!(few.contains("% by the medians, without an interval"), "{few}");
        // No run of A succeeded.
        short.summaries[0]
            .medians
            .values_mut()
            .for_each(|v| *v = Err(Absence::new(Reason::TooLittle, "no run")));
        assert!(line(&short).unwrap_or_default().contains("not measured (1 block is usable)"));
        // The twin: without remedies the verdict is the control.
        assert_eq!(line(&sketches::baseline_alone()), None);
    }

    #[test]
    fn an_arm_that_was_left_out_is_named_with_its_reason() {
        let mut outcome = sketches::one_better();
        assert!(!printed(&outcome, 100).to_lowercase().contains("not tried"));
        let why = "tcmalloc: this machine has no such library";
        outcome.design.left_out = vec![LeftOut { name: "tcmalloc".to_string(), why: why.to_string() }];
        let page = printed(&outcome, 200);
        assert!(page.contains(" Not tried: tcmalloc.") && page.contains(&format!("\n  {why}\n")), "{page}");
    }

    #[test]
    fn lazily_freed_memory_is_printed_where_there_is_any() {
        let page = |bytes: f64| {
            let mut outcome = sketches::one_better();
            let key = format!("final{LAZY_FREE}");
            outcome.design.metrics.push(Metric {
                key: key.clone(),
                title: "final LazyFree".to_string(),
                unit: Unit::Bytes,
                direction: allocwall_trial::Direction::LowerIsBetter,
                primary: false,
            });
            outcome.summaries[0].medians.insert(key.clone(), Ok(0.0));
            outcome.summaries[2].medians.insert(key, Ok(bytes));
            printed(&outcome, 100)
        };
        let some = page(3e7);
        assert_eq!(some.matches("final LazyFree 28.6 MiB: freed with MADV_FREE").count(), 1, "{some}");
        assert!(!page(0.0).contains("LazyFree"));
    }

    #[test]
    fn interrupted() {
        insta::assert_snapshot!(printed(&sketches::interrupted(), 100));
    }

    #[test]
    fn baseline_alone() {
        insta::assert_snapshot!(printed(&sketches::baseline_alone(), 100));
    }

    #[test]
    fn the_next_command_runs_only_a_better_remedy() {
        let page = printed(&sketches::one_better(), 100);
        assert!(page.contains("$ allocwall run --with jemalloc+thp -- python3 -m service 'a b'"), "{page}");
        for outcome in [sketches::mixed(), sketches::interrupted(), sketches::baseline_alone()] {
            assert!(!printed(&outcome, 100).contains("allocwall run"));
        }
    }

    #[test]
    fn the_next_command_says_why_it_is_not_the_remedy_that_gains_most() {
        let mut outcome = sketches::one_better();
        let of = |arm| move |c: &&mut Comparison| c.arm == arm && c.metric == "wall";
        let gains = |c: &mut Comparison| {
            c.outcome = Outcome::Better;
            c.effect = Ok(Interval::new(-0.6, -0.5, -0.4));
        };
        outcome.comparisons.iter_mut().filter(of(3)).for_each(gains);
        assert!(printed(&outcome, 100).contains("allocwall run --with glibc:arena_max=2"));
        outcome.comparisons.iter_mut().filter(of(3)).for_each(|c| c.warning = Some("w".into()));
        let page = printed(&outcome, 200);
        assert!(page.contains("allocwall run --with jemalloc+thp"), "{page}");
        assert!(page.contains("# glibc:arena_max=2 gains more, but its wall time has a warning"), "{page}");
        // The near twin gains less.
        outcome
            .comparisons
            .iter_mut()
            .filter(of(3))
            .for_each(|c| c.effect = Ok(Interval::new(-0.03, -0.02, -0.01)));
        assert!(!printed(&outcome, 200).contains("gains more"));
    }

    #[test]
    fn another_trial_is_offered_only_if_its_options_are_known() {
        let page = |options| trial(&sketches::mixed(), &command(), options, Style::FILE);
        let rest = ["--rest".to_string(), "2s".to_string()];
        let offered = "allocwall trial --with tcmalloc --blocks 438 --rest 2s --";
        assert!(page(Some(&rest[..])).contains(offered));
        assert!(!page(None).contains("allocwall trial --with"));
    }

    #[test]
    fn figures_have_units_and_few_digits() {
        for (effect, text) in [
            (0.0312, "+3.1 %"),
            (-0.0004, "0.0 %"),
            (-0.5, "-50.0 %"),
            (11.2, "×12"),
            (6.083, "+608 %"),
            (0.9999, "+100 %"),
        ] {
            assert_eq!(change(effect), text);
        }
        for (unit, number, text) in [
            (Unit::Seconds, 1.20412, "1.204 s"),
            (Unit::Seconds, 0.0312, "31.20 ms"),
            (Unit::Ns, 812.0, "812.0 ns"),
            (Unit::Bytes, 1_363_148.0, "1.3 MiB"),
            (Unit::Count, 12.0, "12"),
            (Unit::Count, 1_234_567.0, "1.235 M"),
            (Unit::PerSecond, 48_123.0, "48.12 k/s"),
            (Unit::Ratio, 0.1234, "12.34 %"),
            (Unit::None, 0.25, "0.250"),
        ] {
            let metric = Metric {
                key: String::new(),
                title: String::new(),
                unit,
                direction: allocwall_trial::Direction::LowerIsBetter,
                primary: true,
            };
            assert_eq!(value(Some(&metric), Some(&Ok(number))), text);
        }
        for (level, text) in [(0.05, "95"), (0.0444, "95"), (0.0055, "99.4"), (8.9e-5, "99.99")] {
            assert_eq!(confidence(level), text);
        }
    }

    #[test]
    fn hostile_names_reach_no_terminal() {
        let name = "x\u{1b}[2J\u{202e}\n\u{9b}31m";
        for mut outcome in sketches::all() {
            hostile(&mut outcome, name);
            let page = trial(&outcome, &[name.to_string()], Some(&[]), Style::FILE);
            assert!(page.chars().all(|c| c == '\n' || !c.is_control()), "{page:?}");
            assert!(!page.contains('\u{202e}'));
            assert!(page.contains("\\u{1b}[2J"));
        }
    }

    /// Puts `name` in every place where a name from outside can be.
    fn hostile(outcome: &mut TrialResult, name: &str) {
        for arm in &mut outcome.design.arms {
            arm.name = name.to_string();
        }
        for metric in &mut outcome.design.metrics {
            metric.title = name.to_string();
        }
        for summary in &mut outcome.summaries {
            summary.failures.iter_mut().for_each(|f| f.text = name.to_string());
            for proof in &mut summary.proof {
                proof.what = name.to_string();
                proof.detail = name.to_string();
            }
        }
        let comparisons = outcome.comparisons.iter_mut().chain(&mut outcome.baseline);
        for why in comparisons.filter_map(|c| c.why.as_mut()) {
            why.detail = name.to_string();
        }
        outcome.warnings.push(name.to_string());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn no_line_is_wider_than_the_page(name in "\\PC{0,60}|[a-z]{1,300}|[\\x00-\\x1f a]{0,30}", width in 40usize..140, scale in -12.0..15.0f64) {
            for mut outcome in sketches::all() {
                hostile(&mut outcome, &name);
                let factor = 10f64.powf(scale);
                for c in outcome.comparisons.iter_mut().chain(&mut outcome.baseline) {
                    let bounded = |v: f64| (v * factor).max(-1.0);
                    c.effect = c.effect.clone().map(|e| Interval::new(bounded(e.low), bounded(e.point), bounded(e.high)));
                }
                for summary in &mut outcome.summaries {
                    summary.medians.values_mut().flatten().for_each(|m| *m *= factor);
                }
                let page = trial(&outcome, std::slice::from_ref(&name), Some(&[]), Style { color: false, width });
                for line in page.lines() {
                    prop_assert!(columns(line) <= width, "{} columns of {width}: {line:?}", columns(line));
                }
                trial(&outcome, std::slice::from_ref(&name), Some(&[]), Style { color: true, width });
            }
        }
    }
}
