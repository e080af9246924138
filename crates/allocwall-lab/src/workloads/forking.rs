//! Fork: children that write to memory which they inherited; the twin writes to its own memory without children.

use super::clock::{thread_and_children_cpu_ns, thread_cpu_ns};
use super::mapping::{Mapping, PAGE};
use super::process::pin_to_cpu;
use super::stage::{Base, Stage};
use anyhow::{Context, Result};
use std::io;
use std::sync::atomic::Ordering::Relaxed;

/// 64 MiB: more than the second-level TLB covers, so that the second write to a page misses the TLB like the first. Also so much
/// that a child should live for several sampling periods: a clock that children inherit starts a new period in each of them
/// (perf_event_alloc in kernel/events/core.c), so it sees too little of short children.
const PAGES: usize = 16384;

/// The account is the CPU time of the fork, of the wait, and of the whole life of the child with its exit, minus the child's two
/// passes of writes at the price of the second, in which the child owns all pages. It includes a few faults for each child that
/// belong to other lines: those on code, and the one on the shared result.
pub fn fork_write(stage: &Stage) -> Result<()> {
    let twin = stage.options.twin;
    // Parent and child take turns on one CPU. On two, the parent could read the child's CPU time before the child has left its
    // CPU, and miss what it used since its last tick (thread_group_cputime in kernel/sched/cputime.c).
    pin_to_cpu(1)?;
    if !twin {
        // If whoever started this process ignores the signal, the kernel does not count the children (getrusage(2)).
        // SAFETY: it installs no handler.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
        write_in_child(&mut Mapping::new(PAGE), &Mapping::shared(PAGE)).context("a first child")?;
    }
    let worker = |_| {
        let mut region = Mapping::new(PAGES * PAGE);
        region.write_each_page();
        let second_pass = Mapping::shared(PAGE);
        stage.mix(Base::CpuWithChildren, || {
            stage.operations.add(PAGES as i64);
            let start = thread_and_children_cpu_ns();
            if twin {
                for _ in 0..4 {
                    region.write_each_page();
                }
                return (thread_and_children_cpu_ns() - start) as i64;
            }
            let rewriting =
                write_in_child(&mut region, &second_pass).expect("a child could be started before");
            let forking = (thread_and_children_cpu_ns() - start) as i64 - 2 * rewriting;
            stage.line(0).add(forking);
            forking
        });
    };
    stage.perform(worker, |_| Ok(()))
}

/// Starts a child that writes to each page of `region` twice, and waits for its end. Returns the CPU time of the second pass, in
/// nanoseconds, which the child hands over in the shared memory `second_pass`.
fn write_in_child(region: &mut Mapping, second_pass: &Mapping) -> io::Result<i64> {
    // SAFETY: the child only writes to memory that is mapped, reads a clock and ends. It needs no lock that another thread of the
    // parent may have held at the fork, and cannot panic.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            region.write_each_page();
            let copied = thread_cpu_ns();
            region.write_each_page();
            // Relaxed: the parent reads it after the end of the child.
            second_pass.first_word().store(thread_cpu_ns().wrapping_sub(copied) as i64, Relaxed);
            // SAFETY: it only ends the child. Destructors and exit handlers belong to the parent.
            unsafe { libc::_exit(0) }
        }
        child => {
            wait_for(child)?;
            Ok(second_pass.first_word().load(Relaxed))
        }
    }
}

pub(crate) fn wait_for(child: libc::pid_t) -> io::Result<()> {
    let mut status = 0;
    // SAFETY: our own child; `status` outlives the call.
    while unsafe { libc::waitpid(child, &mut status, 0) } == -1 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    match status {
        0 => Ok(()),
        _ => Err(io::Error::other(format!("a child ended with wait status {status:#x}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::super::clock::{children_cpu_ns, children_usage};
    use super::*;

    #[test]
    fn a_child_copies_each_page_and_its_cpu_time_is_counted() {
        // On two CPUs, the parent could read the child's CPU time too early.
        pin_to_cpu(0).unwrap();
        const INHERITED: usize = 256;
        let mut region = Mapping::new(INHERITED * PAGE);
        region.write_each_page();
        let (faults, cpu_ns) = (children_usage().ru_minflt, children_cpu_ns());
        let rewriting = write_in_child(&mut region, &Mapping::shared(PAGE)).unwrap();
        let faults = children_usage().ru_minflt - faults;
        assert!(faults >= INHERITED as i64, "{faults} faults");
        let cpu_ns = (children_cpu_ns() - cpu_ns) as i64;
        assert!(rewriting > 0 && cpu_ns > 2 * rewriting, "{cpu_ns} ns, second pass {rewriting} ns");
    }

    #[test]
    fn a_child_that_fails_is_an_error() {
        // SAFETY: the child ends at once.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: as above.
            unsafe { libc::_exit(3) }
        }
        assert!(child > 0, "{}", io::Error::last_os_error());
        let error = wait_for(child).unwrap_err();
        assert!(error.to_string().contains("0x300"), "{error}");
        assert_eq!(wait_for(child).unwrap_err().raw_os_error(), Some(libc::ECHILD));
    }
}
