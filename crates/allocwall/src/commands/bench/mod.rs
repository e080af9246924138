//! `allocwall bench NAME`: the built-in experiments.

mod obmalloc;
mod pipeline;

use crate::printer::Printer;
use std::process::ExitCode;

#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    experiment: Experiment,
}

#[derive(clap::Subcommand)]
enum Experiment {
    /// Orders from one thread to another: what the allocator does to their latency
    Pipeline(Box<pipeline::Args>),
    /// One run of it
    #[command(hide = true)]
    PipelineRun(pipeline::RunArgs),
    /// CPython's object arenas: stock, on huge pages, and its rivals
    Obmalloc(obmalloc::Args),
}

pub fn run(args: Args, printer: &Printer) -> anyhow::Result<ExitCode> {
    match args.experiment {
        Experiment::Pipeline(args) => pipeline::run(*args, printer),
        Experiment::PipelineRun(args) => pipeline::run_once(&args, printer),
        Experiment::Obmalloc(args) => obmalloc::run(&args, printer),
    }
}
