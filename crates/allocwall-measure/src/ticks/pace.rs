//! When smaps_rollup is read again. A reading walks the page tables while it holds the lock of the target's memory map for reading, so
//! the cost of the last one decides how soon the next one may come.

use allocwall_host::clock;
use allocwall_model::recording::SmapsCost;

/// The least time between two readings.
const EVERY_NS: u64 = 1_000_000_000;
/// The readings may take this part of the window that has passed: 0.1 %. Our choice.
const PART: u64 = 1_000;
/// Below this size, a reading costs about the same.
const SMALL: u64 = 64 << 20;

pub struct Pace {
    /// Nanoseconds since any fixed time.
    clock: Box<dyn Fn() -> u64>,
    cost: SmapsCost,
    last: Option<Reading>,
}

struct Reading {
    /// Since the start of the window.
    t_ns: u64,
    took_ns: u64,
    /// Bytes.
    resident: u64,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace::by(clock::monotonic_ns)
    }
}

impl Pace {
    pub fn by(clock: impl Fn() -> u64 + 'static) -> Pace {
        Pace { clock: Box::new(clock), cost: SmapsCost::default(), last: None }
    }

    /// Whether a reading may begin now, between those at the ends of the window. It is expected to take as long as the last one, or
    /// longer if the target has grown since.
    pub fn allows(&self, t_ns: u64, resident: u64) -> bool {
        let Some(last) = &self.last else { return false };
        let growth = (resident as f64 / last.resident.max(SMALL) as f64).max(1.0);
        let expected = last.took_ns as f64 * growth;
        t_ns.saturating_sub(last.t_ns) >= EVERY_NS && self.cost.ns as f64 + expected <= (t_ns / PART) as f64
    }

    /// Reads all processes of the target, and measures how long that takes.
    pub fn timed<T>(&mut self, t_ns: u64, resident: u64, read: impl FnOnce() -> T) -> T {
        let began = (self.clock)();
        let read = read();
        let took_ns = (self.clock)().saturating_sub(began);
        self.cost.reads += 1;
        self.cost.ns = self.cost.ns.saturating_add(took_ns);
        self.last = Some(Reading { t_ns, took_ns, resident });
        read
    }

    pub fn cost(&self) -> SmapsCost {
        self.cost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_that_grows_is_expected_to_cost_more() {
        let now = std::cell::Cell::new(0);
        let mut pace = Pace::by(move || now.replace(now.get() + 100_000));
        assert!(!pace.allows(2 * EVERY_NS, 1), "the first reading is that at the start");
        pace.timed(0, 1 << 20, || ());
        assert!(pace.allows(2 * EVERY_NS, 1 << 20));
        assert!(pace.allows(2 * EVERY_NS, 19 * SMALL));
        assert!(!pace.allows(2 * EVERY_NS, 20 * SMALL));
        assert!(!pace.allows(EVERY_NS - 1, 1 << 20));
    }
}
