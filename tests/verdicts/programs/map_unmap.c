// Maps and unmaps sixteen address ranges in turn, and writes to one page of each.
#include <sys/mman.h>

int main(void) {
    char *at[16] = {0};
    for (unsigned turn = 0;; turn++) {
        char **one = &at[turn % 16];
        if (*one) munmap(*one, 64 << 20);
        *one = mmap(0, 64 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        mprotect(*one + (1 << 20), 4096, PROT_READ);
    }
}
