//! One file per subcommand: it turns arguments into domain values; the library does the work.

pub mod bench;
pub mod calibrate;
pub mod check;
pub mod completions;
pub mod count;
pub mod diagnose;
pub mod diff;
pub mod explain;
pub mod keep;
pub mod list;
pub mod man;
pub mod memory;
pub mod read;
pub mod replay;
pub mod report;
pub mod run;
pub mod shared;
pub mod subject;
pub mod top;
pub mod trial;
