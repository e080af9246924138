//! `allocwall keep`: the process between a trial and the command that the trial runs.

use anyhow::Context;
use std::process::ExitCode;

pub fn run() -> anyhow::Result<ExitCode> {
    allocwall_host::keeper::keep().context("`allocwall keep` is for internal use and cannot continue")?;
    Ok(ExitCode::SUCCESS)
}
