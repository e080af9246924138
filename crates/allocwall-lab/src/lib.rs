//! The built-in experiments: the subjects, each with one known wall, and the pipeline and arena benches. The benches use the
//! statistics of a trial.

mod chart;
pub mod histogram;
pub mod obmalloc;
pub mod pipeline;
pub mod workloads;
