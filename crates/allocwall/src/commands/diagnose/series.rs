//! `diagnose --repeat`: windows of the same target, one after the other, and one report over all of them.

use super::{Args, default_output, end, record_window, target};
use crate::commands::shared::diagnosis::Diagnosis;
use crate::commands::shared::formats::Format;
use crate::commands::shared::pages;
use crate::commands::shared::processes::Attached;
use crate::commands::shared::signals::catch_signals;
use crate::printer::Printer;
use allocwall_diagnose::series::{FEWEST, Series, Window, judge, time};
use allocwall_diagnose::{Reach, main_process};
use allocwall_host::clock;
use allocwall_host::launch::Launched;
use allocwall_measure::record::{SHORTEST_WINDOW, Target};
use allocwall_model::allocations::not_counted;
use allocwall_model::recording::{Ended, Recording};
use allocwall_model::units::count;
use allocwall_report::{html, series};
use allocwall_trial::run::Guard;
use anyhow::bail;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The default window. Windows are judged together, so that each may be shorter than a single one.
const WINDOW: Duration = Duration::from_secs(5);
const EVERY: Duration = Duration::from_secs(60);
/// Limit of windows, which bounds the memory and the time of the report.
const MOST: usize = 500;
/// Pause between two checks whether the target still runs, and whether the user interrupts.
const GLANCE: Duration = Duration::from_millis(200);

#[derive(Debug, PartialEq)]
pub struct Plan {
    windows: usize,
    window: Duration,
    /// From the start of a window to the start of the next one.
    every: Duration,
}

pub fn parse_repeat(text: &str) -> Result<usize, String> {
    let windows = text.parse().ok().filter(|windows| (2..=MOST).contains(windows));
    windows.ok_or_else(|| format!("a series has 2 to {MOST} windows"))
}

impl Plan {
    /// # Errors
    /// One line: a window would begin before the end of the one before it, or there is one file for all recordings.
    pub fn of(args: &Args, windows: usize, report: Option<Format>) -> anyhow::Result<Plan> {
        if let Some(output) = &args.output {
            bail!(
                "{} can't hold the recordings of a series, which are kept in the state directory: -o NAME.html or NAME.json writes its report",
                output.display()
            );
        }
        if report.is_some_and(|format| !matches!(format, Format::Html | Format::Json)) {
            bail!("the report of a series is a page or a JSON document: -o NAME.html or -o NAME.json");
        }
        let every = args.every.unwrap_or_else(|| EVERY.max(args.duration.unwrap_or_default()));
        let window = args.duration.unwrap_or(WINDOW.min(every).max(SHORTEST_WINDOW));
        if every < window {
            bail!(
                "--every {every:?} is shorter than a window of {window:?}: choose a longer time, or a shorter window with -d"
            );
        }
        Ok(Plan { windows, window, every })
    }
}

pub fn run(
    args: &Args,
    plan: &Plan,
    report: Option<&(PathBuf, Format)>,
    guard: Option<&Guard>,
    printer: &Printer,
) -> anyhow::Result<ExitCode> {
    if plan.windows < FEWEST {
        let windows = count(plan.windows, "window");
        printer.note(&format!("{windows}: too few to judge what grew, which needs at least {FEWEST}"));
    }
    let interrupted = catch_signals()?;
    let mut first = Some(target(args, guard, printer));
    let mut attached = match &first {
        Some(Target::Cgroup(path)) => Attached::Cgroup(path.clone()),
        Some(Target::Pids(pids)) => Attached::processes(pids),
        // It is started with the first window.
        Some(Target::Launch { .. }) | None => Attached::Processes(vec![]),
    };
    let mut launched: Option<Launched> = None;
    let mut keeps_files = true;
    let mut series = Series {
        target: String::new(),
        planned: plan.windows,
        every_s: plan.every.as_secs_f64(),
        windows: vec![],
        ended: None,
    };
    let began_ns = clock::monotonic_ns();
    while series.ended.is_none() && series.windows.len() < plan.windows {
        let next = match first.take() {
            Some(target) => target,
            None => {
                let due_ns = began_ns + series.windows.len() as u64 * plan.every.as_nanos() as u64;
                match await_next(due_ns, &series, &mut attached, &interrupted, printer) {
                    Some(target) => target,
                    None => {
                        series.ended = Some(why_ended(launched.as_ref(), &interrupted));
                        break;
                    }
                }
            }
        };
        let output = if keeps_files { default_output(printer) } else { None };
        keeps_files = output.is_some();
        let at_s = (clock::monotonic_ns() - began_ns) as f64 / 1e9;
        let counting = Err(not_counted());
        let recorded = match record_window(args, next, counting, plan.window, output, &interrupted, printer) {
            Ok(recorded) => recorded,
            Err(error) if series.windows.is_empty() => return Err(error.into()),
            Err(error) => {
                series.ended = Some(error.to_string());
                break;
            }
        };
        if let Some(failure) = &recorded.file_failure {
            printer.warn(&format!("{failure}; the series is complete, but its recordings are not kept"));
            keeps_files = false;
        }
        if let Some(child) = recorded.launched {
            let pids: Vec<i32> =
                recorded.recording.processes.iter().map(|process| process.pid).take(1).collect();
            attached = Attached::processes(&pids);
            launched = Some(child);
        }
        series.ended = cut_short(&recorded.recording);
        add(&mut series, at_s, recorded.recording, recorded.path.as_deref(), printer);
    }
    if let Some(why) = &series.ended {
        let windows = count(series.windows.len(), "window");
        printer.note(&format!("the series ended after {windows} of {}: {why}", plan.windows));
    }
    let judged = judge(&series.windows);
    let shown = match args.json {
        true => series::document(&series, &judged),
        false => series::text(&series, &judged, printer.style()),
    };
    let printed = printer.data(&shown);
    end(launched.as_mut(), args, "series", printer);
    printed?;
    if let Some((path, format)) = report {
        let report = match format {
            Format::Json => series::document(&series, &judged),
            _ => html::series(&series, &judged),
        };
        pages::write(path, report.as_bytes(), None, printer)?;
    }
    let unmeasured = series.windows.iter().all(|window| !window.sampled && window.reach == Reach::NotSampled);
    let stopped = args.fail_on.is_some() && judged.stops_a_gate(&series.windows);
    Ok(if unmeasured || stopped { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Waits until the next window is due. None if the target has ended, or the user interrupts.
fn await_next(
    due_ns: u64,
    series: &Series,
    attached: &mut Attached,
    interrupted: &AtomicBool,
    printer: &Printer,
) -> Option<Target> {
    let next = loop {
        let target = attached.target();
        // Relaxed: the flag guards no other data.
        if target.is_none() || interrupted.load(Ordering::Relaxed) {
            break None;
        }
        let now_ns = clock::monotonic_ns();
        if now_ns >= due_ns {
            break target;
        }
        let left = time((due_ns - now_ns) as f64 / 1e9);
        let number = series.windows.len() + 1;
        printer.progress_line(&format!("window {number} of {} in {left}", series.planned));
        clock::sleep_until(due_ns.min(now_ns + GLANCE.as_nanos() as u64));
    };
    printer.clear_line();
    next
}

fn why_ended(launched: Option<&Launched>, interrupted: &AtomicBool) -> String {
    if interrupted.load(Ordering::Relaxed) {
        return "interrupted".to_owned();
    }
    match launched.and_then(Launched::exited) {
        Some(status) => format!("the target ended ({status})"),
        None => "the target ended".to_owned(),
    }
}

/// Why a window ended early, and the series with it.
fn cut_short(recording: &Recording) -> Option<String> {
    match &recording.meta.ended {
        Ended::Complete | Ended::CutOff => None,
        Ended::Interrupted => Some("interrupted".to_owned()),
        Ended::TargetExited { status: Some(status) } => Some(format!("the target ended ({status})")),
        Ended::TargetExited { status: None } => Some("the target ended".to_owned()),
    }
}

/// Adds a window, unless it was cut to less than half and there are others: it would look like a change of the target.
fn add(series: &mut Series, at_s: f64, recording: Recording, file: Option<&Path>, printer: &Printer) {
    let whole = recording.meta.window_ns >= recording.meta.requested_ns / 2;
    if !whole && !series.windows.is_empty() {
        return;
    }
    if series.target.is_empty() {
        series.target = named(&recording);
    }
    let Diagnosis { recording, bill, verdict, .. } = Diagnosis::of(recording, None);
    let window = Window {
        // A path that is not UTF-8 cannot be copied from a terminal, so it is left out.
        file: file.and_then(Path::to_str).map(str::to_owned),
        ..Window::of(at_s, &recording, &bill, &verdict)
    };
    let walls: Vec<&str> = window.walls.iter().map(|wall| wall.title()).collect();
    let walls = if walls.is_empty() { "no wall".to_owned() } else { walls.join(", ") };
    let kept = window.file.as_ref().map_or(String::new(), |file| format!("; recording: {file}"));
    let number = series.windows.len() + 1;
    printer.note(&format!("window {number} of {}: {walls}{kept}", series.planned));
    series.windows.push(window);
}

/// The command line of the process that used most CPU time.
fn named(recording: &Recording) -> String {
    match main_process(recording) {
        Some(process) if !process.cmdline.is_empty() => process.cmdline.join(" "),
        Some(process) => process.comm.clone(),
        None => "no process found".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn plan(options: &[&str]) -> Result<Plan, String> {
        let words = ["diagnose", "-p", "1", "--repeat", "6"].iter().chain(options);
        let line = Line::try_parse_from(words).map_err(|error| error.to_string())?;
        Plan::of(&line.args, line.args.repeat.unwrap_or(0), None).map_err(|error| error.to_string())
    }

    #[test]
    fn a_series_has_a_short_window_every_minute_unless_it_is_asked_for_others() {
        let of = |options: &[&str]| {
            let plan = plan(options).unwrap();
            (plan.windows, plan.window.as_millis(), plan.every.as_millis())
        };
        assert_eq!(of(&[]), (6, 5_000, 60_000));
        assert_eq!(of(&["--every", "10"]), (6, 5_000, 10_000));
        // The default of the one follows the other.
        assert_eq!(of(&["--every", "2s"]), (6, 2_000, 2_000));
        assert_eq!(of(&["-d", "2m"]), (6, 120_000, 120_000));
        assert_eq!(of(&["-d", "500ms", "--every", "500ms"]), (6, 500, 500));
    }

    #[test]
    fn windows_that_would_overlap_are_refused_in_one_line() {
        for options in [&["-d", "10", "--every", "9s"][..], &["--every", "100ms"]] {
            let line = plan(options).unwrap_err();
            assert!(line.starts_with("--every ") && line.contains("shorter than a window"), "{line}");
            assert!(!line.contains('\n'), "{line}");
        }
    }

    #[test]
    fn a_series_has_at_least_two_windows_and_a_limit() {
        for (text, windows) in [("2", 2), ("12", 12), ("500", 500)] {
            assert_eq!(parse_repeat(text), Ok(windows));
        }
        for text in ["0", "1", "501", "-3", "", "many", "2.5"] {
            assert!(parse_repeat(text).unwrap_err().contains("2 to 500"), "{text}");
        }
        let line = Line::try_parse_from(["diagnose", "-p", "1", "--repeat", "6"]).unwrap();
        assert!(Plan::of(&line.args, 6, Some(Format::Json)).is_ok());
        assert!(Plan::of(&line.args, 6, Some(Format::Pprof)).unwrap_err().to_string().contains("NAME.json"));
        // What a series has no use for.
        for options in [&["-o", "file"][..], &["--verify"], &["--every", "0"]] {
            assert!(plan(options).is_err(), "{options:?}");
        }
        assert!(Line::try_parse_from(["diagnose", "-p", "1", "--every", "5"]).is_err());
        let of_file =
            Line::try_parse_from(["diagnose", "file", "--repeat", "5"]).expect("it may be a process");
        assert_eq!(of_file.args.of_a_window(), Some("--repeat"));
    }
}
