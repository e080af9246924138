//! Which owners the target's memory had, by place, as the look-ups showed them.
//!
//! Memory may be given back before its fault is looked up, and its addresses may go to another owner. What other look-ups showed
//! nearby then tells the owner, or that it can't be known.

use crate::memory_kinds::PAGE;
use allocwall_host::clock;
use allocwall_model::catalogue::owners::Owner;
use std::collections::{HashMap, HashSet};

/// Places are 2 MiB large. Faults in one place are of the same owner, if it has only one.
const PLACE: u32 = 21;
/// If a page had several owners in turns, the pages around it did too, within 64 KiB: mappings have many pages.
const AROUND: u32 = 16;
/// For so long, a thread is taken to touch the same memory in a place.
const SAME_NS: u64 = 5_000_000;
/// A look-up that begins later than this after its fault is not at once.
const SOON_NS: u64 = 200_000;
/// The most places, and pages, that are kept from one batch to the next.
const PLACES_KEPT: usize = 4096;
const PAGES_KEPT: usize = 16 * PLACES_KEPT;

/// A fault that is looked up at once: memory that lives short is still there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Soon {
    pub tid: i32,
    /// CLOCK_MONOTONIC.
    pub time_ns: u64,
}

impl Soon {
    /// Whether a look-up that begins now is at once.
    pub fn is_now(&self) -> bool {
        clock::monotonic_ns().saturating_sub(self.time_ns) <= SOON_NS
    }
}

/// Where a fault was.
#[derive(Clone, Copy, Debug)]
pub struct At {
    pub pid: i32,
    pub address: u64,
    /// None if it is looked up later.
    pub soon: Option<Soon>,
}

impl At {
    fn place(&self) -> u64 {
        self.address >> PLACE
    }
}

#[derive(Default)]
pub struct Places {
    /// By process and place. None: several, in turns or side by side.
    owners: HashMap<(i32, u64), Option<Owner>>,
    /// The last owner of single pages, by process.
    pages: HashMap<(i32, u64), Owner>,
    /// Smaller places, by process, in which a page had several owners in turns.
    turns: HashSet<(i32, u64)>,
    /// The last owner that was looked up at once, by thread and place, and the time of the fault.
    latest: HashMap<(i32, u64), (Owner, u64)>,
}

impl Places {
    /// A look-up has found a known owner. Returns the owner of the memory at the time of the fault: unknown if it may have been
    /// another one, because the fault was some time ago and owners change there.
    pub fn found(&mut self, at: At, owner: Owner) -> Owner {
        let around = (at.pid, at.address >> AROUND);
        let before = self.pages.insert((at.pid, at.address / PAGE), owner);
        if before.is_some_and(|before| before != owner) {
            self.turns.insert(around);
        }
        let only = self.owners.entry((at.pid, at.place())).or_insert(Some(owner));
        if *only != Some(owner) {
            *only = None;
        }
        match at.soon {
            Some(Soon { tid, time_ns }) => {
                let latest = self.latest.entry((tid, at.place())).or_insert((owner, time_ns));
                if latest.1 <= time_ns {
                    *latest = (owner, time_ns);
                }
                owner
            }
            None if self.turns.contains(&around) => Owner::Unknown,
            None => owner,
        }
    }

    /// The owner of memory that was given back since the fault: the one that the same thread touched there just before, or the
    /// only one that the place had.
    pub fn given_back(&self, at: At) -> Owner {
        let just_before = at.soon.and_then(|soon| {
            let (owner, time_ns) = self.latest.get(&(soon.tid, at.place()))?;
            (soon.time_ns.abs_diff(*time_ns) <= SAME_NS).then_some(*owner)
        });
        let only = || self.owners.get(&(at.pid, at.place())).copied().flatten();
        just_before.or_else(only).unwrap_or(Owner::Unmapped)
    }

    /// Forgets what is too old, and all of it if it is too much.
    pub fn forget(&mut self) {
        self.latest.clear();
        if self.owners.len() > PLACES_KEPT {
            self.owners.clear();
        }
        if self.pages.len() > PAGES_KEPT {
            self.pages.clear();
            self.turns.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Owner::*;

    const PID: i32 = 7;
    const BASE: u64 = 0x7f00_0000_0000;
    const MS: u64 = 1_000_000;

    /// A fault on a page that is looked up later.
    fn late(page: u64) -> At {
        At { pid: PID, address: BASE + page * PAGE + 9, soon: None }
    }

    /// The same, looked up at once, of a thread.
    fn soon(page: u64, tid: i32, time_ns: u64) -> At {
        At { soon: Some(Soon { tid, time_ns }), ..late(page) }
    }

    #[test]
    fn a_late_look_up_where_owners_change_shows_no_owner() {
        let mut places = Places::default();
        assert_eq!(places.found(late(3), MappedBlock), MappedBlock);
        assert_eq!(places.found(late(3), Private), Unknown);
        // The same for its neighbours, whose owners were not seen to change.
        assert_eq!(places.found(late(15), Private), Unknown);
        // The near twins: farther away, in another process, and at once.
        assert_eq!(places.found(late(16), Private), Private);
        assert_eq!(places.found(At { pid: 8, ..late(3) }, Private), Private);
        assert_eq!(places.found(soon(3, 1, 5), MappedBlock), MappedBlock);
    }

    #[test]
    fn owners_side_by_side_do_not_change() {
        let mut places = Places::default();
        for _ in 0..3 {
            for page in 0..16 {
                let owner = if page < 8 { Heap } else { MappedBlock };
                assert_eq!(places.found(late(page), owner), owner, "{page}");
            }
        }
        // But neither is the owner of a page between them that was given back.
        assert_eq!(places.given_back(late(20)), Unmapped);
        // The near twin: each page has the other owner now.
        assert_eq!(places.found(late(0), MappedBlock), Unknown);
    }

    #[test]
    fn a_thread_touches_the_same_memory_for_a_short_time() {
        let mut places = Places::default();
        places.found(soon(1, 1, 100 * MS), MappedBlock);
        places.found(soon(9, 2, 101 * MS), Shared);
        let of = |page, tid, time_ns| places.given_back(soon(page, tid, time_ns));
        assert_eq!([of(5, 1, 102 * MS), of(5, 2, 102 * MS)], [MappedBlock, Shared]);
        assert_eq!(of(5, 1, 100 * MS + SAME_NS), MappedBlock);
        // The near twins: too long after it, another thread, another place, and a late look-up.
        let others = [of(5, 1, 100 * MS + SAME_NS + 1), of(5, 3, 102 * MS), of(512, 1, 102 * MS)];
        assert_eq!(others, [Unmapped; 3]);
        assert_eq!(places.given_back(late(5)), Unmapped);
        // An older fault that is looked up after a younger one is not the last one.
        places.found(soon(2, 1, 99 * MS), Private);
        assert_eq!(places.given_back(soon(5, 1, 102 * MS)), MappedBlock);
        // After a pause nothing is just before.
        places.forget();
        assert_eq!(places.given_back(soon(5, 1, 102 * MS)), Unmapped);
    }

    #[test]
    fn memory_that_was_given_back_had_the_only_owner_of_its_place() {
        let mut places = Places::default();
        assert_eq!(places.given_back(late(0)), Unmapped);
        places.found(late(0), Heap);
        assert_eq!([places.given_back(late(500)), places.given_back(soon(500, 1, 0))], [Heap, Heap]);
        assert_eq!(places.given_back(late(512)), Unmapped);
        places.found(late(1), Private);
        assert_eq!(places.given_back(late(500)), Unmapped);
    }

    #[test]
    fn what_is_kept_is_limited() {
        let mut places = Places::default();
        for page in 0..=PAGES_KEPT as u64 {
            places.found(late(page * 512), Heap);
        }
        places.found(late(0), Private);
        places.forget();
        assert!(places.owners.is_empty() && places.pages.is_empty() && places.turns.is_empty());
        // The near twin: a few stay.
        places.found(late(0), Heap);
        places.found(late(0), Private);
        places.forget();
        assert_eq!((places.owners.len(), places.pages.len(), places.turns.len()), (1, 1, 1));
    }
}
