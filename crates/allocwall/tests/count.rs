//! `allocwall count` from the command line: the exact numbers of a program whose calls are known, the formats, the folder that is
//! removed on every exit, and one error line for each refusal.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const BINARY: &str = env!("CARGO_BIN_EXE_allocwall");
/// Much longer than the end of a command takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// 5,000 blocks of 10,007 bytes that are freed at once, 1,000 of 20,011 bytes that another thread frees, and one that grows.
/// It waits a little, so that its code can be read while it runs.
const PROGRAM: &str = r#"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static char *blocks[1000];
static void *free_all(void *unused) {
    for (int i = 0; i < 1000; i++) free(blocks[i]);
    return unused;
}
int main(void) {
    usleep(200000);
    for (int i = 0; i < 5000; i++) {
        char *block = malloc(10007);
        block[i] = 1;
        free(block);
    }
    for (int i = 0; i < 1000; i++) {
        blocks[i] = malloc(20011);
        blocks[i][0] = 1;
    }
    pthread_t thread;
    pthread_create(&thread, NULL, free_all, NULL);
    pthread_join(thread, NULL);
    char *grows = NULL;
    for (int size = 40009; size < 50000; size += 1000) grows = realloc(grows, size);
    free(grows);
    puts("said by the command");
    fflush(stdout);
    usleep(300000);
    return 3;
}
"#;

/// A folder of a test, with caches and the compiled program.
struct Place(TempDir);

impl Place {
    fn new() -> Place {
        Place(tempfile::tempdir().expect("a temporary folder"))
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(BINARY);
        command
            .arg("count")
            .args(arguments)
            .env("XDG_CACHE_HOME", self.at("cache"))
            .env_remove("LD_PRELOAD")
            .env_remove("COLUMNS")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    fn count(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("the tool starts")
    }

    /// None, after the reason is printed, if there is no compiler.
    fn program(&self, flags: &[&str]) -> Option<String> {
        let (source, program) = (self.at("program.c"), self.at("program"));
        std::fs::write(&source, PROGRAM).expect("a file");
        let mut command = Command::new("cc");
        command
            .arg(&source)
            .arg("-o")
            .arg(&program)
            .args(["-O0", "-g", "-pthread", "-fno-builtin"])
            .args(flags);
        match command.output() {
            Ok(output) if output.status.success() => Some(program.to_str().expect("UTF-8").to_owned()),
            Ok(output) => panic!("{}", text(&output.stderr)),
            Err(error) => {
                println!("skipped: cc: {error}");
                None
            }
        }
    }

    fn document(&self, arguments: &[&str]) -> Value {
        let output = self.count(arguments);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("a JSON document")
    }

    /// Exit status `code`, no data, one error line that contains `words`.
    fn refused(&self, arguments: &[&str], code: i32, words: &str) {
        assert_refused(&self.count(arguments), code, words);
    }
}

fn assert_refused(output: &Output, code: i32, words: &str) {
    let talk = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{talk}");
    assert!(talk.starts_with("error: ") && talk.contains(words), "{words:?} in {talk:?}");
    assert_eq!(talk.lines().count(), 1, "{talk}");
    assert!(output.stdout.is_empty(), "{}", text(&output.stdout));
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("no number: {value}"))
}

/// Allocations in the class of this size, of the first process.
fn of_size(document: &Value, size: u64) -> u64 {
    let classes = document["processes"][0]["classes"].as_array().expect("classes");
    let holds = |class: &&Value| {
        number(&class["from_bytes"]) <= size && class["to_bytes"].as_u64().is_none_or(|to| size <= to)
    };
    classes.iter().find(holds).map_or(0, |class| number(&class["calls"]))
}

#[test]
fn calls_are_counted_exactly_and_sampled() {
    let place = Place::new();
    let Some(program) = place.program(&[]) else { return };
    let document = place.document(&["--every", "4K", "--per-request", "100", "--json", "--", &program]);
    let counted = |document: &Value| {
        assert_eq!((of_size(document, 10_007), of_size(document, 20_011)), (5000, 1000), "{document}");
        let calls = &document["calls"];
        let resized = number(&calls["in_place"]) + number(&calls["moved"]) + number(&calls["remapped"]);
        assert_eq!((number(&calls["realloc_new"]), resized), (1, 9), "{calls}");
        assert!((6001..6100).contains(&number(&calls["frees"])), "{calls}");
        assert!(document["processes"][0]["threads"].as_array().is_some_and(|threads| threads.len() >= 2));
    };
    counted(&document);
    assert_eq!(document["ended"]["status"], "exit status: 3");
    assert_eq!(
        (&document["work"]["judgement"], number(&document["work"]["units"])),
        (&"possible".into(), 100)
    );
    // A sixth of the frees is another thread's. On a busy machine some twenty were sampled, by chance none of these.
    let remote = &document["estimates"]["remote_share"];
    let end = |name: &str| remote[name].as_f64().unwrap_or_else(|| panic!("no share: {remote}"));
    assert!(end("low") < 0.4 && end("high") > 0.1, "{remote}");

    // Without samples, the numbers are the same.
    let exact = place.document(&["--exact", "--json", "--", &program]);
    counted(&exact);
    assert_eq!(exact["estimates"]["absent"]["reason"], "disabled", "{exact}");
    assert_eq!(exact["work"]["absent"]["reason"], "not_applicable");
}

#[test]
fn the_report_is_on_stdout_and_the_commands_output_on_stderr() {
    let place = Place::new();
    let Some(program) = place.program(&[]) else { return };
    let output = place.count(&["--", &program]);
    let (report, talk) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{talk}");
    for part in
        ["allocwall count", "exit status: 3", "calls a second", "CALLS", "4 to 32 KiB", "THREADS", "LIMITS"]
    {
        assert!(report.contains(part), "{part}: {report}");
    }
    assert!(
        talk.contains("said by the command") && !report.contains("said by the command"),
        "{talk}{report}"
    );
    assert!(report.lines().all(|line| line.chars().count() <= 100), "{report}");
}

#[test]
fn stacks_are_collapsed_or_a_profile() {
    let place = Place::new();
    let Some(program) = place.program(&[]) else { return };
    let output = place.count(&["--every", "4K", "-f", "collapsed", "--", &program]);
    let stacks = text(&output.stdout);
    assert!(
        stacks.lines().any(|line| line.starts_with("program (pid ") && line.contains(";main")),
        "{stacks}"
    );
    for line in stacks.lines() {
        assert!(line.rsplit_once(' ').is_some_and(|(_, calls)| calls.parse::<u64>().is_ok()), "{line}");
    }
    let profile = place.at("profile.gz");
    let output = place.count(&["-f", "pprof", "-o", profile.to_str().expect("UTF-8"), "--", &program]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(output.stdout.is_empty());
    let profile = std::fs::read(profile).expect("a profile");
    // RFC 1952: identification and deflate.
    assert_eq!(profile[..3], [0x1f, 0x8b, 8]);
}

#[test]
fn the_library_is_preloaded_before_others_and_its_folder_is_removed() {
    let place = Place::new();
    let script = "echo $LD_PRELOAD; echo $ALLOCWALL_COUNT";
    let mut command = place.command(&["--", "sh", "-c", script]);
    let output = command.env("LD_PRELOAD", "libm.so.6").output().expect("the tool starts");
    let talk = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{talk}");
    let said: Vec<&str> = talk.lines().collect();
    let [preloads, folder] = said[..] else { panic!("{talk}") };
    assert!(preloads.starts_with(place.at("cache").to_str().expect("UTF-8")), "{preloads}");
    assert!(preloads.ends_with(":libm.so.6"), "{preloads}");
    assert!(folder.starts_with('/') && !Path::new(folder).exists(), "{folder}");
}

/// A command that prints the folder of its counts, and runs on.
fn running(place: &Place) -> (Child, PathBuf) {
    let mut child = place
        .command(&["--", "sh", "-c", "echo $ALLOCWALL_COUNT; exec sleep 60"])
        .spawn()
        .expect("the tool starts");
    let mut line = String::new();
    let mut stderr = BufReader::new(child.stderr.take().expect("a pipe"));
    stderr.read_line(&mut line).expect("its first line");
    child.stderr = Some(stderr.into_inner());
    let folder = PathBuf::from(line.trim_end());
    assert!(folder.is_dir(), "{line}");
    // The file of the shell is there soon.
    std::thread::sleep(Duration::from_millis(300));
    (child, folder)
}

fn signal(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(child.id().cast_signed()).expect("a process");
    kill_process(pid, signal).expect("our own child");
}

#[test]
fn after_an_interrupt_what_was_counted_is_reported() {
    let place = Place::new();
    let (mut child, folder) = running(&place);
    signal(&child, Signal::INT);
    let mut report = String::new();
    child.stdout.take().expect("a pipe").read_to_string(&mut report).expect("UTF-8");
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
    assert!(report.contains("interrupted: the command was ended") && report.contains("CALLS"), "{report}");
    assert!(!folder.exists());
}

#[test]
fn a_killed_tool_leaves_no_folder() {
    let place = Place::new();
    let (mut child, folder) = running(&place);
    signal(&child, Signal::KILL);
    child.wait().expect("it ends");
    let began = Instant::now();
    while folder.exists() {
        assert!(began.elapsed() < PATIENCE, "{}", folder.display());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_time_limit_ends_the_command() {
    let place = Place::new();
    let began = Instant::now();
    let document = place.document(&["-d", "500ms", "--json", "--", "sh", "-c", "sleep 60; echo"]);
    assert!(began.elapsed() < PATIENCE);
    assert_eq!(document["ended"]["kind"], "complete");
    let length = document["length_s"].as_f64().expect("a length");
    assert!(length >= 0.5, "{length}");
}

#[test]
fn what_cannot_be_counted_is_refused_in_one_line() {
    let place = Place::new();
    place.refused(&[], 2, "no target given");
    place.refused(&["--exact", "-f", "collapsed", "--", "true"], 2, "leave out --exact");
    place.refused(&["--", "/nonexistent/program"], 1, "/nonexistent/program");
    place.refused(&["--", "env", "-i", "true"], 1, "removes LD_PRELOAD");
    place.refused(&["--", "env", "LD_PRELOAD=", "true"], 1, "sets or removes LD_PRELOAD");
    place.refused(&["-o", "/nonexistent/report", "--", "true"], 1, "/nonexistent");
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -f 1; exec \"$0\" count -- true", BINARY]).stdin(Stdio::null());
    assert_refused(&limited.output().expect("a shell"), 1, "ulimit -f");
}

#[test]
fn a_static_program_is_refused() {
    let place = Place::new();
    let source = place.at("static.c");
    let program = place.at("static");
    std::fs::write(&source, "int main(void) { return 0; }").expect("a file");
    let built = Command::new("cc").arg("-static").arg(&source).arg("-o").arg(&program).output();
    if !built.is_ok_and(|output| output.status.success()) {
        return println!("skipped in part: nothing links statically here");
    }
    place.refused(&["--", program.to_str().expect("UTF-8")], 1, "statically linked");
}
