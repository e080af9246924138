//! The C interface: its header is current, and C and C++20 programs pass their own checks with the static library.

mod common;

use common::{is_missing, library, root, run};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

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

/// Needs no cbindgen: the header declares every function of the interface and no other.
#[test]
fn the_header_declares_every_function() {
    let source = std::fs::read_to_string(root().join("src/capi.rs")).unwrap();
    let header = std::fs::read_to_string(root().join("include/allocwall_pool.h")).unwrap();
    let defined = source.split("extern \"C\" fn ").skip(1).map(|rest| rest.split('(').next().unwrap());
    let mut defined: Vec<_> = defined.collect();
    let mut declared: Vec<_> = header
        .lines()
        .filter(|line| !line.trim_start().starts_with(['*', '/']))
        .filter_map(|line| line.split('(').next().filter(|_| line.contains('('))?.rsplit([' ', '*']).next())
        .collect();
    defined.sort_unstable();
    declared.sort_unstable();
    assert!(!defined.is_empty());
    assert_eq!(defined, declared);
}

fn program(compiler: &str, standard: &str, source: &str, library: &Path) -> PathBuf {
    let program = library.with_file_name(source.replace('.', "-"));
    run(Command::new(compiler)
        .args([standard, "-O2", "-Wall", "-Wextra", "-Werror", "-pthread", "-I"])
        .arg(root().join("include"))
        .arg(root().join("tests").join(source))
        .arg(library)
        .args(["-ldl", "-lm", "-o"])
        .arg(&program));
    program
}

#[test]
fn a_cpp_program_uses_it() {
    if !is_missing("g++") {
        run(&mut Command::new(program("g++", "-std=c++20", "cpp.cpp", &library("capi"))));
    }
}

#[test]
fn a_c_host_lives_on_and_a_slot_given_twice_is_reported_where_that_is_checked() {
    if is_missing("gcc") {
        return;
    }
    let [plain, checked] =
        ["capi", "capi,checked"].map(|features| program("gcc", "-std=gnu11", "edges.c", &library(features)));
    run(&mut Command::new(&plain));
    run(&mut Command::new(&checked));
    for way in ["pool", "returner", "any", "batch"] {
        let output = Command::new(&checked).arg(way).output().unwrap();
        assert_eq!(output.status.signal(), Some(6), "{way}: {output:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            said.starts_with("allocwall-pool: 0x") && said.ends_with(" was given back twice\n"),
            "{said}"
        );
    }
}
