//! Where allocwall keeps its files if the environment belongs to another user or names no usable folder. The tests
//! run as root, in a mount namespace with its own user database, so that root's real home does not change.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

const BINARY: &str = env!("CARGO_BIN_EXE_allocwall");
const OTHER: u32 = 65_534;

struct Place {
    folder: TempDir,
    /// Shell commands that run in the namespace before allocwall starts.
    before: String,
}

impl Place {
    /// Makes folders `root`, `home` and `target`, owned by this user. Prints the reason and returns None if no mount
    /// namespace can be made.
    fn new() -> Option<Place> {
        let folder = tempfile::tempdir().unwrap();
        for name in ["root", "home", "target"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        let passwd = format!("root:x:0:0::{}:/bin/sh\n", folder.path().join("root").display());
        fs::write(folder.path().join("passwd"), passwd).unwrap();
        let place = Place { folder, before: String::new() };
        let able = place.shell("true").output();
        if able.is_ok_and(|output| output.status.success()) {
            return Some(place);
        }
        println!("skipped: no mount namespace of one's own here");
        None
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn give_home_away(&self) {
        chown(self.at("home"), Some(OTHER), Some(OTHER)).unwrap();
    }

    fn shell(&self, line: &str) -> Command {
        let mut command = Command::new("unshare");
        let line = format!("mount --bind \"$PASSWD\" /etc/passwd && {}{line}", self.before);
        command
            .args(["--mount", "--propagation", "private", "sh", "-c", &line, BINARY])
            .env("PASSWD", self.at("passwd"))
            .env("HOME", self.at("home"))
            .env_remove("XDG_STATE_HOME")
            .env_remove("XDG_CACHE_HOME")
            .env_remove("LD_PRELOAD")
            .env_remove("COLUMNS")
            .current_dir(self.folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    fn tool(&self, arguments: &[&str]) -> Command {
        let mut command = self.shell("exec \"$0\" \"$@\"");
        command.args(arguments);
        command
    }

    /// Runs a diagnosis that must succeed; returns its messages.
    fn diagnosis(&self, environment: impl FnOnce(&mut Command)) -> String {
        let mut command = self.tool(&["diagnose", "-d", "500ms", "--", "sleep", "30"]);
        environment(&mut command);
        let output = command.output().unwrap();
        let talk = talk(&output);
        assert!(output.status.success(), "{talk}");
        assert!(String::from_utf8_lossy(&output.stdout).contains("CPU"), "{talk}");
        talk
    }

    fn recordings(&self, below: &str) -> usize {
        let state = self.at(below).join(".local/state/allocwall");
        fs::read_dir(state).map_or(0, |entries| entries.count())
    }

    fn entries(&self, name: &str) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.at(name)).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    }
}

fn talk(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Number of lines that contain these words.
fn told(talk: &str, words: &str) -> usize {
    talk.lines().filter(|line| line.contains(words)).count()
}

#[test]
fn root_leaves_nothing_in_another_users_home_or_temporary_folder() {
    let Some(place) = Place::new() else { return };
    place.give_home_away();
    let home = place.at("home");
    let belongs = format!("{} belongs to user {OTHER}", home.display());
    let said = place.diagnosis(|_| ());
    assert_eq!(told(&said, &belongs), 1, "{said}");
    assert_eq!(place.recordings("root"), 1, "{said}");
    // Libraries, a trial's file and its temporary folder: one line per variable, not one per file.
    for arguments in [
        &["run", "-q", "--with", "mimalloc@bundled", "--", "true"][..],
        &["trial", "--no-predict", "-w", "mimalloc@bundled", "--blocks", "1", "--", "true"],
    ] {
        let mut command = place.tool(arguments);
        let output = command.env("TMPDIR", &home).output().unwrap();
        let said = talk(&output);
        assert_eq!(told(&said, "HOME is not used by root"), 1, "{said}");
        let temporary = usize::from(arguments[0] == "trial");
        assert_eq!(told(&said, "TMPDIR is not used by root"), temporary, "{said}");
        assert!(!said.contains("the bundled"), "{said}");
    }
    assert_eq!(place.recordings("root"), 2);
    assert!(place.at("root/.cache/allocwall/libraries").is_dir());
    assert_eq!(place.entries("home"), Vec::<PathBuf>::new());
}

#[test]
fn roots_own_home_is_used_without_a_note() {
    let Some(place) = Place::new() else { return };
    let said = place.diagnosis(|_| ());
    assert!(!said.contains("is used instead"), "{said}");
    assert_eq!((place.recordings("home"), place.recordings("root")), (1, 0));
    let state = fs::metadata(place.at("home/.local/state/allocwall")).unwrap();
    assert_eq!(state.permissions().mode() & 0o777, 0o700);
    let output = place.tool(&["run", "-q", "--with", "mimalloc@bundled", "--", "true"]).output().unwrap();
    assert!(output.status.success(), "{}", talk(&output));
    let libraries = fs::metadata(place.at("home/.cache/allocwall/libraries")).unwrap();
    assert_eq!(libraries.permissions().mode() & 0o7777, 0o755);
}

#[test]
fn root_does_not_follow_a_link_of_another_user() {
    let Some(place) = Place::new() else { return };
    let (target, link) = (place.at("target"), place.at("home/.local"));
    symlink(&target, &link).unwrap();
    // A link of root itself is followed.
    let said = place.diagnosis(|_| ());
    assert!(target.join("state/allocwall").is_dir(), "{said}");
    fs::remove_dir_all(target.join("state")).unwrap();
    // A link of another user, first in root's folder that all may write to, then in that user's home.
    fs::set_permissions(place.at("home"), fs::Permissions::from_mode(0o1777)).unwrap();
    lchown(&link, Some(OTHER), Some(OTHER)).unwrap();
    for shared in [true, false] {
        if !shared {
            place.give_home_away();
        }
        let before = place.recordings("root");
        let said = place.diagnosis(|_| ());
        assert_eq!(told(&said, &format!("belongs to user {OTHER}")), 1, "{said}");
        assert_eq!(place.recordings("root"), before + 1, "{said}");
        assert_eq!(place.entries("target"), Vec::<PathBuf>::new());
    }
}

#[test]
fn without_a_usable_home_there_is_one_line_and_a_diagnosis() {
    let Some(mut place) = Place::new() else { return };
    let missing = place.at("missing");
    type Change<'a> = &'a dyn Fn(&mut Command);
    let unset: Change = &|command| {
        command.env_remove("HOME");
    };
    let relative: Change = &|command| {
        command.env("HOME", "home");
    };
    let absent: Change = &|command| {
        command.env("HOME", &missing);
    };
    for (n, (change, words)) in [
        (unset, "HOME is not set"),
        (relative, "HOME=home is not an absolute path"),
        (absent, "does not exist"),
    ]
    .into_iter()
    .enumerate()
    {
        let said = place.diagnosis(change);
        assert_eq!(told(&said, words), 1, "{said}");
        assert_eq!(place.recordings("root"), n + 1, "{said}");
    }
    assert!(!missing.exists());
    assert_eq!(place.entries("home"), Vec::<PathBuf>::new());
    // A read-only folder: one line reports that the recording is not kept.
    place.before =
        format!("mount --bind {0} {0} && mount -o remount,bind,ro {0} && ", place.at("home").display());
    let said = place.diagnosis(|_| ());
    assert_eq!(told(&said, "Read-only file system"), 1, "{said}");
    assert_eq!(told(&said, "the recording is not kept"), 1, "{said}");
}

#[test]
fn a_user_without_a_home_gets_one_line_and_a_diagnosis() {
    let Some(mut place) = Place::new() else { return };
    let program = place.at("allocwall");
    fs::copy(BINARY, &program).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(place.folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    place.before = format!("exec setpriv --reuid={OTHER} --regid={OTHER} --clear-groups ");
    let run = |home: Option<&Path>| {
        let line = format!("{} diagnose -d 500ms -- sleep 30", program.display());
        let mut command = place.shell(&line);
        match home {
            Some(home) => command.env("HOME", home),
            None => command.env_remove("HOME"),
        };
        let output = command.output().unwrap();
        let talk = talk(&output);
        // Without rights there may be no samples, but there must be a report.
        assert!(!output.stdout.is_empty(), "{talk}");
        talk
    };
    let said = run(None);
    assert_eq!(told(&said, "HOME is not set, and /etc/passwd has no home for user 65534"), 1, "{said}");
    let said = run(Some(&place.at("home")));
    assert_eq!(told(&said, "Permission denied"), 1, "{said}");
    assert_eq!(told(&said, "the recording is not kept"), 1, "{said}");
}
