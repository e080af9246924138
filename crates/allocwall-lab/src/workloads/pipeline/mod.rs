//! One run of the order pipeline: its threads, its clock readings, and its result.

mod account;
mod order;
mod pressure;
mod stalls;
mod variants;

pub use order::steps_for;

use crate::pipeline::placement::crowded;
use crate::pipeline::{Arrivals, By, QUEUE, Role, RunResult, Spec, Stall};
use account::{Record, run_result};
use allocwall_host::clock::sleep_until;
use allocwall_host::cycles::Cycles;
use allocwall_host::memory::{ThreadCounts, thread_counts};
use allocwall_host::proc::ProcFs;
use allocwall_host::topology::Pinned;
use allocwall_pool::{Full, LaneReceiver, LaneSender, lane};
use anyhow::{Context, bail};
use order::{Checker, Template};
use pressure::Heap;
use stalls::Watch;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;
use variants::{Free, Make, Run};

/// Time for which the cycle counter is compared with the kernel's clock.
const CALIBRATION_NS: u64 = 20_000_000;
/// Time between the moment at which all threads are ready and the first order.
const LEAD_NS: f64 = 2e6;
/// Longest time between two readings of the clock in a waiting loop; more is a stall. A reading takes about 10 ns, and a read of a
/// cache line that another CPU has just written about 100 ns.
const THRESHOLD_NS: f64 = 500.0;
/// Interval at which the main thread checks whether the others are ready.
const GLANCE: Duration = Duration::from_millis(1);
/// A producer begins a heap block only if the time to its next order is this many times the average time of the last blocks.
const MARGIN: u64 = 4;
/// A new block has a weight of 1 / OF_LATE in this average.
const OF_LATE: u64 = 64;
/// Upper limit of this average. Without it, there would be no more pressure after one long stall.
const MOST_BLOCK_NS: f64 = 150.0;

/// Runs the pipeline once.
///
/// # Errors
/// One line: a CPU is not allowed, there is no memory, or the memory may not be locked.
pub fn run(spec: &Spec) -> anyhow::Result<RunResult> {
    let wanted = spec.producers + spec.consumers + usize::from(pressure_thread(spec));
    if spec.cpus.len() != wanted {
        bail!("{} CPUs for {wanted} threads", spec.cpus.len());
    }
    variants::with(spec, Pipeline { spec })?
}

fn pressure_thread(spec: &Spec) -> bool {
    spec.pressure.by == By::Thread && spec.pressure.per_s > 0.0
}

struct Pipeline<'a> {
    spec: &'a Spec,
}

/// Data that all threads share.
struct Shared<'a> {
    spec: &'a Spec,
    cycles: Cycles,
    crowded: bool,
    /// Threads that are not ready yet.
    missing: AtomicUsize,
    /// The first intended arrival, in cycles; 0 as long as it is unknown.
    start: AtomicU64,
    /// Orders that are not freed yet.
    left: AtomicUsize,
    /// A thread failed.
    failed: AtomicBool,
    /// The cache line that two threads pass back and forth before the start.
    ball: Line,
}

#[repr(align(128))]
struct Line(AtomicU64);

impl Shared<'_> {
    /// Yields if threads share a CPU. Otherwise it does nothing: the reading of the clock limits the speed of the loop, and a PAUSE
    /// instruction would delay the detection of an order by 40 to 140 cycles.
    #[inline(always)]
    fn pause(&self) {
        if self.crowded {
            thread::yield_now();
        }
    }

    /// Marks this thread as ready. The last thread sets the start.
    fn arrive(&self) {
        // SeqCst is fine here, because this is outside the timed part.
        if self.missing.fetch_sub(1, Ordering::SeqCst) == 1 {
            let start = self.cycles.now() + self.cycles.of_ns(LEAD_NS);
            self.start.store(start, Ordering::SeqCst);
        }
    }

    /// Marks this thread as ready and waits for the others. Returns the first intended arrival.
    fn ready(&self) -> u64 {
        self.arrive();
        loop {
            match self.start.load(Ordering::SeqCst) {
                0 => self.pause(),
                start => return start,
            }
        }
    }
}

/// The result of one thread.
pub(super) struct Thread {
    role: Role,
    cpu: u32,
    watch: Watch,
    /// Involuntary context switches and minor faults since its start.
    switches: u64,
    faults: u64,
    handoff_ns: Option<f64>,
    /// Only for consumers: the orders, in the order in which the thread received them.
    records: Vec<Record>,
    refused: u64,
    blocks: u64,
}

impl Thread {
    /// For the end of a thread; `since` are the kernel's counters at its start. Fields that only some threads have are empty.
    fn ended(role: Role, cpu: u32, watch: Watch, since: &ThreadCounts) -> Thread {
        let now = thread_counts();
        Thread {
            role,
            cpu,
            watch,
            switches: now.involuntary_switches - since.involuntary_switches,
            faults: now.minor_faults - since.minor_faults,
            handoff_ns: None,
            records: vec![],
            refused: 0,
            blocks: 0,
        }
    }
}

impl Run for Pipeline<'_> {
    type Output = anyhow::Result<RunResult>;

    fn run<M: Make, F: Free<Item = M::Item>>(self, make: Vec<M>, free: Vec<F>) -> anyhow::Result<RunResult> {
        let spec = self.spec;
        let total = spec.warm_up + spec.timed;
        let shared = &Shared {
            spec,
            cycles: Cycles::start(CALIBRATION_NS),
            crowded: crowded(&spec.cpus),
            missing: AtomicUsize::new(spec.cpus.len() + 1),
            start: AtomicU64::new(0),
            left: AtomicUsize::new(total),
            failed: AtomicBool::new(false),
            ball: Line(AtomicU64::new(0)),
        };
        let mut outs: Vec<Vec<_>> = make.iter().map(|_| vec![]).collect();
        let mut ins: Vec<Vec<_>> = free.iter().map(|_| vec![]).collect();
        for out in &mut outs {
            for inlet in &mut ins {
                let (to, from) = lane::<M::Item>(QUEUE)?;
                out.push(to);
                inlet.push(from);
            }
        }
        let (mut threads, stolen_ns) = thread::scope(|scope| {
            let mut running = vec![];
            for (n, (make, out)) in make.into_iter().zip(outs).enumerate() {
                running.push(scope.spawn(move || guarded(shared, || produce(shared, n, make, out))));
            }
            for (n, (free, inlet)) in free.into_iter().zip(ins).enumerate() {
                running.push(scope.spawn(move || guarded(shared, || consume(shared, n, free, inlet))));
            }
            if pressure_thread(spec) {
                running.push(scope.spawn(move || guarded(shared, || press(shared))));
            }
            let proc = ProcFs::live();
            let stolen = || proc.host_tick().ok().map(|tick| tick.steal_ns);
            // Wait until all threads are set up. Sleep, because they use the CPUs.
            while shared.missing.load(Ordering::SeqCst) > 1 {
                thread::sleep(GLANCE);
            }
            let locked = lock(spec);
            let before = stolen();
            if locked.is_err() {
                shared.failed.store(true, Ordering::SeqCst);
            }
            shared.arrive();
            plant(shared, &running);
            let joined = running
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect::<anyhow::Result<Vec<Thread>>>();
            let stolen = stolen().zip(before).map(|(after, before)| after.saturating_sub(before));
            locked.and(joined).map(|threads| (threads, stolen))
        })?;
        let start = shared.start.load(Ordering::SeqCst);
        let threshold = shared.cycles.of_ns(THRESHOLD_NS);
        Ok(run_result(spec, shared.cycles, start, &mut threads, stolen_ns, threshold))
    }
}

/// If a thread cannot start, the other threads must not wait for it.
fn guarded(shared: &Shared, run: impl FnOnce() -> anyhow::Result<Thread>) -> anyhow::Result<Thread> {
    let done = run();
    if done.is_err() {
        shared.failed.store(true, Ordering::SeqCst);
        shared.ready();
    }
    done
}

fn lock(spec: &Spec) -> anyhow::Result<()> {
    if spec.lock {
        rustix::mm::mlockall(rustix::mm::MlockAllFlags::CURRENT)
            .context("cannot lock the memory: raise `ulimit -l`, or leave out --lock")?;
    }
    Ok(())
}

fn pinned(cpu: u32) -> anyhow::Result<Pinned> {
    Pinned::to(cpu).map_err(|absence| anyhow::anyhow!("cannot pin a thread to CPU {cpu}: {absence}"))
}

/// Time of one transfer of a cache line, in ns: half of a round trip, median of many that are timed 16 at a time.
fn hand_off(shared: &Shared, first: bool) -> Option<f64> {
    const ROUNDS: usize = 500;
    const TRIPS: u64 = 16;
    let ball = &shared.ball.0;
    let mut trips = Vec::with_capacity(ROUNDS);
    for round in 0..ROUNDS as u64 {
        let began = shared.cycles.now();
        for trip in 0..TRIPS {
            let number = 2 * (round * TRIPS + trip);
            // Acquire and release, as in a queue.
            let (wait, then) = if first { (number, number + 1) } else { (number + 1, number + 2) };
            while ball.load(Ordering::Acquire) != wait {
                if shared.failed.load(Ordering::Relaxed) {
                    return None;
                }
            }
            ball.store(then, Ordering::Release);
        }
        trips.push(shared.cycles.ns(shared.cycles.now() - began) / (2 * TRIPS) as f64);
    }
    trips.sort_by(f64::total_cmp);
    Some(trips[ROUNDS / 2])
}

/// The number of orders of one producer.
fn share(total: usize, of: usize, n: usize) -> usize {
    total / of + usize::from(n < total % of)
}

/// Intended arrivals relative to the first, in cycles. The memory is already touched.
fn schedule(shared: &Shared, n: usize, count: usize) -> Vec<u64> {
    let Some(rate) = shared.spec.rate else {
        return vec![0; count];
    };
    let every = shared.cycles.of_ns(1e9) as f64 * shared.spec.producers as f64 / rate;
    let mut random = allocwall_model::stats::random::Random::new(shared.spec.seed.wrapping_add(n as u64));
    let mut at = match shared.spec.arrivals {
        // Producers take turns.
        Arrivals::Constant => every * n as f64 / shared.spec.producers as f64,
        Arrivals::Poisson => 0.0,
    };
    (0..count)
        .map(|_| {
            let due = at as u64;
            at += match shared.spec.arrivals {
                Arrivals::Constant => every,
                Arrivals::Poisson => -random.unit_above_zero().ln() * every,
            };
            due
        })
        .collect()
}

fn produce<M: Make>(
    shared: &Shared,
    n: usize,
    mut make: M,
    mut out: Vec<LaneSender<M::Item>>,
) -> anyhow::Result<Thread> {
    let spec = shared.spec;
    let cycles = shared.cycles;
    let cpu = spec.cpus[n];
    let _pinned = pinned(cpu)?;
    let count = share(spec.warm_up + spec.timed, spec.producers, n);
    let due = schedule(shared, n, count);
    let mut template = Template::new(spec.sizes, spec.seed ^ (n as u64 + 1) << 32, n as u8);
    let own = n == 0 && spec.pressure.by == By::Producer;
    let mut heap = Heap::new(if own { spec.pressure.per_s } else { 0.0 }, cycles, spec.seed);
    // Average time of a heap block, in cycles.
    let mut usual = cycles.of_ns(100.0);
    let most = cycles.of_ns(MOST_BLOCK_NS);
    let planted = Planted::of(spec, n, count, cycles);
    let mut watch = Watch::new(cycles, cycles.of_ns(THRESHOLD_NS));
    let across = n == 0 && spec.cpus[spec.producers] != cpu;
    let handoff_ns = across.then(|| hand_off(shared, true)).flatten();
    if n == 0 {
        announce();
    }
    let start = shared.ready();
    heap.start(start);
    let counts = thread_counts();
    let (mut refused, lanes) = (0, out.len());
    watch.start();
    for (sequence, due) in due.into_iter().enumerate() {
        if shared.failed.load(Ordering::Relaxed) {
            break;
        }
        let intended = match spec.rate {
            Some(_) => start + due,
            None => cycles.now(),
        };
        loop {
            let now = cycles.now();
            watch.waited(now);
            if now >= intended {
                break;
            }
            if now >= heap.due() && now + MARGIN * usual < intended {
                heap.turn();
                let after = cycles.now();
                watch.pressed(after);
                usual = ((usual * (OF_LATE - 1) + (after - now)) / OF_LATE).min(most);
                continue;
            }
            shared.pause();
        }
        template.next(sequence as u64, intended);
        let mut item = loop {
            match make.make(&template) {
                Some(item) => break item,
                None => {
                    watch.waited(cycles.now());
                    refused += 1;
                    if shared.failed.load(Ordering::Relaxed) {
                        bail!("another thread could not start");
                    }
                    shared.pause();
                }
            }
        };
        planted.allocator(sequence, cycles);
        let allocated = cycles.now();
        watch.allocated(allocated);
        make.stamp(&mut item, allocated);
        let lane = &mut out[sequence % lanes];
        while let Err(Full(back)) = lane.send(item) {
            item = back;
            watch.waited(cycles.now());
            shared.pause();
        }
    }
    let ended = Thread::ended(Role::Producer, cpu, watch, &counts);
    // Dropping a pool returns memory to the system. Wait, so that this does not happen while other threads are timed.
    while shared.left.load(Ordering::Acquire) > 0 && !shared.failed.load(Ordering::Relaxed) {
        shared.pause();
    }
    Ok(Thread { handoff_ns, refused, blocks: heap.done, ..ended })
}

fn consume<F: Free>(
    shared: &Shared,
    n: usize,
    mut free: F,
    mut ins: Vec<LaneReceiver<F::Item>>,
) -> anyhow::Result<Thread> {
    let spec = shared.spec;
    let cycles = shared.cycles;
    let cpu = spec.cpus[spec.producers + n];
    let _pinned = pinned(cpu)?;
    let total = spec.warm_up + spec.timed;
    // Each producer sends to the consumers in turn.
    let mut left: usize = (0..spec.producers)
        .map(|producer| share(share(total, spec.producers, producer), spec.consumers, n))
        .sum();
    // Touch the memory now: a later page fault would be part of the next order's time.
    let mut records = vec![Record::TOUCHED; left];
    records.clear();
    let mut checker = Checker::new(spec.check_steps);
    let usual = usual_check(&mut checker, cycles);
    let mut watch = Watch::new(cycles, cycles.of_ns(THRESHOLD_NS));
    if n == 0 && cpu != spec.cpus[0] {
        hand_off(shared, false);
    }
    let start = shared.ready();
    let counts = thread_counts();
    watch.start();
    let mut passed = 0u64;
    while left > 0 {
        for (producer, inlet) in ins.iter_mut().enumerate() {
            let Some(item) = inlet.recv() else {
                watch.waited(cycles.now());
                shared.pause();
                continue;
            };
            let dequeued = cycles.now();
            watch.waited(dequeued);
            let (intended, allocated, passes) =
                free.read(&item, |order, rest| (order.intended, order.allocated, checker.check(order, rest)));
            let checked = cycles.now();
            watch.computed(checked, usual);
            free.free(item, producer);
            let freed = cycles.now();
            watch.allocated(freed);
            passed += u64::from(passes);
            records.push(Record::of(start, [intended, allocated, dequeued, checked, freed]));
            left -= 1;
            if left == 0 {
                break;
            }
        }
        if shared.failed.load(Ordering::Relaxed) {
            break;
        }
    }
    std::hint::black_box(passed);
    let ended = Thread::ended(Role::Consumer, cpu, watch, &counts);
    // Release: all orders are freed before a producer drops its pool.
    shared.left.fetch_sub(records.len(), Ordering::Release);
    Ok(Thread { records, ..ended })
}

/// Four times the median time of a check on this machine, in cycles.
fn usual_check(checker: &mut Checker, cycles: Cycles) -> u64 {
    let mut template = Template::new(crate::pipeline::variants::Sizes::Line, 1, 0);
    let once = |sequence| {
        template.next(sequence, 0);
        let block = template.block::<0>();
        let began = cycles.now();
        std::hint::black_box(checker.check(&block.order, &[]));
        cycles.now() - began
    };
    let mut times: Vec<u64> = (0..101).map(once).collect();
    times.sort_unstable();
    4 * times[50]
}

fn press(shared: &Shared) -> anyhow::Result<Thread> {
    let spec = shared.spec;
    let cycles = shared.cycles;
    let cpu = spec.cpus[spec.producers + spec.consumers];
    let _pinned = pinned(cpu)?;
    let mut heap = Heap::new(spec.pressure.per_s, cycles, spec.seed);
    let mut watch = Watch::new(cycles, cycles.of_ns(THRESHOLD_NS));
    let start = shared.ready();
    heap.start(start);
    let counts = thread_counts();
    watch.start();
    while shared.left.load(Ordering::Relaxed) > 0 && !shared.failed.load(Ordering::Relaxed) {
        let now = cycles.now();
        watch.waited(now);
        if now >= heap.due() {
            heap.turn();
            watch.allocated(cycles.now());
        } else {
            shared.pause();
        }
    }
    Ok(Thread { blocks: heap.done, ..Thread::ended(Role::Pressure, cpu, watch, &counts) })
}

/// Allocations that take longer, for tests of the stall detector.
struct Planted {
    /// Every how many orders; 0 for none.
    every: usize,
    cycles: u64,
}

impl Planted {
    fn of(spec: &Spec, n: usize, count: usize, cycles: Cycles) -> Planted {
        match spec.planted {
            Some(planted) if planted.stall == Stall::Allocator && n == 0 => Planted {
                every: (count / planted.count.max(1) as usize).max(1),
                cycles: cycles.of_ns(f64::from(planted.us) * 1e3),
            },
            _ => Planted { every: 0, cycles: 0 },
        }
    }

    #[inline(always)]
    fn allocator(&self, sequence: usize, cycles: Cycles) {
        if self.every > 0 && sequence % self.every == self.every / 2 {
            let until = cycles.now() + self.cycles;
            while cycles.now() < until {}
        }
    }
}

static FIRST_PRODUCER: AtomicU64 = AtomicU64::new(0);
static HANDLER_NS: AtomicU64 = AtomicU64::new(0);

fn announce() {
    // SAFETY: pthread_self has no precondition.
    FIRST_PRODUCER.store(unsafe { libc::pthread_self() } as u64, Ordering::SeqCst);
}

extern "C" fn keep_busy(_: libc::c_int) {
    let until = allocwall_host::clock::monotonic_ns() + HANDLER_NS.load(Ordering::Relaxed);
    while allocwall_host::clock::monotonic_ns() < until {}
}

/// Stalls of the machine, for tests of the stall detector: signals to the first producer, spread over the run.
fn plant<T>(shared: &Shared, running: &[thread::ScopedJoinHandle<'_, T>]) {
    let spec = shared.spec;
    let Some(planted) = spec.planted.filter(|planted| planted.stall == Stall::Machine) else {
        return;
    };
    HANDLER_NS.store(u64::from(planted.us) * 1000, Ordering::SeqCst);
    // SAFETY: an all-zero sigaction is a valid value; the handler only reads a clock and an atomic.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = keep_busy as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        libc::sigaction(libc::SIGUSR2, &raw const action, std::ptr::null_mut());
    }
    let run_ns = (spec.warm_up + spec.timed) as f64 / spec.rate.unwrap_or(1e6) * 1e9;
    let each = (run_ns / f64::from(planted.count.max(1))) as u64;
    let began = allocwall_host::clock::monotonic_ns();
    for stall in 0..u64::from(planted.count) {
        sleep_until(began + each * stall + each / 2);
        if running[0].is_finished() {
            return;
        }
        // SAFETY: the thread stored its id before it was ready, and it is not joined yet.
        unsafe {
            libc::pthread_kill(FIRST_PRODUCER.load(Ordering::SeqCst) as libc::pthread_t, libc::SIGUSR2)
        };
    }
}
