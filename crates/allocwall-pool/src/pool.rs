//! The return-queue pool: one owner allocates, any number of threads free.

use alloc::{boxed::Box, vec, vec::Vec};
use core::alloc::Layout;
use core::fmt;
use core::marker::PhantomData;
use core::ptr::{NonNull, null, null_mut};

use crate::estate::Estate;
use crate::handle::{Handle, sealed::Sealed};
use crate::memory::{Header, Heap, Memory, Shape, Slots, header, link};
use crate::ring::{Entry, Ring, Writer};
use crate::stack::Stack;
use crate::sync::prefetch_to_write;
use crate::{BuildError, Full};

/// The kind of the slots of a [`Pool`].
#[derive(Debug)]
pub enum Queue {}

impl Sealed for Queue {
    #[inline]
    unsafe fn send_home(slot: NonNull<u8>) {
        // SAFETY: an estate of this kind, which lives as long as a slot of it is out.
        unsafe { give_back(slot) };
    }
}

/// An object in a slot of a [`Pool`].
pub type Pooled<T> = Handle<T, Queue>;

type QueueEstate = Estate<Stack>;

/// # Safety
///
/// The slot is a queue pool's, out, and the caller's alone.
unsafe fn give_back(slot: NonNull<u8>) {
    // SAFETY: by the caller; a slot that is out keeps its estate. Once it's pushed, neither is touched.
    unsafe {
        let estate = NonNull::new_unchecked(header(slot).estate.cast::<QueueEstate>().cast_mut());
        if !estate.as_ref().dropped.push(slot) {
            Estate::release(estate, 1);
        }
    }
}

/// The pool without its type: slots of one shape.
pub(crate) struct RawPool {
    // The ring that slots are now taken from, and what is known to be in it.
    entries: NonNull<Entry>,
    mask: usize,
    head: usize,
    seen: usize,
    /// Its place in `rings`.
    current: usize,
    /// Dropped slots, taken off the estate's stack and not used yet.
    chain: *mut u8,
    /// The owner's own end of the first ring, in which all slots start.
    own: Writer,
    rings: Vec<Reading>,
    estate: NonNull<QueueEstate>,
    /// First byte and length of the first block.
    block: (NonNull<u8>, usize),
    shape: Shape,
    capacity: usize,
    limit: usize,
    member: usize,
}

/// A ring and how much of it the owner has read; out of date for the current one, whose count is in the pool.
struct Reading {
    ring: NonNull<Ring>,
    head: usize,
}

// SAFETY: all that it points to is the owner's or made to be shared; the values in the slots are their handles'.
unsafe impl Send for RawPool {}

impl RawPool {
    pub(crate) fn new(
        layout: Layout,
        capacity: usize,
        limit: usize,
        member: usize,
    ) -> Result<Self, BuildError> {
        if limit < capacity {
            return Err(BuildError::LimitBelowCapacity { capacity, limit });
        }
        let shape = Shape::new(layout)?;
        // What could never be had is said now, and not by the ring.
        shape.bytes_for(limit)?;
        let memory = Box::new(Heap::new(shape.bytes_for(capacity)?)?);
        Self::over(memory, shape, Some(limit), member)
    }

    /// Over the whole of the memory. No limit: what fits.
    pub(crate) fn over(
        memory: Box<dyn Memory>,
        shape: Shape,
        limit: Option<usize>,
        member: usize,
    ) -> Result<Self, BuildError> {
        let capacity = shape.slots_within(&*memory);
        if capacity == 0 {
            return Err(BuildError::NoCapacity);
        }
        let limit = limit.unwrap_or(capacity);
        let ring = Ring::new(limit);
        // SAFETY: it is new, and the last of its two users frees it.
        let (own, (entries, mask)) = unsafe { (Writer::new(ring), ring.as_ref().entries()) };
        let mut pool = Self {
            entries,
            mask,
            head: 0,
            seen: 0,
            current: 0,
            chain: null_mut(),
            own,
            rings: vec![Reading { ring, head: 0 }],
            estate: Estate::new(Stack::new()),
            block: (memory.base(), memory.len()),
            shape,
            capacity: 0,
            limit,
            member,
        };
        pool.add(memory);
        Ok(pool)
    }

    /// Puts the slots of a block at home.
    fn add(&mut self, memory: Box<dyn Memory>) {
        let (estate, member) = (self.estate.as_ptr().cast_const().cast(), self.member);
        // SAFETY: the estate keeps the block as long as a slot is out; the slots are new, and at most `limit`.
        unsafe {
            for slot in Slots::new(&*memory, self.shape, || Header {
                estate,
                arena: null(),
                member,
            }) {
                link::create(slot);
                self.own.push(slot);
                self.capacity += 1;
            }
            self.estate.as_ref().keep(memory);
        }
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// A free slot.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<NonNull<u8>> {
        if self.head == self.seen {
            return self.take_from_elsewhere();
        }
        Some(self.next())
    }

    #[inline]
    fn next(&mut self) -> NonNull<u8> {
        // SAFETY: masked, so within the entries; entries before `seen` are written and were acquired with it.
        let slot = unsafe {
            self.entries
                .add(self.head & self.mask)
                .as_ref()
                .with(|entry| *entry)
        };
        self.head = self.head.wrapping_add(1);
        // SAFETY: a slot at home is the owner's.
        unsafe { link::changed_hands(slot) };
        slot
    }

    #[cold]
    fn take_from_elsewhere(&mut self) -> Option<NonNull<u8>> {
        loop {
            if self.chain.is_null() && self.turn() {
                return Some(self.next());
            }
            if self.chain.is_null() {
                // SAFETY: the owner has a reference to it.
                self.chain = unsafe { self.estate.as_ref() }.dropped.take();
            }
            if let Some(slot) = NonNull::new(self.chain) {
                // One at a time: to walk the whole list now would be a line from another CPU for each slot, in one go.
                // SAFETY: slots in the chain are at home, and linked.
                self.chain = unsafe { link::get(slot) };
                prefetch_to_write(self.chain);
                return Some(slot);
            }
            if !self.grow() {
                return None;
            }
        }
    }

    /// Goes to the next ring that has something, all of which is then known: one look at another CPU's line for a
    /// batch of slots. The ring that is empty comes last, so that the others fill no further meanwhile.
    fn turn(&mut self) -> bool {
        self.rings[self.current].head = self.head;
        for step in 1..=self.rings.len() {
            let at = (self.current + step) % self.rings.len();
            let Reading { ring, head } = self.rings[at];
            // SAFETY: the owner frees a ring only when it leaves.
            let ring = unsafe { ring.as_ref() };
            let tail = ring.tail();
            if tail != head {
                (self.entries, self.mask) = ring.entries();
                (self.current, self.head, self.seen) = (at, head, tail);
                return true;
            }
        }
        false
    }

    /// Doubles the pool, up to its limit.
    fn grow(&mut self) -> bool {
        let more = self.capacity.min(self.limit - self.capacity);
        let Ok(memory) = self.shape.bytes_for(more).and_then(Heap::new) else {
            return false;
        };
        self.add(Box::new(memory));
        true
    }

    /// Takes a slot back on the owner's own thread.
    ///
    /// # Safety
    ///
    /// The slot is a queue pool's, out, and the caller's alone.
    #[inline]
    pub(crate) unsafe fn free(&mut self, slot: NonNull<u8>) {
        // SAFETY: by the caller.
        unsafe {
            if owns(self.estate, self.block, slot) {
                self.own.push(slot);
            } else {
                give_back(slot);
            }
        }
    }

    pub(crate) fn returner(&mut self) -> RawReturner {
        // SAFETY: rings live until the owner leaves; in the first one the owner itself writes, so nobody leaves it.
        let left = self
            .rings
            .iter()
            .find(|read| unsafe { read.ring.as_ref() }.parting.returner_is_gone());
        let ring = match left {
            Some(read) => read.ring,
            None => {
                let ring = Ring::new(self.limit);
                self.rings.push(Reading { ring, head: 0 });
                ring
            }
        };
        // SAFETY: it has no other writer, and is freed by the last of the two.
        unsafe {
            ring.as_ref().parting.returner_comes();
            self.estate.as_ref().hold(1);
            RawReturner {
                writer: Writer::new(ring),
                estate: self.estate,
                block: self.block,
            }
        }
    }
}

impl Drop for RawPool {
    fn drop(&mut self) {
        self.rings[self.current].head = self.head;
        // SAFETY: the owner has a reference to the estate until the last line. Rings are freed by who leaves second.
        unsafe {
            // For every slot, before anybody can see that the owner is gone; those at home are given back at once.
            self.estate.as_ref().hold(self.capacity);
            let mut home = 0;
            let own = self.rings.swap_remove(0);
            home += self.own.written().wrapping_sub(own.head);
            Ring::free(own.ring);
            for Reading { ring, head } in self.rings.drain(..) {
                if ring.as_ref().parting.owner_leaves(head) {
                    home += ring.as_ref().tail().wrapping_sub(head);
                    Ring::free(ring);
                }
            }
            for mut at in [self.chain, self.estate.as_ref().dropped.close()] {
                while let Some(slot) = NonNull::new(at) {
                    home += 1;
                    at = link::get(slot);
                }
            }
            Estate::release(self.estate, home + 1);
        }
    }
}

/// Whether the slot is of this estate. Nearly always the first block's range tells, without a look at the chunk.
///
/// # Safety
///
/// The slot is a queue pool's, and out.
#[inline(always)]
unsafe fn owns(estate: NonNull<QueueEstate>, block: (NonNull<u8>, usize), slot: NonNull<u8>) -> bool {
    slot.addr().get().wrapping_sub(block.0.addr().get()) < block.1
        // SAFETY: by the caller.
        || unsafe { header(slot) }.estate == estate.as_ptr().cast_const().cast()
}

/// A consumer's end of a pool without its type.
pub(crate) struct RawReturner {
    writer: Writer,
    estate: NonNull<QueueEstate>,
    block: (NonNull<u8>, usize),
}

// SAFETY: one thread at a time writes its ring; the owner reads it as the ring's protocol allows.
unsafe impl Send for RawReturner {}

impl RawReturner {
    /// # Safety
    ///
    /// The slot is a queue pool's, out, and the caller's alone.
    #[inline]
    pub(crate) unsafe fn free(&mut self, slot: NonNull<u8>) {
        // SAFETY: by the caller.
        unsafe {
            if owns(self.estate, self.block, slot) {
                link::changed_hands(slot);
                self.writer.push(slot);
            } else {
                give_back(slot);
            }
        }
    }
}

impl Drop for RawReturner {
    fn drop(&mut self) {
        let ring = self.writer.ring();
        // SAFETY: who leaves second frees the ring, and gives back the references of the slots that the first didn't
        // see in it. This returner's own reference keeps the estate until then.
        unsafe {
            let mut references = 1;
            if let Some(seen) = ring.as_ref().parting.returner_leaves() {
                references += self.writer.written().wrapping_sub(seen);
                Ring::free(ring);
            }
            Estate::release(self.estate, references);
        }
    }
}

/// A pool of `T`s with one owner: it allocates, any thread frees.
///
/// Costs: 64 bytes or a multiple for each slot, 8 more for each and every returner; a header of 64 bytes for each 256 KiB
/// of slots. All is allocated and touched by the constructor.
///
/// ```
/// let mut pool = allocwall_pool::Pool::new(1024)?;
/// let mut home = pool.returner();
/// let order = pool.alloc([7u8; 64]).expect("1024 slots are free");
/// std::thread::spawn(move || home.free(order)).join().unwrap();
/// # Ok::<(), allocwall_pool::BuildError>(())
/// ```
pub struct Pool<T> {
    raw: RawPool,
    of: PhantomData<T>,
}

impl<T> Pool<T> {
    /// A pool of so many slots, never more.
    ///
    /// # Errors
    ///
    /// [`BuildError`]: a capacity of 0, a `T` that is too large, no memory.
    pub fn new(capacity: usize) -> Result<Self, BuildError> {
        Self::growable(capacity, capacity)
    }

    /// A pool that doubles when it is exhausted, up to `limit` slots. An allocation that grows it takes as long as
    /// memory of that size takes to get and to touch.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new), and a limit below the capacity.
    pub fn growable(capacity: usize, limit: usize) -> Result<Self, BuildError> {
        Ok(Self {
            raw: RawPool::new(Layout::new::<T>(), capacity, limit, 0)?,
            of: PhantomData,
        })
    }

    /// One of a group of pools.
    pub(crate) fn member(member: usize, capacity: usize) -> Result<Self, BuildError> {
        Ok(Self {
            raw: RawPool::new(Layout::new::<T>(), capacity, capacity, member)?,
            of: PhantomData,
        })
    }

    pub(crate) fn raw(&mut self) -> &mut RawPool {
        &mut self.raw
    }

    /// A pool over the whole of this memory, for example a region of huge pages; it should be aligned to 256 KiB, since
    /// what lies before such an address is not used. Dropped when the last slot is home.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new): memory that is too small has a capacity of 0.
    pub fn over(memory: impl Memory + 'static) -> Result<Self, BuildError> {
        let shape = Shape::new(Layout::new::<T>())?;
        Ok(Self {
            raw: RawPool::over(Box::new(memory), shape, None, 0)?,
            of: PhantomData,
        })
    }

    /// How many slots there are now.
    pub fn capacity(&self) -> usize {
        self.raw.capacity()
    }

    /// Stores a value.
    ///
    /// # Errors
    ///
    /// [`Full`] with the value when no slot is free and the pool can't grow.
    #[inline]
    pub fn alloc(&mut self, value: T) -> Result<Pooled<T>, Full<T>> {
        match self.raw.take() {
            // SAFETY: a free slot of the shape of `T`.
            Some(slot) => Ok(unsafe { Handle::new(slot, value) }),
            None => Err(Full(value)),
        }
    }

    /// Takes back an object that never left, or has come back to, the owner's thread.
    #[inline]
    pub fn free(&mut self, object: Pooled<T>) {
        // SAFETY: `finish` gives a slot that is out.
        object.finish(|slot| unsafe { self.raw.free(slot) });
    }

    /// A consumer's end: freeing through it costs a plain store. Each has a ring of 8 bytes a slot; the ring of one that
    /// was dropped is used again.
    pub fn returner(&mut self) -> Returner<T> {
        Returner {
            raw: self.raw.returner(),
            of: PhantomData,
        }
    }
}

/// A consumer's end of a [`Pool`].
///
/// What it frees can be allocated again at once: there is nothing to flush.
pub struct Returner<T> {
    raw: RawReturner,
    of: PhantomData<T>,
}

impl<T> Returner<T> {
    /// Drops the object here and sends its slot home. An object of another pool goes home to that, as if it were dropped.
    #[inline]
    pub fn free(&mut self, object: Pooled<T>) {
        // SAFETY: `finish` gives a slot that is out.
        object.finish(|slot| unsafe { self.raw.free(slot) });
    }

    /// Moves the object out and sends its slot home.
    #[inline]
    pub fn take(&mut self, object: Pooled<T>) -> T {
        // SAFETY: the value is moved out once, then the slot is given away.
        unsafe {
            let slot = object.into_slot();
            let value = slot.add(crate::memory::VALUE_OFFSET).cast().read();
            self.raw.free(slot);
            value
        }
    }
}

impl<T> fmt::Debug for Pool<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("capacity", &self.capacity())
            .finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Returner<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Returner").finish_non_exhaustive()
    }
}
