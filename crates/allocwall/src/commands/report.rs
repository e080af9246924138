//! `allocwall report`.

use crate::printer::Printer;
use std::process::ExitCode;

#[derive(clap::Args)]
pub struct Args {}

pub fn run(_args: Args, _printer: &Printer) -> anyhow::Result<ExitCode> {
    anyhow::bail!("not there yet")
}
