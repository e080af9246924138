/*
 * What a program counts of its own calls, by the names of count.h. At its end a program prints them. It is run twice,
 * with the argument "work" and with "rest": then it does all but these calls. The difference of the two runs is without
 * the calls of the C library.
 */
#ifndef OWN_H
#define OWN_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef __cplusplus
#define _Static_assert static_assert
#endif
#include "../../src/count.h"

#define COUNTERS(X) \
    X(callocs) X(aligned) X(news) X(reallocs) X(realloc_in_place) X(realloc_moved) X(realloc_remapped) \
    X(realloc_freed) X(realloc_failed) X(realloc_bytes) X(copied_bytes) X(marks) X(bytes) X(frees) X(free_null) \
    X(deletes) X(failed)

struct own {
#define X(name) uint64_t name;
    COUNTERS(X)
#undef X
    uint64_t classes[COUNT_CLASSES];
};
static struct own own;

#define ADD(counter, by) __atomic_fetch_add(&own.counter, by, __ATOMIC_RELAXED)
#define FAIL(...) do { printf(__VA_ARGS__); fflush(stdout); _exit(1); } while (0)
#define CHECK(what) do { if (!(what)) FAIL("%s:%d: %s\n", __FILE__, __LINE__, #what); } while (0)

static int works;

__attribute__((unused)) static void own_size(size_t size) {
    int at = 0;
    while (at < COUNT_CLASSES - 1 && COUNT_CLASS_BOUND(at) < size)
        at++;
    ADD(classes[at], 1);
    ADD(bytes, size);
}

__attribute__((unused)) static void *take(size_t size) {
    if (!works)
        return NULL;
    own_size(size);
    void *block = malloc(size);
    CHECK(block);
    memset(block, 1, size);
    return block;
}

__attribute__((unused)) static void give(void *block) {
    if (!works)
        return;
    if (block)
        ADD(frees, 1);
    else
        ADD(free_null, 1);
    free(block);
}

/* The first call of a thread: what an allocator itself needs for it is then in both runs. */
__attribute__((unused)) static void warm(void) {
    free(malloc(1));
}

/* In one write(2), without stdio, which allocates. Starts with the process: children print too. */
__attribute__((unused)) static void print_own(void) {
    static char text[16384];
    int length = 0, pid = getpid();
#define X(name) \
    if (own.name) \
        length += snprintf(text + length, sizeof text - (size_t)length, "%d " #name " %lu\n", pid, \
                           (unsigned long)own.name);
    COUNTERS(X)
#undef X
    for (int at = 0; at < COUNT_CLASSES; at++)
        if (own.classes[at])
            length += snprintf(text + length, sizeof text - (size_t)length, "%d class%d %lu\n", pid, at,
                               (unsigned long)own.classes[at]);
    if (write(1, text, (size_t)length) != length)
        _exit(1);
}

__attribute__((unused)) static void begin(int argc, char **argv) {
    CHECK(argc > 1);
    warm();
    works = strcmp(argv[1], "work") == 0;
}

#endif
