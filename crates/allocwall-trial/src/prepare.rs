//! A command that prepares each run (`--prepare`): it runs before the run is started, and is not part of what is measured.

use super::batch::failure;
use super::run::{self, Start};
use allocwall_model::error::{Error, Result};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A command line for `/bin/sh`. It gets our environment, without the changes of an arm.
#[derive(Clone, Debug)]
pub struct Prepare {
    pub line: String,
    /// A longer preparation is ended, and counts as failed.
    pub limit: Duration,
    pub keeper_exe: PathBuf,
}

impl Prepare {
    /// Returns when it has ended; processes that it left are ended too.
    ///
    /// # Errors
    /// It failed, so that what follows would measure something else; or the user interrupted.
    pub fn run(&self, interrupted: &AtomicBool) -> Result<()> {
        let finished = shell(&self.line, self.limit, &self.keeper_exe, interrupted)?;
        match failure(&finished, &[]) {
            None => Ok(()),
            Some(failure) => Err(Error::Refused(format!("the command of --prepare failed: {failure}"))),
        }
    }
}

/// Runs a command line with `/bin/sh` to its end.
///
/// # Errors
/// It can't be started, or the user interrupted.
pub fn shell(
    line: &str,
    limit: Duration,
    keeper_exe: &Path,
    interrupted: &AtomicBool,
) -> Result<run::Finished> {
    let words = ["/bin/sh", "-c", line].map(OsString::from).to_vec();
    let finished = run::start(&Start::new(words, limit), keeper_exe)?.wait(interrupted)?;
    // Relaxed: the flag protects no other data.
    if interrupted.load(Ordering::Relaxed) {
        return Err(Error::Refused("interrupted".into()));
    }
    Ok(finished)
}
