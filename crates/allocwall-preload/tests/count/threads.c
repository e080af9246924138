/*
 * Threads: blocks freed by another thread, destructors of thread-specific data that allocate in every round, and many
 * short-lived threads, half of which only free a block at their end. The third argument is their number.
 */
#include "own.h"
#include <pthread.h>

#define WORKERS 4
#define ROUNDS 20000
#define BOXES 64

static pthread_key_t first_key, second_key, free_key;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *box[BOXES];
static void *handed[WORKERS];

/* free(3) itself is the destructor. */
static void *take_until_the_end(void) {
    if (works)
        ADD(frees, 1);
    return take(200);
}

/* Comes up to four times: PTHREAD_DESTRUCTOR_ITERATIONS. */
static void destructor(void *left) {
    give(take(300));
    if ((uintptr_t)left > 1)
        pthread_setspecific(second_key, (void *)((uintptr_t)left - 1));
}

static void *worker(void *number) {
    uint32_t seed = (uint32_t)(uintptr_t)number;
    warm();
    pthread_setspecific(first_key, (void *)1);
    pthread_setspecific(second_key, (void *)10);
    pthread_setspecific(free_key, take_until_the_end());
    for (int round = 0; round < ROUNDS; round++) {
        seed = seed * 1664525 + 1013904223;
        void *block = take(seed >> 8 & 2047), **at = &box[seed >> 20 & (BOXES - 1)];
        pthread_mutex_lock(&lock);
        void *other = *at;
        *at = block;
        pthread_mutex_unlock(&lock);
        if (other)
            give(other);
    }
    return NULL;
}

static void *brief(void *nothing) {
    give(take(64));
    return nothing;
}

/* Its first call is that of the destructor. */
static void *silent(void *number) {
    pthread_setspecific(free_key, handed[(uintptr_t)number - 1]);
    return NULL;
}

/* With small stacks, so that the C library keeps all of them: it allocates for each new one. */
static void run(void *(*what)(void *), int count) {
    pthread_t threads[WORKERS];
    pthread_attr_t small;
    CHECK(pthread_attr_init(&small) == 0 && pthread_attr_setstacksize(&small, 128 << 10) == 0);
    for (int i = 0; i < count; i++)
        CHECK(pthread_create(&threads[i], &small, what, (void *)(uintptr_t)(i + 1)) == 0);
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
}

int main(int argc, char **argv) {
    begin(argc, argv);
    CHECK(pthread_key_create(&first_key, destructor) == 0 && pthread_key_create(&second_key, destructor) == 0);
    CHECK(pthread_key_create(&free_key, free) == 0);
    run(worker, WORKERS);
    for (int at = 0; at < BOXES; at++)
        if (box[at])
            give(box[at]);
    for (int left = argc > 2 ? atoi(argv[2]) : 0; left > 0; left -= 2 * WORKERS) {
        run(brief, WORKERS);
        for (int i = 0; i < WORKERS; i++)
            handed[i] = take_until_the_end();
        run(silent, WORKERS);
    }
    print_own();
    return 0;
}
