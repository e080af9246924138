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

/// What `list` and `explain` print about an experiment.
pub struct Known {
    pub name: &'static str,
    pub summary: &'static str,
    pub about: &'static str,
    pub shell: &'static str,
}

pub const KNOWN: &[Known] = &[
    Known {
        name: "pipeline",
        summary: "orders handed from thread to thread: the allocator's effect on their latency",
        about: "A producer allocates orders at a constant or a random rate. A consumer checks and frees them. Other allocations put \
                the heap under pressure. Each way to allocate an order (malloc, each allocator found, free list, batch arena, \
                pool, by value) runs in new processes, interleaved. The latency of an order is counted from its intended start, \
                and stalls that the machine causes are separated.",
        shell: "allocwall bench pipeline --blocks 8 -o FOLDER",
    },
    Known {
        name: "obmalloc",
        summary: "CPython's object arenas: stock, on huge pages, and other allocators",
        about: "Nine workloads, nine real programs with large heaps or twenty ordinary programs. Each runs with stock arenas, with \
                arenas on huge pages, with arenas collapsed to huge pages later, and with another allocator, in new processes, \
                interleaved.",
        shell: "allocwall bench obmalloc --python PYTHON --arms thp",
    },
];

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
