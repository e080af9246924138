//! A thread that always spins knows when it did not: two readings of the clock lie further apart than its loop takes.
//!
//! Where nothing but waiting and known work lies between them, the machine had the time: an interrupt, another thread, the hypervisor.
//! Where an allocation or a free lies between them it is the allocator's, unless the kernel's own accounts say that the thread did
//! not run: it was switched away against its will, or its CPU clock stood still (the kernel takes off what the hypervisor stole).

use allocwall_core::host::clock::thread_cpu_ns;
use allocwall_core::host::cycles::Cycles;
use allocwall_core::host::memory::{ThreadCounts, thread_counts};

/// From and to, in cycles.
pub type Span = (u64, u64);

/// Room that is there, and touched, before the run.
const ROOM: usize = 1 << 16;

/// Times the threshold from which on a thread may have been switched away, or its CPU taken: neither is done faster, and asking the kernel
/// about every allocation that takes some hundred nanoseconds would be the largest stall of all.
const SWITCH: u64 = 10;

/// What took long.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Whose {
    Order,
    Pressure,
}

pub struct Watch {
    cycles: Cycles,
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
    fn now(cycles: Cycles) -> Account {
        let ThreadCounts {
            involuntary_switches, ..
        } = thread_counts();
        Account {
            cpu_ns: thread_cpu_ns(),
            at: cycles.now(),
            switches: involuntary_switches,
        }
    }
}

impl Watch {
    pub fn new(cycles: Cycles, threshold: u64) -> Watch {
        let room = || {
            let mut room = vec![(1, 1); ROOM];
            room.clear();
            room
        };
        let now = cycles.now();
        Watch {
            cycles,
            threshold,
            last: now,
            stalls: room(),
            long: room(),
            held: room(),
            covered: 0,
            told: 0,
            began: now,
            open: None,
            account: Account::now(cycles),
        }
    }

    /// From here on, whatever came before.
    pub fn start(&mut self) {
        self.account = Account::now(self.cycles);
        self.last = self.cycles.now();
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
            self.account = Account::now(self.cycles);
            self.stalls.push((self.last, self.account.at));
            return self.cycles.now();
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
        self.cycles.now()
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
        let before = std::mem::replace(&mut self.account, Account::now(self.cycles));
        let account = &self.account;
        let wall = self.cycles.ns(account.at.wrapping_sub(before.at));
        let lost = wall - (account.cpu_ns.saturating_sub(before.cpu_ns)) as f64;
        let took = self.cycles.ns(open.1 - open.0);
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
    use std::time::Duration;

    /// Waits so long with readings close together.
    fn spin(watch: &mut Watch, cycles: Cycles, ns: f64) {
        let until = cycles.now() + cycles.of_ns(ns);
        loop {
            let now = cycles.now();
            watch.waited(now);
            if now > until {
                return;
            }
        }
    }

    fn longest(watch: &Watch, cycles: Cycles) -> f64 {
        let spans = watch.stalls.iter().map(|(from, to)| cycles.ns(to - from));
        spans.fold(0.0, f64::max)
    }

    #[test]
    fn a_sleep_is_a_stall_and_work_is_none() {
        let cycles = Cycles::start(10_000_000);
        let mut watch = Watch::new(cycles, cycles.of_ns(2e6));
        watch.start();
        spin(&mut watch, cycles, 1e6);
        let before = watch.stalls.len();
        std::thread::sleep(Duration::from_millis(20));
        watch.waited(cycles.now());
        assert_eq!(watch.stalls.len(), before + 1);
        assert!(longest(&watch, cycles) >= 20e6);
    }

    #[test]
    fn a_long_allocation_is_the_allocators_unless_the_thread_did_not_run() {
        let cycles = Cycles::start(10_000_000);
        let mut watch = Watch::new(cycles, cycles.of_ns(50_000.0));
        // An allocation that computes for 2 ms. Other programs may take the CPU in the middle, and do so in vain five times.
        let undisturbed = (0..5).any(|_| {
            watch.start();
            let told = watch.told;
            let until = cycles.now() + cycles.of_ns(2e6);
            while cycles.now() < until {}
            watch.allocated(cycles.now());
            watch.waited(cycles.now());
            watch.told == told
        });
        assert!(undisturbed);
        // One that sleeps: the CPU clock stands still.
        watch.start();
        let told = watch.told;
        std::thread::sleep(Duration::from_millis(20));
        watch.allocated(cycles.now());
        watch.waited(cycles.now());
        assert_eq!(watch.told, told + 1);
        assert!(cycles.ns(watch.covered) >= 22e6);
    }

    #[test]
    fn a_long_block_of_the_pressure_is_set_apart_and_a_short_one_and_an_orders_are_not() {
        let cycles = Cycles::start(10_000_000);
        let mut watch = Watch::new(cycles, cycles.of_ns(50_000.0));
        let computes = |ns: f64| {
            let until = cycles.now() + cycles.of_ns(ns);
            while cycles.now() < until {}
        };
        // Other programs may take the CPU in the middle, and do so in vain five times.
        let seen = (0..5).any(|_| {
            watch.start();
            let (told, held, long) = (watch.told, watch.held.len(), watch.long.len());
            computes(2e6);
            watch.pressed(cycles.now());
            watch.waited(cycles.now());
            computes(100_000.0);
            watch.pressed(cycles.now());
            watch.waited(cycles.now());
            computes(2e6);
            watch.allocated(cycles.now());
            watch.waited(cycles.now());
            watch.told == told && watch.held.len() == held + 1 && watch.long.len() == long + 2
        });
        assert!(seen);
    }
}
