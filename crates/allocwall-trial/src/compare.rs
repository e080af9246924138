//! Blocks -> Comparisons.
//!
//! The unit is one run: it counts once, however many requests it served. An arm's effect in a block is the logarithm of its value
//! minus the mean logarithm of the two baseline runs, so a disturbance of the whole block cancels. Effects are judged over blocks
//! by ranks ([`allocwall_model::stats::ranks`]): one slow run is one rank, and no run is dropped because it is slow.

use super::{
    ArmProof, ArmSummary, BASELINES, Block, Comparison, Design, Direction, Failure, Metric, Outcome,
    ProofState, Run, Settings, TrialResult, plan,
};
use allocwall_model::stats::ranks::{self, Set};
use allocwall_model::stats::size::Spread;
use allocwall_model::stats::{median, several};
use allocwall_model::units::{Absence, Interval, Measured, Reason, count};
use std::collections::BTreeMap;
use std::ops::Range;

/// Share of an arm's runs that may fail, or leave its proof unknown. Above it, the arm's outcomes carry a warning or are withheld.
const TOLERATED: f64 = 0.1;
/// The baseline's own noise widens the margin up to this limit. With a larger margin, a relevant change could be called equivalent.
const MOST_MARGIN: f64 = 0.05;
/// Ratio of two standard deviations: an arm minus the mean of two baseline runs (√(3/2) times that of one run), and A′ minus A (√2
/// times).
const ARM_TO_BASELINE: f64 = 0.866_025_403_784_438_6;

/// Compares the arms. The blocks are judged at each look that they reach. If they end between two looks (the trial was
/// interrupted), they are also judged at the last block. Blocks beyond the plan have no share of the level and don't change an
/// outcome.
///
/// An outcome that was reported at a look is final. The intervals of all looks are valid together, so the result shows the interval
/// of the latest look that decided, else the narrowest interval.
///
/// The time grows with arms × metrics × looks × blocks²: don't call it for every step of a progress bar.
pub fn compare(design: &Design, blocks: &[Block]) -> TrialResult {
    let summaries: Vec<ArmSummary> = (0..design.arms.len()).map(|arm| summary(design, blocks, arm)).collect();
    let looks: Vec<Look> = looks(&design.settings, blocks.len())
        .into_iter()
        .map(|(taken, level)| look(design, &blocks[..taken], level, &summaries))
        .collect();
    let baseline = chosen(looks.iter().map(|l| &l.baseline[..]));
    let comparisons = if design.arms.len() > BASELINES {
        chosen(looks.iter().map(|l| &l.remedies[..]))
    } else {
        baseline.clone()
    };
    let baseline_medians = design
        .metrics
        .iter()
        .map(|m| (m.key.clone(), median_of(blocks, &m.key, |arm| arm < BASELINES)))
        .collect();
    let warnings =
        if design.arms.len() > BASELINES { differs_from_itself(design, &baseline) } else { vec![] };
    TrialResult {
        design: design.clone(),
        blocks: blocks.len(),
        comparisons,
        baseline,
        summaries,
        baseline_medians,
        warnings,
    }
}

/// Relative change of one arm against another arm in the same blocks, with the 95 % interval. For comparisons beside those of a
/// design, which are all against the baseline.
///
/// # Errors
/// `NotApplicable`: a value is 0 or less, which has no relative change, or both are the same arm. `TooLittle`: too few blocks have
/// both arms. Else why no run of the arm has the metric.
pub fn against(blocks: &[Block], arm: usize, other: usize, key: &str) -> Measured<Interval> {
    if arm == other {
        return Err(Absence::new(Reason::NotApplicable, "this is the arm that others are compared with"));
    }
    let Matched { sets, missing, unusable, .. } = matched(blocks, arm, other..other + 1, key);
    match (unusable, ranks::shift(&sets, several::ALPHA), missing) {
        (Some(unusable), ..) => Err(unusable),
        (None, Some(shift), _) => Ok(relative(shift)),
        (None, None, Some((missing, _))) if sets.is_empty() => Err(missing),
        _ => Err(too_few(sets.len(), blocks.len(), [ranks::fewest(1, several::ALPHA); 2])),
    }
}

/// Whether every comparison of a primary metric has an outcome, or can't get one. A comparison that more blocks could decide is
/// open.
pub fn decided(outcome: &TrialResult) -> bool {
    let open = |c: &Comparison| match &c.effect {
        Ok(_) => c.outcome == Outcome::Unresolved,
        Err(why) => why.reason == Reason::TooLittle,
    };
    let primary = |c: &&Comparison| outcome.metric(&c.metric).is_some_and(|m| m.primary);
    !outcome.comparisons.iter().filter(primary).any(open)
}

/// The noise of a metric in these blocks, in logarithms: of a remedy against the mean of two baseline runs, pooled over the
/// remedies and the baseline. In a trial without remedies, of A′ against A. None if there is too little data.
pub fn spread(design: &Design, blocks: &[Block], metric: &str) -> Option<Spread> {
    let differences = |arm: usize, scale: f64| -> Vec<f64> {
        let sets = matched(blocks, arm, 0..untreated(arm), metric).sets;
        sets.iter().filter_map(Set::difference).map(|d| d * scale).collect()
    };
    if design.arms.len() <= BASELINES {
        return Spread::pooled(&[differences(1, 1.0)]);
    }
    let mut arms = vec![differences(1, ARM_TO_BASELINE)];
    arms.extend((BASELINES..design.arms.len()).map(|arm| differences(arm, 1.0)));
    Spread::pooled(&arms)
}

/// What a plan resolves in one metric, by the noise so far.
#[derive(Clone, Debug, PartialEq)]
pub struct Resolution {
    /// Title of the metric.
    pub metric: String,
    /// Relative standard deviation of single runs.
    pub of_run: f64,
    /// The smallest relative change that the planned blocks detect in 9 of 10 trials; see [`plan::resolves`].
    pub smallest: Option<f64>,
}

/// For each primary metric whose noise is known.
pub fn resolution(design: &Design, blocks: &[Block]) -> Vec<Resolution> {
    let arms = design.arms.len();
    let family = plan::family(arms, &design.metrics);
    let of = |metric: &Metric| {
        let noise = spread(design, blocks, &metric.key)?;
        Some(Resolution {
            metric: metric.title.clone(),
            of_run: noise.sd / plan::per_run(arms),
            smallest: plan::resolves(design.settings.planned, noise, arms, family),
        })
    };
    design.metrics.iter().filter(|metric| metric.primary).filter_map(of).collect()
}

/// The looks that this number of blocks reaches, each with its level.
fn looks(settings: &Settings, blocks: usize) -> Vec<(usize, f64)> {
    let mut at: Vec<usize> = settings.looks.iter().copied().filter(|l| *l < blocks).collect();
    at.push(blocks);
    let levels = several::levels(&at, settings.planned);
    let looks: Vec<_> = at.into_iter().zip(levels).filter(|(_, level)| *level > 0.0).collect();
    if looks.is_empty() { vec![(blocks, several::ALPHA)] } else { looks }
}

struct Look {
    baseline: Vec<Comparison>,
    remedies: Vec<Comparison>,
}

fn look(design: &Design, blocks: &[Block], level: f64, summaries: &[ArmSummary]) -> Look {
    let compared = |arm: usize, metric: &Metric, margin: f64| {
        measure(design, blocks, summaries, arm, metric, level, margin)
    };
    // The baseline gets no margin from its own interval: a wide interval would then always be called equivalent.
    let mut baseline: Vec<Comparison> = match design.arms.len() {
        0..BASELINES => vec![],
        _ => design.metrics.iter().map(|m| compared(1, m, design.settings.effect)).collect(),
    };
    let margins: Vec<f64> = baseline.iter().map(|c| margin(design.settings.effect, &c.effect)).collect();
    let mut remedies: Vec<Comparison> = (BASELINES..design.arms.len())
        .flat_map(|arm| {
            let metrics = design.metrics.iter().zip(&margins);
            metrics.map(move |(metric, margin)| (arm, metric, *margin))
        })
        .map(|(arm, metric, margin)| compared(arm, metric, margin))
        .collect();
    judge(design, blocks.len(), &mut baseline);
    judge(design, blocks.len(), &mut remedies);
    Look { baseline, remedies }
}

/// The larger of the requested effect and the uncertainty of the baseline against itself: half the width of its interval, scaled to
/// the smaller noise of an arm against two baseline runs. A trial can't resolve a change smaller than the noise between two copies
/// of one command.
fn margin(asked: f64, baseline: &Measured<Interval>) -> f64 {
    let shown = match baseline {
        Ok(interval) => interval.half_width() * ARM_TO_BASELINE,
        Err(_) => 0.0,
    };
    asked.max(shown.min(MOST_MARGIN))
}

/// The figures of a comparison; its outcome is not decided yet.
fn measure(
    design: &Design,
    blocks: &[Block],
    summaries: &[ArmSummary],
    arm: usize,
    metric: &Metric,
    level: f64,
    margin: f64,
) -> Comparison {
    let matched = matched(blocks, arm, 0..untreated(arm), &metric.key);
    let sets = &matched.sets;
    let why = no_verdict(&matched, arm, &summaries[arm]);
    let comparable = matched.unusable.is_none() && !sets.is_empty();
    let effect = match (ranks::shift(sets, level), &why) {
        (Some(shift), _) if comparable => Ok(relative(shift)),
        (_, Some(why)) => Err(why.clone()),
        _ => {
            let family = plan::family_of(design.arms.len(), &design.metrics, metric.primary);
            Err(too_few(sets.len(), design.settings.planned, fewest(arm, level, family)))
        }
    };
    Comparison {
        arm,
        metric: metric.key.clone(),
        blocks: sets.len(),
        effect,
        p: if comparable { ranks::p_value(sets, 0.0) } else { 1.0 },
        p_holm: 1.0,
        level,
        outcome: Outcome::Unresolved,
        margin,
        why,
        warning: warning(&matched, arm, metric, summaries),
        blocks_needed: Spread::pooled(&[sets.iter().filter_map(Set::difference).collect()])
            .and_then(|spread| {
                let arms = design.arms.len();
                plan::blocks_for(margin, spread, arms, plan::family(arms, &design.metrics))
            })
            .filter(|needed| *needed > sets.len()),
        predicted: design.arms[arm].predicted.get(&metric.key).copied(),
    }
}

/// Adjusts for the comparisons of each family, and sets the outcomes.
///
/// The primary metrics over all arms are one family: any of them may be the reason to choose a remedy. The other metrics explain.
/// They are a separate family, so that their number does not reduce the power for the primary metrics.
fn judge(design: &Design, taken: usize, comparisons: &mut [Comparison]) {
    for primary in [true, false] {
        let of_family = |c: &Comparison| {
            let metric = design.metrics.iter().find(|m| m.key == c.metric);
            c.why.is_none() && metric.is_some_and(|m| m.primary == primary)
        };
        let mut family: Vec<&mut Comparison> = comparisons.iter_mut().filter(|c| of_family(c)).collect();
        let adjusted = several::holm(&family.iter().map(|c| c.p).collect::<Vec<_>>());
        let size = family.len();
        for (comparison, p) in family.iter_mut().zip(adjusted) {
            comparison.p_holm = p;
            let metric = design.metrics.iter().find(|m| m.key == comparison.metric);
            comparison.outcome =
                outcome(comparison, metric.map_or(Direction::LowerIsBetter, |m| m.direction));
            if comparison.outcome == Outcome::Unresolved {
                comparison.why = Some(undecided(comparison, taken, design.settings.planned, size));
            }
        }
    }
    for decided in comparisons.iter_mut().filter(|c| c.outcome != Outcome::Unresolved || c.effect.is_err()) {
        decided.blocks_needed = None;
    }
}

fn outcome(comparison: &Comparison, direction: Direction) -> Outcome {
    let Ok(effect) = &comparison.effect else {
        return Outcome::Unresolved;
    };
    let inside = effect.low >= -comparison.margin && effect.high <= comparison.margin;
    let significant = comparison.p_holm <= comparison.level && effect.point != 0.0;
    match (inside, significant, direction) {
        (true, ..) => Outcome::Equivalent,
        (_, false, _) => Outcome::Unresolved,
        (_, _, Direction::HigherIsBetter) if effect.point > 0.0 => Outcome::Better,
        (_, _, Direction::LowerIsBetter) if effect.point < 0.0 => Outcome::Better,
        _ => Outcome::Worse,
    }
}

fn undecided(comparison: &Comparison, taken: usize, planned: usize, family: usize) -> Absence {
    let fewest = fewest(comparison.arm, comparison.level, family);
    // The interval is that of this comparison alone; the outcome also has to hold among the others of its family.
    let alone = comparison.effect.as_ref().is_ok_and(|effect| effect.low > 0.0 || effect.high < 0.0);
    let alone = match alone {
        true => format!(
            "alone, the interval excludes 0, but {family} comparisons are judged together, which takes more evidence; "
        ),
        false => String::new(),
    };
    if comparison.blocks < fewest[0] {
        let few = too_few(comparison.blocks, planned, fewest);
        return Absence { detail: format!("{alone}{}", few.detail), ..few };
    }
    let margin = comparison.margin * 100.0;
    let mut detail = match alone.strip_suffix("; ") {
        Some(alone) => alone.to_owned(),
        None => format!("undecided: the effect may be larger or smaller than {margin:.1} %"),
    };
    let needed = comparison.blocks_needed.filter(|needed| *needed > taken);
    detail.push_str("; ");
    detail.push_str(&match needed {
        Some(needed) => what_it_takes(comparison.blocks, needed),
        // By its noise this trial was long enough: the effect is close to the margin.
        None => "more blocks would decide".to_owned(),
    });
    let absence = Absence::new(Reason::TooLittle, detail);
    match needed.filter(|needed| *needed <= plan::MOST_BLOCKS) {
        Some(needed) => absence.mend(format!("--blocks {needed}")),
        None => absence,
    }
}

/// What would decide a comparison: more blocks, or with these blocks less noise, by which the number of blocks grows squared.
fn what_it_takes(blocks: usize, needed: usize) -> String {
    let less = (needed as f64 / blocks.max(1) as f64).sqrt();
    let digits = usize::from(less < 9.95);
    let noise =
        format!("with {} the noise would have to be {less:.digits$} times smaller", count(blocks, "block"));
    if needed <= plan::MOST_BLOCKS {
        format!("about {needed} blocks would decide; {noise}")
    } else {
        format!(
            "more blocks can't decide: about {needed} are needed, a trial has at most {}; {noise}",
            plan::MOST_BLOCKS
        )
    }
}

/// The fewest blocks that allow an outcome: at this level, and at the end of a plan with one look.
fn fewest(arm: usize, level: f64, family: usize) -> [usize; 2] {
    [level, several::ALPHA].map(|level| ranks::fewest(untreated(arm), level / family.max(1) as f64))
}

fn too_few(blocks: usize, planned: usize, [now, at_the_end]: [usize; 2]) -> Absence {
    let are = if blocks == 1 { "is" } else { "are" };
    let (detail, needed) = if blocks < planned && now <= planned {
        let usable = format!("{blocks} of {planned} planned blocks {are} usable");
        (format!("{usable}; this early, a result needs at least {now}"), planned)
    } else {
        // Between two looks hardly any level is left: the number for it would be that of no plan.
        let needed = at_the_end.max(blocks + 1);
        let usable = count(blocks, "block");
        (format!("{usable} {are} usable; a result needs at least {needed}"), needed.max(planned))
    };
    Absence::new(Reason::TooLittle, detail).mend(format!("--blocks {needed}"))
}

/// Selects, for each comparison, the look to show.
fn chosen<'a>(looks: impl Iterator<Item = &'a [Comparison]>) -> Vec<Comparison> {
    let width = |c: &Comparison| c.effect.as_ref().map_or(f64::INFINITY, |e| e.half_width());
    let mut best: Vec<Comparison> = Vec::new();
    for look in looks {
        if best.is_empty() {
            best = look.to_vec();
            continue;
        }
        for (shown, new) in best.iter_mut().zip(look) {
            let decides = new.outcome != Outcome::Unresolved;
            let open = shown.outcome == Outcome::Unresolved;
            if decides || (open && width(new) <= width(shown)) {
                *shown = new.clone();
            }
        }
    }
    best
}

fn untreated(arm: usize) -> usize {
    if arm < BASELINES { 1 } else { BASELINES }
}

fn relative(shift: Interval) -> Interval {
    Interval::new(shift.low.exp_m1(), shift.point.exp_m1(), shift.high.exp_m1())
}

/// An arm's runs, matched with those of other arms in the same blocks: of the baseline, or of one arm.
struct Matched {
    /// In logarithms; one for each block in which both have the metric.
    sets: Vec<Set>,
    /// The arm's runs that did not fail.
    runs: usize,
    /// The reason of the first run without the metric, and the number of such runs.
    missing: Option<(Absence, usize)>,
    /// Why no ratio can be formed: a value is zero or negative.
    unusable: Option<Absence>,
}

fn matched(blocks: &[Block], arm: usize, others: Range<usize>, key: &str) -> Matched {
    let mut matched = Matched { sets: vec![], runs: 0, missing: None, unusable: None };
    let (mut values, mut zeros) = (0, 0);
    for block in blocks {
        let mut value = |of: usize| -> Option<Measured<f64>> {
            let value = value(successful(block, of)?, key);
            values += usize::from(value.is_ok());
            zeros += usize::from(matches!(value, Ok(v) if v <= 0.0));
            Some(value)
        };
        let untreated: Vec<f64> =
            others.clone().filter_map(|of| value(of)?.ok()).filter(|v| *v > 0.0).map(f64::ln).collect();
        let Some(treated) = value(arm) else { continue };
        matched.runs += 1;
        match treated {
            Ok(treated) if treated > 0.0 && !untreated.is_empty() => {
                matched.sets.push(Set { treated: treated.ln(), untreated })
            }
            Ok(_) => {}
            Err(absence) => match &mut matched.missing {
                Some((_, count)) => *count += 1,
                none => *none = Some((absence, 1)),
            },
        }
    }
    if zeros > 0 {
        // Leaving out only those runs would be biased: they are the best runs, or the worst.
        let detail =
            format!("the value is 0 or less in {zeros} of {values} runs, so there is no relative change");
        matched.unusable = Some(Absence::new(Reason::NotApplicable, detail));
    }
    matched
}

/// The arm's run in a block, unless it failed.
fn successful(block: &Block, arm: usize) -> Option<&Run> {
    block.runs.iter().find(|r| r.arm == arm && r.failure.is_none())
}

fn value(run: &Run, key: &str) -> Measured<f64> {
    match run.metrics.get(key) {
        None => Err(Absence::new(Reason::NotFound, "the run did not report it")),
        Some(Err(absence)) => Err(absence.clone()),
        Some(Ok(value)) if value.is_finite() => Ok(*value),
        Some(Ok(value)) => Err(Absence::new(Reason::Unparsable, format!("{value} can't be compared"))),
    }
}

fn no_verdict(matched: &Matched, arm: usize, summary: &ArmSummary) -> Option<Absence> {
    if summary.runs > 0 && summary.failures.len() == summary.runs {
        let detail = format!("all {} runs failed: {}", summary.runs, summary.failures[0].text);
        return Some(Absence::new(Reason::NotFound, detail));
    }
    if arm >= BASELINES
        && let Some(absence) = unproven(&summary.proof)
    {
        return Some(absence);
    }
    if let Some(unusable) = &matched.unusable {
        return Some(unusable.clone());
    }
    match (&matched.missing, matched.sets.is_empty()) {
        (Some((absence, _)), true) => Some(absence.clone()),
        (None, true) => Some(Absence::new(
            Reason::TooLittle,
            "no block yet has a usable run of both this arm and the baseline",
        )),
        _ => None,
    }
}

fn unproven(proof: &[ArmProof]) -> Option<Absence> {
    let heard = |p: &&ArmProof| p.needed || p.state == ProofState::Refuted;
    let Some(worst) = proof.iter().filter(heard).max_by_key(|p| p.state) else {
        return Some(Absence::new(Reason::NotFound, "no proof that the remedy took effect"));
    };
    let said = format!("{}: {}", worst.what, worst.detail);
    match worst.state {
        ProofState::Proven => None,
        ProofState::Unknown => Some(Absence::new(
            Reason::NotFound,
            format!("it is unknown whether the remedy took effect: {said}"),
        )),
        ProofState::Refuted => {
            Some(Absence::new(Reason::NotApplicable, format!("the remedy did not take effect: {said}")))
        }
    }
}

fn warning(matched: &Matched, arm: usize, metric: &Metric, summaries: &[ArmSummary]) -> Option<String> {
    let mut said = vec![];
    let mut failed = |who: &str, of: &[ArmSummary]| {
        let failures: usize = of.iter().map(|s| s.failures.len()).sum();
        let runs: usize = of.iter().map(|s| s.runs).sum();
        if failures as f64 > TOLERATED * runs as f64 {
            said.push(format!("{who}failed {failures} of {runs}"));
        }
    };
    if arm >= BASELINES {
        failed("", &summaries[arm..=arm]);
    }
    failed("baseline ", &summaries[..BASELINES.min(summaries.len())]);
    // If it is missing in all runs, it is already the reason of the unresolved outcome.
    if let Some((why, count)) = matched.missing.as_ref().filter(|_| !matched.sets.is_empty()) {
        said.push(format!("missing in {count} of {} runs: {}", matched.runs, why.detail));
    }
    let values = || matched.sets.iter().flat_map(|set| set.untreated.iter().chain([&set.treated]));
    // A figure that the command prints with few digits, or that the work does not change.
    if metric.primary && matched.sets.len() > 1 && values().all(|value| *value == matched.sets[0].treated) {
        said.push(format!("the same value in all {} runs: it can't show a change", values().count()));
    }
    (!said.is_empty()).then(|| said.join(", "))
}

fn summary(design: &Design, blocks: &[Block], arm: usize) -> ArmSummary {
    let runs: Vec<&Run> = blocks.iter().flat_map(|b| &b.runs).filter(|r| r.arm == arm).collect();
    let failures = runs
        .iter()
        .filter_map(|run| Some(Failure { block: run.block, text: run.failure.clone()? }))
        .collect();
    let medians =
        design.metrics.iter().map(|m| (m.key.clone(), median_of(blocks, &m.key, |of| of == arm))).collect();
    ArmSummary { runs: runs.len(), failures, medians, proof: proof(&runs) }
}

/// One entry per proof item, in the order of first occurrence.
fn proof(runs: &[&Run]) -> Vec<ArmProof> {
    let looked_at: Vec<&&Run> = runs.iter().filter(|r| r.failure.is_none()).collect();
    let mut promises: Vec<&str> = vec![];
    for item in looked_at.iter().flat_map(|r| &r.proof) {
        if !promises.contains(&item.what.as_str()) {
            promises.push(&item.what);
        }
    }
    promises
        .into_iter()
        .map(|what| {
            let items = || looked_at.iter().flat_map(|r| &r.proof).filter(|i| i.what == what);
            let count = |state: ProofState| items().filter(|i| i.state == state).count();
            let proven = count(ProofState::Proven);
            // A run without the item has not proven it.
            let open = looked_at.len().saturating_sub(proven);
            let needed = items().all(|i| i.needed);
            let tolerated = if needed {
                TOLERATED * looked_at.len() as f64
            } else {
                // A continued trial may have earlier runs without this item.
                looked_at.len().saturating_sub(1) as f64
            };
            let state = match (count(ProofState::Refuted), open) {
                (1.., _) => ProofState::Refuted,
                (0, open) if open as f64 > tolerated => ProofState::Unknown,
                _ => ProofState::Proven,
            };
            let decides = items().find(|i| i.state == state).or_else(|| items().next());
            ArmProof {
                what: what.to_string(),
                state,
                proven,
                runs: looked_at.len(),
                detail: decides.map(|i| i.detail.clone()).unwrap_or_default(),
                needed,
                absent: decides.and_then(|i| i.absent.clone()),
            }
        })
        .collect()
}

fn median_of(blocks: &[Block], key: &str, arms: impl Fn(usize) -> bool) -> Measured<f64> {
    let runs = blocks.iter().flat_map(|b| &b.runs);
    let found: Vec<Measured<f64>> =
        runs.filter(|r| arms(r.arm) && r.failure.is_none()).map(|r| value(r, key)).collect();
    let values: Vec<f64> = found.iter().filter_map(|v| v.as_ref().ok().copied()).collect();
    match (median(&values), found.into_iter().find_map(Result::err)) {
        (Some(median), _) => Ok(median),
        (None, Some(absence)) => Err(absence),
        (None, None) => Err(Absence::new(Reason::TooLittle, "no run succeeded")),
    }
}

/// A and A′ are the same command: a difference between them has another cause than the remedies.
fn differs_from_itself(design: &Design, baseline: &[Comparison]) -> Vec<String> {
    let titles: BTreeMap<&str, &Metric> = design.metrics.iter().map(|m| (m.key.as_str(), m)).collect();
    baseline
        .iter()
        .filter(|c| c.p_holm <= c.level)
        .filter_map(|c| {
            let metric = titles.get(c.metric.as_str()).filter(|m| m.primary)?;
            let effect = c.effect.as_ref().ok()?;
            Some(format!(
                "The two baseline arms differ in {} by {:+.1} %. By chance this happens in 1 of 20 trials; on a \
                 disturbed machine it is frequent. Trust these outcomes only if a second trial confirms them.",
                metric.title,
                effect.point * 100.0
            ))
        })
        .collect()
}
