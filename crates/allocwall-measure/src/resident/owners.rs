//! Whose memory each mapping is: by its name, else by the headers that it contains.

use super::malloc::Arena;
use super::pages::{Memory, Words};
use super::python::Pools;
use super::stacks::{Pointers, stack_before};
use crate::memory_kinds::{ARENA, ArenaHeap, PAGE, arena_heap, mapped_blocks};
use allocwall_host::maps::Mapping;
use allocwall_host::smaps::Vma;
use allocwall_model::catalogue::modules::{LibcKind, libc_by_name};
use allocwall_model::recording::{Libc, Process};
use allocwall_model::resident::{Amount, ResidentOwner};
use allocwall_model::units::Measured;

/// The most mappings of private memory that are read one by one; 64 bytes each.
const MOST_PRIVATE: usize = 64 << 10;
/// The most heaps of threads' arenas of a process, and the most stacks of one mapping.
const MOST_HEAPS: usize = 64 << 10;
const MOST_STACKS: usize = 4096;
/// How many places of one mapping are searched for a heap: 256 GiB.
const MOST_BASES: usize = 4096;
/// The most mapped blocks of a process that are at the start of a mapping, or follow one that is.
const MOST_BLOCKS: u64 = 64 << 10;
/// Words of a block's header that are read.
const HEADER_WORDS: u64 = 2;
/// The largest part of the C library's writable memory that is searched. It has some ten pages; a static program's
/// belongs to all of the program.
const DATA_SEARCHED: u64 = 4 << 20;
/// How many pages of a process are searched for a mapped block that follows other memory.
const PAGES_SEARCHED: u64 = 16 << 10;
/// The largest stack that is recognised by a stack pointer.
const LARGEST_STACK: u64 = 64 << 20;
/// What the kernel appends to the path of a file that no longer has this name.
const DELETED: &str = " (deleted)";

/// An amount for each owner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Amounts([Amount; ResidentOwner::ALL.len()]);

impl Amounts {
    pub fn of(&self, owner: ResidentOwner) -> Amount {
        self.0[owner as usize]
    }

    pub fn add(&mut self, owner: ResidentOwner, amount: Amount) {
        self.0[owner as usize].add(amount);
    }

    /// Adds to each owner its part of an amount, by weight, and the rest to other private memory. `total`: all weights,
    /// and that of the rest.
    pub fn add_parts(&mut self, amount: Amount, weights: &[(ResidentOwner, u64)], total: u64) {
        let mut left = amount;
        for &(owner, weight) in weights {
            let part = |bytes: u64, left: u64| match total {
                0 => 0,
                _ => {
                    (u128::from(bytes) * u128::from(weight) / u128::from(total)).min(u128::from(left)) as u64
                }
            };
            let part = Amount {
                resident_bytes: part(amount.resident_bytes, left.resident_bytes),
                lazily_freed_bytes: part(amount.lazily_freed_bytes, left.lazily_freed_bytes),
                reserved_bytes: part(amount.reserved_bytes, left.reserved_bytes),
            };
            left.resident_bytes -= part.resident_bytes;
            left.lazily_freed_bytes -= part.lazily_freed_bytes;
            left.reserved_bytes -= part.reserved_bytes;
            self.add(owner, part);
        }
        self.add(ResidentOwner::Private, left);
    }
}

/// Private memory without a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    pub start: u64,
    pub end: u64,
    pub amount: Amount,
    /// Memory that nobody can access ends where it starts: the guard of a stack.
    pub above_gap: bool,
    /// As of [`Vma`].
    pub small_pages_only: bool,
}

/// The mappings of a process, as far as their names say whose they are.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub amounts: Amounts,
    /// All of `[heap]`.
    pub heap: Option<Range>,
    pub private: Vec<Range>,
    /// Mappings of private memory that are not in `private`.
    pub left_out: usize,
    /// The writable memory of the C library.
    pub data: Vec<(u64, u64)>,
    /// The program, if it contains the C library.
    program: Option<String>,
    before: Option<Before>,
    /// The end of the last mapping, without those of the kernel.
    highest: u64,
}

/// What is remembered of the mapping before.
#[derive(Clone, Copy, Debug)]
struct Before {
    end: u64,
    is_gap: bool,
    is_data: bool,
}

/// What the name of a mapping says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Named {
    Owner(ResidentOwner),
    Heap,
    /// Nothing: private memory.
    Private,
}

impl Seen {
    pub fn new(process: &Process) -> Seen {
        let contains_libc = matches!(process.libc, Ok(Libc::Static));
        let program = process.exe.as_ref().ok().filter(|_| contains_libc);
        let program = program.map(|path| path.strip_suffix(DELETED).unwrap_or(path).to_owned());
        Seen { program, ..Seen::default() }
    }

    /// Whether it is a 32-bit program, if all mappings were taken. The stack of a 64-bit program is above 4 GiB.
    pub fn is_narrow(&self) -> bool {
        self.highest > 0 && self.highest <= 1 << 32
    }

    /// Takes the mappings in order of address.
    pub fn take(&mut self, vma: Vma) {
        let Vma { mapping, resident, lazily_freed, reserved, small_pages_only } = vma;
        let amount = Amount {
            resident_bytes: resident,
            lazily_freed_bytes: lazily_freed.min(resident),
            reserved_bytes: reserved,
        };
        let perms = mapping.perms;
        if mapping.start >> 63 == 0 {
            self.highest = self.highest.max(mapping.end);
        }
        let before = self.before.filter(|before| before.end == mapping.start);
        let is_gap = !perms.read && !perms.write && !perms.execute && mapping.path.is_empty();
        let range = Range {
            start: mapping.start,
            end: mapping.end,
            amount,
            above_gap: before.is_some_and(|before| before.is_gap),
            small_pages_only,
        };
        let is_data = self.is_library_data(&mapping);
        let named = named(&mapping);
        // The variables of the library that start as zero follow its file.
        if is_data || named == Named::Private && before.is_some_and(|before| before.is_data) {
            self.data.push((range.start, range.end.min(range.start + DATA_SEARCHED)));
        }
        match named {
            Named::Owner(owner) => self.amounts.add(owner, amount),
            Named::Heap => match &mut self.heap {
                Some(heap) => {
                    heap.end = range.end;
                    heap.amount.add(amount);
                }
                None => self.heap = Some(range),
            },
            Named::Private if amount == Amount::default() => {}
            Named::Private if self.private.len() >= MOST_PRIVATE => {
                self.left_out += 1;
                self.amounts.add(ResidentOwner::Private, amount);
            }
            Named::Private => self.private.push(range),
        }
        self.before = Some(Before { end: mapping.end, is_gap, is_data });
    }

    fn is_library_data(&self, mapping: &Mapping) -> bool {
        if !mapping.perms.write || mapping.perms.shared || !mapping.is_file() || self.data.len() >= 16 {
            return false;
        }
        let path = mapping.display_path();
        let path = path.strip_suffix(DELETED).unwrap_or(&path);
        let name = path.rsplit('/').next().unwrap_or(path);
        libc_by_name(name) == Some(LibcKind::Glibc) || self.program.as_deref() == Some(path)
    }
}

fn named(mapping: &Mapping) -> Named {
    use ResidentOwner::{File, Other, Shared, Stack};
    let (path, shared) = (&mapping.path[..], mapping.perms.shared);
    let starts = |start: &[u8]| path.starts_with(start);
    if path == b"[heap]" {
        Named::Heap
    } else if starts(b"[stack") || starts(b"[anon: glibc: pthread") {
        Named::Owner(Stack)
    } else if starts(b"[anon_shmem") {
        Named::Owner(Shared)
    } else if !shared
        && (path.is_empty() || starts(b"[anon:") || starts(b"/anon_hugepage") || starts(b"/dev/zero"))
    {
        Named::Private
    } else if mapping.is_nameless_memory() || shared && (!mapping.is_file() || starts(b"/dev/shm/")) {
        Named::Owner(Shared)
    } else if mapping.is_file() {
        Named::Owner(File)
    } else {
        Named::Owner(Other)
    }
}

/// A part of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    pub owner: ResidentOwner,
    pub start: u64,
    pub end: u64,
}

/// Finds the parts of private memory that belong to malloc, and the stacks.
#[derive(Clone, Debug)]
pub struct Finder {
    glibc: bool,
    pub heaps: Vec<ArenaHeap>,
    /// The end of the last heap: its mapping may be split.
    heap_end: u64,
    /// Words that may still be read: of mapped blocks at the start of mappings, and of pages behind other memory.
    left_at_starts: u64,
    left_behind: u64,
    /// Of threads that wait. Read when they are first needed.
    pointers: Option<Pointers>,
    cut: Cut,
}

/// What was not searched for in all memory, because of a limit other than the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Cut {
    arenas: bool,
    blocks: bool,
    stacks: bool,
}

impl Finder {
    /// `glibc`: the process uses its malloc. `whole`: only the time limits the search for its blocks.
    pub fn new(glibc: bool, whole: bool) -> Finder {
        let limit = |headers: u64| if whole { u64::MAX } else { headers * HEADER_WORDS };
        Finder {
            glibc,
            heaps: Vec::new(),
            heap_end: 0,
            left_at_starts: limit(MOST_BLOCKS),
            left_behind: limit(PAGES_SEARCHED),
            pointers: None,
            cut: Cut::default(),
        }
    }

    /// What was not searched in full, as one sentence.
    pub fn limits(&self) -> Option<String> {
        let Cut { arenas, blocks, stacks } = self.cut;
        let cut: Vec<&str> = [
            (arenas, "arenas of threads"),
            (blocks, "mapped blocks (--exact searches further)"),
            (stacks, "stacks"),
        ]
        .into_iter()
        .filter_map(|(cut, what)| cut.then_some(what))
        .collect();
        let what = cut.join(" and ");
        (!cut.is_empty()).then(|| {
            format!("only a part of the private memory was searched for {what}; the others count as other private memory")
        })
    }

    /// Whether a stack was searched for by its pointer, and the pointers of some threads are unknown.
    pub fn lacks_pointers(&self) -> bool {
        self.pointers.as_ref().is_some_and(|pointers| pointers.incomplete)
    }

    /// The parts, in order of address. What is between them is other memory. Ranges come in order of address. `pointers`:
    /// stack pointers of threads whose stacks have mappings of their own.
    pub fn parts(
        &mut self,
        range: &Range,
        pointers: &dyn Fn() -> Pointers,
        words: &mut dyn Words,
    ) -> Vec<Part> {
        let mut parts = self.stacks(range, pointers, words);
        // Stacks are at the end.
        let end = parts.iter().map(|part| part.start).min().unwrap_or(range.end);
        self.arenas(range.start, end, &mut parts, words);
        parts.sort_unstable_by_key(|part| part.start);
        if self.glibc {
            for (start, end) in gaps(range, &parts) {
                self.blocks(start, end, &mut parts, words);
            }
            parts.sort_unstable_by_key(|part| part.start);
        }
        parts
    }

    fn stacks(&mut self, range: &Range, pointers: &dyn Fn() -> Pointers, words: &mut dyn Words) -> Vec<Part> {
        let mut parts = Vec::new();
        // A stack has a guard below it, or, since glibc 2.42, one that no mapping shows; then it has the flag.
        if !range.above_gap && !range.small_pages_only {
            return parts;
        }
        let mut end = range.end;
        while !words.late()
            && let Some((start, _)) = stack_before(range.start, end, words)
        {
            if parts.len() >= MOST_STACKS {
                self.cut.stacks = true;
                break;
            }
            let start = start.max(range.start);
            parts.push(Part { owner: ResidentOwner::Stack, start, end });
            end = start;
        }
        if parts.is_empty() && range.above_gap && range.end - range.start <= LARGEST_STACK {
            let known = &self.pointers.get_or_insert_with(pointers).known;
            let at = known.partition_point(|pointer| *pointer < range.start);
            if known.get(at).is_some_and(|pointer| *pointer < range.end) {
                parts.push(Part { owner: ResidentOwner::Stack, start: range.start, end: range.end });
            }
        }
        parts
    }

    fn arenas(&mut self, start: u64, end: u64, parts: &mut Vec<Part>, words: &mut dyn Words) {
        let mut push = |start: u64, end: u64| {
            if start < end {
                parts.push(Part { owner: ResidentOwner::Arena, start, end });
            }
        };
        let known = self.heap_end.clamp(start, end.max(start));
        push(start, known);
        let first = known.next_multiple_of(ARENA);
        for (nth, base) in (first..end).step_by(ARENA as usize).enumerate() {
            if words.late() {
                break;
            }
            if nth >= MOST_BASES || self.heaps.len() >= MOST_HEAPS {
                self.cut.arenas = true;
                break;
            }
            if let Some(heap) = arena_heap(start, base, &mut |at| words.word(at)) {
                self.heap_end = base + heap.bytes;
                push(base, self.heap_end.min(end));
                self.heaps.push(heap);
            }
        }
    }

    /// Blocks at the start, and blocks behind other memory that reach the end.
    fn blocks(&mut self, start: u64, end: u64, parts: &mut Vec<Part>, words: &mut dyn Words) {
        let mut push = |start: u64, end: u64| {
            parts.push(Part { owner: ResidentOwner::MappedBlock, start, end });
        };
        let left = &mut self.left_at_starts;
        let blocks_end = chain_end(start, end, left, words);
        self.cut.blocks |= *left == 0;
        if blocks_end > start {
            push(start, blocks_end);
        }
        let mut at = blocks_end.next_multiple_of(PAGE);
        while at < end && !words.late() {
            if self.left_behind == 0 {
                self.cut.blocks = true;
                return;
            }
            words.ahead(at);
            if chain_end(at, end, &mut self.left_behind, words) == end {
                push(at, end);
                return;
            }
            at += PAGE;
        }
    }
}

/// The end of the blocks that follow one another from `start` on. `left`: words that may be read. Each word counts: a
/// chain can have any length, and the one of the next page can be the same but for its first block.
fn chain_end(start: u64, end: u64, left: &mut u64, words: &mut dyn Words) -> u64 {
    mapped_blocks(start, end, usize::MAX, &mut |at| {
        if words.late() {
            return None;
        }
        *left = left.checked_sub(1)?;
        words.word(at)
    })
}

/// What is between the parts of a range, which are in order.
fn gaps(range: &Range, parts: &[Part]) -> Vec<(u64, u64)> {
    let mut at = range.start;
    let mut gaps = Vec::new();
    for part in parts {
        if at < part.start {
            gaps.push((at, part.start));
        }
        at = at.max(part.end);
    }
    if at < range.end {
        gaps.push((at, range.end));
    }
    gaps
}

/// The first chunk of a heap of a thread's arena.
pub fn first_chunk(heap: &ArenaHeap) -> u64 {
    let own = heap.arena & !(ARENA - 1);
    if own == heap.base { Arena::first_chunk(heap.arena) } else { heap.base + (heap.arena - own) }
}

/// Divides private memory among its owners.
pub struct Owners {
    pub amounts: Amounts,
    pub pools: Option<Pools>,
    pub finder: Finder,
}

impl Owners {
    /// `whole`: as of [`Finder::new`].
    pub fn new(amounts: Amounts, glibc: bool, pools: Option<Pools>, whole: bool) -> Owners {
        Owners { amounts, pools, finder: Finder::new(glibc, whole) }
    }

    /// # Errors
    /// Not all of it was read. The rest is other private memory.
    pub fn add(
        &mut self,
        range: &Range,
        pointers: &dyn Fn() -> Pointers,
        memory: &mut Memory,
    ) -> Measured<()> {
        if let Some(over) = memory.over() {
            self.amounts.add(ResidentOwner::Private, range.amount);
            return Err(over);
        }
        let parts = self.finder.parts(range, pointers, memory);
        match parts[..] {
            [] if self.pools.is_none() => self.amounts.add(ResidentOwner::Private, range.amount),
            [Part { owner, start, end }] if start <= range.start && end >= range.end => {
                self.amounts.add(owner, range.amount);
            }
            _ => self.add_by_pages(range, &parts, memory)?,
        }
        memory.over().map_or(Ok(()), Err)
    }

    fn add_by_pages(&mut self, range: &Range, parts: &[Part], memory: &mut Memory) -> Measured<()> {
        let pages = memory.pages(range.start, range.end).inspect_err(|_| {
            self.amounts.add(ResidentOwner::Private, range.amount);
        })?;
        let mut weights: Vec<(ResidentOwner, u64)> =
            parts.iter().map(|part| (part.owner, pages.bytes(part.start, part.end))).collect();
        if let Some(pools) = &mut self.pools {
            for (start, end) in gaps(range, parts) {
                weights.push((ResidentOwner::PythonArena, pools.read(start, end, &pages, memory)));
            }
        }
        self.amounts.add_parts(range.amount, &weights, pages.bytes(range.start, range.end));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::pages::{Few, Made};
    use super::*;
    use allocwall_host::maps::Perms;
    use allocwall_model::units::{Absence, Reason};

    const BASE: u64 = 0x7f12_4000_0000;

    fn mapping(start: u64, end: u64, perms: &str, inode: u64, path: &str) -> Mapping {
        let has = |flag: char| perms.contains(flag);
        let perms = Perms { read: has('r'), write: has('w'), execute: has('x'), shared: has('s') };
        Mapping { start, end, perms, offset: 0, dev: (0, 0), inode, path: path.into() }
    }

    fn vma(mapping: Mapping, resident: u64) -> Vma {
        Vma { mapping, resident, lazily_freed: 0, reserved: 0, small_pages_only: false }
    }

    #[test]
    fn names_say_whose_memory_it_is() {
        use ResidentOwner::*;
        for (perms, inode, path, expected) in [
            ("rw-p", 0, "[heap]", Named::Heap),
            ("rw-p", 0, "[stack]", Named::Owner(Stack)),
            ("rw-p", 0, "[anon: glibc: pthread stack: 7]", Named::Owner(Stack)),
            ("rw-p", 0, "", Named::Private),
            ("rw-p", 0, "[anon:v8]", Named::Private),
            ("rw-p", 7, "/anon_hugepage (deleted)", Named::Private),
            ("rw-s", 7, "/anon_hugepage (deleted)", Named::Owner(Shared)),
            ("rw-s", 5, "/dev/zero (deleted)", Named::Owner(Shared)),
            ("rw-p", 5, "/dev/zero", Named::Private),
            ("rw-s", 5, "/memfd:heap (deleted)", Named::Owner(Shared)),
            ("rw-s", 5, "/dev/shm/x", Named::Owner(Shared)),
            ("rw-p", 5, "/dev/shm/x", Named::Owner(File)),
            ("rw-p", 0, "[anon: glibc: malloc arena]", Named::Private),
            ("rw-p", 5, "/usr/lib/libc.so.6 (deleted)", Named::Owner(File)),
            ("rw-s", 5, "/var/lib/data", Named::Owner(File)),
            ("r-xp", 5, "/usr/bin/cat", Named::Owner(File)),
            ("r-xp", 0, "[vdso]", Named::Owner(Other)),
            ("--xp", 0, "[vsyscall]", Named::Owner(Other)),
        ] {
            assert_eq!(named(&mapping(0x1000, 0x2000, perms, inode, path)), expected, "{perms} {path}");
        }
    }

    #[test]
    fn every_resident_byte_has_one_owner() {
        let mut seen = Seen::default();
        for (nth, (perms, inode, path)) in [
            ("r-xp", 5, "/usr/bin/cat"),
            ("rw-p", 0, "[heap]"),
            ("rw-p", 0, "[heap]"),
            ("---p", 0, ""),
            ("rw-p", 0, ""),
            ("rw-p", 6, "/usr/lib/libc.so.6"),
            ("rw-p", 0, ""),
            ("rw-p", 0, ""),
        ]
        .into_iter()
        .enumerate()
        {
            let start = 0x10_000 * (nth as u64 + 1);
            let resident = if perms == "---p" { 0 } else { 1 << nth };
            // The last one does not follow the one before.
            let start = if nth == 7 { start + 0x1000 } else { start };
            seen.take(vma(mapping(start, start + 0x10_000, perms, inode, path), resident));
        }
        assert_eq!(seen.amounts.of(ResidentOwner::File).resident_bytes, 1 + 32);
        let heap = seen.heap.unwrap();
        assert_eq!((heap.start, heap.end, heap.amount.resident_bytes), (0x20_000, 0x40_000, 2 + 4));
        let private: Vec<_> =
            seen.private.iter().map(|range| (range.amount.resident_bytes, range.above_gap)).collect();
        assert_eq!(private, [(16, true), (64, false), (128, false)]);
        // The library's file, and the memory that follows it.
        assert_eq!(seen.data, [(0x60_000, 0x70_000), (0x70_000, 0x80_000)]);
    }

    fn process(libc: Libc, exe: &str) -> Process {
        let unknown = || Absence::new(Reason::NotFound, "");
        Process {
            pid: 7,
            pid_inside: None,
            ppid: 1,
            comm: String::new(),
            exe: Ok(exe.into()),
            cmdline: vec![],
            libc: Ok(libc),
            runtime: Err(unknown()),
            allocator: Err(unknown()),
            environment: vec![],
            thp_disabled: Err(unknown()),
            secure_exec: Err(unknown()),
            ended: false,
            age_ns: Err(unknown()),
        }
    }

    /// Whether the mapping of a file counts as the C library's data.
    fn is_data(process: &Process, path: &str) -> bool {
        let mut seen = Seen::new(process);
        seen.take(vma(mapping(0x10_000, 0x20_000, "rw-p", 5, path), 4096));
        !seen.data.is_empty()
    }

    #[test]
    fn a_replaced_file_is_still_the_c_library() {
        let shared = process(Libc::Glibc { version: "2.36".into() }, "/usr/bin/x");
        for path in ["/usr/lib/libc.so.6", "/usr/lib/libc.so.6 (deleted)", "/lib/libc-2.31.so (deleted)"] {
            assert!(is_data(&shared, path), "{path}");
        }
        for path in ["/usr/lib/libcurl.so.4", "/usr/bin/x", "/lib/ld-musl-x86_64.so.1"] {
            assert!(!is_data(&shared, path), "{path}");
        }
        // A static program, before and after its file was replaced.
        for exe in ["/usr/bin/x", "/usr/bin/x (deleted)"] {
            let program = process(Libc::Static, exe);
            assert!(is_data(&program, exe) && !is_data(&program, "/usr/bin/y"), "{exe}");
        }
    }

    #[test]
    fn a_32_bit_program_has_no_memory_above_4_gib() {
        let mut seen = Seen::default();
        assert!(!seen.is_narrow(), "nothing is known");
        seen.take(vma(mapping(0x8048000, 0x8049000, "r-xp", 5, "/usr/bin/x"), 4096));
        seen.take(vma(mapping(0xffff_d000, 0x1_0000_0000, "rw-p", 0, "[stack]"), 4096));
        seen.take(vma(mapping(0xffff_ffff_ff60_0000, 0xffff_ffff_ff60_1000, "--xp", 0, "[vsyscall]"), 0));
        assert!(seen.is_narrow());
        seen.take(vma(mapping(0x7fff_0000_0000, 0x7fff_0000_1000, "rw-p", 0, "[stack]"), 4096));
        assert!(!seen.is_narrow());
    }

    fn range(start: u64, end: u64) -> Range {
        let amount = Amount { resident_bytes: end - start, ..Amount::default() };
        Range { start, end, amount, above_gap: false, small_pages_only: false }
    }

    fn made(words: &[(u64, u64)]) -> Made {
        Made(words.iter().copied().collect())
    }

    fn pointers() -> Pointers {
        Pointers { known: vec![BASE + 0x8000], incomplete: false }
    }

    fn parts(finder: &mut Finder, range: &Range, words: &mut Made) -> Vec<(ResidentOwner, u64, u64)> {
        let found = finder.parts(range, &pointers, words);
        found.iter().map(|part| (part.owner, part.start, part.end)).collect()
    }

    const HEAP: [(u64, u64); 4] =
        [(BASE, BASE + 0x30), (BASE + 8, 0), (BASE + 16, 0x21000), (BASE + 24, 0x21000)];

    #[test]
    fn a_mapping_is_divided_among_arenas_blocks_and_other_memory() {
        use ResidentOwner::{Arena, MappedBlock};
        let mut finder = Finder::new(true, false);
        // A block, other memory, a heap; then a block that reaches the end, behind other memory.
        let start = BASE - 0x5000;
        let mut words = made(&HEAP);
        words.0.extend([(start, 0), (start + 8, 0x2002), (BASE + 0x23000, 0), (BASE + 0x23008, 0x3002)]);
        let whole = range(start, BASE + 0x26000);
        assert_eq!(
            parts(&mut finder, &whole, &mut words),
            [
                (MappedBlock, start, start + 0x2000),
                (Arena, BASE, BASE + 0x21000),
                (MappedBlock, BASE + 0x23000, BASE + 0x26000),
            ]
        );
        assert_eq!(finder.heaps.len(), 1);
        assert_eq!(first_chunk(&finder.heaps[0]), BASE + 0x30 + 2200 + 8);
        // The near twin: the last block does not reach the end.
        words.0.insert(BASE + 0x23008, 0x2002);
        let found = parts(&mut Finder::new(true, false), &whole, &mut words);
        assert_eq!(found.len(), 2, "{found:?}");
        // Without glibc's malloc, no blocks of it are searched for.
        let found = parts(&mut Finder::new(false, false), &whole, &mut words);
        assert_eq!(found, [(Arena, BASE, BASE + 0x21000)]);
    }

    /// Pages that each resemble a block of one page, but for the first one and perhaps the last one: from each page, a
    /// chain of blocks goes to the end.
    fn hostile(pages: u64, reaches_end: bool) -> (Range, Few) {
        let start = BASE + PAGE;
        let ends = if reaches_end { pages } else { pages - 1 };
        let words = (1..ends).flat_map(|page| {
            let at = start + page * PAGE;
            [(at, 0), (at + 8, PAGE | 2)]
        });
        (range(start, start + pages * PAGE), Few { made: Made(words.collect()), left: u64::MAX })
    }

    #[test]
    fn the_search_for_blocks_ends_at_its_limit() {
        const PAGES: u64 = 1000;
        let (whole, mut words) = hostile(PAGES, false);
        let mut finder = Finder::new(true, false);
        assert!(finder.parts(&whole, &pointers, &mut words).is_empty());
        let read = u64::MAX - words.left;
        assert!(read <= (PAGES_SEARCHED + 8) * HEADER_WORDS, "{read} words");
        assert!(finder.limits().is_some_and(|text| text.contains("mapped blocks")), "{:?}", finder.cut);
        // The near twin: the first chain reaches the end.
        let (whole, mut words) = hostile(PAGES, true);
        let mut finder = Finder::new(true, false);
        let found = finder.parts(&whole, &pointers, &mut words);
        let block = Part { owner: ResidentOwner::MappedBlock, start: whole.start + PAGE, end: whole.end };
        assert_eq!((found, finder.limits()), (vec![block], None));
    }

    #[test]
    fn the_search_for_heaps_ends_at_its_limit() {
        let search = |bases: u64| {
            let mut finder = Finder::new(false, false);
            let found = parts(&mut finder, &range(BASE, BASE + bases * ARENA), &mut made(&HEAP));
            assert_eq!(found, [(ResidentOwner::Arena, BASE, BASE + 0x21000)]);
            finder.limits()
        };
        assert_eq!(search(MOST_BASES as u64), None);
        assert!(search(MOST_BASES as u64 + 1).is_some_and(|text| text.contains("arenas of threads")));
    }

    #[test]
    fn the_search_ends_with_the_time() {
        let (whole, mut words) = hostile(1000, true);
        words.left = 20;
        let mut finder = Finder::new(true, true);
        assert!(finder.parts(&whole, &pointers, &mut words).is_empty());
        assert!(words.late());
        assert_eq!(finder.limits(), None, "the time has its own sentence");
    }

    #[test]
    fn a_heap_whose_mapping_is_split_continues() {
        use ResidentOwner::Arena;
        let mut finder = Finder::new(true, false);
        let mut words = made(&HEAP);
        let first = parts(&mut finder, &range(BASE, BASE + 0x9000), &mut words);
        assert_eq!(first, [(Arena, BASE, BASE + 0x9000)]);
        let second = parts(&mut finder, &range(BASE + 0x9000, BASE + 0x30000), &mut words);
        assert_eq!(second, [(Arena, BASE + 0x9000, BASE + 0x21000)]);
        let third = parts(&mut finder, &range(BASE + 0x40000, BASE + 0x50000), &mut words);
        assert!(third.is_empty(), "{third:?}");
    }

    #[test]
    fn stacks_are_above_a_guard() {
        use ResidentOwner::Stack;
        let mut stack = range(BASE, BASE + 0x10_000);
        let descriptor = stack.end - 0x940;
        let mut words = made(&[
            (descriptor, descriptor),
            (descriptor + 16, descriptor),
            (descriptor + 0x690, BASE + 0x2000),
            (descriptor + 0x698, 0xe000),
        ]);
        assert!(parts(&mut Finder::new(true, false), &stack, &mut words).is_empty());
        stack.small_pages_only = true;
        let found = parts(&mut Finder::new(true, false), &stack, &mut words);
        assert_eq!(found, [(Stack, BASE + 0x2000, BASE + 0x10_000)]);
        // Another C library: a thread's stack pointer is in it.
        stack.above_gap = true;
        let found = parts(&mut Finder::new(true, false), &stack, &mut made(&[]));
        assert_eq!(found, [(Stack, BASE, BASE + 0x10_000)]);
        let other = Range { start: BASE + 0x10_000, end: BASE + 0x20_000, ..stack };
        assert!(parts(&mut Finder::new(true, false), &other, &mut made(&[])).is_empty());
    }

    #[test]
    fn parts_of_an_amount_sum_to_it() {
        use ResidentOwner::{Arena, MappedBlock, Private};
        let amount = Amount { resident_bytes: 1001, lazily_freed_bytes: 10, reserved_bytes: 7 };
        for (weights, total) in [
            (vec![(Arena, 1), (MappedBlock, 1)], 3),
            (vec![(Arena, 5)], 5),
            (vec![(Arena, 5), (MappedBlock, 5)], 5),
            (vec![(Arena, 5)], 0),
            (vec![], 9),
            (vec![(Arena, u64::MAX)], u64::MAX),
        ] {
            let mut amounts = Amounts::default();
            amounts.add_parts(amount, &weights, total);
            let mut sum = Amount::default();
            ResidentOwner::ALL.into_iter().for_each(|owner| sum.add(amounts.of(owner)));
            assert_eq!(sum, amount, "{weights:?} of {total}");
        }
        let mut amounts = Amounts::default();
        amounts.add_parts(amount, &[(Arena, 1)], 4);
        assert_eq!(amounts.of(Arena).resident_bytes, 250);
        assert_eq!(amounts.of(Private).resident_bytes, 751);
    }

    #[test]
    fn gaps_are_what_no_part_has() {
        let part = |start, end| Part { owner: ResidentOwner::Arena, start, end };
        let all = range(100, 200);
        assert_eq!(gaps(&all, &[]), [(100, 200)]);
        assert_eq!(gaps(&all, &[part(100, 120), part(150, 200)]), [(120, 150)]);
        assert_eq!(gaps(&all, &[part(110, 120), part(120, 150)]), [(100, 110), (150, 200)]);
        assert!(gaps(&all, &[part(100, 200)]).is_empty());
    }
}
