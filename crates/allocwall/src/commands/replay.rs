//! `allocwall replay`: the child process that makes the calls of a mix, with whatever allocator the loader gave it.

use crate::commands::shared::usage::usage;
use crate::printer::Printer;
use allocwall_host::replay::confine;
use allocwall_measure::calibrate::replay::{Options, Refused, play};
use anyhow::Context;
use std::process::ExitCode;

/// Much more than a measurement takes.
const CPU_SECONDS: u64 = 60;

#[derive(clap::Args)]
pub struct Args {
    /// The seed of the plan
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Bytes that the blocks may take at the same time
    #[arg(long, value_name = "BYTES", default_value_t = 256 << 20, value_parser = clap::value_parser!(u64).range(1 << 20..))]
    memory: u64,

    /// Without an allocator, with memory that is ready: the replay's own work
    #[arg(long)]
    ready: bool,
}

pub fn run(args: Args, printer: &Printer) -> anyhow::Result<ExitCode> {
    confine(CPU_SECONDS).context("`allocwall replay` is for internal use and cannot continue")?;
    let options = Options { seed: args.seed, memory: args.memory, ready: args.ready };
    match play(std::io::stdin().lock(), &options) {
        Ok(played) => {
            printer.data(&(serde_json::to_string(&played)? + "\n"))?;
            Ok(ExitCode::SUCCESS)
        }
        Err(Refused::Input(why)) => Err(usage(format!("standard input is no mix of calls: {why}"))),
        Err(Refused::Failed(error)) => Err(error).context("cannot replay the calls"),
    }
}
