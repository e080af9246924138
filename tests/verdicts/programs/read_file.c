// Reads the same file of 256 MiB with read(2) into one buffer: copying by the kernel, no page faults.
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(void) {
    char name[] = "/tmp/read-file-XXXXXX";
    int file = mkstemp(name);
    unlink(name);
    char *piece = malloc(1 << 20);
    memset(piece, 7, 1 << 20);
    for (int i = 0; i < 256; i++)
        if (write(file, piece, 1 << 20) != 1 << 20) return 1;
    for (off_t at = 0;; at = (at + (1 << 20)) % (256 << 20))
        if (pread(file, piece, 1 << 20, at) != 1 << 20) return 1;
}
