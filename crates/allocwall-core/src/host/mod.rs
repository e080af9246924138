//! The only place with system calls and unsafe code. Readers of /proc, /sys and cgroup files take a root and parse bytes.

pub mod alarm;
pub mod cgroup;
pub mod clock;
pub mod elf;
pub mod facts;
pub mod file;
pub mod inside;
pub mod installed;
pub mod keeper;
pub mod launch;
pub mod libc_malloc;
pub mod limits;
pub mod loader;
pub mod maps;
pub mod memory;
pub mod perf;
pub mod perf_trial;
pub mod place;
pub mod proc;
pub mod program;
pub mod rights;
pub mod secure;
pub mod threads;
pub mod topology;
pub mod tracefs;
pub mod tunables;
