/*
 * Signal handlers that count and allocate, also on a stack of their own, and that leave by longjmp; a stack of the
 * program's own; and a handler that forks.
 */
#include "../../include/allocwall_mark.h"
#include "own.h"
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <ucontext.h>

static sigjmp_buf back;

static void mark(int signal) {
    (void)signal;
    if (works) {
        allocwall_unit();
        ADD(marks, 1);
    }
}

static void allocate(int signal) {
    (void)signal;
    give(take(3000));
}

static void jump(int signal) {
    give(take(10));
    siglongjmp(back, signal);
}

static void split(int signal) {
    (void)signal;
    pid_t pid = fork();
    if (pid == 0) {
        memset(&own, 0, sizeof own);
        give(take(4000));
        print_own();
        _exit(0);
    }
    CHECK(waitpid(pid, NULL, 0) == pid);
    give(take(20));
}

static void on(int signal, void (*handler)(int), int flags) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    CHECK(sigaction(signal, &action, NULL) == 0);
}

static ucontext_t outer, inner;

static void coroutine(void) {
    for (int i = 0; i < 100; i++) {
        give(take(100000));
        swapcontext(&inner, &outer);
    }
}

/* Directly below a page that may not be read. */
static void *guarded(size_t bytes) {
    char *block = mmap(NULL, bytes + 65536, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(block != MAP_FAILED && mprotect(block, bytes, PROT_READ | PROT_WRITE) == 0);
    return block;
}

int main(int argc, char **argv) {
    begin(argc, argv);
    on(SIGALRM, mark, SA_RESTART);
    struct itimerval often = {{0, 200}, {0, 200}}, never = {{0, 0}, {0, 0}};
#ifdef __x86_64__
    /* The timer interrupts the counting itself. */
    setitimer(ITIMER_REAL, &often, NULL);
#endif
    for (int i = 0; i < 3000000; i++)
        mark(0);
    setitimer(ITIMER_REAL, &never, NULL);
    (void)often;
    on(SIGUSR1, allocate, 0);
    on(SIGUSR2, jump, SA_NODEFER);
    for (int i = 0; i < 1000; i++) {
        give(take(10));
        raise(SIGUSR1);
        if (!sigsetjmp(back, 1))
            raise(SIGUSR2);
    }
    stack_t other = {.ss_sp = guarded(65536), .ss_size = 65536};
    CHECK(sigaltstack(&other, NULL) == 0);
    on(SIGUSR1, allocate, SA_ONSTACK);
    for (int i = 0; i < 1000; i++)
        raise(SIGUSR1);
    on(SIGUSR1, split, 0);
    raise(SIGUSR1);
    CHECK(getcontext(&inner) == 0);
    inner.uc_stack.ss_sp = guarded(65536);
    inner.uc_stack.ss_size = 65536;
    makecontext(&inner, coroutine, 0);
    for (int i = 0; i < 100; i++)
        swapcontext(&outer, &inner);
    print_own();
    return 0;
}
