//! `allocwall run`: applies remedies, then executes the command in the same process.

use crate::commands::shared::arms;
use crate::commands::shared::usage::usage;
use crate::printer::Printer;
use allocwall_host::place;
use allocwall_trial::arm::{Applied, Arm, TargetFacts};
use anyhow::{Context, anyhow};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

#[derive(clap::Args)]
#[command(
    override_usage = "allocwall run [OPTIONS] --with NAME[+NAME…] -- CMD…",
    after_help = "`allocwall list` shows the remedies, `allocwall explain NAME` explains one.\n\
                  allocwall becomes the command: same pid, and the exit status is the command's."
)]
pub struct Args {
    /// A remedy, or several joined by +; may be repeated; all are applied together
    #[arg(short, long, value_name = "NAME", required = true)]
    with: Vec<String>,

    /// Don't print what is set
    #[arg(short, long)]
    quiet: bool,

    /// Don't start the command; print a shell line that does the same without allocwall
    #[arg(long)]
    print: bool,

    /// The command and its arguments
    #[arg(last = true, value_name = "CMD", required = true)]
    command: Vec<OsString>,
}

pub fn run(args: Args, printer: &Printer) -> anyhow::Result<ExitCode> {
    let arm = Arm::combined(&args.with).map_err(usage)?;
    let facts = TargetFacts::of(&args.command, &arms::environment())?;
    let applied = arm.resolve(&arms::inventory(printer), &facts).map_err(arms::refused)?;
    if args.print {
        printer.data(&format!("{}\n", applied.shell_line()))?;
        return Ok(ExitCode::SUCCESS);
    }
    for note in &applied.notes {
        printer.warn(note);
    }
    if !args.quiet {
        printer.note(&what_is_set(&applied));
    }
    become_command(&applied)
}

/// In one line.
fn what_is_set(applied: &Applied) -> String {
    let list = |list: &[u32]| list.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    let mut set: Vec<String> = applied
        .env
        .iter()
        .map(|(name, value)| match value {
            Some(value) => format!("{}={}", name.to_string_lossy(), value.to_string_lossy()),
            None => format!("{} unset", name.to_string_lossy()),
        })
        .collect();
    set.extend(applied.options.iter().map(|option| format!("option {option}")));
    set.extend(applied.cpus.as_deref().map(|cpus| format!("CPUs {}", list(cpus))));
    set.extend(applied.nodes.as_deref().map(|nodes| format!("memory of node {}", list(nodes))));
    if set.is_empty() {
        "allocwall: the remedies set nothing".to_owned()
    } else {
        format!("allocwall: {}", set.join(" · "))
    }
}

/// Returns only if exec fails.
fn become_command(applied: &Applied) -> anyhow::Result<ExitCode> {
    let (program, arguments) = applied.command.split_first().context("no command given")?;
    // The process has only this thread here, and exec keeps its CPU affinity and memory policy.
    if let Some(nodes) = &applied.nodes {
        place::bind_memory(nodes)
            .map_err(|error| anyhow!("cannot bind memory to nodes {nodes:?}: {error}"))?;
    }
    if let Some(cpus) = &applied.cpus {
        place::set_affinity(cpus).map_err(|error| anyhow!("cannot bind to CPUs {cpus:?}: {error}"))?;
    }
    let mut command = Command::new(program);
    command.args(arguments);
    for (name, value) in &applied.env {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let error = command.exec();
    Err(anyhow!("cannot start {}: {error}", program.to_string_lossy()))
}
