//! The remedies: what each one changes, which lines of the bill it acts on, where it applies, and how it can backfire.
//! This file holds data only. `diagnose::needs` judges whether a target meets the needs of a remedy, `diagnose::expected`
//! predicts its gain.

use super::cost::CostClass::{self, *};
use super::modules::{AllocatorKind, JEMALLOC_CONF};
use super::symbols::KernelObject;
use super::walls::Wall;
use std::collections::BTreeSet;

#[derive(Clone, Copy, Debug)]
pub struct Remedy {
    /// The name that a user types. It is stable.
    pub key: &'static str,
    pub title: &'static str,
    pub kind: Kind,
    /// A diagnosis offers the remedy when one of these walls was found. If the list is empty, only a user can ask for it.
    pub walls: &'static [Wall],
    /// Lines of the bill that the remedy acts on; empty if it saves no CPU time.
    pub acts_on: &'static [CostClass],
    pub effect: Effect,
    /// Conditions; all must hold. A remedy has at most one [`Need::SettingBelow`].
    pub needs: &'static [Need],
    pub restart: bool,
    pub how: How,
    /// A note for the reader of `how`, with the same placeholders; empty if there is none.
    pub note: &'static str,
    /// With the same placeholders.
    pub backfires: &'static str,
    pub undo: &'static str,
    pub moves: &'static str,
    /// How to apply the remedy when the command is started; None if that is not possible.
    pub start: Option<Start>,
}

/// What the user types or does. The texts have placeholders: `{cmd}`, `{threads}` (of the target's processes), `{triple}`,
/// `{tunables:…}` (merged with the tunables that are already set), `{quota}`, `{whole_cpus}` (the quota, rounded up), `{arenas}`,
/// `{java_heap}`, `{heap_growth}` (per cent, of a garbage-collected heap), `{heap}` (the size of malloc's), `{node:…}` (the command with an option), `{jemalloc:…}` (in the variable that this build of jemalloc reads).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum How {
    /// The command is started with the changes of `start`, with this argument instead of the default, if there is one.
    Start(Option<&'static str>),
    /// A command that acts on running processes or on the machine, or that starts the command by `allocwall run`.
    Command(&'static str),
    /// Advice as text, not a command.
    Text(&'static str),
}

/// How a remedy is applied when a command is started, as data.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// What the user writes after the name.
    pub argument: Argument,
    /// The changes, all applied together. `{}` is the argument; `{arenas}` as above.
    pub applied: &'static [Change],
    /// What the remedy does, and its limits.
    pub page: &'static str,
}

/// What the user writes after a remedy's name.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Argument {
    None,
    /// `name=VALUE`
    Value(Form),
    /// `name[=VALUE]`; the string is the default.
    Or(Form, &'static str),
    /// `name[=VALUE]`; without a value, changes that use the argument are left out.
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
    /// Bytes; the suffixes K, M and G are powers of 1,024.
    Bytes,
    /// A list in the kernel's format: `0-3,8`.
    Cpus,
    Nodes,
    OneOf(&'static [&'static str]),
}

/// One change that is made when the command is started.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Change {
    Preload(Library),
    /// Name and value. Other entries of GLIBC_TUNABLES are kept.
    Tunable(&'static str, &'static str),
    Env(&'static str, &'static str),
    /// Appends to the variable's value.
    EnvAppend {
        name: &'static str,
        separator: char,
        value: &'static str,
    },
    Unset(&'static str),
    /// Inserted directly after the program's name.
    CommandOption(&'static str),
    Prefault(&'static str),
    Cpus(&'static str),
    Nodes(&'static str),
    /// Huge pages, by the setting of the allocator that serves the program (see [`PAGES`]).
    Pages(Pages),
    /// CPython's arenas on huge pages, by the hook of the Python package.
    ArenaHook,
}

impl Change {
    fn proofs(self) -> &'static [Proof] {
        match self {
            Change::Preload(Library::Glibc) => &[Proof::CLibrary],
            Change::Preload(_) => &[Proof::Preload],
            Change::Tunable(name, _) => Proof::of_tunable(name),
            Change::Env(..) | Change::EnvAppend { .. } => &[Proof::Variable],
            Change::Unset(_) => &[],
            Change::CommandOption(_) => &[Proof::CommandLine],
            Change::Prefault(_) => &[Proof::Prefault],
            Change::Cpus(_) => &[Proof::Cpus],
            Change::Nodes(_) => &[Proof::Nodes, Proof::Cpus],
            Change::Pages(_) => &[Proof::Variable, Proof::HugePages],
            Change::ArenaHook => &[Proof::Variable, Proof::Arenas],
        }
    }
}

/// What a trial checks in the running target, to see that a remedy took effect. In `allocwall-trial`, `arm::Expectation` adds
/// the values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Proof {
    Preload,
    /// glibc serves malloc.
    CLibrary,
    Variable,
    Tunables,
    CommandLine,
    Prefault,
    /// Transparent or reserved, anywhere in the process.
    HugePages,
    /// CPython's arenas, through the hook of the Python package.
    Arenas,
    Nodes,
    Cpus,
}

impl Proof {
    pub fn text(self) -> &'static str {
        match self {
            Proof::Preload => {
                "the library is mapped; the loader bound malloc to it, also in child processes; calls reach it, if they can be counted"
            }
            Proof::CLibrary => "the loader bound malloc to libc.so.6, also in child processes",
            Proof::Variable => "the variable is in the environment of the process that runs the program",
            Proof::Tunables => "GLIBC_TUNABLES is in the environment of the process",
            Proof::CommandLine => "the option is on the command line",
            Proof::Prefault => "the library is mapped; the peak of resident memory is at least SIZE",
            Proof::HugePages => {
                "huge pages are resident, transparent or reserved: AnonHugePages, Private_Hugetlb or Shared_Hugetlb in /proc/PID/smaps"
            }
            Proof::Arenas => {
                "the hook's library is mapped in each run; in the run that is not counted, at least one 2 MiB slab in a range for which the hook asked for huge pages: AnonHugePages in /proc/PID/smaps"
            }
            Proof::Nodes => "the policy in /proc/PID/numa_maps matches the setting",
            Proof::Cpus => "Cpus_allowed_list in /proc/PID/status matches the setting",
        }
    }

    /// `name` is the full name of the tunable.
    pub fn of_tunable(name: &str) -> &'static [Proof] {
        match name {
            "glibc.malloc.hugetlb" => &[Proof::Tunables, Proof::HugePages],
            _ => &[Proof::Tunables],
        }
    }
}

/// Which library is preloaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Library {
    Jemalloc,
    /// Either library of gperftools, with or without its profilers.
    Tcmalloc,
    TcmallocMinimal,
    /// Google's, which has the same file name as that of gperftools.
    TcmallocPercpu,
    Mimalloc,
    Snmalloc,
    /// The program's own C library.
    Glibc,
}

impl Library {
    /// Where distributions install it.
    pub fn usual_path(self, musl: bool) -> &'static str {
        match self {
            Library::Jemalloc => "/usr/lib/{triple}/libjemalloc.so.2",
            Library::Tcmalloc | Library::TcmallocMinimal => "/usr/lib/{triple}/libtcmalloc_minimal.so.4",
            Library::TcmallocPercpu => "/usr/local/lib/libtcmalloc.so",
            Library::Mimalloc if musl => "/usr/lib/libmimalloc.so.2",
            Library::Mimalloc => "/usr/lib/{triple}/libmimalloc.so.2",
            Library::Snmalloc => "/usr/local/lib/libsnmallocshim.so",
            Library::Glibc => "/lib/{triple}/libc.so.6",
        }
    }

    /// Name of its package: on Debian 12, or on Alpine for musl. None: no package, or part of every installation.
    pub fn package(self, musl: bool) -> Option<&'static str> {
        match self {
            Library::Mimalloc if musl => Some("mimalloc2"),
            _ if musl => None,
            _ => self.debian_package(12),
        }
    }

    /// Name of its package in a release of Debian. None: that release has none, or the library is part of every installation.
    pub fn debian_package(self, release: u32) -> Option<&'static str> {
        let of = |row: &&(Library, u32, &str)| row.0 == self && row.1 <= release;
        DEBIAN_PACKAGES.iter().rfind(of).map(|(.., name)| *name)
    }

    pub fn kind(self) -> AllocatorKind {
        match self {
            Library::Jemalloc => AllocatorKind::Jemalloc,
            Library::Tcmalloc | Library::TcmallocMinimal | Library::TcmallocPercpu => AllocatorKind::Tcmalloc,
            Library::Mimalloc => AllocatorKind::Mimalloc,
            Library::Snmalloc => AllocatorKind::Snmalloc,
            Library::Glibc => AllocatorKind::Glibc,
        }
    }
}

/// Packages of Debian, each from the first release on that has it (the indices of Debian 11, 12 and 13; the oldest first).
const DEBIAN_PACKAGES: &[(Library, u32, &str)] = &[
    (Library::Jemalloc, 11, "libjemalloc2"),
    (Library::Tcmalloc, 11, "libtcmalloc-minimal4"),
    (Library::Tcmalloc, 13, "libtcmalloc-minimal4t64"),
    (Library::TcmallocMinimal, 11, "libtcmalloc-minimal4"),
    (Library::TcmallocMinimal, 13, "libtcmalloc-minimal4t64"),
    (Library::Mimalloc, 12, "libmimalloc2.0"),
    (Library::Mimalloc, 13, "libmimalloc3"),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    Transparent,
    Reserved,
}

/// The setting of each allocator for huge pages. An allocator that is missing here has no such setting.
/// glibc: malloc/malloc.c, since 2.35. jemalloc: opt.thp of its manual. mimalloc: src/prim/unix/prim.c.
pub const PAGES: &[(AllocatorKind, Pages, Change)] = &[
    (AllocatorKind::Glibc, Pages::Transparent, Change::Tunable("glibc.malloc.hugetlb", "1")),
    (AllocatorKind::Glibc, Pages::Reserved, Change::Tunable("glibc.malloc.hugetlb", "2")),
    (
        AllocatorKind::Jemalloc,
        Pages::Transparent,
        Change::EnvAppend { name: JEMALLOC_CONF, separator: ',', value: "thp:always,metadata_thp:auto" },
    ),
    (AllocatorKind::Mimalloc, Pages::Transparent, Change::Env("MIMALLOC_ALLOW_LARGE_OS_PAGES", "1")),
    (AllocatorKind::Mimalloc, Pages::Reserved, Change::Env("MIMALLOC_ALLOW_LARGE_OS_PAGES", "1")),
];

/// Values of PYTHONMALLOC (Doc/using/cmdline.rst of CPython). The values with mimalloc exist since 3.13.
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

/// The variable that the Python package reads when the interpreter starts, and its value.
pub const ARENA_HOOK: &str = "ALLOCWALL_HUGEPAGES";
pub const ARENA_HOOK_ON: &str = "1";
/// The files in a site-packages folder that read the variable; the second is used since CPython 3.15.
pub const ARENA_HOOK_FILES: &[&str] = &["allocwall.pth", "allocwall.start"];

impl Remedy {
    /// Whether the remedy makes this change.
    pub fn applies(&self, change: Change) -> bool {
        self.start.is_some_and(|start| start.applied.contains(&change))
    }

    /// What a trial checks in the running target; empty if there is nothing to check.
    pub fn proofs(&self) -> BTreeSet<Proof> {
        let Some(start) = self.start else {
            return BTreeSet::new();
        };
        let mut proofs: BTreeSet<Proof> =
            start.applied.iter().flat_map(|change| change.proofs()).copied().collect();
        proofs.extend(match start.argument {
            Argument::Tunables => Some(Proof::Tunables),
            Argument::Variable => Some(Proof::Variable),
            _ => None,
        });
        // The arena hook has its own proof.
        if self.effect == Effect::HugeTouch && !proofs.contains(&Proof::Arenas) {
            proofs.insert(Proof::HugePages);
        }
        proofs
    }

    /// The package of the library that it preloads, with the distribution: `Debian: libjemalloc2`.
    pub fn package(&self) -> Option<String> {
        let musl = self.needs.contains(&Need::Musl);
        let library = self.start?.applied.iter().find_map(|change| match change {
            Change::Preload(library) => Some(*library),
            _ => None,
        })?;
        let distribution = if musl { "Alpine" } else { "Debian" };
        library.package(musl).map(|name| format!("{distribution}: {name}"))
    }

    /// Whether a trial can apply it without a value that only the user knows.
    pub fn can_be_tried(&self) -> bool {
        let is_known = |argument: Argument| {
            !matches!(argument, Argument::Value(_) | Argument::Tunables | Argument::Variable)
        };
        self.start.is_some_and(|start| is_known(start.argument))
    }

    /// What it takes to apply it, the cheapest first: a setting, another allocator, a setting of the machine, a change of the
    /// code or of its operation.
    pub fn cost_to_apply(&self) -> CostToApply {
        (self.kind, self.needs.contains(&Need::Preload))
    }

    /// Whether it is a command, not advice.
    pub fn is_command(&self) -> bool {
        !matches!(self.how, How::Text(_))
    }

    /// The command or the advice, with its placeholders. For `How::Start` the command is made from the changes of `start`.
    pub fn template(&self) -> String {
        match (self.how, self.start) {
            (How::Command(text) | How::Text(text), _) => text.to_owned(),
            (How::Start(argument), Some(start)) => self.start_template(&start, argument),
            (How::Start(_), None) => "{cmd}".to_owned(),
        }
    }

    fn start_template(&self, start: &Start, argument: Option<&str>) -> String {
        let default = match start.argument {
            Argument::Tunables => {
                return "GLIBC_TUNABLES=glibc.malloc.NAME=VALUE:glibc.malloc.NAME=VALUE {cmd}".to_owned();
            }
            Argument::Variable => return "NAME=VALUE {cmd}".to_owned(),
            Argument::Or(_, default) => default,
            Argument::Value(form) | Argument::Maybe(form) => form.shown(),
            Argument::None | Argument::Source => "",
        };
        let fill = |value: &str| value.replace("{}", argument.unwrap_or(default));
        let (mut unset, mut tunables, mut settings) = (String::new(), vec![], String::new());
        let mut command = "{cmd}".to_owned();
        for change in start.applied {
            let change = match change {
                Change::Pages(pages) => PAGES
                    .iter()
                    .find(|(kind, of, _)| *kind == AllocatorKind::Glibc && of == pages)
                    .map_or(*change, |(.., change)| *change),
                _ => *change,
            };
            match change {
                // A variable that is known to be unset needs no `env -u`.
                Change::Unset(name) if self.needs.contains(&Need::Unset(name)) => {}
                Change::Unset(name) => unset.push_str(&format!("env -u {name} ")),
                Change::Tunable(name, value) => tunables.push(format!("{name}={}", fill(value))),
                Change::Env(name, value) => settings.push_str(&format!("{name}={} ", fill(value))),
                Change::EnvAppend { name, value, .. } => settings.push_str(&match name {
                    JEMALLOC_CONF => format!("{{jemalloc:{}}} ", fill(value)),
                    _ => format!("{name}={} ", fill(value)),
                }),
                Change::Preload(library) => {
                    let path = library.usual_path(self.needs.contains(&Need::Musl));
                    settings.push_str(&format!("LD_PRELOAD={path} "));
                }
                Change::Prefault(value) => {
                    settings.push_str(&format!("LD_PRELOAD=LIBRARY ALLOCWALL_PREFAULT={} ", fill(value)));
                }
                Change::ArenaHook => settings.push_str(&format!("{ARENA_HOOK}={ARENA_HOOK_ON} ")),
                Change::Cpus(list) => command = format!("taskset -c {} {command}", fill(list)),
                Change::Nodes(list) => {
                    let list = fill(list);
                    command = format!("numactl --cpunodebind={list} --membind={list} {command}");
                }
                Change::CommandOption(option) => command = format!("{{node:{}}}", fill(option)),
                Change::Pages(_) => {}
            }
        }
        let tunables = if tunables.is_empty() {
            String::new()
        } else {
            format!("GLIBC_TUNABLES={{tunables:{}}} ", tunables.join(":"))
        };
        format!("{unset}{tunables}{settings}{command}")
    }

    /// What the user types: `cpus=LIST`, `jemalloc[@SOURCE]`.
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

    /// `how`, with general words instead of facts that only the diagnosis of a target knows.
    pub fn shell_line(&self) -> String {
        in_general(&self.template())
    }

    /// `note` in the same way, and the package to install.
    pub fn note_line(&self) -> String {
        let note = Some(in_general(self.note)).filter(|note| !note.is_empty());
        note.into_iter().chain(self.package()).collect::<Vec<_>>().join("; ")
    }

    /// `backfires`, in the same way.
    pub fn backfires_line(&self) -> String {
        in_general(self.backfires)
    }

    /// `undo`, in the same way.
    pub fn undo_line(&self) -> String {
        in_general(self.undo)
    }
}

/// Fills in a template with general words instead of facts about a target.
fn in_general(template: &str) -> String {
    let text = [
        ("{cmd}", UNKNOWN_COMMAND),
        ("{threads}", "THREADS"),
        ("{quota}", "CPUs"),
        ("{whole_cpus}", "N"),
        ("{arenas}", "N"),
        ("{triple}", TRIPLE),
        ("{java_heap}", "by default a quarter of the memory"),
        ("{heap_growth}", "50"),
        ("{heap}", "SIZE"),
    ]
    .iter()
    .fold(template.to_owned(), |text, (hole, word)| text.replace(hole, word));
    let jemalloc = format!("{JEMALLOC_CONF}=");
    [("{tunables:", ""), ("{jemalloc:", jemalloc.as_str()), ("{node:", "node ")]
        .iter()
        .fold(text, |text, (opening, before)| {
            replaced(&text, opening, |argument| format!("{before}{argument}"))
        })
}

/// Replaces `{name:argument}` in the text, if it is there. `opening` is `{name:`.
pub fn replaced(text: &str, opening: &str, with: impl FnOnce(&str) -> String) -> String {
    match text.split_once(opening) {
        Some((before, rest)) => {
            let (argument, after) = rest.split_once('}').unwrap_or((rest, ""));
            format!("{before}{}{after}", with(argument))
        }
        None => text.to_owned(),
    }
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

const TRIPLE: &str = if cfg!(target_arch = "aarch64") { "aarch64-linux-gnu" } else { "x86_64-linux-gnu" };

/// Placeholder for the target's command, if that is unknown or too long to print.
pub const UNKNOWN_COMMAND: &str = "CMD";

/// See [`Remedy::cost_to_apply`].
pub type CostToApply = (Kind, bool);

/// Remedies with the same gain are tried in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Changes how this process is run.
    Process,
    /// A setting that also affects other processes of the machine.
    Machine,
    /// Only a change of the code helps.
    Advice,
}

/// How much of its lines of the bill a remedy removes, in terms of the price list.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Effect {
    /// 4 KiB first touches become 2 MiB ones: 1 − touch_2m / (512 · touch_4k).
    HugeTouch,
    /// Blocks come from the arena instead of mmap. It removes 1 − malloc_arena / malloc_mapped of the cost of malloc's
    /// own map calls; at the upper end of the interval, also of the first touches.
    ArenaInsteadOfMap,
    /// One call makes all pages: 1 − populate_page / touch_4k.
    Populate,
    /// Another allocator: what a replay of the counted calls saves ([`crate::replay`]), or else the part of the same lines that it
    /// saved in measured programs ([`crate::catalogue::swaps`]).
    Swap,
    /// glibc's thread cache serves calls that missed it before: 1 − malloc_cached / malloc_arena of their cost.
    DeeperCache,
    /// Threads no longer wait for a shared arena, and its code runs as fast as with one thread.
    OwnArenas,
    /// At most this fraction of the lines, with the source of the fraction. No price gives the exact part.
    AtMost(f64, &'static str),
    /// The collector runs more rarely: at most 1 − present value / new value of the lines, for the setting of
    /// [`Need::SettingBelow`]. The string is the source.
    FewerCollections(&'static str),
    /// At most the part of the line of starting and ending processes that copies an address space for a fork, or frees the copy at
    /// exec. The string says what stays.
    ForkCopy(&'static str),
    /// It acts on the lines, but nothing that is measured shows how much of them it saves, or whether it costs more. The string
    /// says what that depends on.
    Unknown(&'static str),
    /// It saves waiting time or memory, not CPU time. The string names what it acts on.
    NotCpu(&'static str),
}

/// A condition of a remedy. `diagnose::needs` judges whether a target meets it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Need {
    /// A dynamic loader that uses LD_PRELOAD: not for static binaries, Go programs or setuid programs.
    Preload,
    /// The GNU C library as a shared library, this version or later. For a static program it is unknown: its version
    /// can't be read.
    Glibc(u32, u32),
    /// The GNU C library as a shared library, older than this version. For a static program it is unknown.
    GlibcBefore(u32, u32),
    Musl,
    /// This allocator serves malloc.
    Uses(AllocatorKind),
    /// Another allocator than this one serves malloc.
    NotAlready(AllocatorKind),
    Cpython,
    /// CPython 3.minor or later, default build.
    CpythonAtLeast(u32),
    CpythonFreeThreaded,
    Jvm,
    Go,
    Node,
    /// Not a JVM: the runtime manages the Java heap itself, without malloc.
    NotJvm,
    /// malloc itself takes the time, not only the runtime's small-object allocator.
    MallocMatters,
    /// madvise can give huge pages: the host's mode is not `never`, and they are not disabled for the process.
    ThpByAdvice,
    /// The host's mode is `madvise`. In any other mode the setting changes nothing.
    ThpModeMadvise,
    MoreThanOneThread,
    /// No setting in the environment or on the command line contains this text.
    Unset(&'static str),
    /// This setting of a runtime is not set, or is a number below `number`. A name with `--` is an option of the command
    /// line, any other is a variable. `default` is what counts if it is not set.
    SettingBelow {
        name: &'static str,
        number: u64,
        default: u64,
    },
    /// The environment limits glibc's arenas to fewer than the default ([`super::tunables::arenas_by_default`]).
    ArenasLimited,
    /// No setting fixes glibc's mmap threshold, or a setting fixes it below this number of bytes.
    MmapThresholdBelow(u64),
    MoreThanOneNode,
    Quota,
    /// The memory that it maps and touches is not almost all of files.
    MapsMemory,
    /// Forked children start other programs: samples show exec.
    ForksToExec,
    /// The target has just started, and most of its first touches are of glibc's heap.
    ColdStart,
    /// Forked children keep running the program of their parent: almost no sample shows that exec frees a copied address space.
    ForksToStay,
    /// Much of what the kernel's own allocator does is for these objects.
    KernelSlabOf(KernelObject),
}

impl Need {
    /// The allocator that must serve the program.
    pub fn allocator(self) -> Option<AllocatorKind> {
        match self {
            Need::Uses(kind) => Some(kind),
            _ => None,
        }
    }

    /// The runtime that the program must have.
    pub fn runtime(self) -> Option<&'static str> {
        match self {
            Need::Cpython | Need::CpythonAtLeast(_) | Need::CpythonFreeThreaded => Some("CPython"),
            Need::Jvm => Some("Java"),
            Need::Go => Some("Go"),
            Need::Node => Some("Node"),
            _ => None,
        }
    }

    /// The C library that the program must have.
    pub fn libc(self) -> Option<&'static str> {
        match self {
            Need::Musl => Some("musl"),
            Need::Glibc(..) | Need::GlibcBefore(..) | Need::Uses(AllocatorKind::Glibc) => Some("glibc"),
            _ => None,
        }
    }

    /// Whether the remedy can be applied without it, but then changes nothing or little.
    pub fn only_makes_useful(self) -> bool {
        use Need::*;
        matches!(
            self,
            NotAlready(_)
                | NotJvm
                | MallocMatters
                | ThpModeMadvise
                | MoreThanOneThread
                | Unset(_)
                | SettingBelow { .. }
                | ArenasLimited
                | MmapThresholdBelow(_)
                | Quota
                | MapsMemory
                | ForksToExec
                | ForksToStay
                | ColdStart
                | KernelSlabOf(_)
        )
    }

    /// Whether it is a property of the machine, not of the program.
    pub fn is_of_machine(self) -> bool {
        matches!(self, Need::ThpByAdvice | Need::ThpModeMadvise | Need::MoreThanOneNode)
    }

    /// The end of a sentence: `NAME needs …`, or `NAME is useful if …` if it
    /// [`only_makes_useful`](Need::only_makes_useful). A refused trial continues the first one with
    /// `, but PROGRAM …` (`Unmet::text` in `diagnose::needs`).
    pub fn text(self) -> String {
        let text = match self {
            Need::Preload => "a program that a preload reaches (not static, Go or setuid)",
            Need::Glibc(major, minor) => return format!("glibc {major}.{minor} or later"),
            Need::GlibcBefore(major, minor) => return format!("glibc before {major}.{minor}"),
            Need::Musl => "a program that is linked with musl",
            Need::Uses(kind) => return format!("a program that uses {}", kind.title()),
            Need::NotAlready(kind) => {
                return format!("the program does not use {} already", kind.title());
            }
            Need::Cpython => "CPython",
            Need::CpythonAtLeast(minor) => return format!("CPython 3.{minor} or later, the default build"),
            Need::CpythonFreeThreaded => "the free-threaded build of CPython",
            Need::Jvm => "Java",
            Need::Go => "a Go program",
            Need::Node => "Node",
            Need::NotJvm => "the program is not Java: the Java heap does not use malloc",
            Need::MallocMatters => "malloc takes the time, not the runtime's own allocator",
            Need::ThpByAdvice => "a machine with transparent huge pages in mode always or madvise",
            Need::ThpModeMadvise => "the mode of transparent huge pages is madvise",
            Need::MoreThanOneThread => "the program has more than one thread",
            Need::Unset(name) => return format!("{name} is not set already"),
            Need::SettingBelow { name, number, .. } => {
                return format!("{name} is not already set to {number} or more");
            }
            Need::ArenasLimited => "a setting limits the number of arenas",
            Need::MmapThresholdBelow(bytes) => {
                let mib = bytes >> 20;
                return format!("the mmap threshold is not already set to {mib} MiB or more");
            }
            Need::MoreThanOneNode => "a machine with more than one NUMA node",
            Need::Quota => "the cgroup has a CPU quota",
            Need::MapsMemory => "the program maps and touches other memory than files",
            Need::ForksToExec => "forked children start other programs",
            Need::ForksToStay => "forked children do not start other programs",
            Need::ColdStart => "the program has just started, and touches its heap for the first time",
            Need::KernelSlabOf(KernelObject::Message) => "much of kernel slab is for messages on sockets",
            Need::KernelSlabOf(KernelObject::Connection) => "much of kernel slab is for sockets or pipes",
            Need::KernelSlabOf(KernelObject::File) => "much of kernel slab is for files and names",
        };
        text.to_owned()
    }
}

/// A trial that counts the start of the program, and the first requests. Only the user knows their URL.
pub const TRIAL_OF_START: &str = "allocwall trial --with prefault={heap} --first 1000 --load URL -- {cmd}";
const PRELOAD_BACKFIRES: &str =
    "5 to 10 % more resident memory is usual; the program crashes if it frees memory of another allocator";
const PRELOAD_UNDO: &str = "restart without LD_PRELOAD";
const ALLOCATOR_WALLS: &[Wall] = &[Wall::AllocatorCode, Wall::AllocatorContention];
/// Another allocator also places blocks elsewhere. Where calls are many, or loads miss the TLB, this can save more than the calls
/// cost.
const SWAP_WALLS: &[Wall] = &[Wall::CallRate, Wall::AllocatorCode, Wall::AllocatorContention, Wall::Tlb];
/// On huge pages, memory has fewer faults, and its loads miss the TLB less often.
const HUGE_WALLS: &[Wall] = &[Wall::FirstTouch, Wall::Tlb];
pub const ALLOCATOR_LINES: &[CostClass] = &[AllocatorCode, AllocatorLocks];
/// All that a heap costs in the kernel.
pub const HEAP_LINES: &[CostClass] = &[MapCalls, PageRelease, FaultPath, Zeroing];
const KEEPS: &str = "one long-lived block above many freed blocks keeps them all resident: resident memory stays at its peak; a large block of calloc that comes from used memory is cleared first, which costs CPU time if the program leaves most of it untouched";
const HUGE_BACKFIRES: &str = "memory grows by up to 2 MiB per region; after a fork, the first write splits the page (reserved pages: copies all of it); compaction can stall threads";

pub const TABLE: &[Remedy] = &[
    Remedy {
        key: "quota",
        title: "raise or remove the cgroup's CPU quota",
        kind: Kind::Process,
        walls: &[Wall::CgroupThrottling],
        acts_on: &[],
        effect: Effect::NotCpu("the throttled time"),
        needs: &[Need::Quota],
        restart: false,
        how: How::Text(
            "raise the CPU limit above {quota} (Kubernetes: resources.limits.cpu; Docker: docker update --cpus N CONTAINER)",
        ),
        note: "",
        backfires: "other processes on the machine get less CPU",
        undo: "set the old limit again",
        moves: "CPU time from other processes of the machine to this cgroup",
        start: None,
    },
    Remedy {
        key: "gomaxprocs",
        title: "set GOMAXPROCS to the CPU quota",
        kind: Kind::Process,
        walls: &[Wall::CgroupThrottling],
        acts_on: &[],
        effect: Effect::NotCpu("throttled time: fewer threads use up the quota later in each period"),
        needs: &[Need::Go, Need::Quota, Need::Unset("GOMAXPROCS")],
        restart: true,
        how: How::Start(Some("{whole_cpus}")),
        note: "the quota of {quota}, rounded up; Go 1.25 and later do this by default",
        backfires: "the program does not use more CPUs when the quota is raised later",
        undo: "restart without GOMAXPROCS",
        moves: "short parallel bursts to a longer, steady run",
        start: Some(Start {
            argument: Argument::Value(Form::Count(1, 65_536)),
            applied: &[Change::Env("GOMAXPROCS", "{}")],
            page: "The Go scheduler runs Go code on at most N threads at a time. If N is not above the cgroup's quota, the program does not use up the quota early in a period, and the kernel does not stop it until the next one.",
        }),
    },
    Remedy {
        key: "nice",
        title: "more CPU time against other processes",
        kind: Kind::Process,
        walls: &[Wall::RunQueue],
        acts_on: &[],
        effect: Effect::NotCpu("the time that threads wait for a CPU"),
        needs: &[],
        restart: false,
        // On Linux each thread has its own nice value: setpriority(2), BUGS.
        how: How::Command("sudo renice -n -5 -p {threads}"),
        // sched(7), The autogroup feature: with it, a session has a weight, and nice values count inside of a session only.
        note: "acts only against processes of its cgroup (against other containers: cpu.weight, or cpu.shares of cgroup v1); where `sysctl kernel.sched_autogroup_enabled` is 1, only against those of its session (against others: echo -5 | sudo tee /proc/PID/autogroup)",
        backfires: "the other processes wait longer; a new thread inherits the nice value of the thread that starts it",
        undo: "sudo renice -n 0 -p {threads}",
        moves: "waiting time to the other processes",
        start: None,
    },
    Remedy {
        key: "move-vm",
        title: "another host or a dedicated instance",
        kind: Kind::Advice,
        walls: &[Wall::Steal],
        acts_on: &[],
        effect: Effect::NotCpu("CPU time that the hypervisor gives to other machines"),
        needs: &[],
        restart: true,
        how: How::Text(
            "no change inside this machine helps: stop and start the instance to get another host, or use dedicated CPUs",
        ),
        note: "",
        backfires: "dedicated CPUs cost money; the other host may be just as busy",
        undo: "move back",
        moves: "waiting time to other machines on the host",
        start: None,
    },
    Remedy {
        key: "python-processes",
        title: "Python's work in processes instead of threads",
        kind: Kind::Advice,
        walls: &[Wall::Gil],
        acts_on: &[],
        effect: Effect::NotCpu("the time that threads wait for Python's GIL"),
        needs: &[Need::Cpython],
        restart: true,
        how: How::Text(
            "run the work in processes (concurrent.futures.ProcessPoolExecutor, multiprocessing; gunicorn: more --workers, fewer --threads)",
        ),
        note: "",
        backfires: "each process holds its own memory; what processes exchange is copied",
        undo: "revert the change",
        moves: "waiting time to CPU time on other CPUs, and to memory",
        start: None,
    },
    Remedy {
        key: "python-free-threaded",
        title: "the build of CPython without the GIL",
        kind: Kind::Advice,
        walls: &[Wall::Gil],
        acts_on: &[],
        effect: Effect::NotCpu("the time that threads wait for Python's GIL"),
        needs: &[Need::Cpython],
        restart: true,
        how: How::Text("run it with a free-threaded CPython, 3.13 or later (python3.14t)"),
        note: "an extension module that does not support it turns the GIL on again",
        backfires: "one thread alone runs slower; code that relied on the GIL has races",
        undo: "run it with the default build",
        moves: "waiting time to CPU time on other CPUs",
        start: None,
    },
    Remedy {
        key: "gogc",
        title: "fewer collections in Go: a larger GOGC",
        kind: Kind::Process,
        walls: &[Wall::GarbageCollector],
        acts_on: Wall::GarbageCollector.lines(),
        effect: Effect::FewerCollections(
            "Go's guide to its collector: doubling GOGC roughly halves the collector's CPU cost",
        ),
        needs: &[Need::Go, Need::SettingBelow { name: "GOGC", number: 200, default: 100 }],
        restart: true,
        how: How::Start(None),
        note: "the default is 100; also set GOMEMLIMIT to 90 % of the memory limit",
        // The heap may grow to live memory × (100 + GOGC) / 100.
        backfires: "the heap grows by up to {heap_growth} %; near GOMEMLIMIT the collector runs all the time",
        undo: "restart with the old GOGC",
        moves: "CPU time to resident memory",
        start: Some(Start {
            argument: Argument::Or(Form::Count(1, 100_000), "200"),
            applied: &[Change::Env("GOGC", "{}")],
            page: "The heap can grow by N % of the live memory before the next collection; the default is 100. Combine it with gomemlimit=SIZE, so that the larger heap stays below the memory limit.",
        }),
    },
    Remedy {
        key: "cpython-gc-freeze",
        title: "fewer cyclic collections: gc.freeze() and a higher threshold",
        kind: Kind::Advice,
        walls: &[Wall::GarbageCollector],
        acts_on: Wall::GarbageCollector.lines(),
        effect: Effect::Unknown("depends on how many reference cycles the code makes"),
        needs: &[Need::Cpython],
        restart: true,
        how: How::Text(
            "after start-up: import gc; gc.collect(); gc.freeze(); gc.set_threshold(50_000, 20, 100); and remove calls of gc.collect() from requests",
        ),
        note: "",
        backfires: "reference cycles are freed later: resident memory grows if the code makes many of them",
        undo: "gc.unfreeze(); gc.set_threshold(…) with the values from before",
        moves: "CPU time to resident memory",
        start: None,
    },
    Remedy {
        key: "node-semi-space",
        title: "a larger young generation for V8",
        kind: Kind::Process,
        walls: &[Wall::GarbageCollector],
        acts_on: Wall::GarbageCollector.lines(),
        effect: Effect::Unknown(
            "depends on how much survives a scavenge, and on whether the young generation still fits the CPU cache",
        ),
        // The default of 64-bit V8 is 16 MiB (src/heap/heap.h).
        needs: &[Need::Node, Need::SettingBelow { name: "--max-semi-space-size", number: 64, default: 16 }],
        restart: true,
        // Before autumn 2022 NODE_OPTIONS refused this option (nodejs/node#44436); the command line always accepts it.
        how: How::Start(None),
        note: "the default is 16 (MiB)",
        backfires: "up to 192 MiB more resident memory per isolate; a single scavenge can take longer; a young generation larger than the CPU cache can cost more than it saves",
        undo: "restart without the option",
        moves: "CPU time to resident memory",
        start: Some(Start {
            argument: Argument::Or(Form::Count(1, 4096), "64"),
            applied: &[Change::CommandOption("--max-semi-space-size={}")],
            page: "The size of one semi-space of V8's young generation, in MiB. V8 collects a larger one less often, and fewer objects are still alive then and have to be copied. allocwall puts the option on the command line, where every version of Node accepts it, so the command must start node directly.",
        }),
    },
    Remedy {
        key: "jvm-heap",
        title: "a larger Java heap",
        kind: Kind::Process,
        walls: &[Wall::GarbageCollector],
        acts_on: Wall::GarbageCollector.lines(),
        effect: Effect::Unknown("depends on how much survives a collection"),
        needs: &[Need::Jvm],
        restart: true,
        // On the command line, because it overrides JAVA_TOOL_OPTIONS. Java before 9 refuses -Xlog.
        how: How::Text(
            "double the heap size ({java_heap}) with -Xmx, and compare the collections that -verbose:gc prints",
        ),
        note: "",
        backfires: "more resident memory; a full collection takes longer",
        undo: "restart with the old -Xmx",
        moves: "CPU time to resident memory",
        start: Some(Start {
            argument: Argument::Value(Form::Bytes),
            applied: &[Change::CommandOption("-Xmx{}")],
            page: "The maximum size of the Java heap. allocwall puts the option on the command line, because it overrides JAVA_TOOL_OPTIONS; so the command must start java directly. A -Xmx or -XX:MaxHeapSize of the command itself is left out, because it would come later and win.",
        }),
    },
    Remedy {
        key: "glibc-keep-memory",
        title: "glibc keeps freed memory: fixed mmap and trim thresholds",
        kind: Kind::Process,
        walls: &[Wall::MapChurn, Wall::FirstTouch, Wall::AddressSpaceLock],
        acts_on: HEAP_LINES,
        effect: Effect::ArenaInsteadOfMap,
        needs: &[
            Need::Glibc(2, 36),
            Need::Uses(AllocatorKind::Glibc),
            Need::MmapThresholdBelow(268_435_456),
            Need::Unset("MALLOC_MMAP_THRESHOLD_"),
        ],
        restart: true,
        // Set both: if only one of mmap_threshold, trim_threshold and top_pad is set, glibc no longer raises the others
        // (no_dyn_threshold in malloc/malloc.c), and they stay at 128 KiB.
        // Measured on 2.36: blocks of 40 MiB then come from the heap. Arenas of other threads keep their limit of 64 MiB.
        how: How::Start(None),
        note: "",
        backfires: KEEPS,
        undo: "restart without the tunables",
        moves: "kernel CPU time to resident memory",
        start: Some(Start {
            argument: Argument::None,
            applied: &[
                Change::Tunable("glibc.malloc.mmap_threshold", "268435456"),
                Change::Tunable("glibc.malloc.trim_threshold", "268435456"),
            ],
            page: "Blocks up to 256 MiB come from the heap instead of their own mapping. glibc returns free memory at the top of the heap to the kernel only when it is more than 256 MiB. Both thresholds are set, because setting only one stops glibc from adapting the other. Only the main thread's heap can grow this large: other threads use arenas of at most 64 MiB, and larger blocks are still mapped there.",
        }),
    },
    Remedy {
        key: "glibc-keep-memory-32m",
        title: "glibc keeps freed memory: mmap threshold at its 32 MiB limit",
        kind: Kind::Process,
        walls: &[Wall::MapChurn, Wall::FirstTouch, Wall::AddressSpaceLock],
        acts_on: HEAP_LINES,
        effect: Effect::ArenaInsteadOfMap,
        needs: &[
            Need::Glibc(2, 26),
            Need::GlibcBefore(2, 36),
            Need::Uses(AllocatorKind::Glibc),
            Need::MmapThresholdBelow(33_554_432),
            Need::Unset("MALLOC_MMAP_THRESHOLD_"),
        ],
        restart: true,
        // The largest value that older versions accept (HEAP_MAX_SIZE / 2 on 64 bits). Larger blocks are still mapped.
        how: How::Start(None),
        note: "",
        backfires: KEEPS,
        undo: "restart without the tunables",
        moves: "kernel CPU time to resident memory",
        start: Some(Start {
            argument: Argument::None,
            applied: &[
                Change::Tunable("glibc.malloc.mmap_threshold", "33554432"),
                Change::Tunable("glibc.malloc.trim_threshold", "268435456"),
            ],
            page: "The same as glibc-keep-memory, for glibc before 2.36, which accepts an mmap threshold of at most 32 MiB. Larger blocks are still mapped and unmapped.",
        }),
    },
    Remedy {
        key: "glibc-hugetlb",
        title: "glibc's heap on transparent huge pages",
        kind: Kind::Process,
        walls: HUGE_WALLS,
        acts_on: Wall::FirstTouch.lines(),
        effect: Effect::HugeTouch,
        needs: &[
            Need::Glibc(2, 35),
            Need::Uses(AllocatorKind::Glibc),
            Need::ThpByAdvice,
            Need::ThpModeMadvise,
            Need::Unset("hugetlb"),
        ],
        restart: true,
        how: How::Start(None),
        note: "",
        backfires: HUGE_BACKFIRES,
        undo: "restart without the tunable",
        moves: "512 small faults to one large fault: fewer, longer pauses",
        start: Some(Start {
            argument: Argument::None,
            applied: &[Change::Tunable("glibc.malloc.hugetlb", "1")],
            page: "glibc asks the kernel for transparent huge pages (madvise) for its heap and for the blocks that it maps. It asks only if the machine's mode is madvise. In mode always the kernel gives huge pages without being asked; in mode never it gives none.",
        }),
    },
    Remedy {
        key: "jemalloc-thp",
        title: "jemalloc's heap on transparent huge pages",
        kind: Kind::Process,
        walls: HUGE_WALLS,
        acts_on: Wall::FirstTouch.lines(),
        effect: Effect::HugeTouch,
        needs: &[Need::Uses(AllocatorKind::Jemalloc), Need::NotJvm, Need::ThpByAdvice, Need::Unset("thp:")],
        restart: true,
        how: How::Start(None),
        note: "",
        backfires: HUGE_BACKFIRES,
        undo: "restart without the variable",
        moves: "512 small faults to one large fault: fewer, longer pauses",
        start: Some(Start {
            argument: Argument::None,
            applied: &[Change::EnvAppend {
                name: JEMALLOC_CONF,
                separator: ',',
                value: "thp:always,metadata_thp:auto",
            }],
            page: "jemalloc asks the kernel for transparent huge pages for all memory that it maps. A build whose functions have a prefix reads a variable with that prefix instead of MALLOC_CONF. allocwall reads the library to find the right name.",
        }),
    },
    Remedy {
        key: "mimalloc-thp",
        title: "mimalloc's heap on huge pages",
        kind: Kind::Process,
        walls: HUGE_WALLS,
        acts_on: Wall::FirstTouch.lines(),
        effect: Effect::HugeTouch,
        needs: &[
            Need::Uses(AllocatorKind::Mimalloc),
            Need::NotJvm,
            Need::ThpByAdvice,
            Need::Unset("LARGE_OS_PAGES"),
        ],
        restart: true,
        how: How::Start(None),
        note: "",
        backfires: HUGE_BACKFIRES,
        undo: "restart without the variable",
        moves: "512 small faults to one large fault: fewer, longer pauses",
        start: Some(Start {
            argument: Argument::None,
            applied: &[Change::Env("MIMALLOC_ALLOW_LARGE_OS_PAGES", "1")],
            page: "mimalloc uses reserved 2 MiB pages if the machine has some; otherwise it asks the kernel for transparent huge pages (src/prim/unix/prim.c).",
        }),
    },
    Remedy {
        key: "cpython-mimalloc-huge",
        title: "CPython's objects in mimalloc, on huge pages",
        kind: Kind::Process,
        walls: HUGE_WALLS,
        acts_on: Wall::FirstTouch.lines(),
        effect: Effect::HugeTouch,
        needs: &[
            Need::CpythonAtLeast(13),
            Need::ThpByAdvice,
            Need::Unset("PYTHONMALLOC"),
            Need::Unset("LARGE_OS_PAGES"),
        ],
        restart: true,
        how: How::Start(None),
        note: "",
        backfires: HUGE_BACKFIRES,
        undo: "restart without the variables",
        moves: "512 small faults to one large fault: fewer, longer pauses",
        start: Some(Start {
            argument: Argument::None,
            applied: &[
                Change::Env("PYTHONMALLOC", "mimalloc"),
                Change::Env("MIMALLOC_ALLOW_LARGE_OS_PAGES", "1"),
            ],
            page: "CPython 3.13 and later contain mimalloc and can use it for all objects. The built-in mimalloc reads its options from the environment.",
        }),
    },
    Remedy {
        key: "cpython-nogil-huge",
        title: "free-threaded CPython's mimalloc on huge pages",
        kind: Kind::Process,
        walls: HUGE_WALLS,
        acts_on: Wall::FirstTouch.lines(),
        effect: Effect::HugeTouch,
        needs: &[Need::CpythonFreeThreaded, Need::ThpByAdvice, Need::Unset("LARGE_OS_PAGES")],
        restart: true,
        how: How::Start(None),
        note: "",
        backfires: HUGE_BACKFIRES,
        undo: "restart without the variable",
        moves: "512 small faults to one large fault: fewer, longer pauses",
        start: Some(Start {
            argument: Argument::None,
            applied: &[Change::Env("MIMALLOC_ALLOW_LARGE_OS_PAGES", "1")],
            page: "The free-threaded build of CPython uses its built-in mimalloc for objects. It reads its options from the environment.",
        }),
    },
    Remedy {
        key: "jvm-thp",
        title: "the Java heap on transparent huge pages",
        kind: Kind::Process,
        walls: HUGE_WALLS,
        acts_on: Wall::FirstTouch.lines(),
        effect: Effect::HugeTouch,
        needs: &[Need::Jvm, Need::ThpByAdvice, Need::Unset("UseTransparentHugePages")],
        restart: true,
        how: How::Start(None),
        note: "",
        backfires: HUGE_BACKFIRES,
        undo: "restart without the option",
        moves: "512 small faults to one large fault: fewer, longer pauses",
        start: Some(Start {
            argument: Argument::None,
            applied: &[Change::EnvAppend {
                name: "JAVA_TOOL_OPTIONS",
                separator: ' ',
                value: "-XX:+UseTransparentHugePages",
            }],
            page: "The JVM asks the kernel for transparent huge pages for its heap. It prints a line to standard error that it picked up JAVA_TOOL_OPTIONS.",
        }),
    },
    Remedy {
        key: "jvm-pretouch",
        title: "touch the Java heap before the first request",
        kind: Kind::Process,
        walls: &[Wall::FirstTouch],
        acts_on: Wall::FirstTouch.lines(),
        effect: Effect::AtMost(1.0, "all first touches of the Java heap, none of other memory"),
        needs: &[Need::Jvm, Need::Unset("AlwaysPreTouch")],
        restart: true,
        how: How::Text(
            "start it with -XX:+AlwaysPreTouch and with -Xms set to the maximum heap size ({java_heap})",
        ),
        note: "",
        backfires: "start-up takes longer, because the whole heap is touched; all of -Xms is resident from the start",
        undo: "restart without the option",
        moves: "first touches from requests to the start of the program",
        start: Some(Start {
            argument: Argument::Maybe(Form::Bytes),
            applied: &[
                Change::EnvAppend { name: "JAVA_TOOL_OPTIONS", separator: ' ', value: "-XX:+AlwaysPreTouch" },
                Change::EnvAppend { name: "JAVA_TOOL_OPTIONS", separator: ' ', value: "-Xms{}" },
            ],
            page: "The JVM writes to each page of its heap when it commits the page. At the start it commits the initial heap: SIZE if it is given, otherwise -Xms, or by default 1/64 of the memory. Options on the command line override this one.",
        }),
    },
    Remedy {
        key: "thp-always",
        title: "transparent huge pages for the whole machine",
        kind: Kind::Machine,
        walls: HUGE_WALLS,
        acts_on: Wall::FirstTouch.lines(),
        effect: Effect::HugeTouch,
        needs: &[Need::ThpByAdvice, Need::ThpModeMadvise],
        restart: false,
        how: How::Command("echo always | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"),
        note: "only affects new memory",
        backfires: "it affects every process: memory grows; some programs, for example Redis, advise against it",
        undo: "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
        moves: "512 small faults to one large fault: fewer, longer pauses",
        start: None,
    },
    Remedy {
        key: "jemalloc",
        title: "preload jemalloc",
        kind: Kind::Process,
        walls: &[
            Wall::AllocatorContention,
            Wall::AllocatorCode,
            Wall::CallRate,
            Wall::AddressSpaceLock,
            Wall::MapChurn,
            Wall::Retention,
            Wall::Tlb,
        ],
        acts_on: &[AllocatorCode, AllocatorLocks, MapCalls, PageRelease],
        effect: Effect::Swap,
        needs: &[
            Need::Glibc(2, 17),
            Need::Preload,
            Need::NotAlready(AllocatorKind::Jemalloc),
            Need::MallocMatters,
        ],
        restart: true,
        how: How::Start(None),
        note: "",
        backfires: PRELOAD_BACKFIRES,
        undo: PRELOAD_UNDO,
        moves: "lock waits and slow paths to per-thread caches, which hold more resident memory",
        start: Some(Start {
            argument: Argument::Source,
            applied: &[Change::Preload(Library::Jemalloc)],
            page: "jemalloc has a cache per thread and four arenas per CPU. It returns free pages to the kernel after ten seconds. `jemalloc` uses the system's library, or the bundled one if there is none. Choose one with `jemalloc@system`, `jemalloc@bundled`, `jemalloc@5.3.0` or `jemalloc@/path/lib.so`. Use one arm per version.",
        }),
    },
    Remedy {
        key: "tcmalloc",
        title: "preload tcmalloc",
        kind: Kind::Process,
        walls: SWAP_WALLS,
        acts_on: ALLOCATOR_LINES,
        effect: Effect::Swap,
        needs: &[
            Need::Glibc(2, 17),
            Need::Preload,
            Need::NotAlready(AllocatorKind::Tcmalloc),
            Need::MallocMatters,
        ],
        restart: true,
        how: How::Start(None),
        note: "",
        backfires: PRELOAD_BACKFIRES,
        undo: PRELOAD_UNDO,
        moves: "lock waits and slow paths to per-thread caches, which hold more resident memory",
        start: Some(Start {
            argument: Argument::Source,
            applied: &[Change::Preload(Library::Tcmalloc)],
            page: "The tcmalloc of gperftools has a cache per thread in front of central free lists. allocwall uses libtcmalloc if it is installed, otherwise libtcmalloc_minimal, which only lacks the profilers. Choose one with `tcmalloc@/path/lib.so`.",
        }),
    },
    Remedy {
        key: "mimalloc",
        title: "preload mimalloc",
        kind: Kind::Process,
        walls: SWAP_WALLS,
        acts_on: ALLOCATOR_LINES,
        effect: Effect::Swap,
        needs: &[
            Need::Glibc(2, 17),
            Need::Preload,
            Need::NotAlready(AllocatorKind::Mimalloc),
            Need::MallocMatters,
        ],
        restart: true,
        how: How::Start(None),
        note: "",
        backfires: PRELOAD_BACKFIRES,
        undo: PRELOAD_UNDO,
        moves: "lock waits and slow paths to per-thread heaps, which hold more resident memory",
        start: Some(Start {
            argument: Argument::Source,
            applied: &[Change::Preload(Library::Mimalloc)],
            page: "mimalloc has a heap per thread, with free lists per page. A thread that frees a block of another thread returns it with one atomic operation. `mimalloc` uses the system's library, or the bundled one if there is none. Choose one with `mimalloc@system`, `mimalloc@bundled` or `mimalloc@/path/lib.so`. Versions 2 and 3 differ much: use one arm for each.",
        }),
    },
    Remedy {
        key: "mimalloc-musl",
        title: "preload mimalloc, built for musl",
        kind: Kind::Process,
        walls: SWAP_WALLS,
        acts_on: ALLOCATOR_LINES,
        effect: Effect::Swap,
        needs: &[Need::Musl, Need::Preload, Need::NotAlready(AllocatorKind::Mimalloc), Need::MallocMatters],
        restart: true,
        how: How::Start(None),
        note: "",
        backfires: PRELOAD_BACKFIRES,
        undo: PRELOAD_UNDO,
        moves: "waits for the lock of musl's allocator to per-thread heaps, which hold more resident memory",
        start: Some(Start {
            argument: Argument::Source,
            applied: &[Change::Preload(Library::Mimalloc)],
            page: "musl's allocator has one lock for all threads. The library must be built for musl. allocwall refuses a library that is linked with glibc.",
        }),
    },
    Remedy {
        key: "glibc-arenas-free",
        title: "remove the limit on glibc's arenas",
        kind: Kind::Process,
        walls: &[Wall::AllocatorContention],
        acts_on: &[AllocatorLocks],
        effect: Effect::OwnArenas,
        needs: &[
            Need::Glibc(2, 17),
            Need::Uses(AllocatorKind::Glibc),
            Need::ArenasLimited,
            Need::MoreThanOneThread,
        ],
        restart: true,
        how: How::Start(None),
        note: "the default: eight per CPU",
        backfires: "each arena keeps its own free memory: resident memory grows; the limit may be there to prevent this",
        undo: "set the limit again",
        moves: "lock waits to resident memory",
        start: Some(Start {
            argument: Argument::None,
            applied: &[
                Change::Unset("MALLOC_ARENA_MAX"),
                Change::Tunable("glibc.malloc.arena_max", "{arenas}"),
            ],
            page: "Container images and service files often set MALLOC_ARENA_MAX=2 to save memory. Then all threads share two arenas and their locks. This remedy restores glibc's default limit of eight arenas per CPU.",
        }),
    },
    Remedy {
        key: "glibc-tcache-count",
        title: "a larger thread cache in glibc",
        kind: Kind::Process,
        walls: ALLOCATOR_WALLS,
        acts_on: ALLOCATOR_LINES,
        effect: Effect::DeeperCache,
        needs: &[Need::Glibc(2, 26), Need::Uses(AllocatorKind::Glibc), Need::Unset("tcache_count")],
        restart: true,
        // 127 is the largest count that all versions with a thread cache accept.
        how: How::Start(None),
        note: "",
        backfires: "each thread can keep 127 free blocks of each of 64 sizes: up to 4 MiB per thread",
        undo: "restart without the tunable",
        moves: "CPU time in the arenas and lock waits to resident memory per thread",
        start: Some(Start {
            argument: Argument::Or(Form::Count(0, 65_535), "127"),
            applied: &[Change::Tunable("glibc.malloc.tcache_count", "{}")],
            page: "By default glibc's thread cache keeps 7 free blocks of each size (16 since glibc 2.42). When a thread frees more blocks of one size, the calls go to the arena and take its lock.",
        }),
    },
    Remedy {
        key: "glibc-arenas-few",
        title: "fewer arenas in glibc",
        kind: Kind::Process,
        walls: &[Wall::Retention, Wall::AddressSpaceLock],
        acts_on: &[],
        effect: Effect::NotCpu("resident memory and the map calls of the arenas"),
        needs: &[
            Need::Glibc(2, 26),
            Need::Uses(AllocatorKind::Glibc),
            Need::MoreThanOneThread,
            Need::Unset("arena_max"),
            Need::Unset("MALLOC_ARENA_MAX"),
        ],
        restart: true,
        how: How::Start(None),
        note: "",
        backfires: "threads share locks: allocator contention with many CPUs",
        undo: "restart without the tunable",
        moves: "resident memory to lock waits",
        start: Some(Start {
            argument: Argument::Or(Form::Count(1, 65_536), "2"),
            applied: &[Change::Tunable("glibc.malloc.arena_max", "{}")],
            page: "Each arena keeps its own free memory, and glibc makes up to eight arenas per CPU. Fewer arenas keep less free memory, but threads that allocate at the same time wait for each other.",
        }),
    },
    Remedy {
        key: "malloc-trim",
        title: "return free memory after the peak: malloc_trim(0)",
        kind: Kind::Advice,
        walls: &[Wall::Retention],
        acts_on: &[],
        effect: Effect::NotCpu("resident memory: whole free pages in all parts of the heap"),
        needs: &[Need::Glibc(2, 17), Need::Uses(AllocatorKind::Glibc)],
        restart: true,
        how: How::Text(
            "call malloc_trim(0) after the large request (CPython: ctypes.CDLL(None).malloc_trim(0))",
        ),
        note: "",
        backfires: "it holds each arena's lock for milliseconds; when the heap grows again, it pays first touches again",
        undo: "remove the call",
        moves: "resident memory to later first touches",
        start: None,
    },
    Remedy {
        key: "glibc-trim-sooner",
        title: "glibc returns free memory at the end of its heaps sooner",
        kind: Kind::Process,
        walls: &[Wall::Retention],
        acts_on: &[],
        effect: Effect::NotCpu("resident memory: free memory above the last block of each heap"),
        needs: &[
            Need::Glibc(2, 26),
            Need::Uses(AllocatorKind::Glibc),
            Need::Unset("trim_threshold"),
            Need::Unset("MALLOC_TRIM_THRESHOLD_"),
        ],
        restart: true,
        how: How::Start(Some("131072")),
        note: "",
        backfires: "more brk calls and first touches; blocks from 128 KiB on get their own mapping, because a fixed threshold stops glibc from adapting the other one",
        undo: "restart without the tunable",
        moves: "resident memory to kernel CPU time",
        start: Some(Start {
            argument: Argument::Or(Form::Bytes, "128K"),
            applied: &[Change::Tunable("glibc.malloc.trim_threshold", "{}")],
            page: "When a free leaves more than SIZE above the last block of a heap, glibc returns it to the kernel. By default SIZE starts at 128 KiB and rises to twice the size of the largest mapped block that was freed, up to 64 MiB. Free memory below the last block stays.",
        }),
    },
    Remedy {
        key: "recycle-workers",
        title: "replace each worker process after a number of requests",
        kind: Kind::Advice,
        walls: &[Wall::Retention],
        acts_on: &[],
        effect: Effect::NotCpu("resident memory: all free memory of a worker"),
        needs: &[],
        restart: true,
        how: How::Text(
            "if a parent starts its workers again: gunicorn --max-requests 1000 --max-requests-jitter 100, celery --max-tasks-per-child 1000, pm.max_requests of PHP-FPM",
        ),
        note: "",
        backfires: "each new worker starts with cold caches; a leak is hidden, not found",
        undo: "remove the setting",
        moves: "resident memory to the starts of workers",
        start: None,
    },
    Remedy {
        key: "jemalloc-decay",
        title: "jemalloc returns free pages sooner",
        kind: Kind::Process,
        walls: &[Wall::Retention],
        acts_on: &[],
        effect: Effect::NotCpu("resident memory"),
        needs: &[Need::Uses(AllocatorKind::Jemalloc), Need::Unset("decay_ms")],
        restart: true,
        how: How::Start(None),
        note: "",
        backfires: "more madvise calls and first touches",
        undo: "restart without the variable",
        moves: "resident memory to kernel CPU time",
        start: Some(Start {
            argument: Argument::Or(Form::Count(0, 3_600_000), "1000"),
            applied: &[Change::EnvAppend {
                name: JEMALLOC_CONF,
                separator: ',',
                value: "background_thread:true,dirty_decay_ms:{},muzzy_decay_ms:0",
            }],
            page: "jemalloc returns pages to the kernel when they were free for N milliseconds; the default is 10,000. A background thread of jemalloc does this, so that an idle process shrinks, too.",
        }),
    },
    Remedy {
        key: "numa-bind",
        title: "keep threads and memory on one node",
        kind: Kind::Process,
        walls: &[Wall::Numa],
        acts_on: &[],
        effect: Effect::NotCpu("the latency of memory on the other node"),
        needs: &[Need::MoreThanOneNode],
        restart: true,
        how: How::Start(None),
        note: "",
        backfires: "with two nodes, half of the memory bandwidth and CPUs; one node can run out of memory while the other has free memory",
        undo: "restart without numactl",
        moves: "remote latency to competition for one node",
        start: Some(Start {
            argument: Argument::Or(Form::Nodes, "0"),
            applied: &[Change::Nodes("{}")],
            page: "The kernel takes memory only from these nodes, and threads run only on their CPUs (unless cpus=LIST is given, too). If these nodes have no free memory, the kernel ends the process, even if other nodes have some.",
        }),
    },
    Remedy {
        key: "reuse-buffers",
        title: "reuse large buffers from request to request",
        kind: Kind::Advice,
        walls: &[Wall::FirstTouch, Wall::MapChurn],
        acts_on: HEAP_LINES,
        effect: Effect::AtMost(1.0, "no more than the listed call sites cause"),
        needs: &[Need::MapsMemory],
        restart: true,
        how: How::Text(
            "keep the buffers of the listed call sites in a pool; clear them instead of freeing them",
        ),
        note: "",
        backfires: "a pool keeps its peak size; if buffers are not cleared, data leaks into the next request",
        undo: "revert the change",
        moves: "kernel CPU time to resident memory",
        start: None,
    },
    Remedy {
        key: "populate",
        title: "populate memory with one call, before the request",
        kind: Kind::Advice,
        walls: &[Wall::FirstTouch],
        acts_on: Wall::FirstTouch.lines(),
        effect: Effect::Populate,
        needs: &[],
        restart: true,
        how: How::Text(
            "use MAP_POPULATE or madvise(MADV_POPULATE_WRITE) for memory that is mapped once and used completely",
        ),
        note: "",
        backfires: "it only moves the cost: the call takes this time instead, also for pages that are never used",
        undo: "revert the change",
        moves: "first touches from the request path to one call before it",
        start: None,
    },
    Remedy {
        key: "pool",
        title: "allocate less: pools, or one arena per request",
        kind: Kind::Advice,
        walls: &[Wall::CallRate, Wall::AllocatorCode, Wall::AllocatorContention],
        acts_on: &[AllocatorCode, AllocatorLocks, RuntimeAllocator],
        effect: Effect::AtMost(1.0, "only the part that the listed call sites cause"),
        needs: &[],
        restart: true,
        how: How::Text(
            "at the listed call sites: reuse objects, free all objects of a request together, reserve the size of containers",
        ),
        note: "",
        backfires: "a pool keeps its peak size; use of an object after its return to the pool is a new kind of bug",
        undo: "revert the change",
        moves: "CPU time to resident memory and to code that manages lifetimes",
        start: None,
    },
    Remedy {
        key: "read-less",
        title: "build fewer objects: read only the fields that are used",
        kind: Kind::Advice,
        walls: &[Wall::CallRate],
        acts_on: &[AllocatorCode, AllocatorLocks, RuntimeAllocator],
        effect: Effect::AtMost(1.0, "only the part that unused fields cause"),
        needs: &[],
        restart: true,
        how: How::Text(
            "parse lazily or in place (views, streams, columns) instead of building objects for the whole document",
        ),
        note: "",
        backfires: "views keep the whole input in memory",
        undo: "revert the change",
        moves: "CPU time from allocation to a parser that may run more than once",
        start: None,
    },
    Remedy {
        key: "reuse-blocks",
        title: "reuse large blocks instead of allocating new ones",
        kind: Kind::Advice,
        walls: &[Wall::LargeAllocations],
        acts_on: Wall::LargeAllocations.lines(),
        effect: Effect::Unknown("depends on how much of a reused block must be filled again"),
        needs: &[],
        restart: true,
        how: How::Text(
            "keep the blocks of the listed call sites in a pool, or one per thread, and clear only the part that was used",
        ),
        note: "",
        backfires: "a pool keeps its peak size; if a block is not cleared, data leaks into its next use",
        undo: "revert the change",
        moves: "CPU time to resident memory",
        start: None,
    },
    Remedy {
        key: "go-buffers",
        title: "Go: buffers from a sync.Pool, slices with their final capacity",
        kind: Kind::Advice,
        walls: &[Wall::LargeAllocations],
        acts_on: Wall::LargeAllocations.lines(),
        effect: Effect::Unknown("depends on how many of the blocks can be reused"),
        needs: &[Need::Go],
        restart: true,
        how: How::Text(
            "at the listed call sites: take buffers from a sync.Pool, or keep them (b = b[:0]); give make the final capacity instead of growing by append",
        ),
        note: "",
        backfires: "a slice that is still in use when its buffer goes back to the pool is overwritten; the collector empties a sync.Pool",
        undo: "revert the change",
        moves: "CPU time to resident memory",
        start: None,
    },
    Remedy {
        key: "jvm-buffers",
        title: "Java: reuse large arrays, or keep them outside the heap",
        kind: Kind::Advice,
        walls: &[Wall::LargeAllocations],
        acts_on: Wall::LargeAllocations.lines(),
        effect: Effect::Unknown("depends on how many of the arrays can be reused"),
        needs: &[Need::Jvm],
        restart: true,
        how: How::Text(
            "at the listed call sites: one array per thread that is reused, or direct buffers that are allocated once (ByteBuffer.allocateDirect)",
        ),
        note: "",
        backfires: "an array that lives long is copied by the collector; direct buffers do not count for -Xmx and are freed late",
        undo: "revert the change",
        moves: "CPU time to resident memory",
        start: None,
    },
    Remedy {
        key: "smaller-blocks",
        title: "allocate only the size that is used",
        kind: Kind::Advice,
        walls: &[Wall::LargeAllocations],
        acts_on: Wall::LargeAllocations.lines(),
        effect: Effect::Unknown("depends on how much of each block is used"),
        needs: &[],
        restart: true,
        how: How::Text(
            "at the listed call sites: work in smaller chunks, and start a buffer with the usual size instead of the largest one",
        ),
        note: "",
        backfires: "data that does not fit needs more calls, or a copy to a larger block",
        undo: "revert the change",
        moves: "filling to more calls",
        start: None,
    },
    Remedy {
        key: "fill-less",
        title: "zeros only where they are needed, blocks that grow in large steps",
        kind: Kind::Advice,
        walls: &[Wall::LargeAllocations],
        acts_on: Wall::LargeAllocations.lines(),
        effect: Effect::Unknown("depends on how many blocks are overwritten anyway, or grow in steps"),
        needs: &[],
        restart: true,
        how: How::Text(
            "at the listed call sites: malloc instead of calloc for a block that is overwritten; reserve the final size, or double it, instead of many calls of realloc",
        ),
        note: "",
        backfires: "memory without zeros has old data: the program must not read what it did not write; doubling keeps up to half of a block unused",
        undo: "revert the change",
        moves: "CPU time to resident memory",
        start: None,
    },
    Remedy {
        key: "share-less-mappings",
        title: "fewer map and unmap calls by concurrent threads",
        kind: Kind::Advice,
        walls: &[Wall::AddressSpaceLock],
        acts_on: &[AddressSpaceLock, MapCalls, PageRelease],
        effect: Effect::AtMost(1.0, "only the part that the listed call sites cause"),
        needs: &[],
        restart: true,
        how: How::Text(
            "map large regions once and divide them, or split the work into processes; since Linux 6.4 most page faults do not take the lock",
        ),
        note: "",
        backfires: "separate processes do not share a heap: resident memory grows",
        undo: "revert the change",
        moves: "lock waits to resident memory",
        start: None,
    },
    Remedy {
        key: "fork-early",
        title: "fork before the data is loaded, or keep the children",
        kind: Kind::Advice,
        walls: &[Wall::Fork],
        acts_on: Wall::Fork.lines(),
        effect: Effect::Unknown("depends on how much memory parent and child share at the fork"),
        needs: &[Need::ForksToStay],
        restart: true,
        how: How::Text(
            "fork the workers before the large data is loaded, let each child serve many requests, and end it with _exit",
        ),
        note: "",
        backfires: "what is loaded after the fork is not shared: each child holds its own copy",
        undo: "revert the change",
        moves: "copies of pages to resident memory, or to a longer start",
        start: None,
    },
    Remedy {
        key: "snapshot-fork",
        title: "fewer pages copied while a forked child saves a snapshot",
        kind: Kind::Advice,
        walls: &[Wall::Fork],
        acts_on: Wall::Fork.lines(),
        effect: Effect::Unknown("depends on how many pages are written while the child runs"),
        needs: &[Need::ForksToStay],
        restart: true,
        how: How::Text(
            "if the child saves a snapshot of the parent's memory (Redis: BGSAVE, BGREWRITEAOF): save less often, at times of few writes, or on a replica; keep transparent huge pages off, because a write then copies up to 2 MiB",
        ),
        note: "",
        backfires: "with fewer snapshots, a crash loses more data, or the start replays a longer log",
        undo: "revert the change",
        moves: "copies of pages to another time or another machine",
        start: None,
    },
    Remedy {
        key: "posix-spawn",
        title: "start programs without a copy of the page tables",
        kind: Kind::Advice,
        walls: &[Wall::Fork],
        acts_on: &[ForkExit],
        effect: Effect::ForkCopy("exec and exit stay"),
        needs: &[Need::ForksToExec],
        restart: true,
        how: How::Text(
            "start other programs with posix_spawn or vfork (CPython 3.10 and later: subprocess does this; multiprocessing: start method forkserver)",
        ),
        note: "",
        backfires: "code that must run in the child between fork and exec has to move",
        undo: "revert the change",
        moves: "nothing: the copy of the page tables is left out",
        start: None,
    },
    Remedy {
        key: "cpython-freeze-before-fork",
        title: "call gc.freeze() before the fork",
        kind: Kind::Advice,
        walls: &[Wall::Fork],
        acts_on: &[CopyOnWrite],
        effect: Effect::Unknown(
            "depends on how much of the shared memory the collector visits; reference counts are still written",
        ),
        needs: &[Need::Cpython, Need::ForksToStay],
        restart: true,
        how: How::Text(
            "in the parent, before the fork: import gc; gc.disable(); gc.freeze(); in each child: gc.enable()",
        ),
        note: "",
        backfires: "reference cycles made before the fork are never freed",
        undo: "revert the change",
        moves: "nothing: the collector leaves the shared pages alone",
        start: None,
    },
    Remedy {
        key: "keep-connections",
        title: "keep connections instead of making one for each request",
        kind: Kind::Advice,
        walls: &[Wall::KernelSlab],
        acts_on: Wall::KernelSlab.lines(),
        effect: Effect::Unknown("depends on how many requests a kept connection serves"),
        needs: &[Need::KernelSlabOf(KernelObject::Connection)],
        restart: true,
        how: How::Text(
            "use keep-alive and connection pools, on both sides (HTTP: keep-alive; databases: a pool; a proxy: upstream keepalive); make the socket pair or the pipe of a worker once",
        ),
        note: "",
        backfires: "idle connections hold memory and descriptors at both ends; a kept connection can be stale when it is used again; load is spread by connection, not by request",
        undo: "revert the change",
        moves: "kernel CPU time to memory of idle connections",
        start: None,
    },
    Remedy {
        key: "larger-messages",
        title: "fewer, larger messages on sockets",
        kind: Kind::Advice,
        walls: &[Wall::KernelSlab],
        acts_on: Wall::KernelSlab.lines(),
        effect: Effect::Unknown("depends on how many messages fit into one"),
        needs: &[Need::KernelSlabOf(KernelObject::Message)],
        restart: true,
        how: How::Text(
            "collect small writes and send them with one call (a buffer, writev, pipelining); for UDP, many datagrams in one sk_buff (UDP_SEGMENT, UDP_GRO)",
        ),
        note: "sendmmsg, recvmmsg and io_uring save system calls, but each message keeps its own sk_buff",
        backfires: "a message that waits for others arrives later",
        undo: "revert the change",
        moves: "kernel CPU time to latency of the first message of each batch",
        start: None,
    },
    Remedy {
        key: "keep-files-open",
        title: "keep files open, and remember names that do not exist",
        kind: Kind::Advice,
        walls: &[Wall::KernelSlab],
        acts_on: Wall::KernelSlab.lines(),
        effect: Effect::Unknown("depends on how often the same files and names come again"),
        needs: &[Need::KernelSlabOf(KernelObject::File)],
        restart: true,
        how: How::Text(
            "open a file once and read it with pread; keep a cache of open files (nginx: open_file_cache); open below a directory descriptor (openat); look up each name once, also if it does not exist",
        ),
        note: "",
        backfires: "descriptors are limited (ulimit -n); a file that is replaced by another one of its name is seen late; so is a name that comes to exist",
        undo: "revert the change",
        moves: "kernel CPU time to descriptors and to memory of the program",
        start: None,
    },
    Remedy {
        key: "keep-files-mapped",
        title: "keep files mapped, or map all pages with one call",
        kind: Kind::Advice,
        walls: &[Wall::FileFault],
        acts_on: Wall::FileFault.lines(),
        effect: Effect::AtMost(
            1.0,
            "only the part of files that are mapped more than once, or read completely",
        ),
        needs: &[],
        restart: true,
        how: How::Text(
            "map a file once and keep the mapping; if all of it is read, map it with MAP_POPULATE, or call madvise with MADV_POPULATE_READ (Linux 5.14)",
        ),
        note: "",
        backfires: "populating reads pages that may never be used",
        undo: "revert the change",
        moves: "faults on the request path to one call before it",
        start: None,
    },
    Remedy {
        key: "read-files",
        title: "read files into a buffer that is reused",
        kind: Kind::Advice,
        walls: &[Wall::FileFault],
        acts_on: Wall::FileFault.lines(),
        effect: Effect::AtMost(
            1.0,
            "the read copies the bytes, which costs less than faults if most of the file is used",
        ),
        needs: &[],
        restart: true,
        how: How::Text(
            "read small files, or files that are read once, with read(2) into a buffer that is used again",
        ),
        note: "",
        backfires: "a copy of the data in memory; for random access to large files it is slower",
        undo: "revert the change",
        moves: "faults to a copy by the kernel",
        start: None,
    },
    Remedy {
        key: "tcmalloc-minimal",
        title: "preload tcmalloc without its profilers",
        kind: Kind::Process,
        walls: &[],
        acts_on: ALLOCATOR_LINES,
        effect: Effect::Swap,
        needs: &[Need::Glibc(2, 17), Need::Preload],
        restart: true,
        how: How::Start(None),
        note: "",
        backfires: PRELOAD_BACKFIRES,
        undo: PRELOAD_UNDO,
        moves: "lock waits and slow paths to per-thread caches, which hold more resident memory",
        start: Some(Start {
            argument: Argument::Source,
            applied: &[Change::Preload(Library::TcmallocMinimal)],
            page: "The same as tcmalloc, but always the library without the profilers.",
        }),
    },
    Remedy {
        key: "tcmalloc-percpu",
        title: "preload Google's tcmalloc, with a cache per CPU",
        kind: Kind::Process,
        walls: &[],
        acts_on: ALLOCATOR_LINES,
        effect: Effect::Unknown("this allocator was not measured: run a trial"),
        needs: &[Need::Glibc(2, 35), Need::Preload],
        restart: true,
        how: How::Start(None),
        note: "",
        backfires: PRELOAD_BACKFIRES,
        undo: "restart without LD_PRELOAD and the tunable",
        moves: "lock waits and slow paths to per-CPU caches, which hold more resident memory",
        start: Some(Start {
            argument: Argument::Source,
            // The kernel takes one area for restartable sequences from a thread, and glibc registers its own first (rseq_register in
            // kernel/rseq.c).
            applied: &[Change::Preload(Library::TcmallocPercpu), Change::Tunable("glibc.pthread.rseq", "0")],
            page: "Google's tcmalloc, not that of gperftools, has a cache for each CPU. For that it needs restartable sequences (rseq), which glibc uses itself since 2.35, so the tunable turns that off in glibc. Distributions have no package of it: install your own build as /usr/local/lib/libtcmalloc.so, or give its file with `tcmalloc-percpu@/path/lib.so`. allocwall recognizes it by a function that gperftools does not have.",
        }),
    },
    Remedy {
        key: "snmalloc",
        title: "preload snmalloc",
        kind: Kind::Process,
        walls: &[],
        acts_on: ALLOCATOR_LINES,
        effect: Effect::Swap,
        needs: &[Need::Glibc(2, 17), Need::Preload],
        restart: true,
        how: How::Start(None),
        note: "",
        backfires: PRELOAD_BACKFIRES,
        undo: PRELOAD_UNDO,
        moves: "remote frees to messages between threads, which hold more resident memory",
        start: Some(Start {
            argument: Argument::Source,
            applied: &[Change::Preload(Library::Snmalloc)],
            page: "snmalloc is designed for blocks that one thread allocates and another frees: it returns them in batches. Distributions have no package of snmalloc. Some builds of allocwall contain it; `snmalloc@/path/lib.so` uses your own build.",
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
        how: How::Start(None),
        note: "",
        backfires: "the program loses the advantages of its own allocator",
        undo: "restart without this remedy",
        moves: "allocations from the program's own allocator to glibc's",
        start: Some(Start {
            argument: Argument::None,
            applied: &[Change::Preload(Library::Glibc)],
            page: "For programs that are linked with another allocator or preload one. allocwall puts the C library first in LD_PRELOAD and removes other allocators from it. A program that already uses glibc's malloc is started without a change.",
        }),
    },
    Remedy {
        key: "none",
        title: "no change",
        kind: Kind::Process,
        walls: &[],
        acts_on: &[],
        effect: Effect::NotCpu("nothing: it is the baseline again"),
        needs: &[],
        restart: true,
        how: How::Start(None),
        note: "",
        backfires: "no risk",
        undo: "nothing to undo",
        moves: "nothing",
        start: Some(Start {
            argument: Argument::None,
            applied: &[],
            page: "The command without a change. Use it to compare the baseline with itself: every difference is noise.",
        }),
    },
    Remedy {
        key: "glibc:",
        title: "tunables of glibc",
        kind: Kind::Process,
        walls: &[],
        acts_on: ALLOCATOR_LINES,
        effect: Effect::Unknown("tunables have no price; run a trial"),
        needs: &[Need::Glibc(2, 26)],
        restart: true,
        how: How::Start(None),
        note: "",
        backfires: "depends on the tunable: see allocwall explain glibc:NAME",
        undo: "restart without the tunables",
        moves: "depends on the tunable",
        start: Some(Start {
            argument: Argument::Tunables,
            applied: &[],
            page: "Sets any tunable that the program's loader knows. `glibc:arena_max=2,trim_threshold=64M` sets two tunables of glibc.malloc. For another group, write its name: `glibc:pthread.rseq=0`. allocwall checks names and ranges against the list of the program's loader (glibc 2.33 and later), because glibc ignores unknown names and values without a message. Sizes can end in K, M or G, powers of 1,024.",
        }),
    },
    Remedy {
        key: "glibc-top-pad",
        title: "glibc's heap grows in large steps and does not shrink",
        kind: Kind::Process,
        walls: &[],
        acts_on: Wall::MapChurn.lines(),
        effect: Effect::Unknown("run a trial"),
        needs: &[Need::Glibc(2, 26), Need::Uses(AllocatorKind::Glibc)],
        restart: true,
        how: How::Start(Some("67108864")),
        note: "",
        backfires: "up to SIZE more memory is mapped, but not resident before its first touch; a heap that has grown keeps its size",
        undo: "restart without the tunables",
        moves: "brk calls to memory that stays mapped",
        start: Some(Start {
            argument: Argument::Or(Form::Bytes, "64M"),
            applied: &[
                Change::Tunable("glibc.malloc.top_pad", "{}"),
                Change::Tunable("glibc.malloc.trim_threshold", "268435456"),
                Change::Tunable("glibc.malloc.mmap_threshold", "33554432"),
            ],
            page: "When the heap grows, it grows by SIZE more than needed, so that glibc calls brk less often. This remedy also sets the two thresholds, because setting one of the three stops glibc from adapting the others: glibc returns free memory at the top of the heap only above 256 MiB, and maps blocks above 32 MiB.",
        }),
    },
    Remedy {
        key: "thp",
        title: "the allocator's heap on transparent huge pages",
        kind: Kind::Process,
        walls: &[],
        acts_on: Wall::FirstTouch.lines(),
        effect: Effect::HugeTouch,
        needs: &[Need::ThpByAdvice],
        restart: true,
        how: How::Start(None),
        note: "glibc; each allocator has its own setting",
        backfires: HUGE_BACKFIRES,
        undo: "restart without the setting",
        moves: "512 small faults to one large fault: fewer, longer pauses",
        start: Some(Start {
            argument: Argument::None,
            applied: &[Change::Pages(Pages::Transparent)],
            page: "Uses the setting of the arm's allocator, or of the program's own: glibc.malloc.hugetlb=1 for glibc, thp:always in MALLOC_CONF for jemalloc, MIMALLOC_ALLOW_LARGE_OS_PAGES for mimalloc. allocwall refuses tcmalloc and snmalloc, which have no such setting, and machines whose mode of transparent huge pages is never.",
        }),
    },
    Remedy {
        key: "hugetlb",
        title: "the allocator's heap on reserved huge pages",
        kind: Kind::Process,
        walls: &[],
        acts_on: Wall::FirstTouch.lines(),
        effect: Effect::HugeTouch,
        needs: &[],
        restart: true,
        how: How::Start(None),
        note: "after: sudo sysctl vm.nr_hugepages=PAGES",
        backfires: "other processes cannot use the reserved memory; when no reserved page is left, the allocator uses small pages without a message; after a fork, a process can get SIGBUS if no page is left for its copy",
        undo: "restart without the setting, and sudo sysctl vm.nr_hugepages=0",
        moves: "512 small faults to one large fault; memory of the machine to this process",
        start: Some(Start {
            argument: Argument::None,
            applied: &[Change::Pages(Pages::Reserved)],
            page: "Uses glibc.malloc.hugetlb=2 for glibc, and MIMALLOC_ALLOW_LARGE_OS_PAGES for mimalloc, which uses reserved pages first. For 1 GiB pages with mimalloc, use env:MIMALLOC_RESERVE_HUGE_OS_PAGES=N. allocwall refuses jemalloc, tcmalloc and snmalloc, which have no such setting, and machines without reserved huge pages.",
        }),
    },
    Remedy {
        key: "prefault",
        title: "grow and touch the heap before main",
        kind: Kind::Process,
        walls: &[Wall::FirstTouch],
        acts_on: Wall::FirstTouch.lines(),
        effect: Effect::Unknown(
            "try it: the start pays for these touches instead, and only a trial shows what the first requests gain",
        ),
        needs: &[Need::Preload, Need::ColdStart],
        restart: true,
        how: How::Command("allocwall run --with prefault={heap} -- {cmd}"),
        note: TRIAL_OF_START,
        backfires: "each program that the command starts takes longer to start, because it touches SIZE; all of SIZE is resident at once, and stays so, even if the program needs less",
        undo: "restart without this remedy",
        moves: "first touches from requests to the start of the program",
        start: Some(Start {
            argument: Argument::Value(Form::Bytes),
            applied: &[Change::Prefault("{}")],
            page: "allocwall preloads a small library. Before main it allocates SIZE, writes to each page, and frees all of it. glibc is set to keep this memory for the main thread's arena. Another allocator keeps it only as long as it keeps free memory. A trial with --first N counts the start too: the time until the first N requests are answered, and the slowest of them. `allocwall run --print --with prefault=SIZE` prints the library's path.",
        }),
    },
    Remedy {
        key: "cpus",
        title: "run threads only on these CPUs",
        kind: Kind::Process,
        walls: &[],
        acts_on: &[],
        effect: Effect::NotCpu("migrations between CPUs, and the cache misses that follow them"),
        needs: &[],
        restart: true,
        how: How::Start(None),
        note: "",
        backfires: "threads wait if there are more runnable threads than CPUs; threads cannot move away from a CPU that another process uses",
        undo: "restart without this remedy",
        moves: "migrations to waiting time for these CPUs",
        start: Some(Start {
            argument: Argument::Value(Form::Cpus),
            applied: &[Change::Cpus("{}")],
            page: "A list such as 0-3,8. The CPUs must exist, be online, and be allowed for this process. Processes that the command starts inherit the setting.",
        }),
    },
    Remedy {
        key: "nodes",
        title: "use only the CPUs and memory of these NUMA nodes",
        kind: Kind::Process,
        walls: &[],
        acts_on: &[],
        effect: Effect::NotCpu("the latency of memory on other nodes"),
        needs: &[],
        restart: true,
        how: How::Start(None),
        note: "",
        backfires: "less memory bandwidth and fewer CPUs; if these nodes are full, the kernel ends the process, even if other nodes have free memory",
        undo: "restart without this remedy",
        moves: "remote latency to competition for these nodes",
        start: Some(Start {
            argument: Argument::Value(Form::Nodes),
            applied: &[Change::Nodes("{}")],
            page: "The kernel takes memory only from these nodes, and threads run only on their CPUs (unless cpus=LIST is given, too).",
        }),
    },
    Remedy {
        key: "pythonmalloc",
        title: "another allocator for CPython's objects",
        kind: Kind::Process,
        walls: &[],
        acts_on: &[RuntimeAllocator, AllocatorCode, AllocatorLocks],
        effect: Effect::Unknown("run a trial"),
        needs: &[Need::Cpython],
        restart: true,
        how: How::Start(None),
        note: "",
        backfires: "in most programs malloc is slower than pymalloc for small objects; the debug variants are several times slower",
        undo: "restart without the variable",
        moves: "allocations from pymalloc to the chosen allocator",
        start: Some(Start {
            argument: Argument::Value(Form::OneOf(PYTHON_ALLOCATORS)),
            applied: &[Change::Env("PYTHONMALLOC", "{}")],
            page: "The default is pymalloc, which serves blocks up to 512 bytes. With `malloc`, all allocations go to the malloc of the process: `pythonmalloc=malloc+jemalloc` puts Python's objects into jemalloc. CPython contains mimalloc since 3.13.",
        }),
    },
    Remedy {
        key: "pymalloc-hugepages",
        title: "CPython's arenas on huge pages",
        kind: Kind::Process,
        walls: &[Wall::FirstTouch, Wall::Tlb, Wall::CallRate],
        acts_on: Wall::FirstTouch.lines(),
        effect: Effect::HugeTouch,
        needs: &[
            // The Python package supports these versions.
            Need::CpythonAtLeast(9),
            Need::ThpByAdvice,
            Need::Unset("PYTHONMALLOC"),
            Need::Unset(ARENA_HOOK),
        ],
        restart: true,
        how: How::Start(None),
        note: "needs the Python package in that interpreter: see python/README.md of allocwall",
        backfires: "up to 2 MiB more memory per interpreter; it keeps up to 5 % of freed heap, at least 4 MiB; after a fork, the first write to a huge page splits it; if the host takes idle memory back, a new huge page can cost more than small pages (the hook times each one, and pauses when they are too slow)",
        undo: "restart without the variable",
        moves: "512 small faults to one large fault: fewer, longer pauses",
        start: Some(Start {
            argument: Argument::None,
            applied: &[Change::ArenaHook, Change::Unset("PYTHONMALLOC")],
            page: "pymalloc serves objects of at most 512 bytes from arenas of 1 MiB (256 KiB before 3.10) on 4 KiB pages. A hook of the Python package places the arenas in slabs, each the size of one huge page. The package must be installed in the interpreter that runs the program, which reads the variable when it starts; otherwise allocwall refuses this remedy. PYTHONMALLOC is removed, because there are no arenas without pymalloc. The remedy does not change blocks of more than 512 bytes, which come from malloc, or free-threaded builds (use cpython-nogil-huge). No price says how many TLB misses it saves; this unknown effect widens the predicted interval.",
        }),
    },
    Remedy {
        key: "gomemlimit",
        title: "a soft limit for Go's memory",
        kind: Kind::Process,
        walls: &[],
        acts_on: Wall::GarbageCollector.lines(),
        effect: Effect::Unknown("run a trial"),
        needs: &[Need::Go],
        restart: true,
        how: How::Start(None),
        note: "",
        backfires: "near the limit the collector runs all the time",
        undo: "restart without the variable",
        moves: "resident memory to the collector's CPU time; with a larger GOGC, CPU time to resident memory",
        start: Some(Start {
            argument: Argument::Value(Form::Bytes),
            applied: &[Change::Env("GOMEMLIMIT", "{}")],
            page: "Go collects more often when its memory is near this size. With a large GOGC it collects only then: `gogc=400+gomemlimit=2G`.",
        }),
    },
    Remedy {
        key: "jvm-large-pages",
        title: "the Java heap on reserved huge pages",
        kind: Kind::Process,
        walls: &[],
        acts_on: Wall::FirstTouch.lines(),
        effect: Effect::HugeTouch,
        needs: &[Need::Jvm],
        restart: true,
        how: How::Start(None),
        note: "after: sudo sysctl vm.nr_hugepages=PAGES",
        backfires: "other processes cannot use the reserved memory; if there are too few reserved pages, the JVM warns and uses small pages",
        undo: "restart without the option",
        moves: "512 small faults to one large fault; memory of the machine to this process",
        start: Some(Start {
            argument: Argument::None,
            applied: &[Change::EnvAppend {
                name: "JAVA_TOOL_OPTIONS",
                separator: ' ',
                value: "-XX:+UseLargePages",
            }],
            page: "The JVM takes its whole heap from reserved huge pages at the start. This also touches the whole heap before the first request.",
        }),
    },
    Remedy {
        key: "node-heap",
        title: "a larger heap for V8",
        kind: Kind::Process,
        walls: &[],
        acts_on: Wall::GarbageCollector.lines(),
        effect: Effect::Unknown("depends on how much survives a collection"),
        needs: &[Need::Node],
        restart: true,
        how: How::Start(None),
        note: "",
        backfires: "more resident memory; a full collection takes longer",
        undo: "restart without the option",
        moves: "CPU time to resident memory",
        start: Some(Start {
            argument: Argument::Value(Form::Count(16, 1_048_576)),
            applied: &[Change::EnvAppend {
                name: "NODE_OPTIONS",
                separator: ' ',
                value: "--max-old-space-size={}",
            }],
            page: "The limit of V8's old generation, in MiB. V8 collects more often when the heap is near the limit, and ends the process when the heap is full.",
        }),
    },
    Remedy {
        key: "env:",
        title: "any environment variable",
        kind: Kind::Process,
        walls: &[],
        acts_on: &[],
        effect: Effect::NotCpu("the code that reads the variable"),
        needs: &[],
        restart: true,
        how: How::Start(None),
        note: "",
        backfires: "depends on the code that reads the variable",
        undo: "restart without the variable",
        moves: "depends on the code that reads the variable",
        start: Some(Start {
            argument: Argument::Variable,
            applied: &[],
            page: "For settings that have no remedy. allocwall only checks that no other part of the arm sets the same variable. A + in the value is part of the value, unless the name of a remedy follows it.",
        }),
    },
];

pub fn find(key: &str) -> Option<&'static Remedy> {
    TABLE.iter().find(|r| r.key == key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_unique_and_every_text_is_there() {
        let keys: BTreeSet<_> = TABLE.iter().map(|r| r.key).collect();
        assert_eq!(keys.len(), TABLE.len());
        for r in TABLE {
            for text in [r.title, &r.template(), r.backfires, r.undo, r.moves] {
                assert!(!text.is_empty(), "{}", r.key);
            }
            assert!(!r.walls.is_empty() || r.start.is_some(), "{}", r.key);
            assert!(find(r.key).is_some_and(|found| found.key == r.key));
        }
        assert!(find("snake-oil").is_none());
    }

    #[test]
    fn a_remedy_names_its_lines_if_and_only_if_it_saves_cpu_time() {
        for r in TABLE {
            let saves_cpu_time = !matches!(r.effect, Effect::NotCpu(_));
            assert_eq!(!r.acts_on.is_empty(), saves_cpu_time, "{}", r.key);
            assert!(!r.acts_on.contains(&Application), "{}", r.key);
        }
    }

    /// What is printed is what a trial applies: the settings, in the same words.
    #[test]
    fn commands_are_made_from_what_is_applied() {
        let template = |key: &str| find(key).unwrap().template();
        assert_eq!(
            template("glibc-keep-memory"),
            "GLIBC_TUNABLES={tunables:glibc.malloc.mmap_threshold=268435456:glibc.malloc.trim_threshold=268435456} {cmd}"
        );
        assert_eq!(
            template("glibc-arenas-free"),
            "env -u MALLOC_ARENA_MAX GLIBC_TUNABLES={tunables:glibc.malloc.arena_max={arenas}} {cmd}"
        );
        assert_eq!(template("gogc"), "GOGC=200 {cmd}");
        assert_eq!(template("gomaxprocs"), "GOMAXPROCS={whole_cpus} {cmd}");
        assert_eq!(template("node-semi-space"), "{node:--max-semi-space-size=64}");
        assert_eq!(
            template("jemalloc-decay"),
            "{jemalloc:background_thread:true,dirty_decay_ms:1000,muzzy_decay_ms:0} {cmd}"
        );
        assert_eq!(template("mimalloc-musl"), "LD_PRELOAD=/usr/lib/libmimalloc.so.2 {cmd}");
        assert_eq!(template("pymalloc-hugepages"), "ALLOCWALL_HUGEPAGES=1 {cmd}");
        assert_eq!(template("hugetlb"), "GLIBC_TUNABLES={tunables:glibc.malloc.hugetlb=2} {cmd}");
        assert_eq!(template("numa-bind"), "numactl --cpunodebind=0 --membind=0 {cmd}");
        assert_eq!(template("cpus"), "taskset -c LIST {cmd}");
        assert_eq!(template("none"), "{cmd}");
        for r in TABLE {
            let starts = matches!(r.how, How::Start(_));
            assert!(!starts || r.start.is_some(), "{}", r.key);
            assert!(!r.template().contains("{}"), "{}", r.key);
        }
    }

    #[test]
    fn a_trial_needs_no_value_that_only_the_user_knows() {
        for (key, tried) in [
            ("jemalloc", true),
            ("node-semi-space", true),
            ("glibc-trim-sooner", true),
            ("jvm-heap", false),
            ("glibc:", false),
            ("env:", false),
            ("malloc-trim", false),
        ] {
            assert_eq!(find(key).unwrap().can_be_tried(), tried, "{key}");
        }
    }

    #[test]
    fn a_setting_costs_less_than_another_allocator_and_that_less_than_a_change_of_the_code() {
        let costs = ["glibc-trim-sooner", "jemalloc", "thp-always", "malloc-trim"]
            .map(|key| find(key).unwrap().cost_to_apply());
        assert!(costs.is_sorted_by(|a, b| a < b), "{costs:?}");
    }

    #[test]
    fn a_package_is_that_of_the_release() {
        for (library, [in_11, in_12, in_13]) in [
            (Library::Jemalloc, [Some("libjemalloc2"); 3]),
            (Library::Mimalloc, [None, Some("libmimalloc2.0"), Some("libmimalloc3")]),
            (
                Library::Tcmalloc,
                [Some("libtcmalloc-minimal4"), Some("libtcmalloc-minimal4"), Some("libtcmalloc-minimal4t64")],
            ),
            (Library::TcmallocPercpu, [None; 3]),
            (Library::Glibc, [None; 3]),
        ] {
            assert_eq!([11, 12, 13].map(|release| library.debian_package(release)), [in_11, in_12, in_13]);
        }
    }

    #[test]
    fn only_a_preload_has_a_package() {
        for (key, package) in [
            ("jemalloc", Some("Debian: libjemalloc2")),
            ("tcmalloc", Some("Debian: libtcmalloc-minimal4")),
            ("mimalloc", Some("Debian: libmimalloc2.0")),
            ("mimalloc-musl", Some("Alpine: mimalloc2")),
            ("tcmalloc-percpu", None),
            ("snmalloc", None),
            ("glibc", None),
            ("gogc", None),
            ("pool", None),
        ] {
            assert_eq!(find(key).unwrap().package().as_deref(), package, "{key}");
        }
        assert_eq!(find("jemalloc").unwrap().note_line(), "Debian: libjemalloc2");
        assert_eq!(
            find("gogc").unwrap().note_line(),
            "the default is 100; also set GOMEMLIMIT to 90 % of the memory limit"
        );
    }

    #[test]
    fn every_preload_needs_a_loader_and_every_tunable_a_version() {
        for r in TABLE {
            if r.template().contains("LD_PRELOAD=") {
                assert!(r.needs.contains(&Need::Preload), "{}", r.key);
            }
            if !r.walls.is_empty() && r.template().contains("{tunables:") {
                assert!(r.needs.contains(&Need::Uses(AllocatorKind::Glibc)), "{}", r.key);
            }
        }
    }
}
