//! The values that the rungs use: lines of the bill, increases of counters over the window, the process that used most
//! CPU.

use crate::ShellLine;
use crate::bill::{
    self, Bill, Classified, GENERATED_CODE, LEAST_KNOWN, NO_CALLERS, NO_SYMBOL, NO_USER_STACK, Site, SlabUse,
    Starts, StorageWaits, WaitLine,
};
use crate::counted::Calling;
use allocwall_model::catalogue::advice;
use allocwall_model::catalogue::cost::{CostClass, WaitClass};
use allocwall_model::catalogue::fast_paths::{CallPath, path_of};
use allocwall_model::catalogue::owners::Owner;
use allocwall_model::catalogue::prices::MALLOC_ARENA;
use allocwall_model::catalogue::remedies::Remedy;
use allocwall_model::catalogue::symbols::UserRole;
use allocwall_model::catalogue::syscalls::MapCall;
use allocwall_model::catalogue::thresholds::MIN_SAMPLES;
use allocwall_model::catalogue::walls::Wall;
use allocwall_model::machine::chosen;
use allocwall_model::recording::{
    AllocatorKind, CgroupTick, Ended, HostTick, ModuleRole, ProbeName, Process, Recording, Smaps, Stack,
    Tick, gained,
};
use allocwall_model::resident::Returned;
use allocwall_model::stats::wilson;
use allocwall_model::units::{Absence, Interval, Measured, Reason};
use std::cell::OnceCell;
use std::collections::BTreeMap;

pub struct Context<'a> {
    pub recording: &'a Recording,
    pub bill: &'a Bill,
    pub window_s: f64,
    /// CPU-seconds per second that the kernel charged to the target.
    pub cpu_rate: f64,
    // Each of these reads every sample, and many remedies need it, so it is computed once.
    served: OnceCell<(Served, String)>,
    counted: OnceCell<Option<Calling<'a>>>,
    map_calls_by_malloc: OnceCell<Measured<Interval>>,
    past_huge_pages: OnceCell<Interval>,
    starts: OnceCell<Starts>,
    slab: OnceCell<SlabUse>,
    storage: OnceCell<StorageWaits>,
    classified: OnceCell<Classified<'a>>,
}

/// Several lines of the bill as one.
#[derive(Clone, Copy, Debug)]
pub struct Sum {
    /// Fraction of the target's CPU time. The upper end includes the kernel time without symbols, which may belong to
    /// it.
    pub share: Interval,
    /// The same without the kernel time without symbols.
    pub named: Interval,
    /// CPU-seconds per second of the window.
    pub rate: Interval,
}

impl Sum {
    pub const NONE: Sum =
        Sum { share: Interval::exact(0.0), named: Interval::exact(0.0), rate: Interval::exact(0.0) };
}

/// Whether the thread cache serves the allocator's calls, as far as the sampled addresses show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    Cached,
    Mixed,
    Missing,
    Unknown,
}

/// A target that was stopped for this part of its threads' time, or more, gets no verdict.
const MOSTLY_STOPPED: f64 = 0.5;

/// In a shorter window, counters have increased in too few ticks of the kernel (4 to 10 ms) to rule anything out.
const LEAST_WINDOW_S: f64 = 0.1;

/// The largest call site of some lines.
pub struct TopSite {
    pub name: String,
    /// Its fraction of the lines, and the lower end of that fraction's 95 % interval.
    pub part: f64,
    pub least: f64,
}

/// See [`Context::unread_s`].
pub fn ended_unread() -> Absence {
    Absence::new(Reason::TooLittle, "the target ended before its scheduler times were read again")
        .mend("diagnose a target that runs longer")
}

impl<'a> Context<'a> {
    pub fn new(recording: &'a Recording, bill: &'a Bill) -> Self {
        let window_s = bill.window_s.max(1e-9);
        Context {
            recording,
            bill,
            window_s,
            cpu_rate: bill.cpu_s / window_s,
            served: OnceCell::new(),
            counted: OnceCell::new(),
            map_calls_by_malloc: OnceCell::new(),
            past_huge_pages: OnceCell::new(),
            starts: OnceCell::new(),
            slab: OnceCell::new(),
            storage: OnceCell::new(),
            classified: OnceCell::new(),
        }
    }

    /// The process that used most CPU. A launched command is often the child of a shell.
    pub fn process(&self) -> Option<&'a Process> {
        main_process(self.recording)
    }

    /// The process that used most CPU, if it can still be measured: short-lived workers end before the window does, and a
    /// launched command is ended after it.
    fn running(&self) -> Option<&'a Process> {
        self.process().filter(|process| self.is_running(process))
    }

    /// The first process of the target that can still be measured.
    pub fn root(&self) -> Option<&'a Process> {
        self.recording.processes.iter().find(|process| self.is_running(process))
    }

    fn is_running(&self, process: &Process) -> bool {
        !self.is_over() && !process.ended
    }

    /// The process whose resident memory was read first, if it can still be measured.
    pub fn billed(&self) -> Option<&'a Process> {
        let pid = self.recording.resident.as_ref().ok()?.bills.first()?.pid;
        let process = self.recording.processes.iter().find(|process| process.pid == pid);
        process.filter(|process| self.is_running(process))
    }

    /// A command that shows the same with another tool: `attached` has the pid of the target. A target that has ended
    /// must be started again, as CMD in `started`.
    pub fn show(&self, attached: impl FnOnce(i32) -> String, started: impl Into<String>) -> ShellLine {
        match self.running() {
            Some(process) => ShellLine::from(attached(process.pid)),
            None => ShellLine::from(started.into()).with_gap(),
        }
    }

    /// Whether a tool that shows functions of the kernel needs root. (Root may measure the processes of any user.)
    pub fn kernel_needs_root(&self) -> bool {
        let host = &self.recording.host;
        let shown = matches!(host.perf_event_paranoid, Ok(level) if level <= 1);
        host.euid == 0 || !shown || host.kptr_restrict != Ok(0)
    }

    /// Whether the target has ended.
    pub fn is_over(&self) -> bool {
        matches!(self.recording.meta.ended, Ended::TargetExited { .. })
    }

    pub fn samples(&self) -> u64 {
        self.bill.on_cpu.as_ref().map_or(0, |lines| lines.iter().map(|l| l.samples).sum())
    }

    /// The lines as one, or why they cannot be judged.
    pub fn cpu(&self, classes: &[CostClass]) -> Measured<Sum> {
        let sampled = self.bill.sampled.as_ref().map_err(Clone::clone)?;
        let touches_kernel = classes.iter().any(|c| c.is_named_kernel());
        if touches_kernel && !self.recording.meta.kernel_samples {
            return Err(self
                .recording
                .probe_absence(ProbeName::KernelStacks)
                .unwrap_or_else(|| Absence::new(Reason::NotPermitted, "kernel stacks were not sampled"))
                .mend_if_none([advice::KERNEL_STACKS, advice::RUN_AS_ROOT]));
        }
        let samples = self.samples();
        if samples < MIN_SAMPLES {
            return Err(Absence::new(
                Reason::TooLittle,
                format!("{samples} CPU samples: at least {MIN_SAMPLES} are needed to judge shares"),
            )
            .mend("use a longer window: -d 60"));
        }
        let named = sampled.share(classes);
        let hidden = if touches_kernel { self.unnamed_kernel() } else { 0.0 };
        let share = Interval::new(named.low, named.point, (named.high + hidden).min(1.0));
        Ok(Sum { share, named, rate: share.scaled(self.cpu_rate) })
    }

    /// The time in which the program itself runs, and may wait for its loads.
    pub fn busy(&self) -> Measured<Sum> {
        self.cpu(&[
            CostClass::Application,
            CostClass::AllocatorCode,
            CostClass::RuntimeAllocator,
            CostClass::BlockFilling,
            CostClass::GarbageCollector,
        ])
    }

    /// Kernel time without symbols, which may belong to any line of the kernel.
    pub fn unnamed_kernel(&self) -> f64 {
        self.bill.on_cpu.as_ref().map_or(0.0, |lines| {
            lines
                .iter()
                .filter(|l| l.class == CostClass::UnnamedKernel && l.share.point > 0.0)
                .map(|l| l.share.high)
                .sum()
        })
    }

    pub fn wait(&self, class: WaitClass) -> Measured<Interval> {
        match self.wait_line(class) {
            Some(line) => line.thread_s.clone(),
            None => {
                Err(Absence::new(Reason::NotFound, format!("the bill has no line for {}", class.title())))
            }
        }
    }

    pub fn wait_point(&self, class: WaitClass) -> f64 {
        self.wait(class).map_or(0.0, |i| i.point)
    }

    fn wait_line(&self, class: WaitClass) -> Option<&'a WaitLine> {
        self.bill.off_cpu.iter().find(|l| l.class == class)
    }

    /// The part of the application's lock waits that was counted there only because the thread was busy.
    pub fn unknown_part_of_locks(&self) -> f64 {
        self.wait_line(WaitClass::ApplicationLock).map_or(0.0, |l| l.unknown_purpose)
    }

    /// Seconds in futex waits whose callers' stacks were not read, so that their line is a guess. `of` selects the
    /// lines.
    pub fn unread_futex_s(&self, of: impl Fn(WaitClass) -> bool) -> f64 {
        self.bill.off_cpu.iter().filter(|l| of(l.class)).map(|l| l.unread * self.wait_point(l.class)).sum()
    }

    /// Seconds in futex waits of unknown purpose that may be for Python's GIL. Many threads that share one lock use so little
    /// CPU time each that their waits count as idle.
    pub fn may_be_gil_s(&self) -> f64 {
        self.bill.off_cpu.iter().map(|l| l.may_be_gil * self.wait_point(l.class)).sum()
    }

    /// Seconds at the end of the window without scheduler times: when a target ends, its times can no longer be read.
    pub fn unread_s(&self) -> f64 {
        let threads = &self.recording.threads;
        match self.recording.meta.ended {
            Ended::TargetExited { .. } => {
                let read_ns = threads.iter().map(|thread| thread.seen_ns).max().unwrap_or(0);
                (self.window_s - read_ns as f64 / 1e9).max(0.0)
            }
            Ended::Complete | Ended::Interrupted | Ended::CutOff => 0.0,
        }
    }

    /// Thread-seconds in which the target ran, or waited for a CPU or a lock. A thread that counts its calls runs, too.
    pub fn active_thread_s(&self) -> f64 {
        let lock = 1.0 - self.unknown_part_of_locks();
        self.bill.cpu_s
            + self.recording.counting_s()
            + [
                WaitClass::AddressSpaceLock,
                WaitClass::Allocator,
                WaitClass::RunQueue,
                WaitClass::Throttled,
                WaitClass::Stolen,
                WaitClass::Gil,
            ]
            .iter()
            .map(|c| self.wait_point(*c))
            .sum::<f64>()
            + lock * self.wait_point(WaitClass::ApplicationLock)
    }

    /// The part of the run-queue time that the target waited for other processes: 0 to 1.
    ///
    /// A waiting thread is assumed to wait for each running thread in proportion to its CPU time. A target with one
    /// thread waits only for other processes.
    pub fn behind_others(&self) -> f64 {
        let Some(others) = self.others_cpu_ns() else {
            return 1.0;
        };
        let threads = &self.recording.threads;
        let own = total(threads.iter().map(|t| t.cpu_ns));
        let (mut behind, mut all) = (0.0, 0.0);
        for thread in threads {
            let delay = thread.run_delay_ns.unwrap_or(0) as f64;
            let competing = others + own.saturating_sub(thread.cpu_ns) as f64;
            all += delay;
            behind += delay * if competing > 0.0 { others / competing } else { 1.0 };
        }
        if all > 0.0 { behind / all } else { 1.0 }
    }

    /// CPU time of all other processes. A recording has the largest of them alone, and without root none, so that it is at least
    /// what the machine was busy without the target. None if neither is known.
    pub fn others_cpu_ns(&self) -> Option<f64> {
        let kept = total(self.recording.neighbours.iter().map(|n| n.cpu_ns)) as f64;
        match self.host_increase(|h| h.busy_ns) {
            Some(busy) => Some(kept.max(busy as f64 - self.bill.cpu_s * 1e9)),
            None => (self.recording.meta.system_wide || kept > 0.0).then_some(kept),
        }
    }

    /// The part of runnable time in which the target's threads waited for one another.
    pub fn behind_itself(&self) -> f64 {
        let delay = self.wait_point(WaitClass::RunQueue);
        let whole = delay + self.bill.cpu_s;
        if whole > 0.0 { delay * (1.0 - self.behind_others()) / whole } else { 0.0 }
    }

    /// CPU-seconds a second that the target would use if no other process, no quota and no hypervisor kept it from the CPU, as
    /// far as these waits were measured. At most what the machine has.
    pub fn undisturbed_cpu_rate(&self) -> f64 {
        let behind_others = self.wait_point(WaitClass::RunQueue) * self.behind_others();
        let lost_s =
            behind_others + self.wait_point(WaitClass::Throttled) + self.wait_point(WaitClass::Stolen);
        let cpus = f64::from(self.recording.host.online_cpus.max(1));
        let wanted = (self.bill.cpu_s + lost_s) / self.window_s;
        wanted.min(cpus).max(self.cpu_rate)
    }

    /// The same as a multiple of the CPU time that it used: 1 or more.
    pub fn undisturbed(&self) -> f64 {
        if self.cpu_rate > 0.0 { self.undisturbed_cpu_rate() / self.cpu_rate } else { 1.0 }
    }

    /// Why nothing of the target's time can be judged, if that is so.
    pub fn unjudged(&self) -> Option<Absence> {
        self.stopped().or_else(|| self.too_short())
    }

    /// A window in which hardly anything was seen. It rules nothing out.
    fn too_short(&self) -> Option<Absence> {
        let seen = self.samples();
        if self.window_s >= LEAST_WINDOW_S || seen >= MIN_SAMPLES {
            return None;
        }
        let detail =
            format!("a window of {:.0} ms with {seen} CPU samples is too short", self.window_s * 1e3);
        Some(Absence::new(Reason::TooLittle, detail).mend("diagnose a target that runs longer"))
    }

    /// The largest call site of these lines that has a name.
    pub fn top_site(&self, classes: &[CostClass]) -> Option<TopSite> {
        let lines = self.bill.on_cpu.as_ref().ok()?;
        let of_classes = lines.iter().filter(|l| classes.contains(&l.class));
        top_site(of_classes.map(|l| (l.share.point, &l.sites[..])))
    }

    /// The largest call site of the time at a lock, spinning and blocked.
    pub fn top_lock_site(&self, spin: &[CostClass], blocked: WaitClass) -> Option<TopSite> {
        let lines = self.bill.on_cpu.iter().flatten().filter(|l| spin.contains(&l.class));
        let waits = self.bill.off_cpu.iter().filter(|l| l.class == blocked);
        top_site(
            lines
                .map(|l| (l.share.point * self.bill.cpu_s, &l.sites[..]))
                .chain(waits.map(|l| (self.wait_point(l.class), &l.sites[..]))),
        )
    }

    /// Increase of a cumulative counter over the window. None if either end lacks it, or if [`gained`] rejects it.
    pub fn increase<T: Into<Option<u64>>>(&self, read: impl Fn(&Tick) -> T) -> Option<u64> {
        let (first, last) = (self.recording.ticks.first()?, self.recording.ticks.last()?);
        gained(read(first).into()?, read(last).into()?)
    }

    pub fn cgroup_increase(&self, read: impl Fn(&CgroupTick) -> u64) -> Option<u64> {
        self.increase(|t| t.cgroup.as_ref().map(&read))
    }

    pub fn host_increase<T: Into<Option<u64>>>(&self, read: impl Fn(&HostTick) -> T) -> Option<u64> {
        self.increase(|t| read(t.host.as_ref()?).into())
    }

    /// Whether the kernel's account of the target's CPU time was read for at least half of the window. Without free
    /// file descriptors some readings fail; two readings at the start say nothing about the rest.
    pub fn cpu_is_known(&self) -> bool {
        let most = |span_ns: u64| span_ns >= self.recording.meta.window_ns / 2;
        let ticks = &self.recording.ticks;
        let by_ticks = match (ticks.first(), ticks.last()) {
            (Some(first), Some(last)) => most(last.t_ns.saturating_sub(first.t_ns)),
            _ => false,
        };
        by_ticks && self.bill.rates.user_cpu_s.is_ok()
            || self.recording.threads.iter().any(|thread| most(thread.seen_ns))
    }

    /// The target was stopped most of the time, and the rest is too little to judge.
    pub fn stopped(&self) -> Option<Absence> {
        let share = self.wait_point(WaitClass::Stopped) / self.bill.rates.thread_s.max(1e-9);
        if share < MOSTLY_STOPPED || self.cpu(&[CostClass::Application]).is_ok() {
            return None;
        }
        let head = format!("the target was stopped for {} of its threads' time", percent(share.min(1.0)));
        Some(match self.recording.probe_absence(ProbeName::Stopped) {
            Some(mut why) => {
                why.detail = format!("{head}; {}", why.detail);
                why
            }
            // The probe has no reason if the target ran again at the end of the window.
            None => Absence::new(
                Reason::TooLittle,
                format!("{head}, by a signal, a tracer or its cgroup's freezer"),
            ),
        })
    }

    /// Mode of transparent huge pages. The recorded text has the form of sysfs, `always [madvise] never`, or is the mode
    /// alone.
    pub fn thp_mode(&self) -> Measured<&'a str> {
        let text = self.recording.host.thp_enabled.as_ref();
        text.map(|text| chosen(text).unwrap_or(text.trim())).map_err(Clone::clone)
    }

    pub fn last_tick(&self) -> Option<&'a Tick> {
        self.recording.ticks.last()
    }

    pub fn last_smaps(&self) -> Option<Smaps> {
        self.recording.ticks.iter().rev().find_map(|t| t.smaps)
    }

    /// What a remedy could return of the target's resident memory.
    pub fn returned(&self, remedy: &Remedy) -> Returned {
        match &self.recording.resident {
            Ok(memory) => memory.returned(remedy.key),
            Err(_) => Returned::Unknown,
        }
    }

    pub fn price(&self, name: &str) -> Option<Interval> {
        self.recording.prices.as_ref().ok()?.get(name).filter(|p| p.low > 0.0)
    }

    /// The part of a wall's page faults that is about memory of these owners. None if the owner of most faults is
    /// unknown.
    pub fn owned(&self, wall: Wall, of: impl Fn(Owner) -> bool) -> Option<Interval> {
        let faulted = self.bill.faulted.iter().find(|faulted| faulted.wall == wall)?;
        let enough = faulted.known >= LEAST_KNOWN && faulted.samples >= MIN_SAMPLES;
        enough.then(|| faulted.part(of))
    }

    pub fn map_call_rate(&self, call: MapCall) -> Option<f64> {
        bill::map_call_rate(self.recording, call)
    }

    /// Counts the samples whose innermost user frame is the allocator's own code.
    fn allocator_leaves(&self) -> Leaves {
        let classifier = &self.classified().classifier;
        let mut leaves = Leaves::default();
        for sample in self.recording.samples.iter().filter(|s| s.kernel.is_none()) {
            let Some(leaf) = self.user_stack(sample.user).and_then(|s| s.frames.first()) else {
                continue;
            };
            if classifier.role(*leaf) != Some(UserRole::Allocator) {
                continue;
            }
            let frame = self.recording.frames.get(*leaf as usize);
            let symbol = frame.and_then(|f| f.symbol.as_deref());
            let in_libc = frame.is_some_and(|f| self.is_libc(f.module));
            leaves.all += 1;
            leaves.named += u64::from(symbol.is_some());
            leaves.in_libc += u64::from(in_libc);
            match path_of(symbol) {
                CallPath::Entry => leaves.libc_entry += u64::from(in_libc),
                CallPath::Miss => leaves.miss += 1,
                CallPath::Unknown => {}
            }
        }
        leaves
    }

    fn user_stack(&self, index: Option<u32>) -> Option<&'a Stack> {
        self.recording.stacks.get(index? as usize)
    }

    fn is_libc(&self, module: Option<u32>) -> bool {
        module
            .and_then(|m| self.recording.modules.get(m as usize))
            .is_some_and(|m| m.role == ModuleRole::Libc)
    }

    fn classified(&self) -> &Classified<'a> {
        self.classified.get_or_init(|| Classified::of(self.recording))
    }

    /// The part of the samples in map calls that malloc made.
    pub fn map_calls_by_malloc(&self) -> Measured<Interval> {
        self.map_calls_by_malloc
            .get_or_init(|| bill::map_calls_by_malloc(self.recording, self.classified()))
            .clone()
    }

    /// The part of first touch, by time, that huge pages would not change. Without samples it is 0.
    pub fn past_huge_pages(&self) -> Interval {
        *self.past_huge_pages.get_or_init(|| {
            match self.classified().classifier.touches_past_huge_pages(&self.recording.samples) {
                (_, 0) => Interval::exact(0.0),
                (past, all) => wilson(past, all),
            }
        })
    }

    /// How processes and threads start and end, by the samples on their line.
    pub fn starts(&self) -> Starts {
        *self.starts.get_or_init(|| Starts::of(self.recording, self.classified()))
    }

    /// What the kernel's own allocator works for, by the samples on its line.
    pub fn slab(&self) -> SlabUse {
        *self.slab.get_or_init(|| SlabUse::of(self.recording, self.classified()))
    }

    /// What shows that its threads wait for storage. Nothing if they do not.
    pub fn storage(&self) -> StorageWaits {
        *self.storage.get_or_init(|| match self.wait_point(WaitClass::Storage) > 0.0 {
            true => StorageWaits::of(self.recording, &self.classified().classifier),
            false => StorageWaits::default(),
        })
    }

    /// Whether a process of the target forked in the window: its address space was copied.
    pub fn forked(&self) -> bool {
        self.starts().forked()
    }

    /// The part of the line of starting and ending processes that posix_spawn would leave out: the copy of the address space,
    /// and its release at exec. 0 without a fork.
    pub fn fork_copy_part(&self) -> f64 {
        self.starts().copies().point
    }

    /// Whether almost all memory that the target maps and touches is of files, by the CPU time in page faults.
    pub fn maps_files(&self) -> bool {
        const ALMOST_NONE: f64 = 0.05;
        let share = |wall: Wall| self.cpu(wall.lines()).map_or(0.0, |sum| sum.named.point);
        let touches = share(Wall::FirstTouch);
        let on_files =
            self.owned(Wall::FirstTouch, |owner| owner == Owner::File).map_or(0.0, |part| part.point);
        let all = share(Wall::FileFault) + touches;
        all > 0.0 && touches * (1.0 - on_files) < ALMOST_NONE * all
    }

    /// Whether most of the file page faults are in shared memory, such as the buffers of a database.
    pub fn faults_shared_memory(&self) -> bool {
        const MOST: f64 = 0.5;
        let shared = self.owned(Wall::FileFault, |owner| owner == Owner::Shared);
        shared.is_some_and(|part| part.low > MOST)
    }

    /// The counted calls. None if calls were not counted, or not those of the process that used most CPU time.
    pub fn counted(&self) -> Option<&Calling<'a>> {
        let of_main = || Calling::of(self.recording.counted.as_ref().ok()?, self.process()?);
        self.counted.get_or_init(of_main).as_ref()
    }

    /// CPU time in malloc for each counted pair of malloc and free, nanoseconds.
    pub fn pair_ns(&self) -> Option<Interval> {
        let pairs = self.counted()?.pairs_per_s();
        let malloc = self.cpu(Wall::AllocatorCode.lines()).ok()?.rate;
        (pairs > 0.0).then(|| malloc.scaled(1e9 / pairs))
    }

    /// By the counted calls, if they decide it.
    fn served_by_counts(&self) -> Option<(Served, String)> {
        let arena = self.price(MALLOC_ARENA);
        self.counted()?.served(self.process()?, self.pair_ns().zip(arena.map(|arena| arena.high)))
    }

    /// Whether the thread cache serves malloc's calls, with the figures for it.
    pub fn served(&self) -> (Served, String) {
        self.served
            .get_or_init(|| self.served_by_counts().unwrap_or_else(|| self.served_by_samples()))
            .clone()
    }

    fn served_by_samples(&self) -> (Served, String) {
        use allocwall_model::catalogue::thresholds::{ENTRY_SHARE, MISS_SHARE};
        let leaves = self.allocator_leaves();
        let all = leaves.all;
        if all < MIN_SAMPLES / 2 {
            return (
                Served::Unknown,
                format!("only {all} samples in malloc: too few to recognize its fast path"),
            );
        }
        // If nearly all functions have names, a miss would be visible.
        if leaves.miss > 0 || leaves.named as f64 >= NEARLY_ALL * all as f64 && leaves.in_libc == 0 {
            let share = leaves.miss as f64 / all as f64;
            let served = if share >= MISS_SHARE.missing {
                Served::Missing
            } else if share <= MISS_SHARE.cached {
                Served::Cached
            } else {
                Served::Mixed
            };
            let text = format!(
                "{} of malloc's samples are in functions that run only when its thread cache misses",
                percent(share)
            );
            return (served, text);
        }
        // The relation between the share of the entry points and cache hits was measured with glibc only.
        let glibc =
            self.process().is_some_and(|p| matches!(&p.allocator, Ok(a) if a.kind == AllocatorKind::Glibc));
        if leaves.libc_entry == 0 || !glibc || leaves.in_libc < MIN_SAMPLES / 2 {
            return (
                Served::Unknown,
                "the functions of this allocator do not show whether its cache hits or misses".into(),
            );
        }
        let share = leaves.libc_entry as f64 / leaves.in_libc as f64;
        let served = if share >= ENTRY_SHARE.cached {
            Served::Cached
        } else if share <= ENTRY_SHARE.missing {
            Served::Missing
        } else {
            Served::Mixed
        };
        let calls = match served {
            Served::Cached => "the thread cache serves most calls",
            Served::Missing => "most calls miss the thread cache",
            Served::Mixed | Served::Unknown => "the thread cache serves a part of the calls",
        };
        let text = format!(
            "{calls}: {} of malloc's time is in malloc and free themselves, not in what they call (served by the cache: about 55 %; missing it: 24 %)",
            percent(share)
        );
        (served, text)
    }
}

/// Samples in the allocator's own code, by the kind of function.
#[derive(Default)]
struct Leaves {
    all: u64,
    named: u64,
    in_libc: u64,
    libc_entry: u64,
    miss: u64,
}

/// If this part of the allocator's samples has names, that counts as all.
const NEARLY_ALL: f64 = 0.9;

/// The largest one that has a name. Each line is its weight and its sites.
fn top_site<'s>(lines: impl Iterator<Item = (f64, &'s [Site])>) -> Option<TopSite> {
    let mut all = 0.0;
    // The weight and its lower end.
    let mut weights: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
    for (weight, sites) in lines {
        all += weight;
        for site in sites {
            let name = site.python.as_deref().unwrap_or_else(|| printed_name(site));
            let sum = weights.entry(name).or_default();
            sum.0 += site.share * weight;
            sum.1 += site.least * weight;
        }
    }
    let of_all = |weight: f64| weight / all.max(f64::MIN_POSITIVE);
    weights.into_iter().filter(|(name, _)| !name.is_empty()).max_by(|(_, a), (_, b)| a.0.total_cmp(&b.0)).map(
        |(name, (weight, least))| TopSite {
            name: name.to_owned(),
            part: of_all(weight),
            least: of_all(least),
        },
    )
}

/// The name to print. A function without a symbol gets the name of its file: `libz.so.1`, `generated code`.
fn printed_name(site: &Site) -> &str {
    match site.function.as_str() {
        NO_SYMBOL | GENERATED_CODE if !site.module.is_empty() => {
            let file = site.module.rsplit('/').next().unwrap_or(&site.module);
            // Code in no mapping that is known.
            Some(file.trim_matches(['[', ']'])).filter(|name| *name != "unknown").unwrap_or_default()
        }
        NO_SYMBOL | NO_USER_STACK | NO_CALLERS => "",
        GENERATED_CODE => "generated code",
        function => function,
    }
}

/// Saturates, because a recording may contain any number.
pub fn total(numbers: impl Iterator<Item = u64>) -> u64 {
    numbers.fold(0, u64::saturating_add)
}

/// The process that used most CPU in the window; the first one if there is a tie.
pub fn main_process(recording: &Recording) -> Option<&Process> {
    let cpu = |pid: i32| -> u64 {
        let own = recording.threads.iter().filter(|t| t.pid == pid);
        total(own.map(|t| t.cpu_ns))
    };
    // `rev`: among equals, `max_by_key` returns the last one.
    recording.processes.iter().rev().max_by_key(|p| cpu(p.pid))
}

/// `0.414` as `41 %`. Small shares have one decimal.
pub fn percent(share: f64) -> String {
    format!("{} %", percentage(share))
}

fn percentage(share: f64) -> String {
    let p = share * 100.0;
    if p < 9.95 && (p - p.round()).abs() > 0.05 { format!("{p:.1}") } else { format!("{p:.0}") }
}

/// `41 % (38–44 %)`. A value without sampling error has no interval.
pub fn percent_interval(i: Interval) -> String {
    if i.high - i.low < 1e-9 {
        return percent(i.point);
    }
    format!("{} ({}–{})", percent(i.point), percentage(i.low), percent(i.high))
}

pub fn bytes(b: f64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut b = b.max(0.0);
    let mut unit = 0;
    while b >= 1024.0 && unit + 1 < UNITS.len() {
        b /= 1024.0;
        unit += 1;
    }
    if b >= 10.0 || unit == 0 { format!("{b:.0} {}", UNITS[unit]) } else { format!("{b:.1} {}", UNITS[unit]) }
}

/// `1234567` as `1.2 M`.
pub fn count(n: f64) -> String {
    match n {
        n if n >= 1e9 => format!("{:.1} G", n / 1e9),
        n if n >= 1e6 => format!("{:.1} M", n / 1e6),
        n if n >= 1e4 => format!("{:.0} k", n / 1e3),
        n if n >= 10.0 => format!("{n:.0}"),
        n => format!("{n:.1}"),
    }
}
