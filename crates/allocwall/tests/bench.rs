//! `allocwall bench pipeline` from the command line. The stall detector is tested against planted stalls.

use serde_json::Value;
use std::process::{Command, Output};
use std::sync::Mutex;

/// Each run keeps two CPUs busy, so only one test runs at a time.
static ONE: Mutex<()> = Mutex::new(());

fn bench(options: &[&str]) -> Output {
    let _one = ONE.lock().unwrap_or_else(|broken| broken.into_inner());
    Command::new(env!("CARGO_BIN_EXE_allocwall")).args(["bench", "pipeline"]).args(options).output().unwrap()
}

fn measured(options: &[&str]) -> Value {
    let output = bench(options);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn arm<'a>(document: &'a Value, name: &str) -> &'a Value {
    let arms = document["points"][0]["arms"].as_array().unwrap();
    arms.iter().find(|arm| arm["arm"] == name).unwrap()
}

/// Number of orders in a histogram.
fn count(histogram: &Value) -> u64 {
    let pairs = histogram.as_str().unwrap().split_whitespace();
    pairs.map(|pair| pair.split_once(':').unwrap().1.parse::<u64>().unwrap()).sum()
}

/// One block of the experiment alone: no other allocator, no heap pressure.
const ALONE: [&str; 6] = ["--allocators", "none", "--pressure", "0", "--blocks", "1"];

#[test]
fn every_variant_hands_over_every_order() {
    for (threads, sizes) in [("1x1", "64"), ("2x2", "mixed")] {
        let document = measured(&[
            "--variants",
            "all",
            "--allocators",
            "none",
            "--threads",
            threads,
            "--sizes",
            sizes,
            "--rate",
            "100k",
            "--pressure",
            "50k",
            "--orders",
            "20k",
            "--warm-up",
            "2k",
            "--blocks",
            "1",
            "--json",
        ]);
        let arms = document["points"][0]["arms"].as_array().unwrap();
        // malloc twice and eight other variants.
        assert_eq!(arms.len(), 10);
        for arm in arms.iter().filter(|arm| arm["saturated_runs"] == 0) {
            assert_eq!(count(&arm["histograms_ns"]["done"]["all"]), 20_000, "{}", arm["arm"]);
            let stages = ["arrive", "queue", "check", "free"];
            assert!(stages.iter().all(|stage| count(&arm["histograms_ns"][stage]["all"]) == 20_000));
        }
        let told =
            |arm: &Value| arm["runs"] == 1 && arm["achieved_per_s"]["point"].as_f64().unwrap() > 1000.0;
        assert!(arms.iter().all(told), "{document}");
    }
}

/// The share of disturbed orders, and the 99th percentile of the undisturbed ones, in a run with planted stalls: 40
/// stalls of 500 µs within half a second, so 4 % of all orders. None if the run was saturated.
fn planted(stall: &str) -> Option<(f64, f64)> {
    let options = [
        "--variants",
        "by-value",
        "--rate",
        "200k",
        "--orders",
        "100k",
        "--warm-up",
        "2k",
        "--plant",
        stall,
        "--json",
    ];
    let document = measured(&[&ALONE[..], &options[..]].concat());
    let arm = arm(&document, "by-value");
    let p99 = arm["percentiles_ns"]["dequeue_p99_undisturbed"]["point"].as_f64()?;
    Some((arm["disturbed_share"]["point"].as_f64().unwrap(), p99))
}

/// Three attempts, because the machine may stall by itself in one of them.
fn soon(mut attempt: impl FnMut() -> Option<()>) -> bool {
    (0..3).any(|_| attempt().is_some())
}

#[test]
fn stalls_of_the_machine_are_left_out_and_those_of_the_allocator_are_not() {
    let left_out = soon(|| {
        let (disturbed, p99) = planted("machine:40:500")?;
        println!("machine: {disturbed} disturbed, 99th percentile {p99} ns");
        assert!(disturbed >= 0.03, "{disturbed}");
        // If more orders are disturbed than were planted, the machine stalled by itself: try again.
        (p99 < 100_000.0 || disturbed < 0.06).then(|| assert!(p99 < 100_000.0, "{p99}"))
    });
    // The twin: as many stalls of the same length, but within allocations.
    let kept = soon(|| {
        let (disturbed, p99) = planted("allocator:40:500")?;
        println!("allocator: {disturbed} disturbed, 99th percentile {p99} ns");
        // No machine stalls were planted here. Disturbed orders come from the machine and may include planted stalls.
        (p99 > 100_000.0 || disturbed < 0.02).then(|| assert!(p99 > 100_000.0, "{p99}"))
    });
    if !(left_out && kept) {
        println!("skipped in part: the machine stalled by itself three times");
    }
}

#[test]
fn a_rate_that_cannot_be_held_has_no_percentiles() {
    let options = [
        &ALONE[..],
        &["--variants", "by-value", "--rate", "1M", "--check", "20000", "--orders", "5k", "--warm-up", "1k"],
    ]
    .concat();
    let document = measured(&[&options[..], &["--json"]].concat());
    let malloc = arm(&document, "malloc");
    assert_eq!(malloc["saturated_runs"], 1);
    assert_eq!(malloc["percentiles_ns"], serde_json::json!({}));
    let text = String::from_utf8(bench(&options).stdout).unwrap();
    assert!(text.contains("saturated: "), "{text}");
}

#[test]
fn at_the_maximum_rate_throughput_is_reported() {
    let options = [
        &ALONE[..],
        &[
            "--variants",
            "by-value,pool",
            "--rate",
            "max",
            "--check",
            "0",
            "--orders",
            "100k",
            "--warm-up",
            "1k",
        ],
    ]
    .concat();
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html");
    let output = ["-o", &page.display().to_string()];
    let text = String::from_utf8(bench(&[&options[..], &output[..]].concat()).stdout).unwrap();
    assert!(text.contains("orders per second") && text.contains("pool"), "{text}");
    let page = std::fs::read_to_string(&page).unwrap();
    assert!(page.starts_with("<!DOCTYPE html>") && page.contains("by-value"), "{page}");
    assert!(!text.contains("p99.9"), "{text}");
}

#[test]
fn charts_and_histograms_are_written_with_mode_0600() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out");
    let output = bench(&[
        "--variants",
        "by-value",
        "--allocators",
        "none",
        "--rate",
        "100k",
        "--orders",
        "5k",
        "--warm-up",
        "1k",
        "--blocks",
        "1",
        "-o",
        path.to_str().unwrap(),
    ]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for name in ["pipeline.json", "ccdf-undisturbed.svg", "ccdf-all.svg"] {
        let file = path.join(name);
        assert!(file.metadata().unwrap().len() > 1000, "{name}");
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }
}

#[test]
fn bad_arguments_give_one_error_line() {
    let refused = |options: &[&str], words: &str| {
        let output = bench(options);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{options:?}");
        assert!(said.contains(words), "{options:?}: {said}");
        assert!(said.lines().count() <= 3, "{options:?}: {said}");
    };
    refused(&["--cpus", "0,9999"], "no CPU 9999");
    refused(&["--cpus", "0,1,0,1,0"], "CPUs for");
    refused(&["--variants", "mallco"], "no variant mallco; nearest: malloc");
    refused(&["--allocators", "nomalloc"], "nomalloc");
    refused(&["--orders", "10"], "at least 1000");
    refused(&["--rate", "5"], "at least 1000");
    refused(&["--threads", "0x1"], "1 to 64");
    refused(&["--check=-3"], "ns");
}

/// Root may exceed the limit, so CAP_IPC_LOCK is dropped first.
#[test]
fn a_lock_that_is_not_permitted_gives_one_error_line() {
    let _one = ONE.lock().unwrap_or_else(|broken| broken.into_inner());
    let without = "ulimit -l 8; exec setpriv --bounding-set=-ipc_lock --inh-caps=-ipc_lock \"$0\" \"$@\"";
    let output = Command::new("sh")
        .args(["-c", without, env!("CARGO_BIN_EXE_allocwall"), "bench", "pipeline"])
        .args(["--lock", "--variants", "by-value", "--allocators", "none", "--orders", "1k", "--blocks", "1"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{said}");
    assert!(said.contains("cannot lock the memory"), "{said}");
}
