//! The parsers of untrusted bytes in this crate, by name, for fuzzing.

use crate::load::adapters::ADAPTERS;
use crate::load::metric::Figure;
use crate::load::response;
use crate::proof::ProcessBindings;
use allocwall_host::fuzzing::{Reader, reader};
use std::sync::LazyLock;

pub const READERS: &[Reader] = &[
    reader("bindings", bindings, 4096),
    reader("http", http, 4096),
    reader("load_output", load_output, 4096),
];

fn bindings(bytes: &[u8]) {
    ProcessBindings::default().add(bytes);
}

/// First byte: whether the request was a HEAD. The rest: the server's response. Parsing it whole and byte by byte must give the
/// same result.
fn http(bytes: &[u8]) {
    let Some((&kind, bytes)) = bytes.split_first() else {
        return;
    };
    let bodyless = kind & 1 == 1;
    let read = |size: usize| {
        let mut reader = response::Reader::default();
        let mut pieces = bytes.chunks(size);
        while let Some(piece) = pieces.next() {
            match reader.feed(piece, bodyless) {
                Ok(None) => {}
                // Bytes after the end are malformed; in pieces, this shows with the next piece.
                Ok(Some(_)) if pieces.next().is_some() => return Err(response::Malformed),
                end => return end,
            }
        }
        Ok(reader.closed())
    };
    assert_eq!(read(1), read(bytes.len().max(1)));
}

fn load_output(bytes: &[u8]) {
    static FIGURES: LazyLock<Vec<Figure>> = LazyLock::new(|| {
        ["a:lower=$.a[-1].b", r"b:higher=took (\S+)"]
            .iter()
            .map(|text| Figure::parse(text).expect("a figure"))
            .collect()
    });
    let output = String::from_utf8_lossy(bytes);
    for adapter in ADAPTERS {
        for reading in adapter.read(&output).unwrap_or_default() {
            assert!(reading.value.is_finite(), "{} of {}", reading.name, adapter.name);
        }
    }
    for figure in FIGURES.iter() {
        if let Ok(reading) = figure.read(&output) {
            assert!(reading.value.is_finite());
        }
    }
}
