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

/// Share of this machine's CPU time that the hypervisor took from it, above which what two clocks say of the same program
/// is no matter of the program alone.
pub const STOLEN: f64 = 0.02;

/// CPU time of this machine as the kernel counts it, since boot or between two readings.
#[derive(Clone, Copy)]
pub struct MachineTime {
    /// What the hypervisor took.
    pub stolen_s: f64,
    pub all_s: f64,
}

impl MachineTime {
    pub fn now() -> MachineTime {
        // user, nice, system, idle, iowait, irq, softirq and steal (proc_stat(5)); what guests use is in user already.
        const KINDS: usize = 8;
        // USER_HZ is 100 on every machine that this is built for.
        const TICKS_A_SECOND: f64 = 100.0;
        let stat = std::fs::read_to_string("/proc/stat").expect("/proc/stat is text");
        let ticks = stat.split_ascii_whitespace().skip(1).take(KINDS);
        let seconds: Vec<f64> = ticks
            .map(|ticks| ticks.parse::<f64>().expect("a count of ticks") / TICKS_A_SECOND)
            .collect();
        MachineTime {
            stolen_s: seconds[KINDS - 1],
            all_s: seconds.iter().sum(),
        }
    }

    pub fn since(self, before: MachineTime) -> MachineTime {
        MachineTime {
            stolen_s: self.stolen_s - before.stolen_s,
            all_s: self.all_s - before.all_s,
        }
    }

    pub fn stolen(self) -> f64 {
        self.stolen_s / self.all_s
    }
}
