//! What the experiments on resident memory share: blocks in a list, the resident memory of this process, and a memory cgroup from which
//! the kernel takes memory on request.

use crate::workloads::calls::Calls;
use crate::workloads::process;
use allocwall_host::cgroup::CgroupFs;
use allocwall_host::file::absence_of;
use allocwall_host::proc::ProcFs;
use allocwall_model::machine::Smaps;
use allocwall_model::units::{Absence, Measured, Reason};
use anyhow::{anyhow, ensure};
use libc::c_void;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Blocks from malloc in a list without memory of its own, which would change what malloc does: the first word of a block is the address
/// of the next one.
pub struct Chain {
    calls: Calls,
    first: *mut c_void,
    last: *mut c_void,
    pub blocks: usize,
    pub bytes: usize,
}

impl Chain {
    pub fn new(calls: Calls) -> Chain {
        Chain { calls, first: std::ptr::null_mut(), last: std::ptr::null_mut(), blocks: 0, bytes: 0 }
    }

    /// Adds a block of at least a word.
    ///
    /// # Errors
    /// Out of memory.
    pub fn push(&mut self, size: usize) -> anyhow::Result<()> {
        let block = filled(self.calls, size)?;
        // SAFETY: both blocks are live, aligned as malloc aligns, and have room for a word.
        unsafe {
            block.cast::<*mut c_void>().write(std::ptr::null_mut());
            if self.first.is_null() {
                self.first = block;
            } else {
                self.last.cast::<*mut c_void>().write(block);
            }
        }
        self.last = block;
        self.blocks += 1;
        self.bytes += size;
        Ok(())
    }
}

/// Frees the blocks in the order of their allocation.
impl Drop for Chain {
    fn drop(&mut self) {
        while !self.first.is_null() {
            // SAFETY: a live block of the list. It is freed once, after its first word was read.
            unsafe {
                let next = self.first.cast::<*mut c_void>().read();
                (self.calls.free)(self.first);
                self.first = next;
            }
        }
    }
}

/// A new block of at least a word, all of it written to.
///
/// # Errors
/// Out of memory.
pub fn filled(calls: Calls, size: usize) -> anyhow::Result<*mut c_void> {
    let size = size.max(size_of::<usize>());
    // SAFETY: malloc has no precondition.
    let block = unsafe { (calls.allocate)(size) };
    ensure!(!block.is_null(), "out of memory");
    // SAFETY: the block has this size.
    unsafe { block.cast::<u8>().write_bytes(1, size) };
    Ok(block)
}

/// The resident memory of this process, from a walk over its page tables: some milliseconds per gigabyte.
pub fn resident() -> Measured<Smaps> {
    ProcFs::live().smaps_rollup(std::process::id() as i32)
}

/// The same, where a run has no result without it.
///
/// # Errors
/// The reason of the absence.
pub fn needed_resident() -> anyhow::Result<Smaps> {
    resident().map_err(|absence| anyhow!(absence.detail))
}

/// Where an amount is on the way from `before` (0) to `full` (1).
pub fn part(amount: u64, before: u64, full: u64) -> Measured<f64> {
    if full <= before {
        return Err(Absence::new(Reason::TooLittle, "the blocks did not raise the resident memory"));
    }
    Ok((amount.saturating_sub(before)) as f64 / (full - before) as f64)
}

/// Name of a group, before the pid of its process.
const GROUP: &str = "allocwall-bench-";

/// A memory cgroup with this process alone, until it is dropped.
pub struct Group {
    version: u8,
    folder: PathBuf,
    /// The group before.
    home: PathBuf,
}

impl Group {
    /// Moves this process into a new group. Memory belongs to the group in which it is touched. From now on the signals to end do
    /// not end this process: it must end when it is asked to (`process::asked_to_end`), so that the group is removed.
    ///
    /// # Errors
    /// No memory cgroup is mounted, none can have a new group below it, or its files cannot be written.
    pub fn enter() -> Measured<Group> {
        let (version, folders) = CgroupFs::live()?.own_memory_groups()?;
        let parent = parent(version, &folders, |folder| {
            let passed = fs::read_to_string(folder.join("cgroup.subtree_control"));
            passed.is_ok_and(|names| names.split_ascii_whitespace().any(|name| name == "memory"))
        })?;
        remove_abandoned(parent);
        let folder = parent.join(format!("{GROUP}{}", std::process::id()));
        process::end_on_signals();
        fs::create_dir(&folder).map_err(|error| absence_of(&folder, &error))?;
        let group = Group { version, folder, home: folders[0].clone() };
        enter(&group.folder)?;
        Ok(group)
    }

    /// Asks the kernel to take memory from the group: these bytes (version 2), or all that it can (version 1). It may find less.
    ///
    /// # Errors
    /// This kernel cannot be asked.
    pub fn squeeze(&self, bytes: u64) -> Measured<()> {
        let (name, request) = match self.version {
            // Documentation/admin-guide/cgroup-v1/memory.rst, 5.1.
            1 => ("memory.force_empty", "0".to_owned()),
            // Documentation/admin-guide/cgroup-v2.rst; since Linux 5.19.
            _ => ("memory.reclaim", bytes.to_string()),
        };
        let path = self.folder.join(name);
        match write(&path, &request) {
            Err(error) if !matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY)) => {
                Err(absence_of(&path, &error))
            }
            _ => Ok(()),
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A group with a process in it stays. The next run removes it.
        let _ = enter(&self.home);
        let _ = fs::remove_dir(&self.folder);
    }
}

/// The group below which a new one is made. In version 2, groups with processes have no groups below them.
fn parent(version: u8, folders: &[PathBuf], passes_on: impl Fn(&Path) -> bool) -> Measured<&Path> {
    let fits = |folder: &&PathBuf| version == 1 || passes_on(folder);
    folders.iter().find(fits).map(PathBuf::as_path).ok_or_else(|| {
        Absence::new(
            Reason::NotSupported,
            "no cgroup of this process or above it passes the memory controller on (cgroup.subtree_control)",
        )
    })
}

/// Removes the groups of processes that were killed.
fn remove_abandoned(parent: &Path) {
    let proc = ProcFs::live();
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(GROUP)?.parse::<i32>().ok());
        if pid.is_some_and(|pid| !proc.exists(pid)) {
            // Only a group without processes can be removed.
            let _ = fs::remove_dir(entry.path());
        }
    }
}

fn enter(folder: &Path) -> Measured<()> {
    let path = folder.join("cgroup.procs");
    // 0 is the process that writes.
    write(&path, "0").map_err(|error| absence_of(&path, &error))
}

/// Without O_CREAT: for a file that does not exist, the kernel would answer that it is not permitted.
fn write(path: &Path, text: &str) -> io::Result<()> {
    File::options().write(true).open(path)?.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workloads::calls;
    use std::sync::atomic::{AtomicUsize, Ordering};

    static LIVE: AtomicUsize = AtomicUsize::new(0);

    unsafe extern "C" fn allocate(size: usize) -> *mut c_void {
        LIVE.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as for malloc.
        unsafe { (calls::real().allocate)(size) }
    }

    unsafe extern "C" fn free(block: *mut c_void) {
        LIVE.fetch_sub(1, Ordering::Relaxed);
        // SAFETY: the caller's block, freed once.
        unsafe { (calls::real().free)(block) };
    }

    #[test]
    fn a_list_counts_its_blocks_and_frees_each_of_them_once() {
        let mut chain = Chain::new(Calls { allocate, free });
        for size in [8, 100, 4_000] {
            chain.push(size).unwrap();
        }
        assert_eq!((chain.blocks, chain.bytes, LIVE.load(Ordering::Relaxed)), (3, 4_108, 3));
        drop(chain);
        assert_eq!(LIVE.load(Ordering::Relaxed), 0);
        // Without a block there is nothing to free.
        drop(Chain::new(Calls { allocate, free }));
        assert_eq!(LIVE.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_part_is_between_two_amounts_that_differ() {
        assert_eq!([part(10, 10, 30), part(15, 10, 30), part(30, 10, 30)], [Ok(0.0), Ok(0.25), Ok(1.0)]);
        // Less than before the blocks: none of them is left.
        assert_eq!(part(5, 10, 30), Ok(0.0));
        assert_eq!(part(10, 10, 10).unwrap_err().reason, Reason::TooLittle);
        assert_eq!(part(10, 10, 9).unwrap_err().reason, Reason::TooLittle);
    }

    #[test]
    fn a_new_group_is_made_where_the_memory_controller_is_passed_on() {
        let folders: Vec<PathBuf> = ["/c/a/b", "/c/a", "/c"].map(PathBuf::from).into();
        let found = |version, on: &str| parent(version, &folders, |folder| folder == Path::new(on));
        assert_eq!(found(2, "/c/a"), Ok(Path::new("/c/a")));
        assert_eq!(found(2, "/c"), Ok(Path::new("/c")));
        assert_eq!(found(2, "/other").unwrap_err().reason, Reason::NotSupported);
        // Version 1 passes all controllers on.
        assert_eq!(found(1, "/other"), Ok(Path::new("/c/a/b")));
    }
}
