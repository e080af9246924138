//! What stands under every trial and experiment: a folder that goes away, and a keeper of what is started.

use crate::commands::arms::say_once;
use crate::printer::Printer;
use allocwall_host::own;
use allocwall_trial::run::{self, Guard};
use anyhow::Context;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// However this ends, the folder goes, and what was started under the guard's mark.
pub struct Ground {
    pub guard: Guard,
    folder: TempDir,
    /// This program's own file.
    pub keeper: PathBuf,
}

impl Ground {
    /// `prefix` is of the folder's name.
    pub fn new(prefix: &str, printer: &Printer) -> anyhow::Result<Ground> {
        let place = own::temporary();
        say_once(place.instead, printer);
        let folder = tempfile::Builder::new()
            .prefix(prefix)
            .tempdir_in(place.folder)
            .context("no temporary folder")?;
        let keeper = std::env::current_exe().context("cannot find this program's own file")?;
        Ok(Ground {
            guard: run::guard(Some(folder.path()), &keeper)?,
            folder,
            keeper,
        })
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}
