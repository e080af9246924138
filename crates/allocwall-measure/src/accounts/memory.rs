//! The memory and the files of a target, read without changing the target. Both may make the reader wait: a page or a file may
//! belong to a server that never answers (FUSE, NFS). So everything here runs in the thread of one account.

pub(super) use crate::memory_kinds::PAGE;
use allocwall_host::elf::{Bounded, Elf, ElfFile};
use allocwall_host::file;
use allocwall_host::maps::{self, Mapping};
use allocwall_host::memory::{PageMap, PageState};
use allocwall_host::proc::ProcFs;
use allocwall_host::rights::run_as_root;
use allocwall_model::units::{Absence, Measured, Reason};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Reads of one process take at most this time, and this part of the time since the first one. Beyond it they pause: what
/// waits is often the lock of the address space, and the target's own calls wait for it as well.
const WAITED: Duration = Duration::from_millis(200);
const WAITED_PART: u32 = 10;
/// How long a file is waited for while another one is read.
const FILE_PATIENCE: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Page {
    Resident,
    /// Never touched: if it belongs to no file, its bytes are zero.
    Untouched,
    /// In swap, or it could not be found out.
    Unknown,
}

/// Where the readers get the target's memory from: a process, or bytes in a test.
pub(super) trait Memory {
    /// The resident part of these bytes, from the first one on. None if the first one is not resident, or does not exist.
    fn prefix(&mut self, address: u64, length: usize) -> Option<Vec<u8>>;

    /// All of these bytes. None if one of them is not resident, or does not exist.
    fn bytes(&mut self, address: u64, length: usize) -> Option<Vec<u8>> {
        self.prefix(address, length).filter(|bytes| bytes.len() == length)
    }

    fn word(&mut self, address: u64) -> Option<u64> {
        word(&self.bytes(address, 8)?, 0)
    }

    /// The states of the pages from `start` on.
    fn pages(&mut self, _start: u64, count: usize) -> Vec<Page> {
        vec![Page::Resident; count]
    }

    /// Why nothing can ever be read, as where it is not permitted.
    fn failure(&self) -> Option<Absence> {
        None
    }

    /// Whether nothing is read now, since the reads so far took too long.
    fn is_paused(&self) -> bool {
        false
    }

    /// Why the last read gave nothing.
    fn refused(&self) -> Absence {
        Absence::new(Reason::NotFound, "the memory was not read: it is not resident, or does not exist")
    }
}

/// The memory of the program that a process executes. Only pages that are resident are read: a read of another page would
/// make one, or wait for the server of a file.
///
/// `ResidentReader` is not used, because it reads by the number of a thread, in a thread of its own. The open files here read
/// only the program for which they were opened, also when the process executes another one between two reads. The CPU time
/// of the reads is that of the account's own thread, so it counts for the budget; and that thread may wait.
pub(super) struct Live {
    pid: i32,
    proc: ProcFs,
    /// Both contain nothing after the program's end, or execve. The pages may be readable alone.
    pages: Option<PageMap>,
    memory: Measured<File>,
    start_ticks: Option<u64>,
    began: Instant,
    waited: Duration,
    /// `WAITED`, except in a test.
    pub(super) patience: Duration,
    /// Whether reads have ever paused.
    has_paused: bool,
}

impl Live {
    pub(super) fn of(proc: &ProcFs, pid: i32) -> Live {
        let (pages, memory) = open(proc, proc.living_thread(pid));
        let start_ticks = start_ticks(proc, pid);
        let (began, waited) = (Instant::now(), Duration::ZERO);
        let (proc, patience) = (proc.clone(), WAITED);
        Live { pid, proc, pages, memory, start_ticks, began, waited, patience, has_paused: false }
    }

    /// Whether the process still executes the program.
    pub(super) fn still_runs(&self) -> bool {
        match &self.pages {
            Some(pages) => {
                !matches!(pages.state(0), Err(error) if error.kind() == io::ErrorKind::UnexpectedEof)
            }
            // An execve is not noticed.
            None => start_ticks(&self.proc, self.pid) == self.start_ticks,
        }
    }

    /// Whether nothing was read at any time until now, since the reads before took too long.
    pub(super) fn has_paused(&self) -> bool {
        self.has_paused
    }

    fn timed<T>(&mut self, read: impl FnOnce(&PageMap, &File) -> Option<T>) -> Option<T> {
        if self.is_paused() {
            return None;
        }
        let started = Instant::now();
        let read = read(self.pages.as_ref()?, self.memory.as_ref().ok()?);
        self.wait(started.elapsed());
        read
    }

    /// Counts the time of a read.
    pub(super) fn wait(&mut self, waited: Duration) {
        self.waited += waited;
        self.has_paused |= self.is_paused();
    }
}

impl Memory for Live {
    fn prefix(&mut self, address: u64, length: usize) -> Option<Vec<u8>> {
        let end = address.checked_add(length as u64)?;
        let first = address & !(PAGE - 1);
        self.timed(|pages, memory| {
            let resident = pages.resident(first, (end - first).div_ceil(PAGE) as usize).ok()?;
            let readable = first.saturating_add(resident as u64 * PAGE).min(end);
            let mut bytes = vec![0; readable.checked_sub(address)? as usize];
            let read = fill(memory, &mut bytes, address).ok()?;
            bytes.truncate(read);
            Some(bytes).filter(|bytes| !bytes.is_empty())
        })
    }

    fn pages(&mut self, start: u64, count: usize) -> Vec<Page> {
        let states = self.timed(|pages, _| pages.states(start, count).ok()).unwrap_or_default();
        let states = states.into_iter().map(|state| match state {
            PageState::Absent => Page::Untouched,
            PageState::Swapped => Page::Unknown,
            PageState::Resident => Page::Resident,
        });
        let mut pages: Vec<Page> = states.collect();
        // Behind the end of the address space.
        pages.resize(count, Page::Unknown);
        pages
    }

    fn failure(&self) -> Option<Absence> {
        self.memory.as_ref().err().cloned()
    }

    fn is_paused(&self) -> bool {
        self.waited > self.patience + self.began.elapsed() / WAITED_PART
    }

    fn refused(&self) -> Absence {
        let pid = self.pid;
        if let Some(absence) = self.failure() {
            return absence;
        }
        if self.is_paused() {
            let waited = self.waited.as_millis();
            let detail = format!("reading the memory of process {pid} took {waited} ms, so it paused");
            return Absence::new(Reason::TooCostly, detail);
        }
        match lives(&self.proc, pid) {
            true => Absence::new(
                Reason::NotFound,
                format!("memory of process {pid} was not read: it is not resident, or does not exist"),
            ),
            false => Absence::new(Reason::Vanished, format!("process {pid} has ended")),
        }
    }
}

/// The memory has the reason if one of them cannot be opened.
fn open(proc: &ProcFs, thread: i32) -> (Option<PageMap>, Measured<File>) {
    if !proc.is_live() {
        return (None, Err(Absence::new(Reason::NotApplicable, "a copy of /proc contains no memory")));
    }
    let path = |name: &str| proc.root().join(format!("{thread}/{name}"));
    let refused = |name: &str, error: &io::Error| {
        let absence = file::absence_of(&path(name), error);
        match absence.reason {
            Reason::NotPermitted => absence.mend(run_as_root()).mend("run as the owner of the process"),
            _ => absence,
        }
    };
    // The pages first: of a program that is executed between the two, nothing is read, and the end of the one before shows.
    let pages = PageMap::open(proc, thread);
    let memory = File::open(path("mem")).map_err(|error| refused("mem", &error));
    let memory = memory.and_then(|memory| match &pages {
        Ok(_) => Ok(memory),
        Err(error) => Err(refused("pagemap", error)),
    });
    (pages.ok(), memory)
}

fn start_ticks(proc: &ProcFs, pid: i32) -> Option<u64> {
    proc.process_stat(pid).ok().map(|stat| stat.start_ticks)
}

/// Reads until the buffer is full or nothing follows, and returns the number of bytes.
pub(super) fn fill(file: &File, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    let mut have = 0;
    while have < buffer.len() {
        match file.read_at(&mut buffer[have..], at + have as u64) {
            Ok(0) => break,
            Ok(count) => have += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if have == 0 => return Err(error),
            Err(_) => break,
        }
    }
    Ok(have)
}

/// Whether a process can still run. A leader may end before its threads: then it is a zombie with living threads.
pub(super) fn lives(proc: &ProcFs, pid: i32) -> bool {
    let ended = proc.process_stat(pid).is_ok_and(|stat| stat.ended() && stat.threads <= 1);
    proc.exists(pid) && !ended
}

/// The right to read a file: one at a time, because a hostile one takes as much memory as `ElfFile` allows.
#[derive(Debug)]
struct Turn;

static IS_TAKEN: Mutex<bool> = Mutex::new(false);
static IS_FREE: Condvar = Condvar::new();

impl Turn {
    /// An error if the file before is not read within this time.
    fn take(patience: Duration) -> Measured<Turn> {
        let taken = IS_TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = IS_FREE.wait_timeout_while(taken, patience, |taken| *taken);
        let (mut taken, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() {
            let waited = patience.as_millis();
            let detail = format!("a file of another process could not be read within {waited} ms");
            return Err(Absence::new(Reason::TooCostly, detail));
        }
        *taken = true;
        Ok(Turn)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        *IS_TAKEN.lock().unwrap_or_else(PoisonError::into_inner) = false;
        IS_FREE.notify_one();
    }
}

/// The file of the first executable mapping that `keep` selects, and that mapping.
pub(super) fn code_of(
    proc: &ProcFs,
    thread: i32,
    what: &str,
    keep: impl Fn(&Mapping) -> bool,
) -> Measured<(File, Mapping)> {
    let kept = proc.maps(thread, |mapping| mapping.perms.execute && mapping.is_file() && keep(mapping))?;
    let Some(mapping) = kept.mappings.into_iter().next() else {
        return Err(Absence::new(Reason::NotFound, format!("process {thread} has not mapped {what}")));
    };
    let file = maps::open(proc.root(), thread, &mapping)?;
    Ok((file, mapping))
}

/// Reads a mapped file of code. `read` is given by how much its addresses in memory are larger than its own.
pub(super) fn image<T>(
    file: File,
    mapping: &Mapping,
    read: impl for<'d> FnOnce(&Elf<'d, Bounded<'d>>, u64) -> Measured<T>,
) -> Measured<T> {
    let _turn = Turn::take(FILE_PATIENCE)?;
    let file = ElfFile::new(file);
    let elf = file.parse()?;
    let refused =
        |reason: Reason, what: &str| Err(Absence::new(reason, format!("{}: {what}", mapping.display_path())));
    if !elf.facts.is_64 {
        return refused(Reason::NotSupported, "32-bit code is not read");
    }
    match elf.facts.address_of_offset(mapping.offset) {
        Some(own) => read(&elf, mapping.start.wrapping_sub(own)),
        None => refused(Reason::Unparsable, "it is mapped outside its segments"),
    }
}

pub(super) fn word(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(8)?)?;
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

/// Memory from one address on.
#[cfg(any(test, feature = "fuzzing"))]
pub(super) struct Bytes {
    pub(super) at: u64,
    pub(super) bytes: Vec<u8>,
}

#[cfg(any(test, feature = "fuzzing"))]
impl Memory for Bytes {
    fn prefix(&mut self, address: u64, length: usize) -> Option<Vec<u8>> {
        let from = usize::try_from(address.checked_sub(self.at)?).ok()?;
        let rest = self.bytes.get(from..).filter(|rest| !rest.is_empty())?;
        Some(rest[..length.min(rest.len())].to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_resident_memory_of_this_process_is_read() {
        use allocwall_host::memory::AnonymousMapping;
        let mut live = Live::of(&ProcFs::live(), std::process::id() as i32);
        let page = PAGE as usize;
        let mut mapping = AnonymousMapping::plain(4 * page).unwrap();
        let start = mapping.bytes().as_ptr() as u64;
        mapping.bytes()[..page + 8].fill(7);
        // A larger page makes all four resident.
        let states = live.pages(start, 4);
        if states != [Page::Resident, Page::Resident, Page::Untouched, Page::Untouched] {
            println!("skipped: this kernel does not show pages of 4 KiB: {states:?}");
            return;
        }
        assert_eq!(live.bytes(start + 8, page), Some(vec![7; page]));
        assert_eq!(live.bytes(start + PAGE, 2 * page), None);
        assert_eq!(live.prefix(start + 8, 4 * page).map(|bytes| bytes.len()), Some(2 * page - 8));
        assert_eq!(live.prefix(start + 2 * PAGE, 8), None);
        assert_eq!(live.refused().reason, Reason::NotFound);
        // The reads made no pages.
        assert_eq!(live.pages(start, 4), states);
        for wrong in [0, 1 << 47, u64::MAX - 100, u64::MAX] {
            assert_eq!((live.bytes(wrong, 8), live.prefix(wrong, 64)), (None, None), "{wrong:x}");
        }
        assert_eq!(live.pages(u64::MAX - 7, 3), [Page::Unknown; 3]);
    }

    #[test]
    fn a_process_whose_memory_takes_too_long_is_not_read_for_some_time() {
        let mut live = Live::of(&ProcFs::live(), std::process::id() as i32);
        let value = [7u8; 64];
        let at = value.as_ptr() as u64;
        assert_eq!(live.bytes(at, 64), Some(value.to_vec()));
        assert!(!live.is_paused() && !live.has_paused());
        // As if one read had taken an hour.
        live.wait(Duration::from_secs(3600));
        assert_eq!((live.bytes(at, 64), live.pages(at, 1)), (None, vec![Page::Unknown]));
        assert_eq!((live.refused().reason, live.failure()), (Reason::TooCostly, None));
        // And as if ten hours had passed since.
        live.patience += Duration::from_secs(3600);
        assert_eq!(live.bytes(at, 64), Some(value.to_vec()));
        assert!(!live.is_paused() && live.has_paused());
    }

    #[test]
    fn one_file_is_read_at_a_time() {
        // Other tests read files, too.
        let turn = Turn::take(12 * FILE_PATIENCE).unwrap();
        let late = Turn::take(Duration::from_millis(1)).unwrap_err();
        assert!(late.reason == Reason::TooCostly && late.detail.ends_with("within 1 ms"), "{late}");
        drop(turn);
        assert!(Turn::take(12 * FILE_PATIENCE).is_ok());
    }

    #[test]
    fn a_program_ends_with_exec() {
        use std::io::{Read, Write};
        use std::process::{Command, Stdio};
        let mut child = Command::new("sh")
            .args(["-c", "read line; exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (proc, pid) = (ProcFs::live(), child.id() as i32);
        let mut program = Live::of(&proc, pid);
        // The kernel writes the top of the stack when it executes a program.
        let top = || {
            let stack = proc.maps(pid, |mapping| mapping.path == b"[stack]").unwrap().mappings.remove(0);
            stack.end - 8
        };
        assert!(program.still_runs());
        assert_eq!(program.word(top()).is_some(), program.failure().is_none());
        let (mut to, mut from) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        to.write_all(b"first\nsecond\n").unwrap();
        let mut echo = [0; 7];
        from.read_exact(&mut echo).unwrap();
        assert_eq!(&echo, b"second\n");
        assert!(!program.still_runs() && lives(&proc, pid));
        // The near twin: opened after it. The files of the program before read nothing of this one.
        let mut now = Live::of(&proc, pid);
        assert!(now.still_runs());
        assert_eq!((program.word(top()), now.word(top()).is_some()), (None, now.failure().is_none()));
        drop(to);
        child.wait().unwrap();
    }

    #[test]
    fn a_process_that_ended_has_no_memory() {
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let pid = child.id() as i32;
        let mut live = Live::of(&ProcFs::live(), pid);
        assert!(lives(&ProcFs::live(), pid) && live.failure().is_none());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!lives(&ProcFs::live(), pid));
        assert_eq!((live.bytes(1 << 20, 8), live.refused().reason), (None, Reason::Vanished));
        let copy = tempfile::tempdir().unwrap();
        let never = Live::of(&ProcFs::at(copy.path()), 7).failure();
        assert_eq!(never.map(|absence| absence.reason), Some(Reason::NotApplicable));
    }
}
