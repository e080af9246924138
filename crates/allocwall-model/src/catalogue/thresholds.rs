//! From where on a wall is called one: a share and an absolute floor each, with their source.

use super::walls::Wall;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Threshold {
    pub wall: Wall,
    /// Fraction of its whole from which the wall counts at all.
    pub contributor: f64,
    /// Fraction from which it is called the wall; `UNREACHABLE` where the evidence can never carry that.
    pub wall_from: f64,
    /// Below this nobody would notice, whatever the share.
    pub floor: Floor,
    pub source: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Floor {
    /// CPU-seconds or thread-seconds lost per second of the window.
    PerSecond(f64),
    Bytes(f64),
    /// The share alone decides (it is one of time already, or of accesses).
    None,
}

/// No share reaches it.
pub const UNREACHABLE: f64 = f64::INFINITY;

/// CPU samples below which shares are not judged: at 100 the 95 % interval of a 15 % share is 9 to 23 %,
/// just clear of the 5 % from which most walls count.
pub const MIN_SAMPLES: u64 = 100;

/// Bounds of "the thread cache serves the calls" and "they miss it", as shares of the allocator's samples.
///
/// Measured on glibc 2.36, one thread, as (entry points, named misses): 64-byte blocks in batches of 4 (0.55, 0.00);
/// in batches of 100 (0.40, 0.17); random sizes to 1 KiB (0.38, 0.32); 2 KB blocks, no thread cache (0.24, 0.45).
pub struct PathBounds {
    /// At least this is the mark of cached calls, or at most where misses are counted.
    pub cached: f64,
    /// At most this is the mark of misses, or at least where misses are counted.
    pub missing: f64,
}

/// Where only the entry points have names (a stripped library): their share.
pub const ENTRY_SHARE: PathBounds = PathBounds {
    cached: 0.45,
    missing: 0.32,
};

/// Where internal functions have names: the share of those that run only on a miss.
pub const MISS_SHARE: PathBounds = PathBounds {
    cached: 0.10,
    missing: 0.40,
};

/// Memory that the second-level TLB of a present server core reaches with 4 KiB pages: 1,536 entries (Intel Skylake
/// to Ice Lake; 2,048 on Zen 2 to 4). The smaller one, so that "it fits" is true on both.
pub const TLB_REACH_BYTES: u64 = 1536 * 4096;

/// Signs that memory is short, which is no wall of the allocator's. From any of them on it is not said that memory is not
/// the wall.
pub struct Pressure {
    /// Share of CPU in reclaim and compaction, by the upper end: as for the lines of first touch.
    pub reclaim: f64,
    /// Part of the time in which some task of the machine stalled for memory (Documentation/accounting/psi.rst).
    pub stalled: f64,
    /// Major faults a second. Each waits 0.1 ms (flash) to 10 ms (disks): 1 % of one thread's time at the least.
    pub major_faults: f64,
}

pub const PRESSURE: Pressure = Pressure {
    reclaim: 0.05,
    stalled: 0.10,
    major_faults: 100.0,
};

pub const TABLE: [Threshold; 15] = [
    Threshold {
        wall: Wall::CgroupThrottling,
        contributor: 0.01,
        wall_from: 0.10,
        floor: Floor::PerSecond(0.005),
        source: "our judgement: each throttled period is a pause of 10 to 80 ms, so 1 % of runnable time already shows at p99",
    },
    Threshold {
        wall: Wall::Steal,
        contributor: 0.05,
        wall_from: 0.20,
        floor: Floor::PerSecond(0.02),
        source: "our judgement: a few per cent of steal is normal on shared machines; a fifth is a slower machine",
    },
    Threshold {
        wall: Wall::RunQueue,
        contributor: 0.05,
        wall_from: 0.20,
        floor: Floor::PerSecond(0.05),
        source: "our judgement: below a fifth of runnable time the target still gets most of the CPU it asks for",
    },
    Threshold {
        wall: Wall::Waiting,
        contributor: 0.30,
        wall_from: 0.60,
        floor: Floor::None,
        source: "our judgement: with less than 0.4 of one CPU in use, most of the time no saving of CPU would shorten anything",
    },
    Threshold {
        wall: Wall::ApplicationLock,
        contributor: 0.05,
        wall_from: 0.20,
        floor: Floor::PerSecond(0.05),
        source: "our judgement, as for the run queue: time in which a thread had work and could not do it",
    },
    Threshold {
        wall: Wall::GarbageCollector,
        contributor: 0.05,
        wall_from: 0.15,
        floor: Floor::PerSecond(0.05),
        source: "our judgement: Go's collector aims at a quarter of the CPU while it runs, and idles most of the time",
    },
    Threshold {
        wall: Wall::FirstTouch,
        contributor: 0.05,
        wall_from: 0.15,
        floor: Floor::PerSecond(0.05),
        source: "account of the invisible overheads: 18 % of CPU in fault and zeroing went with p99 6 to 31 ms",
    },
    Threshold {
        wall: Wall::MapChurn,
        contributor: 0.05,
        wall_from: 0.15,
        floor: Floor::PerSecond(0.05),
        source: "as for first touch, whose pages it makes fresh again",
    },
    Threshold {
        wall: Wall::AddressSpaceLock,
        contributor: 0.05,
        wall_from: 0.15,
        floor: Floor::PerSecond(0.05),
        source: "account of the invisible overheads: 31 % in down_write was the wall; half of that already halves scaling",
    },
    Threshold {
        wall: Wall::Tlb,
        contributor: 0.05,
        wall_from: UNREACHABLE,
        floor: Floor::PerSecond(0.05),
        source: "an upper bound from reach and prices can rule out, never convict",
    },
    Threshold {
        wall: Wall::Numa,
        contributor: 0.05,
        wall_from: UNREACHABLE,
        floor: Floor::None,
        source: "account of the invisible overheads: look from 5 % remote on; the counters are the machine's, so never the wall",
    },
    Threshold {
        wall: Wall::CallRate,
        contributor: 0.07,
        wall_from: 0.15,
        floor: Floor::PerSecond(0.05),
        source: "Kanev et al., ISCA 2015: allocation takes about 7 % of cycles across a fleet; the wall is at twice the ordinary",
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
        source: "account of the allocator wall: lock waits of 30 % at the knee; waiting yields nothing, so a third of that",
    },
    Threshold {
        wall: Wall::Retention,
        contributor: 0.25,
        wall_from: 0.50,
        floor: Floor::Bytes(64.0 * 1024.0 * 1024.0),
        source: "our judgement: general allocators keep 10 to 25 % spare; 64 MiB is one glibc arena's heap",
    },
];

/// The row of one wall.
pub fn of(wall: Wall) -> &'static Threshold {
    // The table is in the order of `Wall::ALL`, which is the order of the variants; a test holds it.
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
            assert!(
                0.0 < row.contributor && row.contributor < row.wall_from,
                "{row:?}"
            );
            assert!(!row.source.is_empty());
        }
    }
}
