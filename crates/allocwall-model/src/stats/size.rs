//! The number of sets that a comparison needs.

use statrs::distribution::{ContinuousCDF, StudentsT};

/// Efficiency of the signed-rank test against Student's t under normal noise (J. L. Hodges and E. L. Lehmann, Ann. Math. Stat. 27,
/// 1956). Also used for several untreated runs per set; the trial's tests check plans by simulation.
const EFFICIENCY: f64 = 3.0 / std::f64::consts::PI;

/// The noise that a pilot measured: the standard deviation of treated − mean(untreated) within sets, and its degrees of freedom.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    pub sd: f64,
    pub degrees_of_freedom: usize,
}

impl Spread {
    /// Pooled over several arms, each relative to its own mean. None without a degree of freedom.
    pub fn pooled(arms: &[Vec<f64>]) -> Option<Spread> {
        let (mut squares, mut degrees_of_freedom) = (0.0, 0);
        for arm in arms.iter().filter(|arm| arm.len() > 1) {
            let mean = arm.iter().sum::<f64>() / arm.len() as f64;
            squares += arm.iter().map(|d| (d - mean).powi(2)).sum::<f64>();
            degrees_of_freedom += arm.len() - 1;
        }
        (degrees_of_freedom > 0)
            .then(|| Spread { sd: (squares / degrees_of_freedom as f64).sqrt(), degrees_of_freedom })
    }
}

/// The number of sets needed to find a shift of `effect` (in the unit of the spread) at the two-sided `level` with probability
/// `power`; at least `fewest`. Quantiles are Student's with the pilot's degrees of freedom (C. Stein, Ann. Math. Stat. 16, 1945): a
/// small pilot estimates the noise badly, so the plan needs more sets. None if no finite number is enough.
pub fn sets_needed(effect: f64, spread: Spread, level: f64, power: f64, fewest: usize) -> Option<usize> {
    let t = StudentsT::new(0.0, 1.0, spread.degrees_of_freedom as f64).ok()?;
    let (tail, reach) = (t.inverse_cdf(1.0 - level / 2.0), t.inverse_cdf(power));
    let sets = ((tail + reach) * spread.sd / effect).powi(2) / EFFICIENCY;
    // A test on few sets also estimates the noise of its own data badly (W. C. Guenther, American Statistician 35, 1981).
    let sets = (sets + super::Z95.powi(2) / 2.0).ceil();
    (effect > 0.0 && sets.is_finite()).then(|| (sets as usize).max(fewest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_pooled_about_each_arms_own_mean() {
        // Sample variances 1 (of 1, 2, 3) and 2 (of 10, 12): (2·1 + 1·2) / 3.
        let spread = Spread::pooled(&[vec![1.0, 2.0, 3.0], vec![10.0, 12.0], vec![5.0], vec![]]).unwrap();
        assert!((spread.sd - (4.0f64 / 3.0).sqrt()).abs() < 1e-12);
        assert_eq!(spread.degrees_of_freedom, 3);
        assert_eq!(Spread::pooled(&[vec![1.0], vec![]]), None);
    }

    #[test]
    fn a_well_known_noise_takes_the_textbooks_number() {
        // Paired t-test, effect of half a standard deviation, 5 % two-sided, 80 %: 33.4 pairs (R: power.t.test(delta = 0.5, sd = 1,
        // power = 0.8, type = "paired")). For ranks, divided by 0.955.
        let known = Spread { sd: 1.0, degrees_of_freedom: 100_000 };
        assert_eq!(sets_needed(0.5, known, 0.05, 0.8, 4), Some(35));
        // With a pilot of six sets, quantiles of t(5): ((2.571 + 0.920) / 0.5)² / 0.955 + 1.92.
        let pilot = Spread { sd: 1.0, degrees_of_freedom: 5 };
        assert_eq!(sets_needed(0.5, pilot, 0.05, 0.8, 4), Some(53));
        assert_eq!(sets_needed(10.0, known, 0.05, 0.8, 4), Some(4));
        assert_eq!(sets_needed(0.0, known, 0.05, 0.8, 4), None);
        assert_eq!(sets_needed(f64::NAN, known, 0.05, 0.8, 4), None);
    }
}
