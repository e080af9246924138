//! How many blocks, in which order, and when to look. Pure: the same seed gives the same plan.

use super::{BASELINES, Metric};
use allocwall_model::stats::random::Random;
use allocwall_model::stats::size::{Spread, sets_needed};
use allocwall_model::stats::{ranks, several};

/// Change that is worth knowing where nobody says: 1 %.
pub const DEFAULT_EFFECT: f64 = 0.01;
/// At a noise of 1 % a run (standard deviation), it finds 1.2 % in four trials of five.
pub const DEFAULT_BLOCKS: usize = 12;
/// Beyond, what is left of the noise is smaller than what a machine does to one program and not to its copy (layout, placement);
/// and the statistics' memory grows with the square.
pub const MOST_BLOCKS: usize = 500;
/// Chance with which a planned trial finds the effect that it was planned for, under normal noise. Skewed noise fools small pilots
/// now and then: with this nine in ten are left (the tests simulate it).
pub const POWER: f64 = 0.95;
/// Fractions of the plan after which it is looked at. The first two cost the last an eighth of its level.
const LOOKS: &[f64] = &[0.25, 0.5, 1.0];

/// Order of arms in each block, `order[block][place] = arm`.
///
/// Every order of a block is equally likely, whatever those of the other blocks are: that alone makes the exact test exact on a
/// machine whose speed comes and goes. Orders balanced over several blocks (Williams squares) cancel what a place does, but tie
/// blocks to one another; relabelled runs of a disturbed machine were then called different in up to 12 % of the draws at 5 %, where
/// these stay near 5 %.
pub fn order(arms: usize, blocks: usize, seed: u64) -> Vec<Vec<usize>> {
    let mut random = Random::new(seed);
    let mut shuffled = || {
        let mut order: Vec<usize> = (0..arms).collect();
        random.shuffle(&mut order);
        order
    };
    (0..blocks).map(|_| shuffled()).collect()
}

/// Comparisons that share the level of the primary metrics: remedies by primary metrics; of a trial without remedies, A′ alone.
pub fn family(arms: usize, metrics: &[Metric]) -> usize {
    let primary = metrics.iter().filter(|m| m.primary).count();
    arms.saturating_sub(BASELINES).max(1) * primary.max(1)
}

/// The fewest blocks in which any remedy can be called better or worse, with `family` comparisons and one look; of a trial without
/// remedies (`arms` = 2) more, since a block has fewer orders.
pub fn fewest_blocks(arms: usize, family: usize) -> usize {
    fewest_at(arms, family, several::ALPHA)
}

fn fewest_at(arms: usize, family: usize, level: f64) -> usize {
    let untreated = if arms > BASELINES { BASELINES } else { 1 };
    ranks::fewest(untreated, level / family.max(1) as f64)
}

/// Blocks where neither a number nor a budget nor an effect was asked for.
pub fn default_blocks(arms: usize, family: usize) -> usize {
    DEFAULT_BLOCKS.max(fewest_blocks(arms, family))
}

/// When to look: after a quarter, a half and all of the blocks. A look at which unanimous blocks could not decide is left out, and
/// its share of the level goes to the next.
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

/// What a budget of time buys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Blocks in all, those that ran already included.
    pub blocks: usize,
    pub looks: Vec<usize>,
    /// Blocks without which no word is possible, where the time is too short for them.
    pub short_of: Option<usize>,
}

/// Plans for `budget_s` seconds in all, of which `done` blocks took `spent_s`. Never less than what ran, and at least one. To be
/// asked before the first look: a plan that changes after one spends its level twice.
pub fn for_budget(budget_s: f64, done: usize, spent_s: f64, arms: usize, family: usize) -> Budget {
    let each = spent_s / done.max(1) as f64;
    let more = if each > 0.0 {
        (budget_s - spent_s) / each
    } else {
        0.0
    };
    // A float too large for usize becomes its maximum.
    let blocks = done
        .saturating_add(more.max(0.0) as usize)
        .clamp(done.max(1), MOST_BLOCKS.max(done));
    let fewest = fewest_blocks(arms, family);
    Budget {
        blocks,
        looks: looks(blocks, arms, family),
        short_of: (blocks < fewest).then_some(fewest),
    }
}

/// Blocks that find a relative change of `effect` with the chance [`POWER`], from a pilot's noise (see
/// [`super::compare::spread`]): at the level of the last look, as if no other comparison of the family were decided. More than
/// [`MOST_BLOCKS`] are said, not planned. None where no number of blocks is known to be enough.
pub fn blocks_for(effect: f64, pilot: Spread, arms: usize, family: usize) -> Option<usize> {
    let fewest = fewest_blocks(arms, family);
    let needed = |level: f64| sets_needed(effect.ln_1p(), pilot, level / family.max(1) as f64, POWER, fewest);
    // Which looks there are depends on the number of blocks, and that, a little, on the level that they leave.
    let first = needed(several::ALPHA)?;
    let looks = looks(first, arms, family);
    needed(*several::levels(&looks, first).last()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn orders_follow_from_the_seed_and_a_longer_plan_begins_like_a_shorter_one() {
        assert_eq!(order(3, 24, 1), order(3, 24, 1));
        assert_ne!(order(3, 24, 1), order(3, 24, 2));
        // A trial can be continued.
        assert_eq!(order(3, 60, 1)[..24], order(3, 24, 1));
    }

    #[test]
    fn a_block_says_nothing_of_the_next() {
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
    fn a_plan_never_has_fewer_blocks_than_a_word_takes() {
        // 2 / 3^4 = 0.025 and 2 / 2^6 = 0.031 are the first below 0.05; 2 / 3^5 = 0.008 the first below a third of it.
        assert_eq!(fewest_blocks(3, 1), 4);
        assert_eq!(fewest_blocks(5, 3), 5);
        assert_eq!(fewest_blocks(2, 1), 6);
        assert_eq!(default_blocks(3, 1), 12);
        // 2 / 3^14 is the first below 0.05 / 40000.
        assert_eq!(default_blocks(3, 40_000), 14);
    }

    #[test]
    fn looks_that_could_not_decide_are_left_out() {
        // A quarter of 40: unanimous blocks reach 2 / 3^10 = 0.00003, the level is 0.00009.
        assert_eq!(looks(40, 3, 1), [10, 20, 40]);
        // Of 36: 2 / 3^9 = 0.0001 does not.
        assert_eq!(looks(36, 3, 1), [18, 36]);
        assert_eq!(looks(12, 3, 1), [6, 12]);
        assert_eq!(looks(6, 3, 1), [6]);
        assert_eq!(looks(12, 2, 1), [12]);
        assert_eq!(looks(1, 3, 1), [1]);
    }

    #[test]
    fn a_budget_buys_what_fits() {
        let budget = for_budget(300.0, 2, 20.0, 3, 1);
        assert_eq!((budget.blocks, budget.short_of), (30, None));
        assert_eq!(budget.looks, looks(30, 3, 1));
        let short = for_budget(25.0, 1, 10.0, 3, 1);
        assert_eq!((short.blocks, short.short_of), (2, Some(4)));
        // Overspent already: what ran, ran.
        assert_eq!(for_budget(5.0, 3, 30.0, 3, 1).blocks, 3);
        assert_eq!(for_budget(1e9, 1, 1e-9, 3, 1).blocks, MOST_BLOCKS);
        assert_eq!(for_budget(0.0, 0, 0.0, 3, 1).blocks, 1);
    }

    #[test]
    fn a_smaller_effect_more_noise_and_more_arms_take_more_blocks() {
        let pilot = |sd| Spread {
            sd,
            degrees_of_freedom: 10,
        };
        let base = blocks_for(0.02, pilot(0.02), 3, 1).unwrap();
        assert!(blocks_for(0.01, pilot(0.02), 3, 1).unwrap() > 3 * base);
        assert!(blocks_for(0.02, pilot(0.03), 3, 1).unwrap() > base);
        assert!(blocks_for(0.02, pilot(0.02), 5, 3).unwrap() > base);
        assert_eq!(blocks_for(0.02, pilot(0.0), 5, 3), Some(5));
        assert_eq!(blocks_for(0.0, pilot(0.02), 3, 1), None);
    }
}
