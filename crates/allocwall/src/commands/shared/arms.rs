//! Shared by the subcommands that apply remedies or list them: the libraries of this machine and of this
//! build, the tunables, and the environment.

use super::usage::usage;
use crate::printer::Printer;
use allocwall_host::facts::Machine;
use allocwall_host::installed::BundledLibrary;
use allocwall_host::own::{self, Kind};
use allocwall_host::tunables::Tunable;
use allocwall_measure::target::view_file;
use allocwall_model::catalogue::modules::AllocatorKind;
use allocwall_model::units::{Absence, Measured, Reason};
use allocwall_preload::Bundled;
use allocwall_trial::arm::{Cause, Inventory, Refusal, TargetFacts};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// The allocators that a build may bundle; `allocwall_preload` uses the same names.
const KINDS: &[AllocatorKind] = &[AllocatorKind::Jemalloc, AllocatorKind::Mimalloc, AllocatorKind::Snmalloc];

/// Unpacks the bundled libraries. If that fails, warns and offers only the libraries that are installed.
pub fn inventory(printer: &Printer) -> Inventory {
    let mut bundled = Vec::new();
    let mut prefault = None;
    match folder(printer) {
        Err(error) => printer.warn(&format!("the bundled allocators are not available: {error}")),
        Ok(folder) => {
            let unpack = |item: &Bundled| match allocwall_preload::unpack(item, &folder) {
                Ok(path) => Some(path),
                Err(error) => {
                    printer.warn(&format!("cannot unpack the bundled {}: {error}", item.kind));
                    None
                }
            };
            for item in allocwall_preload::bundled() {
                let kind = KINDS.iter().copied().find(|kind| kind.title() == item.kind);
                if let (Some(kind), Some(path)) = (kind, unpack(item)) {
                    bundled.push(BundledLibrary { kind, version: item.version.to_owned(), path });
                }
            }
            prefault = unpack(allocwall_preload::prefault());
        }
    }
    Inventory::of(&Machine::live(), bundled, prefault)
}

/// Why an arm can't be applied to a command, as an error.
pub fn refused(refusal: Refusal) -> anyhow::Error {
    match refusal.1 {
        Cause::Usage => usage(refusal),
        Cause::Asked | Cause::Lacking => refusal.into(),
    }
}

/// The folder for libraries. Creates all folders but the last. Mode 0755 whatever the umask is: targets that drop their rights must get
/// through.
pub fn folder(printer: &Printer) -> anyhow::Result<PathBuf> {
    let cache = own_folder(Kind::Cache, printer)?;
    own::create(&cache, 0o755)?;
    Ok(cache.join("libraries"))
}

/// The folder for files of this kind. Notes once if it is not the one that the environment names.
pub fn own_folder(kind: Kind, printer: &Printer) -> anyhow::Result<PathBuf> {
    let place = own::folder(kind).map_err(|absence| anyhow::anyhow!("{absence}"))?;
    say_once(place.instead, printer);
    Ok(place.folder)
}

/// Prints each text once, however many files it concerns.
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

/// An allocator that can be preloaded.
pub struct Found {
    pub kind: &'static str,
    pub path: PathBuf,
    /// From the contents of the file, else from its name.
    pub version: Option<String>,
    /// It is Google's tcmalloc.
    pub has_cpu_caches: bool,
    pub bundled: bool,
}

pub fn found(inventory: &Inventory) -> Vec<Found> {
    let installed = inventory.installed.iter().map(|library| {
        let view = view_file(&library.path).ok();
        Found {
            kind: library.kind.title(),
            path: library.path.clone(),
            has_cpu_caches: view.as_ref().is_some_and(|view| view.has_cpu_caches),
            version: view.and_then(|view| view.allocator_version).or_else(|| library.version.clone()),
            bundled: false,
        }
    });
    let bundled = inventory.bundled.iter().map(|library| Found {
        kind: library.kind.title(),
        path: library.path.clone(),
        version: Some(library.version.clone()),
        has_cpu_caches: false,
        bundled: true,
    });
    installed.chain(bundled).collect()
}

/// The tunables of the loader that starts /bin/sh: most programs use the same loader.
pub fn tunables() -> Measured<Vec<Tunable>> {
    match TargetFacts::of(&["/bin/sh".into()], &environment()) {
        Ok(facts) => facts.tunables,
        Err(refusal) => Err(Absence::new(Reason::NotFound, refusal.to_string())),
    }
}

/// The largest value of a tunable that malloc takes on this machine, if it is less than its loader lists.
pub fn malloc_limit(name: &str) -> Option<u64> {
    let facts = TargetFacts::of(&["/bin/sh".into()], &environment()).ok()?;
    facts.programs.last()?.malloc_limit(name)
}

pub fn environment() -> Vec<(OsString, OsString)> {
    std::env::vars_os().collect()
}
