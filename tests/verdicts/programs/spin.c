// Computes on every CPU that it gets: `spin N` threads.
#include <pthread.h>
#include <stdlib.h>

static void *work(void *unused) {
    for (volatile unsigned long n = 0;; n++) {
    }
    return unused;
}

int main(int count, char **words) {
    pthread_t thread;
    for (int i = count > 1 ? atoi(words[1]) : 1; i > 1; i--) pthread_create(&thread, 0, work, 0);
    work(0);
}
