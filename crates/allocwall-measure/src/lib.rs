//! Measures a target and makes a recording: samples, waits, counters, names, and the file of the recording.

#![forbid(unsafe_code)]

mod accounts;
pub mod allocations;
pub mod bursts;
pub mod calibrate;
mod collect;
mod counts;
mod devices;
pub mod file;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod groups;
pub(crate) mod heap;
mod loads;
pub mod malloc_range;
mod memory_kinds;
pub mod python;
pub mod reading;
pub mod record;
pub mod resident;
pub(crate) mod symbols;
pub mod target;
#[cfg(test)]
mod testing;
mod ticks;
pub mod unwind;
