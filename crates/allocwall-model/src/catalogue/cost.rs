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
    GarbageCollector,
    FaultPath,
    Zeroing,
    /// The map calls themselves ([`MapCall`](super::syscalls::MapCall)).
    MapCalls,
    /// Pages returned while the process runs: zap, free, TLB flush.
    PageRelease,
    AddressSpaceLock,
    /// Reclaim, compaction and khugepaged work that the kernel charges to the target.
    Reclaim,
    OtherKernel,
    /// Kernel time whose symbols could not be read.
    UnnamedKernel,
}

impl CostClass {
    /// In the order of the bill.
    pub const ALL: [CostClass; 13] = [
        CostClass::Application,
        CostClass::AllocatorCode,
        CostClass::AllocatorLocks,
        CostClass::RuntimeAllocator,
        CostClass::GarbageCollector,
        CostClass::FaultPath,
        CostClass::Zeroing,
        CostClass::MapCalls,
        CostClass::PageRelease,
        CostClass::AddressSpaceLock,
        CostClass::Reclaim,
        CostClass::OtherKernel,
        CostClass::UnnamedKernel,
    ];

    /// Whether the line is kernel time. Allocator locks are in user space and in the kernel; they count as user time.
    pub fn is_kernel(self) -> bool {
        matches!(
            self,
            CostClass::FaultPath
                | CostClass::Zeroing
                | CostClass::MapCalls
                | CostClass::PageRelease
                | CostClass::AddressSpaceLock
                | CostClass::Reclaim
                | CostClass::OtherKernel
                | CostClass::UnnamedKernel
        )
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
            CostClass::GarbageCollector => "garbage_collector",
            CostClass::FaultPath => "fault_path",
            CostClass::Zeroing => "zeroing",
            CostClass::MapCalls => "map_calls",
            CostClass::PageRelease => "page_release",
            CostClass::AddressSpaceLock => "address_space_lock",
            CostClass::Reclaim => "reclaim",
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
            CostClass::GarbageCollector => "garbage collector",
            CostClass::FaultPath => "first touch: fault path",
            CostClass::Zeroing => "first touch: zeroing",
            CostClass::MapCalls => "map/unmap/brk/madvise",
            CostClass::PageRelease => "page release",
            CostClass::AddressSpaceLock => "address-space lock",
            CostClass::Reclaim => "reclaim and compaction",
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
    /// In uninterruptible sleep, or blocked in a read or write of storage.
    Storage,
    /// Futex waits outside the allocator: the application's locks and condition variables.
    ApplicationLock,
    /// Poll, accept, receive, sleep: waiting for work.
    Idle,
    Other,
}

impl WaitClass {
    pub const ALL: [WaitClass; 10] = [
        WaitClass::AddressSpaceLock,
        WaitClass::Allocator,
        WaitClass::RunQueue,
        WaitClass::Throttled,
        WaitClass::Stolen,
        WaitClass::Stopped,
        WaitClass::Storage,
        WaitClass::ApplicationLock,
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
