//! The events that a processor counts, and their counts for the target.

use crate::stats::ratio_over_blocks;
use crate::units::{Absence, Interval, Measured, Reason};
use serde::{Deserialize, Serialize};

/// An event that the processor's performance-monitoring unit (PMU) counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "&'static str", try_from = "String")]
pub enum HardwareEvent {
    Cycles,
    Instructions,
    /// Loads whose address no level of the TLB had: each one is a page walk.
    DtlbLoadMisses,
    /// Cycles in which at least one page walk for a load was active.
    DtlbWalkActive,
    /// The same, on processors whose event leaves out the walks of a hypervisor's own tables.
    DtlbGuestWalkActive,
    LlcLoadMisses,
    /// Misses of the last cache that the processor has an event for: the third level on Intel, the second on AMD.
    CacheMisses,
    NodeLoads,
    NodeLoadMisses,
}

impl HardwareEvent {
    pub const ALL: [HardwareEvent; 9] = [
        HardwareEvent::Cycles,
        HardwareEvent::Instructions,
        HardwareEvent::DtlbLoadMisses,
        HardwareEvent::DtlbWalkActive,
        HardwareEvent::DtlbGuestWalkActive,
        HardwareEvent::LlcLoadMisses,
        HardwareEvent::CacheMisses,
        HardwareEvent::NodeLoads,
        HardwareEvent::NodeLoadMisses,
    ];

    /// As perf-list(1) prints it, which has one name for both events of page walks; the key of recordings and of the JSON format.
    pub const fn name(self) -> &'static str {
        match self {
            HardwareEvent::Cycles => "cycles",
            HardwareEvent::Instructions => "instructions",
            HardwareEvent::DtlbLoadMisses => "dTLB-load-misses",
            HardwareEvent::DtlbWalkActive => "dtlb_load_misses.walk_active",
            HardwareEvent::DtlbGuestWalkActive => "dtlb_load_misses.walk_active-without-ept",
            HardwareEvent::LlcLoadMisses => "LLC-load-misses",
            HardwareEvent::CacheMisses => "cache-misses",
            HardwareEvent::NodeLoads => "node-loads",
            HardwareEvent::NodeLoadMisses => "node-load-misses",
        }
    }
}

impl From<HardwareEvent> for &'static str {
    fn from(event: HardwareEvent) -> &'static str {
        event.name()
    }
}

impl TryFrom<String> for HardwareEvent {
    type Error = &'static str;

    fn try_from(name: String) -> Result<HardwareEvent, &'static str> {
        HardwareEvent::ALL.into_iter().find(|event| event.name() == name).ok_or("unknown hardware event")
    }
}

/// The hardware events of the target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HardwareCounts {
    /// Kernel mode is counted too. Otherwise all figures are of user mode.
    pub kernel: bool,
    /// Counted during all of the window. Otherwise in slices of it.
    pub throughout: bool,
    #[serde(deserialize_with = "crate::room::charged")]
    pub events: Vec<HardwareCount>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HardwareCount {
    pub event: HardwareEvent,
    pub counted: Measured<HardwareSlices>,
}

/// One reading for each slice of the window, in the same order for all events.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HardwareSlices {
    #[serde(deserialize_with = "crate::room::charged")]
    pub slices: Vec<HardwareSlice>,
}

/// A count, summed over threads. The times pass only while a thread runs on a CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HardwareSlice {
    pub count: u64,
    /// CPU time of the target's threads in the slice.
    pub enabled_ns: u64,
    /// The part of it in which the event was counted: the thread was followed, and a counter of the processor was free.
    pub running_ns: u64,
}

impl HardwareSlice {
    pub fn plus(self, other: HardwareSlice) -> HardwareSlice {
        HardwareSlice {
            count: self.count.saturating_add(other.count),
            enabled_ns: self.enabled_ns.saturating_add(other.enabled_ns),
            running_ns: self.running_ns.saturating_add(other.running_ns),
        }
    }

    /// The count in all of the CPU time. Where the event was counted in a part of it, the rest is estimated from that part.
    pub fn whole(self) -> Measured<f64> {
        if self.running_ns == 0 {
            let why = "other events had all hardware counters, or nothing ran";
            return Err(Absence::new(Reason::TooLittle, why));
        }
        Ok(self.count as f64 * (self.enabled_ns as f64 / self.running_ns as f64))
    }

    /// Events per ns of CPU time. None if nothing was counted.
    fn rate(self) -> Option<f64> {
        (self.enabled_ns > 0 && self.running_ns > 0).then(|| self.count as f64 / self.running_ns as f64)
    }
}

impl HardwareSlices {
    pub fn total(&self) -> HardwareSlice {
        self.slices.iter().fold(HardwareSlice::default(), |sum, slice| sum.plus(*slice))
    }

    /// The part of the CPU time in which the event was not counted: other events had the counters, or there were too many
    /// threads to follow.
    pub fn unseen(&self) -> f64 {
        let total = self.total();
        if total.enabled_ns == 0 {
            return 0.0;
        }
        (1.0 - total.running_ns as f64 / total.enabled_ns as f64).clamp(0.0, 1.0)
    }
}

impl HardwareCounts {
    /// The readings of an event, or why there are none.
    pub fn of(&self, event: HardwareEvent) -> Measured<&HardwareSlices> {
        let name = event.name();
        let Some(count) = self.events.iter().find(|count| count.event == event) else {
            return Err(Absence::new(Reason::NotFound, format!("{name} is not in this recording")));
        };
        let slices = count.counted.as_ref().map_err(Clone::clone)?;
        let total = slices.total();
        if total.enabled_ns == 0 {
            return Err(Absence::new(
                Reason::TooLittle,
                "the target used no CPU time while hardware events were counted",
            )
            .mend("use a longer window: -d 60"));
        }
        if total.running_ns == 0 {
            return Err(Absence::new(
                Reason::TooLittle,
                format!("{name}: other events had all hardware counters, or the threads that were followed did not run"),
            )
            .mend("end other programs that count hardware events, such as perf"));
        }
        Ok(slices)
    }

    /// Events for each event of another kind: instructions for each cycle.
    pub fn ratio(&self, of: HardwareEvent, to: HardwareEvent) -> Measured<Interval> {
        let (of, to) = (self.of(of)?, self.of(to)?);
        // By rates, because the counters of one slice do not start and end at the same moment.
        let pairs = of.slices.iter().zip(&to.slices).filter_map(|(of, to)| {
            let weight = to.enabled_ns as f64;
            Some((of.rate()? * weight, to.rate()? * weight))
        });
        self.estimate(pairs.collect(), of.unseen() + to.unseen())
    }

    /// Events for each ns of the target's CPU time.
    pub fn per_cpu_ns(&self, event: HardwareEvent) -> Measured<Interval> {
        let slices = self.of(event)?;
        let pairs = slices.slices.iter().filter_map(|slice| {
            let weight = slice.enabled_ns as f64;
            Some((slice.rate()? * weight, weight))
        });
        self.estimate(pairs.collect(), slices.unseen())
    }

    /// The ratio of two sums over slices. In time that was not seen, the ratio is assumed to be half to one and a half
    /// times the counted one: our choice.
    fn estimate(&self, pairs: Vec<(f64, f64)>, unseen: f64) -> Measured<Interval> {
        let too_little = || {
            Absence::new(Reason::TooLittle, "hardware events were counted in fewer than three slices")
                .mend("use a longer window: -d 60")
        };
        let ratio = if self.throughout {
            let (y, x) = pairs.iter().fold((0.0, 0.0), |sum, pair| (sum.0 + pair.0, sum.1 + pair.1));
            if x > 0.0 { Interval::exact(y / x) } else { return Err(too_little()) }
        } else {
            ratio_over_blocks(&pairs).ok_or_else(too_little)?
        };
        // A damaged recording can contain counts that no machine makes.
        if ![ratio.low, ratio.point, ratio.high].into_iter().all(f64::is_finite) {
            return Err(too_little());
        }
        let doubt = (unseen / 2.0).min(1.0);
        Ok(Interval::new((ratio.low * (1.0 - doubt)).max(0.0), ratio.point, ratio.high * (1.0 + doubt)))
    }
}

#[cfg(test)]
mod tests {
    use super::HardwareEvent::{Cycles, DtlbLoadMisses, Instructions, NodeLoads};
    use super::*;

    /// Slices of 10 ms, with these counts and parts of the time in which the event was counted.
    fn slices(counted: &[(u64, u64)]) -> Measured<HardwareSlices> {
        let slice = |&(count, running_ms): &(u64, u64)| HardwareSlice {
            count,
            enabled_ns: 10_000_000,
            running_ns: running_ms * 1_000_000,
        };
        Ok(HardwareSlices { slices: counted.iter().map(slice).collect() })
    }

    #[track_caller]
    fn assert_near(found: Measured<Interval>, low: f64, point: f64, high: f64) {
        let found = found.unwrap();
        let near = |a: f64, b: f64| (a - b).abs() <= 1e-9 * b.abs();
        assert!(near(found.low, low) && near(found.point, point) && near(found.high, high), "{found:?}");
    }

    fn counts(events: Vec<(HardwareEvent, Measured<HardwareSlices>)>) -> HardwareCounts {
        let events = events.into_iter().map(|(event, counted)| HardwareCount { event, counted });
        HardwareCounts { kernel: true, throughout: false, events: events.collect() }
    }

    #[test]
    fn every_name_is_read_back() {
        for event in HardwareEvent::ALL {
            assert_eq!(HardwareEvent::try_from(event.name().to_owned()), Ok(event));
        }
        assert!(HardwareEvent::try_from("branches".to_owned()).is_err());
    }

    #[test]
    fn a_count_is_exact_if_it_ran_throughout_and_scaled_if_not() {
        let whole = |count, running_ns| HardwareSlice { count, enabled_ns: 300, running_ns }.whole();
        assert_eq!(whole(7, 300), Ok(7.0));
        assert_eq!(whole(7, 100), Ok(21.0));
        // An event that did not occur is no missing count.
        assert_eq!(whole(0, 1), Ok(0.0));
        assert_eq!(whole(0, 0).unwrap_err().reason, Reason::TooLittle);
    }

    #[test]
    fn a_steady_ratio_is_narrow_and_an_unsteady_one_is_wide() {
        let cycles = || slices(&[(100, 10), (100, 10), (100, 10), (100, 10)]);
        let of = |counted: &[(u64, u64)]| {
            counts(vec![(Cycles, cycles()), (Instructions, slices(counted))]).ratio(Instructions, Cycles)
        };
        assert_near(of(&[(50, 10); 4]), 0.5, 0.5, 0.5);
        let unsteady = of(&[(10, 10), (90, 10), (10, 10), (90, 10)]).unwrap();
        assert!((unsteady.point - 0.5).abs() < 1e-9 && unsteady.high - unsteady.low > 0.5, "{unsteady:?}");
        assert!(unsteady.low >= 0.0);
    }

    #[test]
    fn a_multiplexed_event_is_scaled_and_its_interval_is_wider() {
        let counted = |running_ms, count| {
            let events =
                vec![(Cycles, slices(&[(100, 10); 4])), (Instructions, slices(&[(count, running_ms); 4]))];
            counts(events).ratio(Instructions, Cycles)
        };
        assert_near(counted(10, 50), 0.5, 0.5, 0.5);
        assert_near(counted(5, 25), 0.375, 0.5, 0.625);
    }

    #[test]
    fn what_was_not_counted_has_its_reason() {
        let refused = Absence::new(Reason::NotSupported, "no such event");
        let counts = counts(vec![
            (Cycles, slices(&[(100, 10); 4])),
            (Instructions, slices(&[(0, 0); 4])),
            (DtlbLoadMisses, Err(refused.clone())),
        ]);
        assert_eq!(counts.ratio(DtlbLoadMisses, Cycles), Err(refused));
        assert_eq!(counts.ratio(Instructions, Cycles).unwrap_err().reason, Reason::TooLittle);
        assert_eq!(counts.per_cpu_ns(NodeLoads).unwrap_err().reason, Reason::NotFound);
        // 400 cycles in 40 ms.
        assert_near(counts.per_cpu_ns(Cycles), 1e-5, 1e-5, 1e-5);
    }

    #[test]
    fn two_slices_are_too_few_but_the_whole_window_is_exact() {
        let mut counts = counts(vec![(Cycles, slices(&[(100, 10); 2]))]);
        assert_eq!(counts.per_cpu_ns(Cycles).unwrap_err().reason, Reason::TooLittle);
        counts.throughout = true;
        assert_near(counts.per_cpu_ns(Cycles), 1e-5, 1e-5, 1e-5);
        // The target did not run.
        counts.events[0].counted = Ok(HardwareSlices { slices: vec![HardwareSlice::default()] });
        assert_eq!(counts.per_cpu_ns(Cycles).unwrap_err().reason, Reason::TooLittle);
    }
}
