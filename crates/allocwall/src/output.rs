//! `-o`: output files. They may hold private data of other processes.

use anyhow::{Context, anyhow, bail};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use tempfile::NamedTempFile;

/// Writes a file that only its owner can read (0600). The write is atomic: a temporary file in the same folder, then
/// a rename. Overwrites a regular file that the user may write to, but never `source`, the file that `contents` came
/// from.
pub fn write(path: &Path, contents: &[u8], source: Option<&Path>) -> anyhow::Result<()> {
    let mut file = beside(path, source)?;
    let shown = path.display();
    file.write_all(contents)
        .and_then(|()| file.as_file().sync_all())
        .with_context(|| format!("cannot write {shown}"))?;
    file.persist(path).map_err(|e| e.error).with_context(|| format!("cannot write {shown}"))?;
    Ok(())
}

/// Whether `write` could write this file now; for results that take long to make.
pub fn check(path: &Path) -> anyhow::Result<()> {
    beside(path, None).map(drop)
}

/// A new file in the folder of `path`, which may replace it.
fn beside(path: &Path, source: Option<&Path>) -> anyhow::Result<NamedTempFile> {
    may_replace(path, source)?;
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    // tempfile creates with mode 0600 on Unix. Its errors end with the name of the temporary file, which says nothing to a user.
    NamedTempFile::new_in(folder).map_err(|error| {
        let error = error.to_string();
        let why = error.split(" at path ").next().unwrap_or_default();
        anyhow!("cannot write {}: cannot create a file in {}: {why}", path.display(), folder.display())
    })
}

/// Whether a file may be overwritten that is not `source`.
pub fn may_replace(path: &Path, source: Option<&Path>) -> anyhow::Result<()> {
    let shown = path.display();
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(e).with_context(|| format!("cannot write {shown}")),
    };
    if !found.is_file() {
        bail!(
            "{shown} is not a regular file and is not overwritten: name another file, or omit -o to write to stdout"
        );
    }
    if let Some(source) = source.and_then(|s| fs::metadata(s).ok())
        && (source.dev(), source.ino()) == (found.dev(), found.ino())
    {
        bail!("{shown} is the file that the report is made from and is not overwritten: name another file");
    }
    // The rename needs only the folder's permission, so check that the file itself is writable.
    OpenOptions::new().write(true).open(path).with_context(|| format!("{shown} is not overwritten"))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn folder() -> tempfile::TempDir {
        tempfile::tempdir().expect("a temporary folder")
    }

    #[test]
    fn writes_with_mode_0600_and_overwrites_regular_files() {
        let folder = folder();
        let path = folder.path().join("out.svg");
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        write(&path, b"new", None).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        check(&path).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "the temporary file is still there");
    }

    #[test]
    fn links_folders_and_devices_are_not_replaced() {
        let folder = folder();
        let (target, link) = (folder.path().join("target"), folder.path().join("link"));
        fs::write(&target, "kept").unwrap();
        symlink(&target, &link).unwrap();
        for path in [link.as_path(), folder.path(), Path::new("/dev/null")] {
            for error in [write(path, b"new", None).unwrap_err(), check(path).unwrap_err()] {
                assert!(error.to_string().contains("not a regular file"), "{error}");
            }
        }
        assert_eq!(fs::read(&target).unwrap(), b"kept");
    }

    #[test]
    fn the_recording_is_not_overwritten_by_its_report() {
        let folder = folder();
        let path = folder.path().join("a.allocwall");
        fs::write(&path, "recording").unwrap();
        let error = write(&path, b"new", Some(&path)).unwrap_err().to_string();
        assert!(error.contains("is made from"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"recording");
    }

    #[test]
    fn a_missing_folder_is_named_in_the_error() {
        let path = Path::new("/nonexistent/x.svg");
        for error in [write(path, b"", None).unwrap_err(), check(path).unwrap_err()] {
            let error = format!("{error:#}");
            assert!(error.contains("/nonexistent") && error.contains("No such file"), "{error}");
            assert!(!error.contains(".tmp"), "{error}");
        }
    }
}
