//! Reads the loader's log of a run's bindings while the loader writes it.
//!
//! With LD_DEBUG the loader writes one line per binding, for every process of the tree: a megabyte for each `cc -c`, 21 GB for a
//! build of 20,000 files. One line in thousands is about `malloc`, so the part that has been read is released on the disk at once
//! (a hole in the file; the writer continues at its end). If the log still exceeds its budget on the disk, the run is ended and its
//! proof is unknown.

use super::proof::{Bindings, ProcessBindings};
use allocwall_host::worker::not_started;
use allocwall_model::units::{Absence, Measured, Reason};
use rustix::fs::{AtFlags, CWD, FallocateFlags, FileType, Mode, OFlags};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{Builder, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

/// Largest log on the disk at a time: as much as 64 CPUs write in a second.
const BUDGET: u64 = 256 << 20;
/// The log may use at most 1/SHARE of the free space of the file system.
const SHARE: u64 = 4;
/// Pause between two readings of the files.
const PAUSE: Duration = Duration::from_millis(50);
/// Pause at least this many times as long as the reading took: reading thousands of files uses at most a tenth of a CPU.
const IDLE: u32 = 9;
const PIECE: usize = 1 << 20;
/// File systems release whole blocks.
const BLOCK: u64 = 4096;
/// A binding names two files, and their names are shorter.
const LONGEST_LINE: usize = 64 << 10;
/// Each process takes some kilobytes of memory for its modules.
const PROCESSES: usize = 50_000;

/// A folder for the logs, and its limit in bytes.
pub struct Room {
    folder: PathBuf,
    bytes: u64,
}

impl Room {
    pub fn new(folder: &Path) -> Room {
        let free = rustix::fs::statvfs(folder).map_or(u64::MAX, |fs| fs.f_bavail.saturating_mul(fs.f_frsize));
        Room::of(folder, BUDGET.min(free / SHARE))
    }

    pub fn of(folder: &Path, bytes: u64) -> Room {
        Room { folder: folder.to_owned(), bytes }
    }

    pub fn account(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Starts reading this log. `interrupted` is set when the user interrupts; see [`Reader::stop`].
    ///
    /// # Errors
    /// The thread could not be started; then the log is not read.
    pub fn read<'scope>(
        &self,
        account: &Path,
        scope: &'scope Scope<'scope, '_>,
        interrupted: &'scope AtomicBool,
    ) -> Measured<Reader<'scope>> {
        let stop = Arc::new(AtomicBool::new(false));
        let (over, waiting) = channel();
        let mut files = Files { folder: account.to_owned(), budget: self.bytes, parts: BTreeMap::new() };
        let ended = stop.clone();
        let work = move || -> Measured<Bindings> {
            let mut last = false;
            loop {
                let began = Instant::now();
                let read = files.read(interrupted);
                if read.is_err() {
                    // Relaxed: the flag protects no other data.
                    ended.store(true, Ordering::Relaxed);
                }
                read?;
                if last {
                    return Ok(files.bindings());
                }
                let next = Instant::now() + PAUSE.max(began.elapsed() * IDLE);
                while !last && Instant::now() < next {
                    if interrupted.load(Ordering::Relaxed) {
                        ended.store(true, Ordering::Relaxed);
                    }
                    last = !matches!(waiting.recv_timeout(PAUSE), Err(RecvTimeoutError::Timeout));
                }
            }
        };
        // Under a limit of tasks, `Scope::spawn` would panic.
        let thread = Builder::new()
            .spawn_scoped(scope, work)
            .map_err(|error| not_started("reads the loader's log", &error))?;
        Ok(Reader { stop, over, thread, account: account.to_owned() })
    }
}

/// A log that is read in its own thread.
pub struct Reader<'scope> {
    stop: Arc<AtomicBool>,
    over: Sender<()>,
    thread: ScopedJoinHandle<'scope, Measured<Bindings>>,
    account: PathBuf,
}

impl Reader<'_> {
    /// Set when the run must end: the log is too large, or the user interrupts.
    pub fn stop(&self) -> Arc<AtomicBool> {
        self.stop.clone()
    }

    /// The bindings. Call it when all writers have ended. Removes the log from the disk.
    pub fn finish(self) -> Measured<Bindings> {
        // Sending fails if the thread has already ended.
        let _ = self.over.send(());
        let told = self.thread.join().unwrap_or_else(|_| {
            let failed = "the thread that reads the loader's log failed";
            Err(Absence::new(Reason::NotSupported, failed))
        });
        // Files that can't be removed now are removed with the parent folder.
        let _ = std::fs::remove_dir_all(&self.account);
        told
    }
}

struct Files {
    folder: PathBuf,
    budget: u64,
    parts: BTreeMap<u32, Part>,
}

/// One process's file.
#[derive(Default)]
struct Part {
    read: u64,
    given_back: u64,
    /// The start of a line whose end is not written yet.
    rest: Vec<u8>,
    found: ProcessBindings,
}

impl Files {
    /// Reads the new part of all files. An error if the user interrupts or the log is too large.
    fn read(&mut self, interrupted: &AtomicBool) -> Measured<()> {
        let Ok(folder) = rustix::fs::openat(
            CWD,
            &self.folder,
            OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::empty(),
        ) else {
            return Ok(());
        };
        let names = std::fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let pids =
            names.filter_map(|file| file.file_name().to_str()?.strip_prefix("bindings.")?.parse().ok());
        let sizes: Vec<(u32, u64)> = pids.filter_map(|pid| Some((pid, size(&folder, pid)?))).collect();
        let there = |parts: &BTreeMap<u32, Part>| -> u64 {
            let back = |pid| parts.get(pid).map_or(0, |part: &Part| part.given_back);
            // The sum of the sizes of sparse files may exceed a u64.
            sizes.iter().fold(0, |sum: u64, (pid, size)| sum.saturating_add(size.saturating_sub(back(pid))))
        };
        // Checked before reading: a sparse file may have any size.
        if there(&self.parts) > self.budget {
            return Err(self.too_much(format!("more than {} MiB on the disk", self.budget >> 20)));
        }
        for &(pid, size) in &sizes {
            if self.parts.len() >= PROCESSES && !self.parts.contains_key(&pid) {
                return Err(self.too_much(format!("the command started more than {PROCESSES} processes")));
            }
            let part = self.parts.entry(pid).or_default();
            if size > part.read {
                // If a file can't be read, its process stays unknown; its size still counts against the budget.
                let _ = part.read_on(&folder, pid, size, interrupted);
            }
            if interrupted.load(Ordering::Relaxed) {
                return Err(Absence::new(
                    Reason::TooLittle,
                    "you interrupted the run while its loader log was read",
                ));
            }
        }
        Ok(())
    }

    fn too_much(&self, why: String) -> Absence {
        Absence::new(
            Reason::TooCostly,
            format!("the loader's LD_DEBUG log is too large ({why}), so allocwall ended that run"),
        )
        .mend("use a smaller command that starts fewer processes")
    }

    fn bindings(&mut self) -> Bindings {
        let parts = std::mem::take(&mut self.parts);
        parts.into_iter().map(|(pid, part)| (pid, part.found)).collect()
    }
}

/// The size of a regular file with one hard link. Others are ignored: every user may create files in the folder.
fn size(folder: &OwnedFd, pid: u32) -> Option<u64> {
    let facts = rustix::fs::statat(folder, name(pid), AtFlags::SYMLINK_NOFOLLOW).ok()?;
    is_plain(&facts).then_some(u64::try_from(facts.st_size).ok()?)
}

fn is_plain(facts: &rustix::fs::Stat) -> bool {
    FileType::from_raw_mode(facts.st_mode) == FileType::RegularFile && facts.st_nlink == 1
}

fn name(pid: u32) -> String {
    format!("bindings.{pid}")
}

impl Part {
    fn read_on(&mut self, folder: &OwnedFd, pid: u32, size: u64, interrupted: &AtomicBool) -> io::Result<()> {
        let open = |access| {
            let flags = access | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            rustix::fs::openat(folder, name(pid), flags, Mode::empty())
        };
        // A file of another user can only be read.
        let file = open(OFlags::RDWR).or_else(|_| open(OFlags::RDONLY))?;
        if !is_plain(&rustix::fs::fstat(&file)?) {
            return Ok(());
        }
        let file = File::from(file);
        let mut piece = vec![0; PIECE.min(usize::try_from(size - self.read).unwrap_or(PIECE))];
        while self.read < size && !interrupted.load(Ordering::Relaxed) {
            let count = file.read_at(&mut piece, self.read)?;
            if count == 0 {
                break;
            }
            self.read += count as u64;
            self.take(&piece[..count]);
        }
        let whole = self.read / BLOCK * BLOCK;
        if whole > self.given_back {
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            // If the file system does not support it, the whole file stays and counts against the budget.
            rustix::fs::fallocate(&file, hole, self.given_back, whole - self.given_back)?;
            self.given_back = whole;
        }
        Ok(())
    }

    fn take(&mut self, piece: &[u8]) {
        let Some(end) = memchr::memrchr(b'\n', piece) else {
            self.keep(piece);
            return;
        };
        let (lines, rest) = piece.split_at(end + 1);
        if self.rest.is_empty() {
            self.found.add(lines)
        } else {
            let mut whole = std::mem::take(&mut self.rest);
            whole.extend_from_slice(lines);
            self.found.add(&whole);
        }
        self.keep(rest);
    }

    fn keep(&mut self, rest: &[u8]) {
        self.rest.extend_from_slice(rest);
        if self.rest.len() > LONGEST_LINE {
            self.rest.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::{MetadataExt, symlink};

    static NEVER: AtomicBool = AtomicBool::new(false);

    const LINE: &str =
        "     7:\tbinding file /usr/bin/x [0] to /lib/libc.so.6 [0]: normal symbol `malloc' [GLIBC_2.2.5]\n";

    fn filler(bytes: usize) -> String {
        LINE.replace("`malloc'", "`free'").repeat(bytes / LINE.len() + 1)
    }

    fn append(path: &Path, text: &str) -> File {
        let mut file = File::options().append(true).create(true).open(path).unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file
    }

    fn one() -> ProcessBindings {
        let mut one = ProcessBindings::default();
        one.add(LINE.as_bytes());
        one
    }

    #[test]
    fn the_part_that_was_read_is_released_and_nothing_is_lost() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bindings.7");
        let mut files = Files { folder: dir.path().to_owned(), budget: 3 << 20, parts: BTreeMap::new() };
        // Five times the budget in total; the relevant line is split over two pieces.
        let (head, tail) = LINE.split_at(LINE.len() / 2);
        for round in 0..8 {
            let text = match round {
                3 => filler(2 << 20) + head,
                4 => tail.to_owned() + &filler(2 << 20),
                _ => filler(2 << 20),
            };
            let file = append(&path, &text);
            let told = files.read(&NEVER);
            if round == 1 && told.is_err() {
                println!("skipped: this file system does not release parts of a file");
                return;
            }
            told.unwrap();
            let blocks = file.metadata().unwrap().blocks() * 512;
            assert!(blocks <= 64 << 10, "{blocks} bytes are kept");
        }
        assert_eq!(files.bindings(), Bindings::from_iter([(7, one())]));
    }

    #[test]
    fn more_than_the_budget_is_refused_also_for_a_sparse_file() {
        for claimed in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("bindings.7");
            if claimed {
                File::create(&path).unwrap().set_len(1 << 40).unwrap()
            } else {
                drop(append(&path, &filler(2 << 20)))
            }
            let mut files = Files { folder: dir.path().to_owned(), budget: 1 << 20, parts: BTreeMap::new() };
            let absence = files.read(&NEVER).unwrap_err();
            assert_eq!(absence.reason, Reason::TooCostly);
            assert!(absence.detail.contains("1 MiB"), "{absence}");
        }
    }

    /// 2^64 bytes in total, which is 0 in a u64. tmpfs allows files of this size.
    #[test]
    fn sizes_whose_sum_does_not_fit_are_refused() {
        let Ok(dir) = tempfile::tempdir_in("/dev/shm") else {
            println!("skipped: no /dev/shm");
            return;
        };
        for (pid, claimed) in [(1, u64::MAX / 2), (2, u64::MAX / 2), (3, 2)] {
            let file = File::create(dir.path().join(name(pid))).unwrap();
            if let Err(error) = file.set_len(claimed) {
                println!("skipped: no file of {claimed} bytes: {error}");
                return;
            }
        }
        let mut files = Files { folder: dir.path().to_owned(), budget: 1 << 20, parts: BTreeMap::new() };
        assert_eq!(files.read(&NEVER).unwrap_err().reason, Reason::TooCostly);
    }

    #[test]
    fn an_interruption_ends_the_reading() {
        let dir = tempfile::tempdir().unwrap();
        append(&dir.path().join("bindings.7"), LINE);
        let mut files = Files { folder: dir.path().to_owned(), budget: 1 << 20, parts: BTreeMap::new() };
        let absence = files.read(&AtomicBool::new(true)).unwrap_err();
        assert_eq!(absence.reason, Reason::TooLittle);
        assert_eq!(files.parts[&7].read, 0);
    }

    /// Every user may create files in the folder: links and pipes are not read, and no hole is punched in their targets.
    #[test]
    fn links_and_pipes_are_ignored() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("account");
        std::fs::create_dir(&folder).unwrap();
        let other = dir.path().join("other");
        append(&other, &(LINE.to_owned() + &filler(1 << 20)));
        symlink(&other, folder.join("bindings.1")).unwrap();
        std::fs::hard_link(&other, folder.join("bindings.2")).unwrap();
        rustix::fs::mknodat(CWD, folder.join("bindings.3"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)
            .unwrap();
        append(&folder.join("bindings.4"), LINE);
        append(&folder.join("bindings.x"), LINE);
        let before = std::fs::read(&other).unwrap();
        let mut files = Files { folder, budget: 1 << 20, parts: BTreeMap::new() };
        files.read(&NEVER).unwrap();
        assert_eq!(files.bindings(), Bindings::from_iter([(4, one())]));
        assert!(std::fs::read(&other).unwrap() == before);
    }
}
