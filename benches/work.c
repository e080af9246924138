/* Programs with a fixed amount of work, each with one known wall or none, for trials of remedies.
 *
 *     work NAME ROUNDS      runs the rounds, prints a sum that depends on all of them, and ends
 *
 * Every round mixes the work of the wall with plain computing in a fixed ratio, so that a remedy can save only its own line.
 */
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE = 4096, BIG = 40 << 20, MIDDLE = 256 << 10, BATCH = 256, LIVE = 4096, RING = 1024 };

static void *need(void *block) {
    if (!block) {
        perror("malloc");
        exit(1);
    }
    return block;
}

static uint64_t step(uint64_t *random) { /* xorshift64, Marsaglia 2003 */
    *random ^= *random << 13, *random ^= *random >> 7, *random ^= *random << 17;
    return *random;
}

static uint64_t compute(uint64_t value, long steps) {
    for (long n = 0; n < steps; n++)
        value = (value ^ (value >> 29)) * 0xbf58476d1ce4e5b9u + (uint64_t)n;
    return value;
}

static uint64_t touch(char *block, size_t size) {
    for (size_t at = 0; at < size; at += PAGE)
        ((volatile char *)block)[at] = 1;
    return (uint64_t)block[0];
}

/* Larger than glibc's largest dynamic threshold, 32 MiB: mapped and unmapped each time. */
static uint64_t cold_touch(uint64_t value) {
    char *block = need(malloc(BIG));
    value += touch(block, BIG);
    free(block);
    return compute(value, 12000000);
}

static uint64_t warm_touch(uint64_t value) {
    static char *block;
    if (!block)
        block = need(malloc(BIG));
    return compute(value + touch(block, BIG), 12000000);
}

/* Mapped one by one if MALLOC_MMAP_THRESHOLD_ or its tunable fixes the threshold below this size. */
static uint64_t map_churn(uint64_t value) {
    char *blocks[BATCH];
    for (int n = 0; n < BATCH; n++)
        value += touch(blocks[n] = need(malloc(MIDDLE)), PAGE);
    for (int n = 0; n < BATCH; n++)
        free(blocks[n]);
    return compute(value, 700000);
}

/* One block at a time: the thread cache serves all calls. */
static uint64_t call_rate(uint64_t value) {
    for (int n = 0; n < 20000; n++) {
        char *volatile block = need(malloc(64));
        *block = (char)value;
        free(block);
        value = compute(value, 8);
    }
    return value;
}

/* More blocks of one size at a time than the thread cache holds. */
static uint64_t arena(uint64_t value) {
    char *blocks[BATCH];
    for (int turn = 0; turn < 80; turn++) {
        for (int n = 0; n < BATCH; n++)
            *(blocks[n] = need(malloc(256))) = (char)n;
        for (int n = 0; n < BATCH; n++)
            free(blocks[n]);
        value = compute(value, 4000);
    }
    return value;
}

/* Random sizes and lifetimes. */
static uint64_t storm_on(char **live, uint64_t value) {
    for (int n = 0; n < 10000; n++) {
        char **slot = &live[step(&value) % LIVE];
        free(*slot);
        size_t size = 16 + (value >> 32) % 2033;
        *slot = need(malloc(size));
        (*slot)[0] = (*slot)[size - 1] = 1;
        value = compute(value, 20) | 1;
    }
    return value;
}

static uint64_t storm(uint64_t value) {
    static char *live[LIVE];
    return storm_on(live, value);
}

static uint64_t computing(uint64_t value) {
    return compute(value, 1000000);
}

static long rounds;
static uint64_t sums[2];

static void *storming(void *index) {
    uint64_t number = (uintptr_t)index, value = number + 1;
    char **live = need(calloc(LIVE, sizeof *live));
    for (long n = 0; n < rounds; n++)
        value = storm_on(live, value);
    sums[number] = value;
    return NULL;
}

static char *ring[RING];
static uint64_t head, tail;

static void *taking(void *unused) {
    (void)unused;
    for (uint64_t n = 0; n < (uint64_t)rounds * 10000; n++) {
        while (__atomic_load_n(&head, __ATOMIC_ACQUIRE) == n)
            sched_yield();
        free(ring[n % RING]);
        sums[1] = compute(sums[1] + n, 60);
        __atomic_store_n(&tail, n + 1, __ATOMIC_RELEASE);
    }
    return NULL;
}

/* One thread allocates, another frees. */
static void *giving(void *unused) {
    (void)unused;
    for (uint64_t n = 0; n < (uint64_t)rounds * 10000; n++) {
        char *block = need(malloc(64 + n % 512));
        *block = 1;
        while (n - __atomic_load_n(&tail, __ATOMIC_ACQUIRE) >= RING)
            sched_yield();
        ring[n % RING] = block;
        sums[0] = compute(sums[0] + n, 60);
        __atomic_store_n(&head, n + 1, __ATOMIC_RELEASE);
    }
    return NULL;
}

static int two(void *(*first)(void *), void *(*second)(void *)) {
    pthread_t threads[2];
    if (pthread_create(&threads[0], NULL, first, (void *)0) || pthread_create(&threads[1], NULL, second, (void *)1)) {
        fprintf(stderr, "work: cannot start a thread\n");
        return 1;
    }
    pthread_join(threads[0], NULL), pthread_join(threads[1], NULL);
    printf("%llu\n", (unsigned long long)(sums[0] ^ sums[1]));
    return 0;
}

static const struct {
    const char *name;
    uint64_t (*round)(uint64_t);
} PROGRAMS[] = {
    {"cold-touch", cold_touch}, {"warm-touch", warm_touch}, {"map-churn", map_churn}, {"call-rate", call_rate},
    {"arena", arena},           {"storm", storm},           {"computing", computing},
};

int main(int argc, char **argv) {
    rounds = argc == 3 ? strtol(argv[2], NULL, 10) : 0;
    if (rounds < 1) {
        fprintf(stderr, "usage: work NAME ROUNDS\n");
        return 2;
    }
    if (!strcmp(argv[1], "contention"))
        return two(storming, storming);
    if (!strcmp(argv[1], "remote-free"))
        return two(giving, taking);
    for (size_t n = 0; n < sizeof PROGRAMS / sizeof *PROGRAMS; n++) {
        if (strcmp(argv[1], PROGRAMS[n].name))
            continue;
        uint64_t value = 1;
        for (long done = 0; done < rounds; done++)
            value = PROGRAMS[n].round(value);
        printf("%llu\n", (unsigned long long)value);
        return 0;
    }
    fprintf(stderr, "work: unknown program %s\n", argv[1]);
    return 2;
}
