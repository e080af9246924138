/*
 * Counts what a program asks of its allocator. The library is preloaded. ALLOCWALL_COUNT is a directory: each process
 * (each fork and each exec makes one) writes a file of its own there. count.h describes the file. The program is asked
 * nothing and is shown nothing; a tool reads the file from outside.
 *
 * ALLOCWALL_COUNT_EVERY is the mean distance of samples in weighted bytes; 0: exact counts only. With
 * ALLOCWALL_COUNT_TRACES=1 all calls of some milliseconds are kept in their order, now and then. Without
 * ALLOCWALL_COUNT all calls are passed on, and nothing else is done.
 *
 * This code runs inside somebody else's process. So:
 * - The path of a usual call takes no lock, no atomic operation and no system call, and allocates nothing.
 * - It never allocates, and keeps no file descriptor. The program may close all of them, or change its root or user.
 * - System calls are made directly, so errno stays what the allocator made it.
 * - No store goes to a page of the file that the file system may have no space for: the kernel is made to write there
 *   first, and reports an error where a store would be a SIGBUS (touch()).
 * - No byte of another stack is read that could vanish meanwhile (copy_stack()).
 * - After a fork the child has to start anew before it counts: what belongs to one process lies in pages that the
 *   kernel clears in the child (MADV_WIPEONFORK, Linux 4.14).
 * - The next definitions are found in the tables of the loaded files, not with dlsym(3), which allocates, keeps an
 *   error for dlerror(3), and waits for a lock that dlopen(3) holds while it runs constructors.
 *
 * Limits:
 * - A program that contains an allocator doesn't call this library (COUNT_BYPASSED).
 * - A thread without a slot of its own (count.h) counts with atomic operations, which is slower.
 * - A process that may no longer open files in the directory, and then forks, has no file for its child.
 * - There is no file outside of a tmpfs, or where less than a quarter of it is free, and none after the tool has ended.
 *   Where the tool has given all large files away, a process has exact counts only (COUNT_NO_ROOM).
 * - With mlockall(2) a process locks its whole file, up to COUNT_TRACED_FILE_BYTES, and all of it is allocated. Under a small
 *   RLIMIT_MEMLOCK that call may fail.
 * - Functions that have no hook (mi_free, sdallocx, __libc_free) don't count. A followed block that they free is taken
 *   for one in use. Its entry ends when the next block at its address is followed, or freed: then the event of that
 *   free has the size and age of the block before it.
 * - A signal handler that interrupts the first call of a thread, and allocates, may cost one slot of the file. Where a
 *   handler forks and interrupts the counting itself, that call counts in the parent, in the child, or in both.
 * - A C program that loads plugins of C++: the first file with operators new and delete serves all of them, as the
 *   loader doesn't say which file would serve which. If that is a plugin with operators of its own, and it is unloaded,
 *   then blocks that other plugins still have from it cannot be freed (operator_of_late_library()).
 * - A sandbox that kills its process at unusual system calls may do so for rt_sigprocmask(2) and gettid(2), and for
 *   statfs(2), open(2), read(2) and mmap(2) at the first call after a fork.
 * - Where malloc is replaced by any library, musl's loader doesn't give its own unused pages to the heap.
 * - There is no trace where the allocator calls its own functions through the loader (`nests`).
 * - A program that forbids itself to read the clock (PR_SET_TSC) after its start is killed at the next sample.
 *
 * C, linked against no library, and with no required version of the C library.
 */

#define _GNU_SOURCE
#include "count.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#if !defined(__LP64__) || !(defined(__x86_64__) || defined(__aarch64__))
#error "only for 64 bits, on x86_64 and aarch64"
#endif

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

/* Not every C library has them, or only in a library that the program may not load. */
#pragma weak environ
#pragma weak getauxval
#pragma weak gnu_get_libc_version
#pragma weak pthread_key_create
#pragma weak pthread_setspecific
#pragma weak __errno_location
#pragma weak __register_atfork
const char *gnu_get_libc_version(void);
int __register_atfork(void (*)(void), void (*)(void), void (*)(void), void *);

/* Each at the start of a cache line: the shortest paths are some 20 instructions. */
#define HOOK __attribute__((visibility("default"), aligned(64)))
#define OUTLINED __attribute__((noinline))
#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)
#define load(from) __atomic_load_n(from, __ATOMIC_ACQUIRE)
#define peek(from) __atomic_load_n(from, __ATOMIC_RELAXED)
#define store(to, value) __atomic_store_n(to, value, __ATOMIC_RELEASE)
#define increase(at, by) __atomic_fetch_add(at, by, __ATOMIC_RELAXED)
/* As a signal handler of the same thread sees it. */
#define in_order() __atomic_signal_fence(__ATOMIC_SEQ_CST)
#define swap(at, old, new) __atomic_compare_exchange_n(at, old, new, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)

#define PER_CALL 1024
#define DEFAULT_EVERY (512 << 10)
#define MOST_EVERY ((uint64_t)1 << 40)
#define WIDEST_INTERVAL ((uint64_t)1 << 30)
#define NEVER (INT64_MAX / 2)
/* From this size on, a call takes long enough to see its result before it is counted. */
#define LARGE ((size_t)1 << 20)
/* A process with less address space gets no room for samples. */
#define ROOMY ((uint64_t)4 << 30)
/* Of all page sizes: 4 KiB is the smallest, 64 KiB the largest. */
#define PAGE 4096
#define LARGEST_PAGE 65536
/* No thread's stack is larger, as far as it is copied. */
#define FARTHEST ((uintptr_t)64 << 20)
/* Files of one process ID: execs, and processes of other PID namespaces. */
#define MOST_FILES 1000
/* f_type of a file system in memory: statfs(2). */
#define TMPFS 0x01021994

/* ---- the machine ------------------------------------------------------------------------------------------------- */

/* Returns a negative errno. */
static long system_call(long number, long a, long b, long c, long d, long e, long f) {
#ifdef __x86_64__
    long result;
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory", "cc");
    return result;
#else
    register long x8 __asm__("x8") = number;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    register long x4 __asm__("x4") = e;
    register long x5 __asm__("x5") = f;
    __asm__ volatile("svc #0"
                     : "+r"(x0)
                     : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
                     : "memory", "cc");
    return x0;
#endif
}

/* After all earlier instructions. */
static uint64_t ticks(void) {
#ifdef __x86_64__
    uint32_t low, high;
    __asm__ volatile("lfence\n\trdtsc" : "=a"(low), "=d"(high)::"memory");
    return (uint64_t)high << 32 | low;
#else
    uint64_t value;
    __asm__ volatile("isb\n\tmrs %0, cntvct_el0" : "=r"(value)::"memory");
    return value;
#endif
}

/* 0: unknown. */
static uint64_t ticks_per_second(void) {
#ifdef __x86_64__
    return 0;
#else
    uint64_t value;
    __asm__("mrs %0, cntfrq_el0" : "=r"(value));
    return value;
#endif
}

static uintptr_t thread_pointer(void) {
    uintptr_t value;
#ifdef __x86_64__
    __asm__("movq %%fs:0, %0" : "=r"(value));
#else
    __asm__("mrs %0, tpidr_el0" : "=r"(value));
#endif
    return value;
}

/* In the thread that owns the counter. On x86_64 in one instruction, so that no signal handler comes in between. */
static inline void bump(uint64_t *counter, uint64_t by) {
#ifdef __x86_64__
    __asm__ volatile("addq %1, %0" : "+m"(*counter) : "er"(by) : "cc");
#else
    *(volatile uint64_t *)counter += by;
#endif
}

/* Subtracts, and returns whether the rest is negative. */
static inline int falls_below_zero(int64_t *rest, int64_t by) {
#ifdef __x86_64__
    int negative;
    __asm__ volatile("subq %2, %0" : "+m"(*rest), "=@ccs"(negative) : "er"(by));
    return negative;
#else
    return (*rest -= by) < 0;
#endif
}

/* The registers that a function must preserve, and where they belong to: as in count.h. */
static inline void save_registers(uint64_t *to) {
#ifdef __x86_64__
    __asm__ volatile("leaq 0f(%%rip), %%rax\n"
                     "0:\tmovq %%rax, (%0)\n\t"
                     "movq %%rsp, 8(%0)\n\t"
                     "movq %%rbp, 16(%0)\n\t"
                     "movq %%rbx, 24(%0)\n\t"
                     "movq %%r12, 32(%0)\n\t"
                     "movq %%r13, 40(%0)\n\t"
                     "movq %%r14, 48(%0)\n\t"
                     "movq %%r15, 56(%0)"
                     :
                     : "r"(to)
                     : "rax", "memory");
#else
    __asm__ volatile("adr x9, 0f\n"
                     "0:\tmov x10, sp\n\t"
                     "stp x9, x10, [%0]\n\t"
                     "stp x19, x20, [%0, #16]\n\t"
                     "stp x21, x22, [%0, #32]\n\t"
                     "stp x23, x24, [%0, #48]\n\t"
                     "stp x25, x26, [%0, #64]\n\t"
                     "stp x27, x28, [%0, #80]\n\t"
                     "stp x29, x30, [%0, #96]"
                     :
                     : "r"(to)
                     : "x9", "x10", "memory");
#endif
}

/* A multiple of 8 bytes, to an aligned address. */
static void copy(void *to, const void *from, size_t bytes) {
#ifdef __x86_64__
    bytes /= 8;
    __asm__ volatile("rep movsq" : "+D"(to), "+S"(from), "+c"(bytes)::"memory");
#else
    typedef uint64_t __attribute__((may_alias)) word;
    volatile word *target = to;
    const volatile word *source = from;
    for (size_t at = 0; at < bytes / 8; at++)
        target[at] = source[at];
#endif
}

/*
 * Makes the kernel write 8 bytes, the signal mask of the thread: a page that cannot be had is then an error, and not a
 * SIGBUS. Leaves them zero. Other ways need a descriptor (fallocate) or a newer kernel (MADV_POPULATE_WRITE).
 */
static int touch(uint64_t *at) {
    if (system_call(SYS_rt_sigprocmask, SIG_BLOCK, 0, (long)at, 8, 0, 0) != 0)
        return 0;
    *(volatile uint64_t *)at = 0;
    return 1;
}

/* Returns the mask that the thread had. */
static uint64_t block_signals(void) {
    uint64_t all = ~(uint64_t)0, before = 0;
    system_call(SYS_rt_sigprocmask, SIG_SETMASK, (long)&all, (long)&before, 8, 0, 0);
    return before;
}

static void restore_signals(uint64_t before) {
    system_call(SYS_rt_sigprocmask, SIG_SETMASK, (long)&before, 0, 8, 0, 0);
}

/* The kernel reads the mask before it finds that there is no such operation. */
static int readable(uintptr_t address) {
    return system_call(SYS_rt_sigprocmask, -1, (long)address, 0, 8, 0, 0) != -EFAULT;
}

/* ---- the next definitions ---------------------------------------------------------------------------------------- */

enum {
    MALLOC,
    CALLOC,
    REALLOC,
    REALLOCARRAY,
    MEMALIGN,
    ALIGNED_ALLOC,
    POSIX_MEMALIGN,
    VALLOC,
    PVALLOC,
    USABLE_SIZE,
    FREE,
    CFREE,
    FREE_SIZED,
    FREE_ALIGNED_SIZED,
    NEW,
    NEW_ARRAY,
    NEW_NOTHROW,
    NEW_ARRAY_NOTHROW,
    NEW_ALIGNED,
    NEW_ARRAY_ALIGNED,
    NEW_ALIGNED_NOTHROW,
    NEW_ARRAY_ALIGNED_NOTHROW,
    DELETE,
    DELETE_ARRAY,
    DELETE_NOTHROW,
    DELETE_ARRAY_NOTHROW,
    DELETE_SIZED,
    DELETE_ARRAY_SIZED,
    DELETE_ALIGNED,
    DELETE_ARRAY_ALIGNED,
    DELETE_ALIGNED_NOTHROW,
    DELETE_ARRAY_ALIGNED_NOTHROW,
    DELETE_SIZED_ALIGNED,
    DELETE_ARRAY_SIZED_ALIGNED,
    FUNCTIONS
};

static const char *const names[FUNCTIONS] = {
    [MALLOC] = "malloc",
    [CALLOC] = "calloc",
    [REALLOC] = "realloc",
    [REALLOCARRAY] = "reallocarray",
    [MEMALIGN] = "memalign",
    [ALIGNED_ALLOC] = "aligned_alloc",
    [POSIX_MEMALIGN] = "posix_memalign",
    [VALLOC] = "valloc",
    [PVALLOC] = "pvalloc",
    [USABLE_SIZE] = "malloc_usable_size",
    [FREE] = "free",
    [CFREE] = "cfree",
    [FREE_SIZED] = "free_sized",
    [FREE_ALIGNED_SIZED] = "free_aligned_sized",
    [NEW] = "_Znwm",
    [NEW_ARRAY] = "_Znam",
    [NEW_NOTHROW] = "_ZnwmRKSt9nothrow_t",
    [NEW_ARRAY_NOTHROW] = "_ZnamRKSt9nothrow_t",
    [NEW_ALIGNED] = "_ZnwmSt11align_val_t",
    [NEW_ARRAY_ALIGNED] = "_ZnamSt11align_val_t",
    [NEW_ALIGNED_NOTHROW] = "_ZnwmSt11align_val_tRKSt9nothrow_t",
    [NEW_ARRAY_ALIGNED_NOTHROW] = "_ZnamSt11align_val_tRKSt9nothrow_t",
    [DELETE] = "_ZdlPv",
    [DELETE_ARRAY] = "_ZdaPv",
    [DELETE_NOTHROW] = "_ZdlPvRKSt9nothrow_t",
    [DELETE_ARRAY_NOTHROW] = "_ZdaPvRKSt9nothrow_t",
    [DELETE_SIZED] = "_ZdlPvm",
    [DELETE_ARRAY_SIZED] = "_ZdaPvm",
    [DELETE_ALIGNED] = "_ZdlPvSt11align_val_t",
    [DELETE_ARRAY_ALIGNED] = "_ZdaPvSt11align_val_t",
    [DELETE_ALIGNED_NOTHROW] = "_ZdlPvSt11align_val_tRKSt9nothrow_t",
    [DELETE_ARRAY_ALIGNED_NOTHROW] = "_ZdaPvSt11align_val_tRKSt9nothrow_t",
    [DELETE_SIZED_ALIGNED] = "_ZdlPvmSt11align_val_t",
    [DELETE_ARRAY_SIZED_ALIGNED] = "_ZdaPvmSt11align_val_t",
};

/* All arguments are in registers, and a function ignores those that it doesn't have. So one type fits all. */
typedef uintptr_t (*function)(uintptr_t a, uintptr_t b, uintptr_t c);

typedef uintptr_t (*one_argument)(uintptr_t a);

/* The next definitions. While a trace runs, `next` has functions that note a call and pass it on. */
static function next[FUNCTIONS], beyond[FUNCTIONS];

/* What the hooks of the C++ operators do. */
static enum {
    /* Nothing was looked up yet. */
    FIRST,
    /* No library that was loaded at the start has them. */
    ABSENT,
    /* As the last, but now a C++ library was loaded. Its operators are malloc and free. */
    COMPOSED,
    /* As the last, but operators of another kind. */
    SEARCHED,
    /* They call malloc and free, which count: they are passed on. */
    PASSED,
    /* They are the allocator's. */
    COUNTED,
} operators;

/* Passed on without any question; 0: the hook has to ask. */
static function passed[FUNCTIONS];

/* The next malloc is glibc's own. */
static int in_glibc;
/* malloc_usable_size() belongs to the next malloc. Another one would read where no block of its own is. */
static int knows_sizes;
/* The next malloc's library has a reallocarray, and isn't the C library. */
static int own_reallocarray;
/* The next malloc's library calls such functions through the hooks. Those calls must not count. */
static int nests;
/* COUNT_BYPASSED, COUNT_LIBC, COUNT_OPERATORS, COUNT_NO_SIZES. */
static uint32_t found_flags;
static char object_name[sizeof((struct count_header *)0)->object];

static uint32_t gnu_hash(const char *name) {
    uint32_t hash = 5381;
    while (*name)
        hash = hash * 33 + (unsigned char)*name++;
    return hash;
}

static uint32_t sysv_hash(const char *name) {
    uint32_t hash = 0;
    while (*name) {
        hash = (hash << 4) + (unsigned char)*name++;
        uint32_t top = hash & 0xf0000000;
        hash = (hash ^ top >> 24) & ~top;
    }
    return hash;
}

static int same(const char *a, const char *b) {
    while (*a && *a == *b)
        a++, b++;
    return *a == *b;
}

/* The dynamic section of a loaded file (elf(5)). */
struct tables {
    uintptr_t base;
    const ElfW(Sym) *symbols;
    const char *strings;
    const uint32_t *gnu, *sysv;
    const ElfW(Half) *versions;
    const ElfW(Rela) *relocations[2];
    size_t relocation_bytes[2];
};

static struct tables tables_of(const struct dl_phdr_info *info) {
    struct tables tables = {.base = info->dlpi_addr};
    const ElfW(Dyn) *entry = NULL;
    for (int at = 0; at < info->dlpi_phnum; at++)
        if (info->dlpi_phdr[at].p_type == PT_DYNAMIC)
            entry = (const ElfW(Dyn) *)(tables.base + info->dlpi_phdr[at].p_vaddr);
    for (; entry && entry->d_tag != DT_NULL; entry++) {
        uintptr_t value = entry->d_un.d_ptr;
        /* glibc's loader has added the base, others have not. */
        const void *at = (const void *)(value < tables.base ? value + tables.base : value);
        switch (entry->d_tag) {
        case DT_SYMTAB: tables.symbols = at; break;
        case DT_STRTAB: tables.strings = at; break;
        case DT_GNU_HASH: tables.gnu = at; break;
        case DT_HASH: tables.sysv = at; break;
        case DT_VERSYM: tables.versions = at; break;
        case DT_RELA: tables.relocations[0] = at; break;
        case DT_RELASZ: tables.relocation_bytes[0] = value; break;
        case DT_JMPREL: tables.relocations[1] = at; break;
        case DT_PLTRELSZ: tables.relocation_bytes[1] = value; break;
        }
    }
    if (!tables.symbols || !tables.strings)
        tables.gnu = tables.sysv = NULL;
    return tables;
}

/* The address if the symbol is a definition with this name that other files may use. */
static uintptr_t defined(const struct tables *tables, uint32_t at, const char *name) {
    const ElfW(Sym) *symbol = &tables->symbols[at];
    unsigned type = ELF64_ST_TYPE(symbol->st_info), binding = ELF64_ST_BIND(symbol->st_info);
    unsigned visibility = ELF64_ST_VISIBILITY(symbol->st_other);
    if (symbol->st_shndx == SHN_UNDEF || symbol->st_value == 0 || binding == STB_LOCAL ||
        (type != STT_FUNC && type != STT_NOTYPE && type != STT_GNU_IFUNC) ||
        (visibility != STV_DEFAULT && visibility != STV_PROTECTED) ||
        /* An old version, for programs that were linked with it. */
        (tables->versions && tables->versions[at] & 0x8000) || !same(tables->strings + symbol->st_name, name))
        return 0;
    uintptr_t address = tables->base + symbol->st_value;
    if (type == STT_GNU_IFUNC)
        address = ((uintptr_t(*)(unsigned long))address)(getauxval ? getauxval(AT_HWCAP) : 0);
    return address;
}

static uintptr_t find(const struct tables *tables, const char *name) {
    if (tables->gnu) {
        const uint32_t *header = tables->gnu;
        uint32_t buckets = header[0], first = header[1], words = header[2], shift = header[3];
        const uint64_t *bloom = (const uint64_t *)(header + 4);
        const uint32_t *bucket = (const uint32_t *)(bloom + words), *chain = bucket + buckets;
        uint32_t hash = gnu_hash(name);
        if (!buckets || !words)
            return 0;
        uint64_t word = bloom[hash / 64 & (words - 1)];
        if (!(word >> hash % 64 & word >> (hash >> shift) % 64 & 1))
            return 0;
        uint32_t at = bucket[hash % buckets];
        if (at < first)
            return 0;
        for (;; at++) {
            uint32_t entry = chain[at - first];
            uintptr_t address = (entry | 1) == (hash | 1) ? defined(tables, at, name) : 0;
            if (address || entry & 1)
                return address;
        }
    }
    if (tables->sysv) {
        uint32_t buckets = tables->sysv[0];
        const uint32_t *bucket = tables->sysv + 2, *chain = bucket + buckets;
        for (uint32_t at = buckets ? bucket[sysv_hash(name) % buckets] : 0; at; at = chain[at]) {
            uintptr_t address = defined(tables, at, name);
            if (address)
                return address;
        }
    }
    return 0;
}

/* Whether a file calls its own malloc or free through a reference that another file can take over. */
static int calls_through_hooks(const struct tables *tables) {
    for (int part = 0; part < 2; part++)
        for (size_t at = 0; at < tables->relocation_bytes[part] / sizeof(ElfW(Rela)); at++) {
            uint32_t symbol = (uint32_t)ELF64_R_SYM(tables->relocations[part][at].r_info);
            const char *name = tables->strings + tables->symbols[symbol].st_name;
            for (int one = MALLOC; symbol && one <= FREE_ALIGNED_SIZED; one++)
                if (one != USABLE_SIZE && same(name, names[one]))
                    return 1;
        }
    return 0;
}

/* Returns the length. */
static size_t copy_text(char *to, size_t room, const char *from) {
    size_t at = 0;
    for (; from[at] && at < room - 1; at++)
        ((volatile char *)to)[at] = from[at];
    to[at] = 0;
    return at;
}

static int is_own(const struct dl_phdr_info *info) {
    for (int at = 0; at < info->dlpi_phnum; at++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[at];
        if (part->p_type == PT_LOAD && (uintptr_t)&next - (info->dlpi_addr + part->p_vaddr) < part->p_memsz)
            return 1;
    }
    return 0;
}

struct search {
    int passed_own;
    uint32_t flags;
    function found[FUNCTIONS];
    /* Of the file in which it was found. */
    uintptr_t base[FUNCTIONS];
};

/* dl_iterate_phdr(3) goes through the files in the order in which the loader searches those of the start. */
static int search_next(struct dl_phdr_info *info, size_t size, void *data) {
    (void)size;
    struct search *search = data;
    if (is_own(info)) {
        search->passed_own = 1;
        return 0;
    }
    struct tables tables = tables_of(info);
    if (!search->passed_own) {
        if (!(search->flags & COUNT_BYPASSED) && find(&tables, names[MALLOC])) {
            search->flags |= COUNT_BYPASSED;
            copy_text(object_name, sizeof object_name, info->dlpi_name);
        }
        return 0;
    }
    int is_libc = find(&tables, "fork") != 0;
    /* Old versions of glibc's loader have a malloc for themselves. With musl, the loader is the C library. */
    if (!is_libc && getauxval && info->dlpi_addr == getauxval(AT_BASE))
        return 0;
    for (int one = 0; one < FUNCTIONS; one++) {
        uintptr_t address = search->found[one] ? 0 : find(&tables, names[one]);
        if (!address)
            continue;
        search->found[one] = (function)address;
        search->base[one] = info->dlpi_addr;
        if (one == MALLOC) {
            in_glibc = is_libc && gnu_get_libc_version;
            nests = !in_glibc && calls_through_hooks(&tables);
            if (!(search->flags & COUNT_BYPASSED)) {
                search->flags |= is_libc ? COUNT_LIBC : 0;
                copy_text(object_name, sizeof object_name, info->dlpi_name);
            }
        }
    }
    return 0;
}

/* At the first call, which is before any constructor. If two threads come here, both find the same. */
static OUTLINED void look_up(void) {
    struct search search = {0};
    dl_iterate_phdr(search_next, &search);
    if (!search.found[MALLOC] || !search.found[FREE])
        __builtin_trap();
    uintptr_t base = search.base[MALLOC];
    int have = !search.found[NEW] ? ABSENT : search.base[NEW] == base ? COUNTED : PASSED;
    for (int one = 0; one < FUNCTIONS; one++) {
        beyond[one] = search.found[one];
        if (one != MALLOC)
            next[one] = search.found[one];
        /* An allocator may have only some of the operators. The others, of the C++ library, call those, or malloc. */
        if (one >= NEW && (have == PASSED || (have == COUNTED && search.base[one] != base)))
            passed[one] = search.found[one];
    }
    own_reallocarray = search.base[REALLOCARRAY] == base && !in_glibc;
    knows_sizes = search.found[USABLE_SIZE] && search.base[USABLE_SIZE] == base;
    found_flags = search.flags | (have == COUNTED ? COUNT_OPERATORS : 0) | (knows_sizes ? 0 : COUNT_NO_SIZES);
    store(&operators, have);
    store(&next[MALLOC], search.found[MALLOC]);
}

static size_t page_size(void) {
    size_t size = getauxval ? getauxval(AT_PAGESZ) : 0;
    return size ? size : PAGE;
}

static uintptr_t out_of_memory(void) {
    if (__errno_location)
        *__errno_location() = ENOMEM;
    return 0;
}

static int is_power_of_two(uintptr_t value) {
    return value && (value & (value - 1)) == 0;
}

/* A function that no library has, made of others. A program can have found it only here, or by its name. */
static OUTLINED uintptr_t composed(unsigned what, uintptr_t a, uintptr_t b, uintptr_t c) {
    uintptr_t size, block;
    switch (what) {
    case CALLOC:
    case REALLOC:
    case USABLE_SIZE:
        return 0;
    case REALLOCARRAY:
        return next[REALLOC] && !__builtin_mul_overflow(b, c, &size) ? next[REALLOC](a, size, 0) : out_of_memory();
    case MEMALIGN:
        return next[ALIGNED_ALLOC] ? next[ALIGNED_ALLOC](a, b, 0) : out_of_memory();
    case ALIGNED_ALLOC:
        return next[MEMALIGN] ? next[MEMALIGN](a, b, 0) : out_of_memory();
    case POSIX_MEMALIGN:
        if (!is_power_of_two(b) || b % sizeof(void *))
            return EINVAL;
        block = next[MEMALIGN] ? next[MEMALIGN](b, c, 0) : 0;
        if (!block)
            return ENOMEM;
        *(uintptr_t *)a = block;
        return 0;
    case PVALLOC:
        if (__builtin_add_overflow(a, page_size() - 1, &a))
            return out_of_memory();
        a &= ~(page_size() - 1);
        __attribute__((fallthrough));
    case VALLOC:
        return next[MEMALIGN] ? next[MEMALIGN](page_size(), a, 0) : out_of_memory();
    case NEW_ALIGNED:
    case NEW_ARRAY_ALIGNED:
    case NEW_ALIGNED_NOTHROW:
    case NEW_ARRAY_ALIGNED_NOTHROW:
        return next[MEMALIGN] ? next[MEMALIGN](b, a, 0) : 0;
    case NEW_ARRAY:
    case NEW_NOTHROW:
    case NEW_ARRAY_NOTHROW:
        return next[NEW](a, 0, 0);
    default:
        return next[what > DELETE && next[DELETE] ? DELETE : FREE](a, 0, 0);
    }
}

static inline uintptr_t call(unsigned what, uintptr_t a, uintptr_t b, uintptr_t c) {
    return likely(next[what]) ? next[what](a, b, c) : composed(what, a, b, c);
}

/* ---- the state of the process and of its threads ----------------------------------------------------------------- */

enum { FRESH, STARTING, READY, FAILED };
/* Of an entry of a ring: the page is not touched; free; in use. */
enum { HOLE, IDLE, BUSY };
/* Of traces: `page.tracing`. Zero, as after a fork, is that there is none. */
enum { UNTRACED, CHANGES, RUNS };

#define CELLS 16384
#define FOLLOWED_MOST (COUNT_FOLLOWED_ENTRIES / 2)
/* A cell that so many blocks share takes no more, so that it can't overflow. */
#define CELL_MOST 200

/*
 * All of this is zero in a child after fork(2). It lies between two areas of the largest page size, so that the pages
 * hold nothing else whatever their size, and are not part of the library's file.
 */
static struct {
    char before[LARGEST_PAGE];
    struct {
        /* A thread whose own generation is the same may use its slot. 0: no thread may. */
        uint64_t generation;
        uint32_t state;
        /* That cache line is read at each call. What follows changes. */
        char apart[64];
        /* One thread goes through the followed blocks. */
        uint32_t thinning;
        /* A list of slots to use again: a number against ABA above, the index of a slot below; 0: empty. */
        uint64_t left;
        uint16_t next_left[COUNT_SLOTS];
        /* The addresses of followed blocks, by their hash. */
        uintptr_t keys[COUNT_FOLLOWED_ENTRIES];
        uint8_t touched[COUNT_FOLLOWED_ENTRIES];
        /* How many followed blocks have an address with this hash. */
        uint8_t cells[CELLS];
        uint8_t events[COUNT_EVENTS];
        uint8_t stacks[COUNT_STACKS];
        /* UNTRACED; CHANGES while a trace begins or ends; else RUNS and the place of the running trace. */
        uint32_t tracing;
        /* How many traces there were, and the position of the event with which the next one begins. */
        uint32_t traces;
        uint64_t trace_due;
        /* Which of the places have all their pages. */
        uint8_t trace_touched[COUNT_TRACES];
        /* Counts before there is a file. */
        struct count_slot early;
    } page __attribute__((aligned(64)));
    char after[LARGEST_PAGE];
} area;
#define page (area.page)

/* Never the page's. */
#define DETACHED 1

static __thread struct {
    uint64_t generation;
    struct count_slot *slot;
    /* The generation in which the thread got the slot, or in which it has none. */
    uint64_t own, without;
    /* The place on the stack of a counted call that may call hooked functions itself, and how many such calls may
     * come. An exception or longjmp(3) may skip the end of the call, so neither is trusted for long. */
    uintptr_t inside;
    uint32_t inside_left;
    uint32_t tid;
    /* The upper end of the thread's stack, and down to where it is known to have no gap. */
    uintptr_t top, low;
} self __attribute__((tls_model("initial-exec"))) = {.generation = DETACHED};

/* Set by the constructor. */
static enum { UNDECIDED, ON, OFF } decision;
static char directory[3072];
static uint64_t every = DEFAULT_EVERY;
static int wants_traces;
static uintptr_t main_top;
static pthread_key_t key;
static int has_key;

/* The file of the process. After a fork, they are the parent's until the child has its own: only used when READY. */
static uint64_t generations = DETACHED;
static struct count_header *header;
static size_t mapped_bytes;
static struct count_slot *slots;
static int sampling, has_traces;

#define PART(kind, at) ((struct kind *)((char *)header + (at)))

/* ---- the file ---------------------------------------------------------------------------------------------------- */

static uint64_t limit(int resource) {
    struct rlimit found = {0, 0};
    if (system_call(SYS_prlimit64, 0, resource, 0, (long)&found, 0, 0) != 0)
        return UINT64_MAX;
    return found.rlim_cur;
}

static size_t write_number(char *to, uint64_t value) {
    char digits[20];
    size_t count = 0;
    do
        digits[count++] = (char)('0' + value % 10);
    while (value /= 10);
    for (size_t at = 0; at < count; at++)
        to[at] = digits[count - 1 - at];
    return count;
}

/* Whether a file may be made: only in a file system in memory, where no store waits for a disk, and not in its last
 * quarter, which is left to the others that use it. */
static int may_make_file(void) {
    struct statfs place;
    return system_call(SYS_statfs, (long)directory, (long)&place, 0, 0, 0, 0) == 0 && place.f_type == TMPFS &&
           place.f_bavail >= place.f_blocks / 4;
}

/*
 * The tool keeps a FIFO open, with one byte in it for each large file that there is room for; when it removes such a
 * file, it writes one. 1: this process took a byte, or there is no FIFO. 0: the tool is gone. Negative: no room.
 */
static long take_room(char *path, size_t length) {
    char byte;
    copy_text(path + length, sizeof COUNT_ROOM, COUNT_ROOM);
    long fifo = system_call(SYS_openat, AT_FDCWD, (long)path, O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC, 0, 0, 0);
    if (fifo < 0)
        return fifo == -ENOENT ? 1 : fifo;
    long taken = system_call(SYS_read, fifo, (long)&byte, 1, 0, 0, 0);
    system_call(SYS_close, fifo, 0, 0, 0, 0, 0);
    return taken;
}

/* Makes PID-N for the first N that is free. The path has the directory, of this length. A negative errno, or the
 * descriptor. */
static long create(char *path, size_t start, uint32_t pid, uint32_t *number) {
    long file = -EEXIST;
    for (*number = 0; file == -EEXIST && *number < MOST_FILES; ++*number) {
        size_t length = start + write_number(path + start, pid);
        path[length++] = '-';
        length += write_number(path + length, *number);
        path[length] = 0;
        file = system_call(SYS_openat, AT_FDCWD, (long)path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600,
                           0, 0);
        if (file >= 0)
            break;
    }
    return file;
}

/* Where the parent's file was, if that is as large: an interrupted call of the parent's thread may still use it. */
static int map(long file, size_t bytes) {
    long at = mapped_bytes == bytes ? (long)header : 0;
    if (system_call(SYS_ftruncate, file, (long)bytes, 0, 0, 0, 0) != 0)
        return 0;
    at = system_call(SYS_mmap, at, (long)bytes, PROT_READ | PROT_WRITE, MAP_SHARED | (at ? MAP_FIXED : 0), file, 0);
    if (at < 0 && at > -4096)
        return 0;
    system_call(SYS_madvise, at, (long)bytes, MADV_DONTDUMP, 0, 0, 0);
    /* Where the file system is mounted with huge=always, one counter would take 2 MiB. */
    system_call(SYS_madvise, at, (long)bytes, MADV_NOHUGEPAGE, 0, 0, 0);
    header = (struct count_header *)at;
    mapped_bytes = bytes;
    return 1;
}

/* On aarch64 since Linux 6.12. */
static int may_read_clock(void) {
    int mode = 0;
    return system_call(SYS_prctl, PR_GET_TSC, (long)&mode, 0, 0, 0, 0) != 0 || mode != PR_TSC_SIGSEGV;
}

static void describe(uint32_t pid, uint32_t number, uint32_t flags) {
    header->version = COUNT_VERSION;
    header->header_bytes = sizeof *header;
    header->pid = pid;
    header->number = number;
    header->parent = (uint32_t)system_call(SYS_getppid, 0, 0, 0, 0, 0, 0);
#ifdef __x86_64__
    header->machine = COUNT_X86_64;
#else
    header->machine = COUNT_AARCH64;
#endif
    header->flags = flags;
    header->classes = COUNT_CLASSES;
    header->file_bytes = mapped_bytes;
    header->slots_at = (uint64_t)((char *)slots - (char *)header);
    header->slots = mapped_bytes < COUNT_FILE_BYTES ? COUNT_FEW_SLOTS : COUNT_SLOTS;
    header->slot_bytes = sizeof *slots;
    header->slots_used = 1;
    header->per_call = PER_CALL;
    if (sampling) {
        header->every = every;
        header->events_at = COUNT_EVENTS_AT;
        header->events = COUNT_EVENTS;
        header->stacks_at = COUNT_STACKS_AT;
        header->stacks = COUNT_STACKS;
        header->followed_at = COUNT_FOLLOWED_AT;
        header->followed = COUNT_FOLLOWED_ENTRIES;
    }
    if (has_traces) {
        header->traces_at = COUNT_FILE_BYTES;
        header->trace_calls = COUNT_TRACED;
    }
    header->call_bytes = sizeof(struct count_call);
    header->event_bytes = sizeof(struct count_event);
    header->stack_bytes = sizeof(struct count_stack);
    header->followed_bytes = sizeof(struct count_followed);
    header->events_next = header->stacks_next = COUNT_FIRST;
    if (!(flags & COUNT_NO_CLOCK)) {
        struct timespec now = {0, 0};
        header->ticks_per_second = ticks_per_second();
        header->clock_cost = UINT64_MAX;
        for (int times = 0; times < 16; times++) {
            uint64_t start = ticks(), cost = ticks() - start;
            if (cost < header->clock_cost)
                header->clock_cost = cost;
        }
        header->start_ticks = ticks();
        system_call(SYS_clock_gettime, CLOCK_MONOTONIC, (long)&now, 0, 0, 0, 0);
        header->start_ns = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
    }
    copy_text(header->object, sizeof header->object, object_name);
    system_call(SYS_readlinkat, AT_FDCWD, (long)"/proc/self/exe", (long)header->program, sizeof header->program - 1, 0,
                0);
    long command = system_call(SYS_openat, AT_FDCWD, (long)"/proc/self/cmdline", O_RDONLY | O_CLOEXEC, 0, 0, 0);
    if (command >= 0) {
        system_call(SYS_read, command, (long)header->command, sizeof header->command - 1, 0, 0, 0);
        system_call(SYS_close, command, 0, 0, 0, 0, 0);
    }
    slots->state = COUNT_SLOT_USED;
}

static int make_file(void) {
    /* Only one thread comes here, perhaps on a signal handler's small stack. */
    static char path[sizeof directory + 64];
    uint32_t number, pid = (uint32_t)system_call(SYS_getpid, 0, 0, 0, 0, 0, 0);
    /* To exceed RLIMIT_FSIZE raises a signal. */
    uint64_t most = limit(RLIMIT_FSIZE);
    size_t bytes = wants_traces && !nests && most >= COUNT_TRACED_FILE_BYTES ? COUNT_TRACED_FILE_BYTES : COUNT_FILE_BYTES;
    int large = most >= bytes && limit(RLIMIT_AS) >= ROOMY;
    if (most < COUNT_SMALL_FILE_BYTES || !may_make_file())
        return 0;
    size_t length = copy_text(path, sizeof directory, directory);
    path[length++] = '/';
    long room = large ? take_room(path, length) : -EAGAIN;
    if (room == 0)
        return 0;
    large = room == 1;
    long file = create(path, length, pid, &number);
    if (file < 0)
        return 0;
    large = large && map(file, bytes);
    int mapped = large || map(file, COUNT_SMALL_FILE_BYTES);
    system_call(SYS_close, file, 0, 0, 0, 0, 0);
    slots = PART(count_slot, large ? COUNT_SLOTS_AT : sizeof *header);
    if (!mapped || !touch(&header->reserved2[sizeof header->reserved2 / 8 - 1]) || !touch(&slots->touched)) {
        system_call(SYS_unlinkat, AT_FDCWD, (long)path, 0, 0, 0, 0);
        return 0;
    }
    int clock = may_read_clock();
    sampling = every && large && clock;
    has_traces = sampling && bytes == COUNT_TRACED_FILE_BYTES;
    describe(pid, number, found_flags | (large ? 0 : COUNT_NO_ROOM) | (clock ? 0 : COUNT_NO_CLOCK));
    store(&header->magic, COUNT_MAGIC);
    return 1;
}

static void drain(void) {
    uint64_t *from = (uint64_t *)&page.early, *to = (uint64_t *)slots;
    for (size_t at = 0; at < sizeof page.early / 8; at++)
        if (peek(&from[at]))
            increase(&to[at], __atomic_exchange_n(&from[at], 0, __ATOMIC_RELAXED));
}

/* Once in each process: at its start, and at the first call after a fork. */
static OUTLINED void start(void) {
    uint32_t fresh = FRESH;
    if (!swap(&page.state, &fresh, STARTING))
        return;
    /* A signal handler must not fork now. */
    uint64_t before = block_signals();
    int made = make_file();
    if (made) {
        store(&page.generation, ++generations);
        drain();
    }
    store(&page.state, made ? READY : FAILED);
    restore_signals(before);
}

/* ---- threads ----------------------------------------------------------------------------------------------------- */

/* The next random number of a slot: xorshift64* (Vigna 2016, An experimental exploration of Marsaglia's xorshift
 * generators, scrambled). */
static uint64_t next_random(struct count_slot *slot) {
    uint64_t value = slot->random;
    value ^= value >> 12;
    value ^= value << 25;
    value ^= value >> 27;
    slot->random = value;
    return value * 0x2545f4914f6cdd1d;
}

/*
 * An exponential distance with this mean: -ln(u) * mean. The logarithm to base 2 is computed bit by bit, by squaring
 * (Knuth, The Art of Computer Programming 1, section 1.2.2), to 16 bits. The mean of all distances is right to 0.1 %.
 */
static int64_t distance(struct count_slot *slot, uint64_t mean) {
    uint64_t random = next_random(slot) | 1;
    unsigned zeros = (unsigned)__builtin_clzll(random);
    uint64_t mantissa = random << zeros >> 32, fraction = 0;
    for (int bit = 0; bit < 16; bit++) {
        mantissa = mantissa * mantissa >> 31;
        fraction <<= 1;
        if (mantissa >> 32) {
            fraction |= 1;
            mantissa >>= 1;
        }
    }
    /* -log2(u), with 16 bits after the point: from 2^-16 to 64. Then times ln(2). */
    uint64_t log = ((uint64_t)(zeros + 1) << 16) - fraction;
    return (int64_t)((mean * log >> 16) * 45426 >> 16);
}

static void draw(struct count_slot *slot) {
    slot->left = sampling ? distance(slot, every << slot->shift) : NEVER;
}

/* Pops a slot that a thread left, or takes a new one. Null: none. */
static struct count_slot *claim(void) {
    uint64_t first = load(&page.left);
    while ((uint32_t)first) {
        uint64_t rest = ((first >> 32) + 1) << 32 | peek(&page.next_left[(uint32_t)first]);
        if (swap(&page.left, &first, rest))
            return &slots[(uint32_t)first];
    }
    uint64_t used = peek(&header->slots_used);
    do
        if (used >= header->slots)
            return NULL;
    while (!swap(&header->slots_used, &used, used + 1));
    if (touch(&slots[used].touched))
        return &slots[used];
    __atomic_fetch_or(&header->flags, COUNT_NO_SPACE, __ATOMIC_RELAXED);
    return NULL;
}

static int attach(void) {
    uint64_t generation = page.generation;
    self.tid = (uint32_t)system_call(SYS_gettid, 0, 0, 0, 0, 0, 0);
    if (!self.top)
        /* A child of a thread's fork runs on that thread's stack, but then `top` is known. */
        self.top = self.tid == header->pid ? main_top : thread_pointer();
    drain();
    struct count_slot *slot = claim();
    if (!slot) {
        increase(&header->slots_shared, 1);
        self.without = generation;
        return 0;
    }
    if (!slot->random) {
        slot->random = ((uint64_t)(uintptr_t)slot << 20 ^ self.tid ^ header->start_ns) | 1;
        for (int times = 0; times < 8; times++)
            next_random(slot);
        draw(slot);
    }
    slot->since = header->flags & COUNT_NO_CLOCK ? 0 : ticks();
    slot->tid = self.tid;
    slot->threads++;
    store(&slot->state, COUNT_SLOT_USED);
    self.slot = slot;
    in_order();
    self.own = generation;
    in_order();
    self.generation = generation;
    if (has_key)
        pthread_setspecific(key, (void *)1);
    return 1;
}

/* At the end of a thread. Its other destructors may still allocate: that counts in slot 0. To wait for the last of them
 * would lose the slot of a thread whose first call comes from a destructor. */
static void leave(void *nothing) {
    (void)nothing;
    if (load(&page.state) != READY || self.own != page.generation)
        return;
    struct count_slot *slot = self.slot;
    uint32_t index = (uint32_t)(slot - slots);
    self.without = self.own;
    in_order();
    self.own = 0;
    in_order();
    self.generation = DETACHED;
    store(&slot->state, COUNT_SLOT_LEFT);
    uint64_t first = load(&page.left), changed;
    do {
        __atomic_store_n(&page.next_left[index], (uint16_t)first, __ATOMIC_RELAXED);
        changed = ((first >> 32) + 1) << 32 | index;
    } while (!swap(&page.left, &first, changed));
}

/* NOT: nothing is counted. ALONE: the slot is the thread's own. SHARED: others count there too. */
enum { NOT, ALONE, SHARED };

static OUTLINED int enter_slowly(struct count_slot **slot, int attaches) {
    if (!load(&next[MALLOC]))
        look_up();
    if (decision == OFF)
        return NOT;
    if (self.inside) {
        if ((uintptr_t)__builtin_frame_address(0) < self.inside && self.inside_left) {
            self.inside_left--;
            return NOT;
        }
        self.inside = 0;
    }
    if (load(&page.state) == FRESH && load(&decision) == ON)
        start();
    uint32_t state = load(&page.state);
    if (state == FAILED)
        return NOT;
    if (state != READY) {
        *slot = &page.early;
        return SHARED;
    }
    if (self.own == page.generation)
        self.generation = self.own;
    else if (!attaches || self.without == page.generation || !attach()) {
        *slot = slots;
        return SHARED;
    }
    *slot = self.slot;
    return ALONE;
}

static inline int is_attached(void) {
    return likely(self.generation == peek(&page.generation));
}

static inline int enter(struct count_slot **slot, int attaches) {
    if (!is_attached())
        return enter_slowly(slot, attaches);
    *slot = self.slot;
    return ALONE;
}

static inline void add(int how, uint64_t *counter, uint64_t by) {
    if (how == ALONE)
        bump(counter, by);
    else
        increase(counter, by);
}

/* Around a counted call that may call hooked functions itself: those calls don't count. No function makes more: */
#define NESTED_MOST 4
struct door {
    uintptr_t outer;
};

static inline int needs_door(unsigned what) {
    /* glibc's calls realloc. */
    return nests || what == REALLOCARRAY;
}

static inline void close_door(struct door *door, uint32_t calls) {
    door->outer = self.inside;
    self.inside_left = calls;
    self.inside = (uintptr_t)door;
    in_order();
    self.generation = DETACHED;
}

static inline void open_door(const struct door *door) {
    self.inside = door->outer;
    in_order();
    /* Where that isn't the process's, the next call sees it. */
    if (self.own > DETACHED)
        self.generation = self.own;
}

/* ---- rings ------------------------------------------------------------------------------------------------------- */

/* Gets an entry for one writer, with its page, whose last 8 bytes are `last`. 0, or a reason of COUNT_STACK_. */
static unsigned take_entry(uint8_t *state, uint64_t *last, uint64_t *other) {
    uint8_t was = load(state);
    if (was == BUSY || !swap(state, &was, BUSY))
        return COUNT_STACK_BUSY;
    if (was == IDLE || (touch(last) && (!other || touch(other))))
        return 0;
    store(state, HOLE);
    __atomic_fetch_or(&header->flags, COUNT_NO_SPACE, __ATOMIC_RELAXED);
    return COUNT_STACK_NO_SPACE;
}

static void write_event(const struct count_event *from) {
    /* As in drop(): the ring is the parent's. */
    if (load(&page.state) != READY)
        return;
    uint64_t position = increase(&header->events_next, 1);
    size_t at = position % COUNT_EVENTS;
    struct count_event *entry = PART(count_event, COUNT_EVENTS_AT) + at;
    if (take_entry(&page.events[at], (uint64_t *)(entry + 1) - 1, NULL) != 0) {
        increase(&header->events_dropped, 1);
        return;
    }
    /* A thread that was not running for a whole round would overwrite a newer one. */
    if (entry->position == 0 || entry->position < position) {
        __atomic_store_n(&entry->position, COUNT_WRITING, __ATOMIC_RELAXED);
        __atomic_thread_fence(__ATOMIC_RELEASE);
        copy((uint64_t *)entry + 1, (const uint64_t *)from + 1, sizeof *entry - 8);
        store(&entry->position, position);
    } else {
        increase(&header->events_dropped, 1);
    }
    store(&page.events[at], IDLE);
}

/* Whether the stack has no gap from this address up to the thread's top: no guard page, so no other stack. */
static int is_own_stack(uintptr_t pointer) {
    if (pointer >= self.top || self.top - pointer > FARTHEST)
        return 0;
    if (!self.low)
        self.low = self.top & -(uintptr_t)PAGE;
    for (int pages = 0; pages < 256 && self.low > pointer; pages++) {
        if (!readable(self.low - PAGE))
            return 0;
        self.low -= PAGE;
    }
    return self.low <= pointer;
}

/*
 * Copies the stack from this function up. Where it is not known to be the thread's own, the memory above may belong to
 * something else, and another thread may unmap it now: then only the page that this function itself runs on.
 */
static OUTLINED uint64_t copy_stack(void) {
    uint64_t position = increase(&header->stacks_next, 1);
    size_t at = position % COUNT_STACKS;
    struct count_stack *entry = PART(count_stack, COUNT_STACKS_AT) + at;
    uint64_t *end = (uint64_t *)(entry + 1), *half = end - PAGE / 8;
    unsigned refused = take_entry(&page.stacks[at], end - 1, half - 1);
    if (refused)
        return refused;
    if (entry->position != 0 && entry->position >= position) {
        store(&page.stacks[at], IDLE);
        return COUNT_STACK_BUSY;
    }
    __atomic_store_n(&entry->position, COUNT_WRITING, __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    save_registers(entry->registers);
    uintptr_t from = entry->registers[1];
    int own = is_own_stack(from);
    size_t length = (own ? self.top : (from | (PAGE - 1)) + 1) - from;
    entry->tid = self.tid;
    entry->flags = own ? length <= COUNT_STACK_BYTES ? COUNT_STACK_WHOLE : 0 : COUNT_STACK_FOREIGN;
    if (length > COUNT_STACK_BYTES)
        length = COUNT_STACK_BYTES;
    length &= ~(size_t)7;
    entry->length = (uint16_t)length;
    copy(entry->bytes, (const void *)from, length);
    store(&entry->position, position);
    store(&page.stacks[at], IDLE);
    return position;
}

/* ---- followed blocks --------------------------------------------------------------------------------------------- */

/* In `keys`: an entry that is being changed. No block has that address. */
#define CHANGING 1

static inline size_t cell_of(const void *block) {
    return ((uintptr_t)block >> 4) * 0x9e3779b97f4a7c15u >> 50;
}

static inline int may_be_followed(const void *block) {
    return peek(&page.cells[cell_of(block)]) != 0;
}

/* Entries in which a block can be. */
#define PROBES 16
static size_t entry_of(const void *block, size_t probe) {
    return (cell_of(block) / (CELLS / COUNT_FOLLOWED_ENTRIES) + probe) % COUNT_FOLLOWED_ENTRIES;
}

static void drop(size_t at) {
    /* A signal handler forked meanwhile, and this is the child: its table is empty, and this entry its parent's. */
    if (load(&page.keys[at]) != CHANGING)
        return;
    struct count_followed *entry = PART(count_followed, COUNT_FOLLOWED_AT) + at;
    const void *block = (const void *)entry->address;
    store(&entry->address, 0);
    __atomic_fetch_sub(&page.cells[cell_of(block)], 1, __ATOMIC_RELAXED);
    __atomic_fetch_sub(&header->following, 1, __ATOMIC_RELAXED);
    store(&page.keys[at], 0);
}

/* Follows fewer blocks from now on: half of them. */
static void thin(void) {
    uint32_t idle = 0;
    if (!swap(&page.thinning, &idle, 1))
        return;
    uint64_t follow = increase(&header->follow, 1) + 1;
    for (size_t at = 0; at < COUNT_FOLLOWED_ENTRIES; at++) {
        uintptr_t block = load(&page.keys[at]);
        struct count_followed *entry = PART(count_followed, COUNT_FOLLOWED_AT) + at;
        if (block <= CHANGING || entry->rank >= follow || !swap(&page.keys[at], &block, CHANGING))
            continue;
        /* Another block has the entry by now. It isn't put back, because its free may just have missed it. */
        if (entry->rank >= follow)
            increase(&header->follow_failed, 1);
        drop(at);
    }
    store(&page.thinning, 0);
}

/* Takes a block out of the table, if it is there. */
static int unfollow(const void *block, struct count_followed *to) {
    /* Free entries have no address either. */
    if (!block || !may_be_followed(block))
        return 0;
    for (size_t probe = 0; probe < PROBES; probe++) {
        size_t at = entry_of(block, probe);
        uintptr_t found = load(&page.keys[at]);
        if (found != (uintptr_t)block || !swap(&page.keys[at], &found, CHANGING))
            continue;
        copy(to, PART(count_followed, COUNT_FOLLOWED_AT) + at, sizeof *to);
        drop(at);
        return 1;
    }
    return 0;
}

/* Gets an entry for a block, before the program has it: nothing can free it meanwhile. NO_ENTRY if none is free. */
#define NO_ENTRY COUNT_FOLLOWED_ENTRIES
static size_t reserve(const void *block) {
    struct count_followed gone;
    /* An earlier block with this address was freed by a function that has no hook. */
    while (unfollow(block, &gone)) {
    }
    if (peek(&page.cells[cell_of(block)]) < CELL_MOST)
        for (size_t probe = 0; probe < PROBES; probe++) {
            size_t at = entry_of(block, probe);
            struct count_followed *entry = PART(count_followed, COUNT_FOLLOWED_AT) + at;
            uintptr_t empty = 0;
            if (peek(&page.keys[at]) || !swap(&page.keys[at], &empty, CHANGING))
                continue;
            if (!page.touched[at] && !touch((uint64_t *)(entry + 1) - 1)) {
                store(&page.keys[at], 0);
                __atomic_fetch_or(&header->flags, COUNT_NO_SPACE, __ATOMIC_RELAXED);
                break;
            }
            page.touched[at] = 1;
            return at;
        }
    increase(&header->follow_failed, 1);
    return NO_ENTRY;
}

/* Fills a reserved entry. */
static void follow(size_t at, const struct count_followed *from) {
    /* As in drop(): the entry is the parent's. */
    if (load(&page.keys[at]) != CHANGING)
        return;
    struct count_followed *entry = PART(count_followed, COUNT_FOLLOWED_AT) + at;
    copy((uint64_t *)entry + 1, (const uint64_t *)from + 1, sizeof *entry - 8);
    store(&entry->address, from->address);
    increase(&page.cells[cell_of((const void *)from->address)], 1);
    increase(&header->following, 1);
    store(&page.keys[at], from->address);
}

/* ---- traces ------------------------------------------------------------------------------------------------------ */

/*
 * The usual path has nothing to ask: it calls what is in `next`. So functions that note may be called when no trace runs:
 * by a thread that has just read `next`, and in the child of a fork, which begins without a trace, but with the
 * parent's `next`.
 */
static const function tracers[FUNCTIONS];

static uint16_t tracing_thread(void) {
    /* A thread without a slot of its own in this process is as slot 0. */
    if (!page.generation || self.own != page.generation)
        return 0;
    uint64_t before = self.slot->threads - 1;
    return (uint16_t)((size_t)(self.slot - slots) | (before << 10 & COUNT_CALL_THREADS) |
                      (self.tid == header->pid ? COUNT_CALL_MAIN : 0));
}

/* Ends a trace, or what a fork left of the parent's. */
static OUTLINED void end_trace(uint32_t tracing) {
    if (!swap(&page.tracing, &tracing, CHANGES))
        return;
    for (unsigned what = 0; what < FUNCTIONS; what++)
        if (tracers[what])
            store(&next[what], beyond[what]);
    store(&page.tracing, UNTRACED);
}

static void note(unsigned kind, uintptr_t block, size_t size) {
    uint32_t tracing = load(&page.tracing);
    if (unlikely(tracing < RUNS)) {
        if (tracing == UNTRACED)
            end_trace(tracing);
        return;
    }
    uint32_t place = tracing - RUNS;
    uint64_t at = increase(&header->traced[place], 1);
    if (unlikely(at >= COUNT_TRACED)) {
        end_trace(tracing);
        return;
    }
    /* A signal handler forked meanwhile, and this is the child: the entry is its parent's. */
    if (unlikely(load(&page.tracing) != tracing))
        return;
    struct count_call *entry = (struct count_call *)((char *)header + COUNT_FILE_BYTES + place * COUNT_TRACE_BYTES) + at;
    entry->address = block;
    entry->size = size < UINT32_MAX ? (uint32_t)size : UINT32_MAX;
    entry->thread = tracing_thread();
    entry->kind = (uint8_t)kind;
    store(&entry->trace, (uint8_t)(peek(&header->trace_number[place]) % 255 + 1));
}

static size_t known_size(uintptr_t block) {
    return knows_sizes ? next[USABLE_SIZE](block, 0, 0) : 0;
}

static inline __attribute__((always_inline)) uintptr_t note_new(unsigned what, uintptr_t size, uintptr_t a,
                                                                uintptr_t b, uintptr_t c) {
    uintptr_t result = beyond[what](a, b, c);
    uintptr_t block = what == POSIX_MEMALIGN ? ((int)result == 0 ? *(uintptr_t *)a : 0) : result;
    if (block)
        note(what == CALLOC ? COUNT_CALL_ZEROED : COUNT_CALL_NEW, block, size);
    return result;
}

static inline __attribute__((always_inline)) uintptr_t note_free(unsigned what, uintptr_t a, uintptr_t b, uintptr_t c) {
    if (a)
        note(COUNT_CALL_FREE, a, known_size(a));
    return beyond[what](a, b, c);
}

static inline __attribute__((always_inline)) uintptr_t note_resize(unsigned what, uintptr_t size, uintptr_t a,
                                                                   uintptr_t b, uintptr_t c) {
    if (!a)
        return note_new(what, size, a, b, c);
    size_t usable = known_size(a);
    note(COUNT_CALL_RESIZED, a, usable);
    uintptr_t result = beyond[what](a, b, c);
    /* If it failed, the block is as before. */
    if (result || size)
        note(COUNT_CALL_RESIZED_TO, result ? result : a, result ? size : usable);
    return result;
}

/* Which functions are noted, and how: with the size of the block, where one begins. */
#define NOTED_FUNCTIONS(X) \
    X(MALLOC, note_new, a) \
    X(CALLOC, note_new, a *b) \
    X(REALLOC, note_resize, b) \
    X(REALLOCARRAY, note_resize, b *c) \
    X(MEMALIGN, note_new, b) \
    X(ALIGNED_ALLOC, note_new, b) \
    X(POSIX_MEMALIGN, note_new, c) \
    X(VALLOC, note_new, a) \
    X(PVALLOC, note_new, a) \
    X(FREE, note_free) \
    X(CFREE, note_free) \
    X(FREE_SIZED, note_free) \
    X(FREE_ALIGNED_SIZED, note_free) \
    X(NEW, note_new, a) \
    X(NEW_ARRAY, note_new, a) \
    X(NEW_NOTHROW, note_new, a) \
    X(NEW_ARRAY_NOTHROW, note_new, a) \
    X(NEW_ALIGNED, note_new, a) \
    X(NEW_ARRAY_ALIGNED, note_new, a) \
    X(NEW_ALIGNED_NOTHROW, note_new, a) \
    X(NEW_ARRAY_ALIGNED_NOTHROW, note_new, a) \
    X(DELETE, note_free) \
    X(DELETE_ARRAY, note_free) \
    X(DELETE_NOTHROW, note_free) \
    X(DELETE_ARRAY_NOTHROW, note_free) \
    X(DELETE_SIZED, note_free) \
    X(DELETE_ARRAY_SIZED, note_free) \
    X(DELETE_ALIGNED, note_free) \
    X(DELETE_ARRAY_ALIGNED, note_free) \
    X(DELETE_ALIGNED_NOTHROW, note_free) \
    X(DELETE_ARRAY_ALIGNED_NOTHROW, note_free) \
    X(DELETE_SIZED_ALIGNED, note_free) \
    X(DELETE_ARRAY_SIZED_ALIGNED, note_free)

/* malloc and free get one argument only: call_quickly(). */
#define TRACER(what, how, ...) \
    static uintptr_t trace_##what(uintptr_t a, uintptr_t b, uintptr_t c) { \
        return how(what, ##__VA_ARGS__, a, b, c); \
    }
NOTED_FUNCTIONS(TRACER)

#define ENTRY(what, ...) [what] = trace_##what,
static const function tracers[FUNCTIONS] = {NOTED_FUNCTIONS(ENTRY)};

/* Operators that are passed on call malloc, and reallocarray of the C library calls realloc, which note: only the
 * allocator's own note themselves. */
static int notes(unsigned what) {
    if (what == REALLOCARRAY && !own_reallocarray)
        return 0;
    return tracers[what] && beyond[what] && (what < NEW || operators == COUNTED) && !passed[what];
}

static int has_pages(uint32_t place) {
    char *from = (char *)header + COUNT_FILE_BYTES + place * COUNT_TRACE_BYTES;
    if (!page.trace_touched[place] && !may_make_file())
        return 0;
    for (size_t at = PAGE; at <= COUNT_TRACE_BYTES && !page.trace_touched[place]; at += PAGE)
        if (!touch((uint64_t *)(from + at) - 1))
            return 0;
    page.trace_touched[place] = 1;
    return 1;
}

static OUTLINED void begin_trace(uint64_t position) {
    uint32_t tracing = UNTRACED;
    if (!swap(&page.tracing, &tracing, CHANGES))
        return;
    /* As in start(). */
    uint64_t before = block_signals();
    uint32_t number = ++page.traces, place = number % COUNT_TRACES;
    /* Not in the child of a handler that forked just before, which has no file yet. */
    int has_room = load(&page.state) == READY && has_pages(place);
    __atomic_store_n(&page.trace_due, has_room ? 2 * position : UINT64_MAX, __ATOMIC_RELAXED);
    if (has_room) {
        store(&header->trace_number[place], number);
        store(&header->traced[place], 0);
        tracing = RUNS + place;
        for (unsigned what = 0; what < FUNCTIONS; what++)
            if (notes(what))
                store(&next[what], tracers[what]);
    }
    store(&page.tracing, tracing);
    restore_signals(before);
}

static inline void trace_if_due(void) {
    uint64_t position = peek(&header->events_next), due = peek(&page.trace_due);
    if (likely(position < (due ? due : COUNT_FIRST + COUNT_TRACED_FROM)))
        return;
    uint32_t tracing = load(&page.tracing);
    if (tracing >= RUNS)
        end_trace(tracing);
    begin_trace(position);
}

/* ---- samples ----------------------------------------------------------------------------------------------------- */

#define LARGEST_BOUND COUNT_CLASS_BOUND((uint64_t)COUNT_CLASSES - 1)

static inline size_t class_of(size_t size) {
    if (size <= 1024)
        return (size + 15) / 16;
    if (size > LARGEST_BOUND)
        return COUNT_CLASSES - 1;
    unsigned power = 63 - (unsigned)__builtin_clzll(size - 1);
    return 65 + 4 * (power - 10) + ((size - 1) >> (power - 2) & 3);
}

static inline int is_due(struct count_slot *slot, size_t size) {
    return unlikely(falls_below_zero(&slot->left, (int64_t)(size + PER_CALL)));
}

static inline int will_be_due(const struct count_slot *slot, size_t size) {
    return unlikely(slot->left < (int64_t)(size + PER_CALL));
}

static uint32_t latency(uint64_t before, uint64_t after) {
    uint64_t spent = after - before;
    return spent < UINT32_MAX ? (uint32_t)spent : UINT32_MAX;
}

/* Doubles the distance of samples if they are less than 50 us apart, and halves it if more than 400 us. The frequency
 * of the time stamp counter isn't known: 3 GHz is assumed. */
static void adapt(struct count_slot *slot, uint64_t now) {
    uint64_t frequency = header->ticks_per_second ? header->ticks_per_second : 3000000000;
    uint64_t near = frequency / 20000, passed_ticks = now - slot->last_sample;
    slot->last_sample = now;
    if (passed_ticks < near && every << (slot->shift + 1) <= WIDEST_INTERVAL)
        slot->shift++;
    else if (passed_ticks > 8 * near && slot->shift)
        slot->shift--;
    draw(slot);
}

/* Whether the latency of a sampled call may contain the noting of a trace. */
static uint8_t noted(void) {
    return load(&page.tracing) == UNTRACED ? 0 : COUNT_NOTED;
}

static OUTLINED void record(struct count_slot *slot, const void *block, size_t size, unsigned flags, uint64_t before,
                            uint64_t after) {
    if (!sampling) {
        slot->left = NEVER;
        return;
    }
    struct count_event event = {
        .ticks = before,
        .size = size,
        .address = (uint64_t)(uintptr_t)block,
        .stack = copy_stack(),
        .latency = latency(before, after),
        .tid = self.tid,
        .origin = self.tid,
        .kind = COUNT_ALLOCATED,
        .shift = (uint8_t)slot->shift,
        .rank = (uint8_t)__builtin_clzll(next_random(slot) | 1),
    };
    if (block && (int64_t)peek(&header->following) >= FOLLOWED_MOST && event.rank >= peek(&header->follow))
        thin();
    size_t at = block && event.rank >= peek(&header->follow) ? reserve(block) : NO_ENTRY;
    if (at != NO_ENTRY)
        flags |= COUNT_FOLLOWED;
    event.flags = (uint8_t)(block ? flags : flags | COUNT_FAILED) | noted();
    write_event(&event);
    adapt(slot, before);
    slot->samples++;
    if (has_traces)
        trace_if_due();
    /* Many blocks live for less time than their sample takes. */
    uint64_t born = ticks();
    slot->sample_ticks += born - after;
    if (at != NO_ENTRY) {
        struct count_followed followed = {
            .address = event.address,
            .born = born,
            .size = size,
            .stack = event.stack,
            .tid = self.tid,
            .shift = event.shift,
            .rank = event.rank,
            .flags = (uint8_t)(flags & ~COUNT_FOLLOWED),
        };
        follow(at, &followed);
    }
}

static OUTLINED void record_end(const struct count_followed *followed, unsigned flags, uint64_t before,
                                uint64_t after) {
    struct count_event event = {
        .ticks = before,
        .size = followed->size,
        .address = followed->address,
        .stack = followed->stack,
        .born = followed->born,
        .latency = latency(before, after),
        .tid = self.tid,
        .origin = followed->tid,
        .kind = COUNT_FREED,
        .shift = followed->shift,
        .rank = followed->rank,
        .flags = (uint8_t)flags | noted(),
    };
    write_event(&event);
}

/* ---- calls that allocate ----------------------------------------------------------------------------------------- */

/* Where each function counts beside the classes, and its flags in an event. */
static const struct {
    uint16_t counter;
    uint8_t flags;
} kinds[DELETE] = {
    [CALLOC] = {offsetof(struct count_slot, callocs), COUNT_ZEROED},
    [REALLOC] = {offsetof(struct count_slot, reallocs), 0},
    [REALLOCARRAY] = {offsetof(struct count_slot, reallocs), 0},
    [MEMALIGN] = {offsetof(struct count_slot, aligned), COUNT_ALIGNED},
    [ALIGNED_ALLOC] = {offsetof(struct count_slot, aligned), COUNT_ALIGNED},
    [POSIX_MEMALIGN] = {offsetof(struct count_slot, aligned), COUNT_ALIGNED},
    [VALLOC] = {offsetof(struct count_slot, aligned), COUNT_ALIGNED},
    [PVALLOC] = {offsetof(struct count_slot, aligned), COUNT_ALIGNED},
    [NEW] = {offsetof(struct count_slot, news), COUNT_OPERATOR},
    [NEW_ARRAY] = {offsetof(struct count_slot, news), COUNT_OPERATOR},
    [NEW_NOTHROW] = {offsetof(struct count_slot, news), COUNT_OPERATOR},
    [NEW_ARRAY_NOTHROW] = {offsetof(struct count_slot, news), COUNT_OPERATOR},
    [NEW_ALIGNED] = {offsetof(struct count_slot, news), COUNT_OPERATOR | COUNT_ALIGNED},
    [NEW_ARRAY_ALIGNED] = {offsetof(struct count_slot, news), COUNT_OPERATOR | COUNT_ALIGNED},
    [NEW_ALIGNED_NOTHROW] = {offsetof(struct count_slot, news), COUNT_OPERATOR | COUNT_ALIGNED},
    [NEW_ARRAY_ALIGNED_NOTHROW] = {offsetof(struct count_slot, news), COUNT_OPERATOR | COUNT_ALIGNED},
};

static inline uint64_t *counter_of(struct count_slot *slot, unsigned what) {
    return (uint64_t *)((char *)slot + kinds[what].counter);
}

/* Sees the result before it counts. Any thread, in any state. */
static OUTLINED uintptr_t allocate_carefully(unsigned what, size_t size, uintptr_t a, uintptr_t b, uintptr_t c) {
    struct count_slot *slot;
    struct door door;
    int how = enter(&slot, 1);
    if (how == NOT)
        return call(what, a, b, c);
    int due = how == ALONE && is_due(slot, size < LARGEST_BOUND ? size : LARGEST_BOUND);
    uint64_t before = due ? ticks() : 0;
    if (needs_door(what))
        close_door(&door, NESTED_MOST);
    uintptr_t result = call(what, a, b, c);
    if (needs_door(what))
        open_door(&door);
    uint64_t after = due ? ticks() : 0;
    const void *block = (const void *)result;
    if (what == POSIX_MEMALIGN)
        block = (int)result == 0 ? *(void **)a : NULL;
    if (block) {
        add(how, &slot->classes[class_of(size)], 1);
        add(how, &slot->bytes, size);
        if (what != MALLOC)
            add(how, counter_of(slot, what), 1);
    } else {
        add(how, &slot->failed, 1);
    }
    if (due)
        record(slot, block, size, kinds[what].flags, before, after);
    return result;
}

/* The registers of arguments that a function doesn't have need not be set: that saves instructions where they count. */
static inline uintptr_t call_quickly(unsigned what, uintptr_t a, uintptr_t b, uintptr_t c) {
    if (what == MALLOC || what == FREE)
        return ((one_argument)(void *)next[what])(a);
    return call(what, a, b, c);
}

/* A call that was counted already. */
static OUTLINED uintptr_t allocate_sampled(unsigned what, size_t size, uintptr_t a, uintptr_t b, uintptr_t c) {
    struct count_slot *slot = self.slot;
    uint64_t before = ticks();
    uintptr_t result = next[what](a, b, c);
    uint64_t after = ticks();
    if (!result)
        bump(&slot->failed, 1);
    record(slot, (const void *)result, size, kinds[what].flags, before, after);
    return result;
}

/* The usual path: counts, then jumps to the next definition. */
static inline __attribute__((always_inline)) uintptr_t allocate(unsigned what, size_t size, uintptr_t a, uintptr_t b,
                                                                uintptr_t c) {
    if (!is_attached())
        return likely(decision == OFF) ? call_quickly(what, a, b, c) : allocate_carefully(what, size, a, b, c);
    struct count_slot *slot = self.slot;
    if (likely(size <= 1024))
        bump(&slot->classes[(size + 15) / 16], 1);
    else if (unlikely(size >= LARGE))
        return allocate_carefully(what, size, a, b, c);
    else
        bump(&slot->classes[class_of(size)], 1);
    bump(&slot->bytes, size);
    if (what != MALLOC)
        bump(counter_of(slot, what), 1);
    if (is_due(slot, size))
        return allocate_sampled(what, size, a, b, c);
    return call_quickly(what, a, b, c);
}

HOOK void *malloc(size_t size) {
    return (void *)allocate(MALLOC, size, size, 0, 0);
}

HOOK void *calloc(size_t count, size_t size) {
    size_t bytes;
    /* Such a call fails. Its size isn't known. */
    if (unlikely(__builtin_mul_overflow(count, size, &bytes)))
        return (void *)allocate_carefully(CALLOC, SIZE_MAX, count, size, 0);
    /* musl's calls malloc, as that of a wrapper may. */
    if (unlikely(!in_glibc && nests))
        return (void *)allocate_carefully(CALLOC, bytes, count, size, 0);
    return (void *)allocate(CALLOC, bytes, count, size, 0);
}

HOOK void *memalign(size_t alignment, size_t size) {
    return (void *)allocate_carefully(MEMALIGN, size, alignment, size, 0);
}

HOOK void *aligned_alloc(size_t alignment, size_t size) {
    return (void *)allocate_carefully(ALIGNED_ALLOC, size, alignment, size, 0);
}

HOOK int posix_memalign(void **block, size_t alignment, size_t size) {
    return (int)allocate_carefully(POSIX_MEMALIGN, size, (uintptr_t)block, alignment, size);
}

HOOK void *valloc(size_t size) {
    return (void *)allocate_carefully(VALLOC, size, size, 0, 0);
}

HOOK void *pvalloc(size_t size) {
    return (void *)allocate_carefully(PVALLOC, size, size, 0, 0);
}

HOOK size_t malloc_usable_size(void *block) {
    if (unlikely(!load(&next[MALLOC])))
        look_up();
    return call(USABLE_SIZE, (uintptr_t)block, 0, 0);
}

/* ---- calls that free --------------------------------------------------------------------------------------------- */

/* The event is written after the call, with its duration; the block is out of the table before, because another thread
 * may get its address at once. */
static OUTLINED void free_followed(unsigned what, void *block, uintptr_t b, uintptr_t c) {
    struct count_followed followed;
    if (!unfollow(block, &followed)) {
        call(what, (uintptr_t)block, b, c);
        return;
    }
    uint64_t before = ticks();
    call(what, (uintptr_t)block, b, c);
    record_end(&followed, what >= DELETE ? COUNT_OPERATOR : 0, before, ticks());
}

static OUTLINED void free_carefully(unsigned what, void *block, uintptr_t b, uintptr_t c) {
    struct count_slot *slot;
    struct door door;
    /* At the end of each thread, when its destructors have run, glibc frees what it never allocated. */
    int how = enter(&slot, block != NULL);
    if (how == NOT) {
        /* Not counted, but not followed any more. */
        struct count_followed gone;
        unfollow(block, &gone);
        call(what, (uintptr_t)block, b, c);
        return;
    }
    add(how, block ? &slot->frees : &slot->free_null, 1);
    if (block && what >= DELETE)
        add(how, &slot->deletes, 1);
    if (needs_door(what))
        close_door(&door, NESTED_MOST);
    free_followed(what, block, b, c);
    if (needs_door(what))
        open_door(&door);
}

static inline __attribute__((always_inline)) void free_block(unsigned what, void *block, uintptr_t b, uintptr_t c) {
    if (!is_attached()) {
        if (likely(decision == OFF))
            call_quickly(what, (uintptr_t)block, b, c);
        else
            free_carefully(what, block, b, c);
        return;
    }
    struct count_slot *slot = self.slot;
    if (unlikely(!block)) {
        bump(&slot->free_null, 1);
        return;
    }
    bump(&slot->frees, 1);
    if (what >= DELETE)
        bump(&slot->deletes, 1);
    if (unlikely(may_be_followed(block))) {
        free_followed(what, block, b, c);
        return;
    }
    call_quickly(what, (uintptr_t)block, b, c);
}

HOOK void free(void *block) {
    free_block(FREE, block, 0, 0);
}

HOOK void cfree(void *block) {
    free_block(CFREE, block, 0, 0);
}

HOOK void free_sized(void *block, size_t size) {
    free_block(FREE_SIZED, block, size, 0);
}

HOOK void free_aligned_sized(void *block, size_t alignment, size_t size) {
    free_block(FREE_ALIGNED_SIZED, block, alignment, size);
}

/* ---- realloc ----------------------------------------------------------------------------------------------------- */

/* malloc/malloc.c of glibc: a block with a mapping of its own starts 16 bytes after a page's start, and bit 1 of the
 * number before it is set (IS_MMAPPED). realloc changes such a block by mremap(2). */
static int is_mapped(const void *block, size_t usable) {
    return in_glibc && usable >= 64 << 10 && (uintptr_t)block % PAGE == 16 && ((const size_t *)block)[-1] & 2;
}

/* Of a block without a mapping of its own. 0: unknown. */
static inline size_t usable_size(const void *block) {
#ifdef __x86_64__
    /* malloc/malloc.c of glibc: the number before the block is its size with that number, and three bits are flags. On
     * other processors, memory may have tags. */
    if (likely(in_glibc))
        return (((const size_t *)block)[-1] & ~(size_t)7) - sizeof(size_t);
#endif
    return known_size((uintptr_t)block);
}

static OUTLINED uintptr_t resize_carefully(unsigned what, void *old, size_t size, uintptr_t b, uintptr_t c) {
    struct count_slot *slot;
    struct door door;
    struct count_followed followed;
    if (!old)
        return allocate_carefully(what, size, 0, b, c);
    int how = enter(&slot, 1);
    if (how == NOT) {
        unfollow(old, &followed);
        return call(what, (uintptr_t)old, b, c);
    }
    size_t usable = known_size((uintptr_t)old);
    int was_mapped = is_mapped(old, usable);
    int was_followed = unfollow(old, &followed);
    int due = how == ALONE && is_due(slot, size < LARGEST_BOUND ? size : LARGEST_BOUND);
    uint64_t before = due || was_followed ? ticks() : 0;
    if (needs_door(what))
        close_door(&door, NESTED_MOST);
    uintptr_t result = call(what, (uintptr_t)old, b, c);
    if (needs_door(what))
        open_door(&door);
    uint64_t after = due || was_followed ? ticks() : 0;
    int freed = !result && !size;
    if (freed) {
        add(how, &slot->realloc_freed, 1);
    } else if (!result) {
        add(how, &slot->realloc_failed, 1);
        /* The block stays. */
        size_t at = was_followed ? reserve(old) : NO_ENTRY;
        if (at != NO_ENTRY)
            follow(at, &followed);
    } else {
        int moved = result != (uintptr_t)old;
        size_t now = was_mapped ? call(USABLE_SIZE, result, 0, 0) : 0;
        add(how, &slot->realloc_bytes, size);
        if (was_mapped && is_mapped((const void *)result, now) && (moved || now != usable)) {
            add(how, &slot->realloc_remapped, 1);
        } else if (moved) {
            add(how, &slot->realloc_moved, 1);
            add(how, &slot->copied_bytes, usable < size ? usable : size);
        } else {
            add(how, &slot->realloc_in_place, 1);
        }
    }
    if (was_followed && (result || freed))
        record_end(&followed, COUNT_BY_REALLOC, before, after);
    if (due && !freed) {
        unsigned moved = result && result != (uintptr_t)old ? COUNT_MOVED : 0;
        record(slot, (const void *)result, size, COUNT_BY_REALLOC | moved, before, after);
    } else if (due) {
        draw(slot);
    }
    return result;
}

/* The usual path: of a block that is not followed and has no mapping of its own, and gets no sample now. */
static inline __attribute__((always_inline)) uintptr_t resize(unsigned what, void *old, size_t size, uintptr_t b,
                                                              uintptr_t c) {
    int usual = is_attached() && !needs_door(what) && old && size && size < LARGE && (uintptr_t)old % PAGE != 16 &&
                !may_be_followed(old) && !will_be_due(self.slot, size);
    if (unlikely(!usual))
        return resize_carefully(what, old, size, b, c);
    struct count_slot *slot = self.slot;
    size_t usable = usable_size(old);
    uintptr_t result = next[what]((uintptr_t)old, b, c);
    /* If a signal handler's calls came between, the next call gets the sample. */
    (void)is_due(slot, size);
    if (unlikely(!result)) {
        bump(&slot->realloc_failed, 1);
        return result;
    }
    bump(&slot->realloc_bytes, size);
    if (result == (uintptr_t)old) {
        bump(&slot->realloc_in_place, 1);
    } else {
        bump(&slot->realloc_moved, 1);
        bump(&slot->copied_bytes, usable < size ? usable : size);
    }
    return result;
}

HOOK void *realloc(void *block, size_t size) {
    return (void *)resize(REALLOC, block, size, size, 0);
}

HOOK void *reallocarray(void *block, size_t count, size_t size) {
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes))
        bytes = SIZE_MAX;
    return (void *)resize(REALLOCARRAY, block, bytes, count, size);
}

/* ---- operators new and delete ------------------------------------------------------------------------------------ */

/* The first file that has an operator, wherever it was loaded. */
struct late {
    unsigned what;
    function found;
    int is_runtime;
};

static int search_late(struct dl_phdr_info *info, size_t size, void *data) {
    (void)size;
    struct late *late = data;
    if (is_own(info))
        return 0;
    struct tables tables = tables_of(info);
    late->found = (function)find(&tables, names[late->what]);
    /* std::get_new_handler() belongs to the C++ library, linked dynamically or statically. */
    late->is_runtime = late->found && find(&tables, "_ZSt15get_new_handlerv") != 0;
    return late->found != NULL;
}

static struct late search_operator(unsigned what) {
    struct late late = {.what = what};
    dl_iterate_phdr(search_late, &late);
    return late;
}

/*
 * The C++ library came with dlopen(3), and only this library's operators are visible to all. Its own may vanish with
 * dlclose(3), so no pointer to them is kept. What they do is known: malloc and free. Only when there is no memory, they
 * are searched and called, for the program's handler and the exception.
 *
 * A plugin may have operators of its own instead. The address of the caller doesn't say whether they are meant: the C++
 * library that the plugin brought calls them too, and the plugin frees what it made. So all or none are theirs.
 */
static OUTLINED uintptr_t operator_of_late_library(unsigned what, uintptr_t a, uintptr_t b, uintptr_t c) {
    if (operators == ABSENT) {
        struct late late = search_operator(what);
        operators = late.found && !late.is_runtime ? SEARCHED : COMPOSED;
    }
    if (operators == SEARCHED) {
        struct late late = search_operator(what);
        if (late.found)
            return late.found(a, b, c);
    }
    if (what >= DELETE) {
        free((void *)a);
        return 0;
    }
    uintptr_t size = a ? a : 1, block = 0;
    if (what < NEW_ALIGNED) {
        block = (uintptr_t)malloc(size);
    } else if (is_power_of_two(b) && size <= SIZE_MAX - b) {
        uintptr_t alignment = b < sizeof(void *) ? sizeof(void *) : b;
        block = (uintptr_t)aligned_alloc(alignment, (size + alignment - 1) & -alignment);
    }
    if (!block) {
        struct late late = search_operator(what);
        if (!late.found)
            __builtin_trap();
        /* Its first attempt is the one that was counted here. */
        struct door door;
        close_door(&door, 1);
        block = late.found(a, b, c);
        open_door(&door);
    }
    return block;
}

static OUTLINED uintptr_t operator_new(unsigned what, size_t size, uintptr_t b, uintptr_t c) {
    if (load(&operators) == FIRST)
        look_up();
    if (operators == COUNTED && !nests && likely(next[what]))
        return allocate(what, size, size, b, c);
    if (operators == COUNTED)
        return allocate_carefully(what, size, size, b, c);
    if (operators == PASSED)
        return call(what, size, b, c);
    return operator_of_late_library(what, size, b, c);
}

static OUTLINED void operator_delete(unsigned what, void *block, uintptr_t b, uintptr_t c) {
    if (load(&operators) == FIRST)
        look_up();
    if (operators == COUNTED && !nests)
        free_block(what, block, b, c);
    else if (operators == COUNTED)
        free_carefully(what, block, b, c);
    else if (operators == PASSED)
        call(what, (uintptr_t)block, b, c);
    else
        operator_of_late_library(what, (uintptr_t)block, b, c);
}

#define NEW_HOOK(name, what) \
    HOOK void *name(size_t size, uintptr_t b, uintptr_t c) { \
        function known = passed[what]; \
        return (void *)(likely(known) ? known(size, b, c) : operator_new(what, size, b, c)); \
    }
#define DELETE_HOOK(name, what) \
    HOOK void name(void *block, uintptr_t b, uintptr_t c) { \
        function known = passed[what]; \
        if (likely(known)) \
            known((uintptr_t)block, b, c); \
        else \
            operator_delete(what, block, b, c); \
    }

NEW_HOOK(_Znwm, NEW)
NEW_HOOK(_Znam, NEW_ARRAY)
NEW_HOOK(_ZnwmRKSt9nothrow_t, NEW_NOTHROW)
NEW_HOOK(_ZnamRKSt9nothrow_t, NEW_ARRAY_NOTHROW)
NEW_HOOK(_ZnwmSt11align_val_t, NEW_ALIGNED)
NEW_HOOK(_ZnamSt11align_val_t, NEW_ARRAY_ALIGNED)
NEW_HOOK(_ZnwmSt11align_val_tRKSt9nothrow_t, NEW_ALIGNED_NOTHROW)
NEW_HOOK(_ZnamSt11align_val_tRKSt9nothrow_t, NEW_ARRAY_ALIGNED_NOTHROW)
DELETE_HOOK(_ZdlPv, DELETE)
DELETE_HOOK(_ZdaPv, DELETE_ARRAY)
DELETE_HOOK(_ZdlPvRKSt9nothrow_t, DELETE_NOTHROW)
DELETE_HOOK(_ZdaPvRKSt9nothrow_t, DELETE_ARRAY_NOTHROW)
DELETE_HOOK(_ZdlPvm, DELETE_SIZED)
DELETE_HOOK(_ZdaPvm, DELETE_ARRAY_SIZED)
DELETE_HOOK(_ZdlPvSt11align_val_t, DELETE_ALIGNED)
DELETE_HOOK(_ZdaPvSt11align_val_t, DELETE_ARRAY_ALIGNED)
DELETE_HOOK(_ZdlPvSt11align_val_tRKSt9nothrow_t, DELETE_ALIGNED_NOTHROW)
DELETE_HOOK(_ZdaPvSt11align_val_tRKSt9nothrow_t, DELETE_ARRAY_ALIGNED_NOTHROW)
DELETE_HOOK(_ZdlPvmSt11align_val_t, DELETE_SIZED_ALIGNED)
DELETE_HOOK(_ZdaPvmSt11align_val_t, DELETE_ARRAY_SIZED_ALIGNED)

/* ---- the program's own unit of work ------------------------------------------------------------------------------ */

HOOK void allocwall_mark(void) {
    struct count_slot *slot;
    int how = enter(&slot, 1);
    if (how != NOT)
        add(how, &slot->marks, 1);
}

/* ---- the start --------------------------------------------------------------------------------------------------- */

/* The value if the text is NAME=VALUE. */
static const char *value_of(const char *text, const char *name) {
    while (*name && *text == *name)
        text++, name++;
    return *name == 0 && *text == '=' ? text + 1 : NULL;
}

/* A text that isn't a plain decimal number is as no text. */
static uint64_t number_of(const char *text) {
    uint64_t value = 0;
    const char *at = text;
    for (; *at >= '0' && *at <= '9' && value <= MOST_EVERY; at++)
        value = value * 10 + (uint64_t)(*at - '0');
    if (at == text || *at)
        return DEFAULT_EVERY;
    return value < MOST_EVERY ? value : MOST_EVERY;
}

/* Without MADV_WIPEONFORK. */
static void after_fork(void) {
    volatile uint64_t *at = (volatile uint64_t *)&page;
    for (size_t count = sizeof page / 8; count; count--)
        *at++ = 0;
}

static int is_wiped_on_fork(void) {
    uintptr_t from = (uintptr_t)&page & -(uintptr_t)LARGEST_PAGE;
    uintptr_t to = ((uintptr_t)(&page + 1) + LARGEST_PAGE - 1) & -(uintptr_t)LARGEST_PAGE;
    if (system_call(SYS_madvise, (long)from, (long)(to - from), MADV_WIPEONFORK, 0, 0, 0) == 0)
        return 1;
    return __register_atfork && __register_atfork(NULL, NULL, after_fork, &area) == 0;
}

__attribute__((constructor)) static void constructor(int count, char **arguments, char **environment) {
    const char *path = NULL, *distance_text = NULL;
    struct count_slot *slot;
    (void)count;
    (void)arguments;
    /* Only glibc passes arguments to constructors. */
    char **at = gnu_get_libc_version ? environment : &environ ? environ : NULL;
    main_top = (uintptr_t)at;
    for (; at && *at; at++) {
        const char *value = value_of(*at, "ALLOCWALL_COUNT");
        path = value ? value : path;
        value = value_of(*at, "ALLOCWALL_COUNT_EVERY");
        distance_text = value ? value : distance_text;
        value = value_of(*at, "ALLOCWALL_COUNT_TRACES");
        wants_traces |= value && value[0] == '1';
    }
    if (!load(&next[MALLOC]))
        look_up();
    size_t length = 0;
    while (path && path[length])
        length++;
    if (!path || path[0] != '/' || length >= sizeof directory || (getauxval && getauxval(AT_SECURE)) ||
        !is_wiped_on_fork()) {
        store(&decision, OFF);
        return;
    }
    copy_text(directory, sizeof directory, path);
    if (distance_text)
        every = number_of(distance_text);
    has_key = pthread_key_create && pthread_setspecific && pthread_key_create(&key, leave) == 0;
    store(&decision, ON);
    /* The file of the process, and the slot of its first thread. */
    enter(&slot, 1);
}
