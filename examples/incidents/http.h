// HTTP/1.1 for the services of this folder, on 127.0.0.1 only: a thread for each connection, and the same for every path. Include it
// first: it defines _GNU_SOURCE.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum { HEAD = 4096, ROOM = 64 * 1024 };

// Writes the body of an answer, at most ROOM bytes, and returns its length. Each service has its own.
static size_t answer(char *body);

static void *serve_connection(void *given) {
    int connection = (int)(intptr_t)given;
    char head[HEAD + 1], body[ROOM];
    size_t have = 0;
    for (;;) {
        ssize_t got = read(connection, head + have, HEAD - have);
        // The end of the connection, an error, or a head that is too long.
        if (got <= 0)
            break;
        have += (size_t)got;
        head[have] = 0;
        char *end = strstr(head, "\r\n\r\n");
        if (!end)
            continue;
        // The body of a request is read and dropped. A client sends its next request after the answer.
        const char *field = strcasestr(head, "\r\nContent-Length:");
        size_t here = have - (size_t)(end + 4 - head);
        size_t left = field && field < end ? strtoul(field + 17, NULL, 10) : 0;
        left -= left < here ? left : here;
        while (left > 0 && (got = read(connection, body, left < ROOM ? left : ROOM)) > 0)
            left -= (size_t)got;
        if (left > 0)
            break;
        have = 0;
        size_t length = answer(body);
        char fields[128];
        int n = snprintf(fields, sizeof fields,
                         "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %zu\r\n\r\n", length);
        struct iovec parts[] = {{fields, (size_t)n}, {body, length}};
        if (writev(connection, parts, 2) != (ssize_t)((size_t)n + length))
            break;
    }
    close(connection);
    return NULL;
}

// Prints the port, and serves until the process is ended. Port 0: the system chooses one.
static int serve(long port) {
    if (port < 0 || port > UINT16_MAX) {
        fputs("--port is a number from 0 to 65535\n", stderr);
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener, (struct sockaddr *)&address, size) || listen(listener, 128) ||
        getsockname(listener, (struct sockaddr *)&address, &size)) {
        perror("cannot listen on 127.0.0.1");
        return 1;
    }
    printf("listening on 127.0.0.1:%d\n", ntohs(address.sin_port));
    fflush(stdout);
    for (;;) {
        int connection = accept(listener, NULL, NULL);
        pthread_t thread;
        if (connection < 0) {
            // Too many open files, or a client that has gone.
            usleep(1000);
            continue;
        }
        setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        if (pthread_create(&thread, NULL, serve_connection, (void *)(intptr_t)connection))
            close(connection);
        else
            pthread_detach(thread);
    }
}

// An option with a number after it, or one that is 1 if it is given.
struct setting {
    const char *name;
    long *value;
    int takes_number;
};

// The last setting has no name.
static void read_settings(int argc, char **argv, const struct setting *known) {
    for (int i = 1; i < argc; i++) {
        const struct setting *one = known;
        while (one->name && strcmp(one->name, argv[i]) != 0)
            one++;
        const char *name = argv[i];
        char *rest = NULL;
        if (one->name && !one->takes_number) {
            *one->value = 1;
            continue;
        }
        if (one->name && i + 1 < argc)
            *one->value = strtol(argv[++i], &rest, 10);
        if (!rest || *rest) {
            fprintf(stderr, "bad option, or no number after it: %s\n", name);
            exit(2);
        }
    }
}

static inline void fail(const char *what) {
    perror(what);
    exit(1);
}
