//! The batch arena: several arenas in rotation. Each is used from its start to its end, and again when all of its slots
//! have come home.

use alloc::{boxed::Box, vec::Vec};
use core::alloc::Layout;
use core::fmt;
use core::marker::PhantomData;
use core::ptr::NonNull;

use crate::estate::{Estate, Parting};
use crate::handle::{Handle, sealed::Sealed};
use crate::memory::{Block, Header, Heap, Memory, Shape, Slots, hands, header, no_memory, try_box};
use crate::sync::{AtomicUsize, Ordering, Padded, UnsafeCell, by_its_writer};
use crate::{BuildError, Full};

/// The [`Kind`](crate::Kind) of the slots of [`Batches`].
#[derive(Debug)]
pub enum Batch {}

/// Owns an object in a slot of [`Batches`]. See [`Handle`].
pub type Batched<T> = Handle<T, Batch>;

/// For each arena, the number of its slots that were ever dropped without a returner.
type BatchEstate = Estate<Box<[Padded<AtomicUsize>]>>;

/// Set in an arena's count of drops once the owner is gone. The count itself never reaches this bit.
const CLOSED: usize = 1 << (usize::BITS - 1);

impl Sealed for Batch {
    #[inline]
    unsafe fn send_home(slot: NonNull<u8>) {
        // SAFETY: the caller's promise; the estate has this kind, and a slot that is out keeps it alive.
        unsafe {
            let header = header(slot);
            let estate = NonNull::new_unchecked(header.estate.cast::<BatchEstate>().cast_mut());
            hands::given(slot);
            estate.as_ref().used();
            // Release: all use of the slot happens before its arena is used again. Acquire: a thread that finds the
            // closed mark gives back a reference, so the owner must have taken that reference before.
            let before = estate.as_ref().common[header.place].fetch_add(1, Ordering::AcqRel);
            if before & CLOSED != 0 {
                Estate::release_slots(estate, 1);
            }
        }
    }
}

/// The slots that one returner has sent home: a count for each arena that only grows. Only the returner writes it, so
/// it needs no read-modify-write. The owner reads it only when an arena is used up.
struct Tally {
    counts: Padded<Box<[AtomicUsize]>>,
    /// The sum of the counts when the owner left.
    seen: UnsafeCell<usize>,
    parting: Parting,
}

impl Tally {
    fn total(&self) -> usize {
        // Relaxed: called only when a party leaves. The writer of the counts has a reference of its own, which it
        // gives back with a release after its last count, and the end of the memory acquires that.
        self.counts.iter().fold(0, |sum, count| sum.wrapping_add(count.load(Ordering::Relaxed)))
    }

    /// # Safety
    ///
    /// The caller is the last party that has it.
    unsafe fn free(this: NonNull<Self>) {
        // SAFETY: made by `Box::leak`; the caller is the last user.
        drop(unsafe { Box::from_raw(this.as_ptr()) });
    }
}

/// The owner's data about one arena.
struct Owned {
    slots: Slots,
    size: usize,
    /// Slots ever handed out. The whole arena is counted when its turn begins.
    handed: usize,
}

/// Batch arenas of `T`s with one owner. The owner allocates by moving a pointer; any thread frees by counting.
///
/// An arena is used again when **all** of its slots have come home: one object that is kept keeps its whole arena. If
/// objects return in order and at most `(arenas - 1) * slots` of them are out, an allocation never fails. One late
/// object in each arena is enough to make it fail.
///
/// ```
/// let mut batches = allocwall_pool::Batches::new(4, 1024)?;
/// let mut home = batches.returner();
/// let order = batches.alloc([7u8; 64]).expect("all is free");
/// std::thread::spawn(move || home.free(order)).join().unwrap();
/// # Ok::<(), allocwall_pool::BuildError>(())
/// ```
pub struct Batches<T> {
    /// The rest of the current arena.
    slots: Slots,
    current: usize,
    arenas: Vec<Owned>,
    tallies: Vec<NonNull<Tally>>,
    estate: NonNull<BatchEstate>,
    shape: Shape,
    limit: usize,
    of: PhantomData<T>,
}

// SAFETY: its pointers lead to data that only the owner uses or that is made to be shared; the values in the slots
// belong to their handles.
unsafe impl<T: Send> Send for Batches<T> {}

impl<T> Batches<T> {
    /// Makes `arenas` arenas of `slots` slots each. Their number never grows. All memory is allocated and touched here.
    ///
    /// ```
    /// let batches = allocwall_pool::Batches::<u64>::new(4, 1024)?;
    /// assert_eq!(batches.capacity(), 4096);
    /// # Ok::<(), allocwall_pool::BuildError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`BuildError::NoCapacity`] if either number is 0, [`BuildError::SlotTooLarge`] if `T` is too large, and
    /// [`BuildError::OutOfMemory`] if there is no memory.
    pub fn new(arenas: usize, slots: usize) -> Result<Self, BuildError> {
        Self::growable(arenas, slots, arenas)
    }

    /// As [`new`](Self::new), and adds an arena whenever no arena has drained, up to `limit` arenas.
    ///
    /// Cost: an allocation that adds an arena also allocates and touches its memory. Each arena up to the limit has a
    /// count of 128 bytes from the start, and 8 bytes for each returner.
    ///
    /// ```
    /// let mut batches = allocwall_pool::Batches::growable(1, 1, 2)?;
    /// let kept = batches.alloc(1).unwrap();
    /// let other = batches.alloc(2).unwrap(); // in an arena that was added
    /// assert!(batches.alloc(3).is_err());
    /// # Ok::<(), allocwall_pool::BuildError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`new`](Self::new), and [`BuildError::LimitBelowCapacity`] for a limit below `arenas`.
    pub fn growable(arenas: usize, slots: usize, limit: usize) -> Result<Self, BuildError> {
        Self::shaped(Layout::new::<T>(), arenas, slots, limit)
    }

    /// As [`growable`](Self::growable), with slots of this layout.
    pub(crate) fn shaped(
        layout: Layout,
        arenas: usize,
        slots: usize,
        limit: usize,
    ) -> Result<Self, BuildError> {
        let shape = Shape::new(layout)?;
        if arenas == 0 {
            return Err(BuildError::NoCapacity);
        }
        if limit < arenas {
            return Err(BuildError::LimitBelowCapacity { capacity: arenas, limit });
        }
        let counts = counts(limit)?;
        let bytes = shape.bytes_for(slots)?;
        // No machine can satisfy that: report it before memory is touched.
        if bytes.checked_mul(arenas).is_none_or(|all| all > isize::MAX as usize) {
            return Err(BuildError::OutOfMemory { bytes: usize::MAX });
        }
        let (mut memories, mut blocks) = (reserved(arenas)?, reserved(arenas)?);
        for _ in 0..arenas {
            let memory = Heap::new(bytes)?;
            blocks.push(Block::of(&memory));
            let memory: Box<dyn Memory> = try_box(memory)?;
            memories.push(memory);
        }
        Self::of(memories, &blocks, shape, counts)
    }

    /// Makes `arenas` arenas in memory that you supply, for example a region of huge pages. The arenas are equal
    /// parts of whole chunks of 256 KiB, which start at the first address that is aligned to 256 KiB; the rest is not
    /// used. The memory is dropped when the owner and all returners are gone and the last slot is home.
    ///
    /// ```
    /// # #[cfg(target_os = "linux")] {
    /// use allocwall_pool::region::{Region, Request};
    ///
    /// let memory = Region::new(&Request::of(2 << 20)).expect("2 MiB of address space");
    /// let mut batches = allocwall_pool::Batches::over(memory, 4)?;
    /// assert!(batches.alloc([7u64; 8]).is_ok());
    /// # }
    /// # Ok::<(), allocwall_pool::BuildError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`BuildError::NoCapacity`] if `arenas` is 0 or the memory has less than a chunk for each arena; otherwise as for
    /// [`new`](Self::new).
    pub fn over(memory: impl Memory + 'static, arenas: usize) -> Result<Self, BuildError> {
        let shape = Shape::new(Layout::new::<T>())?;
        if arenas == 0 {
            return Err(BuildError::NoCapacity);
        }
        let blocks: Vec<_> = Block::of(&memory).split(arenas).collect();
        if blocks[0].bytes == 0 {
            return Err(BuildError::NoCapacity);
        }
        let memory: Box<dyn Memory> = try_box(memory)?;
        Self::of([memory], &blocks, shape, counts(arenas)?)
    }

    /// One arena in each block. The blocks have the same size and are parts of the memories. `counts` has one for each
    /// arena up to the limit.
    fn of(
        memories: impl IntoIterator<Item = Box<dyn Memory>>,
        blocks: &[Block],
        shape: Shape,
        counts: Box<[Padded<AtomicUsize>]>,
    ) -> Result<Self, BuildError> {
        let limit = counts.len();
        let mut arenas: Vec<Owned> = reserved(blocks.len())?;
        let estate = Estate::new(counts)?;
        for memory in memories {
            // SAFETY: the caller is the owner, and has the only reference.
            unsafe {
                if let Err(error) = estate.as_ref().make_room() {
                    Estate::release(estate, 1);
                    return Err(error);
                }
                estate.as_ref().keep(memory);
            }
        }
        arenas.extend(blocks.iter().enumerate().map(|(at, &block)| own(estate, block, shape, at)));
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

    /// The number of slots in all arenas now, free or in use.
    ///
    /// ```
    /// assert_eq!(allocwall_pool::Batches::<u64>::new(2, 64)?.capacity(), 128);
    /// # Ok::<(), allocwall_pool::BuildError>(())
    /// ```
    pub fn capacity(&self) -> usize {
        self.arenas.iter().map(|arena| arena.size).sum()
    }

    /// Stores a value. Never waits. Cost: a moved pointer; at the end of an arena, one counter per returner for each
    /// arena until a drained one is found.
    ///
    /// ```
    /// use allocwall_pool::{Batches, Full};
    ///
    /// let mut batches = Batches::new(2, 1)?;
    /// let (first, second) = (batches.alloc(1).unwrap(), batches.alloc(2).unwrap());
    /// let Err(Full(third)) = batches.alloc(3) else { unreachable!() };
    /// drop(first); // its arena has drained
    /// assert_eq!(batches.alloc(third).map(|object| *object).ok(), Some(3));
    /// # drop(second);
    /// # Ok::<(), allocwall_pool::BuildError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Full`] with the value if the current arena is used up, no other arena has drained, and none can be added.
    #[inline]
    pub fn alloc(&mut self, value: T) -> Result<Batched<T>, Full<T>> {
        match self.take() {
            // SAFETY: a free slot with the shape of `T`.
            Some(slot) => Ok(unsafe { Handle::new(slot, value) }),
            None => Err(Full(value)),
        }
    }

    /// Takes a free slot, or `None` if none has come home and no arena can be added.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<NonNull<u8>> {
        let slot = match self.slots.next() {
            Some(slot) => slot,
            None if self.rotate() => self.slots.next()?,
            None => return None,
        };
        // SAFETY: the slot is free, and the caller is the owner.
        unsafe { hands::taken(slot) };
        Some(slot)
    }

    /// Goes to the next arena that has drained. The current one comes last.
    #[cold]
    fn rotate(&mut self) -> bool {
        let ready = (1..=self.arenas.len())
            .map(|step| (self.current + step) % self.arenas.len())
            .find(|&at| self.has_drained(at));
        self.current = match ready {
            Some(at) => at,
            None if self.arenas.len() < self.limit => {
                let Ok(memory) = self.new_memory() else {
                    return false;
                };
                let at = self.arenas.len();
                self.arenas.push(own(self.estate, Block::of(&*memory), self.shape, at));
                // SAFETY: the caller is the owner.
                unsafe { self.estate.as_ref().keep(memory) };
                at
            }
            None => return false,
        };
        let arena = &mut self.arenas[self.current];
        arena.handed = arena.handed.wrapping_add(arena.size);
        self.slots = arena.slots.clone();
        true
    }

    /// Memory for one more arena, and room in the lists for it.
    fn new_memory(&mut self) -> Result<Box<dyn Memory>, BuildError> {
        let none = |_| BuildError::OutOfMemory { bytes: size_of::<Owned>() };
        self.arenas.try_reserve(1).map_err(none)?;
        // SAFETY: the caller is the owner.
        unsafe { self.estate.as_ref().make_room()? };
        Ok(try_box(Heap::new(self.shape.bytes_for(self.arenas[0].size)?)?)?)
    }

    /// Whether all slots that were handed out of an arena have come home. No count can be ahead of the events that it
    /// counts, so counts that are read one after the other add up to the total only if all slots have come home.
    fn has_drained(&self, at: usize) -> bool {
        // Acquire, for both loads: all use of the slots happens before they are used again.
        // SAFETY: the owner has a reference to the estate, and tallies live until it leaves.
        let dropped = unsafe { self.estate.as_ref() }.common[at].load(Ordering::Acquire);
        let home = self.tallies.iter().fold(dropped, |sum, tally| {
            // SAFETY: tallies live until the owner leaves.
            sum.wrapping_add(unsafe { tally.as_ref() }.counts[at].load(Ordering::Acquire))
        });
        // Counts may wrap: only equality matters. `CLOSED` is not set while the owner lives.
        home == self.arenas[at].handed
    }

    /// Makes a consumer's end. To free an object through it costs a plain store.
    ///
    /// Cost: 8 bytes for each arena up to the limit. The counters of a dropped returner are used again. If there is no
    /// memory for them, the process ends, as with the collections of the standard library;
    /// [`try_returner`](Self::try_returner) returns an error instead.
    ///
    /// ```
    /// let mut batches = allocwall_pool::Batches::new(2, 64)?;
    /// let (mut one, mut other) = (batches.returner(), batches.returner());
    /// one.free(batches.alloc(1u64).expect("all is free"));
    /// other.free(batches.alloc(2u64).expect("126 are free"));
    /// # Ok::<(), allocwall_pool::BuildError>(())
    /// ```
    pub fn returner(&mut self) -> BatchReturner<T> {
        self.try_returner().unwrap_or_else(|_| no_memory())
    }

    /// As [`returner`](Self::returner), but with an error if there is no memory.
    ///
    /// ```
    /// let mut batches = allocwall_pool::Batches::new(2, 64)?;
    /// let mut home = batches.try_returner()?;
    /// home.free(batches.alloc(7u64).expect("all is free"));
    /// # Ok::<(), allocwall_pool::BuildError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`BuildError::OutOfMemory`] if there is no memory for the counters.
    pub fn try_returner(&mut self) -> Result<BatchReturner<T>, BuildError> {
        // SAFETY: tallies live until the owner leaves.
        let left = self.tallies.iter().find(|tally| unsafe { tally.as_ref() }.parting.returner_is_gone());
        let tally = match left.copied() {
            Some(tally) => tally,
            None => self.new_tally()?,
        };
        // SAFETY: the tally has no other writer, and the second of its two parties to leave frees it.
        unsafe {
            tally.as_ref().parting.returner_comes();
            self.estate.as_ref().hold(1);
        }
        Ok(BatchReturner { tally, estate: self.estate, of: PhantomData })
    }

    fn new_tally(&mut self) -> Result<NonNull<Tally>, BuildError> {
        self.tallies
            .try_reserve(1)
            .map_err(|_| BuildError::OutOfMemory { bytes: size_of::<NonNull<Tally>>() })?;
        let mut counts = reserved(self.limit)?;
        counts.extend((0..self.limit).map(|_| AtomicUsize::new(0)));
        let tally = NonNull::from(Box::leak(try_box(Tally {
            counts: Padded(counts.into_boxed_slice()),
            seen: UnsafeCell::new(0),
            parting: Parting::new(),
        })?));
        self.tallies.push(tally);
        Ok(tally)
    }
}

/// An empty list with room for this many items, so that it need not grow.
fn reserved<I>(items: usize) -> Result<Vec<I>, BuildError> {
    let mut list = Vec::new();
    let none = |_| BuildError::OutOfMemory { bytes: items.saturating_mul(size_of::<I>()) };
    list.try_reserve_exact(items).map_err(none)?;
    Ok(list)
}

/// A count of dropped slots for each arena up to the limit.
fn counts(limit: usize) -> Result<Box<[Padded<AtomicUsize>]>, BuildError> {
    let mut counts = reserved(limit)?;
    counts.extend((0..limit).map(|_| Padded(AtomicUsize::new(0))));
    Ok(counts.into_boxed_slice())
}

/// Makes an arena of a new block. The caller puts the block's memory into the estate.
fn own(estate: NonNull<BatchEstate>, block: Block, shape: Shape, place: usize) -> Owned {
    for (chunk, _) in block.chunks(shape) {
        let header = Header { estate: estate.as_ptr().cast_const().cast(), place, segment: 0, member: 0 };
        // SAFETY: the chunk has room for its header, and nothing else uses it yet.
        unsafe { chunk.cast().write(header) };
    }
    let slots = Slots::new(block, shape);
    // SAFETY: new slots.
    slots.clone().for_each(|slot| unsafe { hands::first(slot) });
    Owned { slots, size: block.slots(shape), handed: 0 }
}

impl<T> Drop for Batches<T> {
    fn drop(&mut self) {
        let capacity = self.capacity();
        // SAFETY: the owner has a reference to the estate until the last line. The second party to leave frees a tally.
        unsafe {
            let estate = self.estate.as_ref();
            // One reference for every slot, before another thread can see that the owner is gone. The references of
            // slots at home are given back below.
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
                // Release: the references are taken before another thread sees the mark. Acquire: as in `has_drained`.
                home = home.wrapping_add(dropped.fetch_or(CLOSED, Ordering::AcqRel));
            }
            Estate::release_slots(self.estate, home + 1);
        }
    }
}

/// A consumer's end of [`Batches`]. One thread at a time; `Send` if `T` is.
pub struct BatchReturner<T> {
    tally: NonNull<Tally>,
    estate: NonNull<BatchEstate>,
    of: PhantomData<T>,
}

// SAFETY: one thread at a time writes its tally; the owner reads the tally through atomics.
unsafe impl<T: Send> Send for BatchReturner<T> {}

impl<T> BatchReturner<T> {
    /// Drops the object on this thread and returns its slot, with a plain store. An object of other arenas goes to
    /// those arenas, as if it were dropped.
    ///
    /// ```
    /// let mut batches = allocwall_pool::Batches::new(2, 64)?;
    /// let mut home = batches.returner();
    /// let order = batches.alloc([7u8; 64]).unwrap();
    /// std::thread::spawn(move || home.free(order)).join().unwrap();
    /// # Ok::<(), allocwall_pool::BuildError>(())
    /// ```
    ///
    /// # Panics
    ///
    /// Only if the object's destructor panics. The slot is returned in that case too.
    #[inline]
    pub fn free(&mut self, object: Batched<T>) {
        // SAFETY: `finish` gives a slot that is out.
        object.finish(|slot| unsafe { self.give(slot) });
    }

    /// # Safety
    ///
    /// The slot belongs to a batch arena and is out, and the caller is its only holder.
    #[inline]
    pub(crate) unsafe fn give(&mut self, slot: NonNull<u8>) {
        // SAFETY: the caller's promise; the tally lives as long as its returner.
        unsafe {
            let header = header(slot);
            if header.estate != self.estate.as_ptr().cast_const().cast() {
                return Batch::send_home(slot);
            }
            hands::given(slot);
            self.estate.as_ref().used();
            let count = &self.tally.as_ref().counts[header.place];
            // Release: all use of the slot happens before its arena is used again.
            count.store(by_its_writer(count).wrapping_add(1), Ordering::Release);
        }
    }
}

impl<T> Drop for BatchReturner<T> {
    fn drop(&mut self) {
        // SAFETY: the second party to leave frees the tally, and gives back the references of the slots that the
        // first party did not see in it. This returner's own reference keeps the estate alive until then.
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
        f.debug_struct("Batches").field("capacity", &self.capacity()).finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for BatchReturner<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BatchReturner").finish_non_exhaustive()
    }
}
