//! `allocwall keep`: what stands between a trial and the command that it runs.

use anyhow::Context;
use std::process::ExitCode;

pub fn run() -> anyhow::Result<ExitCode> {
    allocwall_host::keeper::keep()
        .context("`allocwall keep` is started by the tool itself; it cannot go on")?;
    Ok(ExitCode::SUCCESS)
}
