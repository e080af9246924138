/* Every allocation function of the C library, each checked against its manual page. */
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(what) do { if (!(what)) { printf("%d: %s\n", __LINE__, #what); return 1; } } while (0)

static int aligned(void *block, size_t to) {
    return block && (uintptr_t)block % to == 0;
}

int main(void) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *block = malloc(100);
    CHECK(aligned(block, _Alignof(max_align_t)) && malloc_usable_size(block) >= 100);
    memset(block, 7, 100);
    block = realloc(block, 1 << 20);
    CHECK(block && block[0] == 7 && block[99] == 7 && malloc_usable_size(block) >= 1 << 20);
    block = realloc(block, 10);
    CHECK(block && block[9] == 7);
    free(block);
    free(NULL);
    CHECK(malloc_usable_size(NULL) == 0);

    for (size_t size = 1; size < 3 << 20; size = size * 3 + 1) {
        unsigned char *zeroed = malloc(size);
        CHECK(zeroed);
        memset(zeroed, 0xff, size);
        free(zeroed);
        zeroed = calloc(size, 1);
        CHECK(zeroed);
        for (size_t at = 0; at < size; at++)
            CHECK(zeroed[at] == 0);
        free(zeroed);
    }
    volatile size_t huge = SIZE_MAX / 2;
    /* mimalloc does not change errno. */
    CHECK(calloc(huge, 4) == NULL);
    CHECK(malloc(huge) == NULL);

    for (size_t to = sizeof(void *); to <= 1 << 16; to *= 2) {
        void *found = NULL;
        CHECK(posix_memalign(&found, to, 3 * to + 1) == 0 && aligned(found, to));
        memset(found, 1, 3 * to + 1);
        free(found);
        CHECK(aligned(found = aligned_alloc(to, 4 * to), to));
        found = realloc(found, 8 * to);
        CHECK(found);
        free(found);
        CHECK(aligned(found = memalign(to, 5), to));
        free(found);
    }
    void *unused;
    CHECK(posix_memalign(&unused, 3, 8) == EINVAL);
    void *whole = valloc(page + 1);
    CHECK(aligned(whole, page));
    free(whole);
    whole = pvalloc(page + 1);
    CHECK(aligned(whole, page));
    memset(whole, 1, 2 * page);
    free(whole);
    char *copy = strdup("strdup");
    CHECK(copy && strcmp(copy, "strdup") == 0);
    free(copy);
    CHECK(asprintf(&copy, "%d", 42) == 2);
    free(copy);
    puts("ok");
    return 0;
}
