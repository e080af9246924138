#ifndef ALLOCWALL_POOL_H
#define ALLOCWALL_POOL_H

#include <stdbool.h>
#include <stddef.h>

/**
 * The number of size classes of `aw_buffers`: 64, 128, 256, 512, 1024, 2048 and 4096 bytes.
 */
#define AW_BUFFER_CLASSES 7

/**
 * The bytes of the largest buffer.
 */
#define AW_BUFFER_MAX 4096

/**
 * Whether something was made, and why not.
 */
typedef enum {
  /**
   * It was made.
   */
  AW_OK = 0,
  /**
   * A capacity, or a number of pools or arenas, is 0.
   */
  AW_NO_CAPACITY = 1,
  /**
   * The limit is below the capacity.
   */
  AW_LIMIT_BELOW_CAPACITY = 2,
  /**
   * A slot has more than 65536 bytes.
   */
  AW_SLOT_TOO_LARGE = 3,
  /**
   * There is no memory for it.
   */
  AW_OUT_OF_MEMORY = 4,
  /**
   * A pointer that must not be NULL is NULL.
   */
  AW_NULL = 5,
} aw_status;

/**
 * A consumer's end of batch arenas. Only one thread at a time may use it.
 */
typedef struct aw_batch_returner aw_batch_returner;

/**
 * Batch arenas of slots of one size. Only one thread at a time may use them.
 */
typedef struct aw_batches aw_batches;

/**
 * A consumer's end of byte buffers. Only one thread at a time may use it.
 */
typedef struct aw_buffer_returner aw_buffer_returner;

/**
 * Byte buffers of several size classes. Only one thread at a time may use them.
 */
typedef struct aw_buffers aw_buffers;

/**
 * The receiving end of a queue of pointers. Only one thread at a time may use it.
 */
typedef struct aw_lane_receiver aw_lane_receiver;

/**
 * The sending end of a queue of pointers. Only one thread at a time may use it.
 */
typedef struct aw_lane_sender aw_lane_sender;

/**
 * A pool of slots of one size. Only one thread at a time may use it.
 */
typedef struct aw_pool aw_pool;

/**
 * A consumer's end of a pool. Only one thread at a time may use it.
 */
typedef struct aw_returner aw_returner;

/**
 * A consumer's end of several pools. Only one thread at a time may use it.
 */
typedef struct aw_shard_returner aw_shard_returner;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Makes a pool of `capacity` slots, each of `size` bytes, aligned to 64. All memory is allocated and touched here.
 * When all slots are in use, the pool doubles, up to `limit` slots; the limit costs nothing until then. Returns NULL
 * on failure. `*status` is set to the result, unless `status` is NULL.
 *
 * No function of this interface throws, unwinds or ends the process, with one exception: if the library was built with
 * the feature `checked`, a slot that is given back twice ends the process with a message (SIGABRT). Every function
 * accepts NULL for every pointer.
 *
 * # Safety
 *
 * `status` is NULL or points to writable memory.
 */
aw_pool *aw_pool_new(size_t size,
                     size_t capacity,
                     size_t limit,
                     aw_status *status);

/**
 * Ends the pool. Slots that are in use stay valid. The memory is freed with the last of them and the last returner.
 *
 * # Safety
 *
 * The pointer comes from `aw_pool_new` or `aw_shards_new` and is passed here only once, or it is NULL.
 */
void aw_pool_free(aw_pool *pool);

/**
 * Returns a free slot. Returns NULL if all slots are in use and the pool cannot grow: the limit is reached, or there
 * is no memory. The bytes of the slot are not initialised.
 *
 * # Safety
 *
 * The pointer is a valid pool or NULL, and no other thread uses the pool meanwhile.
 */
void *aw_pool_take(aw_pool *pool);

/**
 * Gives a slot back on the pool's own thread, without an atomic write. Without a pool (NULL), it does as `aw_give`.
 *
 * # Safety
 *
 * As for `aw_pool_take`. The slot comes from `aw_pool_take` or `aw_buffers_take` and is not used afterwards, or it is
 * NULL.
 */
void aw_pool_give(aw_pool *pool,
                  void *slot);

/**
 * Makes a consumer's end of the pool. Returns NULL if there is no memory for it: one bit for each slot.
 *
 * # Safety
 *
 * As for `aw_pool_take`.
 */
aw_returner *aw_returner_new(aw_pool *pool);

/**
 * Frees a consumer's end.
 *
 * # Safety
 *
 * The pointer comes from `aw_returner_new` and is passed here only once, or it is NULL.
 */
void aw_returner_free(aw_returner *returner);

/**
 * Gives a slot back from the consumer's thread with a plain store. Without a returner (NULL), it does as `aw_give`.
 *
 * # Safety
 *
 * The pointer is a valid returner or NULL, and no other thread uses the returner meanwhile. The slot comes from
 * `aw_pool_take` or `aw_buffers_take` and is not used afterwards, or it is NULL.
 */
void aw_returner_give(aw_returner *returner,
                      void *slot);

/**
 * Gives a slot back from any thread, with one atomic addition. Does nothing with NULL.
 *
 * # Safety
 *
 * The slot comes from `aw_pool_take` or `aw_buffers_take` and is not used afterwards, or it is NULL.
 */
void aw_give(void *slot);

/**
 * Makes pools for several producers, each with `capacity` slots of `size` bytes, and writes them to `pools[0]` to
 * `pools[producers - 1]`. Each is used and ended like a pool from `aw_pool_new`; it never grows. After a failure,
 * all of them are NULL.
 *
 * # Safety
 *
 * `pools` is NULL or has room for `producers` pointers.
 */
aw_status aw_shards_new(size_t size,
                        size_t producers,
                        size_t capacity,
                        aw_pool **pools);

/**
 * Makes a consumer's end of all of these pools, in the order of `aw_shards_new`. Returns NULL if there is no memory
 * for it: one bit for each slot.
 *
 * # Safety
 *
 * `pools` is NULL or has `producers` valid pools, and no other thread uses them meanwhile.
 */
aw_shard_returner *aw_shard_returner_new(aw_pool *const *pools,
                                         size_t producers);

/**
 * Frees a consumer's end.
 *
 * # Safety
 *
 * The pointer comes from `aw_shard_returner_new` and is passed here only once, or it is NULL.
 */
void aw_shard_returner_free(aw_shard_returner *returner);

/**
 * Gives a slot back to the pool that it came from, with a plain store. Without a returner (NULL), it does as
 * `aw_give`.
 *
 * # Safety
 *
 * As for `aw_returner_give`.
 */
void aw_shard_returner_give(aw_shard_returner *returner, void *slot);

/**
 * Makes `arenas` batch arenas of `slots` slots, each of `size` bytes, aligned to 64. An arena is used again when all of
 * its slots have come home, so one slot that is kept keeps its whole arena. When no arena has come home, one is added,
 * up to `limit` arenas. Returns NULL on failure. `*status` is set to the result, unless `status` is NULL.
 *
 * # Safety
 *
 * `status` is NULL or points to writable memory.
 */
aw_batches *aw_batches_new(size_t size,
                           size_t arenas,
                           size_t slots,
                           size_t limit,
                           aw_status *status);

/**
 * Ends the arenas. Slots that are in use stay valid. The memory is freed with the last of them and the last returner.
 *
 * # Safety
 *
 * The pointer comes from `aw_batches_new` and is passed here only once, or it is NULL.
 */
void aw_batches_free(aw_batches *batches);

/**
 * Returns the next slot. Returns NULL if the current arena is used up, no other has come home, and none can be added.
 * The bytes of the slot are not initialised. Give it back with `aw_batch_returner_give` or `aw_batch_give` only.
 *
 * # Safety
 *
 * The pointer is valid or NULL, and no other thread uses the arenas meanwhile.
 */
void *aw_batches_take(aw_batches *batches);

/**
 * Makes a consumer's end of the arenas. Returns NULL if there is no memory for it: 8 bytes for each arena up to the
 * limit.
 *
 * # Safety
 *
 * As for `aw_batches_take`.
 */
aw_batch_returner *aw_batch_returner_new(aw_batches *batches);

/**
 * Frees a consumer's end.
 *
 * # Safety
 *
 * The pointer comes from `aw_batch_returner_new` and is passed here only once, or it is NULL.
 */
void aw_batch_returner_free(aw_batch_returner *returner);

/**
 * Gives a slot of a batch arena back with a plain store. Without a returner (NULL), it does as `aw_batch_give`.
 *
 * # Safety
 *
 * The pointer is a valid returner or NULL, and no other thread uses the returner meanwhile. The slot comes from
 * `aw_batches_take` and is not used afterwards, or it is NULL.
 */
void aw_batch_returner_give(aw_batch_returner *returner,
                            void *slot);

/**
 * Gives a slot of a batch arena back from any thread, with one atomic addition. Does nothing with NULL.
 *
 * # Safety
 *
 * The slot comes from `aw_batches_take` and is not used afterwards, or it is NULL.
 */
void aw_batch_give(void *slot);

/**
 * Makes byte buffers: `capacities[0]` of 64 bytes, and so on, for each of the `AW_BUFFER_CLASSES` size classes. All
 * memory is allocated and touched here. Returns NULL on failure. `*status` is set to the result, unless `status` is
 * NULL.
 *
 * # Safety
 *
 * `capacities` is NULL or has `AW_BUFFER_CLASSES` numbers. `status` is NULL or points to writable memory.
 */
aw_buffers *aw_buffers_new(const size_t *capacities,
                           aw_status *status);

/**
 * Ends the buffers. Buffers that are in use stay valid. The memory is freed with the last of them and the last
 * returner.
 *
 * # Safety
 *
 * The pointer comes from `aw_buffers_new` and is passed here only once, or it is NULL.
 */
void aw_buffers_free(aw_buffers *buffers);

/**
 * Returns a buffer of at least `len` bytes, of the smallest class that has them. Returns NULL if all buffers of that
 * class are in use (a larger class is not used instead), or if `len` is above `AW_BUFFER_MAX`. The bytes are not
 * initialised. Any thread gives it back with `aw_give`, or with a returner.
 *
 * # Safety
 *
 * The pointer is valid or NULL, and no other thread uses the buffers meanwhile.
 */
void *aw_buffers_take(aw_buffers *buffers,
                      size_t len);

/**
 * Makes a consumer's end of all classes. Returns NULL if there is no memory for it: one bit for each buffer.
 *
 * # Safety
 *
 * As for `aw_buffers_take`.
 */
aw_buffer_returner *aw_buffer_returner_new(aw_buffers *buffers);

/**
 * Frees a consumer's end.
 *
 * # Safety
 *
 * The pointer comes from `aw_buffer_returner_new` and is passed here only once, or it is NULL.
 */
void aw_buffer_returner_free(aw_buffer_returner *returner);

/**
 * Gives a buffer back with a plain store. Without a returner (NULL), it does as `aw_give`.
 *
 * # Safety
 *
 * The pointer is a valid returner or NULL, and no other thread uses the returner meanwhile. The buffer comes from
 * `aw_buffers_take` and is not used afterwards, or it is NULL.
 */
void aw_buffer_returner_give(aw_buffer_returner *returner,
                             void *buffer);

/**
 * Makes a queue of pointers from one thread to another, for at least `capacity` of them, rounded up to a power of two.
 * Writes its two ends to `*sender` and `*receiver`; after a failure, both are NULL.
 *
 * # Safety
 *
 * `sender` and `receiver` are NULL or point to writable memory.
 */
aw_status aw_lane_new(size_t capacity,
                      aw_lane_sender **sender,
                      aw_lane_receiver **receiver);

/**
 * Sends a pointer. Never waits. Returns false if the queue is full, or if the pointer is NULL: it is still the
 * caller's then. All writes to its object before this call are visible to the thread that receives it.
 *
 * # Safety
 *
 * `sender` is valid or NULL, and no other thread uses it meanwhile.
 */
bool aw_lane_send(aw_lane_sender *sender,
                  void *object);

/**
 * Takes the oldest pointer. Never waits. Returns NULL if the queue is empty.
 *
 * # Safety
 *
 * `receiver` is valid or NULL, and no other thread uses it meanwhile.
 */
void *aw_lane_recv(aw_lane_receiver *receiver);

/**
 * Whether the receiver was freed. What is sent afterwards is never received.
 *
 * # Safety
 *
 * As for `aw_lane_send`.
 */
bool aw_lane_sender_is_abandoned(const aw_lane_sender *sender);

/**
 * Whether the sender was freed. The pointers that are in the queue now are then the last.
 *
 * # Safety
 *
 * As for `aw_lane_recv`.
 */
bool aw_lane_receiver_is_abandoned(const aw_lane_receiver *receiver);

/**
 * Frees the sending end. The receiver can still take what was sent.
 *
 * # Safety
 *
 * The pointer comes from `aw_lane_new` and is passed here only once, or it is NULL.
 */
void aw_lane_sender_free(aw_lane_sender *sender);

/**
 * Frees the receiving end. Pointers in the queue are forgotten; their objects are not given back. So take all of them
 * before.
 *
 * # Safety
 *
 * The pointer comes from `aw_lane_new` and is passed here only once, or it is NULL.
 */
void aw_lane_receiver_free(aw_lane_receiver *receiver);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* ALLOCWALL_POOL_H */
