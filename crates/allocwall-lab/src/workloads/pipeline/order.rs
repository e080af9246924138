//! The order, and the risk check.

use crate::pipeline::variants::Sizes;
use allocwall_host::cycles::Cycles;
use std::hint::black_box;

/// Eight bytes smaller than a cache line: the by-value ring uses these bytes for the mark of an entry. `intended` and `allocated`
/// are readings of [`Cycles`].
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Order {
    pub intended: u64,
    pub allocated: u64,
    pub sequence: u64,
    pub price: u64,
    pub risk_sequence: u64,
    pub quantity: u32,
    pub client: u32,
    pub symbol: u32,
    /// Size in bytes, including the payload.
    pub size: u16,
    pub producer: u8,
    pub side: u8,
}

/// Size of an order in its own memory, without payload.
pub const LINE: usize = 64;

/// An order, followed by a payload of `R` bytes.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub struct Block<const R: usize> {
    pub order: Order,
    pub _free: [u8; LINE - size_of::<Order>()],
    pub rest: [u8; R],
}

/// The same without padding: 56 bytes and the payload.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Value<const R: usize> {
    pub order: Order,
    pub rest: [u8; R],
}

pub const LARGEST: usize = 1024;
pub const LARGEST_REST: usize = LARGEST - LINE;

/// The producer fills in this order, and all variants copy it, so that all do the same work.
pub struct Template {
    block: Block<LARGEST_REST>,
    sizes: &'static [usize],
    random: Random,
}

impl Template {
    pub fn new(sizes: Sizes, seed: u64, producer: u8) -> Template {
        let order = Order { producer, ..Order::default() };
        Template {
            block: Block { order, _free: [0; LINE - size_of::<Order>()], rest: [7; LARGEST_REST] },
            sizes: sizes.all(),
            random: Random::new(seed),
        }
    }

    #[inline]
    pub fn next(&mut self, sequence: u64, intended: u64) {
        let random = self.random.next();
        let order = &mut self.block.order;
        order.intended = intended;
        order.sequence = sequence;
        order.price = 10_000 + (random & 0xff);
        order.quantity = 1 + (random >> 8 & 0x3f) as u32;
        order.client = (random >> 16) as u32;
        order.symbol = (random >> 40) as u32;
        order.side = (random >> 63) as u8;
        order.risk_sequence = sequence ^ random;
        order.size = self.sizes[match self.sizes.len() {
            1 => 0,
            n => (random >> 32) as usize % n,
        }] as u16;
    }

    /// The order with its payload.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `order.size` is one of `Sizes`, so at most LARGEST; a block is LARGEST bytes without padding.
        unsafe { std::slice::from_raw_parts((&raw const self.block).cast(), self.block.order.size as usize) }
    }

    /// The order without padding.
    #[inline]
    pub fn value<const R: usize>(&self) -> Value<R> {
        Value { order: self.block.order, rest: self.block::<R>().rest }
    }

    /// The first bytes of the template as a smaller block.
    #[inline]
    pub fn block<const R: usize>(&self) -> Block<R> {
        const { assert!(R <= LARGEST_REST) }
        // SAFETY: a shorter prefix of the same layout, initialised and aligned.
        unsafe { (&raw const self.block).cast::<Block<R>>().read() }
    }
}

/// Marsaglia's xorshift64: few instructions; the quality is good enough here.
#[derive(Clone)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed | 1)
    }

    #[inline]
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

#[derive(Clone, Copy, Default)]
struct Symbol {
    reference: u64,
    band: u64,
}

#[derive(Clone, Copy, Default)]
struct Limit {
    position: i64,
    most: i64,
    exposure: u64,
    most_exposure: u64,
}

#[derive(Clone, Copy, Default)]
struct Window {
    opened: u64,
    count: u64,
}

const SYMBOLS: usize = 512;
const CLIENTS: usize = 512;

/// The risk check, with tables of 32 KiB: reference prices by symbol, limits by client, velocity windows by client. It does three
/// lookups, a position delta, limits and a window, and then more lookups until it takes the calibrated time.
pub struct Checker {
    symbols: Box<[Symbol; SYMBOLS]>,
    limits: Box<[Limit; CLIENTS]>,
    windows: Box<[Window; CLIENTS]>,
    steps: u32,
}

impl Checker {
    pub fn new(steps: u32) -> Checker {
        let symbol = Symbol { reference: 10_128, band: 100 };
        let limit = Limit { most: 1 << 40, most_exposure: u64::MAX, ..Limit::default() };
        Checker {
            symbols: Box::new([symbol; SYMBOLS]),
            limits: Box::new([limit; CLIENTS]),
            windows: Box::new([Window::default(); CLIENTS]),
            steps,
        }
    }

    /// Whether the order passes. It also reads `payload`, like a real consumer.
    #[inline(never)]
    pub fn check(&mut self, order: &Order, payload: &[u8]) -> bool {
        let symbol = self.symbols[order.symbol as usize % SYMBOLS];
        let limit = &mut self.limits[order.client as usize % CLIENTS];
        let delta = match order.side {
            0 => i64::from(order.quantity),
            _ => -i64::from(order.quantity),
        };
        let position = limit.position + delta;
        let exposure = limit.exposure.wrapping_add(order.price * u64::from(order.quantity));
        let mut passes = order.price.abs_diff(symbol.reference) <= symbol.band
            && position.abs() <= limit.most
            && exposure <= limit.most_exposure;
        limit.position = position;
        limit.exposure = exposure;
        let window = &mut self.windows[order.client as usize % CLIENTS];
        if order.sequence.wrapping_sub(window.opened) > 1 << 20 {
            *window = Window { opened: order.sequence, count: 0 };
        }
        window.count += 1;
        passes &= window.count < 1 << 40;
        let mut at = order.risk_sequence;
        for line in payload.chunks(64) {
            at = at.wrapping_add(u64::from(line[0]));
        }
        // Each step depends on the step before, by a table lookup.
        for _ in 0..self.steps {
            at = at
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .wrapping_add(self.symbols[at as usize % SYMBOLS].reference);
        }
        passes & (black_box(at) != 0)
    }
}

/// The number of steps with which a check takes `ns`. Uses the fastest of many batches, so that time slices of other processes do
/// not count.
pub fn steps_for(ns: f64) -> u32 {
    let cycles = Cycles::start(20_000_000);
    let cost = |steps| {
        let mut checker = Checker::new(steps);
        let mut template = Template::new(Sizes::Line, 1, 0);
        let batch = |_| {
            let began = cycles.now();
            for sequence in 0..256 {
                template.next(sequence, 0);
                black_box(checker.check(&template.block.order, &[]));
            }
            cycles.now() - began
        };
        cycles.ns((0..64).map(batch).min().unwrap_or(0)) / 256.0
    };
    let (none, many) = (cost(0), cost(200));
    let step = ((many - none) / 200.0).max(0.1);
    ((ns - none) / step).round().max(0.0) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_a_line_and_the_tables_fit_a_first_level_cache() {
        assert_eq!(size_of::<Block<0>>(), LINE);
        // With the eight bytes of a mark.
        assert_eq!(size_of::<Value<0>>(), LINE - 8);
        assert_eq!(size_of::<Block<LARGEST_REST>>(), LARGEST);
        let tables = SYMBOLS * size_of::<Symbol>() + CLIENTS * (size_of::<Limit>() + size_of::<Window>());
        assert_eq!(tables, 32 << 10);
    }

    #[test]
    fn a_check_passes_what_is_in_its_band_and_stops_what_is_not() {
        let mut checker = Checker::new(3);
        let mut template = Template::new(Sizes::Line, 1, 0);
        template.next(0, 0);
        assert!(checker.check(&template.block.order, &[]));
        template.block.order.price = 20_000;
        assert!(!checker.check(&template.block.order, &[]));
    }

    #[test]
    fn mixed_sizes_come_all_of_them() {
        let mut template = Template::new(Sizes::Mixed, 1, 0);
        let mut seen = std::collections::BTreeSet::new();
        for sequence in 0..1000 {
            template.next(sequence, 0);
            seen.insert(template.bytes().len());
        }
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), Sizes::Mixed.all());
    }
}
