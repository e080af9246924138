//! Experiments from published accounts. Each one is a file: its arms, the program of one run, and what the account claims, with the
//! rule that judges it.
//!
//! An experiment is a trial: each block runs the first arm twice and the other arms once, in random order, each in a new process.
//! This file has the types and the table. `task.rs`: one run. `run.rs`: all runs. `bill.rs` and `series.rs`: what a
//! diagnosis of an arm says.
//! `results.rs`: the figures. `claims.rs`: the judgement. `text.rs`, `json.rs` and `charts.rs`: the output. `turns.rs`, `child.rs` and
//! `python.rs`: threads and processes of a run.

pub mod bill;
pub mod charts;
mod child;
pub mod claims;
mod cold_warm;
mod gc_or_allocator;
pub mod html;
mod incidents;
pub mod json;
mod json_requests;
mod kernel_slab;
mod knee;
mod lying_rss;
mod microbench_gap;
mod mmap_lock;
mod mmap_threshold;
mod numa;
mod open_loop;
mod patterns;
mod python;
mod resident;
pub mod results;
mod retry_storm;
mod rss_climb;
pub mod run;
pub mod series;
mod soak;
pub mod task;
mod tcache_batch;
#[cfg(test)]
mod testing;
pub mod text;
mod throttle;
mod turns;
mod warm_up;

use allocwall_model::catalogue::nearest::hint;
use allocwall_model::units::Measured;
use allocwall_trial::{Design, Direction, Metric, Unit, plan, session};
use claims::Claim;
use std::time::Duration;
use task::{Outcome, Task};

pub const EXPERIMENTS: &[Experiment] = &[
    mmap_threshold::EXPERIMENT,
    tcache_batch::EXPERIMENT,
    rss_climb::EXPERIMENT,
    lying_rss::EXPERIMENT,
    cold_warm::EXPERIMENT,
    warm_up::EXPERIMENT,
    mmap_lock::EXPERIMENT,
    kernel_slab::EXPERIMENT,
    numa::EXPERIMENT,
    json_requests::EXPERIMENT,
    patterns::EXPERIMENT,
    microbench_gap::EXPERIMENT,
    knee::EXPERIMENT,
    retry_storm::EXPERIMENT,
    soak::EXPERIMENT,
    throttle::EXPERIMENT,
    gc_or_allocator::EXPERIMENT,
    incidents::MANIFEST_REWRITE,
    incidents::MAP_LOCK,
    incidents::COLD_SCALE_OUT,
    incidents::NUMA_AFTER_UPGRADE,
    incidents::THROTTLED,
];

pub struct Experiment {
    pub name: &'static str,
    /// One line, for lists.
    pub summary: &'static str,
    /// What runs and what is measured, in a few sentences.
    pub about: &'static str,
    /// The first arm is the one that the others are compared with: glibc's malloc without settings.
    pub arms: &'static [Arm],
    /// In the order of the page.
    pub figures: &'static [Figure],
    pub claims: &'static [Claim],
    pub charts: &'static [Chart],
    /// Whether an arm can run on this machine with these settings, and if not, why; None: wherever its remedies can be applied.
    /// Without the first arm nothing runs, and each claim can't be tested for that reason.
    pub check: Option<fn(&Arm, &Settings) -> Measured<()>>,
    /// The program of one run.
    pub run: fn(&Task) -> anyhow::Result<Outcome>,
}

/// One way to run the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arm {
    pub name: &'static str,
    /// Remedies, as for `allocwall run --with`.
    pub with: &'static str,
    /// The program can do different things in different arms.
    pub variant: &'static str,
    /// With --quick too. The others run there only if `--arms` names them.
    pub quick: bool,
}

impl Arm {
    /// The same program as in the other arms, started with these remedies.
    const fn with(name: &'static str, with: &'static str) -> Arm {
        Arm { name, with, variant: "all", quick: true }
    }

    /// Without remedies; the program does this variant.
    const fn variant(name: &'static str, variant: &'static str) -> Arm {
        Arm { name, with: "none", variant, quick: true }
    }

    /// The same, but not with --quick.
    const fn full(self) -> Arm {
        Arm { quick: false, ..self }
    }
}

const GLIBC: Arm = Arm::with("glibc", "none");
const JEMALLOC: Arm = Arm::with("jemalloc", "jemalloc");
/// Its arenas belong to CPUs, not to threads; each thread still has its cache.
const JEMALLOC_PERCPU: Arm =
    Arm::with("jemalloc-percpu", "jemalloc+env:MALLOC_CONF=percpu_arena:percpu").full();
const TCMALLOC: Arm = Arm::with("tcmalloc", "tcmalloc");
/// Google's; the other one is that of gperftools.
const TCMALLOC_PERCPU: Arm = Arm::with("tcmalloc-percpu", "tcmalloc-percpu").full();
const MIMALLOC: Arm = Arm::with("mimalloc", "mimalloc");
const SNMALLOC: Arm = Arm::with("snmalloc", "snmalloc");

/// One number for each run.
#[derive(Clone, Copy)]
pub struct Figure {
    /// The key of a metric: one that the program reports, one of [`task::figures`], or one of any run of a trial.
    pub key: &'static str,
    pub title: &'static str,
    pub unit: Unit,
    pub direction: Direction,
    /// Whether it is a part of the page. The JSON document has all figures.
    pub printed: bool,
}

impl Figure {
    const fn lower(key: &'static str, title: &'static str, unit: Unit) -> Figure {
        Figure { key, title, unit, direction: Direction::LowerIsBetter, printed: true }
    }

    const fn higher(key: &'static str, title: &'static str, unit: Unit) -> Figure {
        Figure { key, title, unit, direction: Direction::HigherIsBetter, printed: true }
    }

    /// For a claim, a chart or the JSON document alone: another figure says nearly the same.
    const fn unprinted(self) -> Figure {
        Figure { printed: false, ..self }
    }

    fn metric(&self) -> Metric {
        Metric {
            key: self.key.to_owned(),
            title: self.title.to_owned(),
            unit: self.unit,
            direction: self.direction,
            primary: true,
        }
    }
}

pub struct Chart {
    /// The name of the file, without the name of the experiment.
    pub file: &'static str,
    pub title: &'static str,
    pub x_title: &'static str,
    pub y_title: &'static str,
    pub lines: Lines,
}

/// One line for each arm.
pub enum Lines {
    /// The distribution of the times in these histograms, added up.
    Distribution(&'static [&'static str]),
    /// A figure at each x.
    Figures(&'static [(f64, &'static str)]),
}

pub fn find(name: &str) -> Option<&'static Experiment> {
    EXPERIMENTS.iter().find(|experiment| experiment.name == name)
}

/// The services of examples/incidents, each broken and mended.
pub fn all_incidents() -> Vec<&'static Experiment> {
    EXPERIMENTS.iter().filter(|experiment| incidents::is_one(experiment.name)).collect()
}

impl Experiment {
    /// Whether its extra runs are diagnosed by a series of windows: if a claim is about that.
    fn has_series(&self) -> bool {
        let mut tests = self.claims.iter().flat_map(|claim| claim.tests);
        tests.any(|test| matches!(test.what, claims::Quantity::Series { .. }))
    }

    fn figure(&self, key: &str) -> Option<&Figure> {
        self.figures.iter().find(|figure| figure.key == key)
    }

    /// The arms to run: all, or the first one and those that are named.
    fn wanted(&self, names: &[String]) -> Vec<&'static Arm> {
        let named = |arm: &Arm| names.is_empty() || names.iter().any(|name| name == arm.name);
        let arms = self.arms.iter().enumerate();
        arms.filter(|(nth, arm)| *nth == 0 || named(arm)).map(|(_, arm)| arm).collect()
    }

    /// The trial of these arms, of which the first two are the same.
    fn design(&self, arms: &[&Arm], settings: &Settings) -> Design {
        let again = format!("{}′", arms[0].name);
        let names =
            arms.iter().enumerate().map(|(nth, arm)| if nth == 1 { again.as_str() } else { arm.name });
        Design {
            left_out: vec![],
            arms: session::arms(names, vec![]),
            metrics: self.figures.iter().map(Figure::metric).collect(),
            settings: allocwall_trial::Settings {
                seed: settings.seed,
                effect: plan::DEFAULT_EFFECT,
                planned: settings.blocks,
                // A single look: all intervals have a confidence of 95 %.
                looks: vec![settings.blocks],
            },
        }
    }
}

/// The first arm twice, as the baseline of a trial.
fn with_baseline<T: Clone>(arms: &[T]) -> Vec<T> {
    arms.first().into_iter().chain(arms).cloned().collect()
}

/// Why a name is not an arm of any of these experiments, as one line; None if each is one.
pub fn unknown_arm(experiments: &[&Experiment], names: &[String]) -> Option<String> {
    let known = || experiments.iter().flat_map(|experiment| experiment.arms).map(|arm| arm.name);
    let unknown = names.iter().find(|name| !known().any(|arm| arm == *name))?;
    Some(format!("no arm {unknown}{}; the arms are {}", hint(unknown, known()), listed(known())))
}

fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let mut once: Vec<&str> = vec![];
    for name in names {
        if !once.contains(&name) {
            once.push(name);
        }
    }
    once.join(", ")
}

/// Blocks with --quick: the fewest with which the median of an arm has a 95 % interval (`stats::median_interval`).
const QUICK_BLOCKS: usize = 6;
/// Size of a run with --quick.
const QUICK_SCALE: f64 = 0.15;

#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Without the arms that take long: see [`Arm::quick`].
    pub quick: bool,
    pub blocks: usize,
    /// For the order of arms, and for random numbers of the runs.
    pub seed: u64,
    /// Size of a run; 1 is a full one.
    pub scale: f64,
    /// Arms in addition to the first; all if empty.
    pub arms: Vec<String>,
    /// For how long the recorder samples the extra run of each arm; None: no bills.
    pub bill: Option<Duration>,
}

impl Settings {
    pub fn full(seed: u64) -> Settings {
        let bill = Some(Duration::from_secs(3));
        Settings { quick: false, blocks: plan::DEFAULT_BLOCKS, seed, scale: 1.0, arms: vec![], bill }
    }

    pub fn quick(seed: u64) -> Settings {
        let bill = Some(Duration::from_secs(1));
        Settings { quick: true, blocks: QUICK_BLOCKS, scale: QUICK_SCALE, bill, ..Settings::full(seed) }
    }

    /// None without bills.
    fn series(&self) -> Option<series::Plan> {
        self.bill.map(|_| if self.quick { series::Plan::QUICK } else { series::Plan::FULL })
    }

    /// Whether this arm of those that are wanted runs.
    fn include(&self, arm: &Arm) -> bool {
        arm.quick || !self.quick || !self.arms.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::claims::Quantity;
    use super::*;
    use allocwall_trial::BASELINES;
    use allocwall_trial::arm::Arm as Remedies;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique_and_found() {
        for experiment in EXPERIMENTS {
            assert_eq!(find(experiment.name).map(|found| found.summary), Some(experiment.summary));
            let arms: BTreeSet<_> = experiment.arms.iter().map(|arm| arm.name).collect();
            assert_eq!(arms.len(), experiment.arms.len(), "{}", experiment.name);
            let keys: BTreeSet<_> = experiment.figures.iter().map(|figure| figure.key).collect();
            assert_eq!(keys.len(), experiment.figures.len(), "{}", experiment.name);
        }
        let names: BTreeSet<_> = EXPERIMENTS.iter().map(|experiment| experiment.name).collect();
        assert_eq!(names.len(), EXPERIMENTS.len());
        assert!(find("mmap").is_none() && find("").is_none());
    }

    #[test]
    fn every_arm_can_be_parsed_and_the_first_one_has_no_remedy() {
        for experiment in EXPERIMENTS {
            assert_eq!(experiment.arms[0].with, "none");
            for arm in experiment.arms {
                assert!(Remedies::parse(arm.with).is_ok(), "{}: {}", experiment.name, arm.with);
            }
        }
    }

    #[test]
    fn claims_and_charts_name_figures_and_arms_of_their_experiment() {
        for experiment in EXPERIMENTS {
            let is_arm = |name: &str| experiment.arms.iter().any(|arm| arm.name == name);
            assert!(!experiment.claims.is_empty());
            for test in experiment.claims.iter().flat_map(|claim| claim.tests) {
                let (figure, arms) = match test.what {
                    Quantity::Value { figure, arm } => (Some(figure), vec![arm]),
                    Quantity::Ratio { figure, arm, to } => (Some(figure), vec![arm, to]),
                    Quantity::Between { figure, arm, from, to } => (Some(figure), vec![arm, from, to]),
                    Quantity::Bill { arm, .. }
                    | Quantity::Wait { arm, .. }
                    | Quantity::FirstWall { arm, .. }
                    | Quantity::Series { arm, .. } => (None, vec![arm]),
                };
                assert!(figure.is_none_or(|key| experiment.figure(key).is_some()), "{figure:?}");
                assert!(arms.iter().all(|arm| is_arm(arm)), "{arms:?}");
            }
            for chart in experiment.charts {
                if let Lines::Figures(points) = chart.lines {
                    assert!(points.iter().all(|(x, key)| *x > 0.0 && experiment.figure(key).is_some()));
                }
            }
        }
    }

    #[test]
    fn a_plan_has_the_first_arm_twice_and_only_the_arms_that_are_named() {
        let experiment = &EXPERIMENTS[0];
        let [first, second, third] = [0, 1, 2].map(|nth| experiment.arms[nth].name);
        let named = experiment.wanted(&[third.to_owned()]);
        assert_eq!(named.iter().map(|arm| arm.name).collect::<Vec<_>>(), [first, third]);
        assert_eq!(experiment.wanted(&[]).len(), experiment.arms.len());
        let design = experiment.design(&with_baseline(&named), &Settings::quick(7));
        let names: Vec<&str> = design.arms.iter().map(|arm| arm.name.as_str()).collect();
        let again = format!("{first}′");
        assert_eq!(names, [first, again.as_str(), third]);
        assert_eq!(design.arms.iter().filter(|arm| arm.baseline).count(), BASELINES);
        assert_eq!(
            (design.settings.planned, &design.settings.looks[..]),
            (QUICK_BLOCKS, &[QUICK_BLOCKS][..])
        );
        assert_eq!(design.metrics.len(), experiment.figures.len());
        // The same seed gives the same order; every arm is in each block once.
        for order in plan::order(design.arms.len(), design.settings.planned, design.settings.seed) {
            assert_eq!(order.into_iter().collect::<BTreeSet<usize>>(), BTreeSet::from([0, 1, 2]));
        }
        let line = unknown_arm(&[experiment], &[second.to_owned(), "jemaloc".to_owned()]);
        assert!(line.is_some_and(|line| line.contains("nearest: jemalloc") && !line.contains('\n')));
        assert_eq!(unknown_arm(&[experiment], &[second.to_owned()]), None);
    }

    /// With 6 blocks and the run that is not counted, an arm runs 7 times, for about half a second. Its bill takes some seconds.
    #[test]
    fn a_quick_run_has_few_arms_and_those_that_are_named() {
        let of = |settings: &Settings, experiment: &Experiment| {
            experiment.arms.iter().filter(|arm| settings.include(arm)).count()
        };
        let (quick, full) = (Settings::quick(7), Settings::full(7));
        for experiment in EXPERIMENTS {
            assert!(experiment.arms[0].quick && of(&quick, experiment) <= 8, "{}", experiment.name);
            assert_eq!(of(&full, experiment), experiment.arms.len());
        }
        assert!(EXPERIMENTS.iter().map(|experiment| of(&quick, experiment)).sum::<usize>() <= 90);
        let named = Settings { arms: vec!["idle".into()], ..quick };
        assert!(named.include(&GLIBC.full()) && !Settings::quick(7).include(&GLIBC.full()));
    }

    #[test]
    fn six_runs_are_the_fewest_with_an_interval() {
        use allocwall_model::stats::median_interval;
        // Of n values, the range misses the median with probability 2 / 2^n.
        let misses = |n: usize| 2.0 * 0.5f64.powi(n as i32);
        assert!(misses(QUICK_BLOCKS) <= 0.05 && misses(QUICK_BLOCKS - 1) > 0.05);
        let values: Vec<f64> = (0..QUICK_BLOCKS).map(|n| n as f64).collect();
        let interval = median_interval(&values).expect("there are values");
        assert_eq!((interval.low, interval.high), (0.0, 5.0));
    }
}
