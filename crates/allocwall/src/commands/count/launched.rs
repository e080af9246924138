//! Starts a command with a preloaded library that counts its calls of the allocator.

use super::{Args, Format, deliver};
use crate::commands::shared::arms;
use crate::commands::shared::counting::{SMALL_FILE, uncountable};
use crate::commands::shared::diagnosis::readers;
use crate::commands::shared::signals::catch_signals;
use crate::printer::Printer;
use allocwall_host::launch::{self, Talk};
use allocwall_host::proc::ProcFs;
use allocwall_measure::allocations::{self, Folder, Watch};
use allocwall_measure::calibrate;
use allocwall_measure::target::view_file;
use allocwall_model::allocations::Counted;
use allocwall_model::error::Error;
use allocwall_model::recording::{Ended, Runtime};
use allocwall_model::units::{Absence, Measured, Reason};
use allocwall_report::allocations::{Run, collapsed, json, pprof, text};
use allocwall_report::html;
use allocwall_trial::arm::TargetFacts;
use allocwall_trial::run::guard;
use anyhow::{Context, anyhow, bail};
use rustix::process::{Resource, getrlimit};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The time between two lists of the command's processes.
const LISTED: Duration = Duration::from_millis(250);
const DRAWN: Duration = Duration::from_secs(1);
/// The most processes that are remembered.
const MOST_SEEN: usize = 10_000;
/// A file of counts with samples (crates/allocwall-preload/src/count.h).
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
    if let Some(why) = uncountable(&facts, &view) {
        bail!("{}", why.with_advice());
    }
    if let Some(remark) = remark(&facts) {
        printer.warn(remark);
    }
    if args.live && !printer.progress() {
        printer.warn("--live needs a terminal on standard error");
    }
    let run = count(args, &library, printer)?;
    if run.counted.calls().all() == 0 {
        bail!("no call was counted: {}", allocations::why_nothing(&run.counted).with_advice());
    }
    deliver(args, printer, |style| {
        Ok(match format {
            Format::Html => html::count(&run).into_bytes(),
            Format::Text => text::report(&run, style).into_bytes(),
            Format::Json => json::document(&run).into_bytes(),
            Format::Pprof => pprof::profile(&run.counted).context("cannot compress the profile")?,
            Format::Collapsed => collapsed::stacks(&run.counted).into_bytes(),
        })
    })
}

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

/// Starts the command, and counts until it ends.
fn count(args: &Args, library: &Path, printer: &Printer) -> anyhow::Result<Run> {
    let interrupted = catch_signals()?;
    let folder = Folder::new(false).context("cannot create a folder for the counts")?;
    let own = std::env::current_exe().context("cannot find the path of allocwall itself")?;
    // Ends the command and removes the folder, even if allocwall is killed.
    let guard = guard(Some(folder.path()), &own)?;
    let every = if args.exact { Some(0) } else { args.every };
    let mut env = allocations::environment(folder.path(), every, false);
    let preloaded = allocations::preloads(library, std::env::var_os("LD_PRELOAD").as_deref());
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
        let pause = allocations::pause(passed);
        std::thread::sleep(
            args.duration.map_or(pause, |duration| pause.min(duration.saturating_sub(passed))),
        );
    };
    printer.redraw("", lines);
    // Before the command is ended: what it frees then is not part of its work.
    let mut counted = watch.finish().counted;
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
    use allocwall_model::allocations::{Calls, CountedProcess, Lost};

    #[test]
    fn runtimes_with_heaps_of_their_own_are_named() {
        let mut facts = TargetFacts::of(&["/bin/sh".into()], &[]).expect("a shell");
        facts.beyond = None;
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
}
