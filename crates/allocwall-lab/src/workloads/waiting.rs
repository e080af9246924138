//! Waits outside the allocator: storage, a pipe, the application's own mutex.

use super::clock::{Watch, monotonic_ns};
use super::computing::Computing;
use super::process::{Bystander, temporary_file};
use super::stage::{Base, Stage};
use allocwall_host::memory::AnonymousMapping;
use anyhow::{Context, Result};
use std::cell::UnsafeCell;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// So large that even a fast disk takes several times as long as the CPU work for it.
const WRITE: usize = 1 << 20;
/// Size of the file; the writes wrap around.
const FILE: u64 = 8 << 20;

/// Writes that bypass the page cache, each one synced.
pub fn io_wait(stage: &Stage) -> Result<()> {
    let twin = stage.options.twin;
    let file = temporary_file()?;
    // SAFETY: a system call on our own descriptor. A file system without O_DIRECT refuses it.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, libc::O_DIRECT) };
    Watch::new().context("skipped: no /proc/thread-self/schedstat")?;
    let worker = |_| {
        let watch = Watch::new().expect("schedstat was readable before");
        let mut computing = Computing::new();
        let mut bytes = AnonymousMapping::plain(WRITE).expect("memory for one write");
        let mut offset = 0;
        stage.mix(Base::Wall, || {
            stage.operations.add(1);
            if twin {
                let began = monotonic_ns();
                computing.batch();
                return (monotonic_ns() - began) as i64;
            }
            offset = (offset + WRITE as u64) % FILE;
            let lap = watch.lap(|| {
                file.write_all_at(bytes.bytes(), offset)
                    .and_then(|()| file.sync_data())
                    .expect("the disk takes 8 MiB");
            });
            stage.wait(0).add(lap.blocked_ns);
            lap.blocked_ns.max(0)
        });
    };
    stage.perform(worker, |_| Ok(()))
}

/// Reads from a pipe whose writer needs one millisecond for each byte.
pub fn pipe_wait(stage: &Stage) -> Result<()> {
    let twin = stage.options.twin;
    let (mut reader, mut writer) = std::io::pipe()?;
    let (mut asked, mut ask) = std::io::pipe()?;
    // The writer survives the end of its reader, because Rust programs ignore SIGPIPE.
    let _peer = Bystander::start(stage.options.seconds + 5, {
        let (ask, reader) = (ask.as_raw_fd(), reader.as_raw_fd());
        let writer = &mut writer;
        move |_lifeline| {
            // SAFETY: this copy of the process does not use these ends. They must be closed here, so that it sees the end.
            unsafe {
                libc::close(ask);
                libc::close(reader);
            }
            while let Ok(1) = asked.read(&mut [0]) {
                std::thread::sleep(Duration::from_millis(1));
                if writer.write_all(&[1]).is_err() {
                    break;
                }
            }
        }
    })?;
    drop(writer);
    let reader = std::sync::Mutex::new((&mut reader, &mut ask));
    Watch::new().context("skipped: no /proc/thread-self/schedstat")?;
    let worker = |_| {
        let watch = Watch::new().expect("schedstat was readable before");
        let mut computing = Computing::new();
        stage.mix(Base::Wall, || {
            stage.operations.add(1);
            if twin {
                let began = monotonic_ns();
                computing.batch();
                return (monotonic_ns() - began) as i64;
            }
            let mut pipes = reader.lock().expect("one worker");
            let lap = watch.lap(|| {
                pipes
                    .1
                    .write_all(&[1])
                    .and_then(|()| pipes.0.read_exact(&mut [0]))
                    .expect("the peer is running");
            });
            stage.wait(0).add(lap.blocked_ns);
            lap.blocked_ns.max(0)
        });
    };
    stage.perform(worker, |_| Ok(()))
}

/// A pthread mutex. It waits in a futex inside libc like the allocator's locks, but not in allocator code.
struct PthreadMutex(UnsafeCell<libc::pthread_mutex_t>);

// SAFETY: a pthread mutex may be used from several threads; it is not moved while it is borrowed.
unsafe impl Sync for PthreadMutex {}

impl PthreadMutex {
    fn new() -> Self {
        PthreadMutex(UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER))
    }

    fn hold(&self, work: impl FnOnce()) {
        // SAFETY: initialised, and not moved while it is borrowed.
        unsafe { libc::pthread_mutex_lock(self.0.get()) };
        work();
        // SAFETY: locked above, by this thread.
        unsafe { libc::pthread_mutex_unlock(self.0.get()) };
    }
}

/// Threads that do most of their work under one mutex. In the twin each has its own.
pub fn application_mutex(stage: &Stage) -> Result<()> {
    let twin = stage.options.twin;
    Watch::new().context("skipped: no /proc/thread-self/schedstat")?;
    let mutexes: Vec<PthreadMutex> = (0..stage.options.threads).map(|_| PthreadMutex::new()).collect();
    let worker = |index| {
        let watch = Watch::new().expect("schedstat was readable before");
        let mutex = &mutexes[if twin { index } else { 0 }];
        let mut computing = Computing::new();
        stage.mix(Base::Wall, || {
            let before = watch.read();
            for _ in 0..10 {
                mutex.hold(|| computing.spin(50));
                computing.spin(10);
            }
            let lap = before.until(watch.read());
            stage.operations.add(10);
            stage.wait(0).add(if twin { 0 } else { lap.blocked_ns });
            if twin { lap.wall_ns } else { lap.blocked_ns.max(0) }
        });
    };
    stage.perform(worker, |_| Ok(()))
}
