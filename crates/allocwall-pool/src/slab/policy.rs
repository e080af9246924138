//! The policy: when slabs are kept, and when huge pages are too expensive. It computes with given times in
//! nanoseconds, and reads no clock.

/// A release is regretted if a slab is needed again within this time.
pub(super) const REGRET_NS: u64 = 1_000_000_000;
/// Half of the slabs that were unused for this time are released.
pub(super) const DECAY_NS: u64 = 10_000_000_000;
/// For this number of slabs in use, one empty slab may be kept; for this number of arenas in use, one may be idle in
/// a slab with others: 5 % of the heap.
pub(super) const SPARE_ONE_IN: usize = 20;
/// One nanosecond in this number may be lost to huge pages that cost more than the small pages in their place.
pub(super) const LOSE_ONE_IN: u64 = 50;
/// The largest credit, in nanoseconds, and so the most that can be lost at once: about the price of a huge page that
/// the host must fetch.
pub(super) const CREDIT_NS: i64 = 4_000_000;
/// The host is judged by this number of huge pages at least, and by the last `u8::BITS` at most.
const LEAST_SEEN: u32 = 4;
/// Base pages of a slab.
pub(super) const SMALL_PAGES: u64 = (crate::region::HUGE / 4096) as u64;

/// Decides how many empty slabs are kept: the number that were released and needed again within [`REGRET_NS`], up to
/// a limit and one in [`SPARE_ONE_IN`] of the slabs in use.
///
/// If a program frees its heap once, the memory is returned at once, as with the stock allocator. If a heap grows and
/// shrinks a little, only the first time costs. If a heap grows and shrinks as a whole, the number of kept slabs is
/// limited by the part in use, because there is no thread that could release them later.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Retention {
    limit: usize,
    target: usize,
    released: usize,
    released_at: u64,
    /// The smallest number of empty slabs since `since`: this many were unused all the time.
    unused: usize,
    since: u64,
}

impl Retention {
    /// Keeps up to `limit` slabs, even if no slab is in use.
    pub(super) fn up_to(limit: usize) -> Self {
        Self { limit, ..Self::default() }
    }

    /// The number of slabs that may be kept empty, for the current numbers of empty slabs and slabs in use.
    pub(super) fn target(&mut self, empty: usize, used: usize, now: u64) -> usize {
        let periods = now.saturating_sub(self.since) / DECAY_NS;
        if periods > 0 {
            let left = self.unused.checked_shr(periods.min(64) as u32).unwrap_or(0);
            self.target = self.target.saturating_sub(self.unused - left);
            self.unused = empty;
            self.since = now;
        }
        self.target.min(self.most(used))
    }

    fn most(&self, used: usize) -> usize {
        match self.limit {
            // The settings say to keep none.
            0 => 0,
            limit => limit.saturating_add(used / SPARE_ONE_IN),
        }
    }

    /// The number of arenas that may be idle in slabs with others in use, for `out` arenas in use: a share of `out`;
    /// at least the arenas of one slab (a new slab has that many), or of the slabs that may be kept empty.
    pub(super) fn idle(&self, arenas_a_slab: usize, out: usize) -> usize {
        let slabs = self.limit.max(1);
        slabs.saturating_mul(arenas_a_slab).max(out / SPARE_ONE_IN)
    }

    pub(super) fn released(&mut self, now: u64) {
        if now.saturating_sub(self.released_at) > REGRET_NS {
            self.released = 0;
        }
        self.released += 1;
        self.released_at = now;
    }

    /// A slab was mapped, because none was empty. `used` includes it.
    pub(super) fn grew(&mut self, used: usize, now: u64) {
        self.reused(0, used, now);
        if self.released > 0 && now.saturating_sub(self.released_at) <= REGRET_NS {
            self.released -= 1;
            self.target = (self.target + 1).min(self.most(used));
        }
    }

    /// An empty slab was used again; `left` empty slabs remain.
    pub(super) fn reused(&mut self, left: usize, used: usize, now: u64) {
        self.target(left + 1, used, now);
        self.unused = self.unused.min(left);
    }
}

/// The judgement of a huge page's first touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Worth {
    /// It cost at most half more than the small pages in its place.
    Fair,
    /// It cost more than that. The number is the difference to the small pages, in nanoseconds.
    Dear(u64),
    /// It was as cheap as a small page, so it was one: the kernel had no huge page.
    Small,
}

/// What the last huge pages say about the machine below, which may have to fetch the memory first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Host {
    /// More than half of them cost at most 1.5 times as much as the small pages in their place.
    Warm,
    /// At least half of them cost more than that.
    Cold,
}

impl Host {
    /// A stable name.
    ///
    /// ```
    /// assert_eq!(allocwall_pool::slab::Host::Warm.key(), "warm");
    /// ```
    pub fn key(self) -> &'static str {
        match self {
            Host::Warm => "warm",
            Host::Cold => "cold",
        }
    }
}

/// Which of the last huge pages were dear.
#[derive(Clone, Copy, Debug, Default)]
struct Recent {
    /// How many there are.
    seen: u32,
    /// A bit for each, the last one in the lowest bit.
    dear: u8,
}

impl Recent {
    fn add(&mut self, dear: bool) {
        self.dear = self.dear << 1 | u8::from(dear);
        self.seen = (self.seen + 1).min(u8::BITS);
    }

    fn host(self) -> Option<Host> {
        match self.seen {
            ..LEAST_SEEN => None,
            seen if 2 * self.dear.count_ones() >= seen => Some(Host::Cold),
            _ => Some(Host::Warm),
        }
    }
}

/// Watches the prices of first touches, and decides when huge pages cost more than they save.
///
/// If the host reclaims idle memory, a new huge page can cost 40 times as much as a recycled one, while the kernel
/// still has small pages available. So there is an account. It is credited with the time that a huge page saves
/// against small pages, and with one in [`LOSE_ONE_IN`] nanoseconds that pass, up to [`CREDIT_NS`]. It is charged
/// with the time that a huge page costs more. While it is negative, no huge page is requested. So at most 2 % of the
/// time, and one page, is lost, in any order of prices. A single expensive page among cheap ones does not stop the
/// use of huge pages.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Prices {
    /// The smoothed price of the first touch of a base page; 0 before the first.
    small_ns: u64,
    /// The time that may still be lost; negative if too much was lost.
    account_ns: i64,
    /// When the passing time was last credited.
    at: u64,
    recent: Recent,
}

impl Prices {
    pub(super) fn small_ns(&self) -> u64 {
        self.small_ns
    }

    /// The state of the host by the last huge pages; None if too few were compared with small ones.
    pub(super) fn host(&self) -> Option<Host> {
        self.recent.host()
    }

    pub(super) fn allow_huge(&mut self, now: u64) -> bool {
        let passed = now.saturating_sub(self.at) / LOSE_ONE_IN;
        self.account_ns = self.account_ns.saturating_add_unsigned(passed).min(CREDIT_NS);
        self.at = now;
        self.account_ns >= 0
    }

    pub(super) fn small_paid(&mut self, ns: u64, pages: u64, now: u64) {
        let one = ns / pages.max(1);
        self.small_ns = if self.small_ns == 0 {
            // The account begins here.
            self.at = now;
            one
        } else {
            self.small_ns.saturating_mul(3).saturating_add(one) / 4
        }
        .max(1);
    }

    pub(super) fn huge_paid(&mut self, ns: u64, now: u64) -> Worth {
        if self.small_ns == 0 {
            // There is no price of small pages to compare with.
            return Worth::Fair;
        }
        let fair = self.small_ns.saturating_mul(SMALL_PAGES);
        if ns < fair / 64 {
            return Worth::Small;
        }
        self.allow_huge(now);
        self.account_ns = self
            .account_ns
            .saturating_add_unsigned(fair.saturating_sub(ns))
            .saturating_sub_unsigned(ns.saturating_sub(fair))
            .min(CREDIT_NS);
        let dear = ns > fair.saturating_add(fair / 2);
        self.recent.add(dear);
        if dear { Worth::Dear(ns - fair) } else { Worth::Fair }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const S: u64 = 1_000 * MS;

    #[test]
    fn slabs_needed_again_soon_are_kept() {
        let mut retention = Retention::up_to(100);
        for _ in 0..5 {
            assert_eq!(retention.target(0, 9, S), 0);
            retention.released(S);
        }
        for at in 0..7 {
            retention.grew(9, S + 50 * MS + at);
        }
        // Five were regretted; the two beyond are growth.
        assert_eq!(retention.target(0, 9, S + 60 * MS), 5);
        let mut late = Retention::up_to(100);
        late.released(S);
        late.grew(9, S + REGRET_NS + 1);
        assert_eq!(late.target(0, 9, 3 * S), 0);
    }

    #[test]
    fn old_releases_are_not_regretted_with_new_ones() {
        let mut retention = Retention::up_to(100);
        for _ in 0..5 {
            retention.released(S);
        }
        retention.released(10 * S);
        for _ in 0..5 {
            retention.grew(9, 10 * S + MS);
        }
        assert_eq!(retention.target(0, 9, 10 * S + MS), 1);
    }

    #[test]
    fn the_limit_of_kept_slabs_follows_the_slabs_in_use() {
        for (limit, used, most) in [(1, 200, 11), (1, 20, 2), (1, 19, 1), (1, 0, 1), (3, 40, 5), (0, 200, 0)]
        {
            let mut retention = Retention::up_to(limit);
            for _ in 0..50 {
                retention.released(S);
            }
            for _ in 0..50 {
                retention.grew(200, S);
            }
            assert_eq!(retention.target(0, used, S), most, "{limit} {used}");
        }
    }

    /// A policy that keeps eight slabs, from `at` on.
    fn eight(at: u64) -> Retention {
        let mut retention = Retention::up_to(8);
        for _ in 0..20 {
            retention.released(at);
        }
        for _ in 0..20 {
            retention.grew(9, at);
        }
        assert_eq!(retention.target(0, 9, at), 8);
        retention
    }

    #[test]
    fn unused_slabs_are_halved() {
        let at = 100 * S;
        let mut retention = eight(at);
        // In the first period all of them were in use.
        assert_eq!(retention.target(8, 9, at + DECAY_NS), 8);
        assert_eq!(retention.target(8, 9, at + 2 * DECAY_NS - 1), 8);
        assert_eq!(retention.target(8, 9, at + 2 * DECAY_NS), 4);
        assert_eq!(retention.target(4, 9, at + 9 * DECAY_NS), 0);
        assert_eq!(eight(at).target(8, 9, u64::MAX), 8);
    }

    #[test]
    fn slabs_used_in_each_period_are_kept() {
        let at = 100 * S;
        let mut retention = eight(at);
        let mut empty = 8;
        for period in 1..10 {
            let now = at + period * DECAY_NS;
            empty = retention.target(empty, 9, now);
            // Five are used in each period and become empty again.
            retention.reused(empty - 5, 9, now + 1);
        }
        assert_eq!(empty, 5);
    }

    /// The fair price of a huge page if a small page costs 1,500 ns.
    const FAIR: u64 = 1_500 * 512;

    fn prices() -> Prices {
        let mut prices = Prices::default();
        prices.small_paid(1_500, 1, S);
        prices
    }

    #[test]
    fn an_expensive_page_stops_huge_pages_for_fifty_times_its_loss() {
        let mut prices = prices();
        assert!(prices.allow_huge(S));
        assert_eq!(prices.huge_paid(FAIR, S), Worth::Fair);
        assert!(prices.allow_huge(S));
        assert_eq!(prices.huge_paid(FAIR + 4 * MS, S), Worth::Dear(4 * MS));
        let mut early = prices;
        assert!(!early.allow_huge(S + 200 * MS - 1));
        assert!(prices.allow_huge(S + 200 * MS));
    }

    #[test]
    fn saved_time_may_be_lost_again_up_to_a_limit() {
        for (fair_ones, dear_ones) in [(0, 1), (1, 1), (4, 1), (6, 2), (1_000, 2)] {
            let mut prices = prices();
            for _ in 0..fair_ones {
                prices.huge_paid(FAIR / 10, S);
            }
            let mut dear = 0;
            while prices.allow_huge(S) {
                prices.huge_paid(FAIR + 3 * MS, S);
                dear += 1;
            }
            assert_eq!(dear, dear_ones, "{fair_ones}");
        }
    }

    #[test]
    fn huge_pages_lose_nothing_if_small_pages_cost_as_much() {
        let mut prices = prices();
        for _ in 0..20 {
            prices.small_paid(8 * 9_000, 8, S);
        }
        assert_eq!(prices.huge_paid(4 * MS, S), Worth::Fair);
    }

    #[test]
    fn a_huge_page_at_the_price_of_a_small_one_is_a_small_one() {
        let mut prices = prices();
        assert_eq!(prices.huge_paid(2_000, S), Worth::Small);
        assert!(prices.allow_huge(S));
    }

    #[test]
    fn without_a_price_of_small_pages_every_huge_page_is_fair() {
        let mut prices = Prices::default();
        assert_eq!(prices.huge_paid(100 * MS, S), Worth::Fair);
        assert!(prices.allow_huge(S));
    }

    /// After huge pages of these prices, in this order.
    fn host(huge: &[u64]) -> Option<Host> {
        let mut prices = prices();
        for ns in huge {
            prices.huge_paid(*ns, S);
        }
        prices.host()
    }

    #[test]
    fn a_host_is_cold_from_half_of_the_last_huge_pages_on() {
        let (cheap, dear) = (FAIR / 4, 5 * FAIR);
        assert_eq!(host(&[dear, cheap, dear, cheap]), Some(Host::Cold));
        assert_eq!(host(&[dear, cheap, cheap, cheap]), Some(Host::Warm));
        // As cheap as small pages, or half more.
        assert_eq!(host(&[FAIR, FAIR, FAIR * 3 / 2, FAIR * 3 / 2]), Some(Host::Warm));
        // Only the last eight count.
        assert_eq!(host(&[[dear; 20], [cheap; 20]].concat()), Some(Host::Warm));
        assert_eq!(host(&[&[cheap; 20][..], &[dear; 4][..]].concat()), Some(Host::Cold));
        assert_eq!(host(&[&[cheap; 20][..], &[dear; 3][..]].concat()), Some(Host::Warm));
    }

    #[test]
    fn without_four_prices_of_huge_pages_nothing_is_known_of_the_host() {
        assert_eq!([host(&[]), host(&[5 * FAIR; 3])], [None; 2]);
        // Small pages where the kernel had no huge one.
        assert_eq!(host(&[2_000; 9]), None);
        let mut unpriced = Prices::default();
        for _ in 0..9 {
            unpriced.huge_paid(100 * MS, S);
        }
        assert_eq!(unpriced.host(), None);
    }

    #[test]
    fn no_times_overflow() {
        let mut prices = Prices::default();
        prices.small_paid(u64::MAX, 0, S);
        prices.huge_paid(u64::MAX, u64::MAX);
        prices.huge_paid(u64::MAX / 2, u64::MAX);
        let mut prices = Prices::default();
        prices.small_paid(0, 1, 0);
        for now in [1, 2, u64::MAX, 3] {
            assert!(matches!(prices.huge_paid(u64::MAX, now), Worth::Dear(_)));
            assert!(!prices.allow_huge(S));
        }
    }
}
