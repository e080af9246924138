//! The resident memory of one process, by owner: see [`allocwall_model::resident`].
//!
//! The sizes are those of /proc/PID/smaps, so the rows sum to the Rss of the kernel. The owner of private memory follows
//! from headers in it: first those of mappings, then those of malloc's chunks and of Python's pools. Nothing is injected
//! and nothing is stopped. What is read is untrusted, and changes meanwhile: each header must fit in several ways.

mod malloc;
mod owners;
pub(crate) mod pages;
mod python;
mod ratio;
mod stacks;

use crate::memory_kinds::{ArenaHeap, arena_heap};
use crate::reading::Readers;
use crate::record::{may_measure, refuse_foreign_proc};
use crate::target::Modules;
use allocwall_host::cgroup::CgroupFs;
use allocwall_host::facts::Machine;
use allocwall_host::file::absence_of;
use allocwall_host::proc::{ProcFs, Status};
use allocwall_host::rights::run_as_root;
use allocwall_host::smaps::{self, Whole};
use allocwall_model::catalogue::modules::AllocatorKind;
use allocwall_model::error::{Error, Result};
use allocwall_model::recording::{Libc, Process, Runtime, version_of};
use allocwall_model::resident::{Amount, ResidentBill, ResidentOwner, Row, Split, undistinguished};
use allocwall_model::units::{Absence, Measured, Reason, plural, thousands};
use malloc::{Area, Arena, LISTED, LISTED_OF_THREADS, Largest, Marks, Top};
use owners::{Amounts, Owners, Range, Seen, first_chunk};
use pages::{Memory, Words, out_of_time};
use stacks::Pointers;
use std::collections::HashMap;
use std::fs::File;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// How long every chunk is read, if the user does not say it.
pub const EXACT: Duration = Duration::from_secs(2);
/// Limits of the time in which smaps is read, then headers of mappings, then windows of heaps. Only processes with very
/// much memory, or very many mappings, reach them.
const SIZES: Duration = Duration::from_secs(2);
const HEADERS: Duration = Duration::from_millis(500);
const SAMPLES: Duration = Duration::from_millis(500);
/// The most heaps of threads' arenas whose chunks are read.
const MOST_HEAPS: usize = 4096;

pub struct Request {
    pub pid: i32,
    /// Reads every chunk, for at most this time, instead of windows.
    pub exact: Option<Duration>,
    pub readers: Readers,
}

/// # Errors
/// The process does not exist, may not be read, has no memory, or ended or called exec meanwhile.
pub fn measure(request: &Request) -> Result<ResidentBill> {
    let began = Instant::now();
    let machine = Machine::live();
    let (proc, pid) = (&machine.proc, request.pid);
    refuse_foreign_proc(proc)?;
    may_measure(proc, pid)?;
    let held = Held::open(proc, pid).map_err(|absence| refused(pid, absence))?;
    let mut modules = Modules::new(proc.root(), request.readers.clone());
    // From now on, all files together have a time limit.
    modules.reader().window_closed(0);
    let process = modules.inspect(pid)?.process;
    let time = request.exact.map_or(Time::Steps, Time::Exact);
    held.read(&machine, &process, time, began).map_err(|absence| refused(pid, absence))
}

/// The bill of a process that was inspected before, from samples. Nothing is read after `until`.
pub(crate) fn of_known(process: &Process, until: Instant) -> Measured<ResidentBill> {
    let began = Instant::now();
    let machine = Machine::live();
    Held::open(&machine.proc, process.pid)?.read(&machine, process, Time::Until(until), began)
}

/// How much of a process is read, and until when.
#[derive(Clone, Copy, Debug)]
enum Time {
    /// Samples. Each step has its own limit.
    Steps,
    /// Samples, until this moment at most.
    Until(Instant),
    /// Every chunk, for this time.
    Exact(Duration),
}

/// A process that keeps its identity while it is read.
struct Held {
    pid: i32,
    /// With the pid, it identifies the process.
    started: u64,
    /// A thread whose entries in /proc show the memory.
    thread: i32,
    space: Space,
}

impl Held {
    fn open(proc: &ProcFs, pid: i32) -> Measured<Held> {
        let started = proc.process_stat(pid)?.start_ticks;
        let thread = proc.living_thread(pid);
        let space = Space::open(proc, thread)?;
        Ok(Held { pid, started, thread, space })
    }

    /// Why what was read may belong to another process, or to another program.
    fn check(&self, proc: &ProcFs) -> Measured<()> {
        let pid = self.pid;
        if proc.process_stat(pid)?.start_ticks != self.started {
            return Err(ended(pid));
        }
        if !self.space.exists() {
            let detail = format!(
                "process {pid} started another program (exec) while it was read; run the command again"
            );
            return Err(Absence::new(Reason::TooLittle, detail));
        }
        Ok(())
    }

    fn read(
        &self,
        machine: &Machine,
        process: &Process,
        time: Time,
        began: Instant,
    ) -> Measured<ResidentBill> {
        let (proc, pid) = (&machine.proc, self.pid);
        let before = status_of(proc, pid, self.thread)?;
        let reading = Reading { began: Instant::now(), time, proc, pid, thread: self.thread, process };
        let mut seen = Seen::new(process);
        let sizes = reading.deadline(SIZES);
        let whole = smaps::of(proc, self.thread, |vma| {
            seen.take(vma);
            if Instant::now() > sizes { ControlFlow::Break(out_of_time()) } else { ControlFlow::Continue(()) }
        })?;
        let found = reading.divide(seen, whole.cut.is_none());
        let after = status_of(proc, pid, self.thread)?;
        let group = CgroupFs::of(machine).and_then(|cgroups| cgroups.kernel_memory(pid));
        // Last: the number of the process may belong to another one by now.
        self.check(proc)?;
        let mut notes = cuts(&whole, pid);
        notes.extend(found.notes);
        let no_page_tables = || Absence::new(Reason::NotSupported, "/proc/PID/status has no VmPTE line");
        Ok(ResidentBill {
            pid,
            comm: process.comm.clone(),
            cmdline: process.cmdline.clone(),
            runtime: process.runtime.clone(),
            allocator: process.allocator.clone(),
            secure_exec: process.secure_exec.clone(),
            environment: process.environment.clone(),
            rows: found.rows,
            rss_before_bytes: before.resident,
            rss_after_bytes: after.resident,
            thread_arenas: found.thread_arenas,
            page_tables_bytes: after.status.vm_pte.ok_or_else(no_page_tables),
            group,
            notes,
            took_ms: began.elapsed().as_millis() as u64,
        })
    }
}

/// What of smaps was not read.
fn cuts(whole: &Whole, pid: i32) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(cut) = &whole.cut {
        notes.push(format!(
            "the rows are incomplete: only the first {} {} of /proc/{pid}/smaps were read: {}",
            thousands(whole.mappings as u64),
            plural(whole.mappings as u64, "mapping"),
            cut.with_advice()
        ));
    }
    if whole.malformed > 0 {
        let lines = plural(whole.malformed as u64, "line");
        notes.push(format!("/proc/{pid}/smaps: {} {lines} could not be read", whole.malformed));
    }
    notes
}

/// The address space of a process. A program that is executed gets another one.
struct Space(File);

impl Space {
    fn open(proc: &ProcFs, thread: i32) -> Measured<Space> {
        let path = proc.root().join(format!("{thread}/maps"));
        File::open(&path).map(Space).map_err(|error| absence_of(&path, &error))
    }

    /// An open file shows the address space of the time when it was opened, and nothing once that is gone (m_start in
    /// fs/proc/task_mmu.c).
    fn exists(&self) -> bool {
        matches!(self.0.read_at(&mut [0], 0), Ok(1))
    }
}

struct Counted {
    status: Status,
    resident: u64,
}

fn status_of(proc: &ProcFs, pid: i32, thread: i32) -> Measured<Counted> {
    let status = proc.status(thread)?;
    // A process that ends loses its memory first.
    let resident = status.vm_rss.ok_or_else(|| ended(pid))?;
    Ok(Counted { status, resident })
}

fn ended(pid: i32) -> Absence {
    Absence::new(Reason::Vanished, format!("process {pid} ended while its memory was read"))
}

fn refused(pid: i32, absence: Absence) -> Error {
    match absence.reason {
        _ if absence.is_gone() => Error::NoSuchProcess(pid),
        Reason::NotPermitted => Error::NotPermitted {
            pid,
            detail: absence.detail,
            mend: format!("{}, or as the owner of the process", run_as_root()),
        },
        _ => Error::Refused(absence.detail),
    }
}

/// The rows, and what limits them.
struct Found {
    rows: Vec<Row>,
    thread_arenas: usize,
    notes: Vec<String>,
}

struct Reading<'a> {
    began: Instant,
    time: Time,
    proc: &'a ProcFs,
    pid: i32,
    thread: i32,
    process: &'a Process,
}

impl Reading<'_> {
    /// Until when something is read of which the reading begins now. With `--exact`, all together has the user's time.
    fn deadline(&self, limit: Duration) -> Instant {
        let limit = Instant::now() + limit;
        match self.time {
            Time::Steps => limit,
            Time::Until(end) => limit.min(end),
            Time::Exact(time) => limit.max(self.began + time),
        }
    }

    /// From mappings to rows. `complete`: these are all mappings.
    fn divide(&self, seen: Seen, complete: bool) -> Found {
        let mut notes = Vec::new();
        if seen.left_out > 0 {
            notes.push(format!(
                "the process has very many mappings: {} of private memory count as other private memory",
                thousands(seen.left_out as u64)
            ));
        }
        let glibc = matches!(&self.process.allocator, Ok(found) if found.kind == AllocatorKind::Glibc);
        let memory = if complete && seen.is_narrow() {
            let detail = "a 32-bit program: the headers of its allocators have another layout";
            Err(Absence::new(Reason::NotSupported, detail))
        } else {
            // The time is its limit.
            Memory::open(self.proc, self.thread, self.deadline(HEADERS), u64::MAX)
        };
        match memory {
            Ok(memory) => self.divide_by_headers(seen, memory, glibc, notes),
            Err(absence) => {
                notes.push(format!(
                    "arenas, mapped blocks, Python's arenas and stacks of threads count as other private memory: {}",
                    absence.with_advice()
                ));
                let mut amounts = seen.amounts;
                let heap = if glibc { ResidentOwner::Heap } else { ResidentOwner::Private };
                amounts.add(heap, seen.heap.map_or(Amount::default(), |heap| heap.amount));
                for range in &seen.private {
                    amounts.add(ResidentOwner::Private, range.amount);
                }
                let rows = self.rows(&amounts, |_| Err(absence.clone()));
                Found { rows, thread_arenas: 0, notes }
            }
        }
    }

    fn divide_by_headers(
        &self,
        seen: Seen,
        mut memory: Memory,
        glibc: bool,
        mut notes: Vec<String>,
    ) -> Found {
        let whole = matches!(self.time, Time::Exact(_));
        let (main, has_heap) = main_arena(&seen, &mut memory);
        let heap = seen.heap.filter(|_| glibc || has_heap);
        let glibc = glibc || main.is_some();
        let marks = if glibc {
            self.marks(&seen.data, &mut memory)
        } else {
            Err(none("the process does not use glibc's malloc"))
        };
        let held: u64 = seen.private.iter().map(|range| range.amount.resident_bytes).sum();
        let pools = self.process.runtime.as_ref().ok().and_then(python::pool_bytes);
        let pools = pools.map(|bytes| python::Pools::new(bytes, held, whole));
        let mut owners = Owners::new(seen.amounts, glibc, pools, whole);
        let pointers = || self.pointers();
        let (mut unread, mut why) = (0, None);
        for range in &seen.private {
            if let Err(absence) = owners.add(range, &pointers, &mut memory) {
                unread += 1;
                why.get_or_insert(absence);
            }
        }
        // Why reading ended before all headers were read.
        let stopped = memory.over();
        let Owners { mut amounts, pools, finder } = owners;
        if let Some(why) = why {
            notes.push(format!(
                "{} {} of private memory, or parts of them, were not read and count as other private memory: {}",
                thousands(unread),
                plural(unread, "mapping"),
                why.with_advice()
            ));
        }
        notes.extend(finder.limits());
        if finder.lacks_pointers() && !glibc && !matches!(self.process.libc, Ok(Libc::Glibc { .. })) {
            notes.push(
                "stacks of threads that were running, or are beyond the first 1,024, count as other private memory"
                    .to_owned(),
            );
        }
        let heaps = finder.heaps;
        memory.until(self.deadline(SAMPLES));
        if let Some(range) = seen.heap {
            let owner = if heap.is_some() { ResidentOwner::Heap } else { ResidentOwner::Private };
            amounts.add(owner, range.amount);
        }
        let no_marks = Marks::default();
        let known_marks = marks.as_ref().unwrap_or(&no_marks);
        let main_split = split_main(heap, main, known_marks, whole, &mut memory);
        let held = amounts.of(ResidentOwner::Arena).held_bytes();
        let (arena_split, unread) = split_arenas(&heaps, known_marks, whole, held, &mut memory);
        notes.extend(unread);
        if main_split.is_ok() || arena_split.is_ok() {
            notes.extend(self.unmarked(&marks));
        }
        let rows = self.rows(&amounts, |owner| {
            let held = amounts.of(owner).held_bytes();
            match owner {
                ResidentOwner::Heap => main_split.clone(),
                ResidentOwner::Arena => arena_split.clone(),
                ResidentOwner::MappedBlock => {
                    Ok(Split::all_live(held, "malloc unmaps such a block when it is freed"))
                }
                _ => match &pools {
                    Some(pools) if held > 0 => Ok(Split { unfinished: stopped.clone(), ..pools.split(held) }),
                    _ => Err(none("the process has no arenas of CPython's object allocator")),
                },
            }
        });
        let mut arenas: Vec<u64> = heaps.iter().map(|heap| heap.arena).collect();
        arenas.sort_unstable();
        arenas.dedup();
        Found { rows, thread_arenas: arenas.len(), notes }
    }

    /// Go's stacks are in its heap: a pointer to one of them says nothing about the rest of the mapping.
    fn pointers(&self) -> Pointers {
        match &self.process.runtime {
            Ok(Runtime::Go { .. }) => Pointers::default(),
            _ => stacks::pointers(self.proc, self.pid),
        }
    }

    /// The version of the C library, if it is a glibc whose version is known.
    fn glibc_version(&self) -> Option<(&str, (u32, u32))> {
        match &self.process.libc {
            Ok(Libc::Glibc { version }) => Some((version.as_str(), version_of(version)?)),
            _ => None,
        }
    }

    /// # Errors
    /// Free blocks in thread caches and fast bins can't be recognised.
    fn marks(&self, data: &[(u64, u64)], memory: &mut Memory) -> Measured<Marks> {
        match self.glibc_version() {
            // The links of older versions are plain, and the keys of their thread caches are addresses.
            Some((version, known)) if known < (2, 34) => Err(Absence::new(
                Reason::NotSupported,
                format!("glibc {version} does not mark them, as 2.34 and later versions do"),
            )),
            _ => Marks::find(data, memory),
        }
    }

    fn unmarked(&self, marks: &Measured<Marks>) -> Option<String> {
        const LIVE: &str = "free blocks in thread caches and fast bins count as live";
        match marks {
            Err(why) => Some(format!("{LIVE}: {}", why.with_advice())),
            Ok(_) if self.glibc_version().is_some() => None,
            Ok(_) => Some(format!("the version of glibc is unknown: if it is older than 2.34, {LIVE}")),
        }
    }

    /// `split`: of memory whose allocator's headers can be read.
    fn rows(&self, amounts: &Amounts, split: impl Fn(ResidentOwner) -> Measured<Split>) -> Vec<Row> {
        ResidentOwner::ALL
            .into_iter()
            .map(|owner| Row {
                owner,
                amount: amounts.of(owner),
                split: match owner {
                    ResidentOwner::Private => Err(undistinguished(self.why_private())),
                    owner if !owner.is_allocated() => {
                        Err(undistinguished("no allocator keeps free memory here"))
                    }
                    owner if amounts.of(owner) == Amount::default() => Err(none("there is no such memory")),
                    owner => split(owner),
                },
            })
            .collect()
    }

    /// Whose memory it can be, and why it is not divided.
    fn why_private(&self) -> String {
        let mut whose = Vec::new();
        match &self.process.allocator {
            Ok(found) => match found.kind {
                AllocatorKind::Glibc => {}
                AllocatorKind::Other => whose.push("another allocator"),
                kind => whose.push(kind.title()),
            },
            // A Go program without C code.
            Err(absence) if absence.reason == Reason::NotApplicable => {}
            Err(_) => whose.push("an allocator that was not recognised"),
        }
        match &self.process.runtime {
            Ok(Runtime::Jvm { .. }) => whose.push("the JVM"),
            Ok(Runtime::Node { .. }) => whose.push("V8"),
            Ok(Runtime::Go { .. }) => whose.push("the Go runtime"),
            Ok(Runtime::Cpython { free_threaded: true, .. }) => whose.push("CPython's mimalloc"),
            _ => {}
        }
        whose.push("the program's own mappings");
        format!("live and free memory can't be distinguished from outside: {}", whose.join(", "))
    }
}

fn none(what: &str) -> Absence {
    Absence::new(Reason::NotFound, what)
}

/// malloc's main arena, and whether `[heap]` is its memory: another allocator can use brk too. A process can contain the C
/// library twice (dlmopen).
fn main_arena(seen: &Seen, memory: &mut Memory) -> (Option<Arena>, bool) {
    let arena = |&(start, end): &(u64, u64)| malloc::main_arena(start, end, &mut *memory);
    let mains: Vec<Arena> = seen.data.iter().filter_map(arena).collect();
    let contains_top =
        |arena: &&Arena| seen.heap.is_some_and(|heap| (heap.start..heap.end).contains(&arena.top));
    let of_heap = mains.iter().find(contains_top);
    (of_heap.or(mains.first()).copied(), of_heap.is_some())
}

fn split_main(
    heap: Option<Range>,
    main: Option<Arena>,
    marks: &Marks,
    whole: bool,
    memory: &mut Memory,
) -> Measured<Split> {
    let range = heap.ok_or_else(|| none("the process has no heap of glibc's malloc"))?;
    let area = main_area(&range, main, memory)?;
    malloc::split(&[area], marks, whole, range.amount.held_bytes(), true, memory)
}

/// How much of the threads' arenas is live and free, and how many of their heaps were not read. `held`: their resident bytes.
fn split_arenas(
    heaps: &[ArenaHeap],
    marks: &Marks,
    whole: bool,
    held: u64,
    memory: &mut Memory,
) -> (Measured<Split>, Option<String>) {
    if heaps.is_empty() {
        return (Err(none("malloc made no arena for a thread")), None);
    }
    let areas = thread_areas(heaps, memory);
    if areas.is_empty() {
        let changed =
            "no header of an arena is sound: the heaps changed too fast, or this malloc has another layout";
        let why = memory.over().unwrap_or_else(|| Absence::new(Reason::TooLittle, changed));
        return (Err(why), None);
    }
    let all_read = areas.len() == heaps.len();
    let unread = (!all_read).then(|| {
        format!(
            "{} of {} heaps of arenas of threads were read: the interval of their row includes the others",
            thousands(areas.len() as u64),
            thousands(heaps.len() as u64)
        )
    });
    (malloc::split(&areas, marks, whole, held, all_read, memory), unread)
}

fn main_area(range: &Range, main: Option<Arena>, memory: &mut Memory) -> Measured<Area> {
    let pages = memory.pages(range.start, range.end)?;
    let largest = match main {
        Some(arena) => Largest::of(&arena, &mut { LISTED }, memory),
        None => Largest::default(),
    };
    // Its top has changed since it was found.
    let main = main.and_then(|arena| Arena::at(arena.address, &mut *memory));
    let top = match main {
        Some(arena) => arena.top_within(range.start, range.end, false, memory),
        None => Top::Unknown,
    };
    Ok(Area::new(range.start, range.end, top, false, pages, largest))
}

/// The heaps of threads' arenas whose chunks can be read.
fn thread_areas(heaps: &[ArenaHeap], memory: &mut Memory) -> Vec<Area> {
    // All heaps of an arena share its lists.
    let mut lists: HashMap<u64, Largest> = HashMap::new();
    let mut left = LISTED_OF_THREADS;
    let mut areas = Vec::new();
    for heap in heaps.iter().take(MOST_HEAPS) {
        if memory.late() {
            break;
        }
        let largest = lists.entry(heap.arena).or_insert_with(|| {
            let arena = Arena::at(heap.arena, &mut *memory);
            arena.map(|arena| Largest::of(&arena, &mut left, &mut *memory)).unwrap_or_default()
        });
        areas.extend(thread_area(heap, largest, memory));
    }
    areas
}

fn thread_area(heap: &ArenaHeap, largest: &Largest, memory: &mut Memory) -> Option<Area> {
    // It may have grown since it was found.
    let heap = arena_heap(heap.base, heap.base, &mut |at| memory.word(at))?;
    let (first, limit) = (first_chunk(&heap), heap.base + heap.bytes);
    let arena = Arena::at(heap.arena, memory)?;
    let top = arena.top_within(first, limit, true, memory);
    let pages = memory.pages(heap.base, limit).ok()?;
    Some(Area::new(first, limit, top, true, pages, largest.within(heap.base, limit)))
}

/// Everything that reads words of a target, on made-up words: the first says where things are, the others follow one
/// another in memory.
#[cfg(feature = "fuzzing")]
pub(crate) fn read_bytes(mut bytes: &[u8]) {
    use crate::memory_kinds::{ARENA, PAGE, POOLS};
    use allocwall_host::fuzzing::word;
    const START: u64 = 0x5555_0000_0000;
    let flags = word(&mut bytes);
    let start = if flags & 1 == 0 { START } else { START + ARENA - PAGE };
    let mut made = pages::Made(Default::default());
    let mut at = start;
    while !bytes.is_empty() {
        made.0.insert(at, word(&mut bytes));
        at += 8;
    }
    let end = at.next_multiple_of(PAGE).max(start + PAGE);
    let pages = pages::Pages::of(start, end, (0..64).map(|page| flags >> 32 >> (page % 32) & 1 == 0));
    let main = malloc::main_arena(start, end, &mut made);
    if let Some(arena) = main {
        for of_thread in [false, true] {
            if let Top::At { start: top, end: behind } = arena.top_within(start, end, of_thread, &mut made) {
                assert!(
                    start <= top && top < behind && behind <= end,
                    "the top chunk is outside of the heap"
                );
            }
        }
    }
    let marks = Marks::find(&[(start, end)], &mut made).unwrap_or_default();
    let area = Area {
        first: start,
        end: at.next_multiple_of(16).min(end),
        limit: end,
        has_top: flags & 2 != 0,
        of_thread: flags & 4 != 0,
        pages: pages.clone(),
        largest: main.map(|arena| Largest::of(&arena, &mut { LISTED }, &mut made)).unwrap_or_default(),
    };
    let resident = area.pages.bytes(area.first, area.end);
    let mut links = malloc::Links::default();
    let mut walk = malloc::Walk { area: &area, marks: &marks, words: &mut made, links: &mut links };
    for from in [area.first, area.first + 16, area.first + 24] {
        let tally = walk.tally(from, area.end);
        assert!(tally.live + tally.free + tally.unknown <= resident, "more than there is");
        assert!(tally.cached <= tally.free && tally.trimmable <= tally.free, "parts of what is free");
    }
    let _ = malloc::split(&[area], &marks, flags & 8 != 0, resident, flags & 16 == 0, &mut made);
    let range = Range { start, end, amount: Amount::default(), above_gap: true, small_pages_only: true };
    let mut finder = owners::Finder::new(true, flags & 32 == 0);
    let pointers = || Pointers { known: vec![start + 64], incomplete: false };
    let parts = finder.parts(&range, &pointers, &mut made);
    assert!(parts.is_sorted_by(|a, b| a.end <= b.start), "parts overlap");
    for pool in POOLS {
        let mut pools = python::Pools::new(pool, 0, true);
        assert!(pools.read(start, end, &pages, &mut made) <= pages.bytes(start, end));
        let _ = pools.split(4096);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Running;
    use allocwall_host::maps::{Mapping, Perms};
    use allocwall_host::smaps::Vma;
    use allocwall_model::recording::{Allocator, Linkage};
    use std::io::Write;
    use std::process::{Command, Stdio};

    fn of(pid: i32, exact: Option<Duration>) -> Result<ResidentBill> {
        measure(&Request { pid, exact, readers: Readers::Here })
    }

    /// A bill, and the resident memory before and after it: the process did not change meanwhile.
    fn of_quiet(pid: i32, exact: Option<Duration>) -> (ResidentBill, u64) {
        let rss = || ProcFs::live().smaps_rollup(pid).expect("our own child").rss;
        let found = (0..1000).find_map(|_| {
            let before = rss();
            let bill = of(pid, exact).expect("our own child");
            // A program that is being started has mapped no file yet.
            let started = bill.row(ResidentOwner::File).is_some_and(|row| row.amount.resident_bytes > 0);
            if started && rss() == before {
                return Some((bill, before));
            }
            std::thread::sleep(Duration::from_millis(5));
            None
        });
        found.expect("a process that sleeps")
    }

    #[test]
    fn the_rows_of_a_sleeping_process_sum_to_its_resident_memory() {
        let child = Running::asleep();
        let pid = child.pid();
        if let Err(absence) = ProcFs::live().smaps_rollup(pid) {
            return println!("skipped: {absence}");
        }
        for exact in [None, Some(EXACT)] {
            let (bill, rss) = of_quiet(pid, exact);
            assert_eq!(bill.rows.len(), ResidentOwner::ALL.len());
            assert_eq!(bill.resident_bytes(), rss);
            for row in &bill.rows {
                if let Ok(split) = &row.split {
                    let sum = split.live_bytes.point + split.free_bytes.point;
                    assert!((sum - row.amount.held_bytes() as f64).abs() < 1.0, "{row:?}");
                    assert!(split.top_bytes.high <= split.free_bytes.high + 1.0, "{row:?}");
                    for part in [
                        split.live_bytes,
                        split.free_bytes,
                        split.cached_bytes,
                        split.trimmable_bytes,
                        split.top_bytes,
                    ] {
                        assert!(
                            part.low >= 0.0 && part.high < row.amount.held_bytes() as f64 + 1.0,
                            "{row:?}"
                        );
                        assert!(part.low < part.point + 1.0 && part.point < part.high + 1.0, "{row:?}");
                    }
                }
            }
            assert!(bill.page_tables_bytes.is_ok());
        }
    }

    #[test]
    fn what_has_no_memory_is_refused() {
        assert!(matches!(of(i32::MAX, None), Err(Error::NoSuchProcess(i32::MAX))));
        assert!(matches!(of(0, None), Err(Error::NoSuchProcess(0))));
        let mut child = Running(Command::new("true").stdin(Stdio::null()).spawn().expect("true"));
        let pid = child.pid();
        while !ProcFs::live().process_stat(pid).expect("it was not waited for").ended() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let ended = of(pid, None);
        assert!(matches!(&ended, Err(Error::Refused(why)) if why.contains("has exited")), "{ended:?}");
        let _ = child.0.wait();
        assert!(matches!(of(pid, None), Err(Error::NoSuchProcess(_))));
    }

    #[test]
    fn an_exec_during_the_reading_is_noticed() {
        let mut command = Command::new("sh");
        command.args(["-c", "read line; exec sleep 60"]).stdin(Stdio::piped());
        let mut child = Running(command.spawn().expect("sh"));
        let (proc, pid) = (ProcFs::live(), child.pid());
        let space = Space::open(&proc, pid).unwrap();
        assert!(space.exists());
        assert!(space.exists(), "it can be asked again");
        let mut input = child.0.stdin.take().expect("a pipe");
        input.write_all(b"go\n").expect("the shell reads");
        while proc.comm(pid).unwrap() != "sleep" {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(!space.exists());
        // The near twin: the file was opened after it.
        assert!(Space::open(&proc, pid).unwrap().exists());
    }

    fn process(
        libc: Measured<Libc>,
        runtime: Measured<Runtime>,
        allocator: Measured<AllocatorKind>,
    ) -> Process {
        let unknown = || none("");
        let module = String::new();
        Process {
            pid: 7,
            pid_inside: None,
            ppid: 1,
            comm: String::new(),
            exe: Err(unknown()),
            cmdline: vec![],
            libc,
            runtime,
            allocator: allocator.map(|kind| Allocator { kind, how: Linkage::Libc, module, version: None }),
            environment: vec![],
            thp_disabled: Err(unknown()),
            secure_exec: Err(unknown()),
            ended: false,
            age_ns: Err(unknown()),
        }
    }

    fn reading<'a>(proc: &'a ProcFs, process: &'a Process) -> Reading<'a> {
        Reading { began: Instant::now(), time: Time::Steps, proc, pid: 7, thread: 7, process }
    }

    #[test]
    fn a_process_that_was_inspected_before_is_read_until_a_moment() {
        let child = Running::asleep();
        let pid = child.pid();
        if let Err(absence) = ProcFs::live().smaps_rollup(pid) {
            return println!("skipped: {absence}");
        }
        let libc = Ok(Libc::Glibc { version: "2.36".into() });
        let known = Process { pid, ..process(libc, Ok(Runtime::Native), Ok(AllocatorKind::Glibc)) };
        let cut = |bill: &ResidentBill| bill.notes.iter().any(|note| note.contains("rows are incomplete"));
        let later = || Instant::now() + Duration::from_secs(60);
        let bill = of_known(&known, later()).expect("our own child");
        assert!(!cut(&bill) && bill.is_sound(), "{bill:?}");
        // Only the first mapping is read if the time is over.
        let late = of_known(&known, Instant::now() - Duration::from_millis(1)).expect("our own child");
        assert!(cut(&late) && late.is_sound(), "{late:?}");
        assert!(late.resident_bytes() < bill.resident_bytes(), "{late:?}");
        drop(child);
        assert!(of_known(&known, later()).unwrap_err().is_gone());
    }

    #[test]
    fn a_stack_pointer_into_the_heap_of_go_makes_no_stack() {
        let root = tempfile::tempdir().unwrap();
        let thread = root.path().join("7/task/7");
        std::fs::create_dir_all(&thread).unwrap();
        let waits = "202 0x1 0x2 0x3 0x4 0x5 0x6 0xc000012000 0x55\n";
        std::fs::write(thread.join("syscall"), waits).unwrap();
        let proc = ProcFs::at(root.path());
        let of = |runtime| {
            let process = process(Ok(Libc::Static), runtime, Err(none("")));
            reading(&proc, &process).pointers()
        };
        assert_eq!(of(Ok(Runtime::Go { version: None })), Pointers::default());
        let known = Pointers { known: vec![0xc0_0001_2000], incomplete: false };
        assert_eq!(of(Ok(Runtime::Native)), known);
        assert_eq!(of(Err(none(""))), known);
    }

    #[test]
    fn other_private_memory_says_whose_it_can_be() {
        let proc = ProcFs::at("/nowhere");
        let native = || Ok(Runtime::Native);
        let go = || Ok(Runtime::Go { version: None });
        let kind = |kind: AllocatorKind| Ok(kind);
        for (runtime, allocator, whose) in [
            (native(), kind(AllocatorKind::Glibc), ": the program's own mappings"),
            (native(), kind(AllocatorKind::Musl), ": musl malloc, the program's own mappings"),
            (native(), kind(AllocatorKind::Jemalloc), ": jemalloc, the program's own mappings"),
            (native(), kind(AllocatorKind::Tcmalloc), ": tcmalloc, the program's own mappings"),
            (native(), Err(none("")), ": an allocator that was not recognised, the program's own mappings"),
            (go(), Err(undistinguished("")), ": the Go runtime, the program's own mappings"),
            (go(), kind(AllocatorKind::Glibc), ": the Go runtime, the program's own mappings"),
        ] {
            let process = process(Err(none("")), runtime, allocator);
            let why = reading(&proc, &process).why_private();
            assert!(why.ends_with(whose), "{why}");
        }
    }

    #[test]
    fn free_blocks_that_are_not_recognised_are_a_note_for_old_and_for_unknown_versions() {
        let proc = ProcFs::at("/nowhere");
        let glibc = |version: &str| Ok(Libc::Glibc { version: version.into() });
        for (libc, known) in [
            (glibc("2.36"), true),
            (glibc("2.34-9+deb12u4"), true),
            (glibc("?"), false),
            (Ok(Libc::Static), false),
            (Err(none("deleted")), false),
        ] {
            let process = process(libc, Ok(Runtime::Native), Ok(AllocatorKind::Glibc));
            let reading = reading(&proc, &process);
            assert_eq!(reading.unmarked(&Ok(Marks::default())).is_none(), known, "{:?}", process.libc);
            assert!(reading.unmarked(&Err(none("no key"))).is_some_and(|note| note.ends_with("no key")));
        }
    }

    /// Mappings with this stack, a heap, and private memory, all of them resident.
    fn seen(process: &Process, stack: u64) -> Seen {
        let mut seen = Seen::new(process);
        for (start, path) in [(0x1000_0000, "[heap]"), (0x2000_0000, ""), (stack, "[stack]")] {
            let perms = Perms { read: true, write: true, ..Perms::default() };
            let (end, path) = (start + 0x10_000, path.into());
            let mapping = Mapping { start, end, perms, offset: 0, dev: (0, 0), inode: 0, path };
            let resident = 0x10_000;
            seen.take(Vma { mapping, resident, lazily_freed: 0, reserved: 0, small_pages_only: false });
        }
        seen
    }

    #[test]
    fn a_32_bit_program_is_not_read_as_a_64_bit_one() {
        let proc = ProcFs::at("/nowhere");
        let narrow = "a 32-bit program";
        for (stack, complete, kind, heap, is_narrow) in [
            (0xfff0_0000, true, AllocatorKind::Glibc, 0x10_000, true),
            (0xfff0_0000, true, AllocatorKind::Musl, 0, true),
            // Not all mappings are known, or one is above 4 GiB.
            (0xfff0_0000, false, AllocatorKind::Glibc, 0x10_000, false),
            (0x7fff_0000_0000, true, AllocatorKind::Glibc, 0x10_000, false),
        ] {
            let process = process(Err(none("")), Ok(Runtime::Native), Ok(kind));
            let found = reading(&proc, &process).divide(seen(&process, stack), complete);
            assert_eq!(found.notes.iter().any(|note| note.contains(narrow)), is_narrow, "{:?}", found.notes);
            let row = |owner: ResidentOwner| &found.rows[owner as usize];
            assert_eq!(row(ResidentOwner::Heap).amount.resident_bytes, heap);
            assert_eq!(row(ResidentOwner::Private).amount.resident_bytes, 0x20_000 - heap);
            assert!(row(ResidentOwner::Heap).split.is_err());
            let sum: u64 = found.rows.iter().map(|row| row.amount.resident_bytes).sum();
            assert_eq!(sum, 0x30_000);
        }
    }

    #[test]
    fn an_end_during_the_reading_has_one_line() {
        let gone = refused(7, Absence::new(Reason::Vanished, "smaps is empty"));
        assert!(matches!(gone, Error::NoSuchProcess(7)));
        let forbidden = refused(7, Absence::new(Reason::NotPermitted, "no"));
        assert!(matches!(forbidden, Error::NotPermitted { pid: 7, .. }));
        assert!(matches!(refused(7, Absence::new(Reason::Unparsable, "no")), Error::Refused(_)));
    }
}
