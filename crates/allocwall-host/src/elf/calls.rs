//! Which function a call instruction calls. A function whose last step is a jump (`calloc` jumps to `memset`) is not on
//! the stack, but the call instruction of its caller leads to it.

use super::{Code, Elf, ElfFile, Section, malformed, name_at};
use allocwall_model::units::Measured;
use object::Endianness;
use object::elf;
use object::read::ReadRef;
use object::read::elf::{Rela, Sym};
use std::fs::File;

/// The most slots of one file that are kept, and the longest names in them: the names that are wanted are few and short.
const MOST_SLOTS: usize = 64;
const LONGEST_WANTED: usize = 64;
/// The most imports of one table that are looked at; a browser has ten thousand.
const MOST_IMPORTS: usize = 1 << 18;
const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
const BND: [u8; 1] = [0xf2];
/// `endbr64`, `bnd jmp *slot(%rip)`.
const LONGEST_ENTRY: usize = 11;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target<'c> {
    /// The loader finds the function by this name.
    Imported(&'c str),
    /// An address in the same file, in its own numbering.
    Here(u64),
}

/// The code of a file, and the wanted functions that it imports.
#[derive(Debug)]
pub struct Calls {
    code: Code,
    /// Addresses that the loader fills with the address of a function, with its name.
    slots: Vec<(u64, String)>,
}

impl Calls {
    pub fn of(file: &File, wanted: impl Fn(&str) -> bool) -> Measured<Calls> {
        let again = || file.try_clone().map_err(|_| malformed("unreadable"));
        let data = ElfFile::new(again()?);
        let elf = data.parse()?;
        let code = Code::of(&elf, again()?)?;
        let mut slots = Vec::new();
        for table in [".rela.plt", ".rela.dyn"].into_iter().filter_map(|name| elf.facts.section(name)) {
            elf.slots(table, &wanted, &mut slots);
        }
        Ok(Calls { code, slots })
    }

    pub fn code(&self) -> &Code {
        &self.code
    }

    /// The target of the call before a return address. None if there is no direct call, or one to an import that is not
    /// wanted. A call through a register, or through a pointer that the program set, is not direct.
    pub fn before(&self, return_address: u64) -> Option<Target<'_>> {
        const CALL: usize = 6;
        let code = self.code.read(return_address.checked_sub(CALL as u64)?, CALL)?;
        let [first, second, distance @ ..] = <[u8; CALL]>::try_from(code).ok()?;
        let target = return_address.wrapping_add_signed(i32::from_le_bytes(distance).into());
        match (first, second) {
            (0xff, 0x15) => self.imported(target),
            (_, 0xe8) => self.entered(target),
            _ => None,
        }
    }

    /// A direct call leads to a function, or to an entry of the procedure linkage table, which jumps through a slot.
    fn entered(&self, address: u64) -> Option<Target<'_>> {
        let code = self.code.read(address, LONGEST_ENTRY)?;
        let jump = code.strip_prefix(&ENDBR64).unwrap_or(&code);
        let jump = jump.strip_prefix(&BND).unwrap_or(jump);
        let [0xff, 0x25, a, b, c, d, ..] = *jump else {
            return Some(Target::Here(address));
        };
        let behind = address.wrapping_add((code.len() - jump.len() + 6) as u64);
        self.imported(behind.wrapping_add_signed(i32::from_le_bytes([a, b, c, d]).into()))
    }

    fn imported(&self, slot: u64) -> Option<Target<'_>> {
        self.slots.iter().find(|(at, _)| *at == slot).map(|(_, name)| Target::Imported(name))
    }
}

impl<'d, R: ReadRef<'d>> Elf<'d, R> {
    /// Adds the slots of a relocation table. None if a part of it can't be read; no slot is known then.
    fn slots(
        &self,
        table: &Section,
        wanted: &impl Fn(&str) -> bool,
        slots: &mut Vec<(u64, String)>,
    ) -> Option<()> {
        let sections = &self.facts.sections;
        let symbols = sections.get(table.link).filter(|s| s.kind == elf::SHT_DYNSYM)?;
        let names = self.bytes_of(sections.get(symbols.link))?;
        let count = |s: &Section, size: usize| usize::try_from(s.size / size as u64).ok();
        let relocations: &'d [elf::Rela64<Endianness>] = self
            .data
            .read_slice_at(table.offset, count(table, size_of::<elf::Rela64<Endianness>>())?)
            .ok()?;
        let symbols: &'d [elf::Sym64<Endianness>] = self
            .data
            .read_slice_at(symbols.offset, count(symbols, size_of::<elf::Sym64<Endianness>>())?)
            .ok()?;
        let imports = relocations.iter().filter(|relocation| {
            let kind = relocation.r_type(self.endian, false);
            kind == elf::R_X86_64_JUMP_SLOT || kind == elf::R_X86_64_GLOB_DAT
        });
        for import in imports.take(MOST_IMPORTS) {
            let symbol = symbols.get(import.r_sym(self.endian, false) as usize);
            let name = symbol.and_then(|symbol| name_at(names, symbol.st_name(self.endian)));
            let name = name.filter(|name| name.len() <= LONGEST_WANTED);
            let Some(name) = name.and_then(|name| std::str::from_utf8(name).ok()) else {
                continue;
            };
            if slots.len() < MOST_SLOTS && wanted(name) {
                slots.push((import.r_offset(self.endian), name.to_owned()));
            }
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elf::{Functions, Segment, Table};
    use std::collections::BTreeSet;
    use std::io::Write;
    use std::process::Command;

    const PROGRAM: &str = "#include <stdlib.h>\n#include <string.h>\n\
        __attribute__((noinline)) char *zeroed(int n) { char *p = calloc(n, 5); p[1] = 1; return p; }\n\
        __attribute__((noinline)) char *cleared(char *p, int n) { memset(p, 0, n); p[1] = 1; return p; }\n\
        int main(int n, char **v) { return cleared(zeroed(n), n)[0]; }\n";

    fn built(arguments: &[&str]) -> Option<File> {
        let folder = tempfile::tempdir().unwrap();
        let (source, program) = (folder.path().join("p.c"), folder.path().join("p"));
        std::fs::write(&source, PROGRAM).unwrap();
        let mut gcc = Command::new("gcc");
        let gcc = gcc.arg("-O1").arg(&source).arg("-o").arg(&program).args(arguments);
        match gcc.output() {
            Ok(output) if output.status.success() && cfg!(target_arch = "x86_64") => {
                Some(File::open(program).unwrap())
            }
            _ => {
                println!("skipped: gcc {arguments:?} does not build x86-64 here");
                None
            }
        }
    }

    /// The names of all functions that a function calls.
    fn called(file: &File, function: &str) -> BTreeSet<String> {
        let data = ElfFile::new(file.try_clone().unwrap());
        let elf = data.parse().unwrap();
        let mut range = 0..0;
        let find = &mut |symbol: crate::elf::Symbol| {
            if symbol.text() == function {
                range = symbol.address..symbol.address + symbol.size;
            }
        };
        elf.symbols(Table::All, find).unwrap();
        assert!(!range.is_empty(), "{function}");
        let calls = Calls::of(file, |name| name == "calloc").unwrap();
        let functions = Functions::of(file, 1 << 20).unwrap().unwrap();
        let name = |target: Target| match target {
            Target::Imported(name) => name.to_owned(),
            Target::Here(address) => {
                let name = functions.name(address, 99).unwrap_or_default();
                String::from_utf8(name).unwrap().trim_start_matches("__libc_").trim_start_matches('_').into()
            }
        };
        range.filter_map(|address| calls.before(address + 1)).map(name).collect()
    }

    #[test]
    fn a_call_instruction_leads_to_the_imported_function() {
        for arguments in [
            &["-fcf-protection=none", "-Wl,-z,lazy"][..],
            &["-fcf-protection=none", "-Wl,-z,now"],
            &["-fcf-protection=full", "-Wl,-z,lazy", "-Wl,-z,ibtplt"],
            &["-fno-plt"],
            &["-no-pie"],
            &["-static"],
            &["-static", "-fno-plt"],
        ] {
            let Some(file) = built(arguments) else { continue };
            let calloc = "calloc".to_owned();
            assert!(called(&file, "zeroed").contains(&calloc), "{arguments:?}");
            assert!(!called(&file, "cleared").contains(&calloc), "{arguments:?}");
        }
    }

    #[test]
    fn a_cut_file_has_fewer_targets_or_none() {
        let Some(mut file) = built(&[]) else { return };
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut file, &mut bytes).unwrap();
        for length in (0..bytes.len()).step_by(499) {
            let mut cut = tempfile::tempfile().unwrap();
            cut.write_all(&bytes[..length]).unwrap();
            if let Ok(calls) = Calls::of(&cut, |_| true) {
                (0x1000..0x1400).for_each(|address| _ = calls.before(address));
            }
        }
    }

    /// One segment with this code at 0x1000, that claims to be longer than the file, and `calloc` at 0x3000.
    fn calls(code: &[u8]) -> Calls {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(code).unwrap();
        let segment =
            Segment { offset: 0, address: 0x1000, file_size: 0x100, memory_size: 0x100, executable: true };
        Calls { code: Code::at(file, segment), slots: vec![(0x3000, "calloc".into())] }
    }

    #[test]
    fn only_calls_have_targets() {
        let through_slot = |distance: i32| [&[0xff, 0x15][..], &distance.to_le_bytes()].concat();
        let direct = |distance: i32| [&[0x90, 0xe8][..], &distance.to_le_bytes()].concat();
        let target = |code: Vec<u8>| match calls(&code).before(0x1006) {
            Some(Target::Imported(name)) => Some(name.to_owned()),
            Some(Target::Here(address)) => Some(format!("{address:x}")),
            None => None,
        };
        assert_eq!(target(through_slot(0x1ffa)).as_deref(), Some("calloc"));
        assert_eq!(target(through_slot(0x1ff2)), None, "another slot");
        assert_eq!(target(direct(-6)).as_deref(), Some("1000"));
        for outside in [-7, 0x100, i32::MIN, i32::MAX] {
            assert_eq!(target(direct(outside)), None, "{outside:x}");
            assert_eq!(target(through_slot(outside)), None, "{outside:x}");
        }
        // An entry of the linkage table behind the call, whole and cut off.
        let entry = [&ENDBR64[..], &BND, &[0xff, 0x25], &0x1fef_i32.to_le_bytes()].concat();
        let with_entry = |length: usize| [direct(0), entry[..length].to_vec()].concat();
        assert_eq!(target(with_entry(entry.len())).as_deref(), Some("calloc"));
        assert_eq!(target(with_entry(entry.len() - 1)).as_deref(), Some("1006"));
        // A jump is no call, and the code does not show what is called through a register (%rax, %rbx, a table's entry).
        assert_eq!(target(vec![0x90, 0xe9, 0, 0, 0, 0]), None);
        for indirect in [[0x90u8, 0xff, 0xd0], [0x90, 0xff, 0xd3], [0xff, 0x50, 0x10]] {
            assert_eq!(target([&[0x90u8; 3][..], &indirect].concat()), None, "{indirect:x?}");
        }
        let calls = calls(&direct(0));
        for address in [0, 5, 0x1000, 0x1005, 0x1100, 0x5000, u64::MAX] {
            assert_eq!(calls.before(address), None, "{address:x}");
        }
    }
}
