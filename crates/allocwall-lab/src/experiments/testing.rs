//! Results made up for tests.

use super::results::Results;
use super::task::{Counts, Outcome, RunResult};
use super::{Experiment, Settings, with_baseline};
use allocwall_trial::compare::compare;
use allocwall_trial::{Block, ProofItem, ProofState, Run};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::BTreeMap;

/// The system's allocator, with a count of the calling thread's allocations.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system's allocator; the count neither allocates nor has a destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(at, layout, size) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// How often this work allocates, in the calling thread.
pub fn allocations(work: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.get();
    work();
    ALLOCATIONS.get() - before
}

/// A figure of the first experiment of the table.
pub const FIGURE: &str = "above_p50_ns";

/// An experiment of which these arms ran, with these figures: the arm that is compared with first. The noise is at most 0.4 %.
pub fn results(
    experiment: &'static Experiment,
    blocks: usize,
    arms: &[(&str, Vec<(&'static str, f64)>)],
) -> Results {
    let of = |name: &str| experiment.arms.iter().find(|arm| arm.name == name).expect("an arm of the table");
    let kept = with_baseline(&arms.iter().map(|(name, _)| of(name)).collect::<Vec<_>>());
    let figures = with_baseline(&arms.iter().map(|(_, figures)| figures.clone()).collect::<Vec<_>>());
    let settings = Settings { blocks, ..Settings::quick(7) };
    let design = experiment.design(&kept, &settings);
    let run = |block: usize, arm: usize| Run {
        block,
        place: arm,
        arm,
        started_unix_ms: 0,
        metrics: figures[arm]
            .iter()
            .map(|(key, value)| {
                let noise = 1.0 + 1e-4 * ((block * 31 + arm * 17) % 41) as f64;
                ((*key).to_owned(), Ok(value * noise))
            })
            .collect(),
        failure: None,
        proof: vec![ProofItem {
            what: "variant".into(),
            state: ProofState::Proven,
            detail: "all".into(),
            needed: true,
            absent: None,
        }],
    };
    let blocks: Vec<Block> = (0..blocks)
        .map(|number| Block { number, runs: (0..kept.len()).map(|arm| run(number, arm)).collect() })
        .collect();
    let result = || {
        let outcome = Outcome {
            counts: Counts { operations: 1_000, seconds: 1.0, cpu_s: 1.0, minor_faults: Ok(0) },
            figures: BTreeMap::new(),
            absent: BTreeMap::new(),
            histograms: BTreeMap::from([
                ("below".to_owned(), vec![(200, 900), (300, 100)]),
                ("above".to_owned(), vec![(200, 10), (6_000, 990)]),
            ]),
        };
        RunResult { variant: "all".into(), outcome }
    };
    Results {
        experiment,
        settings,
        left_out: vec![],
        outcome: compare(&design, &blocks),
        runs: blocks.iter().flat_map(|block| &block.runs).map(|run| (run.arm, Some(result()))).collect(),
        blocks,
        arms: kept,
        bills: BTreeMap::new(),
        walls: BTreeMap::new(),
        series: BTreeMap::new(),
    }
}
