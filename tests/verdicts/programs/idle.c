// Waits for 97 ms of each 100 ms.
#include <time.h>
#include <unistd.h>

int main(void) {
    for (;;) {
        struct timespec begun, now;
        clock_gettime(CLOCK_MONOTONIC, &begun);
        do clock_gettime(CLOCK_MONOTONIC, &now);
        while ((now.tv_sec - begun.tv_sec) * 1000000000L + now.tv_nsec - begun.tv_nsec < 3000000);
        usleep(97000);
    }
}
