//! Several pools and consumers that free into any of them: shards for many producers, size classes for buffers.

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

/// One returner for each member of a group; the slot itself knows which is its own.
struct Router(Box<[RawReturner]>);

impl Router {
    fn new<'a>(pools: impl Iterator<Item = &'a mut RawPool>) -> Self {
        Self(
            pools
                .map(|pool| pool.returner().unwrap_or_else(|_| no_memory()))
                .collect(),
        )
    }

    /// # Safety
    ///
    /// The slot is a queue pool's, out, and the caller's alone.
    #[inline]
    unsafe fn free(&mut self, slot: NonNull<u8>) {
        // SAFETY: by the caller. Each returner sends home a slot that is not its pool's, also one of another group.
        unsafe {
            match self.0.get_mut(header(slot).member) {
                Some(returner) => returner.free(slot),
                None => Queue::send_home(slot),
            }
        }
    }
}

/// A pool for each producer, a returner for each consumer.
pub type Shards<T> = (Vec<Pool<T>>, Vec<ShardReturner<T>>);

/// For many producers and many consumers: a pool for each producer, and for each consumer one returner that knows them all.
///
/// Producers share nothing: one whose `capacity` slots are all out is told so, whatever the others have.
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
/// As [`Pool::new`]; also without producers.
pub fn sharded<T>(producers: usize, consumers: usize, capacity: usize) -> Result<Shards<T>, BuildError> {
    if producers == 0 {
        return Err(BuildError::NoCapacity);
    }
    let mut pools = (0..producers)
        .map(|member| Pool::member(member, capacity))
        .collect::<Result<Vec<_>, _>>()?;
    let returners = (0..consumers)
        .map(|_| ShardReturner {
            router: Router::new(pools.iter_mut().map(Pool::raw)),
            of: PhantomData,
        })
        .collect();
    Ok((pools, returners))
}

/// A consumer's end of all the pools of [`sharded`].
pub struct ShardReturner<T> {
    router: Router,
    of: PhantomData<T>,
}

impl<T> ShardReturner<T> {
    /// As [`Returner::free`](crate::Returner::free), to the pool that the object is from.
    #[inline]
    pub fn free(&mut self, object: Pooled<T>) {
        // SAFETY: `finish` gives a slot that is out.
        object.finish(|slot| unsafe { self.router.free(slot) });
    }
}

/// The sizes of [`Buffers`], in bytes. The smallest is a line: see [`Pool`] for why a slot is no less.
pub const CLASSES: [usize; 7] = [64, 128, 256, 512, 1024, 2048, 4096];

/// Why there is no buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoBuffer {
    /// All buffers of this size, in bytes, are in use.
    Full { class: usize },
    /// Longer than the largest of [`CLASSES`].
    TooLong { len: usize },
}

impl fmt::Display for NoBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full { class } => write!(f, "every buffer of {class} bytes is in use"),
            Self::TooLong { len } => write!(
                f,
                "{len} bytes: the largest buffer has {}",
                CLASSES[CLASSES.len() - 1]
            ),
        }
    }
}

impl core::error::Error for NoBuffer {}

/// Byte buffers of variable length, by size class: a pool for each of [`CLASSES`].
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
    /// So many buffers of each class.
    ///
    /// # Errors
    ///
    /// [`BuildError`]: a capacity of 0, no memory.
    pub fn new(capacities: [usize; CLASSES.len()]) -> Result<Self, BuildError> {
        let mut pools = Vec::with_capacity(CLASSES.len());
        for (member, (class, capacity)) in CLASSES.into_iter().zip(capacities).enumerate() {
            let layout = Layout::from_size_align(class, LINE)
                .map_err(|_| BuildError::SlotTooLarge { bytes: class })?;
            pools.push(RawPool::new(layout, capacity, capacity, member)?);
        }
        pools.try_into().map(Self).map_err(|_| BuildError::NoCapacity)
    }

    /// A buffer with these bytes.
    ///
    /// # Errors
    ///
    /// [`NoBuffer`]. A class that is exhausted doesn't borrow from the next.
    #[inline]
    pub fn copy(&mut self, bytes: &[u8]) -> Result<Buffer, NoBuffer> {
        let buffer = self.take(bytes.len())?;
        // SAFETY: the slot has room for so many, and is nobody else's.
        unsafe {
            buffer
                .start()
                .copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len())
        };
        Ok(buffer)
    }

    /// A buffer of so many zeros.
    ///
    /// # Errors
    ///
    /// As [`copy`](Self::copy).
    #[inline]
    pub fn zeroed(&mut self, len: usize) -> Result<Buffer, NoBuffer> {
        let buffer = self.take(len)?;
        // SAFETY: as in `copy`.
        unsafe { buffer.start().write_bytes(0, len) };
        Ok(buffer)
    }

    /// A buffer whose bytes have yet to be written.
    #[inline]
    fn take(&mut self, len: usize) -> Result<Buffer, NoBuffer> {
        // 64 is the class 0, and each class is twice the one before.
        let class = len.max(LINE).next_power_of_two().trailing_zeros() - LINE.trailing_zeros();
        let pool = self.0.get_mut(class as usize).ok_or(NoBuffer::TooLong { len })?;
        let slot = pool.take().ok_or(NoBuffer::Full {
            class: CLASSES[class as usize],
        })?;
        Ok(Buffer { slot, len })
    }

    /// A consumer's end of all classes.
    pub fn returner(&mut self) -> BufferReturner {
        BufferReturner(Router::new(self.0.iter_mut()))
    }
}

/// Owns bytes in a slot of [`Buffers`]. Dropping it sends the slot home with one atomic addition.
pub struct Buffer {
    slot: NonNull<u8>,
    len: usize,
}

// SAFETY: it owns its bytes; slots come home from any thread.
unsafe impl Send for Buffer {}
// SAFETY: sharing it gives out `&[u8]` and nothing else.
unsafe impl Sync for Buffer {}

impl Buffer {
    #[inline]
    fn start(&self) -> NonNull<u8> {
        // SAFETY: the bytes lie in the slot.
        unsafe { self.slot.add(VALUE_OFFSET) }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: so many bytes were written when it was made.
        unsafe { slice::from_raw_parts(self.start().as_ptr(), self.len) }
    }
}

impl DerefMut for Buffer {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the handle is borrowed mutably.
        unsafe { slice::from_raw_parts_mut(self.start().as_ptr(), self.len) }
    }
}

impl Drop for Buffer {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the slot is the buffer's, and given away once.
        unsafe { Queue::send_home(self.slot) };
    }
}

/// A consumer's end of [`Buffers`].
pub struct BufferReturner(Router);

impl BufferReturner {
    /// Sends the buffer home. A buffer from elsewhere goes home to there, as if it were dropped.
    #[inline]
    pub fn free(&mut self, buffer: Buffer) {
        let buffer = core::mem::ManuallyDrop::new(buffer);
        // SAFETY: the slot is the buffer's, and given away once.
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
