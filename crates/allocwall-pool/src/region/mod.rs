//! Memory on huge pages. Each region reports which pages it got, and why.
//!
//! A [`Region`] is private memory, aligned to 2 MiB. A [`Request`] describes the region that you want. [`Got`]
//! reports the kind of pages that it has, and for each property that was requested and refused the reason ([`Why`]).
//! There is no silent fallback.
//!
//! * [`Pages::Reserved`]: pages of the machine's reserved pool (`vm.nr_hugepages`). They are allocated before the
//!   region is returned. So an empty pool, or a cgroup's limit on it, is an error here and not a SIGBUS later. One
//!   case of SIGBUS remains, which this module cannot prevent: after `fork`, the first write to a page needs a second
//!   page from the pool.
//! * [`Pages::Transparent`]: `madvise(MADV_HUGEPAGE)`. The memory is eligible: the kernel uses a huge page at first
//!   touch if one is free. [`huge_bytes`] measures how much memory is on huge pages.
//! * [`Pages::Plain`]: base pages.
//!
//! Cost: 1 to 6 system calls for a region, without the touching. Nothing here calls `malloc`, except the readers of
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

/// The size of a huge page in bytes: 2 MiB. [`Machine::transparent`] refuses a machine with another size.
pub const HUGE: usize = 2 << 20;

/// The kind of pages under a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// Huge pages from the reserved pool (`MAP_HUGETLB`), all allocated already.
    Reserved,
    /// Eligible for transparent huge pages (`MADV_HUGEPAGE`).
    Transparent,
    /// Base pages.
    Plain,
}

/// The description of a region. [`Pages::Reserved`] falls back to transparent, and transparent to plain.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// The usable size in bytes; it is rounded up to whole huge pages.
    pub bytes: usize,
    /// The preferred kind of pages.
    pub pages: Pages,
    /// Whether to allocate every page now, so that there are no first touches later. Reserved pages always are.
    pub touch: bool,
    /// Whether to lock the memory (`mlock`), so that it stays resident. This also touches it.
    pub lock: bool,
    /// The NUMA node to bind the memory to, strictly. On a machine with one node this is refused as
    /// [`Why::OneNode`].
    pub node: Option<u32>,
    /// Whether to add an inaccessible page before and after the region.
    pub guards: bool,
}

impl Request {
    /// A request for this many bytes on transparent huge pages: not touched, not locked, not bound, without guards.
    ///
    /// ```
    /// use allocwall_pool::region::{Pages, Request};
    ///
    /// let request = Request { pages: Pages::Plain, touch: true, ..Request::of(1 << 20) };
    /// # let _ = request;
    /// ```
    pub fn of(bytes: usize) -> Self {
        Self { bytes, pages: Pages::Transparent, touch: false, lock: false, node: None, guards: false }
    }
}

/// Private memory, aligned to 2 MiB. To drop it unmaps it.
#[derive(Debug)]
pub struct Region {
    base: NonNull<u8>,
    len: usize,
    guards: bool,
    got: Got,
}

// SAFETY: only the region uses its mapping, and no part of it belongs to a thread.
unsafe impl Send for Region {}
// SAFETY: a shared region only returns its address and length, and calls the kernel.
unsafe impl Sync for Region {}

impl Region {
    /// Maps a region on this machine.
    ///
    /// ```
    /// use allocwall_pool::region::{Region, Request};
    ///
    /// let region = Region::new(&Request::of(2 << 20))?;
    /// assert_eq!(region.len(), 2 << 20);
    /// # Ok::<(), allocwall_pool::region::Why>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Why::Empty`] for 0 bytes, [`Why::TooLarge`], or the error of `mmap` if even plain memory fails. All other
    /// properties that were requested and refused are in [`got`](Self::got).
    pub fn new(request: &Request) -> Result<Self, Why> {
        Self::on(&Machine::this(), request)
    }

    /// As [`new`](Self::new), with a [`Machine`] that was read before. Nothing is read from `/sys` unless a node is
    /// requested or the reserved pool fails.
    ///
    /// ```
    /// use allocwall_pool::region::{Machine, Region, Request};
    ///
    /// let machine = Machine::this();
    /// for _ in 0..4 {
    ///     Region::on(&machine, &Request::of(2 << 20))?;
    /// }
    /// # Ok::<(), allocwall_pool::region::Why>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`new`](Self::new).
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
        let mut region = Self { base, len, guards: request.guards, got };
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

    /// A region with all pages from the reserved pool, already allocated; or an error.
    fn reserved(machine: &Machine, len: usize, request: &Request) -> Result<Self, Why> {
        let base = os::map_aligned(len, request.guards, true).map_err(|why| machine.pool_says(why, len))?;
        let mut region = Self { base, len, guards: request.guards, got: Got::nothing_asked() };
        region.got.pages = Pages::Reserved;
        region.got.reserved = Outcome::Done;
        region.got.bound = region.bind(machine, request);
        // The reservation covers neither a node's share nor a cgroup's limit. This call allocates the pages now, and
        // returns an error instead of raising SIGBUS.
        os::advise(base, len, libc::MADV_POPULATE_WRITE, "madvise(MADV_POPULATE_WRITE)")
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
            Some(node) => {
                Outcome::from(machine.node(node).and_then(|()| os::bind(self.base, self.len, node)))
            }
        }
    }

    /// Allocates every page that is not resident yet.
    ///
    /// ```
    /// use allocwall_pool::region::{Region, Request};
    ///
    /// let region = Region::new(&Request::of(2 << 20))?;
    /// region.touch()?; // later writes are no page faults
    /// # Ok::<(), allocwall_pool::region::Why>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Why::Failed`] with the kernel's error. If memory is short, the kernel may also kill the process, as at any
    /// first touch.
    pub fn touch(&self) -> Result<(), Why> {
        os::populate(self.base, self.len)
    }

    /// Moves the region's memory to huge pages now (`MADV_COLLAPSE`, Linux 6.1), whatever its pages are. The kernel
    /// copies the memory. It uses huge pages even if the machine's mode is `never`, so check [`Machine::transparent`]
    /// first.
    ///
    /// ```
    /// use allocwall_pool::region::{Region, Request};
    ///
    /// let region = Region::new(&Request::of(2 << 20))?;
    /// region.touch()?;
    /// match region.collapse() {
    ///     Ok(()) => println!("on huge pages"),
    ///     Err(why) => println!("not on huge pages: {why}"),
    /// }
    /// # Ok::<(), allocwall_pool::region::Why>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`CollapseError`]. The parts that were moved before the error stay on huge pages.
    pub fn collapse(&self) -> Result<(), CollapseError> {
        collapse(self.base.as_ptr() as usize, self.len)
    }

    /// The number of its bytes that are on huge pages now.
    ///
    /// ```
    /// use allocwall_pool::region::{Region, Request};
    ///
    /// let region = Region::new(&Request::of(2 << 20))?;
    /// println!("{} bytes on transparent huge pages", region.huge_bytes()?.transparent);
    /// # Ok::<(), allocwall_pool::region::Why>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Why::Unreadable`] if `/proc/self/smaps` cannot be read.
    pub fn huge_bytes(&self) -> Result<Huge, Why> {
        let start = self.base.as_ptr() as usize;
        huge_bytes(&[(start, start + self.len)])
    }

    /// The address of the first byte.
    ///
    /// ```
    /// use allocwall_pool::region::{Region, Request};
    ///
    /// let region = Region::new(&Request::of(2 << 20))?;
    /// assert_eq!(region.as_ptr().addr().get() % (2 << 20), 0);
    /// # Ok::<(), allocwall_pool::region::Why>(())
    /// ```
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.base
    }

    /// The usable size in bytes: a multiple of [`HUGE`].
    ///
    /// ```
    /// use allocwall_pool::region::{Region, Request};
    ///
    /// assert_eq!(Region::new(&Request::of(1))?.len(), 2 << 20);
    /// # Ok::<(), allocwall_pool::region::Why>(())
    /// ```
    #[allow(clippy::len_without_is_empty, reason = "a region of no bytes is refused")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The pages that it got, and the reasons for each refused property.
    ///
    /// ```
    /// use allocwall_pool::region::{Region, Request};
    ///
    /// let region = Region::new(&Request::of(2 << 20))?;
    /// println!("{:?}; transparent: {:?}", region.got().pages, region.got().transparent);
    /// # Ok::<(), allocwall_pool::region::Why>(())
    /// ```
    pub fn got(&self) -> &Got {
        &self.got
    }

    /// The whole memory. Bytes that were never written are 0.
    ///
    /// ```
    /// use allocwall_pool::region::{Region, Request};
    ///
    /// let mut region = Region::new(&Request::of(2 << 20))?;
    /// region.as_mut_slice()[0] = 7;
    /// assert_eq!(region.as_mut_slice()[..2], [7, 0]);
    /// # Ok::<(), allocwall_pool::region::Why>(())
    /// ```
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: mapped readable and writable for `len` bytes, and borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.len) }
    }

    /// Gives the mapping away and returns its first byte. The caller must unmap it with [`unmap`]. Guard pages are
    /// unmapped here.
    ///
    /// ```
    /// use allocwall_pool::region::{Region, Request, unmap};
    ///
    /// let region = Region::new(&Request::of(2 << 20))?;
    /// let len = region.len();
    /// let base = region.into_raw();
    /// // SAFETY: the whole region, which was given away and is not used any more.
    /// unsafe { unmap(base, len)? };
    /// # Ok::<(), allocwall_pool::region::Why>(())
    /// ```
    pub fn into_raw(self) -> NonNull<u8> {
        let this = std::mem::ManuallyDrop::new(self);
        if this.guards {
            os::unguard(this.base, this.len);
        }
        this.base
    }
}

// SAFETY: private memory, mapped readable and writable at a fixed address until the region is dropped. Only the
// region gives access to it.
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
        // It can fail only if the number of mappings is at its limit. The memory then stays mapped and unused.
        // SAFETY: the region's own mapping, and no borrow of it exists any more.
        let _ = unsafe { unmap(self.base, self.len) };
    }
}

/// Unmaps memory that [`Region::into_raw`] gave away, or whole huge pages of it.
///
/// ```
/// use allocwall_pool::region::{HUGE, Region, Request, unmap};
///
/// let base = Region::new(&Request::of(2 * HUGE))?.into_raw();
/// // SAFETY: the second half of a region that was given away; it is not used.
/// unsafe { unmap(base.add(HUGE), HUGE)? };
/// # unsafe { unmap(base, HUGE)? };
/// # Ok::<(), allocwall_pool::region::Why>(())
/// ```
///
/// # Errors
///
/// [`Why::Failed`] with the error of `munmap`: `ENOMEM` if to split a mapping would exceed `vm.max_map_count`.
/// Nothing is unmapped then.
///
/// # Safety
///
/// `base` and `len` are within a region that was given away, and no code uses that memory any more.
pub unsafe fn unmap(base: NonNull<u8>, len: usize) -> Result<(), Why> {
    // SAFETY: the caller's promise.
    unsafe { os::unmap(base, len) }
}

/// Advice to the kernel about memory that [`Region::into_raw`] gave away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// The memory is eligible for huge pages from now on (`MADV_HUGEPAGE`): at first touch, or later through
    /// khugepaged.
    Huge,
    /// The kernel may reclaim the pages when memory is short; a write before that keeps them (`MADV_FREE`, Linux 4.5).
    Free,
    /// The kernel takes the pages back now (`MADV_DONTNEED`).
    DontNeed,
}

/// Gives the kernel advice about memory. Cost: one system call.
///
/// ```
/// use allocwall_pool::region::{Advice, HUGE, Region, Request, advise};
///
/// let base = Region::new(&Request { touch: true, ..Request::of(HUGE) })?.into_raw();
/// // SAFETY: a region that was given away, whose contents are not needed.
/// unsafe { advise(base, HUGE, Advice::DontNeed)? };
/// // SAFETY: as above. The kernel gives new pages, which are 0.
/// assert_eq!(unsafe { base.read() }, 0);
/// # unsafe { allocwall_pool::region::unmap(base, HUGE)? };
/// # Ok::<(), allocwall_pool::region::Why>(())
/// ```
///
/// # Errors
///
/// [`Why::Failed`] with the kernel's error.
///
/// # Safety
///
/// `base` and `len` are within a region that was given away. For [`Advice::Free`] and [`Advice::DontNeed`], its
/// contents are not needed any more.
pub unsafe fn advise(base: NonNull<u8>, len: usize, advice: Advice) -> Result<(), Why> {
    let (number, call) = match advice {
        Advice::Huge => (libc::MADV_HUGEPAGE, "madvise(MADV_HUGEPAGE)"),
        Advice::Free => (libc::MADV_FREE, "madvise(MADV_FREE)"),
        Advice::DontNeed => (libc::MADV_DONTNEED, "madvise(MADV_DONTNEED)"),
    };
    os::advise(base, len, number, call)
}

/// As [`Region::collapse`], for any memory of the process: `len` bytes from the address `start`, in whole huge pages.
/// The kernel keeps the contents and does not move pinned memory, so this is safe for any address.
///
/// ```
/// use allocwall_pool::region::{HUGE, Region, Request, collapse};
///
/// let region = Region::new(&Request { touch: true, ..Request::of(HUGE) })?;
/// if let Err(why) = collapse(region.as_ptr().addr().get(), HUGE) {
///     println!("not on huge pages: {why}");
/// }
/// # Ok::<(), allocwall_pool::region::Why>(())
/// ```
///
/// # Errors
///
/// [`CollapseError`].
pub fn collapse(start: usize, len: usize) -> Result<(), CollapseError> {
    os::collapse(start, len)
}

/// The resident share, 0 to 1, of the base pages in the 2 MiB at the address `start`.
///
/// ```
/// use allocwall_pool::region::{Region, Request, resident_share};
///
/// let region = Region::new(&Request::of(2 << 20))?;
/// region.touch()?;
/// assert_eq!(resident_share(region.as_ptr().addr().get())?, 1.0);
/// # Ok::<(), allocwall_pool::region::Why>(())
/// ```
///
/// # Errors
///
/// [`Why::Failed`] with the error of `mincore`: `ENOMEM` if a part is not mapped.
pub fn resident_share(start: usize) -> Result<f64, Why> {
    os::resident_pages(start).map(|pages| pages as f64 / os::BASE_PAGES as f64)
}

fn rounded(bytes: usize) -> Result<usize, Why> {
    if bytes == 0 {
        return Err(Why::Empty);
    }
    // Alignment and guards need two more huge pages of address space.
    bytes
        .checked_next_multiple_of(HUGE)
        .filter(|len| *len <= isize::MAX as usize - 2 * HUGE)
        .ok_or(Why::TooLarge)
}

#[cfg(test)]
mod tests;
