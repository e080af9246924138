//! Names of the entries of a machine's price list. Unit: nanoseconds per event unless the name says otherwise.

/// 4 KiB first touch of memory that was in use moments ago.
pub const TOUCH_4K: &str = "touch_4k";
/// The same after the memory lay idle for seconds: a hypervisor may have taken it back.
pub const TOUCH_4K_IDLE: &str = "touch_4k_idle";
/// 2 MiB first touch (a transparent huge page), per 2 MiB.
pub const TOUCH_2M: &str = "touch_2m";
pub const TOUCH_2M_IDLE: &str = "touch_2m_idle";
/// Zeroing 4 KiB that is already mapped (memset), per 4 KiB.
pub const ZERO_4K: &str = "zero_4k";
/// munmap of touched memory, per 4 KiB page.
pub const MUNMAP_PAGE: &str = "munmap_page";
/// madvise(MADV_DONTNEED) of touched memory, per 4 KiB page.
pub const DONTNEED_PAGE: &str = "dontneed_page";
/// mmap + munmap of 128 KiB, untouched.
pub const MAP_UNMAP_128K: &str = "map_unmap_128k";
/// MAP_POPULATE, per 4 KiB page.
pub const POPULATE_PAGE: &str = "populate_page";
/// malloc + free of a small block served by the thread cache.
pub const MALLOC_CACHED: &str = "malloc_cached";
/// malloc + free that falls through to the arena.
pub const MALLOC_ARENA: &str = "malloc_arena";
/// malloc + free of a block served by mmap.
pub const MALLOC_MAPPED: &str = "malloc_mapped";
/// 4 KiB first touch, per fault, with N threads faulting in one address space: `fault_threads_N`.
pub const FAULT_THREADS_PREFIX: &str = "fault_threads_";
/// One-way hand-off of a cache line: suffix is the relation of the two CPUs (`smt`, `same_l3`, `other_l3`, `other_node`).
pub const HANDOFF_PREFIX: &str = "handoff_";
/// Dependent load over a region far beyond TLB reach, 4 KiB pages.
pub const LOAD_4K: &str = "load_4k_pages";
/// The same on 2 MiB pages.
pub const LOAD_2M: &str = "load_2m_pages";
pub const SYSCALL: &str = "syscall";
pub const CONTEXT_SWITCH: &str = "context_switch";
