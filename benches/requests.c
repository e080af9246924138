/* Programs with a fixed amount of work that use memory as services and tools do, for trials of remedies.
 *
 *     requests NAME ROUNDS      runs the rounds, prints a sum that depends on all of them, and ends
 *
 * Every block is written and read, so the programs have work of their own beside their calls of malloc.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* LARGE is above glibc's largest dynamic threshold, 32 MiB: a free never raises the threshold, and each buffer is mapped anew. */
enum { KIB = 1024, MIB = 1024 * KIB, LARGE = 40 * MIB, SHARED = 48 * MIB };
enum { REQUEST = 768, OBJECTS = 200, MIXED = 2000, BATCH = 64, DEPTH = 16 };

static void *need(void *block) {
    if (!block) {
        perror("requests: no memory");
        exit(1);
    }
    return block;
}

/* Each thread starts with the same seed, so the work does not depend on which thread runs first. */
static _Thread_local uint64_t seed = 88172645463325252u;

static size_t between(size_t low, size_t high) { /* xorshift64, Marsaglia 2003 */
    seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
    return low + seed % (high - low + 1);
}

/* Writes a part of a block, 8 bytes at a time. */
static uint64_t fill(char *block, size_t from, size_t to, uint64_t value) {
    for (size_t at = from; at + sizeof value <= to; at += sizeof value) {
        value = value * 6364136223846793005u + 1442695040888963407u; /* Knuth's MMIX */
        memcpy(block + at, &value, sizeof value);
    }
    return value;
}

/* Reads one number of each cache line. Only the high half of the sum: the low bits of fill's numbers have short periods. */
static uint64_t sum(const char *block, size_t size) {
    uint64_t all = 0, one;
    for (size_t at = 0; at + sizeof one <= size; at += 64) {
        memcpy(&one, block + at, sizeof one);
        all += one;
    }
    return all >> 32;
}

static size_t half_more(size_t size) {
    return (size + size / 2) & ~(size_t)63;
}

static size_t step_more(size_t size) {
    return size + 64 * KIB;
}

static size_t twice(size_t size) {
    return 2 * size;
}

/* A buffer that grows until it has `last` bytes, and is written as it grows. */
static char *grown(size_t size, size_t last, size_t (*more)(size_t), uint64_t *value) {
    char *block = need(malloc(size));
    *value = fill(block, 0, size, *value);
    while (size < last) {
        size_t before = size;
        block = need(realloc(block, size = more(size)));
        *value = fill(block, before, size, *value);
    }
    *value ^= sum(block, size);
    return block;
}

/* glibc moves a mapped buffer with mremap and copies nothing. */
static uint64_t buffer_realloc(uint64_t value) {
    free(grown(4 * KIB, LARGE, half_more, &value));
    return value;
}

/* The same buffer at its full size, allocated once. */
static uint64_t realloc_twin(uint64_t value) {
    static char *block;
    size_t size = 4 * KIB;
    while (size < LARGE)
        size = half_more(size);
    if (!block)
        block = need(malloc(size));
    value = fill(block, 0, size, value);
    return value ^ sum(block, size);
}

/* glibc mostly extends the buffer in place at the end of its heap. */
static uint64_t buffer_steps(uint64_t value) {
    free(grown(4 * KIB, MIB, step_more, &value));
    return value;
}

static uint64_t buffer_small(uint64_t value) {
    static char *live[64];
    for (int n = 0; n < 64; n++) {
        free(live[n]);
        live[n] = grown(16, 8 * KIB, twice, &value);
    }
    return value;
}

/* 3 MB, freed at the end of the request: glibc then trims its heap. */
static uint64_t request_heap(uint64_t value) {
    char *blocks[REQUEST];
    for (int n = 0; n < REQUEST; n++)
        value = fill(blocks[n] = need(malloc(4 * KIB)), 0, 4 * KIB, value);
    for (int n = 0; n < REQUEST; n++) {
        value ^= sum(blocks[n], 4 * KIB);
        free(blocks[n]);
    }
    return value;
}

/* Blocks of mixed sizes, freed in the order of their allocation. */
static uint64_t mixed(char **blocks, int count, size_t smallest, size_t largest, uint64_t value) {
    for (int n = 0; n < count; n++) {
        size_t size = between(smallest, largest);
        value = fill(blocks[n] = need(malloc(size)), 0, size, value);
    }
    for (int n = 0; n < count; n++) {
        value ^= sum(blocks[n], smallest);
        free(blocks[n]);
    }
    return value;
}

static uint64_t request_small(uint64_t value) {
    char *blocks[OBJECTS];
    return mixed(blocks, OBJECTS, 16, 600, value);
}

static uint64_t large_calloc(uint64_t value) {
    static char *live[4];
    for (int n = 0; n < 4; n++) {
        size_t size = between(200 * KIB, 2 * MIB);
        free(live[n]);
        live[n] = need(calloc(1, size));
        value = fill(live[n], 0, size / 4, value);
        value ^= sum(live[n], size);
    }
    return value;
}

static uint64_t shared_memory(uint64_t value) {
    static char *shared;
    if (!shared) {
        shared = mmap(NULL, SHARED, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        need(shared == MAP_FAILED ? NULL : shared);
    }
    value = fill(shared, 0, SHARED, value);
    return value ^ sum(shared, SHARED);
}

static void both(void *(*first)(void *), void *(*second)(void *), uint64_t sums[2]) {
    pthread_t threads[2];
    if (pthread_create(&threads[0], NULL, first, &sums[0]) || pthread_create(&threads[1], NULL, second, &sums[1])) {
        fprintf(stderr, "requests: cannot start a thread\n");
        exit(1);
    }
    pthread_join(threads[0], NULL), pthread_join(threads[1], NULL);
}

static void *short_lived(void *result) {
    char *blocks[MIXED];
    *(uint64_t *)result = mixed(blocks, MIXED, 16, 1500, *(uint64_t *)result);
    return NULL;
}

/* Two new threads in each round. */
static uint64_t threads_short(uint64_t value) {
    uint64_t sums[2] = {value, value + 1};
    both(short_lived, short_lived, sums);
    return sums[0] ^ sums[1];
}

struct batch {
    size_t sizes[BATCH];
    char *messages[BATCH];
};

static long rounds;

/* One condition is enough: the queue is never full and empty at once, so only one of the two threads waits. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct batch *ring[DEPTH];
    long given, taken;
} queue = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void *producer(void *result) {
    uint64_t value = *(uint64_t *)result;
    for (long n = 0; n < rounds; n++) {
        struct batch *batch = need(malloc(sizeof *batch));
        for (int at = 0; at < BATCH; at++) {
            batch->sizes[at] = between(100, 2000);
            batch->messages[at] = need(malloc(batch->sizes[at]));
            value = fill(batch->messages[at], 0, batch->sizes[at], value);
        }
        pthread_mutex_lock(&queue.lock);
        while (queue.given - queue.taken == DEPTH)
            pthread_cond_wait(&queue.changed, &queue.lock);
        queue.ring[queue.given++ % DEPTH] = batch;
        pthread_cond_signal(&queue.changed);
        pthread_mutex_unlock(&queue.lock);
    }
    *(uint64_t *)result = value;
    return NULL;
}

/* Reads and frees what the other thread allocated. */
static void *consumer(void *result) {
    uint64_t value = *(uint64_t *)result;
    for (long n = 0; n < rounds; n++) {
        pthread_mutex_lock(&queue.lock);
        while (queue.given == queue.taken)
            pthread_cond_wait(&queue.changed, &queue.lock);
        struct batch *batch = queue.ring[queue.taken++ % DEPTH];
        pthread_cond_signal(&queue.changed);
        pthread_mutex_unlock(&queue.lock);
        for (int at = 0; at < BATCH; at++) {
            value = value * 3 + sum(batch->messages[at], batch->sizes[at]);
            free(batch->messages[at]);
        }
        free(batch);
    }
    *(uint64_t *)result = value;
    return NULL;
}

static const struct {
    const char *name;
    uint64_t (*round)(uint64_t);
} PROGRAMS[] = {
    {"buffer-realloc", buffer_realloc}, {"buffer-steps", buffer_steps},   {"buffer-small", buffer_small},
    {"realloc-twin", realloc_twin},     {"request-heap", request_heap},   {"request-small", request_small},
    {"large-calloc", large_calloc},     {"shared-memory", shared_memory}, {"threads-short", threads_short},
};

int main(int argc, char **argv) {
    uint64_t value = 1, sums[2] = {1, 2};
    rounds = argc == 3 ? strtol(argv[2], NULL, 10) : 0;
    if (rounds < 1) {
        fprintf(stderr, "usage: requests NAME ROUNDS\n");
        return 2;
    }
    if (!strcmp(argv[1], "handover")) {
        both(producer, consumer, sums);
        printf("%llu\n", (unsigned long long)(sums[0] ^ sums[1]));
        return 0;
    }
    for (size_t n = 0; n < sizeof PROGRAMS / sizeof *PROGRAMS; n++) {
        if (strcmp(argv[1], PROGRAMS[n].name))
            continue;
        for (long done = 0; done < rounds; done++)
            value = PROGRAMS[n].round(value);
        printf("%llu\n", (unsigned long long)value);
        return 0;
    }
    fprintf(stderr, "requests: unknown program %s\n", argv[1]);
    return 2;
}
