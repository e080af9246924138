//! What a target is: its C library, runtime and allocator, and the file and function of an address.
//!
//! Each file is examined once, even if many processes map it: [`Modules`] keeps the result by device and
//! inode.

use crate::malloc_range::{Function, Part, SymbolTable, bracketed};
use crate::reading::{Examined, Mapped, Reader, Readers};
use allocwall_host::elf::{self, Elf, ElfFile, ElfKind, Segment, Symbol, SymbolKind, Table};
use allocwall_host::file;
use allocwall_host::inside;
use allocwall_host::link_map;
use allocwall_host::maps::{self, Mapping};
use allocwall_host::proc::{ProcFs, Status};
use allocwall_host::rights::run_as_root;
use allocwall_model::catalogue::modules::{
    ALLOCATOR_ENTRY_POINTS, ALLOCATOR_MESSAGES, AllocatorKind, ModuleRole, is_setting, role_of_library,
};
use allocwall_model::error::{Error, Result};
use allocwall_model::recording::{Allocator, CMDLINE_WORDS, Libc, Linkage, Module, Process, Runtime};
use allocwall_model::units::{Absence, Measured, Reason};
use memchr::memmem;
use object::read::ReadRef;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The most bytes of a file's constants that are searched for a version or a message.
const SEARCH_LIMIT: u64 = 64 << 20;

/// The most memory for the facts of all files together, without their names. A browser with all its libraries
/// takes some hundred kilobytes.
const FACTS_LIMIT: usize = 16 << 20;
/// The most names from LD_PRELOAD and /etc/ld.so.preload that are looked up.
const PRELOADS_LIMIT: usize = 64;
/// The most ranges of allocator code in one file; glibc has two dozen.
const RANGES_LIMIT: usize = 1024;

/// The most files that are examined; each stays open. A browser with all its libraries maps some hundreds.
const MODULES_LIMIT: usize = 4096;

/// The files that the target's processes map, in order of appearance. Indices stay valid.
pub struct Modules {
    proc_root: PathBuf,
    list: Vec<Module>,
    known: Vec<Known>,
    by_file: HashMap<FileKey, usize>,
    /// The module for all files above the limit.
    beyond: Option<usize>,
    /// The remaining bytes of [`FACTS_LIMIT`].
    facts_left: usize,
    reader: Reader,
}

type FileKey = ((u32, u32), u64, Vec<u8>);

/// The facts of a file that a recording does not keep.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct FileFacts {
    segments: Vec<Segment>,
    soname: Option<String>,
    needed: Vec<String>,
    kind: Option<ElfKind>,
    /// Code of a 32-bit processor.
    narrow: bool,
    /// It defines `malloc`, so the loader may bind other files to it.
    serves_malloc: bool,
    /// The allocators whose code the file contains. The one behind its `malloc` comes first.
    allocators: Vec<AllocatorKind>,
    allocator_version: Option<String>,
    libc: Option<Libc>,
    runtime: Option<Runtime>,
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

/// What is known about a module.
#[derive(Clone, Debug, Default)]
struct Known {
    facts: FileFacts,
    identity: Option<((u32, u32), u64)>,
    /// Kept open: names and unwind tables are read from the mapped file itself, even if its path changes.
    file: Option<Arc<File>>,
    /// Why the file could not be examined.
    absent: Option<Absence>,
}

/// One process, as known from its files.
#[derive(Debug)]
pub struct TargetView {
    pub process: Process,
    /// The allocators in the process that do not serve `malloc`: jemalloc for a Rust program's own
    /// allocations, a library opened later, CPython's mimalloc.
    pub also: Vec<Allocator>,
    pub space: AddressSpace,
    /// Why its code is known only in part.
    pub cut: Option<Absence>,
}

/// The executable memory of one process.
#[derive(Clone, Debug)]
pub struct AddressSpace {
    pub pid: i32,
    /// By first address; the ranges never overlap.
    regions: BTreeMap<u64, Region>,
}

#[derive(Clone, Copy, Debug)]
struct Region {
    end: u64,
    module: usize,
    /// What to add to an address to get the module's own address (wrapping).
    delta: u64,
}

/// An executable range of an address space.
#[derive(Clone, Copy, Debug)]
pub struct Code {
    pub start: u64,
    pub end: u64,
    pub module: usize,
    /// Address in memory minus the module's own address (wrapping).
    pub bias: u64,
}

impl Code {
    fn of(start: u64, region: &Region) -> Code {
        Code { start, end: region.end, module: region.module, bias: region.delta.wrapping_neg() }
    }
}

impl AddressSpace {
    pub fn new(pid: i32) -> Self {
        AddressSpace { pid, regions: BTreeMap::new() }
    }

    /// The module at an address, and the address in the module's own numbering (ELF virtual address; for
    /// generated code, which has no file, the address itself).
    pub fn lookup(&self, address: u64) -> Option<(usize, u64)> {
        let (_, region) = self.regions.range(..=address).next_back()?;
        (address < region.end).then(|| (region.module, address.wrapping_add(region.delta)))
    }

    /// Adds a mapping, read from maps or reported by perf. It replaces the mappings at its addresses. Returns
    /// the added code; None if the mapping has no code.
    pub fn add_mapping(&mut self, modules: &mut Modules, mapping: &Mapping) -> Option<Code> {
        self.remove(mapping.start, mapping.end);
        if !mapping.perms.execute || mapping.start >= mapping.end {
            return None;
        }
        let module = modules.intern(self.pid, mapping);
        let delta = match modules.list[module].role {
            ModuleRole::Jit => 0,
            _ if !mapping.is_file() => mapping.start.wrapping_neg(),
            _ => {
                // Without segments, the offset into the file is the best estimate.
                let segments = &modules.known[module].facts.segments;
                let address = elf::address_of_offset(segments, mapping.offset).unwrap_or(mapping.offset);
                address.wrapping_sub(mapping.start)
            }
        };
        let region = Region { end: mapping.end, module, delta };
        self.regions.insert(mapping.start, region);
        Some(Code::of(mapping.start, &region))
    }

    /// Removes everything: the process started another program.
    pub fn clear(&mut self) {
        self.regions.clear();
    }

    /// The same memory in a child after fork.
    pub fn forked(&self, child: i32) -> Self {
        AddressSpace { pid: child, regions: self.regions.clone() }
    }

    /// Every executable range, lowest first.
    pub fn code(&self) -> impl Iterator<Item = Code> + '_ {
        self.regions.iter().map(|(&start, region)| Code::of(start, region))
    }

    fn remove(&mut self, start: u64, end: u64) {
        let overlapping: Vec<(u64, Region)> = self
            .regions
            .range(..end)
            .rev()
            .take_while(|(_, region)| region.end > start)
            .map(|(&at, &region)| (at, region))
            .collect();
        for (at, region) in overlapping {
            self.regions.remove(&at);
            if at < start {
                self.regions.insert(at, Region { end: start, ..region });
            }
            if region.end > end {
                self.regions.insert(end, region);
            }
        }
    }
}

impl Modules {
    /// `proc_root` is `/proc`, or a copy of it in a test.
    pub fn new(proc_root: impl Into<PathBuf>, readers: Readers) -> Self {
        Modules {
            reader: Reader::new(readers),
            proc_root: proc_root.into(),
            list: Vec::new(),
            known: Vec::new(),
            by_file: HashMap::new(),
            beyond: None,
            facts_left: FACTS_LIMIT,
        }
    }

    pub fn list(&self) -> &[Module] {
        &self.list
    }

    pub fn into_list(self) -> Vec<Module> {
        self.list
    }

    /// Adds a module without a file.
    pub fn add_special(&mut self, path: &str, role: ModuleRole) -> usize {
        self.list.push(bare(path.into(), role));
        self.known.push(Known::default());
        self.list.len() - 1
    }

    /// Code of a 32-bit processor.
    pub fn is_narrow(&self, module: usize) -> bool {
        self.known[module].facts.narrow
    }

    /// The reader of the modules' files.
    pub fn reader(&mut self) -> &mut Reader {
        &mut self.reader
    }

    /// Names of functions by the module's own addresses, one per address; None if there is no name.
    pub fn names(&mut self, module: usize, addresses: &[u64]) -> Vec<Option<String>> {
        let file = self.known.get(module).and_then(|known| known.file.clone());
        file.and_then(|file| self.reader.names(module as u32, &file, addresses).ok())
            .unwrap_or_else(|| vec![None; addresses.len()])
    }

    /// Sends the reader the code of an image, if it does not have it yet.
    ///
    /// # Errors
    /// The reader has failed for good.
    pub fn tell_image(&mut self, image: u32, version: u64, space: &AddressSpace) -> Measured<()> {
        if self.reader.knows_image(image, version) {
            return Ok(());
        }
        let code: Vec<Mapped> = space
            .code()
            // Generated code has no tables, and a program that constantly maps and unmaps it would fill the
            // unwinder.
            .filter(|code| self.list[code.module].role != ModuleRole::Jit)
            .map(|code| Mapped {
                start: code.start,
                end: code.end,
                module: code.module as u32,
                bias: code.bias,
            })
            .collect();
        let modules: BTreeSet<u32> = code.iter().map(|mapped| mapped.module).collect();
        let files = modules.into_iter().filter_map(|module| {
            let file = self.known[module as usize].file.as_deref()?;
            Some((module, file))
        });
        self.reader.image(image, version, code, files)
    }

    /// The module of a mapping. The first mapping of a file is examined.
    pub fn intern(&mut self, pid: i32, mapping: &Mapping) -> usize {
        let generated = !mapping.path.starts_with(b"[v") && !mapping.is_file();
        let key = if generated {
            ((0, 0), 0, Vec::new())
        } else {
            (mapping.dev, mapping.inode, mapping.path.clone())
        };
        if let Some(&index) = self.by_file.get(&key) {
            return index;
        }
        if !generated && self.list.len() >= MODULES_LIMIT {
            if self.beyond.is_none() {
                self.beyond = Some(self.add_special("[further files]", ModuleRole::Other));
            }
            return self.beyond.unwrap_or(0);
        }
        let (module, known) = if generated {
            (bare("[generated code]".into(), ModuleRole::Jit), Known::default())
        } else if !mapping.is_file() {
            (bare(mapping.display_path(), ModuleRole::Vdso), Known::default())
        } else {
            let (module, known) = self.examine(pid, mapping);
            let identity = Some((mapping.dev, mapping.inode));
            (module, Known { identity, ..known })
        };
        self.list.push(module);
        self.known.push(known);
        self.by_file.insert(key, self.list.len() - 1);
        self.list.len() - 1
    }

    fn examine(&mut self, pid: i32, mapping: &Mapping) -> (Module, Known) {
        let path = mapping.display_path();
        let by_name = role_of_library(file_name(&path)).unwrap_or(ModuleRole::Other);
        let index = self.list.len() as u32;
        let examined = maps::open(&self.proc_root, pid, mapping).and_then(|file| {
            let examined = self.reader.examine(index, &file, &path, by_name)?;
            self.facts_left = self.facts_left.checked_sub(examined.bytes()).ok_or_else(|| {
                Absence::new(
                    Reason::TooCostly,
                    format!("the facts about the target's files take more than {} MiB", FACTS_LIMIT >> 20),
                )
            })?;
            Ok((examined, file))
        });
        match examined {
            Ok((Examined { module, mut facts }, file)) => {
                if let Some(runtime) = &mut facts.runtime {
                    self.complete_version(pid, &path, runtime);
                }
                let known = Known { facts, file: Some(Arc::new(file)), ..Known::default() };
                (Module { path, ..module }, known)
            }
            Err(absent) => {
                let role = match by_name {
                    // Code in memory without a name in a file system, and not an ELF file: a JIT compiler
                    // wrote it.
                    ModuleRole::Other if mapping.is_nameless_memory() => ModuleRole::Jit,
                    role => role,
                };
                let known = Known { absent: Some(absent), ..Known::default() };
                (bare(path, role), known)
            }
        }
    }

    /// Reads versions from a file next to the module.
    fn complete_version(&self, pid: i32, path: &str, runtime: &mut Runtime) {
        // More than enough for either file; both are a few KiB.
        let read = |name: PathBuf| {
            let bytes = inside::read(&self.proc_root, pid, &name, 256 << 10).ok()?;
            Some(String::from_utf8_lossy(&bytes).into_owned())
        };
        let path = Path::new(path);
        match runtime {
            // JAVA_HOME/lib/server/libjvm.so; before version 9 with jre/ and the architecture in between.
            Runtime::Jvm { version: version @ None } => {
                *version = path
                    .ancestors()
                    .skip(2)
                    .take(5)
                    .find_map(|home| release_version(&read(home.join("release"))?));
            }
            Runtime::Node { version: version @ None } => {
                *version = path.ancestors().nth(2).and_then(|prefix| {
                    node_header_version(&read(prefix.join("include/node/node_version.h"))?)
                });
            }
            _ => {}
        }
    }

    /// Inspects a running process. Each fact that could not be found is an [`Absence`].
    ///
    /// # Errors
    /// The process does not exist, or may not be inspected.
    pub fn inspect(&mut self, pid: i32) -> Result<TargetView> {
        let root = self.proc_root.clone();
        let proc = ProcFs::at(&root);
        let refused = |absence: Absence| match absence.is_gone() {
            true => Error::NoSuchProcess(pid),
            false => Error::Refused(absence.detail),
        };
        let stat = proc.process_stat(pid).map_err(refused)?;
        // A thread whose /proc entries still show the memory, the files and the root.
        let thread = proc.living_thread(pid);
        // Executable mappings only: every relevant file has one.
        let code = proc.code(thread).map_err(|absence| match absence.reason {
            Reason::NotPermitted => Error::NotPermitted {
                pid,
                detail: absence.detail,
                mend: format!("{}, or as the owner of the process", run_as_root()),
            },
            _ => refused(absence),
        })?;
        let mut space = AddressSpace::new(thread);
        for mapping in &code.mappings {
            space.add_mapping(self, mapping);
        }

        let environ = proc.environ(thread);
        let exe_path = proc.exe(thread);
        let exe = exe_path.as_ref().ok().and_then(|path| self.find_executable(&space, path));
        let loaded = Loaded::new(self, &space, exe);
        let (allocator, also) = loaded.allocators(self, thread, environ.as_deref().unwrap_or(&[]));
        let process = Process {
            pid,
            ppid: stat.ppid,
            comm: proc.comm(pid).unwrap_or_default(),
            exe: exe_path.map(|path| path.to_string_lossy().into_owned()),
            cmdline: words_kept(proc.cmdline(thread).unwrap_or_default()),
            libc: loaded.libc(self),
            runtime: loaded.runtime(self),
            allocator,
            environment: settings(environ.unwrap_or_default()),
            thp_disabled: proc.status(thread).and_then(|status| thp_disabled(&status)),
            secure_exec: file::read(&root.join(format!("{thread}/auxv")), secure_exec),
        };
        Ok(TargetView { process, also, space, cut: code.cut })
    }

    /// The mapped file of /proc/PID/exe. It is found by path if the paths agree (some file systems number
    /// devices differently in maps), else by device and inode (the path of a deleted or renamed file
    /// differs).
    fn find_executable(&self, space: &AddressSpace, path: &Path) -> Option<usize> {
        let shown = path.to_string_lossy();
        let identity = maps::identity(&self.proc_root.join(space.pid.to_string()).join("exe"));
        let mut mapped = space.code().map(|code| code.module);
        mapped
            .find(|&module| self.list[module].path == shown)
            .or_else(|| self.module_with_identity(space, identity?))
    }

    fn module_with_identity(&self, space: &AddressSpace, identity: ((u32, u32), u64)) -> Option<usize> {
        let mut mapped = space.code().map(|code| code.module);
        mapped.find(|&module| self.known[module].identity == Some(identity))
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
    let file = File::open(path).map_err(|error| file::absence_of(path, &error))?;
    let file = ElfFile::new(file);
    let elf = file.parse()?;
    let shown = path.to_string_lossy();
    let by_name = role_of_library(file_name(&shown)).unwrap_or(ModuleRole::Other);
    let (_, facts) = examine_elf(&elf, &shown, by_name);
    let jemalloc = facts.allocators.contains(&AllocatorKind::Jemalloc);
    let constants = || elf.section_bytes(".rodata", SEARCH_LIMIT).unwrap_or(&[]);
    // obtain_malloc_conf in src/jemalloc.c: JEMALLOC_CPREFIX "MALLOC_CONF".
    let jemalloc_variable = match jemalloc {
        true => c_strings(constants())
            .find(|text| text.ends_with("MALLOC_CONF") && !text.contains(' '))
            .map(str::to_owned),
        false => None,
    };
    Ok(FileView {
        kind: elf.facts.kind,
        machine: elf.facts.machine,
        is_64: elf.facts.is_64,
        interpreter: elf.facts.interpreter.clone(),
        needed: facts.needed,
        serves_malloc: facts.serves_malloc,
        allocators: facts.allocators,
        allocator_version: facts.allocator_version,
        jemalloc_variable,
        libc: facts.libc,
        runtime: facts.runtime,
    })
}

fn bare(path: String, role: ModuleRole) -> Module {
    Module { path, build_id: None, role, malloc_ranges: Vec::new(), has_symbols: false }
}

fn file_name(path: &str) -> &str {
    let path = path.strip_suffix(" (deleted)").unwrap_or(path);
    path.rsplit('/').next().unwrap_or(path)
}

/// The result of one pass over a file's symbol tables.
#[derive(Default)]
struct Marks {
    exports: Vec<Function>,
    table: SymbolTable,
    malloc: Option<u64>,
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

fn examine_elf<'d, R: ReadRef<'d>>(elf: &Elf<'d, R>, path: &str, by_name: ModuleRole) -> (Module, FileFacts) {
    let facts = &elf.facts;
    let by_soname = facts.soname.as_deref().and_then(role_of_library);
    let mut role = match by_name {
        ModuleRole::Other => by_soname.unwrap_or(ModuleRole::Other),
        named => named,
    };
    let has_symbols = facts.has_symtab();
    let runs_alone = facts.kind != ElfKind::SharedLibrary;
    let is_libc = role == ModuleRole::Libc;

    let mut marks = Marks::default();
    // A missing table is not an error: a static program has no exports, a stripped one no names.
    let _ = elf.symbols(Table::Exported, &mut |symbol| {
        marks.see(&symbol);
        if is_libc && symbol.kind == SymbolKind::Function {
            marks.exports.push(Function {
                address: symbol.address,
                size: symbol.size,
                part: Part::of_export(symbol.text()),
            });
        }
    });
    let exports_malloc = marks.malloc.is_some();
    let is_static = facts.kind.is_static();
    if has_symbols && (is_libc || runs_alone) {
        let _ = elf.symbols(Table::All, &mut |symbol| {
            marks.see(&symbol);
            match symbol.kind {
                // Only a C library's own file, or a file that contains a C library, has its allocator.
                _ if !(is_libc || is_static) => {}
                SymbolKind::File => marks.table.file(symbol.text()),
                SymbolKind::Function => {
                    marks.table.function(symbol.text(), symbol.address, symbol.size, symbol.local);
                }
                SymbolKind::Data => {}
            }
        });
    }

    let mut allocators = allocators_inside(elf, &marks, runs_alone && !has_symbols);
    if let ModuleRole::Allocator(kind) = role {
        allocators.retain(|&other| other != kind);
        allocators.insert(0, kind);
    }
    let constants = || elf.section_bytes(".rodata", SEARCH_LIMIT).unwrap_or(&[]);
    let libc = is_libc.then(|| libc_of(path, facts.soname.as_deref(), constants()));
    let libc_allocator = match &libc {
        Some(Libc::Glibc { .. }) => Some(AllocatorKind::Glibc),
        Some(Libc::Musl { .. }) => Some(AllocatorKind::Musl),
        Some(_) => Some(AllocatorKind::Other),
        None => None,
    };
    if let Some(kind) = libc_allocator {
        allocators = vec![kind];
    }
    let allocator_version = allocators.first().and_then(|&kind| match (&libc, kind) {
        (Some(Libc::Glibc { version }), _) => Some(version.clone()),
        (Some(Libc::Musl { version }), _) => version.clone(),
        (Some(_), _) => None,
        (None, kind) => allocator_version(kind, path, constants()),
    });

    // A symbol table with names is exact. Without one, the exports of a C library bracket its allocator.
    let named = std::mem::take(&mut marks.table).ranges();
    let mut malloc_ranges = match named.is_empty() {
        false => named,
        true if is_libc => bracketed(std::mem::take(&mut marks.exports)),
        true => Vec::new(),
    };
    malloc_ranges.truncate(RANGES_LIMIT);

    let runtime = runtime_of(elf, path, role, &marks);
    if role == ModuleRole::Other {
        role = match runtime {
            Some(Runtime::Cpython { .. }) => ModuleRole::Cpython,
            Some(Runtime::Go { .. }) => ModuleRole::Go,
            Some(Runtime::Node { .. }) => ModuleRole::Node,
            Some(Runtime::Jvm { .. }) => ModuleRole::Jvm,
            Some(Runtime::Native) | None => ModuleRole::Other,
        };
    }
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
        serves_malloc: exports_malloc || (is_static && (marks.malloc.is_some() || !allocators.is_empty())),
        allocators,
        allocator_version,
        libc,
        runtime,
    };
    (module, of_file)
}

/// The allocators whose code is in the file; the one behind its `malloc` comes first. `by_messages`: the file
/// has no names, so look for messages that only one allocator prints.
fn allocators_inside<'d, R: ReadRef<'d>>(
    elf: &Elf<'d, R>,
    marks: &Marks,
    by_messages: bool,
) -> Vec<AllocatorKind> {
    let mut found = marks.entries.clone();
    if by_messages && let Some(constants) = elf.section_bytes(".rodata", SEARCH_LIMIT) {
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
        && let Some(version) =
            text_behind(constants, b" release version ", |b| b.is_ascii_digit() || b == b'.')
    {
        return Libc::Glibc { version: version.trim_end_matches('.').to_owned() };
    }
    let name = file_name(path);
    if name.contains("musl")
        || soname.is_some_and(|s| s.contains("musl"))
        || memmem::find(constants, b"musl libc").is_some()
    {
        let version = c_strings(constants).find(|text| is_version(text, "1."));
        return Libc::Musl { version: version.map(str::to_owned) };
    }
    Libc::Other { name: name.to_owned() }
}

fn allocator_version(kind: AllocatorKind, path: &str, constants: &[u8]) -> Option<String> {
    match kind {
        // "5.3.0-0-g54eaed1d8b56…": release, number of commits since, commit.
        AllocatorKind::Jemalloc => c_strings(constants).find_map(|text| {
            let (release, rest) = text.split_once('-')?;
            let (since, commit) = rest.split_once("-g")?;
            let sound = is_version(release, "")
                && since.bytes().all(|b| b.is_ascii_digit())
                && commit.len() >= 7
                && commit.bytes().all(|b| b.is_ascii_hexdigit());
            sound.then(|| release.to_owned())
        }),
        AllocatorKind::Tcmalloc => {
            text_behind(constants, b"gperftools ", |b| b.is_ascii_digit() || b == b'.')
        }
        AllocatorKind::Glibc => {
            text_behind(constants, b" release version ", |b| b.is_ascii_digit() || b == b'.')
                .map(|version| version.trim_end_matches('.').to_owned())
        }
        // The code has only a number; the name of the library's file contains the version.
        _ => file_name(path)
            .split_once(".so.")
            .map(|(_, version)| version.to_owned())
            .filter(|version| version.contains('.') && is_version(version, "")),
    }
}

fn runtime_of<'d, R: ReadRef<'d>>(
    elf: &Elf<'d, R>,
    path: &str,
    role: ModuleRole,
    marks: &Marks,
) -> Option<Runtime> {
    if role == ModuleRole::Jvm {
        return Some(Runtime::Jvm { version: None });
    }
    if elf.facts.section(".go.buildinfo").is_some() || elf.facts.section(".note.go.buildid").is_some() {
        return Some(Runtime::Go { version: go_version(elf) });
    }
    if marks.node {
        let constants = || elf.section_bytes(".rodata", SEARCH_LIMIT);
        let name = file_name(path);
        // The header file next to an installation is cheaper to read than tens of MiB of constants: see
        // `complete_version`.
        let version = (!name.starts_with("node"))
            .then(|| text_behind(constants()?, b"/download/release/v", |b| b.is_ascii_digit() || b == b'.'))
            .flatten();
        return Some(Runtime::Node { version });
    }
    if marks.python {
        let name = file_name(path);
        let name = elf.facts.soname.as_deref().filter(|s| s.starts_with("libpython")).unwrap_or(name);
        let (named, thread_mark) = python_name(name);
        return Some(Runtime::Cpython {
            version: python_version(elf, marks.python_version, &named),
            free_threaded: marks.python_free_threaded || thread_mark,
        });
    }
    None
}

/// `libpython3.13t.so.1.0` or `python3.13t`: the version, and whether it has the mark of free-threaded
/// builds.
fn python_name(name: &str) -> (String, bool) {
    let rest = name.strip_prefix("lib").unwrap_or(name).strip_prefix("python").unwrap_or("");
    let end = rest
        .bytes()
        .enumerate()
        .position(|(at, b)| {
            let next_is_digit = rest.as_bytes().get(at + 1).is_some_and(u8::is_ascii_digit);
            !(b.is_ascii_digit() || (b == b'.' && next_is_digit))
        })
        .unwrap_or(rest.len());
    (rest[..end].to_owned(), rest[end..].starts_with('t'))
}

/// The full version if the file contains it, else the one in its name, else `unknown`.
fn python_version<'d, R: ReadRef<'d>>(elf: &Elf<'d, R>, at: Option<u64>, named: &str) -> String {
    // `const unsigned long Py_Version = PY_VERSION_HEX`, since 3.11: 0x030B02F0 is 3.11.2 final.
    let encoded = at.and_then(|address| elf.bytes_at(address, 4)).and_then(|bytes| bytes.try_into().ok());
    if let Some(hex) = encoded.map(u32::from_le_bytes)
        && matches!(hex >> 24, 3..=9)
    {
        let suffix = match (hex >> 4) & 0xf {
            0xa => format!("a{}", hex & 0xf),
            0xb => format!("b{}", hex & 0xf),
            0xc => format!("rc{}", hex & 0xf),
            _ => String::new(),
        };
        return format!("{}.{}.{}{suffix}", hex >> 24, (hex >> 16) & 0xff, (hex >> 8) & 0xff);
    }
    // Before 3.11: the string that Py_GetVersion prints, recognised by the two numbers in the name.
    let prefix = format!("{named}.");
    let constants = elf.section_bytes(".rodata", SEARCH_LIMIT).unwrap_or(&[]);
    // The linker may have stored it as the end of a longer string: `/opt/python/3.7.16`.
    let last_words = c_strings(constants).map(|text| text.rsplit([' ', '/', '-']).next().unwrap_or(text));
    let full = (named.contains('.'))
        .then(|| last_words.into_iter().find(|word| is_version(word, &prefix)))
        .flatten();
    match (full, named) {
        (Some(full), _) => full.to_owned(),
        (None, "") => "unknown".to_owned(),
        (None, named) => named.to_owned(),
    }
}

/// debug/buildinfo of Go: 14 bytes of magic, pointer size, flags. Since 1.18, the version is at byte 32 as
/// length and text; before, byte 16 points to a Go string.
fn go_version<'d, R: ReadRef<'d>>(elf: &Elf<'d, R>) -> Option<String> {
    let info = elf.section_bytes(".go.buildinfo", 4096)?;
    if !info.starts_with(b"\xff Go buildinf:") {
        return None;
    }
    let (pointer_size, flags) = (*info.get(14)?, *info.get(15)?);
    let text = if flags & 2 != 0 {
        // A length of two bytes or more would not be a version.
        let length = usize::from(*info.get(32)?);
        info.get(33..33 + length)?
    } else if pointer_size == 8 && flags & 1 == 0 {
        let word = |bytes: &[u8]| Some(u64::from_le_bytes(bytes.get(..8)?.try_into().ok()?));
        let header = elf.bytes_at(word(info.get(16..)?)?, 16)?;
        elf.bytes_at(word(header)?, word(&header[8..])?.min(64))?
    } else {
        return None;
    };
    let version = std::str::from_utf8(text).ok()?.strip_prefix("go")?;
    Some(version.split(' ').next().unwrap_or(version).to_owned())
}

/// JAVA_HOME/release: `JAVA_VERSION="17.0.15"`.
pub(crate) fn release_version(release: &str) -> Option<String> {
    let value = release.lines().find_map(|line| line.strip_prefix("JAVA_VERSION="))?;
    Some(value.trim().trim_matches('"').to_owned()).filter(|version| !version.is_empty())
}

pub(crate) fn node_header_version(header: &str) -> Option<String> {
    let number = |name: &str| {
        header.lines().find_map(|line| {
            let rest = line.strip_prefix("#define ")?.strip_prefix(name)?;
            rest.trim().parse::<u32>().ok()
        })
    };
    Some(format!(
        "{}.{}.{}",
        number("NODE_MAJOR_VERSION")?,
        number("NODE_MINOR_VERSION")?,
        number("NODE_PATCH_VERSION")?
    ))
}

/// The characters after a marker that belong to the value; None if there are none.
fn text_behind(bytes: &[u8], marker: &[u8], belongs: impl Fn(u8) -> bool) -> Option<String> {
    let at = memmem::find_iter(bytes, marker)
        .map(|at| at + marker.len())
        .find(|&at| bytes.get(at).is_some_and(|&b| belongs(b)))?;
    let value = bytes[at..].iter().take(64).take_while(|&&b| belongs(b)).copied().collect();
    String::from_utf8(value).ok()
}

fn c_strings(bytes: &[u8]) -> impl Iterator<Item = &str> {
    bytes
        .split(|&b| b == 0)
        .filter(|text| (4..=80).contains(&text.len()))
        .filter_map(|text| std::str::from_utf8(text).ok())
}

/// Dotted numbers with at least one dot. The last one may have a short suffix (`3.10.0rc1`).
fn is_version(text: &str, start: &str) -> bool {
    let mut parts = 0;
    text.starts_with(start)
        && text.split('.').all(|part| {
            parts += 1;
            part.starts_with(|c: char| c.is_ascii_digit())
                && part.len() <= 6
                && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'+')
        })
        && (2..=4).contains(&parts)
}

/// A process's files, in the order in which its loader searches for `malloc`.
struct Loaded {
    exe: Option<usize>,
    /// Every file, by descending first address: the loader maps downwards, so files loaded first usually come
    /// first.
    modules: Vec<usize>,
    code: HashMap<usize, Code>,
    /// By the names that other files use for them: their sonames and their file names.
    by_name: HashMap<String, usize>,
}

impl Loaded {
    fn new(modules: &Modules, space: &AddressSpace, exe: Option<usize>) -> Self {
        let mut first = HashMap::new();
        for code in space.code() {
            first.entry(code.module).or_insert(code);
        }
        let mut order: Vec<usize> = first
            .keys()
            .copied()
            .filter(|&module| !matches!(modules.list[module].role, ModuleRole::Jit | ModuleRole::Vdso))
            .collect();
        order.sort_by_key(|module| std::cmp::Reverse(first[module].start));
        let mut by_name = HashMap::new();
        for &module in &order {
            let file = file_name(&modules.list[module].path);
            let names = [modules.known[module].facts.soname.as_deref(), Some(file)];
            for name in names.into_iter().flatten() {
                by_name.entry(name.to_owned()).or_insert(module);
            }
        }
        Loaded { exe, modules: order, code: first, by_name }
    }

    /// Whether a module was loaded before another one, from the loader's own list. If that can't be read,
    /// from addresses. Those may be wrong: since Linux 6.7 large mappings are aligned, and sometimes a file
    /// fits into the gap above an earlier one.
    fn before(&self, modules: &Modules, pid: i32, other: usize) -> impl Fn(usize) -> bool {
        let list = link_map::biases(&modules.proc_root.join(pid.to_string()));
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
    fn closure(&self, modules: &Modules, roots: &[usize]) -> Vec<usize> {
        let mut there = HashSet::new();
        let mut scope: Vec<usize> = roots.iter().copied().filter(|&root| there.insert(root)).collect();
        let mut next = 0;
        while let Some(&module) = scope.get(next) {
            next += 1;
            let needed = modules.known[module].facts.needed.iter();
            let found = needed.filter_map(|name| self.by_name.get(name));
            scope.extend(found.copied().filter(|&found| there.insert(found)));
        }
        scope
    }

    /// The files of LD_PRELOAD and /etc/ld.so.preload, in order; then files before the C library that only a
    /// preload can explain.
    fn preloads(&self, modules: &Modules, space_pid: i32, environ: &[(String, String)]) -> Vec<usize> {
        let mut names: Vec<String> = Vec::new();
        if let Some((_, value)) = environ.iter().find(|(name, _)| name == "LD_PRELOAD") {
            names.extend(value.split([' ', ':']).map(str::to_owned));
        }
        let global = inside::read(&modules.proc_root, space_pid, Path::new("/etc/ld.so.preload"), 64 << 10);
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
            let module = if name.contains('/') {
                let identity = inside::identity(&modules.proc_root, space_pid, Path::new(name));
                let same = |&module: &usize| identity.is_some() && modules.known[module].identity == identity;
                self.modules.iter().copied().find(same).or_else(|| self.by_name.get(file_name(name)).copied())
            } else {
                // `libjemalloc.so` may be a link to the file that is mapped as `libjemalloc.so.2`.
                let stem =
                    |&module: &usize| file_name(&modules.list[module].path).starts_with(&format!("{name}."));
                self.by_name.get(name).copied().or_else(|| self.modules.iter().copied().find(stem))
            };
            found.extend(module.filter(|module| Some(*module) != self.exe));
        }
        // Servers that write their title over the environment (PostgreSQL, nginx, Redis) overwrite
        // LD_PRELOAD. A file that exports malloc, was loaded before the C library and is needed by no other
        // file was preloaded.
        let asked_for = self.closure(modules, &self.exe.into_iter().collect::<Vec<_>>());
        let by_nobody = self.modules.iter().copied().filter(|module| {
            modules.known[*module].facts.serves_malloc
                && !asked_for.contains(module)
                && !found.contains(module)
                && modules.list[*module].role != ModuleRole::Loader
        });
        let by_nobody: Vec<usize> = by_nobody.collect();
        let libc = self.modules.iter().find(|&&module| modules.list[module].role == ModuleRole::Libc);
        // A file that could not be read may need it.
        let known = asked_for.iter().all(|&module| modules.known[module].absent.is_none());
        if let Some(&libc) = libc.filter(|_| known && !by_nobody.is_empty()) {
            let before = self.before(modules, space_pid, libc);
            found.extend(by_nobody.into_iter().filter(|module| before(*module)));
        }
        found
    }

    /// The allocator that serves `malloc`, and the other allocators in the process.
    fn allocators(
        &self,
        modules: &Modules,
        pid: i32,
        environ: &[(String, String)],
    ) -> (Measured<Allocator>, Vec<Allocator>) {
        let Some(exe) = self.exe else {
            let absence =
                Absence::new(Reason::NotFound, format!("process {pid} does not map its own executable"));
            return (Err(absence), Vec::new());
        };
        let preloads = self.preloads(modules, pid, environ);
        let mut roots = vec![exe];
        roots.extend(&preloads);
        let scope = self.closure(modules, &roots);
        let describe = |module: usize, kind: AllocatorKind, first: bool| Allocator {
            kind,
            how: if module == exe {
                Linkage::Static
            } else if modules.list[module].role == ModuleRole::Libc {
                Linkage::Libc
            } else if preloads.contains(&module) {
                Linkage::Preloaded
            } else {
                Linkage::Linked
            },
            module: modules.list[module].path.clone(),
            version: modules.known[module].facts.allocator_version.clone().filter(|_| first),
        };
        let server = scope.iter().copied().find(|&module| modules.known[module].facts.serves_malloc);
        let serving = match server {
            Some(module) => {
                let kind =
                    modules.known[module].facts.allocators.first().copied().unwrap_or(AllocatorKind::Other);
                Ok(describe(module, kind, true))
            }
            None => Err(self.no_allocator(modules, exe)),
        };
        let mut also = Vec::new();
        for &module in &self.modules {
            for (place, &kind) in modules.known[module].facts.allocators.iter().enumerate() {
                let serves = server == Some(module) && place == 0;
                // A C library whose allocator is replaced is still present; that is not worth reporting.
                if !serves && modules.list[module].role != ModuleRole::Libc {
                    also.push(describe(module, kind, place == 0));
                }
            }
        }
        (serving, also)
    }

    fn no_allocator(&self, modules: &Modules, exe: usize) -> Absence {
        let known = &modules.known[exe];
        if let Some(absent) = &known.absent {
            return absent.clone();
        }
        if matches!(known.facts.runtime, Some(Runtime::Go { .. })) {
            return Absence::new(
                Reason::NotApplicable,
                "a Go program without C code: the runtime has its own allocator, and there is no malloc",
            );
        }
        if known.facts.kind.is_some_and(ElfKind::is_static) {
            return Absence::new(Reason::NotFound, "a stripped static program: its allocator is unknown")
                .mend("build it with symbols");
        }
        Absence::new(Reason::NotFound, "none of its loaded files exports malloc")
    }

    fn libc(&self, modules: &Modules) -> Measured<Libc> {
        if let Some(libc) = self.modules.iter().find_map(|&module| modules.known[module].facts.libc.clone()) {
            return Ok(libc);
        }
        let known = self.exe.map(|exe| &modules.known[exe]);
        match known {
            Some(known) if known.facts.kind.is_some_and(ElfKind::is_static) => Ok(Libc::Static),
            Some(Known { absent: Some(absent), .. }) => Err(absent.clone()),
            _ => Err(Absence::new(Reason::NotFound, "none of its mapped files is a known C library")),
        }
    }

    /// The executable decides, then the files that it is linked with, then the files that it loaded. So a
    /// Python process that loaded a JVM is Python.
    fn runtime(&self, modules: &Modules) -> Measured<Runtime> {
        let Some(exe) = self.exe else {
            return Err(Absence::new(Reason::NotFound, "the process does not map its own executable"));
        };
        let linked = self.closure(modules, &[exe]);
        let candidates = linked.iter().chain(&self.modules);
        if let Some(runtime) =
            candidates.into_iter().find_map(|&module| modules.known[module].facts.runtime.clone())
        {
            return Ok(runtime);
        }
        match &modules.known[exe].absent {
            Some(absent) => Err(absent.clone()),
            None => Ok(Runtime::Native),
        }
    }
}

/// The start of a command line, limited in words and bytes: it is kept for thousands of processes.
fn words_kept(words: Vec<String>) -> Vec<String> {
    const BYTES: usize = 16 << 10;
    let mut left = BYTES;
    let fits = |word: &String| {
        left = left.saturating_sub(word.len() + 1);
        left > 0
    };
    words.into_iter().take(CMDLINE_WORDS).take_while(fits).collect()
}

/// Only the variables that a diagnosis reads. System properties among Java's options are removed: they may
/// contain passwords.
fn settings(environ: Vec<(String, String)>) -> Vec<(String, String)> {
    let without_properties = |name: &str, value: String| {
        if name.contains("JAVA") {
            value.split_whitespace().filter(|word| word.starts_with("-X")).collect::<Vec<_>>().join(" ")
        } else {
            value
        }
    };
    environ
        .into_iter()
        .filter(|(name, _)| is_setting(name))
        .map(|(name, value)| {
            let value = without_properties(&name, value);
            (name, value)
        })
        .collect()
}

/// AT_SECURE (getauxval(3)): the loader ignores LD_PRELOAD and tunables.
pub(crate) fn secure_exec(auxv: &[u8]) -> Measured<bool> {
    const AT_SECURE: u64 = 23;
    link_map::auxiliary(auxv, AT_SECURE)
        .map(|value| value != 0)
        .ok_or_else(|| Absence::new(Reason::NotFound, "no AT_SECURE in the auxiliary vector"))
}

fn thp_disabled(status: &Status) -> Measured<bool> {
    let enabled = status.thp_enabled.ok_or_else(|| {
        Absence::new(
            Reason::NotSupported,
            "/proc/PID/status has no THP_enabled line: the kernel has no transparent huge pages, or is older than 5.0",
        )
    })?;
    Ok(!enabled)
}

#[cfg(test)]
mod tests;
