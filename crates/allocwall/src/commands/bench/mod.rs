//! `allocwall bench NAME`: the built-in experiments.

mod obmalloc;
mod pipeline;
mod published;

use crate::commands::list::row;
use crate::commands::shared::experiments::{self, KNOWN};
use crate::commands::shared::usage::usage;
use crate::printer::Printer;
use allocwall_model::catalogue::nearest::hint;
use std::ffi::OsString;
use std::process::ExitCode;

#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    experiment: Experiment,
}

#[derive(clap::Subcommand)]
enum Experiment {
    /// List the experiments
    List,
    /// Run all experiments from published accounts, one after the other
    All(published::Args),
    /// Break, diagnose and mend the services of examples/incidents, one after the other
    Incidents(published::Args),
    #[command(about = KNOWN[0].summary)]
    Pipeline(Box<pipeline::Args>),
    /// One run of the pipeline
    #[command(hide = true)]
    PipelineRun(pipeline::RunArgs),
    #[command(about = KNOWN[1].summary)]
    Obmalloc(obmalloc::Args),
    #[command(flatten)]
    Published(published::Named),
    /// One run of an experiment from a published account
    #[command(hide = true, name = allocwall_lab::experiments::run::VERB)]
    PublishedRun(published::RunArgs),
    #[command(external_subcommand)]
    Unknown(Vec<OsString>),
}

pub fn run(args: Args, printer: &Printer) -> anyhow::Result<ExitCode> {
    match args.experiment {
        Experiment::List => list(printer),
        Experiment::All(args) => published::run_all(&args, printer),
        Experiment::Incidents(args) => published::run_incidents(&args, printer),
        Experiment::Pipeline(args) => pipeline::run(*args, printer),
        Experiment::PipelineRun(args) => pipeline::run_once(&args, printer),
        Experiment::Obmalloc(args) => obmalloc::run(args, printer),
        Experiment::Published(named) => published::run(&named, printer),
        Experiment::PublishedRun(args) => published::run_once(&args, printer),
        Experiment::Unknown(words) => Err(usage(unknown(&words))),
    }
}

fn list(printer: &Printer) -> anyhow::Result<ExitCode> {
    let (mut rows, width) = (String::new(), printer.style().width);
    for known in experiments::all() {
        row(&mut rows, known.name, known.summary, width);
    }
    printer.data(&rows)?;
    Ok(ExitCode::SUCCESS)
}

fn unknown(words: &[OsString]) -> String {
    let name = words.first().map(|word| word.to_string_lossy()).unwrap_or_default();
    let near = hint(&name, experiments::all().map(|known| known.name));
    format!("no experiment {name}{near}; `allocwall bench list` shows all experiments")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_name_gets_the_nearest_one() {
        let line = |name: &str| unknown(&[name.into(), "--quick".into()]);
        assert!(line("mmap-treshold").contains("; nearest: mmap-threshold;"), "{}", line("mmap-treshold"));
        assert!(line("pipelin").contains("; nearest: pipeline;"));
        assert!(!line("snake-oil").contains("nearest"));
    }
}
