//! The walls that a verdict can name, in the order of the ladder.

use super::cost::{CostClass, WaitClass};
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wall {
    CgroupThrottling,
    Steal,
    RunQueue,
    /// The target waits for I/O, the network or a timer. More CPU would not help.
    Waiting,
    /// Threads wait for storage: a disk, or a file system of the network.
    Disk,
    /// TCP segments are lost and sent again.
    Network,
    /// Threads wait for the application's own locks.
    ApplicationLock,
    /// Threads wait for Python's GIL.
    Gil,
    GarbageCollector,
    FirstTouch,
    /// Processes start and end, and copy the pages that they share.
    Fork,
    FileFault,
    MapChurn,
    AddressSpaceLock,
    Tlb,
    Numa,
    /// The kernel's own allocator makes and frees objects for sockets, messages, files and names.
    KernelSlab,
    CallRate,
    /// The bytes of the blocks cost the time, not the number of calls.
    LargeAllocations,
    AllocatorCode,
    AllocatorContention,
    Retention,
}

/// What the walls of a rung have in common, in a few words.
pub fn rung_title(rung: u8) -> &'static str {
    match rung {
        1 => "interference",
        2 => "waiting and locks",
        3 => "garbage collector",
        4 => "page faults",
        5 => "map churn",
        6 => "address-space lock",
        7 => "TLB",
        8 => "NUMA",
        9 => "kernel slab",
        10 => "calls and bytes",
        11 => "allocator",
        12 => "retention",
        _ => "unknown rung",
    }
}

impl Wall {
    pub const ALL: [Wall; 22] = [
        Wall::CgroupThrottling,
        Wall::Steal,
        Wall::RunQueue,
        Wall::Waiting,
        Wall::Disk,
        Wall::Network,
        Wall::ApplicationLock,
        Wall::Gil,
        Wall::GarbageCollector,
        Wall::FirstTouch,
        Wall::Fork,
        Wall::FileFault,
        Wall::MapChurn,
        Wall::AddressSpaceLock,
        Wall::Tlb,
        Wall::Numa,
        Wall::KernelSlab,
        Wall::CallRate,
        Wall::LargeAllocations,
        Wall::AllocatorCode,
        Wall::AllocatorContention,
        Wall::Retention,
    ];

    /// Number of the rung (1 to 12) that judges this wall.
    pub fn rung(self) -> u8 {
        match self {
            Wall::CgroupThrottling | Wall::Steal | Wall::RunQueue => 1,
            Wall::Waiting | Wall::Disk | Wall::Network | Wall::ApplicationLock | Wall::Gil => 2,
            Wall::GarbageCollector => 3,
            Wall::FirstTouch | Wall::Fork | Wall::FileFault => 4,
            Wall::MapChurn => 5,
            Wall::AddressSpaceLock => 6,
            Wall::Tlb => 7,
            Wall::Numa => 8,
            Wall::KernelSlab => 9,
            Wall::CallRate | Wall::LargeAllocations => 10,
            Wall::AllocatorCode | Wall::AllocatorContention => 11,
            Wall::Retention => 12,
        }
    }

    /// The lines of the bill's CPU time that this wall consists of. Empty for a wall of another kind.
    pub const fn lines(self) -> &'static [CostClass] {
        use CostClass::*;
        match self {
            Wall::GarbageCollector => &[GarbageCollector],
            Wall::FirstTouch => &[FaultPath, Zeroing],
            Wall::Fork => &[CopyOnWrite, ForkExit],
            Wall::FileFault => &[FileFault],
            Wall::MapChurn => &[MapCalls, PageRelease],
            Wall::AddressSpaceLock => &[AddressSpaceLock],
            Wall::KernelSlab => &[KernelSlab],
            Wall::CallRate => &[AllocatorCode, RuntimeAllocator],
            Wall::LargeAllocations => &[BlockFilling],
            Wall::AllocatorCode => &[AllocatorCode],
            Wall::AllocatorContention => &[AllocatorLocks],
            _ => &[],
        }
    }

    /// The lines of the bill's waiting time that belong to this wall.
    pub const fn waits(self) -> &'static [WaitClass] {
        match self {
            Wall::Waiting | Wall::Disk => &[WaitClass::Storage],
            Wall::ApplicationLock => &[WaitClass::ApplicationLock],
            Wall::Gil => &[WaitClass::Gil],
            Wall::AddressSpaceLock => &[WaitClass::AddressSpaceLock],
            Wall::AllocatorContention => &[WaitClass::Allocator],
            _ => &[],
        }
    }

    /// Stable key of the JSON formats.
    pub fn key(self) -> &'static str {
        match self {
            Wall::CgroupThrottling => "cgroup_throttling",
            Wall::Steal => "steal",
            Wall::RunQueue => "run_queue",
            Wall::Waiting => "waiting",
            Wall::Disk => "disk",
            Wall::Network => "network",
            Wall::ApplicationLock => "application_lock",
            Wall::Gil => "gil",
            Wall::GarbageCollector => "garbage_collector",
            Wall::FirstTouch => "first_touch",
            Wall::Fork => "fork",
            Wall::FileFault => "file_fault",
            Wall::MapChurn => "map_churn",
            Wall::AddressSpaceLock => "address_space_lock",
            Wall::Tlb => "tlb",
            Wall::Numa => "numa",
            Wall::KernelSlab => "kernel_slab",
            Wall::CallRate => "call_rate",
            Wall::LargeAllocations => "large_allocations",
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
            Wall::Disk => "disk",
            Wall::Network => "network",
            Wall::ApplicationLock => "application locks",
            Wall::Gil => "Python's GIL",
            Wall::GarbageCollector => "garbage collector",
            Wall::FirstTouch => "first touch",
            Wall::Fork => "fork and copy-on-write",
            Wall::FileFault => "file page faults",
            Wall::MapChurn => "map churn",
            Wall::AddressSpaceLock => "address-space lock",
            Wall::Tlb => "TLB",
            Wall::Numa => "NUMA",
            Wall::KernelSlab => "kernel slab",
            Wall::CallRate => "call rate",
            Wall::LargeAllocations => "large allocations",
            Wall::AllocatorCode => "allocator code",
            Wall::AllocatorContention => "allocator contention",
            Wall::Retention => "retention",
        }
    }

    /// What the wall is and how it shows, for a reader who does not know the name.
    pub fn about(self) -> &'static str {
        match self {
            Wall::CgroupThrottling => {
                "The cgroup used up its CPU quota, and the kernel stopped its threads until the next period. In the program this looks like slow code at random places. The kernel counts it in the cgroup's cpu.stat."
            }
            Wall::Steal => {
                "The hypervisor gave the CPU to another guest while this guest had work. /proc/stat counts the lost time, but nothing inside this machine shows which guest got it."
            }
            Wall::RunQueue => {
                "Threads could run, but waited for a CPU that other threads used. Causes: too many threads, other processes, or an affinity to too few CPUs. /proc/PID/schedstat counts it."
            }
            Wall::Waiting => {
                "The threads wait for the network, for storage or for work. The target has enough CPU, so no remedy for memory helps."
            }
            Wall::Disk => {
                "The threads wait for storage: a disk, or a file system of the network or of another process. The wall is judged by their own waits, which allocwall samples; it is named only if a function of the kernel or the system call shows for at least 50 % of them that they are for storage, or for so many that these alone are a wall. The evidence has the figures of the machine's disks from /proc/diskstats, as iostat shows them: how long each was busy, and how long its requests took. Other processes use the disks too, and which of them the target waits for is not known. Disks whose requests the kernel does not count (iostats is 0, and the counters stand still) have no figures. No remedy for memory helps."
            }
            Wall::Network => {
                "TCP segments are lost and sent again. If no answer comes in time, the connection stands still for 0.2 s or more. The kernel counts this for the whole network namespace of the target (/proc/PID/net), which other processes may share. Only losses in TCP are judged: a peer that answers late is time on the line of waiting. Of UDP (DNS, QUIC), the kernel counts what a full buffer drops, but nothing that is lost in transit: if datagrams are 5 % or more of the packets, and at least 1 a second, the wall is not ruled out, but not measured. No remedy for memory helps."
            }
            Wall::ApplicationLock => {
                "Threads wait for locks that the program takes itself, outside the allocator. Only a change of its code helps."
            }
            Wall::Gil => {
                "CPython has one lock for all of its threads, the global interpreter lock (GIL). Only the thread that holds it runs Python code. More threads don't make computing in Python faster; they wait for each other. Many functions in C release the GIL while they compute or wait. Several processes have a GIL each, and the free-threaded build of CPython has none."
            }
            Wall::GarbageCollector => {
                "The runtime's garbage collector takes the time. It runs less often if the program allocates less or has a larger heap. Another malloc does not help, because the collector does not use malloc."
            }
            Wall::FirstTouch => {
                "The first write to a new page enters the kernel, which finds a free page, fills it with zeros and maps it. Programs that return memory to the kernel and get new memory pay this cost each time."
            }
            Wall::Fork => {
                "After a fork, parent and child share all pages. The first write to such a page, by either of them, copies it. The fork itself copies the page tables, and the end of the child frees them, so both grow with the memory of the parent. The line `copy-on-write` has the copies, the line `process and thread start and end` the rest. Threads, posix_spawn, vfork, exec and exit are on that line too; they copy no address space, and are no wall."
            }
            Wall::FileFault => {
                "Each first access to a page of a mapped file enters the kernel, which finds the page in the page cache and maps it. The first write to a private page copies it. Programs that map, read and unmap files again and again pay this cost each time. Nothing is allocated there, so no allocator changes it."
            }
            Wall::MapChurn => {
                "The program maps and unmaps memory, or grows and trims its heap, again and again. Causes: blocks above the mmap threshold, a heap whose top crosses the trim threshold, arenas that shrink. Each unmap also flushes the TLB of every CPU that runs the program."
            }
            Wall::AddressSpaceLock => {
                "One lock, mmap_lock, protects the memory map of a process. Threads that map, unmap or fault at the same time wait for this lock in the kernel."
            }
            Wall::Tlb => {
                "Address translation misses the TLB, because the memory in use is larger than the TLB covers with small pages. On Intel processors from Skylake to Ice Lake, and on Sapphire and Emerald Rapids, allocwall counts the cycles in which the processor walks page tables for a load. Up to Cooper Lake that count leaves out the hypervisor's own tables, so that on a virtual machine it is a lower bound. On other processors it counts the misses, and takes their price from `allocwall calibrate`. Without hardware counters it only computes an upper bound, from the size of the memory and the prices of loads. The bound can rule this wall out, but cannot prove it."
            }
            Wall::Numa => {
                "Pages are on another NUMA node than the threads that use them. Where the processor counts loads from other nodes, the wall is judged by that count. Otherwise allocwall compares where the pages of each process are with the CPUs that its samples ran on, and assumes that all pages are used equally often. That gives an upper bound of the cost, at this machine's price of a remote load. The bound can rule this wall out. Without a count of remote loads, it is found only if at least 80 % of the accesses to a large memory go to another node."
            }
            Wall::KernelSlab => {
                "The kernel allocates memory for its own objects, too: each new connection, open file and looked-up name, and each message on a socket (sk_buff). Its allocator of small objects (slab) counts here, with the charge to the cgroup. Many objects are freed later, by callbacks of RCU in an interrupt. An interrupt comes into any program and frees the objects of every process, so that time is not counted here: it is on the line of other kernel work, and the evidence says how much it is. If that time could make this a wall or a contributor, the wall is not ruled out, but not measured. Programs that make short connections, open files for each request, or send many small messages pay this cost each time. Another malloc does not change it. Neither does the kernel's option slab_nomerge: it only keeps caches apart. Objects for mappings, page faults, and processes that start and end are on the lines of those."
            }
            Wall::CallRate => {
                "The program makes many cheap calls of malloc and free; each one is fast. Allocate less: use pools, one arena per request, or parse only the needed parts of a document. Another allocator saves little of the calls' own time. But it places blocks elsewhere, and a program that follows pointers can gain much from that; only a trial shows it."
            }
            Wall::LargeAllocations => {
                "The program allocates large blocks, and the time goes to filling them with zeros or copying them, not to finding them: calloc on memory that was used before, realloc that moves a block, new slices in Go, new arrays in Java. A few calls are enough. Another allocator fills and copies about as many bytes. Reuse the blocks, allocate smaller ones, or ask for zeros only where they are needed. JIT-compiled code zeroes its new objects itself; that time is counted as application. So are the zeros of a calloc that is called through a register or a function pointer: it ends with a jump to memset, and the call in the code does not show the function."
            }
            Wall::AllocatorCode => {
                "The allocator's slow paths take the time: it searches, splits and merges blocks, and refills its caches."
            }
            Wall::AllocatorContention => {
                "Threads wait for locks of the allocator. Causes: threads share arenas, or one thread frees blocks that another thread allocated."
            }
            Wall::Retention => {
                "Resident memory is far above the memory in use. Causes: free blocks between blocks in use, arenas that keep free memory, pages that the allocator returns late."
            }
        }
    }
}
