//! `allocwall replay`, the child process that makes a program's calls of its allocator again: one line of JSON for a mix, or for a trace after
//! it, one error line for anything else. And a whole replay, with an allocator that can't be loaded among its variants.

use allocwall_measure::calibrate::replay::{Variant, measure};
use allocwall_model::allocations::{BandLives, Counted, End, Life, Lives, age_band_of, band_of};
use allocwall_model::trace::{Trace, TracedCall, TracedKind, TracedThread};
use allocwall_model::units::Reason;
use serde_json::Value;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::AtomicBool;

const BINARY: &str = env!("CARGO_BIN_EXE_allocwall");

/// Small blocks that live for a short time, and buffers that realloc doubles.
const MIX: &str = r#"{
    "lanes": [{"allocates": 1.0, "frees": 1.0, "main": true, "blocks_per_thread": null}],
    "sizes": [[64, 0.9], [4096, 0.1]],
    "fates": [
        {"band": 2, "zeroed": 0.1, "fates": [{"share": 1.0, "end": "freed", "age": [1.0, 50.0]}]},
        {"band": 8, "zeroed": 0.0, "fates": [{"share": 1.0, "end": "resized", "age": [1.0, 4.0]}]},
        {"band": 9, "zeroed": 0.0, "fates": [{"share": 1.0, "end": "freed", "age": [1.0, 4.0]}]}
    ],
    "resized_from": [[8, 1.0]],
    "resized_to": [[9, 1.0]],
    "kept": [[100, 20.0]],
    "batch": null,
    "one_at_a_time": false,
    "grows": false,
    "blocks": 100000
}"#;

fn replay(input: &str, options: &[&str]) -> Output {
    let mut child = Command::new(BINARY)
        .arg("replay")
        .args(options)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the tool starts");
    child.stdin.take().expect("piped").write_all(input.as_bytes()).expect("it reads all of it");
    child.wait_with_output().expect("it ends")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("text")
}

#[test]
fn a_mix_is_one_line_of_json() {
    let cost_ns = |options: &[&str]| {
        let output = replay(MIX, options);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let data = text(&output.stdout);
        assert!(data.ends_with('\n') && data.lines().count() == 1, "{data}");
        let played: Value = serde_json::from_str(data).expect("JSON");
        let number = |name: &str| played[name].as_f64().unwrap_or_else(|| panic!("{name}: {data}"));
        assert!(number("calls") > 10_000.0, "{data}");
        assert!((1.0..1e6).contains(&number("cost_ns")), "{data}");
        assert!((0.0..100.0).contains(&number("faults")), "{data}");
        number("cost_ns")
    };
    let least = |options: &[&str]| (0..3).map(|_| cost_ns(options)).fold(f64::INFINITY, f64::min);
    let (with_malloc, ready) =
        (least(&["--memory", "67108864", "--seed", "7"]), least(&["--seed", "7", "--ready"]));
    assert!(ready < with_malloc, "{ready} ns without malloc, {with_malloc} with it");
}

/// Buffers that realloc makes larger by 120 bytes a step, up to 16 KiB.
const BUFFERS: &str = r#"{
    "lanes": [{"allocates": 1.0, "frees": 1.0, "main": true, "blocks_per_thread": null}],
    "sizes": [[120, 1.0]],
    "fates": [
        {"band": 3, "zeroed": 0.0, "fates": [{"share": 1.0, "end": "resized", "age": [1.0, 2.0]}]},
        {"band": 10, "zeroed": 0.0, "fates": [
            {"share": 0.98, "end": "resized", "age": [1.0, 2.0]},
            {"share": 0.02, "end": "freed", "age": [1.0, 2.0]}
        ]}
    ],
    "resized_from": [[3, 0.01], [4, 0.01], [5, 0.02], [6, 0.03], [7, 0.06], [8, 0.12], [9, 0.25], [10, 0.5]],
    "resized_to": [[4, 0.01], [5, 0.02], [6, 0.03], [7, 0.06], [8, 0.12], [9, 0.25], [10, 0.51]],
    "kept": [],
    "batch": null,
    "one_at_a_time": true,
    "grows": false,
    "blocks": 100000
}"#;

#[test]
fn a_buffer_that_is_alone_in_the_heap_grows_in_place() {
    if !cfg!(target_env = "gnu") {
        return println!("skipped: not glibc");
    }
    let in_place = |mix: &str| {
        let output = replay(mix, &[]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let played: Value = serde_json::from_str(text(&output.stdout)).expect("JSON");
        played["in_place"].as_f64().expect("it has reallocs")
    };
    let alone = in_place(BUFFERS);
    assert!(alone > 0.95, "{alone}");
    // Many of them at the same time are in each other's way.
    let together = in_place(&BUFFERS.replace(r#""one_at_a_time": true"#, r#""one_at_a_time": false"#));
    assert!(together < 0.7, "{together}");
}

#[test]
fn what_is_no_mix_is_one_error_line() {
    let without_threads =
        MIX.replace(r#"{"allocates": 1.0, "frees": 1.0, "main": true, "blocks_per_thread": null}"#, "");
    let negative = MIX.replace("[64, 0.9]", "[64, -0.9]");
    let more = format!("{MIX}\nmore");
    for (input, words) in [
        ("", "it is empty"),
        ("{", "EOF"),
        ("[1, 2]", "at line 1"),
        ("\u{1b}[2J", "at line 1"),
        (without_threads.as_str(), "its threads are not 1 to 8"),
        (negative.as_str(), "its sizes are missing"),
        (more.as_str(), "its trace has something that is no call"),
    ] {
        let output = replay(input, &[]);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{input}: {said}");
        assert!(output.stdout.is_empty(), "{input}");
        assert!(said.starts_with("error: standard input is no mix of calls: "), "{said}");
        assert!(said.contains(words) && said.lines().count() == 1 && !said.contains('\u{1b}'), "{said}");
    }
}

/// A program that requests and frees blocks of 64 bytes.
fn counted() -> Counted {
    let mut counted = allocwall_sketches::recording::counted(1, &[(1_000_000, 64)], 10_000, 0.0);
    let life = Life { age: age_band_of(10_000) as u8, end: End::Freed, blocks: 1e6 };
    let band = BandLives {
        band: band_of(64) as u8,
        new: 1e6,
        zeroed: 0.0,
        resized: 0.0,
        kept: 0.0,
        ended: vec![life],
    };
    let samples = counted.processes[0].samples.as_mut().expect("samples");
    samples.lives = Lives { bands: vec![band], ..Lives::default() };
    counted
}

fn variant(remedy: &str, name: &str, value: &str) -> Variant {
    Variant { remedy: remedy.into(), env: vec![(name.into(), value.into())] }
}

#[test]
fn each_variant_is_compared_with_the_present_allocator() {
    if !cfg!(target_env = "gnu") {
        return println!("skipped: not glibc");
    }
    let variants = [
        // The thread cache serves all calls. Without it they are dearer.
        variant("glibc:tcache_count=0", "GLIBC_TUNABLES", "glibc.malloc.tcache_count=0"),
        variant("glibc:perturb=0", "GLIBC_TUNABLES", "glibc.malloc.perturb=0"),
        variant("jemalloc", "LD_PRELOAD", "/nonexistent/libjemalloc.so.2"),
    ];
    // 50 blocks that follow one another, and one trace that can't be played.
    let call = |kind, address| TracedCall { kind, address, size: 64, thread: TracedThread(0x8000) };
    let pair = |nth: u64| [call(TracedKind::Free, nth % 50), call(TracedKind::New, nth % 50)];
    let trace: Trace = (0..5000).flat_map(pair).collect();
    for (traces, traced) in [(vec![], false), (vec![Trace::new(), trace], true), (vec![Trace::new()], false)]
    {
        each_is_compared(&variants, &traces, traced);
    }
}

fn each_is_compared(variants: &[Variant], traces: &[Trace], traced: bool) {
    let replay = measure(&counted(), traces, variants, Path::new(BINARY), &AtomicBool::new(false))
        .unwrap_or_else(|absence| panic!("{absence}"));
    assert_eq!(replay.traced, traced);
    assert!(replay.rounds >= 5 && replay.calls > 10_000, "{replay:?}");
    let present = &replay.present;
    assert!(present.cost.point > present.ready.point && present.ready.point > 0.0, "{present:?}");
    let [without_cache, same, absent] = &replay.variants[..] else { panic!("{replay:?}") };
    assert_eq!(without_cache.failed, None);
    assert!(without_cache.saved.point < 0.0, "{without_cache:?}");
    assert!(same.saved.point.abs() < 0.5 * present.cost.point, "{same:?}");
    let why = absent.failed.as_ref().expect("it can't be loaded");
    assert!(why.reason == Reason::NotSupported && why.detail.contains("libjemalloc"), "{why}");
}

#[test]
fn an_interrupted_replay_has_no_result() {
    let stopped = measure(&counted(), &[], &[], Path::new(BINARY), &AtomicBool::new(true));
    assert_eq!(stopped.unwrap_err().detail, "you interrupted the replay");
    // Nothing to start.
    let missing = measure(&counted(), &[], &[], Path::new("/nonexistent/allocwall"), &AtomicBool::new(false));
    assert!(missing.is_err());
}
