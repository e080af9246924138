//! The walls that a verdict can name, in the order of the ladder.

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wall {
    CgroupThrottling,
    Steal,
    RunQueue,
    /// The target waits (I/O, network, sleep): CPU is not what it lacks.
    Waiting,
    /// Threads wait for locks of the application itself.
    ApplicationLock,
    GarbageCollector,
    FirstTouch,
    MapChurn,
    AddressSpaceLock,
    Tlb,
    Numa,
    CallRate,
    AllocatorCode,
    AllocatorContention,
    Retention,
}

impl Wall {
    pub const ALL: [Wall; 15] = [
        Wall::CgroupThrottling,
        Wall::Steal,
        Wall::RunQueue,
        Wall::Waiting,
        Wall::ApplicationLock,
        Wall::GarbageCollector,
        Wall::FirstTouch,
        Wall::MapChurn,
        Wall::AddressSpaceLock,
        Wall::Tlb,
        Wall::Numa,
        Wall::CallRate,
        Wall::AllocatorCode,
        Wall::AllocatorContention,
        Wall::Retention,
    ];

    /// Number of the rung (1 to 11) that judges it.
    pub fn rung(self) -> u8 {
        match self {
            Wall::CgroupThrottling | Wall::Steal | Wall::RunQueue => 1,
            Wall::Waiting | Wall::ApplicationLock => 2,
            Wall::GarbageCollector => 3,
            Wall::FirstTouch => 4,
            Wall::MapChurn => 5,
            Wall::AddressSpaceLock => 6,
            Wall::Tlb => 7,
            Wall::Numa => 8,
            Wall::CallRate => 9,
            Wall::AllocatorCode | Wall::AllocatorContention => 10,
            Wall::Retention => 11,
        }
    }

    /// Stable key of the JSON formats.
    pub fn key(self) -> &'static str {
        match self {
            Wall::CgroupThrottling => "cgroup_throttling",
            Wall::Steal => "steal",
            Wall::RunQueue => "run_queue",
            Wall::Waiting => "waiting",
            Wall::ApplicationLock => "application_lock",
            Wall::GarbageCollector => "garbage_collector",
            Wall::FirstTouch => "first_touch",
            Wall::MapChurn => "map_churn",
            Wall::AddressSpaceLock => "address_space_lock",
            Wall::Tlb => "tlb",
            Wall::Numa => "numa",
            Wall::CallRate => "call_rate",
            Wall::AllocatorCode => "allocator_code",
            Wall::AllocatorContention => "allocator_contention",
            Wall::Retention => "retention",
        }
    }

    pub fn title(self) -> &'static str {
        match self {
            Wall::CgroupThrottling => "cgroup throttling",
            Wall::Steal => "steal",
            Wall::RunQueue => "run-queue wait",
            Wall::Waiting => "waiting, not CPU",
            Wall::ApplicationLock => "application locks",
            Wall::GarbageCollector => "garbage collector",
            Wall::FirstTouch => "first touch",
            Wall::MapChurn => "map churn",
            Wall::AddressSpaceLock => "address-space lock",
            Wall::Tlb => "TLB",
            Wall::Numa => "NUMA",
            Wall::CallRate => "call rate",
            Wall::AllocatorCode => "allocator code",
            Wall::AllocatorContention => "allocator contention",
            Wall::Retention => "retention",
        }
    }

    /// What it is and how it shows, for a reader who meets the name for the first time.
    pub fn about(self) -> &'static str {
        match self {
            Wall::CgroupThrottling => {
                "The cgroup's CPU quota was used up within its period, and the threads stood still until the next. It looks like slow code at any place. cpu.stat of the cgroup counts it."
            }
            Wall::Steal => {
                "The hypervisor gave the CPU to another guest while this one had work. Nothing inside this machine shows where the time went; /proc/stat counts it."
            }
            Wall::RunQueue => {
                "Threads were ready to run and waited for a CPU that others had: too many threads, a neighbour, or a pin to too few CPUs. /proc/PID/schedstat counts it."
            }
            Wall::Waiting => {
                "The threads wait for the network, for storage or for work. CPU is not what is lacking, and no remedy of memory will help."
            }
            Wall::ApplicationLock => {
                "Threads wait for locks that the program takes itself, outside the allocator. Its code decides."
            }
            Wall::GarbageCollector => {
                "The runtime's collector takes the time. It looks like allocation, since allocating less or a larger heap is what makes it run less, but a malloc is not involved."
            }
            Wall::FirstTouch => {
                "Each first write to a fresh page enters the kernel, which finds a page, fills it with zeros and maps it. Programs that get fresh memory from the kernel again and again pay it again and again."
            }
            Wall::MapChurn => {
                "Memory is mapped and unmapped, or the heap grown and trimmed, over and over: blocks above the mapping threshold, a heap whose top crosses the trim threshold, arenas that shrink. Each unmap is also a TLB shoot-down on every CPU that runs the program."
            }
            Wall::AddressSpaceLock => {
                "One lock guards a process's mappings. Threads that map, unmap or fault at the same time wait for one another in the kernel (mmap_lock)."
            }
            Wall::Tlb => {
                "Translating addresses misses the TLB, since the memory in use is larger than it reaches with small pages. Without a hardware counter it is bounded from above by coverage and load prices: it can be ruled out, never convicted."
            }
            Wall::Numa => {
                "Pages lie on another node than the threads that use them. The counters are the machine's, not the target's, so it contributes at most."
            }
            Wall::CallRate => {
                "malloc and free are fast, and there are too many of them. No allocator will save that; allocating less will: pools, arenas a request, reading less of the document."
            }
            Wall::AllocatorCode => {
                "The allocator's own code takes the time beyond its fast path: searching, splitting, merging, its caches refilled."
            }
            Wall::AllocatorContention => {
                "Threads wait for one another in the allocator: arenas that are shared, blocks that one thread allocates and another frees."
            }
            Wall::Retention => {
                "Resident memory is far above what is live: free blocks between live ones, arenas that keep their own, pages that are given back late."
            }
        }
    }
}
