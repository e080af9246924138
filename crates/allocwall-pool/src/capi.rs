//! The C interface: slots of one size, without a type. cbindgen makes `include/allocwall_pool.h` from this file.
//!
//! Every function accepts NULL for every pointer. None throws, unwinds or ends the process, with one exception: see
//! `aw_pool_new`.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::alloc::Layout;
use core::ffi::c_void;
use core::ptr::{NonNull, null_mut};

use crate::handle::sealed::Sealed;
use crate::memory::{LINE, VALUE_OFFSET, try_box};
use crate::pool::{RawPool, RawReturner};
use crate::shards::Router;
use crate::{
    Batch, BatchReturner, Batches, BufferReturner, Buffers, BuildError, LaneReceiver, LaneSender, Queue,
};

/// The number of size classes of `aw_buffers`: 64, 128, 256, 512, 1024, 2048 and 4096 bytes.
pub const AW_BUFFER_CLASSES: usize = 7;
/// The bytes of the largest buffer.
pub const AW_BUFFER_MAX: usize = 4096;
const _: () = assert!(crate::CLASSES.len() == AW_BUFFER_CLASSES && crate::CLASSES[6] == AW_BUFFER_MAX);

/// A pool of slots of one size. Only one thread at a time may use it.
pub struct AwPool(RawPool);

/// A consumer's end of a pool. Only one thread at a time may use it.
pub struct AwReturner(RawReturner);

/// A consumer's end of several pools. Only one thread at a time may use it.
pub struct AwShardReturner(Router);

/// Batch arenas of slots of one size. Only one thread at a time may use them.
pub struct AwBatches(Batches<()>);

/// A consumer's end of batch arenas. Only one thread at a time may use it.
pub struct AwBatchReturner(BatchReturner<()>);

/// Byte buffers of several size classes. Only one thread at a time may use them.
pub struct AwBuffers(Buffers);

/// A consumer's end of byte buffers. Only one thread at a time may use it.
pub struct AwBufferReturner(BufferReturner);

/// The sending end of a queue of pointers. Only one thread at a time may use it.
pub struct AwLaneSender(LaneSender<*mut c_void>);

/// The receiving end of a queue of pointers. Only one thread at a time may use it.
pub struct AwLaneReceiver(LaneReceiver<*mut c_void>);

/// Whether something was made, and why not.
#[repr(C)]
#[derive(Clone, Copy)]
pub enum AwStatus {
    /// It was made.
    AW_OK = 0,
    /// A capacity, or a number of pools or arenas, is 0.
    AW_NO_CAPACITY = 1,
    /// The limit is below the capacity.
    AW_LIMIT_BELOW_CAPACITY = 2,
    /// A slot has more than 65536 bytes.
    AW_SLOT_TOO_LARGE = 3,
    /// There is no memory for it.
    AW_OUT_OF_MEMORY = 4,
    /// A pointer that must not be NULL is NULL.
    AW_NULL = 5,
}

impl From<BuildError> for AwStatus {
    fn from(error: BuildError) -> Self {
        match error {
            BuildError::NoCapacity => Self::AW_NO_CAPACITY,
            BuildError::LimitBelowCapacity { .. } => Self::AW_LIMIT_BELOW_CAPACITY,
            BuildError::SlotTooLarge { .. } => Self::AW_SLOT_TOO_LARGE,
            BuildError::OutOfMemory { .. } => Self::AW_OUT_OF_MEMORY,
        }
    }
}

/// Moves a new value to the heap and returns its address, or NULL; sets `*status` unless it is NULL.
///
/// # Safety
///
/// `status` is NULL or points to writable memory.
unsafe fn made<T>(value: Result<T, AwStatus>, status: *mut AwStatus) -> *mut T {
    let value = value.and_then(|value| try_box(value).map_err(AwStatus::from));
    let (value, why) = match value {
        Ok(value) => (Box::into_raw(value), AwStatus::AW_OK),
        Err(why) => (null_mut(), why),
    };
    if !status.is_null() {
        // SAFETY: the caller's promise.
        unsafe { status.write(why) };
    }
    value
}

/// # Safety
///
/// The pointer comes from `made` and is passed here only once, or it is NULL.
unsafe fn freed<T>(value: *mut T) {
    if !value.is_null() {
        // SAFETY: the caller's promise.
        drop(unsafe { Box::from_raw(value) });
    }
}

fn layout(size: usize) -> Result<Layout, AwStatus> {
    Layout::from_size_align(size, LINE).map_err(|_| AwStatus::AW_SLOT_TOO_LARGE)
}

/// The address of a slot's bytes, or NULL.
fn bytes_of(slot: Option<NonNull<u8>>) -> *mut c_void {
    // SAFETY: the value is in the slot.
    slot.map_or(null_mut(), |slot| unsafe { slot.add(VALUE_OFFSET).as_ptr().cast() })
}

/// The slot of a pointer from a function that takes one; `None` for NULL.
///
/// # Safety
///
/// The pointer comes from `bytes_of`, or is NULL.
unsafe fn slot_of(value: *mut c_void) -> Option<NonNull<u8>> {
    // SAFETY: the caller's promise; the slot starts `VALUE_OFFSET` bytes before its value.
    NonNull::new(value).map(|value| unsafe { value.cast::<u8>().sub(VALUE_OFFSET) })
}

/// Makes a pool of `capacity` slots, each of `size` bytes, aligned to 64. All memory is allocated and touched here.
/// When all slots are in use, the pool doubles, up to `limit` slots; the limit costs nothing until then. Returns NULL
/// on failure. `*status` is set to the result, unless `status` is NULL.
///
/// No function of this interface throws, unwinds or ends the process, with one exception: if the library was built with
/// the feature `checked`, a slot that is given back twice ends the process with a message (SIGABRT). Every function
/// accepts NULL for every pointer.
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
    let pool = layout(size).and_then(|layout| Ok(AwPool(RawPool::new(layout, capacity, limit, 0)?)));
    // SAFETY: the caller's promise.
    unsafe { made(pool, status) }
}

/// Ends the pool. Slots that are in use stay valid. The memory is freed with the last of them and the last returner.
///
/// # Safety
///
/// The pointer comes from `aw_pool_new` or `aw_shards_new` and is passed here only once, or it is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aw_pool_free(pool: *mut AwPool) {
    // SAFETY: the caller's promise.
    unsafe { freed(pool) };
}

/// Returns a free slot. Returns NULL if all slots are in use and the pool cannot grow: the limit is reached, or there
/// is no memory. The bytes of the slot are not initialised.
///
/// # Safety
///
/// The pointer is a valid pool or NULL, and no other thread uses the pool meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aw_pool_take(pool: *mut AwPool) -> *mut c_void {
    // SAFETY: the caller's promise.
    bytes_of(unsafe { pool.as_mut() }.and_then(|pool| pool.0.take()))
}

/// Gives a slot back on the pool's own thread, without an atomic write. Without a pool (NULL), it does as `aw_give`.
///
/// # Safety
///
/// As for `aw_pool_take`. The slot comes from `aw_pool_take` or `aw_buffers_take` and is not used afterwards, or it is
/// NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aw_pool_give(pool: *mut AwPool, slot: *mut c_void) {
    // SAFETY: the caller's promise.
    unsafe {
        match (pool.as_mut(), slot_of(slot)) {
            (Some(pool), Some(slot)) => pool.0.free(slot),
            _ => aw_give(slot),
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
    unsafe {
        let pool = pool.as_mut().ok_or(AwStatus::AW_NULL);
        made(pool.and_then(|pool| Ok(AwReturner(pool.0.returner()?))), null_mut())
    }
}

/// Frees a consumer's end.
///
/// # Safety
///
/// The pointer comes from `aw_returner_new` and is passed here only once, or it is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aw_returner_free(returner: *mut AwReturner) {
    // SAFETY: the caller's promise.
    unsafe { freed(returner) };
}

/// Gives a slot back from the consumer's thread with a plain store. Without a returner (NULL), it does as `aw_give`.
///
/// # Safety
///
/// The pointer is a valid returner or NULL, and no other thread uses the returner meanwhile. The slot comes from
/// `aw_pool_take` or `aw_buffers_take` and is not used afterwards, or it is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aw_returner_give(returner: *mut AwReturner, slot: *mut c_void) {
    // SAFETY: the caller's promise.
    unsafe {
        match (returner.as_mut(), slot_of(slot)) {
            (Some(returner), Some(slot)) => returner.0.free(slot),
            _ => aw_give(slot),
        }
    }
}

/// Gives a slot back from any thread, with one atomic addition. Does nothing with NULL.
///
/// # Safety
///
/// The slot comes from `aw_pool_take` or `aw_buffers_take` and is not used afterwards, or it is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aw_give(slot: *mut c_void) {
    // SAFETY: the caller's promise.
    unsafe {
        if let Some(slot) = slot_of(slot) {
            Queue::send_home(slot);
        }
    }
}

/// Makes pools for several producers, each with `capacity` slots of `size` bytes, and writes them to `pools[0]` to
/// `pools[producers - 1]`. Each is used and ended like a pool from `aw_pool_new`; it never grows. After a failure,
/// all of them are NULL.
///
/// # Safety
///
/// `pools` is NULL or has room for `producers` pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aw_shards_new(
    size: usize,
    producers: usize,
    capacity: usize,
    pools: *mut *mut AwPool,
) -> AwStatus {
    if pools.is_null() {
        return AwStatus::AW_NULL;
    }
    if producers == 0 {
        return AwStatus::AW_NO_CAPACITY;
    }
    let mut status = AwStatus::AW_OK;
    for member in 0..producers {
        let pool = match status {
            AwStatus::AW_OK => {
                layout(size).and_then(|layout| Ok(AwPool(RawPool::new(layout, capacity, capacity, member)?)))
            }
            failed => Err(failed),
        };
        // SAFETY: the caller's promise; the status is a local variable.
        unsafe { pools.add(member).write(made(pool, &raw mut status)) };
    }
    if !matches!(status, AwStatus::AW_OK) {
        for member in 0..producers {
            // SAFETY: the caller's promise; all were written above.
            unsafe { aw_pool_free(pools.add(member).replace(null_mut())) };
        }
    }
    status
}

/// Makes a consumer's end of all of these pools, in the order of `aw_shards_new`. Returns NULL if there is no memory
/// for it: one bit for each slot.
///
/// # Safety
///
/// `pools` is NULL or has `producers` valid pools, and no other thread uses them meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aw_shard_returner_new(
    pools: *const *mut AwPool,
    producers: usize,
) -> *mut AwShardReturner {
    if pools.is_null() {
        return null_mut();
    }
    let mut members = Vec::new();
    if members.try_reserve_exact(producers).is_err() {
        return null_mut();
    }
    for member in 0..producers {
        // SAFETY: the caller's promise.
        match unsafe { (*pools.add(member)).as_mut() } {
            Some(pool) => members.push(&mut pool.0),
            None => return null_mut(),
        }
    }
    let router = Router::new(members.into_iter()).map(AwShardReturner);
    // SAFETY: no status is asked for.
    unsafe { made(router.map_err(AwStatus::from), null_mut()) }
}

/// Frees a consumer's end.
///
/// # Safety
///
/// The pointer comes from `aw_shard_returner_new` and is passed here only once, or it is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aw_shard_returner_free(returner: *mut AwShardReturner) {
    // SAFETY: the caller's promise.
    unsafe { freed(returner) };
}

/// Gives a slot back to the pool that it came from, with a plain store. Without a returner (NULL), it does as
/// `aw_give`.
///
/// # Safety
///
/// As for `aw_returner_give`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aw_shard_returner_give(returner: *mut AwShardReturner, slot: *mut c_void) {
    // SAFETY: the caller's promise.
    unsafe {
        match (returner.as_mut(), slot_of(slot)) {
            (Some(returner), Some(slot)) => returner.0.free(slot),
            _ => aw_give(slot),
        }
    }
}

/// Makes `arenas` batch arenas of `slots` slots, each of `size` bytes, aligned to 64. An arena is used again when all of
/// its slots have come home, so one slot that is kept keeps its whole arena. When no arena has come home, one is added,
/// up to `limit` arenas. Returns NULL on failure. `*status` is set to the result, unless `status` is NULL.
///
/// # Safety
///
/// `status` is NULL or points to writable memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aw_batches_new(
    size: usize,
    arenas: usize,
    slots: usize,
    limit: usize,
    status: *mut AwStatus,
) -> *mut AwBatches {
    let batches =
        layout(size).and_then(|layout| Ok(AwBatches(Batches::shaped(layout, arenas, slots, limit)?)));
    // SAFETY: the caller's promise.
    unsafe { made(batches, status) }
}

/// Ends the arenas. Slots that are in use stay valid. The memory is freed with the last of them and the last returner.
///
/// # Safety
///
/// The pointer comes from `aw_batches_new` and is passed here only once, or it is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aw_batches_free(batches: *mut AwBatches) {
    // SAFETY: the caller's promise.
    unsafe { freed(batches) };
}

/// Returns the next slot. Returns NULL if the current arena is used up, no other has come home, and none can be added.
/// The bytes of the slot are not initialised. Give it back with `aw_batch_returner_give` or `aw_batch_give` only.
///
/// # Safety
///
/// The pointer is valid or NULL, and no other thread uses the arenas meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aw_batches_take(batches: *mut AwBatches) -> *mut c_void {
    // SAFETY: the caller's promise.
    bytes_of(unsafe { batches.as_mut() }.and_then(|batches| batches.0.take()))
}

/// Makes a consumer's end of the arenas. Returns NULL if there is no memory for it: 8 bytes for each arena up to the
/// limit.
///
/// # Safety
///
/// As for `aw_batches_take`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aw_batch_returner_new(batches: *mut AwBatches) -> *mut AwBatchReturner {
    // SAFETY: the caller's promise.
    unsafe {
        let batches = batches.as_mut().ok_or(AwStatus::AW_NULL);
        made(batches.and_then(|batches| Ok(AwBatchReturner(batches.0.try_returner()?))), null_mut())
    }
}

/// Frees a consumer's end.
///
/// # Safety
///
/// The pointer comes from `aw_batch_returner_new` and is passed here only once, or it is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aw_batch_returner_free(returner: *mut AwBatchReturner) {
    // SAFETY: the caller's promise.
    unsafe { freed(returner) };
}

/// Gives a slot of a batch arena back with a plain store. Without a returner (NULL), it does as `aw_batch_give`.
///
/// # Safety
///
/// The pointer is a valid returner or NULL, and no other thread uses the returner meanwhile. The slot comes from
/// `aw_batches_take` and is not used afterwards, or it is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aw_batch_returner_give(returner: *mut AwBatchReturner, slot: *mut c_void) {
    // SAFETY: the caller's promise.
    unsafe {
        match (returner.as_mut(), slot_of(slot)) {
            (Some(returner), Some(slot)) => returner.0.give(slot),
            _ => aw_batch_give(slot),
        }
    }
}

/// Gives a slot of a batch arena back from any thread, with one atomic addition. Does nothing with NULL.
///
/// # Safety
///
/// The slot comes from `aw_batches_take` and is not used afterwards, or it is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aw_batch_give(slot: *mut c_void) {
    // SAFETY: the caller's promise.
    unsafe {
        if let Some(slot) = slot_of(slot) {
            Batch::send_home(slot);
        }
    }
}

/// Makes byte buffers: `capacities[0]` of 64 bytes, and so on, for each of the `AW_BUFFER_CLASSES` size classes. All
/// memory is allocated and touched here. Returns NULL on failure. `*status` is set to the result, unless `status` is
/// NULL.
///
/// # Safety
///
/// `capacities` is NULL or has `AW_BUFFER_CLASSES` numbers. `status` is NULL or points to writable memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aw_buffers_new(capacities: *const usize, status: *mut AwStatus) -> *mut AwBuffers {
    // SAFETY: the caller's promise.
    unsafe {
        let capacities = capacities.cast::<[usize; AW_BUFFER_CLASSES]>().as_ref().ok_or(AwStatus::AW_NULL);
        made(capacities.and_then(|capacities| Ok(AwBuffers(Buffers::new(*capacities)?))), status)
    }
}

/// Ends the buffers. Buffers that are in use stay valid. The memory is freed with the last of them and the last
/// returner.
///
/// # Safety
///
/// The pointer comes from `aw_buffers_new` and is passed here only once, or it is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aw_buffers_free(buffers: *mut AwBuffers) {
    // SAFETY: the caller's promise.
    unsafe { freed(buffers) };
}

/// Returns a buffer of at least `len` bytes, of the smallest class that has them. Returns NULL if all buffers of that
/// class are in use (a larger class is not used instead), or if `len` is above `AW_BUFFER_MAX`. The bytes are not
/// initialised. Any thread gives it back with `aw_give`, or with a returner.
///
/// # Safety
///
/// The pointer is valid or NULL, and no other thread uses the buffers meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aw_buffers_take(buffers: *mut AwBuffers, len: usize) -> *mut c_void {
    // SAFETY: the caller's promise.
    let buffer = unsafe { buffers.as_mut() }.and_then(|buffers| buffers.0.take(len).ok());
    bytes_of(buffer.map(|buffer| core::mem::ManuallyDrop::new(buffer).slot))
}

/// Makes a consumer's end of all classes. Returns NULL if there is no memory for it: one bit for each buffer.
///
/// # Safety
///
/// As for `aw_buffers_take`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aw_buffer_returner_new(buffers: *mut AwBuffers) -> *mut AwBufferReturner {
    // SAFETY: the caller's promise.
    unsafe {
        let buffers = buffers.as_mut().ok_or(AwStatus::AW_NULL);
        made(buffers.and_then(|buffers| Ok(AwBufferReturner(buffers.0.try_returner()?))), null_mut())
    }
}

/// Frees a consumer's end.
///
/// # Safety
///
/// The pointer comes from `aw_buffer_returner_new` and is passed here only once, or it is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aw_buffer_returner_free(returner: *mut AwBufferReturner) {
    // SAFETY: the caller's promise.
    unsafe { freed(returner) };
}

/// Gives a buffer back with a plain store. Without a returner (NULL), it does as `aw_give`.
///
/// # Safety
///
/// The pointer is a valid returner or NULL, and no other thread uses the returner meanwhile. The buffer comes from
/// `aw_buffers_take` and is not used afterwards, or it is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aw_buffer_returner_give(returner: *mut AwBufferReturner, buffer: *mut c_void) {
    // SAFETY: the caller's promise.
    unsafe {
        match (returner.as_mut(), slot_of(buffer)) {
            (Some(returner), Some(slot)) => returner.0.0.free(slot),
            _ => aw_give(buffer),
        }
    }
}

/// Makes a queue of pointers from one thread to another, for at least `capacity` of them, rounded up to a power of two.
/// Writes its two ends to `*sender` and `*receiver`; after a failure, both are NULL.
///
/// # Safety
///
/// `sender` and `receiver` are NULL or point to writable memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aw_lane_new(
    capacity: usize,
    sender: *mut *mut AwLaneSender,
    receiver: *mut *mut AwLaneReceiver,
) -> AwStatus {
    if sender.is_null() || receiver.is_null() {
        return AwStatus::AW_NULL;
    }
    let ends = crate::lane(capacity)
        .map_err(AwStatus::from)
        .and_then(|(to, from)| Ok((try_box(AwLaneSender(to))?, try_box(AwLaneReceiver(from))?)));
    let (to, from, status) = match ends {
        Ok((to, from)) => (Box::into_raw(to), Box::into_raw(from), AwStatus::AW_OK),
        Err(why) => (null_mut(), null_mut(), why),
    };
    // SAFETY: the caller's promise.
    unsafe {
        sender.write(to);
        receiver.write(from);
    }
    status
}

/// Sends a pointer. Never waits. Returns false if the queue is full, or if the pointer is NULL: it is still the
/// caller's then. All writes to its object before this call are visible to the thread that receives it.
///
/// # Safety
///
/// `sender` is valid or NULL, and no other thread uses it meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aw_lane_send(sender: *mut AwLaneSender, object: *mut c_void) -> bool {
    // SAFETY: the caller's promise.
    unsafe { sender.as_mut() }.is_some_and(|sender| !object.is_null() && sender.0.send(object).is_ok())
}

/// Takes the oldest pointer. Never waits. Returns NULL if the queue is empty.
///
/// # Safety
///
/// `receiver` is valid or NULL, and no other thread uses it meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aw_lane_recv(receiver: *mut AwLaneReceiver) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { receiver.as_mut() }.and_then(|receiver| receiver.0.recv()).unwrap_or(null_mut())
}

/// Whether the receiver was freed. What is sent afterwards is never received.
///
/// # Safety
///
/// As for `aw_lane_send`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aw_lane_sender_is_abandoned(sender: *const AwLaneSender) -> bool {
    // SAFETY: the caller's promise.
    unsafe { sender.as_ref() }.is_some_and(|sender| sender.0.is_abandoned())
}

/// Whether the sender was freed. The pointers that are in the queue now are then the last.
///
/// # Safety
///
/// As for `aw_lane_recv`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aw_lane_receiver_is_abandoned(receiver: *const AwLaneReceiver) -> bool {
    // SAFETY: the caller's promise.
    unsafe { receiver.as_ref() }.is_some_and(|receiver| receiver.0.is_abandoned())
}

/// Frees the sending end. The receiver can still take what was sent.
///
/// # Safety
///
/// The pointer comes from `aw_lane_new` and is passed here only once, or it is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aw_lane_sender_free(sender: *mut AwLaneSender) {
    // SAFETY: the caller's promise.
    unsafe { freed(sender) };
}

/// Frees the receiving end. Pointers in the queue are forgotten; their objects are not given back. So take all of them
/// before.
///
/// # Safety
///
/// The pointer comes from `aw_lane_new` and is passed here only once, or it is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aw_lane_receiver_free(receiver: *mut AwLaneReceiver) {
    // SAFETY: the caller's promise.
    unsafe { freed(receiver) };
}

// `tests/edges.c` has the cases; these are for Miri, which can't run C.
#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn shards_and_a_lane() {
        // SAFETY: each function gets what another one returned, on one thread, and ends it once.
        unsafe {
            let (mut pools, mut to, mut from) = ([null_mut(); 2], null_mut(), null_mut());
            assert!(matches!(aw_shards_new(64, 2, 1, pools.as_mut_ptr()), AwStatus::AW_OK));
            assert!(matches!(aw_lane_new(2, &raw mut to, &raw mut from), AwStatus::AW_OK));
            let home = aw_shard_returner_new(pools.as_ptr(), 2);
            for pool in pools {
                let slot = aw_pool_take(pool);
                slot.cast::<u64>().write(7);
                assert!(aw_lane_send(to, slot) && aw_pool_take(pool).is_null());
            }
            aw_lane_sender_free(to);
            assert!(aw_lane_receiver_is_abandoned(from));
            aw_shard_returner_give(home, aw_lane_recv(from));
            let last = aw_lane_recv(from);
            assert_eq!(last.cast::<u64>().read(), 7);
            pools.map(|pool| aw_pool_free(pool));
            aw_shard_returner_free(home);
            aw_give(last);
            aw_lane_receiver_free(from);
        }
    }

    #[test]
    fn batches_and_buffers() {
        // SAFETY: as above.
        unsafe {
            let batches = aw_batches_new(100, 1, 2, 2, null_mut());
            let home = aw_batch_returner_new(batches);
            let slots: [_; 4] = core::array::from_fn(|_| aw_batches_take(batches));
            assert!(!slots[3].is_null() && aw_batches_take(batches).is_null());
            aw_batch_returner_give(home, slots[0]);
            aw_batch_give(slots[1]);
            assert_eq!(aw_batches_take(batches), slots[0]);
            aw_batches_free(batches);
            [slots[0], slots[2]].map(|slot| aw_batch_returner_give(home, slot));
            aw_batch_returner_free(home);
            aw_batch_give(slots[3]);

            let buffers = aw_buffers_new([1; AW_BUFFER_CLASSES].as_ptr(), null_mut());
            let home = aw_buffer_returner_new(buffers);
            let (small, large) = (aw_buffers_take(buffers, 1), aw_buffers_take(buffers, AW_BUFFER_MAX));
            large.cast::<u8>().write_bytes(1, AW_BUFFER_MAX);
            assert!(aw_buffers_take(buffers, 64).is_null() && aw_buffers_take(buffers, usize::MAX).is_null());
            aw_buffer_returner_give(home, small);
            aw_buffers_free(buffers);
            aw_give(large);
            aw_buffer_returner_free(home);
        }
    }
}
