//! glibc's malloc tunables: what each does, and limits that malloc has beyond those that its loader lists.

use super::cost::CostClass::{self, *};

/// One tunable of glibc.malloc (manual/tunables.texi, malloc/malloc.c, malloc/arena.c).
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// Without `glibc.malloc.`.
    pub name: &'static str,
    /// The first version that has it.
    pub since: (u32, u32),
    pub title: &'static str,
    pub page: &'static str,
    pub backfires: &'static str,
    /// Lines of the bill.
    pub acts_on: &'static [CostClass],
}

pub const PREFIX: &str = "glibc.malloc.";

const HEAP_LINES: &[CostClass] = &[MapCalls, PageRelease, FaultPath, Zeroing];
const CODE_LINES: &[CostClass] = &[AllocatorCode, AllocatorLocks];

pub const KNOWN: &[Known] = &[
    Known {
        name: "arena_max",
        since: (2, 26),
        title: "how many arenas malloc makes at most",
        page: "Threads are spread over arenas, each with a lock and free memory of its own. Without it the limit is eight a CPU on 64 bits and two on 32. MALLOC_ARENA_MAX is its older name.",
        backfires: "few arenas: threads wait for one another's locks; many: each keeps free memory of its own",
        acts_on: &[AllocatorLocks, MapCalls],
    },
    Known {
        name: "arena_test",
        since: (2, 26),
        title: "from how many arenas on their number is limited",
        page: "Up to so many arenas are made without asking how many CPUs there are. It has no effect where arena_max is set.",
        backfires: "as arena_max",
        acts_on: &[AllocatorLocks, MapCalls],
    },
    Known {
        name: "mmap_threshold",
        since: (2, 26),
        title: "blocks from this size on are mapped one by one",
        page: "A mapped block costs a map, an unmap and the first touch of all its pages, every time; it is given back as soon as it is freed. By itself the threshold starts at 128 KiB and follows the blocks that are freed, up to 32 MiB; any of mmap_threshold, trim_threshold and top_pad ends that for all three.",
        backfires: "large: one long-lived block above many freed ones keeps them resident",
        acts_on: HEAP_LINES,
    },
    Known {
        name: "mmap_max",
        since: (2, 26),
        title: "how many blocks may be mapped at the same time",
        page: "Beyond this number, large blocks come from the heap; 0 maps none. By itself 65,536.",
        backfires: "as mmap_threshold",
        acts_on: HEAP_LINES,
    },
    Known {
        name: "trim_threshold",
        since: (2, 26),
        title: "free memory at the heap's top from this size on is given back",
        page: "Whenever a free leaves more than this at the top of the heap, the heap shrinks by one call; the next growth pays the call and the first touches again. By itself 128 KiB, then twice the mapping threshold as that grows.",
        backfires: "large: resident memory stays at its high-water mark",
        acts_on: HEAP_LINES,
    },
    Known {
        name: "top_pad",
        since: (2, 26),
        title: "how much more than needed the heap grows by",
        page: "Every growth of the heap asks for this much more, and every trim leaves this much. By itself 128 KiB. MALLOC_TOP_PAD_ is its older name.",
        backfires: "every arena grows in such steps; setting it stops the thresholds from adapting",
        acts_on: HEAP_LINES,
    },
    Known {
        name: "tcache_count",
        since: (2, 26),
        title: "how many free blocks of each size a thread keeps",
        page: "The thread cache needs no lock. By itself it keeps 7 of each size (16 since 2.42); 0 switches it off.",
        backfires: "memory freed by one thread can't be used by another while it is kept",
        acts_on: CODE_LINES,
    },
    Known {
        name: "tcache_max",
        since: (2, 26),
        title: "the largest block that the thread cache keeps",
        page: "By itself, and at most before 2.42, 1,032 bytes on 64 bits; larger blocks take the arena's lock.",
        backfires: "small: more blocks take the lock; large, since 2.42: memory a thread",
        acts_on: CODE_LINES,
    },
    Known {
        name: "tcache_unsorted_limit",
        since: (2, 26),
        title: "how many freed blocks one allocation moves to the thread cache",
        page: "While malloc searches the unsorted list it puts blocks of the wanted size into the thread cache. This ends that after so many; 0 is no limit.",
        backfires: "small: the cache fills later, and more calls take the lock",
        acts_on: CODE_LINES,
    },
    Known {
        name: "mxfast",
        since: (2, 30),
        title: "the largest block that a fast bin keeps",
        page: "Blocks in fast bins are not merged with their neighbours when they are freed. By itself 128 bytes on 64 bits, at most 160.",
        backfires: "large: fragmentation",
        acts_on: CODE_LINES,
    },
    Known {
        name: "hugetlb",
        since: (2, 35),
        title: "malloc on huge pages",
        page: "1: ask for transparent huge pages where the machine's mode is madvise. 2: take reserved pages of the default size; a larger number: of that size in bytes.",
        backfires: "memory grows by up to a huge page a region; with 2, small pages are taken in silence when no reserved one is left",
        acts_on: &[FaultPath, Zeroing],
    },
    Known {
        name: "perturb",
        since: (2, 26),
        title: "fill blocks with a byte",
        page: "A debugging aid: allocated blocks are filled with the complement of the byte, freed ones with the byte.",
        backfires: "each block is written twice more",
        acts_on: CODE_LINES,
    },
    Known {
        name: "check",
        since: (2, 26),
        title: "consistency checks of the heap",
        page: "A debugging aid. Since 2.34 it needs libc_malloc_debug.so preloaded and does nothing without.",
        backfires: "each call is checked under one lock",
        acts_on: CODE_LINES,
    },
];

/// By name, with `glibc.malloc.` or without.
pub fn find(name: &str) -> Option<&'static Known> {
    let short = name.strip_prefix(PREFIX).unwrap_or(name);
    KNOWN.iter().find(|known| known.name == short)
}

/// `arena_max` is of glibc.malloc; other groups are named: `pthread.rseq`, `glibc.pthread.rseq`.
pub fn full_name(name: &str) -> String {
    match name {
        _ if name.starts_with("glibc.") => name.to_owned(),
        _ if name.contains('.') => format!("glibc.{name}"),
        _ => format!("{PREFIX}{name}"),
    }
}

/// malloc takes less than the loader's list says, and ignores the rest without a word: name, the versions from the
/// first up to before the second, the largest value.
type Limit = (&'static str, (u32, u32), (u32, u32), u64);

const LATEST: (u32, u32) = (u32::MAX, 0);

const LIMITS: &[Limit] = &[
    // MAX_TCACHE_COUNT of malloc/malloc.c: a signed char before 2.30, then 16 bits.
    ("glibc.malloc.tcache_count", (2, 26), (2, 30), 127),
    ("glibc.malloc.tcache_count", (2, 30), LATEST, 65_535),
    // MAX_TCACHE_SIZE of 64 bits; with large bins since 2.42.
    ("glibc.malloc.tcache_max", (2, 26), (2, 42), 1032),
    // HEAP_MAX_SIZE / 2 of 64 bits.
    ("glibc.malloc.mmap_threshold", (2, 26), (2, 36), 32 << 20),
];

/// The largest value that malloc itself takes in this version; None where the loader's list is all that there is.
pub fn malloc_limit(name: &str, version: (u32, u32)) -> Option<u64> {
    LIMITS
        .iter()
        .find(|(limited, from, before, _)| *limited == name && *from <= version && version < *before)
        .map(|&(.., most)| most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_completed() {
        assert_eq!(full_name("arena_max"), "glibc.malloc.arena_max");
        assert_eq!(full_name("pthread.rseq"), "glibc.pthread.rseq");
        assert_eq!(full_name("glibc.malloc.top_pad"), "glibc.malloc.top_pad");
        assert_eq!(find("glibc.malloc.top_pad").map(|k| k.name), Some("top_pad"));
        assert!(find("glibc.pthread.rseq").is_none());
    }

    #[test]
    fn malloc_takes_less_than_its_loader_lists() {
        let limit = |name: &str, version| malloc_limit(&full_name(name), version);
        assert_eq!(limit("tcache_count", (2, 28)), Some(127));
        assert_eq!(limit("tcache_count", (2, 36)), Some(65_535));
        assert_eq!(limit("tcache_max", (2, 41)), Some(1032));
        assert_eq!(limit("tcache_max", (2, 42)), None);
        assert_eq!(limit("mmap_threshold", (2, 35)), Some(32 << 20));
        assert_eq!(limit("mmap_threshold", (2, 36)), None);
        assert_eq!(limit("arena_max", (2, 36)), None);
    }
}
