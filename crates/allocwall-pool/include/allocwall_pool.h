#ifndef ALLOCWALL_POOL_H
#define ALLOCWALL_POOL_H

#include <stddef.h>

/**
 * Why there is no pool.
 */
typedef enum {
  /**
   * There is one.
   */
  AW_OK = 0,
  /**
   * A capacity of 0.
   */
  AW_NO_CAPACITY = 1,
  /**
   * A limit below the capacity.
   */
  AW_LIMIT_BELOW_CAPACITY = 2,
  /**
   * A slot of more than 65536 bytes.
   */
  AW_SLOT_TOO_LARGE = 3,
  /**
   * No memory for so many slots.
   */
  AW_OUT_OF_MEMORY = 4,
} aw_status;

/**
 * A pool of slots of one size. One thread at a time.
 */
typedef struct aw_pool aw_pool;

/**
 * A consumer's end of a pool. One thread at a time.
 */
typedef struct aw_returner aw_returner;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Makes a pool of slots that hold `size` bytes, aligned to 64: `capacity` of them, whose memory is had and touched here, and up
 * to `limit` when they are all in use: the pool then doubles, and a limit costs nothing until it does. NULL on failure. `status` says
 * why, or may be NULL.
 *
 * No function of this interface throws, unwinds or ends the process, unless the library was built with the feature `checked`:
 * then a slot that is given back twice ends it with a message (SIGABRT).
 *
 * # Safety
 *
 * `status` is NULL or can be written.
 */
aw_pool *aw_pool_new(size_t size,
                     size_t capacity,
                     size_t limit,
                     aw_status *status);

/**
 * Ends the pool. Slots that are in use stay so; the memory goes with the last of them and the last returner.
 *
 * # Safety
 *
 * From `aw_pool_new`, once; or NULL.
 */
void aw_pool_free(aw_pool *pool);

/**
 * A free slot, or NULL when all are in use, and the limit is reached or there is no memory for more. Its bytes are not initialised.
 *
 * # Safety
 *
 * The pool is one, and no other thread uses it meanwhile.
 */
void *aw_pool_take(aw_pool *pool);

/**
 * Gives a slot back on the pool's own thread. Does nothing with NULL.
 *
 * # Safety
 *
 * As `aw_pool_take`; the slot comes from `aw_pool_take` and is not used after, or is NULL.
 */
void aw_pool_give(aw_pool *pool, void *slot);

/**
 * A consumer's end of the pool, or NULL where there is no memory for it.
 *
 * # Safety
 *
 * As `aw_pool_take`.
 */
aw_returner *aw_returner_new(aw_pool *pool);

/**
 * Ends a consumer's end.
 *
 * # Safety
 *
 * From `aw_returner_new`, once; or NULL.
 */
void aw_returner_free(aw_returner *returner);

/**
 * Gives a slot back from the consumer's thread with a plain store. Does nothing with NULL.
 *
 * # Safety
 *
 * The returner is one, and no other thread uses it meanwhile; the slot comes from `aw_pool_take` and is not used after, or is NULL.
 */
void aw_returner_give(aw_returner *returner,
                      void *slot);

/**
 * Gives a slot back from any thread, with one atomic addition. Does nothing with NULL.
 *
 * # Safety
 *
 * The slot comes from `aw_pool_take` and is not used after, or is NULL.
 */
void aw_give(void *slot);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* ALLOCWALL_POOL_H */
