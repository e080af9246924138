//! /proc/PID/smaps: the resident memory of each mapping (proc_pid_smaps(5)). The kernel walks the page tables of
//! the process for it, some milliseconds per gigabyte.

use crate::file;
use crate::maps::{Mapping, parse_line};
use crate::proc::ProcFs;
use crate::proc::parse::kilobytes;
use allocwall_model::units::{Absence, Measured, Reason};
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::ops::ControlFlow;

/// One mapping with its sizes in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vma {
    pub mapping: Mapping,
    /// Without reserved huge pages: the kernel does not count them in any Rss.
    pub resident: u64,
    /// Given back with MADV_FREE, and not taken by the kernel yet. Part of `resident`.
    pub lazily_freed: u64,
    /// On reserved huge pages (hugetlbfs).
    pub reserved: u64,
    /// Huge pages are switched off for it (`nh` in VmFlags). Thread stacks have this flag since Linux 6.7.
    pub small_pages_only: bool,
}

/// What was read of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Whole {
    pub mappings: usize,
    /// Lines that do not parse.
    pub malformed: usize,
    /// Why the rest of the file was not read.
    pub cut: Option<Absence>,
}

/// As for maps.
const MOST_MAPPINGS: usize = 2 << 20;
/// A path of PATH_MAX bytes, all of them escaped, and the fields before it.
const LONGEST_LINE: usize = 4 * 4096 + 256;

/// Passes each mapping of a process to `each`, in order of address, until it breaks.
pub fn of(proc: &ProcFs, pid: i32, each: impl FnMut(Vma) -> ControlFlow<Absence>) -> Measured<Whole> {
    let path = proc.root().join(format!("{pid}/smaps"));
    let whole = File::open(&path).and_then(|file| read(file, each)).map_err(|error| {
        let absence = file::absence_of(&path, &error);
        match absence.reason {
            Reason::NotFound if proc.exists(pid) => Absence::new(
                Reason::NotSupported,
                format!("{}: this kernel has no such file (CONFIG_PROC_PAGE_MONITOR)", path.display()),
            ),
            _ => absence,
        }
    })?;
    match (whole.mappings, whole.malformed) {
        (0, 0) => {
            Err(Absence::new(Reason::Vanished, format!("/proc/{pid}/smaps is empty: the process ends")))
        }
        (0, _) => {
            Err(Absence::new(Reason::Unparsable, format!("/proc/{pid}/smaps: no line parses as a mapping")))
        }
        _ => Ok(whole),
    }
}

/// Reads line by line, for any number of lines.
pub fn read(source: impl io::Read, each: impl FnMut(Vma) -> ControlFlow<Absence>) -> io::Result<Whole> {
    read_within(source, each, MOST_MAPPINGS)
}

fn read_within(
    source: impl io::Read,
    mut each: impl FnMut(Vma) -> ControlFlow<Absence>,
    most: usize,
) -> io::Result<Whole> {
    let mut source = BufReader::with_capacity(64 << 10, source);
    let mut whole = Whole::default();
    let mut current: Option<Vma> = None;
    let mut line = Vec::new();
    loop {
        line.clear();
        io::Read::take(&mut source, LONGEST_LINE as u64).read_until(b'\n', &mut line)?;
        let ended = match line.pop_if(|last| *last == b'\n') {
            Some(_) => false,
            None if line.len() >= LONGEST_LINE => {
                whole.malformed += 1;
                let detail = format!("a line is longer than {LONGEST_LINE} bytes");
                whole.cut = Some(Absence::new(Reason::TooCostly, detail));
                true
            }
            None => line.is_empty(),
        };
        if !ended && let Some((name, value)) = field(&line) {
            let known = current.as_mut().is_none_or(|vma| vma.set(name, value).is_some());
            whole.malformed += usize::from(!known);
            continue;
        }
        // The end of the file, or the first line of the next mapping.
        if let Some(vma) = current.take()
            && let ControlFlow::Break(why) = each(vma)
        {
            whole.cut = Some(why);
            return Ok(whole);
        }
        if ended {
            return Ok(whole);
        }
        match parse_line(&line) {
            Some(_) if whole.mappings >= most => {
                let detail = format!("it has more than {most} mappings");
                whole.cut = Some(Absence::new(Reason::TooCostly, detail));
                return Ok(whole);
            }
            Some(mapping) => {
                whole.mappings += 1;
                current = Some(Vma::of(mapping));
            }
            None => whole.malformed += usize::from(!line.is_empty()),
        }
    }
}

impl Vma {
    fn of(mapping: Mapping) -> Vma {
        Vma { mapping, resident: 0, lazily_freed: 0, reserved: 0, small_pages_only: false }
    }

    /// None if the value does not parse.
    fn set(&mut self, name: &[u8], value: &[u8]) -> Option<()> {
        match name {
            b"Rss" => self.resident = kilobytes(value)?,
            b"LazyFree" => self.lazily_freed = kilobytes(value)?,
            b"Shared_Hugetlb" | b"Private_Hugetlb" => {
                self.reserved = self.reserved.checked_add(kilobytes(value)?)?;
            }
            b"VmFlags" => self.small_pages_only = file::words(value).any(|flag| flag == b"nh"),
            _ => {}
        }
        Some(())
    }
}

/// `Rss:   12 kB`. The first line of a mapping has a blank before its first colon.
fn field(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let colon = line.iter().position(|&b| b == b':')?;
    let name = &line[..colon];
    let word = !name.is_empty() && name.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'_');
    word.then(|| (name, &line[colon + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FIXTURE: &[u8] = b"\
55d0ca000000-55d0ca021000 rw-p 00000000 00:00 0                          [heap]
Size:                132 kB
KernelPageSize:        4 kB
MMUPageSize:           4 kB
Rss:                 100 kB
Pss:                 100 kB
Anonymous:           100 kB
LazyFree:             12 kB
AnonHugePages:         0 kB
Shared_Hugetlb:        0 kB
Private_Hugetlb:       0 kB
THPeligible:           0
VmFlags: rd wr mr mw me ac sd
7f0000000000-7f0000800000 rw-p 00000000 00:0f 7                          /anon_hugepage (deleted)
Rss:                   0 kB
LazyFree:              0 kB
Shared_Hugetlb:     2048 kB
Private_Hugetlb:    4096 kB
VmFlags: rd wr mr mw me de ht sd
7f0001000000-7f0001800000 rw-p 00000000 00:00 0 
Rss:                  16 kB
VmFlags: rd wr mr mw me nh ac sd
";

    fn all(bytes: &[u8]) -> (Vec<Vma>, Whole) {
        let mut found = Vec::new();
        let whole = read(bytes, |vma| {
            found.push(vma);
            ControlFlow::Continue(())
        });
        (found, whole.unwrap())
    }

    #[test]
    fn each_mapping_has_its_own_sizes() {
        let (found, whole) = all(FIXTURE);
        assert_eq!(whole, Whole { mappings: 3, malformed: 0, cut: None });
        let sizes = |vma: &Vma| (vma.resident, vma.lazily_freed, vma.reserved, vma.small_pages_only);
        assert_eq!(sizes(&found[0]), (100 << 10, 12 << 10, 0, false));
        assert_eq!(sizes(&found[1]), (0, 0, 6 << 20, false));
        assert_eq!(sizes(&found[2]), (16 << 10, 0, 0, true));
        assert_eq!(found[0].mapping.path, b"[heap]");
        assert_eq!(found[2].mapping.end - found[2].mapping.start, 8 << 20);
    }

    #[test]
    fn malformed_lines_are_counted_not_guessed() {
        for (text, mappings, malformed) in [
            ("", 0, 0),
            ("junk\n", 0, 1),
            ("7f00-7f01 r--p 0 0:0 0\nRss: many kB\n", 1, 1),
            ("7f00-7f01 r--p 0 0:0 0\nRss: 4 MB\n", 1, 1),
            ("7f01-7f00 r--p 0 0:0 0\nRss: 4 kB\n", 0, 1),
            ("Rss: 4 kB\n7f00-7f01 r--p 0 0:0 0\n", 1, 0),
            ("7f00-7f01 r--p 0 0:0 0\nRss: 4 kB", 1, 0),
        ] {
            let (found, whole) = all(text.as_bytes());
            let seen = (found.len(), whole.mappings, whole.malformed);
            assert_eq!(seen, (mappings, mappings, malformed), "{text}");
        }
        // The sizes of a mapping that does not parse are not added to the one before it.
        let (found, _) = all(b"7f00-7f01 r--p 0 0:0 0\nRss: 4 kB\nbad r--p\nRss: 8 kB\n");
        assert_eq!(found[0].resident, 4 << 10);
        let endless = read(io::repeat(b'x'), |_| ControlFlow::Continue(())).unwrap();
        assert!(endless.mappings == 0 && endless.cut.is_some());
    }

    #[test]
    fn limits_leave_a_reason() {
        let cut = read_within(FIXTURE, |_| ControlFlow::Continue(()), 2).unwrap();
        assert_eq!((cut.mappings, cut.cut.unwrap().reason), (2, Reason::TooCostly));
        let mut seen = 0;
        let stopped = read(FIXTURE, |_| {
            seen += 1;
            ControlFlow::Break(Absence::new(Reason::TooCostly, "out of time"))
        });
        assert_eq!((seen, stopped.unwrap().cut.unwrap().detail.as_str()), (1, "out of time"));
    }

    #[test]
    fn a_kernel_without_the_file_differs_from_a_process_that_ended() {
        let root = tempfile::tempdir().unwrap();
        let proc = ProcFs::at(root.path());
        let reason = |proc: &ProcFs| of(proc, 7, |_| ControlFlow::Continue(())).unwrap_err().reason;
        assert_eq!(reason(&proc), Reason::NotFound);
        std::fs::create_dir(root.path().join("7")).unwrap();
        assert_eq!(reason(&proc), Reason::NotSupported);
        // The kernel shows an empty file for a process that has lost its memory.
        std::fs::write(root.path().join("7/smaps"), "").unwrap();
        assert_eq!(reason(&proc), Reason::Vanished);
        std::fs::write(root.path().join("7/smaps"), "junk\n").unwrap();
        assert_eq!(reason(&proc), Reason::Unparsable);
    }

    #[test]
    fn the_sum_is_that_of_the_rollup() {
        let proc = ProcFs::live();
        // A program of its own: the tests of other threads allocate meanwhile.
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("sleep");
        let pid = child.id() as i32;
        // Until it sleeps, it still loads its libraries.
        let read = || {
            (0..1000).find_map(|_| {
                let before = proc.smaps_rollup(pid).ok()?.rss;
                let mut sum = 0;
                let whole = of(&proc, pid, |vma| {
                    sum += vma.resident;
                    ControlFlow::Continue(())
                });
                let quiet = proc.smaps_rollup(pid).ok()?.rss == before && before > 0;
                std::thread::sleep(std::time::Duration::from_millis(5));
                let whole = whole.ok()?;
                // A program that is being started has two.
                (quiet && whole.mappings > 5).then_some((whole, sum, before))
            })
        };
        let found = proc.smaps_rollup(pid).map(|_| read());
        let _ = child.kill();
        let _ = child.wait();
        match found {
            Ok(found) => {
                let (whole, sum, rss) = found.expect("a process that sleeps");
                assert!(whole.cut.is_none(), "{whole:?}");
                assert_eq!(sum, rss);
            }
            Err(absence) => println!("skipped: {absence}"),
        }
        assert!(of(&proc, i32::MAX, |_| ControlFlow::Continue(())).unwrap_err().is_gone());
    }

    proptest! {
        #[test]
        fn any_cut_of_real_lines_is_survived(cut in 0..FIXTURE.len()) {
            all(&FIXTURE[..cut]);
            all(&FIXTURE[cut..]);
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            all(&bytes);
        }
    }
}
