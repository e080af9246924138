/* Programs whose buffers grow by realloc, with a fixed amount of work: grown NAME ROUNDS. They were written after the last change of the
 * model for such buffers, and each was measured once. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KIB = 1024, MIB = 1024 * KIB };

static void *need(void *block) {
    if (!block) {
        perror("grown: no memory");
        exit(1);
    }
    return block;
}

static uint64_t seed = 88172645463325252u;

static size_t between(size_t low, size_t high) { /* xorshift64, Marsaglia 2003 */
    seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
    return low + seed % (high - low);
}

static uint64_t read_all(const char *bytes, size_t size, uint64_t value) {
    for (size_t at = 0; at < size; at += 8)
        value = value * 31 + (uint8_t)bytes[at];
    return value;
}

/* A line that is read into a buffer with room for 120 bytes more each time. */
static uint64_t line(uint64_t value) {
    size_t length = between(200, 20 * KIB), room = 120, used = 0;
    char *buffer = need(malloc(room));
    for (; used < length; used += 60) {
        if (used + 60 > room)
            buffer = need(realloc(buffer, room += 120));
        memset(buffer + used, (int)(value + used), 60);
    }
    value = read_all(buffer, used, value);
    free(buffer);
    return value;
}

/* Two buffers that grow in turn: each is in the other's way. */
static uint64_t two_buffers(uint64_t value) {
    char *buffers[2] = {NULL, NULL};
    for (size_t size = 16 * KIB; size <= MIB; size += 16 * KIB)
        for (int n = 0; n < 2; n++) {
            buffers[n] = need(realloc(buffers[n], size));
            memset(buffers[n] + size - 16 * KIB, (int)value, 16 * KIB);
        }
    for (int n = 0; n < 2; n++)
        value = read_all(buffers[n], MIB, value), free(buffers[n]);
    return value;
}

/* A table that grows by half, with a small block for each of its rows. */
static uint64_t table(uint64_t value) {
    size_t room = 64, rows = 0;
    char **names = need(malloc(room * sizeof *names));
    for (; rows < 200000; rows++) {
        if (rows == room)
            names = need(realloc(names, (room += room / 2) * sizeof *names));
        names[rows] = need(malloc(between(8, 40)));
        names[rows][0] = (char)rows;
    }
    for (size_t row = 0; row < rows; row++)
        value = value * 31 + (uint8_t)names[row][0], free(names[row]);
    free(names);
    return value;
}

static const struct {
    const char *name;
    uint64_t (*round)(uint64_t);
} PROGRAMS[] = {{"grown-line", line}, {"grown-two", two_buffers}, {"grown-table", table}};

int main(int argc, char **argv) {
    long rounds = argc == 3 ? strtol(argv[2], NULL, 10) : 0;
    uint64_t value = 1;
    for (size_t n = 0; rounds > 0 && n < sizeof PROGRAMS / sizeof *PROGRAMS; n++)
        if (!strcmp(argv[1], PROGRAMS[n].name)) {
            for (long round = 0; round < rounds; round++)
                value = PROGRAMS[n].round(value);
            printf("%llu\n", (unsigned long long)value);
            return 0;
        }
    fprintf(stderr, "usage: grown NAME ROUNDS\n");
    return 2;
}
