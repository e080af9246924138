// A buffer of 80 KiB for each request from calloc, freed at once: the heap's memory is filled with zeros each time.
#include <stdlib.h>

int main(void) {
    char *volatile keep;
    for (;;) {
        char *block = calloc(1, 80 << 10);
        block[100] = 1;
        keep = block;
        free(keep);
    }
}
