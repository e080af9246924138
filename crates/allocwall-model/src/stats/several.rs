//! Several comparisons and several interim looks, with no more false alarms than one comparison at one look.

use super::Z95;
use statrs::distribution::{ContinuousCDF, Normal};

/// The probability of a false alarm in a family of comparisons: 5 %.
pub const ALPHA: f64 = 0.05;

/// p-values adjusted for a family of comparisons, in the given order (S. Holm, Scand. J. Statistics 6, 1979). If each hypothesis with
/// an adjusted p-value of at most α is rejected, at most a fraction α of the families has an error, for any dependence between the
/// comparisons.
pub fn holm(p: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|&a, &b| p[a].total_cmp(&p[b]));
    let mut adjusted = vec![1.0; p.len()];
    let mut least = 0.0f64;
    for (nth, &i) in order.iter().enumerate() {
        least = least.max((p[i] * (p.len() - nth) as f64).min(1.0));
        adjusted[i] = least;
    }
    adjusted
}

/// How much of [`ALPHA`] is spent when the fraction `done` of the planned data is available: the alpha spending function of the
/// O'Brien-Fleming type, which spends little at first (K. K. G. Lan and D. L. DeMets, Biometrika 70, 1983).
pub fn spent(done: f64) -> f64 {
    if done <= 0.0 {
        return 0.0;
    }
    if done >= 1.0 {
        return ALPHA;
    }
    // 2 − 2 Φ(z / √t), computed from the tail, which loses no digits.
    2.0 * Normal::standard().sf(Z95 / done.sqrt())
}

/// The level of each interim look. `looks` is the amount of data at each look, ascending; `planned` is the total, in the same unit.
/// Each look gets what was spent since the look before. All looks together err with a probability of at most [`ALPHA`], for any
/// dependence between them. The exact joint boundaries would gain little, and do not exist for rank tests.
pub fn levels(looks: &[usize], planned: usize) -> Vec<f64> {
    let mut before = 0.0;
    looks
        .iter()
        .map(|&look| {
            let now = spent(look as f64 / planned.max(1) as f64);
            let level = (now - before).max(0.0);
            before = before.max(now);
            level
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holm_steps_down_from_the_least() {
        // By hand: 5 · 0.01, 4 · 0.02, 3 · 0.03. The later ones must not be smaller: 2 · 0.04 and 0.05 become 0.09.
        let adjusted = holm(&[0.05, 0.01, 0.03, 0.02, 0.04]);
        for (got, want) in adjusted.iter().zip([0.09, 0.05, 0.09, 0.08, 0.09]) {
            assert!((got - want).abs() < 1e-12, "{adjusted:?}");
        }
        assert_eq!(holm(&[]), Vec::<f64>::new());
        assert_eq!(holm(&[0.9, 0.8]), [1.0, 1.0]);
    }

    #[test]
    fn spending_is_little_at_first() {
        // scipy 1.17.1: 2 * stats.norm.sf(1.959963984540054 / sqrt(t)).
        for (done, want) in [(0.2, 1.18e-5), (0.25, 8.9e-5), (0.5, 0.00557), (0.75, 0.02362), (1.0, 0.05)] {
            assert!((spent(done) / want - 1.0).abs() < 0.01, "{done}: {}", spent(done));
        }
        assert_eq!(spent(0.0), 0.0);
        assert_eq!(spent(1.5), ALPHA);
    }

    #[test]
    fn looks_share_one_level_and_a_late_one_gets_nothing() {
        let planned = levels(&[6, 12, 24], 24);
        assert!((planned.iter().sum::<f64>() - ALPHA).abs() < 1e-12, "{planned:?}");
        assert!(planned[2] > 0.044, "the last look keeps most of the level: {planned:?}");
        assert_eq!(levels(&[24], 24), [ALPHA]);
        assert_eq!(levels(&[24, 30], 24)[1], 0.0);
    }
}
