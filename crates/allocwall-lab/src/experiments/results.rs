//! The figures of all runs of an experiment, with intervals: of an arm, of one arm against another, and between two others.

use super::bill::{Bill, Line, Walls};
use super::series::{Fact, Series};
use super::task::RunResult;
use super::{Arm, Experiment, Settings, with_baseline};
use crate::histogram::Histogram;
use allocwall_model::catalogue::walls::Wall;
use allocwall_model::stats::{median, median_interval};
use allocwall_model::units::{Absence, Interval, Measured, Reason};
use allocwall_trial::compare::{against, compare};
use allocwall_trial::{ArmProof, BASELINES, Block, Comparison, ProofState, Run, TrialResult};
use std::collections::BTreeMap;

/// The fewest values of which the median has a 95 % interval: see `median_interval`.
const FEWEST: usize = 6;

pub struct Results {
    pub experiment: &'static Experiment,
    pub settings: Settings,
    /// Arms of the trial: the first two are the same.
    pub arms: Vec<&'static Arm>,
    pub left_out: Vec<LeftOut>,
    pub outcome: TrialResult,
    pub blocks: Vec<Block>,
    /// The result of each run, with its arm; None if the run failed.
    pub runs: Vec<(usize, Option<RunResult>)>,
    /// By arm; only of those that are shown. Empty without bills.
    pub bills: BTreeMap<usize, Measured<Bill>>,
    /// Of the arms that have a bill.
    pub walls: BTreeMap<usize, Walls>,
    /// By arm, like the bills; only if a claim is about a series.
    pub series: BTreeMap<usize, Measured<Series>>,
}

/// An arm that was not run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    pub arm: &'static str,
    pub why: String,
}

impl Results {
    /// Of an experiment whose first arm cannot run here.
    pub fn without_runs(
        experiment: &'static Experiment,
        settings: &Settings,
        left_out: Vec<LeftOut>,
    ) -> Results {
        let arms = with_baseline(&[&experiment.arms[0]]);
        Results {
            experiment,
            settings: settings.clone(),
            left_out,
            outcome: compare(&experiment.design(&arms, settings), &[]),
            blocks: vec![],
            runs: vec![],
            bills: BTreeMap::new(),
            walls: BTreeMap::new(),
            series: BTreeMap::new(),
            arms,
        }
    }

    /// The arms that are shown: the first one once.
    pub fn shown(&self) -> impl Iterator<Item = usize> {
        (0..self.arms.len()).filter(|arm| *arm == 0 || *arm >= BASELINES)
    }

    /// The index of an arm.
    ///
    /// # Errors
    /// Why it did not run, or why its runs prove nothing.
    pub fn arm(&self, name: &str) -> Measured<usize> {
        let left_out = self.left_out.iter().find(|left_out| left_out.arm == name);
        if left_out.is_none()
            && let Some(at) = self.arms.iter().position(|arm| arm.name == name)
        {
            return self.unproven(at).map_or(Ok(at), Err);
        }
        let why = left_out.map_or("it was not asked for", |left_out| left_out.why.as_str());
        Err(Absence::new(Reason::NotApplicable, format!("without the arm {name}: {why}")))
    }

    /// Why it is not certain that an arm's remedies took effect.
    pub fn unproven(&self, arm: usize) -> Option<Absence> {
        let open = |proof: &&ArmProof| match proof.state {
            ProofState::Proven => false,
            ProofState::Unknown => proof.needed,
            ProofState::Refuted => true,
        };
        let proof = self.outcome.summaries[arm].proof.iter().find(open)?;
        let name = self.arms[arm].name;
        Some(Absence::new(
            Reason::NotApplicable,
            format!("{name}: no proof that the remedy took effect: {}: {}", proof.what, proof.detail),
        ))
    }

    /// An arm's figure in each block that has it.
    fn values(&self, figure: &str, arm: usize) -> Vec<f64> {
        self.blocks.iter().filter_map(|block| in_block(block, figure, arm)).collect()
    }

    /// The median of a figure over the blocks, without an interval; None if no run has it.
    pub fn point(&self, figure: &str, arm: usize) -> Option<f64> {
        median(&self.values(figure, arm))
    }

    /// The same with its interval.
    pub fn value(&self, figure: &str, arm: usize) -> Measured<Interval> {
        let values = self.values(figure, arm);
        match median_interval(&values) {
            Some(interval) if values.len() >= FEWEST => Ok(interval),
            _ => Err(self.too_few(figure, arm, values.len())),
        }
    }

    fn too_few(&self, figure: &str, arm: usize, values: usize) -> Absence {
        let name = self.arms[arm].name;
        let runs = || self.blocks.iter().flat_map(move |block| of_block(block, arm));
        let failure = runs().find_map(|run| run.failure.clone());
        let absent = runs().find_map(|run| run.metrics.get(figure)?.as_ref().err());
        match (values, failure, absent) {
            (0, Some(failure), _) => Absence::new(Reason::NotFound, format!("{name} failed: {failure}")),
            (0, None, Some(absent)) => absent.clone(),
            _ => Absence::new(
                Reason::TooLittle,
                format!("{values} blocks with {name} are too few: a 95 % interval needs at least {FEWEST}"),
            ),
        }
    }

    /// An arm's figure as a multiple of another arm's, within blocks.
    pub fn ratio(&self, figure: &str, arm: usize, to: usize) -> Measured<Interval> {
        let times = |effect: Interval| Interval::new(1.0 + effect.low, 1.0 + effect.point, 1.0 + effect.high);
        match (arm, to) {
            (arm, 0) => self.compared(figure, arm).map(times),
            (0, to) => {
                let other = self.ratio(figure, to, 0)?;
                Ok(Interval::new(1.0 / other.high, 1.0 / other.point, 1.0 / other.low))
            }
            (arm, to) => {
                let effect = against(&self.blocks, arm, to, figure);
                effect.map(times).map_err(|why| match why.reason {
                    Reason::TooLittle => self.missing(figure, &[arm, to]),
                    _ => why,
                })
            }
        }
    }

    /// The trial's comparison of an arm with the first one; for the first one, of its two runs in each block.
    fn compared(&self, figure: &str, arm: usize) -> Measured<Interval> {
        let all = if arm < BASELINES { &self.outcome.baseline } else { &self.outcome.comparisons };
        let of = |c: &&Comparison| c.metric == figure && (arm < BASELINES || c.arm == arm);
        let comparison = all.iter().find(of).ok_or_else(|| self.few_blocks())?;
        match &comparison.why {
            // An effect that the trial calls unresolved has an interval too.
            Some(why) if why.reason != Reason::TooLittle => Err(why.clone()),
            _ => comparison.effect.clone(),
        }
    }

    /// Where an arm lies between two others, within blocks: 0 is like `from`, 1 is like `to`.
    pub fn between(&self, figure: &str, arm: usize, from: usize, to: usize) -> Measured<Interval> {
        let part = |block: &Block| {
            let of = |arm| in_block(block, figure, arm);
            let (at, from, to) = (of(arm)?, of(from)?, of(to)?);
            Some((at - from) / (to - from)).filter(|part| part.is_finite())
        };
        let parts: Vec<f64> = self.blocks.iter().filter_map(part).collect();
        match median_interval(&parts) {
            Some(interval) if parts.len() >= FEWEST => Ok(interval),
            _ => Err(self.missing(figure, &[arm, from, to])),
        }
    }

    /// Why these arms cannot be compared.
    fn missing(&self, figure: &str, arms: &[usize]) -> Absence {
        let absent = arms.iter().find_map(|arm| self.value(figure, *arm).err());
        absent.unwrap_or_else(|| self.few_blocks())
    }

    /// The share of a line of an arm's bill. `lines` takes its CPU time or its waits.
    pub fn line(&self, arm: usize, lines: fn(&Bill) -> &[Line], class: &str) -> Measured<Interval> {
        let none = |detail: &str| Absence::new(Reason::NotApplicable, detail);
        let bill = self.bills.get(&arm).ok_or_else(|| none("no bill was taken"))?;
        let bill = bill.as_ref().map_err(Absence::clone)?;
        let line = lines(bill).iter().find(|line| line.class == class);
        line.ok_or_else(|| none("the bill has no such line"))?.share.clone()
    }

    /// Whether the verdict on an arm names one of these walls first: 1, or 0.
    pub fn first_wall(&self, arm: usize, walls: &[Wall]) -> Measured<Interval> {
        let Some(named) = self.walls.get(&arm) else {
            let why = self.bills.get(&arm).and_then(|bill| bill.as_ref().err()).cloned();
            return Err(why.unwrap_or_else(|| Absence::new(Reason::NotApplicable, "no bill was taken")));
        };
        named.first_is(walls).map(|first| Interval::exact(if first { 1.0 } else { 0.0 }))
    }

    pub fn fact(&self, arm: usize, fact: Fact) -> Measured<Interval> {
        let none = || Absence::new(Reason::NotApplicable, "no series was taken");
        self.series.get(&arm).ok_or_else(none)?.as_ref().map_err(Absence::clone)?.fact(fact)
    }

    fn few_blocks(&self) -> Absence {
        let blocks = self.blocks.len();
        Absence::new(Reason::TooLittle, format!("{blocks} blocks are too few for a 95 % interval"))
    }

    /// The times of all runs of an arm, added up; None if no run has them.
    pub fn histogram(&self, arm: usize, keys: &[&str]) -> Option<Histogram> {
        let mut sum: Option<Histogram> = None;
        let same = |of: usize| of == arm || (arm == 0 && of < BASELINES);
        for (_, result) in self.runs.iter().filter(|(of, _)| same(*of)) {
            let histograms = result.iter().map(|result| &result.outcome.histograms);
            for times in histograms.flat_map(|all| keys.iter().filter_map(move |key| all.get(*key))) {
                sum.get_or_insert_default().add(&Histogram::from(times.clone()));
            }
        }
        sum.filter(|sum| sum.count() > 0)
    }
}

/// The runs of an arm in a block: two of the first arm.
fn of_block(block: &Block, arm: usize) -> impl Iterator<Item = &Run> {
    block.runs.iter().filter(move |run| run.arm == arm || (arm == 0 && run.arm < BASELINES))
}

/// An arm's figure in a block: of the first arm the mean of its two runs. Both are in the same block, so they are no two independent
/// values. None if no run has it.
fn in_block(block: &Block, figure: &str, arm: usize) -> Option<f64> {
    let values: Vec<f64> = of_block(block, arm).filter_map(|run| value(run, figure)).collect();
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// A figure of a run that did not fail.
fn value(run: &Run, figure: &str) -> Option<f64> {
    let value = *run.metrics.get(figure)?.as_ref().ok()?;
    (run.failure.is_none() && value.is_finite()).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::super::EXPERIMENTS;
    use super::super::claims::{Judgement, judge};
    use super::super::testing::{FIGURE, results};
    use super::*;

    fn near(interval: Interval, value: f64) -> bool {
        interval.low <= interval.high
            && [interval.low, interval.high].iter().all(|v| (v / value - 1.0).abs() < 0.02)
    }

    /// glibc 10, pinned 30, jemalloc 20, and no run of the other arms.
    fn three(blocks: usize) -> Results {
        let of = |value: f64| vec![(FIGURE, value)];
        let arms = [("glibc", of(10.0)), ("pinned", of(30.0)), ("jemalloc", of(20.0))];
        results(&EXPERIMENTS[0], blocks, &arms)
    }

    #[test]
    fn figures_ratios_and_positions_have_intervals() {
        let results = three(6);
        let of = |name: &str| results.arm(name).unwrap();
        let (glibc, pinned, jemalloc) = (of("glibc"), of("pinned"), of("jemalloc"));
        assert_eq!((glibc, pinned, jemalloc), (0, 2, 3));
        assert_eq!(results.shown().collect::<Vec<_>>(), [0, 2, 3]);
        assert!(near(results.value(FIGURE, pinned).unwrap(), 30.0));
        assert!(near(results.ratio(FIGURE, glibc, glibc).unwrap(), 1.0));
        assert!(near(results.ratio(FIGURE, pinned, glibc).unwrap(), 3.0));
        assert!(near(results.ratio(FIGURE, glibc, pinned).unwrap(), 1.0 / 3.0));
        assert!(near(results.ratio(FIGURE, jemalloc, pinned).unwrap(), 2.0 / 3.0));
        assert!(near(results.between(FIGURE, jemalloc, glibc, pinned).unwrap(), 0.5));
    }

    #[test]
    fn too_few_blocks_have_points_but_no_intervals() {
        let results = three(2);
        assert_eq!(results.point(FIGURE, 2).map(f64::round), Some(30.0));
        for absent in [
            results.value(FIGURE, 2),
            results.ratio(FIGURE, 2, 0),
            results.ratio(FIGURE, 3, 2),
            results.between(FIGURE, 3, 0, 2),
        ] {
            assert_eq!(absent.unwrap_err().reason, Reason::TooLittle);
        }
        // The first arm runs twice in a block, and a block counts once.
        assert!(three(3).value(FIGURE, 0).is_err() && three(6).value(FIGURE, 0).is_ok());
    }

    #[test]
    fn a_block_counts_once_however_often_an_arm_runs_in_it() {
        let mut results = three(6);
        // Blocks differ tenfold, and the two runs of the first arm in a block do not differ.
        for block in &mut results.blocks {
            let scale = 10f64.powi(block.number as i32);
            for run in &mut block.runs {
                run.metrics.insert(FIGURE.to_owned(), Ok(scale));
            }
        }
        let [first, other] = [0, 2].map(|arm| results.value(FIGURE, arm).unwrap());
        assert_eq!(first, other);
        assert_eq!((first.low, first.high), (1.0, 1e5));
    }

    #[test]
    fn without_the_first_arm_every_claim_says_why() {
        let experiment = &EXPERIMENTS[0];
        let left_out = |arm: &Arm| LeftOut { arm: arm.name, why: "no python3".into() };
        let all = experiment.arms.iter().map(left_out).collect();
        let results = Results::without_runs(experiment, &Settings::quick(7), all);
        assert_eq!((results.shown().count(), results.point(FIGURE, 0)), (1, None));
        for judged in judge(&results) {
            assert!(matches!(judged.judgement, Judgement::CannotTest(why) if why.contains("no python3")));
        }
        // The same with runs.
        assert!(three(6).arm("glibc").is_ok());
    }

    #[test]
    fn a_line_of_a_bill_is_found_or_the_reason_is() {
        let mut results = three(6);
        let line = |share| Line { class: "throttled".into(), title: "throttled".into(), share };
        let half = Interval::new(0.4, 0.5, 0.6);
        let waits = |share| Bill { verdict: String::new(), on_cpu: vec![], off_cpu: vec![line(share)] };
        let unread = Absence::new(Reason::NotFound, "no cgroup");
        results.bills = BTreeMap::from([(0, Ok(waits(Ok(half)))), (2, Ok(waits(Err(unread.clone()))))]);
        let of = |arm: usize, class: &str| results.line(arm, |bill| &bill.off_cpu, class);
        assert_eq!((of(0, "throttled"), of(2, "throttled")), (Ok(half), Err(unread)));
        assert!(of(0, "gil").is_err() && of(3, "throttled").is_err());
        assert!(results.line(0, |bill| &bill.on_cpu, "throttled").is_err());
    }

    #[test]
    fn an_arm_that_did_not_run_and_one_that_is_not_proved_say_why() {
        let mut results = three(6);
        results.left_out.push(LeftOut { arm: "tcmalloc", why: "no such library".into() });
        let why = |results: &Results, name: &str| results.arm(name).unwrap_err().detail;
        assert!(why(&results, "tcmalloc").contains("no such library"));
        assert!(why(&results, "raised").contains("not asked for"));
        assert!(results.arm("jemalloc").is_ok());
        results.outcome.summaries[3].proof[0].state = ProofState::Refuted;
        assert!(why(&results, "jemalloc").contains("no proof"));
    }
}
