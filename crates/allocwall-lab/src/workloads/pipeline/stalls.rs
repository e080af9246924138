//! A thread that always spins knows when it did not: two readings of the clock lie further apart than its loop takes.
//!
//! Where nothing but waiting and known work lies between them, the machine had the time: an interrupt, another thread, the hypervisor.
//! Where an allocation or a free lies between them it is the allocator's, unless the kernel's own accounts say that the thread did
//! not run: it was switched away against its will, or its CPU clock stood still (the kernel takes off what the hypervisor stole).

use allocwall_host::clock::thread_cpu_ns;
use allocwall_host::cycles::Cycles;
use allocwall_host::memory::thread_counts;

/// From and to, in cycles.
pub type Span = (u64, u64);

/// Room that is there, and touched, before the run.
const ROOM: usize = 1 << 16;

/// Times the threshold from which on a thread may have been switched away, or its CPU taken: neither is done faster, and asking the kernel
/// about every allocation that takes some hundred nanoseconds would be the largest stall of all.
const SWITCH: u64 = 10;

/// Where the readings come from: the machine, or a test's script.
pub trait Readings {
    /// Cycles since some moment.
    fn now(&self) -> u64;
    fn ns(&self, cycles: u64) -> f64;
    /// CPU time of the calling thread.
    fn cpu_ns(&self) -> u64;
    /// How often the calling thread was switched away against its will.
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

/// What took long.
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
    /// Allocations and frees that took longer than the threshold, and of which the kernel doesn't say that they were the machine's.
    pub long: Vec<Span>,
    /// Heap blocks of the pressure that took long, with the asking about them, and were not the machine's: orders that stood behind
    /// them did so only because pressure and orders share a thread.
    pub held: Vec<Span>,
    /// Cycles in which the thread allocated or freed: where a stall may pass for the allocator's.
    covered: u64,
    /// Stalls of the machine in these, by the kernel's account.
    told: u64,
    began: u64,
    /// A long one of which the kernel is still to be asked.
    open: Option<(Span, Whose)>,
    account: Account,
}

/// What the kernel says of the thread, and when it was asked.
struct Account {
    at: u64,
    cpu_ns: u64,
    switches: u64,
}

impl Account {
    fn now(readings: &impl Readings) -> Account {
        let switches = readings.involuntary_switches();
        Account {
            cpu_ns: readings.cpu_ns(),
            at: readings.now(),
            switches,
        }
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
            told: 0,
            began: now,
            open: None,
            account,
        }
    }

    /// From here on, whatever came before.
    pub fn start(&mut self) {
        self.account = Account::now(&self.readings);
        self.last = self.readings.now();
        self.began = self.last;
    }

    /// Stalls of the machine that hit an allocation or a free and passed for the allocator's, as many as are expected from those
    /// that were seen elsewhere; `found` are known otherwise.
    pub fn expected_unseen(&self, found: usize) -> f64 {
        let whole = self.last.saturating_sub(self.began);
        let open = whole.saturating_sub(self.covered);
        let seen = self.stalls.len() as f64 - self.told as f64;
        let expected = match open {
            0 => 0.0,
            open => seen / open as f64 * self.covered as f64,
        };
        (expected - self.told as f64 - found as f64).max(0.0)
    }

    /// Since the last reading there was nothing of the allocator's.
    #[inline(always)]
    pub fn waited(&mut self, now: u64) {
        self.computed(now, 0);
    }

    /// Known work that takes so long: more is the machine's.
    #[inline(always)]
    pub fn computed(&mut self, now: u64, usual: u64) {
        self.last = match now.wrapping_sub(self.last) > self.threshold + usual {
            true => self.stalled(now),
            false => now,
        };
    }

    /// The stall lasts until the kernel has been asked, which takes as long as the threshold.
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
        // Asking delays whoever comes next. Behind a stall of the allocator's it is not taken for one of the machine's: the orders that
        // stand behind the allocator would pass for disturbed with it.
        match (machine, whose) {
            (true, _) => self.stalls.push((now, self.account.at)),
            (false, Whose::Pressure) => self.held.push((from, self.account.at)),
            (false, Whose::Order) => self.long.push((from, until)),
        }
        self.readings.now()
    }

    /// Since the last reading something was allocated or freed. Where that took long the kernel is asked at the next reading, when the
    /// order is on its way: asking must not be in its time.
    #[inline(always)]
    pub fn allocated(&mut self, now: u64) {
        self.took(now, Whose::Order);
    }

    /// The same of a heap block of the pressure, which is no order's.
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
        // The next reading is far from this one, whenever it comes.
        self.last = 0;
    }

    /// Whether a long allocation or free was the machine's.
    fn settle(&mut self, open: Span) -> bool {
        let before = std::mem::replace(&mut self.account, Account::now(&self.readings));
        let account = &self.account;
        let wall = self.readings.ns(account.at.wrapping_sub(before.at));
        let lost = wall - (account.cpu_ns.saturating_sub(before.cpu_ns)) as f64;
        let took = self.readings.ns(open.1 - open.0);
        let machine = account.switches > before.switches || lost > took / 2.0;
        if machine {
            self.told += 1;
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
    /// What asking the kernel takes.
    const ASKING: u64 = 700;

    /// A thread on a machine where a cycle is a nanosecond.
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
            self.stands(ns)
        }

        /// Another thread has the CPU, or the hypervisor.
        fn stands(&self, ns: u64) -> u64 {
            self.now.set(self.now.get() + ns);
            self.now.get()
        }

        fn watch(&self) -> Watch<&Script> {
            self.stands(5_000_000);
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
        // It lasts until the kernel has been asked, and what follows is none.
        assert_eq!(watch.stalls, [(from, from + THRESHOLD + 1 + ASKING)]);
        watch.waited(script.runs(THRESHOLD));
        watch.computed(script.runs(THRESHOLD + 201), 200);
        assert_eq!(watch.stalls.len(), 2);
        assert!(watch.long.is_empty() && watch.held.is_empty());
    }

    #[test]
    fn a_long_allocation_is_the_allocators_unless_the_thread_did_not_run() {
        // What happens in the allocation, and whose it is then.
        type Happens = fn(&Script);
        let cases: [(Happens, bool); 5] = [
            (|script| _ = script.runs(2_000_000), false),
            (|script| _ = script.stands(2_000_000), true),
            // The CPU clock stands still for less than half of it, and for more.
            (
                |script| _ = (script.stands(900_000), script.runs(1_100_000)),
                false,
            ),
            (
                |script| _ = (script.stands(1_100_000), script.runs(900_000)),
                true,
            ),
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
            // The kernel is asked when the order is on its way.
            let asked = script.asked.get();
            watch.waited(script.runs(50));
            assert_eq!(script.asked.get(), asked + 1, "case {n}");
            assert_eq!(watch.told, u64::from(machine), "case {n}");
            assert_eq!(watch.covered, 2_000_000, "case {n}");
            match machine {
                true => assert!(watch.stalls[0] == span && watch.long.is_empty(), "case {n}"),
                false => assert!(watch.long == [span] && watch.stalls.is_empty(), "case {n}"),
            }
        }
    }

    #[test]
    fn of_an_allocation_too_short_for_a_switch_the_kernel_is_not_asked() {
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
        // With the asking about it: an order may stand behind that too.
        assert_eq!(watch.held, [(from, until + 50 + ASKING)]);
        watch.pressed(script.runs(SWITCH * THRESHOLD - 1));
        watch.waited(script.runs(50));
        watch.allocated(script.runs(2_000_000));
        watch.waited(script.runs(50));
        assert_eq!((watch.told, watch.held.len(), watch.long.len()), (0, 1, 2));
    }

    /// Holds whatever else runs: a thread that sleeps has no CPU time.
    #[test]
    fn the_machines_own_readings_tell_a_sleep_from_work() {
        let cycles = Cycles::start(10_000_000);
        let mut watch = Watch::new(cycles, cycles.of_ns(50_000.0));
        watch.start();
        std::thread::sleep(Duration::from_millis(20));
        watch.allocated(cycles.now());
        watch.waited(cycles.now());
        assert_eq!((watch.told, watch.long.len()), (1, 0));
        assert!(cycles.ns(watch.covered) >= 19.9e6);
    }
}
