//! The readers of untrusted bytes in this crate, by name, for fuzzing.

use crate::accounts::{cpython, go, jvm};
use crate::allocations;
use crate::reading::Readers;
use crate::target::{self, AddressSpace, Modules};
use crate::unwind::{self, Cache, Tables, Unwinder, Unwound};
use crate::{heap, resident, symbols};
use allocwall_host::fuzzing::{self as host, Reader, nameless, piece, reader, word};
use allocwall_host::{installed, maps};

pub const READERS: &[Reader] = &[
    reader("allocations", counts, 20 << 10),
    reader("cpython", cpython::read_bytes, 4096),
    reader("demangle", demangle, 2048),
    reader("elf", elf_file, 16 << 10),
    reader("go", go::read_bytes, 8192),
    reader("heap", heap_walk, 2048),
    reader("hsperfdata", jvm::read_counters, 4096),
    reader("jvm", jvm::read_memory, 8192),
    reader("maps", proc_maps, 4096),
    reader("perf_map", perf_map, 2048),
    reader("resident", resident::read_bytes, 8192),
    reader("unwind", unwind, 4096),
    reader("versions", versions, 2048),
];

/// The file in which a process counts what it asks of its allocator.
fn counts(bytes: &[u8]) {
    allocations::read_file(nameless(bytes).0);
}

fn demangle(bytes: &[u8]) {
    let name = String::from_utf8_lossy(bytes);
    let _ = symbols::readable(bytes);
    let _ = symbols::readable(format!("_Z{name}").as_bytes());
    let _ = symbols::readable(format!("_R{name}").as_bytes());
}

fn elf_file(bytes: &[u8]) {
    host::elf(bytes);
    let (file, path) = nameless(bytes);
    let _ = target::view_file(&path);
    let _ = Tables::of(&file, &mut (1 << 20));
}

/// The heap's start and length in units of 16 bytes, then its words.
fn heap_walk(mut bytes: &[u8]) {
    // User memory ends below 2^56 (Documentation/arch/x86/x86_64/5level-paging.rst), and a mapping has at
    // least one page.
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

fn proc_maps(bytes: &[u8]) {
    let mappings = maps::read(bytes, |_| true).expect("bytes are there").mappings;
    let mut modules = Modules::new("/nowhere", Readers::Here);
    let mut space = AddressSpace::new(1);
    for mapping in &mappings {
        assert!(mapping.start < mapping.end);
        space.add_mapping(&mut modules, mapping);
        let inside = space.lookup(mapping.start).is_some();
        assert_eq!(inside, mapping.perms.execute, "the newest mapping must be the current one");
    }
}

fn perf_map(mut bytes: &[u8]) {
    let address = word(&mut bytes);
    let (file, _) = nameless(bytes);
    let mut names = [None, None];
    let _ = symbols::scan_perf_map(file, &mut 1000, &[address, address.saturating_add(1)], &mut names);
}

/// Registers, the tables with their addresses, then the stack. Two samples, so that the second one uses the
/// cache.
fn unwind(mut bytes: &[u8]) {
    const BIAS: u64 = 0x5555_5555_0000;
    let mut registers = unwind::waiting_registers(0, 0);
    registers.iter_mut().for_each(|register| *register = word(&mut bytes));
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

/// Small files and lines that contain versions and interpreters.
fn versions(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let _ = (installed::release_version(&text), installed::node_header_version(&text));
    let _ = target::secure_exec(bytes);
    host::shebang(bytes);
}
