//! Which of an allocator's functions serve a call from the thread cache, and which run when the cache misses.
//!
//! This separates many cheap calls from slow calls. In a stripped glibc only the entry points have names. There
//! `_int_malloc` and `_int_free` (which contains the cached free up to 2.41) are the unnamed rest of malloc's range.

/// Entry points: with a thread cache, they are the whole of a cached call or its first half.
const ENTRY: &[&str] = &[
    "malloc",
    "free",
    "cfree",
    "calloc",
    "realloc",
    "__libc_malloc",
    "__libc_free",
    "__libc_calloc",
    "__libc_realloc",
    "tcache_get",
    "tcache_put",
    "operator new",
    "operator delete",
    "je_malloc",
    "je_free",
    "je_calloc",
    "je_sdallocx",
    "je_free_sized",
    "tc_malloc",
    "tc_free",
    "tc_new",
    "tc_delete",
    "mi_malloc",
    "mi_free",
    "mi_malloc_small",
    "mi_zalloc",
    "mi_heap_malloc",
    "mi_heap_malloc_small",
];

/// Parts of the names of functions that run only if the thread cache cannot serve the call.
const MISS: &[&str] = &[
    // glibc
    "_int_malloc",
    "_int_memalign",
    "_int_realloc",
    "malloc_consolidate",
    "unlink_chunk",
    "sysmalloc",
    "systrim",
    "heap_trim",
    "arena_get2",
    "tcache_init",
    // jemalloc
    "arena_",
    "tcache_bin_flush",
    "tcache_alloc_small_hard",
    "je_tcache_gc",
    "je_large_",
    "extent_",
    "je_pac_",
    "je_pai_",
    "je_hpa",
    "je_ecache",
    // tcmalloc
    "CentralFreeList",
    "CentralCache",
    "PageHeap",
    "PageAllocator",
    "TransferCache",
    "tcmalloc::Span",
    // mimalloc
    "_mi_malloc_generic",
    "_mi_page_",
    "mi_page_fresh",
    "mi_find_page",
    "mi_segment",
    "_mi_segment",
    "_mi_arena",
    "mi_free_block_mt",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallPath {
    Entry,
    Miss,
    /// In neither list, or without a name.
    Unknown,
}

pub fn path_of(symbol: Option<&str>) -> CallPath {
    let Some(symbol) = symbol else {
        return CallPath::Unknown;
    };
    // Remove versions (`malloc@@GLIBC_2.2.5`) and the argument lists of demangled names.
    let bare = symbol.split(['@', '(']).next().unwrap_or(symbol).trim_end();
    let bare = bare.strip_suffix("[]").unwrap_or(bare);
    if ENTRY.contains(&bare) {
        CallPath::Entry
    } else if MISS.iter().any(|part| bare.contains(part)) {
        CallPath::Miss
    } else {
        CallPath::Unknown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_points_and_misses_are_separated() {
        for entry in [
            "malloc",
            "malloc@@GLIBC_2.2.5",
            "operator new(unsigned long)",
            "operator delete[](void*)",
            "mi_free",
        ] {
            assert_eq!(path_of(Some(entry)), CallPath::Entry, "{entry}");
        }
        for miss in [
            "_int_malloc",
            "malloc_consolidate",
            "je_arena_malloc_hard",
            "tcmalloc::CentralFreeList::RemoveRange(void**, int)",
        ] {
            assert_eq!(path_of(Some(miss)), CallPath::Miss, "{miss}");
        }
    }

    #[test]
    fn ambiguous_names_are_unknown() {
        // Up to glibc 2.41 `_int_free` contains both the cached free and the uncached one.
        for unknown in [Some("_int_free"), Some("my_malloc_wrapper"), Some(""), None] {
            assert_eq!(path_of(unknown), CallPath::Unknown, "{unknown:?}");
        }
    }
}
