// Fills new shared memory again and again, as a queue between processes that is made for each message.
#define _GNU_SOURCE
#include <sys/mman.h>
#include <unistd.h>

int main(void) {
    const size_t size = 64 << 20;
    for (;;) {
        int file = memfd_create("queue", 0);
        if (file < 0 || ftruncate(file, size)) return 1;
        volatile char *map = mmap(0, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        for (size_t at = 0; at < size; at += 4096) map[at] = 1;
        munmap((void *)map, size);
        close(file);
    }
}
