//! The return path of slots: a map with one bit for each slot. A thread that frees a slot flips its bit. The owner
//! finds the bits that have flipped since it last read them. The map cannot be full, and one cache line serves 504
//! slots.

use alloc::{boxed::Box, vec::Vec};
use core::ptr::{NonNull, null_mut};

use crate::BuildError;
use crate::estate::Parting;
use crate::memory::try_box;
use crate::sync::{AtomicUsize, Ordering, UnsafeCell, before_change, by_its_writer};

/// Slots per word of a map. The top bit of a word says that the owner is gone.
pub(crate) const WORD: usize = usize::BITS as usize - 1;
const CLOSED: usize = 1 << WORD;

/// Unused words before and after the others, so that no other data shares their pair of cache lines. Loom has no lines.
const GAP: usize = if cfg!(loom) { 0 } else { 128 / size_of::<usize>() };

/// Blocks of slots that a pool can have: the first, and one for each doubling of a 64-bit length. Under loom pools
/// are small.
pub(crate) const SEGMENTS: usize = if cfg!(loom) { 4 } else { usize::BITS as usize + 1 };

/// A map with one bit for each slot of its pool. It grows with the pool, by one segment for each block of slots.
/// Existing segments stay where they are, because other threads flip bits in them meanwhile.
pub(crate) struct Map {
    /// The start of each segment's words. Written before the first slot of its block is handed out, and read only by a
    /// thread that has such a slot. The slot's path to that thread orders the two, so the pointer need not be atomic.
    segments: [UnsafeCell<Words>; SEGMENTS],
    /// The memory of the segments, with the gaps. Only the owner uses it, until it leaves.
    memory: UnsafeCell<Vec<Vec<AtomicUsize>>>,
    /// The value of each word that the owner last read, over all segments. Only the owner uses it, until it leaves.
    seen: UnsafeCell<Vec<usize>>,
    pub(crate) parting: Parting,
}

impl Map {
    /// A map with its first segment.
    pub(crate) fn new(words: usize) -> Result<Self, BuildError> {
        let map = Self {
            segments: core::array::from_fn(|_| UnsafeCell::new(Words(null_mut()))),
            memory: UnsafeCell::new(Vec::new()),
            seen: UnsafeCell::new(Vec::new()),
            parting: Parting::new(),
        };
        // SAFETY: no other party has the map yet.
        unsafe { map.lengthen(0, words)? };
        Ok(map)
    }

    /// Adds a segment of `words` words after the others, unless it was added before.
    ///
    /// # Safety
    ///
    /// Only the owner calls this, and no slot of that segment was handed out.
    pub(crate) unsafe fn lengthen(&self, segment: usize, words: usize) -> Result<(), BuildError> {
        let length = words.saturating_add(2 * GAP);
        let none = |_| BuildError::OutOfMemory { bytes: length.saturating_mul(size_of::<usize>()) };
        // SAFETY: the caller is the owner, and has no other borrow of these lists.
        let (memory, seen) =
            unsafe { (self.memory.with_mut(|memory| &mut *memory), self.seen.with_mut(|seen| &mut *seen)) };
        if memory.len() > segment {
            return Ok(());
        }
        let mut new = Vec::new();
        new.try_reserve_exact(length).map_err(none)?;
        seen.try_reserve(words).map_err(none)?;
        memory.try_reserve(1).map_err(none)?;
        new.extend((0..length).map(|_| AtomicUsize::new(0)));
        // Shifted, so that a word is indexed by its number in the whole map.
        let start = new.as_mut_ptr().wrapping_add(GAP).wrapping_sub(seen.len());
        // SAFETY: no thread has a slot of the segment, so no thread reads this.
        self.segments[segment].with_mut(|place| unsafe { *place = Words(start) });
        memory.push(new);
        seen.resize(seen.len() + words, 0);
        Ok(())
    }

    /// The words of a segment. Returners keep a copy of the first segment's, so that a free need not read the map
    /// itself.
    ///
    /// # Safety
    ///
    /// The caller is the owner, or has or had a slot of that segment. The map exists.
    #[inline(always)]
    pub(crate) unsafe fn words(&self, segment: usize) -> Words {
        // SAFETY: the caller's promise: the segment exists, so its index is in range, and its address is not written
        // any more.
        unsafe { self.segments.get_unchecked(segment).with(|words| *words) }
    }

    /// The bits of a word's slots that have come home since the last call. All use of these slots happens before.
    ///
    /// # Safety
    ///
    /// The caller is the owner, or the last party to leave. The map is not closed, and the word belongs to this
    /// segment.
    #[inline]
    pub(crate) unsafe fn come_home(&self, segment: usize, word: usize) -> usize {
        // Acquire: pairs with the release of each flip. A bit flips at most once between two calls, because its slot is
        // allocated only after a call that found it.
        // SAFETY: the caller's promise.
        unsafe {
            let now = self.words(segment).at(word).load(Ordering::Acquire);
            self.seen.with_mut(|seen| {
                let seen = (&mut *seen).get_unchecked_mut(word);
                core::mem::replace(seen, now) ^ now
            })
        }
    }

    /// Segment and number of each word.
    ///
    /// # Safety
    ///
    /// The caller is the owner, or the last party to leave.
    unsafe fn each(&self) -> impl Iterator<Item = (usize, usize)> {
        // SAFETY: the caller's promise: no other thread writes the list meanwhile.
        let segments = self.memory.with(|memory| unsafe { &*memory }.iter());
        let words = segments.enumerate().flat_map(|(segment, words)| {
            let count = words.len() - 2 * GAP;
            core::iter::repeat_n(segment, count)
        });
        words.enumerate().map(|(word, segment)| (segment, word))
    }

    /// The number of slots that have come home since the last read of their words.
    ///
    /// # Safety
    ///
    /// As for `come_home`.
    pub(crate) unsafe fn count_home(&self) -> usize {
        // SAFETY: the caller's promise.
        unsafe {
            self.each().map(|(segment, word)| self.come_home(segment, word).count_ones() as usize).sum()
        }
    }

    /// As `count_home`, for a map in which other threads still flip bits. It sets the closed mark: a thread that
    /// flips a bit afterwards finds the mark.
    ///
    /// # Safety
    ///
    /// Only the owner calls this.
    pub(crate) unsafe fn close(&self) -> usize {
        let close = |(segment, word)| {
            // Release: the references for the slots that are out are taken before another thread sees the mark.
            // Acquire: as in `come_home`. Later flips are not counted here.
            // SAFETY: the caller's promise; the word belongs to this segment.
            unsafe {
                let last = self.words(segment).at(word).fetch_or(CLOSED, Ordering::AcqRel);
                let seen = self.seen.with(|seen| *(&*seen).get_unchecked(word));
                (last ^ seen).count_ones() as usize
            }
        };
        // SAFETY: the caller's promise.
        unsafe { self.each() }.map(close).sum()
    }
}

/// The words of a segment, for threads that free.
#[derive(Clone, Copy)]
pub(crate) struct Words(*mut AtomicUsize);

impl Words {
    /// # Safety
    ///
    /// The map exists, and the word belongs to this segment.
    #[inline(always)]
    unsafe fn at<'a>(self, word: usize) -> &'a AtomicUsize {
        // SAFETY: the caller's promise. The pointer is shifted back by the number of the segment's first word.
        unsafe { &*self.0.wrapping_add(word) }
    }

    /// Returns a slot through the map of a returner, with a plain store.
    ///
    /// # Safety
    ///
    /// The map exists. The bit belongs to a slot of its pool. The caller is the slot's only holder and the map's only
    /// writer, and does not use the slot afterwards.
    #[inline]
    pub(crate) unsafe fn flip(self, Place { word, bit, .. }: Place) {
        // Relaxed: no other thread writes the word, and a predecessor's writes happen before, through `Parting` and the
        // returner's own path to this thread. Release: all use of the slot happens before the owner finds the flip.
        // SAFETY: the caller's promise.
        let word = unsafe { self.at(word) };
        word.store(by_its_writer(word) ^ bit, Ordering::Release);
    }

    /// Returns a slot from any thread. The result is false if the owner is gone; the caller must then give back the
    /// slot's reference.
    ///
    /// # Safety
    ///
    /// As for `flip`, but other threads may write to the map.
    #[inline]
    #[must_use]
    pub(crate) unsafe fn flip_shared(self, Place { word, bit, .. }: Place) -> bool {
        // SAFETY: the caller's promise.
        let word = unsafe { self.at(word) };
        // An addition that cannot carry. x86 has no exclusive-or that returns the old value, so it would need a retry
        // loop.
        // Relaxed: while the slot is out no other thread flips this bit, and its last flip happened before, because
        // the owner has seen it.
        let flip = if before_change(word) & bit == 0 { bit } else { bit.wrapping_neg() };
        // Release: as in `flip`. Later flips by other threads continue the release sequence, so the owner's one acquire
        // synchronizes with each (C++20, [intro.races]). Acquire: a thread that finds the closed mark gives back a
        // reference, so the owner must have taken that reference before.
        let before = word.fetch_add(flip, Ordering::AcqRel);
        before & CLOSED == 0
    }
}

/// Where a slot's bit is.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) segment: usize,
    /// The word's number over all segments.
    pub(crate) word: usize,
    /// A mask with this one bit set.
    pub(crate) bit: usize,
}

/// Makes a map that the owner and a returner share. The second of them to leave frees it.
pub(crate) fn shared(words: usize) -> Result<NonNull<Map>, BuildError> {
    try_box(Map::new(words)?).map(|map| NonNull::from(Box::leak(map)))
}

/// # Safety
///
/// The map comes from `shared`, and no other party has it.
pub(crate) unsafe fn free(map: NonNull<Map>) {
    // SAFETY: the caller's promise.
    drop(unsafe { Box::from_raw(map.as_ptr()) });
}
