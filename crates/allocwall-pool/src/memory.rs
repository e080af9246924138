//! The layout of slots: memory cut into chunks. Each chunk starts with a header, which is found by masking the
//! address of any of its slots.

use alloc::alloc::{Layout, alloc, dealloc};
use alloc::boxed::Box;
use core::ptr::NonNull;

use crate::BuildError;

/// Bytes of a cache line. A slot is at least a line, so that objects that different CPUs use never share one.
pub(crate) const LINE: usize = 64;
/// Bytes of a chunk. Chunks are aligned to their size. A pool smaller than a chunk allocates only the part that it
/// needs.
pub(crate) const CHUNK: usize = 256 * 1024;
/// The largest object that a slot can hold, in bytes: a quarter of a chunk, so that at most a quarter of a chunk is
/// unused.
pub const MAX_SLOT: usize = CHUNK / 4;
/// Alignments beyond a page would waste most of the first slot.
const MAX_ALIGN: usize = 4096;

/// The offset of the value in its slot, in bytes: 0, or a line if loom's cell or the mark of the checked mode comes
/// first.
pub(crate) const VALUE_OFFSET: usize = if cfg!(any(loom, feature = "checked")) { LINE } else { 0 };

/// `Box::new` that returns an error if there is no memory.
pub(crate) fn try_box<T>(value: T) -> Result<Box<T>, BuildError> {
    let layout = Layout::new::<T>();
    if layout.size() == 0 {
        return Ok(Box::new(value));
    }
    // SAFETY: the size is not zero.
    let place: *mut T = unsafe { alloc(layout) }.cast();
    if place.is_null() {
        return Err(BuildError::OutOfMemory { bytes: layout.size() });
    }
    // SAFETY: newly allocated with this layout, and initialised before it becomes a box.
    unsafe {
        place.write(value);
        Ok(Box::from_raw(place))
    }
}

/// Ends the process, for calls that cannot return an error.
#[cold]
pub(crate) fn no_memory() -> ! {
    alloc::alloc::handle_alloc_error(Layout::new::<u8>())
}

/// Memory for the slots of a pool or an arena, for example for [`Pool::over`](crate::Pool::over).
///
/// # Safety
///
/// Until the value is dropped, the `len()` bytes from `base()` on stay at the same address, are writable from any
/// thread, and are not used by any other code.
pub unsafe trait Memory: Send {
    /// The address of the first byte.
    fn base(&self) -> NonNull<u8>;
    /// The length in bytes.
    fn len(&self) -> usize;
    /// Whether the length is 0.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Memory from the global allocator. It is touched, so that the first use of a slot is not a page fault.
pub(crate) struct Heap {
    base: NonNull<u8>,
    layout: Layout,
}

// SAFETY: only this value uses the block, and the global allocator takes memory back from any thread.
unsafe impl Send for Heap {}

// SAFETY: allocated with this layout, freed only on drop, and not given to other code.
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
        // SAFETY: it has room for a slot, so the size is not zero.
        let base = NonNull::new(unsafe { alloc(layout) }).ok_or(none)?;
        for offset in (0..bytes).step_by(PAGE) {
            // SAFETY: within the block. Volatile, so that the compiler keeps a write that no code reads.
            unsafe { base.as_ptr().add(offset).write_volatile(0) };
        }
        Ok(Self { base, layout })
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        // SAFETY: from `alloc` with the same layout.
        unsafe { dealloc(self.base.as_ptr(), self.layout) };
    }
}

/// The layout of the slots of one pool in a chunk, in bytes.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) stride: usize,
    first: usize,
    /// 2^32 divided by the stride in lines, rounded up. A multiplication by it gives a slot's index in its chunk. The
    /// error of the rounding is below 2^-20, because a chunk has 2^12 lines.
    inverse: u64,
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
            inverse: (1u64 << 32).div_ceil((stride / LINE) as u64),
        })
    }

    /// The number of slots in a chunk.
    pub(crate) fn per_chunk(&self) -> usize {
        self.slots_in(CHUNK)
    }

    /// The first slot of a chunk. The chunk must have one.
    pub(crate) fn first(&self, chunk: NonNull<u8>) -> NonNull<u8> {
        // SAFETY: a chunk that has a slot also has the bytes before it.
        unsafe { chunk.add(self.first) }
    }

    /// The index of a slot in its chunk.
    #[inline(always)]
    pub(crate) fn index(&self, slot: NonNull<u8>) -> usize {
        let lines = (slot.addr().get() % CHUNK - self.first) / LINE;
        ((lines as u64 * self.inverse) >> 32) as usize
    }

    fn slots_in(&self, bytes: usize) -> usize {
        bytes.saturating_sub(self.first) / self.stride
    }

    /// The number of bytes, from the start of a chunk, that hold exactly this number of slots.
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

/// A memory from its first aligned address on.
#[derive(Clone, Copy)]
pub(crate) struct Block {
    pub(crate) start: NonNull<u8>,
    pub(crate) bytes: usize,
}

impl Block {
    pub(crate) fn of(memory: &dyn Memory) -> Self {
        let unaligned = (memory.base().addr().get().wrapping_neg() % CHUNK).min(memory.len());
        Self {
            // SAFETY: within the memory or one past its end.
            start: unsafe { memory.base().add(unaligned) },
            bytes: memory.len() - unaligned,
        }
    }

    /// Splits the block into equal parts of whole chunks.
    pub(crate) fn split(self, parts: usize) -> impl Iterator<Item = Self> {
        let bytes = self.bytes / CHUNK / parts * CHUNK;
        (0..parts).map(move |part| Self {
            // SAFETY: within the block.
            start: unsafe { self.start.add(part * bytes) },
            bytes,
        })
    }

    /// The chunks that have slots, each with their number.
    pub(crate) fn chunks(self, shape: Shape) -> impl Iterator<Item = (NonNull<u8>, usize)> {
        (0..self.bytes)
            .step_by(CHUNK)
            .map(move |at| {
                // SAFETY: within the block.
                let chunk = unsafe { self.start.add(at) };
                (chunk, shape.slots_in((self.bytes - at).min(CHUNK)))
            })
            .filter(|&(_, slots)| slots > 0)
    }

    /// The number of slots in the block.
    pub(crate) fn slots(self, shape: Shape) -> usize {
        self.chunks(shape).map(|(_, slots)| slots).sum()
    }
}

/// The header at the start of each chunk. Written before the chunk's first slot is handed out, and never afterwards.
pub(crate) struct Header {
    /// The estate that the slots belong to.
    pub(crate) estate: *const (),
    /// The number of the slots' batch arena; in a queue pool, the first word of their bits.
    pub(crate) place: usize,
    /// In a queue pool, the segment of the maps that contains these words.
    pub(crate) segment: usize,
    /// The number of the shard or size class that the slots belong to.
    pub(crate) member: usize,
}

const _: () = assert!(size_of::<Header>() <= LINE);

/// The header of a slot's chunk.
///
/// # Safety
///
/// The slot is in a chunk with a header, and its memory still exists.
#[inline(always)]
pub(crate) unsafe fn header<'a>(slot: NonNull<u8>) -> &'a Header {
    // SAFETY: chunks are aligned to their size and start with a header; the pointer has the provenance of the block.
    unsafe {
        slot.map_addr(|at| (at.get() & !(CHUNK - 1)).try_into().unwrap_unchecked()).cast::<Header>().as_ref()
    }
}

/// The slots of a block, in order of address.
#[derive(Clone)]
pub(crate) struct Slots {
    at: NonNull<u8>,
    /// The number of slots left in the current chunk.
    left: usize,
    /// The block from the start of the current chunk on.
    block: Block,
    shape: Shape,
}

impl Slots {
    pub(crate) fn new(block: Block, shape: Shape) -> Self {
        let mut slots = Self { at: block.start, left: 0, block, shape };
        slots.enter();
        slots
    }

    /// Starts the current chunk.
    fn enter(&mut self) {
        self.left = self.shape.slots_in(self.block.bytes.min(CHUNK));
        if self.left > 0 {
            self.at = self.shape.first(self.block.start);
        }
    }

    #[cold]
    fn next_chunk(&mut self) -> bool {
        if self.block.bytes <= CHUNK {
            return false;
        }
        self.block.bytes -= CHUNK;
        // SAFETY: the block continues after this chunk.
        self.block.start = unsafe { self.block.start.add(CHUNK) };
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

/// Called when a slot changes its holder. Under loom each slot has a cell before its value, which checks that these
/// changes are ordered. In the checked mode each slot has a mark that says whether it is out.
#[cfg(not(any(loom, feature = "checked")))]
pub(crate) mod hands {
    use core::ptr::NonNull;

    /// Called before a slot's first use.
    ///
    /// # Safety
    ///
    /// For this function and the others: the caller is the slot's only holder.
    #[inline(always)]
    pub(crate) unsafe fn first(_: NonNull<u8>) {}

    #[inline(always)]
    pub(crate) unsafe fn taken(_: NonNull<u8>) {}

    #[inline(always)]
    pub(crate) unsafe fn given(_: NonNull<u8>) {}
}

#[cfg(loom)]
pub(crate) mod hands {
    use core::ptr::NonNull;

    type Cell = loom::cell::UnsafeCell<()>;

    pub(crate) unsafe fn first(slot: NonNull<u8>) {
        // SAFETY: the caller holds the slot, and the line before its value is free.
        unsafe { slot.cast::<Cell>().write(Cell::new(())) };
    }

    pub(crate) unsafe fn taken(slot: NonNull<u8>) {
        // SAFETY: `first` was called before; loom checks that there is no other holder.
        unsafe { slot.cast::<Cell>().as_ref() }.with_mut(|_| ());
    }

    pub(crate) use taken as given;
}

#[cfg(all(feature = "checked", not(loom)))]
pub(crate) mod hands {
    use core::ptr::NonNull;
    use core::sync::atomic::{AtomicUsize, Ordering};
    use std::io::Write;

    const HOME: usize = 0x484f_4d45;
    const OUT: usize = 0x4f55_5421;

    pub(crate) unsafe fn first(slot: NonNull<u8>) {
        // SAFETY: the caller holds the slot, and the line before its value is free.
        unsafe { slot.cast::<AtomicUsize>().write(AtomicUsize::new(HOME)) };
    }

    pub(crate) unsafe fn taken(slot: NonNull<u8>) {
        // Relaxed, here and in `given`: the protocol orders the changes of holder. After a double free, the swap
        // still lets only one of the two pass.
        // SAFETY: `first` was called before.
        unsafe { slot.cast::<AtomicUsize>().as_ref() }.store(OUT, Ordering::Relaxed);
    }

    pub(crate) unsafe fn given(slot: NonNull<u8>) {
        // SAFETY: `first` was called before.
        let before = unsafe { slot.cast::<AtomicUsize>().as_ref() }.swap(HOME, Ordering::Relaxed);
        if before != OUT {
            refuse(slot, before);
        }
    }

    /// Ends the process, as malloc does. A slot with two holders cannot be repaired, and the stack shows the caller.
    #[cold]
    fn refuse(slot: NonNull<u8>, mark: usize) -> ! {
        let object = slot.addr().get() + super::VALUE_OFFSET;
        let why = match mark {
            HOME => "was given back twice",
            _ => "is not a slot in use, or its mark was overwritten",
        };
        let _ = writeln!(std::io::stderr(), "allocwall-pool: {object:#x} {why}");
        std::process::abort();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_slot_has_its_own_index() {
        for bytes in (0..=MAX_SLOT).step_by(if cfg!(miri) { 4001 } else { 61 }) {
            for align in [1, 128, 4096] {
                let shape = Shape::new(Layout::from_size_align(bytes, align).unwrap()).unwrap();
                for index in 0..shape.per_chunk() {
                    let at = 7 * CHUNK + shape.first + index * shape.stride;
                    let slot = NonNull::new(core::ptr::without_provenance_mut(at)).unwrap();
                    assert_eq!(shape.index(slot), index, "{bytes} bytes, aligned to {align}");
                }
                // A chunk has room for exactly this number of slots.
                assert!(shape.first + shape.per_chunk() * shape.stride <= CHUNK);
                assert!(shape.first + (shape.per_chunk() + 1) * shape.stride > CHUNK);
            }
        }
    }
}
