//! The built-in experiments: what is asked of them, what a run tells, and what the runs of all arms come to. What a run
//! does is in the binary's workloads; nothing here reads a clock or a file.

pub mod histogram;
pub mod pipeline;
