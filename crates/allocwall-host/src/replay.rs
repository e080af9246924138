//! Plays planned calls of this process's own allocator, and measures what they cost.
//!
//! The plan is a list of operations for each thread, which is played again and again. An operation names a slot, which holds a block
//! or nothing. So any list may be played: what finds no block in its slot does nothing.

use crate::clock::{own_cpu_ns, own_usage};
use crate::memory::AnonymousMapping;
use rustix::process::{Resource, Rlimit, Signal, getrlimit, set_parent_process_death_signal, setrlimit};
use std::hint::black_box;
use std::io;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Barrier, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Builder};
use std::time::Duration;

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// malloc, and writes the block in full.
    New,
    /// calloc, and writes the block in full.
    Zeroed,
    /// realloc, and writes what the block has grown by.
    Resize,
    Free,
    /// Another thread frees the block: the lane's partner.
    Give,
    /// Frees what other threads gave.
    Collect,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Op {
    pub act: Act,
    pub slot: u32,
    /// The new size in bytes.
    pub size: u32,
    /// The size before a resize.
    pub old: u32,
}

/// What one thread does.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lane {
    /// Sizes of blocks that it allocates first, and keeps.
    pub held: Vec<u32>,
    pub ops: Vec<Op>,
    /// By slot: where its blocks begin in memory that is ready, bytes.
    pub places: Vec<usize>,
    /// The lane that frees what this one gives.
    pub partner: usize,
    /// The calling thread plays it.
    pub main: bool,
    /// Numbers of operations of the threads that follow one another; the last one has the rest. Empty: one thread does all passes.
    pub threads: Vec<usize>,
}

/// Where the blocks come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The allocator of this process.
    Allocator,
    /// Memory that was written before. Nothing is allocated.
    Ready,
}

/// How long it is played.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// Once, with an empty heap.
    Once,
    /// Once without measuring it, then until this CPU time is used, at least once.
    Steady { least_cpu_ns: u64 },
}

/// What was measured, in all threads together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passes {
    /// How often the operations were played.
    pub passes: u64,
    pub cpu_ns: u64,
    /// Minor page faults.
    pub faults: u64,
    /// Blocks that realloc changed, and those of them that kept their address; also before the measurement.
    pub resizes: u64,
    pub in_place: u64,
}

/// Blocks that a thread gives away are handed over in such numbers.
const HANDED_OVER: usize = 64;
/// How long a thread sleeps that waits for blocks of another one.
const NAP: Duration = Duration::from_micros(50);
/// What blocks are filled with: not what calloc returns.
const FILL: u8 = 0x5a;

/// Limits this process for good: it ends with its parent, after this CPU time, and first where memory runs out.
///
/// # Errors
/// A limit could not be set.
pub fn confine(cpu_seconds: u64) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    for (resource, most) in [(Resource::Cpu, cpu_seconds), (Resource::Core, 0), (Resource::Fsize, 1 << 20)] {
        let most = getrlimit(resource).maximum.map_or(most, |maximum| most.min(maximum));
        setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?;
    }
    // Each process may raise its own value (proc_pid_oom_score_adj(5)). Without it, the parent's limits remain.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    Ok(())
}

/// Plays the lanes, each in a thread of its own.
///
/// # Errors
/// `InvalidInput`: a list names slots or lanes that do not exist. `OutOfMemory`: the allocator has no memory. Otherwise a thread
/// could not be started.
pub fn play(lanes: &[Lane], source: Source, length: Length) -> io::Result<Passes> {
    let fits = |lane: &Lane| {
        lane.partner < lanes.len() && lane.ops.iter().all(|op| (op.slot as usize) < lane.places.len())
    };
    if lanes.is_empty() || !lanes.iter().all(fits) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    match source {
        Source::Allocator => run(lanes, |_| Heap::new(), length),
        Source::Ready => {
            let mut memory = lanes.iter().map(ready).collect::<io::Result<Vec<_>>>()?;
            let region = |memory: &mut AnonymousMapping| {
                let bytes = memory.bytes();
                Region(bytes.as_mut_ptr(), bytes.len())
            };
            let regions: Vec<Region> = memory.iter_mut().map(region).collect();
            let blocks = |number: usize| Ready { region: regions[number], places: &lanes[number].places };
            run(lanes, blocks, length)
        }
    }
}

/// Memory with room for all blocks of a lane at their places.
fn ready(lane: &Lane) -> io::Result<AnonymousMapping> {
    let end = |op: &Op| lane.places[op.slot as usize].saturating_add(op.size.max(1) as usize);
    let length = lane.ops.iter().map(end).max().unwrap_or(1);
    let mut memory = AnonymousMapping::plain(length).map_err(|absence| io::Error::other(absence.detail))?;
    memory.bytes().fill(FILL);
    Ok(memory)
}

/// Start and length of a lane's ready memory.
#[derive(Clone, Copy)]
struct Region(*mut u8, usize);

// SAFETY: only one lane writes there, in one thread after the other, and `run` ends before the memory is unmapped.
unsafe impl Send for Region {}

/// A block, or null.
#[derive(Clone, Copy)]
struct Block(*mut u8);

// SAFETY: a block belongs to whoever holds this value, and an allocator lets any thread free it.
unsafe impl Send for Block {}

impl Block {
    const NONE: Block = Block(null_mut());
}

/// Makes and frees blocks. A block of `size` bytes may be written from its first to its last byte, until it is resized or freed.
trait Blocks: Send {
    /// Whether blocks that stay are made too.
    const HOLDS: bool;
    fn make(&self, slot: usize, size: usize) -> Block;
    fn make_zeroed(&self, slot: usize, size: usize) -> Block;
    /// Ends the old block, unless the result is null.
    fn resize(&self, slot: usize, old: Block, size: usize) -> Block;
    fn free(&self, block: Block);
}

/// The process's allocator. Its functions are called through pointers that the compiler does not know, so it leaves out no call.
#[derive(Clone, Copy)]
struct Heap {
    malloc: unsafe extern "C" fn(usize) -> *mut libc::c_void,
    calloc: unsafe extern "C" fn(usize, usize) -> *mut libc::c_void,
    realloc: unsafe extern "C" fn(*mut libc::c_void, usize) -> *mut libc::c_void,
    free: unsafe extern "C" fn(*mut libc::c_void),
}

impl Heap {
    fn new() -> Heap {
        black_box(Heap {
            malloc: libc::malloc,
            calloc: libc::calloc,
            realloc: libc::realloc,
            free: libc::free,
        })
    }
}

impl Blocks for Heap {
    const HOLDS: bool = true;

    fn make(&self, _: usize, size: usize) -> Block {
        // SAFETY: malloc takes any size.
        Block(unsafe { (self.malloc)(size) }.cast())
    }

    fn make_zeroed(&self, _: usize, size: usize) -> Block {
        // SAFETY: calloc takes any size.
        Block(unsafe { (self.calloc)(1, size) }.cast())
    }

    fn resize(&self, _: usize, old: Block, size: usize) -> Block {
        // SAFETY: `old` is from this allocator, and its only holder passes it on here. `size` is above 0: with 0, realloc frees.
        Block(unsafe { (self.realloc)(old.0.cast(), size) }.cast())
    }

    fn free(&self, block: Block) {
        // SAFETY: `block` is from this allocator, or null, and its only holder passes it on here.
        unsafe { (self.free)(block.0.cast()) }
    }
}

/// Blocks at fixed places, which may overlap.
#[derive(Clone, Copy)]
struct Ready<'a> {
    region: Region,
    places: &'a [usize],
}

impl Ready<'_> {
    fn at(&self, slot: usize, size: usize) -> Block {
        let Region(start, length) = self.region;
        let place = self.places[slot];
        // Never otherwise: see `ready`.
        assert!(place <= length && size <= length - place);
        // SAFETY: `place` is within the mapping, or at its end.
        Block(unsafe { start.add(place) })
    }
}

impl Blocks for Ready<'_> {
    const HOLDS: bool = false;

    fn make(&self, slot: usize, size: usize) -> Block {
        self.at(slot, size)
    }

    fn make_zeroed(&self, slot: usize, size: usize) -> Block {
        self.at(slot, size)
    }

    fn resize(&self, slot: usize, _: Block, size: usize) -> Block {
        self.at(slot, size)
    }

    fn free(&self, block: Block) {
        black_box(block.0);
    }
}

/// What the threads share.
struct Stage<'a> {
    lanes: &'a [Lane],
    length: Length,
    together: Barrier,
    /// How often a lane has played all its operations.
    played: AtomicUsize,
    /// Blocks that are given to each lane.
    mail: Vec<Mutex<Vec<Block>>>,
    failed: AtomicBool,
    over: AtomicBool,
    /// As in [`Passes`].
    resizes: AtomicU64,
    in_place: AtomicU64,
    measured: Mutex<Passes>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What it protects is whole after each change.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn run<B: Blocks>(lanes: &[Lane], blocks: impl Fn(usize) -> B, length: Length) -> io::Result<Passes> {
    let given = |to: usize| {
        let to_it = lanes.iter().filter(|lane| lane.partner == to).flat_map(|lane| &lane.ops);
        to_it.filter(|op| op.act == Act::Give).count()
    };
    let stage = Stage {
        lanes,
        length,
        together: Barrier::new(lanes.len()),
        played: AtomicUsize::new(0),
        mail: (0..lanes.len()).map(|lane| Mutex::new(Vec::with_capacity(given(lane)))).collect(),
        failed: AtomicBool::new(false),
        over: AtomicBool::new(false),
        resizes: AtomicU64::new(0),
        in_place: AtomicU64::new(0),
        measured: Mutex::new(Passes::default()),
    };
    let stage = &stage;
    let here = lanes.iter().position(|lane| lane.main);
    thread::scope(|scope| -> io::Result<()> {
        let mut starts = Vec::new();
        for number in (0..lanes.len()).filter(|number| Some(*number) != here) {
            // If a thread can't be started, those that wait here end.
            let (start, started) = channel::<()>();
            let blocks = blocks(number);
            Builder::new().spawn_scoped(scope, move || {
                if started.recv().is_ok() {
                    Player::new(stage, blocks, number, given(number)).play();
                }
            })?;
            starts.push(start);
        }
        for start in &starts {
            let _ = start.send(());
        }
        if let Some(number) = here {
            Player::new(stage, blocks(number), number, given(number)).play();
        }
        Ok(())
    })?;
    match stage.failed.load(Ordering::Acquire) {
        true => Err(io::ErrorKind::OutOfMemory.into()),
        false => Ok(*locked(&stage.measured)),
    }
}

/// One lane while it is played.
struct Player<'a, B> {
    stage: &'a Stage<'a>,
    blocks: B,
    lane: &'a Lane,
    number: usize,
    passes: usize,
    slots: Vec<Block>,
    /// Those of this pass.
    resizes: u64,
    in_place: u64,
    /// Blocks to be handed over, and some that were.
    outbox: Vec<Block>,
    inbox: Vec<Block>,
}

impl<'a, B: Blocks> Player<'a, B> {
    /// `given`: how many blocks other threads give to it in one pass.
    fn new(stage: &'a Stage<'a>, blocks: B, number: usize, given: usize) -> Player<'a, B> {
        let lane = &stage.lanes[number];
        Player {
            stage,
            blocks,
            lane,
            number,
            passes: 0,
            slots: vec![Block::NONE; lane.places.len()],
            resizes: 0,
            in_place: 0,
            outbox: Vec::with_capacity(HANDED_OVER),
            inbox: Vec::with_capacity(given),
        }
    }

    fn play(&mut self) {
        self.hold();
        let least_cpu_ns = match self.stage.length {
            Length::Once => 0,
            Length::Steady { least_cpu_ns } => {
                self.pass();
                least_cpu_ns
            }
        };
        let leads = self.number == 0;
        self.stage.together.wait();
        let before = if leads { (own_cpu_ns(), own_faults()) } else { (0, 0) };
        self.stage.together.wait();
        for passes in 1.. {
            self.pass();
            self.stage.together.wait();
            if leads {
                let cpu_ns = own_cpu_ns() - before.0;
                *locked(&self.stage.measured) = Passes {
                    passes,
                    cpu_ns,
                    faults: own_faults() - before.1,
                    // The barrier orders them.
                    resizes: self.stage.resizes.load(Ordering::Relaxed),
                    in_place: self.stage.in_place.load(Ordering::Relaxed),
                };
                let enough = cpu_ns >= least_cpu_ns || self.stage.failed.load(Ordering::Acquire);
                self.stage.over.store(enough, Ordering::Release);
            }
            self.stage.together.wait();
            if self.stage.over.load(Ordering::Acquire) {
                break;
            }
        }
    }

    /// Makes what stays. It is never freed: the process ends.
    fn hold(&mut self) {
        for size in self.lane.held.iter().filter(|_| B::HOLDS) {
            let block = self.blocks.make(0, *size as usize);
            self.fill(block, 0, *size as usize);
        }
    }

    fn pass(&mut self) {
        let lane = self.lane;
        let mut rest = &lane.ops[..];
        for count in &lane.threads {
            let (part, after) = rest.split_at(rest.len().min(*count));
            self.perform_elsewhere(part);
            rest = after;
        }
        if lane.threads.is_empty() {
            self.perform(rest);
        } else if !rest.is_empty() {
            self.perform_elsewhere(rest);
        }
        self.hand_over();
        self.settle();
        self.stage.resizes.fetch_add(std::mem::take(&mut self.resizes), Ordering::Relaxed);
        self.stage.in_place.fetch_add(std::mem::take(&mut self.in_place), Ordering::Relaxed);
    }

    /// In a thread that begins and ends with this part.
    fn perform_elsewhere(&mut self, part: &[Op]) {
        let done = thread::scope(|scope| {
            let started = Builder::new().spawn_scoped(scope, || self.perform(part));
            started.is_ok_and(|thread| thread.join().is_ok())
        });
        if !done {
            self.fail();
        }
    }

    fn perform(&mut self, ops: &[Op]) {
        for op in ops {
            let (slot, size) = (op.slot as usize, op.size as usize);
            match op.act {
                Act::New => {
                    self.slots[slot] = self.blocks.make(slot, size);
                    self.fill(self.slots[slot], 0, size);
                }
                Act::Zeroed => {
                    self.slots[slot] = self.blocks.make_zeroed(slot, size);
                    self.fill(self.slots[slot], 0, size);
                }
                Act::Resize => self.resize(slot, op.old as usize, size.max(1)),
                Act::Free => {
                    let block = std::mem::replace(&mut self.slots[slot], Block::NONE);
                    if !block.0.is_null() {
                        self.blocks.free(block);
                    }
                }
                Act::Give => self.give(slot),
                Act::Collect => self.collect(),
            }
        }
    }

    fn resize(&mut self, slot: usize, old: usize, size: usize) {
        let block = self.slots[slot];
        if block.0.is_null() {
            return;
        }
        let resized = self.blocks.resize(slot, block, size);
        if resized.0.is_null() {
            // The old block is still there.
            return self.fail();
        }
        self.resizes += 1;
        self.in_place += u64::from(resized.0 == block.0);
        self.slots[slot] = resized;
        self.fill(resized, old.min(size), size);
    }

    /// Writes a part of a block. The block has at least `to` bytes.
    fn fill(&self, block: Block, from: usize, to: usize) {
        if from >= to {
            return;
        }
        if block.0.is_null() {
            return self.fail();
        }
        // SAFETY: all callers pass a block that was just made or resized to `to` bytes, and `from` is below that.
        unsafe { std::ptr::write_bytes(block.0.add(from), FILL, to - from) };
    }

    fn fail(&self) {
        self.stage.failed.store(true, Ordering::Release);
    }

    fn give(&mut self, slot: usize) {
        let block = std::mem::replace(&mut self.slots[slot], Block::NONE);
        if !block.0.is_null() {
            self.outbox.push(block);
            if self.outbox.len() >= HANDED_OVER {
                self.hand_over();
            }
        }
    }

    fn hand_over(&mut self) {
        if !self.outbox.is_empty() {
            locked(&self.stage.mail[self.lane.partner]).append(&mut self.outbox);
        }
    }

    fn collect(&mut self) {
        std::mem::swap(&mut self.inbox, &mut *locked(&self.stage.mail[self.number]));
        for block in self.inbox.drain(..) {
            self.blocks.free(block);
        }
    }

    /// Frees what other lanes still give, until all have played their operations.
    fn settle(&mut self) {
        self.passes += 1;
        let all = self.stage.lanes.len() * self.passes;
        // Release and acquire: what a lane gave is seen by whoever sees that it has played.
        self.stage.played.fetch_add(1, Ordering::AcqRel);
        while self.stage.played.load(Ordering::Acquire) < all {
            self.collect();
            thread::sleep(NAP);
        }
        self.collect();
    }
}

/// Minor page faults of this process so far.
fn own_faults() -> u64 {
    own_usage().ru_minflt as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(act: Act, slot: u32, size: u32, old: u32) -> Op {
        Op { act, slot, size, old }
    }

    /// Blocks that are made, changed and freed, one of them in the next pass.
    fn lane() -> Lane {
        let ops = vec![
            op(Act::Free, 1, 0, 0),
            op(Act::New, 0, 100, 0),
            op(Act::Resize, 0, 300_000, 100),
            op(Act::Zeroed, 1, 5000, 0),
            op(Act::Resize, 0, 0, 300_000),
            op(Act::Free, 0, 0, 0),
            op(Act::New, 0, 0, 0),
            op(Act::Free, 0, 0, 0),
        ];
        Lane { held: vec![64, 0], ops, places: vec![0, 300_000], main: true, ..Lane::default() }
    }

    #[test]
    fn operations_are_played_until_the_time_is_used() {
        for source in [Source::Allocator, Source::Ready] {
            let once = play(&[lane()], source, Length::Once).unwrap();
            assert_eq!(once.passes, 1);
            let longer = play(&[lane()], source, Length::Steady { least_cpu_ns: 5_000_000 }).unwrap();
            assert!(longer.passes > 1 && longer.cpu_ns >= 5_000_000, "{longer:?}");
        }
    }

    #[test]
    fn fresh_memory_takes_faults_and_ready_memory_none() {
        const LARGE: u32 = 64 << 20;
        let ops = vec![op(Act::New, 0, LARGE, 0), op(Act::Free, 0, 0, 0)];
        let lane = [Lane { ops, places: vec![0], main: true, ..Lane::default() }];
        let fresh = play(&lane, Source::Allocator, Length::Once).unwrap();
        // Huge pages take one fault for 2 MiB. Other tests run in this process at the same time.
        assert!(fresh.faults >= 32, "{fresh:?}");
        let ready = play(&lane, Source::Ready, Length::Once).unwrap();
        assert!(ready.passes == 1 && ready.cpu_ns > 0, "{ready:?}");
    }

    /// One thread allocates, another one frees; the third one does both, in threads that follow one another.
    #[test]
    fn blocks_pass_from_thread_to_thread() {
        let mut ops = Vec::new();
        for slot in 0..200 {
            ops.push(op(Act::New, slot, 64, 0));
            ops.push(op(Act::Give, slot, 0, 0));
        }
        let gives = |partner| Lane { ops: ops.clone(), places: vec![0; 200], partner, ..Lane::default() };
        let frees = Lane { partner: 2, ..Lane::default() };
        let mut both = Lane { threads: vec![50; 7], ..gives(1) };
        both.ops.push(op(Act::Collect, 0, 0, 0));
        let lanes = [gives(1), frees, both];
        for source in [Source::Allocator, Source::Ready] {
            let played = play(&lanes, source, Length::Steady { least_cpu_ns: 2_000_000 }).unwrap();
            assert!(played.passes >= 1 && played.cpu_ns >= 2_000_000, "{played:?}");
        }
    }

    #[test]
    fn lists_with_slots_or_lanes_that_do_not_exist_are_refused() {
        let refused = |lanes: &[Lane]| {
            let played = play(lanes, Source::Allocator, Length::Once);
            played.unwrap_err().kind() == io::ErrorKind::InvalidInput
        };
        assert!(refused(&[]));
        assert!(refused(&[Lane { partner: 1, ..lane() }]));
        assert!(refused(&[Lane { places: vec![0], ..lane() }]));
        assert!(play(&[lane()], Source::Allocator, Length::Once).is_ok());
    }
}
