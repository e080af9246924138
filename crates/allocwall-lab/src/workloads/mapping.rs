//! Map churn and the address-space lock, and the anonymous mapping that other subjects also use.

use super::clock::{Watch, thread_cpu_ns};
use super::computing::Computing;
use super::process;
use super::stage::{Base, Stage};
use anyhow::{Context, Result};
use std::ptr::NonNull;
use std::sync::atomic::AtomicI64;

pub const PAGE: usize = 4096;

/// Memory with 4 KiB pages only, in every mode of transparent huge pages.
pub struct Mapping {
    start: NonNull<u8>,
    length: usize,
}

impl Mapping {
    pub fn new(length: usize) -> Mapping {
        let mapping = Mapping::plain(length);
        // SAFETY: our own mapping.
        unsafe { libc::madvise(mapping.start.as_ptr().cast(), length, libc::MADV_NOHUGEPAGE) };
        mapping
    }

    /// Without madvise: only one system call.
    fn plain(length: usize) -> Mapping {
        Mapping::with_flags(length, libc::MAP_PRIVATE)
    }

    /// The map call touches all pages; it holds the address-space lock during this time.
    fn populated(length: usize) -> Mapping {
        Mapping::with_flags(length, libc::MAP_PRIVATE | libc::MAP_POPULATE)
    }

    /// Children that are forked later use the same memory.
    pub fn shared(length: usize) -> Mapping {
        Mapping::with_flags(length, libc::MAP_SHARED)
    }

    fn with_flags(length: usize, flags: libc::c_int) -> Mapping {
        // SAFETY: a new anonymous mapping does not overlap other memory.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_ANONYMOUS | flags,
                -1,
                0,
            )
        };
        assert_ne!(start, libc::MAP_FAILED, "mmap: {}", std::io::Error::last_os_error());
        Mapping { start: NonNull::new(start.cast()).expect("mmap gave null"), length }
    }

    pub fn write_each_page(&mut self) {
        self.write_pages(self.length / PAGE);
    }

    fn write_pages(&mut self, pages: usize) {
        for page in 0..pages.min(self.length / PAGE) {
            // SAFETY: within the mapping.
            unsafe { self.start.as_ptr().add(page * PAGE).write_volatile(1) };
        }
    }

    /// The first eight bytes, as a number that several processes can use.
    pub fn first_word(&self) -> &AtomicI64 {
        // SAFETY: the mapping is at least a page, starts at a page, and lives as long as `self`. Every value of its bytes is a
        // valid number. This process writes to it in other ways only with `&mut self`.
        unsafe { AtomicI64::from_ptr(self.start.as_ptr().cast()) }
    }

    /// MADV_FREE: the kernel may take the pages, but need not. A write keeps its page.
    ///
    /// # Errors
    /// The kernel's.
    pub fn free_lazily(&mut self) -> std::io::Result<()> {
        // SAFETY: our own mapping, which holds plain bytes only.
        let outcome = unsafe { libc::madvise(self.start.as_ptr().cast(), self.length, libc::MADV_FREE) };
        if outcome == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    }

    /// Returns the pages and keeps the mapping.
    pub fn discard(&mut self) {
        // SAFETY: our own mapping, which holds plain bytes only.
        unsafe { libc::madvise(self.start.as_ptr().cast(), self.length, libc::MADV_DONTNEED) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: our own mapping, unmapped once.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.length) };
    }
}

const CHURN_BLOCK: usize = 256 * 1024;
const CHURN_BLOCKS: usize = 64;

/// Blocks above malloc's mmap threshold, so that each call is a map or an unmap. A tunable fixes the threshold, as operators
/// sometimes do to save memory. malloc writes a header and so touches a page, so the fault is part of the churn.
pub fn map_churn(stage: &Stage) -> Result<()> {
    let twin = stage.options.twin;
    process::with_tunables(&[("glibc.malloc.mmap_threshold", "131072")])?;
    let worker = |_| {
        let allocate = || {
            // SAFETY: malloc has no precondition; `write` checks for null before it uses a block.
            unsafe { libc::malloc(CHURN_BLOCK) }.cast::<u8>()
        };
        let write = |blocks: &[*mut u8]| {
            for &block in blocks {
                assert!(!block.is_null(), "out of memory");
                // SAFETY: the first byte of a live block.
                unsafe { block.write_volatile(1) };
            }
        };
        let mut blocks = [std::ptr::null_mut(); CHURN_BLOCKS];
        let kept: [*mut u8; CHURN_BLOCKS] = std::array::from_fn(|_| allocate());
        stage.mix(Base::Cpu, || {
            stage.operations.add(CHURN_BLOCKS as i64);
            if twin {
                let before = thread_cpu_ns();
                for _ in 0..1_000 {
                    write(&kept);
                }
                return (thread_cpu_ns() - before) as i64;
            }
            let start = thread_cpu_ns();
            blocks.fill_with(allocate);
            write(&blocks);
            for &block in &blocks {
                // SAFETY: allocated above and freed once.
                unsafe { libc::free(block.cast()) };
            }
            let churn = (thread_cpu_ns() - start) as i64;
            stage.line(0).add(churn);
            churn
        });
    };
    stage.perform(worker, |_| Ok(()))
}

/// The same by direct system calls, so that no setting of an allocator helps. Mapping, writing and unmapping are done one after
/// the other in batches, so that each can be timed.
pub fn map_direct(stage: &Stage) -> Result<()> {
    let twin = stage.options.twin;
    let worker = |_| {
        let mut mappings = Vec::with_capacity(CHURN_BLOCKS);
        let mut kept = Mapping::new(CHURN_BLOCK);
        stage.mix(Base::Cpu, || {
            stage.operations.add(CHURN_BLOCKS as i64);
            let start = thread_cpu_ns();
            if twin {
                for _ in 0..1_000 {
                    kept.write_each_page();
                }
                return (thread_cpu_ns() - start) as i64;
            }
            mappings.extend((0..CHURN_BLOCKS).map(|_| Mapping::plain(CHURN_BLOCK)));
            let mapped = thread_cpu_ns();
            mappings.iter_mut().for_each(|mapping| mapping.write_pages(1));
            let written = thread_cpu_ns();
            mappings.clear();
            let churn = (thread_cpu_ns() - written + mapped - start) as i64;
            stage.line(0).add(churn);
            stage.line(1).add((written - mapped) as i64);
            churn
        });
    };
    stage.perform(worker, |_| Ok(()))
}

const LOCK_BLOCK: usize = 512 * 1024;
const LOCK_BATCH: usize = 4;

/// Threads that map, populate and unmap in one address space. Mapping and unmapping take its lock for writing; populating
/// holds it for reading, so that each thread waits while another one populates. In the twin one thread does all of it and never
/// waits. Only the time asleep is measured; the time that the kernel spins before it sleeps cannot be measured from outside.
pub fn address_space_lock(stage: &Stage) -> Result<()> {
    let twin = stage.options.twin;
    Watch::new().context("skipped: no /proc/thread-self/schedstat")?;
    let worker = |index| {
        let watch = Watch::new().expect("schedstat was readable before");
        let mut computing = Computing::new();
        stage.mix(Base::Wall, || {
            let before = watch.read();
            if twin && index != 0 {
                computing.batch();
                return 0;
            }
            for _ in 0..LOCK_BATCH {
                Mapping::populated(LOCK_BLOCK);
            }
            let lap = before.until(watch.read());
            stage.operations.add(LOCK_BATCH as i64);
            stage.wait(0).add(lap.blocked_ns);
            if twin { lap.wall_ns } else { lap.blocked_ns.max(0) }
        });
    };
    stage.perform(worker, |_| Ok(()))
}
