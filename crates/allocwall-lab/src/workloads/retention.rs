//! Retention: memory that is no longer needed, but never returned.

use super::stage::{Base, Stage};
use anyhow::Result;

const BLOCK: usize = 1_000;
/// Bytes that malloc uses for a block: the size plus a header of 8 bytes, rounded up to 16.
const FOOTPRINT: usize = 1_008;
const HIGH_WATER: usize = 256 << 20;

/// A heap that grows to its peak, of which the part `1 - dial` stays needed. The needed blocks are spread over the whole heap,
/// and glibc returns only memory above the last of them. In the twin they are all at the bottom of the heap.
pub fn retention(stage: &Stage) -> Result<()> {
    let count = HIGH_WATER / FOOTPRINT;
    let one_in = (1.0 / (1.0 - stage.options.dial).max(0.02)).max(1.0);
    let pinned = (count as f64 / one_in) as usize;
    let twin = stage.options.twin;
    // Evenly spread; in the twin, the first ones.
    let is_pin = |i: usize| {
        if twin { i < pinned } else { i * pinned / count != (i + 1) * pinned / count }
    };
    let allocate = || {
        // SAFETY: malloc has no precondition; the write is within the allocated block.
        unsafe {
            let block = libc::malloc(BLOCK).cast::<u8>();
            assert!(!block.is_null(), "out of memory");
            block.write_bytes(1, BLOCK);
            block
        }
    };
    // The list is much larger than the mmap threshold, so it is not in the heap.
    let blocks: Vec<*mut u8> = (0..count).map(|_| allocate()).collect();
    // In ascending order: the first freed blocks stay in the thread cache. If they were at the top, they would keep the heap
    // from shrinking.
    for (i, &block) in blocks.iter().enumerate() {
        if !is_pin(i) {
            // SAFETY: allocated above, freed once.
            unsafe { libc::free(block.cast()) };
        }
    }
    drop(blocks);
    stage.live_bytes.set((pinned * FOOTPRINT) as i64);
    stage.operations.set(count as i64);
    stage.perform(|_| stage.mix(Base::Cpu, || 0), |_| Ok(()))
}
