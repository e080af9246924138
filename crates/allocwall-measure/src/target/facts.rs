//! The facts of one file: which C library, runtime and allocators it contains.

use super::versions;
use crate::malloc_range::{Function, FunctionKind, SymbolTable, bracketed};
use allocwall_host::elf::{Elf, ElfFile, ElfKind, Segment, Symbol, SymbolKind, Table};
use allocwall_host::file;
use allocwall_model::catalogue::modules::{
    ALLOCATOR_ENTRY_POINTS, ALLOCATOR_MESSAGES, AllocatorKind, LibcKind, ModuleRole, PERCPU_TCMALLOC,
    libc_by_name, role_of_library,
};
use allocwall_model::recording::{Libc, Module, Runtime};
use allocwall_model::units::Measured;
use memchr::memmem;
use object::read::ReadRef;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::fs::File;
use std::path::Path;

/// The most bytes of a file's constants that are searched for a version or a message.
const SEARCH_LIMIT: u64 = 64 << 20;
/// The most ranges of allocator code in one file; glibc has two dozen.
const RANGES_LIMIT: usize = 1024;
/// The library of Java's launchers (java, javac, jshell). It loads the virtual machine later, with dlopen.
const JAVA_LAUNCHER: &str = "libjli.so";

/// The facts of a file that a recording does not keep.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct FileFacts {
    pub(super) segments: Vec<Segment>,
    pub(super) soname: Option<String>,
    pub(super) needed: Vec<String>,
    pub(super) kind: Option<ElfKind>,
    /// Code of a 32-bit processor.
    pub(super) narrow: bool,
    /// It defines `malloc`, so the loader may bind other files to it.
    pub(super) serves_malloc: bool,
    /// The allocators whose code the file contains. The one behind its `malloc` comes first.
    pub(super) allocators: Vec<AllocatorKind>,
    pub(super) allocator_version: Option<String>,
    pub(super) libc: Option<Libc>,
    /// The runtime that it contains or starts.
    pub(super) runtime: Option<Runtime>,
}

impl FileFacts {
    /// The memory that it owns besides itself. A version is at most a line.
    pub fn bytes(&self) -> usize {
        let names = self.needed.iter().chain(&self.soname);
        size_of_val(&self.segments[..])
            + names.map(|name| size_of::<String>() + name.len()).sum::<usize>()
            + self.allocator_version.as_ref().map_or(0, String::len)
    }
}

/// A single file: a program before it runs, or a library before it is loaded.
#[derive(Clone, Debug, PartialEq)]
pub struct FileView {
    pub kind: ElfKind,
    /// ELF machine number and class. Both must agree between a program and its libraries.
    pub machine: u16,
    pub is_64: bool,
    pub interpreter: Option<String>,
    /// The libraries that it needs.
    pub needed: Vec<String>,
    /// It defines `malloc`, so the loader may bind other files to it.
    pub serves_malloc: bool,
    /// The allocators whose code the file contains. The one behind its `malloc` comes first.
    pub allocators: Vec<AllocatorKind>,
    pub allocator_version: Option<String>,
    /// Its tcmalloc is Google's, which has a cache for each CPU.
    pub has_cpu_caches: bool,
    /// The variable that its jemalloc reads options from; it has the same prefix as the functions.
    pub jemalloc_variable: Option<String>,
    pub libc: Option<Libc>,
    pub runtime: Option<Runtime>,
}

/// Examines a file that does not have to be mapped.
///
/// # Errors
/// The file can't be opened, or is not an ELF file.
pub fn view_file(path: &Path) -> Measured<FileView> {
    view_with_facts(path).map(|(view, ..)| view)
}

/// The same, with the facts that decide what a program is made of.
pub(super) fn view_with_facts(path: &Path) -> Measured<(FileView, Module, FileFacts)> {
    let file = File::open(path).map_err(|error| file::absence_of(path, &error))?;
    let file = ElfFile::new(file);
    let elf = file.parse()?;
    let shown = path.to_string_lossy();
    let by_name = role_of_library(file_name(&shown)).unwrap_or(ModuleRole::Other);
    let (module, facts) = examine_elf(&elf, &shown, by_name);
    let jemalloc_variable = match facts.allocators.contains(&AllocatorKind::Jemalloc) {
        true => versions::jemalloc_variable(constants(&elf)),
        false => None,
    };
    let view = FileView {
        kind: elf.facts.kind,
        machine: elf.facts.machine,
        is_64: elf.facts.is_64,
        interpreter: elf.facts.interpreter.clone(),
        needed: facts.needed.clone(),
        serves_malloc: facts.serves_malloc,
        allocators: facts.allocators.clone(),
        allocator_version: facts.allocator_version.clone(),
        has_cpu_caches: facts.allocators.contains(&AllocatorKind::Tcmalloc) && exports(&elf, PERCPU_TCMALLOC),
        jemalloc_variable,
        libc: facts.libc.clone(),
        runtime: facts.runtime.clone(),
    };
    Ok((view, module, facts))
}

fn exports<'d, R: ReadRef<'d>>(elf: &Elf<'d, R>, function: &str) -> bool {
    let mut found = false;
    // A file without the table exports nothing.
    let _ = elf.symbols(Table::Exported, &mut |symbol| {
        found |= symbol.kind == SymbolKind::Function && symbol.name == function.as_bytes();
    });
    found
}

pub(super) fn file_name(path: &str) -> &str {
    let path = path.strip_suffix(" (deleted)").unwrap_or(path);
    path.rsplit('/').next().unwrap_or(path)
}

/// The result of one pass over a file's symbol tables.
#[derive(Default)]
struct Marks {
    exports: Vec<Function>,
    table: SymbolTable,
    malloc: Option<u64>,
    exports_malloc: bool,
    /// Entry points of known allocators.
    entries: Vec<(u64, AllocatorKind)>,
    python: bool,
    python_version: Option<u64>,
    /// It has a function that only builds without the global lock export (Objects/object.c, under
    /// Py_GIL_DISABLED).
    python_free_threaded: bool,
    node: bool,
}

impl Marks {
    fn of<'d, R: ReadRef<'d>>(elf: &Elf<'d, R>, is_libc: bool) -> Marks {
        let mut marks = Marks::default();
        // A missing table is not an error: a static program has no exports, a stripped one no names.
        let _ = elf.symbols(Table::Exported, &mut |symbol| {
            marks.see(&symbol);
            if is_libc && symbol.kind == SymbolKind::Function {
                marks.exports.push(Function {
                    address: symbol.address,
                    size: symbol.size,
                    kind: FunctionKind::of_export(symbol.text()),
                });
            }
        });
        marks.exports_malloc = marks.malloc.is_some();
        let kind = elf.facts.kind;
        if elf.facts.has_symtab() && (is_libc || kind != ElfKind::SharedLibrary) {
            let _ = elf.symbols(Table::All, &mut |symbol| {
                marks.see(&symbol);
                match symbol.kind {
                    // Only a C library's own file, or a file that contains a C library, has its allocator.
                    _ if !(is_libc || kind.is_static()) => {}
                    SymbolKind::File => marks.table.file(symbol.text()),
                    SymbolKind::Function => {
                        marks.table.function(symbol.text(), symbol.address, symbol.size, symbol.local);
                    }
                    SymbolKind::Data => {}
                }
            });
        }
        marks
    }

    fn see(&mut self, symbol: &Symbol<'_>) {
        // Compares bytes: a table has a hundred thousand names, and few of them matter.
        let name = symbol.name;
        match (symbol.kind, name) {
            (SymbolKind::Function, b"malloc") if !symbol.local => self.malloc = Some(symbol.address),
            (SymbolKind::Function, b"Py_BytesMain" | b"Py_GetVersion") => self.python = true,
            (SymbolKind::Function, b"_Py_MergeZeroLocalRefcount") => self.python_free_threaded = true,
            (SymbolKind::Data, b"Py_Version") => self.python_version = Some(symbol.address),
            (SymbolKind::Function, b"napi_create_function") => self.node = true,
            _ => {}
        }
        if symbol.kind == SymbolKind::Function
            && let Some(&(_, kind)) =
                ALLOCATOR_ENTRY_POINTS.iter().find(|(entry, _)| entry.as_bytes() == name)
        {
            self.entries.push((symbol.address, kind));
        }
    }
}

/// The facts of a file. `path` is used only for its name.
///
/// # Errors
/// The file is not an ELF file, or is malformed.
pub fn examine_file(file: File, path: &str, by_name: ModuleRole) -> Measured<(Module, FileFacts)> {
    let file = ElfFile::new(file);
    let elf = file.parse()?;
    Ok(examine_elf(&elf, path, by_name))
}

pub(super) fn examine_elf<'d, R: ReadRef<'d>>(
    elf: &Elf<'d, R>,
    path: &str,
    by_name: ModuleRole,
) -> (Module, FileFacts) {
    let facts = &elf.facts;
    let by_soname = facts.soname.as_deref().and_then(role_of_library);
    let mut role = match by_name {
        ModuleRole::Other => by_soname.unwrap_or(ModuleRole::Other),
        named => named,
    };
    let has_symbols = facts.has_symtab() || elf.has_go_functions();
    let is_libc = role == ModuleRole::Libc;
    let mut marks = Marks::of(elf, is_libc);

    // Go's own table has no C functions.
    let unnamed_program = facts.kind != ElfKind::SharedLibrary && !facts.has_symtab();
    let mut allocators = allocators_inside(elf, &marks, unnamed_program);
    if let ModuleRole::Allocator(kind) = role {
        allocators.retain(|&other| other != kind);
        allocators.insert(0, kind);
    }
    let libc = is_libc.then(|| libc_of(path, facts.soname.as_deref(), constants(elf)));
    if let Some(libc) = &libc {
        allocators = vec![match libc {
            Libc::Glibc { .. } => AllocatorKind::Glibc,
            Libc::Musl { .. } => AllocatorKind::Musl,
            _ => AllocatorKind::Other,
        }];
    }
    let allocator_version = allocators.first().and_then(|&kind| match (&libc, kind) {
        (Some(Libc::Glibc { version }), _) => Some(version.clone()),
        (Some(Libc::Musl { version }), _) => version.clone(),
        (Some(_), _) => None,
        (None, kind) => versions::allocator(kind, file_name(path), constants(elf)),
    });

    // A symbol table with names is exact. Without one, the exports of a C library bracket its allocator.
    let named = std::mem::take(&mut marks.table).ranges();
    let mut malloc_ranges = match named.is_empty() {
        false => named,
        true if is_libc => bracketed(std::mem::take(&mut marks.exports)),
        true => Vec::new(),
    };
    malloc_ranges.truncate(RANGES_LIMIT);

    let inside = runtime_inside(elf, path, role, &marks);
    if role == ModuleRole::Other {
        role = inside.as_ref().map_or(ModuleRole::Other, role_of_runtime);
    }
    // Its code is no part of the virtual machine, so its role stays as it is.
    let starts_java = file_name(path) == JAVA_LAUNCHER || facts.soname.as_deref() == Some(JAVA_LAUNCHER);
    let module =
        Module { path: path.to_owned(), build_id: facts.build_id.clone(), role, malloc_ranges, has_symbols };
    let of_file = FileFacts {
        segments: facts.segments.clone(),
        soname: facts.soname.clone(),
        needed: facts.needed.clone(),
        kind: Some(facts.kind),
        // x32 is 64-bit code with short pointers: its stack has the layout of 64-bit code.
        narrow: !facts.is_64 && facts.machine != object::elf::EM_X86_64.0,
        // The loader uses only exports. A static program uses the malloc that it contains.
        serves_malloc: marks.exports_malloc
            || (facts.kind.is_static() && (marks.malloc.is_some() || !allocators.is_empty())),
        allocators,
        allocator_version,
        libc,
        runtime: inside.or(starts_java.then_some(Runtime::Jvm { version: None })),
    };
    (module, of_file)
}

fn role_of_runtime(runtime: &Runtime) -> ModuleRole {
    match runtime {
        Runtime::Cpython { .. } => ModuleRole::Cpython,
        Runtime::Go { .. } => ModuleRole::Go,
        Runtime::Node { .. } => ModuleRole::Node,
        Runtime::Jvm { .. } => ModuleRole::Jvm,
        Runtime::Native => ModuleRole::Other,
    }
}

/// The file's constants; empty if it has none.
pub(super) fn constants<'d, R: ReadRef<'d>>(elf: &Elf<'d, R>) -> &'d [u8] {
    elf.section_bytes(".rodata", SEARCH_LIMIT).unwrap_or(&[])
}

/// The allocators whose code is in the file; the one behind its `malloc` comes first. `by_messages`: the file
/// has no names, so look for messages that only one allocator prints.
fn allocators_inside<'d, R: ReadRef<'d>>(
    elf: &Elf<'d, R>,
    marks: &Marks,
    by_messages: bool,
) -> Vec<AllocatorKind> {
    let mut found = marks.entries.clone();
    if by_messages {
        let constants = constants(elf);
        let hits = ALLOCATOR_MESSAGES
            .iter()
            .filter(|(message, _)| memmem::find(constants, message.as_bytes()).is_some());
        found.extend(hits.map(|&(_, kind)| (0, kind)));
    }
    // An allocator with an entry point at malloc's address serves malloc. Among the others, the `malloc` of a
    // linked allocator replaces that of the C library.
    found.sort_by_key(|&(address, kind)| {
        let own = kind == AllocatorKind::Glibc || kind == AllocatorKind::Musl;
        (marks.malloc != Some(address), own)
    });
    let mut seen = HashSet::new();
    found.into_iter().map(|(_, kind)| kind).filter(|&kind| seen.insert(kind)).collect()
}

fn libc_of(path: &str, soname: Option<&str>, constants: &[u8]) -> Libc {
    // csu/version.c: "GNU C Library (…) stable release version 2.36."
    if memmem::find(constants, b"GNU C Library").is_some()
        && let Some(version) = versions::glibc(constants)
    {
        return Libc::Glibc { version };
    }
    let name = file_name(path);
    let named_musl = |name: &str| libc_by_name(name) == Some(LibcKind::Musl);
    if named_musl(name) || soname.is_some_and(named_musl) || memmem::find(constants, b"musl libc").is_some() {
        return Libc::Musl { version: versions::musl(constants) };
    }
    Libc::Other { name: name.to_owned() }
}

fn runtime_inside<'d, R: ReadRef<'d>>(
    elf: &Elf<'d, R>,
    path: &str,
    role: ModuleRole,
    marks: &Marks,
) -> Option<Runtime> {
    if role == ModuleRole::Jvm {
        return Some(Runtime::Jvm { version: None });
    }
    if elf.facts.is_go() {
        return Some(Runtime::Go { version: versions::go(elf) });
    }
    let name = file_name(path);
    if marks.node {
        // The header file next to an installation is cheaper to read than tens of MiB of constants: see
        // `versions::complete`.
        let version = match name.starts_with("node") {
            true => None,
            false => versions::node(constants(elf)),
        };
        return Some(Runtime::Node { version });
    }
    if marks.python {
        let name = elf.facts.soname.as_deref().filter(|s| s.starts_with("libpython")).unwrap_or(name);
        let (named, thread_mark) = versions::python_name(name);
        return Some(Runtime::Cpython {
            version: versions::python(elf, marks.python_version, &named),
            free_threaded: marks.python_free_threaded || thread_mark,
        });
    }
    None
}
