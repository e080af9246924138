//! CPython's garbage collector, read from the interpreter's memory: how often it ran, and when.
//!
//! The state of the collector has a counter for each generation, and a flag that is set while it runs. Both are read
//! from outside, without symbols of functions: the address comes from `_PyRuntime`, the offsets from a table (3.8 to
//! 3.12) or from the runtime itself (from 3.13 on). The target runs on meanwhile, and its memory is untrusted: a state
//! is used only if it points to itself as a collector's state does, and each call makes a bounded number of reads.
//!
//! Times are nanoseconds since the start of the window.

use super::memory::{self, Memory, PAGE, word};
use super::{Read, Reader, read_once};
use allocwall_host::elf::Table;
use allocwall_host::maps::{self, Mapping};
use allocwall_host::proc::ProcFs;
use allocwall_model::recording::{Collecting, Figure, Process, Runtime, RuntimeAccount, version_of};
use allocwall_model::units::{Absence, Interval, Measured, Reason};
use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The most files of a process in which `_PyRuntime` is looked for.
const FILES: usize = 4;
/// The most interpreters whose counters are read. A list that is longer, or circular, is read up to here.
const INTERPRETERS: usize = 64;
/// The most interpreters whose flags are sampled, the oldest ones.
const FLAGS: usize = 8;
/// The bytes in which the collector's state is searched if it is not where the table says, page by page.
const SEARCHED: u64 = 256 << 10;
/// Larger offsets are not believed: the state of an interpreter has some hundred KiB.
const FARTHEST: u64 = 4 << 20;
/// No collector ran more often: a million collections a second for nine years.
const MOST_COLLECTIONS: u64 = 1 << 48;
/// The longest pause between two attempts to find a state, in ticks.
const LONGEST_REST: u32 = 16;

/// A sample of the flag is due after this time. The window takes it up to 2 ms later.
const OFTEN_NS: u64 = 3_000_000;
/// Once some time has passed without a collection, it is longer.
const QUIET_NS: u64 = 1_000_000_000;
const RARELY_NS: u64 = 40_000_000;
/// Nothing is said about the time between two samples that are farther apart.
const LONGEST_GAP_NS: u64 = 500_000_000;
/// The most spans of time that all accounts together keep; sampling ends there.
const SPANS: usize = 1 << 18;
/// The flag must have been sampled for this part of the time in which the account was read.
const LEAST_SAMPLED: f64 = 0.5;

/// Counts the spans that all accounts together have kept.
#[derive(Clone, Default)]
pub struct Kept(Arc<AtomicUsize>);

impl Kept {
    /// False if there is no room for another one.
    fn one_more(&self) -> bool {
        self.0.fetch_add(1, Ordering::Relaxed) < SPANS
    }
}

/// The minor version, if the memory of this process can be understood.
fn readable(process: &Process) -> Measured<u32> {
    let not_supported = |detail: String| Err(Absence::new(Reason::NotSupported, detail));
    let Ok(Runtime::Cpython { version, free_threaded }) = &process.runtime else {
        return Err(Absence::new(Reason::NotApplicable, "the process has no CPython"));
    };
    if *free_threaded {
        return not_supported("the collector of a free-threaded CPython cannot be read".into());
    }
    match version_of(version) {
        Some((3, minor @ 8..=14)) => Ok(minor),
        _ => not_supported(format!(
            "the memory layout of CPython {version} is not known; that of 3.8 to 3.14 is"
        )),
    }
}

fn method_of(details: &str) -> String {
    format!("the collector's counters and flag in the interpreter's memory{details}")
}

fn account(
    pid: i32,
    method: String,
    over_ns: u64,
    stopped_ns: Measured<Figure>,
    collections: Measured<u64>,
) -> RuntimeAccount {
    RuntimeAccount {
        pid,
        method,
        over_ns,
        stopped_ns,
        collections,
        collector_cpu_ns: Err(Absence::new(
            Reason::NotApplicable,
            "CPython's collector has no thread of its own: its CPU time is a line of the bill",
        )),
        allocated_bytes: Err(Absence::new(Reason::NotSupported, "CPython does not count allocated bytes")),
    }
}

fn absent(pid: i32, absence: &Absence) -> RuntimeAccount {
    account(pid, method_of(""), 0, Err(absence.clone()), Err(absence.clone()))
}

// ---- the address of the runtime ----

/// The address of `_PyRuntime` in the process's memory. `exe` is the path of its program.
fn runtime_of(proc: &ProcFs, pid: i32, exe: &str) -> Measured<u64> {
    let thread = proc.living_thread(pid);
    let code = proc.code(thread)?.mappings;
    // The program comes first: if it defines the symbol, its libraries use the program's.
    let rank = |mapping: &Mapping| {
        let path = mapping.display_path();
        let name = path.rsplit('/').next().unwrap_or(&path);
        match name {
            _ if path == exe => Some(0),
            _ if name.starts_with("libpython") => Some(1),
            _ if name.contains("python") => Some(2),
            _ => None,
        }
    };
    let mut files: Vec<(u32, &Mapping)> =
        code.iter().filter(|m| m.is_file()).filter_map(|m| Some((rank(m)?, m))).collect();
    files.sort_by_key(|(rank, _)| *rank);
    let mut seen = HashSet::new();
    files.retain(|(_, mapping)| seen.insert((mapping.dev, mapping.inode)));
    let mut refused = None;
    for (_, mapping) in files.into_iter().take(FILES) {
        match maps::open(proc.root(), thread, mapping).and_then(|file| runtime_in(file, mapping)) {
            Ok(Some(address)) => return Ok(address),
            Ok(None) => {}
            Err(absence) => refused = refused.or(Some(absence)),
        }
    }
    Err(refused.unwrap_or_else(|| {
        Absence::new(
            Reason::NotFound,
            format!("no file of process {pid} has a symbol _PyRuntime or a section .PyRuntime"),
        )
        .mend("use an interpreter that is not statically linked and stripped")
    }))
}

/// The address in memory of the file's `_PyRuntime`. The section of the same name exists since 3.11.
fn runtime_in(file: File, mapping: &Mapping) -> Measured<Option<u64>> {
    memory::image(file, mapping, |elf, bias| {
        let symbol = |table| {
            let mut found = None;
            // A missing table is not an error: a stripped file has no names.
            let _ = elf.symbols(table, &mut |symbol| {
                if symbol.name == b"_PyRuntime" {
                    found = Some(symbol.address);
                }
            });
            found
        };
        let own = symbol(Table::Exported)
            .or_else(|| elf.facts.section(".PyRuntime").map(|section| section.address))
            .or_else(|| if elf.facts.has_symtab() { symbol(Table::All) } else { None });
        Ok(own.map(|own| bias.wrapping_add(own)))
    })
}

/// User memory ends below 2^56 (Documentation/arch/x86/x86_64/5level-paging.rst).
fn is_pointer(word: u64) -> bool {
    word.is_multiple_of(8) && (4096..1 << 56).contains(&word)
}

// ---- where the collector's state is ----

/// What is where in the states of the runtime and of an interpreter, in bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Offsets {
    /// In the runtime: the newest interpreter.
    head: u64,
    /// In an interpreter: the next older one, and its number.
    next: u64,
    id: u64,
    gc: Gc,
    lock: Lock,
    /// The size of the state that has the collector's.
    size: u64,
}

/// The state that has the collector's, and the offset there.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Gc {
    Runtime(u64),
    Interpreter(u64),
}

/// Where the interpreter lock is (`struct _gil_runtime_state`, Include/internal/pycore_gil.h): in the runtime, or where a
/// word of the interpreter points to.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Lock {
    Runtime(u64),
    Interpreter(u64),
}

/// Its size in bytes, and the longest interval between two switches that is believed, in microseconds.
const LOCK: u64 = 208;
const LONGEST_INTERVAL: u64 = 1_000_000_000;

const fn known(head: u64, next: u64, id: u64, gc: Gc, lock: Lock) -> Offsets {
    Offsets { head, next, id, gc, lock, size: SEARCHED }
}

/// By minor version: Include/internal/pycore_runtime.h, pycore_interp.h and pycore_gc.h; for 3.8 pycore_pystate.h and
/// pycore_pymem.h. The same with and without Py_DEBUG.
const OFFSETS: [(u32, Offsets); 5] = [
    (8, known(32, 0, 16, Gc::Runtime(344), Lock::Runtime(1152))),
    (9, known(32, 0, 24, Gc::Interpreter(616), Lock::Runtime(352))),
    (10, known(32, 0, 24, Gc::Interpreter(616), Lock::Runtime(352))),
    (11, known(40, 0, 48, Gc::Interpreter(648), Lock::Runtime(360))),
    (12, known(40, 0, 8, Gc::Interpreter(112), Lock::Interpreter(384))),
];

/// `_Py_Debug_Cookie` and `_Py_DebugOffsets` at the start of the runtime (Include/internal/pycore_debug_offsets.h, in
/// 3.13 pycore_runtime.h). 3.14 has one word more before the collector's.
const COOKIE: &[u8; 8] = b"xdebugpy";
const DEBUG_OFFSETS: usize = 128;

/// The part of `struct _gc_runtime_state` that is used.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Shape {
    /// A pointer to the first generation, which is in the same state.
    generation0: u64,
    /// A counter of collections for each generation, `STATS` bytes apart.
    stats: u64,
    collecting: u64,
}

/// 3.8 to 3.13.
const CLASSIC: Shape = Shape { generation0: 96, stats: 128, collecting: 200 };
/// From 3.14.5 on. The incremental collector of 3.14.0 to 3.14.4 has no pointer to itself.
const RENEWED: Shape = Shape { generation0: 256, stats: 120, collecting: 192 };
const GENERATIONS: u64 = 24;
const STATS: u64 = 24;
/// In a generation, of `GENERATION` bytes: how many new objects, or younger collections, lead to a collection.
const THRESHOLD: u64 = 16;
const GENERATION: u64 = 24;

/// What a collector's state says.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Seen {
    /// By generation, as in `gc.get_stats()`.
    collections: [u64; 3],
    collecting: bool,
    /// `gc.get_threshold()`
    thresholds: [i32; 3],
}

impl Seen {
    /// Of all generations.
    fn all(&self) -> u64 {
        // Each is at most `MOST_COLLECTIONS`.
        self.collections.iter().sum()
    }
}

impl Shape {
    fn of(minor: u32) -> &'static [Shape] {
        if minor < 14 { &[CLASSIC] } else { &[RENEWED, CLASSIC] }
    }

    fn bytes(self) -> usize {
        (self.generation0.max(self.collecting) + 8) as usize
    }

    /// None if this is no collector's state.
    fn read(self, memory: &mut dyn Memory, at: u64) -> Option<Seen> {
        let bytes = memory.bytes(at, self.bytes())?;
        let word = |offset: u64| word(&bytes, offset as usize);
        if word(self.generation0)? != at + GENERATIONS {
            return None;
        }
        // An int.
        let collecting = word(self.collecting)? & 0xffff_ffff;
        let (mut collections, mut thresholds) = ([0; 3], [0; 3]);
        for ((generation, count), threshold) in (0..).zip(&mut collections).zip(&mut thresholds) {
            // An int.
            *threshold = word(GENERATIONS + generation * GENERATION + THRESHOLD)? as i32;
            *count = word(self.stats + generation * STATS)?;
            if *count > MOST_COLLECTIONS {
                return None;
            }
        }
        (collecting <= 1).then_some(Seen { collections, collecting: collecting == 1, thresholds })
    }
}

/// Where the collectors' states of a process are.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Place {
    runtime: u64,
    offsets: Offsets,
    shape: Shape,
}

/// The collector of one interpreter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Collector {
    at: u64,
    /// The interpreter's number. Numbers are given once, in ascending order.
    id: u64,
}

fn offsets(memory: &mut dyn Memory, runtime: u64, minor: u32) -> Measured<Offsets> {
    if let Some((_, offsets)) = OFFSETS.iter().find(|(known, _)| *known == minor) {
        return Ok(*offsets);
    }
    let unparsable = |detail: String| Absence::new(Reason::Unparsable, detail);
    let table = memory.prefix(runtime, DEBUG_OFFSETS).ok_or_else(|| memory.refused())?;
    if !table.starts_with(COOKIE) {
        return Err(unparsable("the interpreter's state does not begin with its cookie".into()));
    }
    let word = |at: usize| -> Measured<u64> {
        word(&table, at).ok_or_else(|| unparsable("the interpreter's offsets are cut".into()))
    };
    // PY_VERSION_HEX.
    let version = word(8)?;
    if version >> 16 != 3 << 8 | u64::from(minor) {
        return Err(unparsable(format!(
            "the interpreter's state is not that of Python 3.{minor}: version {version:x}"
        )));
    }
    if word(16)? != 0 {
        return Err(Absence::new(
            Reason::NotSupported,
            "the collector of a free-threaded CPython cannot be read",
        ));
    }
    let offset = |at: usize| -> Measured<u64> {
        let offset = word(at)?;
        if offset > FARTHEST || !offset.is_multiple_of(8) {
            return Err(unparsable(format!(
                "an offset in the interpreter's state is not possible: {offset}"
            )));
        }
        Ok(offset)
    };
    Ok(Offsets {
        head: offset(40)?,
        next: offset(64)?,
        id: offset(56)?,
        gc: Gc::Interpreter(offset(if minor == 13 { 80 } else { 88 })?),
        lock: Lock::Interpreter(offset(if minor == 13 { 112 } else { 120 })?),
        size: offset(48)?.min(SEARCHED),
    })
}

/// Finds the collector's state by its offset, and checks it. If it is not there, the only place in the state around it
/// that looks like one is taken.
fn locate(memory: &mut dyn Memory, runtime: u64, minor: u32) -> Measured<Place> {
    let unparsable = |detail: &str| Absence::new(Reason::Unparsable, detail);
    if !is_pointer(runtime) {
        return Err(unparsable("the address of the interpreter's state is not possible"));
    }
    let offsets = offsets(memory, runtime, minor)?;
    let newest = memory.word(runtime + offsets.head).ok_or_else(|| memory.refused())?;
    if newest == 0 {
        return Err(Absence::new(Reason::NotFound, "the interpreter has not started, or has ended"));
    }
    if !is_pointer(newest) {
        return Err(unparsable("the address of the newest interpreter is not possible"));
    }
    let (state, offset) = match offsets.gc {
        Gc::Runtime(offset) => (runtime, offset),
        Gc::Interpreter(offset) => (newest, offset),
    };
    for &shape in Shape::of(minor) {
        if shape.read(memory, state + offset).is_some() {
            return Ok(Place { runtime, offsets, shape });
        }
    }
    let found = search(memory, state, offsets.size, Shape::of(minor));
    if let [(offset, shape)] = found[..]
        && shape.read(memory, state + offset).is_some()
    {
        let gc = match offsets.gc {
            Gc::Runtime(_) => Gc::Runtime(offset),
            Gc::Interpreter(_) => Gc::Interpreter(offset),
        };
        return Ok(Place { runtime, offsets: Offsets { gc, ..offsets }, shape });
    }
    let how_many = if found.len() > 1 { "more than one place" } else { "no place" };
    let known = if minor == 14 { "; the collector of 3.14.0 to 3.14.4 is not known" } else { "" };
    Err(Absence::new(
        Reason::NotFound,
        format!(
            "{how_many} in the interpreter's memory looks like the collector's state of CPython 3.{minor}{known}"
        ),
    ))
}

/// The offsets and shapes of places that point to themselves as a collector's state does, up to two.
fn search(memory: &mut dyn Memory, from: u64, size: u64, shapes: &[Shape]) -> Vec<(u64, Shape)> {
    let mut words: Vec<u64> = Vec::new();
    while (words.len() as u64) * 8 < size {
        let at = from + words.len() as u64 * 8;
        // Up to the end of the page. What is not resident is no collector's state.
        let length = (PAGE - at % PAGE) as usize;
        let block = memory.prefix(at, length).unwrap_or_default();
        let end = words.len() + length / 8;
        words.extend(block.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)));
        words.resize(end, 0);
    }
    let mut found = Vec::new();
    for offset in (0..words.len() as u64).map(|n| n * 8) {
        for &shape in shapes {
            let generation0 = words.get(((offset + shape.generation0) / 8) as usize);
            if generation0 == Some(&(from + offset + GENERATIONS)) {
                found.push((offset, shape));
            }
        }
        if found.len() > 1 {
            break;
        }
    }
    found
}

impl Place {
    /// The collectors of all interpreters, the newest first, and whether there are more than `INTERPRETERS`.
    fn collectors(&self, memory: &mut dyn Memory) -> (Vec<Collector>, bool) {
        let offset = match self.offsets.gc {
            Gc::Runtime(offset) => return (vec![Collector { at: self.runtime + offset, id: 0 }], false),
            Gc::Interpreter(offset) => offset,
        };
        let mut found: Vec<Collector> = Vec::new();
        let mut next = memory.word(self.runtime + self.offsets.head);
        while let Some(interpreter) = next.filter(|word| is_pointer(*word)) {
            let at = interpreter + offset;
            if found.iter().any(|known| known.at == at) {
                break;
            }
            if found.len() == INTERPRETERS {
                return (found, true);
            }
            let Some(id) = memory.word(interpreter + self.offsets.id) else {
                break;
            };
            found.push(Collector { at, id });
            next = memory.word(interpreter + self.offsets.next);
        }
        (found, false)
    }

    /// The address of the interpreter lock. None if it is not known, or if interpreters may have one each.
    fn lock(&self, memory: &mut dyn Memory, collectors: &[Collector]) -> Option<u64> {
        let at = match (self.offsets.lock, self.offsets.gc, collectors) {
            (Lock::Runtime(offset), ..) => self.runtime + offset,
            (Lock::Interpreter(offset), Gc::Interpreter(gc), [only]) => memory.word(only.at - gc + offset)?,
            (Lock::Interpreter(_), ..) => return None,
        };
        let state = memory.bytes(at, 24).filter(|_| is_pointer(at))?;
        // The interval in microseconds, and an int: 0 or 1 once the lock exists.
        let (interval, locked) = (word(&state, 0)?, word(&state, 16)? & 0xffff_ffff);
        ((1..=LONGEST_INTERVAL).contains(&interval) && locked <= 1).then_some(at)
    }
}

// ---- reading ----

/// The account of one process: its collectors, read again and again.
pub(super) struct Account {
    pid: i32,
    /// The address of the runtime's state, and its minor version. None if they cannot be found.
    runtime: Option<(u64, u32)>,
    place: Measured<Place>,
    /// Ticks until the next attempt to find the place, and the pause after it.
    rest: u32,
    pause: u32,

    counted: Vec<Counted>,
    /// Collections of interpreters that have ended since.
    ended: u64,
    /// The largest number of an interpreter so far.
    newest: Option<u64>,
    backwards: bool,
    /// The most interpreters at a time, and whether there were more than were read.
    interpreters: usize,
    cut: bool,
    /// Of the oldest interpreter, at the last reading.
    thresholds: Option<[i32; 3]>,

    /// The address of the interpreter lock.
    lock: Option<u64>,
    watched: Vec<Collector>,
    /// Changes whenever `watched` does: counters of different interpreters are not compared.
    set: u64,
    flag: Flag,
    /// The first and the last successful reading.
    read_ns: Option<(u64, u64)>,
}

/// The counter of one collector, at the first and the last reading.
#[derive(Clone, Copy)]
struct Counted {
    collector: Collector,
    first: u64,
    last: u64,
}

impl Counted {
    fn growth(&self) -> u64 {
        self.last.saturating_sub(self.first)
    }

    /// False if the counter went backwards.
    fn update(&mut self, now: u64) -> bool {
        now >= std::mem::replace(&mut self.last, now)
    }
}

impl Account {
    /// Never fails: an account that cannot be read keeps the reason. The process's files are read.
    pub(super) fn open(proc: &ProcFs, process: &Process, memory: &dyn Memory, kept: Kept) -> Account {
        let find = || -> Measured<(u64, u32)> {
            let minor = readable(process)?;
            if let Some(absence) = memory.failure() {
                return Err(absence);
            }
            let exe = process.exe.as_deref().unwrap_or_default();
            Ok((runtime_of(proc, process.pid, exe)?, minor))
        };
        Account::new(process.pid, find(), kept)
    }

    fn new(pid: i32, runtime: Measured<(u64, u32)>, kept: Kept) -> Account {
        let (runtime, why) = match runtime {
            Ok(runtime) => {
                (Some(runtime), Absence::new(Reason::NotFound, "the interpreter's memory was not read"))
            }
            Err(absence) => (None, absence),
        };
        Account {
            pid,
            runtime,
            place: Err(why),
            rest: 0,
            pause: 0,
            counted: Vec::new(),
            ended: 0,
            newest: None,
            backwards: false,
            interpreters: 0,
            cut: false,
            thresholds: None,
            lock: None,
            watched: Vec::new(),
            set: 0,
            flag: Flag { kept, ..Flag::default() },
            read_ns: None,
        }
    }

    /// An interpreter that has just started is not complete yet, so a state that was not found is looked for again.
    fn may_be_found(&self) -> bool {
        let later = [Reason::NotFound, Reason::TooCostly];
        let may_be = |absence: &Absence| self.runtime.is_some() && later.contains(&absence.reason);
        self.place.as_ref().map_or_else(may_be, |_| true)
    }

    fn look_for_the_place(&mut self, memory: &mut dyn Memory) {
        let Some((runtime, minor)) = self.runtime.filter(|_| self.may_be_found() && self.rest == 0) else {
            self.rest = self.rest.saturating_sub(1);
            return;
        };
        self.place = locate(memory, runtime, minor);
        self.pause = (self.pause * 2).clamp(1, LONGEST_REST);
        self.rest = self.pause;
    }

    fn count(&mut self, seen: &[(Collector, Seen)]) {
        let mut alive = Vec::new();
        for counted in std::mem::take(&mut self.counted) {
            if seen.iter().any(|(collector, _)| *collector == counted.collector) {
                alive.push(counted);
            } else {
                self.ended = self.ended.saturating_add(counted.growth());
            }
        }
        for (collector, state) in seen {
            let now = state.all();
            if let Some(counted) = alive.iter_mut().find(|counted| counted.collector == *collector) {
                self.backwards |= !counted.update(now);
                continue;
            }
            // One that is new since the last reading began with 0.
            let is_new = self.newest.is_some_and(|newest| collector.id > newest);
            let first = if is_new { 0 } else { now };
            alive.push(Counted { collector: *collector, first, last: now });
        }
        self.counted = alive;
        self.newest = self.newest.max(seen.iter().map(|(collector, _)| collector.id).max());
    }

    fn watch(&mut self, collectors: Vec<Collector>) {
        if self.watched != collectors {
            self.watched = collectors;
            self.set += 1;
        }
    }

    fn saw(&mut self, t_ns: u64) {
        let (first, last) = self.read_ns.unwrap_or((t_ns, t_ns));
        self.read_ns = Some((first, last.max(t_ns)));
    }

    fn method(&self) -> String {
        let mut details = String::new();
        if self.flag.sampled_ns > 0 {
            let rate = self.flag.samples as f64 * 1e9 / self.flag.sampled_ns as f64;
            details += &format!(
                ", the flag {rate:.0} times a second (less often after a second without a collection)"
            );
        }
        if self.interpreters > FLAGS {
            details += &format!(", for the {FLAGS} oldest of {} interpreters", self.interpreters);
        } else if self.interpreters > 1 {
            details += &format!(", for {} interpreters together", self.interpreters);
        }
        if self.cut {
            details += &format!("; counters of {INTERPRETERS} interpreters only");
        }
        if let Some([young, middle, old]) = self.thresholds {
            details += &format!("; at the end gc.get_threshold() = ({young}, {middle}, {old})");
        }
        method_of(&details)
    }
}

impl Reader for Account {
    /// At most three reads for each of `INTERPRETERS` interpreters. Until the state of the collector is found, it is looked
    /// for: at most some ten reads, and one for each page of `SEARCHED` bytes.
    fn tick(&mut self, memory: &mut dyn Memory, now: &dyn Fn() -> u64) {
        let t_ns = now();
        // Not found again, it may be elsewhere: the process may have called exec.
        self.lock = None;
        if memory.is_paused() {
            return;
        }
        if self.place.is_err() {
            self.look_for_the_place(memory);
        }
        let Ok(place) = &self.place else { return };
        let place = *place;
        let (collectors, cut) = place.collectors(memory);
        self.lock = place.lock(memory, &collectors);
        let mut seen: Vec<(Collector, Seen)> = Vec::new();
        for collector in collectors {
            if let Some(state) = place.shape.read(memory, collector.at) {
                seen.push((collector, state));
            }
        }
        if seen.is_empty() {
            self.watch(Vec::new());
            return;
        }
        let oldest = seen.iter().min_by_key(|(collector, _)| collector.id);
        self.thresholds = oldest.map(|(_, state)| state.thresholds);
        self.cut |= cut;
        self.interpreters = self.interpreters.max(seen.len());
        self.count(&seen);
        let mut oldest: Vec<Collector> = seen.iter().map(|(collector, _)| *collector).collect();
        oldest.sort_by_key(|collector| collector.id);
        oldest.truncate(FLAGS);
        self.watch(oldest);
        self.saw(t_ns);
    }

    fn has_failed(&self, _: &dyn Memory) -> bool {
        !self.may_be_found()
    }

    /// One small read for each interpreter, at most `FLAGS`.
    fn sample(&mut self, memory: &mut dyn Memory, t_ns: u64) {
        let Ok(place) = &self.place else { return };
        if self.next_sample_ns(memory).is_none() {
            return;
        }
        let shape = place.shape;
        let (mut collecting, mut collections) = (false, 0u64);
        let before = self.watched.len();
        let mut counts: Vec<(Collector, u64)> = Vec::new();
        self.watched.retain(|collector| match shape.read(memory, collector.at) {
            Some(state) => {
                collecting |= state.collecting;
                collections = collections.saturating_add(state.all());
                counts.push((*collector, state.all()));
                true
            }
            None => false,
        });
        if self.watched.len() < before {
            self.set += 1;
        }
        if self.watched.is_empty() {
            return;
        }
        self.flag.add(Sample { t_ns, collecting, collections, set: self.set });
        // The figures are for the time between two readings of all counters. An interpreter that has started since the last
        // tick is found at the next one.
        if counts.len() == self.counted.len() {
            for counted in &mut self.counted {
                let now = counts.iter().find(|(collector, _)| *collector == counted.collector);
                self.backwards |= now.is_some_and(|(_, now)| !counted.update(*now));
            }
            self.saw(t_ns);
        }
    }

    fn next_sample_ns(&self, memory: &dyn Memory) -> Option<u64> {
        let may_be = self.place.is_ok() && !self.watched.is_empty() && !memory.is_paused();
        if may_be { self.flag.next_ns() } else { None }
    }

    /// A span goes from the middle between the last sample without the flag and the first one with it, to the middle between
    /// the last one with it and the next one.
    fn finish(self: Box<Self>) -> Read {
        let pid = self.pid;
        let Some((first, last)) = self.read_ns else {
            let never =
                || Absence::new(Reason::NotFound, "the collector's state was found, but never readable");
            return (absent(pid, &self.place.err().unwrap_or_else(never)), Vec::new());
        };
        let over_ns = last - first;
        let collections = if self.backwards {
            Err(Absence::new(Reason::Unparsable, "a counter of the collector went backwards"))
        } else if over_ns == 0 {
            Err(read_once())
        } else {
            let growth = self.counted.iter().map(Counted::growth);
            Ok(growth.fold(self.ended, u64::saturating_add))
        };
        let stopped_ns = self.flag.stopped(over_ns);
        let spans = match &stopped_ns {
            Ok(_) => self.flag.spans(pid),
            Err(_) => Vec::new(),
        };
        (account(pid, self.method(), over_ns, stopped_ns, collections), spans)
    }

    fn lock(&self) -> Option<Range<u64>> {
        self.lock.map(|at| at..at + LOCK)
    }
}

// ---- the flag ----

#[derive(Clone, Copy)]
struct Sample {
    t_ns: u64,
    collecting: bool,
    /// The counters of the sampled interpreters, and which interpreters these are.
    collections: u64,
    set: u64,
}

/// When the flag was set, by samples of it.
#[derive(Default)]
struct Flag {
    last: Option<Sample>,
    samples: u64,
    sampled_ns: u64,
    /// Start and end.
    spans: Vec<(u64, u64)>,
    kept: Kept,
    full: bool,
    /// When something was collected.
    moved_ns: u64,

    /// Between two samples (a gap), by the length of a collection at which its two bounds of the variance are equal, in
    /// powers of 2.
    gaps: BTreeMap<u32, Gaps>,
    /// Half the squares of gaps in which the flag changed, and of those whose collections are not known.
    changed: f64,
    unknown: f64,
    /// Collections in all gaps, and the sum of their gaps.
    collections: u64,
    their_gaps_ns: f64,
}

#[derive(Clone, Copy, Default)]
struct Gaps {
    /// Sum of collections × gap.
    by_collections: f64,
    /// Sum of gap² / 2.
    half_squares: f64,
}

impl Flag {
    /// When the next sample is due. None if there is none any more.
    fn next_ns(&self) -> Option<u64> {
        if self.full {
            return None;
        }
        let Some(last) = self.last else { return Some(0) };
        let quiet = last.t_ns.saturating_sub(self.moved_ns) >= QUIET_NS;
        Some(last.t_ns.saturating_add(if quiet { RARELY_NS } else { OFTEN_NS }))
    }

    fn add(&mut self, sample: Sample) {
        let Sample { t_ns, collecting, .. } = sample;
        if self.full || self.last.is_some_and(|last| t_ns <= last.t_ns) {
            return;
        }
        self.samples += 1;
        let near = |last: &Sample| t_ns - last.t_ns <= LONGEST_GAP_NS;
        let Some(last) = self.last.replace(sample).filter(near) else {
            self.moved_ns = t_ns;
            if collecting {
                self.begin(t_ns, t_ns);
            }
            return;
        };
        let gap = t_ns - last.t_ns;
        let middle = last.t_ns + gap / 2;
        self.sampled_ns += gap;
        if last.collecting {
            if let Some(span) = self.spans.last_mut() {
                span.1 = if collecting { t_ns } else { middle };
            }
        } else if collecting {
            self.begin(middle, t_ns);
        }
        self.weigh(gap, &last, &sample);
    }

    fn begin(&mut self, from: u64, to: u64) {
        if self.kept.one_more() {
            self.spans.push((from, to));
        } else {
            self.full = true;
        }
    }

    /// What this gap adds to the variance.
    fn weigh(&mut self, gap: u64, last: &Sample, sample: &Sample) {
        let half_square = (gap as f64).powi(2) / 2.0;
        if last.collecting != sample.collecting {
            self.changed += half_square;
        }
        let collections = match last.set == sample.set {
            true => sample.collections.checked_sub(last.collections),
            false => None,
        };
        match collections {
            Some(0) => {}
            Some(count) => {
                let equal = (gap / count.saturating_mul(2)).max(1).ilog2();
                let by_collections = count as f64 * gap as f64;
                let gaps = self.gaps.entry(equal).or_default();
                gaps.by_collections += by_collections;
                gaps.half_squares += half_square;
                self.collections = self.collections.saturating_add(count);
                self.their_gaps_ns += by_collections;
            }
            None => self.unknown += half_square,
        }
        if sample.collecting || collections != Some(0) {
            self.moved_ns = sample.t_ns;
        }
    }

    fn collecting_ns(&self) -> u64 {
        self.spans.iter().map(|(from, to)| to - from).sum()
    }

    /// The sampled share of time, over all the time in which the account was read. The variance: in each gap between two
    /// samples at most collections × their mean length × gap, and at most gap² / 2; together at least the sum of gap² / 2
    /// over changes of the flag.
    fn stopped(&self, over_ns: u64) -> Measured<Figure> {
        /// The 97.5 % quantile of the normal distribution.
        const Z: f64 = 1.96;
        /// The upper 95 % bound of a mean of which no event was seen (the rule of three).
        const UNSEEN: f64 = 3.0;
        if self.full {
            return Err(Absence::new(
                Reason::TooCostly,
                format!(
                    "the collector's flag was not sampled to the end: it was set more than {SPANS} times, in all processes"
                ),
            ));
        }
        let sampled = self.sampled_ns as f64;
        if self.sampled_ns == 0 || sampled < LEAST_SAMPLED * over_ns as f64 {
            return Err(Absence::new(
                Reason::TooLittle,
                format!(
                    "the collector's flag was sampled for {:.1} s of {:.1} s only",
                    sampled / 1e9,
                    over_ns as f64 / 1e9
                ),
            ));
        }
        let collecting = self.collecting_ns() as f64;
        let collections = self.collections as f64;
        let length = if self.collections > 0 { collecting / collections } else { 0.0 };
        let bounds = self.gaps.values().map(|gaps| (length * gaps.by_collections).min(gaps.half_squares));
        let variance = (bounds.sum::<f64>() + self.unknown).max(self.changed);
        let half = Z * variance.sqrt();
        // Short collections between two samples leave no trace but in the counter.
        let unseen = if self.collections > 0 { UNSEEN * self.their_gaps_ns / collections } else { 0.0 };
        let value = Interval::new(
            (collecting - half).max(0.0),
            collecting,
            (collecting + half.max(unseen)).min(sampled),
        );
        Ok(Figure { value: value.scaled(over_ns as f64 / sampled), sampled: true })
    }

    fn spans(&self, pid: i32) -> Vec<Collecting> {
        let long = self.spans.iter().filter(|(from, to)| from < to);
        long.map(|&(from_ns, to_ns)| Collecting { pid, from_ns, to_ns }).collect()
    }
}

/// The minor version, and the memory from the runtime's state on. Then some words change: their offset and the new value.
#[cfg(feature = "fuzzing")]
pub(crate) fn read_bytes(bytes: &[u8]) {
    use allocwall_host::fuzzing::{piece, word};
    const RUNTIME: u64 = 0x5555_0000_0000;
    const MS: u64 = 1_000_000;
    let Some((&minor, mut bytes)) = bytes.split_first() else { return };
    let mut memory = memory::Bytes { at: RUNTIME, bytes: piece(&mut bytes).to_vec() };
    let mut account = Account::new(7, Ok((RUNTIME, 8 + u32::from(minor % 7))), Kept::default());
    for tick in 0..6 {
        let t_ns = tick * 250 * MS;
        account.tick(&mut memory, &|| t_ns);
        for sample in 1..4 {
            let (at, value) = (word(&mut bytes) as usize, word(&mut bytes));
            if let Some(changed) = at.checked_add(8).and_then(|end| memory.bytes.get_mut(at..end)) {
                changed.copy_from_slice(&value.to_le_bytes());
            }
            account.sample(&mut memory, t_ns + sample * 4 * MS);
        }
    }
    let (account, spans) = Box::new(account).finish();
    assert!(spans.is_sorted_by(|a, b| a.to_ns <= b.from_ns), "spans overlap");
    if let Ok(Figure { value, .. }) = account.stopped_ns {
        assert!(0.0 <= value.low && value.low <= value.point && value.point <= value.high);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUNTIME: u64 = 0x5555_0000_0000;
    const MAIN: u64 = 0x7f00_0000_1000;
    const SECOND: u64 = 0x7f00_0001_0000;
    /// The offset of the collector's state in versions that say it themselves.
    const SAID: u64 = 0x200;
    const MS: u64 = 1_000_000;
    const VERSIONS: [u32; 7] = [8, 9, 10, 11, 12, 13, 14];

    /// A made-up memory.
    #[derive(Clone, Default)]
    struct Image {
        words: BTreeMap<u64, u64>,
        reads: usize,
        /// Reading takes too long.
        slow: bool,
    }

    impl Memory for Image {
        fn prefix(&mut self, at: u64, length: usize) -> Option<Vec<u8>> {
            self.reads += 1;
            let addresses = (at..at.checked_add(length as u64)?).step_by(8);
            let words = addresses.map_while(|at| self.words.get(&at));
            let mut bytes: Vec<u8> = words.flat_map(|word| word.to_le_bytes()).collect();
            bytes.truncate(length);
            if bytes.is_empty() { None } else { Some(bytes) }
        }

        fn refused(&self) -> Absence {
            let reason = if self.slow { Reason::TooCostly } else { Reason::Vanished };
            Absence::new(reason, "no such word")
        }

        fn is_paused(&self) -> bool {
            self.slow
        }
    }

    impl Image {
        fn zero(&mut self, from: u64, bytes: u64) {
            self.words.extend((from..from + bytes).step_by(8).map(|at| (at, 0)));
        }

        fn set(&mut self, at: u64, word: u64) {
            self.words.insert(at, word);
        }

        fn state(&mut self, at: u64, shape: Shape, collections: [u64; 3]) {
            self.set(at + shape.generation0, at + GENERATIONS);
            for (generation, count) in (0..).zip(collections) {
                self.set(at + shape.stats + generation * STATS, count);
            }
        }

        /// Adds to the counters of the youngest generation, where they exist: 7 to the main interpreter's, 3 to the second's.
        fn collect(&mut self, minor: u32) {
            let youngest = gc_of(minor) + shape_of(minor).stats;
            let second = youngest.wrapping_sub(MAIN).wrapping_add(SECOND);
            for (at, by) in [(youngest, 7), (second, 3)] {
                if let Some(word) = self.words.get_mut(&at) {
                    *word = word.wrapping_add(by);
                }
            }
        }

        /// The word with the flag.
        fn collecting(&mut self, minor: u32, collecting: bool) {
            self.set(gc_of(minor) + shape_of(minor).collecting, u64::from(collecting));
        }

        /// The counter of the youngest generation.
        fn collections(&mut self, minor: u32, count: u64) {
            self.set(gc_of(minor) + shape_of(minor).stats, count);
        }
    }

    fn shape_of(minor: u32) -> Shape {
        if minor == 14 { RENEWED } else { CLASSIC }
    }

    fn offsets_of(minor: u32) -> Offsets {
        let table = OFFSETS.iter().find(|(known, _)| *known == minor).map(|(_, offsets)| *offsets);
        table.unwrap_or(Offsets {
            head: 0x100,
            next: 0x20,
            id: 0x28,
            gc: Gc::Interpreter(SAID),
            lock: Lock::Interpreter(0x38),
            size: 0x600,
        })
    }

    fn gc_of(minor: u32) -> u64 {
        match offsets_of(minor).gc {
            Gc::Runtime(offset) => RUNTIME + offset,
            Gc::Interpreter(offset) => MAIN + offset,
        }
    }

    /// One interpreter that has collected 100 + 10 + 1 times, and does not collect now.
    fn python(minor: u32) -> Image {
        let mut image = Image::default();
        image.zero(RUNTIME, 0x400);
        image.zero(MAIN, 0x600);
        let offsets = offsets_of(minor);
        if minor >= 13 {
            let gc_word = if minor == 13 { 80 } else { 88 };
            for (at, word) in [
                (0, u64::from_le_bytes(*COOKIE)),
                (8, 3 << 24 | u64::from(minor) << 16 | 0x05f0),
                (24, 0x400),
                (40, offsets.head),
                (48, offsets.size),
                (56, offsets.id),
                (64, offsets.next),
                (72, 0x30),
                (gc_word, SAID),
                (gc_word + 32, 0x38),
            ] {
                image.set(RUNTIME + at, word);
            }
        }
        image.set(RUNTIME + offsets.head, MAIN);
        image.state(gc_of(minor), shape_of(minor), [100, 10, 1]);
        image
    }

    /// A newer interpreter with this number, before the main one.
    fn with_second(minor: u32, id: u64, collections: u64) -> Image {
        let mut image = python(minor);
        let offsets = offsets_of(minor);
        image.zero(SECOND, 0x600);
        image.set(RUNTIME + offsets.head, SECOND);
        image.set(SECOND + offsets.next, MAIN);
        image.set(SECOND + offsets.id, id);
        image.state(SECOND + (gc_of(minor) - MAIN), shape_of(minor), [collections, 0, 0]);
        image
    }

    /// An account, and the memory that it reads.
    struct Reading {
        account: Account,
        memory: Image,
    }

    impl std::ops::Deref for Reading {
        type Target = Account;

        fn deref(&self) -> &Account {
            &self.account
        }
    }

    impl Reading {
        fn tick(&mut self, t_ns: u64) {
            self.account.tick(&mut self.memory, &|| t_ns);
        }

        fn sample(&mut self, t_ns: u64) {
            self.account.sample(&mut self.memory, t_ns);
        }

        fn next_sample_ns(&self) -> Option<u64> {
            self.account.next_sample_ns(&self.memory)
        }

        fn finish(self) -> Read {
            Box::new(self.account).finish()
        }
    }

    fn reading(memory: Image, minor: u32) -> Reading {
        Reading { account: Account::new(7, Ok((RUNTIME, minor)), Kept::default()), memory }
    }

    /// The collections of an image that is read twice.
    fn counted(image: Image, minor: u32) -> Measured<u64> {
        let mut reading = reading(image, minor);
        reading.tick(0);
        reading.sample(MS);
        reading.memory.collect(minor);
        reading.tick(250 * MS);
        reading.finish().0.collections
    }

    /// Adds an interpreter lock, and returns its address.
    fn with_lock(image: &mut Image, minor: u32, interval: u64, locked: u64) -> u64 {
        let at = match offsets_of(minor).lock {
            Lock::Runtime(offset) => RUNTIME + offset,
            Lock::Interpreter(offset) => {
                image.set(MAIN + offset, RUNTIME + 0x800);
                RUNTIME + 0x800
            }
        };
        for (offset, word) in [(0, interval), (8, 0), (16, locked)] {
            image.set(at + offset, word);
        }
        at
    }

    fn lock_in(image: Image, minor: u32) -> Option<u64> {
        let mut reading = reading(image, minor);
        reading.tick(0);
        reading.lock
    }

    #[test]
    fn the_interpreter_lock_is_found_if_there_is_only_one() {
        for minor in VERSIONS {
            let mut image = python(minor);
            let at = with_lock(&mut image, minor, 5000, 1);
            assert_eq!(lock_in(image, minor), Some(at), "3.{minor}");
            // From 3.12 on, an interpreter may have its own. In 3.8, the list of interpreters is not read.
            if minor > 8 {
                let mut image = with_second(minor, 1, 0);
                let at = with_lock(&mut image, minor, 5000, 0);
                assert_eq!(lock_in(image, minor), (minor < 12).then_some(at), "3.{minor}");
            }
            for (interval, locked) in [(0, 1), (5000, 2), (1 << 40, 0)] {
                let mut image = python(minor);
                with_lock(&mut image, minor, interval, locked);
                assert_eq!(lock_in(image, minor), None, "3.{minor}: {interval} {locked}");
            }
        }
    }

    #[test]
    fn the_state_is_found_where_each_version_has_it() {
        for minor in VERSIONS {
            let mut image = python(minor);
            let place = locate(&mut image, RUNTIME, minor).unwrap();
            assert_eq!((place.offsets, place.shape), (offsets_of(minor), shape_of(minor)), "3.{minor}");
            assert!(image.reads <= 6, "3.{minor}: {} reads", image.reads);
            let mut reading = reading(image, minor);
            reading.tick(0);
            reading.memory.collections(minor, 107);
            reading.tick(250 * MS);
            let (account, spans) = reading.finish();
            assert_eq!((account.collections, account.over_ns), (Ok(7), 250 * MS), "3.{minor}");
            assert!(spans.is_empty());
            assert_eq!(account.collector_cpu_ns.unwrap_err().reason, Reason::NotApplicable);
            assert_eq!(account.allocated_bytes.unwrap_err().reason, Reason::NotSupported);
        }
    }

    #[test]
    fn a_state_at_another_offset_is_taken_only_if_nothing_else_looks_like_one() {
        let moved = |minor: u32, to: &[u64]| {
            let mut image = python(minor);
            let start = if minor == 8 { RUNTIME } else { MAIN };
            image.set(gc_of(minor) + shape_of(minor).generation0, 0);
            for offset in to {
                image.state(start + offset, shape_of(minor), [5, 0, 0]);
            }
            locate(&mut image, RUNTIME, minor)
        };
        for minor in VERSIONS {
            let found = moved(minor, &[0x180]).unwrap().offsets.gc;
            let expected = if minor == 8 { Gc::Runtime(0x180) } else { Gc::Interpreter(0x180) };
            assert_eq!(found, expected, "3.{minor}");
            for places in [&[][..], &[0x148, 0x248]] {
                assert_eq!(moved(minor, places).unwrap_err().reason, Reason::NotFound, "3.{minor}");
            }
        }
    }

    #[test]
    fn truncated_and_changed_images_give_a_reason_or_true_counts() {
        // Of one interpreter, of the other one, or of both.
        let sound = |result: Measured<u64>, what: &str| match result {
            Ok(growth) => assert!([7, 3, 10].contains(&growth), "{what}: {growth}"),
            Err(absence) => assert!(!absence.detail.is_empty(), "{what}"),
        };
        for minor in VERSIONS {
            let (whole, all) = if minor == 8 { (python(minor), 7) } else { (with_second(minor, 1, 40), 10) };
            assert_eq!(counted(whole.clone(), minor), Ok(all));
            for cut in whole.words.keys() {
                let words = whole.words.range(..*cut).map(|(at, word)| (*at, *word)).collect();
                sound(counted(Image { words, ..Image::default() }, minor), "cut");
            }
            assert!(counted(Image::default(), minor).is_err());
            let offsets = offsets_of(minor);
            let pointers = [RUNTIME + offsets.head, MAIN + offsets.next];
            let used: Vec<u64> = whole.words.iter().filter(|(_, w)| **w != 0).map(|(at, _)| *at).collect();
            for at in used.into_iter().chain(pointers) {
                for bit in 0..64 {
                    let mut image = whole.clone();
                    *image.words.get_mut(&at).unwrap() ^= 1 << bit;
                    sound(counted(image, minor), &format!("3.{minor}: bit {bit} of {at:x}"));
                }
            }
        }
    }

    #[test]
    fn what_must_fit_is_checked() {
        for minor in VERSIONS {
            let refused = |at: u64, word: u64| {
                let mut image = python(minor);
                image.set(at, word);
                counted(image, minor).expect_err("it does not fit").reason
            };
            let (head, gc, shape) = (RUNTIME + offsets_of(minor).head, gc_of(minor), shape_of(minor));
            assert_eq!(refused(head, 0), Reason::NotFound, "not started");
            assert_eq!(refused(head, MAIN + 4), Reason::Unparsable);
            assert_eq!(refused(head, u64::MAX - 7), Reason::Unparsable);
            assert_eq!(refused(gc + shape.generation0, gc + 16), Reason::NotFound);
            assert_eq!(refused(gc + shape.collecting, 2), Reason::NotFound);
            assert_eq!(refused(gc + shape.stats, u64::MAX), Reason::NotFound);
            if minor >= 13 {
                assert_eq!(refused(RUNTIME, 0), Reason::Unparsable, "no cookie");
                assert_eq!(refused(RUNTIME + 8, 3 << 24 | 15 << 16), Reason::Unparsable);
                assert_eq!(refused(RUNTIME + 16, 1), Reason::NotSupported, "free-threaded");
                assert_eq!(refused(RUNTIME + 64, u64::MAX - 7), Reason::Unparsable);
            }
        }
        assert_eq!(locate(&mut Image::default(), 1, 11).unwrap_err().reason, Reason::Unparsable);
    }

    #[test]
    fn an_interpreter_that_starts_late_is_found_later() {
        let mut image = python(12);
        image.set(RUNTIME + 40, 0);
        let mut reading = reading(image, 12);
        reading.tick(0);
        assert_eq!(reading.place.as_ref().unwrap_err().reason, Reason::NotFound);
        reading.memory.set(RUNTIME + 40, MAIN);
        for tick in 1..=3 {
            reading.tick(tick * 250 * MS);
        }
        assert!(reading.place.is_ok());
        assert_eq!(reading.finish().0.collections, Ok(0));
    }

    #[test]
    fn counters_of_all_interpreters_are_added() {
        // A number that was given before belongs to an interpreter that was only not seen before.
        for (id, expected) in [(1, Ok(45)), (0, Ok(5))] {
            let mut reading = reading(python(11), 11);
            reading.tick(0);
            reading.memory = with_second(11, id, 40);
            reading.memory.collections(11, 105);
            reading.tick(250 * MS);
            assert_eq!(reading.interpreters, 2);
            // It ends, and what it did still counts.
            reading.memory.set(RUNTIME + 40, MAIN);
            reading.tick(500 * MS);
            assert_eq!(reading.finish().0.collections, expected, "{id}");
        }
    }

    #[test]
    fn a_counter_that_goes_backwards_is_no_count() {
        let mut reading = reading(python(11), 11);
        reading.tick(0);
        reading.memory.collections(11, 90);
        reading.tick(250 * MS);
        reading.memory.collections(11, 200);
        reading.tick(500 * MS);
        assert_eq!(reading.finish().0.collections.unwrap_err().reason, Reason::Unparsable);
    }

    #[test]
    fn a_circular_or_endless_list_of_interpreters_ends() {
        let mut image = with_second(12, 1, 40);
        image.set(MAIN, SECOND);
        let place = locate(&mut image, RUNTIME, 12).unwrap();
        assert_eq!(place.collectors(&mut image).0.len(), 2);
        let at = |n: u64| SECOND + n * 0x1000;
        for n in 0..200 {
            image.zero(at(n), 0x180);
            image.set(at(n), at(n + 1));
            image.state(at(n) + 112, CLASSIC, [1, 1, 1]);
        }
        let (found, cut) = place.collectors(&mut image);
        assert_eq!((found.len(), cut), (INTERPRETERS, true));
        let mut reading = reading(image, 12);
        reading.tick(0);
        reading.memory.reads = 0;
        reading.tick(250 * MS);
        assert!(reading.memory.reads <= 3 * INTERPRETERS + 1, "{}", reading.memory.reads);
        reading.memory.reads = 0;
        reading.sample(251 * MS);
        assert_eq!(reading.memory.reads, FLAGS);
    }

    #[test]
    fn spans_go_from_middle_to_middle() {
        let mut reading = reading(python(11), 11);
        reading.tick(0);
        let flags = [false, true, true, false, false, true, false];
        for (n, collecting) in flags.into_iter().enumerate() {
            reading.memory.collecting(11, collecting);
            reading.sample(n as u64 * 4 * MS);
        }
        let (account, spans) = reading.finish();
        let span = |from: u64, to: u64| Collecting { pid: 7, from_ns: from * MS, to_ns: to * MS };
        assert_eq!(spans, [span(2, 10), span(18, 22)]);
        let stopped = account.stopped_ns.unwrap();
        assert_eq!((stopped.value.point, stopped.sampled), (12e6, true));
        assert!(stopped.value.low < 12e6 && stopped.value.high > 12e6, "{stopped:?}");
        assert_eq!(account.over_ns, 24 * MS);
    }

    #[test]
    fn a_long_time_without_a_sample_belongs_to_no_span() {
        let mut reading = reading(python(11), 11);
        reading.tick(0);
        reading.memory.collecting(11, true);
        for t_ms in [0, 4, 8, 600, 604] {
            reading.sample(t_ms * MS);
        }
        assert_eq!(reading.flag.sampled_ns, 12 * MS);
        let (account, spans) = reading.finish();
        assert_eq!(account.stopped_ns.unwrap_err().reason, Reason::TooLittle);
        assert!(spans.is_empty());
    }

    #[test]
    fn a_quiet_collector_is_read_less_often() {
        let reads_a_second = |collections_a_second: u64| {
            let mut reading = reading(python(11), 11);
            reading.tick(0);
            for n in 0..250 * 4 {
                let t_ns = n * 4 * MS;
                reading.memory.collections(11, 100 + t_ns * collections_a_second / 1_000_000_000);
                if n == 250 * 3 {
                    reading.memory.reads = 0;
                }
                if reading.next_sample_ns().is_some_and(|next| next <= t_ns) {
                    reading.sample(t_ns);
                }
            }
            reading.memory.reads
        };
        assert_eq!(reads_a_second(2), 250);
        assert!((24..=26).contains(&reads_a_second(0)), "{}", reads_a_second(0));
    }

    #[test]
    fn a_vanished_interpreter_ends_the_samples_and_keeps_the_counts() {
        let mut reading = reading(python(11), 11);
        reading.tick(0);
        reading.memory.collections(11, 103);
        reading.tick(250 * MS);
        reading.memory.words.clear();
        for t_ms in 251..600 {
            reading.sample(t_ms * MS);
        }
        reading.tick(600 * MS);
        assert!(reading.watched.is_empty());
        let (account, _) = reading.finish();
        assert_eq!((account.collections, account.over_ns), (Ok(3), 250 * MS));
        assert!(account.stopped_ns.is_err());
    }

    #[test]
    fn an_account_that_takes_too_long_keeps_what_was_counted() {
        let mut reading = reading(python(11), 11);
        reading.tick(0);
        for t_ms in [4, 8, 12] {
            reading.memory.collections(11, 100 + t_ms);
            reading.sample(t_ms * MS);
        }
        assert_eq!(reading.next_sample_ns(), Some(15 * MS));
        reading.memory.slow = true;
        assert_eq!(reading.next_sample_ns(), None);
        let reads = reading.memory.reads;
        reading.tick(250 * MS);
        reading.sample(251 * MS);
        assert_eq!(reading.memory.reads, reads);
        let (account, _) = reading.finish();
        assert_eq!((account.collections, account.over_ns), (Ok(12), 12 * MS));
        assert!(account.stopped_ns.is_ok());
        // One that was never read has the reason.
        let mut never = super::tests::reading(Image { slow: true, ..python(11) }, 11);
        never.tick(0);
        assert!(never.may_be_found());
        assert_eq!(never.finish().0.collections.unwrap_err().detail, "the interpreter's memory was not read");
    }

    #[test]
    fn samples_count_only_if_they_read_all_counters() {
        for (interpreters, expected) in [(FLAGS as u64, (Ok(5), 4 * MS)), (FLAGS as u64 + 1, (Ok(0), MS))] {
            let mut image = python(12);
            let at = |nth: u64| if nth == 0 { MAIN } else { SECOND + nth * 0x1000 };
            for nth in 1..interpreters {
                image.zero(at(nth), 0x600);
                image.set(at(nth), at(nth - 1));
                image.set(at(nth) + 8, nth);
                image.state(at(nth) + 112, CLASSIC, [1, 1, 1]);
            }
            image.set(RUNTIME + 40, at(interpreters - 1));
            let mut reading = reading(image, 12);
            reading.tick(0);
            reading.tick(MS);
            reading.memory.collections(12, 105);
            reading.sample(4 * MS);
            let (account, _) = reading.finish();
            assert_eq!((account.collections, account.over_ns), expected, "{interpreters}");
        }
    }

    #[test]
    fn thresholds_are_those_of_the_oldest_interpreter() {
        for minor in [8, 12, 14] {
            let mut image = python(minor);
            for (generation, threshold) in (0..).zip([2000, 10, 0]) {
                // The count is behind the threshold.
                let at = gc_of(minor) + GENERATIONS + generation * GENERATION + THRESHOLD;
                image.set(at, threshold | 5 << 32);
            }
            let mut reading = reading(image, minor);
            reading.tick(0);
            reading.tick(250 * MS);
            let (account, _) = reading.finish();
            assert!(account.method.ends_with("gc.get_threshold() = (2000, 10, 0)"), "{}", account.method);
        }
    }

    #[test]
    fn too_many_spans_end_the_sampling_with_a_reason() {
        let mut flag = Flag::default();
        for n in 0..2 * SPANS as u64 + 10 {
            flag.add(Sample { t_ns: n * MS, collecting: n % 2 == 1, collections: n / 2, set: 0 });
        }
        assert_eq!((flag.spans.len(), flag.full), (SPANS, true));
        // The same room is for other processes, too.
        let mut other = Flag { kept: flag.kept.clone(), ..Flag::default() };
        for (t_ns, collecting) in [(0, false), (MS, false), (2 * MS, true)] {
            assert!(!other.full);
            other.add(Sample { t_ns, collecting, collections: 0, set: 0 });
        }
        assert_eq!((other.spans.len(), other.full), (0, true));
        assert_eq!(flag.stopped(flag.sampled_ns).unwrap_err().reason, Reason::TooCostly);
        assert_eq!(flag.next_ns(), None);
    }

    /// A collector that runs for `length` of each `period`, sampled for 20 s. True time, and the figure.
    fn sampled(period: u64, length: u64, step: u64) -> (f64, Interval) {
        let mut flag = Flag::default();
        let (mut t_ns, mut random) = (0, 1u64);
        while t_ns < 20_000 * MS {
            let collecting = t_ns % period < length;
            let collections = t_ns / period + u64::from(!collecting);
            flag.add(Sample { t_ns, collecting, collections, set: 0 });
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            t_ns += step * 3 / 4 + (random >> 33) % (step / 2);
        }
        let over = flag.sampled_ns;
        let truth = over / period * length + (over % period).min(length);
        (truth as f64, flag.stopped(over).unwrap().value)
    }

    #[test]
    fn the_interval_contains_the_true_time() {
        for (period, length) in
            [(7_300_000, 3_100_000), (900_000, 500_000), (100 * MS, 500_000), (5000 * MS, 800 * MS)]
        {
            for step in [MS, 4 * MS] {
                let (truth, interval) = sampled(period, length, step);
                assert!(
                    interval.low <= truth && truth <= interval.high,
                    "{period} {length} {step}: {truth} {interval:?}"
                );
                assert!(interval.half_width() < 800e6, "{interval:?}");
            }
        }
        // Collections that are too short to be seen are in the counter.
        let (truth, interval) = sampled(100 * MS, 1_000, 4 * MS);
        assert!(interval.low == 0.0 && interval.high >= truth, "{interval:?}");
        // Without any collection there is nothing to be missed.
        assert_eq!(sampled(u64::MAX, 0, 4 * MS).1, Interval::exact(0.0));
    }

    #[test]
    fn an_unknown_or_free_threaded_version_has_a_reason() {
        let mut process = allocwall_sketches::recording::empty().processes.remove(0);
        for (version, free_threaded, reason) in [
            ("3.7.16", false, Reason::NotSupported),
            ("3.15.0", false, Reason::NotSupported),
            ("", false, Reason::NotSupported),
            ("3.13.1", true, Reason::NotSupported),
        ] {
            process.runtime = Ok(Runtime::Cpython { version: version.into(), free_threaded });
            let memory = Image::default();
            let account = Account::open(&ProcFs::live(), &process, &memory, Kept::default());
            assert!(account.has_failed(&memory));
            let mut reading = Reading { account, memory };
            reading.sample(0);
            reading.tick(0);
            assert_eq!((reading.next_sample_ns(), reading.memory.reads), (None, 0));
            let (account, spans) = reading.finish();
            assert_eq!(account.collections.unwrap_err().reason, reason, "{version}");
            assert_eq!((account.over_ns, spans.len()), (0, 0));
        }
    }

    /// Makes garbage, and collects when it gets a line. It prints what the interpreter itself has counted.
    const SUBJECT: &str = r#"
import gc, os, sys, sysconfig

gc.disable()

def say(*values):
    print(*values, flush=True)

def counted():
    say(*[generation["collections"] for generation in gc.get_stats()])
    sys.stdin.readline()

class Waiting:
    def __del__(self):
        say("collecting")
        sys.stdin.readline()

say(os.getpid(), ".".join(map(str, sys.version_info[:3])), int(bool(sysconfig.get_config_var("Py_GIL_DISABLED"))))
counted()
for generation in [0] * 7 + [1] * 3 + [2] * 2:
    for _ in range(100):
        cycle = []
        cycle.append(cycle)
    gc.collect(generation)
counted()
last = Waiting()
last.itself = last
del last
gc.collect()
counted()
"#;

    /// The lines of a living interpreter. It ends when this is dropped.
    struct Subject {
        child: std::process::Child,
        lines: std::io::Lines<std::io::BufReader<std::process::ChildStdout>>,
    }

    impl Subject {
        fn line(&mut self) -> String {
            self.lines.next().expect("a line").expect("text")
        }

        /// The collections of each generation, as the interpreter counts them.
        fn counted(&mut self) -> [u64; 3] {
            let line = self.line();
            let numbers: Vec<u64> = line.split(' ').map(|number| number.parse().expect(&line)).collect();
            numbers.try_into().expect("three generations")
        }

        fn go_on(&mut self) {
            use std::io::Write;
            self.child.stdin.as_mut().expect("a pipe").write_all(b"\n").expect("a reader");
        }
    }

    impl Drop for Subject {
        fn drop(&mut self) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }

    #[test]
    fn a_living_interpreter_has_the_collections_that_it_counts_itself() {
        use std::io::BufRead;
        use std::process::{Command, Stdio};
        let mut command = Command::new("python3");
        command.args(["-c", SUBJECT]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let Ok(mut child) = command.spawn() else { return println!("skipped: no python3 on this machine") };
        let lines = std::io::BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let mut subject = Subject { child, lines };
        let first = subject.line();
        let [pid, version, free_threaded] = first.split(' ').collect::<Vec<_>>()[..] else {
            panic!("{first}")
        };
        let pid: i32 = pid.parse().expect("a number");
        let proc = ProcFs::live();
        let exe = proc.exe(pid).map(|exe| exe.to_string_lossy().into_owned());
        let (version, free_threaded) = (version.to_string(), free_threaded == "1");
        let runtime = Ok(Runtime::Cpython { version, free_threaded });
        let process = allocwall_sketches::recording::empty().processes.remove(0);
        let process = Process { pid, exe, runtime, ..process };
        if let Err(absence) = readable(&process) {
            return println!("skipped: {}", absence.detail);
        }
        // What the interpreter counts is compared while it waits for a line.
        let by_generation = |account: &Account, memory: &mut memory::Live| {
            let place = *account.place.as_ref().expect("a collector");
            let (collectors, _) = place.collectors(memory);
            let [only] = collectors[..] else { panic!("{collectors:?}") };
            place.shape.read(memory, only.at).expect("its state").collections
        };
        let start = subject.counted();
        let mut memory = memory::Live::of(&proc, pid);
        // A busy machine is no reason to pause here.
        memory.patience = std::time::Duration::from_secs(3600);
        let mut account = Account::open(&proc, &process, &memory, Kept::default());
        account.tick(&mut memory, &|| 0);
        assert_eq!(by_generation(&account, &mut memory), start);
        subject.go_on();
        let collected = subject.counted();
        account.tick(&mut memory, &|| MS);
        assert_eq!(by_generation(&account, &mut memory), collected);
        assert_eq!([collected[0] - start[0], collected[1] - start[1], collected[2] - start[2]], [7, 3, 2]);
        for t_ms in [2, 5] {
            account.sample(&mut memory, t_ms * MS);
        }
        subject.go_on();
        assert_eq!(subject.line(), "collecting");
        for t_ms in [8, 11] {
            account.sample(&mut memory, t_ms * MS);
        }
        subject.go_on();
        let end = subject.counted();
        account.sample(&mut memory, 14 * MS);
        account.tick(&mut memory, &|| 15 * MS);
        assert_eq!(by_generation(&account, &mut memory), end);
        let (account, spans) = Box::new(account).finish();
        let all = |counted: [u64; 3]| counted.iter().sum::<u64>();
        assert_eq!((account.collections, account.over_ns), (Ok(all(end) - all(start)), 15 * MS));
        assert_eq!(all(end) - all(collected), 1);
        let [span] = spans[..] else { panic!("{spans:?}") };
        assert_eq!((span.pid, span.from_ns, span.to_ns), (pid, 6_500_000, 12_500_000));
    }
}
