//! One file a verb: arguments become domain values, then the library does the work.

pub mod calibrate;
pub mod check;
pub mod diagnose;
pub mod keep;
pub mod report;
pub mod subject;
