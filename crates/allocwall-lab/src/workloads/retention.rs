//! Retention: memory that was needed once and never goes back.

use super::stage::{Base, Stage};
use anyhow::Result;

const BLOCK: usize = 1_000;
/// What malloc takes for it: the size, a header of 8, rounded up to 16.
const FOOTPRINT: usize = 1_008;
const HIGH_WATER: usize = 256 << 20;

/// A heap filled to its high-water mark, of which `1 - dial` stays needed. The needed blocks lie spread over the
/// whole heap, and glibc gives back only what lies above the last of them. In the twin they lie together at the bottom.
pub fn retention(stage: &Stage) -> Result<()> {
    let count = HIGH_WATER / FOOTPRINT;
    let one_in = (1.0 / (1.0 - stage.options.dial).max(0.02)).max(1.0);
    let pinned = (count as f64 / one_in) as usize;
    let twin = stage.options.twin;
    // Evenly spread, or all first.
    let is_pin = |i: usize| {
        if twin {
            i < pinned
        } else {
            i * pinned / count != (i + 1) * pinned / count
        }
    };
    let allocate = || {
        // SAFETY: malloc has no precondition; the write is within a block that was given.
        unsafe {
            let block = libc::malloc(BLOCK).cast::<u8>();
            assert!(!block.is_null(), "out of memory");
            block.write_bytes(1, BLOCK);
            block
        }
    };
    // The list is far above the mapping threshold, so it doesn't itself pin the heap.
    let blocks: Vec<*mut u8> = (0..count).map(|_| allocate()).collect();
    // Upwards: the first few stay in the thread's cache, where at the top they would hold the whole heap.
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
