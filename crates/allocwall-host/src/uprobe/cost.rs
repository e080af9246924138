//! What a uprobe takes the thread that executes it: measured on calls of malloc by a thread of this process, with and
//! without the uprobe.

use super::Uprobes;
use crate::maps;
use crate::proc::ProcFs;
use crate::worker::Worker;
use allocwall_model::bursts::HitCost;
use allocwall_model::stats::median;
use allocwall_model::units::{Absence, Interval, Measured, Reason};
use std::fs::File;
use std::hint::black_box;
use std::io;
use std::time::Instant;

/// Calls of one repetition: their records, with 4 KiB of stack each, fit into the ring.
const CALLS: u64 = 100;
const REPETITIONS: usize = 25;
/// Served by the thread cache of any allocator.
const BLOCK_BYTES: usize = 64;
/// Slower repetitions say nothing about a uprobe: the thread was interrupted.
const UNDISTURBED: f64 = 0.9;

/// The cost of a hit that is counted, and of one that is recorded with `stack_bytes` of its stack (at most 4 KiB).
///
/// # Errors
/// NotPermitted: this user may not set uprobes. NotSupported: the kernel has none, or they count nothing.
pub fn hit_cost(stack_bytes: u32) -> Measured<HitCost> {
    let thread = Worker::start("measures the cost of a uprobe", move || measure(stack_bytes));
    thread.finish().and_then(|cost| cost)
}

fn measure(stack_bytes: u32) -> Measured<HitCost> {
    let probes = Uprobes::live()?;
    let (file, offset) = own_malloc()?;
    let tid = rustix::thread::gettid().as_raw_nonzero().get();
    let bare = median(&times(|| {})).unwrap_or(0.0);

    let mut passes = probes.open(&file, offset, tid)?;
    passes.start().map_err(failed)?;
    let counted = times(|| {});
    let count = passes.count().map_err(failed)?;
    drop(passes);
    if count < CALLS * REPETITIONS as u64 {
        let detail = format!("a uprobe counted {count} of {} calls", CALLS * REPETITIONS as u64);
        return Err(Absence::new(Reason::NotSupported, detail));
    }

    let mut recorder = probes.record(&file, offset, tid, 1, stack_bytes)?;
    recorder.start().map_err(failed)?;
    let recorded = times(|| recorder.records(&mut |_| {}));
    Ok(HitCost { plain: beyond(bare, counted), recorded: beyond(bare, recorded) })
}

fn failed(error: io::Error) -> Absence {
    Absence::new(Reason::NotSupported, format!("a uprobe could not be used: {error}"))
}

/// Where this process has its malloc. It is the file of most other processes too.
fn own_malloc() -> Measured<(File, u64)> {
    let address = libc::malloc as *const () as u64;
    let (proc, pid) = (ProcFs::live(), std::process::id().cast_signed());
    let code =
        proc.maps(pid, |mapping| mapping.perms.execute && (mapping.start..mapping.end).contains(&address))?;
    let Some(mapping) = code.mappings.first() else {
        return Err(Absence::new(Reason::NotFound, "malloc of this process is in no mapping of a file"));
    };
    let file = maps::open(proc.root(), pid, mapping)?;
    Ok((file, mapping.offset + (address - mapping.start)))
}

/// Nanoseconds of a pair of malloc and free, one value for each repetition. `after` is not timed.
fn times(mut after: impl FnMut()) -> Vec<f64> {
    let mut repeat = || {
        let start = Instant::now();
        (0..CALLS).for_each(|_| call());
        let ns = start.elapsed().as_nanos() as f64 / CALLS as f64;
        after();
        ns
    };
    // Once to warm up.
    repeat();
    (0..REPETITIONS).map(|_| repeat()).collect()
}

fn call() {
    let malloc: unsafe extern "C" fn(libc::size_t) -> *mut libc::c_void = libc::malloc;
    // SAFETY: malloc accepts any size, and free accepts what it returned, also a null pointer.
    unsafe { libc::free(black_box(black_box(malloc)(BLOCK_BYTES))) }
}

/// Lowest, middle and highest of the times beyond that of the bare call.
fn beyond(bare: f64, mut times: Vec<f64>) -> Interval {
    times.sort_by(f64::total_cmp);
    let at = |part: f64| {
        let nth = ((times.len() as f64 * part) as usize).min(times.len().saturating_sub(1));
        times.get(nth).map_or(0.0, |time| (time - bare).max(0.0))
    };
    Interval::new(at(0.0), at(0.5), at(UNDISTURBED))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hit_costs_more_than_a_call() {
        let cost = match hit_cost(4096) {
            Ok(cost) => cost,
            Err(absence) => return println!("skipped: {absence}"),
        };
        for interval in [cost.plain, cost.recorded] {
            assert!(interval.low <= interval.point && interval.point <= interval.high, "{cost:?}");
            // A trap into the kernel and back.
            assert!((50.0..100_000.0).contains(&interval.point), "{cost:?}");
        }
        assert!(cost.recorded.point > cost.plain.low, "{cost:?}");
    }

    #[test]
    fn interrupted_repetitions_do_not_count() {
        let times = (0..25).map(|nth| if nth == 24 { 9000.0 } else { 700.0 + f64::from(nth) }).collect();
        assert_eq!(beyond(20.0, times), Interval::new(680.0, 692.0, 702.0));
        assert_eq!(beyond(20.0, vec![10.0]), Interval::exact(0.0));
    }
}
