//! What the verbs that apply remedies share: what this machine and this build have to offer, and the environment.

use crate::printer::Printer;
use allocwall_core::catalogue::modules::AllocatorKind;
use allocwall_core::host::facts::Machine;
use allocwall_core::host::installed::BundledLibrary;
use allocwall_core::trial::arm::Inventory;
use allocwall_preload::Bundled;
use std::ffi::OsString;
use std::path::PathBuf;

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
    match folder() {
        None => printer.warn("neither XDG_CACHE_HOME nor HOME is set: the bundled allocators have no place"),
        Some(folder) => {
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

fn folder() -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .filter(|p| p.is_absolute())
        .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")))?;
    Some(cache.join("allocwall").join("libraries"))
}

pub fn environment() -> Vec<(OsString, OsString)> {
    std::env::vars_os().collect()
}
