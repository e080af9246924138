//! One binary for all readers, because each would link the same libraries again. The variable `READER` selects the reader. Without it,
//! the binary prints the names of all readers, each with the length of its longest input; `run.py` reads that list.
#![no_main]

use allocwall_readers::{Reader, readers};
use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;

static READER: LazyLock<&Reader> = LazyLock::new(|| {
    let wanted = std::env::var("READER").unwrap_or_default();
    readers().find(|reader| reader.name == wanted).unwrap_or_else(|| {
        readers().for_each(|reader| println!("{} {}", reader.name, reader.longest));
        std::process::exit(0)
    })
});

// One call before libFuzzer measures time: some readers compile their regular expressions first.
fuzz_target!(init: (READER.read)(b""), |bytes: &[u8]| (READER.read)(bytes));
