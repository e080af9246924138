//! Folders for allocwall's own files: recordings, price lists, libraries, temporary files.
//!
//! Root with the environment of another user (`sudo -E`, `su` without `-`) would leave files in that user's
//! folders that the user can't remove. It would also follow links that the user can create there. So root
//! uses a folder only if no other user can change its path: each folder and each link on the path belongs to
//! root, and only root may write there (or the folder is sticky, as /tmp is). Otherwise root's own home is
//! used. For other users, the environment is used as it is: they have no rights to lose. A relative path is
//! never used, because its meaning depends on the current folder.

use allocwall_model::units::{Absence, Measured, Reason};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Component, Path, PathBuf};

const PASSWD: &str = "/etc/passwd";
/// The most links on one path (path_resolution(7)).
const LINKS: usize = 40;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Recordings and trials.
    State,
    /// Price lists and libraries.
    Cache,
}

impl Kind {
    /// XDG Base Directory Specification: the variable, and the folder below the home if it isn't set.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Kind::State => ("XDG_STATE_HOME", ".local/state"),
            Kind::Cache => ("XDG_CACHE_HOME", ".cache"),
        }
    }
}

/// A folder, which may not exist yet, and a message to the user if it isn't the one that the environment
/// names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnFolder {
    pub folder: PathBuf,
    pub instead: Option<String>,
}

/// The folder for files of this kind. Creates nothing.
///
/// # Errors
/// The environment names no usable folder, and the user database has no home.
pub fn folder(kind: Kind) -> Measured<OwnFolder> {
    let user = rustix::process::geteuid().as_raw();
    let passwd = std::fs::read(PASSWD).unwrap_or_default();
    folder_of(kind, user, &|name| std::env::var_os(name), &passwd)
}

/// The folder for temporary files: TMPDIR, or /tmp.
pub fn temporary() -> OwnFolder {
    let root = rustix::process::geteuid().is_root();
    temporary_of(root, std::env::var_os("TMPDIR"))
}

fn temporary_of(root: bool, named: Option<OsString>) -> OwnFolder {
    const NAME: &str = "TMPDIR";
    let default = || PathBuf::from("/tmp");
    let folder = named.filter(|value| !value.is_empty()).map_or_else(default, PathBuf::from);
    let refused = match (folder.is_absolute(), root) {
        (false, _) => Some(not_absolute(NAME, &folder)),
        (true, true) => judge(&folder).err().map(|refusal| passed_over(NAME, &refusal)),
        (true, false) => None,
    };
    match refused {
        None => OwnFolder { folder, instead: None },
        Some(why) => OwnFolder { folder: default(), instead: Some(format!("{why}; /tmp is used instead")) },
    }
}

/// Creates a folder and its missing parents.
///
/// # Errors
/// The errors of the system, with the path. `PermissionDenied` if root would have to use a path that other
/// users can change.
pub fn create(folder: &Path, mode: u32) -> io::Result<()> {
    let made = if rustix::process::geteuid().is_root() {
        create_as_root(folder, mode)
    } else {
        std::fs::DirBuilder::new().recursive(true).mode(mode).create(folder)
    };
    made.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", folder.display())))
}

fn folder_of(
    kind: Kind,
    user: u32,
    variable: &dyn Fn(&str) -> Option<OsString>,
    passwd: &[u8],
) -> Measured<OwnFolder> {
    let (xdg, below) = kind.names();
    let mut why = None;
    let mut refuse = |text: String| {
        why.get_or_insert(text);
    };
    let named = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let own = home_of(user, passwd);
    let chosen = [(xdg, ""), ("HOME", below)].into_iter().find_map(|(name, below)| {
        let Some(path) = named(name) else {
            (name == "HOME").then(|| refuse("HOME is not set".into()));
            return None;
        };
        // The specification says that a relative path is invalid and to be ignored.
        if !path.is_absolute() {
            refuse(not_absolute(name, &path));
            return None;
        }
        if user != 0 {
            return Some(path.join(below));
        }
        // A missing home is not created: it belongs to another user, and may be mounted or created later.
        if name == "HOME" && own.as_ref() != Some(&path) && !path.exists() {
            refuse(format!("HOME={} does not exist", path.display()));
            return None;
        }
        let folder = path.join(below);
        match judge(&folder) {
            Ok(()) => Some(folder),
            Err(refusal) => {
                refuse(passed_over(name, &refusal));
                None
            }
        }
    });
    if let Some(folder) = chosen {
        return Ok(OwnFolder { folder: folder.join("allocwall"), instead: None });
    }
    let none = |detail: String| {
        Err(Absence::new(Reason::NotFound, detail).mend(format!("export {xdg}=/some/folder")))
    };
    let why = why.unwrap_or_default();
    let Some(home) = own else {
        return none(format!("{why}, and {PASSWD} has no home for user {user}"));
    };
    let folder = home.join(below);
    if user == 0
        && let Err(refusal) = judge(&folder)
    {
        return none(format!("{why}; {}", passed_over(&home.display().to_string(), &refusal)));
    }
    Ok(OwnFolder {
        folder: folder.join("allocwall"),
        instead: Some(format!("{why}; {} is used instead", home.display())),
    })
}

fn passed_over(name: &str, refusal: &Refusal) -> String {
    format!("{name} is not used by root: {refusal}")
}

fn not_absolute(name: &str, path: &Path) -> String {
    format!("{name}={} is not an absolute path", path.display())
}

/// passwd(5). Without an entry, root's home is /root by convention: a container may have no users.
fn home_of(user: u32, passwd: &[u8]) -> Option<PathBuf> {
    let home = |line: &[u8]| {
        let mut fields = line.split(|&byte| byte == b':').skip(2);
        let id: u32 = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
        let home = PathBuf::from(OsStr::from_bytes(fields.nth(2)?));
        (id == user && home.is_absolute()).then_some(home)
    };
    let listed = passwd.split(|&byte| byte == b'\n').find_map(home);
    listed.or_else(|| (user == 0).then(|| "/root".into()))
}

/// Why root does not use a folder.
#[derive(Debug)]
enum Refusal {
    Foreign { path: PathBuf, owner: u32 },
    Shared { path: PathBuf, mode: u32 },
    TooManyLinks,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Foreign { path, owner } => write!(f, "{} belongs to user {owner}", path.display()),
            Refusal::Shared { path, mode } => {
                write!(f, "other users may write to {} (mode {mode:04o})", path.display())
            }
            Refusal::TooManyLinks => f.write_str("its path has too many symbolic links"),
        }
    }
}

enum Stopped {
    Refused(Refusal),
    Failed(io::Error),
}

impl From<Errno> for Stopped {
    fn from(errno: Errno) -> Stopped {
        Stopped::Failed(errno.into())
    }
}

/// Judges the part of the path that exists. A path that can't be walked (a file in it, a loop) is refused
/// later, when it is created, with the system's own message: another folder would hide the mistake.
fn judge(folder: &Path) -> Result<(), Refusal> {
    match Way::walk(folder, None) {
        Err(Stopped::Refused(refusal)) => Err(refusal),
        Ok(()) | Err(Stopped::Failed(_)) => Ok(()),
    }
}

fn create_as_root(folder: &Path, mode: u32) -> io::Result<()> {
    Way::walk(folder, Some(Mode::from_raw_mode(mode))).map_err(|stopped| match stopped {
        Stopped::Failed(error) => error,
        Stopped::Refused(refusal) => io::Error::new(io::ErrorKind::PermissionDenied, refusal.to_string()),
    })
}

/// A path that is walked step by step. Each folder stays open, so that it cannot be replaced between its
/// check and the next step.
struct Way {
    here: OwnedFd,
    at: PathBuf,
    /// This user, and the owner of `/`: root, or the user id that stands for root inside a user namespace.
    owners: [u32; 2],
}

impl Way {
    /// With a mode, missing folders are created; without a mode, the walk ends at the first missing one.
    fn walk(path: &Path, make: Option<Mode>) -> Result<(), Stopped> {
        const FOLDER: OFlags =
            OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
        // The walk starts at the root; a relative path would start at the current folder.
        let path = std::path::absolute(path).map_err(Stopped::Failed)?;
        let here = rustix::fs::openat(CWD, "/", FOLDER, Mode::empty())?;
        let root = rustix::fs::fstat(&here)?;
        let user = rustix::process::geteuid().as_raw();
        let mut way = Way { here, at: "/".into(), owners: [user, root.st_uid] };
        way.judge(&root).map_err(Stopped::Refused)?;
        let mut links = 0;
        let mut todo: VecDeque<OsString> = steps(&path);
        while let Some(step) = todo.pop_front() {
            let path = if step == ".." {
                way.at.parent().unwrap_or(Path::new("/")).to_owned()
            } else {
                way.at.join(&step)
            };
            match rustix::fs::statat(&way.here, &step, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(found) if is_link(&found) => {
                    way.judge_owner(&path, &found).map_err(Stopped::Refused)?;
                    links += 1;
                    if links > LINKS {
                        return Err(Stopped::Refused(Refusal::TooManyLinks));
                    }
                    let to = rustix::fs::readlinkat(&way.here, &step, Vec::new())?;
                    let to = PathBuf::from(OsString::from_vec(to.into_bytes()));
                    if to.is_absolute() {
                        way.here = rustix::fs::openat(CWD, "/", FOLDER, Mode::empty())?;
                        way.at = "/".into();
                    }
                    for step in steps(&to).into_iter().rev() {
                        todo.push_front(step);
                    }
                    continue;
                }
                Ok(_) => {}
                Err(Errno::NOENT) => match make {
                    None => return Ok(()),
                    Some(mode) => match rustix::fs::mkdirat(&way.here, &step, mode) {
                        // Another run of allocwall may have created it first.
                        Ok(()) | Err(Errno::EXIST) => {}
                        Err(errno) => return Err(errno.into()),
                    },
                },
                Err(errno) => return Err(errno.into()),
            }
            way.here = rustix::fs::openat(&way.here, &step, FOLDER, Mode::empty())?;
            way.at = path;
            let facts = rustix::fs::fstat(&way.here)?;
            way.judge(&facts).map_err(Stopped::Refused)?;
        }
        Ok(())
    }

    fn judge_owner(&self, path: &Path, facts: &Stat) -> Result<(), Refusal> {
        if self.owners.contains(&facts.st_uid) {
            Ok(())
        } else {
            Err(Refusal::Foreign { path: path.to_owned(), owner: facts.st_uid })
        }
    }

    fn judge(&self, facts: &Stat) -> Result<(), Refusal> {
        self.judge_owner(&self.at, facts)?;
        let mode = facts.st_mode & 0o7777;
        // With an access list, the group bits are its mask: the most that it gives to any other user or group (acl(5)).
        // Without one they are the rights of the group, and root's own group is root.
        let by_group = mode & 0o020 != 0 && (facts.st_gid != 0 || self.has_access_list());
        let shared = mode & 0o002 != 0 || by_group;
        // In a sticky folder only the owner of an entry may rename it (inode(7)).
        if shared && mode & 0o1000 == 0 {
            Err(Refusal::Shared { path: self.at.clone(), mode })
        } else {
            Ok(())
        }
    }

    /// Whether the folder has rights for single users or groups; also true if that can't be read.
    fn has_access_list(&self) -> bool {
        // By its path below /proc: a handle that was opened with O_PATH has no attributes of its own (open(2)).
        let path = format!("/proc/self/fd/{}", self.here.as_raw_fd());
        let size = rustix::fs::getxattr_query(path, "system.posix_acl_access");
        !matches!(size, Err(Errno::NODATA | Errno::OPNOTSUPP))
    }
}

fn is_link(facts: &Stat) -> bool {
    rustix::fs::FileType::from_raw_mode(facts.st_mode) == rustix::fs::FileType::Symlink
}

fn steps(path: &Path) -> VecDeque<OsString> {
    path.components()
        .filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir))
        .map(|part| part.as_os_str().to_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};

    const ROOT: &[u8] = b"daemon:x:1:1:daemon:/usr/sbin:/x\nroot:x:0:0:root:/root:/bin/bash\nu:x:1000:1000::/home/u:/bin/sh\n";
    const OTHER: u32 = 65_534;

    fn variables<'a>(
        xdg: Option<&'a Path>,
        home: Option<&'a Path>,
    ) -> impl Fn(&str) -> Option<OsString> + 'a {
        move |name| {
            let value = if name == "HOME" { home } else { xdg };
            value.map(|path| path.as_os_str().to_owned())
        }
    }

    fn of(user: u32, xdg: Option<&str>, home: Option<&str>) -> Measured<OwnFolder> {
        folder_of(Kind::Cache, user, &variables(xdg.map(Path::new), home.map(Path::new)), ROOT)
    }

    /// Only root can create folders of different owners.
    fn root() -> bool {
        let root = rustix::process::geteuid().is_root();
        if !root {
            println!("skipped: only root can give a folder to another user");
        }
        root
    }

    /// A home of another user, in a folder of ours.
    fn foreign_home() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().join("home");
        fs::create_dir(&home).unwrap();
        chown(&home, Some(OTHER), Some(OTHER)).unwrap();
        (dir, home)
    }

    #[test]
    fn the_environment_of_an_ordinary_user_is_used_unchanged() {
        let plain = |folder: &str| Ok(OwnFolder { folder: folder.into(), instead: None });
        assert_eq!(of(1000, Some("/x"), Some("/home/u")), plain("/x/allocwall"));
        assert_eq!(of(1000, Some("relative"), Some("/home/v")), plain("/home/v/.cache/allocwall"));
        assert_eq!(of(1000, Some(""), Some("/home/v")), plain("/home/v/.cache/allocwall"));
        for (home, why) in [(None, "HOME is not set"), (Some("x/y"), "HOME=x/y is not an absolute path")] {
            let place = of(1000, None, home).unwrap();
            assert_eq!(place.folder, Path::new("/home/u/.cache/allocwall"));
            assert_eq!(place.instead, Some(format!("{why}; /home/u is used instead")));
        }
        let place = of(1000, Some("x"), None).unwrap();
        assert_eq!(place.folder, Path::new("/home/u/.cache/allocwall"));
        let said = "XDG_CACHE_HOME=x is not an absolute path; /home/u is used instead";
        assert_eq!(place.instead.as_deref(), Some(said));
        let absence = of(1001, None, None).unwrap_err();
        assert_eq!(absence.reason, Reason::NotFound);
        assert_eq!(absence.advice().as_deref(), Some("export XDG_CACHE_HOME=/some/folder"));
    }

    #[test]
    fn a_relative_temporary_folder_is_not_used() {
        for root in [false, true] {
            for path in [".", "tmp"] {
                let place = temporary_of(root, Some(path.into()));
                assert_eq!(place.folder, Path::new("/tmp"));
                let said = format!("TMPDIR={path} is not an absolute path; /tmp is used instead");
                assert_eq!(place.instead, Some(said));
            }
        }
        for unset in [None, Some("".into())] {
            let place = temporary_of(false, unset);
            assert_eq!((place.folder, place.instead), ("/tmp".into(), None));
        }
        let place = temporary_of(false, Some("/x".into()));
        assert_eq!((place.folder, place.instead), ("/x".into(), None));
    }

    #[test]
    fn roots_home_without_users() {
        assert_eq!(home_of(0, b""), Some("/root".into()));
        assert_eq!(home_of(0, b"root:x:0:0::/srv/root:/bin/sh"), Some("/srv/root".into()));
        assert_eq!(home_of(7, b"a:b\n:::\nx:x:7:7::relative:/\n\xff"), None);
    }

    #[test]
    fn root_does_not_use_folders_that_others_can_change() {
        if !root() {
            return;
        }
        let (dir, home) = foreign_home();
        let at = |xdg: Option<&Path>, home: Option<&Path>| {
            folder_of(Kind::Cache, 0, &variables(xdg, home), ROOT).unwrap()
        };
        let place = at(None, Some(&home));
        assert_eq!(place.folder, Path::new("/root/.cache/allocwall"));
        let said = place.instead.unwrap();
        let foreign = Refusal::Foreign { path: home.clone(), owner: OTHER }.to_string();
        assert!(said.contains(&foreign), "{said}");
        // A folder that root created earlier changes nothing: its path belongs to another user.
        fs::create_dir(home.join(".cache")).unwrap();
        assert!(at(None, Some(&home)).instead.is_some());
        assert!(at(Some(&home.join("deep/below")), None).instead.is_some());
        // The twin: our own folder, and one that does not exist yet.
        let own = dir.path().join("own");
        fs::create_dir(&own).unwrap();
        for (xdg, home, folder) in [
            (None, Some(&own), own.join(".cache/allocwall")),
            (Some(&own), Some(&home), own.join("allocwall")),
            (Some(&own.join("a/b")), None, own.join("a/b/allocwall")),
        ] {
            let place = at(xdg.map(PathBuf::as_path), home.map(PathBuf::as_path));
            assert_eq!((place.folder, place.instead), (folder, None));
        }
        // Our own folder, writable for all; then with the sticky bit.
        fs::set_permissions(&own, fs::Permissions::from_mode(0o777)).unwrap();
        let said = at(Some(&own), None).instead.unwrap();
        let shared = Refusal::Shared { path: own.clone(), mode: 0o777 }.to_string();
        assert!(said.contains(&shared), "{said}");
        fs::set_permissions(&own, fs::Permissions::from_mode(0o1777)).unwrap();
        assert_eq!(at(Some(&own), None).instead, None);
        // A home that doesn't exist is not created for another user.
        let missing = dir.path().join("missing");
        let said = at(None, Some(&missing)).instead.unwrap();
        assert!(said.contains(&missing.display().to_string()), "{said}");
    }

    /// An access list in the form of the kernel (include/uapi/linux/posix_acl_xattr.h): rwx for the owner and for `OTHER`,
    /// r-x for the group and all others, and a mask.
    fn access_list(mask: u16) -> Vec<u8> {
        const NOBODY: u32 = u32::MAX;
        let entries: [(u16, u16, u32); 5] =
            [(0x01, 7, NOBODY), (0x02, 7, OTHER), (0x04, 5, NOBODY), (0x10, mask, NOBODY), (0x20, 5, NOBODY)];
        let mut list = 2_u32.to_le_bytes().to_vec();
        for (tag, rights, user) in entries {
            list.extend(tag.to_le_bytes());
            list.extend(rights.to_le_bytes());
            list.extend(user.to_le_bytes());
        }
        list
    }

    #[test]
    fn a_user_of_an_access_list_can_change_a_folder_as_far_as_its_mask() {
        if !root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join("own");
        fs::create_dir(&own).unwrap();
        chown(&own, Some(0), Some(0)).unwrap();
        // Root's group may write there, and no one else.
        fs::set_permissions(&own, fs::Permissions::from_mode(0o775)).unwrap();
        assert!(judge(&own).is_ok());
        for (mask, refused) in [(7, true), (5, false)] {
            let flags = rustix::fs::XattrFlags::empty();
            let list = access_list(mask);
            if let Err(why) = rustix::fs::setxattr(&own, "system.posix_acl_access", &list, flags) {
                return println!("skipped in part: this file system has no access lists: {why}");
            }
            let mode = fs::metadata(&own).unwrap().mode() & 0o7777;
            assert_eq!(mode, 0o705 | (u32::from(mask) << 3), "the group bits show the mask");
            let judged = judge(&own);
            assert_eq!(judged.is_err(), refused, "mode {mode:04o}: {judged:?}");
            assert_eq!(create(&own.join("below"), 0o700).is_err(), refused);
        }
    }

    #[test]
    fn links_of_others_are_not_followed_and_our_own_are() {
        if !root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let (target, shared) = (dir.path().join("target"), dir.path().join("shared"));
        for folder in [&target, &shared] {
            fs::create_dir(folder).unwrap();
        }
        fs::set_permissions(&shared, fs::Permissions::from_mode(0o1777)).unwrap();
        let link = shared.join("link");
        symlink(&target, &link).unwrap();
        create(&link.join("ours/a"), 0o700).unwrap();
        let facts = fs::symlink_metadata(target.join("ours/a")).unwrap();
        assert_eq!((facts.uid(), facts.mode() & 0o7777), (0, 0o700));
        std::os::unix::fs::lchown(&link, Some(OTHER), Some(OTHER)).unwrap();
        let error = create(&link.join("theirs"), 0o700).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        assert!(error.to_string().contains(&OTHER.to_string()), "{error}");
        assert!(!target.join("theirs").exists());
        // Relative links, and `..` in them, are resolved.
        symlink("../target/ours", shared.join("up")).unwrap();
        create(&shared.join("up/b"), 0o700).unwrap();
        assert!(target.join("ours/b").is_dir());
        symlink("loop", shared.join("loop")).unwrap();
        assert!(create(&shared.join("loop/x"), 0o700).is_err());
    }

    #[test]
    fn an_obstacle_is_an_error_that_names_the_folder() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        let error = create(&file.join("below"), 0o700).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotADirectory);
        assert!(error.to_string().contains(&file.display().to_string()), "{error}");
        assert!(judge(&file.join("below")).is_ok());
    }
}
