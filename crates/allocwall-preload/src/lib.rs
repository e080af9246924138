//! Libraries that are loaded into other processes with `LD_PRELOAD`: allocators, pre-touch, and the one that counts
//! calls. This crate's build script builds them and embeds them; [`unpack`] writes them to a file that a loader can map.
//!
//! - They are not linked into the program that embeds them: its own `malloc` stays that of the C library.
//! - mimalloc is compiled as C, as in its own build. So `operator new` aborts when memory is exhausted, instead of
//!   throwing. jemalloc and snmalloc leave `operator new` to the program's C++ library, which calls their `malloc`.
//! - The allocators need a GNU C library at least as new as the one that they were built with. With an older one, the
//!   loader refuses to start the program.
//! - [`prefault`] reads `ALLOCWALL_PREFAULT`, a plain decimal number of bytes. `prefault.c` lists its limits.
//! - [`count`] reads `ALLOCWALL_COUNT`, a directory, and `ALLOCWALL_COUNT_EVERY`. `count.c` lists its limits, `count.h`
//!   describes the files that it writes. A program can include `allocwall_mark.h` to count its units of work.

#![forbid(unsafe_code)]

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The extension of a library that is not complete yet.
const TEMPORARY: &str = "part";
const ABANDONED_AFTER: Duration = Duration::from_secs(600);

/// A library that can be preloaded.
#[derive(Clone, Copy)]
pub struct Bundled {
    /// `mimalloc`, `jemalloc`, `snmalloc`, `prefault` or `count`.
    pub kind: &'static str,
    /// The upstream version, from the library's own sources: `3.3.2`.
    pub version: &'static str,
    /// The file name of the library, without version: `libmimalloc.so`.
    pub file_name: &'static str,
    /// The whole file: ELF, stripped, for the architecture of this program.
    pub bytes: &'static [u8],
    /// The licence, as an SPDX expression.
    pub licence: &'static str,
    /// The text of the licence, which must accompany every copy; none for this project's own code.
    pub notice: Option<&'static str>,
}

include!(concat!(env!("OUT_DIR"), "/bundled.rs"));

/// The allocators in this build, mimalloc first. The features `snmalloc` (default) and `jemalloc` add the others.
pub fn bundled() -> &'static [Bundled] {
    BUNDLED
}

/// Pre-touch: grows the heap by `ALLOCWALL_PREFAULT` bytes and touches it, before `main`.
pub fn prefault() -> &'static Bundled {
    &PREFAULT
}

/// Counts the calls of the process's allocator, whichever it is, in a file of each process. In `LD_PRELOAD` it must
/// come before an allocator.
pub fn count() -> &'static Bundled {
    &COUNT
}

/// Writes a library to `dir/NAME-VERSION-HASH.so` and returns its absolute path, for use in `LD_PRELOAD`. An existing
/// file with the same bytes is used as it is. A file with other bytes is replaced in one step, so processes that have
/// mapped it keep the old one.
///
/// A missing directory is created with mode 0755. The file has mode 0755, so that a target that drops its privileges
/// can still open it. The caller must choose a directory whose parents the target can access.
///
/// # Errors
///
/// A preloaded library runs with the rights of the target, so no other user may be able to put a file there.
/// `PermissionDenied`: the directory belongs to another user, or other users may write to it or replace one of its
/// parents. `InvalidInput`: `LD_PRELOAD` cannot contain the path, or the mount has the option `noexec`; in both cases
/// the loader would continue without the library. Otherwise the error of the file system.
pub fn unpack(item: &Bundled, dir: &Path) -> io::Result<PathBuf> {
    let user = user()?;
    if !dir.exists() {
        make(dir, user)?;
    }
    let dir = dir.canonicalize().map_err(|e| about(e, dir))?;
    nameable(&dir)?;
    guarded(&dir, true, user)?;
    if may_not_execute(&text_of("/proc/self/mountinfo")?, &dir) {
        return Err(unfit(&dir, "is on a mount with noexec, so the loader cannot map a library from there"));
    }
    let path = dir.join(name(item));
    if !holds(&path, item.bytes) {
        remove_abandoned(&dir);
        put(&path, item.bytes).map_err(|e| about(e, &path))?;
    }
    Ok(path)
}

/// Removes the temporary files of processes that were killed while they wrote. A process that still writes is younger.
fn remove_abandoned(dir: &Path) {
    for file in fs::read_dir(dir).into_iter().flatten().flatten() {
        let is_old = |facts: fs::Metadata| {
            facts.modified().ok().and_then(|at| at.elapsed().ok()).is_some_and(|age| age > ABANDONED_AFTER)
        };
        if file.path().extension().is_some_and(|end| end == TEMPORARY) && file.metadata().is_ok_and(is_old) {
            let _ = fs::remove_file(file.path());
        }
    }
}

fn make(dir: &Path, user: u32) -> io::Result<()> {
    // Checked before anything is created; otherwise another user's link could redirect it.
    let there = dir.ancestors().find(|above| above.exists());
    if let Some(above) = there {
        guarded(&above.canonicalize().map_err(|e| about(e, above))?, false, user)?;
    }
    let mut builder = DirBuilder::new();
    builder.recursive(true).mode(0o755);
    builder.create(dir).map_err(|e| about(e, dir))?;
    // Sets the bits that the umask removed, on the directory that was created and not on the target of a link in its
    // place.
    let made = File::open(dir).map_err(|e| about(e, dir))?;
    let (facts, named) = (made.metadata(), fs::symlink_metadata(dir));
    match (facts, named) {
        (Ok(facts), Ok(named)) if (facts.dev(), facts.ino()) == (named.dev(), named.ino()) => {
            made.set_permissions(Permissions::from_mode(0o755)).map_err(|e| about(e, dir))
        }
        _ => Err(refused(dir, "another process replaced it while it was created")),
    }
}

/// The hash in the name distinguishes builds. Whether a file is the right one is decided by its bytes.
fn name(item: &Bundled) -> String {
    let stem = item.file_name.trim_end_matches(".so");
    format!("{stem}-{}-{:016x}.so", item.version, fnv1a(item.bytes))
}

/// FNV-1a, 64 bits (http://www.isthe.com/chongo/tech/comp/fnv/).
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// ld.so(8): LD_PRELOAD is split at spaces and colons, without escapes, and a dollar sign starts a token to be
/// replaced.
fn nameable(dir: &Path) -> io::Result<()> {
    let text = dir.as_os_str().as_bytes();
    match text.iter().find(|byte| b" :$\n".contains(byte)) {
        None => Ok(()),
        Some(byte) => {
            let why = format!("contains {:?}, which LD_PRELOAD cannot contain", char::from(*byte));
            Err(unfit(dir, &why))
        }
    }
}

/// proc_pid_mountinfo(5): a directory is on the mount with the longest matching mount point, and on the last one of
/// equals. Mount points with escaped characters stay escaped: [`nameable`] rejects all paths below those, except for
/// a backslash.
fn may_not_execute(mounts: &str, dir: &Path) -> bool {
    let mount = |line: &str| {
        let mut fields = line.split(' ').skip(4);
        let point = PathBuf::from(fields.next()?);
        let noexec = fields.next()?.split(',').any(|option| option == "noexec");
        dir.starts_with(&point).then(|| (point.components().count(), noexec))
    };
    let over = mounts.lines().filter_map(mount).max_by_key(|(depth, _)| *depth);
    over.is_some_and(|(_, noexec)| noexec)
}

fn unfit(dir: &Path, why: &str) -> io::Error {
    let text = format!("{}: {why}; choose another directory", dir.display());
    io::Error::new(ErrorKind::InvalidInput, text)
}

/// Checks that only this user and the owner of `/` can replace the directory or one of its parents. The owner of `/`
/// is root, or the user that root appears as in a user namespace. If `last`, this user must own the directory, and
/// only it may write there.
fn guarded(dir: &Path, last: bool, user: u32) -> io::Result<()> {
    let root = fs::symlink_metadata("/").map_err(|e| about(e, Path::new("/")))?.uid();
    for folder in dir.ancestors() {
        let facts = fs::symlink_metadata(folder).map_err(|e| about(e, folder))?;
        let own = last && folder == dir;
        let (owner, mode) = (facts.uid(), facts.mode() & 0o7777);
        // With an access list, the group bits show the most that it gives to any other user (acl(5)). In a sticky
        // directory only a file's owner may rename it (inode(7)).
        let shared = mode & 0o022 != 0 && (own || mode & 0o1000 == 0);
        if owner != user && (own || owner != root) {
            return Err(refused(
                folder,
                &format!("it belongs to user {owner}, not {user}; choose another directory"),
            ));
        }
        if shared {
            return Err(refused(
                folder,
                &format!(
                    "other users may write there (mode {mode:04o}); chmod go-w, or choose another directory"
                ),
            ));
        }
    }
    Ok(())
}

fn refused(folder: &Path, why: &str) -> io::Error {
    let text = format!("{}: not a safe directory for a preload library: {why}", folder.display());
    io::Error::new(ErrorKind::PermissionDenied, text)
}

/// The user who owns the files that this process creates. For a program with capabilities, /proc/self is owned by root
/// (proc(5)), so it is not used here.
fn user() -> io::Result<u32> {
    let status = text_of("/proc/self/status")?;
    filesystem_user(&status).ok_or_else(|| io::Error::other("/proc/self/status names no user"))
}

/// proc_pid_status(5): real, effective, saved and file system user.
fn filesystem_user(status: &str) -> Option<u32> {
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    users.split_whitespace().nth(3)?.parse().ok()
}

/// A plain file that the target may map, with exactly these bytes.
fn holds(path: &Path, bytes: &[u8]) -> bool {
    let fits = |facts: fs::Metadata| {
        facts.is_file() && facts.mode() & 0o7777 == 0o755 && facts.len() == bytes.len() as u64
    };
    let read = || {
        let mut found = Vec::with_capacity(bytes.len());
        File::open(path)?.take(bytes.len() as u64 + 1).read_to_end(&mut found)?;
        io::Result::Ok(found)
    };
    fs::symlink_metadata(path).is_ok_and(fits) && read().is_ok_and(|found| found == bytes)
}

/// Writes a temporary file in the same directory, then renames it, so that no process maps an incomplete library.
fn put(path: &Path, bytes: &[u8]) -> io::Result<()> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let own = format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let part = path.with_extension(format!("{own}.{TEMPORARY}"));
    let written = File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&part)
        .and_then(|mut file| {
            file.write_all(bytes)?;
            file.set_permissions(Permissions::from_mode(0o755))
        })
        .and_then(|()| fs::rename(&part, path));
    if written.is_err() {
        // Remove the temporary file. Report the first error, not this one.
        let _ = fs::remove_file(&part);
    }
    written
}

fn text_of(path: &str) -> io::Result<String> {
    fs::read_to_string(path).map_err(|e| about(e, Path::new(path)))
}

fn about(error: io::Error, path: &Path) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn place() -> (tempfile::TempDir, PathBuf) {
        let place = tempfile::tempdir().unwrap();
        let dir = place.path().join("libraries");
        (place, dir)
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn a_library_is_unpacked_whole_and_readable_by_all() {
        let (_place, dir) = place();
        for item in bundled().iter().chain([prefault(), count()]) {
            let path = unpack(item, &dir).unwrap();
            assert!(path.is_absolute());
            assert_eq!(fs::read(&path).unwrap(), item.bytes);
            assert_eq!((mode(&path), mode(&dir)), (0o755, 0o755));
            let stem = item.file_name.strip_suffix(".so").unwrap();
            let name = path.file_name().unwrap().to_str().unwrap();
            assert!(name.starts_with(&format!("{stem}-{}-", item.version)), "{name}");
        }
        let files = fs::read_dir(&dir).unwrap().count();
        assert_eq!(files, bundled().len() + 2, "a temporary file was left");
    }

    #[test]
    fn the_same_file_is_used_again_and_another_is_replaced() {
        let (_place, dir) = place();
        let first = unpack(prefault(), &dir).unwrap();
        let inode = |path: &Path| fs::metadata(path).unwrap().ino();
        let before = inode(&first);
        assert_eq!(unpack(prefault(), &dir).unwrap(), first);
        assert_eq!(inode(&first), before);

        let mut other = prefault().bytes.to_vec();
        *other.last_mut().unwrap() ^= 1;
        type Spoil = fn(&Path, &[u8]);
        let cases: [(&str, Spoil); 5] = [
            ("one bit", |path, other| fs::write(path, other).unwrap()),
            ("longer", |path, other| fs::write(path, [other, b"x"].concat()).unwrap()),
            ("empty", |path, _| fs::write(path, "").unwrap()),
            ("mode", |path, _| fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap()),
            ("link", |path, _| {
                let real = path.with_extension("real");
                fs::rename(path, &real).unwrap();
                symlink(real, path).unwrap();
            }),
        ];
        for (what, spoil) in cases {
            spoil(&first, &other);
            assert_eq!(unpack(prefault(), &dir).unwrap(), first, "{what}");
            assert_eq!(fs::read(&first).unwrap(), prefault().bytes, "{what}");
            assert!(fs::symlink_metadata(&first).unwrap().is_file(), "{what}");
            assert_eq!(mode(&first), 0o755, "{what}");
        }
    }

    #[test]
    fn what_a_killed_process_left_is_removed_and_what_one_writes_now_stays() {
        let (_place, dir) = place();
        let library = unpack(prefault(), &dir).unwrap();
        let [old, new, other] = ["a.so.1-0.part", "a.so.2-0.part", "a.so"].map(|name| dir.join(name));
        for path in [&old, &new, &other] {
            fs::write(path, "").unwrap();
        }
        for path in [&old, &other] {
            let file = File::options().write(true).open(path).unwrap();
            file.set_modified(std::time::SystemTime::now() - 2 * ABANDONED_AFTER).unwrap();
        }
        fs::remove_file(&library).unwrap();
        unpack(prefault(), &dir).unwrap();
        assert_eq!([old, new, other, library].map(|path| path.exists()), [false, true, true, true]);
    }

    #[test]
    fn a_directory_that_others_may_write_to_is_refused() {
        let (_place, dir) = place();
        for (mode, fine) in [(0o755, true), (0o700, true), (0o775, false), (0o757, false), (0o1777, false)] {
            fs::create_dir_all(&dir).unwrap();
            fs::set_permissions(&dir, Permissions::from_mode(mode)).unwrap();
            let found = unpack(prefault(), &dir);
            assert_eq!(found.is_ok(), fine, "{mode:o}");
            if let Err(error) = found {
                assert_eq!(error.kind(), ErrorKind::PermissionDenied);
                assert!(error.to_string().contains("chmod go-w"), "{error}");
                assert_eq!(fs::read_dir(&dir).unwrap().count(), 0, "{mode:o}");
            }
            fs::remove_dir_all(&dir).unwrap();
        }
    }

    #[test]
    fn a_directory_whose_parent_others_may_write_to_is_refused_unless_sticky() {
        let (place, dir) = place();
        for (mode, fine) in [(0o1777, true), (0o777, false), (0o775, false)] {
            fs::set_permissions(place.path(), Permissions::from_mode(mode)).unwrap();
            assert_eq!(unpack(prefault(), &dir).is_ok(), fine, "{mode:o}");
        }
    }

    #[test]
    fn another_users_directory_is_refused() {
        let (_place, dir) = place();
        fs::create_dir_all(&dir).unwrap();
        fs::set_permissions(&dir, Permissions::from_mode(0o755)).unwrap();
        let dir = dir.canonicalize().unwrap();
        let us = user().unwrap();
        assert!(guarded(&dir, true, us).is_ok());
        let error = guarded(&dir, true, us + 1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    }

    #[test]
    fn a_path_that_the_loader_would_split_is_refused() {
        let (_place, dir) = place();
        for (name, fine) in [("plain", true), ("with space", false), ("a:b", false), ("$ORIGIN", false)] {
            let found = unpack(prefault(), &dir.join(name));
            assert_eq!(found.map_err(|e| e.kind()).err(), (!fine).then_some(ErrorKind::InvalidInput));
        }
    }

    #[test]
    fn a_mount_without_execution_is_seen_where_it_lies_on_top() {
        let mounts = "1 0 8:1 / / rw,relatime shared:1 - ext4 /dev/sda rw\n\
            2 1 0:2 / /tmp rw,nosuid,nodev,noexec - tmpfs tmpfs rw\n\
            3 2 0:3 / /tmp/free rw - tmpfs tmpfs rw,noexecutive\n\
            4 1 0:4 / /srv rw,noexec - tmpfs tmpfs rw\n\
            5 4 0:5 / /srv rw - tmpfs tmpfs rw\n\
            broken\n";
        for (dir, noexec) in [
            ("/tmp", true),
            ("/tmp/a/b", true),
            ("/tmp/free", false),
            ("/tmp/free/a", false),
            ("/tmp/freely", true),
            ("/tmpfs", false),
            ("/srv/a", false),
            ("/", false),
        ] {
            assert_eq!(may_not_execute(mounts, Path::new(dir)), noexec, "{dir}");
        }
        // The directory of this program.
        let own = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let program = std::env::current_exe().unwrap();
        assert!(!own.is_empty() && !may_not_execute(&own, &program));
    }

    #[test]
    fn the_file_system_user_is_the_fourth() {
        let status = "Name:\tx\nUid:\t1000\t0\t0\t33\nGid:\t1\t2\t3\t4\n";
        assert_eq!(filesystem_user(status), Some(33));
        for broken in ["", "Uid:\t1\t2\t3\n", "Uid:\ta\tb\tc\td\n"] {
            assert_eq!(filesystem_user(broken), None, "{broken}");
        }
        // Files that this process creates belong to that user.
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(user().unwrap(), file.as_file().metadata().unwrap().uid());
    }

    #[test]
    fn the_hash_is_fnv1a() {
        // From the test vectors of its authors' page.
        for (bytes, hash) in
            [("", 0xcbf29ce484222325), ("a", 0xaf63dc4c8601ec8c), ("foobar", 0x85944171f73967e8)]
        {
            assert_eq!(fnv1a(bytes.as_bytes()), hash);
        }
    }

    #[test]
    fn each_library_is_complete() {
        for item in bundled().iter().chain([prefault(), count()]) {
            assert!(item.bytes.starts_with(b"\x7fELF"), "{}", item.kind);
            assert!(item.version.split('.').all(|part| part.parse::<u32>().is_ok()), "{}", item.version);
            assert!(!item.licence.is_empty());
        }
        assert!(bundled().iter().all(|item| item.notice.is_some_and(|text| text.contains("Copyright"))));
        assert_eq!(bundled()[0].kind, "mimalloc");
        assert!(bundled()[0].version.starts_with("3."));
    }
}
