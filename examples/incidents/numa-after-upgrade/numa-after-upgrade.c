// Answers from a large table. A request follows 2,000 references in it, each of which depends on the one before.
//
// --table MIB: its size. --memory-node N: the table is on this NUMA node. --cpu-node N: requests are served on the CPUs of this node.
// Without the last two, the kernel decides.
#include "../http.h"
#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>

enum { REFERENCES = 2000, BIND = 2 /* MPOL_BIND of <linux/mempolicy.h> */ };

static uint64_t *table;
static size_t count;

// The CPUs of a node, as the kernel lists them: 0-3,8.
static void run_on(long node) {
    char path[64];
    snprintf(path, sizeof path, "/sys/devices/system/node/node%ld/cpulist", node);
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    FILE *list = fopen(path, "r");
    if (!list)
        fail(path);
    int first, last;
    while (fscanf(list, "%d", &first) == 1) {
        if (fscanf(list, "-%d", &last) != 1)
            last = first;
        for (int cpu = first; cpu <= last && cpu < CPU_SETSIZE; cpu++)
            CPU_SET(cpu, &cpus);
        if (fgetc(list) != ',')
            break;
    }
    fclose(list);
    // Threads that are started later inherit it.
    if (sched_setaffinity(0, sizeof cpus, &cpus))
        fail("sched_setaffinity");
}

static void make_table(long mib, long node) {
    size_t bytes = (size_t)mib << 20;
    table = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (table == MAP_FAILED)
        fail("mmap");
    unsigned long nodes = node >= 0 ? 1ul << node : 0;
    // The kernel reads one bit less than this number (mbind(2)).
    if (nodes && syscall(SYS_mbind, table, bytes, BIND, &nodes, 8 * sizeof nodes, 0))
        fail("mbind");
    count = bytes / sizeof *table;
    for (size_t i = 0; i < count; i++)
        table[i] = (i + 1) * 0x9e3779b97f4a7c15u;
}

static size_t answer(char *body) {
    static atomic_ulong requests;
    uint64_t key = (atomic_fetch_add(&requests, 1) + 1) * 0xd1342543de82ef95u;
    for (int i = 0; i < REFERENCES; i++) {
        size_t at = (size_t)(((unsigned __int128)key * count) >> 64);
        key = table[at] ^ (key * 0x2545f4914f6cdd1du);
    }
    return (size_t)snprintf(body, ROOM, "entry %016llx\n", (unsigned long long)key);
}

int main(int argc, char **argv) {
    long port = 0, mib = 256, memory_node = -1, cpu_node = -1;
    const struct setting known[] = {{"--port", &port, 1},
                                    {"--table", &mib, 1},
                                    {"--memory-node", &memory_node, 1},
                                    {"--cpu-node", &cpu_node, 1},
                                    {NULL, NULL, 0}};
    read_settings(argc, argv, known);
    if (mib < 1 || mib > 1 << 20) {
        fputs("--table is a number of MiB\n", stderr);
        return 2;
    }
    if (memory_node > 62) {
        fputs("--memory-node is a number from 0 to 62\n", stderr);
        return 2;
    }
    make_table(mib, memory_node);
    if (cpu_node >= 0)
        run_on(cpu_node);
    return serve(port);
}
