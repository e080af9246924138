//! Target -> Recording.

pub mod file;
pub mod recording;
