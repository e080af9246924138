//! The progress of a trial on a terminal.

use crate::printer::Printer;
use allocwall_trial::compare::compare;
use allocwall_trial::conduct::Event;
use allocwall_trial::{Outcome, TrialResult};

/// Shows progress on a terminal. The plan, if one is made, is always printed.
pub struct Progress<'a> {
    printer: &'a Printer,
    estimate: String,
    planned: usize,
}

impl<'a> Progress<'a> {
    pub fn new(printer: &'a Printer) -> Progress<'a> {
        Progress { printer, estimate: String::new(), planned: 0 }
    }

    pub fn show(&mut self, event: Event<'_>) {
        match event {
            Event::RunStarts { block, place, places } => {
                let of = if self.planned > 0 { format!(" of {}", self.planned) } else { String::new() };
                self.printer.progress_line(&format!(
                    "block {}{of}, run {} of {places}{}",
                    block + 1,
                    place + 1,
                    self.estimate
                ));
            }
            Event::BlockFinished { design, blocks } => {
                self.planned = design.settings.planned;
                if self.printer.progress() {
                    self.estimate = estimate(&compare(design, blocks));
                }
            }
            Event::Planned { blocks, each_s, why } => {
                self.planned = blocks;
                self.printer.clear_line();
                let minutes = blocks as f64 * each_s / 60.0;
                self.printer.note(&format!(
                    "{blocks} blocks in total, about {minutes:.1} minutes at {each_s:.1} s per block: {why}"
                ));
            }
        }
    }
}

/// The effects so far on the primary metrics.
fn estimate(outcome: &TrialResult) -> String {
    let primary = |metric: &str| outcome.metric(metric).is_some_and(|m| m.primary);
    let shown: Vec<String> = outcome
        .comparisons
        .iter()
        .filter(|c| primary(&c.metric))
        .filter_map(|c| {
            let effect = c.effect.as_ref().ok()?;
            let name = &outcome.design.arms[c.arm].name;
            // Outcomes are shown only at interim looks: shown earlier, they would invite stopping at a convenient
            // moment.
            let looked = outcome.design.settings.looks.contains(&outcome.blocks);
            let word = match c.outcome {
                Outcome::Unresolved => String::new(),
                _ if !looked => String::new(),
                word => format!(" {}", word.key()),
            };
            Some(format!("{name} {:+.1} %{word}", effect.point * 100.0))
        })
        .collect();
    if shown.is_empty() { String::new() } else { format!(" · so far {}", shown.join(", ")) }
}

impl Drop for Progress<'_> {
    fn drop(&mut self) {
        self.printer.clear_line();
    }
}
