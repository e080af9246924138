//! The order pipeline: a producer hands orders to a consumer, which checks and frees them. This file has the options and the result of
//! one run; [`results`] combines the runs of all arms.

pub mod charts;
pub mod html;
pub mod json;
pub mod placement;
pub mod results;
pub mod text;
pub mod variants;

use super::histogram::Histogram;
use allocwall_model::units::{Absence, Measured, Reason};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use variants::{Sizes, Variant};

/// Slots of a pool, and of each of the four arenas of the batch arena.
pub const SLOTS: usize = 4096;
/// Arenas of the batch arena.
pub const ARENAS: usize = 4;
/// Entries of the queue between a producer and a consumer.
pub const QUEUE: usize = 4096;
/// Blocks that the heap pressure keeps allocated, and their sizes in bytes; all sizes are equally frequent.
pub const LIVE_BLOCKS: usize = 8192;
pub const PRESSURE_SIZES: [usize; 6] = [32, 64, 128, 256, 512, 1024];
/// A run is saturated if it achieves less than this share of the offered rate: its queue grows during the whole run.
pub const HELD: f64 = 0.98;

/// The options of one run: the argument of the hidden command, as JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spec {
    pub variant: Variant,
    pub sizes: Sizes,
    pub producers: usize,
    pub consumers: usize,
    /// One CPU per producer, then one per consumer, then one for the heap pressure if it has a thread.
    pub cpus: Vec<u32>,
    /// Orders per second of all producers together; None: as fast as possible.
    pub rate: Option<f64>,
    pub arrivals: Arrivals,
    pub pressure: Pressure,
    /// Warm-up orders of all producers together; they are not counted.
    pub warm_up: usize,
    pub timed: usize,
    /// Work of one check, in steps of `Checker`; the same for all arms.
    pub check_steps: u32,
    pub seed: u64,
    /// Lock the memory of the process after the set-up.
    pub lock: bool,
    /// For the tests of the stall detector.
    pub planted: Option<Planted>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Arrivals {
    Constant,
    Poisson,
}

impl Arrivals {
    pub fn key(self) -> &'static str {
        match self {
            Arrivals::Constant => "constant",
            Arrivals::Poisson => "poisson",
        }
    }
}

/// Blocks that are freed and allocated per second with `malloc`, in addition to the orders.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pressure {
    pub per_s: f64,
    pub by: By,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum By {
    /// A separate thread.
    Thread,
    /// The first producer, between two orders. For machines with two CPUs.
    Producer,
}

impl By {
    pub fn key(self) -> &'static str {
        match self {
            By::Thread => "thread",
            By::Producer => "producer",
        }
    }
}

/// A stall with a known cause, for tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Planted {
    pub stall: Stall,
    pub count: u32,
    pub us: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stall {
    /// A stall of the machine: a signal handler interrupts the first producer's thread at any point.
    Machine,
    /// A stall of the allocator: some allocations take longer.
    Allocator,
}

/// The part of an order's way that is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// Intended arrival to dequeue. It includes stalls of the allocation.
    Dequeue,
    /// Intended arrival to the end of the free.
    Done,
    /// Intended arrival to the end of the allocation: the delay of the producer, and the allocation.
    Arrive,
    /// End of the allocation to dequeue: the published measure. It leaves out delays of the allocation.
    Queue,
    /// Dequeue to the end of the check.
    Check,
    /// End of the check to the end of the free.
    Free,
}

impl Measure {
    pub const ALL: [Measure; 6] =
        [Measure::Dequeue, Measure::Done, Measure::Arrive, Measure::Queue, Measure::Check, Measure::Free];

    pub fn key(self) -> &'static str {
        match self {
            Measure::Dequeue => "dequeue",
            Measure::Done => "done",
            Measure::Arrive => "arrive",
            Measure::Queue => "queue",
            Measure::Check => "check",
            Measure::Free => "free",
        }
    }

    pub fn title(self) -> &'static str {
        match self {
            Measure::Dequeue => "intended arrival → dequeue",
            Measure::Done => "intended arrival → done",
            Measure::Arrive => "intended arrival → allocated",
            Measure::Queue => "allocated → dequeue",
            Measure::Check => "dequeue → checked",
            Measure::Free => "checked → freed",
        }
    }
}

/// Which orders are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Orders {
    All,
    /// Orders without a stall of the machine, which also did not wait for an order with such a stall.
    Undisturbed,
}

impl Orders {
    pub fn key(self) -> &'static str {
        match self {
            Orders::All => "all",
            Orders::Undisturbed => "undisturbed",
        }
    }
}

/// The result of one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunResult {
    pub variant: Variant,
    /// Timed orders.
    pub orders: u64,
    /// Timed orders per second.
    pub achieved: f64,
    /// Time, in ns, to transfer a cache line from the first producer's CPU to the first consumer's: half of a round trip, median of
    /// many. None if both share a CPU.
    pub handoff_ns: Option<f64>,
    /// The clock for the time stamps of orders.
    pub clock: String,
    /// Time between two readings of the clock above which it is a stall of the machine.
    pub threshold_ns: f64,
    /// Empty if the producers sent as fast as possible: then orders have no intended arrival.
    pub latencies: BTreeMap<Measure, Pair>,
    pub threads: Vec<ThreadResult>,
    /// Allocations that were refused and retried, because the pool was exhausted.
    pub refused: u64,
    /// Achieved heap pressure, in blocks per second.
    pub pressure_per_s: f64,
    /// Steal of the whole machine during the timed part; None if the kernel does not report it.
    pub stolen_ns: Option<u64>,
    /// Estimated number of stalls of the machine that hit an allocation or a free and were not detected, so that their orders count as
    /// undisturbed. It is estimated from the rate of the other stalls.
    pub unseen: f64,
}

impl RunResult {
    pub fn saturated(&self, offered: Option<f64>) -> bool {
        offered.is_none_or(|offered| self.achieved < offered * HELD)
    }

    /// Share of the timed orders that were disturbed.
    pub fn disturbed_share(&self) -> Option<f64> {
        let pair = self.latencies.get(&Measure::Dequeue)?;
        let all = pair.all.count();
        (all > 0).then(|| 1.0 - pair.undisturbed.count() as f64 / all as f64)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Pair {
    pub all: Histogram,
    pub undisturbed: Histogram,
}

impl Pair {
    pub fn of(&self, orders: Orders) -> &Histogram {
        match orders {
            Orders::All => &self.all,
            Orders::Undisturbed => &self.undisturbed,
        }
    }

    pub fn add(&mut self, other: &Pair) {
        self.all.add(&other.all);
        self.undisturbed.add(&other.undisturbed);
    }
}

/// One thread of a run, or the sum over the runs of an arm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ThreadResult {
    pub role: Role,
    pub cpu: u32,
    /// Stalls of the machine during the timed part: their number, their total time, and the longest.
    pub stalls: u64,
    pub stalled_ns: f64,
    pub longest_ns: f64,
    /// Heap-pressure blocks that took so long that the orders behind them count as disturbed: their number and total time.
    pub held: u64,
    pub held_ns: f64,
    /// As the kernel counts them.
    pub involuntary_switches: u64,
    pub minor_faults: u64,
}

impl ThreadResult {
    pub fn add(&mut self, other: &ThreadResult) {
        self.stalls += other.stalls;
        self.stalled_ns += other.stalled_ns;
        self.longest_ns = self.longest_ns.max(other.longest_ns);
        self.held += other.held;
        self.held_ns += other.held_ns;
        self.involuntary_switches += other.involuntary_switches;
        self.minor_faults += other.minor_faults;
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    Producer,
    Consumer,
    Pressure,
}

impl Role {
    pub fn title(self) -> &'static str {
        match self {
            Role::Producer => "producer",
            Role::Consumer => "consumer",
            Role::Pressure => "pressure",
        }
    }
}

/// Percentiles that are compared.
pub const QUANTILES: [(&str, &str, f64); 3] =
    [("p50", "p50", 0.5), ("p99", "p99", 0.99), ("p999", "p99.9", 0.999)];

/// The key of a percentile as a metric.
pub fn metric_key(measure: Measure, quantile: &str, orders: Orders) -> String {
    format!("{}_{quantile}_{}", measure.key(), orders.key())
}

/// The reason why a run has no percentiles.
pub fn saturation(result: &RunResult, offered: Option<f64>) -> Absence {
    let detail = match offered {
        None => "orders were sent as fast as possible and have no intended arrival".to_owned(),
        Some(offered) => {
            format!("saturated: {:.0} of {offered:.0} orders per second were done", result.achieved)
        }
    };
    Absence::new(Reason::NotApplicable, detail)
}

/// A run's figures by metric.
pub fn figures(result: &RunResult, offered: Option<f64>) -> BTreeMap<String, Measured<f64>> {
    let mut figures = BTreeMap::from([
        ("achieved_per_s".to_owned(), Ok(result.achieved)),
        (
            "handoff_ns".to_owned(),
            result
                .handoff_ns
                .ok_or_else(|| Absence::new(Reason::NotApplicable, "producer and consumer share a CPU")),
        ),
    ]);
    for measure in Measure::ALL {
        for orders in [Orders::Undisturbed, Orders::All] {
            for (key, _, share) in QUANTILES {
                let value = match result.latencies.get(&measure) {
                    _ if result.saturated(offered) => Err(saturation(result, offered)),
                    Some(pair) => pair.of(orders).quantile(share).ok_or_else(|| {
                        Absence::new(Reason::TooLittle, "all orders of the run were disturbed")
                    }),
                    None => Err(Absence::new(Reason::TooLittle, "no order was timed")),
                };
                figures.insert(metric_key(measure, key, orders), value);
            }
        }
    }
    figures
}
