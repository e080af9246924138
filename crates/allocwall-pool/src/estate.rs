//! What outlives its owner: the memory, until the last slot is home.

use alloc::{boxed::Box, vec::Vec};
use core::ptr::NonNull;

use crate::memory::Memory;
use crate::sync::{AtomicUsize, Ordering, Padded, UnsafeCell};

/// A pool's memory and what its slots share. One reference each for the owner and for every returner, and, once the
/// owner is gone, one for every slot that is out. While it lives, its own reference stands for them: no slot counts.
pub(crate) struct Estate<K> {
    references: AtomicUsize,
    blocks: UnsafeCell<Vec<Box<dyn Memory>>>,
    /// Where slots go that are dropped without a returner.
    pub(crate) dropped: Padded<K>,
}

impl<K> Estate<K> {
    /// With one reference, the owner's.
    pub(crate) fn new(dropped: K) -> NonNull<Self> {
        let estate = Self {
            references: AtomicUsize::new(1),
            blocks: UnsafeCell::new(Vec::new()),
            dropped: Padded(dropped),
        };
        NonNull::from(Box::leak(Box::new(estate)))
    }

    /// # Safety
    ///
    /// By the owner alone.
    pub(crate) unsafe fn keep(&self, memory: Box<dyn Memory>) {
        // SAFETY: others read the blocks' list only to drop it, with the last reference; the owner has one.
        self.blocks.with_mut(|blocks| unsafe { (*blocks).push(memory) });
    }

    /// Takes references. Relaxed: the caller has one, so the count can't reach zero meanwhile, and whoever is to give
    /// these back learns of them by a release of the caller's that comes after.
    pub(crate) fn hold(&self, references: usize) {
        self.references.fetch_add(references, Ordering::Relaxed);
    }

    /// Gives references back; the last one frees the memory.
    ///
    /// # Safety
    ///
    /// The caller has so many references, and doesn't touch the estate or its slots after.
    pub(crate) unsafe fn release(this: NonNull<Self>, references: usize) {
        // Release: what was done with the memory before comes before its end. Acquire: so does what others did.
        // SAFETY: it is there, by the caller's references.
        let before = unsafe { this.as_ref() }
            .references
            .fetch_sub(references, Ordering::AcqRel);
        debug_assert!(before >= references);
        if before == references {
            // SAFETY: made by `Box::leak`, and nobody has a reference any more.
            drop(unsafe { Box::from_raw(this.as_ptr()) });
        }
    }
}

/// How two parties leave something that they share, in either order; the second one settles and frees it.
///
/// The owner notes how much it has seen of the other's count. What the other counts beyond that is the other's to
/// settle if it leaves second, and the owner's if the owner does.
pub(crate) struct Parting {
    gone: AtomicUsize,
    seen: UnsafeCell<usize>,
}

const NOBODY: usize = 0;
const RETURNER: usize = 1;
const OWNER: usize = 2;

impl Parting {
    pub(crate) fn new() -> Self {
        Self {
            gone: AtomicUsize::new(NOBODY),
            seen: UnsafeCell::new(0),
        }
    }

    /// The returner leaves. What the owner had seen, if that has left before: then the caller settles and frees.
    pub(crate) fn returner_leaves(&self) -> Option<usize> {
        // Release: its last entries are there before it is seen to be gone. Acquire: the owner's note is.
        // SAFETY: the owner wrote it before it was gone, and never after.
        (self.gone.swap(RETURNER, Ordering::AcqRel) == OWNER).then(|| self.seen.with(|seen| unsafe { *seen }))
    }

    /// The owner leaves. True if the returner has left before: then the caller settles and frees.
    pub(crate) fn owner_leaves(&self, seen: usize) -> bool {
        // SAFETY: the returner reads it only after the swap below.
        self.seen.with_mut(|note| unsafe { *note = seen });
        // As above.
        self.gone.swap(OWNER, Ordering::AcqRel) == RETURNER
    }

    /// Whether the returner has left, so that another may have its place.
    pub(crate) fn returner_is_gone(&self) -> bool {
        // Acquire: all that it wrote is there, so its successor goes on behind it.
        self.gone.load(Ordering::Acquire) == RETURNER
    }

    /// The place has a returner again. Relaxed: it gets there by its own way, and the owner is the caller.
    pub(crate) fn returner_comes(&self) {
        self.gone.store(NOBODY, Ordering::Relaxed);
    }
}
