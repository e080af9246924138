//! A thread of allocwall. It may fail to start where tasks are limited (pids.max of a cgroup, ulimit -u), and
//! std's own `spawn` panics then.

use allocwall_model::units::{Absence, Measured, Reason};
use std::io;
use std::marker::PhantomData;
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

/// As long as it exists, the calling thread runs as soon as it wakes up, also where all CPUs are busy: before all threads of usual
/// priority if that is permitted, else before those whose turns are longer (Linux 6.12). For short work alone: on the CPU of this
/// thread, nothing else runs meanwhile. What the thread starts is usual.
pub struct Urgent {
    /// None if nothing was changed.
    before: Option<libc::sched_attr>,
    /// It belongs to the thread that made it.
    _of_thread: PhantomData<*const ()>,
}

impl Urgent {
    pub fn begin() -> Urgent {
        /// The shortest turn (kernel/sched/syscalls.c).
        const TURN_NS: u64 = 100_000;
        // Another policy is the user's choice.
        let before = scheduling().filter(|now| now.sched_policy == libc::SCHED_OTHER as u32);
        if let Some(before) = before {
            let first =
                libc::sched_attr { sched_policy: libc::SCHED_FIFO as u32, sched_priority: 1, ..before };
            // So is a lower priority: the others go first.
            let later = before.sched_nice > 0;
            if later || !set_scheduling(first) {
                set_scheduling(libc::sched_attr { sched_runtime: TURN_NS, ..before });
            }
        }
        Urgent { before, _of_thread: PhantomData }
    }
}

impl Drop for Urgent {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            set_scheduling(before);
        }
    }
}

/// How the calling thread is scheduled; None if the kernel does not tell.
fn scheduling() -> Option<libc::sched_attr> {
    let size = size_of::<libc::sched_attr>() as u32;
    let mut now = libc::sched_attr {
        size,
        sched_policy: 0,
        sched_flags: 0,
        sched_nice: 0,
        sched_priority: 0,
        sched_runtime: 0,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: the kernel writes at most `size` bytes to `now`, which outlives the call. 0 is the calling thread.
    let code = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut now, size, 0) };
    (code == 0).then_some(now)
}

/// Changes how the calling thread is scheduled, if that is permitted. What it starts is usual: only a privileged thread may take
/// that back (SCHED_FLAG_RESET_ON_FORK, sched(7)).
fn set_scheduling(mut wanted: libc::sched_attr) -> bool {
    wanted.sched_flags |= libc::SCHED_FLAG_RESET_ON_FORK as u64;
    apply(&wanted).is_ok()
}

fn apply(wanted: &libc::sched_attr) -> io::Result<()> {
    // SAFETY: the kernel reads `size` bytes of `wanted`, which outlives the call. 0 is the calling thread.
    match unsafe { libc::syscall(libc::SYS_sched_setattr, 0, std::ptr::from_ref(wanted), 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// From now on the calling thread, and what it starts, has the lowest priority that there is (SCHED_IDLE, sched(7)): threads of
/// its own control group that want the CPU go first. Those of other groups share the CPU with its group.
pub fn idle_from_now_on() -> Measured<()> {
    let unknown = || Absence::new(Reason::NotSupported, "the kernel does not tell how a thread is scheduled");
    let now = scheduling().ok_or_else(unknown)?;
    let idle = libc::sched_attr {
        sched_policy: libc::SCHED_IDLE as u32,
        sched_flags: 0,
        sched_nice: 0,
        sched_priority: 0,
        ..now
    };
    apply(&idle).map_err(|error| Absence::new(Reason::NotPermitted, format!("idle priority: {error}")))
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

    fn policy() -> i32 {
        scheduling().map_or(-1, |now| now.sched_policy as i32)
    }

    /// The policies of a thread of this nice value before it is urgent, meanwhile, and after it, and of a thread that it starts
    /// meanwhile. None if it may not have this nice value.
    fn policies(nice: i32) -> Option<[i32; 4]> {
        let work = move || {
            // On Linux each thread has its own.
            rustix::process::setpriority_process(None, nice).ok()?;
            let before = policy();
            let urgent = Urgent::begin();
            let meanwhile = policy();
            let started = std::thread::spawn(policy).join().expect("a number");
            drop(urgent);
            Some([before, meanwhile, policy(), started])
        };
        std::thread::spawn(work).join().expect("numbers")
    }

    #[test]
    fn a_thread_of_idle_priority_starts_others_of_it_and_leaves_its_own_parent_alone() {
        let before = policy();
        let idle =
            || idle_from_now_on().map(|()| [policy(), std::thread::spawn(policy).join().expect("a number")]);
        let idle = std::thread::spawn(idle).join().expect("policies");
        assert_eq!(idle, Ok([libc::SCHED_IDLE; 2]));
        assert_eq!(policy(), before);
    }

    #[test]
    fn a_thread_is_urgent_for_a_time_and_what_it_starts_is_not() {
        let nice = rustix::process::getpriority_process(None).expect("its own");
        let [before, meanwhile, after, started] = policies(nice).expect("it has this value");
        // FIFO, if it is permitted.
        assert!([before, libc::SCHED_FIFO].contains(&meanwhile), "{meanwhile}");
        assert_eq!([after, started], [before; 2]);
        // The near twin has a lower priority by the user's choice.
        let Some([before, others @ ..]) = policies(nice.max(0) + 1) else { return };
        assert_eq!(others, [before; 3]);
    }
}
