//! Finds the C library's allocator code inside its file. No I/O.
//!
//! The allocator of glibc is one object file (malloc/malloc.c includes arena.c), that of musl one folder of
//! object files, and a linker keeps an object file's code together. So the exported entry points bracket the
//! allocator, in a stripped library too. The compiler places the internals (`_int_malloc`, `_int_free`,
//! `sysmalloc`) *before* the entry points that call them; some are below the lowest exported one. So the
//! bracket is extended downwards to the end of the nearest exported function of another object file. Upwards
//! it ends with the code of the last entry point. In glibc 2.36 for x86-64 this includes 512 bytes of a
//! function before it (the helper thread of POSIX timers) and misses none of the allocator's code.

use allocwall_model::catalogue::modules::{
    is_core_entry_point, is_malloc_export, is_malloc_internal, is_malloc_source,
};

/// Alignment of functions: the gap between a function's last byte and the next function is padding.
const ALIGNMENT: u64 = 16;

/// The most that the bracket is extended downwards: all of malloc.o below `malloc` is 17 KiB in glibc 2.36. A
/// wider gap means that the neighbours are not exported; then this limit is the best estimate.
const LARGEST_GROWTH: u64 = 32 << 10;

/// The largest gap between two functions of one group if all are named: padding and alignment only.
const LARGEST_PADDING: u64 = 64;

/// A function with a name, with the file's own addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    pub address: u64,
    pub size: u64,
    pub kind: FunctionKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FunctionKind {
    Foreign,
    Malloc,
    /// `malloc`, `free`, `calloc`, `realloc`: internals are below them.
    MallocCore,
}

impl FunctionKind {
    pub fn of_export(name: &str) -> FunctionKind {
        if is_core_entry_point(name) {
            FunctionKind::MallocCore
        } else if is_malloc_export(name) {
            FunctionKind::Malloc
        } else {
            FunctionKind::Foreign
        }
    }
}

impl Function {
    fn end(&self) -> u64 {
        self.address.saturating_add(self.size.max(1))
    }
}

/// The ranges from exported functions only.
pub fn bracketed(mut functions: Vec<Function>) -> Vec<(u64, u64)> {
    merge_aliases(&mut functions);
    let mut ranges = Vec::new();
    // The highest end of the foreign functions so far.
    let mut floor = 0;
    let mut rest = &functions[..];
    while let Some(first) = rest.first() {
        let length = rest.iter().take_while(|f| f.kind != FunctionKind::Foreign).count();
        let (run, behind) = rest.split_at(length);
        if run.is_empty() {
            floor = floor.max(first.end());
            rest = &rest[1..];
            continue;
        }
        let end = run.iter().map(Function::end).max().unwrap_or(first.end());
        let end = behind.first().map_or(end, |next| end.min(next.address));
        let start = if floor > 0 && run.iter().any(|f| f.kind == FunctionKind::MallocCore) {
            let aligned = floor.saturating_add(ALIGNMENT - 1) & !(ALIGNMENT - 1);
            aligned.max(first.address.saturating_sub(LARGEST_GROWTH)).min(first.address)
        } else {
            first.address
        };
        ranges.push((start, end));
        rest = behind;
    }
    ranges
}

/// Sorts, with one entry per address. A function with any name of malloc's counts as malloc's.
fn merge_aliases(functions: &mut Vec<Function>) {
    functions.sort_by_key(|f| f.address);
    functions.dedup_by(|alias, kept| {
        let same = alias.address == kept.address;
        if same {
            kept.size = kept.size.max(alias.size);
            kept.kind = kept.kind.max(alias.kind);
        }
        same
    });
}

/// Groups the functions of a full symbol table by the source file of their local symbols. A file belongs to
/// the allocator if its name is one of malloc's and one of its functions is known as malloc's; then all its
/// functions count. The name alone would include an application's malloc.c. The function alone would include
/// the last group of a C library, where the linker puts the hidden symbols of all files.
#[derive(Debug, Default)]
pub struct SymbolTable {
    functions: Vec<Function>,
    /// The index in `functions` where the functions of the current source file start.
    file_start: usize,
    named_malloc: bool,
    file_is_malloc: bool,
    /// A source file was assigned to the allocator as a whole.
    file_found: bool,
    /// The functions without local ones of unknown owner. They bracket the allocator if source files are not
    /// named, as in programs linked with a stripped archive (Debian's libc.a).
    outline: Vec<Function>,
}

impl SymbolTable {
    /// The next local symbols come from this source file.
    pub fn file(&mut self, name: &str) {
        if self.named_malloc && self.file_is_malloc {
            self.file_found = true;
            for function in &mut self.functions[self.file_start..] {
                function.kind = FunctionKind::Malloc;
            }
        }
        self.file_start = self.functions.len();
        self.named_malloc = is_malloc_source(name);
        self.file_is_malloc = false;
    }

    pub fn function(&mut self, name: &str, address: u64, size: u64, local: bool) {
        if !local && self.file_start < self.functions.len() {
            // Local symbols come first in a table; the first global one ends the last file.
            self.file("");
        }
        // A full table appends the version to the name: `cfree@GLIBC_2.2.5`.
        let name = name.split('@').next().unwrap_or(name);
        let internal = is_malloc_internal(name);
        self.file_is_malloc |= local && internal;
        // A program may have a static function called `malloc_stats`; only a global one is the entry point.
        let ours = internal || (!local && is_malloc_export(name));
        if ours || !local {
            self.outline.push(Function {
                address,
                size,
                kind: if internal { FunctionKind::MallocCore } else { FunctionKind::of_export(name) },
            });
        }
        self.functions.push(Function {
            address,
            size,
            kind: if ours { FunctionKind::Malloc } else { FunctionKind::Foreign },
        });
        if !local {
            self.file_start = self.functions.len();
        }
    }

    /// The ranges of the allocator's functions, with neighbours joined. Exact if every function and its
    /// source file is named.
    pub fn ranges(mut self) -> Vec<(u64, u64)> {
        self.file("");
        if !self.file_found {
            return bracketed(self.outline);
        }
        merge_aliases(&mut self.functions);
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        let mut joined = false;
        for function in &self.functions {
            if function.kind == FunctionKind::Foreign {
                joined = false;
                continue;
            }
            match ranges.last_mut() {
                Some(last) if joined && function.address <= last.1.saturating_add(LARGEST_PADDING) => {
                    last.1 = last.1.max(function.end());
                }
                _ => ranges.push((function.address, function.end())),
            }
            joined = true;
        }
        ranges
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exports(list: &[(u64, u64, &str)]) -> Vec<Function> {
        list.iter()
            .map(|&(address, size, name)| Function { address, size, kind: FunctionKind::of_export(name) })
            .collect()
    }

    #[test]
    fn the_bracket_grows_down_to_the_neighbour_and_not_up() {
        let ranges = bracketed(exports(&[
            (0x1000, 0x23, "timer_settime"),
            (0x4000, 0x300, "malloc"),
            (0x4000, 0x200, "__libc_malloc"),
            (0x4300, 0x100, "free"),
            (0x4400, 0x31, "malloc_info"),
            (0x4440, 0x10, "mcheck"),
            (0x5000, 0x30, "reallocarray"),
            (0x5100, 0x30, "scratch"),
        ]));
        assert_eq!(ranges, [(0x1030, 0x4431), (0x5000, 0x5030)]);
    }

    #[test]
    fn growth_is_bounded_and_needs_a_neighbour() {
        assert_eq!(bracketed(exports(&[(0x100000, 0x10, "malloc")])), [(0x100000, 0x100010)]);
        assert_eq!(
            bracketed(exports(&[(0x1000, 0x10, "x"), (0x100000, 0x10, "malloc")])),
            [(0x100000 - LARGEST_GROWTH, 0x100010)]
        );
        assert_eq!(bracketed(exports(&[(0x1000, 0x10, "x")])), []);
        assert_eq!(bracketed(Vec::new()), []);
    }

    #[test]
    fn absurd_sizes_do_not_overlap_or_overflow() {
        let ranges = bracketed(exports(&[
            (0x1000, u64::MAX, "x"),
            (0x2000, u64::MAX, "free"),
            (0x3000, 1, "y"),
            (u64::MAX, u64::MAX, "malloc"),
        ]));
        assert!(ranges.iter().all(|&(start, end)| start <= end), "{ranges:?}");
        assert_eq!(ranges[0], (0x2000, 0x3000));
    }

    #[test]
    fn with_names_a_source_file_is_claimed_whole_and_its_twin_is_left() {
        let mut table = SymbolTable::default();
        table.file("malloc.c");
        // An application's own malloc.c, without a function that only a C library's allocator has.
        table.function("malloc_stats", 0x1000, 0x10, true);
        table.function("helper", 0x1010, 0x10, true);
        table.file("malloc.c");
        table.function("int_mallinfo", 0x2000, 0x18, true);
        table.function("_int_malloc", 0x2020, 0x10, true);
        table.function("systrim.constprop.0", 0x9000, 0x10, true);
        // The linker puts hidden symbols of other files here.
        table.file("");
        table.function("__malloc_fork_lock_parent", 0x2a00, 0x10, true);
        table.function("__nss_lookup", 0x2a10, 0x10, true);
        table.function("main", 0x3000, 0x10, false);
        table.function("malloc", 0x2030, 0x10, false);
        assert_eq!(table.ranges(), [(0x2000, 0x2040), (0x2a00, 0x2a10), (0x9000, 0x9010)]);
    }

    #[test]
    fn without_source_files_local_functions_between_the_known_ones_are_claimed() {
        let mut table = SymbolTable::default();
        table.function("int_mallinfo", 0x2000, 0x100, true);
        table.function("_int_malloc", 0x2100, 0x100, true);
        table.function("arena_get2", 0x2200, 0x100, true);
        table.function("helper", 0x1800, 0x100, true);
        table.function("main", 0x1900, 0x100, false);
        table.function("malloc", 0x2300, 0x100, false);
        table.function("memcpy", 0x2400, 0x100, false);
        assert_eq!(table.ranges(), [(0x1a00, 0x2400)]);

        let mut twin = SymbolTable::default();
        twin.function("helper", 0x1800, 0x100, true);
        twin.function("main", 0x1900, 0x100, false);
        assert_eq!(twin.ranges(), []);
    }
}
