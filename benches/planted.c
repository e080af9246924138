/* A fixed amount of mixed work, or a known share more: the difference that a comparison of commands must find.
 *
 *     planted [PERMILLE]     or ALLOCWALL_PLANTED=PERMILLE in the environment; prints the number of operations
 *
 * A step allocates blocks of mixed sizes into a live set, touches their first and last byte, and computes on a buffer that fits
 * the L1 cache. The share adds whole steps, so it is a share of all counted work; the start and end of the process are not counted.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { STEPS = 2000, ALLOCATIONS = 250, ROUNDS = 10, LIVE_BLOCKS = 2048, WORDS = 1024 };

static uint64_t allocations, computed;

int main(int argc, char **argv) {
    static char *live[LIVE_BLOCKS];
    static uint64_t words[WORDS];
    const char *share = argc > 1 ? argv[1] : getenv("ALLOCWALL_PLANTED");
    long permille = share ? strtol(share, NULL, 10) : 0;
    if (permille < -1000 || permille > 1000) {
        fprintf(stderr, "planted: the share must be -1000 to 1000 permille\n");
        return 2;
    }
    uint64_t random = 0x9e3779b97f4a7c15u;
    for (long step = 0; step < STEPS + STEPS * permille / 1000; step++) {
        for (int i = 0; i < ALLOCATIONS; i++) {
            random ^= random << 13, random ^= random >> 7, random ^= random << 17; /* xorshift64, Marsaglia 2003 */
            char **slot = &live[random % LIVE_BLOCKS];
            free(*slot);
            size_t size = 16 + (random >> 32) % 2033;
            *slot = malloc(size);
            if (!*slot) {
                perror("malloc");
                return 1;
            }
            (*slot)[0] = (*slot)[size - 1] = 1;
            allocations++;
        }
        for (int round = 0; round < ROUNDS; round++) {
            for (int i = 0; i < WORDS; i++) {
                words[i] = (words[i] + random + i) * 0x2545f4914f6cdd1du;
            }
            computed += WORDS;
        }
    }
    uint64_t sum = 0;
    for (int i = 0; i < WORDS; i++) {
        sum ^= words[i];
    }
    printf("%llu allocations, %llu computed, %016llx\n", (unsigned long long)allocations, (unsigned long long)computed,
           (unsigned long long)sum);
    return 0;
}
