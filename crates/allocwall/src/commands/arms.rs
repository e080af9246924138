//! What the verbs that apply remedies share: what this machine and this build have to offer, and the environment.

use allocwall_core::host::facts::Machine;
use allocwall_core::host::installed::BundledLibrary;
use allocwall_core::trial::arm::Inventory;
use std::ffi::OsString;
use std::path::PathBuf;

/// Allocators that this build carries, unpacked.
fn bundled() -> Vec<BundledLibrary> {
    Vec::new()
}

/// The library that touches the heap before main, unpacked; None where this build carries none.
fn prefault() -> Option<PathBuf> {
    None
}

pub fn inventory() -> Inventory {
    Inventory::of(&Machine::live(), bundled(), prefault())
}

pub fn environment() -> Vec<(OsString, OsString)> {
    std::env::vars_os().collect()
}
