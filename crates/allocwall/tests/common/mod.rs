//! What the tests of this crate share.

use std::os::unix::process::CommandExt;
use std::process::Command;

/// Starts ahead of other programs on this machine, where that is permitted: what is timed must have its CPUs also while
/// other work runs. A session of its own is a scheduling group of its own (sched(7), autogroup), which can be favoured;
/// inside a control group's share the priority counts. It ends with the thread that started it.
pub fn favoured(command: &mut Command) -> &mut Command {
    // SAFETY: system calls only between fork and exec.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            libc::setsid();
            libc::setpriority(libc::PRIO_PROCESS, 0, -15);
            let group = libc::open(c"/proc/self/autogroup".as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
            if group >= 0 {
                libc::write(group, c"-15".as_ptr().cast(), 3);
                libc::close(group);
            }
            Ok(())
        })
    }
}
