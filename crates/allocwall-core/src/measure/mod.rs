//! Target -> Recording.

pub mod malloc_range;
pub mod recording;
pub mod target;
