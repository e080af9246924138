//! One run of an experiment, in a process of its own: what it is asked to do, what it counts, and the result that it prints.

use super::find;
use crate::histogram::Histogram;
use crate::runs::{Figures, Printed};
use allocwall_host::clock::{monotonic_ns, own_cpu_ns};
use allocwall_host::cycles::Cycles;
use allocwall_host::proc::ProcFs;
use allocwall_model::units::{Absence, Measured, Reason};
use anyhow::Context;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The options of one run: the argument of the hidden command, as JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spec {
    pub experiment: String,
    pub variant: String,
    pub seed: u64,
    /// Size of the run; 1 is a full one.
    pub scale: f64,
    /// Length of the timed part.
    pub timed_s: f64,
    /// Print a line when the timed part begins. A recorder waits for it.
    pub announce: bool,
}

/// An experiment whose events take up to 100 ms, or are rare, needs a longer timed part: this many times that of others, and at most
/// some seconds.
const LONG: f64 = 6.0;
const LONGEST_S: f64 = 4.0;

impl Spec {
    /// A recorder ends its run itself.
    pub fn long_s(&self) -> f64 {
        if self.announce { self.timed_s } else { (self.timed_s * LONG).min(LONGEST_S) }
    }
}

/// Writes to standard output.
pub type Tell<'a> = dyn Fn(&str) -> anyhow::Result<()> + Sync + 'a;

pub struct Task<'a> {
    pub spec: &'a Spec,
    pub(super) tell: &'a Tell<'a>,
}

/// The counts of a timed part.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Counts {
    pub operations: u64,
    pub seconds: f64,
    /// Of all threads, user and kernel.
    pub cpu_s: f64,
    pub minor_faults: Measured<u64>,
}

/// The counts of a [`Histogram`] that are not zero. A histogram takes some hundred kilobytes, and the results of all runs are kept.
pub type Times = Vec<(u64, u64)>;

/// What the program of an experiment measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    pub counts: Counts,
    /// By key of the experiment's figures.
    pub figures: BTreeMap<String, f64>,
    /// Figures that cannot be measured on this machine, with the reason.
    pub absent: BTreeMap<String, Absence>,
    pub histograms: BTreeMap<String, Times>,
}

impl Outcome {
    /// Figures of which some may be absent, without histograms.
    pub fn of(counts: Counts, figures: impl IntoIterator<Item = (&'static str, Measured<f64>)>) -> Outcome {
        let mut outcome = Outcome {
            counts,
            figures: BTreeMap::new(),
            absent: BTreeMap::new(),
            histograms: BTreeMap::new(),
        };
        for (key, value) in figures {
            match value {
                Ok(value) => _ = outcome.figures.insert(key.to_owned(), value),
                Err(absence) => _ = outcome.absent.insert(key.to_owned(), absence),
            }
        }
        outcome
    }

    /// With these histograms.
    pub fn timed(mut self, histograms: impl IntoIterator<Item = (&'static str, Histogram)>) -> Outcome {
        self.histograms.extend(histograms.into_iter().map(|(key, times)| (key.to_owned(), times.into())));
        self
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunResult {
    pub variant: String,
    pub outcome: Outcome,
}

impl Printed for RunResult {
    fn variant(&self) -> &str {
        &self.variant
    }
}

/// Runs the program of an experiment once.
///
/// # Errors
/// One line: why it has no result.
pub fn run(spec: &Spec, tell: &Tell) -> anyhow::Result<RunResult> {
    let experiment = find(&spec.experiment).with_context(|| format!("no experiment {}", spec.experiment))?;
    let outcome = (experiment.run)(&Task { spec, tell })?;
    Ok(RunResult { variant: spec.variant.clone(), outcome })
}

impl Task<'_> {
    /// Begins the timed part. What was set up before is not counted.
    pub fn begin(&self) -> anyhow::Result<Meter> {
        if self.spec.announce {
            (self.tell)("ready\n")?;
        }
        let (faults, cpu_ns, began_ns) = (minor_faults(), own_cpu_ns(), monotonic_ns());
        let ends_ns = began_ns.saturating_add((self.spec.timed_s * 1e9) as u64);
        Ok(Meter { began_ns, ends_ns, cpu_ns, faults })
    }
}

/// The counters at the beginning of the timed part.
pub struct Meter {
    began_ns: u64,
    ends_ns: u64,
    cpu_ns: u64,
    faults: Measured<u64>,
}

impl Meter {
    /// Whether the time is over.
    pub fn over(&self) -> bool {
        monotonic_ns() >= self.ends_ns
    }

    pub fn finish(self, operations: u64) -> Counts {
        let (ended_ns, cpu_ns) = (monotonic_ns(), own_cpu_ns());
        let faults = self.faults.and_then(|before| Ok(minor_faults()?.saturating_sub(before)));
        Counts {
            operations,
            seconds: (ended_ns - self.began_ns) as f64 / 1e9,
            cpu_s: (cpu_ns - self.cpu_ns) as f64 / 1e9,
            minor_faults: faults,
        }
    }
}

fn minor_faults() -> Measured<u64> {
    Ok(ProcFs::live().process_stat(std::process::id() as i32)?.minor_faults)
}

/// A clock for times below a microsecond. It is set for 20 ms.
pub fn fine_clock() -> Cycles {
    Cycles::start(20_000_000)
}

/// The time that this share of the calls did not exceed.
///
/// # Errors
/// No call was timed.
pub fn percentile(times: &Histogram, share: f64) -> anyhow::Result<f64> {
    times.quantile(share).context("the run was too short: nothing was timed")
}

/// The figures of a result: those that the program reports, and some that every program has.
pub fn figures(result: &RunResult) -> Figures {
    let Outcome { counts, figures, absent, .. } = &result.outcome;
    let mut all: Figures = figures.iter().map(|(key, value)| (key.clone(), Ok(*value))).collect();
    all.extend(absent.iter().map(|(key, absence)| (key.clone(), Err(absence.clone()))));
    let each = |sum: f64| match counts.operations {
        0 => Err(Absence::new(Reason::TooLittle, "the run finished no operation")),
        operations => Ok(sum / operations as f64),
    };
    let faults = counts.minor_faults.clone().and_then(|faults| each(faults as f64));
    all.insert("ns_per_operation".into(), each(counts.seconds * 1e9));
    all.insert("cpu_ns_per_operation".into(), each(counts.cpu_s * 1e9));
    all.insert("faults_per_operation".into(), faults);
    all
}

#[cfg(test)]
mod tests {
    use super::super::{EXPERIMENTS, Settings};
    use super::*;
    use allocwall_trial::batch;
    use std::sync::Mutex;

    fn spec(experiment: &str, announce: bool) -> Spec {
        Spec {
            experiment: experiment.into(),
            variant: "all".into(),
            seed: 1,
            scale: 0.01,
            timed_s: 0.01,
            announce,
        }
    }

    #[test]
    fn every_experiment_runs_and_reports_its_figures() {
        // Measured from outside, in every run of a trial.
        let outside: Vec<String> = batch::metrics(&[]).into_iter().map(|metric| metric.key).collect();
        for experiment in EXPERIMENTS {
            if let Some(check) = experiment.check
                && let Err(absence) = check(&experiment.arms[0], &Settings::quick(1))
            {
                eprintln!("skipped: {absence}");
                continue;
            }
            let spec = Spec { variant: experiment.arms[0].variant.into(), ..spec(experiment.name, false) };
            let result = run(&spec, &|_| panic!("nothing to announce")).unwrap();
            let text = serde_json::to_string(&result).unwrap();
            assert_eq!(serde_json::from_str::<RunResult>(&text).unwrap(), result);
            let counts = &result.outcome.counts;
            assert!(counts.operations > 0 && counts.seconds >= 0.01, "{counts:?}");
            let figures = figures(&result);
            for figure in experiment.figures.iter().filter(|f| !outside.iter().any(|key| key == f.key)) {
                let absent = result.outcome.absent.contains_key(figure.key);
                let value = figures.get(figure.key).and_then(|value| value.as_ref().ok());
                let measured = value.is_some_and(|value| *value >= 0.0);
                assert!(measured != absent, "{}: {}", experiment.name, figure.key);
            }
        }
    }

    #[test]
    fn a_long_run_is_bounded_unless_a_recorder_ends_it() {
        let of = |timed_s: f64, announce| Spec { timed_s, ..spec("any", announce) }.long_s();
        assert!((of(0.15, false) - 0.9).abs() < 1e-9 && of(0.15, false) < of(1.0, false));
        assert_eq!((of(10.0, false), of(31.0, true)), (LONGEST_S, 31.0));
    }

    #[test]
    fn only_a_run_that_is_asked_to_announces_its_timed_part() {
        let said = Mutex::new(String::new());
        let tell = |line: &str| -> anyhow::Result<()> {
            said.lock().unwrap().push_str(line);
            Ok(())
        };
        let spec = spec(EXPERIMENTS[0].name, true);
        let meter = Task { spec: &spec, tell: &tell }.begin().unwrap();
        assert_eq!(*said.lock().unwrap(), "ready\n");
        assert!(meter.ends_ns - meter.began_ns == 10_000_000);
        assert!(run(&Spec { experiment: "snake-oil".into(), ..spec.clone() }, &tell).is_err());
    }

    #[test]
    fn without_an_operation_there_is_no_time_of_one() {
        let of = |operations| {
            let minor_faults = Err(Absence::new(Reason::NotPermitted, "no /proc"));
            let outcome = Outcome {
                counts: Counts { operations, seconds: 1.0, cpu_s: 1.0, minor_faults },
                figures: BTreeMap::from([("own".to_owned(), 3.0)]),
                absent: BTreeMap::from([(
                    "none".to_owned(),
                    Absence::new(Reason::NotSupported, "no counter"),
                )]),
                histograms: BTreeMap::new(),
            };
            figures(&RunResult { variant: "all".into(), outcome })
        };
        assert_eq!(of(0)["own"], Ok(3.0));
        assert_eq!(of(10)["none"].as_ref().unwrap_err().detail, "no counter");
        assert_eq!(of(0)["ns_per_operation"].as_ref().unwrap_err().reason, Reason::TooLittle);
        assert_eq!(of(10)["ns_per_operation"], Ok(1e8));
        assert_eq!(of(10)["faults_per_operation"].as_ref().unwrap_err().reason, Reason::NotPermitted);
    }
}
