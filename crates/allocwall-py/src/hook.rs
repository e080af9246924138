//! CPython's arena allocator, replaced while the interpreter runs (Include/cpython/objimpl.h,
//! `PyObjectArenaAllocator`).
//!
//! The functions are public but not part of the limited API, so they are looked up by name. The hook is never removed:
//! arenas that it handed out must come back to it. "Off" means that new arenas come from the previous allocator.
//!
//! Every interpreter and thread of the process calls the hook, with the interpreter's lock or without. So it makes no
//! Python call, allocates nothing, prints nothing and keeps `errno`. A request that it cannot serve goes to the
//! previous allocator.

use allocwall_pool::region::Why;
use allocwall_pool::slab::{Arenas, Counts, Freed, Settings};
use std::ffi::{CStr, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{self, NonNull};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

type Alloc = unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void;
type Free = unsafe extern "C" fn(*mut c_void, *mut c_void, usize);

/// As in CPython since 3.4. The functions are optional only because C does not promise that they are not null.
#[derive(Clone, Copy)]
#[repr(C)]
struct ArenaAllocator {
    ctx: *mut c_void,
    alloc: Option<Alloc>,
    free: Option<Free>,
}

/// The previous allocator.
#[derive(Clone, Copy)]
struct Before {
    alloc: Alloc,
    free: Free,
}

struct Hook {
    arenas: Arenas,
    before: Before,
    /// Whether new arenas come from the hook.
    on: AtomicBool,
}

static HOOK: OnceLock<Hook> = OnceLock::new();

/// Why the hook is not installed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NotInstalled {
    /// The interpreter does not have the functions, or hides them.
    NoFunction,
    /// Installed before, with other settings.
    OtherSettings,
    Slabs(Why),
}

/// Installs the hook, or switches it on again. Called with the interpreter's lock held.
pub(crate) fn install(settings: Settings) -> Result<(), NotInstalled> {
    if let Some(hook) = HOOK.get() {
        if !same(hook.arenas.settings(), &settings) {
            return Err(NotInstalled::OtherSettings);
        }
        // Relaxed: it does not matter if a thread sees the change a moment later.
        hook.on.store(true, Ordering::Relaxed);
        return Ok(());
    }
    let get = function(c"PyObject_GetArenaAllocator")?;
    let set = function(c"PyObject_SetArenaAllocator")?;
    // SAFETY: CPython declares them `void (PyObjectArenaAllocator *)`.
    let (get, set) = unsafe {
        (
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut ArenaAllocator)>(get),
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut ArenaAllocator)>(set),
        )
    };
    let mut current = ArenaAllocator { ctx: ptr::null_mut(), alloc: None, free: None };
    // SAFETY: fills in the structure.
    unsafe { get(&mut current) };
    let (Some(before_alloc), Some(before_free)) = (current.alloc, current.free) else {
        return Err(NotInstalled::NoFunction);
    };
    let arenas = Arenas::new(settings).map_err(NotInstalled::Slabs)?;
    let hook =
        Hook { arenas, before: Before { alloc: before_alloc, free: before_free }, on: AtomicBool::new(true) };
    if HOOK.set(hook).is_err() {
        // Another interpreter of the process installed the hook at the same time.
        return install(settings);
    }
    // The context stays that of the previous allocator, to which it is passed on. So an interpreter on another thread
    // that reads the three fields while they are written gets a function and a context that fit in any case.
    let mut ours = ArenaAllocator { ctx: current.ctx, alloc: Some(alloc), free: Some(free) };
    // SAFETY: copies the structure. Both functions accept every size and address that the interpreter may pass.
    unsafe { set(&mut ours) };
    Ok(())
}

/// From now on new arenas come from the previous allocator. Returns whether the hook was on.
pub(crate) fn pause() -> bool {
    HOOK.get().is_some_and(|hook| hook.on.swap(false, Ordering::Relaxed))
}

/// The state and the counts of the hook.
pub(crate) struct Report {
    pub(crate) on: bool,
    pub(crate) settings: Settings,
    pub(crate) counts: Counts,
    /// The slabs' addresses.
    pub(crate) ranges: Vec<(usize, usize)>,
}

pub(crate) fn report() -> Option<Report> {
    HOOK.get().map(|hook| Report {
        on: hook.on.load(Ordering::Relaxed),
        settings: *hook.arenas.settings(),
        counts: hook.arenas.counts(),
        ranges: hook.arenas.ranges(),
    })
}

/// The name of the allocator of objects: `pymalloc`, `malloc`, `mimalloc`, each also with `_debug`. None if another
/// hook is in front of it (tracemalloc, memray), or if the interpreter does not report it.
pub(crate) fn allocator_name() -> Option<&'static str> {
    let name = function(c"_PyMem_GetCurrentAllocatorName").ok()?;
    // SAFETY: CPython declares it `const char *(void)`; it returns a literal or null.
    unsafe {
        let name = std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> *const c_char>(name)();
        (!name.is_null()).then(|| CStr::from_ptr(name).to_str().ok()).flatten()
    }
}

/// Finds a function of the interpreter by its name.
pub(crate) fn function(name: &CStr) -> Result<*mut c_void, NotInstalled> {
    // SAFETY: looks a name up among the global symbols of the process.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    if found.is_null() { Err(NotInstalled::NoFunction) } else { Ok(found) }
}

fn same(one: &Settings, other: &Settings) -> bool {
    (one.arena_bytes, one.pages, one.keep_bytes, one.watch_price)
        == (other.arena_bytes, other.pages, other.keep_bytes, other.watch_price)
}

/// # Safety
///
/// Only the interpreter calls this, as its arena allocator.
unsafe extern "C" fn alloc(ctx: *mut c_void, size: usize) -> *mut c_void {
    let Some(hook) = HOOK.get() else {
        return ptr::null_mut();
    };
    // Relaxed: as in `install`.
    if hook.on.load(Ordering::Relaxed)
        && let Some(Ok(arena)) = quietly(|| hook.arenas.alloc(size))
    {
        return arena.as_ptr().cast();
    }
    // SAFETY: the interpreter would have made the same call without the hook.
    unsafe { (hook.before.alloc)(ctx, size) }
}

/// # Safety
///
/// Only the interpreter calls this, as its arena allocator, with an arena that is not used any more.
unsafe extern "C" fn free(ctx: *mut c_void, address: *mut c_void, size: usize) {
    let (Some(hook), Some(arena)) = (HOOK.get(), NonNull::new(address.cast::<u8>())) else {
        return;
    };
    // SAFETY: the caller's promise. If the bookkeeping fails, the arena is lost; to give it to the wrong allocator is
    // worse.
    let freed = quietly(|| unsafe { hook.arenas.free(arena) });
    if freed == Some(Freed::Foreign) {
        // SAFETY: the interpreter would have made the same call; the arena is not ours, so it came from that allocator.
        unsafe { (hook.before.free)(ctx, address, size) }
    }
}

/// Runs `inside` and restores `errno`. A panic is a bug, and must not leave a function that C calls; so it is caught
/// here.
fn quietly<R>(inside: impl FnOnce() -> R) -> Option<R> {
    // SAFETY: this thread's own `errno`.
    let errno = unsafe { *libc::__errno_location() };
    let result = catch_unwind(AssertUnwindSafe(inside)).ok();
    // SAFETY: this thread's own `errno`.
    unsafe { *libc::__errno_location() = errno };
    result
}
