//! The rights of this process.

use crate::proc::ProcFs;
use allocwall_model::catalogue::advice::{Advice, RUN_AS_MACHINES_ROOT, RUN_AS_ROOT};
use allocwall_model::units::Measured;
use serde::{Deserialize, Serialize};

/// The capabilities that allocwall needs to read other processes: include/uapi/linux/capability.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities(pub u64);

impl Capabilities {
    pub const SYS_PTRACE: u32 = 19;
    pub const SYS_ADMIN: u32 = 21;
    pub const SYSLOG: u32 = 34;
    pub const PERFMON: u32 = 38;

    pub fn has(self, capability: u32) -> bool {
        capability < 64 && self.0 & (1 << capability) != 0
    }

    /// CAP_SYS_ADMIN includes CAP_PERFMON: perfmon_capable() in include/linux/capability.h.
    pub fn perfmon(self) -> bool {
        self.has(Self::PERFMON) || self.has(Self::SYS_ADMIN)
    }

    pub fn ptrace(self) -> bool {
        self.has(Self::SYS_PTRACE)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Seccomp {
    None,
    Strict,
    /// A filter program: container runtimes and systemd units set one.
    Filter,
    /// The kernel was built without seccomp, or does not report it.
    Unknown,
}

/// The rights of this process as the kernel reports them. Only a trial shows whether they suffice.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rights {
    pub euid: u32,
    pub capabilities: Capabilities,
    pub seccomp: Seccomp,
    pub no_new_privs: Option<bool>,
    /// kernel.yama.ptrace_scope; None if the kernel has no Yama.
    pub yama_ptrace_scope: Option<u8>,
}

impl Rights {
    pub fn of_self(proc: &ProcFs) -> Measured<Self> {
        let status = proc.own_status()?;
        Ok(Rights {
            euid: status.uid[1],
            capabilities: Capabilities(status.cap_eff),
            seccomp: match status.seccomp {
                Some(0) => Seccomp::None,
                Some(1) => Seccomp::Strict,
                Some(2) => Seccomp::Filter,
                _ => Seccomp::Unknown,
            },
            no_new_privs: status.no_new_privs,
            yama_ptrace_scope: proc.sysctl("kernel/yama/ptrace_scope").ok(),
        })
    }
}

/// What to do when a right is missing that root normally has. Root itself lacks it in a user namespace, and
/// where a container or a service manager dropped capabilities.
pub fn run_as_root() -> Advice {
    if rustix::process::geteuid().is_root() { RUN_AS_MACHINES_ROOT } else { RUN_AS_ROOT }
}

/// Whether allocwall may read the memory of another process; reading Python stacks from outside needs it.
/// Nothing is read. The kernel checks the right before the address, so a granted right gives EFAULT for an
/// unmapped address.
///
/// In between it waits for the lock of the other process's address space, and no signal ends that
/// (process_vm_rw_single_vec in mm/process_vm_access.c). /proc/PID/mem can be opened without the lock, but its file
/// mode refuses a user with CAP_SYS_PTRACE alone. A caller that must not wait calls this in another thread.
pub fn can_read_memory(pid: i32) -> std::io::Result<()> {
    let mut byte = 0u8;
    let local = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let remote = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 1 };
    // SAFETY: `local` covers one live byte of our own. `remote` is only an address in the other process, and
    // the kernel checks it.
    let read = unsafe { libc::process_vm_readv(pid, &local, 1, &remote, 1, 0) };
    let error = std::io::Error::last_os_error();
    match read {
        -1 if error.raw_os_error() != Some(libc::EFAULT) => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cap_sys_admin_includes_cap_perfmon_but_not_the_reverse() {
        let admin = Capabilities(1 << Capabilities::SYS_ADMIN);
        let perfmon = Capabilities(1 << Capabilities::PERFMON);
        assert!(admin.perfmon() && perfmon.perfmon());
        assert!(!perfmon.has(Capabilities::SYS_ADMIN) && !perfmon.ptrace());
        assert!(!Capabilities(0).perfmon() && !Capabilities(u64::MAX).has(64));
    }

    #[test]
    fn rights_of_a_confined_process() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("self")).unwrap();
        std::fs::create_dir_all(dir.path().join("sys/kernel/yama")).unwrap();
        let status = "Tgid:\t1\nPPid:\t0\nUid:\t5\t6\t5\t5\nThreads:\t1\nCapEff:\t0000000000080000\nNoNewPrivs:\t1\nSeccomp:\t2\n";
        std::fs::write(dir.path().join("self/status"), status).unwrap();
        std::fs::write(dir.path().join("sys/kernel/yama/ptrace_scope"), "1\n").unwrap();
        let rights = Rights::of_self(&ProcFs::at(dir.path())).unwrap();
        assert_eq!((rights.euid, rights.seccomp, rights.no_new_privs), (6, Seccomp::Filter, Some(true)));
        assert_eq!(rights.yama_ptrace_scope, Some(1));
        assert!(rights.capabilities.ptrace() && !rights.capabilities.perfmon());
    }

    #[test]
    fn own_memory_is_readable_and_a_dead_process_is_not() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let dead = child.id() as i32;
        child.wait().unwrap();
        match can_read_memory(std::process::id() as i32) {
            Ok(()) => assert_eq!(can_read_memory(dead).unwrap_err().raw_os_error(), Some(libc::ESRCH)),
            Err(error) => println!("skipped: process_vm_readv: {error}"),
        }
    }
}
