//! Trials that are simulated from known effects and noise: false alarms, coverage of intervals, power.

use super::compare::{against, compare, spread};
use super::testing::{NOISES, Noise, design, metric, proven, simulated};
use super::*;
use allocwall_model::stats::size::Spread;
use allocwall_model::units::Reason;

/// Standard deviation of one run: 1 %.
const SD: f64 = 0.01;

/// 5 % plus three standard deviations: the limit for a count whose true rate is 5 %.
fn most_of(cases: u64) -> usize {
    let cases = cases as f64;
    (0.05 * cases + 3.0 * (0.05 * 0.95 * cases).sqrt()) as usize
}

fn difference(c: &Comparison) -> bool {
    matches!(c.outcome, Outcome::Better | Outcome::Worse)
}

#[test]
fn a_trial_of_equal_arms_reports_a_difference_in_at_most_5_percent_of_the_cases() {
    for noise in NOISES {
        let cases = 400;
        let design = design(&["a", "b", "c"], 16);
        let alarms = (0..cases)
            .filter(|seed| {
                let blocks = simulated(&design, &[0.0; 5], SD, noise, *seed);
                compare(&design, &blocks).comparisons.iter().any(difference)
            })
            .count();
        assert!(alarms <= most_of(cases), "{noise:?}: {alarms} of {cases}");
    }
}

#[test]
fn several_looks_raise_no_more_alarms() {
    for noise in [Noise::Normal, Noise::Skewed, Noise::Spikes] {
        let cases = 300;
        let mut design = design(&["a"], 40);
        design.settings.looks = plan::looks(40, 3, 1);
        assert_eq!(design.settings.looks, [10, 20, 40]);
        let alarms = (0..cases)
            .filter(|seed| {
                let blocks = simulated(&design, &[0.0; 3], SD, noise, *seed);
                design
                    .settings
                    .looks
                    .iter()
                    .any(|look| difference(&compare(&design, &blocks[..*look]).comparisons[0]))
            })
            .count();
        assert!(alarms <= most_of(cases), "{noise:?}: {alarms} of {cases}");
    }
}

#[test]
fn a_trial_without_remedies_alarms_no_more_often() {
    for noise in [Noise::Normal, Noise::Skewed, Noise::Drifting, Noise::Pulsing] {
        let cases = 400;
        let design = design(&[], 12);
        let alarms = (0..cases)
            .filter(|seed| {
                let outcome = compare(&design, &simulated(&design, &[0.0; 2], SD, noise, *seed));
                assert_eq!(outcome.comparisons, outcome.baseline);
                difference(&outcome.comparisons[0])
            })
            .count();
        assert!(alarms <= most_of(cases), "{noise:?}: {alarms} of {cases}");
    }
}

#[test]
fn the_interval_covers_the_planted_effect() {
    for noise in NOISES {
        for (planned, cases) in [(6, 1000), (12, 600), (30, 300)] {
            let design = design(&["slower"], planned);
            let covered = (0..cases)
                .filter(|seed| {
                    let blocks = simulated(&design, &[0.0, 0.0, 1.03f64.ln()], SD, noise, *seed);
                    let outcome = compare(&design, &blocks);
                    let effect = outcome.comparisons[0].effect.clone().unwrap();
                    effect.low <= 0.03 && 0.03 <= effect.high
                })
                .count();
            assert!(
                covered as f64 >= 0.93 * cases as f64,
                "{noise:?}, {planned} blocks: {covered} of {cases}"
            );
        }
    }
}

#[test]
fn an_effect_is_found_when_planned_for_from_a_pilot() {
    for (noise, sd) in [(Noise::Normal, 0.02), (Noise::Skewed, 0.02), (Noise::Drifting, 0.015)] {
        let cases = 200;
        let (mut found, mut sizes) = (0, 0);
        for seed in 0..cases {
            let shifts = [0.0, 0.0, 1.03f64.ln()];
            let pilot = design(&["slower"], 6);
            let noise_seen = spread(&pilot, &simulated(&pilot, &shifts, sd, noise, seed), "wall").unwrap();
            let blocks = plan::blocks_for(0.03, noise_seen, 3, 1).unwrap();
            let mut design = design(&["slower"], blocks);
            design.settings.looks = plan::looks(blocks, 3, 1);
            let runs = simulated(&design, &shifts, sd, noise, seed + 1_000_000);
            let outcome = compare(&design, &runs).comparisons[0].outcome;
            assert_ne!(outcome, Outcome::Better);
            found += usize::from(outcome == Outcome::Worse);
            sizes += blocks;
        }
        assert!(
            found as f64 >= 0.9 * cases as f64,
            "{noise:?}: {found} of {cases}, {} blocks on average",
            sizes / cases as usize
        );
    }
}

#[test]
fn equal_arms_are_equivalent_once_there_are_enough_blocks_and_never_by_noise() {
    let equivalent = |sd: f64, shift: f64| {
        let design = design(&["same"], 40);
        (0..100)
            .filter(|seed| {
                let blocks = simulated(&design, &[0.0, 0.0, shift], sd, Noise::Normal, *seed);
                compare(&design, &blocks).comparisons[0].outcome == Outcome::Equivalent
            })
            .count()
    };
    assert!(equivalent(0.01, 0.0) > 90);
    assert_eq!(equivalent(0.01, 0.03), 0);
    // With 60 % noise the margin is at most 5 %, and no interval is that narrow.
    assert_eq!(equivalent(0.6, 0.0), 0);
}

#[test]
fn the_pilot_sees_the_noise_of_an_arm_against_two_baseline_runs() {
    let design = design(&["a", "b"], 400);
    let blocks = simulated(&design, &[0.0, 0.0, 0.1, -0.2], SD, Noise::Normal, 3);
    let Spread { sd, .. } = spread(&design, &blocks, "wall").unwrap();
    assert!((sd / (SD * 1.5f64.sqrt()) - 1.0).abs() < 0.05, "{sd}");
    assert_eq!(spread(&design, &blocks[..1], "wall"), None);
    assert_eq!(spread(&design, &blocks, "none such"), None);
}

fn quiet(shift: f64) -> (Design, Vec<Block>) {
    let design = design(&["remedy"], 12);
    let blocks = simulated(&design, &[0.0, 0.0, shift], 0.003, Noise::Normal, 5);
    (design, blocks)
}

fn runs_of(blocks: &mut [Block], arm: usize) -> impl Iterator<Item = &mut Run> {
    blocks.iter_mut().flat_map(|b| &mut b.runs).filter(move |r| r.arm == arm)
}

#[test]
fn two_remedies_are_compared_and_a_value_of_zero_has_no_relative_change() {
    let design = design(&["a", "b"], 12);
    let mut blocks = simulated(&design, &[0.0, 0.0, 0.1, 0.3], 0.003, Noise::Normal, 5);
    let effect = against(&blocks, 3, 2, "wall").unwrap();
    assert!((effect.point - 0.2f64.exp_m1()).abs() < 0.01, "{effect:?}");
    for (arm, other, key, reason) in
        [(2, 2, "wall", Reason::NotApplicable), (3, 2, "none such", Reason::NotFound)]
    {
        assert_eq!(against(&blocks, arm, other, key).unwrap_err().reason, reason, "{key}");
    }
    assert_eq!(against(&blocks[..5], 3, 2, "wall").unwrap_err().reason, Reason::TooLittle);
    // Neither the best run nor the worst one may vanish.
    for arm in [2, 3] {
        let kept = blocks.clone();
        let run = runs_of(&mut blocks, arm).next().unwrap();
        run.metrics.insert("wall".to_owned(), Ok(0.0));
        let why = against(&blocks, 3, 2, "wall").unwrap_err();
        assert_eq!(why.reason, Reason::NotApplicable);
        assert!(why.detail.starts_with("the value is 0 or less in 1 of 24 runs"), "{why}");
        blocks = kept;
    }
}

#[test]
fn the_outcome_follows_the_direction() {
    for (shift, lower, higher) in [
        (-0.1, Outcome::Better, Outcome::Worse),
        (0.1, Outcome::Worse, Outcome::Better),
        (0.0, Outcome::Equivalent, Outcome::Equivalent),
    ] {
        let (mut design, blocks) = quiet(shift);
        let outcome = compare(&design, &blocks);
        assert_eq!(outcome.comparisons[0].outcome, lower);
        assert_eq!(outcome.comparisons[0].why, None);
        design.metrics[0].direction = Direction::HigherIsBetter;
        assert_eq!(compare(&design, &blocks).comparisons[0].outcome, higher);
    }
}

#[test]
fn too_few_blocks_give_no_outcome_and_name_the_needed_number() {
    let (mut design, blocks) = quiet(-0.5);
    for (planned, untreated) in [(3, 2), (5, 1)] {
        design.settings.planned = planned;
        design.settings.looks = vec![planned];
        design.arms.truncate(1 + untreated);
        let outcome = compare(&design, &blocks[..planned]);
        let c = &outcome.comparisons[0];
        assert_eq!(c.outcome, Outcome::Unresolved);
        assert!(c.effect.is_err());
        let why = c.why.clone().unwrap();
        assert_eq!(why.reason, Reason::TooLittle);
        let fewest = planned + 1;
        assert_eq!(why.detail, format!("{planned} blocks are usable; a result needs at least {fewest}"));
        assert_eq!(why.advice(), Some(format!("--blocks {fewest}")));
    }
    // The twin: with one more block the effect is decided.
    let (mut design, blocks) = quiet(-0.5);
    design.settings.planned = 4;
    design.settings.looks = vec![4];
    assert_eq!(compare(&design, &blocks[..4]).comparisons[0].outcome, Outcome::Better);
}

#[test]
fn a_failed_run_removes_its_arm_from_its_block_and_is_reported() {
    let (design, mut blocks) = quiet(-0.1);
    for nth in [1, 4, 9] {
        runs_of(&mut blocks, 2).nth(nth).unwrap().failure = Some("exit code 1".to_string());
    }
    let outcome = compare(&design, &blocks);
    let c = &outcome.comparisons[0];
    assert_eq!((c.blocks, c.outcome), (9, Outcome::Better));
    assert_eq!(c.warning.as_deref(), Some("failed 3 of 12"));
    assert_eq!((outcome.summaries[2].runs, outcome.summaries[2].failures.len()), (12, 3));
    assert_eq!(outcome.summaries[2].failures[0].block, 1);
    // The twin: one failure in twelve is reported with the arm, without a warning at the comparison.
    let (design, mut blocks) = quiet(-0.1);
    runs_of(&mut blocks, 2).next().unwrap().failure = Some("exit code 1".to_string());
    let outcome = compare(&design, &blocks);
    assert_eq!((outcome.comparisons[0].blocks, &outcome.comparisons[0].warning), (11, &None));
    assert_eq!(outcome.summaries[2].failures.len(), 1);
}

#[test]
fn without_one_baseline_run_the_other_is_compared_with() {
    let (design, mut blocks) = quiet(-0.1);
    runs_of(&mut blocks, 0).for_each(|r| r.failure = Some("exit code 1".to_string()));
    let outcome = compare(&design, &blocks);
    let c = &outcome.comparisons[0];
    assert_eq!((c.blocks, c.outcome), (12, Outcome::Better));
    assert_eq!(c.warning.as_deref(), Some("baseline failed 12 of 24"));
    assert!(outcome.baseline[0].why.is_some());
    runs_of(&mut blocks, 1).for_each(|r| r.failure = Some("exit code 1".to_string()));
    let c = &compare(&design, &blocks).comparisons[0];
    assert_eq!((c.blocks, c.outcome, c.why.is_some()), (0, Outcome::Unresolved, true));
}

#[test]
fn an_arm_that_always_fails_is_unresolved_with_its_failure() {
    let (design, mut blocks) = quiet(-0.1);
    runs_of(&mut blocks, 2).for_each(|r| r.failure = Some("exec: not found".to_string()));
    let c = &compare(&design, &blocks).comparisons[0];
    assert_eq!(c.outcome, Outcome::Unresolved);
    assert_eq!(c.why.clone().unwrap().detail, "all 12 runs failed: exec: not found");
}

#[test]
fn a_slow_run_is_never_dropped() {
    let (design, mut blocks) = quiet(-0.1);
    let slow = runs_of(&mut blocks, 2).next().unwrap();
    slow.metrics.insert("wall".to_string(), Ok(100.0));
    let c = &compare(&design, &blocks).comparisons[0];
    assert_eq!((c.blocks, c.outcome), (12, Outcome::Better));
}

#[test]
fn without_proof_the_outcome_is_unresolved() {
    let (design, mut blocks) = quiet(-0.1);
    let of = |blocks: &[Block]| compare(&design, blocks).comparisons[0].clone();
    // One run in twelve with an unknown proof is tolerated; one with a refuted proof is not.
    runs_of(&mut blocks, 2).next().unwrap().proof = proven(ProofState::Unknown);
    assert_eq!(of(&blocks).outcome, Outcome::Better);
    assert_eq!(compare(&design, &blocks).summaries[2].proof[0].proven, 11);
    runs_of(&mut blocks, 2).nth(1).unwrap().proof = vec![];
    let c = of(&blocks);
    assert_eq!(c.outcome, Outcome::Unresolved);
    let why = c.why.unwrap();
    assert_eq!(why.reason, Reason::NotFound);
    assert!(why.detail.contains("libjemalloc"), "{why}");
    runs_of(&mut blocks, 2).next().unwrap().proof = proven(ProofState::Refuted);
    let c = of(&blocks);
    assert_eq!(c.outcome, Outcome::Unresolved);
    // The figures are still reported.
    assert!(c.effect.is_ok() && c.p < 0.05);
    let why = c.why.unwrap();
    assert_eq!(why.reason, Reason::NotApplicable);
    assert!(why.detail.contains("libjemalloc"), "{why}");
    runs_of(&mut blocks, 2).for_each(|r| r.proof.clear());
    assert_eq!(of(&blocks).why.unwrap().detail, "no proof that the remedy took effect");
    // The baseline needs no proof.
    let (design, mut blocks) = quiet(-0.1);
    runs_of(&mut blocks, 0).for_each(|r| r.proof.clear());
    assert_eq!(compare(&design, &blocks).comparisons[0].outcome, Outcome::Better);
}

#[test]
fn an_item_that_is_not_needed_counts_only_if_it_is_refuted() {
    let (design, mut blocks) = quiet(-0.1);
    let share = |state, absent: Option<Absence>| ProofItem {
        what: "calls that it serves".to_string(),
        state,
        detail: "seen once".to_string(),
        needed: false,
        absent,
    };
    let with = |blocks: &mut [Block], item: ProofItem| {
        runs_of(blocks, 2).for_each(|r| {
            r.proof.truncate(1);
            r.proof.push(item.clone());
        });
        let outcome = compare(&design, blocks);
        (outcome.comparisons[0].clone(), outcome.summaries[2].proof[1].clone())
    };
    let why = Absence::new(Reason::NotPermitted, "no probes").mend("run as root");
    let (c, proof) = with(&mut blocks, share(ProofState::Unknown, Some(why.clone())));
    assert_eq!((c.outcome, c.why), (Outcome::Better, None));
    assert_eq!((proof.state, proof.absent), (ProofState::Unknown, Some(why)));
    let (c, proof) = with(&mut blocks, share(ProofState::Proven, None));
    assert_eq!((c.outcome, proof.state), (Outcome::Better, ProofState::Proven));
    // A continued trial whose earlier runs have no such item.
    runs_of(&mut blocks, 2).take(9).for_each(|r| r.proof.truncate(1));
    let outcome = compare(&design, &blocks);
    assert_eq!(outcome.summaries[2].proof[1].state, ProofState::Proven);
    let (c, _) = with(&mut blocks, share(ProofState::Refuted, None));
    assert_eq!(c.outcome, Outcome::Unresolved);
    let said = c.why.unwrap().detail;
    assert_eq!(said, "the remedy did not take effect: calls that it serves: seen once");
    // Without a needed item there is no proof.
    runs_of(&mut blocks, 2).for_each(|r| r.proof = vec![share(ProofState::Proven, None)]);
    assert_eq!(compare(&design, &blocks).comparisons[0].outcome, Outcome::Unresolved);
}

#[test]
fn items_of_older_files_are_needed() {
    let older = r#"{"what": "x mapped", "state": "proven", "detail": "in 1 of 1 processes"}"#;
    let item: ProofItem = serde_json::from_str(older).unwrap();
    assert!(item.needed && item.absent.is_none());
    let again = serde_json::to_value(&item).unwrap();
    assert_eq!(serde_json::from_value::<ProofItem>(again).unwrap(), item);
}

#[test]
fn a_zero_or_absent_value_has_a_reason_and_no_effect() {
    let reason = |change: &dyn Fn(&mut Run)| {
        let (design, mut blocks) = quiet(-0.1);
        runs_of(&mut blocks, 2).step_by(5).for_each(change);
        let c = compare(&design, &blocks).comparisons[0].clone();
        (c.outcome, c.blocks, c.why.map(|w| w.reason), c.warning)
    };
    let set =
        |value: Measured<f64>| move |r: &mut Run| drop(r.metrics.insert("wall".to_string(), value.clone()));
    let (outcome, _, why, _) = reason(&set(Ok(0.0)));
    assert_eq!((outcome, why), (Outcome::Unresolved, Some(Reason::NotApplicable)));
    let absent = Absence::new(Reason::NotPermitted, "no");
    let said = |why: &str| Some(format!("missing in 3 of 12 runs: {why}"));
    for (change, why) in [
        (set(Err(absent.clone())), "no"),
        (set(Ok(f64::NAN)), "NaN can't be compared"),
        (set(Ok(f64::INFINITY)), "inf can't be compared"),
    ] {
        assert_eq!(reason(&change), (Outcome::Better, 9, None, said(why)));
    }
    let (design, mut blocks) = quiet(-0.1);
    runs_of(&mut blocks, 2).for_each(set(Err(absent.clone())));
    let outcome = compare(&design, &blocks);
    assert_eq!(outcome.comparisons[0].why, Some(absent.clone()));
    assert_eq!(outcome.comparisons[0].effect, Err(absent.clone()));
    assert_eq!(outcome.summaries[2].medians["wall"], Err(absent));
}

#[test]
fn a_metric_that_is_the_same_in_all_runs_has_a_warning() {
    let (design, mut blocks) = quiet(-0.1);
    for run in blocks.iter_mut().flat_map(|b| &mut b.runs) {
        run.metrics.insert("wall".to_string(), Ok(4.0));
    }
    let compared = |blocks: &[Block]| compare(&design, blocks).comparisons[0].clone();
    let same = compared(&blocks);
    assert_eq!(same.outcome, Outcome::Equivalent);
    let said = "the same value in all 36 runs: it can't show a change";
    assert_eq!(same.warning.as_deref(), Some(said));
    // The twin: one run differs.
    runs_of(&mut blocks, 2).next().unwrap().metrics.insert("wall".to_string(), Ok(4.001));
    assert_eq!(compared(&blocks).warning, None);
}

#[test]
fn an_interval_that_excludes_0_and_is_unresolved_says_why() {
    let (mut design, mut blocks) = quiet(-0.5);
    // Six of six blocks at a level of 5 %, but eight comparisons are judged together.
    for nth in 0..8 {
        let key = format!("other{nth}");
        design.metrics.push(metric(&key, &key, Unit::Count, Direction::LowerIsBetter, false));
        for run in blocks.iter_mut().flat_map(|b| &mut b.runs) {
            let value = run.metrics["wall"].clone();
            run.metrics.insert(key.clone(), value);
        }
    }
    let judged = |planned: usize| {
        let mut design = design.clone();
        design.settings.planned = planned;
        design.settings.looks = vec![planned];
        compare(&design, &blocks[..planned]).comparisons[1].clone()
    };
    let few = judged(4);
    let effect = few.effect.clone().unwrap();
    assert!(effect.high < 0.0 && few.outcome == Outcome::Unresolved, "{few:?}");
    let why = few.why.unwrap().detail;
    let said =
        "alone, the interval excludes 0, but 8 comparisons are judged together, which takes more evidence; ";
    assert!(
        why.starts_with(said) && why.ends_with("4 blocks are usable; a result needs at least 6"),
        "{why}"
    );
    // The twin: enough blocks for all.
    assert_eq!((judged(6).outcome, judged(6).why), (Outcome::Better, None));
}

#[test]
fn the_needed_number_of_blocks_is_that_of_a_plan_also_long_before_its_end() {
    let (mut design, blocks) = quiet(-0.5);
    design.settings.planned = 12;
    let why = |taken: usize| compare(&design, &blocks[..taken]).comparisons[0].why.clone().unwrap().detail;
    assert_eq!(why(1), "1 block is usable; a result needs at least 4");
    // The twin: a look within the plan would come to a result.
    assert!(why(5).starts_with("5 of 12 planned blocks are usable; this early, a result needs at least "));
}

#[test]
fn the_margin_follows_the_baseline_up_to_a_limit() {
    let margin = |sd: f64| {
        let design = design(&["a"], 12);
        let blocks = simulated(&design, &[0.0; 3], sd, Noise::Normal, 11);
        let outcome = compare(&design, &blocks);
        assert_eq!(
            outcome.baseline[0].margin, 0.01,
            "the margin of A/A must not follow from its own interval"
        );
        (outcome.comparisons[0].margin, outcome.baseline[0].effect.clone().unwrap())
    };
    assert_eq!(margin(0.001).0, 0.01);
    let (shown, baseline) = margin(0.02);
    assert!((shown / (baseline.half_width() * 0.75f64.sqrt()) - 1.0).abs() < 1e-9);
    assert!(shown > 0.01 && shown < 0.05);
    assert_eq!(margin(0.5).0, 0.05);
}

#[test]
fn an_outcome_reported_at_a_look_is_final() {
    let mut design = design(&["a"], 48);
    design.settings.looks = vec![12, 48];
    let shifts = [0.0, 0.0, -0.05];
    let mut blocks = simulated(&design, &shifts, 0.003, Noise::Normal, 1);
    // After the look the remedy's runs are pure noise.
    let noisy = simulated(&design, &[0.0; 3], 0.5, Noise::Normal, 2);
    blocks.splice(12.., noisy[12..].iter().cloned());
    let at_the_look = compare(&design, &blocks[..12]).comparisons[0].clone();
    assert_eq!((at_the_look.outcome, at_the_look.blocks), (Outcome::Better, 12));
    assert!(at_the_look.level < 0.001);
    assert_eq!(compare(&design, &blocks).comparisons[0], at_the_look);
    // The twin: with only the last look, the noise is included.
    design.settings.looks = vec![48];
    assert_eq!(compare(&design, &blocks).comparisons[0].outcome, Outcome::Unresolved);
    // Blocks beyond the plan have no level left.
    design.settings.planned = 12;
    design.settings.looks = vec![12];
    assert_eq!(compare(&design, &blocks).comparisons[0].blocks, 12);
}

#[test]
fn primary_metrics_are_one_family_and_the_others_another() {
    let (mut design, mut blocks) = quiet(0.0);
    for nth in 0..8 {
        let key = format!("other{nth}");
        design.metrics.push(metric(&key, &key, Unit::Count, Direction::LowerIsBetter, false));
        for run in blocks.iter_mut().flat_map(|b| &mut b.runs) {
            let value = 1.0 + ((run.block * 13 + run.arm * 7 + nth * 5) % 11) as f64;
            run.metrics.insert(key.clone(), Ok(value));
        }
    }
    let outcome = compare(&design, &blocks);
    assert_eq!(outcome.comparisons.len(), 9);
    assert_eq!(outcome.comparisons[0].p_holm, outcome.comparisons[0].p);
    let others = &outcome.comparisons[1..];
    let least = others.iter().min_by(|a, b| a.p.total_cmp(&b.p)).unwrap();
    assert!((least.p_holm - (8.0 * least.p).min(1.0)).abs() < 1e-12);
}

#[test]
fn a_difference_between_the_baseline_arms_is_a_warning() {
    let design = design(&["a"], 12);
    let disturbed = compare(&design, &simulated(&design, &[0.0, 0.05, 0.0], 0.003, Noise::Normal, 1));
    assert_eq!(disturbed.warnings.len(), 1);
    let warning = &disturbed.warnings[0];
    assert!(warning.contains("wall time") && warning.contains("+5"), "{warning}");
    let quiet = compare(&design, &simulated(&design, &[0.0; 3], 0.003, Noise::Normal, 1));
    assert_eq!(quiet.warnings, Vec::<String>::new());
}

#[test]
fn no_blocks_and_no_arms_do_not_panic() {
    let (design, _) = quiet(0.0);
    for blocks in [vec![], vec![Block { number: 0, runs: vec![] }]] {
        let outcome = compare(&design, &blocks);
        assert_eq!(outcome.comparisons[0].outcome, Outcome::Unresolved);
        assert!(outcome.comparisons[0].why.is_some());
    }
    let none = Design { arms: vec![], ..design };
    assert!(compare(&none, &[]).comparisons.is_empty());
}

#[test]
fn values_survive_the_journal() {
    let (design, mut blocks) = quiet(-0.1);
    let absent = Absence::new(Reason::NotPermitted, "no").mend("run as root");
    runs_of(&mut blocks, 2).for_each(|r| drop(r.metrics.insert("rss".to_string(), Err(absent.clone()))));
    // A value that survives serde_json exactly; others may change in the last digit.
    runs_of(&mut blocks, 2).for_each(|r| drop(r.metrics.insert("wall".to_string(), Ok(0.8125))));
    blocks[0].runs.retain(|r| r.arm == 2);
    let line = serde_json::to_string(&blocks[0]).unwrap();
    assert!(!line.contains('\n'));
    assert_eq!(serde_json::from_str::<Block>(&line).unwrap(), blocks[0]);
    let line = serde_json::to_string(&design).unwrap();
    assert_eq!(serde_json::from_str::<Design>(&line).unwrap(), design);
    // A journal of a version without predictions.
    let arm: ArmInfo = serde_json::from_str(r#"{"name":"jemalloc","baseline":false}"#).unwrap();
    assert!(arm.predicted.is_empty());
}
