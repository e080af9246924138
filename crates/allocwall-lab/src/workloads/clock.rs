//! The clocks of the subjects. The diagnosis does not use this code, so that its results can be checked against it.

use std::fs::File;
use std::os::unix::fs::FileExt;

fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec for the kernel to fill.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

pub fn monotonic_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC)
}

pub fn realtime_ms() -> u64 {
    clock_ns(libc::CLOCK_REALTIME) / 1_000_000
}

/// CPU time of the calling thread. It does not include preemption or, if the kernel accounts for it, steal.
/// It is a system call (about 0.3 µs), so use it for work of 20 µs or more.
pub fn thread_cpu_ns() -> u64 {
    clock_ns(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// CPU time of all threads of this process, user and kernel.
pub fn process_cpu_ns() -> u64 {
    clock_ns(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// What the kernel counts for the children that this process has waited for, and for their children.
pub fn children_usage() -> libc::rusage {
    // SAFETY: an all-zero rusage is a valid value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is a valid rusage for the kernel to fill.
    unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage) };
    usage
}

/// CPU time of these children, user and kernel, from their start to their end. Precise to 2 µs.
pub fn children_cpu_ns() -> u64 {
    let usage = children_usage();
    let ns = |time: libc::timeval| time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1_000;
    ns(usage.ru_utime) + ns(usage.ru_stime)
}

/// CPU time of the calling thread, and of the children that this process has waited for.
pub fn thread_and_children_cpu_ns() -> u64 {
    thread_cpu_ns() + children_cpu_ns()
}

/// Time that the threads of this process have waited for a CPU. None if the kernel has no schedstat.
pub fn queued_ns() -> Option<u64> {
    let of = |path: std::path::PathBuf| -> Option<u64> {
        let text = std::fs::read_to_string(path.join("schedstat")).ok()?;
        text.split_ascii_whitespace().nth(1)?.parse().ok()
    };
    let threads = std::fs::read_dir("/proc/self/task").ok()?;
    threads.flatten().map(|thread| of(thread.path())).sum()
}

/// Separates a thread's running time from the time in which it was blocked.
pub struct Watch {
    /// Fields of /proc/PID/schedstat: time on a CPU, time waiting for one (both ns), time slices.
    schedstat: File,
    /// CPU time of a lap without work.
    empty_ns: i64,
}

#[derive(Clone, Copy)]
pub struct Reading {
    wall: u64,
    cpu: u64,
    run_delay: u64,
}

pub struct Lap {
    pub wall_ns: i64,
    pub cpu_ns: i64,
    /// Time in which the thread neither ran nor waited for a CPU. It includes steal; work that never blocks shows how much.
    pub blocked_ns: i64,
}

impl Watch {
    /// A watch for the calling thread. None if the kernel has no schedstat.
    pub fn new() -> Option<Watch> {
        let mut watch = Watch { schedstat: File::open("/proc/thread-self/schedstat").ok()?, empty_ns: 0 };
        watch.run_delay()?;
        watch.empty_ns = (0..64).map(|_| watch.lap(|| {}).cpu_ns).min()?;
        Some(watch)
    }

    fn run_delay(&self) -> Option<u64> {
        let mut text = [0; 96];
        let length = self.schedstat.read_at(&mut text, 0).ok()?;
        std::str::from_utf8(&text[..length]).ok()?.split_ascii_whitespace().nth(1)?.parse().ok()
    }

    /// The times of `work`. Reading all clocks takes some microseconds, so the CPU clock is read again directly before and
    /// after the work, and the cost of these readings is subtracted.
    pub fn lap(&self, work: impl FnOnce()) -> Lap {
        let before = self.read();
        let cpu = thread_cpu_ns();
        work();
        let cpu_ns = (thread_cpu_ns() - cpu) as i64 - self.empty_ns;
        let lap = before.until(self.read());
        Lap { cpu_ns, ..lap }
    }

    /// The three clocks at one moment. They are read again if the thread lost its CPU in between.
    pub fn read(&self) -> Reading {
        let delay = || self.run_delay().expect("schedstat was readable when the watch was made");
        let mut run_delay = delay();
        loop {
            let (wall, cpu, after) = (monotonic_ns(), thread_cpu_ns(), delay());
            if after == run_delay {
                return Reading { wall, cpu, run_delay };
            }
            run_delay = after;
        }
    }
}

impl Reading {
    pub fn until(self, later: Reading) -> Lap {
        let passed = |from: u64, to: u64| to as i64 - from as i64;
        let wall_ns = passed(self.wall, later.wall);
        let cpu_ns = passed(self.cpu, later.cpu);
        Lap { wall_ns, cpu_ns, blocked_ns: wall_ns - cpu_ns - passed(self.run_delay, later.run_delay) }
    }
}
