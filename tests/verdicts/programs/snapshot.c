// A store of 256 MiB that forks for each snapshot; the parent goes on writing while the child lives.
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void) {
    const size_t size = 256 << 20;
    char *store = malloc(size);
    memset(store, 1, size);
    for (unsigned turn = 0;; turn++) {
        int ends[2];
        if (pipe(ends)) return 1;
        pid_t child = fork();
        if (child == 0) {
            char byte;
            close(ends[1]);
            _exit(read(ends[0], &byte, 1) < 0);
        }
        close(ends[0]);
        for (size_t at = 0; at < size; at += 4096) store[at] = (char)turn;
        close(ends[1]);
        waitpid(child, 0, 0);
    }
}
