/* Runs a command and writes what the command itself used, without the tool that runs this program.
 *
 *     timed RESULT SECONDS PROBE CMD...
 *
 * SECONDS: the command is ended after this time; 0: it runs to its end. PROBE: `-`, or `malloc` for a uprobe on malloc of the C library,
 * by perf_event_open(2); that needs this program to be linked dynamically. All threads of the command run into the probe, but only the
 * calls of the first one are counted: the kernel can't pass an event of this kind on to a new thread, because it would read the path
 * again, from the memory of the command.
 *
 * The command's standard output goes to RESULT.out. RESULT gets one line: CPU seconds of the command and of the children that it waited
 * for, its exit status (128 + N for signal N; 0 if it was ended here), and the number of calls that were counted.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/perf_event.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void fail(const char *what) {
    perror(what);
    exit(125);
}

/* The file with malloc, and its place there. */
static uint64_t find_malloc(char *path) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[4400];
    uint64_t address = (uintptr_t)malloc;
    while (maps && fgets(line, sizeof line, maps)) {
        uint64_t from, to, offset;
        if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %*s %" SCNx64 " %*s %*s %4095s", &from, &to, &offset, path) == 4 && from <= address &&
            address < to) {
            fclose(maps);
            return address - from + offset;
        }
    }
    errno = ENOENT;
    fail("malloc in /proc/self/maps");
    return 0;
}

static int probe(pid_t pid) {
    char path[4096];
    unsigned type;
    FILE *kind = fopen("/sys/bus/event_source/devices/uprobe/type", "r");
    if (!kind || fscanf(kind, "%u", &type) != 1) {
        fail("uprobes");
    }
    fclose(kind);
    struct perf_event_attr attr = {.size = sizeof attr, .type = type, .disabled = 1, .enable_on_exec = 1};
    attr.probe_offset = find_malloc(path);
    attr.uprobe_path = (uintptr_t)path;
    int fd = (int)syscall(SYS_perf_event_open, &attr, pid, -1, -1, PERF_FLAG_FD_CLOEXEC);
    if (fd < 0) {
        fail("perf_event_open of a uprobe");
    }
    return fd;
}

static void run(char **argv, const char *result, int gate) {
    char output[4096], go;
    /* If this program is killed, the command ends too. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    snprintf(output, sizeof output, "%s.out", result);
    int fd = open(output, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || dup2(fd, STDOUT_FILENO) < 0) {
        fail(output);
    }
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    if (read(gate, &go, 1) != 1) {
        _exit(125);
    }
    execvp(argv[0], argv);
    fail(argv[0]);
}

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + (double)at.tv_nsec / 1e9;
}

/* Whether the child ends within so many seconds. The wait ends early (EINTR) when this process was stopped and goes on. */
static int ends_within(const sigset_t *ended, double seconds) {
    double end = now() + seconds, left;
    while ((left = end - now()) > 0) {
        struct timespec most = {(time_t)left, (long)((left - (double)(time_t)left) * 1e9)};
        if (sigtimedwait(ended, NULL, &most) >= 0) {
            return 1;
        }
    }
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 5) {
        fprintf(stderr, "usage: timed RESULT SECONDS PROBE CMD...\n");
        return 2;
    }
    double seconds = strtod(argv[2], NULL);
    /* A child that is only stopped sends no signal. */
    sigaction(SIGCHLD, &(struct sigaction){.sa_handler = SIG_DFL, .sa_flags = SA_NOCLDSTOP}, NULL);
    sigset_t ended;
    sigemptyset(&ended);
    sigaddset(&ended, SIGCHLD);
    sigprocmask(SIG_BLOCK, &ended, NULL);
    int gate[2];
    if (pipe2(gate, O_CLOEXEC)) {
        fail("pipe");
    }
    pid_t pid = fork();
    if (pid < 0) {
        fail("fork");
    }
    if (pid == 0) {
        close(gate[1]);
        run(argv + 4, argv[1], gate[0]);
    }
    int counter = strcmp(argv[3], "-") ? probe(pid) : -1;
    if (write(gate[1], "", 1) != 1) {
        fail("pipe");
    }
    int late = seconds > 0 && !ends_within(&ended, seconds);
    if (late) {
        kill(pid, SIGTERM);
    }
    int status;
    struct rusage used;
    if (wait4(pid, &status, 0, &used) != pid) {
        fail("wait4");
    }
    uint64_t calls = 0;
    if (counter >= 0 && read(counter, &calls, sizeof calls) != sizeof calls) {
        fail("the probe's counter");
    }
    double cpu = (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) + (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
    int code = late ? 0 : WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    FILE *file = fopen(argv[1], "w");
    if (!file || fprintf(file, "%.6f %d %" PRIu64 "\n", cpu, code, calls) < 0 || fclose(file)) {
        fail(argv[1]);
    }
    return code;
}
