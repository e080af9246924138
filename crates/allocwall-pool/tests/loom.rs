//! Every protocol at small capacities, in every execution that the memory model allows.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release --test loom --target-dir target/loom`
//!
//! Loom checks each change of a slot's holder and each value. The allocator below checks that the memory of every
//! pool is freed in each of these executions.
#![cfg(loom)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicIsize, Ordering};

use allocwall_pool::{Batches, Pool, lane, sharded};
use loom::{sync::Arc, thread};

static CHUNKS: AtomicIsize = AtomicIsize::new(0);

struct Counting;

// SAFETY: the system's allocator, and a count of allocations with the alignment that only slots have.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CHUNKS.fetch_add((layout.align() == 256 * 1024).into(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        CHUNKS.fetch_sub((layout.align() == 256 * 1024).into(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Loom's `Arc` reports a value that was never dropped.
type Value = Arc<usize>;

fn value(n: usize) -> Value {
    Arc::new(n)
}

/// One test at a time, because they share the count.
fn model(f: impl Fn() + Sync + Send + 'static) {
    static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(|broken| broken.into_inner());
    let mut model = loom::model::Builder::new();
    model.preemption_bound = None;
    // Memory that an earlier, failed test left does not count.
    let before = CHUNKS.load(Ordering::Relaxed);
    model.check(move || f());
    assert_eq!(CHUNKS.load(Ordering::Relaxed), before, "memory was not freed");
}

#[test]
fn a_slot_comes_home_through_a_returner() {
    model(|| {
        let mut pool = Pool::new(1).unwrap();
        let mut home = pool.returner();
        let object = pool.alloc(value(1)).unwrap();
        let other = thread::spawn(move || home.free(object));
        let mut held = value(2);
        let again = loop {
            match pool.alloc(held) {
                Ok(object) => break object,
                Err(full) => held = full.0,
            }
            thread::yield_now();
        };
        assert_eq!(**again, 2);
        other.join().unwrap();
    });
}

#[test]
fn a_bit_flips_back() {
    model(|| {
        // One slot: it may come home twice, with or without a visit of the owner in between.
        let mut pool = Pool::new(1).unwrap();
        let mut home = pool.returner();
        let (first, second) =
            (Arc::new(loom::sync::Mutex::new(None)), Arc::new(loom::sync::Mutex::new(None)));
        *first.lock().unwrap() = Some(pool.alloc(value(1)).unwrap());
        let other = thread::spawn({
            let (first, second) = (first.clone(), second.clone());
            move || {
                home.free(first.lock().unwrap().take().unwrap());
                if let Some(object) = second.lock().unwrap().take() {
                    home.free(object);
                }
            }
        });
        if let Ok(object) = pool.alloc(value(2)) {
            *second.lock().unwrap() = Some(object);
        }
        let _ = pool.alloc(value(3));
        other.join().unwrap();
    });
}

#[test]
fn two_returners_and_two_slots() {
    model(|| {
        let mut pool = Pool::new(2).unwrap();
        let others = [1, 2].map(|n| {
            let (mut home, object) = (pool.returner(), pool.alloc(value(n)).unwrap());
            thread::spawn(move || home.free(object))
        });
        let taken = [pool.alloc(value(3)).ok(), pool.alloc(value(4)).ok()];
        others.into_iter().for_each(|other| other.join().unwrap());
        // In every order, now both are free or held, and none is lost.
        let rest = std::iter::from_fn(|| pool.alloc(value(5)).ok()).collect::<Vec<_>>();
        assert_eq!(taken.iter().flatten().count() + rest.len(), 2);
    });
}

#[test]
fn slots_that_are_dropped_come_home() {
    model(|| {
        let mut pool = Pool::new(2).unwrap();
        let others = [1, 2].map(|n| {
            let object = pool.alloc(value(n)).unwrap();
            thread::spawn(move || drop(object))
        });
        let taken = [pool.alloc(value(3)).ok(), pool.alloc(value(4)).ok()];
        others.into_iter().for_each(|other| other.join().unwrap());
        let rest = std::iter::from_fn(|| pool.alloc(value(5)).ok()).collect::<Vec<_>>();
        assert_eq!(taken.iter().flatten().count() + rest.len(), 2);
    });
}

#[test]
fn slots_of_two_words_come_home_while_the_pool_grows() {
    model(|| {
        let mut pool = Pool::growable(1, 2).unwrap();
        let mut home = pool.returner();
        let [first, second] = [1, 2].map(|n| pool.alloc(value(n)).unwrap());
        let other = thread::spawn(move || [second, first].into_iter().for_each(|object| home.free(object)));
        let early = [pool.alloc(value(3)).ok(), pool.alloc(value(4)).ok()];
        other.join().unwrap();
        let rest = std::iter::from_fn(|| pool.alloc(value(5)).ok()).collect::<Vec<_>>();
        assert_eq!(early.iter().flatten().count() + rest.len(), 2);
    });
}

#[test]
fn the_owner_leaves_while_slots_are_dropped() {
    model(|| {
        let mut pool = Pool::new(2).unwrap();
        let others = [1, 2].map(|n| {
            let object = pool.alloc(value(n)).unwrap();
            thread::spawn(move || drop(object))
        });
        drop(pool);
        others.into_iter().for_each(|other| other.join().unwrap());
    });
}

#[test]
fn the_owner_leaves_while_a_returner_frees_and_leaves() {
    model(|| {
        let mut pool = Pool::new(2).unwrap();
        let mut home = pool.returner();
        let objects = [1, 2].map(|n| pool.alloc(value(n)).unwrap());
        let other = thread::spawn(move || objects.into_iter().for_each(|object| home.free(object)));
        drop(pool);
        other.join().unwrap();
    });
}

#[test]
fn the_owner_leaves_while_one_is_dropped_and_one_returned() {
    model(|| {
        let mut pool = Pool::new(2).unwrap();
        let mut home = pool.returner();
        let [first, second] = [1, 2].map(|n| pool.alloc(value(n)).unwrap());
        let others = [thread::spawn(move || home.free(first)), thread::spawn(move || drop(second))];
        drop(pool);
        others.into_iter().for_each(|other| other.join().unwrap());
    });
}

#[test]
fn a_returner_takes_the_place_of_one_that_left() {
    model(|| {
        let mut pool = Pool::new(1).unwrap();
        let mut home = pool.returner();
        let object = pool.alloc(value(1)).unwrap();
        let other = thread::spawn(move || home.free(object));
        let mut next = pool.returner();
        if let Ok(object) = pool.alloc(value(2)) {
            next.free(object);
        }
        other.join().unwrap();
        drop(next);
        assert!(pool.alloc(value(3)).is_ok());
    });
}

#[test]
fn objects_return_to_their_own_shard() {
    model(|| {
        let (mut pools, mut homes) = sharded(2, 1, 1).unwrap();
        let objects = [0, 1].map(|at| pools[at].alloc(value(at)).unwrap());
        let mut home = homes.pop().unwrap();
        let other = thread::spawn(move || objects.into_iter().for_each(|object| home.free(object)));
        pools.remove(0);
        let early = pools[0].alloc(value(2)).ok();
        other.join().unwrap();
        assert_eq!(pools[0].alloc(value(3)).is_ok(), early.is_none());
    });
}

#[test]
fn an_arena_is_used_again_when_all_of_it_is_home() {
    model(|| {
        let mut batches = Batches::new(1, 2).unwrap();
        let mut home = batches.returner();
        let [first, second] = [1, 2].map(|n| batches.alloc(value(n)).unwrap());
        let others = [thread::spawn(move || home.free(first)), thread::spawn(move || drop(second))];
        let early = [batches.alloc(value(3)).ok(), batches.alloc(value(4)).ok()];
        others.into_iter().for_each(|other| other.join().unwrap());
        let rest = std::iter::from_fn(|| batches.alloc(value(5)).ok()).collect::<Vec<_>>();
        assert_eq!(early.iter().flatten().count() + rest.len(), 2);
    });
}

#[test]
fn the_owner_of_arenas_leaves_while_slots_come_home() {
    model(|| {
        let mut batches = Batches::new(2, 1).unwrap();
        let mut home = batches.returner();
        let [first, second] = [1, 2].map(|n| batches.alloc(value(n)).unwrap());
        let others = [thread::spawn(move || home.free(first)), thread::spawn(move || drop(second))];
        drop(batches);
        others.into_iter().for_each(|other| other.join().unwrap());
    });
}

#[test]
fn a_lane_hands_objects_over_in_order_and_loses_none() {
    model(|| {
        let (mut to, mut from) = lane(2).unwrap();
        let sender = thread::spawn(move || {
            let mut left = vec![];
            for n in 0..3 {
                // An object that does not fit stays here.
                if let Err(full) = to.send(value(n)) {
                    left.push(*full.0);
                }
            }
            left
        });
        let mut seen = vec![];
        for _ in 0..3 {
            seen.extend(from.recv().map(|v| *v));
        }
        let left = sender.join().unwrap();
        // The rest is dropped with the queue; otherwise loom reports it.
        assert!(seen.windows(2).all(|pair| pair[0] < pair[1]), "{seen:?}");
        assert!(seen.iter().all(|n| !left.contains(n)));
    });
}

#[test]
fn a_lane_outlives_either_end() {
    for receiver_first in [true, false] {
        model(move || {
            let (mut to, mut from) = lane(2).unwrap();
            let other = thread::spawn(move || {
                to.send(value(1)).unwrap();
                if receiver_first {
                    to.send(value(2)).unwrap();
                }
            });
            drop(from.recv());
            if receiver_first {
                drop(from);
                other.join().unwrap();
            } else {
                other.join().unwrap();
                drop(from.recv());
                drop(from);
            }
        });
    }
}

#[test]
fn what_is_in_a_lane_without_a_sender_is_the_last() {
    model(|| {
        let (mut to, mut from) = lane(2).unwrap();
        let sender = thread::spawn(move || to.send(value(1)).unwrap());
        if from.is_abandoned() {
            // The sender's object is visible to the first look after that.
            assert_eq!(from.recv().map(|object| *object), Some(1));
            assert!(from.recv().is_none());
        }
        sender.join().unwrap();
        assert!(from.is_abandoned());
    });
}
