//! The built-in experiments: the subjects, each with one known wall; the pipeline and arena benches; and the experiments from published
//! accounts. All but the subjects use the statistics of a trial.

mod chart;
pub mod experiments;
pub mod histogram;
pub mod obmalloc;
pub mod pipeline;
pub mod runs;
pub mod workloads;
