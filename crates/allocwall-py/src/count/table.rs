//! A thread's table of the blocks that it allocated while it counted: address to size and owner. The blocks
//! themselves are not changed, so blocks from before a count, or of another thread, can be distinguished.
//!
//! There is a leaf of 256 entries for each 4 KiB page that had such a block. So entries are as close to each other as
//! their blocks. A hash of the page number finds the leaf. The array `near` has the leaves that were found last; most
//! calls need only this array.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr;

const PAGE_BITS: u32 = 12;
const LEAF: usize = 1 << (PAGE_BITS - 4);
const FIRST_SLOTS: usize = 256;
/// The bits of an address that number an entry in its leaf.
const ENTRY_BITS: usize = (LEAF - 1) << 4;
/// Enough for 4 MiB of pages side by side.
const NEAR: usize = 1024;

/// An entry has 40 bits of size and 24 bits of owner. Owner 0 means none.
const OWNER_BITS: u32 = 24;
pub(super) const OWNERS: u32 = 1 << OWNER_BITS;
const SIZES: usize = 1 << (u64::BITS - OWNER_BITS);

type Leaf = [u64; LEAF];

#[derive(Clone, Copy)]
struct Slot {
    /// The page's address; 0 for an empty slot of the hash table.
    page: usize,
    leaf: *mut Leaf,
}

impl Slot {
    /// No address is on this page, not even a null pointer.
    const NOWHERE: Slot = Slot { page: usize::MAX, leaf: ptr::null_mut() };
}

/// A block that is in the table.
#[derive(Clone, Copy)]
pub(super) struct Block {
    pub(super) size: usize,
    pub(super) owner: u32,
}

#[inline(always)]
fn packed(size: usize, owner: u32) -> u64 {
    (size as u64) << OWNER_BITS | u64::from(owner)
}

#[inline(always)]
fn unpacked(found: u64) -> Block {
    Block { size: (found >> OWNER_BITS) as usize, owner: found as u32 & (OWNERS - 1) }
}

pub(super) struct Table {
    /// A power of two, at most half full; none before the first block.
    slots: *mut Slot,
    mask: usize,
    leaves: usize,
    /// The slots that were found last, at the number of their page modulo the length.
    near: [Slot; NEAR],
}

impl Table {
    pub(super) const EMPTY: Table =
        Table { slots: ptr::null_mut(), mask: 0, leaves: 0, near: [Slot::NOWHERE; NEAR] };

    /// The entry of an address on a page of `near`. Its type has room for a flag: a null pointer would be tested again.
    #[inline(always)]
    fn near_entry(&self, address: usize) -> Option<*mut u64> {
        let slot = &self.near[page_number(address) % NEAR];
        // The four lowest bits are compared as well: see `put`.
        // SAFETY: a leaf of this table, which no other code reads meanwhile; the index is below its length.
        (slot.page == address & !ENTRY_BITS).then(|| unsafe { &raw mut (*slot.leaf)[entry(address)] })
    }

    /// As `put`, for a block that is smaller than a terabyte and on a page of `near`. Otherwise returns false.
    #[inline(always)]
    pub(super) fn put_near(&mut self, address: usize, size: usize, owner: u32) -> bool {
        let Some(entry) = self.near_entry(address) else {
            return false;
        };
        // SAFETY: as in `near_entry`.
        unsafe { *entry = packed(size, owner) };
        true
    }

    /// As `take`, for a block of this owner on a page of `near`; returns its size. Otherwise changes nothing.
    #[inline(always)]
    pub(super) fn take_near(&mut self, address: usize, owner: u32) -> Option<usize> {
        let entry = self.near_entry(address)?;
        // SAFETY: as in `near_entry`.
        unsafe {
            let block = unpacked(*entry);
            if block.owner != owner {
                return None;
            }
            *entry = 0;
            Some(block.size)
        }
    }

    /// Bytes that the table holds.
    pub(super) fn bytes(&self) -> usize {
        self.leaves * size_of::<Leaf>() + self.capacity() * size_of::<Slot>()
    }

    /// Returns false if there is no memory for the entry, or it cannot be stored: a block of a terabyte, or one at an
    /// odd multiple of eight bytes, which would share its entry with a neighbour.
    pub(super) fn put(&mut self, address: usize, size: usize, owner: u32) -> bool {
        let mut leaf = self.leaf(address);
        if leaf.is_null() {
            leaf = self.new_leaf(address);
        }
        if leaf.is_null() || address & 15 != 0 || size >= SIZES {
            return false;
        }
        // SAFETY: a leaf of this table; the index is below its length.
        unsafe { (*leaf)[entry(address)] = packed(size, owner) };
        true
    }

    /// Removes the block from the table.
    pub(super) fn take(&mut self, address: usize) -> Option<Block> {
        let leaf = self.leaf(address);
        if leaf.is_null() || address & 15 != 0 {
            return None;
        }
        // SAFETY: as in `put`.
        let found = unsafe { std::mem::take(&mut (*leaf)[entry(address)]) };
        (found != 0).then(|| unpacked(found))
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
        self.near.fill(Slot::NOWHERE);
    }

    fn capacity(&self) -> usize {
        if self.slots.is_null() { 0 } else { self.mask + 1 }
    }

    /// Null if the page has none. Puts it into `near`.
    fn leaf(&mut self, address: usize) -> *mut Leaf {
        if self.slots.is_null() {
            return ptr::null_mut();
        }
        let page = page_of(address);
        let mut index = spread(page) & self.mask;
        loop {
            // SAFETY: the index is masked. The loop ends, because at least half of the slots are empty.
            let slot = unsafe { *self.slots.add(index) };
            if slot.page == 0 {
                return ptr::null_mut();
            }
            if slot.page == page {
                self.near[page_number(page) % NEAR] = slot;
                return slot.leaf;
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
            let slot = Slot { page: page_of(address), leaf };
            self.insert(slot);
            self.near[page_number(address) % NEAR] = slot;
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

/// Multiplicative hashing (Knuth, The Art of Computer Programming, volume 3, 6.4). Of pages side by side, as in arenas,
/// few share a slot. If they had slots side by side, two arenas could fill the same row of slots, and a search would
/// pass hundreds of them.
fn spread(page: usize) -> usize {
    page_number(page).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
}

#[inline(always)]
fn page_number(address: usize) -> usize {
    address >> PAGE_BITS
}

fn page_of(address: usize) -> usize {
    page_number(address) << PAGE_BITS
}

#[inline(always)]
fn entry(address: usize) -> usize {
    (address >> 4) & (LEAF - 1)
}
