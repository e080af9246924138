//! How many of a running program's allocator calls arrive in an arm's library, counted for a moment in the run that is not counted
//! itself: each counted call costs a trap (see [`allocwall_host::uprobe`]).

use super::proof::is_file_at;
use super::run::Family;
use allocwall_host::clock::monotonic_ns;
use allocwall_host::elf::{ElfFile, SymbolKind, Table};
use allocwall_host::maps::{self, Mapping};
use allocwall_host::proc::ProcFs;
use allocwall_host::uprobe::{Passes, Uprobes};
use allocwall_host::worker::Worker;
use allocwall_model::units::{Absence, Measured, Reason};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// Where calls enter an allocator; operator new and new[] of C++ as well. A library may have several names for one place.
const ENTRIES: &[&[u8]] = &[
    b"malloc",
    b"calloc",
    b"realloc",
    b"aligned_alloc",
    b"memalign",
    b"posix_memalign",
    b"_Znwm",
    b"_Znam",
];
/// When it is tried, after the start or the beginning of the load: later where a program had few calls so far.
const MOMENTS_MS: &[u64] = &[30, 250, 1_000, 4_000];
const MOMENT: Duration = Duration::from_millis(100);
/// Seen for so long, threads that run are known from those that sleep.
const GLANCE: Duration = Duration::from_millis(10);
/// Calls after which no other moment is waited for.
const PLENTY: u64 = 1_000;
/// Probes at a time, in whole threads: each takes its time to be taken out again. Two threads of a library beside libc, or more.
const MOST_PROBES: usize = 32;

/// Where the calls of the busiest threads arrived.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Calls {
    /// In the arm's library.
    pub served: u64,
    /// In another file that has a malloc.
    pub elsewhere: BTreeMap<PathBuf, u64>,
    pub counted_ns: u64,
    /// The most threads that ran in one of the moments, and how many of them were counted.
    pub threads: usize,
    pub counted_threads: usize,
}

impl Calls {
    pub fn all(&self) -> u64 {
        self.served + self.elsewhere.values().sum::<u64>()
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

/// A thread that counts when the moment has come.
pub struct Counting {
    stop: Sender<()>,
    thread: Worker<Measured<Calls>>,
}

impl Counting {
    pub fn start(family: Family, library: &Path) -> Counting {
        let (stop, stopped) = channel();
        let library = library.to_owned();
        let thread = Worker::start("counts calls", move || count_until(&stopped, family, &library));
        Counting { stop, thread }
    }

    /// What was counted, once the run is over.
    pub fn finish(self) -> Measured<Calls> {
        drop(self.stop);
        self.thread.finish().and_then(|counted| counted)
    }
}

/// Whether the run goes on after this time.
fn goes_on(stopped: &Receiver<()>, time: Duration) -> bool {
    stopped.recv_timeout(time) == Err(RecvTimeoutError::Timeout)
}

fn over() -> Absence {
    Absence::new(Reason::TooLittle, "it was over before they could be counted")
}

fn count_until(stopped: &Receiver<()>, family: Family, library: &Path) -> Measured<Calls> {
    let mut counter = Counter {
        uprobes: Uprobes::live()?,
        proc: ProcFs::live(),
        library,
        files: HashMap::new(),
    };
    let began = monotonic_ns();
    let mut calls = Calls::default();
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
        if calls.all() >= PLENTY {
            break;
        }
    }
    match calls.counted_ns {
        0 => Err(why),
        _ => Ok(calls),
    }
}

/// Device and inode, as maps has them.
type FileId = ((u32, u32), u64);

struct Counter<'a> {
    uprobes: Uprobes,
    proc: ProcFs,
    library: &'a Path,
    /// By device and inode; None has no malloc.
    files: HashMap<FileId, Option<Rc<Allocator>>>,
}

/// A file with a malloc.
struct Allocator {
    path: PathBuf,
    /// It is the arm's library.
    ours: bool,
    file: File,
    /// Where calls enter it, bytes from its start.
    offsets: BTreeSet<u64>,
}

struct Probe {
    allocator: Rc<Allocator>,
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
            return Err(Absence::new(
                Reason::TooLittle,
                "it slept when they were to be counted",
            ));
        }
        let mut probes = Vec::new();
        let mut counted_threads = 0;
        let mut why = Absence::new(Reason::NotFound, "no file that it maps has a malloc");
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

    /// By process and thread, ns.
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
    fn allocators(&mut self, pid: i32) -> Vec<Rc<Allocator>> {
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
                .or_insert_with(|| Allocator::of(root, pid, &mapping, library).map(Rc::new));
            found.extend(known.clone());
        }
        found
    }

    fn probes(&self, allocators: Vec<Rc<Allocator>>, tid: i32) -> Measured<Vec<Probe>> {
        let mut probes = Vec::new();
        for allocator in allocators {
            for &offset in &allocator.offsets {
                probes.push(Probe {
                    passes: self.uprobes.open(&allocator.file, offset, tid)?,
                    allocator: Rc::clone(&allocator),
                });
            }
        }
        Ok(probes)
    }
}

/// All are opened before the first is started, so that none counts for longer than the others.
fn count(stopped: &Receiver<()>, mut probes: Vec<Probe>) -> Calls {
    let mut calls = Calls::default();
    let began = monotonic_ns();
    // What fails to start or to stop has counted nothing, or a little more; its count is read all the same.
    probes.iter_mut().for_each(|probe| drop(probe.passes.start()));
    goes_on(stopped, MOMENT);
    probes.iter_mut().for_each(|probe| drop(probe.passes.stop()));
    calls.counted_ns = monotonic_ns() - began;
    let mut counted: Vec<(u64, Probe)> = probes
        .into_iter()
        .map(|mut probe| (probe.passes.count().unwrap_or(0), probe))
        .collect();
    for (count, probe) in &counted {
        match probe.allocator.ours {
            true => calls.served += count,
            false => *calls.elsewhere.entry(probe.allocator.path.clone()).or_default() += count,
        }
    }
    // Those that cost the program most go first.
    counted.sort_unstable_by_key(|(count, _)| Reverse(*count));
    counted.into_iter().for_each(drop);
    calls
}

impl Allocator {
    fn of(proc_root: &Path, pid: i32, mapping: &Mapping, library: &Path) -> Option<Allocator> {
        let file = maps::open(proc_root, pid, mapping).ok()?;
        let offsets = entries(&file)?;
        let path = PathBuf::from(mapping.display_path());
        Some(Allocator {
            ours: is_file_at(&path, library),
            path,
            file,
            offsets,
        })
    }
}

/// None without a malloc: libstdc++'s operator new ends in somebody else's.
fn entries(file: &File) -> Option<BTreeSet<u64>> {
    let elf = ElfFile::new(file.try_clone().ok()?);
    let elf = elf.parse().ok()?;
    let mut offsets = BTreeSet::new();
    let mut has_malloc = false;
    elf.symbols(Table::Exported, &mut |symbol| {
        if symbol.kind == SymbolKind::Function && !symbol.local && ENTRIES.contains(&symbol.name) {
            has_malloc |= symbol.name == b"malloc";
            offsets.extend(elf.facts.offset_of_address(symbol.address));
        }
    })
    .ok()?;
    has_malloc.then_some(offsets)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_real_files_the_c_library_alone_is_entered() {
        let path = "/usr/lib/x86_64-linux-gnu/libc.so.6";
        let Ok(libc) = File::open(path) else {
            println!("skipped: no {path} on this machine");
            return;
        };
        // aligned_alloc and memalign are one place in glibc.
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
        assert_eq!(
            sum,
            Calls {
                counted_ns: 15,
                ..counted(7, 3, 6)
            }
        );
        assert_eq!(sum.all(), 10);
    }
}
