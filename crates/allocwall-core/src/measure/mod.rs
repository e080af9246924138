//! Target -> Recording.

pub mod calibrate;
mod collect;
mod counts;
pub mod file;
mod groups;
pub(crate) mod heap;
pub mod malloc_range;
pub mod python;
pub mod reading;
pub mod record;
pub mod recording;
mod room;
pub(crate) mod symbols;
pub mod target;
mod ticks;
pub mod unwind;
