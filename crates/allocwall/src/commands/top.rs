//! `allocwall top`: the bill of a running target, window after window, in the terminal or as text.

mod budget;
mod json;
mod keys;
mod live;
mod screen;
mod state;
mod terminal;
#[cfg(test)]
mod testing;
mod windows;

use crate::commands::shared::options::parse_time;
use crate::commands::shared::processes::{self, parse_pid};
use crate::commands::shared::signals::catch_signals;
use crate::commands::shared::usage::usage;
use crate::printer::{Printer, is_dumb};
use allocwall_measure::record::{LONGEST_WINDOW, SHORTEST_WINDOW, Target};
use allocwall_model::units;
use state::State;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use windows::{Next, Windows};

#[derive(clap::Args)]
#[command(override_usage = "allocwall top [OPTIONS] <-p PID[,PID…] | --cgroup PATH | --container NAME>")]
pub struct Args {
    /// Processes to watch, with their descendants
    #[arg(short, long, value_name = "PID", value_delimiter = ',', num_args = 1.., allow_negative_numbers = true, value_parser = parse_pid, conflicts_with_all = ["cgroup", "container"])]
    pid: Vec<i32>,

    /// All processes of a control group (a container): a path as in /proc/PID/cgroup or below /sys/fs/cgroup
    #[arg(long, value_name = "PATH", conflicts_with = "container")]
    cgroup: Option<String>,

    /// All processes of a container of Docker, Podman, containerd or Kubernetes: its name (POD, POD/CONTAINER), its id or the
    /// start of it
    #[arg(long, value_name = "NAME")]
    container: Option<String>,

    /// Length of a window, 500ms to 1h. Windows follow one another, with a pause if allocwall would use more than 1 % of the
    /// machine's CPU time
    #[arg(long, value_name = "TIME", default_value = "2s", allow_hyphen_values = true, value_parser = parse_every)]
    every: Duration,

    /// Print a block of text for each window, also in a terminal. That is what happens without a terminal
    #[arg(long)]
    batch: bool,

    /// End after N windows; implies --batch
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,

    /// The same as --count 1
    #[arg(long, conflicts_with = "count")]
    once: bool,

    /// Print one JSON object for each window, in one line (docs/json.md)
    #[arg(long)]
    json: bool,
}

fn parse_every(text: &str) -> Result<Duration, String> {
    let every = parse_time(text)?;
    match (SHORTEST_WINDOW..=LONGEST_WINDOW).contains(&every) {
        true => Ok(every),
        false => Err(format!("choose a time from {SHORTEST_WINDOW:?} to {LONGEST_WINDOW:?}")),
    }
}

pub fn run(args: Args, printer: &Printer) -> anyhow::Result<ExitCode> {
    let target = target(&args, printer)?;
    let windows = Windows::of(target, args.every);
    let count = if args.once { Some(1) } else { args.count };
    let dumb = is_dumb();
    let terminal = printer.stdout_is_terminal() && std::io::stdin().is_terminal() && !dumb;
    match terminal && !args.batch && !args.json && count.is_none() {
        true => live::run(windows, printer),
        false => batch(windows, count, args.json, printer),
    }
}

fn target(args: &Args, printer: &Printer) -> anyhow::Result<Target> {
    match (&args.cgroup, &args.container, &args.pid[..]) {
        (Some(path), ..) => Ok(Target::Cgroup(path.clone())),
        (None, Some(name), _) => Ok(Target::Pids(processes::of_container(name, printer)?)),
        (None, None, []) => Err(usage("no target given: use -p PID, --cgroup PATH or --container NAME")),
        (None, None, pids) => Ok(Target::Pids(processes::living(pids.to_vec(), printer)?)),
    }
}

/// Prints each window as it ends.
fn batch(
    mut windows: Windows,
    count: Option<u64>,
    json: bool,
    printer: &Printer,
) -> anyhow::Result<ExitCode> {
    let (interrupted, never) = (catch_signals()?, AtomicBool::new(false));
    let mut state = State::new(windows.every());
    while count.is_none_or(|count| state.count < count) {
        let next = match windows.next(&interrupted, &never) {
            // What was printed stays valid.
            Err(error) if state.count > 0 => {
                printer.warn(&format!("{error:#}"));
                break;
            }
            next => next?,
        };
        match next {
            Next::Window(taken) => state.add(*taken),
            Next::Ended if state.count == 0 => anyhow::bail!("the target ended before the first window"),
            Next::Ended => {
                let windows = units::count(state.count as usize, "window");
                printer.note(&format!("the target ended after {windows}"));
                break;
            }
            Next::Interrupted => break,
        }
        let text = match json {
            true => json::line(&state),
            false => screen::block(&state, printer.style()),
        };
        if !printer.read_by_anyone(text.as_bytes())? {
            break;
        }
    }
    // Interrupted before the first one.
    Ok(if state.count == 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
