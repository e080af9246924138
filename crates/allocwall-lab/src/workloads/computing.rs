//! Plain computing: it uses only the first-level cache and makes no calls of the allocator or the kernel.

use super::clock;
use super::stage::{Base, Stage};
use anyhow::Result;
use std::hint::black_box;

/// The work of all subjects outside their wall.
pub struct Computing {
    words: [u64; 512],
    rounds: u32,
}

const BATCH_NS: u64 = 100_000;

impl Computing {
    pub fn new() -> Self {
        let mut computing = Computing { words: std::array::from_fn(|i| i as u64), rounds: 16 };
        // Twice, because caches are cold in the first run.
        for _ in 0..2 {
            let before = clock::thread_cpu_ns();
            computing.batch();
            let spent = (clock::thread_cpu_ns() - before).max(1_000);
            computing.rounds = (u64::from(computing.rounds) * BATCH_NS / spent).clamp(1, 10_000) as u32;
        }
        computing
    }

    /// About 0.1 ms of integer hashing.
    pub fn batch(&mut self) {
        self.repeat(self.rounds);
    }

    /// The same work on every machine.
    pub fn repeat(&mut self, rounds: u32) {
        for _ in 0..rounds {
            hash(black_box(&mut self.words));
        }
    }

    /// About `microseconds` of integer hashing.
    pub fn spin(&mut self, microseconds: u32) {
        let rounds = (u64::from(self.rounds) * u64::from(microseconds) * 1000 / BATCH_NS).max(1);
        self.repeat(rounds as u32);
    }
}

#[inline(never)]
fn hash(words: &mut [u64; 512]) {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for word in words {
        state = (state ^ *word).wrapping_mul(0x2545_f491_4f6c_dd1d).rotate_left(29);
        *word = state;
    }
}

pub fn computing(stage: &Stage) -> Result<()> {
    let worker = |_| {
        let mut computing = Computing::new();
        stage.mix(Base::Cpu, || {
            let before = clock::thread_cpu_ns();
            computing.batch();
            stage.operations.add(1);
            (clock::thread_cpu_ns() - before) as i64
        });
    };
    stage.perform(worker, |_| Ok(()))
}
