//! `allocwall._native`: converts between Python and the arena hook, and has the counters of `allocwall.count`.
//! `allocwall/hugepages.py` and `allocwall/counting.py` decide what is refused, and write the messages.

// Linux only: on other systems the package refuses before it imports this module.
#[cfg(target_os = "linux")]
mod count;
#[cfg(target_os = "linux")]
mod hook;

#[cfg(target_os = "linux")]
#[pyo3::pymodule]
mod _native {
    use super::hook::{self, NotInstalled, Report};
    use allocwall_pool::region::{self, Machine, Pages};
    use allocwall_pool::slab::{Host, Settings};
    use pyo3::exceptions::{PyRuntimeError, PyValueError};
    use pyo3::prelude::*;
    use pyo3::types::PyDict;

    #[pymodule_export]
    use super::count::{Counter, Totals};

    /// Puts new arenas on huge pages.
    ///
    /// Raises RuntimeError with a message of one line if that fails.
    #[pyfunction]
    #[pyo3(signature = (arena_bytes, *, reserved, keep_bytes, watch_price))]
    fn install(arena_bytes: usize, reserved: bool, keep_bytes: usize, watch_price: bool) -> PyResult<()> {
        let settings = Settings {
            pages: if reserved { Pages::Reserved } else { Pages::Transparent },
            keep_bytes,
            watch_price,
            ..Settings::of(arena_bytes)
        };
        hook::install(settings).map_err(|why| {
            PyRuntimeError::new_err(match why {
                NotInstalled::NoFunction => {
                    "this interpreter has no PyObject_SetArenaAllocator, or hides it from extensions"
                        .to_string()
                }
                NotInstalled::OtherSettings => {
                    "the hook is already installed with other settings: restart the process to change them"
                        .to_string()
                }
                NotInstalled::Slabs(why) => why.to_string(),
            })
        })
    }

    /// Stops putting new arenas on huge pages; existing ones stay. Returns whether the hook was on.
    #[pyfunction]
    fn pause() -> bool {
        hook::pause()
    }

    /// The counts of the hook so far, or None without a hook.
    #[pyfunction]
    fn report(py: Python<'_>) -> PyResult<Option<Bound<'_, PyDict>>> {
        // Read before anything is allocated, because the dictionary may itself need an arena.
        let Some(Report { on, settings, counts, ranges }) = hook::report() else {
            return Ok(None);
        };
        let huge = region::huge_bytes(&ranges).ok();
        let report = PyDict::new(py);
        report.set_item("on", on)?;
        report.set_item("reserved", settings.pages == Pages::Reserved)?;
        report.set_item("arena_bytes", settings.arena_bytes)?;
        report.set_item("keep_bytes", settings.keep_bytes)?;
        report.set_item("watch_price", settings.watch_price)?;
        report.set_item("arenas", counts.arenas)?;
        report.set_item("slabs", counts.slabs)?;
        report.set_item("slabs_reserved", counts.slabs_reserved)?;
        report.set_item("slabs_transparent", counts.slabs_transparent)?;
        report.set_item("slabs_kept", counts.slabs_kept)?;
        report.set_item("keep_target", counts.keep_target)?;
        report.set_item("arenas_idle", counts.arenas_idle)?;
        report.set_item("arenas_trimmed", counts.arenas_trimmed)?;
        report.set_item("slab_bytes", counts.slabs * region::HUGE)?;
        report.set_item("huge_bytes", huge.map(|huge| huge.transparent + huge.reserved))?;
        report.set_item("arenas_given", counts.arenas_given)?;
        report.set_item("arenas_returned", counts.arenas_returned)?;
        report.set_item("slabs_mapped", counts.slabs_mapped)?;
        report.set_item("slabs_released", counts.slabs_released)?;
        report.set_item("slabs_reused", counts.slabs_reused)?;
        report.set_item("trims", counts.trims)?;
        report.set_item("foreign_frees", counts.foreign_frees)?;
        report.set_item("misplaced_frees", counts.misplaced_frees)?;
        report.set_item("forked", counts.forks > 0)?;
        report.set_item("time_ns", counts.time_ns)?;
        let fallbacks = PyDict::new(py);
        fallbacks.set_item("pool_exhausted", counts.fallbacks.pool_exhausted)?;
        fallbacks.set_item("dear", counts.fallbacks.dear)?;
        fallbacks.set_item("missed", counts.fallbacks.missed)?;
        fallbacks.set_item("no_memory", counts.fallbacks.no_memory)?;
        fallbacks.set_item("odd_size", counts.fallbacks.odd_size)?;
        report.set_item("fallbacks", fallbacks)?;
        let faults = PyDict::new(py);
        faults.set_item("huge", counts.faults.huge)?;
        faults.set_item("huge_ns", counts.faults.huge_ns)?;
        faults.set_item("dear", counts.faults.dear)?;
        faults.set_item("lost_ns", counts.faults.lost_ns)?;
        faults.set_item("small_ns", counts.faults.small_ns)?;
        report.set_item("faults", faults)?;
        report.set_item("host", counts.host.map(Host::key))?;
        Ok(Some(report))
    }

    /// Moves private anonymous memory to huge pages: each aligned 2 MiB of which at least this share is resident.
    ///
    /// Raises RuntimeError before Linux 6.1, and ValueError for a share outside 0 to 1.
    #[pyfunction]
    fn collapse(py: Python<'_>, least: f64) -> PyResult<Bound<'_, PyDict>> {
        if !(0.0..=1.0).contains(&least) {
            return Err(PyValueError::new_err("the share must be between 0 and 1"));
        }
        // Other threads may run meanwhile, because a collapse keeps the contents.
        let done = py
            .detach(|| region::collapse_resident(least))
            .map_err(|why| PyRuntimeError::new_err(why.to_string()))?;
        let report = PyDict::new(py);
        report.set_item("pages", done.pages)?;
        report.set_item("sparse", done.sparse)?;
        report.set_item("failed", done.failed)?;
        report.set_item("last_failure", done.last_failure.map(|why| why.key()))?;
        Ok(report)
    }

    /// The reason why this process cannot use transparent huge pages, or None.
    #[pyfunction]
    fn transparent_refusal() -> Option<String> {
        Machine::this().transparent().err().map(|why| why.to_string())
    }

    /// The reason why the reserved pool has no page now, or None.
    #[pyfunction]
    fn reserved_refusal() -> Option<String> {
        match Machine::this().pool() {
            Err(why) => Some(why.to_string()),
            Ok(pool) if pool.total == 0 => Some(region::Why::NoPool.to_string()),
            Ok(pool) if pool.free == 0 => Some(region::Why::PoolExhausted { asked: 1, free: 0 }.to_string()),
            Ok(_) => None,
        }
    }

    /// The name of the allocator of objects (pymalloc, malloc, mimalloc, each also with _debug), or None if another
    /// hook is in front of it.
    #[pyfunction]
    fn allocator_name() -> Option<&'static str> {
        hook::allocator_name()
    }
}
