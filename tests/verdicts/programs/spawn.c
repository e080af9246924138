// Starts /bin/true with posix_spawn, one after the other, beside a large heap.
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

extern char **environ;

int main(void) {
    char *heap = malloc(256 << 20);
    memset(heap, 1, 256 << 20);
    for (;;) {
        pid_t child;
        char *words[] = {"true", 0};
        if (posix_spawn(&child, "/bin/true", 0, 0, words, environ)) return 1;
        waitpid(child, 0, 0);
    }
}
