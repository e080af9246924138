//! The origin of a call, for counts by line: the Python line that runs on this thread. The interpreter is asked
//! within an allocator call, so only functions that run no Python code are used.

use super::super::hook::function;
use super::thread::Thread;
use pyo3::ffi;
use pyo3::prelude::*;
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::OnceLock;

/// A code object and a line of it; null if no Python code runs.
pub(super) type Line = (*mut ffi::PyObject, c_int);

/// Code object (None if no Python code ran), line, calls, bytes.
pub(super) type Row = (Option<Py<PyAny>>, c_int, u64, u64);

#[derive(Default)]
pub(super) struct Lines {
    /// Calls and bytes. `codes` holds one reference to each code object.
    sums: HashMap<(usize, c_int), (u64, u64)>,
    codes: HashMap<usize, Py<PyAny>>,
}

impl Lines {
    /// Adds a call. Takes a reference to the line's code object.
    pub(super) fn add(&mut self, (code, line): Line, size: usize) {
        let sum = self.sums.entry((code as usize, line)).or_default();
        sum.0 += 1;
        sum.1 += size as u64;
        if !code.is_null() {
            self.codes
                .entry(code as usize)
                // SAFETY: the lock is held, or there would be no code object; the object is alive, because it runs.
                .or_insert_with(|| unsafe {
                    Bound::from_borrowed_ptr(Python::assume_attached(), code).unbind()
                });
        }
    }

    /// Code object (or None), line, calls, bytes.
    pub(super) fn rows(self, py: Python<'_>) -> Vec<Row> {
        self.sums
            .into_iter()
            .map(|((code, line), (calls, bytes))| {
                let code = self.codes.get(&code).map(|code| code.clone_ref(py));
                (code, line, calls, bytes)
            })
            .collect()
    }
}

/// Functions of the interpreter. They are public, but not part of the limited API of 3.9.
struct Interpreter {
    gil_check: unsafe extern "C" fn() -> c_int,
    thread_state: unsafe extern "C" fn() -> *mut c_void,
    /// Returns a new reference, or null. Since 3.11 it creates the frame's object if there is none, which allocates.
    frame: unsafe extern "C" fn(*mut c_void) -> *mut ffi::PyObject,
    code: unsafe extern "C" fn(*mut ffi::PyObject) -> *mut ffi::PyObject,
    line: unsafe extern "C" fn(*mut ffi::PyObject) -> c_int,
    /// Since 3.10. Before that, every frame is an object.
    collector: Option<(unsafe extern "C" fn() -> c_int, unsafe extern "C" fn() -> c_int)>,
}

fn interpreter() -> Option<&'static Interpreter> {
    static FOUND: OnceLock<Option<Interpreter>> = OnceLock::new();
    FOUND
        .get_or_init(|| {
            let thread_state = function(c"PyThreadState_GetUnchecked")
                .or_else(|_| function(c"_PyThreadState_UncheckedGet"))
                .ok()?;
            let collector = function(c"PyGC_Disable").ok().zip(function(c"PyGC_Enable").ok());
            type Plain = unsafe extern "C" fn() -> c_int;
            type OfObject = unsafe extern "C" fn(*mut ffi::PyObject) -> c_int;
            // SAFETY: the types that CPython declares (Include/cpython/pystate.h, Include/pyframe.h,
            // Include/objimpl.h).
            unsafe {
                Some(Interpreter {
                    gil_check: std::mem::transmute::<*mut c_void, Plain>(function(c"PyGILState_Check").ok()?),
                    thread_state: std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> *mut c_void>(
                        thread_state,
                    ),
                    frame: std::mem::transmute::<
                        *mut c_void,
                        unsafe extern "C" fn(*mut c_void) -> *mut ffi::PyObject,
                    >(function(c"PyThreadState_GetFrame").ok()?),
                    code: std::mem::transmute::<
                        *mut c_void,
                        unsafe extern "C" fn(*mut ffi::PyObject) -> *mut ffi::PyObject,
                    >(function(c"PyFrame_GetCode").ok()?),
                    line: std::mem::transmute::<*mut c_void, OfObject>(
                        function(c"PyFrame_GetLineNumber").ok()?,
                    ),
                    collector: collector.map(|(off, on)| {
                        (
                            std::mem::transmute::<*mut c_void, Plain>(off),
                            std::mem::transmute::<*mut c_void, Plain>(on),
                        )
                    }),
                })
            }
        })
        .as_ref()
}

/// Whether this interpreter has the functions.
pub(super) fn available() -> bool {
    interpreter().is_some()
}

impl Thread {
    /// The line that runs on this thread. Allocations that this makes are not counted, nor are their frees.
    pub(super) fn find_line(&mut self) -> Line {
        self.set_inside(true);
        self.looking = true;
        let found = line();
        self.looking = false;
        self.set_inside(false);
        found.unwrap_or((std::ptr::null_mut(), 0))
    }
}

fn line() -> Option<Line> {
    let interpreter = interpreter()?;
    // SAFETY: the functions need the lock, which is checked first. The collector is off while a frame's object is
    // created, because it would run Python code. Both references are released while the running frame keeps its own.
    unsafe {
        if (interpreter.gil_check)() == 0 {
            return None;
        }
        let state = (interpreter.thread_state)();
        if state.is_null() {
            return None;
        }
        let was_on = interpreter.collector.is_some_and(|(off, _)| off() == 1);
        let frame = (interpreter.frame)(state);
        if let Some((_, on)) = interpreter.collector
            && was_on
        {
            on();
        }
        if frame.is_null() {
            return None;
        }
        let (code, line) = ((interpreter.code)(frame), (interpreter.line)(frame));
        ffi::Py_DecRef(code);
        ffi::Py_DecRef(frame);
        Some((code, line))
    }
}
