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

/// What `list` and `explain` say of an experiment.
pub struct Known {
    pub name: &'static str,
    pub summary: &'static str,
    pub about: &'static str,
    pub shell: &'static str,
}

pub const KNOWN: &[Known] = &[
    Known {
        name: "pipeline",
        summary: "orders from one thread to another: what the allocator does to their latency",
        about: "A producer allocates orders at a fixed or a random rate, a consumer checks and frees them, while the heap is under \
                pressure. Each way to come by an order's memory (malloc, each allocator found, free list, batch arena, pool, by \
                value) runs in fresh processes, interleaved; each order is timed from when it was meant to arrive, and stalls that \
                are the machine's are told apart.",
        shell: "allocwall bench pipeline --blocks 8 -o FOLDER",
    },
    Known {
        name: "obmalloc",
        summary: "CPython's object arenas: stock, on huge pages, and its rivals",
        about: "Nine workloads, nine real programs with large heaps or twenty ordinary ones, each with its arenas as they are, on huge \
                pages, made huge afterwards, or in another allocator; in fresh processes, interleaved.",
        shell: "allocwall bench obmalloc --python PYTHON --arms thp",
    },
];

#[derive(clap::Subcommand)]
enum Experiment {
    #[command(about = KNOWN[0].summary)]
    Pipeline(Box<pipeline::Args>),
    /// One run of it
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
