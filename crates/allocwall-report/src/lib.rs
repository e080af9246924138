//! Recording, Bill and Verdict as text, HTML, JSON, flamegraph, collapsed stacks, profiles and tables for other tools; the result of
//! a trial as text, HTML, JSON, CSV; the resident memory of a process as text and JSON; counted calls of allocators as text, JSON,
//! pprof, collapsed stacks. Pure.

#![forbid(unsafe_code)]

pub mod allocations;
pub mod collapsed;
mod counters;
mod csv;
mod devices;
pub mod diff;
pub mod escape;
pub mod flamegraph;
pub mod html;
pub mod json;
pub mod layout;
pub mod memory_text;
mod palette;
mod pprof;
pub mod profiles;
pub mod recordings;
pub mod series;
pub mod tables;
pub mod text;
pub mod trial_csv;
pub mod trial_json;
pub mod trial_text;
mod varint;

#[cfg(test)]
mod described;
#[cfg(test)]
mod sketches;
#[cfg(test)]
mod trial_sketches;
