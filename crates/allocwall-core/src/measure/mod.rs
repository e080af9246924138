//! Target -> Recording.

pub mod calibrate;
pub mod recording;
