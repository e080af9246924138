//! What it costs to hand an object of 64 bytes to another CPU: nanoseconds on each side, and saturated throughput.
//!
//! `cargo bench --bench handoff [-- OWNER_CPU CONSUMER_CPU]`; wants two CPUs to itself. About 40 s.
//!
//! Each line is the median of interleaved rounds, and their range. *alloc*: the owner makes and writes 1,024 objects, whose lines the
//! consumer had before, one after the other. *free*: the consumer, which has read them, frees them. *handed over*: through a ring
//! of 1,024, both at full speed. The first line has no allocator: the same writes into slots in turn. It is no floor: most of the
//! time goes to fetching lines from the other CPU, and that depends on the order in which both sides come to them.
//! What flatters: no work between, so lines move in bulk; and `malloc` is the process's (try `LD_PRELOAD`).

use std::cell::UnsafeCell;
use std::hint::{black_box, spin_loop};
use std::ops::Deref;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use allocwall_pool::{Batches, Pool};

#[repr(align(64))]
#[derive(Clone, Copy)]
struct Order([u64; 8]);

const CAPACITY: usize = 4096;
const BATCH: usize = 1024;
const PHASES: usize = 400;
const HANDED: usize = 400_000;
const ROUNDS: usize = 15;

/// An object that is no handle: it travels in the queue itself.
struct ByValue(Order);

impl Deref for ByValue {
    type Target = Order;
    fn deref(&self) -> &Order {
        &self.0
    }
}

/// An object in a slot that is simply used in turn.
struct InTurn(&'static UnsafeCell<Order>);

// SAFETY: the phases never have a slot on both sides.
unsafe impl Send for InTurn {}

impl Deref for InTurn {
    type Target = Order;
    fn deref(&self) -> &Order {
        // SAFETY: as above.
        unsafe { &*self.0.get() }
    }
}

fn pin(cpu: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    if let Err(error) = rustix::thread::sched_setaffinity(None, &set) {
        eprintln!("not pinned to CPU {cpu}: {error}");
    }
}

// Out of line, so that every variant's loop is compiled alone, as in a program that has one of them.
#[inline(never)]
fn make_all<O>(make: &mut impl FnMut(Order) -> Option<O>, shelf: &mut Vec<O>) -> f64 {
    let begun = Instant::now();
    for n in 0..BATCH {
        shelf.push(make(black_box(Order([n as u64; 8]))).expect("capacity is four batches"));
    }
    begun.elapsed().as_nanos() as f64 / BATCH as f64
}

#[inline(never)]
fn free_all<O: Deref<Target = Order>>(free: &mut impl FnMut(O), shelf: &mut Vec<O>) -> f64 {
    black_box(
        shelf
            .iter()
            .map(|object| object.0[0] ^ object.0[7])
            .fold(0, |a, b| a ^ b),
    );
    let begun = Instant::now();
    while let Some(object) = shelf.pop() {
        free(object);
    }
    begun.elapsed().as_nanos() as f64 / BATCH as f64
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

/// Nanoseconds an allocation and a free, each side in its turn.
fn phased<O: Deref<Target = Order> + Send>(
    cpus: [usize; 2],
    mut make: impl FnMut(Order) -> Option<O>,
    mut free: impl FnMut(O) + Send,
) -> (f64, f64) {
    let turn = AtomicUsize::new(0);
    let shelf = Mutex::new(Vec::with_capacity(BATCH));
    let wait = |until| {
        while turn.load(Ordering::Acquire) != until {
            spin_loop();
        }
    };
    thread::scope(|scope| {
        let consumer = scope.spawn(|| {
            pin(cpus[1]);
            let times = (0..PHASES).map(|phase| {
                wait(2 * phase + 1);
                let time = free_all(&mut free, &mut shelf.lock().unwrap());
                turn.store(2 * phase + 2, Ordering::Release);
                time
            });
            median(times.collect())
        });
        pin(cpus[0]);
        let times = (0..PHASES).map(|phase| {
            wait(2 * phase);
            let time = make_all(&mut make, &mut shelf.lock().unwrap());
            turn.store(2 * phase + 1, Ordering::Release);
            time
        });
        (median(times.collect()), consumer.join().unwrap())
    })
}

/// Millions of objects a second, both sides at once.
fn saturated<O: Deref<Target = Order> + Send>(
    cpus: [usize; 2],
    mut make: impl FnMut(Order) -> Option<O>,
    mut free: impl FnMut(O) + Send,
) -> f64 {
    let (mut to, mut from) = rtrb::RingBuffer::<O>::new(1024);
    let ready = AtomicUsize::new(0);
    thread::scope(|scope| {
        let consumer = scope.spawn(|| {
            pin(cpus[1]);
            ready.store(1, Ordering::Release);
            let (mut left, mut seen) = (HANDED, 0);
            while left > 0 {
                if let Ok(object) = from.pop() {
                    seen ^= object.0[0] ^ object.0[7];
                    free(object);
                    left -= 1;
                }
            }
            black_box(seen);
        });
        pin(cpus[0]);
        while ready.load(Ordering::Acquire) == 0 {
            spin_loop();
        }
        let begun = Instant::now();
        for n in 0..HANDED {
            let order = black_box(Order([n as u64; 8]));
            let mut object = loop {
                match make(order) {
                    Some(object) => break object,
                    None => spin_loop(),
                }
            };
            while let Err(rtrb::PushError::Full(back)) = to.push(object) {
                object = back;
                spin_loop();
            }
        }
        consumer.join().unwrap();
        HANDED as f64 / begun.elapsed().as_secs_f64() / 1e6
    })
}

type Figures = [f64; 3];

fn in_turn(cpus: [usize; 2]) -> Figures {
    let slots = (0..CAPACITY)
        .map(|_| UnsafeCell::new(Order([0; 8])))
        .collect::<Vec<_>>()
        .leak();
    let mut at = 0;
    let make = |order| {
        let slot = &slots[at % CAPACITY];
        at += 1;
        // SAFETY: three batches pass before a slot's next turn.
        unsafe { *slot.get() = order };
        Some(InTurn(slot))
    };
    let (made, freed) = phased(cpus, make, drop);
    [made, freed, f64::NAN]
}

fn by_value(cpus: [usize; 2]) -> Figures {
    [
        f64::NAN,
        f64::NAN,
        saturated(cpus, |order| Some(ByValue(order)), drop),
    ]
}

fn malloc(cpus: [usize; 2]) -> Figures {
    let make = |order| Some(Box::new(order));
    let (made, freed) = phased(cpus, make, drop);
    [made, freed, saturated(cpus, make, drop)]
}

fn returned(cpus: [usize; 2]) -> Figures {
    let mut pool = Pool::new(CAPACITY).unwrap();
    let mut home = [pool.returner(), pool.returner()];
    let [first, second] = &mut home;
    let (made, freed) = phased(cpus, |order| pool.alloc(order).ok(), |object| first.free(object));
    [
        made,
        freed,
        saturated(cpus, |order| pool.alloc(order).ok(), |object| second.free(object)),
    ]
}

fn dropped(cpus: [usize; 2]) -> Figures {
    let mut pool = Pool::new(CAPACITY).unwrap();
    let (made, freed) = phased(cpus, |order| pool.alloc(order).ok(), drop);
    [made, freed, saturated(cpus, |order| pool.alloc(order).ok(), drop)]
}

fn batches(cpus: [usize; 2]) -> Figures {
    let mut batches = Batches::new(4, CAPACITY / 4).unwrap();
    let mut home = [batches.returner(), batches.returner()];
    let [first, second] = &mut home;
    let (made, freed) = phased(
        cpus,
        |order| batches.alloc(order).ok(),
        |object| first.free(object),
    );
    [
        made,
        freed,
        saturated(
            cpus,
            |order| batches.alloc(order).ok(),
            |object| second.free(object),
        ),
    ]
}

type Way = fn([usize; 2]) -> Figures;

const WAYS: [(&str, Way); 6] = [
    ("slots in turn, no allocator", in_turn),
    ("by value", by_value),
    ("malloc", malloc),
    ("pool, returner", returned),
    ("pool, dropped", dropped),
    ("batch arena, returner", batches),
];

fn main() {
    let cpus: Vec<usize> = std::env::args().filter_map(|arg| arg.parse().ok()).collect();
    let cpus = [
        cpus.first().copied().unwrap_or(0),
        cpus.get(1).copied().unwrap_or(1),
    ];
    let mut figures: [Vec<Figures>; WAYS.len()] = Default::default();
    for round in 0..ROUNDS {
        // Each way comes at each place in its turn.
        for step in 0..WAYS.len() {
            let way = (round + step) % WAYS.len();
            figures[way].push(WAYS[way].1(cpus));
        }
    }
    println!(
        "CPUs {} and {}, {ROUNDS} rounds: median (range)",
        cpus[0], cpus[1]
    );
    println!(
        "{:28} {:>26} {:>26} {:>26}",
        "", "alloc, ns", "free, ns", "handed over, M/s"
    );
    for ((name, _), rounds) in WAYS.iter().zip(figures) {
        let cells = [0, 1, 2].map(|at| {
            let mut of: Vec<f64> = rounds.iter().map(|figures| figures[at]).collect();
            of.sort_by(f64::total_cmp);
            if of[0].is_nan() {
                return String::new();
            }
            format!(
                "{:.1} ({:.1} to {:.1})",
                of[of.len() / 2],
                of[0],
                of[of.len() - 1]
            )
        });
        println!("{name:28} {:>26} {:>26} {:>26}", cells[0], cells[1], cells[2]);
    }
}
