//! The service: what a request allocates, computes and frees, and how many requests it can answer.

use crate::workloads::calls::Calls;
use crate::workloads::computing::Computing;
use allocwall_model::stats::random::Random;
use anyhow::ensure;
use libc::{c_void, size_t};
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Pieces of memory of a request.
const PIECES: usize = 200;
/// Their sizes in bytes. Each doubling of the size is equally frequent.
const SIZES: (f64, f64) = (16.0, 2_048.0);
/// Sizes are drawn once, because drawing one takes as long as a malloc.
const DRAWN: usize = 1_024;
/// Rounds of computing of a request: some ten microseconds.
const ROUNDS: u32 = 32;
/// Blocks that wait for another thread to free them, at most.
const BOX: usize = 1_000;
/// The capacity is that of the best one, because pauses of the machine can only lower it.
const WINDOWS: usize = 4;

struct Block(*mut c_void);
// SAFETY: plain memory from malloc, which belongs to the owner of the block.
unsafe impl Send for Block {}

/// Blocks on their way to the thread that frees them: one box for each worker.
pub struct Mail(Vec<Mutex<Vec<Block>>>);

impl Mail {
    pub fn new(workers: usize) -> Mail {
        Mail((0..workers).map(|_| Mutex::new(Vec::with_capacity(BOX))).collect())
    }

    fn of(&self, worker: usize) -> MutexGuard<'_, Vec<Block>> {
        self.0[worker % self.0.len()].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Frees what is left when the workers have ended.
    pub fn empty(self, calls: Calls) {
        for worker in 0..self.0.len() {
            self.of(worker).drain(..).for_each(|block| free(calls, block));
        }
    }
}

fn free(calls: Calls, block: Block) {
    // SAFETY: from malloc of the same calls. The block is gone then, so it is freed once.
    unsafe { (calls.free)(block.0) }
}

/// Sizes of pieces, in random order.
pub fn sizes(random: &mut Random) -> Vec<usize> {
    let (low, high) = SIZES;
    (0..DRAWN).map(|_| (low * (high / low).powf(random.unit())) as usize).collect()
}

pub struct Worker<'a> {
    index: usize,
    calls: Calls,
    /// With more than one, a request has fewer blocks for the same bytes.
    pieces_per_block: usize,
    sizes: &'a [usize],
    mail: &'a Mail,
    random: Random,
    computing: Computing,
    blocks: Vec<Block>,
    received: Vec<Block>,
}

impl<'a> Worker<'a> {
    pub fn new(
        index: usize,
        calls: Calls,
        pieces_per_block: usize,
        sizes: &'a [usize],
        mail: &'a Mail,
    ) -> Worker<'a> {
        Worker {
            index,
            calls,
            pieces_per_block,
            sizes,
            mail,
            random: Random::new(index as u64),
            computing: Computing::new(),
            blocks: Vec::with_capacity(PIECES),
            received: Vec::with_capacity(BOX),
        }
    }

    /// One request. Half of its blocks are freed by the next worker.
    pub fn answer(&mut self) {
        let calls = self.calls;
        std::mem::swap(&mut *self.mail.of(self.index), &mut self.received);
        self.received.drain(..).for_each(|block| free(calls, block));
        let mut piece = self.random.below(self.sizes.len());
        for _ in 0..PIECES / self.pieces_per_block {
            let mut size = 0;
            for _ in 0..self.pieces_per_block {
                size += self.sizes[piece % self.sizes.len()];
                piece += 1;
            }
            let block = calls.block(size);
            // SAFETY: the block has this size.
            unsafe { block.cast::<u8>().write_bytes(1, size) };
            self.blocks.push(Block(block));
        }
        self.computing.repeat(ROUNDS);
        {
            let mut next = self.mail.of(self.index + 1);
            let half = (self.blocks.len() / 2).min(BOX.saturating_sub(next.len()));
            next.extend(self.blocks.drain(..half));
        }
        self.blocks.drain(..).for_each(|block| free(calls, block));
    }
}

/// Requests per second that this many workers can answer.
///
/// # Errors
/// None was answered.
pub fn capacity(calls: Calls, workers: usize, sizes: &[usize], window: Duration) -> anyhow::Result<f64> {
    let mail = Mail::new(workers);
    let (answered, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let best = std::thread::scope(|scope| {
        for index in 0..workers {
            let mut worker = Worker::new(index, calls, 1, sizes, &mail);
            let (answered, stop) = (&answered, &stop);
            scope.spawn(move || {
                // Relaxed: no other data depends on these.
                while !stop.load(Relaxed) {
                    worker.answer();
                    answered.fetch_add(1, Relaxed);
                }
            });
        }
        let per_s = |_| {
            let (before, began) = (answered.load(Relaxed), Instant::now());
            std::thread::sleep(window);
            (answered.load(Relaxed) - before) as f64 / began.elapsed().as_secs_f64()
        };
        let best = (0..WINDOWS).map(per_s).fold(0.0, f64::max);
        stop.store(true, Relaxed);
        best
    });
    mail.empty(calls);
    ensure!(best > 0.0, "the service answered no request while its capacity was measured");
    Ok(best)
}

/// The malloc of the C library, even if another one was preloaded: all arms get the load that it can serve.
///
/// # Errors
/// The C library is not glibc, or it is linked statically.
pub fn glibc() -> anyhow::Result<Calls> {
    // SAFETY: the library is loaded already, so no code of it runs.
    let library = unsafe { libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    ensure!(
        !library.is_null(),
        "the load is measured with glibc's malloc, but this program has no libc.so.6"
    );
    // By glibc's own names: a look-up of `malloc` would be in the loader's log, as if the library used its own malloc for its calls.
    // SAFETY: an open library and a string with its end. The search begins in the library itself, not in what was preloaded.
    let find = |name: &CStr| unsafe { libc::dlsym(library, name.as_ptr()) };
    let (malloc, free) = (find(c"__libc_malloc"), find(c"__libc_free"));
    ensure!(!malloc.is_null() && !free.is_null(), "libc.so.6 has no __libc_malloc");
    // SAFETY: these are the types of malloc(3) and free(3).
    Ok(unsafe {
        Calls {
            allocate: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(size_t) -> *mut c_void>(malloc),
            free: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void)>(free),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    thread_local! {
        /// Blocks and bytes that this thread allocated, and blocks that it freed.
        static COUNTED: Cell<(usize, usize, usize)> = const { Cell::new((0, 0, 0)) };
    }

    unsafe extern "C" fn allocate(size: size_t) -> *mut c_void {
        let (blocks, bytes, freed) = COUNTED.get();
        COUNTED.set((blocks + 1, bytes + size, freed));
        // SAFETY: malloc has no precondition.
        unsafe { libc::malloc(size) }
    }

    unsafe extern "C" fn release(block: *mut c_void) {
        let (blocks, bytes, freed) = COUNTED.get();
        COUNTED.set((blocks, bytes, freed + 1));
        // SAFETY: from the function above.
        unsafe { libc::free(block) }
    }

    /// Blocks and bytes of some requests by one of two workers, what it freed itself, and what was left for the other.
    fn counted(pieces_per_block: usize, requests: usize) -> (usize, usize, usize, usize) {
        COUNTED.set((0, 0, 0));
        let calls = Calls { allocate, free: release };
        let sizes = vec![100; DRAWN];
        let mail = Mail::new(2);
        let mut worker = Worker::new(0, calls, pieces_per_block, &sizes, &mail);
        (0..requests).for_each(|_| worker.answer());
        let (blocks, bytes, freed) = COUNTED.get();
        drop(worker);
        mail.empty(calls);
        assert_eq!(COUNTED.get().2, blocks, "all are freed at the end");
        (blocks, bytes, freed, blocks - freed)
    }

    #[test]
    fn a_request_has_its_bytes_in_many_blocks_or_in_few() {
        assert_eq!(counted(1, 1), (PIECES, 100 * PIECES, PIECES / 2, PIECES / 2));
        assert_eq!(counted(10, 1), (PIECES / 10, 100 * PIECES, PIECES / 20, PIECES / 20));
    }

    #[test]
    fn what_another_thread_does_not_free_is_bounded() {
        let (blocks, _, freed, left) = counted(1, 20);
        assert_eq!((blocks, left), (20 * PIECES, BOX));
        assert_eq!(freed, 20 * PIECES - BOX);
    }

    #[test]
    fn sizes_are_mixed_and_within_their_bounds() {
        let sizes = sizes(&mut Random::new(5));
        assert!(sizes.iter().all(|size| (16..2_048).contains(size)));
        let small = sizes.iter().filter(|size| **size < 181).count();
        // Half of them are below the middle of the doublings: 16 × √128. Five standard deviations.
        assert!(small.abs_diff(DRAWN / 2) < 80, "{small}");
    }
}
