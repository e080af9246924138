//! What a new user does first: one diagnosis with the gains of its remedies, the report of the newest recording, and the list of
//! recordings.

use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

const BINARY: &str = env!("CARGO_BIN_EXE_allocwall");

struct Home(TempDir);

impl Home {
    fn new() -> Home {
        Home(tempfile::tempdir().expect("a folder"))
    }

    fn run(&self, arguments: &[&str]) -> Output {
        Command::new(BINARY)
            .args(arguments)
            .env("XDG_STATE_HOME", self.0.path().join("state"))
            .env("XDG_CACHE_HOME", self.0.path().join("cache"))
            .env_remove("COLUMNS")
            .stdin(Stdio::null())
            .output()
            .expect("allocwall starts")
    }

    /// A recording of a command that waits.
    fn record(&self, seconds: &str) {
        let output = self.run(&["diagnose", "-d", "500ms", "--", "sleep", seconds]);
        assert!(output.status.success(), "{}", talk(&output));
    }

    /// Oldest first.
    fn files(&self, folder: &str) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.0.path().join(folder).join("allocwall")).into_iter().flatten();
        let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
        files.sort();
        files
    }
}

fn data(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn talk(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn without_a_name_the_newest_recording_is_reported() {
    let home = Home::new();
    let none = home.run(&["report"]);
    assert_eq!(none.status.code(), Some(1));
    assert!(talk(&none).contains("has no recording"), "{}", talk(&none));
    home.record("31");
    home.record("32");
    let newest = home.run(&["report"]);
    let page = data(&newest);
    assert!(newest.status.success() && page.starts_with("allocwall  sleep 32\n"), "{page}{}", talk(&newest));
    assert!(talk(&newest).contains(&*home.files("state")[1].to_string_lossy()), "{}", talk(&newest));
    // The same as by its name, and more with --all.
    let named = home.run(&["report", &home.files("state")[1].to_string_lossy()]);
    assert_eq!(data(&named), page);
    let all = data(&home.run(&["report", "--all"]));
    assert!(all.contains("\nLADDER ") && !page.contains("\nLADDER "), "{page}");
}

#[test]
fn the_list_has_the_newest_recording_first_and_names_a_damaged_one() {
    let home = Home::new();
    let none = home.run(&["report", "--list"]);
    assert!(none.status.success() && none.stdout.is_empty() && talk(&none).contains("has no recording"));
    home.record("31");
    home.record("32");
    let files = home.files("state");
    fs::write(files[0].with_file_name("1-2.allocwall"), "damaged").expect("a file");
    // Other names are those of the user.
    fs::copy(&files[0], files[0].with_file_name("mine.allocwall")).expect("a copy");
    let list = data(&home.run(&["report", "--list"]));
    // Lines break where they fit.
    let list = list.split_whitespace().collect::<Vec<_>>().join(" ");
    let at = |text: &str| list.find(text).unwrap_or_else(|| panic!("no {text:?} in {list}"));
    assert!(at("sleep 32") < at("sleep 31") && at("sleep 31") < at("header of a recording"), "{list}");
    assert_eq!(list.matches("$ allocwall report ").count(), 3, "{list}");
    assert_eq!(list.matches(" UTC sleep ").count(), 2, "{list}");
    for arguments in [&["report", "--list", "file"][..], &["report", "--list", "--json"]] {
        assert_eq!(home.run(arguments).status.code(), Some(2), "{arguments:?}");
    }
}

/// A program whose first touches are a wall, where they can be measured. Returns the document and the messages.
fn touching(home: &Home, options: &[&str]) -> (Value, String) {
    let file = home.0.path().join("recording");
    let file = file.to_string_lossy();
    let target = ["--", BINARY, "subject", "cold-touch", "--dial", "0.8", "--seconds", "20"];
    let arguments = [&["diagnose", "--json", "-d", "1", "-o", &file], options, &target].concat();
    let output = home.run(&arguments);
    assert!(output.status.success(), "{}", talk(&output));
    // What was measured after the window is part of the recording.
    let again = home.run(&["diagnose", "--json", &file]);
    assert_eq!(data(&again), data(&output));
    (serde_json::from_str(&data(&output)).expect("a document"), talk(&output))
}

#[test]
fn missing_prices_are_measured_or_have_a_reason() {
    let home = Home::new();
    let (document, said) = touching(&home, &[]);
    let prices = &document["prices"];
    let absent = prices["absent"]["detail"].as_str().unwrap_or_default();
    match (said.contains(" of this machine for the predictions"), prices.as_array()) {
        // The CPUs were idle: the prices are kept for the next diagnosis, which measures nothing.
        (true, Some(list)) => {
            assert!(!list.is_empty());
            assert_eq!(home.files("cache").len(), 1, "{said}");
            // On a busy machine some have too few repetitions.
            let has = |name: &str| list.iter().any(|price| price["name"] == name);
            let gains = document["remedies"].as_array().expect("remedies").iter();
            let known = gains.filter(|remedy| remedy["gain"].is_object()).count();
            assert!(known > 0 || !(has("touch_4k") && has("touch_2m")), "{document}");
        }
        (true, None) => assert!(absent.contains("prices unknown: "), "{prices} {said}"),
        // First touches can't be measured here, so that no remedy needs a price.
        (false, _) => assert!(absent.contains("have not been measured yet"), "{prices} {said}"),
    }
}

#[test]
fn without_calibration_no_price_is_measured() {
    let home = Home::new();
    let (document, said) = touching(&home, &["--no-calibrate"]);
    let absent = document["prices"]["absent"]["detail"].as_str().unwrap_or_default();
    assert!(absent.contains("have not been measured yet"), "{said}");
    assert!(!said.contains(" of this machine for the predictions"), "{said}");
    assert_eq!(home.files("cache"), [""; 0].map(PathBuf::from));
}
