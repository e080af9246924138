//! Whether values rise over time: the rank test of Mann and Kendall, the slope of Theil and Sen, where a rise begins, and a test for a
//! step that lasts. One odd value changes little. Values must be finite. Neighbouring values should be independent; if they are not, a
//! rise is found too often.

use super::Z95;
use crate::units::Interval;
use statrs::distribution::{ContinuousCDF, Normal};

/// Up to this number of values without ties the null distribution is exact. Beyond it is the normal distribution.
const EXACT_UP_TO: usize = 40;
/// The part of the null distribution beyond one end of an interval of 95 %.
const TAIL: f64 = 0.025;
/// The fewest values before and after a step.
const BEFORE: usize = 3;
const AFTER: usize = 2;

/// Two-sided p-value of the hypothesis that every order of the values is equally likely (H. B. Mann, Econometrica 13, 1945; with ties,
/// the variance of M. G. Kendall, Rank Correlation Methods). With fewer than five values it is never below 5 %.
pub fn p_value(values: &[f64]) -> f64 {
    let n = values.len();
    let score = score(values).unsigned_abs() as usize;
    let ties = ties(values);
    if ties.is_empty() && n <= EXACT_UP_TO {
        let tail: f64 = inversions(n)[..=(pairs(n) - score) / 2].iter().sum();
        return (2.0 * tail).min(1.0);
    }
    let variance = (terms(n) - ties.into_iter().map(terms).sum::<f64>()) / 18.0;
    if variance <= 0.0 {
        return 1.0;
    }
    // With a correction for continuity.
    let z = (score as f64 - 1.0).max(0.0) / variance.sqrt();
    (2.0 * Normal::standard().sf(z)).min(1.0)
}

/// The median of the slopes between any two points, with the interval of the slopes that [`p_value`] does not reject at 5 %
/// (H. Theil, 1950; P. K. Sen, JASA 63, 1968). `points` are (time, value) with ascending times. None with fewer than five points.
pub fn slope(points: &[(f64, f64)]) -> Option<Interval> {
    let mut slopes: Vec<f64> = points
        .iter()
        .enumerate()
        .flat_map(|(nth, a)| points[nth + 1..].iter().map(move |b| (b.1 - a.1) / (b.0 - a.0)))
        .filter(|slope| slope.is_finite())
        .collect();
    slopes.sort_by(f64::total_cmp);
    let below = slopes.len().checked_sub(critical(points.len())?)? / 2;
    let point = super::median(&slopes)?;
    Some(Interval::new(*slopes.get(below)?, point, slopes[slopes.len() - 1 - below]))
}

/// A step that lasts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// The index of the first value after it.
    pub from: usize,
    pub rises: bool,
    /// Two-sided p-value of the hypothesis that every order of the values is equally likely. It counts all places of the step.
    pub p: f64,
}

/// The step of the values: all of them from an index on (at least two) are above, or all are below, all earlier ones (at least three),
/// by more than `least` and by more than the earlier ones differ among themselves. Of several, the largest step.
pub fn step(values: &[f64], least: f64) -> Option<Step> {
    let falling: Vec<f64> = values.iter().map(|value| -value).collect();
    // The same values never make both.
    step_up(values, least, true).or_else(|| step_up(&falling, least, false))
}

fn step_up(values: &[f64], least: f64, rises: bool) -> Option<Step> {
    let all = steps_up(values).into_iter().filter(|(_, height)| *height > least);
    let (from, height) = all.max_by(|a, b| a.1.total_cmp(&b.1))?;
    // Values with a gap above the smallest k of them make a step there if these k come first: in 1 of C(n, k) orders. The sum over all
    // gaps that are as large is at least the chance of any of these steps.
    let possible = steps_up(&super::sorted(values)).into_iter().filter(|(_, other)| *other >= height);
    let chance: f64 = possible.map(|(k, _)| 1.0 / choose(values.len(), k)).sum();
    Some(Step { from, rises, p: (2.0 * chance).min(1.0) })
}

/// Steps up: each as the index of the first value after it, and its height.
fn steps_up(values: &[f64]) -> Vec<(usize, f64)> {
    let highest = |part: &[f64]| part.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let lowest = |part: &[f64]| part.iter().copied().fold(f64::INFINITY, f64::min);
    (BEFORE..(values.len() + 1).saturating_sub(AFTER))
        .filter_map(|from| {
            let (before, after) = values.split_at(from);
            let height = lowest(after) - highest(before);
            (height > highest(before) - lowest(before)).then_some((from, height))
        })
        .collect()
}

/// The fewest values that can show a trend at this level: if all of them rise, the p-value is 2 / n!.
pub fn fewest_for_a_trend(level: f64) -> usize {
    let (mut n, mut p) = (1, 2.0);
    while p > level {
        n += 1;
        p /= n as f64;
    }
    n
}

/// The fewest values that can show a step at this level: in the middle, its p-value is 2 / C(n, n/2).
pub fn fewest_for_a_step(level: f64) -> usize {
    let mut n = BEFORE + AFTER;
    while 2.0 / choose(n, n / 2) > level {
        n += 1;
    }
    n
}

/// The number of ways to choose k of n.
fn choose(n: usize, k: usize) -> f64 {
    (0..k).map(|nth| (n - nth) as f64 / (nth + 1) as f64).product()
}

/// The index of the first value of a rise: of all steps, and of all lines that are level and then rise, the one that fits best (least
/// squares). `points` are (time, value) with ascending times, at least two.
pub fn begins(points: &[(f64, f64)]) -> usize {
    let mut best = (1, 0.0);
    for from in 1..points.len() {
        let knot = points[from - 1].0;
        let step = explained(points, |nth, _| if nth >= from { 1.0 } else { 0.0 });
        let bend = explained(points, |_, time| (time - knot).max(0.0));
        let most = step.max(bend);
        // More than a rounding error.
        if most > best.1 * (1.0 + 1e-9) {
            best = (from, most);
        }
    }
    best.0
}

/// The sum of squares that a rising shape explains.
fn explained(points: &[(f64, f64)], shape: impl Fn(usize, f64) -> f64) -> f64 {
    let n = points.len() as f64;
    let shaped = || points.iter().enumerate().map(|(nth, (time, value))| (shape(nth, *time), *value));
    let (sum_x, sum_y) = shaped().fold((0.0, 0.0), |sums, (x, y)| (sums.0 + x, sums.1 + y));
    let (mean_x, mean_y) = (sum_x / n, sum_y / n);
    let (xx, xy) = shaped().fold((0.0, 0.0), |sums, (x, y)| {
        (sums.0 + (x - mean_x).powi(2), sums.1 + (x - mean_x) * (y - mean_y))
    });
    if xx > 0.0 && xy > 0.0 { xy * xy / xx } else { 0.0 }
}

fn pairs(n: usize) -> usize {
    n * n.saturating_sub(1) / 2
}

/// Pairs that rise minus pairs that fall.
fn score(values: &[f64]) -> i64 {
    let of = |a: f64, b: f64| i64::from(b > a) - i64::from(b < a);
    let after = |nth: usize| values[nth + 1..].iter();
    values.iter().enumerate().map(|(nth, a)| after(nth).map(|b| of(*a, *b)).sum::<i64>()).sum()
}

/// The sizes of groups of equal values.
fn ties(values: &[f64]) -> Vec<usize> {
    super::sorted(values).chunk_by(|a, b| a == b).map(<[f64]>::len).filter(|size| *size > 1).collect()
}

/// Of n values, or of a group of ties: 18 times its part of the variance.
fn terms(n: usize) -> f64 {
    let n = n as f64;
    n * (n - 1.0) * (2.0 * n + 5.0)
}

/// The smallest score that [`p_value`] rejects at 5 % without ties; None if there is none.
fn critical(n: usize) -> Option<usize> {
    if n <= EXACT_UP_TO {
        let mut sum = 0.0;
        let within = |chance: &f64| {
            sum += *chance;
            sum <= TAIL
        };
        let rejected = inversions(n).into_iter().take_while(within).count();
        return rejected.checked_sub(1).map(|most| pairs(n) - 2 * most);
    }
    let least = (1.0 + Z95 * (terms(n) / 18.0).sqrt()).ceil() as usize;
    // Scores are even, or all of them are odd.
    Some(least + pairs(n).saturating_sub(least) % 2)
}

/// The probabilities of 0, 1, 2 … pairs that fall, if every order of n values is equally likely.
fn inversions(n: usize) -> Vec<f64> {
    let mut chances = vec![1.0];
    for size in 2..=n {
        // The last of these values has 0 to size − 1 larger ones before it.
        let mut next = vec![0.0; chances.len() + size - 1];
        for (count, chance) in chances.iter().enumerate() {
            for more in &mut next[count..count + size] {
                *more += chance / size as f64;
            }
        }
        chances = next;
    }
    chances
}

#[cfg(test)]
mod tests {
    use super::super::random::Random;
    use super::*;

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-9
    }

    fn every_minute(values: &[f64]) -> Vec<(f64, f64)> {
        values.iter().enumerate().map(|(nth, value)| (60.0 * nth as f64, *value)).collect()
    }

    #[test]
    fn p_values_are_those_of_all_orders() {
        // By hand: 1 of 120 orders of five values has no falling pair, and 4 have one; of six values 1 and 5 of 720.
        assert!(near(p_value(&[1.0, 2.0, 3.0, 4.0, 5.0]), 2.0 / 120.0));
        assert!(near(p_value(&[5.0, 4.0, 3.0, 2.0, 1.0]), 2.0 / 120.0));
        assert!(near(p_value(&[1.0, 2.0, 3.0, 5.0, 4.0]), 10.0 / 120.0));
        assert!(near(p_value(&[1.0, 2.0, 3.0, 4.0, 6.0, 5.0]), 12.0 / 720.0));
        // Too few values, and values that do not differ.
        assert!(near(p_value(&[1.0, 2.0, 3.0, 4.0]), 2.0 / 24.0));
        assert_eq!([p_value(&[]), p_value(&[7.0]), p_value(&[3.0; 9])], [1.0; 3]);
        // Kendall's variance: (8·7·21 − 4·3·13) / 18; z = 21 / 7.5277.
        let tied = p_value(&[0.0, 0.0, 0.0, 0.0, 1.0, 2.0, 3.0, 4.0]);
        assert!((tied - 0.005_275_9).abs() < 1e-6, "{tied}");
    }

    #[test]
    fn the_least_scores_are_those_of_the_tables() {
        // M. Hollander, D. A. Wolfe and E. Chicken, Nonparametric Statistical Methods, table of Kendall's K at 0.025.
        for (n, least) in [(5, 10), (6, 13), (8, 18), (10, 23), (12, 30)] {
            assert_eq!(critical(n), Some(least), "{n}");
        }
        assert_eq!((critical(4), critical(0)), (None, None));
        // The normal distribution goes on where the exact one ends.
        let [exact, normal] = [EXACT_UP_TO, EXACT_UP_TO + 1].map(|n| critical(n).unwrap());
        assert!(normal > exact && normal < exact + 12, "{exact} {normal}");
        assert_eq!((pairs(EXACT_UP_TO + 1) - normal) % 2, 0);
    }

    #[test]
    fn a_slope_is_the_median_of_all_and_one_odd_value_changes_little() {
        // Computed by all 45 slopes: the 12th, the median and the 34th.
        let values = [2.0, 3.1, 2.7, 4.2, 3.9, 5.5, 5.1, 6.4, 7.2, 6.8];
        let per_minute = slope(&every_minute(&values)).unwrap().scaled(60.0);
        assert!(near(per_minute.low, 0.45) && near(per_minute.high, 11.0 / 15.0), "{per_minute:?}");
        assert!(near(per_minute.point, 4.1 / 7.0), "{per_minute:?}");
        let mut odd = values;
        odd[4] = 500.0;
        let changed = slope(&every_minute(&odd)).unwrap().scaled(60.0);
        assert!((changed.point - per_minute.point).abs() < 0.2, "{changed:?}");
        assert_eq!(slope(&every_minute(&values[..4])), None);
        let exact = slope(&every_minute(&[1.0, 2.0, 3.0, 4.0, 5.0])).unwrap();
        assert!(near(exact.low, 1.0 / 60.0) && near(exact.high, 1.0 / 60.0));
    }

    #[test]
    fn test_and_interval_agree_and_noise_rises_seldom() {
        let mut random = Random::new(5);
        let (mut rises, mut steps) = (0, 0);
        for _ in 0..1_000 {
            let values: Vec<f64> = (0..12).map(|_| random.unit()).collect();
            let slope = slope(&every_minute(&values)).unwrap();
            let rejected = p_value(&values) <= 0.05;
            assert_eq!(slope.low > 0.0 || slope.high < 0.0, rejected, "{values:?}");
            rises += usize::from(rejected);
            steps += usize::from(step(&values, 0.0).is_some());
        }
        // Four standard deviations above 5 %; and steps are much rarer.
        assert!(rises < 78 && steps < 10, "{rises} rises and {steps} steps of 1,000");
    }

    /// Its place, and whether it rises.
    fn place(values: &[f64], least: f64) -> Option<(usize, bool)> {
        step(values, least).map(|step| (step.from, step.rises))
    }

    #[test]
    fn a_step_lasts_and_a_single_high_value_is_none() {
        let late = [0.1, 0.0, 0.2, 0.1, 0.0, 0.1, 0.1, 0.2, 0.1, 0.0, 6.0, 7.0];
        assert_eq!(place(&late, 1.0), Some((10, true)));
        assert_eq!(place(&late.map(|value| -value), 1.0), Some((10, false)));
        // Not yet lasting; over again; smaller than what counts; and not larger than the noise before it.
        assert_eq!(place(&late[..11], 1.0), None);
        assert_eq!(place(&[&late[..], &[0.1]].concat(), 1.0), None);
        assert_eq!(place(&late, 10.0), None);
        assert_eq!(place(&[0.0, 5.0, 1.0, 6.0, 7.0], 0.5), None);
        assert_eq!(place(&[0.0, 0.5, 0.1, 6.0, 7.0], 0.5), Some((3, true)));
        for short in [&[][..], &[1.0], &[0.0, 0.0, 9.0, 9.0]] {
            assert_eq!(place(short, 0.5), None);
        }
    }

    /// Every order of the values from this index on.
    fn orders(values: &mut [f64], from: usize, each: &mut dyn FnMut(&[f64])) {
        if from == values.len() {
            return each(values);
        }
        for nth in from..values.len() {
            values.swap(from, nth);
            orders(values, from + 1, each);
            values.swap(from, nth);
        }
    }

    #[test]
    fn the_p_value_of_a_step_counts_all_orders_and_all_places() {
        let mut steps = vec![];
        // A step of 19 above the smallest five, and one of 8 above the smallest three.
        orders(&mut [0.0, 1.0, 2.0, 10.0, 11.0, 30.0, 31.0], 0, &mut |order| steps.extend(step(order, 0.0)));
        let of = |place: usize| steps.iter().filter(|step| step.from == place).collect::<Vec<_>>();
        let [high, low] = [5, 3].map(of);
        // Half of p is for steps down, which these values don't make. 240 of 5,040 orders have the high step; 144 have the low one,
        // and 24 of these the high one too.
        assert!(high.len() == 240 && high.iter().all(|step| step.rises && near(step.p, 2.0 / 21.0)));
        let both = 2.0 / 21.0 + 2.0 / 35.0;
        assert!(low.len() == 120 && low.iter().all(|step| step.rises && near(step.p, both)));
        // The near twin: an even rise is no step.
        assert_eq!(step(&[0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0], 0.0), None);
    }

    #[test]
    fn the_fewest_values_can_show_a_change_and_one_less_can_not() {
        assert_eq!([0.05, 0.01, 0.001].map(fewest_for_a_trend), [5, 6, 7]);
        assert_eq!([0.05, 0.05 / 2.0, 0.05 / 22.0, 0.05 / 24.0].map(fewest_for_a_step), [8, 9, 12, 13]);
        for n in 5..30usize {
            let rises: Vec<f64> = (0..n).map(|nth| nth as f64).collect();
            let high: Vec<f64> = (0..n).map(|nth| if nth < n.div_ceil(2) { 0.0 } else { 1.0 }).collect();
            let of_step = step(&high, 0.5).map_or(1.0, |step| step.p);
            for level in [0.05, 0.01, 1e-4, 1e-6] {
                assert_eq!(p_value(&rises) <= level, n >= fewest_for_a_trend(level), "{n} {level}");
                assert_eq!(of_step <= level, n >= fewest_for_a_step(level), "{n} {level}");
            }
        }
    }

    #[test]
    fn a_slow_rise_is_clearer_as_a_trend_than_as_a_step() {
        for seed in 0..100 {
            let mut random = Random::new(seed);
            let mut noisy = |level: &dyn Fn(usize) -> f64| -> Vec<f64> {
                (0..24).map(|nth| level(nth) + 10.0 * random.unit()).collect()
            };
            let slow = noisy(&|nth| 2.0 * nth as f64);
            assert!(p_value(&slow) < 1e-4 && step(&slow, 0.0).is_none_or(|step| step.p > p_value(&slow)));
            // The near twin.
            let high = noisy(&|nth| if nth < 9 { 0.0 } else { 30.0 });
            let found = step(&high, 1.0).expect("a step");
            assert!((found.from, found.rises) == (9, true) && found.p < 1e-5, "{found:?}");
        }
    }

    #[test]
    fn a_rise_begins_where_its_shape_bends() {
        let of = |values: &[f64]| begins(&every_minute(values));
        // From the start; after a level part; a step.
        assert_eq!(of(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]), 1);
        assert_eq!(of(&[0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 2.0, 3.0, 4.0]), 5);
        assert_eq!(of(&[0.1, 0.0, 0.2, 0.1, 9.0, 9.1, 8.9]), 4);
        assert_eq!((of(&[0.0, 1.0]), of(&[3.0, 3.0, 3.0])), (1, 1));
    }
}
