//! Shared by the tests of this crate: compiles the test programs, and runs them with a preloaded library.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Compiles a program of `tests/programs`, by its path from there. None, after the reason is printed, if there is no compiler.
pub fn compiled(place: &Path, source: &str, flags: &[&str]) -> Option<PathBuf> {
    let compiler = if source.ends_with(".cc") { "c++" } else { "cc" };
    let program = place.join(Path::new(source).file_stem().unwrap());
    let mut command = Command::new(compiler);
    command
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(source))
        .arg("-o")
        .arg(&program)
        .args(["-O1", "-g0", "-pthread", "-fno-builtin", "-Wall", "-Werror"])
        .args(flags);
    let output = attempt(&mut command)?;
    assert!(output.status.success(), "{source}: {}", text(&output.stderr));
    Some(program)
}

/// Runs a command to its end, without input. None, after the reason is printed, if the program does not exist.
pub fn attempt(command: &mut Command) -> Option<Output> {
    match command.stdin(Stdio::null()).output() {
        Ok(output) => Some(output),
        Err(e) if e.kind() == ErrorKind::NotFound => {
            println!("skipped: {}: {e}", command.get_program().display());
            None
        }
        Err(e) => panic!("{command:?}: {e}"),
    }
}

/// A command without the variables of this process's environment that could control an allocator.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    for name in [
        "LD_PRELOAD",
        "GLIBC_TUNABLES",
        "MALLOC_CONF",
        "ALLOCWALL_PREFAULT",
        "ALLOCWALL_COUNT",
        "ALLOCWALL_COUNT_EVERY",
    ] {
        command.env_remove(name);
    }
    command.env("LC_ALL", "C");
    command
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The output of a program, which must succeed.
pub fn said(output: &Output) -> String {
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{}: {out}{err}", output.status);
    assert_eq!(err, "");
    out
}
