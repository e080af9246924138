//! This machine: its system calls, and the unsafe code that a diagnosis or a trial needs. Readers of /proc, /sys and cgroup
//! files take a root folder and parse bytes.

pub mod alarm;
pub mod cgroup;
pub mod clock;
pub mod confined;
pub mod cycles;
pub mod elf;
pub mod facts;
pub mod file;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod inside;
pub mod installed;
pub mod keeper;
pub mod launch;
pub mod libc_malloc;
pub mod limits;
pub mod link_map;
pub mod loader;
pub mod maps;
pub mod memory;
pub mod own;
pub mod perf;
pub mod perf_trial;
pub mod place;
pub mod proc;
pub mod program;
pub mod rights;
pub mod site_packages;
pub mod smaps;
pub mod threads;
pub mod topology;
pub mod tracefs;
pub mod tunables;
pub mod uprobe;
pub mod worker;
