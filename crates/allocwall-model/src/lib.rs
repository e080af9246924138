//! The values that the other crates share: units, errors, the catalogue (walls, remedies, symbols, thresholds), statistics, and
//! the recording of one window. No I/O.

#![forbid(unsafe_code)]

pub mod allocations;
pub mod bursts;
pub mod catalogue;
pub mod devices;
pub mod error;
pub mod hardware;
pub mod machine;
pub mod placement;
pub mod recording;
pub mod replay;
pub mod resident;
pub mod room;
pub mod shell;
pub mod stats;
pub mod trace;
pub mod units;
