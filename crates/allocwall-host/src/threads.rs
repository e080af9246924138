//! Reads what a thread that is not running waits for, from /proc/PID/task/TID.

use crate::proc::{ProcFs, SyscallState};
use crate::worker::not_started;
use allocwall_model::units::{Absence, Measured, Reason};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

/// A thread that was not on a CPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Blocked {
    /// Scheduler state letter (proc_pid_stat(5)).
    pub state: char,
    /// None if reading it is not permitted; -1 if the thread is blocked outside a system call.
    pub syscall: Option<i64>,
    /// The first argument of the system call: of futex(2), the address of the lock.
    pub argument: Option<u64>,
    /// User instruction and stack pointer, if `syscall` was readable.
    pub ip_sp: Option<(u64, u64)>,
    /// Kernel functions, leaf first. Only the blocking function if the stack is not readable (not root).
    pub kernel: Vec<String>,
    /// How often the thread was put on a CPU before; None if the kernel doesn't count it.
    pub timeslices: Option<u64>,
}

/// Reads what threads do, and remembers which reads were refused: they are not tried again for every thread.
#[derive(Default)]
pub struct ThreadReader {
    stacks_refused: bool,
    syscalls_refused: bool,
    /// Why the system call of a thread could not be read: the first reason.
    pub refusal: Option<Absence>,
}

/// What a thread did at the moment of the read.
pub enum ThreadState {
    /// Running, or ready to run.
    Runnable,
    Gone,
    /// The state is unknown: the thread may still exist.
    Unread(Absence),
    Blocked(Blocked),
    /// Blocked since the last read, without having run in between: nothing of it has changed.
    StillBlocked,
}

impl ThreadReader {
    /// `last`: what the last read of this thread returned, if that was `Blocked`.
    pub fn read(&mut self, proc: &ProcFs, pid: i32, tid: i32, last: Option<&Blocked>) -> ThreadState {
        let stat = match proc.thread_stat(pid, tid) {
            Ok(stat) => stat,
            Err(absence) if absence.is_gone() => return ThreadState::Gone,
            Err(absence) => return ThreadState::Unread(absence),
        };
        match stat.state {
            'X' | 'x' | 'Z' => return ThreadState::Gone,
            'R' => return ThreadState::Runnable,
            _ => {}
        }
        // Read before the rest: if the thread runs meanwhile, the next read finds another count.
        let timeslices = proc.thread_schedstat(pid, tid).ok().map(|times| times.timeslices);
        if timeslices.is_some()
            && last.is_some_and(|last| last.timeslices == timeslices && last.state == stat.state)
        {
            return ThreadState::StillBlocked;
        }
        let mut blocked = Blocked { state: stat.state, timeslices, ..Blocked::default() };
        if !self.syscalls_refused {
            match proc.thread_syscall(pid, tid) {
                // It woke up in the meantime, so it counts as runnable.
                Ok(SyscallState::Running) => return ThreadState::Runnable,
                Ok(SyscallState::Blocked { number, argument, ip_sp }) => {
                    blocked.syscall = Some(number);
                    blocked.argument = argument;
                    blocked.ip_sp = ip_sp;
                }
                Err(absence) => {
                    self.syscalls_refused = absence.reason == Reason::NotPermitted;
                    self.refusal.get_or_insert(absence);
                }
            }
        }
        if !self.stacks_refused {
            match proc.thread_kernel_stack(pid, tid) {
                Ok(kernel) => blocked.kernel = kernel,
                Err(absence) => self.stacks_refused = absence.reason == Reason::NotPermitted,
            }
        }
        if blocked.kernel.is_empty() {
            blocked.kernel.extend(proc.thread_wchan(pid, tid).ok().flatten());
        }
        ThreadState::Blocked(blocked)
    }
}

/// Reads other processes' memory in a separate thread. A page may belong to a file whose server never answers
/// (FUSE), and such a read ends only with this process. So the caller waits at most one second.
#[derive(Default)]
pub struct MemoryReader(Option<Measured<Reading>>);

struct Reading {
    ask: SyncSender<(i32, u64, Vec<u8>)>,
    answer: Receiver<(Vec<u8>, usize)>,
}

impl MemoryReader {
    /// Like [`read_memory`]. After a failure it is not tried again.
    ///
    /// # Errors
    /// The thread could not be started, or it did not answer within a second.
    pub fn read(&mut self, pid: i32, address: u64, buffer: &mut Vec<u8>) -> Measured<usize> {
        const PATIENCE: Duration = Duration::from_secs(1);
        let reading = self.0.get_or_insert_with(Reading::start).as_ref().map_err(Clone::clone)?;
        let length = buffer.len();
        let answer = reading
            .ask
            .send((pid, address, std::mem::take(buffer)))
            .ok()
            .and_then(|()| reading.answer.recv_timeout(PATIENCE).ok());
        let Some((bytes, read)) = answer else {
            *buffer = vec![0; length];
            let absence = Absence::new(
                Reason::TooCostly,
                format!("memory of process {pid} could not be read within a second"),
            );
            self.0 = Some(Err(absence.clone()));
            return Err(absence);
        };
        *buffer = bytes;
        Ok(read)
    }
}

impl Reading {
    fn start() -> Measured<Reading> {
        let (ask, asked) = sync_channel::<(i32, u64, Vec<u8>)>(1);
        let (answers, answer) = sync_channel(1);
        let work = move || {
            for (pid, address, mut buffer) in asked {
                let read = read_memory(pid, address, &mut buffer);
                if answers.send((buffer, read)).is_err() {
                    break;
                }
            }
        };
        let thread = std::thread::Builder::new().spawn(work);
        thread.map(|_| Reading { ask, answer }).map_err(|error| not_started("reads memory", &error))
    }
}

/// Copies memory of the target from `address` upwards into `buffer` without stopping the target. Returns the
/// number of readable bytes.
pub(crate) fn read_memory(pid: i32, address: u64, buffer: &mut [u8]) -> usize {
    const PAGE: u64 = 4096;
    let local = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // Two pieces, split at a page boundary: a read past the end of a stack still returns the first piece.
    let first = (PAGE - address % PAGE).min(buffer.len() as u64);
    let remote = [
        libc::iovec { iov_base: address as *mut libc::c_void, iov_len: first as usize },
        libc::iovec {
            iov_base: address.wrapping_add(first) as *mut libc::c_void,
            iov_len: buffer.len() - first as usize,
        },
    ];
    // SAFETY: `local` describes `buffer`, which outlives the call and is ours to write. The remote addresses
    // are used only in the other process, and the kernel checks them.
    let read = unsafe { libc::process_vm_readv(pid, &local, 1, remote.as_ptr(), 2, 0) };
    usize::try_from(read).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hanging_read_is_abandoned() {
        let (ask, asked) = sync_channel(1);
        let (_answers, answer) = sync_channel(1);
        let mut reader = MemoryReader(Some(Ok(Reading { ask, answer })));
        let mut buffer = vec![0; 16];
        let absence = reader.read(7, 0, &mut buffer).unwrap_err();
        assert_eq!((absence.reason, buffer.len()), (Reason::TooCostly, 16));
        drop(asked);
        assert_eq!(reader.read(7, 0, &mut buffer), Err(absence), "it must fail at once");
    }

    #[test]
    fn own_memory_is_readable() {
        let source = [7u8; 10_000];
        let mut copy = vec![0u8; 10_000];
        let (mut reader, pid) = (MemoryReader::default(), std::process::id() as i32);
        assert_eq!(reader.read(pid, source.as_ptr() as u64, &mut copy), Ok(10_000));
        assert_eq!(source[..], copy);
        assert_eq!(reader.read(pid, 16, &mut copy), Ok(0));
        assert_eq!(copy.len(), 10_000);
    }

    #[test]
    fn reads_stop_where_memory_ends() {
        let source = [7u8; 10_000];
        let mut copy = [0u8; 10_000];
        let pid = std::process::id() as i32;
        assert_eq!(read_memory(pid, source.as_ptr() as u64, &mut copy), 10_000);
        assert_eq!(source, copy);
        assert_eq!(read_memory(pid, 16, &mut copy), 0);
    }

    #[test]
    fn a_sleeping_thread_is_blocked_and_a_spinning_one_is_not() {
        use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
        static TID: [AtomicI32; 2] = [AtomicI32::new(0), AtomicI32::new(0)];
        static STOP: AtomicBool = AtomicBool::new(false);
        let spawn = |slot: usize| {
            std::thread::spawn(move || {
                TID[slot].store(rustix::thread::gettid().as_raw_nonzero().get(), Ordering::SeqCst);
                while !STOP.load(Ordering::SeqCst) {
                    if slot == 0 {
                        std::thread::park_timeout(std::time::Duration::from_secs(10));
                    } else {
                        std::hint::spin_loop();
                    }
                }
            })
        };
        let threads = [spawn(0), spawn(1)];
        while TID.iter().any(|t| t.load(Ordering::SeqCst) == 0) {
            std::thread::yield_now();
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
        let pid = std::process::id() as i32;
        let mut reader = ThreadReader::default();
        let proc = ProcFs::live();
        let parked = TID[0].load(Ordering::SeqCst);
        let first = reader.read(&proc, pid, parked, None);
        let spinning = reader.read(&proc, pid, TID[1].load(Ordering::SeqCst), None);
        let ThreadState::Blocked(blocked) = first else {
            panic!("the parked thread was not reported as blocked")
        };
        assert_eq!(blocked.state, 'S');
        assert!(matches!(spinning, ThreadState::Runnable));
        assert!(matches!(reader.read(&proc, pid, i32::MAX, None), ThreadState::Gone));
        // It has not run since, if the kernel counts its turns; after a turn everything is read again.
        let still = reader.read(&proc, pid, parked, Some(&blocked));
        assert_eq!(matches!(still, ThreadState::StillBlocked), blocked.timeslices.is_some());
        threads[0].thread().unpark();
        std::thread::sleep(std::time::Duration::from_millis(50));
        let again = reader.read(&proc, pid, parked, Some(&blocked));
        assert!(!matches!(again, ThreadState::StillBlocked));
        STOP.store(true, Ordering::SeqCst);
        threads[0].thread().unpark();
        threads.into_iter().for_each(|t| t.join().unwrap());
    }
}
