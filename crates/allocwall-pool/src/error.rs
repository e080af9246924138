use core::{error, fmt};

/// No room is free; holds what was to be stored. Nothing was allocated elsewhere instead.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Full<T>(pub T);

impl<T> fmt::Debug for Full<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Full(..)")
    }
}

impl<T> fmt::Display for Full<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no room: what there is is in use")
    }
}

impl<T> error::Error for Full<T> {}

/// Why a pool could not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BuildError {
    /// A capacity of 0, or memory in which not one slot fits, or the header of a request arena.
    NoCapacity,
    /// A limit of growth below the capacity to start with.
    LimitBelowCapacity { capacity: usize, limit: usize },
    /// A slot of more than [`MAX_SLOT`](crate::MAX_SLOT) bytes, or aligned to more than 4096.
    SlotTooLarge { bytes: usize },
    /// The system has no memory for this many slots.
    OutOfMemory { bytes: usize },
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoCapacity => f.write_str("a pool needs room for at least one slot"),
            Self::LimitBelowCapacity { capacity, limit } => {
                write!(
                    f,
                    "the limit of {limit} slots is below the capacity of {capacity}"
                )
            }
            Self::SlotTooLarge { bytes } => {
                write!(
                    f,
                    "a slot of {bytes} bytes: the largest has {} and is aligned to 4096",
                    crate::MAX_SLOT
                )
            }
            Self::OutOfMemory { bytes } => write!(f, "no memory for {bytes} bytes of slots"),
        }
    }
}

impl error::Error for BuildError {}
