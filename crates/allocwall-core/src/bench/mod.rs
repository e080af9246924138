//! The built-in experiments: what is run in each and what it comes to. Their statistics are a trial's.

pub mod obmalloc;
