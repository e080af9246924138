//! The batch arena: arenas in rotation, each used from its start to its end, and again when all of it has come home.

use alloc::{boxed::Box, vec::Vec};
use core::alloc::Layout;
use core::fmt;
use core::marker::PhantomData;
use core::ptr::NonNull;

use crate::estate::{Estate, Parting};
use crate::handle::{Handle, sealed::Sealed};
use crate::memory::{Header, Heap, Shape, Slots, header, link};
use crate::sync::{AtomicUsize, Ordering, Padded};
use crate::{BuildError, Full};

/// The kind of the slots of [`Batches`].
#[derive(Debug)]
pub enum Batch {}

/// An object in a slot of [`Batches`].
pub type Batched<T> = Handle<T, Batch>;

type BatchEstate = Estate<Box<[Arena]>>;

/// In an arena's count of drops once the owner is gone. The count itself never gets there.
const CLOSED: usize = 1 << (usize::BITS - 1);

/// What the slots of one arena share.
struct Arena {
    /// Slots that were dropped without a returner, ever.
    dropped: Padded<AtomicUsize>,
    index: usize,
}

impl Sealed for Batch {
    #[inline]
    unsafe fn send_home(slot: NonNull<u8>) {
        // SAFETY: an arena of this kind; a slot that is out keeps its estate.
        unsafe {
            let header = header(slot);
            let estate = NonNull::new_unchecked(header.estate.cast::<BatchEstate>().cast_mut());
            link::changed_hands(slot);
            // Release: all that was done with the slot comes before its arena is used again. Acquire: who sees that it
            // is closed gives back a reference, so the owner's taking of it must come before.
            let before = (*header.arena.cast::<Arena>())
                .dropped
                .fetch_add(1, Ordering::AcqRel);
            if before & CLOSED != 0 {
                Estate::release(estate, 1);
            }
        }
    }
}

/// What one returner has sent home, an ever-growing count for each arena. Written by it alone, so without a
/// read-modify-write; the owner looks at it only when an arena is used up.
struct Tally {
    counts: Padded<Box<[AtomicUsize]>>,
    parting: Padded<Parting>,
}

impl Tally {
    fn total(&self) -> usize {
        // Acquire: what came home is ordered before what the caller does next.
        self.counts
            .iter()
            .fold(0, |sum, count| sum.wrapping_add(count.load(Ordering::Acquire)))
    }

    /// # Safety
    ///
    /// Nobody else has it.
    unsafe fn free(this: NonNull<Self>) {
        // SAFETY: made by `Box::leak`, and the caller is the last.
        drop(unsafe { Box::from_raw(this.as_ptr()) });
    }
}

/// An arena as the owner sees it.
struct Owned {
    slots: Slots,
    size: usize,
    /// Slots handed out, ever; counted when the arena's turn begins, as if it were already used up.
    handed: usize,
}

/// Batch arenas of `T`s with one owner: it allocates by moving a pointer, any thread frees by counting.
///
/// An arena is used again when **all** of it has come home: one object that is kept keeps its whole arena. Objects that come
/// home in order never exhaust it while at most `(arenas - 1) * slots` are out; one straggler in each arena does.
///
/// ```
/// let mut batches = allocwall_pool::Batches::new(4, 1024)?;
/// let mut home = batches.returner();
/// let order = batches.alloc([7u8; 64]).expect("all is free");
/// std::thread::spawn(move || home.free(order)).join().unwrap();
/// # Ok::<(), allocwall_pool::BuildError>(())
/// ```
pub struct Batches<T> {
    /// What is left of the arena whose turn it is.
    slots: Slots,
    current: usize,
    arenas: Vec<Owned>,
    tallies: Vec<NonNull<Tally>>,
    estate: NonNull<BatchEstate>,
    shape: Shape,
    limit: usize,
    of: PhantomData<T>,
}

// SAFETY: all that it points to is the owner's or made to be shared; the values in the slots are their handles'.
unsafe impl<T: Send> Send for Batches<T> {}

impl<T> Batches<T> {
    /// So many arenas of so many slots, never more.
    ///
    /// # Errors
    ///
    /// [`BuildError`]: none of either, a `T` that is too large, no memory.
    pub fn new(arenas: usize, slots: usize) -> Result<Self, BuildError> {
        Self::growable(arenas, slots, arenas)
    }

    /// As [`new`](Self::new), and another arena whenever none has drained, up to `limit` arenas. An allocation that adds
    /// one takes as long as memory of that size takes to get and to touch.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new), and a limit below the number to start with.
    pub fn growable(arenas: usize, slots: usize, limit: usize) -> Result<Self, BuildError> {
        let shape = Shape::new(Layout::new::<T>())?;
        if arenas == 0 {
            return Err(BuildError::NoCapacity);
        }
        if limit < arenas {
            return Err(BuildError::LimitBelowCapacity {
                capacity: arenas,
                limit,
            });
        }
        let arena = |index| Arena {
            dropped: Padded(AtomicUsize::new(0)),
            index,
        };
        let memories = (0..arenas)
            .map(|_| Heap::new(shape.bytes_for(slots)?).map(Box::new))
            .collect::<Result<Vec<_>, _>>()?;
        let estate = Estate::new((0..limit).map(arena).collect::<Box<[_]>>());
        let mut owned = Vec::with_capacity(limit);
        for memory in memories {
            // SAFETY: the estate is there and the caller its owner; fewer than `limit` so far.
            owned.push(unsafe { own(estate, memory, shape, slots, owned.len()) });
        }
        owned[0].handed = slots;
        let slots = owned[0].slots.clone();
        Ok(Self {
            slots,
            current: 0,
            arenas: owned,
            tallies: Vec::new(),
            estate,
            shape,
            limit,
            of: PhantomData,
        })
    }

    /// How many slots there are now, in all arenas.
    pub fn capacity(&self) -> usize {
        self.arenas.iter().map(|arena| arena.size).sum()
    }

    /// Stores a value.
    ///
    /// # Errors
    ///
    /// [`Full`] with the value when the current arena is used up, no other one has drained, and there may be no more.
    #[inline]
    pub fn alloc(&mut self, value: T) -> Result<Batched<T>, Full<T>> {
        let slot = match self.slots.next() {
            Some(slot) => slot,
            None if self.rotate() => match self.slots.next() {
                Some(slot) => slot,
                None => return Err(Full(value)),
            },
            None => return Err(Full(value)),
        };
        // SAFETY: a free slot of the shape of `T`.
        unsafe {
            link::changed_hands(slot);
            Ok(Handle::new(slot, value))
        }
    }

    /// Goes to the next arena that has drained; the one just used up comes last.
    #[cold]
    fn rotate(&mut self) -> bool {
        let ready = (1..=self.arenas.len())
            .map(|step| (self.current + step) % self.arenas.len())
            .find(|&at| self.has_drained(at));
        self.current = match ready {
            Some(at) => at,
            None if self.arenas.len() < self.limit => {
                let size = self.arenas[0].size;
                let Ok(memory) = self.shape.bytes_for(size).and_then(Heap::new) else {
                    return false;
                };
                let at = self.arenas.len();
                // SAFETY: as in `growable`.
                let arena = unsafe { own(self.estate, Box::new(memory), self.shape, size, at) };
                self.arenas.push(arena);
                at
            }
            None => return false,
        };
        let arena = &mut self.arenas[self.current];
        arena.handed = arena.handed.wrapping_add(arena.size);
        self.slots = arena.slots.clone();
        true
    }

    /// Whether all that was handed out of an arena has come home. No count can be ahead of what it counts, so counts read
    /// one after the other add up to all only if all have come.
    fn has_drained(&self, at: usize) -> bool {
        // Acquire, both: what was done with the slots comes before they are used again.
        // SAFETY: the owner has a reference to the estate, and tallies live until it leaves.
        let dropped = unsafe { self.estate.as_ref() }.dropped[at]
            .dropped
            .load(Ordering::Acquire);
        let home = self.tallies.iter().fold(dropped, |sum, tally| {
            // SAFETY: as above.
            sum.wrapping_add(unsafe { tally.as_ref() }.counts[at].load(Ordering::Acquire))
        });
        // Of the counts' wrap only the sum's low bits matter, and `CLOSED` is not set while the owner lives.
        home == self.arenas[at].handed
    }

    /// A consumer's end: freeing through it costs a plain store.
    pub fn returner(&mut self) -> BatchReturner<T> {
        // SAFETY: tallies live until the owner leaves.
        let left = self
            .tallies
            .iter()
            .find(|tally| unsafe { tally.as_ref() }.parting.returner_is_gone());
        let tally = left.copied().unwrap_or_else(|| {
            let counts = (0..self.limit).map(|_| AtomicUsize::new(0)).collect::<Box<[_]>>();
            let tally = NonNull::from(Box::leak(Box::new(Tally {
                counts: Padded(counts),
                parting: Padded(Parting::new()),
            })));
            self.tallies.push(tally);
            tally
        });
        // SAFETY: it has no other writer, and is freed by the last of the two.
        unsafe {
            tally.as_ref().parting.returner_comes();
            self.estate.as_ref().hold(1);
        }
        BatchReturner {
            tally,
            estate: self.estate,
            of: PhantomData,
        }
    }
}

/// Makes an arena of a block, which the estate keeps.
///
/// # Safety
///
/// By the estate's owner; `index` is below the limit.
unsafe fn own(
    estate: NonNull<BatchEstate>,
    memory: Box<Heap>,
    shape: Shape,
    size: usize,
    index: usize,
) -> Owned {
    // SAFETY: by the caller; the block is new.
    unsafe {
        let arena: *const Arena = &estate.as_ref().dropped[index];
        let head = || Header {
            estate: estate.as_ptr().cast_const().cast(),
            arena: arena.cast(),
            member: 0,
        };
        let slots = Slots::new(&*memory, shape, head);
        slots.clone().for_each(|slot| link::create(slot));
        estate.as_ref().keep(memory);
        Owned {
            slots,
            size,
            handed: 0,
        }
    }
}

impl<T> Drop for Batches<T> {
    fn drop(&mut self) {
        let capacity = self.capacity();
        // SAFETY: the owner has a reference to the estate until the last line. Tallies are freed by who leaves second.
        unsafe {
            let estate = self.estate.as_ref();
            // For every slot, before anybody can see that the owner is gone; those at home are given back at once.
            estate.hold(capacity);
            let unused = self.slots.clone().count();
            let mut home = capacity.wrapping_add(unused);
            for arena in &self.arenas {
                home = home.wrapping_sub(arena.handed);
            }
            for tally in self.tallies.drain(..) {
                let seen = tally.as_ref().total();
                if tally.as_ref().parting.owner_leaves(seen) {
                    home = home.wrapping_add(tally.as_ref().total());
                    Tally::free(tally);
                } else {
                    home = home.wrapping_add(seen);
                }
            }
            for arena in &estate.dropped[..self.arenas.len()] {
                // Release: the references are there before anybody sees it closed. Acquire: as in `has_drained`.
                home = home.wrapping_add(arena.dropped.fetch_or(CLOSED, Ordering::AcqRel));
            }
            Estate::release(self.estate, home + 1);
        }
    }
}

/// A consumer's end of [`Batches`].
pub struct BatchReturner<T> {
    tally: NonNull<Tally>,
    estate: NonNull<BatchEstate>,
    of: PhantomData<T>,
}

// SAFETY: one thread at a time writes its tally; the owner reads it as atomics allow.
unsafe impl<T: Send> Send for BatchReturner<T> {}

impl<T> BatchReturner<T> {
    /// Drops the object here and sends its slot home. An object of other arenas goes home to those, as if it were dropped.
    #[inline]
    pub fn free(&mut self, object: Batched<T>) {
        // SAFETY: `finish` gives a slot that is out; the tally lives as long as its returner.
        object.finish(|slot| unsafe {
            let header = header(slot);
            if header.estate != self.estate.as_ptr().cast_const().cast() {
                return Batch::send_home(slot);
            }
            link::changed_hands(slot);
            let count = &self.tally.as_ref().counts[(*header.arena.cast::<Arena>()).index];
            // Relaxed: nobody else writes it. Release: all that was done with the slot comes before its arena's next use.
            count.store(count.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
        });
    }
}

impl<T> Drop for BatchReturner<T> {
    fn drop(&mut self) {
        // SAFETY: who leaves second frees the tally, and gives back the references of the slots that the first didn't
        // see in it. This returner's own reference keeps the estate until then.
        unsafe {
            let mut references = 1;
            if let Some(seen) = self.tally.as_ref().parting.returner_leaves() {
                references += self.tally.as_ref().total().wrapping_sub(seen);
                Tally::free(self.tally);
            }
            Estate::release(self.estate, references);
        }
    }
}

impl<T> fmt::Debug for Batches<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batches")
            .field("capacity", &self.capacity())
            .finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for BatchReturner<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BatchReturner").finish_non_exhaustive()
    }
}
