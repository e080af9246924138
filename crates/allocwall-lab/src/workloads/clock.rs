//! The subjects' own stopwatches. Nothing here is shared with what the product measures by.

use std::fs::File;
use std::os::unix::fs::FileExt;

fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
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

/// CPU time of the calling thread: free of preemption and, where the kernel accounts for it, of steal.
/// A system call (about 0.3 µs), so what it times should last 20 µs or more.
pub fn thread_cpu_ns() -> u64 {
    clock_ns(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// CPU time of every thread of this process, user and kernel.
pub fn process_cpu_ns() -> u64 {
    clock_ns(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// How long the threads of this process have waited for a CPU. None where the kernel keeps no schedstat.
pub fn queued_ns() -> Option<u64> {
    let of = |path: std::path::PathBuf| -> Option<u64> {
        let text = std::fs::read_to_string(path.join("schedstat")).ok()?;
        text.split_ascii_whitespace().nth(1)?.parse().ok()
    };
    let threads = std::fs::read_dir("/proc/self/task").ok()?;
    threads.flatten().map(|thread| of(thread.path())).sum()
}

/// Tells a thread's running time from the time that it was blocked.
pub struct Watch {
    /// Fields of /proc/PID/schedstat: time on a CPU, time waiting for one (both ns), time slices.
    schedstat: File,
    /// What a lap without work takes on the CPU.
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
    /// Neither on a CPU nor waiting for one. Holds steal too, which the caller can gauge where nothing blocks.
    pub blocked_ns: i64,
}

impl Watch {
    /// Of the calling thread. None where the kernel keeps no schedstat.
    pub fn new() -> Option<Watch> {
        let mut watch = Watch {
            schedstat: File::open("/proc/thread-self/schedstat").ok()?,
            empty_ns: 0,
        };
        watch.run_delay()?;
        watch.empty_ns = (0..64).map(|_| watch.lap(|| {}).cpu_ns).min()?;
        Some(watch)
    }

    fn run_delay(&self) -> Option<u64> {
        let mut text = [0; 96];
        let length = self.schedstat.read_at(&mut text, 0).ok()?;
        std::str::from_utf8(&text[..length])
            .ok()?
            .split_ascii_whitespace()
            .nth(1)?
            .parse()
            .ok()
    }

    /// What `work` took. Reading all clocks takes some microseconds, so the CPU's is read once more next to the work, and
    /// what that takes is taken off.
    pub fn lap(&self, work: impl FnOnce()) -> Lap {
        let before = self.read();
        let cpu = thread_cpu_ns();
        work();
        let cpu_ns = (thread_cpu_ns() - cpu) as i64 - self.empty_ns;
        let lap = before.until(self.read());
        Lap { cpu_ns, ..lap }
    }

    /// The three clocks at one moment: read again if the thread lost its CPU in between.
    pub fn read(&self) -> Reading {
        let delay = || {
            self.run_delay()
                .expect("schedstat was readable when the watch was made")
        };
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
        Lap {
            wall_ns,
            cpu_ns,
            blocked_ns: wall_ns - cpu_ns - passed(self.run_delay, later.run_delay),
        }
    }
}
