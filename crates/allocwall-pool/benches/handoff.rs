//! The cost of handing an object of 64 bytes to another CPU: nanoseconds on each side, and throughput at full load.
//!
//! `RUSTFLAGS='--cfg rivals' cargo bench -p allocwall-pool --bench handoff [-- OWNER_CPU CONSUMER_CPU]`. It needs two
//! idle CPUs and about a minute. Without the flag, mimalloc, snmalloc and sharded-slab are neither built nor
//! measured.
//!
//! *alloc*: the owner makes and writes 1,024 objects, one after the other, whose cache lines the consumer had before.
//! The consumer has freed the last 1,024 objects *in the order* in which it got them, or *shuffled*. *free*: the
//! consumer frees the objects, which it has read. *handed over*: through a ring of 1,024 entries, with both sides at
//! full speed.
//!
//! Each figure is the median of interleaved rounds; the order of the ways rotates. Ratios are computed within a
//! round; their 95 % intervals are order statistics around the median (exact, binomial). The first line has no
//! allocator: the same writes into slots in turn, whatever the order of their return. It is not a lower bound: most
//! of the time is spent on fetching lines from the other CPU, and that depends on the order in which both sides
//! access them.
//!
//! Limits of the comparison: there is no other work, so lines move in bulk, and all figures look better than in a
//! program. The general allocators are called for 64 bytes without alignment, so objects may share lines, which
//! favours them; *malloc, aligned* requests the alignment of the pools. All allocators are called directly through
//! the same interface; only malloc is the allocator of the process.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::hint::{black_box, spin_loop};
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use allocwall_pool::{Batched, Batches, Pool, Pooled};

type Order = [u64; 8];

const CAPACITY: usize = 4096;
const BATCH: usize = 1024;
const PHASES: usize = 300;
const HANDED: usize = 400_000;
const ROUNDS: usize = 21;

/// An object that is sent to the consumer, which reads it.
trait Object: Send {
    fn read(&self) -> u64;
}

fn ends(order: &Order) -> u64 {
    order[0] ^ order[7]
}

impl Object for Pooled<Order> {
    #[inline]
    fn read(&self) -> u64 {
        ends(self)
    }
}

impl Object for Batched<Order> {
    #[inline]
    fn read(&self) -> u64 {
        ends(self)
    }
}

/// Sent by value in the queue itself.
impl Object for Order {
    #[inline]
    fn read(&self) -> u64 {
        ends(self)
    }
}

#[repr(align(64))]
struct Line(UnsafeCell<Order>);

/// In a slot of an array that is used in turn, without an allocator.
struct InTurn(&'static Line);

// SAFETY: the phases never have a slot on both sides.
unsafe impl Send for InTurn {}

impl Object for InTurn {
    #[inline]
    fn read(&self) -> u64 {
        // SAFETY: the phases never have a slot on both sides.
        ends(unsafe { &*self.0.0.get() })
    }
}

/// A general allocator, called directly.
trait General: 'static {
    type Of: GlobalAlloc;
    const IT: Self::Of;
    const ALIGN: usize = align_of::<Order>();
}

struct Malloc;
impl General for Malloc {
    type Of = System;
    const IT: System = System;
}

struct Aligned;
impl General for Aligned {
    type Of = System;
    const IT: System = System;
    const ALIGN: usize = 64;
}

#[cfg(rivals)]
struct Mimalloc;
#[cfg(rivals)]
impl General for Mimalloc {
    type Of = mimalloc::MiMalloc;
    const IT: mimalloc::MiMalloc = mimalloc::MiMalloc;
}

#[cfg(rivals)]
struct Snmalloc;
#[cfg(rivals)]
impl General for Snmalloc {
    type Of = snmalloc_rs::SnMalloc;
    const IT: snmalloc_rs::SnMalloc = snmalloc_rs::SnMalloc;
}

struct Owned<G: General>(NonNull<Order>, PhantomData<G>);

// SAFETY: it owns its memory, and the allocators accept frees from any thread.
unsafe impl<G: General> Send for Owned<G> {}

impl<G: General> Owned<G> {
    fn layout() -> Layout {
        Layout::new::<Order>().align_to(G::ALIGN).unwrap()
    }

    #[inline]
    fn new(order: Order) -> Option<Self> {
        // SAFETY: the size is 64 bytes, not zero.
        let at = NonNull::new(unsafe { G::IT.alloc(Self::layout()) })?.cast();
        // SAFETY: just allocated.
        unsafe { at.write(order) };
        Some(Self(at, PhantomData))
    }
}

impl<G: General> Object for Owned<G> {
    #[inline]
    fn read(&self) -> u64 {
        // SAFETY: the object owns this memory.
        ends(unsafe { self.0.as_ref() })
    }
}

impl<G: General> Drop for Owned<G> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: from `alloc` with the same layout, and freed once.
        unsafe { G::IT.dealloc(self.0.as_ptr().cast(), Self::layout()) };
    }
}

#[cfg(rivals)]
struct Slabbed(&'static sharded_slab::Slab<Order>, usize);

#[cfg(rivals)]
impl Object for Slabbed {
    #[inline]
    fn read(&self) -> u64 {
        ends(&self.0.get(self.1).expect("inserted, and not removed"))
    }
}

fn pin(cpu: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    if let Err(error) = rustix::thread::sched_setaffinity(None, &set) {
        eprintln!("not pinned to CPU {cpu}: {error}");
    }
}

/// Aligned to cache lines of its own: data that one CPU writes must not share a line with data that the other CPU
/// polls.
#[repr(align(128))]
struct Apart<T>(T);

// The measured loops are not inlined, so that the loop of every way is compiled separately, as in a program with only
// one. Values that are read go to `black_box`. Values that are stored are hidden in a register. If the object were
// hidden in memory, written by words and copied by vectors, each copy would stall until all earlier stores have
// reached the cache (a failed store forwarding: Intel's Optimization Reference Manual). That costs 20 to 100 ns per
// object or nothing, depending on how the compiler copies.

#[inline(never)]
fn make_all<O>(make: &mut impl FnMut(Order) -> Option<O>, shelf: &mut Vec<O>) -> f64 {
    let begun = Instant::now();
    for n in 0..BATCH {
        shelf.push(make([black_box(n as u64); 8]).expect("capacity is four batches"));
    }
    begun.elapsed().as_nanos() as f64 / BATCH as f64
}

#[inline(never)]
fn read_all<O: Object>(shelf: &[O]) -> u64 {
    shelf.iter().map(Object::read).fold(0, |a, b| a ^ b)
}

#[inline(never)]
fn free_all<O>(free: &mut impl FnMut(O), shelf: &mut Vec<O>) -> f64 {
    let begun = Instant::now();
    for object in shelf.drain(..) {
        free(object);
    }
    begun.elapsed().as_nanos() as f64 / BATCH as f64
}

#[inline(never)]
fn produce<O>(make: &mut impl FnMut(Order) -> Option<O>, to: &mut rtrb::Producer<O>) {
    for n in 0..HANDED {
        let mut object = loop {
            match make([black_box(n as u64); 8]) {
                Some(object) => break object,
                None => spin_loop(),
            }
        };
        while let Err(rtrb::PushError::Full(back)) = to.push(object) {
            object = back;
            spin_loop();
        }
    }
}

#[inline(never)]
fn consume<O: Object>(free: &mut impl FnMut(O), from: &mut rtrb::Consumer<O>) -> u64 {
    let (mut left, mut seen) = (HANDED, 0);
    while left > 0 {
        if let Ok(object) = from.pop() {
            seen ^= object.read();
            free(object);
            left -= 1;
        }
    }
    seen
}

/// xorshift64* (Vigna 2016), and Fisher and Yates's shuffle.
fn shuffle<O>(shelf: &mut [O], state: &mut u64) {
    for last in (1..shelf.len()).rev() {
        *state ^= *state >> 12;
        *state ^= *state << 25;
        *state ^= *state >> 27;
        let with = (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % (last + 1);
        shelf.swap(last, with);
    }
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

/// Nanoseconds per allocation and per free, with the sides running one after the other.
fn phased<O: Object>(
    cpus: [usize; 2],
    shuffled: bool,
    make: &mut impl FnMut(Order) -> Option<O>,
    free: &mut (impl FnMut(O) + Send),
) -> (f64, f64) {
    let turn = Apart(AtomicUsize::new(0));
    let shelf = Apart(Mutex::new(Vec::with_capacity(BATCH)));
    let wait = |until| {
        while turn.0.load(Ordering::Acquire) != until {
            spin_loop();
        }
    };
    thread::scope(|scope| {
        let consumer = scope.spawn(|| {
            pin(cpus[1]);
            let mut state = 0x9e37_79b9_7f4a_7c15;
            let times = (0..PHASES).map(|phase| {
                wait(2 * phase + 1);
                let mut shelf = shelf.0.lock().unwrap();
                if shuffled {
                    shuffle(&mut shelf, &mut state);
                }
                black_box(read_all(&shelf));
                let time = free_all(free, &mut shelf);
                drop(shelf);
                turn.0.store(2 * phase + 2, Ordering::Release);
                time
            });
            median(times.collect())
        });
        pin(cpus[0]);
        let times = (0..PHASES).map(|phase| {
            wait(2 * phase);
            let time = make_all(make, &mut shelf.0.lock().unwrap());
            turn.0.store(2 * phase + 1, Ordering::Release);
            time
        });
        (median(times.collect()), consumer.join().unwrap())
    })
}

/// Millions of objects per second, with both sides running at once.
fn saturated<O: Object>(
    cpus: [usize; 2],
    make: &mut impl FnMut(Order) -> Option<O>,
    free: &mut (impl FnMut(O) + Send),
) -> f64 {
    let (mut to, mut from) = rtrb::RingBuffer::<O>::new(1024);
    let ready = AtomicUsize::new(0);
    thread::scope(|scope| {
        let consumer = scope.spawn(|| {
            pin(cpus[1]);
            ready.store(1, Ordering::Release);
            black_box(consume(free, &mut from));
        });
        pin(cpus[0]);
        while ready.load(Ordering::Acquire) == 0 {
            spin_loop();
        }
        let begun = Instant::now();
        produce(make, &mut to);
        consumer.join().unwrap();
        HANDED as f64 / begun.elapsed().as_secs_f64() / 1e6
    })
}

/// Allocation in order and shuffled, free in order and shuffled, handed over.
type Figures = [f64; 5];

fn all<O: Object>(
    cpus: [usize; 2],
    make: impl FnMut(Order) -> Option<O>,
    free: impl FnMut(O) + Send,
) -> Figures {
    let (mut make, mut free) = (Apart(make), Apart(free));
    let in_order = phased(cpus, false, &mut make.0, &mut free.0);
    let shuffled = phased(cpus, true, &mut make.0, &mut free.0);
    let handed = saturated(cpus, &mut make.0, &mut free.0);
    [in_order.0, shuffled.0, in_order.1, shuffled.1, handed]
}

fn in_turn(cpus: [usize; 2]) -> Figures {
    let slots: &'static [Line] =
        (0..CAPACITY).map(|_| Line(UnsafeCell::new([0; 8]))).collect::<Vec<_>>().leak();
    let mut at = 0;
    let mut make = Apart(move |order| {
        let slot = &slots[at % CAPACITY];
        at += 1;
        // SAFETY: three batches pass before a slot is used again.
        unsafe { *slot.0.get() = order };
        Some(InTurn(slot))
    });
    let (in_order, _) = phased(cpus, false, &mut make.0, &mut drop);
    let (shuffled, _) = phased(cpus, true, &mut make.0, &mut drop);
    [in_order, shuffled, f64::NAN, f64::NAN, f64::NAN]
}

fn by_value(cpus: [usize; 2]) -> Figures {
    let handed = saturated(cpus, &mut Some, &mut drop::<Order>);
    [f64::NAN, f64::NAN, f64::NAN, f64::NAN, handed]
}

fn general<G: General>(cpus: [usize; 2]) -> Figures {
    all(cpus, Owned::<G>::new, drop)
}

#[cfg(rivals)]
fn sharded_slab(cpus: [usize; 2]) -> Figures {
    let slab: &'static sharded_slab::Slab<Order> = Box::leak(Box::default());
    all(
        cpus,
        |order| slab.insert(order).map(|key| Slabbed(slab, key)),
        |Slabbed(slab, key)| {
            slab.remove(key);
        },
    )
}

fn returned(cpus: [usize; 2]) -> Figures {
    let mut pool = Pool::new(CAPACITY).unwrap();
    let mut home = pool.returner();
    all(cpus, move |order| pool.alloc(order).ok(), move |object| home.free(object))
}

fn dropped(cpus: [usize; 2]) -> Figures {
    let mut pool = Pool::new(CAPACITY).unwrap();
    all(cpus, move |order| pool.alloc(order).ok(), drop)
}

fn batches(cpus: [usize; 2]) -> Figures {
    let mut batches = Batches::new(4, CAPACITY / 4).unwrap();
    let mut home = batches.returner();
    all(cpus, move |order| batches.alloc(order).ok(), move |object| home.free(object))
}

type Way = fn([usize; 2]) -> Figures;

const WAYS: &[(&str, Way)] = &[
    ("slots in turn, no allocator", in_turn),
    ("by value", by_value),
    ("malloc", general::<Malloc>),
    ("malloc, aligned", general::<Aligned>),
    #[cfg(rivals)]
    ("mimalloc", general::<Mimalloc>),
    #[cfg(rivals)]
    ("snmalloc", general::<Snmalloc>),
    #[cfg(rivals)]
    ("sharded-slab", sharded_slab),
    (RETURNED, returned),
    ("pool, dropped", dropped),
    ("batch arena, returner", batches),
];
const RETURNED: &str = "pool, returner";

/// The ranks, from 0, of the two order statistics of `n` values that contain the median with at least 95 %
/// confidence: the largest `low` for which the probability of fewer than `low + 1` heads in `n` tosses is at most 2.5
/// %.
fn ranks(n: usize) -> (usize, usize) {
    let (mut low, mut tail, mut term) = (0, 0.0, 0.5f64.powi(n as i32));
    loop {
        tail += term;
        if tail > 0.025 || low > n / 2 {
            break;
        }
        low += 1;
        term *= (n + 1 - low) as f64 / low as f64;
    }
    let low = low.saturating_sub(1);
    (low, n - 1 - low)
}

fn spread(mut of: Vec<f64>) -> String {
    if of.iter().any(|figure| figure.is_nan()) {
        return String::new();
    }
    of.sort_by(f64::total_cmp);
    let (low, high) = ranks(of.len());
    format!("{:.1} ({:.1} to {:.1})", of[of.len() / 2], of[low], of[high])
}

fn main() {
    let cpus: Vec<usize> = std::env::args().filter_map(|arg| arg.parse().ok()).collect();
    let cpus = [cpus.first().copied().unwrap_or(0), cpus.get(1).copied().unwrap_or(1)];
    let mut figures = vec![Vec::<Figures>::new(); WAYS.len()];
    for round in 0..ROUNDS {
        for step in 0..WAYS.len() {
            let way = (round + step) % WAYS.len();
            figures[way].push(WAYS[way].1(cpus));
        }
    }
    let column = |way: usize, at: usize| figures[way].iter().map(|round| round[at]).collect::<Vec<_>>();
    println!("CPUs {} and {}, {ROUNDS} rounds: median (95 %)", cpus[0], cpus[1]);
    let heads = ["alloc, ns", "alloc, shuffled", "free, ns", "free, shuffled", "handed over, M/s"];
    print!("{:28}", "");
    heads.iter().for_each(|head| print!(" {head:>21}"));
    println!();
    for (way, (name, _)) in WAYS.iter().enumerate() {
        print!("{name:28}");
        (0..heads.len()).for_each(|at| print!(" {:>21}", spread(column(way, at))));
        println!();
    }
    let pool = WAYS.iter().position(|(name, _)| *name == RETURNED).expect("the list contains it");
    println!("{RETURNED}: throughput relative to each of the others in the same round, median (95 %)");
    let ours = column(pool, 4);
    for (way, (name, _)) in WAYS.iter().enumerate().filter(|(way, _)| *way != pool) {
        let ratios = ours.iter().zip(column(way, 4)).map(|(ours, other)| ours / other);
        let ratios = spread(ratios.collect());
        if !ratios.is_empty() {
            println!("{name:28} {ratios:>21}");
        }
    }
}
