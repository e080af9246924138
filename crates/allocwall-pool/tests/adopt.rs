//! What someone does who adopts the library: adds the crate, installs the C interface, and compiles the examples of the
//! README as they are printed there. Every public function has an example.

mod common;

use common::{is_missing, library, root, run};
use std::fs;
use std::path::Path;
use std::process::Command;

/// The blocks of the README in this language.
fn examples(language: &str) -> Vec<String> {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let start = format!("\n```{language}\n");
    let blocks = readme.split(&start).skip(1);
    blocks.map(|rest| rest.split("\n```").next().unwrap().to_owned() + "\n").collect()
}

#[test]
fn the_examples_compile_as_printed_with_what_was_installed() {
    if is_missing("cc") || is_missing("c++") || is_missing("pkg-config") {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let prefix = place.path().join("usr");
    run(Command::new(root().join("install.sh")).arg(&prefix).arg(library("capi")));
    let pkg_config = |question: &str| {
        let mut command = Command::new("pkg-config");
        command.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig")).args([question, "allocwall-pool"]);
        run(&mut command).trim().to_owned()
    };
    assert_eq!(pkg_config("--modversion"), env!("CARGO_PKG_VERSION"));
    for language in ["c", "cpp"] {
        let [example] = &examples(language)[..] else { panic!("not one example in {language}") };
        // The first line is the command, as the reader would type it.
        let command = example.lines().next().unwrap().strip_prefix("// ").expect("the command");
        fs::write(place.path().join(format!("hand_over.{language}")), example).unwrap();
        run(Command::new("sh")
            .arg("-c")
            .arg(format!("{command} -Wall -Wextra -Werror -o {language}-example"))
            .env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"))
            .current_dir(place.path()));
        let printed = run(&mut Command::new(place.path().join(format!("{language}-example"))));
        assert_eq!(printed, "1001000\n", "{language}");
    }
}

#[test]
fn a_project_adds_the_crate() {
    let place = tempfile::tempdir().unwrap();
    let cargo = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO"));
        command.current_dir(place.path()).args(arguments).env_remove("RUSTFLAGS");
        run(command.env("CARGO_TARGET_DIR", Path::new(env!("CARGO_TARGET_TMPDIR")).join("adopter")))
    };
    cargo(&["init", "--quiet", "--vcs", "none", "--name", "adopter"]);
    cargo(&["add", "--quiet", "--offline", "--no-default-features", "--path", root().to_str().unwrap()]);
    let [example, ..] = &examples("")[..] else { panic!("no example in Rust") };
    let example = example.replace("# Ok::<(), allocwall_pool::BuildError>(())\n", "Ok(())\n");
    let text = format!("fn main() -> Result<(), allocwall_pool::BuildError> {{\n{example}}}\n");
    fs::write(place.path().join("src/main.rs"), text).unwrap();
    assert_eq!(cargo(&["run", "--quiet", "--offline"]), "");
}

#[test]
fn the_package_has_what_it_needs_and_nothing_else() {
    let mut command = Command::new(env!("CARGO"));
    command.current_dir(root()).args(["package", "--list", "--allow-dirty", "--offline"]);
    let listed = run(&mut command);
    let listed: Vec<&str> = listed.lines().collect();
    for file in [
        "LICENSE-APACHE",
        "LICENSE-MIT",
        "README.md",
        "include/allocwall_pool.h",
        "allocwall-pool.pc.in",
        "src/lib.rs",
    ] {
        assert!(listed.contains(&file), "{file} is not in the package: {listed:?}");
    }
    let known = ["src/", "include/", "tests/", "benches/"];
    for file in listed.iter().filter(|file| file.contains('/')) {
        assert!(known.iter().any(|folder| file.starts_with(folder)), "{file} is in the package");
    }
}

/// In the documentation comment above each public function of these sources.
#[test]
fn every_public_function_has_an_example() {
    let (mut seen, mut without) = (0, Vec::new());
    let mut folders = vec![root().join("src")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            let name = entry.file_name().unwrap().to_str().unwrap().to_owned();
            if entry.is_dir() {
                folders.push(entry);
            // The C interface is documented in its header.
            } else if !["capi.rs", "tests.rs"].contains(&&*name) {
                let text = fs::read_to_string(&entry).unwrap();
                let mut example = false;
                for line in text.lines().map(str::trim_start) {
                    let is_item = line.starts_with("pub fn ") || line.starts_with("pub unsafe fn ");
                    if is_item {
                        seen += 1;
                        if !example {
                            without.push(format!("{name}: {line}"));
                        }
                    }
                    if line.starts_with("///") {
                        example |= line.starts_with("/// ```");
                    } else if !line.starts_with("#[") {
                        example = false;
                    }
                }
            }
        }
    }
    assert!(seen > 50 && without.is_empty(), "{without:#?}");
}
