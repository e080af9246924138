//! How a subject starts, ends and cleans up.

use anyhow::{Context, Result};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

static ASKED_TO_END: AtomicBool = AtomicBool::new(false);

extern "C" fn note_the_signal(_: libc::c_int) {
    // Relaxed: no other data depends on the flag.
    ASKED_TO_END.store(true, Ordering::Relaxed);
}

/// True after SIGTERM or SIGINT.
pub fn asked_to_end() -> bool {
    ASKED_TO_END.load(Ordering::Relaxed)
}

pub fn end_on_signals() {
    let handler: extern "C" fn(libc::c_int) = note_the_signal;
    for signal in [libc::SIGTERM, libc::SIGINT] {
        // SAFETY: the handler only stores to an atomic.
        unsafe { libc::signal(signal, handler as libc::sighandler_t) };
    }
}

/// If stdin is a pipe that was open at the start and is closed later, the subject ends, because the process that started it
/// has ended. A terminal, a file, or a pipe that was never open is ignored.
pub struct Stdin {
    watched: bool,
}

impl Stdin {
    pub fn new() -> Stdin {
        Stdin { watched: hung_up(libc::STDIN_FILENO, 0) == Some(false) }
    }

    /// Waits at most `milliseconds`; true when stdin was closed.
    pub fn closed_within(&self, milliseconds: i32) -> bool {
        let descriptor = if self.watched { libc::STDIN_FILENO } else { -1 };
        hung_up(descriptor, milliseconds) == Some(true)
    }
}

/// Whether the other end of a pipe is closed. None if it is not a pipe (poll does not help for files and terminals).
fn hung_up(descriptor: i32, milliseconds: i32) -> Option<bool> {
    // No events requested: POLLHUP is always reported, and unread data does not wake this call.
    let mut poll = libc::pollfd { fd: descriptor, events: 0, revents: 0 };
    // SAFETY: one valid pollfd; the kernel skips negative descriptors.
    unsafe { libc::poll(&mut poll, 1, milliseconds) };
    if descriptor < 0 {
        return None;
    }
    // SAFETY: an all-zero stat is a valid buffer for the kernel to fill.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `stat` outlives the call.
    let known = unsafe { libc::fstat(descriptor, &mut stat) } == 0;
    (known && stat.st_mode & libc::S_IFMT == libc::S_IFIFO).then_some(poll.revents & libc::POLLHUP != 0)
}

/// Restarts this program with glibc tunables, because glibc reads them only at exec. Returns if they are already set. A value
/// from the caller's environment has priority, so that a remedy can be tried on a subject.
pub fn with_tunables(tunables: &[(&str, &str)]) -> Result<()> {
    let present = std::env::var("GLIBC_TUNABLES").unwrap_or_default();
    let mut all: Vec<String> = present.split(':').filter(|t| !t.is_empty()).map(str::to_owned).collect();
    let before = all.len();
    for (name, value) in tunables {
        if !all.iter().any(|t| t.split('=').next() == Some(name)) {
            all.push(format!("{name}={value}"));
        }
    }
    if all.len() == before {
        return Ok(());
    }
    let error = Command::new("/proc/self/exe")
        .arg0(std::env::args_os().next().unwrap_or_else(|| "allocwall".into()))
        .args(std::env::args_os().skip(1))
        .env("GLIBC_TUNABLES", all.join(":"))
        .exec();
    Err(error).context("cannot restart with glibc tunables")
}

/// A new file in the folder for temporary files. It is unlinked, so it disappears with the process.
pub fn temporary_file() -> Result<File> {
    let path = std::env::temp_dir().join(format!("allocwall-subject-{}", std::process::id()));
    let open = || -> io::Result<File> {
        let file = File::options().read(true).write(true).create_new(true).open(&path)?;
        fs::remove_file(&path)?;
        Ok(file)
    };
    open().with_context(|| format!("skipped: {}", path.display()))
}

/// A helper process that is not a descendant of the subject, so that its time is not counted as the subject's.
/// It ends when the pipe is closed, which happens in every case when the subject ends.
pub struct Bystander {
    /// Open as long as the helper should run.
    _lifeline: OwnedFd,
}

pub struct Lifeline(OwnedFd);

impl Lifeline {
    pub fn cut_within(&self, milliseconds: i32) -> bool {
        hung_up(self.0.as_raw_fd(), milliseconds) == Some(true)
    }
}

impl Bystander {
    /// Call this before any thread is started: `work` runs after fork in a copy of this process.
    /// The helper ends after `limit_s` at the latest.
    pub fn start(limit_s: u32, work: impl FnOnce(Lifeline)) -> Result<Bystander> {
        let mut ends = [0; 2];
        // SAFETY: room for the two descriptors.
        if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
            return Err(io::Error::last_os_error()).context("pipe");
        }
        // SAFETY: new descriptors without another owner.
        let (far, near) = unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) };
        // SAFETY: the process has one thread (see above), so the child can run any code.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()).context("fork"),
            0 => {
                drop(near);
                // SAFETY: as above. Both parents end with `_exit`, so no destructor runs twice.
                unsafe {
                    // Its own process group, so that signals to the subject's group do not end it. The same session, because
                    // the scheduler weighs sessions (sched(7), autogroup), and a competitor must have the same weight.
                    libc::setpgid(0, 0);
                    if libc::fork() == 0 {
                        libc::alarm(limit_s);
                        // Only the subject reacts to signals from its terminal.
                        libc::signal(libc::SIGINT, libc::SIG_IGN);
                        libc::signal(libc::SIGTERM, libc::SIG_DFL);
                        // Close the subject's output, so that its reader sees the end when the subject ends.
                        for descriptor in 0..3 {
                            libc::close(descriptor);
                        }
                        work(Lifeline(far));
                    }
                    libc::_exit(0)
                }
            }
            child => {
                // SAFETY: our own child, which ends immediately.
                unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
                Ok(Bystander { _lifeline: near })
            }
        }
    }
}

/// Pins the calling thread (and processes that it forks later) to the `n`th CPU that it may use.
pub fn pin_to_cpu(n: usize) -> Result<()> {
    // SAFETY: a zeroed cpu_set_t is the empty set. It is filled and read with libc's accessors, with indices below its
    // capacity.
    let outcome = unsafe {
        let mut allowed: libc::cpu_set_t = std::mem::zeroed();
        libc::sched_getaffinity(0, size_of_val(&allowed), &mut allowed);
        let cpus: Vec<usize> =
            (0..libc::CPU_SETSIZE as usize).filter(|&cpu| libc::CPU_ISSET(cpu, &allowed)).collect();
        let mut chosen: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpus[n % cpus.len()], &mut chosen);
        libc::sched_setaffinity(0, size_of_val(&chosen), &chosen)
    };
    if outcome != 0 {
        return Err(io::Error::last_os_error()).context("sched_setaffinity");
    }
    Ok(())
}
