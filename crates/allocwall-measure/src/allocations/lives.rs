//! How the blocks of one process live: sums by size and age, and what its exact counters show over time.

use super::layout::Event;
use allocwall_model::allocations::{BANDS, BandLives, Calls, End, Life, Lives, age_band_of, band_of};
use allocwall_model::stats::median;
use allocwall_model::units::{Absence, Measured, Reason};
use std::collections::{BTreeMap, HashMap};

/// Readings of the counters that make one window.
const WINDOW: usize = 16;
/// A window with fewer readings says nothing.
const LEAST_READINGS: usize = 8;
const MOST_WINDOWS: usize = 1024;
/// The most threads whose last free is remembered.
const MOST_THREADS: usize = 1024;
/// Two blocks are freed together if both were in use for so many times the time between their frees. Our choice.
const TOGETHER: u64 = 8;
/// Fewer pairs of frees say nothing about their order.
const LEAST_PAIRS: u64 = 20;

#[derive(Clone, Debug)]
pub struct LivesTally {
    /// By band of sizes; without ages.
    bands: Vec<BandLives>,
    /// Blocks by band of sizes, band of ages and end.
    ended: BTreeMap<(u8, u8, End), f64>,
    order: Order,
    swing: Swing,
    /// New blocks, and the CPU time until then, at the last reading of both.
    rate: Option<(u64, u64)>,
}

impl Default for LivesTally {
    fn default() -> LivesTally {
        let empty =
            |band| BandLives { band, new: 0.0, zeroed: 0.0, resized: 0.0, kept: 0.0, ended: Vec::new() };
        LivesTally {
            bands: (0..BANDS as u8).map(empty).collect(),
            ended: BTreeMap::new(),
            order: Order::default(),
            swing: Swing::default(),
            rate: None,
        }
    }
}

impl LivesTally {
    /// A call was sampled, with this chance.
    pub fn allocated(&mut self, event: &Event, chance: f64) {
        let band = &mut self.bands[band_of(event.size)];
        if event.by_realloc {
            band.resized += 1.0 / chance;
        } else {
            band.new += 1.0 / chance;
            band.zeroed += if event.zeroed { 1.0 / chance } else { 0.0 };
        }
    }

    /// A block ended that was sampled and followed, with this chance.
    pub fn ended(&mut self, event: &Event, age_ns: u64, chance: f64) {
        let end = match (event.by_realloc, event.tid == event.origin) {
            (true, _) => End::Resized,
            (false, true) => End::Freed,
            (false, false) => End::FreedElsewhere,
        };
        let key = (band_of(event.size) as u8, age_band_of(age_ns) as u8, end);
        *self.ended.entry(key).or_default() += 1.0 / chance;
        if !event.by_realloc {
            self.order.add(event);
        }
    }

    /// A block is in use at the end that was sampled and followed, with this chance.
    pub fn kept(&mut self, size: u64, chance: f64) {
        self.bands[band_of(size)].kept += 1.0 / chance;
    }

    /// The counters of all threads together were read.
    pub fn read(&mut self, calls: &Calls, cpu_ns: Option<u64>) {
        let (new, gone) = (calls.allocations(), calls.frees.saturating_add(calls.realloc_freed));
        self.swing.add(new as f64 - gone as f64);
        if let Some(cpu_ns) = cpu_ns {
            self.rate = Some((new, cpu_ns));
        }
    }

    pub fn finish(&self) -> Lives {
        let mut bands = self.bands.clone();
        for ((band, age, end), blocks) in &self.ended {
            bands[usize::from(*band)].ended.push(Life { age: *age, end: *end, blocks: *blocks });
        }
        bands.retain(|band| band.new + band.resized + band.kept > 0.0 || !band.ended.is_empty());
        let per_cpu_ns = match self.rate {
            Some((new, cpu_ns)) if new > 0 && cpu_ns > 0 => Ok(new as f64 / cpu_ns as f64),
            _ => Err(too_little("the process ended before its CPU time was read")),
        };
        let (swing, fewest) = self.swing.medians();
        Lives { bands, swing, fewest, reversed: self.order.reversed(), per_cpu_ns }
    }
}

/// In which order threads free the blocks that they free together. Blocks that end one after the other, as those of a buffer that grows
/// among blocks that stay, say nothing about it.
#[derive(Clone, Debug, Default)]
struct Order {
    /// By thread: when its last freed block was allocated, and freed. Ticks.
    last: HashMap<u32, (u64, u64)>,
    pairs: u64,
    reversed: u64,
}

impl Order {
    fn add(&mut self, freed: &Event) {
        if self.last.len() >= MOST_THREADS && !self.last.contains_key(&freed.tid) {
            return;
        }
        let Some((born, ended)) = self.last.insert(freed.tid, (freed.born, freed.ticks)) else { return };
        let both = ended.saturating_sub(born.max(freed.born));
        if both > 0
            && freed.ticks.checked_sub(ended).is_some_and(|apart| apart.saturating_mul(TOGETHER) <= both)
        {
            self.pairs += 1;
            self.reversed += u64::from(freed.born < born);
        }
    }

    fn reversed(&self) -> Measured<f64> {
        match self.pairs {
            LEAST_PAIRS.. => Ok(self.reversed as f64 / self.pairs as f64),
            _ => Err(too_little("too few sampled blocks that lived at the same time were freed")),
        }
    }
}

/// How far the number of blocks in use goes up and down.
///
/// A program that frees the blocks of a request together has, at random moments, any number of them from none to all. Lifetimes
/// alone do not show that: if each block ended by itself, the number would be nearly constant.
#[derive(Clone, Debug, Default)]
struct Swing {
    readings: Vec<f64>,
    /// The swing of each window, and its fewest blocks in use.
    windows: Vec<(f64, f64)>,
}

impl Swing {
    fn add(&mut self, in_use: f64) {
        self.readings.push(in_use);
        if self.readings.len() == WINDOW {
            if self.windows.len() < MOST_WINDOWS {
                self.windows.push((swing(&self.readings), fewest(&self.readings)));
            }
            self.readings.clear();
        }
    }

    /// Of the swings, and of the fewest blocks in use.
    fn medians(&self) -> (Measured<f64>, Measured<f64>) {
        let mut windows = self.windows.clone();
        if windows.is_empty() && self.readings.len() >= LEAST_READINGS {
            windows.push((swing(&self.readings), fewest(&self.readings)));
        }
        let (swings, fewest): (Vec<f64>, Vec<f64>) = windows.into_iter().unzip();
        let of = |values: &[f64]| {
            median(values)
                .ok_or_else(|| too_little("the process ended before its counters were read often enough"))
        };
        (of(&swings), of(&fewest))
    }
}

/// The range of the readings without their growth. A few readings miss a part of the range of uniform values, which is added.
fn swing(readings: &[f64]) -> f64 {
    let half = readings.len() / 2;
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
    let apart = readings.len() - half;
    let growth = (mean(&readings[apart..]) - mean(&readings[..half])) / apart as f64;
    let level = readings.iter().enumerate().map(|(at, reading)| reading - growth * at as f64);
    let (low, high) =
        level.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), one| (one.min(low), one.max(high)));
    let count = readings.len() as f64;
    (high - low) * (count + 1.0) / (count - 1.0)
}

fn fewest(readings: &[f64]) -> f64 {
    // Threads are not read at the same moment, so a block may seem to end before it began.
    readings.iter().copied().fold(f64::INFINITY, f64::min).max(0.0)
}

fn too_little(why: &str) -> Absence {
    Absence::new(Reason::TooLittle, why)
}

#[cfg(test)]
mod tests {
    use super::super::layout::{EventKind, NoStack};
    use super::*;
    use allocwall_model::stats::random::Random;

    fn freed(size: u64, born: u64, ticks: u64) -> Event {
        Event {
            position: 0,
            kind: EventKind::Freed,
            by_realloc: false,
            zeroed: false,
            followed: true,
            ticks,
            size,
            distance: 1,
            rank: 0,
            stack: Err(NoStack::Unknown),
            born,
            latency: None,
            noted: false,
            tid: 7,
            origin: 7,
        }
    }

    #[test]
    fn blocks_are_told_apart_by_size_age_and_end() {
        let mut tally = LivesTally::default();
        let block = freed(4096, 0, 500);
        tally.allocated(&Event { kind: EventKind::Allocated, zeroed: true, ..block }, 0.5);
        tally.allocated(&Event { kind: EventKind::Allocated, ..block }, 0.5);
        tally.allocated(&Event { kind: EventKind::Allocated, by_realloc: true, size: 8192, ..block }, 0.25);
        tally.ended(&block, 500, 0.5);
        tally.ended(&Event { tid: 8, ..block }, 500, 0.5);
        tally.ended(&Event { by_realloc: true, tid: 8, ..block }, 5_000_000, 0.25);
        tally.kept(8192, 0.1);
        let lives = tally.finish();
        let [small, large] = &lives.bands[..] else { panic!("{lives:?}") };
        assert_eq!((small.new, small.zeroed, small.resized, small.kept), (4.0, 2.0, 0.0, 0.0));
        assert_eq!((large.new, large.resized, large.kept, large.ended.len()), (0.0, 4.0, 10.0, 0));
        let ended: Vec<_> = small.ended.iter().map(|life| (life.age, life.end, life.blocks)).collect();
        assert_eq!(ended, [(3, End::Freed, 2.0), (3, End::FreedElsewhere, 2.0), (10, End::Resized, 4.0)]);
        for missing in [lives.swing, lives.fewest, lives.reversed, lives.per_cpu_ns] {
            assert_eq!(missing.unwrap_err().reason, Reason::TooLittle);
        }
    }

    #[test]
    fn the_order_of_frees_is_known_where_blocks_lived_at_the_same_time() {
        // Requests of four blocks each; the twin frees the first one first. `apart`: each block ends before the next one begins.
        let of = |reverse: bool, apart: bool| {
            let mut order = Order::default();
            for request in 0..20_u64 {
                for at in 0..4 {
                    let born = if reverse { 3 - at } else { at };
                    let base = request * 100;
                    let block = if apart {
                        freed(64, base + 20 * at, base + 20 * at + 10)
                    } else {
                        freed(64, base + born, base + 50 + at)
                    };
                    order.add(&block);
                }
            }
            order.reversed()
        };
        assert_eq!((of(true, false), of(false, false)), (Ok(1.0), Ok(0.0)));
        // A list of buffers: the last one is replaced by a larger one at times. Then all end, the oldest first.
        let mut order = Order::default();
        for list in 0..20_u64 {
            let base = list * 10_000;
            (0..9).for_each(|at| order.add(&freed(64, base + at * 100, base + at * 100 + 150)));
            (0..4).for_each(|at| order.add(&freed(64, base + at * 100 + 50, base + 5_000 + at)));
        }
        assert_eq!(order.reversed(), Ok(0.0));
        assert_eq!(of(true, true).unwrap_err().reason, Reason::TooLittle);
    }

    /// The median swing and the median of the fewest blocks of a program that is read at random moments.
    fn medians_of(in_use: impl Fn(f64, usize) -> f64) -> (f64, f64) {
        let (mut swing, mut random) = (Swing::default(), Random::new(3));
        (0..400).for_each(|at| swing.add(in_use(random.unit(), at)));
        let (swing, fewest) = swing.medians();
        (swing.unwrap(), fewest.unwrap())
    }

    #[test]
    fn requests_swing_and_growth_does_not() {
        let (requests, fewest) = medians_of(|phase, _| 1000.0 + 750.0 * phase);
        assert!((650.0..1000.0).contains(&requests), "{requests}");
        assert!((1000.0..1150.0).contains(&fewest), "{fewest}");
        let (grows, _) = medians_of(|phase, at| 5000.0 * at as f64 + 10.0 * phase);
        assert!(grows < 20.0, "{grows}");
        let (both, _) = medians_of(|phase, at| 500.0 * at as f64 + 750.0 * phase);
        assert!((600.0..1000.0).contains(&both), "{both}");
    }

    #[test]
    fn a_short_run_needs_some_readings() {
        let of = |readings: usize| {
            let mut swing = Swing::default();
            (0..readings).for_each(|at| swing.add((at % 2) as f64 * 100.0));
            swing.medians().0
        };
        assert!(of(LEAST_READINGS - 1).is_err());
        assert!(of(LEAST_READINGS).is_ok_and(|swing| swing > 90.0));
    }

    #[test]
    fn the_rate_is_that_of_the_last_reading_of_the_clock() {
        let mut tally = LivesTally::default();
        let calls = |malloc| Calls { malloc, ..Calls::default() };
        tally.read(&calls(1000), Some(50_000));
        // The process has ended.
        tally.read(&calls(1100), None);
        assert_eq!(tally.finish().per_cpu_ns, Ok(0.02));
    }
}
