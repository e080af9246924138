/* An allocation storm: threads that allocate, touch and free small blocks without pause, each with its own live set.
 * Operations are counted in a mapped file, one counter a cache line. The bench reads the file and does not disturb this process.
 *
 *     storm COUNTER_FILE [THREADS]      runs until killed
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MAX_THREADS = 16, LIVE_BLOCKS = 4096, LINE_WORDS = 8 };

static _Atomic uint64_t *counters;

static void *storm(void *argument) {
    uintptr_t index = (uintptr_t)argument;
    _Atomic uint64_t *counter = counters + index * LINE_WORDS;
    char *live[LIVE_BLOCKS] = {0};
    uint64_t random = 0x9e3779b97f4a7c15u * (index + 1), operations = 0;
    for (;;) {
        random ^= random << 13, random ^= random >> 7, random ^= random << 17; /* xorshift64, Marsaglia 2003 */
        char **slot = &live[random % LIVE_BLOCKS];
        free(*slot);
        size_t size = 16 + (random >> 32) % 2033; /* beyond the thread cache's largest class, 1032 bytes, about half the time */
        *slot = malloc(size);
        if (!*slot) {
            perror("malloc");
            exit(1);
        }
        (*slot)[0] = (*slot)[size - 1] = 1;
        /* One writer, own cache line: relaxed is enough for a count. */
        __atomic_store_n((uint64_t *)counter, ++operations, __ATOMIC_RELAXED);
    }
    return NULL;
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: storm COUNTER_FILE [THREADS]\n");
        return 2;
    }
    long threads = argc > 2 ? strtol(argv[2], NULL, 10) : 2;
    if (threads < 1 || threads > MAX_THREADS) {
        fprintf(stderr, "storm: THREADS must be 1 to %d\n", MAX_THREADS);
        return 2;
    }
    long page = sysconf(_SC_PAGESIZE);
    int fd = open(argv[1], O_RDWR | O_CREAT, 0600);
    if (fd < 0 || ftruncate(fd, page)) {
        perror(argv[1]);
        return 1;
    }
    counters = mmap(NULL, (size_t)page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (counters == MAP_FAILED) {
        perror("mmap");
        return 1;
    }
    for (uintptr_t index = 1; index < (uintptr_t)threads; index++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, storm, (void *)index)) {
            fprintf(stderr, "storm: cannot start a thread\n");
            return 1;
        }
    }
    storm((void *)0);
}
