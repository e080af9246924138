//! Decides which C library, language runtime and allocator a program has. No other code of allocwall decides
//! it: a process and a program that does not run yet differ only in how their files are found.

use super::facts::FileFacts;
use super::modules::Modules;
use allocwall_host::elf::ElfKind;
use allocwall_model::catalogue::modules::{AllocatorKind, ModuleRole};
use allocwall_model::recording::{Allocator, Libc, Linkage, Runtime};
use allocwall_model::units::{Absence, Measured, Reason};

/// What a program is made of. A component that could not be found has a reason.
#[derive(Clone, Debug, PartialEq)]
pub struct Components {
    pub libc: Measured<Libc>,
    /// The file of its C library; None if it has none of its own, or the library is unknown.
    pub libc_file: Option<String>,
    pub runtime: Measured<Runtime>,
    /// The allocator that serves its `malloc`.
    pub allocator: Measured<Allocator>,
    /// Its other allocators: jemalloc for a Rust program's own allocations, a library opened later, CPython's
    /// mimalloc.
    pub also: Vec<Allocator>,
}

/// The files of a program, by their indices in `modules`.
pub(super) struct Files<'a> {
    pub modules: &'a Modules,
    /// The program's own file.
    pub exe: Measured<usize>,
    /// It and the libraries that it is linked with, in the order in which the loader searches them.
    pub linked: Vec<usize>,
    pub preloaded: Vec<usize>,
    /// The files in which the loader searches for `malloc`, in order.
    pub scope: Vec<usize>,
    /// All files, including those that the program opened later.
    pub all: Vec<usize>,
    /// Why some of its libraries are unknown.
    pub missing: Option<Absence>,
}

impl Files<'_> {
    pub fn components(&self) -> Components {
        let (libc, libc_file) = self.libc();
        let (allocator, also) = self.allocators();
        Components { libc, libc_file, runtime: self.runtime(), allocator, also }
    }

    fn libc(&self) -> (Measured<Libc>, Option<String>) {
        // Also if it loads another one later, as a static glibc does to look up names of hosts and users.
        if self.exe.as_ref().is_ok_and(|&exe| self.is_static(exe)) {
            return (Ok(Libc::Static), None);
        }
        let mut found = self.all.iter().filter_map(|&file| Some((file, self.facts(file).libc.clone()?)));
        match found.next() {
            Some((file, libc)) => (Ok(libc), Some(self.path(file))),
            None => (Err(self.not_found("none of its files is a known C library")), None),
        }
    }

    /// The executable decides, then the files that it is linked with, then the files that it loaded. So a
    /// Python process that loaded a JVM is Python.
    fn runtime(&self) -> Measured<Runtime> {
        self.exe.as_ref().map_err(Absence::clone)?;
        let mut files = self.linked.iter().chain(&self.all);
        match (files.find_map(|&file| self.facts(file).runtime.clone()), &self.missing) {
            (Some(runtime), _) => Ok(runtime),
            (None, Some(missing)) => Err(missing.clone()),
            (None, None) => Ok(Runtime::Native),
        }
    }

    /// The allocator that serves `malloc`, and the others.
    fn allocators(&self) -> (Measured<Allocator>, Vec<Allocator>) {
        let exe = match &self.exe {
            Ok(exe) => *exe,
            Err(absence) => return (Err(absence.clone()), Vec::new()),
        };
        // Old loaders have a malloc of their own; it serves only the loader. The library that counts passes each call on.
        let serves = |file: usize| {
            let passes_on = matches!(self.role(file), ModuleRole::Loader | ModuleRole::Counter);
            self.facts(file).serves_malloc && !passes_on
        };
        let server = self.scope.iter().copied().find(|&file| serves(file));
        let serving = match server {
            Some(file) => {
                let kind = self.facts(file).allocators.first().copied().unwrap_or(AllocatorKind::Other);
                Ok(self.allocator(exe, file, kind, true))
            }
            None => Err(self.no_allocator(exe)),
        };
        let mut also = Vec::new();
        for &file in &self.all {
            for (place, &kind) in self.facts(file).allocators.iter().enumerate() {
                let first = place == 0;
                // A C library whose allocator is replaced is still present; that is not worth reporting.
                if !(first && server == Some(file)) && self.role(file) != ModuleRole::Libc {
                    also.push(self.allocator(exe, file, kind, first));
                }
            }
        }
        (serving, also)
    }

    /// One of the allocators in a file; `first`: the version is known for that one only.
    fn allocator(&self, exe: usize, file: usize, kind: AllocatorKind, first: bool) -> Allocator {
        let how = if file == exe {
            Linkage::Static
        } else if self.role(file) == ModuleRole::Libc {
            Linkage::Libc
        } else if self.preloaded.contains(&file) {
            Linkage::Preloaded
        } else {
            Linkage::Linked
        };
        let version = self.facts(file).allocator_version.clone().filter(|_| first);
        Allocator { kind, how, module: self.path(file), version }
    }

    fn no_allocator(&self, exe: usize) -> Absence {
        if self.missing.is_none() && matches!(self.facts(exe).runtime, Some(Runtime::Go { .. })) {
            return Absence::new(
                Reason::NotApplicable,
                "a Go program without C code: the runtime has its own allocator, and there is no malloc",
            );
        }
        if self.missing.is_none() && self.is_static(exe) {
            return Absence::new(Reason::NotFound, "a stripped static program: its allocator is unknown")
                .mend("build it with symbols");
        }
        self.not_found("none of its loaded files exports malloc")
    }

    fn is_static(&self, file: usize) -> bool {
        self.facts(file).kind.is_some_and(ElfKind::is_static)
    }

    fn facts(&self, file: usize) -> &FileFacts {
        &self.modules.known[file].facts
    }

    fn role(&self, file: usize) -> ModuleRole {
        self.modules.list[file].role
    }

    fn path(&self, file: usize) -> String {
        self.modules.list[file].path.clone()
    }

    /// Files that are unknown could have been it.
    fn not_found(&self, what: &str) -> Absence {
        self.missing.clone().unwrap_or_else(|| Absence::new(Reason::NotFound, what))
    }
}
