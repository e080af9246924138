//! Trials: the same command with and without a remedy, and what that changed.

pub mod run;
