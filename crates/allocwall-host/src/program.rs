//! Finds the file for a command's name as exec does, and what makes the kernel raise its rights.

use crate::inside;
use rustix::fs::{StatVfsMountFlags, statvfs};
use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Where execvp searches without a PATH (confstr(_CS_PATH), the same in glibc and musl).
pub(crate) const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// The file that exec would start for a name: searched in `path` if the name has no slash, else relative to
/// `cwd`.
///
/// # Errors
/// One line: not found, not executable, or not a file.
pub fn find(name: &OsStr, path: Option<&OsStr>, cwd: &Path) -> Result<PathBuf, String> {
    let shown = name.to_string_lossy();
    if name.is_empty() {
        return Err("the command's name is empty".to_owned());
    }
    if name.as_bytes().contains(&b'/') {
        let file = cwd.join(name);
        return executable(&file).map(|()| file).map_err(|why| format!("cannot start {shown}: {why}"));
    }
    let folders: OsString = path.map_or_else(|| DEFAULT_PATH.into(), OsStr::to_owned);
    let mut refused = None;
    for folder in std::env::split_paths(&folders) {
        // An empty entry is the current folder.
        let file = cwd.join(folder).join(name);
        match executable(&file) {
            Ok(()) => return Ok(file),
            // Like execvp: a file that may not be executed is remembered, and the search goes on.
            Err(why) if file.exists() => refused = refused.or(Some(format!("{}: {why}", file.display()))),
            Err(_) => {}
        }
    }
    Err(match refused {
        Some(why) => format!("cannot start {shown}: {why}"),
        None => format!("cannot start {shown}: there is no such program in PATH"),
    })
}

fn executable(file: &Path) -> Result<(), String> {
    let facts = file.metadata().map_err(|error| error.to_string())?;
    if facts.is_dir() {
        return Err("it is a folder".to_owned());
    }
    let kind = facts.file_type();
    if kind.is_fifo() || kind.is_socket() || kind.is_char_device() || kind.is_block_device() {
        return Err("it is not a regular file".to_owned());
    }
    // Effective rights, as exec checks; root needs one of the three execute bits.
    rustix::fs::accessat(rustix::fs::CWD, file, rustix::fs::Access::EXEC_OK, rustix::fs::AtFlags::EACCESS)
        .map_err(|_| "it is not executable".to_owned())
}

/// What gives a program more rights than its starter has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RaisedRights {
    SetUser,
    SetGroup,
    Capabilities,
}

impl RaisedRights {
    /// What the file has.
    pub fn text(self) -> &'static str {
        match self {
            RaisedRights::SetUser => "setuid rights",
            RaisedRights::SetGroup => "setgid rights",
            RaisedRights::Capabilities => "file capabilities",
        }
    }

    /// Completes a sentence about a file.
    pub fn sentence(self) -> &'static str {
        match self {
            RaisedRights::SetUser => "is set-user-ID",
            RaisedRights::SetGroup => "is set-group-ID",
            RaisedRights::Capabilities => "has file capabilities",
        }
    }
}

/// The rights that exec of this file raises. For a script the interpreter counts: the kernel ignores the
/// set-ID bits of the script itself. The loader of such a program ignores LD_PRELOAD and tunables (AT_SECURE,
/// getauxval(3)).
///
/// # Errors
/// The file, or the file of its interpreter, cannot be read.
pub fn gains_rights(file: &Path, cwd: &Path) -> io::Result<Option<(PathBuf, RaisedRights)>> {
    let mut file = cwd.join(file);
    for _ in 0..=SCRIPTS {
        match interpreter(&file) {
            Ok(Some((next, _))) => file = cwd.join(next),
            Ok(None) => return Ok(raised_rights(&file)?.map(|rights| (file, rights))),
            // A program that may be executed but not read: an interpreter could not read it either.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied && file.exists() => {
                return Ok(raised_rights(&file)?.map(|rights| (file, rights)));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// The most interpreters that are scripts themselves. The kernel gives up with ELOOP beyond that (fs/exec.c,
/// exec_binprm).
const SCRIPTS: usize = 5;

/// The rights that the kernel raises because of the mode and attributes of this file. On a nosuid mount it
/// ignores them.
pub fn raised_rights(file: &Path) -> io::Result<Option<RaisedRights>> {
    let mode = file.metadata()?.permissions().mode();
    if statvfs(file).is_ok_and(|mount| mount.f_flag.contains(StatVfsMountFlags::NOSUID)) {
        return Ok(None);
    }
    if mode & 0o4000 != 0 {
        return Ok(Some(RaisedRights::SetUser));
    }
    // Without the group's execute bit, this bit once meant mandatory locking (inode(7)).
    if mode & 0o2010 == 0o2010 {
        return Ok(Some(RaisedRights::SetGroup));
    }
    let mut value = [0u8; 64];
    match rustix::fs::getxattr(file, "security.capability", &mut value) {
        Ok(length) if length > 0 => Ok(Some(RaisedRights::Capabilities)),
        // No such attribute, or a file system without attributes.
        _ => Ok(None),
    }
}

/// Whether it starts like an ELF file.
pub fn is_elf(file: &Path) -> io::Result<bool> {
    let mut head = Vec::new();
    std::fs::File::open(file)?.take(4).read_to_end(&mut head)?;
    Ok(head == *b"\x7fELF")
}

/// BINPRM_BUF_SIZE of include/uapi/linux/binfmts.h: the part of a file's first line that the kernel reads.
pub(crate) const FIRST_LINE: u64 = 256;

/// The first line of a script: the interpreter, and all text after it as one argument (execve(2)).
pub fn interpreter(file: &Path) -> io::Result<Option<(PathBuf, Option<OsString>)>> {
    let mut head = Vec::new();
    // Never opens a FIFO or a device.
    let (opened, _) = inside::open_ours(file)?;
    opened.take(FIRST_LINE).read_to_end(&mut head)?;
    Ok(shebang(&head))
}

/// Splits a file's first [`FIRST_LINE`] bytes as the kernel does (fs/binfmt_script.c): at spaces and tabs
/// only, so a carriage return belongs to the name.
pub(crate) fn shebang(head: &[u8]) -> Option<(PathBuf, Option<OsString>)> {
    let line = head.strip_prefix(b"#!")?.split(|byte| matches!(byte, b'\n' | 0)).next()?;
    let blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let start = line.iter().position(|byte| !blank(byte))?;
    let end = line.iter().rposition(|byte| !blank(byte))?;
    let line = &line[start..=end];
    let (path, rest) = line.split_at(line.iter().position(blank).unwrap_or(line.len()));
    let argument = rest.iter().position(|byte| !blank(byte)).map(|at| &rest[at..]);
    Some((PathBuf::from(OsStr::from_bytes(path)), argument.map(|bytes| OsStr::from_bytes(bytes).to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn folder() -> tempfile::TempDir {
        tempfile::tempdir().unwrap()
    }

    fn file(path: &Path, mode: u32) {
        fs::write(path, "#!/bin/sh\n").unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn names_are_looked_for_as_exec_does() {
        let (first, second) = (folder(), folder());
        file(&first.path().join("tool"), 0o644);
        file(&second.path().join("tool"), 0o755);
        file(&first.path().join("plain"), 0o644);
        fs::create_dir(first.path().join("dir")).unwrap();
        let path = std::env::join_paths([first.path(), second.path()]).unwrap();
        let find = |name: &str| find(OsStr::new(name), Some(&path), second.path());
        assert_eq!(find("tool"), Ok(second.path().join("tool")));
        assert_eq!(find("./tool"), Ok(second.path().join("./tool")));
        for (name, words) in [
            ("missing", "no such program in PATH"),
            ("plain", "not executable"),
            ("dir", "a folder"),
            ("", "empty"),
            ("/nonexistent/x", "No such file"),
        ] {
            let line = find(name).unwrap_err();
            assert!(line.contains(words) && line.lines().count() == 1, "{line}");
        }
        assert!(super::find(OsStr::new("sh"), None, Path::new("/")).is_ok());
    }

    #[test]
    fn rights_are_raised_only_by_set_id_bits() {
        let folder = folder();
        if nosuid(folder.path()) {
            return;
        }
        let path = folder.path().join("tool");
        for (mode, raised) in [
            (0o4755, Some(RaisedRights::SetUser)),
            (0o2755, Some(RaisedRights::SetGroup)),
            // Mandatory locking; a sticky bit.
            (0o2744, None),
            (0o1755, None),
            (0o755, None),
        ] {
            file(&path, mode);
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(raised_rights(&path).unwrap(), raised, "{mode:o}");
        }
        assert!(raised_rights(&folder.path().join("missing")).is_err());
    }

    #[test]
    fn capabilities_of_a_file() {
        let folder = folder();
        if nosuid(folder.path()) {
            return;
        }
        let path = folder.path().join("tool");
        file(&path, 0o755);
        // VFS_CAP_REVISION_2, effective, CAP_NET_BIND_SERVICE permitted (include/uapi/linux/capability.h).
        let mut value = [0u8; 20];
        value[..4].copy_from_slice(&0x0200_0001u32.to_le_bytes());
        value[4..8].copy_from_slice(&(1u32 << 10).to_le_bytes());
        let set = rustix::fs::setxattr(&path, "security.capability", &value, rustix::fs::XattrFlags::empty());
        match set {
            Ok(()) => assert_eq!(raised_rights(&path).unwrap(), Some(RaisedRights::Capabilities)),
            Err(error) => println!("skipped: cannot give a file capabilities here: {error}"),
        }
    }

    fn nosuid(folder: &Path) -> bool {
        let nosuid = statvfs(folder).unwrap().f_flag.contains(StatVfsMountFlags::NOSUID);
        if nosuid {
            println!("skipped: temporary folders are on a nosuid mount");
        }
        nosuid
    }

    #[test]
    fn a_script_is_judged_by_its_interpreter() {
        let folder = folder();
        if nosuid(folder.path()) {
            return;
        }
        let make = |name: &str, text: String, mode: u32| {
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            path
        };
        let line = |interpreter: &Path| format!("#! {} -x\n", interpreter.display());
        let strong = make("strong", "\u{7f}ELF".into(), 0o4755);
        let weak = make("weak", "\u{7f}ELF".into(), 0o755);
        let by_strong = make("a", line(&strong), 0o755);
        let by_weak = make("b", line(&weak), 0o4755);
        let by_script = make("c", line(&by_strong), 0o755);
        let gained = |path: &Path| gains_rights(path, Path::new("/")).unwrap();
        let raised = Some((strong.clone(), RaisedRights::SetUser));
        assert_eq!((gained(&by_strong), gained(&by_script)), (raised.clone(), raised));
        assert_eq!(gained(&by_weak), None);
        let round = make("d", line(&folder.path().join("d")), 0o755);
        assert_eq!(gained(&round), None);
        let lost = make("e", line(&folder.path().join("nothing")), 0o755);
        assert_eq!(gains_rights(&lost, Path::new("/")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn first_lines_of_scripts() {
        let parse = |text: &str| {
            shebang(text.as_bytes()).map(|(path, argument)| {
                (path.display().to_string(), argument.map(|a| a.to_string_lossy().into_owned()))
            })
        };
        assert_eq!(parse("#!/bin/sh\nrest"), Some(("/bin/sh".into(), None)));
        assert_eq!(
            parse("#! /usr/bin/env -S python3 -u \n"),
            Some(("/usr/bin/env".into(), Some("-S python3 -u".into())))
        );
        assert_eq!(parse("#! \t/bin/sh"), Some(("/bin/sh".into(), None)));
        // The kernel searches for a file with the carriage return in its name, and finds none.
        assert_eq!(parse("#!/bin/sh\r\n"), Some(("/bin/sh\r".into(), None)));
        for none in ["#!", "#!\n", "#!\n/bin/sh", "#!  ", "", "#", "\u{7f}ELF", " #!/bin/sh"] {
            assert_eq!(parse(none), None, "{none:?}");
        }
    }
}
