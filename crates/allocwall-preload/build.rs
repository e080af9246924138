//! Compiles the libraries for LD_PRELOAD, and writes the table that embeds them.
//!
//! A Rust `cdylib` that depends on an allocator's `-sys` crate exports no `malloc`. So the C compiler links each
//! library here, from the sources in those crates: none of them is copied into this repository.
//!
//! - **mimalloc**: one compilation of `static.c`. Cargo gives its folder (`DEP_MIMALLOC_INCLUDE_DIR`). The crate's own
//!   build is not used; the workspace's profiles leave it unoptimised, so that it is short.
//! - **jemalloc**: the crate's own build (configure, make) is used: its archive becomes the library, so it is
//!   compiled only once. Its optimisation comes from the profile, which the workspace sets for dev builds too.
//! - **snmalloc**: the crate reports no folder. All crates of one registry, or of one vendored tree, are in the same
//!   folder, so it is found there. `cargo metadata` would also report it, but needs packages that a plain build does
//!   not download.

use std::env;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// An undefined symbol is an error of this build, not an error in a user's process.
const COMPLETE: &str = "-Wl,--no-undefined";

/// One line of the table.
struct Library {
    kind: &'static str,
    version: String,
    file_name: &'static str,
    path: PathBuf,
    licence: &'static str,
    /// The text of the licence, for code from other projects.
    notice: Option<PathBuf>,
}

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let here = PathBuf::from(variable("CARGO_MANIFEST_DIR"));
    let out = PathBuf::from(variable("OUT_DIR"));
    let prefault = of_libc(&here, &out, "prefault", "liballocwall-prefault.so", &["prefault.c"]);
    let count = of_libc(&here, &out, "count", "liballocwall-count.so", &["count.c", "count.h"]);
    let mut bundled = vec![mimalloc(&out)];
    if env::var_os("CARGO_FEATURE_JEMALLOC").is_some() {
        bundled.push(jemalloc(&here, &out));
    }
    if env::var_os("CARGO_FEATURE_SNMALLOC").is_some() {
        bundled.push(snmalloc(&here, &out));
    }
    let mut table = format!("static PREFAULT: Bundled = {};\n", entry(&prefault));
    writeln!(table, "static COUNT: Bundled = {};", entry(&count)).expect("a string takes all");
    table.push_str("static BUNDLED: &[Bundled] = &[\n");
    for library in &bundled {
        writeln!(table, "{},", entry(library)).expect("a string takes all");
    }
    table.push_str("];\n");
    write(&out.join("bundled.rs"), &table);
}

fn entry(library: &Library) -> String {
    let notice = match &library.notice {
        Some(path) => format!("Some(include_str!({path:?}))"),
        None => "None".to_owned(),
    };
    format!(
        "Bundled {{ kind: {:?}, version: {:?}, file_name: {:?}, bytes: include_bytes!({:?}), licence: {:?}, notice: {notice} }}",
        library.kind, library.version, library.file_name, library.path, library.licence
    )
}

/// This project's own, from the first of the sources. Linked against no library, so that the same file works with any
/// version of the C library: the loader finds its few functions in the C library of the process.
fn of_libc(
    here: &Path,
    out: &Path,
    kind: &'static str,
    file_name: &'static str,
    sources: &[&str],
) -> Library {
    let sources: Vec<PathBuf> = sources.iter().map(|name| here.join("src").join(name)).collect();
    for source in &sources {
        println!("cargo:rerun-if-changed={}", source.display());
    }
    let mut build = compiler();
    build.warnings(true).extra_warnings(true);
    build.flag("-U_FORTIFY_SOURCE").flag("-fno-stack-protector");
    build.flag("-fno-builtin").flag("-fvisibility=hidden").flag("-fasynchronous-unwind-tables");
    // On aarch64, atomic operations would otherwise be calls of libgcc.
    build.flag_if_supported("-mno-outline-atomics");
    let path = out.join(file_name);
    // Compiled by itself: with `-nostdlib`, zig's compiler does not find the headers of the C library either.
    let object = build.file(&sources[0]).compile_intermediates();
    let arguments = [object[0].as_os_str(), "-nostdlib".as_ref()];
    link(&build, file_name, &path, arguments);
    Library {
        kind,
        version: variable("CARGO_PKG_VERSION"),
        file_name,
        path,
        licence: "Apache-2.0 OR MIT",
        notice: None,
    }
}

/// Built as C, as mimalloc's own build of its shared library does, so that the process needs no C++ library.
fn mimalloc(out: &Path) -> Library {
    let include = PathBuf::from(variable("DEP_MIMALLOC_INCLUDE_DIR"));
    let root = include.parent().expect("include/ has a parent folder");
    let mut build = compiler();
    nameless(&mut build, root);
    build
        .include(&include)
        .include(root.join("src"))
        .define("MI_MALLOC_OVERRIDE", None)
        .define("MI_SHARED_LIB", None)
        .define("MI_SHARED_LIB_EXPORT", None)
        .define("MI_BUILD_RELEASE", None)
        .flag("-fvisibility=hidden")
        .flag("-ftls-model=initial-exec")
        .flag("-fno-builtin-malloc");
    let file_name = "libmimalloc.so";
    let path = out.join(file_name);
    let source = root.join("src/static.c");
    let arguments = [source.as_os_str(), "-pthread".as_ref(), COMPLETE.as_ref()];
    link(&build, file_name, &path, arguments);
    // The header defines it as `major + 2 digits minor + 2 digits patch`.
    let header = include.join("mimalloc.h");
    let number: u32 = defined(&header, "MI_MALLOC_VERSION")
        .parse()
        .unwrap_or_else(|_| panic!("{}: MI_MALLOC_VERSION is not a number", header.display()));
    Library {
        kind: "mimalloc",
        version: format!("{}.{}.{}", number / 10_000, number / 100 % 100, number % 100),
        file_name,
        path,
        licence: "MIT",
        notice: Some(root.join("LICENSE")),
    }
}

fn jemalloc(here: &Path, out: &Path) -> Library {
    let root = PathBuf::from(variable("DEP_JEMALLOC_ROOT"));
    let archive = root.join("lib/libjemalloc_pic.a");
    let file_name = "libjemalloc.so";
    let path = out.join(file_name);
    let arguments = [
        "-Wl,--whole-archive".as_ref(),
        archive.as_os_str(),
        "-Wl,--no-whole-archive".as_ref(),
        "-pthread".as_ref(),
        "-ldl".as_ref(),
        "-lm".as_ref(),
        COMPLETE.as_ref(),
    ];
    link(&compiler(), file_name, &path, arguments);
    let full = defined(&root.join("include/jemalloc/jemalloc.h"), "JEMALLOC_VERSION");
    let version = full.trim_matches('"').split('-').next().unwrap_or_default();
    Library {
        kind: "jemalloc",
        version: version.to_owned(),
        file_name,
        path,
        licence: "BSD-2-Clause",
        // The crate removes its copy of the sources after the build, so the text is a copy in this repository.
        notice: Some(here.join("licences/jemalloc.txt")),
    }
}

/// Like snmalloc's own `snmalloc-minimal`: without `new.cc`, whose exceptions would load a C++ library into every
/// process, or a second copy of one. C++ programs use it through the `operator new` of their own library.
fn snmalloc(here: &Path, out: &Path) -> Library {
    const VERSION: &str = "0.7.6";
    let root = beside_mimalloc("snmalloc-sys", VERSION).join("upstream/src");
    let mut build = compiler();
    build.cpp(true).std("c++20").cpp_link_stdlib(None);
    build.include(&root);
    nameless(&mut build, &root);
    for (name, value) in [
        ("SNMALLOC_EXPORT", "__attribute__((visibility(\"default\")))"),
        ("SNMALLOC_USE_CXX11_THREAD_ATEXIT_DIRECT", "1"),
        ("SNMALLOC_CHECK_LOADS", "false"),
        ("SNMALLOC_PAGEID", "false"),
        ("SNMALLOC_USE_WAIT_ON_ADDRESS", "1"),
        ("SNMALLOC_NO_REALLOCARRAY", "1"),
        ("SNMALLOC_NO_REALLOCARR", "1"),
        ("SNMALLOC_PLATFORM_HAS_GETENTROPY", "1"),
        // After a fork while another thread is in the allocator, the child must not inherit a held lock.
        ("SNMALLOC_PTHREAD_ATFORK_WORKS", "1"),
        ("SNMALLOC_PTHREAD_FORK_PROTECTION", "1"),
        ("SNMALLOC_HAS_LINUX_RANDOM_H", "1"),
        ("SNMALLOC_HAS_LINUX_FUTEX_H", "1"),
    ] {
        build.define(name, value);
    }
    for flag in [
        "-fvisibility=hidden",
        "-ftls-model=initial-exec",
        "-fno-exceptions",
        "-fno-rtti",
        "-fomit-frame-pointer",
    ] {
        build.flag(flag);
    }
    build.flag_if_supported("-mcx16").flag_if_supported("-mprfchw");
    let file_name = "libsnmallocshim.so";
    let path = out.join(file_name);
    let source = root.join("snmalloc/override/malloc.cc");
    let arguments = [
        source.as_os_str(),
        "-nodefaultlibs".as_ref(),
        "-lpthread".as_ref(),
        "-lc".as_ref(),
        COMPLETE.as_ref(),
    ];
    // On aarch64, atomic operations are functions of libgcc's static part: they use the newer instructions where the
    // processor has them.
    let atomics = (variable("CARGO_CFG_TARGET_ARCH") == "aarch64").then_some("-lgcc".as_ref());
    link(&build, file_name, &path, arguments.into_iter().chain(atomics));
    Library {
        kind: "snmalloc",
        version: VERSION.to_owned(),
        file_name,
        path,
        licence: "MIT",
        notice: Some(here.join("licences/snmalloc.txt")),
    }
}

/// Optimised, position-independent and without debug information in every profile, because the libraries run in
/// processes that are measured.
fn compiler() -> cc::Build {
    let mut build = cc::Build::new();
    // The allocators are for programs with glibc, also where the program that embeds them is linked with musl.
    build.target(&variable("TARGET").replace("-musl", "-gnu"));
    build.opt_level(3).debug(false).pic(true).warnings(false).define("NDEBUG", None);
    build
}

/// Messages of a library contain its source file names. Make them relative to the library's root.
fn nameless(build: &mut cc::Build, root: &Path) {
    build.flag_if_supported(format!("-ffile-prefix-map={}=.", root.display()));
}

/// Compiles and links one shared library. It is stripped, and every symbol is bound at load time.
fn link<'a>(
    build: &cc::Build,
    soname: &str,
    to: &Path,
    arguments: impl IntoIterator<Item = &'a std::ffi::OsStr>,
) {
    let mut command: Command = build.get_compiler().to_command();
    command.arg("-shared").arg("-o").arg(to).args(arguments).arg(format!("-Wl,-soname,{soname}")).args([
        "-Wl,-z,relro,-z,now",
        "-Wl,--gc-sections",
        "-s",
    ]);
    let output = command.output().unwrap_or_else(|e| {
        panic!("{soname}: cannot run {command:?}: {e}; install a C compiler, and for snmalloc a C++ compiler")
    });
    assert!(
        output.status.success(),
        "{soname}: {command:?} failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// The sources of a crate in the folder that contains the mimalloc crate.
fn beside_mimalloc(name: &str, version: &str) -> PathBuf {
    let include = PathBuf::from(variable("DEP_MIMALLOC_INCLUDE_DIR"));
    let crates = include
        .ancestors()
        .find(|folder| folder.join("Cargo.toml").exists())
        .and_then(Path::parent)
        .unwrap_or_else(|| panic!("{} is not inside a crate", include.display()));
    let is_it = |folder: &PathBuf| {
        fs::read_to_string(folder.join("Cargo.toml"))
            .is_ok_and(|text| text.lines().any(|line| line == format!("version = {version:?}")))
    };
    [crates.join(format!("{name}-{version}")), crates.join(name)]
        .into_iter()
        .find(is_it)
        .unwrap_or_else(|| panic!("the sources of {name} {version} are not in {}", crates.display()))
}

/// The value that a header defines for a name.
fn defined(header: &Path, name: &str) -> String {
    let text = fs::read_to_string(header).unwrap_or_else(|e| panic!("{}: {e}", header.display()));
    text.lines()
        .find_map(|line| {
            let mut words = line.split_whitespace();
            (words.next() == Some("#define") && words.next() == Some(name)).then(|| words.next()).flatten()
        })
        .unwrap_or_else(|| panic!("{} does not define {name}", header.display()))
        .to_owned()
}

fn write(path: &Path, text: &str) {
    fs::write(path, text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("{name} is not set: is this run by Cargo?"))
}
