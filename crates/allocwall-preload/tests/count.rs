//! The counting library: what it counts is exactly what programs count themselves, and they run as without it. Each
//! program of `tests/count` is a hard case. It is run twice, with and without the calls that it counts itself, so that
//! the calls of the C library drop out.

mod common;

use allocwall_preload::{bundled, count, unpack};
use common::{attempt, command, compiled, said, text};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// `struct count_slot` of `count.h`: the counters, and where they are.
const COUNTERS: [(&str, usize); 17] = [
    ("callocs", 24),
    ("aligned", 32),
    ("news", 40),
    ("reallocs", 48),
    ("realloc_in_place", 56),
    ("realloc_moved", 64),
    ("realloc_remapped", 72),
    ("realloc_freed", 80),
    ("realloc_failed", 88),
    ("realloc_bytes", 96),
    ("copied_bytes", 104),
    ("marks", 112),
    ("bytes", 136),
    ("frees", 144),
    ("free_null", 152),
    ("deletes", 160),
    ("failed", 168),
];
const CLASSES_AT: usize = 176;
const CLASSES: usize = 185;
const SLOT: usize = 2048;
const EVENT: usize = 64;
const STACK: usize = 8192;
const CALL: usize = 16;
/// Bits of the header's flags.
const BYPASSED: u32 = 1;
const OPERATORS: u32 = 2;
const NO_ROOM: u32 = 8;
const NO_SPACE: u32 = 32;
const NO_SIZES: u32 = 64;
/// A bit of an event's flags.
const FOLLOWED: u8 = 16;
/// The FIFO of a folder.
const ROOM: &str = "room";

/// By process and name. Without zeros.
type Counts = BTreeMap<(u32, String), i64>;

fn half(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn whole(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// The file of one process.
struct Counted {
    file: File,
    header: Vec<u8>,
}

impl Counted {
    fn open(path: &Path) -> Self {
        let mut found = Counted { file: File::open(path).unwrap(), header: Vec::new() };
        found.header = found.part(0, 4096);
        assert_eq!(&found.header[..8], b"ALWCOUNT");
        let name = format!("{}-{}", found.process(), half(&found.header, 20));
        assert_eq!(path.file_name().unwrap().to_str(), Some(name.as_str()));
        found
    }

    fn process(&self) -> u32 {
        half(&self.header, 16)
    }

    fn parent(&self) -> u32 {
        half(&self.header, 24)
    }

    fn flags(&self) -> u32 {
        half(&self.header, 32)
    }

    fn part(&self, at: u64, bytes: usize) -> Vec<u8> {
        let mut part = vec![0; bytes];
        self.file.read_exact_at(&mut part, at).unwrap();
        part
    }

    fn counts(&self) -> Counts {
        let used = usize::try_from(whole(&self.header, 192)).unwrap();
        let slots = self.part(whole(&self.header, 48), used * SLOT);
        let sum = |at| slots.chunks(SLOT).map(|slot| whole(slot, at)).sum::<u64>();
        let named = COUNTERS.iter().map(|(name, at)| ((*name).to_owned(), sum(*at)));
        let classes = (0..CLASSES).map(|class| (format!("class{class}"), sum(CLASSES_AT + 8 * class)));
        let all = named.chain(classes).filter(|(_, sum)| *sum != 0);
        all.map(|(name, sum)| ((self.process(), name), i64::try_from(sum).unwrap())).collect()
    }

    /// The entries of a part whose fields in the header start here, without those that were never written.
    fn entries(&self, fields: usize, bytes: usize) -> Vec<Vec<u8>> {
        let (at, entries) = (whole(&self.header, fields), half(&self.header, fields + 8));
        assert_eq!(half(&self.header, fields + 12) as usize, bytes);
        let part = self.part(at, entries as usize * bytes);
        part.chunks(bytes)
            .filter(|entry| ![0, u64::MAX].contains(&whole(entry, 0)))
            .map(<[u8]>::to_vec)
            .collect()
    }

    fn events(&self) -> Vec<Vec<u8>> {
        self.entries(64, EVENT)
    }

    fn stacks(&self) -> Vec<Vec<u8>> {
        self.entries(80, STACK)
    }

    /// The calls of the longer trace, up to the first one that was not written: the newest may have just begun.
    fn trace(&self) -> Vec<Call> {
        let entries = half(&self.header, 168) as usize;
        if entries == 0 {
            return Vec::new();
        }
        assert_eq!(half(&self.header, 172) as usize, CALL);
        let count =
            |place: usize| usize::try_from(whole(&self.header, 256 + 8 * place)).unwrap().min(entries);
        let longer = if count(0) > count(1) { 0 } else { 1 };
        let number = whole(&self.header, 272 + 8 * longer);
        let at = whole(&self.header, 160) + longer as u64 * (entries * CALL) as u64;
        let count = count(longer);
        let calls = self.part(at, count * CALL);
        let written = calls.chunks(CALL).take_while(|call| u64::from(call[15]) == number % 255 + 1);
        let thread = |call: &[u8]| u16::from_ne_bytes([call[12], call[13]]);
        let of = |call: &[u8]| Call {
            kind: call[14],
            address: whole(call, 0),
            size: half(call, 8),
            thread: thread(call),
        };
        written.map(of).collect()
    }
}

/// `struct count_call` of `count.h`.
#[derive(Clone, Copy, Debug)]
struct Call {
    kind: u8,
    address: u64,
    size: u32,
    thread: u16,
}
const NEW: u8 = 1;
const ZEROED: u8 = 2;
const FREE: u8 = 3;
const RESIZED: u8 = 4;
const RESIZED_TO: u8 = 5;

struct Run {
    said: String,
    files: Vec<Counted>,
}

impl Run {
    fn new(said: String, folder: &Path) -> Self {
        let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let files = paths.filter(|path| !path.ends_with(ROOM)).map(|path| Counted::open(&path)).collect();
        Run { said, files }
    }

    fn counted(&self) -> Counts {
        let mut all = Counts::new();
        for (key, value) in self.files.iter().flat_map(Counted::counts) {
            *all.entry(key).or_default() += value;
        }
        all
    }

    /// What the processes printed: lines of process, name and number.
    fn own(&self) -> Counts {
        let mut all = Counts::new();
        for line in self.said.lines() {
            let mut words = line.split(' ');
            let (Some(process), Some(name), Some(value)) = (words.next(), words.next(), words.next()) else {
                continue;
            };
            let key = (process.parse().unwrap(), name.to_owned());
            *all.entry(key).or_default() += value.parse::<i64>().unwrap();
        }
        all
    }

    /// The second word of the line that starts with this one.
    fn line(&self, name: &str) -> &str {
        let line = self.said.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{name}: {}", self.said))
    }
}

/// Over all processes.
fn difference(work: &Counts, rest: &Counts) -> BTreeMap<String, i64> {
    let mut all = BTreeMap::new();
    for (counts, sign) in [(work, 1_i64), (rest, -1)] {
        for ((_, name), value) in counts {
            *all.entry(name.clone()).or_default() += sign * value;
        }
    }
    all.retain(|_, value| *value != 0);
    all
}

#[track_caller]
fn exact(work: &Run, rest: &Run, what: &str) {
    let own = difference(&work.own(), &rest.own());
    assert!(own.contains_key("frees"), "{what}: {}", work.said);
    let mut counted = difference(&work.counted(), &rest.counted());
    // At the end of each thread the C library frees what it may have allocated for it: mostly nothing.
    if !own.contains_key("free_null") {
        counted.remove("free_null");
    }
    assert_eq!(counted, own, "{what}");
}

struct Subject {
    place: tempfile::TempDir,
    /// Counts are only written to memory.
    memory: tempfile::TempDir,
    library: PathBuf,
    folders: Cell<u32>,
}

impl Subject {
    fn new() -> Self {
        let place = tempfile::tempdir().unwrap();
        let library = unpack(count(), &place.path().join("libraries")).unwrap();
        let memory = tempfile::tempdir_in("/dev/shm").unwrap();
        Subject { place, memory, library, folders: Cell::new(0) }
    }

    fn compiled(&self, source: &str, flags: &[&str]) -> Option<PathBuf> {
        compiled(self.place.path(), &format!("../count/{source}"), flags)
    }

    fn folder(&self) -> PathBuf {
        self.folders.set(self.folders.get() + 1);
        let folder = self.memory.path().join(format!("counts-{}", self.folders.get()));
        fs::create_dir(&folder).unwrap();
        folder
    }

    fn run(&self, program: &Path, arguments: &[&str], environment: &[(&str, &str)]) -> Run {
        self.run_in(&self.folder(), program, arguments, environment)
    }

    fn run_in(&self, folder: &Path, program: &Path, arguments: &[&str], environment: &[(&str, &str)]) -> Run {
        let mut run = command(program);
        run.args(arguments).env("LD_PRELOAD", &self.library).env("ALLOCWALL_COUNT", folder);
        run.env("ALLOCWALL_COUNT_TRACES", "1");
        run.envs(environment.iter().copied());
        Run::new(said(&attempt(&mut run).unwrap()), folder)
    }

    /// The preloads with an allocator of the tests behind the library.
    fn before(&self, allocator: &Path) -> String {
        [self.library.as_path(), allocator].map(|path| path.to_str().unwrap()).join(":")
    }

    /// With exact counts only, with samples at the usual distance, and with as many as possible.
    fn is_exact(&self, program: &Path, more: &[&str]) {
        for every in [Some("0"), None, Some("1")] {
            let environment: Vec<_> =
                every.map(|every| ("ALLOCWALL_COUNT_EVERY", every)).into_iter().collect();
            let [work, rest] =
                ["work", "rest"].map(|what| self.run(program, &[&[what][..], more].concat(), &environment));
            exact(&work, &rest, &format!("{} {every:?}", program.display()));
        }
    }

    /// In a shell: `$START` in the script is the program under the library.
    fn in_shell(&self, script: &str, program: &Path, folder: &Path) -> std::process::Command {
        let mut run = command("sh");
        let start =
            r#"env LD_PRELOAD="$LIBRARY" ALLOCWALL_COUNT="$COUNTS" ALLOCWALL_COUNT_TRACES=1 "$PROGRAM""#;
        run.args(["-c", &script.replace("$START", start)])
            .env("LIBRARY", &self.library)
            .env("PROGRAM", program)
            .env("COUNTS", folder);
        run
    }
}

#[test]
fn every_function_and_class_is_counted_and_blocks_lie_where_they_would() {
    let subject = Subject::new();
    let Some(program) = subject.compiled("calls.c", &[]) else {
        return;
    };
    subject.is_exact(&program, &[]);
    let plain = Run { said: said(&attempt(command(&program).arg("work")).unwrap()), files: Vec::new() };
    for every in ["0", "1"] {
        let counted = subject.run(&program, &["work"], &[("ALLOCWALL_COUNT_EVERY", every)]);
        assert_eq!(counted.line("places"), plain.line("places"));
        assert_eq!(counted.files.len(), 1);
        assert_eq!(counted.files[0].parent(), std::process::id());
        let end = |at: usize| counted.files[0].header[at..].split(|byte| *byte == 0).next().unwrap().to_vec();
        assert!(text(&end(320)).contains("libc"), "{}", text(&end(320)));
        assert_eq!(text(&end(576)), program.canonicalize().unwrap().display().to_string());
        assert_eq!(text(&end(1088)), program.display().to_string());
    }
}

#[test]
fn without_a_usable_directory_it_does_nothing() {
    let subject = Subject::new();
    let Some(program) = subject.compiled("calls.c", &[]) else {
        return;
    };
    let plain = said(&attempt(command(&program).arg("work")).unwrap());
    let places = |said: &str| said.lines().find(|line| line.starts_with("places")).unwrap().to_owned();
    let long = format!("/{}", "x".repeat(5000));
    for folder in [None, Some(""), Some("."), Some("/nowhere/at/all"), Some("/dev/null"), Some(long.as_str())]
    {
        let mut run = command(&program);
        run.arg("work").env("LD_PRELOAD", &subject.library).current_dir(subject.place.path());
        if let Some(folder) = folder {
            run.env("ALLOCWALL_COUNT", folder);
        }
        assert_eq!(places(&said(&attempt(&mut run).unwrap())), places(&plain), "{folder:?}");
    }
}

#[test]
fn threads_and_their_ends_are_counted() {
    let subject = Subject::new();
    let Some(program) = subject.compiled("threads.c", &[]) else {
        return;
    };
    subject.is_exact(&program, &[]);
    let work = subject.run(&program, &["work", "20000"], &[]);
    exact(&work, &subject.run(&program, &["rest"], &[]), "20,000 threads");
    // The slots of ended threads are used again.
    let slots = whole(&work.files[0].header, 192);
    assert!(slots < 20, "{slots}");
}

#[test]
fn each_process_has_its_own_counts() {
    let subject = Subject::new();
    let Some(program) = subject.compiled("processes.c", &[]) else {
        return;
    };
    subject.is_exact(&program, &["bare"]);
    for every in ["0", "1"] {
        let [work, rest] =
            ["work", "rest"].map(|what| subject.run(&program, &[what], &[("ALLOCWALL_COUNT_EVERY", every)]));
        exact(&work, &rest, "processes");
        // A child of fork has nothing but its own calls. Each has freed 1,000 blocks.
        let own = work.own();
        let is_child = |process: &u32| own.get(&(*process, "frees".to_owned())) == Some(&1000);
        let children = |counts: Counts| -> Counts {
            counts.into_iter().filter(|((process, _), _)| is_child(process)).collect()
        };
        assert_eq!(work.files.iter().filter(|file| is_child(&file.process())).count(), 21);
        assert_eq!(children(work.counted()), children(work.own()));
        // The first process, two that execute a program, and the file of one of them before.
        assert_eq!(work.files.len(), 21 + 4);
        assert_eq!(work.files.iter().filter(|file| half(&file.header, 20) == 1).count(), 1);
    }
}

#[test]
fn signal_handlers_jumps_and_other_stacks_are_no_obstacle() {
    let subject = Subject::new();
    if let Some(program) = subject.compiled("handlers.c", &[]) {
        subject.is_exact(&program, &[]);
    }
}

#[test]
fn calls_before_the_constructor_are_counted() {
    let subject = Subject::new();
    let Some(library) = subject.compiled("early_library.c", &["-shared", "-fPIC"]) else {
        return;
    };
    let Some(program) = subject.compiled("early.c", &[library.to_str().unwrap()]) else {
        return;
    };
    subject.is_exact(&program, &[]);
}

#[test]
fn objects_of_cplusplus_are_counted_once() {
    let subject = Subject::new();
    let (Some(program), Some(late), Some(plugin)) = (
        subject.compiled("objects.cc", &["-std=c++17"]),
        subject.compiled("late.c", &["-ldl"]),
        subject.compiled("plugin.cc", &["-std=c++17", "-shared", "-fPIC"]),
    ) else {
        return;
    };
    subject.is_exact(&program, &["malloc"]);
    subject.is_exact(&late, &[plugin.to_str().unwrap()]);
}

#[test]
fn operators_that_call_others_are_counted_once() {
    let subject = Subject::new();
    let (Some(program), Some(allocator)) = (
        subject.compiled("objects.cc", &["-std=c++17"]),
        subject.compiled("operators.c", &["-shared", "-fPIC"]),
    ) else {
        return;
    };
    let list = subject.before(&allocator);
    let [work, rest] = ["work", "rest"]
        .map(|what| subject.run(&program, &[what, "plain", "nothrow"], &[("LD_PRELOAD", list.as_str())]));
    exact(&work, &rest, "only new and delete");
    assert!(work.files[0].flags() & OPERATORS != 0);
}

#[test]
fn an_allocator_without_malloc_usable_size_is_not_asked() {
    let subject = Subject::new();
    let (Some(program), Some(allocator)) =
        (subject.compiled("resizes.c", &[]), subject.compiled("bare.c", &["-shared", "-fPIC"]))
    else {
        return;
    };
    let list = subject.before(&allocator);
    let [work, rest] =
        ["work", "rest"].map(|what| subject.run(&program, &[what], &[("LD_PRELOAD", list.as_str())]));
    exact(&work, &rest, "bare");
    assert!(work.files[0].flags() & NO_SIZES != 0);
    let of_libc = subject.run(&program, &["work"], &[]);
    assert_eq!(of_libc.files[0].flags() & NO_SIZES, 0);
}

/// The tool allows some processes a large file. When it is gone, nobody would remove a file.
#[test]
fn a_folder_says_which_files_are_made() {
    let subject = Subject::new();
    let Some(program) = subject.compiled("threads.c", &[]) else {
        return;
    };
    let rest = subject.run(&program, &["rest"], &[]);
    let folder = subject.folder();
    let fifo = folder.join(ROOM);
    let Some(made) = attempt(command("mkfifo").arg(&fifo)) else {
        return;
    };
    assert!(made.status.success(), "{}", text(&made.stderr));
    let mut tool = File::options().read(true).write(true).open(&fifo).unwrap();
    tool.write_all(&[0]).unwrap();
    for has_samples in [true, false] {
        let work = subject.run_in(&folder, &program, &["work"], &[]);
        exact(&work, &rest, "a folder with room for one");
        assert_eq!(work.files[0].flags() & NO_ROOM == 0, has_samples);
        let process = work.files[0].process();
        fs::remove_file(folder.join(format!("{process}-0"))).unwrap();
    }
    drop(tool);
    let work = subject.run_in(&folder, &program, &["work"], &[]);
    assert!(work.files.is_empty());
}

#[test]
fn each_allocator_is_counted() {
    let subject = Subject::new();
    let (Some(objects), Some(threads), Some(processes)) = (
        subject.compiled("objects.cc", &["-std=c++17"]),
        subject.compiled("threads.c", &[]),
        subject.compiled("processes.c", &[]),
    ) else {
        return;
    };
    for item in bundled() {
        let allocator = unpack(item, &subject.place.path().join("libraries")).unwrap();
        let list = subject.before(&allocator);
        // Without memory, mimalloc's operators abort.
        let has_operators = item.kind == "mimalloc";
        let form: &[&str] = if has_operators { &["operators", "nothrow"] } else { &["malloc"] };
        let none: &[&str] = &[];
        for (program, more) in [(&objects, form), (&threads, none), (&processes, none)] {
            let [work, rest] = ["work", "rest"].map(|what| {
                subject.run(program, &[&[what][..], more].concat(), &[("LD_PRELOAD", list.as_str())])
            });
            exact(&work, &rest, &format!("{} {}", item.kind, program.display()));
            let header = &work.files[0].header;
            assert!(
                text(&header[320..576]).contains(item.file_name.trim_end_matches(".so")),
                "{}",
                item.kind
            );
            assert_eq!(work.files[0].flags() & OPERATORS != 0, has_operators, "{}", item.kind);
        }
        // In the other order no call arrives, and the file says so.
        let list = [&allocator, &subject.library].map(|path| path.to_str().unwrap()).join(":");
        let run = subject.run(&threads, &["work"], &[("LD_PRELOAD", list.as_str())]);
        assert!(run.counted().is_empty() && run.files[0].flags() & BYPASSED != 0, "{}", item.kind);
    }
}

#[test]
fn limits_of_the_process_are_respected() {
    let subject = Subject::new();
    let Some(program) = subject.compiled("threads.c", &[]) else {
        return;
    };
    let rest = subject.run(&program, &["rest"], &[]);
    for (limit, has_file) in [("-v 100000", true), ("-f 200", true), ("-f 0", false)] {
        let folder = subject.folder();
        let script = format!("ulimit {limit} && exec $START work");
        let mut run = subject.in_shell(&script, &program, &folder);
        let work = Run::new(said(&attempt(&mut run).unwrap()), &folder);
        assert_eq!(work.files.len(), usize::from(has_file), "{limit}");
        if let Some(file) = work.files.first() {
            exact(&work, &rest, limit);
            assert!(file.flags() & NO_ROOM != 0 && file.events().is_empty(), "{limit}");
        }
    }
}

/// A store to a page that a full file system cannot give would kill the process.
#[test]
fn a_full_file_system_costs_samples_but_no_count() {
    let subject = Subject::new();
    let Some(program) = subject.compiled("threads.c", &[]) else {
        return;
    };
    let rest = subject.run(&program, &["rest", "0"], &[]);
    let mount = subject.folder();
    // The first has no space for a header and a slot. Of the last, a quarter is not free, and is left to others.
    for (size, others, has_file) in [
        ("4k", "0", false),
        ("8k", "0", true),
        ("20k", "0", true),
        ("100k", "0", true),
        ("16m", "0", true),
        ("1m", "700k", true),
        ("1m", "900k", false),
    ] {
        let folder = subject.folder();
        let script = format!(
            "mount -t tmpfs -o size={size} none \"$COUNTS\" 2>/dev/null || exit 77; \
             head -c {others} /dev/zero > \"$COUNTS\"/others && \
             ALLOCWALL_COUNT_EVERY=1 $START work 40 && rm \"$COUNTS\"/others && cp -r \"$COUNTS\"/. {}",
            folder.display()
        );
        let shell = subject.in_shell(&script, &program, &mount);
        let mut run = command("unshare");
        run.arg("-m").arg(shell.get_program()).args(shell.get_args());
        run.envs(shell.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let Some(output) = attempt(&mut run) else {
            return;
        };
        if output.status.code() == Some(77) {
            return println!("skipped: mounting is not permitted here");
        }
        if text(&output.stderr).starts_with("unshare:") {
            return println!("skipped: {}", text(&output.stderr).trim());
        }
        let work = Run::new(said(&output), &folder);
        assert_eq!(work.files.len(), usize::from(has_file), "{size}");
        if let Some(file) = work.files.first() {
            exact(&work, &rest, size);
            assert_eq!(file.flags() & NO_SPACE != 0, size != "16m", "{size}");
        }
    }
}

#[test]
fn samples_stand_for_all_calls_and_show_where_they_are() {
    let subject = Subject::new();
    let Some(program) = subject.compiled("samples.c", &[]) else {
        return;
    };
    // So that the ring holds all events, on a machine of any speed.
    let work = subject.run(&program, &["work"], &[("ALLOCWALL_COUNT_EVERY", "262144")]);
    let file = &work.files[0];
    let events = file.events();
    let next = whole(&file.header, 208);
    assert!(events.len() as u64 == next - 16 && next < 16_384, "{} of {next}", events.len());
    let (frees, allocations): (Vec<_>, Vec<_>) = events.into_iter().partition(|event| event[60] == 2);
    assert!(allocations.len() > 100, "{}", allocations.len());
    let (mut calls, mut variance) = (0.0_f64, 0.0_f64);
    for event in &allocations {
        let weight = (whole(event, 16) + whole(&file.header, 152)) as f64;
        let probability = -(-weight / (whole(&file.header, 144) << event[61]) as f64).exp_m1();
        calls += 1.0 / probability;
        variance += (1.0 - probability) / (probability * probability);
    }
    // The error of a correct count is that large once in a billion runs.
    let counted: i64 =
        work.counted().iter().filter(|((_, name), _)| name.starts_with("class")).map(|(_, n)| n).sum();
    let error = (calls - counted as f64).abs() / variance.sqrt();
    assert!(error < 6.0, "{calls} of {counted}: {error}");
    // Of each followed block: its allocation, and its free or its place in the table.
    let followed = allocations.iter().filter(|event| event[63] & FOLLOWED != 0);
    let mut followed: Vec<_> = followed.map(|event| (whole(event, 24), whole(event, 8))).collect();
    let live = file.entries(96, 64);
    assert_eq!(live.len() as u64, whole(&file.header, 240));
    let freed = frees.iter().map(|event| (whole(event, 24), whole(event, 40)));
    let mut ends: Vec<_> = freed.chain(live.iter().map(|entry| (whole(entry, 0), whole(entry, 8)))).collect();
    // Address and time: a block's life begins after its allocation.
    let is_of = |end: &(u64, u64), begin: &(u64, u64)| end.0 == begin.0 && end.1 > begin.1;
    // When the table is half full, blocks with low ranks leave it.
    if whole(&file.header, 232) == 0 {
        followed.sort_unstable();
        ends.sort_unstable();
        assert_eq!(followed.len(), ends.len());
        assert!(ends.iter().zip(&followed).all(|(end, begin)| is_of(end, begin)), "{followed:?} {ends:?}");
        let is_before = |end: &(u64, u64), next: &(u64, u64)| end.0 != next.0 || end.1 < next.1;
        assert!(
            ends.iter().zip(&followed[1..]).all(|(end, next)| is_before(end, next)),
            "{followed:?} {ends:?}"
        );
    } else {
        assert!(ends.iter().all(|end| followed.iter().any(|begin| is_of(end, begin))));
    }
    // The clock of aarch64 has ticks of up to 40 ns.
    let has_duration = |event: &Vec<u8>| half(event, 48) > 0 || cfg!(target_arch = "aarch64");
    assert!(allocations.iter().chain(&frees).all(has_duration));
    let remote = frees.iter().filter(|event| half(event, 52) != half(event, 56)).count() as f64;
    let expected = frees.len() as f64 / 2.0;
    assert!((remote - expected).abs() < 3.0 * (2.0 * expected).sqrt(), "{remote} of {}", frees.len());
    let place = u64::from_str_radix(work.line("place"), 16).unwrap();
    let stacks = file.stacks();
    let shows = |stack: &&Vec<u8>| {
        let length = usize::from(u16::from_ne_bytes(stack[140..142].try_into().unwrap()));
        let mut values = stack[144..][..length].chunks_exact(8).map(|value| whole(value, 0));
        values.any(|value| (place..place + 1000).contains(&value))
    };
    let shown = stacks.iter().filter(shows).count();
    assert!(shown > 50 && shown * 10 > stacks.len() * 9, "{shown} of {}", stacks.len());
}

/// What the program does with its block of this number: kinds and sizes in their order.
fn made(number: u64) -> Vec<(u8, u64)> {
    let size = 16 + number * 7919 % 3000;
    let mut calls = vec![(if number % 10 == 9 { ZEROED } else { NEW }, size)];
    match number % 7 {
        3 => calls.extend([(RESIZED, size), (RESIZED_TO, size + 500)]),
        // Without a second entry, realloc freed it.
        5 => calls.extend([(NEW, 40), (RESIZED, 40)]),
        _ => {}
    }
    calls
}

/// Compares the trace with what the program did, from its first new block on. `sized`: the allocator says how large blocks are.
fn is_in_order(trace: &[Call], sized: bool) {
    assert!(trace.len() > 10_000, "{}", trace.len());
    // Those of 40 bytes are the second ones of a number.
    let first = trace.iter().position(|call| [NEW, ZEROED].contains(&call.kind) && call.size != 40).unwrap();
    let fits = |number: u64| {
        let calls = trace[first..].iter().filter(|call| call.kind != FREE).take(40);
        // A usable size is at least what was requested.
        let alike = |(call, made): (&Call, (u8, u64))| {
            call.kind == made.0 && (u64::from(call.size) == made.1 || call.kind == RESIZED)
        };
        calls.zip((number..).flat_map(made)).all(alike)
    };
    let mut number = (0..21_000).find(|number| fits(*number)).expect("the calls are those of the program");
    let (mut expected, mut live) = (std::collections::VecDeque::new(), std::collections::VecDeque::new());
    for call in &trace[first..] {
        let Call { kind, address, size, .. } = *call;
        if kind == FREE {
            // Blocks from before the trace are freed first.
            assert!(expected.is_empty());
            if live.len() == 1000 {
                assert_eq!(live.pop_front(), Some(address));
            }
            continue;
        }
        if expected.is_empty() {
            expected.extend(made(number));
            number += 1;
        }
        let (expected_kind, expected_size) = expected.pop_front().unwrap();
        assert_eq!(kind, expected_kind, "{number}");
        if kind == RESIZED {
            assert_eq!(live.pop_back(), Some(address));
            assert!(if sized { u64::from(size) >= expected_size } else { size == 0 }, "{call:?}");
        } else {
            assert_eq!(u64::from(size), expected_size);
            live.push_back(address);
        }
    }
}

#[test]
fn a_trace_has_all_calls_in_their_order() {
    let subject = Subject::new();
    let Some(program) = subject.compiled("order.c", &[]) else {
        return;
    };
    let work = subject.run(&program, &["work"], &[]);
    // The parent and the child.
    assert_eq!(work.files.len(), 2);
    work.files.iter().for_each(|file| is_in_order(&file.trace(), true));
    let without = subject.run(&program, &["work"], &[("ALLOCWALL_COUNT_TRACES", "")]);
    assert!(without.files.iter().all(|file| file.trace().is_empty()));
}

#[test]
fn a_trace_has_the_operators_that_are_counted() {
    let subject = Subject::new();
    let (Some(program), Some(allocator)) = (
        subject.compiled("order_operators.cc", &["-std=c++17"]),
        subject.compiled("operators.c", &["-shared", "-fPIC"]),
    ) else {
        return;
    };
    let before = subject.before(&allocator);
    let list = [("LD_PRELOAD", before.as_str())];
    for (environment, counted) in [(&list[..], OPERATORS), (&[], 0)] {
        let work = subject.run(&program, &["work"], environment);
        assert_eq!(work.files.len(), 2);
        for file in &work.files {
            assert_eq!(file.flags() & OPERATORS, counted);
            is_in_order(&file.trace(), file.flags() & NO_SIZES == 0);
        }
    }
}

#[test]
fn calls_of_several_threads_are_in_one_order() {
    let subject = Subject::new();
    let Some(program) = subject.compiled("relay.c", &[]) else {
        return;
    };
    let work = subject.run(&program, &[], &[]);
    let trace = work.files[0].trace();
    assert!(trace.len() > 10_000, "{}", trace.len());
    // A function that changed over to the trace later than the other misses some of its first calls.
    const FIRST: usize = 1000;
    let mut threads: [Option<(u16, u32)>; 2] = [None; 2];
    let mut live = BTreeMap::new();
    let mut remote = 0;
    for (at, call) in trace.iter().enumerate() {
        match call.kind {
            NEW => {
                // Of the program: which of the two threads, and which of its blocks.
                let (of, block) = ((call.size - 17) % 2, (call.size - 17) / 2);
                if let Some((thread, last)) = threads[of as usize] {
                    assert_eq!(call.thread, thread);
                    assert!(block == (last + 1) % 1000 || at < FIRST, "{at}: {last}, then {block}");
                }
                threads[of as usize] = Some((call.thread, block));
                let twice = live.insert(call.address, (call.thread, call.size)).is_some();
                assert!(!twice, "{at}: {call:?} is in use");
            }
            FREE => {
                if let Some((thread, size)) = live.remove(&call.address) {
                    assert!(call.size >= size, "{call:?} had {size}");
                    remote += u32::from(thread != call.thread);
                }
            }
            _ => panic!("{call:?}"),
        }
    }
    let [Some((one, _)), Some((other, _))] = threads else { panic!("{threads:?}") };
    assert_ne!(one, other);
    // In each round of 64, the thread that comes second frees the blocks of the first.
    assert!(remote > 1000, "{remote}");
}
