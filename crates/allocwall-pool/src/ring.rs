//! The way home: a ring that one returner writes and the owner reads. It is never full.

use alloc::boxed::Box;
use core::ptr::NonNull;

use crate::estate::Parting;
use crate::sync::{AtomicUsize, Ordering, Padded, UnsafeCell};

/// Room for every slot that its pool can ever have, so that a push needs neither a look at the reader nor a failure.
pub(crate) struct Ring {
    /// Entries written, ever. The writer's line: the reader comes to it only when it has read all it knew of.
    tail: Padded<AtomicUsize>,
    pub(crate) parting: Padded<Parting>,
    entries: Box<[Entry]>,
}

pub(crate) type Entry = UnsafeCell<NonNull<u8>>;

impl Ring {
    pub(crate) fn new(slots: usize) -> NonNull<Self> {
        let entries = (0..slots.next_power_of_two())
            .map(|_| UnsafeCell::new(NonNull::dangling()))
            .collect();
        let ring = Self {
            tail: Padded(AtomicUsize::new(0)),
            parting: Padded(Parting::new()),
            entries,
        };
        NonNull::from(Box::leak(Box::new(ring)))
    }

    /// Acquire: the entries before it, and all that was done with their slots, are there.
    #[inline]
    pub(crate) fn tail(&self) -> usize {
        self.tail.load(Ordering::Acquire)
    }

    /// First entry and mask, which are kept where they are used: a push or a read costs no look into the ring itself.
    #[inline]
    pub(crate) fn entries(&self) -> (NonNull<Entry>, usize) {
        (NonNull::from(&*self.entries).cast(), self.entries.len() - 1)
    }

    /// # Safety
    ///
    /// Nobody else has it.
    pub(crate) unsafe fn free(this: NonNull<Self>) {
        // SAFETY: made by `Box::leak`, and the caller is the last.
        drop(unsafe { Box::from_raw(this.as_ptr()) });
    }
}

/// The writing end.
pub(crate) struct Writer {
    ring: NonNull<Ring>,
    entries: NonNull<Entry>,
    mask: usize,
    tail: usize,
}

impl Writer {
    /// # Safety
    ///
    /// The ring has no other writer, and lives as long as this one.
    pub(crate) unsafe fn new(ring: NonNull<Ring>) -> Self {
        // SAFETY: by the caller.
        let (shared, tail) = unsafe { (ring.as_ref(), ring.as_ref().tail()) };
        let (entries, mask) = shared.entries();
        Self {
            ring,
            entries,
            mask,
            tail,
        }
    }

    pub(crate) fn ring(&self) -> NonNull<Ring> {
        self.ring
    }

    pub(crate) fn written(&self) -> usize {
        self.tail
    }

    /// # Safety
    ///
    /// The slot is one of the ring's pool, and the caller, who alone has it, gives it away.
    #[inline]
    pub(crate) unsafe fn push(&mut self, slot: NonNull<u8>) {
        // SAFETY: masked, so within the entries. The reader is done with the entry: of the last `slots` pushes and this
        // one, two were of the same slot, and it came here again because the reader had read it, and so all before
        // it; its way here (the reader's caller passed it on) orders those reads before this write.
        unsafe {
            self.entries
                .add(self.tail & self.mask)
                .as_ref()
                .with_mut(|entry| *entry = slot);
        }
        self.tail = self.tail.wrapping_add(1);
        // Release: the entry, and all that was done with the slot, is there before the owner sees the count.
        // SAFETY: the ring lives as long as its writer.
        unsafe { self.ring.as_ref() }
            .tail
            .store(self.tail, Ordering::Release);
    }
}
