//! `allocwall bench NAME`: the built-in experiments.

mod obmalloc;

use crate::printer::Printer;
use std::process::ExitCode;

#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    experiment: Experiment,
}

#[derive(clap::Subcommand)]
enum Experiment {
    /// CPython's object arenas: stock, on huge pages, and its rivals
    Obmalloc(obmalloc::Args),
}

pub fn run(args: Args, printer: &Printer) -> anyhow::Result<ExitCode> {
    match args.experiment {
        Experiment::Obmalloc(args) => obmalloc::run(&args, printer),
    }
}
