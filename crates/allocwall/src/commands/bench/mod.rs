//! `allocwall bench NAME`: the built-in experiments.

mod obmalloc;
mod pipeline;

use crate::commands::shared::experiments::KNOWN;
use crate::printer::Printer;
use std::process::ExitCode;

#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    experiment: Experiment,
}

#[derive(clap::Subcommand)]
enum Experiment {
    #[command(about = KNOWN[0].summary)]
    Pipeline(Box<pipeline::Args>),
    /// One run of the pipeline
    #[command(hide = true)]
    PipelineRun(pipeline::RunArgs),
    #[command(about = KNOWN[1].summary)]
    Obmalloc(obmalloc::Args),
}

pub fn run(args: Args, printer: &Printer) -> anyhow::Result<ExitCode> {
    match args.experiment {
        Experiment::Pipeline(args) => pipeline::run(*args, printer),
        Experiment::PipelineRun(args) => pipeline::run_once(&args, printer),
        Experiment::Obmalloc(args) => obmalloc::run(&args, printer),
    }
}
