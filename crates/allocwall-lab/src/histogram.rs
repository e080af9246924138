//! Histograms of latencies with three digits, for transfer between processes and for files.

use hdrhistogram::Histogram as Hdr;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Significant digits.
const DIGITS: u8 = 3;
/// One hour. Longer times count as one hour.
const LONGEST_NS: u64 = 3_600_000_000_000;

/// Counts of times in nanoseconds; as JSON `[[ns, count], …]`, ascending. `ns` is the largest value of its bucket.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "Vec<(u64, u64)>", into = "Vec<(u64, u64)>")]
pub struct Histogram(Hdr<u64>);

impl Default for Histogram {
    fn default() -> Self {
        Histogram(Hdr::new_with_bounds(1, LONGEST_NS, DIGITS).expect("constant bounds that are valid"))
    }
}

impl Histogram {
    pub fn record(&mut self, ns: u64) {
        self.0.saturating_record(ns);
    }

    pub fn add(&mut self, other: &Histogram) {
        self.0.add(&other.0).expect("both have the same bounds");
    }

    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The value that this share (0 to 1) of all values does not exceed; None without values.
    pub fn quantile(&self, share: f64) -> Option<f64> {
        (!self.0.is_empty()).then(|| self.0.value_at_quantile(share) as f64)
    }

    /// The largest value. It is a single sample, so it has no statistical confidence.
    pub fn max(&self) -> Option<f64> {
        (!self.0.is_empty()).then(|| self.0.max() as f64)
    }

    /// Each value with the share of all values above it, ascending; the last share is 0.
    pub fn above(&self) -> Vec<(f64, f64)> {
        let all = self.count() as f64;
        let mut left = self.count();
        self.0
            .iter_recorded()
            .map(|step| {
                left -= step.count_at_value();
                (step.value_iterated_to() as f64, left as f64 / all)
            })
            .collect()
    }

    /// The share of all values in each tenth of a decade, from the first to the last that has values, with its lower end.
    pub fn tenths(&self) -> Vec<(f64, f64)> {
        let tenth = |ns: u64| (ns.max(1) as f64).log10() * 10.0;
        let mut counts: BTreeMap<i64, u64> = BTreeMap::new();
        for step in self.0.iter_recorded() {
            *counts.entry(tenth(step.value_iterated_to()).floor() as i64).or_default() +=
                step.count_at_value();
        }
        let (Some(first), Some(last)) = (counts.keys().next(), counts.keys().next_back()) else {
            return vec![];
        };
        let all = self.count() as f64;
        let share = |tenth: i64| counts.get(&tenth).map_or(0.0, |count| *count as f64 / all);
        // One more, at which the last one ends.
        (*first..=last + 1).map(|tenth| (10f64.powf(tenth as f64 / 10.0), share(tenth))).collect()
    }
}

impl From<Vec<(u64, u64)>> for Histogram {
    fn from(pairs: Vec<(u64, u64)>) -> Self {
        let mut histogram = Histogram::default();
        for (ns, count) in pairs {
            histogram.0.saturating_record_n(ns, count);
        }
        histogram
    }
}

impl From<Histogram> for Vec<(u64, u64)> {
    fn from(histogram: Histogram) -> Self {
        let steps = histogram.0.iter_recorded();
        steps.map(|step| (step.value_iterated_to(), step.count_at_value())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_survives_json() {
        let mut one = Histogram::default();
        (1..=100_000).for_each(|ns| one.record(ns));
        let json = serde_json::to_string(&one).unwrap();
        let back: Histogram = serde_json::from_str(&json).unwrap();
        assert_eq!(back, one);
        for share in [0.5, 0.99, 0.999] {
            let exact = 100_000.0 * share;
            let value = back.quantile(share).unwrap();
            assert!((value / exact - 1.0).abs() < 0.001, "{share}: {value}");
        }
        let mut both = back.clone();
        both.add(&one);
        assert_eq!((both.count(), both.quantile(0.5)), (200_000, one.quantile(0.5)));
    }

    #[test]
    fn nothing_has_no_quantile() {
        let none = Histogram::default();
        assert_eq!((none.quantile(0.5), none.max(), none.above().len()), (None, None, 0));
    }

    #[test]
    fn tenths_of_a_decade_sum_to_one_and_have_no_gap() {
        let tenths = Histogram::from(vec![(150, 60), (155, 20), (5_000, 20)]).tenths();
        // 125.9 to 158.5, and 3981 to 5012.
        assert_eq!((tenths[0].0 as u64, tenths[0].1), (125, 0.8));
        let [.., (from, share), (end, after)] = tenths[..] else { panic!("at least two") };
        assert_eq!((from as u64, share, end as u64, after), (3_981, 0.2, 5_011, 0.0));
        assert_eq!(tenths.len(), 17);
        assert!((tenths.iter().map(|(_, share)| share).sum::<f64>() - 1.0).abs() < 1e-9);
        assert!(Histogram::default().tenths().is_empty());
    }

    #[test]
    fn shares_above_fall_to_zero() {
        let histogram = Histogram::from(vec![(10, 90), (100, 9), (1000, 1)]);
        assert_eq!(histogram.above(), [(10.0, 0.1), (100.0, 0.01), (1000.0, 0.0)]);
    }
}
