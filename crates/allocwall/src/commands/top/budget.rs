//! How long to pause between two windows, so that allocwall uses at most 1 % of the machine's CPU time.

use std::time::Duration;

/// Of the CPU time of all CPUs.
pub const MOST: f64 = 0.01;

/// CPU time that allocwall used, and the time in which it did.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Own {
    pub cpu_s: f64,
    pub elapsed_s: f64,
}

impl Own {
    /// Part of the CPU time of a machine with so many CPUs.
    pub fn share(self, cpus: u32) -> f64 {
        self.cpu_s / (self.elapsed_s * f64::from(cpus.max(1))).max(1e-9)
    }

    /// The pause after which its share is at most [`MOST`].
    pub fn pause(self, cpus: u32) -> Duration {
        let needed_s = self.cpu_s / (MOST * f64::from(cpus.max(1)));
        Duration::try_from_secs_f64(needed_s - self.elapsed_s).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_pauses_only_above_one_percent_of_the_machine() {
        let own = |cpu_s| Own { cpu_s, elapsed_s: 2.0 };
        assert_eq!(own(0.04).pause(2), Duration::ZERO);
        assert_eq!(own(0.06).pause(2), Duration::from_secs(1));
        // The same work is a smaller part of a larger machine.
        assert_eq!(own(0.06).pause(64), Duration::ZERO);
        assert!((own(0.06).share(2) - 0.015).abs() < 1e-12);
        assert_eq!(Own::default().pause(0), Duration::ZERO);
    }
}
