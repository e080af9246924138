//! What the counted calls of the target say: how many there are in a second, how large the blocks are, how long they live, and who
//! frees them. Calls by kind and size are exact; lifetimes and the thread that frees are from a sample.

use super::context::{Served, bytes, count, percent, percent_interval};
use allocwall_model::allocations::{CLASSES, Calls, Counted, LARGE, PerSecond, class_sizes};
use allocwall_model::recording::{AllocatorKind, Libc, Process, is_set, version_of};
use allocwall_model::units::Interval;

/// The public command that shows the same.
const SHOWN_BY: &str = "counted: allocwall count -- CMD";

/// The largest request that glibc's thread cache serves, and how many free blocks of one size it holds (malloc.c: MAX_TCACHE_SIZE,
/// TCACHE_FILL_COUNT). Both are tunables.
const LARGEST_CACHED: u64 = 1032;
const CACHED_BLOCKS: f64 = 7.0;
/// The first version with that cache.
const FIRST_WITH_CACHE: (u32, u32) = (2, 26);

// Our choice, as the next three: the part of the blocks that decides for the calls.
const MOST: f64 = 0.5;
/// What remains beside nearly all.
const FEW: f64 = 0.1;
/// A class of sizes with a smaller part of the blocks is not typical.
const TYPICAL: f64 = 0.01;
/// If a pair takes so many times as long as one that the arena serves, it is slow.
const SLOW: f64 = 3.0;

/// The calls of the processes that the rungs judge.
pub struct Calling<'a> {
    counted: &'a Counted,
    calls: Calls,
    classes: Vec<u64>,
    rates: PerSecond,
}

impl<'a> Calling<'a> {
    /// None if `process`, which used most CPU time, is not among those that were counted: then the numbers are about something else.
    pub fn of(counted: &'a Counted, process: &Process) -> Option<Calling<'a>> {
        let rates = counted.per_second().filter(|_| counted.covers(process))?;
        Some(Calling { counted, calls: counted.calls(), classes: counted.classes(), rates })
    }

    /// Allocations, reallocations and frees a second.
    pub fn per_s(&self) -> f64 {
        self.rates.calls
    }

    pub fn pairs_per_s(&self) -> f64 {
        self.rates.calls / 2.0
    }

    /// `1.2 M calls a second, 0.9 M a CPU-second (counted: …)`. `cpu_rate`: CPU-seconds a second.
    pub fn rate_text(&self, cpu_rate: f64) -> String {
        let each_cpu = if cpu_rate > 0.0 {
            format!(", {} a CPU-second", count(self.per_s() / cpu_rate))
        } else {
            String::new()
        };
        format!("{} calls a second{each_cpu} ({SHOWN_BY})", count(self.per_s()))
    }

    /// What new blocks above 128 KiB have of all bytes, and what realloc copies.
    pub fn bytes_text(&self) -> String {
        let all = self.bytes_of(|_| true);
        let large = if all > 0.0 { self.bytes_of(is_large) / all } else { 0.0 };
        let copied = self.counted.rate_of(self.calls.copied_bytes as f64).unwrap_or(0.0);
        format!(
            "{} of the bytes of new blocks are in blocks above {} KiB; realloc copies {} a second ({SHOWN_BY})",
            percent(large),
            LARGE >> 10,
            bytes(copied)
        )
    }

    /// Blocks that glibc may map and unmap one by one. None if there is none.
    pub fn mapped_text(&self) -> Option<String> {
        let blocks = self.blocks_of(is_large);
        let each_second = self.counted.rate_of(blocks).filter(|_| blocks > 0.0)?;
        Some(format!("{} blocks a second above {} KiB ({SHOWN_BY})", count(each_second), LARGE >> 10))
    }

    /// The part of the freed blocks that another thread allocated.
    pub fn remote_text(&self) -> Option<String> {
        let share = self.counted.remote_share().ok()?;
        Some(format!("another thread frees {} of the blocks ({SHOWN_BY})", percent_interval(share)))
    }

    /// Whether glibc's thread cache can serve the calls, if sizes and lifetimes decide that. `pair_ns`: the CPU time in malloc for each
    /// pair of malloc and free, and what such a pair costs in the arena at most.
    pub fn served(&self, process: &Process, pair_ns: Option<(Interval, f64)>) -> Option<(Served, String)> {
        if !has_usual_cache(process) {
            return None;
        }
        if let Some((pair_ns, arena_ns)) =
            pair_ns.filter(|(pair_ns, arena_ns)| pair_ns.low >= SLOW * arena_ns)
        {
            let text = format!(
                "a malloc/free pair takes {:.0} ns, one from the arena at most {arena_ns:.0} ns ({SHOWN_BY})",
                pair_ns.point
            );
            return Some((Served::Missing, text));
        }
        let all = self.blocks_of(|_| true);
        let surely_above = |(low, _): (u64, u64)| low > LARGEST_CACHED;
        let perhaps_above = |(_, high): (u64, u64)| high > LARGEST_CACHED;
        let (least, most) = (self.blocks_of(surely_above) / all, self.blocks_of(perhaps_above) / all);
        if least >= MOST {
            let text = format!(
                "{} of the blocks are larger than {LARGEST_CACHED} bytes, the most that the thread cache takes ({SHOWN_BY})",
                percent(least)
            );
            return Some((Served::Missing, text));
        }
        let in_use = self.in_use_at_a_time(all)?;
        let remote = self.counted.remote_share().ok()?;
        let cached = most <= FEW && remote.high <= FEW && in_use <= CACHED_BLOCKS;
        cached.then(|| {
            let text = format!(
                "{} of the blocks have at most {LARGEST_CACHED} bytes, and a thread frees them before it requests {CACHED_BLOCKS:.0} \
                 more of their size ({SHOWN_BY})",
                percent(1.0 - most)
            );
            (Served::Cached, text)
        })
    }

    /// How many blocks of a typical size the busiest thread requests during the median lifetime of a block: so many are in use at a
    /// time (Little's law). None without lifetimes.
    fn in_use_at_a_time(&self, all: f64) -> Option<f64> {
        let median_s = self.counted.lifetimes().quantile(0.5).ok()?.high / 1e9;
        let typical = self.classes.iter().filter(|blocks| **blocks as f64 >= TYPICAL * all).count();
        let threads = self.counted.processes.iter().flat_map(|process| &process.threads);
        let busiest = threads.map(|thread| thread.calls.allocations()).max();
        let blocks = busiest.map_or(all, |blocks| blocks as f64);
        Some(self.counted.rate_of(blocks)? * median_s / typical.max(1) as f64)
    }

    /// New blocks of the size classes for whose smallest and largest size this holds.
    fn blocks_of(&self, of: impl Fn((u64, u64)) -> bool) -> f64 {
        let classes = self.classes.iter().enumerate().filter(|(class, _)| of(class_sizes(*class)));
        classes.map(|(_, blocks)| *blocks as f64).sum()
    }

    /// Their bytes, by the middles of the classes.
    fn bytes_of(&self, of: impl Fn((u64, u64)) -> bool) -> f64 {
        let middle = |class: usize| match class_sizes(class) {
            // The last class has no largest size.
            (low, _) if class + 1 >= CLASSES => low as f64,
            (low, high) => (low as f64 + high as f64) / 2.0,
        };
        let classes = self.classes.iter().enumerate().filter(|(class, _)| of(class_sizes(*class)));
        classes.map(|(class, blocks)| *blocks as f64 * middle(class)).sum()
    }
}

fn is_large((low, _): (u64, u64)) -> bool {
    low > LARGE
}

/// Whether malloc is glibc's, with its thread cache as it is by default.
fn has_usual_cache(process: &Process) -> bool {
    let glibc = process.allocator.as_ref().is_ok_and(|allocator| allocator.kind == AllocatorKind::Glibc);
    let version = match &process.libc {
        Ok(Libc::Glibc { version }) => version_of(version),
        _ => None,
    };
    let new = version.is_some_and(|version| version >= FIRST_WITH_CACHE);
    glibc && new && !is_set(&process.environment, &[], "glibc.malloc.tcache")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::computing;
    use allocwall_sketches::recording::counted;

    /// A process with glibc, and its counts: so many blocks in a second, of this size, with this lifetime.
    fn served(blocks: u64, size: u64, lifetime_ns: u64, remote: f64) -> Option<Served> {
        let process = computing().recording.processes.remove(0);
        let counted = counted(1, &[(blocks, size)], lifetime_ns, remote);
        let calling = Calling::of(&counted, &process).expect("it is the process that was counted");
        calling.served(&process, None).map(|(served, _)| served)
    }

    #[test]
    fn large_blocks_miss_the_thread_cache_and_small_ones_that_live_shortly_do_not() {
        assert_eq!(served(1_000_000, 2_000, 500, 0.0), Some(Served::Missing));
        assert_eq!(served(1_000_000, 64, 500, 0.0), Some(Served::Cached));
        // Many of them are in use at a time; another thread frees them; the size that the cache just takes.
        assert_eq!(served(1_000_000, 64, 100_000, 0.0), None);
        assert_eq!(served(1_000_000, 64, 500, 0.3), None);
        assert_eq!(served(1_000_000, 1_032, 500, 0.0), None);
    }

    #[test]
    fn a_slow_pair_is_one_that_misses_and_only_glibc_has_this_cache() {
        let mut process = computing().recording.processes.remove(0);
        let counted = counted(1, &[(1_000_000, 64)], 500, 0.0);
        let calling = Calling::of(&counted, &process).expect("counted");
        let at = |ns: f64, process: &Process| {
            let pair = Interval::new(ns * 0.9, ns, ns * 1.1);
            calling.served(process, Some((pair, 42.0))).map(|(served, _)| served)
        };
        assert_eq!(at(200.0, &process), Some(Served::Missing));
        assert_eq!(at(100.0, &process), Some(Served::Cached));
        process.environment = vec![("GLIBC_TUNABLES".into(), "glibc.malloc.tcache_count=127".into())];
        assert_eq!(at(200.0, &process), None);
        process.environment.clear();
        process.libc = Ok(Libc::Glibc { version: "2.24".into() });
        assert_eq!(at(200.0, &process), None);
        process.libc = Ok(Libc::Glibc { version: "2.36".into() });
        if let Ok(allocator) = &mut process.allocator {
            allocator.kind = AllocatorKind::Jemalloc;
        }
        assert_eq!(at(200.0, &process), None);
    }

    #[test]
    fn counts_of_another_program_are_not_used() {
        let mut process = computing().recording.processes.remove(0);
        let counted = counted(1, &[(10, 64)], 500, 0.0);
        assert!(Calling::of(&counted, &process).is_some());
        process.exe = Ok("/usr/bin/static".into());
        assert!(Calling::of(&counted, &process).is_none());
    }
}
