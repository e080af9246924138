//! The batch arena: arenas in rotation, each used from its start to its end, and again when all of it has come home.

use alloc::{boxed::Box, vec::Vec};
use core::alloc::Layout;
use core::fmt;
use core::marker::PhantomData;
use core::ptr::NonNull;

use crate::estate::{Estate, Parting};
use crate::handle::{Handle, sealed::Sealed};
use crate::memory::{Block, Header, Heap, Memory, Shape, Slots, hands, header};
use crate::sync::{AtomicUsize, Ordering, Padded, UnsafeCell, by_its_writer};
use crate::{BuildError, Full};

/// The kind of the slots of [`Batches`].
#[derive(Debug)]
pub enum Batch {}

/// An object in a slot of [`Batches`].
pub type Batched<T> = Handle<T, Batch>;

/// For each arena, how many of its slots were dropped without a returner, ever.
type BatchEstate = Estate<Box<[Padded<AtomicUsize>]>>;

/// In an arena's count of drops once the owner is gone. The count itself never gets there.
const CLOSED: usize = 1 << (usize::BITS - 1);

impl Sealed for Batch {
    #[inline]
    unsafe fn send_home(slot: NonNull<u8>) {
        // SAFETY: an arena of this kind; a slot that is out keeps its estate.
        unsafe {
            let header = header(slot);
            let estate = NonNull::new_unchecked(header.estate.cast::<BatchEstate>().cast_mut());
            hands::given(slot);
            estate.as_ref().used();
            // Release: all that was done with the slot comes before its arena is used again. Acquire: who sees that it
            // is closed gives back a reference, so the owner's taking of it must come before.
            let before = estate.as_ref().common[header.place].fetch_add(1, Ordering::AcqRel);
            if before & CLOSED != 0 {
                Estate::release_slots(estate, 1);
            }
        }
    }
}

/// What one returner has sent home, an ever-growing count for each arena. Written by it alone, so without a
/// read-modify-write; the owner looks at it only when an arena is used up.
struct Tally {
    counts: Padded<Box<[AtomicUsize]>>,
    /// What they added up to as the owner left.
    seen: UnsafeCell<usize>,
    parting: Parting,
}

impl Tally {
    fn total(&self) -> usize {
        // Relaxed: asked only as somebody leaves. Who wrote the counts has a reference of its own, which it gives back by a
        // release after the last of them, and the end of the memory acquires that.
        self.counts
            .iter()
            .fold(0, |sum, count| sum.wrapping_add(count.load(Ordering::Relaxed)))
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
    /// one takes as long as memory of that size takes to get and to touch. Each arena that there may be has a count of
    /// 128 bytes from the start, and 8 for each returner.
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
        let memories = (0..arenas)
            .map(|_| Heap::new(shape.bytes_for(slots)?))
            .collect::<Result<Vec<_>, _>>()?;
        let blocks: Vec<_> = memories.iter().map(|memory| Block::of(memory)).collect();
        Self::of(memories, &blocks, shape, limit)
    }

    /// So many arenas over this memory, for example a region of huge pages: equal parts of whole chunks of 256 KiB, which
    /// begin at the first address that is aligned to that; what is left over is not used. The memory is dropped when
    /// the last slot is home.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new): no arenas, or less than a chunk for each.
    pub fn over(memory: impl Memory + 'static, arenas: usize) -> Result<Self, BuildError> {
        let shape = Shape::new(Layout::new::<T>())?;
        if arenas == 0 {
            return Err(BuildError::NoCapacity);
        }
        let blocks: Vec<_> = Block::of(&memory).split(arenas).collect();
        if blocks[0].bytes == 0 {
            return Err(BuildError::NoCapacity);
        }
        Self::of([memory], &blocks, shape, arenas)
    }

    /// An arena in each block, all of the same size; the blocks lie in the memories.
    fn of(
        memories: impl IntoIterator<Item = impl Memory + 'static>,
        blocks: &[Block],
        shape: Shape,
        limit: usize,
    ) -> Result<Self, BuildError> {
        // A line for each arena that there may be: a limit beyond all memory is an error, and not an end.
        let mut counts = Vec::new();
        counts
            .try_reserve_exact(limit)
            .map_err(|_| BuildError::OutOfMemory {
                bytes: limit.saturating_mul(size_of::<Padded<AtomicUsize>>()),
            })?;
        counts.extend((0..limit).map(|_| Padded(AtomicUsize::new(0))));
        let estate = Estate::new(counts.into_boxed_slice())?;
        for memory in memories {
            // SAFETY: by the owner.
            unsafe { estate.as_ref().keep(Box::new(memory)) };
        }
        let own = |(at, &block)| own(estate, block, shape, at);
        let mut arenas: Vec<Owned> = blocks.iter().enumerate().map(own).collect();
        arenas[0].handed = arenas[0].size;
        Ok(Self {
            slots: arenas[0].slots.clone(),
            current: 0,
            arenas,
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
            hands::taken(slot);
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
                self.arenas
                    .push(own(self.estate, Block::of(&memory), self.shape, at));
                // SAFETY: by the owner.
                unsafe { self.estate.as_ref().keep(Box::new(memory)) };
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
        let dropped = unsafe { self.estate.as_ref() }.common[at].load(Ordering::Acquire);
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
                seen: UnsafeCell::new(0),
                parting: Parting::new(),
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

/// Makes an arena of a block, which is new and which the estate is to keep.
fn own(estate: NonNull<BatchEstate>, block: Block, shape: Shape, place: usize) -> Owned {
    for (chunk, _) in block.chunks(shape) {
        let header = Header {
            estate: estate.as_ptr().cast_const().cast(),
            place,
            segment: 0,
            member: 0,
        };
        // SAFETY: the chunk has room for its header, and is nobody else's.
        unsafe { chunk.cast().write(header) };
    }
    let slots = Slots::new(block, shape);
    // SAFETY: new slots.
    slots.clone().for_each(|slot| unsafe { hands::first(slot) });
    Owned {
        slots,
        size: block.slots(shape),
        handed: 0,
    }
}

impl<T> Drop for Batches<T> {
    fn drop(&mut self) {
        let capacity = self.capacity();
        // SAFETY: the owner has a reference to the estate until the last line. Tallies are freed by who leaves second.
        unsafe {
            let estate = self.estate.as_ref();
            // For every slot, before anybody can see that the owner is gone; those at home are given back at once.
            estate.hold_slots(capacity);
            let unused = self.slots.clone().count();
            let mut home = capacity.wrapping_add(unused);
            for arena in &self.arenas {
                home = home.wrapping_sub(arena.handed);
            }
            for tally in self.tallies.drain(..) {
                let seen = tally.as_ref().total();
                tally.as_ref().seen.with_mut(|note| *note = seen);
                home = home.wrapping_add(seen);
                if tally.as_ref().parting.owner_leaves() {
                    home = home.wrapping_add(tally.as_ref().total().wrapping_sub(seen));
                    Tally::free(tally);
                }
            }
            for dropped in &estate.common[..self.arenas.len()] {
                // Release: the references are there before anybody sees it closed. Acquire: as in `has_drained`.
                home = home.wrapping_add(dropped.fetch_or(CLOSED, Ordering::AcqRel));
            }
            Estate::release_slots(self.estate, home + 1);
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
            hands::given(slot);
            self.estate.as_ref().used();
            let count = &self.tally.as_ref().counts[header.place];
            // Release: all that was done with the slot comes before its arena's next use.
            count.store(by_its_writer(count).wrapping_add(1), Ordering::Release);
        });
    }
}

impl<T> Drop for BatchReturner<T> {
    fn drop(&mut self) {
        // SAFETY: who leaves second frees the tally, and gives back the references of the slots that the first didn't
        // see in it. This returner's own reference keeps the estate until then.
        unsafe {
            let tally = self.tally.as_ref();
            if tally.parting.returner_leaves() {
                let home = tally.total().wrapping_sub(tally.seen.with(|seen| *seen));
                Tally::free(self.tally);
                Estate::release_slots(self.estate, home + 1);
            } else {
                Estate::release(self.estate, 1);
            }
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
