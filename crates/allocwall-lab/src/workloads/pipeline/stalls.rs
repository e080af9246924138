//! Detects stalls. A thread that spins all the time can see when it did not run: the time between two readings of the clock is longer
//! than its loop takes.
//!
//! If the thread only waited or did known work between the readings, the machine caused the stall: an interrupt, another thread, or
//! the hypervisor. If it allocated or freed, the allocator caused the stall, unless the kernel's accounts say that the thread did not
//! run: it was switched out involuntarily, or its CPU clock did not advance (the kernel subtracts steal).

use allocwall_host::clock::thread_cpu_ns;
use allocwall_host::cycles::Cycles;
use allocwall_host::memory::thread_counts;

/// Start and end, in cycles.
pub type Span = (u64, u64);

/// Number of entries that are allocated and touched before the run.
const ROOM: usize = 1 << 16;

/// An allocation that is shorter than this many thresholds cannot contain a context switch or steal, so the kernel is not asked. Asking
/// for each allocation of some hundred nanoseconds would cause the largest stalls of all.
const SWITCH: u64 = 10;

/// The source of the readings: the machine, or the script of a test.
pub trait Readings {
    /// Cycles since a fixed moment.
    fn now(&self) -> u64;
    fn ns(&self, cycles: u64) -> f64;
    /// CPU time of the calling thread.
    fn cpu_ns(&self) -> u64;
    /// Number of involuntary context switches of the calling thread.
    fn involuntary_switches(&self) -> u64;
}

impl Readings for Cycles {
    #[inline(always)]
    fn now(&self) -> u64 {
        Cycles::now(*self)
    }

    fn ns(&self, cycles: u64) -> f64 {
        Cycles::ns(*self, cycles)
    }

    fn cpu_ns(&self) -> u64 {
        thread_cpu_ns()
    }

    fn involuntary_switches(&self) -> u64 {
        thread_counts().involuntary_switches
    }
}

/// The owner of a long allocation or free.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Whose {
    Order,
    Pressure,
}

pub struct Watch<R = Cycles> {
    readings: R,
    threshold: u64,
    last: u64,
    pub stalls: Vec<Span>,
    /// Allocations and frees that took longer than the threshold, without evidence from the kernel that the machine caused it.
    pub long: Vec<Span>,
    /// Heap-pressure blocks that took long and were not stalls of the machine, including the time to ask the kernel. Orders waited for
    /// them only because heap pressure and orders share a thread.
    pub held: Vec<Span>,
    /// Cycles in which the thread allocated or freed. A stall in this time may be attributed to the allocator.
    covered: u64,
    /// Stalls of the machine in this time, according to the kernel.
    confirmed: u64,
    began: u64,
    /// A long allocation or free for which the kernel has not been asked yet.
    open: Option<(Span, Whose)>,
    account: Account,
}

/// The kernel's counters of the thread, and the time of the reading.
struct Account {
    at: u64,
    cpu_ns: u64,
    switches: u64,
}

impl Account {
    fn now(readings: &impl Readings) -> Account {
        let switches = readings.involuntary_switches();
        Account { cpu_ns: readings.cpu_ns(), at: readings.now(), switches }
    }
}

impl<R: Readings> Watch<R> {
    pub fn new(readings: R, threshold: u64) -> Watch<R> {
        let room = || {
            let mut room = vec![(1, 1); ROOM];
            room.clear();
            room
        };
        let now = readings.now();
        let account = Account::now(&readings);
        Watch {
            readings,
            threshold,
            last: now,
            stalls: room(),
            long: room(),
            held: room(),
            covered: 0,
            confirmed: 0,
            began: now,
            open: None,
            account,
        }
    }

    /// Starts the measurement; earlier events are ignored.
    pub fn start(&mut self) {
        self.account = Account::now(&self.readings);
        self.last = self.readings.now();
        self.began = self.last;
    }

    /// The estimated number of stalls of the machine that hit an allocation or a free and were attributed to the allocator. It is
    /// estimated from the rate of the other stalls; `found` of them were detected in another way.
    pub fn expected_unseen(&self, found: usize) -> f64 {
        let whole = self.last.saturating_sub(self.began);
        let open = whole.saturating_sub(self.covered);
        let seen = self.stalls.len() as f64 - self.confirmed as f64;
        let expected = match open {
            0 => 0.0,
            open => seen / open as f64 * self.covered as f64,
        };
        (expected - self.confirmed as f64 - found as f64).max(0.0)
    }

    /// The thread only waited since the last reading.
    #[inline(always)]
    pub fn waited(&mut self, now: u64) {
        self.computed(now, 0);
    }

    /// The thread did known work that takes `usual` cycles; more time is a stall of the machine.
    #[inline(always)]
    pub fn computed(&mut self, now: u64, usual: u64) {
        self.last =
            if now.wrapping_sub(self.last) > self.threshold + usual { self.stalled(now) } else { now };
    }

    /// The stall includes the time to ask the kernel, which takes about as long as the threshold.
    #[cold]
    fn stalled(&mut self, now: u64) -> u64 {
        let Some(open) = self.open.take() else {
            self.account = Account::now(&self.readings);
            self.stalls.push((self.last, self.account.at));
            return self.readings.now();
        };
        let ((from, until), whose) = open;
        let machine = self.settle((from, until));
        if now.wrapping_sub(until) > self.threshold {
            self.stalls.push((until, now));
        }
        // Asking the kernel delays the next order. After a stall of the allocator this delay does not count as a stall of the machine:
        // otherwise the orders that wait for the allocator would count as disturbed.
        match (machine, whose) {
            (true, _) => self.stalls.push((now, self.account.at)),
            (false, Whose::Pressure) => self.held.push((from, self.account.at)),
            (false, Whose::Order) => self.long.push((from, until)),
        }
        self.readings.now()
    }

    /// The thread allocated or freed since the last reading. If this took long, the kernel is asked at the next reading, after the order
    /// was sent, so that the time for asking is not part of the order's time.
    #[inline(always)]
    pub fn allocated(&mut self, now: u64) {
        self.took(now, Whose::Order);
    }

    /// The same for a heap-pressure block, which belongs to no order.
    #[inline(always)]
    pub fn pressed(&mut self, now: u64) {
        self.took(now, Whose::Pressure);
    }

    #[inline(always)]
    fn took(&mut self, now: u64, whose: Whose) {
        let took = now.wrapping_sub(self.last);
        self.covered += took;
        self.last = now;
        if took > self.threshold {
            self.took_long((now - took, now), whose);
        }
    }

    #[cold]
    fn took_long(&mut self, span: Span, whose: Whose) {
        if span.1 - span.0 < SWITCH * self.threshold {
            self.long.push(span);
            return;
        }
        self.open = Some((span, whose));
        // With 0, the next reading always counts as late, so that the kernel is asked.
        self.last = 0;
    }

    /// Whether the machine caused a long allocation or free.
    fn settle(&mut self, open: Span) -> bool {
        let before = std::mem::replace(&mut self.account, Account::now(&self.readings));
        let account = &self.account;
        let wall = self.readings.ns(account.at.wrapping_sub(before.at));
        let lost = wall - (account.cpu_ns.saturating_sub(before.cpu_ns)) as f64;
        let took = self.readings.ns(open.1 - open.0);
        let machine = account.switches > before.switches || lost > took / 2.0;
        if machine {
            self.confirmed += 1;
            self.stalls.push(open);
        }
        machine
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::time::Duration;

    const THRESHOLD: u64 = 1_000;
    /// Time to ask the kernel.
    const ASKING: u64 = 700;

    /// A thread on a machine on which one cycle is one nanosecond.
    #[derive(Default)]
    struct Script {
        now: Cell<u64>,
        cpu: Cell<u64>,
        switches: Cell<u64>,
        asked: Cell<u64>,
    }

    impl Readings for &Script {
        fn now(&self) -> u64 {
            self.now.get()
        }

        fn ns(&self, cycles: u64) -> f64 {
            cycles as f64
        }

        fn cpu_ns(&self) -> u64 {
            self.asked.set(self.asked.get() + 1);
            self.runs(ASKING);
            self.cpu.get()
        }

        fn involuntary_switches(&self) -> u64 {
            self.switches.get()
        }
    }

    impl Script {
        fn runs(&self, ns: u64) -> u64 {
            self.cpu.set(self.cpu.get() + ns);
            self.stopped(ns)
        }

        /// The thread does not run: another thread or the hypervisor has the CPU.
        fn stopped(&self, ns: u64) -> u64 {
            self.now.set(self.now.get() + ns);
            self.now.get()
        }

        fn watch(&self) -> Watch<&Script> {
            self.stopped(5_000_000);
            let mut watch = Watch::new(self, THRESHOLD);
            watch.start();
            watch
        }
    }

    #[test]
    fn a_gap_is_a_stall_and_work_is_none() {
        let script = Script::default();
        let mut watch = script.watch();
        for _ in 0..100 {
            watch.waited(script.runs(THRESHOLD));
        }
        watch.computed(script.runs(THRESHOLD + 200), 200);
        assert_eq!(watch.stalls, []);
        let from = script.now.get();
        watch.waited(script.runs(THRESHOLD + 1));
        // It includes the time to ask the kernel; there is no stall after it.
        assert_eq!(watch.stalls, [(from, from + THRESHOLD + 1 + ASKING)]);
        watch.waited(script.runs(THRESHOLD));
        watch.computed(script.runs(THRESHOLD + 201), 200);
        assert_eq!(watch.stalls.len(), 2);
        assert!(watch.long.is_empty() && watch.held.is_empty());
    }

    #[test]
    fn a_long_allocation_is_the_allocators_unless_the_thread_did_not_run() {
        // What happens in the allocation, and whether the machine caused it.
        type Happens = fn(&Script);
        let cases: [(Happens, bool); 5] = [
            (|script| _ = script.runs(2_000_000), false),
            (|script| _ = script.stopped(2_000_000), true),
            // The CPU clock stops for less than half of the time, and for more.
            (|script| _ = (script.stopped(900_000), script.runs(1_100_000)), false),
            (|script| _ = (script.stopped(1_100_000), script.runs(900_000)), true),
            (
                |script| {
                    script.switches.set(script.switches.get() + 1);
                    script.runs(2_000_000);
                },
                true,
            ),
        ];
        for (n, (happens, machine)) in cases.into_iter().enumerate() {
            let script = Script::default();
            let mut watch = script.watch();
            let from = script.now.get();
            happens(&script);
            let span = (from, from + 2_000_000);
            watch.allocated(script.now.get());
            // The kernel is asked after the order was sent.
            let asked = script.asked.get();
            watch.waited(script.runs(50));
            assert_eq!(script.asked.get(), asked + 1, "case {n}");
            assert_eq!(watch.confirmed, u64::from(machine), "case {n}");
            assert_eq!(watch.covered, 2_000_000, "case {n}");
            if machine {
                assert!(watch.stalls[0] == span && watch.long.is_empty(), "case {n}")
            } else {
                assert!(watch.long == [span] && watch.stalls.is_empty(), "case {n}")
            }
        }
    }

    #[test]
    fn the_kernel_is_not_asked_for_short_allocations() {
        let script = Script::default();
        let mut watch = script.watch();
        let asked = script.asked.get();
        watch.allocated(script.runs(THRESHOLD));
        watch.allocated(script.runs(SWITCH * THRESHOLD - 1));
        watch.waited(script.runs(50));
        assert_eq!((script.asked.get(), watch.long.len()), (asked, 1));
        watch.allocated(script.runs(SWITCH * THRESHOLD));
        watch.waited(script.runs(50));
        assert_eq!((script.asked.get(), watch.long.len()), (asked + 1, 2));
    }

    #[test]
    fn a_stall_between_a_long_allocation_and_the_next_reading_is_the_machines() {
        let script = Script::default();
        let mut watch = script.watch();
        let until = script.runs(2_000_000);
        watch.allocated(until);
        let now = script.runs(THRESHOLD + 1);
        watch.waited(now);
        assert_eq!(watch.long, [(until - 2_000_000, until)]);
        assert_eq!(watch.stalls, [(until, now)]);
    }

    #[test]
    fn a_long_block_of_the_pressure_is_set_apart_and_a_short_one_and_an_orders_are_not() {
        let script = Script::default();
        let mut watch = script.watch();
        let from = script.now.get();
        let until = script.runs(2_000_000);
        watch.pressed(until);
        watch.waited(script.runs(50));
        // Includes the time to ask the kernel, because an order may wait for this, too.
        assert_eq!(watch.held, [(from, until + 50 + ASKING)]);
        watch.pressed(script.runs(SWITCH * THRESHOLD - 1));
        watch.waited(script.runs(50));
        watch.allocated(script.runs(2_000_000));
        watch.waited(script.runs(50));
        assert_eq!((watch.confirmed, watch.held.len(), watch.long.len()), (0, 1, 2));
    }

    /// Also passes on a busy machine, because a sleeping thread uses no CPU time.
    #[test]
    fn the_machines_own_readings_separate_a_sleep_from_work() {
        let cycles = Cycles::start(10_000_000);
        let mut watch = Watch::new(cycles, cycles.of_ns(50_000.0));
        watch.start();
        std::thread::sleep(Duration::from_millis(20));
        watch.allocated(cycles.now());
        watch.waited(cycles.now());
        assert_eq!((watch.confirmed, watch.long.len()), (1, 0));
        assert!(cycles.ns(watch.covered) >= 19.9e6);
    }
}
