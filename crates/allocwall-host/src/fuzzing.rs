//! The readers of untrusted bytes in this crate, by name, for fuzzing. `allocwall-readers` gathers those of
//! all crates.
//!
//! A reader must not panic, hang or use much memory on any input. If its result has a property that can be
//! checked without a second parser, that is checked.

use crate::proc::parse as proc;
use crate::{
    cgroup, elf, installed, link_map, loader, memory, numa_maps, perf, perf_faults, program, smaps, topology,
    tunables,
};
use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::File;
use std::io::Write;
use std::ops::ControlFlow;
use std::os::fd::AsRawFd;
use std::path::PathBuf;

pub struct Reader {
    pub name: &'static str,
    pub read: fn(&[u8]),
    /// The longest input for libFuzzer: longer inputs are slower and rarely find more.
    pub longest: usize,
}

pub const READERS: &[Reader] = &[
    reader("cgroup", cgroup_files, 1024),
    reader("link_map", link_map::walk_bytes, 2048),
    reader("lists", lists, 2048),
    reader("numa_maps", numa_pages, 4096),
    reader("perf_fault", perf_fault, 256),
    reader("perf_sample", perf_sample, 2048),
    reader("proc", proc::all_parsers, 4096),
    reader("smaps", smaps_file, 4096),
];

pub const fn reader(name: &'static str, read: fn(&[u8]), longest: usize) -> Reader {
    Reader { name, read, longest }
}

/// A file with these contents and without a name, and a path that opens it while the file lives.
pub fn nameless(bytes: &[u8]) -> (File, PathBuf) {
    let fd = memfd_create("fuzzing", MemfdFlags::CLOEXEC).expect("a file in memory");
    let mut file = File::from(fd);
    file.write_all(bytes).expect("memory for it");
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    (file, path.into())
}

/// A number from the start of the bytes, padded with zeros.
pub fn word(bytes: &mut &[u8]) -> u64 {
    let mut word = [0; 8];
    let taken = bytes.len().min(8);
    word[..taken].copy_from_slice(&bytes[..taken]);
    *bytes = &bytes[taken..];
    u64::from_le_bytes(word)
}

/// A piece from the start of the bytes, preceded by its length in two bytes.
pub fn piece<'a>(bytes: &mut &'a [u8]) -> &'a [u8] {
    let Some((length, rest)) = bytes.split_first_chunk::<2>() else {
        return std::mem::take(bytes);
    };
    let (piece, rest) = rest.split_at(usize::from(u16::from_le_bytes(*length)).min(rest.len()));
    *bytes = rest;
    piece
}

/// Everything that this crate reads of an ELF file.
pub fn elf(bytes: &[u8]) {
    elf::ask_everything(bytes);
    let (file, _) = nameless(bytes);
    if let Ok(Some(functions)) = elf::Functions::of(&file, 1000) {
        for address in [0, 1, 0x1000, u64::MAX] {
            let _ = functions.name(address, 100);
        }
    }
    if let Ok(calls) = elf::Calls::of(&file, |_| true) {
        for address in [0, 6, 0x1006, u64::MAX] {
            let _ = calls.before(address);
        }
    }
}

pub fn shebang(bytes: &[u8]) {
    let _ = program::shebang(bytes);
}

fn cgroup_files(bytes: &[u8]) {
    let _ = (cgroup::cpu_max(bytes), cgroup::throttling(bytes));
    let _ = (cgroup::group_memory(bytes, 1), cgroup::group_memory(bytes, 2));
    let _ = cgroup::cgroup_mounts(bytes, "/nowhere".as_ref());
}

/// The text that the kernel, the loader and ldconfig print.
fn lists(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let _ = topology::parse_cpu_list(&text);
    let _ = memory::huge_bytes_within(&text, 0x1000, u64::MAX);
    let _ = loader::parse_list(bytes);
    let _ = installed::cached_paths(&text);
    for tunable in tunables::parse(bytes).unwrap_or_default() {
        let _ = (tunable.range(), tunable.check("4096"));
    }
    let _ = tunables::parse_size(&text);
}

fn smaps_file(bytes: &[u8]) {
    let mut mappings = 0;
    let whole = smaps::read(bytes, |vma| {
        assert!(vma.mapping.start < vma.mapping.end);
        mappings += 1;
        ControlFlow::Continue(())
    });
    assert_eq!(whole.expect("bytes are there").mappings, mappings);
}

fn numa_pages(bytes: &[u8]) {
    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let nodes = numa_maps::read(bytes, "numa_maps".as_ref(), until).unwrap_or_default();
    assert!(nodes.is_sorted_by(|a, b| a.node < b.node));
}

fn perf_fault(bytes: &[u8]) {
    let _ = perf_faults::parse_fault(bytes);
}

fn perf_sample(bytes: &[u8]) {
    let mut chain = Vec::new();
    let _ = perf::parse_sample(bytes, false, &mut chain);
    let _ = (perf::record_time(9, bytes), perf::record_time(1, bytes));
}
