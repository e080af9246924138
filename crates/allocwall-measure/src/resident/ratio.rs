//! A share that is estimated from clusters of different size: windows of a heap, pools of an arena.

/// Ratio of the sums of two amounts, with its error by the residuals of the clusters (Cochran, Sampling Techniques, 3rd
/// edition, section 6.4).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Ratio {
    clusters: f64,
    whole: f64,
    part: f64,
    whole_squared: f64,
    whole_times_part: f64,
    part_squared: f64,
}

/// Of the normal distribution, for 95 %.
const QUANTILE: f64 = 1.96;

impl Ratio {
    /// A cluster of which `part` belongs to what is counted.
    pub fn add(&mut self, whole: u64, part: u64) {
        let (whole, part) = (whole as f64, part as f64);
        self.clusters += 1.0;
        self.whole += whole;
        self.part += part;
        self.whole_squared += whole * whole;
        self.whole_times_part += whole * part;
        self.part_squared += part * part;
    }

    /// What all clusters hold together.
    pub fn whole(&self) -> f64 {
        self.whole
    }

    /// 0 if nothing was seen.
    pub fn point(&self) -> f64 {
        if self.whole > 0.0 { self.part / self.whole } else { 0.0 }
    }

    /// Half of the 95 % interval. `seen`: the part of the population that is in the clusters. If all of it is, there is
    /// no error; if only one cluster was seen, all is possible.
    pub fn half_width(&self, seen: f64) -> f64 {
        if seen >= 1.0 {
            return 0.0;
        }
        if self.clusters < 2.0 || self.whole <= 0.0 {
            return 1.0;
        }
        let ratio = self.point();
        let residuals =
            self.part_squared - 2.0 * ratio * self.whole_times_part + ratio * ratio * self.whole_squared;
        let variance = residuals.max(0.0) * self.clusters / (self.clusters - 1.0) / (self.whole * self.whole);
        QUANTILE * (variance * (1.0 - seen.max(0.0))).sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(clusters: &[(u64, u64)]) -> Ratio {
        let mut ratio = Ratio::default();
        clusters.iter().for_each(|&(whole, part)| ratio.add(whole, part));
        ratio
    }

    #[test]
    fn equal_shares_have_no_error_and_different_ones_do() {
        let equal = of(&[(100, 25), (200, 50), (40, 10)]);
        assert_eq!(equal.point(), 0.25);
        assert!(equal.half_width(0.1) < 1e-6);
        let different = of(&[(100, 0), (100, 100), (100, 0), (100, 100)]);
        assert_eq!(different.point(), 0.5);
        // Four draws of a coin: 1.96 · √(0.25 / 3).
        assert!((different.half_width(0.0) - 0.566).abs() < 0.001, "{}", different.half_width(0.0));
        assert!(different.half_width(0.75) < different.half_width(0.0));
        assert_eq!(different.half_width(1.0), 0.0);
    }

    #[test]
    fn one_cluster_says_nothing_about_the_others() {
        assert_eq!(of(&[(100, 50)]).half_width(0.5), 1.0);
        assert_eq!((of(&[]).point(), of(&[]).half_width(0.0)), (0.0, 1.0));
    }
}
