//! `allocwall memory`: its rows sum to the resident memory of the kernel, and what it calls live agrees with the account
//! of the program itself, of glibc (mallinfo2(3)) and of CPython (sys._debugmallocstats).

#[path = "common/running.rs"]
mod running;

use running::Running;
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

const BINARY: &str = env!("CARGO_BIN_EXE_allocwall");
const PYTHON: &str = "/usr/bin/python3";
const MIB: f64 = (1 << 20) as f64;
/// The places of the rows.
const HEAP: usize = 0;
const MAPPED_BLOCK: usize = 2;
const PYTHON_ARENA: usize = 3;
const PRIVATE: usize = 4;

impl Running {
    fn start(command: &mut Command) -> Running {
        let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        Running(command.spawn().expect("a program starts"))
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }

    /// The JSON of its first line, which it prints when it is ready.
    fn ready(&mut self) -> Value {
        let mut line = String::new();
        let mut out = BufReader::new(self.0.stdout.take().expect("a pipe"));
        out.read_line(&mut line).expect("its first line");
        // Nobody reads its later lines: they fit into the pipe.
        self.0.stdout = Some(out.into_inner());
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
    }
}

fn memory(arguments: &[&str]) -> Output {
    let mut command = Command::new(BINARY);
    command.arg("memory").args(arguments).env_remove("COLUMNS").stdin(Stdio::null());
    command.output().expect("the tool starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

fn document(pid: &str, more: &[&str]) -> Value {
    let output = memory(&[&["-p", pid, "--json"][..], more].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("a JSON document")
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("no number: {value}"))
}

/// The sum of the rows. Each row's parts sum to the row.
fn sum(document: &Value) -> f64 {
    let rows = document["rows"].as_array().expect("rows");
    rows.iter()
        .map(|row| {
            let resident = number(&row["resident_bytes"]);
            if row["split"]["absent"].is_null() {
                let parts = number(&row["split"]["live_bytes"]["point"])
                    + number(&row["split"]["free_bytes"]["point"])
                    + number(&row["lazily_freed_bytes"]);
                assert!((parts - resident).abs() < 2.0, "{row}");
            }
            resident
        })
        .sum()
}

/// A field of a file of /proc, in bytes.
fn field(pid: &str, file: &str, name: &str) -> f64 {
    let body = fs::read_to_string(format!("/proc/{pid}/{file}")).expect("our own child");
    let line =
        body.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("no {name} in {body}"));
    let kib = line.split_whitespace().nth(1).expect("a value");
    kib.parse::<f64>().expect("a number") * 1024.0
}

fn assert_near(found: f64, truth: f64, tolerance: f64, what: &str) {
    let most = tolerance * truth;
    assert!((found - truth).abs() <= most, "{what}: {:.2} MiB, in truth {:.2} MiB", found / MIB, truth / MIB);
}

/// A document, and the Rss of smaps_rollup before and after it: the process did not change meanwhile.
fn quiet(pid: &str, more: &[&str]) -> (Value, f64) {
    let rss = || field(pid, "smaps_rollup", "Rss:");
    let found = (0..1000).find_map(|_| {
        let before = rss();
        let document = document(pid, more);
        if rss() == before {
            return Some((document, before));
        }
        std::thread::sleep(Duration::from_millis(5));
        None
    });
    found.expect("a process that sleeps")
}

/// Whether a row is not divided because this user may not read the memory. Another reason is a failure.
fn may_not_read(row: &Value) -> bool {
    let absent = &row["split"]["absent"];
    if absent.is_null() {
        return false;
    }
    assert_eq!(absent["reason"], "not_permitted", "{row}");
    println!("skipped: {}", absent["detail"]);
    true
}

#[test]
fn the_rows_of_a_small_process_sum_to_its_resident_memory() {
    let child = Running::start(Command::new("sleep").arg("60"));
    let (document, rss) = quiet(&child.pid(), &[]);
    assert_eq!(sum(&document), rss);
    assert_eq!(number(&document["resident_bytes"]), rss);
    let output = memory(&["-p", &child.pid()]);
    let page = text(&output.stdout);
    assert!(page.contains("RESIDENT") && page.contains("page tables") && page.contains("files"), "{page}");
}

/// A subject that needs a fifth of its 256 MiB, and the bytes of it. In the twin, the rest is returned to the system.
fn retention(twin: bool) -> (Running, f64) {
    let mut command = Command::new(BINARY);
    command.args(["subject", "retention", "--dial", "0.8", "--seconds", "60"]);
    if twin {
        command.arg("--twin");
    }
    let mut running = Running::start(&mut command);
    let ready = running.ready();
    (running, number(&ready["live_bytes"]))
}

#[test]
fn live_memory_is_what_the_program_still_needs() {
    if cfg!(not(target_env = "gnu")) {
        return println!("skipped: no glibc here");
    }
    let (running, live) = retention(false);
    let nothing: &[&str] = &[];
    for more in [nothing, &["--exact"], &["--exact", "--budget", "10s"]] {
        let document = document(&running.pid(), more);
        let rss = field(&running.pid(), "status", "VmRSS:");
        assert_near(sum(&document), rss, 0.01, "sum of the rows");
        assert_eq!(document["agrees"], true, "{document}");
        assert_eq!(document["allocator"]["kind"], "glibc");
        let heap = &document["rows"][HEAP];
        assert_eq!(heap["owner"], "heap");
        if may_not_read(heap) {
            return;
        }
        let split = &heap["split"];
        assert_near(number(&split["live_bytes"]["point"]), live, 0.05, "live");
        let free = number(&heap["resident_bytes"]) - live;
        assert_near(number(&split["free_bytes"]["point"]), free, 0.05, "free");
        let (low, high) = (number(&split["live_bytes"]["low"]), number(&split["live_bytes"]["high"]));
        assert!(low <= high && high - low < 0.1 * live, "{split}");
        let remedies: Vec<&str> = document["remedies"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|r| r["remedy"].as_str())
            .collect();
        assert!(remedies.contains(&"jemalloc"), "{remedies:?}");
        // Threads of the subject have no heaps of this size.
        assert!(!remedies.contains(&"glibc-arenas-few"), "{remedies:?}");
    }
}

#[test]
fn memory_that_was_returned_is_not_free_memory() {
    if cfg!(not(target_env = "gnu")) {
        return println!("skipped: no glibc here");
    }
    let (running, live) = retention(true);
    let document = document(&running.pid(), &[]);
    let heap = &document["rows"][HEAP];
    assert_eq!(document["allocator"]["kind"], "glibc");
    if may_not_read(heap) {
        return;
    }
    assert_near(number(&heap["split"]["live_bytes"]["point"]), live, 0.05, "live");
    let free = number(&heap["split"]["free_bytes"]["point"]);
    assert!(free < 8.0 * MIB, "{:.1} MiB", free / MIB);
}

/// What a diagnosis of one second says of a process's memory and of retention, and its remedies. None, with a line, if the
/// memory was not read.
fn diagnosed(pid: &str) -> Option<(Value, Value, Value)> {
    let state = tempfile::tempdir().expect("a temporary folder");
    let mut command = Command::new(BINARY);
    command.args(["diagnose", "-d", "1", "--json", "-p", pid]).env("XDG_STATE_HOME", state.path());
    let output = command.stdin(Stdio::null()).output().expect("the tool starts");
    // Without rights to sample, the exit status is 1, but there is a document.
    let document: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", text(&output.stderr)));
    let absent = &document["resident"]["absent"];
    if !absent.is_null() {
        assert!(absent["reason"] == "not_permitted" || absent["reason"] == "too_costly", "{absent}");
        println!("skipped: {}", absent["detail"]);
        return None;
    }
    let findings = document["findings"].as_array().expect("findings");
    let retention =
        findings.iter().find(|finding| finding["wall"] == "retention").expect("each wall").clone();
    Some((document["resident"].clone(), retention, document["remedies"].clone()))
}

#[test]
fn a_diagnosis_judges_retention_on_the_memory_of_the_living_process() {
    if cfg!(not(target_env = "gnu")) {
        return println!("skipped: no glibc here");
    }
    for (twin, status) in [(false, "wall"), (true, "ruled_out")] {
        let (running, live) = retention(twin);
        let Some((resident, retention, remedies)) = diagnosed(&running.pid()) else { return };
        let bill = &resident["bills"][0];
        assert_eq!((bill["pid"].to_string(), &resident["others"]), (running.pid(), &Value::from(0)));
        let rss = field(&running.pid(), "status", "VmRSS:");
        assert_near(sum(bill), rss, 0.03, "sum of the rows");
        let heap = &bill["rows"][HEAP];
        if may_not_read(heap) {
            return;
        }
        assert_near(number(&heap["split"]["live_bytes"]["point"]), live, 0.05, "live");
        assert_eq!(retention["status"], status, "{retention}");
        let evidence = retention["evidence"][0].as_str().unwrap_or_default();
        assert!(evidence.starts_with("by owner: "), "{retention}");
        let remedies: Vec<&Value> = remedies.as_array().into_iter().flatten().collect();
        let returned = remedies.iter().find(|remedy| remedy["remedy"] == "jemalloc");
        let returned = returned.and_then(|remedy| remedy["returns_bytes"].as_f64());
        assert_eq!(returned.is_some_and(|bytes| bytes > 100.0 * MIB), !twin, "{remedies:?}");
    }
}

/// A Python program that runs a script, prints `truth` as JSON, and sleeps. None without an interpreter.
fn python(script: &str, malloc: &str) -> Option<(Running, Value)> {
    if !Path::new(PYTHON).exists() {
        println!("skipped: no {PYTHON} here");
        return None;
    }
    let script = format!(
        "import ctypes, json, mmap, os, re, sys, tempfile, time\ntruth = {{}}\n{script}\n\
         print(json.dumps(truth), flush=True)\ntime.sleep(600)\n"
    );
    let mut command = Command::new(PYTHON);
    command.args(["-c", &script]).env("PYTHONMALLOC", malloc);
    let mut running = Running::start(&mut command);
    let truth = running.ready();
    Some((running, truth))
}

/// Many objects of which every second one is freed again; what CPython's allocator and glibc's malloc count themselves.
/// Without its object allocator, CPython prints nothing. An older glibc has no mallinfo2.
const OBJECTS: &str = r#"
class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in
        "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()]
keep = [(number, number + 0.5) for number in range(1000, 301000)]
del keep[::2]
libc = ctypes.CDLL(None)
with tempfile.TemporaryFile() as file:
    stderr = os.dup(2)
    os.dup2(file.fileno(), 2)
    sys._debugmallocstats()
    os.dup2(stderr, 2)
    file.seek(0)
    found = re.search(r"bytes in allocated blocks\s*=\s*([\d,]+)", file.read().decode())
truth["pools"] = int(found.group(1).replace(",", "")) if found else 0
if hasattr(libc, "mallinfo2"):
    libc.mallinfo2.restype = Info
    truth["heap"] = libc.mallinfo2().uordblks
"#;

#[test]
fn live_objects_of_python_are_those_that_it_counts() {
    let Some((running, truth)) = python(OBJECTS, "pymalloc") else { return };
    // With so much time that a busy machine has no effect.
    let (document, rss) = quiet(&running.pid(), &["--exact", "--budget", "60s"]);
    assert_eq!(sum(&document), rss);
    if may_not_read(&document["rows"][HEAP]) {
        return;
    }
    let pools = &document["rows"][PYTHON_ARENA];
    assert_eq!(pools["owner"], "python_arena");
    let live = number(&truth["pools"]);
    assert!(live > 10.0 * MIB, "{truth}");
    assert_near(number(&pools["split"]["live_bytes"]["point"]), live, 0.02, "live in pools");
    assert!(number(&pools["split"]["free_bytes"]["point"]) > 0.5 * live, "{pools}");
}

#[test]
fn the_same_objects_without_pythons_allocator_are_in_mallocs_heap() {
    let Some((running, truth)) = python(OBJECTS, "malloc") else { return };
    assert_eq!(truth["pools"], 0, "{truth}");
    let nothing: &[&str] = &[];
    for more in [nothing, &["--exact"]] {
        let document = document(&running.pid(), more);
        let (heap, pools) = (&document["rows"][HEAP], &document["rows"][PYTHON_ARENA]);
        assert_eq!(pools["resident_bytes"], 0, "{pools}");
        if document["allocator"]["kind"] != "glibc" || truth["heap"].is_null() {
            return println!("skipped: no glibc with mallinfo2 here");
        }
        if may_not_read(heap) {
            return;
        }
        sum(&document);
        // Blocks in thread caches count as live in mallinfo2: up to 7 of each size, 0.2 MiB in all.
        let live = number(&truth["heap"]);
        assert!(live > 10.0 * MIB, "{truth}");
        assert_near(number(&heap["split"]["live_bytes"]["point"]), live, 0.05, "live in the heap");
        assert!(number(&heap["split"]["free_bytes"]["point"]) > 0.5 * live, "{heap}");
    }
}

#[test]
fn a_large_block_of_malloc_has_its_own_row_until_it_is_freed() {
    const BLOCK: f64 = 64.0 * MIB;
    for (end, held) in [("", true), ("del keep", false)] {
        let script = format!("keep = bytearray(b'x') * (64 << 20)\n{end}");
        let Some((running, _)) = python(&script, "pymalloc") else { return };
        let document = document(&running.pid(), &[]);
        if document["allocator"]["kind"] != "glibc" {
            return println!("skipped: no glibc here");
        }
        // The heap is never empty.
        if may_not_read(&document["rows"][HEAP]) {
            return;
        }
        let row = number(&document["rows"][MAPPED_BLOCK]["resident_bytes"]);
        // Python has some more blocks of this kind.
        let range = if held { BLOCK..BLOCK + 8.0 * MIB } else { 0.0..8.0 * MIB };
        assert!(range.contains(&row), "{held}: {:.1} MiB", row / MIB);
    }
}

/// Every second mapping is read-only, so the kernel does not merge them.
const MAPPINGS: &str = "
keep = []
for nth in range(20000):
    access = mmap.PROT_READ if nth % 2 else mmap.PROT_READ | mmap.PROT_WRITE
    keep.append(mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, access))
    if nth % 2 == 0:
        keep[-1][0] = 1
";

#[test]
fn the_rows_of_a_process_with_very_many_mappings_sum_or_say_that_they_are_incomplete() {
    let Some((running, _)) = python(MAPPINGS, "pymalloc") else { return };
    let (document, rss) = quiet(&running.pid(), &[]);
    let notes = document["notes"].as_array().expect("notes");
    let is_incomplete =
        notes.iter().any(|note| note.as_str().is_some_and(|note| note.contains("incomplete")));
    if is_incomplete {
        assert!(sum(&document) < rss, "{document}");
    } else {
        assert_eq!(sum(&document), rss, "{document}");
    }
    // 10,000 touched pages are other private memory: no header says whose they are.
    let private = number(&document["rows"][PRIVATE]["resident_bytes"]);
    assert!(is_incomplete || private >= 10_000.0 * 4096.0, "{document}");
}

#[test]
fn processes_that_cannot_be_read_are_refused_in_one_line() {
    let refused = |pid: &str, code: i32, words: &str| {
        let output = memory(&["-p", pid]);
        let talk = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{talk}");
        assert!(talk.starts_with("error: ") && talk.contains(words), "{words}: {talk}");
        assert!(output.stdout.is_empty());
        assert!(code == 2 || talk.lines().count() == 1, "{talk}");
    };
    // Above the kernel's largest pid_max (2^22).
    refused("4194305", 1, "no process 4194305");
    for pid in ["0", "-1", "abc", "99999999999"] {
        refused(pid, 2, "invalid value");
    }
    let own = fs::read_link("/proc/thread-self").expect("a thread");
    let tid = own.file_name().and_then(|name| name.to_str()).expect("its number");
    refused(tid, 1, "is a thread of process");
    match fs::read_to_string("/proc/2/comm") {
        Ok(comm) if comm.trim() == "kthreadd" => refused("2", 1, "kernel thread"),
        _ => println!("skipped: no kernel thread is visible here"),
    }
    assert_eq!(memory(&[]).status.code(), Some(2));
    assert_eq!(memory(&["-p", "1", "--budget", "1s"]).status.code(), Some(2), "a budget is for --exact");
}
