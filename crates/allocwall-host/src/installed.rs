//! Finds allocators and language runtimes on this machine. Nothing found is executed: any user may have put
//! it there.

use crate::facts::Machine;
use allocwall_model::catalogue::modules::AllocatorKind;
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

/// Prefixes of library names; the first match decides. Debug and profiling builds are left out on purpose,
/// and so are allocators under another allocator's name: preloading those proves nothing.
const ALLOCATOR_FILES: [(&str, AllocatorKind); 5] = [
    ("libjemalloc.so", AllocatorKind::Jemalloc),
    ("libtcmalloc.so", AllocatorKind::Tcmalloc),
    ("libtcmalloc_minimal.so", AllocatorKind::Tcmalloc),
    ("libmimalloc.so", AllocatorKind::Mimalloc),
    ("libsnmallocshim.so", AllocatorKind::Snmalloc),
];

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
            let kind = allocator_kind(path.file_name()?)?;
            let file = path.canonicalize().ok()?;
            let version = version_after_so(&file.file_name()?.to_string_lossy())
                .or_else(|| version_after_so(&path.file_name()?.to_string_lossy()));
            seen.insert(file.clone()).then_some(InstalledAllocator { kind, path: file, version })
        })
        .collect();
    found.sort_by(|a, b| (a.kind, &a.path).cmp(&(b.kind, &b.path)));
    found
}

fn allocator_kind(name: &OsStr) -> Option<AllocatorKind> {
    let name = name.to_str()?;
    ALLOCATOR_FILES.iter().find_map(|(start, kind)| {
        let rest = name.strip_prefix(start)?;
        (rest.is_empty() || rest.starts_with('.')).then_some(*kind)
    })
}

/// `libmimalloc.so.2.0` -> `2.0`.
fn version_after_so(name: &str) -> Option<String> {
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
        // JAVA_VERSION="17.0.9"
        "java" => {
            let text = note("release").or_else(|| {
                // JDK 8 has java in jre/bin below its home.
                std::fs::read_to_string(home.parent()?.join("release")).ok()
            })?;
            let line = text.lines().find_map(|line| line.strip_prefix("JAVA_VERSION="))?;
            Some(line.trim_matches('"').to_owned())
        }
        // go1.22.1
        "go" => Some(note("VERSION")?.lines().next()?.trim().strip_prefix("go")?.to_owned()),
        "node" => {
            let text = note("include/node/node_version.h")?;
            let part = |key: &str| {
                text.lines().find_map(|line| {
                    let mut words = line.split_whitespace();
                    (words.next() == Some("#define") && words.next() == Some(key)).then(|| words.next())?
                })
            };
            Some(format!(
                "{}.{}.{}",
                part("NODE_MAJOR_VERSION")?,
                part("NODE_MINOR_VERSION")?,
                part("NODE_PATCH_VERSION")?
            ))
        }
        _ => None,
    }
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
