//! The resident memory of one process at one moment, by owner: rows that sum to its resident set. A recording has the bills
//! of some processes of the target.

use crate::catalogue::modules::AllocatorKind;
use crate::catalogue::owners::Owner;
use crate::catalogue::remedies::{self, CostToApply, Need, Remedy};
use crate::recording::{Allocator, CMDLINE_WORDS, Linkage, Runtime, is_set};
use crate::units::{Absence, Interval, Measured, Reason};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;

/// The most bills of a recording.
pub const MOST_BILLS: usize = 4;
/// The most notes of a bill. A reading makes fewer than ten.
pub const MOST_NOTES: usize = 64;
/// No size of a bill is larger, so that sums of sizes are finite.
const LARGEST: f64 = u64::MAX as f64;

/// What a row of the bill is about. Keys and titles are those of [`Owner`] where both have the owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
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

    /// The same owner, as that of a page fault.
    pub fn of_faults(self) -> Option<Owner> {
        Some(match self {
            ResidentOwner::Heap => Owner::Heap,
            ResidentOwner::Arena => Owner::Arena,
            ResidentOwner::MappedBlock => Owner::MappedBlock,
            ResidentOwner::PythonArena => Owner::PythonArena,
            ResidentOwner::Private => Owner::Private,
            ResidentOwner::Stack => Owner::Stack,
            ResidentOwner::File => Owner::File,
            ResidentOwner::Shared => Owner::Shared,
            ResidentOwner::Other => return None,
        })
    }

    /// Stable key of the JSON format.
    pub fn key(self) -> &'static str {
        self.of_faults().map_or("other", Owner::key)
    }

    pub fn title(self) -> &'static str {
        self.of_faults().map_or("other", Owner::title)
    }

    /// An allocator keeps free memory there, so live and free are different things.
    pub fn is_allocated(self) -> bool {
        use ResidentOwner::*;
        matches!(self, Heap | Arena | MappedBlock | PythonArena | Private)
    }
}

/// Sizes in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    pub owner: ResidentOwner,
    pub amount: Amount,
    /// Absent where live and free can't be distinguished, and where the question makes no sense.
    pub split: Measured<Split>,
}

/// How the resident bytes of a row divide, without lazily freed ones. The points of live and free sum to
/// [`Amount::held_bytes`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Split {
    pub live_bytes: Interval,
    /// Free for the allocator, but not returned to the system.
    pub free_bytes: Interval,
    /// Part of `free_bytes`: in thread caches and fast bins.
    pub cached_bytes: Interval,
    /// Part of `free_bytes`: the whole free pages that malloc_trim would return.
    pub trimmable_bytes: Interval,
    /// Part of `free_bytes`: the whole pages at the end of heaps, above the last block in use.
    pub top_bytes: Interval,
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
            top_bytes: Interval::exact(0.0),
            method: method.to_owned(),
            unfinished: None,
        }
    }

    fn is_sound(&self) -> bool {
        let sizes =
            [self.live_bytes, self.free_bytes, self.cached_bytes, self.trimmable_bytes, self.top_bytes];
        let is_size = |bytes: f64| (0.0..=LARGEST).contains(&bytes);
        sizes.iter().all(|size| is_size(size.low) && is_size(size.point) && is_size(size.high))
    }
}

/// What the kernel keeps for a cgroup: for all of its processes together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
    /// 0 if nothing is sure.
    pub at_least_bytes: u64,
    pub at_most_bytes: u64,
    pub restart: bool,
}

/// Where a remedy comes among those that return memory.
pub type ReturnOrder = (bool, Option<CostToApply>, Reverse<u64>, CostToApply);

/// The order in which to try remedies that return memory: the largest first, by [`expected`] bytes. Of those that return about
/// as much as the best one, the one first that costs least to apply.
pub fn return_order(remedy: &Remedy, bytes: u64, best: u64) -> ReturnOrder {
    const ABOUT: f64 = 0.85;
    let about_best = bytes as f64 >= ABOUT * best as f64;
    let cost = remedy.cost_to_apply();
    (!about_best, about_best.then_some(cost), Reverse(bytes), cost)
}

/// What a remedy is expected to return. Where only an upper bound is known, it may be nothing, so that half of the bound counts:
/// our choice.
pub fn expected(at_least: u64, at_most: u64) -> u64 {
    at_least.midpoint(at_most)
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResidentBill {
    pub pid: i32,
    pub comm: String,
    #[serde(deserialize_with = "crate::room::charged")]
    pub cmdline: Vec<String>,
    pub runtime: Measured<Runtime>,
    pub allocator: Measured<Allocator>,
    /// The loader ignores preloads and tunables.
    pub secure_exec: Measured<bool>,
    /// Its settings, as of a process of a recording.
    #[serde(deserialize_with = "crate::room::charged")]
    pub environment: Vec<(String, String)>,
    /// One row for each owner, in the order of [`ResidentOwner::ALL`].
    #[serde(deserialize_with = "crate::room::charged")]
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
    #[serde(deserialize_with = "crate::room::charged")]
    pub notes: Vec<String>,
    pub took_ms: u64,
}

/// The resident memory of a target at the end of its window.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TargetMemory {
    /// At least one, at most [`MOST_BILLS`]: of the living process that used most CPU time, if it could be read, then of
    /// the largest others.
    #[serde(deserialize_with = "crate::room::charged")]
    pub bills: Vec<ResidentBill>,
    /// Living processes without a bill.
    pub others: u64,
    /// Why one of these could not be read: the busiest, if it is one of them.
    pub unread: Option<Absence>,
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

    fn split(&self, owner: ResidentOwner) -> Option<&Split> {
        self.row(owner).and_then(|row| row.split.as_ref().ok())
    }

    /// Whether it is known of all memory of this owner how much is free.
    fn knows(&self, owner: ResidentOwner) -> bool {
        self.row(owner).is_none_or(|row| row.amount.held_bytes() == 0 || row.split.is_ok())
    }

    /// The sum over the heaps of glibc's malloc whose blocks were read.
    fn of_heaps(&self, size: fn(&Split) -> f64) -> f64 {
        HEAPS.into_iter().filter_map(|owner| self.split(owner)).map(size).sum()
    }

    fn lazily_freed(&self) -> f64 {
        self.rows.iter().map(|row| row.amount.lazily_freed_bytes as f64).sum()
    }

    /// Whether it has a row for each owner, in order, and its sizes are sizes. Code that reads a bill of a recording relies
    /// on it.
    pub fn is_sound(&self) -> bool {
        self.rows.iter().map(|row| row.owner).eq(ResidentOwner::ALL)
            && self.rows.iter().filter_map(|row| row.split.as_ref().ok()).all(Split::is_sound)
            && self.notes.len() <= MOST_NOTES
            && self.cmdline.len() <= CMDLINE_WORDS
    }

    /// Whether the remedy can be applied to this process, as far as the bill shows. What is unknown does not exclude it.
    fn takes(&self, remedy: &Remedy) -> bool {
        let allocator = self.allocator.as_ref().ok();
        // A static program contains its malloc, and its version of glibc is unknown.
        let no_loader = self.secure_exec == Ok(true) || allocator.is_some_and(|a| a.how == Linkage::Static);
        let uses = |kind: &AllocatorKind| allocator.map(|a| a.kind == *kind);
        let met = |need: &Need| match need {
            Need::Preload | Need::Glibc(..) => !no_loader,
            Need::Uses(kind) => uses(kind) != Some(false),
            Need::NotAlready(kind) => uses(kind) != Some(true),
            Need::Unset(name) => !is_set(&self.environment, &self.cmdline, name),
            _ => true,
        };
        remedy.needs.iter().all(met)
    }

    /// What remedies could return, in the order in which to try them ([`return_order`]). Only amounts from 1 MiB on.
    pub fn returns(&self) -> Vec<Return> {
        let returns = RETURNING.iter().filter_map(|returning| {
            let remedy = remedies::find(returning.remedy).filter(|remedy| self.takes(remedy))?;
            let (least, most) = returning.bounds(self).filter(|(_, most)| *most >= WORTH)?;
            let returned = Return {
                remedy: remedy.key,
                title: remedy.title,
                of: returning.of,
                at_least_bytes: least as u64,
                at_most_bytes: most as u64,
                restart: remedy.restart,
            };
            Some((remedy, expected(returned.at_least_bytes, returned.at_most_bytes), returned))
        });
        let mut returns: Vec<_> = returns.collect();
        let best = returns.iter().map(|(_, bytes, _)| *bytes).max().unwrap_or(0);
        returns.sort_by_key(|(remedy, bytes, _)| return_order(remedy, *bytes, best));
        returns.into_iter().map(|(.., returned)| returned).collect()
    }
}

impl TargetMemory {
    /// The sum over the rows of these owners, of the processes that were read.
    pub fn resident_bytes(&self, of: impl Fn(ResidentOwner) -> bool) -> f64 {
        let rows = self.bills.iter().flat_map(|bill| &bill.rows);
        rows.filter(|row| of(row.owner)).map(|row| row.amount.resident_bytes as f64).sum()
    }

    /// What a remedy could return of the processes that were read and that it can be applied to.
    pub fn returned(&self, remedy: &str) -> Returned {
        let returning = RETURNING.iter().find(|returning| returning.remedy == remedy);
        let Some((returning, remedy)) = returning.zip(remedies::find(remedy)) else {
            return Returned::Unknown;
        };
        let (mut least, mut most) = (0.0, 0.0);
        for bill in self.bills.iter().filter(|bill| bill.takes(remedy)) {
            let Some(bounds) = returning.bounds(bill) else { return Returned::Unknown };
            (least, most) = (least + bounds.0, most + bounds.1);
        }
        match most >= WORTH {
            true => Returned::AtMost { least: least as u64, bytes: most as u64, of: returning.of },
            // Other memory, or another process, may have some.
            false if self.others > 0 || !returning.is_all => Returned::Unknown,
            false => Returned::AlmostNothing,
        }
    }
}

/// What a remedy could return of a target's resident memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Returned {
    /// `of`: which memory is meant. `least`: so much is sure, or 0.
    AtMost {
        least: u64,
        bytes: u64,
        of: &'static str,
    },
    /// Less than 1 MiB.
    AlmostNothing,
    Unknown,
}

/// The heaps of glibc's malloc. Mapped blocks are unmapped when they are freed.
const HEAPS: [ResidentOwner; 2] = [ResidentOwner::Heap, ResidentOwner::Arena];

/// A remedy that returns memory to the system.
struct Returning {
    /// Key of the catalogue.
    remedy: &'static str,
    /// Which memory it returns.
    of: &'static str,
    /// The owners whose free memory is part of it. If it is unknown of one of them, there is no upper bound.
    owners: &'static [ResidentOwner],
    /// How much of it there is, at most.
    bytes: fn(&ResidentBill) -> f64,
    /// How much of it returns for sure. Whether a later run of the program returns it is not: another allocator, or a setting
    /// from the start, places blocks elsewhere.
    sure: fn(&ResidentBill) -> f64,
    /// It returns nothing else.
    is_all: bool,
}

impl Returning {
    /// At least, and at most.
    fn bounds(&self, bill: &ResidentBill) -> Option<(f64, f64)> {
        let is_known = self.owners.iter().all(|owner| bill.knows(*owner));
        is_known.then(|| {
            let most = (self.bytes)(bill);
            ((self.sure)(bill).min(most), most)
        })
    }
}

fn nothing(_: &ResidentBill) -> f64 {
    0.0
}

const RETURNING: [Returning; 6] = [
    Returning {
        remedy: "malloc-trim",
        of: "whole free pages in the heaps",
        owners: &HEAPS,
        // Since glibc 2.8 it gives back the whole pages within free blocks of all arenas (mtrim() in malloc/malloc.c).
        bytes: |bill| bill.of_heaps(|split| split.trimmable_bytes.high),
        sure: |bill| bill.of_heaps(|split| split.trimmable_bytes.low),
        is_all: true,
    },
    Returning {
        remedy: "glibc-trim-sooner",
        of: "free memory at the end of the heaps",
        owners: &HEAPS,
        bytes: |bill| bill.of_heaps(|split| split.top_bytes.high),
        sure: nothing,
        is_all: true,
    },
    Returning {
        remedy: "glibc-arenas-few",
        of: "free memory in the arenas of threads",
        owners: &[ResidentOwner::Arena],
        bytes: |bill| match bill.split(ResidentOwner::Arena) {
            // With one arena beside the main heap, there is none to save.
            Some(split) if bill.thread_arenas > 1 => split.free_bytes.high,
            _ => 0.0,
        },
        sure: nothing,
        is_all: true,
    },
    Returning {
        remedy: "jemalloc",
        of: "free memory in all heaps of malloc",
        owners: &HEAPS,
        bytes: |bill| bill.of_heaps(|split| split.free_bytes.high),
        sure: nothing,
        is_all: true,
    },
    Returning {
        remedy: "jemalloc-decay",
        of: "lazily freed memory; how many other free pages jemalloc keeps is unknown",
        owners: &[],
        bytes: |bill| match &bill.allocator {
            Ok(allocator) if allocator.kind == AllocatorKind::Jemalloc => bill.lazily_freed(),
            _ => 0.0,
        },
        sure: nothing,
        is_all: false,
    },
    Returning {
        remedy: "recycle-workers",
        of: "free memory of malloc's heaps and of Python's arenas, and lazily freed memory",
        owners: &[ResidentOwner::Heap, ResidentOwner::Arena, ResidentOwner::PythonArena],
        bytes: |bill| {
            let free = bill.rows.iter().filter_map(|row| row.split.as_ref().ok());
            free.map(|split| split.free_bytes.high).sum::<f64>() + bill.lazily_freed()
        },
        sure: nothing,
        is_all: false,
    },
];

/// Where live and free are not distinguished, for the text of a row.
pub fn undistinguished(why: impl Into<String>) -> Absence {
    Absence::new(Reason::NotApplicable, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::walls::Wall;
    use std::collections::BTreeSet;

    const MIB: f64 = (1 << 20) as f64;

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
            secure_exec: Ok(false),
            environment: vec![],
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
        let of = |bill: &ResidentBill| -> Vec<(&'static str, u64)> {
            bill.returns().iter().map(|r| (r.remedy, r.at_most_bytes >> 20)).collect()
        };
        let rows = vec![
            row(ResidentOwner::Heap, 0, 8.0 * MIB, 6.0 * MIB),
            row(ResidentOwner::Arena, 0, 2.0 * MIB, MIB),
        ];
        let mut all = bill(rows);
        assert_eq!(
            of(&all),
            [("malloc-trim", 7), ("jemalloc", 10), ("recycle-workers", 10), ("glibc-arenas-few", 2)]
        );
        // A single arena of a thread is not one too many.
        all.thread_arenas = 1;
        assert_eq!(of(&all), [("malloc-trim", 7), ("jemalloc", 10), ("recycle-workers", 10)]);
        if let Ok(split) = &mut all.rows[0].split {
            split.top_bytes = Interval::exact(3.0 * MIB);
        }
        assert_eq!(of(&all).last(), Some(&("glibc-trim-sooner", 3)));
        let little = bill(vec![row(ResidentOwner::Heap, 0, 0.9 * MIB, 0.5 * MIB)]);
        assert!(of(&little).is_empty());
        // Free memory of Python's arenas is not malloc's to return.
        let python = bill(vec![row(ResidentOwner::PythonArena, 0, 9.0 * MIB, 0.0)]);
        assert_eq!(of(&python), [("recycle-workers", 9)]);
        let mut unknown = bill(vec![row(ResidentOwner::Heap, 0, 8.0 * MIB, 6.0 * MIB)]);
        unknown.rows[0].split = Err(undistinguished(""));
        assert!(of(&unknown).is_empty());
    }

    #[test]
    fn what_surely_returns_goes_before_what_may_return_as_much() {
        let of = |trimmable: Interval| -> Vec<&'static str> {
            let mut bill = bill(vec![row(ResidentOwner::Heap, 0, 100.0 * MIB, 0.0)]);
            if let Ok(split) = &mut bill.rows[0].split {
                split.trimmable_bytes = trimmable.scaled(MIB);
            }
            bill.returns().iter().map(|r| r.remedy).collect()
        };
        const SURE_FIRST: [&str; 3] = ["malloc-trim", "jemalloc", "recycle-workers"];
        const SURE_LAST: [&str; 3] = ["jemalloc", "recycle-workers", "malloc-trim"];
        // Another allocator returns between nothing and 100 MiB.
        assert_eq!(of(Interval::exact(70.0)), SURE_FIRST);
        assert_eq!(of(Interval::new(60.0, 70.0, 80.0)), SURE_FIRST);
        assert_eq!(of(Interval::exact(20.0)), SURE_LAST);
        // If they return about the same, the one goes first that costs less to apply.
        assert_eq!(of(Interval::exact(50.0)), ["jemalloc", "malloc-trim", "recycle-workers"]);
    }

    #[test]
    fn without_a_row_that_counts_there_is_no_upper_bound() {
        let of = |heap_is_read: bool| -> Vec<&'static str> {
            let rows = vec![
                row(ResidentOwner::Heap, 64 << 20, 0.0, 0.0),
                row(ResidentOwner::Arena, 64 << 20, 2.0 * MIB, 2.0 * MIB),
            ];
            let mut bill = bill(rows);
            if !heap_is_read {
                bill.rows[0].split = Err(undistinguished(""));
            }
            let memory = TargetMemory { bills: vec![bill.clone()], others: 0, unread: None };
            let known = |key| matches!(memory.returned(key), Returned::AtMost { .. });
            assert_eq!((known("jemalloc"), known("glibc-arenas-few")), (heap_is_read, true));
            bill.returns().iter().map(|r| r.remedy).collect()
        };
        assert_eq!(of(true), ["malloc-trim", "glibc-arenas-few", "jemalloc", "recycle-workers"]);
        assert_eq!(of(false), ["glibc-arenas-few"]);
    }

    #[test]
    fn a_static_program_has_no_remedies_that_need_its_loader() {
        let of = |how| -> Vec<&'static str> {
            let mut bill = bill(vec![row(ResidentOwner::Heap, 64 << 20, 8.0 * MIB, 8.0 * MIB)]);
            let module = String::new();
            bill.allocator = Ok(Allocator { kind: AllocatorKind::Glibc, how, module, version: None });
            bill.returns().iter().map(|r| r.remedy).collect()
        };
        assert_eq!(of(Linkage::Libc), ["malloc-trim", "jemalloc", "recycle-workers"]);
        assert_eq!(of(Linkage::Static), ["recycle-workers"]);
    }

    fn of_kind(kind: AllocatorKind) -> Measured<Allocator> {
        Ok(Allocator { kind, how: Linkage::Libc, module: String::new(), version: None })
    }

    #[test]
    fn remedies_whose_needs_are_not_met_are_not_listed() {
        type Change = fn(&mut ResidentBill);
        let of = |change: Change| -> Vec<&'static str> {
            let rows = vec![
                row(ResidentOwner::Heap, 64 << 20, 8.0 * MIB, 8.0 * MIB),
                row(ResidentOwner::Arena, 64 << 20, 4.0 * MIB, 4.0 * MIB),
            ];
            let mut bill = bill(rows);
            if let Ok(split) = &mut bill.rows[0].split {
                split.top_bytes = Interval::exact(3.0 * MIB);
            }
            bill.allocator = of_kind(AllocatorKind::Glibc);
            change(&mut bill);
            let memory = TargetMemory { bills: vec![bill.clone()], others: 0, unread: None };
            let listed: Vec<&'static str> = bill.returns().iter().map(|r| r.remedy).collect();
            // The sum over a target has the same remedies.
            for returning in &RETURNING {
                let key = returning.remedy;
                let returns = matches!(memory.returned(key), Returned::AtMost { .. });
                assert_eq!(returns, listed.contains(&key), "{key}");
            }
            listed
        };
        const ALL: [&str; 5] =
            ["glibc-arenas-few", "glibc-trim-sooner", "jemalloc", "malloc-trim", "recycle-workers"];
        let without =
            |keys: &[&str]| -> Vec<&str> { ALL.into_iter().filter(|key| !keys.contains(key)).collect() };
        let sorted = |change: Change| {
            let mut keys = of(change);
            keys.sort_unstable();
            keys
        };
        assert_eq!(sorted(|_| ()), ALL);
        assert_eq!(sorted(|bill| bill.environment = vec![("GOGC".into(), "50".into())]), ALL);
        let secure: Change = |bill| bill.secure_exec = Ok(true);
        assert_eq!(sorted(secure), ["recycle-workers"]);
        let unknown: Change = |bill| bill.secure_exec = Err(undistinguished(""));
        assert_eq!(sorted(unknown), ALL);
        let jemalloc: Change = |bill| bill.allocator = of_kind(AllocatorKind::Jemalloc);
        assert_eq!(sorted(jemalloc), ["recycle-workers"]);
        let arenas: Change = |bill| bill.environment = vec![("MALLOC_ARENA_MAX".into(), "4".into())];
        assert_eq!(sorted(arenas), without(&["glibc-arenas-few"]));
        let trim: Change = |bill| {
            let tunables = ("GLIBC_TUNABLES".into(), "glibc.malloc.trim_threshold=65536".into());
            bill.environment = vec![tunables];
        };
        assert_eq!(sorted(trim), without(&["glibc-trim-sooner"]));
    }

    #[test]
    fn a_process_that_a_remedy_does_not_reach_returns_nothing_by_it() {
        let one = |kind| {
            let mut bill = bill(vec![row(ResidentOwner::Heap, 64 << 20, 8.0 * MIB, 8.0 * MIB)]);
            bill.allocator = of_kind(kind);
            bill
        };
        let returned = |second| {
            let bills = vec![one(AllocatorKind::Glibc), one(second)];
            match (TargetMemory { bills, others: 0, unread: None }).returned("jemalloc") {
                Returned::AtMost { bytes, .. } => bytes >> 20,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!((returned(AllocatorKind::Glibc), returned(AllocatorKind::Jemalloc)), (16, 8));
    }

    #[test]
    fn every_remedy_that_returns_memory_is_one_of_the_catalogue() {
        for returning in &RETURNING {
            let remedy = remedies::find(returning.remedy).expect(returning.remedy);
            assert!(remedy.walls.contains(&Wall::Retention), "{}", remedy.key);
        }
    }

    #[test]
    fn what_a_remedy_returns_is_the_sum_over_the_processes_that_were_read() {
        let of = |memory: &TargetMemory, key| memory.returned(key);
        let one = || bill(vec![row(ResidentOwner::Heap, 1 << 30, 8.0 * MIB, 0.5 * MIB)]);
        let mut memory = TargetMemory { bills: vec![one(), one()], others: 0, unread: None };
        let swapped = of(&memory, "jemalloc");
        assert!(matches!(swapped, Returned::AtMost { bytes, .. } if bytes == 16 << 20), "{swapped:?}");
        assert!(matches!(of(&memory, "malloc-trim"), Returned::AtMost { .. }));
        assert_eq!(of(&memory, "glibc-arenas-few"), Returned::AlmostNothing);
        // The free pages of jemalloc's own heap are in no bill, and nothing is known of a remedy that is not listed.
        assert_eq!(of(&memory, "jemalloc-decay"), Returned::Unknown);
        assert_eq!(of(&memory, "gogc"), Returned::Unknown);
        // A process that was not read may have arenas, and a heap that was not read may be free.
        memory.others = 1;
        assert_eq!(of(&memory, "glibc-arenas-few"), Returned::Unknown);
        memory.others = 0;
        memory.bills[1].rows[0].split = Err(undistinguished(""));
        assert_eq!(of(&memory, "jemalloc"), Returned::Unknown);
        memory.bills[1].rows[0].amount.resident_bytes = 0;
        assert!(matches!(of(&memory, "jemalloc"), Returned::AtMost { bytes, .. } if bytes == 8 << 20));
    }

    #[test]
    fn lazily_freed_memory_of_jemalloc_is_returned_by_its_own_setting() {
        let of = |kind| {
            let mut one = bill(vec![row(ResidentOwner::Private, 1 << 30, 0.0, 0.0)]);
            one.rows[0].amount.lazily_freed_bytes = 5 << 20;
            let module = String::new();
            one.allocator = Ok(Allocator { kind, how: Linkage::Linked, module, version: None });
            TargetMemory { bills: vec![one], others: 0, unread: None }.returned("jemalloc-decay")
        };
        assert!(matches!(of(AllocatorKind::Jemalloc), Returned::AtMost { bytes, .. } if bytes == 5 << 20));
        assert_eq!(of(AllocatorKind::Mimalloc), Returned::Unknown);
    }

    #[test]
    fn a_bill_of_a_recording_has_each_row_once_and_sizes_that_are_sizes() {
        let sound = || bill(ResidentOwner::ALL.into_iter().map(|owner| row(owner, 1, 0.0, 0.0)).collect());
        assert!(sound().is_sound());
        type Spoil = fn(&mut ResidentBill);
        let spoilt: [Spoil; 6] = [
            |bill| bill.rows.swap(0, 1),
            |bill| drop(bill.rows.pop()),
            |bill| {
                bill.rows[2].split = bill.rows[2]
                    .split
                    .clone()
                    .map(|split| Split { free_bytes: Interval::new(0.0, f64::NAN, 1.0), ..split })
            },
            |bill| {
                bill.rows[3].split = bill.rows[3]
                    .split
                    .clone()
                    .map(|split| Split { top_bytes: Interval::new(-1.0, 0.0, 1e300), ..split })
            },
            |bill| bill.notes = vec![String::new(); MOST_NOTES + 1],
            |bill| bill.cmdline = vec![String::new(); CMDLINE_WORDS + 1],
        ];
        for (nth, spoil) in spoilt.into_iter().enumerate() {
            let mut bill = sound();
            spoil(&mut bill);
            assert!(!bill.is_sound(), "{nth}");
        }
        let mut limits = sound();
        limits.notes = vec![String::new(); MOST_NOTES];
        limits.rows[0].amount.resident_bytes = u64::MAX;
        assert!(limits.is_sound());
    }
}
