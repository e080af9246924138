//! Starts the target stopped before its exec, so that measurement begins with the first instruction.

use crate::proc::ProcFs;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use std::ffi::OsString;
use std::io::{self, IsTerminal, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

/// A child that waits directly before exec.
pub struct Held {
    pub pid: i32,
    gate: std::fs::File,
    spawner: JoinHandle<io::Result<Child>>,
}

/// A running child, leader of its own process group. Dropping it ends the whole group.
pub struct Launched {
    child: Child,
    keep: bool,
    reaped: bool,
}

fn pipe() -> io::Result<(std::fs::File, std::fs::File)> {
    let mut ends = [0; 2];
    // SAFETY: `ends` has room for the two descriptors; both are new and have no other owner.
    let (read, write) = unsafe {
        if libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) != 0 {
            return Err(io::Error::last_os_error());
        }
        (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1]))
    };
    Ok((read.into(), write.into()))
}

/// Whether commands started here get no terminal input. Their process group is in the background of the
/// terminal, so the first read would stop them (SIGTTIN, termios(3)).
pub fn stdin_withheld() -> bool {
    io::stdin().is_terminal()
}

/// The destination of a command's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Talk {
    /// Both streams go to our standard error: our standard output is for data.
    Aside,
    Nowhere,
}

/// Forks; the child waits before exec until `release`. `env` is added to our environment.
pub fn hold(command: &[OsString], env: &[(OsString, OsString)], talk: Talk) -> io::Result<Held> {
    let (program, args) = command
        .split_first()
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "no command given"))?;
    let (gate_in, gate_out) = pipe()?;
    let (mut pid_in, pid_out) = pipe()?;
    let mut command = Command::new(program);
    command.args(args).process_group(0);
    command.envs(env.iter().map(|(name, value)| (name, value)));
    if stdin_withheld() {
        command.stdin(Stdio::null());
    }
    match talk {
        Talk::Nowhere => {
            command.stdout(Stdio::null()).stderr(Stdio::null());
        }
        Talk::Aside => {
            // SAFETY: duplicates our own standard error; the descriptor is checked below.
            let stderr = unsafe { libc::fcntl(2, libc::F_DUPFD_CLOEXEC, 3) };
            if stderr >= 0 {
                // SAFETY: `stderr` is a new descriptor without another owner.
                command.stdout(Stdio::from(unsafe { OwnedFd::from_raw_fd(stderr) }));
            }
        }
    }
    let (gate_fd, pid_fd, our_gate_fd) = (gate_in.as_raw_fd(), pid_out.as_raw_fd(), gate_out.as_raw_fd());
    let limit = crate::limits::before();
    // SAFETY: between fork and exec the closure calls only async-signal-safe functions (getpid, write, close,
    // read) on descriptors that the parent keeps open until the child has passed this point, and setrlimit, a
    // bare system call.
    unsafe {
        command.pre_exec(move || {
            let pid = libc::getpid().to_ne_bytes();
            if libc::write(pid_fd, pid.as_ptr().cast(), pid.len()) != pid.len() as isize {
                return Err(io::Error::last_os_error());
            }
            // Our copy of the gate's other end: while it is open, the child would not notice the parent's
            // death.
            libc::close(our_gate_fd);
            if let Some(limit) = limit {
                // If this fails, the command keeps the raised limit and runs all the same.
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
    // `spawn` returns only after exec, so it waits in a separate thread.
    let spawner = std::thread::Builder::new().spawn(move || {
        let spawned = command.spawn();
        drop((gate_in, pid_out));
        spawned
    })?;
    let mut pid = [0; 4];
    if let Err(unread) = pid_in.read_exact(&mut pid) {
        // A child that waits at the gate gives up when it closes; until then `spawn` does not return.
        drop(gate_out);
        let spawned = spawner.join().map_err(|_| io::Error::other("the spawning thread panicked"))?;
        // Without a child, nothing was written: fork itself failed.
        return Err(match (unread.kind(), spawned) {
            (io::ErrorKind::UnexpectedEof, Err(fork)) => fork,
            _ => unread,
        });
    }
    Ok(Held { pid: i32::from_ne_bytes(pid), gate: gate_out, spawner })
}

impl Held {
    /// Lets the child call exec. The error is the error of exec.
    pub fn release(mut self) -> io::Result<Launched> {
        self.gate.write_all(&[1])?;
        drop(self.gate);
        let child = self.spawner.join().map_err(|_| io::Error::other("the spawning thread panicked"))??;
        Ok(Launched { child, keep: false, reaped: false })
    }
}

impl Launched {
    /// How the command itself ended, if it has. It is not reaped: the zombie keeps the group's number from
    /// being reused while other processes of the group must still be ended.
    pub fn exited(&self) -> Option<ExitStatus> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let status = waitid(WaitId::Pid(self.group()?), options).ok()??;
        // Encodes waitid's parts as wait(2) does.
        let raw = match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => (code & 0xff) << 8,
            (None, Some(signal)) => signal | if status.dumped() { 0x80 } else { 0 },
            (None, None) => return None,
        };
        Some(ExitStatus::from_raw(raw))
    }

    /// Whether the command or another process of its group still runs.
    pub fn running(&self) -> bool {
        !self.reaped && (self.exited().is_none() || self.others_run())
    }

    /// Leaves it running on drop.
    pub fn keep(&mut self) {
        self.keep = true;
    }

    /// Sends SIGTERM to the whole group, then SIGKILL.
    pub fn end(&mut self) {
        if self.reaped {
            return;
        }
        self.signal(Signal::TERM);
        for _ in 0..50 {
            if !self.running() {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        // Always: it has no effect on processes that ended, and one may have been forked in the meantime.
        self.signal(Signal::KILL);
        let _ = self.child.wait();
        self.reaped = true;
    }

    fn group(&self) -> Option<Pid> {
        Pid::from_raw(self.child.id() as i32)
    }

    fn others_run(&self) -> bool {
        let proc = ProcFs::live();
        // Not rustix's getpgid: it assumes a group above 0, and kernel threads are in group 0.
        // SAFETY: getpgid takes a number and touches no memory.
        let member = |pid: &i32| unsafe { libc::getpgid(*pid) } == self.child.id() as i32;
        let runs = |pid: i32| proc.process_stat(pid).is_ok_and(|stat| !stat.ended());
        let pids = proc.pids().unwrap_or_default();
        pids.into_iter().filter(member).any(runs)
    }

    /// The group belongs to the child (process_group(0)), which is not reaped yet, so its number can't be
    /// reused.
    fn signal(&self, signal: Signal) {
        if let Some(group) = self.group() {
            let _ = kill_process_group(group, signal);
        }
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
        let held = hold(
            &["/bin/sh".into(), "-c".into(), "exit $STATUS".into()],
            &[("STATUS".into(), "7".into())],
            Talk::Aside,
        )
        .unwrap();
        let exe = std::fs::read_link(format!("/proc/{}/exe", held.pid)).unwrap();
        assert_eq!(exe, std::env::current_exe().unwrap());
        let child = held.release().unwrap();
        let status = loop {
            if let Some(status) = child.exited() {
                break status;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        };
        assert_eq!(status.code(), Some(7));
    }

    #[test]
    fn a_failed_exec_returns_its_own_error() {
        let held = hold(&["/nonexistent/program".into()], &[], Talk::Aside).unwrap();
        assert_eq!(held.release().err().unwrap().raw_os_error(), Some(libc::ENOENT));
    }

    /// Starts a shell script that starts another process and prints its pid. Returns both.
    fn launched(script: &str) -> (Launched, i32) {
        let dir = tempfile::tempdir().unwrap();
        let note = dir.path().join("pid");
        let script = script.replace("NOTE", &note.display().to_string());
        let child = hold(&["/bin/sh".into(), "-c".into(), script.into()], &[], Talk::Aside)
            .unwrap()
            .release()
            .unwrap();
        let other = (0..500).find_map(|_| {
            std::thread::sleep(Duration::from_millis(5));
            std::fs::read_to_string(&note).ok()?.trim().parse().ok()
        });
        (child, other.expect("the script prints a pid"))
    }

    fn runs(pid: i32) -> bool {
        let stat = ProcFs::live().process_stat(pid);
        stat.is_ok_and(|stat| !stat.ended())
    }

    #[test]
    fn dropping_ends_the_group() {
        let (child, other) = launched("sleep 100 & echo $! > NOTE; sleep 100");
        let pid = child.child.id() as i32;
        assert!(runs(other) && child.running());
        drop(child);
        assert!(!ProcFs::live().exists(pid) && !runs(other));
    }

    #[test]
    fn processes_left_behind_by_a_command_are_ended_too() {
        let (child, other) = launched("sleep 100 & echo $! > NOTE; exit 3");
        let pid = child.child.id() as i32;
        let status = loop {
            if let Some(status) = child.exited() {
                break status;
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        // The status stays readable while other processes live.
        assert_eq!((status.code(), child.exited()), (Some(3), Some(status)));
        assert!(runs(other) && child.running());
        drop(child);
        assert!(!ProcFs::live().exists(pid) && !runs(other));
    }

    #[test]
    fn a_child_that_ignores_sigterm_is_killed() {
        let (child, other) = launched(
            "(trap '' TERM; echo $(exec sh -c 'echo $PPID') > NOTE; while :; do sleep 1; done) & sleep 100",
        );
        assert!(runs(other));
        drop(child);
        assert!((0..100).any(|_| {
            std::thread::sleep(Duration::from_millis(5));
            !runs(other)
        }));
    }

    #[test]
    fn a_kept_command_is_not_ended() {
        let (mut child, other) = launched("sleep 100 & echo $! > NOTE; exit 0");
        child.keep();
        drop(child);
        std::thread::sleep(Duration::from_millis(50));
        assert!(runs(other));
        let _ = rustix::process::kill_process(Pid::from_raw(other).unwrap(), Signal::KILL);
    }
}
