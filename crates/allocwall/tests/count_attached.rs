//! `allocwall count -p` from the command line: the rates and sizes of programs whose calls are known, a program without calls, the end
//! of a process and of a count, and one error line for each refusal.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const BINARY: &str = env!("CARGO_BIN_EXE_allocwall");
/// Much longer than any count here.
const PATIENCE: Duration = Duration::from_secs(60);

/// Works all the time, and each 50 µs allocates and frees a block: three of 100 bytes, then one of 3,000. With an argument it
/// allocates nothing. SIGTERM ends it; it prints its pairs of calls, and the seconds.
const PROGRAM: &str = r#"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
static volatile sig_atomic_t ended;
static void end(int unused) { ended = 1; }
static long now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000L + time.tv_nsec;
}
static void serve(long nth) {
    char *block = malloc(nth % 4 == 3 ? 3000 : 100);
    block[0] = 1;
    free(block);
}
int main(int count, char **unused) {
    signal(SIGTERM, end);
    long began = now(), pairs = 0, over;
    while (!ended && (over = now() - began) < 60000000000L) {
        if (count > 1 || over < pairs * 50000) continue;
        serve(pairs++);
    }
    printf("%ld %f\n", pairs, (now() - began) / 1e9);
    return 0;
}
"#;

/// A program that runs, and ends with this value.
struct Running(Child);

impl Running {
    fn pid(&self) -> String {
        self.0.id().to_string()
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.0.id().cast_signed()).expect("a process");
        kill_process(pid, signal).expect("our own child");
    }

    /// Pairs of calls a second, as the program counted them.
    fn finish(mut self) -> f64 {
        self.signal(Signal::TERM);
        let mut text = String::new();
        self.0.stdout.take().expect("a pipe").read_to_string(&mut text).expect("UTF-8");
        let (pairs, seconds) = text.trim().split_once(' ').expect("two numbers");
        pairs.parse::<f64>().expect("a number") / seconds.parse::<f64>().expect("a number")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Place(TempDir);

impl Place {
    fn new() -> Place {
        Place(tempfile::tempdir().expect("a temporary folder"))
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The compiled program. None, after the reason is printed, if it can't be built.
    fn program(&self, flags: &[&str]) -> Option<PathBuf> {
        let (source, program) = (self.at("program.c"), self.at("program"));
        std::fs::write(&source, PROGRAM).expect("a file");
        let mut command = Command::new("cc");
        command.arg(&source).arg("-o").arg(&program).args(["-O0", "-g", "-fno-builtin"]).args(flags);
        match command.output() {
            Ok(output) if output.status.success() => Some(program),
            Ok(_) if flags.contains(&"-static") => {
                println!("skipped in part: nothing links statically here");
                None
            }
            Ok(output) => panic!("{}", text(&output.stderr)),
            Err(error) => {
                println!("skipped: cc: {error}");
                None
            }
        }
    }

    fn start(&self, flags: &[&str], arguments: &[&str]) -> Option<Running> {
        let program = self.program(flags)?;
        let child = Command::new(program)
            .args(arguments)
            .env_remove("LD_PRELOAD")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts");
        // Past its loader.
        std::thread::sleep(Duration::from_millis(200));
        Some(Running(child))
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
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

/// Whether uprobes can be set; prints the reason if not.
fn permitted() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        println!("skipped: needs root for uprobes");
    }
    is_root
}

/// The document. None, after the reason is printed, if even root may not set uprobes.
fn document(output: &Output) -> Option<Value> {
    let talk = text(&output.stderr);
    if talk.contains("permitted") || talk.contains("no uprobes") {
        println!("skipped: {}", talk.trim());
        return None;
    }
    assert_eq!(output.status.code(), Some(0), "{talk}");
    Some(serde_json::from_slice(&output.stdout).expect("a JSON document"))
}

fn assert_refused(output: &Output, code: i32, words: &str) {
    let talk = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{talk}");
    assert!(talk.starts_with("error: ") && talk.contains(words), "{words:?} in {talk:?}");
    assert_eq!(talk.lines().count(), 1, "{talk}");
    assert!(output.stdout.is_empty(), "{}", text(&output.stdout));
}

fn interval(value: &Value) -> (f64, f64, f64) {
    let of = |name: &str| value[name].as_f64().unwrap_or_else(|| panic!("no interval: {value}"));
    (of("low"), of("point"), of("high"))
}

/// The part of the blocks in the row of this size.
fn share_of(document: &Value, size: u64) -> (f64, f64, f64) {
    let holds = |row: &&Value| {
        let above = row["above_bytes"].as_u64().expect("a size");
        above < size && row["up_to_bytes"].as_u64().is_none_or(|up_to| size <= up_to)
    };
    let row = document["sizes"].as_array().expect("rows").iter().find(holds);
    interval(&row.unwrap_or_else(|| panic!("no row of {size}: {document}"))["share"])
}

#[test]
fn rates_and_sizes_are_those_of_the_program() {
    let place = Place::new();
    if !permitted() {
        return;
    }
    let Some(running) = place.start(&[], &[]) else { return };
    let output = place.count(&["-p", &running.pid(), "-d", "5", "--json"]);
    let Some(document) = document(&output) else { return };
    let truth = 2.0 * running.finish();
    let (low, point, high) = interval(&document["calls_per_s"]);
    assert!(low <= point && point <= high, "{document}");
    // What delays the program, or the tool, by a tenth is no error of the count.
    assert!(low * 0.9 <= truth && truth <= high * 1.1, "{truth}: {low} {point} {high}");
    for (size, part) in [(100, 0.75), (3000, 0.25)] {
        let (low, point, high) = share_of(&document, size);
        let near = (point - part).abs() <= 0.05;
        assert!(near || (low <= part && part <= high), "{size}: {low} {point} {high}");
    }
    // The budget is 1 %. A burst that is interrupted on a busy machine takes more than planned.
    let (_, cost, _) = interval(&document["cost"]["share"]);
    assert!(cost > 0.0 && cost < 0.015, "{cost}");
    let functions = document["functions"].as_array().expect("call sites");
    assert_eq!(functions.first().map(|site| &site["function"]), Some(&"serve".into()), "{document}");
    assert_eq!(document["lifetimes"]["absent"]["reason"], "not_supported");
    assert_eq!(document["processes"][0]["allocator"].as_str().map(|path| path.contains("libc")), Some(true));
}

#[test]
fn a_program_without_calls_is_no_row_of_zeros() {
    let place = Place::new();
    if !permitted() {
        return;
    }
    let Some(running) = place.start(&[], &["silent"]) else { return };
    let output = place.count(&["-p", &running.pid(), "-d", "2", "--json"]);
    let talk = text(&output.stderr);
    if talk.contains("permitted") || talk.contains("no uprobes") {
        return println!("skipped: {}", talk.trim());
    }
    assert_refused(&output, 1, "no call was counted");
    assert!(talk.contains("met none"), "{talk}");
}

#[test]
fn the_end_of_the_process_and_an_interrupt_end_the_count() {
    let place = Place::new();
    if !permitted() {
        return;
    }
    let Some(running) = place.start(&[], &[]) else { return };
    let (began, target) = (Instant::now(), running.pid());
    let arguments = ["-p", &target, "-d", "600", "--json"];
    let counting = place.command(&arguments).spawn().expect("the tool starts");
    std::thread::sleep(Duration::from_secs(3));
    let pid = Pid::from_raw(counting.id().cast_signed()).expect("a process");
    kill_process(pid, Signal::INT).expect("our own child");
    let Some(interrupted) = document(&counting.wait_with_output().expect("it ends")) else { return };
    assert_eq!(interrupted["ended"]["kind"], "interrupted");

    let counting = place.command(&arguments).spawn().expect("the tool starts");
    std::thread::sleep(Duration::from_secs(3));
    running.finish();
    let Some(ended) = document(&counting.wait_with_output().expect("it ends")) else { return };
    assert_eq!(ended["ended"]["kind"], "target_exited");
    assert_eq!(ended["processes"][0]["ended"], true);
    assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
}

#[test]
fn a_report_and_stacks_are_printed() {
    let place = Place::new();
    if !permitted() {
        return;
    }
    let Some(running) = place.start(&[], &[]) else { return };
    let mut output = place.count(&["-p", &running.pid(), "-d", "3"]);
    if text(&output.stdout).contains("Too few bursts") {
        // On a busy machine the program may wait for a CPU in most of them.
        output = place.count(&["-p", &running.pid(), "-d", "12"]);
    }
    let (report, talk) = (text(&output.stdout), text(&output.stderr));
    if talk.contains("permitted") || talk.contains("no uprobes") {
        return println!("skipped: {}", talk.trim());
    }
    assert_eq!(output.status.code(), Some(0), "{talk}");
    for part in ["calls a second", "CALLS", "malloc", "SIZES", "64 to 128 B", "CALL SITES", "serve", "LIMITS"]
    {
        assert!(report.contains(part), "{part}: {report}");
    }
    assert!(report.lines().all(|line| line.chars().count() <= 100), "{report}");
    let output = place.count(&["-p", &running.pid(), "-d", "3", "-f", "collapsed"]);
    let stacks = text(&output.stdout);
    assert!(
        stacks.lines().any(|line| line.starts_with("program (pid ") && line.contains(";main;serve ")),
        "{stacks}"
    );
}

#[test]
fn a_static_program_is_counted_by_its_symbols_and_refused_without_them() {
    let place = Place::new();
    if !permitted() {
        return;
    }
    let Some(running) = place.start(&["-static"], &[]) else { return };
    let output = place.count(&["-p", &running.pid(), "-d", "2", "--json"]);
    let Some(document) = document(&output) else { return };
    assert!(document["processes"][0]["allocator"].as_str().is_some_and(|path| path.ends_with("/program")));
    drop(running);
    let Some(running) = place.start(&["-static", "-s"], &[]) else { return };
    assert_refused(&place.count(&["-p", &running.pid(), "-d", "2"]), 1, "symbols");
}

#[test]
fn what_cannot_be_counted_is_refused_in_one_line() {
    let place = Place::new();
    let own = std::process::id().to_string();
    for (option, words) in [
        (&["--exact"][..], "--exact needs a command"),
        (&["--every", "1M"][..], "--every needs a command"),
        (&["--per-request", "9"][..], "--per-request needs a command"),
        (&["--live"][..], "--live needs a command"),
        (&["-f", "pprof"][..], "--format pprof needs a command"),
        (&["--", "true"][..], "either processes"),
    ] {
        let arguments = [&["-p", &own][..], option].concat();
        assert_refused(&place.count(&arguments), 2, words);
    }
    // Above the largest number that Linux gives a process.
    assert_refused(&place.count(&["-p", "2000000000"]), 1, "no process 2000000000");
}
