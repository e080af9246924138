//! The pool for C: slots without a type, by size. `include/allocwall_pool.h` is made from this file.

use alloc::boxed::Box;
use core::alloc::Layout;
use core::ffi::c_void;
use core::ptr::{NonNull, null_mut};

use crate::handle::sealed::Sealed;
use crate::memory::{LINE, VALUE_OFFSET, try_box};
use crate::pool::{RawPool, RawReturner};
use crate::{BuildError, Queue};

/// A pool of slots of one size. One thread at a time.
pub struct AwPool(RawPool);

/// A consumer's end of a pool. One thread at a time.
pub struct AwReturner(RawReturner);

/// Why there is no pool.
#[repr(C)]
pub enum AwStatus {
    /// There is one.
    AW_OK = 0,
    /// A capacity of 0.
    AW_NO_CAPACITY = 1,
    /// A limit below the capacity.
    AW_LIMIT_BELOW_CAPACITY = 2,
    /// A slot of more than 65536 bytes.
    AW_SLOT_TOO_LARGE = 3,
    /// No memory for so many slots.
    AW_OUT_OF_MEMORY = 4,
}

/// Makes a pool of slots that hold `size` bytes, aligned to 64: `capacity` of them, whose memory is had and touched here, and up
/// to `limit` when they are all in use: the pool then doubles, and a limit costs nothing until it does. NULL on failure. `status` says
/// why, or may be NULL.
///
/// No function of this interface throws, unwinds or ends the process, unless the library was built with the feature `checked`:
/// then a slot that is given back twice ends it with a message (SIGABRT).
///
/// # Safety
///
/// `status` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aw_pool_new(
    size: usize,
    capacity: usize,
    limit: usize,
    status: *mut AwStatus,
) -> *mut AwPool {
    let pool = Layout::from_size_align(size, LINE)
        .map_err(|_| BuildError::SlotTooLarge { bytes: size })
        .and_then(|layout| RawPool::new(layout, capacity, limit, 0))
        .and_then(|pool| try_box(AwPool(pool)));
    let (pool, why) = match pool {
        Ok(pool) => (Box::into_raw(pool), AwStatus::AW_OK),
        Err(BuildError::NoCapacity) => (null_mut(), AwStatus::AW_NO_CAPACITY),
        Err(BuildError::LimitBelowCapacity { .. }) => (null_mut(), AwStatus::AW_LIMIT_BELOW_CAPACITY),
        Err(BuildError::SlotTooLarge { .. }) => (null_mut(), AwStatus::AW_SLOT_TOO_LARGE),
        Err(BuildError::OutOfMemory { .. }) => (null_mut(), AwStatus::AW_OUT_OF_MEMORY),
    };
    if !status.is_null() {
        // SAFETY: by the caller.
        unsafe { status.write(why) };
    }
    pool
}

/// Ends the pool. Slots that are in use stay so; the memory goes with the last of them and the last returner.
///
/// # Safety
///
/// From `aw_pool_new`, once; or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aw_pool_free(pool: *mut AwPool) {
    if !pool.is_null() {
        // SAFETY: by the caller.
        drop(unsafe { Box::from_raw(pool) });
    }
}

/// A free slot, or NULL when all are in use, and the limit is reached or there is no memory for more. Its bytes are not initialised.
///
/// # Safety
///
/// The pool is one, and no other thread uses it meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aw_pool_take(pool: *mut AwPool) -> *mut c_void {
    // SAFETY: by the caller; the value lies in the slot.
    unsafe {
        (*pool)
            .0
            .take()
            .map_or(null_mut(), |slot| slot.add(VALUE_OFFSET).as_ptr().cast())
    }
}

/// The slot of what `aw_pool_take` gave; none of NULL.
///
/// # Safety
///
/// The pointer comes from `aw_pool_take`, or is NULL.
unsafe fn slot_of(value: *mut c_void) -> Option<NonNull<u8>> {
    // SAFETY: by the caller: the slot begins so far before its value.
    NonNull::new(value).map(|value| unsafe { value.cast::<u8>().sub(VALUE_OFFSET) })
}

/// Gives a slot back on the pool's own thread. Does nothing with NULL.
///
/// # Safety
///
/// As `aw_pool_take`; the slot comes from `aw_pool_take` and is not used after, or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aw_pool_give(pool: *mut AwPool, slot: *mut c_void) {
    // SAFETY: by the caller.
    unsafe {
        if let Some(slot) = slot_of(slot) {
            (*pool).0.free(slot);
        }
    }
}

/// A consumer's end of the pool, or NULL where there is no memory for it.
///
/// # Safety
///
/// As `aw_pool_take`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aw_returner_new(pool: *mut AwPool) -> *mut AwReturner {
    // SAFETY: by the caller.
    let returner = unsafe { (*pool).0.returner() };
    returner
        .and_then(|returner| try_box(AwReturner(returner)))
        .map_or(null_mut(), Box::into_raw)
}

/// Ends a consumer's end.
///
/// # Safety
///
/// From `aw_returner_new`, once; or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aw_returner_free(returner: *mut AwReturner) {
    if !returner.is_null() {
        // SAFETY: by the caller.
        drop(unsafe { Box::from_raw(returner) });
    }
}

/// Gives a slot back from the consumer's thread with a plain store. Does nothing with NULL.
///
/// # Safety
///
/// The returner is one, and no other thread uses it meanwhile; the slot comes from `aw_pool_take` and is not used after, or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aw_returner_give(returner: *mut AwReturner, slot: *mut c_void) {
    // SAFETY: by the caller.
    unsafe {
        if let Some(slot) = slot_of(slot) {
            (*returner).0.free(slot);
        }
    }
}

/// Gives a slot back from any thread, with one atomic addition. Does nothing with NULL.
///
/// # Safety
///
/// The slot comes from `aw_pool_take` and is not used after, or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aw_give(slot: *mut c_void) {
    // SAFETY: by the caller.
    unsafe {
        if let Some(slot) = slot_of(slot) {
            Queue::send_home(slot);
        }
    }
}
