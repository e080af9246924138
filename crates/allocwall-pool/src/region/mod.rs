//! Memory on huge pages, with the reason for what it got.
//!
//! A [`Region`] is 2 MiB-aligned private memory. It is asked for in [`Request`] and says in [`Got`] which pages it
//! stands on and, for each thing that was asked and not had, [`Why`] not: never a silent fallback.
//!
//! * [`Pages::Reserved`]: pages of the machine's reserved pool (`vm.nr_hugepages`). They are taken before the region is
//!   handed out, so an exhausted pool, or a cgroup's limit on it, shows here and never as a SIGBUS later. One way to a
//!   SIGBUS is left and can't be closed from here: after `fork`, the first write to a page takes a second one.
//! * [`Pages::Transparent`]: `madvise(MADV_HUGEPAGE)`. The kernel gives a huge page at first touch where it has one:
//!   a promise of eligibility, not of huge pages. [`huge_bytes`] tells what they are in truth.
//! * [`Pages::Plain`]: base pages.
//!
//! Cost: a region is 1 to 6 system calls, before any touching. Nothing here allocates by `malloc` except the readers of
//! `/proc` and `/sys` ([`Machine`], [`huge_bytes`]).

mod got;
mod machine;
pub(crate) mod os;
mod process;
mod smaps;

pub use got::{CollapseError, Got, Outcome, Why};
pub use machine::{Machine, Mode, Pool};
pub use process::{Collapsed, collapse_resident};
pub use smaps::{Huge, huge_bytes, huge_within};

use std::ptr::NonNull;

/// Bytes of a huge page: what this module works in. A machine with another size is refused by [`Machine::transparent`].
pub const HUGE: usize = 2 << 20;

/// The kind of pages under a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// From the reserved pool (`MAP_HUGETLB`), all taken already.
    Reserved,
    /// Eligible for transparent huge pages (`MADV_HUGEPAGE`).
    Transparent,
    /// Base pages.
    Plain,
}

/// What is asked of a region. [`Pages::Reserved`] falls back to transparent, transparent to plain.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Usable bytes; rounded up to whole huge pages.
    pub bytes: usize,
    pub pages: Pages,
    /// Take every page now, so that no first touch is left for later. Reserved pages always are.
    pub touch: bool,
    /// `mlock`: keep it resident. Touches too.
    pub lock: bool,
    /// Bind to this NUMA node, strictly. On a machine with one node there is nothing to do, and that is said.
    pub node: Option<u32>,
    /// An inaccessible page before and behind.
    pub guards: bool,
}

impl Request {
    /// So many bytes on transparent huge pages, untouched, unlocked, unbound, without guards.
    pub fn of(bytes: usize) -> Self {
        Self {
            bytes,
            pages: Pages::Transparent,
            touch: false,
            lock: false,
            node: None,
            guards: false,
        }
    }
}

/// 2 MiB-aligned private memory; unmapped on drop.
#[derive(Debug)]
pub struct Region {
    base: NonNull<u8>,
    len: usize,
    guards: bool,
    got: Got,
}

// SAFETY: a region owns its mapping alone, and nothing in it belongs to a thread.
unsafe impl Send for Region {}
// SAFETY: shared, it only tells its address, length and origin.
unsafe impl Sync for Region {}

impl Region {
    /// Maps a region on this machine.
    ///
    /// # Errors
    ///
    /// When not even plain memory can be had: [`Why::Empty`] for 0 bytes, [`Why::TooLarge`], or what `mmap` said. All
    /// else that was asked and not had is in [`got`](Self::got).
    pub fn new(request: &Request) -> Result<Self, Why> {
        Self::on(&Machine::this(), request)
    }

    /// As [`new`](Self::new), with a machine that was looked at before: nothing is read from `/sys` unless a node is
    /// asked for or the reserved pool fails.
    pub fn on(machine: &Machine, request: &Request) -> Result<Self, Why> {
        let len = rounded(request.bytes)?;
        let mut got = Got::nothing_asked();
        if request.pages == Pages::Reserved {
            match Self::reserved(machine, len, request) {
                Ok(region) => return Ok(region),
                Err(why) => got.reserved = Outcome::Refused(why),
            }
        }
        let base = os::map_aligned(len, request.guards, false)?;
        let mut region = Self {
            base,
            len,
            guards: request.guards,
            got,
        };
        if request.pages != Pages::Plain {
            region.got.transparent = match machine
                .transparent()
                .and_then(|()| os::advise(base, len, libc::MADV_HUGEPAGE, "madvise(MADV_HUGEPAGE)"))
            {
                Ok(()) => {
                    region.got.pages = Pages::Transparent;
                    Outcome::Done
                }
                Err(why) => Outcome::Refused(why),
            };
        }
        region.got.bound = region.bind(machine, request);
        if request.touch || request.lock {
            region.got.touched = Outcome::from(region.touch());
        }
        if request.lock {
            region.got.locked = Outcome::from(os::lock(base, len));
        }
        Ok(region)
    }

    /// All of it from the reserved pool, each page taken, or none of it.
    fn reserved(machine: &Machine, len: usize, request: &Request) -> Result<Self, Why> {
        let base = os::map_aligned(len, request.guards, true).map_err(|why| machine.pool_says(why, len))?;
        let mut region = Self {
            base,
            len,
            guards: request.guards,
            got: Got::nothing_asked(),
        };
        region.got.pages = Pages::Reserved;
        region.got.reserved = Outcome::Done;
        region.got.bound = region.bind(machine, request);
        // The reservation covers neither a node's share nor a cgroup's limit. Taking the pages now, by a call that
        // fails instead of raising SIGBUS, covers both.
        os::advise(
            base,
            len,
            libc::MADV_POPULATE_WRITE,
            "madvise(MADV_POPULATE_WRITE)",
        )
        .map_err(|why| machine.pool_says(why, len))?;
        region.got.touched = Outcome::Done;
        if request.lock {
            region.got.locked = Outcome::from(os::lock(base, len));
        }
        Ok(region)
    }

    fn bind(&self, machine: &Machine, request: &Request) -> Outcome {
        match request.node {
            None => Outcome::NotAsked,
            Some(node) => Outcome::from(
                machine
                    .node(node)
                    .and_then(|()| os::bind(self.base, self.len, node)),
            ),
        }
    }

    /// Takes every page that isn't there yet.
    ///
    /// # Errors
    ///
    /// What the kernel said; with too little memory it may also end the process, as for any first touch.
    pub fn touch(&self) -> Result<(), Why> {
        os::populate(self.base, self.len)
    }

    /// Makes what is here huge now (`MADV_COLLAPSE`, Linux 6.1), whatever it stands on. It copies, and takes huge pages
    /// even where the machine's mode says `never`: ask [`Machine::transparent`] first.
    ///
    /// # Errors
    ///
    /// [`CollapseError`]; what could be made huge before the error stays so.
    pub fn collapse(&self) -> Result<(), CollapseError> {
        collapse(self.base.as_ptr() as usize, self.len)
    }

    /// Bytes of it that are huge in truth.
    ///
    /// # Errors
    ///
    /// When `/proc/self/smaps` can't be read.
    pub fn huge_bytes(&self) -> Result<Huge, Why> {
        let start = self.base.as_ptr() as usize;
        huge_bytes(&[(start, start + self.len)])
    }

    /// The first byte.
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.base
    }

    /// Usable bytes: a multiple of [`HUGE`].
    #[allow(clippy::len_without_is_empty, reason = "a region of no bytes is refused")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// What it stands on, and why not on what was asked.
    pub fn got(&self) -> &Got {
        &self.got
    }

    /// All of it, zeroed where nothing has written yet.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: mapped readable and writable for `len` bytes, and borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.len) }
    }

    /// Gives the mapping away: its first byte. The caller unmaps it with [`unmap`]. Guard pages, if any, are unmapped.
    pub fn into_raw(self) -> NonNull<u8> {
        let this = std::mem::ManuallyDrop::new(self);
        if this.guards {
            os::unguard(this.base, this.len);
        }
        this.base
    }
}

// SAFETY: private memory, mapped readable and writable at one place until the region is dropped, and reached by nobody but through it.
unsafe impl crate::Memory for Region {
    fn base(&self) -> NonNull<u8> {
        self.as_ptr()
    }

    fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if self.guards {
            os::unguard(self.base, self.len);
        }
        // It can fail only where the number of mappings is at its limit; then the memory stays mapped, unused.
        // SAFETY: our own mapping, and nobody can hold a borrow of it any more.
        let _ = unsafe { unmap(self.base, self.len) };
    }
}

/// Unmaps what [`Region::into_raw`] gave away, or whole huge pages of it.
///
/// # Errors
///
/// What `munmap` said: `ENOMEM` where splitting a mapping would exceed `vm.max_map_count`. All stays mapped then.
///
/// # Safety
///
/// `base` and `len` lie within a region that was given away, and nothing uses that memory any more.
pub unsafe fn unmap(base: NonNull<u8>, len: usize) -> Result<(), Why> {
    // SAFETY: the caller's promise.
    unsafe { os::unmap(base, len) }
}

/// Advice on memory that [`Region::into_raw`] gave away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Eligible for huge pages from now on (`MADV_HUGEPAGE`): at first touch, or by khugepaged where small ones are.
    Huge,
    /// The kernel may take the pages when it is short; until then a write keeps them (`MADV_FREE`, Linux 4.5).
    Free,
    /// The pages are given back now (`MADV_DONTNEED`).
    DontNeed,
}

/// Gives advice on memory.
///
/// # Errors
///
/// What the kernel said.
///
/// # Safety
///
/// `base` and `len` lie within a region that was given away; for [`Advice::Free`] and [`Advice::DontNeed`], nothing of
/// its contents is needed any more.
pub unsafe fn advise(base: NonNull<u8>, len: usize, advice: Advice) -> Result<(), Why> {
    let (number, call) = match advice {
        Advice::Huge => (libc::MADV_HUGEPAGE, "madvise(MADV_HUGEPAGE)"),
        Advice::Free => (libc::MADV_FREE, "madvise(MADV_FREE)"),
        Advice::DontNeed => (libc::MADV_DONTNEED, "madvise(MADV_DONTNEED)"),
    };
    os::advise(base, len, number, call)
}

/// [`Region::collapse`] for any memory: whole huge pages from `start`. It keeps contents, and what is pinned the kernel
/// leaves alone: so whatever stands there is not harmed.
///
/// # Errors
///
/// [`CollapseError`].
pub fn collapse(start: usize, len: usize) -> Result<(), CollapseError> {
    os::collapse(start, len)
}

/// The share of base pages, 0 to 1, of the huge page at `start` that is resident.
///
/// # Errors
///
/// What `mincore` said: `ENOMEM` where a part isn't mapped.
pub fn resident_share(start: usize) -> Result<f64, Why> {
    os::resident_pages(start).map(|pages| pages as f64 / os::BASE_PAGES as f64)
}

fn rounded(bytes: usize) -> Result<usize, Why> {
    if bytes == 0 {
        return Err(Why::Empty);
    }
    // Alignment and guards ask for two huge pages of address space more.
    bytes
        .checked_next_multiple_of(HUGE)
        .filter(|len| *len <= isize::MAX as usize - 2 * HUGE)
        .ok_or(Why::TooLarge)
}

#[cfg(test)]
mod tests;
