//! The intended starts of requests.

use allocwall_model::stats::random::Random;
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Arrivals {
    /// Evenly spaced.
    Constant,
    /// Independent users: exponential gaps. The same random seed gives the same schedule, so all arms of a trial get the same
    /// bursts.
    Poisson { seed: u64 },
}

/// Infinite ascending sequence of intended starts, in nanoseconds since the start.
pub(super) struct Schedule {
    arrivals: Arrivals,
    gap_ns: f64,
    sent: u64,
    at_ns: f64,
    random: Random,
}

impl Schedule {
    /// `rate_per_s` must be above zero.
    pub(super) fn new(arrivals: Arrivals, rate_per_s: f64) -> Self {
        let seed = match arrivals {
            Arrivals::Constant => 0,
            Arrivals::Poisson { seed } => seed,
        };
        Schedule { arrivals, gap_ns: 1e9 / rate_per_s, sent: 0, at_ns: 0.0, random: Random::new(seed) }
    }
}

impl Iterator for Schedule {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        self.at_ns = match self.arrivals {
            // Computed from the count, not as a sum, so that rounding errors don't add up.
            Arrivals::Constant => self.sent as f64 * self.gap_ns,
            Arrivals::Poisson { .. } => self.at_ns - self.random.unit_above_zero().ln() * self.gap_ns,
        };
        self.sent += 1;
        Some(self.at_ns as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: f64 = 1000.0;
    const MEAN_NS: f64 = 1e6;

    fn times(arrivals: Arrivals, count: usize) -> Vec<u64> {
        Schedule::new(arrivals, RATE).take(count).collect()
    }

    fn gaps(times: &[u64]) -> Vec<f64> {
        times.windows(2).map(|pair| (pair[1] - pair[0]) as f64).collect()
    }

    fn mean(values: &[f64]) -> f64 {
        values.iter().sum::<f64>() / values.len() as f64
    }

    #[test]
    fn constant_arrivals_do_not_drift() {
        let times: Vec<u64> = Schedule::new(Arrivals::Constant, 3.0).take(3_000_001).collect();
        assert_eq!((times[0], times[3], times[3_000_000]), (0, 1_000_000_000, 1_000_000_000_000_000));
    }

    /// Theory of a Poisson process: exponential gaps (mean equals standard deviation, a share of 1/e is above the mean),
    /// uncorrelated neighbours, and counts in equal spans whose variance equals their mean. The bounds are at least five standard
    /// errors.
    #[test]
    fn poisson_arrivals_have_exponential_gaps() {
        let n = 200_000;
        for seed in [0, 1, 42] {
            let times = times(Arrivals::Poisson { seed }, n);
            let gaps = gaps(&times);
            let mean_gap = mean(&gaps);
            assert!((mean_gap / MEAN_NS - 1.0).abs() < 0.012, "{mean_gap}");
            let deviation = mean(&gaps.iter().map(|g| (g - mean_gap).powi(2)).collect::<Vec<_>>()).sqrt();
            assert!((deviation / MEAN_NS - 1.0).abs() < 0.02, "{deviation}");
            let above = gaps.iter().filter(|g| **g > MEAN_NS).count() as f64 / gaps.len() as f64;
            assert!((above - (-1.0f64).exp()).abs() < 0.006, "{above}");
            let product: Vec<f64> = gaps.windows(2).map(|p| (p[0] - mean_gap) * (p[1] - mean_gap)).collect();
            assert!((mean(&product) / deviation.powi(2)).abs() < 0.012);
            let spans = (times[n - 1] / 10_000_000) as usize;
            let mut counts = vec![0.0f64; spans];
            for time in times {
                if let Some(count) = counts.get_mut((time / 10_000_000) as usize) {
                    *count += 1.0;
                }
            }
            let variance = mean(&counts.iter().map(|c| (c - 10.0).powi(2)).collect::<Vec<_>>());
            assert!((variance - 10.0).abs() < 0.6, "{variance}");
        }
    }

    /// The twin: evenly spaced requests have no spread.
    #[test]
    fn constant_arrivals_have_no_spread() {
        let gaps = gaps(&times(Arrivals::Constant, 1000));
        assert!(gaps.iter().all(|gap| (gap - MEAN_NS).abs() <= 1.0));
    }

    #[test]
    fn a_seed_determines_the_schedule() {
        let of = |seed| times(Arrivals::Poisson { seed }, 100);
        assert_eq!(of(7), of(7));
        assert_ne!(of(7), of(8));
    }
}
