//! `allocwall bench NAME` for the experiments from published accounts, from the command line, with the smallest settings.

use serde_json::Value;
use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const EXPERIMENTS: &[&str] = &[
    "mmap-threshold",
    "tcache-batch",
    "rss-climb",
    "lying-rss",
    "cold-warm",
    "warm-up",
    "mmap-lock",
    "kernel-slab",
    "numa",
    "json-requests",
    "patterns",
    "microbench-gap",
    "knee",
    "retry-storm",
    "soak",
    "throttle",
    "gc-or-allocator",
    "manifest-rewrite",
    "map-lock",
    "cold-scale-out",
    "numa-after-upgrade",
    "throttled",
];

/// The first of the five incidents.
const INCIDENTS: usize = EXPERIMENTS.len() - 5;

/// One block of the shortest runs.
const SMALLEST: [&str; 5] = ["--quick", "--blocks", "1", "--scale", "0.02"];

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_allocwall"));
    command
        .arg("bench")
        .args(arguments)
        // Bundled libraries are unpacked once for all tests.
        .env("XDG_CACHE_HOME", concat!(env!("CARGO_TARGET_TMPDIR"), "/cache"))
        .env_remove("COLUMNS")
        .stdin(Stdio::null());
    command
}

fn bench(arguments: &[&str]) -> Output {
    command(arguments).output().expect("the program starts")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn measured(arguments: &[&str]) -> Value {
    document(&bench(&[arguments, &SMALLEST[..], &["--json"][..]].concat()))
}

fn document(output: &Output) -> Value {
    assert!(output.status.success(), "{}", said(output));
    serde_json::from_slice(&output.stdout).expect("one JSON document")
}

fn names(document: &Value) -> Vec<&str> {
    let experiments = document["experiments"].as_array().unwrap();
    experiments.iter().map(|experiment| experiment["experiment"].as_str().unwrap()).collect()
}

/// The only run of an arm.
fn run<'a>(experiment: &'a Value, arm: &str) -> &'a Value {
    experiment["runs"].as_array().unwrap().iter().find(|run| run["arm"] == arm).unwrap()
}

/// The metric in the only run of an arm.
fn metric(experiment: &Value, arm: &str, key: &str) -> f64 {
    let run = run(experiment, arm);
    run["metrics"][key].as_f64().unwrap_or_else(|| panic!("{arm}, {key}: {run}"))
}

/// Blocks above a fixed threshold have new pages in every call; with the dynamic threshold they soon come from the heap.
#[test]
fn a_fixed_mmap_threshold_maps_each_large_block_and_has_a_bill() {
    let document = measured(&["mmap-threshold", "--arms", "pinned"]);
    let experiment = &document["experiments"][0];
    let [glibc, pinned] = ["glibc", "pinned"].map(|arm| metric(experiment, arm, "faults_per_operation"));
    // The heap has new pages too where its top was trimmed.
    assert!(pinned > 10.0 && glibc < pinned / 3.0, "{glibc} and {pinned} faults per block");
    let arms = experiment["arms"].as_array().unwrap();
    assert_eq!(arms.iter().map(|arm| arm["arm"].as_str().unwrap()).collect::<Vec<_>>(), ["glibc", "pinned"]);
    for arm in arms {
        let bill = &arm["bill"];
        let lines = bill["on_cpu"].as_array().map_or(0, Vec::len);
        assert!(lines > 0 || bill["absent"]["detail"].is_string(), "{bill}");
        assert!(arm["histograms_ns"]["above"].as_str().unwrap().contains(':'));
    }
    // One block has no intervals.
    for claim in experiment["claims"].as_array().unwrap() {
        assert_eq!(claim["judgement"], "cannot_be_tested", "{claim}");
    }
}

/// A report's memory stays with glibc, and is returned by malloc_trim and by a process that ends.
#[test]
fn a_report_raises_memory_and_a_short_run_does_not_wait_half_a_minute() {
    let document = measured(&["rss-climb", "--arms", "malloc-trim,worker", "--no-bills"]);
    let experiment = &document["experiments"][0];
    for (arm, stays) in [("glibc", true), ("malloc-trim", false), ("worker", false)] {
        let of = |key: &str| metric(experiment, arm, key);
        // The report has 4 MB here.
        assert!(of("rss_peak") - of("rss_before") > 3e6 && of("live_0s") > 7e5, "{arm}");
        assert_eq!(of("kept_5s") > 0.5, stays, "{arm}: {}", of("kept_5s"));
        let late = &run(experiment, arm)["metrics"]["rss_30s"];
        assert!(late["absent"]["detail"].as_str().is_some_and(|why| why.contains("30 s")), "{late}");
    }
}

/// Memory that is freed with MADV_FREE is resident until the kernel takes it; MADV_DONTNEED gives it back at once.
#[test]
fn lazily_freed_memory_is_resident_and_lazyfree_shows_it() {
    let document = measured(&["lying-rss", "--arms", "madv-free,madv-dontneed", "--no-bills"]);
    let experiment = &document["experiments"][0];
    for (arm, lazily) in [("madv-free", true), ("madv-dontneed", false)] {
        let of = |key: &str| metric(experiment, arm, key);
        assert_eq!([of("kept") > 0.7, of("lazy") > 0.7], [lazily, lazily], "{arm}");
        assert!(of("kept_without_lazy") < 0.3, "{arm}: {}", of("kept_without_lazy"));
        // Without a memory cgroup there is a reason instead.
        let squeezed = &run(experiment, arm)["metrics"]["kept_under_pressure"];
        let less = squeezed.as_f64().is_some_and(|part| part <= of("kept") + 0.05);
        assert!(less || squeezed["absent"]["detail"].is_string(), "{arm}: {squeezed}");
    }
}

#[test]
fn a_page_a_document_and_charts_are_written() {
    let folder = tempfile::tempdir().unwrap();
    let (file, charts) = (folder.path().join("out.json"), folder.path().join("charts"));
    let paths = ["-o", file.to_str().unwrap(), "--charts", charts.to_str().unwrap()];
    let options =
        [&["tcache-batch", "--arms", "cache-1000,mimalloc", "--no-bills"][..], &SMALLEST[..], &paths[..]];
    let output = bench(&options.concat());
    assert!(output.status.success(), "{}", said(&output));
    let page = String::from_utf8(output.stdout).unwrap();
    for part in ["FIGURES", "CLAIMS", "cache-1000", "mimalloc", "can't be tested here"] {
        assert!(page.contains(part), "{part}: {page}");
    }
    assert!(!page.contains("BILLS"), "{page}");
    assert!(page.lines().all(|line| line.chars().count() <= 100), "{page}");
    let document: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(document["format"], "allocwall-experiments");
    let experiment = &document["experiments"][0];
    // glibc twice, and the two others.
    assert_eq!(experiment["runs"].as_array().unwrap().len(), 4);
    for arm in ["glibc", "cache-1000", "mimalloc"] {
        assert!(metric(experiment, arm, "ns_100") > 0.0);
    }
    assert!(experiment["arms"].as_array().unwrap().iter().all(|arm| arm["bill"].is_null()));
    for path in [file, charts.join("tcache-batch-batches.svg")] {
        let metadata = path.metadata().unwrap();
        assert!(
            metadata.len() > 1000 && metadata.permissions().mode() & 0o777 == 0o600,
            "{}",
            path.display()
        );
    }
}

#[test]
fn a_quick_run_leaves_some_arms_out_unless_they_are_named() {
    let why = |arms: &[&str]| {
        let document = measured(&[&["tcache-batch", "--no-bills"][..], arms].concat());
        let left_out = document["experiments"][0]["left_out"].as_array().unwrap();
        let left_out = left_out.iter().find(|left_out| left_out["arm"] == "mimalloc");
        left_out.map(|left_out| left_out["why"].as_str().unwrap().to_owned())
    };
    assert!(why(&[]).is_some_and(|why| why.contains("--quick")));
    assert_eq!(why(&["--arms", "mimalloc"]), None);
}

/// The same requests in Rust and in CPython, where the figures of many threads are absent.
#[test]
fn requests_are_served_from_a_pool_and_by_an_interpreter() {
    let document = measured(&["json-requests", "--arms", "pooled,python", "--no-bills"]);
    let experiment = &document["experiments"][0];
    for arm in ["glibc", "pooled"] {
        assert!(metric(experiment, arm, "rate_1") > 0.0 && metric(experiment, arm, "rate_2n") > 0.0, "{arm}");
    }
    if let Some(missing) = experiment["left_out"].as_array().unwrap().first() {
        println!("skipped: no arm {}: {}", missing["arm"], missing["why"]);
        return;
    }
    assert!(metric(experiment, "python", "p50_1_ns") > 0.0);
    let runs = experiment["runs"].as_array().unwrap();
    let python = runs.iter().find(|run| run["arm"] == "python").unwrap();
    assert!(
        python["metrics"]["rate_2n"]["absent"]["detail"].as_str().unwrap().contains("one thread"),
        "{python}"
    );
}

/// Of the incidents, each service also runs without its fault.
#[test]
fn all_experiments_run_one_after_the_other_and_are_listed() {
    let document = measured(&["all", "--arms", "mimalloc,mended", "--no-bills"]);
    assert_eq!(names(&document), EXPERIMENTS);
    for one in &document["experiments"].as_array().unwrap()[INCIDENTS..] {
        // Two NUMA nodes, a cgroup for a quota or a compiler may be missing.
        let reasons = one["left_out"].as_array().unwrap().iter();
        assert!(reasons.clone().all(|arm| arm["why"].as_str().is_some_and(|why| !why.is_empty())), "{one}");
        let ran = one["runs"].as_array().unwrap().iter().any(|run| run["failure"].is_null());
        assert!(ran || reasons.count() > 0, "{one}");
    }
    let list = String::from_utf8(bench(&["list"]).stdout).unwrap();
    let listed: BTreeSet<&str> = list.lines().filter_map(|line| line.split_whitespace().next()).collect();
    for name in EXPERIMENTS.iter().copied().chain(["pipeline", "obmalloc"]) {
        assert!(listed.contains(name), "{name}: {list}");
    }
}

/// The collector's own log, and what the diagnosis says without it.
#[test]
fn a_program_with_a_collector_that_works_is_told_from_one_with_malloc() {
    let document = measured(&["gc-or-allocator"]);
    let experiment = &document["experiments"][0];
    if !experiment["left_out"].as_array().unwrap().is_empty() {
        for claim in experiment["claims"].as_array().unwrap() {
            assert!(claim["why"].as_str().unwrap().contains("python3"), "{claim}");
        }
        return;
    }
    let [collector, allocator] = ["collector", "allocator"].map(|arm| metric(experiment, arm, "collecting"));
    assert!(collector > 0.1 && allocator == 0.0, "{collector} and {allocator} of the time in collections");
    for arm in experiment["arms"].as_array().unwrap() {
        let bill = &arm["bill"];
        let judged = bill["verdict"].as_str().is_some_and(|verdict| !verdict.is_empty());
        assert!(judged || bill["absent"]["detail"].is_string(), "{bill}");
    }
}

/// The share of first touches in the bill of an arm; None without a bill.
fn first_touch(arm: &Value) -> Option<f64> {
    let lines = arm["bill"]["on_cpu"].as_array()?.iter();
    let lines = lines.filter(|line| line["class"] == "fault_path" || line["class"] == "zeroing");
    Some(lines.filter_map(|line| line["share"]["point"].as_f64()).sum())
}

/// A worker that touches its cache while it serves, and one that touches it before.
#[test]
fn an_incident_is_broken_diagnosed_and_mended() {
    let document = measured(&["cold-scale-out"]);
    let experiment = &document["experiments"][0];
    if let Some(missing) = experiment["left_out"].as_array().unwrap().first() {
        println!("skipped: no arm {}: {}", missing["arm"], missing["why"]);
        return;
    }
    let [broken, mended] = ["broken", "mended"].map(|arm| {
        let of = |key: &str| metric(experiment, arm, key);
        (of("faults_per_operation"), of("start_s"), of("p99_ns"))
    });
    // Each request writes to 64 pages. Where all pages are huge, it faults in fewer.
    assert!(mended.0 < 2.0 && broken.0 > mended.0, "{broken:?}, {mended:?}");
    assert!(broken.1 > 0.0 && mended.1 > 0.0 && broken.2 > 0.0 && mended.2 > 0.0, "{broken:?}, {mended:?}");
    let [broken, mended] = [0_usize, 1].map(|nth| &experiment["arms"][nth]);
    for arm in [broken, mended] {
        let judged = arm["walls"].is_array() && arm["bill"]["verdict"].is_string();
        assert!(judged || arm["bill"]["absent"]["detail"].is_string(), "{arm}");
    }
    // Without kernel stacks the bill has no such lines.
    if let (Some(cold), Some(warm)) = (first_touch(broken), first_touch(mended))
        && cold > 0.0
    {
        assert!(cold > 0.1 && warm < cold / 2.0, "{cold} and {warm} of CPU in first touches");
    }
}

/// Their runs are in the test of all experiments.
#[test]
fn without_a_compiler_the_incidents_say_so() {
    let options = [&["incidents", "--json"][..], &SMALLEST[..]].concat();
    let document = document(&command(&options).env("PATH", "/nowhere").output().expect("the program starts"));
    assert_eq!(names(&document), EXPERIMENTS[INCIDENTS..]);
    for one in document["experiments"].as_array().unwrap() {
        assert_eq!(one["runs"].as_array().map(Vec::len), Some(0), "{one}");
        for claim in one["claims"].as_array().unwrap() {
            let why = claim["why"].as_str().unwrap_or_default();
            assert!(why.contains("no C compiler") || one["experiment"] == "numa-after-upgrade", "{claim}");
        }
    }
}

/// Groups of this program's runs with a quota.
fn groups(below: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(below).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            let own = entry.file_name().to_string_lossy().starts_with("allocwall-subject-");
            if own { found.push(entry.path()) } else { groups(&entry.path(), found) }
        }
    }
}

/// Also the run of the bill, which is ended from outside.
#[test]
fn a_quota_ends_with_its_run_or_is_left_out_with_the_reason() {
    let document = measured(&["throttle", "--arms", "quota-30"]);
    let experiment = &document["experiments"][0];
    match experiment["left_out"].as_array().unwrap().first() {
        Some(arm) => assert!(arm["why"].as_str().unwrap().contains("quota"), "{arm}"),
        None => assert!(metric(experiment, "quota-30", "throttled_periods_per_s") >= 0.0),
    }
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        let mut left = vec![];
        groups(Path::new("/sys/fs/cgroup"), &mut left);
        if left.is_empty() {
            break;
        }
        assert!(Instant::now() < until, "left behind: {left:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn bad_arguments_give_one_error_line() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let file = file.to_str().unwrap();
    for (arguments, status, words) in [
        (vec!["mmap-treshold"], 2, "no experiment mmap-treshold; nearest: mmap-threshold"),
        (vec!["snake-oil", "--quick"], 2, "`allocwall bench list`"),
        (vec!["tcache-batch", "--arms", "jemaloc"], 2, "no arm jemaloc; nearest: jemalloc"),
        (vec!["tcache-batch", "-o", "/nowhere/out.json"], 1, "/nowhere/out.json"),
        (vec!["tcache-batch", "--charts", file], 1, file),
        (vec!["experiment-run", "{}"], 1, "for internal use"),
    ] {
        let output = bench(&arguments);
        let said = said(&output);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {said}");
        assert!(said.starts_with("error: ") && said.contains(words), "{arguments:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{arguments:?}: {said}");
        assert!(output.stdout.is_empty());
    }
    for arguments in [["tcache-batch", "--blocks", "0"], ["mmap-threshold", "--scale", "0"]] {
        assert_eq!(bench(&arguments).status.code(), Some(2), "{arguments:?}");
    }
}
