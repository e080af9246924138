/*
 * Two threads whose calls take turns, and which free each other's blocks. The size of a block says which thread made it,
 * and as which of its blocks.
 */
#include "own.h"
#include <pthread.h>

#define BLOCKS 200000
#define TOGETHER 64
#define BOXES 512
#define SIZE(thread, i) (17 + (thread) + 2 * ((i) % 1000))

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_barrier_t both;
static void *box[BOXES];

static void *run(void *thread) {
    for (size_t i = 0; i < BLOCKS; i++) {
        if (i % TOGETHER == 0)
            pthread_barrier_wait(&both);
        void *block = malloc(SIZE((uintptr_t)thread, i));
        CHECK(block);
        pthread_mutex_lock(&lock);
        void **at = &box[i % BOXES], *other = *at;
        *at = block;
        pthread_mutex_unlock(&lock);
        free(other);
    }
    return NULL;
}

int main(void) {
    pthread_t other;
    CHECK(pthread_barrier_init(&both, NULL, 2) == 0);
    CHECK(pthread_create(&other, NULL, run, (void *)1) == 0);
    run(NULL);
    pthread_join(other, NULL);
    return 0;
}
