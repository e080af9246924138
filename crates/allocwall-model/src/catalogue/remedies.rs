//! The remedies: what to change, what each acts on, where it applies, how it backfires. Data alone; whether one fits
//! a target and what it would gain there is judged in `diagnose::remedies`.

use super::cost::CostClass::{self, *};
use super::modules::AllocatorKind;
use super::walls::Wall;

#[derive(Clone, Copy, Debug)]
pub struct Remedy {
    /// Stable; what a user types.
    pub key: &'static str,
    pub title: &'static str,
    pub kind: Kind,
    /// A diagnosis offers it when one of these fired; without any it is only applied when asked for.
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
    /// How it is applied to a command when that is started; None where it is not.
    pub start: Option<Start>,
}

/// How a remedy is applied when a command is started, as data.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// What stands behind the name.
    pub argument: Argument,
    /// Set all together; `{}` is the argument, `{arenas}` as above.
    pub applied: &'static [Change],
    /// What shows on the running target that it took.
    pub proof: &'static str,
    /// What it does, and where that ends.
    pub page: &'static str,
}

/// What stands behind a remedy's name.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Argument {
    None,
    /// `name=VALUE`
    Value(Form),
    /// `name[=VALUE]`, with this one where none is given.
    Or(Form, &'static str),
    /// `name[=VALUE]`: changes that name the argument are left out where none is given.
    Maybe(Form),
    /// `name[@SOURCE]`: `system`, `bundled`, a version, or a path.
    Source,
    /// `glibc:NAME=VALUE[,NAME=VALUE…]`
    Tunables,
    /// `env:NAME=VALUE`
    Variable,
}

/// How a value is written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Form {
    /// A whole number within these bounds.
    Count(u64, u64),
    /// Bytes, with K, M or G for powers of 1,024.
    Bytes,
    /// As the kernel lists CPUs: `0-3,8`.
    Cpus,
    Nodes,
    OneOf(&'static [&'static str]),
}

/// One thing that is different when the command starts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Change {
    Preload(Library),
    /// Name and value; GLIBC_TUNABLES keeps what else it holds.
    Tunable(&'static str, &'static str),
    Env(&'static str, &'static str),
    /// Behind what the variable holds already.
    EnvAppend {
        name: &'static str,
        separator: char,
        value: &'static str,
    },
    Unset(&'static str),
    /// Directly behind the program's name.
    CommandOption(&'static str),
    Prefault(&'static str),
    Cpus(&'static str),
    Nodes(&'static str),
    /// In the way of the allocator that serves the program.
    Pages(Pages),
    /// Of the Python package: CPython's arenas on huge pages.
    ArenaHook,
}

/// Which library is preloaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Library {
    Jemalloc,
    /// With its profilers or without.
    Tcmalloc,
    TcmallocMinimal,
    Mimalloc,
    Snmalloc,
    /// The C library of the program itself.
    Glibc,
}

impl Library {
    pub fn kind(self) -> AllocatorKind {
        match self {
            Library::Jemalloc => AllocatorKind::Jemalloc,
            Library::Tcmalloc | Library::TcmallocMinimal => AllocatorKind::Tcmalloc,
            Library::Mimalloc => AllocatorKind::Mimalloc,
            Library::Snmalloc => AllocatorKind::Snmalloc,
            Library::Glibc => AllocatorKind::Glibc,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    Transparent,
    Reserved,
}

/// How each allocator is told to use huge pages; one that is not here has no such setting.
/// glibc: malloc/malloc.c, since 2.35. jemalloc: opt.thp of its manual. mimalloc: src/prim/unix/prim.c.
pub const PAGES: &[(AllocatorKind, Pages, Change)] = &[
    (
        AllocatorKind::Glibc,
        Pages::Transparent,
        Change::Tunable("glibc.malloc.hugetlb", "1"),
    ),
    (
        AllocatorKind::Glibc,
        Pages::Reserved,
        Change::Tunable("glibc.malloc.hugetlb", "2"),
    ),
    (
        AllocatorKind::Jemalloc,
        Pages::Transparent,
        Change::EnvAppend {
            name: "MALLOC_CONF",
            separator: ',',
            value: "thp:always,metadata_thp:auto",
        },
    ),
    (
        AllocatorKind::Mimalloc,
        Pages::Transparent,
        Change::Env("MIMALLOC_ALLOW_LARGE_OS_PAGES", "1"),
    ),
    (
        AllocatorKind::Mimalloc,
        Pages::Reserved,
        Change::Env("MIMALLOC_ALLOW_LARGE_OS_PAGES", "1"),
    ),
];

/// Values of PYTHONMALLOC (Doc/using/cmdline.rst of CPython); those with mimalloc since 3.13.
pub const PYTHON_ALLOCATORS: &[&str] = &[
    "default",
    "malloc",
    "pymalloc",
    "mimalloc",
    "debug",
    "malloc_debug",
    "pymalloc_debug",
    "mimalloc_debug",
];

/// The variable that the Python package reads at the interpreter's start, and its value.
pub const ARENA_HOOK: &str = "ALLOCWALL_HUGEPAGES";
pub const ARENA_HOOK_ON: &str = "1";
/// In a folder of site packages, what reads it: the second since CPython 3.15.
pub const ARENA_HOOK_FILES: &[&str] = &["allocwall.pth", "allocwall.start"];

impl Remedy {
    /// Whether this change is among those that it makes.
    pub fn applies(&self, change: Change) -> bool {
        self.start.is_some_and(|start| start.applied.contains(&change))
    }

    /// `how`, filled in, is a command; else it is prose.
    pub fn is_command(&self, how: &str) -> bool {
        let setting = !how.starts_with(char::is_lowercase);
        let first = how.split(' ').next().unwrap_or_default();
        self.kind != Kind::Advice && (setting || COMMANDS.contains(&first))
    }

    /// As it is typed: `cpus=LIST`, `jemalloc[@SOURCE]`.
    pub fn usage(&self) -> String {
        let key = self.key;
        match self.start.map(|start| start.argument) {
            None | Some(Argument::None) => key.to_owned(),
            Some(Argument::Value(form)) => format!("{key}={}", form.shown()),
            Some(Argument::Or(form, _) | Argument::Maybe(form)) => format!("{key}[={}]", form.shown()),
            Some(Argument::Source) => format!("{key}[@SOURCE]"),
            Some(Argument::Tunables) => format!("{key}NAME=VALUE[,NAME=VALUE…]"),
            Some(Argument::Variable) => format!("{key}NAME=VALUE"),
        }
    }

    /// `how` with words in place of what only a diagnosis of a target knows.
    pub fn shell_line(&self) -> String {
        in_general(self.how)
    }

    /// `undo` in the same words.
    pub fn undo_line(&self) -> String {
        in_general(self.undo)
    }
}

/// A template with words in place of what only a diagnosis of a target knows.
fn in_general(template: &str) -> String {
    let text = [
        ("{cmd}", UNKNOWN_COMMAND),
        ("{threads}", "THREADS"),
        ("{quota}", "CPUs"),
        ("{whole_cpus}", "N"),
        ("{arenas}", "N"),
        ("{triple}", TRIPLE),
        (
            "{java_heap}",
            "which is a quarter of the memory where no -Xmx is given",
        ),
    ]
    .iter()
    .fold(template.to_owned(), |text, (hole, word)| text.replace(hole, word));
    [
        ("{tunables:", ""),
        ("{jemalloc:", "MALLOC_CONF="),
        ("{node:", "node "),
    ]
    .iter()
    .fold(text, |text, (opening, before)| match text.split_once(opening) {
        Some((start, rest)) => {
            let (inner, end) = rest.split_once('}').unwrap_or((rest, ""));
            format!("{start}{before}{inner}{end}")
        }
        None => text,
    })
}

impl Form {
    pub fn shown(self) -> &'static str {
        match self {
            Form::Count(..) => "N",
            Form::Bytes => "SIZE",
            Form::Cpus | Form::Nodes => "LIST",
            Form::OneOf(_) => "NAME",
        }
    }
}

/// Programs that a remedy's command starts with, where it doesn't start with a setting.
const COMMANDS: &[&str] = &["renice", "echo", "env", "numactl", "node", "nodejs"];

const TRIPLE: &str = if cfg!(target_arch = "aarch64") {
    "aarch64-linux-gnu"
} else {
    "x86_64-linux-gnu"
};

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
    /// Another allocator: what it saved of the same lines elsewhere ([`crate::catalogue::swaps`]).
    Swap,
    /// Calls that miss glibc's thread cache are served by it: 1 − malloc_cached / malloc_arena of what they cost.
    DeeperCache,
    /// Threads that share an arena stop waiting for it, and its code runs as fast as alone.
    OwnArenas,
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

impl Need {
    /// Whether only targets of one runtime meet it.
    pub fn names_a_runtime(&self) -> bool {
        use Need::*;
        matches!(
            self,
            Cpython | CpythonAtLeast(_) | CpythonFreeThreaded | Jvm | Go | Node
        )
    }
}

const PRELOAD_BACKFIRES: &str =
    "5 to 10 % more resident memory is usual; freeing another allocator's memory crashes";
const PRELOAD_PROOF: &str = "the library is mapped, the loader has bound malloc to it, in children too, and calls arrive there where they can be counted";
const PRELOAD_UNDO: &str = "restart without LD_PRELOAD";
const ALLOCATOR_WALLS: &[Wall] = &[Wall::AllocatorCode, Wall::AllocatorContention];
const ALLOCATOR_LINES: &[CostClass] = &[AllocatorCode, AllocatorLocks];
const TOUCH_LINES: &[CostClass] = &[FaultPath, Zeroing];
pub const MAP_LINES: &[CostClass] = &[MapCalls, PageRelease];
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
        start: None,
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
        start: Some(Start {
            argument: Argument::Value(Form::Count(1, 65_536)),
            applied: &[Change::Env("GOMAXPROCS", "{}")],
            proof: "the variable stands in the environment of the process that runs the program",
            page: "The Go scheduler then runs Go code on at most so many threads at once. Below a cgroup's quota it no longer spends the period's budget in its first part and then stands still.",
        }),
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
        start: None,
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
        start: None,
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
        start: Some(Start {
            argument: Argument::Or(Form::Count(1, 100_000), "200"),
            applied: &[Change::Env("GOGC", "{}")],
            proof: "the variable stands in the environment of the process that runs the program",
            page: "The heap may grow by so many per cent of what is live before the next collection; Go's own setting is 100. Combine it with gomemlimit=SIZE, so that the larger heap stays below the memory limit.",
        }),
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
        start: None,
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
        start: Some(Start {
            argument: Argument::Or(Form::Count(1, 4096), "64"),
            applied: &[Change::CommandOption("--max-semi-space-size={}")],
            proof: "the option stands on the command line behind node",
            page: "V8's young generation, in MiB a semi-space. A larger one is collected less often, and what dies young is then never copied. It is set on the command line, which every version takes, so node must be the command's own program.",
        }),
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
        start: Some(Start {
            argument: Argument::Value(Form::Bytes),
            applied: &[Change::CommandOption("-Xmx{}")],
            proof: "the option stands on the command line behind java",
            page: "The largest size of the Java heap. It goes on the command line, before which JAVA_TOOL_OPTIONS gives way, so java must be the command's own program; a -Xmx that follows there wins.",
        }),
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
        start: Some(Start {
            argument: Argument::None,
            applied: &[
                Change::Tunable("glibc.malloc.mmap_threshold", "268435456"),
                Change::Tunable("glibc.malloc.trim_threshold", "268435456"),
            ],
            proof: "GLIBC_TUNABLES stands in the environment of the process, and glibc's malloc serves it",
            page: "Blocks up to 256 MiB come from the heap instead of a mapping of their own, and the heap's top is given back only above as much. Both are set, since either of them alone stops glibc from raising the other with the blocks that it frees. Threads other than the first have arenas of at most 64 MiB, where larger blocks are mapped all the same.",
        }),
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
        start: Some(Start {
            argument: Argument::None,
            applied: &[
                Change::Tunable("glibc.malloc.mmap_threshold", "33554432"),
                Change::Tunable("glibc.malloc.trim_threshold", "268435456"),
            ],
            proof: "GLIBC_TUNABLES stands in the environment of the process, and glibc's malloc serves it",
            page: "As glibc-keep-memory, for versions before 2.36, which take a mapping threshold of at most 32 MiB. Larger blocks are mapped and unmapped as before.",
        }),
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
        start: Some(Start {
            argument: Argument::None,
            applied: &[Change::Tunable("glibc.malloc.hugetlb", "1")],
            proof: "huge pages are resident in the heap: AnonHugePages of /proc/PID/smaps",
            page: "glibc asks for transparent huge pages (madvise) for its heap and for the blocks that it maps. It asks only where the machine's mode is madvise: in mode always they have them anyway, in mode never nobody has.",
        }),
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
        start: Some(Start {
            argument: Argument::None,
            applied: &[Change::EnvAppend {
                name: "MALLOC_CONF",
                separator: ',',
                value: "thp:always,metadata_thp:auto",
            }],
            proof: "huge pages are resident in the heap: AnonHugePages of /proc/PID/smaps",
            page: "jemalloc asks for transparent huge pages for all that it maps. A build whose functions carry a prefix reads a variable with that prefix; which one is read from the library.",
        }),
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
        start: Some(Start {
            argument: Argument::None,
            applied: &[Change::Env("MIMALLOC_ALLOW_LARGE_OS_PAGES", "1")],
            proof: "huge pages are resident in the heap: AnonHugePages of /proc/PID/smaps",
            page: "mimalloc takes reserved 2 MiB pages where the machine has some, and else asks for transparent ones (src/prim/unix/prim.c).",
        }),
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
        start: Some(Start {
            argument: Argument::None,
            applied: &[
                Change::Env("PYTHONMALLOC", "mimalloc"),
                Change::Env("MIMALLOC_ALLOW_LARGE_OS_PAGES", "1"),
            ],
            proof: "huge pages are resident in the heap: AnonHugePages of /proc/PID/smaps",
            page: "CPython 3.13 and later carry mimalloc inside and can serve all objects from it; that mimalloc reads its own options from the environment.",
        }),
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
        start: Some(Start {
            argument: Argument::None,
            applied: &[Change::Env("MIMALLOC_ALLOW_LARGE_OS_PAGES", "1")],
            proof: "huge pages are resident in the heap: AnonHugePages of /proc/PID/smaps",
            page: "The free-threaded build of CPython serves its objects from the mimalloc inside it, which reads its own options from the environment.",
        }),
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
        start: Some(Start {
            argument: Argument::None,
            applied: &[Change::EnvAppend {
                name: "JAVA_TOOL_OPTIONS",
                separator: ' ',
                value: "-XX:+UseTransparentHugePages",
            }],
            proof: "huge pages are resident in the heap: AnonHugePages of /proc/PID/smaps",
            page: "The JVM asks for transparent huge pages for its heap. It says on standard error that it picked up JAVA_TOOL_OPTIONS.",
        }),
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
        start: Some(Start {
            argument: Argument::Maybe(Form::Bytes),
            applied: &[
                Change::EnvAppend {
                    name: "JAVA_TOOL_OPTIONS",
                    separator: ' ',
                    value: "-XX:+AlwaysPreTouch",
                },
                Change::EnvAppend {
                    name: "JAVA_TOOL_OPTIONS",
                    separator: ' ',
                    value: "-Xms{}",
                },
            ],
            proof: "the variable stands in the environment of the process that runs the program",
            page: "The JVM writes to every page of its heap as it commits it. At start that is the initial heap: with a SIZE it is made so large, without one it is as large as -Xms says or, by default, a 64th of the memory. An option on the command line goes before this one.",
        }),
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
        start: None,
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
        effect: Effect::Swap,
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
        start: Some(Start {
            argument: Argument::Source,
            applied: &[Change::Preload(Library::Jemalloc)],
            proof: PRELOAD_PROOF,
            page: "Its caches are per thread, and it has four arenas a CPU; free pages go back to the kernel after ten seconds of decay. `jemalloc` takes the system's library, else the bundled one; `jemalloc@system`, `jemalloc@bundled`, `jemalloc@5.3.0` and `jemalloc@/path/lib.so` say which. Several versions are several arms.",
        }),
    },
    Remedy {
        key: "tcmalloc",
        title: "tcmalloc by preload",
        kind: Kind::Process,
        walls: ALLOCATOR_WALLS,
        acts_on: ALLOCATOR_LINES,
        effect: Effect::Swap,
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
        start: Some(Start {
            argument: Argument::Source,
            applied: &[Change::Preload(Library::Tcmalloc)],
            proof: PRELOAD_PROOF,
            page: "The tcmalloc of gperftools: per-thread caches in front of central free lists. Takes libtcmalloc where it is installed, else libtcmalloc_minimal, which lacks only its profilers. `tcmalloc@/path/lib.so` says which.",
        }),
    },
    Remedy {
        key: "mimalloc",
        title: "mimalloc by preload",
        kind: Kind::Process,
        walls: ALLOCATOR_WALLS,
        acts_on: ALLOCATOR_LINES,
        effect: Effect::Swap,
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
        start: Some(Start {
            argument: Argument::Source,
            applied: &[Change::Preload(Library::Mimalloc)],
            proof: PRELOAD_PROOF,
            page: "A heap for each thread, whose free lists are a page's own; blocks that another thread frees go back by one atomic operation. `mimalloc` takes the system's library, else the bundled one; `mimalloc@system`, `mimalloc@bundled` and `mimalloc@/path/lib.so` say which: versions 2 and 3 differ much and are two arms.",
        }),
    },
    Remedy {
        key: "mimalloc-musl",
        title: "mimalloc by preload, built for musl",
        kind: Kind::Process,
        walls: ALLOCATOR_WALLS,
        acts_on: ALLOCATOR_LINES,
        effect: Effect::Swap,
        needs: &[Need::Musl, Need::Preload, Need::NotMimalloc, Need::MallocMatters],
        restart: true,
        how: "LD_PRELOAD=/usr/lib/libmimalloc.so.2 {cmd}   # Alpine: mimalloc2",
        backfires: PRELOAD_BACKFIRES,
        undo: PRELOAD_UNDO,
        moves: "the one lock of musl's allocator to per-thread heaps: resident memory",
        start: Some(Start {
            argument: Argument::Source,
            applied: &[Change::Preload(Library::Mimalloc)],
            proof: PRELOAD_PROOF,
            page: "musl's allocator has one lock for all threads. The library must have been built for musl: one that was linked with glibc is refused.",
        }),
    },
    Remedy {
        key: "glibc-arenas-free",
        title: "lift the limit on glibc's arenas",
        kind: Kind::Process,
        walls: &[Wall::AllocatorContention],
        acts_on: &[AllocatorLocks],
        effect: Effect::OwnArenas,
        needs: &[Need::GlibcMalloc, Need::ArenasLimited, Need::MoreThanOneThread],
        restart: true,
        how: "env -u MALLOC_ARENA_MAX GLIBC_TUNABLES={tunables:glibc.malloc.arena_max={arenas}} {cmd}   # eight a core, the default",
        backfires: "each arena keeps its own free memory: resident memory grows, which the limit prevents",
        undo: "set the limit again",
        moves: "lock waits to resident memory",
        start: Some(Start {
            argument: Argument::None,
            applied: &[
                Change::Unset("MALLOC_ARENA_MAX"),
                Change::Tunable("glibc.malloc.arena_max", "{arenas}"),
            ],
            proof: "GLIBC_TUNABLES stands in the environment of the process, and glibc's malloc serves it",
            page: "Containers and service files often set MALLOC_ARENA_MAX=2 to save memory; then threads share two locks. This takes the limit back to glibc's own, eight arenas a CPU.",
        }),
    },
    Remedy {
        key: "glibc-tcache-count",
        title: "a deeper thread cache in glibc",
        kind: Kind::Process,
        walls: ALLOCATOR_WALLS,
        acts_on: ALLOCATOR_LINES,
        effect: Effect::DeeperCache,
        needs: &[Need::Glibc(2, 26), Need::GlibcMalloc, Need::Unset("tcache_count")],
        restart: true,
        // 127 is the largest count that every version with a thread cache takes.
        how: "GLIBC_TUNABLES={tunables:glibc.malloc.tcache_count=127} {cmd}",
        backfires: "each thread may hold 127 free blocks of each of 64 sizes: up to 4 MiB a thread",
        undo: "restart without the tunable",
        moves: "arena work and locks to resident memory a thread",
        start: Some(Start {
            argument: Argument::Or(Form::Count(0, 65_535), "127"),
            applied: &[Change::Tunable("glibc.malloc.tcache_count", "{}")],
            proof: "GLIBC_TUNABLES stands in the environment of the process, and glibc's malloc serves it",
            page: "glibc's thread cache holds 7 free blocks of each size by itself. A thread that frees more of a size than the cache holds falls through to the arena and its lock.",
        }),
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
        start: Some(Start {
            argument: Argument::Or(Form::Count(1, 65_536), "2"),
            applied: &[Change::Tunable("glibc.malloc.arena_max", "{}")],
            proof: "GLIBC_TUNABLES stands in the environment of the process, and glibc's malloc serves it",
            page: "Each arena keeps free memory of its own, and glibc makes up to eight a CPU. Fewer arenas hold less, and threads that allocate at the same time wait for one another.",
        }),
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
        start: None,
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
        start: Some(Start {
            argument: Argument::Or(Form::Count(0, 3_600_000), "1000"),
            applied: &[Change::EnvAppend {
                name: "MALLOC_CONF",
                separator: ',',
                value: "background_thread:true,dirty_decay_ms:{},muzzy_decay_ms:0",
            }],
            proof: "the variable stands in the environment of the process that runs the program",
            page: "Pages that are free for so many milliseconds go back to the kernel, by a thread of jemalloc's own, so that an idle process shrinks too; jemalloc's own setting is 10,000.",
        }),
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
        start: Some(Start {
            argument: Argument::Or(Form::Nodes, "0"),
            applied: &[Change::Nodes("{}")],
            proof: "the policy of /proc/PID/numa_maps and Cpus_allowed_list are as set",
            page: "Memory is taken from these nodes alone, and threads run on their CPUs alone (unless cpus=LIST says otherwise). Where they have no memory left the process is ended, even though other nodes have some.",
        }),
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
        start: None,
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
        start: None,
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
        start: None,
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
        start: None,
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
        start: None,
    },
    Remedy {
        key: "tcmalloc-minimal",
        title: "tcmalloc without its profilers, by preload",
        kind: Kind::Process,
        walls: &[],
        acts_on: ALLOCATOR_LINES,
        effect: Effect::Swap,
        needs: &[Need::Glibc(2, 17), Need::Preload],
        restart: true,
        how: "LD_PRELOAD=/usr/lib/{triple}/libtcmalloc_minimal.so.4 {cmd}   # Debian: libtcmalloc-minimal4",
        backfires: PRELOAD_BACKFIRES,
        undo: PRELOAD_UNDO,
        moves: "lock waits and slow paths to per-thread caches: resident memory",
        start: Some(Start {
            argument: Argument::Source,
            applied: &[Change::Preload(Library::TcmallocMinimal)],
            proof: PRELOAD_PROOF,
            page: "As tcmalloc, and never the library with the profilers inside.",
        }),
    },
    Remedy {
        key: "snmalloc",
        title: "snmalloc by preload",
        kind: Kind::Process,
        walls: &[],
        acts_on: ALLOCATOR_LINES,
        effect: Effect::Swap,
        needs: &[Need::Glibc(2, 17), Need::Preload],
        restart: true,
        how: "LD_PRELOAD=/usr/local/lib/libsnmallocshim.so {cmd}",
        backfires: PRELOAD_BACKFIRES,
        undo: PRELOAD_UNDO,
        moves: "remote frees to messages between threads: resident memory",
        start: Some(Start {
            argument: Argument::Source,
            applied: &[Change::Preload(Library::Snmalloc)],
            proof: PRELOAD_PROOF,
            page: "Made for blocks that one thread allocates and another frees: they travel back in batches. Distributions have no package of it; it is bundled where this program was built with it, and `snmalloc@/path/lib.so` takes one of your own.",
        }),
    },
    Remedy {
        key: "glibc",
        title: "glibc's own malloc",
        kind: Kind::Process,
        walls: &[],
        acts_on: ALLOCATOR_LINES,
        effect: Effect::Swap,
        needs: &[Need::Glibc(2, 17), Need::Preload],
        restart: true,
        how: "LD_PRELOAD=/lib/{triple}/libc.so.6 {cmd}",
        backfires: "what the program's own allocator was chosen for is lost",
        undo: "restart without it",
        moves: "the work of the program's own allocator to glibc's",
        start: Some(Start {
            argument: Argument::None,
            applied: &[Change::Preload(Library::Glibc)],
            proof: "malloc is bound to libc.so.6, in children too",
            page: "For programs that are linked with another allocator or have one preloaded: the C library goes first among the preloaded libraries, and other allocators leave that list. A program that has glibc's malloc anyway is started as it is.",
        }),
    },
    Remedy {
        key: "none",
        title: "nothing changed",
        kind: Kind::Process,
        walls: &[],
        acts_on: &[],
        effect: Effect::NotCpu("nothing: it is the baseline once more"),
        needs: &[],
        restart: true,
        how: "{cmd}",
        backfires: "nothing can",
        undo: "nothing is to be undone",
        moves: "nothing",
        start: Some(Start {
            argument: Argument::None,
            applied: &[],
            proof: "nothing is to be proved",
            page: "The command as it is, for a comparison of the baseline with itself: what that shows is noise.",
        }),
    },
    Remedy {
        key: "glibc:",
        title: "tunables of glibc",
        kind: Kind::Process,
        walls: &[],
        acts_on: ALLOCATOR_LINES,
        effect: Effect::AtMost(1.0, "a tunable has no price here, only a trial tells"),
        needs: &[Need::Glibc(2, 26)],
        restart: true,
        how: "GLIBC_TUNABLES=glibc.malloc.NAME=VALUE:glibc.malloc.NAME=VALUE {cmd}",
        backfires: "as each tunable's own page says: allocwall explain glibc:NAME",
        undo: "restart without the tunables",
        moves: "as each tunable's own page says",
        start: Some(Start {
            argument: Argument::Tunables,
            applied: &[],
            proof: "GLIBC_TUNABLES stands in the environment of the process",
            page: "Any tunable of the running loader's own list. `glibc:arena_max=2,trim_threshold=64M` sets two of glibc.malloc; another group is named with its dot, as in `glibc:pthread.rseq=0`. Names and ranges are checked against what the program's own loader lists (glibc 2.33 and later), since glibc itself ignores in silence what it doesn't know. Sizes may end in K, M or G, powers of 1,024.",
        }),
    },
    Remedy {
        key: "glibc-top-pad",
        title: "glibc's heap grows in large steps and is kept",
        kind: Kind::Process,
        walls: &[],
        acts_on: &[MapCalls, PageRelease],
        effect: Effect::AtMost(1.0, "only a trial tells"),
        needs: &[Need::Glibc(2, 26), Need::GlibcMalloc],
        restart: true,
        how: "MALLOC_TOP_PAD_=67108864 MALLOC_TRIM_THRESHOLD_=268435456 MALLOC_MMAP_THRESHOLD_=33554432 {cmd}",
        backfires: "up to SIZE more memory is mapped, though not resident before its first touch; a heap that has grown stays",
        undo: "restart without the tunables",
        moves: "calls of brk to memory that stays mapped",
        start: Some(Start {
            argument: Argument::Or(Form::Bytes, "64M"),
            applied: &[
                Change::Tunable("glibc.malloc.top_pad", "{}"),
                Change::Tunable("glibc.malloc.trim_threshold", "268435456"),
                Change::Tunable("glibc.malloc.mmap_threshold", "33554432"),
            ],
            proof: "GLIBC_TUNABLES stands in the environment of the process, and glibc's malloc serves it",
            page: "Every time that the heap grows it grows by SIZE more than was asked for, so that brk is called less often. The two thresholds are set with it, as any of the three stops glibc from adapting the others: memory is given back above 256 MiB, and blocks above 32 MiB are mapped.",
        }),
    },
    Remedy {
        key: "thp",
        title: "the allocator's heap on transparent huge pages",
        kind: Kind::Process,
        walls: &[],
        acts_on: TOUCH_LINES,
        effect: Effect::HugeTouch,
        needs: &[Need::ThpByAdvice],
        restart: true,
        how: "GLIBC_TUNABLES=glibc.malloc.hugetlb=1 {cmd}   # glibc; each allocator has a setting of its own",
        backfires: HUGE_BACKFIRES,
        undo: "restart without the setting",
        moves: "512 small faults to one large one: fewer, longer pauses",
        start: Some(Start {
            argument: Argument::None,
            applied: &[Change::Pages(Pages::Transparent)],
            proof: "huge pages are resident in the heap: AnonHugePages of /proc/PID/smaps",
            page: "In the way of the allocator of the same arm, or else of the one that the program has: glibc by glibc.malloc.hugetlb=1, jemalloc by thp:always of MALLOC_CONF, mimalloc by MIMALLOC_ALLOW_LARGE_OS_PAGES. tcmalloc and snmalloc have no such setting and are refused, and so is a machine whose mode is never.",
        }),
    },
    Remedy {
        key: "hugetlb",
        title: "the allocator's heap on reserved huge pages",
        kind: Kind::Process,
        walls: &[],
        acts_on: TOUCH_LINES,
        effect: Effect::HugeTouch,
        needs: &[],
        restart: true,
        how: "GLIBC_TUNABLES=glibc.malloc.hugetlb=2 {cmd}   # after: echo PAGES > /proc/sys/vm/nr_hugepages, as root",
        backfires: "the reserved pages are lost to everybody else; when they are used up, small ones are taken in silence; a fork may die of SIGBUS when none is left for its copy",
        undo: "restart without the setting, and echo 0 > /proc/sys/vm/nr_hugepages",
        moves: "512 small faults to one large one; memory of the machine to this process",
        start: Some(Start {
            argument: Argument::None,
            applied: &[Change::Pages(Pages::Reserved)],
            proof: "reserved pages are resident in the heap: Private_Hugetlb of /proc/PID/smaps",
            page: "glibc by glibc.malloc.hugetlb=2, mimalloc by MIMALLOC_ALLOW_LARGE_OS_PAGES, which takes reserved pages first; its 1 GiB pages are asked for by env:MIMALLOC_RESERVE_HUGE_OS_PAGES=N. jemalloc, tcmalloc and snmalloc have no such setting and are refused, and so is a machine that has reserved none.",
        }),
    },
    Remedy {
        key: "prefault",
        title: "the heap grown and touched before main",
        kind: Kind::Process,
        walls: &[],
        acts_on: TOUCH_LINES,
        effect: Effect::AtMost(
            1.0,
            "first touches of as much heap as SIZE says, of the first arena",
        ),
        needs: &[Need::Preload],
        restart: true,
        how: "LD_PRELOAD=LIBRARY ALLOCWALL_PREFAULT=BYTES {cmd}   # allocwall run --print --with prefault=SIZE has the library's path",
        backfires: "start-up takes as long as touching SIZE does, in each program that the command starts; SIZE is resident from then on",
        undo: "restart without it",
        moves: "first touches from requests to start-up",
        start: Some(Start {
            argument: Argument::Value(Form::Bytes),
            applied: &[Change::Prefault("{}")],
            proof: "resident memory at start is at least SIZE",
            page: "A small library, preloaded, allocates SIZE, writes to each page and frees all of it, before main; glibc is told to keep it. The memory serves the first arena, which is the main thread's. With another allocator it lasts as long as that allocator keeps free memory.",
        }),
    },
    Remedy {
        key: "cpus",
        title: "threads on these CPUs alone",
        kind: Kind::Process,
        walls: &[],
        acts_on: &[],
        effect: Effect::NotCpu("moves from one CPU to another, and caches that go cold with them"),
        needs: &[],
        restart: true,
        how: "taskset -c LIST {cmd}",
        backfires: "fewer CPUs than runnable threads make them wait; a busy neighbour on these CPUs can no longer be avoided",
        undo: "restart without it",
        moves: "migrations to waits for these CPUs",
        start: Some(Start {
            argument: Argument::Value(Form::Cpus),
            applied: &[Change::Cpus("{}")],
            proof: "Cpus_allowed_list of /proc/PID/status is as set",
            page: "A list as in 0-3,8. The CPUs must exist, be online and be allowed to this process. What the command starts inherits it.",
        }),
    },
    Remedy {
        key: "nodes",
        title: "threads and memory on these NUMA nodes",
        kind: Kind::Process,
        walls: &[],
        acts_on: &[],
        effect: Effect::NotCpu("round trips to the other nodes"),
        needs: &[],
        restart: true,
        how: "numactl --cpunodebind=LIST --membind=LIST {cmd}",
        backfires: "less bandwidth and fewer CPUs; a process whose nodes are full is ended while others are empty",
        undo: "restart without it",
        moves: "remote latency to competition for these nodes",
        start: Some(Start {
            argument: Argument::Value(Form::Nodes),
            applied: &[Change::Nodes("{}")],
            proof: "the policy of /proc/PID/numa_maps and Cpus_allowed_list are as set",
            page: "Memory is taken from these nodes alone, and threads run on their CPUs alone, unless cpus=LIST says otherwise.",
        }),
    },
    Remedy {
        key: "pythonmalloc",
        title: "CPython's objects served by another allocator",
        kind: Kind::Process,
        walls: &[],
        acts_on: &[RuntimeAllocator, AllocatorCode, AllocatorLocks],
        effect: Effect::AtMost(1.0, "only a trial tells"),
        needs: &[Need::Cpython],
        restart: true,
        how: "PYTHONMALLOC=NAME {cmd}",
        backfires: "malloc serves small objects slower than pymalloc does in most programs; debug variants are several times slower",
        undo: "restart without the variable",
        moves: "work from pymalloc to the allocator that is named",
        start: Some(Start {
            argument: Argument::Value(Form::OneOf(PYTHON_ALLOCATORS)),
            applied: &[Change::Env("PYTHONMALLOC", "{}")],
            proof: "the variable stands in the environment of the process that runs the program",
            page: "pymalloc serves blocks up to 512 bytes and is the default. With `malloc` everything goes to the process's malloc, so that `pythonmalloc=malloc+jemalloc` puts Python's objects into jemalloc. mimalloc is inside CPython since 3.13.",
        }),
    },
    Remedy {
        key: "pymalloc-hugepages",
        title: "CPython's arenas on huge pages",
        kind: Kind::Process,
        walls: &[Wall::FirstTouch, Wall::Tlb, Wall::CallRate],
        acts_on: TOUCH_LINES,
        effect: Effect::HugeTouch,
        needs: &[
            // The Python package is for these.
            Need::CpythonAtLeast(9),
            Need::ThpByAdvice,
            Need::Unset("PYTHONMALLOC"),
            Need::Unset(ARENA_HOOK),
        ],
        restart: true,
        how: "ALLOCWALL_HUGEPAGES=1 {cmd}   # with the Python package: pip install allocwall, into that interpreter",
        backfires: "an interpreter holds up to 2 MiB more, and of what its heap gave back some 5 %, or 4 MiB; after a fork the first write to a huge page splits it; where a host takes memory back, fresh huge pages can be dearer than small ones (each is timed, and dear ones are not asked for again soon)",
        undo: "restart without the variable",
        moves: "512 small faults to one large one: fewer, longer pauses",
        start: Some(Start {
            argument: Argument::None,
            applied: &[Change::ArenaHook, Change::Unset("PYTHONMALLOC")],
            proof: "the hook's library is mapped in each run; in the run that is not counted, at least one slab of 2 MiB in a range that the hook asked huge pages for: AnonHugePages of /proc/PID/smaps",
            page: "pymalloc carves objects of at most 512 bytes from arenas of 1 MiB (256 KiB before 3.10) on 4 KiB pages. A hook of the Python package packs them into slabs that one huge page can hold. The package must be installed in the interpreter that runs, since it reads the variable at its start; where it is not, this is refused. PYTHONMALLOC is taken away: without pymalloc there are no arenas. Blocks of more than 512 bytes are malloc's and stay where they are, as do free-threaded builds (cpython-nogil-huge). Whether loads miss the TLB less often no price tells; the prediction leaves that wide.",
        }),
    },
    Remedy {
        key: "gomemlimit",
        title: "a soft limit for Go's memory",
        kind: Kind::Process,
        walls: &[],
        acts_on: &[GarbageCollector],
        effect: Effect::AtMost(1.0, "only a trial tells"),
        needs: &[Need::Go],
        restart: true,
        how: "GOMEMLIMIT=BYTES {cmd}",
        backfires: "near the limit the collector runs all the time",
        undo: "restart without the variable",
        moves: "resident memory to the collector's CPU time, or back when GOGC is raised with it",
        start: Some(Start {
            argument: Argument::Value(Form::Bytes),
            applied: &[Change::Env("GOMEMLIMIT", "{}")],
            proof: "the variable stands in the environment of the process that runs the program",
            page: "Go collects more often as its memory comes near this size. With a large GOGC it collects only then: `gogc=400+gomemlimit=2G`.",
        }),
    },
    Remedy {
        key: "jvm-large-pages",
        title: "the Java heap on reserved huge pages",
        kind: Kind::Process,
        walls: &[],
        acts_on: TOUCH_LINES,
        effect: Effect::HugeTouch,
        needs: &[Need::Jvm],
        restart: true,
        how: "JAVA_TOOL_OPTIONS=-XX:+UseLargePages {cmd}   # after: echo PAGES > /proc/sys/vm/nr_hugepages, as root",
        backfires: "the reserved pages are lost to everybody else; without enough of them the JVM warns and takes small ones",
        undo: "restart without the option",
        moves: "512 small faults to one large one; memory of the machine to this process",
        start: Some(Start {
            argument: Argument::None,
            applied: &[Change::EnvAppend {
                name: "JAVA_TOOL_OPTIONS",
                separator: ' ',
                value: "-XX:+UseLargePages",
            }],
            proof: "reserved pages are resident in the heap: Private_Hugetlb of /proc/PID/smaps",
            page: "The JVM reserves its whole heap on huge pages at start, which is a pre-touch as well.",
        }),
    },
    Remedy {
        key: "node-heap",
        title: "a larger heap for V8",
        kind: Kind::Process,
        walls: &[],
        acts_on: &[GarbageCollector],
        effect: Effect::AtMost(1.0, "depends on how much survives a collection"),
        needs: &[Need::Node],
        restart: true,
        how: "NODE_OPTIONS=--max-old-space-size=MB {cmd}",
        backfires: "more resident memory; a full collection of it takes longer",
        undo: "restart without the option",
        moves: "CPU time to resident memory",
        start: Some(Start {
            argument: Argument::Value(Form::Count(16, 1_048_576)),
            applied: &[Change::EnvAppend {
                name: "NODE_OPTIONS",
                separator: ' ',
                value: "--max-old-space-size={}",
            }],
            proof: "the variable stands in the environment of the process that runs the program",
            page: "The limit of V8's old generation, in MiB. Near its limit V8 collects more and more often before it gives up.",
        }),
    },
    Remedy {
        key: "env:",
        title: "a variable of your own",
        kind: Kind::Process,
        walls: &[],
        acts_on: &[],
        effect: Effect::NotCpu("whatever reads the variable"),
        needs: &[],
        restart: true,
        how: "NAME=VALUE {cmd}",
        backfires: "whatever reads the variable decides",
        undo: "restart without the variable",
        moves: "whatever reads the variable decides",
        start: Some(Start {
            argument: Argument::Variable,
            applied: &[],
            proof: "the variable stands in the environment of the process",
            page: "For settings that have no name here. Nothing is checked but that no other part of the arm sets the same variable. A + within the value belongs to it unless the name of a remedy follows.",
        }),
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
            assert!(!r.walls.is_empty() || r.start.is_some(), "{}", r.key);
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
