//! Pure statistics; imports only `units`. Intervals are two-sided, with 95 % confidence unless a level is a parameter.

pub mod random;
pub mod ranks;
pub mod several;
pub mod size;
pub mod trend;

use crate::units::Interval;
use statrs::distribution::{Binomial, ContinuousCDF, DiscreteCDF, StudentsT};

/// 97.5 % quantile of the standard normal distribution.
pub const Z95: f64 = 1.959_963_984_540_054;

/// 97.5 % quantile of Student's t; infinite without a degree of freedom.
pub fn t95(degrees_of_freedom: usize) -> f64 {
    t_of(0.05, degrees_of_freedom)
}

/// The quantile of Student's t that both tails exceed with the probability `alpha` in all; infinite without a degree of freedom.
pub fn t_of(alpha: f64, degrees_of_freedom: usize) -> f64 {
    match StudentsT::new(0.0, 1.0, degrees_of_freedom as f64) {
        Ok(t) => t.inverse_cdf(1.0 - alpha / 2.0),
        Err(_) => f64::INFINITY,
    }
}

/// `after` - `before`, if both are independent, from their 95 % intervals (MOVER: G. Y. Zou and A. Donner, Statistics in Medicine 27,
/// 2008). `wider` is how much wider than those the interval is to be: 1 for 95 %.
pub fn difference(before: Interval, after: Interval, wider: f64) -> Interval {
    let point = after.point - before.point;
    let half = |a: f64, b: f64| wider * a.hypot(b);
    Interval::new(
        point - half(after.point - after.low, before.high - before.point),
        point,
        point + half(after.high - after.point, before.point - before.low),
    )
}

/// Wilson's score interval for a proportion (E. B. Wilson, JASA 22, 1927). Without trials: the interval from 0 to 1.
pub fn wilson(successes: u64, trials: u64) -> Interval {
    if trials == 0 {
        return Interval::new(0.0, 0.0, 1.0);
    }
    let n = trials as f64;
    wilson_of(successes.min(trials) as f64 / n, n)
}

/// The same for a proportion whose error is that of `n` trials, for example one of weighted samples.
pub fn wilson_of(p: f64, n: f64) -> Interval {
    let z2 = Z95 * Z95;
    let centre = (p + z2 / (2.0 * n)) / (1.0 + z2 / n);
    let half = Z95 / (1.0 + z2 / n) * (p * (1.0 - p) / n + z2 / (4.0 * n * n)).sqrt();
    Interval::new((centre - half).clamp(0.0, p), p, (centre + half).clamp(p, 1.0))
}

/// Ratio of two sums over blocks, sum(y) / sum(x), with the delete-one-block jackknife's interval (Wolter, Introduction to Variance
/// Estimation, ch. 4). None with fewer than three blocks with x above 0.
pub fn ratio_over_blocks(blocks: &[(f64, f64)]) -> Option<Interval> {
    let blocks: Vec<_> = blocks.iter().filter(|(_, x)| *x > 0.0).collect();
    let k = blocks.len();
    if k < 3 {
        return None;
    }
    let (y, x) = blocks.iter().fold((0.0, 0.0), |(y, x), b| (y + b.0, x + b.1));
    let ratio = y / x;
    let left_out: Vec<f64> = blocks.iter().map(|b| (y - b.0) / (x - b.1)).collect();
    let mean = left_out.iter().sum::<f64>() / k as f64;
    let variance = left_out.iter().map(|r| (r - mean).powi(2)).sum::<f64>() * (k - 1) as f64 / k as f64;
    let half = t95(k - 1) * variance.sqrt();
    Some(Interval::new(ratio - half, ratio, ratio + half))
}

/// A proportion of samples taken over time. Samples near in time are similar, so the binomial interval is too narrow for a load that
/// varies in time; the interval over blocks can be too narrow by chance. At each end, the wider of the two is used. `blocks` are
/// (hits, samples).
pub fn proportion_over_time(blocks: &[(u64, u64)]) -> Interval {
    let (hits, samples) = blocks.iter().fold((0, 0), |(h, s), b| (h + b.0, s + b.1));
    let binomial = wilson(hits, samples);
    let blocks: Vec<_> = blocks.iter().map(|b| (b.0 as f64, b.1 as f64)).collect();
    match ratio_over_blocks(&blocks) {
        Some(over_blocks) => Interval::new(
            binomial.low.min(over_blocks.low).max(0.0),
            binomial.point,
            binomial.high.max(over_blocks.high).min(1.0),
        ),
        None => binomial,
    }
}

/// The median; None without values. NaN counts as the largest value.
pub fn median(values: &[f64]) -> Option<f64> {
    let sorted = sorted(values);
    let n = sorted.len();
    match n {
        0 => None,
        _ if n % 2 == 1 => Some(sorted[n / 2]),
        _ => Some((sorted[n / 2 - 1] + sorted[n / 2]) / 2.0),
    }
}

/// Median with its distribution-free interval: the narrowest symmetric pair of order statistics that covers at least 95 %
/// (David and Nagaraja, Order Statistics, 7.1). With fewer than six values no pair covers 95 %; then it is the whole range.
pub fn median_interval(values: &[f64]) -> Option<Interval> {
    let point = median(values)?;
    let sorted = sorted(values);
    let n = sorted.len();
    // The pair (k-th smallest, k-th largest) misses with probability 2 P(Binomial(n, 1/2) < k).
    let binomial = Binomial::new(0.5, n as u64).ok()?;
    let k = (1..=n / 2).take_while(|k| 2.0 * binomial.cdf(*k as u64 - 1) <= 0.05).last().unwrap_or(1);
    Some(Interval::new(sorted[k - 1], point, sorted[n - k]))
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-4
    }

    #[test]
    fn wilson_gives_the_published_values() {
        // Newcombe, Statistics in Medicine 17 (1998), table I, method 3.
        for (r, n, low, high) in [
            (81, 263, 0.2553, 0.3662),
            (15, 148, 0.0624, 0.1605),
            (0, 20, 0.0, 0.1611),
            (1, 29, 0.0061, 0.1718),
        ] {
            let i = wilson(r, n);
            assert!(near(i.low, low) && near(i.high, high), "{r}/{n}: {i:?}");
        }
        assert_eq!(wilson(0, 0), Interval::new(0.0, 0.0, 1.0));
        assert_eq!(wilson(7, 7).high, 1.0);
    }

    #[test]
    fn t_quantiles_are_the_tables() {
        for (df, t) in [(1, 12.7062), (2, 4.3027), (14, 2.1448), (29, 2.0452), (1000, 1.9623)] {
            assert!(near(t95(df), t), "{df}: {}", t95(df));
        }
        assert!(t95(0).is_infinite());
    }

    #[test]
    fn a_mean_is_a_ratio_with_equal_denominators() {
        // With x = 1 in all blocks, the jackknife gives the classical interval of a mean: 1..5 has s/sqrt(5) = 0.70711,
        // t(4) = 2.77645.
        let blocks: Vec<_> = (1..=5).map(|y| (y as f64, 1.0)).collect();
        let i = ratio_over_blocks(&blocks).unwrap();
        assert!(near(i.point, 3.0) && near(i.half_width(), 1.963_24), "{i:?}");
        assert_eq!(ratio_over_blocks(&blocks[..2]), None);
        assert_eq!(ratio_over_blocks(&[(0.0, 0.0); 20]), None);
    }

    #[test]
    fn waves_widen_a_proportion_and_evenness_does_not_narrow_it() {
        let waves: Vec<_> = (0..20).map(|k| if k % 4 == 0 { (80, 100) } else { (0, 100) }).collect();
        let even = vec![(20, 100); 20];
        let (waves, even) = (proportion_over_time(&waves), proportion_over_time(&even));
        assert_eq!((waves.point, even.point), (0.2, 0.2));
        assert_eq!((even.low, even.high), (wilson(400, 2000).low, wilson(400, 2000).high));
        assert!(waves.half_width() > 4.0 * even.half_width());
        assert!(waves.low >= 0.0 && waves.high <= 1.0);
    }

    #[test]
    fn median_takes_the_tabled_order_statistics() {
        // Ranks for 95 %: n = 6 -> 1, 10 -> 2, 20 -> 6, 50 -> 18 (Dixon and Massey, table A-25).
        for (n, k) in [(6, 1), (10, 2), (20, 6), (50, 18)] {
            let values: Vec<f64> = (1..=n).rev().map(f64::from).collect();
            let i = median_interval(&values).unwrap();
            assert_eq!((i.low, i.high), (f64::from(k), f64::from(n + 1 - k)), "n = {n}");
            assert_eq!(i.point, f64::from(n + 1) / 2.0);
        }
        assert_eq!(median_interval(&[]), None);
        assert_eq!(median_interval(&[3.0]), Some(Interval::exact(3.0)));
    }
}
