//! Each bundled allocator, preloaded, serves every call of programs that were built without it, and the programs run
//! as before. The tests read the dynamic loader's report of its symbol bindings (ld.so(8), LD_DEBUG).

mod common;

use allocwall_preload::{Bundled, bundled, prefault, unpack};
use common::{attempt, command, compiled, said, text};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The functions of malloc that a program can call.
const CALLS: [&str; 10] = [
    "malloc",
    "calloc",
    "realloc",
    "free",
    "posix_memalign",
    "aligned_alloc",
    "memalign",
    "valloc",
    "pvalloc",
    "malloc_usable_size",
];

struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Place { folder }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn library(&self, item: &Bundled) -> PathBuf {
        unpack(item, &self.path().join("libraries")).unwrap()
    }
}

/// One line of the loader's report: a symbol that one file uses and another file provides.
#[derive(Debug)]
struct Binding {
    from: String,
    to: String,
    symbol: String,
}

/// Runs a command, which must succeed, and reads the symbols that the loader bound at start-up, in it and its children.
fn bindings(place: &Path, mut command: Command) -> Option<Vec<Binding>> {
    let log = place.join("bindings");
    command.env("LD_DEBUG", "bindings").env("LD_DEBUG_OUTPUT", log).env("LD_BIND_NOW", "1");
    said(&attempt(&mut command)?);
    let mut found = Vec::new();
    for entry in fs::read_dir(place).unwrap() {
        let path = entry.unwrap().path();
        if path.file_stem().is_some_and(|name| name == "bindings") {
            found.extend(text(&fs::read(&path).unwrap()).lines().filter_map(binding));
            fs::remove_file(path).unwrap();
        }
    }
    assert!(!found.is_empty(), "the loader reported nothing");
    Some(found)
}

/// ``binding file A [0] to B [0]: normal symbol `malloc' [GLIBC_2.2.5]``
fn binding(line: &str) -> Option<Binding> {
    let (_, rest) = line.split_once("binding file ")?;
    let (from, rest) = rest.split_once(" [0] to ")?;
    let (to, rest) = rest.split_once(" [0]: normal symbol `")?;
    let (symbol, _) = rest.split_once('\'')?;
    Some(Binding { from: from.to_owned(), to: to.to_owned(), symbol: symbol.to_owned() })
}

/// The allocator's functions that were bound, if all of them are bound to files whose path has this end.
fn owned_by(found: &[Binding], end: &str) -> BTreeSet<String> {
    let calls = found.iter().filter(|binding| CALLS.contains(&binding.symbol.as_str()));
    calls
        .map(|binding| {
            assert!(binding.to.ends_with(end), "{binding:?}, not to {end}");
            binding.symbol.clone()
        })
        .collect()
}

fn all_calls() -> BTreeSet<String> {
    CALLS.map(str::to_owned).into()
}

#[test]
fn every_call_is_bound_to_the_library() {
    let place = Place::new();
    let Some(program) = compiled(place.path(), "calls.c", &[]) else {
        return;
    };
    for item in bundled() {
        let library = place.library(item);
        let mut preloaded = command(&program);
        preloaded.env("LD_PRELOAD", &library);
        let found = bindings(place.path(), preloaded).unwrap();
        let end = library.to_str().unwrap();
        assert_eq!(owned_by(&found, end), all_calls(), "{}", item.kind);
        // Not only the program's calls: the C library's own calls go there too.
        let of_libc = found.iter().filter(|binding| binding.from.ends_with("/libc.so.6"));
        let of_libc: BTreeSet<_> = of_libc.map(|binding| binding.symbol.as_str()).collect();
        assert!(of_libc.is_superset(&["malloc", "free"].into()), "{}: {of_libc:?}", item.kind);
    }
}

#[test]
fn without_a_preload_every_call_is_bound_to_libc() {
    let place = Place::new();
    let Some(program) = compiled(place.path(), "calls.c", &[]) else {
        return;
    };
    let found = bindings(place.path(), command(&program)).unwrap();
    assert_eq!(owned_by(&found, "/libc.so.6"), all_calls());
    // Pre-touch replaces no function either.
    let mut touched = command(&program);
    touched.env("LD_PRELOAD", place.library(prefault()));
    let found = bindings(place.path(), touched).unwrap();
    assert_eq!(owned_by(&found, "/libc.so.6"), all_calls());
}

#[test]
fn a_program_of_the_machine_and_its_children_are_taken_over() {
    let place = Place::new();
    for item in bundled() {
        let library = place.library(item);
        let mut shell = command("sh");
        shell.args(["-c", "ls / | sort"]).env("LD_PRELOAD", &library);
        let Some(found) = bindings(place.path(), shell) else {
            return;
        };
        let owned = owned_by(&found, library.to_str().unwrap());
        for call in ["malloc", "calloc", "realloc", "free"] {
            assert!(owned.contains(call), "{}: {call}", item.kind);
        }
        for program in ["ls", "sort"] {
            let end = format!("/{program}");
            let taken =
                found.iter().any(|b| b.symbol == "malloc" && (b.from == program || b.from.ends_with(&end)));
            assert!(taken, "{}: {program}", item.kind);
        }
    }
}

/// The mangled names of `operator new` and `operator delete`.
#[test]
fn objects_of_cplusplus_come_from_the_library() {
    let place = Place::new();
    let Some(program) = compiled(place.path(), "objects.cc", &["-std=c++17"]) else {
        return;
    };
    assert_eq!(said(&attempt(&mut command(&program)).unwrap()), "ok\n");
    for item in bundled() {
        let library = place.library(item);
        let mut preloaded = command(&program);
        preloaded.env("LD_PRELOAD", &library);
        assert_eq!(said(&attempt(&mut preloaded).unwrap()), "ok\n", "{}", item.kind);
        let found = bindings(place.path(), preloaded).unwrap();
        let library = library.to_str().unwrap();
        for operator in ["_Znwm", "_ZdlPv", "_ZnwmSt11align_val_t", "_ZdlPvmSt11align_val_t"] {
            let to: BTreeSet<_> =
                found.iter().filter(|b| b.symbol == operator).map(|b| b.to.as_str()).collect();
            assert!(!to.is_empty(), "{operator} is not bound");
            // Either the library has the operator, or the operator of the C++ library calls the library's malloc.
            let reached = to.iter().all(|file| {
                *file == library
                    || file.contains("libstdc++")
                        && found.iter().any(|b| b.from == *file && b.symbol == "malloc" && b.to == library)
            });
            assert!(reached, "{}: {operator} is bound to {to:?}", item.kind);
        }
    }
}

/// The behaviour of `operator new` without memory, as the crate's documentation describes it.
#[test]
fn too_much_is_thrown_by_all_but_mimalloc() {
    let place = Place::new();
    let Some(program) = compiled(place.path(), "objects.cc", &["-std=c++17"]) else {
        return;
    };
    let mut plain = command(&program);
    assert_eq!(said(&attempt(plain.arg("huge")).unwrap()), "thrown\n");
    for item in bundled() {
        let mut preloaded = command(&program);
        let output = attempt(preloaded.arg("huge").env("LD_PRELOAD", place.library(item))).unwrap();
        match item.kind {
            "mimalloc" => assert_eq!(output.status.signal(), Some(6), "{:?}", output.status),
            _ => assert_eq!(said(&output), "thrown\n", "{}", item.kind),
        }
    }
}

#[test]
fn glibc_s_own_heap_stays_empty() {
    let place = Place::new();
    let Some(program) = compiled(place.path(), "glibc_arena.c", &[]) else {
        return;
    };
    let used = |command: &mut Command| -> u64 { said(&attempt(command).unwrap()).trim().parse().unwrap() };
    assert!(used(&mut command(&program)) >= 4 << 20);
    for item in bundled() {
        let mut preloaded = command(&program);
        preloaded.env("LD_PRELOAD", place.library(item));
        assert_eq!(used(&mut preloaded), 0, "{}", item.kind);
    }
}

#[test]
fn calls_behave_as_documented_and_blocks_keep_their_content() {
    let place = Place::new();
    let (Some(calls), Some(life), Some(plugin)) = (
        compiled(place.path(), "calls.c", &[]),
        compiled(place.path(), "life.c", &["-ldl"]),
        compiled(place.path(), "plugin.c", &["-shared", "-fPIC"]),
    ) else {
        return;
    };
    let libraries = bundled().iter().map(|item| Some(place.library(item)));
    for library in [None].into_iter().chain(libraries) {
        for (program, argument) in [(&calls, None), (&life, Some(&plugin))] {
            let mut run = command(program);
            run.args(argument);
            if let Some(library) = &library {
                run.env("LD_PRELOAD", library);
            }
            assert_eq!(said(&attempt(&mut run).unwrap()), "ok\n", "{run:?}");
        }
    }
}

#[test]
fn real_programs_give_the_same_output() {
    let place = Place::new();
    let lines: String = (0..60_000u64).map(|i| format!("{}\n", i * 2_654_435_761 % 1_000_003)).collect();
    fs::write(place.path().join("lines"), lines).unwrap();
    fs::write(
        place.path().join("code.c"),
        "int sum(int *a, int n) { int s = 0; while (n--) s += a[n]; return s; }\n",
    )
    .unwrap();
    let python = "import json, threading, hashlib\n\
        d = [{'id': i, 'name': 'n' * (i % 90), 'more': list(range(i % 20))} for i in range(4000)]\n\
        r = []\n\
        t = [threading.Thread(target=lambda: r.append(json.dumps(json.loads(json.dumps(d))))) for _ in range(4)]\n\
        [x.start() for x in t]; [x.join() for x in t]\n\
        print(hashlib.sha256(''.join(r).encode()).hexdigest())";
    let git = "rm -rf repository && git init -q repository && cd repository && cp ../lines . && git add lines && \
        git commit -q -m one && git repack -adq && git fsck --full && git log --stat -p | sha256sum && cd .. && rm -rf repository";
    let programs: [(&str, &[&str]); 4] = [
        ("python3", &["-c", python]),
        ("sort", &["--parallel=2", "-n", "lines"]),
        ("cc", &["-O2", "-S", "-o", "-", "code.c"]),
        ("sh", &["-c", git]),
    ];
    for (program, arguments) in programs {
        if program == "sh" && attempt(command("git").arg("--version")).is_none() {
            continue;
        }
        let run = |library: Option<&Path>| {
            let mut run = command(program);
            run.args(arguments).current_dir(place.path()).env("HOME", place.path());
            for name in ["GIT_AUTHOR", "GIT_COMMITTER"] {
                run.env(format!("{name}_NAME"), "a").env(format!("{name}_EMAIL"), "a@b");
                run.env(format!("{name}_DATE"), "2026-01-01T00:00:00Z");
            }
            if let Some(library) = library {
                run.env("LD_PRELOAD", library);
            }
            attempt(&mut run).map(|output| said(&output))
        };
        let Some(expected) = run(None) else {
            continue;
        };
        assert!(!expected.is_empty(), "{program}");
        for item in bundled() {
            let found = run(Some(&place.library(item))).unwrap();
            assert!(found == expected, "{program} under {}", item.kind);
        }
    }
}

/// In this test program the allocators are only data, as in the tool.
#[test]
fn a_program_that_embeds_them_keeps_libc_s_malloc() {
    let own = std::env::current_exe().unwrap();
    // The program contains the data, so the check of the symbols below is not trivial.
    let bytes = fs::read(&own).unwrap();
    let start = &bundled()[0].bytes[..4096];
    assert!(bytes.windows(4096).any(|window| window == start));
    let Some(output) = attempt(Command::new("nm").arg(&own)) else {
        return;
    };
    let names = said(&output);
    let (mut undefined, mut defined) = (BTreeSet::new(), BTreeSet::new());
    for line in names.lines() {
        let mut words = line.split_whitespace().rev();
        let (Some(name), Some(kind)) = (words.next(), words.next()) else {
            continue;
        };
        let name = name.split('@').next().unwrap();
        match kind {
            "U" | "w" => undefined.insert(name),
            _ => defined.insert(name),
        };
    }
    assert!(undefined.contains("malloc") && undefined.contains("free"), "{undefined:?}");
    let foreign = |name: &&&str| {
        CALLS.contains(*name)
            || ["mi_", "_mi_", "je_", "_rjem_", "sn_", "mallctl", "_Znwm"]
                .iter()
                .any(|start| name.starts_with(start))
    };
    assert_eq!(defined.iter().filter(foreign).collect::<Vec<_>>(), Vec::<&&str>::new());
}
