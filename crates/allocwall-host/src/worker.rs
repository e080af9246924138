//! A thread of our own. Where tasks are limited (pids.max of a cgroup, ulimit -u) it may not start, and std's own `spawn` panics then.

use allocwall_model::units::{Absence, Measured, Reason};
use std::io;
use std::thread::{Builder, JoinHandle};

/// What it does, and in the end its outcome.
pub struct Worker<T> {
    /// As in "the thread that counts calls".
    what: &'static str,
    thread: io::Result<JoinHandle<T>>,
}

/// Why there is no thread. `what` it would do, as in "counts calls".
pub fn not_started(what: &str, error: &io::Error) -> Absence {
    Absence::new(
        Reason::NotPermitted,
        format!("the thread that {what} could not be started: {error}"),
    )
    .mend("raise the limit of tasks: pids.max of the cgroup, ulimit -u")
}

impl<T: Send + 'static> Worker<T> {
    pub fn start(what: &'static str, work: impl FnOnce() -> T + Send + 'static) -> Worker<T> {
        let thread = Builder::new().spawn(work);
        Worker { what, thread }
    }

    /// Nothing is to be waited for.
    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().map_or(true, JoinHandle::is_finished)
    }

    /// # Errors
    /// It did not start, or died.
    pub fn finish(self) -> Measured<T> {
        let what = self.what;
        self.thread
            .map_err(|error| not_started(what, &error))?
            .join()
            .map_err(|_| Absence::new(Reason::Vanished, format!("the thread that {what} died")))
    }
}
