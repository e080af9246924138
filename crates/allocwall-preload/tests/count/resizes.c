/* Blocks that grow. With bare.c each of them moves, and the size of the old one is unknown. */
#include "own.h"

int main(int argc, char **argv) {
    begin(argc, argv);
    for (int i = 0; works && i < 100; i++) {
        own_size(100);
        ADD(reallocs, 1);
        char *block = realloc(NULL, 100);
        CHECK(block);
        memset(block, i, 100);
        for (size_t size = 200; size <= 1600; size *= 2) {
            block = realloc(block, size);
            CHECK(block && block[99] == i);
            ADD(realloc_moved, 1);
            ADD(realloc_bytes, size);
        }
        give(block);
    }
    print_own();
    return 0;
}
