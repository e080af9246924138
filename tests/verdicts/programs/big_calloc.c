// A block of 96 MiB for each request, written once.
#include <stdlib.h>

int main(void) {
    const size_t size = 96 << 20;
    for (;;) {
        volatile char *block = calloc(1, size);
        for (size_t at = 0; at < size; at += 4096) block[at] = 1;
        free((void *)block);
    }
}
