//! The pages and properties that a region got, and the reasons for what was refused.

use super::{HUGE, Pages};
use std::fmt;

/// The pages and properties that a region got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Got {
    /// The kind of its pages.
    pub pages: Pages,
    /// Whether its pages are from the reserved pool.
    pub reserved: Outcome,
    /// Whether it is eligible for transparent huge pages. Eligible memory need not be on huge pages yet.
    pub transparent: Outcome,
    /// Whether every page is allocated already.
    pub touched: Outcome,
    /// Whether it is locked (`mlock`).
    pub locked: Outcome,
    /// Whether it is bound to the requested NUMA node.
    pub bound: Outcome,
}

impl Got {
    pub(super) fn nothing_asked() -> Self {
        Self {
            pages: Pages::Plain,
            reserved: Outcome::NotAsked,
            transparent: Outcome::NotAsked,
            touched: Outcome::NotAsked,
            locked: Outcome::NotAsked,
            bound: Outcome::NotAsked,
        }
    }
}

/// The result for one property of a [`Request`](super::Request).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was not requested.
    NotAsked,
    /// The region has it.
    Done,
    /// The region does not have it, for this reason.
    Refused(Why),
}

impl From<Result<(), Why>> for Outcome {
    fn from(result: Result<(), Why>) -> Self {
        result.map_or_else(Outcome::Refused, |()| Outcome::Done)
    }
}

/// Why a region or one of its properties was refused. Its `Display` text is one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// 0 bytes were requested; for arenas, a size that is no power of two or below 64 KiB.
    Empty,
    /// More bytes were requested than an address space has; for arenas, more than 2 MiB.
    TooLarge,
    /// `vm.nr_hugepages` is 0.
    NoPool,
    /// The reserved pool has fewer free pages than were requested.
    PoolExhausted {
        /// The number of pages requested, of 2 MiB each.
        asked: usize,
        /// The number of free pages.
        free: usize,
    },
    /// The kernel was built without transparent huge pages.
    NotBuilt,
    /// The mode in `/sys/kernel/mm/transparent_hugepage/enabled` is `never`.
    Never,
    /// `prctl(PR_SET_THP_DISABLE)` is set for this process.
    Disabled,
    /// Huge pages have this other size on this machine, in bytes.
    Size(usize),
    /// The machine has only one NUMA node, so there is nothing to bind.
    OneNode,
    /// This NUMA node is not online.
    NoNode(u32),
    /// `RLIMIT_MEMLOCK` is too low; this is its value, in bytes.
    LockLimit(u64),
    /// The kernel does not have the call.
    Kernel {
        /// The system call, with its flag.
        call: &'static str,
        /// The first Linux version that has it.
        since: &'static str,
    },
    /// This file, or folder, could not be read.
    Unreadable(&'static str),
    /// The system call failed.
    Failed {
        /// The system call, with its flag.
        call: &'static str,
        /// Its error number (errno(3)).
        errno: i32,
    },
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match *self {
            Why::Empty => write!(f, "the requested size is 0 bytes or invalid"),
            Why::TooLarge => write!(f, "the requested size is too large"),
            Why::NoPool => write!(
                f,
                "no huge pages are reserved (vm.nr_hugepages is 0): run sudo sysctl vm.nr_hugepages=N"
            ),
            Why::PoolExhausted { asked, free } => {
                write!(f, "the pool of reserved huge pages has {free} free pages, but {asked} were requested")
            }
            Why::NotBuilt => write!(f, "the kernel was built without transparent huge pages"),
            Why::Never => write!(
                f,
                "transparent huge pages are off (mode never): \
                 run echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"
            ),
            Why::Disabled => {
                write!(f, "transparent huge pages are off for this process (PR_SET_THP_DISABLE)")
            }
            Why::Size(bytes) => write!(
                f,
                "huge pages have {} KiB on this machine, but only {} KiB are supported",
                bytes >> 10,
                HUGE >> 10
            ),
            Why::OneNode => write!(f, "this machine has only one NUMA node, so there is nothing to bind"),
            Why::NoNode(node) => write!(f, "NUMA node {node} is not online"),
            Why::LockLimit(bytes) => write!(
                f,
                "RLIMIT_MEMLOCK allows only {} KiB to be locked: raise it with ulimit -l",
                bytes >> 10
            ),
            Why::Kernel { call, since } => write!(f, "{call} needs Linux {since}"),
            Why::Unreadable(path) => write!(f, "{path} cannot be read"),
            Why::Failed { call, errno } => {
                write!(f, "{call}: {}", std::io::Error::from_raw_os_error(errno))
            }
        }
    }
}

impl std::error::Error for Why {}

/// Why `MADV_COLLAPSE` failed (madvise(2); mm/khugepaged.c, `madvise_collapse_errno`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CollapseError {
    /// The kernel is older than Linux 6.1, or the memory cannot be on huge pages: it is misaligned or special, or
    /// huge pages are off for the process.
    NotEligible,
    /// The kernel uses some of the memory now (pinned, locked, under migration). A later try may succeed.
    Busy,
    /// The cgroup's memory limit leaves no room for a huge page.
    CgroupLimit,
    /// The kernel has no free huge page, or a part of the memory is not mapped.
    NoMemory,
    /// The system call failed with another error number.
    Failed(i32),
}

impl CollapseError {
    /// The error for a value of `errno` after `madvise`.
    ///
    /// ```
    /// use allocwall_pool::region::CollapseError;
    ///
    /// assert_eq!(CollapseError::from_errno(libc::EBUSY), CollapseError::CgroupLimit);
    /// ```
    pub fn from_errno(errno: i32) -> Self {
        match errno {
            libc::EINVAL => CollapseError::NotEligible,
            libc::EAGAIN => CollapseError::Busy,
            libc::EBUSY => CollapseError::CgroupLimit,
            libc::ENOMEM => CollapseError::NoMemory,
            other => CollapseError::Failed(other),
        }
    }

    /// A stable key, for counters: `not_eligible`, `busy`, `cgroup_limit`, `no_memory` or `failed`.
    ///
    /// ```
    /// assert_eq!(allocwall_pool::region::CollapseError::Busy.key(), "busy");
    /// ```
    pub fn key(&self) -> &'static str {
        match self {
            CollapseError::NotEligible => "not_eligible",
            CollapseError::Busy => "busy",
            CollapseError::CgroupLimit => "cgroup_limit",
            CollapseError::NoMemory => "no_memory",
            CollapseError::Failed(_) => "failed",
        }
    }
}

impl fmt::Display for CollapseError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            CollapseError::NotEligible => write!(
                f,
                "the memory is not eligible for MADV_COLLAPSE, or the kernel is older than Linux 6.1"
            ),
            CollapseError::Busy => write!(f, "the kernel uses the memory now: try again"),
            CollapseError::CgroupLimit => {
                write!(f, "the cgroup's memory limit leaves no room for a huge page")
            }
            CollapseError::NoMemory => write!(f, "no huge page is free, or the memory is not mapped"),
            CollapseError::Failed(errno) => {
                write!(f, "madvise(MADV_COLLAPSE): {}", std::io::Error::from_raw_os_error(*errno))
            }
        }
    }
}

impl std::error::Error for CollapseError {}
