//! Recording, Bill and Verdict as text, JSON, flamegraph, collapsed stacks. Pure.

pub mod collapsed;
pub mod escape;
pub mod flamegraph;
pub mod json;
mod layout;
pub mod text;

#[cfg(test)]
mod sketches;
