//! The request arena: scratch memory for one owner, freed all at once. bump-scope allocates; this module supplies the
//! memory.

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

/// Scratch memory for a request. An allocation moves a pointer, and [`reset`](Self::reset) frees everything at once.
///
/// **No destructors run**, so a value with a destructor is rejected at compile time. For such values, and for
/// collections, strings and scopes, [`bump`](Self::bump) gives all of [`bump_scope`], within the same memory.
///
/// Costs: a header of some 50 bytes at the start of the memory, and padding for alignment. The arena keeps its memory
/// until it is dropped, and never asks the system for more: an allocation that does not fit returns an error.
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
/// The compiler rejects the use of an object after the reset:
/// ```compile_fail,E0502
/// let mut arena = allocwall_pool::RequestArena::new(4096)?;
/// let number = arena.alloc(7).unwrap();
/// arena.reset();
/// println!("{number}");
/// # Ok::<(), allocwall_pool::BuildError>(())
/// ```
/// It rejects an object that outlives the arena:
/// ```compile_fail,E0505
/// let arena = allocwall_pool::RequestArena::new(4096)?;
/// let number = arena.alloc(7).unwrap();
/// drop(arena);
/// println!("{number}");
/// # Ok::<(), allocwall_pool::BuildError>(())
/// ```
/// It rejects a value whose destructor would never run:
/// ```compile_fail,E0080
/// let arena = allocwall_pool::RequestArena::new(4096)?;
/// arena.alloc(String::from("leaked")).unwrap();
/// # Ok::<(), allocwall_pool::BuildError>(())
/// ```
/// It rejects a second owner:
/// ```compile_fail,E0277
/// let arena = allocwall_pool::RequestArena::new(4096)?;
/// std::thread::scope(|scope| { scope.spawn(|| arena.remaining()); });
/// # Ok::<(), allocwall_pool::BuildError>(())
/// ```
pub struct RequestArena {
    // Its header is in the memory, so it must be dropped first.
    bump: Bump,
    capacity: usize,
    _memory: Box<dyn Memory>,
}

/// bump-scope's allocator over one block of memory.
pub type Bump = bump_scope::Bump<Whole>;

/// The base allocator of a [`Bump`]. It gives out its one block once and then refuses, so a [`Bump`] never has a second
/// chunk.
#[derive(Debug)]
pub struct Whole(Cell<Option<NonNull<[u8]>>>);

// SAFETY: a `Memory` can be used from any thread, and no other code uses the block.
unsafe impl Send for Whole {}

impl Clone for Whole {
    /// A clone has no block to give out, because there is only one.
    fn clone(&self) -> Self {
        Self(Cell::new(None))
    }
}

// SAFETY: the block is writable, and no other code uses it until the arena drops its memory; the arena owns both and
// drops the bump first. The block is given out once, with at most its own length, aligned as requested.
unsafe impl Allocator for Whole {
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        let block = self.0.take().ok_or(AllocError)?;
        let start = block.cast::<u8>();
        let before = start.as_ptr().align_offset(layout.align());
        let len = block.len().checked_sub(before).ok_or(AllocError)?;
        if len < layout.size() {
            return Err(AllocError);
        }
        // SAFETY: `before` is at most the block's length.
        let start = unsafe { start.add(before) };
        Ok(NonNull::slice_from_raw_parts(start, len))
    }

    unsafe fn deallocate(&self, _: NonNull<u8>, _: Layout) {}
}

impl RequestArena {
    /// Makes an arena in memory that you supply, for example a region of huge pages. It uses the whole memory.
    ///
    /// ```
    /// # #[cfg(all(target_os = "linux", feature = "std"))] {
    /// use allocwall_pool::region::{Region, Request};
    ///
    /// let memory = Region::new(&Request::of(2 << 20)).expect("2 MiB of address space");
    /// let arena = allocwall_pool::RequestArena::over(memory)?;
    /// assert!(arena.capacity() > 1 << 20);
    /// # }
    /// # Ok::<(), allocwall_pool::BuildError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`BuildError::NoCapacity`] if the memory has less than half a KiB.
    pub fn over(memory: impl Memory + 'static) -> Result<Self, BuildError> {
        let memory: Box<dyn Memory> = Box::new(memory);
        let block = NonNull::slice_from_raw_parts(memory.base(), memory.len());
        let whole = Whole(Cell::new(Some(block)));
        let bump = Bump::try_new_in(whole).map_err(|AllocError| BuildError::NoCapacity)?;
        let capacity = bump.stats().remaining();
        Ok(Self { bump, capacity, _memory: memory })
    }

    /// Makes an arena of `bytes` bytes from the global allocator. All of it is touched here.
    ///
    /// ```
    /// let arena = allocwall_pool::RequestArena::new(64 << 10)?;
    /// assert!(arena.alloc([0u8; 1000]).is_ok());
    /// # Ok::<(), allocwall_pool::BuildError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`over`](Self::over), and [`BuildError::OutOfMemory`] if there is no memory.
    pub fn new(bytes: usize) -> Result<Self, BuildError> {
        if bytes == 0 {
            return Err(BuildError::NoCapacity);
        }
        Self::over(Heap::new(bytes)?)
    }

    /// The number of bytes that can be allocated when the arena is empty.
    ///
    /// ```
    /// let arena = allocwall_pool::RequestArena::new(4096)?;
    /// assert_eq!(arena.capacity(), arena.remaining());
    /// # Ok::<(), allocwall_pool::BuildError>(())
    /// ```
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// The number of free bytes. An allocation may take a few more bytes than its size, for alignment.
    ///
    /// ```
    /// let arena = allocwall_pool::RequestArena::new(4096)?;
    /// arena.alloc([0u8; 100]).unwrap();
    /// assert!(arena.remaining() <= arena.capacity() - 100);
    /// # Ok::<(), allocwall_pool::BuildError>(())
    /// ```
    pub fn remaining(&self) -> usize {
        self.bump.stats().remaining()
    }

    /// Stores a value until the reset. A value with a destructor does not compile.
    ///
    /// ```
    /// let arena = allocwall_pool::RequestArena::new(4096)?;
    /// let (one, two) = (arena.alloc(1).unwrap(), arena.alloc(2).unwrap());
    /// std::mem::swap(one, two);
    /// assert_eq!((*one, *two), (2, 1));
    /// # Ok::<(), allocwall_pool::BuildError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Full`] with the value if there is no room for it.
    #[inline]
    #[allow(clippy::mut_from_ref, reason = "each call returns separate memory")]
    pub fn alloc<T>(&self, value: T) -> Result<&mut T, Full<T>> {
        const { assert!(!needs_drop::<T>(), "its destructor would never run") };
        match self.bump.try_alloc_uninit::<T>() {
            Ok(room) => Ok(BumpBox::leak(room).write(value)),
            Err(AllocError) => Err(Full(value)),
        }
    }

    /// Copies a slice until the reset.
    ///
    /// ```
    /// let arena = allocwall_pool::RequestArena::new(4096)?;
    /// let copy = arena.alloc_slice(&[3, 1, 2]).unwrap();
    /// copy.sort();
    /// assert_eq!(copy, [1, 2, 3]);
    /// # Ok::<(), allocwall_pool::BuildError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Full`] with the slice if there is no room for it.
    #[inline]
    #[allow(clippy::mut_from_ref, reason = "as for `alloc`")]
    pub fn alloc_slice<'s, T: Copy>(&self, slice: &'s [T]) -> Result<&mut [T], Full<&'s [T]>> {
        match self.bump.try_alloc_slice_copy(slice) {
            Ok(copy) => Ok(BumpBox::leak(copy)),
            Err(AllocError) => Err(Full(slice)),
        }
    }

    /// Copies a string until the reset.
    ///
    /// ```
    /// let arena = allocwall_pool::RequestArena::new(4096)?;
    /// assert_eq!(arena.alloc_str("ten").unwrap(), "ten");
    /// # Ok::<(), allocwall_pool::BuildError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Full`] with the string if there is no room for it.
    #[inline]
    #[allow(clippy::mut_from_ref, reason = "as for `alloc`")]
    pub fn alloc_str<'s>(&self, text: &'s str) -> Result<&mut str, Full<&'s str>> {
        match self.bump.try_alloc_str(text) {
            Ok(copy) => Ok(BumpBox::leak(copy)),
            Err(AllocError) => Err(Full(text)),
        }
    }

    /// The allocator of bump-scope over the same memory: for boxes that run destructors, vectors, strings and scopes.
    ///
    /// This is a shared reference, because with a `&mut Bump` one could swap it for another arena's, whose memory is
    /// freed at another time.
    ///
    /// ```
    /// use allocwall_pool::{RequestArena, bump_scope::BumpVec};
    ///
    /// let arena = RequestArena::new(4096)?;
    /// let mut list = BumpVec::new_in(arena.bump());
    /// list.try_push(7).unwrap();
    /// assert_eq!(list, [7]);
    /// # Ok::<(), allocwall_pool::BuildError>(())
    /// ```
    pub fn bump(&self) -> &Bump {
        &self.bump
    }

    /// Frees everything that was allocated. Cost: one pointer is reset. The memory's pages stay resident.
    ///
    /// ```
    /// let mut arena = allocwall_pool::RequestArena::new(4096)?;
    /// for request in 0..1000 {
    ///     let copy = arena.alloc([request; 100]).unwrap();
    ///     assert_eq!(copy[99], request);
    ///     arena.reset();
    /// }
    /// # Ok::<(), allocwall_pool::BuildError>(())
    /// ```
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
