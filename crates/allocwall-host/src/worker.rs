//! A thread of allocwall. It may fail to start where tasks are limited (pids.max of a cgroup, ulimit -u), and
//! std's own `spawn` panics then.

use allocwall_model::units::{Absence, Measured, Reason};
use std::io;
use std::thread::{Builder, JoinHandle};

/// A thread, and its result at the end.
pub struct Worker<T> {
    /// As in "the thread that counts calls".
    what: &'static str,
    thread: io::Result<JoinHandle<T>>,
}

/// Why there is no thread. `what` describes its work, as in "counts calls".
pub fn not_started(what: &str, error: &io::Error) -> Absence {
    Absence::new(Reason::NotPermitted, format!("the thread that {what} could not be started: {error}"))
        .mend("raise the limit of tasks: pids.max of the cgroup")
        .mend("raise the limit of tasks: ulimit -u")
}

impl<T: Send + 'static> Worker<T> {
    pub fn start(what: &'static str, work: impl FnOnce() -> T + Send + 'static) -> Worker<T> {
        let thread = Builder::new().spawn(work);
        Worker { what, thread }
    }

    /// There is nothing to wait for.
    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().map_or(true, JoinHandle::is_finished)
    }

    /// # Errors
    /// The thread did not start, or it panicked.
    pub fn finish(self) -> Measured<T> {
        let what = self.what;
        self.thread
            .map_err(|error| not_started(what, &error))?
            .join()
            .map_err(|_| Absence::new(Reason::Vanished, format!("the thread that {what} panicked")))
    }
}
