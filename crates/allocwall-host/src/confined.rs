//! A child process that parses untrusted bytes and may crash on them. It is this program again, started with
//! an argument and with a socket as its standard input.
//!
//! The child limits its own memory and CPU time before it reads anything, and gains no rights afterwards. The
//! parent waits for each answer only until a deadline, and treats the answer as plain bytes. A message is a
//! length (u32, little endian) and that many bytes; an open file may be sent with it.

use crate::clock::{self, monotonic_ns};
use allocwall_model::units::Measured;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recv, recvmsg, send, sendmsg,
};
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, Stdio};

/// The largest message of either side.
const MESSAGE_LIMIT: usize = 16 << 20;

/// What a child may use in addition to what it has at its start.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The child's own memory: heap and stacks.
    pub memory: u64,
    /// Files mapped into memory.
    pub mapped: u64,
    pub cpu_seconds: u64,
    /// The child reads other processes' memory. Otherwise it gives up every capability.
    pub keeps_rights: bool,
}

/// The parent's end.
#[derive(Debug)]
pub struct Child {
    process: std::process::Child,
    socket: UnixStream,
    /// The part of an answer that has arrived.
    partial: Vec<u8>,
}

impl Child {
    /// Starts `program` with `arguments`. The child gets a fresh environment, so that no variable of ours
    /// changes its limits.
    ///
    /// # Errors
    /// The system has no process, socket or file descriptor left, or the program does not exist.
    pub fn start(program: &Path, arguments: &[&str]) -> io::Result<Child> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let process = Command::new(program)
            .args(arguments)
            .env_clear()
            // Each arena reserves 64 MiB of addresses, which count against the limit.
            .env("GLIBC_TUNABLES", "glibc.malloc.arena_max=1")
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Ctrl-C must reach the parent only.
            .process_group(0)
            .spawn()?;
        Ok(Child { process, socket: ours, partial: Vec::new() })
    }

    /// The CPU time that the child has used.
    pub fn cpu_ns(&self) -> Measured<u64> {
        clock::process_cpu_ns(self.process.id() as i32)
    }

    /// Sends one message in several pieces, with `file`.
    ///
    /// # Errors
    /// `TimedOut` when the deadline (CLOCK_MONOTONIC) passes; any other error means that the child is gone.
    pub fn send(
        &mut self,
        pieces: &[&[u8]],
        file: Option<BorrowedFd<'_>>,
        deadline_ns: u64,
    ) -> io::Result<()> {
        let length: usize = pieces.iter().map(|piece| piece.len()).sum();
        let length = u32::try_from(length).map_err(|_| io::ErrorKind::InvalidInput)?;
        let header = length.to_le_bytes();
        let files: Vec<BorrowedFd<'_>> = file.into_iter().collect();
        let mut sent = loop {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !files.is_empty() {
                control.push(SendAncillaryMessage::ScmRights(&files));
            }
            match sendmsg(&self.socket, &[IoSlice::new(&header)], &mut control, SendFlags::NOSIGNAL) {
                Ok(sent) => break sent,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.wait(PollFlags::OUT, deadline_ns)?,
                Err(error) => return Err(error.into()),
            }
        };
        // The file was sent with the first byte; the rest of the header is plain bytes.
        let rest = std::iter::once(&header[..]).chain(pieces.iter().copied());
        for piece in rest {
            let mut piece = &piece[sent.min(piece.len())..];
            sent = 0;
            while !piece.is_empty() {
                match send(&self.socket, piece, SendFlags::NOSIGNAL) {
                    Ok(count) => piece = &piece[count..],
                    Err(Errno::INTR) => {}
                    Err(Errno::AGAIN) => self.wait(PollFlags::OUT, deadline_ns)?,
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(())
    }

    /// Waits for one whole message.
    ///
    /// # Errors
    /// As [`Child::send`]; `InvalidData` for a message that is too long.
    pub fn receive(&mut self, deadline_ns: u64) -> io::Result<Vec<u8>> {
        loop {
            if let Some(message) = self.arrived()? {
                return Ok(message);
            }
            self.wait(PollFlags::IN, deadline_ns)?;
        }
    }

    /// A complete message that has already arrived.
    ///
    /// # Errors
    /// As [`Child::receive`].
    pub fn arrived(&mut self) -> io::Result<Option<Vec<u8>>> {
        const HEADER: usize = 4;
        loop {
            let whole = match self.partial.first_chunk::<HEADER>() {
                Some(header) => HEADER + u32::from_le_bytes(*header) as usize,
                None => HEADER,
            };
            if whole > MESSAGE_LIMIT {
                return Err(io::ErrorKind::InvalidData.into());
            }
            let have = self.partial.len();
            if have == whole && whole > HEADER {
                let mut message = std::mem::take(&mut self.partial);
                message.drain(..HEADER);
                return Ok(Some(message));
            }
            // In steps: at most one step is allocated before its bytes arrive.
            let step = (whole - have).min(1 << 20);
            self.partial.resize(have + step, 0);
            let read = self.socket.read(&mut self.partial[have..]);
            self.partial.truncate(have + *read.as_ref().unwrap_or(&0));
            match read {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    fn wait(&self, flags: PollFlags, deadline_ns: u64) -> io::Result<()> {
        let left = deadline_ns.saturating_sub(monotonic_ns());
        if left == 0 {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let timeout =
            Timespec { tv_sec: (left / 1_000_000_000) as i64, tv_nsec: (left % 1_000_000_000) as _ };
        match poll(&mut [PollFd::new(&self.socket, flags)], Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Ends the child. Returns how it ended, if it ended before the kill.
    pub fn end(mut self) -> String {
        /// A child whose socket has closed is about to end.
        const LINGER_MS: u32 = 100;
        let mut status = None;
        for _ in 0..LINGER_MS {
            status = self.process.try_wait().ok().flatten();
            if status.is_some() || !self.closed() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        match status.map(|status| (status.code(), status.signal())) {
            Some((_, Some(libc::SIGXCPU))) => "it used up its CPU time".into(),
            Some((_, Some(libc::SIGABRT))) => "it aborted, probably at its memory limit".into(),
            Some((_, Some(signal))) => format!("it was killed by signal {signal}"),
            Some((code, None)) => format!("it ended with status {}", code.unwrap_or(0)),
            None => "it did not answer in time".into(),
        }
    }

    fn closed(&self) -> bool {
        let mut byte = [0; 1];
        // Reset: the child ended before it had read everything.
        matches!(
            recv(&self.socket, &mut byte, RecvFlags::PEEK | RecvFlags::DONTWAIT),
            Ok((_, 0)) | Err(Errno::CONNRESET)
        )
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        /// A child that hangs in the kernel ends when the kernel releases it. init reaps it after our own
        /// end.
        const PATIENCE_MS: u32 = 1_000;
        // Both fail only if the child has already been waited for.
        let _ = self.process.kill();
        for _ in 0..PATIENCE_MS {
            if !matches!(self.process.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
}

/// The child's end.
pub struct Parent {
    socket: UnixStream,
}

impl Parent {
    /// Takes the socket from standard input, and limits this process permanently.
    ///
    /// # Errors
    /// Standard input is not a socket, or a limit could not be set.
    pub fn confined(limits: Limits) -> io::Result<Parent> {
        let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        socket
            .peer_addr()
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "standard input is not a socket"))?;
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        rustix::thread::set_no_new_privs(true)?;
        if !limits.keeps_rights {
            drop_capabilities()?;
        }
        crate::limits::raise_open_files();
        let (all, data) = memory_now()?;
        let same = |resource, most| limit(resource, most, most);
        same(Resource::As, all + limits.memory + limits.mapped)?;
        same(Resource::Data, data + limits.memory)?;
        // The soft limit sends SIGXCPU, which shows the cause; the hard limit sends SIGKILL.
        limit(Resource::Cpu, limits.cpu_seconds, limits.cpu_seconds + 1)?;
        // No core file is that small. At 0 the kernel still runs a core_pattern program; at 1 it does not
        // (fs/coredump.c).
        same(Resource::Core, 1)?;
        same(Resource::Fsize, 0)?;
        Ok(Parent { socket })
    }

    /// The next message; None if the parent is gone.
    ///
    /// # Errors
    /// The socket failed, or a message is too long.
    pub fn question(&mut self) -> io::Result<Option<(Vec<u8>, Option<File>)>> {
        let mut header = [0; 4];
        let mut file = None;
        let mut have = 0;
        while have < header.len() {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let part = &mut [IoSliceMut::new(&mut header[have..])];
            let count = match recvmsg(&self.socket, part, &mut control, RecvFlags::CMSG_CLOEXEC) {
                Ok(message) => message.bytes,
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(files) = message {
                    file = files.last().map(File::from).or(file);
                }
            }
            if count == 0 {
                return Ok(None);
            }
            have += count;
        }
        let length = u32::from_le_bytes(header) as usize;
        if length > MESSAGE_LIMIT {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut message = vec![0; length];
        self.socket.read_exact(&mut message)?;
        Ok(Some((message, file)))
    }

    /// # Errors
    /// The other end is gone.
    pub fn answer(&mut self, message: &[u8]) -> io::Result<()> {
        self.socket.write_all(&(message.len() as u32).to_le_bytes())?;
        self.socket.write_all(message)
    }
}

/// Sets a limit, but not above the present hard limit.
fn limit(resource: Resource, soft: u64, hard: u64) -> io::Result<()> {
    let hard = getrlimit(resource).maximum.map_or(hard, |maximum| hard.min(maximum));
    let limits = Rlimit { current: Some(soft.min(hard)), maximum: Some(hard) };
    Ok(setrlimit(resource, limits)?)
}

/// Bytes of address space, and of its private writable part: fields 1 and 6 of /proc/self/statm.
fn memory_now() -> io::Result<(u64, u64)> {
    let text = std::fs::read_to_string("/proc/self/statm")?;
    let mut pages = text.split_whitespace().map(|word| word.parse::<u64>().ok());
    let page = rustix::param::page_size() as u64;
    match (pages.next().flatten(), pages.nth(4).flatten()) {
        (Some(all), Some(data)) => Ok((all * page, data * page)),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

fn drop_capabilities() -> io::Result<()> {
    use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
    let none = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    Ok(set_capabilities(None, none)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A shell as the child: its answer is what it writes to its standard input.
    fn child(script: &str) -> Child {
        Child::start(Path::new("/bin/sh"), &["-c", script]).unwrap()
    }

    fn in_ms(ms: u64) -> u64 {
        monotonic_ns() + ms * 1_000_000
    }

    #[test]
    fn what_was_sent_in_pieces_comes_back_whole() {
        let mut echo = child("/bin/cat >&0");
        // As much as the socket holds: cat writes before it has read everything.
        let large = vec![7; 64 << 10];
        for pieces in [&[&b"a"[..], b"bc"][..], &[&large[..]], &[b"d"]] {
            echo.send(pieces, None, in_ms(20_000)).unwrap();
            assert_eq!(echo.receive(in_ms(20_000)).unwrap(), pieces.concat());
        }
        assert!(echo.arrived().unwrap().is_none());
    }

    #[test]
    fn a_hanging_child_is_waited_for_until_the_deadline() {
        let mut sleeper = child("exec /bin/sleep 1000");
        let waited = sleeper.receive(in_ms(10)).unwrap_err();
        assert_eq!(waited.kind(), io::ErrorKind::TimedOut);
        // The child reads nothing, so the socket fills up.
        let sent = sleeper.send(&[&vec![0; 8 << 20]], None, in_ms(10)).unwrap_err();
        assert_eq!(sent.kind(), io::ErrorKind::TimedOut);
        assert_eq!(sleeper.end(), "it did not answer in time");
    }

    #[test]
    fn the_cause_of_the_end_is_reported() {
        for (script, cause) in [
            ("exit 3", "it ended with status 3"),
            ("kill -ABRT $$", "it aborted, probably at its memory limit"),
            ("kill -XCPU $$", "it used up its CPU time"),
            ("kill -BUS $$", "it was killed by signal 7"),
        ] {
            let mut dead = child(script);
            let gone = dead.receive(in_ms(20_000)).unwrap_err();
            assert!(
                matches!(gone.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset),
                "{gone}"
            );
            assert_eq!(dead.end(), cause, "{script}");
        }
    }

    #[test]
    fn a_child_that_ended_with_unread_data_counts_as_closed() {
        let mut dead = child("/bin/sleep 0.1; exit 3");
        dead.send(&[b"unread"], None, in_ms(20_000)).unwrap();
        dead.wait(PollFlags::IN, in_ms(20_000)).unwrap();
        assert!(dead.closed());
        assert_eq!(dead.end(), "it ended with status 3");
    }

    #[test]
    fn a_length_beyond_the_limit_is_not_believed() {
        let mut liar = child(r"printf '\377\377\377\377' >&0; exec /bin/sleep 1000");
        let refused = liar.receive(in_ms(20_000)).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
        let mut cut_off = child(r"printf '\10\0\0\0abc' >&0");
        assert!(cut_off.receive(in_ms(20_000)).is_err());
    }
}
