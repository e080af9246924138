//! Clocks: monotonic time, and CPU time of processes and threads.

use crate::file::errno_text;
use crate::proc::ProcFs;
use allocwall_model::units::{Absence, Measured, Reason};
use std::sync::OnceLock;

/// CLOCK_MONOTONIC as the kernel counts it, which is also the clock of the samples. A time namespace shifts
/// the clock that its processes read, but not the timestamps of perf events.
pub fn monotonic_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let here = time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64;
    // If the offset is unknown, times are not compared with the samples.
    here.saturating_add_signed(-ahead_ns().as_ref().copied().unwrap_or(0))
}

/// The value of this process's own CLOCK_MONOTONIC when [`monotonic_ns`] is `ns`.
pub fn in_own_namespace(ns: u64) -> u64 {
    ns.saturating_add_signed(ahead_ns().as_ref().copied().unwrap_or(0))
}

/// Whether the times of samples can be compared with [`monotonic_ns`].
pub fn comparable() -> Measured<()> {
    ahead_ns().as_ref().map(|_| ()).map_err(Clone::clone)
}

/// How far the time namespace of this process shifts its CLOCK_MONOTONIC ahead (time_namespaces(7)).
fn ahead_ns() -> &'static Measured<i64> {
    static AHEAD: OnceLock<Measured<i64>> = OnceLock::new();
    AHEAD.get_or_init(|| ProcFs::live().own_clock_ahead_ns())
}

pub fn unix_ms() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64)
}

/// Time since the boot, with the time in suspend: the clock of process starts in /proc/PID/stat (proc_pid_stat(5)). A time namespace
/// shifts both alike.
pub fn since_boot_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// CPU time of this process so far. CLOCK_PROCESS_CPUTIME_ID is as old as the last timer interrupt if the process has a limit of its
/// CPU time (RLIMIT_CPU; posix_cpu_clock_get in kernel/time/posix-cpu-timers.c), and with 250 interrupts a second that is up to 4 ms.
pub fn own_cpu_ns() -> u64 {
    let usage = own_usage();
    let ns = |time: libc::timeval| time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1_000;
    ns(usage.ru_utime) + ns(usage.ru_stime)
}

/// What the kernel counts for this process.
pub(crate) fn own_usage() -> libc::rusage {
    // SAFETY: an all-zero rusage is a valid value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is a live rusage that the call fills; with these arguments the call cannot fail.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
    usage
}

/// CPU time of the calling thread so far.
pub fn thread_cpu_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Sleeps until [`monotonic_ns`] is `ns`, or until a signal.
pub fn sleep_until(ns: u64) {
    let left = ns.saturating_sub(monotonic_ns());
    if left > 0 {
        let request = rustix::time::Timespec {
            tv_sec: (left / 1_000_000_000) as i64,
            tv_nsec: (left % 1_000_000_000) as _,
        };
        // A signal ends the sleep early. The caller reads the clock.
        let _ = rustix::thread::nanosleep(&request);
    }
}

/// CPU time of a whole live process in nanoseconds, with threads that have ended, without a walk over its
/// threads. It needs no privilege (clock_getcpuclockid(3)). /proc/PID/stat counts in ticks of 10 ms, and
/// /proc/PID/schedstat counts only the main thread.
pub fn process_cpu_ns(pid: i32) -> Measured<u64> {
    let mut clock: libc::clockid_t = 0;
    // SAFETY: `clock` is valid for the result and outlives the call.
    let code = unsafe { libc::clock_getcpuclockid(pid, &mut clock) };
    if code != 0 {
        return Err(clock_absence(pid, &std::io::Error::from_raw_os_error(code)));
    }
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec and outlives the call.
    if unsafe { libc::clock_gettime(clock, &mut time) } != 0 {
        return Err(clock_absence(pid, &std::io::Error::last_os_error()));
    }
    Ok(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

fn clock_absence(pid: i32, error: &std::io::Error) -> Absence {
    // The kernel returns EINVAL if the process of a clock id is gone.
    let reason = match error.raw_os_error() {
        Some(libc::ESRCH | libc::EINVAL) => Reason::Vanished,
        Some(libc::EPERM | libc::EACCES) => Reason::NotPermitted,
        _ => Reason::NotSupported,
    };
    Absence::new(reason, format!("CPU clock of process {pid}: {}", errno_text(error)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    /// Half of the steps, as other threads of this process may use CPU time meanwhile.
    #[test]
    fn own_cpu_time_is_exact_with_a_limit_of_it() {
        let most = getrlimit(Resource::Cpu).maximum;
        setrlimit(Resource::Cpu, Rlimit { current: most.or(Some(1 << 30)), maximum: most }).unwrap();
        let mut steps = Vec::new();
        let mut last = own_cpu_ns();
        while steps.len() < 50 {
            let now = own_cpu_ns();
            if now > last {
                steps.push(now - last);
                last = now;
            }
        }
        steps.sort_unstable();
        assert!(steps[steps.len() / 2] < 500_000, "{steps:?}");
    }

    #[test]
    fn own_clock_runs_and_a_dead_one_is_absent() {
        let pid = std::process::id() as i32;
        let before = process_cpu_ns(pid).unwrap();
        let mut x = 0u64;
        let after = loop {
            for i in 0..10_000u64 {
                x = std::hint::black_box(x.wrapping_mul(31).wrapping_add(i));
            }
            let now = process_cpu_ns(pid).unwrap();
            if now > before {
                break now;
            }
        };
        assert!(after > before);
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let dead = child.id() as i32;
        child.wait().unwrap();
        assert_eq!(process_cpu_ns(dead).unwrap_err().reason, Reason::Vanished);
    }
}
