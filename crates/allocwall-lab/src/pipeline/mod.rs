//! The order pipeline: a producer hands orders to a consumer, which checks them and frees them. What one run is asked for and what it
//! tells; [`results`] puts the runs of all arms together.

pub mod charts;
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

/// Slots that a pool has, and that each of the four arenas of the batch arena has.
pub const SLOTS: usize = 4096;
/// Arenas of the batch arena.
pub const ARENAS: usize = 4;
/// Entries of the queue between a producer and a consumer.
pub const QUEUE: usize = 4096;
/// Blocks that the heap pressure keeps alive, and their sizes in bytes, equally often.
pub const LIVE_BLOCKS: usize = 8192;
pub const PRESSURE_SIZES: [usize; 6] = [32, 64, 128, 256, 512, 1024];
/// Achieved less than this share of the offered rate is saturated: the queue grew as long as the run lasted.
pub const HELD: f64 = 0.98;

/// What one run is asked for: the hidden command's argument, as JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spec {
    pub variant: Variant,
    pub sizes: Sizes,
    pub producers: usize,
    pub consumers: usize,
    /// One a producer, one a consumer, then one for the heap pressure where it has a thread.
    pub cpus: Vec<u32>,
    /// Orders a second of all producers; None is as fast as they can.
    pub rate: Option<f64>,
    pub arrivals: Arrivals,
    pub pressure: Pressure,
    /// Orders of all producers before those that count.
    pub warm_up: usize,
    pub timed: usize,
    /// Work of a check, in steps of `Checker`: the same for all arms.
    pub check_steps: u32,
    pub seed: u64,
    /// Lock the process's memory once it is set up.
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

/// Blocks freed and allocated a second, by `malloc`, beside the orders.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pressure {
    pub per_s: f64,
    pub by: By,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum By {
    /// A thread of its own.
    Thread,
    /// The first producer, between two orders: what two CPUs have room for.
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

/// A stall of known cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Planted {
    pub stall: Stall,
    pub count: u32,
    pub us: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stall {
    /// Of the machine: a signal's handler keeps the first producer's thread, wherever it is.
    Machine,
    /// Of the allocator: so many allocations take that much longer.
    Allocator,
}

/// From where to where an order is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// Intended arrival to dequeue: a stall of the allocation is in it.
    Dequeue,
    /// Intended arrival to the end of the free.
    Done,
    /// Intended arrival to the end of the allocation: lateness of the producer, and the allocation.
    Arrive,
    /// End of the allocation to dequeue: the measure that was published. What delayed the allocation is in nobody's.
    Queue,
    /// Dequeue to the end of the check.
    Check,
    /// End of the check to the end of the free.
    Free,
}

impl Measure {
    pub const ALL: [Measure; 6] = [
        Measure::Dequeue,
        Measure::Done,
        Measure::Arrive,
        Measure::Queue,
        Measure::Check,
        Measure::Free,
    ];

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

/// Which orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Orders {
    All,
    /// Those that met no stall of the machine, nor stood behind one that did.
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

/// What one run tells.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Told {
    pub variant: Variant,
    /// Timed orders.
    pub orders: u64,
    /// Of the timed orders, a second.
    pub achieved: f64,
    /// A line from the first producer's CPU to the first consumer's, in ns: half of a round trip, median of many. None where both are
    /// on one.
    pub handoff_ns: Option<f64>,
    /// Clock that stamps the orders.
    pub clock: String,
    /// Between two readings of the clock; more is a stall of the machine.
    pub threshold_ns: f64,
    /// Empty where the producers sent as fast as they could: then nobody arrived at an intended time.
    pub latencies: BTreeMap<Measure, Pair>,
    pub threads: Vec<ThreadTold>,
    /// Allocations that were refused and tried again: a pool that was exhausted.
    pub refused: u64,
    /// Heap pressure achieved, blocks a second.
    pub pressure_per_s: f64,
    /// Of the machine's CPUs that the run used, while it was timed; None where the kernel doesn't say.
    pub stolen_ns: Option<u64>,
    /// Orders that were undisturbed as far as can be known, although a stall of the machine hit their allocation or free: expected,
    /// from how often the machine stalled otherwise.
    pub unseen: f64,
}

impl Told {
    pub fn saturated(&self, offered: Option<f64>) -> bool {
        offered.is_none_or(|offered| self.achieved < offered * HELD)
    }

    /// Of the timed orders.
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

/// One thread of a run, or of an arm's runs together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ThreadTold {
    pub role: Role,
    pub cpu: u32,
    /// Stalls of the machine while orders were timed, how long they took together, and the longest.
    pub stalls: u64,
    pub stalled_ns: f64,
    pub longest_ns: f64,
    /// Heap blocks of the pressure that took so long that the orders behind them are set apart, and how long they took together.
    pub held: u64,
    pub held_ns: f64,
    /// The kernel's count.
    pub involuntary_switches: u64,
    pub minor_faults: u64,
}

impl ThreadTold {
    pub fn add(&mut self, other: &ThreadTold) {
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
pub const QUANTILES: [(&str, &str, f64); 3] = [
    ("p50", "p50", 0.5),
    ("p99", "p99", 0.99),
    ("p999", "p99.9", 0.999),
];

/// Of a percentile, as a metric.
pub fn metric_key(measure: Measure, quantile: &str, orders: Orders) -> String {
    format!("{}_{quantile}_{}", measure.key(), orders.key())
}

/// Why a run has no percentiles.
pub fn saturation(told: &Told, offered: Option<f64>) -> Absence {
    let detail = match offered {
        None => "orders were sent as fast as they could be: no arrival was intended".to_owned(),
        Some(offered) => format!(
            "saturated: {:.0} of {offered:.0} orders a second were done",
            told.achieved
        ),
    };
    Absence::new(Reason::NotApplicable, detail)
}

/// A run's figures by metric.
pub fn figures(told: &Told, offered: Option<f64>) -> BTreeMap<String, Measured<f64>> {
    let mut figures = BTreeMap::from([
        ("achieved_per_s".to_owned(), Ok(told.achieved)),
        (
            "handoff_ns".to_owned(),
            told.handoff_ns
                .ok_or_else(|| Absence::new(Reason::NotApplicable, "producer and consumer share a CPU")),
        ),
    ]);
    for measure in Measure::ALL {
        for orders in [Orders::Undisturbed, Orders::All] {
            for (key, _, share) in QUANTILES {
                let value = match told.latencies.get(&measure) {
                    _ if told.saturated(offered) => Err(saturation(told, offered)),
                    Some(pair) => pair.of(orders).quantile(share).ok_or_else(|| {
                        Absence::new(Reason::TooLittle, "every order of the run was disturbed")
                    }),
                    None => Err(Absence::new(Reason::TooLittle, "no order was timed")),
                };
                figures.insert(metric_key(measure, key, orders), value);
            }
        }
    }
    figures
}
