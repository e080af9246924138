//! What slabs need of the system, so that tests can put another in its place.

use crate::region::{Advice, HUGE, Pages, Why, advise, os};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering};

/// Maps, touches and lets go of slabs, by address.
pub trait System {
    /// Nanoseconds of a clock that only goes forward.
    fn now(&self) -> u64;

    /// A slab: an address at a multiple of [`HUGE`]. Reserved pages are taken already.
    fn map(&self, pages: Pages) -> Result<usize, Why>;

    /// Touches so many base pages from the slab's start: nanoseconds of CPU time.
    fn touch(&self, base: usize, pages: usize) -> u64;

    /// From now on khugepaged may make it huge.
    fn make_eligible(&self, base: usize);

    fn unmap(&self, base: usize) -> Result<(), Why>;

    /// The kernel may take its pages when it is short.
    fn free_lazily(&self, base: usize);

    fn drop_pages(&self, base: usize);

    /// Gives back the memory of a slab's arena that nobody uses, if the kernel lets us. The slab stays on small
    /// pages: khugepaged would fill what is gone.
    fn trim(&self, arena: usize, bytes: usize) -> bool;
}

/// The system that we run on.
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
            // Reserved, and yet not to be had: a cgroup's limit, or a node's share. Used, it would be a SIGBUS.
            // SAFETY: mapped above, known to nobody else.
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
            // SAFETY: within a slab that was just mapped and that nobody else knows of.
            unsafe { AtomicU8::from_ptr(byte) }.store(0, Ordering::Relaxed);
        }
        clock(libc::CLOCK_THREAD_CPUTIME_ID).saturating_sub(start)
    }

    fn make_eligible(&self, base: usize) {
        // Refused, it stays small.
        let _ = on(base, HUGE, Advice::Huge);
    }

    fn unmap(&self, base: usize) -> Result<(), Why> {
        match slab(base) {
            // SAFETY: an empty slab that was taken off the ledger, or one that never was on it.
            Some(base) => unsafe { os::unmap(base, HUGE) },
            None => Ok(()),
        }
    }

    fn free_lazily(&self, base: usize) {
        // Refused, the pages stay: kept all the same.
        let _ = on(base, HUGE, Advice::Free);
    }

    fn drop_pages(&self, base: usize) {
        // Refused, the pages stay.
        let _ = on(base, HUGE, Advice::DontNeed);
    }

    fn trim(&self, arena: usize, bytes: usize) -> bool {
        // Refused where memory is locked: then the slab is left as it is.
        let gone = on(arena, bytes, Advice::DontNeed).is_ok();
        if gone && let Some(base) = slab(arena & !(HUGE - 1)) {
            // Refused (too many mappings to set one apart), khugepaged may bring the pages back.
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
        // SAFETY: a slab of ours; where its contents may go, it is empty and off the ledger. Or an arena of one that
        // may go, which is nobody's and claimed, so that it can't become anybody's meanwhile.
        Some(base) => unsafe { advise(base, bytes, advice) },
        None => Ok(()),
    }
}

/// Both clocks exist on every Linux that runs us.
fn clock(id: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes into `time`.
    unsafe { libc::clock_gettime(id, &mut time) };
    (time.tv_sec as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(time.tv_nsec as u64)
}
