//! Runs of this program as the runs of a trial: each prints its result as JSON.

use allocwall_model::error::Result;
use allocwall_model::units::Measured;
use allocwall_trial::batch::{Close, Fresh, Prepared, Watcher, failure};
use allocwall_trial::conduct::{Ran, Subject};
use allocwall_trial::proof::Seen;
use allocwall_trial::run::{self, Start};
use allocwall_trial::{ProofItem, ProofState};
use serde::de::DeserializeOwned;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// The run needs some tens of milliseconds to set up before it measures.
const SETTING_UP: Duration = Duration::from_millis(20);

/// A run's figures by the key of the metric.
pub type Figures = BTreeMap<String, Measured<f64>>;

/// The result that a run prints.
pub trait Printed: DeserializeOwned {
    /// The key of the variant that ran.
    fn variant(&self) -> &str;
}

pub struct Once<'a, R> {
    pub arms: Vec<Prepared>,
    pub keeper_exe: PathBuf,
    pub interrupted: &'a AtomicBool,
    pub figures: Box<dyn Fn(&R) -> Figures + 'a>,
    /// The result of the last run.
    pub last: RefCell<Option<R>>,
}

impl<R: Printed> Fresh for Once<'_, R> {
    fn arms(&mut self) -> &mut [Prepared] {
        &mut self.arms
    }

    /// The process is inspected only before it measures: an inspection takes CPU time, and the run may use all its CPUs.
    fn once(&self, start: &Start, close: &Close) -> Result<(Ran, Seen)> {
        let mut running = run::start(start, &self.keeper_exe)?;
        let looks = close.start(running.family());
        let mut watcher = Watcher::of(&self.arms);
        watcher.sample_now(&running);
        std::thread::sleep(SETTING_UP);
        if running.exited().is_none() {
            watcher.sample_now(&running);
        }
        let finished = running.wait(close.stop(self.interrupted))?;
        let seen = watcher.seen(&finished, looks.finish());
        let mut failed = failure(&finished, &[]);
        let mut metrics = finished.metrics();
        match serde_json::from_slice::<R>(&finished.stdout.bytes) {
            Ok(result) => {
                metrics.extend((self.figures)(&result));
                *self.last.borrow_mut() = Some(result);
            }
            Err(error) => {
                failed.get_or_insert_with(|| format!("cannot read the result of the run: {error}"));
            }
        }
        let ran = Ran { metrics, failure: failed, ..Ran::default() };
        Ok((ran, seen))
    }
}

/// The runs of all arms as the subject of a trial.
pub struct Runs<'a, R> {
    pub once: Once<'a, R>,
    /// By arm: the key of the variant that must run.
    pub variants: Vec<&'static str>,
    /// The result of each run, with its arm, in the order of the runs; None if the run failed.
    pub results: Vec<(usize, Option<R>)>,
}

impl<R: Printed> Subject for Runs<'_, R> {
    fn run(&mut self, arm: usize) -> Result<Ran> {
        let mut ran = self.once.run(arm)?;
        let result = self.once.last.take();
        if let Some(result) = &result {
            let right = result.variant() == self.variants[arm];
            ran.proof.push(ProofItem {
                what: "variant".into(),
                state: if right { ProofState::Proven } else { ProofState::Refuted },
                detail: result.variant().to_owned(),
                needed: true,
                absent: None,
            });
        }
        self.results.push((arm, result));
        Ok(ran)
    }
}
