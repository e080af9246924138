//! What another allocator saves of the cost of glibc's malloc. The values are fractions of a line of the bill, from the least to the
//! most: 1 saves the whole line; below 0 it costs more.
//!
//! The ranges contain all results that `benches/prediction_accuracy.py` measured on its subjects (docs/prediction-accuracy.md). They
//! are wider, because other sizes, lifetimes and machines change the results of the same allocator.

use super::modules::AllocatorKind;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds {
    pub least: f64,
    pub most: f64,
}

#[derive(Clone, Copy, Debug)]
pub struct Swap {
    pub kind: AllocatorKind,
    /// Of allocator code, if glibc's thread cache serves most calls.
    pub cached: Bounds,
    /// The same, if most calls miss the thread cache.
    pub missing: Bounds,
    /// Of map calls and page release by malloc, for blocks below 8 MiB.
    pub mapped: Bounds,
    /// The same for larger blocks.
    pub mapped_large: Bounds,
    /// Of first touches of memory that malloc returns and maps again in blocks below 8 MiB.
    pub touched: Bounds,
    /// The same for larger blocks. jemalloc returns them at once (opt.oversize_threshold in its manual); mimalloc returns those that
    /// have their own segment.
    pub touched_large: Bounds,
    /// CPU time, in seconds, that loading the library adds to the start of a process.
    pub start_s: Bounds,
}

const fn part(least: f64, most: f64) -> Bounds {
    Bounds { least, most }
}

/// Of contention in the allocator, and of its code if threads contend: the same for all these allocators.
pub const CONTENDED: Bounds = part(0.65, 1.0);
/// Of the application's own time in such a program. A thread that spins for another thread spends this time in application code; it
/// spins less when the other thread is faster. The mean of `CONTENDED` is the upper limit.
pub const SPINNING: Bounds = part(0.0, 0.85);
/// Of contention and of the code that it slows down, with an arena for each thread. The cost of the calls themselves stays.
pub const ARENAS: Bounds = part(0.4, 0.95);
/// Of allocator code, if the current allocator is not glibc's, or if the share of cached calls is unknown.
pub const UNKNOWN_CODE: Bounds = part(-0.25, 0.6);
/// Of the application's own time: the addresses of blocks change the time of its loads, and the alignment of a program changes its run
/// time by 1 to 2 %; one more environment variable, which is how a setting is made, moves the stack (Mytkowicz et al., ASPLOS 2009).
pub const LAYOUT: Bounds = part(-0.015, 0.015);
/// Of the part of the application's own time that waits for loads, where many blocks are in use: other allocators place them more
/// densely and in another order. Some programs gain much, others nothing; no measurement of ours says which. Chosen from the
/// programs of docs/prediction-accuracy.md.
pub const LOADS_OF_BLOCKS: Bounds = part(-0.05, 0.45);
/// The same on huge pages, where loads also miss the TLB less often.
pub const ON_HUGE_PAGES: Bounds = part(-0.02, 0.02);
/// The same with all of CPython's small objects on huge pages. The range covers programs that do not grow, and a program that touches
/// a million blocks in random order (it saved 15 % of that time, docs/obmalloc.md); it is somewhat wider.
pub const ARENAS_ON_HUGE_PAGES: Bounds = part(-0.02, 0.2);
/// Of first touches of a growing heap: another allocator places blocks less or more densely.
pub const GROWTH: Bounds = part(-0.3, 0.1);

pub const SWAPS: &[Swap] = &[
    Swap {
        kind: AllocatorKind::Jemalloc,
        cached: part(-0.1, 0.15),
        missing: part(-0.1, 0.9),
        mapped: part(0.5, 1.0),
        mapped_large: part(-0.2, 0.6),
        touched: part(0.0, 1.0),
        touched_large: part(-0.4, 0.15),
        start_s: part(0.000_5, 0.001_5),
    },
    Swap {
        kind: AllocatorKind::Tcmalloc,
        cached: part(-0.1, 0.2),
        missing: part(0.5, 0.97),
        mapped: part(0.8, 1.0),
        mapped_large: part(0.8, 1.0),
        touched: part(0.3, 1.0),
        touched_large: part(0.8, 1.0),
        start_s: part(0.001_5, 0.003),
    },
    Swap {
        kind: AllocatorKind::Mimalloc,
        cached: part(-0.1, 0.2),
        missing: part(0.45, 0.9),
        mapped: part(0.7, 1.0),
        mapped_large: part(-0.2, 0.6),
        touched: part(0.0, 1.0),
        touched_large: part(-0.4, 0.15),
        start_s: part(0.0, 0.000_5),
    },
    Swap {
        kind: AllocatorKind::Snmalloc,
        cached: part(-0.1, 0.2),
        missing: part(0.3, 0.95),
        mapped: part(0.0, 1.0),
        mapped_large: part(-0.2, 1.0),
        touched: part(0.0, 1.0),
        touched_large: part(-0.05, 1.0),
        start_s: part(0.0, 0.000_5),
    },
];

pub fn of(kind: AllocatorKind) -> Option<&'static Swap> {
    SWAPS.iter().find(|swap| swap.kind == kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_a_range_and_saves_no_more_than_all() {
        for swap in SWAPS {
            for part in
                [swap.cached, swap.missing, swap.mapped, swap.mapped_large, swap.touched, swap.touched_large]
            {
                assert!(-1.0 < part.least && part.least < part.most && part.most <= 1.0, "{swap:?}");
            }
            assert!(0.0 <= swap.start_s.least && swap.start_s.most < 0.01, "{swap:?}");
        }
        assert!(of(AllocatorKind::Glibc).is_none());
    }
}
