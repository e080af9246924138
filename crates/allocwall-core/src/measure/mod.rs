//! Target -> Recording.

pub mod file;
pub mod python;
pub mod recording;
pub mod unwind;
