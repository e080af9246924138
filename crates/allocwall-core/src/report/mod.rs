//! Recording, Bill and Verdict as text, JSON, flamegraph, collapsed stacks. Pure.

pub mod escape;
