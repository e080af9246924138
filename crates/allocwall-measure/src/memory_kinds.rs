//! Whose memory it is, by the headers that malloc and CPython keep in it. They come from untrusted memory that changes
//! meanwhile, so each must fit in several ways, and a wrong one only gives a wrong owner.

/// Size of a small page.
pub const PAGE: u64 = 4096;
/// Size and alignment of the heaps of a malloc arena: HEAP_MAX_SIZE in glibc's malloc/arena.c, on 64 bits.
pub const ARENA: u64 = 64 << 20;
/// How many blocks of one mapping are read to find the one of an address: the kernel merges neighbours.
const BLOCKS_IN_A_ROW: usize = 64;
/// Sizes of CPython's pools: 16 KiB since 3.10, 4 KiB before (POOL_SIZE in Objects/obmalloc.c).
pub const POOLS: [u64; 2] = [16 << 10, 4 << 10];
/// Size of a pool's own header.
pub const POOL_HEADER: u64 = 48;

/// Reads a word of the target; None where there is none.
pub type Word<'a> = &'a mut dyn FnMut(u64) -> Option<u64>;

/// A heap of an arena, from its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArenaHeap {
    pub base: u64,
    /// Address of its arena (`struct malloc_state`).
    pub arena: u64,
    /// Bytes in use, from `base`.
    pub bytes: u64,
}

/// The header of an arena's heap, at its start: `heap_info` in glibc's malloc/arena.c, with ar_ptr, prev, size and
/// mprotect_size. The arena of the first heap follows its header.
pub fn arena_heap(mapping_start: u64, address: u64, word: Word<'_>) -> Option<ArenaHeap> {
    let base = address & !(ARENA - 1);
    if base < mapping_start {
        return None;
    }
    let (arena, before, size, writable) = (word(base)?, word(base + 8)?, word(base + 16)?, word(base + 24)?);
    let in_bounds = |bytes: u64| bytes > 0 && bytes <= ARENA && bytes.is_multiple_of(PAGE);
    let first = arena & !(ARENA - 1);
    // 0x20 until 2.34, 0x30 since.
    let follows_its_header = matches!(arena - first, 0x20 | 0x30);
    let chained = if before == 0 { first == base } else { before.is_multiple_of(ARENA) && first != base };
    let fits = in_bounds(size)
        && in_bounds(writable)
        && size <= writable
        && follows_its_header
        && chained
        && address - base < size;
    fits.then_some(ArenaHeap { base, arena, bytes: size })
}

pub fn is_arena(mapping_start: u64, address: u64, word: Word<'_>) -> bool {
    arena_heap(mapping_start, address, word).is_some()
}

/// A block with a mapping of its own starts with its chunk header (sysmalloc_mmap in glibc's malloc/malloc.c): what was
/// left out for alignment, and its size with the bit IS_MMAPPED. Returns the end of the block.
pub fn block_end(block: u64, mapping_end: u64, word: Word<'_>) -> Option<u64> {
    const IS_MMAPPED: u64 = 2;
    if block + 16 > mapping_end {
        return None;
    }
    let (before, header) = (word(block)?, word(block + 8)?);
    let size = header & !7;
    let fits = before < PAGE
        && header & 7 == IS_MMAPPED
        && size > 0
        && size <= mapping_end - block
        && (size + before).is_multiple_of(PAGE);
    fits.then(|| block + size)
}

/// The end of the blocks that follow one another from `start` on; `start` if there is none. The kernel merges such
/// mappings. `most`: of blocks.
pub fn mapped_blocks(start: u64, end: u64, most: usize, word: Word<'_>) -> u64 {
    let mut block = start;
    for _ in 0..most {
        match block_end(block, end, word) {
            Some(next) => block = next,
            None => break,
        }
    }
    block
}

/// The start of the block that holds an address, of those that follow one another from `start` on, if it is in one of them;
/// None if more blocks are before it than are read.
pub fn mapped_block(start: u64, end: u64, address: u64, word: Word<'_>) -> Option<Option<u64>> {
    let mut block = start;
    for _ in 0..BLOCKS_IN_A_ROW {
        match block_end(block, end, word) {
            Some(next) if address < next => return Some(Some(block)),
            Some(next) => block = next,
            None => return Some(None),
        }
    }
    None
}

/// The start of the block that holds an address, where arenas of CPython lie before it in the same mapping. They have 1 MiB since
/// 3.10, and 256 KiB before (ARENA_BITS in Objects/obmalloc.c), so the block begins at a multiple of that. The boundaries just below
/// the address are tried: a new block is filled from its start on.
pub fn block_behind_arenas(start: u64, end: u64, address: u64, word: Word<'_>) -> Option<u64> {
    const BOUNDARY: u64 = 256 << 10;
    let last = address.checked_sub(start)? / BOUNDARY;
    let boundaries = (1..=last).rev().take(BLOCKS_IN_A_ROW).map(|nth| start + nth * BOUNDARY);
    boundaries
        .filter_map(|block| Some((block, block_end(block, end, word)?)))
        .find(|(_, behind)| address < *behind)
        .map(|(block, _)| block)
}

/// The header of a pool of CPython (`struct pool_header` in Objects/obmalloc.c): the index of its size class, and
/// offsets of the next block that was never used and of the last possible one. Returns the size of its blocks.
pub fn pool_block(pool: u64, address: u64, word: Word<'_>) -> Option<u64> {
    const CLASSES: u64 = 64;
    const ALIGNMENT: u64 = 16;
    let base = address & !(pool - 1);
    let class = word(base + 32)? >> 32;
    let offsets = word(base + 40)?;
    let (next, last) = (offsets & 0xffff_ffff, offsets >> 32);
    let size = (class + 1) * ALIGNMENT;
    (class < CLASSES && last == pool - size && next >= POOL_HEADER && next <= pool).then_some(size)
}

pub fn is_pool(pool: u64, address: u64, word: Word<'_>) -> bool {
    pool_block(pool, address, word).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Words by address.
    fn memory(words: &[(u64, u64)]) -> impl FnMut(u64) -> Option<u64> {
        let words: BTreeMap<u64, u64> = words.iter().copied().collect();
        move |at| words.get(&at).copied()
    }

    const BASE: u64 = 0x7f12_4000_0000;

    #[test]
    fn an_arena_has_a_header_that_fits_in_itself() {
        let first = [(BASE, BASE + 0x30), (BASE + 8, 0), (BASE + 16, 0x21000), (BASE + 24, 0x21000)];
        assert!(is_arena(BASE, BASE + 0x5000, &mut memory(&first)));
        assert!(!is_arena(BASE, BASE + 0x21000, &mut memory(&first)), "behind the heap's end");
        assert!(
            !is_arena(BASE + PAGE, BASE + 0x5000, &mut memory(&first)),
            "the header is not in the mapping"
        );
        // A later heap of the same arena.
        let later = BASE + ARENA;
        let chained = [(later, BASE + 0x30), (later + 8, BASE), (later + 16, 0x4000), (later + 24, 0x4000)];
        assert!(is_arena(later, later + 0x100, &mut memory(&chained)));
        let heap = arena_heap(later, later, &mut memory(&chained));
        assert_eq!(heap, Some(ArenaHeap { base: later, arena: BASE + 0x30, bytes: 0x4000 }));
        for (at, wrong) in
            [(0, BASE + 0x31), (1, BASE), (2, 0x21001), (2, 0), (3, 0x20000), (3, ARENA + PAGE)]
        {
            let mut words = first;
            words[at].1 = wrong;
            assert!(!is_arena(BASE, BASE + 0x5000, &mut memory(&words)), "{at}: {wrong:x}");
        }
        assert!(!is_arena(BASE, BASE + 0x5000, &mut memory(&first[..3])), "a word is not readable");
    }

    #[test]
    fn mapped_blocks_are_found_one_after_the_other() {
        let end = BASE + 0x30_000;
        let blocks = [(BASE, 0), (BASE + 8, 0x10_002), (BASE + 0x10_000, 0), (BASE + 0x10_008, 0x20_002)];
        for address in [BASE, BASE + 0xffff, BASE + 0x10_000, BASE + 0x2f_fff] {
            assert!(
                matches!(mapped_block(BASE, end, address, &mut memory(&blocks)), Some(Some(_))),
                "{address:x}"
            );
        }
        assert_eq!(mapped_blocks(BASE, end, 9, &mut memory(&blocks)), end);
        assert_eq!(mapped_blocks(BASE, end, 1, &mut memory(&blocks)), BASE + 0x10_000);
        // The second header belongs to somebody else: only the first block is known.
        let mut other = blocks;
        other[3].1 = 0x20_001;
        assert_eq!(mapped_block(BASE, end, BASE + 0x100, &mut memory(&other)), Some(Some(BASE)));
        assert_eq!(mapped_block(BASE, end, BASE + 0x10_100, &mut memory(&other)), Some(None));
        assert_eq!(mapped_blocks(BASE, end, 9, &mut memory(&other)), BASE + 0x10_000);
        for header in [0x10_000, 0x10_006, 2, 0x10_012, 0x40_002, u64::MAX, u64::MAX - 5] {
            let words = [(BASE, 8), (BASE + 8, header)];
            let found = mapped_block(BASE, end, BASE + 0x100, &mut memory(&words));
            assert_eq!(found, Some(None), "{header:x}");
            assert_eq!(mapped_blocks(BASE, end, 9, &mut memory(&words)), BASE);
        }
        // Aligned memory: the part before the block was left out.
        let aligned = [(BASE, 0x10), (BASE + 8, 0x10_ff2)];
        assert_eq!(mapped_block(BASE, end, BASE + 0x100, &mut memory(&aligned)), Some(Some(BASE)));
    }

    #[test]
    fn a_block_behind_arenas_begins_at_one_of_their_boundaries() {
        const MIB: u64 = 1 << 20;
        let (block, end) = (BASE + 3 * MIB, BASE + 43 * MIB + PAGE);
        let words = [(block, 0), (block + 8, (40 * MIB + PAGE) | 2)];
        let found = |address| block_behind_arenas(BASE, end, address, &mut memory(&words));
        assert_eq!([found(block), found(block + 9 * MIB)], [Some(block); 2]);
        // The near twins: in the arenas before it, too far from its start, and below the mapping.
        assert_eq!([found(block - 1), found(end - 1), found(BASE - 1)], [None; 3]);
        // A block that ends before the address.
        let short = [(block, 0), (block + 8, MIB | 2)];
        assert_eq!(block_behind_arenas(BASE, end, block + MIB, &mut memory(&short)), None);
    }

    #[test]
    fn an_address_behind_too_many_blocks_is_unknown() {
        let blocks = BLOCKS_IN_A_ROW as u64 + 1;
        let end = BASE + blocks * PAGE;
        let header = |nth: u64| [(BASE + nth * PAGE, 0), (BASE + nth * PAGE + 8, PAGE | 2)];
        let words: Vec<_> = (0..blocks).flat_map(header).collect();
        assert!(matches!(mapped_block(BASE, end, end - PAGE - 1, &mut memory(&words)), Some(Some(_))));
        assert_eq!(mapped_block(BASE, end, end - 1, &mut memory(&words)), None);
    }

    #[test]
    fn a_pool_of_python_says_where_its_blocks_end() {
        for pool in POOLS {
            let size = 64;
            let words = [(BASE + 32, 3 << 32), (BASE + 40, (pool - size) << 32 | 48)];
            assert!(is_pool(pool, BASE + pool - 1, &mut memory(&words)));
            assert_eq!(pool_block(pool, BASE, &mut memory(&words)), Some(size));
            assert!(!is_pool(pool, BASE + pool, &mut memory(&words)), "the next pool");
            let wrong = [(BASE + 32, 4 << 32), words[1]];
            assert!(!is_pool(pool, BASE + 100, &mut memory(&wrong)));
        }
        let huge = [(BASE + 32, u64::MAX), (BASE + 40, u64::MAX)];
        assert!(!is_pool(POOLS[0], BASE, &mut memory(&huge)));
    }
}
