//! Live and free memory in CPython's arenas, from the headers of their pools (`struct pool_header` in
//! Objects/obmalloc.c). A pool's first word counts its blocks in use.

use super::pages::{Pages, Words};
use super::ratio::Ratio;
use crate::memory_kinds::{POOL_HEADER, POOLS, pool_block};
use allocwall_model::recording::{Runtime, version_of};
use allocwall_model::resident::Split;
use allocwall_model::units::Interval;

/// The most pools of which each is read: 128 MiB since 3.10. Of more, every second one is read, or every third, and so on.
const MOST_POOLS: u64 = 8 << 10;

/// The size of a process's pools; None if it has none. The free-threaded build uses mimalloc.
pub fn pool_bytes(runtime: &Runtime) -> Option<u64> {
    match runtime {
        Runtime::Cpython { free_threaded: true, .. } => None,
        Runtime::Cpython { version, .. } => {
            let since_3_10 = version_of(version).is_none_or(|version| version >= (3, 10));
            Some(if since_3_10 { POOLS[0] } else { POOLS[1] })
        }
        _ => None,
    }
}

/// The pools of a process.
#[derive(Clone, Debug)]
pub struct Pools {
    bytes: u64,
    /// One in this number of pools is read.
    every: u64,
    /// How many ranges were read: of each, another pool is the first. The first one of an arena is the fullest.
    ranges: u64,
    /// Live bytes of resident ones.
    live: Ratio,
}

impl Pools {
    /// `candidates`: resident bytes that can be pools.
    pub fn new(bytes: u64, candidates: u64, whole: bool) -> Pools {
        let every = if whole { 1 } else { (candidates / bytes).div_ceil(MOST_POOLS).max(1) };
        Pools { bytes, every, ranges: 0, live: Ratio::default() }
    }

    /// Resident bytes of a range that are in pools. An estimate if not every pool is read.
    pub fn read(&mut self, start: u64, end: u64, pages: &Pages, words: &mut dyn Words) -> u64 {
        let mut found = 0;
        // A pool that was never used follows one that was, where a huge page made both resident.
        let mut follows = false;
        let first = start.next_multiple_of(self.bytes);
        let step = self.every.min(end.saturating_sub(first) / self.bytes).max(1);
        let mut pool = first + self.ranges % step * self.bytes;
        self.ranges += 1;
        while pool < end && end - pool >= self.bytes && !words.late() {
            if pages.has_address(pool) {
                if self.every == 1 {
                    words.ahead(pool);
                }
                let resident = pages.bytes(pool, pool + self.bytes);
                let mut live = self.live_bytes(pool, words);
                if live.is_none() && follows && self.every == 1 && is_untouched(pool, words) {
                    live = Some(0);
                }
                if let Some(live) = live {
                    self.live.add(resident, live.min(resident));
                    found += resident;
                }
                follows = live.is_some();
            } else {
                follows = false;
            }
            pool += self.bytes * step;
        }
        (found * step).min(pages.bytes(start, end))
    }

    /// None if it is not a pool.
    fn live_bytes(&self, pool: u64, words: &mut dyn Words) -> Option<u64> {
        let block = pool_block(self.bytes, pool, &mut |at| words.word(at))?;
        let used = words.word(pool)? & 0xffff_ffff;
        let live = used * block;
        (live <= self.bytes - POOL_HEADER).then_some(live)
    }

    /// `held`: resident bytes of all pools.
    pub fn split(&self, held: u64) -> Split {
        let seen = if self.every == 1 { 1.0 } else { 1.0 / self.every as f64 };
        let (point, half) = (self.live.point(), self.live.half_width(seen));
        let held = held as f64;
        let live =
            Interval::new((point - half).max(0.0) * held, point * held, (point + half).min(1.0) * held);
        let method = match self.every {
            1 => "the header of every pool was read".to_owned(),
            every => format!("the headers of 1 in {every} pools were read"),
        };
        Split {
            live_bytes: live,
            free_bytes: Interval::new(held - live.high, held - live.point, held - live.low),
            cached_bytes: Interval::exact(0.0),
            trimmable_bytes: Interval::exact(0.0),
            top_bytes: Interval::exact(0.0),
            method,
            unfinished: None,
        }
    }
}

/// The header of a pool that was never used.
fn is_untouched(pool: u64, words: &mut dyn Words) -> bool {
    (0..POOL_HEADER / 8).all(|nth| words.word(pool + nth * 8) == Some(0))
}

#[cfg(test)]
mod tests {
    use super::super::pages::{Few, Made};
    use super::*;
    use std::collections::BTreeMap;

    const START: u64 = 0x7f00_0010_0000;
    const POOL: u64 = POOLS[0];

    /// Pools with this number of blocks of 64 bytes in use; None: other memory.
    fn made(pools: &[Option<u64>]) -> Made {
        let mut words = BTreeMap::new();
        for (nth, used) in pools.iter().enumerate() {
            let pool = START + nth as u64 * POOL;
            let header = match used {
                Some(used) => [*used, 1, 2, 3, 3 << 32 | 7, (POOL - 64) << 32 | 112],
                None => [9; 6],
            };
            words.extend((0..6).map(|word| (pool + word * 8, header[word as usize])));
        }
        Made(words)
    }

    fn all(pools: usize) -> Pages {
        Pages::of(START, START + pools as u64 * POOL, std::iter::repeat(true))
    }

    fn read(pools: &mut Pools, made: &mut Made, pages: &Pages, number: usize) -> u64 {
        pools.read(START, START + number as u64 * POOL, pages, made)
    }

    #[test]
    fn blocks_in_use_are_live() {
        let pools_made = [Some(10), Some(0), None, Some(255)];
        let mut pools = Pools::new(POOL, 0, true);
        assert_eq!(read(&mut pools, &mut made(&pools_made), &all(4), 4), 3 * POOL);
        let split = pools.split(3 * POOL);
        assert!((split.live_bytes.point - 265.0 * 64.0).abs() < 1e-6, "{split:?}");
        assert_eq!(split.live_bytes.low, split.live_bytes.high);
        assert!((split.live_bytes.point + split.free_bytes.point - 3.0 * POOL as f64).abs() < 1e-6);
        // More blocks than fit: not a pool.
        let mut pools = Pools::new(POOL, 0, true);
        assert_eq!(read(&mut pools, &mut made(&[Some(256)]), &all(1), 1), 0);
    }

    #[test]
    fn only_resident_pages_of_pools_count() {
        let pages = Pages::of(START, START + 2 * POOL, [true, true, false, false, false, true, true, true]);
        let mut pools = Pools::new(POOL, 0, true);
        // The header of the second pool is not resident.
        assert_eq!(read(&mut pools, &mut made(&[Some(10), Some(10)]), &pages, 2), 8192);
    }

    #[test]
    fn untouched_memory_behind_a_pool_is_free_and_elsewhere_it_is_not_pythons() {
        let zeros = |made: &mut Made, nth: u64| {
            made.0.extend((0..6).map(|word| (START + nth * POOL + word * 8, 0)));
        };
        let mut memory = made(&[None, None, Some(10), None, None]);
        zeros(&mut memory, 0);
        zeros(&mut memory, 3);
        let mut pools = Pools::new(POOL, 0, true);
        assert_eq!(read(&mut pools, &mut memory, &all(5), 5), 2 * POOL);
        assert!((pools.split(2 * POOL).live_bytes.point - 640.0).abs() < 1e-6);
    }

    #[test]
    fn of_very_many_pools_some_are_read() {
        let mut pools = Pools::new(POOL, 3 * MOST_POOLS * POOL, false);
        assert_eq!(pools.every, 3);
        let memory: Vec<Option<u64>> = (0..30).map(|nth| Some(nth % 7 * 10)).collect();
        assert_eq!(read(&mut pools, &mut made(&memory), &all(30), 30), 30 * POOL);
        let split = pools.split(30 * POOL);
        let truth = memory.iter().flatten().sum::<u64>() as f64 * 64.0;
        assert!(split.live_bytes.low < truth && truth < split.live_bytes.high, "{split:?} {truth}");
        assert!(split.method.contains("1 in 3 pools"), "{}", split.method);
        assert_eq!(Pools::new(POOL, MOST_POOLS * POOL, false).every, 1);
        assert_eq!(Pools::new(POOL, 3 * MOST_POOLS * POOL, true).every, 1);
    }

    #[test]
    fn of_short_ranges_each_is_read_and_not_always_its_first_pool() {
        const RANGE: usize = 8;
        // In each range the first pool is full, and the others are empty.
        let memory: Vec<Option<u64>> =
            (0..16 * RANGE).map(|nth| Some(if nth % RANGE == 0 { 255 } else { 0 })).collect();
        let (mut made, pages) = (made(&memory), all(16 * RANGE));
        let mut pools = Pools::new(POOL, 100 * MOST_POOLS * POOL, false);
        assert_eq!(pools.every, 100);
        let bytes = RANGE as u64 * POOL;
        let found: u64 = (0..16)
            .map(|nth| pools.read(START + nth * bytes, START + (nth + 1) * bytes, &pages, &mut made))
            .sum();
        assert_eq!(found, 16 * bytes);
        let live = pools.split(found).live_bytes;
        let truth = 16.0 * 255.0 * 64.0;
        assert!((live.point - truth).abs() < 1.0, "{live:?} {truth}");
        // The near twin: no pools there.
        let mut others = Pools::new(POOL, 100 * MOST_POOLS * POOL, false);
        let other = others.read(START, START + bytes, &pages, &mut self::made(&[None; RANGE]));
        assert_eq!(other, 0);
    }

    #[test]
    fn reading_stops_when_the_time_is_over() {
        let memory = [Some(10); 100];
        let read = |left: u64| {
            let mut few = Few { made: made(&memory), left };
            Pools::new(POOL, 0, true).read(START, START + 100 * POOL, &all(100), &mut few)
        };
        assert_eq!(read(u64::MAX), 100 * POOL);
        let some = read(60);
        assert!(some > 0 && some < 40 * POOL, "{some}");
        assert_eq!(read(0), 0);
    }

    #[test]
    fn the_size_of_pools_follows_from_the_version() {
        let python = |version: &str, free_threaded| {
            pool_bytes(&Runtime::Cpython { version: version.into(), free_threaded })
        };
        assert_eq!(python("3.9.18", false), Some(4 << 10));
        assert_eq!(python("3.10.0", false), Some(16 << 10));
        assert_eq!(python("3.13.1+", false), Some(16 << 10));
        assert_eq!(python("3.13.1", true), None);
        assert_eq!(pool_bytes(&Runtime::Native), None);
    }
}
