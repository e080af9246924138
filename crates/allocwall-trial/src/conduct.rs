//! Runs the blocks of a trial, one run after the other, in the planned order. Each finished block is saved. The trial ends early
//! if a look decides every primary comparison, or if the user interrupts.

use super::compare::{compare, decided, spread};
use super::journal::{Journal, Writer};
use super::load::Reading;
use super::{BASELINES, Block, Design, ProofItem, Run, plan};
use allocwall_host::clock;
use allocwall_model::error::{Error, Result};
use allocwall_model::units::Measured;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Blocks after which the time of a block and the noise of a run are known well enough for a plan.
pub const PILOT: usize = 4;
/// If the baseline failed in this many blocks in a row, the trial ends.
const FAILED_IN_A_ROW: usize = 3;

/// Something that can be run repeatedly; an arm is one way to start it.
pub trait Subject {
    /// # Errors
    /// Only errors that make further runs useless. A failed run is a `Ran` with its failure.
    fn run(&mut self, arm: usize) -> Result<Ran>;
}

/// One run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ran {
    pub metrics: BTreeMap<String, Measured<f64>>,
    pub failure: Option<String>,
    pub proof: Vec<ProofItem>,
    /// Figures that the command printed, with their units.
    pub readings: Vec<Reading>,
}

/// The length of a trial.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Length {
    Blocks(usize),
    /// As many blocks as fit.
    Budget(Duration),
    /// As many blocks as the design's effect needs, planned from a pilot; at most this time, if given.
    Effect(Option<Duration>),
}

/// What happens in a trial, for a display of its progress.
pub enum Event<'a> {
    /// A run is about to start: block and place from 0, the number of places, and the arm.
    RunStarts { block: usize, place: usize, places: usize, arm: usize },
    /// A block has been finished and saved. The comparison is left to the receiver, because it takes time.
    BlockFinished { design: &'a Design, blocks: &'a [Block] },
    /// The planned number of blocks, and the reason for it.
    Planned { blocks: usize, each_s: f64, why: String },
    /// The pilot is over: it shows the noise, and so what the planned blocks resolve. It does not show which arm is faster.
    NoiseKnown { design: &'a Design, blocks: &'a [Block] },
}

/// Why a trial ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// All planned blocks were run.
    Planned,
    /// A look decided every comparison of a primary metric.
    Decided,
    Interrupted,
    /// The time budget ended before the planned blocks.
    TimeOver,
    /// A later run could not be started: the error.
    Failed(String),
}

pub struct Conduct<'a> {
    pub subject: &'a mut dyn Subject,
    pub writer: &'a mut Writer,
    pub interrupted: &'a AtomicBool,
    pub on_event: &'a mut dyn FnMut(Event<'_>),
}

impl Conduct<'_> {
    /// Runs the blocks that are not in the journal yet. If the journal has a plan, the plan is kept and `length` only limits the
    /// time.
    pub fn run(&mut self, journal: &mut Journal, length: Length) -> Result<End> {
        let arms = journal.head.design.arms.len();
        let family = plan::family(arms, &journal.head.design.metrics);
        let began = clock::monotonic_ns();
        let before = journal.blocks.len();
        let spent = || (clock::monotonic_ns() - began) as f64 / 1e9;
        journal.planned |= matches!(length, Length::Blocks(_));
        let pilot = self.pilot(length, arms, family);
        let order = plan::order(arms, plan::MOST_BLOCKS, journal.head.design.settings.seed);
        loop {
            let done = journal.blocks.len();
            let own = done - before;
            if !journal.planned && own > 0 && done >= pilot {
                self.plan(journal, length, spent() / own as f64, own)?;
            }
            if let Some(end) = over(journal) {
                return Ok(end);
            }
            if journal.planned && own > 0 && done == pilot {
                let (design, blocks) = (&journal.head.design, &journal.blocks[..]);
                (self.on_event)(Event::NoiseKnown { design, blocks });
            }
            if let Length::Budget(budget) | Length::Effect(Some(budget)) = length
                && own > 0
                && spent() + spent() / own as f64 > budget.as_secs_f64() * plan::OVERRUN
            {
                return Ok(End::TimeOver);
            }
            if self.stopped() {
                return Ok(End::Interrupted);
            }
            let block = match self.block(done, &order[done]) {
                Ok(Some(block)) => block,
                Ok(None) => return Ok(End::Interrupted),
                // The finished blocks are still compared and reported.
                Err(error) if done > 0 => return Ok(End::Failed(error.to_string())),
                Err(error) => return Err(error),
            };
            self.writer.block(&block)?;
            journal.blocks.push(block);
            refuse_failing_baseline(&journal.blocks)?;
            (self.on_event)(Event::BlockFinished { design: &journal.head.design, blocks: &journal.blocks });
        }
    }

    fn pilot(&self, length: Length, arms: usize, family: usize) -> usize {
        match length {
            Length::Effect(_) => PILOT.max(plan::fewest_blocks(arms, family).min(2 * PILOT)),
            _ => PILOT,
        }
    }

    /// Plans the number of blocks and the looks, once, after the pilot. This process ran the last `own` blocks of the pilot. The
    /// plan does not depend on which arm was faster.
    fn plan(&mut self, journal: &mut Journal, length: Length, each_s: f64, own: usize) -> Result<()> {
        let blocks = &journal.blocks;
        let design = &mut journal.head.design;
        let arms = design.arms.len();
        let family = plan::family(arms, &design.metrics);
        let earlier_s = (blocks.len() - own) as f64 * each_s;
        let fitting = |budget: Duration| {
            let spent_s = blocks.len() as f64 * each_s;
            plan::for_budget(earlier_s + budget.as_secs_f64(), blocks.len(), spent_s, arms, family)
        };
        let (count, why) = match length {
            Length::Blocks(count) => (count, String::new()),
            Length::Budget(budget) => {
                let fits = fitting(budget);
                let why = match fits.short_of {
                    Some(fewest) => {
                        format!("too few for a result, which needs at least {fewest}: use a longer --budget")
                    }
                    None => "as many as fit the budget".to_owned(),
                };
                (fits.blocks, why)
            }
            Length::Effect(budget) => {
                let percent = design.settings.effect * 100.0;
                let needed = design
                    .metrics
                    .iter()
                    .filter(|m| m.primary)
                    .map(|m| {
                        plan::blocks_for(
                            design.settings.effect,
                            spread(design, blocks, &m.key)?,
                            arms,
                            family,
                        )
                    })
                    .collect::<Option<Vec<_>>>()
                    .and_then(|needed| needed.into_iter().max());
                let most = budget.map_or(plan::MOST_BLOCKS, |b| fitting(b).blocks);
                match needed {
                    Some(needed) if needed <= most => {
                        (needed, format!("enough to detect a change of {percent:.1} % in 9 of 10 trials"))
                    }
                    Some(needed) => (
                        most,
                        format!("the limit; detecting a change of {percent:.1} % needs {needed} blocks"),
                    ),
                    // It is unknown whether more blocks would help.
                    None => (
                        plan::default_blocks(arms, family).min(most),
                        format!(
                            "the default without --effect, because the pilot does not show how many blocks detect {percent:.1} %"
                        ),
                    ),
                }
            }
        };
        let count = count.clamp(blocks.len(), plan::MOST_BLOCKS);
        design.settings.planned = count;
        design.settings.looks = plan::looks(count, arms, family);
        self.writer.plan(design)?;
        journal.planned = true;
        (self.on_event)(Event::Planned { blocks: count, each_s, why });
        Ok(())
    }

    /// Runs one block. None if it was interrupted: an incomplete block is not used.
    fn block(&mut self, number: usize, order: &[usize]) -> Result<Option<Block>> {
        let mut runs = Vec::with_capacity(order.len());
        for (place, &arm) in order.iter().enumerate() {
            (self.on_event)(Event::RunStarts { block: number, place, places: order.len(), arm });
            let started_unix_ms = clock::unix_ms();
            let ran = self.subject.run(arm);
            if self.stopped() {
                return Ok(None);
            }
            let ran = ran?;
            runs.push(Run {
                block: number,
                place,
                arm,
                started_unix_ms,
                metrics: ran.metrics,
                failure: ran.failure,
                proof: ran.proof,
            });
        }
        Ok(Some(Block { number, runs }))
    }

    fn stopped(&self) -> bool {
        // Relaxed: the flag protects no other data.
        self.interrupted.load(Ordering::Relaxed)
    }
}

/// Why the trial is complete; None if it has more blocks to run.
pub fn over(journal: &Journal) -> Option<End> {
    let (design, done) = (&journal.head.design, journal.blocks.len());
    let looked = || design.settings.looks.contains(&done);
    match journal.planned {
        true if done >= design.settings.planned => Some(End::Planned),
        true if looked() && decided(&compare(design, &journal.blocks)) => Some(End::Decided),
        // Also without a plan: no plan has more blocks.
        _ if done >= plan::MOST_BLOCKS => Some(End::Planned),
        _ => None,
    }
}

fn refuse_failing_baseline(blocks: &[Block]) -> Result<()> {
    if blocks.len() < FAILED_IN_A_ROW {
        return Ok(());
    }
    let failure = |block: &Block| {
        let mut baseline = block.runs.iter().filter(|run| run.arm < BASELINES);
        let first = baseline.next()?.failure.clone()?;
        baseline.all(|run| run.failure.is_some()).then_some(first)
    };
    let last = &blocks[blocks.len() - FAILED_IN_A_ROW..];
    match last.iter().map(failure).collect::<Option<Vec<String>>>() {
        Some(failures) => Err(Error::Refused(format!(
            "the command fails without any remedy, in {FAILED_IN_A_ROW} blocks in a row: {}",
            failures[FAILED_IN_A_ROW - 1]
        ))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::journal::{self, Head};
    use super::super::{ArmInfo, Direction, Metric, Outcome, ProofState, Settings, TrialResult, Unit};
    use super::*;

    /// Arms with these run times, times a noise that depends only on the number of the run.
    struct Fake {
        times: Vec<f64>,
        turns: usize,
        stop_after: usize,
        stop: &'static AtomicBool,
        fails: bool,
    }

    impl Subject for Fake {
        fn run(&mut self, arm: usize) -> Result<Ran> {
            self.turns += 1;
            if self.turns >= self.stop_after {
                self.stop.store(true, Ordering::Relaxed);
            }
            let noise = 1.0 + 1e-4 * ((self.turns * 7919) % 101) as f64;
            Ok(Ran {
                metrics: BTreeMap::from([("wall_s".to_owned(), Ok(self.times[arm] * noise))]),
                failure: self.fails.then(|| "exit status 3".to_owned()),
                proof: vec![ProofItem {
                    what: "it".into(),
                    state: ProofState::Proven,
                    detail: String::new(),
                    needed: true,
                    absent: None,
                }],
                readings: vec![],
            })
        }
    }

    fn head(arms: usize, planned: usize) -> Head {
        let arms: Vec<ArmInfo> = (0..arms)
            .map(|n| ArmInfo {
                name: format!("arm {n}"),
                baseline: n < BASELINES,
                predicted: BTreeMap::new(),
            })
            .collect();
        let metrics = vec![Metric {
            key: "wall_s".into(),
            title: "wall time".into(),
            unit: Unit::Seconds,
            direction: Direction::LowerIsBetter,
            primary: true,
        }];
        let family = plan::family(arms.len(), &metrics);
        Head {
            version: journal::VERSION,
            tool_version: String::new(),
            started_unix_ms: 0,
            command: vec![],
            options: serde_json::Value::Null,
            design: Design {
                left_out: vec![],
                settings: Settings {
                    seed: 7,
                    effect: 0.01,
                    planned,
                    looks: plan::looks(planned, arms.len(), family),
                },
                arms,
                metrics,
            },
            rates: vec![],
            proof: BTreeMap::new(),
            machine: vec![],
            origin: None,
        }
    }

    fn conduct(
        times: &[f64],
        planned: usize,
        length: Length,
        stop_after: usize,
        fails: bool,
    ) -> Result<(TrialResult, End)> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t");
        drop(Writer::create(&path, &head(times.len(), planned))?);
        go_on(&path, times, length, stop_after, fails)
    }

    fn go_on(
        path: &std::path::Path,
        times: &[f64],
        length: Length,
        stop_after: usize,
        fails: bool,
    ) -> Result<(TrialResult, End)> {
        let stop: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
        let mut fake = Fake { times: times.to_vec(), turns: 0, stop_after, stop, fails };
        let mut journal = journal::read(path)?;
        let mut writer = Writer::append_to(path)?;
        let mut conduct =
            Conduct { subject: &mut fake, writer: &mut writer, interrupted: stop, on_event: &mut |_| {} };
        let end = conduct.run(&mut journal, length)?;
        let saved = journal::read(path)?;
        assert_eq!((&saved.head, &saved.blocks), (&journal.head, &journal.blocks));
        Ok((compare(&journal.head.design, &journal.blocks), end))
    }

    const FOREVER: usize = usize::MAX;

    #[test]
    fn a_large_effect_ends_the_trial_at_a_look() {
        let (outcome, end) = conduct(&[1.0, 1.0, 0.5], 40, Length::Blocks(40), FOREVER, false).unwrap();
        assert_eq!((end, outcome.comparisons[0].outcome), (End::Decided, Outcome::Better));
        assert!(outcome.blocks < 40);
        let (outcome, end) = conduct(&[1.0, 1.0, 1.0], 12, Length::Blocks(12), FOREVER, false).unwrap();
        assert_ne!(end, End::Interrupted);
        assert!(matches!(outcome.comparisons[0].outcome, Outcome::Equivalent | Outcome::Unresolved));
    }

    #[test]
    fn an_interruption_keeps_only_the_finished_blocks() {
        let (outcome, end) = conduct(&[1.0, 1.0, 0.5], 12, Length::Blocks(12), 5, false).unwrap();
        assert_eq!((end, outcome.blocks), (End::Interrupted, 1));
        assert_eq!(outcome.comparisons[0].outcome, Outcome::Unresolved);
    }

    #[test]
    fn a_baseline_that_always_fails_ends_the_trial_with_its_reason() {
        let error = conduct(&[1.0, 1.0, 0.5], 12, Length::Blocks(12), FOREVER, true).unwrap_err();
        assert!(error.to_string().contains("exit status 3"), "{error}");
    }

    #[test]
    fn a_continued_trial_keeps_its_plan_or_makes_one() {
        let dir = tempfile::tempdir().unwrap();
        let same = [1.0, 1.0, 1.0];
        // Interrupted within the pilot: three blocks of three runs, and a part of the fourth.
        let cut = dir.path().join("cut");
        drop(Writer::create(&cut, &head(3, 12)).unwrap());
        let hour = Length::Budget(Duration::from_secs(3600));
        let (outcome, end) = go_on(&cut, &same, hour, 11, false).unwrap();
        assert_eq!((outcome.blocks, end), (3, End::Interrupted));
        let (outcome, _) = go_on(&cut, &same, hour, 40, false).unwrap();
        assert!(outcome.design.settings.planned > 12, "as many as fit an hour");
        let plan = outcome.design.settings;
        // Another budget does not change the plan, and a complete trial runs no more blocks.
        let minute = Length::Budget(Duration::from_secs(60));
        let (outcome, _) = go_on(&cut, &same, minute, 30, false).unwrap();
        assert_eq!(outcome.design.settings, plan);
        let done = dir.path().join("done");
        drop(Writer::create(&done, &head(3, 4)).unwrap());
        go_on(&done, &same, Length::Blocks(4), FOREVER, false).unwrap();
        let (outcome, end) = go_on(&done, &same, Length::Blocks(4), FOREVER, true).unwrap();
        assert_eq!((outcome.blocks, end), (4, End::Planned));
    }

    #[test]
    fn no_trial_has_more_blocks_than_the_largest_plan() {
        for done in [plan::MOST_BLOCKS - 1, plan::MOST_BLOCKS] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("t");
            let mut writer = Writer::create(&path, &head(2, 12)).unwrap();
            for number in 0..done {
                writer.block(&Block { number, runs: vec![] }).unwrap();
            }
            drop(writer);
            let hour = Length::Budget(Duration::from_secs(3600));
            let (outcome, end) = go_on(&path, &[1.0; 2], hour, FOREVER, false).unwrap();
            assert_eq!((outcome.blocks, end), (plan::MOST_BLOCKS, End::Planned));
        }
    }

    #[test]
    fn an_effect_is_planned_from_the_pilot() {
        let (outcome, _) = conduct(&[1.0, 1.0, 1.03], 12, Length::Effect(None), FOREVER, false).unwrap();
        assert_eq!(outcome.comparisons[0].outcome, Outcome::Worse);
        assert!(outcome.design.settings.planned >= PILOT);
    }

    #[test]
    fn if_the_pilot_shows_no_noise_the_plan_is_the_default() {
        // Values of zero have no relative change, hence no noise for a plan.
        let planned = |times: &[f64], length| {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("t");
            drop(Writer::create(&path, &head(3, 12)).unwrap());
            let mut journal = journal::read(&path).unwrap();
            let mut said = String::new();
            let stop: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
            Conduct {
                subject: &mut Fake {
                    times: times.to_vec(),
                    turns: 0,
                    stop_after: FOREVER,
                    stop,
                    fails: false,
                },
                writer: &mut Writer::append_to(&path).unwrap(),
                interrupted: stop,
                on_event: &mut |event| {
                    if let Event::Planned { why, .. } = event {
                        said = why;
                    }
                },
            }
            .run(&mut journal, length)
            .unwrap();
            (journal.head.design.settings.planned, said)
        };
        let (blocks, why) = planned(&[0.0; 3], Length::Effect(None));
        assert_eq!(blocks, plan::default_blocks(3, 1));
        assert!(why.contains("--effect"), "{why}");
        // A budget for more blocks does not change the plan.
        let (blocks, _) = planned(&[0.0; 3], Length::Effect(Some(Duration::from_secs(3600))));
        assert_eq!(blocks, plan::default_blocks(3, 1));
        let (_, why) = planned(&[1.0; 3], Length::Effect(None));
        assert!(!why.contains("--effect") && why.contains(" %"), "{why}");
    }
}
