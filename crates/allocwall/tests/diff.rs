//! `allocwall diff` with real recordings: a wall that appears is found and stops a gate, a recording beside itself has no change.

use serde_json::Value;
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

const BINARY: &str = env!("CARGO_BIN_EXE_allocwall");

struct Place(TempDir);

impl Place {
    fn run(&self, arguments: &[&str]) -> Output {
        Command::new(BINARY)
            .args(arguments)
            .current_dir(self.0.path())
            .env("XDG_STATE_HOME", self.0.path().join("state"))
            .env("XDG_CACHE_HOME", self.0.path().join("cache"))
            .stdin(Stdio::null())
            .output()
            .expect("allocwall starts")
    }

    fn record(&self, name: &str, command: &[&str]) {
        let head = ["diagnose", "-d", "2", "--no-calibrate", "-o", name, "--"];
        let output = self.run(&[&head, command].concat());
        assert!(output.status.success(), "{}", talk(&output));
    }
}

fn talk(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn data(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_wall_that_appears_is_found_and_its_twin_is_not() {
    let place = Place(tempfile::tempdir().expect("a folder"));
    let subject = |options: &[&'static str]| [&[BINARY, "subject", "cold-touch"], options].concat();
    place.record("twin", &subject(&["--twin"]));
    place.record("wall", &subject(&["--dial", "0.6"]));
    let gate = ["--fail-on", "first-touch>+3%"];
    let diff = |files: [&str; 2], options: &[&str]| place.run(&[&["diff"], &files[..], options].concat());
    let document: Value = serde_json::from_str(&data(&diff(["twin", "wall"], &["--json"]))).expect("JSON");
    assert_eq!(document["format"], "allocwall-diff");
    let changes = document["changes"].as_array().expect("a list");
    let outcome = &changes.iter().find(|change| change["key"] == "first_touch").expect("a wall")["outcome"];
    if outcome == "not_measured" {
        let found = diff(["twin", "wall"], &gate);
        assert_eq!(found.status.code(), Some(1), "{}", talk(&found));
        assert!(talk(&found).contains("first-touch>+3%: not measured"), "{}", talk(&found));
        println!("skipped in part: kernel stacks: not permitted");
    } else {
        let found = diff(["twin", "wall"], &gate);
        assert_eq!(found.status.code(), Some(1), "{}{}", data(&found), talk(&found));
        assert!(data(&found).contains("VERDICT  First touch went from "), "{}", data(&found));
        assert!(talk(&found).contains("limit exceeded: first-touch>+3%: +"), "{}", talk(&found));
        // Less is not more, and nothing is nothing.
        for files in [["wall", "twin"], ["wall", "wall"]] {
            let passed = diff(files, &gate);
            assert_eq!(passed.status.code(), Some(0), "{}{}", data(&passed), talk(&passed));
            assert!(!talk(&passed).contains("limit exceeded"), "{}", talk(&passed));
        }
    }
    let same = data(&diff(["wall", "wall"], &[]));
    assert!(!same.contains("WHAT MOVED") && same.contains("VERDICT  No figure "), "{same}");

    let svg = data(&diff(["twin", "wall"], &["--format", "flamegraph"]));
    assert!(svg.starts_with("<?xml") && svg.contains("; +"), "no differential flamegraph");
    // A comparison does not overwrite what it compares.
    for name in ["twin", "wall"] {
        let refused = diff(["twin", "wall"], &["-o", name]);
        assert_eq!(refused.status.code(), Some(1), "{}", talk(&refused));
        assert!(talk(&refused).contains("is made from"), "{}", talk(&refused));
    }
    assert!(diff(["twin", "wall"], &["-o", "change.svg"]).status.success());
    let written = std::fs::read(place.0.path().join("change.svg")).expect("a file");
    assert!(written.starts_with(b"<?xml"));
    // The same program on the same machine.
    assert!(diff(["wall", "wall"], &["--strict"]).status.success());
}

#[test]
fn wrong_arguments_are_refused_with_a_hint() {
    let place = Place(tempfile::tempdir().expect("a folder"));
    for (options, status, words) in [
        (&["--fail-on", "frst-touch>+3%"][..], 2, "nearest: first-touch"),
        (&["--fail-on", "first-touch"], 2, "NAME>+N%"),
        (&["--per", "0"], 2, "above 0"),
        (&["--per", "1,2,3"], 2, "BEFORE,AFTER"),
        (&["-o", "a.html"], 2, ".json and .svg"),
        (&["-o", "a.csv"], 2, ".json and .svg"),
        (&["--all", "--format", "flamegraph"], 2, "--all is for text"),
        (&[], 1, "missing"),
    ] {
        let output = place.run(&[&["diff", "missing", "missing"], options].concat());
        assert_eq!(output.status.code(), Some(status), "{options:?}: {}", talk(&output));
        assert!(talk(&output).contains(words), "{options:?}: {}", talk(&output));
    }
}
