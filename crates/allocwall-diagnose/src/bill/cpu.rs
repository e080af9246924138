//! The lines of CPU time.

use super::classify::Classifier;
use super::sites::{SiteSample, sites};
use super::{Classified, CpuLine, block_of, blocks, increase};
use allocwall_model::catalogue::cost::CostClass;
use allocwall_model::catalogue::prices::CONTEXT_SWITCH;
use allocwall_model::catalogue::walls::Wall;
use allocwall_model::recording::{ModuleRole, ProbeName, Recording, Runtime};
use allocwall_model::stats;
use allocwall_model::units::{Absence, Interval, Measured, Reason};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// CPU time that the kernel charged to the target, in seconds. Times of threads are exact, but miss threads that
/// started and ended between two readings. Times of processes are complete, but have the resolution of clock ticks.
/// Both can only be too small, so the larger one counts. Without both, it is the sampled time. The time of the library that counts
/// is not part of it.
pub fn charged_s(recording: &Recording) -> f64 {
    let charged = accounted_s(recording).unwrap_or(0.0);
    // If the accounts were not read to the end, only the samples show how much is missing.
    let cut = [ProbeName::Counters, ProbeName::RunDelay]
        .into_iter()
        .any(|probe| recording.probe_absence(probe).is_some());
    if charged > 0.0 && !cut { charged } else { charged.max(sampled_s(recording)) }
}

/// By the kernel's accounts alone. None if none of them was read.
fn accounted_s(recording: &Recording) -> Option<f64> {
    let counting = recording.counting_s();
    // Not sum(): that of nothing is -0.
    let threads = recording.threads.iter().fold(0.0, |sum, t| sum + t.cpu_ns as f64);
    let threads = (threads / 1e9 - counting).max(0.0);
    match user_and_system(recording) {
        Ok((user, system)) => Some(threads.max((user + system) / 1e9)),
        Err(_) if recording.threads.is_empty() => None,
        Err(_) => Some(threads),
    }
}

fn sampled_s(recording: &Recording) -> f64 {
    recording.samples.len() as f64 * recording.meta.sample_period_ns as f64 / 1e9
}

/// If this many samples are expected, a small part of them cannot be chance: of 30, 3 or fewer come once in 10^9
/// times (Poisson).
const SAMPLES_DUE: f64 = 30.0;
/// A smaller part of the expected samples than this is no basis for shares.
const LEAST_COVERED: f64 = 0.1;

/// Checks the samples against the kernel's accounts, which are measured independently.
fn samples_cover_the_cpu_time(recording: &Recording) -> Measured<()> {
    let accounted_s = accounted_s(recording);
    // Without kernel samples, only samples of user time are expected.
    let due_s = if recording.meta.kernel_samples {
        accounted_s
    } else {
        user_and_system(recording).ok().map(|(user, _)| user / 1e9)
    };
    let due_s = due_s.unwrap_or(0.0);
    let due = due_s * 1e9 / recording.meta.sample_period_ns.max(1) as f64;
    let seen = recording.samples.len();
    let too_few = |detail: String| Err(Absence::new(Reason::TooLittle, detail));
    if due >= SAMPLES_DUE && (seen as f64) < LEAST_COVERED * due {
        return too_few(format!(
            "the kernel charged {due_s:.2} s of CPU to the target, but samples show only {:.2} s of it",
            sampled_s(recording)
        ));
    }
    if seen > 0 {
        return Ok(());
    }
    let used = match accounted_s {
        Some(0.0) => "it used no CPU in the window".to_owned(),
        Some(s) if s < 1e-3 => "it used less than 1 ms of CPU in the window".to_owned(),
        Some(s) => format!("it used {:.0} ms of CPU in the window", s * 1e3),
        None => "its CPU time could not be read".to_owned(),
    };
    too_few(format!("there is no CPU sample of the target: {used}"))
}

/// User and system time by the processes' accounts, in nanoseconds. Counting counts as user time: the rest of it is small.
fn user_and_system(recording: &Recording) -> Measured<(f64, f64)> {
    let user = increase(recording, |t| Some(t.user_ns))?;
    let system = increase(recording, |t| Some(t.system_ns))?;
    Ok(((user as f64 - recording.counting_s() * 1e9).max(0.0), system as f64))
}

const CLASSES: usize = CostClass::ALL.len();

/// The samples by class in time slices. The share of any set of classes is computed from them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sampled {
    /// Samples by class, in the order of `CostClass::ALL`.
    pub(crate) slices: Vec<[u64; CLASSES]>,
    /// Time that samples cannot cover, in samples.
    pub(crate) unseen: [f64; CLASSES],
    /// The kernel's part of the CPU time, if the kernel was not sampled.
    pub(crate) kernel: Option<Interval>,
}

impl Sampled {
    /// `classes` are the classes of the samples, in the same order. Absent if the split of user and kernel time is
    /// needed, but unknown.
    pub fn of(recording: &Recording, classes: &[CostClass], unseen: &Unseen) -> Measured<Sampled> {
        if recording.samples.is_empty()
            && let Some(absence) = recording.probe_absence(ProbeName::CpuSamples)
        {
            return Err(absence);
        }
        samples_cover_the_cpu_time(recording)?;
        let count = blocks(recording);
        let mut slices = vec![[0; CLASSES]; count];
        for (sample, class) in recording.samples.iter().zip(classes) {
            slices[block_of(sample.t_ns, recording, count)][position(*class)] += 1;
        }
        Ok(Sampled {
            slices,
            unseen: unseen.parts,
            kernel: if recording.meta.kernel_samples { None } else { Some(kernel_share(recording)?) },
        })
    }

    fn samples(&self, classes: &[CostClass]) -> u64 {
        self.hits(classes).map(|(hits, _)| hits).sum()
    }

    fn hits(&self, classes: &[CostClass]) -> impl Iterator<Item = (u64, u64)> {
        self.slices.iter().map(|slice| {
            let hits = classes.iter().map(|c| slice[position(*c)]).sum();
            (hits, slice.iter().sum())
        })
    }

    /// Share of the CPU time of these classes together. They are counted together in each slice: if classes rise and
    /// fall together (fault path and zeroing), the sum is less certain than the intervals of each class suggest.
    pub fn share(&self, classes: &[CostClass]) -> Interval {
        let sampled = stats::proportion_over_time(&self.hits(classes).collect::<Vec<_>>());
        match self.kernel {
            Some(kernel) if classes == [CostClass::UnnamedKernel] => kernel,
            // User samples show how user time is divided. The kernel's accounts show how much user time there is.
            Some(kernel) => Interval::new(
                sampled.low * (1.0 - kernel.high),
                sampled.point * (1.0 - kernel.point),
                sampled.high * (1.0 - kernel.low),
            ),
            None => {
                let samples = self.samples(&CostClass::ALL) as f64;
                let hidden: f64 = classes.iter().map(|c| self.unseen[position(*c)]).sum();
                let all = samples + self.unseen.iter().sum::<f64>();
                let with = |share: f64| {
                    if all > 0.0 { (share * samples + hidden) / all } else { share }
                };
                Interval::new(with(sampled.low), with(sampled.point), with(sampled.high))
            }
        }
    }
}

/// `classes` are the classes of the samples, in the same order.
pub fn lines(
    recording: &Recording,
    classifier: &Classifier,
    classes: &[CostClass],
    sampled: &Sampled,
    cpu_s: f64,
) -> Vec<CpuLine> {
    let mut lines: Vec<CpuLine> = CostClass::ALL
        .into_iter()
        .map(|class| {
            let share = sampled.share(&[class]);
            CpuLine {
                class,
                share,
                cpu_s: share.scaled(cpu_s),
                samples: sampled.samples(&[class]),
                method: method(class, recording).to_owned(),
                may_be_in: may_be_in(class, recording, sampled),
                notes: notes(class, recording, sampled),
                sites: cpu_sites(recording, classifier, classes, class),
            }
        })
        .collect();
    admit_unnamed_kernel(&mut lines, cpu_s);
    lines
}

/// From this part of the application's own time on, waiting for loads is mentioned. Our choice.
const MUCH_WAITING: f64 = 0.3;

/// Says on the line of the application how much of it waits for loads, if that is much.
pub fn note_loads(lines: &mut [CpuLine], waits: &Measured<Interval>) {
    let Some(waits) = waits.as_ref().ok().filter(|waits| waits.low >= MUCH_WAITING) else { return };
    for line in lines.iter_mut().filter(|line| line.class == CostClass::Application) {
        line.notes.push(format!("about {:.0} % of it waits for loads from memory", waits.point * 100.0));
    }
}

/// The line without symbols that may hold a part of this one.
fn may_be_in(class: CostClass, recording: &Recording, sampled: &Sampled) -> Option<CostClass> {
    let unnamed = || sampled.share(&[CostClass::UnnamedKernel]).point > 0.0;
    match class {
        _ if class.is_named_kernel() && (!recording.meta.kernel_samples || unnamed()) => {
            Some(CostClass::UnnamedKernel)
        }
        CostClass::RuntimeAllocator | CostClass::BlockFilling if stripped_runtime(recording).is_some() => {
            Some(CostClass::Application)
        }
        CostClass::GarbageCollector if stripped_runtime(recording).is_some_and(|s| !s.collector_read) => {
            Some(CostClass::Application)
        }
        _ => None,
    }
}

/// Kernel time without symbols may belong to any kernel line, so it is added to the upper bounds of all of them.
fn admit_unnamed_kernel(lines: &mut [CpuLine], cpu_s: f64) {
    let Some(unnamed) = lines.iter().find(|l| l.class == CostClass::UnnamedKernel) else {
        return;
    };
    if unnamed.share.point == 0.0 {
        return;
    }
    let hidden = unnamed.share.high;
    for line in lines.iter_mut().filter(|l| l.class.is_named_kernel()) {
        line.share.high = (line.share.high + hidden).min(1.0);
        line.cpu_s = line.share.scaled(cpu_s);
    }
}

/// The kernel's part of the CPU time, by the processes' accounts. They count clock ticks of 10 ms (proc(5)), so each
/// end can be wrong by one tick.
fn kernel_share(recording: &Recording) -> Measured<Interval> {
    let (user, system) = user_and_system(recording)?;
    let total = user + system;
    if total <= 0.0 {
        return Err(Absence::new(
            Reason::TooLittle,
            "the target used less CPU time than one clock tick of the kernel",
        ));
    }
    let tick = 10e6 * recording.processes.len().max(1) as f64;
    let at = |ns: f64| (ns / total).clamp(0.0, 1.0);
    Ok(Interval::new(at(system - tick), at(system), at(system + tick)))
}

fn cpu_sites(
    recording: &Recording,
    classifier: &Classifier,
    classes: &[CostClass],
    class: CostClass,
) -> Vec<super::Site> {
    let of_class = || recording.samples.iter().zip(classes).filter(|(_, c)| **c == class).map(|(s, _)| s);
    // Only deep samples reach the application through long interpreter stacks. A few of them are no basis for shares.
    let deep = of_class().filter(|s| s.deep).count();
    let only_deep = deep >= 20;
    let samples = of_class().map(|s| SiteSample {
        t_ns: s.t_ns,
        pid: s.pid,
        tid: s.tid,
        kernel: s.kernel,
        user: s.user,
        weight: recording.meta.sample_period_ns.max(1),
        shallow: only_deep && !s.deep,
        with_call: class == CostClass::OtherKernel,
    });
    sites(recording, classifier, samples)
}

/// CPU time that samples cannot cover. A thread that goes to sleep switches away with interrupts off. If the CPU has
/// nothing else to run, a sampling clock that is due in this time fires in the idle task. The length of this time is
/// known, because the kernel's account of the threads is exact. It is added to the lines where the threads go to
/// sleep.
pub struct Unseen {
    /// In samples.
    total: f64,
    /// Parts of it, in the order of `CostClass::ALL`.
    parts: [f64; CLASSES],
}

/// Upper bound of the time that one switch hides from sampling, in switches through a pipe
/// (`prices::CONTEXT_SWITCH`). Measured on a virtual machine: about one, 1.4 of 1.5 µs.
const HIDDEN_BY_A_SWITCH: f64 = 2.0;
/// Price of that switch if this machine's price is unknown. Other machines take twice as long.
const SWITCH_NS: f64 = 1_500.0;
/// Below this part of the CPU time the samples agree with the kernel's account.
const AGREES: f64 = 0.01;
/// At least this many samples of threads that go to sleep are needed to divide the time by.
const MIN_SLEEPS: u64 = 10;

impl Unseen {
    pub fn of(recording: &Recording, classifier: &Classifier, classes: &[CostClass], cpu_s: f64) -> Unseen {
        let nothing = Unseen { total: 0.0, parts: [0.0; CLASSES] };
        let period_ns = recording.meta.sample_period_ns.max(1) as f64;
        let due = cpu_s * 1e9 / period_ns;
        let missing = due - recording.samples.len() as f64;
        // Without the number of switches, no time is added; the report shows the part that the samples do not cover.
        let switches = increase(recording, |t| t.voluntary_switches).unwrap_or(0);
        let prices = recording.prices.as_ref().ok();
        let switch_ns =
            prices.and_then(|list| list.get(CONTEXT_SWITCH)).map_or(SWITCH_NS, |price| price.point);
        let most = switches as f64 * HIDDEN_BY_A_SWITCH * switch_ns / period_ns;
        if !recording.meta.kernel_samples || missing < AGREES * due || most == 0.0 {
            return nothing;
        }
        let mut sleeps = [0u64; CLASSES];
        for (sample, class) in recording.samples.iter().zip(classes) {
            if classifier.goes_to_sleep(sample) {
                sleeps[position(*class)] += 1;
            }
        }
        let sleeping: u64 = sleeps.iter().sum();
        if sleeping < MIN_SLEEPS {
            return nothing;
        }
        let total = missing.min(most);
        Unseen { total, parts: sleeps.map(|n| total * n as f64 / sleeping as f64) }
    }

    /// Seconds of CPU time.
    pub fn seconds(&self, recording: &Recording) -> f64 {
        self.total * recording.meta.sample_period_ns as f64 / 1e9
    }
}

fn position(class: CostClass) -> usize {
    CostClass::ALL.iter().position(|c| *c == class).expect("ALL holds every class")
}

fn method(class: CostClass, recording: &Recording) -> &'static str {
    match class {
        CostClass::Application => "CPU samples: user code that belongs to no line below",
        CostClass::AllocatorCode => {
            "CPU samples: leaf in the allocator's module, malloc's address range or malloc's symbols"
        }
        CostClass::AllocatorLocks => "CPU samples: lock functions and futex calls made by the allocator",
        CostClass::RuntimeAllocator => "CPU samples: the runtime's allocation functions",
        CostClass::BlockFilling => {
            "CPU samples: functions that fill or copy memory, called by malloc or by the runtime's allocator"
        }
        CostClass::GarbageCollector if stripped_runtime(recording).is_some_and(|s| s.collector_read) => {
            "CPU samples: the interpreter's code while its own flag said that it collected"
        }
        CostClass::GarbageCollector => "CPU samples: collector functions on the stack, collector threads",
        CostClass::FaultPath => {
            "CPU samples: kernel stack in a page fault, without zeroing, copies and files; entry and exit of all faults in proportion"
        }
        CostClass::Zeroing => "CPU samples: kernel clearing pages within a page fault",
        CostClass::CopyOnWrite => {
            "CPU samples: kernel stack in a write fault that copies a page of no file, or a page that a fork shares; the samples of all write faults in proportion"
        }
        CostClass::FileFault => {
            "CPU samples: kernel stack in a fault on a page of a file or on a shared page"
        }
        CostClass::MapCalls => "CPU samples: kernel stack in map calls, without page release and locks",
        CostClass::PageRelease => {
            "CPU samples: kernel unmapping pages, except at exit and exec; TLB shootdowns received"
        }
        CostClass::AddressSpaceLock => "CPU samples: semaphore functions below map calls and faults",
        CostClass::Reclaim => "CPU samples: kernel in reclaim, compaction, huge-page collapse",
        CostClass::KernelSlab => {
            "CPU samples: kernel in its own allocator of small objects, except for faults, map calls, reclaim, fork, exit and interrupts"
        }
        CostClass::ForkExit => "CPU samples: kernel stack in fork, clone, exec, exit or wait",
        CostClass::FileSystem => "CPU samples: kernel stack in file system or block code",
        CostClass::Sockets => "CPU samples: kernel stack in network, pipe or splice code",
        CostClass::Scheduling => {
            "CPU samples: kernel stack in the scheduler, futex, poll, epoll or sleep calls"
        }
        CostClass::OtherKernel => "CPU samples: kernel stack in none of the lines above",
        CostClass::UnnamedKernel if !recording.meta.kernel_samples => "system time of the processes",
        CostClass::UnnamedKernel => "CPU samples: kernel stack without symbols",
    }
}

/// Limitations of the figure of a line, each in a few words.
fn notes(class: CostClass, recording: &Recording, sampled: &Sampled) -> Vec<String> {
    let mut notes = vec![];
    let hidden = sampled.unseen[position(class)];
    if hidden >= 1.0 {
        let seconds = hidden * recording.meta.sample_period_ns as f64 / 1e9;
        notes.push(format!("includes {seconds:.2} s in switches to idle, which samples cannot cover"));
    }
    match class {
        CostClass::Application => {
            let unread = recording.samples.iter().filter(|s| s.kernel.is_none() && s.user.is_none()).count();
            if unread > 0 {
                notes.push(format!("{unread} samples without a readable user stack are counted here"));
            }
        }
        CostClass::RuntimeAllocator | CostClass::GarbageCollector => {
            if let Some(stripped) = stripped_runtime(recording) {
                let read = stripped.collector_note().filter(|_| class == CostClass::GarbageCollector);
                notes.push(read.unwrap_or_else(|| {
                    let name = stripped.name;
                    format!("this {name} is stripped: code without symbols is counted as application")
                }));
            }
        }
        CostClass::UnnamedKernel if !recording.meta.kernel_samples && sampled.share(&[class]).point > 0.0 => {
            notes.push(
                "this is the system time of the processes: kernel samples were not permitted".to_owned(),
            );
        }
        _ => {}
    }
    notes
}

/// A process that runs for a smaller part of the window lives for a moment. Our choice.
const MOMENT: f64 = 0.01;

/// Processes that live for a moment. They map and touch their memory once, at their start: no setting of malloc and no other
/// allocator saves that. Empty if the times of the threads are unknown.
fn short_lived(recording: &Recording) -> BTreeSet<i32> {
    let moment = (MOMENT * recording.meta.window_ns as f64) as u64;
    let seen = recording.threads.iter().filter(|thread| thread.seen_ns >= moment);
    let lasting: BTreeSet<i32> = seen.map(|thread| thread.pid).collect();
    let mut spans: BTreeMap<i32, (u64, u64)> = BTreeMap::new();
    for sample in &recording.samples {
        let (from, to) = spans.entry(sample.pid).or_insert((sample.t_ns, sample.t_ns));
        (*from, *to) = ((*from).min(sample.t_ns), (*to).max(sample.t_ns));
    }
    // Readings of the threads are too far apart to see each process.
    let is_short = |pid: &i32, (from, to): (u64, u64)| !lasting.contains(pid) && to - from < moment;
    let known = !lasting.is_empty();
    spans.into_iter().filter(|(pid, span)| known && is_short(pid, *span)).map(|(pid, _)| pid).collect()
}

/// Part of the samples in map calls that the process-wide allocator made, by the frames nearest to the call: in processes that
/// live for more than a moment.
pub fn map_calls_by_malloc(
    recording: &Recording,
    Classified { classifier, classes }: &Classified,
) -> Measured<Interval> {
    const FEWEST: u64 = 20;
    let short_lived = short_lived(recording);
    let (mut calls, mut by_malloc) = (0u64, 0u64);
    for (sample, class) in recording.samples.iter().zip(classes) {
        if Wall::MapChurn.lines().contains(class)
            && let Some(malloc) = classifier.called_by_allocator(sample)
        {
            calls += 1;
            by_malloc += u64::from(malloc && !short_lived.contains(&sample.pid));
        }
    }
    if calls < FEWEST {
        return Err(Absence::new(Reason::TooLittle, format!("only {calls} samples in map calls")));
    }
    Ok(stats::wilson(by_malloc, calls))
}

/// A runtime of the target whose functions cannot be recognized, because its file is stripped.
pub struct Stripped {
    pub name: &'static str,
    /// Its own account shows when its collector ran.
    pub collector_read: bool,
}

impl Stripped {
    /// What the line of the collector contains, if the interpreter's own account defines it.
    pub fn collector_note(&self) -> Option<String> {
        self.collector_read.then(|| {
            format!(
                "this {} is stripped: its own flag shows when it collects; finalizers and frees inside a collection are included",
                self.name
            )
        })
    }
}

/// The target's runtime if it is stripped; of several, one whose collector cannot be recognized either.
pub fn stripped_runtime(recording: &Recording) -> Option<Stripped> {
    let is_stripped = |role| recording.modules.iter().any(|m| m.role == role && !m.has_symbols);
    let (mut readable, mut is_read) = (None, None);
    for process in &recording.processes {
        let (role, name) = match process.runtime {
            Ok(Runtime::Cpython { .. }) => (ModuleRole::Cpython, "Python interpreter"),
            Ok(Runtime::Jvm { .. }) => (ModuleRole::Jvm, "JVM"),
            Ok(Runtime::Node { .. }) => (ModuleRole::Node, "Node"),
            Ok(Runtime::Go { .. }) => (ModuleRole::Go, "Go program"),
            Ok(Runtime::Native) | Err(_) => continue,
        };
        if !is_stripped(role) {
            continue;
        }
        let collector_read =
            role == ModuleRole::Cpython && *is_read.get_or_insert_with(|| collections_are_read(recording));
        if !collector_read {
            return Some(Stripped { name, collector_read });
        }
        readable = Some(Stripped { name, collector_read });
    }
    readable
}

/// Whether the interpreters' accounts show when their collectors ran, for nearly all of their CPU time.
fn collections_are_read(recording: &Recording) -> bool {
    /// The account of a process begins a moment after the window, or after the start of the process.
    const NEARLY_ALL: f64 = 0.9;
    /// Samples of a process, and the times of the first and the last one.
    struct Seen {
        count: u64,
        first_ns: u64,
        last_ns: u64,
    }
    let is_python = |runtime: &Measured<Runtime>| matches!(runtime, Ok(Runtime::Cpython { .. }));
    let mut processes: BTreeMap<i32, Option<Seen>> = recording
        .processes
        .iter()
        .filter(|process| is_python(&process.runtime))
        .map(|process| (process.pid, None))
        .collect();
    for sample in &recording.samples {
        let Some(process) = processes.get_mut(&sample.pid) else {
            continue;
        };
        let t_ns = sample.t_ns;
        let seen = process.get_or_insert(Seen { count: 0, first_ns: t_ns, last_ns: t_ns });
        seen.count += 1;
        seen.first_ns = seen.first_ns.min(t_ns);
        seen.last_ns = seen.last_ns.max(t_ns);
    }
    let read_ns = |pid: i32| {
        let account = recording.accounts.iter().find(|account| account.pid == pid)?;
        account.stopped_ns.is_ok().then_some(account.over_ns)
    };
    let (mut all, mut unread) = (0.0, 0.0);
    for (pid, seen) in &processes {
        let Some(seen) = seen else { continue };
        let lived_ns = seen.last_ns - seen.first_ns;
        let part = match read_ns(*pid) {
            None => 0.0,
            Some(over_ns) if over_ns < lived_ns => over_ns as f64 / lived_ns as f64,
            Some(_) => 1.0,
        };
        all += seen.count as f64;
        unread += seen.count as f64 * (1.0 - part);
    }
    let any = processes.keys().any(|pid| read_ns(*pid).is_some());
    any && unread <= (1.0 - NEARLY_ALL) * all
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocwall_model::recording::Process;
    use allocwall_sketches::recording::{MS, PID, Sketch, account};

    /// A stripped interpreter with 100 samples over the window.
    fn python() -> Sketch {
        let mut s = Sketch::new();
        let module = s.module("python", ModuleRole::Cpython);
        s.recording.modules[module as usize].has_symbols = false;
        s.runtime(Runtime::Cpython { version: "3.11.2".into(), free_threaded: false });
        s.samples(100, PID, "", "python+1234");
        s
    }

    fn is_read(s: &Sketch) -> bool {
        stripped_runtime(&s.recording).expect("it is stripped").collector_read
    }

    /// A second process with the runtime of the first, and this number of samples.
    fn second(s: &mut Sketch, samples: u64) {
        let process = s.recording.processes[0].clone();
        s.recording.processes.push(Process { pid: PID + 1, ..process });
        let from = s.recording.samples.len();
        s.samples(samples, PID + 1, "", "python+1234");
        s.recording.samples[from..].iter_mut().for_each(|sample| sample.pid = PID + 1);
    }

    #[test]
    fn a_target_that_did_not_run_used_no_time_rather_than_less() {
        let mut s = Sketch::new();
        s.recording.threads.clear();
        assert_eq!(format!("{:.0}", charged_s(&s.recording)), "0");
    }

    #[test]
    fn an_account_must_cover_nearly_all_samples() {
        let mut s = python();
        assert!(!is_read(&s), "no account");
        s.collecting(&[]);
        assert!(is_read(&s));
        s.recording.accounts[0].over_ns = 14_000 * MS;
        assert!(is_read(&s));
        s.recording.accounts[0].over_ns = 5_000 * MS;
        assert!(!is_read(&s), "a third of the window");
        s.recording.accounts[0] = account(PID, 15_000 * MS);
        s.recording.accounts[0].stopped_ns = Err(Absence::new(Reason::TooLittle, "test"));
        assert!(!is_read(&s), "the flag was not sampled");
    }

    #[test]
    fn map_calls_of_a_loader_or_at_the_start_of_a_process_are_not_malloc_s_to_save() {
        const MAP: &str = "do_mmap;vm_mmap_pgoff;do_syscall_64";
        const MALLOC: &str = "libc!mmap;libc+9800;app!work";
        // A lasting process, and 30 children that live this long and have three samples each.
        let part = |stack: &str, child_ms: u64, threads_are_known: bool| {
            let mut s = Sketch::new();
            s.module("ld.so", ModuleRole::Loader);
            if threads_are_known {
                s.thread(PID, "service", 100);
            }
            s.samples(30, PID, MAP, MALLOC);
            s.samples(90, PID, MAP, stack);
            for (nth, sample) in (0u64..).zip(&mut s.recording.samples[30..]) {
                sample.pid = PID + 1 + (nth / 3) as i32;
                sample.t_ns = (nth / 3 * 400 + nth % 3 * child_ms / 2) * MS;
            }
            map_calls_by_malloc(&s.recording, &Classified::of(&s.recording)).expect("enough samples").point
        };
        assert_eq!(part("ld.so!_dl_map_segments;ld.so!dl_main", 1_000, true), 0.25);
        assert_eq!((part(MALLOC, 2, true), part(MALLOC, 1_000, true)), (0.25, 1.0));
        // Nothing shows how long they live.
        assert_eq!(part(MALLOC, 2, false), 1.0);
    }

    #[test]
    fn every_process_that_uses_cpu_time_needs_an_account() {
        for (samples, read) in [(0, true), (5, true), (50, false)] {
            let mut s = python();
            s.collecting(&[]);
            if samples > 0 {
                second(&mut s, samples);
            }
            assert_eq!(is_read(&s), read, "{samples}");
            s.recording.accounts.push(account(PID + 1, 15_000 * MS));
            assert!(is_read(&s));
        }
    }

    #[test]
    fn a_collector_that_was_read_hides_in_no_line() {
        let of = |s: &Sketch| {
            let line = |class| {
                let sampled = Sampled::default();
                let notes = notes(class, &s.recording, &sampled);
                (may_be_in(class, &s.recording, &sampled), notes.len(), notes.concat())
            };
            (line(CostClass::GarbageCollector), line(CostClass::RuntimeAllocator))
        };
        let mut s = python();
        let (collector, allocator) = of(&s);
        assert_eq!((collector.0, collector.1), (Some(CostClass::Application), 1));
        assert_eq!(collector, allocator);
        s.collecting(&[(0, 100)]);
        let (collector, with_account) = of(&s);
        assert_eq!((collector.0, collector.1), (None, 1));
        assert!(collector.2.contains("finalizers"), "{}", collector.2);
        assert_eq!(with_account, allocator, "its functions are still not recognized");
        // With symbols there is nothing to say.
        let mut named = python();
        named.recording.modules.iter_mut().for_each(|m| m.has_symbols = true);
        assert_eq!(of(&named).0, (None, 0, String::new()));
        // Another stripped runtime has a collector that was not read.
        s.module("node", ModuleRole::Node);
        s.recording.modules.iter_mut().for_each(|m| m.has_symbols = false);
        let process = s.recording.processes[0].clone();
        let node = Process { pid: PID + 1, runtime: Ok(Runtime::Node { version: None }), ..process };
        s.recording.processes.push(node);
        assert_eq!(of(&s).0.0, Some(CostClass::Application));
    }

    #[test]
    fn much_waiting_for_loads_is_mentioned() {
        let notes = |waits: Measured<Interval>| {
            let mut lines = crate::testing::computing().bill.on_cpu.unwrap();
            note_loads(&mut lines, &waits);
            lines.into_iter().flat_map(|line| line.notes).collect::<Vec<String>>()
        };
        let much = notes(Ok(Interval::new(MUCH_WAITING, 0.412, 0.5)));
        assert_eq!(much, ["about 41 % of it waits for loads from memory"]);
        assert!(notes(Ok(Interval::new(MUCH_WAITING - 0.01, 0.4, 0.5))).is_empty());
        assert!(notes(Err(crate::testing::absent())).is_empty());
    }
}
