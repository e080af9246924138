//! The number of blocks, the order of arms, and the interim looks. Pure functions: the same seed gives the same plan.

use super::{BASELINES, Metric};
use allocwall_model::stats::random::Random;
use allocwall_model::stats::size::{Spread, sets_needed};
use allocwall_model::stats::{ranks, several};

/// Default margin: a relative change of 1 %.
pub const DEFAULT_EFFECT: f64 = 0.01;
/// With a run-to-run noise of 1 % (standard deviation), 12 blocks detect a change of 1.2 % in four of five trials.
pub const DEFAULT_BLOCKS: usize = 12;
/// With more blocks, the remaining noise is smaller than the systematic differences between two copies of one program (memory
/// layout, placement). And the memory of the statistics grows with the square of the number.
pub const MOST_BLOCKS: usize = 500;
/// Power of a planned trial under normal noise. With skewed noise a small pilot sometimes underestimates the noise; this value
/// then still leaves a power of about 0.9 (the tests simulate it).
pub const POWER: f64 = 0.95;
/// Looks, as fractions of the planned blocks. The first two use up an eighth of the last look's level.
const LOOKS: &[f64] = &[0.25, 0.5, 1.0];
/// Largest number of looks of a plan.
pub const MOST_LOOKS: usize = LOOKS.len();

/// Order of arms in each block, `order[block][place] = arm`.
///
/// In each block every order is equally likely and independent of the other blocks. The exact test needs this on a machine whose
/// speed varies. Orders that are balanced over several blocks (Williams squares) cancel the effect of the place, but make the
/// blocks depend on one another: relabelled runs of a disturbed machine were then called different in up to 12 % of the draws at
/// a level of 5 %. With independent orders it is near 5 %.
pub fn order(arms: usize, blocks: usize, seed: u64) -> Vec<Vec<usize>> {
    let mut random = Random::new(seed);
    let mut shuffled = || {
        let mut order: Vec<usize> = (0..arms).collect();
        random.shuffle(&mut order);
        order
    };
    (0..blocks).map(|_| shuffled()).collect()
}

/// Number of comparisons that share the level of the primary metrics: remedies times primary metrics. A trial without remedies
/// compares only A′.
pub fn family(arms: usize, metrics: &[Metric]) -> usize {
    family_of(arms, metrics, true)
}

/// The same for the primary metrics or for the others, which share a level of their own.
pub fn family_of(arms: usize, metrics: &[Metric], primary: bool) -> usize {
    let metrics = metrics.iter().filter(|m| m.primary == primary).count();
    arms.saturating_sub(BASELINES).max(1) * metrics.max(1)
}

/// The smallest number of blocks that allows the outcome better or worse, with `family` comparisons and one look. A trial without
/// remedies (`arms` = 2) needs more blocks, because each block has fewer possible orders.
pub fn fewest_blocks(arms: usize, family: usize) -> usize {
    fewest_at(arms, family, several::ALPHA)
}

fn fewest_at(arms: usize, family: usize, level: f64) -> usize {
    let untreated = if arms > BASELINES { BASELINES } else { 1 };
    ranks::fewest(untreated, level / family.max(1) as f64)
}

/// Number of blocks if the user gives no number, no time budget and no effect.
pub fn default_blocks(arms: usize, family: usize) -> usize {
    DEFAULT_BLOCKS.max(fewest_blocks(arms, family))
}

/// The looks: after a quarter, a half and all of the blocks. A look is left out if it could not decide even with unanimous blocks;
/// its share of the level goes to the next look.
pub fn looks(planned: usize, arms: usize, family: usize) -> Vec<usize> {
    let mut looks: Vec<usize> = Vec::new();
    for fraction in LOOKS {
        let look = (planned as f64 * fraction).ceil() as usize;
        if look == planned {
            break;
        }
        looks.push(look);
        let level = several::levels(&looks, planned).pop().unwrap_or(0.0);
        if look < fewest_at(arms, family, level) {
            looks.pop();
        }
    }
    looks.push(planned);
    looks
}

/// The plan for a time budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Total number of blocks, including those that have already run.
    pub blocks: usize,
    pub looks: Vec<usize>,
    /// The smallest number of blocks that allows an outcome, if the budget is too small for them.
    pub short_of: Option<usize>,
}

/// A trial may end this much after its budget, as a factor: the last block is not known to be too long before it is over.
pub const OVERRUN: f64 = 1.05;

/// The time that the blocks of a result take, in seconds, if one takes `block_s` and this budget is too short for them.
pub fn too_short(budget_s: f64, block_s: f64, arms: usize, family: usize) -> Option<f64> {
    let needed_s = block_s * fewest_blocks(arms, family) as f64;
    (needed_s > budget_s * OVERRUN).then_some(needed_s)
}

/// Plans for a total of `budget_s` seconds; `done` blocks have already taken `spent_s`. The plan has at least `done` blocks and at
/// least one. Call it before the first look: a plan that changes after a look spends its level twice.
pub fn for_budget(budget_s: f64, done: usize, spent_s: f64, arms: usize, family: usize) -> Budget {
    let each = spent_s / done.max(1) as f64;
    let more = if each > 0.0 { (budget_s - spent_s) / each } else { 0.0 };
    // A float too large for usize becomes its maximum.
    let blocks = done.saturating_add(more.max(0.0) as usize).clamp(done.max(1), MOST_BLOCKS.max(done));
    let fewest = fewest_blocks(arms, family);
    Budget { blocks, looks: looks(blocks, arms, family), short_of: (blocks < fewest).then_some(fewest) }
}

/// Number of blocks that detects a relative change of `effect` with power [`POWER`], from the noise of a pilot (see
/// [`super::compare::spread`]). It uses the level of the last look and assumes that no other comparison of the family is decided.
/// The result may exceed [`MOST_BLOCKS`]: then it is reported but not planned. None if no number of blocks is known to be enough.
pub fn blocks_for(effect: f64, pilot: Spread, arms: usize, family: usize) -> Option<usize> {
    let fewest = fewest_blocks(arms, family);
    let needed = |level: f64| sets_needed(effect.ln_1p(), pilot, level / family.max(1) as f64, POWER, fewest);
    // The looks depend on the number of blocks, and the number of blocks depends a little on the level that the looks leave.
    let first = needed(several::ALPHA)?;
    let looks = looks(first, arms, family);
    needed(*several::levels(&looks, first).last()?)
}

/// The smallest relative change that a plan of this many blocks detects with power [`POWER`], at this noise. None if these blocks
/// can't give a result, or no change below a factor of [`LARGEST`] is known to be detected.
pub fn resolves(blocks: usize, noise: Spread, arms: usize, family: usize) -> Option<f64> {
    /// Relative changes between which the answer is searched.
    const SMALLEST: f64 = 1e-5;
    const STEPS: usize = 40;
    let is_enough = |effect: f64| blocks_for(effect, noise, arms, family).is_some_and(|n| n <= blocks);
    if !is_enough(LARGEST) {
        return None;
    }
    // On a scale of factors. What a larger change needs is never more, apart from the looks, whose effect is below the precision.
    let (mut low, mut high) = (SMALLEST.ln(), LARGEST.ln());
    for _ in 0..STEPS {
        let middle = (low + high) / 2.0;
        if is_enough(middle.exp()) { high = middle } else { low = middle }
    }
    Some(high.exp())
}

/// Largest relative change that [`resolves`] gives: a factor of eleven.
const LARGEST: f64 = 10.0;

/// The noise of a remedy against the mean of two baseline runs (in a trial without remedies: of A′ against A), if single runs have
/// this relative standard deviation.
pub fn noise_of_runs(of_run: f64, arms: usize) -> Spread {
    // As of many runs, so that the quantiles are the normal ones.
    Spread { sd: of_run * per_run(arms), degrees_of_freedom: 100_000 }
}

/// The standard deviation of a difference, in those of one run: √(1 + 1/2), or √2 without remedies.
pub fn per_run(arms: usize) -> f64 {
    let untreated = if arms > BASELINES { BASELINES } else { 1 };
    (1.0 + 1.0 / untreated as f64).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn what_a_plan_resolves_is_what_the_plan_for_it_needs() {
        for (arms, family) in [(2, 1), (3, 1), (5, 3), (4, 4)] {
            let noise = noise_of_runs(0.01, arms);
            for blocks in [8, 12, 40, 200] {
                let least = resolves(blocks, noise, arms, family).unwrap_or(f64::INFINITY);
                assert!(blocks_for(least, noise, arms, family).is_some_and(|n| n <= blocks), "{blocks}");
                let less = blocks_for(least * 0.9, noise, arms, family);
                assert!(less.is_none_or(|n| n > blocks), "{arms} arms, {blocks} blocks: {least} {less:?}");
            }
            // Less noise or more blocks resolve smaller changes.
            let of = |blocks, of_run| resolves(blocks, noise_of_runs(of_run, arms), arms, family);
            assert!(of(12, 0.01) > of(12, 0.005) && of(12, 0.01) > of(48, 0.01));
            // Too few for any result.
            assert_eq!(of(fewest_blocks(arms, family) - 1, 0.01), None);
        }
    }

    #[test]
    fn a_noise_beyond_every_plan_resolves_nothing() {
        assert_eq!(resolves(12, noise_of_runs(50.0, 3), 3, 1), None);
        assert!(resolves(12, noise_of_runs(0.5, 3), 3, 1).is_some());
    }

    #[test]
    fn orders_follow_from_the_seed_and_a_longer_plan_begins_like_a_shorter_one() {
        assert_eq!(order(3, 24, 1), order(3, 24, 1));
        assert_ne!(order(3, 24, 1), order(3, 24, 2));
        // A trial can be continued.
        assert_eq!(order(3, 60, 1)[..24], order(3, 24, 1));
    }

    #[test]
    fn the_order_of_a_block_is_independent_of_the_next() {
        let mut seen = BTreeMap::new();
        for seed in 0..4000 {
            *seen.entry(order(2, 2, seed)).or_insert(0) += 1;
        }
        assert_eq!(seen.len(), 4);
        // Four standard deviations of a count of 1000.
        assert!(seen.values().all(|n: &i32| (n - 1000).abs() < 110), "{seen:?}");
    }

    #[test]
    fn every_order_of_a_block_is_equally_likely() {
        let mut seen = BTreeMap::new();
        for seed in 0..6000 {
            *seen.entry(order(3, 1, seed).remove(0)).or_insert(0) += 1;
        }
        assert_eq!(seen.len(), 6);
        // Four standard deviations of a count of 1000.
        assert!(seen.values().all(|n: &i32| (n - 1000).abs() < 116), "{seen:?}");
    }

    #[test]
    fn a_plan_never_has_fewer_blocks_than_an_outcome_needs() {
        // 2 / 3^4 = 0.025 and 2 / 2^6 = 0.031 are the first below 0.05; 2 / 3^5 = 0.008 is the first below 0.05 / 3.
        assert_eq!(fewest_blocks(3, 1), 4);
        assert_eq!(fewest_blocks(5, 3), 5);
        assert_eq!(fewest_blocks(2, 1), 6);
        assert_eq!(default_blocks(3, 1), 12);
        // 2 / 3^14 is the first below 0.05 / 40000.
        assert_eq!(default_blocks(3, 40_000), 14);
    }

    #[test]
    fn looks_that_could_not_decide_are_left_out() {
        // A quarter of 40: unanimous blocks reach p = 2 / 3^10 = 0.00003; the level is 0.00009.
        assert_eq!(looks(40, 3, 1), [10, 20, 40]);
        // A quarter of 36: p = 2 / 3^9 = 0.0001 is above the level.
        assert_eq!(looks(36, 3, 1), [18, 36]);
        assert_eq!(looks(12, 3, 1), [6, 12]);
        assert_eq!(looks(6, 3, 1), [6]);
        assert_eq!(looks(12, 2, 1), [12]);
        assert_eq!(looks(1, 3, 1), [1]);
    }

    #[test]
    fn the_blocks_fit_the_budget() {
        let budget = for_budget(300.0, 2, 20.0, 3, 1);
        assert_eq!((budget.blocks, budget.short_of), (30, None));
        assert_eq!(budget.looks, looks(30, 3, 1));
        let short = for_budget(25.0, 1, 10.0, 3, 1);
        assert_eq!((short.blocks, short.short_of), (2, Some(4)));
        // The budget is already exceeded: the finished blocks stay in the plan.
        assert_eq!(for_budget(5.0, 3, 30.0, 3, 1).blocks, 3);
        assert_eq!(for_budget(1e9, 1, 1e-9, 3, 1).blocks, MOST_BLOCKS);
        assert_eq!(for_budget(0.0, 0, 0.0, 3, 1).blocks, 1);
    }

    #[test]
    fn a_budget_is_too_short_for_fewer_blocks_than_a_result_needs() {
        // Four blocks of 10 s, of six with the baseline alone.
        assert_eq!((too_short(30.0, 10.0, 3, 1), too_short(40.0, 10.0, 3, 1)), (Some(40.0), None));
        assert_eq!(too_short(40.0, 10.0, 2, 1), Some(60.0));
    }

    #[test]
    fn a_smaller_effect_more_noise_and_more_arms_take_more_blocks() {
        let pilot = |sd| Spread { sd, degrees_of_freedom: 10 };
        let base = blocks_for(0.02, pilot(0.02), 3, 1).unwrap();
        assert!(blocks_for(0.01, pilot(0.02), 3, 1).unwrap() > 3 * base);
        assert!(blocks_for(0.02, pilot(0.03), 3, 1).unwrap() > base);
        assert!(blocks_for(0.02, pilot(0.02), 5, 3).unwrap() > base);
        assert_eq!(blocks_for(0.02, pilot(0.0), 5, 3), Some(5));
        assert_eq!(blocks_for(0.0, pilot(0.02), 3, 1), None);
    }
}
