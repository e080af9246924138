//! The way home: a map with a bit for each slot. Who frees a slot flips its bit; the owner finds what has flipped since it
//! looked last. It can't be full, and a line of it serves 504 slots.

use alloc::{boxed::Box, vec::Vec};
use core::ptr::{NonNull, null_mut};

use crate::BuildError;
use crate::estate::Parting;
use crate::memory::try_box;
use crate::sync::{AtomicUsize, Ordering, UnsafeCell, before_change, by_its_writer};

/// Slots in a word of a map. The bit at the top says that the owner is gone.
pub(crate) const WORD: usize = usize::BITS as usize - 1;
const CLOSED: usize = 1 << WORD;

/// Unused words before and behind the others, so that nothing else shares their pair of lines. Loom has no lines.
const GAP: usize = if cfg!(loom) { 0 } else { 128 / size_of::<usize>() };

/// Blocks of slots that a pool can have. It doubles: one for each bit of a length beside the first. Loom has small pools.
pub(crate) const SEGMENTS: usize = if cfg!(loom) { 4 } else { usize::BITS as usize + 1 };

/// Has a bit for every slot of its pool. It gets longer as the pool does, by a segment for each block of slots; those that are there
/// stay where they are, since others flip bits in them meanwhile.
pub(crate) struct Map {
    /// Where the words of each segment begin. Written before the first slot of its block is handed out, and read by who has such a
    /// slot: so its way there orders the two, and the pointer needn't be atomic.
    segments: [UnsafeCell<Words>; SEGMENTS],
    /// The memory of the segments, with the gaps. The owner's, until it leaves.
    memory: UnsafeCell<Vec<Vec<AtomicUsize>>>,
    /// What the owner has found in each word, over all segments. Its own as well.
    seen: UnsafeCell<Vec<usize>>,
    pub(crate) parting: Parting,
}

impl Map {
    /// With its first segment.
    pub(crate) fn new(words: usize) -> Result<Self, BuildError> {
        let map = Self {
            segments: core::array::from_fn(|_| UnsafeCell::new(Words(null_mut()))),
            memory: UnsafeCell::new(Vec::new()),
            seen: UnsafeCell::new(Vec::new()),
            parting: Parting::new(),
        };
        // SAFETY: nobody else has it.
        unsafe { map.lengthen(0, words)? };
        Ok(map)
    }

    /// Adds a segment of so many words behind the others, unless it was added before.
    ///
    /// # Safety
    ///
    /// By the owner; no slot of that segment was handed out.
    pub(crate) unsafe fn lengthen(&self, segment: usize, words: usize) -> Result<(), BuildError> {
        let length = words.saturating_add(2 * GAP);
        let none = |_| BuildError::OutOfMemory {
            bytes: length.saturating_mul(size_of::<usize>()),
        };
        // SAFETY: by the owner, and nothing else of it is borrowed meanwhile.
        let (memory, seen) = unsafe {
            (
                self.memory.with_mut(|memory| &mut *memory),
                self.seen.with_mut(|seen| &mut *seen),
            )
        };
        if memory.len() > segment {
            return Ok(());
        }
        let mut new = Vec::new();
        new.try_reserve_exact(length).map_err(none)?;
        seen.try_reserve(words).map_err(none)?;
        memory.try_reserve(1).map_err(none)?;
        new.extend((0..length).map(|_| AtomicUsize::new(0)));
        // So that a word is found by its number in the whole map.
        let start = new.as_mut_ptr().wrapping_add(GAP).wrapping_sub(seen.len());
        // SAFETY: nobody has a slot of the segment, so nobody reads this.
        self.segments[segment].with_mut(|place| unsafe { *place = Words(start) });
        memory.push(new);
        seen.resize(seen.len() + words, 0);
        Ok(())
    }

    /// The words of a segment. Those of the first are kept where they are used: a free costs no look into the map itself.
    ///
    /// # Safety
    ///
    /// The caller is the owner, or has or had a slot of that segment, and the map is there.
    #[inline(always)]
    pub(crate) unsafe fn words(&self, segment: usize) -> Words {
        // SAFETY: by the caller: a segment that is there is one of these, and isn't written any more.
        unsafe { self.segments.get_unchecked(segment).with(|words| *words) }
    }

    /// The slots of a word that have come home since the last call, and all that was done with them.
    ///
    /// # Safety
    ///
    /// By the owner, or by who leaves last; the map is not closed, and the word is one of this segment.
    #[inline]
    pub(crate) unsafe fn come_home(&self, segment: usize, word: usize) -> usize {
        // Acquire: pairs with the release of each flip. A bit flips once between two looks, since its slot is allocated
        // only after a look that found it.
        // SAFETY: by the caller.
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
    /// By the owner, or by who leaves last.
    unsafe fn each(&self) -> impl Iterator<Item = (usize, usize)> {
        // SAFETY: by the caller: nobody writes the list meanwhile.
        let segments = self.memory.with(|memory| unsafe { &*memory }.iter());
        let words = segments.enumerate().flat_map(|(segment, words)| {
            let count = words.len() - 2 * GAP;
            core::iter::repeat_n(segment, count)
        });
        words.enumerate().map(|(word, segment)| (segment, word))
    }

    /// How many slots have come home since the last look at each.
    ///
    /// # Safety
    ///
    /// As `come_home`.
    pub(crate) unsafe fn count_home(&self) -> usize {
        // SAFETY: by the caller.
        unsafe {
            self.each()
                .map(|(segment, word)| self.come_home(segment, word).count_ones() as usize)
                .sum()
        }
    }

    /// The same for a map that others flip bits of meanwhile, and the last time: who flips one after it is told so.
    ///
    /// # Safety
    ///
    /// By the owner alone.
    pub(crate) unsafe fn close(&self) -> usize {
        let close = |(segment, word)| {
            // Release: the references taken for the slots that are out are there before anybody sees it closed. Acquire:
            // as in `come_home`. What flips after is not counted here.
            // SAFETY: by the caller; the word is of this segment.
            unsafe {
                let last = self.words(segment).at(word).fetch_or(CLOSED, Ordering::AcqRel);
                let seen = self.seen.with(|seen| *(&*seen).get_unchecked(word));
                (last ^ seen).count_ones() as usize
            }
        };
        // SAFETY: by the caller.
        unsafe { self.each() }.map(close).sum()
    }
}

/// The words of a segment, for who frees.
#[derive(Clone, Copy)]
pub(crate) struct Words(*mut AtomicUsize);

impl Words {
    /// # Safety
    ///
    /// The map is there, and the word is one of this segment.
    #[inline(always)]
    unsafe fn at<'a>(self, word: usize) -> &'a AtomicUsize {
        // SAFETY: by the caller. It begins so far before its first word as that has a number.
        unsafe { &*self.0.wrapping_add(word) }
    }

    /// Sends a slot home by the map's only returner: a plain store.
    ///
    /// # Safety
    ///
    /// The map is there; the bit is that of a slot of its pool, and the caller, who alone has the slot and alone writes
    /// the map, gives it away.
    #[inline]
    pub(crate) unsafe fn flip(self, Place { word, bit, .. }: Place) {
        // Relaxed: nobody else writes it, and a predecessor's writes come before, by `Parting` and the returner's own
        // way here. Release: all that was done with the slot is there before the owner finds it.
        // SAFETY: by the caller.
        let word = unsafe { self.at(word) };
        word.store(by_its_writer(word) ^ bit, Ordering::Release);
    }

    /// The same from any thread. False if the owner is gone; then the slot's reference is the caller's to give back.
    ///
    /// # Safety
    ///
    /// As `flip`, but others may write.
    #[inline]
    #[must_use]
    pub(crate) unsafe fn flip_shared(self, Place { word, bit, .. }: Place) -> bool {
        // SAFETY: by the caller.
        let word = unsafe { self.at(word) };
        // An addition that can't carry: x86 has no exclusive-or that says what was there before, and would have to retry.
        // Relaxed: while the slot is out nobody else flips this bit, and its last flip came before, by the owner's look.
        let flip = if before_change(word) & bit == 0 {
            bit
        } else {
            bit.wrapping_neg()
        };
        // Release: as above; later flips by others go on the release sequence, so the owner's one acquire reaches each
        // (C++20, [intro.races]). Acquire: who sees that it is closed gives back a reference, so the owner's taking
        // of it must come before.
        let before = word.fetch_add(flip, Ordering::AcqRel);
        before & CLOSED == 0
    }
}

/// Where a slot's bit is.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) segment: usize,
    /// Over all segments.
    pub(crate) word: usize,
    /// With this one bit set.
    pub(crate) bit: usize,
}

/// A returner's map, which the last of its two parties frees.
pub(crate) fn shared(words: usize) -> Result<NonNull<Map>, BuildError> {
    try_box(Map::new(words)?).map(|map| NonNull::from(Box::leak(map)))
}

/// # Safety
///
/// From `shared`, and nobody else has it.
pub(crate) unsafe fn free(map: NonNull<Map>) {
    // SAFETY: by the caller.
    drop(unsafe { Box::from_raw(map.as_ptr()) });
}
