//! Combines the results of the threads: which orders were disturbed, and how long all orders took.

use super::Thread;
use super::stalls::Span;
use crate::pipeline::{Measure, Pair, Role, RunResult, Spec, ThreadResult};
use allocwall_host::cycles::Cycles;
use std::collections::BTreeMap;

/// The times of one order: 24 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Cycles since the first intended arrival.
    intended: u64,
    /// Cycles from each time stamp to the next: allocated, dequeued, checked, freed. The maximum is above one second; longer times
    /// count as the maximum.
    stages: [u32; 4],
}

impl Record {
    /// Not zero, so that writing it touches the page.
    pub const TOUCHED: Record = Record { intended: 1, stages: [1; 4] };

    /// `stamps`: intended, allocated, dequeued, checked, freed.
    #[inline]
    pub fn of(start: u64, stamps: [u64; 5]) -> Record {
        let stage = |n: usize| u32::try_from(stamps[n + 1].saturating_sub(stamps[n])).unwrap_or(u32::MAX);
        Record { intended: stamps[0].saturating_sub(start), stages: [stage(0), stage(1), stage(2), stage(3)] }
    }

    fn cycles(&self, measure: Measure) -> u64 {
        let sum = |stages: &[u32]| stages.iter().map(|s| u64::from(*s)).sum();
        match measure {
            Measure::Dequeue => sum(&self.stages[..2]),
            Measure::Done => sum(&self.stages),
            Measure::Arrive => sum(&self.stages[..1]),
            Measure::Queue => sum(&self.stages[1..2]),
            Measure::Check => sum(&self.stages[2..3]),
            Measure::Free => sum(&self.stages[3..]),
        }
    }

    fn allocated(&self) -> u64 {
        self.intended + self.cycles(Measure::Arrive)
    }

    fn done(&self) -> u64 {
        self.intended + self.cycles(Measure::Done)
    }
}

/// The usual rates, per second, of timer ticks of the kernel and of a hypervisor's kernel.
const TICKS: [f64; 4] = [1000.0, 250.0, 300.0, 100.0];
/// Tolerance for the start of a stall at a tick. Over some milliseconds a tick is exact to one microsecond.
const JITTER_NS: f64 = 2000.0;
/// The number of ticks before and after that are checked. At some of them the tick also hit an allocation.
const REACH: u64 = 8;
/// The number of stalls that must be at these ticks.
const ROW: usize = 3;
/// A stall may be at most this many times as long as the longest of these stalls.
const LONGER: u64 = 3;

/// Long allocations and frees that the machine caused: there are stalls of the machine a whole number of ticks before and after. Timer
/// interrupts come in such rows, and the kernel does not report that one hit an allocation. With 1,000 stalls per second, the probability
/// that three stalls match a stall of the allocator by chance is less than 1 in 1,000, for all four rates together.
fn in_a_row(long: &[Span], stalls: &[Span], cycles: Cycles) -> Vec<Span> {
    let jitter = cycles.of_ns(JITTER_NS);
    let near = |at: u64| {
        let first = stalls.partition_point(|(from, _)| *from < at.saturating_sub(jitter));
        stalls.get(first).filter(|(from, _)| *from <= at + jitter).map(|(from, to)| to - from)
    };
    let in_row = |(from, to): &Span| {
        TICKS.iter().any(|per_s| {
            let tick = cycles.of_ns(1e9 / per_s);
            let places = (1..=REACH).flat_map(|n| [from.saturating_sub(n * tick), from + n * tick]);
            let row: Vec<u64> = places.filter_map(near).collect();
            row.len() >= ROW && row.iter().max().is_some_and(|longest| to - from <= LONGER * longest)
        })
    };
    long.iter().filter(|span| in_row(span)).copied().collect()
}

/// Sorts the spans and merges those that touch.
fn merged(mut spans: Vec<Span>) -> Vec<Span> {
    spans.sort_unstable();
    let mut merged: Vec<Span> = Vec::with_capacity(spans.len());
    for (from, to) in spans {
        match merged.last_mut() {
            Some(last) if from <= last.1 => last.1 = last.1.max(to),
            _ => merged.push((from, to)),
        }
    }
    merged
}

/// Stalls of the threads that handle an order, and heap-pressure blocks that delayed orders. Merged, in the records' clock.
struct Stalls {
    producers: Vec<Span>,
    consumers: Vec<Span>,
}

/// Which records had a stall, or waited for a disturbed order: because the producer or the consumer was still busy with it. A stall of
/// the producer affects orders that are not sent yet; it may begin at the end of the allocation at the latest. A stall of the consumer
/// affects orders that are allocated and not done.
/// `records` are those of one consumer, in the order in which it received them.
fn disturbed<'a>(records: &'a [Record], stalls: &'a Stalls) -> impl Iterator<Item = bool> + 'a {
    // The first stall that ends at or after `from` must begin before or at `to`.
    let met = |spans: &[Span], from: u64, to: u64| {
        let first = spans.partition_point(|(_, end)| *end < from);
        spans.get(first).is_some_and(|(begin, _)| *begin <= to)
    };
    let mut before = (false, 0, 0);
    records.iter().map(move |record| {
        let met = met(&stalls.producers, record.intended, record.allocated())
            || met(&stalls.consumers, record.allocated(), record.done().saturating_sub(1));
        let (disturbed, allocated, freed) = before;
        let behind = disturbed && (allocated > record.intended || freed > record.allocated());
        before = (met || behind, record.allocated(), record.done());
        before.0
    })
}

pub fn run_result(
    spec: &Spec,
    cycles: Cycles,
    start: u64,
    threads: &mut [Thread],
    stolen_ns: Option<u64>,
    threshold: u64,
) -> RunResult {
    let consumed = || threads.iter().filter(|t| t.role == Role::Consumer);
    // The warm-up orders are those with the earliest intended arrivals.
    let total = spec.warm_up + spec.timed;
    let mut intended: Vec<u64> = consumed().flat_map(|t| &t.records).map(|r| r.intended).collect();
    let from = match total - spec.timed {
        0 => 0,
        warm => *intended.select_nth_unstable(warm).1,
    };
    let all = || consumed().flat_map(|t| &t.records).filter(|r| r.intended >= from);
    let orders = all().count() as u64;
    let last = all().map(Record::done).max().unwrap_or(from);
    let achieved = orders as f64 / (cycles.ns(last.saturating_sub(from)) / 1e9).max(1e-9);

    let mut unseen = 0.0;
    for thread in threads.iter_mut() {
        let rows = |long: &[Span]| in_a_row(long, &thread.watch.stalls, cycles);
        let (row, held) = (rows(&thread.watch.long), rows(&thread.watch.held));
        unseen += thread.watch.expected_unseen(row.len() + held.len());
        thread.watch.stalls.extend(row);
    }
    let relative = |at: u64| at.saturating_sub(start);
    let of = |role: Role| {
        let spans = threads
            .iter()
            .filter(|t| t.role == role)
            .flat_map(|t| t.watch.stalls.iter().chain(&t.watch.held));
        merged(spans.map(|(from, to)| (relative(*from), relative(*to))).collect())
    };
    let stalls = Stalls { producers: of(Role::Producer), consumers: of(Role::Consumer) };

    let timed = |span: &&Span| relative(span.1) >= from;
    let whole_s = (cycles.ns(last) / 1e9).max(1e-9);
    let blocks = threads.iter().map(|t| t.blocks).sum::<u64>();
    RunResult {
        variant: spec.variant,
        orders,
        achieved,
        handoff_ns: threads.iter().find_map(|t| t.handoff_ns),
        clock: cycles.source().title().to_owned(),
        threshold_ns: cycles.ns(threshold),
        latencies: spec.rate.map_or_else(BTreeMap::new, |_| latencies(threads, &stalls, from, cycles)),
        threads: threads.iter().map(|thread| thread_result(thread, cycles, &timed)).collect(),
        refused: threads.iter().map(|t| t.refused).sum(),
        pressure_per_s: blocks as f64 / whole_s,
        stolen_ns,
        unseen,
    }
}

/// The latencies of the orders that were due at `from` or later.
fn latencies(threads: &[Thread], stalls: &Stalls, from: u64, cycles: Cycles) -> BTreeMap<Measure, Pair> {
    let mut latencies: BTreeMap<Measure, Pair> = BTreeMap::new();
    for thread in threads.iter().filter(|t| t.role == Role::Consumer) {
        for (record, disturbed) in thread.records.iter().zip(disturbed(&thread.records, stalls)) {
            if record.intended < from {
                continue;
            }
            for measure in Measure::ALL {
                let ns = cycles.ns(record.cycles(measure)) as u64;
                let pair = latencies.entry(measure).or_default();
                pair.all.record(ns);
                if !disturbed {
                    pair.undisturbed.record(ns);
                }
            }
        }
    }
    latencies
}

/// `timed`: whether a span ended in the measured part.
fn thread_result(thread: &Thread, cycles: Cycles, timed: &dyn Fn(&&Span) -> bool) -> ThreadResult {
    let took = |span: &Span| cycles.ns(span.1 - span.0);
    let stalls: Vec<f64> = thread.watch.stalls.iter().filter(timed).map(took).collect();
    ThreadResult {
        role: thread.role,
        cpu: thread.cpu,
        stalls: stalls.len() as u64,
        stalled_ns: stalls.iter().sum(),
        longest_ns: stalls.iter().copied().fold(0.0, f64::max),
        held: thread.watch.held.iter().filter(timed).count() as u64,
        held_ns: thread.watch.held.iter().filter(timed).map(took).sum(),
        involuntary_switches: thread.switches,
        minor_faults: thread.faults,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The intended arrival, then the four stages.
    fn record(intended: u64, stages: [u32; 4]) -> Record {
        Record { intended, stages }
    }

    #[test]
    fn stages_add_up_to_the_whole_way() {
        let record = Record::of(1000, [1100, 1130, 1200, 1400, 1410]);
        assert_eq!(record, self::record(100, [30, 70, 200, 10]));
        let taken = Measure::ALL.map(|measure| record.cycles(measure));
        assert_eq!(taken, [100, 310, 30, 70, 200, 10]);
        assert_eq!(record.done(), 410);
        // A time stamp that is missing (0) or far away must not cause a panic.
        assert_eq!(Record::of(5, [0, 0, u64::MAX, 1, 2]).stages, [0, u32::MAX, 0, 1]);
    }

    #[test]
    fn orders_with_a_stall_and_orders_that_wait_for_them_are_disturbed() {
        let quick = [10, 10, 10, 10];
        let of = |producers: &[Span], consumers: &[Span], records: &[Record]| -> Vec<bool> {
            let stalls = Stalls { producers: producers.to_vec(), consumers: consumers.to_vec() };
            disturbed(records, &stalls).collect()
        };
        let records = [
            record(0, quick),
            // A consumer's stall is from 120 to 500.
            record(100, [10, 400, 10, 10]),
            // Arrives during the stall.
            record(200, [10, 310, 10, 10]),
            // Arrives after the stall, but is allocated before the consumer is done with the order before.
            record(520, [10, 20, 10, 10]),
            // Arrives while the order before is in transit, but does not wait for it.
            record(560, [20, 10, 10, 10]),
            // As long as these, but without a stall nearby: caused by the allocator.
            record(900, [400, 10, 10, 10]),
        ];
        assert_eq!(of(&[], &[(120, 500)], &records), [false, true, true, true, false, false]);
        assert!(!of(&[], &[], &records).contains(&true));
        // A producer's stall that begins when the allocation ends delays the sending. One that begins later delays only the next order.
        let pair = [record(100, [50, 40, 10, 10]), record(220, quick)];
        assert_eq!(of(&[(150, 160)], &[], &pair), [true, false]);
        assert_eq!(of(&[(155, 170)], &[], &pair), [false, false]);
        assert_eq!(of(&[(155, 225)], &[], &pair), [false, true]);
        // A consumer's stall that begins when an order is done delays the next order.
        assert_eq!(of(&[], &[(210, 232)], &pair), [false, true]);
    }

    #[test]
    fn spans_that_touch_are_one() {
        assert_eq!(merged(vec![(50, 60), (1, 5), (4, 9), (9, 10)]), [(1, 10), (50, 60)]);
    }

    #[test]
    fn a_stall_in_a_row_of_ticks_is_the_machines_and_one_beside_it_is_not() {
        let cycles = Cycles::start(5_000_000);
        let at = |us: f64| 1_000_000_000 + cycles.of_ns(us * 1000.0);
        let span = |us: f64, long: f64| (at(us), at(us + long));
        // One tick per millisecond; the third, the fourth and the sixth hit allocations.
        let stalls = [span(0.0, 10.0), span(1000.0, 9.0), span(4001.0, 11.0), span(6000.0, 10.0)];
        let hit = [span(2000.5, 12.0), span(2999.5, 12.0), span(4999.0, 9.0)];
        let [beside, longer] = [span(2400.0, 12.0), span(2000.5, 60.0)];
        let long = [hit[0], beside, longer, hit[1], hit[2]];
        assert_eq!(in_a_row(&long, &stalls, cycles), hit);
        // Two stalls are not enough.
        assert_eq!(in_a_row(&hit, &stalls[..2], cycles), []);
        // Three stalls that are not at the ticks do not count.
        let astray = [span(3.0, 10.0), span(1004.0, 9.0), span(3996.0, 11.0)];
        assert_eq!(in_a_row(&[span(2000.0, 10.0)], &astray, cycles), []);
    }
}
