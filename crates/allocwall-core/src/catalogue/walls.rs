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
}
