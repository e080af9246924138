//! Plain values that describe a machine and a process. The readers in `allocwall-host` fill them in; a recording contains them.

use crate::units::Measured;
use serde::{Deserialize, Serialize};

/// Facts about the machine that the diagnosis uses.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HostFacts {
    pub kernel_release: String,
    pub architecture: String,
    pub cpu_model: String,
    pub online_cpus: u32,
    pub numa_nodes: u32,
    /// 0 if /proc/meminfo could not be read.
    pub memory_bytes: u64,
    pub page_bytes: u64,
    /// Name of the hypervisor; None on bare metal, according to CPUID.
    pub hypervisor: Option<String>,
    /// The guest reports free pages to the host, and the host can take them back.
    pub free_page_reporting: Measured<bool>,
    pub thp_enabled: Measured<String>,
    pub thp_defrag: Measured<String>,
    pub hugepages_total: u64,
    pub hugepages_free: u64,
    pub cgroup_version: Measured<u8>,
    /// Name of the container technology in which allocwall runs, if any.
    pub container: Option<String>,
    pub euid: u32,
    pub perf_event_paranoid: Measured<i32>,
    pub kptr_restrict: Measured<i32>,
    pub pmu: Measured<()>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Smaps {
    pub rss: u64,
    pub pss: u64,
    pub anonymous: u64,
    pub lazy_free: u64,
    pub anon_huge: u64,
    pub hugetlb: u64,
    pub swap: u64,
}

/// What the readings of smaps_rollup took in a window. Calls of the target that map or unmap memory may wait for a
/// reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SmapsCost {
    /// Readings of all processes of the target.
    pub reads: u64,
    /// Wall-clock time of all of them.
    pub ns: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CgroupTick {
    pub periods: u64,
    pub throttled_periods: u64,
    /// Sum over the run queues of all CPUs, as the kernel counts it.
    pub throttled_ns: u64,
    /// CPU quota, in CPUs; None without a limit.
    pub quota_cpus: Option<f64>,
    pub memory: Option<u64>,
    pub memory_limit: Option<u64>,
}

/// Counters of the whole machine, cumulative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HostTick {
    pub busy_ns: u64,
    pub idle_ns: u64,
    pub iowait_ns: u64,
    pub steal_ns: u64,
    /// PSI `some` totals; None if PSI is off.
    pub psi_cpu_us: Option<u64>,
    pub psi_memory_us: Option<u64>,
    pub psi_io_us: Option<u64>,
    pub direct_reclaim_pages: Option<u64>,
    pub compact_stalls: Option<u64>,
    pub thp_fault_alloc: Option<u64>,
    pub thp_fault_fallback: Option<u64>,
    /// New pages on another node than the CPU that requested them, and on the same node.
    pub numa_remote: Option<u64>,
    pub numa_local: Option<u64>,
    /// Automatic NUMA balancing: pages that it moved to another node, and faults by which it found them.
    pub numa_moved: Option<u64>,
    pub numa_hint_faults: Option<u64>,
}

/// The bracketed part of a sysfs choice: `always [madvise] never`.
pub fn chosen(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once('[')?;
    rest.split_once(']').map(|(word, _)| word)
}

#[cfg(test)]
mod tests {
    use super::chosen;

    #[test]
    fn the_choice_is_in_brackets() {
        assert_eq!(chosen("always [madvise] never\n"), Some("madvise"));
        assert_eq!(chosen("always madvise never\n"), None);
        assert_eq!(chosen("[x"), None);
    }
}
