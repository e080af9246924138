//! Test data in place of real machines and targets: /proc and /sys trees, and recordings. Not part of the tool.

#![forbid(unsafe_code)]

pub mod machines;
pub mod recording;
