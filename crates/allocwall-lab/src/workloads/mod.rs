//! Built-in subjects: programs with one known wall, a dial for its share, and their own record of the truth.

pub(crate) mod calls;
pub(crate) mod clock;
mod collector;
pub(crate) mod computing;
mod file_touch;
mod first_touch;
pub(crate) mod forking;
pub(crate) mod interference;
pub(crate) mod mapping;
pub mod pipeline;
pub(crate) mod process;
mod retention;
pub(crate) mod sockets;
mod stage;
mod waiting;

use allocwall_model::catalogue::cost::{CostClass, WaitClass};
use allocwall_model::catalogue::walls::Wall;
use anyhow::Result;
pub use stage::{Options, Stage};

pub struct Subject {
    pub name: &'static str,
    pub summary: &'static str,
    /// None for a subject without a wall.
    pub wall: Option<Wall>,
    /// The CPU times that the subject measures itself; the one that the dial controls is first. Each can span several lines of the
    /// bill.
    pub lines: &'static [&'static [CostClass]],
    /// The waiting times that the subject measures itself, in thread-seconds.
    pub waits: &'static [WaitClass],
    pub dial: Dial,
    pub default_dial: f64,
    /// What the twin does instead. None for the subject without a wall.
    pub twin: Option<&'static str>,
    pub threads: usize,
    /// The number of threads cannot be changed.
    pub threads_fixed: bool,
    run: fn(&Stage) -> Result<()>,
}

/// The whole of which the dial is a share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dial {
    /// CPU time of the first line, as a share of all CPU time.
    Line,
    /// Thread-seconds of the first wait, as a share of the threads' wall time.
    Wait,
    /// Memory that is no longer needed, as a share of the peak.
    Memory,
    /// No dial, because there is no wall.
    Nothing,
}

impl Dial {
    pub fn meaning(self) -> &'static str {
        match self {
            Dial::Line => "share of CPU time",
            Dial::Wait => "share of thread time",
            Dial::Memory => "share of the peak memory that is no longer needed",
            Dial::Nothing => "none",
        }
    }
}

/// The keys of the lines that one measured time spans, such as `fault_path+zeroing`.
pub fn line_key(classes: &[CostClass]) -> String {
    classes.iter().map(|class| class.key()).collect::<Vec<_>>().join("+")
}

use CostClass::{
    AllocatorCode, AllocatorLocks, BlockFilling, CopyOnWrite, FaultPath, FileFault, FileSystem, ForkExit,
    GarbageCollector, KernelSlab, MapCalls, OtherKernel, PageRelease, Sockets, Zeroing,
};

pub const SUBJECTS: &[Subject] = &[
    Subject {
        name: "cold-touch",
        summary: "first writes to new pages",
        wall: Some(Wall::FirstTouch),
        lines: &[&[FaultPath, Zeroing], &[MapCalls, PageRelease]],
        waits: &[],
        dial: Dial::Line,
        default_dial: 0.3,
        twin: Some("the same writes to pages that were touched before"),
        threads: 1,
        threads_fixed: false,
        run: first_touch::cold_touch,
    },
    Subject {
        name: "fork-write",
        summary: "children write to memory that they inherited",
        wall: Some(Wall::Fork),
        lines: &[&[CopyOnWrite, ForkExit]],
        waits: &[],
        dial: Dial::Line,
        default_dial: 0.3,
        twin: Some("the same writes by the parent, without children"),
        threads: 1,
        threads_fixed: true,
        run: forking::fork_write,
    },
    Subject {
        name: "file-touch",
        summary: "maps a file that is in the page cache, reads each page, and unmaps it",
        wall: Some(Wall::FileFault),
        lines: &[&[FileFault], &[MapCalls, PageRelease]],
        waits: &[],
        dial: Dial::Line,
        default_dial: 0.3,
        twin: Some("the same reads from a mapping that is kept"),
        threads: 1,
        threads_fixed: true,
        run: file_touch::file_touch,
    },
    Subject {
        name: "map-churn",
        summary: "malloc above the mmap threshold: one map and one unmap per block",
        wall: Some(Wall::MapChurn),
        lines: &[&[FaultPath, Zeroing, MapCalls, PageRelease, CostClass::AddressSpaceLock, AllocatorCode]],
        waits: &[],
        dial: Dial::Line,
        default_dial: 0.3,
        twin: Some("the same blocks, mapped once and reused"),
        threads: 1,
        threads_fixed: false,
        run: mapping::map_churn,
    },
    Subject {
        name: "map-direct",
        summary: "the program itself maps memory, writes one page, and unmaps it",
        wall: Some(Wall::MapChurn),
        lines: &[&[MapCalls, PageRelease, CostClass::AddressSpaceLock], &[FaultPath, Zeroing]],
        waits: &[],
        dial: Dial::Line,
        default_dial: 0.3,
        twin: Some("one mapping that is reused"),
        threads: 1,
        threads_fixed: false,
        run: mapping::map_direct,
    },
    Subject {
        name: "address-space-lock",
        summary: "threads map, populate and unmap in one address space",
        wall: Some(Wall::AddressSpaceLock),
        lines: &[],
        waits: &[WaitClass::AddressSpaceLock],
        dial: Dial::Wait,
        default_dial: 0.15,
        twin: Some("the same calls by one thread, which never waits"),
        threads: 2,
        threads_fixed: false,
        run: mapping::address_space_lock,
    },
    Subject {
        name: "socket-churn",
        summary: "makes and closes socket pairs, and looks up names that do not exist",
        wall: Some(Wall::KernelSlab),
        lines: &[&[KernelSlab, FileSystem, Sockets, OtherKernel]],
        waits: &[],
        dial: Dial::Line,
        default_dial: 0.8,
        twin: Some("as many system calls on sockets that it keeps"),
        threads: 1,
        threads_fixed: false,
        run: sockets::socket_churn,
    },
    Subject {
        name: "call-rate",
        summary: "very many small blocks, all from the thread cache",
        wall: Some(Wall::CallRate),
        lines: &[&[AllocatorCode]],
        waits: &[],
        dial: Dial::Line,
        default_dial: 0.3,
        twin: Some("blocks from the program's own pool"),
        threads: 1,
        threads_fixed: false,
        run: calls::call_rate,
    },
    Subject {
        name: "large-calloc",
        summary: "calloc of large blocks on memory that was used before",
        wall: Some(Wall::LargeAllocations),
        lines: &[&[BlockFilling], &[AllocatorCode]],
        waits: &[],
        dial: Dial::Line,
        default_dial: 0.3,
        twin: Some("very many small blocks: calls instead of bytes"),
        threads: 1,
        threads_fixed: false,
        run: calls::large_calloc,
    },
    Subject {
        name: "contention",
        summary: "threads share one malloc arena",
        wall: Some(Wall::AllocatorContention),
        lines: &[&[AllocatorCode, AllocatorLocks]],
        waits: &[WaitClass::Allocator],
        dial: Dial::Line,
        default_dial: 0.5,
        twin: Some("the same calls with one arena per thread: allocator code without lock waits"),
        threads: 2,
        threads_fixed: false,
        run: calls::contention,
    },
    Subject {
        name: "remote-free",
        summary: "one thread allocates, another thread frees",
        wall: Some(Wall::AllocatorContention),
        lines: &[&[AllocatorCode, AllocatorLocks]],
        waits: &[WaitClass::Allocator],
        dial: Dial::Line,
        default_dial: 0.3,
        twin: Some("each thread frees its own blocks: allocator code without lock waits"),
        threads: 2,
        threads_fixed: true,
        run: calls::remote_free,
    },
    Subject {
        name: "retention",
        summary: "a heap that stays at its peak because of a few remaining blocks",
        wall: Some(Wall::Retention),
        lines: &[],
        waits: &[],
        dial: Dial::Memory,
        default_dial: 0.9,
        twin: Some("the same blocks, freed so that the heap shrinks"),
        threads: 1,
        threads_fixed: false,
        run: retention::retention,
    },
    Subject {
        name: "collector",
        summary: "CPython: garbage in reference cycles, in a large heap",
        wall: Some(Wall::GarbageCollector),
        lines: &[&[GarbageCollector]],
        waits: &[],
        dial: Dial::Line,
        default_dial: 0.3,
        twin: Some("the same objects without cycles, with the collector off"),
        threads: 1,
        threads_fixed: true,
        run: collector::collector,
    },
    Subject {
        name: "throttling",
        summary: "a busy program under a cgroup's CPU quota",
        wall: Some(Wall::CgroupThrottling),
        lines: &[],
        waits: &[WaitClass::Throttled],
        dial: Dial::Wait,
        default_dial: 0.5,
        twin: Some("no quota"),
        threads: 1,
        threads_fixed: false,
        run: interference::throttling,
    },
    Subject {
        name: "run-queue",
        summary: "a busy program that shares its CPU with another program",
        wall: Some(Wall::RunQueue),
        lines: &[],
        waits: &[WaitClass::RunQueue],
        dial: Dial::Wait,
        default_dial: 0.4,
        twin: Some("no other program"),
        threads: 1,
        threads_fixed: true,
        run: interference::run_queue,
    },
    Subject {
        name: "io-wait",
        summary: "small writes, each one synced to storage",
        wall: Some(Wall::Waiting),
        lines: &[],
        waits: &[WaitClass::Storage],
        dial: Dial::Wait,
        default_dial: 0.6,
        twin: Some("computation instead of the waits"),
        threads: 1,
        threads_fixed: true,
        run: waiting::io_wait,
    },
    Subject {
        name: "pipe-wait",
        summary: "requests to a slow process over a pipe",
        wall: Some(Wall::Waiting),
        lines: &[],
        waits: &[WaitClass::Idle],
        dial: Dial::Wait,
        default_dial: 0.6,
        twin: Some("computation instead of the waits"),
        threads: 1,
        threads_fixed: true,
        run: waiting::pipe_wait,
    },
    Subject {
        name: "application-mutex",
        summary: "threads contend for a mutex of the application",
        wall: Some(Wall::ApplicationLock),
        lines: &[],
        waits: &[WaitClass::ApplicationLock],
        dial: Dial::Wait,
        default_dial: 0.3,
        twin: Some("one mutex per thread"),
        threads: 2,
        threads_fixed: false,
        run: waiting::application_mutex,
    },
    Subject {
        name: "computing",
        summary: "integer hashing in the first-level cache",
        wall: None,
        lines: &[],
        waits: &[],
        dial: Dial::Nothing,
        default_dial: 0.0,
        twin: None,
        threads: 1,
        threads_fixed: false,
        run: computing::computing,
    },
];

pub fn find(name: &str) -> Option<&'static Subject> {
    SUBJECTS.iter().find(|subject| subject.name == name)
}

impl Stage<'_> {
    pub fn run(&self) -> Result<()> {
        (self.subject.run)(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_found() {
        for subject in SUBJECTS {
            assert_eq!(find(subject.name).map(|found| found.summary), Some(subject.summary));
        }
        assert!(find("cold_touch").is_none());
        assert!(find("").is_none());
    }

    #[test]
    fn each_dial_has_the_value_that_it_controls() {
        for subject in SUBJECTS {
            let fits = match subject.dial {
                Dial::Line => !subject.lines.is_empty(),
                Dial::Wait => !subject.waits.is_empty(),
                Dial::Memory | Dial::Nothing => subject.lines.is_empty() && subject.waits.is_empty(),
            };
            assert!(fits, "{}", subject.name);
            assert_eq!(subject.wall.is_none(), subject.twin.is_none(), "{}", subject.name);
        }
    }

    #[test]
    fn each_line_that_a_dial_controls_belongs_to_the_wall() {
        for subject in SUBJECTS.iter().filter(|subject| subject.dial == Dial::Line) {
            let wall = subject.wall.expect("a wall to control");
            assert!(wall.lines().iter().any(|class| subject.lines[0].contains(class)), "{}", subject.name);
        }
    }

    #[test]
    fn a_key_joins_the_lines_that_it_spans() {
        assert_eq!(line_key(&[FaultPath, Zeroing]), "fault_path+zeroing");
        assert_eq!(line_key(&[AllocatorCode]), "allocator_code");
    }
}
