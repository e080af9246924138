//! Interleaved A/B of remedies on the user's own command.

pub mod load;
