//! The request arena: scratch for one owner, given back all at once. The bumping is bump-scope's, the memory is ours.

use alloc::boxed::Box;
use core::alloc::Layout;
use core::cell::Cell;
use core::fmt;
use core::mem::needs_drop;
use core::ptr::NonNull;

use bump_scope::BumpBox;
use bump_scope::alloc::{AllocError, Allocator};

use crate::memory::Heap;
use crate::{BuildError, Full, Memory};

/// Scratch memory for a request: allocating moves a pointer, and [`reset`](Self::reset) gives everything back at once.
///
/// **No destructors run**, so values that have one are refused at compile time; for those, and for collections, strings
/// and scopes, [`bump`](Self::bump) has all of [`bump_scope`], within the same memory.
///
/// Costs: a header of some 50 bytes at the start of the memory, and what alignment takes. Memory is never given back to the
/// system before the arena is dropped, and never asked for: what doesn't fit is refused.
///
/// ```
/// use allocwall_pool::region::{Region, Request};
/// use allocwall_pool::{Full, RequestArena};
///
/// let mut arena = RequestArena::over(Region::new(&Request { touch: true, ..Request::of(2 << 20) })?)?;
/// for request in 0..3u64 {
///     let order = arena.alloc([request; 8]).expect("64 bytes of 2 MiB");
///     let symbol = arena.alloc_str("ABC").expect("3 bytes of 2 MiB");
///     assert_eq!((order[7], &*symbol), (request, "ABC"));
///     assert!(matches!(arena.alloc_slice(&[0u8; 4 << 20]), Err(Full(slice)) if slice.len() == 4 << 20));
///     arena.reset(); // the pages stay
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// What was allocated is gone with the reset:
/// ```compile_fail,E0502
/// let mut arena = allocwall_pool::RequestArena::new(4096)?;
/// let number = arena.alloc(7).unwrap();
/// arena.reset();
/// println!("{number}");
/// # Ok::<(), allocwall_pool::BuildError>(())
/// ```
/// Nor does it outlive the arena:
/// ```compile_fail,E0505
/// let arena = allocwall_pool::RequestArena::new(4096)?;
/// let number = arena.alloc(7).unwrap();
/// drop(arena);
/// println!("{number}");
/// # Ok::<(), allocwall_pool::BuildError>(())
/// ```
/// A destructor that would never run:
/// ```compile_fail,E0080
/// let arena = allocwall_pool::RequestArena::new(4096)?;
/// arena.alloc(String::from("leaked")).unwrap();
/// # Ok::<(), allocwall_pool::BuildError>(())
/// ```
/// One owner:
/// ```compile_fail,E0277
/// let arena = allocwall_pool::RequestArena::new(4096)?;
/// std::thread::scope(|scope| { scope.spawn(|| arena.remaining()); });
/// # Ok::<(), allocwall_pool::BuildError>(())
/// ```
pub struct RequestArena {
    // Its header lies in the memory, so it goes first.
    bump: Bump,
    capacity: usize,
    _memory: Box<dyn Memory>,
}

/// bump-scope's allocator over one block.
pub type Bump = bump_scope::Bump<Whole>;

/// Gives its block away once and whole, and after that nothing: so a [`Bump`] never has a second chunk.
#[derive(Debug)]
pub struct Whole(Cell<Option<NonNull<[u8]>>>);

// SAFETY: a `Memory` is used from any thread, and the block is reached by nobody else.
unsafe impl Send for Whole {}

impl Clone for Whole {
    /// A clone has nothing to give: the block is in one place.
    fn clone(&self) -> Self {
        Self(Cell::new(None))
    }
}

// SAFETY: the block is writable and nobody else's until the arena, which owns both, drops its memory after the bump. It is
// given out once, at most its own length, aligned as asked.
unsafe impl Allocator for Whole {
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        let block = self.0.take().ok_or(AllocError)?;
        let start = block.cast::<u8>();
        let before = start.as_ptr().align_offset(layout.align());
        let len = block.len().checked_sub(before).ok_or(AllocError)?;
        if len < layout.size() {
            return Err(AllocError);
        }
        // SAFETY: no more than the block's length.
        let start = unsafe { start.add(before) };
        Ok(NonNull::slice_from_raw_parts(start, len))
    }

    unsafe fn deallocate(&self, _: NonNull<u8>, _: Layout) {}
}

impl RequestArena {
    /// An arena over the whole of this memory, for example a region of huge pages.
    ///
    /// # Errors
    ///
    /// [`BuildError::NoCapacity`] for less than half a KiB.
    pub fn over(memory: impl Memory + 'static) -> Result<Self, BuildError> {
        let memory: Box<dyn Memory> = Box::new(memory);
        let block = NonNull::slice_from_raw_parts(memory.base(), memory.len());
        let whole = Whole(Cell::new(Some(block)));
        let bump = Bump::try_new_in(whole).map_err(|AllocError| BuildError::NoCapacity)?;
        let capacity = bump.stats().remaining();
        Ok(Self {
            bump,
            capacity,
            _memory: memory,
        })
    }

    /// An arena in so many bytes from the global allocator, all touched.
    ///
    /// # Errors
    ///
    /// As [`over`](Self::over), and no memory.
    pub fn new(bytes: usize) -> Result<Self, BuildError> {
        if bytes == 0 {
            return Err(BuildError::NoCapacity);
        }
        Self::over(Heap::new(bytes)?)
    }

    /// How many bytes there are when all is free.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// How many bytes are left. An allocation may take some more than its size, for alignment.
    pub fn remaining(&self) -> usize {
        self.bump.stats().remaining()
    }

    /// Stores a value until the reset.
    ///
    /// # Errors
    ///
    /// [`Full`] with the value when there is no room for it.
    #[inline]
    #[allow(clippy::mut_from_ref, reason = "each call gives memory that no other has")]
    pub fn alloc<T>(&self, value: T) -> Result<&mut T, Full<T>> {
        const { assert!(!needs_drop::<T>(), "its destructor would never run") };
        match self.bump.try_alloc_uninit::<T>() {
            Ok(room) => Ok(BumpBox::leak(room).write(value)),
            Err(AllocError) => Err(Full(value)),
        }
    }

    /// Copies a slice until the reset.
    ///
    /// # Errors
    ///
    /// [`Full`] with the slice when there is no room for it.
    #[inline]
    #[allow(clippy::mut_from_ref, reason = "as above")]
    pub fn alloc_slice<'s, T: Copy>(&self, slice: &'s [T]) -> Result<&mut [T], Full<&'s [T]>> {
        match self.bump.try_alloc_slice_copy(slice) {
            Ok(copy) => Ok(BumpBox::leak(copy)),
            Err(AllocError) => Err(Full(slice)),
        }
    }

    /// Copies a string until the reset.
    ///
    /// # Errors
    ///
    /// [`Full`] with the string when there is no room for it.
    #[inline]
    #[allow(clippy::mut_from_ref, reason = "as above")]
    pub fn alloc_str<'s>(&self, text: &'s str) -> Result<&mut str, Full<&'s str>> {
        match self.bump.try_alloc_str(text) {
            Ok(copy) => Ok(BumpBox::leak(copy)),
            Err(AllocError) => Err(Full(text)),
        }
    }

    /// All that bump-scope can do, within the same memory: boxes that run destructors, vectors, strings, scopes.
    ///
    /// Shared, since who has a `&mut Bump` can swap it for another, whose memory ends at another time.
    pub fn bump(&self) -> &Bump {
        &self.bump
    }

    /// Gives back all that was allocated. Its pages stay, as warm as they are.
    #[inline]
    pub fn reset(&mut self) {
        self.bump.reset_to_start();
    }
}

impl fmt::Debug for RequestArena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestArena")
            .field("capacity", &self.capacity)
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}
