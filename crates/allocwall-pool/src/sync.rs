//! What the protocols are made of: atomics, shared cells and padding, from core or, under `cfg(loom)`, from loom.

#[cfg(not(loom))]
pub(crate) use alloc::sync::Arc;
#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicUsize, Ordering};
#[cfg(loom)]
pub(crate) use loom::{
    cell::UnsafeCell,
    sync::Arc,
    sync::atomic::{AtomicUsize, Ordering},
};

/// A word as the only thread that writes it sees it.
#[cfg(not(loom))]
#[inline(always)]
pub(crate) fn by_its_writer(word: &AtomicUsize) -> usize {
    word.load(Ordering::Relaxed)
}

/// A relaxed load, right before a read-modify-write of the same word.
#[cfg(not(loom))]
#[inline(always)]
pub(crate) fn before_change(word: &AtomicUsize) -> usize {
    word.load(Ordering::Relaxed)
}

// Of an atomic's accesses loom 0.7 remembers the last. A load right before the same thread's store would so hide the loads of
// others, and the orders in which the store comes before them would not be tried. These two are no loads to it.

#[cfg(loom)]
pub(crate) fn by_its_writer(word: &AtomicUsize) -> usize {
    // SAFETY: loom panics if another thread's store is not ordered before.
    unsafe { word.unsync_load() }
}

#[cfg(loom)]
pub(crate) fn before_change(word: &AtomicUsize) -> usize {
    word.fetch_add(0, Ordering::Relaxed)
}

/// core's `UnsafeCell` with the interface of loom's, which checks each access.
#[cfg(not(loom))]
#[repr(transparent)]
pub(crate) struct UnsafeCell<T>(core::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    #[inline(always)]
    pub(crate) const fn new(value: T) -> Self {
        Self(core::cell::UnsafeCell::new(value))
    }

    #[inline(always)]
    pub(crate) fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        f(self.0.get())
    }

    #[inline(always)]
    pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}

/// Keeps what two CPUs write apart. Two lines, since Intel's L2 fetches lines in pairs (Optimization Reference
/// Manual, "Spatial prefetcher").
#[repr(align(128))]
pub(crate) struct Padded<T>(pub(crate) T);

impl<T> core::ops::Deref for Padded<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.0
    }
}
