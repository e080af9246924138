/*
 * The file that count.c writes, one for each process: DIR/PID-N, where DIR is ALLOCWALL_COUNT.
 *
 * Byte order and word size are those of the machine. A reader outside reads with pread(2) while the process runs:
 *
 *  - `magic` is written last: without it the file isn't complete yet, or is none.
 *  - The parts lie where the header says. The file is sparse: a part that was never used reads as zeros.
 *  - A counter only grows, and is read whole. Two counters of one slot may be some calls apart.
 *  - A ring's entry is valid if it holds the position that was asked for, before and after it was read.
 *  - Nothing marks the end of a process: it may be killed, or may replace itself by execve(2). Then the file stays as
 *    it is, and the next program of the same process has the next N.
 *
 * Times are ticks: the time stamp counter on x86_64, CNTVCT_EL0 on aarch64.
 */

#ifndef ALLOCWALL_COUNT_H
#define ALLOCWALL_COUNT_H

#include <stddef.h>
#include <stdint.h>

/* "ALWCOUNT" in the order of the file's bytes. */
#define COUNT_MAGIC 0x544e554f43574c41u
#define COUNT_VERSION 2

/* ---- size classes ------------------------------------------------------------------------------------------------ */

/*
 * Class 0 is size 0. Classes 1 to 64 have 16 bytes each: class k holds sizes up to 16 k. From 1,025 bytes on each
 * doubling has four classes of equal width. The last class is open: it also holds all sizes above 2^40.
 */
#define COUNT_CLASSES 185
/* The largest size of a class. */
#define COUNT_CLASS_BOUND(c) \
    ((c) <= 64 ? (uint64_t)(c) * 16 : ((uint64_t)(5 + ((c) - 65) % 4)) << (8 + ((c) - 65) / 4))

_Static_assert(COUNT_CLASS_BOUND(1) == 16 && COUNT_CLASS_BOUND(64) == 1024 && COUNT_CLASS_BOUND(65) == 1280 &&
                   COUNT_CLASS_BOUND(68) == 2048 && COUNT_CLASS_BOUND(69) == 2560 &&
                   COUNT_CLASS_BOUND(184) == (uint64_t)1 << 40,
               "the bounds of the classes");

/* ---- the header, at 0 -------------------------------------------------------------------------------------------- */

#define COUNT_X86_64 1
#define COUNT_AARCH64 2

/* Bits of `flags`. */
/* Calls do not reach the shim: another object comes before it in the search order and has a malloc of its own (a
 * program that contains an allocator). Its path is in `object`. The counts show only what reaches the shim. */
#define COUNT_BYPASSED 1
/* The allocator's own object has C++ operators: their calls are counted (`news`, `deletes`). Otherwise the operators
 * of the C++ library call malloc and free, and are counted there. */
#define COUNT_OPERATORS 2
/* The allocator is in the C library itself (the object that also has fork). */
#define COUNT_LIBC 4
/* No samples, and COUNT_FEW_SLOTS: a limit of the process (RLIMIT_AS, RLIMIT_FSIZE) leaves no room for more, or other
 * processes have all large files that the tool allows (COUNT_ROOM). */
#define COUNT_NO_ROOM 8
/* No samples, because the process may not read its clock (PR_SET_TSC). */
#define COUNT_NO_CLOCK 16
/* There was no space in the file system for a part of the file that was to be used. Samples or slots are missing. */
#define COUNT_NO_SPACE 32
/* The allocator has no malloc_usable_size, so the size of an old block isn't known: `copied_bytes` is 0. */
#define COUNT_NO_SIZES 64

#define COUNT_TRACES 2

struct count_header {
    uint64_t magic;
    uint32_t version;
    uint32_t header_bytes; /* of this struct: 4,096 */
    uint32_t pid;          /* as the process sees it: in its own PID namespace */
    uint32_t number;       /* the N of the name */
    uint32_t parent;       /* the parent's PID at the start; 0 in another PID namespace */
    uint32_t machine;      /* COUNT_X86_64 or COUNT_AARCH64 */
    uint32_t flags;        /* may get more bits while the process runs */
    uint32_t classes;      /* COUNT_CLASSES */
    uint64_t file_bytes;
    /* The parts: where, how many entries, and the bytes of an entry. Without samples the last three have 0 entries. */
    uint64_t slots_at;
    uint32_t slots, slot_bytes;
    uint64_t events_at;
    uint32_t events, event_bytes;
    uint64_t stacks_at;
    uint32_t stacks, stack_bytes;
    uint64_t followed_at;
    uint32_t followed, followed_bytes;
    /* The clock. */
    uint64_t ticks_per_second; /* 0: unknown (x86_64) */
    uint64_t start_ticks;      /* both read at the start, one directly after the other */
    uint64_t start_ns;         /* CLOCK_MONOTONIC */
    uint64_t clock_cost;       /* ticks between two readings without anything in between: part of each latency */
    /* Sampling: see count_event. */
    uint64_t every;    /* the mean distance of samples in weighted bytes; 0: no samples */
    uint64_t per_call; /* added to the size of each call */
    /* The two traces: see count_call. Without them it has 0 entries. */
    uint64_t traces_at;
    uint32_t trace_calls, call_bytes;
    uint64_t reserved0[2];

    /* From here on the values change. */
    uint64_t slots_used;      /* slots 0 to slots_used - 1 have been used */
    uint64_t slots_shared;    /* how often a thread found no slot of its own; its calls are in slot 0 */
    uint64_t events_next;     /* the position of the next event */
    uint64_t events_dropped;  /* no space, or another thread was still writing that entry; not in the ring */
    uint64_t stacks_next;     /* the position of the next stack */
    uint64_t follow;          /* see count_followed */
    uint64_t following;       /* used entries in the table of followed blocks */
    uint64_t follow_failed;   /* blocks that were to be followed, but the table had no place for their address */
    uint64_t traced[COUNT_TRACES];       /* calls of each trace; may be above its entries */
    uint64_t trace_number[COUNT_TRACES]; /* the newest trace has the largest number; 0: there is none */
    uint64_t reserved1[4];

    /* The file that holds the allocator, as the dynamic loader names it; cut to 255 bytes; ends with 0. Empty for the
     * program itself. */
    char object[256];
    /* /proc/self/exe; cut; ends with 0. Empty if it could not be read. */
    char program[512];
    /* /proc/self/cmdline: arguments that end with 0 each; cut. */
    char command[1024];
    uint64_t reserved2[248];
};

_Static_assert(sizeof(struct count_header) == 4096, "the header is one page");
_Static_assert(offsetof(struct count_header, file_bytes) == 40, "the header's first part");
_Static_assert(offsetof(struct count_header, slots_at) == 48, "the parts");
_Static_assert(offsetof(struct count_header, ticks_per_second) == 112, "the clock");
_Static_assert(offsetof(struct count_header, every) == 144, "sampling");
_Static_assert(offsetof(struct count_header, traces_at) == 160, "the traces");
_Static_assert(offsetof(struct count_header, slots_used) == 192, "the values that change");
_Static_assert(offsetof(struct count_header, traced) == 256, "the values of the traces");
_Static_assert(offsetof(struct count_header, object) == 320, "the texts");

/* ---- slots ------------------------------------------------------------------------------------------------------- */

/*
 * The counters of one thread, and of threads that had the slot before it: a slot is used again after its thread has
 * ended, and its counters go on. The sum of all slots is the sum of the process.
 *
 * Slot 0 belongs to no thread: calls before the library's constructor, calls of a thread that already ended its slot
 * (destructors at the end of a thread), and of threads for which there was no slot. They are never sampled.
 *
 * What is counted: calls of the program and of its libraries, the C library included. What a counted function calls
 * itself in order to do its work isn't counted again.
 *
 * A call is counted before it is made, so a call that fails is in `classes` and `bytes` too, except where the result is
 * known when it is counted: realloc, aligned allocations, calls of 1 MiB or more, and calls of calloc whose product
 * overflows. Those that fail are in `failed` only (realloc of a block: in `realloc_failed` only). A smaller call that
 * fails is in `failed` too if it is sampled. A counted operator new of 1 MiB or more that throws is counted nowhere.
 *
 * A signal handler that allocates may interrupt the counting itself. On x86_64 nothing is lost. On aarch64 all calls of
 * the handler may be lost that change the counter which was interrupted.
 *
 * While a counted function calls others that don't count again (reallocarray; all functions, with an allocator that
 * calls its own through the loader), a handler's calls don't count either. If an exception or longjmp(3) leaves such a
 * function, up to four later calls from deeper in the stack don't count.
 */
#define COUNT_SLOT_UNUSED 0
#define COUNT_SLOT_USED 1
#define COUNT_SLOT_LEFT 2

struct count_slot {
    uint32_t state;   /* COUNT_SLOT_...; slot 0 is always used */
    uint32_t tid;     /* the last thread's; 0 in slot 0 */
    uint64_t threads; /* the number of threads that had the slot */
    uint64_t since;   /* ticks when the last thread got it */

    uint64_t callocs;  /* also in `classes`, like the next three */
    uint64_t aligned;  /* memalign, aligned_alloc, posix_memalign, valloc, pvalloc */
    uint64_t news;     /* C++ operators new, only with COUNT_OPERATORS */
    uint64_t reallocs; /* realloc of a null pointer */
    /* realloc of a block, by what became of it. These calls are not in `classes`, and their bytes not in `bytes`. */
    uint64_t realloc_in_place;
    uint64_t realloc_moved;    /* to another address, and not by the kernel: copied */
    uint64_t realloc_remapped; /* to another address or size by mremap(2): only glibc's are recognized */
    uint64_t realloc_freed;    /* size 0, and the result was null */
    uint64_t realloc_failed;
    uint64_t realloc_bytes;  /* requested, of the calls in place, moved and remapped */
    uint64_t copied_bytes;   /* by the calls in realloc_moved: the smaller of old usable size and requested size */

    /* The values that most calls change share a cache line. */
    uint64_t marks; /* calls of allocwall_mark() */
    uint64_t samples;
    int64_t left;       /* weighted bytes until the next sample */
    uint64_t bytes;     /* requested by all calls in `classes` */
    uint64_t frees;     /* with an address: free, cfree, free_sized, free_aligned_sized, and `deletes` */
    uint64_t free_null; /* with a null pointer; not in `frees` */
    uint64_t deletes;   /* C++ operators delete, only with COUNT_OPERATORS */
    uint64_t failed;
    /* Calls by size class: malloc and the four above. So malloc = sum - callocs - aligned - news - reallocs. */
    uint64_t classes[COUNT_CLASSES];

    /* The shim's own. */
    uint64_t random;
    uint64_t last_sample; /* ticks */
    uint64_t shift;       /* the distance of samples is every << shift */
    uint64_t sample_ticks; /* spent for sampled allocations in this slot, without the calls themselves */
    uint64_t reserved[44];
    uint64_t touched; /* always 0 */
};

_Static_assert(sizeof(struct count_slot) == 2048, "two slots a page");
_Static_assert(offsetof(struct count_slot, marks) == 112, "the cold part");
_Static_assert(offsetof(struct count_slot, left) == 128, "the hot part starts a cache line");
_Static_assert(offsetof(struct count_slot, classes) == 176, "the classes");
_Static_assert(offsetof(struct count_slot, random) == 1656, "the shim's own part");

/* With more threads at the same time, those that come last share slot 0. */
#define COUNT_SLOTS 1024

/* ---- rings ------------------------------------------------------------------------------------------------------- */

/*
 * Events and stacks are two rings. Positions count from COUNT_FIRST up without end; the entry of a position is
 * position % entries, so that the newest overwrites the oldest. An entry begins with its position; 0: never written;
 * COUNT_WRITING: being written. A position that the ring doesn't hold although it is below `..._next` is still being
 * written, was dropped, or was overwritten.
 */
#define COUNT_FIRST 16
#define COUNT_WRITING UINT64_MAX

#define COUNT_EVENTS 16384

#define COUNT_ALLOCATED 1
#define COUNT_FREED 2

/* Bits of an event's `flags`. */
/* By realloc of a block. An allocation: the block in its new size, whether it moved or not. A free: the block in its
 * old size, which ended with that realloc. So a block that is resized is one block after the other. */
#define COUNT_BY_REALLOC 1
#define COUNT_ZEROED 2   /* calloc */
#define COUNT_ALIGNED 4  /* one of the aligned functions, or operators */
#define COUNT_OPERATOR 8 /* a C++ operator */
#define COUNT_FOLLOWED 16 /* its free will be an event too */
#define COUNT_FAILED 32 /* the result was null */
#define COUNT_MOVED 64  /* with COUNT_BY_REALLOC, of an allocation: to another address */
#define COUNT_NOTED 128 /* a trace ran: the latency is not that of the call alone */

/*
 * A sampled allocation, or the end of a followed block. The events of two threads are not in the order of their ticks.
 *
 * Allocations are sampled by weight: size + per_call (a size above 2^40 counts as 2^40). The distance from one sample
 * to the next is exponential with the mean `interval` = every << shift. So a call with weight w is sampled with the
 * probability p = 1 - exp(-w / interval), and stands for 1 / p calls. `shift` follows the rate of samples in each
 * thread.
 */
struct count_event {
    uint64_t position;
    uint64_t ticks;   /* directly before the call */
    uint64_t size;    /* requested when the block was allocated */
    uint64_t address; /* 0 if the call failed */
    /* The position of the stack of the allocation. Below COUNT_FIRST: none, and why (COUNT_STACK_...). A free has the
     * number that its allocation had. */
    uint64_t stack;
    /* A free: when the program got the block, in ticks: the sample of its allocation was complete. An allocation: 0. */
    uint64_t born;
    uint32_t latency; /* ticks of the call, with clock_cost; UINT32_MAX: that or more */
    uint32_t tid;     /* the thread that called */
    uint32_t origin;  /* a free: the thread that allocated. An allocation: its own thread */
    uint8_t kind;     /* COUNT_ALLOCATED or COUNT_FREED */
    uint8_t shift;    /* at the allocation */
    uint8_t rank;     /* see count_followed; a free has that of its allocation */
    uint8_t flags;
};

_Static_assert(sizeof(struct count_event) == 64, "one cache line");
_Static_assert(offsetof(struct count_event, latency) == 48, "the event's second part");

#define COUNT_STACKS 256
#define COUNT_REGISTERS 16
#define COUNT_STACK_BYTES 8048

/* Why an event has no stack. */
#define COUNT_STACK_NO_SPACE 1 /* in the file system */
#define COUNT_STACK_BUSY 2     /* another thread was still writing that entry */

/* Bits of a stack's `flags`. */
/* The stack isn't the thread's own, or is not known to be: a coroutine's, or a signal handler's. Only the rest of the
 * page of the stack pointer is here. */
#define COUNT_STACK_FOREIGN 1
/* Ends at the top of the thread's stack: nothing is missing. */
#define COUNT_STACK_WHOLE 2

/*
 * The registers and the stack at a place in the shim itself: its own frames come first. The bytes begin at the stack
 * pointer and go up.
 *
 * registers: x86_64: rip rsp rbp rbx r12 r13 r14 r15; aarch64: pc sp x19 x20 … x28 x29 x30. The rest is 0.
 */
struct count_stack {
    uint64_t position;
    uint64_t registers[COUNT_REGISTERS];
    uint32_t tid;
    uint16_t length; /* the number of valid bytes */
    uint16_t flags;
    uint8_t bytes[COUNT_STACK_BYTES];
};

_Static_assert(sizeof(struct count_stack) == 8192, "two pages");
_Static_assert(offsetof(struct count_stack, bytes) == 144, "the stack's bytes");

/* ---- followed blocks --------------------------------------------------------------------------------------------- */

#define COUNT_FOLLOWED_ENTRIES 4096

/*
 * The followed blocks that are live now. Each sampled allocation gets a rank: the number of zeros that a random number
 * begins with, so that half of all ranks are 0, a quarter 1, and so on (63 at most). A block is followed if its rank is
 * at least the header's `follow`. When the table is half full, `follow` grows by one, and the blocks below are no
 * longer followed: they get no event.
 *
 * So what a reader knows at any time about all blocks with rank >= follow is complete (but for lost events, and for
 * follow_failed), and each of them stands for 2^follow times as many as its sample does.
 */
struct count_followed {
    uint64_t address; /* 0: no block; written last */
    uint64_t born;    /* as in count_event */
    uint64_t size;
    uint64_t stack;
    uint32_t tid;
    uint8_t shift, rank, flags, reserved0;
    uint64_t reserved1[3];
};

_Static_assert(sizeof(struct count_followed) == 64, "one cache line");

/* ---- traces ------------------------------------------------------------------------------------------------------ */

/*
 * All calls of some time, in their order: a replay makes the same calls with another allocator. A trace begins when the
 * process has had COUNT_TRACED_FROM sampled events, and again each time `events_next` has doubled; it ends after
 * COUNT_TRACED calls, or when the next one begins. The traces take turns in the two places, so that at the end of the
 * process the last one began in the second half of its samples. Only where the tool asks for traces
 * (ALLOCWALL_COUNT_TRACES).
 *
 * A free has its place before the call, all others after it: so the calls with one address are in their true order, also
 * those of several threads. A function that changed over to the trace later than others misses some of its first calls.
 */
#define COUNT_TRACED 131072
#define COUNT_TRACED_FROM 32

#define COUNT_CALL_NEW 1
#define COUNT_CALL_ZEROED 2
#define COUNT_CALL_FREE 3
/* realloc of a block: its old address and usable size before the call, and then the new ones. Without the second, it
 * freed the block. */
#define COUNT_CALL_RESIZED 4
#define COUNT_CALL_RESIZED_TO 5

/* Of `thread`: the slot, how many threads had it before (the lowest bits), and whether it is the process's first. */
#define COUNT_CALL_SLOT 0x3ff
#define COUNT_CALL_THREADS 0x7c00
#define COUNT_CALL_MAIN 0x8000

struct count_call {
    uint64_t address;
    uint32_t size; /* requested; of a free, usable, or 0 if that is not known; UINT32_MAX: that or more */
    uint16_t thread;
    uint8_t kind;
    uint8_t trace; /* the trace's number modulo 255, plus 1: anything else is left from a trace before it. Written last. */
};

_Static_assert(sizeof(struct count_call) == 16, "four a cache line");
_Static_assert(COUNT_SLOTS <= COUNT_CALL_SLOT + 1, "a slot's index fits");

/* ---- where the parts lie ----------------------------------------------------------------------------------------- */

#define COUNT_EVENTS_AT sizeof(struct count_header)
#define COUNT_STACKS_AT (COUNT_EVENTS_AT + COUNT_EVENTS * sizeof(struct count_event))
#define COUNT_FOLLOWED_AT (COUNT_STACKS_AT + COUNT_STACKS * sizeof(struct count_stack))
#define COUNT_SLOTS_AT (COUNT_FOLLOWED_AT + COUNT_FOLLOWED_ENTRIES * sizeof(struct count_followed))
#define COUNT_FILE_BYTES (COUNT_SLOTS_AT + COUNT_SLOTS * sizeof(struct count_slot))
/* With traces, they come last. */
#define COUNT_TRACE_BYTES (COUNT_TRACED * sizeof(struct count_call))
#define COUNT_TRACED_FILE_BYTES (COUNT_FILE_BYTES + COUNT_TRACES * COUNT_TRACE_BYTES)

/* Of each mapping, mlockall(2) locks all bytes. */
_Static_assert(COUNT_FILE_BYTES < 6 << 20 && COUNT_TRACED_FILE_BYTES < 10 << 20, "a file has few MiB");

/* COUNT_NO_ROOM: the slots follow the header directly. */
#define COUNT_FEW_SLOTS 32
#define COUNT_SMALL_FILE_BYTES (sizeof(struct count_header) + COUNT_FEW_SLOTS * sizeof(struct count_slot))

/*
 * A FIFO in the directory that the tool keeps open for reading and writing. It holds one byte for each large file that
 * may still be made. Without writers, the tool is gone, and no file is made. In a directory without it there is no such
 * limit.
 */
#define COUNT_ROOM "room"

#endif
