//! Samples the memory of a process tree over time, from outside.
//!
//! Resident memory comes from `status`, which reads a few counters. PSS and huge pages need `smaps_rollup`, a walk over the page
//! tables under the address-space lock. The target can't map memory during a walk, so walks take a bounded share of the time.

use allocwall_host::clock::monotonic_ns;
use allocwall_host::proc::ProcFs;
use allocwall_model::units::{Absence, Measured, Reason};
use serde::{Deserialize, Serialize};
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

const FIRST_NS: u64 = 20_000_000;
const LONGEST_NS: u64 = 250_000_000;
/// Samples take at most 1/SHARE of the time.
const SHARE: u64 = 50;
/// Walks hold the address-space lock, so they take at most 1/WALK_SHARE of the time. A walk is 30 times as fast for a program on
/// huge pages; the time that other programs lose must not look like a gain of huge pages.
const WALK_SHARE: u64 = 200;
/// Assumed cost before the first walk: six times the cost for touched anonymous memory in 4 KiB pages (4,200 ns/MiB, Linux 6.18
/// on a virtual machine with 2 CPUs; 140 on huge pages), because other machines and pages may be slower.
const GUESSED_NS_PER_MIB: u64 = 25_000;
/// Fixed cost of a walk: open, read, close, and the mappings themselves.
const WALK_NS: u64 = 100_000;

/// One sample of the tree: sums over its processes. If n processes share a page, `rss` counts it n times and `pss` once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemorySample {
    /// Since the command's start.
    pub at_ns: u64,
    pub processes: u32,
    pub rss_bytes: u64,
    pub anonymous_bytes: u64,
    /// From walks of all processes, or why there were none.
    pub walked: Measured<Walked>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Walked {
    pub pss_bytes: u64,
    pub huge_bytes: u64,
    /// Freed by the program (MADV_FREE), but resident until the kernel needs it.
    pub lazy_free_bytes: u64,
}

/// The samples, and the kernel's peak of a single process.
#[derive(Clone, Debug, Default)]
pub struct Series {
    pub samples: Vec<MemorySample>,
    /// Largest sampled VmHWM of one process.
    pub largest_peak_bytes: u64,
}

/// The sampling thread.
pub struct Watch {
    series: Arc<Mutex<Series>>,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// The processes whose memory is sampled.
#[derive(Clone, Copy, Debug)]
pub struct Tree {
    /// Ancestor of all processes of the tree; not part of the tree.
    pub keeper: i32,
    /// The command itself. When it has ended, sampling ends.
    pub main: i32,
    pub start_ns: u64,
}

impl Watch {
    /// # Errors
    /// No thread can be started.
    pub fn start(tree: Tree) -> io::Result<Watch> {
        let series = Arc::new(Mutex::new(Series::default()));
        let (stop, stopped) = channel();
        let shared = Arc::clone(&series);
        let thread = Builder::new().spawn(move || sample_until(&stopped, tree, &shared))?;
        Ok(Watch { series, stop: Some(stop), thread: Some(thread) })
    }

    pub fn so_far(&self) -> Series {
        lock(&self.series).clone()
    }

    pub fn stop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop();
    }
}

fn lock(series: &Mutex<Series>) -> MutexGuard<'_, Series> {
    series.lock().unwrap_or_else(PoisonError::into_inner)
}

fn sample_until(stopped: &Receiver<()>, tree: Tree, series: &Mutex<Series>) {
    let proc = ProcFs::live();
    let mut pace = Pace::new();
    let mut wait = FIRST_NS;
    while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(Duration::from_nanos(wait)) {
        let begun = monotonic_ns();
        if let Some((sample, peak)) = sample(&proc, tree, &mut pace) {
            let mut series = lock(series);
            series.largest_peak_bytes = series.largest_peak_bytes.max(peak);
            series.samples.push(sample);
        }
        wait = pace.next_ns(monotonic_ns() - begun);
    }
}

/// One sample, with the largest peak of a single process. None if the command has ended.
fn sample(proc: &ProcFs, tree: Tree, pace: &mut Pace) -> Option<(MemorySample, u64)> {
    let at = monotonic_ns();
    let mut pids = proc.descendants(tree.keeper).unwrap_or_default();
    let mut found = MemorySample {
        at_ns: at.saturating_sub(tree.start_ns),
        processes: 0,
        rss_bytes: 0,
        anonymous_bytes: 0,
        walked: Ok(Walked::default()),
    };
    let mut peak = 0;
    // A process that ended since it was listed, or a zombie, has no memory.
    pids.retain(|&pid| {
        let Some((status, rss)) = proc.status(pid).ok().and_then(|s| Some((s.clone(), s.vm_rss?))) else {
            return false;
        };
        found.processes += 1;
        // The resident set does not include reserved huge pages.
        found.rss_bytes += rss + status.hugetlb.unwrap_or(0);
        found.anonymous_bytes += status.rss_anon.unwrap_or(0);
        peak = peak.max(status.vm_hwm.unwrap_or(0));
        true
    });
    found.walked = walk(proc, &pids, found.rss_bytes, found.at_ns, pace);
    // Checked last: values that were read while the command was ending are not used.
    let alive = proc.process_stat(tree.main).is_ok_and(|stat| stat.ppid == tree.keeper && !stat.ended());
    (alive && found.processes > 0).then_some((found, peak))
}

/// Walks all processes, or none: a sum over some of them would be wrong.
fn walk(proc: &ProcFs, pids: &[i32], rss_bytes: u64, elapsed_ns: u64, pace: &mut Pace) -> Measured<Walked> {
    if !pace.affords(rss_bytes, pids.len() as u64, elapsed_ns) {
        return Err(Absence::new(
            Reason::TooCostly,
            format!(
                "reading the PSS of {} MiB in {} processes would hold address-space locks for more than 1/{WALK_SHARE} of the time",
                rss_bytes >> 20,
                pids.len()
            ),
        ));
    }
    let begun = monotonic_ns();
    let mut sum = Walked::default();
    let mut trouble = None;
    for &pid in pids {
        match proc.smaps_rollup(pid) {
            Ok(part) => {
                sum.pss_bytes += part.pss + part.hugetlb;
                sum.huge_bytes += part.anon_huge + part.hugetlb;
                sum.lazy_free_bytes += part.lazy_free;
            }
            Err(absence) if absence.reason == Reason::Vanished => {}
            Err(absence) => {
                trouble = Some(absence);
                break;
            }
        }
    }
    pace.walked(monotonic_ns() - begun, rss_bytes);
    trouble.map_or(Ok(sum), Err)
}

/// The interval between samples, and the budget for walks.
struct Pace {
    interval_ns: u64,
    walked_ns: u64,
    /// Cost per mebibyte in the last walk.
    ns_per_mib: u64,
}

impl Pace {
    fn new() -> Pace {
        Pace { interval_ns: FIRST_NS, walked_ns: 0, ns_per_mib: GUESSED_NS_PER_MIB }
    }

    fn affords(&self, rss_bytes: u64, processes: u64, elapsed_ns: u64) -> bool {
        let expected = (rss_bytes >> 20) * self.ns_per_mib + processes * WALK_NS;
        (self.walked_ns + expected) * WALK_SHARE <= elapsed_ns
    }

    fn walked(&mut self, ns: u64, rss_bytes: u64) {
        self.walked_ns += ns;
        // A walk of little memory does not show the cost per mebibyte.
        if rss_bytes >= 16 << 20 {
            self.ns_per_mib = ns / (rss_bytes >> 20);
        }
    }

    /// Pause from the end of a sample that took `took_ns` to the start of the next.
    fn next_ns(&mut self, took_ns: u64) -> u64 {
        self.interval_ns = (self.interval_ns + self.interval_ns / 4).min(LONGEST_NS);
        self.interval_ns.max(took_ns * SHARE)
    }
}

/// Peaks and final values of a series, or why there are none.
pub struct Summary {
    pub peak_rss_bytes: Measured<u64>,
    pub peak_pss_bytes: Measured<u64>,
    pub final_rss_bytes: Measured<u64>,
    pub final_pss_bytes: Measured<u64>,
    pub final_lazy_free_bytes: Measured<u64>,
}

impl Series {
    /// `largest_process` is the peak of the largest process from wait4, if it is above that of the keeper itself.
    pub fn summary(&self, largest_process: Measured<u64>) -> Summary {
        let unseen = || {
            Absence::new(
                Reason::TooLittle,
                format!("the command ended before the first memory sample at {} ms", FIRST_NS / 1_000_000),
            )
        };
        let seen = self.samples.iter().map(|sample| sample.rss_bytes).max();
        // The sum over the tree may have been higher between two samples. The kernel's peak of one process is exact.
        let kept = largest_process.as_ref().ok().copied().into_iter();
        let peak =
            kept.chain(seen).chain((self.largest_peak_bytes > 0).then_some(self.largest_peak_bytes)).max();
        // Use the reason of the last sample.
        let not_walked = || {
            let last = self.samples.last().and_then(|sample| sample.walked.clone().err());
            last.unwrap_or_else(unseen)
        };
        let walked = || self.samples.iter().filter_map(|sample| sample.walked.as_ref().ok());
        let last_walked = || walked().next_back().ok_or_else(not_walked);
        Summary {
            peak_rss_bytes: peak.ok_or_else(|| largest_process.err().unwrap_or_else(unseen)),
            peak_pss_bytes: walked().map(|walked| walked.pss_bytes).max().ok_or_else(not_walked),
            final_rss_bytes: self.samples.last().map(|sample| sample.rss_bytes).ok_or_else(unseen),
            final_pss_bytes: last_walked().map(|walked| walked.pss_bytes),
            final_lazy_free_bytes: last_walked().map(|walked| walked.lazy_free_bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn sample_at(ms: u64, rss_bytes: u64, pss_bytes: Measured<u64>) -> MemorySample {
        MemorySample {
            at_ns: ms * 1_000_000,
            processes: 1,
            rss_bytes,
            anonymous_bytes: 0,
            walked: pss_bytes.map(|pss_bytes| Walked { pss_bytes, ..Walked::default() }),
        }
    }

    fn too_costly() -> Absence {
        Absence::new(Reason::TooCostly, "x")
    }

    fn too_little() -> Absence {
        Absence::new(Reason::TooLittle, "x")
    }

    #[test]
    fn walks_take_at_most_their_share() {
        // A machine on which a walk costs 40 µs a mebibyte, and a target that grows.
        let mut pace = Pace::new();
        let (mut now, mut spent, mut walks) = (0, 0, 0);
        for step in 0..2000u64 {
            now += 20_000_000;
            let rss = step.min(1000) * MIB;
            if pace.affords(rss, 1, now) {
                let took = 40_000 * (rss / MIB) + 50_000;
                pace.walked(took, rss);
                spent += took;
                walks += 1;
            }
            // One walk may cost more than was expected.
            assert!(spent <= now / WALK_SHARE + 41_000 * 1000, "{spent} of {now}");
        }
        assert!(walks > 5);
        assert!(spent <= now / WALK_SHARE + 41_000 * 1000, "{spent} of {now}");
    }

    #[test]
    fn little_memory_is_walked_soon_and_much_memory_later() {
        let pace = Pace::new();
        assert!(pace.affords(8 * MIB, 1, 5 * FIRST_NS));
        assert!(!pace.affords(1024 * MIB, 1, FIRST_NS));
        assert!(!pace.affords(8 * MIB, 50, 5 * FIRST_NS));
        assert!(pace.affords(1024 * MIB, 1, 60_000_000_000));
    }

    #[test]
    fn samples_become_rarer_to_a_bound_and_expensive_ones_rarer_still() {
        let mut pace = Pace::new();
        let first = pace.next_ns(1000);
        assert!((FIRST_NS..2 * FIRST_NS).contains(&first));
        for _ in 0..50 {
            pace.next_ns(1000);
        }
        assert_eq!(pace.next_ns(1000), LONGEST_NS);
        assert_eq!(pace.next_ns(LONGEST_NS), LONGEST_NS * SHARE);
    }

    #[test]
    fn peaks_and_ends() {
        let series = Series {
            samples: vec![
                sample_at(20, 100, Ok(90)),
                sample_at(45, 300, Ok(250)),
                sample_at(80, 200, Err(too_costly())),
            ],
            largest_peak_bytes: 310,
        };
        let summary = series.summary(Ok(320));
        assert_eq!(summary.peak_rss_bytes, Ok(320));
        assert_eq!(summary.peak_pss_bytes, Ok(250));
        assert_eq!((summary.final_rss_bytes, summary.final_pss_bytes), (Ok(200), Ok(250)));
        assert_eq!(summary.final_lazy_free_bytes, Ok(0));
        let walked = Walked { pss_bytes: 180, lazy_free_bytes: 70, ..Walked::default() };
        let mut later = series.clone();
        later.samples.push(MemorySample { walked: Ok(walked), ..sample_at(90, 190, Ok(0)) });
        assert_eq!(later.summary(Ok(320)).final_lazy_free_bytes, Ok(70));
        // The kernel's peak is that of one process; the sum of several may be higher.
        assert_eq!(series.summary(Ok(120)).peak_rss_bytes, Ok(310));
        assert_eq!(series.summary(Err(too_little())).peak_rss_bytes, Ok(310));
    }

    #[test]
    fn a_missing_value_has_a_reason() {
        let nothing = Series::default().summary(Err(too_little()));
        for absent in
            [nothing.peak_rss_bytes, nothing.peak_pss_bytes, nothing.final_rss_bytes, nothing.final_pss_bytes]
        {
            assert_eq!(absent.unwrap_err().reason, Reason::TooLittle);
        }
        let unwalked = Series { samples: vec![sample_at(20, 100, Err(too_costly()))], largest_peak_bytes: 0 };
        let summary = unwalked.summary(Ok(100));
        assert_eq!(summary.final_rss_bytes, Ok(100));
        assert_eq!(summary.peak_pss_bytes.unwrap_err().reason, Reason::TooCostly);
        assert_eq!(summary.final_pss_bytes.unwrap_err().reason, Reason::TooCostly);
        assert_eq!(summary.final_lazy_free_bytes.unwrap_err().reason, Reason::TooCostly);
    }
}
