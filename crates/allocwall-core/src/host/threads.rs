//! Looking at a thread that does not run: what it waits for, from /proc/PID/task/TID.

use std::fs::File;
use std::io::Read;

/// One thread that was found off its CPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Blocked {
    /// Scheduler state letter (proc_pid_stat(5)).
    pub state: char,
    /// None where reading it is not permitted; -1 when blocked outside a system call.
    pub syscall: Option<i64>,
    /// User instruction and stack pointer, where `syscall` was readable.
    pub ip_sp: Option<(u64, u64)>,
    /// Kernel functions, leaf first; only the blocking one where the stack is not readable (not root).
    pub kernel: Vec<String>,
}

/// Re-used between looks so that a look allocates little.
#[derive(Default)]
pub struct Looker {
    buffer: Vec<u8>,
    /// Reading kernel stacks was refused once: not asked again.
    stacks_refused: bool,
    syscalls_refused: bool,
}

pub enum Look {
    /// On a CPU or ready to be.
    Runnable,
    Gone,
    Blocked(Blocked),
}

impl Looker {
    pub fn look(&mut self, pid: i32, tid: i32) -> Look {
        let Some(stat) = self.read(pid, tid, "stat") else { return Look::Gone };
        // The name may hold spaces and parentheses: the state follows the last one.
        let state = stat.iter().rposition(|b| *b == b')').and_then(|i| stat.get(i + 2)).map(|b| *b as char);
        let state = match state {
            None | Some('X' | 'x' | 'Z') => return Look::Gone,
            Some('R') => return Look::Runnable,
            Some(state) => state,
        };
        let mut blocked = Blocked { state, ..Blocked::default() };
        if !self.syscalls_refused {
            match self.read(pid, tid, "syscall").map(parse_syscall) {
                // It woke up in the meantime: what the two reads say together is "runnable".
                Some(Syscall::Running) => return Look::Runnable,
                Some(Syscall::Blocked { number, sp, ip }) => {
                    blocked.syscall = Some(number);
                    blocked.ip_sp = Some((ip, sp));
                }
                Some(Syscall::Unparsable) => {}
                None => self.syscalls_refused = true,
            }
        }
        if !self.stacks_refused {
            match self.read(pid, tid, "stack").map(parse_stack) {
                Some(kernel) => blocked.kernel = kernel,
                None => self.stacks_refused = true,
            }
        }
        if blocked.kernel.is_empty()
            && let Some(wchan) = self.read(pid, tid, "wchan")
            && wchan != b"0"
            && !wchan.is_empty()
        {
            blocked.kernel.push(String::from_utf8_lossy(wchan).into_owned());
        }
        Look::Blocked(blocked)
    }

    fn read(&mut self, pid: i32, tid: i32, file: &str) -> Option<&[u8]> {
        self.buffer.clear();
        let mut open = File::open(format!("/proc/{pid}/task/{tid}/{file}")).ok()?;
        open.read_to_end(&mut self.buffer).ok()?;
        Some(&self.buffer)
    }
}

enum Syscall {
    Running,
    Blocked { number: i64, sp: u64, ip: u64 },
    Unparsable,
}

/// proc_pid_syscall(5): `running`, or `-1 SP PC`, or `NR A1 … A6 SP PC`.
fn parse_syscall(bytes: &[u8]) -> Syscall {
    let text = String::from_utf8_lossy(bytes);
    let words: Vec<&str> = text.split_ascii_whitespace().collect();
    let hex = |word: &str| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok();
    match words[..] {
        ["running"] => Syscall::Running,
        [number, .., sp, ip] => match (number.parse(), hex(sp), hex(ip)) {
            (Ok(number), Some(sp), Some(ip)) => Syscall::Blocked { number, sp, ip },
            _ => Syscall::Unparsable,
        },
        _ => Syscall::Unparsable,
    }
}

/// proc_pid_stack(5): `[<0>] function+0x110/0x310` a line.
fn parse_stack(bytes: &[u8]) -> Vec<String> {
    String::from_utf8_lossy(bytes)
        .lines()
        .filter_map(|line| {
            let symbol = line.split_once("] ")?.1;
            let name = symbol.split_once('+').map_or(symbol, |(name, _)| name);
            (!name.is_empty()).then(|| name.to_string())
        })
        .take(64)
        .collect()
}

/// Copies target memory from `address` upwards into `buffer` without stopping the target; the number of bytes that
/// were readable.
pub fn read_memory(pid: i32, address: u64, buffer: &mut [u8]) -> usize {
    let local = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // Two pieces, cut at a page: a read that runs off the end of a stack still returns the first.
    let page = 4096;
    let first = (page - (address % page) as usize as u64).min(buffer.len() as u64);
    let remote = [
        libc::iovec { iov_base: address as *mut libc::c_void, iov_len: first as usize },
        libc::iovec {
            iov_base: address.wrapping_add(first) as *mut libc::c_void,
            iov_len: buffer.len() - first as usize,
        },
    ];
    // SAFETY: `local` describes `buffer`, which outlives the call and is ours to write; the remote addresses are only
    // interpreted in the other process, where the kernel checks them.
    let read = unsafe { libc::process_vm_readv(pid, &local, 1, remote.as_ptr(), 2, 0) };
    usize::try_from(read).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn syscall_lines() {
        assert!(matches!(parse_syscall(b"running\n"), Syscall::Running));
        assert!(matches!(
            parse_syscall(b"202 0x1 0x80 0x0 0x0 0x0 0x0 0x7ffc1 0x7f001\n"),
            Syscall::Blocked { number: 202, sp: 0x7ffc1, ip: 0x7f001 }
        ));
        assert!(matches!(parse_syscall(b"-1 0x7ffc1 0x7f001\n"), Syscall::Blocked { number: -1, .. }));
        for bad in [&b""[..], b"x", b"1 2 3", b"\xff\xfe 0x1 0x2", b"5 0x1"] {
            assert!(matches!(parse_syscall(bad), Syscall::Unparsable), "{bad:?}");
        }
    }

    #[test]
    fn stack_lines() {
        let text = b"[<0>] futex_wait+0x1/0x2\n[<0>] do_syscall_64+0x71/0x280\nnonsense\n[<0>] \n";
        assert_eq!(parse_stack(text), ["futex_wait", "do_syscall_64"]);
    }

    #[test]
    fn own_memory_reads_like_anybodys() {
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
                        std::thread::park_timeout(std::time::Duration::from_secs(1));
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
        let mut looker = Looker::default();
        let parked = looker.look(pid, TID[0].load(Ordering::SeqCst));
        let spinning = looker.look(pid, TID[1].load(Ordering::SeqCst));
        STOP.store(true, Ordering::SeqCst);
        threads.into_iter().for_each(|t| t.join().unwrap());
        let Look::Blocked(blocked) = parked else { panic!("the parked thread was not seen waiting") };
        assert_eq!(blocked.state, 'S');
        assert!(matches!(spinning, Look::Runnable));
        assert!(matches!(looker.look(pid, i32::MAX), Look::Gone));
    }
}
