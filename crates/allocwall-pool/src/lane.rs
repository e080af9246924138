//! A queue from one thread to another in which each entry says by itself whether it is there.
//!
//! A queue with a common count hands two lines over for one object: the count's, then the entry's. Here the receiver waits on the entry.

use alloc::alloc::{Layout, alloc, dealloc};
use core::fmt;
use core::mem::MaybeUninit;
use core::ptr::NonNull;

use crate::sync::{Arc, AtomicUsize, Ordering, Padded, UnsafeCell};
use crate::{BuildError, Full};

/// How often in a turn of the queue the receiver tells how far it is.
const TOLD: usize = 8;
/// Of the entries: an object and its mark share lines with others', but with nothing else.
const ALIGN: usize = 128;

/// Behind the value, so that 56 bytes and their mark are one line.
#[repr(C)]
struct Entry<T> {
    value: UnsafeCell<MaybeUninit<T>>,
    /// One more than the number of the object in it, the first object's being 0; else of an object a turn ago, or 0.
    mark: AtomicUsize,
}

struct Shared<T> {
    entries: NonNull<Entry<T>>,
    mask: usize,
    /// Objects taken, as far as the receiver has told; exact when it is gone.
    taken: Padded<AtomicUsize>,
    /// Objects sent; told when the sender goes.
    sent: AtomicUsize,
}

// SAFETY: an object is reached by the sender until its mark is there, then by the receiver.
unsafe impl<T: Send> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Shared<T> {}

impl<T> Shared<T> {
    fn layout(entries: usize) -> Option<Layout> {
        Layout::array::<Entry<T>>(entries).ok()?.align_to(ALIGN).ok()
    }

    /// # Safety
    ///
    /// The shared part lives.
    #[inline(always)]
    unsafe fn entry<'a>(entries: NonNull<Entry<T>>, mask: usize, number: usize) -> &'a Entry<T> {
        // SAFETY: masked, so within the entries; by the caller they live.
        unsafe { entries.add(number & mask).as_ref() }
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        // Relaxed: both ends are gone, and the count of them has ordered what they did before this.
        let (taken, sent) = (
            self.taken.load(Ordering::Relaxed),
            self.sent.load(Ordering::Relaxed),
        );
        for number in 0..sent.wrapping_sub(taken) {
            // SAFETY: sent and never taken, so a value is there; nobody else reads it any more.
            unsafe {
                let entry = Self::entry(self.entries, self.mask, taken.wrapping_add(number));
                entry.value.with_mut(|value| (*value).assume_init_drop());
            }
        }
        for number in 0..=self.mask {
            // SAFETY: made by `lane`, and each dropped once; a value isn't dropped with it.
            unsafe { self.entries.add(number).drop_in_place() };
        }
        if let Some(layout) = Self::layout(self.mask + 1) {
            // SAFETY: allocated by `lane` with this layout.
            unsafe { dealloc(self.entries.as_ptr().cast(), layout) };
        }
    }
}

/// A queue for at least so many objects, rounded up to a power of two. One line goes over for an object of up to 56 bytes.
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
/// [`BuildError`]: a capacity of 0, no memory.
pub fn lane<T>(capacity: usize) -> Result<(LaneSender<T>, LaneReceiver<T>), BuildError> {
    if capacity == 0 {
        return Err(BuildError::NoCapacity);
    }
    let no_memory = BuildError::OutOfMemory {
        bytes: capacity.saturating_mul(size_of::<Entry<T>>()),
    };
    let Some(count) = capacity.checked_next_power_of_two() else {
        return Err(no_memory);
    };
    let Some(layout) = Shared::<T>::layout(count) else {
        return Err(no_memory);
    };
    // SAFETY: an entry has a mark, so the size isn't zero.
    let Some(entries) = NonNull::new(unsafe { alloc(layout) }.cast::<Entry<T>>()) else {
        return Err(no_memory);
    };
    for number in 0..count {
        // SAFETY: within what was just allocated.
        unsafe {
            entries.add(number).write(Entry {
                value: UnsafeCell::new(MaybeUninit::uninit()),
                mark: AtomicUsize::new(0),
            });
        }
    }
    let shared = Arc::new(Shared {
        entries,
        mask: count - 1,
        taken: Padded(AtomicUsize::new(0)),
        sent: AtomicUsize::new(0),
    });
    let sender = LaneSender {
        entries,
        mask: count - 1,
        sent: 0,
        taken: 0,
        shared: Arc::clone(&shared),
    };
    let receiver = LaneReceiver {
        entries,
        mask: count - 1,
        taken: 0,
        each: (count / TOLD).max(1),
        shared,
    };
    Ok((sender, receiver))
}

/// The sending end of a [`lane`].
pub struct LaneSender<T> {
    entries: NonNull<Entry<T>>,
    mask: usize,
    sent: usize,
    /// As far as it is known here.
    taken: usize,
    shared: Arc<Shared<T>>,
}

// SAFETY: it is the only sender, wherever it goes.
unsafe impl<T: Send> Send for LaneSender<T> {}

impl<T> LaneSender<T> {
    /// Sends an object. Never waits.
    ///
    /// # Errors
    ///
    /// [`Full`] with the object.
    #[inline]
    pub fn send(&mut self, object: T) -> Result<(), Full<T>> {
        if self.sent.wrapping_sub(self.taken) > self.mask {
            // Acquire: what the receiver read of the entry, it has read before the entry is written again.
            self.taken = self.shared.taken.load(Ordering::Acquire);
            if self.sent.wrapping_sub(self.taken) > self.mask {
                return Err(Full(object));
            }
        }
        // SAFETY: the shared part lives as long as this end.
        let entry = unsafe { Shared::entry(self.entries, self.mask, self.sent) };
        // SAFETY: taken a turn ago or never used, and the only sender writes.
        entry.value.with_mut(|value| unsafe { (*value).write(object) });
        self.sent = self.sent.wrapping_add(1);
        // Release: the object, and all that was done with it, is there before its mark.
        entry.mark.store(self.sent, Ordering::Release);
        Ok(())
    }

    /// Whether the receiver is gone: what is sent is dropped with the queue.
    pub fn is_abandoned(&self) -> bool {
        Arc::strong_count(&self.shared) < 2
    }
}

impl<T> Drop for LaneSender<T> {
    fn drop(&mut self) {
        // Relaxed: read by who drops the queue, ordered by the count of its ends.
        self.shared.sent.store(self.sent, Ordering::Relaxed);
    }
}

/// The receiving end of a [`lane`].
pub struct LaneReceiver<T> {
    entries: NonNull<Entry<T>>,
    mask: usize,
    taken: usize,
    /// Objects between two accounts to the sender.
    each: usize,
    shared: Arc<Shared<T>>,
}

// SAFETY: it is the only receiver, wherever it goes.
unsafe impl<T: Send> Send for LaneReceiver<T> {}

impl<T> LaneReceiver<T> {
    /// The oldest object that is there. Never waits.
    #[inline]
    pub fn recv(&mut self) -> Option<T> {
        // SAFETY: the shared part lives as long as this end.
        let entry = unsafe { Shared::entry(self.entries, self.mask, self.taken) };
        let next = self.taken.wrapping_add(1);
        // Acquire: the object, and all that was done with it before, is there with its mark.
        if entry.mark.load(Ordering::Acquire) != next {
            return None;
        }
        // SAFETY: its mark says that it is there; it is read once, since the next look is for the next mark.
        let object = entry.value.with(|value| unsafe { (*value).assume_init_read() });
        self.taken = next;
        if next.is_multiple_of(self.each) {
            // Release: all reads up to here come before the sender's writes into these entries.
            self.shared.taken.store(next, Ordering::Release);
        }
        Some(object)
    }

    /// Whether the sender is gone: what is there now is the last.
    pub fn is_abandoned(&self) -> bool {
        Arc::strong_count(&self.shared) < 2
    }
}

impl<T> Drop for LaneReceiver<T> {
    fn drop(&mut self) {
        // Release: a sender that lives on may write where this end has read.
        self.shared.taken.store(self.taken, Ordering::Release);
    }
}

impl<T> fmt::Debug for LaneSender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LaneSender")
            .field("capacity", &(self.mask + 1))
            .finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for LaneReceiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LaneReceiver")
            .field("capacity", &(self.mask + 1))
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

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
    fn what_is_in_it_is_dropped_with_it() {
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
    fn a_lane_for_nothing_and_one_beyond_memory_are_refused() {
        assert!(matches!(lane::<u8>(0), Err(BuildError::NoCapacity)));
        assert!(matches!(
            lane::<u64>(usize::MAX),
            Err(BuildError::OutOfMemory { .. })
        ));
        assert!(matches!(
            lane::<u64>(usize::MAX / 32),
            Err(BuildError::OutOfMemory { .. })
        ));
    }

    #[test]
    fn an_object_and_its_mark_are_one_line() {
        assert_eq!(size_of::<Entry<[u64; 7]>>(), 64);
    }
}
