//! The C interface: pools of slots of one size, without a type. cbindgen makes `include/allocwall_pool.h` from this
//! file.

use alloc::boxed::Box;
use core::alloc::Layout;
use core::ffi::c_void;
use core::ptr::{NonNull, null_mut};

use crate::handle::sealed::Sealed;
use crate::memory::{LINE, VALUE_OFFSET, try_box};
use crate::pool::{RawPool, RawReturner};
use crate::{BuildError, Queue};

/// A pool of slots of one size. Only one thread at a time may use it.
pub struct AwPool(RawPool);

/// A consumer's end of a pool. Only one thread at a time may use it.
pub struct AwReturner(RawReturner);

/// The result of `aw_pool_new`.
#[repr(C)]
pub enum AwStatus {
    /// The pool was made.
    AW_OK = 0,
    /// The capacity is 0.
    AW_NO_CAPACITY = 1,
    /// The limit is below the capacity.
    AW_LIMIT_BELOW_CAPACITY = 2,
    /// A slot has more than 65536 bytes.
    AW_SLOT_TOO_LARGE = 3,
    /// There is no memory for this number of slots.
    AW_OUT_OF_MEMORY = 4,
}

/// Makes a pool of `capacity` slots, each of `size` bytes, aligned to 64. All memory is allocated and touched here.
/// When all slots are in use, the pool doubles, up to `limit` slots; the limit costs nothing until then. Returns NULL
/// on failure. `*status` is set to the result, unless `status` is NULL.
///
/// No function of this interface throws, unwinds or ends the process, with one exception: if the library was built with
/// the feature `checked`, a slot that is given back twice ends the process with a message (SIGABRT).
///
/// # Safety
///
/// `status` is NULL or points to writable memory.
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
        // SAFETY: the caller's promise.
        unsafe { status.write(why) };
    }
    pool
}

/// Ends the pool. Slots that are in use stay valid. The memory is freed with the last of them and the last returner.
///
/// # Safety
///
/// The pointer comes from `aw_pool_new` and is passed here only once, or it is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aw_pool_free(pool: *mut AwPool) {
    if !pool.is_null() {
        // SAFETY: the caller's promise.
        drop(unsafe { Box::from_raw(pool) });
    }
}

/// Returns a free slot. Returns NULL if all slots are in use and the pool cannot grow: the limit is reached, or there
/// is no memory. The bytes of the slot are not initialised.
///
/// # Safety
///
/// The pointer is a valid pool, and no other thread uses the pool meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aw_pool_take(pool: *mut AwPool) -> *mut c_void {
    // SAFETY: the caller's promise; the value is in the slot.
    unsafe { (*pool).0.take().map_or(null_mut(), |slot| slot.add(VALUE_OFFSET).as_ptr().cast()) }
}

/// The slot of a pointer from `aw_pool_take`; `None` for NULL.
///
/// # Safety
///
/// The pointer comes from `aw_pool_take`, or is NULL.
unsafe fn slot_of(value: *mut c_void) -> Option<NonNull<u8>> {
    // SAFETY: the caller's promise; the slot starts `VALUE_OFFSET` bytes before its value.
    NonNull::new(value).map(|value| unsafe { value.cast::<u8>().sub(VALUE_OFFSET) })
}

/// Gives a slot back on the pool's own thread, without an atomic write. Does nothing with NULL.
///
/// # Safety
///
/// As for `aw_pool_take`. The slot comes from `aw_pool_take` and is not used afterwards, or it is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aw_pool_give(pool: *mut AwPool, slot: *mut c_void) {
    // SAFETY: the caller's promise.
    unsafe {
        if let Some(slot) = slot_of(slot) {
            (*pool).0.free(slot);
        }
    }
}

/// Makes a consumer's end of the pool. Returns NULL if there is no memory for it: one bit for each slot.
///
/// # Safety
///
/// As for `aw_pool_take`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aw_returner_new(pool: *mut AwPool) -> *mut AwReturner {
    // SAFETY: the caller's promise.
    let returner = unsafe { (*pool).0.returner() };
    returner.and_then(|returner| try_box(AwReturner(returner))).map_or(null_mut(), Box::into_raw)
}

/// Frees a consumer's end.
///
/// # Safety
///
/// The pointer comes from `aw_returner_new` and is passed here only once, or it is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aw_returner_free(returner: *mut AwReturner) {
    if !returner.is_null() {
        // SAFETY: the caller's promise.
        drop(unsafe { Box::from_raw(returner) });
    }
}

/// Gives a slot back from the consumer's thread with a plain store. Does nothing with NULL.
///
/// # Safety
///
/// The pointer is a valid returner, and no other thread uses the returner meanwhile. The slot comes from `aw_pool_take`
/// and is not used afterwards, or it is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aw_returner_give(returner: *mut AwReturner, slot: *mut c_void) {
    // SAFETY: the caller's promise.
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
/// The slot comes from `aw_pool_take` and is not used afterwards, or it is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aw_give(slot: *mut c_void) {
    // SAFETY: the caller's promise.
    unsafe {
        if let Some(slot) = slot_of(slot) {
            Queue::send_home(slot);
        }
    }
}
