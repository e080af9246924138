/*
 * Arguments: the number of bytes to allocate and touch, and the size of a block. Prints: resident KiB at the start of main,
 * minor faults while the blocks were touched, errno at the start of main, the lowest free descriptor, blocks that glibc mapped.
 */
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

static long faults(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_minflt;
}

int main(int argc, char **argv) {
    int error = errno;
    int lowest = dup(STDIN_FILENO);
    char text[200] = "";
    long resident;
    close(lowest);
    int statm = open("/proc/self/statm", O_RDONLY);
    if (argc != 3 || read(statm, text, sizeof text - 1) <= 0 || sscanf(text, "%*d %ld", &resident) != 1)
        return 1;
    close(statm);
    /* One fault per page, in any mode of huge pages. */
    prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
    long bytes = atol(argv[1]), size = atol(argv[2]);
    long before = faults();
    for (long done = 0; done < bytes; done += size) {
        volatile char *block = malloc((size_t)size);
        if (!block)
            return 2;
        for (long at = 0; at < size; at += 4096)
            block[at] = 1;
        block[size - 1] = 1;
    }
    long after = faults();
    size_t mapped = mallinfo2().hblks;
    long kib = resident * (sysconf(_SC_PAGESIZE) / 1024);
    printf("%ld %ld %d %d %zu\n", kib, after - before, error, lowest, mapped);
    return 0;
}
