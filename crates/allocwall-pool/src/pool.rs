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

/// The [`Kind`](crate::Kind) of the slots of a [`Pool`] and of [`Buffers`](crate::Buffers).
#[derive(Debug)]
pub enum Queue {}

impl Sealed for Queue {
    #[inline]
    unsafe fn send_home(slot: NonNull<u8>) {
        // SAFETY: the caller's promise; the estate has this kind, and lives as long as one of its slots is out.
        unsafe { give_back(slot) };
    }
}

/// Owns an object in a slot of a [`Pool`]. See [`Handle`].
pub type Pooled<T> = Handle<T, Queue>;

/// The data that all slots of a pool share.
struct Common {
    shape: Shape,
    /// The map of slots that were dropped without a returner.
    dropped: Map,
}

type QueueEstate = Estate<Common>;

/// Returns a slot without a returner.
///
/// # Safety
///
/// The slot belongs to a queue pool and is out, and the caller is its only holder.
unsafe fn give_back(slot: NonNull<u8>) {
    // SAFETY: the caller's promise; a slot that is out keeps its estate alive. After the flip, neither the slot nor the
    // estate is used, unless the caller has the slot's reference.
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

/// Where a slot's bit is. `first` is the first word of the slot's chunk.
#[inline(always)]
fn place(shape: &Shape, segment: usize, first: usize, slot: NonNull<u8>) -> Place {
    let index = shape.index(slot);
    Place { segment, word: first + index / WORD, bit: 1 << (index % WORD) }
}

/// The data by which an owner or a returner recognizes the slots of its pool.
#[derive(Clone, Copy)]
struct Ground {
    estate: NonNull<QueueEstate>,
    /// The first block. Nearly every slot is in it, and then its chunk's header need not be read. Headers compete for
    /// the same cache sets, because the low bits of their addresses are equal.
    block: Block,
    shape: Shape,
}

impl Ground {
    /// Where the slot's bit is, or `None` if the slot belongs to another estate.
    ///
    /// # Safety
    ///
    /// The slot belongs to a queue pool and is out.
    #[inline(always)]
    unsafe fn place(&self, slot: NonNull<u8>) -> Option<Place> {
        let offset = slot.addr().get().wrapping_sub(self.block.start.addr().get());
        let (segment, first) = if offset < self.block.bytes {
            (0, offset / CHUNK * words(self.shape.per_chunk()))
        } else {
            // SAFETY: the caller's promise.
            let header = unsafe { header(slot) };
            if header.estate != self.estate.as_ptr().cast_const().cast() {
                return None;
            }
            (header.segment, header.place)
        };
        Some(place(&self.shape, segment, first, slot))
    }
}

/// Words for this number of slots of one chunk. No word has slots of two chunks.
fn words(slots: usize) -> usize {
    slots.div_ceil(WORD)
}

/// The owner's data about one word of the maps.
struct Word {
    /// Its first slot; the others follow.
    first: NonNull<u8>,
    /// The segment of the maps, one for each block.
    segment: usize,
    /// Bits of the slots that are new, or that the owner has taken back itself.
    home: usize,
}

/// The pool without a type parameter: slots of one shape. Aligned to cache lines of its own, because each allocation
/// writes to it and another CPU may read the data next to it.
#[repr(align(128))]
pub(crate) struct RawPool {
    /// Bits of the slots at home in the current word; then that word's first slot, and its number.
    home: usize,
    first: NonNull<u8>,
    turn: usize,
    words: Vec<Word>,
    /// A map for each returner.
    maps: Vec<NonNull<Map>>,
    ground: Ground,
    capacity: usize,
    limit: usize,
    /// The number of words of each block.
    segments: Vec<usize>,
    member: usize,
}

// SAFETY: its pointers lead to data that only the owner uses or that is made to be shared; the values in the slots
// belong to their handles.
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
        // Report a limit that no machine can satisfy now, not when the pool grows.
        shape.bytes_for(limit)?;
        let memory = try_box(Heap::new(shape.bytes_for(capacity)?)?)?;
        Self::over(memory, shape, Some(limit), member)
    }

    /// A pool over the whole memory. Without a limit, it never grows.
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
            estate: Estate::new(Common { shape, dropped: Map::new(words_of(block, shape))? })?,
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

    /// Allocates everything that a new block needs except its memory. After an error, the parts that were allocated
    /// stay for the next try.
    fn make_room(&mut self, words: usize) -> Result<(), BuildError> {
        let segment = self.segments.len();
        let none = |_| BuildError::OutOfMemory { bytes: words.saturating_mul(size_of::<Word>()) };
        if segment == SEGMENTS {
            return Err(BuildError::OutOfMemory { bytes: usize::MAX });
        }
        self.words.try_reserve(words).map_err(none)?;
        self.segments.try_reserve(1).map_err(none)?;
        // SAFETY: the caller is the owner; the new block has no slots yet. Maps live until the owner leaves.
        unsafe {
            let estate = self.ground.estate.as_ref();
            estate.make_room()?;
            estate.common.dropped.lengthen(segment, words)?;
            self.maps.iter().try_for_each(|map| map.as_ref().lengthen(segment, words))
        }
    }

    /// Adds the slots of a block as home, after `make_room`.
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
            // SAFETY: the chunk has room for its header, and nothing else uses it yet.
            unsafe { chunk.cast().write(header) };
            for from in (0..slots).step_by(WORD) {
                // SAFETY: the chunk has more slots than `slot`.
                let at = |slot| unsafe { shape.first(chunk).add(slot * shape.stride) };
                let to = slots.min(from + WORD);
                // SAFETY: new slots.
                (from..to).for_each(|slot| unsafe { hands::first(at(slot)) });
                self.words.push(Word { first: at(from), segment, home: (1 << (to - from)) - 1 });
            }
            self.capacity += slots;
        }
        // SAFETY: the caller is the owner. The estate keeps the block as long as a slot is out.
        unsafe { estate.as_ref().keep(memory) };
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Takes a free slot, or `None` if all are out and the pool cannot grow.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<NonNull<u8>> {
        if self.home == 0 && !self.turn() {
            return None;
        }
        let at = self.home.trailing_zeros() as usize;
        self.home &= self.home - 1;
        // SAFETY: the word's slots follow its first slot, and a slot at home belongs to the owner.
        unsafe {
            let slot = self.first.add(at * self.ground.shape.stride);
            hands::taken(slot);
            Some(slot)
        }
    }

    /// Goes to the next word with slots at home. The current word comes last, so that its slots have time to return.
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
                // SAFETY: the caller is the owner, which frees a map only when it leaves. Maps have as many words as
                // the pool.
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

    /// Takes a slot back on the owner's own thread. If it belongs to the current word, it can be allocated at once.
    ///
    /// # Safety
    ///
    /// The slot belongs to a queue pool and is out, and the caller is its only holder.
    #[inline]
    pub(crate) unsafe fn free(&mut self, slot: NonNull<u8>) {
        // SAFETY: the caller's promise.
        let Some(Place { word, bit, .. }) = (unsafe { self.ground.place(slot) }) else {
            // SAFETY: the caller's promise.
            return unsafe { give_back(slot) };
        };
        // SAFETY: the caller's promise.
        unsafe { hands::given(slot) };
        if word == self.turn { self.home |= bit } else { self.words[word].home |= bit }
    }

    pub(crate) fn returner(&mut self) -> Result<RawReturner, BuildError> {
        // SAFETY: maps live until the owner leaves.
        let left = self.maps.iter().find(|map| unsafe { map.as_ref() }.parting.returner_is_gone());
        let map = match left.copied() {
            Some(map) => map,
            None => self.new_map()?,
        };
        // SAFETY: the map has no other writer, and the second of its two parties to leave frees it.
        unsafe {
            map.as_ref().parting.returner_comes();
            self.ground.estate.as_ref().hold(1);
            Ok(RawReturner { words: map.as_ref().words(0), map, ground: self.ground })
        }
    }

    fn new_map(&mut self) -> Result<NonNull<Map>, BuildError> {
        self.maps.try_reserve(1).map_err(|_| BuildError::OutOfMemory { bytes: size_of::<NonNull<Map>>() })?;
        let map = map::shared(self.segments[0])?;
        for (segment, &words) in self.segments.iter().enumerate() {
            // SAFETY: no other party has the map yet.
            if let Err(error) = unsafe { map.as_ref().lengthen(segment, words) } {
                // SAFETY: from `shared`, and no other party has it.
                unsafe { map::free(map) };
                return Err(error);
            }
        }
        self.maps.push(map);
        Ok(map)
    }
}

/// The number of slots to add to a pool that has no free slot.
fn growth(capacity: usize, limit: usize) -> usize {
    capacity.min(limit - capacity)
}

/// Words for this number of slots in a block of their own.
fn words_for(slots: usize, shape: Shape) -> usize {
    let full = slots / shape.per_chunk();
    full * words(shape.per_chunk()) + words(slots % shape.per_chunk())
}

/// Words for the slots of a block.
fn words_of(block: Block, shape: Shape) -> usize {
    block.chunks(shape).map(|(_, slots)| words(slots)).sum()
}

impl Drop for RawPool {
    fn drop(&mut self) {
        let Self { ground, capacity, .. } = *self;
        let mut home = self.home.count_ones() as usize;
        home += self.words.iter().map(|word| word.home.count_ones() as usize).sum::<usize>();
        // SAFETY: the owner has a reference to the estate until the last line. The second party to leave frees a map.
        unsafe {
            // One reference for every slot, before another thread can see that the owner is gone. The references of
            // slots at home are given back below.
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

/// A consumer's end of a pool, without a type parameter.
pub(crate) struct RawReturner {
    /// The words of the first block, where nearly every slot is.
    words: Words,
    ground: Ground,
    map: NonNull<Map>,
}

// SAFETY: one thread at a time writes its map; the owner reads the map by its protocol.
unsafe impl Send for RawReturner {}

impl RawReturner {
    /// # Safety
    ///
    /// The slot belongs to a queue pool and is out, and the caller is its only holder.
    #[inline]
    pub(crate) unsafe fn free(&mut self, slot: NonNull<u8>) {
        // SAFETY: the caller's promise; the map lives as long as its returner.
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
        // SAFETY: the second party to leave frees the map, and gives back the references of the slots that the first
        // party did not find in it. This returner's own reference keeps the estate alive until then.
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

/// A pool of `T`s with one owner. The owner allocates; any thread frees.
///
/// Costs: 64 bytes or a multiple for each slot; a header of 64 bytes for each 256 KiB of slots; one bit for each slot
/// and returner. The constructor allocates and touches all of this except the returners' bits. For each 63 slots, an
/// allocation reads one word per returner; if nearly all slots are out, it may read all words until it finds a free
/// slot.
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
    /// Makes a pool of `capacity` slots. It never grows.
    ///
    /// ```
    /// let pool = allocwall_pool::Pool::<[u8; 100]>::new(1024)?;
    /// assert_eq!(pool.capacity(), 1024);
    /// # Ok::<(), allocwall_pool::BuildError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`BuildError::NoCapacity`] for a capacity of 0, [`BuildError::SlotTooLarge`] if `T` is too large, and
    /// [`BuildError::OutOfMemory`] if there is no memory.
    pub fn new(capacity: usize) -> Result<Self, BuildError> {
        Self::growable(capacity, capacity)
    }

    /// Makes a pool of `capacity` slots that doubles when no slot is free, up to `limit` slots.
    ///
    /// Cost: an allocation that grows the pool also allocates and touches memory of that size. The maps grow with the
    /// pool, so the limit itself costs nothing. If there is no memory to grow, the pool stays as it is.
    ///
    /// ```
    /// let mut pool = allocwall_pool::Pool::growable(1, 2)?;
    /// let first = pool.alloc(1).unwrap();
    /// let second = pool.alloc(2).unwrap(); // doubles the pool
    /// assert_eq!((pool.capacity(), pool.alloc(3).is_err()), (2, true));
    /// # Ok::<(), allocwall_pool::BuildError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`new`](Self::new), and [`BuildError::LimitBelowCapacity`] for a limit below the capacity.
    pub fn growable(capacity: usize, limit: usize) -> Result<Self, BuildError> {
        Ok(Self { raw: RawPool::new(Layout::new::<T>(), capacity, limit, 0)?, of: PhantomData })
    }

    /// One of a group of pools.
    pub(crate) fn member(member: usize, capacity: usize) -> Result<Self, BuildError> {
        Ok(Self { raw: RawPool::new(Layout::new::<T>(), capacity, capacity, member)?, of: PhantomData })
    }

    pub(crate) fn raw(&mut self) -> &mut RawPool {
        &mut self.raw
    }

    /// Makes a pool in memory that you supply, for example a region of huge pages. It never grows. The memory should be
    /// aligned to 256 KiB: bytes before the first such address are not used. The memory is dropped when the owner and
    /// all returners are gone and the last slot is home.
    ///
    /// ```
    /// # #[cfg(target_os = "linux")] {
    /// use allocwall_pool::region::{Region, Request};
    ///
    /// let memory = Region::new(&Request::of(2 << 20)).expect("2 MiB of address space");
    /// println!("{:?}", memory.got().pages); // huge pages, or why not
    /// let mut pool = allocwall_pool::Pool::over(memory)?;
    /// assert!(pool.alloc([7u64; 8]).is_ok());
    /// # }
    /// # Ok::<(), allocwall_pool::BuildError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`BuildError::NoCapacity`] if no slot fits into the memory; otherwise as for [`new`](Self::new).
    pub fn over(memory: impl Memory + 'static) -> Result<Self, BuildError> {
        let shape = Shape::new(Layout::new::<T>())?;
        Ok(Self { raw: RawPool::over(Box::new(memory), shape, None, 0)?, of: PhantomData })
    }

    /// The number of slots that the pool has now, free or in use.
    ///
    /// ```
    /// let pool = allocwall_pool::Pool::<u64>::growable(4, 64)?;
    /// assert_eq!(pool.capacity(), 4); // it has not grown yet
    /// # Ok::<(), allocwall_pool::BuildError>(())
    /// ```
    pub fn capacity(&self) -> usize {
        self.raw.capacity()
    }

    /// Stores a value in a free slot. Never waits. See [`Pool`] for the cost.
    ///
    /// ```
    /// use allocwall_pool::{Full, Pool};
    ///
    /// let mut pool = Pool::new(1)?;
    /// let kept = pool.alloc("first").unwrap();
    /// let Err(Full(again)) = pool.alloc("second") else { unreachable!() };
    /// assert_eq!((*kept, again), ("first", "second"));
    /// # Ok::<(), allocwall_pool::BuildError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Full`] with the value if no slot is free and the pool cannot grow.
    #[inline]
    pub fn alloc(&mut self, value: T) -> Result<Pooled<T>, Full<T>> {
        match self.raw.take() {
            // SAFETY: a free slot with the shape of `T`.
            Some(slot) => Ok(unsafe { Handle::new(slot, value) }),
            None => Err(Full(value)),
        }
    }

    /// Drops an object on the owner's thread and takes its slot back. Cost: no atomic write. An object of another pool
    /// goes to that pool, as if it were dropped.
    ///
    /// ```
    /// let mut pool = allocwall_pool::Pool::new(1)?;
    /// let object = pool.alloc(7).unwrap();
    /// pool.free(object);
    /// assert!(pool.alloc(8).is_ok());
    /// # Ok::<(), allocwall_pool::BuildError>(())
    /// ```
    ///
    /// # Panics
    ///
    /// Only if the object's destructor panics. The slot is returned in that case too.
    #[inline]
    pub fn free(&mut self, object: Pooled<T>) {
        // SAFETY: `finish` gives a slot that is out.
        object.finish(|slot| unsafe { self.raw.free(slot) });
    }

    /// Makes a consumer's end of the pool. To free an object through it costs a plain store.
    ///
    /// Cost: a map with one bit for each slot, which the owner reads from then on. The map of a dropped returner is
    /// used again. If there is no memory for the map, the process ends, as with the collections of the standard
    /// library; [`try_returner`](Self::try_returner) returns an error instead.
    ///
    /// ```
    /// let mut pool = allocwall_pool::Pool::new(2)?;
    /// let mut home = pool.returner();
    /// let order = pool.alloc([7u8; 64]).unwrap();
    /// std::thread::spawn(move || home.free(order)).join().unwrap();
    /// # Ok::<(), allocwall_pool::BuildError>(())
    /// ```
    pub fn returner(&mut self) -> Returner<T> {
        self.try_returner().unwrap_or_else(|_| no_memory())
    }

    /// As [`returner`](Self::returner), but with an error if there is no memory.
    ///
    /// ```
    /// let mut pool = allocwall_pool::Pool::new(2)?;
    /// let mut home = pool.try_returner()?;
    /// home.free(pool.alloc(7).unwrap());
    /// # Ok::<(), allocwall_pool::BuildError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`BuildError::OutOfMemory`] if there is no memory for the map.
    pub fn try_returner(&mut self) -> Result<Returner<T>, BuildError> {
        Ok(Returner { raw: self.raw.returner()?, of: PhantomData })
    }
}

/// A consumer's end of a [`Pool`]. One thread at a time; `Send` if `T` is.
///
/// A slot that it frees can be allocated again at once: there is nothing to flush.
pub struct Returner<T> {
    raw: RawReturner,
    of: PhantomData<T>,
}

impl<T> Returner<T> {
    /// Drops the object on this thread and returns its slot, with a plain store. An object of another pool goes to that
    /// pool, as if it were dropped.
    ///
    /// ```
    /// let mut pool = allocwall_pool::Pool::new(2)?;
    /// let mut home = pool.returner();
    /// let order = pool.alloc(vec![1, 2, 3]).unwrap();
    /// // The vector is dropped on that thread.
    /// std::thread::spawn(move || home.free(order)).join().unwrap();
    /// # Ok::<(), allocwall_pool::BuildError>(())
    /// ```
    ///
    /// # Panics
    ///
    /// Only if the object's destructor panics. The slot is returned in that case too.
    #[inline]
    pub fn free(&mut self, object: Pooled<T>) {
        // SAFETY: `finish` gives a slot that is out.
        object.finish(|slot| unsafe { self.raw.free(slot) });
    }

    /// Moves the object out and returns its slot, with a plain store.
    ///
    /// ```
    /// let mut pool = allocwall_pool::Pool::new(2)?;
    /// let mut home = pool.returner();
    /// let name = pool.alloc(String::from("ten")).unwrap();
    /// assert_eq!(home.take(name), "ten");
    /// # Ok::<(), allocwall_pool::BuildError>(())
    /// ```
    #[inline]
    pub fn take(&mut self, object: Pooled<T>) -> T {
        // SAFETY: the value is moved out once, and then the slot is given away.
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
        f.debug_struct("Pool").field("capacity", &self.capacity()).finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Returner<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Returner").finish_non_exhaustive()
    }
}
