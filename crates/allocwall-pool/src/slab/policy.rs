//! When slabs are kept, and when huge pages are too dear: arithmetic on times in nanoseconds, no clock.

/// A released slab that is wanted again within this time need not have been released.
pub(super) const REGRET_NS: u64 = 1_000_000_000;
/// Of what lay unused throughout so long, half is let go.
pub(super) const DECAY_NS: u64 = 10_000_000_000;
/// One in so many nanoseconds may be lost to huge pages that cost more than the small ones in their place.
pub(super) const LOSE_ONE_IN: u64 = 50;
/// Base pages of a slab.
pub(super) const SMALL_PAGES: u64 = (crate::region::HUGE / 4096) as u64;

/// How many empty slabs are kept: as many as were released and wanted again within [`REGRET_NS`], up to a limit.
///
/// A program that frees its heap once gets it back to the system at once, as with the stock allocator. One whose heap
/// goes up and down stops paying for it after the first time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Retention {
    limit: usize,
    target: usize,
    released: usize,
    released_at: u64,
    /// The fewest that were empty at once since `since`: as many lay unused all the time.
    unused: usize,
    since: u64,
}

impl Retention {
    pub(super) fn up_to(limit: usize) -> Self {
        Self {
            limit,
            ..Self::default()
        }
    }

    /// Slabs that may be kept empty now, when so many are.
    pub(super) fn target(&mut self, empty: usize, now: u64) -> usize {
        let periods = now.saturating_sub(self.since) / DECAY_NS;
        if periods > 0 {
            let left = self.unused.checked_shr(periods.min(64) as u32).unwrap_or(0);
            self.target = self.target.saturating_sub(self.unused - left);
            self.unused = empty;
            self.since = now;
        }
        self.target
    }

    pub(super) fn released(&mut self, now: u64) {
        if now.saturating_sub(self.released_at) > REGRET_NS {
            self.released = 0;
        }
        self.released += 1;
        self.released_at = now;
    }

    /// A slab had to be mapped: none was empty.
    pub(super) fn grew(&mut self, now: u64) {
        self.reused(0, now);
        if self.released > 0 && now.saturating_sub(self.released_at) <= REGRET_NS {
            self.released -= 1;
            self.target = (self.target + 1).min(self.limit);
        }
    }

    /// An empty slab was used again; so many are left.
    pub(super) fn reused(&mut self, left: usize, now: u64) {
        self.target(left + 1, now);
        self.unused = self.unused.min(left);
    }
}

/// What a huge page's first touch was worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Worth {
    /// Cheaper than the small pages in its place.
    Fair,
    /// Dearer, by so many nanoseconds.
    Dear(u64),
    /// As cheap as a small page: it was one. The kernel had no huge page.
    Small,
}

/// Watches what first touches cost, and says when huge pages cost more than they save.
///
/// Where the host takes idle memory back, a fresh huge page can cost 40 times a recycled one, while small pages are
/// still served from what the kernel has at hand. After a page that cost x more than the small ones in its place, none is
/// asked for during 50 x: so at most 2 % of the time is lost to finding out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prices {
    /// First touch of a base page, smoothed.
    small_ns: u64,
    dear_until: u64,
}

impl Prices {
    pub(super) fn new(small_ns: u64) -> Self {
        Self {
            small_ns: small_ns.max(1),
            dear_until: 0,
        }
    }

    pub(super) fn small_ns(&self) -> u64 {
        self.small_ns
    }

    pub(super) fn allow_huge(&self, now: u64) -> bool {
        now >= self.dear_until
    }

    pub(super) fn small_paid(&mut self, ns: u64, pages: u64) {
        let one = ns / pages.max(1);
        self.small_ns = (self.small_ns.saturating_mul(3).saturating_add(one) / 4).max(1);
    }

    pub(super) fn huge_paid(&mut self, ns: u64, now: u64) -> Worth {
        let fair = self.small_ns.saturating_mul(SMALL_PAGES);
        if ns < fair / 64 {
            Worth::Small
        } else if ns <= fair.saturating_add(fair / 2) {
            Worth::Fair
        } else {
            let more = ns - fair;
            self.dear_until = now.saturating_add(more.saturating_mul(LOSE_ONE_IN));
            Worth::Dear(more)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const S: u64 = 1_000 * MS;

    #[test]
    fn what_is_released_once_is_not_kept_and_what_is_wanted_again_is() {
        let mut retention = Retention::up_to(100);
        for _ in 0..5 {
            assert_eq!(retention.target(0, S), 0);
            retention.released(S);
        }
        for at in 0..7 {
            retention.grew(S + 50 * MS + at);
        }
        // Five were regretted; the two beyond are growth.
        assert_eq!(retention.target(0, S + 60 * MS), 5);
        let mut late = Retention::up_to(100);
        late.released(S);
        late.grew(S + REGRET_NS + 1);
        assert_eq!(late.target(0, 3 * S), 0);
    }

    #[test]
    fn old_releases_are_not_regretted_with_new_ones() {
        let mut retention = Retention::up_to(100);
        for _ in 0..5 {
            retention.released(S);
        }
        retention.released(10 * S);
        for _ in 0..5 {
            retention.grew(10 * S + MS);
        }
        assert_eq!(retention.target(0, 10 * S + MS), 1);
    }

    /// Eight that may be kept, from `at` on.
    fn eight(at: u64) -> Retention {
        let mut retention = Retention::up_to(8);
        for _ in 0..20 {
            retention.released(at);
        }
        for _ in 0..20 {
            retention.grew(at);
        }
        assert_eq!(retention.target(0, at), 8);
        retention
    }

    #[test]
    fn what_nobody_uses_is_halved() {
        let at = 100 * S;
        let mut retention = eight(at);
        // The first period has seen them all in use.
        assert_eq!(retention.target(8, at + DECAY_NS), 8);
        assert_eq!(retention.target(8, at + 2 * DECAY_NS - 1), 8);
        assert_eq!(retention.target(8, at + 2 * DECAY_NS), 4);
        assert_eq!(retention.target(4, at + 9 * DECAY_NS), 0);
        assert_eq!(eight(at).target(8, u64::MAX), 8);
    }

    #[test]
    fn what_is_used_now_and_then_stays() {
        let at = 100 * S;
        let mut retention = eight(at);
        let mut empty = 8;
        for period in 1..10 {
            let now = at + period * DECAY_NS;
            empty = retention.target(empty, now);
            // Five are used in each period, and come back.
            retention.reused(empty - 5, now + 1);
        }
        assert_eq!(empty, 5);
    }

    #[test]
    fn a_dear_page_stops_huge_ones_for_fifty_times_what_it_lost() {
        let mut prices = Prices::new(1_500);
        assert!(prices.allow_huge(S));
        assert_eq!(prices.huge_paid(100_000, S), Worth::Fair);
        assert!(prices.allow_huge(S));
        let fair = 1_500 * 512;
        assert_eq!(prices.huge_paid(fair + 4 * MS, S), Worth::Dear(4 * MS));
        assert!(!prices.allow_huge(S + 200 * MS - 1));
        assert!(prices.allow_huge(S + 200 * MS));
    }

    #[test]
    fn where_small_pages_are_as_dear_nothing_is_lost_by_huge_ones() {
        let mut prices = Prices::new(1_500);
        for _ in 0..20 {
            prices.small_paid(8 * 9_000, 8);
        }
        assert_eq!(prices.huge_paid(4 * MS, S), Worth::Fair);
    }

    #[test]
    fn a_huge_page_at_the_price_of_a_small_one_is_a_small_one() {
        let mut prices = Prices::new(1_500);
        assert_eq!(prices.huge_paid(2_000, S), Worth::Small);
        assert!(prices.allow_huge(S));
    }

    #[test]
    fn no_times_overflow() {
        let mut prices = Prices::new(u64::MAX);
        prices.small_paid(u64::MAX, 0);
        prices.huge_paid(u64::MAX, u64::MAX);
        let mut prices = Prices::new(0);
        assert!(matches!(prices.huge_paid(u64::MAX, 1), Worth::Dear(_)));
        assert!(!prices.allow_huge(S));
    }
}
