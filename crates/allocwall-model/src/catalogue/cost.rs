//! The lines of the bill.

use serde::{Deserialize, Serialize};

/// A line for time on a CPU. Every sampled CPU-second belongs to exactly one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CostClass {
    Application,
    /// Code of the process-wide allocator (malloc and friends).
    AllocatorCode,
    /// CPU time to take the allocator's locks or to wait for them, in user space and in the kernel.
    AllocatorLocks,
    /// The language runtime's own small-object allocator (pymalloc, Go's mallocgc, V8's and the JVM's slow paths).
    RuntimeAllocator,
    /// Filling and copying blocks within a call of either allocator: the zeros of calloc, the copy of realloc, Go's zeroing.
    /// It costs by the byte, so another allocator changes it little.
    BlockFilling,
    GarbageCollector,
    FaultPath,
    Zeroing,
    /// Write faults on pages that are mapped read-only: mostly pages that parent and child share since a fork.
    CopyOnWrite,
    /// Faults on mapped files, with the copies of private pages, and on shared memory that another process has touched before.
    FileFault,
    /// The map calls themselves ([`MapCall`](super::syscalls::MapCall)).
    MapCalls,
    /// Pages returned while the process runs: zap, free, TLB flush.
    PageRelease,
    AddressSpaceLock,
    /// Reclaim, compaction and khugepaged work that the kernel charges to the target.
    Reclaim,
    /// The kernel's own allocator of small objects (mm/slub.c), for sockets, messages, files and names. What it does for faults, map
    /// calls, reclaim, and processes that start and end is on their lines. Without what interrupts free: the objects of any process.
    KernelSlab,
    /// Processes and threads that start and end, with the page tables that this copies and frees.
    ForkExit,
    /// System calls on files, and storage. Without faults on mapped files, and without the kernel's own allocator.
    FileSystem,
    /// Sockets and pipes, with the network's work in interrupts. Without the kernel's own allocator.
    Sockets,
    /// Switches between threads, wake-ups, futexes, timers, polling.
    Scheduling,
    /// With interrupts, and with the callbacks of RCU that run in them for any process.
    OtherKernel,
    /// Kernel time whose symbols could not be read.
    UnnamedKernel,
}

impl CostClass {
    /// In the order of the bill.
    pub const ALL: [CostClass; 21] = [
        CostClass::Application,
        CostClass::AllocatorCode,
        CostClass::AllocatorLocks,
        CostClass::RuntimeAllocator,
        CostClass::BlockFilling,
        CostClass::GarbageCollector,
        CostClass::FaultPath,
        CostClass::Zeroing,
        CostClass::CopyOnWrite,
        CostClass::FileFault,
        CostClass::MapCalls,
        CostClass::PageRelease,
        CostClass::AddressSpaceLock,
        CostClass::Reclaim,
        CostClass::KernelSlab,
        CostClass::ForkExit,
        CostClass::FileSystem,
        CostClass::Sockets,
        CostClass::Scheduling,
        CostClass::OtherKernel,
        CostClass::UnnamedKernel,
    ];

    /// Whether the line is kernel time. Allocator locks are in user space and in the kernel; they count as user time.
    pub fn is_kernel(self) -> bool {
        // Kernel lines come last.
        self >= CostClass::FaultPath
    }

    /// Kernel time whose symbols could be read.
    pub fn is_named_kernel(self) -> bool {
        self.is_kernel() && self != CostClass::UnnamedKernel
    }

    /// Stable key of the JSON formats.
    pub fn key(self) -> &'static str {
        match self {
            CostClass::Application => "application",
            CostClass::AllocatorCode => "allocator_code",
            CostClass::AllocatorLocks => "allocator_locks",
            CostClass::RuntimeAllocator => "runtime_allocator",
            CostClass::BlockFilling => "block_filling",
            CostClass::GarbageCollector => "garbage_collector",
            CostClass::FaultPath => "fault_path",
            CostClass::Zeroing => "zeroing",
            CostClass::CopyOnWrite => "copy_on_write",
            CostClass::FileFault => "file_fault",
            CostClass::MapCalls => "map_calls",
            CostClass::PageRelease => "page_release",
            CostClass::AddressSpaceLock => "address_space_lock",
            CostClass::Reclaim => "reclaim",
            CostClass::KernelSlab => "kernel_slab",
            CostClass::ForkExit => "fork_exit",
            CostClass::FileSystem => "file_system",
            CostClass::Sockets => "sockets",
            CostClass::Scheduling => "scheduling",
            CostClass::OtherKernel => "other_kernel",
            CostClass::UnnamedKernel => "unnamed_kernel",
        }
    }

    pub fn title(self) -> &'static str {
        match self {
            CostClass::Application => "application",
            CostClass::AllocatorCode => "allocator code",
            CostClass::AllocatorLocks => "allocator locks",
            CostClass::RuntimeAllocator => "runtime's object allocator",
            CostClass::BlockFilling => "filling and copying blocks",
            CostClass::GarbageCollector => "garbage collector",
            CostClass::FaultPath => "first touch: fault path",
            CostClass::Zeroing => "first touch: zeroing",
            CostClass::CopyOnWrite => "copy-on-write",
            CostClass::FileFault => "file page faults",
            CostClass::MapCalls => "map/unmap/brk/madvise",
            CostClass::PageRelease => "page release",
            CostClass::AddressSpaceLock => "address-space lock",
            CostClass::Reclaim => "reclaim and compaction",
            CostClass::KernelSlab => "kernel slab",
            CostClass::ForkExit => "process and thread start and end",
            CostClass::FileSystem => "files and storage",
            CostClass::Sockets => "sockets and pipes",
            CostClass::Scheduling => "scheduling and polling",
            CostClass::OtherKernel => "other kernel",
            CostClass::UnnamedKernel => "kernel without symbols",
        }
    }
}

/// A line for waiting time, in thread-seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitClass {
    AddressSpaceLock,
    Allocator,
    /// Runnable but waiting for a CPU.
    RunQueue,
    Throttled,
    Stolen,
    /// Stopped by a signal or a debugger, or frozen with its cgroup.
    Stopped,
    /// In uninterruptible sleep, or blocked in a read or write of storage, also over the network.
    Storage,
    /// Futex waits outside the allocator: the application's locks and condition variables.
    ApplicationLock,
    /// CPython's interpreter lock: only the thread that holds it runs Python code.
    Gil,
    /// Poll, accept, receive, sleep: waiting for work.
    Idle,
    Other,
}

impl WaitClass {
    pub const ALL: [WaitClass; 11] = [
        WaitClass::AddressSpaceLock,
        WaitClass::Allocator,
        WaitClass::RunQueue,
        WaitClass::Throttled,
        WaitClass::Stolen,
        WaitClass::Stopped,
        WaitClass::Storage,
        WaitClass::ApplicationLock,
        WaitClass::Gil,
        WaitClass::Idle,
        WaitClass::Other,
    ];

    pub fn key(self) -> &'static str {
        match self {
            WaitClass::AddressSpaceLock => "address_space_lock",
            WaitClass::Allocator => "allocator",
            WaitClass::RunQueue => "run_queue",
            WaitClass::Throttled => "throttled",
            WaitClass::Stolen => "stolen",
            WaitClass::Stopped => "stopped",
            WaitClass::Storage => "storage",
            WaitClass::ApplicationLock => "application_lock",
            WaitClass::Gil => "gil",
            WaitClass::Idle => "idle",
            WaitClass::Other => "other",
        }
    }

    pub fn title(self) -> &'static str {
        match self {
            WaitClass::AddressSpaceLock => "blocked on the address-space lock",
            WaitClass::Allocator => "blocked in the allocator",
            WaitClass::RunQueue => "runnable but waiting",
            WaitClass::Throttled => "throttled by the cgroup",
            WaitClass::Stolen => "stolen by the hypervisor",
            WaitClass::Stopped => "stopped (signal, tracer, freezer)",
            WaitClass::Storage => "storage I/O",
            WaitClass::ApplicationLock => "application locks",
            WaitClass::Gil => "Python's GIL",
            WaitClass::Idle => "waiting for work (poll, accept, sleep)",
            WaitClass::Other => "other waits",
        }
    }

    /// The title for a narrow column.
    pub fn short_title(self) -> &'static str {
        match self {
            WaitClass::Stopped => "stopped",
            WaitClass::Idle => "waiting for work",
            _ => self.title(),
        }
    }
}
