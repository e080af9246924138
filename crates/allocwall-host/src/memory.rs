//! Anonymous mappings that own their pages, and the kernel's data about the memory of this process.

use crate::cgroup::CgroupFs;
use crate::facts::Machine;
use crate::file;
use crate::proc::parse::kilobytes;
use allocwall_model::catalogue::advice;
use allocwall_model::units::{Absence, Measured, Reason};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::ptr::NonNull;

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

/// The pagemap of a process, open.
pub struct PageMap(fs::File);

impl PageMap {
    /// `pid`: a living thread of the process.
    pub fn open(proc_root: &Path, pid: i32) -> io::Result<PageMap> {
        fs::File::open(proc_root.join(format!("{pid}/pagemap"))).map(PageMap)
    }

    /// The state of a page by its number, which is its address / 4096. The page is not touched.
    ///
    /// # Errors
    /// `UnexpectedEof`: the process has ended or has called exec since the file was opened, or the page is the kernel's.
    pub fn state(&self, page: u64) -> io::Result<PageState> {
        let mut entry = [0; 8];
        self.0.read_exact_at(&mut entry, page.saturating_mul(8))?;
        Ok(PageState::of(entry))
    }
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
    /// How often the thread lost its CPU to other work while it was runnable.
    pub involuntary_switches: u64,
}

pub fn thread_counts() -> ThreadCounts {
    // SAFETY: an all-zero rusage is a valid value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is a live rusage that the call fills; with these arguments the call cannot fail.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    ThreadCounts { minor_faults: usage.ru_minflt as u64, involuntary_switches: usage.ru_nivcsw as u64 }
}

/// Whether this process can get transparent huge pages of 2 MiB on request.
pub fn huge_pages_on_request(machine: &Machine) -> Measured<()> {
    if machine.thp("enabled")? == "never" {
        return Err(Absence::new(Reason::Disabled, "transparent huge pages are switched off (mode `never`)")
            .mend(
                "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled, as root; then allocwall calibrate \
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
        let first = mapping.bytes().as_ptr() as u64 / PAGE as u64;
        mapping.bytes()[3 * PAGE] = 7;
        let pages = PageMap::open(Path::new("/proc"), std::process::id() as i32).unwrap();
        let state = |page: u64| pages.state(first + page).unwrap();
        assert_eq!([2, 3, 4].map(state), [PageState::Absent, PageState::Resident, PageState::Absent]);
        mapping.release_pages().unwrap();
        assert_eq!(state(3), PageState::Absent);
    }

    #[test]
    fn a_process_that_has_ended_has_no_page_map() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pages = PageMap::open(Path::new("/proc"), child.id() as i32).unwrap();
        let alive = pages.state(0);
        child.kill().and_then(|()| child.wait()).unwrap();
        assert_eq!(alive.unwrap(), PageState::Absent);
        assert_eq!(pages.state(0).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
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
