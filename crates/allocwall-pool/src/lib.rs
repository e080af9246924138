//! Hand objects between cores: one thread allocates, others free, and the slots come home.

#![cfg_attr(not(feature = "std"), no_std)]

extern crate alloc;

mod batch;
mod error;
mod estate;
mod handle;
mod memory;
mod pool;
mod ring;
mod shards;
mod stack;
mod sync;

pub use batch::{Batch, BatchReturner, Batched, Batches};
pub use error::{BuildError, Full};
pub use handle::{Handle, Kind};
pub use memory::{MAX_SLOT, Memory};
pub use pool::{Pool, Pooled, Queue, Returner};
pub use shards::{Buffer, BufferReturner, Buffers, CLASSES, NoBuffer, ShardReturner, sharded};
