/* Every function of C, with sizes of every class, calls that fail, and errno. Also prints where the blocks lie. */
#include "../../include/allocwall_mark.h"
#include "own.h"
#include <errno.h>
#include <malloc.h>

static volatile size_t huge = SIZE_MAX / 2, most = SIZE_MAX;
static char *start;
static uint64_t places = 14695981039346656037u;

/* A hash of the distances from the heap's start. Large blocks have mappings of their own. */
static void *seen(void *block) {
    if ((size_t)((char *)block - start) < 1 << 30)
        places = (places ^ (uint64_t)((char *)block - start)) * 1099511628211u;
    return block;
}

static void sizes(void) {
    for (int class_ = 0; class_ < COUNT_CLASSES; class_++)
        for (int more = -1; more <= 1; more++) {
            size_t size = COUNT_CLASS_BOUND((uint64_t)class_) + (uint64_t)more;
            if (size > 64 << 20 || (class_ == 0 && more < 0))
                continue;
            own_size(size);
            void *block = seen(malloc(size));
            CHECK(block && (uintptr_t)block % 16 == 0);
            give(block);
            own_size(size);
            ADD(callocs, 1);
            block = seen(calloc(size, 1));
            CHECK(block);
            give(block);
        }
}

/* Where the blocks with more than a page's alignment lie, the heap's own address decides. */
static void alignments(size_t from, size_t end) {
    for (size_t to = from; to <= end; to *= 2) {
        void *block;
        own_size(3 * to);
        ADD(aligned, 1);
        CHECK(posix_memalign(&block, to, 3 * to) == 0 && (uintptr_t)block % to == 0);
        give(seen(block));
        own_size(2 * to);
        ADD(aligned, 1);
        give(seen(block = aligned_alloc(to, 2 * to)));
        CHECK(block && (uintptr_t)block % to == 0);
        own_size(7);
        ADD(aligned, 1);
        give(seen(block = memalign(to, 7)));
        CHECK(block && (uintptr_t)block % to == 0);
    }
}

static void pages(void) {
    own_size(100);
    ADD(aligned, 1);
    give(seen(valloc(100)));
    own_size(100);
    ADD(aligned, 1);
    give(seen(pvalloc(100)));
}

static void failures(void) {
    void *block = (void *)1;
    errno = 0;
    CHECK(!malloc(huge) && errno == ENOMEM);
    errno = 0;
    CHECK(!calloc(huge, 4) && errno == ENOMEM);
    errno = 0;
    CHECK(!realloc(NULL, most) && errno == ENOMEM);
    CHECK(posix_memalign(&block, 3, 8) == EINVAL && block == (void *)1);
    CHECK(posix_memalign(&block, 64, huge) == ENOMEM && block == (void *)1);
    errno = 0;
    CHECK(!aligned_alloc(64, most - 100) && errno == ENOMEM);
    errno = 0;
    CHECK(!reallocarray(NULL, most / 2, 3) && errno == ENOMEM);
    ADD(failed, 7);
    block = take(50);
    errno = 0;
    CHECK(!realloc(block, huge) && errno == ENOMEM);
    CHECK(!reallocarray(block, most / 2, 3));
    ADD(realloc_failed, 2);
    give(block);
    /* What succeeds leaves errno. */
    errno = 7777;
    give(take(5000));
    give(NULL);
    CHECK(errno == 7777);
}

static void *grow(void *block, size_t size) {
    size_t usable = malloc_usable_size(block);
    uintptr_t before = (uintptr_t)block;
    block = realloc(block, size);
    CHECK(block);
    ADD(realloc_bytes, size);
    if ((uintptr_t)block == before) {
        ADD(realloc_in_place, 1);
    } else {
        ADD(realloc_moved, 1);
        ADD(copied_bytes, usable < size ? usable : size);
    }
    return block;
}

static void resizes(void) {
    own_size(100);
    ADD(reallocs, 1);
    void *block = realloc(NULL, 100), *barrier = take(100);
    block = grow(block, 60);
    block = grow(block, 104);
    block = grow(block, 3000);
    block = grow(block, 30000);
    give(barrier);
    seen(block);
    ADD(realloc_freed, 1);
    CHECK(!realloc(block, 0));
    own_size(600);
    ADD(reallocs, 1);
    block = reallocarray(NULL, 20, 30);
    give(block);
    /* mremap(2): moved or grown, but not where the size stays within its pages. */
    block = take(8 << 20);
    char *middle = (char *)block + (4 << 20);
    *middle = 42;
    size_t size = 64 << 20;
    block = realloc(block, size);
    ADD(realloc_remapped, 1);
    ADD(realloc_bytes, size);
    CHECK(((char *)block)[4 << 20] == 42);
    block = realloc(block, size - 10);
    ADD(realloc_in_place, 1);
    ADD(realloc_bytes, size - 10);
    give(block);
}

int main(int argc, char **argv) {
    begin(argc, argv);
    start = sbrk(0);
    char text[64];
    if (works) {
        mallopt(M_MMAP_THRESHOLD, 128 << 10);
        give(take(100));
        sizes();
        alignments(16, 4096);
        pages();
        failures();
        resizes();
        for (int i = 0; i < 1000; i++)
            allocwall_unit();
        ADD(marks, 1000);
        int length = snprintf(text, sizeof text, "places %lx\n", (unsigned long)places);
        CHECK(write(1, text, (size_t)length) == length);
        alignments(8192, 65536);
    }
    print_own();
    return 0;
}
