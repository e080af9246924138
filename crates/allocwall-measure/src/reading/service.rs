//! The code of the child process: answers requests about files that it was sent.

use super::{Answer, Ask, Dump, Examined, LIMITS, Mapped};
use crate::loads::{self, Place};
use crate::symbols;
use crate::target;
use crate::unwind::{Cache, Tables, Unwinder, Unwound};
use allocwall_host::confined::Parent;
use allocwall_host::elf::{Calls, Functions, Target};
use allocwall_host::perf::{REGISTERS, Registers};
use allocwall_model::catalogue::symbols::allocates_zeroed;
use allocwall_model::units::{Absence, Measured, Reason, plural};
use std::collections::HashMap;
use std::fs::File;
use std::io;

/// The most bytes of unwind tables, for all modules together.
const TABLES_LIMIT: u64 = 32 << 20;
/// The most functions, for all modules together; 16 bytes each.
const FUNCTIONS_LIMIT: usize = 1 << 20;
/// The most bytes of JIT code maps, for all files and all readings together.
const GENERATED_LIMIT: u64 = 256 << 20;

/// Runs the child: limits itself, and answers until its parent is gone.
///
/// # Errors
/// It was not started by this program, or a limit could not be set.
pub fn serve() -> io::Result<()> {
    let mut parent = Parent::confined(LIMITS)?;
    let mut service = Service::default();
    while let Some((message, file)) = parent.question()? {
        let (ask, raw) = postcard::take_from_bytes(&message).map_err(|_| io::ErrorKind::InvalidData)?;
        let answer = service.answer(&ask, raw, file);
        let answer = postcard::to_stdvec(&answer).map_err(io::Error::other)?;
        parent.answer(&answer)?;
    }
    Ok(())
}

pub struct Service {
    modules: HashMap<u32, OpenModule>,
    images: HashMap<u32, Unwinder>,
    cache: Cache,
    tables_left: u64,
    functions_left: usize,
    generated_left: u64,
    without_tables: u32,
    without_names: u32,
    without_generated: u32,
}

struct OpenModule {
    file: File,
    tables: Option<Tables>,
    functions: Option<Option<Functions>>,
    calls: Option<Measured<Calls>>,
}

impl OpenModule {
    fn read_calls(&mut self) {
        self.calls.get_or_insert_with(|| Calls::of(&self.file, allocates_zeroed));
    }

    /// After `read_calls`.
    fn calls(&self) -> Measured<&Calls> {
        self.calls.as_ref().ok_or_else(not_open)?.as_ref().map_err(Clone::clone)
    }
}

impl Default for Service {
    fn default() -> Service {
        Service {
            modules: HashMap::new(),
            images: HashMap::new(),
            cache: Cache::default(),
            tables_left: TABLES_LIMIT,
            functions_left: FUNCTIONS_LIMIT,
            generated_left: GENERATED_LIMIT,
            without_tables: 0,
            without_names: 0,
            without_generated: 0,
        }
    }
}

impl Service {
    pub(super) fn answer(&mut self, ask: &Ask, raw: &[u8], file: Option<File>) -> Answer {
        match ask {
            Ask::Open { module } => {
                if let Some(file) = file {
                    let opened = OpenModule { file, tables: None, functions: None, calls: None };
                    self.modules.insert(*module, opened);
                }
                Answer::Done
            }
            Ask::Examine { module, path, by_name } => {
                let examined = self.file(*module).and_then(|file| {
                    let (module, facts) = target::examine_file(file, path, *by_name)?;
                    Ok(Box::new(Examined { module, facts }))
                });
                Answer::Examined(examined)
            }
            Ask::Image { image, code } => {
                self.image(*image, code);
                Answer::Done
            }
            Ask::Unwind { dumps } => Answer::Unwound(self.unwind(dumps, raw)),
            Ask::Names { module, addresses } => self.names(*module, addresses),
            Ask::Zeroing { module, addresses } => Answer::Zeroing(self.zeroing(*module, addresses)),
            Ask::Loads { module, addresses } => Answer::Loads(self.loads(*module, addresses)),
            Ask::Generated { addresses } => {
                let names = match file {
                    Some(file) => self.generated(file, addresses),
                    None => vec![None; addresses.len()],
                };
                Answer::Names(names, None)
            }
            Ask::Missing => Answer::Missing(self.missing()),
        }
    }

    fn file(&self, module: u32) -> Measured<File> {
        self.modules.get(&module).and_then(|opened| opened.file.try_clone().ok()).ok_or_else(not_open)
    }

    fn image(&mut self, image: u32, code: &[Mapped]) {
        let mut unwinder = Unwinder::default();
        for mapped in code {
            // Generated code has no file; it is unwound by frame pointer.
            let Some(opened) = self.modules.get_mut(&mapped.module) else {
                continue;
            };
            let tables =
                opened.tables.get_or_insert_with(|| match Tables::of(&opened.file, &mut self.tables_left) {
                    Some(tables) => tables,
                    None => {
                        self.without_tables += 1;
                        Tables::none()
                    }
                });
            unwinder.add(mapped.start..mapped.end, mapped.bias, tables);
        }
        self.images.insert(image, unwinder);
    }

    fn unwind(&mut self, dumps: &[Dump], raw: &[u8]) -> Vec<Unwound> {
        let mut rest = raw;
        dumps
            .iter()
            .map(|dump| {
                let mut out = Unwound::default();
                let size = REGISTERS * 8 + dump.stack_bytes as usize;
                let (bytes, behind) = rest.split_at_checked(size).unwrap_or_default();
                rest = behind;
                if let (false, Some(unwinder)) = (bytes.is_empty(), self.images.get(&dump.image)) {
                    let (registers, stack) = bytes.split_at(REGISTERS * 8);
                    unwinder.unwind(&mut self.cache, &words(registers), stack, &mut out);
                }
                out
            })
            .collect()
    }

    fn functions(&mut self, module: u32) -> Option<&Functions> {
        let opened = self.modules.get_mut(&module)?;
        let functions = opened.functions.get_or_insert_with(|| {
            match Functions::of(&opened.file, self.functions_left) {
                Ok(Some(functions)) => {
                    self.functions_left -= functions.len();
                    Some(functions)
                }
                Ok(None) => {
                    self.without_names += 1;
                    None
                }
                // Not an ELF file, or one without symbols: there are no names.
                Err(_) => None,
            }
        });
        functions.as_ref()
    }

    fn names(&mut self, module: u32, addresses: &[u64]) -> Answer {
        let functions = self.functions(module);
        let names = addresses.iter().map(|&address| name_of(functions?, address)).collect();
        Answer::Names(names, functions.and_then(|functions| functions.unread().cloned()))
    }

    fn zeroing(&mut self, module: u32, addresses: &[u64]) -> Measured<Vec<Option<String>>> {
        // Usually read before, for the names of the callers.
        self.functions(module);
        let opened = self.modules.get_mut(&module).ok_or_else(not_open)?;
        opened.read_calls();
        let (calls, functions) = (opened.calls()?, opened.functions.as_ref());
        let called = |address: u64| match calls.before(address)? {
            Target::Imported(name) => Some(name.to_owned()),
            Target::Here(target) => name_of(functions?.as_ref()?, target),
        };
        let zeroing = |&address: &u64| called(address).filter(|name| allocates_zeroed(name));
        Ok(addresses.iter().map(zeroing).collect())
    }

    fn loads(&mut self, module: u32, addresses: &[u64]) -> Measured<Vec<Option<Place>>> {
        let opened = self.modules.get_mut(&module).ok_or_else(not_open)?;
        opened.read_calls();
        let code = opened.calls()?.code();
        let place = |&address: &u64| {
            let (bytes, at) = code.around(address, loads::BEFORE, loads::AFTER)?;
            loads::place(&bytes, at)
        };
        Ok(addresses.iter().map(place).collect())
    }

    fn generated(&mut self, file: File, addresses: &[u64]) -> Vec<Option<String>> {
        let mut names = vec![None; addresses.len()];
        if !symbols::scan_perf_map(file, &mut self.generated_left, addresses, &mut names) {
            self.without_generated += 1;
        }
        names
    }

    fn missing(&self) -> Vec<String> {
        let files = |count: u32| format!("{count} {}", plural(count.into(), "file"));
        let mut missing = Vec::new();
        if self.without_tables > 0 {
            missing.push(format!(
                "unwind tables of {} were not read: more than {} MiB in all",
                files(self.without_tables),
                TABLES_LIMIT >> 20
            ));
        }
        if self.without_names > 0 {
            missing.push(format!(
                "function names of {} were not read: more than {FUNCTIONS_LIMIT} functions in all",
                files(self.without_names)
            ));
        }
        if self.without_generated > 0 {
            missing.push(format!(
                "names of generated code were not all read: more than {} MiB of perf-PID.map files",
                GENERATED_LIMIT >> 20
            ));
        }
        missing
    }
}

fn not_open() -> Absence {
    Absence::new(Reason::NotFound, "the file was not sent or could not be kept open")
}

fn name_of(functions: &Functions, address: u64) -> Option<String> {
    symbols::readable(&functions.name(address, symbols::MANGLED_LIMIT)?)
}

fn words(bytes: &[u8]) -> Registers {
    let mut registers = [0; REGISTERS];
    for (register, word) in registers.iter_mut().zip(bytes.chunks_exact(8)) {
        *register = u64::from_ne_bytes(word.try_into().unwrap_or_default());
    }
    registers
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocwall_host::elf::ElfFile;
    use std::process::Command;

    /// The names of all functions that zero their block and that a program calls.
    fn zeroing(main: &str, arguments: &[&str]) -> Option<Vec<String>> {
        let folder = tempfile::tempdir().unwrap();
        let (source, program) = (folder.path().join("p.c"), folder.path().join("p"));
        let text =
            format!("#include <stdlib.h>\n#include <string.h>\nint main(int n, char **v) {{ {main} }}\n");
        std::fs::write(&source, text).unwrap();
        let mut gcc = Command::new("gcc");
        gcc.arg("-O1").arg(&source).arg("-o").arg(&program).args(arguments);
        let built = gcc.output().is_ok_and(|output| output.status.success());
        if !built || !cfg!(target_arch = "x86_64") {
            println!("skipped: gcc does not build x86-64 here");
            return None;
        }
        let file = File::open(program).unwrap();
        let data = ElfFile::new(file.try_clone().unwrap());
        let code = data.parse().unwrap().facts.section(".text").unwrap().clone();
        let mut service = Service::default();
        service.answer(&Ask::Open { module: 7 }, &[], Some(file));
        let addresses = (code.address..=code.address + code.size).collect();
        match service.answer(&Ask::Zeroing { module: 7, addresses }, &[], None) {
            Answer::Zeroing(Ok(names)) => Some(names.into_iter().flatten().collect()),
            answer => panic!("{answer:?}"),
        }
    }

    #[test]
    fn callers_of_calloc_are_known_also_in_a_stripped_program() {
        for arguments in [&[] as &[&str], &["-s"], &["-s", "-fno-plt"]] {
            let calloc = "char *p = calloc(n, 5); p[1] = 1; return p[2];";
            if let Some(names) = zeroing(calloc, arguments) {
                assert_eq!(names, ["calloc"], "{arguments:?}");
            }
            let own = "char *p = malloc(n * 5); memset(p, 0, n * 4); p[1] = 1; return p[2];";
            if let Some(names) = zeroing(own, arguments) {
                assert!(names.is_empty(), "{arguments:?}: {names:?}");
            }
        }
    }

    #[test]
    fn a_go_program_whose_table_can_not_be_read_says_why() {
        // Two functions and no symbol table.
        let kept = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/kept/elf/go");
        let sound = std::fs::read(kept).unwrap();
        let table = sound.windows(4).position(|magic| magic == 0xffff_fff1_u32.to_le_bytes()).unwrap();
        let mut old = sound.clone();
        // Go 1.2.
        old[table] = 0xfb;
        let asked = |bytes: &[u8]| {
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), bytes).unwrap();
            let mut service = Service::default();
            service.answer(&Ask::Open { module: 1 }, &[], File::open(file.path()).ok());
            match service.answer(&Ask::Names { module: 1, addresses: vec![0x1000] }, &[], None) {
                Answer::Names(names, unread) => (names, unread.map(|why| why.reason)),
                answer => panic!("{answer:?}"),
            }
        };
        assert_eq!(asked(&sound), (vec![Some("runtime.mallocgc".to_owned())], None));
        assert_eq!(asked(&old), (vec![None], Some(Reason::NotSupported)));
    }

    #[test]
    fn calls_that_can_not_be_read_have_a_reason_each_time() {
        let mut service = Service::default();
        let reason =
            |service: &mut Service| service.zeroing(1, &[0x1000, u64::MAX]).err().map(|why| why.reason);
        assert_eq!(reason(&mut service), Some(Reason::NotFound));
        let text = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(text.path(), "not a program, and longer than the header of one").unwrap();
        service.answer(&Ask::Open { module: 1 }, &[], File::open(text.path()).ok());
        for _ in 0..2 {
            assert_eq!(reason(&mut service), Some(Reason::NotApplicable));
        }
    }
}
