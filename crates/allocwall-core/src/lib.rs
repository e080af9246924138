//! allocwall as a library: Target -> Recording -> Bill -> Findings -> Verdict -> Report.
//!
//! Imports run one way: units -> catalogue, stats -> host -> measure -> bill -> diagnose -> trial -> report -> bench.

pub mod bench;
pub mod bill;
pub mod catalogue;
pub mod diagnose;
pub mod error;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
pub mod host;
pub mod measure;
pub mod report;
pub mod stats;
pub mod trial;
pub mod units;
