//! Faults on a mapped file; the twin reads from a mapping that is kept.

use super::clock::thread_cpu_ns;
use super::mapping::PAGE;
use super::process::temporary_file;
use super::stage::{Base, Stage};
use anyhow::{Context, Result};
use std::fs::File;
use std::hint::black_box;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;

/// More than the second-level TLB covers, so that the second read of a page misses the TLB like the first.
const PAGES: usize = 8192;
const LENGTH: usize = PAGES * PAGE;

/// The file is not synced, so its pages stay in the page cache. One page at a time, because from larger writes a file system may
/// make larger pages, which one fault maps faster.
fn cached_file() -> Result<File> {
    let file = temporary_file()?;
    for page in 0..PAGES {
        file.write_all_at(&[1; PAGE], (page * PAGE) as u64)
            .context("skipped: no room for a file of 32 MiB")?;
    }
    Ok(file)
}

/// The whole file, read-only, with 4 KiB pages in every mode of transparent huge pages.
/// A fault maps as many pages (do_fault_around in mm/memory.c). This cannot be changed for one mapping: MADV_RANDOM only affects
/// reads from storage.
const AROUND: usize = 16;
const CACHE_LINE: usize = 64;

struct FileMapping {
    start: NonNull<u8>,
}

impl FileMapping {
    fn new(file: &File) -> FileMapping {
        // SAFETY: a new mapping does not overlap other memory.
        let start = unsafe {
            libc::mmap(std::ptr::null_mut(), LENGTH, libc::PROT_READ, libc::MAP_PRIVATE, file.as_raw_fd(), 0)
        };
        assert_ne!(start, libc::MAP_FAILED, "mmap: {}", std::io::Error::last_os_error());
        // SAFETY: our own mapping.
        unsafe { libc::madvise(start, LENGTH, libc::MADV_NOHUGEPAGE) };
        FileMapping { start: NonNull::new(start.cast()).expect("mmap gave null") }
    }

    /// Reads one byte for each fault: of each next page the next cache line, so that all of them fit into the cache.
    fn read(&self) {
        for (nth, page) in (0..PAGES).step_by(AROUND).enumerate() {
            let at = page * PAGE + nth * CACHE_LINE % PAGE;
            // SAFETY: within the mapping, and within the file, which no other process can open and shorten.
            black_box(unsafe { self.start.as_ptr().add(at).read_volatile() });
        }
    }
}

impl Drop for FileMapping {
    fn drop(&mut self) {
        // SAFETY: our own mapping, unmapped once.
        unsafe { libc::munmap(self.start.as_ptr().cast(), LENGTH) };
    }
}

/// Each read has a fault, whose cost is mostly that of finding and mapping the pages around it. The other pages are not read: there
/// the first read took some 70 ns longer than the second, without a fault, and the subject would count that as the fault's time.
/// For the same reason all bytes are read through another mapping before: then they are in the cache.
pub fn file_touch(stage: &Stage) -> Result<()> {
    let file = cached_file()?;
    let twin = stage.options.twin;
    let worker = |_| {
        let kept = FileMapping::new(&file);
        stage.mix(Base::Cpu, || {
            stage.operations.add((PAGES / AROUND) as i64);
            let start = thread_cpu_ns();
            if twin {
                for _ in 0..4 {
                    kept.read();
                }
                return (thread_cpu_ns() - start) as i64;
            }
            kept.read();
            let start = thread_cpu_ns();
            let mapping = FileMapping::new(&file);
            let mapped = thread_cpu_ns();
            mapping.read();
            let touched = thread_cpu_ns();
            // The same reads again, to measure their cost without faults.
            mapping.read();
            let reread = thread_cpu_ns();
            drop(mapping);
            let unmapped = thread_cpu_ns();
            let faults = (touched - mapped) as i64 - (reread - touched) as i64;
            stage.line(0).add(faults);
            stage.line(1).add((mapped - start + unmapped - reread) as i64);
            faults
        });
    };
    stage.perform(worker, |_| Ok(()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocwall_host::memory::thread_counts;

    #[test]
    fn the_first_reads_of_each_mapping_fault_and_the_next_do_not() {
        let file = cached_file().unwrap();
        for _ in 0..2 {
            let mapping = FileMapping::new(&file);
            let faults = || {
                let before = thread_counts().minor_faults;
                mapping.read();
                thread_counts().minor_faults - before
            };
            let (first, second) = (faults(), faults());
            // However many pages a fault maps, it does not go beyond one page table, which has 512 of them.
            assert!(first >= PAGES as u64 / 512 && second < first / 4, "{first}, then {second} faults");
        }
    }
}
