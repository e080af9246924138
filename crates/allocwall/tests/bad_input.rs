//! Errors: one clear line and an exit status, no file lost, no process or file left behind.
//!
//! The tests make their own files and devices: a failing test that runs as root must not destroy those of the
//! machine.

#[path = "common/running.rs"]
mod running;

use running::Running;
use serde_json::Value;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const BINARY: &str = env!("CARGO_BIN_EXE_allocwall");
/// Much longer than any of these commands takes, much shorter than the time limit of a test run.
const PATIENCE: Duration = Duration::from_secs(60);

impl Running {
    fn start(program: impl AsRef<OsStr>, arguments: &[&str]) -> Running {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null());
        let running = Running(command.spawn().expect("a program starts"));
        std::thread::sleep(Duration::from_millis(200));
        running
    }

    /// A shell that uses CPU, starts no processes, and ends after one minute of CPU time.
    fn busy() -> Running {
        Running::start("sh", &["-c", "ulimit -t 60; while :; do :; done"])
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

fn command(state: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(BINARY);
    command
        .args(arguments)
        .env("XDG_STATE_HOME", state)
        .env_remove("COLUMNS")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn finish(mut command: Command) -> Output {
    let child = command.spawn().expect("the tool starts");
    end_of(child)
}

fn end_of(child: Child) -> Output {
    let pid = rustix::process::Pid::from_raw(child.id() as i32).unwrap();
    let (done, waiting) = std::sync::mpsc::channel();
    let watch = std::thread::spawn(move || {
        if waiting.recv_timeout(PATIENCE).is_err() {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    });
    let output = child.wait_with_output().expect("its output");
    let _ = done.send(());
    let _ = watch.join();
    output
}

fn tool(arguments: &[&str]) -> Output {
    let state = folder();
    finish(command(state.path(), arguments))
}

fn talk(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("talk is UTF-8")
}

fn data(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("data is UTF-8")
}

/// Exit status `code`, no data, and a first line on stderr that contains `words`. Unless it is a usage error, stderr
/// has only this line.
fn assert_refused(output: &Output, code: i32, words: &str) {
    let talk = talk(output);
    let first = talk.lines().next().unwrap_or_default();
    assert_eq!(output.status.code(), Some(code), "{talk}");
    assert!(first.starts_with("error: ") && first.contains(words), "{words:?} in {talk:?}");
    assert!(output.stdout.is_empty(), "data: {}", data(output));
    if code == 1 {
        assert_eq!(talk.lines().count(), 1, "{talk}");
    }
    // The message must not repeat the cause.
    let (head, tail) = first.rsplit_once(": ").unwrap_or_default();
    assert!(!head.ends_with(tail), "{first}");
}

fn refused(arguments: &[&str], code: i32, words: &str) {
    assert_refused(&tool(arguments), code, words);
}

/// A diagnosis with exit status 0.
fn assert_diagnosed(output: &Output) {
    assert_eq!(output.status.code(), Some(0), "{}", talk(output));
    assert!(!output.stdout.is_empty(), "no data; {}", talk(output));
}

fn path(path: &Path) -> &str {
    path.to_str().expect("a path of this test")
}

fn record(pid: &str, to: &Path) {
    let output = tool(&["diagnose", "-p", pid, "-d", "500ms", "-o", path(to)]);
    assert_diagnosed(&output);
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn processes_that_cannot_be_diagnosed() {
    // Above the kernel's largest pid_max (2^22).
    refused(&["diagnose", "-p", "4194305", "-d", "1"], 1, "no process 4194305");
    for text in ["0", "-1", "abc", "99999999999", "", "1.5", "1,x"] {
        refused(&["diagnose", "-p", text, "-d", "1"], 2, "a process id is a whole number above 0");
    }
    // A test runs in a thread: PID/task/TID.
    let own = fs::read_link("/proc/thread-self").unwrap();
    let tid = own.file_name().unwrap().to_str().unwrap();
    refused(&["diagnose", "-p", tid, "-d", "1"], 1, "is a thread of process");
    match fs::read_to_string("/proc/2/comm") {
        Ok(comm) if comm.trim() == "kthreadd" => {
            refused(&["diagnose", "-p", "2", "-d", "1"], 1, "kernel thread")
        }
        _ => println!("skipped: no kernel thread is visible here"),
    }
    refused(&["diagnose", "--cgroup", "/no/such/group", "-d", "1"], 1, "/no/such/group");
    refused(&["diagnose", "--cgroup", "../../etc", "-d", "1"], 1, "..");
}

#[test]
fn another_users_process_is_not_permitted() {
    if !is_root() {
        println!("skipped: needs root to become somebody else");
        return;
    }
    let (place, target) = (folder(), Running::busy());
    let output = as_nobody(place.path(), &["diagnose", "-p", &target.pid(), "-d", "1"]);
    let Some(output) = output else { return };
    assert_refused(&output, 1, "not permitted");
    assert!(talk(&output).contains("run as root"), "{}", talk(&output));
}

/// Runs a copy of allocwall as the user nobody. Prints the reason and returns None if setpriv cannot start.
fn as_nobody(place: &Path, arguments: &[&str]) -> Option<Output> {
    fs::set_permissions(place, fs::Permissions::from_mode(0o755)).unwrap();
    let copy = place.join("allocwall");
    fs::copy(BINARY, &copy).unwrap();
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).unwrap();
    let state = place.join("state");
    fs::create_dir_all(&state).unwrap();
    fs::set_permissions(&state, fs::Permissions::from_mode(0o777)).unwrap();
    let mut run = Command::new("setpriv");
    run.args(["--reuid=65534", "--regid=65534", "--clear-groups", path(&copy)])
        .args(arguments)
        .env("XDG_STATE_HOME", &state)
        .env_remove("COLUMNS")
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    match run.spawn() {
        Ok(child) => Some(end_of(child)),
        Err(e) => {
            println!("skipped: setpriv: {e}");
            None
        }
    }
}

#[test]
fn commands_that_do_not_start() {
    let place = folder();
    let plain = place.path().join("plain");
    fs::write(&plain, "no program").unwrap();
    for (command, words) in [
        ("/nonexistent/program", "(os error 2)"),
        ("no-such-command-anywhere", "(os error 2)"),
        (path(&plain), "(os error 13)"),
        (path(place.path()), "(os error 13)"),
    ] {
        let output = tool(&["diagnose", "-d", "1", "--", command]);
        assert_refused(&output, 1, words);
        assert!(talk(&output).contains(command), "{}", talk(&output));
    }
    for nothing in [&["diagnose"][..], &["diagnose", "-d", "1", "--"]] {
        refused(nothing, 2, "no target given");
    }
    let setuid = place.path().join("setuid");
    fs::copy("/bin/true", &setuid).unwrap();
    fs::set_permissions(&setuid, fs::Permissions::from_mode(0o4755)).unwrap();
    refused(&["diagnose", "-d", "1", "--", path(&setuid)], 1, "set-user-ID");
}

#[test]
fn durations_and_contradictions_are_usage() {
    for time in ["0", "-1", "-1s", "1ms", "3601", "99999999999", "1e9", "NaN", "inf", "2h", "", "1s2"] {
        refused(&["diagnose", "-p", "1", "-d", time], 2, "--duration");
    }
    for both in [
        &["diagnose", "file", "-p", "1"][..],
        &["diagnose", "file", "--cgroup", "/x"],
        &["diagnose", "-p", "1", "--cgroup", "/x"],
        &["diagnose", "-p", "1", "--", "true"],
        &["diagnose", "file", "--", "true"],
        &["diagnose", "file", "-d", "2"],
        &["diagnose", "file", "-o", "other"],
        &["diagnose", "-p", "1", "--keep-running"],
    ] {
        let output = tool(both);
        assert_eq!(output.status.code(), Some(2), "{both:?}: {}", talk(&output));
        assert!(talk(&output).starts_with("error: "), "{}", talk(&output));
    }
}

#[test]
fn outputs_that_cannot_be_written_change_no_file() {
    let (place, target) = (folder(), Running::busy());
    let at = |name: &str| place.path().join(name);
    fs::write(at("notes.txt"), "mine").unwrap();
    std::os::unix::fs::symlink(at("notes.txt"), at("link")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        at("pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    // A device like /dev/full, made by this test.
    let device = rustix::fs::mknodat(
        rustix::fs::CWD,
        at("full"),
        rustix::fs::FileType::CharacterDevice,
        rustix::fs::Mode::from_raw_mode(0o600),
        rustix::fs::makedev(1, 7),
    );
    if device.is_err() {
        println!("skipped in part: no device can be made here");
    }
    let before = listing(place.path());
    let pid = target.pid();
    let ask = |to: &Path| tool(&["diagnose", "-p", &pid, "-d", "500ms", "-o", path(to)]);
    assert_refused(&ask(&at("missing/x")), 1, "(os error 2)");
    assert_refused(&ask(&at("notes.txt")), 1, "not a recording");
    for name in ["link", "pipe", "full"] {
        if at(name).symlink_metadata().is_ok() {
            assert_refused(&ask(&at(name)), 1, "not a regular file");
        }
    }
    assert_refused(&ask(place.path()), 1, "not a regular file");
    assert_eq!(fs::read(at("notes.txt")).unwrap(), b"mine");
    assert_eq!(listing(place.path()), before);

    // A failed diagnosis does not replace an earlier recording.
    let recording = at("a.allocwall");
    record(&pid, &recording);
    let kept = fs::read(&recording).unwrap();
    refused(&["diagnose", "-p", "4194305", "-o", path(&recording)], 1, "no process");
    assert_eq!(fs::read(&recording).unwrap(), kept);
    assert_eq!(fs::metadata(&recording).unwrap().permissions().mode() & 0o777, 0o600);
    record(&pid, &recording);
    assert_ne!(fs::read(&recording).unwrap(), kept);
}

/// Names and file types, to detect lost or replaced files.
fn listing(place: &Path) -> Vec<(PathBuf, u32)> {
    let mut found: Vec<_> = fs::read_dir(place)
        .unwrap()
        .flatten()
        .map(|e| (e.path(), e.path().symlink_metadata().unwrap().permissions().mode()))
        .collect();
    found.sort();
    found
}

#[test]
fn a_full_disk_loses_only_the_file() {
    let (place, target) = (folder(), Running::busy());
    // A separate mount namespace: the mount is private and ends with it.
    let script = "mount -t tmpfs -o size=4k none \"$1\" 2>/dev/null || exit 77; \
                  exec \"$0\" diagnose -p \"$2\" -d 2 -o \"$1/r\"";
    let mut run = Command::new("unshare");
    run.args(["-m", "sh", "-c", script, BINARY, path(place.path()), &target.pid()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let output = match run.spawn() {
        Ok(child) => end_of(child),
        Err(e) => return println!("skipped: unshare: {e}"),
    };
    if output.status.code() == Some(77) || talk(&output).starts_with("unshare:") {
        return println!("skipped: mounting is not permitted here");
    }
    // The report is there, but not the recording that was asked for.
    assert_eq!(output.status.code(), Some(1), "{}", talk(&output));
    assert!(data(&output).contains("VERDICT"), "{}", data(&output));
    let talk = talk(&output);
    assert!(
        talk.contains("warning: ")
            && talk.contains("(os error 28)")
            && talk.contains("diagnosis is complete"),
        "{talk}"
    );
}

#[test]
fn a_full_stdout_is_a_failure_and_a_closed_pipe_is_not() {
    let run = |stdout: Stdio| {
        let mut check = command(folder().path(), &["check"]);
        check.stdout(stdout);
        finish(check)
    };
    let full = fs::OpenOptions::new().write(true).open("/dev/full").expect("/dev/full");
    assert_refused(&run(full.into()), 1, "cannot write to standard output");
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let left = run(writer.into());
    assert_eq!((left.status.code(), talk(&left).as_str()), (Some(0), ""));
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}", talk(output)))
}

#[test]
fn fail_on_applies_if_there_is_nothing_to_verify() {
    // No remedy for application locks can be applied when the command is started. Whether they are a wall depends on
    // other work on this machine, so the expected status comes from the same recording.
    let folder = folder();
    let file = folder.path().join("looked");
    let file = file.to_str().unwrap();
    let command = ["--", BINARY, "subject", "application-mutex", "--seconds", "5"];
    let verify = |options: &[&str]| {
        let output = tool(&[&["diagnose", "-d", "1", "--verify"], options, &command].concat());
        assert!(talk(&output).contains("nothing to verify"), "{}", talk(&output));
        output.status.code()
    };
    let page = folder.path().join("page.html");
    assert_eq!(verify(&["-o", path(&page)]), Some(0));
    let page = fs::read_to_string(page).unwrap();
    assert!(page.contains("no offered remedy can be applied"), "{page}");
    let status = verify(&["--fail-on", "wall", "-o", file]);
    assert_eq!(status, tool(&["diagnose", file, "--fail-on", "wall"]).status.code());
}

#[test]
fn targets_that_end_within_the_window() {
    for (script, told) in [
        ("exit 3", "3"),
        ("sleep 0.3; exit 5", "5"),
        ("i=0; while [ $i -lt 30000 ]; do i=$((i+1)); done; kill -9 $$", "9"),
    ] {
        let began = Instant::now();
        let output = tool(&["diagnose", "-d", "20", "--", "sh", "-c", script]);
        // So short a program may end between two samples. If it was on CPU most of its life, that is not enough for a verdict.
        if !data(&output).contains("there is no CPU sample of the target") {
            assert_diagnosed(&output);
        }
        assert!(began.elapsed() < Duration::from_secs(15), "the window did not end with the target");
        let text = data(&output);
        let line = text.lines().find(|l| l.contains("exit") || l.contains("ended"));
        assert!(line.is_some_and(|l| l.contains(told)), "{script}: expected the exit and {told:?} in {text}");
    }
    // Attached: killed from outside.
    let mut target = Running::busy();
    let mut looking = command(folder().path(), &["diagnose", "-p", &target.pid(), "-d", "20", "--json"]);
    let child = looking.spawn().unwrap();
    std::thread::sleep(Duration::from_millis(1500));
    target.0.kill().unwrap();
    target.0.wait().unwrap();
    let output = end_of(child);
    assert_diagnosed(&output);
    let text = json(&output).to_string();
    assert!(text.contains("target_exited"), "{text}");
}

fn exists(pid: i32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

/// Starts a long diagnosis of a launched command, waits until the command runs, and returns its pid.
#[allow(clippy::zombie_processes, reason = "the caller waits for it")]
fn launching(state: &Path, to: &Path, options: &[&str]) -> (Child, i32) {
    let note = to.with_extension("pid");
    let script = format!("ulimit -t 60; echo $$ > '{}'; while :; do :; done", note.display());
    let mut arguments = vec!["diagnose", "-d", "50", "-o", path(to)];
    arguments.extend(options);
    arguments.extend(["--", "sh", "-c", &script]);
    let tool = command(state, &arguments).spawn().unwrap();
    let began = Instant::now();
    loop {
        let pid = fs::read_to_string(&note).ok().and_then(|t| t.trim().parse().ok());
        if let Some(pid) = pid {
            return (tool, pid);
        }
        assert!(began.elapsed() < PATIENCE, "the command never ran");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn an_interrupted_diagnosis_reports_and_ends_the_command() {
    use rustix::process::{Pid, Signal, kill_process};
    for signal in [Signal::INT, Signal::TERM] {
        let place = folder();
        let file = place.path().join("r");
        let (tool, pid) = launching(place.path(), &file, &[]);
        std::thread::sleep(Duration::from_millis(2500));
        kill_process(Pid::from_raw(tool.id() as i32).unwrap(), signal).unwrap();
        let output = end_of(tool);
        assert_diagnosed(&output);
        assert!(talk(&output).contains("interrupted"), "{}", talk(&output));
        assert!(!exists(pid), "the launched command is still there");
        let replayed = tool_json(&["report", path(&file), "--format", "json"]);
        assert!(replayed.to_string().contains("\"interrupted\""), "{replayed}");
    }
}

/// Whether the process runs. A zombie does not: its new parent may reap it late.
fn runs(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with('Z'))
}

#[test]
fn a_launched_command_ends_with_a_killed_diagnosis_unless_keep_running() {
    use rustix::process::{Pid, Signal, kill_process};
    for kept in [false, true] {
        let place = folder();
        let options: &[&str] = if kept { &["--keep-running"] } else { &[] };
        let (tool, pid) = launching(place.path(), &place.path().join("r"), options);
        let mut tool = Running(tool);
        tool.0.kill().unwrap();
        tool.0.wait().unwrap();
        let began = Instant::now();
        while runs(pid) && began.elapsed() < if kept { Duration::from_secs(1) } else { PATIENCE } {
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(runs(pid), kept, "--keep-running: {kept}");
        let _ = kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL);
    }
}

fn tool_json(arguments: &[&str]) -> Value {
    let output = tool(arguments);
    assert_diagnosed(&output);
    json(&output)
}

#[test]
fn the_recording_of_a_killed_diagnosis_can_be_reported() {
    let place = folder();
    let (file, target) = (place.path().join("r"), Running::busy());
    let arguments = ["diagnose", "-p", &target.pid(), "-d", "50", "-o", path(&file)];
    let mut tool = Running(command(place.path(), &arguments).spawn().unwrap());
    std::thread::sleep(Duration::from_millis(3500));
    tool.0.kill().unwrap();
    tool.0.wait().unwrap();
    let replayed = tool_json(&["report", path(&file), "--format", "json"]);
    assert!(replayed.to_string().contains("\"cut_off\""), "{replayed}");
    let text = self::tool(&["diagnose", path(&file)]);
    assert_diagnosed(&text);
    assert!(data(&text).contains("cut off"), "{}", data(&text));
    // What comes after its end is not the kernel's fault.
    let all = self::tool(&["diagnose", path(&file), "--all"]);
    assert!(!data(&all).contains("CONFIG_SCHED_INFO"), "{}", data(&all));
}

/// Loads libraries while it is recorded, and computes in them.
const LOADS_LATE: &str = "
import time
def busy(seconds, work):
    end = time.process_time() + seconds
    while time.process_time() < end: work()
busy(.8, lambda: sum(range(1000)))
import ctypes, ssl, _decimal
number = _decimal.Decimal(2)
busy(60, lambda: [number.sqrt() for _ in range(100)])
";

#[test]
fn the_recording_of_a_launched_command_can_be_reported_wherever_it_is_cut_off() {
    const PYTHON: &str = "/usr/bin/python3";
    if !Path::new(PYTHON).exists() {
        return println!("skipped: no {PYTHON}");
    }
    let place = folder();
    let [killed, whole, cut] = ["killed", "whole", "cut"].map(|name| place.path().join(name));
    let target = ["--", PYTHON, "-c", LOADS_LATE];
    let arguments = [&["diagnose", "-d", "50", "-o", path(&killed)], &target[..]].concat();
    let mut tool = Running(command(place.path(), &arguments).spawn().unwrap());
    std::thread::sleep(Duration::from_millis(4500));
    tool.0.kill().unwrap();
    tool.0.wait().unwrap();
    let text = self::tool(&["diagnose", path(&killed)]);
    assert_diagnosed(&text);
    assert!(data(&text).contains("cut off"), "{}", data(&text));
    // What was loaded last is known too. Without a tail, stacks have only their innermost function.
    let stacks = data(&self::tool(&["report", path(&killed), "--format", "collapsed"]));
    assert!(stacks.contains("[_decimal") || stacks.contains("[libmpdec"), "{stacks}");

    let arguments = [&["diagnose", "-d", "2", "-o", path(&whole)], &target[..]].concat();
    assert_diagnosed(&finish(command(place.path(), &arguments)));
    let bytes = fs::read(&whole).unwrap();
    let mut reported = 0;
    for length in (1..24).map(|nth| bytes.len() * nth / 24).chain([bytes.len() - 1]) {
        fs::write(&cut, &bytes[..length]).unwrap();
        let output = self::tool(&["report", path(&cut)]);
        match output.status.code() {
            Some(0) => reported += 1,
            _ => assert_refused(&output, 1, "cut off inside its first part"),
        }
    }
    assert!(reported > 12, "{reported} of 24 were read");
}

#[test]
fn files_that_are_not_recordings() {
    let (place, target) = (folder(), Running::busy());
    let good = place.path().join("good");
    record(&target.pid(), &good);
    let good = fs::read(good).unwrap();
    let header = b"allocwall\0".len();
    let newer = [&good[..header], &999_u16.to_le_bytes(), &good[header + 2..]].concat();
    let older = [&good[..header], &0_u16.to_le_bytes(), &good[header + 2..]].concat();
    let mut damaged = good.clone();
    damaged[header + 2 + 8 + 5] ^= 4;
    for (name, bytes, words) in [
        ("empty", &b""[..], "empty"),
        ("text", b"hello, world\n", "does not start with the header"),
        ("short", &good[..4], "ends inside its header"),
        ("header", &good[..header + 2], "no data"),
        ("cut", &good[..100], "cut off"),
        ("newer", &newer, "format 999, newer"),
        ("older", &older, "format 0"),
        ("damaged", &damaged, "damaged"),
    ] {
        let file = place.path().join(name);
        fs::write(&file, bytes).unwrap();
        for verb in ["diagnose", "report"] {
            refused(&[verb, path(&file)], 1, words);
        }
    }
    refused(&["report", path(place.path())], 1, "directory");
    refused(&["report", "/nonexistent"], 1, "(os error 2)");
    refused(
        &["diagnose", "no-such-name"],
        1,
        "there is no recording no-such-name; a process is given with -p PID",
    );
    // An endless file is rejected by its first bytes, so 64 MiB of address space are enough.
    let mut endless = Command::new("sh");
    endless
        .args(["-c", "ulimit -v 65536; exec \"$0\" report /dev/zero", BINARY])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    assert_refused(&finish(endless), 1, "does not start with the header");
}

#[test]
fn a_report_from_the_file_equals_the_live_report() {
    let (place, target) = (folder(), Running::busy());
    let file = place.path().join("r");
    let live = tool(&["diagnose", "-p", &target.pid(), "-d", "1", "--json", "-o", path(&file)]);
    assert_diagnosed(&live);
    let replayed = tool(&["diagnose", path(&file), "--json"]);
    let reported = tool(&["report", path(&file), "--format", "json"]);
    assert_eq!(data(&live), data(&replayed));
    assert_eq!(data(&live), data(&reported));
    if !is_root() {
        return println!("skipped in part: needs root to become somebody else");
    }
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    if let Some(theirs) = as_nobody(place.path(), &["report", path(&file), "--format", "json"]) {
        assert_eq!(data(&live), data(&theirs), "{}", talk(&theirs));
    }
}

/// Compiles a test program. Prints the reason and returns None if there is no compiler.
fn compiled(place: &Path, name: &str, source: &str, flags: &[&str]) -> Option<PathBuf> {
    let (code, program) = (place.join("source.c"), place.join(name));
    fs::write(&code, source).unwrap();
    let built = Command::new("cc")
        .arg(&code)
        .arg("-o")
        .arg(&program)
        .args(["-O1", "-g0", "-pthread"])
        .args(flags)
        .output();
    match built {
        Ok(output) if output.status.success() => Some(program),
        Ok(output) => panic!("{}", talk(&output)),
        Err(e) => {
            println!("skipped: cc: {e}");
            None
        }
    }
}

#[test]
fn hostile_names_reach_neither_terminal_nor_browser() {
    let place = folder();
    let source = r#"
        #include <sys/prctl.h>
        #include <unistd.h>
        void hostile(void) __asm__("\"<script>alert(1)</script>\033[31m\"");
        __attribute__((noinline)) void hostile(void) { for (volatile long i = 0; i < 100000000; i++); }
        int main(void) { prctl(PR_SET_NAME, "\033[2J<script>"); alarm(60); for (;;) hostile(); }
    "#;
    let Some(program) = compiled(place.path(), "<script>\u{1b}[1m", source, &[]) else {
        return;
    };
    let target = {
        let mut command = Command::new(&program);
        command.arg0("\u{1b}[5m<script>alert(2)</script>");
        command.arg("\u{1b}]0;title\u{7}<script>");
        Running(command.spawn().unwrap())
    };
    std::thread::sleep(Duration::from_millis(200));
    let file = place.path().join("r");
    let live = tool(&["diagnose", "-p", &target.pid(), "-d", "1", "-o", path(&file)]);
    assert_diagnosed(&live);
    let clean = |what: &str, bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        let raw = text.chars().find(|c| c.is_control() && *c != '\n');
        assert_eq!(raw, None, "{what}: {text}");
    };
    clean("text", &live.stdout);
    clean("talk", &live.stderr);
    let mut named = false;
    for format in ["text", "json", "flamegraph", "collapsed"] {
        let output = tool(&["report", path(&file), "--format", format]);
        assert_diagnosed(&output);
        let text = data(&output);
        assert!(!text.contains('\u{1b}') && !text.contains('\u{7}'), "{format}: {text}");
        if format == "flamegraph" {
            assert!(!text.contains("<script>"), "{text}");
        }
        named |= text.contains("alert(1)");
    }
    assert!(named, "no sample hit the hostile function");
}

/// The cost of an allocwall command: CPU-seconds, peak resident MiB, and run time without the time that its first
/// thread waited for a CPU.
fn watched(arguments: &[&str]) -> (Output, f64, u64, Duration) {
    let (state, began) = (folder(), Instant::now());
    let child = command(state.path(), arguments).spawn().unwrap();
    let pid = child.id();
    let watch = std::thread::spawn(move || {
        let (mut peak, mut ticks, mut delay) = (0, 0, 0);
        while let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) {
            let field = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
            // A zombie has no VmHWM but keeps its times.
            let Some(kib) = field.and_then(|f| f.trim().strip_suffix(" kB")?.parse::<u64>().ok()) else {
                break;
            };
            peak = peak.max(kib >> 10);
            if let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat"))
                && let Some((_, rest)) = stat.rsplit_once(')')
            {
                let fields: Vec<&str> = rest.split_whitespace().collect();
                let at = |i: usize| fields.get(i).and_then(|f| f.parse::<u64>().ok()).unwrap_or(0);
                ticks = at(11) + at(12);
            }
            // CPU time, run delay (both in ns), number of time slices (Documentation/scheduler/sched-stats.rst).
            let waited = |text: String| text.split_whitespace().nth(1)?.parse().ok();
            delay =
                fs::read_to_string(format!("/proc/{pid}/schedstat")).ok().and_then(waited).unwrap_or(delay);
            std::thread::sleep(Duration::from_millis(20));
        }
        (peak, ticks, delay)
    });
    let output = end_of(child);
    let took = began.elapsed();
    let (peak, ticks, delay) = watch.join().unwrap();
    let took = took.saturating_sub(Duration::from_nanos(delay));
    let per_second = rustix::param::clock_ticks_per_second();
    (output, ticks as f64 / per_second as f64, peak, took)
}

/// Diagnoses `program` for three seconds and checks that the diagnosis stays cheap.
fn stays_small(program: &Path, argument: &str, launch: bool) -> String {
    let target = (!launch).then(|| Running::start(program, &[argument]));
    if target.is_some() {
        // Thousands of threads take a moment to start.
        std::thread::sleep(Duration::from_secs(1));
    }
    let pid = target.as_ref().map(Running::pid).unwrap_or_default();
    let (output, cpu_s, peak_mib, took) = if launch {
        watched(&["diagnose", "-d", "3", "--", path(program), argument])
    } else {
        watched(&["diagnose", "-p", &pid, "-d", "3"])
    };
    println!(
        "{}: {cpu_s:.2} CPU-seconds, {peak_mib} MiB, {took:.1?}",
        program.file_name().unwrap().to_string_lossy()
    );
    assert_diagnosed(&output);
    assert!(peak_mib <= 150, "{peak_mib} MiB resident");
    assert!(cpu_s < 2.0, "{cpu_s} CPU-seconds for a window of three");
    assert!(took < Duration::from_secs(9), "{took:?} for a window of three seconds");
    data(&output)
}

#[test]
fn ten_thousand_threads() {
    let place = folder();
    let source = r#"
        #include <pthread.h>
        #include <stdlib.h>
        #include <unistd.h>
        static void *sleeper(void *a) { for (;;) pause(); return a; }
        static void *spinner(void *a) { for (volatile long i = 0;; i++); return a; }
        int main(int c, char **v) {
            pthread_attr_t small; pthread_t t;
            alarm(60);
            pthread_attr_init(&small);
            pthread_attr_setstacksize(&small, 32768);
            for (int i = 0; i < atoi(v[c - 1]); i++)
                if (pthread_create(&t, &small, i < 2 ? spinner : sleeper, 0)) return 1;
            pause();
        }
    "#;
    let Some(program) = compiled(place.path(), "storm", source, &[]) else {
        return;
    };
    stays_small(&program, "10000", false);
}

#[test]
fn targets_that_keep_changing() {
    let place = folder();
    let forks = r#"
        #include <stdlib.h>
        #include <sys/wait.h>
        #include <unistd.h>
        int main(int c, char **v) {
            alarm(60);
            for (int i = 0; i < atoi(v[c - 1]); i++) {
                pid_t child = fork();
                if (!child) { for (volatile long j = 0; j < 200000; j++); _exit(0); }
                waitpid(child, 0, 0);
                usleep(1500);
            }
            for (;;) pause();
        }
    "#;
    let execs = r#"
        #include <stdio.h>
        #include <stdlib.h>
        #include <unistd.h>
        int main(int c, char **v) {
            char left[16];
            int n = atoi(v[c - 1]);
            if (n <= 0) { alarm(30); for (;;) pause(); }
            for (volatile long j = 0; j < 1000000; j++);
            snprintf(left, sizeof left, "%d", n - 1);
            execl("/proc/self/exe", v[0], left, (char *)0);
            return 1;
        }
    "#;
    let maps = r#"
        #include <string.h>
        #include <sys/mman.h>
        #include <unistd.h>
        int main(void) {
            alarm(60);
            for (;;) {
                char *page = mmap(0, 65536, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
                if (page == MAP_FAILED) return 1;
                memset(page, 0xc3, 4096);
                munmap(page, 65536);
            }
        }
    "#;
    for (name, source, argument, launch) in
        [("forks", forks, "2000", false), ("execs", execs, "3000", true), ("maps", maps, "", false)]
    {
        let Some(program) = compiled(place.path(), name, source, &[]) else {
            return;
        };
        stays_small(&program, argument, launch);
    }
}
