/*
 * Allocates blocks of one size at one place, and frees half of them in another thread. Prints where that place is: the
 * address of a function of less than 1,000 bytes.
 */
#include "own.h"
#include <pthread.h>

#define BLOCKS 200000
#define SIZE 3000
#define BATCH 100

static void *batch[BATCH];
static pthread_barrier_t full, empty;

__attribute__((noinline)) static void *place(void) {
    void *block = take(SIZE);
    /* Not a jump to take(). */
    __asm__ volatile("" : "+r"(block));
    return block;
}

static void *other(void *nothing) {
    for (int done = 0; done < BLOCKS; done += BATCH) {
        pthread_barrier_wait(&full);
        for (int at = 0; at < BATCH; at += 2)
            give(batch[at]);
        pthread_barrier_wait(&empty);
    }
    return nothing;
}

int main(int argc, char **argv) {
    pthread_t thread;
    begin(argc, argv);
    CHECK(pthread_barrier_init(&full, NULL, 2) == 0 && pthread_barrier_init(&empty, NULL, 2) == 0);
    CHECK(pthread_create(&thread, NULL, other, NULL) == 0);
    for (int done = 0; done < BLOCKS; done += BATCH) {
        for (int at = 0; at < BATCH; at++)
            batch[at] = place();
        pthread_barrier_wait(&full);
        for (int at = 1; at < BATCH; at += 2)
            give(batch[at]);
        pthread_barrier_wait(&empty);
    }
    pthread_join(thread, NULL);
    printf("place %lx\n", (unsigned long)(uintptr_t)place);
    fflush(stdout);
    print_own();
    return 0;
}
