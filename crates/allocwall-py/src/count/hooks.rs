//! Hooks in CPython's allocators of the three domains, installed while the interpreter runs (Include/cpython/pymem.h,
//! `PyMemAllocatorEx`). They are never removed; calls of a thread that does not count are passed on at once.
//!
//! Every thread of the process calls them; in the raw domain without the interpreter's lock, and also threads that
//! Python does not know. So they make no Python call, take no lock, print nothing and keep `errno`.

use super::super::hook::{NotInstalled, function};
use super::cells::DOMAINS;
use super::current;
use super::thread::{self, Thread};
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

type Malloc = unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void;
type Calloc = unsafe extern "C" fn(*mut c_void, usize, usize) -> *mut c_void;
type Realloc = unsafe extern "C" fn(*mut c_void, *mut c_void, usize) -> *mut c_void;
type Free = unsafe extern "C" fn(*mut c_void, *mut c_void);

/// As in CPython since 3.5.
#[derive(Clone, Copy)]
#[repr(C)]
struct Allocator {
    ctx: *mut c_void,
    malloc: Malloc,
    calloc: Calloc,
    realloc: Realloc,
    free: Free,
}

/// The previous allocator of each domain. Null until ours are installed. An allocator that it pointed to is never
/// freed, because another thread may be about to call it.
static BEFORE: [AtomicPtr<Allocator>; DOMAINS.len()] =
    [const { AtomicPtr::new(ptr::null_mut()) }; DOMAINS.len()];

/// The interpreter's functions.
struct Functions {
    get: unsafe extern "C" fn(c_int, *mut Allocator),
    set: unsafe extern "C" fn(c_int, *mut Allocator),
    /// `PyMem_RawMalloc` and so on.
    malloc: [unsafe extern "C" fn(usize) -> *mut c_void; DOMAINS.len()],
    free: [unsafe extern "C" fn(*mut c_void); DOMAINS.len()],
}

fn functions() -> Result<&'static Functions, NotInstalled> {
    static FOUND: std::sync::OnceLock<Option<Functions>> = std::sync::OnceLock::new();
    let find = || -> Result<Functions, NotInstalled> {
        let malloc =
            [function(c"PyMem_RawMalloc")?, function(c"PyMem_Malloc")?, function(c"PyObject_Malloc")?];
        let free = [function(c"PyMem_RawFree")?, function(c"PyMem_Free")?, function(c"PyObject_Free")?];
        type Access = unsafe extern "C" fn(c_int, *mut Allocator);
        // SAFETY: these are the types that CPython declares.
        unsafe {
            Ok(Functions {
                get: std::mem::transmute::<*mut c_void, Access>(function(c"PyMem_GetAllocator")?),
                set: std::mem::transmute::<*mut c_void, Access>(function(c"PyMem_SetAllocator")?),
                malloc: malloc.map(|found| {
                    std::mem::transmute::<*mut c_void, unsafe extern "C" fn(usize) -> *mut c_void>(found)
                }),
                free: free.map(|found| {
                    std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void)>(found)
                }),
            })
        }
    };
    FOUND.get_or_init(|| find().ok()).as_ref().ok_or(NotInstalled::NoFunction)
}

/// Our functions for a domain. The context is that of the previous allocator, so a thread that reads the five fields
/// while they are written gets fields that fit in any case.
fn ours(domain: usize, ctx: *mut c_void) -> Allocator {
    macro_rules! of {
        ($domain:literal) => {
            Allocator {
                ctx,
                malloc: malloc::<$domain>,
                calloc: calloc::<$domain>,
                realloc: realloc::<$domain>,
                free: free::<$domain>,
            }
        };
    }
    match domain {
        0 => of!(0),
        1 => of!(1),
        _ => of!(2),
    }
}

fn installed(functions: &Functions, domain: usize) -> (Allocator, bool) {
    let mut current = ours(domain, ptr::null_mut());
    let mine = current.malloc as usize;
    // SAFETY: fills in the structure.
    unsafe { (functions.get)(domain as c_int, &mut current) };
    (current, current.malloc as usize == mine)
}

/// Whether the calls of every domain reach our functions now: directly, or through another hook.
pub(super) fn reached() -> bool {
    functions().is_ok_and(|functions| {
        (0..DOMAINS.len()).all(|domain| installed(functions, domain).1 || comes_by(functions, domain))
    })
}

/// Makes sure that allocator calls reach our functions. Called with the interpreter's lock held.
///
/// Another hook may have replaced ours. If it was installed later, it calls ours. If it was installed before and has
/// restored its predecessor, no one calls ours. Only in the second case ours are installed again, in front of the
/// current ones. So no chain contains ours twice; such a chain would never end.
pub(super) fn install() -> Result<(), NotInstalled> {
    let functions = functions()?;
    for (domain, before) in BEFORE.iter().enumerate() {
        let (current, mine) = installed(functions, domain);
        // Relaxed: written only below, with the lock held.
        if mine || (!before.load(Ordering::Relaxed).is_null() && comes_by(functions, domain)) {
            continue;
        }
        // Never freed. This runs again only if another hook removed ours.
        let kept = Box::into_raw(Box::new(current));
        // Release: a thread that reads the pointer also sees the allocator. It is stored before our functions are
        // installed.
        before.store(kept, Ordering::Release);
        // SAFETY: copies the structure. Our functions serve every call, because they pass it on to the previous ones.
        unsafe { (functions.set)(domain as c_int, &mut ours(domain, current.ctx)) };
    }
    Ok(())
}

/// Whether calls in this domain reach our functions: makes one and checks.
fn comes_by(functions: &Functions, domain: usize) -> bool {
    // SAFETY: a block of one byte, freed in its own domain.
    thread::comes_by(|| unsafe { (functions.free[domain])((functions.malloc[domain])(1)) })
}

/// # Safety
///
/// Ours are installed for this domain.
#[inline(always)]
unsafe fn before<const D: usize>() -> &'static Allocator {
    // Acquire: pairs with the store in `install`.
    // SAFETY: not null since before ours were installed, and never freed.
    unsafe { &*BEFORE[D].load(Ordering::Acquire) }
}

// The functions that the interpreter calls are short and end in a jump, for threads that do not count. A longer
// function would save registers first. For the same reason `counted_malloc` and `counted_free` have code for the usual
// case alone, and end in a jump in the others. The context is passed on but not used: with it, the other arguments stay
// in their registers.

/// # Safety
///
/// Only the interpreter calls this and the next three, as its allocator.
unsafe extern "C" fn malloc<const D: usize>(ctx: *mut c_void, size: usize) -> *mut c_void {
    let thread = current::get();
    // SAFETY: the interpreter would have made the same call without the hook.
    unsafe {
        let before = before::<D>();
        if thread.is_null() {
            (before.malloc)(before.ctx, size)
        } else {
            counted_malloc::<D>(ctx, size, thread, before)
        }
    }
}

unsafe extern "C" fn calloc<const D: usize>(ctx: *mut c_void, count: usize, size: usize) -> *mut c_void {
    let thread = current::get();
    // SAFETY: as in `malloc`.
    unsafe {
        let before = before::<D>();
        if thread.is_null() {
            (before.calloc)(before.ctx, count, size)
        } else {
            counted_calloc::<D>(ctx, count, size, thread, before)
        }
    }
}

unsafe extern "C" fn realloc<const D: usize>(ctx: *mut c_void, old: *mut c_void, size: usize) -> *mut c_void {
    let thread = current::get();
    // SAFETY: as in `malloc`.
    unsafe {
        let before = before::<D>();
        if thread.is_null() {
            (before.realloc)(before.ctx, old, size)
        } else {
            counted_realloc::<D>(ctx, old, size, thread, before)
        }
    }
}

unsafe extern "C" fn free<const D: usize>(ctx: *mut c_void, address: *mut c_void) {
    let thread = current::get();
    // SAFETY: as in `malloc`.
    unsafe {
        let before = before::<D>();
        if thread.is_null() {
            (before.free)(before.ctx, address)
        } else {
            counted_free::<D>(ctx, address, thread, before)
        }
    }
}

/// # Safety
///
/// For all functions below: `thread` is this thread's state, which lives while `current` has it. No reference to it is
/// held during a call of the previous allocator, which may call these functions again.
#[inline(never)]
unsafe extern "C" fn counted_malloc<const D: usize>(
    ctx: *mut c_void,
    size: usize,
    thread: *mut Thread,
    before: &Allocator,
) -> *mut c_void {
    // SAFETY: the interpreter would have made the same call; and the promise above.
    unsafe {
        if !(*thread).enter_quickly() {
            return other_malloc::<D>(ctx, size, thread, before);
        }
        let address = (before.malloc)(before.ctx, size);
        (*thread).leave_quickly();
        if (*thread).allocated_quickly(D, address as usize, size) {
            address
        } else {
            record::<D>(address, size, thread)
        }
    }
}

/// `malloc` in all other cases.
#[cold]
#[inline(never)]
unsafe extern "C" fn other_malloc<const D: usize>(
    _: *mut c_void,
    size: usize,
    thread: *mut Thread,
    before: &Allocator,
) -> *mut c_void {
    // SAFETY: as in `counted_malloc`.
    unsafe { allocating::<D>(size, thread, || (before.malloc)(before.ctx, size)) }
}

#[inline(never)]
unsafe extern "C" fn counted_calloc<const D: usize>(
    _: *mut c_void,
    count: usize,
    size: usize,
    thread: *mut Thread,
    before: &Allocator,
) -> *mut c_void {
    // SAFETY: as in `counted_malloc`.
    unsafe {
        allocating::<D>(count.saturating_mul(size), thread, || (before.calloc)(before.ctx, count, size))
    }
}

/// Makes the call of the previous allocator.
#[inline(always)]
unsafe fn allocating<const D: usize>(
    size: usize,
    thread: *mut Thread,
    call: impl FnOnce() -> *mut c_void,
) -> *mut c_void {
    // SAFETY: as in `counted_malloc`.
    unsafe {
        if (*thread).is_inside() {
            let address = call();
            (*thread).nested(address as usize);
            return address;
        }
        (*thread).set_inside(true);
        let address = call();
        (*thread).set_inside(false);
        record::<D>(address, size, thread)
    }
}

/// Returns the address. Null if the call failed, which is not counted.
#[cold]
#[inline(never)]
unsafe extern "C" fn record<const D: usize>(
    address: *mut c_void,
    size: usize,
    thread: *mut Thread,
) -> *mut c_void {
    if !address.is_null() {
        // SAFETY: as in `counted_malloc`.
        unsafe { (*thread).allocated(D, address as usize, size) };
    }
    address
}

#[inline(never)]
unsafe extern "C" fn counted_realloc<const D: usize>(
    _: *mut c_void,
    old: *mut c_void,
    size: usize,
    thread: *mut Thread,
    before: &Allocator,
) -> *mut c_void {
    // SAFETY: as in `counted_malloc`.
    unsafe {
        if (*thread).is_inside() {
            return (before.realloc)(before.ctx, old, size);
        }
        (*thread).set_inside(true);
        let address = (before.realloc)(before.ctx, old, size);
        (*thread).set_inside(false);
        if address.is_null() {
            // The realloc failed: the old block is unchanged.
        } else if old.is_null() {
            (*thread).allocated(D, address as usize, size);
        } else {
            (*thread).reallocated(D, old as usize, address as usize, size);
        }
        address
    }
}

#[inline(never)]
unsafe extern "C" fn counted_free<const D: usize>(
    ctx: *mut c_void,
    address: *mut c_void,
    thread: *mut Thread,
    before: &Allocator,
) {
    // SAFETY: as in `counted_malloc`.
    unsafe {
        if !(*thread).freed_quickly(D, address as usize) {
            return other_free::<D>(ctx, address, thread, before);
        }
        (*thread).enter_quickly();
        (before.free)(before.ctx, address);
        (*thread).leave_quickly();
    }
}

/// `free` in all other cases.
#[cold]
#[inline(never)]
unsafe extern "C" fn other_free<const D: usize>(
    _: *mut c_void,
    address: *mut c_void,
    thread: *mut Thread,
    before: &Allocator,
) {
    // SAFETY: as in `counted_malloc`.
    unsafe {
        if (*thread).is_inside() || address.is_null() {
            return (before.free)(before.ctx, address);
        }
        (*thread).freed(D, address as usize);
        (*thread).set_inside(true);
        (before.free)(before.ctx, address);
        (*thread).set_inside(false);
    }
}
