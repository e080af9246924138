//! Files by a name that other users chose: in a target's own view of the file system, or in a folder that all
//! users may write to.
//!
//! A link may point anywhere. Below a target's root it is followed as the target would follow it, and never
//! out of that root. A found file is opened with `O_PATH` only, until it is known to be a regular file:
//! opening a FIFO waits for its other end, and opening a device can have effects.

use crate::file;
use allocwall_model::units::Measured;
use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};

/// What to do if the name itself is a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Symlink {
    Follow,
    Refuse,
}

/// Opens a regular file by its name in the process's own mount namespace. `proc_root` is `/proc`, or a copy
/// of it in a test.
pub fn open(proc_root: &Path, pid: i32, name: &Path, link: Symlink) -> io::Result<(File, Metadata)> {
    regular(&handle(proc_root, pid, name, link)?)
}

/// Reads the same file, at most `limit` bytes.
pub fn read(proc_root: &Path, pid: i32, name: &Path, limit: u64) -> Measured<Vec<u8>> {
    let read = || -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let (file, _) = open(proc_root, pid, name, Symlink::Follow)?;
        file.take(limit).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    read().map_err(|error| file::absence_of(&shown(proc_root, pid, name), &error))
}

/// Device and inode of a name in the process's own mount namespace; links are followed.
pub fn identity(proc_root: &Path, pid: i32, name: &Path) -> Option<((u32, u32), u64)> {
    let facts = handle(proc_root, pid, name, Symlink::Follow).ok()?.metadata().ok()?;
    Some((device(&facts), facts.ino()))
}

/// Opens a regular file by a path in our own namespace; links are followed.
pub fn open_ours(path: &Path) -> io::Result<(File, Metadata)> {
    let handle = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(path)?;
    regular(&handle)
}

pub fn device(facts: &Metadata) -> (u32, u32) {
    (libc::major(facts.dev()), libc::minor(facts.dev()))
}

fn shown(proc_root: &Path, pid: i32, name: &Path) -> PathBuf {
    proc_root.join(format!("{pid}/root")).join(name.strip_prefix("/").unwrap_or(name))
}

/// Opens the file of a handle for reading: exactly that file, even if its name has changed since.
fn regular(handle: &File) -> io::Result<(File, Metadata)> {
    let facts = handle.metadata()?;
    if !facts.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(format!("/proc/self/fd/{}", handle.as_raw_fd()))?;
    Ok((file, facts))
}

fn handle(proc_root: &Path, pid: i32, name: &Path, link: Symlink) -> io::Result<File> {
    let root = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_PATH | libc::O_DIRECTORY)
        .open(proc_root.join(format!("{pid}/root")))?;
    let name = name.strip_prefix("/").unwrap_or(name);
    let own = match link {
        Symlink::Follow => OFlags::empty(),
        Symlink::Refuse => OFlags::NOFOLLOW,
    };
    let scope = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    match rustix::fs::openat2(&root, name, OFlags::PATH | OFlags::CLOEXEC | own, Mode::empty(), scope) {
        Ok(found) => Ok(File::from(found)),
        // Before Linux 5.6, or behind a container's seccomp filter that doesn't know the call (it returns
        // EPERM).
        Err(Errno::NOSYS | Errno::PERM) => walk(root, name),
        Err(error) => Err(error.into()),
    }
}

/// Walks step by step and follows no link: without openat2, a link could lead out of the root.
fn walk(root: File, name: &Path) -> io::Result<File> {
    let mut here = OwnedFd::from(root);
    let mut parts = name.components().peekable();
    while let Some(part) = parts.next() {
        let step = match part {
            Component::Normal(step) => step,
            Component::CurDir => continue,
            _ => return Err(Errno::LOOP.into()),
        };
        let folder = match parts.peek() {
            Some(_) => OFlags::DIRECTORY,
            None => OFlags::empty(),
        };
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC | folder;
        here = rustix::fs::openat(&here, step, flags, Mode::empty())?;
    }
    Ok(File::from(here))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A /proc with one process whose root is a folder.
    fn fake() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("7/root");
        std::fs::create_dir_all(root.join("tmp")).unwrap();
        std::fs::write(root.join("tmp/plain"), "inside").unwrap();
        std::fs::write(dir.path().join("outside"), "outside").unwrap();
        dir
    }

    fn text(dir: &tempfile::TempDir, name: &str) -> Option<String> {
        let bytes = read(dir.path(), 7, Path::new(name), 100).ok()?;
        String::from_utf8(bytes).ok()
    }

    #[test]
    fn links_stay_within_the_target_s_root() {
        let dir = fake();
        let root = dir.path().join("7/root");
        assert_eq!(text(&dir, "/tmp/plain").as_deref(), Some("inside"));
        symlink("/tmp/plain", root.join("absolute")).unwrap();
        assert_eq!(text(&dir, "/absolute").as_deref(), Some("inside"));
        symlink(dir.path().join("outside"), root.join("away")).unwrap();
        assert_eq!(text(&dir, "/away"), None);
        symlink("../../outside", root.join("up")).unwrap();
        assert_eq!(text(&dir, "/up"), None);
        assert_eq!(text(&dir, "/../../outside"), None);
        let refused = open(dir.path(), 7, Path::new("/absolute"), Symlink::Refuse);
        assert!(refused.is_err());
        let plain = open(dir.path(), 7, Path::new("/tmp/plain"), Symlink::Refuse);
        assert!(plain.is_ok());
    }

    #[test]
    fn a_fifo_is_not_waited_for() {
        let dir = fake();
        let fifo = dir.path().join("7/root/tmp/fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)
            .unwrap();
        assert!(open(dir.path(), 7, Path::new("/tmp/fifo"), Symlink::Refuse).is_err());
        assert!(open_ours(&fifo).is_err());
        assert!(open_ours(Path::new("/dev/null")).is_err());
        assert!(open_ours(&dir.path().join("outside")).is_ok());
    }

    #[test]
    fn without_openat2_no_link_is_followed() {
        let dir = fake();
        let root = dir.path().join("7/root");
        symlink("tmp", root.join("folder")).unwrap();
        symlink("tmp/plain", root.join("link")).unwrap();
        let found = |name: &str| {
            let handle = walk(File::open(&root).unwrap(), Path::new(name));
            handle.and_then(|handle| regular(&handle)).is_ok()
        };
        assert!(found("tmp/plain") && found("./tmp/plain"));
        assert!(!found("folder/plain") && !found("link") && !found("../../outside"));
    }
}
