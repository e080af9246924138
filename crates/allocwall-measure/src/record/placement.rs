//! On which NUMA nodes the memory of the target's busiest processes is, at the end of the window.
//!
//! A thread of its own reads it: the kernel waits for the map lock of the process, for any time.

use super::attach::Attached;
use super::bills;
use crate::ticks::{SMAPS_LIMIT, ThreadClock};
use allocwall_host::numa_maps;
use allocwall_host::proc::ProcFs;
use allocwall_host::rights::run_as_root;
use allocwall_host::worker::Worker;
use allocwall_model::catalogue::advice::Advice;
use allocwall_model::placement::{MOST_PLACED, NodeCpus, NodePages, Placed, Placement};
use allocwall_model::recording::{Probe, ProbeName, ProbeState};
use allocwall_model::units::{Absence, Measured, Reason};
use std::cmp::Reverse;
use std::time::{Duration, Instant};

/// Time limit of all processes together.
const TIME: Duration = Duration::from_millis(300);

/// A placement that is being read.
pub struct Placing {
    thread: Measured<Worker<Measured<Placement>>>,
    /// Until when the report waits.
    until: Instant,
}

impl Placing {
    /// `pids`: the processes that live at the end of the window. `threads`: their CPU time.
    pub fn start(target: &Attached, pids: &[i32], threads: &ThreadClock) -> Placing {
        let mut busiest = pids.to_vec();
        // Of equally busy ones, the first stays the first, as in the report.
        busiest.sort_by_cached_key(|pid| Reverse(threads.cpu_ns(*pid)));
        let proc = target.proc.clone();
        let stays = target.stays();
        let thread = target.nodes.clone().and_then(several).map(|nodes| {
            let work = move || of(&proc, nodes, &busiest, stays, Instant::now() + TIME);
            Worker::start("reads the nodes of the pages", work)
        });
        Placing { thread, until: Instant::now() + bills::PATIENCE }
    }

    pub fn finish(self) -> Measured<Placement> {
        bills::await_until(self.thread?, self.until, "the nodes of the resident memory")?
    }
}

/// On one node, all memory is on the node of all CPUs, and the page tables need not be walked.
fn several(nodes: Vec<NodeCpus>) -> Measured<Vec<NodeCpus>> {
    match nodes.len() > 1 {
        true => Ok(nodes),
        false => Err(Absence::new(Reason::NotApplicable, "the machine has one NUMA node")),
    }
}

/// `stays`: the processes still run when the report is read.
fn of(
    proc: &ProcFs,
    nodes: Vec<NodeCpus>,
    busiest: &[i32],
    stays: bool,
    until: Instant,
) -> Measured<Placement> {
    let mut placement = Placement { nodes, processes: Vec::new(), unread: None };
    for &pid in busiest.iter().take(MOST_PLACED) {
        match pages(proc, pid, stays, until) {
            Ok(nodes) => placement.processes.push(Placed { pid, nodes }),
            // It ended in the meantime.
            Err(absence) if absence.reason == Reason::Vanished => {}
            Err(absence) => _ = placement.unread.get_or_insert(absence),
        }
    }
    let Placement { processes, unread, .. } = &placement;
    if processes.iter().any(|process| !process.nodes.is_empty()) {
        return Ok(placement);
    }
    Err(match unread {
        Some(absence) => absence.clone(),
        None if processes.is_empty() => {
            Absence::new(Reason::Vanished, "the target ended before the nodes of its pages were read")
                .mend("diagnose a target that runs longer than the window")
        }
        None => Absence::new(Reason::TooLittle, "no page of the target is resident"),
    })
}

fn pages(proc: &ProcFs, pid: i32, stays: bool, until: Instant) -> Measured<Vec<NodePages>> {
    let resident = proc.process_stat(pid)?.resident_pages.saturating_mul(proc.page_bytes());
    if resident > SMAPS_LIMIT {
        let detail = format!(
            "process {pid} has more than {} GiB of resident memory: walking its page tables would stall it",
            SMAPS_LIMIT >> 30
        );
        let advice = match stays {
            true => Advice::command(format!("numastat -p {pid}")),
            false => Advice::text("read it with numastat while the program runs"),
        };
        return Err(Absence::new(Reason::TooCostly, detail).mend(advice.note("when a stall is acceptable")));
    }
    if Instant::now() > until {
        let detail = format!("the pages of all processes could not be read within {} ms", TIME.as_millis());
        return Err(Absence::new(Reason::TooCostly, detail));
    }
    numa_maps::of(proc, pid, until).map_err(|absence| match absence.reason {
        Reason::NotPermitted => {
            absence.mend_if_none([run_as_root(), Advice::text("run as the owner of the process")])
        }
        _ => absence,
    })
}

/// None if everything was read, and on a machine with one node.
pub fn probe(placement: &Measured<Placement>) -> Option<Probe> {
    let state = match placement {
        Ok(placement) => ProbeState::Partial(placement.unread.clone()?),
        Err(absence) if absence.reason == Reason::NotApplicable => return None,
        // The end of the target is reported once, not for each of its figures.
        Err(absence) if absence.reason == Reason::Vanished => return None,
        Err(absence) => ProbeState::Absent(absence.clone()),
    };
    Some(Probe::new(ProbeName::Numa, state))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::sync_channel;

    const HALVES: &str = "7f00 default anon=3 N0=1 N1=2 kernelpagesize_kB=4\n";

    struct Tree(tempfile::TempDir);

    impl Tree {
        fn new() -> Tree {
            Tree(tempfile::tempdir().unwrap())
        }

        fn process(&self, pid: i32, resident_pages: u64, numa_maps: &str) {
            let folder = self.0.path().join(pid.to_string());
            std::fs::create_dir_all(&folder).unwrap();
            let stat = format!(
                "{pid} (x) S 1 1 1 0 -1 0 1 0 1 0 1 1 0 0 20 0 1 0 9 4096 {resident_pages} 3 1 1 0 0 0 0 0 0 0 0 0 0 17 1 0\n"
            );
            std::fs::write(folder.join("stat"), stat).unwrap();
            std::fs::write(folder.join("numa_maps"), numa_maps).unwrap();
        }

        fn read(&self, nodes: u32, pids: &[i32], patience: Duration) -> Measured<Placement> {
            let nodes = (0..nodes).map(|node| NodeCpus { node, cpus: vec![node as u16] }).collect();
            let until = Instant::now() + patience;
            of(&ProcFs::at(self.0.path()), several(nodes)?, pids, true, until)
        }
    }

    const LONG: Duration = Duration::from_secs(600);

    #[test]
    fn two_nodes_are_read_and_one_is_not() {
        let tree = Tree::new();
        tree.process(7, 3, HALVES);
        let placement = tree.read(2, &[7], LONG).unwrap();
        let bytes: Vec<u64> = placement.processes[0].nodes.iter().map(NodePages::bytes).collect();
        assert_eq!((placement.processes[0].pid, &bytes[..]), (7, &[4096, 8192][..]));
        assert!(probe(&Ok(placement)).is_none());
        let one = tree.read(1, &[7], LONG);
        assert_eq!(one.as_ref().unwrap_err().reason, Reason::NotApplicable);
        assert!(probe(&one).is_none());
    }

    #[test]
    fn what_was_not_read_has_a_reason_and_takes_nothing_from_the_others() {
        let tree = Tree::new();
        let pages_of_limit = SMAPS_LIMIT / ProcFs::live().page_bytes();
        tree.process(7, pages_of_limit + 1, HALVES);
        tree.process(8, pages_of_limit, HALVES);
        let placement = tree.read(2, &[7, 8, 9], LONG).unwrap();
        assert_eq!(placement.processes.iter().map(|p| p.pid).collect::<Vec<_>>(), [8]);
        assert_eq!(placement.unread.as_ref().unwrap().reason, Reason::TooCostly);
        assert!(matches!(probe(&Ok(placement)).unwrap().state, ProbeState::Partial(_)));
        // The large one alone.
        let large = tree.read(2, &[7], LONG);
        assert_eq!(large.as_ref().unwrap_err().reason, Reason::TooCostly);
        assert!(matches!(probe(&large).unwrap().state, ProbeState::Absent(_)));
        tree.process(10, 3, "7f00 default N0=99999999999999999999 kernelpagesize_kB=4\n");
        assert_eq!(tree.read(2, &[10], LONG).unwrap_err().reason, Reason::Unparsable);
        let gone = tree.read(2, &[9], LONG);
        assert!(gone.is_err() && probe(&gone).is_none(), "{gone:?}");
        assert_eq!(tree.read(2, &[], LONG).unwrap_err().reason, Reason::Vanished);
    }

    #[test]
    fn only_a_process_that_stays_is_named_in_a_command() {
        let tree = Tree::new();
        tree.process(7, SMAPS_LIMIT / ProcFs::live().page_bytes() + 1, HALVES);
        let advice = |stays| {
            let read = pages(&ProcFs::at(tree.0.path()), 7, stays, Instant::now() + LONG);
            read.unwrap_err().mend.remove(0)
        };
        assert_eq!(advice(true).line(), "$ numastat -p 7  # when a stall is acceptable");
        let ended = advice(false);
        assert!(!ended.is_command && !ended.how.contains('7') && !ended.how.contains("PID"), "{ended}");
    }

    #[test]
    fn a_process_without_a_resident_page_is_recorded_as_such() {
        let tree = Tree::new();
        tree.process(7, 0, "7f00 default\n");
        tree.process(8, 3, HALVES);
        let placement = tree.read(2, &[7, 8], LONG).unwrap();
        let nodes: Vec<(i32, usize)> =
            placement.processes.iter().map(|process| (process.pid, process.nodes.len())).collect();
        assert_eq!((nodes, &placement.unread), (vec![(7, 0), (8, 2)], &None));
        // Alone, it gives no placement, and the report shows the reason.
        let none = tree.read(2, &[7], LONG);
        assert_eq!(none.as_ref().unwrap_err().reason, Reason::TooLittle);
        assert!(matches!(probe(&none).unwrap().state, ProbeState::Absent(_)));
    }

    #[test]
    fn the_report_does_not_wait_for_a_lock_that_is_not_released() {
        let (release, lock) = sync_channel::<()>(0);
        let waits = Worker::start("waits", move || {
            let _ = lock.recv();
            Err(several(Vec::new()).unwrap_err())
        });
        let placement = Placing { thread: Ok(waits), until: Instant::now() }.finish();
        assert_eq!(placement.as_ref().unwrap_err().reason, Reason::TooCostly);
        assert!(matches!(probe(&placement).unwrap().state, ProbeState::Absent(_)));
        drop(release);
        // The near twin: one that is released.
        let tree = Tree::new();
        tree.process(7, 3, HALVES);
        let answers = Worker::start("answers", move || tree.read(2, &[7], LONG));
        let placement = Placing { thread: Ok(answers), until: Instant::now() + LONG }.finish();
        assert_eq!(placement.unwrap().processes.len(), 1);
        // Without a thread, there is the reason.
        let one = Placing { thread: Err(several(Vec::new()).unwrap_err()), until: Instant::now() };
        assert_eq!(one.finish().unwrap_err().reason, Reason::NotApplicable);
    }

    #[test]
    fn the_number_of_processes_and_the_time_are_limited() {
        let tree = Tree::new();
        let pids: Vec<i32> = (1..).take(MOST_PLACED + 2).collect();
        pids.iter().for_each(|&pid| tree.process(pid, 3, HALVES));
        let placement = tree.read(2, &pids, LONG).unwrap();
        let read: Vec<i32> = placement.processes.iter().map(|p| p.pid).collect();
        assert_eq!(read, pids[..MOST_PLACED]);
        assert!(placement.is_bounded());
        let past = Instant::now() - Duration::from_millis(1);
        let late = of(&ProcFs::at(tree.0.path()), placement.nodes, &pids, true, past);
        assert_eq!(late.unwrap_err().reason, Reason::TooCostly);
    }
}
