//! Which arenas are out, slab by slab: bookkeeping alone, which never looks into a slab.
//!
//! The truth is one word a slab, found by its address through a table of two levels. All else (counts, bounds) can be
//! counted again from these words: that is what a forked child does, which may have been copied in the middle of a change.

use crate::region::{HUGE, Pages, Why, os};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// Slabs of a leaf: 16 GiB of address space in 64 KiB, of which only what is used is resident.
const LEAF_BITS: u32 = 13;
const LEAF: usize = 1 << LEAF_BITS;
/// Leaves: user addresses have 47 bits (x86-64) or 48 (arm64). Higher ones are given only to those who ask.
const TOP: usize = 1 << (48 - LEAF_BITS - HUGE.trailing_zeros());

/// The smallest arena: a slab's arenas have a bit each in its word.
pub(super) const SMALLEST: usize = HUGE / 32;

const PRESENT: u64 = 1 << 63;
const KIND: u32 = 32;
const USED: u64 = u32::MAX as u64;

/// A slab's words and the bounds of those in use. Zeroed memory is an empty leaf, except for the bounds.
#[repr(C)]
struct Leaf {
    words: [AtomicU64; LEAF],
    first: usize,
    /// One behind the last.
    end: usize,
    /// Its place in the top table.
    place: usize,
    next: *mut Leaf,
}

pub(super) struct Ledger {
    top: NonNull<AtomicPtr<Leaf>>,
    leaves: *mut Leaf,
    arena: usize,
    /// All of a slab's arenas out.
    full: u64,
    counts: Tally,
}

// SAFETY: the tables belong to the ledger alone.
unsafe impl Send for Ledger {}

/// What the words sum to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) arenas: usize,
    pub(super) slabs: usize,
    /// Slabs with some arenas out and some not.
    pub(super) partial: usize,
    /// Slabs with none out.
    pub(super) empty: usize,
    pub(super) reserved: usize,
    pub(super) transparent: usize,
}

/// What giving an arena back means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Back {
    /// Not in any slab.
    Foreign,
    /// In a slab, but no arena of it that is out: nothing was changed.
    Misplaced,
    Kept,
    /// The slab's last one.
    Emptied(usize),
}

/// An arena that was claimed, and whether its slab was empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) arena: usize,
    pub(super) was_empty: bool,
}

impl Ledger {
    /// For arenas of a power of two from [`SMALLEST`] to [`HUGE`] bytes.
    pub(super) fn new(arena: usize) -> Result<Self, Why> {
        let arenas = (HUGE / arena) as u32;
        Ok(Self {
            top: os::table(TOP * size_of::<AtomicPtr<Leaf>>(), false)?.cast(),
            leaves: ptr::null_mut(),
            arena,
            full: USED >> (32 - arenas),
            counts: Tally::default(),
        })
    }

    pub(super) fn tally(&self) -> Tally {
        self.counts
    }

    /// An arena of a slab that has one: rather of one in use than of an empty one, rather at a low address than at a high
    /// one, so that the others run empty.
    pub(super) fn claim(&mut self) -> Option<Claim> {
        let found = if self.counts.partial > 0 {
            self.find(|used, full| used != 0 && used != full)
        } else {
            None
        };
        let found = match found {
            None if self.counts.empty > 0 => self.find(|used, _| used == 0),
            found => found,
        };
        let (base, word) = found?;
        let used = word.load(Ordering::Relaxed) & USED;
        let bit = (!used).trailing_zeros();
        self.change(word, used | 1 << bit);
        Some(Claim {
            arena: base + bit as usize * self.arena,
            was_empty: used == 0,
        })
    }

    /// The lowest slab of a leaf whose arenas in use satisfy `wanted(used, full)`.
    fn find(&self, wanted: impl Fn(u64, u64) -> bool) -> Option<(usize, &'static AtomicU64)> {
        self.leaves()
            .flat_map(|leaf| leaf.present())
            .find(|(_, word)| wanted(word.load(Ordering::Relaxed) & USED, self.full))
    }

    /// Takes a slab in. Its first arena is out if `claimed`.
    ///
    /// # Errors
    ///
    /// When the address is beyond the table, or no memory is left for a leaf: nothing was changed.
    pub(super) fn insert(&mut self, base: usize, pages: Pages, claimed: bool) -> Result<(), Why> {
        let slab = base / HUGE;
        let leaf = match self.leaf(slab) {
            Some(leaf) => leaf,
            None => self.grow(slab)?,
        };
        // SAFETY: a leaf of this ledger; `&mut self` says that nobody else reads its bounds.
        let leaf = unsafe { &mut *leaf };
        let at = slab % LEAF;
        leaf.first = leaf.first.min(at);
        leaf.end = leaf.end.max(at + 1);
        if let Some(word) = leaf.words.get(at) {
            word.store(
                PRESENT | (pages as u64) << KIND | u64::from(claimed),
                Ordering::Relaxed,
            );
            self.counts.add(word.load(Ordering::Relaxed), self.full);
        }
        Ok(())
    }

    /// Forgets a slab.
    pub(super) fn remove(&mut self, base: usize) {
        if let Some(word) = self.word(base) {
            let before = word.swap(0, Ordering::Relaxed);
            if before & PRESENT != 0 {
                self.counts.take(before, self.full);
            }
        }
    }

    /// Forgets an empty slab, the highest of its leaf.
    pub(super) fn take_empty(&mut self) -> Option<(usize, Pages)> {
        if self.counts.empty == 0 {
            return None;
        }
        let (base, word) = self
            .leaves()
            .flat_map(|leaf| leaf.present().rev())
            .map(|(base, word)| (base, word.load(Ordering::Relaxed)))
            .find(|(_, word)| word & USED == 0)?;
        self.remove(base);
        Some((base, kind(word)))
    }

    pub(super) fn give_back(&mut self, address: usize) -> Back {
        let Some(word) = self.word(address) else {
            return Back::Foreign;
        };
        let now = word.load(Ordering::Relaxed);
        if now & PRESENT == 0 {
            return Back::Foreign;
        }
        let base = address & !(HUGE - 1);
        let bit = 1u64 << ((address - base) / self.arena);
        if !address.is_multiple_of(self.arena) || now & bit == 0 {
            return Back::Misplaced;
        }
        let used = now & USED & !bit;
        self.change(word, used);
        if used == 0 {
            Back::Emptied(base)
        } else {
            Back::Kept
        }
    }

    pub(super) fn pages(&self, base: usize) -> Option<Pages> {
        let word = self.word(base)?.load(Ordering::Relaxed);
        (word & PRESENT != 0).then(|| kind(word))
    }

    /// Each slab's address.
    pub(super) fn slabs(&self) -> impl Iterator<Item = usize> {
        self.leaves()
            .flat_map(|leaf| leaf.present())
            .map(|(base, _)| base)
    }

    /// Sums and bounds from the words.
    pub(super) fn recount(&mut self) {
        let mut counts = Tally::default();
        let mut leaf = self.leaves;
        // SAFETY: leaves of this ledger, mapped until drop; `&mut self` says that nobody else reads them.
        while let Some(this) = unsafe { leaf.as_mut() } {
            (this.first, this.end) = (0, LEAF);
            let (mut first, mut end) = (LEAF, 0);
            for (base, word) in this.present() {
                let at = base / HUGE % LEAF;
                first = first.min(at);
                end = end.max(at + 1);
                counts.add(word.load(Ordering::Relaxed), self.full);
            }
            (this.first, this.end) = (first, end);
            leaf = this.next;
        }
        self.counts = counts;
    }

    fn change(&mut self, word: &AtomicU64, used: u64) {
        let before = word.load(Ordering::Relaxed);
        let after = before & !USED | used;
        // One store: a forked child sees the word before it or after it. Relaxed: the lock around the ledger orders.
        word.store(after, Ordering::Relaxed);
        self.counts.take(before, self.full);
        self.counts.add(after, self.full);
    }

    fn word(&self, address: usize) -> Option<&'static AtomicU64> {
        let slab = address / HUGE;
        let leaf = self.leaf(slab)?;
        // SAFETY: a leaf of this ledger, mapped until drop; only its atomics are reached.
        unsafe { &(*leaf).words }.get(slab % LEAF)
    }

    fn leaf(&self, slab: usize) -> Option<*mut Leaf> {
        let leaf = self.top(slab / LEAF)?.load(Ordering::Relaxed);
        (!leaf.is_null()).then_some(leaf)
    }

    fn top(&self, place: usize) -> Option<&AtomicPtr<Leaf>> {
        // SAFETY: the table has `TOP` entries, zeroed at first, mapped until drop.
        (place < TOP).then(|| unsafe { self.top.add(place).as_ref() })
    }

    fn grow(&mut self, slab: usize) -> Result<*mut Leaf, Why> {
        let place = slab / LEAF;
        if place >= TOP {
            return Err(Why::TooLarge);
        }
        let leaf = os::table(size_of::<Leaf>(), false)?.cast::<Leaf>().as_ptr();
        // SAFETY: fresh memory of a leaf's size; the words in it are zero already.
        unsafe {
            (*leaf).first = LEAF;
            (*leaf).place = place;
            (*leaf).next = self.leaves;
        }
        self.leaves = leaf;
        if let Some(entry) = self.top(place) {
            entry.store(leaf, Ordering::Relaxed);
        }
        Ok(leaf)
    }

    fn leaves(&self) -> impl Iterator<Item = &'static Leaf> {
        let mut leaf = self.leaves;
        std::iter::from_fn(move || {
            // SAFETY: leaves of this ledger, mapped until drop. Their bounds change only under `&mut self`, and no
            // iterator of ours outlives the method that made it.
            let this = unsafe { leaf.as_ref()? };
            leaf = this.next;
            Some(this)
        })
    }
}

impl Leaf {
    /// Addresses and words of the slabs present, by address.
    fn present(&self) -> impl DoubleEndedIterator<Item = (usize, &AtomicU64)> {
        let start = self.place * LEAF;
        let first = self.first.min(self.end);
        self.words
            .get(first..self.end)
            .unwrap_or_default()
            .iter()
            .enumerate()
            .filter(|(_, word)| word.load(Ordering::Relaxed) & PRESENT != 0)
            .map(move |(at, word)| ((start + first + at) * HUGE, word))
    }
}

impl Tally {
    /// Slabs with arenas out.
    pub(super) fn used(&self) -> usize {
        self.slabs.saturating_sub(self.empty)
    }

    fn add(&mut self, word: u64, full: u64) {
        self.each(word, full, |count, by| *count = count.wrapping_add(by));
    }

    /// Saturating: a child that was copied while a leaf was being linked may hold a slab that it hasn't counted.
    fn take(&mut self, word: u64, full: u64) {
        self.each(word, full, |count, by| *count = count.saturating_sub(by));
    }

    fn each(&mut self, word: u64, full: u64, change: impl Fn(&mut usize, usize)) {
        let used = word & USED;
        change(&mut self.arenas, used.count_ones() as usize);
        change(&mut self.slabs, 1);
        change(&mut self.empty, usize::from(used == 0));
        change(&mut self.partial, usize::from(used != 0 && used != full));
        change(&mut self.reserved, usize::from(kind(word) == Pages::Reserved));
        change(
            &mut self.transparent,
            usize::from(kind(word) == Pages::Transparent),
        );
    }
}

fn kind(word: u64) -> Pages {
    [Pages::Reserved, Pages::Transparent]
        .into_iter()
        .find(|pages| *pages as u64 == word >> KIND & 3)
        .unwrap_or(Pages::Plain)
}

impl Drop for Ledger {
    fn drop(&mut self) {
        let mut leaf = self.leaves;
        while let Some(this) = NonNull::new(leaf) {
            // SAFETY: a leaf of this ledger, which nobody uses any more.
            unsafe {
                leaf = this.as_ref().next;
                let _ = os::unmap(this.cast(), size_of::<Leaf>());
            }
        }
        // SAFETY: the table, which nobody uses any more.
        let _ = unsafe { os::unmap(self.top.cast(), TOP * size_of::<AtomicPtr<Leaf>>()) };
    }
}
