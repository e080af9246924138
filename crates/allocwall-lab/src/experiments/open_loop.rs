//! Requests at intended times, whether or not earlier ones are answered.

use allocwall_model::stats::random::Random;

/// The most requests of a run.
const MOST: usize = 4 << 20;

/// Times of independent requests, ascending, in ns since the start: exponential gaps, of `per_s` × `load` at each time.
pub fn arrivals(random: &mut Random, per_s: f64, length_ns: u64, load: impl Fn(u64) -> f64) -> Vec<u64> {
    let mut all = vec![];
    let mut at_ns = 0.0;
    while all.len() < MOST {
        at_ns -= random.unit_above_zero().ln() * 1e9 / (per_s * load(at_ns as u64));
        if at_ns >= length_ns as f64 {
            break;
        }
        all.push(at_ns as u64);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// Requests in each of three seconds.
    fn counted(load: impl Fn(u64) -> f64) -> [f64; 3] {
        let all = arrivals(&mut Random::new(7), 10_000.0, 3 * SECOND, load);
        assert!(all.is_sorted() && all.iter().all(|at| *at < 3 * SECOND));
        [0, 1, 2].map(|nth| all.iter().filter(|at| *at / SECOND == nth).count() as f64)
    }

    /// The bounds are five standard deviations of a Poisson count of 10,000.
    #[test]
    fn a_surge_has_more_requests_and_its_twin_has_not() {
        let [before, surge, after] = counted(|at| if at / SECOND == 1 { 1.5 } else { 1.0 });
        assert!((before - 1e4).abs() < 500.0 && (after - 1e4).abs() < 500.0, "{before}, {after}");
        assert!((surge - 1.5e4).abs() < 613.0, "{surge}");
        assert!(counted(|_| 1.0).iter().all(|count| (count - 1e4).abs() < 500.0));
    }

    #[test]
    fn the_number_of_requests_is_bounded() {
        assert_eq!(arrivals(&mut Random::new(7), 1e9, u64::MAX, |_| 1.0).len(), MOST);
        assert!(arrivals(&mut Random::new(7), 10.0, 0, |_| 1.0).is_empty());
    }
}
