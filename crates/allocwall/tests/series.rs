//! `allocwall diagnose --repeat`: windows of a running process and of a launched command, with one report at the end.

use serde_json::Value;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A process that is killed when the test ends, also by a panic.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A shell that uses CPU, starts no processes, and ends after one minute of CPU time.
fn busy() -> Running {
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -t 60; while :; do :; done"]).stdin(Stdio::null()).stdout(Stdio::null());
    Running(command.spawn().expect("a shell starts"))
}

fn command(state: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_allocwall"));
    command
        .args(["diagnose", "-d", "500ms"])
        .args(arguments)
        .env("XDG_STATE_HOME", state)
        .env_remove("COLUMNS")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn talk(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn document(output: &Output) -> Value {
    assert_eq!(output.status.code(), Some(0), "{}", talk(output));
    serde_json::from_slice(&output.stdout).expect("one JSON document")
}

fn recordings(state: &Path) -> usize {
    let folder = state.join("allocwall");
    std::fs::read_dir(&folder).map_or(0, |entries| entries.flatten().count())
}

#[test]
fn a_running_process_has_a_report_over_its_windows() {
    let (state, target) = (tempfile::tempdir().unwrap(), busy());
    let pid = target.0.id().to_string();
    let page = state.path().join("page.html");
    let options = ["-p", &pid, "--repeat", "2", "--every", "1s", "-o", &page.display().to_string()];
    let output = command(state.path(), &options).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", talk(&output));
    let written = std::fs::read_to_string(&page).unwrap();
    assert!(written.starts_with("<!DOCTYPE html>") && written.contains("Figures"), "{written}");
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    for part in ["2 windows · 0.5 s each, one every 1 s", "VERDICT", "WINDOWS", "WHAT GREW", "not judged: "]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    let talk = talk(&output);
    assert!(talk.contains("window 1 of 2: ") && talk.contains("window 2 of 2: "), "{talk}");
    assert_eq!(recordings(state.path()), 2, "{talk}");
}

#[test]
fn the_end_of_a_launched_command_ends_its_series() {
    let state = tempfile::tempdir().unwrap();
    let began = Instant::now();
    let script = ["--", "timeout", "3", "sh", "-c", "while :; do :; done"];
    let options = ["--json", "--repeat", "50", "--every", "800ms"];
    let output = command(state.path(), &[&options[..], &script[..]].concat()).output().unwrap();
    let document = document(&output);
    assert!(began.elapsed() < Duration::from_secs(30), "the series did not end with its target");
    let windows = document["windows"].as_array().unwrap();
    assert!((1..20).contains(&windows.len()), "{}", windows.len());
    assert!(document["ended"].as_str().is_some_and(|why| why.starts_with("the target ended")), "{document}");
    assert_eq!(
        (&document["format"], &document["planned"]),
        (&Value::from("allocwall-series"), &Value::from(50))
    );
    // The command was started once: its windows are of the same program.
    assert!(document["target"].as_str().is_some_and(|target| !target.is_empty()));
    for (nth, window) in windows.iter().enumerate() {
        assert_eq!(window["window"], nth as u64 + 1);
        assert!(nth == 0 || window["at_s"].as_f64() >= Some(0.5), "{window}");
    }
}

#[test]
fn an_interrupted_series_reports_its_windows() {
    use rustix::process::{Pid, Signal, kill_process};
    let (state, target) = (tempfile::tempdir().unwrap(), busy());
    let pid = target.0.id().to_string();
    let options = ["-p", &pid, "--json", "--repeat", "50", "--every", "1m"];
    let child = command(state.path(), &options).spawn().unwrap();
    let began = Instant::now();
    // A recording of the state directory is complete a moment later; then the series waits for a minute.
    while recordings(state.path()) == 0 && began.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(50));
    }
    std::thread::sleep(Duration::from_millis(2_500));
    kill_process(Pid::from_raw(child.id() as i32).unwrap(), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(began.elapsed() < Duration::from_secs(50), "it waited for the next window");
    let document = document(&output);
    assert_eq!(document["ended"], "interrupted");
    assert_eq!(document["windows"].as_array().map(Vec::len), Some(1));
}

#[test]
fn bad_options_of_a_series_are_usage() {
    let state = tempfile::tempdir().unwrap();
    for (options, words) in [
        (&["-p", "1", "--repeat", "1"][..], "2 to 500 windows"),
        (&["-p", "1", "--repeat", "0"], "2 to 500 windows"),
        (
            &["-p", "1", "--repeat", "3", "--every", "400ms"],
            "--every 400ms is shorter than a window of 500ms",
        ),
        (&["-p", "1", "--every", "5s"], "--repeat"),
        (&["-p", "1", "--repeat", "3", "-o", "file"], "-o NAME.html"),
    ] {
        let output = command(state.path(), options).output().unwrap();
        let talk = talk(&output);
        assert_eq!(output.status.code(), Some(2), "{options:?}: {talk}");
        assert!(talk.starts_with("error: ") && talk.contains(words), "{options:?}: {talk}");
        assert!(output.stdout.is_empty());
    }
    let gone = command(state.path(), &["-p", "4194305", "--repeat", "5"]).output().unwrap();
    assert_eq!((gone.status.code(), talk(&gone).lines().count()), (Some(1), 1), "{}", talk(&gone));
}
