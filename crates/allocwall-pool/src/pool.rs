//! The return-queue pool: one owner allocates, any number of threads free.

use alloc::{boxed::Box, vec::Vec};
use core::alloc::Layout;
use core::fmt;
use core::marker::PhantomData;
use core::mem::take;
use core::ptr::NonNull;

use crate::estate::Estate;
use crate::handle::{Handle, sealed::Sealed};
use crate::map::{self, Map, Place, SEGMENTS, WORD, Words};
use crate::memory::{Block, CHUNK, Header, Heap, Memory, Shape, hands, header, no_memory, try_box};
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
        hands::given(slot);
        estate.as_ref().used();
        let place = place(shape, header.segment, header.place, slot);
        if !dropped.words(place.segment).flip_shared(place) {
            Estate::release_slots(estate, 1);
        }
    }
}

/// Where a slot's bit is; `first` is its chunk's first word, in this segment.
#[inline(always)]
fn place(shape: &Shape, segment: usize, first: usize, slot: NonNull<u8>) -> Place {
    let index = shape.index(slot);
    Place {
        segment,
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
        let (segment, first) = if offset < self.block.bytes {
            (0, offset / CHUNK * words(self.shape.per_chunk()))
        } else {
            // SAFETY: by the caller.
            let header = unsafe { header(slot) };
            if header.estate != self.estate.as_ptr().cast_const().cast() {
                return None;
            }
            (header.segment, header.place)
        };
        Some(place(&self.shape, segment, first, slot))
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
    /// Which block it is of.
    segment: usize,
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
    /// Words of each block.
    segments: Vec<usize>,
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
        // What could never be had is said now.
        shape.bytes_for(limit)?;
        let memory = try_box(Heap::new(shape.bytes_for(capacity)?)?)?;
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
        let ground = Ground {
            estate: Estate::new(Common {
                shape,
                dropped: Map::new(words_of(block, shape))?,
            })?,
            block,
            shape,
        };
        let mut pool = Self {
            home: 0,
            first: shape.first(block.start),
            turn: 0,
            words: Vec::new(),
            maps: Vec::new(),
            ground,
            capacity: 0,
            limit,
            segments: Vec::new(),
            member,
        };
        pool.make_room(words_of(block, shape))?;
        pool.add(memory);
        Ok(pool)
    }

    /// Everything that a new block needs beside its memory. What was made stays for the next time, if the rest can't be had.
    fn make_room(&mut self, words: usize) -> Result<(), BuildError> {
        let segment = self.segments.len();
        let none = |_| BuildError::OutOfMemory {
            bytes: words.saturating_mul(size_of::<Word>()),
        };
        if segment == SEGMENTS {
            return Err(BuildError::OutOfMemory { bytes: usize::MAX });
        }
        self.words.try_reserve(words).map_err(none)?;
        self.segments.try_reserve(1).map_err(none)?;
        // SAFETY: by the owner; no slot of the new block is there yet. Maps live until the owner leaves.
        unsafe {
            let estate = self.ground.estate.as_ref();
            estate.make_room()?;
            estate.common.dropped.lengthen(segment, words)?;
            self.maps
                .iter()
                .try_for_each(|map| map.as_ref().lengthen(segment, words))
        }
    }

    /// Puts the slots of a block at home, after `make_room`.
    fn add(&mut self, memory: Box<dyn Memory>) {
        let Ground { estate, shape, .. } = self.ground;
        let segment = self.segments.len();
        self.segments.push(words_of(Block::of(&*memory), shape));
        for (chunk, slots) in Block::of(&*memory).chunks(shape) {
            let header = Header {
                estate: estate.as_ptr().cast_const().cast(),
                place: self.words.len(),
                segment,
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
                    segment,
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
            hands::taken(slot);
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
                // SAFETY: by the owner, which frees a map only as it leaves; maps have as many words as the pool.
                unsafe {
                    let dropped = &self.ground.estate.as_ref().common.dropped;
                    home |= dropped.come_home(word.segment, self.turn);
                    for map in &self.maps {
                        home |= map.as_ref().come_home(word.segment, self.turn);
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
        let shape = self.ground.shape;
        let more = growth(self.capacity, self.limit);
        let memory = shape.bytes_for(more).and_then(|bytes| {
            self.make_room(words_for(more, shape))?;
            try_box(Heap::new(bytes)?)
        });
        match memory {
            Ok(memory) => self.add(memory),
            Err(_) => return false,
        }
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
        let Some(Place { word, bit, .. }) = (unsafe { self.ground.place(slot) }) else {
            // SAFETY: by the caller.
            return unsafe { give_back(slot) };
        };
        // SAFETY: by the caller.
        unsafe { hands::given(slot) };
        match word == self.turn {
            true => self.home |= bit,
            false => self.words[word].home |= bit,
        }
    }

    pub(crate) fn returner(&mut self) -> Result<RawReturner, BuildError> {
        // SAFETY: maps live until the owner leaves.
        let left = self
            .maps
            .iter()
            .find(|map| unsafe { map.as_ref() }.parting.returner_is_gone());
        let map = match left.copied() {
            Some(map) => map,
            None => self.new_map()?,
        };
        // SAFETY: it has no other writer, and is freed by the last of the two.
        unsafe {
            map.as_ref().parting.returner_comes();
            self.ground.estate.as_ref().hold(1);
            Ok(RawReturner {
                words: map.as_ref().words(0),
                map,
                ground: self.ground,
            })
        }
    }

    fn new_map(&mut self) -> Result<NonNull<Map>, BuildError> {
        self.maps.try_reserve(1).map_err(|_| BuildError::OutOfMemory {
            bytes: size_of::<NonNull<Map>>(),
        })?;
        let map = map::shared(self.segments[0])?;
        for (segment, &words) in self.segments.iter().enumerate() {
            // SAFETY: nobody else has the map.
            if let Err(error) = unsafe { map.as_ref().lengthen(segment, words) } {
                // SAFETY: as above.
                unsafe { map::free(map) };
                return Err(error);
            }
        }
        self.maps.push(map);
        Ok(map)
    }
}

/// What is added to a pool that is exhausted, in slots.
fn growth(capacity: usize, limit: usize) -> usize {
    capacity.min(limit - capacity)
}

/// Words for so many slots in a block of their own.
fn words_for(slots: usize, shape: Shape) -> usize {
    let full = slots / shape.per_chunk();
    full * words(shape.per_chunk()) + words(slots % shape.per_chunk())
}

/// Words for the slots that a block has.
fn words_of(block: Block, shape: Shape) -> usize {
    block.chunks(shape).map(|(_, slots)| words(slots)).sum()
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
    /// Of the first block, in which nearly always a slot is.
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
                    hands::given(slot);
                    self.ground.estate.as_ref().used();
                    let words = match place.segment {
                        0 => self.words,
                        segment => self.map.as_ref().words(segment),
                    };
                    words.flip(place);
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
    /// memory of that size takes to get and to touch; the maps grow with it, so the limit itself costs nothing. Where there is no
    /// memory for more, it stays as it is.
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
    ///
    /// Without memory for the map it ends the process, as the standard library's collections do.
    pub fn returner(&mut self) -> Returner<T> {
        self.try_returner().unwrap_or_else(|_| no_memory())
    }

    /// As [`returner`](Self::returner).
    ///
    /// # Errors
    ///
    /// [`BuildError::OutOfMemory`]: no memory for its map.
    pub fn try_returner(&mut self) -> Result<Returner<T>, BuildError> {
        Ok(Returner {
            raw: self.raw.returner()?,
            of: PhantomData,
        })
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
