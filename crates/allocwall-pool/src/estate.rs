//! What outlives its owner: the memory, until the last slot is home.

use alloc::{boxed::Box, vec::Vec};
use core::ptr::NonNull;

use crate::BuildError;
use crate::memory::{Memory, try_box};
use crate::sync::{AtomicUsize, Ordering, Padded, UnsafeCell};

/// A pool's memory and what its slots share. One reference each for the owner and for every returner, and, once the
/// owner is gone, one for every slot that is out. While it lives, its own reference stands for them: no slot counts.
pub(crate) struct Estate<C> {
    references: AtomicUsize,
    blocks: UnsafeCell<Vec<Box<dyn Memory>>>,
    /// No data: by it loom checks that slots' references are given back only after they were taken.
    taken: UnsafeCell<()>,
    /// No data: by it loom checks that the end of the memory comes after its last use.
    used: UnsafeCell<()>,
    pub(crate) common: Padded<C>,
}

impl<C> Estate<C> {
    /// With one reference, the owner's.
    pub(crate) fn new(common: C) -> Result<NonNull<Self>, BuildError> {
        let estate = Self {
            references: AtomicUsize::new(1),
            blocks: UnsafeCell::new(Vec::new()),
            taken: UnsafeCell::new(()),
            used: UnsafeCell::new(()),
            common: Padded(common),
        };
        try_box(estate).map(|estate| NonNull::from(Box::leak(estate)))
    }

    /// Makes room for another memory, so that `keep` can't fail.
    ///
    /// # Safety
    ///
    /// By the owner alone.
    pub(crate) unsafe fn make_room(&self) -> Result<(), BuildError> {
        // SAFETY: as in `keep`.
        let reserved = self.blocks.with_mut(|blocks| unsafe { (*blocks).try_reserve(1) });
        reserved.map_err(|_| BuildError::OutOfMemory {
            bytes: size_of::<Box<dyn Memory>>(),
        })
    }

    /// # Safety
    ///
    /// By the owner alone.
    pub(crate) unsafe fn keep(&self, memory: Box<dyn Memory>) {
        // SAFETY: others read the blocks' list only to drop it, with the last reference; the owner has one.
        self.blocks.with_mut(|blocks| unsafe { (*blocks).push(memory) });
    }

    /// The caller has used the memory.
    #[inline(always)]
    pub(crate) fn used(&self) {
        self.used.with(|_| ());
    }

    /// Takes references. Relaxed: the caller has one, so the count can't reach zero meanwhile, and whoever is to give
    /// these back learns of them by a release of the caller's that comes after.
    pub(crate) fn hold(&self, references: usize) {
        self.references.fetch_add(references, Ordering::Relaxed);
    }

    /// The same for all slots, by the owner as it leaves.
    pub(crate) fn hold_slots(&self, references: usize) {
        self.taken.with_mut(|_| ());
        self.hold(references);
    }

    /// Gives references back; the last one frees the memory.
    ///
    /// # Safety
    ///
    /// The caller has so many references, and doesn't touch the estate or its slots after.
    pub(crate) unsafe fn release(this: NonNull<Self>, references: usize) {
        // SAFETY: it is there, by the caller's references; the last one frees it, made by `Box::leak`.
        unsafe {
            this.as_ref().used();
            // Release: what was done with the memory before comes before its end. Acquire: so does what others did.
            let before = this.as_ref().references.fetch_sub(references, Ordering::AcqRel);
            debug_assert!(before >= references);
            if before == references {
                this.as_ref().used.with_mut(|_| ());
                drop(Box::from_raw(this.as_ptr()));
            }
        }
    }

    /// The same with slots' references among them.
    ///
    /// # Safety
    ///
    /// As `release`, and the owner's `hold_slots` came before: otherwise the count could reach zero first.
    pub(crate) unsafe fn release_slots(this: NonNull<Self>, references: usize) {
        // SAFETY: by the caller.
        unsafe {
            this.as_ref().taken.with(|_| ());
            Self::release(this, references);
        }
    }
}

/// How an owner and a returner leave something that they share, in either order; the second one settles and frees it.
pub(crate) struct Parting(Padded<AtomicUsize>);

const NOBODY: usize = 0;
const RETURNER: usize = 1;
const OWNER: usize = 2;

impl Parting {
    pub(crate) fn new() -> Self {
        Self(Padded(AtomicUsize::new(NOBODY)))
    }

    /// The returner leaves. True if the owner has left before.
    pub(crate) fn returner_leaves(&self) -> bool {
        // Release: all that it wrote is there before it is seen to be gone. Acquire: what the owner wrote is.
        self.0.swap(RETURNER, Ordering::AcqRel) == OWNER
    }

    /// The owner leaves. True if the returner has left before.
    pub(crate) fn owner_leaves(&self) -> bool {
        // As above.
        self.0.swap(OWNER, Ordering::AcqRel) == RETURNER
    }

    /// Whether the returner has left, so that another may have its place.
    pub(crate) fn returner_is_gone(&self) -> bool {
        // Acquire: all that it wrote is there, so its successor goes on behind it.
        self.0.load(Ordering::Acquire) == RETURNER
    }

    /// The place has a returner again. Relaxed: it gets there by its own way, and the owner is the caller.
    pub(crate) fn returner_comes(&self) {
        self.0.store(NOBODY, Ordering::Relaxed);
    }
}
