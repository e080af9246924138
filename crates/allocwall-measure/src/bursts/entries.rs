//! The functions of an allocator that are counted, and where a file has them.

use allocwall_host::elf::{ElfFile, SymbolKind, Table};
use allocwall_model::bursts::EntryKind;
use allocwall_model::units::{Absence, Measured, Reason};
use std::collections::BTreeSet;
use std::fs::File;

/// By their names in symbol tables. Where two are one function, the first name counts. reallocarray, valloc and the like are
/// left out: they call one of these, or are rare.
const ENTRIES: &[(&str, EntryKind)] = &[
    ("malloc", EntryKind::Malloc),
    ("calloc", EntryKind::Calloc),
    ("realloc", EntryKind::Realloc),
    ("free", EntryKind::Free),
    ("aligned_alloc", EntryKind::Aligned),
    ("memalign", EntryKind::Aligned),
    ("posix_memalign", EntryKind::PosixMemalign),
    ("_Znwm", EntryKind::OperatorNew),
    ("_Znam", EntryKind::OperatorNew),
    ("_ZdlPv", EntryKind::OperatorDelete),
    ("_ZdaPv", EntryKind::OperatorDelete),
    ("_ZdlPvm", EntryKind::OperatorDelete),
    ("_ZdaPvm", EntryKind::OperatorDelete),
];

/// A function, and where its code begins in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub name: &'static str,
    pub kind: EntryKind,
    /// Bytes from the start of the file.
    pub offset: u64,
}

/// The functions that a symbol table of the file names, each once.
///
/// # Errors
/// NotFound: the table has no malloc. Otherwise: the file is not an ELF file, or has no such table.
pub fn entries(file: &File, table: Table) -> Measured<Vec<Entry>> {
    let copy = file.try_clone().map_err(|error| {
        Absence::new(Reason::Exhausted, format!("a file could not be opened again: {error}"))
    })?;
    let elf = ElfFile::new(copy);
    let elf = elf.parse()?;
    let mut found: Vec<(usize, u64)> = Vec::new();
    elf.symbols(table, &mut |symbol| {
        let known = ENTRIES.iter().position(|(name, _)| name.as_bytes() == symbol.name);
        if symbol.kind == SymbolKind::Function
            && !symbol.local
            && let Some(nth) = known
        {
            found.extend(elf.facts.offset_of_address(symbol.address).map(|offset| (nth, offset)));
        }
    })?;
    if !found.iter().any(|(nth, _)| ENTRIES[*nth].1 == EntryKind::Malloc) {
        return Err(Absence::new(Reason::NotFound, "it has no function malloc"));
    }
    found.sort_unstable();
    let mut offsets = BTreeSet::new();
    found.retain(|(_, offset)| offsets.insert(*offset));
    let entry = |(nth, offset): (usize, u64)| Entry { name: ENTRIES[nth].0, kind: ENTRIES[nth].1, offset };
    Ok(found.into_iter().map(entry).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_c_library_has_each_function_once() {
        let path = "/usr/lib/x86_64-linux-gnu/libc.so.6";
        let Ok(libc) = File::open(path) else {
            println!("skipped: no {path} on this machine");
            return;
        };
        let found = entries(&libc, Table::Exported).unwrap();
        // In glibc, aligned_alloc and memalign may have one address.
        let names: Vec<&str> = found.iter().map(|entry| entry.name).collect();
        assert!(names.starts_with(&["malloc", "calloc", "realloc", "free", "aligned_alloc"]), "{names:?}");
        assert!((6..=7).contains(&names.len()), "{names:?}");
        let offsets: BTreeSet<u64> = found.iter().map(|entry| entry.offset).collect();
        assert_eq!(offsets.len(), found.len());
    }

    #[test]
    fn other_files_have_none() {
        let reason = |path: &str| entries(&File::open(path).unwrap(), Table::Exported).unwrap_err().reason;
        assert_eq!(reason("/bin/sleep"), Reason::NotFound);
        assert_ne!(reason("/proc/self/status"), Reason::Exhausted);
    }
}
