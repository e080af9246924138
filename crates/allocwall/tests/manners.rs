//! How allocwall treats its user: what a slip of the hand leads to, which names it understands, how wide it writes, and what it hands to
//! the shell.

#[path = "common/running.rs"]
mod running;

use running::Running;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

const BINARY: &str = env!("CARGO_BIN_EXE_allocwall");
/// Above the kernel's largest pid_max (2^22).
const NOBODY: &str = "4194305";

impl Running {
    /// It uses CPU, and ends after one minute of CPU time.
    fn busy() -> Running {
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -t 60; while :; do :; done"]).stdin(Stdio::null()).stdout(Stdio::null());
        Running(command.spawn().expect("a shell starts"))
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(BINARY);
    command.args(arguments).env_remove("COLUMNS").stdin(Stdio::null());
    command
}

fn tool(arguments: &[&str]) -> Output {
    let state = folder();
    command(arguments).env("XDG_STATE_HOME", state.path()).output().expect("the tool starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

fn talk(output: &Output) -> String {
    text(&output.stderr)
}

/// Data, and nothing on stderr.
fn told(arguments: &[&str]) -> String {
    let output = tool(arguments);
    assert_eq!((output.status.code(), talk(&output).as_str()), (Some(0), ""), "{arguments:?}");
    text(&output.stdout)
}

/// The error on stderr, with this exit status and no data.
fn refused(arguments: &[&str], code: i32) -> String {
    let output = tool(arguments);
    let talk = talk(&output);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {talk}");
    let error = talk.lines().find(|line| line.starts_with("error: "));
    assert!(output.stdout.is_empty() && error.is_some(), "{arguments:?}: {talk}");
    error.unwrap_or_default().to_owned()
}

#[test]
fn wrong_usage_has_status_2_and_a_failure_has_status_1() {
    let missing = folder().path().join("missing").display().to_string();
    for arguments in [
        &["no-such-verb"][..],
        &["check", "-p", "0"],
        &["calibrate", "--no-such-option"],
        &["diagnose"],
        &["diagnose", "-p", "abc"],
        &["memory"],
        &["count"],
        &["trial", "--", "true"],
        &["trial", "--with", "none"],
        &["trial", "--with", "no-such-remedy", "--", "true"],
        &["trial", "--with", "none", "--fail-on", "nonsense", "--", "true"],
        &["trial", "--with", "none", "--metric", "nonsense", "--", "true"],
        &["bench", "no-such-experiment"],
        &["run", "--with", "no-such-remedy", "--", "true"],
        &["explain", "no-such-name"],
        &["subject", "no-such-subject"],
        &["subject", "idle", "--threads", "0"],
        &["completions", "csh"],
        &["man", "no-such-verb"],
    ] {
        refused(arguments, 2);
    }
    for arguments in [
        &["diagnose", "-p", NOBODY][..],
        &["diagnose", &missing],
        &["report", &missing],
        &["memory", "-p", NOBODY],
        &["trial", "--continue", &missing],
        &["run", "--with", "env:A=1", "--", &missing],
    ] {
        refused(arguments, 1);
    }
}

#[test]
fn a_number_without_p_is_a_process_unless_there_is_such_a_file() {
    let target = Running::busy();
    let pid = target.pid();
    let output = tool(&["diagnose", &pid, "-d", "500ms"]);
    assert_eq!(output.status.code(), Some(0), "{}", talk(&output));
    assert!(text(&output.stdout).contains(&format!("pid {pid}")), "{}", text(&output.stdout));
    assert!(refused(&["diagnose", NOBODY], 1).contains(&format!("no process {NOBODY}")));

    let place = folder();
    fs::write(place.path().join(&pid), "no recording").expect("writable");
    let diagnose = |options: &[&str]| {
        let output = command(&[&["diagnose", &pid], options].concat()).current_dir(place.path()).output();
        output.expect("the tool starts")
    };
    let of_file = diagnose(&[]);
    assert!(talk(&of_file).contains("not a usable recording"), "{}", talk(&of_file));
    let with_window = diagnose(&["-d", "1"]);
    assert_eq!(with_window.status.code(), Some(2), "{}", talk(&with_window));
    assert!(talk(&with_window).contains("--duration"), "{}", talk(&with_window));
    // A name that is neither: how a process and a command are given.
    let neither = refused(&["diagnose", "my service"], 1);
    assert!(
        neither.contains("-p PID") && neither.contains("allocwall diagnose -- 'my service'"),
        "{neither}"
    );
}

#[test]
fn processes_that_are_gone_are_named_and_the_others_are_diagnosed() {
    let target = Running::busy();
    let (pid, mut dead) = (target.pid(), Running::busy());
    dead.0.kill().expect("it runs");
    // Its parent, this test, has not waited for it: it is a zombie.
    let gone = dead.pid();
    let ended = || fs::read_to_string(format!("/proc/{gone}/stat")).is_ok_and(|stat| stat.contains(") Z "));
    while !ended() {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let both = format!("{pid},{NOBODY},{gone}");
    let output = tool(&["diagnose", "-p", &both, "-d", "500ms", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", talk(&output));
    let warning =
        format!("warning: no processes {NOBODY}, {gone}: gone, or never there; going on with {pid}\n");
    assert!(talk(&output).contains(&warning), "{}", talk(&output));
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(document.to_string().contains(&format!("\"pid\":{pid}")), "{document}");
    // The twins: all live, and none does.
    let other = Running::busy();
    let output = tool(&["diagnose", "-p", &format!("{pid},{}", other.pid()), "-d", "500ms"]);
    assert!(!talk(&output).contains("no process"), "{}", talk(&output));
    let none = refused(&["diagnose", "-p", &format!("{NOBODY},{gone}")], 1);
    assert!(none.contains(&format!("no processes {NOBODY}, {gone}")), "{none}");
    assert!(refused(&["count", "-p", &format!("{NOBODY},{gone}")], 1).contains("no processes"));
}

#[test]
fn explain_takes_names_as_a_report_prints_them() {
    for (words, page) in [
        (&["first", "touch"][..], "first_touch (wall)"),
        (&["FIRST TOUCH: ZEROING"], "first_touch (wall)"),
        (&["Page", "Release"], "map_churn (wall)"),
        (&["pythons", "gil"], "gil (wall)"),
        (&["glibc keep memory"], "glibc-keep-memory (remedy)"),
        (&["jemalloc+thp"], "thp (remedy)"),
        (&["sockets", "and", "pipes"], "sockets and pipes (term)"),
        (&["Unresolved"], "unresolved (term)"),
        (&["NOT", "TRIED"], "not tried (term)"),
        (&["remedies' margin"], "margin, remedies' margin (term)"),
        (&["main heap (brk)"], "main heap (brk) (term)"),
    ] {
        let arguments = [&["explain"], words].concat();
        assert!(told(&arguments).contains(page), "{words:?}: {}", told(&arguments));
    }
    let near = |arguments: &[&str]| {
        let line = refused(arguments, 2);
        line.split("nearest: ").nth(1).map(|rest| rest.split(';').next().unwrap_or_default().to_owned())
    };
    assert_eq!(near(&["explain", "frist", "touch"]).as_deref(), Some("first_touch"));
    assert_eq!(near(&["run", "--with", "mimaloc", "--", "true"]).as_deref(), Some("mimalloc"));
    for other in ["foo", "zzz", "postgres"] {
        assert_eq!(near(&["explain", other]), None, "{other}");
    }
    // Verbs that the help hides are not suggested.
    let output = tool(&["replays"]);
    assert!(output.status.code() == Some(2) && !talk(&output).contains("'replay'"), "{}", talk(&output));
}

#[test]
fn columns_sets_the_width_of_everything() {
    let lines = |arguments: &[&str], columns: &str| {
        let output = command(arguments).env("COLUMNS", columns).output().expect("the tool starts");
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", talk(&output));
        text(&output.stdout).lines().map(str::to_owned).collect::<Vec<_>>()
    };
    for arguments in [
        &["list"][..],
        &["bench", "list"],
        &["explain", "first", "touch"],
        &["explain", "jemalloc"],
        &["check"],
        &["--help"],
        &["diagnose", "--help"],
    ] {
        let (narrow, wide) = (lines(arguments, "60"), lines(arguments, "140"));
        assert!(narrow.len() > wide.len(), "{arguments:?}");
        // A line may be wider if it is one word, such as a path; a command is not broken so that it can be copied.
        let may_be_wide = |line: &str| {
            let line = line.trim();
            !line.contains(' ')
                || line.starts_with("Usage: ")
                || line.starts_with('$')
                || line.contains("--> $")
        };
        let width = |line: &str| line.chars().count();
        let found = narrow.iter().find(|line| width(line) > 60 && !may_be_wide(line));
        assert_eq!(found, None, "{arguments:?}");
        assert!(wide.iter().any(|line| width(line) > 60), "{arguments:?}");
        // Wider than the widest: at most 140.
        assert_eq!(lines(arguments, "200"), wide, "{arguments:?}");
    }
}

#[test]
fn the_list_is_grouped_and_names_no_hidden_verb() {
    let list = told(&["list"]);
    for group in [" any program · first touch", " CPython · ", " Java · garbage collector", " Go · "] {
        assert!(list.contains(group), "{group}: {list}");
    }
    assert!(!list.contains("subject"), "{list}");
    let help = told(&["--help"]);
    for hidden in ["subject", "keep", "replay"] {
        assert!(!help.lines().any(|line| line.trim_start().starts_with(hidden)), "{help}");
    }
}

#[test]
fn completions_are_valid_and_have_no_hidden_verb() {
    for shell in ["bash", "zsh", "fish"] {
        let script = told(&["completions", shell]);
        assert!(script.contains("diagnose") && script.contains("cgroup"), "{shell}");
        assert!(!script.contains("pipeline-run") && !script.contains("subject"), "{shell}");
        let place = folder();
        let path = place.path().join("script");
        fs::write(&path, &script).expect("writable");
        match Command::new(shell).arg("-n").arg(&path).output() {
            Ok(output) => assert!(output.status.success(), "{shell}: {}", talk(&output)),
            // bash is everywhere; the others are checked where they are installed.
            Err(error) => assert_ne!(shell, "bash", "{error}"),
        }
    }
}

#[test]
fn manual_pages_are_made_of_every_shown_verb() {
    let page = told(&["man", "diagnose"]);
    assert!(page.contains(".TH") && page.contains("cgroup"), "{page}");
    let footer = concat!("\"allocwall ", env!("CARGO_PKG_VERSION"), "\"");
    assert!(page.lines().any(|line| line.starts_with(".TH") && line.contains(footer)), "{page}");
    assert!(told(&["man"]).contains("trial"));
    assert!(refused(&["man", "diagnoze"], 2).contains("nearest: diagnose"));
    let place = folder();
    let folder = place.path().join("man1");
    told(&["man", "--to", folder.to_str().expect("UTF-8")]);
    let mut pages: Vec<String> = fs::read_dir(&folder)
        .expect("a folder")
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    pages.sort();
    for page in ["allocwall.1", "allocwall-diagnose.1", "allocwall-trial.1", "allocwall-bench-pipeline.1"] {
        assert!(pages.iter().any(|known| known == page), "{page}: {pages:?}");
    }
    for hidden in ["keep", "subject", "read", "replay"] {
        assert!(!pages.iter().any(|page| *page == format!("allocwall-{hidden}.1")), "{pages:?}");
    }
}

/// A control group with the name that Docker gives, which this test makes; removed at the end.
struct Group(Vec<std::path::PathBuf>);

impl Group {
    fn with(id: &str, processes: &[&Running]) -> Result<Group, String> {
        let mut made = Group(vec![]);
        let mounts = fs::read_to_string("/proc/mounts").map_err(|error| error.to_string())?;
        let points = mounts.lines().filter(|line| line.starts_with("cgroup") && !line.contains("cpuset"));
        let mut last = "no hierarchy is mounted".to_owned();
        for point in points.filter_map(|line| line.split(' ').nth(1)) {
            let group = Path::new(point).join(format!("docker-{id}.scope"));
            if let Err(error) = fs::create_dir(&group) {
                last = error.to_string();
                continue;
            }
            made.0.push(group.clone());
            let moved = processes.iter().map(|process| fs::write(group.join("cgroup.procs"), process.pid()));
            match moved.collect::<Result<Vec<()>, _>>() {
                Ok(_) => return Ok(made),
                Err(error) => last = error.to_string(),
            }
        }
        Err(last)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for group in self.0.iter().rev() {
            // Processes that still run keep a group.
            for _ in 0..100 {
                if fs::remove_dir(group).is_ok() {
                    break;
                }
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
        }
    }
}

#[test]
fn a_container_is_found_by_the_start_of_its_id() {
    assert!(
        refused(&["diagnose", "--container", "no-such-container"], 1)
            .starts_with("error: --container no-such-container: no ")
    );
    refused(&["diagnose", "--container", "a", "-p", "1"], 2);
    let id = format!("{:032x}{:032x}", 0xa110c_u32, std::process::id());
    let (one, two) = (Running::busy(), Running::busy());
    // Dropped before the processes: they are moved out by their end.
    let group = match Group::with(&id, &[&one, &two]) {
        Ok(group) => group,
        Err(error) => return println!("skipped: no control group can be made here: {error}"),
    };
    let output = tool(&["diagnose", "--container", &id, "-d", "500ms", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", talk(&output));
    assert!(talk(&output).contains(": 2 processes\n"), "{}", talk(&output));
    let document = text(&output.stdout);
    for process in [&one, &two] {
        assert!(document.contains(&process.pid()), "{document}");
    }
    let several = refused(&["memory", "--container", &id[..60]], 1);
    assert!(several.contains("has 2 processes: ") && several.contains("choose one with -p"), "{several}");
    drop((one, two));
    drop(group);
}
