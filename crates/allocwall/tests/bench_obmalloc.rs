//! `allocwall bench obmalloc` from the command line: bad arguments give one error line; with the package, it
//! measures.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

const PYTHON: &str = "/usr/bin/python3";

fn bench(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_allocwall"))
        .args(["bench", "obmalloc"])
        .args(arguments)
        .env_remove("PYTHONPATH")
        .stdin(Stdio::null())
        .output()
        .expect("the program starts")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// An interpreter that finds the package's sources, without the extension; None if there is no python3.
fn python_with_sources(folder: &TempDir) -> Option<String> {
    if !Path::new(PYTHON).exists() {
        println!("skipped: no {PYTHON} here");
        return None;
    }
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python");
    let script = format!(
        "#!/bin/sh\nPYTHONPATH='{}' exec {PYTHON} \"$@\"\n",
        sources.canonicalize().unwrap().display()
    );
    let file: PathBuf = folder.path().join("python");
    std::fs::write(&file, script).unwrap();
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
    Some(file.display().to_string())
}

#[test]
fn bad_arguments_give_one_error_line() {
    let folder = tempfile::tempdir().unwrap();
    let Some(python) = python_with_sources(&folder) else {
        return;
    };
    for (arguments, status, words) in [
        (vec!["--python", "/nowhere/python"], 1, "/nowhere/python"),
        (vec!["--python", "/bin/true"], 1, "cannot run the workloads"),
        (vec!["--python", PYTHON], 1, "-m pip install '"),
        (vec!["--python", &python, "--workloads", "tupels"], 2, "nearest: tuples"),
        (vec!["--python", &python, "--arms", "jemalloc"], 2, "no arm jemalloc"),
        (vec!["--python", &python, "--rebuilt", "/nowhere/python"], 1, "/nowhere/python"),
    ] {
        let output = bench(&arguments);
        let said = said(&output);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {said}");
        let errors: Vec<&str> = said.lines().filter(|line| line.starts_with("error")).collect();
        assert!(errors.len() == 1 && errors[0].contains(words), "{arguments:?}: {said}");
        assert!(output.stdout.is_empty());
    }
    for arguments in [["--blocks", "0"], ["--idle", "soon"], ["--set", "large"]] {
        assert_eq!(bench(&arguments).status.code(), Some(2), "{arguments:?}");
    }
}

/// Without the extension there is no arena hook, which is reported for each arm. With --rebuilt there is an arm to
/// compare with stock.
#[test]
fn a_program_is_compared_with_itself() {
    let folder = tempfile::tempdir().unwrap();
    let Some(python) = python_with_sources(&folder) else {
        return;
    };
    let alone = bench(&["--python", &python, "--workloads", "instances"]);
    assert_eq!(alone.status.code(), Some(1));
    assert!(said(&alone).contains("the extension can't be loaded here"), "{}", said(&alone));
    assert!(said(&alone).contains("no arm is left to compare with stock"), "{}", said(&alone));

    let kept = folder.path().join("trials").display().to_string();
    let output = bench(&[
        "--python",
        &python,
        "--rebuilt",
        PYTHON,
        "--workloads",
        "instances",
        "--blocks",
        "1",
        "--json",
        "-o",
        &kept,
    ]);
    assert!(output.status.success(), "{}", said(&output));
    assert!(said(&output).contains("no outcome is possible"), "{}", said(&output));
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["programs"][0]["name"], "instances");
    let comparisons = document["programs"][0]["trial"]["comparisons"].as_array().unwrap();
    let of = |metric: &str| comparisons.iter().find(|c| c["metric"] == metric).unwrap();
    assert!(of("total_s")["effect"].is_object(), "{}", of("total_s"));
    // The arm is the same interpreter, and one block decides nothing.
    assert_eq!(of("total_s")["outcome"], "unresolved");
    assert!(folder.path().join("trials/instances.trial").exists());
}
