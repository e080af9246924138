//! One binary for all readers, since each would link the same libraries again: `READER` says which one. `run.py` knows the names
//! from here: without it they are listed, each with its longest input.
#![no_main]

use allocwall_readers::{Reader, readers};
use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;

static READER: LazyLock<&Reader> = LazyLock::new(|| {
    let wanted = std::env::var("READER").unwrap_or_default();
    readers()
        .find(|reader| reader.name == wanted)
        .unwrap_or_else(|| {
            readers()
                .for_each(|reader| println!("{} {}", reader.name, reader.longest));
            std::process::exit(0)
        })
});

// Once before anything is timed: some readers compile their expressions first.
fuzz_target!(init: (READER.read)(b""), |bytes: &[u8]| (READER.read)(bytes));
