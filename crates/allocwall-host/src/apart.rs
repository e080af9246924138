//! Rust's own memory of a process apart from malloc.
//!
//! A replay measures malloc. What the process itself allocates and frees before, to read its options and to plan the calls, would leave
//! free blocks behind, between which the blocks of the replay would have to fit: a buffer that grows would meet their ends, and would
//! be copied where that of the target is not.

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use std::alloc::{GlobalAlloc, Layout, System};
use std::io;
use std::ptr::{self, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// More than any plan takes. Only pages that are written take memory.
const ROOM: usize = 2 << 30;

static START: AtomicPtr<u8> = AtomicPtr::new(null_mut());
/// Bytes of the region that are in use.
static USED: AtomicUsize = AtomicUsize::new(0);

/// From now on, this process's Rust memory comes from a region of its own and is never freed, if [`Apart`] is its allocator.
///
/// # Errors
/// The kernel has no addresses for it.
pub fn keep_apart() -> io::Result<()> {
    // SAFETY: a new mapping at an address that the kernel chooses.
    let start = unsafe {
        mmap_anonymous(
            null_mut(),
            ROOM,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE | MapFlags::NORESERVE,
        )?
    };
    START.store(start.cast(), Ordering::Release);
    Ok(())
}

/// The system's allocator, until [`keep_apart`] is called.
pub struct Apart;

impl Apart {
    /// A part of the region, zeroed; null if it is full.
    fn take(start: *mut u8, layout: Layout) -> *mut u8 {
        let from = |used: usize| {
            let at = (start.addr() + used).checked_next_multiple_of(layout.align())? - start.addr();
            Some((at, at.checked_add(layout.size()).filter(|end| *end <= ROOM)?))
        };
        let before = USED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| Some(from(used)?.1));
        // SAFETY: `from` checked that the part ends within the region.
        before.ok().and_then(from).map_or(null_mut(), |(at, _)| unsafe { start.add(at) })
    }
}

// SAFETY: each part of the region is given once and never again, at its alignment; all other blocks are the system's, which the address
// tells apart.
unsafe impl GlobalAlloc for Apart {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match START.load(Ordering::Acquire) {
            // SAFETY: the caller's promise.
            start if start.is_null() => unsafe { System.alloc(layout) },
            start => Apart::take(start, layout),
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match START.load(Ordering::Acquire) {
            // SAFETY: the caller's promise.
            start if start.is_null() => unsafe { System.alloc_zeroed(layout) },
            start => Apart::take(start, layout),
        }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        let start = START.load(Ordering::Acquire).addr();
        if start == 0 || !(start..start + ROOM).contains(&at.addr()) {
            // SAFETY: the caller's promise; the block is the system's.
            unsafe { System.dealloc(at, layout) }
        }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let start = START.load(Ordering::Acquire);
        if start.is_null() {
            // SAFETY: the caller's promise.
            return unsafe { System.realloc(at, layout, size) };
        }
        // SAFETY: the caller promises that the size is valid with this alignment.
        let new = Apart::take(start, unsafe { Layout::from_size_align_unchecked(size, layout.align()) });
        if !new.is_null() {
            // SAFETY: both have so many bytes, and the new part overlaps nothing.
            unsafe { ptr::copy_nonoverlapping(at, new, layout.size().min(size)) };
            // SAFETY: the caller's promise.
            unsafe { self.dealloc(at, layout) };
        }
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_both_kinds_are_told_apart() {
        let layout = Layout::from_size_align(100, 8).unwrap();
        // SAFETY: blocks are used within their sizes, and each is freed once with its layout.
        unsafe {
            let before = Apart.alloc(layout);
            before.write_bytes(7, 100);
            keep_apart().unwrap();
            let (start, end) =
                (START.load(Ordering::Acquire).addr(), START.load(Ordering::Acquire).addr() + ROOM);
            let within = |at: *mut u8| (start..end).contains(&at.addr());
            let moved = Apart.realloc(before, layout, 200);
            assert!(!within(before) && within(moved));
            assert_eq!(std::slice::from_raw_parts(moved, 100), [7; 100]);
            let aligned = Apart.alloc_zeroed(Layout::from_size_align(3, 4096).unwrap());
            assert!(within(aligned) && aligned.addr().is_multiple_of(4096) && aligned.read() == 0);
            // Nothing is given twice, and what does not fit is refused.
            Apart.dealloc(moved, Layout::from_size_align(200, 8).unwrap());
            let next = Apart.alloc(layout);
            assert!(within(next) && next > aligned);
            assert!(Apart.alloc(Layout::from_size_align(ROOM, 1).unwrap()).is_null());
            assert!(within(Apart.alloc(layout)));
        }
    }
}
