//! jemalloc is built in only with the feature `bundled`. A build with it preloads it into a command; a build without
//! it prints one error line. The other bundled allocators are in every build and have other tests.

use std::process::{Command, Output, Stdio};

fn tool(arguments: &[&str]) -> Output {
    let cache = concat!(env!("CARGO_TARGET_TMPDIR"), "/cache");
    Command::new(env!("CARGO_BIN_EXE_allocwall"))
        .args(arguments)
        .env("XDG_CACHE_HOME", cache)
        .env("XDG_STATE_HOME", tempfile::tempdir().unwrap().path())
        .env_remove("LD_PRELOAD")
        .env_remove("COLUMNS")
        .stdin(Stdio::null())
        .output()
        .expect("the tool starts")
}

const RUN: [&str; 6] = ["run", "-q", "--with", "jemalloc@bundled", "--", "cat"];
const TRIAL: [&str; 8] = ["trial", "--no-predict", "--json", "-w", "jemalloc@bundled", "--blocks", "1", "--"];

#[cfg(feature = "bundled")]
#[test]
fn its_jemalloc_serves_a_command_and_is_proven_in_a_trial() {
    let maps = tool(&[&RUN[..], &["/proc/self/maps"]].concat());
    let maps = String::from_utf8(maps.stdout).unwrap();
    let mapped = |line: &str| line.contains("/cache/allocwall/libraries/") && line.contains("jemalloc");
    assert!(maps.lines().any(mapped), "{maps}");
    // One block gives no outcome, so the exit status is not checked, only the proof.
    let output = tool(&[&TRIAL[..], &["sleep", "0.1"]].concat());
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let arms = document["arms"].as_array().unwrap();
    let arm = arms.iter().find(|arm| arm["name"] == "jemalloc@bundled").unwrap();
    let proof = arm["proof"].as_array().unwrap();
    // A command that sleeps makes too few calls to measure the share that the library serves.
    let needed: Vec<_> = proof.iter().filter(|item| item["needed"] == true).collect();
    assert!(!needed.is_empty(), "{arm}");
    assert!(needed.iter().all(|item| item["state"] == "proven"), "{arm}");
}

#[cfg(not(feature = "bundled"))]
#[test]
fn its_jemalloc_is_refused_where_it_is_not_built_in() {
    for command in [&[&RUN[..], &["/dev/null"]].concat(), &[&TRIAL[..], &["true"]].concat()] {
        let output = tool(command);
        let talk = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{talk}");
        assert!(talk.contains("this build does not include the library"), "{talk}");
        assert_eq!((talk.lines().count(), &output.stdout[..]), (1, &b""[..]), "{talk}");
    }
}
