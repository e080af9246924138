//! The order in which the loader of a process searches its files.

use super::components::Files;
use super::facts::file_name;
use super::modules::Modules;
use super::space::{AddressSpace, Code};
use allocwall_host::{inside, link_map};
use allocwall_model::catalogue::modules::ModuleRole;
use allocwall_model::units::{Absence, Reason};
use std::collections::{HashMap, HashSet};
use std::path::Path;

/// The most names from LD_PRELOAD and /etc/ld.so.preload that are looked up.
const PRELOADS_LIMIT: usize = 64;

/// The files that a process has mapped.
pub(super) struct Loaded<'a> {
    modules: &'a Modules,
    /// A thread whose /proc entries show the process's files.
    thread: i32,
    exe: Option<usize>,
    /// Every file, by descending first address: the loader maps downwards, so files loaded first usually come
    /// first.
    all: Vec<usize>,
    code: HashMap<usize, Code>,
    /// By the names that other files use for them: their sonames and their file names.
    by_name: HashMap<String, usize>,
}

impl<'a> Loaded<'a> {
    pub fn new(modules: &'a Modules, thread: i32, space: &AddressSpace, exe: Option<usize>) -> Self {
        let mut code = HashMap::new();
        for range in space.code() {
            code.entry(range.module).or_insert(range);
        }
        let mut all: Vec<usize> = code
            .keys()
            .copied()
            .filter(|&module| !matches!(modules.list[module].role, ModuleRole::Jit | ModuleRole::Vdso))
            .collect();
        all.sort_by_key(|module| std::cmp::Reverse(code[module].start));
        let mut by_name = HashMap::new();
        for &module in &all {
            let file = file_name(&modules.list[module].path);
            let names = [modules.known[module].facts.soname.as_deref(), Some(file)];
            for name in names.into_iter().flatten() {
                by_name.entry(name.to_owned()).or_insert(module);
            }
        }
        Loaded { modules, thread, exe, all, code, by_name }
    }

    pub fn files(self, environ: &[(String, String)]) -> Files<'a> {
        let Some(exe) = self.exe else {
            let detail = format!("process {} does not map its own executable", self.thread);
            let absence = Absence::new(Reason::NotFound, detail);
            return Files {
                modules: self.modules,
                exe: Err(absence.clone()),
                linked: Vec::new(),
                preloaded: Vec::new(),
                scope: Vec::new(),
                all: self.all,
                missing: Some(absence),
            };
        };
        let linked = self.closure(&[exe]);
        let preloaded = self.preloads(&linked, environ);
        let mut roots = vec![exe];
        roots.extend(&preloaded);
        Files {
            modules: self.modules,
            exe: Ok(exe),
            scope: self.closure(&roots),
            linked,
            preloaded,
            all: self.all,
            missing: self.modules.known[exe].absent.clone(),
        }
    }

    /// Whether a module was loaded before another one, from the loader's own list. If that can't be read,
    /// from addresses. Those may be wrong: since Linux 6.7 large mappings are aligned, and sometimes a file
    /// fits into the gap above an earlier one.
    fn before(&self, other: usize) -> impl Fn(usize) -> bool {
        let list = link_map::biases(&self.modules.proc_root.join(self.thread.to_string()));
        let other = self.code[&other];
        move |module| {
            let code = self.code[&module];
            let place = |list: &[u64], code: Code| list.iter().position(|bias| *bias == code.bias);
            match &list {
                Ok(list) => match (place(list, code), place(list, other)) {
                    (Some(place), Some(others)) => place < others,
                    _ => false,
                },
                Err(_) => code.start > other.start,
            }
        }
    }

    /// DT_NEEDED, breadth first, as the loader builds its scope.
    fn closure(&self, roots: &[usize]) -> Vec<usize> {
        let mut there = HashSet::new();
        let mut scope: Vec<usize> = roots.iter().copied().filter(|&root| there.insert(root)).collect();
        let mut next = 0;
        while let Some(&module) = scope.get(next) {
            next += 1;
            let needed = self.modules.known[module].facts.needed.iter();
            let found = needed.filter_map(|name| self.by_name.get(name));
            scope.extend(found.copied().filter(|&found| there.insert(found)));
        }
        scope
    }

    /// The files of LD_PRELOAD and /etc/ld.so.preload, in order; then files before the C library that only a
    /// preload can explain. `linked`: the program and the libraries that it is linked with.
    fn preloads(&self, linked: &[usize], environ: &[(String, String)]) -> Vec<usize> {
        let modules = self.modules;
        let mut names: Vec<String> = Vec::new();
        if let Some((_, value)) = environ.iter().find(|(name, _)| name == "LD_PRELOAD") {
            names.extend(value.split([' ', ':']).map(str::to_owned));
        }
        let global = inside::read(&modules.proc_root, self.thread, Path::new("/etc/ld.so.preload"), 64 << 10);
        if let Ok(bytes) = global {
            let text = String::from_utf8_lossy(&bytes).into_owned();
            names.extend(
                text.lines()
                    .filter(|line| !line.starts_with('#'))
                    .flat_map(str::split_whitespace)
                    .map(str::to_owned),
            );
        }
        let mut found: Vec<usize> = Vec::new();
        for name in names.iter().filter(|name| !name.is_empty()).take(PRELOADS_LIMIT) {
            found.extend(self.preloaded(name).filter(|module| Some(*module) != self.exe));
        }
        // Servers that write their title over the environment (PostgreSQL, nginx, Redis) overwrite
        // LD_PRELOAD. A file that exports malloc, was loaded before the C library and is needed by no other
        // file was preloaded.
        let unexplained = self.all.iter().copied().filter(|module| {
            modules.known[*module].facts.serves_malloc
                && !linked.contains(module)
                && !found.contains(module)
                && modules.list[*module].role != ModuleRole::Loader
        });
        let unexplained: Vec<usize> = unexplained.collect();
        let libc = self.all.iter().find(|&&module| modules.list[module].role == ModuleRole::Libc);
        // A file that could not be read may need it.
        let known = linked.iter().all(|&module| modules.known[module].absent.is_none());
        if let Some(&libc) = libc.filter(|_| known && !unexplained.is_empty()) {
            let before = self.before(libc);
            found.extend(unexplained.into_iter().filter(|module| before(*module)));
        }
        found
    }

    /// The mapped file that a list of preloads means by a name.
    fn preloaded(&self, name: &str) -> Option<usize> {
        let modules = self.modules;
        if name.contains('/') {
            let identity = inside::identity(&modules.proc_root, self.thread, Path::new(name));
            let same = |&module: &usize| identity.is_some() && modules.known[module].identity == identity;
            self.all.iter().copied().find(same).or_else(|| self.by_name.get(file_name(name)).copied())
        } else {
            // `libjemalloc.so` may be a link to the file that is mapped as `libjemalloc.so.2`.
            let stem = |&module: &usize| {
                let mapped = file_name(&modules.list[module].path);
                mapped.strip_prefix(name).is_some_and(|rest| rest.starts_with('.'))
            };
            self.by_name.get(name).copied().or_else(|| self.all.iter().copied().find(stem))
        }
    }
}
