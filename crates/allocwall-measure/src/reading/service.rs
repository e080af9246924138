//! The code of the child process: answers requests about files that it was sent.

use super::{Answer, Ask, Dump, Examined, LIMITS, Mapped};
use crate::symbols;
use crate::target;
use crate::unwind::{Cache, Tables, Unwinder, Unwound};
use allocwall_host::confined::Parent;
use allocwall_host::elf::Functions;
use allocwall_host::perf::{REGISTERS, Registers};
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
                    let opened = OpenModule { file, tables: None, functions: None };
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
            Ask::Names { module, addresses } => Answer::Names(self.names(*module, addresses)),
            Ask::Generated { addresses } => Answer::Names(match file {
                Some(file) => self.generated(file, addresses),
                None => vec![None; addresses.len()],
            }),
            Ask::Missing => Answer::Missing(self.missing()),
        }
    }

    fn file(&self, module: u32) -> Measured<File> {
        self.modules
            .get(&module)
            .and_then(|opened| opened.file.try_clone().ok())
            .ok_or_else(|| Absence::new(Reason::NotFound, "the file was not sent or could not be kept open"))
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

    fn names(&mut self, module: u32, addresses: &[u64]) -> Vec<Option<String>> {
        let Some(opened) = self.modules.get_mut(&module) else {
            return vec![None; addresses.len()];
        };
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
        addresses
            .iter()
            .map(|&address| symbols::readable(&functions.as_ref()?.name(address, symbols::MANGLED_LIMIT)?))
            .collect()
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

fn words(bytes: &[u8]) -> Registers {
    let mut registers = [0; REGISTERS];
    for (register, word) in registers.iter_mut().zip(bytes.chunks_exact(8)) {
        *register = u64::from_ne_bytes(word.try_into().unwrap_or_default());
    }
    registers
}
