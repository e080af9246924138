//! The progress of a trial: a line that is rewritten on a terminal, elsewhere a line from time to time.

use crate::printer::Printer;
use allocwall_host::clock::monotonic_ns;
use allocwall_model::units::count;
use allocwall_trial::compare::{Resolution, compare, resolution};
use allocwall_trial::conduct::Event;
use allocwall_trial::{Comparison, Outcome, TrialResult};
use std::time::Duration;

/// Shortest time between two lines where no terminal shows them.
const BETWEEN_LINES: Duration = Duration::from_secs(60);

/// What is known before the first block.
#[derive(Clone, Debug, Default)]
pub struct Outlook {
    /// Names of the arms; empty if they are not shown.
    pub names: Vec<String>,
    /// Total number of blocks, if it is planned.
    pub planned: Option<usize>,
    /// Time for all blocks, if it is limited.
    pub budget: Option<Duration>,
    /// Time of a block, from the runs that are not counted.
    pub each_s: Option<f64>,
}

/// The plan, if one is made, and the noise are always printed.
pub struct Progress<'a> {
    printer: &'a Printer,
    outlook: Outlook,
    /// The effects so far.
    estimate: String,
    began: Option<Began>,
    told_ns: u64,
}

/// The first run that this process started.
struct Began {
    at_ns: u64,
    block: usize,
}

impl<'a> Progress<'a> {
    pub fn of(printer: &'a Printer, outlook: Outlook) -> Progress<'a> {
        Progress { printer, outlook, estimate: String::new(), began: None, told_ns: monotonic_ns() }
    }

    pub fn show(&mut self, event: Event<'_>) {
        match event {
            Event::RunStarts { block, place, places, arm } => {
                self.began.get_or_insert_with(|| Began { at_ns: monotonic_ns(), block });
                if self.printer.progress() {
                    let name = self.outlook.names.get(arm).map_or(String::new(), |name| format!(" ({name})"));
                    let done = block as f64 + place as f64 / places.max(1) as f64;
                    self.printer.progress_line(&format!(
                        "block {}{}, run {} of {places}{name}{}{}",
                        block + 1,
                        self.of_planned(),
                        place + 1,
                        self.left(done),
                        self.estimate
                    ));
                }
            }
            Event::BlockFinished { design, blocks } => {
                if self.printer.progress() {
                    self.estimate = estimate(&compare(design, blocks));
                } else if self.is_due() {
                    let done = blocks.len();
                    let line = format!("block {done}{} is done{}", self.of_planned(), self.left(done as f64));
                    self.printer.note(&line);
                }
            }
            Event::Planned { blocks, each_s, why } => {
                self.outlook.planned = Some(blocks);
                self.printer.clear_line();
                let minutes = blocks as f64 * each_s / 60.0;
                self.printer.note(&format!(
                    "{} in total, about {minutes:.1} minutes at {each_s:.1} s per block: {why}",
                    count(blocks, "block")
                ));
            }
            Event::NoiseKnown { design, blocks } => {
                let known: Vec<String> = resolution(design, blocks)
                    .iter()
                    .map(|metric| in_words(metric, design.settings.planned))
                    .collect();
                if !known.is_empty() {
                    self.printer.clear_line();
                    self.printer.note(&format!("noise after {} blocks: {}", blocks.len(), known.join("; ")));
                }
            }
        }
    }

    fn of_planned(&self) -> String {
        self.outlook.planned.map_or(String::new(), |planned| format!(" of {planned}"))
    }

    /// The time left, after this number of blocks of the whole trial.
    fn left(&self, done: f64) -> String {
        let Some(began) = &self.began else { return String::new() };
        let spent_s = monotonic_ns().saturating_sub(began.at_ns) as f64 / 1e9;
        let own = done - began.block as f64;
        let each_s = if own >= 1.0 { Some(spent_s / own) } else { self.outlook.each_s };
        let of_plan = |planned: usize| Some((planned as f64 - done).max(0.0) * each_s?);
        let of_budget = |budget: Duration| (budget.as_secs_f64() - spent_s).max(0.0);
        let planned_s = self.outlook.planned.and_then(of_plan);
        let left_s = match (planned_s, self.outlook.budget.map(of_budget)) {
            (Some(planned_s), Some(budget_s)) => Some(planned_s.min(budget_s)),
            (planned_s, budget_s) => planned_s.or(budget_s),
        };
        left_s.map_or(String::new(), |left_s| format!(" · about {} left", roughly(left_s)))
    }

    /// Whether the next line may be printed where no terminal rewrites it.
    fn is_due(&mut self) -> bool {
        let now_ns = monotonic_ns();
        let is_due = now_ns.saturating_sub(self.told_ns) >= BETWEEN_LINES.as_nanos() as u64;
        if is_due {
            self.told_ns = now_ns;
        }
        is_due
    }
}

/// A time in the precision of an estimate.
pub fn roughly(seconds: f64) -> String {
    match seconds {
        s if s < 1.0 => "1 s".to_owned(),
        s if s < 99.5 => format!("{s:.0} s"),
        s if s < 99.5 * 60.0 => format!("{:.0} minutes", s / 60.0),
        s => format!("{:.1} hours", s / 3600.0),
    }
}

fn in_words(known: &Resolution, planned: usize) -> String {
    let Resolution { metric, of_run, smallest } = known;
    if *of_run == 0.0 {
        return format!("{metric} is the same in all runs so far: it may not show a change");
    }
    let finds = match smallest {
        Some(effect) => format!("{planned} blocks find changes of {} or more", percent(*effect)),
        None => format!("{planned} blocks find no change at this noise"),
    };
    format!("{metric} differs by {} from run to run; {finds}", percent(*of_run))
}

/// Two digits below 10 %.
pub fn percent(share: f64) -> String {
    let percent = share * 100.0;
    if percent < 9.95 { format!("{percent:.1} %") } else { format!("{percent:.0} %") }
}

/// The effects so far on the primary metrics: of A′ against A, which is the control, and of the remedies.
fn estimate(outcome: &TrialResult) -> String {
    let primary = |c: &&Comparison| outcome.metric(&c.metric).is_some_and(|m| m.primary);
    let several = outcome.baseline.iter().filter(primary).count() > 1;
    let shown = |c: &Comparison, name: &str, otherwise: Option<f64>| {
        let effect = c.effect.as_ref().ok().map(|effect| effect.point).or(otherwise)?;
        // Outcomes are shown only at interim looks: shown earlier, they would invite stopping at a convenient
        // moment.
        let looked = outcome.design.settings.looks.contains(&outcome.blocks);
        let word = match c.outcome {
            Outcome::Unresolved => String::new(),
            _ if !looked => String::new(),
            word => format!(" {}", word.key()),
        };
        let title = outcome.metric(&c.metric).filter(|_| several);
        let title = title.map_or(String::new(), |metric| format!(" {}", metric.title));
        Some(format!("{name}{title} {:+.1} %{word}", effect * 100.0))
    };
    let control = |c: &Comparison| shown(c, "control", outcome.control_by_medians(&c.metric));
    let control = outcome.baseline.iter().filter(primary).filter_map(control);
    // Without remedies, the control is all there is.
    let remedies = outcome.comparisons.iter().filter(primary).filter(|c| c.arm >= allocwall_trial::BASELINES);
    let remedies = remedies.filter_map(|c| shown(c, &outcome.design.arms[c.arm].name, None));
    let all: Vec<String> = control.chain(remedies).collect();
    if all.is_empty() { String::new() } else { format!(" · so far {}", all.join(", ")) }
}

impl Drop for Progress<'_> {
    fn drop(&mut self) {
        self.printer.clear_line();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_the_precision_of_an_estimate() {
        for (seconds, text) in [
            (0.02, "1 s"),
            (9.7, "10 s"),
            (99.0, "99 s"),
            (100.0, "2 minutes"),
            (1800.0, "30 minutes"),
            (5970.0, "1.7 hours"),
            (86_400.0, "24.0 hours"),
        ] {
            assert_eq!(roughly(seconds), text);
        }
    }

    #[test]
    fn the_time_left_is_that_of_the_plan_or_of_the_budget() {
        let printer = Printer::new();
        let left = |planned, budget: Option<u64>, each_s, done| {
            let budget = budget.map(Duration::from_secs);
            let mut progress =
                Progress::of(&printer, Outlook { planned, budget, each_s, ..Outlook::default() });
            progress.began = Some(Began { at_ns: monotonic_ns(), block: 2 });
            progress.left(done)
        };
        // Before the first block is done, its time is that of the runs that were not counted.
        assert_eq!(left(Some(12), None, Some(6.0), 2.5), " · about 57 s left");
        assert_eq!(left(Some(12), None, None, 2.5), "");
        // Blocks that took no time.
        assert_eq!(left(Some(12), None, Some(6.0), 4.0), " · about 1 s left");
        assert_eq!(left(None, Some(300), None, 2.0), " · about 5 minutes left");
        assert_eq!(left(Some(12), Some(30), Some(6.0), 2.5), " · about 30 s left");
        assert_eq!(left(None, None, None, 2.0), "");
    }

    #[test]
    fn noise_is_told_with_what_the_plan_finds() {
        let known = |smallest| Resolution { metric: "wall time".to_owned(), of_run: 0.0123, smallest };
        assert_eq!(
            in_words(&known(Some(0.0214)), 12),
            "wall time differs by 1.2 % from run to run; 12 blocks find changes of 2.1 % or more"
        );
        assert!(in_words(&known(None), 12).ends_with("12 blocks find no change at this noise"));
        // No noise at all is no sign of a good measure.
        let same = Resolution { of_run: 0.0, ..known(Some(1e-5)) };
        assert_eq!(in_words(&same, 12), "wall time is the same in all runs so far: it may not show a change");
        assert_eq!(percent(0.25), "25 %");
    }
}
