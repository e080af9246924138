//! The system calls that slabs need, as a trait, so that tests can replace them.

use crate::region::{Advice, HUGE, Pages, Why, advise, os};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering};

/// Maps, touches and frees slabs, by address.
pub trait System {
    /// Nanoseconds of a monotonic clock.
    fn now(&self) -> u64;

    /// Maps a slab and returns its address, a multiple of [`HUGE`]. Reserved pages are already allocated.
    ///
    /// # Errors
    ///
    /// The reason if the slab cannot be mapped.
    fn map(&self, pages: Pages) -> Result<usize, Why>;

    /// Touches this number of base pages from the slab's start. Returns the CPU time in nanoseconds.
    fn touch(&self, base: usize, pages: usize) -> u64;

    /// Allows khugepaged to make the slab huge from now on.
    fn make_eligible(&self, base: usize);

    /// Unmaps a slab.
    ///
    /// # Errors
    ///
    /// The kernel's error. The slab is then still mapped.
    fn unmap(&self, base: usize) -> Result<(), Why>;

    /// Allows the kernel to reclaim the slab's pages when memory is short.
    fn free_lazily(&self, base: usize);

    /// Returns the slab's pages to the system now. Its addresses stay mapped.
    fn drop_pages(&self, base: usize);

    /// Returns the memory of an unused arena to the system. False if the kernel refuses. Afterwards the slab is not
    /// eligible for huge pages, because khugepaged would allocate the returned memory again.
    fn trim(&self, arena: usize, bytes: usize) -> bool;
}

/// The Linux system that the program runs on.
#[derive(Clone, Copy, Debug)]
pub struct Linux;

impl System for Linux {
    fn now(&self) -> u64 {
        clock(libc::CLOCK_MONOTONIC)
    }

    fn map(&self, pages: Pages) -> Result<usize, Why> {
        let base = os::map_aligned(HUGE, false, pages == Pages::Reserved)?;
        let (advice, call) = match pages {
            Pages::Reserved => (libc::MADV_POPULATE_WRITE, "madvise(MADV_POPULATE_WRITE)"),
            Pages::Transparent => (libc::MADV_HUGEPAGE, "madvise(MADV_HUGEPAGE)"),
            Pages::Plain => (libc::MADV_NOHUGEPAGE, "madvise(MADV_NOHUGEPAGE)"),
        };
        if let Err(why) = os::advise(base, HUGE, advice, call)
            && pages == Pages::Reserved
        {
            // Reserved, but not available: a cgroup's limit, or a node's share. To use it would be a SIGBUS.
            // SAFETY: mapped above; no other code knows it.
            let _ = unsafe { os::unmap(base, HUGE) };
            return Err(why);
        }
        base.as_ptr().expose_provenance();
        Ok(base.as_ptr() as usize)
    }

    fn touch(&self, base: usize, pages: usize) -> u64 {
        let start = clock(libc::CLOCK_THREAD_CPUTIME_ID);
        for page in 0..pages {
            let byte = std::ptr::with_exposed_provenance_mut::<u8>(base + page * 4096);
            // SAFETY: within a slab that was just mapped and that no other code knows.
            unsafe { AtomicU8::from_ptr(byte) }.store(0, Ordering::Relaxed);
        }
        clock(libc::CLOCK_THREAD_CPUTIME_ID).saturating_sub(start)
    }

    fn make_eligible(&self, base: usize) {
        // If the kernel refuses, the slab stays on small pages.
        let _ = on(base, HUGE, Advice::Huge);
    }

    fn unmap(&self, base: usize) -> Result<(), Why> {
        match slab(base) {
            // SAFETY: an empty slab that was removed from the ledger, or one that was never in it.
            Some(base) => unsafe { os::unmap(base, HUGE) },
            None => Ok(()),
        }
    }

    fn free_lazily(&self, base: usize) {
        // If the kernel refuses, the pages stay. The slab is kept anyway.
        let _ = on(base, HUGE, Advice::Free);
    }

    fn drop_pages(&self, base: usize) {
        // If the kernel refuses, the pages stay.
        let _ = on(base, HUGE, Advice::DontNeed);
    }

    fn trim(&self, arena: usize, bytes: usize) -> bool {
        // The kernel refuses if the memory is locked. The slab is then left as it is.
        let gone = on(arena, bytes, Advice::DontNeed).is_ok();
        if gone && let Some(base) = slab(arena & !(HUGE - 1)) {
            // If the kernel refuses (too many mappings to split one), khugepaged may allocate the pages again.
            let _ = os::advise(base, HUGE, libc::MADV_NOHUGEPAGE, "madvise(MADV_NOHUGEPAGE)");
        }
        gone
    }
}

fn slab(base: usize) -> Option<NonNull<u8>> {
    NonNull::new(std::ptr::with_exposed_provenance_mut(base))
}

fn on(base: usize, bytes: usize, advice: Advice) -> Result<(), Why> {
    match slab(base) {
        // SAFETY: one of our slabs; if the advice discards its contents, it is empty and not in the ledger. Or an
        // arena that is not in use, and that is claimed, so that it cannot be allocated meanwhile.
        Some(base) => unsafe { advise(base, bytes, advice) },
        None => Ok(()),
    }
}

/// Reads a clock, in nanoseconds. Both clocks exist on every supported Linux.
fn clock(id: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes into `time`.
    unsafe { libc::clock_gettime(id, &mut time) };
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
}
