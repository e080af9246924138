//! /proc/PID/numa_maps: on which NUMA nodes the pages of each mapping are (numa(7)). The kernel walks the page tables
//! of the process for it, some milliseconds per gigabyte.

use crate::file::{self, number, words};
use crate::proc::ProcFs;
use crate::proc::parse::pair;
use allocwall_model::placement::{MOST_NODES, NodePages};
use allocwall_model::units::{Absence, Measured, Reason};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::time::Instant;

/// A path of PATH_MAX bytes, all of them escaped, and a field for each of 1,024 nodes.
const LONGEST_LINE: usize = 64 << 10;
/// As for maps.
const MOST_MAPPINGS: usize = 2 << 20;

/// The resident memory of a process by node, in the order of the nodes; empty if none of its pages is resident. `until`:
/// the time limit. One mapping is always read to its end, because the kernel walks it in one call.
pub fn of(proc: &ProcFs, pid: i32, until: Instant) -> Measured<Vec<NodePages>> {
    // The file of a leader that has ended is empty, although other threads still use the memory.
    let path = proc.root().join(format!("{}/numa_maps", proc.living_thread(pid)));
    let nodes = File::open(&path)
        .map_err(|error| file::absence_of(&path, &error))
        .and_then(|file| read(file, &path, until));
    match nodes {
        // The kernel shows no mapping of a process that ends. One that is swapped out has mappings without pages.
        Ok(nodes) if nodes.is_empty() && !has_memory(proc, pid) => {
            Err(Absence::new(Reason::Vanished, format!("{} shows no page: the process ends", path.display())))
        }
        Err(absence) if absence.reason == Reason::NotFound && proc.exists(pid) => Err(Absence::new(
            Reason::NotSupported,
            format!("{}: this kernel has no such file (CONFIG_NUMA)", path.display()),
        )),
        nodes => nodes,
    }
}

/// The kernel shows a size of 0 once the process has released its memory (do_task_stat, fs/proc/array.c).
fn has_memory(proc: &ProcFs, pid: i32) -> bool {
    proc.process_stat(pid).is_ok_and(|stat| stat.virtual_bytes > 0)
}

/// Reads line by line, for any number of lines. A part of the file is no result: the mappings come in order of
/// address, so a part is not a sample of the whole. `name` is used only for messages.
pub fn read(source: impl io::Read, name: &Path, until: Instant) -> Measured<Vec<NodePages>> {
    let failed = |error: io::Error| file::absence_of(name, &error);
    let too_costly = |why: &str| {
        Absence::new(Reason::TooCostly, format!("{} was read only in part: {why}", name.display()))
    };
    let mut source = BufReader::with_capacity(64 << 10, source);
    let mut nodes = BTreeMap::new();
    let mut line = Vec::new();
    for _ in 0..MOST_MAPPINGS {
        line.clear();
        io::Read::take(&mut source, LONGEST_LINE as u64).read_until(b'\n', &mut line).map_err(failed)?;
        match line.pop_if(|last| *last == b'\n') {
            None if line.is_empty() => return Ok(nodes.into_values().collect()),
            None if line.len() >= LONGEST_LINE => return Err(too_costly("it has a line that is too long")),
            _ => {}
        }
        add(&mut nodes, &line).ok_or_else(|| file::unparsable(&name.display(), &line))?;
        if Instant::now() > until {
            return Err(too_costly("its page tables took too long"));
        }
    }
    Err(too_costly("it has too many mappings"))
}

/// Adds one mapping: `7f00 default heap anon=3 dirty=3 N0=1 N1=2 kernelpagesize_kB=4`. The kernel escapes blanks and
/// `=` in file names, so no part of a name is taken for a field. None if the line does not parse.
fn add(nodes: &mut BTreeMap<u32, NodePages>, line: &[u8]) -> Option<()> {
    let mut page_kib: Option<u64> = None;
    let (mut heap, mut file) = (false, false);
    for word in words(line) {
        match pair(word, b'=') {
            Some((b"kernelpagesize_kB", size)) => page_kib = Some(number(size)?),
            Some((b"file", _)) => file = true,
            None if word == b"heap" => heap = true,
            _ => {}
        }
    }
    for word in words(line) {
        let Some((node, pages)) = word.strip_prefix(b"N").and_then(|rest| pair(rest, b'=')) else {
            continue;
        };
        // A later kernel may have other fields that start with N.
        let Some(node) = number::<u32>(node) else { continue };
        if node as usize >= MOST_NODES {
            return None;
        }
        let bytes = number::<u64>(pages)?.checked_mul(page_kib?)?.checked_mul(1024)?;
        let of_node = nodes.entry(node).or_insert(NodePages { node, ..NodePages::default() });
        let sum = match (heap, file) {
            (true, _) => &mut of_node.heap,
            (_, true) => &mut of_node.file,
            _ => &mut of_node.anonymous,
        };
        *sum = sum.checked_add(bytes)?;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    const FIXTURE: &[u8] = b"\
55d000000000 default file=/usr/bin/api mapped=3 mapmax=2 active=0 N1=3 kernelpagesize_kB=4
55d000200000 default heap anon=3 dirty=3 N0=1 N1=2 kernelpagesize_kB=4
7f0000000000 interleave:0-1 file=/dev/hugepages/N9 huge anon=1 dirty=1 N1=1 kernelpagesize_kB=2048
7f0001000000 default anon=5 dirty=5 swapcache=1 N3=5 kernelpagesize_kB=4
7ffd00000000 default stack anon=2 dirty=2 N0=2 kernelpagesize_kB=4
7ffd00030000 default
";

    fn later() -> Instant {
        Instant::now() + Duration::from_secs(600)
    }

    fn all(bytes: &[u8]) -> Measured<Vec<NodePages>> {
        read(bytes, Path::new("numa_maps"), later())
    }

    #[test]
    fn pages_are_added_by_node_and_by_kind_of_mapping() {
        let of = |node, heap, anonymous, file| NodePages { node, heap, anonymous, file };
        let nodes = all(FIXTURE).unwrap();
        assert_eq!(
            nodes,
            [of(0, 4096, 8192, 0), of(1, 8192, 0, (2 << 20) + 3 * 4096), of(3, 0, 5 * 4096, 0)]
        );
        assert_eq!(nodes[1].bytes(), (2 << 20) + 5 * 4096);
        assert_eq!(all(b"").unwrap(), []);
        // Unknown fields are no reason to refuse the known ones.
        let unknown = all(b"7f00 weighted:0 Nodes=x N=5 Nx=1 new N0=1 kernelpagesize_kB=4 later=7\n");
        assert_eq!(unknown.unwrap(), [of(0, 0, 4096, 0)]);
    }

    #[test]
    fn counts_that_cannot_be_are_refused() {
        for bad in [
            "7f00 default N0=1\n",
            "7f00 default N0=x kernelpagesize_kB=4\n",
            "7f00 default N0=1 kernelpagesize_kB=four\n",
            "7f00 default N1024=1 kernelpagesize_kB=4\n",
            "7f00 default N0=18446744073709551615 kernelpagesize_kB=4\n",
            "7f00 default N0=99999999999999999999 kernelpagesize_kB=4\n",
            "a default N0=4503599627370495 kernelpagesize_kB=4\nb default N0=1 kernelpagesize_kB=4\n",
        ] {
            assert_eq!(all(bad.as_bytes()).unwrap_err().reason, Reason::Unparsable, "{bad}");
        }
        // The largest node and the largest sum that fit.
        assert_eq!(all(b"7f00 default N1023=1 kernelpagesize_kB=4\n").unwrap()[0].node, 1023);
        assert!(all(b"7f00 default N0=4503599627370495 kernelpagesize_kB=4\n").is_ok());
    }

    #[test]
    fn long_lines_and_lost_time_leave_a_reason() {
        let mut long = b"7f00 default file=/".to_vec();
        long.resize(LONGEST_LINE - 100, b'x');
        long.extend(b" N0=1 kernelpagesize_kB=4\n");
        assert_eq!(all(&long).unwrap().len(), 1);
        let longer = [&long[..20], &[b'x'; 1 << 20][..], &long[20..]].concat();
        assert_eq!(all(&longer).unwrap_err().reason, Reason::TooCostly);
        let endless = read(io::repeat(b'x'), Path::new("numa_maps"), later());
        assert_eq!(endless.unwrap_err().reason, Reason::TooCostly);
        let late = read(FIXTURE, Path::new("numa_maps"), Instant::now() - Duration::from_millis(1));
        assert_eq!(late.unwrap_err().reason, Reason::TooCostly);
    }

    #[test]
    fn a_kernel_without_the_file_differs_from_a_process_that_ended() {
        let root = tempfile::tempdir().unwrap();
        let proc = ProcFs::at(root.path());
        let reason = || of(&proc, 7, later()).unwrap_err().reason;
        assert_eq!(reason(), Reason::NotFound);
        std::fs::create_dir(root.path().join("7")).unwrap();
        assert_eq!(reason(), Reason::NotSupported);
        let path = root.path().join("7/numa_maps");
        std::fs::write(&path, "").unwrap();
        assert_eq!(reason(), Reason::Vanished);
        std::fs::write(&path, FIXTURE).unwrap();
        assert_eq!(of(&proc, 7, later()).unwrap().len(), 3);
    }

    #[test]
    fn a_process_without_a_resident_page_differs_from_one_that_ends() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("7");
        std::fs::create_dir(&folder).unwrap();
        let stat = |state: char, virtual_bytes: u64| {
            let line = format!(
                "7 (x) {state} 1 1 1 0 -1 0 1 0 1 0 1 1 0 0 20 0 1 0 9 {virtual_bytes} 0 3 1 1 0 0 0 0 0 0 0 0 0 0 17 1 0\n"
            );
            std::fs::write(folder.join("stat"), line).unwrap();
        };
        let nodes = || of(&ProcFs::at(root.path()), 7, later());
        // Swapped out: mappings without pages.
        std::fs::write(folder.join("numa_maps"), "7ffd00030000 default\n").unwrap();
        stat('S', 4096);
        assert_eq!(nodes().unwrap(), []);
        stat('Z', 0);
        assert_eq!(nodes().unwrap_err().reason, Reason::Vanished);
        // What was read of a process that has ended since is kept.
        std::fs::write(folder.join("numa_maps"), FIXTURE).unwrap();
        assert_eq!(nodes().unwrap().len(), 3);
    }

    proptest! {
        #[test]
        fn any_cut_of_real_lines_is_survived(cut in 0..FIXTURE.len()) {
            let _ = (all(&FIXTURE[..cut]), all(&FIXTURE[cut..]));
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = all(&bytes);
        }
    }
}
