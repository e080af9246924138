//! The part of a pool that outlives its owner: the memory, until the last slot is home.

use alloc::{boxed::Box, vec::Vec};
use core::ptr::NonNull;

use crate::BuildError;
use crate::memory::{Memory, try_box};
use crate::sync::{AtomicUsize, Ordering, Padded, UnsafeCell};

/// A pool's memory and the data that its slots share. The owner has one reference and each returner has one. Once the
/// owner is gone, each slot that is out has one too. While the owner lives, its own reference covers all slots.
pub(crate) struct Estate<C> {
    references: AtomicUsize,
    blocks: UnsafeCell<Vec<Box<dyn Memory>>>,
    /// No data: with it loom checks that the references of slots are given back only after they were taken.
    taken: UnsafeCell<()>,
    /// No data: with it loom checks that the memory is freed after its last use.
    used: UnsafeCell<()>,
    pub(crate) common: Padded<C>,
}

impl<C> Estate<C> {
    /// An estate with one reference, which is the owner's.
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

    /// Makes room in the list for one more memory, so that `keep` cannot fail.
    ///
    /// # Safety
    ///
    /// Only the owner calls this.
    pub(crate) unsafe fn make_room(&self) -> Result<(), BuildError> {
        // SAFETY: as in `keep`.
        let reserved = self.blocks.with_mut(|blocks| unsafe { (*blocks).try_reserve(1) });
        reserved.map_err(|_| BuildError::OutOfMemory { bytes: size_of::<Box<dyn Memory>>() })
    }

    /// Adds a memory to the list. The estate frees it with itself.
    ///
    /// # Safety
    ///
    /// Only the owner calls this.
    pub(crate) unsafe fn keep(&self, memory: Box<dyn Memory>) {
        // SAFETY: other threads read the list only to drop it, with the last reference; the owner still has one.
        self.blocks.with_mut(|blocks| unsafe { (*blocks).push(memory) });
    }

    /// Records for loom that the caller has used the memory.
    #[inline(always)]
    pub(crate) fn used(&self) {
        self.used.with(|_| ());
    }

    /// Takes references. Relaxed: the caller has one, so the count cannot reach zero meanwhile. The threads that give
    /// these references back learn of them through a later release of the caller.
    pub(crate) fn hold(&self, references: usize) {
        self.references.fetch_add(references, Ordering::Relaxed);
    }

    /// Takes the references of all slots. The owner calls this when it leaves.
    pub(crate) fn hold_slots(&self, references: usize) {
        self.taken.with_mut(|_| ());
        self.hold(references);
    }

    /// Gives references back; the last one frees the memory.
    ///
    /// # Safety
    ///
    /// The caller has this number of references, and does not use the estate or its slots afterwards.
    pub(crate) unsafe fn release(this: NonNull<Self>, references: usize) {
        // SAFETY: the caller's references keep it alive; the last one frees it. It was made by `Box::leak`.
        unsafe {
            this.as_ref().used();
            // Release: the caller's use of the memory happens before it is freed. Acquire: so does that of other
            // threads.
            let before = this.as_ref().references.fetch_sub(references, Ordering::AcqRel);
            debug_assert!(before >= references);
            if before == references {
                this.as_ref().used.with_mut(|_| ());
                drop(Box::from_raw(this.as_ptr()));
            }
        }
    }

    /// Gives back references of which some belong to slots.
    ///
    /// # Safety
    ///
    /// As for `release`. In addition the owner's `hold_slots` happened before; otherwise the count could reach zero
    /// first.
    pub(crate) unsafe fn release_slots(this: NonNull<Self>, references: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            this.as_ref().taken.with(|_| ());
            Self::release(this, references);
        }
    }
}

/// How an owner and a returner leave an object that they share, in either order. The second one to leave counts the
/// rest and frees the object.
pub(crate) struct Parting(Padded<AtomicUsize>);

const NOBODY: usize = 0;
const RETURNER: usize = 1;
const OWNER: usize = 2;

impl Parting {
    pub(crate) fn new() -> Self {
        Self(Padded(AtomicUsize::new(NOBODY)))
    }

    /// The returner leaves. Returns true if the owner left first.
    pub(crate) fn returner_leaves(&self) -> bool {
        // Release: the returner's writes are visible before it is seen to be gone. Acquire: the owner's writes are
        // visible here.
        self.0.swap(RETURNER, Ordering::AcqRel) == OWNER
    }

    /// The owner leaves. Returns true if the returner left first.
    pub(crate) fn owner_leaves(&self) -> bool {
        // As in `returner_leaves`, with the roles exchanged.
        self.0.swap(OWNER, Ordering::AcqRel) == RETURNER
    }

    /// Whether the returner has left, so that another one may use its place.
    pub(crate) fn returner_is_gone(&self) -> bool {
        // Acquire: all writes of the returner are visible, so its successor can continue from them.
        self.0.load(Ordering::Acquire) == RETURNER
    }

    /// Whether the owner has left. Acquire: all its writes are visible.
    pub(crate) fn owner_is_gone(&self) -> bool {
        self.0.load(Ordering::Acquire) == OWNER
    }

    /// The place has a returner again. Relaxed: the caller is the owner, and the user's own transfer of the returner
    /// to its thread orders this store.
    pub(crate) fn returner_comes(&self) {
        self.0.store(NOBODY, Ordering::Relaxed);
    }
}
