//! Groups of pools, with consumers that free into any pool of the group: shards for several producers, size classes for
//! buffers.

use alloc::{boxed::Box, vec::Vec};
use core::fmt;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;
use core::{alloc::Layout, slice};

use crate::handle::sealed::Sealed;
use crate::memory::{LINE, VALUE_OFFSET, header, no_memory};
use crate::pool::{RawPool, RawReturner};
use crate::{BuildError, Pool, Pooled, Queue};

/// One returner for each member of a group. The slot's chunk header says which one to use.
pub(crate) struct Router(Box<[RawReturner]>);

impl Router {
    pub(crate) fn new<'a>(pools: impl ExactSizeIterator<Item = &'a mut RawPool>) -> Result<Self, BuildError> {
        let mut returners = Vec::new();
        let none = |_| BuildError::OutOfMemory { bytes: size_of::<RawReturner>() };
        returners.try_reserve_exact(pools.len()).map_err(none)?;
        for pool in pools {
            returners.push(pool.returner()?);
        }
        Ok(Self(returners.into_boxed_slice()))
    }

    /// # Safety
    ///
    /// The slot belongs to a queue pool and is out, and the caller is its only holder.
    #[inline]
    pub(crate) unsafe fn free(&mut self, slot: NonNull<u8>) {
        // SAFETY: the caller's promise. A returner also accepts slots of other pools and other groups.
        unsafe {
            match self.0.get_mut(header(slot).member) {
                Some(returner) => returner.free(slot),
                None => Queue::send_home(slot),
            }
        }
    }
}

/// One pool for each producer, and one returner for each consumer: the result of [`sharded`].
pub type Shards<T> = (Vec<Pool<T>>, Vec<ShardReturner<T>>);

/// Makes pools for several producers and consumers: one pool of `capacity` slots for each producer, and one returner
/// for each consumer, which can free into all of these pools.
///
/// Producers share nothing. An allocation fails if all `capacity` slots of that producer are in use, even if other
/// producers have free slots. For the cost of a pool and of a returner see [`Pool`]; each consumer has a map for each
/// producer. If there is no memory for a map, the process ends.
///
/// ```
/// let (mut pools, mut homes) = allocwall_pool::sharded(2, 3, 1024)?;
/// let order = pools[1].alloc([7u8; 64]).expect("1024 slots are free");
/// homes[2].free(order);
/// # Ok::<(), allocwall_pool::BuildError>(())
/// ```
///
/// # Errors
///
/// As for [`Pool::new`], and [`BuildError::NoCapacity`] if `producers` is 0.
pub fn sharded<T>(producers: usize, consumers: usize, capacity: usize) -> Result<Shards<T>, BuildError> {
    if producers == 0 {
        return Err(BuildError::NoCapacity);
    }
    let mut pools =
        (0..producers).map(|member| Pool::member(member, capacity)).collect::<Result<Vec<_>, _>>()?;
    let returners = (0..consumers)
        .map(|_| {
            let router = Router::new(pools.iter_mut().map(Pool::raw)).unwrap_or_else(|_| no_memory());
            ShardReturner { router, of: PhantomData }
        })
        .collect();
    Ok((pools, returners))
}

/// A consumer's end of all pools of a [`sharded`] group. One thread at a time; `Send` if `T` is.
pub struct ShardReturner<T> {
    router: Router,
    of: PhantomData<T>,
}

impl<T> ShardReturner<T> {
    /// Drops the object on this thread and returns its slot to the pool that it came from, with a plain store. An
    /// object of another group goes to its own pool, as if it were dropped.
    ///
    /// ```
    /// let (mut pools, mut homes) = allocwall_pool::sharded(2, 1, 64)?;
    /// homes[0].free(pools[0].alloc(1).unwrap());
    /// homes[0].free(pools[1].alloc(2).unwrap());
    /// # Ok::<(), allocwall_pool::BuildError>(())
    /// ```
    ///
    /// # Panics
    ///
    /// Only if the object's destructor panics. The slot is returned in that case too.
    #[inline]
    pub fn free(&mut self, object: Pooled<T>) {
        // SAFETY: `finish` gives a slot that is out.
        object.finish(|slot| unsafe { self.router.free(slot) });
    }
}

/// The size classes of [`Buffers`], in bytes. The smallest is a cache line, so that two slots never share a line.
pub const CLASSES: [usize; 7] = [64, 128, 256, 512, 1024, 2048, 4096];

/// Why a buffer could not be allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoBuffer {
    /// All buffers of this class are in use.
    Full {
        /// The size of the class, in bytes: one of [`CLASSES`].
        class: usize,
    },
    /// The requested length is more than the largest of [`CLASSES`].
    TooLong {
        /// The requested length, in bytes.
        len: usize,
    },
}

impl fmt::Display for NoBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full { class } => write!(f, "every buffer of {class} bytes is in use"),
            Self::TooLong { len } => write!(
                f,
                "{len} bytes are too many: the largest buffer has {} bytes",
                CLASSES[CLASSES.len() - 1]
            ),
        }
    }
}

impl core::error::Error for NoBuffer {}

/// Byte buffers of variable length: a pool for each size class of [`CLASSES`]. One owner allocates; any thread frees.
///
/// Cost: as for [`Pool`]; a buffer takes a slot of the smallest class that it fits in.
///
/// ```
/// let mut buffers = allocwall_pool::Buffers::new([256; 7])?;
/// let mut home = buffers.returner();
/// let message = buffers.copy(b"new order")?;
/// std::thread::spawn(move || home.free(message)).join().unwrap();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Buffers([RawPool; CLASSES.len()]);

impl Buffers {
    /// Makes the pools. `capacities` are the numbers of buffers of each class, in the order of [`CLASSES`]. All
    /// memory is allocated and touched here.
    ///
    /// ```
    /// // Many small ones, few large ones.
    /// let buffers = allocwall_pool::Buffers::new([1024, 512, 256, 64, 32, 16, 8])?;
    /// # drop(buffers);
    /// # Ok::<(), allocwall_pool::BuildError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`BuildError::NoCapacity`] if a capacity is 0, [`BuildError::OutOfMemory`] if there is no memory.
    pub fn new(capacities: [usize; CLASSES.len()]) -> Result<Self, BuildError> {
        let mut pools = Vec::new();
        let none = |_| BuildError::OutOfMemory { bytes: CLASSES.len() * size_of::<RawPool>() };
        pools.try_reserve_exact(CLASSES.len()).map_err(none)?;
        for (member, (class, capacity)) in CLASSES.into_iter().zip(capacities).enumerate() {
            let layout = Layout::from_size_align(class, LINE)
                .map_err(|_| BuildError::SlotTooLarge { bytes: class })?;
            pools.push(RawPool::new(layout, capacity, capacity, member)?);
        }
        pools.try_into().map(Self).map_err(|_| BuildError::NoCapacity)
    }

    /// Allocates a buffer and copies these bytes into it.
    ///
    /// ```
    /// let mut buffers = allocwall_pool::Buffers::new([8; 7])?;
    /// assert_eq!(*buffers.copy(b"new order")?, *b"new order");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`NoBuffer::Full`] if the class has no free buffer (a larger class is not used instead), [`NoBuffer::TooLong`]
    /// if there is no class for this length.
    #[inline]
    pub fn copy(&mut self, bytes: &[u8]) -> Result<Buffer, NoBuffer> {
        let buffer = self.take(bytes.len())?;
        // SAFETY: the slot has room for this number of bytes, and no other code uses it.
        unsafe { buffer.start().copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) };
        Ok(buffer)
    }

    /// Allocates a buffer of `len` bytes that are all 0.
    ///
    /// ```
    /// use allocwall_pool::NoBuffer;
    ///
    /// let mut buffers = allocwall_pool::Buffers::new([8; 7])?;
    /// assert_eq!(buffers.zeroed(100)?.len(), 100);
    /// assert_eq!(buffers.zeroed(5000).unwrap_err(), NoBuffer::TooLong { len: 5000 });
    /// assert_eq!(buffers.zeroed(usize::MAX).unwrap_err(), NoBuffer::TooLong { len: usize::MAX });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`copy`](Self::copy).
    #[inline]
    pub fn zeroed(&mut self, len: usize) -> Result<Buffer, NoBuffer> {
        let buffer = self.take(len)?;
        // SAFETY: as in `copy`.
        unsafe { buffer.start().write_bytes(0, len) };
        Ok(buffer)
    }

    /// A buffer whose bytes are not written yet.
    #[inline]
    pub(crate) fn take(&mut self, len: usize) -> Result<Buffer, NoBuffer> {
        if len > CLASSES[CLASSES.len() - 1] {
            return Err(NoBuffer::TooLong { len });
        }
        // Class 0 has 64 bytes, and each class is twice the previous one.
        let class = len.max(LINE).next_power_of_two().trailing_zeros() - LINE.trailing_zeros();
        let slot = self.0[class as usize].take().ok_or(NoBuffer::Full { class: CLASSES[class as usize] })?;
        Ok(Buffer { slot, len })
    }

    /// Makes a consumer's end for all classes. To free a buffer through it costs a plain store.
    ///
    /// Cost: one bit for each buffer. If there is no memory for that, the process ends, as with the collections of the
    /// standard library; [`try_returner`](Self::try_returner) returns an error instead.
    ///
    /// ```
    /// let mut buffers = allocwall_pool::Buffers::new([8; 7])?;
    /// let mut home = buffers.returner();
    /// home.free(buffers.zeroed(100)?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn returner(&mut self) -> BufferReturner {
        self.try_returner().unwrap_or_else(|_| no_memory())
    }

    /// As [`returner`](Self::returner), but with an error if there is no memory.
    ///
    /// ```
    /// let mut buffers = allocwall_pool::Buffers::new([8; 7])?;
    /// let mut home = buffers.try_returner()?;
    /// home.free(buffers.zeroed(100)?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`BuildError::OutOfMemory`] if there is no memory for the maps.
    pub fn try_returner(&mut self) -> Result<BufferReturner, BuildError> {
        Router::new(self.0.iter_mut()).map(BufferReturner)
    }
}

/// Owns bytes in a slot of [`Buffers`]. To drop it returns the slot with one atomic addition. It may outlive its pool.
pub struct Buffer {
    pub(crate) slot: NonNull<u8>,
    len: usize,
}

// SAFETY: it owns its bytes; a slot can be returned from any thread.
unsafe impl Send for Buffer {}
// SAFETY: a shared buffer gives access to `&[u8]` and nothing else.
unsafe impl Sync for Buffer {}

impl Buffer {
    #[inline]
    fn start(&self) -> NonNull<u8> {
        // SAFETY: the bytes are in the slot.
        unsafe { self.slot.add(VALUE_OFFSET) }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: `len` bytes were written when the buffer was made.
        unsafe { slice::from_raw_parts(self.start().as_ptr(), self.len) }
    }
}

impl DerefMut for Buffer {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: `len` bytes were written when the buffer was made, and it is borrowed mutably.
        unsafe { slice::from_raw_parts_mut(self.start().as_ptr(), self.len) }
    }
}

impl Drop for Buffer {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the buffer owns the slot, and gives it away once.
        unsafe { Queue::send_home(self.slot) };
    }
}

/// A consumer's end of [`Buffers`]. One thread at a time; it is `Send`.
pub struct BufferReturner(pub(crate) Router);

impl BufferReturner {
    /// Frees the buffer with a plain store. A buffer of other [`Buffers`] goes to those, as if it were dropped.
    ///
    /// ```
    /// let mut buffers = allocwall_pool::Buffers::new([8; 7])?;
    /// let mut home = buffers.returner();
    /// let message = buffers.copy(b"new order")?;
    /// std::thread::spawn(move || home.free(message)).join().unwrap();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn free(&mut self, buffer: Buffer) {
        let buffer = core::mem::ManuallyDrop::new(buffer);
        // SAFETY: the buffer owned the slot, and it is given away once.
        unsafe { self.0.free(buffer.slot) };
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl fmt::Debug for Buffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffers").finish_non_exhaustive()
    }
}

impl fmt::Debug for BufferReturner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufferReturner").finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for ShardReturner<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShardReturner").finish_non_exhaustive()
    }
}
