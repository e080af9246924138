//! The only place with system calls and unsafe code. Readers of /proc, /sys and cgroup files take a root and parse bytes.

pub mod elf;
pub mod maps;
