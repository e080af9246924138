/*
 * Pre-touch: moves the first touches of a process's heap to before its main. The library is preloaded;
 * ALLOCWALL_PREFAULT is the number of bytes.
 *
 * The constructor allocates that many bytes from the process's malloc, in blocks of 64 KiB, touches each page and
 * frees all blocks. Before that it tells glibc to keep freed memory (mallopt(3)). So the program's later allocations
 * use pages that are already resident.
 *
 * It prints nothing and never makes the program fail. A value that is not a plain decimal number, or that exceeds the
 * machine's memory or the process's limits, has no effect. The resident set shows whether it worked.
 *
 * Limits:
 * - It works only for glibc's main arena. A thread with an arena of its own still pays for first touches there.
 * - Allocations beyond the touched heap pay for first touches as usual. glibc's mmap threshold is set to its largest
 *   value (32 MiB on 64 bits), so that blocks below that grow the heap, and stay in it, too.
 * - Another allocator decides by its own policy how long it keeps freed pages.
 * - Each program that inherits the environment does it again: a shell that starts the program pays too.
 * - Freed memory at the top of the heap is not returned to the kernel.
 * - Heap settings in the environment (GLIBC_TUNABLES, MALLOC_TRIM_THRESHOLD_, MALLOC_TOP_PAD_, MALLOC_MMAP_THRESHOLD_)
 *   are not changed.
 *
 * C, linked against no library: no thread-local storage, no start-up code, no required version of the C library.
 */

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/auxv.h>
#include <sys/resource.h>
#include <unistd.h>

/* glibc has it; musl does not. */
#pragma weak mallopt

/* 64 KiB minus glibc's block header, so that the blocks take no more memory than requested. */
#define BLOCK (((size_t)64 << 10) - 2 * sizeof(size_t))
#define LARGEST_STEP (64 << 20)
/* malloc/malloc.c of glibc: DEFAULT_TOP_PAD; DEFAULT_MMAP_THRESHOLD_MAX on 64 and on 32 bits. */
#define DEFAULT_TOP_PAD (128 << 10)
#define LARGEST_MMAP_THRESHOLD (sizeof(long) == 8 ? 32 << 20 : 512 << 10)

/* Also the value of getrlimit(2) for no limit. */
#define UNKNOWN UINT64_MAX

/* The content of a small file, with a final zero; empty if it cannot be read. */
struct text {
    char bytes[8192];
};

static void read_text(struct text *text, const char *path) {
    size_t length = 0;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file >= 0) {
        ssize_t got;
        while (length < sizeof text->bytes - 1 &&
               (got = read(file, text->bytes + length, sizeof text->bytes - 1 - length)) > 0)
            length += (size_t)got;
        close(file);
    }
    text->bytes[length] = 0;
}

/* The text after a prefix, or null. */
static const char *after(const char *text, const char *prefix) {
    while (*prefix)
        if (*text++ != *prefix++)
            return NULL;
    return text;
}

static const char *next_line(const char *text) {
    while (*text && *text != '\n')
        text++;
    return *text ? text + 1 : NULL;
}

/* The number at the start of a text; UNKNOWN if there is no digit, or if it overflows. */
static uint64_t number(const char *text) {
    uint64_t value = 0;
    if (*text < '0' || *text > '9')
        return UNKNOWN;
    for (; *text >= '0' && *text <= '9'; text++)
        if (__builtin_mul_overflow(value, (uint64_t)10, &value) ||
            __builtin_add_overflow(value, (uint64_t)(*text - '0'), &value))
            return UNKNOWN;
    return value;
}

/* The number in the line that starts with a key. */
static uint64_t field(const struct text *text, const char *key) {
    for (const char *line = text->bytes; line; line = next_line(line)) {
        const char *value = after(line, key);
        if (value) {
            while (*value == ' ')
                value++;
            return number(value);
        }
    }
    return UNKNOWN;
}

static uint64_t less(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

/* The unused part of a limit. An unknown or unset limit leaves everything. */
static uint64_t left(uint64_t limit, uint64_t used) {
    if (limit == UNKNOWN)
        return UNKNOWN;
    return limit > used && used != UNKNOWN ? limit - used : 0;
}

/* proc_meminfo(5) */
static uint64_t left_on_the_machine(struct text *text) {
    read_text(text, "/proc/meminfo");
    uint64_t kib = field(text, "MemAvailable:");
    return kib == UNKNOWN ? 0 : kib << 10;
}

/* getrlimit(2); proc_pid_statm(5): the first field is the address space, the sixth data and stack, in pages. */
static uint64_t left_to_the_process(struct text *text, size_t page) {
    struct rlimit limit;
    uint64_t most = UNKNOWN;
    read_text(text, "/proc/self/statm");
    const char *at = text->bytes;
    for (int column = 1; column <= 6; column++) {
        uint64_t pages = number(at);
        if (pages == UNKNOWN)
            return 0;
        int resource = column == 1 ? RLIMIT_AS : column == 6 ? RLIMIT_DATA : -1;
        if (resource >= 0) {
            if (getrlimit(resource, &limit) != 0)
                return 0;
            most = less(most, left(limit.rlim_cur, pages * page));
        }
        while (*at && *at != ' ')
            at++;
        while (*at == ' ')
            at++;
    }
    return most;
}

/* The file names of one version of control groups. */
struct names {
    const char *root, *limit, *used, *reclaimable;
};
static const struct names unified = {"/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file "};
static const struct names legacy = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                                    "total_inactive_file "};

/* Appends to a path; 0 if it does not fit. */
static size_t append(char *path, size_t size, size_t length, const char *more) {
    while (*more && *more != '\n' && length < size - 1)
        path[length++] = *more++;
    path[length] = 0;
    return *more && *more != '\n' ? 0 : length;
}

static uint64_t group_number(struct text *text, char *path, size_t size, size_t folder, const char *file,
                             const char *key) {
    size_t length = append(path, size, folder, "/");
    if (!length || !append(path, size, length, file))
        return UNKNOWN;
    read_text(text, path);
    return key ? field(text, key) : number(text->bytes);
}

/* The smallest rest along one path, from the process's own group to the root, because each group's limit applies. */
static uint64_t left_on_path(struct text *text, const struct names *names, const char *group) {
    char path[4096];
    uint64_t most = UNKNOWN;
    size_t root = append(path, sizeof path, 0, names->root);
    size_t end = append(path, sizeof path, root, group);
    /* In a container the path may be the host's, which does not exist here; the visible root is then its own group. */
    for (;;) {
        uint64_t limit = group_number(text, path, sizeof path, end, names->limit, NULL);
        if (limit != UNKNOWN) {
            uint64_t used = group_number(text, path, sizeof path, end, names->used, NULL);
            uint64_t reclaimable = group_number(text, path, sizeof path, end, "memory.stat", names->reclaimable);
            if (reclaimable != UNKNOWN && used != UNKNOWN)
                used = left(used, reclaimable);
            most = less(most, left(limit, used));
        }
        if (end <= root)
            return most;
        while (end > root && path[end - 1] != '/')
            end--;
        end = end > root ? end - 1 : root;
    }
}

/* cgroups(7): each line has number, controllers and path. */
static uint64_t left_to_the_group(struct text *text) {
    struct text groups;
    uint64_t most = UNKNOWN;
    read_text(&groups, "/proc/self/cgroup");
    for (const char *line = groups.bytes; line && *line; line = next_line(line)) {
        const char *controllers = line;
        while (*controllers && *controllers != ':' && *controllers != '\n')
            controllers++;
        if (*controllers != ':')
            continue;
        const char *group = after(controllers, "::");
        if (group) {
            most = less(most, left_on_path(text, &unified, group));
            continue;
        }
        while (*controllers == ':' || *controllers == ',') {
            const char *rest = after(++controllers, "memory");
            if (rest && (*rest == ':' || *rest == ',')) {
                while (*rest && *rest != ':' && *rest != '\n')
                    rest++;
                if (*rest == ':')
                    most = less(most, left_on_path(text, &legacy, rest + 1));
                break;
            }
            while (*controllers && *controllers != ':' && *controllers != ',' && *controllers != '\n')
                controllers++;
            if (*controllers == ':')
                break;
        }
    }
    return most;
}

/* The number of bytes to touch; 0 for none. */
static size_t wanted(size_t page) {
    struct text text;
    const char *value = getenv("ALLOCWALL_PREFAULT");
    if (!value)
        return 0;
    for (const char *at = value; *at; at++)
        if (*at < '0' || *at > '9')
            return 0;
    uint64_t bytes = number(value);
    if (bytes == UNKNOWN || bytes > SIZE_MAX / 2)
        return 0;
    uint64_t most = less(left_on_the_machine(&text), less(left_to_the_process(&text, page), left_to_the_group(&text)));
    /* An eighth stays free for the program and other processes. */
    return bytes <= most - most / 8 ? (size_t)bytes : 0;
}

static int set_by_environment(const char *tunable, const char *variable) {
    const char *tunables = getenv("GLIBC_TUNABLES");
    if (getenv(variable))
        return 1;
    for (; tunables && *tunables; tunables++)
        if (after(tunables, tunable))
            return 1;
    return 0;
}

static void option(int name, int value, const char *tunable, const char *variable) {
    if (mallopt && !set_by_environment(tunable, variable))
        mallopt(name, value);
}

static void top_pad(size_t bytes) {
    option(M_TOP_PAD, (int)bytes, "glibc.malloc.top_pad", "MALLOC_TOP_PAD_");
}

static void grow(size_t bytes, size_t page) {
    /* The first word of each block is a pointer to the previous block. */
    void **last = NULL;
    for (size_t done = 0; done < bytes; done += BLOCK) {
        void **block = malloc(BLOCK);
        if (!block)
            break;
        volatile char *at = (volatile char *)block;
        for (size_t offset = 0; offset < BLOCK; offset += page)
            at[offset] = 0;
        at[BLOCK - 1] = 0;
        *block = last;
        last = block;
    }
    /* From the top of the heap down, so that each block joins the free memory above it. */
    while (last) {
        void **before = *last;
        free(last);
        last = before;
    }
}

__attribute__((constructor)) static void prefault(void) {
    int before = errno;
    size_t page = getauxval(AT_PAGESZ);
    if (page && !getauxval(AT_SECURE)) {
        size_t bytes = wanted(page);
        if (bytes) {
            /* -1 disables trimming (mallopt(3)). */
            option(M_TRIM_THRESHOLD, -1, "glibc.malloc.trim_threshold", "MALLOC_TRIM_THRESHOLD_");
            option(M_MMAP_THRESHOLD, LARGEST_MMAP_THRESHOLD, "glibc.malloc.mmap_threshold",
                   "MALLOC_MMAP_THRESHOLD_");
            /* Grow in large steps, so that huge pages fit if the kernel provides them, and to little more than is
             * touched. The extra block is for what the heap already holds. Later growth is as usual. */
            top_pad(less(bytes + BLOCK, LARGEST_STEP));
            grow(bytes, page);
            top_pad(DEFAULT_TOP_PAD);
        }
    }
    errno = before;
}
