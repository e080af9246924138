//! Everything that was seen in one window. A plain value: the bill, the ladder and the reports read nothing else.
//!
//! Times are nanoseconds since the start of the window unless the name says otherwise; sizes are bytes.

pub use crate::catalogue::modules::{AllocatorKind, ModuleRole};
pub use crate::machine::{CgroupTick, HostFacts, HostTick, Smaps};
use crate::units::{Absence, Measured};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Recording {
    pub meta: Meta,
    pub host: HostFacts,
    pub cgroup: Option<String>,
    /// The processes of the target that were seen, in order of appearance; the first is the one asked for. Of more than
    /// some thousands only the first: the `processes` probe says so.
    pub processes: Vec<Process>,
    pub probes: Vec<Probe>,
    pub prices: Measured<PriceList>,
    pub ticks: Vec<Tick>,
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
    /// The target's heap at the end of the window, as its own headers tell.
    pub heap: Measured<HeapView>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Meta {
    pub tool_version: String,
    pub started_unix_ms: u64,
    /// Length of the window as it was, not as it was asked for.
    pub window_ns: u64,
    pub requested_ns: u64,
    pub ended: Ended,
    /// The target's CPU time that one CPU sample stands for.
    pub sample_period_ns: u64,
    /// Kernel stacks are in the samples.
    pub kernel_samples: bool,
    /// Samples came from every CPU of the machine (root), so that neighbours are visible.
    pub system_wide: bool,
    /// Mean distance between two looks at the target's waiting threads.
    pub wait_period_ns: u64,
    /// Launched by us: the command line. None when attached.
    pub command: Option<Vec<String>>,
    /// CPU time used by this tool's own process within the window.
    pub own_cpu_ns: u64,
    /// Records that the kernel dropped because a ring was full.
    pub lost_records: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    Complete,
    Interrupted,
    TargetExited {
        /// Exit status or signal as text, where it was our child.
        status: Option<String>,
    },
    /// The recording breaks off: its writer was killed.
    CutOff,
}

/// One process of the target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Process {
    pub pid: i32,
    pub ppid: i32,
    pub comm: String,
    pub exe: Measured<String>,
    #[serde(deserialize_with = "crate::room::charged")]
    pub cmdline: Vec<String>,
    pub libc: Measured<Libc>,
    pub runtime: Measured<Runtime>,
    pub allocator: Measured<Allocator>,
    /// Allocator and runtime settings found in its environment (GLIBC_TUNABLES, MALLOC_*, LD_PRELOAD, PYTHON*, JAVA_TOOL_OPTIONS, GO*…).
    #[serde(deserialize_with = "crate::room::charged")]
    pub environment: Vec<(String, String)>,
    pub thp_disabled: Measured<bool>,
    /// AT_SECURE of the auxiliary vector (setuid, file capabilities): the loader ignores preloads and tunables.
    pub secure_exec: Measured<bool>,
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

/// One source of measurements and what became of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Probe {
    /// Stable key, for example `cpu_samples`, `kernel_stacks`, `waits`, `smaps`, `map_calls`, `python_stacks`.
    pub name: String,
    /// What it measures, for people.
    pub what: String,
    pub state: ProbeState,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProbeState {
    Measured,
    /// Measured in part: what is missing.
    Partial(Absence),
    Absent(Absence),
}

/// What one event costs on this machine. See `catalogue::prices` for the names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PriceList {
    pub measured_unix_s: u64,
    /// Identifies machine and kernel: a list is only used where this matches.
    pub machine: String,
    pub prices: Vec<Price>,
    pub absent: Vec<(String, Absence)>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Price {
    pub name: String,
    /// Median and its 95 % interval, nanoseconds per event.
    pub ns: crate::units::Interval,
    /// Independent repetitions behind the interval.
    pub repetitions: u32,
}

impl PriceList {
    pub fn get(&self, name: &str) -> Option<crate::units::Interval> {
        self.prices.iter().find(|p| p.name == name).map(|p| p.ns)
    }
}

/// More than any counter of a machine gains in a window: 2^56 ns are 8,192 CPUs (the most that a kernel for x86 is built
/// for) busy for more than two hours.
const GAIN_LIMIT: u64 = 1 << 56;

/// What a cumulative counter gained between two readings; None where it ran backwards, or gained what no window brings
/// (a guest's steal jumps when it is migrated). Only the difference tells anything: idle time alone is beyond 2^56 ns on
/// 64 CPUs after 13 days, and the sum over 2,048 CPUs starts again from zero once in four months.
pub fn gained(from: u64, to: u64) -> Option<u64> {
    Some(to.wrapping_sub(from)).filter(|gain| *gain < GAIN_LIMIT)
}

/// One reading of the slow counters. Cumulative values unless said otherwise, of which only differences count: see
/// [`gained`]; None where the source is not there (the probe of the same name says why).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tick {
    pub t_ns: u64,
    // Sum over the target's processes since the first reading, dead children included.
    pub user_ns: u64,
    pub system_ns: u64,
    pub minor_faults: u64,
    pub major_faults: u64,
    pub voluntary_switches: Option<u64>,
    pub involuntary_switches: Option<u64>,
    /// Present values.
    pub threads: u32,
    pub resident: u64,
    pub anonymous: Option<u64>,
    pub vm_data: Option<u64>,
    pub vm_size: u64,
    /// From smaps_rollup, read only at the start and the end.
    pub smaps: Option<Smaps>,
    /// Resident pages per NUMA node, in bytes; not read on a machine of one node.
    pub numa_resident: Option<Vec<u64>>,
    pub cgroup: Option<CgroupTick>,
    /// None where /proc/stat could not be read.
    pub host: Option<HostTick>,
}

/// What the kernel charged to one thread within the window.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ThreadTimes {
    pub pid: i32,
    pub tid: i32,
    pub comm: String,
    /// Part of the window in which it was seen alive.
    pub seen_ns: u64,
    pub cpu_ns: u64,
    /// Runnable but not running; includes throttled time.
    pub run_delay_ns: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Module {
    /// As in /proc/PID/maps; `[kernel]` and `[vdso]` for those.
    pub path: String,
    pub build_id: Option<String>,
    pub role: ModuleRole,
    /// Where the C library's allocator lies in this module, in the module's own addresses (like `Frame::offset`):
    /// the range bracketed by malloc's exported symbols, so that it holds in a stripped library.
    #[serde(deserialize_with = "crate::room::charged")]
    pub malloc_ranges: Vec<(u64, u64)>,
    /// Function symbols were found beyond the exported ones.
    pub has_symbols: bool,
}

/// One code address. Kernel frames have a module of role `Kernel`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Frame {
    pub module: Option<u32>,
    /// Demangled function name; None where no symbol covers the address.
    pub symbol: Option<String>,
    /// Address in the module's own terms (ELF virtual address), absolute where there is no module.
    pub offset: u64,
}

/// Frames of a stack. The kernel's own bound is 127, unless kernel.perf_event_max_stack was raised.
pub const STACK_DEPTH: usize = 512;
/// Frames of a Python stack that a reader takes; a recording keeps fewer.
pub const PYTHON_DEPTH: usize = 64;
/// Words of a command line: what steers a program stands at the front.
pub const CMDLINE_WORDS: usize = 1024;

/// Leaf first.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Stack {
    #[serde(deserialize_with = "crate::room::charged")]
    pub frames: Vec<u32>,
    /// The unwinder reached the thread's first frame. When false, only the callers nearest to the leaf are there.
    pub complete: bool,
}

/// One tick of the CPU clock that hit the target. All stand for `Meta::sample_period_ns`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuSample {
    pub t_ns: u64,
    pub pid: i32,
    pub tid: i32,
    pub cpu: u16,
    /// Index into `stacks`; None when the CPU was in user mode.
    pub kernel: Option<u32>,
    /// Index into `stacks`; None for kernel threads or where user registers were unreadable.
    pub user: Option<u32>,
    /// This sample carried a large stack dump: the ones to draw call sites and flamegraphs from.
    pub deep: bool,
}

/// One look at one thread of the target that was not running. Stands for `weight_ns` of thread time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitSample {
    pub t_ns: u64,
    pub pid: i32,
    pub tid: i32,
    pub weight_ns: u64,
    /// Scheduler state letter of /proc/PID/stat.
    pub state: char,
    /// System call it waits in; None where unreadable; -1 when blocked outside a system call (a page fault).
    pub syscall: Option<i64>,
    /// Kernel stack, leaf first, where readable; else wchan alone as a single frame.
    pub kernel: Option<u32>,
    pub user: Option<u32>,
}

/// One look at one thread's Python stack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PythonSample {
    pub t_ns: u64,
    pub pid: i32,
    pub tid: i32,
    /// `function (file:line)`, leaf first, at most 16.
    #[serde(deserialize_with = "crate::room::charged")]
    pub frames: Vec<String>,
}

/// A count of events, over all of the window or over slices of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EventCount {
    /// `mmap`, `munmap`, `brk`, `madvise`, `mremap`, `mprotect`, `page_faults`, `context_switches`, `cpu_migrations`.
    pub name: String,
    pub count: u64,
    /// Time over which it was counted.
    pub over_ns: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Neighbour {
    pub pid: i32,
    pub comm: String,
    pub cpu_ns: u64,
}

/// Live and free memory of a heap that was read from outside, without the allocator's help.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeapView {
    /// What was walked and how, for example `[heap]: chunk headers, 64 of 2,048 stretches`.
    pub method: String,
    /// Ranges that the allocator holds, whether walked or not.
    pub mapped_bytes: u64,
    /// Of those, resident.
    pub resident_bytes: u64,
    /// In chunks that are in use; the interval is that of the sampling.
    pub live_bytes: crate::units::Interval,
    /// In chunks that are free, resident or not.
    pub free_bytes: crate::units::Interval,
}
