//! The blocks of a trial, one run after the other: in the planned order, saved as they are finished, looked at when that was
//! planned, ended early where everything is decided or somebody asks for it.

use super::compare::{compare, decided, spread};
use super::journal::{Head, Writer};
use super::load::Reading;
use super::{BASELINES, Block, Outcome, ProofItem, Run, plan};
use crate::error::{Error, Result};
use crate::host::clock;
use crate::units::Measured;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Blocks from which the time a block takes, or the noise of a run, is known well enough to plan by.
const PILOT: usize = 4;
/// A baseline that failed so often in a row won't mend itself.
const HOPELESS: usize = 3;

/// What can be run again and again: an arm is how it is started.
pub trait Subject {
    /// # Errors
    /// Only what makes further runs pointless; a run that fails is a `Ran` with its failure.
    fn run(&mut self, arm: usize) -> Result<Ran>;
}

/// One run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ran {
    pub metrics: BTreeMap<String, Measured<f64>>,
    pub failure: Option<String>,
    pub proof: Vec<ProofItem>,
    /// Figures that it told of itself, with their units.
    pub readings: Vec<Reading>,
}

/// How long a trial may become.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Length {
    Blocks(usize),
    /// As many blocks as fit.
    Budget(Duration),
    /// As many as find the design's effect, planned from a pilot; at most so long where that is given.
    Effect(Option<Duration>),
}

/// What is told while a trial runs.
pub enum Told<'a> {
    /// A run is about to start: block and place from 0, of so many places.
    Starts {
        block: usize,
        place: usize,
        places: usize,
    },
    /// A block has been finished and saved.
    Finished { outcome: &'a Outcome, planned: usize },
    /// How many blocks there will be, and why.
    Planned { blocks: usize, each_s: f64, why: String },
}

/// Why a trial ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// All planned blocks were run.
    Planned,
    /// Every comparison that the trial is about was decided at a look.
    Decided,
    Interrupted,
    /// The time was over before the blocks were.
    TimeOver,
}

pub struct Conduct<'a> {
    pub subject: &'a mut dyn Subject,
    pub writer: &'a mut Writer,
    pub interrupted: &'a AtomicBool,
    pub told: &'a mut dyn FnMut(Told<'_>),
}

impl Conduct<'_> {
    /// Runs the blocks that are missing to `length`, after those that are done.
    pub fn run(
        &mut self,
        head: &mut Head,
        mut blocks: Vec<Block>,
        length: Length,
    ) -> Result<(Vec<Block>, End)> {
        let arms = head.design.arms.len();
        let family = plan::family(arms, &head.design.metrics);
        let began = clock::monotonic_ns();
        let before = blocks.len();
        let spent = || (clock::monotonic_ns() - began) as f64 / 1e9;
        let mut planned = match length {
            Length::Blocks(_) => true,
            // A trial that is continued keeps its plan.
            Length::Budget(_) | Length::Effect(_) => before > 0,
        };
        let order = plan::order(
            arms,
            plan::MOST_BLOCKS.max(head.design.settings.planned + 1),
            head.design.settings.seed,
        );
        let end = loop {
            if !planned && blocks.len() >= self.pilot(length, arms, family) {
                self.plan(head, &blocks, length, spent())?;
                planned = true;
            }
            let settings = &head.design.settings;
            if planned && blocks.len() >= settings.planned {
                break End::Planned;
            }
            if planned && settings.looks.contains(&blocks.len()) && decided(&compare(&head.design, &blocks)) {
                break End::Decided;
            }
            if let Length::Budget(budget) | Length::Effect(Some(budget)) = length
                && blocks.len() > before
                && spent() + spent() / (blocks.len() - before) as f64 > budget.as_secs_f64() * 1.05
            {
                break End::TimeOver;
            }
            if self.stopped() {
                break End::Interrupted;
            }
            let Some(block) = self.block(blocks.len(), &order[blocks.len()])? else {
                break End::Interrupted;
            };
            self.writer.block(&block)?;
            blocks.push(block);
            hopeless(&blocks)?;
            (self.told)(Told::Finished {
                outcome: &compare(&head.design, &blocks),
                planned: head.design.settings.planned,
            });
        };
        Ok((blocks, end))
    }

    fn pilot(&self, length: Length, arms: usize, family: usize) -> usize {
        match length {
            Length::Effect(_) => PILOT.max(plan::fewest_blocks(arms, family).min(2 * PILOT)),
            _ => PILOT,
        }
    }

    /// Once, after the pilot: how many blocks, and when to look. Neither depends on which arm was faster.
    fn plan(&mut self, head: &mut Head, blocks: &[Block], length: Length, spent_s: f64) -> Result<()> {
        let design = &mut head.design;
        let arms = design.arms.len();
        let family = plan::family(arms, &design.metrics);
        let each_s = spent_s / blocks.len() as f64;
        let fitting =
            |budget: Duration| plan::for_budget(budget.as_secs_f64(), blocks.len(), spent_s, arms, family);
        let (count, why) = match length {
            Length::Blocks(count) => (count, String::new()),
            Length::Budget(budget) => {
                let fits = fitting(budget);
                let why = match fits.short_of {
                    Some(fewest) => {
                        format!("no word is possible with fewer than {fewest}: give it more time")
                    }
                    None => "what fits the budget".to_owned(),
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
                        (needed, format!("to find {percent:.1} % with nine chances in ten"))
                    }
                    Some(needed) => (most, format!("finding {percent:.1} % would take {needed}")),
                    None => (
                        most,
                        format!("the pilot doesn't tell how many find {percent:.1} %"),
                    ),
                }
            }
        };
        let count = count.clamp(blocks.len(), plan::MOST_BLOCKS);
        design.settings.planned = count;
        design.settings.looks = plan::looks(count, arms, family);
        self.writer.plan(design)?;
        (self.told)(Told::Planned {
            blocks: count,
            each_s,
            why,
        });
        Ok(())
    }

    /// One block; None where it was interrupted, since a part of a block compares nothing.
    fn block(&mut self, number: usize, order: &[usize]) -> Result<Option<Block>> {
        let mut runs = Vec::with_capacity(order.len());
        for (place, &arm) in order.iter().enumerate() {
            (self.told)(Told::Starts {
                block: number,
                place,
                places: order.len(),
            });
            let started_unix_ms = clock::unix_ms();
            let ran = self.subject.run(arm)?;
            if self.stopped() {
                return Ok(None);
            }
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
        // Relaxed: the flag carries nothing but itself.
        self.interrupted.load(Ordering::Relaxed)
    }
}

fn hopeless(blocks: &[Block]) -> Result<()> {
    if blocks.len() < HOPELESS {
        return Ok(());
    }
    let failure = |block: &Block| {
        let mut baseline = block.runs.iter().filter(|run| run.arm < BASELINES);
        let first = baseline.next()?.failure.clone()?;
        baseline.all(|run| run.failure.is_some()).then_some(first)
    };
    let last = &blocks[blocks.len() - HOPELESS..];
    match last.iter().map(failure).collect::<Option<Vec<String>>>() {
        Some(failures) => Err(Error::Refused(format!(
            "the command fails without any remedy, in {HOPELESS} blocks on end: {}",
            failures[HOPELESS - 1]
        ))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ArmInfo, Design, Direction, Metric, ProofState, Settings, Unit, Word, journal};
    use super::*;

    /// Arms of these run times, with noise that is the same for all arms of a block's turn.
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
            options: vec![],
            design: Design {
                settings: Settings {
                    seed: 7,
                    effect: 0.01,
                    planned,
                    looks: plan::looks(planned, arms.len(), family),
                },
                arms,
                metrics,
            },
            proof: BTreeMap::new(),
            machine: vec![],
        }
    }

    fn conduct(
        times: &[f64],
        planned: usize,
        length: Length,
        stop_after: usize,
        fails: bool,
    ) -> Result<(Outcome, End)> {
        let stop: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
        let mut fake = Fake {
            times: times.to_vec(),
            turns: 0,
            stop_after,
            stop,
            fails,
        };
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t");
        let mut head = head(times.len(), planned);
        let mut writer = Writer::create(&path, &head)?;
        let mut conduct = Conduct {
            subject: &mut fake,
            writer: &mut writer,
            interrupted: stop,
            told: &mut |_| {},
        };
        let (blocks, end) = conduct.run(&mut head, vec![], length)?;
        let saved = journal::read(&path)?;
        assert_eq!((&saved.head.design, &saved.blocks), (&head.design, &blocks));
        Ok((compare(&head.design, &blocks), end))
    }

    const FOREVER: usize = usize::MAX;

    #[test]
    fn a_large_effect_ends_it_at_a_look_and_none_runs_to_the_plan() {
        let (outcome, end) = conduct(&[1.0, 1.0, 0.5], 40, Length::Blocks(40), FOREVER, false).unwrap();
        assert_eq!((end, outcome.comparisons[0].word), (End::Decided, Word::Better));
        assert!(outcome.blocks < 40);
        let (outcome, end) = conduct(&[1.0, 1.0, 1.0], 12, Length::Blocks(12), FOREVER, false).unwrap();
        assert_ne!(end, End::Interrupted);
        assert!(matches!(
            outcome.comparisons[0].word,
            Word::Equivalent | Word::Unresolved
        ));
    }

    #[test]
    fn an_interruption_keeps_the_finished_blocks_alone() {
        let (outcome, end) = conduct(&[1.0, 1.0, 0.5], 12, Length::Blocks(12), 5, false).unwrap();
        assert_eq!((end, outcome.blocks), (End::Interrupted, 1));
        assert_eq!(outcome.comparisons[0].word, Word::Unresolved);
    }

    #[test]
    fn a_baseline_that_always_fails_ends_it_with_its_reason() {
        let error = conduct(&[1.0, 1.0, 0.5], 12, Length::Blocks(12), FOREVER, true).unwrap_err();
        assert!(error.to_string().contains("exit status 3"), "{error}");
    }

    #[test]
    fn an_effect_is_planned_from_the_pilot() {
        let (outcome, _) = conduct(&[1.0, 1.0, 1.03], 12, Length::Effect(None), FOREVER, false).unwrap();
        assert_eq!(outcome.comparisons[0].word, Word::Worse);
        assert!(outcome.design.settings.planned >= PILOT);
    }
}
