//! Pre-touch: pages are resident before `main`, unless the value or a limit forbids it. The tests read the kernel's
//! data about the process: its resident set and its faults.

mod common;

use allocwall_preload::{bundled, count, prefault, unpack};
use common::{attempt, command, compiled, said};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const MIB: u64 = 1 << 20;
/// The number of pages of the half that the program allocates.
const PAGES: u64 = 32 * MIB / 4096;

struct Subject {
    place: tempfile::TempDir,
    program: PathBuf,
    library: PathBuf,
}

struct Account {
    resident: u64,
    faults: u64,
    errno: u64,
    lowest_descriptor: u64,
    mapped_blocks: u64,
}

impl Subject {
    fn new() -> Option<Self> {
        let place = tempfile::tempdir().unwrap();
        let program = compiled(place.path(), "faults.c", &[])?;
        let library = unpack(prefault(), &place.path().join("libraries")).unwrap();
        Some(Subject { place, program, library })
    }

    /// The program without pre-touch. It allocates 32 MiB in blocks of this size.
    fn plain(&self, block: u64) -> Command {
        let mut run = command(&self.program);
        run.args([(32 * MIB).to_string(), block.to_string()]);
        run
    }

    fn touched(&self, value: &str, block: u64) -> Command {
        let mut run = self.plain(block);
        run.env("LD_PRELOAD", &self.library).env("ALLOCWALL_PREFAULT", value);
        run
    }

    /// Runs the program through a shell that does something first.
    fn after(&self, first: &str, value: &str) -> Command {
        let mut run = command("sh");
        let script = format!("{first} && exec env LD_PRELOAD=\"$LIBRARY\" \"$PROGRAM\" {} 65536", 32 * MIB);
        run.args(["-c", &script])
            .env("LIBRARY", &self.library)
            .env("PROGRAM", &self.program)
            .env("ALLOCWALL_PREFAULT", value);
        run
    }
}

fn account(mut run: Command) -> Account {
    let text = said(&attempt(&mut run).unwrap());
    let numbers: Vec<u64> = text.split_whitespace().map(|word| word.parse().unwrap()).collect();
    let [resident, faults, errno, lowest_descriptor, mapped_blocks] = numbers[..] else {
        panic!("{text}");
    };
    Account { resident: resident * 1024, faults, errno, lowest_descriptor, mapped_blocks }
}

fn took(found: &Account, bytes: u64) -> bool {
    found.resident >= bytes
}

fn did_nothing(found: &Account) -> bool {
    found.resident < 16 * MIB && found.faults >= PAGES
}

#[test]
fn first_touch_is_paid_before_main() {
    let Some(subject) = Subject::new() else {
        return;
    };
    // Small blocks, the shim's own block size, and one for which glibc would use a new mapping by default.
    for block in [1000, 65_536, 20 * MIB] {
        let without = account(subject.plain(block));
        assert!(did_nothing(&without), "{block}: {} {}", without.resident, without.faults);
        let with = account(subject.touched(&(64 * MIB).to_string(), block));
        assert!(took(&with, 64 * MIB), "{block}: {}", with.resident);
        assert!(with.faults < PAGES / 100, "{block}: {} of {PAGES}", with.faults);
        assert_eq!((with.errno, with.lowest_descriptor), (without.errno, without.lowest_descriptor));
    }
}

#[test]
fn without_the_variable_the_library_does_nothing() {
    let Some(subject) = Subject::new() else {
        return;
    };
    let mut run = subject.plain(65_536);
    run.env("LD_PRELOAD", &subject.library);
    assert!(did_nothing(&account(run)));
}

#[test]
fn a_malformed_or_absurd_value_does_nothing() {
    let Some(subject) = Subject::new() else {
        return;
    };
    let total = fs::read_to_string("/proc/meminfo").unwrap();
    let total = total.lines().find_map(|line| line.strip_prefix("MemTotal:")).unwrap();
    let total: u64 = total.trim().trim_end_matches(" kB").parse().unwrap();
    let absurd = (total * 1024).to_string();
    for value in [
        "",
        "0",
        "-1",
        "+67108864",
        " 67108864",
        "67108864 ",
        "64M",
        "6.7e7",
        "0x4000000",
        "67108864\n",
        "x",
        "18446744073709551615",
        "18446744073709551616",
        "99999999999999999999999999",
        "9223372036854775807",
        &absurd,
    ] {
        let found = account(subject.touched(value, 65_536));
        assert!(did_nothing(&found), "{value:?}: {} {}", found.resident, found.faults);
    }
    assert!(took(&account(subject.touched("067108864", 65_536)), 64 * MIB));
}

#[test]
fn limits_of_the_process_are_respected() {
    let Some(subject) = Subject::new() else {
        return;
    };
    let value = (256 * MIB).to_string();
    for option in ["-v", "-d"] {
        let tight = account(subject.after(&format!("ulimit {option} 200000"), &value));
        assert!(did_nothing(&tight), "{option}: {} {}", tight.resident, tight.faults);
        let roomy = account(subject.after(&format!("ulimit {option} 600000"), &value));
        assert!(took(&roomy, 256 * MIB), "{option}: {}", roomy.resident);
    }
}

/// A control group below this process's own, removed at the end.
struct Group(PathBuf);

impl Group {
    fn new(limit: u64) -> Option<Self> {
        let own = fs::read_to_string("/proc/self/cgroup").ok()?;
        let place = own.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let (controllers, path) = (parts.next()?, parts.next()?);
            let legacy = controllers.split(',').any(|name| name == "memory");
            let root = if legacy { "/sys/fs/cgroup/memory" } else { "/sys/fs/cgroup" };
            (legacy || controllers.is_empty()).then(|| PathBuf::from(format!("{root}{path}")))
        })?;
        let group = Group(place.join(format!("allocwall-test-{}", std::process::id())));
        fs::create_dir(&group.0).ok()?;
        let file = ["memory.limit_in_bytes", "memory.max"]
            .map(|name| group.0.join(name))
            .into_iter()
            .find(|f| f.exists())?;
        fs::write(file, limit.to_string()).ok()?;
        Some(group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // If this fails, the next run reports it.
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn the_control_group_s_limit_is_respected() {
    let Some(subject) = Subject::new() else {
        return;
    };
    let Some(group) = Group::new(160 * MIB) else {
        return println!("skipped: no control group with a limit of memory can be made here");
    };
    let join = format!("echo $$ > {}", group.0.join("cgroup.procs").display());
    let tight = account(subject.after(&join, &(200 * MIB).to_string()));
    assert!(did_nothing(&tight), "{} {}", tight.resident, tight.faults);
    let roomy = account(subject.after(&join, &(100 * MIB).to_string()));
    assert!(took(&roomy, 100 * MIB), "{}", roomy.resident);
}

/// Of 32 MiB in blocks of 4 MiB, half do not fit into the touched heap. The mmap threshold decides where they go.
#[test]
fn settings_of_the_environment_stay() {
    let Some(subject) = Subject::new() else {
        return;
    };
    for (name, setting, mapped) in [
        ("MALLOC_MMAP_THRESHOLD_", "1000000", true),
        ("GLIBC_TUNABLES", "glibc.malloc.arena_max=1:glibc.malloc.mmap_threshold=1000000", true),
        ("GLIBC_TUNABLES", "glibc.malloc.arena_max=1", false),
    ] {
        let mut run = subject.touched(&(16 * MIB).to_string(), 4 * MIB);
        run.env(name, setting);
        let found = account(run);
        assert!(took(&found, 16 * MIB), "{setting}: {}", found.resident);
        assert_eq!(found.mapped_blocks > 0, mapped, "{setting}: {}", found.mapped_blocks);
    }
}

#[test]
fn beside_another_allocator_it_does_no_harm() {
    let Some(subject) = Subject::new() else {
        return;
    };
    let Some(calls) = compiled(subject.place.path(), "calls.c", &[]) else {
        return;
    };
    for item in bundled() {
        let allocator = unpack(item, &subject.place.path().join("libraries")).unwrap();
        for order in [[&allocator, &subject.library], [&subject.library, &allocator]] {
            let list = order.map(|path| path.to_str().unwrap()).join(":");
            let mut run = command(&calls);
            run.env("LD_PRELOAD", list).env("ALLOCWALL_PREFAULT", (64 * MIB).to_string());
            assert_eq!(said(&attempt(&mut run).unwrap()), "ok\n", "{run:?}");
        }
    }
}

#[test]
fn a_setuid_program_is_left_alone() {
    let Some(subject) = Subject::new() else {
        return;
    };
    let open = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    open(subject.place.path(), 0o755);
    let as_nobody = || {
        let mut run = command("setpriv");
        run.args(["--reuid=65534", "--regid=65534", "--clear-groups"])
            .arg(&subject.program)
            .args([(32 * MIB).to_string(), "65536".to_owned()])
            .env("LD_PRELOAD", &subject.library)
            .env("ALLOCWALL_PREFAULT", (64 * MIB).to_string());
        run
    };
    match attempt(&mut as_nobody()) {
        Some(output) if output.status.success() => {}
        Some(_) => return println!("skipped: needs root to change the user"),
        None => return,
    }
    assert!(took(&account(as_nobody()), 64 * MIB));
    open(&subject.program, 0o4755);
    let found = account(as_nobody());
    assert!(did_nothing(&found), "{} {}", found.resident, found.faults);
}

/// The libraries that each library needs (`readelf -d`).
#[test]
fn libraries_need_nothing_but_the_c_library() {
    let Some(subject) = Subject::new() else {
        return;
    };
    for item in bundled().iter().chain([prefault(), count()]) {
        let path = unpack(item, &subject.place.path().join("libraries")).unwrap();
        let Some(output) = attempt(command("readelf").arg("-dW").arg(path)) else {
            return;
        };
        let text = said(&output);
        let needed: Vec<&str> = text
            .lines()
            .filter(|line| line.contains("(NEEDED)"))
            .map(|line| line.split_once('[').unwrap().1.trim_end_matches(']'))
            .collect();
        let of_libc = ["libc.so.", "libm.so.", "libpthread.so.", "libdl.so.", "librt.so.", "ld-linux"];
        for library in &needed {
            assert!(of_libc.iter().any(|start| library.starts_with(start)), "{}: {library}", item.kind);
        }
        let needs_none = ["prefault", "count"].contains(&item.kind);
        assert_eq!(needed.is_empty(), needs_none, "{}: {needed:?}", item.kind);
    }
}
