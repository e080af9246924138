//! CPUs and their relations, from sysfs (Documentation/admin-guide/cputopology.rst), and pinning of threads
//! to CPUs.

use crate::{file, place};
use allocwall_model::placement::{MOST_NODES, NodeCpus};
use allocwall_model::units::{Absence, Measured, Reason};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// Online CPUs in the order of their numbers.
    pub cpus: Vec<Cpu>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cpu {
    pub id: u32,
    /// The hardware threads of the same core, with this CPU.
    pub siblings: Measured<Vec<u32>>,
    /// The CPUs that share its level-3 cache, with this CPU; the CPUs of its package if sysfs describes no
    /// level 3.
    pub l3: Measured<Vec<u32>>,
    /// 0 on kernels without NUMA.
    pub node: u32,
}

/// How close two different CPUs are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Relation {
    Smt,
    SameL3,
    OtherL3,
    OtherNode,
}

impl Relation {
    pub const ALL: [Relation; 4] = [Relation::Smt, Relation::SameL3, Relation::OtherL3, Relation::OtherNode];

    /// As in the names of prices.
    pub fn key(self) -> &'static str {
        match self {
            Relation::Smt => "smt",
            Relation::SameL3 => "same_l3",
            Relation::OtherL3 => "other_l3",
            Relation::OtherNode => "other_node",
        }
    }
}

impl Topology {
    /// `sys` is `/sys`, or a copy of it.
    pub fn read(sys: &Path) -> Measured<Topology> {
        let cpu_root = sys.join("devices/system/cpu");
        let nodes = read_nodes(&sys.join("devices/system/node"))?;
        let cpus = online_cpus(sys)?
            .into_iter()
            .map(|id| {
                let topology = cpu_root.join(format!("cpu{id}/topology"));
                // `core_cpus_list` is the name since Linux 5.3; most kernels still have the older name.
                let siblings = read_list(&topology.join("thread_siblings_list"))
                    .or_else(|_| read_list(&topology.join("core_cpus_list")));
                let l3 = match read_l3(&cpu_root.join(format!("cpu{id}/cache"))) {
                    Ok(Some(l3)) => Ok(l3),
                    Ok(None) => read_list(&topology.join("core_siblings_list"))
                        .or_else(|_| read_list(&topology.join("package_cpus_list"))),
                    Err(absence) => Err(absence),
                };
                let node = nodes.iter().find(|(_, cpus)| cpus.contains(&id)).map_or(0, |n| n.0);
                Cpu { id, siblings, l3, node }
            })
            .collect();
        Ok(Topology { cpus })
    }

    /// None for a CPU and itself, for a CPU that is not online, and where sysfs has no data.
    pub fn relation(&self, a: u32, b: u32) -> Option<Relation> {
        let (a, b) = (self.cpu(a)?, self.cpu(b)?);
        // Both lists are symmetric, so the list of either CPU is enough.
        let together = |list: fn(&Cpu) -> &Measured<Vec<u32>>| match (list(a), list(b)) {
            (Ok(of_a), _) => Some(of_a.contains(&b.id)),
            (_, Ok(of_b)) => Some(of_b.contains(&a.id)),
            _ => None,
        };
        match () {
            () if a.id == b.id => None,
            // A core belongs to one node.
            () if a.node != b.node => Some(Relation::OtherNode),
            () if together(|cpu| &cpu.siblings)? => Some(Relation::Smt),
            () if together(|cpu| &cpu.l3)? => Some(Relation::SameL3),
            () => Some(Relation::OtherL3),
        }
    }

    /// Pairs of CPUs from `among` with this relation.
    pub fn pairs(&self, relation: Relation, among: &[u32]) -> Vec<(u32, u32)> {
        let mut pairs = Vec::new();
        for (i, &a) in among.iter().enumerate() {
            for &b in &among[i + 1..] {
                if self.relation(a, b) == Some(relation) {
                    pairs.push((a, b));
                }
            }
        }
        pairs
    }

    /// `among` in the order in which to place threads: first one CPU of every core, then the second hardware
    /// threads.
    pub fn spread(&self, among: &[u32]) -> Vec<u32> {
        let mut order = among.to_vec();
        order.sort_by_key(|&id| {
            let depth = self.cpu(id).map_or(0, |cpu| {
                cpu.siblings.iter().flatten().filter(|s| **s < id && among.contains(s)).count()
            });
            (depth, id)
        });
        order
    }

    fn cpu(&self, id: u32) -> Option<&Cpu> {
        let at = self.cpus.binary_search_by_key(&id, |cpu| cpu.id).ok()?;
        Some(&self.cpus[at])
    }
}

/// Online CPUs in the order of their numbers, which may have gaps. `sys` is `/sys`, or a copy of it.
pub fn online_cpus(sys: &Path) -> Measured<Vec<u32>> {
    let path = sys.join("devices/system/cpu/online");
    let mut cpus = read_list(&path)?;
    cpus.sort_unstable();
    cpus.dedup();
    if cpus.is_empty() {
        // At least the CPU that runs this code is online.
        Err(Absence::new(Reason::Unparsable, format!("{}: no CPU is online", path.display())))
    } else {
        Ok(cpus)
    }
}

/// Parses the kernel's list format, `0-3,8,10-11` (lib/bitmap.c, without its strides). Empty text is an empty
/// list.
pub fn parse_cpu_list(text: &str) -> Option<Vec<u32>> {
    /// The largest CONFIG_NR_CPUS is 8192; a list with a larger number, or with more, is not a CPU list.
    const MOST: u32 = 1 << 16;
    let text = text.trim();
    let mut list = Vec::new();
    for part in text.split(',').filter(|_| !text.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last >= MOST || list.len() as u32 + (last - first) >= MOST {
            return None;
        }
        list.extend(first..=last);
    }
    Some(list)
}

fn read_list(path: &Path) -> Measured<Vec<u32>> {
    let text = file::read_line(path)?;
    parse_cpu_list(&text).ok_or_else(|| file::unparsable(&path.display(), text.as_bytes()))
}

fn numbered(root: &Path, prefix: &str) -> Vec<(u32, PathBuf)> {
    let mut found: Vec<(u32, PathBuf)> = fs::read_dir(root)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let number = entry.file_name().to_str()?.strip_prefix(prefix)?.parse().ok()?;
            Some((number, entry.path()))
        })
        .collect();
    found.sort();
    found
}

/// The online CPUs of each NUMA node; a node may have only memory. Empty on kernels built without NUMA. `sys` is `/sys`,
/// or a copy of it.
pub fn nodes(sys: &Path) -> Measured<Vec<NodeCpus>> {
    let nodes = read_nodes(&sys.join("devices/system/node"))?;
    let node = |(node, cpus): (u32, Vec<u32>)| NodeCpus {
        node,
        // `parse_cpu_list` refuses larger numbers.
        cpus: cpus.into_iter().filter_map(|cpu| u16::try_from(cpu).ok()).collect(),
    };
    Ok(nodes.into_iter().take(MOST_NODES).map(node).collect())
}

/// The nodes that have memory. Empty on kernels built without NUMA. `sys` is `/sys`, or a copy of it.
pub fn memory_nodes(sys: &Path) -> Measured<Vec<u32>> {
    match read_list(&sys.join("devices/system/node/has_memory")) {
        Err(absence) if absence.reason == Reason::NotFound => Ok(Vec::new()),
        nodes => nodes,
    }
}

/// Memory of a node that the kernel can give at once: what is free, and the pages of files that were not used lately and have no changes
/// to be written. An estimate: the kernel keeps some free pages to itself, and can take other memory too. `sys` is `/sys`, or a copy of it.
pub fn available_bytes(sys: &Path, node: u32) -> Measured<u64> {
    let path = sys.join(format!("devices/system/node/node{node}/meminfo"));
    file::read(&path, |bytes| {
        // `Node 1 MemFree:        123456 kB`
        let value = |name: &[u8]| {
            file::lines(bytes).find_map(|line| {
                let mut words = file::words(line).skip(2);
                words.next().filter(|found| *found == name)?;
                file::number::<u64>(words.next()?)?.checked_mul(1024)
            })
        };
        let of_files = |name: &[u8]| value(name).unwrap_or(0);
        let unused = of_files(b"Inactive(file):");
        let unused = unused.saturating_sub(of_files(b"Dirty:")).saturating_sub(of_files(b"Writeback:"));
        let free = value(b"MemFree:").map(|free| free.saturating_add(unused));
        free.ok_or_else(|| file::unparsable(&path.display(), bytes))
    })
}

/// Empty on kernels built without NUMA, which have no such folder.
fn read_nodes(root: &Path) -> Measured<Vec<(u32, Vec<u32>)>> {
    numbered(root, "node")
        .into_iter()
        .map(|(number, path)| Ok((number, read_list(&path.join("cpulist"))?)))
        .collect()
}

fn read_l3(root: &Path) -> Measured<Option<Vec<u32>>> {
    for (_, index) in numbered(root, "index") {
        if file::read_line(&index.join("level")).is_ok_and(|level| level == "3") {
            return read_list(&index.join("shared_cpu_list")).map(Some);
        }
    }
    Ok(None)
}

/// The CPUs that this thread may use.
pub fn allowed_cpus() -> Measured<Vec<u32>> {
    place::allowed_cpus().map_err(affinity_absence)
}

/// Pins the calling thread to one CPU. Dropping it restores the previous affinity.
#[derive(Debug)]
pub struct Pinned {
    before: Vec<u32>,
}

impl Pinned {
    pub fn to(cpu: u32) -> Measured<Pinned> {
        let before = allowed_cpus()?;
        place::set_affinity(&[cpu]).map_err(affinity_absence)?;
        Ok(Pinned { before })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let _ = place::set_affinity(&self.before);
    }
}

fn affinity_absence(error: io::Error) -> Absence {
    let reason = match error.kind() {
        io::ErrorKind::PermissionDenied => Reason::NotPermitted,
        _ => Reason::NotSupported,
    };
    Absence::new(reason, format!("CPU affinity of this thread: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two sockets of two cores with two hardware threads; each socket is one L3 domain and one node.
    fn two_sockets() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        write(&root, "cpu/online", "0-7\n");
        for (node, cpus) in [(0, "0-1,4-5"), (1, "2-3,6-7")] {
            write(&root, &format!("node/node{node}/cpulist"), cpus);
        }
        for cpu in 0..8 {
            let (low, domain) = (cpu % 4, if cpu % 4 < 2 { "0-1,4-5" } else { "2-3,6-7" });
            write(
                &root,
                &format!("cpu/cpu{cpu}/topology/thread_siblings_list"),
                &format!("{low},{}", low + 4),
            );
            write(&root, &format!("cpu/cpu{cpu}/cache/index0/level"), "1");
            write(
                &root,
                &format!("cpu/cpu{cpu}/cache/index0/shared_cpu_list"),
                &format!("{low},{}", low + 4),
            );
            write(&root, &format!("cpu/cpu{cpu}/cache/index3/level"), "3");
            write(&root, &format!("cpu/cpu{cpu}/cache/index3/shared_cpu_list"), domain);
        }
        root
    }

    fn write(root: &tempfile::TempDir, path: &str, text: &str) {
        let path = root.path().join("devices/system").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn two_sockets_with_smt() {
        let root = two_sockets();
        let topology = Topology::read(root.path()).unwrap();
        let all: Vec<u32> = topology.cpus.iter().map(|cpu| cpu.id).collect();
        assert_eq!(topology.relation(0, 4), Some(Relation::Smt));
        assert_eq!(topology.relation(0, 1), Some(Relation::SameL3));
        assert_eq!(topology.relation(0, 2), Some(Relation::OtherNode));
        assert_eq!(topology.relation(3, 3), None);
        assert_eq!(topology.relation(0, 99), None);
        assert_eq!(topology.pairs(Relation::Smt, &all), [(0, 4), (1, 5), (2, 6), (3, 7)]);
        assert_eq!(topology.pairs(Relation::OtherL3, &all), []);
        assert_eq!(topology.pairs(Relation::Smt, &[0, 1, 2]), []);
        assert_eq!(topology.spread(&[0, 4, 5, 1]), [0, 1, 4, 5]);
        assert_eq!(topology.spread(&[4, 5]), [4, 5]);
    }

    #[test]
    fn two_l3_domains_in_one_node() {
        let root = two_sockets();
        write(&root, "node/node0/cpulist", "0-7");
        fs::remove_dir_all(root.path().join("devices/system/node/node1")).unwrap();
        let topology = Topology::read(root.path()).unwrap();
        assert_eq!(topology.relation(0, 2), Some(Relation::OtherL3));
        assert_eq!(topology.relation(0, 5), Some(Relation::SameL3));
    }

    #[test]
    fn without_a_described_l3_the_package_stands_for_it() {
        let root = two_sockets();
        for cpu in 0..8 {
            let base = root.path().join(format!("devices/system/cpu/cpu{cpu}"));
            fs::remove_dir_all(base.join("cache")).unwrap();
            write(&root, &format!("cpu/cpu{cpu}/topology/core_siblings_list"), "0-7");
        }
        let topology = Topology::read(root.path()).unwrap();
        assert_eq!(topology.relation(0, 1), Some(Relation::SameL3));
    }

    #[test]
    fn lists() {
        assert_eq!(parse_cpu_list("0-3,8,10-11\n"), Some(vec![0, 1, 2, 3, 8, 10, 11]));
        assert_eq!(parse_cpu_list("\n"), Some(vec![]));
        for malformed in
            ["0-", "-3", "a", "3-1", "0,,1", "0-99999999", "1 2", "0-1-2", "4294967296", "\u{1b}[31m"]
        {
            assert_eq!(parse_cpu_list(malformed), None, "{malformed:?}");
        }
        assert_eq!(parse_cpu_list("0-65535").map(|list| list.len()), Some(1 << 16));
        for too_long in ["0-65536", "0-65535,0", "0-40000,0-40000"] {
            assert_eq!(parse_cpu_list(too_long), None, "{too_long}");
        }
    }

    #[test]
    fn a_malformed_file_is_an_absence_that_names_it() {
        let root = two_sockets();
        write(&root, "cpu/cpu3/topology/thread_siblings_list", "3;7");
        write(&root, "cpu/cpu3/topology/core_cpus_list", "x");
        let topology = Topology::read(root.path()).unwrap();
        let absence = topology.cpu(3).unwrap().siblings.clone().unwrap_err();
        assert_eq!(absence.reason, Reason::Unparsable);
        assert!(absence.detail.contains("cpu3"), "{absence}");

        let empty = tempfile::tempdir().unwrap();
        assert_eq!(Topology::read(empty.path()).unwrap_err().reason, Reason::NotFound);
        write(&empty, "cpu/online", "\n");
        assert_eq!(Topology::read(empty.path()).unwrap_err().reason, Reason::Unparsable);
    }

    #[test]
    fn a_cpu_without_sibling_files_takes_nothing_from_the_others() {
        let root = two_sockets();
        let topology_of = |cpu: u32| root.path().join(format!("devices/system/cpu/cpu{cpu}/topology"));
        fs::remove_dir_all(topology_of(5)).unwrap();
        let one = Topology::read(root.path()).unwrap();
        assert_eq!(one.cpus.len(), 8);
        assert_eq!(one.relation(0, 4), Some(Relation::Smt));
        // The list of the other CPU is enough.
        assert_eq!(one.relation(5, 1), Some(Relation::Smt));
        assert_eq!(one.relation(5, 2), Some(Relation::OtherNode));
        // With both lists missing, it is unknown whether they belong to one core.
        fs::remove_dir_all(topology_of(1)).unwrap();
        let two = Topology::read(root.path()).unwrap();
        assert_eq!((two.relation(5, 1), two.relation(1, 5)), (None, None));
        assert_eq!(two.spread(&[0, 4, 1, 5]), [0, 1, 5, 4]);
    }

    #[test]
    fn holes_in_the_list_and_nodes_without_cpus() {
        let root = two_sockets();
        // CPUs 1 and 5 went offline, and a node with only memory (CXL) was added.
        write(&root, "cpu/online", "0,2-4,6-7\n");
        write(&root, "node/node0/cpulist", "0,4");
        write(&root, "node/node9/cpulist", "\n");
        let topology = Topology::read(root.path()).unwrap();
        assert_eq!(online_cpus(root.path()), Ok(vec![0, 2, 3, 4, 6, 7]));
        assert_eq!(topology.relation(0, 4), Some(Relation::Smt));
        assert_eq!(topology.relation(0, 1), None);
        assert_eq!(topology.relation(4, 6), Some(Relation::OtherNode));
        assert!(topology.cpus.iter().all(|cpu| cpu.node < 2));
        write(&root, "node/has_memory", "0-1,9\n");
        write(&root, "node/node9/meminfo", "\nNode 9 MemTotal: 9 kB\nNode 9 MemFree:        3 kB\n");
        assert_eq!(memory_nodes(root.path()), Ok(vec![0, 1, 9]));
        assert_eq!(available_bytes(root.path(), 9), Ok(3 << 10));
        // Of the pages of files, those that were not used lately and need not be written first.
        let files = "Node 9 Inactive: 90 kB\nNode 9 Inactive(file): 20 kB\nNode 9 FilePages: 50 kB\n";
        let unwritten = "Node 9 Dirty: 4 kB\nNode 9 Writeback: 1 kB\n";
        write(&root, "node/node9/meminfo", &format!("Node 9 MemFree: 3 kB\n{files}{unwritten}"));
        assert_eq!(available_bytes(root.path(), 9), Ok(18 << 10));
        write(&root, "node/node9/meminfo", &format!("Node 9 MemFree: 3 kB\n{unwritten}"));
        assert_eq!(available_bytes(root.path(), 9), Ok(3 << 10));
        write(&root, "node/node1/meminfo", "Node 1 MemFree: many kB\n");
        assert_eq!(available_bytes(root.path(), 1).unwrap_err().reason, Reason::Unparsable);
        let nodes = nodes(root.path()).unwrap();
        let with = |node: u32, cpus: &[u16]| NodeCpus { node, cpus: cpus.to_vec() };
        assert_eq!(nodes, [with(0, &[0, 4]), with(1, &[2, 3, 6, 7]), with(9, &[])]);
    }

    #[test]
    fn this_machine_is_readable() {
        let topology = Topology::read(Path::new("/sys")).unwrap();
        let allowed = allowed_cpus().unwrap();
        assert!(!allowed.is_empty());
        assert!(allowed.iter().all(|id| topology.cpus.iter().any(|cpu| cpu.id == *id)));
    }

    #[test]
    fn a_pin_is_undone() {
        let before = allowed_cpus().unwrap();
        let target = *before.last().unwrap();
        {
            let _pinned = Pinned::to(target).unwrap();
            assert_eq!(allowed_cpus().unwrap(), [target]);
        }
        assert_eq!(allowed_cpus().unwrap(), before);
        assert!(Pinned::to(u32::MAX).is_err());
    }
}
