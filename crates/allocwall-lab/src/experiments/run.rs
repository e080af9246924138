//! All runs of an experiment: the arms that this machine has, their blocks, and the bill of each arm.

use super::bill::{Bill, Walls};
use super::results::{LeftOut, Results};
use super::series::Series;
use super::task::{RunResult, Spec, figures};
use super::{Arm, Experiment, Settings, with_baseline};
use crate::runs::{Once, Runs};
use allocwall_host::clock::monotonic_ns;
use allocwall_model::catalogue::modules::AllocatorKind;
use allocwall_model::error::Error;
use allocwall_model::units::{Absence, Measured, Reason};
use allocwall_trial::account::Room;
use allocwall_trial::arm::{Arm as Remedies, Inventory, TargetFacts};
use allocwall_trial::batch::{Fresh, Prepared, failure, last_words};
use allocwall_trial::compare::compare;
use allocwall_trial::conduct::{End, Event};
use allocwall_trial::run::{self, Output, Start};
use allocwall_trial::{BASELINES, session};
use anyhow::{Context, bail};
use serde_json::Value;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The hidden verb of `allocwall bench` for one run.
pub const VERB: &str = "experiment-run";

/// Length of the timed part of a full run.
const TIMED_S: f64 = 1.0;
/// Time limit of a run, in addition to its timed part.
const RUN_LIMIT: Duration = Duration::from_secs(60);
/// Limit for a run's output, which holds its histograms: some ten kilobytes.
const LONGEST_RESULT: usize = 8 << 20;
/// Limit for a diagnosis: some hundred kilobytes.
const LONGEST_DIAGNOSIS: usize = 32 << 20;
/// Time limit of a diagnosis, in addition to its window.
const DIAGNOSIS_LIMIT: Duration = Duration::from_secs(60);
/// Time that the run of a bill has after the window, at most. It is ended when the diagnosis is done.
pub(super) const SPARE: Duration = Duration::from_secs(30);
/// Time for a run that is ended early to remove what it made outside its process.
const GRACE: Duration = Duration::from_secs(1);
/// Pause between two checks whether the timed part of a run has begun.
const GLANCE: Duration = Duration::from_millis(10);
/// Why an arm is left out that runs only in a full run. It is no news, so no message says it while the experiment runs.
const NOT_QUICK: &str = "not with --quick, unless --arms names it";
/// Prefixes of variables that would change malloc in the arm without remedies, and in the others. They are removed.
const TAKEN_AWAY: [&str; 5] = ["LD_PRELOAD", "GLIBC_TUNABLES", "MALLOC_", "MIMALLOC_", "TCMALLOC_"];

/// Messages while an experiment runs.
pub trait Talk {
    fn note(&self, line: &str);
    fn warn(&self, line: &str);
    /// What runs now; it replaces the last such line.
    fn progress(&self, line: &str);
}

/// Where experiments run.
pub struct Bench<'a> {
    /// This program. Each run is a process of it.
    pub program: &'a Path,
    pub inventory: &'a Inventory,
    pub environment: Vec<(OsString, OsString)>,
    /// A temporary folder.
    pub folder: &'a Path,
    pub interrupted: &'a AtomicBool,
    pub talk: &'a dyn Talk,
}

/// The arms that can run here, each with its start, and the others.
struct Chosen {
    arms: Vec<&'static Arm>,
    prepared: Vec<Prepared>,
    left_out: Vec<LeftOut>,
}

impl Bench<'_> {
    /// None if it was interrupted before the end of its first block.
    ///
    /// # Errors
    /// One line: the first arm cannot run here, or a file cannot be written.
    pub fn measure(
        &self,
        experiment: &'static Experiment,
        settings: &Settings,
    ) -> anyhow::Result<Option<Results>> {
        let Chosen { arms, prepared, left_out } = self.choose(experiment, settings)?;
        for LeftOut { arm, why } in left_out.iter().filter(|left_out| left_out.why != NOT_QUICK) {
            self.talk.note(&format!("{}: the arm {arm} is left out: {why}", experiment.name));
        }
        if arms.is_empty() {
            return Ok(Some(Results::without_runs(experiment, settings, left_out)));
        }
        let arms = with_baseline(&arms);
        let mut once: Once<'_, RunResult> = Once {
            arms: session::equalised(with_baseline(&prepared)),
            keeper_exe: self.program.to_owned(),
            interrupted: self.interrupted,
            figures: Box::new(figures),
            last: RefCell::new(None),
        };
        let folder = self.folder.join(experiment.name);
        std::fs::create_dir(&folder).with_context(|| folder.display().to_string())?;
        let first = once.prove(&Room::new(&folder), self.interrupted, |arm| {
            let name = arms[arm].name;
            self.talk.progress(&format!("{}: first run of {name}, not counted", experiment.name));
        })?;
        if self.stopped() {
            return Ok(None);
        }
        for (nth, ran) in first.iter().enumerate() {
            let name = arms[nth].name;
            match (session::problem(ran), &ran.failure) {
                (_, Some(failure)) if nth < BASELINES => bail!("{name}: {failure}"),
                (Some(why), _) => self.talk.warn(&format!("{}, {name}: {why}", experiment.name)),
                (None, _) => {}
            }
        }
        once.last.take();

        let design = experiment.design(&arms, settings);
        let planned = design.settings.planned;
        let head = session::head(vec![format!("allocwall bench {}", experiment.name)], design, &first);
        let variants = arms.iter().map(|arm| arm.variant).collect();
        let mut runs = Runs { once, variants, results: vec![] };
        let mut on_event = |event: Event<'_>| {
            if let Event::RunStarts { block, place, places, .. } = event {
                let (block, run) = (block + 1, place + 1);
                let name = experiment.name;
                self.talk.progress(&format!("{name}: block {block} of {planned}, run {run} of {places}"));
            }
        };
        let path = folder.join("blocks.trial");
        let (journal, end) = session::run_planned(head, &path, &mut runs, self.interrupted, &mut on_event)?;
        match end {
            End::Interrupted if journal.blocks.is_empty() => return Ok(None),
            End::Interrupted => {
                let done = journal.blocks.len();
                self.talk.note(&format!("{}: interrupted after {done} of {planned} blocks", experiment.name));
            }
            End::Failed(why) => self.talk.warn(&format!("{} stopped early: {why}", experiment.name)),
            End::Planned | End::Decided | End::TimeOver => {}
        }
        // Results of an unfinished block are left out, like its runs.
        runs.results.truncate(journal.blocks.len() * arms.len());
        let (bills, walls) = self.bills(experiment, settings, &runs.once.arms, &arms, &folder);
        let series = self.series(experiment, settings, &runs.once.arms, &arms, &folder);
        Ok(Some(Results {
            experiment,
            settings: settings.clone(),
            left_out,
            outcome: compare(&journal.head.design, &journal.blocks),
            bills,
            walls,
            series,
            blocks: journal.blocks,
            runs: runs.results,
            arms,
        }))
    }

    fn choose(&self, experiment: &'static Experiment, settings: &Settings) -> anyhow::Result<Chosen> {
        let taken = |name: &OsString| {
            TAKEN_AWAY.iter().any(|start| name.as_encoded_bytes().starts_with(start.as_bytes()))
        };
        let (away, environment): (Vec<_>, Vec<_>) =
            self.environment.iter().cloned().partition(|(name, _)| taken(name));
        let wanted = experiment.wanted(&settings.arms);
        let mut facts =
            TargetFacts::of(&self.command(&spec(experiment, wanted[0], settings))?, &environment)?;
        if let Some(other) = facts.last().and_then(|program| program.allocator_kind())
            && other != AllocatorKind::Glibc
        {
            bail!(
                "the arms are compared with glibc's malloc, but this build of allocwall uses {}",
                other.title()
            );
        }
        let mut chosen = Chosen { arms: vec![], prepared: vec![], left_out: vec![] };
        for &arm in &wanted {
            if !settings.include(arm) {
                chosen.left_out.push(LeftOut { arm: arm.name, why: NOT_QUICK.into() });
                continue;
            }
            if let Some(Err(absence)) = experiment.check.map(|check| check(arm, settings)) {
                let left_out = |arm: &Arm| LeftOut { arm: arm.name, why: absence.to_string() };
                if chosen.arms.is_empty() {
                    // The other arms are compared with this one.
                    chosen.left_out = wanted.iter().map(|arm| left_out(arm)).collect();
                    break;
                }
                chosen.left_out.push(left_out(arm));
                continue;
            }
            let spec = spec(experiment, arm, settings);
            facts.command = self.command(&spec)?;
            let applied = match Remedies::parse(arm.with)?.resolve(self.inventory, &facts) {
                Ok(applied) => applied,
                Err(refusal) if chosen.arms.is_empty() => return Err(refusal.into()),
                Err(refusal) => {
                    chosen.left_out.push(LeftOut { arm: arm.name, why: refusal.to_string() });
                    continue;
                }
            };
            for note in &applied.notes {
                self.talk.warn(&format!("{}, {}: {note}", experiment.name, arm.name));
            }
            let limit = RUN_LIMIT + Duration::from_secs_f64(spec.timed_s);
            let base = Start {
                stdout: Output::Keep(LONGEST_RESULT),
                grace: GRACE,
                env: away.iter().map(|(name, _)| (name.clone(), None)).collect(),
                ..Start::new(facts.command.clone(), limit)
            };
            chosen.prepared.push(Prepared::of(&base, &applied));
            chosen.arms.push(arm);
        }
        Ok(chosen)
    }

    fn command(&self, spec: &Spec) -> anyhow::Result<Vec<OsString>> {
        let spec = serde_json::to_string(spec)?;
        Ok(vec![self.program.as_os_str().to_owned(), "bench".into(), VERB.into(), spec.into()])
    }

    fn stopped(&self) -> bool {
        // Relaxed: the flag guards no other data.
        self.interrupted.load(Ordering::Relaxed)
    }

    /// The bill of each arm that is shown, and the walls that its verdict names, from one more run of it. These runs are not timed:
    /// the recorder disturbs them.
    fn bills(
        &self,
        experiment: &Experiment,
        settings: &Settings,
        prepared: &[Prepared],
        arms: &[&'static Arm],
        folder: &Path,
    ) -> (BTreeMap<usize, Measured<Bill>>, BTreeMap<usize, Walls>) {
        let (mut bills, mut named) = (BTreeMap::new(), BTreeMap::new());
        let Some(window) = settings.bill.filter(|_| !experiment.has_series()) else { return (bills, named) };
        let shown = (0..arms.len()).filter(|nth| *nth == 0 || *nth >= BASELINES);
        for nth in shown {
            if self.stopped() {
                break;
            }
            let arm = arms[nth];
            self.talk.progress(&format!("{}: bill of {}", experiment.name, arm.name));
            let file = folder.join(format!("{nth}.allocwall"));
            let bill = self
                .watched(experiment, settings, arm, &prepared[nth], window)
                .and_then(|start| self.bill(&start, window, &file));
            let bill = bill.map(|(bill, walls)| {
                named.insert(nth, walls);
                bill
            });
            bills.insert(nth, bill);
        }
        (bills, named)
    }

    /// A series of windows over one more run of each arm that is shown, if a claim is about it.
    fn series(
        &self,
        experiment: &Experiment,
        settings: &Settings,
        prepared: &[Prepared],
        arms: &[&'static Arm],
        folder: &Path,
    ) -> BTreeMap<usize, Measured<Series>> {
        let mut all = BTreeMap::new();
        let Some(plan) = settings.series().filter(|_| experiment.has_series()) else { return all };
        for nth in (0..arms.len()).filter(|nth| *nth == 0 || *nth >= BASELINES) {
            if self.stopped() {
                break;
            }
            self.talk.progress(&format!("{}: series of {}", experiment.name, arms[nth].name));
            let series = self
                .watched(experiment, settings, arms[nth], &prepared[nth], plan.length())
                .and_then(|start| self.diagnose(&start, plan.length(), &plan.options(), folder))
                .and_then(|document| Series::of(&document));
            all.insert(nth, series);
        }
        all
    }

    /// The start of one more run of an arm, for a diagnosis of this length.
    fn watched(
        &self,
        experiment: &Experiment,
        settings: &Settings,
        arm: &Arm,
        prepared: &Prepared,
        length: Duration,
    ) -> Measured<Start> {
        let timed_s = (length + SPARE).as_secs_f64();
        let spec = Spec { timed_s, announce: true, ..spec(experiment, arm, settings) };
        let command =
            self.command(&spec).map_err(|error| Absence::new(Reason::NotFound, error.to_string()))?;
        Ok(Start { command, limit: RUN_LIMIT + length + SPARE, ..prepared.start.clone() })
    }

    /// The bill and the walls of a run.
    fn bill(&self, start: &Start, window: Duration, file: &Path) -> Measured<(Bill, Walls)> {
        let options: [OsString; 4] =
            ["-d".into(), format!("{}ms", window.as_millis()).into(), "-o".into(), file.into()];
        let document = self.diagnose(start, window, &options, file.parent().unwrap_or(file));
        // Some megabytes that nothing reads.
        let _ = std::fs::remove_file(file);
        let document = document?;
        Ok((Bill::of(&document)?, Walls::of(&document)))
    }

    /// Starts a run, waits until its timed part has begun, diagnoses it with this program, and ends it. Recordings without a name of
    /// their own are kept below `state`.
    fn diagnose(
        &self,
        start: &Start,
        length: Duration,
        options: &[OsString],
        state: &Path,
    ) -> Measured<Value> {
        let absent = |error: Error| Absence::new(Reason::NotFound, error.to_string());
        let mut running = run::start(start, self.program).map_err(absent)?;
        let until_ns = monotonic_ns() + RUN_LIMIT.as_nanos() as u64;
        while running.output().0.bytes.is_empty() {
            if running.exited().is_some() || monotonic_ns() > until_ns || self.stopped() {
                let finished = running.end().map_err(absent)?;
                let why = failure(&finished, &[]).unwrap_or_else(|| "it ended early".into());
                let why = format!("the extra run did not reach its timed part: {why}");
                return Err(Absence::new(Reason::NotFound, why));
            }
            std::thread::sleep(GLANCE);
        }
        let mut words: Vec<OsString> = vec![self.program.into(), "diagnose".into(), "--json".into()];
        words.extend_from_slice(options);
        words.push(format!("--pid={}", running.pid()).into());
        let diagnosis = Start {
            stdout: Output::Keep(LONGEST_DIAGNOSIS),
            env: vec![("XDG_STATE_HOME".into(), Some(state.into()))],
            ..Start::new(words, length + DIAGNOSIS_LIMIT)
        };
        let finished = run::start(&diagnosis, self.program)
            .and_then(|running| running.wait(self.interrupted))
            .map_err(absent)?;
        serde_json::from_slice(&finished.stdout.bytes).map_err(|_| {
            let why = last_words(&finished).unwrap_or_else(|| "it printed no report".into());
            Absence::new(Reason::NotFound, format!("the diagnosis failed: {why}"))
        })
    }
}

/// One run of an arm in a block.
fn spec(experiment: &Experiment, arm: &Arm, settings: &Settings) -> Spec {
    Spec {
        experiment: experiment.name.into(),
        variant: arm.variant.into(),
        seed: settings.seed,
        scale: settings.scale,
        timed_s: TIMED_S * settings.scale,
        announce: false,
    }
}

#[cfg(test)]
mod tests {
    use super::super::EXPERIMENTS;
    use super::*;

    #[test]
    fn a_run_is_as_long_as_its_scale_and_survives_json() {
        let settings = Settings { scale: 0.5, ..Settings::full(9) };
        let of = spec(&EXPERIMENTS[0], &EXPERIMENTS[0].arms[1], &settings);
        assert_eq!((of.timed_s, of.seed, of.announce), (TIMED_S * 0.5, 9, false));
        let text = serde_json::to_string(&of).unwrap();
        assert_eq!(serde_json::from_str::<Spec>(&text).unwrap(), of);
    }
}
