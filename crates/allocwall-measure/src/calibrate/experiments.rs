//! One experiment per price, or for several prices from the same repetition.

use super::Bench;
use allocwall_host::libc_malloc::MallocChild;
use allocwall_host::memory::{self, AnonymousMapping, HUGE, PAGE, Pages};
use allocwall_host::perf::SelfSampler;
use allocwall_host::topology::{self, Pinned, Relation};
use allocwall_model::catalogue::advice::CALIBRATE_UNDISTURBED;
use allocwall_model::catalogue::prices;
use allocwall_model::units::{Absence, Measured, Reason};
use std::collections::VecDeque;
use std::hint::black_box;
use std::io::{Read, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

pub(super) struct Experiment {
    /// Nanoseconds per event: one value per successful repetition, for each price.
    pub series: Vec<(String, Vec<f64>)>,
    /// Why the last failed repetition failed.
    pub missed: Option<Absence>,
    /// The time that its repetitions have taken so far.
    pub spent: Duration,
    /// Runs on this thread only and never waits: a repetition is discarded if other work took the CPU.
    alone: bool,
    run: Option<Repetition>,
}

/// Takes the number of the round; returns one value per price.
type Repetition = Box<dyn FnMut(u32) -> Measured<Vec<f64>>>;

impl Experiment {
    fn new(names: &[&str], run: Measured<Repetition>) -> Experiment {
        let (run, missed) = match run {
            Ok(run) => (Some(run), None),
            Err(absence) => (None, Some(absence)),
        };
        Experiment {
            series: names.iter().map(|&name| (name.to_owned(), Vec::new())).collect(),
            missed,
            spent: Duration::ZERO,
            alone: false,
            run,
        }
    }

    fn alone(self) -> Experiment {
        Experiment { alone: true, ..self }
    }

    pub fn absent(names: &[&str], absence: Absence) -> Experiment {
        Self::new(names, Err(absence))
    }

    pub fn repeat(&mut self, round: u32) {
        let Some(run) = &mut self.run else { return };
        let begun = Instant::now();
        let outcome = match self.alone {
            true => undisturbed(|| run(round)),
            false => run(round),
        };
        self.spent += begun.elapsed();
        match outcome {
            Ok(values) => {
                for ((_, series), value) in self.series.iter_mut().zip(values) {
                    series.push(value);
                }
            }
            Err(absence) => self.missed = Some(absence),
        }
    }

    pub fn repetitions(&self) -> usize {
        self.series.first().map_or(0, |(_, values)| values.len())
    }
}

/// A time slice of another program takes milliseconds, many times as long as a repetition, and on a busy
/// machine it hits one repetition in a few. The kernel counts the switches, so such repetitions are found by
/// their cause, not by their size.
fn undisturbed<T>(run: impl FnOnce() -> Measured<T>) -> Measured<T> {
    let before = memory::thread_counts().involuntary_switches;
    let outcome = run()?;
    match memory::thread_counts().involuntary_switches - before {
        0 => Ok(outcome),
        _ => Err(Absence::new(Reason::TooLittle, "other work took the CPU during the repetition")
            .mend(CALIBRATE_UNDISTURBED)),
    }
}

/// The experiments for these prices that run in rounds. They are set up here, so that no repetition pays for it.
pub(super) fn interleaved(bench: &Bench, wanted: &dyn Fn(&str) -> bool) -> Vec<Experiment> {
    use prices::*;
    type SetUp = fn(&Bench) -> Measured<Repetition>;
    let alone: [(&[&str], SetUp); 8] = [
        (&[TOUCH_4K, MUNMAP_PAGE], |_| touch_small()),
        (&[FAULT_RETURN], |_| fault_return()),
        (&[TOUCH_2M], touch_huge),
        (&[ZERO_4K], |_| zeroing()),
        (&[DONTNEED_PAGE], |_| dont_need()),
        (&[POPULATE_PAGE], |_| populate()),
        (&[MAP_UNMAP_128K], |_| map_unmap()),
        (&[SYSCALL], |_| system_call()),
    ];
    let any = |names: &[&str]| names.iter().any(|name| wanted(name));
    let alone = alone.into_iter().filter(|(names, _)| any(names));
    let mut table: Vec<Experiment> =
        alone.map(|(names, set_up)| Experiment::new(names, set_up(bench)).alone()).collect();
    const MALLOC: &[&str] = &[MALLOC_CACHED, MALLOC_ARENA, MALLOC_MAPPED];
    if any(MALLOC) {
        table.push(Experiment::new(MALLOC, malloc_pairs()));
    }
    if wanted(CONTEXT_SWITCH) {
        table.push(Experiment::new(&[CONTEXT_SWITCH], context_switch(bench)));
    }
    if !cfg!(target_env = "gnu") && any(MALLOC) {
        // Only glibc has the two tiers. In other C libraries the batch takes the same path as the single
        // block.
        table.retain_mut(|experiment| {
            experiment.series.retain(|(name, _)| name != MALLOC_ARENA);
            true
        });
        let why = Absence::new(
            Reason::NotApplicable,
            "this C library's malloc has no thread cache in front of its heap",
        );
        table.push(Experiment::absent(&[MALLOC_ARENA], why));
    }
    table.extend(loads(bench, wanted));
    // These set up nothing.
    let shared = contended_faults(bench).into_iter().chain(handoffs(bench));
    table.extend(shared.filter(|experiment| experiment.series.iter().any(|(name, _)| wanted(name))));
    table
}

/// Nanoseconds per event.
fn timed(events: usize, run: impl FnOnce()) -> f64 {
    let start = Instant::now();
    run();
    start.elapsed().as_nanos() as f64 / events as f64
}

/// Writes once to every page.
fn touch(bytes: &mut [u8], page: usize) {
    for byte in bytes.iter_mut().step_by(page) {
        *black_box(byte) = 1;
    }
}

const SMALL_PAGES: usize = HUGE / PAGE;

/// First touch of 2 MiB in small pages: ns per page. An error unless every page took its own fault.
fn time_small(mapping: &mut AnonymousMapping) -> Measured<f64> {
    let faults = memory::thread_counts().minor_faults;
    let ns = timed(SMALL_PAGES, || touch(mapping.bytes(), PAGE));
    match (memory::thread_counts().minor_faults - faults) as usize {
        SMALL_PAGES.. => Ok(ns),
        faults => Err(Absence::new(
            Reason::NotSupported,
            format!("{SMALL_PAGES} pages of 4 KiB took {faults} faults: the kernel maps several at once"),
        )),
    }
}

/// First touch of 2 MiB as one huge page: ns for the whole page. An error unless a single fault mapped it.
fn time_huge(mapping: &mut AnonymousMapping) -> Measured<f64> {
    let faults = memory::thread_counts().minor_faults;
    let ns = timed(1, || touch(mapping.bytes(), HUGE));
    touch(mapping.bytes(), PAGE);
    match memory::thread_counts().minor_faults - faults {
        1 => Ok(ns),
        faults => Err(Absence::new(
            Reason::TooLittle,
            format!("the kernel provided no huge page: 2 MiB took {faults} faults (memory is fragmented)"),
        )
        .mend("echo 1 | sudo tee /proc/sys/vm/compact_memory; then allocwall calibrate --fresh")),
    }
}

/// Mappings in use at the same time: the touched memory was freed some MiB earlier, more than the
/// second-level cache holds.
const IN_USE: usize = 4;

fn touch_small() -> Measured<Repetition> {
    let mut in_use = VecDeque::new();
    Ok(Box::new(move |_| {
        let mut fresh = AnonymousMapping::new(HUGE, Pages::Small)?;
        let touch = time_small(&mut fresh)?;
        in_use.push_back(fresh);
        while in_use.len() < IN_USE {
            let mut more = AnonymousMapping::new(HUGE, Pages::Small)?;
            time_small(&mut more)?;
            in_use.push_back(more);
        }
        let oldest = in_use.pop_front();
        let unmap = timed(SMALL_PAGES, || drop(oldest));
        Ok(vec![touch, unmap])
    }))
}

/// The time of the samples in user mode during a loop of first touches, minus the cost of the same loop on
/// present pages. The kernel returns from a fault with interrupts off, so a clock that is due meanwhile
/// interrupts the first instruction after it.
fn fault_return() -> Measured<Repetition> {
    const REGION: usize = 4 * HUGE;
    const PERIOD_NS: u64 = 50_021;
    const FEWEST: u64 = 20;
    let pages = REGION / PAGE;
    let mut sampler = SelfSampler::open(PERIOD_NS)?;
    Ok(Box::new(move |_| {
        // Sampling itself costs time, so the duration comes from another region.
        let mut timed_region = AnonymousMapping::new(REGION, Pages::Small)?;
        let first = timed(pages, || touch(timed_region.bytes(), PAGE));
        let again = timed(pages, || touch(timed_region.bytes(), PAGE));
        drop(timed_region);
        let mut region = AnonymousMapping::new(REGION, Pages::Small)?;
        let faults = memory::thread_counts().minor_faults;
        let (user, kernel) = sampler.during(|| touch(region.bytes(), PAGE))?;
        let faults = (memory::thread_counts().minor_faults - faults) as usize;
        if faults < pages || user + kernel < FEWEST {
            return Err(Absence::new(
                Reason::TooLittle,
                format!("{} samples in {faults} faults of {pages} pages", user + kernel),
            ));
        }
        Ok(vec![(first * user as f64 / (user + kernel) as f64 - again).max(0.0)])
    }))
}

fn touch_huge(bench: &Bench) -> Measured<Repetition> {
    bench.huge.clone()?;
    let mut in_use = VecDeque::new();
    Ok(Box::new(move |_| {
        let mut fresh = AnonymousMapping::new(HUGE, Pages::Huge)?;
        let touch = time_huge(&mut fresh)?;
        in_use.push_back(fresh);
        if in_use.len() > IN_USE {
            in_use.pop_front();
        }
        Ok(vec![touch])
    }))
}

/// Page by page, like the kernel, over more memory than a second-level cache holds.
fn zeroing() -> Measured<Repetition> {
    const REGION: usize = 16 * HUGE;
    let mut region = AnonymousMapping::new(REGION, Pages::Small)?;
    touch(region.bytes(), PAGE);
    Ok(Box::new(move |round| {
        let start = (round as usize * HUGE) % REGION;
        let part = &mut region.bytes()[start..start + HUGE];
        Ok(vec![timed(SMALL_PAGES, || {
            for page in part.chunks_exact_mut(PAGE) {
                black_box(page).fill(0);
            }
        })])
    }))
}

fn dont_need() -> Measured<Repetition> {
    let mut mapping = AnonymousMapping::new(HUGE, Pages::Small)?;
    Ok(Box::new(move |_| {
        touch(mapping.bytes(), PAGE);
        let start = Instant::now();
        mapping.release_pages()?;
        Ok(vec![start.elapsed().as_nanos() as f64 / SMALL_PAGES as f64])
    }))
}

/// MADV_POPULATE_WRITE, which takes the same kernel path and permits the page policy to be set before.
/// Kernels older than 5.14 have only MAP_POPULATE; it is used there, and gives an error if it brought huge
/// pages.
fn populate() -> Measured<Repetition> {
    let old_kernel = AnonymousMapping::new(HUGE, Pages::Small)?.populate().is_err();
    Ok(Box::new(move |_| {
        if old_kernel {
            let start = Instant::now();
            let mapping = AnonymousMapping::populated(HUGE)?;
            let elapsed = start.elapsed();
            return match mapping.huge_bytes()? {
                0 => Ok(vec![elapsed.as_nanos() as f64 / SMALL_PAGES as f64]),
                _ => Err(Absence::new(
                    Reason::NotSupported,
                    "MAP_POPULATE uses huge pages here, and MADV_POPULATE_WRITE needs Linux 5.14",
                )),
            };
        }
        let mut mapping = AnonymousMapping::new(HUGE, Pages::Small)?;
        let start = Instant::now();
        let answer = mapping.populate();
        let elapsed = start.elapsed();
        answer
            .map_err(|error| Absence::new(Reason::NotPermitted, format!("MADV_POPULATE_WRITE: {error}")))?;
        Ok(vec![elapsed.as_nanos() as f64 / SMALL_PAGES as f64])
    }))
}

fn map_unmap() -> Measured<Repetition> {
    const PAIRS: usize = 32;
    Ok(Box::new(move |_| {
        let start = Instant::now();
        for _ in 0..PAIRS {
            drop(black_box(AnonymousMapping::plain(128 << 10)?));
        }
        Ok(vec![start.elapsed().as_nanos() as f64 / PAIRS as f64])
    }))
}

fn malloc_pairs() -> Measured<Repetition> {
    let mut child = MallocChild::start()?;
    Ok(Box::new(move |_| {
        let times = child.repeat()?;
        Ok(if cfg!(target_env = "gnu") {
            vec![times.cached, times.arena, times.mapped]
        } else {
            vec![times.cached, times.mapped]
        })
    }))
}

fn system_call() -> Measured<Repetition> {
    const CALLS: usize = 500;
    Ok(Box::new(move |_| {
        Ok(vec![timed(CALLS, || {
            for _ in 0..CALLS {
                black_box(rustix::process::getppid());
            }
        })])
    }))
}

/// Two threads on one CPU pass a byte back and forth, as in lmbench's lat_ctx. The price includes the pipe's
/// write and read: programs switch only with a call of this kind.
fn context_switch(bench: &Bench) -> Measured<Repetition> {
    const ROUND_TRIPS: usize = 20;
    /// On a busy CPU, a round trip can take one time slice of each other program.
    const PATIENCE: Duration = Duration::from_millis(10);
    let cpu = bench.cpu;
    Ok(Box::new(move |_| {
        let failed = |error: std::io::Error| {
            Absence::new(Reason::NotPermitted, format!("pipe between threads: {error}"))
        };
        let (mut there, mut to_there) = std::io::pipe().map_err(failed)?;
        let (mut here, mut to_here) = std::io::pipe().map_err(failed)?;
        std::thread::scope(|scope| {
            let partner = scope.spawn(move || -> Measured<()> {
                let _pinned = Pinned::to(cpu)?;
                let mut byte = [0];
                while there.read(&mut byte).map_err(failed)? > 0 {
                    to_here.write_all(&byte).map_err(failed)?;
                }
                Ok(())
            });
            let mut round_trip = || -> std::io::Result<f64> {
                let start = Instant::now();
                to_there.write_all(&[1])?;
                here.read_exact(&mut [0])?;
                Ok(start.elapsed().as_nanos() as f64)
            };
            let begun = Instant::now();
            // The first round trip waits for the partner to start.
            let trips = round_trip().and_then(|_| {
                (0..ROUND_TRIPS)
                    .take_while(|_| begun.elapsed() < PATIENCE)
                    .map(|_| round_trip())
                    .collect::<std::io::Result<Vec<f64>>>()
            });
            // The partner reads to the end of the pipe, then ends too.
            drop((here, to_there));
            joined(partner.join())?;
            let ns = typical(&mut trips.map_err(failed)?, || format!("CPU {cpu} was busy with other work"))?;
            Ok(vec![ns / 2.0])
        })
    }))
}

/// The median of several quick measurements within one repetition. It excludes other programs' time slices
/// and stolen time.
fn typical(values: &mut [f64], else_why: impl Fn() -> String) -> Measured<f64> {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0..3 => Err(Absence::new(Reason::TooLittle, else_why())),
        n => Ok(values[n / 2]),
    }
}

/// A panic of a measuring thread is a defect of allocwall and is propagated.
fn joined<T>(result: std::thread::Result<T>) -> T {
    result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// 32,768 small pages: eight times the largest second-level TLBs of today (4,096 entries, Zen 5), and far
/// more than every second-level cache.
const LOAD_REGION: usize = 128 << 20;
const LOADS: usize = 2000;
const LOADS_WARM: usize = 200;

fn loads(bench: &Bench, wanted: &dyn Fn(&str) -> bool) -> Vec<Experiment> {
    type SetUp = fn(&Bench) -> Measured<Repetition>;
    let table: [(&str, SetUp); 3] = [
        (prices::LOAD_4K, |bench| {
            room_for(bench, 2 * LOAD_REGION)?;
            chase(Pages::Small)
        }),
        (prices::LOAD_2M, |bench| {
            room_for(bench, 2 * LOAD_REGION)?;
            bench.huge.clone()?;
            chase(Pages::Huge)
        }),
        (prices::LOAD_OTHER_NODE, |bench| chase_on(bench, other_node(bench)?)),
    ];
    let table = table.into_iter().filter(|(name, _)| wanted(name));
    table.map(|(name, set_up)| Experiment::new(&[name], set_up(bench)).alone()).collect()
}

/// The first node with memory that is not the node of the CPU of the experiments.
fn other_node(bench: &Bench) -> Measured<u32> {
    let topology = bench.topology.clone()?;
    let own = topology.cpus.iter().find(|cpu| cpu.id == bench.cpu).map(|cpu| cpu.node);
    let nodes = topology::memory_nodes(Path::new("/sys"))?;
    nodes.into_iter().find(|node| Some(*node) != own).ok_or_else(|| {
        Absence::new(Reason::NotApplicable, "no other NUMA node than the one of these CPUs has memory")
    })
}

/// As `chase`, in memory of this node.
fn chase_on(bench: &Bench, node: u32) -> Measured<Repetition> {
    room_for(bench, 3 * LOAD_REGION)?;
    // The kernel ends processes if a node that memory is bound to is full.
    let free = topology::available_bytes(Path::new("/sys"), node)?;
    if free < 4 * LOAD_REGION as u64 {
        let detail = format!("NUMA node {node} has only {} MiB of available memory", free >> 20);
        return Err(Absence::new(Reason::TooLittle, detail));
    }
    let mut region = AnonymousMapping::new(LOAD_REGION, Pages::Small)?;
    region.bind(node).map_err(|error| Absence::new(Reason::NotPermitted, format!("mbind: {error}")))?;
    link(region.words());
    Ok(chase_in(region))
}

/// At most a quarter of the free memory: a calibration must not push other processes into reclaim.
fn room_for(bench: &Bench, bytes: usize) -> Measured<()> {
    if bytes as u64 <= bench.headroom / 4 {
        return Ok(());
    }
    Err(Absence::new(
        Reason::TooLittle,
        format!(
            "needs {} MiB, which is more than a quarter of the {} MiB that are free",
            bytes >> 20,
            bench.headroom >> 20
        ),
    )
    .mend("free memory or raise the cgroup's memory limit, then allocwall calibrate --fresh"))
}

/// Each load's address is the value of the previous load. The order is the same on both kinds of pages, so
/// the difference of the two prices is the cost of TLB misses.
fn chase(pages: Pages) -> Measured<Repetition> {
    let mut region = AnonymousMapping::new(LOAD_REGION, pages)?;
    link(region.words());
    let huge = region.huge_bytes()?;
    let wanted = if pages == Pages::Huge { LOAD_REGION as u64 } else { 0 };
    // A few small pages among many huge ones change the price by less than its interval.
    if huge.abs_diff(wanted) > LOAD_REGION as u64 / 32 {
        return Err(Absence::new(
            Reason::TooLittle,
            format!("{} of {} MiB are on huge pages", huge >> 20, LOAD_REGION >> 20),
        )
        .mend("echo 1 | sudo tee /proc/sys/vm/compact_memory; then allocwall calibrate --fresh"));
    }
    Ok(chase_in(region))
}

fn chase_in(mut region: AnonymousMapping) -> Repetition {
    let mut at = 0;
    Box::new(move |_| {
        let words = region.words();
        at = follow(words, at, LOADS_WARM);
        let start = Instant::now();
        at = follow(words, at, LOADS);
        Ok(vec![start.elapsed().as_nanos() as f64 / LOADS as f64])
    })
}

const WORDS_A_LINE: usize = 8;

/// One cycle through all cache lines: a linear congruential sequence of full period (Knuth, The Art of
/// Computer Programming, 3.2.1.2, theorem A: c odd, a = 1 mod 4, the count a power of two). Its steps are far
/// too wide for a prefetcher.
fn link(words: &mut [u64]) {
    let lines = words.len() / WORDS_A_LINE;
    debug_assert!(lines.is_power_of_two());
    for line in 0..lines {
        let next = (line as u64).wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        words[line * WORDS_A_LINE] = (next % lines as u64) * WORDS_A_LINE as u64;
    }
}

fn follow(words: &[u64], mut at: usize, loads: usize) -> usize {
    for _ in 0..loads {
        at = words[at] as usize;
    }
    black_box(at)
}

/// Threads that fault at the same time, each in its own 2 MiB of one mapping. They share the address space
/// and the mapping, but no last-level page table.
fn contended_faults(bench: &Bench) -> Vec<Experiment> {
    const MOST: usize = 8;
    let cpus = match &bench.topology {
        Ok(topology) => topology.spread(&bench.allowed),
        Err(_) => bench.allowed.clone(),
    };
    (1..=cpus.len().min(MOST))
        .map(|threads| {
            let cpus = cpus[..threads].to_vec();
            let name = format!("{}{threads}", prices::FAULT_THREADS_PREFIX);
            Experiment::new(&[&name], Ok(Box::new(move |_| fault_together(&cpus).map(|ns| vec![ns]))))
        })
        .collect()
}

/// The mean over the threads of ns per fault.
fn fault_together(cpus: &[u32]) -> Measured<f64> {
    let mut mapping = AnonymousMapping::new(cpus.len() * HUGE, Pages::Small)?;
    let start_line = StartLine::new(cpus.len());
    let times = std::thread::scope(|scope| {
        let threads: Vec<_> = cpus
            .iter()
            .zip(mapping.bytes().chunks_exact_mut(HUGE))
            .map(|(&cpu, part)| {
                let start_line = &start_line;
                scope.spawn(move || {
                    let pinned = Pinned::to(cpu);
                    start_line.wait();
                    let ns = undisturbed(|| Ok(timed(SMALL_PAGES, || touch(part, PAGE))));
                    pinned.and(ns)
                })
            })
            .collect();
        threads.into_iter().map(|thread| joined(thread.join())).collect::<Measured<Vec<f64>>>()
    })?;
    Ok(times.iter().sum::<f64>() / times.len() as f64)
}

/// Starts threads at the same time. They spin, because waking them would take longer than their work.
struct StartLine {
    missing: AtomicUsize,
}

impl StartLine {
    fn new(threads: usize) -> StartLine {
        StartLine { missing: AtomicUsize::new(threads) }
    }

    fn wait(&self) {
        // Relaxed: only the time matters, no data is passed.
        self.missing.fetch_sub(1, Ordering::Relaxed);
        while self.missing.load(Ordering::Relaxed) > 0 {
            std::hint::spin_loop();
        }
    }
}

fn handoffs(bench: &Bench) -> Vec<Experiment> {
    /// Pairs of one class differ (distance on the mesh), so this many pairs take turns.
    const PAIRS: usize = 16;
    Relation::ALL
        .into_iter()
        .map(|relation| {
            let name = format!("{}{}", prices::HANDOFF_PREFIX, relation.key());
            let run = bench.topology.clone().and_then(|topology| {
                let pairs = topology.pairs(relation, &bench.allowed);
                let step = pairs.len().div_ceil(PAIRS).max(1);
                let pairs: Vec<(u32, u32)> = pairs.into_iter().step_by(step).collect();
                if pairs.is_empty() {
                    return Err(no_such_pair(relation, bench.allowed.len()));
                }
                let run: Repetition = Box::new(move |round| {
                    let (a, b) = pairs[round as usize % pairs.len()];
                    hand_off(a, b).map(|ns| vec![ns])
                });
                Ok(run)
            });
            Experiment::new(&[&name], run)
        })
        .collect()
}

fn no_such_pair(relation: Relation, allowed: usize) -> Absence {
    let lacking = match relation {
        Relation::Smt => "two hardware threads of one core",
        Relation::SameL3 => "two cores under one L3",
        Relation::OtherL3 => "CPUs of two L3 domains of one node",
        Relation::OtherNode => "CPUs of two NUMA nodes",
    };
    match allowed {
        1 => Absence::new(Reason::NotApplicable, "this process may use only one CPU")
            .mend("allow it more CPUs (taskset, cpuset), then allocwall calibrate --fresh"),
        n => Absence::new(
            Reason::NotApplicable,
            format!("no {lacking} among the {n} CPUs that this process may use"),
        ),
    }
}

/// The time one way, from round trips of a counter between two CPUs: each trip passes the cache line over and
/// back.
fn hand_off(a: u32, b: u32) -> Measured<f64> {
    /// Timed together, because a single trip is not much longer than a clock reading.
    const TRIPS: u32 = 16;
    const BATCHES: u32 = 24;
    /// Alone on its cache line and on the neighbouring line that the prefetcher fetches with it.
    #[repr(align(128))]
    struct Line(AtomicU32);

    let line = Line(AtomicU32::new(0));
    let start_line = StartLine::new(2);
    // Thread a raises even numbers, thread b odd ones. Relaxed: only the counter itself is passed.
    let play = |cpu: u32, turn: u32| -> Measured<f64> {
        let pinned = Pinned::to(cpu);
        start_line.wait();
        let mut batches: Vec<f64> = (0..BATCHES)
            .map(|batch| {
                timed(2 * TRIPS as usize, || {
                    for trip in batch * TRIPS..(batch + 1) * TRIPS {
                        let mine = 2 * trip + turn;
                        while line.0.load(Ordering::Relaxed) != mine {
                            std::hint::spin_loop();
                        }
                        line.0.store(mine + 1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        pinned?;
        typical(&mut batches, || "no batch finished".to_owned())
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| play(b, 1));
        let here = scope.spawn(|| play(a, 0));
        joined(other.join())?;
        joined(here.join())
    })
}

/// Memory that was used, then freed, and idle for seconds.
pub(super) struct IdleMemory {
    small: Experiment,
    huge: Experiment,
}

/// For each kind of page.
const IDLE_BATCHES: u32 = 40;

impl IdleMemory {
    pub fn set_aside(bench: &Bench) -> IdleMemory {
        let bytes = 2 * IDLE_BATCHES as usize * HUGE;
        // Touched memory stays mapped until the end, so that no batch gets the memory of an earlier one.
        let small = room_for(bench, bytes).map(|()| {
            let mut kept = Vec::new();
            Box::new(move |_| {
                let mut mapping = AnonymousMapping::new(HUGE, Pages::Small)?;
                let ns = time_small(&mut mapping)?;
                kept.push(mapping);
                Ok(vec![ns])
            }) as Repetition
        });
        let huge = room_for(bench, bytes).and_then(|()| bench.huge.clone()).map(|()| {
            let mut kept = Vec::new();
            Box::new(move |_| {
                let mut mapping = AnonymousMapping::new(HUGE, Pages::Huge)?;
                let ns = time_huge(&mut mapping);
                kept.push(mapping);
                Ok(vec![ns?])
            }) as Repetition
        });
        if small.is_ok()
            && let Ok(mut mapping) = AnonymousMapping::new(bytes, Pages::Huge)
        {
            touch(mapping.bytes(), PAGE);
        }
        IdleMemory {
            small: Experiment::new(&[prices::TOUCH_4K_IDLE], small).alone(),
            huge: Experiment::new(&[prices::TOUCH_2M_IDLE], huge).alone(),
        }
    }

    pub fn measure(&mut self, deadline: Instant) {
        for batch in 0..IDLE_BATCHES {
            if Instant::now() >= deadline {
                return;
            }
            self.small.repeat(batch);
            self.huge.repeat(batch);
        }
    }

    pub fn into_experiments(self) -> [Experiment; 2] {
        [self.small, self.huge]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chain_visits_every_line_once() {
        let lines = 1 << 12;
        let mut words = vec![0; lines * WORDS_A_LINE];
        link(&mut words);
        let mut seen = vec![false; lines];
        let mut at = 0;
        for _ in 0..lines {
            assert_eq!(at % WORDS_A_LINE, 0);
            assert!(!std::mem::replace(&mut seen[at / WORDS_A_LINE], true));
            at = follow(&words, at, 1);
        }
        assert_eq!(at, 0);
    }

    #[test]
    fn a_small_mapping_is_priced_and_a_touched_one_is_refused() {
        let mut mapping = AnonymousMapping::new(HUGE, Pages::Small).unwrap();
        assert!(time_small(&mut mapping).unwrap() > 0.0);
        assert!(time_small(&mut mapping).is_err());
        // Small pages never count as a huge page.
        let mut mapping = AnonymousMapping::new(HUGE, Pages::Small).unwrap();
        assert!(time_huge(&mut mapping).is_err());
    }

    #[test]
    fn a_failed_repetition_leaves_a_reason_and_no_value() {
        let mut experiment = Experiment::new(
            &["a"],
            Ok(Box::new(|round| match round {
                0 => Ok(vec![1.0]),
                _ => Err(Absence::new(Reason::TooLittle, "not this time")),
            })),
        );
        experiment.repeat(0);
        experiment.repeat(1);
        assert_eq!(experiment.series[0].1, [1.0]);
        assert_eq!(experiment.missed.unwrap().detail, "not this time");
    }

    #[test]
    fn work_that_lost_its_cpu_is_discarded() {
        // On a busy machine the CPU may be lost even here, but not every time.
        assert!((0..100).any(|_| undisturbed(|| Ok(1)) == Ok(1)));
        let lost = undisturbed(|| {
            // Until another thread or program takes this CPU, if one does.
            let before = memory::thread_counts().involuntary_switches;
            let cpu = topology::allowed_cpus()?[0];
            let _here = Pinned::to(cpu)?;
            let begun = Instant::now();
            std::thread::scope(|scope| {
                scope.spawn(|| while begun.elapsed() < Duration::from_millis(300) {});
                while begun.elapsed() < Duration::from_millis(300) {}
            });
            Ok(memory::thread_counts().involuntary_switches - before)
        });
        match lost {
            Err(absence) => assert_eq!(absence.reason, Reason::TooLittle),
            Ok(switches) => assert_eq!(switches, 0),
        }
    }

    #[test]
    fn one_cpu_has_no_pairs() {
        let absence = no_such_pair(Relation::SameL3, 1);
        assert!(!absence.mend.is_empty());
        assert!(no_such_pair(Relation::OtherNode, 2).detail.contains("NUMA"));
    }
}
