use super::*;
use allocwall_host::elf::ElfKind;
use allocwall_host::facts::Machine;
use allocwall_host::installed::{BundledLibrary, InstalledAllocator};
use allocwall_host::program::RaisedRights;
use allocwall_host::topology::{Cpu, Topology};
use allocwall_host::tunables::parse as parse_list;
use allocwall_measure::target::FileView;
use allocwall_model::catalogue::remedies::{ARENA_HOOK_FILES, Proof};
use allocwall_model::recording::{Libc, Runtime};
use allocwall_model::units::{Absence, Measured, Reason};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};

fn line(text: &str) -> String {
    let line = Arm::parse(text).expect_err(text).to_string();
    assert!(!line.contains('\n') && !line.is_empty(), "{line}");
    line
}

#[test]
fn arms_as_they_are_typed() {
    let arm = Arm::parse("jemalloc+thp+prefault=256M").unwrap();
    assert_eq!(arm.name, "jemalloc+thp+prefault=256M");
    let settings: Vec<Setting> = arm.settings().into_iter().map(|(_, setting)| setting).collect();
    assert_eq!(
        settings,
        [
            Setting::Preload { library: Library::Jemalloc, source: Source::Any },
            Setting::Pages(Pages::Transparent),
            Setting::Prefault(256 << 20),
        ]
    );
    for (text, expected) in [
        (
            "glibc:arena_max=2,pthread.rseq=0",
            vec![("glibc.malloc.arena_max", "2"), ("glibc.pthread.rseq", "0")],
        ),
        ("glibc-arenas-few", vec![("glibc.malloc.arena_max", "2")]),
        ("glibc-arenas-few=4", vec![("glibc.malloc.arena_max", "4")]),
    ] {
        let tunables: Vec<(String, String)> = Arm::parse(text)
            .unwrap()
            .settings()
            .into_iter()
            .filter_map(|(_, setting)| match setting {
                Setting::Tunable { name, value } => Some((name, value)),
                _ => None,
            })
            .collect();
        let expected: Vec<_> = expected.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect();
        assert_eq!(tunables, expected, "{text}");
    }
    for (text, source) in [
        ("mimalloc@system", Source::System),
        ("mimalloc@bundled", Source::Bundled),
        ("mimalloc@2.1", Source::Version("2.1".into())),
        ("mimalloc@/opt/c++/libmimalloc.so", Source::Path("/opt/c++/libmimalloc.so".into())),
    ] {
        let settings = Arm::parse(text).unwrap().settings().remove(0).1;
        let library = Library::Mimalloc;
        assert_eq!(settings, Setting::Preload { library, source }, "{text}");
    }
}

#[test]
fn a_plus_within_a_value_belongs_to_it_unless_a_name_follows() {
    let texts = |text: &str| -> Vec<String> {
        let arm = Arm::parse(text).unwrap();
        arm.parts.into_iter().map(|part| part.text).collect()
    };
    assert_eq!(texts("env:JAVA_OPTS=-XX:+UseZGC"), ["env:JAVA_OPTS=-XX:+UseZGC"]);
    assert_eq!(texts("env:A=1+2+cpus=0"), ["env:A=1+2", "cpus=0"]);
    assert_eq!(texts("env:A=b+glibc:arena_max=2"), ["env:A=b", "glibc:arena_max=2"]);
    assert_eq!(texts("jemalloc@/x+y.so+thp"), ["jemalloc@/x+y.so", "thp"]);
}

#[test]
fn contradictions_are_refused_and_their_near_twins_are_not() {
    for (contradiction, words, twin) in [
        ("jemalloc+mimalloc", "both set the allocator", "jemalloc+thp"),
        ("jemalloc@system+jemalloc@bundled", "both set the allocator", "jemalloc+jemalloc"),
        (
            "glibc:arena_max=2+glibc:arena_max=4",
            "glibc.malloc.arena_max",
            "glibc:arena_max=2+glibc:arena_max=2",
        ),
        ("glibc:arena_max=2,arena_max=4", "twice", "glibc:arena_max=2,top_pad=4"),
        (
            "glibc-arenas-few+glibc:arena_max=8",
            "glibc.malloc.arena_max",
            "glibc-arenas-few+glibc:top_pad=64M",
        ),
        ("jemalloc+glibc:arena_max=2", "jemalloc replaces that allocator", "jemalloc+glibc:pthread.rseq=0"),
        ("mimalloc+glibc-keep-memory", "mimalloc replaces that allocator", "glibc+glibc-keep-memory"),
        ("mimalloc+jemalloc-decay", "acts on jemalloc", "jemalloc+jemalloc-decay"),
        (
            "cpython-mimalloc-huge+pythonmalloc=malloc",
            "PYTHONMALLOC",
            "cpython-mimalloc-huge+pythonmalloc=mimalloc",
        ),
        ("pythonmalloc=malloc+pythonmalloc=debug", "PYTHONMALLOC", "pythonmalloc=malloc+jemalloc"),
        ("pymalloc-hugepages+pythonmalloc=malloc", "PYTHONMALLOC", "pymalloc-hugepages+jemalloc"),
        (
            "pymalloc-hugepages+env:ALLOCWALL_HUGEPAGES=collapse",
            "ALLOCWALL_HUGEPAGES",
            "pymalloc-hugepages+env:ALLOCWALL_HUGEPAGES=1",
        ),
        ("thp+hugetlb", "the heap's pages", "thp+thp"),
        ("tcmalloc+thp", "tcmalloc has no setting", "mimalloc+thp"),
        ("jemalloc+hugetlb", "jemalloc has no setting", "mimalloc+hugetlb"),
        ("cpus=0+cpus=1", "the CPUs", "cpus=0+nodes=0"),
        ("nodes=0+nodes=1", "the nodes", "nodes=0,1"),
        ("prefault=1M+prefault=2M", "the size of the prefault", "prefault=1M+prefault=1024K"),
        ("gogc+jvm-thp", "use only one of the two", "gogc+gomemlimit=2G"),
        ("mimalloc-musl+glibc:top_pad=1M", "acts on", "mimalloc-musl+cpus=0"),
        ("env:LD_PRELOAD=/x.so+jemalloc", "one replaces LD_PRELOAD", "env:LD_LIBRARY_PATH=/x+jemalloc"),
        (
            "env:GLIBC_TUNABLES=a+glibc:arena_max=2",
            "one replaces GLIBC_TUNABLES",
            "env:MALLOC_ARENA_MAX=2+glibc:top_pad=1M",
        ),
        ("env:A=1+env:A=2", "both set A", "env:A=1+env:B=2"),
        (
            "env:MALLOC_ARENA_MAX=1+glibc-arenas-free",
            "MALLOC_ARENA_MAX",
            "env:MALLOC_TRIM_THRESHOLD_=1+glibc-arenas-free",
        ),
        ("jvm-heap=1G+jvm-heap=2G", "-Xmx", "jvm-heap=1G+jvm-pretouch=1G"),
        ("jemalloc-decay=10+jemalloc-decay=20", "dirty_decay_ms", "jemalloc-decay+jemalloc-thp"),
        ("none+thp", "can't be combined", "none"),
    ] {
        let line = line(contradiction);
        assert!(line.contains(words), "{contradiction}: {line}");
        assert!(Arm::parse(twin).is_ok(), "{twin}: {:?}", Arm::parse(twin).err());
    }
}

#[test]
fn an_invalid_name_or_value_is_refused_in_one_line() {
    for (text, words) in [
        ("jemaloc", "nearest: jemalloc"),
        ("arena_max=2", "glibc:arena_max=VALUE"),
        ("", "the name of a remedy is empty"),
        ("jemalloc+", "the name of a remedy is empty"),
        ("quota", "can't be set when a program starts"),
        ("thp=1", "takes no value"),
        ("cpus", "cpus=LIST"),
        ("cpus=a", "give a list"),
        ("cpus=", "give a list"),
        ("prefault=0", "give a size"),
        ("prefault=1.5G", "give a size"),
        ("gogc=0", "from 1 to"),
        ("pythonmalloc=jemalloc", "pymalloc"),
        ("jemalloc=5", "with @SOURCE"),
        ("jemalloc@home", "unknown source"),
        ("thp@system", "takes no @SOURCE"),
        ("glibc:arena_max", "NAME=VALUE"),
        ("glibc:=2", "NAME=VALUE"),
        ("glibc:arena_max=1:glibc.malloc.check=3", "NAME=VALUE"),
        ("env:A", "NAME=VALUE"),
        ("pymalloc-hugepages=2", "takes no value"),
        ("\u{1b}[31m", "no remedy"),
    ] {
        let line = line(text);
        assert!(line.contains(words), "{text}: {line}");
    }
}

#[test]
fn every_applicable_key_can_be_typed() {
    for remedy in TABLE.iter().filter(|remedy| remedy.start.is_some()) {
        let arm = typed(remedy);
        assert_eq!(arm.parts[0].remedy.key, remedy.key);
    }
}

/// A remedy with some value, where it takes one.
fn typed(remedy: &Remedy) -> Arm {
    let text = remedy
        .usage()
        .replace("[=SIZE]", "")
        .replace("[=N]", "")
        .replace("[=LIST]", "")
        .replace("[@SOURCE]", "")
        .replace("[,NAME=VALUE…]", "")
        .replace("NAME=VALUE", "arena_max=2")
        .replace("=SIZE", "=1M")
        .replace("=LIST", "=0")
        .replace("=NAME", "=malloc")
        .replace("=N", "=16");
    Arm::parse(&text).expect(&text)
}

// ---- resolving, against constructed facts ----

fn view(kind: ElfKind) -> FileView {
    FileView {
        kind,
        machine: 62,
        is_64: true,
        interpreter: Some("/lib64/ld-linux-x86-64.so.2".into()),
        needed: vec!["libc.so.6".into()],
        serves_malloc: false,
        allocators: Vec::new(),
        allocator_version: None,
        has_cpu_caches: false,
        jemalloc_variable: None,
        libc: None,
        runtime: None,
    }
}

/// `service --port 1`, a native program with glibc 2.36.
fn facts() -> TargetFacts {
    let libc: PathBuf = "/lib/libc.so.6".into();
    TargetFacts {
        command: ["service", "--port", "1"].map(OsString::from).to_vec(),
        environment: Vec::new(),
        programs: vec![Program {
            path: "/usr/bin/service".into(),
            place: Some(0),
            view: view(ElfKind::PieExecutable),
            libc: Ok(Libc::Glibc { version: "2.36".into() }),
            libc_file: Some(libc.clone()),
            runtime: Ok(Runtime::Native),
            allocator: Ok((AllocatorKind::Glibc, Some(libc))),
            raised: None,
            start_files: None,
        }],
        beyond: None,
        env_cleared: false,
        env_changed: Vec::new(),
        tunables: parse_list(
            b"glibc.malloc.arena_max: 0x0 (min: 0x1, max: 0xffffffffffffffff)\n\
            glibc.malloc.top_pad: 0x0 (min: 0x0, max: 0xffffffffffffffff)\n\
            glibc.malloc.tcache_count: 0x0 (min: 0x0, max: 0xffffffffffffffff)\n\
            glibc.malloc.mmap_threshold: 0x0 (min: 0x0, max: 0xffffffffffffffff)\n\
            glibc.malloc.trim_threshold: 0x0 (min: 0x0, max: 0xffffffffffffffff)\n\
            glibc.malloc.perturb: 0 (min: 0, max: 255)\n\
            glibc.malloc.hugetlb: 0x0 (min: 0x0, max: 0xffffffffffffffff)\n",
        ),
    }
}

fn with_variable(name: &str, value: &str) -> TargetFacts {
    TargetFacts { environment: vec![(name.into(), value.into())], ..facts() }
}

fn with_program(change: impl FnOnce(&mut Program)) -> TargetFacts {
    let mut facts = facts();
    change(&mut facts.programs[0]);
    facts
}

/// Two CPUs on one node, no library.
fn inventory() -> Inventory {
    let cpu = |id| Cpu { id, siblings: Ok(vec![id]), l3: Ok(vec![0, 1]), node: 0 };
    Inventory {
        installed: Vec::new(),
        bundled: Vec::new(),
        prefault: Err(Absence::new(Reason::NotSupported, "no such library")),
        topology: Ok(Topology { cpus: vec![cpu(0), cpu(1)] }),
        allowed_cpus: Ok(vec![0, 1]),
        memory_nodes: Ok(vec![0]),
        thp: Ok("madvise".into()),
        reserved_pages: Ok(0),
        available_bytes: Ok(1 << 30),
        debian: Ok(12),
    }
}

fn resolve(text: &str, inventory: &Inventory, facts: &TargetFacts) -> Result<Applied, Refusal> {
    Arm::parse(text).expect(text).resolve(inventory, facts)
}

fn env(applied: &Applied) -> Vec<(String, Option<String>)> {
    let text = |word: &OsString| word.to_string_lossy().into_owned();
    applied.env.iter().map(|(name, value)| (text(name), value.as_ref().map(text))).collect()
}

fn set(name: &str, value: &str) -> (String, Option<String>) {
    (name.to_owned(), Some(value.to_owned()))
}

#[test]
fn list_variables_keep_their_present_entries() {
    for (text, held, becomes) in [
        (
            "glibc:arena_max=2",
            ("GLIBC_TUNABLES", "glibc.malloc.perturb=1:glibc.malloc.arena_max=8"),
            "glibc.malloc.perturb=1:glibc.malloc.arena_max=2",
        ),
        (
            "jemalloc-decay=500",
            ("MALLOC_CONF", "narenas:4,dirty_decay_ms:1"),
            "narenas:4,background_thread:true,dirty_decay_ms:500,muzzy_decay_ms:0",
        ),
        ("jvm-thp", ("JAVA_TOOL_OPTIONS", "-Da=b"), "-Da=b -XX:+UseTransparentHugePages"),
        ("node-heap=512", ("NODE_OPTIONS", "--a"), "--a --max-old-space-size=512"),
    ] {
        let mut facts = with_variable(held.0, held.1);
        // An unknown program, so that remedies for every runtime apply.
        facts.beyond = Some(Absence::new(Reason::NotApplicable, "a shell decides"));
        let applied = resolve(text, &inventory(), &facts).expect(text);
        assert_eq!(env(&applied), [set(held.0, becomes)], "{text}");
        assert!(applied.expects.contains(&Expectation::Environment(held.0.into(), becomes.into())), "{text}");
    }
}

#[test]
fn a_preset_sets_its_tunables_and_removes_a_conflicting_variable() {
    let applied = resolve("glibc-keep-memory", &inventory(), &facts()).unwrap();
    let both = "glibc.malloc.mmap_threshold=268435456:glibc.malloc.trim_threshold=268435456";
    assert_eq!(env(&applied), [set("GLIBC_TUNABLES", both)]);
    let facts = with_variable("MALLOC_ARENA_MAX", "2");
    let applied = resolve("glibc-arenas-free", &inventory(), &facts).unwrap();
    // Two CPUs, eight arenas each.
    let arenas = set("GLIBC_TUNABLES", "glibc.malloc.arena_max=16");
    assert_eq!(env(&applied), [arenas, ("MALLOC_ARENA_MAX".to_owned(), None)]);
}

/// A CPython with these files in its site packages.
fn python(version: &str, free_threaded: bool, files: Measured<Vec<String>>) -> TargetFacts {
    with_program(|program| {
        program.path = "/v/bin/python3".into();
        program.runtime = Ok(Runtime::Cpython { version: version.to_owned(), free_threaded });
        program.start_files = Some(files);
    })
}

#[test]
fn the_arena_hook_is_switched_on_where_its_package_is() {
    const KEY: &str = "pymalloc-hugepages";
    let files = |name: &str| Ok(vec!["distutils-precedence.pth".to_owned(), name.to_owned()]);
    let here = python("3.11", false, files("allocwall.pth"));
    let applied = resolve(KEY, &inventory(), &here).unwrap();
    assert_eq!(env(&applied), [set("ALLOCWALL_HUGEPAGES", "1")]);
    assert!(applied.expects.contains(&Expectation::ArenasHuge));
    assert!(!applied.expects.contains(&Expectation::HugeResident));
    assert!(applied.notes.is_empty());
    let mut debugged = here.clone();
    debugged.environment = vec![("PYTHONMALLOC".into(), "debug".into())];
    let applied = resolve(KEY, &inventory(), &debugged).unwrap();
    assert!(applied.env.contains(&("PYTHONMALLOC".into(), None)));
    // Unknown start files: the arm is applied, with a note.
    let unknown = Err(Absence::new(Reason::NotFound, "another layout"));
    let applied = resolve(KEY, &inventory(), &python("3.11", false, unknown)).unwrap();
    assert!(applied.notes[0].contains("another layout"), "{:?}", applied.notes);
    let mut small = here.clone();
    small.programs[0].view.is_64 = false;
    let mut never = inventory();
    never.thp = Ok("never".into());
    for (facts, inventory, words) in [
        (python("3.11", false, files("allocwall-other.pth")), inventory(), "/v/bin/python3 -m pip install "),
        (python("3.8", false, files("allocwall.pth")), inventory(), "needs CPython 3.9 or later"),
        (python("3.13", true, files("allocwall.pth")), inventory(), "cpython-nogil-huge"),
        (small, inventory(), "32-bit"),
        (here, never, "mode never"),
        (facts(), inventory(), "needs CPython"),
    ] {
        let line = resolve(KEY, &inventory, &facts).unwrap_err().to_string();
        assert!(line.contains(words) && !line.contains('\n'), "{line}");
    }
}

#[test]
fn huge_pages_use_the_setting_of_the_allocator() {
    let jemalloc = with_program(|p| p.allocator = Ok((AllocatorKind::Jemalloc, None)));
    let mimalloc = with_program(|p| p.allocator = Ok((AllocatorKind::Mimalloc, Some("/x.so".into()))));
    let preloaded = with_variable("LD_PRELOAD", "/lib/libmimalloc.so.2");
    for (facts, becomes) in [
        (facts(), set("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")),
        (jemalloc, set("MALLOC_CONF", "thp:always,metadata_thp:auto")),
        (mimalloc, set("MIMALLOC_ALLOW_LARGE_OS_PAGES", "1")),
        (preloaded, set("MIMALLOC_ALLOW_LARGE_OS_PAGES", "1")),
    ] {
        let applied = resolve("thp", &inventory(), &facts).unwrap();
        assert_eq!(env(&applied), [becomes]);
        assert!(applied.expects.contains(&Expectation::HugeResident));
    }
    let prefixed = with_program(|p| {
        p.allocator = Ok((AllocatorKind::Jemalloc, None));
        p.view.jemalloc_variable = Some("_RJEM_MALLOC_CONF".into());
    });
    let applied = resolve("thp", &inventory(), &prefixed).unwrap();
    assert_eq!(env(&applied)[0].0, "_RJEM_MALLOC_CONF");
    let mut reserved = inventory();
    reserved.reserved_pages = Ok(64);
    let applied = resolve("hugetlb", &reserved, &facts()).unwrap();
    assert_eq!(env(&applied), [set("GLIBC_TUNABLES", "glibc.malloc.hugetlb=2")]);
}

#[test]
fn options_follow_the_program_and_nodes_bind_their_cpus() {
    let mut java = with_program(|p| {
        p.runtime = Ok(Runtime::Jvm { version: None });
        p.place = Some(1);
    });
    java.command = ["nohup", "java", "-jar", "x.jar"].map(OsString::from).to_vec();
    let applied = resolve("jvm-heap=2G", &inventory(), &java).unwrap();
    assert_eq!(applied.command, ["nohup", "java", "-Xmx2147483648", "-jar", "x.jar"]);
    java.programs[0].place = None;
    let refused = resolve("jvm-heap=2G", &inventory(), &java).unwrap_err();
    assert!(refused.0.contains("script"), "{refused}");

    let applied = resolve("nodes=0", &inventory(), &facts()).unwrap();
    assert_eq!((applied.nodes, applied.cpus), (Some(vec![0]), Some(vec![0, 1])));
    let applied = resolve("nodes=0+cpus=1", &inventory(), &facts()).unwrap();
    assert_eq!(applied.cpus, Some(vec![1]));
    assert_eq!(applied.expects, [Expectation::Cpus(vec![1]), Expectation::Nodes(vec![0])]);
}

/// Of two options with one name the last counts: without this, the arm would be the baseline.
#[test]
fn an_option_of_the_command_that_sets_the_same_is_left_out() {
    let node = || Runtime::Node { version: None };
    let java = || Runtime::Jvm { version: None };
    for (runtime, arm, command, expected, left_out) in [
        (
            node(),
            "node-semi-space",
            "node --inspect --max_semi_space_size=2 app.js",
            "node --max-semi-space-size=64 --inspect app.js",
            Some("--max_semi_space_size=2"),
        ),
        (
            java(),
            "jvm-heap=2G",
            "java -cp lib -Xmx48m Service -Xmx1",
            "java -Xmx2147483648 -cp lib Service -Xmx1",
            Some("-Xmx48m"),
        ),
        (
            java(),
            "jvm-heap=2G",
            "java -XX:MaxHeapSize=1g -jar x.jar",
            "java -Xmx2147483648 -jar x.jar",
            Some("-XX:MaxHeapSize=1g"),
        ),
        // An option after the name of the program is the program's own.
        (
            node(),
            "node-semi-space",
            "node app.js --max-semi-space-size=2",
            "node --max-semi-space-size=64 app.js --max-semi-space-size=2",
            None,
        ),
        (
            node(),
            "node-semi-space",
            "node --max-old-space-size=200 app.js",
            "node --max-semi-space-size=64 --max-old-space-size=200 app.js",
            None,
        ),
    ] {
        let mut facts = with_program(|program| program.runtime = Ok(runtime));
        facts.command = command.split(' ').map(OsString::from).collect();
        let applied = resolve(arm, &inventory(), &facts).unwrap();
        let expected: Vec<OsString> = expected.split(' ').map(OsString::from).collect();
        assert_eq!(applied.command, expected, "{command}");
        let notes: Vec<bool> =
            applied.notes.iter().map(|note| left_out.is_some_and(|word| note.starts_with(word))).collect();
        assert_eq!(notes, vec![true; usize::from(left_out.is_some())], "{command}: {:?}", applied.notes);
    }
}

/// A machine and a command, one of which differs from the default.
struct Twist {
    machine: Inventory,
    facts: TargetFacts,
}

fn on(facts: TargetFacts) -> Twist {
    Twist { machine: inventory(), facts }
}

#[test]
fn an_arm_that_cannot_apply_is_refused_and_its_near_twin_is_not() {
    let musl = || with_program(|p| p.libc = Ok(Libc::Musl { version: None }));
    let fixed = || {
        with_program(|p| {
            p.view = view(ElfKind::StaticExecutable);
            p.libc = Ok(Libc::Static);
            p.allocator = Err(Absence::new(Reason::NotFound, "stripped"));
        })
    };
    let go = || with_program(|p| p.runtime = Ok(Runtime::Go { version: None }));
    let machine = |change: fn(&mut Inventory)| {
        let mut inventory = inventory();
        change(&mut inventory);
        Twist { machine: inventory, facts: facts() }
    };
    let never = || machine(|i| i.thp = Ok("never".into()));
    let raised = || with_program(|p| p.raised = Some(RaisedRights::SetUser));
    let raised_with_jemalloc = || {
        with_program(|p| {
            p.raised = Some(RaisedRights::SetUser);
            p.allocator = Ok((AllocatorKind::Jemalloc, Some("/lib/libjemalloc.so.2".into())));
        })
    };
    let capable = || with_program(|p| p.raised = Some(RaisedRights::Capabilities));
    let unknown_libc = || {
        with_program(|p| {
            p.libc = Err(Absence::new(Reason::NotFound, "/opt/libc.so.6: No such file or directory"));
            p.libc_file = None;
        })
    };
    let old = || with_program(|p| p.libc = Ok(Libc::Glibc { version: "2.31".into() }));
    let python = |version: &str| {
        let version = version.to_owned();
        with_program(|p| p.runtime = Ok(Runtime::Cpython { version, free_threaded: false }))
    };
    let cleared = || TargetFacts { env_cleared: true, ..facts() };
    let changed = || TargetFacts { env_changed: vec!["GLIBC_TUNABLES".into()], ..facts() };
    for (arm, twist, words) in [
        ("glibc:arena_max=2", on(musl()), "is linked with musl"),
        ("glibc-keep-memory", on(musl()), "musl"),
        ("jemalloc", on(fixed()), "statically linked"),
        ("jemalloc", on(go()), "Go program"),
        ("prefault=1M", on(fixed()), "statically linked"),
        ("glibc:arena_max=2", on(fixed()), "statically linked"),
        ("glibc:arena_max=2", on(raised()), "setuid"),
        ("env:A=b", on(raised()), "setuid"),
        ("env:A=b", on(capable()), "/usr/bin/service has file capabilities, so its loader"),
        (
            "glibc",
            on(raised_with_jemalloc()),
            "glibc sets LD_PRELOAD, but /usr/bin/service has setuid rights, so its loader",
        ),
        ("glibc", on(unknown_libc()), "the C library of service is unknown: /opt/libc.so.6"),
        ("thp", never(), "mode never"),
        ("thp", machine(|i| i.thp = Ok("defer".into())), "unknown mode of transparent huge pages"),
        ("glibc-hugetlb", never(), "mode never"),
        ("glibc:hugetlb=1", never(), "mode never"),
        ("hugetlb", machine(|_| {}), "no reserved huge page"),
        ("glibc-keep-memory", on(old()), "needs glibc 2.36"),
        ("glibc-keep-memory-32m", on(facts()), "before 2.36"),
        ("glibc:nonsense=1", on(facts()), "has no tunable glibc.malloc.nonsense"),
        ("glibc:arena_mx=1", on(facts()), "nearest: arena_max"),
        ("glibc:arena_max=0", on(facts()), "1 to 2^64 - 1"),
        ("glibc:perturb=256", on(facts()), "0 to 255"),
        ("glibc:tcache_count=65536", on(facts()), "above 65535"),
        ("cpus=9", on(facts()), "CPU 9 is not online; the online CPUs are 0,1"),
        ("cpus=1", machine(|i| i.allowed_cpus = Ok(vec![0])), "may not use CPU 1"),
        ("nodes=3", on(facts()), "no NUMA node 3"),
        ("numa-bind", on(facts()), "needs a machine with more than one NUMA node"),
        ("gogc", on(facts()), "Python, Java, Go nor Node; to set the variable anyway, use env:GOGC=VALUE"),
        ("jvm-heap=1G", on(python("3.12.1")), "is CPython"),
        ("pythonmalloc=mimalloc", on(python("3.12.1")), "3.13"),
        ("cpython-mimalloc-huge", on(python("3.12.1")), "3.13"),
        ("prefault=4G", on(facts()), "1024 MiB of memory"),
        ("prefault=1M", on(facts()), "no such library"),
        ("jemalloc", on(facts()), "sudo apt install libjemalloc2"),
        ("jemalloc@bundled", on(facts()), "this build does not include the library"),
        ("jemalloc-decay", on(facts()), "add the allocator to the arm"),
        ("glibc:arena_max=2", on(cleared()), "env -i"),
        ("env:PATH=/x", on(facts()), "give the path of the command"),
        ("glibc:arena_max=2", on(changed()), "`env` in the command also sets or removes GLIBC_TUNABLES"),
    ] {
        let outcome = resolve(arm, &twist.machine, &twist.facts);
        let line = outcome.expect_err(arm).to_string();
        assert!(line.contains(words) && !line.contains('\n'), "{arm}: {line}");
    }
    // The twins: the same arms where they apply, and arms that the condition does not affect.
    for (arm, facts) in [
        ("glibc:arena_max=2", facts()),
        ("glibc:perturb=255", facts()),
        ("glibc:tcache_count=65535", facts()),
        ("glibc-keep-memory", facts()),
        ("glibc-keep-memory-32m", old()),
        ("cpus=0", raised()),
        // It uses glibc's malloc already, so nothing is set.
        ("glibc", raised()),
        ("cpus=0,1", musl()),
        ("env:A=b", fixed()),
        ("env:GOGC=200", facts()),
        ("gogc", go()),
        ("thp", facts()),
        ("pythonmalloc=malloc", python("3.12.1")),
        ("pythonmalloc=mimalloc", python("3.13.0")),
        ("none", facts()),
    ] {
        assert!(
            resolve(arm, &inventory(), &facts).is_ok(),
            "{arm}: {:?}",
            resolve(arm, &inventory(), &facts)
        );
    }
}

#[test]
fn without_a_list_tunables_are_not_checked_and_a_note_says_so() {
    let mut facts = facts();
    facts.tunables = Err(Absence::new(Reason::NotSupported, "glibc lists them since 2.33"));
    let applied = resolve("glibc:arena_max=2,trim_threshold=1M", &inventory(), &facts).unwrap();
    let both = "glibc.malloc.arena_max=2:glibc.malloc.trim_threshold=1048576";
    assert_eq!(env(&applied), [set("GLIBC_TUNABLES", both)]);
    assert_eq!(applied.notes.len(), 2);
    assert!(applied.notes[0].contains("arena_max") && applied.notes[0].contains("2.33"));
    assert!(resolve("glibc:arena_max=2", &inventory(), &self::facts()).unwrap().notes.is_empty());
}

#[test]
fn an_arm_behind_a_shell_is_judged_only_by_its_proof() {
    let mut facts = facts();
    facts.beyond = Some(Absence::new(Reason::NotApplicable, "a shell decides which program it starts"));
    assert!(resolve("gogc", &inventory(), &facts).is_ok());
    assert!(resolve("glibc:arena_max=2", &inventory(), &facts).is_ok());
    let line = resolve("thp", &inventory(), &facts).unwrap_err().to_string();
    assert!(line.contains("glibc+thp") && line.contains("a shell decides"), "{line}");
    assert!(resolve("glibc+thp", &inventory(), &facts).is_ok());
}

#[test]
fn the_same_as_a_shell_line() {
    let shell = |arm: &str, facts: &TargetFacts| resolve(arm, &inventory(), facts).unwrap().shell_line();
    assert_eq!(shell("none", &facts()), "service --port 1");
    assert_eq!(
        shell("glibc:arena_max=2", &facts()),
        "GLIBC_TUNABLES=glibc.malloc.arena_max=2 service --port 1"
    );
    assert_eq!(
        shell("nodes=0+env:A=x y", &facts()),
        "taskset -c 0,1 numactl --membind=0 env A='x y' service --port 1"
    );
    assert_eq!(
        shell("glibc-arenas-free", &with_variable("MALLOC_ARENA_MAX", "1")),
        "env -u MALLOC_ARENA_MAX GLIBC_TUNABLES=glibc.malloc.arena_max=16 service --port 1"
    );
    let mut odd = facts();
    odd.command.push("it's\n\u{1b}[31m".into());
    assert!(shell("none", &odd).ends_with(r"$'it\'s\012\033[31m'"), "{}", shell("none", &odd));
}

/// Preloads need a library, so they are checked with the real programs.
#[test]
fn a_remedy_is_checked_by_the_proofs_that_it_names() {
    let machine = Inventory { memory_nodes: Ok(vec![0, 1]), reserved_pages: Ok(64), ..inventory() };
    let of_runtime = |runtime| with_program(|p| p.runtime = Ok(runtime));
    let programs = [
        facts(),
        with_program(|p| p.libc = Ok(Libc::Glibc { version: "2.31".into() })),
        with_program(|p| p.allocator = Ok((AllocatorKind::Jemalloc, None))),
        with_program(|p| p.allocator = Ok((AllocatorKind::Mimalloc, None))),
        of_runtime(Runtime::Jvm { version: None }),
        of_runtime(Runtime::Go { version: None }),
        of_runtime(Runtime::Node { version: None }),
        python("3.13", false, Ok(vec![ARENA_HOOK_FILES[0].to_owned()])),
        python("3.13", true, Ok(vec![])),
    ];
    for remedy in TABLE.iter().filter(|remedy| remedy.start.is_some()) {
        let named = remedy.proofs();
        if named.contains(&Proof::Preload) || named.contains(&Proof::Prefault) {
            continue;
        }
        let applied = programs.iter().find_map(|facts| typed(remedy).resolve(&machine, facts).ok());
        let expects = applied.unwrap_or_else(|| panic!("{} fits no program", remedy.key)).expects;
        let checked = expects.iter().map(|expectation| match expectation {
            Expectation::Environment(..) if named.contains(&Proof::Tunables) => Proof::Tunables,
            Expectation::Environment(..) => Proof::Variable,
            Expectation::MallocFrom(_) => Proof::CLibrary,
            Expectation::CommandLine(_) => Proof::CommandLine,
            Expectation::HugeResident => Proof::HugePages,
            Expectation::ArenasHuge => Proof::Arenas,
            Expectation::Cpus(_) => Proof::Cpus,
            Expectation::Nodes(_) => Proof::Nodes,
            other => panic!("{}: {other:?}", remedy.key),
        });
        assert_eq!(checked.collect::<BTreeSet<_>>(), named, "{}", remedy.key);
    }
}

// ---- resolving, against this machine ----

fn live() -> Inventory {
    Inventory::of(&Machine::live(), Vec::new(), None)
}

fn real(words: &[&str]) -> TargetFacts {
    let words: Vec<OsString> = words.iter().map(OsString::from).collect();
    let environment: Vec<(OsString, OsString)> =
        std::env::vars_os().filter(|(name, _)| name == "PATH" || name == "HOME").collect();
    TargetFacts::of(&words, &environment).unwrap_or_else(|refusal| panic!("{words:?}: {refusal}"))
}

/// None, with a `skipped:` line, if this machine does not have the program.
fn need(program: &str) -> Option<&str> {
    let there = Path::new(program).exists();
    if !there {
        println!("skipped: no {program}");
    }
    there.then_some(program)
}

#[test]
fn real_programs_are_recognised() {
    if let Some(python) = need("/usr/bin/python3") {
        let facts = real(&[python, "-c", "pass"]);
        let program = facts.certain().unwrap();
        assert!(matches!(program.runtime, Ok(Runtime::Cpython { .. })), "{:?}", program.runtime);
        assert!(matches!(program.libc, Ok(Libc::Glibc { .. })));
        assert_eq!(program.allocator_kind(), Some(AllocatorKind::Glibc));
        assert!(resolve("pythonmalloc=malloc", &live(), &facts).is_ok());
        assert!(resolve("jvm-thp", &live(), &facts).unwrap_err().0.contains("is CPython"));
    }
    if let Some(redis) = need("/usr/bin/redis-server") {
        let facts = real(&[redis]);
        // Debian's is linked with the system's jemalloc.
        assert_eq!(facts.certain().unwrap().allocator_kind(), Some(AllocatorKind::Jemalloc));
        let line = resolve("glibc:arena_max=2", &live(), &facts).unwrap_err().0;
        assert!(line.contains("jemalloc") && line.contains("glibc+glibc:arena_max=2"), "{line}");
        let applied = resolve("glibc+glibc:arena_max=2", &live(), &facts).unwrap();
        // No count of calls is expected for glibc: a libc always serves its own calls.
        let counted = |e: &Expectation| matches!(e, Expectation::Serves(_));
        assert!(!applied.expects.iter().any(counted));
        let preload = applied.env.iter().find(|(name, _)| name == "LD_PRELOAD").unwrap();
        assert!(preload.1.as_ref().unwrap().to_string_lossy().ends_with("libc.so.6"));
    }
    if let Some(java) = need("/usr/bin/java") {
        let facts = real(&[java, "-version"]);
        assert!(matches!(facts.certain().unwrap().runtime, Ok(Runtime::Jvm { .. })));
    }
    if let Some(node) = need("/usr/bin/node") {
        let facts = real(&[node, "x.js"]);
        assert!(matches!(facts.certain().unwrap().runtime, Ok(Runtime::Node { .. })));
        let applied = resolve("node-semi-space", &live(), &facts).unwrap();
        assert_eq!(applied.command, [node, "--max-semi-space-size=64", "x.js"]);
    }
    if let Some(go) = need("/usr/local/go/bin/go") {
        let facts = real(&[go, "version"]);
        assert!(matches!(facts.certain().unwrap().runtime, Ok(Runtime::Go { .. })));
        assert!(resolve("gogc", &live(), &facts).is_ok());
        let line = resolve("glibc+cpus=0", &live(), &facts).unwrap_err().0;
        assert!(line.contains("Go program"), "{line}");
    }
    if let Some(su) = need("/usr/bin/su") {
        let facts = real(&[su, "--help"]);
        assert_eq!(facts.certain().unwrap().raised, Some(RaisedRights::SetUser));
        assert!(resolve("env:A=b", &live(), &facts).unwrap_err().0.contains("setuid"));
        // A program that uses glibc's malloc is started without a change.
        assert!(resolve("glibc", &live(), &facts).unwrap().env.is_empty());
        // Any library with a malloc takes the place of jemalloc's here.
        let libc = facts.certain().unwrap().libc_file.clone().unwrap();
        let arm = format!("jemalloc@{}", libc.display());
        assert_eq!(
            resolve(&arm, &live(), &facts).unwrap_err().0,
            format!(
                "{arm} sets LD_PRELOAD, but {su} has setuid rights, so its loader ignores such variables"
            )
        );
    }
}

#[test]
fn a_static_program_built_here_is_refused_and_its_dynamic_twin_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("main.c");
    std::fs::write(&source, "#include <stdlib.h>\nint main(void) { free(malloc(1)); return 0; }\n").unwrap();
    let build = |name: &str, option: &[&str]| -> Option<String> {
        let out = folder.path().join(name);
        let built =
            Command::new("cc").arg(&source).arg("-o").arg(&out).args(option).stderr(Stdio::null()).status();
        let built = built.is_ok_and(|status| status.success());
        if !built {
            println!("skipped: no C compiler that builds {name}");
        }
        built.then(|| out.to_string_lossy().into_owned())
    };
    let jemalloc = live().installed.iter().any(|found| found.kind == AllocatorKind::Jemalloc);
    if let Some(program) = build("static", &["-static"]) {
        let facts = real(&[&program]);
        assert_eq!(facts.certain().unwrap().libc, Ok(Libc::Static));
        assert!(resolve("jemalloc", &live(), &facts).unwrap_err().0.contains("statically linked"));
    }
    let Some(program) = build("dynamic", &[]) else {
        return;
    };
    let facts = real(&[&program]);
    if !jemalloc {
        println!("skipped in part: no jemalloc is installed");
    } else {
        let applied = resolve("jemalloc", &live(), &facts).unwrap();
        for wanted in [Expectation::MallocFrom, Expectation::Serves] {
            let library = applied.env[0].1.clone().unwrap();
            assert!(applied.expects.contains(&wanted(library.into())));
        }
        wrong_libraries(folder.path(), &facts);
    }
}

#[test]
fn glibc_remedies_are_refused_for_programs_with_musl() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("main.c");
    std::fs::write(&source, "#include <stdlib.h>\nint main(void) { free(malloc(1)); return 0; }\n").unwrap();
    for options in [&[][..], &["-static"]] {
        let out = folder.path().join("program");
        let built = Command::new("musl-gcc")
            .arg(&source)
            .arg("-o")
            .arg(&out)
            .args(options)
            .stderr(Stdio::null())
            .status();
        if !built.is_ok_and(|status| status.success()) {
            return println!("skipped: no musl-gcc");
        }
        let facts = real(&[out.to_str().unwrap()]);
        for arm in ["glibc:arena_max=2", "glibc-keep-memory", "thp", "glibc", "jemalloc"] {
            assert!(resolve(arm, &live(), &facts).is_err(), "{arm} {options:?}");
        }
        assert!(resolve("env:A=b+cpus=0", &live(), &facts).is_ok());
        let is_dynamic = options.is_empty();
        let libc = &facts.certain().unwrap().libc;
        assert_eq!(matches!(libc, Ok(Libc::Musl { .. })), is_dynamic, "{libc:?}");
        let mimalloc = live().installed.iter().any(|found| found.kind == AllocatorKind::Mimalloc);
        if is_dynamic && mimalloc {
            let line = resolve("mimalloc-musl", &live(), &facts).unwrap_err().0;
            assert!(line.contains("glibc"), "{line}");
        }
    }
}

/// A library for another machine: a copy whose ELF header has another e_machine (offset 18).
fn wrong_libraries(folder: &Path, facts: &TargetFacts) {
    let installed = live().installed;
    let library = installed.iter().find(|found| found.kind == AllocatorKind::Jemalloc).unwrap();
    let mut bytes = std::fs::read(&library.path).unwrap();
    let copy = folder.join("libjemalloc.so.2");
    std::fs::write(&copy, &bytes).unwrap();
    let shown = copy.to_str().unwrap();
    let arm = format!("jemalloc@{shown}");
    assert!(resolve(&arm, &live(), facts).is_ok());
    let other: u16 = if bytes[18] == 183 { 62 } else { 183 };
    bytes[18..20].copy_from_slice(&other.to_le_bytes());
    std::fs::write(&copy, &bytes).unwrap();
    let line = resolve(&arm, &live(), facts).unwrap_err().0;
    assert!(line.contains(if other == 183 { "aarch64" } else { "x86-64" }), "{line}");
    // A library that fits is found after one that doesn't.
    let mut inventory = inventory();
    inventory.installed.push(InstalledAllocator {
        kind: AllocatorKind::Jemalloc,
        path: copy.clone(),
        version: None,
    });
    assert!(resolve("jemalloc", &inventory, facts).is_err());
    inventory.bundled.push(BundledLibrary {
        kind: AllocatorKind::Jemalloc,
        version: "5.3.1".into(),
        path: library.path.clone(),
    });
    for arm in ["jemalloc", "jemalloc@bundled", "jemalloc@5.3", "jemalloc@5.3.1"] {
        let applied = resolve(arm, &inventory, facts).unwrap();
        assert_eq!(applied.expects[0], Expectation::Mapped(library.path.clone()), "{arm}");
    }
    for arm in ["jemalloc@system", "jemalloc@5.3.10", "jemalloc@5.2"] {
        assert!(resolve(arm, &inventory, facts).is_err(), "{arm}");
    }
    // The prefault library comes after the allocator whose heap it touches; both come before the present entries.
    let mut preloaded = facts.clone();
    preloaded.environment.push(("LD_PRELOAD".into(), "/x.so /y.so".into()));
    let arm_of_both = format!("jemalloc@{}+prefault=1M", library.path.display());
    inventory.prefault =
        facts.certain().unwrap().libc_file.clone().ok_or_else(|| Absence::new(Reason::NotFound, ""));
    let applied = resolve(&arm_of_both, &inventory, &preloaded).unwrap();
    let prefault = inventory.prefault.clone().unwrap();
    let list = format!("{}:{}:/x.so:/y.so", library.path.display(), prefault.display());
    assert_eq!(env(&applied), [set("ALLOCWALL_PREFAULT", "1048576"), set("LD_PRELOAD", &list)]);
    assert!(applied.expects.contains(&Expectation::ResidentAtStart(1 << 20)));
    std::fs::write(&copy, "a text file, not a library").unwrap();
    assert!(resolve(&arm, &live(), facts).unwrap_err().0.contains("ELF"));
    let missing = resolve("jemalloc@/nonexistent/x.so", &live(), facts).unwrap_err().0;
    assert!(missing.contains("/nonexistent/x.so"), "{missing}");
    // A library without a malloc.
    let libm = facts.certain().unwrap().libc_file.as_ref().unwrap().with_file_name("libm.so.6");
    if !libm.exists() {
        println!("skipped in part: no {}", libm.display());
    } else {
        let line = resolve(&format!("jemalloc@{}", libm.display()), &live(), facts).unwrap_err().0;
        assert!(line.contains("no malloc"), "{line}");
    }
}

#[test]
fn each_tcmalloc_is_found_by_its_functions_and_not_by_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let build = |name: &str, functions: &str| -> Option<PathBuf> {
        let [source, library] = ["c", "so"].map(|end| folder.path().join(format!("lib{name}.{end}")));
        let malloc = "#include <stddef.h>\nvoid *malloc(size_t size) { (void)size; return NULL; }\n";
        std::fs::write(&source, format!("{malloc}{functions}\n")).unwrap();
        let mut command = Command::new("cc");
        command.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success()).then_some(library)
    };
    let built = [
        build("tcmalloc_minimal", "void *tc_malloc(size_t size) { return malloc(size); }"),
        build("tcmalloc", "int MallocExtension_Internal_GetPerCpuCachesActive(void) { return 1; }"),
    ];
    let [Some(threads), Some(cpus)] = built else {
        return println!("skipped: no C compiler that builds a library");
    };
    let machine = allocwall_measure::target::view_file(&cpus).unwrap().machine;
    let mut facts = with_program(|program| program.view.machine = machine);
    facts.tunables = Err(Absence::new(Reason::NotSupported, "not listed"));
    let with = |libraries: &[&PathBuf]| {
        let installed = |path: &&PathBuf| InstalledAllocator {
            kind: AllocatorKind::Tcmalloc,
            path: path.to_path_buf(),
            version: None,
        };
        Inventory { installed: libraries.iter().map(installed).collect(), ..inventory() }
    };
    let both = with(&[&threads, &cpus]);
    for (arm, library) in [("tcmalloc", &threads), ("tcmalloc-percpu", &cpus)] {
        let applied = resolve(arm, &both, &facts).unwrap();
        assert_eq!(applied.expects[0], Expectation::Mapped(library.clone()), "{arm}");
        let set_rseq = env(&applied).contains(&set("GLIBC_TUNABLES", "glibc.pthread.rseq=0"));
        assert_eq!(set_rseq, library == &cpus, "{arm}");
    }
    for (arm, inventory, words) in [
        ("tcmalloc-percpu", with(&[&threads]), "is not Google's tcmalloc"),
        ("tcmalloc", with(&[&cpus]), "use tcmalloc-percpu"),
        ("tcmalloc-percpu", inventory(), "this machine has no such library"),
    ] {
        let line = resolve(arm, &inventory, &facts).unwrap_err().0;
        assert!(line.contains(words) && !line.contains('\n'), "{arm}: {line}");
    }
    // What can be installed is lacking; a file that the user names is not.
    let cause = |arm: &str| resolve(arm, &inventory(), &facts).unwrap_err().1;
    assert_eq!((cause("tcmalloc"), cause("tcmalloc@/nonexistent/x.so")), (Cause::Lacking, Cause::Asked));
    // A file that the user names is another one only if it cannot have the caches of this arm.
    let named = |arm: &str, library: &Path| {
        resolve(&format!("{arm}@{}", library.display()), &inventory(), &facts).is_ok()
    };
    assert!(named("tcmalloc", &cpus) && named("tcmalloc-percpu", &cpus));
    assert!(!named("tcmalloc-percpu", &threads));
}

#[test]
fn the_package_that_is_named_has_the_library_of_this_name_on_this_release() {
    let mut facts = with_program(|_| ());
    facts.tunables = Err(Absence::new(Reason::NotSupported, "not listed"));
    let other = || Err(Absence::new(Reason::NotApplicable, "another distribution"));
    let line = |arm: &str, debian| {
        let machine = Inventory { debian, ..inventory() };
        resolve(arm, &machine, &facts).unwrap_err().0
    };
    for (arm, debian, words) in [
        ("mimalloc", Ok(12), "install it (sudo apt install libmimalloc2.0), or give its file"),
        ("mimalloc", Ok(13), "(sudo apt install libmimalloc3)"),
        ("mimalloc@system", Ok(13), "(sudo apt install libmimalloc3)"),
        ("mimalloc", Ok(11), "no known package has it: give its file, for example mimalloc@/path/lib.so"),
        ("tcmalloc", Ok(13), "(sudo apt install libtcmalloc-minimal4t64)"),
        ("tcmalloc", other(), "install it (Debian: libtcmalloc-minimal4)"),
        ("tcmalloc-percpu", Ok(12), "no known package has it"),
        (
            "jemalloc@5.2",
            Ok(12),
            "one of version 5.2 (sudo apt install libjemalloc2, if it has this version)",
        ),
        ("jemalloc@bundled", Ok(12), "use jemalloc@system (sudo apt install libjemalloc2)"),
    ] {
        let line = line(arm, debian);
        assert!(line.contains(words), "{arm}: {line}");
    }
}

#[test]
fn scripts_and_starters_are_followed_while_the_next_program_is_certain() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let script = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path.to_string_lossy().into_owned()
    };
    let perl = script("tool", "#!/usr/bin/env -S cat -u\nx\n");
    let shell = script("start", "#!/bin/sh\nexec cat\n");
    let bare = script("bare", "exec cat\n");
    let names = |facts: &TargetFacts| -> Vec<String> { facts.programs.iter().map(Program::name).collect() };
    let ends = |words: &[&str]| {
        let facts = real(words);
        (names(&facts).last().cloned().unwrap_or_default(), facts.beyond.is_none())
    };
    let certain = |name: &str| (name.to_owned(), true);
    assert_eq!(ends(&["cat"]), certain("cat"));
    assert_eq!(ends(&["env", "A=b", "cat", "x"]), certain("cat"));
    assert_eq!(ends(&["nohup", "nice", "-n", "5", "cat"]), certain("cat"));
    assert_eq!(ends(&["timeout", "-k", "1", "--signal=TERM", "5", "cat"]), certain("cat"));
    assert_eq!(ends(&["sh", "-c", "exec cat -u"]), certain("cat"));
    assert_eq!(ends(&[&perl]), certain("cat"));
    for words in [
        &["sh", "-c", "cat"][..],
        &["sh", "-c", "exec cat $X"],
        &["sh", "-c", "exec -a x cat"],
        &["timeout", "--signal", "TERM", "5", "cat"],
        &["env", "PATH=/x", "cat"],
        &["env", "--chdir=/", "cat"],
        &["nohup", "/nonexistent/x"],
        &[&shell],
        &[&bare],
    ] {
        assert!(!ends(words).1, "{words:?}");
    }
    let facts = real(&["env", "-i", "-u", "X", "Y=1", "cat"]);
    assert!(facts.env_cleared);
    assert_eq!(facts.env_changed, ["X", "Y"]);
    assert_eq!(facts.certain().unwrap().place, Some(5));
    let refused = TargetFacts::of(&["/nonexistent/x".into()], &[]).unwrap_err();
    assert!(refused.0.contains("/nonexistent/x"), "{refused}");
    assert!(TargetFacts::of(&[], &[]).unwrap_err().0.contains("no command"));
}
