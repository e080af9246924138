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

/// framehop computes with the values of a corrupt unwinding table unchecked. A release wraps around, and then finds no memory at the
/// address. Here its generic code is compiled with our checks, so such an overflow is a panic, and no finding.
fn ignore_overflow_in_framehop() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let ignored = panic.location().is_some_and(|at| at.file().contains("/framehop-"))
            && panic.payload_as_str().is_some_and(|text| text.starts_with("attempt to "));
        if !ignored {
            report(panic);
        }
    }));
}

// One call before libFuzzer measures time: some readers compile their regular expressions first.
fuzz_target!(
    init: {
        ignore_overflow_in_framehop();
        (READER.read)(b"")
    },
    |bytes: &[u8]| {
        // Every other panic ends the process in the hook.
        _ = std::panic::catch_unwind(|| (READER.read)(bytes));
    }
);
