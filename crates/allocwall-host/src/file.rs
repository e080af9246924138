//! Reads small kernel files. The result is bytes or a typed reason, never a default.

use allocwall_model::catalogue::advice;
use allocwall_model::units::{Absence, Measured, Reason};
use rustix::fs::{Access, AtFlags, CWD, accessat};
use std::cell::RefCell;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::Path;

/// Enough for numa_maps of a process with 100,000 mappings. A larger file is not what its name says.
const LARGEST: usize = 32 << 20;

thread_local! {
    /// Kernel files are read ten times a second. One buffer per thread avoids calls of the allocator that
    /// allocwall judges.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Reads the whole file and passes its bytes to `parse`.
pub fn read<T>(path: &Path, parse: impl FnOnce(&[u8]) -> Measured<T>) -> Measured<T> {
    with_bytes(path, LARGEST, |bytes, whole| {
        if !whole {
            let detail = format!("{} is larger than {} MiB", path.display(), LARGEST >> 20);
            return Err(Absence::new(Reason::TooCostly, detail));
        }
        parse(bytes)
    })
}

/// The first `limit` bytes, for files that are useful without the rest (cmdline, environ).
pub fn read_prefix<T>(path: &Path, limit: usize, parse: impl FnOnce(&[u8]) -> T) -> Measured<T> {
    with_bytes(path, limit, |bytes, _| Ok(parse(bytes)))
}

/// Trimmed text of a one-line file. Bytes that are not UTF-8 are replaced visibly.
pub fn read_line(path: &Path) -> Measured<String> {
    read(path, |bytes| Ok(String::from_utf8_lossy(bytes.trim_ascii()).into_owned()))
}

pub fn read_number<T: std::str::FromStr>(path: &Path) -> Measured<T> {
    read(path, |bytes| number(bytes).ok_or_else(|| unparsable(&path.display(), bytes)))
}

fn with_bytes<T>(path: &Path, limit: usize, parse: impl FnOnce(&[u8], bool) -> Measured<T>) -> Measured<T> {
    // Taken, not borrowed: a nested call gets a fresh buffer and does not panic.
    let mut buffer = BUFFER.take();
    let outcome = fill(path, limit, &mut buffer)
        .map_err(|error| absence_of(path, &error))
        .and_then(|whole| parse(&buffer, whole));
    // One very large file must not stay resident for the whole recording.
    if buffer.capacity() > 1 << 20 {
        buffer = Vec::new();
    }
    BUFFER.set(buffer);
    outcome
}

fn fill(path: &Path, limit: usize, buffer: &mut Vec<u8>) -> std::io::Result<bool> {
    let mut file = File::open(path)?;
    let mut used = 0;
    loop {
        if used == limit {
            buffer.truncate(used);
            return Ok(file.read(&mut [0; 1])? == 0);
        }
        if buffer.len() < used + 4096 {
            buffer.resize((used * 2).max(8192), 0);
        }
        let end = buffer.len().min(limit);
        match file.read(&mut buffer[used..end]) {
            Ok(0) => {
                buffer.truncate(used);
                return Ok(true);
            }
            Ok(n) => used += n,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// The absence for an error of a kernel file.
pub fn absence_of(path: &Path, error: &std::io::Error) -> Absence {
    let reason = match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => Reason::NotPermitted,
        Some(libc::ESRCH) => Reason::Vanished,
        Some(libc::ENOENT | libc::ENOTDIR) => Reason::NotFound,
        Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM) => Reason::Exhausted,
        _ => Reason::NotSupported,
    };
    let absence = Absence::new(reason, format!("{}: {}", path.display(), errno_text(error)));
    match error.raw_os_error() {
        Some(libc::EMFILE) => absence.mend(advice::OPEN_FILES),
        _ => absence,
    }
}

/// `Permission denied (EACCES)`: the text for readers, the name for search engines.
pub fn errno_text(error: &std::io::Error) -> String {
    let Some(code) = error.raw_os_error() else {
        return error.to_string();
    };
    let text = error.to_string();
    let words = text.split(" (os error").next().unwrap_or(&text);
    match ERRNO_NAMES.iter().find(|(value, _)| *value == code) {
        Some((_, name)) => format!("{words} ({name})"),
        None => format!("{words} (errno {code})"),
    }
}

const ERRNO_NAMES: [(i32, &str); 13] = [
    (libc::EACCES, "EACCES"),
    (libc::EPERM, "EPERM"),
    (libc::ENOENT, "ENOENT"),
    (libc::ENOSYS, "ENOSYS"),
    (libc::ENODEV, "ENODEV"),
    (libc::EOPNOTSUPP, "EOPNOTSUPP"),
    (libc::EINVAL, "EINVAL"),
    (libc::EIO, "EIO"),
    (libc::ESRCH, "ESRCH"),
    (libc::EMFILE, "EMFILE"),
    (libc::ENFILE, "ENFILE"),
    (libc::EBUSY, "EBUSY"),
    (libc::ENOMEM, "ENOMEM"),
];

/// Shows the start of the bytes, so that a bug report can be acted on.
pub fn unparsable(what: &dyn std::fmt::Display, bytes: &[u8]) -> Absence {
    let head = String::from_utf8_lossy(&bytes[..bytes.len().min(40)]);
    Absence::new(Reason::Unparsable, format!("{what} does not parse: {:?}", head.trim_end()))
}

/// A number, with optional white space around it and nothing else.
pub fn number<T: std::str::FromStr>(bytes: &[u8]) -> Option<T> {
    std::str::from_utf8(bytes.trim_ascii()).ok()?.parse().ok()
}

/// The non-empty fields between white space.
pub fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty())
}

pub fn lines(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes.split(|&b| b == b'\n')
}

/// The folder that contains the file with this path.
pub fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Whether allocwall may create files in a folder. It asks the kernel and creates nothing, so a killed
/// process leaves no file.
///
/// # Errors
/// The errors of access(2).
pub fn takes_new_files(folder: &Path) -> io::Result<()> {
    // The folder's own entry; it fails for a file.
    let entry = folder.join(".");
    Ok(accessat(CWD, entry, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_files_and_prefixes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let body: Vec<u8> = (0..50_000u32).map(|i| b'a' + (i % 26) as u8).collect();
        std::fs::write(&path, &body).unwrap();
        assert!(read(&path, |bytes| Ok(bytes == body)).unwrap());
        assert!(read_prefix(&path, 100, |bytes| bytes == &body[..100]).unwrap());
        // A short read after a long one contains nothing of the long one.
        std::fs::write(&path, b" 7\n").unwrap();
        assert_eq!(read_number::<u64>(&path), Ok(7));
        std::fs::write(&path, b"").unwrap();
        assert_eq!(read_line(&path), Ok(String::new()));
    }

    #[test]
    fn errors_keep_their_meaning() {
        let path = Path::new("/p");
        let reason = |code| absence_of(path, &std::io::Error::from_raw_os_error(code)).reason;
        assert_eq!(reason(libc::EACCES), Reason::NotPermitted);
        assert_eq!(reason(libc::EPERM), Reason::NotPermitted);
        assert_eq!(reason(libc::ENOENT), Reason::NotFound);
        assert_eq!(reason(libc::ESRCH), Reason::Vanished);
        assert_eq!(reason(libc::ENOSYS), Reason::NotSupported);
        assert_eq!(reason(libc::EMFILE), Reason::Exhausted);
        let text = errno_text(&std::io::Error::from_raw_os_error(libc::EPERM));
        assert_eq!(text, "Operation not permitted (EPERM)");
    }

    #[test]
    fn numbers_are_whole_or_refused() {
        assert_eq!(number::<u64>(b" 12\n"), Some(12));
        assert_eq!(number::<u64>(b"-1"), None);
        assert_eq!(number::<i64>(b"-1"), Some(-1));
        assert_eq!(number::<u64>(b"12 3"), None);
        assert_eq!(number::<u64>(b"99999999999999999999999"), None);
        assert_eq!(number::<u64>(b"\xff"), None);
    }
}
