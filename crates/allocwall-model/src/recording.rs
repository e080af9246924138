//! Everything that was measured in one window, as a plain value. The bill, the ladder and the reports use only this.
//!
//! Times are nanoseconds since the start of the window unless the name says otherwise; sizes are bytes.

use crate::allocations::Counted;
pub use crate::catalogue::modules::{AllocatorKind, ModuleRole};
pub use crate::catalogue::owners::Owner;
pub use crate::catalogue::probes::ProbeName;
use crate::devices::Devices;
pub use crate::hardware::{HardwareCount, HardwareCounts, HardwareEvent, HardwareSlice, HardwareSlices};
pub use crate::machine::{CgroupTick, HostFacts, HostTick, Smaps, SmapsCost};
use crate::placement::Placement;
use crate::replay::Replay;
use crate::resident::TargetMemory;
use crate::units::{Absence, Measured};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Recording {
    pub meta: Meta,
    pub host: HostFacts,
    pub cgroup: Option<String>,
    /// The processes of the target, in the order in which they were found; the first is the requested one. The number is
    /// limited to some thousands; the `processes` probe says if there were more.
    pub processes: Vec<Process>,
    pub probes: Vec<Probe>,
    pub prices: Measured<PriceList>,
    pub ticks: Vec<Tick>,
    /// What the smaps of the ticks cost.
    pub smaps_cost: Measured<SmapsCost>,
    pub threads: Vec<ThreadTimes>,
    pub modules: Vec<Module>,
    pub frames: Vec<Frame>,
    pub stacks: Vec<Stack>,
    pub samples: Vec<CpuSample>,
    pub waits: Vec<WaitSample>,
    pub python: Vec<PythonSample>,
    pub counts: Vec<EventCount>,
    /// CPU time of processes outside the target while the window was open, largest first.
    pub neighbours: Vec<Neighbour>,
    /// The target's heap at the end of the window, read from the allocator's headers. Absent if `resident` is there: its
    /// rows contain the heap.
    pub heap: Measured<HeapView>,
    /// The resident memory of the target's processes by owner, at the end of the window.
    pub resident: Measured<TargetMemory>,
    /// Where samples of user code were taken, by function.
    pub loads: Measured<Vec<LoadSamples>>,
    /// On which NUMA nodes that memory is. Not read on a machine with one node.
    pub placement: Measured<Placement>,
    /// What the target's language runtimes count themselves, one for each process with such a runtime.
    pub accounts: Vec<RuntimeAccount>,
    /// When collectors ran, for runtimes without symbols: sorted by time within a process.
    pub collecting: Vec<Collecting>,
    /// Page faults by owner in slices of the window, by time. Empty if the kernel's stacks were sampled: then the samples
    /// have owners.
    pub fault_slices: Vec<FaultSlice>,
    /// What the processor counted for the target.
    pub hardware: Measured<HardwareCounts>,
    /// What the disks and the network did.
    pub devices: Devices,
    /// What the target asked of its allocator, as the preloaded library counted it, from the start of the command to the end of the
    /// window. Its stacks have tables of their own. In the diagnosis of a trial's baseline it is from another run of the same command.
    pub counted: Measured<Counted>,
    /// What other allocators and settings cost for these calls.
    pub replayed: Measured<Replay>,
    /// Samples in the library that counts. They are not in `samples`, and their time is not on the bill.
    pub counting_samples: u64,
}

impl Recording {
    pub fn probe(&self, name: ProbeName) -> Option<&Probe> {
        self.probes.iter().find(|probe| probe.name == name)
    }

    /// CPU time that counting took of the target's threads, as far as it was sampled, seconds.
    pub fn counting_s(&self) -> f64 {
        self.counting_samples as f64 * self.meta.sample_period_ns as f64 / 1e9
    }

    /// Why a probe did not measure everything.
    pub fn probe_absence(&self, name: ProbeName) -> Option<Absence> {
        match &self.probe(name)?.state {
            ProbeState::Measured => None,
            ProbeState::Partial(absence) | ProbeState::Absent(absence) => Some(absence.clone()),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Meta {
    pub tool_version: String,
    pub started_unix_ms: u64,
    /// The real length of the window; the requested length is `requested_ns`.
    pub window_ns: u64,
    pub requested_ns: u64,
    pub ended: Ended,
    /// The target's CPU time that one CPU sample represents.
    pub sample_period_ns: u64,
    /// Whether the samples contain kernel stacks.
    pub kernel_samples: bool,
    /// Whether samples were taken on all CPUs of the machine (as root), so that other processes are visible.
    pub system_wide: bool,
    /// Mean time between two samples of the target's waiting threads.
    pub wait_period_ns: u64,
    /// The command line, if allocwall started the target. None if it attached.
    pub command: Option<Vec<String>>,
    /// CPU time of allocwall's own process within the window.
    pub own_cpu_ns: u64,
    /// Records that the kernel dropped because a ring buffer was full.
    pub lost_records: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    Complete,
    Interrupted,
    TargetExited {
        /// Exit status or signal as text, if the target was a child of allocwall.
        status: Option<String>,
    },
    /// The recording is incomplete, because its writer was killed.
    CutOff,
}

/// One process of the target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Process {
    pub pid: i32,
    /// Its number in its own PID namespace, if that is another one than allocwall's.
    pub pid_inside: Option<i32>,
    pub ppid: i32,
    pub comm: String,
    pub exe: Measured<String>,
    #[serde(deserialize_with = "crate::room::charged")]
    pub cmdline: Vec<String>,
    pub libc: Measured<Libc>,
    pub runtime: Measured<Runtime>,
    pub allocator: Measured<Allocator>,
    /// Settings of allocators and runtimes in its environment (GLIBC_TUNABLES, MALLOC_*, LD_PRELOAD, PYTHON*, JAVA_TOOL_OPTIONS, GO*…).
    #[serde(deserialize_with = "crate::room::charged")]
    pub environment: Vec<(String, String)>,
    pub thp_disabled: Measured<bool>,
    /// AT_SECURE of the auxiliary vector (setuid, file capabilities): the loader ignores preloads and tunables.
    pub secure_exec: Measured<bool>,
    /// It had ended when the window closed, or allocwall ended it then. Another process may have its number later.
    pub ended: bool,
    /// Time since its start, as the window opened, or as it joined the target. That of a fork is its parent's until it executes a
    /// program.
    pub age_ns: Measured<u64>,
}

/// Whether a process was started with something that has this name: in its settings ([`Process::environment`]), or in a word
/// of its command line.
pub fn is_set(environment: &[(String, String)], cmdline: &[String], name: &str) -> bool {
    environment.iter().any(|(key, value)| key.contains(name) || value.contains(name))
        || cmdline.iter().any(|word| word.contains(name))
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Libc {
    Glibc { version: String },
    Musl { version: Option<String> },
    Static,
    Other { name: String },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Runtime {
    Native,
    Cpython { version: String, free_threaded: bool },
    Jvm { version: Option<String> },
    Go { version: Option<String> },
    Node { version: Option<String> },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allocator {
    pub kind: AllocatorKind,
    pub how: Linkage,
    /// Path of the module that holds it.
    pub module: String,
    pub version: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Linkage {
    /// The C library's own.
    Libc,
    Linked,
    Preloaded,
    Static,
}

/// Major and minor of a version as it is recorded: `2.36`, `3.13.1+`, `2.36-9+deb12u4`.
pub fn version_of(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.trim().split(['.', '-', '+']);
    let major = parts.next()?.parse().ok()?;
    let minor = parts.next()?;
    let digits = minor.find(|c: char| !c.is_ascii_digit()).unwrap_or(minor.len());
    Some((major, minor[..digits].parse().ok()?))
}

/// One source of measurements, and whether it worked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Probe {
    pub name: ProbeName,
    /// What it measures, as text for the report.
    pub what: String,
    pub state: ProbeState,
}

impl Probe {
    pub fn new(name: ProbeName, state: ProbeState) -> Probe {
        Probe { name, what: name.what().into(), state }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProbeState {
    Measured,
    /// Measured in part. The absence says what is missing.
    Partial(Absence),
    Absent(Absence),
}

/// What one event costs on this machine. See `catalogue::prices` for the names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PriceList {
    pub measured_unix_s: u64,
    /// Identifies machine and kernel. The list is only used if this matches.
    pub machine: String,
    pub prices: Vec<Price>,
    pub absent: Vec<(String, Absence)>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Price {
    pub name: String,
    /// Median and its 95 % interval, nanoseconds per event.
    pub ns: crate::units::Interval,
    /// Number of independent repetitions from which the interval was computed.
    pub repetitions: u32,
}

impl PriceList {
    pub fn get(&self, name: &str) -> Option<crate::units::Interval> {
        self.prices.iter().find(|p| p.name == name).map(|p| p.ns)
    }

    /// Why a price was not measured.
    pub fn why_absent(&self, name: &str) -> Option<&Absence> {
        self.absent.iter().find(|(absent, _)| absent == name).map(|(_, why)| why)
    }

    /// Whether the list has this price, or the reason why not.
    pub fn answers(&self, name: &str) -> bool {
        self.get(name).is_some() || self.why_absent(name).is_some()
    }
}

/// More than any counter of a machine grows in one window: 2^56 ns are 8,192 CPUs (the maximum of an x86 kernel) that are
/// busy for more than two hours.
const GAIN_LIMIT: u64 = 1 << 56;

/// The growth of a cumulative counter between two readings. None if the counter went backwards, or grew by more than is
/// possible in a window (a guest's steal jumps when it is migrated). Only the difference is meaningful: idle time alone is
/// above 2^56 ns on 64 CPUs after 13 days, and the sum over 2,048 CPUs wraps around every four months.
pub fn gained(from: u64, to: u64) -> Option<u64> {
    Some(to.wrapping_sub(from)).filter(|gain| *gain < GAIN_LIMIT)
}

/// One reading of the slow counters. Values are cumulative unless the comment says otherwise; only differences are
/// meaningful (see [`gained`]). None if the source does not exist; the probe of the same name says why.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tick {
    pub t_ns: u64,
    // Sum over the target's processes since the first reading, including children that have exited.
    pub user_ns: u64,
    pub system_ns: u64,
    pub minor_faults: u64,
    pub major_faults: u64,
    pub voluntary_switches: Option<u64>,
    pub involuntary_switches: Option<u64>,
    /// Current values, not cumulative.
    pub threads: u32,
    pub resident: u64,
    pub anonymous: Option<u64>,
    pub vm_data: Option<u64>,
    pub vm_size: u64,
    /// From smaps_rollup. Read at both ends of the window, and at most once a second between them, as far as that is cheap.
    pub smaps: Option<Smaps>,
    pub cgroup: Option<CgroupTick>,
    /// None if /proc/stat could not be read.
    pub host: Option<HostTick>,
}

/// The time that the kernel charged to one thread within the window.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ThreadTimes {
    pub pid: i32,
    pub tid: i32,
    pub comm: String,
    /// Part of the window in which the thread existed.
    pub seen_ns: u64,
    pub cpu_ns: u64,
    /// Runnable but not running; includes throttled time.
    pub run_delay_ns: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Module {
    /// As in /proc/PID/maps; `[kernel]` for the kernel, `[vdso]` for the vDSO.
    pub path: String,
    pub build_id: Option<String>,
    pub role: ModuleRole,
    /// Address ranges of the C library's allocator in this module, in the module's own addresses (like `Frame::offset`).
    /// They are found from malloc's exported symbols, so they are also known in a stripped library.
    #[serde(deserialize_with = "crate::room::charged")]
    pub malloc_ranges: Vec<(u64, u64)>,
    /// Whether the module has function symbols other than the exported ones: a symbol table, or Go's function table.
    pub has_symbols: bool,
}

/// One code address. Kernel frames have a module of role `Kernel`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Frame {
    pub module: Option<u32>,
    /// Demangled function name; None if no symbol covers the address.
    pub symbol: Option<String>,
    /// ELF virtual address within the module; absolute address if there is no module.
    pub offset: u64,
}

/// Maximum number of frames of a stack. The kernel's own limit is 127, unless kernel.perf_event_max_stack is higher.
pub const STACK_DEPTH: usize = 512;
/// Maximum number of frames of a Python stack that a reader reads; a recording keeps fewer.
pub const PYTHON_DEPTH: usize = 64;
/// Maximum number of arguments of a command line; the important ones are at the front.
pub const CMDLINE_WORDS: usize = 1024;

/// Leaf first.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Stack {
    #[serde(deserialize_with = "crate::room::charged")]
    pub frames: Vec<u32>,
    /// Whether the unwinder reached the thread's first frame. If not, the outer callers are missing.
    pub complete: bool,
}

/// One tick of the CPU clock in the target. Each one represents `Meta::sample_period_ns` of CPU time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuSample {
    pub t_ns: u64,
    pub pid: i32,
    pub tid: i32,
    pub cpu: u16,
    /// Index into `stacks`; None if the CPU was in user mode.
    pub kernel: Option<u32>,
    /// Index into `stacks`; None for kernel threads, or if the user registers were not readable.
    pub user: Option<u32>,
    /// Whether the sample has a large stack dump. Call sites and flame graphs use only such samples.
    pub deep: bool,
    /// Whose memory it is about; None if the sample is not in a page fault.
    pub faulted: Option<Owner>,
}

/// Samples in the code of one function of a file, by the instructions before them: more samples fall after one that takes long
/// (`allocwall-measure/src/loads.rs`).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoadSamples {
    /// Index into `frames`.
    pub frame: u32,
    pub samples: u32,
    /// Those after an instruction that loads from memory, other than the stack and the program's own variables.
    pub after_load: u32,
    /// How many would be after one if all instructions near each sample took the same time.
    pub expected: f32,
}

impl LoadSamples {
    /// Of a recording that was read, with this number of frames.
    pub fn is_sound(&self, frames: usize) -> bool {
        (self.frame as usize) < frames
            && self.after_load <= self.samples
            && (0.0..=self.samples as f32).contains(&self.expected)
    }
}

/// One sample of one waiting thread of the target. It represents `weight_ns` of thread time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitSample {
    pub t_ns: u64,
    pub pid: i32,
    pub tid: i32,
    pub weight_ns: u64,
    /// Scheduler state letter of /proc/PID/stat.
    pub state: char,
    /// System call in which it waits; None if not readable; -1 if blocked outside a system call (a page fault).
    pub syscall: Option<i64>,
    /// Whether the first argument of the call lies in CPython's interpreter lock. None if there is no such lock, or its
    /// address is not known.
    pub python_lock: Option<bool>,
    /// Kernel stack, leaf first, if readable; else one frame with wchan.
    pub kernel: Option<u32>,
    pub user: Option<u32>,
}

/// One sample of one thread's Python stack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PythonSample {
    pub t_ns: u64,
    pub pid: i32,
    pub tid: i32,
    /// `function (file:line)`, leaf first, at most 16.
    #[serde(deserialize_with = "crate::room::charged")]
    pub frames: Vec<String>,
}

/// A count of events, over the whole window or over parts of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EventCount {
    /// `mmap`, `munmap`, `brk`, `madvise`, `mremap`, `mprotect`.
    pub name: String,
    pub count: u64,
    /// Time during which the events were counted.
    pub over_ns: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Neighbour {
    pub pid: i32,
    pub comm: String,
    pub cpu_ns: u64,
}

/// What a language runtime counts itself, over the window. These figures stand beside the bill; they are not added to it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RuntimeAccount {
    pub pid: i32,
    /// What was read, and how: `hsperfdata`, `memstats`, `the collector's flag, 250 times a second`.
    pub method: String,
    /// Part of the window in which the account was read.
    pub over_ns: u64,
    /// Time in which the collector stopped the program's threads.
    pub stopped_ns: Measured<Figure>,
    pub collections: Measured<u64>,
    /// CPU time of the collector.
    pub collector_cpu_ns: Measured<Figure>,
    pub allocated_bytes: Measured<Figure>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    pub value: crate::units::Interval,
    /// Whether it was sampled; otherwise it is a counter of the runtime.
    pub sampled: bool,
}

/// A time in which the collector of a process ran, as far as it was sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Collecting {
    pub pid: i32,
    pub from_ns: u64,
    pub to_ns: u64,
}

/// Page faults of the target in one slice of the window. Their number is counted; a part of them was looked up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultSlice {
    pub t_ns: u64,
    pub over_ns: u64,
    /// Each owner at most once. Together they are all faults of the threads that were followed.
    #[serde(deserialize_with = "crate::room::charged")]
    pub owners: Vec<OwnerFaults>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnerFaults {
    pub owner: Owner,
    /// Faults that were looked up.
    pub samples: u32,
    /// Faults that they stand for.
    pub faults: u32,
}

/// Used and free memory of a heap that was read from outside, without the allocator's help.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeapView {
    /// What was read and how, for example `[heap]: chunk headers, 64 of 2,048 stretches`.
    pub method: String,
    /// All ranges that the allocator holds, also those that were not read.
    pub mapped_bytes: u64,
    /// Resident bytes of these ranges.
    pub resident_bytes: u64,
    /// Bytes in chunks that are in use; the interval comes from sampling.
    pub live_bytes: crate::units::Interval,
    /// Bytes in free chunks, resident or not.
    pub free_bytes: crate::units::Interval,
}
