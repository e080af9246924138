// Four threads do all their work under one mutex.
#include <pthread.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static volatile unsigned long counter;

static void *work(void *unused) {
    for (;;) {
        pthread_mutex_lock(&lock);
        for (int i = 0; i < 20000; i++) counter += i;
        pthread_mutex_unlock(&lock);
        for (volatile int i = 0; i < 200; i++) {
        }
    }
    return unused;
}

int main(void) {
    pthread_t thread;
    for (int i = 0; i < 3; i++) pthread_create(&thread, 0, work, 0);
    work(0);
}
