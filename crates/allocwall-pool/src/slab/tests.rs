use super::*;
use proptest::prelude::*;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

const MIB: usize = 1 << 20;
const CHEAP_NS: u64 = 100_000;

/// A fake system: it maps addresses without memory, with prices and failures that a test sets.
struct Fake {
    now: Cell<u64>,
    next: Cell<usize>,
    mapped: RefCell<BTreeMap<usize, Pages>>,
    /// The number of a slab's base pages that were touched.
    touched: RefCell<BTreeMap<usize, usize>>,
    lazy: RefCell<BTreeSet<usize>>,
    /// Trimmed arenas, in order, and slabs that were made eligible for huge pages.
    trims: RefCell<Vec<usize>>,
    eligible: RefCell<Vec<usize>>,
    may_trim: Cell<bool>,
    huge_ns: Cell<u64>,
    small_ns: Cell<u64>,
    pool: Cell<usize>,
    may_map: Cell<bool>,
    may_unmap: Cell<bool>,
}

// SAFETY: the tests that use it have one thread.
unsafe impl Sync for Fake {}

impl Fake {
    fn new() -> Self {
        Self {
            now: Cell::new(1_000_000_000),
            next: Cell::new(0x7f00_0000_0000),
            mapped: RefCell::default(),
            touched: RefCell::default(),
            lazy: RefCell::default(),
            trims: RefCell::default(),
            eligible: RefCell::default(),
            may_trim: Cell::new(true),
            huge_ns: Cell::new(CHEAP_NS),
            small_ns: Cell::new(1_500),
            pool: Cell::new(0),
            may_map: Cell::new(true),
            may_unmap: Cell::new(true),
        }
    }

    fn pass(&self, ns: u64) {
        self.now.set(self.now.get() + ns);
    }
}

impl System for &Fake {
    fn now(&self) -> u64 {
        self.now.get()
    }

    fn map(&self, pages: Pages) -> Result<usize, Why> {
        let failed = Why::Failed { call: "mmap", errno: libc::ENOMEM };
        if !self.may_map.get() {
            return Err(failed);
        }
        if pages == Pages::Reserved {
            self.pool.set(self.pool.get().checked_sub(1).ok_or(failed)?);
        }
        // Downwards, with occasional holes, across the border of a leaf (16 GiB).
        let base = self.next.get() - HUGE * (1 + usize::from(self.next.get().is_multiple_of(7)) * 5000);
        self.next.set(base);
        assert!(self.mapped.borrow_mut().insert(base, pages).is_none());
        Ok(base)
    }

    fn touch(&self, base: usize, pages: usize) -> u64 {
        match self.mapped.borrow()[&base] {
            Pages::Plain => {
                let mut touched = self.touched.borrow_mut();
                let before = touched.entry(base).or_default();
                let fresh = pages.saturating_sub(*before);
                *before += fresh;
                self.small_ns.get() * fresh as u64
            }
            Pages::Transparent => self.huge_ns.get(),
            Pages::Reserved => 0,
        }
    }

    fn make_eligible(&self, base: usize) {
        assert_ne!(self.mapped.borrow()[&base], Pages::Reserved);
        self.eligible.borrow_mut().push(base);
    }

    fn unmap(&self, base: usize) -> Result<(), Why> {
        if self.may_unmap.get() {
            self.lazy.borrow_mut().remove(&base);
            self.touched.borrow_mut().remove(&base);
            assert!(self.mapped.borrow_mut().remove(&base).is_some());
            Ok(())
        } else {
            Err(Why::Failed { call: "munmap", errno: libc::ENOMEM })
        }
    }

    fn free_lazily(&self, base: usize) {
        assert!(self.mapped.borrow().contains_key(&base));
        self.lazy.borrow_mut().insert(base);
    }

    fn drop_pages(&self, base: usize) {
        assert_ne!(self.mapped.borrow()[&base], Pages::Reserved);
    }

    fn trim(&self, arena: usize, bytes: usize) -> bool {
        assert!(arena.is_multiple_of(bytes) && bytes < HUGE);
        assert_ne!(self.mapped.borrow()[&(arena & !(HUGE - 1))], Pages::Reserved);
        self.trims.borrow_mut().push(arena);
        self.may_trim.get()
    }
}

fn arenas(fake: &Fake, settings: Settings) -> Arenas<&Fake> {
    Arenas::on(fake, settings).unwrap()
}

fn give<S: System>(arenas: &Arenas<S>) -> usize {
    arenas.alloc(arenas.settings().arena_bytes).unwrap().as_ptr() as usize
}

fn take<S: System>(arenas: &Arenas<S>, address: usize) -> Freed {
    // SAFETY: the fake's addresses have no memory; the tests do not use the memory of the real system's addresses.
    unsafe { arenas.free(NonNull::new(std::ptr::with_exposed_provenance_mut(address)).unwrap()) }
}

#[test]
fn arenas_of_any_interpreter_fill_slabs_before_another_is_mapped() {
    for arena in [64 << 10, 256 << 10, MIB, 2 * MIB] {
        let fake = Fake::new();
        let arenas = arenas(&fake, Settings::of(arena));
        let given: BTreeSet<usize> = (0..3 * HUGE / arena).map(|_| give(&arenas)).collect();
        assert_eq!(given.len(), 3 * HUGE / arena);
        assert!(given.iter().all(|address| address % arena == 0));
        assert_eq!(fake.mapped.borrow().len(), 3);
        assert_eq!(arenas.counts().arenas, 3 * HUGE / arena);
        for address in given {
            assert_eq!(take(&arenas, address), Freed::Ours);
        }
        assert_eq!(fake.mapped.borrow().len(), 0);
        assert_eq!(arenas.counts().slabs, 0);
    }
}

#[test]
fn sizes_that_no_interpreter_uses_are_refused() {
    for (bytes, why) in
        [(0, Why::Empty), (4096, Why::Empty), (3 * MIB / 2, Why::Empty), (4 * MIB, Why::TooLarge)]
    {
        assert_eq!(Arenas::new(Settings::of(bytes)).err(), Some(why), "{bytes}");
    }
}

#[test]
fn other_sizes_and_other_addresses_are_not_ours() {
    let fake = Fake::new();
    let arenas = arenas(&fake, Settings::of(MIB));
    let arena = give(&arenas);
    assert_eq!(arenas.alloc(16 << 10), Err(NoArena::OddSize));
    for foreign in [arena - HUGE, arena + HUGE, 0x1000, usize::MAX, 0xffff_8000_0000_0000] {
        assert_eq!(take(&arenas, foreign), Freed::Foreign, "{foreign:x}");
    }
    // In one of the slabs, but not an arena that is out: nothing is forwarded, and nothing is freed.
    for misplaced in [arena + 4096, arena + MIB] {
        assert_eq!(take(&arenas, misplaced), Freed::Ours, "{misplaced:x}");
    }
    let counts = arenas.counts();
    assert_eq!((counts.foreign_frees, counts.misplaced_frees), (5, 2));
    assert_eq!((counts.arenas, counts.fallbacks.odd_size), (1, 1));
    assert_eq!(take(&arenas, arena), Freed::Ours);
    assert_eq!(take(&arenas, arena), Freed::Foreign);
}

#[test]
fn a_heap_that_goes_up_and_down_is_kept_from_the_third_time_and_given_back_in_the_end() {
    let fake = Fake::new();
    let settings = Settings { keep_bytes: 10 * HUGE, ..Settings::of(MIB) };
    let arenas = arenas(&fake, settings);
    let mut mapped = Vec::new();
    for _ in 0..5 {
        let before = arenas.counts().slabs_mapped;
        let round: Vec<usize> = (0..20).map(|_| give(&arenas)).collect();
        mapped.push(arenas.counts().slabs_mapped - before);
        fake.pass(50_000_000);
        for address in round {
            take(&arenas, address);
        }
    }
    assert_eq!(mapped, [10, 10, 0, 0, 0]);
    assert_eq!(arenas.counts().slabs_kept, 10);
    assert_eq!(*fake.lazy.borrow(), fake.mapped.borrow().keys().copied().collect());
    // Unused slabs are released, at most two per call.
    for _ in 0..20 {
        fake.pass(10_000_000_000);
        let address = give(&arenas);
        take(&arenas, address);
    }
    assert_eq!(arenas.counts().slabs, 0);
}

#[test]
fn a_heap_that_goes_down_once_or_slowly_is_not_kept() {
    let fake = Fake::new();
    let arenas = arenas(&fake, Settings::of(MIB));
    for _ in 0..3 {
        let round: Vec<usize> = (0..20).map(|_| give(&arenas)).collect();
        for address in round {
            take(&arenas, address);
        }
        assert_eq!(arenas.counts().slabs, 0);
        fake.pass(2_000_000_000);
    }
}

#[test]
fn the_limit_of_kept_slabs_holds() {
    let fake = Fake::new();
    let settings = Settings { keep_bytes: 3 * HUGE, ..Settings::of(MIB) };
    let arenas = arenas(&fake, settings);
    for _ in 0..4 {
        let round: Vec<usize> = (0..20).map(|_| give(&arenas)).collect();
        for address in round {
            take(&arenas, address);
        }
        assert!(arenas.counts().slabs <= 3);
    }
    assert_eq!(arenas.counts().slabs_kept, 3);
}

/// By default a heap that grows and shrinks never holds more than 5 % and a slab above the memory in use. And an
/// arena that is allocated and freed repeatedly is mapped at most twice.
#[test]
fn by_default_one_slab_and_a_share_of_those_in_use_are_kept() {
    let fake = Fake::new();
    let arenas = arenas(&fake, Settings::of(2 * MIB));
    let mut heap = Vec::new();
    for (up_to, down_to) in [(200, 0), (200, 0), (200, 100), (200, 150), (160, 0)] {
        while heap.len() < up_to {
            heap.push(give(&arenas));
        }
        while heap.len() > down_to {
            take(&arenas, heap.pop().unwrap());
            let counts = arenas.counts();
            assert!(counts.slabs_kept <= 1 + heap.len() / 20, "{counts:?}");
            assert_eq!(counts.slabs - counts.slabs_kept, heap.len());
        }
        fake.pass(1_000_000);
    }
    let before = arenas.counts();
    for _ in 0..100 {
        let edge = give(&arenas);
        take(&arenas, edge);
    }
    assert!(arenas.counts().slabs_mapped - before.slabs_mapped <= 2);
}

/// Whichever arenas are freed, the idle arenas in slabs with others are never more than 5 % of the arenas in use, or
/// a slab. And arenas that are handed out again work as before.
#[test]
fn a_heap_that_shrank_holds_little_more_than_the_arenas_in_use() {
    for arena in [256 << 10, MIB] {
        let fake = Fake::new();
        let arenas = arenas(&fake, Settings::of(arena));
        let mut heap: Vec<usize> = (0..400).map(|_| give(&arenas)).collect();
        let slab = HUGE / arena;
        for n in 0..360 {
            // Scattered over the heap, so that whole slabs seldom become empty.
            let at = n * 7_919 % heap.len();
            take(&arenas, heap.swap_remove(at));
            let counts = arenas.counts();
            assert!(counts.arenas_idle <= slab.max(heap.len() / 20), "{counts:?}");
        }
        let low = arenas.counts();
        assert!(low.arenas_trimmed > 0 && low.slabs * slab > 60, "{low:?}");
        assert_eq!(fake.trims.borrow().len() as u64, low.trims);
        // No slab is mapped while a mapped arena is unused, and whole slabs are eligible for huge pages again.
        let eligible = fake.eligible.borrow().len();
        // Arenas that still hold memory come first.
        heap.extend((0..low.arenas_idle).map(|_| give(&arenas)));
        let ready = arenas.counts();
        assert_eq!((ready.arenas_idle, ready.arenas_trimmed), (0, low.arenas_trimmed));
        let low = ready;
        let unused = low.slabs * slab - low.arenas;
        heap.extend((0..unused).map(|_| give(&arenas)));
        let full = arenas.counts();
        assert_eq!((full.slabs, full.slabs_mapped), (low.slabs, low.slabs_mapped));
        assert_eq!((full.arenas_idle, full.arenas_trimmed), (0, 0));
        assert!(fake.eligible.borrow().len() > eligible);
        assert_eq!(heap.iter().collect::<BTreeSet<_>>().len(), heap.len());
    }
}

/// The kernel refuses, as for locked memory.
#[test]
fn a_refused_trim_is_not_counted_and_not_repeated() {
    let fake = Fake::new();
    fake.may_trim.set(false);
    let arenas = arenas(&fake, Settings::of(256 << 10));
    let heap: Vec<usize> = (0..200).map(|_| give(&arenas)).collect();
    for address in heap.iter().step_by(2) {
        take(&arenas, *address);
    }
    let counts = arenas.counts();
    assert_eq!((counts.trims, counts.arenas_trimmed, counts.arenas_idle), (0, 0, 100));
    assert_eq!(fake.trims.borrow().len(), 1);
    // The arena was claimed during the attempt.
    assert!((0..100).all(|_| fake.mapped.borrow().contains_key(&(give(&arenas) & !(HUGE - 1)))));
    assert_eq!(arenas.counts().slabs, 25);
}

/// A child that was copied while another thread trimmed has one arena that stays claimed, and no other damage.
#[test]
fn a_ledger_copied_in_the_middle_of_a_trim_loses_one_arena() {
    let mut ledger = Ledger::new(256 << 10).unwrap();
    let base = 0x7f00_0000_0000;
    ledger.insert(base, Pages::Transparent, true).unwrap();
    let second = ledger.claim().unwrap().arena;
    let trimming = ledger.claim_idle(0).unwrap();
    ledger.recount();
    assert_eq!(ledger.give_back(base), Back::Kept);
    assert_eq!(ledger.give_back(second), Back::Kept);
    assert_eq!((ledger.tally().slabs, ledger.tally().partial), (1, 1));
    let rest: BTreeSet<usize> = std::iter::from_fn(|| ledger.claim()).map(|claim| claim.arena).collect();
    assert!(rest.len() == 7 && !rest.contains(&trimming));
}

#[test]
fn whole_slabs_that_come_back_are_not_taken_apart() {
    for arena in [256 << 10, MIB, 2 * MIB] {
        let fake = Fake::new();
        let arenas = arenas(&fake, Settings::of(arena));
        let mut heap: Vec<usize> = (0..200).map(|_| give(&arenas)).collect();
        // The limit of idle arenas is already reached, so these are trimmed, once.
        let gaps: Vec<usize> = heap.iter().copied().take(100).step_by(5).collect();
        heap.retain(|address| !gaps.contains(address));
        for address in &gaps {
            take(&arenas, *address);
        }
        while heap.len() > 80 {
            take(&arenas, heap.pop().unwrap());
        }
        let counts = arenas.counts();
        assert!(counts.trims <= gaps.len() as u64, "{counts:?}");
        for _ in 0..3 {
            let mut more: Vec<usize> = (0..200).map(|_| give(&arenas)).collect();
            while let Some(last) = more.pop() {
                take(&arenas, last);
            }
        }
        assert!(arenas.counts().trims - counts.trims <= 3 * gaps.len() as u64, "{:?}", arenas.counts());
    }
}

#[test]
fn reserved_pages_are_not_taken_apart() {
    let fake = Fake::new();
    fake.pool.set(100);
    let settings = Settings { pages: Pages::Reserved, ..Settings::of(256 << 10) };
    let arenas = arenas(&fake, settings);
    let heap: Vec<usize> = (0..80).map(|_| give(&arenas)).collect();
    for address in heap.iter().skip(1).step_by(2).chain(heap.iter().step_by(4)) {
        take(&arenas, *address);
    }
    assert_eq!((arenas.counts().trims, arenas.counts().slabs), (0, 10));
}

#[test]
fn expensive_huge_pages_are_avoided_for_a_while_and_cheap_ones_are_not() {
    for (huge_ns, watch_price, least_small) in
        [(CHEAP_NS, true, 0), (4_000_000, true, 44), (4_000_000, false, 0)]
    {
        let fake = Fake::new();
        let settings = Settings { watch_price, ..Settings::of(MIB) };
        let arenas = arenas(&fake, settings);
        fake.huge_ns.set(huge_ns);
        for _ in 0..100 {
            give(&arenas);
            // 50 slabs in 200 ms: one attempt in 161 ms.
            fake.pass(2_000_000);
        }
        let counts = arenas.counts();
        assert!(counts.fallbacks.dear >= least_small, "{counts:?}");
        // The first slab gives the price of small pages.
        assert_eq!(
            counts.slabs - counts.slabs_transparent,
            counts.fallbacks.dear as usize + usize::from(watch_price)
        );
        assert_eq!(counts.fallbacks.dear > 0, counts.faults.dear > 0);
        assert!(counts.faults.lost_ns <= 2 * 200_000_000 / policy::LOSE_ONE_IN);
        // Two expensive pages are too few to judge the host by.
        assert_eq!(counts.host, (watch_price && huge_ns == CHEAP_NS).then_some(Host::Warm), "{counts:?}");
    }
}

/// Nanoseconds of the first touch of a huge page: of recycled memory, and of memory that the host had reclaimed (0.2
/// and 8 us per 4 KiB, on a typical virtual machine).
const WARM_NS: u64 = 512 * 200;
const COLD_NS: u64 = 512 * 8_000;

/// The run time, in nanoseconds, of a program whose heap grows by one slab at a time.
#[derive(Debug, Default)]
struct Took {
    ours: u64,
    /// With small pages only.
    stock: u64,
    /// With huge pages only, at any price.
    huge: u64,
}

/// For each slab: `huge_ns` is the price of its huge page, `small_ns` the price of each small page, `work_ns` the
/// other time.
fn takes(small_ns: u64, work_ns: u64, huge_ns: impl IntoIterator<Item = u64>) -> Took {
    let fake = Fake::new();
    fake.small_ns.set(small_ns);
    let arenas = arenas(&fake, Settings::of(2 * MIB));
    let mut took = Took::default();
    for huge_ns in huge_ns {
        fake.huge_ns.set(huge_ns);
        let before = arenas.counts().slabs_transparent;
        give(&arenas);
        let small = policy::SMALL_PAGES * small_ns;
        let ours = if arenas.counts().slabs_transparent > before { huge_ns } else { small };
        took.ours += ours + work_ns;
        took.stock += small + work_ns;
        took.huge += huge_ns + work_ns;
        fake.pass(ours + work_ns);
    }
    took
}

proptest! {
    /// In any order of prices, at most 2 % of the time and one page are lost.
    #[test]
    fn no_order_of_prices_makes_it_worse_than_small_pages_by_much(
        small_ns in 400u64..2_000,
        work_ns in 100_000u64..5_000_000,
        phases in prop::collection::vec((1usize..200, 0u32..=20, 1u64..=4), 1..8),
        seed in any::<u32>(),
    ) {
        let mut random = seed | 1;
        let mut prices = Vec::new();
        for (slabs, dear_in_20, dear) in phases {
            for _ in 0..slabs {
                // Xorshift, so that the expensive pages have no period.
                random ^= random << 13;
                random ^= random >> 17;
                random ^= random << 5;
                prices.push(if random % 20 < dear_in_20 { dear * COLD_NS } else { WARM_NS });
            }
        }
        let took = takes(small_ns, work_ns, prices);
        prop_assert!(took.ours <= took.stock + took.ours / policy::LOSE_ONE_IN + 4 * COLD_NS, "{:?}", took);
    }
}

/// From which run time on a single expensive page is at most 3 % of a program's time.
#[test]
fn on_a_cold_host_a_program_is_never_slower_by_5_percent_and_on_a_warm_one_keeps_its_gain() {
    for (small_ns, work_ns) in [(700, 500_000), (700, 2_000_000), (1_500, 500_000), (1_500, 5_000_000)] {
        let case = (small_ns, work_ns);
        for slabs in [30, 300, 3_000] {
            let warm = takes(small_ns, work_ns, std::iter::repeat_n(WARM_NS, slabs));
            assert!(warm.stock - warm.ours >= (warm.stock - warm.huge) / 10 * 9, "{case:?} {warm:?}");
            let cold = takes(small_ns, work_ns, std::iter::repeat_n(COLD_NS, slabs));
            if cold.stock >= COLD_NS * 100 / 3 {
                assert!(cold.ours <= cold.stock / 100 * 105, "{case:?} {cold:?}");
            }
            assert!(cold.huge > cold.stock / 100 * 105, "{case:?} {cold:?}");
        }
        // With an occasional page that the host must fetch, huge pages still pay off.
        let mixed =
            takes(small_ns, work_ns, (0..3_000).map(|slab| if slab % 20 == 19 { COLD_NS } else { WARM_NS }));
        assert!(mixed.stock - mixed.ours >= (mixed.stock - mixed.huge) / 10 * 9, "{case:?} {mixed:?}");
    }
}

#[test]
fn an_exhausted_pool_falls_back_at_every_step() {
    for pool in 0..5 {
        let fake = Fake::new();
        fake.pool.set(pool);
        let settings = Settings { pages: Pages::Reserved, ..Settings::of(MIB) };
        let arenas = arenas(&fake, settings);
        for _ in 0..10 {
            give(&arenas);
        }
        let counts = arenas.counts();
        assert_eq!((counts.slabs, counts.slabs_reserved), (5, pool));
        assert_eq!(counts.slabs_transparent, 5 - pool);
        assert_eq!(counts.fallbacks.pool_exhausted, 5 - pool as u64);
    }
}

#[test]
fn without_memory_the_caller_is_sent_elsewhere_and_nothing_is_lost() {
    let fake = Fake::new();
    let arenas = arenas(&fake, Settings::of(MIB));
    let first = give(&arenas);
    let second = give(&arenas);
    fake.may_map.set(false);
    assert!(matches!(arenas.alloc(MIB), Err(NoArena::NoMemory(Why::Failed { .. }))));
    assert_eq!(arenas.counts().fallbacks.no_memory, 1);
    take(&arenas, second);
    assert_eq!(give(&arenas), second);
    fake.may_unmap.set(false);
    take(&arenas, first);
    take(&arenas, second);
    // The slab could not be unmapped: it stays mapped and is used again.
    assert_eq!(arenas.counts().slabs_kept, 1);
    assert_eq!(give(&arenas), first);
}

/// One operation on the arenas.
#[derive(Clone, Debug)]
enum Step {
    Give,
    /// The position among the arenas that are out.
    Take(prop::sample::Index),
    Foreign(usize),
    Odd(usize),
    Pass(u64),
    HugePrice(u64),
    MayMap(bool),
    MayUnmap(bool),
    Fork,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        12 => Just(Step::Give),
        10 => any::<prop::sample::Index>().prop_map(Step::Take),
        1 => any::<usize>().prop_map(Step::Foreign),
        1 => (0usize..4 * MIB).prop_map(Step::Odd),
        2 => (0u64..4_000_000_000).prop_map(Step::Pass),
        1 => (0u64..10_000_000).prop_map(Step::HugePrice),
        1 => any::<bool>().prop_map(Step::MayMap),
        1 => any::<bool>().prop_map(Step::MayUnmap),
        1 => Just(Step::Fork),
    ];
    prop::collection::vec(step, 1..300)
}

proptest! {
    #[test]
    fn any_sequence_of_operations_agrees_with_a_set_of_arenas(
        steps in steps(),
        arena in prop::sample::select(vec![64usize << 10, 256 << 10, MIB, 2 * MIB]),
        keep in 0usize..8,
        pages in prop::sample::select(vec![Pages::Reserved, Pages::Transparent, Pages::Plain]),
        pool in 0usize..20,
    ) {
        let fake = Fake::new();
        fake.pool.set(pool);
        let settings = Settings { pages, keep_bytes: keep * HUGE, ..Settings::of(arena) };
        let arenas = arenas(&fake, settings);
        let mut model: Vec<usize> = Vec::new();
        let mut stuck = false;
        for step in steps {
            fake.trims.borrow_mut().clear();
            match step {
                Step::Give => match arenas.alloc(arena) {
                    Ok(address) => {
                        let address = address.as_ptr() as usize;
                        prop_assert!(address.is_multiple_of(arena));
                        prop_assert!(!model.contains(&address));
                        prop_assert!(fake.mapped.borrow().contains_key(&(address & !(HUGE - 1))));
                        model.push(address);
                    }
                    Err(why) => {
                        prop_assert!(!fake.may_map.get(), "{:?}", why);
                        // Only if every slab is full.
                        prop_assert_eq!(model.len() * arena, fake.mapped.borrow().len() * HUGE);
                    }
                },
                Step::Take(index) if !model.is_empty() => {
                    let address = model.swap_remove(index.index(model.len()));
                    prop_assert_eq!(take(&arenas, address), Freed::Ours);
                }
                Step::Take(_) => {}
                Step::Foreign(address) => {
                    let base = address & !(HUGE - 1);
                    if address != 0 && !model.contains(&address) {
                        let ours = fake.mapped.borrow().contains_key(&base);
                        let expected = if ours { Freed::Ours } else { Freed::Foreign };
                        prop_assert_eq!(take(&arenas, address), expected);
                    }
                }
                Step::Odd(bytes) => {
                    if bytes != arena {
                        prop_assert_eq!(arenas.alloc(bytes), Err(NoArena::OddSize));
                    }
                }
                Step::Pass(ns) => fake.pass(ns),
                Step::HugePrice(ns) => fake.huge_ns.set(ns),
                Step::MayMap(may) => fake.may_map.set(may),
                Step::MayUnmap(may) => {
                    fake.may_unmap.set(may);
                    stuck |= !may;
                }
                Step::Fork => arenas.with(|inner| {
                    let before = inner.ledger.tally();
                    inner.ledger.recount();
                    assert_eq!(inner.ledger.tally(), before);
                }),
            }
            let counts = arenas.counts();
            prop_assert_eq!(counts.arenas, model.len());
            prop_assert_eq!(counts.arenas as u64, counts.arenas_given - counts.arenas_returned);
            prop_assert_eq!(counts.slabs, fake.mapped.borrow().len());
            let used: BTreeSet<usize> = model.iter().map(|address| address & !(HUGE - 1)).collect();
            prop_assert_eq!(counts.slabs - counts.slabs_kept, used.len());
            let most = if keep == 0 { 0 } else { keep + used.len() / policy::SPARE_ONE_IN };
            prop_assert!(stuck || counts.slabs_kept <= most, "{:?}", counts);
            let trims = fake.trims.borrow();
            prop_assert!(trims.iter().all(|trimmed| !model.contains(trimmed)), "{:?}", trims);
            let slab = HUGE / arena;
            if slab <= 16 && pages != Pages::Reserved {
                let may_lie_idle = (keep.max(1) * slab).max(model.len() / policy::SPARE_ONE_IN);
                prop_assert!(counts.arenas_idle <= may_lie_idle, "{:?}", counts);
                prop_assert_eq!(
                    used.len() * slab,
                    model.len() + counts.arenas_idle + counts.arenas_trimmed
                );
            }
            let ranges: BTreeSet<usize> = arenas.ranges().into_iter().map(|(start, _)| start).collect();
            prop_assert_eq!(ranges, fake.mapped.borrow().keys().copied().collect());
        }
    }
}

#[test]
fn on_this_machine_arenas_are_writable_apart_and_huge() {
    let arenas = Arenas::new(Settings { watch_price: false, ..Settings::of(MIB) }).unwrap();
    let given: Vec<NonNull<u8>> = (0..8u8)
        .map(|mark| {
            let arena = arenas.alloc(MIB).unwrap();
            // SAFETY: an arena of ours, of that many bytes.
            unsafe { arena.write_bytes(mark, MIB) };
            arena
        })
        .collect();
    for (mark, arena) in given.iter().enumerate() {
        // SAFETY: the same arena, written above.
        let bytes = unsafe { std::slice::from_raw_parts(arena.as_ptr(), MIB) };
        assert!(bytes.iter().all(|byte| usize::from(*byte) == mark));
    }
    let counts = arenas.counts();
    if crate::region::Machine::this().transparent().is_ok() && counts.fallbacks.missed == 0 {
        let huge = crate::region::huge_bytes(&arenas.ranges()).unwrap();
        assert_eq!(huge.transparent, 4 * HUGE as u64, "{counts:?}");
    }
    for arena in given {
        // SAFETY: not used any more.
        assert_eq!(unsafe { arenas.free(arena) }, Freed::Ours);
    }
    assert_eq!(arenas.counts().slabs, 0);
}

/// Arenas in use keep their contents, and the memory of the others is returned.
#[test]
fn on_this_machine_a_trimmed_arena_gives_its_memory_back_and_its_neighbours_keep_theirs() {
    const ARENA: usize = 256 << 10;
    for watch_price in [true, false] {
        let arenas = Arenas::new(Settings { watch_price, ..Settings::of(ARENA) }).unwrap();
        let fill = |arena: NonNull<u8>, mark: u8| {
            // SAFETY: an arena of ours, of that many bytes.
            unsafe { arena.write_bytes(mark, ARENA) };
            (arena, mark)
        };
        let give = || arenas.alloc(ARENA).unwrap();
        let mut heap: Vec<(NonNull<u8>, u8)> = (0..120).map(|mark| fill(give(), mark)).collect();
        let mut gone = Vec::new();
        for n in 0..100 {
            let (arena, _) = heap.swap_remove(n * 31 % heap.len());
            gone.push(arena);
            // SAFETY: not used any more.
            assert_eq!(unsafe { arenas.free(arena) }, Freed::Ours);
        }
        let counts = arenas.counts();
        let bases: BTreeSet<usize> = arenas.ranges().into_iter().map(|(base, _)| base).collect();
        let resident = gone
            .iter()
            .filter(|arena| bases.contains(&(arena.as_ptr() as usize & !(HUGE - 1))))
            .filter(|arena| resident_pages(**arena, ARENA) > 0)
            .count();
        assert!(counts.trims > 0 && resident <= counts.arenas_idle + counts.slabs_kept * 8, "{counts:?}");
        for round in 0..3 {
            for (arena, mark) in &heap {
                // SAFETY: an arena that is out, written above.
                let bytes = unsafe { std::slice::from_raw_parts(arena.as_ptr(), ARENA) };
                assert!(bytes.iter().all(|byte| byte == mark), "{round}");
            }
            // Check again after more arenas were handed out.
            heap.extend((0..60).map(|mark| fill(give(), 200 - mark)));
        }
    }
}

/// An arena cannot be allocated while it is trimmed: arenas that other threads get meanwhile keep their contents.
#[test]
fn a_trim_never_loses_data_of_other_threads() {
    const ARENA: usize = 256 << 10;
    let arenas = Arenas::new(Settings::of(ARENA)).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let arenas = &arenas;
            scope.spawn(move || {
                let mut random = thread + 1;
                let mut mine: Vec<(NonNull<u8>, u64)> = Vec::new();
                for n in 0..3_000u64 {
                    random = random
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407);
                    // Grow by some sixty, shrink to a few, and grow again.
                    if random >> 33 & 127 < if n % 200 < 100 { 100 } else { 20 } {
                        let arena = arenas.alloc(ARENA).unwrap();
                        for page in (0..ARENA).step_by(32 << 10) {
                            // SAFETY: an arena of ours, of that many bytes.
                            unsafe { arena.add(page).cast().write(thread << 32 | n) };
                        }
                        mine.push((arena, thread << 32 | n));
                    } else if !mine.is_empty() {
                        let (arena, mark) = mine.swap_remove((random >> 40) as usize % mine.len());
                        for page in (0..ARENA).step_by(32 << 10) {
                            // SAFETY: as above, written there.
                            assert_eq!(unsafe { arena.add(page).cast::<u64>().read() }, mark);
                        }
                        // SAFETY: not used any more.
                        assert_eq!(unsafe { arenas.free(arena) }, Freed::Ours);
                    }
                }
                for (arena, _) in mine {
                    // SAFETY: as above.
                    assert_eq!(unsafe { arenas.free(arena) }, Freed::Ours);
                }
            });
        }
    });
    let counts = arenas.counts();
    assert_eq!((counts.arenas, counts.misplaced_frees), (0, 0));
    assert!(counts.trims > 100, "{counts:?}");
}

fn resident_pages(start: NonNull<u8>, len: usize) -> usize {
    let mut pages = vec![0u8; len / 4096];
    // SAFETY: mapped, and the vector has one byte per page.
    let told = unsafe { libc::mincore(start.as_ptr().cast(), len, pages.as_mut_ptr()) };
    assert_eq!(told, 0);
    pages.iter().filter(|page| **page & 1 == 1).count()
}

#[test]
fn threads_may_allocate_and_free_at_once() {
    let arenas = Arenas::new(Settings::of(256 << 10)).unwrap();
    std::thread::scope(|scope| {
        for mark in 0..4u8 {
            let arenas = &arenas;
            scope.spawn(move || {
                for round in 0..50 {
                    let given: Vec<NonNull<u8>> = (0..10)
                        .map(|_| {
                            let arena = arenas.alloc(256 << 10).unwrap();
                            // SAFETY: an arena of ours; one page of it.
                            unsafe { arena.write_bytes(mark, 4096) };
                            arena
                        })
                        .collect();
                    for arena in given {
                        // SAFETY: written above by this thread, and used only here.
                        assert!(unsafe { *arena.as_ptr().add(round) } == mark);
                        // SAFETY: not used any more.
                        assert_eq!(unsafe { arenas.free(arena) }, Freed::Ours);
                    }
                }
            });
        }
    });
    let counts = arenas.counts();
    assert_eq!((counts.arenas, counts.arenas_given), (0, 2000));
    assert_eq!(counts.misplaced_frees + counts.foreign_frees, 0);
}

/// Children are forked while other threads are in calls, and must continue with the inherited state.
#[test]
fn a_child_forked_at_any_moment_can_allocate_and_free() {
    let arenas = Arenas::new(Settings::of(256 << 10)).unwrap();
    let kept = give(&arenas);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    let given: Vec<usize> = (0..20).map(|_| give(&arenas)).collect();
                    for address in given {
                        take(&arenas, address);
                    }
                }
            });
        }
        for _ in 0..100 {
            // SAFETY: the child calls nothing that needs another thread: no `malloc`, and `_exit`.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: ends a child that hangs.
                unsafe { libc::alarm(20) };
                let mut mine = [0; 40];
                for address in &mut mine {
                    *address = match arenas.alloc(256 << 10) {
                        Ok(arena) => arena.as_ptr() as usize,
                        Err(_) => 0,
                    };
                }
                let mut fine = mine.iter().all(|address| *address != 0 && *address != kept);
                for address in mine {
                    fine &= take(&arenas, address) == Freed::Ours;
                }
                fine &= take(&arenas, kept) == Freed::Ours;
                fine &= arenas.counts().forks == 1 && arenas.counts().misplaced_frees == 0;
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(if fine { 0 } else { 1 }) };
            }
            let mut status = -1;
            // SAFETY: waits for the child that was just forked.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert_eq!(status, 0);
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert_eq!(arenas.counts().forks, 0);
    assert_eq!(take(&arenas, kept), Freed::Ours);
    assert_eq!(arenas.counts().arenas, 0);
}
