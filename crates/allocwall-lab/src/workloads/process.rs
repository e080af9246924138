//! How a subject begins, ends and leaves nothing behind.

use anyhow::{Context, Result};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

static ASKED_TO_END: AtomicBool = AtomicBool::new(false);

extern "C" fn note_the_signal(_: libc::c_int) {
    // Relaxed: the flag carries nothing but itself.
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

/// A pipe on stdin that was open at the start and is closed later ends the subject: whoever started it is gone.
/// A terminal, a file, or a pipe that was never open says nothing.
pub struct Stdin {
    watched: bool,
}

impl Stdin {
    pub fn new() -> Stdin {
        Stdin {
            watched: hung_up(libc::STDIN_FILENO, 0) == Some(false),
        }
    }

    /// Waits at most `milliseconds`; true when stdin was closed.
    pub fn closed_within(&self, milliseconds: i32) -> bool {
        let descriptor = if self.watched { libc::STDIN_FILENO } else { -1 };
        hung_up(descriptor, milliseconds) == Some(true)
    }
}

/// Whether the other end of a pipe is closed. None: not a pipe (poll says nothing of files and terminals here).
fn hung_up(descriptor: i32, milliseconds: i32) -> Option<bool> {
    // No events asked for: POLLHUP comes regardless, and unread data does not wake us.
    let mut poll = libc::pollfd {
        fd: descriptor,
        events: 0,
        revents: 0,
    };
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

/// Restarts this program with glibc tunables, which are read at exec only. Comes back when they are already set;
/// a value that the caller's environment gives wins, so that a remedy can be tried on a subject.
pub fn with_tunables(tunables: &[(&str, &str)]) -> Result<()> {
    let present = std::env::var("GLIBC_TUNABLES").unwrap_or_default();
    let mut all: Vec<String> = present
        .split(':')
        .filter(|t| !t.is_empty())
        .map(str::to_owned)
        .collect();
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

/// A helper process that is no descendant of the subject, so that nobody counts its time as the subject's.
/// It is told to end by the pipe's closing, which happens however the subject ends.
pub struct Bystander {
    /// Held open for as long as the helper should live.
    _lifeline: OwnedFd,
}

pub struct Lifeline(OwnedFd);

impl Lifeline {
    pub fn cut_within(&self, milliseconds: i32) -> bool {
        hung_up(self.0.as_raw_fd(), milliseconds) == Some(true)
    }
}

impl Bystander {
    /// To be called before any thread is started: `work` runs after fork in a copy of this process.
    /// `limit_s` bounds its life whatever happens.
    pub fn start(limit_s: u32, work: impl FnOnce(Lifeline)) -> Result<Bystander> {
        let mut ends = [0; 2];
        // SAFETY: room for the two descriptors.
        if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
            return Err(io::Error::last_os_error()).context("pipe");
        }
        // SAFETY: fresh descriptors that nobody else owns.
        let (far, near) = unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) };
        // SAFETY: single-threaded by contract, so the child may go on as the parent would.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()).context("fork"),
            0 => {
                drop(near);
                // SAFETY: as above. Both parents leave by `_exit`, which runs no destructor twice.
                unsafe {
                    // A group of its own, so that what is sent to the subject's doesn't end it; the same session, as that
                    // is what the scheduler weighs (sched(7), autogroup) and a competitor must weigh as much.
                    libc::setpgid(0, 0);
                    if libc::fork() == 0 {
                        libc::alarm(limit_s);
                        // A signal to the subject's terminal is the subject's to answer.
                        libc::signal(libc::SIGINT, libc::SIG_IGN);
                        libc::signal(libc::SIGTERM, libc::SIG_DFL);
                        // Whoever reads the subject's output must see its end when the subject ends.
                        for descriptor in 0..3 {
                            libc::close(descriptor);
                        }
                        work(Lifeline(far));
                    }
                    libc::_exit(0)
                }
            }
            child => {
                // SAFETY: our own child, which ends at once.
                unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
                Ok(Bystander { _lifeline: near })
            }
        }
    }
}

/// Keeps the calling thread (and what it forks later) on the `n`th CPU that it may use.
pub fn pin_to_cpu(n: usize) -> Result<()> {
    // SAFETY: a zeroed cpu_set_t is the empty set, filled and read through libc's own accessors with indices
    // below its capacity.
    let outcome = unsafe {
        let mut allowed: libc::cpu_set_t = std::mem::zeroed();
        libc::sched_getaffinity(0, size_of_val(&allowed), &mut allowed);
        let cpus: Vec<usize> = (0..libc::CPU_SETSIZE as usize)
            .filter(|&cpu| libc::CPU_ISSET(cpu, &allowed))
            .collect();
        let mut chosen: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpus[n % cpus.len()], &mut chosen);
        libc::sched_setaffinity(0, size_of_val(&chosen), &chosen)
    };
    if outcome != 0 {
        return Err(io::Error::last_os_error()).context("sched_setaffinity");
    }
    Ok(())
}
