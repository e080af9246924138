/*
 * Calls whose order is known: the i-th block follows from i, and each block is freed RING blocks later. So a trace of
 * any part of them can be compared with what the program did.
 */
#include "own.h"
#include <sys/wait.h>

#define BLOCKS 400000
#define RING 1000
#define SIZE(i) (16 + (i) * 7919 % 3000)

static void work(void) {
    static void *ring[RING];
    for (size_t i = 0; i < BLOCKS; i++) {
        void **place = &ring[i % RING];
        free(*place);
        *place = i % 10 == 9 ? calloc(1, SIZE(i)) : malloc(SIZE(i));
        if (i % 7 == 3)
            *place = realloc(*place, SIZE(i) + 500);
        CHECK(*place);
    }
}

int main(int argc, char **argv) {
    works = argc == 2 && strcmp(argv[1], "work") == 0;
    if (!works)
        return 0;
    work();
    /* The child begins without a trace, whatever its parent had. */
    pid_t child = fork();
    int status = 0;
    work();
    CHECK(child == 0 || (waitpid(child, &status, 0) == child && status == 0));
    return 0;
}
