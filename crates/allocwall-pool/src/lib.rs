//! Memory for objects that must not wait: [`region`] gives it on huge pages, [`slab`] packs arenas into it.

#[cfg(target_os = "linux")]
pub mod region;
#[cfg(target_os = "linux")]
pub mod slab;
