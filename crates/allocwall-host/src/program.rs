//! The file that a command's name stands for, as exec finds it, and what makes the kernel raise its rights.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Where execvp looks when there is no PATH (confstr(_CS_PATH), glibc and musl alike).
pub(crate) const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// The file that exec would start for a name: looked for in `path` where it has no slash.
///
/// # Errors
/// One line: not found, not executable, or no file.
pub fn find(name: &OsStr, path: Option<&OsStr>) -> Result<PathBuf, String> {
    let shown = name.to_string_lossy();
    if name.is_empty() {
        return Err("the command's name is empty".to_owned());
    }
    if name.as_bytes().contains(&b'/') {
        let file = PathBuf::from(name);
        return executable(&file)
            .map(|()| file)
            .map_err(|why| format!("cannot start {shown}: {why}"));
    }
    let folders: OsString = path.map_or_else(|| DEFAULT_PATH.into(), OsStr::to_owned);
    let mut refused = None;
    for folder in std::env::split_paths(&folders) {
        // An empty entry is the current folder.
        let file = match folder.as_os_str().is_empty() {
            true => Path::new(".").join(name),
            false => folder.join(name),
        };
        match executable(&file) {
            Ok(()) => return Ok(file),
            // As execvp: one that may not be executed is remembered, the search goes on.
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
        return Err("it is no regular file".to_owned());
    }
    // Effective rights, as exec asks; root needs one of the three bits.
    rustix::fs::accessat(
        rustix::fs::CWD,
        file,
        rustix::fs::Access::EXEC_OK,
        rustix::fs::AtFlags::EACCESS,
    )
    .map_err(|_| "it is not executable".to_owned())
}

/// What gives a program more rights than its starter has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    SetUser,
    SetGroup,
    Capabilities,
}

impl Rights {
    pub fn key(self) -> &'static str {
        match self {
            Rights::SetUser => "setuid",
            Rights::SetGroup => "setgid",
            Rights::Capabilities => "file capabilities",
        }
    }

    /// Said of a file.
    pub fn sentence(self) -> &'static str {
        match self {
            Rights::SetUser => "is set-user-ID",
            Rights::SetGroup => "is set-group-ID",
            Rights::Capabilities => "has file capabilities",
        }
    }
}

/// What its file asks for: the loader then ignores LD_PRELOAD and tunables (AT_SECURE, getauxval(3)). On a nosuid mount the
/// kernel heeds none of it.
pub fn raised_rights(file: &Path) -> io::Result<Option<Rights>> {
    let mode = file.metadata()?.permissions().mode();
    if mode & 0o4000 != 0 {
        return Ok(Some(Rights::SetUser));
    }
    // Without the group's right to execute, the bit once meant mandatory locking (inode(7)).
    if mode & 0o2010 == 0o2010 {
        return Ok(Some(Rights::SetGroup));
    }
    let mut value = [0u8; 64];
    match rustix::fs::getxattr(file, "security.capability", &mut value) {
        Ok(length) if length > 0 => Ok(Some(Rights::Capabilities)),
        // No such attribute, or a file system without any.
        _ => Ok(None),
    }
}

/// It begins as an ELF file does.
pub fn is_elf(file: &Path) -> io::Result<bool> {
    let mut head = Vec::new();
    std::fs::File::open(file)?.take(4).read_to_end(&mut head)?;
    Ok(head == *b"\x7fELF")
}

/// BINPRM_BUF_SIZE of include/uapi/linux/binfmts.h: what the kernel reads of a file's first line.
pub(crate) const FIRST_LINE: u64 = 256;

/// What the first line of a script names: the interpreter, and everything behind it as one argument (execve(2)).
pub fn interpreter(file: &Path) -> io::Result<Option<(PathBuf, Option<OsString>)>> {
    let mut head = Vec::new();
    std::fs::File::open(file)?
        .take(FIRST_LINE)
        .read_to_end(&mut head)?;
    Ok(shebang(&head))
}

/// Of a file's first [`FIRST_LINE`] bytes, as the kernel splits them (fs/binfmt_script.c): at spaces and tabs alone, so that a
/// carriage return belongs to the name.
pub(crate) fn shebang(head: &[u8]) -> Option<(PathBuf, Option<OsString>)> {
    let line = head
        .strip_prefix(b"#!")?
        .split(|byte| matches!(byte, b'\n' | 0))
        .next()?;
    let blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let start = line.iter().position(|byte| !blank(byte))?;
    let end = line.iter().rposition(|byte| !blank(byte))?;
    let line = &line[start..=end];
    let (path, rest) = line.split_at(line.iter().position(blank).unwrap_or(line.len()));
    let argument = rest.iter().position(|byte| !blank(byte)).map(|at| &rest[at..]);
    Some((
        PathBuf::from(OsStr::from_bytes(path)),
        argument.map(|bytes| OsStr::from_bytes(bytes).to_owned()),
    ))
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
        let find = |name: &str| find(OsStr::new(name), Some(&path));
        assert_eq!(find("tool"), Ok(second.path().join("tool")));
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
        assert!(super::find(OsStr::new("sh"), None).is_ok());
    }

    #[test]
    fn rights_are_raised_by_mode_bits_and_not_by_their_twins() {
        let folder = folder();
        let path = folder.path().join("tool");
        for (mode, raised) in [
            (0o4755, Some(Rights::SetUser)),
            (0o2755, Some(Rights::SetGroup)),
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
        let path = folder.path().join("tool");
        file(&path, 0o755);
        // VFS_CAP_REVISION_2, effective, CAP_NET_BIND_SERVICE permitted (include/uapi/linux/capability.h).
        let mut value = [0u8; 20];
        value[..4].copy_from_slice(&0x0200_0001u32.to_le_bytes());
        value[4..8].copy_from_slice(&(1u32 << 10).to_le_bytes());
        let set = rustix::fs::setxattr(
            &path,
            "security.capability",
            &value,
            rustix::fs::XattrFlags::empty(),
        );
        match set {
            Ok(()) => assert_eq!(raised_rights(&path).unwrap(), Some(Rights::Capabilities)),
            Err(error) => println!("skipped: cannot give a file capabilities here: {error}"),
        }
    }

    #[test]
    fn first_lines_of_scripts() {
        let parse = |text: &str| {
            shebang(text.as_bytes()).map(|(path, argument)| {
                (
                    path.display().to_string(),
                    argument.map(|a| a.to_string_lossy().into_owned()),
                )
            })
        };
        assert_eq!(parse("#!/bin/sh\nrest"), Some(("/bin/sh".into(), None)));
        assert_eq!(
            parse("#! /usr/bin/env -S python3 -u \n"),
            Some(("/usr/bin/env".into(), Some("-S python3 -u".into())))
        );
        assert_eq!(parse("#! \t/bin/sh"), Some(("/bin/sh".into(), None)));
        // The kernel looks for a file of that name, and finds none.
        assert_eq!(parse("#!/bin/sh\r\n"), Some(("/bin/sh\r".into(), None)));
        for none in [
            "#!",
            "#!\n",
            "#!\n/bin/sh",
            "#!  ",
            "",
            "#",
            "\u{7f}ELF",
            " #!/bin/sh",
        ] {
            assert_eq!(parse(none), None, "{none:?}");
        }
    }
}
