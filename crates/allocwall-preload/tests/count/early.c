#include "early.h"

__attribute__((section(".preinit_array"), used)) static void (*const first)(int, char **) = before;

int main(int argc, char **argv) {
    begin(argc, argv);
    give(take(5000));
    const uint64_t *theirs = (const uint64_t *)early_own();
    for (size_t at = 0; at < sizeof own / 8; at++)
        ((uint64_t *)&own)[at] += theirs[at];
    print_own();
    return 0;
}
