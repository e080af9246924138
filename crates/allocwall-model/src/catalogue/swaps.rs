//! What another allocator saves of what glibc's malloc costs. Parts of the bill's lines, from the least to the most: 1 is all of
//! a line, below 0 it costs more.
//!
//! The ranges hold what `benches/prediction_accuracy.py` measured on its subjects (docs/prediction-accuracy.md), with room for what
//! other sizes, lifetimes and machines do to the same allocator.

use super::modules::AllocatorKind;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Part {
    pub least: f64,
    pub most: f64,
}

#[derive(Clone, Copy, Debug)]
pub struct Swap {
    pub kind: AllocatorKind,
    /// Of allocator code, where glibc's thread cache serves most calls.
    pub cached: Part,
    /// The same where most calls miss it.
    pub missing: Part,
    /// Of map calls and page release on malloc's behalf, for blocks below 8 MiB.
    pub mapped: Part,
    /// The same for larger blocks.
    pub mapped_large: Part,
    /// Of first touches of memory that malloc gives back and maps again in blocks below 8 MiB.
    pub touched: Part,
    /// The same for larger blocks. jemalloc gives those back at once (opt.oversize_threshold of its manual), mimalloc those that
    /// are a segment of their own.
    pub touched_large: Part,
    /// What loading the library adds to a process's start, seconds of CPU.
    pub start_s: Part,
}

const fn part(least: f64, most: f64) -> Part {
    Part { least, most }
}

/// Of contention in the allocator, and of its code where threads meet in it, every one of these.
pub const CONTENDED: Part = part(0.65, 1.0);
/// Of the application's own time in such a program: a thread that waits for another one by spinning does so there, and its waiting
/// shrinks with what it waits for, at most as `CONTENDED` does in the mean.
pub const SPINNING: Part = part(0.0, 0.85);
/// Of contention and the code that it slows, arenas for every thread: the calls' own cost stays.
pub const ARENAS: Part = part(0.4, 0.95);
/// Of an allocator's code where the present one is not glibc's, or how it serves is not known.
pub const UNKNOWN_CODE: Part = part(-0.25, 0.6);
/// Of the application's own time: where blocks come to lie moves its loads, and a program's alignment its run time by a percent or
/// two (Mytkowicz et al., ASPLOS 2009).
pub const LAYOUT: Part = part(-0.015, 0.015);
/// The same for a setting of the allocator that it has.
pub const PLACES: Part = part(-0.005, 0.005);
/// The same on huge pages, where its loads also miss the TLB less often.
pub const ON_HUGE_PAGES: Part = part(-0.02, 0.02);
/// The same where all of CPython's small objects are: from what programs that don't grow showed to what touching a million blocks in
/// random order did (15 % of that time, docs/obmalloc.md), with room.
pub const ARENAS_ON_HUGE_PAGES: Part = part(-0.02, 0.2);
/// Memory that is touched for the first time ever: another allocator lays it out less or more tightly.
pub const GROWTH: Part = part(-0.3, 0.1);

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
            for part in [
                swap.cached,
                swap.missing,
                swap.mapped,
                swap.mapped_large,
                swap.touched,
                swap.touched_large,
            ] {
                assert!(
                    -1.0 < part.least && part.least < part.most && part.most <= 1.0,
                    "{swap:?}"
                );
            }
            assert!(0.0 <= swap.start_s.least && swap.start_s.most < 0.01, "{swap:?}");
        }
        assert!(of(AllocatorKind::Glibc).is_none());
    }
}
