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

/// Lets the calling thread run as soon as it wakes up, also where all CPUs are busy: before all threads of usual priority if that is
/// permitted, else before those whose turns are longer (Linux 6.12). For threads that work for very short times. What they start is
/// usual again.
pub fn run_when_woken() {
    /// The shortest turn (kernel/sched/syscalls.c).
    const TURN_NS: u64 = 100_000;
    // A lower number than now may not be permitted.
    let nice = rustix::process::getpriority_process(None).unwrap_or(0);
    let set = |policy: libc::c_int, priority: u32, turn_ns: u64| {
        let wanted = libc::sched_attr {
            size: size_of::<libc::sched_attr>() as u32,
            sched_policy: policy as u32,
            sched_flags: libc::SCHED_FLAG_RESET_ON_FORK as u64,
            sched_nice: nice,
            sched_priority: priority,
            sched_runtime: turn_ns,
            sched_deadline: 0,
            sched_period: 0,
        };
        // SAFETY: the kernel reads `size` bytes of `wanted`, which outlives the call. 0 is the calling thread.
        unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const wanted, 0) == 0 }
    };
    // If neither is permitted, it waits for its turn.
    if !set(libc::SCHED_FIFO, 1, 0) {
        set(libc::SCHED_OTHER, 0, TURN_NS);
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Of the calling thread: 0 is the usual one.
    fn policy() -> i32 {
        /// SCHED_RESET_ON_FORK (sched(7)).
        const RESET_ON_FORK: i32 = 0x4000_0000;
        // SAFETY: the call takes a number alone.
        unsafe { libc::sched_getscheduler(0) & !RESET_ON_FORK }
    }

    #[test]
    fn what_a_thread_starts_that_runs_when_woken_is_usual() {
        let thread = std::thread::spawn(|| {
            run_when_woken();
            (policy(), std::thread::spawn(policy).join().expect("a number"))
        });
        let (own, started) = thread.join().expect("two numbers");
        assert!([libc::SCHED_OTHER, libc::SCHED_FIFO].contains(&own), "{own}");
        assert_eq!(started, libc::SCHED_OTHER);
    }
}
