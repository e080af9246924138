//! Target -> Recording.

pub mod recording;
