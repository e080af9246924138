//! The files that a process's dynamic loader has loaded, in its order. The loader keeps the list for
//! debuggers (link.h, struct r_debug); it is read from the process's memory. glibc and musl use the same
//! layout.

use crate::file;
use allocwall_model::units::{Absence, Measured, Reason};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::mpsc::channel;
use std::thread::Builder;
use std::time::Duration;

/// Programs load some hundreds of files. A hostile program may make the list circular.
const MOST_FILES: usize = 4096;
const MOST_HEADERS: u64 = 64;
const MOST_DYNAMIC: u64 = 512;

// getauxval(3), elf(5).
const AT_PHDR: u64 = 3;
const AT_PHNUM: u64 = 5;
const PT_DYNAMIC: u32 = 2;
const PT_PHDR: u32 = 6;
const HEADER_BYTES: u64 = 56;
const DT_NULL: u64 = 0;
const DT_DEBUG: u64 = 21;

/// A value of the auxiliary vector in /proc/PID/auxv of a 64-bit process.
pub fn auxiliary(auxv: &[u8], key: u64) -> Option<u64> {
    let (pairs, _) = auxv.as_chunks::<16>();
    pairs.iter().find(|pair| word(*pair, 0) == key).map(|pair| word(pair, 8))
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(std::array::from_fn(|i| bytes[at + i]))
}

/// The load bias of each file, in bytes: the program first, then the files in the order in which the loader
/// loaded them. For 64-bit processes; `folder` is the /proc/PID of the process.
///
/// # Errors
/// Its memory may not be read, it is linked statically, or its loader has not run yet.
pub fn biases(folder: &Path) -> Measured<Vec<u64>> {
    const PATIENCE: Duration = Duration::from_millis(200);
    let (done, waiting) = channel();
    let folder = folder.to_owned();
    // In a separate thread: a page of the list may belong to a file whose server never answers (FUSE).
    let started = Builder::new().spawn(move || done.send(biases_of(&folder)));
    let answer = started.ok().and_then(|_| waiting.recv_timeout(PATIENCE).ok());
    answer.unwrap_or_else(|| {
        Err(Absence::new(
            Reason::TooCostly,
            format!("the list of loaded files could not be read within {} ms", PATIENCE.as_millis()),
        ))
    })
}

fn biases_of(folder: &Path) -> Measured<Vec<u64>> {
    let auxv = file::read(&folder.join("auxv"), |auxv| Ok(auxv.to_vec()))?;
    let path = folder.join("mem");
    let memory = File::open(&path).map_err(|error| file::absence_of(&path, &error))?;
    let read = |address: u64, bytes: &mut [u8]| memory.read_exact_at(bytes, address).ok();
    walk(&auxv, read).ok_or_else(|| {
        Absence::new(
            Reason::NotFound,
            format!("no list of loaded files in the memory of {}", folder.display()),
        )
    })
}

/// None if the list is not complete. `read` fills the buffer with the bytes at that address.
fn walk(auxv: &[u8], read: impl Fn(u64, &mut [u8]) -> Option<()>) -> Option<Vec<u64>> {
    let headers = auxiliary(auxv, AT_PHDR)?;
    let header = |n: u64| {
        let mut bytes = [0; HEADER_BYTES as usize];
        read(headers.checked_add(n * HEADER_BYTES)?, &mut bytes)?;
        // p_type is the first half of the first word, p_vaddr the third word.
        Some((word(&bytes, 0) as u32, word(&bytes, 16)))
    };
    let of_type = |wanted: u32| {
        let count = auxiliary(auxv, AT_PHNUM)?.min(MOST_HEADERS);
        (0..count).map_while(header).find(|(kind, _)| *kind == wanted)
    };
    // Without PT_PHDR the bias of the program is 0.
    let bias = of_type(PT_PHDR).map_or(0, |(_, address)| headers.wrapping_sub(address));
    let dynamic = of_type(PT_DYNAMIC)?.1.wrapping_add(bias);
    let entries = (0..MOST_DYNAMIC).map_while(|n| {
        let mut bytes = [0; 16];
        read(dynamic.checked_add(n * 16)?, &mut bytes)?;
        Some((word(&bytes, 0), word(&bytes, 8)))
    });
    let (_, debug) = entries.take_while(|(tag, _)| *tag != DT_NULL).find(|(tag, _)| *tag == DT_DEBUG)?;
    // struct r_debug: r_version, r_map.
    let mut bytes = [0; 8];
    read(debug.checked_add(8)?, &mut bytes)?;
    let mut biases = Vec::new();
    let mut next = word(&bytes, 0);
    while next != 0 {
        if biases.len() == MOST_FILES {
            return None;
        }
        // struct link_map: l_addr, l_name, l_ld, l_next.
        let mut bytes = [0; 32];
        read(next, &mut bytes)?;
        biases.push(word(&bytes, 0));
        next = word(&bytes, 24);
    }
    (!biases.is_empty()).then_some(biases)
}

/// Walks a list in any bytes for the vector and the memory.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn walk_bytes(bytes: &[u8]) {
    let (auxv, memory) = bytes.split_at(bytes.len().min(64));
    let _ = walk(auxv, |address, buffer| copy(memory, address, buffer));
}

#[cfg(any(test, feature = "fuzzing"))]
fn copy(memory: &[u8], address: u64, buffer: &mut [u8]) -> Option<()> {
    let from = usize::try_from(address).ok()?;
    buffer.copy_from_slice(memory.get(from..from.checked_add(buffer.len())?)?);
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::process::{Command, Stdio};

    /// The list of the C library itself for this process.
    fn by_dl_iterate() -> Vec<u64> {
        unsafe extern "C" fn keep(info: *mut libc::dl_phdr_info, _: usize, kept: *mut libc::c_void) -> i32 {
            // SAFETY: dl_iterate_phdr passes a valid info and the pointer given below.
            unsafe { (*kept.cast::<Vec<u64>>()).push((*info).dlpi_addr) };
            0
        }
        let mut kept: Vec<u64> = Vec::new();
        // SAFETY: `keep` runs with `kept` only during this call.
        unsafe { libc::dl_iterate_phdr(Some(keep), (&raw mut kept).cast()) };
        kept
    }

    #[test]
    fn the_list_of_this_process_is_that_of_the_c_library() {
        assert_eq!(biases(Path::new("/proc/self")), Ok(by_dl_iterate()));
    }

    #[test]
    fn an_ended_process_and_a_kernel_thread_have_no_list() {
        let mut child = Command::new("sleep").arg("60").stdout(Stdio::null()).spawn().unwrap();
        let folder = format!("/proc/{}", child.id());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(biases(Path::new(&folder)).is_err());
        assert!(biases(Path::new("/proc/2")).is_err());
    }

    /// A vector, two program headers, a dynamic section, r_debug and one entry of the list, whose next entry
    /// is `next`.
    fn memory(next: u64) -> (Vec<u8>, Vec<u8>) {
        let words = |words: &[u64]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>();
        let auxv = words(&[AT_PHDR, 64, AT_PHNUM, 2, 0, 0]);
        let mut memory = vec![0; 64];
        memory.extend(words(&[PT_PHDR.into(), 0, 64, 0, 0, 0, 0]));
        memory.extend(words(&[PT_DYNAMIC.into(), 0, 176, 0, 0, 0, 0]));
        memory.extend(words(&[DT_DEBUG, 208, DT_NULL, 0]));
        memory.extend(words(&[1, 224]));
        memory.extend(words(&[0x1000, 0, 0, next]));
        (auxv, memory)
    }

    fn walked(next: u64) -> Option<Vec<u64>> {
        let (auxv, memory) = memory(next);
        walk(&auxv, |address, buffer| copy(&memory, address, buffer))
    }

    #[test]
    fn a_circular_list_and_an_unreadable_entry_are_rejected() {
        assert_eq!(walked(0), Some(vec![0x1000]));
        assert_eq!(walked(224), None);
        assert_eq!(walked(u64::MAX - 3), None);
    }

    proptest! {
        #[test]
        fn the_walk_ends_for_any_memory(bytes: Vec<u8>) {
            walk_bytes(&bytes);
        }
    }
}
