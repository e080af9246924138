//! A thread's table of the blocks that it allocated while it counted: address to size and owner. The blocks
//! themselves are not changed, so blocks from before a count, or of another thread, can be distinguished.
//!
//! There is a leaf of 256 entries for each 4 KiB page that had such a block. So entries are as close to each other as
//! their blocks. A hash of the page number finds the leaf.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr;

const PAGE_BITS: u32 = 12;
const LEAF: usize = 1 << (PAGE_BITS - 4);
const FIRST_SLOTS: usize = 256;

/// An entry has 40 bits of size and 24 bits of owner. Owner 0 means none.
const OWNER_BITS: u32 = 24;
pub(super) const OWNERS: u32 = 1 << OWNER_BITS;
const SIZES: usize = 1 << (u64::BITS - OWNER_BITS);

type Leaf = [u64; LEAF];

#[derive(Clone, Copy)]
struct Slot {
    /// The page's number; 0 for an empty slot.
    page: usize,
    leaf: *mut Leaf,
}

/// A block that is in the table.
#[derive(Clone, Copy)]
pub(super) struct Block {
    pub(super) size: usize,
    pub(super) owner: u32,
}

pub(super) struct Table {
    /// A power of two, at most half full; none before the first block.
    slots: *mut Slot,
    mask: usize,
    leaves: usize,
}

impl Table {
    pub(super) const EMPTY: Table = Table { slots: ptr::null_mut(), mask: 0, leaves: 0 };

    /// Bytes that the table holds.
    pub(super) fn bytes(&self) -> usize {
        self.leaves * size_of::<Leaf>() + self.capacity() * size_of::<Slot>()
    }

    /// Returns false if there is no memory for the entry, or it cannot be stored: a block of a terabyte, or one at an
    /// odd multiple of eight bytes, which would share its entry with a neighbour.
    #[inline(always)]
    pub(super) fn put(&mut self, address: usize, size: usize, owner: u32) -> bool {
        let mut leaf = self.leaf(address);
        if leaf.is_null() {
            leaf = self.new_leaf(address);
        }
        if leaf.is_null() || address & 15 != 0 || size >= SIZES {
            return false;
        }
        // SAFETY: a leaf of this table; the index is below its length.
        unsafe { (*leaf)[entry(address)] = (size as u64) << OWNER_BITS | u64::from(owner) };
        true
    }

    /// Removes the block from the table.
    #[inline(always)]
    pub(super) fn take(&mut self, address: usize) -> Option<Block> {
        let leaf = self.leaf(address);
        if leaf.is_null() || address & 15 != 0 {
            return None;
        }
        // SAFETY: as in `put`.
        let found = unsafe { std::mem::take(&mut (*leaf)[entry(address)]) };
        (found != 0)
            .then_some(Block { size: (found >> OWNER_BITS) as usize, owner: found as u32 & (OWNERS - 1) })
    }

    /// Replaces the owner of each entry by the result of `new`.
    pub(super) fn rename(&mut self, new: impl Fn(u32) -> u32) {
        for index in 0..self.capacity() {
            // SAFETY: below the capacity; a slot with a page has a leaf.
            let slot = unsafe { *self.slots.add(index) };
            if slot.page == 0 {
                continue;
            }
            // SAFETY: a slot with a page has a leaf; no other code reads it meanwhile.
            for found in unsafe { (*slot.leaf).iter_mut() } {
                let owner = new(*found as u32 & (OWNERS - 1));
                *found = if owner == 0 { 0 } else { *found & !u64::from(OWNERS - 1) | u64::from(owner) };
            }
        }
    }

    pub(super) fn clear(&mut self) {
        for index in 0..self.capacity() {
            // SAFETY: as in `rename`; the leaf came from `alloc_zeroed` with this layout.
            unsafe {
                let slot = *self.slots.add(index);
                if slot.page != 0 {
                    dealloc(slot.leaf.cast(), Layout::new::<Leaf>());
                }
            }
        }
        if let Ok(layout) = Layout::array::<Slot>(self.capacity())
            && !self.slots.is_null()
        {
            // SAFETY: came from `alloc_zeroed` with this layout.
            unsafe { dealloc(self.slots.cast(), layout) };
        }
        (self.slots, self.mask, self.leaves) = (ptr::null_mut(), 0, 0);
    }

    fn capacity(&self) -> usize {
        if self.slots.is_null() { 0 } else { self.mask + 1 }
    }

    #[inline(always)]
    fn leaf(&self, address: usize) -> *mut Leaf {
        if self.slots.is_null() {
            return ptr::null_mut();
        }
        let page = address >> PAGE_BITS;
        let mut index = spread(page) & self.mask;
        loop {
            // SAFETY: the index is masked. The loop ends, because at least half of the slots are empty.
            let slot = unsafe { *self.slots.add(index) };
            if slot.page == page {
                return slot.leaf;
            }
            if slot.page == 0 {
                return ptr::null_mut();
            }
            index = (index + 1) & self.mask;
        }
    }

    /// Null if there is no memory. Keeps `errno`.
    #[cold]
    fn new_leaf(&mut self, address: usize) -> *mut Leaf {
        // SAFETY: this thread's own `errno`.
        let errno = unsafe { *libc::__errno_location() };
        let mut leaf: *mut Leaf = ptr::null_mut();
        if 2 * (self.leaves + 1) <= self.capacity() || self.grow() {
            // SAFETY: the layout has a size.
            leaf = unsafe { alloc_zeroed(Layout::new::<Leaf>()) }.cast();
        }
        if !leaf.is_null() {
            self.leaves += 1;
            self.insert(Slot { page: address >> PAGE_BITS, leaf });
        }
        // SAFETY: this thread's own `errno`.
        unsafe { *libc::__errno_location() = errno };
        leaf
    }

    fn insert(&mut self, slot: Slot) {
        let mut index = spread(slot.page) & self.mask;
        // SAFETY: as in `leaf`.
        unsafe {
            while (*self.slots.add(index)).page != 0 {
                index = (index + 1) & self.mask;
            }
            *self.slots.add(index) = slot;
        }
    }

    fn grow(&mut self) -> bool {
        let capacity = (2 * self.capacity()).max(FIRST_SLOTS);
        let Ok(layout) = Layout::array::<Slot>(capacity) else {
            return false;
        };
        // SAFETY: the layout has a size.
        let slots: *mut Slot = unsafe { alloc_zeroed(layout) }.cast();
        if slots.is_null() {
            return false;
        }
        let (old, before) = (self.slots, self.capacity());
        (self.slots, self.mask) = (slots, capacity - 1);
        for index in 0..before {
            // SAFETY: below the old capacity.
            let slot = unsafe { *old.add(index) };
            if slot.page != 0 {
                self.insert(slot);
            }
        }
        if before > 0
            && let Ok(layout) = Layout::array::<Slot>(before)
        {
            // SAFETY: came from `alloc_zeroed` with this layout.
            unsafe { dealloc(old.cast(), layout) };
        }
        true
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Neighbouring pages get neighbouring slots. Arenas, which have the same alignment, are spread.
#[inline(always)]
fn spread(page: usize) -> usize {
    page ^ (page >> 8).wrapping_mul(0x9e37_79b9)
}

#[inline(always)]
fn entry(address: usize) -> usize {
    (address >> 4) & (LEAF - 1)
}
