//! Interleaved trials of remedies on a command.

pub mod arm;
