//! /proc/PID/maps, and opening the files that are mapped.

use crate::file;
use crate::inside::{self, Symlink};
use crate::rights::run_as_root;
use allocwall_model::units::{Absence, Measured, Reason};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// One line of /proc/PID/maps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    pub start: u64,
    /// The first address after the mapping.
    pub end: u64,
    pub perms: Perms,
    /// Offset into the file, bytes.
    pub offset: u64,
    /// Major and minor.
    pub dev: (u32, u32),
    pub inode: u64,
    /// As the kernel writes it: `\012` for a newline, ` (deleted)` for an unlinked file, brackets for a name
    /// that is not a file. Empty for anonymous memory.
    pub path: Vec<u8>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Perms {
    pub read: bool,
    pub write: bool,
    pub execute: bool,
    pub shared: bool,
}

const DELETED: &[u8] = b" (deleted)";

impl Mapping {
    /// For display and for the recording; bytes that are not UTF-8 are replaced.
    pub fn display_path(&self) -> String {
        String::from_utf8_lossy(&self.path).into_owned()
    }

    /// Backed by a file or memfd: neither anonymous nor one of the kernel's bracketed names.
    pub fn is_file(&self) -> bool {
        self.inode != 0 && self.path.starts_with(b"/")
    }

    /// The kernel appends ` (deleted)` to an unlinked file's name. A file's own name may also end like that.
    pub fn looks_deleted(&self) -> bool {
        self.path.ends_with(DELETED)
    }

    /// Memory that the kernel shows like a file, but without a name in a file system: memfd, System V and
    /// shared anonymous memory.
    pub fn is_nameless_memory(&self) -> bool {
        [&b"/memfd:"[..], b"/SYSV", b"/dev/zero", b"anon_inode:", b"/anon_hugepage"]
            .iter()
            .any(|start| self.path.starts_with(start))
    }

    /// The name to open, with `\012` turned back into the newline that the kernel escaped. A literal `\012`
    /// in a name looks the same, so the opened file must be checked by inode.
    fn file_name(&self) -> PathBuf {
        let mut name = Vec::with_capacity(self.path.len());
        let mut rest = &self.path[..];
        while let Some((&byte, tail)) = rest.split_first() {
            if let Some(behind) = rest.strip_prefix(b"\\012") {
                name.push(b'\n');
                rest = behind;
            } else {
                name.push(byte);
                rest = tail;
            }
        }
        PathBuf::from(OsStr::from_bytes(&name))
    }
}

/// Asks the kernel for single mappings (Linux 6.11), without a read of the whole list.
pub struct Finder(File);

/// `struct procmap_query` of include/uapi/linux/fs.h. In: size, flags, address, room for the name. Out: the rest.
#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    flags: u64,
    address: u64,
    start: u64,
    end: u64,
    vma_flags: u64,
    page_size: u64,
    offset: u64,
    inode: u64,
    major: u32,
    minor: u32,
    name_size: u32,
    build_id_size: u32,
    name_address: u64,
    build_id_address: u64,
}

impl Finder {
    pub fn open(proc_root: &Path, pid: i32) -> io::Result<Finder> {
        File::open(proc_root.join(format!("{pid}/maps"))).map(Finder)
    }

    /// The mapping that holds an address; None if there is none.
    ///
    /// # Errors
    /// ENOTTY if the kernel is too old; ESRCH if the process has ended.
    pub fn find(&self, address: u64) -> io::Result<Option<Mapping>> {
        // _IOWR('f', 17, struct procmap_query)
        const PROCMAP_QUERY: libc::Ioctl =
            ((3u64 << 30) | ((size_of::<Query>() as u64) << 16) | (0x66 << 8) | 17) as _;
        const NAME: usize = 4096;
        let mut name = vec![0u8; NAME];
        let mut query = Query {
            size: size_of::<Query>() as u64,
            address,
            name_size: NAME as u32,
            name_address: name.as_mut_ptr() as u64,
            ..Query::default()
        };
        // SAFETY: the kernel writes at most `size` bytes to `query` and `name_size` bytes to `name`; both outlive the call.
        if unsafe { libc::ioctl(self.0.as_raw_fd(), PROCMAP_QUERY, &raw mut query) } != 0 {
            let error = io::Error::last_os_error();
            return if error.raw_os_error() == Some(libc::ENOENT) { Ok(None) } else { Err(error) };
        }
        // The length counts the NUL at its end.
        name.truncate((query.name_size as usize).saturating_sub(1).min(NAME));
        let has = |flag: u64| query.vma_flags & flag != 0;
        Ok(Some(Mapping {
            start: query.start,
            end: query.end,
            perms: Perms { read: has(1), write: has(2), execute: has(4), shared: has(8) },
            offset: query.offset,
            dev: (query.major, query.minor),
            inode: query.inode,
            path: name,
        }))
    }
}

/// The most lines that are read of one process. vm.max_map_count is 65,530 by default and 262,144 for
/// databases and Java services. The kernel needs about a second for this many lines.
const LINES_READ: usize = 2 << 20;
/// The most mappings that are kept of one process, about 150 bytes each.
const MOST_KEPT: usize = 64 << 10;
/// A path of PATH_MAX bytes, all of them escaped, and the fields before it.
const LONGEST_LINE: usize = 4 * 4096 + 256;

/// The selected mappings of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    pub mappings: Vec<Mapping>,
    /// Lines that do not parse as a mapping.
    pub malformed: usize,
    /// Why the rest of the file was not read.
    pub cut: Option<Absence>,
}

/// Reads line by line, for any number of lines, and keeps the mappings that `keep` selects.
pub fn read(source: impl io::Read, keep: impl Fn(&Mapping) -> bool) -> io::Result<Kept> {
    read_within(source, keep, LINES_READ, MOST_KEPT)
}

fn read_within(
    source: impl io::Read,
    keep: impl Fn(&Mapping) -> bool,
    most_lines: usize,
    most_kept: usize,
) -> io::Result<Kept> {
    let mut source = BufReader::with_capacity(64 << 10, source);
    let mut kept = Kept::default();
    let mut line = Vec::new();
    let cut = |detail: String| Some(Absence::new(Reason::TooCostly, detail));
    for _ in 0..most_lines {
        line.clear();
        io::Read::take(&mut source, LONGEST_LINE as u64).read_until(b'\n', &mut line)?;
        match line.pop_if(|last| *last == b'\n') {
            None if line.is_empty() => return Ok(kept),
            // The kernel never writes a line this long.
            None if line.len() >= LONGEST_LINE => {
                kept.malformed += 1;
                kept.cut = cut(format!("a line is longer than {LONGEST_LINE} bytes"));
                return Ok(kept);
            }
            _ if line.is_empty() => continue,
            _ => {}
        }
        match parse_line(&line) {
            Some(mapping) if !keep(&mapping) => {}
            Some(_) if kept.mappings.len() >= most_kept => {
                kept.cut = cut(format!("it has more than {most_kept} mappings with code"));
                return Ok(kept);
            }
            Some(mapping) => kept.mappings.push(mapping),
            None => kept.malformed += 1,
        }
    }
    kept.cut = cut(format!("it has more than {most_lines} mappings"));
    Ok(kept)
}

/// `55d0c8a4e000-55d0c8a50000 r--p 00000000 fd:01 1835027   /usr/bin/cat`; see proc_pid_maps(5).
pub(crate) fn parse_line(line: &[u8]) -> Option<Mapping> {
    let (range, rest) = field(line)?;
    let (perms, rest) = field(rest)?;
    let (offset, rest) = field(rest)?;
    let (dev, rest) = field(rest)?;
    let (inode, rest) = field(rest)?;
    let (start, end) = split_once(range, b'-')?;
    let (start, end) = (hex(start)?, hex(end)?);
    let (major, minor) = split_once(dev, b':')?;
    let &[r, w, x, s] = perms else { return None };
    if start >= end {
        return None;
    }
    let padding = rest.iter().take_while(|&&b| b == b' ').count();
    Some(Mapping {
        start,
        end,
        perms: Perms { read: r == b'r', write: w == b'w', execute: x == b'x', shared: s == b's' },
        offset: hex(offset)?,
        dev: (hex(major)?.try_into().ok()?, hex(minor)?.try_into().ok()?),
        inode: std::str::from_utf8(inode).ok()?.parse().ok()?,
        path: rest[padding..].to_vec(),
    })
}

fn field(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    match bytes.iter().position(|&b| b == b' ') {
        Some(0) => None,
        Some(end) => Some((&bytes[..end], &bytes[end + 1..])),
        None if bytes.is_empty() => None,
        None => Some((bytes, &[])),
    }
}

fn split_once(bytes: &[u8], at: u8) -> Option<(&[u8], &[u8])> {
    let position = bytes.iter().position(|&b| b == at)?;
    Some((&bytes[..position], &bytes[position + 1..]))
}

fn hex(bytes: &[u8]) -> Option<u64> {
    // from_str_radix alone would accept a sign.
    if bytes.is_empty() || !bytes.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    u64::from_str_radix(std::str::from_utf8(bytes).ok()?, 16).ok()
}

pub fn identity(path: &Path) -> Option<((u32, u32), u64)> {
    let facts = std::fs::metadata(path).ok()?;
    Some((inside::device(&facts), facts.ino()))
}

/// Opens the file of a mapping, as the process sees it. It tries the mapping itself first (finds deleted and
/// replaced files; root only), then the name in the process's mount namespace, then the name in allocwall's
/// own. A file that is found by name must have the inode of the mapping; otherwise it is another file.
pub fn open(proc_root: &Path, pid: i32, mapping: &Mapping) -> Measured<File> {
    if !mapping.is_file() {
        return Err(Absence::new(Reason::NotApplicable, format!("{} is not a file", mapping.display_path())));
    }
    let process = proc_root.join(pid.to_string());
    let by_range = process.join(format!("map_files/{:x}-{:x}", mapping.start, mapping.end));
    let refused = match inside::open_ours(&by_range) {
        Ok((file, _)) => return Ok(file),
        Err(error) => error,
    };
    let name = mapping.file_name();
    match inside::open(proc_root, pid, &name, Symlink::Follow) {
        // Compares the inode only: file systems that number devices per subvolume show another device here
        // than in maps.
        Ok((file, facts)) if facts.ino() == mapping.inode => return Ok(file),
        _ => {}
    }
    match inside::open_ours(&name) {
        Ok((file, facts)) if facts.ino() == mapping.inode && inside::device(&facts) == mapping.dev => {
            Ok(file)
        }
        _ => {
            let absence = file::absence_of(Path::new(&mapping.display_path()), &refused);
            Err(match absence.reason {
                Reason::NotPermitted => absence.mend(run_as_root()).mend("run as the owner of the process"),
                _ => absence,
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proc::ProcFs;
    use proptest::prelude::*;

    const FIXTURE: &[u8] = b"\
55d0c8a4e000-55d0c8a50000 r--p 00001000 fd:01 1835027                    /usr/bin/cat
55d0ca000000-55d0ca021000 rw-p 00000000 00:00 0                          [heap]
7f0000000000-7f0000001000 r-xp 00000000 00:2d 77 /tmp/a file\\012with newline (deleted)
7f0000002000-7f0000003000 rwxs 00000000 00:01 5                          /memfd:\xff\xfejit (deleted)
7f0000004000-7f0000005000 ---p 00000000 00:00 0 
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
";

    #[test]
    fn a_single_mapping_is_found_like_in_the_list() {
        let own = Finder::open(Path::new("/proc"), std::process::id() as i32).unwrap();
        let local = 0u8;
        let probe = [&raw const local as u64, FIXTURE.as_ptr() as u64, own.0.as_raw_fd() as u64];
        for (address, mapped) in probe.into_iter().zip([true, true, false]) {
            let found = match own.find(address) {
                Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => {
                    println!("skipped: this kernel finds no single mappings (Linux 6.11)");
                    return;
                }
                found => found.unwrap(),
            };
            assert_eq!(found.is_some(), mapped, "{address:x}");
            let Some(found) = found else { continue };
            let list =
                ProcFs::live().maps(std::process::id() as i32, |m| m.start <= address && address < m.end);
            let listed = &list.unwrap().mappings[0];
            // Another thread may map memory beside it meanwhile.
            assert_eq!((&listed.path, listed.perms, listed.inode), (&found.path, found.perms, found.inode));
            assert!(found.start <= address && address < found.end);
        }
    }

    #[test]
    fn a_real_form_of_every_kind_parses() {
        let Kept { mappings, malformed, cut } = read(FIXTURE, |_| true).unwrap();
        assert_eq!((mappings.len(), malformed, cut), (6, 0, None));
        let cat = &mappings[0];
        assert_eq!((cat.start, cat.end, cat.offset), (0x55d0c8a4e000, 0x55d0c8a50000, 0x1000));
        assert_eq!((cat.dev, cat.inode), ((0xfd, 1), 1835027));
        assert_eq!(cat.path, b"/usr/bin/cat");
        assert!(cat.is_file() && !cat.looks_deleted() && !cat.perms.execute);
        assert!(!mappings[1].is_file());
        let hostile = &mappings[2];
        assert!(hostile.looks_deleted() && hostile.perms.execute);
        assert_eq!(hostile.file_name(), Path::new("/tmp/a file\nwith newline (deleted)"));
        assert!(mappings[3].is_nameless_memory() && mappings[3].perms.shared);
        assert!(mappings[4].path.is_empty());
        assert_eq!(mappings[5].display_path(), "[vsyscall]");
    }

    #[test]
    fn malformed_lines_are_counted_not_guessed() {
        for line in [
            "",
            "nonsense",
            "7f00-7f01",
            "7f01-7f00 r--p 0 0:0 0",
            "7f00-7f00 r--p 0 0:0 0",
            "+7f00-7f01 r--p 0 0:0 0",
            "7f00-7f01 r--pp 0 0:0 0",
            "7f00-7f01 r--p zz 0:0 0",
            "7f00-7f01 r--p 0 0 0",
            "7f00-7f01 r--p 0 0:0 -1",
            "7f00-7f01 r--p 0 fffffffff:0 0",
            "7f00-11112222333344445 r--p 0 0:0 0",
        ] {
            assert_eq!(parse_line(line.as_bytes()), None, "{line}");
        }
        let some = read(&b"junk\n\n7f00-7f01 r--p 0 0:0 0\n"[..], |_| true).unwrap();
        assert_eq!((some.mappings.len(), some.malformed), (1, 1));
        let endless = read(io::repeat(b'x'), |_| true).unwrap();
        assert!(endless.mappings.is_empty() && endless.cut.is_some());
    }

    #[test]
    fn a_process_of_many_mappings_is_read_to_its_last() {
        // Like a service with a million small buffers: the library comes after all of them.
        let buffers = (0..1_000_000u64).map(|i| {
            let at = 0x7000_0000_0000 + i * 0x2000;
            format!("{at:x}-{:x} rw-p 00000000 00:00 0 \n", at + 0x1000)
        });
        let library = "7fffffffe000-7ffffffff000 r-xp 00000000 08:01 7          /usr/lib/libc.so.6\n";
        let text = buffers.collect::<String>() + library;
        assert!(text.len() > 32 << 20);
        let code = read(text.as_bytes(), |m| m.perms.execute).unwrap();
        assert_eq!((code.mappings.len(), code.malformed, &code.cut), (1, 0, &None));
        assert_eq!(code.mappings[0].path, b"/usr/lib/libc.so.6");
        // Beyond the limits, an absence replaces the rest.
        let lines = read_within(text.as_bytes(), |m| m.perms.execute, 1000, 10).unwrap();
        assert_eq!(lines.cut.unwrap().reason, Reason::TooCostly);
        let kept = read_within(text.as_bytes(), |_| true, 1000, 10).unwrap();
        assert_eq!((kept.mappings.len(), kept.cut.is_some()), (10, true));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            read(&bytes[..], |_| true).unwrap();
        }

        #[test]
        fn any_cut_of_real_lines_is_survived(cut in 0..FIXTURE.len()) {
            read(&FIXTURE[..cut], |_| true).unwrap();
            read(&FIXTURE[cut..], |_| true).unwrap();
        }
    }

    #[test]
    fn own_executable_opens_and_a_wrong_inode_does_not() {
        let root = Path::new("/proc");
        let pid = std::process::id() as i32;
        let code = ProcFs::live().code(pid).expect("own maps");
        let own = code.mappings.iter().find(|m| m.is_file()).expect("own code");
        let facts = open(root, pid, own).expect("own code opens").metadata().expect("fstat");
        assert_eq!(facts.ino(), own.inode);
        let mut other = own.clone();
        // The range does not exist, so only the name is left; and the name has another inode.
        other.start = 0x1000;
        other.end = 0x2000;
        assert!(open(root, pid, &other).is_ok());
        other.inode += 1;
        assert!(open(root, pid, &other).is_err());
    }

    #[test]
    fn a_deleted_file_opens_through_its_mapping() {
        let folder = std::env::temp_dir().join(format!("allocwall-maps-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("folder");
        let path = folder.join("gone");
        std::fs::copy("/bin/sleep", &path).expect("copy");
        let mut child = std::process::Command::new(&path).arg("60").spawn().expect("spawn");
        std::fs::remove_file(&path).expect("unlink");
        let pid = child.id() as i32;
        // Spawning returns at exec, a moment before the new program is mapped.
        let gone = (0..100).find_map(|_| {
            std::thread::sleep(std::time::Duration::from_millis(20));
            ProcFs::live().code(pid).ok()?.mappings.into_iter().find(Mapping::looks_deleted)
        });
        let opened = gone.as_ref().map(|gone| open(Path::new("/proc"), pid, gone));
        child.kill().and_then(|()| child.wait()).expect("reap");
        std::fs::remove_dir_all(&folder).expect("clean up");
        match opened.expect("a deleted mapping") {
            Ok(file) => assert!(file.metadata().expect("fstat").nlink() == 0),
            Err(absence) if absence.reason == Reason::NotPermitted => {
                println!("skipped: map_files needs root: {absence}")
            }
            Err(absence) => panic!("{absence}"),
        }
    }
}
