//! Anonymous mappings that own their pages, the kernel's data about the memory of this process, and reads of the memory of
//! others.

use crate::cgroup::CgroupFs;
use crate::facts::Machine;
use crate::file;
use crate::place;
use crate::proc::ProcFs;
use crate::proc::parse::kilobytes;
use crate::rights::can_read_memory;
use crate::threads::{MemoryReader, read_memory};
use allocwall_model::catalogue::advice;
use allocwall_model::units::{Absence, Measured, Reason};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::{Duration, Instant};

/// The smallest page. Where the kernel's pages are larger, their parts of this size are in the same state.
pub const PAGE: usize = 4 << 10;
pub const HUGE: usize = 2 << 20;

/// Where the contents of a page of a process are (Documentation/admin-guide/mm/pagemap.rst).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageState {
    Resident,
    /// In swap, or its contents are just being moved to another page.
    Swapped,
    /// The process has no such page. Private memory without a file reads as zeros there.
    Absent,
}

impl PageState {
    /// By the page's entry of 8 bytes.
    pub fn of(entry: [u8; 8]) -> PageState {
        const PRESENT: u64 = 1 << 63;
        const SWAPPED: u64 = 1 << 62;
        match u64::from_ne_bytes(entry) {
            entry if entry & PRESENT != 0 => PageState::Resident,
            entry if entry & SWAPPED != 0 => PageState::Swapped,
            _ => PageState::Absent,
        }
    }
}

/// The pagemap of a process, open. It belongs to the program that ran when it was opened.
pub struct PageMap {
    file: fs::File,
    /// A living thread of the process.
    thread: i32,
    /// The kernel's pages, each with an entry.
    page_bytes: u64,
}

impl PageMap {
    /// `thread`: a living one of the process.
    pub fn open(proc: &ProcFs, thread: i32) -> io::Result<PageMap> {
        let file = fs::File::open(proc.root().join(format!("{thread}/pagemap")))?;
        Ok(PageMap { file, thread, page_bytes: proc.page_bytes().max(PAGE as u64) })
    }

    /// The state of the page with this address. The page is not touched.
    ///
    /// # Errors
    /// As for [`Self::states`].
    pub fn state(&self, address: u64) -> io::Result<PageState> {
        Ok(self.states(address, 1)?[0])
    }

    /// The states of so many parts of 4 KiB, at least one, from the one with this address on; fewer at the end of the address
    /// space. The pages are not touched.
    ///
    /// # Errors
    /// `UnexpectedEof`: the process has ended or has called exec since the file was opened, or the first page is the kernel's.
    pub fn states(&self, address: u64, count: usize) -> io::Result<Vec<PageState>> {
        let start = address & !(PAGE as u64 - 1);
        let page = |nth: u64| start.saturating_add(nth.saturating_mul(PAGE as u64)) / self.page_bytes;
        let (first, last) = (page(0), page((count as u64).saturating_sub(1)));
        let mut entries = vec![0; 8 * (last - first + 1) as usize];
        let read = self.file.read_at(&mut entries, first * 8)?;
        let (entries, _) = entries[..read].as_chunks::<8>();
        let state = |nth: u64| entries.get((page(nth) - first) as usize).map(|entry| PageState::of(*entry));
        let states: Vec<PageState> = (0..count as u64).map_while(state).collect();
        if states.is_empty() { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(states) }
    }

    /// How many parts of 4 KiB are resident, one after the other, from the one with this address on; at most `most`. Only they
    /// may be read, and at once, because the target may return them: a read of another page would make one, or wait for it.
    ///
    /// # Errors
    /// Not even the first one is resident.
    pub fn resident(&self, address: u64, most: usize) -> Result<usize, Unread> {
        let states = self.states(address, most).map_err(|error| Unread::of(&error))?;
        match states[0] {
            PageState::Resident => {}
            PageState::Swapped => return Err(Unread::Swapped),
            PageState::Absent => return Err(Unread::Absent),
        }
        Ok(states.iter().take_while(|state| **state == PageState::Resident).count())
    }
}

/// Why memory of a process was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unread {
    /// The program has no memory any more: its process has ended, or has called exec.
    Gone,
    /// There is no such page: it was never touched, or was given back.
    Absent,
    Swapped,
    /// The page is not for reading, or its address is not known.
    Unreadable,
    /// Nothing more is read, or nothing of this process, for a reason of allocwall's own: a limit or a missing right.
    Refused,
}

impl Unread {
    pub fn of(error: &io::Error) -> Unread {
        let gone = error.kind() == io::ErrorKind::UnexpectedEof
            || matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH));
        if gone { Unread::Gone } else { Unread::Unreadable }
    }
}

/// Reads memory of other processes while they run on, within limits. Only pages that are resident are read: a read of another
/// page would make one.
pub struct ResidentReader {
    /// None: the calling thread reads.
    reader: Option<MemoryReader>,
    deadline: Instant,
    most_bytes: u64,
    bytes: u64,
    failed: Option<Absence>,
}

/// Its time is over until it gets some.
impl Default for ResidentReader {
    fn default() -> ResidentReader {
        ResidentReader::new(Instant::now(), u64::MAX)
    }
}

impl ResidentReader {
    /// Reads until `deadline`, and this number of bytes in all.
    pub fn new(deadline: Instant, most_bytes: u64) -> ResidentReader {
        let reader = Some(MemoryReader::default());
        ResidentReader { reader, deadline, most_bytes, bytes: 0, failed: None }
    }

    /// Reads in the calling thread, without the time that another one takes to answer. Memory that belongs to a file system or to
    /// a program may keep the calling thread for good.
    pub fn in_this_thread(self) -> ResidentReader {
        ResidentReader { reader: None, ..self }
    }

    /// Whether the memory of this process may be read, by one of its threads. Another thread asks the kernel, as for each read:
    /// [`can_read_memory`] may wait as long as the process holds the lock of its address space.
    ///
    /// # Errors
    /// What the kernel answered; `TimedOut` if it did not answer within a second.
    pub fn may_read(thread: i32) -> io::Result<()> {
        answer_of(Duration::from_secs(1), move || can_read_memory(thread))
    }

    /// Changes the time until which memory is read.
    pub fn until(&mut self, deadline: Instant) {
        self.deadline = deadline;
    }

    /// Why nothing is read any more, whatever the time: a page belongs to a file system or to a program that did not answer,
    /// or the limit of bytes is reached.
    pub fn failure(&self) -> Option<&Absence> {
        self.failed.as_ref()
    }

    /// Reads again after memory did not answer, in another thread: the earlier one may wait as long as this program runs. The
    /// limit of bytes remains.
    pub fn begin_again(&mut self) {
        if self.bytes < self.most_bytes {
            (self.reader, self.failed) = (self.reader.take().map(|_| MemoryReader::default()), None);
        }
    }

    /// It has failed, or its time is over.
    pub fn is_over(&self) -> bool {
        self.failed.is_some() || Instant::now() >= self.deadline
    }

    /// Fills `bytes` with the parts of 4 KiB that are resident ([`PageMap::resident`]), at most `most` of them.
    ///
    /// # Errors
    /// Not even the first one was read; `bytes` is empty.
    pub fn read(
        &mut self,
        pages: &PageMap,
        address: u64,
        most: usize,
        bytes: &mut Vec<u8>,
    ) -> Result<(), Unread> {
        bytes.clear();
        if self.is_over() {
            return Err(Unread::Refused);
        }
        let start = address & !(PAGE as u64 - 1);
        bytes.resize(pages.resident(start, most)? * PAGE, 0);
        let read = match &mut self.reader {
            Some(reader) => reader.read(pages.thread, start, bytes),
            None => Ok(read_memory(pages.thread, start, bytes)),
        };
        let read = read.unwrap_or_else(|absence| {
            self.failed = Some(absence);
            0
        });
        bytes.truncate(read - read % PAGE);
        self.bytes = self.bytes.saturating_add(read as u64);
        if self.bytes >= self.most_bytes {
            let detail = format!("more than {} MiB of memory were to be read", self.most_bytes >> 20);
            self.failed.get_or_insert_with(|| Absence::new(Reason::TooCostly, detail));
        }
        match bytes.is_empty() {
            false => Ok(()),
            true if self.failed.is_some() => Err(Unread::Refused),
            true => Err(Unread::Unreadable),
        }
    }
}

/// Asks in another thread. If the answer comes later than `patience`, that thread ends alone.
fn answer_of(patience: Duration, ask: impl FnOnce() -> io::Result<()> + Send + 'static) -> io::Result<()> {
    let (sender, answer) = sync_channel(1);
    thread::Builder::new().spawn(move || drop(sender.send(ask())))?;
    answer.recv_timeout(patience).unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// Private anonymous memory, unmapped on drop. It starts and ends on 2 MiB boundaries if it was made by
/// `new`.
#[derive(Debug)]
pub struct AnonymousMapping {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: it owns its address range like a Box<[u8]> does; no part of it belongs to a thread.
unsafe impl Send for AnonymousMapping {}

/// The page policy of a mapping (madvise(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// MADV_NOHUGEPAGE: neither 2 MiB pages nor any size between, in every system-wide mode.
    Small,
    /// MADV_HUGEPAGE: a request that the kernel may not be able to fulfil.
    Huge,
}

impl AnonymousMapping {
    /// Untouched memory. `length` and the address are multiples of 2 MiB.
    pub fn new(length: usize, pages: Pages) -> Measured<AnonymousMapping> {
        debug_assert!(length > 0 && length.is_multiple_of(HUGE));
        let mut mapping = Self::plain(length + HUGE)?;
        mapping.trim_to_boundary(length);
        mapping
            .advise(match pages {
                Pages::Small => Advice::LinuxNoHugepage,
                Pages::Huge => Advice::LinuxHugepage,
            })
            .or_else(|error| match (pages, error) {
                // A kernel built without huge pages rejects the advice and has only small pages.
                (Pages::Small, Errno::INVAL) => Ok(()),
                _ => Err(refused("madvise", length, error)),
            })?;
        Ok(mapping)
    }

    /// Its pages come from this NUMA node, and stay there. The memory must be untouched.
    pub fn bind(&mut self, node: u32) -> io::Result<()> {
        place::bind_mapping(self.start.as_ptr(), self.length, node)
    }

    /// Untouched memory from a plain mmap: page-aligned, with the system-wide page policy.
    pub fn plain(length: usize) -> Measured<AnonymousMapping> {
        Self::map(length, MapFlags::PRIVATE | MapFlags::NORESERVE)
    }

    /// MAP_POPULATE: the kernel touches every page within the call.
    pub fn populated(length: usize) -> Measured<AnonymousMapping> {
        Self::map(length, MapFlags::PRIVATE | MapFlags::POPULATE)
    }

    fn map(length: usize, flags: MapFlags) -> Measured<AnonymousMapping> {
        // SAFETY: no address is requested, so the kernel chooses an unused range.
        let start = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                length,
                ProtFlags::READ | ProtFlags::WRITE,
                flags,
            )
        }
        .map_err(|error| refused("mmap", length, error))?;
        let start = NonNull::new(start.cast()).ok_or_else(|| refused("mmap", length, Errno::NOMEM))?;
        Ok(AnonymousMapping { start, length })
    }

    /// Unmaps the part before the first 2 MiB boundary, and the part after `length` bytes from there.
    fn trim_to_boundary(&mut self, length: usize) {
        let address = self.start.as_ptr() as usize;
        let head = address.next_multiple_of(HUGE) - address;
        let tail = self.length - head - length;
        let start = self.start.as_ptr();
        // SAFETY: head + length + tail is the length of the mapping, so both ranges are within it, on page
        // boundaries. They are not used again: the fields below exclude them. If munmap fails, memory only
        // stays mapped.
        let aligned = unsafe {
            for (from, bytes) in [(start, head), (start.add(head + length), tail)] {
                if bytes > 0 {
                    let _ = rustix::mm::munmap(from.cast(), bytes);
                }
            }
            start.add(head)
        };
        if let Some(aligned) = NonNull::new(aligned) {
            (self.start, self.length) = (aligned, length);
        }
    }

    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the range is mapped readable and writable, zeroed by the kernel, and borrowed only through
        // self.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }

    pub fn words(&mut self) -> &mut [u64] {
        // SAFETY: as for `bytes`; pages are aligned for u64, and every bit pattern is a valid u64.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().cast(), self.length / size_of::<u64>()) }
    }

    /// MADV_DONTNEED: the pages go back to the kernel. The range stays mapped and reads as zeros.
    pub fn release_pages(&mut self) -> Measured<()> {
        self.advise(Advice::LinuxDontNeed).map_err(|error| refused("madvise", self.length, error))
    }

    /// MADV_POPULATE_WRITE (Linux 5.14): what MAP_POPULATE does, on a mapping whose page policy is set.
    pub fn populate(&mut self) -> Result<(), Errno> {
        self.advise(Advice::LinuxPopulateWrite)
    }

    fn advise(&mut self, advice: Advice) -> Result<(), Errno> {
        // SAFETY: the range is ours and exclusively borrowed. None of the advice values in use unmaps or
        // protects it. The one that drops contents leaves zeros, which are valid for every type handed out.
        unsafe { rustix::mm::madvise(self.start.as_ptr().cast(), self.length, advice) }
    }

    /// Bytes of this mapping on huge pages, from /proc/self/smaps (`AnonHugePages`). The kernel may have
    /// merged it with a neighbour of the same policy; then the neighbour's pages count too, up to the length
    /// of this mapping.
    pub fn huge_bytes(&self) -> Measured<u64> {
        let path = "/proc/self/smaps";
        let smaps = fs::read_to_string(path)
            .map_err(|error| Absence::new(Reason::NotPermitted, format!("{path}: {error}")))?;
        let start = self.start.as_ptr() as u64;
        Ok(huge_bytes_within(&smaps, start, start + self.length as u64).min(self.length as u64))
    }
}

impl Drop for AnonymousMapping {
    fn drop(&mut self) {
        // SAFETY: the range belongs to this mapping, and no borrow of it can outlive it.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.length) };
    }
}

pub(crate) fn huge_bytes_within(smaps: &str, low: u64, high: u64) -> u64 {
    let mut overlaps = false;
    let mut bytes = 0u64;
    for line in smaps.lines() {
        if let Some((from, to)) = address_range(line) {
            overlaps = from < high && low < to;
        } else if overlaps && let Some(value) = line.strip_prefix("AnonHugePages:") {
            bytes = bytes.saturating_add(kilobytes(value.as_bytes()).unwrap_or(0));
        }
    }
    bytes
}

fn address_range(line: &str) -> Option<(u64, u64)> {
    let (from, to) = line.split_once(' ')?.0.split_once('-')?;
    Some((u64::from_str_radix(from, 16).ok()?, u64::from_str_radix(to, 16).ok()?))
}

fn refused(call: &str, length: usize, error: Errno) -> Absence {
    let detail = format!("{call} of {} MiB: {error}", length >> 20);
    let limit = rustix::process::getrlimit(rustix::process::Resource::As).current;
    match (error, limit) {
        (Errno::NOMEM, Some(limit)) => Absence::new(
            Reason::NotPermitted,
            format!("{detail} (address space limited to {} MiB)", limit >> 20),
        )
        .mend(advice::Advice::command("ulimit -v unlimited; allocwall calibrate --fresh")),
        (Errno::NOMEM, None) => Absence::new(Reason::TooLittle, detail),
        (Errno::INVAL, _) => Absence::new(Reason::NotSupported, detail),
        _ => Absence::new(Reason::NotPermitted, detail),
    }
}

/// The counters of the calling thread so far (getrusage(2), RUSAGE_THREAD).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadCounts {
    pub minor_faults: u64,
    /// How often the thread slept.
    pub voluntary_switches: u64,
    /// How often the thread lost its CPU to other work while it was runnable.
    pub involuntary_switches: u64,
}

pub fn thread_counts() -> ThreadCounts {
    // SAFETY: an all-zero rusage is a valid value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is a live rusage that the call fills; with these arguments the call cannot fail.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    ThreadCounts {
        minor_faults: usage.ru_minflt as u64,
        voluntary_switches: usage.ru_nvcsw as u64,
        involuntary_switches: usage.ru_nivcsw as u64,
    }
}

/// Whether this process can get transparent huge pages of 2 MiB on request.
pub fn huge_pages_on_request(machine: &Machine) -> Measured<()> {
    if machine.thp("enabled")? == "never" {
        return Err(Absence::new(Reason::Disabled, "transparent huge pages are switched off (mode `never`)")
            .mend(
                "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled; then allocwall calibrate \
                 --fresh",
            ));
    }
    if rustix::thread::transparent_huge_pages_are_disabled().unwrap_or(false) {
        return Err(Absence::new(
            Reason::Disabled,
            "transparent huge pages are switched off for this process (PR_SET_THP_DISABLE, inherited)",
        )
        .mend("start it from a shell that was not itself started with PR_SET_THP_DISABLE"));
    }
    // The file exists since Linux 4.20; before that x86 has only this size.
    match file::read_number::<usize>(&machine.path("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")) {
        Ok(bytes) if bytes != HUGE => {
            Err(Absence::new(Reason::NotSupported, format!("huge pages have {bytes} bytes here, not 2 MiB")))
        }
        _ => Ok(()),
    }
}

/// Bytes that this process can use without swapping or reaching a limit of its memory cgroup.
pub fn headroom(machine: &Machine) -> Measured<u64> {
    let available = machine
        .proc
        .meminfo()?
        .available
        .ok_or_else(|| Absence::new(Reason::Unparsable, "/proc/meminfo: no MemAvailable line"))?;
    let room = CgroupFs::of(machine).ok().and_then(|cgroups| cgroups.own_memory_room());
    Ok(room.map_or(available, |room| room.min(available)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_is_aligned_zeroed_and_faults_once_a_page() {
        let mut mapping = AnonymousMapping::new(HUGE, Pages::Small).unwrap();
        assert!((mapping.bytes().as_ptr() as usize).is_multiple_of(HUGE));
        let before = thread_counts().minor_faults;
        for byte in mapping.bytes().iter_mut().step_by(PAGE) {
            assert_eq!(*std::hint::black_box(&mut *byte), 0);
            *byte = 7;
        }
        // A read maps the shared zero page, and the write after it maps a real page: one or two faults per
        // page.
        assert!(thread_counts().minor_faults - before >= (HUGE / PAGE) as u64);
        assert_eq!(mapping.huge_bytes().unwrap(), 0);
        mapping.release_pages().unwrap();
        assert!(mapping.bytes().iter().all(|&byte| byte == 0));
    }

    #[test]
    fn the_page_map_shows_which_pages_were_touched() {
        let mut mapping = AnonymousMapping::new(HUGE, Pages::Small).unwrap();
        let start = mapping.bytes().as_ptr() as u64;
        mapping.bytes()[3 * PAGE] = 7;
        let pages = PageMap::open(&ProcFs::live(), std::process::id() as i32).unwrap();
        let state = |part: u64| pages.state(start + part * PAGE as u64 + 5).unwrap();
        let expected = [PageState::Absent, PageState::Resident, PageState::Absent];
        assert_eq!([2, 3, 4].map(state), expected);
        assert_eq!(pages.states(start + 2 * PAGE as u64, 3).unwrap(), expected);
        mapping.release_pages().unwrap();
        assert_eq!(state(3), PageState::Absent);
        // What is not in user memory has no state.
        assert_eq!(pages.state(u64::MAX).ok(), None);
    }

    #[test]
    fn the_parts_of_a_large_page_are_in_its_state() {
        let mut file = tempfile::tempfile().unwrap();
        // Pages of 16 KiB: absent, resident, in swap.
        let entries = [0u64, 1 << 63, 1 << 62].map(u64::to_ne_bytes).concat();
        std::io::Write::write_all(&mut file, &entries).unwrap();
        let pages = PageMap { file, thread: 7, page_bytes: 4 * PAGE as u64 };
        let at = |part: u64| part * PAGE as u64;
        use PageState::{Absent, Resident, Swapped};
        assert_eq!(
            [3, 4, 7, 8].map(|part| pages.state(at(part) + 9).unwrap()),
            [Absent, Resident, Resident, Swapped]
        );
        assert_eq!(
            pages.states(at(3), 6).unwrap(),
            [Absent, Resident, Resident, Resident, Resident, Swapped]
        );
        let resident = [(3, 6), (4, 6), (4, 2), (8, 1)].map(|(part, most)| pages.resident(at(part), most));
        assert_eq!(resident, [Err(Unread::Absent), Ok(4), Ok(2), Err(Unread::Swapped)]);
        // Only those that exist.
        assert_eq!(pages.states(at(10), 9).unwrap(), [Swapped, Swapped]);
        assert_eq!(pages.states(at(12), 1).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_process_that_has_ended_has_no_page_map() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pages = PageMap::open(&ProcFs::live(), child.id() as i32).unwrap();
        let alive = pages.state(0);
        child.kill().and_then(|()| child.wait()).unwrap();
        assert_eq!(alive.unwrap(), PageState::Absent);
        assert_eq!(pages.state(0).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(pages.resident(0, 1), Err(Unread::Gone));
        let mut reader = ResidentReader::new(later(), u64::MAX);
        assert_eq!(reader.read(&pages, 0, 1, &mut Vec::new()), Err(Unread::Gone));
    }

    fn later() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[test]
    fn a_process_that_does_not_answer_is_asked_for_some_time() {
        let (stop, stopped) = sync_channel::<()>(0);
        let asked = Instant::now();
        let late = answer_of(Duration::from_millis(1), move || {
            let _ = stopped.recv();
            Ok(())
        });
        assert_eq!(late.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(asked.elapsed() < Duration::from_secs(30));
        drop(stop);
        // The near twins: an answer, and a refusal.
        assert!(answer_of(Duration::from_secs(30), || Ok(())).is_ok());
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        let gone = ResidentReader::may_read(child.id() as i32);
        assert!(gone.is_err_and(|error| error.kind() != io::ErrorKind::TimedOut));
    }

    #[test]
    fn resident_pages_are_read_up_to_the_next_gap() {
        let own = std::process::id() as i32;
        if let Err(error) = ResidentReader::may_read(own) {
            return println!("skipped: process_vm_readv: {error}");
        }
        let mut mapping = AnonymousMapping::new(HUGE, Pages::Small).unwrap();
        let start = mapping.bytes().as_ptr() as u64;
        for part in [0, 1, 3] {
            mapping.bytes()[part * PAGE..(part + 1) * PAGE].fill(part as u8 + 1);
        }
        let pages = PageMap::open(&ProcFs::live(), own).unwrap();
        let other_thread = ResidentReader::new(later(), u64::MAX);
        let this_thread = ResidentReader::new(later(), u64::MAX).in_this_thread();
        for mut reader in [other_thread, this_thread] {
            let mut bytes = Vec::new();
            assert_eq!(reader.read(&pages, start + 9, 16, &mut bytes), Ok(()));
            assert_eq!((bytes.len(), bytes[0], bytes[PAGE]), (2 * PAGE, 1, 2));
            assert_eq!(reader.read(&pages, start, 1, &mut bytes), Ok(()));
            assert_eq!(bytes.len(), PAGE);
            let gap = start + 2 * PAGE as u64;
            assert_eq!((reader.read(&pages, gap, 16, &mut bytes), bytes.len()), (Err(Unread::Absent), 0));
            // The read made no page.
            assert_eq!(pages.state(gap).unwrap(), PageState::Absent);
        }
    }

    #[test]
    fn a_reader_stops_at_each_limit_with_its_reason() {
        let own = std::process::id() as i32;
        if let Err(error) = ResidentReader::may_read(own) {
            return println!("skipped: process_vm_readv: {error}");
        }
        let mut mapping = AnonymousMapping::new(HUGE, Pages::Small).unwrap();
        mapping.bytes()[..2 * PAGE].fill(7);
        let start = mapping.bytes().as_ptr() as u64;
        let pages = PageMap::open(&ProcFs::live(), own).unwrap();
        let mut bytes = Vec::new();
        let mut read = |reader: &mut ResidentReader| reader.read(&pages, start, 1, &mut bytes);
        // Bytes: the last read within the limit is a result.
        let mut few = ResidentReader::new(later(), 2 * PAGE as u64);
        assert_eq!([(); 3].map(|()| read(&mut few)), [Ok(()), Ok(()), Err(Unread::Refused)]);
        few.begin_again();
        assert_eq!(read(&mut few), Err(Unread::Refused));
        assert_eq!(few.failure().map(|absence| absence.reason), Some(Reason::TooCostly));
        // Time, which may be given again.
        let mut late = ResidentReader::default();
        assert_eq!((read(&mut late), late.is_over(), late.failure()), (Err(Unread::Refused), true, None));
        late.until(later());
        assert_eq!((read(&mut late), late.is_over()), (Ok(()), false));
        // Memory that did not answer is asked again only on request.
        let failed = Absence::new(Reason::TooCostly, "no answer");
        late.failed = Some(failed.clone());
        assert_eq!((read(&mut late), late.failure()), (Err(Unread::Refused), Some(&failed)));
        late.begin_again();
        assert_eq!((read(&mut late), late.failure()), (Ok(()), None));
    }

    #[test]
    fn a_mapping_that_does_not_fit_is_an_absence() {
        let absence = AnonymousMapping::plain(1 << 56).unwrap_err();
        assert!(absence.detail.contains("mmap"), "{absence}");
    }

    #[test]
    fn huge_pages_of_a_range() {
        let smaps = "1000-3000 rw-p 00000000 00:00 0 \nRss: 4 kB\nAnonHugePages:  2048 kB\nVmFlags: rd wr\n\
                     3000-4000 rw-p 00000000 00:00 0 \nAnonHugePages:  4096 kB\n";
        assert_eq!(huge_bytes_within(smaps, 0x1000, 0x3000), 2 << 20);
        assert_eq!(huge_bytes_within(smaps, 0x2000, 0x3800), 6 << 20);
        assert_eq!(huge_bytes_within(smaps, 0x4000, 0x5000), 0);
        assert_eq!(huge_bytes_within("garbage\n-\n", 0, u64::MAX), 0);
    }

    #[test]
    fn modes() {
        let root = tempfile::tempdir().unwrap();
        let machine = Machine::at(root.path());
        assert_eq!(huge_pages_on_request(&machine).unwrap_err().reason, Reason::NotSupported);
        let folder = machine.path("/sys/kernel/mm/transparent_hugepage");
        fs::create_dir_all(&folder).unwrap();
        for (enabled, size, reason) in [
            ("always madvise [never]", "2097152", Some(Reason::Disabled)),
            ("always madvise never", "2097152", Some(Reason::Unparsable)),
            ("always [madvise] never", "536870912", Some(Reason::NotSupported)),
            ("always [madvise] never", "2097152", None),
        ] {
            fs::write(folder.join("enabled"), enabled).unwrap();
            fs::write(folder.join("hpage_pmd_size"), size).unwrap();
            let answer = huge_pages_on_request(&machine);
            assert_eq!(answer.err().map(|absence| absence.reason), reason, "{enabled} {size}");
        }
    }

    #[test]
    fn headroom_heeds_the_tightest_cgroup() {
        let root = tempfile::tempdir().unwrap();
        let machine = Machine::at(root.path());
        let write = |path: &str, text: &str| {
            let path = machine.path(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        assert_eq!(headroom(&machine).unwrap_err().reason, Reason::NotFound);
        write("/proc/meminfo", "MemTotal: 2000000 kB\n");
        assert_eq!(headroom(&machine).unwrap_err().reason, Reason::Unparsable);
        write("/proc/meminfo", "MemTotal: 2000000 kB\nMemAvailable: 1000000 kB\n");
        assert_eq!(headroom(&machine), Ok(1_000_000 << 10));
        write(
            "/proc/self/mountinfo",
            "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
             41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
        );
        write("/proc/self/cgroup", "4:memory:/a/b\n0::/a\n");
        write("/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712");
        write("/sys/fs/cgroup/memory/a/b/memory.usage_in_bytes", "100");
        assert_eq!(headroom(&machine), Ok(1_000_000 << 10));
        write("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "5000");
        write("/sys/fs/cgroup/memory/a/memory.usage_in_bytes", "1000");
        assert_eq!(headroom(&machine), Ok(4000));
        // The memory controller belongs to one of the two hierarchies.
        write("/proc/self/cgroup", "0::/a\n");
        write("/sys/fs/cgroup/unified/a/memory.max", "max");
        write("/sys/fs/cgroup/unified/a/memory.current", "400");
        assert_eq!(headroom(&machine), Ok(1_000_000 << 10));
        write("/sys/fs/cgroup/unified/a/memory.max", "300");
        assert_eq!(headroom(&machine), Ok(0));
    }
}
