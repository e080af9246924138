//! The thresholds of the walls: for each wall a share, an absolute minimum, and the source of both.

use super::walls::Wall;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Threshold {
    pub wall: Wall,
    /// Share from which the wall is a contributor.
    pub contributor: f64,
    /// Share from which it is a wall.
    pub wall_from: f64,
    /// Absolute minimum: below it the wall is ruled out, even if its share is large.
    pub floor: Floor,
    pub source: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Floor {
    /// CPU-seconds, thread-seconds or seconds of connections lost per second of the window.
    PerSecond(f64),
    Bytes(f64),
    /// The share alone decides: it is already a share of time or of memory accesses.
    None,
}

/// With fewer CPU samples, shares are not judged. With 100 samples the 95 % interval of a 15 % share is 9 to 23 %,
/// just above the 5 % threshold of most contributors.
pub const MIN_SAMPLES: u64 = 100;

/// Bounds that separate calls that the thread cache serves from calls that miss it, as shares of the allocator's samples.
///
/// Measured on glibc 2.36, one thread, as (entry points, named misses): 64-byte blocks in batches of 4 (0.55, 0.00);
/// in batches of 100 (0.40, 0.17); random sizes to 1 KiB (0.38, 0.32); 2 KB blocks, no thread cache (0.24, 0.45).
pub struct PathBounds {
    /// Cached calls: the share of entry points is at least this, or the share of misses is at most this.
    pub cached: f64,
    /// Misses: the share of entry points is at most this, or the share of misses is at least this.
    pub missing: f64,
}

/// For a stripped library, in which only entry points have names: bounds for the share of the entry points.
pub const ENTRY_SHARE: PathBounds = PathBounds { cached: 0.45, missing: 0.32 };

/// For a library in which internal functions have names: bounds for the share of functions that run only on a miss.
pub const MISS_SHARE: PathBounds = PathBounds { cached: 0.10, missing: 0.40 };

/// Memory that the second-level TLB of a current server core covers with 4 KiB pages: 1,536 entries on Intel Skylake
/// to Ice Lake, 2,048 on Zen 2 to 4. The smaller value, so that memory that fits into it fits on both.
pub const TLB_REACH_BYTES: u64 = 1536 * 4096;

/// Signs that the machine or cgroup is short of memory. This is not a wall of the allocator. If any value is reached, the
/// verdict does not claim that memory is not the bottleneck.
pub struct Pressure {
    /// Share of CPU time in reclaim and compaction, upper end of the interval; the same value as for first touch.
    pub reclaim: f64,
    /// Part of the time in which at least one task of the machine waited for memory (Documentation/accounting/psi.rst).
    pub stalled: f64,
    /// Major faults per second. Each one waits 0.1 ms (flash) to 10 ms (disk): at least 1 % of one thread's time.
    pub major_faults: f64,
}

pub const PRESSURE: Pressure = Pressure { reclaim: 0.05, stalled: 0.10, major_faults: 100.0 };

/// What a disk does that threads have to wait for. Such a disk is in the sentence of the verdict.
pub struct DiskLoad {
    /// Part of the time in which it is busy. In a queue with one server, a request that comes while it is busy 60 % of the time
    /// waits 1.5 times as long as it is served (M/M/1). Gregg's USE method takes the same value.
    pub busy: f64,
    /// Milliseconds a request: a random access of a spinning disk takes 10 (a seek and half a turn), of flash 0.1.
    pub slow_ms: f64,
}

pub const DISK_LOAD: DiskLoad = DiskLoad { busy: 0.60, slow_ms: 10.0 };

/// A connection stands still for at least this time until a segment without an answer is sent again: TCP_RTO_MIN of
/// include/net/tcp.h.
pub const LEAST_TIMEOUT_S: f64 = 0.2;

pub const TABLE: [Threshold; 22] = [
    Threshold {
        wall: Wall::CgroupThrottling,
        contributor: 0.01,
        wall_from: 0.10,
        floor: Floor::PerSecond(0.005),
        source: "our choice: each throttled period is a pause of 10 to 80 ms, so 1 % of the runnable time is visible in the p99 latency",
    },
    Threshold {
        wall: Wall::Steal,
        contributor: 0.05,
        wall_from: 0.20,
        floor: Floor::PerSecond(0.02),
        source: "our choice: a few per cent of steal are normal on shared machines; 20 % make the machine clearly slower",
    },
    Threshold {
        wall: Wall::RunQueue,
        contributor: 0.05,
        wall_from: 0.20,
        floor: Floor::PerSecond(0.05),
        source: "our choice: below 20 % of the runnable time, the target still gets most of the CPU time that it asks for",
    },
    Threshold {
        wall: Wall::Waiting,
        contributor: 0.30,
        wall_from: 0.60,
        floor: Floor::None,
        source: "our choice: if the target uses less than 0.4 CPUs, it waits most of the time, and saving CPU time would not make it faster",
    },
    Threshold {
        wall: Wall::Disk,
        contributor: 0.05,
        wall_from: 0.20,
        floor: Floor::PerSecond(0.05),
        source: "our choice, as for the run queue: a thread had work but could not run",
    },
    Threshold {
        wall: Wall::Network,
        contributor: 0.01,
        wall_from: 0.10,
        floor: Floor::PerSecond(0.05),
        source: "a loss of 1 % leaves a TCP connection a window of 1.22/√0.01 = 12 segments (Mathis et al., CCR 1997), just above the 10 that it begins with (RFC 6928); a loss of 10 % leaves 4, the fewest for a fast retransmission (RFC 5681)",
    },
    Threshold {
        wall: Wall::ApplicationLock,
        contributor: 0.05,
        wall_from: 0.20,
        floor: Floor::PerSecond(0.05),
        source: "our choice, as for the run queue: a thread had work but could not run",
    },
    Threshold {
        wall: Wall::Gil,
        contributor: 0.05,
        wall_from: 0.20,
        floor: Floor::PerSecond(0.05),
        source: "our choice, as for the run queue: a thread had work but could not run",
    },
    Threshold {
        wall: Wall::GarbageCollector,
        contributor: 0.05,
        wall_from: 0.15,
        floor: Floor::PerSecond(0.05),
        source: "our choice: Go's collector aims at 25 % of the CPU while it runs, and is idle most of the time",
    },
    Threshold {
        wall: Wall::FirstTouch,
        contributor: 0.05,
        wall_from: 0.15,
        floor: Floor::PerSecond(0.05),
        source: "our choice: 18 % of CPU time in faults and zeroing was seen with a p99 latency of 6 to 31 ms",
    },
    Threshold {
        wall: Wall::Fork,
        contributor: 0.05,
        wall_from: 0.15,
        floor: Floor::PerSecond(0.05),
        source: "as for first touch: a fault that copies a page costs about as much as one that zeroes it",
    },
    Threshold {
        wall: Wall::FileFault,
        contributor: 0.05,
        wall_from: 0.15,
        floor: Floor::PerSecond(0.05),
        source: "as for first touch",
    },
    Threshold {
        wall: Wall::MapChurn,
        contributor: 0.05,
        wall_from: 0.15,
        floor: Floor::PerSecond(0.05),
        source: "as for first touch, which map churn causes",
    },
    Threshold {
        wall: Wall::AddressSpaceLock,
        contributor: 0.05,
        wall_from: 0.15,
        floor: Floor::PerSecond(0.05),
        source: "our choice: with 31 % of CPU time in down_write a program stopped scaling; half of this halves the scaling",
    },
    Threshold {
        wall: Wall::Tlb,
        contributor: 0.05,
        wall_from: 0.15,
        floor: Floor::PerSecond(0.05),
        source: "as for first touch; only hardware counters can prove it",
    },
    Threshold {
        wall: Wall::Numa,
        contributor: 0.05,
        wall_from: 0.15,
        floor: Floor::PerSecond(0.05),
        source: "as for first touch; without counted loads, a wall only if 80 % of the accesses are expected on another node",
    },
    Threshold {
        wall: Wall::KernelSlab,
        contributor: 0.05,
        wall_from: 0.15,
        floor: Floor::PerSecond(0.05),
        source: "as for first touch: the kernel makes memory ready for the program's work",
    },
    Threshold {
        wall: Wall::CallRate,
        contributor: 0.07,
        wall_from: 0.15,
        floor: Floor::PerSecond(0.05),
        source: "Kanev et al., ISCA 2015: allocation takes about 7 % of cycles across a fleet; a wall is twice as much",
    },
    Threshold {
        wall: Wall::LargeAllocations,
        contributor: 0.05,
        wall_from: 0.15,
        floor: Floor::PerSecond(0.05),
        source: "as for first touch: both fill memory, by the byte",
    },
    Threshold {
        wall: Wall::AllocatorCode,
        contributor: 0.07,
        wall_from: 0.15,
        floor: Floor::PerSecond(0.05),
        source: "Kanev et al., ISCA 2015, as for the call rate",
    },
    Threshold {
        wall: Wall::AllocatorContention,
        contributor: 0.05,
        wall_from: 0.10,
        floor: Floor::PerSecond(0.05),
        source: "our choice: throughput stops growing at about 30 % of time in lock waits; waiting does no work, so a third of this",
    },
    Threshold {
        wall: Wall::Retention,
        contributor: 0.25,
        wall_from: 0.50,
        floor: Floor::Bytes(64.0 * 1024.0 * 1024.0),
        source: "our choice: general allocators keep 10 to 25 % free memory; 64 MiB is the heap of one glibc arena",
    },
];

/// The row of one wall.
pub fn of(wall: Wall) -> &'static Threshold {
    // The table has the order of `Wall::ALL`, which is the order of the variants; a test checks this.
    &TABLE[wall as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_row_a_wall_in_the_ladder_s_order() {
        assert!(TABLE.iter().map(|t| t.wall).eq(Wall::ALL));
        assert!(Wall::ALL.into_iter().all(|w| of(w).wall == w));
    }

    #[test]
    fn a_contributor_comes_before_a_wall_and_every_row_has_a_source() {
        for row in &TABLE {
            assert!(0.0 < row.contributor && row.contributor < row.wall_from, "{row:?}");
            assert!(!row.source.is_empty());
        }
    }
}
