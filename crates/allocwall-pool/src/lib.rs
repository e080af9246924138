//! Memory for objects that must not wait: [`region`] gives it on huge pages.

#[cfg(target_os = "linux")]
pub mod region;
