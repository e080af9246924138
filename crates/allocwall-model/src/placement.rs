//! On which NUMA nodes the memory of the target's processes is, and which CPUs each node has.

use crate::units::Absence;
use serde::{Deserialize, Serialize};

/// The most processes whose pages are read.
pub const MOST_PLACED: usize = 8;
/// MAX_NUMNODES of the largest configuration (CONFIG_NODES_SHIFT 10).
pub const MOST_NODES: usize = 1024;
/// Above NR_CPUS of the largest configuration, 8,192.
pub const MOST_CPUS: usize = 1 << 16;

/// At the end of the window.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// By number, which may have gaps. Some nodes have only CPUs, others only memory.
    #[serde(deserialize_with = "crate::room::charged")]
    pub nodes: Vec<NodeCpus>,
    /// The processes whose pages were read, the busiest first. At least one has resident pages.
    #[serde(deserialize_with = "crate::room::charged")]
    pub processes: Vec<Placed>,
    /// Why the pages of another process were not read.
    pub unread: Option<Absence>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeCpus {
    pub node: u32,
    /// Online CPUs. Empty for a node with memory only.
    #[serde(deserialize_with = "crate::room::charged")]
    pub cpus: Vec<u16>,
}

/// The resident memory of one process by node, each node at most once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placed {
    pub pid: i32,
    /// Empty if no page was resident.
    #[serde(deserialize_with = "crate::room::charged")]
    pub nodes: Vec<NodePages>,
}

/// Resident bytes on one node, by the kind of mapping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodePages {
    pub node: u32,
    /// The brk heap.
    pub heap: u64,
    /// Other mappings without a file: arenas, large blocks, stacks.
    pub anonymous: u64,
    /// Mappings with a file, or with shared memory, which the kernel shows as a file.
    pub file: u64,
}

impl NodePages {
    /// Saturates, because a recording may contain any number.
    pub fn bytes(&self) -> u64 {
        self.heap.saturating_add(self.anonymous).saturating_add(self.file)
    }
}

impl Placement {
    /// The lists are within the limits of the recorder.
    pub fn is_bounded(&self) -> bool {
        let cpus: usize = self.nodes.iter().map(|node| node.cpus.len()).sum();
        self.nodes.len() <= MOST_NODES
            && cpus <= MOST_CPUS
            && self.processes.len() <= MOST_PLACED
            && self.processes.iter().all(|process| process.nodes.len() <= MOST_NODES)
    }
}
