// Allocated 600 MiB in small blocks at a peak; nine of ten are free now, one of ten stays between them. Serves quietly.
#include <stdlib.h>
#include <string.h>

int main(void) {
    enum { COUNT = 600 << 10 };
    char **blocks = malloc(COUNT * sizeof *blocks);
    for (int i = 0; i < COUNT; i++) memset(blocks[i] = malloc(1000), i, 1000);
    for (int i = 0; i < COUNT; i++)
        if (i % 10) free(blocks[i]);
    for (volatile unsigned long n = 0;; n++) {
    }
}
