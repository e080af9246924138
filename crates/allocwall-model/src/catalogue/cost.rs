//! The lines of the bill.

use serde::{Deserialize, Serialize};

/// An on-CPU line. Every sampled CPU-second belongs to exactly one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CostClass {
    Application,
    /// Code of the process-wide allocator (malloc and friends).
    AllocatorCode,
    /// CPU burnt taking or waiting for the allocator's locks, user and kernel side.
    AllocatorLocks,
    /// The language runtime's own small-object allocator (pymalloc, Go's mallocgc, V8's and the JVM's slow paths).
    RuntimeAllocator,
    GarbageCollector,
    FaultPath,
    Zeroing,
    /// mmap, munmap, brk, mremap, madvise: the calls themselves.
    MapCalls,
    /// Pages given back while the process lives: zap, free, TLB shoot-down.
    PageRelease,
    AddressSpaceLock,
    /// Reclaim, compaction, khugepaged work charged to the target.
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

    /// Time spent in the kernel. Allocator locks lie on both sides and count as user.
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
            CostClass::Reclaim => "reclaim, compaction",
            CostClass::OtherKernel => "other kernel",
            CostClass::UnnamedKernel => "kernel, no symbols",
        }
    }
}

/// An off-CPU line, in thread-seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitClass {
    AddressSpaceLock,
    Allocator,
    /// Runnable but waiting for a CPU.
    RunQueue,
    Throttled,
    Stolen,
    /// By a signal, by a debugger, or with its cgroup.
    Stopped,
    /// Uninterruptible or blocked in a read/write of storage.
    Storage,
    /// Futex waits outside the allocator: application locks, condition variables.
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
}
