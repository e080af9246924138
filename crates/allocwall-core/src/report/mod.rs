//! Recording, Bill and Verdict as text, JSON, flamegraph, collapsed stacks; a trial's Outcome as text, JSON, CSV. Pure.

mod chart;
pub mod collapsed;
pub mod escape;
pub mod flamegraph;
pub mod json;
mod layout;
pub mod pipeline_charts;
pub mod pipeline_json;
pub mod pipeline_text;
pub mod text;
pub mod trial_csv;
pub mod trial_json;
pub mod trial_text;

#[cfg(test)]
mod sketches;
#[cfg(test)]
mod trial_sketches;
