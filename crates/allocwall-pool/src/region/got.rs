//! What a region got, and the reasons why not more.

use super::{HUGE, Pages};
use std::fmt;

/// What a region stands on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Got {
    pub pages: Pages,
    /// Pages of the reserved pool.
    pub reserved: Outcome,
    /// Transparent huge pages: eligible, which is not yet huge.
    pub transparent: Outcome,
    /// Every page taken already.
    pub touched: Outcome,
    pub locked: Outcome,
    /// Bound to the node that was asked for.
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

/// What became of one thing that a region can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    NotAsked,
    Done,
    Refused(Why),
}

impl From<Result<(), Why>> for Outcome {
    fn from(result: Result<(), Why>) -> Self {
        result.map_or_else(Outcome::Refused, |()| Outcome::Done)
    }
}

/// Why something could not be had. Displayed, it is one clear line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// 0 bytes were asked for.
    Empty,
    /// More bytes than an address space has.
    TooLarge,
    /// `vm.nr_hugepages` is 0.
    NoPool,
    /// The reserved pool has fewer free pages than were asked for.
    PoolExhausted { asked: usize, free: usize },
    /// The kernel was built without transparent huge pages.
    NotBuilt,
    /// `/sys/kernel/mm/transparent_hugepage/enabled` says `never`.
    Never,
    /// `prctl(PR_SET_THP_DISABLE)` holds for this process.
    Disabled,
    /// Huge pages have another size on this machine, in bytes.
    Size(usize),
    /// There is but one NUMA node: nothing to bind.
    OneNode,
    /// No such NUMA node is online.
    NoNode(u32),
    /// `RLIMIT_MEMLOCK`, in bytes.
    LockLimit(u64),
    /// The kernel doesn't know the call: older than the version named.
    Kernel { call: &'static str, since: &'static str },
    /// A file that tells could not be read.
    Unreadable(&'static str),
    /// The system call failed with this error number.
    Failed { call: &'static str, errno: i32 },
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match *self {
            Why::Empty => write!(f, "a region of 0 bytes was asked for"),
            Why::TooLarge => write!(f, "more bytes were asked for than an address space has"),
            Why::NoPool => write!(f, "no huge pages are reserved (vm.nr_hugepages is 0)"),
            Why::PoolExhausted { asked, free } => {
                write!(
                    f,
                    "the pool of reserved huge pages has {free} free, {asked} were asked for"
                )
            }
            Why::NotBuilt => write!(f, "the kernel was built without transparent huge pages"),
            Why::Never => write!(
                f,
                "transparent huge pages are off (/sys/kernel/mm/transparent_hugepage/enabled says never)"
            ),
            Why::Disabled => write!(
                f,
                "transparent huge pages are off for this process (PR_SET_THP_DISABLE)"
            ),
            Why::Size(bytes) => write!(
                f,
                "huge pages have {} KiB here, only {} KiB are supported",
                bytes >> 10,
                HUGE >> 10
            ),
            Why::OneNode => write!(f, "this machine has one NUMA node: nothing to bind"),
            Why::NoNode(node) => write!(f, "NUMA node {node} is not online"),
            Why::LockLimit(bytes) => write!(
                f,
                "RLIMIT_MEMLOCK allows {} KiB to be locked (ulimit -l)",
                bytes >> 10
            ),
            Why::Kernel { call, since } => write!(f, "{call} needs Linux {since}"),
            Why::Unreadable(path) => write!(f, "{path} can't be read"),
            Why::Failed { call, errno } => {
                write!(f, "{call}: {}", std::io::Error::from_raw_os_error(errno))
            }
        }
    }
}

impl std::error::Error for Why {}

/// Why `MADV_COLLAPSE` made nothing huge (madvise(2); mm/khugepaged.c, `madvise_collapse_errno`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CollapseError {
    /// Older than Linux 6.1, or memory that can't be huge: misaligned, special, or switched off for the process.
    NotEligible,
    /// Some of it is in use by the kernel just now (pinned, locked, under migration): trying again may help.
    Busy,
    /// The cgroup's memory limit leaves no room for a huge page.
    CgroupLimit,
    /// No huge page was to be had, or a part isn't mapped.
    NoMemory,
    /// The system call failed with another error number.
    Failed(i32),
}

impl CollapseError {
    /// From what `madvise` left in `errno`.
    pub fn from_errno(errno: i32) -> Self {
        match errno {
            libc::EINVAL => CollapseError::NotEligible,
            libc::EAGAIN => CollapseError::Busy,
            libc::EBUSY => CollapseError::CgroupLimit,
            libc::ENOMEM => CollapseError::NoMemory,
            other => CollapseError::Failed(other),
        }
    }

    /// A stable key for counters.
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
            CollapseError::NotEligible => write!(f, "not eligible for MADV_COLLAPSE, or Linux before 6.1"),
            CollapseError::Busy => write!(f, "in use by the kernel just now; try again"),
            CollapseError::CgroupLimit => {
                write!(f, "the cgroup's memory limit leaves no room for a huge page")
            }
            CollapseError::NoMemory => write!(f, "no huge page was to be had, or it isn't mapped"),
            CollapseError::Failed(errno) => {
                write!(
                    f,
                    "madvise(MADV_COLLAPSE): {}",
                    std::io::Error::from_raw_os_error(*errno)
                )
            }
        }
    }
}

impl std::error::Error for CollapseError {}
