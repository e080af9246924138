//! Facts that are known before a command runs: the programs that it executes, and the resources of this machine.

use super::Refusal;
use allocwall_host::facts::Machine;
use allocwall_host::installed::{self, BundledLibrary, InstalledAllocator};
use allocwall_host::program::RaisedRights;
use allocwall_host::topology::{self, Topology};
use allocwall_host::tunables::{self, Tunable};
use allocwall_host::{file, program, site_packages};
use allocwall_measure::target::{Components, FileView, view_program};
use allocwall_model::catalogue::modules::AllocatorKind;
use allocwall_model::catalogue::tunables as limits;
use allocwall_model::recording::{Libc, Linkage, Runtime, version_of};
use allocwall_model::units::{Absence, Measured, Reason};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// The allocators, CPUs and memory of this machine.
#[derive(Clone, Debug)]
pub struct Inventory {
    pub installed: Vec<InstalledAllocator>,
    pub bundled: Vec<BundledLibrary>,
    /// The library that touches heap memory before main.
    pub prefault: Measured<PathBuf>,
    pub topology: Measured<Topology>,
    /// CPUs that this process may run on.
    pub allowed_cpus: Measured<Vec<u32>>,
    /// NUMA nodes with memory.
    pub memory_nodes: Measured<Vec<u32>>,
    /// `always`, `madvise` or `never`.
    pub thp: Measured<String>,
    /// Reserved huge pages of the default size that are free or that the kernel may create on demand.
    pub reserved_pages: Measured<u64>,
    /// Memory that is available without swapping.
    pub available_bytes: Measured<u64>,
    /// The release of Debian, whose packages are named.
    pub debian: Measured<u32>,
}

impl Inventory {
    /// Reads the facts of this machine. `bundled` and `prefault` are the files that the caller has unpacked.
    pub fn of(machine: &Machine, bundled: Vec<BundledLibrary>, prefault: Option<PathBuf>) -> Inventory {
        let memory = machine.proc.meminfo();
        let absent =
            |what: &str| Absence::new(Reason::NotFound, format!("/proc/meminfo does not show {what}"));
        let on_demand: u64 = machine.proc.sysctl("vm/nr_overcommit_hugepages").unwrap_or(0);
        let nodes = file::read_line(&machine.path("/sys/devices/system/node/has_memory"));
        Inventory {
            installed: installed::allocators(machine),
            bundled,
            prefault: prefault.ok_or_else(|| {
                Absence::new(
                    Reason::NotSupported,
                    "this build does not include the library that touches heap memory before main",
                )
            }),
            topology: Topology::read(&machine.path("/sys")),
            allowed_cpus: topology::allowed_cpus(),
            memory_nodes: nodes.and_then(|text| {
                topology::parse_cpu_list(&text)
                    .ok_or_else(|| file::unparsable(&"the list of NUMA nodes", text.as_bytes()))
            }),
            thp: machine.thp("enabled"),
            reserved_pages: memory.clone().and_then(|memory| {
                memory
                    .hugepages_free
                    .map(|free| free + on_demand)
                    .ok_or_else(|| absent("how many reserved huge pages are free"))
            }),
            available_bytes: memory
                .and_then(|memory| memory.available.ok_or_else(|| absent("how much memory is available"))),
            debian: machine.debian_release(),
        }
    }
}

/// A command before it runs.
#[derive(Clone, Debug)]
pub struct TargetFacts {
    pub command: Vec<OsString>,
    /// The environment that it would get without an arm.
    pub environment: Vec<(OsString, OsString)>,
    /// The chain of programs, each of which replaces itself with the next by exec, as far as it is certain; never empty.
    pub programs: Vec<Program>,
    /// Why it is unknown which program the last one starts. None if the last one is the program that runs.
    pub beyond: Option<Absence>,
    /// The command contains `env -i`.
    pub env_cleared: bool,
    /// Variables that `env` in the command sets or unsets.
    pub env_changed: Vec<String>,
    /// Tunables of the last program's loader.
    pub tunables: Measured<Vec<Tunable>>,
}

#[derive(Clone, Debug)]
pub struct Program {
    pub path: PathBuf,
    /// Index of its argument in the command. None if a script or an argument of another program names it.
    pub place: Option<usize>,
    pub view: FileView,
    pub libc: Measured<Libc>,
    /// The file of its C library. None if it is static or the library is unknown.
    pub libc_file: Option<PathBuf>,
    pub runtime: Measured<Runtime>,
    /// The allocator that serves its malloc, and its library; no library if the allocator is linked into the program.
    pub allocator: Measured<(AllocatorKind, Option<PathBuf>)>,
    /// Raised rights: setuid, setgid or file capabilities.
    pub raised: Option<RaisedRights>,
    /// For CPython: names of the files that the interpreter runs at its start.
    pub start_files: Option<Measured<Vec<String>>>,
}

impl TargetFacts {
    /// Reads the files that a command names. None of the programs is run; only the loader is run, to list their libraries.
    ///
    /// # Errors
    /// One line: there is no command, or its program can't be started.
    pub fn of(command: &[OsString], environment: &[(OsString, OsString)]) -> Result<TargetFacts, Refusal> {
        let words = command.iter().cloned().enumerate();
        let mut chase = Chase {
            path: variable(environment, "PATH").map(OsStr::to_owned),
            programs: Vec::new(),
            beyond: None,
            env_cleared: false,
            env_changed: Vec::new(),
        };
        chase.follow(words.map(|(at, word)| (word, Some(at))).collect())?;
        let interpreter = chase.programs.last().and_then(|last| last.view.interpreter.clone());
        let tunables = match interpreter {
            Some(loader) => tunables::of_loader(Path::new(&loader)),
            None => Err(Absence::new(
                Reason::NotApplicable,
                "the program is static: it has no loader that lists tunables",
            )),
        };
        Ok(TargetFacts {
            command: command.to_vec(),
            environment: environment.to_vec(),
            programs: chase.programs,
            beyond: chase.beyond,
            env_cleared: chase.env_cleared,
            env_changed: chase.env_changed,
            tunables,
        })
    }

    pub fn variable(&self, name: &str) -> Option<&OsStr> {
        variable(&self.environment, name)
    }

    /// The last known program.
    pub fn last(&self) -> Option<&Program> {
        self.programs.last()
    }

    /// The program that runs, if it is certain.
    pub fn certain(&self) -> Option<&Program> {
        self.programs.last().filter(|_| self.beyond.is_none())
    }
}

fn variable<'a>(environment: &'a [(OsString, OsString)], name: &str) -> Option<&'a OsStr> {
    environment.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_os_str())
}

/// Arguments of a command, each with its index in the command that the user typed.
type Words = Vec<(OsString, Option<usize>)>;

struct Chase {
    path: Option<OsString>,
    programs: Vec<Program>,
    beyond: Option<Absence>,
    env_cleared: bool,
    env_changed: Vec<String>,
}

/// Programs that replace themselves with another program by exec: name, options that take the next argument as their value, and the
/// number of arguments before the command.
const STARTERS: &[(&str, &[&str], usize)] = &[
    ("nohup", &[], 0),
    ("setsid", &[], 0),
    ("nice", &["-n"], 0),
    ("ionice", &["-c", "-n"], 0),
    ("stdbuf", &["-i", "-o", "-e"], 0),
    ("timeout", &["-k", "-s"], 1),
    ("taskset", &[], 1),
];

const SHELLS: &[&str] = &["sh", "bash", "dash", "ash", "ksh", "zsh"];

/// Limit for scripts whose interpreter is a script, and starters that start starters. execve itself allows five levels.
const DEEPEST: usize = 8;

impl Chase {
    fn follow(&mut self, words: Words) -> Result<(), Refusal> {
        let mut words = words;
        for depth in 0..DEEPEST {
            let Some((name, place)) = words.first().cloned() else {
                return match depth {
                    0 => Err(Refusal::asked("no command given: put it after --".to_owned())),
                    _ => self.uncertain(Reason::NotFound, "no command follows"),
                };
            };
            let file = match program::find(&name, self.path.as_deref(), "".as_ref()) {
                Ok(file) => file,
                Err(line) if depth == 0 => return Err(Refusal::asked(line)),
                // The starter may find the file another way; if not, it reports the error itself.
                Err(line) => return self.uncertain(Reason::NotFound, &line),
            };
            let interpreter = program::interpreter(&file)
                .map_err(|error| Refusal::asked(format!("{} can't be read: {error}", file.display())))?;
            if let Some((interpreter, argument)) = interpreter {
                let head = [Some(interpreter.into_os_string()), argument, Some(file.into_os_string())];
                let head = head.into_iter().flatten().map(|word| (word, None));
                words = head.chain(words.into_iter().skip(1)).collect();
                continue;
            }
            let is_elf = program::is_elf(&file)
                .map_err(|error| Refusal::asked(format!("{} can't be read: {error}", file.display())))?;
            // A text file without a #! line: execvp runs it with the shell.
            if !is_elf {
                let head = [OsString::from("/bin/sh"), file.into_os_string()];
                let head = head.into_iter().map(|word| (word, None));
                words = head.chain(words.into_iter().skip(1)).collect();
                continue;
            }
            let (view, components) = view_program(&file)
                .map_err(|absence| Refusal::asked(format!("cannot start {}: {absence}", file.display())))?;
            let mut program = Program::of(file, view, components);
            program.place = place;
            self.programs.push(program);
            let base = Path::new(&name).file_name().unwrap_or(&name).to_string_lossy().into_owned();
            match self.next(&base, &words) {
                Next::Nothing => return Ok(()),
                Next::Unknown(why) => return self.uncertain(Reason::NotApplicable, &why),
                Next::Words(rest) => words = rest,
            }
        }
        self.uncertain(Reason::TooCostly, "too many programs start one another")
    }

    fn uncertain(&mut self, reason: Reason, why: &str) -> Result<(), Refusal> {
        if self.programs.is_empty() {
            return Err(Refusal::asked(format!("cannot start the command: {why}")));
        }
        self.beyond = Some(Absence::new(reason, why));
        Ok(())
    }

    /// The program that this program replaces itself with.
    fn next(&mut self, base: &str, words: &[(OsString, Option<usize>)]) -> Next {
        if base == "env" {
            return self.behind_env(words);
        }
        if SHELLS.contains(&base) {
            return behind_shell(words);
        }
        let Some((_, valued, before)) = STARTERS.iter().find(|(name, ..)| *name == base) else {
            return Next::Nothing;
        };
        let mut at = 1;
        while let Some(word) = words.get(at).and_then(|(word, _)| word.to_str()) {
            if word == "--" {
                at += 1;
                break;
            }
            match word.strip_prefix('-') {
                None => break,
                Some(_) if valued.contains(&word) => at += 2,
                // `-n5`, `--signal=TERM` are complete. A long option without `=` may or may not take the next argument.
                Some(rest) if rest.starts_with('-') && !rest.contains('=') => {
                    return Next::Unknown(format!("allocwall does not know the option {word} of {base}"));
                }
                Some(_) => at += 1,
            }
        }
        Next::Words(words.get(at + before..).unwrap_or_default().to_vec())
    }

    /// `env [-i] [-u NAME] [NAME=VALUE…] COMMAND…`, and `env -S 'COMMAND…'` in the first line of a script.
    fn behind_env(&mut self, words: &[(OsString, Option<usize>)]) -> Next {
        let mut rest = words.get(1..).unwrap_or_default().to_vec();
        while let Some(word) = rest.first().map(|(word, _)| word.to_string_lossy().into_owned()) {
            let mut taken = 1;
            match word.as_str() {
                "-i" | "-" | "--ignore-environment" => self.env_cleared = true,
                "-u" | "--unset" => {
                    let name = rest.get(1).map(|(name, _)| name.to_string_lossy().into_owned());
                    self.env_changed.extend(name);
                    taken = 2;
                }
                "--" => {
                    return Next::Words(rest.split_off(1));
                }
                _ if word.starts_with("-S") || word.starts_with("--split-string=") => {
                    let inner = word.strip_prefix("--split-string=").unwrap_or(&word[2..]);
                    let Some(inner) = plain_words(inner) else {
                        let why =
                            "allocwall can't split the text of env -S: it has quotes or special characters";
                        return Next::Unknown(why.to_owned());
                    };
                    let tail = rest.split_off(1);
                    rest = inner.into_iter().map(|word| (word, None)).chain(tail).collect();
                    continue;
                }
                _ if word.starts_with('-') => match word.strip_prefix("--unset=").or(word.strip_prefix("-u"))
                {
                    Some(name) => self.env_changed.push(name.to_owned()),
                    None => {
                        return Next::Unknown(format!("allocwall does not know the option {word} of env"));
                    }
                },
                _ => match word.split_once('=') {
                    // env then searches for the command in other folders.
                    Some(("PATH", _)) => return Next::Unknown("env changes PATH".to_owned()),
                    Some((name, _)) => self.env_changed.push(name.to_owned()),
                    None => return Next::Words(rest),
                },
            }
            rest.drain(..taken.min(rest.len()));
        }
        // Without a command, env prints its variables.
        Next::Nothing
    }
}

enum Next {
    /// The program starts no other program in its place.
    Nothing,
    Words(Words),
    Unknown(String),
}

/// `sh -c 'exec COMMAND…'` with plain words is certain. For anything else the program is unknown.
fn behind_shell(words: &[(OsString, Option<usize>)]) -> Next {
    let word = |at: usize| words.get(at).and_then(|(word, _)| word.to_str());
    if word(1) == Some("-c")
        && let Some(inner) = word(2).and_then(|text| text.trim().strip_prefix("exec "))
        && let Some(inner) = plain_words(inner)
        && !inner.first().is_some_and(|first| first.as_encoded_bytes().starts_with(b"-"))
    {
        return Next::Words(inner.into_iter().map(|word| (word, None)).collect());
    }
    Next::Unknown("a shell decides which program it starts".to_owned())
}

/// Splits at blanks; None if the text has characters that are special to a shell.
fn plain_words(text: &str) -> Option<Vec<OsString>> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:,+@% \t".contains(c);
    text.chars().all(plain).then(|| text.split_whitespace().map(OsString::from).collect())
}

impl Program {
    /// The largest value of a tunable that this program's malloc takes, where that is less than the loader lists.
    pub fn malloc_limit(&self, tunable: &str) -> Option<u64> {
        let Ok(Libc::Glibc { version }) = &self.libc else { return None };
        limits::malloc_limit(tunable, version_of(version)?)
    }

    fn of(path: PathBuf, view: FileView, components: Components) -> Program {
        Program {
            raised: program::raised_rights(&path).ok().flatten(),
            start_files: match &components.runtime {
                Ok(Runtime::Cpython { version, .. }) => Some(start_files(&path, version)),
                _ => None,
            },
            libc: components.libc,
            libc_file: components.libc_file.map(PathBuf::from),
            runtime: components.runtime,
            allocator: components.allocator.map(|allocator| {
                let library = (allocator.how != Linkage::Static).then(|| allocator.module.into());
                (allocator.kind, library)
            }),
            place: None,
            path,
            view,
        }
    }

    pub fn allocator_kind(&self) -> Option<AllocatorKind> {
        self.allocator.as_ref().ok().map(|(kind, _)| *kind)
    }
}

/// Files in the site-packages folders that the interpreter runs at its start: `.pth` files, and `.start` files since 3.15.
fn start_files(interpreter: &Path, version: &str) -> Measured<Vec<String>> {
    let version = version_of(version).ok_or_else(|| {
        Absence::new(Reason::Unparsable, format!("allocwall can't parse the version {version:?}"))
    })?;
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let folders = site_packages::folders(interpreter, version, home.as_deref())?;
    let names = folders
        .iter()
        .flat_map(|folder| std::fs::read_dir(folder).into_iter().flatten().flatten())
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name.ends_with(".pth") || name.ends_with(".start"));
    Ok(names.collect())
}
