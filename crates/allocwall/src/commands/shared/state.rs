//! Files that allocwall keeps in the state directory under names of its own.

use super::arms;
use crate::printer::Printer;
use allocwall_host::own::{self, Kind};
use std::path::{Path, PathBuf};

/// Recordings kept in the state directory. Older ones are removed if allocwall chose their names.
const KEPT: usize = 32;

/// Removes old files of this kind, then returns a new name in the state directory.
pub fn new_state_file(suffix: &str, printer: &Printer) -> anyhow::Result<PathBuf> {
    let state = arms::own_folder(Kind::State, printer)?;
    own::create(&state, 0o700)?;
    prune(&state, suffix);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_millis());
    Ok(state.join(format!("{now}-{}{suffix}", std::process::id())))
}

/// Names start with the time in milliseconds, so sorting by name sorts by age.
fn prune(state: &Path, suffix: &str) {
    let Ok(entries) = std::fs::read_dir(state) else {
        return;
    };
    let mut named: Vec<PathBuf> = entries
        .flatten()
        .map(|e| e.path())
        .filter(|p| {
            let name = p.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
            name.strip_suffix(suffix).is_some_and(|n| {
                n.split_once('-').is_some_and(|(time, pid)| {
                    !time.is_empty()
                        && [time, pid].iter().all(|part| part.bytes().all(|b| b.is_ascii_digit()))
                })
            })
        })
        .collect();
    named.sort();
    let old = named.len().saturating_sub(KEPT - 1);
    for path in &named[..old] {
        let _ = std::fs::remove_file(path);
    }
}
