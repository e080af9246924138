// Error handling of the C interface: errors are values, and to give back NULL does nothing. Prints nothing and ends with 0 if all
// checks pass. With an argument it gives a slot back twice, by the method of that name.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "allocwall_pool.h"

#define CHECK(what)                                                                                                    \
    if (!(what)) {                                                                                                     \
        fprintf(stderr, "line %d: %s\n", __LINE__, #what);                                                             \
        exit(1);                                                                                                       \
    }

static void null_is_nothing(void) {
    aw_pool *pool = aw_pool_new(64, 1, 1, NULL);
    aw_returner *home = aw_returner_new(pool);
    CHECK(pool && home);
    aw_give(NULL);
    aw_pool_give(pool, NULL);
    aw_returner_give(home, NULL);
    void *slot = aw_pool_take(pool);
    CHECK(slot && !aw_pool_take(pool));
    aw_give(slot);
    CHECK(aw_pool_take(pool) == slot);
    aw_returner_give(home, slot);
    CHECK(aw_pool_take(pool) == slot);
    aw_pool_give(pool, slot);
    aw_returner_free(home);
    aw_returner_free(NULL);
    aw_pool_free(pool);
    aw_pool_free(NULL);
}

static void null_is_an_answer(void) {
    aw_status status = AW_OK;
    aw_lane_sender *to;
    aw_lane_receiver *from;
    CHECK(!aw_pool_take(NULL) && !aw_returner_new(NULL) && !aw_batches_take(NULL) && !aw_batch_returner_new(NULL));
    CHECK(!aw_buffers_take(NULL, 1) && !aw_buffer_returner_new(NULL) && !aw_shard_returner_new(NULL, 1));
    CHECK(!aw_buffers_new(NULL, &status) && status == AW_NULL);
    CHECK(aw_shards_new(64, 1, 1, NULL) == AW_NULL);
    CHECK(aw_lane_new(1, NULL, &from) == AW_NULL && aw_lane_new(1, &to, NULL) == AW_NULL);
    CHECK(!aw_lane_send(NULL, &status) && !aw_lane_recv(NULL));
    CHECK(!aw_lane_sender_is_abandoned(NULL) && !aw_lane_receiver_is_abandoned(NULL));
    aw_batches_free(NULL);
    aw_batch_returner_free(NULL);
    aw_batch_give(NULL);
    aw_buffers_free(NULL);
    aw_buffer_returner_free(NULL);
    aw_shard_returner_free(NULL);
    aw_lane_sender_free(NULL);
    aw_lane_receiver_free(NULL);
    // Without a returner, a slot goes home all the same.
    aw_pool *pool = aw_pool_new(64, 1, 1, NULL);
    void *slot = aw_pool_take(pool);
    CHECK(slot);
    aw_returner_give(NULL, slot);
    CHECK((slot = aw_pool_take(pool)));
    aw_pool_give(NULL, slot);
    CHECK((slot = aw_pool_take(pool)));
    aw_shard_returner_give(NULL, slot);
    CHECK((slot = aw_pool_take(pool)));
    aw_buffer_returner_give(NULL, slot);
    CHECK(aw_pool_take(pool) == slot);
    aw_give(slot);
    aw_pool_free(pool);
}

static void batches_come_home_whole(void) {
    aw_status status = AW_OK;
    aw_batches *batches = aw_batches_new(100, 2, 2, 3, &status);
    aw_batch_returner *home = aw_batch_returner_new(batches);
    CHECK(batches && home && status == AW_OK);
    void *slots[6];
    for (int n = 0; n < 6; ++n) {
        CHECK((slots[n] = aw_batches_take(batches)) && (uintptr_t)slots[n] % 64 == 0);
        memset(slots[n], n, 100);
    }
    CHECK(!aw_batches_take(batches));
    aw_batch_returner_give(home, slots[0]);
    aw_batch_returner_give(home, NULL);
    CHECK(!aw_batches_take(batches));
    aw_batch_give(slots[1]);
    CHECK((slots[0] = aw_batches_take(batches)));
    // Slots outlive their arenas, and returners too.
    aw_batches_free(batches);
    memset(slots[0], 9, 100);
    aw_batch_returner_give(NULL, slots[0]);
    for (int n = 2; n < 6; ++n) {
        aw_batch_returner_give(home, slots[n]);
    }
    aw_batch_returner_free(home);
    CHECK(!aw_batches_new(64, 0, 1, 1, &status) && status == AW_NO_CAPACITY);
    CHECK(!aw_batches_new(64, 1, 0, 1, &status) && status == AW_NO_CAPACITY);
    CHECK(!aw_batches_new(64, 2, 1, 1, &status) && status == AW_LIMIT_BELOW_CAPACITY);
    CHECK(!aw_batches_new(65537, 1, 1, 1, &status) && status == AW_SLOT_TOO_LARGE);
    CHECK(!aw_batches_new(64, SIZE_MAX, SIZE_MAX, SIZE_MAX, &status) && status == AW_OUT_OF_MEMORY);
    CHECK(!aw_batches_new(64, 1, 1, SIZE_MAX, &status) && status == AW_OUT_OF_MEMORY);
    CHECK(!aw_batches_new(64, 1, SIZE_MAX / 2, 1, &status) && status == AW_OUT_OF_MEMORY);
}

static void buffers_have_their_class(void) {
    aw_status status = AW_OK;
    const size_t one_each[AW_BUFFER_CLASSES] = {1, 1, 1, 1, 1, 1, 1};
    aw_buffers *buffers = aw_buffers_new(one_each, &status);
    aw_buffer_returner *home = aw_buffer_returner_new(buffers);
    CHECK(buffers && home && status == AW_OK);
    void *small = aw_buffers_take(buffers, 0), *large = aw_buffers_take(buffers, AW_BUFFER_MAX);
    CHECK(small && large && !aw_buffers_take(buffers, 64) && !aw_buffers_take(buffers, AW_BUFFER_MAX));
    CHECK(!aw_buffers_take(buffers, AW_BUFFER_MAX + 1) && !aw_buffers_take(buffers, SIZE_MAX));
    memset(large, 1, AW_BUFFER_MAX);
    aw_buffer_returner_give(home, small);
    CHECK(aw_buffers_take(buffers, 64) == small);
    aw_give(small);
    CHECK(aw_buffers_take(buffers, 1) == small);
    aw_buffers_free(buffers);
    aw_buffer_returner_give(home, large);
    aw_give(small);
    aw_buffer_returner_free(home);
    const size_t none[AW_BUFFER_CLASSES] = {1, 1, 1, 0, 1, 1, 1};
    CHECK(!aw_buffers_new(none, &status) && status == AW_NO_CAPACITY);
    const size_t many[AW_BUFFER_CLASSES] = {1, 1, 1, 1, 1, 1, SIZE_MAX / 8};
    CHECK(!aw_buffers_new(many, &status) && status == AW_OUT_OF_MEMORY);
}

static void shards_keep_their_own(void) {
    aw_pool *pools[3];
    CHECK(aw_shards_new(64, 3, 1, pools) == AW_OK);
    aw_shard_returner *home = aw_shard_returner_new(pools, 3);
    CHECK(home);
    void *slots[3];
    for (int n = 0; n < 3; ++n) {
        CHECK((slots[n] = aw_pool_take(pools[n])) && !aw_pool_take(pools[n]));
    }
    aw_shard_returner_give(home, slots[1]);
    CHECK(!aw_pool_take(pools[0]) && aw_pool_take(pools[1]) == slots[1] && !aw_pool_take(pools[2]));
    // The returner of another group, and of too few pools, gives a slot to its own pool.
    aw_pool *other[1];
    CHECK(aw_shards_new(64, 1, 1, other) == AW_OK);
    aw_shard_returner *foreign = aw_shard_returner_new(other, 1);
    for (int n = 0; n < 3; ++n) {
        aw_shard_returner_give(foreign, slots[n]);
        CHECK(aw_pool_take(pools[n]) == slots[n] && aw_pool_take(other[0]) != slots[n]);
    }
    aw_pool *gap[2] = {other[0], NULL};
    CHECK(!aw_shard_returner_new(gap, 2) && !aw_shard_returner_new(pools, SIZE_MAX));
    for (int n = 0; n < 3; ++n) {
        aw_pool_free(pools[n]);
        aw_shard_returner_give(home, slots[n]);
    }
    aw_pool_free(other[0]);
    aw_shard_returner_free(home);
    aw_shard_returner_free(foreign);
    CHECK(aw_shards_new(64, 0, 1, pools) == AW_NO_CAPACITY && aw_shards_new(64, 3, 0, pools) == AW_NO_CAPACITY);
    CHECK(aw_shards_new(65537, 3, 1, pools) == AW_SLOT_TOO_LARGE && !pools[0] && !pools[1] && !pools[2]);
}

static void a_lane_keeps_the_order(void) {
    aw_lane_sender *to;
    aw_lane_receiver *from;
    int objects[4];
    CHECK(aw_lane_new(3, &to, &from) == AW_OK && !aw_lane_recv(from));
    for (int turn = 0; turn < 3; ++turn) {
        for (int n = 0; n < 4; ++n) {
            CHECK(aw_lane_send(to, &objects[n]));
        }
        CHECK(!aw_lane_send(to, &turn) && !aw_lane_send(to, NULL));
        for (int n = 0; n < 4; ++n) {
            CHECK(aw_lane_recv(from) == &objects[n]);
        }
        CHECK(!aw_lane_recv(from));
    }
    CHECK(aw_lane_send(to, objects) && !aw_lane_receiver_is_abandoned(from) && !aw_lane_sender_is_abandoned(to));
    aw_lane_sender_free(to);
    CHECK(aw_lane_receiver_is_abandoned(from) && aw_lane_recv(from) == objects && !aw_lane_recv(from));
    aw_lane_receiver_free(from);
    CHECK(aw_lane_new(1, &to, &from) == AW_OK);
    aw_lane_receiver_free(from);
    CHECK(aw_lane_sender_is_abandoned(to) && aw_lane_send(to, objects));
    aw_lane_sender_free(to);
    CHECK(aw_lane_new(0, &to, &from) == AW_NO_CAPACITY && !to && !from);
    CHECK(aw_lane_new(SIZE_MAX, &to, &from) == AW_OUT_OF_MEMORY && !to && !from);
}

static void limits(void) {
    aw_status status = AW_OK;
    // A map for the whole limit would take half a terabyte.
    aw_pool *pool = aw_pool_new(64, 1, (size_t)1 << 45, &status);
    CHECK(pool && status == AW_OK);
    enum { N = 5000 };
    static void *slots[N];
    for (int round = 0; round < 3; ++round) {
        for (int n = 0; n < N; ++n) {
            CHECK((slots[n] = aw_pool_take(pool)));
            memset(slots[n], n, 64);
        }
        for (int n = 0; n < N; ++n) {
            CHECK(*(unsigned char *)slots[n] == (unsigned char)n);
            aw_give(slots[n]);
        }
    }
    aw_pool_free(pool);
    CHECK(!aw_pool_new(64, 1, SIZE_MAX, &status) && status == AW_OUT_OF_MEMORY);
    CHECK(!aw_pool_new(64, SIZE_MAX / 2, SIZE_MAX / 2, &status) && status == AW_OUT_OF_MEMORY);
    CHECK(!aw_pool_new(64, 0, 1, &status) && status == AW_NO_CAPACITY);
    CHECK(!aw_pool_new(64, 2, 1, &status) && status == AW_LIMIT_BELOW_CAPACITY);
    CHECK(!aw_pool_new(65537, 1, 1, &status) && status == AW_SLOT_TOO_LARGE);
    CHECK(!aw_pool_new(SIZE_MAX, 1, 1, &status) && status == AW_SLOT_TOO_LARGE);
    CHECK((pool = aw_pool_new(65536, 1, 1, &status)) && status == AW_OK);
    aw_pool_free(pool);
}

static size_t mapped_bytes(void) {
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file && fscanf(file, "%lu", &pages) == 1);
    fclose(file);
    return pages * (size_t)sysconf(_SC_PAGESIZE);
}

static void memory_that_ends(void) {
    aw_pool *pool = aw_pool_new(4096, 4, (size_t)1 << 40, NULL);
    CHECK(pool);
    rlim_t most = mapped_bytes() + (64 << 20);
    struct rlimit limit = {most, most};
    CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
    size_t taken = 0;
    void *chain = NULL, *slot;
    while ((slot = aw_pool_take(pool))) {
        *(void **)slot = chain;
        chain = slot;
        ++taken;
    }
    CHECK(taken >= 1024);
    // The rest, down to the smallest piece.
    for (size_t size = 1 << 20; size >= 16; size /= 2) {
        while (malloc(size)) {
        }
    }
    aw_status status = AW_OK;
    aw_lane_sender *to;
    aw_lane_receiver *from;
    aw_pool *pools[2];
    const size_t many[AW_BUFFER_CLASSES] = {1, 1, 1, 1, 1, 1, 1000};
    CHECK(!aw_returner_new(pool));
    CHECK(!aw_batches_new(4096, 2, 1000, 2, &status) && status == AW_OUT_OF_MEMORY);
    CHECK(!aw_buffers_new(many, &status) && status == AW_OUT_OF_MEMORY);
    CHECK(aw_shards_new(4096, 2, 1000, pools) == AW_OUT_OF_MEMORY && !pools[0] && !pools[1]);
    CHECK(aw_lane_new(1 << 20, &to, &from) == AW_OUT_OF_MEMORY && aw_lane_new(1, &to, &from) == AW_OUT_OF_MEMORY);
    CHECK(!aw_pool_new(64, 4000, 4000, &status) && status == AW_OUT_OF_MEMORY);
    // The existing slots can still be used.
    for (void *next; chain; chain = next) {
        next = *(void **)chain;
        aw_give(chain);
    }
    for (size_t n = 0; n < taken; ++n) {
        CHECK((slot = aw_pool_take(pool)));
        *(void **)slot = chain;
        chain = slot;
    }
    CHECK(!aw_pool_take(pool));
    // Slots outlive their pool.
    aw_pool_free(pool);
    for (void *next; chain; chain = next) {
        next = *(void **)chain;
        aw_give(chain);
    }
}

static void twice(const char *way) {
    aw_pool *pool = aw_pool_new(200, 2, 2, NULL);
    aw_returner *home = aw_returner_new(pool);
    CHECK(pool && home);
    void *kept = aw_pool_take(pool);
    void *slot = aw_pool_take(pool);
    aw_batches *batches = aw_batches_new(200, 1, 2, 1, NULL);
    void *batched = aw_batches_take(batches);
    CHECK(kept && slot && (uintptr_t)slot % 64 == 0 && batched && (uintptr_t)batched % 64 == 0);
    memset(slot, 0xff, 200);
    for (int n = 0; n < 2; ++n) {
        if (!strcmp(way, "pool")) {
            aw_pool_give(pool, slot);
        } else if (!strcmp(way, "batch")) {
            aw_batch_give(batched);
        } else if (!strcmp(way, "returner")) {
            aw_returner_give(home, slot);
        } else {
            aw_give(slot);
        }
    }
}

int main(int count, char **arguments) {
    if (count > 1) {
        twice(arguments[1]);
        return 0;
    }
    null_is_nothing();
    null_is_an_answer();
    batches_come_home_whole();
    buffers_have_their_class();
    shards_keep_their_own();
    a_lane_keeps_the_order();
    limits();
    memory_that_ends();
    return 0;
}
