//! A queue from one thread to another. Each entry contains a mark that says whether an object is there.
//!
//! A queue with a shared counter moves two cache lines for one object: the counter's and the entry's. Here the receiver
//! reads only the entry.

use alloc::alloc::{Layout, alloc, dealloc};
use alloc::boxed::Box;
use core::fmt;
use core::mem::MaybeUninit;
use core::ptr::NonNull;

use crate::estate::Parting;
use crate::memory::try_box;
use crate::sync::{AtomicUsize, Ordering, Padded, UnsafeCell};
use crate::{BuildError, Full};

/// How often per turn of the queue the receiver publishes its position.
const TOLD: usize = 8;
/// Alignment of the entries, in bytes: so no line of the entries contains other data.
const ALIGN: usize = 128;

/// The mark is after the value, so that an object of 56 bytes and its mark are one line.
#[repr(C)]
struct Entry<T> {
    value: UnsafeCell<MaybeUninit<T>>,
    /// The number of the object in the entry, plus one; the first object has the number 0. An entry without an object
    /// has the mark of the object of the previous turn, or 0.
    mark: AtomicUsize,
}

struct Shared<T> {
    entries: NonNull<Entry<T>>,
    mask: usize,
    /// Objects taken, as last published by the receiver; exact when the receiver is gone.
    taken: Padded<AtomicUsize>,
    /// Objects sent; stored when the sender leaves.
    sent: AtomicUsize,
    /// The sender is the owner, the receiver the returner. The second to leave frees this.
    parting: Parting,
}

impl<T> Shared<T> {
    fn layout(entries: usize) -> Option<Layout> {
        Layout::array::<Entry<T>>(entries).ok()?.align_to(ALIGN).ok()
    }

    /// # Safety
    ///
    /// The shared part is alive.
    #[inline(always)]
    unsafe fn entry<'a>(entries: NonNull<Entry<T>>, mask: usize, number: usize) -> &'a Entry<T> {
        // SAFETY: the number is masked, so it is within the entries; the caller promises that they are alive.
        unsafe { entries.add(number & mask).as_ref() }
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        // Relaxed: both ends are gone, and the parting orders their writes before this.
        let (taken, sent) = (self.taken.load(Ordering::Relaxed), self.sent.load(Ordering::Relaxed));
        for number in 0..sent.wrapping_sub(taken) {
            // SAFETY: sent and never taken, so a value is there; no other thread can read it any more.
            unsafe {
                let entry = Self::entry(self.entries, self.mask, taken.wrapping_add(number));
                entry.value.with_mut(|value| (*value).assume_init_drop());
            }
        }
        for number in 0..=self.mask {
            // SAFETY: made by `lane`, and each is dropped once; this does not drop a value.
            unsafe { self.entries.add(number).drop_in_place() };
        }
        if let Some(layout) = Self::layout(self.mask + 1) {
            // SAFETY: allocated by `lane` with this layout.
            unsafe { dealloc(self.entries.as_ptr().cast(), layout) };
        }
    }
}

/// Makes a queue from one thread to another for at least `capacity` objects, rounded up to a power of two.
///
/// Cost: an entry has the size of the object and 8 bytes, all allocated here. One cache line moves between the CPUs for
/// an object of up to 56 bytes. Objects that were sent and never received are dropped with the second end.
///
/// ```
/// let mut pool = allocwall_pool::Pool::new(64)?;
/// let (mut to, mut from) = allocwall_pool::lane(64)?;
/// let mut home = pool.returner();
/// let consumer = std::thread::spawn(move || loop {
///     if let Some(order) = from.recv() {
///         home.free(order);
///         break;
///     }
///     std::hint::spin_loop();
/// });
/// to.send(pool.alloc([7u64; 8]).unwrap()).unwrap();
/// consumer.join().unwrap();
/// # Ok::<(), allocwall_pool::BuildError>(())
/// ```
///
/// # Errors
///
/// [`BuildError::NoCapacity`] for a capacity of 0, [`BuildError::OutOfMemory`] if there is no memory.
pub fn lane<T>(capacity: usize) -> Result<(LaneSender<T>, LaneReceiver<T>), BuildError> {
    if capacity == 0 {
        return Err(BuildError::NoCapacity);
    }
    let no_memory = BuildError::OutOfMemory { bytes: capacity.saturating_mul(size_of::<Entry<T>>()) };
    let Some(count) = capacity.checked_next_power_of_two() else {
        return Err(no_memory);
    };
    let Some(layout) = Shared::<T>::layout(count) else {
        return Err(no_memory);
    };
    // SAFETY: an entry has a mark, so the size is not zero.
    let Some(entries) = NonNull::new(unsafe { alloc(layout) }.cast::<Entry<T>>()) else {
        return Err(no_memory);
    };
    for number in 0..count {
        // SAFETY: within the memory that was just allocated.
        unsafe {
            entries
                .add(number)
                .write(Entry { value: UnsafeCell::new(MaybeUninit::uninit()), mark: AtomicUsize::new(0) });
        }
    }
    // Without memory for the counters, dropping them frees the entries.
    let shared = try_box(Shared {
        entries,
        mask: count - 1,
        taken: Padded(AtomicUsize::new(0)),
        sent: AtomicUsize::new(0),
        parting: Parting::new(),
    })?;
    let shared = NonNull::from(Box::leak(shared));
    let sender = LaneSender { entries, mask: count - 1, sent: 0, taken: 0, shared };
    let receiver = LaneReceiver { entries, mask: count - 1, taken: 0, each: (count / TOLD).max(1), shared };
    Ok((sender, receiver))
}

/// The sending end of a [`lane`]. `Send` if `T` is.
pub struct LaneSender<T> {
    entries: NonNull<Entry<T>>,
    mask: usize,
    sent: usize,
    /// Objects taken, as far as this end knows.
    taken: usize,
    shared: NonNull<Shared<T>>,
}

// SAFETY: it is the only sender, whichever thread has it.
unsafe impl<T: Send> Send for LaneSender<T> {}

impl<T> LaneSender<T> {
    /// Sends an object. Never waits. Cost: a write of the object and a store of its mark.
    ///
    /// The receiver publishes its position only eight times per turn of the queue, so the queue can look full a
    /// little early.
    ///
    /// ```
    /// use allocwall_pool::{Full, lane};
    ///
    /// let (mut to, mut from) = lane(1)?;
    /// to.send("first").unwrap();
    /// let Err(Full(again)) = to.send("second") else { unreachable!() };
    /// assert_eq!((from.recv(), again), (Some("first"), "second"));
    /// # Ok::<(), allocwall_pool::BuildError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Full`] with the object if the queue is full.
    #[inline]
    pub fn send(&mut self, object: T) -> Result<(), Full<T>> {
        if self.sent.wrapping_sub(self.taken) > self.mask {
            // Acquire: the receiver's reads of the entry happen before the entry is written again.
            // SAFETY: the shared part lives as long as this end.
            self.taken = unsafe { self.shared.as_ref() }.taken.load(Ordering::Acquire);
            if self.sent.wrapping_sub(self.taken) > self.mask {
                return Err(Full(object));
            }
        }
        // SAFETY: the shared part lives as long as this end.
        let entry = unsafe { Shared::entry(self.entries, self.mask, self.sent) };
        // SAFETY: the entry was never used, or its object was taken; only this sender writes it.
        entry.value.with_mut(|value| unsafe { (*value).write(object) });
        self.sent = self.sent.wrapping_add(1);
        // Release: the object and all writes to it are visible before its mark.
        entry.mark.store(self.sent, Ordering::Release);
        Ok(())
    }

    /// Whether the receiver is gone. Objects that are sent afterwards are dropped with the queue.
    ///
    /// ```
    /// let (to, from) = allocwall_pool::lane::<u64>(4)?;
    /// assert!(!to.is_abandoned());
    /// drop(from);
    /// assert!(to.is_abandoned());
    /// # Ok::<(), allocwall_pool::BuildError>(())
    /// ```
    pub fn is_abandoned(&self) -> bool {
        // SAFETY: the shared part lives as long as this end.
        unsafe { self.shared.as_ref() }.parting.returner_is_gone()
    }
}

impl<T> Drop for LaneSender<T> {
    fn drop(&mut self) {
        // SAFETY: the shared part lives as long as this end; the second end to leave frees it.
        unsafe {
            // Relaxed: only the drop of the shared part reads it, and the parting orders the two.
            self.shared.as_ref().sent.store(self.sent, Ordering::Relaxed);
            if self.shared.as_ref().parting.owner_leaves() {
                drop(Box::from_raw(self.shared.as_ptr()));
            }
        }
    }
}

/// The receiving end of a [`lane`]. `Send` if `T` is.
pub struct LaneReceiver<T> {
    entries: NonNull<Entry<T>>,
    mask: usize,
    taken: usize,
    /// Objects between two publications of the position.
    each: usize,
    shared: NonNull<Shared<T>>,
}

// SAFETY: it is the only receiver, whichever thread has it.
unsafe impl<T: Send> Send for LaneReceiver<T> {}

impl<T> LaneReceiver<T> {
    /// Takes the oldest object, or returns `None` if the queue is empty. Never waits. Cost: a load of the mark and a
    /// read of the object.
    ///
    /// ```
    /// let (mut to, mut from) = allocwall_pool::lane(4)?;
    /// assert_eq!(from.recv(), None);
    /// to.send(7).unwrap();
    /// assert_eq!(from.recv(), Some(7));
    /// # Ok::<(), allocwall_pool::BuildError>(())
    /// ```
    #[inline]
    pub fn recv(&mut self) -> Option<T> {
        // SAFETY: the shared part lives as long as this end.
        let entry = unsafe { Shared::entry(self.entries, self.mask, self.taken) };
        let next = self.taken.wrapping_add(1);
        // Acquire: with the mark, the object and all writes to it are visible.
        if entry.mark.load(Ordering::Acquire) != next {
            return None;
        }
        // SAFETY: the mark says that the object is there. It is read once, because the next call waits for the next
        // mark.
        let object = entry.value.with(|value| unsafe { (*value).assume_init_read() });
        self.taken = next;
        if next.is_multiple_of(self.each) {
            // Release: all reads up to here happen before the sender's writes into these entries.
            // SAFETY: the shared part lives as long as this end.
            unsafe { self.shared.as_ref() }.taken.store(next, Ordering::Release);
        }
        Some(object)
    }

    /// Whether the sender is gone. The objects that are in the queue now are then the last.
    ///
    /// ```
    /// let (mut to, mut from) = allocwall_pool::lane(4)?;
    /// to.send(7).unwrap();
    /// drop(to);
    /// assert!(from.is_abandoned() && from.recv() == Some(7) && from.recv().is_none());
    /// # Ok::<(), allocwall_pool::BuildError>(())
    /// ```
    pub fn is_abandoned(&self) -> bool {
        // SAFETY: the shared part lives as long as this end.
        unsafe { self.shared.as_ref() }.parting.owner_is_gone()
    }
}

impl<T> Drop for LaneReceiver<T> {
    fn drop(&mut self) {
        // SAFETY: the shared part lives as long as this end; the second end to leave frees it.
        unsafe {
            // Release: a sender that is still alive may write where this end has read.
            self.shared.as_ref().taken.store(self.taken, Ordering::Release);
            if self.shared.as_ref().parting.returner_leaves() {
                drop(Box::from_raw(self.shared.as_ptr()));
            }
        }
    }
}

impl<T> fmt::Debug for LaneSender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LaneSender").field("capacity", &(self.mask + 1)).finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for LaneReceiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LaneReceiver").field("capacity", &(self.mask + 1)).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use alloc::sync::Arc;

    #[test]
    fn objects_come_in_order_and_a_full_queue_gives_them_back() {
        let (mut to, mut from) = lane(3).unwrap();
        assert_eq!(from.recv(), None);
        for turn in 0..5 {
            (0..4).for_each(|n| to.send(turn * 4 + n).unwrap());
            assert_eq!(to.send(99).unwrap_err().0, 99);
            let taken: [u32; 4] = core::array::from_fn(|_| from.recv().unwrap());
            assert_eq!(taken, core::array::from_fn(|n| turn * 4 + n as u32));
            assert_eq!(from.recv(), None);
        }
        assert!(!to.is_abandoned() && !from.is_abandoned());
        drop(to);
        assert!(from.is_abandoned());
    }

    #[test]
    fn objects_in_the_queue_are_dropped_with_it() {
        let object = Arc::new(());
        for taken in 0..=3 {
            let (mut to, mut from) = lane(4).unwrap();
            (0..3).for_each(|_| to.send(Arc::clone(&object)).unwrap());
            (0..taken).for_each(|_| drop(from.recv().unwrap()));
            assert_eq!(Arc::strong_count(&object), 4 - taken);
        }
        assert_eq!(Arc::strong_count(&object), 1);
    }

    #[test]
    fn a_capacity_of_zero_and_one_beyond_memory_are_refused() {
        assert!(matches!(lane::<u8>(0), Err(BuildError::NoCapacity)));
        assert!(matches!(lane::<u64>(usize::MAX), Err(BuildError::OutOfMemory { .. })));
        assert!(matches!(lane::<u64>(usize::MAX / 32), Err(BuildError::OutOfMemory { .. })));
    }

    #[test]
    fn an_object_and_its_mark_are_one_line() {
        assert_eq!(size_of::<Entry<[u64; 7]>>(), 64);
    }
}
