//! First touch of new pages; the twin writes to pages that were touched before.

use super::clock::thread_cpu_ns;
use super::mapping::{Mapping, PAGE};
use super::stage::{Base, Stage};
use anyhow::Result;

/// More than the second-level TLB covers, so that the second write to a page misses the TLB like the first. Few enough to be
/// reused within milliseconds, because a hypervisor takes idle memory back and makes the next touch much more expensive.
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
            // The same writes again, to measure their cost without faults.
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
