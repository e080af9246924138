//! glibc's malloc tunables: what each one does, and limits of malloc that are tighter than those that the loader lists.

use super::cost::CostClass::{self, *};
use super::remedies::{ALLOCATOR_LINES, HEAP_LINES};
use super::walls::Wall;

/// One tunable of glibc.malloc (manual/tunables.texi, malloc/malloc.c, malloc/arena.c).
#[derive(Clone, Copy, Debug)]
pub struct MallocTunable {
    /// Name without `glibc.malloc.`.
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

pub const TUNABLES: &[MallocTunable] = &[
    MallocTunable {
        name: "arena_max",
        since: (2, 26),
        title: "maximum number of arenas",
        page: "malloc distributes threads over arenas. Each arena has its own lock and its own free memory. The default is eight arenas per CPU on 64 bits and two on 32 bits. MALLOC_ARENA_MAX is the older name.",
        backfires: "few arenas: threads wait for their locks; many arenas: each one keeps its own free memory",
        acts_on: &[AllocatorLocks, MapCalls],
    },
    MallocTunable {
        name: "arena_test",
        since: (2, 26),
        title: "number of arenas that malloc makes before it limits them",
        page: "malloc makes this many arenas before it computes a limit from the number of CPUs. It has no effect if arena_max is set.",
        backfires: "the same as arena_max",
        acts_on: &[AllocatorLocks, MapCalls],
    },
    MallocTunable {
        name: "mmap_threshold",
        since: (2, 26),
        title: "size from which each block gets its own mapping",
        page: "A mapped block costs one map, one unmap and the first touch of all its pages, every time. It is returned to the kernel as soon as it is freed. By default the threshold starts at 128 KiB and rises with the size of freed mapped blocks, up to 32 MiB. If one of mmap_threshold, trim_threshold and top_pad is set, glibc no longer adapts any of them.",
        backfires: "large values: one long-lived block above many freed blocks keeps them resident",
        acts_on: HEAP_LINES,
    },
    MallocTunable {
        name: "mmap_max",
        since: (2, 26),
        title: "maximum number of blocks with their own mapping",
        page: "When this many blocks are mapped, further large blocks come from the heap. With 0, no block gets its own mapping. The default is 65,536.",
        backfires: "the same as mmap_threshold",
        acts_on: HEAP_LINES,
    },
    MallocTunable {
        name: "trim_threshold",
        since: (2, 26),
        title: "free memory at the top of the heap above this size is returned to the kernel",
        page: "When a free leaves more than this at the top of the heap, malloc shrinks the heap with a system call. When the heap grows again, it pays a system call and the first touches again. The default is 128 KiB; when the mmap threshold rises, it is twice the mmap threshold.",
        backfires: "large values: resident memory stays at its peak",
        acts_on: HEAP_LINES,
    },
    MallocTunable {
        name: "top_pad",
        since: (2, 26),
        title: "extra size when the heap grows",
        page: "When the heap grows, malloc asks for this much more than needed, and a trim leaves this much. The default is 128 KiB. MALLOC_TOP_PAD_ is the older name.",
        backfires: "each arena grows in such steps; if it is set, glibc no longer adapts the thresholds",
        acts_on: HEAP_LINES,
    },
    MallocTunable {
        name: "tcache_count",
        since: (2, 26),
        title: "number of free blocks of each size in the thread cache",
        page: "The thread cache needs no lock. By default it keeps 7 blocks of each size (16 since 2.42). 0 switches it off.",
        backfires: "other threads cannot use the free blocks in a thread's cache",
        acts_on: ALLOCATOR_LINES,
    },
    MallocTunable {
        name: "tcache_max",
        since: (2, 26),
        title: "largest block size in the thread cache",
        page: "The default is 1,032 bytes on 64 bits, which is also the maximum before 2.42. Calls for larger blocks take the arena's lock.",
        backfires: "small values: more calls take the lock; large values (since 2.42): more memory per thread",
        acts_on: ALLOCATOR_LINES,
    },
    MallocTunable {
        name: "tcache_unsorted_limit",
        since: (2, 26),
        title: "maximum number of blocks that one allocation moves to the thread cache",
        page: "While malloc searches the unsorted list, it moves blocks of the requested size to the thread cache. This tunable limits their number; 0 means no limit.",
        backfires: "small values: the cache fills more slowly, and more calls take the lock",
        acts_on: ALLOCATOR_LINES,
    },
    MallocTunable {
        name: "mxfast",
        since: (2, 30),
        title: "largest block size in a fast bin",
        page: "malloc does not merge blocks in fast bins with their free neighbours. The default is 128 bytes on 64 bits, the maximum is 160.",
        backfires: "large values: fragmentation",
        acts_on: ALLOCATOR_LINES,
    },
    MallocTunable {
        name: "hugetlb",
        since: (2, 35),
        title: "huge pages for malloc",
        page: "1: ask for transparent huge pages if the machine's mode is madvise. 2: use reserved huge pages of the default size. A larger number: use reserved huge pages of that size in bytes.",
        backfires: "memory grows by up to one huge page per region; with 2, malloc uses small pages without a message when no reserved page is left",
        acts_on: Wall::FirstTouch.lines(),
    },
    MallocTunable {
        name: "perturb",
        since: (2, 26),
        title: "fill blocks with a byte",
        page: "For debugging: malloc fills allocated blocks with the complement of the byte, and freed blocks with the byte.",
        backfires: "each block is written two more times",
        acts_on: ALLOCATOR_LINES,
    },
    MallocTunable {
        name: "check",
        since: (2, 26),
        title: "consistency checks of the heap",
        page: "For debugging. Since 2.34 it only has an effect if libc_malloc_debug.so is preloaded.",
        backfires: "each call is checked, and all threads share one lock for this",
        acts_on: ALLOCATOR_LINES,
    },
];

/// Finds a tunable by its name, with or without `glibc.malloc.`.
pub fn find(name: &str) -> Option<&'static MallocTunable> {
    let short = name.strip_prefix(PREFIX).unwrap_or(name);
    TUNABLES.iter().find(|known| known.name == short)
}

/// A name without a group belongs to glibc.malloc (`arena_max`). Other groups are written out: `pthread.rseq`,
/// `glibc.pthread.rseq`.
pub fn full_name(name: &str) -> String {
    match name {
        _ if name.starts_with("glibc.") => name.to_owned(),
        _ if name.contains('.') => format!("glibc.{name}"),
        _ => format!("{PREFIX}{name}"),
    }
}

/// glibc's limit on the number of arenas without a setting, per CPU, on 64 bits: NARENAS_FROM_NCORES of malloc/arena.c.
pub const ARENAS_PER_CPU: u64 = 8;

pub fn arenas_by_default(cpus: u64) -> u64 {
    ARENAS_PER_CPU * cpus.max(1)
}

/// malloc accepts less than the loader's list says, and ignores larger values without a message. The fields: name, the
/// first version, the first later version without this limit, the largest value.
type Limit = (&'static str, (u32, u32), (u32, u32), u64);

const LATEST: (u32, u32) = (u32::MAX, 0);

const LIMITS: &[Limit] = &[
    // MAX_TCACHE_COUNT of malloc/malloc.c: a signed char before 2.30, then 16 bits.
    ("glibc.malloc.tcache_count", (2, 26), (2, 30), 127),
    ("glibc.malloc.tcache_count", (2, 30), LATEST, 65_535),
    // MAX_TCACHE_SIZE on 64 bits; since 2.42 there are large bins.
    ("glibc.malloc.tcache_max", (2, 26), (2, 42), 1032),
    // HEAP_MAX_SIZE / 2 on 64 bits.
    ("glibc.malloc.mmap_threshold", (2, 26), (2, 36), 32 << 20),
];

/// The largest value that malloc itself accepts in this version; None if only the loader's limits apply.
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
