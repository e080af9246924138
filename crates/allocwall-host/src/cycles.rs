//! The CPU's cycle counter as a clock: one read takes about ten nanoseconds and no system call.

use super::clock::monotonic_ns;

/// The counter that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The time-stamp counter, which has a constant rate at every CPU frequency (CPUID 80000007H, EDX bit 8).
    Tsc,
    /// CLOCK_MONOTONIC, if there is no such counter: about twenty nanoseconds more per read.
    Monotonic,
}

impl Source {
    pub fn title(self) -> &'static str {
        match self {
            Source::Tsc => "time-stamp counter",
            Source::Monotonic => "CLOCK_MONOTONIC",
        }
    }
}

/// A counter with its own rate; the same on all CPUs.
#[derive(Clone, Copy, Debug)]
pub struct Cycles {
    source: Source,
    per_ns: f64,
}

impl Cycles {
    /// Compares the counter with CLOCK_MONOTONIC for `calibration_ns`.
    pub fn start(calibration_ns: u64) -> Cycles {
        let source = source();
        let mut cycles = Cycles { source, per_ns: 1.0 };
        if source == Source::Tsc {
            let (began_ns, began) = cycles.both();
            while monotonic_ns() < began_ns + calibration_ns {
                std::hint::spin_loop();
            }
            let (ended_ns, ended) = cycles.both();
            cycles.per_ns = (ended - began) as f64 / (ended_ns - began_ns) as f64;
        }
        cycles
    }

    /// Both clocks at the same time: the closest of sixteen readings, because an interruption can come
    /// between two reads.
    fn both(self) -> (u64, u64) {
        let reading = |_| {
            let before = self.now();
            let ns = monotonic_ns();
            let after = self.now();
            (after - before, ns, before + (after - before) / 2)
        };
        let (_, ns, cycles) = (0..16).map(reading).min().expect("the range is not empty");
        (ns, cycles)
    }

    pub fn source(self) -> Source {
        self.source
    }

    /// Runs after all earlier instructions of the program.
    #[inline(always)]
    pub fn now(self) -> u64 {
        match self.source {
            #[cfg(target_arch = "x86_64")]
            Source::Tsc => {
                let mut cpu = 0;
                // SAFETY: `source` has checked that the CPU has the instruction.
                unsafe { std::arch::x86_64::__rdtscp(&raw mut cpu) }
            }
            _ => monotonic_ns(),
        }
    }

    pub fn ns(self, cycles: u64) -> f64 {
        cycles as f64 / self.per_ns
    }

    pub fn of_ns(self, ns: f64) -> u64 {
        (ns * self.per_ns).round() as u64
    }
}

#[cfg(target_arch = "x86_64")]
fn source() -> Source {
    use raw_cpuid::CpuId;
    let known = CpuId::new();
    let even = known.get_advanced_power_mgmt_info().is_some_and(|info| info.has_invariant_tsc());
    let reads = known.get_extended_processor_and_feature_identifiers().is_some_and(|info| info.has_rdtscp());
    // The kernel's own judgement: it watches the counter, also against those of other CPUs, and removes an
    // unreliable one from this list.
    let trusted =
        std::fs::read_to_string("/sys/devices/system/clocksource/clocksource0/available_clocksource")
            .is_ok_and(|list| list.split_whitespace().any(|name| name == "tsc"));
    if reads && (even || trusted) { Source::Tsc } else { Source::Monotonic }
}

#[cfg(not(target_arch = "x86_64"))]
fn source() -> Source {
    Source::Monotonic
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_runs_like_the_kernels_clock() {
        // One measurement may be off: the hypervisor can take the CPU away between two readings.
        let ratio = |_| {
            let cycles = Cycles::start(10_000_000);
            assert_eq!(cycles.of_ns(cycles.ns(1_000_000)), 1_000_000);
            let (began_ns, began) = cycles.both();
            while monotonic_ns() < began_ns + 20_000_000 {}
            let (ended_ns, ended) = cycles.both();
            cycles.ns(ended - began) / (ended_ns - began_ns) as f64
        };
        let ratios: Vec<f64> = (0..9).map(ratio).collect();
        assert!(ratios.iter().any(|off| (0.999..1.001).contains(off)), "{ratios:?}");
    }
}
