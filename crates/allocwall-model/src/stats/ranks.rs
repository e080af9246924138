//! The shift between a treated run and the untreated runs of its set: exact test, estimate and interval from aligned ranks.
//!
//! A set is one treated run and one or more untreated runs, in random order. If the treatment has no effect, each value of a set is
//! equally likely to be the treated one, for any distribution of the noise and any drift from set to set. The test uses only this.
//! Values are aligned (the mean of their set is subtracted) and ranked together. The statistic is the sum of the treated runs'
//! ranks (J. L. Hodges and E. L. Lehmann, Ann. Math. Stat. 33, 1962), plus the rank of each treated run within its own set. With one
//! untreated run per set this is Wilcoxon's signed-rank test with Pratt's ranks for zeros (JASA 54, 1959); the estimate is that of
//! Hodges and Lehmann, and the interval is that of the Walsh averages.
//!
//! Why not the signed-rank test on treated − mean(untreated)? This difference is not symmetric if the noise is skewed: with
//! exponential noise it is positive in 44 % of the sets. More sets would then give more false alarms, not fewer.
//! Why not the median with its sign-test interval? It needs about 50 % more sets (its efficiency is 2/3 of this test's under normal
//! noise), and at least six sets instead of four.

use crate::units::Interval;
use statrs::distribution::{ContinuousCDF, Normal};
use std::cmp::Ordering;

/// Values of one unit, on a scale on which an effect is a shift (logarithms, for ratios). They must be finite. A set without an
/// untreated value is ignored.
#[derive(Clone, Debug, PartialEq)]
pub struct Set {
    pub treated: f64,
    pub untreated: Vec<f64>,
}

impl Set {
    /// The treated value minus the mean of the untreated values; None without an untreated value.
    pub fn difference(&self) -> Option<f64> {
        match self.untreated.len() {
            0 => None,
            n => Some(self.treated - self.untreated.iter().sum::<f64>() / n as f64),
        }
    }
}

/// Up to this number of sets the null distribution is exact. With more sets it is the normal distribution, with the variance of the
/// actual ranks (including ties) and a continuity correction.
pub const EXACT_UP_TO: usize = 60;

/// Aligned values that differ by less than this are ties: the difference is a rounding error.
const TIE: f64 = 1e-12;

/// Two-sided p-value of the hypothesis that the treatment shifts by `shift`; 1 without sets.
pub fn p_value(sets: &[Set], shift: f64) -> f64 {
    let (lower, upper) = tails(sets, shift);
    (2.0 * lower.min(upper)).min(1.0)
}

/// The shift and its interval with confidence 1 − `level`. None if there are too few sets for an interval with two finite ends: see
/// [`fewest`]. Time and memory grow with the square of the number of sets.
pub fn shift(sets: &[Set], level: f64) -> Option<Interval> {
    let turns = turning_points(sets);
    let point = super::median(&turns)?;
    let mut distinct = turns;
    distinct.dedup_by(|b, a| *b - *a < 10.0 * TIE);
    // Between two neighbouring turning points nothing changes. Gap 0 is below the first one, the last gap is above the last one.
    let n = distinct.len();
    let within = |gap: usize| match gap {
        0 => distinct[0] - 1.0,
        gap if gap == n => distinct[n - 1] + 1.0,
        gap => (distinct[gap - 1] + distinct[gap]) / 2.0,
    };
    // The smaller the tried shift, the higher the ranks of the treated runs.
    let low = first(n + 1, |gap| tails(sets, within(gap)).1 > level / 2.0);
    let high = first(n + 1, |gap| tails(sets, within(gap)).0 <= level / 2.0);
    if low == 0 || low > n || high == 0 || high > n {
        return None;
    }
    let (low, high) = (distinct[low - 1], distinct[high - 1]);
    Some(Interval::new(low.min(point), point, high.max(point)))
}

/// Only the estimate; one set is enough for it.
pub fn estimate(sets: &[Set]) -> Option<f64> {
    super::median(&turning_points(sets))
}

/// The smallest number of sets of `untreated` + 1 runs with which the test can reject at `level` (two-sided). If all sets agree, p
/// is 2 / (untreated + 1)^sets.
pub fn fewest(untreated: usize, level: f64) -> usize {
    let options = (untreated.max(1) + 1) as f64;
    let mut sets = 1;
    while 2.0 / options.powi(sets) > level && sets < 1000 {
        sets += 1;
    }
    sets as usize
}

/// The first value of `0..n` for which `holds` is true, if it is also true for all later ones; `n` if there is none.
fn first(n: usize, holds: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, n);
    while low < high {
        let middle = (low + high) / 2;
        if holds(middle) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    low
}

/// The shifts at which a treated run and an untreated run exchange their aligned order, sorted; those of its own set twice. The
/// statistic is the number of these shifts above the tried one, so their median is the estimate. With one untreated run per set
/// they are the Walsh averages of the differences, twice.
fn turning_points(sets: &[Set]) -> Vec<f64> {
    let centred: Vec<(f64, f64, &Set)> = sets
        .iter()
        .filter_map(|set| {
            let difference = set.difference()?;
            Some((difference, set.treated - difference, set))
        })
        .collect();
    let mut turns = Vec::new();
    for (i, (own, _, set)) in centred.iter().enumerate() {
        // The aligned value of the treated run is `rise` × (own − shift).
        let m = set.untreated.len() as f64;
        let rise = m / (m + 1.0);
        for (j, (other, mean, other_set)) in centred.iter().enumerate() {
            let fall = 1.0 / (other_set.untreated.len() as f64 + 1.0);
            for untreated in &other_set.untreated {
                // It equals the untreated run's where rise (own − s) = (untreated − mean) − fall (other − s).
                let at = (rise * own + fall * other - (untreated - mean)) / (rise + fall);
                turns.push(at);
                if i == j {
                    turns.push(at);
                }
            }
        }
    }
    turns.sort_by(f64::total_cmp);
    turns
}

/// P(T ≤ t) and P(T ≥ t), if each value of a set is equally likely to be the treated one.
fn tails(sets: &[Set], shift: f64) -> (f64, f64) {
    let scores = scores(sets, shift);
    let observed: usize = scores.iter().map(|set| set[0]).sum();
    if scores.len() <= EXACT_UP_TO { counted(&scores, observed) } else { by_normal(&scores, observed) }
}

fn counted(scores: &[Vec<usize>], observed: usize) -> (f64, f64) {
    // Index: the sum. Value: its probability after the sets so far.
    let mut chances = vec![1.0];
    for set in scores {
        let mut next = vec![0.0; chances.len() + set.iter().max().unwrap_or(&0)];
        let share = 1.0 / set.len() as f64;
        for score in set {
            for (to, from) in next[*score..].iter_mut().zip(&chances) {
                *to += from * share;
            }
        }
        chances = next;
    }
    let lower = chances[..=observed].iter().sum();
    let upper = chances[observed..].iter().sum();
    (lower, upper)
}

fn by_normal(scores: &[Vec<usize>], observed: usize) -> (f64, f64) {
    let (mut mean, mut variance) = (0.0, 0.0);
    for set in scores {
        let n = set.len() as f64;
        let centre = set.iter().sum::<usize>() as f64 / n;
        mean += centre;
        variance += set.iter().map(|s| (*s as f64 - centre).powi(2)).sum::<f64>() / n;
    }
    let Ok(normal) = Normal::new(mean, variance.sqrt()) else {
        return (1.0, 1.0);
    };
    let observed = observed as f64;
    (normal.cdf(observed + 0.5), normal.sf(observed - 0.5))
}

/// The rank sum of each set, computed with each of its values as the treated one; the real treated one is first. Midranks are doubled
/// to be integers. The smallest score of each set and common factors are removed: fewer different sums take less time.
fn scores(sets: &[Set], shift: f64) -> Vec<Vec<usize>> {
    let aligned: Vec<Vec<i64>> = sets
        .iter()
        .filter(|set| !set.untreated.is_empty())
        .map(|set| {
            let values = || std::iter::once(set.treated - shift).chain(set.untreated.iter().copied());
            let mean = values().sum::<f64>() / (set.untreated.len() + 1) as f64;
            values().map(|v| ((v - mean) / TIE).round() as i64).collect()
        })
        .collect();
    let mut all: Vec<i64> = aligned.iter().flatten().copied().collect();
    all.sort_unstable();
    let mut scores: Vec<Vec<usize>> = aligned
        .iter()
        .map(|set| {
            let mut own = set.clone();
            own.sort_unstable();
            let doubled = |v: &i64| doubled_midrank(&all, *v) + doubled_midrank(&own, *v);
            let sums: Vec<usize> = set.iter().map(doubled).collect();
            let least = sums.iter().copied().min().unwrap_or(0);
            sums.into_iter().map(|s| s - least).collect()
        })
        .collect();
    let factor = scores.iter().flatten().fold(0, |a, b| common_factor(a, *b));
    if factor > 1 {
        scores.iter_mut().flatten().for_each(|s| *s /= factor);
    }
    scores
}

fn doubled_midrank(sorted: &[i64], value: i64) -> usize {
    let below = sorted.partition_point(|v| v.cmp(&value) == Ordering::Less);
    let upto = sorted.partition_point(|v| *v <= value);
    below + upto + 1
}

fn common_factor(a: usize, b: usize) -> usize {
    match b {
        0 => a,
        b => common_factor(b, a % b),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::random::Random;
    use proptest::prelude::*;

    fn pairs(differences: &[f64]) -> Vec<Set> {
        differences.iter().map(|d| Set { treated: *d, untreated: vec![0.0] }).collect()
    }

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-9
    }

    /// R's example of wilcox.test: Hamilton depression scale factor before and after (Hollander and Wolfe 1973, p. 29).
    const DEPRESSION: [f64; 9] = [0.952, -0.147, 1.022, 0.43, 0.62, 0.59, 0.49, -0.08, 0.01];

    #[test]
    fn one_untreated_run_a_set_is_wilcoxons_signed_rank_test() {
        // scipy 1.17.1: stats.wilcoxon(DEPRESSION, method="exact").
        assert!(near(p_value(&pairs(&DEPRESSION), 0.0), 0.0390625));
        // scipy 1.17.1, ties and zeros: zero_method="pratt", method=PermutationMethod over all 2^12 signs.
        let tied = [0.0, 1.0, 1.0, 2.0, -1.0, 3.0, 3.0, -2.0, 4.0, 0.0, 5.0, 1.0];
        assert!(near(p_value(&pairs(&tied), 0.0), 0.048828125));
        // scipy 1.17.1: stats.wilcoxon(made(n), method="exact").
        assert!(near(p_value(&pairs(&made(25)), 0.0), 0.12664812803268433));
        assert!(near(p_value(&pairs(&made(60)), 0.0), 0.020652701520027072));
        assert_eq!(p_value(&pairs(&[0.0; 9]), 0.0), 1.0);
        assert_eq!(p_value(&[], 0.0), 1.0);
    }

    #[test]
    fn beyond_the_exact_the_normal_distribution_agrees() {
        // scipy 1.17.1: stats.wilcoxon(made(80)), asymptotic with correction and exact.
        let p = p_value(&pairs(&made(80)), 0.0);
        assert!(near(p, 0.008165413535536565), "{p}");
        assert!((p - 0.007678306761399911).abs() < 1e-3);
    }

    /// Magnitudes 0.1, 0.2, … in a mixed order, two of three positive.
    fn made(n: usize) -> Vec<f64> {
        (0..n)
            .map(|i| {
                let size = ((i * 37) % (n + 1 - n % 2) + 1) as f64 / 10.0;
                if i % 3 == 0 { -size } else { size }
            })
            .collect()
    }

    #[test]
    fn its_estimate_and_interval_are_those_of_the_walsh_averages() {
        // numpy 2.4.6: median, 6th and 40th of the 45 Walsh averages (P(V ≤ 5) = 0.0195 for n = 9).
        let got = shift(&pairs(&DEPRESSION), 0.05).unwrap();
        assert!(near(got.point, 0.46) && near(got.low, 0.01) && near(got.high, 0.786), "{got:?}");
        assert_eq!(estimate(&pairs(&DEPRESSION)), Some(got.point));
    }

    /// Seven sets of three.
    fn threes() -> Vec<Set> {
        [
            (10.1, 9.8, 10.0),
            (9.7, 9.9, 9.5),
            (10.9, 10.1, 10.2),
            (10.4, 10.0, 10.3),
            (10.2, 9.6, 9.9),
            (11.0, 10.3, 10.1),
            (9.9, 10.0, 9.6),
        ]
        .map(|(treated, a, b)| Set { treated, untreated: vec![a, b] })
        .to_vec()
    }

    #[test]
    fn two_untreated_runs_a_set_give_what_all_labellings_give() {
        // numpy 2.4.6 and scipy 1.17.1 (rankdata): all 3^7 choices of the treated run. The ends of the interval: by trying shifts
        // in steps of 0.001.
        let (lower, upper) = tails(&threes(), 0.0);
        assert!(near(lower, 0.9949702789208962) && near(upper, 0.007315957933241884), "{lower} {upper}");
        let got = shift(&threes(), 0.05).unwrap();
        let by_grid = |a: f64, b: f64| (a - b).abs() <= 0.001;
        assert!(by_grid(got.low, 0.1) && by_grid(got.high, 0.667), "{got:?}");
        assert!(by_grid(got.point, 0.35), "{got:?}");
    }

    #[test]
    fn few_sets_bound_nothing_and_the_fewest_do() {
        for (untreated, fewest_sets) in [(1, 6), (2, 4)] {
            assert_eq!(fewest(untreated, 0.05), fewest_sets);
            let sets = |n: usize| -> Vec<Set> {
                let set = |i: usize| Set {
                    treated: 1.0 + i as f64 / 100.0,
                    untreated: (0..untreated).map(|k| (i * 7 + k * 3) as f64 % 5.0 / 50.0).collect(),
                };
                (0..n).map(set).collect()
            };
            assert_eq!(shift(&sets(fewest_sets - 1), 0.05), None);
            let got = shift(&sets(fewest_sets), 0.05).unwrap();
            assert!(got.low > 0.0 && p_value(&sets(fewest_sets), 0.0) <= 0.05, "{got:?}");
        }
        let alone = Set { treated: 1.0, untreated: vec![] };
        assert_eq!(shift(&[alone], 0.05), None);
    }

    #[test]
    fn skewed_noise_raises_no_alarm_however_many_the_sets() {
        // The signs of treated − mean(untreated) would give a false alarm in every fourth trial of 150 sets.
        let mut random = Random::new(1);
        let mut alarms = 0;
        let mut positive = 0;
        for _ in 0..400 {
            let mut exponential = || -(1.0 - random.unit()).ln();
            let sets: Vec<Set> = (0..150)
                .map(|_| Set { treated: exponential(), untreated: vec![exponential(), exponential()] })
                .collect();
            alarms += usize::from(p_value(&sets, 0.0) <= 0.05);
            positive += sets.iter().filter(|s| s.difference() > Some(0.0)).count();
        }
        // The expected share is 4/9; 1/2 is five standard deviations away.
        assert!((positive as f64 / 60_000.0 - 4.0 / 9.0).abs() < 0.01);
        assert!(alarms <= 20 + 13, "{alarms} of 400");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn test_and_interval_agree(seed: u64, sets in 4usize..25, tied: bool, at in -3.0..3.0f64) {
            let mut random = Random::new(seed);
            let mut value = || if tied { random.below(5) as f64 } else { random.unit() * 4.0 };
            let sets: Vec<Set> = (0..sets)
                .map(|i| Set { treated: value() + 0.5, untreated: (0..1 + i % 2).map(|_| value()).collect() })
                .collect();
            if let Some(i) = shift(&sets, 0.05) {
                prop_assert!(i.low <= i.point && i.point <= i.high);
                // At the ends themselves there are ties.
                let on_an_end = (at - i.low).abs() < 1e-9 || (at - i.high).abs() < 1e-9;
                let within = i.low < at && at < i.high;
                let p = p_value(&sets, at);
                // Two untreated runs: the ranks that are equally likely change with the tried shift, so p may fall a little and rise again.
                let at_the_level = (p - 0.05).abs() < 0.01;
                prop_assert!(on_an_end || at_the_level || within == (p > 0.05), "{at} {i:?} {p}");
            }
        }

        #[test]
        fn a_shift_of_the_treated_shifts_the_interval(seed: u64, by in -5.0..5.0f64) {
            let mut random = Random::new(seed);
            let sets: Vec<Set> = (0..8)
                .map(|_| Set { treated: random.unit(), untreated: vec![random.unit(), random.unit()] })
                .collect();
            let moved: Vec<Set> = sets.iter().map(|s| Set { treated: s.treated + by, ..s.clone() }).collect();
            let (a, b) = (shift(&sets, 0.05).unwrap(), shift(&moved, 0.05).unwrap());
            for (a, b) in [(a.low, b.low), (a.point, b.point), (a.high, b.high)] {
                prop_assert!((a + by - b).abs() < 1e-9);
            }
        }
    }
}
