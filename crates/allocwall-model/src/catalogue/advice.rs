//! What to do where a right or a limit prevents a measurement. Several probes meet the same obstacle; they give the same advice.

/// Gives allocwall the capabilities that a diagnosis needs without root.
pub const SETCAP: &str = "sudo setcap cap_perfmon,cap_sys_ptrace,cap_syslog+ep $(command -v allocwall)";
pub const IN_A_CONTAINER: &str = "in a container: --cap-add PERFMON --cap-add SYS_PTRACE and a seccomp profile that allows perf_event_open";
/// Kernel stacks of the user's own processes.
pub const KERNEL_STACKS: &str = "sudo sysctl kernel.perf_event_paranoid=1";
/// Names of kernel functions without CAP_SYSLOG.
pub const KERNEL_NAMES: &str = "sudo sysctl kernel.kptr_restrict=0";
pub const OPEN_FILES: &str = "raise the limit of open files: ulimit -n 65536";
