//! All readers of bytes that this program did not write, by name: those of each crate, and those that pass a
//! whole file through several crates. `fuzz/` feeds them; a test here runs the inputs that `fuzz/` keeps.

#![forbid(unsafe_code)]

use allocwall_diagnose::bill;
use allocwall_host::fuzzing::{nameless, piece, reader};
use allocwall_measure::file;
use allocwall_report::text::{Extent, Style};
use allocwall_report::{collapsed, escape, flamegraph, json, text, trial_csv, trial_json, trial_text};
use allocwall_trial::compare::compare;
use allocwall_trial::journal;

pub use allocwall_host::fuzzing::Reader;

const WHOLE_FILES: &[Reader] = &[
    reader("escape", escaped, 1024),
    reader("journal", journal, 8192),
    reader("recording", recording, 8192),
];

pub fn readers() -> impl Iterator<Item = &'static Reader> {
    let parts = [
        allocwall_host::fuzzing::READERS,
        allocwall_measure::fuzzing::READERS,
        allocwall_trial::fuzzing::READERS,
        WHOLE_FILES,
    ];
    parts.into_iter().flatten()
}

fn escaped(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let shown = escape::terminal(&text);
    assert!(shown.chars().all(escape::is_harmless));
    // A second pass changes nothing.
    assert_eq!(escape::terminal(&shown), shown);
    let inert = escape::markup(&text);
    assert!(!inert.contains(['<', '>', '"', '\'']));
}

fn journal(bytes: &[u8]) {
    let (_file, path) = nameless(bytes);
    let Ok(journal) = journal::read(&path) else {
        return;
    };
    let head = &journal.head;
    let outcome = compare(&head.design, &journal.blocks);
    // Text from the file in the place of options too.
    let shown = trial_text::trial(&outcome, &head.command, Some(&head.command), Style::FILE);
    assert_inert(&shown);
    let document = trial_json::document(&outcome, &head.command);
    serde_json::from_str::<serde_json::Value>(&document).expect("the document is valid JSON");
    let _ = trial_csv::table(&outcome);
}

fn assert_inert(shown: &str) {
    let harmless = |c: char| c == '\n' || escape::is_harmless(c);
    assert!(shown.chars().all(harmless), "an escape sequence reaches the terminal");
}

/// The first byte says whether a whole file follows, or unpacked parts of a file.
fn recording(bytes: &[u8]) {
    let Some((&kind, mut rest)) = bytes.split_first() else {
        return;
    };
    let read = if kind == 0 {
        file::decode("(fuzzing)".as_ref(), rest)
    } else {
        let mut writer = file::Writer::create(None).expect("nothing to open");
        while !rest.is_empty() {
            writer.body(piece(&mut rest));
        }
        writer.finish().0
    };
    let Ok(recording) = read else {
        return;
    };
    let bill = bill::of(&recording);
    let verdict = allocwall_diagnose::verdict(&recording, &bill);
    for extent in [Extent::Brief, Extent::All] {
        assert_inert(&text::diagnosis(&recording, &bill, &verdict, None, extent, Style::FILE));
    }
    let document = json::document(&recording, &bill, &verdict);
    serde_json::from_str::<serde_json::Value>(&document).expect("the document is valid JSON");
    let _ = (collapsed::stacks(&recording), flamegraph::svg(&recording, &bill));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::path::PathBuf;

    /// Inputs that fuzzing found earlier or starts from: one folder per reader.
    #[test]
    fn kept_inputs_are_read() {
        let kept = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/kept");
        let mut without: BTreeSet<&str> = readers().map(|reader| reader.name).collect();
        for folder in std::fs::read_dir(&kept).expect("fuzz/kept").map(Result::unwrap) {
            let name = folder.file_name();
            let reader = readers().find(|reader| name == reader.name);
            let reader = reader.unwrap_or_else(|| panic!("{name:?} is not a reader"));
            for input in std::fs::read_dir(folder.path()).unwrap().map(Result::unwrap) {
                (reader.read)(&std::fs::read(input.path()).unwrap());
                without.remove(reader.name);
            }
        }
        assert!(without.is_empty(), "readers without an input: {without:?}");
    }
}
