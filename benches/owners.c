// Touches new pages of six owners, and prints every 250 ms what each has taken: ms since 1970, then for each owner page faults and CPU
// seconds, in the order of `enum owner`. Two threads; each counts its own faults and CPU time around the touches alone.
#define _GNU_SOURCE
#include <alloca.h>
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum owner { HEAP, ARENA, MAPPED_BLOCK, STACK, SHARED, PRIVATE, OWNERS };
enum { PAGE = 4096, BLOCK = 96 * 1024, LARGE = 1 << 20, DEEP = 512 * 1024 };

static _Atomic uint64_t faults[OWNERS], nanoseconds[OWNERS];

static uint64_t cpu_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static uint64_t faults_so_far(void) {
    struct rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_minflt;
}

static void touch(enum owner owner, volatile char *at, size_t bytes) {
    uint64_t before = faults_so_far(), begun = cpu_ns();
    for (size_t i = 0; i < bytes; i += PAGE)
        at[i] = 1;
    atomic_fetch_add(&nanoseconds[owner], cpu_ns() - begun);
    atomic_fetch_add(&faults[owner], faults_so_far() - before);
}

// In the main thread the blocks lie in the heap that brk gives, elsewhere in an arena.
static void blocks(enum owner owner) {
    char *all[8];
    for (int i = 0; i < 8; i++)
        touch(owner, all[i] = malloc(BLOCK), BLOCK);
    for (int i = 0; i < 8; i++)
        free(all[i]);
    malloc_trim(0);
}

static void mapped_block(void) {
    char *block = malloc(LARGE);
    touch(MAPPED_BLOCK, block, LARGE);
    free(block);
}

static void map(enum owner owner, size_t bytes) {
    int flags = owner == SHARED ? MAP_SHARED : MAP_PRIVATE;
    char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        abort();
    touch(owner, at, bytes);
    munmap(at, bytes);
}

static __attribute__((noinline)) void stack(void) {
    volatile char *deep = alloca(DEEP);
    // From the top down, as a stack grows. The pages are given back, so that the next call touches them anew.
    uint64_t before = faults_so_far(), begun = cpu_ns();
    for (size_t i = DEEP - PAGE; i >= PAGE; i -= PAGE)
        deep[i] = 1;
    atomic_fetch_add(&nanoseconds[STACK], cpu_ns() - begun);
    atomic_fetch_add(&faults[STACK], faults_so_far() - before);
    uintptr_t low = ((uintptr_t)deep + PAGE - 1) & -PAGE;
    madvise((void *)low, ((uintptr_t)deep + DEEP - low - 2 * PAGE) & -PAGE, MADV_DONTNEED);
}

static volatile uint64_t sum;

static void compute(void) {
    uint64_t x = 1;
    for (int i = 0; i < 200000; i++)
        x = x * 6364136223846793005u + 1442695040888963407u;
    sum = x;
}

static __attribute__((noreturn)) void *second(void *unused) {
    (void)unused;
    for (;;) {
        blocks(ARENA);
        map(SHARED, LARGE / 2);
        map(PRIVATE, LARGE);
        compute();
    }
}

int main(void) {
    pthread_t thread;
    // Fixed, so that the blocks' place does not change while the program runs.
    mallopt(M_MMAP_THRESHOLD, 128 * 1024);
    mallopt(M_TOP_PAD, 0);
    free(malloc(64));
    pthread_create(&thread, NULL, second, NULL);
    for (struct timespec now, said = {0};;) {
        blocks(HEAP);
        mapped_block();
        stack();
        compute();
        clock_gettime(CLOCK_REALTIME, &now);
        if ((now.tv_sec - said.tv_sec) * 1e3 + (now.tv_nsec - said.tv_nsec) / 1e6 > 250) {
            said = now;
            printf("[%.3f", now.tv_sec * 1e3 + now.tv_nsec / 1e6);
            for (int i = 0; i < OWNERS; i++)
                printf(", %ju, %.9f", (uintmax_t)faults[i], nanoseconds[i] / 1e9);
            puts("]");
            fflush(stdout);
        }
    }
}
