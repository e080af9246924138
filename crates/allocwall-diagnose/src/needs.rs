//! Whether a target meets the needs of a remedy. The same answer for a running target, from its recording, and for a
//! command before it starts, from its files.
//!
//! Callers differ in what they do without an answer. A diagnosis offers only remedies whose needs are known to be met. A
//! trial leaves unknown facts of the program to its proof.

use super::cold_start;
use super::context::Context;
use super::expected;
use super::remedies::MALLOCS_PART;
use allocwall_model::catalogue::modules::AllocatorKind;
use allocwall_model::catalogue::options;
use allocwall_model::catalogue::remedies::{ALLOCATOR_LINES, Need, Remedy};
use allocwall_model::catalogue::tunables::arenas_by_default;
use allocwall_model::catalogue::walls::Wall;
use allocwall_model::recording::{Libc, Linkage, Process, Runtime, is_set, version_of};
use allocwall_model::units::{Absence, Measured, Reason};

/// From this share of CPU time in the allocator's code on, another allocator is worth a trial, whatever else takes time: it also
/// places blocks elsewhere.
pub(super) const WORTH_A_SWAP: f64 = 0.05;

/// What is known about a target and its machine.
pub struct Facts<'a, 'r> {
    pub libc: Measured<&'a Libc>,
    /// If the program is unknown: the glibc version of the program that starts it. A machine rarely has two versions.
    pub starter_glibc: Option<&'a str>,
    pub runtime: Measured<&'a Runtime>,
    /// The allocator that serves malloc.
    pub allocator: Measured<AllocatorKind>,
    /// The program contains its malloc, which takes precedence over a preloaded one.
    pub own_malloc: Measured<bool>,
    /// Setuid, setgid or file capabilities: the loader ignores preloads and tunables.
    pub secure_exec: Measured<bool>,
    /// Mode of transparent huge pages: `always`, `madvise` or `never`. Any other text is an unknown mode.
    pub thp: Measured<&'a str>,
    /// Transparent huge pages are disabled for the process (prctl).
    pub thp_disabled: Measured<bool>,
    pub numa_nodes: Measured<usize>,
    /// Absent for a command that has not started.
    pub observed: Measured<Observed<'a, 'r>>,
}

/// What only a running target shows: its settings, its threads, its bill.
#[derive(Clone, Copy)]
pub struct Observed<'a, 'r> {
    ctx: &'a Context<'r>,
    process: &'a Process,
    /// The walls of the target that the remedy is for.
    walls: &'a [Wall],
}

/// Whether a need is met.
#[derive(Clone, Debug, PartialEq)]
pub enum NeedState {
    Met,
    NotMet(Unmet),
    Unknown(Absence),
}

/// The fact that keeps a need from being met.
#[derive(Clone, Debug, PartialEq)]
pub enum Unmet {
    Libc(Libc),
    Runtime(Runtime),
    Allocator(AllocatorKind),
    OwnMalloc,
    SecureExec,
    ThpNever,
    ThpDisabled,
    OneNode,
    /// The remedy can be applied, but changes nothing or little.
    NotUseful,
}

impl Unmet {
    /// The end of the sentence `NAME needs NEED, but PROGRAM …`; NEED is [`Need::text`]. For a need of the machine
    /// ([`Need::is_of_machine`]) it is `but this machine …`.
    pub fn text(&self) -> String {
        let text = match self {
            Unmet::Libc(Libc::Glibc { version }) => return format!("has glibc {version}"),
            Unmet::Libc(Libc::Musl { .. }) => "is linked with musl",
            Unmet::Libc(Libc::Static) => "is statically linked",
            Unmet::Libc(Libc::Other { name }) => return format!("is linked with {name}"),
            Unmet::Runtime(Runtime::Native) => "is neither Python, Java, Go nor Node",
            Unmet::Runtime(Runtime::Cpython { version, free_threaded: false }) => {
                return format!("is CPython {version}");
            }
            Unmet::Runtime(Runtime::Cpython { version, .. }) => {
                return format!("is CPython {version}, a free-threaded build");
            }
            Unmet::Runtime(Runtime::Jvm { .. }) => "is Java",
            Unmet::Runtime(Runtime::Go { .. }) => "is a Go program",
            Unmet::Runtime(Runtime::Node { .. }) => "is Node",
            Unmet::Allocator(kind) => return format!("uses {}", kind.title()),
            Unmet::OwnMalloc => "contains its own malloc, which a preloaded library can't replace",
            Unmet::SecureExec => {
                "has setuid rights or file capabilities, so its loader ignores preloads and tunables"
            }
            Unmet::ThpNever => "has them in mode never",
            Unmet::ThpDisabled => "has them disabled (prctl)",
            Unmet::OneNode => "has only one",
            Unmet::NotUseful => "would gain little or nothing",
        };
        text.to_owned()
    }
}

/// The first need of the remedy that is not known to be met, for these walls.
pub(super) fn first_unmet(ctx: &Context, remedy: &Remedy, walls: &[Wall]) -> Option<(Need, NeedState)> {
    let walls: Vec<Wall> = remedy.walls.iter().copied().filter(|wall| walls.contains(wall)).collect();
    let facts = Facts::of(ctx, &walls);
    let judge = |need| match &facts {
        Ok(facts) => facts.judge(need),
        Err(absence) => NeedState::Unknown(absence.clone()),
    };
    remedy.needs.iter().map(|need| (*need, judge(*need))).find(|(_, state)| *state != NeedState::Met)
}

impl<'a, 'r> Facts<'a, 'r> {
    /// The process that used most CPU; absent if there is no process.
    fn of(ctx: &'a Context<'r>, walls: &'a [Wall]) -> Measured<Facts<'a, 'r>> {
        let process =
            ctx.process().ok_or_else(|| Absence::new(Reason::NotFound, "the target was not identified"))?;
        let allocator = process.allocator.as_ref();
        Ok(Facts {
            libc: process.libc.as_ref().map_err(Clone::clone),
            starter_glibc: None,
            runtime: process.runtime.as_ref().map_err(Clone::clone),
            allocator: allocator.map(|a| a.kind).map_err(Clone::clone),
            own_malloc: allocator.map(|a| a.how == Linkage::Static).map_err(Clone::clone),
            secure_exec: process.secure_exec.clone(),
            thp: ctx.thp_mode(),
            thp_disabled: process.thp_disabled.clone(),
            numa_nodes: Ok(ctx.recording.host.numa_nodes as usize),
            observed: Ok(Observed { ctx, process, walls }),
        })
    }

    pub fn judge(&self, need: Need) -> NeedState {
        match self.unmet(need) {
            Ok(None) => NeedState::Met,
            Ok(Some(unmet)) => NeedState::NotMet(unmet),
            Err(absence) => NeedState::Unknown(absence),
        }
    }

    /// None if the need is met. An error is a fact that is not known.
    fn unmet(&self, need: Need) -> Measured<Option<Unmet>> {
        let unless = |met: bool, unmet: Unmet| Ok((!met).then_some(unmet));
        let useful = |met: bool| unless(met, Unmet::NotUseful);
        match need {
            Need::Preload => self.preload(),
            Need::Glibc(major, minor) => self.glibc(|version| version >= (major, minor)),
            Need::GlibcBefore(major, minor) => self.glibc(|version| version < (major, minor)),
            Need::Musl => {
                let libc = self.libc.clone()?;
                unless(matches!(libc, Libc::Musl { .. }), Unmet::Libc(libc.clone()))
            }
            Need::Uses(kind) => {
                let used = self.allocator.clone()?;
                unless(used == kind, Unmet::Allocator(used))
            }
            Need::NotAlready(kind) => useful(self.allocator.clone()? != kind),
            Need::Cpython
            | Need::CpythonAtLeast(_)
            | Need::CpythonFreeThreaded
            | Need::Jvm
            | Need::Go
            | Need::Node => {
                let runtime = self.runtime.clone()?;
                unless(is_runtime(need, runtime)?, Unmet::Runtime(runtime.clone()))
            }
            Need::NotJvm => useful(!matches!(self.runtime.clone()?, Runtime::Jvm { .. })),
            Need::ThpByAdvice if self.thp_disabled == Ok(true) => unless(false, Unmet::ThpDisabled),
            Need::ThpByAdvice => unless(self.thp_mode()? != "never", Unmet::ThpNever),
            Need::ThpModeMadvise => useful(self.thp_mode()? == "madvise"),
            Need::MoreThanOneNode => unless(self.numa_nodes.clone()? > 1, Unmet::OneNode),
            Need::MallocMatters => useful(self.malloc_matters()?),
            Need::MoreThanOneThread => useful(self.observed.clone()?.ctx.bill.rates.threads_peak != 1),
            Need::Unset(name) => {
                let process = self.observed.clone()?.process;
                useful(!is_set(&process.environment, &process.cmdline, name))
            }
            Need::SettingBelow { name, number, .. } => {
                let Observed { ctx, process, .. } = self.observed.clone()?;
                // A command that sets the variable itself (`env`) would set it again.
                let assignment = format!("{name}=");
                let mut command = ctx.recording.meta.command.iter().flatten();
                let sets_it = !is_option(name) && command.any(|word| word.starts_with(&assignment));
                let below = |value: &str| value.parse::<u64>().is_ok_and(|set| set < number);
                useful(!sets_it && setting(process, name).is_none_or(below))
            }
            Need::ArenasLimited => {
                let Observed { ctx, process, .. } = self.observed.clone()?;
                let by_default = arenas_by_default(ctx.recording.host.online_cpus.into());
                useful(arena_limit(process).is_some_and(|limit| limit < by_default))
            }
            Need::MmapThresholdBelow(bytes) => {
                let set = mmap_threshold(self.observed.clone()?.process);
                useful(set.is_none_or(|set| set.is_some_and(|set| set < bytes)))
            }
            Need::MapsMemory => useful(!self.observed.clone()?.ctx.maps_files()),
            Need::ForksToExec => {
                let starts = self.observed.clone()?.ctx.starts();
                useful(starts.forked() && starts.execute())
            }
            Need::ForksToStay => {
                /// Exec takes at least this part of the samples of a fork that copies an address space.
                const FEW: f64 = 0.2;
                let starts = self.observed.clone()?.ctx.starts();
                useful(starts.replace as f64 <= FEW * starts.copy as f64)
            }
            Need::KernelSlabOf(object) => useful(self.observed.clone()?.ctx.slab().is_for(object)),
            Need::ColdStart => useful(cold_start::is_under_way(self.observed.clone()?.ctx)?),
            Need::Quota => {
                let cgroup = self.observed.clone()?.ctx.last_tick().and_then(|t| t.cgroup);
                let unread = || Absence::new(Reason::NotFound, "the cgroup's CPU controller was not read");
                useful(cgroup.ok_or_else(unread)?.quota_cpus.is_some())
            }
        }
    }

    /// One of the three modes.
    fn thp_mode(&self) -> Measured<&'a str> {
        match self.thp.clone()? {
            mode @ ("always" | "madvise" | "never") => Ok(mode),
            mode => Err(Absence::new(
                Reason::Unparsable,
                format!("unknown mode of transparent huge pages: {mode:?}"),
            )),
        }
    }

    fn preload(&self) -> Measured<Option<Unmet>> {
        // First, because a Go program is usually static: this is the more useful reason.
        if let Ok(runtime) = self.runtime
            && matches!(runtime, Runtime::Go { .. })
        {
            return Ok(Some(Unmet::Runtime(runtime.clone())));
        }
        if self.libc == Ok(&Libc::Static) {
            return Ok(Some(Unmet::Libc(Libc::Static)));
        }
        if self.own_malloc == Ok(true) {
            return Ok(Some(Unmet::OwnMalloc));
        }
        if self.secure_exec == Ok(true) {
            return Ok(Some(Unmet::SecureExec));
        }
        self.runtime.clone()?;
        match self.libc.clone()? {
            Libc::Other { name } => {
                Err(Absence::new(Reason::NotSupported, format!("unknown C library {name}")))
            }
            Libc::Glibc { .. } | Libc::Musl { .. } | Libc::Static => Ok(None),
        }
    }

    fn glibc(&self, fits: impl Fn((u32, u32)) -> bool) -> Measured<Option<Unmet>> {
        let version = match (&self.libc, self.starter_glibc) {
            (Ok(Libc::Glibc { version }), _) => version.as_str(),
            (Ok(Libc::Static), _) => {
                return Err(Absence::new(
                    Reason::NotFound,
                    "the program is statically linked: the version of its C library is unknown",
                ));
            }
            (Ok(other), _) => return Ok(Some(Unmet::Libc((*other).clone()))),
            (Err(_), Some(version)) => version,
            (Err(absence), None) => return Err(absence.clone()),
        };
        if !fits(parsed(version)?) {
            return Ok(Some(Unmet::Libc(Libc::Glibc { version: version.to_owned() })));
        }
        Ok((self.secure_exec == Ok(true)).then_some(Unmet::SecureExec))
    }

    /// Another malloc has no effect on objects that a runtime or the program allocates itself (CPython: up to 512 bytes;
    /// the Java, Go and V8 heaps; pools of a native program). For a runtime, or if no wall of the memory that malloc maps and keeps
    /// asks for it, it is offered only if malloc's own line of the bill is large, or the places of its blocks may matter as much, or, for the
    /// TLB, if malloc has a part of the memory.
    fn malloc_matters(&self) -> Measured<bool> {
        let Observed { ctx, walls, .. } = self.observed.clone()?;
        let slow = walls.contains(&Wall::AllocatorCode) || walls.contains(&Wall::AllocatorContention);
        let native = matches!(self.runtime, Ok(Runtime::Native));
        let maps_or_keeps = |wall: &Wall| {
            matches!(wall, Wall::FirstTouch | Wall::MapChurn | Wall::AddressSpaceLock | Wall::Retention)
        };
        if slow || native && walls.iter().any(maps_or_keeps) {
            return Ok(true);
        }
        // If its part is unknown: most memory of a native program is malloc's.
        let has_memory = || expected::memory_of_malloc(ctx).map_or(native, |part| part.point >= MALLOCS_PART);
        if walls.contains(&Wall::Tlb) && has_memory() {
            return Ok(true);
        }
        let sum = ctx.cpu(ALLOCATOR_LINES)?;
        Ok(sum.share.point >= WORTH_A_SWAP || expected::places_matter(ctx))
    }
}

fn parsed(version: &str) -> Measured<(u32, u32)> {
    version_of(version).ok_or_else(|| {
        Absence::new(Reason::Unparsable, format!("allocwall can't parse the version {version:?}"))
    })
}

fn is_runtime(need: Need, runtime: &Runtime) -> Measured<bool> {
    Ok(match (need, runtime) {
        (Need::CpythonAtLeast(minor), Runtime::Cpython { version, free_threaded: false }) => {
            parsed(version)? >= (3, minor)
        }
        (Need::CpythonFreeThreaded, Runtime::Cpython { free_threaded, .. }) => *free_threaded,
        (Need::Cpython, Runtime::Cpython { .. })
        | (Need::Jvm, Runtime::Jvm { .. })
        | (Need::Go, Runtime::Go { .. })
        | (Need::Node, Runtime::Node { .. }) => true,
        _ => false,
    })
}

// ---- settings of a running target ----

fn is_option(name: &str) -> bool {
    name.starts_with("--")
}

/// The value of a setting of a runtime ([`Need::SettingBelow`]). The command line overrides the environment; of several
/// options the last one counts.
pub(super) fn setting<'a>(process: &'a Process, name: &str) -> Option<&'a str> {
    if !is_option(name) {
        return process.environment.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
    }
    let environment = process.environment.iter().flat_map(|(_, value)| value.split_whitespace());
    let given = options_given(process, name);
    environment.chain(given).filter_map(|word| options::value(word, name)).next_back()
}

/// The options for the runtime itself that set the same as this one, in their order.
pub(super) fn options_given<'a>(process: &'a Process, option: &str) -> Vec<&'a str> {
    let words = process.cmdline.get(1..).unwrap_or_default();
    let same = options::same_setting(words.iter().map(String::as_str), option);
    same.into_iter().map(|at| words[at].as_str()).collect()
}

/// The value of the setting that the remedy raises, as it is now, and as it will be.
pub(super) fn raised(process: Option<&Process>, remedy: &Remedy) -> Option<(u64, u64)> {
    remedy.needs.iter().find_map(|need| match *need {
        Need::SettingBelow { name, number, default } => {
            let present = process.and_then(|p| setting(p, name)).and_then(|value| value.parse().ok());
            Some((present.unwrap_or(default), number))
        }
        _ => None,
    })
}

/// Whether the remedy undoes a setting of the target that causes the wall.
pub(super) fn undoes_a_setting(process: Option<&Process>, remedy: &Remedy) -> bool {
    remedy.needs.iter().any(|need| match need {
        Need::ArenasLimited => true,
        Need::MmapThresholdBelow(_) => process.is_some_and(|p| mmap_threshold(p).is_some()),
        // A value above the default was set to have fewer collections.
        Need::SettingBelow { default, .. } => {
            raised(process, remedy).is_some_and(|(present, _)| present < *default)
        }
        _ => false,
    })
}

/// The limit on glibc's arenas from the environment. 0 means no limit.
fn arena_limit(process: &Process) -> Option<u64> {
    let variable = || {
        let found = process.environment.iter().find(|(k, _)| k == "MALLOC_ARENA_MAX")?;
        Some(number(&found.1))
    };
    tunable(process, "glibc.malloc.arena_max").or_else(variable)?.filter(|limit| *limit > 0)
}

fn mmap_threshold(process: &Process) -> Option<Option<u64>> {
    tunable(process, "glibc.malloc.mmap_threshold")
}

/// Value of an entry of GLIBC_TUNABLES in the target's environment. The inner None is a value that is not a number.
/// The last entry counts, as it does for the loader.
fn tunable(process: &Process, name: &str) -> Option<Option<u64>> {
    let list = &process.environment.iter().find(|(k, _)| k == "GLIBC_TUNABLES")?.1;
    let (_, value) =
        list.split(':').filter_map(|entry| entry.split_once('=')).rfind(|(key, _)| *key == name)?;
    Some(number(value))
}

/// A number in the notation of the loader: decimal, hexadecimal with `0x`, or octal with `0`.
fn number(value: &str) -> Option<u64> {
    match value.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None if value.len() > 1 && value.starts_with('0') => u64::from_str_radix(value, 8).ok(),
        None => value.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::computing;
    use allocwall_model::catalogue::remedies::TABLE;

    fn unknown<T>() -> Measured<T> {
        Err(Absence::new(Reason::NotFound, "not read"))
    }

    /// A target of which nothing is known.
    fn nothing<'r>() -> Facts<'static, 'r> {
        Facts {
            libc: unknown(),
            starter_glibc: None,
            runtime: unknown(),
            allocator: unknown(),
            own_malloc: unknown(),
            secure_exec: unknown(),
            thp: unknown(),
            thp_disabled: unknown(),
            numa_nodes: unknown(),
            observed: unknown(),
        }
    }

    #[test]
    fn without_facts_every_need_is_unknown() {
        for need in TABLE.iter().flat_map(|remedy| remedy.needs) {
            assert!(matches!(nothing().judge(*need), NeedState::Unknown(_)), "{need:?}");
        }
    }

    #[test]
    fn a_command_that_has_not_started_meets_what_its_files_show() {
        let libc = Libc::Glibc { version: "2.36".into() };
        let python = Runtime::Cpython { version: "3.12.1".into(), free_threaded: false };
        let facts = || Facts {
            libc: Ok(&libc),
            runtime: Ok(&python),
            allocator: Ok(AllocatorKind::Glibc),
            own_malloc: Ok(false),
            secure_exec: Ok(false),
            thp: Ok("always"),
            numa_nodes: Ok(1),
            ..nothing()
        };
        for (need, state) in [
            (Need::Preload, NeedState::Met),
            (Need::Glibc(2, 36), NeedState::Met),
            (Need::Glibc(2, 37), NeedState::NotMet(Unmet::Libc(libc.clone()))),
            (Need::GlibcBefore(2, 36), NeedState::NotMet(Unmet::Libc(libc.clone()))),
            (Need::Musl, NeedState::NotMet(Unmet::Libc(libc.clone()))),
            (Need::Uses(AllocatorKind::Glibc), NeedState::Met),
            (Need::Uses(AllocatorKind::Jemalloc), NeedState::NotMet(Unmet::Allocator(AllocatorKind::Glibc))),
            (Need::NotAlready(AllocatorKind::Glibc), NeedState::NotMet(Unmet::NotUseful)),
            (Need::CpythonAtLeast(12), NeedState::Met),
            (Need::CpythonAtLeast(13), NeedState::NotMet(Unmet::Runtime(python.clone()))),
            (Need::CpythonFreeThreaded, NeedState::NotMet(Unmet::Runtime(python.clone()))),
            (Need::Go, NeedState::NotMet(Unmet::Runtime(python.clone()))),
            (Need::NotJvm, NeedState::Met),
            (Need::ThpByAdvice, NeedState::Met),
            (Need::ThpModeMadvise, NeedState::NotMet(Unmet::NotUseful)),
            (Need::MoreThanOneNode, NeedState::NotMet(Unmet::OneNode)),
        ] {
            assert_eq!(facts().judge(need), state, "{need:?}");
        }
        // Its settings and its threads are known when it runs.
        for need in [Need::Unset("GOGC"), Need::MoreThanOneThread, Need::MallocMatters, Need::Quota] {
            assert!(matches!(facts().judge(need), NeedState::Unknown(_)), "{need:?}");
        }
        let secure = Facts { secure_exec: Ok(true), ..facts() };
        for need in [Need::Preload, Need::Glibc(2, 17)] {
            assert_eq!(secure.judge(need), NeedState::NotMet(Unmet::SecureExec), "{need:?}");
        }
        let own = Facts { own_malloc: Ok(true), ..facts() };
        assert_eq!(own.judge(Need::Preload), NeedState::NotMet(Unmet::OwnMalloc));
    }

    #[test]
    fn waits_for_a_disk_or_the_network_are_no_matter_of_malloc() {
        let subject = computing();
        let ctx = Context::new(&subject.recording, &subject.bill);
        let native = Runtime::Native;
        let judge = |wall: Wall| {
            let walls = [wall];
            let observed = Observed { ctx: &ctx, process: &subject.recording.processes[0], walls: &walls };
            let facts = Facts { runtime: Ok(&native), observed: Ok(observed), ..nothing() };
            facts.judge(Need::MallocMatters)
        };
        for wall in [Wall::Disk, Wall::Network, Wall::Waiting, Wall::KernelSlab, Wall::FileFault] {
            assert_eq!(judge(wall), NeedState::NotMet(Unmet::NotUseful), "{wall:?}");
        }
        for wall in [Wall::MapChurn, Wall::AddressSpaceLock, Wall::Retention, Wall::AllocatorCode] {
            assert_eq!(judge(wall), NeedState::Met, "{wall:?}");
        }
    }

    #[test]
    fn huge_pages_need_a_known_mode() {
        let judge = |mode, need| Facts { thp: Ok(mode), ..nothing() }.judge(need);
        for mode in ["always", "madvise"] {
            assert_eq!(judge(mode, Need::ThpByAdvice), NeedState::Met, "{mode}");
        }
        assert_eq!(judge("never", Need::ThpByAdvice), NeedState::NotMet(Unmet::ThpNever));
        assert_eq!(judge("madvise", Need::ThpModeMadvise), NeedState::Met);
        for need in [Need::ThpByAdvice, Need::ThpModeMadvise] {
            assert!(
                matches!(judge("defer", need), NeedState::Unknown(why) if why.reason == Reason::Unparsable),
                "{need:?}"
            );
        }
    }

    #[test]
    fn a_static_program_has_a_c_library_of_unknown_version() {
        let libc = Libc::Static;
        let facts = Facts { libc: Ok(&libc), ..nothing() };
        assert_eq!(facts.judge(Need::Preload), NeedState::NotMet(Unmet::Libc(Libc::Static)));
        assert!(matches!(facts.judge(Need::Glibc(2, 17)), NeedState::Unknown(_)));
        assert_eq!(facts.judge(Need::Musl), NeedState::NotMet(Unmet::Libc(Libc::Static)));
        // Usually, a static Go program.
        let go = Runtime::Go { version: None };
        let facts = Facts { runtime: Ok(&go), ..facts };
        assert_eq!(facts.judge(Need::Preload), NeedState::NotMet(Unmet::Runtime(go.clone())));
    }

    #[test]
    fn the_glibc_of_the_starter_stands_for_an_unknown_program() {
        let facts = Facts { starter_glibc: Some("2.31"), ..nothing() };
        assert_eq!(facts.judge(Need::Glibc(2, 26)), NeedState::Met);
        assert!(matches!(facts.judge(Need::Glibc(2, 36)), NeedState::NotMet(Unmet::Libc(_))));
        assert!(matches!(facts.judge(Need::Musl), NeedState::Unknown(_)));
    }
}
