//! What a program asks of its allocator: reads the files in which the preloaded library counts (`crates/allocwall-preload`), while
//! the processes run, and makes [`allocwall_model::allocations::Counted`] of them.
//!
//! Nothing here waits for a process or writes to its memory. The files are read with pread(2), never mapped: a file that shrinks
//! under a mapping would kill the reader.

mod counting;
mod layout;
mod lives;
mod process;
pub(crate) mod stacks;
mod watch;

pub use counting::{Counting, pause, preloads, why_nothing};
pub(crate) use layout::Copied;
pub use watch::{Folder, Watch, Watched};

use std::ffi::OsString;
use std::path::Path;

/// The variables of the environment that the library reads: the folder, the mean distance of samples in bytes, and whether it keeps
/// traces.
const FOLDER: &str = "ALLOCWALL_COUNT";
const EVERY: &str = "ALLOCWALL_COUNT_EVERY";
const TRACES: &str = "ALLOCWALL_COUNT_TRACES";

/// The environment in which a command counts, beside `LD_PRELOAD`. `every`: mean distance of samples; 0 takes none; None is the
/// library's own. `traces`: for a replay.
pub fn environment(folder: &Path, every: Option<u64>, traces: bool) -> Vec<(OsString, OsString)> {
    let mut environment = vec![(FOLDER.into(), folder.into())];
    environment.extend(traces.then(|| (TRACES.into(), "1".into())));
    environment.extend(every.map(|every| (EVERY.into(), every.to_string().into())));
    environment
}

/// Reads a whole file as that of a process that has ended.
#[cfg(feature = "fuzzing")]
pub(crate) fn read_file(file: std::fs::File) {
    use allocwall_host::proc::ProcFs;
    use allocwall_model::units::{Absence, Reason};
    let Ok(Some(header)) = layout::header(&file) else { return };
    let proc = ProcFs::at("/nowhere");
    let gone = Err(Absence::new(Reason::Vanished, "it ended"));
    let process = process::Process::new("1-0".into(), file, 1, header, gone, Ok(1.0), 0);
    let mut stacks = stacks::Stacks::new(proc.clone(), crate::reading::Readers::Here);
    let mut sites_left = 100;
    let mut shared = process::Shared { stacks: &mut stacks, sites_left: &mut sites_left, most_stacks: 10 };
    let (finished, ..) = process.finish(&proc, &mut shared, 1, true);
    assert!(finished.sites.len() <= 101);
    if let Ok(samples) = finished.process.samples {
        for interval in [samples.blocks, samples.bytes, samples.live_bytes, samples.peak_bytes] {
            assert!(interval.low <= interval.point && interval.point <= interval.high);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIBRARY: &str = include_str!("../../../allocwall-preload/src/count.c");

    #[test]
    fn the_library_reads_the_variables() {
        for name in [FOLDER, EVERY, TRACES] {
            assert!(LIBRARY.contains(&format!("\"{name}")), "{name}");
        }
        let with = environment(Path::new("/dev/shm/x"), Some(0), false);
        assert_eq!(with[0], ("ALLOCWALL_COUNT".into(), "/dev/shm/x".into()));
        assert_eq!(with[1], ("ALLOCWALL_COUNT_EVERY".into(), "0".into()));
        assert_eq!(environment(Path::new("/x"), None, true).len(), 2);
    }
}
