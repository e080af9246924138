//! `allocwall diagnose --count` from the command line: the exact calls of a program that knows them, in the document and in the
//! recording, and the twin without counts. What can't be counted is diagnosed without counts. A trial counts in one run alone.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

const BINARY: &str = env!("CARGO_BIN_EXE_allocwall");

/// A million blocks of 48 bytes that are freed at once; then it computes until it is ended. It names the folder of its counts.
const PROGRAM: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
int main(void) {
    const char *folder = getenv("ALLOCWALL_COUNT");
    dprintf(2, "folder %s\n", folder ? folder : "none");
    for (int i = 0; i < 1000000; i++) {
        char *volatile block = malloc(48);
        block[0] = 1;
        free(block);
    }
    for (volatile unsigned long spin = 0;; spin++) ;
}
"#;
const MADE: u64 = 1_000_000;
/// More than a C program calls at its start.
const AT_START: u64 = 200;

/// A folder of a test, with caches and the compiled program.
struct Place(TempDir);

impl Place {
    fn new() -> Place {
        Place(tempfile::tempdir().expect("a temporary folder"))
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(BINARY);
        command
            .args(arguments)
            .env("XDG_CACHE_HOME", self.at("cache"))
            .env("XDG_STATE_HOME", self.at("state"))
            .env_remove("LD_PRELOAD")
            .stdin(Stdio::null())
            .output()
            .expect("the tool starts")
    }

    /// None, after the reason is printed, if there is no compiler, or it has no static libraries.
    fn program(&self, flags: &[&str]) -> Option<String> {
        let (source, program) = (self.at("program.c"), self.at("program"));
        std::fs::write(&source, PROGRAM).expect("a file");
        let mut command = Command::new("cc");
        command.arg(&source).arg("-o").arg(&program).args(["-O1", "-fno-builtin"]).args(flags);
        match command.output() {
            Ok(output) if output.status.success() => Some(program.to_str().expect("UTF-8").to_owned()),
            Ok(output) if flags.is_empty() => panic!("{}", text(&output.stderr)),
            Ok(_) => {
                println!("skipped: nothing links with {flags:?} here");
                None
            }
            Err(error) => {
                println!("skipped: cc: {error}");
                None
            }
        }
    }

    /// The document of a window of two seconds, and what was said.
    fn diagnosed(&self, options: &[&str], program: &str) -> (Value, String) {
        let arguments = [&["diagnose", "--json", "-d", "2"][..], options, &["--", program]].concat();
        let output = self.run(&arguments);
        let talk = text(&output.stderr);
        // 1: nothing could be sampled on this machine.
        assert!(matches!(output.status.code(), Some(0 | 1)), "{talk}");
        (serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {talk}")), talk)
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("no number: {value}"))
}

/// All evidence for the call rate.
fn evidence(document: &Value) -> String {
    let findings = document["findings"].as_array().expect("findings");
    let calls = findings.iter().find(|finding| finding["wall"] == "call_rate").expect("one a wall");
    calls["evidence"].to_string()
}

#[test]
fn the_calls_of_a_program_are_counted_exactly_and_used_by_the_ladder() {
    let place = Place::new();
    let Some(program) = place.program(&[]) else { return };
    let recording = place.at("a.allocwall");
    let recording = recording.to_str().expect("UTF-8");
    let (document, talk) = place.diagnosed(&["--count", "-o", recording], &program);
    let counted = &document["counted"];
    for calls in ["allocations", "frees"] {
        assert!((MADE..MADE + AT_START).contains(&number(&counted[calls])), "{calls}: {counted}; {talk}");
    }
    assert_eq!((&counted["sizes"][0]["up_to_bytes"], &counted["covers_busiest"]), (&64.into(), &true.into()));
    let per_second = counted["calls_per_s"].as_f64().expect("a rate");
    assert!((100_000.0..10_000_000.0).contains(&per_second), "{per_second}");
    assert!(evidence(&document).contains("counted: allocwall count"), "{}", evidence(&document));
    // The library is no part of the target.
    let process = &document["target"]["processes"][0];
    assert_eq!(
        (&process["allocator"]["kind"], &process["allocator"]["how"]),
        (&"glibc".into(), &"libc".into())
    );
    assert!(!process["environment"].to_string().contains("LD_PRELOAD"), "{process}");
    let shares = document["bill"]["on_cpu"].as_array();
    let sum =
        shares.map(|lines| lines.iter().filter_map(|line| line["share"]["point"].as_f64()).sum::<f64>());
    assert!(sum.is_none_or(|sum| (sum - 1.0).abs() < 1e-6), "{sum:?}");
    // The folder of the counts is gone, and the recording has them.
    let folder = talk.lines().find_map(|line| line.strip_prefix("folder ")).expect("the program names it");
    assert!(folder.starts_with('/') && !Path::new(folder).exists(), "{folder}");
    let again = place.run(&["diagnose", "--json", recording]);
    let again: Value = serde_json::from_slice(&again.stdout).expect("a document");
    assert_eq!(again, document);
    let report = text(&place.run(&["diagnose", recording]).stdout);
    assert!(report.contains("CALLS  of the allocator, counted in "), "{report}");
}

#[test]
fn without_the_option_nothing_is_counted() {
    let place = Place::new();
    let Some(program) = place.program(&[]) else { return };
    let (document, talk) = place.diagnosed(&[], &program);
    assert_eq!(document["counted"]["absent"]["reason"], "disabled", "{document}");
    assert!(talk.contains("folder none"), "{talk}");
    assert!(!evidence(&document).contains("counted:"), "{}", evidence(&document));
}

#[test]
fn a_static_program_is_diagnosed_without_counts() {
    let place = Place::new();
    let Some(program) = place.program(&["-static"]) else { return };
    let (document, talk) = place.diagnosed(&["--count"], &program);
    assert_eq!(document["counted"]["absent"]["reason"], "not_supported", "{document}");
    assert!(talk.contains("are not counted: ") && talk.contains("statically linked"), "{talk}");
    assert!(talk.contains("folder none"), "{talk}");
}

#[test]
fn only_a_command_can_be_counted() {
    let place = Place::new();
    for arguments in [
        &["diagnose", "--count"][..],
        &["diagnose", "--count", "-p", "1"],
        &["diagnose", "--count", "--cgroup", "/"],
        &["diagnose", "--count", "file"],
        &["diagnose", "--count", "--repeat", "2", "--", "true"],
        &["diagnose", "--count", "--keep-running", "--", "true"],
    ] {
        let output = place.run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", text(&output.stderr));
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn a_trial_counts_in_the_first_run_of_its_second_baseline_alone() {
    let place = Place::new();
    let list = place.at("list");
    let script = format!("echo \"x$LD_PRELOAD\" >> {}", list.display());
    let options = ["trial", "--with", "glibc-tcache-count=64", "--blocks", "7", "--", "sh", "-c", &script];
    let output = place.run(&options);
    let runs =
        std::fs::read_to_string(&list).unwrap_or_else(|error| panic!("{error}: {}", text(&output.stderr)));
    let counted: Vec<usize> = runs
        .lines()
        .enumerate()
        .filter(|(_, line)| line.contains("liballocwall-count"))
        .map(|(nth, _)| nth)
        .collect();
    assert_eq!(counted, [1], "{runs}{}", text(&output.stderr));
    assert!(runs.lines().count() > 20, "{runs}");
    // The twin: without predictions nothing is counted.
    std::fs::remove_file(&list).expect("it is there");
    let mut options = options.to_vec();
    options.insert(1, "--no-predict");
    place.run(&options);
    let runs = std::fs::read_to_string(&list).expect("the runs");
    assert!(!runs.contains("liballocwall-count"), "{runs}");
}
