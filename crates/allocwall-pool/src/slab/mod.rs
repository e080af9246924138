//! Arenas in slabs of 2 MiB: a replacement for an interpreter's arena allocator.
//!
//! [`Arenas`] hands out arenas of one size (CPython: 256 KiB before 3.10, 1 MiB since) from slabs on huge pages, and
//! takes them back. An address that is not its own it reports as [`Freed::Foreign`]; the caller must free that one
//! elsewhere.
//!
//! * **Growth**: one slab at a time. If prices are watched, the first slab is on small pages: this measures their
//!   price, and a program that needs no second slab pays nothing. For a heap that only grows, at most the rest of one
//!   slab is resident in addition to the arenas in use.
//! * **Release**: a slab is unmapped when its last arena comes back, unless it is kept. The number of kept slabs is
//!   the number that were released and needed again within a second, up to [`Settings::keep_bytes`] and 5 % of the
//!   slabs in use. Half of the slabs that were unused for ten seconds are released at the next calls; there is no
//!   background thread. Kept pages are marked as free (`MADV_FREE`): they count as resident, and the kernel reclaims
//!   them when memory is short.
//! * **Trimming**: a slab with some arenas in use cannot be unmapped, but its other arenas hold memory. If that
//!   memory exceeds 5 % of the arenas in use, and one slab, and [`Settings::keep_bytes`], it is returned arena by
//!   arena, as the stock allocator does. This splits the slab's huge page; once all its arenas are in use again,
//!   khugepaged may make it huge. The resident set shrinks at once; the rest of the huge page becomes free when the
//!   kernel is short of memory and splits it. (To split it here, with `MADV_FREE` first, takes 300 us per slab
//!   instead of 27.) Reserved pages cannot be split, and arenas of less than 128 KiB are not trimmed.
//! * **Price**: each first touch of a slab is timed. If huge pages have cost more than they saved, new slabs use
//!   small pages for 50 times the lost time; khugepaged may make them huge later.
//! * **Threads**: any thread, at any time. The lock is held only for bookkeeping, never during a call that maps or
//!   touches.
//! * **Fork**: at any time, also while another thread is in a call; a child continues with the inherited state. An
//!   arena that another thread was allocating or freeing at that moment may stay unused in the child.
//! * **Allocation**: nothing here calls `malloc`, except [`Arenas::ranges`].

mod ledger;
mod lock;
mod policy;
mod system;

#[cfg(test)]
mod tests;

use crate::region::{HUGE, Pages, Why};
use ledger::{Back, Claim, Ledger, Tally};
use lock::ForkLock;
pub use policy::Host;
use policy::{Prices, Retention, Worth};
use std::ptr::NonNull;
pub use system::Linux;
use system::System;

/// Base pages after the first one that are touched and timed in a slab on small pages. The interpreter is about to use
/// them anyway.
const PROBED: usize = 7;

/// The settings of [`Arenas`].
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The size of an arena in bytes: a power of two from 64 KiB to 2 MiB.
    pub arena_bytes: usize,
    /// The kind of pages of the slabs. [`Pages::Reserved`] falls back to transparent, slab by slab.
    pub pages: Pages,
    /// Bytes of empty slabs to keep, in whole slabs, in addition to 5 % of the slabs in use; 0 keeps none. Unused
    /// arenas in slabs with other arenas in use may hold as much, or 5 % of the arenas in use, or one slab, whichever
    /// is most.
    pub keep_bytes: usize,
    /// Whether to use small pages while huge pages cost more than they save, and for the first slab.
    pub watch_price: bool,
}

impl Settings {
    /// Settings for arenas of this many bytes, on transparent huge pages. One empty slab is kept, and 5 % of the
    /// slabs in use. Prices are watched.
    ///
    /// ```
    /// use allocwall_pool::slab::Settings;
    ///
    /// let settings = Settings { keep_bytes: 16 << 20, ..Settings::of(1 << 20) };
    /// # let _ = settings;
    /// ```
    pub fn of(arena_bytes: usize) -> Self {
        Self { arena_bytes, pages: Pages::Transparent, keep_bytes: HUGE, watch_price: true }
    }
}

/// Why no arena was allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoArena {
    /// The requested size is not the size of an arena.
    OddSize,
    /// No slab could be mapped or recorded, for this reason.
    NoMemory(Why),
}

/// The result of [`Arenas::free`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freed {
    /// The address is in a slab of these arenas. An arena was freed; any other address was ignored.
    Ours,
    /// The address is in no slab: the caller must free it elsewhere.
    Foreign,
}

/// The state now, and sums since the start. A field is a sum, unless its description says "now".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Arenas in use now.
    pub arenas: usize,
    /// Slabs mapped now, of all kinds.
    pub slabs: usize,
    /// Slabs on reserved pages now.
    pub slabs_reserved: usize,
    /// Slabs that were mapped as transparent huge pages, now.
    pub slabs_transparent: usize,
    /// Empty slabs kept now.
    pub slabs_kept: usize,
    /// Empty slabs that may be kept now.
    pub keep_target: usize,
    /// Unused arenas now that hold memory, in slabs with other arenas in use.
    pub arenas_idle: usize,
    /// Unused arenas now whose memory was returned to the system.
    pub arenas_trimmed: usize,
    /// Arenas allocated.
    pub arenas_given: u64,
    /// Arenas freed.
    pub arenas_returned: u64,
    /// Slabs mapped.
    pub slabs_mapped: u64,
    /// Slabs unmapped.
    pub slabs_released: u64,
    /// Kept slabs that were used again.
    pub slabs_reused: u64,
    /// Arenas whose memory was returned while other arenas of their slab were in use.
    pub trims: u64,
    /// Frees of addresses in no slab.
    pub foreign_frees: u64,
    /// Frees of an address in a slab that is not an arena in use; they were ignored.
    pub misplaced_frees: u64,
    /// Fallbacks, by reason.
    pub fallbacks: Fallbacks,
    /// The cost of first touches.
    pub faults: Faults,
    /// The state of the host now, by the last eight huge pages. None if fewer than four were compared with small
    /// pages, and always if prices are not watched.
    pub host: Option<Host>,
    /// 1 in a forked child that continues with the inherited state, otherwise 0.
    pub forks: u64,
    /// Nanoseconds spent in these functions, including first touches.
    pub time_ns: u64,
}

/// The number of fallbacks, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fallbacks {
    /// The reserved pool had no page; the slab was mapped as transparent.
    pub pool_exhausted: u64,
    /// Huge pages were too expensive; the slab was mapped on small pages.
    pub dear: u64,
    /// The kernel had no huge page at first touch.
    pub missed: u64,
    /// No slab could be mapped; the caller got [`NoArena::NoMemory`].
    pub no_memory: u64,
    /// Requests for another size; the caller got [`NoArena::OddSize`].
    pub odd_size: u64,
}

/// The cost of first touches, as CPU time of the thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// First touches of slabs that were mapped as transparent huge pages.
    pub huge: u64,
    /// The sum of their prices, in nanoseconds.
    pub huge_ns: u64,
    /// Those of them that cost more than 1.5 times as much as small pages. 0 if prices are not watched, because then
    /// the price of small pages is unknown.
    pub dear: u64,
    /// The sum by which these were more expensive, in nanoseconds.
    pub lost_ns: u64,
    /// The smoothed price of the first touch of a base page, in nanoseconds; 0 if unknown.
    pub small_ns: u64,
}

struct Inner {
    arenas_a_slab: usize,
    /// False once the kernel refused to take back an arena's memory.
    may_trim: bool,
    ledger: Ledger,
    retention: Retention,
    prices: Prices,
    counts: Counts,
}

/// Arenas of one size on huge pages, for any thread. See the [module](self) for the policy and its costs.
pub struct Arenas<S = Linux> {
    settings: Settings,
    system: S,
    inner: ForkLock<Inner>,
}

impl Arenas<Linux> {
    /// Makes an empty set of arenas. No slab is mapped yet.
    ///
    /// ```
    /// use allocwall_pool::slab::{Arenas, Settings};
    ///
    /// let arenas = Arenas::new(Settings::of(1 << 20))?;
    /// assert!(Arenas::new(Settings::of(1000)).is_err());
    /// # drop(arenas);
    /// # Ok::<(), allocwall_pool::region::Why>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Why::Empty`] for an arena size that is not a power of two or is below 64 KiB; [`Why::TooLarge`] for more
    /// than 2 MiB; [`Why::Kernel`] before Linux 4.14; [`Why::Failed`] with the error of `mmap`.
    pub fn new(settings: Settings) -> Result<Self, Why> {
        Self::on(Linux, settings)
    }
}

impl<S: System> Arenas<S> {
    fn on(system: S, settings: Settings) -> Result<Self, Why> {
        let bytes = settings.arena_bytes;
        if !bytes.is_power_of_two() || bytes < ledger::SMALLEST {
            return Err(Why::Empty);
        }
        if bytes > HUGE {
            return Err(Why::TooLarge);
        }
        Ok(Self {
            settings,
            inner: ForkLock::new(Inner {
                arenas_a_slab: HUGE / bytes,
                may_trim: true,
                ledger: Ledger::new(bytes)?,
                retention: Retention::up_to(settings.keep_bytes / HUGE),
                prices: Prices::default(),
                counts: Counts::default(),
            })?,
            system,
        })
    }

    /// Allocates an arena: `bytes` bytes, aligned to `bytes`, with undefined content. Cost: bookkeeping of some tens of
    /// nanoseconds; for a new slab also the mapping and its first touch.
    ///
    /// ```
    /// use allocwall_pool::slab::{Arenas, Settings};
    ///
    /// let arenas = Arenas::new(Settings::of(1 << 20))?;
    /// if let Ok(arena) = arenas.alloc(1 << 20) {
    ///     assert_eq!(arena.addr().get() % (1 << 20), 0);
    ///     // SAFETY: the arena is not used any more.
    ///     unsafe { arenas.free(arena) };
    /// }
    /// # Ok::<(), allocwall_pool::region::Why>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`NoArena`]. The caller should then use its other allocator.
    pub fn alloc(&self, bytes: usize) -> Result<NonNull<u8>, NoArena> {
        if bytes != self.settings.arena_bytes {
            self.with(|inner| inner.counts.fallbacks.odd_size += 1);
            return Err(NoArena::OddSize);
        }
        let start = self.system.now();
        let arena = match self.with(|inner| inner.claim(start)) {
            Some(claim) => {
                if claim.whole_again {
                    self.system.make_eligible(claim.arena & !(HUGE - 1));
                }
                claim.arena
            }
            None => self.grow(start)?,
        };
        NonNull::new(std::ptr::with_exposed_provenance_mut(arena)).ok_or(NoArena::NoMemory(Why::TooLarge))
    }

    /// Maps a slab and touches it, both outside the lock. Returns its first arena.
    fn grow(&self, start: u64) -> Result<usize, NoArena> {
        let wanted = match self.settings.pages {
            Pages::Transparent if self.settings.watch_price => self.with(|inner| inner.wanted(start)),
            pages => pages,
        };
        let (base, pages) = self.map(wanted)?;
        let paid_ns = match pages {
            // Its page was allocated when it was mapped.
            Pages::Reserved => 0,
            Pages::Transparent => self.system.touch(base, 1),
            Pages::Plain => {
                // The first touch also makes the page table, so its price is not that of a page.
                self.system.touch(base, 1);
                // Because one small page is there, the next touches give small pages too; khugepaged may make it huge
                // later.
                self.system.make_eligible(base);
                self.system.touch(base, 1 + PROBED)
            }
        };
        let now = self.system.now();
        let taken = self.with(|inner| inner.take_in(base, pages, paid_ns, start, now));
        taken.map_err(|why| {
            // No other code knows the slab. If it cannot be unmapped, only address space is lost.
            let _ = self.system.unmap(base);
            self.with(|inner| inner.counts.fallbacks.no_memory += 1);
            NoArena::NoMemory(why)
        })?;
        Ok(base)
    }

    fn map(&self, wanted: Pages) -> Result<(usize, Pages), NoArena> {
        if wanted == Pages::Reserved {
            match self.system.map(Pages::Reserved) {
                Ok(base) => return Ok((base, Pages::Reserved)),
                Err(_) => self.with(|inner| inner.counts.fallbacks.pool_exhausted += 1),
            }
        }
        let pages = match wanted {
            Pages::Plain => Pages::Plain,
            Pages::Reserved | Pages::Transparent => Pages::Transparent,
        };
        match self.system.map(pages) {
            Ok(base) => Ok((base, pages)),
            Err(why) => {
                self.with(|inner| inner.counts.fallbacks.no_memory += 1);
                Err(NoArena::NoMemory(why))
            }
        }
    }

    /// Frees an arena, or reports that the address is foreign. Cost: bookkeeping; in some calls one or two slabs are
    /// unmapped, and the memory of up to two arenas is returned.
    ///
    /// ```
    /// use allocwall_pool::slab::{Arenas, Freed, Settings};
    ///
    /// let arenas = Arenas::new(Settings::of(1 << 20))?;
    /// let mut other = 0u64;
    /// // SAFETY: not an arena, so it is left alone.
    /// assert_eq!(unsafe { arenas.free(std::ptr::NonNull::from(&mut other).cast()) }, Freed::Foreign);
    /// # Ok::<(), allocwall_pool::region::Why>(())
    /// ```
    ///
    /// # Safety
    ///
    /// If `address` is an arena of these, no code uses it any more.
    pub unsafe fn free(&self, address: NonNull<u8>) -> Freed {
        let start = self.system.now();
        let (freed, leaving) = self.with(|inner| inner.give_back(address.as_ptr() as usize, start));
        for slab in leaving.into_iter().flatten() {
            self.leave(slab);
        }
        if freed == Freed::Ours {
            self.trim(address.as_ptr() as usize & !(HUGE - 1));
        }
        let now = self.system.now();
        self.with(|inner| inner.counts.time_ns += now.saturating_sub(start));
        freed
    }

    /// Returns the memory of idle arenas beyond the limit, at most two per call. Two are enough, because a call adds
    /// one idle arena and lowers the limit by at most one. Each arena is claimed meanwhile, so that it cannot be
    /// allocated. The slab of the arena that was just freed is spared: if a heap is freed in order, that slab is the
    /// next one to become empty.
    fn trim(&self, spared: usize) {
        for _ in 0..2 {
            let Some(arena) = self.with(|inner| inner.claim_surplus(spared)) else {
                return;
            };
            let gone = self.system.trim(arena, self.settings.arena_bytes);
            let now = self.system.now();
            if let Some(slab) = self.with(|inner| inner.trimmed(arena, gone, now)) {
                self.leave(slab);
            }
        }
    }

    /// Keeps or unmaps an empty slab. It is on no list any more, so no arena of it can be allocated meanwhile.
    fn leave(&self, slab: Leaving) {
        if slab.keep {
            self.system.free_lazily(slab.base);
        } else if self.system.unmap(slab.base).is_ok() {
            self.with(|inner| inner.counts.slabs_released += 1);
            return;
        } else if slab.pages != Pages::Reserved {
            // Too many mappings to split one: free its pages and keep its addresses. Reserved pages are kept too: the
            // pool might have no page later, and the next touch would then be a SIGBUS.
            self.system.drop_pages(slab.base);
            // Trimming may have made it ineligible.
            self.system.make_eligible(slab.base);
        }
        // It was in the ledger before, so there is room for it.
        let _ = self.with(|inner| inner.ledger.insert(slab.base, slab.pages, false));
    }

    /// The state now, and the sums since the start. Allocates nothing.
    ///
    /// ```
    /// use allocwall_pool::slab::{Arenas, Settings};
    ///
    /// let arenas = Arenas::new(Settings::of(1 << 20))?;
    /// assert_eq!((arenas.counts().arenas, arenas.counts().slabs), (0, 0));
    /// # Ok::<(), allocwall_pool::region::Why>(())
    /// ```
    pub fn counts(&self) -> Counts {
        let now = self.system.now();
        self.with(|inner| {
            let Tally { arenas, slabs, empty, reserved, transparent, idle, trimmed, .. } =
                inner.ledger.tally();
            let keep_target = inner.may_keep(now);
            Counts {
                arenas,
                slabs,
                slabs_reserved: reserved,
                slabs_transparent: transparent,
                slabs_kept: empty,
                keep_target,
                arenas_idle: idle,
                arenas_trimmed: trimmed,
                faults: Faults { small_ns: inner.prices.small_ns(), ..inner.counts.faults },
                host: inner.prices.host(),
                ..inner.counts
            }
        })
    }

    /// The address range of each slab (start, and end exclusive), for
    /// [`region::huge_bytes`](crate::region::huge_bytes).
    ///
    /// This function allocates; use it only for reports.
    ///
    /// ```
    /// use allocwall_pool::{region::huge_bytes, slab::{Arenas, Settings}};
    ///
    /// let arenas = Arenas::new(Settings::of(1 << 20))?;
    /// println!("{:?}", huge_bytes(&arenas.ranges())?);
    /// # Ok::<(), allocwall_pool::region::Why>(())
    /// ```
    pub fn ranges(&self) -> Vec<(usize, usize)> {
        let mut ranges = Vec::new();
        loop {
            // Memory is reserved outside the lock. If slabs are added meanwhile, try again.
            let room = self.with(|inner| inner.ledger.tally().slabs) + 16;
            ranges.reserve(room);
            let all = self.with(|inner| {
                inner.ledger.slabs().all(|base| {
                    let fits = ranges.len() < ranges.capacity();
                    if fits {
                        ranges.push((base, base + HUGE));
                    }
                    fits
                })
            });
            if all {
                return ranges;
            }
            ranges.clear();
        }
    }

    /// The settings of these arenas.
    ///
    /// ```
    /// use allocwall_pool::slab::{Arenas, Settings};
    ///
    /// let arenas = Arenas::new(Settings::of(1 << 20))?;
    /// assert_eq!(arenas.settings().arena_bytes, 1 << 20);
    /// # Ok::<(), allocwall_pool::region::Why>(())
    /// ```
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Runs `inside` with the bookkeeping, which is repaired first if this process was forked since the last call.
    fn with<R>(&self, inside: impl FnOnce(&mut Inner) -> R) -> R {
        self.inner.with(|inner, forked| {
            if forked {
                inner.ledger.recount();
                inner.counts.forks = 1;
            }
            inside(inner)
        })
    }
}

/// An empty slab that was removed from the ledger.
#[derive(Clone, Copy)]
struct Leaving {
    base: usize,
    pages: Pages,
    keep: bool,
}

impl Inner {
    fn claim(&mut self, now: u64) -> Option<Claim> {
        let claim = self.ledger.claim()?;
        if claim.was_empty {
            let tally = self.ledger.tally();
            self.retention.reused(tally.empty, tally.used(), now);
            self.counts.slabs_reused += 1;
        }
        self.counts.arenas_given += 1;
        Some(claim)
    }

    /// Claims an idle arena if there are more than the limit.
    fn claim_surplus(&mut self, spared: usize) -> Option<usize> {
        let tally = self.ledger.tally();
        if self.may_trim && tally.idle > self.retention.idle(self.arenas_a_slab, tally.arenas) {
            self.ledger.claim_idle(spared)
        } else {
            None
        }
    }

    /// Records that an arena's memory was returned (`gone`), or that the kernel refused, after which trimming stops.
    /// Returns the slab if all its other arenas came back meanwhile.
    fn trimmed(&mut self, arena: usize, gone: bool, now: u64) -> Option<Leaving> {
        self.counts.trims += u64::from(gone);
        if !gone {
            self.may_trim = false;
            self.ledger.not_trimmed(arena);
        }
        match self.ledger.give_back(arena) {
            Back::Emptied(base) => Some(self.emptied(base, now)),
            _ => None,
        }
    }

    /// The kind of pages for the next slab.
    fn wanted(&mut self, now: u64) -> Pages {
        if self.prices.small_ns() == 0 {
            Pages::Plain
        } else if self.prices.allow_huge(now) {
            Pages::Transparent
        } else {
            self.counts.fallbacks.dear += 1;
            Pages::Plain
        }
    }

    /// Records a new slab, with its first arena in use, and the price of its first touch.
    fn take_in(&mut self, base: usize, pages: Pages, paid_ns: u64, start: u64, now: u64) -> Result<(), Why> {
        match pages {
            Pages::Reserved => {}
            Pages::Transparent => {
                self.counts.faults.huge += 1;
                self.counts.faults.huge_ns += paid_ns;
                match self.prices.huge_paid(paid_ns, now) {
                    Worth::Fair => {}
                    Worth::Small => self.counts.fallbacks.missed += 1,
                    Worth::Dear(more) => {
                        self.counts.faults.dear += 1;
                        self.counts.faults.lost_ns += more;
                    }
                }
            }
            Pages::Plain => self.prices.small_paid(paid_ns, PROBED as u64, now),
        }
        self.counts.time_ns += now.saturating_sub(start);
        self.ledger.insert(base, pages, true)?;
        self.retention.grew(self.ledger.tally().used(), now);
        self.counts.slabs_mapped += 1;
        self.counts.arenas_given += 1;
        Ok(())
    }

    /// The result, and the empty slabs to keep or unmap: at most two per call, so that no call takes long.
    fn give_back(&mut self, address: usize, now: u64) -> (Freed, [Option<Leaving>; 2]) {
        match self.ledger.give_back(address) {
            Back::Foreign => {
                self.counts.foreign_frees += 1;
                (Freed::Foreign, [None, None])
            }
            Back::Misplaced => {
                self.counts.misplaced_frees += 1;
                (Freed::Ours, [None, None])
            }
            Back::Kept => {
                self.counts.arenas_returned += 1;
                (Freed::Ours, [None, self.surplus(now)])
            }
            Back::Emptied(base) => {
                self.counts.arenas_returned += 1;
                let emptied = self.emptied(base, now);
                (Freed::Ours, [Some(emptied), self.surplus(now)])
            }
        }
    }

    /// Removes a slab whose last arena came back from the ledger. A trimmed slab is on small pages, so it is not
    /// worth keeping.
    fn emptied(&mut self, base: usize, now: u64) -> Leaving {
        let pages = self.ledger.pages(base).unwrap_or(Pages::Plain);
        let keep = self.ledger.tally().empty <= self.may_keep(now) && !self.ledger.is_trimmed(base);
        self.ledger.remove(base);
        if !keep {
            self.retention.released(now);
        }
        Leaving { base, pages, keep }
    }

    /// The number of empty slabs that may be kept now.
    fn may_keep(&mut self, now: u64) -> usize {
        let tally = self.ledger.tally();
        self.retention.target(tally.empty, tally.used(), now)
    }

    /// An empty slab beyond the number that may be kept now.
    fn surplus(&mut self, now: u64) -> Option<Leaving> {
        if self.ledger.tally().empty <= self.may_keep(now) {
            return None;
        }
        let (base, pages) = self.ledger.take_empty()?;
        // The release of a slab that was unused for ten seconds does not count as one that may be regretted.
        Some(Leaving { base, pages, keep: false })
    }
}
