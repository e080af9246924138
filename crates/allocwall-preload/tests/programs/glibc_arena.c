/* Prints the bytes in use in glibc's own heap while 4 MiB are allocated (mallinfo(3)). */
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>

int main(void) {
    for (int i = 0; i < 1024; i++) {
        volatile char *block = malloc(4096);
        block[0] = 1;
    }
    size_t used = mallinfo2().uordblks;
    printf("%zu\n", used);
    return 0;
}
