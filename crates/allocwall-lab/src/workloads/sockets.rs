//! Objects of the kernel: socket pairs that are made and closed again, with a message in each, and names that do not exist. The twin
//! makes as many system calls on sockets that it keeps.

use super::clock::thread_cpu_ns;
use super::stage::{Base, Stage};
use anyhow::{Context, Result};
use std::ffi::CStr;
use std::hint::black_box;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

type Pair = (UnixStream, UnixStream);

/// More than the kernel's caches of free objects hold for one CPU, so that a batch needs new slabs. Fewer than the usual limit of
/// 1,024 descriptors.
const PAIRS: usize = 128;
/// Calls for each pair: socketpair, write, access, and close of both ends.
const CALLS: usize = 5;
/// Procfs keeps no name that does not exist (fs/proc/generic.c), so each look-up makes a name and frees it again. Other file systems
/// keep some of them, and would fill the memory with names.
const MISSING: &CStr = c"/proc/allocwall-no-such-name";

pub(crate) fn look_up() -> bool {
    // SAFETY: a string that ends with a zero byte.
    black_box(unsafe { libc::access(MISSING.as_ptr(), libc::F_OK) }) == 0
}

/// A system call that finds an open file and allocates nothing.
pub(crate) fn ask(socket: &UnixStream) {
    // SAFETY: a call that only reads the flags of our own descriptor.
    black_box(unsafe { libc::fcntl(socket.as_raw_fd(), libc::F_GETFL) });
}

/// Makes all pairs, each with a message that nobody reads, and closes them.
fn churn(pairs: &mut Vec<Pair>) -> io::Result<()> {
    for _ in 0..PAIRS {
        let mut pair = UnixStream::pair()?;
        pair.0.write_all(&[1])?;
        look_up();
        pairs.push(pair);
    }
    pairs.clear();
    Ok(())
}

/// The account is the CPU time of these calls. It is that of the kernel's own allocator together with that of the sockets and files
/// that it works for: no clock of a program can tell the two apart.
pub fn socket_churn(stage: &Stage) -> Result<()> {
    let twin = stage.options.twin;
    // The workers' pairs, all at the same time: whether the limit of descriptors allows them.
    let most: io::Result<Vec<Pair>> =
        (0..PAIRS * stage.options.threads).map(|_| UnixStream::pair()).collect();
    drop(most.context("skipped: too few file descriptors (ulimit -n)")?);
    let kept = UnixStream::pair()?;
    let worker = |_| {
        let mut pairs = Vec::with_capacity(PAIRS);
        stage.mix(Base::Cpu, || {
            stage.operations.add(PAIRS as i64);
            let start = thread_cpu_ns();
            if twin {
                (0..PAIRS * CALLS).for_each(|_| ask(&kept.0));
                return (thread_cpu_ns() - start) as i64;
            }
            churn(&mut pairs).expect("there were enough descriptors before");
            let churned = (thread_cpu_ns() - start) as i64;
            stage.line(0).add(churned);
            churned
        });
    };
    stage.perform(worker, |_| Ok(()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_closes_what_it_made_and_the_name_does_not_exist() {
        let mut pairs = vec![];
        // Many times the usual limit of descriptors.
        for _ in 0..20 {
            churn(&mut pairs).unwrap();
        }
        assert!(pairs.is_empty() && !look_up());
        ask(&UnixStream::pair().unwrap().0);
    }
}
