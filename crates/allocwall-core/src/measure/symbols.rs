//! Addresses -> function names. Symbol tables only: enough to class and to name a call site, and quick.

use crate::host::inside::{self, Link};
use blazesym::MaybeDefault;
use blazesym::symbolize::source::{Elf, Kernel, Source};
use blazesym::symbolize::{Input, Symbolized, Symbolizer};
use std::collections::HashMap;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Template-heavy C++ names run to kilobytes; nobody reads further than this.
const NAME_LIMIT: usize = 384;

pub struct Symbols {
    symbolizer: Symbolizer,
    kernel: HashMap<u64, Option<String>>,
}

impl Symbols {
    pub fn new() -> Symbols {
        let symbolizer = Symbolizer::builder()
            .enable_auto_reload(false)
            .enable_code_info(false)
            .enable_inlined_fns(false)
            .enable_demangling(false)
            .build();
        Symbols {
            symbolizer,
            kernel: HashMap::new(),
        }
    }

    /// From /proc/kallsyms; None where kptr_restrict hides it.
    pub fn kernel(&mut self, address: u64) -> Option<String> {
        if let Some(known) = self.kernel.get(&address) {
            return known.clone();
        }
        let source = Kernel {
            vmlinux: MaybeDefault::None,
            debug_syms: false,
            ..Kernel::default()
        };
        let name = self.one(&Source::Kernel(source), Input::AbsAddr(address));
        self.kernel.insert(address, name.clone());
        name
    }

    /// `path`: anything that opens the very file that is mapped; `address`: in the file's own terms.
    pub fn user(&mut self, path: &Path, address: u64) -> Option<String> {
        let mut source = Elf::new(PathBuf::from(path));
        source.debug_syms = false;
        self.one(&Source::Elf(source), Input::VirtOffset(address))
    }

    fn one(&mut self, source: &Source, input: Input<u64>) -> Option<String> {
        match self.symbolizer.symbolize_single(source, input) {
            Ok(Symbolized::Sym(symbol)) => Some(cut(&demangled(&symbol.name))),
            Ok(Symbolized::Unknown(_)) | Err(_) => None,
        }
    }
}

/// Only what is marked as mangled: a C function called `w` is no `wchar_t`, as a demangler of types would have it.
fn demangled(name: &str) -> String {
    if let Ok(rust) = rustc_demangle::try_demangle(name) {
        // Without the hash that ends legacy names.
        return format!("{rust:#}");
    }
    if name.starts_with("_Z")
        && let Ok(symbol) = cpp_demangle::Symbol::new(name)
        && let Ok(readable) = symbol.demangle()
    {
        return readable;
    }
    name.to_string()
}

fn cut(name: &str) -> String {
    match name.char_indices().nth(NAME_LIMIT) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.to_string(),
    }
}

/// Names of generated code, from the file that a JIT writes for profilers (`perf-PID.map`: START SIZE NAME, hex).
#[derive(Default)]
pub struct PerfMap(Vec<(u64, u64, String)>);

impl PerfMap {
    const BYTES_LIMIT: u64 = 64 << 20;

    /// `inner_pid`: the process's pid in its own namespace; `owner`: the user that it runs as.
    ///
    /// All may write to /tmp: a file that is neither the process's own nor root's is somebody else's word about it (perf
    /// refuses it too, tools/perf/util/symbol.c, `symbol__read_perf_map`).
    pub fn read(proc_root: &Path, pid: i32, inner_pid: i32, owner: u32) -> Option<PerfMap> {
        let name = PathBuf::from(format!("/tmp/perf-{inner_pid}.map"));
        let (file, facts) = inside::open(proc_root, pid, &name, Link::Refuse).ok()?;
        if facts.uid() != owner && facts.uid() != 0 {
            return None;
        }
        let mut bytes = Vec::new();
        file.take(Self::BYTES_LIMIT).read_to_end(&mut bytes).ok()?;
        Some(Self::parse(&bytes))
    }

    fn parse(bytes: &[u8]) -> PerfMap {
        let mut entries: Vec<_> = String::from_utf8_lossy(bytes)
            .lines()
            .filter_map(|line| {
                let mut words = line.splitn(3, ' ');
                let hex = |w: Option<&str>| u64::from_str_radix(w?.trim_start_matches("0x"), 16).ok();
                let (start, size) = (hex(words.next())?, hex(words.next())?);
                Some((start, start.checked_add(size)?, cut(words.next()?)))
            })
            .collect();
        // Stable: of two entries for one address the later one, further down the file, wins in `lookup`.
        entries.sort_by_key(|(start, _, _)| *start);
        PerfMap(entries)
    }

    pub fn lookup(&self, address: u64) -> Option<&str> {
        let behind = self.0.partition_point(|(start, _, _)| *start <= address);
        let (_, end, name) = self.0.get(behind.checked_sub(1)?)?;
        (address < *end).then_some(name.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn perf_map_lines() {
        let map = PerfMap::parse(b"7f10 20 py::parse:/app.py\nbad\n7f00 10 LazyCompile:~a b\n7f10 20 newer\nffffffffffffffff 2 x\n");
        assert_eq!(map.lookup(0x7f05), Some("LazyCompile:~a b"));
        assert_eq!(map.lookup(0x7f10), Some("newer"));
        assert_eq!(map.lookup(0x7f2f), Some("newer"));
        assert_eq!(map.lookup(0x7f30), None);
        assert_eq!(map.lookup(0), None);
    }

    #[test]
    fn a_perf_map_is_its_process_s_own_or_root_s_plain_file() {
        let dir = tempfile::tempdir().unwrap();
        let tmp = dir.path().join("7/root/tmp");
        std::fs::create_dir_all(&tmp).unwrap();
        let map = tmp.join("perf-3.map");
        std::fs::write(&map, "7f00 10 own").unwrap();
        let owner = map.metadata().unwrap().uid();
        let named = |owner| {
            let map = PerfMap::read(dir.path(), 7, 3, owner)?;
            map.lookup(0x7f05).map(str::to_owned)
        };
        assert_eq!(named(owner).as_deref(), Some("own"));
        // Root's is anybody's to read; another user's is not.
        assert_eq!(named(owner + 1).is_some(), owner == 0);
        if !rustix::process::geteuid().is_root() {
            println!("skipped in part: needs root to give a file away");
        } else {
            std::os::unix::fs::chown(&map, Some(4711), None).unwrap();
            assert!(named(4711).is_some());
            assert!(named(4712).is_none() && named(0).is_none());
        }
        std::fs::rename(&map, tmp.join("other")).unwrap();
        std::os::unix::fs::symlink("other", &map).unwrap();
        assert!(named(4711).is_none() && named(owner).is_none());
    }

    #[test]
    fn only_mangled_names_are_demangled() {
        assert_eq!(demangled("w"), "w");
        assert_eq!(demangled("_init"), "_init");
        assert_eq!(
            demangled("_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE"),
            "core::fmt::Write::write_fmt"
        );
        assert_eq!(
            demangled("_ZNSt6vectorIiSaIiEE9push_backERKi"),
            "std::vector<int, std::allocator<int> >::push_back(int const&)"
        );
        assert_eq!(demangled("_Znot_mangled"), "_Znot_mangled");
    }

    #[test]
    fn long_names_are_cut_at_a_character() {
        assert_eq!(cut(&"ß".repeat(1000)).chars().count(), NAME_LIMIT + 1);
        assert_eq!(cut("short"), "short");
    }

    #[test]
    fn own_functions_have_names() {
        #[inline(never)]
        fn landmark() -> u64 {
            std::hint::black_box(1)
        }
        assert_eq!(landmark(), 1);
        let elf = std::fs::read("/proc/self/exe").unwrap();
        let file = object::File::parse(&*elf).unwrap();
        use object::{Object, ObjectSymbol};
        let symbol = file
            .symbols()
            .find(|s| s.name().is_ok_and(|n| n.contains("landmark")))
            .unwrap();
        let name = Symbols::new().user(Path::new("/proc/self/exe"), symbol.address());
        assert!(name.unwrap().contains("landmark"));
        assert_eq!(Symbols::new().user(Path::new("/etc/hostname"), 16), None);
    }
}
