//! CPython's allocators of its three domains, replaced while the interpreter runs (Include/cpython/pymem.h,
//! `PyMemAllocatorEx`). What is installed stays; a thread that doesn't count is passed on at once.
//!
//! Called by every thread of the process, in the raw domain without the interpreter's lock and by threads that Python has
//! never seen. So: no Python call, no lock, no output, `errno` as it was.

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

/// The allocators before us, of each domain. Null until ours are installed. What it once pointed to stays: somebody may be
/// about to call it.
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
        let malloc = [
            function(c"PyMem_RawMalloc")?,
            function(c"PyMem_Malloc")?,
            function(c"PyObject_Malloc")?,
        ];
        let free = [
            function(c"PyMem_RawFree")?,
            function(c"PyMem_Free")?,
            function(c"PyObject_Free")?,
        ];
        type Access = unsafe extern "C" fn(c_int, *mut Allocator);
        // SAFETY: as CPython declares them.
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
    FOUND
        .get_or_init(|| find().ok())
        .as_ref()
        .ok_or(NotInstalled::NoFunction)
}

/// Our functions for a domain; the context is that of the allocator before us, so that a thread which reads the five fields
/// while they are written has ones that fit, whichever it reads.
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

/// Whether the calls of every domain come by here now: ours are installed, or somebody's who calls them.
pub(super) fn reached() -> bool {
    functions().is_ok_and(|functions| {
        (0..DOMAINS.len()).all(|domain| installed(functions, domain).1 || comes_by(functions, domain))
    })
}

/// Sees to it that calls come by here. Called with the interpreter's lock held.
///
/// Somebody else's functions may stand where ours did: installed later, and then they call ours; or put back by somebody who
/// was there before us and has gone, and then nobody does. Only in the second case are ours installed again, before what is
/// there now. So no chain has ours in it twice, which would have no end.
pub(super) fn install() -> Result<(), NotInstalled> {
    let functions = functions()?;
    for (domain, before) in BEFORE.iter().enumerate() {
        let (current, mine) = installed(functions, domain);
        // Relaxed: written below alone, with the lock held.
        if mine || (!before.load(Ordering::Relaxed).is_null() && comes_by(functions, domain)) {
            continue;
        }
        // Never freed. It takes somebody who comes and goes to be here again.
        let kept = Box::into_raw(Box::new(current));
        // Release: whoever finds the pointer finds what it points to. It is there before our functions are.
        before.store(kept, Ordering::Release);
        // SAFETY: copies the structure. Ours serve whatever those before them did, by calling them.
        unsafe { (functions.set)(domain as c_int, &mut ours(domain, current.ctx)) };
    }
    Ok(())
}

/// Whether a call in this domain comes by here, by making one.
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

// What the interpreter calls is short, for the threads that don't count, and goes on by a jump: a function with more in it
// would save registers first.

/// # Safety
///
/// Called by the interpreter, as its allocator; so are the other three.
unsafe extern "C" fn malloc<const D: usize>(_: *mut c_void, size: usize) -> *mut c_void {
    let thread = current::get();
    // SAFETY: what the interpreter would have called.
    unsafe {
        let before = before::<D>();
        if thread.is_null() {
            (before.malloc)(before.ctx, size)
        } else {
            counted_malloc::<D>(thread, before, size)
        }
    }
}

unsafe extern "C" fn calloc<const D: usize>(_: *mut c_void, count: usize, size: usize) -> *mut c_void {
    let thread = current::get();
    // SAFETY: as in `malloc`.
    unsafe {
        let before = before::<D>();
        if thread.is_null() {
            (before.calloc)(before.ctx, count, size)
        } else {
            counted_calloc::<D>(thread, before, count, size)
        }
    }
}

unsafe extern "C" fn realloc<const D: usize>(_: *mut c_void, old: *mut c_void, size: usize) -> *mut c_void {
    let thread = current::get();
    // SAFETY: as in `malloc`.
    unsafe {
        let before = before::<D>();
        if thread.is_null() {
            (before.realloc)(before.ctx, old, size)
        } else {
            counted_realloc::<D>(thread, before, old, size)
        }
    }
}

unsafe extern "C" fn free<const D: usize>(_: *mut c_void, address: *mut c_void) {
    let thread = current::get();
    // SAFETY: as in `malloc`.
    unsafe {
        let before = before::<D>();
        if thread.is_null() {
            (before.free)(before.ctx, address)
        } else {
            counted_free::<D>(thread, before, address)
        }
    }
}

/// # Safety
///
/// `thread` is this thread's state, alive while `current` has it; so in the other three. No reference to it lives across a call
/// of the allocator before us, which may come back here.
#[inline(never)]
unsafe extern "C" fn counted_malloc<const D: usize>(
    thread: *mut Thread,
    before: &Allocator,
    size: usize,
) -> *mut c_void {
    // SAFETY: what the interpreter would have called; and the promise above.
    unsafe {
        if (*thread).inside {
            let address = (before.malloc)(before.ctx, size);
            (*thread).nested(address as usize);
            return address;
        }
        (*thread).inside = true;
        let address = (before.malloc)(before.ctx, size);
        (*thread).inside = false;
        if !address.is_null() {
            (*thread).allocated(D, address as usize, size);
        }
        address
    }
}

#[inline(never)]
unsafe extern "C" fn counted_calloc<const D: usize>(
    thread: *mut Thread,
    before: &Allocator,
    count: usize,
    size: usize,
) -> *mut c_void {
    // SAFETY: as in `counted_malloc`.
    unsafe {
        if (*thread).inside {
            let address = (before.calloc)(before.ctx, count, size);
            (*thread).nested(address as usize);
            return address;
        }
        (*thread).inside = true;
        let address = (before.calloc)(before.ctx, count, size);
        (*thread).inside = false;
        if !address.is_null() {
            (*thread).allocated(D, address as usize, count.saturating_mul(size));
        }
        address
    }
}

#[inline(never)]
unsafe extern "C" fn counted_realloc<const D: usize>(
    thread: *mut Thread,
    before: &Allocator,
    old: *mut c_void,
    size: usize,
) -> *mut c_void {
    // SAFETY: as in `counted_malloc`.
    unsafe {
        if (*thread).inside {
            return (before.realloc)(before.ctx, old, size);
        }
        (*thread).inside = true;
        let address = (before.realloc)(before.ctx, old, size);
        (*thread).inside = false;
        if address.is_null() {
            // The old block is as it was.
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
    thread: *mut Thread,
    before: &Allocator,
    address: *mut c_void,
) {
    // SAFETY: as in `counted_malloc`.
    unsafe {
        if (*thread).inside || address.is_null() {
            return (before.free)(before.ctx, address);
        }
        (*thread).freed(D, address as usize);
        (*thread).inside = true;
        (before.free)(before.ctx, address);
        (*thread).inside = false;
    }
}
