//! Exact counts of a thread's calls to CPython's allocators. `allocwall/counting.py` defines the values.
//!
//! `hooks`: the functions in the allocators. `current`: whether a thread counts. `thread`: a thread's open counts.
//! `table`: the memory blocks that they allocated. `cells`: the sums. `lines`: the lines that the calls came from.

mod cells;
mod current;
mod hooks;
mod lines;
mod table;
mod thread;

use cells::{CLASSES, Cells, DOMAINS, largest};
use lines::{Lines, Row};
use pyo3::exceptions::{PyRuntimeError, PyStopIteration};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::OnceLock;
use thread::Handle;

/// (domain, calls, reallocs, frees, older frees, bytes, live bytes, peak bytes)
type DomainRow = (&'static str, u64, u64, u64, u64, u64, i64, i64);
/// (domain, largest size, calls, reallocs, frees, bytes, live bytes, peak bytes)
type ClassRow = (&'static str, usize, u64, u64, u64, u64, i64, i64);
/// Whether the count is complete, the peak of all domains together, the domains, and their size classes with any calls.
type Figures = (bool, i64, Vec<DomainRow>, Vec<ClassRow>);

fn figures(cells: &Cells, complete: bool) -> Figures {
    let mut domains = Vec::new();
    let mut classes = Vec::new();
    for (name, domain) in DOMAINS.into_iter().zip(&cells.domains) {
        let mut sum = (0, 0, 0, 0);
        for (class, cell) in (0..CLASSES).zip(&domain.cells) {
            if (cell.calls, cell.frees, cell.level.live()) == (0, 0, 0) {
                continue;
            }
            sum.0 += cell.calls;
            sum.1 += cell.reallocs;
            sum.2 += cell.frees;
            sum.3 += cell.bytes;
            classes.push((
                name,
                largest(class),
                cell.calls,
                cell.reallocs,
                cell.frees,
                cell.bytes,
                cell.level.live(),
                cell.level.peak(),
            ));
        }
        let older = domain.older_frees;
        domains.push((
            name,
            sum.0,
            sum.1,
            sum.2 + older,
            older,
            sum.3,
            domain.level.live(),
            domain.level.peak(),
        ));
    }
    (complete, cells.level.peak(), domains, classes)
}

/// The state of a count.
enum State {
    New,
    /// Not ended. The second value: whether one of its steps ran on a thread where it could not be counted.
    Open(Handle, bool),
    Ended(Box<Cells>, bool),
}

/// The base class of `allocwall.count`.
#[pyclass(subclass, module = "allocwall._native")]
pub(crate) struct Counter {
    state: State,
    by_line: bool,
    lines: Option<Box<Lines>>,
}

/// The type's attribute `__enter__`. Read from an instance, it is the instance itself, which begins when it is called.
///
/// A plain method does not work: a with statement binds it, calls it, and drops the bound method. That free would be
/// the first one in the counted block.
#[pyclass(frozen, module = "allocwall._native")]
struct Entrance;

#[pymethods]
impl Entrance {
    fn __get__(slf: Py<Self>, instance: Py<PyAny>, _owner: Py<PyAny>, py: Python<'_>) -> Py<PyAny> {
        if instance.is_none(py) { slf.into_any() } else { instance }
    }

    /// For `type(c).__enter__(c)`, as contextlib.ExitStack calls it.
    fn __call__(&self, counter: Bound<'_, Counter>) -> PyResult<Py<Counter>> {
        counter.try_borrow_mut()?.begin()?;
        Ok(counter.unbind())
    }
}

#[pymethods]
impl Counter {
    #[new]
    #[pyo3(signature = (*, by_line=false))]
    fn new(by_line: bool) -> PyResult<Self> {
        if by_line && !lines::available() {
            return Err(PyRuntimeError::new_err(
                "this interpreter hides the functions that report the current line: use count() without by_line",
            ));
        }
        Ok(Counter { state: State::New, by_line, lines: None })
    }

    #[classattr]
    fn __enter__() -> Entrance {
        Entrance
    }

    /// Without a function: begins the count and returns itself. With a function: returns `decorated(function)`.
    #[pyo3(signature = (function=None))]
    fn __call__(slf: Bound<'_, Self>, function: Option<Bound<'_, PyAny>>) -> PyResult<Py<PyAny>> {
        match function {
            Some(function) => Ok(slf.call_method1("decorated", (function,))?.unbind()),
            None => {
                slf.try_borrow_mut()?.begin()?;
                Ok(slf.into_any().unbind())
            }
        }
    }

    #[pyo3(signature = (kind, value, traceback))]
    fn __exit__(
        slf: &Bound<'_, Self>,
        kind: Py<PyAny>,
        value: Py<PyAny>,
        traceback: Py<PyAny>,
    ) -> PyResult<()> {
        // Ends the count first: the references are released when this function returns. The lines of an earlier use
        // are dropped when nothing is borrowed, because to drop their code objects may run any Python code.
        let earlier = slf.try_borrow_mut()?.end()?;
        drop(earlier);
        let _ = (kind, value, traceback);
        Ok(())
    }

    /// Calls the function and adds its calls to the count; pauses the count afterwards.
    #[pyo3(signature = (function, args, kwargs=None))]
    fn step<'py>(
        slf: &Bound<'py, Self>,
        function: &Bound<'py, PyAny>,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let counted = slf.try_borrow_mut()?.resume()?;
        let result = function.call(args, kwargs);
        if counted {
            slf.try_borrow()?.pause();
        }
        result
    }

    /// As `step`, for the next step of a coroutine, generator or iterator. Returns whether it has ended, and its value.
    fn send<'py>(
        slf: &Bound<'py, Self>,
        iterator: &Bound<'py, PyAny>,
        value: &Bound<'py, PyAny>,
    ) -> PyResult<(bool, Bound<'py, PyAny>)> {
        let counted = slf.try_borrow_mut()?.resume()?;
        let result = next(iterator, value);
        if counted {
            slf.try_borrow()?.pause();
        }
        result
    }

    /// Calls the function without counting it, within a step or elsewhere.
    #[pyo3(signature = (function, *args))]
    fn aside<'py>(
        slf: &Bound<'py, Self>,
        function: &Bound<'py, PyAny>,
        args: &Bound<'py, PyTuple>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let counted = slf.try_borrow()?.is_active();
        if counted {
            slf.try_borrow()?.pause();
        }
        let result = function.call1(args);
        if counted && let State::Open(handle, _) = &slf.try_borrow()?.state {
            handle.resume();
        }
        result
    }

    /// Ends a count that `step` or `send` began. If there was no step, the count is zero. A second call does nothing.
    fn finish(slf: &Bound<'_, Self>) -> PyResult<()> {
        let earlier = slf.try_borrow_mut()?.finished();
        // When nothing is borrowed, as in `__exit__`.
        drop(earlier);
        Ok(())
    }

    fn figures(&self) -> PyResult<Figures> {
        match &self.state {
            State::New => Err(PyRuntimeError::new_err("this count has not begun")),
            State::Open(handle, missed) => handle
                .look()
                .map(|(cells, complete)| figures(&cells, complete && !missed))
                .ok_or_else(elsewhere),
            State::Ended(cells, complete) => Ok(figures(cells, *complete)),
        }
    }

    /// The calls and bytes of each line. Can be read only once.
    fn take_lines(&mut self, py: Python<'_>) -> Vec<Row> {
        // Afterwards only the rows hold the code objects.
        self.lines.take().map_or_else(Vec::new, |lines| lines.rows(py))
    }
}

impl Counter {
    /// As `finish`. Returns the lines of an earlier use.
    fn finished(&mut self) -> Option<Box<Lines>> {
        let complete = match &self.state {
            State::Ended(..) => return None,
            State::New => true,
            State::Open(..) => {
                if let Ok(earlier) = self.end() {
                    return earlier;
                }
                // This is another thread, which cannot read the count.
                if let State::Open(handle, _) = &self.state {
                    handle.give_up();
                }
                false
            }
        };
        self.state = State::Ended(Box::new(Cells::NONE), complete);
        None
    }

    fn begin(&mut self) -> PyResult<()> {
        if matches!(self.state, State::Open(..)) {
            return Err(PyRuntimeError::new_err("this count has begun already"));
        }
        hooks::install().map_err(|_| {
            PyRuntimeError::new_err("this interpreter has no PyMem_SetAllocator, or hides it from extensions")
        })?;
        let handle = thread::begin(self.by_line.then(Box::default))
            .ok_or_else(|| PyRuntimeError::new_err("this thread is ending, so it cannot count"))?;
        self.state = State::Open(handle, false);
        Ok(())
    }

    /// Ends the count. Returns the lines of an earlier use, to be dropped when nothing is borrowed.
    fn end(&mut self) -> PyResult<Option<Box<Lines>>> {
        let State::Open(handle, missed) = &self.state else {
            return Err(PyRuntimeError::new_err("this count has not begun"));
        };
        let missed = *missed;
        let mut frame = handle.end().ok_or_else(elsewhere)?;
        let earlier = std::mem::replace(&mut self.lines, frame.lines.take());
        // A hook that was installed before ours may have removed ours by restoring its predecessor.
        let complete = frame.complete && !missed && hooks::reached();
        self.state = State::Ended(Box::new(frame.cells), complete);
        Ok(earlier)
    }

    /// Returns whether the step is counted. It is not if it runs on another thread than the first step.
    fn resume(&mut self) -> PyResult<bool> {
        match &mut self.state {
            State::Open(handle, missed) => {
                let here = handle.resume();
                *missed |= !here;
                Ok(here)
            }
            State::New => self.begin().map(|()| true),
            State::Ended(..) => Err(PyRuntimeError::new_err("this count has ended")),
        }
    }

    /// Whether the count is active on this thread, within a step or a block.
    fn is_active(&self) -> bool {
        matches!(&self.state, State::Open(handle, _) if handle.is_active())
    }

    fn pause(&self) {
        if let State::Open(handle, _) = &self.state {
            handle.pause();
        }
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        if let State::Open(handle, _) = &self.state
            && handle.end().is_none()
        {
            handle.give_up();
        }
    }
}

/// The base class of `allocwall.Totals`.
#[pyclass(subclass, module = "allocwall._native")]
pub(crate) struct Totals {
    cells: Box<Cells>,
    complete: bool,
    counts: u64,
}

#[pymethods]
impl Totals {
    #[new]
    fn new() -> Self {
        Totals { cells: Box::new(Cells::NONE), complete: true, counts: 0 }
    }

    /// Adds a count that has ended.
    fn add(&mut self, counter: &Counter) -> PyResult<()> {
        let State::Ended(cells, complete) = &counter.state else {
            return Err(PyRuntimeError::new_err("this count has not ended"));
        };
        self.cells.add(cells);
        self.complete &= complete;
        self.counts += 1;
        Ok(())
    }

    /// The number of counts that were added.
    #[getter]
    fn counts(&self) -> u64 {
        self.counts
    }

    fn figures(&self) -> Figures {
        figures(&self.cells, self.complete)
    }
}

fn elsewhere() -> PyErr {
    PyRuntimeError::new_err("this count began on another thread: use it there until it has ended")
}

/// Sends a value to an iterator. Since 3.10 this is possible without the StopIteration at the end, which would be
/// counted.
fn next<'py>(iterator: &Bound<'py, PyAny>, value: &Bound<'py, PyAny>) -> PyResult<(bool, Bound<'py, PyAny>)> {
    type Send =
        unsafe extern "C" fn(*mut ffi::PyObject, *mut ffi::PyObject, *mut *mut ffi::PyObject) -> c_int;
    static SEND: OnceLock<Option<Send>> = OnceLock::new();
    let py = iterator.py();
    let send = SEND.get_or_init(|| {
        let found = super::hook::function(c"PyIter_Send").ok()?;
        // SAFETY: as CPython declares it (Include/abstract.h).
        Some(unsafe { std::mem::transmute::<*mut c_void, Send>(found) })
    });
    let Some(send) = send else {
        let sent = if value.is_none() && !iterator.hasattr("send")? {
            iterator.call_method0("__next__")
        } else {
            iterator.call_method1("send", (value,))
        };
        return match sent {
            Ok(given) => Ok((false, given)),
            Err(error) if error.is_instance_of::<PyStopIteration>(py) => {
                Ok((true, error.value(py).getattr("value")?))
            }
            Err(error) => Err(error),
        };
    };
    let mut given = ptr::null_mut();
    // SAFETY: both objects are alive; the call returns a new reference, or null and an exception.
    unsafe {
        let end = send(iterator.as_ptr(), value.as_ptr(), &mut given);
        Bound::from_owned_ptr_or_err(py, given).map(|given| (end == 0, given))
    }
}
