//! One file per subcommand: it turns arguments into domain values; the library does the work.

mod arms;
pub mod bench;
pub mod calibrate;
pub mod check;
pub mod diagnose;
pub mod explain;
mod ground;
pub mod keep;
pub mod list;
pub mod read;
pub mod report;
pub mod run;
pub mod subject;
pub mod trial;
