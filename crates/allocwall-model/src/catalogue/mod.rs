//! Knowledge that does not depend on a measurement, as data. No I/O.

pub mod advice;
pub mod cost;
pub mod fast_paths;
pub mod modules;
pub mod nearest;
pub mod options;
pub mod owners;
pub mod prices;
pub mod probes;
pub mod remedies;
pub mod swaps;
pub mod symbols;
pub mod syscalls;
pub mod thresholds;
pub mod tunables;
pub mod walls;
