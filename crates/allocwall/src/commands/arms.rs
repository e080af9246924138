//! What the verbs that apply remedies share: what this machine and this build have to offer, and the environment.

use crate::printer::Printer;
use allocwall_host::facts::Machine;
use allocwall_host::installed::BundledLibrary;
use allocwall_host::own::{self, Kind};
use allocwall_model::catalogue::modules::AllocatorKind;
use allocwall_preload::Bundled;
use allocwall_trial::arm::Inventory;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// Those that a build may carry, by the name that both sides use.
const KINDS: &[AllocatorKind] = &[
    AllocatorKind::Jemalloc,
    AllocatorKind::Mimalloc,
    AllocatorKind::Snmalloc,
];

/// What this build carries is unpacked; where it can't be, that is said, and the machine's own libraries are left.
pub fn inventory(printer: &Printer) -> Inventory {
    let mut bundled = Vec::new();
    let mut prefault = None;
    match folder(printer) {
        Err(error) => printer.warn(&format!("the bundled allocators have no place: {error}")),
        Ok(folder) => {
            let unpack = |item: &Bundled| match allocwall_preload::unpack(item, &folder) {
                Ok(path) => Some(path),
                Err(error) => {
                    printer.warn(&format!("the bundled {} can't be unpacked: {error}", item.kind));
                    None
                }
            };
            for item in allocwall_preload::bundled() {
                let kind = KINDS.iter().copied().find(|kind| kind.title() == item.kind);
                if let (Some(kind), Some(path)) = (kind, unpack(item)) {
                    bundled.push(BundledLibrary {
                        kind,
                        version: item.version.to_owned(),
                        path,
                    });
                }
            }
            prefault = unpack(allocwall_preload::prefault());
        }
    }
    Inventory::of(&Machine::live(), bundled, prefault)
}

/// Made up to the last folder, which has to let targets through that drop their rights, whatever the umask is.
fn folder(printer: &Printer) -> anyhow::Result<PathBuf> {
    let cache = own_folder(Kind::Cache, printer)?;
    own::create(&cache, 0o755)?;
    Ok(cache.join("libraries"))
}

/// Where files of this kind go; that it is another place than the environment's is said once.
pub fn own_folder(kind: Kind, printer: &Printer) -> anyhow::Result<PathBuf> {
    let place = own::place(kind).map_err(|absence| anyhow::anyhow!("{absence}"))?;
    say_once(place.instead, printer);
    Ok(place.folder)
}

/// Several files that go elsewhere for one reason need one line.
pub fn say_once(text: Option<String>, printer: &Printer) {
    static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    if let Some(text) = text {
        let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
        if !said.contains(&text) {
            printer.note(&text);
            said.insert(text);
        }
    }
}

pub fn environment() -> Vec<(OsString, OsString)> {
    std::env::vars_os().collect()
}
