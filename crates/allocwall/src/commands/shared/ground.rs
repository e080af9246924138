//! What every trial and experiment needs: a temporary folder, and a guard that ends the processes it started.

use super::arms::say_once;
use crate::printer::Printer;
use allocwall_host::own;
use allocwall_trial::run::{self, Guard};
use anyhow::Context;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// On every exit, the folder is removed and the processes that carry the guard's mark are ended.
pub struct Ground {
    pub guard: Guard,
    folder: TempDir,
    /// The path of this program, which is started as keeper.
    pub keeper: PathBuf,
}

impl Ground {
    /// `prefix`: the start of the folder's name.
    pub fn new(prefix: &str, printer: &Printer) -> anyhow::Result<Ground> {
        let place = own::temporary();
        say_once(place.instead, printer);
        let folder = tempfile::Builder::new()
            .prefix(prefix)
            .tempdir_in(place.folder)
            .context("cannot create a temporary folder")?;
        let keeper = std::env::current_exe().context("cannot find the path of allocwall itself")?;
        Ok(Ground { guard: run::guard(Some(folder.path()), &keeper)?, folder, keeper })
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}
