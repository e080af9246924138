//! The built-in experiments: the subjects, each with one known wall, and the pipeline and arena benches. A bench's statistics are a
//! trial's.

mod chart;
pub mod histogram;
pub mod obmalloc;
pub mod pipeline;
pub mod workloads;
