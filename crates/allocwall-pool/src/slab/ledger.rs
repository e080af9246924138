//! Records which arenas are in use ("out"), slab by slab. It never reads the content of a slab.
//!
//! Each slab has one word, found by its address through a table of two levels. All other data (counts, bounds) can be
//! computed again from these words. A forked child does so, because it may have been copied during a change.

use crate::region::{HUGE, Pages, Why, os};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// Slabs per leaf: a leaf of 64 KiB covers 16 GiB of address space, and only its used pages are resident.
const LEAF_BITS: u32 = 13;
const LEAF: usize = 1 << LEAF_BITS;
/// Leaves: user addresses have 47 bits (x86-64) or 48 (arm64). The kernel gives higher ones only on request.
const TOP: usize = 1 << (48 - LEAF_BITS - HUGE.trailing_zeros());

/// The smallest arena in bytes: each arena of a slab needs a bit in the slab's word.
pub(super) const SMALLEST: usize = HUGE / 32;

const PRESENT: u64 = 1 << 63;
const KIND: u32 = 32;
const USED: u64 = u32::MAX as u64;
/// The first of the bits of trimmed arenas: not out, and with their memory returned, while others of their slab are
/// out. There is one bit each, for up to `TRIMMABLE` arenas.
const TRIMMED: u32 = 34;
const TRIMMABLE: u32 = 16;

/// A slab's words and the bounds of those in use. Zeroed memory is an empty leaf, except for the bounds.
#[repr(C)]
struct Leaf {
    words: [AtomicU64; LEAF],
    first: usize,
    /// One past the last.
    end: usize,
    /// Its place in the top table.
    place: usize,
    next: *mut Leaf,
}

pub(super) struct Ledger {
    top: NonNull<AtomicPtr<Leaf>>,
    leaves: *mut Leaf,
    arena: usize,
    shape: Shape,
    counts: Tally,
}

/// The meaning of a word's bits for arenas of one size.
#[derive(Clone, Copy)]
struct Shape {
    /// The bits of all arenas of a slab.
    full: u64,
    /// The arenas that can be trimmed: all if there are few enough, else none.
    trimmable: u64,
}

impl Shape {
    fn of(arena: usize) -> Self {
        let arenas = (HUGE / arena) as u32;
        let full = USED >> (32 - arenas);
        Self { full, trimmable: if arenas <= TRIMMABLE { full } else { 0 } }
    }

    fn partial(self, word: u64) -> bool {
        let used = word & USED;
        used != 0 && used != self.full
    }

    /// Arenas that are neither out nor trimmed.
    fn ready(self, word: u64) -> u64 {
        self.full & !word & !trimmed(word)
    }

    /// The arenas of a slab in use that are not out and whose memory could be returned. A reserved page cannot be
    /// split.
    fn idle(self, word: u64) -> u64 {
        if self.partial(word) && kind(word) != Pages::Reserved {
            self.ready(word) & self.trimmable
        } else {
            0
        }
    }
}

fn trimmed(word: u64) -> u64 {
    word >> TRIMMED & (USED >> (32 - TRIMMABLE))
}

// SAFETY: the tables belong to the ledger alone.
unsafe impl Send for Ledger {}

/// The sums over all words.
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
    /// Arenas that are not out but hold memory that could be returned, in slabs with other arenas out.
    pub(super) idle: usize,
    /// Arenas that are not out and whose memory was returned.
    pub(super) trimmed: usize,
}

/// The result of giving an arena back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Back {
    /// Not in any slab.
    Foreign,
    /// In a slab, but not an arena that is out: nothing was changed.
    Misplaced,
    Kept,
    /// It was the last arena of the slab at this address.
    Emptied(usize),
}

/// A claimed arena, whether its slab was empty, and whether it was the last trimmed arena of its slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) arena: usize,
    pub(super) was_empty: bool,
    pub(super) whole_again: bool,
}

impl Ledger {
    /// An empty ledger for arenas of `arena` bytes: a power of two from [`SMALLEST`] to [`HUGE`].
    pub(super) fn new(arena: usize) -> Result<Self, Why> {
        Ok(Self {
            top: os::table(TOP * size_of::<AtomicPtr<Leaf>>(), false)?.cast(),
            leaves: ptr::null_mut(),
            arena,
            shape: Shape::of(arena),
            counts: Tally::default(),
        })
    }

    pub(super) fn tally(&self) -> Tally {
        self.counts
    }

    /// Claims a free arena. Slabs in use come before empty ones, arenas that hold memory before trimmed ones, and low
    /// addresses before high ones, so that the other slabs become empty.
    pub(super) fn claim(&mut self) -> Option<Claim> {
        let shape = self.shape;
        let mut found = None;
        if self.counts.partial > 0 {
            found = self
                .find(|word| shape.partial(word) && shape.ready(word) != 0)
                .or_else(|| self.find(|word| shape.partial(word)));
        }
        if found.is_none() && self.counts.empty > 0 {
            found = self.find(|word| word & USED == 0);
        }
        let (base, word) = found?;
        let before = word.load(Ordering::Relaxed);
        let ready = shape.ready(before);
        let from = if ready == 0 { shape.full & !before } else { ready };
        let bit = from.trailing_zeros();
        let left = trimmed(before) & !(1 << bit);
        self.change(word, before & USED | 1 << bit, left);
        Some(Claim {
            arena: base + bit as usize * self.arena,
            was_empty: before & USED == 0,
            whole_again: left == 0 && trimmed(before) != 0,
        })
    }

    /// The first slab whose word satisfies `wanted`: the lowest one of a leaf.
    fn find(&self, wanted: impl Fn(u64) -> bool) -> Option<(usize, &'static AtomicU64)> {
        self.leaves().flat_map(|leaf| leaf.present()).find(|(_, word)| wanted(word.load(Ordering::Relaxed)))
    }

    /// Claims an idle arena, so that it can be trimmed and then given back. Slabs that were trimmed before come
    /// before whole ones, and high addresses before low ones; the slab at `spared` is skipped. The arena is marked as
    /// trimmed from now on.
    pub(super) fn claim_idle(&mut self, spared: usize) -> Option<usize> {
        if self.counts.idle == 0 {
            return None;
        }
        let idle = |whole_ones: bool| {
            self.leaves()
                .flat_map(|leaf| leaf.present().rev())
                .map(|(base, word)| (base, word, word.load(Ordering::Relaxed)))
                .find(|(base, _, now)| {
                    *base != spared && self.shape.idle(*now) != 0 && (whole_ones || trimmed(*now) != 0)
                })
        };
        let (base, word, before) = idle(false).or_else(|| idle(true))?;
        let bit = self.shape.idle(before).ilog2();
        self.change(word, before & USED | 1 << bit, trimmed(before) | 1 << bit);
        Some(base + bit as usize * self.arena)
    }

    /// Clears the mark of an arena from [`Ledger::claim_idle`], because its memory could not be returned.
    pub(super) fn not_trimmed(&mut self, arena: usize) {
        if let Some(word) = self.word(arena) {
            let now = word.load(Ordering::Relaxed);
            self.change(word, now & USED, trimmed(now) & !(1 << (arena % HUGE / self.arena)));
        }
    }

    /// Whether some of the slab's memory was returned.
    pub(super) fn is_trimmed(&self, base: usize) -> bool {
        self.word(base).is_some_and(|word| trimmed(word.load(Ordering::Relaxed)) != 0)
    }

    /// Adds a slab. Its first arena is out if `claimed`.
    ///
    /// # Errors
    ///
    /// If the address is beyond the table, or there is no memory for a leaf. Nothing was changed then.
    pub(super) fn insert(&mut self, base: usize, pages: Pages, claimed: bool) -> Result<(), Why> {
        let slab = base / HUGE;
        let leaf = match self.leaf(slab) {
            Some(leaf) => leaf,
            None => self.grow(slab)?,
        };
        // SAFETY: a leaf of this ledger; because of `&mut self`, no other code reads its bounds.
        let leaf = unsafe { &mut *leaf };
        let at = slab % LEAF;
        leaf.first = leaf.first.min(at);
        leaf.end = leaf.end.max(at + 1);
        if let Some(word) = leaf.words.get(at) {
            word.store(PRESENT | (pages as u64) << KIND | u64::from(claimed), Ordering::Relaxed);
            self.counts.add(word.load(Ordering::Relaxed), self.shape);
        }
        Ok(())
    }

    /// Removes a slab.
    pub(super) fn remove(&mut self, base: usize) {
        if let Some(word) = self.word(base) {
            let before = word.swap(0, Ordering::Relaxed);
            if before & PRESENT != 0 {
                self.counts.take(before, self.shape);
            }
        }
    }

    /// Removes an empty slab, the highest of its leaf, and returns it.
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
        self.change(word, used, trimmed(now));
        if used == 0 { Back::Emptied(base) } else { Back::Kept }
    }

    pub(super) fn pages(&self, base: usize) -> Option<Pages> {
        let word = self.word(base)?.load(Ordering::Relaxed);
        (word & PRESENT != 0).then(|| kind(word))
    }

    /// Each slab's address.
    pub(super) fn slabs(&self) -> impl Iterator<Item = usize> {
        self.leaves().flat_map(|leaf| leaf.present()).map(|(base, _)| base)
    }

    /// Computes the sums and bounds from the words.
    pub(super) fn recount(&mut self) {
        let mut counts = Tally::default();
        let mut leaf = self.leaves;
        // SAFETY: leaves of this ledger, mapped until drop; because of `&mut self`, no other code reads them.
        while let Some(this) = unsafe { leaf.as_mut() } {
            (this.first, this.end) = (0, LEAF);
            let (mut first, mut end) = (LEAF, 0);
            for (base, word) in this.present() {
                let at = base / HUGE % LEAF;
                first = first.min(at);
                end = end.max(at + 1);
                counts.add(word.load(Ordering::Relaxed), self.shape);
            }
            (this.first, this.end) = (first, end);
            leaf = this.next;
        }
        self.counts = counts;
    }

    fn change(&mut self, word: &AtomicU64, used: u64, trimmed: u64) {
        let before = word.load(Ordering::Relaxed);
        let after = before & (PRESENT | 3 << KIND) | used | trimmed << TRIMMED;
        // One store, so a forked child sees the word before or after it. Relaxed: the lock around the ledger orders it.
        word.store(after, Ordering::Relaxed);
        self.counts.take(before, self.shape);
        self.counts.add(after, self.shape);
    }

    fn word(&self, address: usize) -> Option<&'static AtomicU64> {
        let slab = address / HUGE;
        let leaf = self.leaf(slab)?;
        // SAFETY: a leaf of this ledger, mapped until drop; only its atomics are used.
        unsafe { &(*leaf).words }.get(slab % LEAF)
    }

    fn leaf(&self, slab: usize) -> Option<*mut Leaf> {
        let leaf = self.top(slab / LEAF)?.load(Ordering::Relaxed);
        (!leaf.is_null()).then_some(leaf)
    }

    fn top(&self, place: usize) -> Option<&AtomicPtr<Leaf>> {
        // SAFETY: the table has `TOP` entries, initially zeroed, and is mapped until drop.
        (place < TOP).then(|| unsafe { self.top.add(place).as_ref() })
    }

    fn grow(&mut self, slab: usize) -> Result<*mut Leaf, Why> {
        let place = slab / LEAF;
        if place >= TOP {
            return Err(Why::TooLarge);
        }
        let leaf = os::table(size_of::<Leaf>(), false)?.cast::<Leaf>().as_ptr();
        // SAFETY: new memory with the size of a leaf; its words are already zero.
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
            // SAFETY: leaves of this ledger, mapped until drop. Their bounds change only through `&mut self`, and no
            // such iterator outlives the method that made it.
            let this = unsafe { leaf.as_ref()? };
            leaf = this.next;
            Some(this)
        })
    }
}

impl Leaf {
    /// Addresses and words of the slabs in this leaf, in order of address.
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

    fn add(&mut self, word: u64, shape: Shape) {
        self.each(word, shape, |count, by| *count = count.wrapping_add(by));
    }

    /// Saturating, because a child that was copied while a leaf was being linked may have a slab that is not counted.
    fn take(&mut self, word: u64, shape: Shape) {
        self.each(word, shape, |count, by| *count = count.saturating_sub(by));
    }

    fn each(&mut self, word: u64, shape: Shape, change: impl Fn(&mut usize, usize)) {
        let used = word & USED;
        change(&mut self.arenas, used.count_ones() as usize);
        change(&mut self.slabs, 1);
        change(&mut self.empty, usize::from(used == 0));
        change(&mut self.partial, usize::from(shape.partial(word)));
        change(&mut self.idle, shape.idle(word).count_ones() as usize);
        change(&mut self.trimmed, trimmed(word).count_ones() as usize);
        change(&mut self.reserved, usize::from(kind(word) == Pages::Reserved));
        change(&mut self.transparent, usize::from(kind(word) == Pages::Transparent));
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
            // SAFETY: a leaf of this ledger, which is not used any more.
            unsafe {
                leaf = this.as_ref().next;
                let _ = os::unmap(this.cast(), size_of::<Leaf>());
            }
        }
        // SAFETY: the table, which is not used any more.
        let _ = unsafe { os::unmap(self.top.cast(), TOP * size_of::<AtomicPtr<Leaf>>()) };
    }
}
