//! A service with a nightly report: the report's memory is freed, and is it returned? glibc returns only what is above the last block of
//! its heap, and a few blocks that stay are enough to keep the rest.

use super::child::Child;
use super::claims::{Bound, Claim, Quantity, Test};
use super::resident::{Chain, filled, needed_resident, part};
use super::task::{Outcome, Task};
use super::{Arm, Chart, Experiment, Figure, GLIBC, JEMALLOC, Lines, MIMALLOC, TCMALLOC};
use crate::workloads::calls::{self, Calls};
use allocwall_host::clock::{monotonic_ns, sleep_until};
use allocwall_model::machine::Smaps;
use allocwall_model::stats::random::Random;
use allocwall_model::units::{Absence, Measured, Reason};
use allocwall_trial::Unit;
use anyhow::ensure;
use libc::c_void;

const TRIM_64K: Arm = Arm::with("trim-64k", "glibc:trim_threshold=64K");
/// The program calls malloc_trim(0) after the report.
const MALLOC_TRIM: Arm = Arm::variant("malloc-trim", "trim");
/// Within the shortest pause of a quick run.
const JEMALLOC_DECAY: Arm = Arm::with("jemalloc-decay", "jemalloc+jemalloc-decay=100");
/// The report runs in a process of its own, which ends.
const WORKER: Arm = Arm::variant("worker", "worker");

const RSS: [&str; 4] = ["rss_0s", "rss_1s", "rss_5s", "rss_30s"];
const PSS: [&str; 4] = ["pss_0s", "pss_1s", "pss_5s", "pss_30s"];
const LIVE: [&str; 4] = ["live_0s", "live_1s", "live_5s", "live_30s"];
const BEFORE: &str = "rss_before";
const PEAK: &str = "rss_peak";
const KEPT_5S: &str = "kept_5s";
const KEPT_30S: &str = "kept_30s";

/// Of the report's memory: more than half of it stays, or at most a fifth.
const STAYS: Bound = Bound::Above(0.5);
const COMES_BACK: Bound = Bound::Below(0.2);

const fn value(figure: &'static str, arm: &'static str, is: Bound) -> Test {
    Test { what: Quantity::Value { figure, arm }, is }
}

/// Memory that comes back, and would not with glibc alone.
const fn returned(figure: &'static str, arm: &'static str) -> [Test; 2] {
    [value(figure, "glibc", Bound::Given(&STAYS)), value(figure, arm, COMES_BACK)]
}

pub const EXPERIMENT: Experiment = Experiment {
    name: "rss-climb",
    summary: "a report of 200 MB in a small service: how much of its memory comes back, and when",
    about: "A service has 40 MB of live blocks of 16 to 512 bytes and serves 2,000 requests a second; each one allocates 20 blocks and \
            replaces a live one. Then it makes a report of 200 MB of such blocks, of which one in 1,000 stays, and frees the others. It \
            serves on, and its memory is read right after the report and 1, 5 and 30 s later. With --quick, sizes are 0.15 times as \
            large, and the times are 0, 0.2 and 0.5 s. In the arm `worker` the report is made by a process that ends.",
    // Those that return memory over time need longer than a quick run.
    arms: &[
        GLIBC,
        TRIM_64K,
        MALLOC_TRIM,
        JEMALLOC.full(),
        JEMALLOC_DECAY,
        MIMALLOC.full(),
        TCMALLOC.full(),
        WORKER,
    ],
    figures: &[
        Figure::lower(LIVE[0], "live bytes right after the report", Unit::Bytes).unprinted(),
        Figure::lower(BEFORE, "RSS before the report", Unit::Bytes),
        Figure::lower(PEAK, "RSS before the report, and what the report adds to it", Unit::Bytes),
        Figure::lower(RSS[0], "RSS right after the report", Unit::Bytes),
        Figure::lower(RSS[1], "RSS 1 s after it (0.2 s with --quick)", Unit::Bytes),
        Figure::lower(RSS[2], "RSS 5 s after it (0.5 s with --quick)", Unit::Bytes),
        Figure::lower(RSS[3], "RSS 30 s after it (not with --quick)", Unit::Bytes),
        Figure::lower(PSS[2], "PSS 5 s after it (0.5 s with --quick)", Unit::Bytes).unprinted(),
        Figure::lower(
            KEPT_5S,
            "part of the report's memory in RSS after 5 s (0.5 s with --quick)",
            Unit::Ratio,
        ),
        Figure::lower(
            KEPT_30S,
            "part of the report's memory in RSS after 30 s (not with --quick)",
            Unit::Ratio,
        ),
    ],
    claims: &[
        Claim {
            says: "glibc keeps free memory below the top of its heap: a report of 200 MB leaves its high-water mark behind.",
            tests: &[value(KEPT_5S, "glibc", STAYS)],
        },
        Claim { says: "A trim threshold of 64 KiB returns it.", tests: &returned(KEPT_5S, "trim-64k") },
        Claim { says: "malloc_trim after the report returns it.", tests: &returned(KEPT_5S, "malloc-trim") },
        Claim { says: "jemalloc returns it, as its pages decay.", tests: &returned(KEPT_30S, "jemalloc") },
        Claim { says: "mimalloc returns it.", tests: &returned(KEPT_30S, "mimalloc") },
        Claim { says: "tcmalloc returns it.", tests: &returned(KEPT_30S, "tcmalloc") },
        // Without a setting, the pages of jemalloc decay within 10 s.
        Claim {
            says: "jemalloc with a short decay returns it soon.",
            tests: &returned(KEPT_5S, "jemalloc-decay"),
        },
        Claim { says: "A worker process that is replaced returns it.", tests: &returned(KEPT_5S, "worker") },
    ],
    charts: &[Chart {
        file: "rss",
        title: "Resident memory before, during and after a large report",
        x_title: "s after the report; 0.01: before it, 0.03: its peak, 0.1: its end; with --quick 1 and 5 are 0.2 and 0.5",
        y_title: "RSS, bytes",
        lines: Lines::Figures(&[
            (0.01, BEFORE),
            (0.03, PEAK),
            (0.1, RSS[0]),
            (1.0, RSS[1]),
            (5.0, RSS[2]),
            (30.0, RSS[3]),
        ]),
    }],
    check: None,
    run: measure,
};

/// Bytes of a full run.
const LIVE_BYTES: f64 = 40e6;
const REPORT_BYTES: f64 = 200e6;
/// Sizes of blocks in bytes.
const SIZES: (usize, usize) = (16, 512);
/// One block of the report in so many stays.
const ONE_STAYS: usize = 1_000;
const BLOCKS_OF_A_REQUEST: usize = 20;
const REQUESTS_OF_A_TURN: usize = 2;
const TURN_NS: u64 = 1_000_000;
const WARM_UP: usize = 1_000;
/// Size of the pauses in a run that a recorder watches: it repeats the report.
const SHORT: f64 = 0.05;

/// Times after the report, in seconds: one for each key of [`RSS`], but the last only in a full run.
fn moments(scale: f64) -> Vec<f64> {
    let soon = if scale < 1.0 { [0.0, scale / 0.75, scale / 0.3] } else { [0.0, 1.0, 5.0] };
    let last = (scale >= 1.0).then_some(30.0);
    soon.into_iter().chain(last).collect()
}

struct Service {
    calls: Calls,
    random: Random,
    live: Vec<(*mut c_void, usize)>,
    live_bytes: usize,
    report_bytes: usize,
    requests: u64,
}

/// What one report adds to the resident memory, and the memory at each moment after it, with the live bytes.
struct Report {
    added: u64,
    after: Vec<(Smaps, usize)>,
}

fn measure(task: &Task) -> anyhow::Result<Outcome> {
    let (watched, variant) = (task.spec.announce, task.spec.variant.as_str());
    let mut service = Service::start(task.spec.seed, task.spec.scale.min(1.0))?;
    for _ in 0..WARM_UP {
        service.request()?;
    }
    // The first reading makes pages resident itself.
    needed_resident()?;
    let before = needed_resident()?;
    service.requests = 0;
    let meter = task.begin()?;
    let moments = moments(if watched { task.spec.scale.min(SHORT) } else { task.spec.scale });
    let report = service.night(variant, &moments)?;
    while watched && !meter.over() {
        service.night(variant, &moments)?;
    }
    Ok(Outcome::of(meter.finish(service.requests), report.figures(&before)))
}

impl Service {
    fn start(seed: u64, scale: f64) -> anyhow::Result<Service> {
        let live_bytes = (LIVE_BYTES * scale) as usize;
        let report_bytes = (REPORT_BYTES * scale) as usize;
        let (live, stay) = (live_bytes / mean_size(), report_bytes / mean_size() / ONE_STAYS);
        let mut service = Service {
            calls: calls::real(),
            random: Random::new(seed),
            // Room for all: a list that grows would free memory itself.
            live: Vec::with_capacity(2 * (live + stay)),
            live_bytes: 0,
            report_bytes,
            requests: 0,
        };
        while service.live_bytes < live_bytes {
            service.keep()?;
        }
        Ok(service)
    }

    fn size(&mut self) -> usize {
        SIZES.0 + self.random.below(SIZES.1 - SIZES.0 + 1)
    }

    /// One more live block.
    fn keep(&mut self) -> anyhow::Result<()> {
        let size = self.size();
        self.live.push((filled(self.calls, size)?, size));
        self.live_bytes += size;
        Ok(())
    }

    fn request(&mut self) -> anyhow::Result<()> {
        let mut blocks = Chain::new(self.calls);
        for _ in 0..BLOCKS_OF_A_REQUEST {
            blocks.push(self.size())?;
        }
        drop(blocks);
        self.keep()?;
        let (block, size) = self.live.swap_remove(self.random.below(self.live.len()));
        // SAFETY: a live block. It is freed once: it is not in the list any more.
        unsafe { (self.calls.free)(block) };
        self.live_bytes -= size;
        self.requests += 1;
        Ok(())
    }

    fn serve_until(&mut self, until_ns: u64) -> anyhow::Result<()> {
        while monotonic_ns() < until_ns {
            for _ in 0..REQUESTS_OF_A_TURN {
                self.request()?;
            }
            sleep_until((monotonic_ns() + TURN_NS).min(until_ns));
        }
        Ok(())
    }

    /// Makes a report and frees it. Returns what it adds to the resident memory of the process that makes it.
    fn report(&mut self) -> anyhow::Result<u64> {
        // A forked process starts without the pages of files that its parent has.
        let before = needed_resident()?;
        let mut report = Chain::new(self.calls);
        while report.bytes < self.report_bytes {
            report.push(self.size())?;
            if report.blocks.is_multiple_of(ONE_STAYS) {
                self.keep()?;
            }
        }
        Ok(needed_resident()?.rss.saturating_sub(before.rss))
    }

    fn night(&mut self, variant: &str, moments: &[f64]) -> anyhow::Result<Report> {
        let added = if variant == WORKER.variant {
            let added = Child::start(|| self.report())?.join()?;
            // What stays is sent to the service.
            for _ in 0..self.report_bytes / mean_size() / ONE_STAYS {
                self.keep()?;
            }
            added
        } else {
            self.report()?
        };
        if variant == MALLOC_TRIM.variant {
            trim()?;
        }
        let ended_ns = monotonic_ns();
        let mut after = Vec::with_capacity(moments.len());
        for moment in moments {
            self.serve_until(ended_ns + (moment * 1e9) as u64)?;
            after.push((needed_resident()?, self.live_bytes));
        }
        Ok(Report { added, after })
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        for (block, _) in self.live.drain(..) {
            // SAFETY: a live block, freed once.
            unsafe { (self.calls.free)(block) };
        }
    }
}

fn mean_size() -> usize {
    usize::midpoint(SIZES.0, SIZES.1)
}

impl Report {
    fn figures(&self, before: &Smaps) -> Vec<(&'static str, Measured<f64>)> {
        let peak = before.rss + self.added;
        let kept = |(smaps, _): &(Smaps, usize)| part(smaps.rss, before.rss, peak);
        let too_short =
            || Absence::new(Reason::NotApplicable, "only a run of full size waits for 30 s after the report");
        let kept_at = |nth: usize| self.after.get(nth).ok_or_else(too_short).and_then(kept);
        let mut figures = vec![
            (BEFORE, Ok(before.rss as f64)),
            (PEAK, Ok(peak as f64)),
            (KEPT_5S, kept_at(2)),
            (KEPT_30S, kept_at(3)),
        ];
        for (nth, rss) in RSS.into_iter().enumerate() {
            let at = self.after.get(nth).ok_or_else(too_short);
            figures.push((rss, at.clone().map(|(smaps, _)| smaps.rss as f64)));
            figures.push((PSS[nth], at.clone().map(|(smaps, _)| smaps.pss as f64)));
            figures.push((LIVE[nth], at.map(|(_, live)| *live as f64)));
        }
        figures
    }
}

/// malloc_trim(3), by its dynamic symbol: other C libraries have none.
fn trim() -> anyhow::Result<()> {
    // SAFETY: the name is a C string.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"malloc_trim".as_ptr()) };
    ensure!(!found.is_null(), "this C library has no malloc_trim");
    // SAFETY: the function of this name has this type.
    let malloc_trim = unsafe {
        std::mem::transmute::<*mut c_void, unsafe extern "C" fn(libc::size_t) -> libc::c_int>(found)
    };
    // SAFETY: it has no precondition.
    unsafe { malloc_trim(0) };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::claims::{Judgement, judge};
    use super::super::testing::results;
    use super::*;

    #[test]
    fn only_a_full_run_waits_for_the_last_moment() {
        let quick = moments(0.15);
        let near = |(at, wanted): (&f64, f64)| (at - wanted).abs() < 1e-9;
        assert!(quick.iter().zip([0.0, 0.2, 0.5]).all(near), "{quick:?}");
        assert_eq!(quick.len(), 3);
        assert_eq!(moments(1.0), [0.0, 1.0, 5.0, 30.0]);
        assert_eq!(moments(10.0), moments(1.0));
        let smaps = |rss| Smaps { rss, ..Smaps::default() };
        let kept = |after: &[u64]| {
            let after = after.iter().map(|rss| (smaps(*rss), 7)).collect();
            let figures = Report { added: 200, after }.figures(&smaps(100));
            [KEPT_5S, KEPT_30S, RSS[3]].map(|key| {
                let value = figures.iter().find(|(of, _)| *of == key).unwrap().1.clone();
                value.map_err(|absence| absence.reason)
            })
        };
        let short = Err(Reason::NotApplicable);
        assert_eq!(kept(&[300, 300, 200]), [Ok(0.5), short, short]);
        assert_eq!(kept(&[300, 300, 200, 150]), [Ok(0.5), Ok(0.25), Ok(150.0)]);
    }

    #[test]
    fn the_live_bytes_are_those_of_the_blocks() {
        let mut service = Service::start(3, 0.001).unwrap();
        let sum = |service: &Service| service.live.iter().map(|(_, size)| size).sum::<usize>();
        assert_eq!(service.live_bytes, sum(&service));
        let blocks = service.live.len();
        for _ in 0..100 {
            service.request().unwrap();
        }
        assert_eq!((service.live_bytes, service.live.len()), (sum(&service), blocks));
        // Between 3,000 and 4,000 blocks.
        service.report_bytes = 1_000_000;
        service.report().unwrap();
        assert_eq!(service.live_bytes, sum(&service));
        assert_eq!(service.live.len() - blocks, 3);
    }

    #[test]
    fn memory_that_stays_and_memory_that_comes_back_are_told_apart() {
        let judged = |glibc: f64, trimmed: f64| {
            let arms = [("glibc", vec![(KEPT_5S, glibc)]), ("malloc-trim", vec![(KEPT_5S, trimmed)])];
            let judged = judge(&results(&EXPERIMENT, 6, &arms));
            judged.into_iter().map(|judged| judged.judgement).collect::<Vec<_>>()
        };
        use Judgement::{CannotTest, DoesNotHold, Holds};
        let pinned = judged(0.97, 0.05);
        assert_eq!([&pinned[0], &pinned[2]], [&Holds, &Holds]);
        assert!(matches!(&pinned[6], CannotTest(why) if why.contains("jemalloc-decay")), "{pinned:?}");
        // A heap that shrinks by itself, so that nothing is to be returned; and a trim that frees a third.
        let shrinks = judged(0.02, 0.02);
        assert_eq!(shrinks[0], DoesNotHold);
        assert!(matches!(&shrinks[2], CannotTest(why) if why.contains("condition")), "{shrinks:?}");
        assert_eq!(judged(0.97, 0.66)[2], DoesNotHold);
    }
}
