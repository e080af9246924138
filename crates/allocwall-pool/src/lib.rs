#![doc = include_str!("../README.md")]
#![cfg_attr(not(feature = "std"), no_std)]
#![deny(missing_docs)]

extern crate alloc;

mod batch;
#[cfg(feature = "capi")]
#[allow(non_camel_case_types)]
pub mod capi;
mod error;
mod estate;
mod handle;
mod lane;
mod map;
mod memory;
mod pool;
#[cfg(all(target_os = "linux", feature = "std"))]
pub mod region;
#[cfg(feature = "request-arena")]
mod request;
mod shards;
#[cfg(all(target_os = "linux", feature = "std"))]
pub mod slab;
mod sync;

pub use batch::{Batch, BatchReturner, Batched, Batches};
#[cfg(feature = "request-arena")]
pub use bump_scope;
pub use error::{BuildError, Full};
pub use handle::{Handle, Kind};
pub use lane::{LaneReceiver, LaneSender, lane};
pub use memory::{MAX_SLOT, Memory};
pub use pool::{Pool, Pooled, Queue, Returner};
#[cfg(feature = "request-arena")]
pub use request::{Bump, RequestArena, Whole};
pub use shards::{Buffer, BufferReturner, Buffers, CLASSES, NoBuffer, ShardReturner, Shards, sharded};

/// Misuse that the types reject.
///
/// Use after free:
/// ```compile_fail,E0382
/// let mut pool = allocwall_pool::Pool::new(1)?;
/// let mut home = pool.returner();
/// let object = pool.alloc(7).unwrap();
/// home.free(object);
/// println!("{}", *object);
/// # Ok::<(), allocwall_pool::BuildError>(())
/// ```
/// A second free:
/// ```compile_fail,E0382
/// let mut pool = allocwall_pool::Pool::new(1)?;
/// let object = pool.alloc(7).unwrap();
/// drop(object);
/// drop(object);
/// # Ok::<(), allocwall_pool::BuildError>(())
/// ```
/// A borrow that outlives the object:
/// ```compile_fail,E0505
/// let mut pool = allocwall_pool::Pool::new(1)?;
/// let object = pool.alloc(7).unwrap();
/// let borrowed = &*object;
/// pool.free(object);
/// println!("{borrowed}");
/// # Ok::<(), allocwall_pool::BuildError>(())
/// ```
/// Sending an object that is not `Send`:
/// ```compile_fail,E0277
/// let mut pool = allocwall_pool::Pool::new(1)?;
/// let object = pool.alloc(std::rc::Rc::new(7)).unwrap();
/// std::thread::spawn(move || drop(object));
/// # Ok::<(), allocwall_pool::BuildError>(())
/// ```
/// Two threads that use one pool, even if not at the same time:
/// ```compile_fail,E0277
/// let mut pool = allocwall_pool::Pool::<u64>::new(1)?;
/// std::thread::scope(|scope| { scope.spawn(|| { let shared = &pool; shared.capacity() }); });
/// # Ok::<(), allocwall_pool::BuildError>(())
/// ```
/// Two threads that free through one returner:
/// ```compile_fail,E0499
/// let mut pool = allocwall_pool::Pool::<u64>::new(2)?;
/// let (a, b) = (pool.alloc(1).unwrap(), pool.alloc(2).unwrap());
/// let mut home = pool.returner();
/// std::thread::scope(|scope| { scope.spawn(|| home.free(a)); scope.spawn(|| home.free(b)); });
/// # Ok::<(), allocwall_pool::BuildError>(())
/// ```
/// An object of a batch arena, freed through the returner of a queue pool:
/// ```compile_fail,E0308
/// let mut home = allocwall_pool::Pool::<u64>::new(1)?.returner();
/// home.free(allocwall_pool::Batches::new(1, 1)?.alloc(7u64).unwrap());
/// # Ok::<(), allocwall_pool::BuildError>(())
/// ```
/// A handle that outlives a value that its object borrows:
/// ```compile_fail,E0597
/// let mut pool = allocwall_pool::Pool::new(1)?;
/// let object = { let local = 7; pool.alloc(&local).unwrap() };
/// println!("{}", **object);
/// # Ok::<(), allocwall_pool::BuildError>(())
/// ```
#[cfg(doctest)]
pub struct Refused;
