/* A producer and a consumer, the pattern for which xmalloc-test was written (Lever and Boreham, USENIX 2000): one thread allocates blocks
 * of random sizes, another one frees them. A ring passes the blocks on. A thread that finds it full or empty sleeps for a moment instead
 * of spinning, so that CPU time is work. An operation is one malloc and one free.
 *
 *     xmalloc SECONDS      prints its operations, its CPU time and the wall time, as JSON
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { RING = 8192, BATCH = 256, SMALLEST = 16, SIZES = 496, LINE_BYTES = 64 };

static char *ring[RING];
/* Blocks that were put into the ring and taken out of it, so far. Each has one writer and a cache line of its own. */
static struct {
    _Alignas(LINE_BYTES) uint64_t put;
    _Alignas(LINE_BYTES) uint64_t taken;
    _Alignas(LINE_BYTES) bool ended;
} shared;

static double now(clockid_t clock) {
    struct timespec at;
    clock_gettime(clock, &at);
    return (double)at.tv_sec + (double)at.tv_nsec / 1e9;
}

static void pause_briefly(void) {
    nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
}

static void *produce(void *argument) {
    double ends_at = *(double *)argument;
    uint64_t random = 0x9e3779b97f4a7c15u, put = 0;
    while (now(CLOCK_MONOTONIC) < ends_at) {
        if (put + BATCH - __atomic_load_n(&shared.taken, __ATOMIC_ACQUIRE) > RING) {
            pause_briefly();
            continue;
        }
        for (int n = 0; n < BATCH; n++) {
            random ^= random << 13, random ^= random >> 7, random ^= random << 17; /* xorshift64, Marsaglia 2003 */
            size_t size = SMALLEST + random % SIZES;
            char *block = malloc(size);
            if (!block) {
                perror("malloc");
                exit(1);
            }
            block[0] = block[size - 1] = 1;
            ring[put++ % RING] = block;
        }
        /* Release: the consumer sees the blocks before the number. */
        __atomic_store_n(&shared.put, put, __ATOMIC_RELEASE);
    }
    __atomic_store_n(&shared.ended, true, __ATOMIC_RELEASE);
    return NULL;
}

static void *consume(void *argument) {
    (void)argument;
    uint64_t taken = 0;
    for (;;) {
        /* Read first: what was put before the end is seen after it. */
        bool ended = __atomic_load_n(&shared.ended, __ATOMIC_ACQUIRE);
        uint64_t put = __atomic_load_n(&shared.put, __ATOMIC_ACQUIRE);
        if (taken == put) {
            if (ended) {
                return NULL;
            }
            pause_briefly();
            continue;
        }
        while (taken < put) {
            free(ring[taken++ % RING]);
        }
        /* Release: the producer reuses the places only after they were read. */
        __atomic_store_n(&shared.taken, taken, __ATOMIC_RELEASE);
    }
}

int main(int argc, char **argv) {
    double seconds = argc > 1 ? strtod(argv[1], NULL) : 0;
    if (!(seconds > 0)) {
        fprintf(stderr, "usage: xmalloc SECONDS\n");
        return 2;
    }
    double began = now(CLOCK_MONOTONIC), cpu = now(CLOCK_PROCESS_CPUTIME_ID), ends_at = began + seconds;
    pthread_t producer, consumer;
    if (pthread_create(&producer, NULL, produce, &ends_at) || pthread_create(&consumer, NULL, consume, NULL)) {
        fprintf(stderr, "xmalloc: cannot start a thread\n");
        return 1;
    }
    pthread_join(producer, NULL);
    pthread_join(consumer, NULL);
    cpu = now(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    printf("{\"operations\": %" PRIu64 ", \"cpu_s\": %.6f, \"wall_s\": %.6f}\n", shared.taken, cpu, now(CLOCK_MONOTONIC) - began);
}
