//! `allocwall diagnose`: bill, ladder, verdict and remedies for a process, a command or a recording.

mod loaded;
mod series;

use crate::commands::shared::arms;
use crate::commands::shared::counting;
use crate::commands::shared::diagnosis::{Diagnosis, extent, readers};
use crate::commands::shared::formats::{Format, Source, Table};
use crate::commands::shared::options::{Header, Time, parse_time};
use crate::commands::shared::pages;
use crate::commands::shared::processes::{self, parse_pid};
use crate::commands::shared::signals::catch_signals;
use crate::commands::shared::state::{RECORDING, new_state_file};
use crate::commands::shared::trial_options::Options;
use crate::commands::shared::usage::{is_usage, usage};
use crate::commands::trial::{self, Reported};
use crate::printer::Printer;
use allocwall_diagnose::expected;
use allocwall_host::launch::{self, Launched};
use allocwall_measure::allocations::Counting;
use allocwall_measure::calibrate::{self, missing};
use allocwall_measure::file::{self, Part};
use allocwall_measure::record::{self, DEFAULT_WINDOW, Recorded, Request, Target};
use allocwall_model::allocations::{Counted, not_counted};
use allocwall_model::error::Error;
use allocwall_model::recording::{Ended, Recording};
use allocwall_model::replay::Replay;
use allocwall_model::shell::quoted;
use allocwall_model::trace::Trace;
use allocwall_model::units::{Absence, Measured, Reason, count};
use allocwall_report::html::Tried;
use allocwall_report::text::{Extent, Style};
use allocwall_trial::arm::{self, Arm, TargetFacts};
use allocwall_trial::predict;
use allocwall_trial::run::{self, Guard};
use anyhow::Context;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[derive(clap::Args)]
#[command(
    override_usage = "allocwall diagnose [OPTIONS] <-p PID[,PID…] | --cgroup PATH | --container NAME | FILE | -- CMD…>"
)]
pub struct Args {
    /// Processes to diagnose, with their descendants. Those that are gone are left out
    #[arg(short, long, value_name = "PID", value_delimiter = ',', num_args = 1.., allow_negative_numbers = true, value_parser = parse_pid, conflicts_with_all = ["cgroup", "file", "command"])]
    pid: Vec<i32>,

    /// All processes of a control group (a container): a path as in /proc/PID/cgroup or below /sys/fs/cgroup
    #[arg(long, value_name = "PATH", conflicts_with_all = ["file", "command"])]
    cgroup: Option<String>,

    /// All processes of a container of Docker, Podman, containerd or Kubernetes: its name (POD, POD/CONTAINER), its id or the
    /// start of it
    #[arg(long, value_name = "NAME", conflicts_with_all = ["pid", "cgroup", "file", "command"])]
    container: Option<String>,

    /// Length of the window: 15, 15s, 500ms, 2m [default: 15s]
    #[arg(short, long, value_name = "TIME", allow_hyphen_values = true, value_parser = parse_duration)]
    duration: Option<Duration>,

    /// Samples per second and CPU [default: 999; in a virtual machine 199 to 499: the longer the window, the fewer]
    #[arg(long, value_name = "HZ", value_parser = clap::value_parser!(u32).range(10..=5_000))]
    rate: Option<u32>,

    /// Write the recording to this file [default: a file in the state directory]. A name that ends in .html or .json, or in the
    /// extension of another format (docs/formats.md): write the report in this format to it, besides the text; the recording is in
    /// the state directory then. With --repeat, only .html or .json
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Print this format instead of text
    #[arg(short, long, value_enum, conflicts_with_all = ["repeat", "verify"])]
    format: Option<Format>,

    /// The table of `--format csv` and `--format parquet` [default: bill]
    #[arg(long, value_enum, requires = "format")]
    table: Option<Table>,

    /// Print the versioned JSON document (docs/json.md) instead of text
    #[arg(long, conflicts_with = "format")]
    json: bool,

    /// Print everything that was measured: all rungs of the ladder, all remedies, call sites, runtimes, counters, limits
    #[arg(long, conflicts_with_all = ["json", "repeat"])]
    all: bool,

    /// Diagnose N windows, 2 to 500, and give one verdict over them: which walls last, in which windows, and what grew.
    /// The default window is 5s then. Each recording is kept in the state directory, which holds the newest 32. A launched
    /// command runs on between the windows; its end, or Ctrl-C, ends the series, and what was measured is reported
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = series::parse_repeat, conflicts_with = "verify")]
    repeat: Option<usize>,

    /// Time from the start of a window to the start of the next one; nothing is recorded between windows [default: 1m]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, requires = "repeat", value_parser = parse_time)]
    every: Option<Duration>,

    /// After the window, measure no prices of this machine that the predictions need. By default that takes at most 3 s, at idle
    /// priority, on the CPU that is idle most, and ends if other work needs that CPU most of the time
    #[arg(long, conflicts_with_all = ["file", "repeat"])]
    no_calibrate: bool,

    /// Exit with status 1 if a wall was found (`waiting` does not count), or if walls could not be ruled out because
    /// samples or kernel symbols are missing
    #[arg(long, value_name = "WHAT", value_parser = ["wall"])]
    fail_on: Option<String>,

    /// Leave the launched command running after the window; by default it is ended (SIGTERM, then SIGKILL)
    #[arg(long, requires = "command", conflicts_with_all = ["pid", "cgroup", "container", "file"])]
    keep_running: bool,

    /// Also count exactly what the command asks of its allocator, with a preloaded library, and replay these calls with other
    /// allocators after the window. The ladder and the predictions use both (docs/count.md)
    #[arg(long, requires = "command", conflicts_with_all = ["pid", "cgroup", "container", "file", "keep_running", "repeat"])]
    count: bool,

    /// After the diagnosis, try up to three of the offered remedies on the command, against the baseline (allocwall trial)
    #[arg(long, requires = "command", conflicts_with_all = ["pid", "cgroup", "container", "file", "keep_running", "json"])]
    verify: bool,

    /// With --verify: as many blocks of the trial as fit into this time, not counting the time before the first block: 5m, 90s.
    /// If too few for a result fit, the trial is left out
    #[arg(long, value_name = "TIME", requires = "verify")]
    budget: Option<Time>,

    /// The command is a server: load it with requests for this URL while it is recorded, at 70 % of its capacity, which is
    /// measured before; also in the trial of --verify. `allocwall trial` has more options for the load
    #[arg(long, value_name = "URL", requires = "command", conflicts_with_all = ["pid", "cgroup", "container", "file", "keep_running", "repeat", "count", "load_cmd"])]
    load: Option<String>,

    /// With --load: file with the body of the requests, which are POST requests then
    #[arg(long, value_name = "FILE", requires = "load")]
    body: Option<PathBuf>,

    /// With --load: HTTP header of the requests: 'Content-Type: application/json'; may be repeated
    #[arg(long, value_name = "NAME: VALUE", requires = "load")]
    header: Vec<Header>,

    /// The same with a load command (wrk, redis-benchmark, pgbench and others: see `allocwall trial --help`)
    #[arg(long, value_name = "CMD", requires_all = ["command", "ready"], conflicts_with_all = ["pid", "cgroup", "container", "file", "keep_running", "repeat", "count"])]
    load_cmd: Option<String>,

    /// With --load or --load-cmd: the server is ready when this address answers: http://127.0.0.1:PORT/path or
    /// tcp:127.0.0.1:PORT [default with --load: its address]
    #[arg(long, value_name = "WHERE", requires = "command")]
    ready: Option<String>,

    /// A recording to diagnose again; a number that is no file is a process, as after -p
    #[arg(conflicts_with = "command")]
    file: Option<PathBuf>,

    /// A command to start and diagnose; its standard output goes to standard error
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

impl Args {
    /// The processes of a container, and what a bare number means, as if the user had given them with -p.
    ///
    /// # Errors
    /// No target or no usable one, or options that a recording doesn't have.
    fn with_processes(mut self, printer: &Printer) -> anyhow::Result<Args> {
        if let Some(name) = &self.container {
            self.pid = processes::of_container(name, printer)?;
        }
        if let Some(pid) = self.file.as_deref().and_then(bare_pid) {
            (self.file, self.pid) = (None, vec![pid]);
        }
        if self.pid.is_empty() && self.cgroup.is_none() && self.file.is_none() && self.command.is_empty() {
            return Err(usage(
                "no target given: use -p PID, --cgroup PATH, --container NAME, FILE (a recording) or -- CMD…",
            ));
        }
        if let (Some(option), Some(file)) = (self.of_a_window(), &self.file) {
            let file = file.display();
            return Err(usage(format!(
                "{option} can't be used with {file}: a recording has its window already"
            )));
        }
        self.pid = processes::living(self.pid, printer)?;
        Ok(self)
    }

    /// The first option that says how to record.
    fn of_a_window(&self) -> Option<&'static str> {
        let given = [
            ("--duration", self.duration.is_some()),
            ("--rate", self.rate.is_some()),
            ("--output", self.output.is_some()),
            ("--repeat", self.repeat.is_some()),
        ];
        given.into_iter().find(|(_, given)| *given).map(|(option, _)| option)
    }
}

/// The process that a user means who leaves out -p.
fn bare_pid(file: &Path) -> Option<i32> {
    let text = file.to_str().filter(|text| text.bytes().all(|b| b.is_ascii_digit()))?;
    parse_pid(text).ok().filter(|_| !file.exists())
}

/// # Errors
/// The file can't be read. If there is none, the error says how to name another target.
fn read(file: &Path) -> anyhow::Result<Recording> {
    file::read(file).map_err(|error| match &error {
        Error::File { cause, .. } if cause.kind() == ErrorKind::NotFound => {
            let name = file.display();
            let word = quoted(&name.to_string());
            anyhow::anyhow!(
                "there is no recording {name}; a process is given with -p PID, a container with --container {word}, \
                 a command after --: allocwall diagnose -- {word}"
            )
        }
        Error::Recording { .. } if is_program(file) => {
            let command = quoted(&file.display().to_string());
            anyhow::anyhow!(
                "{} is a program, not a recording: a command is given after --: allocwall diagnose -- {command}",
                file.display()
            )
        }
        _ => error.into(),
    })
}

/// A regular file that may be executed.
fn is_program(file: &Path) -> bool {
    std::fs::metadata(file).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

pub fn run(mut args: Args, printer: &Printer) -> anyhow::Result<ExitCode> {
    let report = pages::take_report(&mut args.output)?;
    let args = args.with_processes(printer)?;
    if args.ready.is_some() && args.load.is_none() && args.load_cmd.is_none() {
        return Err(usage("--ready has no effect without --load URL or --load-cmd CMD"));
    }
    let mut load = loaded::load(&args);
    let of_series = report.as_ref().map(|(_, format)| *format);
    let plan = args.repeat.map(|windows| series::Plan::of(&args, windows, of_series));
    let plan = plan.transpose().map_err(usage)?;
    let format = Format::chosen(args.format, args.json, None)?;
    format.check(Source::Recording, args.table, printer.stdout_is_terminal())?;
    let counting = if args.count { counting::start(&args.command, printer) } else { Err(not_counted()) };
    if let (true, Err(absence)) = (args.count, &counting) {
        printer.note(&format!("the calls of the allocator are not counted: {}", absence.with_advice()));
    }
    // The launched command must not outlive allocwall, even if allocwall is killed. Neither must the folder of the counts.
    let guard = if !args.command.is_empty() && !args.keep_running {
        Some(run::guard(counting.as_ref().ok().map(Counting::folder), &own_path()?)?)
    } else {
        None
    };
    if let Some(plan) = plan {
        return series::run(&args, &plan, report.as_ref(), guard.as_ref(), printer);
    }
    let mut lost = false;
    let (mut diagnosis, mut launched) = match &args.file {
        Some(path) => (Diagnosis::of(read(path)?, Some(path.clone())), None),
        None => {
            let mut recorded = match &mut load {
                Some(load) => loaded::record(&args, load, printer)?,
                None => record_now(&args, counting, guard.as_ref(), printer)?,
            };
            if let Some(failure) = &recorded.file_failure {
                printer
                    .warn(&format!("{failure}; the diagnosis is complete, but the recording was not kept"));
                lost = args.output.is_some();
            }
            if let Some(path) = &recorded.path {
                printer.note(&format!("recording: {}", path.display()));
            }
            replay(&args, &mut recorded, printer);
            let diagnosis = Diagnosis::of(recorded.recording, recorded.path);
            if args.no_calibrate {
                (diagnosis, recorded.launched)
            } else {
                (priced(diagnosis, &args, recorded.launched.as_mut(), printer)?, recorded.launched)
            }
        }
    };
    let printed = diagnosis
        .render(format, args.table, extent(args.all), printer.style())
        .and_then(|report| printer.bytes(&report));
    end(launched.as_mut(), &args, "window", printer);
    printed?;
    let mut tried = Ok(ExitCode::SUCCESS);
    if args.verify {
        let options = Options { budget: args.budget, ..load.unwrap_or_default() };
        let trial;
        (trial, tried) = verify(&args, options, &diagnosis, printer);
        diagnosis.tried = Some(trial);
    }
    // After the trial, which is part of a page. Without a trial, the page says why.
    if let Some((path, format)) = &report {
        let report = diagnosis.render(*format, args.table, Extent::All, Style::FILE)?;
        pages::write(path, &report, diagnosis.file.as_deref(), printer)?;
    }
    let tried = tried?;
    let Diagnosis { recording, bill, verdict, .. } = &diagnosis;
    let unsampled = bill.on_cpu.is_err();
    let unmeasured = unsampled
        && allocwall_diagnose::reach(recording, bill, verdict) == allocwall_diagnose::Reach::NotSampled;
    let stopped = args.fail_on.is_some() && allocwall_diagnose::stops_a_gate(recording, bill, verdict);
    Ok(if unmeasured || stopped || lost { ExitCode::FAILURE } else { tried })
}

/// Ends the launched command, unless it should run on. `what` is over.
fn end(launched: Option<&mut Launched>, args: &Args, what: &str, printer: &Printer) {
    if let Some(child) = launched
        && !args.keep_running
        && child.running()
    {
        // A command that is counted can't be left running: nothing would read its counts.
        let hint = if args.count { "" } else { " (use --keep-running to leave it running)" };
        printer.note(&format!("the {what} is over: ending the command{hint}"));
        child.end();
    }
}

fn own_path() -> anyhow::Result<PathBuf> {
    std::env::current_exe().context("cannot find the path of allocwall itself")
}

/// Makes the counted calls again with other allocators and settings, and adds their costs to the recording. The command is ended
/// before: it would compete for the CPUs. What fails here is a limit of the report.
fn replay(args: &Args, recorded: &mut Recorded, printer: &Printer) {
    let recording = &mut recorded.recording;
    let Ok(counted) = &recording.counted else { return };
    if matches!(recording.meta.ended, Ended::Interrupted) {
        return;
    }
    end(recorded.launched.as_mut(), args, "window", printer);
    printer.note("replaying the counted calls with other allocators: this takes some seconds");
    recording.replayed = replayed(args, counted, &recorded.traces, printer)
        .unwrap_or_else(|error| Err(Absence::new(Reason::NotSupported, format!("{error:#}"))));
    if let Err(absence) = &recording.replayed {
        printer.note(&format!("the counted calls could not be replayed: {}", absence.with_advice()));
    }
    let part = Part::Replayed(Box::new(recording.replayed.clone()));
    if let Some(Err(error)) = recorded.path.as_ref().map(|path| file::append(path, &part)) {
        printer.warn(&format!("{error}; the recording was kept without the replay"));
    }
}

/// The same diagnosis with the prices of this machine that its predictions need. What is measured now becomes part of the
/// recording. The launched command is ended before: it would need the CPUs.
fn priced(
    diagnosis: Diagnosis,
    args: &Args,
    launched: Option<&mut Launched>,
    printer: &Printer,
) -> anyhow::Result<Diagnosis> {
    let Diagnosis { recording, verdict, .. } = &diagnosis;
    let wanted = expected::prices::missing(recording, &verdict.remedies);
    if wanted.is_empty() || matches!(recording.meta.ended, Ended::Interrupted) {
        return Ok(diagnosis);
    }
    end(launched, args, "window", printer);
    printer.note(&format!(
        "measuring {} of this machine for the predictions: at most {} s, at idle priority",
        count(wanted.len(), "price"),
        missing::MOST.as_secs()
    ));
    let interrupted = catch_signals()?;
    let Diagnosis { mut recording, file, .. } = diagnosis;
    recording.prices = match missing::measure(&wanted, &recording.prices, &interrupted) {
        Ok(found) => {
            if let Some(why) = found.not_kept {
                printer.warn(&format!("the prices are not kept for other diagnoses: {why}"));
            }
            Ok(found.list)
        }
        Err(absence) => Err(absence),
    };
    let part = Part::Priced(Box::new(recording.prices.clone()));
    if let Some(Err(error)) = file.as_ref().map(|path| file::append(path, &part)) {
        printer.warn(&format!("{error}; the recording was kept without the prices"));
    }
    Ok(Diagnosis::of(recording, file))
}

/// With all allocators and tunables of malloc that this machine has for the command.
fn replayed(
    args: &Args,
    counted: &Counted,
    traces: &[Trace],
    printer: &Printer,
) -> anyhow::Result<Measured<Replay>> {
    let interrupted = catch_signals()?;
    let facts = TargetFacts::of(&args.command, &arms::environment())?;
    let inventory = arms::inventory(printer);
    let resolved = |key: &str| {
        let arm = Arm::parse(key).ok()?;
        let applied = arm.resolve(&inventory, &facts).ok()?;
        predict::variant(&arm, &applied.env)
    };
    let variants: Vec<_> = arm::names().filter_map(resolved).collect();
    Ok(calibrate::replay::measure(counted, traces, &variants, &own_path()?, &interrupted))
}

/// How many of the offered remedies --verify tries, of those that a trial can apply when it starts the command.
const TRIED: usize = 3;

/// The trial of the offered remedies, or why there is none, and the exit status or the error that it gives.
fn verify(
    args: &Args,
    options: Options,
    diagnosis: &Diagnosis,
    printer: &Printer,
) -> (Measured<Tried>, anyhow::Result<ExitCode>) {
    // Report what was measured, start nothing new.
    if matches!(diagnosis.recording.meta.ended, Ended::Interrupted) {
        return (Err(no_trial("the diagnosis was interrupted")), Ok(ExitCode::SUCCESS));
    }
    let error = match try_remedies(args, options, diagnosis, printer) {
        Ok(Some(Reported { outcome, path, failed, status })) => {
            let file = path.to_str().map(str::to_owned);
            return (Ok(Tried { outcome, failed, file }), Ok(status));
        }
        Ok(None) => return (Err(no_trial(NOTHING_TO_TRY)), Ok(ExitCode::SUCCESS)),
        Err(error) => error,
    };
    let why = no_trial(&format!("{error:#}"));
    if !is_usage(&error) {
        return (Err(why), Err(error));
    }
    // The diagnosis is a result of its own.
    printer.warn(&format!("the trial was left out: {error}"));
    (Err(why), Ok(ExitCode::FAILURE))
}

fn no_trial(why: &str) -> Absence {
    Absence::new(Reason::NotApplicable, why)
}

const NOTHING_TO_TRY: &str = "no offered remedy can be applied when the command is started";

/// None if there is nothing to try.
fn try_remedies(
    args: &Args,
    options: Options,
    diagnosis: &Diagnosis,
    printer: &Printer,
) -> anyhow::Result<Option<Reported>> {
    let named = diagnosis
        .verdict
        .remedies
        .iter()
        .map(|offer| offer.remedy.as_str())
        .filter(|key| arm::names().any(|name| name == *key));
    let facts = TargetFacts::of(&args.command, &arms::environment())?;
    let inventory = arms::inventory(printer);
    let mut applicable = Vec::new();
    for key in named {
        if applicable.len() == TRIED {
            break;
        }
        // If a library or a package is not installed, the other remedies are still tried.
        match Arm::parse(key).and_then(|arm| arm.resolve(&inventory, &facts)) {
            Ok(_) => applicable.push(key),
            Err(refusal) => printer.note(&format!("not tried: {refusal}")),
        }
    }
    if applicable.is_empty() {
        printer.note(&format!("nothing to verify: {NOTHING_TO_TRY}"));
        return Ok(None);
    }
    printer.data("\n")?;
    let trial = trial::Args::of(&applicable, &args.command, options);
    printer.note(&format!("trying {} against the baseline: {}", applicable.join(", "), trial.command_line()));
    trial::report(trial, printer).map(Some)
}

fn record_now(
    args: &Args,
    counting: Measured<Counting>,
    guard: Option<&Guard>,
    printer: &Printer,
) -> anyhow::Result<Recorded> {
    let mut target = target(args, guard, printer);
    if let (Target::Launch { env, .. }, Ok(counting)) = (&mut target, &counting) {
        env.extend(counting.environment());
    }
    let window = args.duration.unwrap_or(DEFAULT_WINDOW);
    let output = match &args.output {
        Some(path) => Some(path.clone()),
        None => default_output(printer),
    };
    let interrupted = catch_signals()?;
    let recorded = record_window(args, target, counting, window, output, &interrupted, printer)?;
    if interrupted.load(Ordering::Relaxed) {
        printer.note("interrupted: reporting what was measured so far");
    }
    Ok(recorded)
}

fn target(args: &Args, guard: Option<&Guard>, printer: &Printer) -> Target {
    let target = match (&args.pid[..], &args.cgroup, &args.command[..]) {
        ([], Some(path), _) => Target::Cgroup(path.clone()),
        ([], None, command) => Target::Launch {
            command: command.to_vec(),
            env: guard.map(Guard::mark).into_iter().collect(),
            keep: args.keep_running,
            talk: launch::Talk::Aside,
        },
        (pids, ..) => Target::Pids(pids.to_vec()),
    };
    if matches!(target, Target::Launch { .. }) && launch::stdin_withheld() {
        printer.note("the command reads from /dev/null, not from this terminal (to give it input: < FILE)");
    }
    target
}

fn record_window(
    args: &Args,
    target: Target,
    counting: Measured<Counting>,
    window: Duration,
    output: Option<PathBuf>,
    interrupted: &AtomicBool,
    printer: &Printer,
) -> allocwall_model::error::Result<Recorded> {
    let bar = printer.bar("recording", window);
    record::record(Request {
        target,
        window,
        rate_hz: args.rate,
        closely: false,
        counting,
        memory: true,
        output,
        prices: calibrate::cached(),
        readers: readers(),
        interrupted,
        progress: &mut |part| bar.set(part),
    })
}

/// A new name in the state directory. Warns and returns None if the directory cannot be written.
fn default_output(printer: &Printer) -> Option<PathBuf> {
    match new_state_file(RECORDING, printer) {
        Ok(path) => Some(path),
        Err(e) => {
            printer.warn(&format!("{e}; the recording is not kept (to keep it: -o FILE)"));
            None
        }
    }
}

fn parse_duration(text: &str) -> Result<Duration, String> {
    let window = parse_time(text)?;
    if window < record::SHORTEST_WINDOW || window > record::LONGEST_WINDOW {
        return Err(format!(
            "choose a time from {:?} to {:?}",
            record::SHORTEST_WINDOW,
            record::LONGEST_WINDOW
        ));
    }
    Ok(window)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_in_place_of_a_recording_is_told_from_other_files() {
        let folder = tempfile::tempdir().unwrap();
        let refused = |name: &str, mode: u32| {
            let file = folder.path().join(name);
            std::fs::write(&file, "no recording").unwrap();
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
            read(&file).unwrap_err().to_string()
        };
        let program = refused("program", 0o755);
        assert!(program.contains("is a program") && program.contains("allocwall diagnose -- "), "{program}");
        let other = refused("other", 0o644);
        assert!(other.contains("not a usable recording") && !other.contains("diagnose --"), "{other}");
    }

    #[test]
    fn a_name_that_is_no_recording_may_be_a_process_or_a_container() {
        let error = read(Path::new("web")).unwrap_err().to_string();
        for words in ["no recording web", "-p PID", "--container web,", "allocwall diagnose -- web"] {
            assert!(error.contains(words) && !error.contains('\n'), "{words}: {error}");
        }
    }

    #[test]
    fn durations() {
        assert_eq!(parse_duration("15"), Ok(Duration::from_secs(15)));
        assert_eq!(parse_duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("2m"), Ok(Duration::from_secs(120)));
        for bad in ["", "0", "-1", "10x", "NaN", "1e300", "99999999999", "2h", "2d", "1ms", "..", "٣"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
    }
}
