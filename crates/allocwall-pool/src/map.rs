//! The way home: a map with a bit for each slot. Who frees a slot flips its bit; the owner finds what has flipped since it
//! looked last. It can't be full, and a line of it serves 504 slots.

use alloc::boxed::Box;
use core::ptr::NonNull;

use crate::estate::Parting;
use crate::sync::{AtomicUsize, Ordering, UnsafeCell, before_change, by_its_writer};

/// Slots in a word of a map. The bit at the top says that the owner is gone.
pub(crate) const WORD: usize = usize::BITS as usize - 1;
const CLOSED: usize = 1 << WORD;

/// Unused words before and behind the others, so that nothing else shares their pair of lines. Loom has no lines.
const GAP: usize = if cfg!(loom) { 0 } else { 128 / size_of::<usize>() };

/// Has a bit for every slot that its pool can ever have.
pub(crate) struct Map {
    words: Box<[AtomicUsize]>,
    /// What the owner has found there. Its own, until it leaves.
    seen: UnsafeCell<Box<[usize]>>,
    pub(crate) parting: Parting,
}

impl Map {
    pub(crate) fn new(words: usize) -> Self {
        Self {
            words: (0..words + 2 * GAP).map(|_| AtomicUsize::new(0)).collect(),
            seen: UnsafeCell::new((0..words).map(|_| 0).collect()),
            parting: Parting::new(),
        }
    }

    /// The words alone, which are kept where they are used: a free costs no look into the map itself.
    pub(crate) fn words(&self) -> Words {
        Words(NonNull::from(&self.words[GAP..]).cast())
    }

    /// The slots of a word that have come home since the last call, and all that was done with them.
    ///
    /// # Safety
    ///
    /// By the owner, or by who leaves last; the map is not closed and has so many words.
    #[inline]
    pub(crate) unsafe fn come_home(&self, word: usize) -> usize {
        // Acquire: pairs with the release of each flip. A bit flips once between two looks, since its slot is allocated
        // only after a look that found it.
        // SAFETY: by the caller.
        unsafe {
            let now = self.words().at(word).load(Ordering::Acquire);
            self.seen.with_mut(|seen| {
                let seen = (&mut *seen).get_unchecked_mut(word);
                core::mem::replace(seen, now) ^ now
            })
        }
    }

    /// How many slots have come home since the last look at each.
    ///
    /// # Safety
    ///
    /// As `come_home`.
    pub(crate) unsafe fn count_home(&self) -> usize {
        // SAFETY: by the caller.
        unsafe {
            let words = self.seen.with(|seen| (&*seen).len());
            (0..words)
                .map(|word| self.come_home(word).count_ones() as usize)
                .sum()
        }
    }

    /// The same for a map that others flip bits of meanwhile, and the last time: who flips one after it is told so.
    ///
    /// # Safety
    ///
    /// By the owner alone.
    pub(crate) unsafe fn close(&self) -> usize {
        let words = self.words();
        let close = |(word, seen): (usize, &usize)| {
            // Release: the references taken for the slots that are out are there before anybody sees it closed. Acquire:
            // as in `come_home`. What flips after is not counted here.
            // SAFETY: there are as many words as were seen.
            let last = unsafe { words.at(word) }.fetch_or(CLOSED, Ordering::AcqRel);
            (last ^ seen).count_ones() as usize
        };
        // SAFETY: by the caller.
        self.seen
            .with(|seen| unsafe { &*seen }.iter().enumerate().map(close).sum())
    }
}

/// The words of a map, for who frees.
#[derive(Clone, Copy)]
pub(crate) struct Words(NonNull<AtomicUsize>);

impl Words {
    /// # Safety
    ///
    /// The map is there, and has so many words.
    #[inline(always)]
    unsafe fn at<'a>(self, word: usize) -> &'a AtomicUsize {
        // SAFETY: by the caller.
        unsafe { self.0.add(word).as_ref() }
    }

    /// Sends a slot home by the map's only returner: a plain store.
    ///
    /// # Safety
    ///
    /// The map is there; the bit is that of a slot of its pool, and the caller, who alone has the slot and alone writes
    /// the map, gives it away.
    #[inline]
    pub(crate) unsafe fn flip(self, Place { word, bit }: Place) {
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
    pub(crate) unsafe fn flip_shared(self, Place { word, bit }: Place) -> bool {
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
    pub(crate) word: usize,
    /// With this one bit set.
    pub(crate) bit: usize,
}

/// A returner's map, which the last of its two parties frees.
pub(crate) fn shared(words: usize) -> NonNull<Map> {
    NonNull::from(Box::leak(Box::new(Map::new(words))))
}

/// # Safety
///
/// From `shared`, and nobody else has it.
pub(crate) unsafe fn free(map: NonNull<Map>) {
    // SAFETY: by the caller.
    drop(unsafe { Box::from_raw(map.as_ptr()) });
}
