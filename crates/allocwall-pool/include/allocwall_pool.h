#ifndef ALLOCWALL_POOL_H
#define ALLOCWALL_POOL_H

#include <stddef.h>

/**
 * The result of `aw_pool_new`.
 */
typedef enum {
  /**
   * The pool was made.
   */
  AW_OK = 0,
  /**
   * The capacity is 0.
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
   * There is no memory for this number of slots.
   */
  AW_OUT_OF_MEMORY = 4,
} aw_status;

/**
 * A pool of slots of one size. Only one thread at a time may use it.
 */
typedef struct aw_pool aw_pool;

/**
 * A consumer's end of a pool. Only one thread at a time may use it.
 */
typedef struct aw_returner aw_returner;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Makes a pool of `capacity` slots, each of `size` bytes, aligned to 64. All memory is allocated and touched here.
 * When all slots are in use, the pool doubles, up to `limit` slots; the limit costs nothing until then. Returns NULL
 * on failure. `*status` is set to the result, unless `status` is NULL.
 *
 * No function of this interface throws, unwinds or ends the process, with one exception: if the library was built with
 * the feature `checked`, a slot that is given back twice ends the process with a message (SIGABRT).
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
 * The pointer comes from `aw_pool_new` and is passed here only once, or it is NULL.
 */
void aw_pool_free(aw_pool *pool);

/**
 * Returns a free slot. Returns NULL if all slots are in use and the pool cannot grow: the limit is reached, or there
 * is no memory. The bytes of the slot are not initialised.
 *
 * # Safety
 *
 * The pointer is a valid pool, and no other thread uses the pool meanwhile.
 */
void *aw_pool_take(aw_pool *pool);

/**
 * Gives a slot back on the pool's own thread, without an atomic write. Does nothing with NULL.
 *
 * # Safety
 *
 * As for `aw_pool_take`. The slot comes from `aw_pool_take` and is not used afterwards, or it is NULL.
 */
void aw_pool_give(aw_pool *pool, void *slot);

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
 * Gives a slot back from the consumer's thread with a plain store. Does nothing with NULL.
 *
 * # Safety
 *
 * The pointer is a valid returner, and no other thread uses the returner meanwhile. The slot comes from `aw_pool_take`
 * and is not used afterwards, or it is NULL.
 */
void aw_returner_give(aw_returner *returner,
                      void *slot);

/**
 * Gives a slot back from any thread, with one atomic addition. Does nothing with NULL.
 *
 * # Safety
 *
 * The slot comes from `aw_pool_take` and is not used afterwards, or it is NULL.
 */
void aw_give(void *slot);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* ALLOCWALL_POOL_H */
