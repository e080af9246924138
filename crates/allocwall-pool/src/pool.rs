//! The return-queue pool: one owner allocates, any number of threads free.

use alloc::{boxed::Box, vec::Vec};
use core::alloc::Layout;
use core::fmt;
use core::marker::PhantomData;
use core::mem::take;
use core::ptr::NonNull;

use crate::estate::Estate;
use crate::handle::{Handle, sealed::Sealed};
use crate::map::{self, Map, Place, WORD, Words};
use crate::memory::{Block, CHUNK, Header, Heap, Memory, Shape, hands, header};
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

/// What all slots of a pool share.
struct Common {
    shape: Shape,
    /// Slots that were dropped without a returner.
    dropped: Map,
}

type QueueEstate = Estate<Common>;

/// # Safety
///
/// The slot is a queue pool's, out, and the caller's alone.
unsafe fn give_back(slot: NonNull<u8>) {
    // SAFETY: by the caller; a slot that is out keeps its estate. Once its bit has flipped, neither is touched, unless the
    // slot's reference is the caller's.
    unsafe {
        let header = header(slot);
        let estate = NonNull::new_unchecked(header.estate.cast::<QueueEstate>().cast_mut());
        let Common { shape, dropped } = &*estate.as_ref().common;
        hands::changed(slot);
        estate.as_ref().used();
        if !dropped.words().flip_shared(place(shape, header.place, slot)) {
            Estate::release_slots(estate, 1);
        }
    }
}

/// Where a slot's bit is; `first` is its chunk's first word.
#[inline(always)]
fn place(shape: &Shape, first: usize, slot: NonNull<u8>) -> Place {
    let index = shape.index(slot);
    Place {
        word: first + index / WORD,
        bit: 1 << (index % WORD),
    }
}

/// Whose slots an owner or a returner knows for its own.
#[derive(Clone, Copy)]
struct Ground {
    estate: NonNull<QueueEstate>,
    /// The first block, in which nearly always a slot is: then its chunk needn't be looked at. Headers are all alike
    /// to a cache that picks a line's place by the low bits of its address.
    block: Block,
    shape: Shape,
}

impl Ground {
    /// Where the slot's bit is, if it is of this estate.
    ///
    /// # Safety
    ///
    /// The slot is a queue pool's, and out.
    #[inline(always)]
    unsafe fn place(&self, slot: NonNull<u8>) -> Option<Place> {
        let offset = slot.addr().get().wrapping_sub(self.block.start.addr().get());
        let first = if offset < self.block.bytes {
            offset / CHUNK * words(self.shape.per_chunk())
        } else {
            // SAFETY: by the caller.
            let header = unsafe { header(slot) };
            if header.estate != self.estate.as_ptr().cast_const().cast() {
                return None;
            }
            header.place
        };
        Some(place(&self.shape, first, slot))
    }
}

/// Words for so many slots of one chunk. No word has slots of two.
fn words(slots: usize) -> usize {
    slots.div_ceil(WORD)
}

/// A word as the owner sees it.
struct Word {
    /// Its first slot; the others follow.
    first: NonNull<u8>,
    /// Those that the owner has taken back itself, or that are new.
    home: usize,
}

/// The pool without its type: slots of one shape. In lines of its own, since each allocation writes it: it may lie
/// beside something that another CPU reads.
#[repr(align(128))]
pub(crate) struct RawPool {
    /// Slots at home in the word whose turn it is, its first one, and which word it is.
    home: usize,
    first: NonNull<u8>,
    turn: usize,
    words: Vec<Word>,
    /// A map for each returner.
    maps: Vec<NonNull<Map>>,
    ground: Ground,
    capacity: usize,
    limit: usize,
    /// Words of each map.
    most_words: usize,
    member: usize,
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
        // What could never be had is said now, and not by the map.
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
        let block = Block::of(&*memory);
        let capacity = block.slots(shape);
        if capacity == 0 {
            return Err(BuildError::NoCapacity);
        }
        let limit = limit.unwrap_or(capacity);
        let most_words = most_words(shape, capacity, limit);
        let ground = Ground {
            estate: Estate::new(Common {
                shape,
                dropped: Map::new(most_words),
            }),
            block,
            shape,
        };
        let mut pool = Self {
            home: 0,
            first: shape.first(block.start),
            turn: 0,
            words: Vec::with_capacity(most_words),
            maps: Vec::new(),
            ground,
            capacity: 0,
            limit,
            most_words,
            member,
        };
        pool.add(memory);
        Ok(pool)
    }

    /// Puts the slots of a block at home.
    fn add(&mut self, memory: Box<dyn Memory>) {
        let Ground { estate, shape, .. } = self.ground;
        for (chunk, slots) in Block::of(&*memory).chunks(shape) {
            let header = Header {
                estate: estate.as_ptr().cast_const().cast(),
                place: self.words.len(),
                member: self.member,
            };
            // SAFETY: the chunk has room for its header, and is nobody else's.
            unsafe { chunk.cast().write(header) };
            for from in (0..slots).step_by(WORD) {
                // SAFETY: so many slots are in the chunk.
                let at = |slot| unsafe { shape.first(chunk).add(slot * shape.stride) };
                let to = slots.min(from + WORD);
                // SAFETY: new slots.
                (from..to).for_each(|slot| unsafe { hands::first(at(slot)) });
                self.words.push(Word {
                    first: at(from),
                    home: (1 << (to - from)) - 1,
                });
            }
            self.capacity += slots;
        }
        // SAFETY: by the owner. The estate keeps the block as long as a slot is out.
        unsafe { estate.as_ref().keep(memory) };
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// A free slot.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<NonNull<u8>> {
        if self.home == 0 && !self.turn() {
            return None;
        }
        let at = self.home.trailing_zeros() as usize;
        self.home &= self.home - 1;
        // SAFETY: the word's slots lie behind its first, and one at home is the owner's.
        unsafe {
            let slot = self.first.add(at * self.ground.shape.stride);
            hands::changed(slot);
            Some(slot)
        }
    }

    /// Goes to the next word with slots at home; the one that is used up comes last, so that it fills meanwhile.
    #[cold]
    fn turn(&mut self) -> bool {
        loop {
            for _ in 0..self.words.len() {
                self.turn += 1;
                if self.turn == self.words.len() {
                    self.turn = 0;
                }
                let word = &mut self.words[self.turn];
                let mut home = take(&mut word.home);
                // SAFETY: by the owner, which frees a map only as it leaves; maps have as many words as there can be.
                unsafe {
                    home |= self.ground.estate.as_ref().common.dropped.come_home(self.turn);
                    for map in &self.maps {
                        home |= map.as_ref().come_home(self.turn);
                    }
                }
                if home != 0 {
                    (self.home, self.first) = (home, word.first);
                    return true;
                }
            }
            if !self.grow() {
                return false;
            }
        }
    }

    /// Doubles the pool, up to its limit.
    fn grow(&mut self) -> bool {
        let more = growth(self.capacity, self.limit);
        let Ok(memory) = self.ground.shape.bytes_for(more).and_then(Heap::new) else {
            return false;
        };
        self.add(Box::new(memory));
        true
    }

    /// Takes a slot back on the owner's own thread. It is the next to be taken if it is of the word whose turn it is.
    ///
    /// # Safety
    ///
    /// The slot is a queue pool's, out, and the caller's alone.
    #[inline]
    pub(crate) unsafe fn free(&mut self, slot: NonNull<u8>) {
        // SAFETY: by the caller.
        match unsafe { self.ground.place(slot) } {
            Some(Place { word, bit }) if word == self.turn => self.home |= bit,
            Some(Place { word, bit }) => self.words[word].home |= bit,
            // SAFETY: by the caller.
            None => unsafe { give_back(slot) },
        }
    }

    pub(crate) fn returner(&mut self) -> RawReturner {
        // SAFETY: maps live until the owner leaves.
        let left = self
            .maps
            .iter()
            .find(|map| unsafe { map.as_ref() }.parting.returner_is_gone());
        let map = left.copied().unwrap_or_else(|| {
            let map = map::shared(self.most_words);
            self.maps.push(map);
            map
        });
        // SAFETY: it has no other writer, and is freed by the last of the two.
        unsafe {
            map.as_ref().parting.returner_comes();
            self.ground.estate.as_ref().hold(1);
            RawReturner {
                words: map.as_ref().words(),
                map,
                ground: self.ground,
            }
        }
    }
}

/// What is added to a pool that is exhausted, in slots.
fn growth(capacity: usize, limit: usize) -> usize {
    capacity.min(limit - capacity)
}

/// How many words there are when the pool has grown to its limit.
fn most_words(shape: Shape, mut capacity: usize, limit: usize) -> usize {
    let in_block = |slots: usize| {
        let full = slots / shape.per_chunk();
        full * words(shape.per_chunk()) + words(slots % shape.per_chunk())
    };
    let mut all = in_block(capacity);
    while capacity < limit {
        let more = growth(capacity, limit);
        all += in_block(more);
        capacity += more;
    }
    all
}

impl Drop for RawPool {
    fn drop(&mut self) {
        let Self { ground, capacity, .. } = *self;
        let mut home = self.home.count_ones() as usize;
        home += self
            .words
            .iter()
            .map(|word| word.home.count_ones() as usize)
            .sum::<usize>();
        // SAFETY: the owner has a reference to the estate until the last line. Maps are freed by who leaves second.
        unsafe {
            // For every slot, before anybody can see that the owner is gone; those at home are given back at once.
            ground.estate.as_ref().hold_slots(capacity);
            for map in self.maps.drain(..) {
                if map.as_ref().parting.owner_leaves() {
                    home += map.as_ref().count_home();
                    map::free(map);
                }
            }
            home += ground.estate.as_ref().common.dropped.close();
            Estate::release_slots(ground.estate, home + 1);
        }
    }
}

/// A consumer's end of a pool without its type.
pub(crate) struct RawReturner {
    words: Words,
    ground: Ground,
    map: NonNull<Map>,
}

// SAFETY: one thread at a time writes its map; the owner reads it as the map's protocol allows.
unsafe impl Send for RawReturner {}

impl RawReturner {
    /// # Safety
    ///
    /// The slot is a queue pool's, out, and the caller's alone.
    #[inline]
    pub(crate) unsafe fn free(&mut self, slot: NonNull<u8>) {
        // SAFETY: by the caller; the map lives as long as its returner.
        unsafe {
            match self.ground.place(slot) {
                Some(place) => {
                    hands::changed(slot);
                    self.ground.estate.as_ref().used();
                    self.words.flip(place);
                }
                None => give_back(slot),
            }
        }
    }
}

impl Drop for RawReturner {
    fn drop(&mut self) {
        // SAFETY: who leaves second frees the map, and gives back the references of the slots that the first didn't
        // find in it. This returner's own reference keeps the estate until then.
        unsafe {
            if self.map.as_ref().parting.returner_leaves() {
                let home = self.map.as_ref().count_home();
                map::free(self.map);
                Estate::release_slots(self.ground.estate, home + 1);
            } else {
                Estate::release(self.ground.estate, 1);
            }
        }
    }
}

/// A pool of `T`s with one owner: it allocates, any thread frees.
///
/// Costs: 64 bytes or a multiple for each slot; a header of 64 bytes for each 256 KiB of slots; a bit for each slot and
/// returner. All is allocated and touched by the constructor. An allocation looks at one word for each returner and 63
/// slots; when nearly all slots are out, at all words until it finds one that isn't.
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

    /// A consumer's end: freeing through it costs a plain store. Each has a map of a bit a slot, which the owner looks at
    /// from then on; the map of one that was dropped is used again.
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
