//! Counts how many allocator calls of a running program the arm's library serves. It counts for a short time, in the run that is
//! not part of the comparison: each counted call costs a trap (see [`allocwall_host::uprobe`]).

use super::proof::{SERVED, is_file_at};
use super::run::Family;
use allocwall_host::clock::monotonic_ns;
use allocwall_host::elf::Table;
use allocwall_host::maps::{self, Mapping};
use allocwall_host::proc::ProcFs;
use allocwall_host::uprobe::{Passes, Uprobes};
use allocwall_host::worker::Worker;
use allocwall_measure::bursts;
use allocwall_model::units::{Absence, Measured, Reason};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// Times of the counts, after the start or the beginning of the load. The later ones are used if there were few calls so far, or if
/// other files served them.
const MOMENTS_MS: &[u64] = &[30, 250, 1_000, 4_000];
/// Length of one count.
const MOMENT: Duration = Duration::from_millis(100);
/// Time over which the CPU time of threads is compared, to find those that run.
const GLANCE: Duration = Duration::from_millis(10);
/// Calls that are enough for a judgement by one count.
const PLENTY: u64 = 1_000;
/// Limit of probes at a time, in whole threads, because removing a probe takes time. Enough for two threads with a library and
/// libc.
const MOST_PROBES: usize = 32;

/// Which libraries served the calls of the busiest threads.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Calls {
    /// Calls that the arm's library served.
    pub served: u64,
    /// Calls that another file with a malloc served.
    pub elsewhere: BTreeMap<PathBuf, u64>,
    pub counted_ns: u64,
    /// The largest number of threads that ran during one count, and how many of them were counted.
    pub threads: usize,
    pub counted_threads: usize,
}

impl Calls {
    pub fn all(&self) -> u64 {
        self.served + self.elsewhere.values().sum::<u64>()
    }

    /// NaN without a call.
    pub fn share(&self) -> f64 {
        self.served as f64 / self.all() as f64
    }

    fn add(&mut self, other: Calls) {
        self.served += other.served;
        for (path, count) in other.elsewhere {
            *self.elsewhere.entry(path).or_default() += count;
        }
        self.counted_ns += other.counted_ns;
        if other.threads > self.threads {
            (self.threads, self.counted_threads) = (other.threads, other.counted_threads);
        }
    }
}

/// The counting thread.
pub struct CallCounter {
    stop: Sender<()>,
    thread: Worker<Measured<Calls>>,
}

impl CallCounter {
    pub fn start(family: Family, library: &Path) -> CallCounter {
        let (stop, stopped) = channel();
        let library = library.to_owned();
        let thread = Worker::start("counts calls", move || count_until(&stopped, family, &library));
        CallCounter { stop, thread }
    }

    /// The counts. Call it when the run is over.
    pub fn finish(self) -> Measured<Calls> {
        drop(self.stop);
        self.thread.finish().and_then(|counted| counted)
    }
}

/// Waits, and returns whether the run goes on after this time.
fn goes_on(stopped: &Receiver<()>, time: Duration) -> bool {
    stopped.recv_timeout(time) == Err(RecvTimeoutError::Timeout)
}

fn over() -> Absence {
    Absence::new(Reason::TooLittle, "the run ended before its calls were counted")
}

fn count_until(stopped: &Receiver<()>, family: Family, library: &Path) -> Measured<Calls> {
    let mut counter =
        Counter { uprobes: Uprobes::live()?, proc: ProcFs::live(), library, files: HashMap::new() };
    let began = monotonic_ns();
    let (mut calls, mut first) = (Calls::default(), None);
    let mut why = over();
    for due_ms in MOMENTS_MS {
        let due = began + due_ms * 1_000_000;
        if !goes_on(stopped, Duration::from_nanos(due.saturating_sub(monotonic_ns()))) {
            break;
        }
        match counter.moment(stopped, family) {
            Ok(counted) => calls.add(counted),
            Err(absence) if absence.reason == Reason::NotPermitted => return Err(absence),
            Err(absence) => why = absence,
        }
        if first.is_none() && calls.all() >= PLENTY {
            if calls.share() >= SERVED {
                break;
            }
            // A program may begin with calls to another malloc, in a process that starts it or by that malloc's own name. So all that
            // follow decide.
            first = Some(std::mem::take(&mut calls));
        }
    }
    let calls = first.filter(|_| calls.all() < PLENTY).unwrap_or(calls);
    match calls.counted_ns {
        0 => Err(why),
        _ => Ok(calls),
    }
}

/// Device and inode, as in /proc/PID/maps.
type FileId = ((u32, u32), u64);

struct Counter<'a> {
    uprobes: Uprobes,
    proc: ProcFs,
    library: &'a Path,
    /// By device and inode; None for a file without malloc.
    files: HashMap<FileId, Option<Rc<MallocFile>>>,
}

/// A file with a malloc.
struct MallocFile {
    path: PathBuf,
    /// Whether it is the arm's library.
    ours: bool,
    file: File,
    /// File offsets of its entry points, bytes.
    offsets: BTreeSet<u64>,
}

struct CallProbe {
    allocator: Rc<MallocFile>,
    passes: Passes,
}

impl Counter<'_> {
    fn moment(&mut self, stopped: &Receiver<()>, family: Family) -> Measured<Calls> {
        let before = self.cpu_times(family);
        if !goes_on(stopped, GLANCE) {
            return Err(over());
        }
        let mut running: Vec<(u64, i32, i32)> = self
            .cpu_times(family)
            .into_iter()
            .map(|((pid, tid), ns)| (ns - before.get(&(pid, tid)).map_or(0, |b| ns.min(*b)), pid, tid))
            .filter(|(spent, ..)| *spent > 0)
            .collect();
        running.sort_unstable_by_key(|&(spent, ..)| Reverse(spent));
        if running.is_empty() {
            return Err(Absence::new(Reason::TooLittle, "all threads slept during the count of calls"));
        }
        let mut probes = Vec::new();
        let mut counted_threads = 0;
        let mut why = Absence::new(Reason::NotFound, "the process maps no file with a malloc");
        for &(_, pid, tid) in &running {
            let allocators = self.allocators(pid);
            let more: usize = allocators.iter().map(|a| a.offsets.len()).sum();
            if !probes.is_empty() && probes.len() + more > MOST_PROBES {
                break;
            }
            match self.probes(allocators, tid) {
                Ok(more) if more.is_empty() => {}
                Ok(more) => {
                    probes.extend(more);
                    counted_threads += 1;
                }
                Err(absence) => why = absence,
            }
        }
        if probes.is_empty() {
            return Err(why);
        }
        let mut calls = count(stopped, probes);
        (calls.threads, calls.counted_threads) = (running.len(), counted_threads);
        Ok(calls)
    }

    /// CPU time by process and thread, ns.
    fn cpu_times(&self, family: Family) -> BTreeMap<(i32, i32), u64> {
        let mut times = BTreeMap::new();
        for pid in family.now() {
            for tid in self.proc.threads(pid).unwrap_or_default() {
                if let Ok(stat) = self.proc.thread_schedstat(pid, tid) {
                    times.insert((pid, tid), stat.cpu_ns);
                }
            }
        }
        times
    }

    /// Files with a malloc that the process maps now.
    fn allocators(&mut self, pid: i32) -> Vec<Rc<MallocFile>> {
        let mut seen = BTreeSet::new();
        let mut found = Vec::new();
        for mapping in self.proc.code(pid).unwrap_or_default().mappings {
            let key = (mapping.dev, mapping.inode);
            if !(mapping.is_file() && seen.insert(key)) {
                continue;
            }
            let (root, library) = (self.proc.root(), self.library);
            let known = self
                .files
                .entry(key)
                .or_insert_with(|| MallocFile::of(root, pid, &mapping, library).map(Rc::new));
            found.extend(known.clone());
        }
        found
    }

    fn probes(&self, allocators: Vec<Rc<MallocFile>>, tid: i32) -> Measured<Vec<CallProbe>> {
        let mut probes = Vec::new();
        for allocator in allocators {
            for &offset in &allocator.offsets {
                probes.push(CallProbe {
                    passes: self.uprobes.open(&allocator.file, offset, tid)?,
                    allocator: Rc::clone(&allocator),
                });
            }
        }
        Ok(probes)
    }
}

/// All probes are opened before the first is started, so that all count for about the same time.
fn count(stopped: &Receiver<()>, mut probes: Vec<CallProbe>) -> Calls {
    let mut calls = Calls::default();
    let began = monotonic_ns();
    // A probe that fails to start counts nothing; one that fails to stop counts slightly longer. Their counts are used anyway.
    probes.iter_mut().for_each(|probe| drop(probe.passes.start()));
    goes_on(stopped, MOMENT);
    probes.iter_mut().for_each(|probe| drop(probe.passes.stop()));
    calls.counted_ns = monotonic_ns() - began;
    let mut counted: Vec<(u64, CallProbe)> =
        probes.into_iter().map(|mut probe| (probe.passes.count().unwrap_or(0), probe)).collect();
    for (count, probe) in &counted {
        if probe.allocator.ours {
            calls.served += count
        } else {
            *calls.elsewhere.entry(probe.allocator.path.clone()).or_default() += count
        }
    }
    // Remove the probes with the most calls first: they cost the program most.
    counted.sort_unstable_by_key(|(count, _)| Reverse(*count));
    counted.into_iter().for_each(drop);
    calls
}

impl MallocFile {
    fn of(proc_root: &Path, pid: i32, mapping: &Mapping, library: &Path) -> Option<MallocFile> {
        let file = maps::open(proc_root, pid, mapping).ok()?;
        let offsets = entries(&file)?;
        let path = PathBuf::from(mapping.display_path());
        Some(MallocFile { ours: is_file_at(&path, library), path, file, offsets })
    }
}

/// The functions that request memory, with operator new and new[] of C++. None for a file without malloc, such as libstdc++, whose
/// operator new calls the malloc of another library.
fn entries(file: &File) -> Option<BTreeSet<u64>> {
    let entries = bursts::entries(file, Table::Exported).ok()?;
    Some(entries.iter().filter(|entry| entry.kind.allocates()).map(|entry| entry.offset).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_c_library_has_entry_points() {
        let path = "/usr/lib/x86_64-linux-gnu/libc.so.6";
        let Ok(libc) = File::open(path) else {
            println!("skipped: no {path} on this machine");
            return;
        };
        // In glibc, aligned_alloc and memalign have one address.
        let found = entries(&libc).unwrap();
        assert!((4..=6).contains(&found.len()), "{found:?}");
        assert!(entries(&File::open("/bin/sleep").unwrap()).is_none());
        assert!(entries(&File::open("/proc/self/status").unwrap()).is_none());
    }

    #[test]
    fn moments_add_up() {
        let counted = |served, other, threads| Calls {
            served,
            elsewhere: BTreeMap::from([("/lib/libc.so.6".into(), other)]),
            counted_ns: 5,
            threads,
            counted_threads: 1,
        };
        let mut sum = Calls::default();
        sum.add(counted(3, 1, 1));
        sum.add(counted(4, 2, 6));
        sum.add(counted(0, 0, 2));
        assert_eq!(sum, Calls { counted_ns: 15, ..counted(7, 3, 6) });
        assert_eq!(sum.all(), 10);
    }
}
