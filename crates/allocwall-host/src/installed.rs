//! Finds allocators and language runtimes on this machine. Nothing found is executed: any user may have put
//! it there.

use crate::facts::Machine;
use allocwall_model::catalogue::modules::{AllocatorKind, allocator_by_name};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstalledAllocator {
    pub kind: AllocatorKind,
    /// The value for LD_PRELOAD.
    pub path: PathBuf,
    /// From the file's name; the version of the interface, not of the package.
    pub version: Option<String>,
}

/// An allocator that ships with this program, unpacked to a place where a target can read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BundledLibrary {
    pub kind: AllocatorKind,
    pub version: String,
    pub path: PathBuf,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstalledRuntime {
    /// `python3.11`, `java`, `go`, `node`.
    pub name: String,
    pub path: PathBuf,
    pub version: Option<String>,
}

/// What to give to pip to install the Python package: the wheel that was built with this program (`make wheel`), if it is
/// there. The package is not published.
pub fn wheel() -> String {
    let built = || {
        let program = std::env::current_exe().ok()?;
        let wheels = program.parent()?.parent()?.join("wheels");
        let mut found: Vec<PathBuf> = std::fs::read_dir(wheels)
            .ok()?
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|e| e == "whl"))
            .collect();
        found.sort();
        found.pop()
    };
    built().map_or_else(|| "WHEEL (make wheel builds it)".to_owned(), |path| path.display().to_string())
}

/// Names of libraries that are offered, without their versions. Debug and profiling builds are left out on
/// purpose, and so are allocators under another allocator's name: preloading those proves nothing.
const OFFERED: [&str; 5] =
    ["libjemalloc.so", "libtcmalloc.so", "libtcmalloc_minimal.so", "libmimalloc.so", "libsnmallocshim.so"];

/// Folders that distributions and `make install` use; the linker's cache may know more.
const LIBRARY_FOLDERS: [&str; 9] = [
    "/usr/lib",
    "/usr/lib64",
    "/usr/local/lib",
    "/usr/local/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/lib/x86_64-linux-gnu",
    "/opt/homebrew/lib",
    "/home/linuxbrew/.linuxbrew/lib",
];

/// Libraries that can be preloaded, one entry per file, even if the file has several names.
pub fn allocators(machine: &Machine) -> Vec<InstalledAllocator> {
    let mut candidates = linker_cache();
    for folder in LIBRARY_FOLDERS {
        let entries = std::fs::read_dir(machine.path(folder)).into_iter().flatten().flatten();
        candidates.extend(entries.map(|entry| entry.path()));
    }
    distinct_allocators(candidates)
}

/// `ldconfig -p`, the system's view of its cache. The path is fixed, so a program from PATH is never run.
fn linker_cache() -> Vec<PathBuf> {
    let Some(program) = ["/sbin/ldconfig", "/usr/sbin/ldconfig"].iter().find(|path| Path::new(path).exists())
    else {
        return Vec::new();
    };
    let output = std::process::Command::new(program).arg("-p").stderr(std::process::Stdio::null()).output();
    output.map(|output| cached_paths(&String::from_utf8_lossy(&output.stdout))).unwrap_or_default()
}

/// Parses `\tlibm.so.6 (libc6,x86-64) => /lib/x86_64-linux-gnu/libm.so.6`; libraries of another architecture
/// are left out.
pub(crate) fn cached_paths(text: &str) -> Vec<PathBuf> {
    let foreign = |line: &&str| cfg!(target_arch = "x86_64") && !line.contains("x86-64");
    text.lines()
        .filter(|line| !foreign(line))
        .filter_map(|line| line.split_once(" => ").map(|(_, path)| PathBuf::from(path.trim())))
        .collect()
}

fn distinct_allocators(candidates: Vec<PathBuf>) -> Vec<InstalledAllocator> {
    let mut seen = BTreeSet::new();
    let mut found: Vec<InstalledAllocator> = candidates
        .into_iter()
        .filter_map(|path| {
            let kind = offered(path.file_name()?)?;
            let file = path.canonicalize().ok()?;
            let version = version_after_so(&file.file_name()?.to_string_lossy())
                .or_else(|| version_after_so(&path.file_name()?.to_string_lossy()));
            seen.insert(file.clone()).then_some(InstalledAllocator { kind, path: file, version })
        })
        .collect();
    found.sort_by(|a, b| (a.kind, &a.path).cmp(&(b.kind, &b.path)));
    found
}

fn offered(name: &OsStr) -> Option<AllocatorKind> {
    let name = name.to_str()?;
    let rest = OFFERED.iter().find_map(|start| name.strip_prefix(start))?;
    allocator_by_name(name).filter(|_| rest.is_empty() || rest.starts_with('.'))
}

/// `libmimalloc.so.2.0` -> `2.0`.
pub fn version_after_so(name: &str) -> Option<String> {
    let (_, version) = name.split_once(".so.")?;
    (!version.is_empty() && version.chars().all(|c| c.is_ascii_digit() || c == '.'))
        .then(|| version.to_owned())
}

/// Runtimes in the folders of a PATH, from file names and version files.
pub fn runtimes(path: &OsStr) -> Vec<InstalledRuntime> {
    let mut found: Vec<InstalledRuntime> = Vec::new();
    let mut seen = BTreeSet::new();
    for folder in std::env::split_paths(path).filter(|folder| folder.is_absolute()) {
        let mut names: Vec<String> = std::fs::read_dir(&folder)
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok())
            .filter(|name| is_python(name) || ["java", "go", "node"].contains(&name.as_str()))
            .collect();
        names.sort();
        for name in names {
            let entry = folder.join(&name);
            let Ok(file) = entry.canonicalize() else { continue };
            if !is_program(&file) {
                continue;
            }
            // pyenv and asdf link many names to one script, which chooses the interpreter when it runs.
            let name = match file.file_name().and_then(OsStr::to_str) {
                Some(real) if is_python(&name) && is_python(real) => real.to_owned(),
                _ => name,
            };
            if found.iter().any(|known| known.name == name) || !seen.insert((file.clone(), name.clone())) {
                continue;
            }
            found.push(InstalledRuntime { version: noted_version(&name, &file), name, path: entry });
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

/// `python3.11` and `python3.13t`; not `python3-config`, and not `python3`, which is another name for one of
/// these.
fn is_python(name: &str) -> bool {
    let Some(version) = name.strip_prefix("python3.") else {
        return false;
    };
    let version = version.strip_suffix('t').unwrap_or(version);
    !version.is_empty() && version.chars().all(|c| c.is_ascii_digit())
}

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

fn noted_version(name: &str, file: &Path) -> Option<String> {
    if let Some(version) = name.strip_prefix("python") {
        return Some(version.to_owned());
    }
    let home = file.parent()?.parent()?;
    let note = |path: &str| std::fs::read_to_string(home.join(path)).ok().filter(|text| text.len() < 1 << 16);
    match name {
        "java" => {
            let text = note("release").or_else(|| {
                // JDK 8 has java in jre/bin below its home.
                std::fs::read_to_string(home.parent()?.join("release")).ok()
            })?;
            release_version(&text)
        }
        // go1.22.1
        "go" => Some(note("VERSION")?.lines().next()?.trim().strip_prefix("go")?.to_owned()),
        "node" => node_header_version(&note("include/node/node_version.h")?),
        _ => None,
    }
}

/// JAVA_HOME/release: `JAVA_VERSION="17.0.15"`.
pub fn release_version(release: &str) -> Option<String> {
    let value = release.lines().find_map(|line| line.strip_prefix("JAVA_VERSION="))?;
    Some(value.trim().trim_matches('"').to_owned()).filter(|version| !version.is_empty())
}

/// `include/node/node_version.h` of an installation of Node.
pub fn node_header_version(header: &str) -> Option<String> {
    let number = |name: &str| {
        header.lines().find_map(|line| {
            let rest = line.strip_prefix("#define ")?.strip_prefix(name)?;
            rest.trim().parse::<u32>().ok()
        })
    };
    Some(format!(
        "{}.{}.{}",
        number("NODE_MAJOR_VERSION")?,
        number("NODE_MINOR_VERSION")?,
        number("NODE_PATCH_VERSION")?
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn program(path: &Path) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "").unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[test]
    fn one_library_is_listed_once_and_debug_builds_never() {
        let dir = tempfile::tempdir().unwrap();
        let lib = dir.path().join("usr/local/lib");
        program(&lib.join("libmimalloc.so.2.0"));
        symlink("libmimalloc.so.2.0", lib.join("libmimalloc.so.2")).unwrap();
        symlink("libmimalloc.so.2", lib.join("libmimalloc.so")).unwrap();
        symlink("nowhere", lib.join("libjemalloc.so")).unwrap();
        program(&lib.join("libtcmalloc_minimal.so.4.5.10"));
        program(&lib.join("libtcmalloc_minimal_debug.so.4"));
        let all: Vec<PathBuf> =
            std::fs::read_dir(&lib).unwrap().flatten().map(|entry| entry.path()).collect();
        let found = distinct_allocators(all);
        let seen: Vec<_> = found.iter().map(|a| (a.kind, a.version.as_deref())).collect();
        assert_eq!(seen, [(AllocatorKind::Tcmalloc, Some("4.5.10")), (AllocatorKind::Mimalloc, Some("2.0"))]);
    }

    #[test]
    fn linker_cache_lines() {
        let text = "2 libs found in cache `/etc/ld.so.cache'\n\tlibjemalloc.so.2 (libc6,x86-64) => /usr/lib/libjemalloc.so.2\n\
            \tlibjemalloc.so.2 (libc6) => /usr/lib32/libjemalloc.so.2\njunk\n";
        if cfg!(target_arch = "x86_64") {
            assert_eq!(cached_paths(text), [Path::new("/usr/lib/libjemalloc.so.2")]);
        } else {
            println!("skipped: the line is of another architecture");
        }
    }

    #[test]
    fn versions_in_small_files_and_their_near_twins() {
        assert_eq!(release_version("A=1\nJAVA_VERSION=\"17.0.15\"\n"), Some("17.0.15".into()));
        assert_eq!(release_version("JAVA_VERSION_DATE=\"2025\"\n"), None);
        assert_eq!(
            node_header_version(
                "#define NODE_MAJOR_VERSION 22\n#define NODE_MINOR_VERSION 1\n#define NODE_PATCH_VERSION 0\n"
            ),
            Some("22.1.0".into())
        );
        assert_eq!(node_header_version("#define NODE_MAJOR_VERSION x\n"), None);
    }

    #[test]
    fn runtimes_by_name_and_note() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        program(&root.join("bin/python3.11"));
        symlink("python3.11", root.join("bin/python3")).unwrap();
        program(&root.join("bin/python3.13t"));
        program(&root.join("bin/python3.11-config"));
        std::fs::write(root.join("bin/node"), "not executable").unwrap();
        program(&root.join("jdk/bin/java"));
        std::fs::write(root.join("jdk/release"), "IMPLEMENTOR=\"x\"\nJAVA_VERSION=\"17.0.9\"\n").unwrap();
        symlink(root.join("jdk/bin/java"), root.join("bin/java")).unwrap();
        program(&root.join("go/bin/go"));
        std::fs::write(root.join("go/VERSION"), "go1.22.1\ntime x\n").unwrap();
        let path =
            std::env::join_paths([root.join("bin"), root.join("go/bin"), root.join("missing"), "rel".into()])
                .unwrap();
        let found = runtimes(&path);
        let seen: Vec<_> = found.iter().map(|r| (r.name.as_str(), r.version.as_deref())).collect();
        assert_eq!(
            seen,
            [
                ("go", Some("1.22.1")),
                ("java", Some("17.0.9")),
                ("python3.11", Some("3.11")),
                ("python3.13t", Some("3.13t"))
            ]
        );
    }
}
