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
    CHECK(!aw_returner_new(pool));
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
    CHECK(kept && slot && (uintptr_t)slot % 64 == 0);
    memset(slot, 0xff, 200);
    for (int n = 0; n < 2; ++n) {
        if (!strcmp(way, "pool")) {
            aw_pool_give(pool, slot);
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
    limits();
    memory_that_ends();
    return 0;
}
