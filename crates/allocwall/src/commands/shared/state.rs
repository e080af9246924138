//! Files that allocwall keeps in the state directory under names of its own.

use super::arms;
use crate::printer::Printer;
use allocwall_host::own::{self, Kind};
use std::path::{Path, PathBuf};

/// What the names of recordings end in.
pub const RECORDING: &str = ".allocwall";

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

fn prune(state: &Path, suffix: &str) {
    let kept = kept(state, suffix);
    for path in &kept[..kept.len().saturating_sub(KEPT - 1)] {
        let _ = std::fs::remove_file(path);
    }
}

/// The folder of the recordings whose names allocwall chose, and the recordings, oldest first.
pub fn kept_recordings(printer: &Printer) -> anyhow::Result<(PathBuf, Vec<PathBuf>)> {
    let state = arms::own_folder(Kind::State, printer)?;
    let kept = kept(&state, RECORDING);
    Ok((state, kept))
}

/// Files of this kind, oldest first. Names start with the time in milliseconds, and this number of digits stays the same until
/// the year 2286.
fn kept(state: &Path, suffix: &str) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(state) else {
        return vec![];
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
    named
}
