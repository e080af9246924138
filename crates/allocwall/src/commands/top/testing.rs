//! Windows made up for the tests of the screen.

use super::budget::Own;
use super::windows::Taken;
use crate::commands::shared::diagnosis::Diagnosis;
use allocwall_model::recording::{CgroupTick, Owner, Recording, Tick};
use allocwall_model::resident::{Amount, ResidentBill, ResidentOwner, Row, Split, TargetMemory};
use allocwall_model::units::{Absence, Reason};
use allocwall_sketches::recording::{MS, PID, Sketch};
use std::time::Duration;

const WINDOW_MS: u64 = 2_000;

fn sketch(samples: &[(u64, &str, &str)]) -> Recording {
    let mut sketch = Sketch::new();
    sketch.recording.meta.window_ns = WINDOW_MS * MS;
    sketch.recording.meta.requested_ns = WINDOW_MS * MS;
    let used = samples.iter().map(|(count, ..)| count).sum();
    sketch.thread(PID, "service", used);
    for (count, kernel, user) in samples {
        sketch.samples(*count, PID, kernel, user);
    }
    let mut recording = sketch.recording;
    let tick = |t_ns, part: u64| Tick {
        t_ns,
        user_ns: part * used * MS,
        minor_faults: part * 24_690,
        threads: 1,
        resident: 300 << 20,
        cgroup: Some(CgroupTick { periods: part * 20, quota_cpus: Some(1.5), ..CgroupTick::default() }),
        ..Tick::default()
    };
    recording.ticks = vec![tick(0, 0), tick(WINDOW_MS * MS, 1)];
    recording
}

/// Most of the time is spent on first touches of the main heap.
pub fn first_touch() -> Recording {
    const FAULT: &str =
        "do_anonymous_page;__handle_mm_fault;handle_mm_fault;exc_page_fault;asm_exc_page_fault";
    const ZERO: &str = "clear_page_erms;do_anonymous_page;__handle_mm_fault;handle_mm_fault;exc_page_fault";
    let mut recording = sketch(&[
        (800, FAULT, "app!fill"),
        (600, ZERO, "app!fill"),
        (590, "", "app!work"),
        (10, "", "libc+9100"),
    ]);
    let faults = recording.samples.iter_mut().filter(|sample| sample.kernel.is_some());
    for (nth, sample) in faults.enumerate() {
        sample.faulted = Some(if nth % 5 == 0 { Owner::MappedBlock } else { Owner::Heap });
    }
    let row = |owner| {
        let resident_bytes = match owner {
            ResidentOwner::Heap => 200 << 20,
            ResidentOwner::MappedBlock => 80 << 20,
            ResidentOwner::File => 20 << 20,
            _ => 0,
        };
        let split = Split::all_live(resident_bytes, "sketch");
        Row { owner, amount: Amount { resident_bytes, ..Amount::default() }, split: Ok(split) }
    };
    let unknown = || Absence::new(Reason::NotApplicable, "sketch");
    recording.resident = Ok(TargetMemory {
        bills: vec![ResidentBill {
            pid: PID,
            comm: "service".into(),
            cmdline: vec![],
            runtime: Err(unknown()),
            allocator: Err(unknown()),
            secure_exec: Ok(false),
            environment: vec![],
            rows: ResidentOwner::ALL.map(row).into(),
            rss_before_bytes: 300 << 20,
            rss_after_bytes: 300 << 20,
            thread_arenas: 0,
            page_tables_bytes: Err(unknown()),
            group: Err(unknown()),
            notes: vec![],
            took_ms: 1,
        }],
        others: 0,
        unread: None,
    });
    recording
}

/// A program that computes.
pub fn calm() -> Recording {
    sketch(&[(1_990, "", "app!work"), (10, "", "libc+9100")])
}

pub fn taken(recording: Recording, at_s: f64) -> Taken {
    let own = Own { cpu_s: 0.01, elapsed_s: 2.0 };
    Taken { diagnosis: Diagnosis::of(recording, None), bytes: vec![], at_s, own, pause: Duration::ZERO }
}
