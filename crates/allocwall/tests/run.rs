//! `allocwall run`, `list` and `explain` from the command line: pid, exit status, environment, mappings, CPUs and
//! nodes of the started program, and one error line for each refusal.

use std::ffi::OsStr;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const BINARY: &str = env!("CARGO_BIN_EXE_allocwall");

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(BINARY);
    command
        .args(arguments)
        .env_remove("LD_PRELOAD")
        .env_remove("GLIBC_TUNABLES")
        .env_remove("MALLOC_ARENA_MAX")
        .env_remove("COLUMNS")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn tool(arguments: &[&str]) -> Output {
    command(arguments).output().expect("the tool starts")
}

fn data(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("data is UTF-8")
}

fn talk(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("talk is UTF-8")
}

/// Exit status `code`, no data, one error line that contains `words`.
fn refused(arguments: &[&str], code: i32, words: &str) {
    let output = tool(arguments);
    let talk = talk(&output);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {talk}");
    assert!(talk.starts_with("error: ") && talk.contains(words), "{words:?} in {talk:?}");
    assert_eq!(talk.lines().count(), 1, "{talk}");
    assert!(output.stdout.is_empty(), "{}", data(&output));
}

/// Source of a library that looks like an allocator; it calls the C library's functions.
const ALLOCATOR: &str = "#include <stddef.h>
extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t), *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);
void *malloc(size_t size) { return __libc_malloc(size); }
void *calloc(size_t count, size_t size) { return __libc_calloc(count, size); }
void *realloc(void *block, size_t size) { return __libc_realloc(block, size); }
void *aligned_alloc(size_t alignment, size_t size) { return __libc_memalign(alignment, size); }
void free(void *block) { __libc_free(block); }
";

/// A mount namespace in which jemalloc and mimalloc seem to be installed: libraries with their names.
struct WithAllocators(tempfile::TempDir);

impl WithAllocators {
    /// Err: why it cannot be made here.
    fn new() -> Result<WithAllocators, String> {
        let place = tempfile::tempdir().unwrap();
        let libraries = place.path().join("lib");
        std::fs::create_dir(&libraries).unwrap();
        let source = place.path().join("allocator.c");
        std::fs::write(&source, ALLOCATOR).unwrap();
        for name in ["libjemalloc.so.2", "libmimalloc.so.2.0"] {
            let built = Command::new("cc")
                .args(["-shared", "-fPIC", "-o"])
                .arg(libraries.join(name))
                .arg(&source)
                .output()
                .map_err(|error| format!("cc: {error}"))?;
            assert!(built.status.success(), "{}", talk(&built));
        }
        let machine = WithAllocators(place);
        let tried = machine.command(&["list"]).output();
        match tried {
            Ok(output) if output.status.success() => Ok(machine),
            Ok(_) => Err("mounting is not permitted here".to_owned()),
            Err(error) => Err(format!("unshare: {error}")),
        }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let script = "mount --bind \"$0\" /usr/local/lib && exec \"$@\"";
        let mut outer = Command::new("unshare");
        // An ordinary user becomes root in a user namespace, if that is permitted.
        outer
            .arg(if rustix::process::geteuid().is_root() { "-m" } else { "-rm" })
            .args(["sh", "-c", script])
            .arg(self.0.path().join("lib"));
        let inner = command(arguments);
        outer.arg(inner.get_program()).args(inner.get_args());
        for (name, value) in inner.get_envs() {
            assert!(value.is_none(), "the test only unsets variables");
            outer.env_remove(name);
        }
        outer.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        outer
    }

    /// The first installed library of a kind in `list`; a remedy takes this one.
    fn library(&self, kind: &str) -> String {
        let output = self.command(&["list", "--json"]).output().unwrap();
        let list: serde_json::Value = serde_json::from_str(&data(&output)).unwrap();
        let found = list["allocators"].as_array().unwrap().iter();
        let mut installed = found.filter(|found| found["allocator"] == kind && found["bundled"] == false);
        installed.next().unwrap_or_else(|| panic!("no {kind} in {list}"))["path"].as_str().unwrap().to_owned()
    }
}

fn glibc_here() -> bool {
    // getconf knows this variable only with glibc.
    let said = Command::new("getconf").arg("GNU_LIBC_VERSION").output();
    said.is_ok_and(|output| output.status.success())
}

#[test]
fn the_command_is_the_same_process_and_ends_as_itself() {
    let child =
        command(&["run", "-q", "--with", "cpus=0", "--", "sh", "-c", "echo $$; exit 7"]).spawn().unwrap();
    let pid = child.id();
    let output = child.wait_with_output().unwrap();
    assert_eq!(data(&output).trim(), pid.to_string());
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(talk(&output), "");
    let output = tool(&["run", "--with", "cpus=0", "--", "sh", "-c", "kill -TERM $$"]);
    assert_eq!(output.status.signal(), Some(15));
    assert_eq!(talk(&output), "allocwall: CPUs 0\n");
}

#[test]
fn standard_input_and_arguments_pass_untouched() {
    use std::io::Write;
    let mut child = command(&["run", "-q", "--with", "env:A=1", "--", "cat", "-", "/dev/null"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"a\0b\xff").unwrap();
    assert_eq!(child.wait_with_output().unwrap().stdout, b"a\0b\xff");
    // Arguments that look like options of allocwall.
    let output = tool(&["run", "-q", "--with", "env:A=1", "--", "echo", "--with", "--", "-q", "--print"]);
    assert_eq!(data(&output), "--with -- -q --print\n");
}

#[test]
fn variables_are_set_kept_and_unset() {
    let output = command(&["run", "-q", "--with", "env:X=1 2", "--with", "glibc:arena_max=2", "--", "env"])
        .env("GLIBC_TUNABLES", "glibc.malloc.perturb=0")
        .env("KEPT", "yes")
        .output()
        .unwrap();
    if !glibc_here() {
        return println!("skipped: no glibc here");
    }
    let seen = data(&output);
    let has = |line: &str| seen.lines().any(|seen| seen == line);
    assert!(has("X=1 2") && has("KEPT=yes"), "{seen}");
    assert!(has("GLIBC_TUNABLES=glibc.malloc.perturb=0:glibc.malloc.arena_max=2"), "{seen}");
    let output = command(&["run", "-q", "--with", "glibc-arenas-free", "--", "env"])
        .env("MALLOC_ARENA_MAX", "1")
        .output()
        .unwrap();
    assert!(!data(&output).contains("MALLOC_ARENA_MAX"), "{}", data(&output));
}

#[test]
fn a_preloaded_allocator_is_used_and_earlier_entries_are_kept() {
    if !glibc_here() {
        return println!("skipped: no glibc here");
    }
    let machine = match WithAllocators::new() {
        Ok(machine) => machine,
        Err(reason) => return println!("skipped: {reason}"),
    };
    let (jemalloc, mimalloc) = (machine.library("jemalloc"), machine.library("mimalloc"));
    let command = |arguments: &[&str]| machine.command(arguments);
    // The loader reports what malloc is bound to: `binding file cat … to LIBRARY …: … symbol `malloc'`.
    let bound_to = |arm: &str| {
        let output = command(&["run", "-q", "--with", arm, "--", "sort", "/dev/null"])
            .env("LD_DEBUG", "bindings")
            .output()
            .unwrap();
        let talk = String::from_utf8_lossy(&output.stderr).into_owned();
        talk.lines()
            .filter(|line| line.contains("binding file sort ") && line.contains("symbol `malloc'"))
            .map(|line| {
                line.split(" to ").nth(1).unwrap_or_default().split(' ').next().unwrap_or_default().to_owned()
            })
            .next_back()
            .unwrap_or_default()
    };
    assert_eq!(bound_to("jemalloc"), jemalloc);
    assert_eq!(bound_to("mimalloc@system"), mimalloc);
    assert!(bound_to("none").contains("libc.so"), "{}", bound_to("none"));
    let output = command(&["run", "-q", "--with", "jemalloc", "--", "cat", "/proc/self/maps"])
        .env("LD_PRELOAD", &mimalloc)
        .output()
        .unwrap();
    let maps = data(&output);
    assert!(maps.contains(&jemalloc) && maps.contains(&mimalloc), "{maps}");
    let output = command(&["run", "-q", "--with", "jemalloc", "--", "env"])
        .env("LD_PRELOAD", &mimalloc)
        .output()
        .unwrap();
    assert!(data(&output).contains(&format!("LD_PRELOAD={jemalloc}:{mimalloc}\n")), "{}", data(&output));
    // `glibc` removes preloaded allocators.
    let output = command(&["run", "-q", "--with", "glibc", "--", "cat", "/proc/self/maps"])
        .env("LD_PRELOAD", &mimalloc)
        .output()
        .unwrap();
    assert!(!data(&output).contains(&mimalloc), "{}", data(&output));
}

#[test]
fn a_program_that_is_linked_with_an_allocator_gets_glibcs() {
    let redis = Path::new("/usr/bin/redis-server");
    if !redis.exists() {
        return println!("skipped: no redis-server");
    }
    let bound_to_libc = |arm: &str| {
        let output = command(&["run", "-q", "--with", arm, "--", "/usr/bin/redis-server", "--version"])
            .env("LD_DEBUG", "bindings")
            .output()
            .unwrap();
        let talk = String::from_utf8_lossy(&output.stderr).into_owned();
        let lines = talk
            .lines()
            .filter(|line| line.contains("/redis-server [0] to") && line.contains("symbol `malloc'"));
        let bound: Vec<&str> = lines.collect();
        (bound.len(), bound.iter().all(|line| line.contains("libc.so.6 [0]: ")))
    };
    let (bindings, libc) = bound_to_libc("none");
    if bindings == 0 || libc {
        return println!("skipped: this redis-server is not linked with another allocator");
    }
    assert_eq!(bound_to_libc("glibc"), (bindings, true));
}

#[test]
fn place_is_as_asked() {
    let status = |arm: &str| {
        let output =
            tool(&["run", "-q", "--with", arm, "--", "grep", "Cpus_allowed_list", "/proc/self/status"]);
        data(&output).split_whitespace().last().unwrap_or_default().to_owned()
    };
    let all = status("none");
    let first: String = all.chars().take_while(char::is_ascii_digit).collect();
    assert_eq!(status(&format!("cpus={first}")), first);
    refused(&["run", "--with", "cpus=60000", "--", "true"], 1, "CPU 60000 is not online");
    refused(&["run", "--with", "nodes=1000", "--", "true"], 1, "1000");
    let output = tool(&["run", "-q", "--with", "nodes=0", "--", "cat", "/proc/self/numa_maps"]);
    if output.status.success() {
        assert!(data(&output).contains(" bind:0 "), "{}", data(&output))
    } else {
        println!("skipped: {}", talk(&output))
    }
}

#[test]
fn a_shell_does_the_same_with_the_printed_line() {
    if !glibc_here() {
        return println!("skipped: no glibc here");
    }
    let arm = "glibc:arena_max=2+env:X=it's 1";
    let printed = data(&tool(&["run", "--print", "--with", arm, "--", "env"]));
    let by_shell = Command::new("sh").args(["-c", &printed]).env_remove("GLIBC_TUNABLES").output().unwrap();
    let by_tool = tool(&["run", "-q", "--with", arm, "--", "env"]);
    for line in ["X=it's 1", "GLIBC_TUNABLES=glibc.malloc.arena_max=2"] {
        assert!(data(&by_shell).lines().any(|seen| seen == line), "{printed}: {}", data(&by_shell));
        assert!(data(&by_tool).lines().any(|seen| seen == line), "{}", data(&by_tool));
    }
    assert!(!data(&by_tool).contains("arena_max=2 env"));
}

#[test]
fn errors_are_one_line() {
    refused(&["run", "--with", "jemaloc", "--", "true"], 2, "nearest: jemalloc");
    refused(&["run", "--with", "jemalloc", "--with", "mimalloc", "--", "true"], 2, "both set the allocator");
    refused(&["run", "--with", "env:A=1", "--", "/nonexistent/x"], 1, "cannot start /nonexistent/x");
    refused(&["run", "--with", "env:A=1", "--", "/etc"], 1, "it is a folder");
    refused(&["run", "--with", "env:A=1", "--", "/etc/passwd"], 1, "not executable");
    refused(&["run", "--with", "env:A=1", "--", "no-such-program-anywhere"], 1, "no such program in PATH");
    refused(&["run", "--with", "quota", "--", "true"], 2, "can't be set when a program starts");
    refused(&["explain", "snake-oil"], 2, "unknown name snake-oil");
    refused(&["explain", "\u{1b}[31m"], 2, "\\u{1b}[31m");
    if !glibc_here() {
        println!("skipped in part: no glibc here");
    } else {
        refused(&["run", "--with", "glibc:perturb=256", "--", "true"], 2, "0 to 255");
        refused(&["run", "--with", "glibc:arena_max=0x", "--", "true"], 2, "is not a size");
        refused(&["run", "--with", "glibc:arena_mx=2", "--", "true"], 2, "nearest: arena_max");
    }
    if !Path::new("/usr/bin/su").exists() {
        println!("skipped in part: no /usr/bin/su");
    } else {
        refused(&["run", "--with", "env:A=1", "--", "/usr/bin/su", "--help"], 1, "setuid");
        assert!(tool(&["run", "--with", "cpus=0", "--", "/usr/bin/su", "--help"]).status.success());
    }
    for arguments in [&["run", "--with", "thp"][..], &["run", "--", "true"]] {
        assert_eq!(tool(arguments).status.code(), Some(2), "{arguments:?}");
    }
}

#[test]
fn everything_that_is_listed_is_explained() {
    let list: serde_json::Value = serde_json::from_str(&data(&tool(&["list", "--json"]))).unwrap();
    assert_eq!(list["version"], 1);
    let names = |list: &serde_json::Value, group: &str, key: &str| -> Vec<String> {
        let rows = list[group].as_array().unwrap().iter();
        rows.map(|row| row[key].as_str().unwrap().to_owned()).collect()
    };
    let mut all = names(&list, "walls", "wall");
    assert_eq!(all.len(), allocwall_model::catalogue::walls::Wall::ALL.len());
    all.extend(names(&list, "experiments", "experiment"));
    all.extend(names(&list, "remedies", "remedy"));
    for name in all {
        let output = tool(&["explain", &name]);
        assert!(output.status.success(), "{name}: {}", talk(&output));
        let text = data(&output);
        assert!(text.contains(&name), "{name}: {text}");
        let widest = text.lines().map(|line| line.chars().count()).max();
        assert!(widest <= Some(100), "{name}: {text}");
    }
    let page: serde_json::Value =
        serde_json::from_str(&data(&tool(&["explain", "jemalloc", "--json"]))).unwrap();
    assert_eq!(page["pages"][0]["kind"], "allocator");
    let text = data(&tool(&["list"]));
    // Paths are not broken, so that they can be copied.
    let mut prose = text.lines().filter(|line| !line.contains('/'));
    assert!(prose.all(|line| line.chars().count() <= 100), "{text}");
}

#[test]
fn an_argument_that_is_not_utf8_is_passed_on() {
    use std::os::unix::ffi::OsStrExt;
    let odd = OsStr::from_bytes(b"a\xffb");
    let output =
        command(&["run", "-q", "--with", "env:A=1", "--", "printf", "%s"]).arg(odd).output().unwrap();
    assert_eq!(output.stdout, odd.as_bytes());
}

#[test]
fn the_arena_hook_is_set_where_its_package_is_installed() {
    const PYTHON: &str = "/usr/bin/python3";
    const KEY: &str = "pymalloc-hugepages";
    let version =
        Command::new(PYTHON).args(["-c", "import sys; print('python%d.%d' % sys.version_info[:2])"]).output();
    let Ok(version) = version.map(|output| data(&output).trim().to_owned()) else {
        println!("skipped: no {PYTHON} here");
        return;
    };
    if std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled")
        .is_ok_and(|mode| mode.contains("[never]"))
    {
        println!("skipped: huge pages are switched off here");
        return;
    }
    // A virtual environment: the files that Python looks for.
    let folder = tempfile::tempdir().unwrap();
    let packages = folder.path().join("lib").join(version).join("site-packages");
    std::fs::create_dir_all(&packages).unwrap();
    std::fs::create_dir(folder.path().join("bin")).unwrap();
    std::fs::write(folder.path().join("pyvenv.cfg"), "home = /usr/bin\n").unwrap();
    let python = folder.path().join("bin/python");
    std::os::unix::fs::symlink(PYTHON, &python).unwrap();
    let python = python.to_str().unwrap();
    refused(&["run", "--with", KEY, "--", python, "-c", "0"], 1, "-m pip install ");
    std::fs::write(packages.join("allocwall.pth"), "").unwrap();
    let output = command(&["run", "--print", "--with", KEY, "--", python, "-c", "0"])
        .env("PYTHONMALLOC", "debug")
        .output()
        .unwrap();
    assert_eq!(
        data(&output),
        format!("env -u PYTHONMALLOC ALLOCWALL_HUGEPAGES=1 {python} -c 0\n"),
        "{}",
        talk(&output)
    );
    refused(&["run", "--with", KEY, "--", "/bin/sleep", "0"], 1, "needs CPython");
}
