//! Every reader of bytes that this program did not write, by name. `fuzz/` feeds them; a test here runs what `fuzz/` keeps.
//!
//! A reader must not panic, hang or take much memory, whatever it reads. Where its answer has a property that can be checked
//! without reading the bytes a second way, it is checked.

use crate::host::perf;
use crate::host::proc::parse as proc;
use crate::host::{cgroup, elf, installed, link_map, loader, maps, memory, program, topology, tunables};
use crate::measure::reading::Readers;
use crate::measure::symbols;
use crate::measure::target::{self, AddressSpace, Modules};
use crate::measure::unwind::{self, Cache, Tables, Unwinder, Unwound};
use crate::measure::{file, heap};
use crate::report::text::Style;
use crate::report::{collapsed, escape, flamegraph, json, text, trial_csv, trial_json, trial_text};
use crate::trial::compare::compare;
use crate::trial::journal;
use crate::trial::load::adapters::ADAPTERS;
use crate::trial::load::metric::Metric;
use crate::trial::load::response;
use crate::trial::proof::ProcessBindings;
use crate::{bill, diagnose};
use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::LazyLock;

pub struct Reader {
    pub name: &'static str,
    pub read: fn(&[u8]),
    /// What libFuzzer should not go beyond: longer inputs are slower and rarely show more.
    pub longest: usize,
}

pub const READERS: &[Reader] = &[
    reader("bindings", bindings, 4096),
    reader("cgroup", cgroup_files, 1024),
    reader("demangle", demangle, 2048),
    reader("elf", elf_file, 16 << 10),
    reader("escape", escaped, 1024),
    reader("heap", heap_walk, 2048),
    reader("http", http, 4096),
    reader("journal", journal, 8192),
    reader("link_map", link_map::walk_bytes, 2048),
    reader("lists", lists, 2048),
    reader("load_output", load_output, 4096),
    reader("maps", proc_maps, 4096),
    reader("perf_map", perf_map, 2048),
    reader("perf_sample", perf_sample, 2048),
    reader("proc", proc::all_parsers, 4096),
    reader("recording", recording, 8192),
    reader("unwind", unwind, 4096),
    reader("versions", versions, 2048),
];

const fn reader(name: &'static str, read: fn(&[u8]), longest: usize) -> Reader {
    Reader { name, read, longest }
}

/// A file with these contents that has no name, and a path that opens it while the file lives.
fn nameless(bytes: &[u8]) -> (File, PathBuf) {
    let fd = memfd_create("fuzzing", MemfdFlags::CLOEXEC).expect("a file in memory");
    let mut file = File::from(fd);
    file.write_all(bytes).expect("memory for it");
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    (file, path.into())
}

/// A number from the front of the bytes; zeros where they end.
fn word(bytes: &mut &[u8]) -> u64 {
    let mut word = [0; 8];
    let taken = bytes.len().min(8);
    word[..taken].copy_from_slice(&bytes[..taken]);
    *bytes = &bytes[taken..];
    u64::from_le_bytes(word)
}

/// A piece from the front of the bytes, with its length before it as two bytes.
fn piece<'a>(bytes: &mut &'a [u8]) -> &'a [u8] {
    let Some((length, rest)) = bytes.split_first_chunk::<2>() else {
        return std::mem::take(bytes);
    };
    let (piece, rest) = rest.split_at(usize::from(u16::from_le_bytes(*length)).min(rest.len()));
    *bytes = rest;
    piece
}

fn bindings(bytes: &[u8]) {
    ProcessBindings::default().add(bytes);
}

fn cgroup_files(bytes: &[u8]) {
    let _ = (cgroup::cpu_max(bytes), cgroup::throttling(bytes));
    let _ = cgroup::cgroup_mounts(bytes, "/nowhere".as_ref());
}

fn demangle(bytes: &[u8]) {
    let name = String::from_utf8_lossy(bytes);
    let _ = symbols::readable(bytes);
    let _ = symbols::readable(format!("_Z{name}").as_bytes());
    let _ = symbols::readable(format!("_R{name}").as_bytes());
}

fn elf_file(bytes: &[u8]) {
    elf::ask_everything(bytes);
    // The same through a file, as a target's is read.
    let (file, path) = nameless(bytes);
    let _ = target::view_file(&path);
    let _ = Tables::of(&file, &mut (1 << 20));
    if let Ok(Some(functions)) = elf::Functions::of(&file, 1000) {
        for address in [0, 1, 0x1000, u64::MAX] {
            let _ = functions.name(address, 100);
        }
    }
}

fn escaped(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let shown = escape::terminal(&text);
    assert!(shown.chars().all(escape::is_harmless));
    // Nothing is left to escape.
    assert_eq!(escape::terminal(&shown), shown);
    let inert = escape::markup(&text);
    assert!(!inert.contains(['<', '>', '"', '\'']));
}

/// The heap's start and length in chunks of 16, then its words.
fn heap_walk(mut bytes: &[u8]) {
    // User memory ends below 2^56 (Documentation/arch/x86/x86_64/5level-paging.rst), and a mapping holds a page at least.
    let start = (word(&mut bytes) & ((1 << 56) - 1)) & !0xfff;
    let length = ((word(&mut bytes) & ((1 << 48) - 1)) & !0xfff).max(4096);
    let end = start + length;
    let chain = heap::walk_chain(start, end, &mut |address| {
        assert!(address >= start && address + 8 <= end, "a word outside the heap");
        let at = usize::try_from(address - start).ok()?;
        let word = bytes.get(at..at.checked_add(8)?)?;
        Some(u64::from_le_bytes(word.try_into().ok()?))
    });
    assert!(chain.walked <= length);
    assert_eq!(chain.live + chain.free, chain.walked);
}

/// Whether the request was a HEAD, then what the server sent; whole and byte by byte it must say the same.
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
                // Bytes behind the end are malformed; in pieces that shows with the next one.
                Ok(Some(_)) if pieces.next().is_some() => return Err(response::Malformed),
                end => return end,
            }
        }
        Ok(reader.closed())
    };
    assert_eq!(read(1), read(bytes.len().max(1)));
}

fn journal(bytes: &[u8]) {
    let (_file, path) = nameless(bytes);
    let Ok(journal) = journal::read(&path) else {
        return;
    };
    let head = &journal.head;
    let outcome = compare(&head.design, &journal.blocks);
    let shown = trial_text::trial(&outcome, &head.command, &head.options, Style::FILE);
    assert_inert(&shown);
    let document = trial_json::document(&outcome, &head.command);
    serde_json::from_str::<serde_json::Value>(&document).expect("JSON stays JSON");
    let _ = trial_csv::table(&outcome);
}

fn assert_inert(shown: &str) {
    let harmless = |c: char| c == '\n' || escape::is_harmless(c);
    assert!(shown.chars().all(harmless), "an escape reaches the terminal");
}

/// What the kernel, the loader and ldconfig print.
fn lists(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let _ = topology::parse_cpu_list(&text);
    let _ = (topology::kilobytes(&text, "MemTotal"), topology::cpu_model(&text));
    let _ = memory::huge_bytes_within(&text, 0x1000, u64::MAX);
    let _ = loader::parse_list(bytes);
    let _ = installed::cached_paths(&text);
    for tunable in tunables::parse(bytes).unwrap_or_default() {
        let _ = (tunable.range(), tunable.check("4096"));
    }
    let _ = tunables::parse_size(&text);
}

fn load_output(bytes: &[u8]) {
    static METRICS: LazyLock<Vec<Metric>> = LazyLock::new(|| {
        ["a:lower=$.a[-1].b", r"b:higher=took (\S+)"]
            .iter()
            .map(|text| Metric::parse(text).expect("a metric"))
            .collect()
    });
    let output = String::from_utf8_lossy(bytes);
    for adapter in ADAPTERS {
        for reading in adapter.read(&output).unwrap_or_default() {
            assert!(reading.value.is_finite(), "{} of {}", reading.name, adapter.name);
        }
    }
    for metric in METRICS.iter() {
        if let Ok(reading) = metric.read(&output) {
            assert!(reading.value.is_finite());
        }
    }
}

fn proc_maps(bytes: &[u8]) {
    let mappings = maps::read(bytes, |_| true).expect("bytes are there").mappings;
    let mut modules = Modules::new("/nowhere", Readers::Here);
    let mut space = AddressSpace::new(1);
    for mapping in &mappings {
        assert!(mapping.start < mapping.end);
        space.add_mapping(&mut modules, mapping);
        let inside = space.lookup(mapping.start).is_some();
        assert_eq!(
            inside, mapping.perms.execute,
            "the youngest mapping is the one that is there"
        );
    }
}

fn perf_map(mut bytes: &[u8]) {
    let address = word(&mut bytes);
    let (file, _) = nameless(bytes);
    let mut names = [None, None];
    let _ = symbols::scan_perf_map(file, &mut 1000, &[address, address.saturating_add(1)], &mut names);
}

fn perf_sample(bytes: &[u8]) {
    let mut chain = Vec::new();
    let _ = perf::parse_sample(bytes, false, &mut chain);
    let _ = (perf::record_time(9, bytes), perf::record_time(1, bytes));
}

/// The first byte says whether a whole file follows, or the parts of one before they are packed.
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
    let verdict = diagnose::verdict(&recording, &bill);
    assert_inert(&text::diagnosis(&recording, &bill, &verdict, None, Style::FILE));
    let document = json::document(&recording, &bill, &verdict);
    serde_json::from_str::<serde_json::Value>(&document).expect("JSON stays JSON");
    let _ = (collapsed::stacks(&recording), flamegraph::svg(&recording, &bill));
}

/// Registers, the tables with their addresses, then the stack. Two samples, so that the second meets the cache.
fn unwind(mut bytes: &[u8]) {
    const BIAS: u64 = 0x5555_5555_0000;
    let mut registers = unwind::waiting_registers(0, 0);
    registers
        .iter_mut()
        .for_each(|register| *register = word(&mut bytes));
    let mut tables = Tables::none();
    let mut section = || {
        let address = word(&mut bytes);
        let body = piece(&mut bytes);
        let range = address..address.saturating_add(body.len() as u64);
        (Some(range), Some(unwind::Bytes(body.into())))
    };
    (tables.0.eh_frame_svma, tables.0.eh_frame) = section();
    (tables.0.eh_frame_hdr_svma, tables.0.eh_frame_hdr) = section();
    tables.0.text_svma = Some(0x1000..0x10_0000);
    let tables = tables.with_sound_index();
    let mut unwinder = Unwinder::default();
    unwinder.add(BIAS..BIAS + 0x20_0000, BIAS, &tables);
    let (mut cache, mut out) = (Cache::default(), Unwound::default());
    for shift in [0, 16] {
        let mut registers = registers;
        registers.iter_mut().for_each(|r| *r = r.wrapping_add(shift));
        unwinder.unwind(&mut cache, &registers, bytes, &mut out);
    }
}

/// Small files and lines in which versions and interpreters stand.
fn versions(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let _ = (target::release_version(&text), target::node_header_version(&text));
    let _ = target::secure_exec(bytes);
    let _ = program::shebang(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// What fuzzing found once, and what it starts from: a folder a reader.
    #[test]
    fn kept_inputs_are_read() {
        let kept = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/kept");
        let mut without: BTreeSet<&str> = READERS.iter().map(|reader| reader.name).collect();
        for folder in std::fs::read_dir(&kept).expect("fuzz/kept").map(Result::unwrap) {
            let name = folder.file_name();
            let reader = READERS.iter().find(|reader| name == reader.name);
            let reader = reader.unwrap_or_else(|| panic!("{name:?} is no reader"));
            for input in std::fs::read_dir(folder.path()).unwrap().map(Result::unwrap) {
                (reader.read)(&std::fs::read(input.path()).unwrap());
                without.remove(reader.name);
            }
        }
        assert!(without.is_empty(), "readers without an input: {without:?}");
    }
}
