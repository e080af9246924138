//! The primitives of the protocols: atomics, shared cells and padding, from core or, under `cfg(loom)`, from loom.

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicUsize, Ordering};
#[cfg(loom)]
pub(crate) use loom::{
    cell::UnsafeCell,
    sync::atomic::{AtomicUsize, Ordering},
};

/// A word, read by the only thread that writes it.
#[cfg(not(loom))]
#[inline(always)]
pub(crate) fn by_its_writer(word: &AtomicUsize) -> usize {
    word.load(Ordering::Relaxed)
}

/// A relaxed load directly before a read-modify-write of the same word.
#[cfg(not(loom))]
#[inline(always)]
pub(crate) fn before_change(word: &AtomicUsize) -> usize {
    word.load(Ordering::Relaxed)
}

// Loom 0.7 remembers only the last access to an atomic. A load directly before the same thread's store would hide the
// loads of other threads, and loom would not try the orders in which the store comes before them. Loom does not see
// these two as loads.

#[cfg(loom)]
pub(crate) fn by_its_writer(word: &AtomicUsize) -> usize {
    // SAFETY: loom panics if another thread's store is not ordered before.
    unsafe { word.unsync_load() }
}

#[cfg(loom)]
pub(crate) fn before_change(word: &AtomicUsize) -> usize {
    word.fetch_add(0, Ordering::Relaxed)
}

/// core's `UnsafeCell` with the interface of loom's `UnsafeCell`, which checks each access.
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

/// Keeps data that different CPUs write on different cache lines. Two lines, because Intel's L2 fetches lines in pairs
/// (Optimization Reference Manual, "Spatial prefetcher").
#[repr(align(128))]
pub(crate) struct Padded<T>(pub(crate) T);

impl<T> core::ops::Deref for Padded<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.0
    }
}
