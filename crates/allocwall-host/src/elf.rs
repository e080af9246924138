//! Reads facts from one ELF file. The files belong to the target and are treated as hostile: sizes are
//! bounded, nothing is mapped (a file that is truncated under a mapping kills the reader with SIGBUS), and
//! only the requested parts are read.

mod calls;
mod code;
mod gopclntab;

use allocwall_model::units::{Absence, Measured, Reason};
use object::Endianness;
use object::elf;
use object::read::elf::{Dyn, FileHeader, ProgramHeader, SectionHeader, Sym};
use object::read::{ReadCache, ReadRef};
use serde::{Deserialize, Serialize};
use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::ffi::CStr;
use std::fs::File;
use std::os::unix::fs::FileExt;

pub use calls::{Calls, Target};
pub use code::Code;

/// The most bytes of one read: the names of a program's symbols, or its constants. A browser with all its
/// symbols has more.
const MAX_READ: u64 = 64 << 20;
/// The most bytes of all reads of one file; they are kept while the file is analysed.
const MAX_READ_IN_ALL: u64 = 80 << 20;
/// The most sections; ELF's own limit without extensions is 0xff00.
const MAX_SECTIONS: usize = 0x1_0000;
const MAX_SEGMENTS: usize = 4096;
/// The most segments of notes, and the most bytes of one; a build identifier is in one of the first.
const MAX_NOTES: usize = 8;
const MAX_NOTE_BYTES: u64 = 1 << 20;
/// The most entries of the dynamic section; a browser has far fewer.
const MAX_DYNAMIC: usize = 1 << 16;
/// The most needed libraries of one file; a browser needs a hundred.
const MAX_NEEDED: usize = 512;
/// allocwall looks for shorter names only.
const LONGEST_SECTION_NAME: usize = 64;
/// NAME_MAX of limits.h.
const LONGEST_FILE_NAME: usize = 255;
/// The most symbols of one table that are read; a browser has a million.
const MAX_SYMBOLS: u64 = 8 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ElfKind {
    /// Fixed address, with a loader.
    Executable,
    /// Position-independent executable, with a loader.
    PieExecutable,
    /// No loader: statically linked.
    StaticExecutable,
    StaticPieExecutable,
    SharedLibrary,
    /// Relocatable, core, or unknown.
    Other,
}

impl ElfKind {
    pub fn is_static(self) -> bool {
        matches!(self, ElfKind::StaticExecutable | ElfKind::StaticPieExecutable)
    }
}

/// A PT_LOAD segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    pub offset: u64,
    pub address: u64,
    pub file_size: u64,
    pub memory_size: u64,
    pub executable: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    pub name: String,
    pub address: u64,
    pub offset: u64,
    pub size: u64,
    pub executable: bool,
    kind: elf::SectionType,
    link: usize,
}

/// The small part of a file, owned by the caller. It takes only a few reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElfFacts {
    pub kind: ElfKind,
    /// ELF machine number, for example 62 for x86-64.
    pub machine: u16,
    pub is_64: bool,
    pub interpreter: Option<String>,
    /// Lower-case hexadecimal.
    pub build_id: Option<String>,
    pub soname: Option<String>,
    pub needed: Vec<String>,
    pub segments: Vec<Segment>,
    pub sections: Vec<Section>,
}

impl ElfFacts {
    /// The file has a `.symtab` with at least one symbol besides the null symbol.
    pub fn has_symtab(&self) -> bool {
        let entry = if self.is_64 { 24 } else { 16 };
        self.sections.iter().any(|s| s.kind == elf::SHT_SYMTAB && s.size > entry)
    }

    /// Go's linker wrote it, or a part of it.
    pub fn is_go(&self) -> bool {
        self.section(".go.buildinfo").is_some() || self.section(".note.go.buildid").is_some()
    }

    pub fn section(&self, name: &str) -> Option<&Section> {
        self.sections.iter().find(|section| section.name == name)
    }

    /// The address in the file's own numbering for an offset in the file, as mapped. Segments are mapped in
    /// whole pages; if two share a page, the executable segment wins.
    pub fn address_of_offset(&self, offset: u64) -> Option<u64> {
        address_of_offset(&self.segments, offset)
    }

    /// The offset in the file for one of its own addresses; None if the file has no bytes for it.
    pub fn offset_of_address(&self, address: u64) -> Option<u64> {
        self.segments.iter().find_map(|s| {
            let into = address.checked_sub(s.address).filter(|into| *into < s.file_size)?;
            s.offset.checked_add(into)
        })
    }
}

const PAGE: u64 = 4096;
/// A symbol with a longer name is left out. Without a limit, millions of symbols could share one name of megabytes, and
/// each would be read to its end.
const LONGEST_NAME: usize = 4096;
/// The most bytes of names that are read for one table. Names may share bytes, so their table does not limit this.
const MAX_NAME_BYTES: usize = 128 << 20;

fn name_at(names: &[u8], offset: u32) -> Option<&[u8]> {
    let rest = names.get(offset as usize..)?;
    let rest = rest.get(..=LONGEST_NAME).unwrap_or(rest);
    CStr::from_bytes_until_nul(rest).ok().map(CStr::to_bytes)
}

/// See [`ElfFacts::address_of_offset`].
pub fn address_of_offset(segments: &[Segment], offset: u64) -> Option<u64> {
    let holds = |segment: &&Segment| {
        let start = segment.offset & !(PAGE - 1);
        let end = segment.offset.saturating_add(segment.file_size).saturating_add(PAGE - 1) & !(PAGE - 1);
        start <= offset && offset < end
    };
    let segment =
        segments.iter().find(|s| s.executable && holds(s)).or_else(|| segments.iter().find(holds))?;
    Some(offset.wrapping_sub(segment.offset).wrapping_add(segment.address))
}

/// A symbol with a definition in this file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Symbol<'d> {
    pub name: &'d [u8],
    pub address: u64,
    pub size: u64,
    pub kind: SymbolKind,
    pub local: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SymbolKind {
    Function,
    Data,
    /// The name of the source file of the local symbols that follow it.
    File,
}

impl<'d> Symbol<'d> {
    pub fn text(&self) -> &'d str {
        std::str::from_utf8(self.name).unwrap_or("")
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// `.dynsym`: still present after stripping.
    Exported,
    /// `.symtab`
    All,
}

/// An open file. Its reads are bounded, each one and all together, and are kept.
pub struct ElfFile {
    cache: ReadCache<File>,
    /// The reads that are kept, by offset and length (0 for a string). Repeating them is free.
    kept: RefCell<HashSet<(u64, u64)>>,
    left: Cell<u64>,
}

impl ElfFile {
    pub fn new(file: File) -> Self {
        ElfFile { cache: ReadCache::new(file), kept: RefCell::default(), left: Cell::new(MAX_READ_IN_ALL) }
    }

    pub fn parse(&self) -> Measured<Elf<'_, Bounded<'_>>> {
        Elf::parse(Bounded(self))
    }

    fn charge(&self, key: (u64, u64), size: u64) -> Result<(), ()> {
        if !self.kept.borrow_mut().insert(key) {
            return Ok(());
        }
        let left = self.left.get().checked_sub(size);
        self.left.set(left.unwrap_or(0));
        if left.is_none() {
            self.kept.borrow_mut().remove(&key);
        }
        left.map(drop).ok_or(())
    }
}

#[derive(Clone, Copy)]
pub struct Bounded<'d>(&'d ElfFile);

impl<'d> ReadRef<'d> for Bounded<'d> {
    fn len(self) -> Result<u64, ()> {
        ReadRef::len(&self.0.cache)
    }

    fn read_bytes_at(self, offset: u64, size: u64) -> Result<&'d [u8], ()> {
        if size > MAX_READ {
            return Err(());
        }
        self.0.charge((offset, size), size)?;
        self.0.cache.read_bytes_at(offset, size)
    }

    /// Names of sections. A longer one is not read: thousands of them would take a few KiB and several system calls each.
    fn read_bytes_at_until(self, range: std::ops::Range<u64>, delimiter: u8) -> Result<&'d [u8], ()> {
        let start = range.start;
        let end = range.end.min(start.saturating_add(LONGEST_SECTION_NAME as u64 + 1));
        let text = self.0.cache.read_bytes_at_until(start..end, delimiter)?;
        self.0.charge((start, 0), text.len() as u64)?;
        Ok(text)
    }
}

/// An ELF file in memory or in an [`ElfFile`].
pub struct Elf<'d, R: ReadRef<'d>> {
    data: R,
    endian: Endianness,
    pub facts: ElfFacts,
    lifetime: std::marker::PhantomData<&'d ()>,
}

fn malformed(what: &str) -> Absence {
    Absence::new(Reason::Unparsable, format!("malformed ELF file: {what}"))
}

impl<'d, R: ReadRef<'d>> Elf<'d, R> {
    pub fn parse(data: R) -> Measured<Self> {
        let ident = data.read_bytes_at(0, 16).map_err(|()| malformed("shorter than its header"))?;
        if ident[..4] != elf::ELFMAG {
            return Err(Absence::new(Reason::NotApplicable, "not an ELF file"));
        }
        let (endian, facts) = match ident[4] {
            4.. | 0 | 3 => return Err(malformed("unknown class")),
            1 => read_facts::<elf::FileHeader32<Endianness>, R>(data)?,
            2 => read_facts::<elf::FileHeader64<Endianness>, R>(data)?,
        };
        Ok(Elf { data, endian, facts, lifetime: std::marker::PhantomData })
    }

    /// The contents of a section, at most `limit` bytes; None if the section does not exist or has no bytes
    /// in the file.
    pub fn section_bytes(&self, name: &str, limit: u64) -> Option<&'d [u8]> {
        let section = self.facts.section(name)?;
        if section.kind == elf::SHT_NOBITS {
            return None;
        }
        self.data.read_bytes_at(section.offset, section.size.min(limit)).ok()
    }

    /// The file's bytes at one of its own addresses.
    pub fn bytes_at(&self, address: u64, size: u64) -> Option<&'d [u8]> {
        let segment = self.facts.segments.iter().find(|s| {
            address
                .checked_sub(s.address)
                .and_then(|into| into.checked_add(size))
                .is_some_and(|end| end <= s.file_size)
        })?;
        let offset = segment.offset.checked_add(address - segment.address)?;
        self.data.read_bytes_at(offset, size).ok()
    }

    /// Calls `visit` for every symbol that the table defines in this file, in the order of the table.
    pub fn symbols(&self, table: Table, visit: &mut dyn FnMut(Symbol<'d>)) -> Measured<()> {
        if self.facts.is_64 {
            self.walk::<elf::FileHeader64<Endianness>>(table, visit)
        } else {
            self.walk::<elf::FileHeader32<Endianness>>(table, visit)
        }
    }

    fn walk<E: FileHeader<Endian = Endianness>>(
        &self,
        table: Table,
        visit: &mut dyn FnMut(Symbol<'d>),
    ) -> Measured<()> {
        let (kind, name) = match table {
            Table::Exported => (elf::SHT_DYNSYM, "no dynamic symbol table"),
            Table::All => (elf::SHT_SYMTAB, "no symbol table: the file is stripped"),
        };
        let sections = &self.facts.sections;
        let section = sections.iter().find(|s| s.kind == kind);
        let section = section.ok_or_else(|| Absence::new(Reason::NotFound, name))?;
        let entries = section.size / size_of::<E::Sym>() as u64;
        let entries = usize::try_from(entries).map_err(|_| malformed("symbol table"))?;
        let symbols: &'d [E::Sym] =
            self.data.read_slice_at(section.offset, entries).map_err(|()| malformed("symbol table"))?;
        // Names are read as one block: a read per name would need a seek each.
        let names = self.bytes_of(sections.get(section.link)).ok_or_else(|| malformed("symbol names"))?;
        let mut left = MAX_NAME_BYTES;
        for symbol in symbols {
            let kind = match symbol.st_type() {
                elf::STT_FUNC | elf::STT_GNU_IFUNC => SymbolKind::Function,
                elf::STT_FILE => SymbolKind::File,
                elf::STT_OBJECT => SymbolKind::Data,
                _ => continue,
            };
            if kind != SymbolKind::File && symbol.st_shndx(self.endian) == elf::SHN_UNDEF {
                continue;
            }
            let name = name_at(names, symbol.st_name(self.endian));
            let read = name.map_or(LONGEST_NAME, <[u8]>::len) + 1;
            left = left.checked_sub(read).ok_or_else(|| malformed("too many bytes of symbol names"))?;
            let Some(name) = name else { continue };
            visit(Symbol {
                name,
                address: symbol.st_value(self.endian).into(),
                size: symbol.st_size(self.endian).into(),
                kind,
                local: symbol.st_bind() == elf::STB_LOCAL,
            });
        }
        Ok(())
    }

    fn bytes_of(&self, section: Option<&Section>) -> Option<&'d [u8]> {
        let section = section.filter(|s| s.kind != elf::SHT_NOBITS)?;
        self.data.read_bytes_at(section.offset, section.size).ok()
    }
}

/// A file's functions by address. Their names are read from the file on request, so a million functions take
/// 16 MB.
#[derive(Debug)]
pub struct Functions {
    file: File,
    /// `.symtab`, or Go's own table, before the exports: it has more functions.
    tables: Vec<FunctionTable>,
    /// Why Go's own table of a stripped file is not one of them.
    unread: Option<Absence>,
}

#[derive(Debug)]
struct FunctionTable {
    entries: Vec<FunctionEntry>,
    /// The position of the names in the file.
    names: std::ops::Range<u64>,
    kind: elf::SectionType,
    /// The sections with code.
    code: Vec<std::ops::Range<u64>>,
}

#[derive(Clone, Copy, Debug)]
struct FunctionEntry {
    address: u64,
    size: u32,
    name: u32,
}

/// The number of symbols that are read at a time.
const SYMBOL_BLOCK: usize = 16 << 10;

impl Functions {
    /// At most `most` functions; None if the file has more.
    pub fn of(file: &File, most: usize) -> Measured<Option<Functions>> {
        let kept = file.try_clone().map_err(|error| {
            Absence::new(Reason::NotSupported, format!("a file could not be kept open: {error}"))
        })?;
        let data = ElfFile::new(file.try_clone().map_err(|_| malformed("unreadable"))?);
        let elf = data.parse()?;
        let mut tables = Vec::new();
        let mut unread = None;
        let mut left = most;
        for kind in [elf::SHT_SYMTAB, elf::SHT_DYNSYM] {
            let table = if kind == elf::SHT_SYMTAB && !elf.facts.has_symtab() {
                // If Go's table can't be read, there may still be exports.
                let table = elf.go_functions(left);
                unread = table.as_ref().err().filter(|_| elf.facts.is_go()).cloned();
                Ok(table.ok())
            } else if elf.facts.is_64 {
                elf.function_table::<elf::FileHeader64<Endianness>>(&kept, kind, left)
            } else {
                elf.function_table::<elf::FileHeader32<Endianness>>(&kept, kind, left)
            };
            match table {
                // Most exported functions are in `.symtab` too.
                Ok(Some(table)) if table.entries.len() > left && tables.is_empty() => return Ok(None),
                Ok(Some(table)) if table.entries.len() <= left => {
                    left -= table.entries.len();
                    tables.push(table);
                }
                Err(absence) if tables.is_empty() => return Err(absence),
                Ok(_) | Err(_) => {}
            }
        }
        Ok(Some(Functions { file: kept, tables, unread }))
    }

    /// Why the functions of a Go program have no names, although its own table has them; None if they have, or if the file is of
    /// no Go program.
    pub fn unread(&self) -> Option<&Absence> {
        self.unread.as_ref()
    }

    /// The number of functions.
    pub fn len(&self) -> usize {
        self.tables.iter().map(|table| table.entries.len()).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The name of the function at an address, as in the file, at most `limit` bytes.
    pub fn name(&self, address: u64, limit: usize) -> Option<Vec<u8>> {
        self.tables.iter().find_map(|table| {
            let entry = table.at(address)?;
            let start = table.names.start.checked_add(entry.name.into())?;
            let size = table.names.end.checked_sub(start)?.min(limit as u64);
            let mut name = vec![0; size as usize];
            let read = read_up_to(&self.file, &mut name, start)?;
            name.truncate(read);
            let end = name.iter().position(|&b| b == 0).unwrap_or(read);
            name.truncate(end);
            (!name.is_empty()).then_some(name)
        })
    }
}

impl FunctionTable {
    fn at(&self, address: u64) -> Option<FunctionEntry> {
        /// Only this many functions before the address are tried: an earlier one would have to contain all
        /// those between.
        const NESTED: usize = 16;
        let behind = self.entries.partition_point(|entry| entry.address <= address);
        let near = self.entries[..behind].iter().rev().take(NESTED);
        let nearest = near.clone().next().filter(|entry| {
            // `.dynsym` has gaps: the bytes after a function of unknown size may belong to any function. The
            // same holds for an address in another section.
            let together = |section: &std::ops::Range<u64>| {
                section.contains(&entry.address) && section.contains(&address)
            };
            let within = self.kind == elf::SHT_SYMTAB && self.code.iter().any(together);
            entry.size == 0 && (within || entry.address == address)
        });
        near.clone().find(|entry| address - entry.address < u64::from(entry.size)).or(nearest).copied()
    }
}

fn read_up_to(file: &File, into: &mut [u8], offset: u64) -> Option<usize> {
    let mut have = 0;
    while have < into.len() {
        match file.read_at(&mut into[have..], offset.checked_add(have as u64)?) {
            Ok(0) => break,
            Ok(count) => have += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
    Some(have)
}

impl<'d, R: ReadRef<'d>> Elf<'d, R> {
    /// A copy of a section's bytes that is not kept; None if the section is absent. The caller bounds its
    /// size.
    pub fn section_copy(&self, file: &File, name: &str) -> Option<Vec<u8>> {
        let section = self.facts.section(name)?;
        if section.kind == elf::SHT_NOBITS {
            return None;
        }
        // Not more than the file has: the size in a header is only a claim.
        let there = file.metadata().ok()?.len().saturating_sub(section.offset);
        let mut bytes = vec![0; section.size.min(there) as usize];
        let read = read_up_to(file, &mut bytes, section.offset)?;
        bytes.truncate(read);
        Some(bytes)
    }

    /// Up to `most` + 1 functions of a table, by address; None if there is no such table.
    fn function_table<E: FileHeader<Endian = Endianness>>(
        &self,
        file: &File,
        kind: elf::SectionType,
        most: usize,
    ) -> Measured<Option<FunctionTable>> {
        let sections = &self.facts.sections;
        let Some(section) = sections.iter().find(|s| s.kind == kind) else {
            return Ok(None);
        };
        let Some(names) = sections.get(section.link) else {
            return Err(malformed("symbol names"));
        };
        // The limit also bounds the time: a sparse file may claim any number of symbols.
        let size = size_of::<E::Sym>();
        let count = (section.size / size as u64).min(MAX_SYMBOLS);
        let mut entries = Vec::new();
        let mut block = vec![0; SYMBOL_BLOCK * size];
        let mut index = 0;
        while index < count && entries.len() <= most {
            let wanted = ((count - index) as usize).min(SYMBOL_BLOCK) * size;
            let offset = section.offset.checked_add(index * size as u64);
            let read = offset
                .and_then(|offset| read_up_to(file, &mut block[..wanted], offset))
                .ok_or_else(|| malformed("symbol table"))?;
            let whole = read / size;
            if whole == 0 {
                break;
            }
            let Ok(symbols) = object::pod::slice_from_all_bytes::<E::Sym>(&block[..whole * size]) else {
                break;
            };
            for symbol in symbols {
                let function =
                    matches!(symbol.st_type(), elf::STT_FUNC | elf::STT_GNU_IFUNC | elf::STT_NOTYPE);
                let address: u64 = symbol.st_value(self.endian).into();
                let own = symbol.st_shndx(self.endian).index();
                let own = own.and_then(|index| sections.get(usize::from(index)));
                if !function || address == 0 || !own.is_some_and(|section| section.executable) {
                    continue;
                }
                let size: u64 = symbol.st_size(self.endian).into();
                entries.push(FunctionEntry {
                    address,
                    size: size.try_into().unwrap_or(u32::MAX),
                    name: symbol.st_name(self.endian),
                });
            }
            index += whole as u64;
        }
        // Of several functions at one address, the last wins: one with a size, and among those the first in
        // the file.
        entries.reverse();
        entries.sort_by_key(|entry| (entry.address, entry.size > 0));
        let code = sections.iter().filter(|section| section.executable);
        Ok(Some(FunctionTable {
            entries,
            code: code.map(|s| s.address..s.address.saturating_add(s.size)).collect(),
            names: names.offset..names.offset.saturating_add(names.size),
            kind,
        }))
    }
}

fn read_facts<'d, E: FileHeader<Endian = Endianness>, R: ReadRef<'d>>(
    data: R,
) -> Measured<(Endianness, ElfFacts)> {
    let header = E::parse(data).map_err(|error| malformed(&error.to_string()))?;
    let endian = header.endian().map_err(|error| malformed(&error.to_string()))?;
    let segments = header.program_headers(endian, data).map_err(|error| malformed(&error.to_string()))?;
    if segments.len() > MAX_SEGMENTS {
        return Err(malformed("too many segments"));
    }

    let mut facts = ElfFacts {
        kind: ElfKind::Other,
        machine: header.e_machine(endian).0,
        is_64: header.is_type_64(),
        interpreter: None,
        build_id: None,
        soname: None,
        needed: Vec::new(),
        segments: Vec::new(),
        sections: Vec::new(),
    };
    let mut dynamic: &[E::Dyn] = &[];
    let mut seen_dynamic = false;
    let mut notes_left = MAX_NOTES;
    for segment in segments {
        match segment.p_type(endian) {
            elf::PT_LOAD => facts.segments.push(Segment {
                offset: segment.p_offset(endian).into(),
                address: segment.p_vaddr(endian).into(),
                file_size: segment.p_filesz(endian).into(),
                memory_size: segment.p_memsz(endian).into(),
                executable: segment.p_flags(endian).0 & elf::PF_X.0 != 0,
            }),
            elf::PT_INTERP => {
                // A path: longer than PATH_MAX is not valid.
                let size: u64 = segment.p_filesz(endian).into();
                let bytes =
                    data.read_bytes_at(segment.p_offset(endian).into(), size.min(4096)).unwrap_or(&[]);
                facts.interpreter = Some(until_nul(bytes));
            }
            // The loader uses one PT_DYNAMIC. A file may list thousands of any size.
            elf::PT_DYNAMIC if !seen_dynamic => {
                seen_dynamic = true;
                dynamic = segment.dynamic(endian, data).ok().flatten().unwrap_or(&[]);
                dynamic = &dynamic[..dynamic.len().min(MAX_DYNAMIC)];
            }
            elf::PT_NOTE if facts.build_id.is_none() && notes_left > 0 => {
                notes_left -= 1;
                let size: u64 = segment.p_filesz(endian).into();
                if size <= MAX_NOTE_BYTES {
                    facts.build_id = build_id(segment.notes(endian, data).ok().flatten(), endian);
                }
            }
            _ => {}
        }
    }

    facts.sections = sections_of(header, endian, data);
    let pie_flag = read_dynamic::<E, R>(&mut facts, endian, data, dynamic);
    facts.kind = match (header.e_type(endian), facts.interpreter.is_some()) {
        (elf::ET_EXEC, true) => ElfKind::Executable,
        (elf::ET_EXEC, false) => ElfKind::StaticExecutable,
        // A shared library that can also be run (libc itself) has a loader too, but also a soname.
        (elf::ET_DYN, true) if facts.soname.is_none() || pie_flag => ElfKind::PieExecutable,
        (elf::ET_DYN, false) if pie_flag => ElfKind::StaticPieExecutable,
        (elf::ET_DYN, _) => ElfKind::SharedLibrary,
        _ => ElfKind::Other,
    };
    Ok((endian, facts))
}

/// A file without sections (removed by a packer) still has its segments. With a broken table there are no names
/// and symbols, and the readers of those report it.
fn sections_of<'d, E: FileHeader<Endian = Endianness>, R: ReadRef<'d>>(
    header: &E,
    endian: Endianness,
    data: R,
) -> Vec<Section> {
    let table = match header.sections(endian, data) {
        Ok(table) if table.len() <= MAX_SECTIONS => table,
        _ => return Vec::new(),
    };
    let section = |section: &E::SectionHeader| {
        let name = table.section_name(endian, section).unwrap_or(b"");
        Section {
            name: String::from_utf8_lossy(&name[..name.len().min(LONGEST_SECTION_NAME)]).into_owned(),
            address: section.sh_addr(endian).into(),
            offset: section.sh_offset(endian).into(),
            size: section.sh_size(endian).into(),
            executable: section.sh_flags(endian).0 & elf::SHF_EXECINSTR.0 != 0,
            kind: section.sh_type(endian),
            link: section.sh_link(endian) as usize,
        }
    };
    table.iter().map(section).collect()
}

/// Reads the names in the dynamic section. Returns whether it marks a position-independent executable.
fn read_dynamic<'d, E: FileHeader<Endian = Endianness>, R: ReadRef<'d>>(
    facts: &mut ElfFacts,
    endian: Endianness,
    data: R,
    dynamic: &[E::Dyn],
) -> bool {
    let names = dynamic_strings::<E, R>(endian, data, dynamic, &facts.segments);
    let mut pie_flag = false;
    for entry in dynamic {
        let value: u64 = entry.d_val(endian).into();
        let text = || -> Option<String> {
            let rest = names.get(usize::try_from(value).ok()?..)?;
            Some(until_nul(&rest[..rest.len().min(LONGEST_FILE_NAME)]))
        };
        match entry.d_tag(endian) {
            elf::DT_NEEDED if facts.needed.len() < MAX_NEEDED => facts.needed.extend(text()),
            elf::DT_SONAME => facts.soname = text(),
            elf::DT_FLAGS_1 => pie_flag = value & elf::DF_1_PIE.0 != 0,
            elf::DT_NULL => break,
            _ => {}
        }
    }
    pie_flag
}

/// The string table of the dynamic section, found through the segments: it needs no section table.
fn dynamic_strings<'d, E: FileHeader<Endian = Endianness>, R: ReadRef<'d>>(
    endian: Endianness,
    data: R,
    dynamic: &[E::Dyn],
    segments: &[Segment],
) -> &'d [u8] {
    let value =
        |tag| dynamic.iter().find(|entry| entry.d_tag(endian) == tag).map(|entry| entry.d_val(endian).into());
    let read = || -> Option<&'d [u8]> {
        let address: u64 = value(elf::DT_STRTAB)?;
        let size: u64 = value(elf::DT_STRSZ)?;
        let segment = segments
            .iter()
            .find(|s| address.checked_sub(s.address).is_some_and(|into| into < s.file_size))?;
        let offset = segment.offset.checked_add(address - segment.address)?;
        data.read_bytes_at(offset, size).ok()
    };
    read().unwrap_or(&[])
}

fn build_id<E: FileHeader<Endian = Endianness>>(
    notes: Option<object::read::elf::NoteIterator<'_, E>>,
    endian: Endianness,
) -> Option<String> {
    let mut notes = notes?;
    while let Ok(Some(note)) = notes.next() {
        if note.name() == elf::ELF_NOTE_GNU && note.n_type(endian) == elf::NT_GNU_BUILD_ID {
            // 20 bytes are usual; the format sets no limit.
            return (note.desc().len() <= 64)
                .then(|| note.desc().iter().map(|b| format!("{b:02x}")).collect());
        }
    }
    None
}

fn until_nul(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// Calls every reader of a file and ignores the results.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn ask_everything(bytes: &[u8]) {
    let Ok(elf) = Elf::parse(bytes) else { return };
    let _ = (elf.has_go_functions(), elf.go_functions(1000));
    for table in [Table::Exported, Table::All] {
        let _ = elf.symbols(table, &mut |symbol| _ = symbol.text());
    }
    for section in &elf.facts.sections {
        let _ = elf.section_bytes(&section.name, 1 << 20);
        let _ = elf.bytes_at(section.address, section.size);
        let _ = elf.facts.address_of_offset(section.offset);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write;
    use std::sync::LazyLock;

    /// A small real file that every test machine has: the shell's `sleep`, dynamically linked.
    static REAL: LazyLock<Vec<u8>> = LazyLock::new(|| std::fs::read("/bin/sleep").unwrap_or_default());

    #[test]
    fn a_real_file_reads_whole_and_by_parts_alike() {
        let whole = Elf::parse(&REAL[..]).expect("sleep is an ELF file");
        let file = ElfFile::new(File::open("/bin/sleep").expect("open"));
        let parts = file.parse().expect("the same file");
        assert_eq!(whole.facts, parts.facts);
        let facts = &parts.facts;
        assert!(matches!(facts.kind, ElfKind::PieExecutable | ElfKind::Executable));
        assert!(facts.interpreter.as_deref().is_some_and(|path| path.starts_with('/')));
        assert!(
            facts
                .build_id
                .as_deref()
                .is_none_or(|id| id.len() >= 16 && id.bytes().all(|b| b.is_ascii_hexdigit()))
        );
        assert!(facts.needed.iter().any(|name| name.starts_with("libc.")));
        assert_eq!(facts.soname, None);
        let text = facts.section(".text").expect("code");
        assert!(text.executable);
        assert_eq!(facts.address_of_offset(text.offset), Some(text.address));
        assert_eq!(facts.offset_of_address(text.address), Some(text.offset));
        assert_eq!(facts.offset_of_address(u64::MAX), None);
        assert_eq!(parts.bytes_at(text.address, 16), parts.section_bytes(".text", 16));
    }

    #[test]
    fn the_c_library_exports_malloc() {
        let path = "/usr/lib/x86_64-linux-gnu/libc.so.6";
        let Ok(file) = File::open(path) else {
            println!("skipped: no {path} on this machine");
            return;
        };
        let file = ElfFile::new(file);
        let elf = file.parse().expect("libc");
        assert_eq!(elf.facts.kind, ElfKind::SharedLibrary, "though it asks for a loader");
        assert_eq!(elf.facts.soname.as_deref(), Some("libc.so.6"));
        let mut malloc = None;
        elf.symbols(Table::Exported, &mut |symbol| {
            if symbol.name == b"malloc" {
                malloc = Some(symbol);
            }
        })
        .expect("exports");
        let malloc = malloc.expect("malloc");
        assert_eq!((malloc.kind, malloc.local), (SymbolKind::Function, false));
        assert!(malloc.address > 0 && malloc.size > 0);
    }

    #[test]
    fn names_are_read_up_to_a_limit() {
        let longest = [&[b'x'; LONGEST_NAME][..], b"\0"].concat();
        assert_eq!(name_at(&longest, 0).map(<[u8]>::len), Some(LONGEST_NAME));
        assert_eq!(name_at(&longest, LONGEST_NAME as u32), Some(&b""[..]));
        assert_eq!(name_at(&[b"x", &longest[..]].concat(), 0), None);
        assert_eq!(name_at(b"never ends", 0), None);
        assert_eq!(name_at(&longest, u32::MAX), None);
    }

    /// A 64-bit file with such tables behind its header.
    fn header(program_headers: u16, section_headers: u16) -> Vec<u8> {
        let mut bytes = vec![0u8; 64];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(0, b"\x7fELF\x02\x01\x01");
        put(20, &1u32.to_le_bytes());
        if program_headers > 0 {
            put(32, &64u64.to_le_bytes());
        }
        if section_headers > 0 {
            put(40, &64u64.to_le_bytes());
        }
        for (at, value) in [(52, 64), (54, 56), (56, program_headers), (58, 64), (60, section_headers)] {
            put(at, &value.to_le_bytes());
        }
        // The names of the sections are in section 2.
        put(62, &2u16.to_le_bytes());
        bytes
    }

    /// Functions that all have one name, of the greatest length.
    fn of_one_name(functions: usize) -> Vec<u8> {
        let names = [&[b'x'; LONGEST_NAME][..], b"\0"].concat();
        let mut symbol = [0u8; 24];
        // STT_FUNC, in section 1.
        (symbol[4], symbol[6]) = (2, 1);
        let symbols = symbol.repeat(functions);
        let section = |kind: u32, offset: usize, size: usize, link: u32| {
            let mut bytes = [0u8; 64];
            bytes[4..8].copy_from_slice(&kind.to_le_bytes());
            bytes[24..32].copy_from_slice(&(offset as u64).to_le_bytes());
            bytes[32..40].copy_from_slice(&(size as u64).to_le_bytes());
            bytes[40..44].copy_from_slice(&link.to_le_bytes());
            bytes
        };
        let mut file = header(0, 3);
        let at = file.len() + 3 * 64;
        file.extend(section(0, 0, 0, 0));
        // SHT_DYNSYM and SHT_STRTAB.
        file.extend(section(11, at + names.len(), symbols.len(), 2));
        file.extend(section(3, at, names.len(), 0));
        [file, names, symbols].concat()
    }

    #[test]
    fn names_that_share_bytes_are_read_up_to_a_limit() {
        let read = |functions: usize| {
            let bytes = of_one_name(functions);
            let elf = Elf::parse(&bytes[..]).unwrap();
            let mut seen = 0;
            let all = elf.symbols(Table::Exported, &mut |_| seen += 1);
            (seen, all.is_ok())
        };
        assert_eq!(read(1_000), (1_000, true));
        let most = MAX_NAME_BYTES / (LONGEST_NAME + 1);
        assert_eq!(read(most + 1), (most, false));
    }

    #[test]
    fn names_of_sections_are_read_up_to_a_limit() {
        let read = |length: usize| {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(&[&vec![b'x'; length][..], b"\0"].concat()).unwrap();
            let file = ElfFile::new(file);
            Bounded(&file).read_bytes_at_until(0..length as u64 + 1, 0).map(<[u8]>::len)
        };
        assert_eq!(read(LONGEST_SECTION_NAME), Ok(LONGEST_SECTION_NAME));
        assert_eq!(read(LONGEST_SECTION_NAME + 1), Err(()));
    }

    #[test]
    fn a_build_identifier_is_in_one_of_the_first_notes() {
        let identifier = |nth: u16| {
            let mut file = header(nth, 0);
            let note = [4u32, 2, 3].map(u32::to_le_bytes).concat();
            let note = [&note[..], b"GNU\0", b"\xab\xcd\0\0"].concat();
            let at = file.len() + usize::from(nth) * 56;
            for other in 1..=nth {
                let size = if other == nth { note.len() } else { 0 };
                let mut segment = [0u8; 56];
                // PT_NOTE, aligned to 4.
                (segment[0], segment[48]) = (4, 4);
                segment[8..16].copy_from_slice(&(at as u64).to_le_bytes());
                segment[32..40].copy_from_slice(&(size as u64).to_le_bytes());
                file.extend(segment);
            }
            file.extend(&note);
            Elf::parse(&file[..]).unwrap().facts.build_id
        };
        assert_eq!(identifier(MAX_NOTES as u16).as_deref(), Some("abcd"));
        assert_eq!(identifier(MAX_NOTES as u16 + 1), None);
    }

    fn own() -> File {
        File::open("/proc/self/exe").unwrap()
    }

    #[test]
    fn functions_are_found_by_any_address_in_them() {
        #[inline(never)]
        fn landmark() -> u64 {
            std::hint::black_box(1)
        }
        assert_eq!(landmark(), 1);
        // Compared with a library that parses whole files.
        let bytes = std::fs::read("/proc/self/exe").unwrap();
        let file = object::File::parse(&*bytes).unwrap();
        use object::{Object, ObjectSymbol};
        let symbol = file
            .symbols()
            .find(|s| s.name().is_ok_and(|n| n.contains("landmark") && n.contains("functions_are_found")))
            .unwrap();
        let functions = Functions::of(&own(), 1 << 20).unwrap().unwrap();
        let name = |address: u64| functions.name(address, 4096);
        let expected = symbol.name_bytes().unwrap();
        assert_eq!(name(symbol.address()).as_deref(), Some(expected));
        assert_eq!(name(symbol.address() + symbol.size() - 1).as_deref(), Some(expected));
        assert_eq!(functions.name(symbol.address(), 4).as_deref(), Some(&expected[..4]));
        assert_eq!(name(1), None);
    }

    #[test]
    fn more_functions_than_there_is_room_for_are_not_read() {
        let all = Functions::of(&own(), usize::MAX).unwrap().unwrap().len();
        assert!(all > 100);
        assert!(Functions::of(&own(), all).unwrap().is_some());
        assert!(Functions::of(&own(), all - 1).unwrap().is_none());
        assert!(Functions::of(&File::open("/proc/self/status").unwrap(), 10).is_err());
    }

    #[test]
    fn overlapping_functions_are_named_by_the_one_that_contains_the_address() {
        let entry = |address, size| FunctionEntry { address, size, name: 0 };
        let table = |kind| FunctionTable {
            entries: vec![entry(0x10, 0x40), entry(0x20, 0), entry(0x30, 8), entry(0x60, 0)],
            names: 0..0,
            kind,
            code: vec![0..0x64, 0x64..0x100],
        };
        let at = |kind, address| table(kind).at(address).map(|entry| entry.address);
        for kind in [elf::SHT_SYMTAB, elf::SHT_DYNSYM] {
            assert_eq!(at(kind, 0xf), None);
            assert_eq!(at(kind, 0x28), Some(0x10), "a label inside a function");
            assert_eq!(at(kind, 0x37), Some(0x30));
            assert_eq!(at(kind, 0x38), Some(0x10));
            assert_eq!(at(kind, 0x50), None);
            assert_eq!(at(kind, 0x60), Some(0x60));
        }
        assert_eq!(at(elf::SHT_SYMTAB, 0x61), Some(0x60));
        assert_eq!(at(elf::SHT_DYNSYM, 0x61), None, "exports have gaps");
        assert_eq!(at(elf::SHT_SYMTAB, 0x65), None, "another section");
    }

    #[test]
    fn reads_are_bounded_in_all() {
        // A sparse file: its length costs nothing.
        let sparse = tempfile::tempfile().unwrap();
        sparse.set_len(1 << 40).unwrap();
        let file = ElfFile::new(sparse);
        let data = Bounded(&file);
        assert!(data.read_bytes_at(0, MAX_READ + 1).is_err());
        file.left.set(3 << 20);
        let mib = |at: u64| data.read_bytes_at(at << 20, 1 << 20).is_ok();
        assert!(mib(0) && mib(1) && mib(1) && mib(0) && mib(2));
        assert!(!mib(3) && !mib(3), "the budget is spent");
        assert!(mib(1), "what is there costs nothing");
    }

    #[test]
    fn only_the_first_dynamic_section_is_read() {
        let mut bytes = REAL.clone();
        let before = Elf::parse(&bytes[..]).unwrap().facts;
        // Turns every segment after PT_DYNAMIC (2) into another one.
        let (table, size, count) = (64, 56, usize::from(bytes[56]));
        let kinds: Vec<usize> = (0..count).map(|n| table + n * size).collect();
        let first = kinds.iter().position(|&at| bytes[at] == 2).unwrap();
        for &at in &kinds[first + 1..] {
            bytes[at] = 2;
        }
        assert_eq!(Elf::parse(&bytes[..]).unwrap().facts.needed, before.needed);
    }

    #[test]
    fn a_file_that_is_not_elf_is_an_absence() {
        assert_eq!(Elf::parse(&b""[..]).err().map(|a| a.reason), Some(Reason::Unparsable));
        assert_eq!(
            Elf::parse(&b"#!/bin/sh\necho\necho\n"[..]).err().map(|a| a.reason),
            Some(Reason::NotApplicable)
        );
        assert_eq!(
            Elf::parse(&b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0"[..]).err().map(|a| a.reason),
            Some(Reason::Unparsable)
        );
        assert_eq!(
            Elf::parse(&[b'\x7f', b'E', b'L', b'F', 9, 9, 9, 9, 0, 0, 0, 0, 0, 0, 0, 0][..])
                .err()
                .map(|a| a.reason),
            Some(Reason::Unparsable)
        );
    }

    #[test]
    fn an_executable_segment_wins_the_page_that_it_shares() {
        let segment = |offset, address, file_size, executable| Segment {
            offset,
            address,
            file_size,
            memory_size: file_size,
            executable,
        };
        let segments = [segment(0, 0x400000, 0x1800, false), segment(0x1800, 0x402800, 0x1000, true)];
        assert_eq!(address_of_offset(&segments, 0x1000), Some(0x402000));
        assert_eq!(address_of_offset(&segments, 0x500), Some(0x400500));
        assert_eq!(address_of_offset(&segments, 0x9000), None);
        let absurd = [segment(u64::MAX, u64::MAX, u64::MAX, true)];
        assert_eq!(address_of_offset(&absurd, 5), None);
    }

    proptest! {
        #[test]
        fn any_cut_of_a_real_file_is_survived(cut in 0..REAL.len().max(1)) {
            ask_everything(&REAL[..cut.min(REAL.len())]);
        }

        #[test]
        fn any_damage_to_a_real_file_is_survived(
            damage in proptest::collection::vec((0..4096usize, any::<u8>()), 1..40),
            tail in proptest::collection::vec((0..4096usize, any::<u8>()), 0..40),
        ) {
            // Headers are at the start, the section table at the end.
            let mut bytes = REAL.clone();
            let length = bytes.len();
            for (at, value) in damage {
                if at < length { bytes[at] = value; }
            }
            for (back, value) in tail {
                if back < length { bytes[length - 1 - back] = value; }
            }
            ask_everything(&bytes);
        }
    }
}
