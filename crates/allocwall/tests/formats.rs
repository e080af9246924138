//! The formats of a recording: which one is chosen, what is refused, and that each one is written.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

const BINARY: &str = env!("CARGO_BIN_EXE_allocwall");

struct Place {
    folder: TempDir,
    recording: PathBuf,
}

impl Place {
    /// With a recording of a busy shell.
    fn new() -> Place {
        let folder = tempfile::tempdir().expect("a folder");
        let recording = folder.path().join("r");
        let place = Place { folder, recording };
        let file = place.at("r");
        let command = ["sh", "-c", "i=0; while :; do i=$((i+1)); done"];
        let output = place
            .run(&[&["diagnose", "-d", "1", "-o", &file, "--no-calibrate", "--"], &command[..]].concat());
        assert!(output.status.success(), "{}", talk(&output));
        place
    }

    fn at(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().expect("UTF-8").to_owned()
    }

    fn run(&self, arguments: &[&str]) -> Output {
        Command::new(BINARY)
            .args(arguments)
            .env("XDG_STATE_HOME", self.folder.path().join("state"))
            .env("XDG_CACHE_HOME", self.folder.path().join("cache"))
            .stdin(Stdio::null())
            .output()
            .expect("allocwall starts")
    }

    fn report(&self, options: &[&str]) -> Output {
        let file = self.recording.to_str().expect("UTF-8");
        self.run(&[&["report", file], options].concat())
    }

    /// The first bytes of a file that is written under this name.
    fn head_of(&self, name: &str, options: &[&str]) -> Vec<u8> {
        let path = self.at(name);
        let output = self.report(&[&["-o", &path], options].concat());
        assert!(output.status.success(), "{name}: {}", talk(&output));
        assert!(output.stdout.is_empty(), "{name}");
        let mut bytes = fs::read(Path::new(&path)).expect("a file");
        assert!(bytes.len() > 20, "{name}");
        bytes.truncate(20);
        bytes
    }
}

fn talk(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn the_name_of_the_file_chooses_the_format() {
    let place = Place::new();
    let formats: [(&str, &[u8]); 9] = [
        ("a.pb.gz", b"\x1f\x8b"),
        ("a.parquet", b"PAR1"),
        ("a.csv", b"kind,line,title"),
        ("a.svg", b"<?xml"),
        ("a.firefox.json", b"{\""),
        ("a.speedscope.json", b"{\"$schema\""),
        ("a.collapsed", b"sh (pid "),
        ("a.json", b"{\n"),
        ("a", b"allocwall  sh "),
    ];
    for (name, head) in formats {
        let found = place.head_of(name, &[]);
        assert!(found.starts_with(head), "{name}: {}", String::from_utf8_lossy(&found));
    }
    let found = place.head_of("b.csv", &["--format", "parquet", "--table", "samples"]);
    assert!(found.starts_with(b"PAR1"), "an option is stronger than a name");
    assert!(place.head_of("c.csv", &["--table", "series"]).starts_with(b"t_s,over_s,cpu_user"));
    // The same from a diagnosis of a recording.
    let file = place.recording.to_str().expect("UTF-8");
    let output = place.run(&["diagnose", file, "--format", "pprof"]);
    assert!(output.status.success() && output.stdout.starts_with(b"\x1f\x8b"), "{}", talk(&output));
}

#[test]
fn what_does_not_fit_is_refused_in_one_line() {
    let place = Place::new();
    let wrong: [(&[&str], &str); 5] = [
        (&["--table", "samples"], "--table is for a recording with --format csv"),
        (&["--format", "pprof", "--table", "bill"], "--table is for a recording"),
        (&["--format", "xml"], "firefox"),
        (&["-o", "a.xyz"], "chooses no format: end it with .txt, .html, .htm, .json, .svg"),
        (&["--format", "csv", "--table", "sample"], "samples"),
    ];
    for (options, words) in wrong {
        let output = place.report(options);
        assert_eq!(output.status.code(), Some(2), "{options:?}: {}", talk(&output));
        assert!(talk(&output).contains(words) && output.stdout.is_empty(), "{options:?}: {}", talk(&output));
    }
}
