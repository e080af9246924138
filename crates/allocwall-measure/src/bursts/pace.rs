//! How long a burst is, what is counted in it, and when the next one may begin: so that counting takes at most its budget of the
//! target's CPU time.

use allocwall_model::bursts::{BUDGET, Burst, HitCost};
use allocwall_model::stats::random::Random;
use allocwall_model::units::Interval;

const MS: u64 = 1_000_000;
/// One burst may take as much CPU time as the budget gives in this time.
const SPACING_S: f64 = 0.2;
/// The length of the first burst of a function.
const FIRST_NS: u64 = 2 * MS;
const SHORTEST_NS: u64 = 300_000;
/// A function that was rarely called may be called often in the next moment.
const LONGEST_NS: u64 = 20 * MS;
/// Records of one burst that are aimed at: half of what the ring has room for.
const RECORDS: f64 = 60.0;
/// Prime distances of records. A program repeats few patterns of calls with such a length, so the records are of all its calls.
const DISTANCES: [u64; 16] = [1, 2, 3, 5, 7, 11, 13, 17, 23, 31, 43, 61, 89, 127, 251, 509];
/// A thread that used little CPU time before may use this part of a burst.
const LEAST_SHARE: f64 = 0.25;
/// Each function has this many bursts before the most frequent ones are preferred.
const FIRST_BURSTS: u64 = 2;
/// The part of the further bursts that is distributed evenly.
const EVENLY: f64 = 0.3;

/// What the bursts of one function have shown so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Shown {
    /// Bursts in which the thread ran.
    pub bursts: u64,
    pub hits: u64,
    /// CPU time without the cost of counting.
    pub left_ns: f64,
}

impl Shown {
    pub fn add(&mut self, burst: &Burst, hit: &HitCost) {
        self.bursts += u64::from(burst.is_active());
        self.hits += burst.hits;
        self.left_ns += burst.undisturbed_ns(hit);
    }

    /// Calls in a CPU second; a bit too large after few calls. None before the first burst.
    pub fn per_cpu_s(&self) -> Option<f64> {
        (self.left_ns > 0.0).then(|| (self.hits + 1) as f64 * 1e9 / self.left_ns)
    }
}

/// The length of the next burst of a function, and which of its calls are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    pub length_ns: u64,
    pub every: u64,
    /// The burst ends early after this number of calls.
    pub most_hits: u64,
}

/// What counting has taken, and what it may take.
pub struct Pace {
    hit: HitCost,
    /// CPU time in all threads so far.
    pub incurred_ns: Interval,
}

impl Pace {
    pub fn new(hit: HitCost) -> Pace {
        Pace { hit, incurred_ns: Interval::exact(0.0) }
    }

    /// `share`: of a CPU that the thread used before.
    pub fn plan(&self, shown: &Shown, share: f64) -> Plan {
        let hit_ns = self.hit.plain.point.max(1.0);
        let budget_ns = BUDGET * SPACING_S * 1e9;
        let most = budget_ns / hit_ns;
        let Some(per_cpu_s) = shown.per_cpu_s() else {
            let hits = FIRST_NS as f64 / hit_ns;
            let every = distance(hits * share.clamp(LEAST_SHARE, 1.0));
            return Plan { length_ns: FIRST_NS, every, most_hits: 2 * most as u64 };
        };
        // At its full rate, the calls of this time take the budget of one burst.
        let length_ns = (most * 1e9 / per_cpu_s) as u64;
        let length_ns = length_ns.clamp(SHORTEST_NS, LONGEST_NS);
        let hits = per_cpu_s * length_ns as f64 / 1e9 * share.clamp(LEAST_SHARE, 1.0);
        Plan { length_ns, every: distance(hits), most_hits: 2 * most as u64 }
    }

    /// The time until the next burst may begin: 0 if it may now. `used_ns`: CPU time of the target since the start, in
    /// `elapsed_ns`.
    pub fn wait_ns(&self, used_ns: u64, elapsed_ns: u64) -> u64 {
        let cpus = used_ns as f64 / elapsed_ns.max(1) as f64;
        // What a burst takes of a target that uses this number of CPUs.
        let next_ns = BUDGET * SPACING_S * 1e9 * cpus;
        let lacks_ns = (self.incurred_ns.point + next_ns) / BUDGET - used_ns as f64;
        match lacks_ns {
            lacks if lacks <= 0.0 => 0,
            lacks if cpus > 0.0 => (lacks / cpus) as u64,
            _ => u64::MAX,
        }
    }

    /// Adds a burst. `process_ns`: CPU time of all threads of the process while the breakpoint was there. Threads that are not
    /// counted pay for their calls too.
    pub fn incur(&mut self, burst: &Burst, process_ns: u64, shown: &Shown) {
        let own = burst.cost_ns(&self.hit);
        let others_ns = process_ns.saturating_sub(burst.cpu_ns) as f64;
        let per_ns = shown.per_cpu_s().unwrap_or(0.0) / 1e9;
        // The part of a thread's time that counting takes.
        let part = |hit_ns: f64| per_ns * hit_ns / (1.0 + per_ns * hit_ns);
        let plain = self.hit.plain;
        let sum = &mut self.incurred_ns;
        sum.low += own.low + others_ns * part(plain.low);
        sum.point += own.point + others_ns * part(plain.point);
        sum.high += own.high + others_ns * part(plain.high);
    }
}

/// The distance of records for this number of calls.
fn distance(hits: f64) -> u64 {
    let wanted = hits / RECORDS;
    let found = DISTANCES.iter().find(|distance| **distance as f64 >= wanted);
    *found.unwrap_or(&DISTANCES[DISTANCES.len() - 1])
}

/// The function of the next burst. All have some; those with many calls have more, because most sizes and sites are theirs.
///
/// The list must not be empty.
pub fn choose(functions: &[Shown], random: &mut Random) -> usize {
    let fewest = functions.iter().enumerate().min_by_key(|(_, shown)| shown.bursts);
    if let Some((nth, shown)) = fewest
        && shown.bursts < FIRST_BURSTS
    {
        return nth;
    }
    let rates: Vec<f64> = functions.iter().map(|shown| shown.per_cpu_s().unwrap_or(0.0)).collect();
    let all: f64 = rates.iter().sum();
    let even = EVENLY / rates.len() as f64;
    let weights: Vec<f64> = rates.iter().map(|rate| even + (1.0 - EVENLY) * rate / all.max(1.0)).collect();
    weighted(&weights, random)
}

/// A place of the list, with a chance in proportion to its weight.
pub fn weighted(weights: &[f64], random: &mut Random) -> usize {
    let mut left = random.unit() * weights.iter().sum::<f64>();
    let found = weights.iter().position(|weight| {
        left -= weight;
        left < 0.0
    });
    found.unwrap_or(weights.len().saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hit() -> HitCost {
        HitCost { plain: Interval::new(600.0, 700.0, 800.0), recorded: Interval::new(1200.0, 1400.0, 1600.0) }
    }

    fn shown(per_cpu_s: f64) -> Shown {
        Shown { bursts: 9, hits: (per_cpu_s / 10.0) as u64 - 1, left_ns: 1e8 }
    }

    #[test]
    fn a_burst_takes_its_part_of_the_budget_whatever_the_rate() {
        let pace = Pace::new(hit());
        assert_eq!(pace.plan(&Shown::default(), 1.0).length_ns, FIRST_NS);
        let million = pace.plan(&shown(1e6), 1.0);
        // 2 ms at 700 ns each: 2,857 calls.
        assert!((2_800_000..2_900_000).contains(&million.length_ns), "{million:?}");
        assert_eq!(million.every, 61);
        let rare = pace.plan(&shown(20e3), 1.0);
        assert_eq!((rare.length_ns, rare.every), (LONGEST_NS, 7));
        assert_eq!(pace.plan(&shown(100.0), 1.0).every, 1);
        assert_eq!(pace.plan(&shown(100e6), 1.0).length_ns, SHORTEST_NS);
        // A thread that is often idle makes fewer calls in the same time.
        assert_eq!(pace.plan(&shown(1e6), 0.1).every, 13);
    }

    #[test]
    fn pauses_keep_the_cost_within_the_budget() {
        const SECOND: u64 = 1_000_000_000;
        let mut pace = Pace::new(hit());
        // One CPU is busy: the first burst may cost 2 ms, which is the budget of 200 ms.
        assert_eq!(pace.wait_ns(SECOND / 5, SECOND / 5), 0);
        let wait = pace.wait_ns(SECOND / 10, SECOND / 10);
        assert!((99_000_000..=100_000_000).contains(&wait), "{wait}");
        pace.incurred_ns = Interval::exact(12e6);
        let wait = pace.wait_ns(SECOND, SECOND);
        assert!((399_000_000..=400_000_000).contains(&wait), "{wait}");
        assert_eq!(pace.wait_ns(7 * SECOND / 5, 7 * SECOND / 5), 0);
        // A tenth of a CPU gives a tenth of the budget.
        assert!(pace.wait_ns(SECOND / 10, SECOND) > 10 * SECOND);
        assert_eq!(pace.wait_ns(0, SECOND), u64::MAX);
    }

    #[test]
    fn threads_that_are_not_counted_pay_too() {
        let burst = Burst {
            thread: 0,
            t_ns: 0,
            over_ns: 2 * MS,
            cpu_ns: 2 * MS,
            expected_ns: 2 * MS,
            hits: 1000,
            every: 10,
            calls: vec![],
        };
        let cost = |process_ns: u64| {
            let mut pace = Pace::new(hit());
            pace.incur(&burst, process_ns, &shown(1e6));
            pace.incurred_ns
        };
        let alone = cost(2 * MS);
        assert_eq!(alone, Interval::new(660_000.0, 770_000.0, 880_000.0));
        // Three more threads call as often. Each spends 700 of 1,700 ns on counting.
        let four = cost(8 * MS);
        assert!((four.point - 770_000.0 - 6e6 * 0.7 / 1.7).abs() < 1e4, "{four:?}");
        assert!(four.low < four.point && four.point < four.high);
        // The kernel's clock of a process may lag behind that of a thread.
        assert_eq!(cost(MS), alone);
    }

    #[test]
    fn each_function_has_bursts_and_the_frequent_ones_have_most() {
        let mut random = Random::new(1);
        let mut functions = [Shown::default(); 3];
        assert_eq!(choose(&functions, &mut random), 0);
        functions[0].bursts = 2;
        assert_eq!(choose(&functions, &mut random), 1);
        let functions = [shown(900e3), shown(90e3), shown(10e3)];
        let mut counts = [0; 3];
        (0..1000).for_each(|_| counts[choose(&functions, &mut random)] += 1);
        assert!((650..800).contains(&counts[0]) && counts[1] > 110 && counts[2] > 70, "{counts:?}");
    }

    #[test]
    fn weights_are_chances() {
        let mut random = Random::new(2);
        let mut counts = [0; 3];
        (0..1000).for_each(|_| counts[weighted(&[1.0, 0.0, 3.0], &mut random)] += 1);
        assert_eq!(counts[1], 0);
        assert!((700..800).contains(&counts[2]), "{counts:?}");
    }
}
