//! Programs that gain rights when they are started (ld.so(8), secure-execution mode): the loader then ignores what is asked
//! of it by the environment, libc drops tunables, and the kernel forgets whom to end with us (prctl(2), PR_SET_PDEATHSIG).

use crate::file;
use crate::inside;
use crate::program;
use allocwall_model::units::{Absence, Measured, Reason};
use rustix::fs::{StatVfsMountFlags, statvfs};
use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Interpreters that are scripts themselves; the kernel gives up with ELOOP beyond (fs/exec.c, exec_binprm).
const DEPTH: usize = 5;

/// The file that exec would take for this name: searched in `path` where the name has no slash, else below `cwd`.
pub fn program(name: &OsStr, path: Option<&OsStr>, cwd: &Path) -> Measured<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        return Ok(cwd.join(name));
    }
    let executable = |file: &PathBuf| {
        file.metadata()
            .is_ok_and(|facts| facts.is_file() && facts.permissions().mode() & 0o111 != 0)
    };
    std::env::split_paths(path.unwrap_or(OsStr::new(program::DEFAULT_PATH)))
        .map(|folder| cwd.join(folder).join(name))
        .find(executable)
        .ok_or_else(|| {
            let detail = format!("no program {} in PATH", name.to_string_lossy());
            Absence::new(Reason::NotFound, detail)
        })
}

/// In a few words, why the program gains rights when it is started; None where it doesn't. Of a script its interpreter
/// counts: the kernel heeds no bits of the script itself.
///
/// # Errors
/// The file, or its interpreter's, can't be looked at.
pub fn gains_rights(program: &Path, cwd: &Path) -> Measured<Option<String>> {
    let mut file = cwd.join(program);
    for _ in 0..=DEPTH {
        match interpreter(&file)? {
            Some(next) => file = cwd.join(next),
            None => return reason(&file),
        }
    }
    Ok(None)
}

fn reason(file: &Path) -> Measured<Option<String>> {
    let rights = program::raised_rights(file).map_err(|error| file::absence_of(file, &error))?;
    // On such a mount neither bits nor capabilities are heeded.
    let heeded = !statvfs(file).is_ok_and(|mount| mount.f_flag.contains(StatVfsMountFlags::NOSUID));
    Ok(rights
        .filter(|_| heeded)
        .map(|rights| format!("{} {}", file.display(), rights.sentence())))
}

/// Of a `#!` line; None where the file is none that the kernel reads one from. A program that may be executed and not
/// read has none either: its interpreter couldn't read it.
fn interpreter(file: &Path) -> Measured<Option<PathBuf>> {
    let (opened, _) = match inside::open_ours(file) {
        Ok(found) => found,
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied && file.exists() => {
            return Ok(None);
        }
        Err(error) => return Err(file::absence_of(file, &error)),
    };
    let mut head = Vec::new();
    opened
        .take(program::FIRST_LINE)
        .read_to_end(&mut head)
        .map_err(|error| file::absence_of(file, &error))?;
    Ok(program::shebang(&head).map(|(path, _)| path))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file of that mode; what follows is skipped where it can't be made.
    fn file(folder: &Path, name: &str, bytes: &[u8], mode: u32) -> PathBuf {
        let path = folder.join(name);
        std::fs::write(&path, bytes).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    fn nosuid(folder: &Path) -> bool {
        let nosuid = statvfs(folder)
            .unwrap()
            .f_flag
            .contains(StatVfsMountFlags::NOSUID);
        if nosuid {
            println!("skipped: temporary folders are on a nosuid mount");
        }
        nosuid
    }

    #[test]
    fn bits_that_the_kernel_heeds() {
        let dir = tempfile::tempdir().unwrap();
        if nosuid(dir.path()) {
            return;
        }
        for (mode, words) in [
            (0o4755, Some("is set-user-ID")),
            (0o2755, Some("is set-group-ID")),
            // Mandatory locking, sticky, plain.
            (0o2745, None),
            (0o1755, None),
            (0o755, None),
        ] {
            let path = file(dir.path(), "program", b"\x7fELF", mode);
            let said = gains_rights(&path, dir.path()).unwrap();
            assert_eq!(said.is_some(), words.is_some(), "{mode:o}: {said:?}");
            assert!(said.unwrap_or_default().ends_with(words.unwrap_or_default()));
        }
    }

    #[test]
    fn a_script_is_judged_by_its_interpreter() {
        let dir = tempfile::tempdir().unwrap();
        if nosuid(dir.path()) {
            return;
        }
        let strong = file(dir.path(), "strong", b"\x7fELF", 0o4755);
        let weak = file(dir.path(), "weak", b"\x7fELF", 0o755);
        let line = |interpreter: &Path| format!("#! {} -x\n", interpreter.display()).into_bytes();
        let by_strong = file(dir.path(), "a", &line(&strong), 0o755);
        let by_weak = file(dir.path(), "b", &line(&weak), 0o4755);
        let by_script = file(dir.path(), "c", &line(&by_strong), 0o755);
        let said = |path: &Path| gains_rights(path, Path::new("/")).unwrap();
        assert!(said(&by_strong).unwrap().contains("strong is set-user-ID"));
        assert!(said(&by_script).unwrap().contains("strong is set-user-ID"));
        assert_eq!(said(&by_weak), None);
        let round = file(dir.path(), "d", &line(&dir.path().join("d")), 0o755);
        assert_eq!(said(&round), None);
        let lost = file(dir.path(), "e", &line(&dir.path().join("nothing")), 0o755);
        assert_eq!(
            gains_rights(&lost, Path::new("/")).unwrap_err().reason,
            Reason::NotFound
        );
    }

    #[test]
    fn file_capabilities_count() {
        let dir = tempfile::tempdir().unwrap();
        let path = file(dir.path(), "program", b"\x7fELF", 0o755);
        // VFS_CAP_REVISION_2, effective, CAP_NET_BIND_SERVICE (linux/capability.h).
        let mut capability = [0u8; 20];
        capability[..4].copy_from_slice(&0x0200_0001u32.to_le_bytes());
        capability[4..8].copy_from_slice(&(1u32 << 10).to_le_bytes());
        let set = rustix::fs::setxattr(
            &path,
            "security.capability",
            &capability,
            rustix::fs::XattrFlags::empty(),
        );
        if let Err(error) = set {
            println!("skipped: setxattr: {error}");
            return;
        }
        if nosuid(dir.path()) {
            return;
        }
        let said = gains_rights(&path, dir.path()).unwrap();
        assert!(said.unwrap().ends_with("has file capabilities"));
    }

    #[test]
    fn names_are_searched_as_exec_does() {
        let dir = tempfile::tempdir().unwrap();
        let (first, second) = (dir.path().join("first"), dir.path().join("second"));
        for folder in [&first, &second] {
            std::fs::create_dir(folder).unwrap();
        }
        file(&first, "tool", b"", 0o644);
        let right = file(&second, "tool", b"", 0o755);
        let path = std::env::join_paths([&first, &second]).unwrap();
        let find = |name: &str| program(OsStr::new(name), Some(&path), dir.path());
        assert_eq!(find("tool"), Ok(right));
        assert_eq!(find("./tool"), Ok(dir.path().join("./tool")));
        assert_eq!(find("other").unwrap_err().reason, Reason::NotFound);
        // /bin/sh is on execvp's own path.
        assert!(program(OsStr::new("sh"), None, dir.path()).is_ok());
    }
}
