//! Random sequences of operations, compared with the simplest model: a set of values, and the number of free slots.

use std::collections::BTreeMap;
use std::rc::Rc;

use allocwall_pool::{BatchReturner, Batched, Batches, Buffers, CLASSES, NoBuffer, Pool, Pooled, Returner};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Alloc,
    /// Frees an object: through a returner, by a drop, at the owner, or by moving the value out.
    Free(usize, usize),
    Returner,
    DropReturner(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        5 => Just(Step::Alloc),
        4 => (0..256usize, 0..8usize).prop_map(|(which, how)| Step::Free(which, how)),
        1 => Just(Step::Returner),
        1 => (0..4usize).prop_map(Step::DropReturner),
    ];
    prop::collection::vec(step, 0..if cfg!(miri) { 40 } else { 300 })
}

fn config() -> ProptestConfig {
    ProptestConfig {
        cases: if cfg!(miri) { 6 } else { 256 },
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

/// A value whose count shows whether it is alive.
type Value = Rc<u64>;

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_pool_is_a_set_with_a_limit(
        // A few slots, or about as many as one or two words of the map have.
        capacity in prop_oneof![1..9usize, 60..66usize, 120..130usize],
        more in 0..9usize, steps in steps(), owner_first: bool,
    ) {
        let limit = capacity + more;
        let mut pool = Pool::<Value>::growable(capacity, limit).unwrap();
        let mut other = Pool::<Value>::new(1).unwrap();
        let mut foreign = other.returner();
        let mut returners: Vec<Returner<Value>> = vec![];
        let mut out: Vec<(Pooled<Value>, Value)> = vec![];
        let mut serial = 0;
        for step in steps {
            match step {
                Step::Alloc => {
                    serial += 1;
                    let value = Rc::new(serial);
                    match pool.alloc(value.clone()) {
                        Ok(object) => out.push((object, value)),
                        Err(full) => {
                            // The same value is returned, and only if all slots are out.
                            prop_assert!(Rc::ptr_eq(&full.0, &value));
                            prop_assert_eq!(out.len(), limit);
                        }
                    }
                }
                Step::Free(which, how) if !out.is_empty() => {
                    let (object, value) = out.swap_remove(which % out.len());
                    prop_assert!(Rc::ptr_eq(&object, &value));
                    match (how, returners.len()) {
                        (0, _) => drop(object),
                        (1, _) => pool.free(object),
                        (2, _) => prop_assert!(Rc::ptr_eq(&object.into_inner(), &value)),
                        (3, _) => foreign.free(object),
                        (4, _) => other.free(object),
                        (_, 0) => drop(object),
                        (5, n) => prop_assert!(Rc::ptr_eq(&returners[which % n].take(object), &value)),
                        (_, n) => returners[which % n].free(object),
                    }
                    prop_assert_eq!(Rc::strong_count(&value), 1);
                }
                Step::Returner if returners.len() < 4 => returners.push(pool.returner()),
                Step::DropReturner(which) if which < returners.len() => drop(returners.swap_remove(which)),
                _ => {}
            }
            for (object, value) in &out {
                prop_assert_eq!(***object, **value);
            }
        }
        if owner_first {
            drop(pool);
        } else {
            // Every slot that is not out is home.
            let free = limit - out.len();
            for _ in 0..free {
                out.push((pool.alloc(Rc::new(0)).unwrap(), Rc::new(0)));
            }
            prop_assert!(pool.alloc(Rc::new(0)).is_err());
        }
    }

    #[test]
    fn arenas_are_used_again_only_when_drained(
        arenas in 1..4usize, slots in 1..5usize, more in 0..3usize, steps in steps(), owner_first: bool,
    ) {
        let mut batches = Batches::<Value>::growable(arenas, slots, arenas + more).unwrap();
        let mut other = Batches::<Value>::new(1, 1).unwrap();
        let mut foreign = other.returner();
        let mut returners: Vec<BatchReturner<Value>> = vec![];
        let mut out: Vec<(Batched<Value>, Value, usize)> = vec![];
        // The model: the number of slots out of each arena, the current arena, and the number of slots left in it.
        let mut counts: Vec<usize> = vec![0; arenas];
        let (mut turn, mut left) = (0, slots);
        let mut serial = 0;
        for step in steps {
            match step {
                Step::Alloc => {
                    serial += 1;
                    let value = Rc::new(serial);
                    if left == 0 {
                        let next = (1..=counts.len()).map(|k| (turn + k) % counts.len()).find(|&at| counts[at] == 0);
                        let grown = (next.is_none() && counts.len() < arenas + more).then(|| {
                            counts.push(0);
                            counts.len() - 1
                        });
                        if let Some(at) = next.or(grown) {
                            (turn, left) = (at, slots);
                        }
                    }
                    match batches.alloc(value.clone()) {
                        Ok(object) => {
                            prop_assert!(left > 0);
                            left -= 1;
                            counts[turn] += 1;
                            out.push((object, value, turn));
                        }
                        Err(full) => {
                            prop_assert!(Rc::ptr_eq(&full.0, &value));
                            prop_assert_eq!(left, 0);
                        }
                    }
                    prop_assert_eq!(batches.capacity(), counts.len() * slots);
                }
                Step::Free(which, how) if !out.is_empty() => {
                    let (object, value, arena) = out.swap_remove(which % out.len());
                    counts[arena] -= 1;
                    match (how, returners.len()) {
                        (0, _) | (_, 0) => drop(object),
                        (1, _) => prop_assert!(Rc::ptr_eq(&object.into_inner(), &value)),
                        (2, _) => foreign.free(object),
                        (_, n) => returners[which % n].free(object),
                    }
                    prop_assert_eq!(Rc::strong_count(&value), 1);
                }
                Step::Returner if returners.len() < 4 => returners.push(batches.returner()),
                Step::DropReturner(which) if which < returners.len() => drop(returners.swap_remove(which)),
                _ => {}
            }
            for (object, value, _) in &out {
                prop_assert_eq!(***object, **value);
            }
        }
        if owner_first {
            drop(batches);
        }
    }

    #[test]
    fn a_buffer_has_its_bytes_and_the_smallest_class(lens in prop::collection::vec(0..5000usize, 0..40)) {
        let mut buffers = Buffers::new([2; CLASSES.len()]).unwrap();
        let mut home = buffers.returner();
        let mut used: BTreeMap<usize, usize> = BTreeMap::new();
        let mut out = vec![];
        for (at, len) in lens.into_iter().enumerate() {
            let bytes = vec![at as u8; len];
            let Some(&class) = CLASSES.iter().find(|&&class| class >= len) else {
                prop_assert_eq!(buffers.copy(&bytes).unwrap_err(), NoBuffer::TooLong { len });
                continue;
            };
            let used = used.entry(class).or_default();
            match buffers.copy(&bytes) {
                Ok(buffer) => {
                    *used += 1;
                    out.push((buffer, bytes));
                }
                Err(error) => {
                    prop_assert_eq!(error, NoBuffer::Full { class });
                    prop_assert_eq!(*used, 2);
                }
            }
            prop_assert!(*used <= 2);
        }
        for (at, (buffer, bytes)) in out.into_iter().enumerate() {
            prop_assert_eq!(&*buffer, &bytes[..]);
            if at % 2 == 0 { home.free(buffer) } else { drop(buffer) }
        }
        for class in CLASSES {
            let all = [buffers.zeroed(class).unwrap(), buffers.zeroed(class).unwrap()];
            prop_assert!(all.iter().all(|buffer| buffer.iter().all(|&byte| byte == 0)));
            prop_assert!(buffers.zeroed(class).is_err());
        }
    }
}
