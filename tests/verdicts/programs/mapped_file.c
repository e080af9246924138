// Maps a file of 256 MiB, reads a byte of each page, unmaps it: the pages are in the page cache.
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int main(void) {
    const size_t size = 256 << 20;
    char name[] = "/tmp/mapped-file-XXXXXX";
    int file = mkstemp(name);
    unlink(name);
    char *piece = malloc(1 << 20);
    memset(piece, 7, 1 << 20);
    for (int i = 0; i < 256; i++)
        if (write(file, piece, 1 << 20) != 1 << 20) return 1;
    for (unsigned sum = 0;;) {
        volatile char *map = mmap(0, size, PROT_READ, MAP_SHARED, file, 0);
        for (size_t at = 0; at < size; at += 4096) sum += map[at];
        munmap((void *)map, size);
        if (sum == 1) return 1;
    }
}
