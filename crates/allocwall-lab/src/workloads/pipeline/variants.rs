//! The two ends of each variant: the producer's end makes an order, and the consumer's end frees it.

use super::order::{Block, LARGEST_REST, LINE, Order, Template, Value};
use crate::pipeline::variants::{Sizes, Variant};
use crate::pipeline::{ARENAS, SLOTS, Spec};
use allocwall_pool::region::{Pages, Region, Request};
use allocwall_pool::{Batches, Buffer, BufferReturner, Buffers, Handle, Kind, Pool, Pooled, sharded};
use anyhow::{Context, bail};
use sharded_slab::Slab;
use std::alloc::{Layout, alloc, dealloc};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

/// The producer's end.
pub trait Make: Send {
    type Item: Send;
    /// None if no slot is free.
    fn make(&mut self, template: &Template) -> Option<Self::Item>;
    fn stamp(&mut self, item: &mut Self::Item, allocated: u64);
}

/// The consumer's end.
pub trait Free: Send {
    type Item: Send;
    /// Calls `with` with the order and its payload.
    fn read<R>(&self, item: &Self::Item, with: impl FnOnce(&Order, &[u8]) -> R) -> R;
    /// `producer` is the producer that made the item.
    fn free(&mut self, item: Self::Item, producer: usize);
}

/// The code that runs with the ends of a variant: one function, compiled for each variant.
pub trait Run {
    type Output;
    fn run<M: Make, F: Free<Item = M::Item>>(self, make: Vec<M>, free: Vec<F>) -> Self::Output;
}

/// Makes the ends of the variant and runs `run` with them.
pub fn with<R: Run>(spec: &Spec, run: R) -> anyhow::Result<R::Output> {
    match (spec.variant, spec.sizes) {
        (Variant::Malloc, _) => {
            let make = (0..spec.producers).map(|_| Malloc).collect();
            Ok(run.run(make, (0..spec.consumers).map(|_| Malloc).collect()))
        }
        (Variant::Pool, Sizes::Mixed) => buffers(spec, run),
        (_, Sizes::Line) => typed::<0, R>(spec, run),
        (_, Sizes::Fixed) => typed::<192, R>(spec, run),
        // Each slot has the largest size.
        (_, Sizes::Mixed) => typed::<LARGEST_REST, R>(spec, run),
    }
}

fn typed<const B: usize, R: Run>(spec: &Spec, run: R) -> anyhow::Result<R::Output> {
    let (producers, consumers) = (spec.producers, spec.consumers);
    match spec.variant {
        Variant::Malloc => bail!("malloc takes each order's own size"),
        Variant::ByValue => {
            let make = (0..producers).map(|_| ByValue::<B>).collect();
            Ok(run.run(make, (0..consumers).map(|_| ByValue::<B>).collect()))
        }
        Variant::Freelist => {
            let (make, free) = freelists::<B>(producers, consumers);
            Ok(run.run(make, free))
        }
        Variant::Pool | Variant::PoolHuge => {
            let mut pools = pools::<B>(spec)?;
            let free = (0..consumers)
                .map(|_| {
                    let mut homes: Vec<_> = pools.iter_mut().map(Pool::returner).collect();
                    takes(move |item, producer: usize| homes[producer].free(item))
                })
                .collect();
            Ok(run.run(from_pools(pools), free))
        }
        Variant::PoolDrop => {
            let free = (0..consumers).map(|_| takes(|item: Pooled<Block<B>>, _| drop(item))).collect();
            Ok(run.run(from_pools(pools::<B>(spec)?), free))
        }
        Variant::Sharded => {
            let (pools, homes) = sharded::<Block<B>>(producers, consumers, SLOTS)?;
            let free = homes.into_iter().map(|mut home| takes(move |item, _| home.free(item))).collect();
            Ok(run.run(from_pools(pools), free))
        }
        Variant::Batch => {
            let mut all = (0..producers)
                .map(|_| Batches::<Block<B>>::new(ARENAS, SLOTS))
                .collect::<Result<Vec<_>, _>>()?;
            let free = (0..consumers)
                .map(|_| {
                    let mut homes: Vec<_> = all.iter_mut().map(Batches::returner).collect();
                    takes(move |item, producer: usize| homes[producer].free(item))
                })
                .collect();
            let make = all.into_iter().map(|mut batches| gives(move |block| batches.alloc(block))).collect();
            Ok(run.run(make, free))
        }
        Variant::Slab => {
            let slab = Arc::new(Slab::new());
            let end = || Keyed::<B>(Arc::clone(&slab));
            let make = (0..producers).map(|_| end()).collect();
            let free = (0..consumers).map(|_| end()).collect();
            Ok(run.run(make, free))
        }
    }
}

/// A block from `malloc`: an order and its payload.
pub struct Allocated(NonNull<Order>);

// SAFETY: the only pointer to its memory.
unsafe impl Send for Allocated {}

struct Malloc;

/// Aligned to a cache line, because the object moves between cores.
fn layout(size: usize) -> Layout {
    Layout::from_size_align(size, 64).expect("a size of some bytes with a line's alignment")
}

impl Make for Malloc {
    type Item = Allocated;

    #[inline]
    fn make(&mut self, template: &Template) -> Option<Allocated> {
        let bytes = template.bytes();
        // SAFETY: the size is not zero. If the result is not null, it has room for all bytes.
        unsafe {
            let memory = NonNull::new(alloc(layout(bytes.len())))?;
            memory.copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len());
            Some(Allocated(memory.cast()))
        }
    }

    #[inline]
    fn stamp(&mut self, item: &mut Allocated, allocated: u64) {
        // SAFETY: only this end has the order.
        unsafe { item.0.as_mut() }.allocated = allocated;
    }
}

impl Free for Malloc {
    type Item = Allocated;

    #[inline]
    fn read<R>(&self, item: &Allocated, with: impl FnOnce(&Order, &[u8]) -> R) -> R {
        // SAFETY: the order is initialised, and its payload follows it in the same allocation.
        unsafe {
            let order = item.0.as_ref();
            let rest = order.size as usize - LINE;
            with(order, slice::from_raw_parts(item.0.cast().add(LINE).as_ptr(), rest))
        }
    }

    #[inline]
    fn free(&mut self, item: Allocated, _: usize) {
        // SAFETY: allocated with this layout, and only this end has it.
        unsafe { dealloc(item.0.as_ptr().cast(), layout(item.0.as_ref().size as usize)) }
    }
}

#[inline]
fn parts<const B: usize>(block: &Block<B>) -> (&Order, &[u8]) {
    let rest = block.order.size as usize - LINE;
    (&block.order, &block.rest[..rest])
}

struct ByValue<const B: usize>;

impl<const B: usize> Make for ByValue<B> {
    type Item = Value<B>;

    #[inline]
    fn make(&mut self, template: &Template) -> Option<Value<B>> {
        Some(template.value())
    }

    #[inline]
    fn stamp(&mut self, item: &mut Value<B>, allocated: u64) {
        item.order.allocated = allocated;
    }
}

impl<const B: usize> Free for ByValue<B> {
    type Item = Value<B>;

    #[inline]
    fn read<R>(&self, item: &Value<B>, with: impl FnOnce(&Order, &[u8]) -> R) -> R {
        let rest = usize::from(item.order.size) - LINE;
        with(&item.order, &item.rest[..rest])
    }

    #[inline]
    fn free(&mut self, _: Value<B>, _: usize) {}
}

/// The slots of the published free list. Each slot is in one place at a time.
struct Slots<const B: usize> {
    memory: NonNull<Block<B>>,
    count: usize,
}

// SAFETY: it is only dropped; slots are accessed only by the owner of their `Slot`.
unsafe impl<const B: usize> Send for Slots<B> {}
// SAFETY: as above.
unsafe impl<const B: usize> Sync for Slots<B> {}

impl<const B: usize> Slots<B> {
    /// The pages are touched here, so that no order causes a page fault.
    fn new(count: usize) -> Slots<B> {
        let blocks = vec![Template::new(Sizes::Line, 1, 0).block::<B>(); count];
        let memory = NonNull::from(Box::leak(blocks.into_boxed_slice())).cast();
        Slots { memory, count }
    }
}

impl<const B: usize> Drop for Slots<B> {
    fn drop(&mut self) {
        // SAFETY: it comes from a box of a slice of this length. All ends with slots also hold this, so they are gone.
        drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(self.memory.as_ptr(), self.count)) });
    }
}

struct Slot<const B: usize>(NonNull<Block<B>>);

// SAFETY: the only pointer to its slot.
unsafe impl<const B: usize> Send for Slot<B> {}

/// Maximum number of slots that are taken from a return queue at once.
const DRAINED: usize = 32;

struct FreeList<const B: usize> {
    free: Vec<Slot<B>>,
    home: Vec<rtrb::Consumer<Slot<B>>>,
    _slots: Arc<Slots<B>>,
}

impl<const B: usize> Make for FreeList<B> {
    type Item = Slot<B>;

    #[inline]
    fn make(&mut self, template: &Template) -> Option<Slot<B>> {
        if self.free.is_empty() {
            for home in &mut self.home {
                while self.free.len() < DRAINED
                    && let Ok(slot) = home.pop()
                {
                    self.free.push(slot);
                }
            }
        }
        let slot = self.free.pop()?;
        // SAFETY: a free slot, and only this list has it.
        unsafe { slot.0.write(template.block()) };
        Some(slot)
    }

    #[inline]
    fn stamp(&mut self, item: &mut Slot<B>, allocated: u64) {
        // SAFETY: written by `make`, and only this end has it.
        unsafe { item.0.as_mut() }.order.allocated = allocated;
    }
}

struct ReturnQueues<const B: usize> {
    homes: Vec<rtrb::Producer<Slot<B>>>,
    _slots: Vec<Arc<Slots<B>>>,
}

impl<const B: usize> Free for ReturnQueues<B> {
    type Item = Slot<B>;

    #[inline]
    fn read<R>(&self, item: &Slot<B>, with: impl FnOnce(&Order, &[u8]) -> R) -> R {
        // SAFETY: initialised, and only this end has it.
        let (order, rest) = parts(unsafe { item.0.as_ref() });
        with(order, rest)
    }

    #[inline]
    fn free(&mut self, item: Slot<B>, producer: usize) {
        // The queue has an entry for each slot.
        let pushed = self.homes[producer].push(item);
        debug_assert!(pushed.is_ok());
    }
}

fn freelists<const B: usize>(producers: usize, consumers: usize) -> (Vec<FreeList<B>>, Vec<ReturnQueues<B>>) {
    let mut frees: Vec<_> = (0..consumers).map(|_| ReturnQueues { homes: vec![], _slots: vec![] }).collect();
    let makes = (0..producers)
        .map(|_| {
            let slots = Arc::new(Slots::<B>::new(SLOTS));
            // SAFETY: within the memory, and each slot is used once.
            let free = (0..SLOTS).map(|n| Slot(unsafe { slots.memory.add(n) })).collect();
            let home = frees
                .iter_mut()
                .map(|end| {
                    let (to, from) = rtrb::RingBuffer::new(SLOTS);
                    end.homes.push(to);
                    end._slots.push(Arc::clone(&slots));
                    from
                })
                .collect();
            FreeList { free, home, _slots: slots }
        })
        .collect();
    (makes, frees)
}

fn from_pools<const B: usize>(pools: Vec<Pool<Block<B>>>) -> Vec<impl Make<Item = Pooled<Block<B>>>> {
    let one = |mut pool: Pool<Block<B>>| gives(move |block| pool.alloc(block));
    pools.into_iter().map(one).collect()
}

fn pools<const B: usize>(spec: &Spec) -> anyhow::Result<Vec<Pool<Block<B>>>> {
    let one = |_| {
        if spec.variant != Variant::PoolHuge {
            return Ok(Pool::new(SLOTS)?);
        }
        let bytes = (SLOTS * (size_of::<Block<B>>() + LINE)).next_multiple_of(allocwall_pool::region::HUGE);
        let request = Request { pages: Pages::Transparent, touch: true, ..Request::of(bytes) };
        let region = Region::new(&request).context("cannot map huge pages for the pool")?;
        Ok(Pool::over(region)?)
    };
    (0..spec.producers).map(one).collect()
}

/// The producer's end for all kinds of pools: gives out handles.
struct Gives<H, F>(F, PhantomData<fn() -> H>);

fn gives<H, E, const B: usize>(
    from: impl FnMut(Block<B>) -> Result<H, E> + Send,
) -> Gives<H, impl FnMut(Block<B>) -> Option<H> + Send> {
    let mut from = from;
    Gives(move |block| from(block).ok(), PhantomData)
}

impl<F, K, const B: usize> Make for Gives<Handle<Block<B>, K>, F>
where
    F: FnMut(Block<B>) -> Option<Handle<Block<B>, K>> + Send,
    K: Kind,
{
    type Item = Handle<Block<B>, K>;

    #[inline]
    fn make(&mut self, template: &Template) -> Option<Self::Item> {
        (self.0)(template.block())
    }

    #[inline]
    fn stamp(&mut self, item: &mut Self::Item, allocated: u64) {
        item.order.allocated = allocated;
    }
}

/// The consumer's end: takes back the handle and the number of its producer.
struct Takes<H, F>(F, PhantomData<fn(H)>);

fn takes<H, F: FnMut(H, usize) + Send>(back: F) -> Takes<H, F> {
    Takes(back, PhantomData)
}

impl<F, K, const B: usize> Free for Takes<Handle<Block<B>, K>, F>
where
    F: FnMut(Handle<Block<B>, K>, usize) + Send,
    K: Kind,
{
    type Item = Handle<Block<B>, K>;

    #[inline]
    fn read<R>(&self, item: &Self::Item, with: impl FnOnce(&Order, &[u8]) -> R) -> R {
        let (order, rest) = parts(item.deref());
        with(order, rest)
    }

    #[inline]
    fn free(&mut self, item: Self::Item, producer: usize) {
        (self.0)(item, producer);
    }
}

/// Pools by size class.
struct Classed(Buffers);

struct ClassedReturners(Vec<BufferReturner>);

fn buffers<R: Run>(spec: &Spec, run: R) -> anyhow::Result<R::Output> {
    // Sizes from 64 to 1,024 bytes are used.
    let capacities = allocwall_pool::CLASSES.map(|class| if class <= 1024 { SLOTS } else { 1 });
    let mut make = (0..spec.producers)
        .map(|_| Ok(Classed(Buffers::new(capacities)?)))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let free = (0..spec.consumers)
        .map(|_| ClassedReturners(make.iter_mut().map(|end| end.0.returner()).collect()))
        .collect();
    Ok(run.run(make, free))
}

#[inline]
fn order_in(buffer: &[u8]) -> (&Order, &[u8]) {
    // SAFETY: the slots are aligned to 64 bytes, and `make` copied an order there; all bit patterns are valid orders.
    let order = unsafe { &*buffer.as_ptr().cast::<Order>() };
    (order, &buffer[LINE..])
}

impl Make for Classed {
    type Item = Buffer;

    #[inline]
    fn make(&mut self, template: &Template) -> Option<Buffer> {
        self.0.copy(template.bytes()).ok()
    }

    #[inline]
    fn stamp(&mut self, item: &mut Buffer, allocated: u64) {
        let at = std::mem::offset_of!(Order, allocated);
        item.deref_mut()[at..at + 8].copy_from_slice(&allocated.to_ne_bytes());
    }
}

impl Free for ClassedReturners {
    type Item = Buffer;

    #[inline]
    fn read<R>(&self, item: &Buffer, with: impl FnOnce(&Order, &[u8]) -> R) -> R {
        let (order, rest) = order_in(item);
        with(order, rest)
    }

    #[inline]
    fn free(&mut self, item: Buffer, producer: usize) {
        self.0[producer].free(item);
    }
}

/// Objects in a slab, found by key. Objects in the slab cannot be changed, so the time stamp is stored with the key.
struct Keyed<const B: usize>(Arc<Slab<Block<B>>>);

pub struct Key {
    key: usize,
    allocated: u64,
}

impl<const B: usize> Make for Keyed<B> {
    type Item = Key;

    #[inline]
    fn make(&mut self, template: &Template) -> Option<Key> {
        let key = self.0.insert(template.block())?;
        Some(Key { key, allocated: 0 })
    }

    #[inline]
    fn stamp(&mut self, item: &mut Key, allocated: u64) {
        item.allocated = allocated;
    }
}

impl<const B: usize> Free for Keyed<B> {
    type Item = Key;

    #[inline]
    fn read<R>(&self, item: &Key, with: impl FnOnce(&Order, &[u8]) -> R) -> R {
        let entry = self.0.get(item.key).expect("a key is in the slab until it is freed");
        let (order, rest) = parts(&*entry);
        let order = Order { allocated: item.allocated, ..*order };
        with(&order, rest)
    }

    #[inline]
    fn free(&mut self, item: Key, _: usize) {
        self.0.remove(item.key);
    }
}
