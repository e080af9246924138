/* A server-like load, after the pattern that Larson and Krishnan describe (ISMM 1998): each thread replaces random blocks of an array by
 * blocks of random sizes. After some thousand replacements it leaves the array to another thread and goes on with one that another thread
 * left, so most blocks are freed by a thread that did not allocate them. An operation is one free and one malloc.
 *
 *     larson SECONDS [THREADS]      prints its operations, its CPU time and the wall time, as JSON
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { MAX_THREADS = 16, BLOCKS = 1000, TURN = 5000, SMALLEST = 16, SIZES = 1008 };

typedef struct {
    char *block[BLOCKS];
} Array;

/* One array more than threads: the one that no thread works on. */
static _Atomic(Array *) spare;
static _Atomic uint64_t operations;
static double ends_at;

static double now(clockid_t clock) {
    struct timespec at;
    clock_gettime(clock, &at);
    return (double)at.tv_sec + (double)at.tv_nsec / 1e9;
}

static void *checked(void *block) {
    if (!block) {
        perror("malloc");
        exit(1);
    }
    return block;
}

static void *replace(void *argument) {
    Array *mine = checked(calloc(1, sizeof *mine));
    uint64_t random = 0x9e3779b97f4a7c15u * ((uintptr_t)argument + 1), done = 0;
    while (now(CLOCK_MONOTONIC) < ends_at) {
        for (int n = 0; n < TURN; n++) {
            random ^= random << 13, random ^= random >> 7, random ^= random << 17; /* xorshift64, Marsaglia 2003 */
            char **slot = &mine->block[random % BLOCKS];
            free(*slot);
            size_t size = SMALLEST + (random >> 32) % SIZES;
            *slot = checked(malloc(size));
            (*slot)[0] = (*slot)[size - 1] = 1;
        }
        done += TURN;
        /* The exchange orders all of this thread's writes before the reads of the next owner. */
        mine = __atomic_exchange_n((Array **)&spare, mine, __ATOMIC_ACQ_REL);
    }
    __atomic_fetch_add((uint64_t *)&operations, done, __ATOMIC_RELAXED);
    return NULL;
}

int main(int argc, char **argv) {
    double seconds = argc > 1 ? strtod(argv[1], NULL) : 0;
    long threads = argc > 2 ? strtol(argv[2], NULL, 10) : 2;
    if (!(seconds > 0) || threads < 1 || threads > MAX_THREADS) {
        fprintf(stderr, "usage: larson SECONDS [THREADS]      THREADS is 1 to %d\n", MAX_THREADS);
        return 2;
    }
    spare = checked(calloc(1, sizeof(Array)));
    double began = now(CLOCK_MONOTONIC), cpu = now(CLOCK_PROCESS_CPUTIME_ID);
    ends_at = began + seconds;
    pthread_t all[MAX_THREADS];
    for (uintptr_t index = 0; index < (uintptr_t)threads; index++) {
        if (pthread_create(&all[index], NULL, replace, (void *)index)) {
            fprintf(stderr, "larson: cannot start a thread\n");
            return 1;
        }
    }
    for (long index = 0; index < threads; index++) {
        pthread_join(all[index], NULL);
    }
    cpu = now(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    printf("{\"operations\": %" PRIu64 ", \"cpu_s\": %.6f, \"wall_s\": %.6f}\n", (uint64_t)operations, cpu, now(CLOCK_MONOTONIC) - began);
}
