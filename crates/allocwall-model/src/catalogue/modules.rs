//! Which file has which role: libraries by name, linked allocators by their entry points and messages, and the symbols
//! that delimit malloc inside a C library.

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AllocatorKind {
    Glibc,
    Musl,
    Jemalloc,
    Tcmalloc,
    Mimalloc,
    Snmalloc,
    Other,
}

impl AllocatorKind {
    pub fn title(self) -> &'static str {
        match self {
            AllocatorKind::Glibc => "glibc malloc",
            AllocatorKind::Musl => "musl malloc",
            AllocatorKind::Jemalloc => "jemalloc",
            AllocatorKind::Tcmalloc => "tcmalloc",
            AllocatorKind::Mimalloc => "mimalloc",
            AllocatorKind::Snmalloc => "snmalloc",
            AllocatorKind::Other => "unknown allocator",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModuleRole {
    Kernel,
    Libc,
    Loader,
    Allocator(AllocatorKind),
    Cpython,
    Jvm,
    Node,
    Go,
    Vdso,
    /// Generated code, not backed by a file.
    Jit,
    Other,
    /// The library that counts calls of the allocator (`allocwall count`). Its time is no part of the target's.
    Counter,
}

/// A C library that the name of its file, or its soname, identifies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LibcKind {
    Glibc,
    Musl,
}

/// C libraries by the start of their file name; the first match wins. None: several C libraries use the name.
const C_LIBRARIES: &[(&str, Option<LibcKind>)] = &[
    // musl has one file for loader and C library. It counts as C library, because it contains malloc.
    ("ld-musl-", Some(LibcKind::Musl)),
    ("libc.musl-", Some(LibcKind::Musl)),
    ("libc.so.6", Some(LibcKind::Glibc)),
    // The name of glibc's file before 2.34: `libc-2.31.so`.
    ("libc-2", Some(LibcKind::Glibc)),
    ("libc.so", None),
];

/// Other libraries in the same way. No letter may follow the start, so that `libcurl` is not taken for libc, and
/// `libpython-helper` not for an interpreter.
const LIBRARIES: &[(&str, ModuleRole)] = &[
    ("ld-linux", ModuleRole::Loader),
    ("ld.so", ModuleRole::Loader),
    ("ld64.so", ModuleRole::Loader),
    ("ld-2", ModuleRole::Loader),
    ("libjemalloc", ModuleRole::Allocator(AllocatorKind::Jemalloc)),
    ("libtcmalloc", ModuleRole::Allocator(AllocatorKind::Tcmalloc)),
    ("libmimalloc", ModuleRole::Allocator(AllocatorKind::Mimalloc)),
    ("libsnmalloc", ModuleRole::Allocator(AllocatorKind::Snmalloc)),
    ("libhoard", ModuleRole::Allocator(AllocatorKind::Other)),
    ("libscalloc", ModuleRole::Allocator(AllocatorKind::Other)),
    ("librpmalloc", ModuleRole::Allocator(AllocatorKind::Other)),
    ("libhardened_malloc", ModuleRole::Allocator(AllocatorKind::Other)),
    ("libtbbmalloc", ModuleRole::Allocator(AllocatorKind::Other)),
    // `liballocwall-count-0.1.0-0123456789abcdef.so`: see `allocwall_preload::unpack`.
    ("liballocwall-count", ModuleRole::Counter),
    ("libjvm.so", ModuleRole::Jvm),
    ("libnode.so", ModuleRole::Node),
    ("libpython", ModuleRole::Cpython),
];

/// Whether `rest` can follow the start of a library's name. Variants that must match: `libjemalloc_pic`,
/// `libmimalloc-secure`, `libsnmallocshim`, `libtbbmalloc_proxy`, `libc.so`, `libtcmalloc_minimal`, `ld-linux-x86-64`.
fn ends_word(rest: &str, start: &str) -> bool {
    match rest.chars().next() {
        None => true,
        Some(c) if c.is_ascii_alphabetic() => start.ends_with('-') || rest.starts_with("shim"),
        Some('-') => start != "libpython",
        Some(_) => true,
    }
}

fn by_start<T: Copy>(table: &[(&str, T)], file_name: &str) -> Option<T> {
    table
        .iter()
        .find(|(start, _)| file_name.strip_prefix(start).is_some_and(|rest| ends_word(rest, start)))
        .map(|&(_, found)| found)
}

/// Role of a library by its file name or soname, without directories.
pub fn role_of_library(file_name: &str) -> Option<ModuleRole> {
    match by_start(C_LIBRARIES, file_name) {
        Some(_) => Some(ModuleRole::Libc),
        None => by_start(LIBRARIES, file_name),
    }
}

/// None if it is no C library, or if several C libraries use the name.
pub fn libc_by_name(file_name: &str) -> Option<LibcKind> {
    by_start(C_LIBRARIES, file_name).flatten()
}

/// The allocator that a library is, by the name of its file.
pub fn allocator_by_name(file_name: &str) -> Option<AllocatorKind> {
    match role_of_library(file_name)? {
        ModuleRole::Allocator(kind) => Some(kind),
        _ => None,
    }
}

/// A runtime whose garbage collection allocwall cannot separate from other work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpaqueRuntime {
    /// Start of the file name of its library or program; no letter may follow.
    file: &'static str,
    pub name: &'static str,
    /// A command or function that shows its collections.
    pub shown_by: &'static str,
}

#[rustfmt::skip]
const OPAQUE_RUNTIMES: &[OpaqueRuntime] = &[
    OpaqueRuntime { file: "libcoreclr.so", name: ".NET", shown_by: "dotnet-counters monitor -p PID" },
    OpaqueRuntime { file: "libmonosgen-2", name: "Mono", shown_by: "MONO_LOG_LEVEL=info MONO_LOG_MASK=gc CMD" },
    OpaqueRuntime { file: "ruby", name: "Ruby", shown_by: "GC::Profiler in the program" },
    OpaqueRuntime { file: "libruby", name: "Ruby", shown_by: "GC::Profiler in the program" },
    OpaqueRuntime { file: "php", name: "PHP", shown_by: "gc_status() in the program" },
    OpaqueRuntime { file: "libphp", name: "PHP", shown_by: "gc_status() in the program" },
    OpaqueRuntime { file: "beam.smp", name: "Erlang", shown_by: "msacc:start(1000), msacc:print() in its shell" },
    OpaqueRuntime { file: "libluajit", name: "LuaJIT", shown_by: "luajit -jp=v" },
    OpaqueRuntime { file: "luajit", name: "LuaJIT", shown_by: "luajit -jp=v" },
];

pub fn opaque_runtime(file_name: &str) -> Option<&'static OpaqueRuntime> {
    OPAQUE_RUNTIMES.iter().find(|c| {
        file_name
            .strip_prefix(c.file)
            .is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_alphabetic()))
    })
}

/// Entry points that prove that a file contains an allocator, by exact name.
pub const ALLOCATOR_ENTRY_POINTS: &[(&str, AllocatorKind)] = &[
    ("mallocx", AllocatorKind::Jemalloc),
    ("je_malloc", AllocatorKind::Jemalloc),
    ("je_mallocx", AllocatorKind::Jemalloc),
    ("_rjem_malloc", AllocatorKind::Jemalloc),
    ("_rjem_mallocx", AllocatorKind::Jemalloc),
    ("jemalloc_mallocx", AllocatorKind::Jemalloc),
    ("tc_malloc", AllocatorKind::Tcmalloc),
    ("TCMallocInternalMalloc", AllocatorKind::Tcmalloc),
    ("MallocExtension_Internal_GetNumericProperty", AllocatorKind::Tcmalloc),
    ("mi_malloc", AllocatorKind::Mimalloc),
    ("_mi_malloc_generic", AllocatorKind::Mimalloc),
    ("_PyMem_MiMalloc", AllocatorKind::Mimalloc),
    ("sn_malloc", AllocatorKind::Snmalloc),
    ("sn_rust_alloc", AllocatorKind::Snmalloc),
    ("snmalloc_malloc", AllocatorKind::Snmalloc),
    ("_int_malloc", AllocatorKind::Glibc),
    ("__libc_malloc_impl", AllocatorKind::Musl),
];

/// A function of Google's tcmalloc, which has a cache for each CPU. The tcmalloc of gperftools has one for each thread, and no such
/// function (tcmalloc/internal_malloc_extension.h).
pub const PERCPU_TCMALLOC: &str = "MallocExtension_Internal_GetPerCpuCachesActive";

/// Messages that only one allocator's code contains; used for stripped programs that are linked with it.
pub const ALLOCATOR_MESSAGES: &[(&str, AllocatorKind)] = &[
    ("<jemalloc>: ", AllocatorKind::Jemalloc),
    ("malloc(): corrupted top size", AllocatorKind::Glibc),
    ("tcmalloc: large alloc", AllocatorKind::Tcmalloc),
    ("MIMALLOC_ALLOW_LARGE_OS_PAGES", AllocatorKind::Mimalloc),
    ("mimalloc_allow_large_os_pages", AllocatorKind::Mimalloc),
];

/// Exported functions of malloc's object file in glibc 2.17 to 2.42 (malloc/malloc.c, hooks.c, arena.c, morecore.c) and
/// of src/malloc in musl.
const MALLOC_FUNCTIONS: &[&str] = &[
    "__default_morecore",
    "__glibc_morecore",
    "__libc_calloc",
    "__libc_free",
    "__libc_mallinfo",
    "__libc_mallinfo2",
    "__libc_malloc",
    "__libc_mallopt",
    "__libc_memalign",
    "__libc_pvalloc",
    "__libc_realloc",
    "__libc_reallocarray",
    "__libc_valloc",
    "__malloc_check_init",
    "__posix_memalign",
    "aligned_alloc",
    "calloc",
    "cfree",
    "free",
    "free_aligned_sized",
    "free_sized",
    "independent_calloc",
    "independent_comalloc",
    "mallinfo",
    "mallinfo2",
    "malloc",
    "malloc_get_state",
    "malloc_info",
    "malloc_set_state",
    "malloc_stats",
    "malloc_trim",
    "malloc_usable_size",
    "mallopt",
    "memalign",
    "posix_memalign",
    "pvalloc",
    "realloc",
    "reallocarray",
    "valloc",
];

/// Internal functions of the allocators of glibc and musl: in the symbol table, but not in the dynamic one. They prove that
/// a source file named malloc.c is the C library's, so that all functions of this file are known.
const MALLOC_INTERNALS: &[&str] = &[
    "_int_free",
    "_int_malloc",
    "_int_memalign",
    "_int_realloc",
    "_mid_memalign",
    "alloc_group",
    "alloc_slot",
    "malloc_consolidate",
    "sysmalloc",
    "systrim",
    "__libc_malloc_impl",
    "__malloc_alloc_meta",
    "__malloc_allzerop",
    "__malloc_donate",
    "__malloc_atfork",
    "__malloc_arena_thread_freeres",
    "__malloc_fork_lock_parent",
    "__malloc_fork_unlock_child",
    "__malloc_fork_unlock_parent",
    "__bin_chunk",
    "__expand_heap",
    "__simple_malloc",
];

/// Source files of the allocators of glibc (the first) and musl.
const MALLOC_SOURCES: &[&str] = &[
    "malloc.c",
    "aligned_alloc.c",
    "calloc.c",
    "donate.c",
    "free.c",
    "lite_malloc.c",
    "malloc_usable_size.c",
    "realloc.c",
];

pub fn is_malloc_source(file_name: &str) -> bool {
    MALLOC_SOURCES.contains(&file_name)
}

/// Whether it is an exported entry point of a C library's allocator.
pub fn is_malloc_export(name: &str) -> bool {
    MALLOC_FUNCTIONS.binary_search(&name).is_ok()
}

/// Whether only a C library's allocator has this function. Compiler suffixes (`.constprop.0`, `.part.0`) are ignored.
pub fn is_malloc_internal(name: &str) -> bool {
    let stem = name.split('.').next().unwrap_or(name);
    MALLOC_INTERNALS.contains(&stem)
}

/// A range of allocator code is extended downwards only around these: internal functions are placed before the entry
/// points that call them.
pub fn is_core_entry_point(name: &str) -> bool {
    matches!(name, "malloc" | "free" | "calloc" | "realloc")
}

/// The variable that jemalloc reads options from. A build whose functions have a prefix reads another one.
pub const JEMALLOC_CONF: &str = "MALLOC_CONF";

/// Builds of jemalloc: the prefix of the functions (--with-jemalloc-prefix), and the variable that such a build reads
/// (obtain_malloc_conf in src/jemalloc.c). tikv-jemallocator has `_rjem_`, Redis `je_`.
pub const JEMALLOC_BUILDS: [(&str, &str); 3] =
    [("", JEMALLOC_CONF), ("_rjem_", "_RJEM_MALLOC_CONF"), ("je_", "JE_MALLOC_CONF")];

/// Whether some build of jemalloc reads this variable.
pub fn is_jemalloc_conf(variable: &str) -> bool {
    JEMALLOC_BUILDS.iter().any(|(_, name)| *name == variable)
}

/// Settings of allocators and runtimes that affect the diagnosis, by exact name or, with a star, by prefix. The name is
/// exact if other software uses the same prefix, because the environment also contains secrets.
const SETTINGS: &[&str] = &[
    "GLIBC_TUNABLES",
    "GODEBUG",
    "GOGC",
    "GOMAXPROCS",
    "GOMEMLIMIT",
    "JAVA_OPTS",
    "JAVA_TOOL_OPTIONS",
    "JDK_JAVA_OPTIONS",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "MALLOC_*",
    "MIMALLOC_*",
    "NODE_OPTIONS",
    "OMP_NUM_THREADS",
    "PYTHONDEVMODE",
    "PYTHONHASHSEED",
    "PYTHONMALLOC*",
    "PYTHONPERFSUPPORT",
    "PYTHONTRACEMALLOC",
    "PYTHON_CPU_COUNT",
    "PYTHON_GIL",
    "PYTHON_JIT",
    "PYTHON_PERF_JIT_SUPPORT",
    "TCMALLOC_*",
    "UV_THREADPOOL_SIZE",
    "_JAVA_OPTIONS",
];

pub fn is_setting(variable: &str) -> bool {
    let named = SETTINGS.iter().any(|setting| match setting.strip_suffix('*') {
        Some(prefix) => variable.starts_with(prefix),
        None => variable == *setting,
    });
    named || is_jemalloc_conf(variable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_known_by_name_and_their_near_twins_are_not() {
        for (name, role) in [
            ("ld-linux-x86-64.so.2", Some(ModuleRole::Loader)),
            ("libjemalloc.so.2", Some(ModuleRole::Allocator(AllocatorKind::Jemalloc))),
            ("libtcmalloc_minimal.so.4.5.10", Some(ModuleRole::Allocator(AllocatorKind::Tcmalloc))),
            ("libmimalloc-secure.so.2.0", Some(ModuleRole::Allocator(AllocatorKind::Mimalloc))),
            ("libsnmallocshim.so", Some(ModuleRole::Allocator(AllocatorKind::Snmalloc))),
            ("libpython3.13t.so.1.0", Some(ModuleRole::Cpython)),
            ("libjvm.so", Some(ModuleRole::Jvm)),
            ("liballocwall-count-0.1.0-00ff00ff00ff00ff.so", Some(ModuleRole::Counter)),
            ("liballocwall-prefault-0.1.0-00ff00ff00ff00ff.so", None),
            ("liballocwall-counter.so", None),
            ("libcurl.so.4", None),
            ("libcrypt.so.1", None),
            ("libpython-helper.so", None),
            ("libjvmti.so", None),
            ("libmimallocator.so", None),
            ("xlibjemalloc.so", None),
            ("", None),
        ] {
            assert_eq!(role_of_library(name), role, "{name}");
        }
    }

    #[test]
    fn c_libraries_are_known_by_name_and_their_near_twins_are_not() {
        for (name, role, kind) in [
            ("libc.so.6", Some(ModuleRole::Libc), Some(LibcKind::Glibc)),
            ("libc-2.31.so", Some(ModuleRole::Libc), Some(LibcKind::Glibc)),
            ("ld-musl-x86_64.so.1", Some(ModuleRole::Libc), Some(LibcKind::Musl)),
            ("libc.musl-x86_64.so.1", Some(ModuleRole::Libc), Some(LibcKind::Musl)),
            ("libc.so", Some(ModuleRole::Libc), None),
            ("libmusl.so", None, None),
            ("libcrypt.so.1", None, None),
        ] {
            assert_eq!((role_of_library(name), libc_by_name(name)), (role, kind), "{name}");
        }
    }

    #[test]
    fn opaque_runtimes_are_known_by_name_and_their_near_twins_are_not() {
        for (name, runtime) in [
            ("libcoreclr.so", Some(".NET")),
            ("ruby3.1", Some("Ruby")),
            ("libruby-3.1.so.3.1.2", Some("Ruby")),
            ("php-fpm8.2", Some("PHP")),
            ("beam.smp", Some("Erlang")),
            ("libluajit-5.1.so.2", Some("LuaJIT")),
            ("rubyist", None),
            ("phpunit", None),
            ("libphpcpp.so", None),
            ("postgres", None),
        ] {
            assert_eq!(opaque_runtime(name).map(|c| c.name), runtime, "{name}");
        }
    }

    #[test]
    fn malloc_names_are_sorted_for_the_binary_search() {
        assert!(MALLOC_FUNCTIONS.is_sorted());
        assert!(is_malloc_export("free") && is_malloc_export("malloc_info"));
        assert!(!is_malloc_export("mtrace") && !is_malloc_export("obstack_free"));
        assert!(is_malloc_internal("systrim.constprop.0"));
        assert!(!is_malloc_internal("systrimmer"));
    }

    #[test]
    fn settings_are_taken_and_secrets_are_left() {
        let variables = JEMALLOC_BUILDS.map(|(_, variable)| variable);
        for kept in ["MALLOC_ARENA_MAX", "PYTHONMALLOC", "GOGC", "LD_PRELOAD"].iter().chain(&variables) {
            assert!(is_setting(kept), "{kept}");
        }
        for left in ["GOOGLE_API_KEY", "PYTHON_API_TOKEN", "JAVA_HOME_SECRET", "AWS_SECRET", ""] {
            assert!(!is_setting(left), "{left}");
        }
    }
}
