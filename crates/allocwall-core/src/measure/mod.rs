//! Target -> Recording.

mod collect;
mod counts;
pub mod file;
mod heap;
mod python;
pub mod record;
pub mod recording;
mod symbols;
mod ticks;
pub mod unwind;
