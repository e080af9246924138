//! A thread's open counts, and how its allocator calls change them.
//!
//! Several counts can be open at once: nested, or overlapping like those of two tasks or generators. Each call
//! changes the active counts. A paused count (of a coroutine that waits) is not changed, but still owns the blocks
//! that it allocated. So each block in the table has as its owner a *node*: the path of the counts that were active
//! when it was allocated.

use super::cells::{Cells, class_of, small_class};
use super::current;
use super::lines::Lines;
use super::table::{OWNERS, Table};
use std::cell::RefCell;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The largest table that is kept for a thread's next count, in bytes.
const KEPT_BYTES: usize = 1 << 20;
/// The owner of blocks that belong to no count.
const IGNORED: u32 = OWNERS - 1;
/// At this number of nodes, the nodes of ended counts are removed.
const NODES: usize = 1 << 16;

/// One count.
pub(super) struct Frame {
    pub(super) cells: Cells,
    pub(super) lines: Option<Box<Lines>>,
    /// Whether no call was missed.
    pub(super) complete: bool,
    active: bool,
    /// Its nodes, needed when it ends.
    nodes: Vec<u32>,
    /// Set by another thread that gave the count up.
    given_up: Arc<AtomicBool>,
    /// The number of the last free whose block this count owned.
    owned: u64,
}

struct Node {
    /// The node of the outer counts; 0 without one.
    parent: u32,
    /// Null once the count has ended.
    frame: *mut Frame,
}

/// The fields that a call in the usual case needs come first, in one cache line.
#[repr(C, align(64))]
pub(super) struct Thread {
    /// As `only`, but null within an allocator call.
    quick: *mut Frame,
    /// The active count, if there is only one and it is not by line: the usual case, with the shortest code.
    /// Otherwise null.
    only: *mut Frame,
    /// The node of the active counts.
    node: u32,
    /// Within an allocator call that did not begin with `enter_quickly`: see `is_inside`.
    inside: bool,
    /// Within a search for the current line.
    pub(super) looking: bool,
    /// A call reached our functions within an allocator call.
    came_by: bool,
    by_line: bool,
    table: Table,
    active: Vec<NonNull<Frame>>,
    frees: u64,
    /// All counts that have not ended; each from `Box::into_raw`.
    open: Vec<NonNull<Frame>>,
    /// Counts that were given up and must be dropped: see `with_this`.
    swept: Vec<Box<Frame>>,
    /// The nodes from number `first` on. All counts of lower nodes have ended.
    nodes: Vec<Node>,
    first: u32,
    clear_at: usize,
    id: u64,
}

thread_local! {
    static THIS: RefCell<Option<Box<Thread>>> = const { RefCell::new(None) };
}

/// The owner's reference to a count. Only the thread that the count began on may read it.
pub(super) struct Handle {
    thread: u64,
    frame: NonNull<Frame>,
    given_up: Arc<AtomicBool>,
}

// SAFETY: `frame` is dereferenced only on the thread that `thread` names, while the frame lives.
unsafe impl Send for Handle {}
// SAFETY: as for `Send`.
unsafe impl Sync for Handle {}

impl Handle {
    /// Gives the count up: its own thread ends it later.
    pub(super) fn give_up(&self) {
        // Relaxed: no other data depends on it.
        self.given_up.store(true, Ordering::Relaxed);
    }

    /// Calls `inside` with the count and its thread, if this is that thread.
    fn with<R>(&self, inside: impl FnOnce(&mut Thread, NonNull<Frame>) -> R) -> Option<R> {
        with_this(|thread| (thread.id == self.thread).then(|| inside(thread, self.frame)))?
    }

    /// Pauses the count. False on another thread than the one that it began on.
    pub(super) fn pause(&self) -> bool {
        self.with(|thread, frame| thread.deactivate(frame)).is_some()
    }

    /// Whether it is counting, on this thread.
    pub(super) fn is_active(&self) -> bool {
        // SAFETY: the count is open, because its handle exists, and it belongs to this thread.
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
        // SAFETY: the count is open, because its handle exists, and it belongs to this thread.
        self.with(|_, frame| unsafe { (frame.as_ref().cells, frame.as_ref().complete) })
    }
}

/// Begins an active count on this thread. None if the thread is ending.
pub(super) fn begin(lines: Option<Box<Lines>>) -> Option<Handle> {
    // A separate step: the frees that the sweep causes do not belong to this count.
    with_this(|thread| thread.sweep())?;
    with_this(|thread| thread.begin(lines))
}

/// Whether an allocator call that `call` makes reaches the hooks. It changes no count.
pub(super) fn comes_by(call: impl FnOnce()) -> bool {
    let before = current::get();
    let begun = with_this(|thread| {
        thread.set_inside(true);
        thread.came_by = false;
        current::set(&mut **thread);
    });
    if begun.is_none() {
        return false;
    }
    call();
    current::set(before);
    with_this(|thread| {
        thread.set_inside(false);
        thread.came_by
    }) == Some(true)
}

/// `inside` must not call Python: its allocator calls, and a count that it begins, would use the same thread's state
/// again. Swept counts hold code objects, and to drop them may run any Python code; so they are dropped after the
/// state is released.
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
            quick: ptr::null_mut(),
            only: ptr::null_mut(),
            node: 0,
            inside: false,
            looking: false,
            came_by: false,
            by_line: false,
            table: Table::EMPTY,
            active: Vec::with_capacity(4),
            frees: 0,
            open: Vec::new(),
            swept: Vec::new(),
            nodes: Vec::new(),
            first: 1,
            clear_at: NODES,
            // Relaxed: the number only has to be different each time.
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
        Handle { thread: self.id, frame, given_up }
    }

    fn activate(&mut self, mut frame: NonNull<Frame>) {
        // SAFETY: open counts are alive, and only this thread uses them.
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
            // Not the last one: the others get a new path.
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
        // SAFETY: came from a box; only its nodes still refer to it, and they are cleared next.
        let ended = unsafe { Box::from_raw(frame.as_ptr()) };
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

    /// Ends the counts that other threads gave up.
    fn sweep(&mut self) {
        // Relaxed: as in `give_up`. Cleared, so that the inner call does not find the count again.
        // SAFETY: as in `activate`.
        let given_up =
            |open: &NonNull<Frame>| unsafe { open.as_ref() }.given_up.swap(false, Ordering::Relaxed);
        while let Some(frame) = self.open.iter().copied().find(given_up) {
            let ended = self.end(frame);
            self.swept.push(ended);
        }
    }

    /// The node of the path `parent` with one more count.
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
        self.nodes.push(Node { parent, frame: frame.as_ptr() });
        state.nodes.push(new);
        new
    }

    #[inline(always)]
    fn known(&self, node: u32) -> Option<&Node> {
        self.nodes.get(node.wrapping_sub(self.first) as usize)
    }

    /// No count is open, so the blocks left in the table belong to no count.
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

    /// Removes the nodes of ended counts. Their blocks go to the outer counts that are still open.
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
        self.by_line = self.active.iter().any(|frame| unsafe { frame.as_ref() }.lines.is_some());
        self.only = match self.active[..] {
            [frame] if !self.by_line => frame.as_ptr(),
            _ => ptr::null_mut(),
        };
        self.quick = self.only;
    }

    /// Whether this is a call that an allocator makes in turn, which is not the program's.
    pub(super) fn is_inside(&self) -> bool {
        self.inside || self.quick != self.only
    }

    pub(super) fn set_inside(&mut self, inside: bool) {
        self.inside = inside;
        self.quick = if inside { ptr::null_mut() } else { self.only };
    }

    // The functions below run for each allocator call of a thread with an open count.

    /// As `set_inside(true)`, in the usual case: one active count, not by line, and not inside. Otherwise returns
    /// false, and changes nothing.
    #[inline(always)]
    pub(super) fn enter_quickly(&mut self) -> bool {
        !std::mem::replace(&mut self.quick, ptr::null_mut()).is_null()
    }

    #[inline(always)]
    pub(super) fn leave_quickly(&mut self) {
        self.quick = self.only;
    }

    /// As `allocated`, after `enter_quickly` and `leave_quickly`, for a small block on a page that is near in the
    /// table. Otherwise returns false, and changes nothing.
    #[inline(always)]
    pub(super) fn allocated_quickly(&mut self, domain: usize, address: usize, size: usize) -> bool {
        let Some(class) = small_class(size) else {
            return false;
        };
        if !self.table.put_near(address, size, self.node) {
            return false;
        }
        // SAFETY: `enter_quickly` saw that it is not null, so it is an active count: active counts are alive, and only
        // this thread uses them.
        unsafe { &mut *self.quick }.cells.allocated(domain, class, size);
        true
    }

    /// As `freed`, in the usual case, for a block of the count on a page that is near in the table. Otherwise returns
    /// false, and changes nothing.
    #[inline(always)]
    pub(super) fn freed_quickly(&mut self, domain: usize, address: usize) -> bool {
        // SAFETY: null, or as in `allocated_quickly`.
        if let Some(frame) = unsafe { self.quick.as_mut() }
            && let Some(size) = self.table.take_near(address, self.node)
        {
            frame.cells.freed(domain, class_of(size), size);
            return true;
        }
        false
    }

    pub(super) fn allocated(&mut self, domain: usize, address: usize, size: usize) {
        let class = class_of(size);
        for frame in &mut self.active {
            // SAFETY: as in `allocated_quickly`.
            unsafe { frame.as_mut() }.cells.allocated(domain, class, size);
        }
        self.enter(address, size);
        if self.by_line {
            self.at_line(size);
        }
    }

    pub(super) fn freed(&mut self, domain: usize, address: usize) {
        match self.table.take(address) {
            // Allocated by exactly the active counts.
            Some(block) if block.owner == self.node => {
                let class = class_of(block.size);
                for frame in &mut self.active {
                    // SAFETY: as in `allocated_quickly`.
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
                    // SAFETY: as in `allocated_quickly`.
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
            self.gone(block.owner, |frame| frame.cells.gone(domain, class_of(block.size), block.size));
        }
        let class = class_of(size);
        for frame in &mut self.active {
            // SAFETY: as in `allocated_quickly`.
            unsafe { frame.as_mut() }.cells.reallocated(domain, class, size);
        }
        self.enter(address, size);
        if self.by_line {
            self.at_line(size);
        }
    }

    /// A block that was allocated within an allocator call. A block that exists only because of counting by line is
    /// ignored, also when it is freed.
    pub(super) fn nested(&mut self, address: usize) {
        self.came_by = true;
        if self.looking && address != 0 {
            self.table.put(address, 0, IGNORED);
        }
    }

    fn enter(&mut self, address: usize, size: usize) {
        if self.active.is_empty() {
            // The block belongs to no count. Another thread may have freed a block that had the same address.
            self.table.take(address);
        } else if !self.table.put(address, size, self.node) {
            self.lost();
        }
    }

    #[cold]
    fn lost(&mut self) {
        for frame in &mut self.active {
            // SAFETY: as in `allocated_quickly`.
            unsafe { frame.as_mut() }.complete = false;
        }
    }

    /// Calls `each` with every open count that the block belongs to.
    fn gone(&mut self, owner: u32, mut each: impl FnMut(&mut Frame)) {
        let mut owner = owner;
        while let Some(node) = self.known(owner) {
            let (parent, frame) = (node.parent, node.frame);
            // SAFETY: null, or of a count that has not ended; only this thread uses it.
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
            // SAFETY: as in `allocated_quickly`.
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
            // SAFETY: came from a box; from now on its handle finds another thread or none.
            drop(unsafe { Box::from_raw(frame.as_ptr()) });
        }
    }
}
