//! `allocwall read`: the children that read foreign files and memory, and may die of them.

use allocwall_measure::{python, reading};
use anyhow::Context;
use std::process::ExitCode;

#[derive(clap::Args)]
pub struct Args {
    /// What is read
    #[arg(value_parser = [reading::NAMES, reading::PYTHON])]
    what: String,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let served = match args.what == reading::PYTHON {
        true => python::serve(),
        false => reading::serve(),
    };
    served.context("`allocwall read` is started by the tool itself; it cannot go on")?;
    Ok(ExitCode::SUCCESS)
}

/// This very program, also where its file has been replaced since.
pub fn ourselves() -> reading::Readers {
    reading::Readers::Program("/proc/self/exe".into())
}
