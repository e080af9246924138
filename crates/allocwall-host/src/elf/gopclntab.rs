//! The functions of a Go program by its own table, `.gopclntab`. The runtime needs it, so stripping leaves it.
//!
//! The layout since Go 1.16 is in runtime/symtab.go and cmd/link/internal/ld/pcln.go: a header, the names, other tables, and the
//! list of functions. For each function, the list has its start and the place of its record; behind the last one, the end of the
//! code. A record repeats the start, and has the offset of the name.

use super::{Elf, FunctionEntry, FunctionTable, MAX_READ, Section, malformed};
use allocwall_model::units::{Absence, Measured, Reason};
use object::elf;
use object::read::ReadRef;
use object::read::elf::Rela;
use object::{Endian, Endianness};
use std::ops::Range;

/// The first number of a header: internal/abi/symtab.go. The format of Go 1.20 is that of 1.18.
const GO_1_20: u64 = 0xffff_fff1;
const GO_1_18: u64 = 0xffff_fff0;
const GO_1_16: u64 = 0xffff_fffa;
const GO_1_2: u64 = 0xffff_fffb;
/// The most bytes of a header.
const HEADER: u64 = 8 + 8 * 8;
/// The most functions; large programs have two hundred thousand.
const MOST_FUNCTIONS: u64 = 2 << 20;
/// Words before the start of the code: in `moduledata` of runtime/symtab.go, and behind the first 8 bytes of a header.
const TEXT_IN_MODULE: usize = 22;
const TEXT_IN_HEADER: usize = 2;

fn broken() -> Absence {
    malformed("Go's function table")
}

/// How a file writes numbers: the order of their bytes, and the bytes of a word.
#[derive(Clone, Copy)]
struct Numbers {
    endian: Endianness,
    word: usize,
}

impl Numbers {
    /// A number of 4 or 8 bytes.
    fn read(self, bytes: &[u8], at: usize, size: usize) -> Option<u64> {
        let rest = bytes.get(at..)?;
        match size {
            4 => Some(self.endian.read_u32(*rest.first_chunk()?).into()),
            _ => Some(self.endian.read_u64(*rest.first_chunk()?)),
        }
    }
}

struct Header {
    /// The list has 4-byte offsets from the start of the code: since 1.18. Before, it has addresses.
    has_offsets: bool,
    functions: u64,
    /// Offsets from the header.
    names: Range<u64>,
    list: u64,
}

impl Header {
    /// None if no known header is here. `length`: the bytes from the header to the end of its section.
    fn parse(bytes: &[u8], length: u64, numbers: Numbers) -> Option<Header> {
        let has_offsets = match numbers.read(bytes, 0, 4)? {
            GO_1_20 | GO_1_18 => true,
            GO_1_16 => false,
            _ => return None,
        };
        // The sizes of the shortest instruction and of a word.
        let [0, 0, 1 | 2 | 4, word] = *bytes.get(4..8)? else {
            return None;
        };
        let field = |nth: usize| numbers.read(bytes, 8 + nth * numbers.word, numbers.word);
        let names = if has_offsets { 3 } else { 2 };
        let header = Header {
            has_offsets,
            functions: field(0)?,
            names: field(names)?..field(names + 1)?,
            list: field(names + 4)?,
        };
        let in_order = header.names.start <= header.names.end && header.names.end <= header.list;
        let fits = usize::from(word) == numbers.word && header.list < length;
        (in_order && fits && (1..=MOST_FUNCTIONS).contains(&header.functions)).then_some(header)
    }

    /// The bytes of a number in the list.
    fn field(&self, numbers: Numbers) -> usize {
        if self.has_offsets { 4 } else { numbers.word }
    }

    /// Up to `most` + 1 functions, by address; None if a number is out of order or leads out of its table.
    fn entries(&self, list: &[u8], text: u64, numbers: Numbers, most: usize) -> Option<Vec<FunctionEntry>> {
        let size = self.field(numbers);
        let number = |at: usize| numbers.read(list, at, size);
        let count = usize::try_from(self.functions).ok()?.min(most.saturating_add(1));
        let mut entries = Vec::new();
        for nth in 0..count {
            let at = 2 * nth * size;
            // A function ends where the next one starts.
            let (start, end) = (number(at)?, number(at + 2 * size)?);
            let record = usize::try_from(number(at + size)?).ok()?;
            let name = numbers.read(list, record.checked_add(size)?, 4)?;
            if number(record)? != start || name >= self.names.end - self.names.start {
                return None;
            }
            entries.push(FunctionEntry {
                address: text.checked_add(start)?,
                size: end.checked_sub(start)?.try_into().ok()?,
                name: name.try_into().ok()?,
            });
        }
        Some(entries)
    }
}

/// A table in a file.
struct GoTable {
    header: Header,
    /// The header's offset in the file.
    at: u64,
    /// The bytes of the list and of what is behind it in the section.
    list_bytes: u64,
    /// The address that offsets count from.
    text: u64,
    /// The end of the segment with the code.
    code_end: u64,
}

impl<'d, R: ReadRef<'d>> Elf<'d, R> {
    /// The file has a function table of Go whose header can be read. The list may still be broken: see [`Functions::unread`].
    ///
    /// [`Functions::unread`]: super::Functions::unread
    pub fn has_go_functions(&self) -> bool {
        self.go_table().is_ok()
    }

    /// Up to `most` + 1 functions of Go's table, by address.
    pub(super) fn go_functions(&self, most: usize) -> Measured<FunctionTable> {
        let GoTable { header, at, list_bytes, text, code_end } = self.go_table()?;
        let list = self.data.read_bytes_at(at.saturating_add(header.list), list_bytes);
        let list = list.map_err(|()| broken())?;
        let entries = header.entries(list, text, self.numbers(), most).ok_or_else(broken)?;
        let end = entries.last().map(|entry| entry.address.saturating_add(entry.size.into()));
        if end.is_none_or(|end| end > code_end) {
            return Err(broken());
        }
        Ok(FunctionTable {
            entries,
            names: at.saturating_add(header.names.start)..at.saturating_add(header.names.end),
            kind: elf::SHT_PROGBITS,
            code: Vec::new(),
        })
    }

    fn numbers(&self) -> Numbers {
        Numbers { endian: self.endian, word: if self.facts.is_64 { 8 } else { 4 } }
    }

    /// A number in the file.
    fn number(&self, offset: u64, size: usize) -> Option<u64> {
        let bytes = self.data.read_bytes_at(offset, size as u64).ok()?;
        self.numbers().read(bytes, 0, size)
    }

    /// Reads little, except in a position-independent file: its relocations and, before Go 1.26, the section with the table.
    fn go_table(&self) -> Measured<GoTable> {
        if !self.facts.is_go() {
            return Err(Absence::new(Reason::NotApplicable, "not a Go program"));
        }
        let (section, into, header) = self.go_header()?;
        let list_bytes = section.size - into - header.list;
        if list_bytes > MAX_READ {
            let detail = format!("Go's function table has more than {} MiB", MAX_READ >> 20);
            return Err(Absence::new(Reason::TooCostly, detail));
        }
        let at = section.offset.saturating_add(into);
        let text = if header.has_offsets { self.go_text(section, into) } else { Some(0) };
        let text = text.ok_or_else(|| malformed("start of Go's code"))?;
        // Zero in position-independent programs of Go 1.16 and 1.17: the loader writes the addresses.
        let first = self.number(at.saturating_add(header.list), header.field(self.numbers()));
        let first = first.and_then(|first| text.checked_add(first)).filter(|first| *first > 0);
        let first = first.ok_or_else(|| malformed("start of Go's code"))?;
        let holds = |address: u64, size: u64| first.checked_sub(address).is_some_and(|into| into < size);
        let code = self.facts.segments.iter().find(|s| s.executable && holds(s.address, s.memory_size));
        let code = code.ok_or_else(|| malformed("start of Go's code"))?;
        let code_end = code.address.saturating_add(code.memory_size);
        Ok(GoTable { header, at, list_bytes, text, code_end })
    }

    /// The table's section, its offset in it, and its header.
    fn go_header(&self) -> Measured<(&Section, u64, Header)> {
        let numbers = self.numbers();
        let mut names = [".gopclntab", ".data.rel.ro.gopclntab"].into_iter();
        if let Some(section) = names.find_map(|name| self.facts.section(name)) {
            let bytes = self.data.read_bytes_at(section.offset, section.size.min(HEADER));
            let bytes = bytes.map_err(|()| broken())?;
            let header = Header::parse(bytes, section.size, numbers);
            return header.map(|header| (section, 0, header)).ok_or_else(|| {
                match numbers.read(bytes, 0, 4) {
                    Some(GO_1_2) => {
                        Absence::new(Reason::NotSupported, "Go's function table is read since Go 1.16")
                    }
                    _ => broken(),
                }
            });
        }
        // Up to Go 1.25, a C linker that makes a position-independent program merges the table with other data.
        let none = || Absence::new(Reason::NotFound, "no function table of Go");
        let section = self.facts.section(".data.rel.ro").ok_or_else(none)?;
        let bytes = self.bytes_of(Some(section)).ok_or_else(broken)?;
        let header_at = |at: usize| {
            let rest = &bytes[at..];
            Some((section, at as u64, Header::parse(rest, rest.len() as u64, numbers)?))
        };
        (0..bytes.len()).step_by(8).find_map(header_at).ok_or_else(none)
    }

    /// The address that the table's offsets count from, which is not always the start of `.text`. Since Go 1.26 only
    /// `moduledata` has it, in a section of its own; before, the header has it too.
    fn go_text(&self, table: &Section, into: u64) -> Option<u64> {
        let word = self.numbers().word;
        let (section, into) = match self.facts.section(".go.module") {
            Some(module) => (module, (TEXT_IN_MODULE * word) as u64),
            None => (table, into.checked_add((8 + TEXT_IN_HEADER * word) as u64)?),
        };
        // Where the loader writes, the file may have anything.
        let text = section.address.checked_add(into).and_then(|address| self.relocated(address));
        let text = text.or_else(|| self.number(section.offset.checked_add(into)?, word));
        text.filter(|text| *text > 0)
    }

    /// What the loader writes to an address of a position-independent file, without the bias.
    fn relocated(&self, address: u64) -> Option<u64> {
        let table = self.facts.section(".rela.dyn").filter(|_| self.facts.is_64)?;
        let count = usize::try_from(table.size).ok()? / size_of::<elf::Rela64<Endianness>>();
        let entries: &'d [elf::Rela64<Endianness>] = self.data.read_slice_at(table.offset, count).ok()?;
        let entry = entries.iter().find(|entry| entry.r_offset(self.endian) == address)?;
        entry.r_addend(self.endian).try_into().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elf::{ElfFile, Functions, SymbolKind, Table, ask_everything, until_nul};
    use proptest::prelude::*;
    use std::fs::File;
    use std::io::Write;
    use std::path::Path;
    use std::process::Command;

    const NAMES: &[u8] = b"runtime.mallocgc\0main.main\0";
    const TEXT: u64 = 0x1000;

    /// A table of two functions, 16 and 48 bytes long. `text` is in the header, if it has a place for that.
    fn table(magic: u64, text: u64) -> Vec<u8> {
        let old = magic == GO_1_16;
        let number = |number: u64| number.to_le_bytes()[..if old { 8 } else { 4 }].to_vec();
        let size = number(0).len() as u64;
        let base = if old { TEXT } else { 0 };
        let header = if old { HEADER - 8 } else { HEADER };
        let list = header + NAMES.len() as u64;
        let mut words = vec![2, 0];
        if !old {
            words.push(text);
        }
        words.extend([header, list, list, list, list]);
        let mut bytes = [&magic.to_le_bytes()[..4], &[0, 0, 1, 8]].concat();
        bytes.extend(words.iter().flat_map(|word: &u64| word.to_le_bytes()));
        bytes.extend_from_slice(NAMES);
        let record = 5 * size;
        for entry in [base, record, base + 0x10, record + size + 4, base + 0x40] {
            bytes.extend(number(entry));
        }
        for (start, name) in [(base, 0_u32), (base + 0x10, 17)] {
            bytes.extend(number(start));
            bytes.extend(name.to_le_bytes());
        }
        bytes
    }

    type Part = (&'static str, u64, Vec<u8>);

    /// A 64-bit program with these sections, and a segment of 64 bytes of code at `TEXT`.
    fn program(sections: &[Part]) -> Vec<u8> {
        const START: usize = 64 + 56;
        let mut names: Vec<u8> = vec![0];
        let mut headers: Vec<u8> = vec![0; 64];
        let mut data: Vec<u8> = Vec::new();
        let mut add = |name: usize, kind: u8, address: u64, bytes: &[u8]| {
            let mut header = [0; 64];
            (header[0], header[4]) = (name as u8, kind);
            let fields = [(16, address), (24, (START + data.len()) as u64), (32, bytes.len() as u64)];
            for (at, value) in fields {
                header[at..at + 8].copy_from_slice(&value.to_le_bytes());
            }
            headers.extend_from_slice(&header);
            data.extend_from_slice(bytes);
        };
        for (name, address, bytes) in sections {
            // SHT_PROGBITS.
            add(names.len(), 1, *address, bytes);
            names.extend_from_slice(name.as_bytes());
            names.push(0);
        }
        // SHT_STRTAB.
        add(0, 3, 0, &names);
        let mut file: Vec<u8> = vec![0; START];
        let mut put = |at: usize, value: &[u8]| file[at..at + value.len()].copy_from_slice(value);
        put(0, b"\x7fELF\x02\x01\x01");
        // ET_EXEC for x86-64.
        put(16, &[2, 0, 62, 0, 1]);
        put(32, &64u64.to_le_bytes());
        put(40, &((START + data.len()) as u64).to_le_bytes());
        let count = sections.len() as u16 + 2;
        for (at, value) in [(52, 64), (54, 56), (56, 1), (58, 64), (60, count), (62, count - 1)] {
            put(at, &u16::to_le_bytes(value));
        }
        // PT_LOAD, readable and executable.
        put(64, &[1, 0, 0, 0, 5]);
        put(64 + 16, &TEXT.to_le_bytes());
        put(64 + 40, &0x40u64.to_le_bytes());
        [file, data, headers].concat()
    }

    /// A stripped Go program with these sections.
    fn go_program(parts: &[Part]) -> Vec<u8> {
        program(&[&[(".go.buildinfo", 0, Vec::new())][..], parts].concat())
    }

    fn go(table: &[u8]) -> Vec<u8> {
        go_program(&[(".gopclntab", 0x2000, table.to_vec())])
    }

    type Found = Vec<(String, u64, u32)>;

    fn functions(file: &[u8]) -> Measured<Found> {
        let elf = Elf::parse(file)?;
        let table = elf.go_functions(10)?;
        let name =
            |entry: &FunctionEntry| until_nul(&file[table.names.start as usize + entry.name as usize..]);
        Ok(table.entries.iter().map(|entry| (name(entry), entry.address, entry.size)).collect())
    }

    fn sound() -> Measured<Found> {
        Ok(vec![("runtime.mallocgc".to_owned(), 0x1000, 0x10), ("main.main".to_owned(), 0x1010, 0x30)])
    }

    #[test]
    fn a_table_names_its_functions() {
        for magic in [GO_1_20, GO_1_18, GO_1_16] {
            assert_eq!(functions(&go(&table(magic, TEXT))), sound(), "{magic:x}");
        }
        let reason = |file: &[u8]| functions(file).unwrap_err().reason;
        let sections = |name| [(name, 0x2000, table(GO_1_20, TEXT))];
        assert_eq!(reason(&go(&table(GO_1_2, TEXT))), Reason::NotSupported);
        assert_eq!(reason(&go(&table(0xffff_ffff, TEXT))), Reason::Unparsable);
        assert_eq!(reason(&program(&sections(".gopclntab"))), Reason::NotApplicable);
        assert_eq!(reason(&go_program(&sections(".other"))), Reason::NotFound);
    }

    #[test]
    fn the_functions_of_a_stripped_file_are_those_of_go_s_table() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&go(&table(GO_1_20, TEXT))).unwrap();
        let functions = Functions::of(&file, 2).unwrap().unwrap();
        assert_eq!(functions.len(), 2);
        let name = |address: u64| functions.name(address, 99);
        for (address, expected) in [(0x1000, "runtime.mallocgc"), (0x100f, "runtime.mallocgc")] {
            assert_eq!(name(address).as_deref(), Some(expected.as_bytes()));
        }
        for address in [0x1010, 0x103f] {
            assert_eq!(name(address).as_deref(), Some(&b"main.main"[..]));
        }
        assert_eq!((name(0xfff), name(0x1040)), (None, None));
        assert!(Functions::of(&file, 1).unwrap().is_none());
        assert_eq!(functions.unread(), None);
    }

    #[test]
    fn functions_without_names_have_a_reason_only_in_a_go_program() {
        let unread = |file: &[u8]| {
            let mut kept = tempfile::tempfile().unwrap();
            kept.write_all(file).unwrap();
            let functions = Functions::of(&kept, 2).unwrap().unwrap();
            assert!(functions.is_empty());
            functions.unread().map(|why| why.reason)
        };
        assert_eq!(unread(&go(&table(GO_1_2, TEXT))), Some(Reason::NotSupported));
        assert_eq!(unread(&go_program(&[])), Some(Reason::NotFound));
        // The header is right, and an entry of the list is not: nothing else looks at it.
        let mut broken = table(GO_1_20, TEXT);
        broken[107] = 0x50;
        assert!(Elf::parse(&go(&broken)[..]).unwrap().has_go_functions());
        assert_eq!(unread(&go(&broken)), Some(Reason::Unparsable));
        assert_eq!(unread(&program(&[(".gopclntab", 0x2000, table(GO_1_2, TEXT))])), None);
    }

    #[test]
    fn the_start_of_the_code_is_where_the_version_and_the_linker_put_it() {
        const MODULE: u64 = 0x3000;
        let own = |text: u64| (".gopclntab", 0x2000, table(GO_1_20, text));
        let module = |text: u64| {
            let words = [vec![0; TEXT_IN_MODULE], vec![text]].concat();
            (".go.module", MODULE, words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>())
        };
        // R_X86_64_RELATIVE is 8.
        let moved = |address: u64| {
            let words = [0x10, 8, 0x7777, address, 8, TEXT];
            (".rela.dyn", 0, words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>())
        };
        let relro = |text: u64| (".data.rel.ro.gopclntab", 0x2000, table(GO_1_20, text));
        let merged = |before: usize, text: u64| {
            let before =
                [&0xffff_fff1_u32.to_le_bytes()[..], &[0, 0, 1, 8], &[0; 24]].concat()[..before].to_vec();
            (".data.rel.ro", 0x2000, [before, table(GO_1_20, text)].concat())
        };
        let (text, module_text) = (24, TEXT_IN_MODULE as u64 * 8);
        for parts in [
            vec![own(TEXT)],
            vec![own(0), module(TEXT)],
            vec![own(0), module(0), moved(MODULE + module_text)],
            vec![own(0), module(0x1010), moved(MODULE + module_text)],
            vec![relro(TEXT)],
            vec![relro(0), moved(0x2000 + text)],
            vec![merged(16, TEXT)],
            vec![merged(16, 0), moved(0x2010 + text)],
        ] {
            assert_eq!(functions(&go_program(&parts)), sound(), "{parts:x?}");
            assert!(Elf::parse(&go_program(&parts)[..]).unwrap().has_go_functions());
        }
        for parts in [
            vec![own(0)],
            vec![own(0x9000)],
            vec![own(TEXT), module(0)],
            vec![own(TEXT), module(0x9000)],
            vec![own(0), module(0), moved(MODULE)],
            vec![relro(0), moved(0x2000)],
            vec![merged(16, 0)],
            vec![merged(12, TEXT)],
        ] {
            assert!(functions(&go_program(&parts)).is_err(), "{parts:x?}");
            assert!(!Elf::parse(&go_program(&parts)[..]).unwrap().has_go_functions());
        }
    }

    #[test]
    fn a_number_that_does_not_fit_refuses_the_table() {
        let changed = |at: usize, value: &[u8]| {
            let mut table = table(GO_1_20, TEXT);
            table[at..at + value.len()].copy_from_slice(value);
            functions(&go(&table))
        };
        let word = |value: u64| value.to_le_bytes().to_vec();
        let half = |value: u32| value.to_le_bytes().to_vec();
        let length = table(GO_1_20, TEXT).len();
        // The list begins at 99, and the records at 119.
        for (at, value) in [
            (4, vec![1]),
            (6, vec![3]),
            (7, vec![4]),
            // The number of functions.
            (8, word(0)),
            (8, word(3)),
            (8, word(MOST_FUNCTIONS + 1)),
            (8, word(u64::MAX)),
            // The start of the names, their end, and the list.
            (32, word(100)),
            (40, word(72)),
            (40, word(100)),
            (64, word(length as u64)),
            (64, word(u64::MAX)),
            // Places of records.
            (103, half(28)),
            (103, half(u32::MAX)),
            (111, half(20)),
            // The second start, and the end of the code.
            (107, half(0x50)),
            (115, half(5)),
            (115, half(0x41)),
            // The start and the name in the first record.
            (119, half(1)),
            (123, half(NAMES.len() as u32)),
            (123, half(u32::MAX)),
        ] {
            assert!(changed(at, &value).is_err(), "{value:x?} at {at}");
        }
        let other = changed(123, &half(8)).unwrap();
        assert_eq!(other[0].0, "mallocgc");
        let shorter = changed(115, &half(0x3f)).unwrap();
        assert_eq!(shorter[1].2, 0x2f);
        for cut in 0..length {
            assert!(functions(&go(&table(GO_1_20, TEXT)[..cut])).is_err(), "{cut}");
        }
    }

    proptest! {
        #[test]
        fn any_damage_to_a_table_is_survived(
            damage in proptest::collection::vec((any::<usize>(), any::<u8>()), 1..20),
            old in any::<bool>(),
        ) {
            let mut file = go(&table(if old { GO_1_16 } else { GO_1_20 }, TEXT));
            for (at, value) in damage {
                let at = at % file.len();
                file[at] = value;
            }
            ask_everything(&file);
        }
    }

    #[test]
    fn the_linker_s_symbol_table_has_the_same_names() {
        let go = ["/usr/local/go/bin/go", "/usr/bin/go"].into_iter().find(|go| Path::new(go).exists());
        let Some(go) = go else {
            return println!("skipped: no Go compiler on this machine");
        };
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("main.go"), "package main\n\nfunc main() { println(1) }\n")
            .unwrap();
        let built = |name: &str, arguments: &[&str]| {
            let mut build = Command::new(go);
            build.arg("build").args(arguments).args(["-o", name, "main.go"]).current_dir(folder.path());
            let output = build.env("GOTOOLCHAIN", "local").env_remove("GOFLAGS").output().unwrap();
            assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
            File::open(folder.path().join(name)).unwrap()
        };
        // A stripped program and its twin with symbols; a position-independent program has both tables.
        let (stripped, plain) = (built("stripped", &["-ldflags=-s -w"]), built("plain", &["-ldflags=-w"]));
        let independent = built("independent", &["-buildmode=pie", "-ldflags=-w -linkmode=external"]);
        let own = |file: &File| {
            let data = ElfFile::new(file.try_clone().unwrap());
            let elf = data.parse().unwrap();
            assert!(elf.has_go_functions());
            let table = elf.go_functions(1 << 20).unwrap();
            Functions { file: file.try_clone().unwrap(), tables: vec![table], unread: None }
        };
        let whole = Functions::of(&stripped, 1 << 20).unwrap().unwrap();
        assert_eq!(whole.len(), own(&stripped).len());
        for (truth, functions) in [(&plain, whole), (&independent, own(&independent))] {
            let data = ElfFile::new(truth.try_clone().unwrap());
            let elf = data.parse().unwrap();
            let mut compared = 0;
            elf.symbols(Table::All, &mut |symbol| {
                let name = symbol.text();
                if symbol.kind != SymbolKind::Function || symbol.size == 0 || !name.starts_with("runtime.") {
                    return;
                }
                // Functions in assembly have a suffix there.
                let name = name.strip_suffix(".abi0").unwrap_or(name);
                for address in [symbol.address, symbol.address + symbol.size - 1] {
                    let found = functions.name(address, 4096);
                    assert_eq!(found.as_deref(), Some(name.as_bytes()), "{name} at {address:x}");
                }
                compared += 1;
            })
            .unwrap();
            assert!(compared > 500, "{compared}");
        }
    }
}
