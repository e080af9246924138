use super::components::Files;
use super::facts::examine_elf;
use super::process::{age_ns, pid_inside, settings, thp_disabled, words_kept};
use super::versions::{is_version, python_name};
use super::*;
use crate::malloc_range::SymbolTable;
use crate::reading::Readers;
use crate::testing::Running;
use allocwall_host::elf::{Elf, ElfFile, SymbolKind, Table};
use allocwall_host::maps::{self, Mapping};
use allocwall_host::proc::{ProcFs, Status};
use allocwall_model::catalogue::modules::{AllocatorKind, ModuleRole};
use allocwall_model::error::Error;
use allocwall_model::recording::{Allocator, CMDLINE_WORDS, Libc, Linkage, Module, Runtime};
use allocwall_model::units::{Absence, Measured, Reason};
use std::ffi::OsString;
use std::fs::File;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Starts a program and inspects it until `ready`, because loading takes a moment.
fn inspected(command: &mut Command, ready: impl Fn(&TargetView) -> bool) -> Option<(Modules, TargetView)> {
    let child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()?;
    let child = Running(child);
    let deadline = Instant::now() + Duration::from_secs(20);
    let inspect = || {
        let mut modules = Modules::new("/proc", Readers::Here);
        let view = modules.inspect(child.pid()).expect("a live subject");
        (modules, view)
    };
    while !ready(&inspect().1) && Instant::now() <= deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    // `ready` may have been true for a part of its files only, so it is inspected again.
    Some(inspect())
}

fn exists(path: &str) -> bool {
    let there = Path::new(path).exists();
    if !there {
        println!("skipped: no {path} on this machine");
    }
    there
}

/// It has a C library and has reached its first wait, so the loader has finished.
fn has_libc(view: &TargetView) -> bool {
    let pid = view.process.pid;
    let waits = || ProcFs::live().thread_stat(pid, pid).is_ok_and(|stat| stat.state == 'S');
    view.process.libc.is_ok() && waits()
}

fn kind_and_linkage(view: &TargetView) -> (AllocatorKind, Linkage) {
    let allocator =
        view.process.allocator.as_ref().unwrap_or_else(|absence| panic!("no allocator: {absence}"));
    (allocator.kind, allocator.how)
}

fn sleep() -> Command {
    let mut command = Command::new("sleep");
    command.arg("60");
    command
}

const LIBRARIES: &str = "/usr/lib/x86_64-linux-gnu";

#[test]
fn a_plain_program_has_glibc_and_its_malloc() {
    let (modules, view) = inspected(&mut sleep(), has_libc).expect("sleep");
    let Ok(Libc::Glibc { version }) = &view.process.libc else {
        println!("skipped: sleep is not linked with glibc here: {:?}", view.process.libc);
        return;
    };
    assert!(version.starts_with("2.") && is_version(version, "2."), "{version}");
    assert_eq!(kind_and_linkage(&view), (AllocatorKind::Glibc, Linkage::Libc));
    assert_eq!(view.process.runtime, Ok(Runtime::Native));
    assert!(view.also.is_empty(), "{:?}", view.also);
    assert_eq!(view.process.thp_disabled, Ok(false));
    assert_eq!(view.process.cmdline, ["sleep", "60"]);
    assert_eq!(view.process.ppid, std::process::id() as i32);
    let libc = modules.list().iter().find(|m| m.role == ModuleRole::Libc).expect("libc");
    assert_eq!(libc.malloc_ranges.len(), 2, "malloc's and reallocarray's: {:x?}", libc.malloc_ranges);
    assert!(libc.build_id.is_some());
}

#[test]
fn preloaded_and_linked_allocators_are_distinguished() {
    for (file, kind, version) in [
        ("libjemalloc.so.2", AllocatorKind::Jemalloc, "5."),
        ("libtcmalloc_minimal.so.4", AllocatorKind::Tcmalloc, "2."),
        ("libmimalloc.so.2", AllocatorKind::Mimalloc, "2."),
    ] {
        let path = format!("{LIBRARIES}/{file}");
        if !exists(&path) {
            continue;
        }
        for value in [path.as_str(), file, "no-such-library.so libc.so.6"] {
            let (_, view) = inspected(sleep().env("LD_PRELOAD", value), has_libc).expect("sleep");
            let found = kind_and_linkage(&view);
            if value.contains("no-such") {
                assert_eq!(found, (AllocatorKind::Glibc, Linkage::Libc));
                continue;
            }
            assert_eq!(found, (kind, Linkage::Preloaded), "{value}");
            let found = view.process.allocator.expect("allocator").version.unwrap_or_default();
            assert!(found.starts_with(version), "{file}: {found}");
            assert!(view.process.environment.contains(&("LD_PRELOAD".into(), value.into())));
        }
    }
}

#[test]
fn a_preload_is_seen_where_the_environment_was_overwritten() {
    let path = format!("{LIBRARIES}/libjemalloc.so.2");
    if !exists(&path) || !exists("/usr/bin/perl") {
        return;
    }
    // Its title overwrites its environment, as a server's does.
    let mut command = Command::new("/usr/bin/perl");
    command.args(["-e", "$0 = 'x' x 1000000; sleep 60"]).env("LD_PRELOAD", &path);
    let (_, view) =
        inspected(&mut command, |view| view.process.comm.starts_with("xx") && has_libc(view)).expect("perl");
    let mut names = view.process.environment.iter().map(|(name, _)| name);
    assert!(names.all(|name| name != "LD_PRELOAD"), "Perl left its environment as it was");
    assert_eq!(kind_and_linkage(&view), (AllocatorKind::Jemalloc, Linkage::Preloaded));
}

#[test]
fn a_linked_allocator_is_not_a_preload_and_an_opened_one_does_not_serve_malloc() {
    if exists("/usr/bin/redis-server") {
        let mut command = Command::new("/usr/bin/redis-server");
        let folder = scratch("redis");
        command.args(["--port", "0", "--save", "", "--unixsocket"]).arg(folder.join("socket"));
        let (_, view) = inspected(&mut command, has_libc).expect("redis");
        let _ = std::fs::remove_dir_all(&folder);
        assert_eq!(kind_and_linkage(&view), (AllocatorKind::Jemalloc, Linkage::Linked));
    }
    let path = format!("{LIBRARIES}/libmimalloc.so.2");
    if exists(&path) && exists("/usr/bin/python3") {
        let mut command = Command::new("/usr/bin/python3");
        command.args(["-c", &format!("import ctypes,sys; ctypes.CDLL('{path}'); sys.stdin.read()")]);
        let (_, view) = inspected(&mut command, |view| !view.also.is_empty()).expect("python");
        assert_eq!(kind_and_linkage(&view), (AllocatorKind::Glibc, Linkage::Libc));
        assert_eq!(view.also.len(), 1, "{:?}", view.also);
        assert_eq!(view.also[0].kind, AllocatorKind::Mimalloc);
    }
}

#[test]
fn pythons_are_known_with_their_version() {
    let mut pythons: Vec<PathBuf> = vec!["/usr/bin/python3".into()];
    let home = std::env::var("HOME").unwrap_or_default();
    let versions =
        std::fs::read_dir(Path::new(&home).join(".pyenv/versions")).into_iter().flatten().flatten();
    pythons.extend(versions.map(|entry| entry.path().join("bin/python")));
    for python in pythons.iter().filter(|python| exists(&python.to_string_lossy())) {
        let truth = "import sys; sys.stdout.write('.'.join(map(str, sys.version_info[:3])))";
        let Ok(output) = Command::new(python).args(["-c", truth]).output() else {
            continue;
        };
        let truth = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        let mut command = Command::new(python);
        command.args(["-c", "import sys; sys.stdin.read()"]);
        let known = |view: &TargetView| matches!(view.process.runtime, Ok(Runtime::Cpython { .. }));
        let (_, view) = inspected(&mut command, known).expect("python");
        let Ok(Runtime::Cpython { version, free_threaded }) = &view.process.runtime else {
            panic!("{}: {:?}", python.display(), view.process.runtime);
        };
        assert_eq!((version.as_str(), *free_threaded), (truth.as_str(), false), "{}", python.display());
    }
}

#[test]
fn names_of_free_threaded_pythons() {
    assert_eq!(python_name("libpython3.13t.so.1.0"), ("3.13".into(), true));
    assert_eq!(python_name("libpython3.13.so.1.0"), ("3.13".into(), false));
    assert_eq!(python_name("libpython3.7m.so.1.0"), ("3.7".into(), false));
    assert_eq!(python_name("python3.14t"), ("3.14".into(), true));
    assert_eq!(python_name("python"), (String::new(), false));
    assert_eq!(python_name("uwsgi"), (String::new(), false));
}

#[test]
fn jvm_and_node_are_known_with_their_version() {
    if exists("/usr/bin/java") {
        let folder = scratch("java");
        std::fs::write(folder.join("S.java"), WAITING_CLASS).expect("write");
        let known = |view: &TargetView| matches!(view.process.runtime, Ok(Runtime::Jvm { .. }));
        let (_, view) =
            inspected(Command::new("/usr/bin/java").arg(folder.join("S.java")), known).expect("java");
        let _ = std::fs::remove_dir_all(&folder);
        let Ok(Runtime::Jvm { version: Some(version) }) = &view.process.runtime else {
            panic!("{:?}", view.process.runtime);
        };
        assert!(version.as_bytes()[0].is_ascii_digit(), "{version}");
    }
    if exists("/usr/bin/node") {
        let truth = Command::new("/usr/bin/node").arg("--version").output().expect("node");
        let (modules, view) =
            inspected(Command::new("/usr/bin/node").args(["-e", "setTimeout(()=>{},60000)"]), has_libc)
                .expect("node");
        let Ok(Runtime::Node { version: Some(version) }) = &view.process.runtime else {
            panic!("{:?}", view.process.runtime);
        };
        assert_eq!(format!("v{version}"), String::from_utf8_lossy(&truth.stdout).trim());
        assert_eq!(kind_and_linkage(&view), (AllocatorKind::Glibc, Linkage::Libc));
        assert!(modules.list().iter().any(|m| m.role == ModuleRole::Node && m.has_symbols));
    }
}

#[test]
fn a_program_is_the_same_before_it_runs_and_while_it_runs() {
    let folder = scratch("before");
    std::fs::write(folder.join("S.java"), WAITING_CLASS).expect("write");
    let path = |name: &str| folder.join(name).to_string_lossy().into_owned();
    let (socket, source) = (path("socket"), path("S.java"));
    let programs: [(&str, &[&str]); 5] = [
        ("/usr/bin/sleep", &["60"]),
        ("/usr/bin/python3", &["-c", "import sys; sys.stdin.read()"]),
        ("/usr/bin/redis-server", &["--port", "0", "--save", "", "--unixsocket", socket.as_str()]),
        ("/usr/bin/node", &["-e", "setTimeout(()=>{},60000)"]),
        ("/usr/bin/java", &[source.as_str()]),
    ];
    for (program, arguments) in programs.into_iter().filter(|(program, _)| exists(program)) {
        let (_, before) = view_program(Path::new(program)).expect(program);
        let (_, view) = inspected(Command::new(program).args(arguments), has_libc).expect(program);
        let process = view.process;
        assert_eq!((before.libc, before.runtime), (process.libc, process.runtime), "{program}");
        let facts = |found: Measured<Allocator>| found.map(|a| (a.kind, a.how, a.version));
        assert_eq!(facts(before.allocator), facts(process.allocator), "{program}");
    }
    let _ = std::fs::remove_dir_all(&folder);
}

#[test]
fn components_of_a_program_whose_libraries_are_unknown_are_unknown() {
    let mut modules = Modules::new("/nonexistent", Readers::Here);
    let exe = modules.add_special("/usr/bin/service", ModuleRole::Other);
    let absence = Absence::new(Reason::TooCostly, "the loader did not answer");
    let files = Files {
        modules: &modules,
        exe: Ok(exe),
        linked: vec![exe],
        preloaded: Vec::new(),
        scope: vec![exe],
        all: vec![exe],
        missing: Some(absence.clone()),
    };
    let unknown = files.components();
    assert_eq!((unknown.libc, unknown.libc_file), (Err(absence.clone()), None));
    assert_eq!((unknown.runtime, unknown.allocator), (Err(absence.clone()), Err(absence)));
    let known = Files { missing: None, ..files }.components();
    assert_eq!(known.runtime, Ok(Runtime::Native));
    assert_eq!(known.libc.unwrap_err().reason, Reason::NotFound);
    assert_eq!(known.allocator.unwrap_err().reason, Reason::NotFound);
}

const WAITING_CLASS: &str =
    "class S { public static void main(String[] a) throws Exception { Thread.sleep(60000); } }";

fn scratch(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("allocwall-target-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("scratch folder");
    folder
}

const WAITING_PROGRAM: &str = "#include <stdlib.h>\n#include <unistd.h>\nint main(void){void*volatile p=malloc(99);free(p);sleep(60);return 0;}\n";

/// Compiles the waiting program. Prints `skipped:` and returns None if the compiler is missing or fails.
fn compile(compiler: &str, name: &str, arguments: &[&str]) -> Option<(PathBuf, PathBuf)> {
    let folder = scratch(name);
    let (source, program) = (folder.join("wait.c"), folder.join("wait"));
    std::fs::write(&source, WAITING_PROGRAM).expect("write");
    let built = Command::new(compiler).args(arguments).arg("-o").arg(&program).arg(&source).output();
    match built {
        Ok(output) if output.status.success() => Some((folder, program)),
        _ => {
            println!("skipped: {compiler} {arguments:?} does not build here");
            let _ = std::fs::remove_dir_all(&folder);
            None
        }
    }
}

#[test]
fn a_c_library_whose_path_is_not_utf8_is_unknown() {
    let Some((folder, program)) = compile("gcc", "not-utf8", &["-Wl,-rpath,$ORIGIN"]) else {
        return;
    };
    let (_, before) = view_program(&program).expect("a program");
    if !matches!(before.libc, Ok(Libc::Glibc { .. })) {
        let _ = std::fs::remove_dir_all(&folder);
        return println!("skipped: no glibc here");
    }
    std::fs::copy(before.libc_file.expect("its file"), folder.join("libc.so.6")).expect("a copy");
    let mut name = b"allocwall-target-\xff-".to_vec();
    name.extend(std::process::id().to_string().into_bytes());
    let renamed = folder.with_file_name(OsString::from_vec(name));
    std::fs::rename(&folder, &renamed).expect("a name that is not UTF-8");
    let (_, unknown) = view_program(&renamed.join("wait")).expect("a program");
    let _ = std::fs::remove_dir_all(&renamed);
    let absence = unknown.libc.expect_err("its file can't be opened");
    assert!(absence.detail.contains("\u{fffd}-"), "{absence}");
    assert_eq!(unknown.libc_file, None);
}

#[test]
fn static_and_musl_programs() {
    type Expected = (Measured<Libc>, Option<(AllocatorKind, Linkage)>);
    let static_as = |kind| (Ok(Libc::Static), Some((kind, Linkage::Static)));
    let cases: [(&str, &str, &[&str], Expected); 5] = [
        ("gcc", "glibc-static", &["-static"], static_as(AllocatorKind::Glibc)),
        ("gcc", "glibc-static-stripped", &["-static", "-s"], static_as(AllocatorKind::Glibc)),
        ("musl-gcc", "musl-static", &["-static"], static_as(AllocatorKind::Musl)),
        ("musl-gcc", "musl-static-stripped", &["-static", "-s"], (Ok(Libc::Static), None)),
        (
            "musl-gcc",
            "musl",
            &[],
            (Ok(Libc::Musl { version: None }), Some((AllocatorKind::Musl, Linkage::Libc))),
        ),
    ];
    for (compiler, name, arguments, (libc, allocator)) in cases {
        let Some((folder, program)) = compile(compiler, name, arguments) else {
            continue;
        };
        let (modules, view) = inspected(&mut Command::new(&program), |view| {
            has_libc(view) && view.process.exe.as_ref().is_ok_and(|exe| exe.ends_with("wait"))
        })
        .expect("start");
        let _ = std::fs::remove_dir_all(&folder);
        match (&view.process.libc, &libc) {
            (Ok(Libc::Musl { version: Some(version) }), Ok(Libc::Musl { .. })) => {
                assert!(version.starts_with("1."), "{version}");
            }
            (found, expected) => assert_eq!(found, expected, "{name}"),
        }
        match allocator {
            Some(expected) => assert_eq!(kind_and_linkage(&view), expected, "{name}"),
            None => {
                assert_eq!(view.process.allocator.clone().unwrap_err().reason, Reason::NotFound, "{name}")
            }
        }
        assert_eq!(view.process.runtime, Ok(Runtime::Native));
        let ranged: Vec<&Module> = modules.list().iter().filter(|m| !m.malloc_ranges.is_empty()).collect();
        assert_eq!(ranged.is_empty(), name.ends_with("stripped"), "{name}: {ranged:x?}");
        for module in ranged {
            println!("{name}: {} {:x?}", module.path, module.malloc_ranges);
        }
    }
}

#[test]
fn go_programs_are_known_with_their_version() {
    let go = ["/usr/local/go/bin/go", "/usr/bin/go"].into_iter().find(|go| Path::new(go).exists());
    let Some(go) = go else {
        println!("skipped: no Go compiler on this machine");
        return;
    };
    // The toolchain's own programs are Go programs, so none has to be built.
    let output = Command::new(go).arg("env").arg("GOVERSION").output().expect("go env");
    let truth = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let file = ElfFile::new(File::open(go).expect("go"));
    let elf = file.parse().expect("an ELF file");
    let (module, known) = examine_elf(&elf, go, ModuleRole::Other);
    assert_eq!(module.role, ModuleRole::Go);
    assert_eq!(known.runtime, Some(Runtime::Go { version: truth.strip_prefix("go").map(str::to_owned) }));
    assert!(known.allocators.is_empty());
}

#[test]
fn a_stripped_go_program_has_symbols_if_its_own_table_can_be_read() {
    // Two functions and no symbol table.
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/kept/elf/go");
    let mut bytes = std::fs::read(kept).expect("a kept input");
    let examined = |bytes: &[u8]| {
        let (module, _) = examine_elf(&Elf::parse(bytes).expect("ELF"), "go", ModuleRole::Other);
        (module.role, module.has_symbols)
    };
    assert_eq!(examined(&bytes), (ModuleRole::Go, true));
    let table = bytes.windows(4).position(|magic| magic == 0xffff_fff1_u32.to_le_bytes()).expect("a table");
    bytes[table] = 0;
    assert_eq!(examined(&bytes), (ModuleRole::Go, false));
}

/// The functions of malloc's object file, from the symbol table of the debug file: the truth for the test of
/// the bracket.
fn debug_file(build_id: &str) -> PathBuf {
    PathBuf::from(format!("/usr/lib/debug/.build-id/{}/{}.debug", &build_id[..2], &build_id[2..]))
}

#[test]
fn the_bracket_covers_all_of_a_stripped_glibc_s_allocator() {
    let path = format!("{LIBRARIES}/libc.so.6");
    if !exists(&path) {
        return;
    }
    let file = ElfFile::new(File::open(&path).expect("libc"));
    let elf = file.parse().expect("an ELF file");
    let (module, _) = examine_elf(&elf, &path, ModuleRole::Libc);
    let debug = debug_file(module.build_id.as_deref().expect("build id"));
    if module.has_symbols || !exists(&debug.to_string_lossy()) {
        println!("skipped: libc has its names, or its debug file is missing (Debian: libc6-dbg)");
        return;
    }
    let file = ElfFile::new(File::open(&debug).expect("debug file"));
    let truth = file.parse().expect("an ELF file");
    let mut table = SymbolTable::default();
    let mut names = Vec::new();
    truth
        .symbols(Table::All, &mut |symbol| match symbol.kind {
            SymbolKind::File => table.file(symbol.text()),
            SymbolKind::Function => {
                table.function(symbol.text(), symbol.address, symbol.size, symbol.local);
                names.push((symbol.address, symbol.size, symbol.text()));
            }
            SymbolKind::Data => {}
        })
        .expect("symbols");
    let truth = table.ranges();
    let inside =
        |address: u64| module.malloc_ranges.iter().any(|&(start, end)| start <= address && address < end);
    for (address, size, name) in &names {
        let stem = name.split('.').next().unwrap_or(name);
        if [
            "_int_malloc",
            "_int_free",
            "malloc_consolidate",
            "sysmalloc",
            "systrim",
            "tcache_init",
            "arena_get2",
            "new_heap",
        ]
        .contains(&stem)
        {
            assert!(inside(*address) && inside(address + size - 1), "{name} is left out");
        }
    }
    let bytes = |ranges: &[(u64, u64)]| ranges.iter().map(|(start, end)| end - start).sum::<u64>();
    let shared: u64 = truth
        .iter()
        .flat_map(|&(a, b)| module.malloc_ranges.iter().map(move |&(c, d)| b.min(d).saturating_sub(a.max(c))))
        .sum();
    let (over, under) = (bytes(&module.malloc_ranges) - shared, bytes(&truth) - shared);
    println!("truth {truth:x?}, bracket {:x?}: {over} bytes too many, {under} missing", module.malloc_ranges);
    assert_eq!(under, 0);
    assert!(over <= 1024, "{over} bytes of other functions are in the ranges");
}

#[test]
fn addresses_lead_to_the_module_and_its_own_address() {
    let mut modules = Modules::new("/proc", Readers::Here);
    let view = modules.inspect(std::process::id() as i32).expect("self");
    let here = addresses_lead_to_the_module_and_its_own_address as *const () as u64;
    let (module, address) = view.space.lookup(here).expect("own code");
    assert!(view.process.exe.as_ref().is_ok_and(|exe| *exe == modules.list()[module].path));
    let file = ElfFile::new(File::open("/proc/self/exe").expect("self"));
    let elf = file.parse().expect("ELF");
    let mut named = None;
    elf.symbols(Table::All, &mut |symbol| {
        if symbol.address == address && symbol.kind == SymbolKind::Function {
            named = Some(symbol.text().to_owned());
        }
    })
    .expect("symbols");
    assert!(named.is_some_and(|name| name.contains("addresses_lead_to")));
    // The C library's malloc, which this test is linked with.
    let malloc = libc::malloc as *const () as u64;
    let (module, address) = view.space.lookup(malloc).expect("malloc");
    let module = &modules.list()[module];
    assert!(module.malloc_ranges.iter().any(|&(start, end)| start < address && address < end), "{module:x?}");
    assert_eq!(view.space.lookup(1), None);
    assert_eq!(view.space.lookup(u64::MAX), None);
}

fn mapping(start: u64, end: u64, path: &str) -> Mapping {
    Mapping {
        start,
        end,
        perms: maps::Perms { read: true, execute: true, ..maps::Perms::default() },
        offset: 0,
        dev: (0, 0),
        inode: u64::from(path.starts_with('/')),
        path: path.as_bytes().to_vec(),
    }
}

#[test]
fn a_new_mapping_replaces_what_it_covers() {
    let mut modules = Modules::new("/nonexistent", Readers::Here);
    let mut space = AddressSpace::new(1);
    space.add_mapping(&mut modules, &mapping(0x1000, 0x9000, "/lib/a"));
    space.add_mapping(&mut modules, &mapping(0x3000, 0x4000, ""));
    assert_eq!(space.lookup(0x2fff), Some((0, 0x1fff)));
    assert_eq!(space.lookup(0x3000), Some((1, 0x3000)), "generated code keeps its address");
    assert_eq!(space.lookup(0x4000), Some((0, 0x3000)));
    let mut data = mapping(0x0, 0x3800, "");
    data.perms.execute = false;
    space.add_mapping(&mut modules, &data);
    assert_eq!(space.lookup(0x1000), None);
    assert_eq!(space.lookup(0x3800), Some((1, 0x3800)));
    assert_eq!(modules.list()[1].role, ModuleRole::Jit);
    assert!(modules.known[0].absent.as_ref().is_some_and(|absence| absence.reason == Reason::NotFound));
    assert!(modules.known[1].absent.is_none());
    let child = space.forked(2);
    let mut rest = mapping(0, u64::MAX, "");
    rest.perms.execute = false;
    space.add_mapping(&mut modules, &rest);
    assert_eq!((space.lookup(0x4000), child.lookup(0x4000)), (None, Some((0, 0x3000))));
}

/// Attaching must not delay a diagnosis: a second inspection of the same files reads only maps.
#[test]
fn a_second_inspection_is_cheap() {
    for program in ["/usr/bin/node", "/usr/bin/python3"].into_iter().filter(|program| exists(program)) {
        let mut command = Command::new(program);
        if program.ends_with("node") {
            command.args(["-e", "setTimeout(()=>{},60000)"]);
        }
        let child = Running(command.stdin(Stdio::piped()).spawn().expect("start"));
        std::thread::sleep(Duration::from_millis(500));
        let mut modules = Modules::new("/proc", Readers::Here);
        let mut timed = || {
            let start = Instant::now();
            modules.inspect(child.pid()).expect("a live subject");
            start.elapsed()
        };
        let first = timed();
        // The fastest of several runs: other processes may slow down some, and the first run as well.
        let second = (0..20).map(|_| timed()).min().expect("twenty inspections");
        println!("{program}: {first:?}, then {second:?}");
        // Only a relative limit: the time of the first run depends on the disk and on other processes.
        assert!(second * 4 < first, "{first:?} then {second:?}");
    }
}

#[test]
fn a_file_is_examined_once_for_all_processes() {
    let first = Running(sleep().spawn().expect("sleep"));
    let second = Running(sleep().spawn().expect("sleep"));
    std::thread::sleep(Duration::from_millis(100));
    let mut modules = Modules::new("/proc", Readers::Here);
    modules.inspect(first.pid()).expect("first");
    let examined = modules.list().len();
    modules.inspect(second.pid()).expect("second");
    assert_eq!(modules.list().len(), examined);
}

#[test]
fn processes_that_cannot_be_inspected() {
    let mut modules = Modules::new("/proc", Readers::Here);
    assert!(matches!(modules.inspect(i32::MAX), Err(Error::NoSuchProcess(i32::MAX))));
    // A zombie maps nothing: every fact about its files is absent, with the reason.
    let mut zombie = Command::new("true").spawn().expect("true");
    std::thread::sleep(Duration::from_millis(200));
    let inspected = modules.inspect(zombie.id() as i32);
    zombie.wait().expect("reap");
    if let Ok(view) = inspected {
        assert!(
            view.process.allocator.is_err() && view.process.libc.is_err() && view.process.runtime.is_err()
        );
    }
}

#[test]
fn versions_and_their_near_twins() {
    for good in ["1.2.3", "3.10.0rc1", "2.36", "3.13.0+"] {
        assert!(is_version(good, ""), "{good}");
    }
    for bad in ["", "1", "1.", ".1", "1..2", "1.2.3.4.5", "a.b", "1.x", "1234567.1"] {
        assert!(!is_version(bad, ""), "{bad}");
    }
}

#[test]
fn environment_and_small_files() {
    let environ = [
        ("MALLOC_ARENA_MAX", "1"),
        ("JAVA_TOOL_OPTIONS", "-Xmx1g -Dpassword=x -XX:+UseZGC"),
        ("SECRET", "1"),
        ("A", "b=c"),
    ];
    let environ = environ.map(|(name, value)| (name.into(), value.into()));
    assert_eq!(
        settings(environ.into()),
        [("MALLOC_ARENA_MAX".into(), "1".into()), ("JAVA_TOOL_OPTIONS".into(), "-Xmx1g -XX:+UseZGC".into())]
    );
    let preloads =
        |value: &str| settings(vec![("LD_PRELOAD".into(), value.into())]).pop().map(|(_, value)| value);
    for (value, kept) in [
        ("/a/liballocwall-count-0.1.0-00.so", None),
        ("/a/liballocwall-count-0.1.0-00.so:/b.so c.so", Some("/b.so c.so")),
        ("/b.so:/a/liballocwall-prefault-0.1.0-00.so", Some("/b.so:/a/liballocwall-prefault-0.1.0-00.so")),
    ] {
        assert_eq!(preloads(value).as_deref(), kept, "{value}");
    }
    let thp = |enabled| thp_disabled(&Status { thp_enabled: enabled, ..Status::default() });
    assert_eq!((thp(Some(false)), thp(Some(true))), (Ok(true), Ok(false)));
    assert_eq!(thp(None).unwrap_err().reason, Reason::NotSupported);
    let inside = |numbers: &[i32]| pid_inside(&Status { ns_pids: numbers.into(), ..Status::default() });
    assert_eq!((inside(&[70, 9, 1]), inside(&[70]), inside(&[])), (Some(1), None, None));
    let words = |count: usize, length: usize| words_kept(vec!["x".repeat(length); count]).len();
    assert_eq!((words(3, 100), words(5000, 1)), (3, CMDLINE_WORDS));
    assert_eq!((words(5, 1 << 20), words(100, 1023)), (0, 15));
}

#[test]
fn a_process_is_as_old_as_its_start_and_one_of_a_copy_has_no_age() {
    let proc = ProcFs::live();
    let own = proc.process_stat(std::process::id() as i32).unwrap().start_ticks;
    let [own_ns, since_boot_ns] = [own, 0].map(|start| age_ns(&proc, start).unwrap());
    assert!(own_ns < since_boot_ns, "{own_ns} {since_boot_ns}");
    assert_eq!(age_ns(&proc, u64::MAX), Ok(0));
    assert_eq!(age_ns(&ProcFs::at("/nowhere"), 0).unwrap_err().reason, Reason::NotApplicable);
}
