//! allocwall: tells whether memory allocation slows a program down.

#![forbid(unsafe_code)]

mod command_line;
mod commands;
mod output;
mod printer;

use allocwall_host::apart::{Apart, keep_apart};
use clap::{CommandFactory, Parser, Subcommand};
use commands::shared::usage;
use printer::Printer;
use std::process::ExitCode;

#[derive(Parser)]
#[command(
    name = "allocwall",
    version,
    about,
    max_term_width = 100,
    after_help = "`allocwall VERB --help` explains a verb. Manual pages: `allocwall man`. Completions: `allocwall completions SHELL`.\n\
                  Exit status: 0 measured, 1 could not measure (or --fail-on met), 2 usage error."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show what can be measured on this machine, and what to change to measure the rest
    Check(commands::check::Args),
    /// Measure the prices of this machine: what a page fault, an unmap or a malloc costs here
    Calibrate(commands::calibrate::Args),
    /// Diagnose a running process, a command or a recording: verdict, bill, ladder and remedies
    Diagnose(commands::diagnose::Args),
    /// Show the resident memory of a process by owner: live, free but kept, lazily freed; and what remedies could return
    Memory(commands::memory::Args),
    /// Count the calls of the allocator that a command or a running process makes: rates, sizes, threads, reallocs, call sites; of a
    /// command also latency and lifetimes
    Count(commands::count::Args),
    /// Print a recording as text, HTML, JSON, flamegraph, profile for another tool or table, or a saved trial as text, HTML, JSON or CSV
    Report(commands::report::Args),
    /// Compare two recordings: what moved in the bill, in call sites and in memory, with intervals
    Diff(commands::diff::Args),
    /// Watch a running process or a container live: bill, faults, waits and resident memory of the last seconds
    Top(commands::top::Args),
    /// Try remedies on a command, interleaved with the baseline: effect, interval and outcome for each
    Trial(Box<commands::trial::Args>),
    /// Run a built-in experiment in interleaved blocks, as a trial does; `bench list` lists them
    Bench(commands::bench::Args),
    /// Start a command with remedies applied: allocwall becomes the command (same pid, same exit status)
    Run(commands::run::Args),
    /// List remedies by runtime and wall, the allocators found here, tunables, walls and experiments
    List(commands::list::Args),
    /// Explain the names that a report prints: a wall, a line, a remedy, a figure, a term; or a tunable or an experiment
    Explain(commands::explain::Args),
    /// Print what bash, zsh or fish needs to complete verbs and options
    #[command(hide = true)]
    Completions(commands::completions::Args),
    /// Print a manual page, or write all of them
    #[command(hide = true)]
    Man(commands::man::Args),
    /// Run a built-in subject: a program with one known wall and its own account of the truth
    #[command(hide = true)]
    Subject(commands::subject::Args),
    /// Run a command for a trial and end all processes that it started
    #[command(hide = true)]
    Keep,
    /// Read files and memory of other processes for a diagnosis, within limits
    #[command(hide = true)]
    Read(commands::read::Args),
    /// Make the calls of a mix with the allocator of this process, and measure them
    #[command(hide = true)]
    Replay(commands::replay::Args),
}

#[global_allocator]
static ALLOCATOR: Apart = Apart;

fn main() -> ExitCode {
    // Reading the options already leaves free blocks in malloc's heap.
    let apart = if replays() { keep_apart() } else { Ok(()) };
    let cli: Cli = command_line::parsed();
    let printer = Printer::new();
    if let Err(error) = apart {
        printer.error(&anyhow::Error::from(error).context("cannot replay the calls"));
        return ExitCode::FAILURE;
    }
    let outcome = match cli.command {
        Command::Check(args) => commands::check::run(args, &printer),
        Command::Calibrate(args) => commands::calibrate::run(args, &printer),
        Command::Diagnose(args) => commands::diagnose::run(args, &printer),
        Command::Memory(args) => commands::memory::run(args, &printer),
        Command::Count(args) => commands::count::run(args, &printer),
        Command::Report(args) => commands::report::run(args, &printer),
        Command::Diff(args) => commands::diff::run(args, &printer),
        Command::Top(args) => commands::top::run(args, &printer),
        Command::Trial(args) => commands::trial::run(*args, &printer),
        Command::Bench(args) => commands::bench::run(args, &printer),
        Command::Run(args) => commands::run::run(args, &printer),
        Command::List(args) => commands::list::run(args, &printer),
        Command::Explain(args) => commands::explain::run(args, &printer),
        Command::Completions(args) => commands::completions::run(args, shown(), &printer),
        Command::Man(args) => commands::man::run(args, shown(), &printer),
        Command::Subject(args) => commands::subject::run(args, &printer),
        Command::Keep => commands::keep::run(),
        Command::Read(args) => commands::read::run(args),
        Command::Replay(args) => commands::replay::run(args, &printer),
    };
    outcome.unwrap_or_else(|error| {
        printer.error(&error);
        usage::status_of(&error)
    })
}

fn replays() -> bool {
    std::env::args_os().nth(1).is_some_and(|verb| verb == "replay")
}

/// The command line without hidden verbs.
fn shown() -> clap::Command {
    command_line::without_hidden(&Cli::command())
}
