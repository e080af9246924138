//! `allocwall read`: child processes that read files and memory of other processes. Bad input may crash the child,
//! but not allocwall.

use allocwall_measure::{python, reading};
use anyhow::Context;
use std::process::ExitCode;

#[derive(clap::Args)]
pub struct Args {
    /// What to read
    #[arg(value_parser = [reading::NAMES, reading::PYTHON])]
    what: String,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let served = if args.what == reading::PYTHON { python::serve() } else { reading::serve() };
    served.context("`allocwall read` is for internal use and cannot continue")?;
    Ok(ExitCode::SUCCESS)
}
