//! The handle: owns an object in a slot, as a `Box` owns its object.

use core::fmt;
use core::marker::PhantomData;
use core::mem::{ManuallyDrop, needs_drop};
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;

use crate::memory::VALUE_OFFSET;

/// The kind of pool that a slot belongs to: [`Queue`](crate::Queue) or [`Batch`](crate::Batch). It decides how a slot
/// that is dropped without a returner goes back to its pool.
pub trait Kind: sealed::Sealed {}

impl<K: sealed::Sealed> Kind for K {}

pub(crate) mod sealed {
    use core::ptr::NonNull;

    pub trait Sealed {
        /// # Safety
        ///
        /// The slot is of this kind. The caller is its only holder, has already dropped or moved out its value, and
        /// does not use the slot afterwards.
        unsafe fn send_home(slot: NonNull<u8>);
    }
}

/// Owns an object in a slot of a pool. One pointer wide, and so is `Option<Handle>`.
///
/// To drop it drops the object on the current thread and returns the slot to its pool, with one atomic addition. A
/// returner does the same with a plain store. The handle may outlive its pool.
pub struct Handle<T, K: Kind> {
    slot: NonNull<u8>,
    owns: PhantomData<(T, K)>,
}

// SAFETY: it owns the object as a `Box` does; a slot can be returned from any thread.
unsafe impl<T: Send, K: Kind> Send for Handle<T, K> {}
// SAFETY: a shared handle gives access to `&T` and nothing else.
unsafe impl<T: Sync, K: Kind> Sync for Handle<T, K> {}

impl<T, K: Kind> Handle<T, K> {
    /// # Safety
    ///
    /// The slot is of this kind and shape, and the caller is its only holder.
    #[inline]
    pub(crate) unsafe fn new(slot: NonNull<u8>, value: T) -> Self {
        let handle = Self { slot, owns: PhantomData };
        // SAFETY: the slot has room for a `T`.
        unsafe { handle.value().write(value) };
        handle
    }

    #[inline]
    fn value(&self) -> NonNull<T> {
        // SAFETY: the value is inside the slot.
        unsafe { self.slot.add(VALUE_OFFSET).cast() }
    }

    /// Moves the object out and returns its slot to the pool, with one atomic addition.
    ///
    /// ```
    /// let mut pool = allocwall_pool::Pool::new(2)?;
    /// let name = pool.alloc(String::from("ten")).unwrap();
    /// assert_eq!(name.into_inner(), "ten"); // the slot is free again
    /// # Ok::<(), allocwall_pool::BuildError>(())
    /// ```
    #[inline]
    pub fn into_inner(self) -> T {
        let slot = self.into_slot();
        // SAFETY: the value is moved out once, and then the slot is given away.
        unsafe {
            let value = slot.add(VALUE_OFFSET).cast().read();
            K::send_home(slot);
            value
        }
    }

    /// Turns the handle into the object's address, for queues and interfaces that carry plain pointers. Use
    /// [`from_raw`](Self::from_raw) to get the handle back; without it, the slot and the object are leaked.
    ///
    /// ```
    /// use allocwall_pool::{Pool, Pooled};
    ///
    /// let mut pool = Pool::new(1)?;
    /// let address = pool.alloc(7u64).unwrap().into_raw(); // to a queue of pointers
    /// // SAFETY: the address comes from `into_raw`, and is not used again.
    /// let object = unsafe { Pooled::from_raw(address) };
    /// assert_eq!(*object, 7);
    /// # Ok::<(), allocwall_pool::BuildError>(())
    /// ```
    #[inline]
    pub fn into_raw(self) -> NonNull<T> {
        ManuallyDrop::new(self).value()
    }

    /// Makes the handle again from the object's address.
    ///
    /// ```
    /// use allocwall_pool::{Pool, Pooled};
    ///
    /// let mut pool = Pool::new(1)?;
    /// let address = pool.alloc(7u64).unwrap().into_raw();
    /// // SAFETY: the address comes from `into_raw` of the same type, and is not used again.
    /// drop(unsafe { Pooled::from_raw(address) });
    /// assert!(pool.alloc(8).is_ok());
    /// # Ok::<(), allocwall_pool::BuildError>(())
    /// ```
    ///
    /// # Safety
    ///
    /// The pointer comes from [`into_raw`](Self::into_raw) of the same type, and it is not used afterwards.
    #[inline]
    pub unsafe fn from_raw(value: NonNull<T>) -> Self {
        // SAFETY: the slot starts `VALUE_OFFSET` bytes before its value.
        let slot = unsafe { value.cast::<u8>().sub(VALUE_OFFSET) };
        Self { slot, owns: PhantomData }
    }

    /// Drops the object, then passes the slot to `then`, even if the destructor panics.
    #[inline]
    pub(crate) fn finish(self, then: impl FnOnce(NonNull<u8>)) {
        struct Then<F: FnOnce(NonNull<u8>)>(NonNull<u8>, Option<F>);
        impl<F: FnOnce(NonNull<u8>)> Drop for Then<F> {
            #[inline]
            fn drop(&mut self) {
                if let Some(then) = self.1.take() {
                    then(self.0);
                }
            }
        }
        let slot = self.into_slot();
        if needs_drop::<T>() {
            let _then = Then(slot, Some(then));
            // SAFETY: the handle owned the value and no longer exists.
            unsafe { slot.add(VALUE_OFFSET).cast::<T>().drop_in_place() };
        } else {
            then(slot);
        }
    }

    #[inline]
    pub(crate) fn into_slot(self) -> NonNull<u8> {
        ManuallyDrop::new(self).slot
    }
}

impl<T, K: Kind> Drop for Handle<T, K> {
    #[inline]
    fn drop(&mut self) {
        let again = Self { slot: self.slot, owns: PhantomData };
        // SAFETY: `finish` gives the slot away once; this handle is not used after its drop.
        again.finish(|slot| unsafe { K::send_home(slot) });
    }
}

impl<T, K: Kind> Deref for Handle<T, K> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the handle owns the value.
        unsafe { self.value().as_ref() }
    }
}

impl<T, K: Kind> DerefMut for Handle<T, K> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the handle owns the value and is borrowed mutably.
        unsafe { self.value().as_mut() }
    }
}

impl<T: fmt::Debug, K: Kind> fmt::Debug for Handle<T, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
