//! The resident memory of one process at one moment, by owner: rows that sum to its resident set.

use crate::catalogue::remedies;
use crate::recording::{Allocator, Runtime};
use crate::units::{Absence, Interval, Measured, Reason};
use serde::Serialize;

/// What a row of the bill is about. The keys are those of [`crate::catalogue::owners::Owner`] where both have the owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ResidentOwner {
    Heap,
    Arena,
    MappedBlock,
    PythonArena,
    Private,
    Stack,
    File,
    Shared,
    /// Mappings of the kernel, such as the vDSO.
    Other,
}

impl ResidentOwner {
    /// In the order of the bill.
    pub const ALL: [ResidentOwner; 9] = [
        ResidentOwner::Heap,
        ResidentOwner::Arena,
        ResidentOwner::MappedBlock,
        ResidentOwner::PythonArena,
        ResidentOwner::Private,
        ResidentOwner::Stack,
        ResidentOwner::File,
        ResidentOwner::Shared,
        ResidentOwner::Other,
    ];

    /// Stable key of the JSON format.
    pub fn key(self) -> &'static str {
        match self {
            ResidentOwner::Heap => "heap",
            ResidentOwner::Arena => "arena",
            ResidentOwner::MappedBlock => "mapped_block",
            ResidentOwner::PythonArena => "python_arena",
            ResidentOwner::Private => "private",
            ResidentOwner::Stack => "stack",
            ResidentOwner::File => "file",
            ResidentOwner::Shared => "shared",
            ResidentOwner::Other => "other",
        }
    }

    pub fn title(self) -> &'static str {
        match self {
            ResidentOwner::Heap => "malloc: main heap",
            ResidentOwner::Arena => "malloc: arenas of threads",
            ResidentOwner::MappedBlock => "malloc: mapped blocks",
            ResidentOwner::PythonArena => "Python's arenas",
            ResidentOwner::Private => "other private memory",
            ResidentOwner::Stack => "stacks",
            ResidentOwner::File => "files",
            ResidentOwner::Shared => "shared memory",
            ResidentOwner::Other => "other",
        }
    }

    /// An allocator keeps free memory there, so live and free are different things.
    pub fn is_allocated(self) -> bool {
        use ResidentOwner::*;
        matches!(self, Heap | Arena | MappedBlock | PythonArena | Private)
    }
}

/// Sizes in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Amount {
    /// Without reserved huge pages, as in the Rss of the kernel.
    pub resident_bytes: u64,
    /// Part of `resident_bytes`: given back with MADV_FREE, and not taken by the kernel yet.
    pub lazily_freed_bytes: u64,
    /// On reserved huge pages.
    pub reserved_bytes: u64,
}

impl Amount {
    pub fn add(&mut self, other: Amount) {
        self.resident_bytes = self.resident_bytes.saturating_add(other.resident_bytes);
        self.lazily_freed_bytes = self.lazily_freed_bytes.saturating_add(other.lazily_freed_bytes);
        self.reserved_bytes = self.reserved_bytes.saturating_add(other.reserved_bytes);
    }

    /// Resident and not lazily freed: what live and free memory sum to.
    pub fn held_bytes(&self) -> u64 {
        self.resident_bytes.saturating_sub(self.lazily_freed_bytes)
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    pub owner: ResidentOwner,
    pub amount: Amount,
    /// Absent where live and free can't be distinguished, and where the question makes no sense.
    pub split: Measured<Split>,
}

/// How the resident bytes of a row divide, without lazily freed ones. The points of live and free sum to
/// [`Amount::held_bytes`].
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Split {
    pub live_bytes: Interval,
    /// Free for the allocator, but not returned to the system.
    pub free_bytes: Interval,
    /// Part of `free_bytes`: in thread caches and fast bins.
    pub cached_bytes: Interval,
    /// Part of `free_bytes`: the whole free pages that malloc_trim would return.
    pub trimmable_bytes: Interval,
    /// How it was measured.
    pub method: String,
    /// Why not all that was asked for was read.
    pub unfinished: Option<Absence>,
}

impl Split {
    /// Nothing is free.
    pub fn all_live(bytes: u64, method: &str) -> Split {
        Split {
            live_bytes: Interval::exact(bytes as f64),
            free_bytes: Interval::exact(0.0),
            cached_bytes: Interval::exact(0.0),
            trimmable_bytes: Interval::exact(0.0),
            method: method.to_owned(),
            unfinished: None,
        }
    }
}

/// What the kernel keeps for a cgroup: for all of its processes together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GroupMemory {
    /// As in /proc/PID/cgroup.
    pub path: String,
    pub kernel_bytes: u64,
    pub page_cache_bytes: u64,
}

/// What a remedy could return. Remedies act on the same memory, so their bytes do not add up.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Return {
    /// Key of the catalogue.
    pub remedy: &'static str,
    pub title: &'static str,
    /// What of it is meant.
    pub of: &'static str,
    pub at_most_bytes: u64,
    pub restart: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ResidentBill {
    pub pid: i32,
    pub comm: String,
    pub cmdline: Vec<String>,
    pub runtime: Measured<Runtime>,
    pub allocator: Measured<Allocator>,
    /// One row for each owner, in the order of [`ResidentOwner::ALL`].
    pub rows: Vec<Row>,
    /// VmRSS before and after the reading.
    pub rss_before_bytes: u64,
    pub rss_after_bytes: u64,
    /// Arenas that malloc made for threads.
    pub thread_arenas: usize,
    /// Beside the bill: not part of any Rss.
    pub page_tables_bytes: Measured<u64>,
    pub group: Measured<GroupMemory>,
    /// What limits the figures, for people.
    pub notes: Vec<String>,
    pub took_ms: u64,
}

/// The sum of the rows may differ from the kernel's own figure by this part of it.
const TOLERATED: f64 = 0.01;
/// A remedy that returns less than this is not shown.
const WORTH: f64 = (1 << 20) as f64;

impl ResidentBill {
    /// The sum of the rows.
    pub fn resident_bytes(&self) -> u64 {
        self.rows.iter().fold(0, |sum, row| sum.saturating_add(row.amount.resident_bytes))
    }

    pub fn reserved_bytes(&self) -> u64 {
        self.rows.iter().fold(0, |sum, row| sum.saturating_add(row.amount.reserved_bytes))
    }

    pub fn row(&self, owner: ResidentOwner) -> Option<&Row> {
        self.rows.iter().find(|row| row.owner == owner)
    }

    /// Whether the sum differs from VmRSS, both before and after, by more than 1 %.
    pub fn disagrees(&self) -> bool {
        let sum = self.resident_bytes() as f64;
        let differs = |rss: u64| (sum - rss as f64).abs() > TOLERATED * rss as f64;
        differs(self.rss_before_bytes) && differs(self.rss_after_bytes)
    }

    /// What remedies could return, at most, largest first. Only amounts from 1 MiB on.
    pub fn returns(&self) -> Vec<Return> {
        let split = |owner| self.row(owner).and_then(|row| row.split.as_ref().ok());
        let (heap, arenas) = (split(ResidentOwner::Heap), split(ResidentOwner::Arena));
        let both = [heap, arenas];
        let sum = |of: fn(&Split) -> f64| both.into_iter().flatten().map(of).sum::<f64>();
        let candidates = [
            ("malloc-trim", "whole free pages in the heaps", sum(|split| split.trimmable_bytes.high)),
            (
                "glibc-arenas-few",
                "free memory in the arenas of threads",
                // With one arena beside the main heap, there is none to save.
                arenas.filter(|_| self.thread_arenas > 1).map_or(0.0, |split| split.free_bytes.high),
            ),
            ("jemalloc", "free memory in all heaps of malloc", sum(|split| split.free_bytes.high)),
        ];
        let mut returns: Vec<Return> = candidates
            .into_iter()
            .filter(|(.., bytes)| *bytes >= WORTH)
            .filter_map(|(key, of, bytes)| {
                let remedy = remedies::find(key)?;
                Some(Return {
                    remedy: remedy.key,
                    title: remedy.title,
                    of,
                    at_most_bytes: bytes as u64,
                    restart: remedy.restart,
                })
            })
            .collect();
        returns.sort_by_key(|r| std::cmp::Reverse(r.at_most_bytes));
        returns
    }
}

/// Where live and free are not distinguished, for the text of a row.
pub fn undistinguished(why: impl Into<String>) -> Absence {
    Absence::new(Reason::NotApplicable, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::owners::Owner;
    use std::collections::BTreeSet;

    fn row(owner: ResidentOwner, resident: u64, free: f64, trimmable: f64) -> Row {
        let amount = Amount { resident_bytes: resident, ..Amount::default() };
        let mut split = Split::all_live(resident, "");
        split.free_bytes = Interval::exact(free);
        split.trimmable_bytes = Interval::exact(trimmable);
        Row { owner, amount, split: Ok(split) }
    }

    fn bill(rows: Vec<Row>) -> ResidentBill {
        ResidentBill {
            pid: 7,
            comm: "x".into(),
            cmdline: vec![],
            runtime: Ok(Runtime::Native),
            allocator: Err(undistinguished("")),
            rows,
            rss_before_bytes: 1000,
            rss_after_bytes: 1100,
            thread_arenas: 3,
            page_tables_bytes: Ok(0),
            group: Err(undistinguished("")),
            notes: vec![],
            took_ms: 1,
        }
    }

    #[test]
    fn every_owner_is_listed_with_its_own_key() {
        let keys: BTreeSet<_> = ResidentOwner::ALL.into_iter().map(ResidentOwner::key).collect();
        assert_eq!(keys.len(), ResidentOwner::ALL.len());
        assert!(ResidentOwner::ALL.into_iter().enumerate().all(|(at, owner)| owner as usize == at));
        // The two catalogues call the same owner the same.
        let faulted: BTreeSet<_> = Owner::ALL.into_iter().map(Owner::key).collect();
        assert_eq!(keys.difference(&faulted).copied().collect::<Vec<_>>(), ["other"]);
    }

    #[test]
    fn a_sum_near_one_of_the_two_readings_agrees() {
        for (sum, disagrees) in [(1000, false), (1100, false), (1009, false), (1050, true), (980, true)] {
            let bill = bill(vec![row(ResidentOwner::File, sum, 0.0, 0.0)]);
            assert_eq!(bill.disagrees(), disagrees, "{sum}");
        }
    }

    #[test]
    fn remedies_are_listed_from_one_mebibyte_on() {
        const MIB: f64 = (1 << 20) as f64;
        let of = |bill: &ResidentBill| -> Vec<(&'static str, u64)> {
            bill.returns().iter().map(|r| (r.remedy, r.at_most_bytes >> 20)).collect()
        };
        let rows = vec![
            row(ResidentOwner::Heap, 0, 8.0 * MIB, 6.0 * MIB),
            row(ResidentOwner::Arena, 0, 2.0 * MIB, MIB),
        ];
        let mut all = bill(rows);
        assert_eq!(of(&all), [("jemalloc", 10), ("malloc-trim", 7), ("glibc-arenas-few", 2)]);
        // A single arena of a thread is not one too many.
        all.thread_arenas = 1;
        assert_eq!(of(&all), [("jemalloc", 10), ("malloc-trim", 7)]);
        let little = bill(vec![row(ResidentOwner::Heap, 0, 0.9 * MIB, 0.5 * MIB)]);
        assert!(of(&little).is_empty());
        // Free memory of Python's arenas is not malloc's to return.
        assert!(of(&bill(vec![row(ResidentOwner::PythonArena, 0, 9.0 * MIB, 0.0)])).is_empty());
        let mut unknown = bill(vec![row(ResidentOwner::Heap, 0, 8.0 * MIB, 6.0 * MIB)]);
        unknown.rows[0].split = Err(undistinguished(""));
        assert!(of(&unknown).is_empty());
    }
}
