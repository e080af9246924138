//! Real threads: no slot is lost, no call waits, and the memory is freed with the last slot, in any order of thread
//! ends.
//!
//! `ALLOCWALL_POOL_SOAK=600 cargo test --release --test threads soak` runs for ten minutes instead of one second.

use std::cell::UnsafeCell;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicIsize, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use allocwall_pool::{Batches, BuildError, MAX_SLOT, Memory, Pool, Pooled, sharded};

/// Counts the live objects, and detects a second drop.
struct Value {
    alive: Arc<AtomicIsize>,
    n: usize,
    guard: u64,
}

const ALIVE: u64 = 0x5afe;

impl Value {
    fn new(alive: &Arc<AtomicIsize>, n: usize) -> Self {
        alive.fetch_add(1, Ordering::Relaxed);
        Self { alive: alive.clone(), n, guard: ALIVE }
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        assert_eq!(self.guard, ALIVE, "dropped twice, or overwritten");
        self.guard = 0;
        self.alive.fetch_sub(1, Ordering::Relaxed);
    }
}

/// xorshift64* (Vigna 2016): good enough to vary the order of operations.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % limit
    }
}

/// With a slab of 4,096 slots, a forward queue of 1,024 and a return queue of 1,024 that is drained only when the
/// slab is empty, the consumer waits for the return queue and the producer waits for the forward queue, for ever.
/// Here the return path accepts every slot, so both ends make progress.
#[test]
fn the_published_free_lists_deadlock_is_none_here() {
    let rounds = if cfg!(miri) { 200 } else { 300_000 };
    let (capacity, forward) = if cfg!(miri) { (16, 4) } else { (4096, 1024) };
    let deadline = Instant::now() + Duration::from_secs(100);
    for through_returner in [true, false] {
        let mut pool = Pool::new(capacity).unwrap();
        let mut home = pool.returner();
        let (mut tx, mut rx) = rtrb::RingBuffer::<Pooled<[usize; 8]>>::new(forward);
        let consumer = thread::spawn(move || {
            let mut next = 0;
            while next < rounds {
                match rx.pop() {
                    Ok(object) => {
                        assert_eq!(*object, [next; 8]);
                        next += 1;
                        if through_returner { home.free(object) } else { drop(object) }
                    }
                    Err(_) => thread::yield_now(),
                }
            }
        });
        for n in 0..rounds {
            let mut object = loop {
                match pool.alloc([n; 8]) {
                    Ok(object) => break object,
                    Err(_) => thread::yield_now(),
                }
                assert!(Instant::now() < deadline, "no slot comes home");
            };
            while let Err(rtrb::PushError::Full(back)) = tx.push(object) {
                object = back;
                thread::yield_now();
                assert!(Instant::now() < deadline, "the consumer makes no progress");
            }
        }
        consumer.join().unwrap();
    }
}

/// The problem of magazines: slots that a consumer holds back until its magazine is full.
#[test]
fn an_idle_consumer_keeps_no_slot_back() {
    let mut pool = Pool::new(1).unwrap();
    let mut home = pool.returner();
    let (tx, rx) = mpsc::channel::<Pooled<u8>>();
    let (done, freed) = mpsc::channel();
    let consumer = thread::spawn(move || {
        for object in rx {
            home.free(object);
            done.send(()).unwrap();
        }
    });
    for n in 0..100 {
        tx.send(pool.alloc(n).expect("the only slot is home")).unwrap();
        freed.recv().unwrap();
    }
    drop(tx);
    consumer.join().unwrap();
}

#[test]
fn many_producers_and_many_consumers() {
    let (producers, consumers, each) = if cfg!(miri) { (2, 2, 30) } else { (3, 3, 20_000) };
    let alive = Arc::new(AtomicIsize::new(0));
    let (pools, homes) = sharded::<Value>(producers, consumers, 32).unwrap();
    let sum = Arc::new(AtomicUsize::new(0));
    let (txs, threads): (Vec<_>, Vec<_>) = homes
        .into_iter()
        .map(|mut home| {
            let (tx, rx) = mpsc::sync_channel::<Pooled<Value>>(16);
            let sum = sum.clone();
            let consumer = thread::spawn(move || {
                for object in rx {
                    sum.fetch_add(object.n, Ordering::Relaxed);
                    home.free(object);
                }
            });
            (tx, consumer)
        })
        .unzip();
    let producers: Vec<_> = pools
        .into_iter()
        .map(|mut pool| {
            let (txs, alive) = (txs.clone(), alive.clone());
            thread::spawn(move || {
                for n in 0..each {
                    let mut value = Value::new(&alive, n);
                    let object = loop {
                        match pool.alloc(value) {
                            Ok(object) => break object,
                            Err(full) => value = full.0,
                        }
                        thread::yield_now();
                    };
                    txs[n % txs.len()].send(object).unwrap();
                }
            })
        })
        .collect();
    let made = producers.len() * (each * (each - 1) / 2);
    producers.into_iter().for_each(|producer| producer.join().unwrap());
    drop(txs);
    threads.into_iter().for_each(|consumer| consumer.join().unwrap());
    assert_eq!(sum.load(Ordering::Relaxed), made);
    assert_eq!(alive.load(Ordering::Relaxed), 0);
}

/// Memory that records when it is dropped.
struct Told(Vec<UnsafeCell<u64>>, Arc<AtomicUsize>);

// SAFETY: no other code uses the vector.
unsafe impl Memory for Told {
    fn base(&self) -> NonNull<u8> {
        NonNull::from(&self.0[..]).cast()
    }
    fn len(&self) -> usize {
        self.0.len() * 8
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        self.1.fetch_add(1, Ordering::Relaxed);
    }
}

fn told(bytes: usize) -> (Told, Arc<AtomicUsize>) {
    let gone = Arc::new(AtomicUsize::new(0));
    // Miri takes seconds to make millions of cells one by one.
    let mut zeros = ManuallyDrop::new(vec![0_u64; bytes / 8]);
    // SAFETY: the parts of a vector that is not used again; an `UnsafeCell` has the layout of what is in it.
    let words = unsafe { Vec::from_raw_parts(zeros.as_mut_ptr().cast(), zeros.len(), zeros.capacity()) };
    (Told(words, gone.clone()), gone)
}

#[test]
fn memory_goes_with_the_last_slot_and_not_before() {
    for owner_goes in 0..3 {
        let (memory, gone) = told(CHUNKS * CHUNK);
        let mut pool = Some(Pool::<[u8; SLOT]>::over(memory).unwrap());
        let mut home = Some(pool.as_mut().unwrap().returner());
        let mut objects: Vec<_> = (0..2).map(|n| pool.as_mut().unwrap().alloc([n; SLOT]).unwrap()).collect();
        for step in 0..3 {
            if step == owner_goes {
                pool = None;
            }
            match step {
                0 => home.as_mut().unwrap().free(objects.pop().unwrap()),
                1 => home = None,
                _ => objects.clear(),
            }
            if step < 2 {
                assert_eq!(gone.load(Ordering::Relaxed), 0);
            }
        }
        drop(pool);
        assert_eq!(gone.load(Ordering::Relaxed), 1);
    }
}

/// The number of chunks of 256 KiB. In memory that is not aligned, all chunks except the last one can be aligned.
const CHUNKS: usize = if cfg!(miri) { 2 } else { 4 };
const CHUNK: usize = 256 << 10;
/// Bytes of a slot: large under Miri, so that there are few slots; otherwise the smallest.
const SLOT: usize = if cfg!(miri) { 4096 } else { 64 };
/// The chunk's header takes the place of one slot.
const PER_CHUNK: usize = CHUNK / SLOT - 1;

#[test]
fn a_pool_over_memory_uses_the_aligned_part() {
    let mut pool = Pool::<[u8; SLOT]>::over(told(CHUNKS * CHUNK).0).unwrap();
    assert!(((CHUNKS - 1) * PER_CHUNK..=CHUNKS * PER_CHUNK).contains(&pool.capacity()));
    let mut all: Vec<_> = std::iter::from_fn(|| pool.alloc([1; SLOT]).ok()).collect();
    assert_eq!(all.len(), pool.capacity());
    // Each object has a slot of its own, and each slot comes home.
    all.sort_by_key(|object| &raw const **object as usize);
    assert!(all.windows(2).all(|pair| &raw const *pair[1] as usize - &raw const *pair[0] as usize >= SLOT));
    let mut home = pool.returner();
    for (at, object) in all.into_iter().enumerate() {
        match at % 3 {
            0 => home.free(object),
            1 => pool.free(object),
            _ => drop(object),
        }
    }
    let again: Vec<_> = std::iter::from_fn(|| pool.alloc([2; SLOT]).ok()).collect();
    assert_eq!(again.len(), pool.capacity());
    assert!(matches!(Pool::<u8>::over(told(64).0), Err(BuildError::NoCapacity)));
}

#[test]
fn arenas_over_memory_are_of_whole_chunks_and_keep_it() {
    let (memory, gone) = told(CHUNKS * CHUNK);
    let mut batches = Batches::<[u8; SLOT]>::over(memory, CHUNKS - 1).unwrap();
    // There is one more chunk than arenas only if the memory happens to be aligned.
    assert_eq!(batches.capacity(), (CHUNKS - 1) * PER_CHUNK);
    let mut home = batches.returner();
    for n in 0..2 * batches.capacity() {
        home.free(batches.alloc([n as u8; SLOT]).expect("each arena drains"));
    }
    let last = batches.alloc([7; SLOT]).unwrap();
    drop((batches, home));
    assert_eq!(gone.load(Ordering::Relaxed), 0);
    assert_eq!(*last, [7; SLOT]);
    drop(last);
    assert_eq!(gone.load(Ordering::Relaxed), 1);
}

#[test]
fn arenas_over_too_little_memory_are_refused() {
    let (memory, gone) = told(CHUNKS * CHUNK);
    let refused = Batches::<u8>::over(memory, CHUNKS + 1);
    assert_eq!(refused.unwrap_err(), BuildError::NoCapacity);
    assert_eq!(gone.load(Ordering::Relaxed), 1);
    assert_eq!(Batches::<u8>::over(told(CHUNK).0, 0).unwrap_err(), BuildError::NoCapacity);
}

#[test]
fn slots_have_the_alignment_of_their_type_and_a_line_of_their_own() {
    #[repr(align(512))]
    struct Wide(#[allow(dead_code)] [u8; 513]);
    // More than one chunk each, except under Miri.
    let (wide, bytes) = if cfg!(miri) { (20, 20) } else { (600, 9000) };
    let mut pool = Pool::new(wide).unwrap();
    let mut objects: Vec<_> = (0..wide).map(|n| pool.alloc(Wide([n as u8; 513])).unwrap()).collect();
    objects.sort_by_key(|object| &raw const **object as usize);
    for pair in objects.windows(2) {
        let [a, b] = [&raw const *pair[0] as usize, &raw const *pair[1] as usize];
        assert!(a % 512 == 0 && b - a >= 1024);
    }
    let mut small = Pool::new(bytes).unwrap();
    let mut bytes: Vec<_> = (0..bytes).map(|_| small.alloc(0u8).unwrap()).map(Pooled::into_raw).collect();
    bytes.sort();
    assert!(bytes.windows(2).all(|pair| pair[1].as_ptr() as usize - pair[0].as_ptr() as usize >= 64));
    // SAFETY: each from `into_raw`, once.
    bytes.into_iter().for_each(|raw| drop(unsafe { Pooled::from_raw(raw) }));
}

#[test]
fn constructors_return_errors() {
    assert_eq!(Pool::<u8>::new(0).unwrap_err(), BuildError::NoCapacity);
    assert_eq!(
        Pool::<u8>::growable(2, 1).unwrap_err().to_string(),
        "the limit of 1 slots is below the capacity of 2"
    );
    assert!(Pool::<[u8; MAX_SLOT]>::new(1).is_ok());
    assert!(matches!(Pool::<[u8; MAX_SLOT + 1]>::new(1), Err(BuildError::SlotTooLarge { .. })));
    assert!(matches!(Pool::<u8>::growable(1, usize::MAX), Err(BuildError::OutOfMemory { .. })));
    assert!(matches!(Pool::<u8>::new(usize::MAX / 2), Err(BuildError::OutOfMemory { .. })));
    // More counts than any machine has memory for. Miri aborts when memory is exhausted.
    if !cfg!(miri) {
        assert!(matches!(Batches::<u8>::growable(1, 1, 1 << 50), Err(BuildError::OutOfMemory { .. })));
    }
    assert_eq!(Batches::<u8>::new(0, 1).unwrap_err(), BuildError::NoCapacity);
    assert_eq!(Batches::<u8>::new(1, 0).unwrap_err(), BuildError::NoCapacity);
}

/// Maps for the whole limit would take 2^39 bytes.
#[test]
fn a_limit_beyond_all_memory_costs_nothing_until_the_pool_grows() {
    let mut pool = Pool::<u64>::growable(1, 1 << 45).unwrap();
    let mut home = pool.try_returner().unwrap();
    let mut out = Vec::new();
    for n in 0..1000 {
        out.push(pool.alloc(n).unwrap());
        if n == 100 {
            // A returner that is made in between has as many segments as the others.
            let mut second = pool.returner();
            out.drain(..).for_each(|object| second.free(object));
        }
    }
    assert_eq!(pool.capacity(), 1024);
    // From every segment, in all three ways.
    for (n, object) in out.drain(..).enumerate() {
        match n % 3 {
            0 => home.free(object),
            1 => drop(object),
            _ => pool.free(object),
        }
    }
    let again: Vec<_> = (0..1024).map(|n| pool.alloc(n).unwrap()).collect();
    assert_eq!(pool.capacity(), 1024);
    // The last party to leave finds all of them in every segment.
    drop(pool);
    again.into_iter().for_each(|object| home.free(object));
}

#[test]
fn a_destructor_that_panics_loses_no_slot() {
    struct Angry;
    impl Drop for Angry {
        fn drop(&mut self) {
            panic!("on purpose");
        }
    }
    let mut pool = Pool::new(1).unwrap();
    let mut home = pool.returner();
    for way in 0..3 {
        let object = pool.alloc(Angry).expect("the slot is home");
        let ended = catch_unwind(AssertUnwindSafe(|| match way {
            0 => drop(object),
            1 => home.free(object),
            _ => pool.free(object),
        }));
        assert!(ended.is_err());
    }
    let last = pool.alloc(Angry).expect("the slot is home");
    assert!(catch_unwind(AssertUnwindSafe(|| drop(last))).is_err());
}

/// Owners and consumers that end at random: early, late, while they hold objects, in a panic.
#[test]
fn soak() {
    let seconds = std::env::var("ALLOCWALL_POOL_SOAK").map_or(1, |text| text.parse().expect("seconds"));
    let deadline = Instant::now() + Duration::from_secs(seconds);
    let alive = Arc::new(AtomicIsize::new(0));
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let (mut lives, mut threads) = (0, 0);
    loop {
        threads += pool_life(&mut random, &alive) + batch_life(&mut random, &alive);
        assert_eq!(alive.load(Ordering::Relaxed), 0);
        lives += 2;
        if Instant::now() > deadline || cfg!(miri) {
            break;
        }
    }
    println!("{lives} pools and arenas, and {threads} consumers, were created and dropped");
}

/// The same test for both kinds, which have the same methods.
macro_rules! life {
    ($name:ident, $build:expr, $unusable:expr) => {
        fn $name(random: &mut Random, alive: &Arc<AtomicIsize>) -> usize {
            let mut pool = $build(random);
            let objects = if cfg!(miri) { 40 } else { 4000 };
            let mut consumers = vec![];
            let mut txs = vec![];
            let owner_dies_at = random.below(2 * objects);
            for n in 0..objects {
                if n == owner_dies_at {
                    break;
                }
                if txs.is_empty() || txs.len() < 3 && random.below(100) == 0 {
                    let (tx, rx) = mpsc::sync_channel(1 + random.below(64));
                    let (mut home, mut random) = (pool.returner(), Random(1 + random.below(1 << 30) as u64));
                    txs.push(tx);
                    consumers.push(thread::spawn(move || {
                        let life = 1 + random.below(objects);
                        let mut kept = vec![];
                        for object in rx.iter().take(life) {
                            match random.below(4) {
                                0 => drop(object),
                                1 if kept.len() < 4 => kept.push(object),
                                _ => home.free(object),
                            }
                            if random.below(8) == 0 {
                                kept.pop();
                            }
                        }
                        if random.below(4) == 0 {
                            // A panic, which drops everything that the consumer holds.
                            std::panic::resume_unwind(Box::new("a thread's death"));
                        }
                    }));
                }
                if let Ok(object) = pool.alloc(Value::new(alive, n)) {
                    let to = random.below(txs.len());
                    if let Err(mpsc::SendError(object)) = txs[to].send(object) {
                        drop(object);
                        drop(txs.swap_remove(to));
                    }
                }
            }
            let threads = consumers.len();
            if random.below(2) == 0 {
                drop(pool);
                drop(txs);
                consumers.into_iter().for_each(|consumer| drop(consumer.join()));
            } else {
                drop(txs);
                consumers.into_iter().for_each(|consumer| drop(consumer.join()));
                // All threads have ended, so every slot is home.
                let all: Vec<_> = std::iter::from_fn(|| pool.alloc(Value::new(alive, 0)).ok()).collect();
                assert!(all.len() + $unusable >= pool.capacity() && pool.capacity() >= all.len());
            }
            threads
        }
    };
}

life!(pool_life, |random: &mut Random| Pool::<Value>::growable(8 + random.below(40), 64).unwrap(), 0);
// Used slots of the current arena are not free until that arena has drained.
life!(batch_life, |random: &mut Random| Batches::<Value>::growable(2, 1 + random.below(40), 4).unwrap(), 40);
