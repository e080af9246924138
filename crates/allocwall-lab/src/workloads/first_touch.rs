//! Cold first touch, and its twin on a warm pool.

use super::clock::thread_cpu_ns;
use super::mapping::{Mapping, PAGE};
use super::stage::{Base, Stage};
use anyhow::Result;

/// Beyond the second-level TLB, so that the second write of a page misses it as the first does; little enough to be
/// recycled within milliseconds, as a hypervisor takes idle memory back and makes the next touch far dearer.
const PAGES: usize = 4096;

pub fn cold_touch(stage: &Stage) -> Result<()> {
    let twin = stage.options.twin;
    let worker = |_| {
        let mut region = Mapping::new(PAGES * PAGE);
        region.write_each_page();
        stage.mix(Base::Cpu, || {
            stage.operations.add(PAGES as i64);
            if twin {
                let before = thread_cpu_ns();
                for _ in 0..4 {
                    region.write_each_page();
                }
                return (thread_cpu_ns() - before) as i64;
            }
            let start = thread_cpu_ns();
            region.discard();
            let discarded = thread_cpu_ns();
            region.write_each_page();
            let touched = thread_cpu_ns();
            // The same writes once more: what they cost without the faults.
            region.write_each_page();
            let rewritten = thread_cpu_ns();
            let first_touch = (touched - discarded) as i64 - (rewritten - touched) as i64;
            stage.line(0).add(first_touch);
            stage.line(1).add((discarded - start) as i64);
            first_touch
        });
    };
    stage.perform(worker, |_| Ok(()))
}
