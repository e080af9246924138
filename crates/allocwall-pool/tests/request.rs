//! The request arena: a value that fits is stored, a value that does not fit is returned, and a reset frees
//! everything without touching memory.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::rc::Rc;

use allocwall_pool::{BuildError, Full, RequestArena};
use proptest::prelude::*;

/// The system's allocator, with a count of this thread's calls.
struct Counting;

thread_local! {
    static CALLS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system's allocator; the count neither allocates nor has a destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.set(CALLS.get() + 1);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[test]
fn a_value_that_does_not_fit_is_returned() {
    let arena = RequestArena::new(4096).unwrap();
    assert!(arena.capacity() > 4096 - 128 && arena.capacity() < 4096);
    let calls = CALLS.get();
    let whole = arena.alloc_slice(&[7u8; 4096][..arena.capacity()]).unwrap();
    assert!(whole.iter().all(|&byte| byte == 7));
    assert_eq!(arena.remaining(), 0);
    assert_eq!(arena.alloc([1u64; 8]), Err(Full([1u64; 8])));
    assert_eq!(arena.alloc_slice(&[1, 2]), Err(Full(&[1, 2][..])));
    assert_eq!(arena.alloc_str("x"), Err(Full("x")));
    // A value of size 0 always fits.
    assert_eq!(arena.alloc(()), Ok(&mut ()));
    assert_eq!(CALLS.get(), calls, "the arena called malloc");
}

#[test]
fn a_byte_more_than_there_is_does_not_fit() {
    let mut arena = RequestArena::new(1024).unwrap();
    let bytes = vec![0u8; arena.capacity() + 1];
    assert!(arena.alloc_slice(&bytes).is_err());
    assert_eq!(arena.remaining(), arena.capacity());
    assert!(arena.alloc_slice(&bytes[1..]).is_ok());
    arena.reset();
    assert!(arena.alloc_slice(&bytes[1..]).is_ok());
}

#[test]
fn memory_that_is_too_small_is_refused_and_the_smallest_is_not() {
    assert_eq!(RequestArena::new(0).unwrap_err(), BuildError::NoCapacity);
    assert_eq!(RequestArena::new(64).unwrap_err(), BuildError::NoCapacity);
    assert!(RequestArena::new(512).unwrap().alloc(7u64).is_ok());
}

#[test]
fn boxes_of_the_bump_run_their_destructors_within_the_same_memory() {
    let arena = RequestArena::new(4096).unwrap();
    let counted = Rc::new(());
    let before = arena.remaining();
    let boxed = arena.bump().try_alloc(counted.clone()).unwrap();
    assert_eq!(Rc::strong_count(&counted), 2);
    assert!(arena.remaining() < before);
    drop(boxed);
    assert_eq!(Rc::strong_count(&counted), 1);
    // Growth is refused too: there is no second chunk.
    assert!(arena.bump().try_alloc_uninit_slice::<u8>(4096).is_err());
}

#[test]
fn an_arena_may_move_to_another_thread() {
    let mut arena = RequestArena::new(4096).unwrap();
    arena.alloc(1).unwrap();
    std::thread::spawn(move || {
        arena.reset();
        assert_eq!(arena.alloc(2), Ok(&mut 2));
    })
    .join()
    .unwrap();
}

#[cfg(all(target_os = "linux", feature = "std", not(miri)))]
#[test]
fn a_reset_keeps_the_pages_of_a_region() {
    use allocwall_pool::region::{HUGE, Pages, Region, Request, resident_share};
    let region = Region::new(&Request { pages: Pages::Plain, ..Request::of(HUGE) }).unwrap();
    let start = region.as_ptr().as_ptr() as usize;
    let mut arena = RequestArena::over(region).unwrap();
    // Only the header is touched before the memory is used.
    assert!(resident_share(start).unwrap() < 0.01);
    let bytes = vec![1u8; arena.capacity()];
    for _ in 0..3 {
        let copy = arena.alloc_slice(&bytes).unwrap();
        let at = copy.as_ptr() as usize;
        assert!(at >= start && at + copy.len() <= start + HUGE);
        arena.reset();
        assert_eq!(resident_share(start), Ok(1.0));
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 6 } else { 256 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Every object that was stored since the reset has its value and its alignment, and no two overlap.
    #[test]
    fn an_arena_is_a_list_with_a_limit(
        bytes in 512..4096usize,
        requests in prop::collection::vec(prop::collection::vec((0..4usize, any::<u8>()), 0..60), 1..4),
    ) {
        let mut arena = RequestArena::new(bytes).unwrap();
        for request in requests {
            let (mut numbers, mut arrays, mut slices) = (vec![], vec![], vec![]);
            for (kind, n) in request {
                let before = arena.remaining();
                let (stored, size) = match kind {
                    0 => (arena.alloc(u64::from(n)).map(|at| numbers.push((at, n))).is_ok(), 8),
                    1 => (arena.alloc([n; 33]).map(|at| arrays.push((at, n))).is_ok(), 33),
                    2 => (arena.alloc_slice(&vec![u16::from(n); n.into()]).map(|at| slices.push((at, n))).is_ok(),
                        2 * usize::from(n)),
                    _ => (arena.alloc_str(&"x".repeat(n.into())).is_ok(), n.into()),
                };
                if stored {
                    prop_assert!(before - arena.remaining() >= size);
                    prop_assert!(before - arena.remaining() < size + 8);
                } else {
                    prop_assert!(before < size + 8);
                    prop_assert_eq!(arena.remaining(), before);
                }
            }
            for (at, n) in numbers {
                prop_assert_eq!(*at, u64::from(n));
                prop_assert!((&raw const *at).is_aligned());
            }
            for (at, n) in arrays {
                prop_assert_eq!(*at, [n; 33]);
            }
            for (at, n) in slices {
                prop_assert!(at.len() == usize::from(n) && at.iter().all(|&m| m == u16::from(n)));
            }
            arena.reset();
            prop_assert_eq!(arena.remaining(), arena.capacity());
        }
    }
}
