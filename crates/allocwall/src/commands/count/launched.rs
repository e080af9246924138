//! Starts a command with a preloaded library that counts its calls of the allocator.

use super::{Args, Format, deliver};
use crate::commands::shared::arms;
use crate::commands::shared::diagnosis::readers;
use crate::commands::shared::signals::catch_signals;
use crate::printer::Printer;
use allocwall_host::elf::ElfKind;
use allocwall_host::launch::{self, Talk};
use allocwall_host::proc::ProcFs;
use allocwall_measure::allocations::{self, Folder, Watch};
use allocwall_measure::calibrate;
use allocwall_measure::target::{FileView, view_file};
use allocwall_model::allocations::Counted;
use allocwall_model::error::Error;
use allocwall_model::recording::{Ended, Libc, Runtime};
use allocwall_model::units::{Absence, Measured, Reason};
use allocwall_report::allocations::{Run, collapsed, json, pprof, text};
use allocwall_trial::arm::TargetFacts;
use allocwall_trial::run::guard;
use anyhow::{Context, anyhow, bail};
use rustix::process::{Resource, getrlimit};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The time between two readings: short in the first second, because what ends sooner leaves no names of its functions.
const POLLED: Duration = Duration::from_millis(50);
const POLLED_AT_FIRST: Duration = Duration::from_millis(5);
const AT_FIRST: Duration = Duration::from_secs(1);
/// The time between two lists of the command's processes.
const LISTED: Duration = Duration::from_millis(250);
const DRAWN: Duration = Duration::from_secs(1);
/// The most processes that are remembered.
const MOST_SEEN: usize = 10_000;
/// A file of counts, without samples and with them (crates/allocwall-preload/src/count.h).
const SMALL_FILE: u64 = 128 << 10;
const WHOLE_FILE: u64 = 6 << 20;

pub(super) fn run(args: &Args, format: Format, printer: &Printer) -> anyhow::Result<()> {
    // Before allocwall writes a file itself.
    if let Some(warning) = file_limit(getrlimit(Resource::Fsize).current)? {
        printer.warn(warning);
    }
    let facts = TargetFacts::of(&args.command, &arms::environment())?;
    let library = allocwall_preload::unpack(allocwall_preload::count(), &arms::folder(printer)?)
        .context("cannot unpack the library that counts")?;
    let view = view_file(&library).map_err(|absence| anyhow!("{}: {absence}", library.display()))?;
    if let Some(why) = refusal(&facts, &view) {
        bail!(why);
    }
    if let Some(remark) = remark(&facts) {
        printer.warn(remark);
    }
    if args.live && !printer.progress() {
        printer.warn("--live needs a terminal on standard error");
    }
    let run = count(args, &library, printer)?;
    if run.counted.calls().all() == 0 {
        bail!("no call was counted: {}", why_nothing(&run.counted));
    }
    deliver(args, printer, |style| {
        Ok(match format {
            Format::Text => text::report(&run, style).into_bytes(),
            Format::Json => json::document(&run).into_bytes(),
            Format::Pprof => pprof::profile(&run.counted).context("cannot compress the profile")?,
            Format::Collapsed => collapsed::stacks(&run.counted).into_bytes(),
        })
    })
}

/// Why nothing in this command could be counted, as far as that is known before it starts.
fn refusal(facts: &TargetFacts, library: &FileView) -> Option<String> {
    for program in &facts.programs {
        if let Some(raised) = program.raised {
            return Some(format!(
                "{} has {}, so its loader ignores the library that counts: start it yourself, and use `allocwall count -p PID` as root",
                program.path.display(),
                raised.text()
            ));
        }
    }
    if facts.env_cleared {
        return Some(
            "`env -i` in the command removes LD_PRELOAD: put `allocwall count --` after it".to_owned(),
        );
    }
    if let Some(name) =
        facts.env_changed.iter().find(|name| *name == "LD_PRELOAD" || name.starts_with("ALLOCWALL_"))
    {
        return Some(format!(
            "`env` in the command sets or removes {name}, which counting needs: set it for allocwall instead"
        ));
    }
    let program = facts.certain()?;
    let (name, view) = (program.name(), &program.view);
    let is_static = matches!(view.kind, ElfKind::StaticExecutable | ElfKind::StaticPieExecutable);
    let own_allocator =
        program.allocator.as_ref().is_ok_and(|(_, file)| file.is_none()) && view.serves_malloc;
    let why = match (&program.runtime, &program.libc) {
        _ if (view.machine, view.is_64) != (library.machine, library.is_64) => {
            "is for another architecture than allocwall, so the library that counts can't be loaded into it"
        }
        (Ok(Runtime::Go { .. }), _) if is_static => {
            "is a Go program without the C library: Go's own allocator does not call malloc"
        }
        (_, Ok(Libc::Static)) => STATIC,
        _ if is_static => STATIC,
        (_, Ok(Libc::Musl { .. })) => {
            "is linked with musl: counting from its start needs glibc. While it runs, use `allocwall count -p PID`"
        }
        _ if own_allocator => {
            "contains an allocator of its own, so its calls do not reach the library that counts: while it runs, use \
             `allocwall count -p PID`; `allocwall diagnose -- CMD` shows what that allocator costs"
        }
        _ => return None,
    };
    Some(format!("{name} {why}"))
}

const STATIC: &str = "is statically linked, so no library can count its calls: while it runs, use `allocwall count -p PID`; \
                      `allocwall diagnose -- CMD` shows what its allocator costs";

/// What is not counted although the command can be.
fn remark(facts: &TargetFacts) -> Option<&'static str> {
    match facts.certain()?.runtime.as_ref().ok()? {
        Runtime::Native => None,
        Runtime::Cpython { .. } => Some(
            "CPython serves objects of up to 512 bytes from its own arenas: only larger ones, its arenas and native code are counted",
        ),
        Runtime::Jvm { .. } => {
            Some("the objects of Java are not counted: only native code of the JVM calls malloc")
        }
        Runtime::Go { .. } => Some("the objects of Go are not counted: only its C code calls malloc"),
        Runtime::Node { .. } => {
            Some("the objects of JavaScript are not counted: only native code of Node calls malloc")
        }
    }
}

/// A process may write files of this size at most (RLIMIT_FSIZE). Returns a warning.
fn file_limit(limit: Option<u64>) -> anyhow::Result<Option<&'static str>> {
    match limit {
        Some(bytes) if bytes < SMALL_FILE => {
            bail!(
                "the command may not write files of {} KiB, which counting needs: raise the limit (ulimit -f)",
                SMALL_FILE >> 10
            )
        }
        Some(bytes) if bytes < WHOLE_FILE => {
            Ok(Some("the limit of file sizes (ulimit -f) leaves no room for samples: only exact counts"))
        }
        _ => Ok(None),
    }
}

fn why_nothing(counted: &Counted) -> String {
    let of_processes = counted.processes.iter().flat_map(|process| &process.missing);
    match of_processes.chain(&counted.missing).next() {
        Some(why) => why.with_advice(),
        None if counted.processes.is_empty() => {
            "the library that counts was loaded into no process of the command".to_owned()
        }
        None => "the command does not call malloc".to_owned(),
    }
}

/// Starts the command, and counts until it ends.
fn count(args: &Args, library: &Path, printer: &Printer) -> anyhow::Result<Run> {
    let interrupted = catch_signals()?;
    let folder = Folder::new().context("cannot create a folder for the counts")?;
    let own = std::env::current_exe().context("cannot find the path of allocwall itself")?;
    // Ends the command and removes the folder, even if allocwall is killed.
    let guard = guard(Some(folder.path()), &own)?;
    let every = if args.exact { Some(0) } else { args.every };
    let mut env = allocations::environment(folder.path(), every);
    let preloaded = preload(library, std::env::var_os("LD_PRELOAD").as_deref());
    env.extend([guard.mark(), ("LD_PRELOAD".into(), preloaded)]);
    if launch::stdin_withheld() {
        printer.note("the command reads from /dev/null, not from this terminal (to give it input: < FILE)");
    }
    let command: Vec<String> = args.command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let failed = |cause| Error::Launch { command: command.join(" "), cause };
    let held = launch::hold(&args.command, &env, Talk::Aside).map_err(failed)?;
    let pid = held.pid;
    let proc = ProcFs::live();
    let mut watch = Watch::start(&folder, readers()).context("cannot read the counts")?;
    let mut launched = held.release().map_err(failed)?;
    let began = Instant::now();
    let mut seen = Seen::default();
    let (mut listed, mut drawn, mut lines) = (Duration::ZERO, DRAWN, 0);
    let ended = loop {
        watch.poll();
        let passed = began.elapsed();
        if !launched.running() {
            break Ended::TargetExited { status: launched.exited().map(|status| status.to_string()) };
        }
        if interrupted.load(Ordering::Relaxed) {
            printer.note("interrupted: reporting what was counted so far");
            break Ended::Interrupted;
        }
        if args.duration.is_some_and(|duration| passed >= duration) {
            break Ended::Complete;
        }
        if passed >= listed {
            seen.list(&proc, pid);
            listed = passed + LISTED;
        }
        if args.live && printer.progress() && passed >= drawn {
            let (calls, classes) = watch.so_far();
            let width = printer.talk_width();
            lines = printer.redraw(&text::so_far(&calls, &classes, passed.as_secs_f64(), width), lines);
            drawn = passed + DRAWN;
        }
        let pause = if passed < AT_FIRST { POLLED_AT_FIRST } else { POLLED };
        std::thread::sleep(
            args.duration.map_or(pause, |duration| pause.min(duration.saturating_sub(passed))),
        );
    };
    printer.redraw("", lines);
    // Before the command is ended: what it frees then is not part of its work.
    let mut counted = watch.finish();
    counted.missing.extend(seen.without_counts(&counted));
    let before = children_cpu_s(&proc);
    launched.end();
    let cpu_s = children_cpu_s(&proc).and_then(|after| Ok(after - before?));
    let why = "not measured on this machine: time the command with and without `allocwall count`";
    Ok(Run {
        command,
        counted,
        ended,
        cpu_s,
        prices: calibrate::cached(),
        counting_ns: Err(Absence::new(Reason::NotSupported, why)),
        units: args.per_request,
    })
}

/// The library comes before what is preloaded already: it passes each call on to the next one (ld.so(8)).
fn preload(library: &Path, present: Option<&OsStr>) -> OsString {
    let mut list = library.as_os_str().to_owned();
    if let Some(present) = present.filter(|present| !present.is_empty()) {
        list.push(":");
        list.push(present);
    }
    list
}

/// CPU time of the children that were waited for, and of theirs.
fn children_cpu_s(proc: &ProcFs) -> Measured<f64> {
    let stat = proc.process_stat(std::process::id().cast_signed())?;
    let ticks = stat.child_user_ticks + stat.child_system_ticks;
    Ok(ticks as f64 * proc.ns_per_tick() as f64 / 1e9)
}

/// Processes of the command as /proc lists them: their numbers in their own PID namespace, and how often each was listed.
#[derive(Default)]
struct Seen(BTreeMap<i32, (i32, u32)>);

impl Seen {
    fn list(&mut self, proc: &ProcFs, root: i32) {
        for pid in proc.descendants(root).unwrap_or_default().into_iter().chain([root]) {
            if let Some((_, times)) = self.0.get_mut(&pid) {
                *times += 1;
            } else if self.0.len() < MOST_SEEN
                && let Ok(status) = proc.status(pid)
            {
                self.0.insert(pid, (status.ns_pids.last().copied().unwrap_or(pid), 1));
            }
        }
    }

    /// How many processes did not count. One that was listed only once may have been about to start a program.
    fn without_counts(&self, counted: &Counted) -> Option<Absence> {
        let counts = |pid: i32| counted.processes.iter().any(|process| process.pid == pid);
        let silent = self.0.values().filter(|(pid, times)| *times > 1 && !counts(*pid)).count();
        // Processes that are not listed have no number.
        if silent == 0 || counted.further.is_some() {
            return None;
        }
        let were = if silent == 1 { "1 process was".to_owned() } else { format!("{silent} processes were") };
        let detail = format!(
            "{were} seen without counts: no call of malloc, or LD_PRELOAD did not arrive (a cleared environment, raised rights, a \
             static program)"
        );
        Some(Absence::new(Reason::NotFound, detail))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocwall_host::program::RaisedRights;
    use allocwall_model::allocations::{Calls, CountedProcess, Lost};
    use allocwall_model::catalogue::modules::AllocatorKind;

    /// A program that can be counted, and its file in the place of the library.
    fn shell() -> (TargetFacts, FileView) {
        let mut facts = TargetFacts::of(&["/bin/sh".into()], &[]).expect("a shell");
        facts.beyond = None;
        let view = facts.programs[0].view.clone();
        (facts, view)
    }

    #[test]
    fn programs_that_cannot_be_counted_are_refused() {
        let (facts, library) = shell();
        if matches!(facts.programs[0].libc, Ok(Libc::Glibc { .. })) {
            assert_eq!(refusal(&facts, &library), None);
        }
        let refused = |change: &dyn Fn(&mut TargetFacts), words: &str| {
            let (mut facts, library) = shell();
            change(&mut facts);
            let why = refusal(&facts, &library).unwrap_or_default();
            assert!(why.contains(words) && !why.contains('\n'), "{words}: {why}");
        };
        refused(&|facts| facts.programs[0].raised = Some(RaisedRights::SetUser), "has setuid rights");
        refused(&|facts| facts.env_cleared = true, "put `allocwall count --` after it");
        refused(&|facts| facts.env_changed = vec!["LD_PRELOAD".into()], "sets or removes LD_PRELOAD");
        refused(&|facts| facts.programs[0].libc = Ok(Libc::Static), "statically linked");
        refused(&|facts| facts.programs[0].view.kind = ElfKind::StaticPieExecutable, "statically linked");
        refused(&|facts| facts.programs[0].libc = Ok(Libc::Musl { version: None }), "musl");
        refused(&|facts| facts.programs[0].view.machine += 1, "another architecture");
        refused(&|facts| facts.programs[0].view.is_64 ^= true, "another architecture");
        let go = |facts: &mut TargetFacts| {
            facts.programs[0].runtime = Ok(Runtime::Go { version: None });
            facts.programs[0].view.kind = ElfKind::StaticExecutable;
        };
        refused(&go, "Go's own allocator");
        let own = |facts: &mut TargetFacts| {
            facts.programs[0].allocator = Ok((AllocatorKind::Jemalloc, None));
            facts.programs[0].view.serves_malloc = true;
        };
        refused(&own, "an allocator of its own");
    }

    #[test]
    fn a_program_that_another_one_starts_is_not_judged() {
        let (mut facts, library) = shell();
        facts.programs[0].libc = Ok(Libc::Static);
        facts.beyond = Some(Absence::new(Reason::NotApplicable, "a shell decides which program it starts"));
        assert_eq!(refusal(&facts, &library), None);
        facts.env_changed = vec!["PATH".into()];
        assert_eq!(refusal(&facts, &library), None);
    }

    #[test]
    fn runtimes_with_heaps_of_their_own_are_named() {
        let (mut facts, _) = shell();
        facts.programs[0].runtime = Ok(Runtime::Native);
        assert_eq!(remark(&facts), None);
        facts.programs[0].runtime = Ok(Runtime::Jvm { version: None });
        assert!(remark(&facts).unwrap().contains("Java"));
    }

    #[test]
    fn limits_of_file_sizes() {
        assert!(file_limit(Some(0)).unwrap_err().to_string().contains("ulimit -f"));
        assert!(file_limit(Some(SMALL_FILE)).unwrap().unwrap().contains("no room for samples"));
        assert_eq!((file_limit(Some(WHOLE_FILE)).unwrap(), file_limit(None).unwrap()), (None, None));
    }

    #[test]
    fn the_library_is_the_first_one() {
        let list = |present: Option<&str>| preload(Path::new("/a/count.so"), present.map(OsStr::new));
        assert_eq!(list(None), "/a/count.so");
        assert_eq!(list(Some("")), "/a/count.so");
        assert_eq!(list(Some("/b.so /c.so")), "/a/count.so:/b.so /c.so");
    }

    fn counted(pids: &[i32]) -> Counted {
        let process = |&pid: &i32| CountedProcess {
            pid,
            number: 0,
            command: Ok(vec![]),
            program: Ok("/bin/true".into()),
            allocator: Ok("libc.so.6".into()),
            from_ns: 0,
            over_ns: 0,
            ended: true,
            calls: Calls::default(),
            classes: vec![],
            threads: vec![],
            threads_left_out: 0,
            samples: Err(Absence::new(Reason::Disabled, "sampling is off")),
            lost: Lost::default(),
            missing: vec![],
        };
        Counted {
            length_ns: 1,
            processes: pids.iter().map(process).collect(),
            further: None,
            series: vec![],
            modules: vec![],
            frames: vec![],
            stacks: vec![],
            missing: vec![],
        }
    }

    #[test]
    fn processes_without_counts_are_counted_if_they_lived_for_a_while() {
        // Process 12 is 2 in its own namespace; 13 was listed once.
        let seen = Seen(BTreeMap::from([(10, (10, 9)), (11, (11, 2)), (12, (2, 3)), (13, (13, 1))]));
        let detail = |counted: &Counted| seen.without_counts(counted).map(|absence| absence.detail);
        assert!(detail(&counted(&[10, 2])).unwrap().starts_with("1 process was seen without counts"));
        assert!(detail(&counted(&[10])).unwrap().starts_with("2 processes were seen without counts"));
        assert_eq!(detail(&counted(&[10, 11, 2])), None);
    }

    #[test]
    fn a_run_without_calls_says_why() {
        assert!(why_nothing(&counted(&[])).contains("loaded into no process"));
        assert!(why_nothing(&counted(&[7])).contains("does not call malloc"));
        let mut bypassed = counted(&[7]);
        bypassed.processes[0].missing =
            vec![Absence::new(Reason::NotSupported, "it has an allocator of its own")];
        assert_eq!(why_nothing(&bypassed), "it has an allocator of its own");
    }
}
