//! `allocwall top`: the screen in a terminal, and a line or a block of text for each window without one.

#[path = "common/running.rs"]
mod running;

use running::Running;
use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

const BINARY: &str = env!("CARGO_BIN_EXE_allocwall");
/// Above the kernel's largest pid_max (2^22).
const NOBODY: &str = "4194305";
/// Long enough for a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A shell that uses CPU, and ends after ten minutes of CPU time: allocwall pauses for long where it is slow.
fn busy() -> Running {
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -t 600; while :; do :; done"]).stdin(Stdio::null()).stdout(Stdio::null());
    Running(command.spawn().expect("a shell starts"))
}

fn pid(running: &Running) -> String {
    running.0.id().to_string()
}

fn command(state: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(BINARY);
    command
        .arg("top")
        .args(arguments)
        .env("XDG_STATE_HOME", state)
        .env("TERM", "xterm-256color")
        .env("NO_COLOR", "1")
        .env_remove("COLUMNS")
        .stdin(Stdio::null());
    command
}

fn top(arguments: &[&str]) -> Output {
    let state = tempfile::tempdir().unwrap();
    command(state.path(), arguments).output().expect("the tool starts")
}

fn talk(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// allocwall in a terminal of its own.
struct Screen {
    child: Child,
    terminal: File,
    /// Kept open, so that the modes of the terminal can be read after the end.
    inside: OwnedFd,
    shown: Receiver<Vec<u8>>,
    seen: String,
}

impl Screen {
    fn open(mut command: Command, columns: u16, rows: u16) -> Screen {
        let size = libc::winsize { ws_col: columns, ws_row: rows, ws_xpixel: 0, ws_ypixel: 0 };
        let (mut outer, mut inner) = (-1, -1);
        // SAFETY: both descriptors and the size are valid for the call; the name and the modes are optional.
        let opened =
            unsafe { libc::openpty(&mut outer, &mut inner, std::ptr::null_mut(), std::ptr::null(), &size) };
        assert_eq!(opened, 0, "a terminal opens");
        // SAFETY: openpty gave both to us alone.
        let (terminal, inside) = unsafe { (File::from_raw_fd(outer), OwnedFd::from_raw_fd(inner)) };
        let end = || Stdio::from(inside.try_clone().unwrap());
        command.stdin(end()).stdout(end()).stderr(end());
        // SAFETY: only system calls between fork and exec.
        unsafe {
            command.pre_exec(|| {
                libc::setsid();
                libc::ioctl(0, libc::TIOCSCTTY, 0);
                Ok(())
            });
        }
        let child = command.spawn().expect("the tool starts");
        let (send, shown) = channel();
        let mut output = terminal.try_clone().unwrap();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(read @ 1..) = output.read(&mut buffer) {
                if send.send(buffer[..read].to_vec()).is_err() {
                    return;
                }
            }
        });
        Screen { child, terminal, inside, shown, seen: String::new() }
    }

    /// Waits until this was shown since the last key.
    fn shows(&mut self, text: &str) {
        let until = Instant::now() + PATIENCE;
        while !self.seen.contains(text) {
            let left = until.saturating_duration_since(Instant::now());
            match self.shown.recv_timeout(left) {
                Ok(bytes) => self.seen.push_str(&String::from_utf8_lossy(&bytes)),
                Err(why) => panic!("{why}: no {text:?} in {:?}", self.seen),
            }
        }
    }

    fn press(&mut self, keys: &[u8]) {
        self.seen.clear();
        self.terminal.write_all(keys).unwrap();
    }

    /// Whether the terminal echoes what is typed and waits for lines, as a shell needs it.
    fn is_cooked(&self) -> bool {
        // SAFETY: the modes are plain data, and the descriptor is open.
        let modes = unsafe {
            let mut modes: libc::termios = std::mem::zeroed();
            assert_eq!(libc::tcgetattr(self.inside.as_raw_fd(), &mut modes), 0);
            modes
        };
        let cooked = libc::ECHO | libc::ICANON;
        modes.c_lflag & cooked == cooked
    }

    fn ends(&mut self) -> Option<i32> {
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("it does not end: {:?}", self.seen);
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const LEFT: &str = "\x1b[?1049l";

#[test]
fn a_screen_that_saves_and_explains_and_leaves_the_terminal_as_it_was() {
    let (state, target) = (tempfile::tempdir().unwrap(), busy());
    let mut screen = Screen::open(command(state.path(), &["-p", &pid(&target), "--every", "500ms"]), 100, 34);
    screen.shows("\x1b[?1049h");
    screen.shows(&format!("pid {}", pid(&target)));
    screen.shows("BILL");
    assert!(!screen.is_cooked());
    screen.press(b"?");
    screen.shows("this help");
    screen.press(b"q");
    screen.shows("COST");
    screen.press(b"\x1b[B");
    screen.shows("▸ ");
    screen.press(b"r");
    screen.shows("q back");
    screen.press(b"q");
    screen.shows("BILL");
    screen.press(b"s");
    screen.shows("saved:");
    screen.press(b"q");
    screen.shows(LEFT);
    assert_eq!(screen.ends(), Some(0));
    assert!(screen.is_cooked());
    let saved: Vec<_> = std::fs::read_dir(state.path().join("allocwall")).unwrap().flatten().collect();
    let [saved] = &saved[..] else { panic!("{saved:?}") };
    let report = Command::new(BINARY).arg("report").arg(saved.path()).output().unwrap();
    assert_eq!(report.status.code(), Some(0), "{}", talk(&report));
    assert!(String::from_utf8_lossy(&report.stdout).contains(&format!("pid {}", pid(&target))));
}

#[test]
fn signals_leave_the_terminal_as_it_was() {
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        let (state, target) = (tempfile::tempdir().unwrap(), busy());
        let mut screen = Screen::open(command(state.path(), &["-p", &pid(&target), "--every", "1h"]), 44, 14);
        screen.shows("\x1b[?1049h");
        screen.shows("first window");
        // SAFETY: the process is our child, and not yet waited for.
        unsafe { libc::kill(screen.child.id() as i32, signal) };
        screen.shows(LEFT);
        assert_eq!(screen.ends(), Some(0));
        assert!(screen.is_cooked());
    }
}

#[test]
fn the_last_window_stays_when_the_target_has_ended() {
    let (state, target) = (tempfile::tempdir().unwrap(), busy());
    let mut screen = Screen::open(command(state.path(), &["-p", &pid(&target), "--every", "500ms"]), 100, 34);
    screen.shows("BILL");
    drop(target);
    screen.shows("The target has ended");
    screen.press(b"\x03");
    assert_eq!(screen.ends(), Some(0));
}

#[test]
fn one_window_as_json_and_as_text() {
    let target = busy();
    let output = top(&["-p", &pid(&target), "--every", "500ms", "--json", "--count", "2"]);
    assert_eq!(output.status.code(), Some(0), "{}", talk(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    let windows: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(windows.len(), 2);
    for (nth, window) in windows.iter().enumerate() {
        assert_eq!(window["format"], "allocwall-top");
        assert_eq!(window["window"], nth as u64 + 1);
        assert_eq!(window["target"]["pid"], target.0.id());
    }
    let output = top(&["-p", &pid(&target), "--every", "500ms", "--once"]);
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", talk(&output));
    for part in ["allocwall top  sh -c", "VERDICT", "BILL", "WAITS", "MEMORY", "COST"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains('\x1b') && !text.contains("q quit"), "{text}");
}

#[test]
fn it_ends_when_nobody_reads_it_any_more() {
    let (state, target) = (tempfile::tempdir().unwrap(), busy());
    let mut command = command(state.path(), &["-p", &pid(&target), "--every", "500ms", "--json"]);
    let mut child = Running(command.stdout(Stdio::piped()).spawn().expect("the tool starts"));
    let mut reader = BufReader::new(child.0.stdout.take().unwrap());
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    assert!(line.starts_with('{'), "{line}");
    drop(reader);
    let until = Instant::now() + PATIENCE;
    while child.0.try_wait().unwrap().is_none() {
        assert!(Instant::now() < until, "it goes on");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(child.0.wait().unwrap().code(), Some(0));
}

#[test]
fn what_cannot_be_watched_is_refused_in_one_line() {
    for (arguments, status) in [
        (&["-p", NOBODY][..], 1),
        (&["--cgroup", "/no/such/group"], 1),
        (&[], 2),
        (&["-p", "1", "--every", "1ms"], 2),
        (&["-p", "1", "--count", "0"], 2),
    ] {
        let output = top(arguments);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {}", talk(&output));
        assert!(output.stdout.is_empty());
        let talk = talk(&output);
        assert!(talk.starts_with("error: "), "{talk}");
        if status == 1 {
            assert_eq!(talk.lines().count(), 1, "{talk}");
        }
    }
    // In a terminal too, without a screen.
    let state = tempfile::tempdir().unwrap();
    let mut screen = Screen::open(command(state.path(), &["-p", NOBODY]), 80, 24);
    screen.shows("error: ");
    assert_eq!(screen.ends(), Some(1));
    assert!(!screen.seen.contains(LEFT), "{}", screen.seen);
}
