//! The allocator's own code, and the blocks that it fills: call rate, large allocations, contention, remote free.

use super::clock::{Watch, thread_cpu_ns};
use super::process;
use super::stage::{Base, Stage};
use allocwall_host::cycles::Cycles;
use anyhow::{Context, Result};
use libc::{c_void, size_t};
use std::hint::black_box;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};

/// The calls go through pointers that the compiler cannot follow. Otherwise it may remove a malloc whose block is unused.
#[derive(Clone, Copy)]
pub(crate) struct Calls {
    pub allocate: unsafe extern "C" fn(size_t) -> *mut c_void,
    pub free: unsafe extern "C" fn(*mut c_void),
}

impl Calls {
    /// A new block.
    #[inline]
    pub fn block(self, size: size_t) -> *mut c_void {
        // SAFETY: malloc has no precondition.
        let block = unsafe { (self.allocate)(size) };
        assert!(!block.is_null(), "out of memory");
        block
    }
}

pub(crate) fn real() -> Calls {
    black_box(Calls { allocate: libc::malloc, free: libc::free })
}

const SMALL: [usize; 8] = [24, 40, 64, 96, 32, 160, 56, 256];
const PAIRS: usize = 16_384;

/// Each block comes from the thread cache and goes back there. All of the time counts as time of the calls, because there is
/// very little other work. The cost of calls of a no-op is not subtracted: the processor overlaps it with the real calls, so
/// the result would be too small.
#[inline(never)]
fn small_pairs(calls: Calls) {
    let pair = |size| {
        // SAFETY: free gets the block from malloc, once.
        unsafe { (calls.free)((calls.allocate)(size)) };
    };
    // Unrolled by hand: in debug builds an iterator would cost as much as a call.
    for _ in 0..PAIRS / 8 {
        pair(24);
        pair(40);
        pair(64);
        pair(96);
        pair(32);
        pair(160);
        pair(56);
        pair(256);
    }
}

/// Many small blocks; each call takes the fast path. The twin uses its own pool.
pub fn call_rate(stage: &Stage) -> Result<()> {
    let twin = stage.options.twin;
    let worker = |_| {
        let calls = real();
        let mut pool: [Vec<Box<[u8]>>; SMALL.len()] =
            SMALL.map(|size| (0..4).map(|_| vec![0; size].into()).collect());
        stage.mix(Base::Cpu, || {
            stage.operations.add(PAIRS as i64);
            let start = thread_cpu_ns();
            if twin {
                for i in 0..PAIRS {
                    let shelf = &mut pool[i % SMALL.len()];
                    let block = black_box(shelf.pop());
                    shelf.extend(block);
                }
                return (thread_cpu_ns() - start) as i64;
            }
            small_pairs(calls);
            let in_allocator = (thread_cpu_ns() - start) as i64;
            stage.line(0).add(in_allocator);
            in_allocator
        });
    };
    stage.perform(worker, |_| Ok(()))
}

/// Allocates and frees `room` bytes in the calling thread's arena. A block above them stays allocated, so that the arena is never
/// trimmed. With less room than the subject's blocks need, the subject would also cause page faults and map calls.
pub(crate) fn make_room(calls: Calls, room: usize) {
    const PIECE: usize = 2_000;
    // SAFETY: each piece is freed once; the last block is kept on purpose.
    unsafe {
        let pieces: Vec<*mut c_void> = (0..room / PIECE).map(|_| (calls.allocate)(PIECE)).collect();
        for &piece in &pieces {
            assert!(!piece.is_null(), "out of memory");
            piece.cast::<u8>().write_bytes(1, PIECE);
        }
        black_box((calls.allocate)(PIECE));
        for piece in pieces {
            (calls.free)(piece);
        }
    }
}

/// Below the mmap threshold (128 KiB), so that the blocks are on memory of the heap, and calloc itself fills them with
/// zeros.
const ZEROED: [usize; 4] = [64 << 10, 96 << 10, 72 << 10, 88 << 10];
const ZEROED_ROOM: usize = 2 << 20;

const MEASURED_EVERY: u64 = 8;
const CALIBRATION_NS: u64 = 20_000_000;

/// calloc jumps to memset: its caller shows the call only if that is direct, and no jump either. A loop keeps the address of calloc
/// in a register.
#[inline(never)]
fn zeroed(size: usize) -> *mut c_void {
    // SAFETY: calloc has no precondition.
    black_box(unsafe { libc::calloc(1, black_box(size)) })
}

/// The cycles between two readings of the clock, one after the other.
fn reading(clock: Cycles) -> u64 {
    let begun = clock.now();
    clock.now().saturating_sub(begun)
}

/// The time in ns that malloc and free take for these blocks, if all of each is written meanwhile.
fn finding(clock: Cycles, reading_ns: f64, calls: Calls) -> f64 {
    let of = |size: usize| {
        let begun = clock.now();
        // SAFETY: malloc has no precondition.
        let block = unsafe { (calls.allocate)(size) };
        let found = clock.now();
        assert!(!block.is_null(), "out of memory");
        // SAFETY: it has this size.
        unsafe { black_box(block).cast::<u8>().write_bytes(0, size) };
        let written = clock.now();
        // SAFETY: allocated above, and freed once.
        unsafe { (calls.free)(block) };
        clock.ns(found.saturating_sub(begun) + clock.now().saturating_sub(written)) - 2.0 * reading_ns
    };
    ZEROED.into_iter().map(of).sum()
}

/// A few large blocks from calloc. The twin makes many calls for small blocks, which are not filled.
pub fn large_calloc(stage: &Stage) -> Result<()> {
    let twin = stage.options.twin;
    let worker = |_| {
        let calls = real();
        make_room(calls, ZEROED_ROOM);
        let clock = Cycles::start(CALIBRATION_NS);
        let reading_ns = (0..100).map(|_| clock.ns(reading(clock))).fold(f64::INFINITY, f64::min);
        let (mut turn, mut finding_ns) = (0_u64, 0);
        stage.mix(Base::Cpu, || {
            if twin {
                stage.operations.add(PAIRS as i64);
                let start = thread_cpu_ns();
                small_pairs(calls);
                let in_allocator = (thread_cpu_ns() - start) as i64;
                stage.line(1).add(in_allocator);
                return in_allocator;
            }
            stage.operations.add((TURNS * ZEROED.len()) as i64);
            // What finding and freeing the blocks costs, with the caches as the zeros leave them: measured now and then, without
            // the zeros.
            if turn.is_multiple_of(MEASURED_EVERY) {
                finding_ns = (0..TURNS).map(|_| finding(clock, reading_ns, calls)).sum::<f64>() as i64;
                stage.line(1).add(finding_ns);
            }
            turn += 1;
            let start = thread_cpu_ns();
            for _ in 0..TURNS {
                for size in ZEROED {
                    // SAFETY: from calloc, and freed once.
                    unsafe { (calls.free)(zeroed(size)) };
                }
            }
            let filling = (thread_cpu_ns() - start) as i64 - finding_ns;
            stage.line(0).add(filling);
            stage.line(1).add(finding_ns);
            filling
        });
    };
    stage.perform(worker, |_| Ok(()))
}

/// Larger than the thread cache accepts (1,032 bytes by default), so each call takes the arena's lock.
const LARGE: [usize; 8] = [1_100, 3_000, 1_500, 2_048, 4_096, 1_200, 2_500, 3_600];
const BLOCKS: usize = 128;
/// Turns between two readings of the clocks, which take about two microseconds.
const TURNS: usize = 16;

/// Threads that share one arena. In the twin each thread has its own arena, so the same calls do not wait.
pub fn contention(stage: &Stage) -> Result<()> {
    if !stage.options.twin {
        process::with_tunables(&[("glibc.malloc.arena_max", "1")])?;
    }
    Watch::new().context("skipped: no /proc/thread-self/schedstat")?;
    let worker = |_| {
        let watch = Watch::new().expect("schedstat was readable before");
        let calls = real();
        make_room(calls, 8 << 20);
        let mut live = [std::ptr::null_mut(); BLOCKS];
        let mut turn = || {
            for (i, block) in live.iter_mut().enumerate() {
                // SAFETY: malloc has no precondition.
                *block = unsafe { (calls.allocate)(LARGE[i % LARGE.len()]) };
            }
            // 37 and the number of blocks have no common factor: each block is freed once, and never next to the block before.
            for i in 0..BLOCKS {
                // SAFETY: allocated above by the same calls.
                unsafe { (calls.free)(live[i * 37 % BLOCKS]) };
            }
        };
        stage.mix(Base::Cpu, || {
            let lap = watch.lap(|| {
                for _ in 0..TURNS {
                    turn();
                }
            });
            stage.operations.add((TURNS * BLOCKS) as i64);
            stage.line(0).add(lap.cpu_ns);
            stage.wait(0).add(lap.blocked_ns);
            lap.cpu_ns
        });
    };
    stage.perform(worker, |_| Ok(()))
}

/// Many, because reading the clocks costs as much as about fifty calls.
const HANDED: usize = 8192;
const REMOTE_SIZE: usize = 256;
const PARCELS: usize = 4;
/// Twice the size of all blocks in transit: a block with its header takes 272 bytes.
const REMOTE_ROOM: usize = 2 * PARCELS * HANDED * 272;

struct Parcel(Vec<*mut c_void>);
// SAFETY: the blocks are plain memory, owned by the owner of the parcel.
unsafe impl Send for Parcel {}

/// The channels on which a worker sends and receives parcels.
type Ends = (SyncSender<Parcel>, Receiver<Parcel>);

/// One thread allocates and the other frees, so that blocks return to the producer's arena under its lock.
/// In the twin each thread frees its own blocks. Parcels go back and forth through channels; no thread waits for them.
///
/// The cache lines of a parcel come from the other CPU. So it is filled and emptied outside the timed laps; the timed code uses
/// a list that stays with the thread.
pub fn remote_free(stage: &Stage) -> Result<()> {
    let twin = stage.options.twin;
    Watch::new().context("skipped: no /proc/thread-self/schedstat")?;
    let (full_in, full_out) = sync_channel::<Parcel>(16);
    let (empty_in, empty_out) = sync_channel::<Parcel>(16);
    for _ in 0..PARCELS {
        empty_in.try_send(Parcel(Vec::with_capacity(HANDED))).expect("the channel has room for all parcels");
    }
    // Each end goes to one worker.
    let ends: [Mutex<Option<Ends>>; 2] =
        [Mutex::new(Some((full_in, empty_out))), Mutex::new(Some((empty_in, full_out)))];
    let worker = |index: usize| {
        let watch = Watch::new().expect("schedstat was readable before");
        let calls = real();
        make_room(calls, REMOTE_ROOM);
        let mut computing = super::computing::Computing::new();
        let produce = |blocks: &mut [*mut c_void]| {
            for block in blocks {
                // SAFETY: malloc has no precondition.
                *block = unsafe { (calls.allocate)(REMOTE_SIZE) };
            }
        };
        let consume = |blocks: &[*mut c_void]| {
            for &block in blocks {
                // SAFETY: allocated by `produce`, and each list is freed once.
                unsafe { (calls.free)(block) };
            }
        };
        let mut blocks = [std::ptr::null_mut(); HANDED];
        let ends = ends[index % 2].lock().unwrap_or_else(PoisonError::into_inner).take();
        stage.mix(Base::Cpu, || {
            let parcel = match &ends {
                Some((_, incoming)) if !twin => match incoming.try_recv() {
                    Ok(parcel) => Some(parcel),
                    // The other thread is behind, so compute in the meantime.
                    Err(_) => {
                        computing.spin(5);
                        return 0;
                    }
                },
                _ => None,
            };
            if let Some(Parcel(sent)) = parcel.as_ref().filter(|_| index == 1) {
                blocks.copy_from_slice(sent);
            }
            let lap = watch.lap(|| {
                if twin || index == 0 {
                    produce(&mut blocks);
                }
                if twin || index == 1 {
                    consume(&blocks);
                }
            });
            stage.line(0).add(lap.cpu_ns);
            stage.wait(0).add(lap.blocked_ns);
            if index == 0 || twin {
                stage.operations.add(HANDED as i64);
            }
            if let (Some(mut parcel), Some((outgoing, _))) = (parcel, &ends) {
                parcel.0.clear();
                if index == 0 {
                    parcel.0.extend_from_slice(&blocks);
                }
                // It always fits, because there are fewer parcels than places. At the end the other thread may have ended.
                drop(outgoing.try_send(parcel));
            }
            lap.cpu_ns
        });
        // Blocks in transit at the end are released with the process.
    };
    stage.perform(worker, |_| Ok(()))
}
