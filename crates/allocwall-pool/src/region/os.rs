//! The system calls, made through libc's functions, so that tools that watch `mmap` see these mappings too.

use super::{CollapseError, HUGE, Why};
use std::ptr::{self, NonNull};

/// Base pages of 4 KiB in a huge page. On machines with larger base pages, huge pages are larger too, and are refused.
pub(super) const BASE_PAGES: usize = HUGE / PAGE;
const PAGE: usize = 4096;

fn failed(call: &'static str) -> Why {
    Why::Failed { call, errno: errno() }
}

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// Readable, writable, private, anonymous memory at a multiple of [`HUGE`]; with guards, an inaccessible page on each
/// side.
pub(crate) fn map_aligned(len: usize, guards: bool, reserved: bool) -> Result<NonNull<u8>, Why> {
    let flags = if reserved { libc::MAP_HUGETLB } else { 0 };
    if !guards {
        // The kernel always aligns pages of the pool. Since Linux 6.7 it also aligns mappings of whole huge pages.
        let base = map(ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags)?;
        if (base as usize).is_multiple_of(HUGE) {
            return NonNull::new(base).ok_or(Why::TooLarge);
        }
        release(base, len);
    }
    let guard = if guards { PAGE } else { 0 };
    // Room for any misalignment and both guards.
    let span = len + HUGE + 2 * PAGE;
    let start = map(ptr::null_mut(), span, libc::PROT_NONE, libc::MAP_NORESERVE)?;
    let base = (start as usize + guard).next_multiple_of(HUGE);
    let at = ptr::with_exposed_provenance_mut::<u8>(base);
    start.expose_provenance();
    match map(at, len, libc::PROT_READ | libc::PROT_WRITE, flags | libc::MAP_FIXED) {
        Ok(_) => {
            let before = base - guard - start as usize;
            let behind = start as usize + span - (base + len + guard);
            release(start, before);
            release(ptr::with_exposed_provenance_mut(base + len + guard), behind);
            NonNull::new(at).ok_or(Why::TooLarge)
        }
        Err(why) => {
            release(start, span);
            Err(why)
        }
    }
}

fn map(at: *mut u8, len: usize, protection: i32, flags: i32) -> Result<*mut u8, Why> {
    // SAFETY: a new private mapping. A fixed address is used only within a range that this module has just reserved.
    let base = unsafe {
        libc::mmap(at.cast(), len, protection, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags, -1, 0)
    };
    if base == libc::MAP_FAILED {
        Err(failed(if flags & libc::MAP_HUGETLB != 0 { "mmap(MAP_HUGETLB)" } else { "mmap" }))
    } else {
        Ok(base.cast())
    }
}

/// Zeroed memory at any address, for tables. If `wiped`, a forked child gets it zeroed again (Linux 4.14).
pub(crate) fn table(len: usize, wiped: bool) -> Result<NonNull<u8>, Why> {
    let base = map(ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, 0)?;
    let base = NonNull::new(base).ok_or(Why::TooLarge)?;
    if wiped {
        let call = "madvise(MADV_WIPEONFORK)";
        advise(base, len, libc::MADV_WIPEONFORK, call).map_err(|why| {
            release(base.as_ptr(), len);
            match why {
                Why::Failed { errno: libc::EINVAL, .. } => Why::Kernel { call, since: "4.14" },
                why => why,
            }
        })?;
    }
    Ok(base)
}

/// Unmaps memory that no other code has seen. If it fails (`vm.max_map_count`), only reserved address space is lost.
fn release(start: *mut u8, len: usize) {
    if len > 0 {
        // SAFETY: part of a range that this module mapped and that no other code uses.
        unsafe { libc::munmap(start.cast(), len) };
    }
}

/// Unmaps the guard pages around a region.
pub(super) fn unguard(base: NonNull<u8>, len: usize) {
    release(base.as_ptr().wrapping_sub(PAGE), PAGE);
    release(base.as_ptr().wrapping_add(len), PAGE);
}

/// # Safety
///
/// No code uses the range any more.
pub(crate) unsafe fn unmap(base: NonNull<u8>, len: usize) -> Result<(), Why> {
    // SAFETY: the caller's promise.
    if unsafe { libc::munmap(base.as_ptr().cast(), len) } == 0 { Ok(()) } else { Err(failed("munmap")) }
}

pub(crate) fn advise(base: NonNull<u8>, len: usize, advice: i32, call: &'static str) -> Result<(), Why> {
    loop {
        // SAFETY: the callers pass memory of their own region, and promise that the contents may be lost if the
        // advice says so.
        if unsafe { libc::madvise(base.as_ptr().cast(), len, advice) } == 0 {
            return Ok(());
        }
        match errno() {
            libc::EINTR if advice == libc::MADV_POPULATE_WRITE => {}
            libc::EINVAL if advice == libc::MADV_POPULATE_WRITE => {
                return Err(Why::Kernel { call, since: "5.14" });
            }
            errno => return Err(Why::Failed { call, errno }),
        }
    }
}

/// Allocates every page, with one call or, before Linux 5.14, with a write to each page.
pub(super) fn populate(base: NonNull<u8>, len: usize) -> Result<(), Why> {
    match advise(base, len, libc::MADV_POPULATE_WRITE, "madvise(MADV_POPULATE_WRITE)") {
        Err(Why::Kernel { .. }) => {
            for offset in (0..len).step_by(PAGE) {
                let byte = base.as_ptr().wrapping_add(offset);
                // SAFETY: within the region. Atomic, and adds 0, so concurrent writes of other threads are kept.
                unsafe { std::sync::atomic::AtomicU8::from_ptr(byte) }
                    .fetch_add(0, std::sync::atomic::Ordering::Relaxed);
            }
            Ok(())
        }
        result => result,
    }
}

pub(super) fn lock(base: NonNull<u8>, len: usize) -> Result<(), Why> {
    // SAFETY: changes residency only.
    if unsafe { libc::mlock(base.as_ptr().cast(), len) } == 0 {
        return Ok(());
    }
    let why = failed("mlock");
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: writes into `limit`.
    let read = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) } == 0;
    match why {
        Why::Failed { errno: libc::ENOMEM | libc::EPERM | libc::EAGAIN, .. }
            if read && limit.rlim_cur < len as u64 =>
        {
            Err(Why::LockLimit(limit.rlim_cur))
        }
        _ => Err(why),
    }
}

/// Binds memory strictly to one node.
pub(super) fn bind(base: NonNull<u8>, len: usize, node: u32) -> Result<(), Why> {
    const WORD: usize = usize::BITS as usize;
    // Linux can be built for at most 1,024 nodes (CONFIG_NODES_SHIFT).
    let mut mask = [0usize; 1024 / WORD];
    *mask.get_mut(node as usize / WORD).ok_or(Why::NoNode(node))? = 1 << (node as usize % WORD);
    // SAFETY: sets the policy of the caller's own range; the kernel reads only the given number of bits of `mask`.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mbind,
            base.as_ptr(),
            len,
            libc::MPOL_BIND,
            mask.as_ptr(),
            // The kernel reads one bit fewer than this number (mm/mempolicy.c, get_nodes).
            mask.len() * WORD,
            0,
        )
    };
    if result == 0 { Ok(()) } else { Err(failed("mbind")) }
}

/// Linux 6.1 (include/uapi/asm-generic/mman-common.h); the libc crate has it for glibc alone.
const MADV_COLLAPSE: libc::c_int = 25;

pub(super) fn collapse(start: usize, len: usize) -> Result<(), CollapseError> {
    // SAFETY: the call keeps the contents of any memory; for unmapped or pinned memory it returns an error.
    let result = unsafe { libc::madvise(ptr::with_exposed_provenance_mut(start), len, MADV_COLLAPSE) };
    if result == 0 { Ok(()) } else { Err(CollapseError::from_errno(errno())) }
}

pub(super) fn resident_pages(start: usize) -> Result<usize, Why> {
    let mut pages = [0u8; BASE_PAGES];
    // SAFETY: writes one byte per base page into `pages`; does not read the range.
    let result = unsafe { libc::mincore(ptr::with_exposed_provenance_mut(start), HUGE, pages.as_mut_ptr()) };
    if result == 0 { Ok(pages.iter().filter(|page| **page & 1 == 1).count()) } else { Err(failed("mincore")) }
}
