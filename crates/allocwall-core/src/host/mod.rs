//! The only place with system calls and unsafe code. Readers of /proc, /sys and cgroup files take a root and parse bytes.

pub mod libc_malloc;
pub mod memory;
pub mod topology;
