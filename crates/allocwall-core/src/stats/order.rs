//! Medians with distribution-free intervals.

use crate::units::Interval;

/// Median and its 95 % interval from order statistics: no assumption about the distribution, and a pause of the
/// hypervisor moves neither (David & Nagaraja, Order Statistics, 3rd edition, section 7.1). Sorts `values`.
///
/// None for fewer than six values: below that no pair of order statistics covers the median with 95 %.
pub fn median_interval(values: &mut [f64]) -> Option<Interval> {
    values.sort_by(f64::total_cmp);
    let rank = lower_rank(values.len())?;
    Some(Interval::new(
        values[rank],
        median_of_sorted(values),
        values[values.len() - 1 - rank],
    ))
}

fn median_of_sorted(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    match sorted.len() % 2 {
        1 => sorted[middle],
        _ => (sorted[middle - 1] + sorted[middle]) / 2.0,
    }
}

/// Zero-based rank r such that [x_r, x_(n-1-r)] covers the median with at least 95 %: the largest r with
/// P(Binomial(n, 1/2) <= r) <= 2.5 %.
fn lower_rank(n: usize) -> Option<usize> {
    const TAIL: f64 = 0.025;
    // Beyond this 2^-n leaves the range of f64; the normal approximation is then far better than needed.
    const EXACT_TO: usize = 1000;
    if n > EXACT_TO {
        const Z_95: f64 = 1.959964;
        let n = n as f64;
        return Some((n / 2.0 - Z_95 * n.sqrt() / 2.0 - 1.0).floor() as usize);
    }
    let mut probability = 0.5_f64.powi(n as i32);
    let mut cumulative = probability;
    let mut rank = None;
    for k in 0..n {
        if cumulative > TAIL {
            break;
        }
        rank = Some(k);
        probability *= (n - k) as f64 / (k + 1) as f64;
        cumulative += probability;
    }
    rank
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_agree_with_the_published_table() {
        // Conover, Practical Nonparametric Statistics, table A3 (one-based ranks there): n = 6, 10, 20, 50, 100.
        for (n, rank) in [(6, 0), (8, 0), (9, 1), (10, 1), (20, 5), (50, 17), (100, 39)] {
            assert_eq!(lower_rank(n), Some(rank), "n = {n}");
        }
        assert_eq!(lower_rank(5), None);
        assert_eq!(lower_rank(0), None);
    }

    #[test]
    fn approximation_joins_the_exact_ranks() {
        let exact = lower_rank(1000).unwrap();
        let approximate = lower_rank(1001).unwrap();
        assert!(exact.abs_diff(approximate) <= 1, "{exact} {approximate}");
    }

    #[test]
    fn pauses_do_not_move_the_median() {
        let mut quiet: Vec<f64> = (0..101).map(|i| 100.0 + f64::from(i) / 100.0).collect();
        let mut stolen = quiet.clone();
        for value in stolen.iter_mut().rev().take(10) {
            *value += 1e7;
        }
        assert_eq!(median_interval(&mut quiet), median_interval(&mut stolen));
    }

    #[test]
    fn too_few_values_have_no_interval() {
        assert_eq!(median_interval(&mut [1.0, 2.0, 3.0, 4.0, 5.0]), None);
        let six = median_interval(&mut [6.0, 5.0, 4.0, 3.0, 2.0, 1.0]).unwrap();
        assert_eq!((six.low, six.point, six.high), (1.0, 3.5, 6.0));
    }
}
