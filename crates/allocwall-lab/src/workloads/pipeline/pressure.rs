//! Heap pressure: the process's `malloc` frees and allocates blocks of six sizes at a fixed rate.

use super::order::Random;
use crate::pipeline::{LIVE_BLOCKS, PRESSURE_SIZES};
use allocwall_host::cycles::Cycles;
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ptr::NonNull;

struct Block {
    memory: NonNull<u8>,
    layout: Layout,
}

impl Block {
    #[inline]
    fn new(size: usize) -> Block {
        let layout = Layout::from_size_align(size, 16).expect("a small size");
        // SAFETY: the size is not zero, and the written bytes are within the block.
        unsafe {
            let memory = NonNull::new(alloc(layout)).unwrap_or_else(|| handle_alloc_error(layout));
            memory.cast::<u64>().write(size as u64);
            Block { memory, layout }
        }
    }
}

impl Drop for Block {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.memory.as_ptr(), self.layout) }
    }
}

// SAFETY: the only pointer to its memory.
unsafe impl Send for Block {}

pub struct Heap {
    live: Vec<Block>,
    random: Random,
    /// Cycles between two blocks; None without heap pressure.
    every: Option<f64>,
    began: u64,
    pub done: u64,
}

impl Heap {
    pub fn new(per_s: f64, cycles: Cycles, seed: u64) -> Heap {
        let mut random = Random::new(seed);
        let live = if per_s > 0.0 {
            (0..LIVE_BLOCKS).map(|_| Block::new(size(&mut random))).collect()
        } else {
            vec![]
        };
        Heap {
            live,
            random,
            every: (per_s > 0.0).then(|| cycles.of_ns(1e9) as f64 / per_s),
            began: 0,
            done: 0,
        }
    }

    pub fn start(&mut self, at: u64) {
        self.began = at;
        self.done = 0;
    }

    /// The time at which the next block is due; u64::MAX without heap pressure.
    #[inline]
    pub fn due(&self) -> u64 {
        self.every.map_or(u64::MAX, |every| self.began + (self.done as f64 * every) as u64)
    }

    /// Frees one block and allocates another one.
    #[inline]
    pub fn turn(&mut self) {
        let at = self.random.next() as usize % LIVE_BLOCKS;
        let size = size(&mut self.random);
        // Free the old block first, like a program that replaces an object.
        drop(self.live.swap_remove(at));
        self.live.push(Block::new(size));
        self.done += 1;
    }
}

#[inline]
fn size(random: &mut Random) -> usize {
    PRESSURE_SIZES[(random.next() >> 32) as usize % PRESSURE_SIZES.len()]
}
