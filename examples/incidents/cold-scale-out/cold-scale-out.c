// A worker with a cache of 1,000 entries of 256 KiB. A request writes the next entry: a line at the start of each of its 4 KiB fragments.
// The cache of a new worker was never touched, so its first 1,000 requests fault in its pages.
//
// --warm: touches the cache before the worker listens. --again: after each 1,000 requests the worker becomes cold again, so that a
// diagnosis has more than a moment of it.
#include "../http.h"
#include <stdatomic.h>
#include <sys/mman.h>

enum { FRAGMENT = 4096, ENTRY = 64 * FRAGMENT, ENTRIES = 1000, LINE = 64 };

static const size_t CACHE = (size_t)ENTRIES * ENTRY;
static char *cache;
static long warm, again;

static void fill(char *entry, int value) {
    for (size_t at = 0; at < ENTRY; at += FRAGMENT)
        memset(entry + at, value, LINE);
}

static size_t answer(char *body) {
    static atomic_ulong requests;
    unsigned long nth = atomic_fetch_add(&requests, 1), entry = nth % ENTRIES;
    if (again && entry == 0 && nth > 0)
        madvise(cache, CACHE, MADV_DONTNEED);
    fill(cache + entry * ENTRY, (int)nth);
    return (size_t)snprintf(body, ROOM, "entry %lu\n", entry);
}

int main(int argc, char **argv) {
    long port = 0;
    const struct setting known[] = {
        {"--port", &port, 1}, {"--warm", &warm, 0}, {"--again", &again, 0}, {NULL, NULL, 0}};
    read_settings(argc, argv, known);
    cache = mmap(NULL, CACHE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (cache == MAP_FAILED)
        fail("mmap");
    for (size_t entry = 0; warm && entry < ENTRIES; entry++)
        fill(cache + entry * ENTRY, 1);
    return serve(port);
}
