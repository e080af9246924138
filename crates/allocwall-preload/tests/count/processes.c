/*
 * Forks beside threads that allocate, forks of a thread, vfork, exec, _exit, and a program that clears its environment,
 * closes all descriptors, and changes its root directory if it may. Each process prints what it counted itself.
 */
#include "own.h"
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

static volatile int ends;
static char **arguments;

static void *churn(void *nothing) {
    warm();
    while (!ends)
        give(take(200));
    return nothing;
}

static void wait_for(pid_t child) {
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
}

/* A child, and its children one in the other. */
static void child(int depth) {
    pid_t next = 0;
    for (; next == 0; depth--) {
        memset(&own, 0, sizeof own);
        for (int i = 0; i < 1000; i++)
            give(take((size_t)i * 7));
        if (depth == 0)
            break;
        next = fork();
    }
    if (next)
        wait_for(next);
    print_own();
    _exit(0);
}

static void *fork_in_thread(void *nothing) {
    warm();
    give(take(10));
    pid_t pid = fork();
    if (pid == 0)
        child(1);
    wait_for(pid);
    give(take(10));
    return nothing;
}

static void execute(const char *what) {
    char *command[] = {arguments[0], arguments[1], (char *)what, NULL};
    execv(arguments[0], command);
    _exit(1);
}

static void spread(void) {
    for (int i = 0; i < 10; i++) {
        pid_t pid = fork();
        if (pid == 0)
            child(i % 3);
        wait_for(pid);
    }
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, fork_in_thread, NULL) == 0);
    pthread_join(thread, NULL);
    pid_t pid = fork();
    if (pid == 0) {
        memset(&own, 0, sizeof own);
        give(take(40));
        print_own();
        execute("leaf");
    }
    wait_for(pid);
    pid = vfork();
    if (pid == 0)
        execute("leaf");
    wait_for(pid);
}

static void leave_no_trace(void) {
    clearenv();
    for (int file = 3; file < 1024; file++)
        close(file);
    CHECK(chdir("/proc/self") == 0);
    (void)!chroot("/proc/self/fdinfo");
    (void)!setuid(65534);
}

int main(int argc, char **argv) {
    begin(argc, argv);
    arguments = argv;
    if (argc > 2 && strcmp(argv[2], "leaf") == 0) {
        give(take(70));
    } else if (argc > 2 && strcmp(argv[2], "bare") == 0) {
        give(take(50));
        leave_no_trace();
        for (int i = 0; i < 100000; i++)
            give(take(1000));
        pthread_t thread;
        ends = 1;
        CHECK(pthread_create(&thread, NULL, churn, NULL) == 0);
        pthread_join(thread, NULL);
    } else {
        pthread_t threads[2];
        for (int i = 0; i < 2; i++)
            CHECK(pthread_create(&threads[i], NULL, churn, NULL) == 0);
        spread();
        ends = 1;
        for (int i = 0; i < 2; i++)
            pthread_join(threads[i], NULL);
    }
    print_own();
    /* Without stdio's and the library's last work. */
    _exit(0);
}
