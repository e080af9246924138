//! The errors: of an allocation, and of a constructor.

use core::{error, fmt};

/// There was no room for a value. Contains that value; it was not stored anywhere else.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Full<T>(pub T);

impl<T> fmt::Debug for Full<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Full(..)")
    }
}

impl<T> fmt::Display for Full<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no room: all of the memory is in use")
    }
}

impl<T> error::Error for Full<T> {}

/// Why a pool could not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BuildError {
    /// The capacity is 0, or the memory is too small for one slot or for the header of a request arena.
    NoCapacity,
    /// The limit of growth is below the initial capacity.
    LimitBelowCapacity {
        /// The requested initial capacity, in slots; for [`Batches`](crate::Batches), in arenas.
        capacity: usize,
        /// The requested limit, in the same unit.
        limit: usize,
    },
    /// A slot has more than [`MAX_SLOT`](crate::MAX_SLOT) bytes, or an alignment of more than 4096 bytes.
    SlotTooLarge {
        /// The size of the object, in bytes.
        bytes: usize,
    },
    /// The system has no memory for this many slots.
    OutOfMemory {
        /// The size of the allocation that failed, in bytes; `usize::MAX` if it cannot be represented.
        bytes: usize,
    },
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoCapacity => f.write_str("a pool needs room for at least one slot"),
            Self::LimitBelowCapacity { capacity, limit } => {
                write!(f, "the limit of {limit} slots is below the capacity of {capacity}")
            }
            Self::SlotTooLarge { bytes } => {
                write!(
                    f,
                    "a slot of {bytes} bytes is too large: the maximum is {} bytes, aligned to 4096",
                    crate::MAX_SLOT
                )
            }
            Self::OutOfMemory { bytes } => write!(f, "no memory for {bytes} bytes of slots"),
        }
    }
}

impl error::Error for BuildError {}
