//! The files that a target maps, each examined once.

use super::facts::{self, FileFacts};
use super::space::AddressSpace;
use super::versions;
use crate::loads::Place;
use crate::reading::{Examined, FileReader, Mapped, Readers};
use allocwall_host::inside;
use allocwall_host::maps::{self, Mapping};
use allocwall_host::proc::ProcFs;
use allocwall_model::catalogue::modules::{ModuleRole, role_of_library};
use allocwall_model::recording::Module;
use allocwall_model::units::{Absence, Measured, Reason};
use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The most memory for the facts of all files together, without their names. A browser with all its libraries
/// takes some hundred kilobytes.
const FACTS_LIMIT: usize = 16 << 20;
/// The most files that are examined; each stays open. A browser with all its libraries maps some hundreds.
const MODULES_LIMIT: usize = 4096;
/// More than enough for a file with a version; they are a few KiB.
const VERSION_FILE_LIMIT: u64 = 256 << 10;

/// The files that the target's processes map, in order of appearance. Indices stay valid.
pub struct Modules {
    pub(super) proc_root: PathBuf,
    pub(super) list: Vec<Module>,
    pub(super) known: Vec<Known>,
    by_file: HashMap<FileKey, usize>,
    /// The module for all files above the limit.
    beyond: Option<usize>,
    /// The remaining bytes of [`FACTS_LIMIT`].
    facts_left: usize,
    /// Why functions of a stripped Go program have no names.
    unnamed: Option<Absence>,
    reader: FileReader,
}

type FileKey = ((u32, u32), u64, Vec<u8>);

/// What is known about a module and not part of a recording.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    pub facts: FileFacts,
    pub identity: Option<((u32, u32), u64)>,
    /// Kept open: names and unwind tables are read from the mapped file itself, even if its path changes.
    file: Option<Arc<File>>,
    /// Why the file could not be examined.
    pub absent: Option<Absence>,
}

impl Modules {
    /// `proc_root` is `/proc`, or a copy of it in a test.
    pub fn new(proc_root: impl Into<PathBuf>, readers: Readers) -> Self {
        Modules {
            reader: FileReader::new(readers),
            proc_root: proc_root.into(),
            list: Vec::new(),
            known: Vec::new(),
            by_file: HashMap::new(),
            beyond: None,
            facts_left: FACTS_LIMIT,
            unnamed: None,
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
        self.push(bare(path.into(), role), Known::default())
    }

    /// Adds a file that no process has mapped yet. `path` is the name by which this process sees it.
    pub(super) fn add_unmapped(&mut self, path: &str, module: Module, mut facts: FileFacts) -> usize {
        self.complete_version(std::process::id() as i32, path, &mut facts);
        self.push(module, Known { facts, ..Known::default() })
    }

    fn push(&mut self, module: Module, known: Known) -> usize {
        self.list.push(module);
        self.known.push(known);
        self.list.len() - 1
    }

    /// Code of a 32-bit processor.
    pub fn is_narrow(&self, module: usize) -> bool {
        self.known[module].facts.narrow
    }

    /// The reader of the modules' files.
    pub fn reader(&mut self) -> &mut FileReader {
        &mut self.reader
    }

    /// Names of functions by the module's own addresses, one per address; None if there is no name.
    pub fn names(&mut self, module: usize, addresses: &[u64]) -> Vec<Option<String>> {
        let file = self.known.get(module).and_then(|known| known.file.clone());
        let named = file.and_then(|file| self.reader.names(module as u32, &file, addresses).ok());
        let Some((names, unnamed)) = named else {
            return vec![None; addresses.len()];
        };
        if let Some(why) = unnamed {
            self.keep_unnamed(module, why);
        }
        names
    }

    /// The functions of a stripped Go program have no names. Its header may have promised some.
    pub fn keep_unnamed(&mut self, module: usize, why: Absence) {
        self.list[module].has_symbols = false;
        self.unnamed.get_or_insert(why);
    }

    /// Why functions of a stripped Go program have no names.
    pub fn unnamed(&self) -> Option<&Absence> {
        self.unnamed.as_ref()
    }

    /// Names of the allocator's functions that fill a block with zeros, one per return address in the module: the
    /// function that was called there, or None.
    ///
    /// # Errors
    /// The code of the module could not be read.
    pub fn zeroing(&mut self, module: usize, addresses: &[u64]) -> Measured<Vec<Option<String>>> {
        let file = self.file(module)?;
        self.reader.zeroing(module as u32, &file, addresses)
    }

    /// The places of these addresses in the module's code; None for one whose neighbours can't be decoded.
    ///
    /// # Errors
    /// The code of the module could not be read.
    pub fn loads(&mut self, module: usize, addresses: &[u64]) -> Measured<Vec<Option<Place>>> {
        let file = self.file(module)?;
        self.reader.loads(module as u32, &file, addresses)
    }

    fn file(&self, module: usize) -> Measured<Arc<File>> {
        let known = self.known.get(module);
        known.and_then(|known| known.file.clone()).ok_or_else(|| {
            let absent = known.and_then(|known| known.absent.clone());
            absent.unwrap_or_else(|| Absence::new(Reason::NotFound, "the code has no file"))
        })
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
        let index = self.push(module, known);
        self.by_file.insert(key, index);
        index
    }

    fn examine(&mut self, pid: i32, mapping: &Mapping) -> (Module, Known) {
        let path = mapping.display_path();
        let by_name = role_of_library(facts::file_name(&path)).unwrap_or(ModuleRole::Other);
        let index = self.list.len() as u32;
        // A leader that has ended shows neither files nor a root.
        let thread = ProcFs::at(&self.proc_root).living_thread(pid);
        let examined = maps::open(&self.proc_root, thread, mapping).and_then(|file| {
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
                self.complete_version(thread, &path, &mut facts);
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

    /// Reads a version that the file itself does not have from a file next to it, as process `pid` sees it.
    fn complete_version(&self, pid: i32, path: &str, facts: &mut FileFacts) {
        let read = |name: &Path| {
            let bytes = inside::read(&self.proc_root, pid, name, VERSION_FILE_LIMIT).ok()?;
            Some(String::from_utf8_lossy(&bytes).into_owned())
        };
        if let Some(runtime) = &mut facts.runtime {
            versions::complete(runtime, Path::new(path), read);
        }
    }
}

fn bare(path: String, role: ModuleRole) -> Module {
    Module { path, build_id: None, role, malloc_ranges: Vec::new(), has_symbols: false }
}
