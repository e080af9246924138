//! The remedies: what to change, what each acts on, where it applies, how it backfires. Data alone; whether one fits
//! a target and what it would gain there is judged in `diagnose::remedies`.

use super::cost::CostClass::{self, *};
use super::walls::Wall;

#[derive(Clone, Copy, Debug)]
pub struct Remedy {
    /// Stable; what a user types.
    pub key: &'static str,
    pub title: &'static str,
    pub kind: Kind,
    /// Offered when one of these fired.
    pub walls: &'static [Wall],
    /// Lines of the bill that it acts on; empty where it saves no CPU time.
    pub acts_on: &'static [CostClass],
    pub effect: Effect,
    /// All must hold.
    pub needs: &'static [Need],
    pub restart: bool,
    /// `{cmd}`, `{threads}` (of the target's processes), `{triple}`, `{tunables:…}` (merged with those already set),
    /// `{quota}`, `{whole_cpus}` (the quota rounded up), `{arenas}`, `{java_heap}`, `{node:…}` (the command with an option),
    /// `{jemalloc:…}` (in the variable that this build reads) are filled in.
    pub how: &'static str,
    pub backfires: &'static str,
    pub undo: &'static str,
    pub moves: &'static str,
}

impl Remedy {
    /// `how`, filled in, is a command; else it is prose.
    pub fn is_command(&self, how: &str) -> bool {
        let setting = !how.starts_with(char::is_lowercase);
        let first = how.split(' ').next().unwrap_or_default();
        self.kind != Kind::Advice && (setting || COMMANDS.contains(&first))
    }
}

/// Programs that a remedy's command starts with, where it doesn't start with a setting.
const COMMANDS: &[&str] = &["renice", "echo", "env", "numactl", "node", "nodejs"];

/// Stands in a command for the target's own, where that is not known or too long to be read.
pub const UNKNOWN_COMMAND: &str = "CMD";

/// Remedies of one gain are tried in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// How this process is run.
    Process,
    /// A setting that other processes of the machine feel too.
    Machine,
    /// Only code can help.
    Advice,
}

/// How much of its lines it removes, in terms of the price list.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Effect {
    /// 4 KiB first touches become 2 MiB ones: 1 − touch_2m / (512 · touch_4k).
    HugeTouch,
    /// Blocks served by mmap are served by the arena: 1 − malloc_arena / malloc_mapped of what malloc's own map calls
    /// cost, and at the upper end of the first touches as well.
    ArenaInsteadOfMap,
    /// Pages are made in one call: 1 − populate_page / touch_4k.
    Populate,
    /// Up to the fraction of the lines, with the source of the fraction; no price says how much.
    AtMost(f64, &'static str),
    /// It buys time on the clock or memory, not CPU time: what it acts on instead.
    NotCpu(&'static str),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Need {
    /// A dynamic loader that honours LD_PRELOAD: no static binary, no Go, no setuid.
    Preload,
    /// The dynamic GNU C library, at least this version.
    Glibc(u32, u32),
    /// The dynamic GNU C library, older than this.
    GlibcBefore(u32, u32),
    Musl,
    /// glibc's own malloc serves the process.
    GlibcMalloc,
    Jemalloc,
    Mimalloc,
    Tcmalloc,
    NotJemalloc,
    NotMimalloc,
    NotTcmalloc,
    Cpython,
    /// CPython of at least 3.minor, default build.
    CpythonAtLeast(u32),
    CpythonFreeThreaded,
    Jvm,
    Go,
    Node,
    /// Heaps that the runtime manages itself are out of a malloc's reach.
    NotJvm,
    /// malloc, not only the runtime's small-object allocator, is where the time goes.
    MallocMatters,
    /// Huge pages can be had by madvise: neither `never` on the host nor disabled for the process.
    ThpByAdvice,
    /// The mode is exactly `madvise`, so that the setting changes something.
    ThpModeMadvise,
    MoreThanOneThread,
    /// None of the environment's settings mentions this.
    Unset(&'static str),
    /// The environment limits glibc's arenas to fewer than it has by itself: eight a CPU on 64 bits.
    ArenasLimited,
    /// No setting pins glibc's mapping threshold, or one pins it below so many bytes.
    MmapThresholdBelow(u64),
    MoreThanOneNode,
    Quota,
}

const PRELOAD_BACKFIRES: &str =
    "5 to 10 % more resident memory is usual; freeing another allocator's memory crashes";
const PRELOAD_UNDO: &str = "restart without LD_PRELOAD";
const ALLOCATOR_WALLS: &[Wall] = &[Wall::AllocatorCode, Wall::AllocatorContention];
const ALLOCATOR_LINES: &[CostClass] = &[AllocatorCode, AllocatorLocks];
const TOUCH_LINES: &[CostClass] = &[FaultPath, Zeroing];
pub const MAP_LINES: &[CostClass] = &[MapCalls, PageRelease];
const SWAP: Effect = Effect::AtMost(1.0, "that allocator has no price here, only a trial tells");
const HUGE_BACKFIRES: &str =
    "memory grows by up to 2 MiB a region; forks copy 2 MiB a write; compaction may stall";

pub const TABLE: &[Remedy] = &[
    Remedy {
        key: "quota",
        title: "raise or drop the cgroup's CPU quota",
        kind: Kind::Process,
        walls: &[Wall::CgroupThrottling],
        acts_on: &[],
        effect: Effect::NotCpu("the throttled time"),
        needs: &[Need::Quota],
        restart: false,
        how: "raise the CPU limit above the {quota} it has (Kubernetes: resources.limits.cpu; docker update --cpus N CONTAINER)",
        backfires: "neighbours on the machine get less CPU",
        undo: "set the old limit",
        moves: "CPU time from the machine's other tenants to this cgroup",
    },
    Remedy {
        key: "gomaxprocs",
        title: "fit GOMAXPROCS to the quota",
        kind: Kind::Process,
        walls: &[Wall::CgroupThrottling],
        acts_on: &[],
        effect: Effect::NotCpu("throttled pauses: fewer threads use up the period later"),
        needs: &[Need::Go, Need::Quota, Need::Unset("GOMAXPROCS")],
        restart: true,
        how: "GOMAXPROCS={whole_cpus} {cmd}   # the quota of {quota}, rounded up; Go 1.25 and later do so by themselves",
        backfires: "less parallelism when the quota is raised later",
        undo: "restart without GOMAXPROCS",
        moves: "parallel bursts to a steadier, longer run",
    },
    Remedy {
        key: "nice",
        title: "a larger weight, or CPUs of its own",
        kind: Kind::Process,
        walls: &[Wall::RunQueue],
        acts_on: &[],
        effect: Effect::NotCpu("the time runnable but waiting"),
        needs: &[],
        restart: false,
        // A thread's own, on Linux: setpriority(2), bugs.
        how: "renice -n -5 -p {threads}   # counts within a cgroup; against other containers raise cpu.weight (v1: cpu.shares)",
        backfires: "the competitors wait instead; threads that start later have their starter's",
        undo: "renice -n 0 -p {threads}",
        moves: "the wait to the processes that compete",
    },
    Remedy {
        key: "move-vm",
        title: "another host or a dedicated instance",
        kind: Kind::Advice,
        walls: &[Wall::Steal],
        acts_on: &[],
        effect: Effect::NotCpu("time that the hypervisor gives to others"),
        needs: &[],
        restart: true,
        how: "nothing inside this machine helps: stop and start the instance to land on another host, or take dedicated CPUs",
        backfires: "dedicated CPUs cost money; another host may be as busy",
        undo: "move back",
        moves: "the wait to another tenant",
    },
    Remedy {
        key: "gogc",
        title: "let Go's heap grow further between collections",
        kind: Kind::Process,
        walls: &[Wall::GarbageCollector],
        acts_on: &[GarbageCollector],
        effect: Effect::AtMost(
            0.5,
            "Go's guide to its collector: doubling GOGC roughly halves the collector's CPU cost",
        ),
        needs: &[Need::Go, Need::Unset("GOGC")],
        restart: true,
        how: "GOGC=200 {cmd}   # with GOMEMLIMIT at 90 % of the memory limit",
        backfires: "up to half as much heap again; near GOMEMLIMIT the collector runs all the time",
        undo: "restart without GOGC",
        moves: "CPU time to resident memory",
    },
    Remedy {
        key: "cpython-gc-freeze",
        title: "fewer cyclic collections: gc.freeze() and a higher threshold",
        kind: Kind::Advice,
        walls: &[Wall::GarbageCollector],
        acts_on: &[GarbageCollector],
        effect: Effect::AtMost(1.0, "depends on how many cycles the code really makes"),
        needs: &[Need::Cpython],
        restart: true,
        how: "after start-up: import gc; gc.collect(); gc.freeze(); gc.set_threshold(50_000, 20, 100)",
        backfires: "garbage in cycles lives longer: resident memory grows if the code makes many",
        undo: "gc.unfreeze(); gc.set_threshold(700, 10, 10)",
        moves: "CPU time to resident memory",
    },
    Remedy {
        key: "node-semi-space",
        title: "a larger young generation for V8",
        kind: Kind::Process,
        walls: &[Wall::GarbageCollector],
        acts_on: &[GarbageCollector],
        effect: Effect::AtMost(1.0, "depends on how much survives a scavenge"),
        needs: &[Need::Node, Need::Unset("semi-space")],
        restart: true,
        // NODE_OPTIONS refuses it before the autumn of 2022 (nodejs/node#44436); the command line never does.
        how: "{node:--max-semi-space-size=64}",
        backfires: "up to 192 MiB more resident memory an isolate; single scavenges may take longer",
        undo: "restart without the option",
        moves: "CPU time to resident memory",
    },
    Remedy {
        key: "jvm-heap",
        title: "a larger Java heap",
        kind: Kind::Process,
        walls: &[Wall::GarbageCollector],
        acts_on: &[GarbageCollector],
        effect: Effect::AtMost(1.0, "depends on how much survives a collection"),
        needs: &[Need::Jvm],
        restart: true,
        // On the command line, which goes before JAVA_TOOL_OPTIONS. -Xlog is refused before Java 9.
        how: "give it twice the heap, {java_heap}, and compare the collections that -verbose:gc prints",
        backfires: "more resident memory; a full collection of it takes longer",
        undo: "restart with the old -Xmx",
        moves: "CPU time to resident memory",
    },
    Remedy {
        key: "glibc-keep-memory",
        title: "glibc keeps freed memory: fixed mmap and trim thresholds",
        kind: Kind::Process,
        walls: &[Wall::MapChurn, Wall::FirstTouch, Wall::AddressSpaceLock],
        acts_on: &[MapCalls, PageRelease, FaultPath, Zeroing],
        effect: Effect::ArenaInsteadOfMap,
        needs: &[
            Need::Glibc(2, 36),
            Need::GlibcMalloc,
            Need::MmapThresholdBelow(268_435_456),
            Need::Unset("MALLOC_MMAP_THRESHOLD_"),
        ],
        restart: true,
        // Both: any of mmap_threshold, trim_threshold and top_pad alone stops glibc from raising the others with the blocks
        // that it frees (no_dyn_threshold in malloc/malloc.c), and leaves them at 128 KiB.
        // Measured on 2.36: blocks of 40 MiB then come from the heap. Threads other than the first keep their arenas' limit of 64 MiB.
        how: "GLIBC_TUNABLES={tunables:glibc.malloc.mmap_threshold=268435456:glibc.malloc.trim_threshold=268435456} {cmd}",
        backfires: "one long-lived block above many freed ones pins them all: resident memory stays at its high-water mark",
        undo: "restart without the tunables",
        moves: "CPU time in the kernel to resident memory",
    },
    Remedy {
        key: "glibc-keep-memory-32m",
        title: "glibc keeps freed memory: mmap threshold at its 32 MiB limit",
        kind: Kind::Process,
        walls: &[Wall::MapChurn, Wall::FirstTouch, Wall::AddressSpaceLock],
        acts_on: &[MapCalls, PageRelease, FaultPath, Zeroing],
        effect: Effect::ArenaInsteadOfMap,
        needs: &[
            Need::Glibc(2, 26),
            Need::GlibcBefore(2, 36),
            Need::GlibcMalloc,
            Need::MmapThresholdBelow(33_554_432),
            Need::Unset("MALLOC_MMAP_THRESHOLD_"),
        ],
        restart: true,
        // The largest that older versions take (HEAP_MAX_SIZE / 2 on 64 bits); blocks above it are mapped all the same.
        how: "GLIBC_TUNABLES={tunables:glibc.malloc.mmap_threshold=33554432:glibc.malloc.trim_threshold=268435456} {cmd}",
        backfires: "one long-lived block above freed ones pins them all: memory stays at its high-water mark",
        undo: "restart without the tunables",
        moves: "CPU time in the kernel to resident memory",
    },
    Remedy {
        key: "glibc-hugetlb",
        title: "glibc's heap on transparent huge pages",
        kind: Kind::Process,
        walls: &[Wall::FirstTouch],
        acts_on: TOUCH_LINES,
        effect: Effect::HugeTouch,
        needs: &[
            Need::Glibc(2, 35),
            Need::GlibcMalloc,
            Need::ThpModeMadvise,
            Need::Unset("hugetlb"),
        ],
        restart: true,
        how: "GLIBC_TUNABLES={tunables:glibc.malloc.hugetlb=1} {cmd}",
        backfires: HUGE_BACKFIRES,
        undo: "restart without the tunable",
        moves: "512 small faults to one large one: fewer, longer pauses",
    },
    Remedy {
        key: "jemalloc-thp",
        title: "jemalloc's heap on transparent huge pages",
        kind: Kind::Process,
        walls: &[Wall::FirstTouch],
        acts_on: TOUCH_LINES,
        effect: Effect::HugeTouch,
        needs: &[
            Need::Jemalloc,
            Need::NotJvm,
            Need::ThpByAdvice,
            Need::Unset("thp:"),
        ],
        restart: true,
        how: "{jemalloc:thp:always,metadata_thp:auto} {cmd}",
        backfires: HUGE_BACKFIRES,
        undo: "restart without the variable",
        moves: "512 small faults to one large one: fewer, longer pauses",
    },
    Remedy {
        key: "mimalloc-thp",
        title: "mimalloc's heap on large pages",
        kind: Kind::Process,
        walls: &[Wall::FirstTouch],
        acts_on: TOUCH_LINES,
        effect: Effect::HugeTouch,
        needs: &[
            Need::Mimalloc,
            Need::NotJvm,
            Need::ThpByAdvice,
            Need::Unset("LARGE_OS_PAGES"),
        ],
        restart: true,
        how: "MIMALLOC_ALLOW_LARGE_OS_PAGES=1 {cmd}",
        backfires: HUGE_BACKFIRES,
        undo: "restart without the variable",
        moves: "512 small faults to one large one: fewer, longer pauses",
    },
    Remedy {
        key: "cpython-mimalloc-huge",
        title: "CPython's objects in mimalloc, on large pages",
        kind: Kind::Process,
        walls: &[Wall::FirstTouch],
        acts_on: TOUCH_LINES,
        effect: Effect::HugeTouch,
        needs: &[
            Need::CpythonAtLeast(13),
            Need::ThpByAdvice,
            Need::Unset("PYTHONMALLOC"),
            Need::Unset("LARGE_OS_PAGES"),
        ],
        restart: true,
        how: "PYTHONMALLOC=mimalloc MIMALLOC_ALLOW_LARGE_OS_PAGES=1 {cmd}",
        backfires: HUGE_BACKFIRES,
        undo: "restart without the variables",
        moves: "512 small faults to one large one: fewer, longer pauses",
    },
    Remedy {
        key: "cpython-nogil-huge",
        title: "free-threaded CPython's own mimalloc on large pages",
        kind: Kind::Process,
        walls: &[Wall::FirstTouch],
        acts_on: TOUCH_LINES,
        effect: Effect::HugeTouch,
        needs: &[
            Need::CpythonFreeThreaded,
            Need::ThpByAdvice,
            Need::Unset("LARGE_OS_PAGES"),
        ],
        restart: true,
        how: "MIMALLOC_ALLOW_LARGE_OS_PAGES=1 {cmd}",
        backfires: HUGE_BACKFIRES,
        undo: "restart without the variable",
        moves: "512 small faults to one large one: fewer, longer pauses",
    },
    Remedy {
        key: "jvm-thp",
        title: "the Java heap on transparent huge pages",
        kind: Kind::Process,
        walls: &[Wall::FirstTouch],
        acts_on: TOUCH_LINES,
        effect: Effect::HugeTouch,
        needs: &[
            Need::Jvm,
            Need::ThpByAdvice,
            Need::Unset("UseTransparentHugePages"),
        ],
        restart: true,
        how: "JAVA_TOOL_OPTIONS=-XX:+UseTransparentHugePages {cmd}",
        backfires: HUGE_BACKFIRES,
        undo: "restart without the option",
        moves: "512 small faults to one large one: fewer, longer pauses",
    },
    Remedy {
        key: "jvm-pretouch",
        title: "touch the Java heap before the first request",
        kind: Kind::Process,
        walls: &[Wall::FirstTouch],
        acts_on: TOUCH_LINES,
        effect: Effect::AtMost(1.0, "all first touches of the heap, but none outside it"),
        needs: &[Need::Jvm, Need::Unset("AlwaysPreTouch")],
        restart: true,
        how: "start it with -XX:+AlwaysPreTouch and an -Xms as large as its heap, {java_heap}",
        backfires: "start-up takes as long as touching the whole heap; all of -Xms is resident at once",
        undo: "restart without the option",
        moves: "first touches from requests to start-up",
    },
    Remedy {
        key: "thp-always",
        title: "transparent huge pages for the whole machine",
        kind: Kind::Machine,
        walls: &[Wall::FirstTouch],
        acts_on: TOUCH_LINES,
        effect: Effect::HugeTouch,
        needs: &[Need::ThpModeMadvise],
        restart: false,
        how: "echo always > /sys/kernel/mm/transparent_hugepage/enabled   # as root; for new memory",
        backfires: "every process is affected: memory grows; Redis, for one, advises against it",
        undo: "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        moves: "512 small faults to one large one: fewer, longer pauses",
    },
    Remedy {
        key: "jemalloc",
        title: "jemalloc by preload",
        kind: Kind::Process,
        walls: &[
            Wall::AllocatorContention,
            Wall::AllocatorCode,
            Wall::AddressSpaceLock,
            Wall::MapChurn,
            Wall::Retention,
        ],
        acts_on: &[AllocatorCode, AllocatorLocks, MapCalls, PageRelease],
        effect: SWAP,
        needs: &[
            Need::Glibc(2, 17),
            Need::Preload,
            Need::NotJemalloc,
            Need::MallocMatters,
        ],
        restart: true,
        how: "LD_PRELOAD=/usr/lib/{triple}/libjemalloc.so.2 {cmd}   # Debian: libjemalloc2",
        backfires: PRELOAD_BACKFIRES,
        undo: PRELOAD_UNDO,
        moves: "lock waits and slow paths to per-thread caches: resident memory",
    },
    Remedy {
        key: "tcmalloc",
        title: "tcmalloc by preload",
        kind: Kind::Process,
        walls: ALLOCATOR_WALLS,
        acts_on: ALLOCATOR_LINES,
        effect: SWAP,
        needs: &[
            Need::Glibc(2, 17),
            Need::Preload,
            Need::NotTcmalloc,
            Need::MallocMatters,
        ],
        restart: true,
        how: "LD_PRELOAD=/usr/lib/{triple}/libtcmalloc_minimal.so.4 {cmd}   # Debian: libtcmalloc-minimal4",
        backfires: PRELOAD_BACKFIRES,
        undo: PRELOAD_UNDO,
        moves: "lock waits and slow paths to per-thread caches: resident memory",
    },
    Remedy {
        key: "mimalloc",
        title: "mimalloc by preload",
        kind: Kind::Process,
        walls: ALLOCATOR_WALLS,
        acts_on: ALLOCATOR_LINES,
        effect: SWAP,
        needs: &[
            Need::Glibc(2, 17),
            Need::Preload,
            Need::NotMimalloc,
            Need::MallocMatters,
        ],
        restart: true,
        how: "LD_PRELOAD=/usr/lib/{triple}/libmimalloc.so.2 {cmd}   # Debian: libmimalloc2.0",
        backfires: PRELOAD_BACKFIRES,
        undo: PRELOAD_UNDO,
        moves: "lock waits and slow paths to per-thread heaps: resident memory",
    },
    Remedy {
        key: "mimalloc-musl",
        title: "mimalloc by preload, built for musl",
        kind: Kind::Process,
        walls: ALLOCATOR_WALLS,
        acts_on: ALLOCATOR_LINES,
        effect: SWAP,
        needs: &[Need::Musl, Need::Preload, Need::NotMimalloc, Need::MallocMatters],
        restart: true,
        how: "LD_PRELOAD=/usr/lib/libmimalloc.so.2 {cmd}   # Alpine: mimalloc2",
        backfires: PRELOAD_BACKFIRES,
        undo: PRELOAD_UNDO,
        moves: "the one lock of musl's allocator to per-thread heaps: resident memory",
    },
    Remedy {
        key: "glibc-arenas-free",
        title: "lift the limit on glibc's arenas",
        kind: Kind::Process,
        walls: &[Wall::AllocatorContention],
        acts_on: &[AllocatorLocks],
        effect: Effect::AtMost(
            1.0,
            "threads that share an arena stop waiting for it; blocks freed by another thread still lock",
        ),
        needs: &[Need::GlibcMalloc, Need::ArenasLimited, Need::MoreThanOneThread],
        restart: true,
        how: "env -u MALLOC_ARENA_MAX GLIBC_TUNABLES={tunables:glibc.malloc.arena_max={arenas}} {cmd}   # eight a core, the default",
        backfires: "each arena keeps its own free memory: resident memory grows, which the limit prevents",
        undo: "set the limit again",
        moves: "lock waits to resident memory",
    },
    Remedy {
        key: "glibc-tcache-count",
        title: "a deeper thread cache in glibc",
        kind: Kind::Process,
        walls: ALLOCATOR_WALLS,
        acts_on: ALLOCATOR_LINES,
        effect: Effect::AtMost(
            1.0,
            "only blocks up to 1,032 bytes that their own thread frees pass through the thread cache",
        ),
        needs: &[Need::Glibc(2, 26), Need::GlibcMalloc, Need::Unset("tcache_count")],
        restart: true,
        // 127 is the largest count that every version with a thread cache takes.
        how: "GLIBC_TUNABLES={tunables:glibc.malloc.tcache_count=127} {cmd}",
        backfires: "each thread may hold 127 free blocks of each of 64 sizes: up to 4 MiB a thread",
        undo: "restart without the tunable",
        moves: "arena work and locks to resident memory a thread",
    },
    Remedy {
        key: "glibc-arenas-few",
        title: "fewer arenas in glibc",
        kind: Kind::Process,
        walls: &[Wall::Retention, Wall::AddressSpaceLock],
        acts_on: &[AddressSpaceLock],
        effect: Effect::NotCpu("resident memory, and the arenas' map calls"),
        needs: &[
            Need::Glibc(2, 26),
            Need::GlibcMalloc,
            Need::MoreThanOneThread,
            Need::Unset("arena_max"),
            Need::Unset("MALLOC_ARENA_MAX"),
        ],
        restart: true,
        how: "GLIBC_TUNABLES={tunables:glibc.malloc.arena_max=2} {cmd}",
        backfires: "threads share locks: allocator contention on many cores",
        undo: "restart without the tunable",
        moves: "resident memory to lock waits",
    },
    Remedy {
        key: "malloc-trim",
        title: "give free memory back after the peak: malloc_trim(0)",
        kind: Kind::Advice,
        walls: &[Wall::Retention],
        acts_on: &[],
        effect: Effect::NotCpu("resident memory: whole free pages anywhere in the heap"),
        needs: &[Need::GlibcMalloc],
        restart: true,
        how: "call malloc_trim(0) after the large request (CPython: ctypes.CDLL(None).malloc_trim(0))",
        backfires: "holds each arena's lock for milliseconds; the next growth pays first touch again",
        undo: "take the call out",
        moves: "resident memory to first touches later",
    },
    Remedy {
        key: "jemalloc-decay",
        title: "jemalloc gives dirty pages back sooner",
        kind: Kind::Process,
        walls: &[Wall::Retention],
        acts_on: &[],
        effect: Effect::NotCpu("resident memory"),
        needs: &[Need::Jemalloc, Need::Unset("decay_ms")],
        restart: true,
        how: "{jemalloc:background_thread:true,dirty_decay_ms:1000,muzzy_decay_ms:0} {cmd}",
        backfires: "more madvise calls and first touches",
        undo: "restart without the variable",
        moves: "resident memory to kernel CPU time",
    },
    Remedy {
        key: "numa-bind",
        title: "keep threads and memory on one node",
        kind: Kind::Process,
        walls: &[Wall::Numa],
        acts_on: &[],
        effect: Effect::NotCpu("round trips to the other node"),
        needs: &[Need::MoreThanOneNode],
        restart: true,
        how: "numactl --cpunodebind=0 --membind=0 {cmd}",
        backfires: "half of the bandwidth and CPUs; one node may run out of memory while the other is empty",
        undo: "restart without numactl",
        moves: "remote latency to competition for one node",
    },
    Remedy {
        key: "reuse-buffers",
        title: "reuse large buffers from request to request",
        kind: Kind::Advice,
        walls: &[Wall::FirstTouch, Wall::MapChurn],
        acts_on: &[MapCalls, PageRelease, FaultPath, Zeroing],
        effect: Effect::AtMost(1.0, "as much of it as the named call sites cause"),
        needs: &[],
        restart: true,
        how: "keep the buffers of the named call sites in a pool, cleared rather than freed",
        backfires: "pools hold their high-water mark; without clearing, data leaks into the next request",
        undo: "revert the change",
        moves: "kernel CPU time to resident memory",
    },
    Remedy {
        key: "populate",
        title: "fault memory in with one call, ahead of the request",
        kind: Kind::Advice,
        walls: &[Wall::FirstTouch],
        acts_on: TOUCH_LINES,
        effect: Effect::Populate,
        needs: &[],
        restart: true,
        how: "MAP_POPULATE or madvise(MADV_POPULATE_WRITE) on memory that is mapped once and used whole",
        backfires: "it moves the cost: start-up or the call itself takes that long, unused pages included",
        undo: "revert the change",
        moves: "first touches from the request path to one call before it",
    },
    Remedy {
        key: "pool",
        title: "allocate less: pools, or an arena a request",
        kind: Kind::Advice,
        walls: &[Wall::CallRate, Wall::AllocatorCode, Wall::AllocatorContention],
        acts_on: &[AllocatorCode, AllocatorLocks, RuntimeAllocator],
        effect: Effect::AtMost(1.0, "as much of it as the named call sites cause"),
        needs: &[],
        restart: true,
        how: "at the named call sites: reuse objects, free a request's at once, reserve containers up front",
        backfires: "pools hold their high-water mark; stale objects are a new kind of bug",
        undo: "revert the change",
        moves: "CPU time to resident memory and to code that must know lifetimes",
    },
    Remedy {
        key: "read-less",
        title: "build fewer objects: read only the fields that are used",
        kind: Kind::Advice,
        walls: &[Wall::CallRate],
        acts_on: &[AllocatorCode, AllocatorLocks, RuntimeAllocator],
        effect: Effect::AtMost(1.0, "as much of it as the unread part of the data causes"),
        needs: &[],
        restart: true,
        how: "parse lazily or in place (views, streams, columns) instead of materialising whole documents",
        backfires: "views keep the whole input alive",
        undo: "revert the change",
        moves: "allocation to a parser that is called more than once",
    },
    Remedy {
        key: "share-less-mappings",
        title: "fewer maps and unmaps by concurrent threads",
        kind: Kind::Advice,
        walls: &[Wall::AddressSpaceLock],
        acts_on: &[AddressSpaceLock, MapCalls, PageRelease],
        effect: Effect::AtMost(1.0, "as much of it as the named call sites cause"),
        needs: &[],
        restart: true,
        how: "map large regions once and carve them, or split the work into processes; Linux 6.4 and later fault without the lock",
        backfires: "processes share no heap: resident memory grows",
        undo: "revert the change",
        moves: "lock waits to resident memory",
    },
];

pub fn find(key: &str) -> Option<&'static Remedy> {
    TABLE.iter().find(|r| r.key == key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn keys_are_unique_and_every_text_is_there() {
        let keys: BTreeSet<_> = TABLE.iter().map(|r| r.key).collect();
        assert_eq!(keys.len(), TABLE.len());
        for r in TABLE {
            for text in [r.title, r.how, r.backfires, r.undo, r.moves] {
                assert!(!text.is_empty(), "{}", r.key);
            }
            assert!(!r.walls.is_empty(), "{}", r.key);
            assert!(find(r.key).is_some_and(|found| found.key == r.key));
        }
        assert!(find("snake-oil").is_none());
    }

    #[test]
    fn a_remedy_that_saves_cpu_names_its_lines() {
        for r in TABLE {
            if !matches!(r.effect, Effect::NotCpu(_)) {
                assert!(!r.acts_on.is_empty(), "{}", r.key);
            }
            assert!(!r.acts_on.contains(&Application), "{}", r.key);
        }
    }

    #[test]
    fn prose_is_told_from_commands() {
        let command = |key: &str| find(key).is_some_and(|r| r.is_command(r.how));
        for key in [
            "nice",
            "glibc-hugetlb",
            "thp-always",
            "glibc-arenas-free",
            "numa-bind",
            "jemalloc",
        ] {
            assert!(command(key), "{key}");
        }
        let node = find("node-semi-space").unwrap();
        assert!(node.is_command("node --max-semi-space-size=64 app.js"));
        assert!(!node.is_command("start node with --max-semi-space-size=64"));
        for key in [
            "quota",
            "move-vm",
            "pool",
            "populate",
            "malloc-trim",
            "jvm-heap",
            "jvm-pretouch",
        ] {
            assert!(!command(key), "{key}");
        }
    }

    #[test]
    fn every_preload_needs_a_loader_and_every_tunable_a_version() {
        for r in TABLE {
            if r.how.contains("LD_PRELOAD=") {
                assert!(r.needs.contains(&Need::Preload), "{}", r.key);
            }
            if r.how.contains("{tunables:") {
                assert!(r.needs.contains(&Need::GlibcMalloc), "{}", r.key);
            }
        }
    }
}
