//! A thread's open counts, and what its allocator calls do to them.
//!
//! Several counts can be open at once: nested, or overlapping as those of two tasks or generators are. The active ones see
//! each call; a paused one (a coroutine that waits) sees none, but stays the owner of what it allocated. So each block in
//! the table has as its owner a *node*: the counts that were active when it was allocated, as a path.

use super::cells::{Cells, class_of};
use super::current;
use super::lines::Lines;
use super::table::{Block, OWNERS, Table};
use std::cell::RefCell;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What is kept for a thread's next count, at most.
const KEPT_BYTES: usize = 1 << 20;
/// Owner of what is no count's.
const IGNORED: u32 = OWNERS - 1;
/// So many nodes, of which most are of counts that have ended, are cleared away at once.
const NODES: usize = 1 << 16;

/// One count.
pub(super) struct Frame {
    pub(super) cells: Cells,
    pub(super) lines: Option<Box<Lines>>,
    /// Whether all that it should have seen came by.
    pub(super) complete: bool,
    active: bool,
    /// Its nodes, for when it ends.
    nodes: Vec<u32>,
    /// Set by whoever gave it up on another thread.
    given_up: Arc<AtomicBool>,
    /// The last free that it was found to own.
    owned: u64,
}

struct Node {
    /// The count's outer ones, as a node; 0 without.
    parent: u32,
    /// Null once it has ended.
    frame: *mut Frame,
}

pub(super) struct Thread {
    /// In the middle of an allocator call: what it calls in turn is not the program's.
    pub(super) inside: bool,
    /// In the middle of asking where a call came from.
    pub(super) looking: bool,
    /// A call came by while `inside`.
    came_by: bool,
    /// Of the active counts.
    node: u32,
    active: Vec<NonNull<Frame>>,
    /// The active one, where there is one alone and it isn't by line: the usual case, by the shortest way. Null elsewhere.
    only: *mut Frame,
    table: Table,
    frees: u64,
    /// All that haven't ended; each from `Box::into_raw`.
    open: Vec<NonNull<Frame>>,
    /// Those that were given up and are to be dropped: see `with_this`.
    swept: Vec<Box<Frame>>,
    /// Of `first` and those after it. Nodes before it are of counts that have all ended.
    nodes: Vec<Node>,
    first: u32,
    clear_at: usize,
    by_line: bool,
    id: u64,
}

thread_local! {
    static THIS: RefCell<Option<Box<Thread>>> = const { RefCell::new(None) };
}

/// A count as its owner knows it. Only the thread that it began on may look at it.
pub(super) struct Handle {
    thread: u64,
    frame: NonNull<Frame>,
    given_up: Arc<AtomicBool>,
}

// SAFETY: `frame` is only followed on the thread that `thread` names, while it lives.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Handle {
    /// Nobody will end it any more: its thread does, when it comes by.
    pub(super) fn give_up(&self) {
        // Relaxed: nothing else is told by it.
        self.given_up.store(true, Ordering::Relaxed);
    }

    /// Calls with the count and its thread, if this is that thread.
    fn with<R>(&self, inside: impl FnOnce(&mut Thread, NonNull<Frame>) -> R) -> Option<R> {
        with_this(|thread| (thread.id == self.thread).then(|| inside(thread, self.frame)))?
    }

    /// Whether this thread could be told: it is the one that it began on.
    pub(super) fn pause(&self) -> bool {
        self.with(|thread, frame| thread.deactivate(frame)).is_some()
    }

    /// Whether it is counting, on this thread.
    pub(super) fn is_active(&self) -> bool {
        // SAFETY: open, since its handle is there, and on this thread.
        self.with(|_, frame| unsafe { frame.as_ref() }.active) == Some(true)
    }

    pub(super) fn resume(&self) -> bool {
        self.with(|thread, frame| thread.activate(frame)).is_some()
    }

    /// Ends it. None on another thread.
    pub(super) fn end(&self) -> Option<Box<Frame>> {
        self.with(|thread, frame| thread.end(frame))
    }

    /// A copy of its sums so far. None on another thread.
    pub(super) fn look(&self) -> Option<(Cells, bool)> {
        // SAFETY: open, since its handle is there, and on this thread.
        self.with(|_, frame| unsafe {
            let mut cells = frame.as_ref().cells;
            cells.settle();
            (cells, frame.as_ref().complete)
        })
    }
}

/// Begins a count on this thread, active. None while the thread ends.
pub(super) fn begin(lines: Option<Box<Lines>>) -> Option<Handle> {
    // By itself: what ends with what is swept away is not this count's.
    with_this(|thread| thread.sweep())?;
    with_this(|thread| thread.begin(lines))
}

/// Whether an allocator call that `call` makes comes by the hooks. No count sees it.
pub(super) fn comes_by(call: impl FnOnce()) -> bool {
    let before = current::get();
    let begun = with_this(|thread| {
        (thread.inside, thread.came_by) = (true, false);
        current::set(&mut **thread);
    });
    if begun.is_none() {
        return false;
    }
    call();
    current::set(before);
    with_this(|thread| {
        thread.inside = false;
        thread.came_by
    }) == Some(true)
}

/// Nothing in here may call Python: its allocator calls would come back to the same thread's state, and so would a count that it
/// begins. What was swept away holds code objects, whose end may run any Python code, so it ends after the thread's state is let go.
fn with_this<R>(inside: impl FnOnce(&mut Box<Thread>) -> R) -> Option<R> {
    let (result, swept) = THIS
        .try_with(|this| {
            let mut this = this.borrow_mut();
            let thread = this.get_or_insert_with(Thread::new);
            let result = inside(thread);
            (result, std::mem::take(&mut thread.swept))
        })
        .ok()?;
    drop(swept);
    Some(result)
}

impl Thread {
    fn new() -> Box<Thread> {
        static IDS: AtomicU64 = AtomicU64::new(1);
        Box::new(Thread {
            inside: false,
            looking: false,
            came_by: false,
            node: 0,
            active: Vec::with_capacity(4),
            only: ptr::null_mut(),
            table: Table::EMPTY,
            frees: 0,
            open: Vec::new(),
            swept: Vec::new(),
            nodes: Vec::new(),
            first: 1,
            clear_at: NODES,
            by_line: false,
            // Relaxed: it only has to be another one each time.
            id: IDS.fetch_add(1, Ordering::Relaxed),
        })
    }

    fn begin(&mut self, lines: Option<Box<Lines>>) -> Handle {
        let given_up = Arc::new(AtomicBool::new(false));
        let frame = NonNull::from(Box::leak(Box::new(Frame {
            cells: Cells::NONE,
            lines,
            complete: true,
            active: false,
            nodes: Vec::new(),
            given_up: Arc::clone(&given_up),
            owned: 0,
        })));
        self.open.push(frame);
        self.activate(frame);
        current::set(self);
        Handle {
            thread: self.id,
            frame,
            given_up,
        }
    }

    fn activate(&mut self, mut frame: NonNull<Frame>) {
        // SAFETY: open counts are alive, and this thread alone has them.
        let state = unsafe { frame.as_mut() };
        if !state.active {
            state.active = true;
            self.make_room();
            self.active.push(frame);
            self.node = self.step(self.node, frame);
        }
        self.look_at_active();
    }

    fn deactivate(&mut self, mut frame: NonNull<Frame>) {
        // SAFETY: as in `activate`.
        unsafe { frame.as_mut() }.active = false;
        let Some(place) = self.active.iter().rposition(|&active| active == frame) else {
            return;
        };
        self.active.remove(place);
        if place == self.active.len() {
            self.node = self.known(self.node).map_or(0, |node| node.parent);
        } else {
            // Out of the middle: the others' path is a new one.
            self.make_room();
            self.node = 0;
            for index in 0..self.active.len() {
                self.node = self.step(self.node, self.active[index]);
            }
        }
        self.look_at_active();
    }

    fn end(&mut self, frame: NonNull<Frame>) -> Box<Frame> {
        self.deactivate(frame);
        self.open.retain(|&open| open != frame);
        // SAFETY: came from a box, and nothing leads to it any more but its nodes, which are told next.
        let mut ended = unsafe { Box::from_raw(frame.as_ptr()) };
        ended.cells.settle();
        for &node in &ended.nodes {
            let first = self.first;
            if let Some(node) = self.nodes.get_mut(node.wrapping_sub(first) as usize) {
                node.frame = ptr::null_mut();
            }
        }
        self.sweep();
        if self.open.is_empty() {
            current::set(ptr::null_mut());
            self.rest();
        }
        ended
    }

    /// Ends what was given up elsewhere.
    fn sweep(&mut self) {
        // Relaxed: as in `give_up`. Set back, so that the inner call doesn't find it again.
        // SAFETY: as in `activate`.
        let given_up =
            |open: &NonNull<Frame>| unsafe { open.as_ref() }.given_up.swap(false, Ordering::Relaxed);
        while let Some(frame) = self.open.iter().copied().find(given_up) {
            let ended = self.end(frame);
            self.swept.push(ended);
        }
    }

    /// The node of a path that is one count longer.
    fn step(&mut self, parent: u32, mut frame: NonNull<Frame>) -> u32 {
        // SAFETY: as in `activate`.
        let state = unsafe { frame.as_mut() };
        let last = state.nodes.last().copied();
        if let Some(last) = last
            && self.known(last).is_some_and(|node| node.parent == parent)
        {
            return last;
        }
        let new = self.first + self.nodes.len() as u32;
        self.nodes.push(Node {
            parent,
            frame: frame.as_ptr(),
        });
        state.nodes.push(new);
        new
    }

    #[inline(always)]
    fn known(&self, node: u32) -> Option<&Node> {
        self.nodes.get(node.wrapping_sub(self.first) as usize)
    }

    /// No count is open: what the table still has belongs to nobody.
    fn rest(&mut self) {
        self.node = 0;
        self.first += self.nodes.len() as u32;
        self.nodes.clear();
        self.clear_at = NODES;
        if self.table.bytes() > KEPT_BYTES || self.first > OWNERS / 2 {
            self.table.clear();
            self.first = 1;
        }
    }

    fn make_room(&mut self) {
        if self.nodes.len() >= self.clear_at {
            self.clear_nodes();
        }
    }

    /// Leaves out the nodes of ended counts. Their blocks go to the outer ones that are still open.
    fn clear_nodes(&mut self) {
        let (first, old) = (self.first, std::mem::take(&mut self.nodes));
        self.first = 1;
        for &(mut frame) in &self.open {
            // SAFETY: as in `activate`.
            unsafe { frame.as_mut() }.nodes.clear();
        }
        // Parents come before their children.
        let mut new = Vec::with_capacity(old.len());
        for node in &old {
            let parent = match node.parent.checked_sub(first) {
                Some(index) => new.get(index as usize).copied().unwrap_or(0),
                None => 0,
            };
            new.push(match NonNull::new(node.frame) {
                Some(frame) => self.step(parent, frame),
                None => parent,
            });
        }
        let renamed = |node: u32| {
            if node == IGNORED {
                return node;
            }
            let index = node.wrapping_sub(first) as usize;
            new.get(index).copied().unwrap_or(0)
        };
        self.table.rename(renamed);
        self.node = renamed(self.node);
        self.clear_at = NODES + 2 * self.nodes.len();
    }

    fn look_at_active(&mut self) {
        // SAFETY: as in `activate`.
        self.by_line = self
            .active
            .iter()
            .any(|frame| unsafe { frame.as_ref() }.lines.is_some());
        self.only = match self.active[..] {
            [frame] if !self.by_line => frame.as_ptr(),
            _ => ptr::null_mut(),
        };
    }

    // The rest is called for each allocator call of a thread with an open count.

    #[inline(always)]
    pub(super) fn allocated(&mut self, domain: usize, address: usize, size: usize) {
        // SAFETY: null, or an active count: those are alive, and this thread alone has them.
        if let Some(frame) = unsafe { self.only.as_mut() } {
            frame.cells.allocated(domain, class_of(size), size);
            self.enter(address, size);
        } else {
            self.allocated_by_all(domain, address, size);
        }
    }

    fn allocated_by_all(&mut self, domain: usize, address: usize, size: usize) {
        let class = class_of(size);
        for frame in &mut self.active {
            // SAFETY: active counts are alive, and this thread alone has them.
            unsafe { frame.as_mut() }.cells.allocated(domain, class, size);
        }
        self.enter(address, size);
        if self.by_line {
            self.at_line(size);
        }
    }

    #[inline(always)]
    pub(super) fn freed(&mut self, domain: usize, address: usize) {
        let found = self.table.take(address);
        if let Some(block) = found
            && block.owner == self.node
            // SAFETY: as in `allocated`.
            && let Some(frame) = unsafe { self.only.as_mut() }
        {
            frame.cells.freed(domain, class_of(block.size), block.size);
        } else {
            self.freed_by_all(domain, found);
        }
    }

    fn freed_by_all(&mut self, domain: usize, found: Option<Block>) {
        match found {
            // Of these very counts.
            Some(block) if block.owner == self.node => {
                let class = class_of(block.size);
                for frame in &mut self.active {
                    // SAFETY: as in `allocated`.
                    unsafe { frame.as_mut() }.cells.freed(domain, class, block.size);
                }
            }
            Some(block) if block.owner == IGNORED => {}
            found => {
                self.frees += 1;
                if let Some(block) = found {
                    self.gone(block.owner, |frame| {
                        if frame.active {
                            frame.cells.freed(domain, class_of(block.size), block.size);
                        } else {
                            frame.cells.gone(domain, class_of(block.size), block.size);
                        }
                    });
                }
                for frame in &mut self.active {
                    // SAFETY: as in `allocated`.
                    let frame = unsafe { frame.as_mut() };
                    if frame.owned != self.frees {
                        frame.cells.freed_older(domain);
                    }
                }
            }
        }
    }

    pub(super) fn reallocated(&mut self, domain: usize, old: usize, address: usize, size: usize) {
        if let Some(block) = self.table.take(old) {
            self.gone(block.owner, |frame| {
                frame.cells.gone(domain, class_of(block.size), block.size)
            });
        }
        let class = class_of(size);
        for frame in &mut self.active {
            // SAFETY: as in `allocated`.
            unsafe { frame.as_mut() }.cells.reallocated(domain, class, size);
        }
        self.enter(address, size);
        if self.by_line {
            self.at_line(size);
        }
    }

    /// A block that an allocator call asked for in turn. What is there only because somebody counts by line is nobody's when
    /// it is freed either.
    #[inline(always)]
    pub(super) fn nested(&mut self, address: usize) {
        self.came_by = true;
        if self.looking && address != 0 {
            self.table.put(address, 0, IGNORED);
        }
    }

    #[inline(always)]
    fn enter(&mut self, address: usize, size: usize) {
        if self.active.is_empty() {
            // Somebody else's block, at the address of one that may have been freed by another thread.
            self.table.take(address);
        } else if !self.table.put(address, size, self.node) {
            self.lost();
        }
    }

    #[cold]
    fn lost(&mut self) {
        for frame in &mut self.active {
            // SAFETY: as in `allocated`.
            unsafe { frame.as_mut() }.complete = false;
        }
    }

    /// Calls with each open count that the block belongs to.
    fn gone(&mut self, owner: u32, mut each: impl FnMut(&mut Frame)) {
        let mut owner = owner;
        while let Some(node) = self.known(owner) {
            let (parent, frame) = (node.parent, node.frame);
            // SAFETY: null, or of a count that hasn't ended; this thread alone has it.
            if let Some(frame) = unsafe { frame.as_mut() } {
                frame.owned = self.frees;
                each(frame);
            }
            owner = parent;
        }
    }

    #[cold]
    fn at_line(&mut self, size: usize) {
        let line = self.find_line();
        for frame in &mut self.active {
            // SAFETY: as in `allocated`.
            if let Some(lines) = unsafe { frame.as_mut() }.lines.as_mut() {
                lines.add(line, size);
            }
        }
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        current::set(ptr::null_mut());
        for &frame in &self.open {
            // SAFETY: came from a box; its handle finds another thread, or none, from now on.
            drop(unsafe { Box::from_raw(frame.as_ptr()) });
        }
    }
}
