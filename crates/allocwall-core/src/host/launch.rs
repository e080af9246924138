//! Starting the target held back before its exec, so that the first instruction is already watched.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;

/// A child that waits just before exec.
pub struct Held {
    pub pid: i32,
    gate: std::fs::File,
    spawner: JoinHandle<io::Result<Child>>,
}

/// A child that runs, leader of its own process group. Dropping it ends the whole group.
pub struct Launched {
    child: Child,
    keep: bool,
}

fn pipe() -> io::Result<(std::fs::File, std::fs::File)> {
    let mut ends = [0; 2];
    // SAFETY: `ends` has room for the two descriptors; both are new and owned by nobody else.
    let (read, write) = unsafe {
        if libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) != 0 {
            return Err(io::Error::last_os_error());
        }
        (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1]))
    };
    Ok((read.into(), write.into()))
}

/// Forks; the child stops before exec until `release`. Its standard output goes to our standard error: ours is data.
pub fn hold(command: &[OsString]) -> io::Result<Held> {
    let (program, args) = command
        .split_first()
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "no command given"))?;
    let (gate_in, gate_out) = pipe()?;
    let (mut pid_in, pid_out) = pipe()?;
    let mut command = Command::new(program);
    command.args(args).process_group(0);
    // SAFETY: duplicating our own standard error; the descriptor is checked below.
    let stderr = unsafe { libc::fcntl(2, libc::F_DUPFD_CLOEXEC, 3) };
    if stderr >= 0 {
        // SAFETY: `stderr` is a fresh descriptor that nobody else owns.
        command.stdout(Stdio::from(unsafe { OwnedFd::from_raw_fd(stderr) }));
    }
    let (gate_fd, pid_fd, our_gate_fd) = (gate_in.as_raw_fd(), pid_out.as_raw_fd(), gate_out.as_raw_fd());
    let limit = crate::host::limits::before();
    // SAFETY: between fork and exec the closure calls only async-signal-safe functions (getpid, write, close, read) on
    // descriptors that the parent keeps open until the child is past this point, and setrlimit, a bare system call.
    unsafe {
        command.pre_exec(move || {
            let pid = libc::getpid().to_ne_bytes();
            if libc::write(pid_fd, pid.as_ptr().cast(), pid.len()) != pid.len() as isize {
                return Err(io::Error::last_os_error());
            }
            // Our copy of the gate's other end: with it open, the parent's death would never be noticed.
            libc::close(our_gate_fd);
            if let Some(limit) = limit {
                // At most it keeps the raised one, which is no reason not to run.
                let _ = rustix::process::setrlimit(rustix::process::Resource::Nofile, limit);
            }
            let mut byte = 0u8;
            loop {
                match libc::read(gate_fd, (&raw mut byte).cast(), 1) {
                    1 => return Ok(()),
                    -1 if *libc::__errno_location() == libc::EINTR => {}
                    _ => return Err(io::Error::from_raw_os_error(libc::ECANCELED)),
                }
            }
        });
    }
    // `spawn` returns only after exec, so it waits in a thread of its own.
    let spawner = std::thread::spawn(move || {
        let spawned = command.spawn();
        drop((gate_in, pid_out));
        spawned
    });
    let mut pid = [0; 4];
    if pid_in.read_exact(&mut pid).is_err() {
        // fork itself failed.
        return Err(spawner
            .join()
            .ok()
            .and_then(Result::err)
            .unwrap_or_else(|| io::Error::other("fork failed")));
    }
    Ok(Held {
        pid: i32::from_ne_bytes(pid),
        gate: gate_out,
        spawner,
    })
}

impl Held {
    /// Lets it exec; the error is exec's own.
    pub fn release(mut self) -> io::Result<Launched> {
        self.gate.write_all(&[1])?;
        drop(self.gate);
        let child = self
            .spawner
            .join()
            .map_err(|_| io::Error::other("the spawning thread died"))??;
        Ok(Launched { child, keep: false })
    }
}

impl Launched {
    pub fn exited(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Leaves it running when dropped.
    pub fn keep(&mut self) {
        self.keep = true;
    }

    /// Asks the whole group to end, then makes it.
    pub fn end(&mut self) {
        if self.exited().is_some() {
            return;
        }
        self.signal(libc::SIGTERM);
        for _ in 0..100 {
            if self.exited().is_some() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        self.signal(libc::SIGKILL);
        let _ = self.child.wait();
    }

    fn signal(&self, signal: i32) {
        // SAFETY: kill takes no memory; the group is the child's own (process_group(0)), and the child is not yet
        // reaped, so its number is not re-used.
        unsafe { libc::kill(-(self.child.id() as i32), signal) };
    }
}

impl Drop for Launched {
    fn drop(&mut self) {
        if !self.keep {
            self.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exec_waits_for_the_gate() {
        let held = hold(&["/bin/sh".into(), "-c".into(), "exit 7".into()]).unwrap();
        let exe = std::fs::read_link(format!("/proc/{}/exe", held.pid)).unwrap();
        assert_eq!(exe, std::env::current_exe().unwrap());
        let mut child = held.release().unwrap();
        let status = loop {
            if let Some(status) = child.exited() {
                break status;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        };
        assert_eq!(status.code(), Some(7));
    }

    #[test]
    fn exec_failure_is_exec_s_own_error() {
        let held = hold(&["/nonexistent/program".into()]).unwrap();
        assert_eq!(held.release().err().unwrap().raw_os_error(), Some(libc::ENOENT));
    }

    #[test]
    fn dropping_ends_the_group() {
        let held = hold(&["/bin/sh".into(), "-c".into(), "sleep 100 & sleep 100".into()]).unwrap();
        let pid = held.pid;
        let child = held.release().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(50));
        drop(child);
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    }
}
