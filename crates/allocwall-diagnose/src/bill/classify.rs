//! Assigns each sample to a line of the bill.

use super::increase;
use allocwall_model::catalogue::cost::{CostClass, WaitClass};
use allocwall_model::catalogue::prices::FAULT_RETURN;
use allocwall_model::catalogue::symbols::{
    self, KernelLine, KernelObject, KernelRole, ProcessStep, Scope, UserRole,
};
use allocwall_model::catalogue::syscalls::{self, CallWait, KernelWait, UserWait};
use allocwall_model::recording::{
    CpuSample, Frame, Module, ModuleRole, Owner, Recording, Runtime, ThreadTimes, WaitSample, gained,
};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of frames between a lock primitive and the allocator function that takes the lock.
const CALLERS_OF_A_LOCK: usize = 5;

/// A futex wait of unknown purpose counts as idle if its thread uses less than this share of CPU. Parked workers use
/// almost no CPU; threads that wait for locks run between their waits.
const IDLE_CPU_SHARE: f64 = 0.05;

/// A function needs this many samples with a known kind of fault before its other samples are divided by them.
const MIN_KNOWN_FAULTS: u64 = 10;

/// Of the samples in write faults that zero or copy a page, a sixth or more are in the zeroing or the copying itself. For
/// one such sample there are at most so many others.
const WRITES_PER_SHOWN: u64 = 5;

/// So many samples in write faults more than that may be chance, in the whole target. The rest of a larger number only makes
/// pages writable: after mprotect, or after the other process that shared them has copied them or has ended. A function or a
/// process with fewer is not judged alone.
const MIN_WRITES: u64 = 30;

/// For each page, fork takes at least 20 ns, and the fault that later makes the page writable at most 1 µs. So for one sample in
/// the fork there are at most so many in these faults.
const MADE_WRITABLE_PER_COPY: u64 = 50;

/// A process, and whether it shares pages by then since a fork in the window.
type Sharer = (i32, bool);

/// Process, module and name of the function that was running when the fault came.
type FaultingFunction<'a> = (Sharer, Option<u32>, Option<&'a str>);

/// The kinds of fault, by the class that they belong to. (Zeroing belongs to first touches.)
const FAULTS: [CostClass; 4] =
    [CostClass::FaultPath, CostClass::CopyOnWrite, CostClass::FileFault, CostClass::OtherKernel];

/// The kind of a fault whose kind is known.
fn kind_of_fault(line: KernelLine) -> Option<CostClass> {
    match line {
        KernelLine::Class(CostClass::FaultPath | CostClass::Zeroing) => Some(CostClass::FaultPath),
        KernelLine::Class(class @ (CostClass::CopyOnWrite | CostClass::FileFault)) => Some(class),
        KernelLine::OtherFault => Some(CostClass::OtherKernel),
        _ => None,
    }
}

/// Samples in faults by kind, and how samples of unknown kind have been divided so far.
#[derive(Default)]
struct Faults {
    counts: [u64; FAULTS.len()],
    /// What each kind is still owed, in units of 1 / `known()`.
    owed: [i64; FAULTS.len()],
}

impl Faults {
    fn count(&mut self, kind: CostClass) {
        let at = FAULTS.iter().position(|k| *k == kind).expect("FAULTS has every kind");
        self.counts[at] += 1;
    }

    fn known(&self) -> u64 {
        self.counts.iter().sum()
    }

    fn has_touches(&self) -> bool {
        self.counts[0] > 0
    }

    /// A kernel that zeroes each page that it hands out (init_on_alloc) also does it before a copy.
    fn count_zeroing_as_copies(&mut self) {
        // In the order of `FAULTS`.
        let [touches, copies, ..] = &mut self.counts;
        if *copies > 0 {
            *copies += std::mem::take(touches);
        }
    }

    /// Class of the next unknown one. Each kind gets its part, evenly over time. If nothing is known: first touch,
    /// the most common.
    fn next(&mut self) -> CostClass {
        for (owed, count) in self.owed.iter_mut().zip(self.counts) {
            *owed += count as i64;
        }
        let most = (0..FAULTS.len()).rev().max_by_key(|kind| self.owed[*kind]).unwrap_or(0);
        self.owed[most] -= self.known() as i64;
        FAULTS[most]
    }
}

/// Samples in faults by kind, of each user function and of each process.
#[derive(Default)]
struct KnownFaults<'a> {
    by_function: BTreeMap<FaultingFunction<'a>, Faults>,
    by_process: BTreeMap<Sharer, Faults>,
}

impl<'a> KnownFaults<'a> {
    fn count(&mut self, function: FaultingFunction<'a>, kind: CostClass) {
        self.by_function.entry(function).or_default().count(kind);
        self.by_process.entry(function.0).or_default().count(kind);
    }

    /// Class of the next sample of unknown kind: in proportion to those of known kind of the same function, or of the
    /// same process if the function has too few. None if the process has none.
    fn next(&mut self, function: FaultingFunction<'a>) -> Option<CostClass> {
        Some(self.of(function)?.next())
    }

    fn of(&mut self, function: FaultingFunction<'a>) -> Option<&mut Faults> {
        match self.by_function.get_mut(&function) {
            Some(faults) if faults.known() >= MIN_KNOWN_FAULTS => Some(faults),
            _ => self.by_process.get_mut(&function.0),
        }
    }
}

/// Samples in the write faults of one function, of those functions of a process that have few, or of those processes that have
/// few.
#[derive(Default)]
struct Writes {
    /// They zero or copy a page.
    shown: u64,
    not_shown: u64,
    /// The part of those not shown that belongs to zeroed or copied pages.
    share: f64,
    unassigned: f64,
}

impl Writes {
    /// `chance`: so many more than follow from those shown may be chance.
    fn divide(&mut self, chance: u64) {
        let most = WRITES_PER_SHOWN * self.shown;
        let may_be_all = self.not_shown < most + chance;
        self.share = if may_be_all { 1.0 } else { part(most, self.not_shown) };
    }

    /// Whether the next one that is not shown belongs to a zeroed or copied page: evenly over time.
    fn next(&mut self) -> bool {
        self.unassigned += self.share;
        let due = self.unassigned >= 1.0;
        self.unassigned -= f64::from(u8::from(due));
        due
    }

    /// Moves those that have few to the sums of a larger whole.
    fn pool<K: Ord, L: Ord>(all: &mut BTreeMap<K, Writes>, whole: impl Fn(&K) -> L) -> BTreeMap<L, Writes> {
        let mut pools: BTreeMap<L, Writes> = BTreeMap::new();
        all.retain(|key, writes| {
            let enough = writes.not_shown >= MIN_WRITES;
            if !enough {
                let pool = pools.entry(whole(key)).or_default();
                pool.shown += writes.shown;
                pool.not_shown += writes.not_shown;
            }
            enough
        });
        pools
    }
}

/// What part `most` is of `all`: at most 1.
fn part(most: u64, all: u64) -> f64 {
    (most as f64 / all.max(1) as f64).min(1.0)
}

/// The forks after which a process shares pages.
struct Forks {
    /// When the first of them was seen.
    from_ns: u64,
    /// The process that forked.
    parent: i32,
}

/// A function's samples in faults, its own samples, and the part of its own samples that is moved to faults.
#[derive(Default)]
struct Returns {
    faults: Faults,
    own: u64,
    /// The part of its own samples that belongs to the ends of faults.
    share: f64,
    unassigned: f64,
}

impl Returns {
    /// Class of the next own sample, if it is moved: evenly over time, to the kinds of fault in proportion.
    fn next(&mut self) -> Option<CostClass> {
        self.unassigned += self.share;
        if self.unassigned < 1.0 {
            return None;
        }
        self.unassigned -= 1.0;
        Some(self.faults.next())
    }
}

/// Has the role of each frame, so that names are looked up only once.
pub struct Classifier<'a> {
    recording: &'a Recording,
    kernel: Vec<Option<KernelRole>>,
    user: Vec<Option<UserRole>>,
    collector_threads: BTreeSet<(i32, i32)>,
    jvm: BTreeSet<i32>,
    go: BTreeSet<i32>,
    threads: BTreeMap<(i32, i32), &'a ThreadTimes>,
    /// When each process's collector ran, from and to, sorted.
    collecting: BTreeMap<i32, Vec<(u64, u64)>>,
    major_faults: bool,
    /// By the index of the kernel stack.
    steps: BTreeMap<u32, ProcessStep>,
    /// Of the processes that share pages since a fork in the window.
    forks: BTreeMap<i32, Forks>,
    /// Samples in the copies of address spaces, of each process that forked.
    copies: BTreeMap<i32, u64>,
}

impl<'a> Classifier<'a> {
    pub fn new(recording: &'a Recording) -> Self {
        let role = |frame: &Frame| module(recording, frame).map(|m| m.role);
        let kernel = recording
            .frames
            .iter()
            .map(|f| match role(f) {
                Some(ModuleRole::Kernel) | None => f.symbol.as_deref().and_then(symbols::kernel_role),
                Some(_) => None,
            })
            .collect();
        let user = recording.frames.iter().map(|f| user_role(module(recording, f), f)).collect();
        let running = |is: fn(&Runtime) -> bool| -> BTreeSet<i32> {
            recording.processes.iter().filter(|p| p.runtime.as_ref().is_ok_and(is)).map(|p| p.pid).collect()
        };
        let jvm = running(|r| matches!(r, Runtime::Jvm { .. }));
        let go = running(|r| matches!(r, Runtime::Go { .. }));
        let collector_threads = recording
            .threads
            .iter()
            .filter(|t| jvm.contains(&t.pid) && symbols::is_jvm_collector_thread(&t.comm))
            .map(|t| (t.pid, t.tid))
            .collect();
        let major_faults = match (recording.ticks.first(), recording.ticks.last()) {
            // A counter that ran backwards is ignored.
            (Some(first), Some(last)) => gained(first.major_faults, last.major_faults) != Some(0),
            _ => true,
        };
        let mut collecting: BTreeMap<i32, Vec<(u64, u64)>> = BTreeMap::new();
        for span in &recording.collecting {
            collecting.entry(span.pid).or_default().push((span.from_ns, span.to_ns));
        }
        collecting.values_mut().for_each(|spans| spans.sort_unstable());
        let steps = process_steps(recording);
        let (forks, copies) = forks(recording, &steps);
        Classifier {
            recording,
            kernel,
            user,
            collector_threads,
            jvm,
            go,
            threads: recording.threads.iter().map(|t| ((t.pid, t.tid), t)).collect(),
            collecting,
            major_faults,
            steps,
            forks,
            copies,
        }
    }

    /// One class per sample, in the same order.
    ///
    /// Entry and exit of a fault (a third of its cost on a virtual machine) look the same for every kind of fault.
    /// These samples are divided in proportion to the recognized ones of the same user function, or of the same
    /// process if the function has too few.
    pub fn cpu(&self, samples: &[CpuSample]) -> Vec<CostClass> {
        let mut lines: Vec<KernelLine> = samples.iter().map(|s| self.line(s)).collect();
        self.divide_writes(samples, &mut lines);
        let mut known = KnownFaults::default();
        for (sample, line) in samples.iter().zip(&lines) {
            if let Some(kind) = kind_of_fault(*line) {
                known.count(self.faulting_function(sample), kind);
            }
        }
        let class = |(sample, line): (&CpuSample, &KernelLine)| match line {
            KernelLine::Class(class) | KernelLine::ByCaller(class) => *class,
            // `divide_writes` leaves no write fault.
            KernelLine::OtherFault | KernelLine::WriteFault(_) => CostClass::OtherKernel,
            KernelLine::SomeFault => {
                known.next(self.faulting_function(sample)).unwrap_or(CostClass::FaultPath)
            }
        };
        let mut classes: Vec<CostClass> = samples.iter().zip(&lines).map(class).collect();
        self.return_to_faults(samples, &lines, &mut classes);
        classes
    }

    /// A write fault on a page that is mapped read-only zeroes a new page if the old one was the zero page: this is a
    /// first touch. Or it copies the page. Or it only makes the page writable. Few of its samples show which, and the
    /// others are divided like these.
    fn divide_writes(&self, samples: &[CpuSample], lines: &mut [KernelLine]) {
        let mut shown = KnownFaults::default();
        let mut by_function: BTreeMap<FaultingFunction, Writes> = BTreeMap::new();
        for (sample, line) in samples.iter().zip(&*lines) {
            let KernelLine::WriteFault(own) = *line else { continue };
            let function = self.faulting_function(sample);
            let writes = by_function.entry(function).or_default();
            match own {
                Some(class) => {
                    writes.shown += 1;
                    let zeroes = class == CostClass::Zeroing;
                    shown.count(function, if zeroes { CostClass::FaultPath } else { class });
                }
                None => writes.not_shown += 1,
            }
        }
        let of_functions = shown.by_function.iter_mut().map(|((sharer, ..), faults)| (sharer, faults));
        for (_, faults) in of_functions.chain(shown.by_process.iter_mut()).filter(|((_, shares), _)| *shares)
        {
            faults.count_zeroing_as_copies();
        }
        // Functions with few such samples are divided together, and so are processes.
        let mut by_process = Writes::pool(&mut by_function, |(sharer, ..)| *sharer);
        let mut of_target = Writes::pool(&mut by_process, |_| ()).remove(&()).unwrap_or_default();
        by_function.values_mut().chain(by_process.values_mut()).for_each(|writes| writes.divide(0));
        of_target.divide(MIN_WRITES);
        let mut made_writable: BTreeMap<i32, Vec<usize>> = BTreeMap::new();
        for (at, (sample, line)) in samples.iter().zip(lines.iter_mut()).enumerate() {
            let KernelLine::WriteFault(own) = *line else { continue };
            let function = self.faulting_function(sample);
            *line = match own {
                Some(CostClass::Zeroing) => {
                    // See `count_zeroing_as_copies`.
                    let copies = shown.of(function).is_some_and(|faults| !faults.has_touches());
                    KernelLine::Class(if copies { CostClass::CopyOnWrite } else { CostClass::Zeroing })
                }
                Some(class) => KernelLine::Class(class),
                None => {
                    let writes = match by_function.get_mut(&function) {
                        Some(writes) => writes,
                        None => by_process.get_mut(&function.0).unwrap_or(&mut of_target),
                    };
                    if writes.next() {
                        KernelLine::Class(shown.next(function).unwrap_or(CostClass::CopyOnWrite))
                    } else {
                        if let Some(forks) = self.forks_before(sample) {
                            made_writable.entry(forks.parent).or_default().push(at);
                        }
                        KernelLine::OtherFault
                    }
                }
            };
        }
        // The other process had these pages too, until it copied them, ran another program or ended. There are no more of them
        // than the forks shared.
        for (parent, all) in made_writable {
            let most = MADE_WRITABLE_PER_COPY * self.copies.get(&parent).copied().unwrap_or(0);
            let mut of_forks = Writes { share: part(most, all.len() as u64), ..Writes::default() };
            for at in all {
                if of_forks.next() {
                    lines[at] = KernelLine::Class(CostClass::CopyOnWrite);
                }
            }
        }
    }

    /// The end of a fault, after its handler, is sampled on the program's own instruction (`prices::FAULT_RETURN`).
    /// If this machine's price of it is known, the same number of the faulting functions' own samples is moved to
    /// their faults.
    fn return_to_faults(&self, samples: &[CpuSample], lines: &[KernelLine], classes: &mut [CostClass]) {
        let Some(due) = self.fault_return_samples() else {
            return;
        };
        let mut functions: BTreeMap<FaultingFunction, Returns> = BTreeMap::new();
        let mut total = 0;
        for ((sample, line), class) in samples.iter().zip(lines).zip(classes.iter()) {
            let kind = match line {
                // It was divided: its class says which kind it is counted as.
                KernelLine::SomeFault => Some(*class),
                line => kind_of_fault(*line),
            };
            if let Some(kind) = kind {
                functions.entry(self.faulting_function(sample)).or_default().faults.count(kind);
                total += 1;
            }
        }
        for sample in samples.iter().filter(|s| s.kernel.is_none()) {
            if let Some(returns) = functions.get_mut(&self.faulting_function(sample)) {
                returns.own += 1;
            }
        }
        for returns in functions.values_mut() {
            let due = due * returns.faults.known() as f64 / f64::from(total);
            returns.share = (due / returns.own.max(1) as f64).min(1.0);
        }
        for (sample, class) in samples.iter().zip(classes).filter(|(s, _)| s.kernel.is_none()) {
            if let Some(returns) = functions.get_mut(&self.faulting_function(sample))
                && let Some(back) = returns.next()
            {
                *class = back;
            }
        }
    }

    /// Number of samples in the ends of all faults of the window.
    fn fault_return_samples(&self) -> Option<f64> {
        let price = self.recording.prices.as_ref().ok()?.get(FAULT_RETURN)?;
        let faults = increase(self.recording, |t| Some(t.minor_faults)).ok()?;
        Some(faults as f64 * price.point / self.recording.meta.sample_period_ns.max(1) as f64)
    }

    fn line(&self, sample: &CpuSample) -> KernelLine {
        let Some(kernel) = sample.kernel else {
            return KernelLine::Class(self.user_line(sample));
        };
        if !self.is_named(kernel) {
            return KernelLine::Class(CostClass::UnnamedKernel);
        }
        match symbols::kernel_line(self.frames(Some(kernel)).iter().map(|f| self.kernel_role(*f))) {
            KernelLine::ByCaller(class) => {
                KernelLine::Class(self.class_by_caller(sample.user).unwrap_or(class))
            }
            // A private page of a file that was read before is copied at its first write, without a fork.
            KernelLine::WriteFault(_)
                if sample.faulted == Some(Owner::File) && self.forks_before(sample).is_none() =>
            {
                KernelLine::Class(CostClass::FileFault)
            }
            line => line,
        }
    }

    /// Whether the thread gives up the CPU by itself, or has just got it back.
    pub(super) fn goes_to_sleep(&self, sample: &CpuSample) -> bool {
        self.kernel_names(sample).any(symbols::sleeps)
            && !self.kernel_names(sample).any(symbols::is_preempted)
    }

    /// Counts samples of first touch: (those that huge pages would not change, all).
    pub fn touches_past_huge_pages(&self, samples: &[CpuSample]) -> (u64, u64) {
        let (mut past, mut all) = (0, 0);
        for sample in samples {
            if let KernelLine::Class(CostClass::FaultPath | CostClass::Zeroing) = self.line(sample) {
                all += 1;
                past += u64::from(self.kernel_names(sample).any(symbols::is_past_huge_pages));
            }
        }
        (past, all)
    }

    /// What the kernel does with an address space, if the sample is in the start or the end of a process.
    pub(super) fn process_step(&self, sample: &CpuSample) -> Option<ProcessStep> {
        self.steps.get(&sample.kernel?).copied()
    }

    /// What the kernel's own allocator works for, if the sample is on its line.
    pub(super) fn kernel_object(&self, sample: &CpuSample) -> Option<KernelObject> {
        let frames = self.frames(sample.kernel).iter();
        symbols::kernel_object(
            frames.map(|f| (self.kernel_role(*f), self.kernel_name(Some(f)).unwrap_or_default())),
        )
    }

    /// Whether the sample is in callbacks of RCU, which interrupted the thread.
    pub(super) fn runs_callbacks(&self, sample: &CpuSample) -> bool {
        symbols::runs_callbacks(self.frames(sample.kernel).iter().map(|f| self.kernel_role(*f)))
    }

    /// Whether the sample is in the copying of a page that a fork shares.
    pub(super) fn copies_page(&self, sample: &CpuSample) -> bool {
        self.line(sample) == KernelLine::WriteFault(Some(CostClass::CopyOnWrite))
    }

    /// The forks since which the process of the sample shares pages.
    fn forks_before(&self, sample: &CpuSample) -> Option<&Forks> {
        self.forks.get(&sample.pid).filter(|forks| forks.from_ns <= sample.t_ns)
    }

    fn kernel_names(&self, sample: &CpuSample) -> impl Iterator<Item = &'a str> {
        let frames = &self.recording.frames;
        self.frames(sample.kernel).iter().filter_map(|f| frames.get(*f as usize)?.symbol.as_deref())
    }

    /// Whether the allocator made this call. The wrapper of the system call and unnamed functions of the allocator
    /// may be in between. The loader maps the program and its libraries by itself. None if the stack has only the wrapper.
    pub fn called_by_allocator(&self, sample: &CpuSample) -> Option<bool> {
        const NEAREST: usize = 4;
        let frames = self.frames(sample.user);
        let nearest = &frames[..frames.len().min(NEAREST)];
        let mut roles = nearest.iter().map(|f| self.role(*f));
        if roles.clone().any(|r| matches!(r, Some(UserRole::Allocator | UserRole::AllocatorLock))) {
            return Some(true);
        }
        if nearest.iter().any(|f| self.module_of(*f).is_some_and(|m| m.role == ModuleRole::Loader)) {
            return Some(false);
        }
        let wrapper = |r| matches!(r, Some(UserRole::MapCall | UserRole::Memory | UserRole::Plumbing));
        (!roles.all(wrapper)).then_some(false)
    }

    fn faulting_function(&self, sample: &CpuSample) -> FaultingFunction<'a> {
        let leaf = self.frames(sample.user).first().and_then(|f| self.recording.frames.get(*f as usize));
        let sharer = (sample.pid, self.forks_before(sample).is_some());
        (sharer, leaf.and_then(|f| f.module), leaf.and_then(|f| f.symbol.as_deref()))
    }

    /// The innermost function that owns the work decides. A leaf in the allocator takes precedence over a collector
    /// further out, because another allocator would change it.
    fn user_line(&self, sample: &CpuSample) -> CostClass {
        let frames = self.frames(sample.user);
        let role = |depth: usize| frames.get(depth).and_then(|f| self.role(*f));
        match role(0) {
            Some(UserRole::Allocator) => return CostClass::AllocatorCode,
            Some(UserRole::AllocatorLock) => return CostClass::AllocatorLocks,
            Some(UserRole::Lock) if self.allocator_calls(&frames[1..]) => return CostClass::AllocatorLocks,
            // The copy in realloc and the zeroing in calloc.
            Some(UserRole::Memory) if role(1) == Some(UserRole::Allocator) => {
                return CostClass::BlockFilling;
            }
            Some(UserRole::MapCall) => return CostClass::MapCalls,
            _ => {}
        }
        if self.collector_threads.contains(&(sample.pid, sample.tid)) || self.collects_unnamed(sample) {
            return CostClass::GarbageCollector;
        }
        for frame in frames {
            match self.role(*frame) {
                Some(UserRole::RuntimeAllocator) if role(0) == Some(UserRole::Memory) => {
                    return CostClass::BlockFilling;
                }
                Some(UserRole::RuntimeAllocator) => return CostClass::RuntimeAllocator,
                Some(UserRole::Collector) => return CostClass::GarbageCollector,
                Some(UserRole::Interpreter) => break,
                _ => {}
            }
        }
        CostClass::Application
    }

    /// Whether a stripped interpreter works while its own flag says that it collects. Only one thread runs the
    /// interpreter's code then; threads with other code run beside it. Its allocator has exported names.
    fn collects_unnamed(&self, sample: &CpuSample) -> bool {
        let Some(spans) = self.collecting.get(&sample.pid) else {
            return false;
        };
        let begun = spans.partition_point(|(from, _)| *from <= sample.t_ns);
        if spans[..begun].last().is_none_or(|(_, to)| *to <= sample.t_ns) {
            return false;
        }
        let is_helper = |frame: &u32| {
            let role = self.module_of(*frame).map(|m| m.role);
            matches!(
                role,
                Some(ModuleRole::Libc | ModuleRole::Loader | ModuleRole::Counter | ModuleRole::Vdso)
            )
        };
        let Some(innermost) = self.frames(sample.user).iter().copied().find(|f| !is_helper(f)) else {
            return false;
        };
        self.module_of(innermost).is_some_and(|m| m.role == ModuleRole::Cpython && !m.has_symbols)
            && self.role(innermost) != Some(UserRole::RuntimeAllocator)
    }

    fn module_of(&self, frame: u32) -> Option<&'a Module> {
        module(self.recording, self.recording.frames.get(frame as usize)?)
    }

    fn class_by_caller(&self, user: Option<u32>) -> Option<CostClass> {
        let frames = self.frames(user);
        match frames.first().and_then(|f| self.role(*f)) {
            Some(UserRole::MapCall) => Some(CostClass::MapCalls),
            _ if self.allocator_calls(frames) => Some(CostClass::AllocatorLocks),
            _ => None,
        }
    }

    fn allocator_calls(&self, frames: &[u32]) -> bool {
        frames
            .iter()
            .take(CALLERS_OF_A_LOCK)
            .any(|f| matches!(self.role(*f), Some(UserRole::Allocator | UserRole::AllocatorLock)))
    }

    pub fn wait(&self, sample: &WaitSample) -> WaitClass {
        let call = sample.syscall.and_then(|nr| syscalls::call_wait(&self.recording.host.architecture, nr));
        let kernel = self.frames(sample.kernel);
        // A process of a frozen cgroup v2 sleeps in do_freezer_trap, which is usually inlined (kernel/signal.c).
        let leaf = self.kernel_name(kernel.first());
        if matches!(sample.state, 'T' | 't') || leaf == Some("get_signal") {
            return WaitClass::Stopped;
        }
        match self.sleeps_in(sample) {
            Some(KernelWait::Stopped) => return WaitClass::Stopped,
            Some(KernelWait::Semaphore) if self.is_address_space_lock(kernel, sample, call) => {
                return WaitClass::AddressSpaceLock;
            }
            // The other semaphores are those of files.
            Some(KernelWait::Semaphore | KernelWait::Storage) => return WaitClass::Storage,
            Some(KernelWait::Futex) => return self.futex(sample),
            Some(KernelWait::Memory | KernelWait::Start | KernelWait::Perf) => return WaitClass::Other,
            Some(KernelWait::Idle | KernelWait::Child) => return WaitClass::Idle,
            None => {}
        }
        // Stack and wchan leave out functions of the scheduler, and semaphores count as such (__sched in
        // kernel/locking/rwsem.c; stack_trace_consume_entry_nosched). So they begin with the caller of the semaphore.
        let stack_read = sample.kernel.is_some_and(|k| self.is_named(k));
        match call {
            Some(CallWait::Futex) => self.futex(sample),
            Some(CallWait::Map) if sample.state == 'D' || !stack_read => WaitClass::AddressSpaceLock,
            Some(CallWait::Lock) => WaitClass::ApplicationLock,
            Some(CallWait::Storage | CallWait::File) => WaitClass::Storage,
            Some(CallWait::Child) => WaitClass::Idle,
            Some(CallWait::Idle) if sample.state == 'S' => WaitClass::Idle,
            // A fault sleeps for its page from storage (a major fault) or for the lock. A stack would show storage.
            // Without a stack and without any major fault, it is the lock.
            None if sample.syscall == Some(-1)
                && sample.state == 'D'
                && (stack_read || !self.major_faults) =>
            {
                WaitClass::AddressSpaceLock
            }
            _ if sample.state == 'D' => WaitClass::Storage,
            _ => WaitClass::Other,
        }
    }

    /// Whether a function of the kernel or the system call shows that it is for storage. Other uninterruptible sleeps count as waits
    /// for storage too.
    pub fn surely_waits_for_storage(&self, sample: &WaitSample) -> bool {
        if let Some(wait) = self.sleeps_in(sample) {
            // The holder of a file's semaphore may write to memory alone.
            return wait == KernelWait::Storage;
        }
        match sample.syscall.and_then(|nr| syscalls::call_wait(&self.recording.host.architecture, nr)) {
            Some(CallWait::Storage) => true,
            // Data of sockets and pipes is waited for in sleeps that can be interrupted. A function that is not in the table may be
            // the caller of a lock: of the file, of a socket, or of the kernel.
            Some(CallWait::File | CallWait::Idle) => {
                sample.state == 'D' && !sample.kernel.is_some_and(|k| self.is_named(k))
            }
            _ => false,
        }
    }

    /// Whether it is for a file system of the network, or of another process.
    pub fn waits_for_remote_storage(&self, sample: &WaitSample) -> bool {
        let mut frames = self.frames(sample.kernel).iter();
        frames.any(|f| self.kernel_name(Some(f)).is_some_and(syscalls::is_remote_storage))
    }

    fn is_address_space_lock(&self, kernel: &[u32], sample: &WaitSample, call: Option<CallWait>) -> bool {
        match kernel {
            // Only wchan is known: the system call decides.
            [_] => call == Some(CallWait::Map) || sample.syscall == Some(-1),
            _ => {
                let line = symbols::kernel_line(kernel.iter().map(|f| self.kernel_role(*f)));
                line == KernelLine::Class(CostClass::AddressSpaceLock)
            }
        }
    }

    fn sleeps_in(&self, sample: &WaitSample) -> Option<KernelWait> {
        self.frames(sample.kernel)
            .iter()
            .filter_map(|f| self.kernel_name(Some(f)))
            .find_map(syscalls::kernel_wait)
    }

    fn kernel_name(&self, frame: Option<&u32>) -> Option<&str> {
        self.recording.frames.get(*frame? as usize)?.symbol.as_deref()
    }

    /// Whether it is a futex wait of unknown purpose. Its line then depends on how busy the thread is.
    pub(super) fn has_unknown_purpose(&self, sample: &WaitSample) -> bool {
        let in_futex = match self.sleeps_in(sample) {
            Some(wait) => wait == KernelWait::Futex,
            None => sample.syscall.is_some_and(|nr| {
                syscalls::call_wait(&self.recording.host.architecture, nr) == Some(CallWait::Futex)
            }),
        };
        in_futex && sample.state == 'S' && self.purpose(sample).is_none()
    }

    fn futex(&self, sample: &WaitSample) -> WaitClass {
        self.purpose(sample).unwrap_or_else(|| match self.threads.get(&(sample.pid, sample.tid)) {
            Some(t) if t.cpu_ns as f64 >= IDLE_CPU_SHARE * t.seen_ns as f64 => WaitClass::ApplicationLock,
            _ => WaitClass::Idle,
        })
    }

    /// The purpose of a futex wait, if the user stack or the runtime shows it.
    fn purpose(&self, sample: &WaitSample) -> Option<WaitClass> {
        if sample.python_lock == Some(true) {
            return Some(WaitClass::Gil);
        }
        let frames = self.frames(sample.user);
        let waits: Vec<UserWait> = frames
            .iter()
            .take(12)
            .filter_map(|f| self.recording.frames.get(*f as usize)?.symbol.as_deref())
            .filter_map(syscalls::user_wait)
            .collect();
        // A wait on a condition variable is not contention: background threads of an allocator (jemalloc) sleep like
        // this.
        if self.allocator_calls(frames) && waits.first() != Some(&UserWait::Condition) {
            return Some(WaitClass::Allocator);
        }
        // A runtime's own waits use the primitives below, so they are checked first.
        if waits.contains(&UserWait::Pause) {
            return Some(WaitClass::Other);
        }
        if waits.contains(&UserWait::Gil) {
            return Some(WaitClass::Gil);
        }
        if waits.contains(&UserWait::Lock) {
            return Some(WaitClass::ApplicationLock);
        }
        if waits.contains(&UserWait::Work) {
            return Some(WaitClass::Idle);
        }
        // Go's locks park goroutines, not threads: a thread that waits in a futex has no goroutine to run.
        if self.go.contains(&sample.pid) {
            return Some(WaitClass::Idle);
        }
        // HotSpot uses the same condition variables for locks and for parking, and it is usually stripped.
        if waits.contains(&UserWait::Condition)
            && !self.jvm.contains(&sample.pid)
            && !self.stripped_interpreter_waits(frames)
        {
            return Some(WaitClass::Idle);
        }
        None
    }

    /// CPython waits for its interpreter lock on a condition variable. In a stripped CPython that function has no
    /// name. Waits for the program's own locks go through exported functions.
    fn stripped_interpreter_waits(&self, frames: &[u32]) -> bool {
        let frame = |f: &u32| self.recording.frames.get(*f as usize);
        let caller = frames
            .iter()
            .filter_map(frame)
            .find(|f| module(self.recording, f).is_none_or(|m| m.role != ModuleRole::Libc));
        caller.is_some_and(|f| {
            f.symbol.is_none() && module(self.recording, f).is_some_and(|m| m.role == ModuleRole::Cpython)
        })
    }

    pub(super) fn frames(&self, stack: Option<u32>) -> &'a [u32] {
        stack.and_then(|s| self.recording.stacks.get(s as usize)).map_or(&[], |s| s.frames.as_slice())
    }

    /// Role of a user frame, by its index in the recording.
    pub fn role(&self, frame: u32) -> Option<UserRole> {
        self.user.get(frame as usize).copied().flatten()
    }

    fn kernel_role(&self, frame: u32) -> Option<KernelRole> {
        self.kernel.get(frame as usize).copied().flatten()
    }

    fn is_named(&self, stack: u32) -> bool {
        let frames = self.frames(Some(stack));
        frames.iter().any(|f| self.recording.frames.get(*f as usize).is_some_and(|f| f.symbol.is_some()))
    }
}

/// Role of a user frame in a file; None if it is the application's, or unknown.
pub fn user_role(module: Option<&Module>, frame: &Frame) -> Option<UserRole> {
    let named = |scope| frame.symbol.as_deref().and_then(|s| symbols::user_role(s, scope));
    if module.is_some_and(|m| is_allocator_code(m, frame.offset)) {
        return Some(match named(Scope::Any) {
            Some(UserRole::AllocatorLock | UserRole::Lock) => UserRole::AllocatorLock,
            Some(UserRole::MapCall) => UserRole::MapCall,
            _ => UserRole::Allocator,
        });
    }
    let library = |scope| named(scope).or(Some(UserRole::Plumbing));
    match module.map(|m| m.role) {
        Some(ModuleRole::Kernel) => None,
        // In a stripped libc memcpy and memset have no names, because they are called through ifuncs.
        Some(ModuleRole::Libc) if frame.symbol.is_none() => Some(UserRole::Memory),
        Some(ModuleRole::Libc) => library(Scope::Libc),
        Some(ModuleRole::Cpython) => library(Scope::Cpython),
        Some(ModuleRole::Jvm) => library(Scope::Jvm),
        Some(ModuleRole::Loader | ModuleRole::Vdso | ModuleRole::Node) => library(Scope::Any),
        // A static C library is in the program's own file.
        _ => named(Scope::Any).or_else(|| {
            let has_libc = module.is_some_and(|m| !m.malloc_ranges.is_empty());
            named(Scope::Libc).filter(|role| has_libc && *role == UserRole::Memory)
        }),
    }
}

/// The steps that kernel stacks show, by the index of the stack.
fn process_steps(recording: &Recording) -> BTreeMap<u32, ProcessStep> {
    let stacks: BTreeSet<u32> = recording.samples.iter().filter_map(|sample| sample.kernel).collect();
    let name = |frame: &u32| recording.frames.get(*frame as usize)?.symbol.as_deref();
    let step = |stack: u32| {
        let frames = &recording.stacks.get(stack as usize)?.frames;
        Some((stack, symbols::process_step(frames.iter().filter_map(name))?))
    };
    stacks.into_iter().filter_map(step).collect()
}

/// The forks of the processes that forked in the window, and of those of their children that run the same program; and the
/// number of samples in the copies of address spaces, by the process that forked.
fn forks(
    recording: &Recording,
    steps: &BTreeMap<u32, ProcessStep>,
) -> (BTreeMap<i32, Forks>, BTreeMap<i32, u64>) {
    let mut forks: BTreeMap<i32, Forks> = BTreeMap::new();
    let mut copies: BTreeMap<i32, u64> = BTreeMap::new();
    let mut executing = BTreeSet::new();
    for sample in &recording.samples {
        match sample.kernel.and_then(|kernel| steps.get(&kernel)) {
            Some(ProcessStep::Copy) => {
                *copies.entry(sample.pid).or_default() += 1;
                let first = Forks { from_ns: sample.t_ns, parent: sample.pid };
                let of_process = forks.entry(sample.pid).or_insert(first);
                of_process.from_ns = of_process.from_ns.min(sample.t_ns);
            }
            Some(ProcessStep::Exec | ProcessStep::Replace) => {
                executing.insert(sample.pid);
            }
            Some(ProcessStep::End) | None => {}
        }
    }
    let programs: BTreeMap<i32, &str> =
        recording.processes.iter().filter_map(|p| Some((p.pid, p.exe.as_deref().ok()?))).collect();
    let is_copy = |pid: i32, parent: i32| {
        let same_program = programs.get(&pid).is_some_and(|own| programs.get(&parent) == Some(own));
        same_program && !executing.contains(&pid)
    };
    let children: Vec<(i32, Forks)> = recording
        .processes
        .iter()
        .filter(|p| !copies.contains_key(&p.pid) && is_copy(p.pid, p.ppid))
        .filter_map(|p| Some((p.pid, Forks { parent: p.ppid, ..*forks.get(&p.ppid)? })))
        .collect();
    forks.extend(children);
    (forks, copies)
}

/// Whether the code is in an allocator's own module, or in the address range of malloc in another module. The library that counts
/// stands between the program and its allocator; samples of its own code are not in a recording.
pub fn is_allocator_code(module: &Module, offset: u64) -> bool {
    matches!(module.role, ModuleRole::Allocator(_) | ModuleRole::Counter)
        || module.malloc_ranges.iter().any(|(from, to)| (*from..*to).contains(&offset))
}

pub(super) fn module<'a>(recording: &'a Recording, frame: &Frame) -> Option<&'a Module> {
    recording.modules.get(frame.module? as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocwall_model::recording::{AllocatorKind, Libc, Process};
    use allocwall_sketches::recording::{MS, PID, Sketch};

    /// Classes of kernel stacks recorded with `perf record -e cpu-clock -g` on Linux 6.18, and of some written from
    /// the sources of older kernels and arm64. Each line has a class, a tab and a stack from the leaf outwards.
    const KERNEL_STACKS: &str = include_str!("../../tests/fixtures/kernel-stacks.tsv");

    fn class_of(kernel: &str, user: &str) -> CostClass {
        let mut s = Sketch::new();
        modules(&mut s);
        s.samples(1, PID, kernel, user);
        Classifier::new(&s.recording).cpu(&s.recording.samples)[0]
    }

    fn modules(s: &mut Sketch) {
        s.module("libjemalloc", ModuleRole::Allocator(AllocatorKind::Jemalloc));
        s.module("python", ModuleRole::Cpython);
        s.module("libjvm", ModuleRole::Jvm);
        s.module("node", ModuleRole::Node);
        s.module("go", ModuleRole::Go);
        let program = s.module("static", ModuleRole::Other);
        s.recording.modules[program as usize].malloc_ranges = vec![(0x9000, 0xd000)];
    }

    #[test]
    fn recorded_kernel_stacks_go_to_their_lines() {
        let mut wrong = Vec::new();
        let mut seen = BTreeSet::new();
        for line in KERNEL_STACKS.lines().filter(|l| !l.is_empty() && !l.starts_with('#')) {
            let (class, stack) = line.split_once('\t').expect(line);
            let got = class_of(stack, "app!work");
            seen.insert(got);
            if got.key() != class {
                wrong.push(format!("{class}, not {}: {stack}", got.key()));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        let kernel = CostClass::ALL.into_iter().filter(|c| c.is_named_kernel());
        for class in kernel {
            assert!(seen.contains(&class), "no stack for {}", class.key());
        }
    }

    #[test]
    fn user_leaves_go_to_the_owner_of_the_work() {
        use CostClass::*;
        for (stack, class) in [
            // Stripped libc: the address range of malloc is enough; addresses next to it are not malloc.
            ("libc+9800;app!parse", AllocatorCode),
            ("libc+8fff;app!parse", Application),
            ("libc+d000;app!parse", Application),
            // A copy in realloc is within the allocator; a copy by the application is not. With and without names.
            ("libc!__memmove_avx_unaligned_erms;libc+9800;app!grow", BlockFilling),
            ("libc!__memmove_avx_unaligned_erms;app!grow", Application),
            ("libc+1000;libc+9800;app!grow", BlockFilling),
            ("libc!__memset_evex_unaligned_erms;app!render", Application),
            // calloc's last step is a jump to memset; the recorder puts its frame back.
            ("libc!__memset_evex_unaligned_erms;?!calloc;app!render", BlockFilling),
            ("libc+1000;?!calloc;app!render", BlockFilling),
            ("libc+1000;app!render", Application),
            ("static!__memset_evex_unaligned_erms;?!calloc;static!main", BlockFilling),
            ("static!__memset_evex_unaligned_erms;static!main", Application),
            ("app!memset_rows;?!calloc;app!render", Application),
            // Locks belong to their caller.
            ("libc!__lll_lock_wait_private;libc+9800;app!work", AllocatorLocks),
            ("libc!__lll_lock_wait_private;libc!fputs;app!work", Application),
            ("libc!pthread_mutex_lock;libjemalloc+100;app!work", AllocatorLocks),
            ("libc!pthread_mutex_lock;app!work", Application),
            ("libjemalloc!malloc_mutex_lock_slow;libjemalloc!arena_bin_malloc_hard", AllocatorLocks),
            ("libjemalloc!arena_bin_malloc_hard.isra.0;app!work", AllocatorCode),
            // Too many frames between the lock and the allocator.
            ("libc!pthread_mutex_lock;app!a;app!b;app!c;app!d;app!e;libc+9800", Application),
            // Static allocators by their prefix, and names that look similar.
            ("app!_rjem_je_arena_malloc_hard;app!work", AllocatorCode),
            ("app!mi_page_free_list_extend;app!work", AllocatorCode),
            ("app!mi_write_key;app!work", Application),
            ("app!operator new(unsigned long);app!work", AllocatorCode),
            ("app!tcmalloc::CentralFreeList::RemoveRange(void**, int);app!work", AllocatorCode),
            ("libc!__munmap;app!work", MapCalls),
            ("app!munmap_all;app!work", Application),
        ] {
            assert_eq!(class_of("", stack), class, "{stack}");
        }
    }

    #[test]
    fn runtimes_allocate_and_collect_under_their_own_names() {
        use CostClass::*;
        for (stack, class) in [
            (
                "python!_PyObject_Malloc;python!PyLong_FromLong;python!_PyEval_EvalFrameDefault",
                RuntimeAllocator,
            ),
            (
                "libc!__memset_avx2_unaligned;python!_PyObject_GC_New;python!_PyEval_EvalFrameDefault",
                BlockFilling,
            ),
            ("python!PyLong_FromLong;python!_PyEval_EvalFrameDefault", Application),
            (
                "python!visit_decref;python!dict_traverse;python!subtract_refs;python!gc_collect_main",
                GarbageCollector,
            ),
            ("python!dict_traverse;python!gc_collect_main.constprop.0", GarbageCollector),
            ("python!dict_traverse;python!_PyEval_EvalFrameDefault", Application),
            // Finalizers are the application's code, although the collector calls them.
            (
                "app!close;python!_PyEval_EvalFrameDefault;python!finalize_garbage;python!gc_collect_main",
                Application,
            ),
            // Programs with their own pools, with unnamed inner functions too.
            ("app+10;app!palloc;app!ExecInitExpr", RuntimeAllocator),
            ("app!AllocSetAlloc;app!MemoryContextAllocZero", RuntimeAllocator),
            ("app!palloc_stats;app!main", Application),
            ("app!ngx_palloc;app!ngx_http_gzip_header_filter", RuntimeAllocator),
            ("libc+9800;app!ngx_alloc;app!ngx_create_pool", AllocatorCode),
            ("app!zmalloc;app!sdsnewlen", Application),
            // A function `collect` of another program is not a collector.
            ("app!collect;app!main", Application),
            // When the collector calls free, the work is malloc's.
            ("libc+9800;python!dict_dealloc;python!delete_garbage;python!gc_collect_main", AllocatorCode),
            ("go!runtime.scanobject;go!runtime.gcDrain;go!runtime.gcBgMarkWorker.func2", GarbageCollector),
            (
                "go!runtime.scanobject;go!runtime.gcDrainN;go!runtime.gcAssistAlloc1;go!runtime.mallocgc",
                GarbageCollector,
            ),
            ("go!runtime.memclrNoHeapPointers;go!runtime.mallocgc;go!main.handle", BlockFilling),
            ("go!runtime.memmove;go!runtime.growslice;go!main.handle", BlockFilling),
            ("go!runtime.memclrNoHeapPointers;go!main.handle", Application),
            (
                "go!runtime.gcmarknewobject;go!runtime.mallocgcSmallScanNoHeader;go!main.handle",
                GarbageCollector,
            ),
            ("go!internal/runtime/gc/scan.scanSpanPackedAVX512.abi0;go!runtime.spanQueue", GarbageCollector),
            ("go!runtime.casgstatus;go!runtime.gopark;go!main.handle", Application),
            ("go!runtime.mapaccess1;go!main.handle", Application),
            (
                "node!v8::internal::Scavenger::ScavengeObject;node!v8::internal::ScavengerCollector::JobTask::Run",
                GarbageCollector,
            ),
            (
                "node!v8::internal::Heap::AllocateRawWithLightRetrySlowPath;node!Builtins_Foo",
                RuntimeAllocator,
            ),
            ("node!v8::internal::JsonParser::Parse;node!Builtins_JsonParse", Application),
            ("libjvm!G1ParScanThreadState::trim_queue;libjvm!G1ParTask::work", GarbageCollector),
            (
                "libjvm!MemAllocator::allocate() const;libjvm!InstanceKlass::allocate_instance",
                RuntimeAllocator,
            ),
            ("libjvm!MemAllocator::mem_clear;libjvm!MemAllocator::allocate() const", BlockFilling),
            ("libc!memset;libjvm!MemAllocator::allocate() const", BlockFilling),
            ("libjvm!Parse::do_call;libjvm!C2Compiler::compile_method", Application),
        ] {
            assert_eq!(class_of("", stack), class, "{stack}");
        }
    }

    #[test]
    fn a_stripped_interpreter_collects_while_its_flag_is_set() {
        use CostClass::*;
        let class = |has_symbols: bool, spans: &[(u64, u64)], pid: i32, stack: &str| {
            let mut s = Sketch::new();
            modules(&mut s);
            s.runtime(Runtime::Cpython { version: "3.11.2".into(), free_threaded: false });
            let python = s.recording.modules.iter_mut().find(|m| m.role == ModuleRole::Cpython);
            python.expect("it was added").has_symbols = has_symbols;
            s.samples(1, PID, "", stack);
            let sample = &mut s.recording.samples[0];
            (sample.t_ns, sample.pid) = (50_000_000, pid);
            s.collecting(spans);
            Classifier::new(&s.recording).cpu(&s.recording.samples)[0]
        };
        let now = &[(0, 10), (40, 60), (70, 80)][..];
        let unnamed = "python+1234;python+2345;python!_PyEval_EvalFrameDefault";
        assert_eq!(class(false, now, PID, unnamed), GarbageCollector);
        // Not while the flag was not set, not in another process, and not if names tell more.
        for spans in [&[][..], &[(0, 50)], &[(51, 60)], &[(50, 50)]] {
            assert_eq!(class(false, spans, PID, unnamed), Application, "{spans:?}");
        }
        assert_eq!(class(false, now, PID + 1, unnamed), Application);
        assert_eq!(class(true, now, PID, unnamed), Application);
        for (stack, expected) in [
            // Finalizers that run in the interpreter are included, and copies that it makes.
            ("python!_PyEval_EvalFrameDefault;python+2345", GarbageCollector),
            ("libc!__memmove_avx_unaligned_erms;python+1234", GarbageCollector),
            // Threads of native code run beside the collector.
            ("app!work;app!run", Application),
            ("libc!__memmove_avx_unaligned_erms;app!work;python+1234", Application),
            ("", Application),
            // Allocators keep their lines.
            ("libc+9800;python+1234;python+2345", AllocatorCode),
            ("libc!pthread_mutex_lock;libjemalloc+100;python+1234", AllocatorLocks),
            ("python!PyObject_Free;python+1234;python+2345", RuntimeAllocator),
            // An allocation started the collector.
            ("python+1234;python+2345;python!_PyObject_GC_New", GarbageCollector),
        ] {
            assert_eq!(class(false, now, PID, stack), expected, "{stack}");
        }
        // The kernel's work for the collector stays in the kernel's lines.
        let mut s = Sketch::new();
        s.samples(1, PID, "do_anonymous_page;handle_mm_fault;exc_page_fault", "app!work");
        s.collecting(now);
        assert_eq!(Classifier::new(&s.recording).cpu(&s.recording.samples), [FaultPath]);
    }

    #[test]
    fn the_caller_of_a_map_call_needs_a_stack() {
        for (stack, malloc) in [
            ("libc!munmap;libc+9800;libc+9900;app!work", Some(true)),
            ("libc+9800;app!work", Some(true)),
            ("libc!munmap;app!work;libc+9800", Some(true)),
            ("libc!munmap;app!work", Some(false)),
            ("app!a;app!b;app!c;app!d;libc+9800", Some(false)),
            ("libc!munmap", None),
            ("", None),
            // The loader, and malloc that the loader calls.
            ("ld.so+100", Some(false)),
            ("ld.so!__mmap64;ld.so!_dl_map_segments;ld.so!dl_main", Some(false)),
            ("libc!mmap;libc+9800;ld.so!_dl_new_object", Some(true)),
        ] {
            let mut s = Sketch::new();
            s.module("ld.so", ModuleRole::Loader);
            s.samples(1, PID, "zap_pte_range", stack);
            let called = Classifier::new(&s.recording).called_by_allocator(&s.recording.samples[0]);
            assert_eq!(called, malloc, "{stack}");
        }
    }

    #[test]
    fn a_jvm_collector_is_known_by_its_thread_and_only_in_a_jvm() {
        for (jvm, comm, class) in [
            (true, "GC Thread#1", CostClass::GarbageCollector),
            (true, "http-nio-8080-e", CostClass::Application),
            (false, "GC Thread#1", CostClass::Application),
        ] {
            let mut s = Sketch::new();
            modules(&mut s);
            if jvm {
                s.runtime(Runtime::Jvm { version: None });
            }
            s.thread(7, comm, 100);
            s.samples(1, 7, "", "libjvm+1234");
            assert_eq!(Classifier::new(&s.recording).cpu(&s.recording.samples)[0], class, "{jvm} {comm}");
        }
    }

    #[test]
    fn the_kernels_side_of_a_lock_follows_its_user() {
        let futex = "_raw_spin_lock;futex_q_lock;futex_wait_setup;__futex_wait;do_futex;__x64_sys_futex;do_syscall_64";
        assert_eq!(
            class_of(futex, "libc!__lll_lock_wait_private;libc+9800;app!work"),
            CostClass::AllocatorLocks
        );
        assert_eq!(class_of(futex, "libc!pthread_cond_wait;app!work"), CostClass::Scheduling);
        assert_eq!(
            class_of("do_syscall_64;entry_SYSCALL_64_after_hwframe", "libc!__brk;libc!sbrk"),
            CostClass::MapCalls
        );
        assert_eq!(
            class_of("do_syscall_64;entry_SYSCALL_64_after_hwframe", "libc!getpid"),
            CostClass::OtherKernel
        );
    }

    #[test]
    fn fault_entry_is_divided_like_the_recognized_faults() {
        let entry = "exc_page_fault;asm_exc_page_fault";
        let touch = "do_anonymous_page;__handle_mm_fault;handle_mm_fault;exc_page_fault";
        let copy = "copy_mc_enhanced_fast_string;do_wp_page;__handle_mm_fault;handle_mm_fault;exc_page_fault";
        let faults_of = |touches, copies, user: &str| {
            let mut s = Sketch::new();
            s.samples(400, PID, entry, user);
            s.samples(90, PID, touch, "app!load");
            s.samples(touches, PID, touch, "app!update");
            s.samples(copies, PID, copy, "app!update");
            let classes = Classifier::new(&s.recording).cpu(&s.recording.samples);
            classes[..400].iter().filter(|c| **c == CostClass::FaultPath).count()
        };
        // The faults of the same function decide; `load` never copies.
        assert_eq!(faults_of(10, 30, "app!update"), 100);
        assert_eq!(faults_of(10, 30, "app!load"), 400);
        // Too few faults in the function: those of the process decide.
        assert_eq!(faults_of(10, 100, "app!rare"), 200);
        assert_eq!(faults_of(1, 1, "app!rare"), 396);
        assert_eq!(faults_of(10, 0, "app!rare"), 400);
    }

    /// Samples in write faults that zero a page, copy it, or show neither, from one user function: the lines that they go
    /// to, as (first touch, copy-on-write, other kernel).
    fn writes(zeroing: u64, copying: u64, neither: u64, owner: Option<Owner>) -> (usize, usize, usize) {
        writes_of(&[("app!update", zeroing, copying, neither)], owner, false)
    }

    /// The same of several functions, in a process that forks or does not.
    fn writes_of(
        functions: &[(&str, u64, u64, u64)],
        owner: Option<Owner>,
        forks: bool,
    ) -> (usize, usize, usize) {
        let mut s = Sketch::new();
        for &(function, zeroing, copying, neither) in functions {
            for (count, leaf) in [
                (zeroing, "clear_page_erms;prep_new_page;vma_alloc_folio_noprof"),
                (copying, "copy_mc_enhanced_fast_string"),
                (neither, "_raw_spin_lock;__pte_offset_map_lock"),
            ] {
                if count > 0 {
                    let stack = format!("{leaf};do_wp_page;__handle_mm_fault;handle_mm_fault;exc_page_fault");
                    s.samples(count, PID, &stack, function);
                }
            }
        }
        s.recording.samples.iter_mut().for_each(|sample| sample.faulted = owner);
        if forks {
            s.samples(1, PID, "copy_page_range;dup_mmap;copy_process;kernel_clone", "app!start");
        }
        let classes = Classifier::new(&s.recording).cpu(&s.recording.samples);
        let count = |of: &[CostClass]| classes.iter().filter(|class| of.contains(class)).count();
        let lines = (
            count(&[CostClass::FaultPath, CostClass::Zeroing]),
            count(&[CostClass::CopyOnWrite]),
            count(&[CostClass::OtherKernel]),
        );
        let others = count(&[CostClass::FileFault, CostClass::ForkExit]);
        assert_eq!(lines.0 + lines.1 + lines.2 + others, classes.len());
        lines
    }

    #[test]
    fn a_write_to_the_zero_page_is_a_first_touch_and_a_copy_is_not() {
        // Memory that was read before it was written, and its twin, which a child shares.
        assert_eq!(writes(40, 0, 200, None), (240, 0, 0));
        assert_eq!(writes(0, 40, 200, None), (0, 240, 0));
        // Both in one function.
        let (touches, copies, _) = writes(80, 20, 300, None);
        assert!((319..=321).contains(&touches) && touches + copies == 400, "{touches} {copies}");
    }

    #[test]
    fn a_kernel_that_zeroes_all_pages_zeroes_those_of_copies_too() {
        let both = |forks| writes_of(&[("app!update", 35, 40, 200)], None, forks);
        assert_eq!(both(true), (0, 275, 0));
        let (touches, copies, _) = both(false);
        // Those that zero are first touches. The others are divided like those that show what they do.
        assert!((127..=130).contains(&touches) && touches + copies == 275, "{touches} {copies}");
        assert_eq!(writes_of(&[("app!update", 35, 40, 0)], None, false), (35, 40, 0));
        assert_eq!(writes_of(&[("app!update", 35, 40, 0)], None, true), (0, 75, 0));
        // Without any copy, a fork changes nothing.
        assert_eq!(writes_of(&[("app!update", 40, 0, 200)], None, true), (240, 0, 0));
    }

    #[test]
    fn a_write_that_neither_zeroes_nor_copies_is_no_copy() {
        // After mprotect. A few samples do not show it.
        assert_eq!(writes(0, 0, 200, None), (0, 0, 200));
        assert_eq!(writes(0, 0, 20, None), (0, 20, 0));
        // One that zeroes or copies stands for a few others, not for all of them.
        assert_eq!(writes(1, 0, 1_000, None), (6, 0, 995));
        assert_eq!(writes(0, 1, 1_000, None), (0, 6, 995));
        assert_eq!(writes(1, 0, 20, None), (21, 0, 0));
        // Nor for those of another function.
        let barriers = ("app!barrier", 0, 0, 1_000);
        assert_eq!(writes_of(&[("app!update", 0, 200, 800), barriers], None, false), (0, 1_000, 1_000));
        // Rare functions are divided together.
        let rare = ["app!a", "app!b", "app!c", "app!d"].map(|function| (function, 0, 0, 20));
        assert_eq!(writes_of(&rare, None, false), (0, 0, 80));
        assert_eq!(writes_of(&rare[..1], None, false), (0, 20, 0));
    }

    #[test]
    fn chance_is_granted_once_for_all_processes() {
        // So many workers with so many samples each: those that count as copies.
        let copies = |workers: u64, copying: u64, neither: u64| {
            let mut s = Sketch::new();
            for worker in 0..workers {
                let from = s.recording.samples.len();
                for (count, leaf) in [(copying, "copy_mc_enhanced_fast_string"), (neither, "_raw_spin_lock")]
                {
                    if count > 0 {
                        s.samples(count, PID, &format!("{leaf};do_wp_page;exc_page_fault"), "app!barrier");
                    }
                }
                s.recording.samples[from..].iter_mut().for_each(|sample| sample.pid = PID + worker as i32);
            }
            let classes = Classifier::new(&s.recording).cpu(&s.recording.samples);
            classes.iter().filter(|class| **class == CostClass::CopyOnWrite).count()
        };
        // After mprotect, in one worker and in fifty.
        assert_eq!((copies(1, 0, 20), copies(50, 0, 20)), (20, 0));
        assert_eq!(copies(50, 0, 40), 0);
        // Workers that copy pages, and twins that copy few of theirs.
        assert_eq!((copies(50, 5, 20), copies(50, 10, 40)), (50 * 25, 50 * 50));
        assert!((298..=300).contains(&copies(50, 1, 20)), "{}", copies(50, 1, 20));
        assert!((250..=300).contains(&copies(50, 1, 34)), "{}", copies(50, 1, 34));
    }

    #[test]
    fn a_page_that_the_child_no_longer_has_is_a_cost_of_the_fork() {
        /// So many samples in forks, from this time on, beside writes all over the window that show neither.
        fn made_writable(forks: u64, from_ms: u64, writes: u64) -> (usize, usize) {
            let mut s = Sketch::new();
            s.samples(writes, PID, "_raw_spin_lock;do_wp_page;exc_page_fault", "app!update");
            let of_forks = s.recording.samples.len();
            if forks > 0 {
                s.samples(forks, PID, "copy_page_range;dup_mmap;copy_process", "app!start");
            }
            s.recording.samples[of_forks..].iter_mut().for_each(|sample| sample.t_ns += from_ms * MS);
            let classes = Classifier::new(&s.recording).cpu(&s.recording.samples);
            let count = |of| classes.iter().filter(|class| **class == of).count();
            (count(CostClass::CopyOnWrite), count(CostClass::OtherKernel))
        }
        assert_eq!((made_writable(10, 0, 200), made_writable(0, 0, 200)), ((200, 0), (0, 200)));
        // No more of them than the forks may have shared.
        assert_eq!(made_writable(1, 0, 200), (50, 150));
        // Only after the first fork: the window has 15 seconds.
        assert_eq!(made_writable(10, 7_500, 200), (100, 100));
        assert_eq!(made_writable(10, 15_000, 200), (0, 200));
    }

    #[test]
    fn a_page_of_a_file_is_copied_for_a_fork_only_after_it() {
        let copies = |from_ms: u64| {
            let mut s = Sketch::new();
            s.samples(100, PID, "copy_mc_enhanced_fast_string;do_wp_page;exc_page_fault", "app!update");
            s.recording.samples.iter_mut().for_each(|sample| sample.faulted = Some(Owner::File));
            s.samples(1, PID, "copy_page_range;dup_mmap;copy_process", "app!start");
            s.recording.samples[100].t_ns = from_ms * MS;
            let classes = Classifier::new(&s.recording).cpu(&s.recording.samples);
            classes.iter().filter(|class| **class == CostClass::CopyOnWrite).count()
        };
        assert_eq!((copies(0), copies(7_500), copies(15_000)), (100, 50, 0));
    }

    #[test]
    fn a_copied_page_of_a_file_is_a_file_fault_unless_a_fork_shares_it() {
        assert_eq!(writes(0, 40, 200, Some(Owner::File)), (0, 0, 0));
        assert_eq!(writes(0, 40, 200, Some(Owner::Heap)), (0, 240, 0));
        assert_eq!(writes_of(&[("app!update", 0, 40, 200)], Some(Owner::File), true), (0, 240, 0));
    }

    #[test]
    fn a_child_that_runs_another_program_shares_no_pages() {
        let child_of = |parent: i32, exe: &str, execs: bool| {
            let mut s = Sketch::new();
            let process = s.recording.processes[0].clone();
            s.recording.processes.push(Process {
                pid: PID + 1,
                ppid: parent,
                exe: Ok(exe.into()),
                ..process
            });
            s.samples(1, PID, "copy_page_range;dup_mmap;copy_process;kernel_clone", "app!start");
            let from = s.recording.samples.len();
            s.samples(1, PID, "copy_mc_enhanced_fast_string;do_wp_page;exc_page_fault", "app!update");
            s.recording.samples[from].faulted = Some(Owner::File);
            if execs {
                s.samples(1, PID, "elf_load;load_elf_binary;bprm_execve", "app!start");
            }
            s.recording.samples[from..].iter_mut().for_each(|sample| sample.pid = PID + 1);
            Classifier::new(&s.recording).cpu(&s.recording.samples)[from]
        };
        assert_eq!(child_of(PID, "/usr/bin/service", false), CostClass::CopyOnWrite);
        for (parent, exe, execs) in
            [(PID, "/usr/bin/service", true), (PID, "/bin/ls", false), (7, "/usr/bin/service", false)]
        {
            assert_eq!(child_of(parent, exe, execs), CostClass::FileFault, "{parent} {exe} {execs}");
        }
    }

    #[test]
    fn the_end_of_a_fault_goes_back_to_it_from_the_function_that_faulted() {
        let touch = "do_anonymous_page;__handle_mm_fault;handle_mm_fault;exc_page_fault";
        let file = "filemap_map_pages;do_fault;__handle_mm_fault;handle_mm_fault;exc_page_fault";
        let classes_of = |price_ns: Option<f64>, faults, own| {
            let mut s = Sketch::new();
            s.ticks(15_000, 500).minor_faults = faults;
            s.samples(600, PID, touch, "app!load");
            s.samples(200, PID, file, "app!load");
            s.samples(own, PID, "", "app!load");
            s.samples(1000, PID, "", "app!compute");
            if let Some(ns) = price_ns {
                s.price(FAULT_RETURN, ns);
            }
            let classes = Classifier::new(&s.recording).cpu(&s.recording.samples);
            let count = |class| classes.iter().filter(|c| **c == class).count();
            (
                count(CostClass::FaultPath) - 600,
                count(CostClass::FileFault) - 200,
                count(CostClass::Application) - 1000,
            )
        };
        // 800,000 faults × 100 ns = 80 samples of a millisecond, three of four to first touch.
        assert_eq!(classes_of(Some(100.0), 800_000, 500), (60, 20, 420));
        // Never more samples than the function has, and none from a function without faults.
        assert_eq!(classes_of(Some(100.0), 8_000_000, 40), (30, 10, 0));
        assert_eq!(classes_of(Some(0.0), 800_000, 500), (0, 0, 500));
        assert_eq!(classes_of(None, 800_000, 500), (0, 0, 500));
    }

    #[test]
    fn a_kernel_stack_without_names_is_not_guessed_at() {
        assert_eq!(class_of("[kernel]+ffff;[kernel]+fffe", "app!work"), CostClass::UnnamedKernel);
    }

    #[test]
    fn invalid_indices_do_not_panic() {
        let mut s = Sketch::new();
        s.samples(1, PID, "", "app!work");
        s.recording.stacks[0].frames = vec![99];
        s.recording.samples[0].kernel = Some(77);
        assert_eq!(Classifier::new(&s.recording).cpu(&s.recording.samples)[0], CostClass::UnnamedKernel);
        s.recording.samples[0].kernel = None;
        s.recording.frames[0].module = Some(1234);
        assert_eq!(Classifier::new(&s.recording).cpu(&s.recording.samples)[0], CostClass::Application);
    }

    fn wait_of(state: char, syscall: Option<i64>, kernel: &str, user: &str, cpu_ms: u64) -> WaitClass {
        let mut s = Sketch::new();
        modules(&mut s);
        s.ticks(0, 0);
        s.thread(7, "worker", cpu_ms);
        s.waits(1, 7, state, syscall, kernel, user);
        Classifier::new(&s.recording).wait(&s.recording.waits[0])
    }

    #[test]
    fn waits_go_to_what_is_waited_for() {
        use WaitClass::*;
        let fault = "rwsem_down_read_slowpath;down_read_killable;lock_mm_and_find_vma;exc_page_fault;asm_exc_page_fault";
        let inode = "rwsem_down_write_slowpath;down_write;ext4_buffered_write_iter;vfs_write;__x64_sys_write";
        let futex = "futex_do_wait;__futex_wait;futex_wait;do_futex;__x64_sys_futex;do_syscall_64";
        for (state, syscall, kernel, user, cpu_ms, class) in [
            ('D', Some(-1), fault, "app!work", 500, AddressSpaceLock),
            ('D', Some(1), inode, "app!work", 500, Storage),
            // Only wchan, or no stack: the system call decides.
            ('D', Some(11), "rwsem_down_write_slowpath", "", 500, AddressSpaceLock),
            ('D', Some(1), "rwsem_down_write_slowpath", "", 500, Storage),
            ('D', Some(9), "", "", 500, AddressSpaceLock),
            ('D', Some(-1), "", "", 500, AddressSpaceLock),
            ('S', Some(202), futex, "libc!__lll_lock_wait_private;libc+9800;app!work", 0, Allocator),
            // A sleeping background thread of an allocator is idle; when it takes its mutex again, it waits in the
            // allocator.
            (
                'S',
                Some(202),
                futex,
                "libc+1;libc!pthread_cond_timedwait;libjemalloc+100;libjemalloc+200",
                5000,
                Idle,
            ),
            (
                'S',
                Some(202),
                futex,
                "libc!__lll_lock_wait;libc!pthread_cond_timedwait;libjemalloc+100",
                5000,
                Allocator,
            ),
            // HotSpot's workers wait for work, even if they are busy; at a safepoint they wait for other threads.
            (
                'S',
                Some(202),
                futex,
                "libc!pthread_cond_wait;libjvm!os::PlatformMonitor::wait(long);libjvm!Monitor::wait(long)",
                5000,
                Idle,
            ),
            (
                'S',
                Some(202),
                futex,
                "libjvm!LinuxWaitBarrier::wait(int);libjvm!SafepointSynchronize::block(JavaThread*)",
                5000,
                Other,
            ),
            (
                'S',
                Some(202),
                futex,
                "libc!sem_wait;libjvm!PosixSemaphore::wait();libjvm!GangWorker::wait_for_task()",
                5000,
                Idle,
            ),
            (
                'S',
                Some(202),
                futex,
                "libc!__lll_lock_wait;libc!pthread_mutex_lock;libjvm!Mutex::lock_contended(Thread*);libjvm!G1CollectedHeap::attempt_allocation_slow",
                5000,
                Other,
            ),
            (
                'S',
                Some(202),
                futex,
                "libc!pthread_cond_wait;libjvm!os::PlatformEvent::park();libjvm!ObjectMonitor::EnterI(JavaThread*)",
                0,
                ApplicationLock,
            ),
            (
                'S',
                Some(202),
                futex,
                "libc!__lll_lock_wait;libc!pthread_mutex_lock;app!work",
                0,
                ApplicationLock,
            ),
            ('S', Some(202), futex, "libc+1;libc!pthread_cond_wait;app!worker_loop", 5000, Idle),
            // CPython's interpreter lock uses a condition variable, but it is a lock.
            (
                'S',
                Some(202),
                futex,
                "libc!pthread_cond_timedwait;python!take_gil;python!PyEval_RestoreThread",
                0,
                Gil,
            ),
            // No user stack: a busy thread waits for a lock, an idle one is parked.
            ('S', Some(202), "", "", 5000, ApplicationLock),
            ('S', Some(202), "", "", 10, Idle),
            ('S', Some(232), "", "", 5000, Idle),
            ('S', Some(0), "", "", 5000, Idle),
            ('D', Some(0), "", "", 5000, Storage),
            ('D', Some(0), "io_schedule;folio_wait_bit_common;filemap_read;vfs_read", "", 5000, Storage),
            ('D', Some(-1), "io_schedule;folio_wait_bit_common;filemap_fault;__do_fault", "", 5000, Storage),
            ('S', None, "", "", 5000, Other),
            // posix_spawn waits until its child runs the new program, with or without a stack.
            ('D', Some(56), "kernel_clone;__do_sys_clone;do_syscall_64", "app!start", 500, Idle),
            ('D', Some(435), "wait_for_vfork_done", "", 500, Idle),
            ('D', Some(56), "", "", 500, Idle),
            // Locks of the start itself, and those of the counters that the child inherits.
            ('D', Some(56), "cgroup_css_set_fork;cgroup_can_fork;copy_process;kernel_clone", "", 500, Other),
            (
                'D',
                Some(56),
                "perf_trace_init;perf_tp_event_init;perf_init_event;copy_process;kernel_clone",
                "",
                500,
                Other,
            ),
            ('D', Some(231), "perf_trace_destroy;_free_event;perf_event_exit_task;do_exit", "", 500, Other),
            // A program is read from storage when it starts.
            ('D', Some(59), "io_schedule;folio_wait_bit_common;filemap_read;bprm_execve", "", 500, Storage),
            ('D', Some(59), "nfs_wait_bit_killable;nfs_file_read;kernel_read;bprm_execve", "", 500, Storage),
            // The sleep of a reader of FUSE can be interrupted. Its server waits for work.
            ('S', Some(0), "request_wait_answer;__fuse_simple_request;fuse_file_read_iter", "", 500, Storage),
            ('S', Some(0), "fuse_dev_do_read;fuse_dev_read;vfs_read", "", 500, Idle),
            // Threads that share a socket.
            ('D', Some(47), "__lock_sock;lock_sock_nested;tcp_recvmsg;inet_recvmsg", "", 500, Idle),
            ('T', Some(35), "", "", 0, Stopped),
        ] {
            assert_eq!(
                wait_of(state, syscall, kernel, user, cpu_ms),
                class,
                "{state} {syscall:?} {kernel} {user}"
            );
        }
    }

    #[test]
    fn a_wait_is_surely_for_storage_if_a_function_or_the_call_shows_it() {
        let inode = "rwsem_down_write_slowpath;down_write;ext4_buffered_write_iter;vfs_write;__x64_sys_write";
        for (syscall, kernel, sure) in [
            (0, "folio_wait_bit_common;filemap_read;vfs_read", true),
            (1, "wait_transaction_locked", true),
            (82, "wait_current_trans;start_transaction;btrfs_rename2", true),
            (17, "cv_wait_common", true),
            (74, "ext4_sync_file;vfs_fsync_range;do_fsync", true),
            // Only the call is known.
            (0, "", true),
            (17, "", true),
            (306, "", true),
            (16, "", false),
            // Locks of a file, of the kernel's files and of its network. Most stacks begin with the caller of a lock.
            (18, inode, false),
            (18, "ext4_buffered_write_iter;vfs_write;ksys_pwrite64", false),
            (0, "kernfs_fop_read_iter;vfs_read;ksys_read", false),
            (47, "netlink_dump;netlink_recvmsg;sock_recvmsg", false),
        ] {
            let mut s = Sketch::new();
            s.waits(1, 7, 'D', Some(syscall), kernel, "");
            let classifier = Classifier::new(&s.recording);
            let wait = &s.recording.waits[0];
            let got = (classifier.wait(wait), classifier.surely_waits_for_storage(wait));
            assert_eq!(got, (WaitClass::Storage, sure), "{syscall} {kernel}");
        }
    }

    #[test]
    fn a_go_thread_that_waits_in_a_futex_is_idle() {
        for (runtime, class) in [
            (Runtime::Go { version: None }, WaitClass::Idle),
            (Runtime::Jvm { version: None }, WaitClass::ApplicationLock),
        ] {
            let mut s = Sketch::new();
            modules(&mut s);
            s.runtime(runtime);
            s.thread(7, "svc", 5000);
            s.waits(1, 7, 'S', Some(202), "futex_do_wait", "go+10");
            assert_eq!(Classifier::new(&s.recording).wait(&s.recording.waits[0]), class);
        }
    }

    #[test]
    fn call_numbers_are_read_by_the_recordings_architecture() {
        let mut s = Sketch::new();
        s.thread(7, "worker", 5000);
        s.waits(1, 7, 'S', Some(202), "", "");
        s.recording.host.architecture = "aarch64".into();
        s.recording.processes[0].libc = Ok(Libc::Static);
        assert_eq!(Classifier::new(&s.recording).wait(&s.recording.waits[0]), WaitClass::Idle);
    }
}
