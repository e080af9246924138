//! Memory that was freed with MADV_FREE (madvise(2)): the kernel takes it only when it needs memory. Until then it is resident, and only
//! LazyFree in smaps tells it from memory in use.

use super::claims::{Bound, Claim, Quantity, Test};
use super::resident::{Chain, Group, filled, needed_resident, part, resident};
use super::task::{Outcome, Task};
use super::{Arm, Experiment, Figure, GLIBC};
use crate::workloads::calls;
use crate::workloads::mapping::{Mapping, PAGE};
use crate::workloads::process;
use allocwall_host::clock::{monotonic_ns, sleep_until};
use allocwall_model::machine::Smaps;
use allocwall_model::units::{Absence, Measured, Reason};
use allocwall_trial::Unit;
use anyhow::bail;

/// The program's own mapping.
const FREE: Arm = Arm::variant("madv-free", "madv-free");
const DONTNEED: Arm = Arm::variant("madv-dontneed", "madv-dontneed");
/// jemalloc frees pages at once, in the manner that it has by default.
const JEMALLOC_NOW: Arm = Arm::with("jemalloc-now", "jemalloc+env:MALLOC_CONF=dirty_decay_ms:0");
/// At once and with MADV_FREE: muzzy pages are those, and they stay so.
const JEMALLOC_LAZY: Arm =
    Arm::with("jemalloc-lazy", "jemalloc+env:MALLOC_CONF=dirty_decay_ms:0,muzzy_decay_ms:-1");
/// At once and with MADV_FREE, from version 2.1 on.
const MIMALLOC_LAZY: Arm =
    Arm::with("mimalloc-lazy", "mimalloc+env:MIMALLOC_PURGE_DELAY=0+env:MIMALLOC_PURGE_DECOMMITS=0");

const KEPT: &str = "kept";
const LAZY: &str = "lazy";
const TRUE: &str = "kept_without_lazy";
const SQUEEZED: &str = "kept_under_pressure";

/// "Stays" and "shows" mean nearly all of the memory, "is gone" means nearly none.
const ALL: Bound = Bound::Above(0.9);
const NONE: Bound = Bound::Below(0.1);
/// An allocator keeps some pages for other reasons.
const MOST: Bound = Bound::Above(0.5);
const LITTLE: Bound = Bound::Below(0.5);

const fn value(figure: &'static str, arm: &'static str, is: Bound) -> Test {
    Test { what: Quantity::Value { figure, arm }, is }
}

pub const EXPERIMENT: Experiment = Experiment {
    name: "lying-rss",
    summary: "memory that is freed with MADV_FREE: RSS, and what it is without LazyFree",
    about: "The program fills 200 MB (less with --quick) and frees it: blocks of 1,000 bytes, all but the last one, or a mapping of its \
            own with MADV_FREE or MADV_DONTNEED. It makes some more calls of malloc and reads its RSS and LazyFree. Then the kernel is \
            asked to take memory from the program's memory cgroup, and RSS is read again. Figures of parts are relative to the memory \
            that was filled.",
    arms: &[GLIBC, FREE, DONTNEED, JEMALLOC_NOW, JEMALLOC_LAZY, MIMALLOC_LAZY],
    figures: &[
        Figure::lower("rss_bytes", "RSS after the free: what a dashboard shows", Unit::Bytes),
        Figure::lower("true_bytes", "RSS without LazyFree", Unit::Bytes),
        Figure::lower(KEPT, "part of the freed memory that is in RSS", Unit::Ratio),
        Figure::lower(LAZY, "part of the freed memory that is in LazyFree", Unit::Ratio),
        Figure::lower(TRUE, "part of the freed memory that is in RSS without LazyFree", Unit::Ratio),
        Figure::lower(SQUEEZED, "part of the freed memory that is in RSS after memory pressure", Unit::Ratio),
    ],
    claims: &[
        Claim {
            says: "Memory that is freed with MADV_FREE stays in RSS; with MADV_DONTNEED it does not.",
            tests: &[value(KEPT, "madv-free", ALL), value(KEPT, "madv-dontneed", NONE)],
        },
        Claim {
            says: "LazyFree in smaps shows it: RSS without LazyFree is what the program holds.",
            tests: &[value(LAZY, "madv-free", ALL), value(TRUE, "madv-free", NONE)],
        },
        Claim {
            says: "The kernel takes these pages when it needs memory: then RSS is true again.",
            tests: &[value(KEPT, "madv-free", Bound::Given(&ALL)), value(SQUEEZED, "madv-free", NONE)],
        },
        Claim {
            says: "jemalloc gives memory back with MADV_FREE, so that its RSS lies.",
            tests: &[value(LAZY, "jemalloc-now", MOST)],
        },
        Claim {
            says: "jemalloc lies so if it is set to MADV_FREE.",
            tests: &[value(KEPT, "jemalloc-lazy", MOST), value(TRUE, "jemalloc-lazy", LITTLE)],
        },
    ],
    charts: &[],
    check: None,
    run: measure,
};

/// The size of account 1's report.
const FILLED: f64 = 200e6;
/// So that other pages of this program do not count.
const LEAST: usize = 8 << 20;
const BLOCK: usize = 1_000;
/// Calls in a turn after the free, and the time between two turns. Some allocators free pages only within other calls.
const CALLS: usize = 64;
const TURN_NS: u64 = 1_000_000;
/// Time after the free in a run that a recorder watches: it repeats all.
const SHORT_S: f64 = 0.02;

/// The memory of this process.
struct Seen {
    before: Smaps,
    full: Smaps,
    freed: Smaps,
    squeezed: Measured<Smaps>,
}

fn measure(task: &Task) -> anyhow::Result<Outcome> {
    let watched = task.spec.announce;
    // A recorder kills its run, which would leave the group behind.
    let group = if watched {
        Err(Absence::new(Reason::NotApplicable, "a run that is recorded gets no pressure"))
    } else {
        Group::enter()
    };
    // The first reading makes pages resident itself.
    needed_resident()?;
    let meter = task.begin()?;
    let (seen, mut operations) = fill_and_free(task, &group)?;
    while watched && !meter.over() {
        operations += fill_and_free(task, &group)?.1;
    }
    Ok(Outcome::of(meter.finish(operations), seen.figures()))
}

/// Also returns how many blocks or pages were filled.
fn fill_and_free(task: &Task, group: &Measured<Group>) -> anyhow::Result<(Seen, u64)> {
    let bytes = ((FILLED * task.spec.scale.min(1.0)) as usize).max(LEAST);
    let calls = calls::real();
    let before = needed_resident()?;
    // What must stay until the end: the mapping, or the block on top of the heap.
    let (mut mapping, mut top) = (None, None);
    let (full, operations) = match task.spec.variant.as_str() {
        own @ ("madv-free" | "madv-dontneed") => {
            let mut pages = Mapping::new(bytes.next_multiple_of(PAGE));
            pages.write_each_page();
            let full = needed_resident()?;
            match own {
                "madv-free" => pages.free_lazily()?,
                _ => pages.discard(),
            }
            mapping = Some(pages);
            (full, bytes / PAGE)
        }
        _ => {
            let mut chain = Chain::new(calls);
            while chain.bytes < bytes {
                chain.push(BLOCK)?;
            }
            top = Some(filled(calls, BLOCK)?);
            (needed_resident()?, chain.blocks)
        }
    };
    let pause_s = if task.spec.announce { SHORT_S } else { task.spec.timed_s };
    let until_ns = monotonic_ns() + (pause_s * 1e9) as u64;
    while monotonic_ns() < until_ns {
        if process::asked_to_end() {
            bail!("it was ended early");
        }
        let mut chain = Chain::new(calls);
        for _ in 0..CALLS {
            chain.push(BLOCK)?;
        }
        drop(chain);
        sleep_until((monotonic_ns() + TURN_NS).min(until_ns));
    }
    let freed = needed_resident()?;
    let squeezed = match group {
        Ok(group) => group.squeeze(bytes as u64).and_then(|()| resident()),
        Err(absence) => Err(absence.clone()),
    };
    if let Some(top) = top {
        // SAFETY: allocated above, freed once.
        unsafe { (calls.free)(top) };
    }
    drop(mapping);
    Ok((Seen { before, full, freed, squeezed }, operations as u64))
}

impl Seen {
    fn figures(&self) -> [(&'static str, Measured<f64>); 6] {
        let without_lazy = |smaps: &Smaps| smaps.rss.saturating_sub(smaps.lazy_free);
        let of_rss = |smaps: &Smaps| part(smaps.rss, self.before.rss, self.full.rss);
        let filled = self.full.rss.saturating_sub(self.before.rss);
        let lazy = self.freed.lazy_free.saturating_sub(self.before.lazy_free);
        let held = part(without_lazy(&self.freed), without_lazy(&self.before), without_lazy(&self.full));
        [
            ("rss_bytes", Ok(self.freed.rss as f64)),
            ("true_bytes", Ok(without_lazy(&self.freed) as f64)),
            (KEPT, of_rss(&self.freed)),
            (LAZY, part(lazy, 0, filled)),
            (TRUE, held),
            (SQUEEZED, self.squeezed.as_ref().map_err(Clone::clone).and_then(of_rss)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::super::claims::{Judgement, judge};
    use super::super::testing::results;
    use super::*;

    fn seen(freed: (u64, u64), squeezed: Measured<u64>) -> Vec<Measured<f64>> {
        let smaps = |(rss, lazy_free): (u64, u64)| Smaps { rss, lazy_free, ..Smaps::default() };
        let squeezed = squeezed.map(|rss| smaps((rss, 0)));
        let seen = Seen { before: smaps((100, 0)), full: smaps((300, 0)), freed: smaps(freed), squeezed };
        seen.figures().into_iter().skip(2).map(|(_, value)| value).collect()
    }

    #[test]
    fn memory_that_stays_and_memory_that_is_gone_are_told_apart() {
        // In RSS and in LazyFree, until the kernel takes it.
        assert_eq!(seen((300, 200), Ok(100)), [Ok(1.0), Ok(1.0), Ok(0.0), Ok(0.0)]);
        // Held by malloc: in RSS, not in LazyFree, and nothing that the kernel could take.
        assert_eq!(seen((300, 0), Ok(300)), [Ok(1.0), Ok(0.0), Ok(1.0), Ok(1.0)]);
        let absent = Absence::new(Reason::NotPermitted, "no cgroup");
        assert_eq!(seen((100, 0), Err(absent.clone())), [Ok(0.0), Ok(0.0), Ok(0.0), Err(absent)]);
    }

    #[test]
    fn claims_are_judged_and_without_a_cgroup_pressure_is_not() {
        let judged = |lazy: f64| {
            let of = |kept, lazy, held| vec![(KEPT, kept), (LAZY, lazy), (TRUE, held)];
            let arms = [
                ("glibc", of(1.0, 1e-9, 1.0)),
                ("madv-free", of(1.0, lazy, 1.0 - lazy)),
                ("madv-dontneed", of(0.01, 1e-9, 0.01)),
                ("jemalloc-now", of(0.1, 0.01, 0.1)),
            ];
            let judged = judge(&results(&EXPERIMENT, 6, &arms));
            judged.into_iter().map(|judged| judged.judgement).collect::<Vec<_>>()
        };
        use Judgement::{CannotTest, DoesNotHold, Holds};
        let shown = judged(0.99);
        assert_eq!([&shown[0], &shown[1], &shown[3]], [&Holds, &Holds, &DoesNotHold]);
        assert!(matches!(&shown[2], CannotTest(why) if why.contains("0 blocks")), "{shown:?}");
        assert!(matches!(&shown[4], CannotTest(why) if why.contains("jemalloc-lazy")), "{shown:?}");
        // A kernel that does not count it.
        assert_eq!(judged(0.01)[1], DoesNotHold);
    }
}
