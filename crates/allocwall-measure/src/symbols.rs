//! Names of functions: those of the kernel, readable forms of symbol names, and names of generated code from
//! JIT maps.

use allocwall_host::inside::{self, Symlink};
use blazesym::MaybeDefault;
use blazesym::symbolize::source::{Kernel, Source};
use blazesym::symbolize::{Input, Symbolized, Symbolizer};
use std::collections::HashMap;
use std::fmt::{self, Write};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// C++ template names can have kilobytes; this is enough for readers.
const NAME_LIMIT: usize = 384;
/// A longer name in a symbol table is truncated and shown as it is there.
pub const MANGLED_LIMIT: usize = 4096;
/// The deepest nesting in a C++ name.
const DEMANGLE_DEPTH: u32 = 96;
/// The parser tries some rules twice, so that its time doubles with each nesting of them: 152 hostile bytes took 27 ms
/// at its own limit of 96, and less than 0.2 ms at this one. Of 73,117 C++ names of Debian's libraries, 3 are deeper.
const PARSE_DEPTH: u32 = 64;

/// The names of the kernel's functions.
pub struct KernelNames {
    symbolizer: Symbolizer,
    known: HashMap<u64, Option<String>>,
}

impl KernelNames {
    pub fn new() -> KernelNames {
        let symbolizer = Symbolizer::builder()
            .enable_auto_reload(false)
            .enable_code_info(false)
            .enable_inlined_fns(false)
            .enable_demangling(false)
            .build();
        KernelNames { symbolizer, known: HashMap::new() }
    }

    /// From /proc/kallsyms; None if kptr_restrict hides it.
    pub fn name(&mut self, address: u64) -> Option<String> {
        if let Some(known) = self.known.get(&address) {
            return known.clone();
        }
        let source =
            Source::Kernel(Kernel { vmlinux: MaybeDefault::None, debug_syms: false, ..Kernel::default() });
        let name = match self.symbolizer.symbolize_single(&source, Input::AbsAddr(address)) {
            Ok(Symbolized::Sym(symbol)) => readable(symbol.name.as_bytes()),
            Ok(Symbolized::Unknown(_)) | Err(_) => None,
        };
        self.known.insert(address, name.clone());
        name
    }
}

/// The readable form of a name in a symbol table: demangled if it is marked as mangled, and truncated. (A
/// demangler of types would take a C function called `w` for `wchar_t`.) None if the name is not text.
pub fn readable(name: &[u8]) -> Option<String> {
    let name = std::str::from_utf8(name).ok()?;
    let mut out = Limited::default();
    if let Ok(rust) = rustc_demangle::try_demangle(name) {
        // Without the hash at the end of legacy names.
        let _ = write!(out, "{rust:#}");
        return Some(out.done());
    }
    let parse = cpp_demangle::ParseOptions::default().recursion_limit(PARSE_DEPTH);
    if name.starts_with("_Z")
        && name.len() < MANGLED_LIMIT
        && let Ok(symbol) = cpp_demangle::Symbol::new_with_options(name, &parse)
    {
        let options = cpp_demangle::DemangleOptions::new().recursion_limit(DEMANGLE_DEPTH);
        let whole = symbol.structured_demangle(&mut out, &options);
        if whole.is_ok() || out.full {
            return Some(out.done());
        }
    }
    let mut out = Limited::default();
    let _ = out.write_str(name);
    Some(out.done())
}

/// Accepts a limited number of characters: a name of 450 bytes can expand to gigabytes.
#[derive(Default)]
struct Limited {
    text: String,
    characters: usize,
    full: bool,
}

impl Limited {
    fn done(mut self) -> String {
        if self.full {
            self.text.push('…');
        }
        self.text
    }
}

impl fmt::Write for Limited {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            if self.characters == NAME_LIMIT {
                self.full = true;
                return Err(fmt::Error);
            }
            self.text.push(character);
            self.characters += 1;
        }
        Ok(())
    }
}

/// Opens the file that a JIT compiler writes for profilers (`perf-PID.map`: START SIZE NAME, hex).
/// `thread`: a thread whose entries below /proc show the process's root; `inner_pid`: the process's pid in its own
/// namespace; `owner`: the user that it runs as.
///
/// All users may write to /tmp, so a file is used only if it belongs to the process's user or to root. perf
/// does the same (tools/perf/util/symbol.c, `symbol__read_perf_map`).
pub fn perf_map(proc_root: &Path, thread: i32, inner_pid: i32, owner: u32) -> Option<File> {
    let name = PathBuf::from(format!("/tmp/perf-{inner_pid}.map"));
    let (file, facts) = inside::open(proc_root, thread, &name, Symlink::Refuse).ok()?;
    (facts.uid() == owner || facts.uid() == 0).then_some(file)
}

/// Names for `addresses`, which are sorted: for each, the last entry in the file that covers it. Reads at
/// most `left` bytes and subtracts what it read. False if the file was longer.
pub fn scan_perf_map(
    mut file: File,
    left: &mut u64,
    addresses: &[u64],
    names: &mut [Option<String>],
) -> bool {
    /// A longer line is not an entry.
    const LINE_LIMIT: u64 = 16 << 10;
    // The file position is shared with the sender of the file.
    if file.rewind().is_err() {
        return true;
    }
    let mut reader = BufReader::new(file.take(*left));
    let mut line = Vec::new();
    loop {
        line.clear();
        match (&mut reader).take(LINE_LIMIT).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
        if let Some((start, end, name)) = entry(&line) {
            let first = addresses.partition_point(|address| *address < start);
            let behind = addresses.partition_point(|address| *address < end);
            if let Some(slots) = names.get_mut(first..behind).filter(|slots| !slots.is_empty()) {
                let mut out = Limited::default();
                let _ = out.write_str(&String::from_utf8_lossy(name));
                slots.fill(Some(out.done()));
            }
        }
    }
    *left = reader.get_ref().limit();
    *left > 0
}

fn entry(line: &[u8]) -> Option<(u64, u64, &[u8])> {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let mut words = line.splitn(3, |&b| b == b' ');
    let mut hex = || {
        let word = std::str::from_utf8(words.next()?).ok()?;
        u64::from_str_radix(word.trim_start_matches("0x"), 16).ok()
    };
    let (start, size) = (hex()?, hex()?);
    Some((start, start.checked_add(size)?, words.next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scanned(text: &[u8], addresses: &[u64], left: &mut u64) -> (Vec<Option<String>>, bool) {
        use std::io::{Seek, Write};
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(text).unwrap();
        file.rewind().unwrap();
        let mut names = vec![None; addresses.len()];
        let whole = scan_perf_map(file, left, addresses, &mut names);
        (names, whole)
    }

    #[test]
    fn perf_map_lines() {
        let text = b"7f10 20 py::parse:/app.py\nbad\n7f00 10 LazyCompile:~a b\n7f10 20 newer\nffffffffffffffff 2 x\n+1 2 y\n";
        let addresses = [0, 0x7f05, 0x7f10, 0x7f2f, 0x7f30];
        let (names, whole) = scanned(text, &addresses, &mut 1000);
        let names: Vec<_> = names.iter().map(Option::as_deref).collect();
        assert_eq!(names, [None, Some("LazyCompile:~a b"), Some("newer"), Some("newer"), None]);
        assert!(whole);
    }

    #[test]
    fn a_perf_map_is_read_up_to_what_is_left() {
        let mut left = 20;
        let (names, whole) = scanned(b"10 4 first\n20 4 second\n", &[0x10, 0x20], &mut left);
        assert_eq!(names[0].as_deref(), Some("first"));
        assert!(!whole && left == 0);
        let long = [b"30 4 ".to_vec(), vec![b'n'; 1 << 20]].concat();
        let (names, whole) = scanned(&long, &[0x30], &mut (2 << 20));
        assert_eq!(names[0].as_ref().unwrap().chars().count(), NAME_LIMIT + 1);
        assert!(whole);
    }

    #[test]
    fn a_perf_map_is_its_process_s_own_or_root_s_plain_file() {
        let dir = tempfile::tempdir().unwrap();
        let tmp = dir.path().join("7/root/tmp");
        std::fs::create_dir_all(&tmp).unwrap();
        let map = tmp.join("perf-3.map");
        std::fs::write(&map, "7f00 10 own").unwrap();
        let owner = map.metadata().unwrap().uid();
        let found = |owner| perf_map(dir.path(), 7, 3, owner).is_some();
        assert!(found(owner));
        // Every user may read root's file; another user's file is refused.
        assert_eq!(found(owner + 1), owner == 0);
        if !rustix::process::geteuid().is_root() {
            println!("skipped in part: needs root to give a file away");
        } else {
            std::os::unix::fs::chown(&map, Some(4711), None).unwrap();
            assert!(found(4711));
            assert!(!found(4712) && !found(0));
        }
        std::fs::rename(&map, tmp.join("other")).unwrap();
        std::os::unix::fs::symlink("other", &map).unwrap();
        assert!(!found(4711) && !found(owner));
    }

    fn shown(name: &str) -> String {
        readable(name.as_bytes()).unwrap()
    }

    #[test]
    fn only_mangled_names_are_shown() {
        assert_eq!(shown("w"), "w");
        assert_eq!(shown("_init"), "_init");
        assert_eq!(shown("_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE"), "core::fmt::Write::write_fmt");
        assert_eq!(
            shown("_ZNSt6vectorIiSaIiEE9push_backERKi"),
            "std::vector<int, std::allocator<int> >::push_back(int const&)"
        );
        assert_eq!(shown("_Znot_mangled"), "_Znot_mangled");
    }

    #[test]
    fn long_names_are_cut_at_a_character() {
        assert_eq!(shown(&"ß".repeat(1000)).chars().count(), NAME_LIMIT + 1);
        assert_eq!(shown("short"), "short");
        assert_eq!(readable(b"\xff"), None);
    }

    /// Each parameter names the one before it twice: 2^60 characters when expanded.
    #[test]
    fn a_name_that_doubles_itself_is_truncated() {
        let doubled: String =
            (1..60u32).map(radix36).map(|before| format!("S0_IS{before}_S{before}_E")).collect();
        let bomb = format!("_Z1f1a1bIS_S_E{doubled}");
        assert!(bomb.len() < 1000);
        let name = shown(&bomb);
        assert!(name.starts_with("f(a, b<a, a>, b<b<a, a>, b<a, a> >"), "{name}");
        assert_eq!(name.chars().count(), NAME_LIMIT + 1);
    }

    #[test]
    fn a_name_is_parsed_to_a_limited_depth() {
        let pointers = |depth| format!("_Z1f{}i", "P".repeat(depth));
        assert_eq!(shown(&pointers(20)), format!("f(int{})", "*".repeat(20)));
        assert_eq!(shown(&pointers(200)), pointers(200));
    }

    fn radix36(number: u32) -> String {
        let digit = |n: u32| char::from_digit(n, 36).unwrap().to_ascii_uppercase();
        match number {
            0..36 => digit(number).to_string(),
            _ => format!("{}{}", digit(number / 36), digit(number % 36)),
        }
    }
}
