//! Arenas packed into 2 MiB slabs: what an interpreter's arena allocator can be replaced by.
//!
//! [`Arenas`] hands out arenas of one size (CPython: 256 KiB before 3.10, 1 MiB since), carved from slabs that stand on
//! huge pages, and takes them back. What isn't its own it refuses by name, and the caller sends it where it came from.
//!
//! * **Growth**: one slab at a time. Where prices are watched, the first stands on small pages: so their price is
//!   known, and a program that needs no more pays nothing. Beyond what the arenas themselves hold, at most the rest
//!   of one slab is resident for a heap that only grows.
//! * **Release**: a slab is unmapped when its last arena comes back, unless it is kept. Kept are as many as were
//!   released and wanted again within a second, up to [`Settings::keep_bytes`] and 5 % of the slabs in use; of those
//!   that lay unused for ten seconds half are let go, at the next calls, since there is no thread here. Kept pages
//!   are marked as free for the taking (`MADV_FREE`): they count as resident, and a machine that is short takes them.
//! * **Trimming**: a slab that can't be unmapped, because some arena of it is out, holds memory for those that
//!   aren't. Beyond 5 % of what is out, or a slab, or [`Settings::keep_bytes`], that memory is given back arena by
//!   arena, as the stock allocator does. It takes the slab's huge page apart; once all of it is out again, khugepaged
//!   may make it huge. What is resident is less at once; the huge page's rest is free when the kernel is short and
//!   splits it (to split it ourselves, by `MADV_FREE` first, takes 300 us a slab and not 27). Reserved pages can't be
//!   taken apart, and arenas of less than 128 KiB aren't trimmed.
//! * **Price**: each first touch of a slab is timed. Once huge pages have cost more than they saved, slabs stand on
//!   small ones for 50 times what was lost; khugepaged may make them huge later.
//! * **Threads**: any, at any time. The lock is held for bookkeeping alone, never across a call that maps or touches.
//! * **Fork**: at any time, also while another thread is inside; a child goes on with what it inherited. An arena that
//!   another thread was just getting or giving back may stay unused in the child.
//! * **Allocation**: nothing here calls `malloc`.

mod ledger;
mod lock;
mod policy;
mod system;

#[cfg(test)]
mod tests;

use crate::region::{HUGE, Pages, Why};
use ledger::{Back, Claim, Ledger, Tally};
use lock::ForkLock;
use policy::{Prices, Retention, Worth};
use std::ptr::NonNull;
pub use system::Linux;
use system::System;

/// Base pages that are touched, and timed, behind the first of a slab of small pages: an interpreter that asks for an
/// arena is about to use them.
const PROBED: usize = 7;

/// What [`Arenas`] are made of.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Bytes of an arena: a power of two from 64 KiB to 2 MiB.
    pub arena_bytes: usize,
    /// What slabs stand on. [`Pages::Reserved`] falls back to transparent, slab by slab.
    pub pages: Pages,
    /// What may be kept of empty slabs, in whole ones, beside 5 % of those in use; 0: nothing is kept. As much, or 5
    /// %, or a slab, may lie idle in slabs of which some arenas are out.
    pub keep_bytes: usize,
    /// Whether to ask for small pages while huge ones are dear, and for the first slab.
    pub watch_price: bool,
}

impl Settings {
    /// Arenas of so many bytes on transparent huge pages; one empty slab kept and 5 % of those in use; prices watched.
    pub fn of(arena_bytes: usize) -> Self {
        Self {
            arena_bytes,
            pages: Pages::Transparent,
            keep_bytes: HUGE,
            watch_price: true,
        }
    }
}

/// Why no arena was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoArena {
    /// Another size than an arena's.
    OddSize,
    /// No slab could be had.
    NoMemory(Why),
}

/// Whose an address was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freed {
    Ours,
    /// In no slab: it goes back where it came from.
    Foreign,
}

/// What has happened so far and what there is now. Sums since the start, except where it says "now".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Arenas out now.
    pub arenas: usize,
    /// Slabs mapped now; those on reserved pages and those that were asked to be huge among them.
    pub slabs: usize,
    pub slabs_reserved: usize,
    pub slabs_transparent: usize,
    /// Empty slabs kept now.
    pub slabs_kept: usize,
    /// Slabs that may be kept now.
    pub keep_target: usize,
    /// Arenas that aren't out, in slabs that others of are: those whose memory could be given back, and those whose
    /// was.
    pub arenas_idle: usize,
    pub arenas_trimmed: usize,
    pub arenas_given: u64,
    pub arenas_returned: u64,
    pub slabs_mapped: u64,
    pub slabs_released: u64,
    /// Kept slabs that were used again.
    pub slabs_reused: u64,
    /// Arenas whose memory was given back while others of their slab were out.
    pub trims: u64,
    /// Frees of what isn't ours.
    pub foreign_frees: u64,
    /// Frees of an address in a slab that is no arena out: ignored.
    pub misplaced_frees: u64,
    pub fallbacks: Fallbacks,
    pub faults: Faults,
    /// Children that went on with what they inherited: 1 in a forked child.
    pub forks: u64,
    /// Nanoseconds spent in here, first touches included.
    pub time_ns: u64,
}

/// Times that less was given than asked, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fallbacks {
    /// The reserved pool had no page: the slab is transparent.
    pub pool_exhausted: u64,
    /// Huge pages were dear: the slab stands on small ones.
    pub dear: u64,
    /// The kernel had no huge page at first touch.
    pub missed: u64,
    /// No slab could be mapped: the caller was sent elsewhere.
    pub no_memory: u64,
    /// Other sizes: sent elsewhere.
    pub odd_size: u64,
}

/// What first touches cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// First touches that were to take a huge page, and their nanoseconds. CPU time of the thread, where faults are
    /// paid.
    pub huge: u64,
    pub huge_ns: u64,
    /// Those among them that cost more than small pages, and what they cost more. 0 where the price of small ones isn't
    /// known, because prices aren't watched.
    pub dear: u64,
    pub lost_ns: u64,
    /// First touch of a base page, smoothed, nanoseconds.
    pub small_ns: u64,
}

struct Inner {
    arenas_a_slab: usize,
    /// False once the kernel refused to take an arena's memory.
    may_trim: bool,
    ledger: Ledger,
    retention: Retention,
    prices: Prices,
    counts: Counts,
}

/// Arenas of one size on huge pages. See the [module](self).
pub struct Arenas<S = Linux> {
    settings: Settings,
    system: S,
    inner: ForkLock<Inner>,
}

impl Arenas<Linux> {
    /// Arenas on this machine.
    ///
    /// # Errors
    ///
    /// [`Why::Empty`] or [`Why::TooLarge`] for an arena of less than 64 KiB or more than 2 MiB, or no power of two;
    /// [`Why::Kernel`] before Linux 4.14; or what `mmap` said.
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

    /// An arena: `bytes` at a multiple of their own number, with whatever content.
    ///
    /// # Errors
    ///
    /// [`NoArena`]: the caller asks its other allocator.
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

    /// Maps a slab and touches it, both outside of the lock: its first arena.
    fn grow(&self, start: u64) -> Result<usize, NoArena> {
        let wanted = match self.settings.pages {
            Pages::Transparent if self.settings.watch_price => self.with(|inner| inner.wanted(start)),
            pages => pages,
        };
        let (base, pages) = self.map(wanted)?;
        let paid_ns = match pages {
            // Taken when it was mapped.
            Pages::Reserved => 0,
            Pages::Transparent => self.system.touch(base, 1),
            Pages::Plain => {
                // The first touch makes the page table, whose price isn't a page's.
                self.system.touch(base, 1);
                // With a small page there, what is touched next is small too; khugepaged may come later.
                self.system.make_eligible(base);
                self.system.touch(base, 1 + PROBED)
            }
        };
        let now = self.system.now();
        let taken = self.with(|inner| inner.take_in(base, pages, paid_ns, start, now));
        taken.map_err(|why| {
            // Nobody else knows of it. Where it can't even be unmapped, address space is lost.
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

    /// Takes an arena back, or says that it is foreign.
    ///
    /// # Safety
    ///
    /// If `address` is an arena of ours, nobody uses it any more.
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

    /// Gives back the memory of arenas beyond what may lie idle: at most two a call, which is enough, as a call makes
    /// one more and lowers the limit by one at most. Each is claimed meanwhile, so that nobody can be given it. The
    /// slab that an arena just came back to is spared: where a heap is taken down in order, it is empty next.
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

    /// Lets go of an empty slab that is on no list any more, so that nobody can be given an arena of it meanwhile.
    fn leave(&self, slab: Leaving) {
        if slab.keep {
            self.system.free_lazily(slab.base);
        } else if self.system.unmap(slab.base).is_ok() {
            self.with(|inner| inner.counts.slabs_released += 1);
            return;
        } else if slab.pages != Pages::Reserved {
            // Too many mappings to split one: its pages go, its addresses stay with us. Reserved pages stay too: once
            // given back they might not be had again, and the next touch would be a SIGBUS.
            self.system.drop_pages(slab.base);
            // It may have been trimmed.
            self.system.make_eligible(slab.base);
        }
        // It was in before, so there is a place for it.
        let _ = self.with(|inner| inner.ledger.insert(slab.base, slab.pages, false));
    }

    /// What has happened so far and what there is now.
    pub fn counts(&self) -> Counts {
        let now = self.system.now();
        self.with(|inner| {
            let Tally {
                arenas,
                slabs,
                empty,
                reserved,
                transparent,
                idle,
                trimmed,
                ..
            } = inner.ledger.tally();
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
                faults: Faults {
                    small_ns: inner.prices.small_ns(),
                    ..inner.counts.faults
                },
                ..inner.counts
            }
        })
    }

    /// Each slab's first and last-but-one address, for [`region::huge_bytes`](crate::region::huge_bytes).
    ///
    /// This one allocates: it is for reports.
    pub fn ranges(&self) -> Vec<(usize, usize)> {
        let mut ranges = Vec::new();
        loop {
            // Room is made outside of the lock; slabs that come meanwhile ask for another turn.
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

    /// What these arenas are made of.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The bookkeeping, put in order first if this process was forked meanwhile.
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

/// An empty slab that was taken off the ledger.
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

    /// An arena beyond what may lie idle, out for nobody.
    fn claim_surplus(&mut self, spared: usize) -> Option<usize> {
        let tally = self.ledger.tally();
        match self.may_trim && tally.idle > self.retention.idle(self.arenas_a_slab, tally.arenas) {
            true => self.ledger.claim_idle(spared),
            false => None,
        }
    }

    /// Its memory was given back, or couldn't be: then it isn't tried again. The slab, where all others of it came
    /// back meanwhile.
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

    /// What the next slab should stand on.
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

    /// A new slab, its first arena out, and what its first touch cost.
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

    /// The answer, and the empty slabs to let go of: at most two a call, so that no call takes long.
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

    /// A slab whose last arena came back, off the ledger. One that was trimmed stands on small pages, and is not
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

    /// Slabs that may be kept empty now.
    fn may_keep(&mut self, now: u64) -> usize {
        let tally = self.ledger.tally();
        self.retention.target(tally.empty, tally.used(), now)
    }

    /// An empty slab beyond what may be kept by now.
    fn surplus(&mut self, now: u64) -> Option<Leaving> {
        if self.ledger.tally().empty <= self.may_keep(now) {
            return None;
        }
        let (base, pages) = self.ledger.take_empty()?;
        // What lay unused for ten seconds is no release to regret.
        Some(Leaving {
            base,
            pages,
            keep: false,
        })
    }
}
