// The same filling with zeros, in a buffer that the program keeps.
#include <stdlib.h>
#include <string.h>

int main(void) {
    char *volatile keep = malloc(80 << 10);
    for (;;) {
        memset(keep, 0, 80 << 10);
        keep[100] = 1;
    }
}
