//! The C interface: its header is current, and a C++20 program passes its own checks against the static library.

use std::path::{Path, PathBuf};
use std::process::Command;

fn run(command: &mut Command) -> String {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}\n{stderr}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn the_header_is_what_cbindgen_makes() {
    if Command::new("cbindgen").arg("--version").output().is_err() {
        println!("skipped: cbindgen is not installed");
        return;
    }
    let made = run(Command::new("cbindgen").current_dir(root()).args([
        "--quiet",
        "--config",
        "cbindgen.toml",
        "src/capi.rs",
    ]));
    let held = std::fs::read_to_string(root().join("include/allocwall_pool.h")).unwrap();
    assert!(made == held, "the header is out of date: see cbindgen.toml");
}

/// Needs no tool: every function of the interface is declared, and nothing else is.
#[test]
fn the_header_declares_every_function() {
    let source = std::fs::read_to_string(root().join("src/capi.rs")).unwrap();
    let header = std::fs::read_to_string(root().join("include/allocwall_pool.h")).unwrap();
    let defined = source
        .split("extern \"C\" fn ")
        .skip(1)
        .map(|rest| rest.split('(').next().unwrap());
    let mut defined: Vec<_> = defined.collect();
    let mut declared: Vec<_> = header
        .lines()
        .filter(|line| !line.trim_start().starts_with(['*', '/']))
        .filter_map(|line| {
            line.split('(')
                .next()
                .filter(|_| line.contains('('))?
                .rsplit([' ', '*'])
                .next()
        })
        .collect();
    defined.sort_unstable();
    declared.sort_unstable();
    assert!(!defined.is_empty());
    assert_eq!(defined, declared);
}

#[test]
fn a_cpp_program_uses_it() {
    if Command::new("g++").arg("--version").output().is_err() {
        println!("skipped: g++ is not installed");
        return;
    }
    // A folder of its own, since the outer cargo may hold its lock.
    let target = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("capi");
    run(Command::new(env!("CARGO"))
        .current_dir(root())
        .args([
            "rustc",
            "--quiet",
            "--lib",
            "--features",
            "capi",
            "--crate-type",
            "staticlib",
            "--target-dir",
        ])
        .arg(&target)
        .env_remove("RUSTFLAGS"));
    let program = target.join("cpp");
    run(Command::new("g++")
        .args([
            "-std=c++20",
            "-O2",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-pthread",
            "-I",
        ])
        .arg(root().join("include"))
        .arg(root().join("tests/cpp.cpp"))
        .arg(target.join("debug/liballocwall_pool.a"))
        .args(["-ldl", "-lm", "-o"])
        .arg(&program));
    run(&mut Command::new(&program));
}
