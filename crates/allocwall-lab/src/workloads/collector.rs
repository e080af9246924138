//! The collector subject: this process executes CPython.

use super::stage::Stage;
use anyhow::{Result, bail};
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::process::Command;

pub fn collector(stage: &Stage) -> Result<()> {
    let options = &stage.options;
    let error = Command::new("python3")
        .args(["-c", include_str!("collector.py"), stage.subject.name])
        .arg(if options.twin { "1" } else { "0" })
        .arg(options.dial.to_string())
        .arg(options.seconds.to_string())
        .exec();
    match error.kind() {
        ErrorKind::NotFound => bail!("skipped: no python3 on PATH"),
        _ => bail!("cannot start python3: {error}"),
    }
}
