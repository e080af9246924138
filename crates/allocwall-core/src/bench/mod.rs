//! The built-in experiments: what is run in each, what a run tells, and what it comes to. Their statistics are a trial's; what a run of the
//! pipeline does is in the binary's workloads.

mod chart;
pub mod histogram;
pub mod obmalloc;
pub mod pipeline;
