//! What the tests of the C interface share.

use std::path::{Path, PathBuf};
use std::process::Command;

pub fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}\n{stderr}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Builds the static library with these features, in a separate folder, because the outer cargo may hold its lock.
pub fn library(features: &str) -> PathBuf {
    let target = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(features.replace(',', "-"));
    run(Command::new(env!("CARGO"))
        .current_dir(root())
        .args(["rustc", "--quiet", "--lib", "--no-default-features", "--features", features])
        .args(["--crate-type", "staticlib", "--target-dir"])
        .arg(&target)
        .env_remove("RUSTFLAGS"));
    target.join("debug/liballocwall_pool.a")
}

pub fn is_missing(compiler: &str) -> bool {
    let missing = Command::new(compiler).arg("--version").output().is_err();
    if missing {
        println!("skipped: {compiler} is not installed");
    }
    missing
}
