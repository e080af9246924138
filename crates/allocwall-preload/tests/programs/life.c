/*
 * The hard cases for an allocator: threads that start and end, blocks freed by other threads than allocated them,
 * thread-exit destructors that allocate, forks while threads allocate, libraries that are loaded and unloaded.
 * One argument: the plugin.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define THREADS 4
#define SLOTS 256
#define FAIL(...) do { printf(__VA_ARGS__); fflush(stdout); _exit(1); } while (0)

static pthread_key_t key;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned char *mailbox[SLOTS];

/* The block starts with its size; the rest is filled with the lowest byte of the size. */
static unsigned char *take(size_t size) {
    size += sizeof size;
    unsigned char *block = malloc(size);
    if (!block)
        FAIL("no memory for %zu\n", size);
    memcpy(block, &size, sizeof size);
    memset(block + sizeof size, (int)(size & 0xff), size - sizeof size);
    return block;
}

static void give(unsigned char *block) {
    if (!block)
        return;
    size_t size;
    memcpy(&size, block, sizeof size);
    for (size_t at = sizeof size; at < size; at += 1 + size / 64)
        if (block[at] != (size & 0xff))
            FAIL("a block of %zu bytes was overwritten at %zu\n", size, at);
    free(block);
}

static void at_exit_of_thread(void *block) {
    give(block);
    give(take(3000));
}

static void churn(uint32_t seed, int rounds) {
    unsigned char *slots[SLOTS] = {0};
    for (int round = 0; round < rounds; round++) {
        seed = seed * 1664525 + 1013904223;
        uint32_t at = seed >> 8 & (SLOTS - 1);
        size_t size = (seed >> 16) % 64 == 0 ? 200000 : (seed >> 16) % 2000;
        give(slots[at]);
        slots[at] = take(size);
        if (round % 8 == 0) {
            pthread_mutex_lock(&lock);
            unsigned char *other = mailbox[at];
            mailbox[at] = slots[at];
            pthread_mutex_unlock(&lock);
            slots[at] = other;
        }
    }
    for (int at = 0; at < SLOTS; at++)
        give(slots[at]);
}

static void *worker(void *seed) {
    pthread_setspecific(key, take(500));
    churn((uint32_t)(uintptr_t)seed, 30000);
    return take(100);
}

static void *brief(void *nothing) {
    pthread_setspecific(key, take(500));
    return take(2000);
}

static void fork_and_allocate(void) {
    pid_t child = fork();
    if (child == 0) {
        alarm(20);
        for (int i = 0; i < 2000; i++)
            give(take((size_t)i * 7));
        _exit(0);
    }
    int status;
    if (waitpid(child, &status, 0) != child || status != 0)
        FAIL("a child ended with status %x\n", status);
}

int main(int argc, char **argv) {
    alarm(120);
    pthread_t threads[THREADS];
    void *block;
    pthread_key_create(&key, at_exit_of_thread);
    for (uintptr_t i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, worker, (void *)(i + 1));
    for (int i = 0; i < 20; i++)
        fork_and_allocate();
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], &block);
        give(block);
    }
    for (int i = 0; i < 300; i++) {
        pthread_create(&threads[0], NULL, brief, NULL);
        pthread_join(threads[0], &block);
        give(block);
    }
    for (int i = 0; i < 50; i++) {
        void *library = dlopen(argv[argc - 1], RTLD_NOW);
        if (!library)
            FAIL("%s\n", dlerror());
        char *(*plugin)(size_t) = (char *(*)(size_t))dlsym(library, "plugin");
        char *text = plugin(5000);
        if (text[0] != 'o' || text[4999] != 'o')
            FAIL("the plugin's block was overwritten\n");
        free(text);
        dlclose(library);
    }
    for (int at = 0; at < SLOTS; at++)
        give(mailbox[at]);
    puts("ok");
    return 0;
}
