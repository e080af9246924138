//! Whose memory the sampled page faults are about.
//!
//! A sample has the thread's registers. In a fault they are those of the instruction that touched the page, so the
//! memory operand of that instruction gives the address. Its mapping, and the headers that malloc and CPython keep in
//! their memory (`memory_kinds`), show the owner. All of it is read after the fault, while the target runs on.
//!
//! Up to 50 ms pass between the fault of a CPU sample and its look-up, and the address may have another owner by then. A
//! fault makes its page resident. So memory whose page is absent was given back since, and only other look-ups nearby can
//! show its owner. Where the next owner has touched the same page already, the fault would count for it: where look-ups
//! show that pages change their owners, a late look-up shows none (`places`). The faults of slices (`record::slicer`) are
//! looked up at once, so that few of them have this error.

use super::places::{At, Places, Soon};
use crate::memory_kinds::{PAGE, POOLS, block_behind_arenas, block_end, is_arena, is_pool, mapped_block};
use allocwall_host::file::absence_of;
use allocwall_host::maps::{Finder, Mapping};
use allocwall_host::memory::{PageMap, PageState, ResidentReader, Unread};
use allocwall_host::perf::Registers;
use allocwall_host::proc::ProcFs;
use allocwall_model::catalogue::owners::Owner;
use allocwall_model::recording::Runtime;
use allocwall_model::units::{Absence, Reason};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::time::{Duration, Instant};

/// The most faults that are looked up after one read of the rings. The owner of the others stays unknown.
const AT_ONCE: usize = 512;
/// What to change if there are too many. It changes samples of the CPU, not the slices of `record::faults`.
const FEWER: &str = "use a lower rate in a longer window: --rate 99 -d 60";
/// The longest time for all of them, and the part of the window for all look-ups: one in so many. A single read of the
/// target's memory can take a second.
const LOOK_UP: Duration = Duration::from_millis(10);
const LOOK_UPS: u32 = 20;
/// How long a process is left out after its memory did not answer, and how many reads without an answer end the look-ups
/// of one process, and of all: each may wait for good, in a thread of its own.
const SILENT: Duration = Duration::from_secs(3);
const SILENT_READS: u32 = 2;
const ALL_SILENT_READS: u32 = 4;
/// The most instructions that are kept.
const KEPT: usize = 4096;
/// The most pages of the target that are kept during a look-up: 4 MiB.
const PAGES_KEPT: usize = 1024;
/// The most processes whose `maps` and `pagemap` stay open.
const PROCESSES_OPEN: usize = 32;
/// The list of a process's mappings is read again at most this often, and all lists for at most one part in so many of
/// the window: the kernel holds the lock of the address space meanwhile. `LISTS_FREE`: in the first moments.
const LIST_EVERY: Duration = Duration::from_millis(250);
const LISTS: u32 = 100;
const LISTS_FREE: Duration = Duration::from_millis(5);
/// The most mappings in all lists together, about 150 bytes each.
const LISTED: usize = 128 << 10;
/// How far above and below the stack pointer an address counts as stack: signal frames, large frames, stack probes.
const STACK_REACH: u64 = 64 << 10;
/// The most places of earlier mapped blocks that are kept for a process.
const BLOCKS_KEPT: usize = 32;
/// The longest instruction of x86.
const CODE: usize = 15;

/// How a fault's address can be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The operand that the instruction writes, or the one that it reads.
    Written,
    Read,
    /// A system call that copies from or to a buffer, its second argument.
    Buffer,
    /// The kernel has reported it.
    Address(u64),
    Unknown,
}

/// A sampled fault that was not looked up yet.
pub struct Fault {
    /// Index of the sample.
    pub sample: u32,
    pub pid: i32,
    /// The process whose image it runs: itself, or the one that it was forked from. It is asked if `pid` has ended.
    pub origin: i32,
    pub registers: Registers,
    pub source: Source,
    /// None if it is looked up some time later.
    pub soon: Option<Soon>,
}

#[derive(Default)]
pub struct Faults {
    /// In order of time.
    pending: VecDeque<Fault>,
    memory: Memory,
    instructions: HashMap<(i32, u64), Vec<u8>>,
    /// Single mappings that were found in this look-up.
    found: HashMap<i32, Vec<Mapping>>,
    /// The kernel finds no single mappings.
    only_lists: bool,
    lists: HashMap<i32, List>,
    /// Look-ups read no lists: `prepare` has read them.
    lists_ahead: bool,
    places: Places,
    /// Where malloc's mapped blocks began, by process; the latest first.
    blocks: HashMap<i32, VecDeque<u64>>,
}

/// The mappings of a process, as last read.
struct List {
    read: Instant,
    /// It has all of them.
    whole: bool,
    mappings: Vec<Mapping>,
}

impl Faults {
    /// For look-ups at once: the calling thread reads the memory, and may wait for good. `limit`: the longest time for all faults
    /// of one call of `look_up`.
    pub fn at_once(limit: Duration) -> Faults {
        let mut faults = Faults { lists_ahead: true, ..Faults::default() };
        faults.memory.reader = ResidentReader::default().in_this_thread();
        faults.memory.time.limit = limit;
        faults
    }

    /// Before look-ups at once: opens the files of these processes. If the kernel finds no single mappings, it reads the lists
    /// too, which may take a thousand times as long as a look-up.
    pub fn prepare(&mut self, proc: &ProcFs, pids: &[i32]) {
        for &pid in pids {
            let Ok(process) = self.memory.opened(proc, pid) else { continue };
            // Whether there is a mapping at this address does not matter.
            self.only_lists = self.only_lists || process.finder.find(0).is_err_and(|error| no_single(&error));
            if self.only_lists {
                // A process that has ended has no list; other reasons are kept.
                let _ = self.read_list(proc, pid);
            }
        }
    }

    pub fn add(&mut self, fault: Fault) {
        // The memory of the latest faults has changed least.
        if self.pending.len() >= AT_ONCE {
            self.pending.pop_front();
            self.memory.why.get_or_insert_with(|| {
                too_costly(format!("more than {AT_ONCE} were sampled at once")).mend(FEWER)
            });
        }
        self.pending.push_back(fault);
    }

    /// Looks up the faults that were added, and passes on the owner of each: without `soon`, if the look-up began too late for
    /// that. Those that it leaves out are unknown: `missing` has the reason. `runtime`: of a process, if it is known.
    pub fn look_up<'r>(
        &mut self,
        proc: &ProcFs,
        runtime: impl Fn(i32) -> Option<&'r Runtime>,
        mut found: impl FnMut(&Fault, Owner),
    ) {
        self.memory.begin();
        self.found.clear();
        for mut fault in std::mem::take(&mut self.pending).into_iter().rev() {
            // All the others are left out, not only those that need a read of memory: else owners that are known by the name
            // of their mapping would get too large a share.
            if self.memory.is_over() {
                break;
            }
            fault.soon = fault.soon.filter(Soon::is_now);
            let runtime = runtime(fault.pid);
            let mut owner = self.owner(proc, &fault, fault.pid, runtime);
            // Parent and child map new memory at the same addresses after the fork, so the process itself is asked first.
            if owner == Err(Unread::Gone) && fault.origin != fault.pid {
                owner = self.owner(proc, &fault, fault.origin, runtime);
            }
            if owner != Err(Unread::Refused) {
                found(&fault, owner.unwrap_or(Owner::Unknown));
            }
        }
        self.memory.time.end();
    }

    /// Why faults were left out so far: the first reason.
    pub fn missing(&self) -> Option<&Absence> {
        self.memory.why.as_ref()
    }

    /// Forgets what may have changed: code and mappings of processes that execute something else, or have ended.
    pub fn forget(&mut self) {
        self.instructions.clear();
        self.memory.processes.clear();
        self.places.forget();
        self.blocks.clear();
        self.lists.retain(|_, list| list.read.elapsed() < 40 * LIST_EVERY);
    }

    /// The owner, as far as the memory of process `pid` shows it.
    fn owner(
        &mut self,
        proc: &ProcFs,
        fault: &Fault,
        pid: i32,
        runtime: Option<&Runtime>,
    ) -> Result<Owner, Unread> {
        if let Some(why) = self.memory.silent.why(pid, self.memory.time.look_up).cloned() {
            return Err(self.memory.refused(why));
        }
        let address = self.address(proc, fault, pid)?;
        let at = At { pid, address, soon: fault.soon };
        let Some(mapping) = self.mapping(proc, pid, address)? else {
            return Ok(self.places.given_back(at));
        };
        let owner = match named(&mapping) {
            // No other memory gets these addresses.
            Some(owner @ (Owner::Heap | Owner::Stack)) => owner,
            None if on_stack(&mapping, address, &fault.registers, runtime) => Owner::Stack,
            _ if self.memory.is_absent(proc, pid, address)? => return Ok(self.places.given_back(at)),
            Some(owner) => owner,
            None => {
                let python = matches!(runtime, Some(Runtime::Cpython { .. }));
                let owner = self.owner_by_headers(proc, pid, &mapping, address, python);
                // It may have been given back while its headers were read.
                if self.memory.is_absent(proc, pid, address)? {
                    return Ok(self.places.given_back(at));
                }
                owner
            }
        };
        Ok(if owner.is_known() { self.places.found(at, owner) } else { owner })
    }

    fn address(&mut self, proc: &ProcFs, fault: &Fault, pid: i32) -> Result<u64, Unread> {
        // Also for buffers, which need no decoding: else their owners would get too large a share.
        if let (Some(why), Source::Written | Source::Read | Source::Buffer) = (operand::MISSING, fault.source)
        {
            return Err(self.memory.refused(Absence::new(Reason::NotSupported, why)));
        }
        let address = match fault.source {
            Source::Unknown => None,
            Source::Address(address) => Some(address),
            Source::Buffer => operand::second_argument(&fault.registers),
            Source::Written | Source::Read => {
                let at = operand::instruction_pointer(&fault.registers);
                let code = self.code(proc, pid, at)?;
                operand::address(&code, &fault.registers, fault.source == Source::Written)
            }
        };
        address.ok_or(Unread::Unreadable)
    }

    /// The bytes of an instruction, and what follows it on the same page.
    fn code(&mut self, proc: &ProcFs, pid: i32, at: u64) -> Result<Vec<u8>, Unread> {
        if let Some(known) = self.instructions.get(&(pid, at)) {
            return Ok(known.clone());
        }
        let page = self.memory.page(proc, pid, at / PAGE)?.ok_or(Unread::Unreadable)?;
        let code: Vec<u8> = page.iter().copied().skip((at % PAGE) as usize).take(CODE).collect();
        if self.instructions.len() >= KEPT {
            self.instructions.clear();
        }
        self.instructions.insert((pid, at), code.clone());
        Ok(code)
    }

    /// The mapping that holds an address; None if there is none.
    fn mapping(&mut self, proc: &ProcFs, pid: i32, address: u64) -> Result<Option<Mapping>, Unread> {
        let mut known = self.found.get(&pid).into_iter().flatten();
        if let Some(known) = known.find(|mapping| holds(mapping, address)) {
            return Ok(Some(known.clone()));
        }
        if !self.only_lists {
            let answer = self.memory.opened(proc, pid)?.finder.find(address);
            match answer {
                Err(error) if no_single(&error) => self.only_lists = true,
                Err(error) => return Err(self.memory.failed(pid, Unread::of(&error))),
                Ok(mapping) => {
                    self.found.entry(pid).or_default().extend(mapping.clone());
                    return Ok(mapping);
                }
            }
        }
        self.listed_mapping(proc, pid, address)
    }

    /// For a kernel that finds no single mappings (before Linux 6.11): from the list, which is read now and then.
    fn listed_mapping(&mut self, proc: &ProcFs, pid: i32, address: u64) -> Result<Option<Mapping>, Unread> {
        if !self.lists_ahead {
            self.read_list(proc, pid)?;
        }
        let Some(list) = self.lists.get(&pid) else {
            let why = "allocwall reached its time limit for reading lists of mappings, and this kernel finds no single ones";
            return Err(self.memory.refused(too_costly(why.to_owned())));
        };
        let at = list.mappings.partition_point(|mapping| mapping.end <= address);
        let mapping = list.mappings.get(at).filter(|mapping| holds(mapping, address)).cloned();
        // The memory may have been mapped after an older list was read.
        let shows_all = list.whole && list.read >= self.memory.time.look_up;
        if mapping.is_none() && !shows_all { Err(Unread::Unreadable) } else { Ok(mapping) }
    }

    /// Reads the list of a process's mappings, if the last one is old and there is time for it.
    fn read_list(&mut self, proc: &ProcFs, pid: i32) -> Result<(), Unread> {
        let due = self.lists.get(&pid).is_none_or(|list| list.read.elapsed() >= LIST_EVERY);
        if !due || !self.memory.time.has_time_for_lists() {
            return Ok(());
        }
        let thread = self.memory.opened(proc, pid)?.thread;
        let read = Instant::now();
        let kept = proc.maps(thread, |_| true);
        self.memory.time.lists += read.elapsed();
        let kept = kept.map_err(|why| match why.is_gone() {
            true => Unread::Gone,
            false => self.memory.refused(why),
        })?;
        if kept.mappings.is_empty() {
            return Err(Unread::Gone);
        }
        let list = List { read, whole: kept.cut.is_none(), mappings: kept.mappings };
        keep(&mut self.lists, pid, list, LISTED);
        Ok(())
    }

    /// For private memory without a name.
    fn owner_by_headers(
        &mut self,
        proc: &ProcFs,
        pid: i32,
        mapping: &Mapping,
        address: u64,
        python: bool,
    ) -> Owner {
        let (start, end) = (mapping.start, mapping.end);
        let mut unread = false;
        let mut word = |at: u64| {
            if at < start || at.checked_add(8).is_none_or(|behind| behind > end) {
                return None;
            }
            let word = self.memory.word(proc, pid, at);
            unread |= word.is_err();
            word.ok()
        };
        if is_arena(start, address, &mut word) {
            return Owner::Arena;
        }
        let blocks = self.blocks.entry(pid).or_default();
        let in_block = in_block(start, end, address, blocks, &mut word);
        if in_block == Some(true) {
            return Owner::MappedBlock;
        }
        if python && POOLS.iter().any(|pool| is_pool(*pool, address, &mut word)) {
            return Owner::PythonArena;
        }
        if python && let Some(block) = block_behind_arenas(start, end, address, &mut word) {
            remember(blocks, block);
            return Owner::MappedBlock;
        }
        if unread || in_block.is_none() { Owner::Unknown } else { Owner::Private }
    }
}

/// Whether an address is in one of malloc's mapped blocks; None if that is unknown. The kernel merges neighbours, and if other
/// memory lies before a block, none begins where the mapping does. Programs map blocks where others were before, so the places of
/// `earlier` ones are tried too; a header must be there now.
fn in_block(
    start: u64,
    end: u64,
    address: u64,
    earlier: &mut VecDeque<u64>,
    word: &mut dyn FnMut(u64) -> Option<u64>,
) -> Option<bool> {
    let found = mapped_block(start, end, address, word);
    if let Some(Some(block)) = found {
        remember(earlier, block);
        return Some(true);
    }
    let mut before = earlier.iter().filter(|block| (start..=address).contains(*block));
    let again = before.any(|block| block_end(*block, end, word).is_some_and(|end| address < end));
    if again { Some(true) } else { found.map(|_| false) }
}

fn remember(earlier: &mut VecDeque<u64>, block: u64) {
    if !earlier.contains(&block) {
        earlier.truncate(BLOCKS_KEPT - 1);
        earlier.push_front(block);
    }
}

/// Whether the kernel cannot find single mappings, by its answer.
fn no_single(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ENOTTY)
}

fn holds(mapping: &Mapping, address: u64) -> bool {
    mapping.start <= address && address < mapping.end
}

/// The owner that the name of a mapping shows; None for private memory without a name.
fn named(mapping: &Mapping) -> Option<Owner> {
    let (path, shared) = (&mapping.path[..], mapping.perms.shared);
    let starts = |start: &[u8]| path.starts_with(start);
    if path == b"[heap]" {
        Some(Owner::Heap)
    } else if starts(b"[stack") || starts(b"[anon: glibc: pthread") {
        Some(Owner::Stack)
    } else if !shared && (starts(b"/anon_hugepage") || starts(b"/dev/zero")) {
        None
    } else if mapping.is_nameless_memory() || (shared && !mapping.is_file()) {
        Some(Owner::Shared)
    } else {
        mapping.is_file().then_some(Owner::File)
    }
}

/// Whether an address in private memory is on the thread's stack. Go's stacks are in its heap, beside other objects.
fn on_stack(mapping: &Mapping, address: u64, registers: &Registers, runtime: Option<&Runtime>) -> bool {
    let pointer = operand::stack_pointer(registers);
    let go = matches!(runtime, Some(Runtime::Go { .. }));
    !go && holds(mapping, pointer) && address.abs_diff(pointer) <= STACK_REACH
}

/// Keeps a list, and forgets the oldest others if there are more than `most` mappings in all.
fn keep(lists: &mut HashMap<i32, List>, pid: i32, list: List, most: usize) {
    lists.remove(&pid);
    let mut kept = list.mappings.len() + lists.values().map(|list| list.mappings.len()).sum::<usize>();
    while kept > most {
        let oldest = lists.iter().min_by_key(|(_, list)| list.read).map(|(pid, _)| *pid);
        let Some(oldest) = oldest.and_then(|pid| lists.remove(&pid)) else { break };
        kept -= oldest.mappings.len();
    }
    lists.insert(pid, list);
}

/// How much time the look-ups took. It includes the time in which the reads wait for a CPU or for a lock of the target, except
/// for reads without an answer: their number is limited.
struct Time {
    /// When the window began, about, and this look-up.
    window: Instant,
    look_up: Instant,
    /// The most for one look-up.
    limit: Duration,
    /// In earlier look-ups.
    look_ups: Duration,
    lists: Duration,
    /// The waits of this look-up for an answer that did not come.
    silent: Duration,
}

impl Default for Time {
    fn default() -> Time {
        let now = Instant::now();
        let none = Duration::ZERO;
        Time { window: now, look_up: now, limit: LOOK_UP, look_ups: none, lists: none, silent: none }
    }
}

impl Time {
    /// Until when this look-up may read.
    fn deadline(&self) -> Instant {
        let left = (self.limit + self.window.elapsed() / LOOK_UPS).saturating_sub(self.look_ups);
        self.look_up + left.min(self.limit)
    }

    fn has_time_for_lists(&self) -> bool {
        self.lists < LISTS_FREE + self.window.elapsed() / LISTS
    }

    fn end(&mut self) {
        self.look_ups += self.look_up.elapsed().saturating_sub(std::mem::take(&mut self.silent));
    }
}

fn too_costly(detail: String) -> Absence {
    Absence::new(Reason::TooCostly, detail)
}

/// The processes whose memory did not answer.
#[derive(Default)]
struct Silent {
    processes: HashMap<i32, NoAnswer>,
    reads: u32,
}

struct NoAnswer {
    reads: u32,
    /// Of the last read.
    at: Instant,
    why: Absence,
}

impl Silent {
    fn add(&mut self, pid: i32, at: Instant, why: Absence) {
        let reads = self.processes.get(&pid).map_or(0, |before| before.reads) + 1;
        self.processes.insert(pid, NoAnswer { reads, at, why });
        self.reads += 1;
    }

    /// Why a process is left out of a look-up that began at this time.
    fn why(&self, pid: i32, look_up: Instant) -> Option<&Absence> {
        if self.reads >= ALL_SILENT_READS {
            let last = self.processes.values().max_by_key(|silent| silent.at);
            return last.map(|silent| &silent.why);
        }
        let silent = self.processes.get(&pid)?;
        (silent.reads >= SILENT_READS || look_up < silent.at + SILENT).then_some(&silent.why)
    }
}

/// The memory of the target's processes.
#[derive(Default)]
struct Memory {
    processes: HashMap<i32, Process>,
    /// Counts the uses of all of them.
    uses: u64,
    reader: ResidentReader,
    /// Pages of this look-up by process and number; None if there is none.
    pages: HashMap<(i32, u64), Option<Vec<u8>>>,
    time: Time,
    silent: Silent,
    /// Why something was not read: the first reason.
    why: Option<Absence>,
}

/// Open files of a process.
struct Process {
    /// A living thread, whose entries in /proc show the memory.
    thread: i32,
    finder: Finder,
    pages: PageMap,
    /// The number of its last use.
    used: u64,
}

impl Process {
    fn open(proc: &ProcFs, pid: i32) -> io::Result<Process> {
        let thread = proc.living_thread(pid);
        let finder = Finder::open(proc.root(), thread)?;
        let pages = PageMap::open(proc, thread)?;
        // Some kernels also open the files of a process that has ended. They are empty.
        pages.state(0)?;
        Ok(Process { thread, finder, pages, used: 0 })
    }
}

impl Memory {
    /// Begins a look-up.
    fn begin(&mut self) {
        self.time.look_up = Instant::now();
        self.reader.until(self.time.deadline());
        self.pages.clear();
    }

    fn is_over(&mut self) -> bool {
        if self.reader.is_over() {
            let out_of_time = || {
                let detail = "allocwall reached its time limit for reading the target's memory";
                too_costly(detail.to_owned()).mend(FEWER)
            };
            self.why.get_or_insert_with(out_of_time);
            return true;
        }
        false
    }

    fn refused(&mut self, why: Absence) -> Unread {
        self.why.get_or_insert(why);
        Unread::Refused
    }

    fn opened(&mut self, proc: &ProcFs, pid: i32) -> Result<&Process, Unread> {
        if !self.processes.contains_key(&pid) {
            let process = Process::open(proc, pid).map_err(|error| match Unread::of(&error) {
                Unread::Gone => Unread::Gone,
                _ => self.refused(absence_of(&proc.root().join(pid.to_string()), &error)),
            })?;
            if self.processes.len() >= PROCESSES_OPEN {
                let idle = self.processes.iter().min_by_key(|(_, process)| process.used).map(|(pid, _)| *pid);
                if let Some(idle) = idle {
                    self.processes.remove(&idle);
                }
            }
            self.processes.insert(pid, process);
        }
        self.uses += 1;
        let process = self.processes.get_mut(&pid).ok_or(Unread::Unreadable)?;
        process.used = self.uses;
        Ok(&*process)
    }

    /// A process could not be read. The next process with this number, or program of this process, has other files.
    fn failed(&mut self, pid: i32, unread: Unread) -> Unread {
        if unread == Unread::Gone {
            self.processes.remove(&pid);
        }
        // Keeps the reason.
        self.is_over();
        unread
    }

    /// A process's memory did not answer. Others are read by another thread.
    fn no_answer(&mut self, pid: i32, waited: Duration, why: Absence) {
        self.time.silent += waited;
        self.why.get_or_insert_with(|| why.clone());
        self.silent.add(pid, Instant::now(), why);
        self.reader.begin_again();
    }

    /// Whether there is no page with this address.
    fn is_absent(&mut self, proc: &ProcFs, pid: i32, address: u64) -> Result<bool, Unread> {
        let state = self.opened(proc, pid)?.pages.state(address);
        state.map(|state| state == PageState::Absent).map_err(|error| self.failed(pid, Unread::of(&error)))
    }

    /// The bytes of a page; None if there is no such page.
    fn page(&mut self, proc: &ProcFs, pid: i32, page: u64) -> Result<Option<&[u8]>, Unread> {
        if !self.pages.contains_key(&(pid, page)) {
            self.opened(proc, pid)?;
            let process = self.processes.get(&pid).ok_or(Unread::Unreadable)?;
            let (asked, mut bytes) = (Instant::now(), Vec::new());
            let bytes = match self.reader.read(&process.pages, page * PAGE, 1, &mut bytes) {
                Ok(()) => Some(bytes),
                Err(Unread::Absent) => None,
                Err(unread) => {
                    if let Some(why) = self.reader.failure().cloned() {
                        self.no_answer(pid, asked.elapsed(), why);
                    }
                    return Err(self.failed(pid, unread));
                }
            };
            if self.pages.len() >= PAGES_KEPT {
                self.pages.clear();
            }
            self.pages.insert((pid, page), bytes);
        }
        Ok(self.pages.get(&(pid, page)).and_then(|bytes| bytes.as_deref()))
    }

    /// A word of private memory.
    fn word(&mut self, proc: &ProcFs, pid: i32, at: u64) -> Result<u64, Unread> {
        // A page that was never touched, or was given back, reads as zeros.
        let Some(page) = self.page(proc, pid, at / PAGE)? else { return Ok(0) };
        let word = page.get((at % PAGE) as usize..).and_then(|rest| rest.first_chunk::<8>());
        word.map(|word| u64::from_le_bytes(*word)).ok_or(Unread::Unreadable)
    }
}

#[cfg(target_arch = "x86_64")]
mod operand {
    //! Registers have the order of `perf::Registers`: AX BX CX DX SI DI BP SP IP, R8 to R15.

    use super::Registers;
    use iced_x86::{Decoder, DecoderOptions, OpKind, Register};

    pub const MISSING: Option<&str> = None;

    pub fn stack_pointer(registers: &Registers) -> u64 {
        registers[7]
    }

    pub fn instruction_pointer(registers: &Registers) -> u64 {
        registers[8]
    }

    pub fn second_argument(registers: &Registers) -> Option<u64> {
        Some(registers[4])
    }

    /// The address of the memory operand; of the written one, if an instruction has two. None if it has none, or if the
    /// address depends on a register that a sample doesn't have (segments, vectors), or if the code ends within the
    /// instruction.
    pub fn address(code: &[u8], registers: &Registers, written: bool) -> Option<u64> {
        let ip = instruction_pointer(registers);
        let instruction = Decoder::with_ip(64, code, ip, DecoderOptions::NONE).decode();
        if instruction.is_invalid() {
            return None;
        }
        let operands = || (0..instruction.op_count()).filter(|op| is_memory(instruction.op_kind(*op)));
        // The destination is the first operand, also of the string instructions.
        let chosen = if written { operands().next() } else { operands().next_back() };
        match chosen {
            Some(op) => instruction.virtual_address(op, 0, |register, _, _| value(register, registers)),
            // A push or a call writes below the stack pointer.
            None if instruction.is_stack_instruction() => Some(stack_pointer(registers).wrapping_sub(8)),
            // The page of the instruction itself.
            None => Some(ip),
        }
    }

    fn is_memory(kind: OpKind) -> bool {
        matches!(
            kind,
            OpKind::Memory
                | OpKind::MemorySegSI
                | OpKind::MemorySegESI
                | OpKind::MemorySegRSI
                | OpKind::MemorySegDI
                | OpKind::MemorySegEDI
                | OpKind::MemorySegRDI
                | OpKind::MemoryESDI
                | OpKind::MemoryESEDI
                | OpKind::MemoryESRDI
        )
    }

    fn value(register: Register, registers: &Registers) -> Option<u64> {
        let at = match register.full_register() {
            Register::RAX => 0,
            Register::RBX => 1,
            Register::RCX => 2,
            Register::RDX => 3,
            Register::RSI => 4,
            Register::RDI => 5,
            Register::RBP => 6,
            Register::RSP => 7,
            Register::RIP => 8,
            Register::R8 => 9,
            Register::R9 => 10,
            Register::R10 => 11,
            Register::R11 => 12,
            Register::R12 => 13,
            Register::R13 => 14,
            Register::R14 => 15,
            Register::R15 => 16,
            // Flat segments.
            Register::ES | Register::CS | Register::SS | Register::DS => return Some(0),
            _ => return None,
        };
        Some(registers[at])
    }
}

#[cfg(target_arch = "aarch64")]
mod operand {
    //! Instructions are not decoded on this architecture. Registers: X0 to X29, LR, SP, PC.

    use super::Registers;

    pub const MISSING: Option<&str> = Some(
        "not on aarch64: the address of a fault in a CPU sample is an operand of its instruction, which is decoded on x86-64 only",
    );

    pub fn stack_pointer(registers: &Registers) -> u64 {
        registers[31]
    }

    pub fn instruction_pointer(registers: &Registers) -> u64 {
        registers[32]
    }

    pub fn second_argument(registers: &Registers) -> Option<u64> {
        Some(registers[1])
    }

    pub fn address(_code: &[u8], _registers: &Registers, _written: bool) -> Option<u64> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Owner::*;
    use allocwall_host::perf_faults::STACK_POINTER;
    use rustix::process::{Pid, Signal, kill_process};
    use std::io::{BufRead, BufReader, Lines, Write};
    use std::path::Path;
    use std::process::{Child, ChildStdout, Command, Stdio};

    #[test]
    fn a_block_behind_other_memory_is_found_where_an_earlier_one_was() {
        const BASE: u64 = 0x7f12_4000_0000;
        let header = |block: u64| move |at: u64| Some(if at == block + 8 { 0x10_0002 } else { 0 });
        let mut earlier = VecDeque::new();
        let (block, end) = (BASE + 0x10_0000, BASE + 0x20_0000);
        let at = block + 0x5000;
        // Nothing shows that there is a block.
        assert_eq!(in_block(BASE, end, at, &mut earlier, &mut header(block)), Some(false));
        assert_eq!(in_block(block, end, at, &mut earlier, &mut header(block)), Some(true));
        assert_eq!(in_block(BASE, end, at, &mut earlier, &mut header(block)), Some(true));
        // It has gone, or ends before the address, or the address is before it.
        assert_eq!(in_block(BASE, end, at, &mut earlier, &mut |_| Some(0)), Some(false));
        assert_eq!(in_block(BASE, end + 0x1000, end, &mut earlier, &mut header(block)), Some(false));
        assert_eq!(in_block(BASE, end, BASE + 0x5000, &mut earlier, &mut header(block)), Some(false));
        for n in 1..100 {
            let block = BASE + n * 0x10_0000;
            assert_eq!(
                in_block(block, block + 0x10_0000, block, &mut earlier, &mut header(block)),
                Some(true)
            );
        }
        assert_eq!(earlier.len(), BLOCKS_KEPT);
    }

    /// A program with memory of every kind. It prints where each is, and changes some of it when it gets a line.
    const SUBJECT: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { PAGE = 4096, BOTH = PROT_READ | PROT_WRITE, OWN = MAP_PRIVATE | MAP_ANONYMOUS };
static pthread_barrier_t ready;

static void say(const char *name, const void *at) { printf("%s %lu\n", name, (unsigned long)at); }
static void finish(void) { puts("end"); fflush(stdout); }

/* Small pages: only those that are touched become resident. */
static char *map(size_t pages, int rights, int flags, int file) {
    char *at = mmap(NULL, pages * PAGE, rights, flags, file, 0);
    if (at == MAP_FAILED) abort();
    madvise(at, pages * PAGE, MADV_NOHUGEPAGE);
    return at;
}

static void *thread(void *unused) {
    char *block = malloc(1000), local = 1;
    memset(block, 1, 1000);
    say("arena", block);
    say("stack", &local);
    say("pointer", __builtin_frame_address(0));
    pthread_barrier_wait(&ready);
    for (;;) pause();
    return unused;
}

int main(int count, char **names) {
    alarm(120);
    say("heap", malloc(1000));
    /* More than the largest possible mmap threshold. The advice keeps its mapping apart from its neighbours. */
    char *block = malloc(40 << 20);
    madvise(block - 16, malloc_usable_size(block) + 16, MADV_DONTDUMP);
    block[20 << 20] = 1;
    say("block", block + (20 << 20));
    /* From a multiple of 2 MiB on. */
    uintptr_t place = 2 << 20;
    char *own = (char *)(((uintptr_t)map(1024, BOTH, OWN, -1) + place) & ~(place - 1));
    own[5 * PAGE] = 1;
    own[7 * PAGE] = 1;
    say("own", own);
    char *plain = map(8, BOTH, OWN, -1), *hidden = map(8, PROT_WRITE, OWN, -1);
    plain[0] = 1;
    plain[5 * PAGE] = 1;
    hidden[0] = 1;
    hidden[5 * PAGE] = 1;
    say("plain", plain);
    say("hidden", hidden);
    char *shared = map(2, BOTH, MAP_SHARED | MAP_ANONYMOUS, -1);
    shared[0] = 1;
    say("shared", shared);
    int file = memfd_create("subject", 0);
    if (ftruncate(file, 2 * PAGE)) abort();
    char *memory = map(2, BOTH, MAP_SHARED, file);
    memory[0] = 1;
    say("memfd", memory);
    char *program = map(1, PROT_READ, MAP_PRIVATE, open(names[0], O_RDONLY));
    (void)*(volatile char *)program;
    say("file", program);
    /* Two mappings side by side. */
    char *split = map(32, BOTH, OWN, -1);
    split[15 * PAGE] = 1;
    mprotect(split + 16 * PAGE, 16 * PAGE, PROT_READ);
    say("split", split);
    /* Touched, given back, and mapped again. */
    char *again = map(8, BOTH, OWN, -1);
    again[5 * PAGE] = 1;
    munmap(again, 8 * PAGE);
    mmap(again, 8 * PAGE, BOTH, OWN | MAP_FIXED, -1, 0);
    madvise(again, 8 * PAGE, MADV_NOHUGEPAGE);
    say("again", again);
    char *leaving = map(8, BOTH, OWN, -1);
    leaving[5 * PAGE] = 1;
    say("leaving", leaving);
    /* The header of a block of malloc. */
    char *forged = map(8, BOTH, OWN, -1);
    madvise(forged, 8 * PAGE, MADV_DONTFORK);
    *(uint64_t *)(forged + 8) = 8 * PAGE | 2;
    forged[5 * PAGE] = 1;
    say("forged", forged);
    /* movb $1, (%rdi): on the first page, across its end, and at the end of the second. The third is not touched. */
    char *code = map(3, BOTH, OWN, -1);
    memcpy(code, "\xc6\x07\x01", 3);
    memcpy(code + PAGE - 2, "\xc6\x07\x01", 3);
    memcpy(code + 2 * PAGE - 3, "\xc6\x07\x01", 3);
    say("code", code);
    pthread_t other;
    pthread_barrier_init(&ready, NULL, 2);
    if (pthread_create(&other, NULL, thread, NULL)) abort();
    pthread_barrier_wait(&ready);
    /* Parent and child map different memory at the same address. */
    char *later = map(8, PROT_NONE, OWN, -1);
    say("later", later);
    fflush(stdout);
    int ends[2];
    char byte = 1;
    if (pipe(ends)) abort();
    pid_t child = fork();
    if (child == 0) prctl(PR_SET_PDEATHSIG, SIGKILL);
    int flags = (child == 0 ? MAP_SHARED : MAP_PRIVATE) | MAP_ANONYMOUS | MAP_FIXED;
    mmap(later, 8 * PAGE, BOTH, flags, -1, 0);
    later[5 * PAGE] = 1;
    if (child == 0) {
        if (write(ends[1], &byte, 1) != 1) abort();
        for (;;) pause();
    }
    if (read(ends[0], &byte, 1) != 1) abort();
    printf("child %d\n", child);
    finish();
    getchar();
    memset(forged, 0, 16);
    munmap(leaving, 8 * PAGE);
    finish();
    for (;;) pause();
}
"#;

    struct Subject {
        child: Child,
        lines: Lines<BufReader<ChildStdout>>,
        places: HashMap<String, u64>,
    }

    impl Drop for Subject {
        fn drop(&mut self) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }

    impl Subject {
        fn compiled() -> Option<Subject> {
            let folder = tempfile::tempdir().expect("a folder");
            let (source, program) = (folder.path().join("subject.c"), folder.path().join("subject"));
            std::fs::write(&source, SUBJECT).expect("write");
            let Ok(built) =
                Command::new("cc").args(["-O0", "-pthread", "-o"]).arg(&program).arg(&source).output()
            else {
                println!("skipped: no C compiler on this machine");
                return None;
            };
            assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
            Some(Subject::start(&mut Command::new(&program)))
        }

        fn start(command: &mut Command) -> Subject {
            let command = command.env_clear().stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut child = command.spawn().expect("a subject");
            let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
            let mut subject = Subject { child, lines, places: HashMap::new() };
            subject.read();
            subject
        }

        fn read(&mut self) {
            for line in self.lines.by_ref() {
                let line = line.expect("text");
                let Some((name, at)) = line.split_once(' ') else { return };
                self.places.insert(name.to_owned(), at.parse().expect("a number"));
            }
            panic!("the subject has ended");
        }

        fn go_on(&mut self) {
            self.child.stdin.as_mut().expect("a pipe").write_all(b"\n").expect("write");
            self.read();
        }

        fn at(&self, name: &str) -> u64 {
            self.places[name]
        }

        /// A fault on a page of this memory, by a thread with this stack pointer.
        fn fault(&self, name: &str, page: u64, pointer: u64) -> Fault {
            fault(self.child.id() as i32, self.at(name) + page * PAGE, pointer)
        }
    }

    fn fault(pid: i32, address: u64, pointer: u64) -> Fault {
        // The second argument and the stack pointer, in the order of `Registers`.
        let [argument, stack] = if cfg!(target_arch = "x86_64") { [4, 7] } else { [1, 31] };
        let mut registers = [0; allocwall_host::perf::REGISTERS];
        registers[argument] = address;
        registers[stack] = pointer;
        Fault { sample: 7, pid, origin: pid, registers, source: Source::Buffer, soon: None }
    }

    /// With time for look-ups on a busy machine. `only_lists`: as on an old kernel.
    fn faults(only_lists: bool) -> Faults {
        let mut faults = Faults { only_lists, ..Faults::default() };
        faults.memory.time.limit = Duration::from_secs(60);
        faults
    }

    /// None if it is not looked up.
    fn owner(faults: &mut Faults, fault: Fault, runtime: Option<&Runtime>) -> Option<Owner> {
        let mut found = None;
        faults.add(fault);
        faults.look_up(
            &ProcFs::live(),
            |_| runtime,
            |fault, owner| {
                assert_eq!(fault.sample, 7);
                found = Some(owner);
            },
        );
        found
    }

    #[test]
    fn memory_of_every_kind_has_its_owner() {
        let Some(subject) = Subject::compiled() else { return };
        let cases = [
            ("heap", 0, Heap),
            ("arena", 0, Arena),
            ("block", 0, MappedBlock),
            // Its first page was never touched, so there is no header of malloc.
            ("own", 5, Private),
            ("plain", 5, Private),
            // Memory that can only be written: there may be a header.
            ("hidden", 5, Unknown),
            ("shared", 0, Shared),
            // Nothing has touched this page of it: the fault was on the memory that was there before.
            ("shared", 1, Unmapped),
            ("memfd", 0, Shared),
            ("file", 0, File),
        ];
        for only_lists in [false, true] {
            for (name, page, expected) in cases {
                let found = owner(&mut faults(only_lists), subject.fault(name, page, 0), None);
                assert_eq!(found, Some(expected), "{name}, only lists: {only_lists}");
            }
            let nowhere = fault(subject.child.id() as i32, PAGE, 0);
            assert_eq!(owner(&mut faults(only_lists), nowhere, None), Some(Unmapped));
        }
    }

    #[test]
    fn a_reported_address_needs_no_registers() {
        let Some(subject) = Subject::compiled() else { return };
        let of = |name: &str, page: u64, pointer: u64| {
            let mut fault = fault(subject.child.id() as i32, 0, 0);
            fault.registers[STACK_POINTER] = pointer;
            fault.source = Source::Address(subject.at(name) + page * PAGE);
            owner(&mut faults(false), fault, None)
        };
        assert_eq!(
            [of("heap", 0, 0), of("arena", 0, 0), of("own", 5, 0)],
            [Some(Heap), Some(Arena), Some(Private)]
        );
        // The stack pointer alone tells a stack from other private memory.
        let pointer = subject.at("pointer");
        assert_eq!([of("stack", 0, pointer), of("stack", 0, 0)], [Some(Stack), Some(Private)]);
        for address in [0, 1 << 63, u64::MAX] {
            let source = Source::Address(address);
            let anywhere = Fault { source, ..fault(subject.child.id() as i32, 0, 0) };
            let found = owner(&mut faults(false), anywhere, None);
            assert!(found.is_some_and(|owner| !owner.is_known()), "{address:x}: {found:?}");
        }
    }

    #[test]
    fn a_stack_is_near_the_stack_pointer_and_in_its_mapping() {
        let Some(subject) = Subject::compiled() else { return };
        let of = |fault, runtime: Option<&Runtime>| owner(&mut faults(false), fault, runtime);
        let pointer = subject.at("pointer");
        assert_eq!(of(subject.fault("stack", 0, pointer), None), Some(Stack));
        let go = Runtime::Go { version: None };
        assert_eq!(of(subject.fault("stack", 0, pointer), Some(&go)), Some(Private));
        assert_eq!(of(subject.fault("own", 5, pointer), None), Some(Private));
        let split = subject.at("split");
        assert_eq!(of(subject.fault("split", 15, split + 14 * PAGE), None), Some(Stack));
        assert_eq!(of(subject.fault("split", 15, split + 16 * PAGE), None), Some(Private));
        // What has a name is not taken for a stack.
        assert_eq!(of(subject.fault("heap", 0, subject.at("heap")), None), Some(Heap));
    }

    #[test]
    fn objects_of_python_are_in_its_arenas() {
        const PYTHON: &str = "/usr/bin/python3";
        const OBJECTS: &str = "import sys; kept = [bytes(40) for _ in range(1000)]; \
                               print('object', id(kept[500])); print('end', flush=True); sys.stdin.read()";
        if !Path::new(PYTHON).exists() {
            return println!("skipped: no {PYTHON} on this machine");
        }
        let subject = Subject::start(Command::new(PYTHON).args(["-c", OBJECTS]));
        let python = Runtime::Cpython { version: "3".into(), free_threaded: false };
        for (runtime, expected) in [(Some(&python), PythonArena), (None, Private)] {
            assert_eq!(owner(&mut faults(false), subject.fault("object", 0, 0), runtime), Some(expected));
        }
    }

    #[test]
    fn memory_that_was_given_back_does_not_count_for_its_next_owner() {
        let Some(mut subject) = Subject::compiled() else { return };
        let of = |faults: &mut Faults, fault| owner(faults, fault, None);
        assert_eq!(of(&mut faults(false), subject.fault("again", 5, 0)), Some(Unmapped));
        // The only owner that was seen nearby has it, but none if there were two.
        let mut seen = faults(false);
        assert_eq!(of(&mut seen, subject.fault("own", 6, 0)), Some(Unmapped));
        assert_eq!(of(&mut seen, subject.fault("own", 5, 0)), Some(Private));
        assert_eq!(of(&mut seen, subject.fault("own", 6, 0)), Some(Private));
        assert_eq!(of(&mut seen, subject.fault("own", 7, subject.at("own") + 7 * PAGE)), Some(Stack));
        assert_eq!(of(&mut seen, subject.fault("own", 6, 0)), Some(Unmapped));
        // The same for memory that is not mapped any more. Headers are read again each time.
        let (mut left, mut forged) = (faults(false), faults(false));
        assert_eq!(of(&mut left, subject.fault("leaving", 5, 0)), Some(Private));
        assert_eq!(of(&mut forged, subject.fault("forged", 5, 0)), Some(MappedBlock));
        subject.go_on();
        assert_eq!(of(&mut left, subject.fault("leaving", 5, 0)), Some(Private));
        assert_eq!(of(&mut faults(false), subject.fault("leaving", 5, 0)), Some(Unmapped));
        assert_eq!(of(&mut faults(false), subject.fault("forged", 5, 0)), Some(Private));
    }

    #[test]
    fn memory_that_changed_its_owner_since_has_one_only_if_it_is_looked_up_at_once() {
        let Some(mut subject) = Subject::compiled() else { return };
        let [soon, too_late] = [u64::MAX, 5].map(|time_ns| Some(Soon { tid: 1, time_ns }));
        let of = |faults: &mut Faults, fault| owner(faults, fault, None);
        let mut faults = faults(false);
        assert_eq!(of(&mut faults, subject.fault("forged", 5, 0)), Some(MappedBlock));
        let own = of(&mut faults, subject.fault("own", 5, 0));
        subject.go_on();
        assert_eq!(of(&mut faults, subject.fault("forged", 5, 0)), Some(Unknown));
        assert_eq!(of(&mut faults, Fault { soon: too_late, ..subject.fault("forged", 5, 0) }), Some(Unknown));
        assert_eq!(of(&mut faults, Fault { soon, ..subject.fault("forged", 5, 0) }), Some(Private));
        // The near twin has had the same owner.
        assert_eq!((own, of(&mut faults, subject.fault("own", 5, 0))), (Some(Private), Some(Private)));
    }

    #[test]
    fn the_origin_is_asked_only_after_the_process_has_ended() {
        let Some(subject) = Subject::compiled() else { return };
        let (parent, child) = (subject.child.id() as i32, subject.at("child") as i32);
        let of_child = || Fault { pid: child, origin: parent, ..subject.fault("later", 5, 0) };
        let mut kept = faults(false);
        for only_lists in [false, true] {
            let of = |fault| owner(&mut faults(only_lists), fault, None);
            assert_eq!(of(of_child()), Some(Shared), "only lists: {only_lists}");
            assert_eq!(of(subject.fault("later", 5, 0)), Some(Private), "only lists: {only_lists}");
        }
        assert_eq!(owner(&mut kept, of_child(), None), Some(Shared));
        kill_process(Pid::from_raw(child).expect("a process"), Signal::KILL).expect("our own subject");
        // The parent doesn't wait for it, so it stays a zombie.
        while ProcFs::live().process_stat(child).is_ok_and(|stat| stat.state != 'Z') {
            std::thread::sleep(Duration::from_millis(1));
        }
        for only_lists in [false, true] {
            assert_eq!(owner(&mut faults(only_lists), of_child(), None), Some(Private), "{only_lists}");
            let alone = Fault { origin: child, ..of_child() };
            assert_eq!(owner(&mut faults(only_lists), alone, None), Some(Unknown), "{only_lists}");
        }
        // Its files were open before. (A list may be older than its end.)
        if !kept.only_lists {
            assert_eq!(owner(&mut kept, of_child(), None), Some(Private));
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn code_is_read_to_the_end_of_its_page_if_the_page_is_resident() {
        let Some(subject) = Subject::compiled() else { return };
        let code = subject.at("code");
        let run_at = |ip: u64| {
            let mut fault = subject.fault("own", 5, 0);
            // RDI and RIP.
            (fault.registers[5], fault.registers[8]) = (subject.at("own") + 5 * PAGE, ip);
            fault.source = Source::Written;
            owner(&mut faults(false), fault, None)
        };
        assert_eq!(run_at(code), Some(Private));
        assert_eq!(run_at(code + 2 * PAGE - 3), Some(Private));
        assert_eq!(run_at(code + PAGE - 2), Some(Unknown));
        assert_eq!(run_at(code + 2 * PAGE), Some(Unknown));
        let pages = PageMap::open(&ProcFs::live(), subject.child.id() as i32).expect("our own subject");
        let states = [0, 1, 2].map(|page| pages.state(code + page * PAGE).expect("it lives"));
        assert_eq!(states, [PageState::Resident, PageState::Resident, PageState::Absent]);
    }

    #[test]
    fn nothing_is_read_when_the_time_is_over() {
        let Some(subject) = Subject::compiled() else { return };
        let of = |faults: &mut Faults| {
            let owner = owner(faults, subject.fault("own", 5, 0), None);
            (owner, faults.missing().map(|why| why.reason))
        };
        assert_eq!(of(&mut faults(true)), (Some(Private), None));
        // For all look-ups of the window, for this one, and for lists.
        let mut spent = faults(true);
        spent.memory.time.look_ups = Duration::from_secs(3600);
        let mut short = faults(true);
        short.memory.time.limit = Duration::ZERO;
        let mut listed = faults(true);
        listed.memory.time.lists = Duration::from_secs(3600);
        for mut faults in [spent, short, listed] {
            assert_eq!(of(&mut faults), (None, Some(Reason::TooCostly)));
        }
    }

    #[test]
    fn look_ups_at_once_read_no_lists() {
        let Some(subject) = Subject::compiled() else { return };
        let pid = subject.child.id() as i32;
        let of = |prepared: &[i32]| {
            let mut faults = Faults::at_once(Duration::from_secs(60));
            faults.only_lists = true;
            faults.prepare(&ProcFs::live(), prepared);
            let owner = owner(&mut faults, subject.fault("own", 5, 0), None);
            (owner, faults.missing().map(|why| why.reason))
        };
        assert_eq!(of(&[]), (None, Some(Reason::TooCostly)));
        // The near twin has its list.
        assert_eq!(of(&[pid]), (Some(Private), None));
        assert_eq!(of(&[i32::MAX, pid]), (Some(Private), None));
    }

    #[test]
    fn only_the_process_whose_memory_did_not_answer_is_left_out() {
        let Some(subject) = Subject::compiled() else { return };
        let (parent, child) = (subject.child.id() as i32, subject.at("child") as i32);
        let mut faults = faults(false);
        let of_parent = |faults: &mut Faults| owner(faults, subject.fault("own", 5, 0), None);
        let of_child =
            |faults: &mut Faults| owner(faults, Fault { pid: child, ..subject.fault("later", 5, 0) }, None);
        let why = Absence::new(Reason::TooCostly, "no answer");
        faults.memory.no_answer(parent, Duration::ZERO, why.clone());
        let read_at = |faults: &mut Faults, at: Option<Instant>| {
            let silent = faults.memory.silent.processes.get_mut(&parent).expect("it did not answer");
            silent.at = at.expect("a time");
        };
        read_at(&mut faults, Instant::now().checked_add(Duration::from_secs(3600)));
        assert_eq!((of_parent(&mut faults), faults.missing()), (None, Some(&why)));
        // Not even the name of a mapping counts, or such faults would have too large a share.
        assert_eq!(owner(&mut faults, subject.fault("heap", 0, 0), None), None);
        assert_eq!(of_child(&mut faults), Some(Shared));
        // After the pause it is asked again.
        read_at(&mut faults, Instant::now().checked_sub(SILENT));
        assert_eq!(of_parent(&mut faults), Some(Private));
    }

    #[test]
    fn reads_without_an_answer_are_few() {
        let (mut silent, begin) = (Silent::default(), Instant::now());
        let why = |nth: u32| Absence::new(Reason::TooCostly, format!("read {nth}"));
        let later = begin + SILENT;
        assert_eq!(silent.why(1, begin), None);
        silent.add(1, begin, why(1));
        assert_eq!([1, 2].map(|pid| silent.why(pid, begin).cloned()), [Some(why(1)), None]);
        assert_eq!(silent.why(1, later), None);
        // The second one is the last of this process.
        silent.add(1, later, why(2));
        assert_eq!([1, 2].map(|pid| silent.why(pid, later + SILENT).cloned()), [Some(why(2)), None]);
        for (pid, nth) in [(2, 3), (3, ALL_SILENT_READS)] {
            assert_eq!(silent.why(4, later), None);
            silent.add(pid, later + SILENT, why(nth));
        }
        assert!(silent.why(4, later + 2 * SILENT).is_some());
        // Their waits leave the time for other reads.
        let spent = |silent: Duration| {
            let look_up = Instant::now().checked_sub(Duration::from_secs(1)).expect("a time");
            let mut time = Time { look_up, silent, ..Time::default() };
            time.end();
            time.look_ups
        };
        assert!(spent(Duration::ZERO) >= Duration::from_secs(1));
        assert_eq!(spent(Duration::from_secs(3600)), Duration::ZERO);
    }

    #[test]
    fn the_latest_faults_are_looked_up() {
        let mut faults = faults(false);
        for sample in 0..AT_ONCE as u32 + 3 {
            faults.add(Fault { sample, source: Source::Unknown, ..fault(i32::MAX, 0, 0) });
        }
        let mut samples = Vec::new();
        faults.look_up(&ProcFs::live(), |_| None, |fault, owner| samples.push((fault.sample, owner)));
        let latest: Vec<_> = (3..AT_ONCE as u32 + 3).rev().map(|sample| (sample, Unknown)).collect();
        assert_eq!(samples, latest);
        let missing = faults.missing().expect("three were left out");
        assert_eq!((missing.reason, missing.advice().as_deref()), (Reason::TooCostly, Some(FEWER)));
    }

    #[test]
    fn few_processes_stay_open() {
        let threads = PROCESSES_OPEN + 5;
        let (report, tids) = std::sync::mpsc::channel();
        let (proc, mut memory) = (ProcFs::live(), Memory::default());
        // A thread has the same files as a process. Each ends when its sender of the second channel is gone.
        let started: Vec<_> = (0..threads)
            .map(|_| {
                let (report, (stop, wait)) = (report.clone(), std::sync::mpsc::channel::<()>());
                let work = move || {
                    let _ = report.send(rustix::thread::gettid().as_raw_nonzero().get());
                    let _ = wait.recv();
                };
                (std::thread::spawn(work), stop)
            })
            .collect();
        for tid in tids.iter().take(threads) {
            assert!(memory.opened(&proc, tid).is_ok(), "{tid}");
            assert!(memory.processes.contains_key(&tid) && memory.processes.len() <= PROCESSES_OPEN);
        }
        assert_eq!(memory.processes.len(), PROCESSES_OPEN);
        for (thread, stop) in started {
            drop(stop);
            thread.join().expect("a thread");
        }
    }

    #[test]
    fn the_oldest_lists_make_room() {
        let mapping = |start| Mapping {
            start,
            end: start + PAGE,
            perms: allocwall_host::maps::Perms::default(),
            offset: 0,
            dev: (0, 0),
            inode: 0,
            path: Vec::new(),
        };
        let now = Instant::now();
        let mut lists = HashMap::new();
        let mut take = |pid: i32, second: u64, mappings: u64| {
            let mappings = (0..mappings).map(|nth| mapping(nth * PAGE)).collect();
            let list = List { read: now + Duration::from_secs(second), whole: true, mappings };
            keep(&mut lists, pid, list, 7);
            let mut pids: Vec<i32> = lists.keys().copied().collect();
            pids.sort_unstable();
            pids
        };
        assert_eq!(take(1, 1, 3), [1]);
        assert_eq!(take(2, 0, 3), [1, 2]);
        // A newer list of the same process replaces its old one.
        assert_eq!(take(2, 2, 4), [1, 2]);
        assert_eq!(take(3, 3, 1), [2, 3]);
        assert_eq!(take(4, 4, 7), [4]);
    }

    #[cfg(target_arch = "aarch64")]
    #[test]
    fn a_fault_whose_address_is_an_operand_has_a_reason() {
        let missing = |source| {
            let mut faults = Faults::default();
            let (pid, registers) = (std::process::id() as i32, [0; allocwall_host::perf::REGISTERS]);
            faults.add(Fault { sample: 0, pid, origin: pid, registers, source, soon: None });
            faults.look_up(&ProcFs::live(), |_| None, |_, _| ());
            faults.missing().map(|why| why.reason)
        };
        assert_eq!(missing(Source::Written), Some(Reason::NotSupported));
        assert_eq!(missing(Source::Buffer), Some(Reason::NotSupported));
        assert_eq!(missing(Source::Unknown), None);
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn the_memory_operand_gives_the_address() {
        let mut registers = [0; allocwall_host::perf::REGISTERS];
        for (at, register) in registers.iter_mut().enumerate() {
            *register = (at as u64 + 1) << 20;
        }
        let address = |code: &[u8], written| operand::address(code, &registers, written);
        let [ax, cx, si, di, sp, ip] = [0, 2, 4, 5, 7, 8].map(|at| registers[at]);
        // mov byte [rdi], 1
        assert_eq!(address(&[0xc6, 0x07, 0x01], true), Some(di));
        // mov rax, [rsi + rcx*8 + 0x10]
        assert_eq!(address(&[0x48, 0x8b, 0x44, 0xce, 0x10], false), Some(si + cx * 8 + 0x10));
        // rep stosb; rep movsb: the destination for a write, the source for a read.
        assert_eq!(address(&[0xf3, 0xaa], true), Some(di));
        assert_eq!(address(&[0xf3, 0xa4], true), Some(di));
        assert_eq!(address(&[0xf3, 0xa4], false), Some(si));
        // vmovdqu [rdi + 0x20], ymm0
        assert_eq!(address(&[0xc5, 0xfe, 0x7f, 0x47, 0x20], true), Some(di + 0x20));
        // mov [rip + 0x100], eax: relative to the next instruction.
        assert_eq!(address(&[0x89, 0x05, 0x00, 0x01, 0x00, 0x00], true), Some(ip + 6 + 0x100));
        // push rax
        assert_eq!(address(&[0x50], true), Some(sp - 8));
        // add eax, ecx has no memory operand: the page of the instruction itself.
        assert_eq!(address(&[0x01, 0xc8], true), Some(ip));
        // mov rax, fs:[0]: the segment is unknown.
        assert_eq!(address(&[0x64, 0x48, 0x8b, 0x04, 0x25, 0, 0, 0, 0], false), None);
        // An address that wraps around.
        assert_eq!(address(&[0x48, 0x8b, 0x40, 0xff], false), Some(ax - 1));
        assert_eq!(address(&[0xff, 0xff], true), None);
        // mov byte [rdi + 0x100], 1; and without its last bytes, which would change the address.
        let whole = [0xc6, 0x87, 0x00, 0x01, 0x00, 0x00, 0x01];
        assert_eq!(address(&whole, true), Some(di + 0x100));
        assert_eq!(address(&whole[..3], true), None);
    }
}
