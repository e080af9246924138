// Renders tiles. A request needs 1 MiB for a short time: it maps this memory with all its pages, so that rendering has no page faults,
// and unmaps it at the end. --keep: a thread keeps its memory for its next request.
#include "../http.h"
#include <sys/mman.h>

enum { TILE = 1 << 20 };

static long keep;
// The tile that a thread keeps. It is unmapped when the thread ends.
static pthread_key_t kept;

static void *map_tile(void) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE;
    void *tile = mmap(NULL, TILE, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (tile == MAP_FAILED)
        fail("mmap");
    return tile;
}

static void unmap_tile(void *tile) {
    munmap(tile, TILE);
}

static uint64_t render(uint64_t *words) {
    uint64_t sum = 0;
    for (size_t i = 0; i < TILE / sizeof *words; i++) {
        sum += i ^ (sum << 7);
        words[i] = sum;
    }
    return words[sum % (TILE / sizeof *words)];
}

static size_t answer(char *body) {
    void *tile = pthread_getspecific(kept);
    if (!tile)
        tile = map_tile();
    uint64_t sum = render(tile);
    if (keep)
        pthread_setspecific(kept, tile);
    else
        unmap_tile(tile);
    return (size_t)snprintf(body, ROOM, "tile %016llx\n", (unsigned long long)sum);
}

int main(int argc, char **argv) {
    long port = 0;
    const struct setting known[] = {{"--port", &port, 1}, {"--keep", &keep, 0}, {NULL, NULL, 0}};
    read_settings(argc, argv, known);
    if (pthread_key_create(&kept, unmap_tile))
        fail("pthread_key_create");
    return serve(port);
}
