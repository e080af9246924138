//! Where slots lie: memory cut into chunks, each with a header that any of its slots finds by masking its address.

use alloc::alloc::{Layout, alloc, dealloc};
use core::ptr::NonNull;

use crate::BuildError;

/// A slot is at least a line, so that no two objects on their way between CPUs share one.
pub(crate) const LINE: usize = 64;
/// Chunks are aligned to their size. A pool smaller than a chunk allocates only what it needs of it.
pub(crate) const CHUNK: usize = 256 * 1024;
/// The largest slot, in bytes: a quarter of a chunk, so that at most a quarter is left over.
pub const MAX_SLOT: usize = CHUNK / 4;
/// Alignments beyond a page would waste most of the first slot.
const MAX_ALIGN: usize = 4096;

/// Where the value lies in its slot. The link of a freed slot takes the value's place; under loom it has a line of its
/// own, since loom's cells are no plain memory.
#[cfg(not(loom))]
pub(crate) const VALUE_OFFSET: usize = 0;
#[cfg(loom)]
pub(crate) const VALUE_OFFSET: usize = LINE;

/// Memory for a pool's slots: what [`Pool::over`](crate::Pool::over) takes.
///
/// # Safety
///
/// The `len()` bytes from `base()` are writable, stay where they are and are used by nobody else, from any thread,
/// until the value is dropped.
pub unsafe trait Memory: Send {
    /// The first byte.
    fn base(&self) -> NonNull<u8>;
    /// Length in bytes.
    fn len(&self) -> usize;
    /// Whether there is nothing.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Memory from the global allocator, touched, so that no slot's first use is a page fault.
pub(crate) struct Heap {
    base: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the block is ours alone and the global allocator takes memory back from any thread.
unsafe impl Send for Heap {}

// SAFETY: allocated with this layout, freed only on drop, handed to nobody.
unsafe impl Memory for Heap {
    fn base(&self) -> NonNull<u8> {
        self.base
    }

    fn len(&self) -> usize {
        self.layout.size()
    }
}

impl Heap {
    pub(crate) fn new(bytes: usize) -> Result<Self, BuildError> {
        const PAGE: usize = 4096;
        let none = BuildError::OutOfMemory { bytes };
        let layout = Layout::from_size_align(bytes, CHUNK).map_err(|_| none)?;
        // SAFETY: a slot's bytes are in it, so the size isn't zero.
        let base = NonNull::new(unsafe { alloc(layout) }).ok_or(none)?;
        for offset in (0..bytes).step_by(PAGE) {
            // SAFETY: within the block. Volatile, or the compiler would drop a write that nobody reads.
            unsafe { base.as_ptr().add(offset).write_volatile(0) };
        }
        Ok(Self { base, layout })
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        // SAFETY: from `alloc` with this very layout.
        unsafe { dealloc(self.base.as_ptr(), self.layout) };
    }
}

/// How the slots of one pool lie in a chunk, in bytes.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    stride: usize,
    first: usize,
}

impl Shape {
    pub(crate) fn new(layout: Layout) -> Result<Self, BuildError> {
        let (size, align) = (layout.size(), layout.align().max(LINE));
        if size > MAX_SLOT || align > MAX_ALIGN {
            return Err(BuildError::SlotTooLarge { bytes: size });
        }
        let stride = (VALUE_OFFSET + size).max(LINE).next_multiple_of(align);
        Ok(Self {
            stride,
            first: LINE.next_multiple_of(align),
        })
    }

    fn slots_in(&self, bytes: usize) -> usize {
        bytes.saturating_sub(self.first) / self.stride
    }

    /// How many slots a block holds.
    pub(crate) fn slots_within(&self, memory: &dyn Memory) -> usize {
        let bytes = memory.len() - unaligned(memory);
        bytes / CHUNK * self.slots_in(CHUNK) + self.slots_in(bytes % CHUNK)
    }

    /// How many bytes, from a chunk's start, hold exactly so many slots.
    pub(crate) fn bytes_for(&self, slots: usize) -> Result<usize, BuildError> {
        let last = slots.checked_sub(1).ok_or(BuildError::NoCapacity)?;
        let per_chunk = self.slots_in(CHUNK);
        (last / per_chunk)
            .checked_mul(CHUNK)
            .and_then(|full| full.checked_add(self.first + (last % per_chunk + 1) * self.stride))
            .filter(|&bytes| bytes <= isize::MAX as usize)
            .ok_or(BuildError::OutOfMemory { bytes: usize::MAX })
    }
}

/// How much lies before a block's first chunk.
fn unaligned(memory: &dyn Memory) -> usize {
    (memory.base().addr().get().wrapping_neg() % CHUNK).min(memory.len())
}

/// What stands at the start of each chunk. Written before its first slot is handed out and never after.
pub(crate) struct Header {
    /// The estate that the slots belong to.
    pub(crate) estate: *const (),
    /// The batch arena that they are part of; null in a queue pool.
    pub(crate) arena: *const (),
    /// Which shard or size class they belong to.
    pub(crate) member: usize,
}

const _: () = assert!(size_of::<Header>() <= LINE);

/// # Safety
///
/// `slot` comes from [`Slots`], and its memory is still there.
#[inline(always)]
pub(crate) unsafe fn header<'a>(slot: NonNull<u8>) -> &'a Header {
    // SAFETY: chunks are aligned to their size and start with a header; the pointer has the provenance of its block.
    unsafe {
        slot.map_addr(|at| (at.get() & !(CHUNK - 1)).try_into().unwrap_unchecked())
            .cast::<Header>()
            .as_ref()
    }
}

/// The slots of a block, in order of address.
#[derive(Clone)]
pub(crate) struct Slots {
    at: NonNull<u8>,
    /// How many are left in this chunk, and how many bytes of the block from this chunk's start on.
    left: usize,
    bytes: usize,
    chunk: NonNull<u8>,
    shape: Shape,
}

impl Slots {
    /// Cuts a block into chunks and writes their headers; what isn't aligned at its start is left unused.
    ///
    /// # Safety
    ///
    /// The block is nobody else's, and outlives the slots.
    pub(crate) unsafe fn new(memory: &dyn Memory, shape: Shape, header: impl Fn() -> Header) -> Self {
        let unaligned = unaligned(memory);
        let bytes = memory.len() - unaligned;
        // SAFETY: within the block or one past its end.
        let chunk = unsafe { memory.base().add(unaligned) };
        for offset in (0..bytes).step_by(CHUNK) {
            if shape.slots_in(bytes - offset) > 0 {
                // SAFETY: the chunk has room for a slot, so for the header before it.
                unsafe { chunk.add(offset).cast::<Header>().write(header()) };
            }
        }
        let mut slots = Self {
            at: chunk,
            left: 0,
            bytes,
            chunk,
            shape,
        };
        slots.enter();
        slots
    }

    /// Begins the chunk that it is at.
    fn enter(&mut self) {
        self.left = self.shape.slots_in(self.bytes.min(CHUNK));
        if self.left > 0 {
            // SAFETY: a chunk with a slot has what lies before it.
            self.at = unsafe { self.chunk.add(self.shape.first) };
        }
    }

    #[cold]
    fn next_chunk(&mut self) -> bool {
        if self.bytes <= CHUNK {
            return false;
        }
        self.bytes -= CHUNK;
        // SAFETY: the block goes on behind this chunk.
        self.chunk = unsafe { self.chunk.add(CHUNK) };
        self.enter();
        self.left > 0
    }
}

impl Iterator for Slots {
    type Item = NonNull<u8>;

    #[inline]
    fn next(&mut self) -> Option<NonNull<u8>> {
        if self.left == 0 && !self.next_chunk() {
            return None;
        }
        let slot = self.at;
        self.left -= 1;
        // SAFETY: within the chunk, or one past its last slot.
        self.at = unsafe { slot.add(self.shape.stride) };
        Some(slot)
    }
}

/// The link that a freed slot holds in the place of its value.
#[cfg(not(loom))]
pub(crate) mod link {
    use core::ptr::NonNull;

    /// Before a slot's first use.
    ///
    /// # Safety
    ///
    /// The caller alone has the slot; so for all of these.
    #[inline(always)]
    pub(crate) unsafe fn create(_: NonNull<u8>) {}

    /// The slot has changed hands: loom checks that this is ordered.
    #[inline(always)]
    pub(crate) unsafe fn changed_hands(_: NonNull<u8>) {}

    #[inline(always)]
    pub(crate) unsafe fn set(slot: NonNull<u8>, next: *mut u8) {
        // SAFETY: a slot is at least a line, and aligned to one.
        unsafe { slot.cast::<*mut u8>().write(next) };
    }

    #[inline(always)]
    pub(crate) unsafe fn get(slot: NonNull<u8>) -> *mut u8 {
        // SAFETY: as above; `set` came before.
        unsafe { slot.cast::<*mut u8>().read() }
    }
}

#[cfg(loom)]
pub(crate) mod link {
    use core::ptr::{NonNull, null_mut};

    type Cell = loom::cell::UnsafeCell<*mut u8>;

    pub(crate) unsafe fn create(slot: NonNull<u8>) {
        // SAFETY: the slot is the caller's.
        unsafe { slot.cast::<Cell>().write(Cell::new(null_mut())) };
    }

    pub(crate) unsafe fn changed_hands(slot: NonNull<u8>) {
        // SAFETY: created.
        unsafe { slot.cast::<Cell>().as_ref() }.with_mut(|_| ());
    }

    pub(crate) unsafe fn set(slot: NonNull<u8>, next: *mut u8) {
        // SAFETY: created; loom checks that nobody else has it.
        unsafe { slot.cast::<Cell>().as_ref().with_mut(|link| *link = next) };
    }

    pub(crate) unsafe fn get(slot: NonNull<u8>) -> *mut u8 {
        // SAFETY: as above.
        unsafe { slot.cast::<Cell>().as_ref().with(|link| *link) }
    }
}
