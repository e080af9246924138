//! Shared by the tests of this crate.

use std::os::unix::process::CommandExt;
use std::process::Command;

/// Gives the command priority over other programs on this machine, if that is permitted: timed programs need their
/// CPUs even while other work runs. A new session gets its own scheduling group (sched(7), autogroup), whose nice
/// value can be set; within the share of a control group, the process priority counts. The command ends with the
/// thread that started it.
pub fn favoured(command: &mut Command) -> &mut Command {
    // SAFETY: only system calls between fork and exec.
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

/// If the hypervisor took more than this share of the machine's CPU time, two clocks may disagree about a program for
/// that reason alone.
pub const STOLEN: f64 = 0.02;

/// CPU time of this machine by the kernel's account, since boot or between two readings.
#[derive(Clone, Copy)]
pub struct MachineTime {
    /// Time that the hypervisor took.
    pub stolen_s: f64,
    pub all_s: f64,
}

impl MachineTime {
    pub fn now() -> MachineTime {
        // user, nice, system, idle, iowait, irq, softirq and steal (proc_stat(5)); guest time is included in user.
        const KINDS: usize = 8;
        // USER_HZ is 100 on all supported architectures.
        const TICKS_A_SECOND: f64 = 100.0;
        let stat = std::fs::read_to_string("/proc/stat").expect("/proc/stat is text");
        let ticks = stat.split_ascii_whitespace().skip(1).take(KINDS);
        let seconds: Vec<f64> =
            ticks.map(|ticks| ticks.parse::<f64>().expect("a count of ticks") / TICKS_A_SECOND).collect();
        MachineTime { stolen_s: seconds[KINDS - 1], all_s: seconds.iter().sum() }
    }

    pub fn since(self, before: MachineTime) -> MachineTime {
        MachineTime { stolen_s: self.stolen_s - before.stolen_s, all_s: self.all_s - before.all_s }
    }

    pub fn stolen(self) -> f64 {
        self.stolen_s / self.all_s
    }
}
