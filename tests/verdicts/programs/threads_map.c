// Six threads of one process map, write and unmap small ranges: they meet at the lock of the address space.
#include <pthread.h>
#include <sys/mman.h>

static void *work(void *unused) {
    for (;;) {
        char *map = mmap(0, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        map[0] = 1;
        munmap(map, 1 << 20);
    }
    return unused;
}

int main(void) {
    pthread_t thread;
    for (int i = 0; i < 5; i++) pthread_create(&thread, 0, work, 0);
    work(0);
}
