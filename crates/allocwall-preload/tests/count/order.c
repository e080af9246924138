/*
 * Calls whose order is known: the i-th block follows from i, and each block is freed RING blocks later. So a trace of
 * any part of them can be compared with what the program did.
 */
#include "own.h"
#include <sys/wait.h>

#ifndef MAKE
#define MAKE malloc
#define DROP free
#endif

#define BLOCKS 400000
/* After so many a trace runs: the third one begins with about the 20,000th block, and has some 60,000. */
#define BEFORE 30000
#define RING 1000
#define SIZE(i) (16 + (i) * 7919 % 3000)

static void *ring[RING];

static void work(size_t from, size_t to) {
    for (size_t i = from; i < to; i++) {
        void **place = &ring[i % RING];
        DROP(*place);
        if (i % 10 == 9)
            *place = calloc(1, SIZE(i));
        else if (i % 10 == 8)
            CHECK(posix_memalign(place, 64, SIZE(i)) == 0);
        else
            *place = MAKE(SIZE(i));
        if (i % 7 == 3)
            *place = realloc(*place, SIZE(i) + 500);
        if (i % 7 == 5)
            CHECK(realloc(malloc(40), 0) == NULL);
        CHECK(*place);
    }
}

int main(int argc, char **argv) {
    works = argc == 2 && strcmp(argv[1], "work") == 0;
    if (!works)
        return 0;
    work(0, BEFORE);
    /* The child begins without a trace. */
    pid_t child = fork();
    int status = 0;
    work(BEFORE, BLOCKS);
    CHECK(child == 0 || (waitpid(child, &status, 0) == child && status == 0));
    return 0;
}
