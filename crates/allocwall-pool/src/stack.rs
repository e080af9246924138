//! The way home without a returner: a list through the dropped slots themselves. It is never full either.

use core::ptr::{NonNull, null_mut, without_provenance_mut};

use crate::memory::link;
use crate::sync::{AtomicPtr, Ordering};

/// Any thread pushes one slot, the owner takes all: with no pop of one there is no ABA.
pub(crate) struct Stack(AtomicPtr<u8>);

/// Stands in the place of the list once the owner is gone.
fn closed() -> *mut u8 {
    without_provenance_mut(1)
}

impl Stack {
    pub(crate) fn new() -> Self {
        Self(AtomicPtr::new(null_mut()))
    }

    /// False if the owner is gone; then nothing was pushed.
    ///
    /// # Safety
    ///
    /// The slot is one of the stack's pool, and the caller, who alone has it, gives it away.
    #[must_use]
    pub(crate) unsafe fn push(&self, slot: NonNull<u8>) -> bool {
        // Acquire, here and where the exchange fails: who sees that it is closed gives back a reference, so the
        // owner's taking of it must come before.
        let mut top = self.0.load(Ordering::Acquire);
        loop {
            if top == closed() {
                return false;
            }
            // SAFETY: the slot is ours until the exchange succeeds.
            unsafe { link::set(slot, top) };
            // Release: the link, and all that was done with the slot, is there before the owner sees it. The slots
            // below are passed on with their pushers' releases, since an exchange goes on their release sequence.
            match self
                .0
                .compare_exchange_weak(top, slot.as_ptr(), Ordering::Release, Ordering::Acquire)
            {
                Ok(_) => return true,
                Err(now) => top = now,
            }
        }
    }

    /// All that was dropped, linked, latest first; null if nothing was.
    #[inline]
    pub(crate) fn take(&self) -> *mut u8 {
        // Relaxed: only whether it is worth a write to a line that others write.
        if self.0.load(Ordering::Relaxed).is_null() {
            return null_mut();
        }
        // Acquire: pairs with the pushes' release. Nothing of the owner's needs to be seen by who pushes on a null.
        self.0.swap(null_mut(), Ordering::Acquire)
    }

    /// As `take`, and the last time: who drops a slot after it gives back a reference instead.
    pub(crate) fn close(&self) -> *mut u8 {
        // Release: the references taken for the slots that are out are there before anybody sees it closed.
        self.0.swap(closed(), Ordering::AcqRel)
    }
}
