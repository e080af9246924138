//! Resolves an arm for a command: the settings before the exec, or one line that says why the arm can't be applied.

use super::facts::{Inventory, Program, TargetFacts};
use super::{Arm, Cause, Part, Refusal, Setting, Source, contradictions, lacking, pages_of, refuse, setting};
use allocwall_diagnose::needs::{Facts, NeedState, Unmet};
use allocwall_host::file;
use allocwall_host::installed;
use allocwall_host::tunables::parse_size;
use allocwall_measure::target::{FileView, view_file};
use allocwall_model::catalogue::modules::{
    AllocatorKind, JEMALLOC_CONF, LibcKind, allocator_by_name, libc_by_name,
};
use allocwall_model::catalogue::nearest::hint;
use allocwall_model::catalogue::options::same_setting;
use allocwall_model::catalogue::remedies::{
    ARENA_HOOK, ARENA_HOOK_FILES, ARENA_HOOK_ON, Change, Library, Need, Pages, Proof, Remedy, TABLE,
};
use allocwall_model::catalogue::tunables;
use allocwall_model::recording::{Libc, Runtime, version_of};
use allocwall_model::shell::{merged, quoted};
use allocwall_model::units::{Absence, Measured, Reason};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// How the start of a command changes for an arm.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// The command, with the arm's `options` inserted and without its own options that set the same.
    pub command: Vec<OsString>,
    pub options: Vec<String>,
    /// Variables whose value the arm changes, by name; None removes the variable.
    pub env: Vec<(OsString, Option<OsString>)>,
    pub cpus: Option<Vec<u32>>,
    /// NUMA nodes that all memory is bound to.
    pub nodes: Option<Vec<u32>>,
    /// What the running target must show as proof that the arm took effect.
    pub expects: Vec<Expectation>,
    /// Things that could not be checked, and options of the command that are left out, one line each.
    pub notes: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expectation {
    /// The file is mapped.
    Mapped(PathBuf),
    /// The loader has bound malloc to this file.
    MallocFrom(PathBuf),
    /// During a short sample, the counted calls go to this file. Not needed: if the calls can't be counted, the other proofs
    /// suffice.
    Serves(PathBuf),
    Environment(String, String),
    /// An argument of the command line.
    CommandLine(String),
    /// Transparent or reserved huge pages are resident.
    HugeResident,
    /// CPython's arenas are on huge pages, through the hook of the Python package.
    ArenasHuge,
    Cpus(Vec<u32>),
    Nodes(Vec<u32>),
    /// At least this many bytes are resident at the peak: they are touched before main runs.
    ResidentAtStart(u64),
}

impl Arm {
    /// # Errors
    /// One line: why this arm does not apply to this command on this machine, and what to do instead.
    pub fn resolve(&self, inventory: &Inventory, facts: &TargetFacts) -> Result<Applied, Refusal> {
        let Some(program) = facts.last() else {
            return refuse("no command given: put it after --");
        };
        for part in &self.parts {
            // The other needs only make a remedy useful, and the diagnosis judges that.
            for need in part.remedy.needs.iter().filter(|need| !need.only_makes_useful()) {
                self.require(*need, &part.text, inventory, facts)?;
            }
            python_has_mimalloc(part, facts)?;
        }
        let settings = self.expanded(inventory, facts)?;
        contradictions(&settings)?;
        let mut work = Work {
            facts,
            inventory,
            program,
            preloads: Vec::new(),
            drop_preloaded: false,
            jemalloc_variable: None,
            tunables: Vec::new(),
            env: BTreeMap::new(),
            done: Applied::default(),
        };
        // Preloads first: the variable that jemalloc reads depends on the library.
        let (first, then): (Vec<_>, Vec<_>) =
            settings.iter().partition(|(_, setting)| matches!(setting, Setting::Preload { .. }));
        for (text, setting) in first.into_iter().chain(then) {
            work.apply(text, setting, self)?;
        }
        if self.parts.iter().any(|part| part.remedy.proofs().contains(&Proof::HugePages)) {
            work.expect(Expectation::HugeResident);
        }
        work.finish(self)
    }

    /// The settings; each `Pages` is replaced by the setting of the allocator that will serve the program.
    fn expanded<'a>(
        &'a self,
        inventory: &Inventory,
        facts: &TargetFacts,
    ) -> Result<Vec<(&'a str, Setting)>, Refusal> {
        let mut settings = self.settings();
        for (text, each) in &mut settings {
            let Setting::Pages(pages) = *each else { continue };
            let kind = match self.library() {
                Some((_, library)) => library.kind(),
                None => served_by(facts).map_err(|absence| {
                    Refusal::asked(format!(
                        "{text} depends on the allocator, but {absence}: name the allocator in the same arm, for example glibc+{text}"
                    ))
                })?,
            };
            match pages {
                Pages::Transparent => self.require(Need::ThpByAdvice, text, inventory, facts)?,
                Pages::Reserved => reserved_pages(inventory, text)?,
            }
            let change = pages_of(kind, pages)?;
            if let Some(expanded) = setting(&change, None, &Source::Any) {
                *each = expanded;
            }
        }
        Ok(settings)
    }

    /// What is known about the target before it starts.
    fn known<'a>(&self, inventory: &'a Inventory, facts: &'a TargetFacts) -> Facts<'a, 'a> {
        let program = facts.certain().ok_or_else(|| unknown_program(facts));
        let starter = facts.last().filter(|_| program.is_err());
        let not_started = || Absence::new(Reason::NotApplicable, "the command has not started");
        Facts {
            libc: program.clone().and_then(|program| program.libc.as_ref().map_err(Clone::clone)),
            starter_glibc: starter.and_then(|starter| match &starter.libc {
                Ok(Libc::Glibc { version }) => Some(version.as_str()),
                _ => None,
            }),
            runtime: program.clone().and_then(|program| program.runtime.as_ref().map_err(Clone::clone)),
            allocator: match self.library() {
                Some((_, library)) => Ok(library.kind()),
                None => served_by(facts),
            },
            own_malloc: program.clone().and_then(|program| {
                program.allocator.as_ref().map(|(_, library)| library.is_none()).map_err(Clone::clone)
            }),
            secure_exec: program.map(|program| program.raised.is_some()),
            thp: inventory.thp.as_deref().map_err(Clone::clone),
            thp_disabled: Err(not_started()),
            numa_nodes: inventory.memory_nodes.as_ref().map(Vec::len).map_err(Clone::clone),
            observed: Err(not_started()),
        }
    }

    /// Refuses a need that is not met. If a fact of the program is unknown, the proof on the running target decides.
    fn require(
        &self,
        need: Need,
        text: &str,
        inventory: &Inventory,
        facts: &TargetFacts,
    ) -> Result<(), Refusal> {
        let known = self.known(inventory, facts);
        let unmet = match known.judge(need) {
            NeedState::Met => return Ok(()),
            // Raised rights matter only if the arm sets a variable: see `environment_arrives`.
            NeedState::NotMet(Unmet::SecureExec) => return Ok(()),
            NeedState::Unknown(absence) if need.is_of_machine() => {
                return lacking(format!("{text}: {absence}"));
            }
            NeedState::Unknown(_) => return Ok(()),
            NeedState::NotMet(unmet) => unmet,
        };
        let what = match facts.last() {
            Some(program) if !need.is_of_machine() => program.name(),
            _ => "this machine".to_owned(),
        };
        let instead = match (need, &unmet) {
            (Need::Preload, Unmet::Libc(_)) => ": link the allocator into the program".to_owned(),
            (Need::Uses(_), Unmet::Allocator(_)) if known.own_malloc == Ok(true) => {
                ", and a preloaded library can't replace that".to_owned()
            }
            (Need::Uses(kind), Unmet::Allocator(_)) => {
                let preload = TABLE.iter().find(|remedy| preloads(remedy, kind));
                let name = preload.map_or("NAME", |remedy| remedy.key);
                format!(": add the allocator to the arm, for example {name}+{text}")
            }
            (Need::ThpByAdvice, Unmet::ThpNever) => {
                ": run echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled".to_owned()
            }
            (Need::CpythonAtLeast(_), Unmet::Runtime(Runtime::Cpython { free_threaded: true, .. })) => {
                ": use cpython-nogil-huge".to_owned()
            }
            (
                Need::CpythonAtLeast(_) | Need::CpythonFreeThreaded,
                Unmet::Runtime(Runtime::Cpython { .. }),
            ) => String::new(),
            (_, Unmet::Runtime(_)) => self.or_variable(text),
            _ => String::new(),
        };
        let line = format!("{text} needs {}, but {what} {}{instead}", need.text(), unmet.text());
        if need.is_of_machine() { lacking(line) } else { refuse(line) }
    }

    /// A program may start the runtime as a child process, which inherits the variable.
    fn or_variable(&self, text: &str) -> String {
        let parts = self.parts.iter().filter(|part| part.text == text);
        match parts.flat_map(|part| &part.settings).find_map(Setting::replaces) {
            Some(variable) => format!("; to set the variable anyway, use env:{variable}=VALUE"),
            None => String::new(),
        }
    }
}

fn preloads(remedy: &Remedy, kind: AllocatorKind) -> bool {
    let is_library = |change: &Change| matches!(change, Change::Preload(library) if library.kind() == kind);
    remedy.start.is_some_and(|start| start.applied.iter().any(is_library))
}

/// The values of PYTHONMALLOC with mimalloc exist since CPython 3.13.
fn python_has_mimalloc(part: &Part, facts: &TargetFacts) -> Result<(), Refusal> {
    let names_mimalloc = |setting: &Setting| matches!(setting, Setting::Env { name, value } if name == "PYTHONMALLOC" && value.starts_with("mimalloc"));
    if part.remedy.needs.contains(&Need::Cpython)
        && part.settings.iter().any(names_mimalloc)
        && let Some(program) = facts.certain()
        && let Ok(Runtime::Cpython { version, .. }) = &program.runtime
        && version_of(version).is_some_and(|version| version < (3, 13))
    {
        return refuse(format!(
            "{} needs CPython 3.13 or later, but {} is CPython {version}",
            part.text,
            program.name()
        ));
    }
    Ok(())
}

fn unknown_program(facts: &TargetFacts) -> Absence {
    let why = facts.beyond.as_ref().map_or("", |absence| absence.detail.as_str());
    Absence::new(Reason::NotFound, format!("the program that will run is unknown ({why})"))
}

/// The allocator that would serve the command without the arm.
fn served_by(facts: &TargetFacts) -> Measured<AllocatorKind> {
    let program = facts.certain().ok_or_else(|| unknown_program(facts))?;
    if let Some(kind) = preloaded_allocators(facts).first() {
        return Ok(*kind);
    }
    program.allocator.as_ref().map(|(kind, _)| *kind).map_err(|absence| {
        Absence::new(absence.reason, format!("the allocator of {} is unknown ({absence})", program.name()))
    })
}

/// Allocators among the libraries that LD_PRELOAD already names, found by their file names.
fn preloaded_allocators(facts: &TargetFacts) -> Vec<AllocatorKind> {
    let list = facts.variable("LD_PRELOAD").unwrap_or_default();
    entries(list).filter_map(allocator_library).collect()
}

/// LD_PRELOAD is split at blanks and colons (ld.so(8)).
fn entries(list: &OsStr) -> impl Iterator<Item = &OsStr> {
    list.as_bytes()
        .split(|b| matches!(b, b' ' | b':'))
        .filter(|entry| !entry.is_empty())
        .map(OsStr::from_bytes)
}

fn allocator_library(entry: &OsStr) -> Option<AllocatorKind> {
    allocator_by_name(Path::new(entry).file_name()?.to_str()?)
}

fn reserved_pages(inventory: &Inventory, text: &str) -> Result<(), Refusal> {
    match &inventory.reserved_pages {
        Ok(0) => {
            lacking(format!("{text}: no reserved huge page is free: run sudo sysctl vm.nr_hugepages=PAGES"))
        }
        Ok(_) => Ok(()),
        Err(absence) => lacking(format!("{text}: {absence}")),
    }
}

impl Program {
    /// The file name, for messages.
    pub fn name(&self) -> String {
        let name = self.path.file_name().unwrap_or(self.path.as_os_str());
        name.to_string_lossy().into_owned()
    }
}

/// Refuses the other tcmalloc: those of Google and of gperftools have the same file name. A file that the user names may be any
/// library, but one with a cache per CPU is what `tcmalloc-percpu` promises.
fn right_tcmalloc(
    view: FileView,
    path: &Path,
    library: Library,
    source: &Source,
) -> Result<FileView, String> {
    let named = matches!(source, Source::Path(_));
    match (library == Library::TcmallocPercpu, view.has_cpu_caches) {
        (true, false) => Err(format!(
            "{} is not Google's tcmalloc, which has a cache per CPU: install that as {}, or give its file, for example \
             tcmalloc-percpu@/path/lib.so",
            path.display(),
            Library::TcmallocPercpu.usual_path(false)
        )),
        (false, true) if !named => {
            Err(format!("{} is Google's tcmalloc: use tcmalloc-percpu", path.display()))
        }
        _ => Ok(view),
    }
}

/// ELF machine numbers (include/uapi/linux/elf-em.h).
fn machine_name(machine: u16) -> String {
    match machine {
        3 => "x86".to_owned(),
        22 => "s390x".to_owned(),
        21 => "ppc64".to_owned(),
        40 => "arm".to_owned(),
        62 => "x86-64".to_owned(),
        183 => "aarch64".to_owned(),
        243 => "riscv".to_owned(),
        other => format!("ELF machine {other}"),
    }
}

struct Work<'a> {
    facts: &'a TargetFacts,
    inventory: &'a Inventory,
    program: &'a Program,
    preloads: Vec<PathBuf>,
    /// Whether other allocators are removed from LD_PRELOAD.
    drop_preloaded: bool,
    /// The configuration variable of this arm's jemalloc.
    jemalloc_variable: Option<String>,
    tunables: Vec<String>,
    env: BTreeMap<OsString, Option<OsString>>,
    done: Applied,
}

impl Work<'_> {
    fn apply(&mut self, text: &str, setting: &Setting, arm: &Arm) -> Result<(), Refusal> {
        match setting {
            Setting::Preload { library, source } => {
                let part = arm.parts.iter().find(|part| part.text == text);
                self.preload(text, *library, source, part.map(|part| part.remedy))
            }
            Setting::Tunable { name, value } => self.tunable(text, name, value, arm),
            Setting::Env { name, value } => {
                self.env.insert(name.into(), Some(value.into()));
                self.expect(Expectation::Environment(name.clone(), value.clone()));
                Ok(())
            }
            Setting::Append { name, separator, value } => self.append(text, name, *separator, value),
            Setting::Unset(name) => {
                if self.facts.variable(name).is_some() {
                    self.env.insert(name.into(), None);
                }
                Ok(())
            }
            Setting::CommandOption(option) => {
                self.done.options.push(option.clone());
                self.expect(Expectation::CommandLine(option.clone()));
                Ok(())
            }
            Setting::Prefault(bytes) => self.prefault(text, *bytes),
            Setting::Cpus(cpus) => self.cpus(text, cpus),
            Setting::Nodes(nodes) => self.nodes(text, nodes),
            // `expanded` has replaced it.
            Setting::Pages(_) => Ok(()),
            Setting::ArenaHook => self.arena_hook(text),
        }
    }

    /// Adds an expectation, unless it is already in the list.
    fn expect(&mut self, expectation: Expectation) {
        if !self.done.expects.contains(&expectation) {
            self.done.expects.push(expectation);
        }
    }

    // ---- libraries ----

    fn preload(
        &mut self,
        text: &str,
        library: Library,
        source: &Source,
        remedy: Option<&Remedy>,
    ) -> Result<(), Refusal> {
        if library == Library::Glibc {
            return self.glibc(text);
        }
        let (path, view) = self.library(text, library, source, remedy)?;
        // Check the contents: the name of a library does not show that it is an allocator.
        if !view.serves_malloc {
            return refuse(format!(
                "{text}: {} defines no malloc, so preloading it has no effect",
                path.display()
            ));
        }
        self.jemalloc_variable = view.jemalloc_variable;
        self.preloads.insert(0, path.clone());
        self.expect(Expectation::Mapped(path.clone()));
        self.expect(Expectation::MallocFrom(path.clone()));
        self.expect(Expectation::Serves(path));
        Ok(())
    }

    /// Makes glibc serve malloc: preloads the C library if another library would serve malloc.
    fn glibc(&mut self, text: &str) -> Result<(), Refusal> {
        match &self.program.libc {
            Ok(Libc::Glibc { .. }) => {}
            Ok(_) => return refuse(format!("{text}: {} is not linked with glibc", self.program.name())),
            Err(absence) => {
                return refuse(format!(
                    "{text}: the C library of {} is unknown: {absence}",
                    self.program.name()
                ));
            }
        }
        self.drop_preloaded = !preloaded_allocators(self.facts).is_empty();
        if let Ok((AllocatorKind::Glibc, Some(libc))) = &self.program.allocator
            && self.facts.beyond.is_none()
        {
            self.expect(Expectation::MallocFrom(libc.clone()));
            return Ok(());
        }
        let Some(libc) = self.program.libc_file.clone() else {
            return refuse(format!("{text}: allocwall found no C library of {}", self.program.name()));
        };
        self.preloads.insert(0, libc.clone());
        self.expect(Expectation::MallocFrom(libc));
        Ok(())
    }

    /// The first library that fits the program, among those that the source allows.
    fn library(
        &self,
        text: &str,
        library: Library,
        source: &Source,
        remedy: Option<&Remedy>,
    ) -> Result<(PathBuf, FileView), Refusal> {
        let kind = library.kind();
        let is_minimal = |path: &Path| path.to_string_lossy().contains("_minimal");
        let mut system: Vec<&Path> = self
            .inventory
            .installed
            .iter()
            .filter(|found| found.kind == kind)
            .map(|found| found.path.as_path())
            .filter(|path| library != Library::TcmallocMinimal || is_minimal(path))
            .collect();
        system.sort_by_key(|path| is_minimal(path));
        let bundled = self.inventory.bundled.iter().filter(|found| found.kind == kind);
        let bundled: Vec<(&Path, &str)> =
            bundled.map(|found| (found.path.as_path(), found.version.as_str())).collect();
        let paths = |bundled: &[(&Path, &str)]| -> Vec<PathBuf> {
            bundled.iter().map(|(path, _)| path.to_path_buf()).collect()
        };
        let system_paths = || system.iter().map(|path| path.to_path_buf());
        let candidates: Vec<PathBuf> = match source {
            Source::System => system_paths().collect(),
            Source::Bundled => paths(&bundled),
            Source::Any | Source::Version(_) => system_paths().chain(paths(&bundled)).collect(),
            Source::Path(path) => vec![std::path::absolute(path).unwrap_or_else(|_| path.clone())],
        };
        let mut refused = None;
        for path in candidates {
            let fitting = self.fits(&path).and_then(|view| right_tcmalloc(view, &path, library, source));
            let fits = fitting.and_then(|view| match source {
                Source::Version(wanted) => {
                    let stated = bundled.iter().find(|(known, _)| *known == path).map(|(_, v)| *v);
                    let found = stated.or(view.allocator_version.as_deref());
                    if found.is_some_and(|found| is_of_version(found, wanted)) {
                        Ok(view)
                    } else {
                        Err(format!("{} has version {}", path.display(), found.unwrap_or("unknown")))
                    }
                }
                _ => Ok(view),
            });
            match fits {
                Ok(view) => return Ok((path, view)),
                Err(why) => refused = refused.or(Some(why)),
            }
        }
        let named = matches!(source, Source::Path(_));
        if let Some(why) = refused {
            let line = format!("{text}: {why}");
            return if named { refuse(line) } else { lacking(line) };
        }
        lacking(format!("{text}: {}", self.no_library(library, source, remedy)))
    }

    /// Why there is no library, and what to install. The package named is one that serves this name.
    fn no_library(&self, library: Library, source: &Source, remedy: Option<&Remedy>) -> String {
        let key = remedy.map_or("NAME", |remedy| remedy.key);
        let own = format!("give its file, for example {key}@/path/lib.so");
        let musl = remedy.is_some_and(|remedy| remedy.needs.contains(&Need::Musl));
        let package = match self.inventory.debian {
            _ if musl => library.package(true).map(|name| format!("Alpine: {name}")),
            Ok(release) => library.debian_package(release).map(|name| format!("sudo apt install {name}")),
            Err(_) => library.package(false).map(|name| format!("Debian: {name}")),
        };
        match (source, package) {
            // A package of the system is not this build's library.
            (Source::Bundled, Some(package)) => format!(
                "this build does not include the library: use {key}@system ({package}), build allocwall with --features \
                 bundled, or {own}"
            ),
            (Source::Bundled, None) => format!("this build does not include the library: {own}"),
            (Source::Version(version), Some(package)) => format!(
                "this machine has no such library: install one of version {version} ({package}, if it has this version), or {own}"
            ),
            (_, Some(package)) => {
                format!("this machine has no such library: install it ({package}), or {own}")
            }
            (_, None) => format!("this machine has no such library, and no known package has it: {own}"),
        }
    }

    /// Checks that the program's loader would accept the library. The error says why not.
    fn fits(&self, path: &Path) -> Result<FileView, String> {
        let shown = path.display();
        if path.as_os_str().as_bytes().iter().any(|b| matches!(b, b' ' | b':')) {
            return Err(format!("LD_PRELOAD can't hold a path with a blank or a colon: {shown}"));
        }
        // An error of the open names the file, an error of its contents does not.
        File::open(path).map_err(|error| file::absence_of(path, &error).to_string())?;
        let view = view_file(path).map_err(|absence| format!("{shown}: {absence}"))?;
        let program = &self.program.view;
        if (view.machine, view.is_64) != (program.machine, program.is_64) {
            return Err(format!(
                "{shown} is for {}, but {} is for {}",
                machine_name(view.machine),
                self.program.name(),
                machine_name(program.machine)
            ));
        }
        let needs = view.needed.iter().find_map(|needed| libc_by_name(needed));
        let name = self.program.name();
        match (&self.program.libc, needs) {
            (Ok(Libc::Musl { .. }), Some(LibcKind::Glibc)) => {
                Err(format!("{shown} is linked with glibc, but {name} is linked with musl"))
            }
            (Ok(Libc::Glibc { .. }), Some(LibcKind::Musl)) => {
                Err(format!("{shown} is linked with musl, but {name} is linked with glibc"))
            }
            _ => Ok(view),
        }
    }

    fn prefault(&mut self, text: &str, bytes: u64) -> Result<(), Refusal> {
        if let Ok(available) = self.inventory.available_bytes
            && bytes > available
        {
            return refuse(format!("{text}: only {} MiB of memory are available", available >> 20));
        }
        let library = match &self.inventory.prefault {
            Ok(library) => library.clone(),
            Err(absence) => return lacking(format!("{text}: {absence}")),
        };
        self.fits(&library).map_err(|why| Refusal::asked(format!("{text}: {why}")))?;
        self.preloads.push(library.clone());
        self.env.insert("ALLOCWALL_PREFAULT".into(), Some(bytes.to_string().into()));
        self.expect(Expectation::Mapped(library));
        self.expect(Expectation::ResidentAtStart(bytes));
        Ok(())
    }

    // ---- variables ----

    fn tunable(&mut self, text: &str, name: &str, value: &str, arm: &Arm) -> Result<(), Refusal> {
        let program_name = self.program.name();
        let of_malloc = name.starts_with(tunables::PREFIX);
        if let Some(program) = self.facts.certain() {
            if of_malloc && matches!(program.runtime, Ok(Runtime::Go { .. })) {
                return refuse(format!(
                    "{text} acts on malloc, but {program_name} is a Go program, whose runtime does not use malloc"
                ));
            }
            let kind = program.allocator_kind();
            if of_malloc && program.view.kind.is_static() && kind != Some(AllocatorKind::Glibc) {
                return refuse(format!(
                    "{text}: {program_name} is statically linked, and allocwall found no glibc malloc in it"
                ));
            }
            if of_malloc {
                arm.require(Need::Uses(AllocatorKind::Glibc), text, self.inventory, self.facts)?;
            }
        }
        let cpus = self.inventory.topology.as_ref().map_or(1, |topology| topology.cpus.len());
        let value = value.replace("{arenas}", &tunables::arenas_by_default(cpus as u64).to_string());
        let value = self.checked(text, name, &value)?;
        if Proof::of_tunable(name).contains(&Proof::HugePages) && value != "0" {
            self.expect(Expectation::HugeResident);
            match value.as_str() {
                "1" => arm.require(Need::ThpByAdvice, text, self.inventory, self.facts)?,
                _ => reserved_pages(self.inventory, text)?,
            }
        }
        self.tunables.push(format!("{name}={value}"));
        Ok(())
    }

    /// Checks a tunable and returns the value as the loader accepts it. The loader would ignore an unknown name or value silently.
    fn checked(&mut self, text: &str, name: &str, value: &str) -> Result<String, Refusal> {
        let wrong = |why: String| Err(Refusal(format!("{text}: {why}"), Cause::Usage));
        let list = match &self.facts.tunables {
            Ok(list) => list,
            Err(absence) => {
                self.done.notes.push(format!("{name}={value} was not checked: {absence}"));
                return Ok(parse_size(value).map_or_else(|| value.to_owned(), |size| size.to_string()));
            }
        };
        let Some(tunable) = list.iter().find(|tunable| tunable.name == name) else {
            let short = |name: &str| name.strip_prefix(tunables::PREFIX).unwrap_or(name).to_owned();
            let names: Vec<String> = list.iter().map(|tunable| short(&tunable.name)).collect();
            return wrong(format!(
                "the loader of {} has no tunable {name}{}",
                self.program.name(),
                hint(&short(name), names.iter().map(String::as_str))
            ));
        };
        let taken = tunable.check(value).or_else(wrong)?;
        match (self.program.malloc_limit(name), taken.parse::<u64>()) {
            (Some(limit), Ok(number)) if number > limit => {
                wrong(format!("{name}={value} is too large: this glibc ignores values above {limit}"))
            }
            _ => Ok(taken),
        }
    }

    fn append(&mut self, text: &str, name: &str, separator: char, value: &str) -> Result<(), Refusal> {
        let name = match name {
            JEMALLOC_CONF => self.jemalloc_variable(),
            name => name.to_owned(),
        };
        let key = OsString::from(&name);
        let held = match self.env.get(&key) {
            Some(value) => value.clone(),
            None => self.facts.variable(&name).map(OsStr::to_owned),
        };
        let held = self.text_of(text, &name, held.as_deref())?;
        let value = match separator {
            // jemalloc's list: of several entries with one name the last counts, so keep only that one.
            ',' => merged(&held, value, ',', ':'),
            _ if held.is_empty() => value.to_owned(),
            _ => format!("{held}{separator}{value}"),
        };
        // If two settings extend one variable, the process must show only the final value.
        self.done.expects.retain(
            |expectation| !matches!(expectation, Expectation::Environment(known, _) if *known == name),
        );
        self.expect(Expectation::Environment(name, value.clone()));
        self.env.insert(key, Some(value.into()));
        Ok(())
    }

    /// The configuration variable of jemalloc. It has the same prefix as the functions of that build.
    fn jemalloc_variable(&self) -> String {
        let own = || {
            let program = self.facts.certain()?;
            match &program.allocator {
                Ok((AllocatorKind::Jemalloc, Some(library))) => view_file(library).ok()?.jemalloc_variable,
                _ => program.view.jemalloc_variable.clone(),
            }
        };
        let variable = self.jemalloc_variable.clone().or_else(own);
        variable.unwrap_or_else(|| JEMALLOC_CONF.to_owned())
    }

    /// The current value as text: a value that is not UTF-8 can't be extended.
    fn text_of(&self, text: &str, name: &str, held: Option<&OsStr>) -> Result<String, Refusal> {
        match held.unwrap_or_default().to_str() {
            Some(held) => Ok(held.to_owned()),
            None => refuse(format!(
                "{text} adds to {name}, but the current value is not valid UTF-8: unset {name} first"
            )),
        }
    }

    /// The allocwall package installs a file that the interpreter runs at its start; that file reads the variable.
    fn arena_hook(&mut self, text: &str) -> Result<(), Refusal> {
        if let Some(program) = self.facts.certain()
            && let Some(read) = &program.start_files
        {
            let name = program.name();
            if !program.view.is_64 {
                return refuse(format!(
                    "{text}: {name} is a 32-bit interpreter; its address space is too small for slabs of 2 MiB"
                ));
            }
            match read {
                Ok(files) if files.iter().any(|file| ARENA_HOOK_FILES.contains(&file.as_str())) => {}
                Ok(_) => {
                    let python = program.path.display();
                    return lacking(format!(
                        "{text}: {python} has no allocwall package: run {python} -m pip install {}",
                        installed::wheel()
                    ));
                }
                Err(absence) => self
                    .done
                    .notes
                    .push(format!("it is unknown whether {name} has the allocwall package: {absence}")),
            }
        }
        self.env.insert(ARENA_HOOK.into(), Some(ARENA_HOOK_ON.into()));
        self.expect(Expectation::Environment(ARENA_HOOK.to_owned(), ARENA_HOOK_ON.to_owned()));
        self.expect(Expectation::ArenasHuge);
        Ok(())
    }

    // ---- place ----

    fn cpus(&mut self, text: &str, cpus: &[u32]) -> Result<(), Refusal> {
        let shown = |list: &[u32]| list.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        if let Ok(topology) = &self.inventory.topology {
            let online: Vec<u32> = topology.cpus.iter().map(|cpu| cpu.id).collect();
            if let Some(missing) = cpus.iter().find(|cpu| !online.contains(cpu)) {
                return refuse(format!(
                    "{text}: CPU {missing} is not online; the online CPUs are {}",
                    shown(&online)
                ));
            }
        }
        if let Ok(allowed) = &self.inventory.allowed_cpus
            && let Some(refused) = cpus.iter().find(|cpu| !allowed.contains(cpu))
        {
            return refuse(format!(
                "{text}: this process may not use CPU {refused}; it may use {} (limited by a cpuset or an inherited affinity)",
                shown(allowed)
            ));
        }
        self.done.cpus = Some(cpus.to_vec());
        Ok(())
    }

    fn nodes(&mut self, text: &str, nodes: &[u32]) -> Result<(), Refusal> {
        let with_memory = match &self.inventory.memory_nodes {
            Ok(nodes) => nodes,
            Err(absence) => {
                return refuse(format!("{text}: the NUMA nodes of this machine are unknown: {absence}"));
            }
        };
        if let Some(missing) = nodes.iter().find(|node| !with_memory.contains(node)) {
            let shown: Vec<String> = with_memory.iter().map(u32::to_string).collect();
            return refuse(format!(
                "{text}: no NUMA node {missing} with memory; the nodes with memory are {}",
                shown.join(",")
            ));
        }
        self.done.nodes = Some(nodes.to_vec());
        Ok(())
    }

    // ---- the result ----

    fn finish(mut self, arm: &Arm) -> Result<Applied, Refusal> {
        self.join_lists(arm)?;
        self.nodes_have_cpus();
        let (command, left_out) = self.command(arm)?;
        self.done.command = command;
        self.done.notes.extend(left_out);
        self.done.env = std::mem::take(&mut self.env).into_iter().collect();
        if let Some(cpus) = self.done.cpus.clone() {
            self.expect(Expectation::Cpus(cpus));
        }
        if let Some(nodes) = self.done.nodes.clone() {
            self.expect(Expectation::Nodes(nodes));
        }
        self.environment_arrives(arm)?;
        Ok(self.done)
    }

    /// Writes LD_PRELOAD and GLIBC_TUNABLES; their present entries stay.
    fn join_lists(&mut self, arm: &Arm) -> Result<(), Refusal> {
        if !self.preloads.is_empty() || self.drop_preloaded {
            let present = self.facts.variable("LD_PRELOAD").unwrap_or_default();
            // Our libraries first: the first library that has a malloc serves all calls.
            let ours = self.preloads.iter().map(|path| path.as_os_str());
            let kept = entries(present)
                .filter(|entry| !(self.drop_preloaded && allocator_library(entry).is_some()))
                .filter(|entry| !self.preloads.iter().any(|path| path.as_os_str() == *entry));
            let all: Vec<&OsStr> = ours.chain(kept).collect();
            let value = (!all.is_empty()).then(|| all.join(OsStr::new(":")));
            self.env.insert("LD_PRELOAD".into(), value);
        }
        if !self.tunables.is_empty() {
            let held = self.text_of(&arm.name, "GLIBC_TUNABLES", self.facts.variable("GLIBC_TUNABLES"))?;
            let value = merged(&held, &self.tunables.join(":"), ':', '=');
            self.env.insert("GLIBC_TUNABLES".into(), Some(value.clone().into()));
            self.expect(Expectation::Environment("GLIBC_TUNABLES".to_owned(), value));
        }
        Ok(())
    }

    /// Binds threads to the CPUs of the memory nodes, unless the arm names CPUs.
    fn nodes_have_cpus(&mut self) {
        if let (Some(nodes), None, Ok(topology)) =
            (&self.done.nodes, &self.done.cpus, &self.inventory.topology)
        {
            let allowed = self.inventory.allowed_cpus.as_deref().ok();
            let cpus: Vec<u32> = topology
                .cpus
                .iter()
                .filter(|cpu| nodes.contains(&cpu.node))
                .map(|cpu| cpu.id)
                .filter(|cpu| allowed.is_none_or(|allowed| allowed.contains(cpu)))
                .collect();
            // A node may have memory but no CPUs.
            self.done.cpus = (!cpus.is_empty()).then_some(cpus);
        }
    }

    /// The command, and a note for each of its own options that is left out: of two options with one name the last counts, so the
    /// arm would have no effect.
    fn command(&self, arm: &Arm) -> Result<(Vec<OsString>, Vec<String>), Refusal> {
        let mut command = self.facts.command.clone();
        let options = &self.done.options;
        if options.is_empty() {
            return Ok((command, vec![]));
        }
        match self.facts.certain().and_then(|program| program.place) {
            Some(place) => {
                let first = place + 1;
                let words: Vec<Cow<str>> =
                    command[first..].iter().map(|word| word.to_string_lossy()).collect();
                let same = |option: &String| same_setting(words.iter().map(|word| &**word), option);
                let replaced: BTreeSet<usize> = options.iter().flat_map(same).collect();
                let note =
                    |at: &usize| format!("{} of the command is left out: {} sets it", words[*at], arm.name);
                let notes = replaced.iter().map(note).collect();
                // From the last one on, so that the places of the others stay.
                for at in replaced.iter().rev() {
                    command.remove(first + at);
                }
                command.splice(first..first, options.iter().map(OsString::from));
                Ok((command, notes))
            }
            None => refuse(format!(
                "{} adds {} to the command line, but the command starts its program through a script: add the option in the script",
                arm.name,
                options.join(" ")
            )),
        }
    }

    /// Checks that the variables reach the program: nothing in the chain of programs removes them.
    fn environment_arrives(&self, arm: &Arm) -> Result<(), Refusal> {
        let Some((first, _)) = self.done.env.first() else {
            return Ok(());
        };
        let text = &arm.name;
        for program in &self.facts.programs {
            if let Some(raised) = program.raised {
                return refuse(format!(
                    "{text} sets {}, but {} has {}, so its loader ignores such variables",
                    first.to_string_lossy(),
                    program.path.display(),
                    raised.text()
                ));
            }
        }
        let by_name = |word: &OsString| !word.as_bytes().contains(&b'/');
        if self.done.env.iter().any(|(name, _)| name == "PATH")
            && self.facts.command.first().is_some_and(by_name)
        {
            return refuse(format!(
                "{text} sets PATH, which would change the search for the command itself: give the path of the command"
            ));
        }
        if self.facts.env_cleared {
            return refuse(format!(
                "{text} sets {}, but `env -i` in the command removes it: put `allocwall run` after `env -i`",
                first.to_string_lossy()
            ));
        }
        let changed = |name: &OsString| self.facts.env_changed.iter().any(|changed| *name == **changed);
        match self.done.env.iter().find(|(name, _)| changed(name)) {
            Some((name, _)) => refuse(format!(
                "{text} sets {0}, but `env` in the command also sets or removes {0}: remove one of the two",
                name.to_string_lossy()
            )),
            None => Ok(()),
        }
    }
}

/// `5.3` matches any 5.3, but not 5.30.
fn is_of_version(found: &str, wanted: &str) -> bool {
    found.strip_prefix(wanted).is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()))
}

impl Applied {
    /// A POSIX shell line that starts the same without allocwall (control characters need `$'…'`, which POSIX 2024, bash, ksh and
    /// zsh have).
    pub fn shell_line(&self) -> String {
        let list = |list: &[u32]| list.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        let mut words: Vec<String> = Vec::new();
        if let Some(cpus) = &self.cpus {
            words.extend(["taskset".to_owned(), "-c".to_owned(), list(cpus)]);
        }
        if let Some(nodes) = &self.nodes {
            words.extend(["numactl".to_owned(), format!("--membind={}", list(nodes))]);
        }
        let dropped: Vec<&OsString> = self.env.iter().filter(|e| e.1.is_none()).map(|e| &e.0).collect();
        // A plain assignment would also apply to taskset and numactl.
        if !dropped.is_empty() || (!words.is_empty() && !self.env.is_empty()) {
            words.push("env".to_owned());
        }
        for name in dropped {
            words.extend(["-u".to_owned(), shell_word(name)]);
        }
        for (name, value) in &self.env {
            if let Some(value) = value {
                words.push(format!("{}={}", shell_word(name), shell_word(value)));
            }
        }
        words.extend(self.command.iter().map(|word| shell_word(word)));
        words.join(" ")
    }
}

fn shell_word(word: &OsStr) -> String {
    match word.to_str() {
        Some(text) if !text.chars().any(char::is_control) => quoted(text),
        _ => {
            let escaped: String = word
                .as_bytes()
                .iter()
                .map(|&b| match b {
                    b'\'' | b'\\' => format!("\\{}", b as char),
                    b' '..=b'~' => (b as char).to_string(),
                    // Octal, always three digits, so that a following digit is not read as part of it.
                    _ => format!("\\{b:03o}"),
                })
                .collect();
            format!("$'{escaped}'")
        }
    }
}
