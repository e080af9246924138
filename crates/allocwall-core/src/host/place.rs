//! Where this process's threads run and where its memory comes from: set before an exec, and inherited across it.

use rustix::thread::{CpuSet, sched_setaffinity};
use std::io;

/// CPUs that the calling thread may run on from now on; a process that has one thread is placed whole.
///
/// # Errors
/// A CPU beyond what a set holds, none at all, or the kernel's own answer (EINVAL: none of them is there or allowed).
pub fn set_affinity(cpus: &[u32]) -> io::Result<()> {
    let mut set = CpuSet::new();
    for &cpu in cpus {
        if cpu as usize >= CpuSet::MAX_CPU {
            let text = format!("CPU {cpu} is beyond the {} that a CPU set holds", CpuSet::MAX_CPU);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        set.set(cpu as usize);
    }
    Ok(sched_setaffinity(None, &set)?)
}

/// Most nodes that a policy is made for: MAX_NUMNODES of the largest configuration (CONFIG_NODES_SHIFT = 10).
const MOST_NODES: u32 = 1024;
const WORD_BITS: u32 = libc::c_ulong::BITS;

/// Memory of the calling thread, and of what it starts, from these nodes alone (MPOL_BIND, set_mempolicy(2)).
///
/// # Errors
/// A node beyond what any kernel has, or the kernel's own answer: ENOSYS on one without NUMA, EINVAL for nodes that are
/// not there or not allowed.
pub fn bind_memory(nodes: &[u32]) -> io::Result<()> {
    let mut mask = [0 as libc::c_ulong; (MOST_NODES / WORD_BITS) as usize];
    for &node in nodes {
        if node >= MOST_NODES {
            let text = format!("no kernel has a node {node}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        mask[(node / WORD_BITS) as usize] |= 1 << (node % WORD_BITS);
    }
    // The kernel takes one bit less than it is told (get_nodes in mm/mempolicy.c).
    let bits = libc::c_ulong::from(MOST_NODES) + 1;
    // SAFETY: the mask is live and holds MOST_NODES bits, all that the kernel reads of it; nothing is written.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_set_mempolicy,
            libc::c_long::from(libc::MPOL_BIND),
            mask.as_ptr(),
            bits,
        )
    };
    match answer {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line of this thread's status.
    fn status(key: &str) -> String {
        let text = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(key));
        line.unwrap_or_default().trim_start_matches(':').trim().to_owned()
    }

    #[test]
    fn the_kernel_says_where_a_thread_may_run() {
        let allowed = crate::host::topology::allowed_cpus().unwrap();
        let last = *allowed.last().unwrap();
        // In a thread of its own, which takes its place along when it ends.
        std::thread::spawn(move || {
            set_affinity(&[last]).unwrap();
            assert_eq!(status("Cpus_allowed_list"), last.to_string());
            assert!(set_affinity(&[]).is_err());
            assert!(set_affinity(&[u32::MAX]).is_err());
            assert_eq!(status("Cpus_allowed_list"), last.to_string());
        })
        .join()
        .unwrap();
    }

    #[test]
    fn memory_comes_from_the_nodes_that_are_there_and_no_others() {
        std::thread::spawn(|| {
            match bind_memory(&[0]) {
                Ok(()) => {
                    let text = std::fs::read_to_string("/proc/thread-self/numa_maps").unwrap();
                    assert!(text.contains(" bind:0 "), "{text}");
                }
                Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => {
                    return println!("skipped: this kernel has no NUMA");
                }
                Err(error) => panic!("{error}"),
            }
            assert!(bind_memory(&[1023]).is_err());
            assert!(bind_memory(&[u32::MAX]).is_err());
        })
        .join()
        .unwrap();
    }
}
